//! Two nodes and their pods, in network namespaces of the kernel's, which end with the test. Needs root.

#![cfg(target_arch = "x86_64")]

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::*;
use crate::flannel::Key;

/// A network namespace, which lasts as long as the process in it.
struct Namespace(Child);

impl Namespace {
    fn new() -> Self {
        let mut process = Command::new("unshare");
        // It reports that the namespace exists.
        process.args(["-n", "sh", "-c", "ip link set lo up; echo; exec sleep 600"]).stdout(Stdio::piped());
        let mut process = process.spawn().expect("unshare runs");
        process.stdout.take().expect("a pipe").read_exact(&mut [0]).expect("a namespace needs root");
        Self(process)
    }

    fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.0.id())
    }

    /// What the lines of a shell print.
    fn sh(&self, lines: &str) -> String {
        let mut shell = Command::new("nsenter");
        shell.args([&format!("--net={}", self.path()), "sh", "-ec", lines]);
        let ended = shell.output().expect("nsenter runs");
        let printed = String::from_utf8_lossy(&ended.stdout).into_owned();
        assert!(ended.status.success(), "{lines}: {printed}{}", String::from_utf8_lossy(&ended.stderr));
        printed
    }

    /// On a thread in the namespace.
    fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let file = File::open(self.path()).expect("the namespace");
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).expect("root");
                work()
            });
            thread.join().expect("it does not panic")
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A node, with one pod behind a bridge, as the CNI plugins leave it.
struct Node {
    space: Namespace,
    pod: Namespace,
    number: u8,
    /// The directory of its key.
    keys: PathBuf,
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.keys);
    }
}

const NETWORKS: [&str; 2] = ["10.42.0.0/16", "fd00:42::/56"];

impl Node {
    fn new(number: u8) -> Self {
        let (space, pod) = (Namespace::new(), Namespace::new());
        space.sh(&format!(
            "echo 1 > /proc/sys/net/ipv4/ip_forward
             echo 1 > /proc/sys/net/ipv6/conf/all/forwarding
             ip link add cni0 type bridge
             ip link add veth0 type veth peer name eth0 netns {}
             ip link set veth0 master cni0 up
             ip link set cni0 up mtu 1450
             ip addr add 10.42.{number}.1/24 dev cni0
             ip addr add fd00:42:0:{number}::1/64 dev cni0 nodad",
            pod.0.id()
        ));
        pod.sh(&format!(
            "ip link set eth0 up mtu 1450
             ip addr add 10.42.{number}.5/24 dev eth0
             ip addr add fd00:42:0:{number}::5/64 dev eth0 nodad
             ip route add default via 10.42.{number}.1
             ip route add default via fd00:42:0:{number}::1"
        ));
        let keys = std::env::temp_dir().join(format!("smolet-flannel-{}", space.0.id()));
        Self { space, pod, number, keys }
    }

    /// Two of them, on one link.
    fn pair() -> [Self; 2] {
        let nodes = [Self::new(1), Self::new(2)];
        nodes[0]
            .space
            .sh(&format!("ip link add eth0 type veth peer name eth0 netns {}", nodes[1].space.0.id()));
        for Self { space, number, .. } in &nodes {
            space.sh(&format!(
                "ip link set eth0 up
                 ip addr add 192.168.7.{number}/24 dev eth0
                 ip addr add fd07::{number}/64 dev eth0 nodad"
            ));
        }
        nodes
    }

    fn host(&self, of: usize) -> IpAddr {
        let texts = [format!("192.168.7.{}", self.number), format!("fd07::{}", self.number)];
        texts[of].parse().unwrap()
    }

    fn pod_address(&self, of: usize) -> IpAddr {
        let texts = [format!("10.42.{}.5", self.number), format!("fd00:42:0:{}::5", self.number)];
        texts[of].parse().unwrap()
    }

