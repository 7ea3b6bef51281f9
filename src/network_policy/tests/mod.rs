//! Policies of a cluster of two nodes, against a model of the kernel's table and against what upstream's end-to-end tests want.

mod kernel;
mod oracle;
mod upstream;

use std::net::IpAddr;

use super::encode;
use super::rules::{Kind, Op};
use super::{Controller, NewPod, NewPods, Resource, Transaction};
use crate::decode::{Node, yaml};
use crate::limits::{
    NETWORK_POLICY_LABELS_MAX, NETWORK_POLICY_NEW_PODS_MAX, NETWORK_POLICY_POD_BYTES, NETWORK_POLICY_PODS_MAX,
};
use crate::model::Transport;
use kernel::{Kernel, Packet};

pub(super) fn read(text: &str) -> Node {
    // In YAML 1.1 a plain y is a boolean.
    let quoted = text.replace(": y,", ": 'y',").replace(": y}", ": 'y'}").replace("[y]", "['y']");
    let mut found = Node::Null;
    yaml::documents(quoted.as_bytes(), |_, document| found = document.expect(text)).expect(text);
    found
}

pub(super) fn namespace(name: &str, labels: &str) -> Node {
    read(&format!(
        "{{metadata: {{name: {name}, labels: {{kubernetes.io/metadata.name: {name}, {labels}}}}}}}"
    ))
}

pub(super) fn policy(namespace: &str, name: &str, spec: &str) -> Node {
    read(&format!("{{metadata: {{namespace: {namespace}, name: {name}}}, spec: {spec}}}"))
}

/// A pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TestPod {
    pub(super) namespace: &'static str,
    pub(super) name: &'static str,
    pub(super) uid: u32,
    pub(super) node: &'static str,
    pub(super) ips: Vec<String>,
    pub(super) labels: Vec<(&'static str, &'static str)>,
    pub(super) phase: &'static str,
    pub(super) more: &'static str,
}

impl TestPod {
    pub(super) fn object(&self) -> Node {
        let labels: Vec<_> = self.labels.iter().map(|(key, value)| format!("{key}: '{value}', ")).collect();
        let labels = labels.concat();
        let ips: Vec<_> = self.ips.iter().map(|ip| format!("{{ip: '{ip}'}}, ")).collect();
        let ips = ips.concat();
        let Self { namespace, name, uid, node, phase, more, .. } = self;
        read(&format!(
            "{{metadata: {{namespace: {namespace}, name: {name}, uid: uid-{uid}, labels: {{{labels}}}}}, \
             spec: {{nodeName: {node}, {more}\
             containers: [{{ports: [{{name: serve-80, containerPort: 80}}, {{name: serve-81, containerPort: 81, protocol: UDP}}]}}]}}, \
             status: {{phase: {phase}, podIPs: [{ips}]}}}}"
        ))
    }

    /// The address that connections are tried with.
    pub(super) fn ip(&self) -> IpAddr {
        self.ips[0].parse().unwrap()
    }
}

/// Namespaces x, y and z with pods a, b and c in each, on two nodes by turns; even ones have IPv6 alone.
pub(super) fn pods(is_ipv6: bool) -> Vec<TestPod> {
    let mut pods = Vec::new();
    for namespace in ["x", "y", "z"] {
        for name in ["a", "b", "c"] {
            let number = u32::try_from(pods.len() + 1).unwrap();
            let ips =
                if is_ipv6 { vec![format!("fd00::{number}")] } else { vec![format!("10.42.0.{number}")] };
            let node = if number % 2 == 0 { "n1" } else { "n2" };
            let labels = vec![("pod", name)];
            pods.push(TestPod {
                namespace,
                name,
                uid: number,
                node,
                ips,
                labels,
                phase: "Running",
                more: "",
            });
        }
    }
    pods
}

/// A controller with the table that comes of its transactions.
pub(super) struct TestNode {
    pub(super) controller: Controller,
    pub(super) kernel: Kernel,
}

impl TestNode {
    fn new(name: &str) -> Self {
        Self { controller: Controller::new(name), kernel: Kernel::default() }
    }

    /// Applies what has changed; returns the number of messages.
    pub(super) fn flush(&mut self) -> Vec<Op> {
        let Transaction(ops) = self.controller.transaction();
        self.kernel.apply(&ops);
        assert!(self.controller.transaction().is_empty(), "nothing is left to do");
        assert!(encode::batch(&ops).len() >= ops.len());
        ops
    }
}

