//! Network policies in the kernel: pods in network namespaces, on a bridge and behind a router, and real connections between them.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd as _;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, ipproto};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use smolet::decode::{Node, yaml};
use smolet::netlink::{Netlink, Protocol};
use smolet::network_policy::{Controller, Resource, TABLE};
use smolet::nftables;

/// How long a connection is tried: one that is rejected fails at once.
const PATIENCE: Duration = Duration::from_secs(8);

fn run(command: &str) -> String {
    let mut words = command.split(' ');
    let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn read(text: &str) -> Node {
    let mut found = Node::Null;
    yaml::documents(text.as_bytes(), |_, document| found = document.expect(text)).expect(text);
    found
}

/// A pod of the test: name, labels, the last byte of its addresses, and whether it is on another node.
const PODS: [(&str, &str, u8, bool); 4] =
    [("a", "x", 11, false), ("b", "x", 12, false), ("c", "z", 13, false), ("far", "x", 14, true)];

/// Ports of each pod: TCP 80 and 81, UDP 81.
struct Net {
    prefix: String,
}

impl Net {
    /// A node with a bridge and three pods on it, and a pod behind a link of its own, as on another node.
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let net =
            Self { prefix: format!("smnp{}x{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)) };
        let node = net.name("node");
        run(&format!("ip netns add {node}"));
        let in_node = |command: &str| run(&format!("ip netns exec {node} {command}"));
        for setting in [
            "net.ipv4.ip_forward=1",
            "net.ipv6.conf.all.forwarding=1",
            "net.bridge.bridge-nf-call-iptables=1",
            "net.bridge.bridge-nf-call-ip6tables=1",
            "net.ipv4.icmp_ratelimit=0",
            "net.ipv6.icmp.ratelimit=0",
            // Links have an address that can be used at once.
            "net.ipv6.conf.default.accept_dad=0",
        ] {
            in_node(&format!("sysctl -qw {setting}"));
        }
        for command in [
            "ip link set lo up",
            "ip link add cni0 type bridge",
            "ip link set cni0 up",
            "ip address add 10.42.0.1/24 dev cni0",
            "ip address add fd00:42::1/64 dev cni0 nodad",
        ] {
            in_node(command);
        }
        for (name, _, last, is_far) in PODS {
            let pod = net.name(name);
            run(&format!("ip netns add {pod}"));
            run(&format!("ip netns exec {pod} sysctl -qw net.ipv6.conf.default.accept_dad=0"));
            in_node(&format!("ip link add v{name} type veth peer name eth0 netns {pod}"));
            let (v4, v6) = if is_far { ("10.42.1", "fd00:43:") } else { ("10.42.0", "fd00:42:") };
            if is_far {
                in_node(&format!("ip address add {v4}.1/24 dev v{name}"));
                in_node(&format!("ip address add {v6}:1/64 dev v{name} nodad"));
            } else {
                in_node(&format!("ip link set v{name} master cni0"));
                in_node(&format!("bridge link set dev v{name} hairpin on"));
            }
            in_node(&format!("ip link set v{name} up"));
            for command in [
                "link set lo up".to_owned(),
                "link set eth0 up".to_owned(),
                format!("address add {v4}.{last}/24 dev eth0"),
                format!("address add {v6}:{last}/64 dev eth0 nodad"),
                format!("route add default via {v4}.1"),
                format!("-6 route add default via {v6}:1"),
            ] {
                run(&format!("ip -n {pod} {command}"));
            }
            net.serve(name);
        }
        net
    }

    fn name(&self, of: &str) -> String {
        format!("{}{of}", self.prefix)
    }

    /// Runs the work in that network namespace.
    fn inside<T: Send + 'static>(&self, of: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
        let path = format!("/run/netns/{}", self.name(of));
        let enter = move || {
            let file = std::fs::File::open(path).unwrap();
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            work()
        };
        std::thread::spawn(enter).join().unwrap()
    }

    /// A pod's ports, which send back what they are sent.
    fn serve(&self, pod: &str) {
        self.inside(pod, || {
            for port in [80, 81] {
                let listener = TcpListener::bind(SocketAddr::from(([0_u16; 8], port))).unwrap();
                std::thread::spawn(move || {
                    for stream in listener.incoming() {
                        let mut stream = stream.unwrap();
                        std::thread::spawn(move || {
                            let mut bytes = [0; 64];
                            while let Ok(read @ 1..) = stream.read(&mut bytes) {
                                stream.write_all(&bytes[..read]).unwrap();
                            }
                        });
                    }
                });
            }
            let socket = UdpSocket::bind(SocketAddr::from(([0_u16; 8], 81))).unwrap();
            std::thread::spawn(move || {
                let mut bytes = [0; 64];
                loop {
                    let (read, from) = socket.recv_from(&mut bytes).unwrap();
                    let _ = socket.send_to(&bytes[..read], from);
                }
            });
        });
    }

    /// Whether bytes come back from there.
    fn reaches(&self, from: &str, to: IpAddr, protocol: &str, port: u16) -> bool {
        let to = SocketAddr::new(to, port);
        if protocol == "TCP" {
            return self.inside(from, move || connect(to).is_some());
        }
        self.inside(from, move || {
            let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let socket = UdpSocket::bind(any).unwrap();
            socket.set_read_timeout(Some(PATIENCE / 4)).unwrap();
            socket.connect(to).unwrap();
            let mut bytes = [0; 4];
            socket.send(b"ping").is_ok() && socket.recv(&mut bytes).is_ok()
        })
    }

    /// The node's table as nft(8) shows it.
    fn table(&self) -> String {
        let output = Command::new("ip")
            .args(["netns", "exec", &self.name("node"), "nft", "list", "table", "inet", TABLE])
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    fn nft(&self, script: &str) {
        let mut child = Command::new("ip")
            .args(["netns", "exec", &self.name("node"), "nft", "-f", "-"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success(), "{script}");
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for name in PODS.iter().map(|pod| pod.0).chain(["node"]) {
            let _ = Command::new("ip").args(["netns", "delete", &self.name(name)]).status();
        }
    }
}

fn connect(to: SocketAddr) -> Option<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&to, PATIENCE).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    is_open(&mut stream).then_some(stream)
}

fn is_open(stream: &mut TcpStream) -> bool {
    let mut bytes = [0; 4];
    stream.write_all(b"ping").is_ok() && stream.read_exact(&mut bytes).is_ok()
}

/// Whether an echo request is answered.
fn pings(to: IpAddr) -> bool {
    let (family, protocol, reply) = match to {
        IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP, 0),
        IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6, 129),
    };
    let socket = rustix::net::socket(family, SocketType::RAW, Some(protocol)).unwrap();
    set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE)).unwrap();
    // With IPv6 the kernel sets the checksum.
    let request = if to.is_ipv4() { [8, 0, 0xf7, 0xfd, 0, 1, 0, 1] } else { [128, 0, 0, 0, 0, 1, 0, 1] };
    rustix::net::sendto(&socket, &request, SendFlags::empty(), &SocketAddr::new(to, 0)).unwrap();
    let mut bytes = [0; 128];
    while let Ok((read, _)) = rustix::net::recv(&socket, &mut bytes[..], RecvFlags::empty()) {
        // With IPv4 behind its header of 20 bytes.
        let message = if to.is_ipv4() { &bytes[20..read] } else { &bytes[..read] };
        if message[0] == reply {
            return true;
        }
    }
    false
}

