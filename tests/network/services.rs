//! Services on a real kernel: a node with two pods, a host outside; connections of real sockets.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::io::{ErrorKind, Write as _};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use smolet::conntrack::{Flow, forget_udp};
use smolet::limits::{AFFINITIES_MAX, CONNTRACK_DELETED_MAX, NETLINK_ANSWER_BYTES};
use smolet::model::{Network, Transport};
use smolet::netlink::{Netlink, Protocol};
use smolet::nftables::{Batch, Element, ElementData, Family, generation, run};
use smolet::service_proxy::{Backend, FamilySync, Kernel, ServiceName, ServicePort, Settings, TABLE};

use super::space::{PATIENCE, Space};

const CLUSTER_IP: &str = "10.43.0.10";

/// A node and what is around it.
///
/// ```text
///     client 10.42.0.2 ┐
///     one    10.42.0.3 ┼─ node 192.168.9.1 ── outside 192.168.9.2
///     two    10.42.0.4 ┘
/// ```
struct World {
    node: Space,
    client: Space,
    one: Space,
    _two: Space,
    outside: Space,
    kernel: Option<Kernel>,
}

impl World {
    fn new() -> Self {
        let spaces = std::array::from_fn::<Space, 5, _>(|_| Space::new());
        let [node, client, one, two, outside] = spaces;
        node.set("/proc/sys/net/ipv4/ip_forward", "1");
        node.set("/proc/sys/net/ipv6/conf/all/forwarding", "1");
        for (number, pod) in [(2, &client), (3, &one), (4, &two)] {
            let (address, of_pod) = (format!("169.254.{number}.1/24"), format!("10.42.0.{number}/32"));
            let (address_6, of_pod_6) = (format!("fd42:{number}::1/64"), format!("fd42:{number}::2/64"));
            node.link(&format!("pod{number}"), &[&address, &address_6], pod, &[&of_pod, &of_pod_6]);
            node.ip(&format!("route add 10.42.0.{number} dev pod{number}"));
            pod.ip(&format!("route add 169.254.{number}.1 dev eth0"));
            pod.ip(&format!("route add default via 169.254.{number}.1"));
            pod.ip(&format!("route add default via fd42:{number}::1"));
        }
        node.link("out", &["192.168.9.1/24", "fd09::1/64"], &outside, &["192.168.9.2/24", "fd09::2/64"]);
        node.ip("route add default via fd09::2");
        node.ip("route add default via 192.168.9.2");
        outside.ip("route add default via 192.168.9.1");
        outside.ip("route add default via fd09::1");
        for (pod, name, number) in [(&one, "one", 3), (&two, "two", 4)] {
            pod.serve_tcp(at("0.0.0.0:8080"), name);
            pod.serve_tcp(format!("[fd42:{number}::2]:8080").parse().unwrap(), name);
            pod.serve_udp(format!("10.42.0.{number}:5353").parse().unwrap(), name);
            pod.serve_udp(format!("[fd42:{number}::2]:5353").parse().unwrap(), name);
        }
        let mut world = Self { node, client, one, _two: two, outside, kernel: None };
        world.restart();
        world
    }

    /// As by a new agent.
    fn restart(&mut self) {
        self.kernel = Some(self.node.within(|| Kernel::open(settings("192.168.9.1")).unwrap()));
    }

    /// Within the node, whose namespace the kernel's socket belongs to anyway.
    fn try_change(&mut self, ports: Vec<ServicePort>) -> [FamilySync; 2] {
        let mut services = std::collections::BTreeMap::<ServiceName, Vec<ServicePort>>::new();
        for port in ports {
            services.entry(port.service.clone()).or_default().push(port);
        }
        self.kernel.as_mut().unwrap().change(services.into_iter().collect())
    }

    fn change(&mut self, ports: Vec<ServicePort>) {
        assert_eq!(self.try_change(ports), CURRENT);
    }

    /// As each minute.
    fn check(&mut self, is_thorough: bool) {
        self.kernel.as_mut().unwrap().check(is_thorough).unwrap();
        self.change(Vec::new());
    }

    fn gone(&mut self, name: &str) {
        let synced = self.kernel.as_mut().unwrap().change(vec![(service(name), Vec::new())]);
        assert_eq!(synced, CURRENT);
    }

    /// As nft(8) shows it, which can read all of it.
    fn table(&self) -> String {
        self.node.run("nft", &format!("list table ip {TABLE}"))
    }
}

/// The kernel took the rules of both families.
const CURRENT: [FamilySync; 2] = [FamilySync::Current, FamilySync::Current];

/// Of a node with that address.
fn settings(address: &str) -> Settings {
    Settings {
        cluster_cidrs: vec![Network { address: "10.42.0.0".parse().unwrap(), prefix: 16 }],
        node_addresses: vec![address.parse().unwrap()],
    }
}