    fn wanted(&self, backend: Backend) -> Wanted {
        let number = self.number;
        Wanted {
            backend,
            networks: NETWORKS.map(Network::parse),
            own: [
                Network::parse(&format!("10.42.{number}.0/24")),
                Network::parse(&format!("fd00:42:0:{number}::/64")),
            ],
            interface: None,
            addresses: vec![self.host(0), self.host(1)],
            remembered: [None; 2],
            derived: [Mac([2, 0, 0, 0, 4, number]), Mac([2, 0, 0, 0, 6, number])],
            peers: None,
            key_file: self.keys.join("wgkey"),
            masquerades_v6: true,
            made: [None; 2],
            set: [].into(),
        }
    }

    fn bring_up(&self, wanted: &Wanted) -> BroughtUp {
        let up = self.space.run(|| bring_up(wanted)).unwrap();
        assert_eq!(up.refused, None);
        up
    }

    /// The ways to this node's pods, as another node reads them of its annotations.
    fn ways(&self, up: &BroughtUp) -> Vec<Way> {
        let own = self.wanted(Backend::Vxlan).own;
        [0, 1]
            .map(|of| Way { range: own[of].unwrap(), host: up.hosts[of].unwrap(), data: up.data[of] })
            .into()
    }
}

/// Both nodes with that backend, as each of them learns of the other.
fn joined(nodes: &[Node; 2], backend: Backend) -> [Wanted; 2] {
    let mut wanted = nodes.each_ref().map(|node| node.wanted(backend));
    let ups = [0, 1].map(|of| nodes[of].bring_up(&wanted[of]));
    for of in 0..2 {
        wanted[of].peers = Some(nodes[1 - of].ways(&ups[1 - of]));
        wanted[of].made = ups[of].rules;
        let up = nodes[of].bring_up(&wanted[of]);
        let entries = match backend {
            Backend::Vxlan => 6,
            Backend::HostGw => 2,
            Backend::Wireguard => 4,
        };
        assert_eq!(up.entries, entries);
        wanted[of].set = up.set;
    }
    wanted
}

/// The hardware address of its IPv4 link.
fn mac(up: &BroughtUp) -> Option<Mac> {
    match up.data[0]? {
        LinkData::Vxlan(mac) => Some(mac),
        LinkData::Wireguard(..) => None,
    }
}

/// Bytes go from the one namespace to that address in the other one, and back; returns who it was.
fn exchange(from: &Namespace, to: &Namespace, address: IpAddr) -> IpAddr {
    const BYTES: usize = 300_000;
    let listener = to.run(|| TcpListener::bind(SocketAddr::new(address, 0)).unwrap());
    let at = listener.local_addr().unwrap();
    let sent: Vec<u8> = (0..=u8::MAX).cycle().take(BYTES).collect();
    std::thread::scope(|scope| {
        let server = scope.spawn(move || {
            let (mut socket, peer) = listener.accept().unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            let mut received = vec![0; BYTES];
            socket.read_exact(&mut received).unwrap();
            socket.write_all(&received).unwrap();
            peer.ip()
        });
        let mut back = vec![0; BYTES];
        let socket = from.run(|| TcpStream::connect_timeout(&at, Duration::from_secs(20)));
        let mut socket = socket.unwrap_or_else(|error| panic!("{address}: {error}"));
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut sender = socket.try_clone().unwrap();
        let copy = &sent;
        scope.spawn(move || sender.write_all(copy).unwrap());
        socket.read_exact(&mut back).unwrap();
        assert!(back == sent);
        server.join().unwrap()
    })
}

/// Pods of both nodes reach each other by both families, under their own addresses; others see the node's.
fn pods_reach_each_other(nodes: &[Node; 2]) {
    for [from, to] in [[0, 1], [1, 0]] {
        let (from, to) = (&nodes[from], &nodes[to]);
        for of in 0..2 {
            assert_eq!(exchange(&from.pod, &to.pod, to.pod_address(of)), from.pod_address(of));
            assert_eq!(exchange(&from.pod, &to.space, to.host(of)), from.host(of), "masqueraded");
            exchange(&from.space, &to.pod, to.pod_address(of));
        }
    }
}