fn address(pod: &str, is_ipv6: bool) -> IpAddr {
    let (_, _, last, is_far) = PODS.into_iter().find(|(name, ..)| *name == pod).unwrap();
    let net = if is_far { 1 } else { 0 };
    let text = if is_ipv6 { format!("fd00:{}::{last}", 42 + net) } else { format!("10.42.{net}.{last}") };
    text.parse().unwrap()
}

/// The agent's part: what it knows, and its transactions in the node's namespace.
struct Agent<'a> {
    net: &'a Net,
    controller: Controller,
}

impl<'a> Agent<'a> {
    /// Knows all pods, and no policy.
    fn new(net: &'a Net) -> Self {
        let mut controller = Controller::new("node");
        for namespace in ["x", "z"] {
            let object = format!("{{metadata: {{name: {namespace}, labels: {{name: {namespace}}}}}}}");
            controller.apply(Resource::Namespaces, &read(&object));
        }
        for (name, namespace, _, is_far) in PODS {
            controller.apply(Resource::Pods, &pod(name, namespace, is_far, ""));
        }
        Self { net, controller }
    }

    fn policy(&mut self, name: &str, spec: &str) -> (usize, Duration) {
        self.controller.apply(
            Resource::Policies,
            &read(&format!("{{metadata: {{namespace: x, name: {name}}}, spec: {spec}}}")),
        );
        self.commit()
    }