fn service(name: &str) -> ServiceName {
    ServiceName { namespace: "default".into(), name: name.into() }
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn backend(number: u8, port: u16) -> Backend {
    Backend { address: IpAddr::from([10, 42, 0, number]), port, is_local: true }
}

/// Port 80 of a service, by the pods of these numbers.
fn port(name: &str, pods: &[u8]) -> ServicePort {
    let backends: Vec<Backend> = pods.iter().map(|number| backend(*number, 8080)).collect();
    ServicePort {
        service: service(name),
        port_name: "http".into(),
        transport: Transport::Tcp,
        cluster_ip: CLUSTER_IP.parse().unwrap(),
        port: 80,
        node_port: 0,
        external_ips: Box::default(),
        load_balancer_ips: Box::default(),
        source_ranges: Box::default(),
        affinity_seconds: 0,
        is_internal_local: false,
        is_external_local: false,
        health_check_node_port: 0,
        has_endpoints: !backends.is_empty(),
        cluster: backends,
        local: Vec::new(),
        serving: Vec::new(),
    }
}

/// Port 53 of UDP, by the pods of these numbers.
fn dns(pods: &[u8]) -> ServicePort {
    let backends: Vec<Backend> = pods.iter().map(|number| backend(*number, 5353)).collect();
    ServicePort {
        transport: Transport::Udp,
        port: 53,
        serving: backends.iter().map(|of| SocketAddr::new(of.address, of.port)).collect(),
        cluster: backends,
        ..port("dns", pods)
    }
}

fn udp_client(of: &Space) -> UdpSocket {
    let socket = of.within(|| UdpSocket::bind("0.0.0.0:0").unwrap());
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Which pod answers port 53.
fn ask_dns(client: &UdpSocket) -> String {
    ask_dns_at(client, "10.43.0.10:53")
}

fn ask_dns_at(client: &UdpSocket, address: &str) -> String {
    client.send_to(b"?", address).unwrap();
    let mut answer = [0; 16];
    let (bytes, _) = client.recv_from(&mut answer).expect("an answer");
    String::from_utf8(answer[..bytes].to_vec()).unwrap()
}

/// How many connections of UDP the node tracks for which that holds.
fn flows(world: &World, holds: impl Fn(&Flow) -> bool + Send + 'static) -> usize {
    world.node.within(move || {
        let found = Cell::new(0);
        let count = |flow: &Flow| {
            found.set(found.get() + usize::from(holds(flow)));
            false
        };
        forget_udp(&mut Netlink::open(Protocol::Netfilter).unwrap(), false, &count).unwrap();
        found.get()
    })
}

/// The kernel's number of the node's rules.
fn rules_number(world: &World) -> u32 {
    world.node.within(|| generation(&mut Netlink::open(Protocol::Netfilter).unwrap()).unwrap())
}

/// How many clients stay with an endpoint over IPv4.
fn clients(world: &World) -> usize {
    let shown = world.node.run("nft", &format!("list set ip {TABLE} affinity"));
    shown.matches("expires").count()
}

/// The table of that family (`ip`, `ip6`) is another process's, as long as that is there: nobody else may write it.
fn take_table(node: &Space, family: &str) -> (Child, ChildStdin) {
    node.run("nft", &format!("delete table {family} {TABLE}"));
    let mut owner = node.within(|| {
        Command::new("nft").arg("-i").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
    });
    let mut commands = owner.stdin.take().unwrap();
    writeln!(commands, "add table {family} {TABLE} {{ flags owner; }}").unwrap();
    let deadline = Instant::now() + PATIENCE;
    while !node.run("nft", "list tables").contains(&format!("{family} {TABLE}")) {
        assert!(Instant::now() < deadline, "the table is there");
        std::thread::sleep(Duration::from_millis(20));
    }
    (owner, commands)
}

#[test]
fn a_cluster_ip_leads_to_its_endpoints_and_to_nobody_else() {
    let mut world = World::new();
    world.change(vec![port("web", &[3, 4])]);
    let address = at("10.43.0.10:80");
    assert_eq!(world.client.ask_often(address), ["one", "two"]);
    assert_eq!(world.node.ask_often(address), ["one", "two"], "the node itself");
    assert_eq!(
        world.client.ask(address).unwrap().1,
        IpAddr::from([10, 42, 0, 2]),
        "the client's own address"
    );
    assert_eq!(world.client.ask(at("10.43.0.10:81")), Err(ErrorKind::ConnectionRefused), "not its port");
    // To itself: a packet from its own address would not be answered.
    assert_eq!(world.one.ask_often(address), ["one", "two"]);
    // From outside the cluster, by a route: answers come back by this node.
    let shown = world.outside.ask(address).unwrap().1.to_string();
    assert!(shown.starts_with("169.254."), "{shown}");

    world.change(vec![port("web", &[4])]);
    assert_eq!(world.client.ask_often(address), ["two"]);
    world.change(vec![port("web", &[])]);
    assert_eq!(world.client.ask(address), Err(ErrorKind::ConnectionRefused), "no endpoints");
    world.change(vec![port("web", &[3])]);
    assert_eq!(world.client.ask_often(address), ["one"]);
    assert!(world.table().contains("\"default/web:http\""), "{}", world.table());
    // What is outside of a connection's window is not translated back, and the client would reset its connection.
    for end in ["saddr", "daddr"] {
        let rule = format!("ct state invalid ip {end} 10.42.0.0/16 drop");
        assert!(world.table().contains(&rule), "{}", world.table());
    }
    world.gone("web");
    assert!(world.client.ask(address).is_err());
}

#[test]
fn a_node_port_is_on_the_nodes_addresses_and_masquerades_unless_the_policy_is_local() {
    let mut world = World::new();
    let cluster = ServicePort { node_port: 30080, ..port("web", &[3, 4]) };
    world.change(vec![cluster.clone()]);
    let address = at("192.168.9.1:30080");
    assert_eq!(world.outside.ask_often(address), ["one", "two"]);
    assert_ne!(world.outside.ask(address).unwrap().1, IpAddr::from([192, 168, 9, 2]), "masqueraded");
    assert_eq!(world.client.ask_often(address), ["one", "two"], "from a pod");
    assert_eq!(world.node.ask_often(address), ["one", "two"], "from the node");
    assert!(world.node.ask(at("127.0.0.1:30080")).is_err(), "not on the loopback");

    // Policy Local with an endpoint here and one on another node.
    let local = ServicePort {
        is_external_local: true,
        cluster: vec![backend(3, 8080), Backend { is_local: false, ..backend(4, 8080) }],
        local: vec![backend(3, 8080)],
        ..cluster.clone()
    };
    world.change(vec![local.clone()]);
    assert_eq!(world.outside.ask_often(address), ["one"], "local endpoints alone");
    assert_eq!(world.outside.ask(address).unwrap().1, IpAddr::from([192, 168, 9, 2]), "its own address");
    assert_eq!(world.client.ask_often(address), ["one", "two"], "pods reach all");
    assert_eq!(world.node.ask_often(address), ["one", "two"], "the node reaches all");

    // None here: dropped, and not rejected, so that a load balancer goes to another node.
    world.change(vec![ServicePort { local: Vec::new(), ..local }]);
    assert_eq!(world.outside.ask(address), Err(ErrorKind::TimedOut));
    assert_eq!(world.client.ask_often(address), ["one", "two"]);
    // Nobody anywhere.
    world.change(vec![ServicePort { node_port: 30080, ..port("web", &[]) }]);
    assert_eq!(world.outside.ask(address), Err(ErrorKind::ConnectionRefused));
    world.gone("web");
}

#[test]
fn a_load_balancer_and_external_addresses_are_served_and_ranges_of_sources_hold() {
    let mut world = World::new();
    let balanced = ServicePort {
        external_ips: Box::new(["203.0.113.7".parse().unwrap()]),
        load_balancer_ips: Box::new(["203.0.113.8".parse().unwrap()]),
        source_ranges: Box::new([Network { address: "192.168.9.0".parse().unwrap(), prefix: 24 }]),
        ..port("web", &[3])
    };
    world.change(vec![balanced.clone()]);
    assert_eq!(world.outside.ask_often(at("203.0.113.7:80")), ["one"]);
    assert_eq!(world.outside.ask_often(at("203.0.113.8:80")), ["one"], "from a source in the range");
    assert_eq!(world.client.ask(at("203.0.113.8:80")), Err(ErrorKind::TimedOut), "from another one");
    assert_eq!(world.client.ask_often(at("203.0.113.7:80")), ["one"], "ranges are the load balancer's alone");
    let other = Box::new([Network { address: "192.168.9.3".parse().unwrap(), prefix: 32 }]);
    world.change(vec![ServicePort { source_ranges: other, ..balanced.clone() }]);
    assert_eq!(world.outside.ask(at("203.0.113.8:80")), Err(ErrorKind::TimedOut));

    // Two services want the same address and port: the first one has it until it is gone.
    let second = ServicePort {
        external_ips: balanced.external_ips.clone(),
        cluster_ip: "10.43.0.11".parse().unwrap(),
        ..port("second", &[4])
    };
    world.change(vec![second.clone()]);
    assert_eq!(world.outside.ask_often(at("203.0.113.7:80")), ["one"]);
    assert_eq!(world.client.ask_often(at("10.43.0.11:80")), ["two"], "its own address it has");
    assert_eq!(world.kernel.as_ref().unwrap().contested(), [service("second")]);
    world.gone("web");
    world.change(vec![second]);
    assert_eq!(world.outside.ask_often(at("203.0.113.7:80")), ["two"]);
    assert_eq!(world.kernel.as_ref().unwrap().contested(), []);
}

/// A node that reaches a balancer's address of its own has that as its source.
#[test]
fn the_balancers_address_is_a_source_while_the_nodes_is_in_the_ranges() {
    let mut world = World::new();
    let balanced = ServicePort {
        load_balancer_ips: Box::new(["203.0.113.8".parse().unwrap()]),
        source_ranges: Box::new([Network { address: "192.168.9.0".parse().unwrap(), prefix: 24 }]),
        ..port("web", &[3])
    };
    for (address, is_in) in [("192.168.9.1", true), ("192.168.8.1", false), ("192.168.9.7", true)] {
        world.kernel.as_mut().unwrap().set_settings(settings(address));
        world.change(vec![balanced.clone()]);
        assert_eq!(world.table().contains("ip saddr 203.0.113.8"), is_in, "{}", world.table());
    }
}

#[test]
fn a_client_stays_with_its_endpoint() {
    let mut world = World::new();
    let sticky = |pods: &[u8]| ServicePort { affinity_seconds: 600, ..port("web", pods) };
    world.change(vec![sticky(&[3, 4])]);
    let address = at("10.43.0.10:80");
    let first = world.client.ask_often(address);
    assert_eq!(first.len(), 1, "{first:?}");
    assert!(world.table().contains("update @affinity"), "{}", world.table());
    // By a new agent too, in whose table nothing else has changed.
    world.restart();
    world.change(vec![sticky(&[3, 4])]);
    assert_eq!(world.client.ask_often(address), first);
    let (left, name) = if first == ["one"] { (4, "two") } else { (3, "one") };
    world.change(vec![sticky(&[left])]);
    assert_eq!(world.client.ask_often(address), [name], "its endpoint is gone");
    world.change(vec![sticky(&[3, 4])]);
    assert_eq!(world.client.ask_often(address), [name], "it stays with the next one");
}

/// Whoever sends from enough addresses fills the kernel's set: others are served all the same.
#[test]
fn clients_are_served_when_no_further_one_can_stay() {
    let mut world = World::new();
    world.change(vec![ServicePort { affinity_seconds: 600, ..port("web", &[3, 4]) }]);
    assert!(world.table().contains(&format!("size {AFFINITIES_MAX}")), "{}", world.table());
    let address = at("10.43.0.10:80");
    let first = world.client.ask_often(address);
    assert_eq!(first.len(), 1, "{first:?}");
    world.node.within(|| {
        let key = |number: u32| {
            let [a, b, c, d] = (0xac10_0000 + number).to_be_bytes();
            [a, b, c, d, 0xff, 0xff, 0xff, 0xff]
        };
        let keys: Vec<[u8; 8]> = (1..AFFINITIES_MAX).map(key).collect();
        let mut batch = Batch::new(Family::Ip, TABLE);
        let elements = keys.iter().map(|key| Element { key: &key[..], data: ElementData::None });
        batch.add_elements("affinity", elements);
        run(&mut Netlink::open(Protocol::Netfilter).unwrap(), batch).unwrap();
    });
    assert_eq!(world.outside.ask_often(address), ["one", "two"], "by any, at each connection");
    assert_eq!(world.client.ask_often(address), first, "who has an endpoint stays with it");
    world.node.run("nft", &format!("flush set ip {TABLE} affinity"));
    assert_eq!(world.outside.ask_often(address).len(), 1, "there is room again");
}

#[test]
fn a_client_goes_anywhere_when_its_time_has_ended() {
    let mut world = World::new();
    world.change(vec![ServicePort { affinity_seconds: 1, ..port("web", &[3, 4]) }]);
    let address = at("10.43.0.10:80");
    let first = world.client.ask(address).unwrap().0;
    let deadline = Instant::now() + PATIENCE;
    while world.client.ask(address).unwrap().0 == first {
        assert!(Instant::now() < deadline, "it still goes to {first}");
        std::thread::sleep(Duration::from_millis(1200));
    }
}

#[test]
fn all_clients_of_an_endpoint_that_is_gone_are_forgotten() {
    let mut world = World::new();
    let sticky = |pods: &[u8]| ServicePort { affinity_seconds: 600, ..port("web", pods) };
    world.change(vec![sticky(&[3])]);
    for client in [&world.client, &world.node, &world.outside] {
        assert_eq!(client.ask(at("10.43.0.10:80")).unwrap().0, "one");
    }
    assert_eq!(clients(&world), 3);
    world.change(vec![sticky(&[4])]);
    assert_eq!(clients(&world), 0);
    // Of a family without such services there is no set.
    let other = ServicePort { cluster_ip: "fd43::11".parse().unwrap(), ..port("other", &[]) };
    world.change(vec![sticky(&[3]), other]);
    assert_eq!(world.client.ask_often(at("10.43.0.10:80")), ["one"]);
}

/// The chain of the other policy is unchanged, and has the same endpoints.
#[test]
fn clients_stay_with_an_endpoint_when_the_policy_changes() {
    let mut world = World::new();
    let sticky = |pods: &[u8], local: &[u8]| {
        let of = |pods: &[u8]| ServicePort { affinity_seconds: 600, ..port("web", pods) };
        let (is_external_local, local) = (!local.is_empty(), of(local).cluster);
        ServicePort { node_port: 30080, is_external_local, local, ..of(pods) }
    };
    let address = at("192.168.9.1:30080");
    world.change(vec![sticky(&[3, 4], &[3, 4])]);
    let first = world.outside.ask_often(address);
    assert_eq!((first.len(), clients(&world)), (1, 1), "{first:?}");
    world.change(vec![sticky(&[3, 4], &[])]);
    assert_eq!(clients(&world), 1, "externalTrafficPolicy: Cluster");
    assert_eq!(world.outside.ask_often(address), first);
    world.change(vec![sticky(&[3, 4], &[3, 4])]);
    // It terminates, and is this node's only one.
    let (it, other) = if first == ["one"] { (3, 4) } else { (4, 3) };
    world.change(vec![sticky(&[other], &[it])]);
    assert_eq!(clients(&world), 1, "it serves those of policy Local");
    assert_eq!(world.outside.ask_often(address), first);
    world.change(vec![sticky(&[other], &[])]);
    assert_eq!(clients(&world), 0, "it is gone");
}

#[test]
fn udp_clients_reach_another_endpoint_when_theirs_is_gone() {
    let mut world = World::new();
    let socket = udp_client(&world.client);
    let ask = || ask_dns(&socket);
    world.change(vec![dns(&[3, 4])]);
    let first = ask();
    assert_eq!(ask(), first, "the same connection");
    let (left, other) = if first == "one" { (4, "two") } else { (3, "one") };
    world.change(vec![dns(&[left])]);
    assert_eq!(ask(), other);
    world.change(vec![dns(&[3, 4])]);
    assert_eq!(ask(), other, "a connection that is served is kept");
}

/// Connections that were made while the kernel refused the rules are forgotten behind the rules that it takes.
#[test]
fn udp_clients_reach_the_endpoint_of_rules_that_come_late() {
    let mut world = World::new();
    world.change(vec![dns(&[3])]);
    let known = udp_client(&world.client);
    assert_eq!(ask_dns(&known), "one");
    // Connections are tracked without the table too.
    world.node.run("nft", "add table ip other");
    world.node.run("nft", "add chain ip other tracked { type filter hook prerouting priority 0 ; }");
    world.node.run("nft", "add rule ip other tracked ct state new accept");
    let (mut owner, commands) = take_table(&world.node, "ip");
    let [ipv4, ipv6] = world.try_change(vec![dns(&[4])]);
    assert!(matches!(&ipv4, FamilySync::Refused(why) if why.contains("nf_tables refused")), "{ipv4:?}");
    assert_eq!(ipv6, FamilySync::Current);
    let early = udp_client(&world.client);
    early.send_to(b"?", "10.43.0.10:53").unwrap();
    let untranslated = |flow: &Flow| flow.replier == at("10.43.0.10:53");
    let deadline = Instant::now() + PATIENCE;
    while flows(&world, untranslated) == 0 {
        assert!(Instant::now() < deadline, "it is tracked");
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(commands);
    owner.wait().unwrap();
    world.check(false);
    assert_eq!((ask_dns(&early), ask_dns(&known)), ("two".into(), "two".into()));
}

#[test]
fn all_udp_connections_to_an_endpoint_that_is_gone_are_forgotten() {
    let mut world = World::new();
    world.change(vec![dns(&[3])]);
    let last = 20_000 + u16::try_from(CONNTRACK_DELETED_MAX).unwrap() + 500;
    world.client.within(move || {
        for port in 20_000..last {
            let socket = UdpSocket::bind(("0.0.0.0", port)).unwrap();
            socket.send_to(b"?", "10.43.0.10:53").unwrap();
        }
    });
    let to_one = |flow: &Flow| flow.replier == at("10.42.0.3:5353");
    let deadline = Instant::now() + PATIENCE;
    while flows(&world, to_one) <= CONNTRACK_DELETED_MAX {
        assert!(Instant::now() < deadline, "they are tracked");
        std::thread::sleep(Duration::from_millis(20));
    }
    world.change(vec![dns(&[4])]);
    assert_eq!(flows(&world, to_one), 0);
}

/// The CNI plugin portmap, for a pod of servicelb with the port of its Service.
#[test]
fn a_port_that_iptables_leads_to_a_pod_is_the_services_first() {
    let mut world = World::new();
    let address = at("192.168.9.1:80");
    let balanced = |pods: &[u8]| ServicePort {
        load_balancer_ips: ["192.168.9.1".parse().unwrap()].into(),
        ..port("web", pods)
    };
    world.change(vec![balanced(&[3])]);
    world.node.run("nft", "add table ip nat");
    world.node.run("nft", "add chain ip nat PREROUTING { type nat hook prerouting priority -100 ; }");
    world
        .node
        .run("nft", "add rule ip nat PREROUTING ip daddr 192.168.9.1 tcp dport 80 dnat to 10.42.0.4:8080");
    assert_eq!(world.client.ask_often(address), ["one"]);
    world.gone("web");
    assert_eq!(world.client.ask_often(address), ["two"]);
}

#[test]
fn rules_stay_while_no_agent_runs_and_come_back_when_somebody_deletes_them() {
    let mut world = World::new();
    let address = at("10.43.0.10:80");
    let other = ServicePort { cluster_ip: "10.43.0.11".parse().unwrap(), ..port("other", &[4]) };
    world.change(vec![port("web", &[3]), other]);
    world.kernel = None;
    assert_eq!(world.client.ask_often(address), ["one"]);
    // What was deleted meanwhile is gone, and the rest is as wanted.
    world.restart();
    world.change(vec![port("web", &[4])]);
    assert_eq!(world.client.ask_often(address), ["two"]);
    assert!(world.client.ask(at("10.43.0.11:80")).is_err());
    assert!(!world.table().contains("default/other"), "{}", world.table());

    world.node.run("nft", "flush ruleset");
    assert!(world.client.ask(address).is_err());
    // News that change nothing hide it from nobody.
    world.change(Vec::new());
    world.check(false);
    assert_eq!(world.client.ask_often(address), ["two"]);
    // A look that is not thorough does not hide from a thorough one what somebody else has changed.
    world.node.run("nft", &format!("flush chain ip {TABLE} services"));
    assert!(world.client.ask(address).is_err());
    world.check(false);
    assert!(world.client.ask(address).is_err(), "the table is there");
    world.check(true);
    assert_eq!(world.client.ask_often(address), ["two"]);
    // Nobody else changed anything: all is written each hour, and nothing in between.
    let before = rules_number(&world);
    world.check(false);
    assert_eq!(rules_number(&world), before);
    world.check(true);
    assert_eq!(rules_number(&world), before + 1);
    world.check(false);
    assert_eq!(rules_number(&world), before + 1);
    assert_eq!(world.client.ask_often(address), ["two"]);
    // A table of another make in its place.
    world.node.run("nft", "flush ruleset");
    world.node.run("nft", &format!("add table ip {TABLE}"));
    world.node.run(
        "nft",
        &format!("add chain ip {TABLE} nat-prerouting {{ type nat hook prerouting priority 5; }}"),
    );
    world.restart();
    world.change(vec![port("web", &[3])]);
    assert_eq!(world.client.ask_often(address), ["one"]);
}

#[test]
fn services_of_ipv6_have_a_table_of_their_own_while_there_are_any() {
    let mut world = World::new();
    let endpoint = |number: u8| Backend {
        address: format!("fd42:{number}::2").parse().unwrap(),
        port: 8080,
        is_local: true,
    };
    let six = ServicePort {
        cluster_ip: "fd43::10".parse().unwrap(),
        affinity_seconds: 60,
        cluster: vec![endpoint(3), endpoint(4)],
        ..port("web", &[3])
    };
    world.change(vec![port("web", &[3])]);
    let tables = || world.node.run("nft", "list tables");
    assert!(!tables().contains("ip6"), "{}", tables());
    world.change(vec![port("web", &[3]), six]);
    let other = ServicePort {
        cluster_ip: "fd43::11".parse().unwrap(),
        cluster: vec![endpoint(4)],
        ..port("other", &[4])
    };
    let address = at("[fd43::10]:80");
    assert_eq!(world.client.ask_often(address).len(), 1, "it stays with its endpoint");
    assert_eq!(world.client.ask(at("[fd43::10]:81")), Err(ErrorKind::ConnectionRefused));
    world.node.run("nft", &format!("list table ip6 {TABLE}"));
    // A change of one family's rules does not hide that the other one's were flushed.
    world.node.run("nft", "flush ruleset");
    world.change(vec![other]);
    assert_eq!(world.client.ask_often(at("[fd43::11]:80")), ["two"]);
    assert!(world.client.ask(at("10.43.0.10:80")).is_err());
    world.check(false);
    assert_eq!(world.client.ask_often(at("10.43.0.10:80")), ["one"]);
    world.restart();
    world.change(vec![port("web", &[3])]);
    assert!(!world.node.run("nft", "list tables").contains("ip6"));
}

/// What the tests above show of IPv4, each in short.
#[test]
fn ipv6_has_node_ports_balancers_policies_and_udp_too() {
    let mut world = World::new();
    let endpoint = |number: u8| Backend {
        address: format!("fd42:{number}::2").parse().unwrap(),
        port: 8080,
        is_local: true,
    };
    let cluster = ServicePort {
        cluster_ip: "fd43::10".parse().unwrap(),
        cluster: vec![endpoint(3), endpoint(4)],
        node_port: 30080,
        external_ips: Box::new(["2001:db8::7".parse().unwrap()]),
        load_balancer_ips: Box::new(["2001:db8::8".parse().unwrap()]),
        source_ranges: Box::new([Network { address: "fd09::".parse().unwrap(), prefix: 64 }]),
        ..port("web", &[3])
    };
    world.change(vec![cluster.clone()]);
    assert_eq!(world.one.ask_often(at("[fd43::10]:80")), ["one", "two"], "an endpoint reaches itself");
    let (node_port, external, balancer) =
        (at("[fd09::1]:30080"), at("[2001:db8::7]:80"), at("[2001:db8::8]:80"));
    for address in [node_port, external, balancer] {
        assert_eq!(world.outside.ask_often(address), ["one", "two"], "{address}");
    }
    let own: IpAddr = "fd09::2".parse().unwrap();
    assert_ne!(world.outside.ask(node_port).unwrap().1, own, "masqueraded");
    assert_eq!(world.client.ask(balancer), Err(ErrorKind::TimedOut), "a source beside the ranges");
    let local = ServicePort {
        is_external_local: true,
        cluster: vec![endpoint(3), Backend { is_local: false, ..endpoint(4) }],
        local: vec![endpoint(3)],
        ..cluster.clone()
    };
    world.change(vec![local.clone()]);
    for address in [node_port, external, balancer] {
        assert_eq!(world.outside.ask_often(address), ["one"], "{address}");
        assert_eq!(world.outside.ask(address).unwrap().1, own, "{address}: its own address");
    }
    world.change(vec![ServicePort { local: Vec::new(), ..local }]);
    assert_eq!(world.outside.ask(node_port), Err(ErrorKind::TimedOut), "no endpoint of this node's");
    world.change(vec![ServicePort { cluster: Vec::new(), has_endpoints: false, ..cluster }]);
    assert_eq!(world.outside.ask(node_port), Err(ErrorKind::ConnectionRefused));

    let names = |number: u8| {
        let backend = Backend { port: 5353, ..endpoint(number) };
        let serving = vec![SocketAddr::new(backend.address, backend.port)];
        ServicePort {
            cluster_ip: "fd43::53".parse().unwrap(),
            cluster: vec![backend],
            serving,
            ..dns(&[number])
        }
    };
    let socket = world.client.within(|| UdpSocket::bind("[::]:0").unwrap());
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let ask = || ask_dns_at(&socket, "[fd43::53]:53");
    world.change(vec![names(3)]);
    assert_eq!(ask(), "one");
    world.change(vec![names(4)]);
    assert_eq!(ask(), "two", "the connection to the endpoint that is gone is forgotten");
}

/// Each of them in turn is somebody else's.
#[test]
fn a_family_that_the_kernel_refuses_keeps_the_other_from_nothing() {
    let six = |number: u8| ServicePort {
        cluster_ip: "fd43::10".parse().unwrap(),
        cluster: vec![Backend {
            address: format!("fd42:{number}::2").parse().unwrap(),
            ..backend(number, 8080)
        }],
        ..port("web", &[3])
    };
    for (family, refused, taken) in
        [("ip", at("10.43.0.10:80"), at("[fd43::10]:80")), ("ip6", at("[fd43::10]:80"), at("10.43.0.10:80"))]
    {
        let mut world = World::new();
        let index = usize::from(family == "ip6");
        world.change(vec![port("web", &[3]), six(3)]);
        assert_eq!(world.client.ask_often(taken), ["one"]);
        let (mut owner, commands) = take_table(&world.node, family);
        let synced = world.try_change(vec![port("web", &[4]), six(4)]);
        let why = &synced[index];
        assert!(matches!(why, FamilySync::Refused(why) if why.contains("nf_tables refused")), "{synced:?}");
        assert_eq!(synced[1 - index], FamilySync::Current);
        assert_eq!(world.client.ask_often(taken), ["two"]);
        // Further news go to the other one alone.
        let before = rules_number(&world);
        for number in [3, 4] {
            let synced = world.try_change(vec![port("web", &[number]), six(number)]);
            assert_eq!((&synced[index], &synced[1 - index]), (&FamilySync::Waiting, &FamilySync::Current));
        }
        assert_eq!(rules_number(&world), before + 2);
        assert_eq!(world.client.ask_often(taken), ["two"]);
        // A look tries it again, and does not wait for it.
        world.kernel.as_mut().unwrap().check(false).unwrap();
        assert!(matches!(world.try_change(Vec::new())[index], FamilySync::Refused(_)));
        assert_eq!(rules_number(&world), before + 2);
        // The next attempt has nothing new to say, and writes what is missing.
        drop(commands);
        owner.wait().unwrap();
        assert_eq!(world.try_change(Vec::new())[index], FamilySync::Waiting);
        world.check(false);
        assert_eq!(world.client.ask_often(refused), ["two"]);
    }
}

/// As on a kernel without tables of IPv6: what is forgotten of IPv4 is not looked for at each change from then on.
#[test]
fn connections_of_a_family_are_forgotten_while_the_other_one_is_refused() {
    let mut world = World::new();
    let six = ServicePort { cluster_ip: "fd43::10".parse().unwrap(), ..port("web", &[]) };
    world.change(vec![dns(&[3]), six]);
    let socket = udp_client(&world.client);
    assert_eq!(ask_dns(&socket), "one");
    let bytes = |world: &World| world.kernel.as_ref().unwrap().bytes();
    let before = bytes(&world);
    let (mut owner, commands) = take_table(&world.node, "ip6");
    world.kernel.as_mut().unwrap().check(true).unwrap();
    let synced = world.try_change(Vec::new());
    assert!(matches!(synced, [FamilySync::Current, FamilySync::Refused(_)]), "{synced:?}");
    for (number, name) in [(4, "two"), (3, "one")] {
        let synced = world.try_change(vec![dns(&[number])]);
        assert_eq!(synced, [FamilySync::Current, FamilySync::Waiting]);
        assert_eq!(ask_dns(&socket), name);
        assert_eq!(bytes(&world), before, "no port is still to be looked at");
    }
    drop(commands);
    owner.wait().unwrap();
}

/// The kernel's answer repeats the message, and is longer than what is read of it; of two such it has no room for the other one.
#[test]
fn a_full_message_that_the_kernel_refuses_is_an_error() {
    let node = Space::new();
    for messages in [1, 2] {
        let (refused, next) = node.within(move || {
            let keys: Vec<[u8; 4]> = (0..messages * 2048_u32).map(u32::to_be_bytes).collect();
            let mut batch = Batch::new(Family::Ip, "nobodys");
            let elements = keys.iter().map(|key| Element { key: &key[..], data: ElementData::None });
            batch.add_elements("elements", elements);
            assert!(batch.len() > messages as usize * NETLINK_ANSWER_BYTES);
            let mut netlink = Netlink::open(Protocol::Netfilter).unwrap();
            let refused = run(&mut netlink, batch).unwrap_err();
            let mut batch = Batch::new(Family::Ip, "ours");
            batch.add_table();
            (refused, run(&mut netlink, batch))
        });
        assert_eq!((refused.message, refused.error.kind()), (Some(1), ErrorKind::NotFound), "{messages}");
        assert!(next.is_ok(), "{next:?}: nothing of it is left for the next one");
    }
}

/// A promise: with 10,000 endpoints 3 MiB and 200 ms of processor time for all rules, one element for a change of one.
#[test]
fn ten_thousand_endpoints_cost_what_is_promised() {
    let mut world = World::new();
    let service_of = |number: u16, ends: std::ops::Range<u8>| {
        let cluster = ends.map(|end| Backend {
            address: IpAddr::from([10, 50, number as u8, end]),
            port: 8080,
            is_local: false,
        });
        ServicePort {
            cluster_ip: IpAddr::from([10, 43, 1, number as u8]),
            cluster: cluster.collect(),
            ..port(&format!("service-{number}"), &[3])
        }
    };
    let all: Vec<ServicePort> = (0..100).map(|number| service_of(number, 0..100)).collect();
    let used = || rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let before = used();
    world.change(all);
    let spent = Duration::try_from(used()).unwrap() - Duration::try_from(before).unwrap();
    let bytes = world.kernel.as_ref().unwrap().bytes();
    println!("10,000 endpoints: {spent:?} of processor time, {bytes} bytes");
    assert!(bytes <= 1024 * 1024, "{bytes}");
    let elements = |world: &World| {
        let table = world.table();
        let elements = table.split([',', '{', '}']).filter(|element| element.contains(" : 10.50."));
        elements.map(|element| element.trim().to_owned()).collect::<BTreeSet<_>>()
    };
    let first = elements(&world);
    assert_eq!(first.len(), 10_000);
    let before = used();
    // The first one goes, and another one comes behind the last.
    world.change(vec![service_of(7, 1..101)]);
    let one = Duration::try_from(used()).unwrap() - Duration::try_from(before).unwrap();
    println!("one of them changed: {one:?}");
    let second = elements(&world);
    assert_eq!((second.len(), second.difference(&first).count()), (10_000, 1));
    let table = world.table();
    assert!(table.contains("10.50.7.100 . 8080") && !table.contains("10.50.7.0 . 8080"));
    assert!(spent < Duration::from_millis(200), "{spent:?}");
    assert!(one < spent / 5, "{one:?}");
}