/// Both nodes.
pub(super) struct Cluster {
    pub(super) nodes: [TestNode; 2],
}

impl Cluster {
    pub(super) fn new() -> Self {
        Self { nodes: ["n1", "n2"].map(TestNode::new) }
    }

    pub(super) fn apply(&mut self, of: Resource, object: &Node) {
        self.nodes.iter_mut().for_each(|node| node.controller.apply(of, object));
    }

    pub(super) fn delete(&mut self, of: Resource, object: &Node) {
        self.nodes.iter_mut().for_each(|node| node.controller.delete(of, object));
    }

    pub(super) fn flush(&mut self) {
        for node in &mut self.nodes {
            node.flush();
            assert_eq!(node.controller.take_problems(), [""; 0]);
        }
    }

    /// Whether a new connection is let through by both nodes.
    pub(super) fn allows(&self, from: &TestPod, to: &TestPod, protocol: Transport, port: u16) -> bool {
        let packet = Packet { from: from.ip(), to: to.ip(), protocol, port };
        self.nodes.iter().all(|node| node.kernel.forwards(&packet))
    }
}

fn listed(cluster: &mut Cluster, pods: &[TestPod]) {
    for of in [Resource::Policies, Resource::Namespaces, Resource::Pods] {
        cluster.nodes.iter_mut().for_each(|node| node.controller.list_begins(of));
    }
    for name in ["x", "y", "z"] {
        cluster.apply(Resource::Namespaces, &namespace(name, ""));
    }
    for pod in pods {
        cluster.apply(Resource::Pods, &pod.object());
    }
    for of in [Resource::Policies, Resource::Namespaces, Resource::Pods] {
        cluster.nodes.iter_mut().for_each(|node| node.controller.settled(of));
    }
}

const DENY_ALL: &str = "{podSelector: {}, policyTypes: [Ingress, Egress]}";
const FROM_B: &str = "{podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {pod: b}}}]}]}";

/// One node with its pods and the policy in namespace x.
fn one(spec: &str) -> (TestNode, Vec<TestPod>) {
    let pods = pods(false);
    let mut cluster = Cluster::new();
    listed(&mut cluster, &pods);
    cluster.apply(Resource::Policies, &policy("x", "one", spec));
    let [mut node, _] = cluster.nodes;
    node.flush();
    (node, pods)
}

#[test]
fn a_change_of_one_pod_is_a_few_elements() {
    let (mut node, pods) = one(FROM_B);
    // A peer elsewhere comes, changes and goes.
    let mut other = pods[0].clone();
    (other.uid, other.ips, other.labels) = (100, vec!["10.42.9.1".to_owned()], vec![("pod", "b")]);
    node.controller.apply(Resource::Pods, &other.object());
    let ops = node.flush();
    assert!(matches!(&ops[..], [Op::AddElements((Kind::Peers(_), _), of)] if of.len() == 1), "{ops:?}");
    node.controller.apply(Resource::Pods, &other.object());
    assert_eq!(node.flush(), [], "an object that says nothing new");
    other.labels = vec![("pod", "c")];
    node.controller.apply(Resource::Pods, &other.object());
    let ops = node.flush();
    assert!(matches!(&ops[..], [Op::DeleteElements((Kind::Peers(_), _), of)] if of.len() == 1), "{ops:?}");
    node.controller.delete(Resource::Pods, &other.object());
    assert_eq!(node.flush(), []);
    // One of this node's own that is isolated as another one is.
    let mut own = pods[1].clone();
    (own.uid, own.ips) = (101, vec!["10.42.0.101".to_owned()]);
    node.controller.apply(Resource::Pods, &own.object());
    let ops = node.flush();
    assert_eq!(ops.len(), 3, "in its map, in its own set, among the peers: {ops:?}");
    node.controller.delete(Resource::Pods, &own.object());
    assert_eq!(node.flush().len(), 3);
    // A pod of which no policy speaks.
    let mut stranger = pods[3].clone();
    (stranger.uid, stranger.ips) = (102, vec!["10.42.0.102".to_owned()]);
    node.controller.apply(Resource::Pods, &stranger.object());
    assert_eq!(node.flush(), []);
}