    fn delete(&mut self, name: &str) -> (usize, Duration) {
        self.controller
            .delete(Resource::Policies, &read(&format!("{{metadata: {{namespace: x, name: {name}}}}}")));
        self.commit()
    }

    /// Number of changes, and how long the kernel took.
    fn commit(&mut self) -> (usize, Duration) {
        assert_eq!(self.controller.take_problems(), [""; 0]);
        let transaction = self.controller.transaction();
        let changes = transaction.len();
        let took = self.net.inside("node", move || {
            let mut netlink = Netlink::open(Protocol::Netfilter).unwrap();
            let began = Instant::now();
            nftables::run(&mut netlink, transaction.batch()).unwrap();
            began.elapsed()
        });
        (changes, took)
    }
}

fn pod(name: &str, namespace: &str, is_far: bool, more: &str) -> Node {
    let node = if is_far { "other" } else { "node" };
    let (v4, v6) = (address(name, false), address(name, true));
    read(&format!(
        "{{metadata: {{namespace: {namespace}, name: {name}, uid: uid-{name}, labels: {{pod: {name}, {more}}}}}, \
         spec: {{nodeName: {node}, containers: [{{ports: [{{name: web, containerPort: 80}}]}}]}}, \
         status: {{phase: Running, podIPs: [{{ip: '{v4}'}}, {{ip: '{v6}'}}]}}}}"
    ))
}

const DENY: &str = "{podSelector: {}, policyTypes: [Ingress, Egress]}";