#[test]
fn pods_of_two_nodes_reach_each_other_by_vxlan() {
    let nodes = Node::pair();
    let wanted = joined(&nodes, Backend::Vxlan);
    let space = &nodes[0].space;
    let link = space.sh("ip -d link show flannel.1");
    for shown in [
        "mtu 1450",
        "link/ether 02:00:00:00:04:01",
        "vxlan id 1 local 192.168.7.1 dev eth0 srcport 0 0 dstport 8472 nolearning",
    ] {
        assert!(link.contains(shown), "{shown}: {link}");
    }
    let link = space.sh("ip -d link show flannel-v6.1");
    assert!(link.contains("vxlan id 1 local fd07::1 dev eth0") && link.contains("mtu 1430"), "{link}");
    let lines = |command: &str| -> Vec<String> {
        let mut lines: Vec<String> = space.sh(command).lines().map(|line| line.trim().to_owned()).collect();
        lines.sort();
        lines
    };
    assert_eq!(
        lines("ip -4 -o addr show flannel.1 | cut -d' ' -f2-7 | tr -s ' '"),
        ["flannel.1 inet 10.42.1.0/32"]
    );
    assert_eq!(lines("ip route show dev flannel.1"), ["10.42.2.0/24 via 10.42.2.0 onlink"]);
    assert_eq!(lines("ip neigh show dev flannel.1"), ["10.42.2.0 lladdr 02:00:00:00:04:02 PERMANENT"]);
    assert_eq!(lines("bridge fdb show dev flannel.1"), ["02:00:00:00:04:02 dst 192.168.7.2 self permanent"]);
    assert_eq!(lines("bridge fdb show dev flannel-v6.1"), ["02:00:00:00:06:02 dst fd07::2 self permanent"]);
    assert_eq!(space.sh("cat /proc/sys/net/ipv6/conf/flannel.1/accept_ra").trim(), "0");
    pods_reach_each_other(&nodes);

    // Nothing differs: nothing is changed.
    for of in 0..2 {
        assert_eq!(nodes[of].bring_up(&wanted[of]).changes, 0);
    }
    // What others have there stays, also a route to pods by way of a gateway.
    space.sh("ip route add 10.99.0.0/16 via 192.168.7.2; ip route add 10.42.9.0/24 dev eth0
         ip route add 10.42.8.0/24 via 192.168.7.9; ip route add fd00:42:0:8::/64 via fd07::9");
    // They are not known: an agent has started.
    let unknown = Wanted { peers: None, ..wanted[0].clone() };
    assert_eq!(nodes[0].bring_up(&unknown).changes, 0);
    let alone = Wanted { peers: Some(Vec::new()), ..wanted[0].clone() };
    assert_eq!(nodes[0].bring_up(&alone).changes, 6);
    assert_eq!(space.sh("ip route show dev flannel.1; ip neigh show dev flannel.1 nud permanent; bridge fdb show dev flannel.1"), "");
    let others = "ip route show 10.99.0.0/16; ip route show 10.42.9.0/24; ip route show 10.42.8.0/24
                  ip -6 route show fd00:42:0:8::/64";
    assert_eq!(space.sh(others).lines().count(), 4, "{}", space.sh("ip route; ip -6 route"));
    assert_eq!(nodes[0].bring_up(&wanted[0]).changes, 6);
    pods_reach_each_other(&nodes);
}

#[test]
fn a_link_is_repaired_and_keeps_its_hardware_address() {
    let nodes = Node::pair();
    let mut wanted = joined(&nodes, Backend::Vxlan);
    let space = &nodes[0].space;
    let index = || space.sh("ip -o link show flannel.1 | cut -d: -f1");
    let (before, own) = (index(), Mac([2, 0, 0, 0, 4, 1]));
    // An agent that restarts, and knows another one of its Node, keeps that of the link.
    wanted[0].remembered = [Some(Mac([6; 6])); 2];
    let up = nodes[0].bring_up(&wanted[0]);
    assert_eq!((up.changes, mac(&up), index()), (0, Some(own), before.clone()));
    // After a reboot it has that of the Node.
    space.sh("ip link del flannel.1");
    let up = nodes[0].bring_up(&wanted[0]);
    assert_eq!(mac(&up), Some(Mac([6; 6])));
    space.sh("ip link del flannel.1");
    wanted[0].remembered = [Some(own), None];
    nodes[0].bring_up(&wanted[0]);
    pods_reach_each_other(&nodes);
    for (broken, changes) in [
        ("ip link set flannel.1 down", 4),
        ("ip addr del 10.42.1.0/32 dev flannel.1", 3),
        ("ip addr add 10.42.77.1/24 dev flannel.1", 1),
        ("ip link set flannel.1 mtu 1200", 1),
        ("ip route del 10.42.2.0/24", 1),
        ("bridge fdb del 02:00:00:00:04:02 dev flannel.1 dst 192.168.7.2", 1),
        ("ip neigh replace 10.42.2.0 lladdr 02:00:00:00:00:99 dev flannel.1 nud permanent", 1),
        ("nft delete table ip flannel-ipv4", 1),
    ] {
        space.sh(broken);
        let found = nodes[0].bring_up(&wanted[0]).changes;
        assert!((1..=changes).contains(&found), "{broken}: {found}");
        assert_eq!(nodes[0].bring_up(&wanted[0]).changes, 0, "{broken}");
    }
    pods_reach_each_other(&nodes);
    // The node gets another address and another MTU.
    space.sh("ip addr del 192.168.7.1/24 dev eth0; ip addr add 192.168.7.11/24 dev eth0; ip link set eth0 mtu 1400");
    wanted[0].addresses[0] = "192.168.7.11".parse().unwrap();
    let up = nodes[0].bring_up(&wanted[0]);
    assert_eq!((up.hosts[0], mac(&up), up.mtu), (Some(wanted[0].addresses[0]), Some(own), 1350));
    assert!(space.sh("ip -d link show flannel.1").contains("mtu 1350"));
    // The interface is named.
    wanted[0].addresses.clear();
    wanted[0].interface = Some("eth0".into());
    assert_eq!(nodes[0].bring_up(&wanted[0]).changes, 0);
    wanted[0].interface = Some("eth7".into());
    let why = space.run(|| bring_up(&wanted[0])).unwrap_err();
    assert_eq!(why, "--flannel-iface: there is no interface eth7");
}

#[test]
fn host_gw_takes_the_place_of_vxlan_and_gives_it_back() {
    let nodes = Node::pair();
    joined(&nodes, Backend::Vxlan);
    let wanted = joined(&nodes, Backend::HostGw);
    let space = &nodes[0].space;
    assert!(!space.sh("ip link").contains("flannel"));
    assert_eq!(space.sh("ip route show 10.42.2.0/24").trim(), "10.42.2.0/24 via 192.168.7.2 dev eth0");
    let up = nodes[0].bring_up(&wanted[0]);
    assert_eq!((up.changes, up.mtu, up.data), (0, 1500, [None; 2]));
    pods_reach_each_other(&nodes);
    // A node that is not on the link is named, and does not keep the others from being reached.
    let mut far = wanted[0].clone();
    let away = Way {
        range: Network::parse("10.42.0.0/24").unwrap(),
        host: "198.51.100.3".parse().unwrap(),
        data: None,
    };
    far.peers.as_mut().unwrap().push(away);
    space.sh("ip route del 10.42.2.0/24");
    let why = space.run(|| bring_up(&far)).unwrap().refused.unwrap();
    assert!(why.contains("route to 10.42.0.0/24 via 198.51.100.3") && why.contains("on one link"), "{why}");
    pods_reach_each_other(&nodes);
    joined(&nodes, Backend::Vxlan);
    assert_eq!(
        space.sh("ip route show 10.42.2.0/24").trim(),
        "10.42.2.0/24 via 10.42.2.0 dev flannel.1 onlink"
    );
    // One of IPv6 does not take the place of another, which is on another link.
    let routes = space.sh("ip -6 route show fd00:42:0:2::/64");
    assert!(routes.lines().count() == 1 && routes.contains("dev flannel-v6.1"), "{routes}");
    pods_reach_each_other(&nodes);
}

/// Whether this kernel has it, as the kernel itself says.
fn has_wireguard(space: &Namespace) -> bool {
    space
        .sh("ip link add wg-try type wireguard 2>/dev/null && ip link del wg-try && echo yes || true")
        .contains("yes")
}

#[test]
fn pods_of_two_nodes_reach_each_other_by_wireguard() {
    let nodes = Node::pair();
    let space = &nodes[0].space;
    joined(&nodes, Backend::Vxlan);
    if !has_wireguard(space) {
        assert!(std::env::var_os("SMOLET_TEST_KERNEL").is_none(), "the emulated kernel has it");
        let why = space.run(|| bring_up(&nodes[0].wanted(Backend::Wireguard))).unwrap_err();
        assert!(
            why.starts_with("link flannel-wg: making it: ") && why.contains("modprobe wireguard"),
            "{why}"
        );
        return;
    }
    let mut wanted = joined(&nodes, Backend::Wireguard);
    let up = nodes[0].bring_up(&wanted[0]);
    assert_eq!((up.changes, up.mtu), (0, 1420));
    assert!(!space.sh("ip link").contains("flannel.1"), "vxlan's links are gone");
    assert!(space.sh("ip -d link show flannel-wg").contains("mtu 1420"));
    assert_eq!(
        space.sh("ip -4 -o addr show flannel-wg | cut -d' ' -f2-7 | tr -s ' '").trim(),
        "flannel-wg inet 10.42.1.0/32"
    );
    assert_eq!(space.sh("ip route show dev flannel-wg").trim(), "10.42.0.0/16 scope link");
    pods_reach_each_other(&nodes);
    // The key is root's alone.
    let file = &nodes[0].wanted(Backend::Wireguard).key_file;
    assert_eq!(std::fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    // An agent that has started, with the others unknown and then known.
    let started = Wanted { set: [].into(), peers: None, ..wanted[0].clone() };
    assert_eq!(nodes[0].bring_up(&started).changes, 0);
    let known = Wanted { set: [].into(), ..wanted[0].clone() };
    assert_eq!(nodes[0].bring_up(&known).changes, 0, "the peer is heard");
    // After a boot: what is for others goes nowhere else while they are not known.
    space.sh("ip link del flannel-wg; ip link del flannel-wg-v6");
    nodes[0].bring_up(&started);
    assert_eq!(space.sh("ip route show dev flannel-wg").trim(), "10.42.0.0/16 scope link");
    assert_eq!(nodes[0].bring_up(&wanted[0]).changes, 2);
    pods_reach_each_other(&nodes);
    for (broken, changes) in [
        // The link, and the route that it took along.
        ("ip link set flannel-wg down", 2),
        ("ip route del 10.42.0.0/16 dev flannel-wg", 1),
        ("ip addr add 10.42.77.1/24 dev flannel-wg", 1),
        ("ip link set flannel-wg mtu 1200", 1),
        // Made, up, address, route, key, peer.
        ("ip link del flannel-wg-v6", 6),
    ] {
        space.sh(broken);
        assert_eq!(nodes[0].bring_up(&wanted[0]).changes, changes, "{broken}");
        assert_eq!(nodes[0].bring_up(&wanted[0]).changes, 0, "{broken}");
    }
    pods_reach_each_other(&nodes);
    // The other node has another address.
    nodes[1].space.sh("ip addr del 192.168.7.2/24 dev eth0; ip addr add 192.168.7.12/24 dev eth0");
    wanted[0].peers.as_mut().unwrap()[0].host = "192.168.7.12".parse().unwrap();
    assert_eq!(nodes[0].bring_up(&wanted[0]).changes, 1);
    exchange(&nodes[0].pod, &nodes[1].pod, nodes[1].pod_address(0));
    // It has another key, as after a boot.
    std::fs::remove_file(&nodes[1].wanted(Backend::Wireguard).key_file).unwrap();
    let up = nodes[1].bring_up(&wanted[1]);
    assert_eq!(up.changes, 2, "a key for each family");
    let mut ways = nodes[1].ways(&up);
    ways[0].host = "192.168.7.12".parse().unwrap();
    wanted[0].peers = Some(ways);
    assert_eq!(nodes[0].bring_up(&wanted[0]).changes, 4, "the former key goes, for each family");
    exchange(&nodes[0].pod, &nodes[1].pod, nodes[1].pod_address(0));
    exchange(&nodes[0].pod, &nodes[1].pod, nodes[1].pod_address(1));
    // Nobody is there any more.
    wanted[0].peers = Some(Vec::new());
    assert_eq!(nodes[0].bring_up(&wanted[0]).changes, 2);
    // A port that is another one's is one family's failure.
    space.sh("ip link del flannel-wg-v6");
    let holder = space.run(|| std::net::UdpSocket::bind("[::]:51821").unwrap());
    let up = space.run(|| bring_up(&wanted[0])).unwrap();
    assert!(up.data[0].is_some() && up.data[1].is_none());
    let why = up.refused.unwrap();
    assert!(why.starts_with("link flannel-wg-v6: UDP port 51821 is another one's"), "{why}");
    drop(holder);
    assert!(nodes[0].bring_up(&wanted[0]).data[1].is_some());
    // One family alone.
    let alone = Wanted { networks: [wanted[0].networks[0], None], ..wanted[0].clone() };
    assert!(nodes[0].bring_up(&alone).data[1].is_none());
    assert!(!space.sh("ip link").contains("flannel-wg-v6"));
    // A file that is no key is not overwritten.
    std::fs::write(file, "torn").unwrap();
    let why = space.run(|| bring_up(&wanted[0])).unwrap_err();
    assert!(why.contains("wgkey: it is none; remove the file"), "{why}");
    assert_eq!(std::fs::read(file).unwrap(), b"torn");
    std::fs::remove_file(file).unwrap();
    nodes[1].space.sh("ip addr del 192.168.7.12/24 dev eth0; ip addr add 192.168.7.2/24 dev eth0");
    joined(&nodes, Backend::Vxlan);
    assert!(!space.sh("ip link").contains("flannel-wg"));
    pods_reach_each_other(&nodes);
}

#[test]
fn a_thousand_peers_of_wireguard_are_read_again() {
    let node = Node::new(1);
    if !has_wireguard(&node.space) {
        return assert!(std::env::var_os("SMOLET_TEST_KERNEL").is_none(), "the emulated kernel has it");
    }
    node.space.sh(
        "ip link add eth0 type veth peer name far; ip link set eth0 up; ip addr add 192.168.7.1/16 dev eth0",
    );
    let ways = |of: u32| Way {
        range: Network::new((0x0a2a_0000 + (of << 4)).to_be_bytes().into(), 28).unwrap(),
        host: (0xc0a8_0000 + of).to_be_bytes().into(),
        data: Some(LinkData::Wireguard(Key(std::array::from_fn(|at| of.to_be_bytes()[at % 4])), 51820)),
    };
    let mut wanted = node.wanted(Backend::Wireguard);
    wanted.addresses.truncate(1);
    wanted.networks[1] = None;
    wanted.peers = Some((32..1032).map(ways).collect());
    let up = node.bring_up(&wanted);
    assert_eq!(up.entries, 1001);
    (wanted.made, wanted.set) = (up.rules, up.set);
    assert_eq!(node.bring_up(&wanted).changes, 0);
    wanted.peers.as_mut().unwrap().truncate(999);
    assert_eq!(node.bring_up(&wanted).changes, 1);
}

#[test]
fn the_rules_are_those_of_flannel() {
    let nodes = Node::pair();
    let mut wanted = nodes[0].wanted(Backend::HostGw);
    let made = nodes[0].bring_up(&wanted);
    let rules = |of: &str| -> Vec<String> {
        let shown = nodes[0].space.sh(&format!("nft list table {of}"));
        let is_rule = |line: &&str| line.contains("addr") || line.contains("mark");
        shown.lines().map(str::trim).filter(is_rule).map(str::to_owned).collect()
    };
    assert_eq!(
        rules("ip flannel-ipv4"),
        [
            "ip saddr 10.42.0.0/16 accept",
            "ip daddr 10.42.0.0/16 accept",
            "meta mark & 0x00004000 != 0x00000000 return",
            "ip saddr 10.42.1.0/24 ip daddr 10.42.0.0/16 return",
            "ip saddr 10.42.0.0/16 ip daddr 10.42.1.0/24 return",
            "ip saddr != 10.42.0.0/16 ip daddr 10.42.1.0/24 return",
            "ip saddr 10.42.0.0/16 ip daddr != 224.0.0.0/4 masquerade fully-random",
            "ip saddr != 10.42.0.0/16 ip daddr 10.42.0.0/16 masquerade fully-random",
        ]
    );
    let v6 = rules("ip6 flannel-ipv6");
    assert_eq!(
        (v6.len(), &*v6[6]),
        (8, "ip6 saddr fd00:42::/56 ip6 daddr != ff00::/8 masquerade fully-random")
    );
    // As the servers have it by default.
    wanted.masquerades_v6 = false;
    wanted.made = made.rules;
    assert_eq!(nodes[0].bring_up(&wanted).changes, 1);
    assert_eq!(rules("ip6 flannel-ipv6").len(), 2);
    assert_eq!(rules("ip flannel-ipv4").len(), 8);
}

#[test]
fn a_range_that_does_not_fit_is_refused_by_its_name() {
    let node = Node::new(1);
    node.space.sh(
        "ip link add eth0 type veth peer name far; ip link set eth0 up; ip addr add 192.168.7.1/24 dev eth0",
    );
    let good = Wanted { networks: [Network::parse(NETWORKS[0]), None], ..node.wanted(Backend::Vxlan) };
    let outside = [Network::parse("10.43.1.0/24"), None];
    for (wanted, named) in [
        (
            Wanted { own: outside, ..good.clone() },
            "podCIDR 10.43.1.0/24 is outside the cluster's 10.42.0.0/16",
        ),
        (Wanted { own: [None, good.own[1]], ..good.clone() }, "--cluster-cidr"),
        (Wanted { addresses: Vec::new(), ..good.clone() }, "--node-ip"),
    ] {
        let why = node.space.run(|| bring_up(&wanted)).unwrap_err();
        assert!(why.contains(named), "{why}");
    }
    assert_eq!(node.space.sh("ip link").matches("flannel").count(), 0, "nothing was made");
    assert_eq!(node.bring_up(&good).hosts, [Some(node.host(0)), None]);
}

#[test]
fn a_thousand_nodes_are_brought_up_and_one_change_is_one() {
    let node = Node::new(1);
    node.space.sh(
        "ip link add eth0 type veth peer name far; ip link set eth0 up; ip addr add 192.168.7.1/16 dev eth0",
    );
    let ways = |of: u32| Way {
        range: Network::new((0x0a2a_0000 + (of << 4)).to_be_bytes().into(), 28).unwrap(),
        host: (0xc0a8_0000 + of).to_be_bytes().into(),
        data: Some(LinkData::Vxlan(Mac::derived(of.into()))),
    };
    let mut wanted = node.wanted(Backend::Vxlan);
    wanted.addresses.truncate(1);
    wanted.networks[1] = None;
    // The ranges of this node are those of /24 at 10.42.1.0: 16 to 31.
    wanted.peers = Some((32..1032).map(ways).collect());
    let began = Instant::now();
    let up = node.bring_up(&wanted);
    let all = began.elapsed();
    assert_eq!(up.entries, 3000);
    wanted.made = up.rules;
    let began = Instant::now();
    assert_eq!(node.bring_up(&wanted).changes, 0);
    let none = began.elapsed();
    wanted.peers.as_mut().unwrap()[500].host = "192.168.200.1".parse().unwrap();
    assert_eq!(node.bring_up(&wanted).changes, 1);
    eprintln!("1000 nodes: {} ms, compared in {} ms", all.as_millis(), none.as_millis());
    assert!(all < Duration::from_secs(10) && none < Duration::from_secs(2), "{all:?} {none:?}");
}