#[test]
fn pods_that_have_no_address_of_their_own_are_none() {
    let (mut node, pods) = one(DENY_ALL);
    let isolated = |node: &TestNode| node.kernel.isolated();
    let before = isolated(&node);
    let mut pod = pods[1].clone();
    (pod.uid, pod.ips) = (100, vec!["10.42.0.100".to_owned()]);
    for (phase, more, is_one) in [
        ("Running", "", true),
        ("Running", "hostNetwork: true, ", false),
        ("Pending", "", true),
        ("Succeeded", "", false),
        ("Pending", "", true),
        ("Failed", "", false),
    ] {
        (pod.phase, pod.more) = (phase, more);
        node.controller.apply(Resource::Pods, &pod.object());
        node.flush();
        assert_eq!(isolated(&node), before + 2 * usize::from(is_one), "{phase} {more}");
    }
    pod.phase = "Pending";
    pod.ips.clear();
    node.controller.apply(Resource::Pods, &pod.object());
    node.flush();
    assert_eq!(isolated(&node), before);
    pod.ips = vec!["10.42.0.100".to_owned(), "fd00::100".to_owned(), "10.42.0.101".to_owned()];
    node.controller.apply(Resource::Pods, &pod.object());
    node.flush();
    assert_eq!(isolated(&node), before + 4, "one address of each family");
}

#[test]
fn an_address_that_changes_hands_stays_isolated() {
    let (mut node, pods) = one(FROM_B);
    let map = |node: &TestNode| node.kernel.chain_of(pods[1].ip());
    let before = map(&node).expect("isolated");
    // The new pod comes before the old one is gone; each is an element that is there already.
    let mut heir = pods[1].clone();
    heir.uid = 200;
    node.controller.apply(Resource::Pods, &heir.object());
    assert!(!node.flush().iter().any(|op| matches!(op, Op::DeleteElements(..))));
    node.controller.delete(Resource::Pods, &pods[1].object());
    assert_eq!(node.flush(), [], "the heir has it");
    assert_eq!(map(&node), Some(before));
    // Both in one transaction.
    node.controller.delete(Resource::Pods, &heir.object());
    node.controller.apply(Resource::Pods, &pods[1].object());
    node.flush();
    assert_eq!(map(&node), Some(before));
    // One that is being deleted has it no longer when another pod has.
    let mut ending = pods[1].object();
    if let Node::Map(fields) = &mut ending
        && let Node::Map(metadata) = &mut fields[0].1
    {
        metadata.push(("deletionTimestamp".into(), Node::Text("2026-01-01T00:00:00Z".into())));
    }
    node.controller.apply(Resource::Pods, &ending);
    node.flush();
    assert_eq!(map(&node), Some(before), "nobody else has it");
    let mut free = heir.clone();
    free.namespace = "y";
    node.controller.apply(Resource::Pods, &free.object());
    node.flush();
    assert_eq!(map(&node), None, "no policy isolates the new pod");
}

fn new_pod(name: &str, ip: &str) -> NewPod {
    NewPod {
        namespace: "x".into(),
        name: name.into(),
        labels: vec![("pod".into(), "b".into())],
        ports: vec![("serve-81".into(), "UDP".into(), 81)],
        ips: vec![ip.into()],
    }
}

/// After an outage the server lists pods without the addresses that they got meanwhile.
#[test]
fn pods_that_started_while_nobody_followed_pods_are_isolated_from_the_first_transaction_on() {
    let mut new = NewPods::default();
    for (name, ip) in
        [("new", "10.42.0.49"), ("new", "10.42.0.50"), ("gone", "10.42.0.51"), ("heir", "10.42.0.51")]
    {
        new.add(new_pod(name, ip));
    }
    let mut cluster = Cluster::new();
    let known = |cluster: &mut Cluster, new: &NewPods| {
        let controller = &mut cluster.nodes[0].controller;
        *controller = Controller::new("n1");
        new.announce(controller);
        controller.held().0
    };
    assert_eq!(known(&mut cluster, &new), 2, "the latest of each name and address");
    let shown = pods(false);
    listed(&mut cluster, &shown);
    cluster.apply(Resource::Policies, &policy("x", "one", DENY_ALL));
    cluster.flush();
    let chain_of = |cluster: &Cluster, ip: &str| cluster.nodes[0].kernel.chain_of(ip.parse().unwrap());
    let [first, second] = ["10.42.0.50", "10.42.0.51"].map(|ip| chain_of(&cluster, ip));
    assert!(first.is_some() && second.is_some(), "{first:?} {second:?}");
    new.forget_shown(&cluster.nodes[0].controller);
    assert_eq!(known(&mut cluster, &new), 2, "the server has shown none of them");

    // What it had of another pod before, whose address one of them has now: both pods' policies hold.
    let mut stale = shown[0].clone();
    (stale.uid, stale.node, stale.ips) = (50, "n1", vec!["10.42.0.50".to_owned()]);
    listed(&mut cluster, &[stale.clone()]);
    new.forget_shown(&cluster.nodes[0].controller);
    assert_eq!(known(&mut cluster, &new), 2);
    // Then it shows that one itself.
    stale.name = "new";
    listed(&mut cluster, &[stale]);
    new.forget_shown(&cluster.nodes[0].controller);
    assert_eq!(known(&mut cluster, &new), 1);
    new.ended("x", "heir");
    assert_eq!((known(&mut cluster, &new), new.held()), (0, (0, 0)));

    for number in 0..NETWORK_POLICY_NEW_PODS_MAX {
        new.add(new_pod(&format!("pod-{number}"), &format!("10.43.{}.{}", number / 256, number % 256)));
    }
    assert_eq!(known(&mut cluster, &new), NETWORK_POLICY_NEW_PODS_MAX);
}