#[test]
fn connections_pass_as_policies_allow() {
    let net = Net::new();
    let mut agent = Agent::new(&net);
    // Policies of namespace x, and what of all connections passes; all others are denied. Pods of this node are enforced on here.
    let tries = [
        ("a", "b"),
        ("b", "a"),
        ("c", "a"),
        ("a", "c"),
        ("far", "a"),
        ("a", "far"),
        ("b", "far"),
        ("far", "c"),
        ("c", "far"),
    ];
    let ports = [("TCP", 80), ("TCP", 81), ("UDP", 81)];
    for (spec, allowed) in [
        ("{podSelector: {matchLabels: {pod: none}}, ingress: []}", "* > * *"),
        ("{podSelector: {}, ingress: []}", "* > c *, * > far *"),
        (DENY, "far > c *, c > far *"),
        (
            "{podSelector: {matchLabels: {pod: a}}, ingress: [{from: [{podSelector: {matchLabels: {pod: b}}}]}]}",
            "b > a *, * > b *, * > c *, * > far *",
        ),
        (
            "{podSelector: {matchLabels: {pod: a}}, ingress: [{from: [{namespaceSelector: {matchLabels: {name: z}}}], ports: [{port: web}]}]}",
            "c > a TCP80, * > b *, * > c *, * > far *",
        ),
        (
            "{podSelector: {matchLabels: {pod: a}}, ingress: [{from: [{ipBlock: {cidr: 10.42.0.0/16, except: [10.42.0.12/31]}}, \
             {ipBlock: {cidr: 'fd00::/16', except: ['fd00:42::12/127']}}], ports: [{port: 80, endPort: 90}]}]}",
            "far > a TCP80, far > a TCP81, * > b *, * > c *, * > far *",
        ),
        (
            "{podSelector: {matchLabels: {pod: a}}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {pod: far}}}], \
             ports: [{port: 81, protocol: UDP}]}, {to: [{namespaceSelector: {}}], ports: [{port: 81}]}]}",
            "a > far UDP81, a > * TCP81, b > * *, c > * *, far > * *",
        ),
        (
            "{podSelector: {}, policyTypes: [Ingress, Egress], ingress: [{ports: [{port: web}]}], egress: [{ports: [{port: web}]}]}",
            "* > * TCP80, far > c *, c > far *",
        ),
    ] {
        agent.policy("p", spec);
        for (from, to) in tries {
            for (protocol, port) in ports {
                for is_ipv6 in [false, true] {
                    let of = format!("{protocol}{port}");
                    let is = |pattern: &str, text: &str| pattern == "*" || pattern == text;
                    let wanted = allowed.split(", ").any(|rule| {
                        let words: Vec<&str> = rule.split(' ').collect();
                        is(words[0], from) && is(words[2], to) && is(words[3], &of)
                    });
                    let began = Instant::now();
                    let found = net.reaches(from, address(to, is_ipv6), protocol, port);
                    assert_eq!(
                        found,
                        wanted,
                        "{spec}: {from} to {to} {of}, IPv6: {is_ipv6}\n{}",
                        net.table()
                    );
                    // Rejected, and not dropped.
                    let took = began.elapsed();
                    assert!(
                        wanted || took < PATIENCE * 3 / 4,
                        "{from} to {to} {of} IPv6 {is_ipv6}: {took:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn the_node_reaches_its_pods_and_connections_outlive_policies() {
    let net = Net::new();
    net.serve("node");
    let own = |is_ipv6| if is_ipv6 { "fd00:42::1" } else { "10.42.0.1" }.parse().unwrap();
    let mut agent = Agent::new(&net);
    assert!(net.reaches("a", own(false), "UDP", 81) && net.reaches("a", own(true), "UDP", 81));
    // Connections are tracked from the first policy on, unless Services need that before.
    agent.policy("nobody", "{podSelector: {matchLabels: {pod: none}}, ingress: []}");
    let to_c = SocketAddr::new(address("c", false), 80);
    let mut open = net.inside("a", move || connect(to_c).expect("nobody denies it"));
    agent.policy("deny", DENY);
    assert!(!net.reaches("a", address("c", false), "TCP", 80));
    assert!(is_open(&mut open), "a connection that was allowed goes on");
    for is_ipv6 in [false, true] {
        assert!(net.reaches("node", address("a", is_ipv6), "TCP", 80), "a probe of the node");
        assert!(!net.reaches("a", own(is_ipv6), "UDP", 81), "the node is no exception for egress");
    }
    for is_ipv6 in [false, true] {
        let to = address("b", is_ipv6);
        assert!(net.inside("c", move || pings(to)), "no policy denies echo requests");
    }
    // Services: a pod's own address comes back to it, another pod's is judged behind the translation.
    net.nft(
        "table ip services {
            chain p {
                type nat hook prerouting priority -100;
                ip daddr 10.43.0.1 tcp dport 80 dnat to 10.42.0.11:80
                ip daddr 10.43.0.2 tcp dport 80 dnat to 10.42.0.12:80
                ip daddr 10.43.0.3 tcp dport 8080 dnat to 10.42.1.14:80
            }
            chain m {
                type nat hook postrouting priority 100;
                ip saddr 10.42.0.11 ip daddr 10.42.0.11 masquerade
            }
        }
        ",
    );
    assert!(
        net.reaches("a", "10.43.0.1".parse().unwrap(), "TCP", 80),
        "a pod reaches itself\n{}",
        net.table()
    );
    assert!(!net.reaches("a", "10.43.0.2".parse().unwrap(), "TCP", 80));
    agent.policy("deny", "{podSelector: {}, policyTypes: [Egress], egress: [{to: [{podSelector: {matchLabels: {pod: far}}}], ports: [{port: 80}]}]}");
    assert!(
        net.reaches("a", "10.43.0.3".parse().unwrap(), "TCP", 8080),
        "the pod behind the Service is allowed"
    );
    assert!(!net.reaches("a", "10.43.0.2".parse().unwrap(), "TCP", 80));
}

#[test]
fn a_restart_leaves_no_gap_and_a_change_is_small() {
    let net = Arc::new(Net::new());
    let mut agent = Agent::new(&net);
    agent
        .policy("deny", "{podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {role: peer}}}]}]}");
    // Somebody who may not, and never stops trying.
    let (stop, passed) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new((0_u32, 0_u32))));
    let trying = std::thread::spawn({
        let (net, stop, passed) = (net.clone(), stop.clone(), passed.clone());
        move || {
            let to = SocketAddr::new(address("a", false), 80);
            net.inside("b", move || {
                while !stop.load(Ordering::Relaxed) {
                    let has_passed = TcpStream::connect_timeout(&to, PATIENCE).is_ok();
                    let mut passed = passed.lock().unwrap();
                    passed.0 += 1;
                    passed.1 += u32::from(has_passed);
                }
            });
        }
    });
    // The agent ends, and knows everything anew; the table it leaves is replaced.
    let before = net.table();
    assert!(before.contains("10.42.0.11"), "{before}");
    for _ in 0..10 {
        agent = Agent::new(&net);
        assert_eq!(net.table(), before, "rules stay");
        agent.policy(
            "deny",
            "{podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {role: peer}}}]}]}",
        );
    }
    // A change of one pod: an element of each family, in two messages.
    agent.controller.apply(Resource::Pods, &pod("far", "x", true, "role: peer"));
    let (changes, took) = agent.commit();
    println!("a peer comes: {changes} changes, {} µs", took.as_micros());
    assert_eq!(changes, 2);
    assert!(net.reaches("far", address("a", false), "TCP", 80));
    agent.controller.apply(Resource::Pods, &pod("far", "x", true, ""));
    agent.controller.apply(Resource::Pods, &pod("a", "x", false, "role: peer"));
    let (changes, took) = agent.commit();
    println!("one comes and one goes: {changes} changes, {} µs", took.as_micros());
    assert_eq!(changes, 4);
    assert!(!net.reaches("far", address("a", false), "TCP", 80));
    stop.store(true, Ordering::Relaxed);
    trying.join().unwrap();
    let (tries, passed) = *passed.lock().unwrap();
    println!("{tries} forbidden connections, {passed} passed");
    assert!(tries > 20 && passed == 0, "{passed} of {tries} passed");
    agent.delete("deny");
    assert!(!net.table().contains("peers-"));
    assert!(net.reaches("b", address("a", false), "TCP", 80));
}

#[test]
fn thousands_of_pods_are_one_transaction() {
    let net = Net::new();
    let mut agent = Agent::new(&net);
    for number in 0..5000_u32 {
        let [.., high, low] = number.to_be_bytes();
        let object = format!(
            "{{metadata: {{namespace: x, name: p{number}, uid: uid-{number}, labels: {{pod: b, app: web}}}}, \
             spec: {{nodeName: other, containers: []}}, status: {{phase: Running, podIPs: [{{ip: 10.44.{high}.{low}}}, {{ip: 'fd00:44::{number}'}}]}}}}"
        );
        agent.controller.apply(Resource::Pods, &read(&object));
    }
    let (pods, bytes) = agent.controller.held();
    let spec = "{podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {pod: b}}}]}]}";
    let began = Instant::now();
    let (changes, took) = agent.policy("p", spec);
    println!(
        "{pods} pods, {bytes} bytes: {changes} changes, {} ms in the kernel, {} ms in all",
        took.as_millis(),
        began.elapsed().as_millis()
    );
    assert!(bytes < pods * 200 + 16 * 1024, "{bytes} bytes");
    assert!(net.reaches("b", address("a", false), "TCP", 80));
    assert!(!net.reaches("c", address("a", false), "TCP", 80));
    assert!(net.table().matches("10.44.").count() >= 5000);
}