#[test]
fn a_new_pod_is_isolated_before_the_server_shows_its_address() {
    let (mut node, pods) =
        one("{podSelector: {matchLabels: {pod: b}}, ingress: [{ports: [{port: serve-81, protocol: UDP}]}]}");
    let new = |ip| new_pod("new", ip);
    let packet = |port| Packet {
        from: pods[0].ip(),
        to: "10.42.0.50".parse().unwrap(),
        protocol: Transport::Udp,
        port,
    };
    node.controller.announce(&new("10.42.0.49"));
    node.controller.announce(&new("10.42.0.50"));
    node.flush();
    assert!(node.kernel.forwards(&packet(81)) && !node.kernel.forwards(&packet(80)));
    assert_eq!(
        node.kernel.chain_of("10.42.0.49".parse().unwrap()),
        None,
        "its next sandbox has another address"
    );
    // A list that does not have it yet.
    node.controller.list_begins(Resource::Pods);
    for pod in &pods {
        node.controller.apply(Resource::Pods, &pod.object());
    }
    node.controller.settled(Resource::Pods);
    assert_eq!(node.flush(), []);
    let mut shown = pods[1].clone();
    (shown.uid, shown.ips) = (50, vec!["10.42.0.50".to_owned()]);
    node.controller.apply(Resource::Pods, &shown.object());
    assert_eq!(
        node.controller.held().0,
        pods.len() + 2,
        "the server may not know yet who has that address now"
    );
    shown.name = "new";
    node.controller.apply(Resource::Pods, &shown.object());
    assert!(!node.flush().iter().any(|op| matches!(op, Op::DeleteElements(..))));
    assert!(!node.kernel.forwards(&packet(80)));
    node.controller.delete(Resource::Pods, &shown.object());
    node.flush();
    assert!(node.kernel.forwards(&packet(80)), "both are gone");
    assert_eq!(node.controller.held().0, pods.len());
}

#[test]
fn the_last_policy_leaves_nothing_behind() {
    let (mut node, _) =
        one("{podSelector: {}, ingress: [{ports: [{port: serve-80}], from: [{podSelector: {}}, \
        {ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}]}], egress: [{to: [{namespaceSelector: {}}]}]}");
    node.controller.apply(Resource::Policies, &policy("x", "two", FROM_B));
    node.flush();
    let full = node.kernel.size();
    assert!(full > Kernel::empty().size() + 10, "{full}");
    for name in ["one", "two"] {
        node.controller.delete(Resource::Policies, &policy("x", name, "{}"));
        node.flush();
    }
    assert_eq!(node.kernel.size(), Kernel::empty().size());
    assert!(!node.controller.needs_pods());
    node.controller.forget_pods();
    assert_eq!(node.controller.held().0, 0);
    assert!(node.controller.held().1 < 20_000, "{:?}", node.controller.held());
}

#[test]
fn a_list_replaces_what_was_known_before() {
    let mut cluster = Cluster::new();
    let pods = pods(false);
    listed(&mut cluster, &pods);
    cluster.apply(Resource::Policies, &policy("x", "deny", DENY_ALL));
    cluster.flush();
    let isolated = |cluster: &Cluster| cluster.nodes[0].kernel.isolated();
    assert_eq!(isolated(&cluster), 2, "x/b");
    listed(&mut cluster, &pods[..1]);
    cluster.flush();
    assert_eq!((isolated(&cluster), cluster.nodes[0].controller.held().0), (0, 1), "neither policy nor pod");
}

#[test]
fn a_lost_table_is_made_whole_again() {
    let (mut node, _) = one(FROM_B);
    let before = node.kernel.size();
    node.controller.clear();
    let ops = node.flush();
    assert_eq!(ops[0], Op::ReplaceTable);
    assert_eq!(node.kernel.size(), before);
}

#[test]
fn what_does_not_fit_is_named_once_and_denied() {
    let (mut node, pods) = one(FROM_B);
    let mut pod = pods[0].clone();
    pod.node = "n9";
    for number in 0..u32::try_from(NETWORK_POLICY_PODS_MAX).unwrap() + 10 {
        let [.., high, low] = number.to_be_bytes();
        (pod.uid, pod.ips) = (1000 + number, vec![format!("10.43.{high}.{low}")]);
        node.controller.apply(Resource::Pods, &pod.object());
    }
    assert_eq!(node.controller.held().0, NETWORK_POLICY_PODS_MAX);
    let problems = node.controller.take_problems();
    assert!(problems.len() == 1 && problems[0].starts_with("pod x/a: there is no room"), "{problems:?}");
    assert!(!node.controller.has_room(Resource::Pods));
    let mut own = pods[1].clone();
    (own.uid, own.ips) = (500, vec!["10.42.0.100".to_owned()]);
    node.controller.apply(Resource::Pods, &own.object());
    assert_eq!(node.controller.held().0, NETWORK_POLICY_PODS_MAX + 1, "one of this node's always fits");
    node.flush();
    for pod in &pods {
        node.controller.delete(Resource::Pods, &pod.object());
    }
    assert!(node.controller.has_room(Resource::Pods), "the pods are to be listed again");
    let (_, bytes) = node.controller.held();
    assert!(bytes < NETWORK_POLICY_PODS_MAX * NETWORK_POLICY_POD_BYTES, "{bytes} bytes");

    node.controller
        .apply(Resource::Policies, &policy("y", "wrong", "{ingress: [{ports: [{protocol: ICMP}]}]}"));
    let wanted = "NetworkPolicy y/wrong: spec.ingress[0].ports[0].protocol is none of TCP, UDP, SCTP; it allows nothing to the pods \
                  that it selects";
    assert_eq!(node.controller.take_problems(), [wanted]);
    node.controller
        .apply(Resource::Policies, &policy("y", "wrong", "{ingress: [{ports: [{protocol: ICMP}]}]}"));
    assert_eq!(node.controller.take_problems(), [""; 0], "named once");
}

#[test]
fn a_pod_with_too_many_labels_is_isolated_and_no_peer() {
    let (mut node, pods) =
        one("{podSelector: {matchLabels: {pod: none}}, ingress: [{from: [{podSelector: {}}]}]}");
    assert_eq!(node.kernel.isolated(), 0);
    let keys: Vec<&'static str> = (0..=NETWORK_POLICY_LABELS_MAX)
        .map(|number| &*Box::leak(format!("k{number}").into_boxed_str()))
        .collect();
    let mut pod = pods[1].clone();
    pod.labels = keys.iter().map(|key| (*key, "v")).collect();
    node.controller.apply(Resource::Pods, &pod.object());
    node.flush();
    assert!(node.kernel.chain_of(pod.ip()).is_some());
    assert!(!node.kernel.is_peer(pod.ip()) && node.kernel.is_peer(pods[2].ip()));
}

#[test]
fn policies_beyond_the_limit_deny_their_namespace() {
    let (mut node, pods) = one(FROM_B);
    let allow = "{podSelector: {}, ingress: [{}]}";
    for number in 0..crate::limits::NETWORK_POLICIES_MAX {
        node.controller.apply(
            Resource::Policies,
            &policy("z", &format!("p{number}"), "{podSelector: {matchLabels: {a: b}}}"),
        );
    }
    let problems = node.controller.take_problems();
    assert!(
        problems.len() == 1 && problems[0].contains("is beyond the 1024 that a node keeps"),
        "{problems:?}"
    );
    node.flush();
    let denied = Packet { from: pods[0].ip(), to: pods[7].ip(), protocol: Transport::Tcp, port: 80 };
    assert!(!node.kernel.forwards(&denied), "all of namespace z");
    node.controller.apply(Resource::Policies, &policy("y", "late", allow));
    node.flush();
    assert!(!node.kernel.forwards(&Packet { to: pods[3].ip(), ..denied }));
    assert!(!node.controller.has_room(Resource::Policies));
}
