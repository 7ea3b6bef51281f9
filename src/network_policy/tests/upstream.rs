//! The cases of upstream's end-to-end tests (`test/e2e/network/netpol/network_policy.go`): policies, a port, and what of all
//! connections is not allowed. Pods x/a to z/c are on two nodes.

use super::{Cluster, TestPod, listed, namespace, pods, policy};
use crate::model::Transport;
use crate::network_policy::Resource;

/// Name, policies as `NAMESPACE SPEC`, `PROTOCOL PORT`, and exceptions from "all is allowed" in their order: `FROM > TO` is denied,
/// `FROM + TO` is allowed.
type Case = (&'static str, &'static [&'static str], &'static str, &'static [&'static str]);

const CASES: &[Case] = &[
    ("default-deny-ingress", &["x {podSelector: {}, ingress: []}"], "TCP 80", &["*/* > x/*"]),
    (
        "default-deny-all",
        &["x {podSelector: {}, policyTypes: [Ingress, Egress]}"],
        "TCP 80",
        &["*/* > x/*", "x/* > */*"],
    ),
    (
        "traffic from pods within server namespace based on PodSelector",
        &[
            "x {podSelector: {matchLabels: {pod: a}}, ingress: [{from: [{podSelector: {matchLabels: {pod: b}}}]}]}",
        ],
        "TCP 80",
        &["*/* > x/a", "x/b + x/a"],
    ),
    (
        "ingress traffic for a target",
        &[
            "x {podSelector: {}, policyTypes: [Ingress]}",
            "x {podSelector: {matchLabels: {pod: a}}, ingress: [{from: [{podSelector: {}, namespaceSelector: {}}]}]}",
        ],
        "TCP 80",
        &["*/* > x/*", "*/* + x/a"],
    ),
    (
        "ingress traffic from pods in all namespaces",
        &["x {podSelector: {matchLabels: {pod: a}}, ingress: [{from: [{namespaceSelector: {}}]}]}"],
        "TCP 80",
        &[],
    ),
    (
        "traffic only from a different namespace, based on NamespaceSelector",
        &[
            "x {podSelector: {matchLabels: {pod: a}}, ingress: [{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: y}}}]}]}",
        ],
        "TCP 80",
        &["x/* > x/a", "z/* > x/a"],
    ),
    (
        "PodSelector with MatchExpressions",
        &[
            "x {podSelector: {matchLabels: {pod: a}}, ingress: [{from: [{podSelector: {matchExpressions: [{key: pod, operator: In, values: [b]}]}}]}]}",
        ],
        "TCP 80",
        &["*/* > x/a", "x/b + x/a"],
    ),
    (
        "NamespaceSelector with MatchExpressions",
        &[
            "x {podSelector: {matchLabels: {pod: a}}, ingress: [{from: [{namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: In, values: [y]}]}}]}]}",
        ],
        "TCP 80",
        &["x/* > x/a", "z/* > x/a"],
    ),
    (
        "PodSelector or NamespaceSelector",
        &[
            "x {podSelector: {matchLabels: {pod: a}}, ingress: [{from: [{namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: NotIn, values: [x]}]}}, {podSelector: {matchLabels: {pod: b}}}]}]}",
        ],
        "TCP 80",
        &["x/c > x/a"],
    ),
    (
        "PodSelector and NamespaceSelector",
        &[
            "x {podSelector: {matchLabels: {pod: a}}, ingress: [{from: [{namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: NotIn, values: [x]}]}, podSelector: {matchLabels: {pod: b}}}]}]}",
        ],
        "TCP 80",
        &["*/* > x/a", "y/b + x/a", "z/b + x/a"],
    ),
    (
        "Multiple PodSelectors and NamespaceSelectors",
        &[
            "x {podSelector: {matchLabels: {pod: a}}, ingress: [{from: [{namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: NotIn, values: [x]}]}, podSelector: {matchExpressions: [{key: pod, operator: In, values: [b, c]}]}}]}]}",
        ],
        "TCP 80",
        &["x/* > x/a", "y/a > x/a", "z/a > x/a"],
    ),
    (
        "any PodSelectors",
        &[
            "x {podSelector: {matchLabels: {pod: a}}, ingress: [{from: [{podSelector: {matchLabels: {pod: b}}}, {podSelector: {matchLabels: {pod: c}}}]}]}",
        ],
        "TCP 80",
        &["*/* > x/a", "x/b + x/a", "x/c + x/a"],
    ),
    (
        "only from a pod in a different namespace",
        &[
            "x {podSelector: {matchLabels: {pod: a}}, ingress: [{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: y}}, podSelector: {matchLabels: {pod: a}}}]}]}",
        ],
        "TCP 80",
        &["*/* > x/a", "y/a + x/a"],
    ),
    (
        "based on Ports",
        &[
            "x {podSelector: {matchLabels: {pod: a}}, ingress: [{ports: [{port: 81, protocol: TCP}], from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: y}}}]}]}",
        ],
        "TCP 81",
        &["x/* > x/a", "z/* > x/a"],
    ),
    (
        "based on Ports: another one",
        &[
            "x {podSelector: {matchLabels: {pod: a}}, ingress: [{ports: [{port: 81, protocol: TCP}], from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: y}}}]}]}",
        ],
        "TCP 80",
        &["*/* > x/a"],
    ),
    (
        "multiple, stacked policies with overlapping podSelectors",
        &[
            "x {podSelector: {matchLabels: {pod: a}}, ingress: [{ports: [{port: 81}], from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: y}}}]}]}",
            "x {podSelector: {matchLabels: {pod: a}}, ingress: [{ports: [{port: 80}], from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: y}}}]}]}",
        ],
        "TCP 80",
        &["x/* > x/a", "z/* > x/a"],
    ),
    ("allow-all", &["x {podSelector: {matchLabels: {}}, ingress: [{}]}"], "TCP 81", &[]),
    (
        "ingress access on one named port",
        &["x {podSelector: {}, ingress: [{ports: [{port: serve-80}]}]}"],
        "TCP 80",
        &[],
    ),
    (
        "ingress access on one named port: another one",
        &["x {podSelector: {}, ingress: [{ports: [{port: serve-80}]}]}"],
        "TCP 81",
        &["*/* > x/*"],
    ),
    (
        "a named port of another protocol",
        &["x {podSelector: {}, ingress: [{ports: [{port: serve-81}]}]}"],
        "UDP 81",
        &["*/* > x/*"],
    ),
    (
        "ingress access from namespace on one named port",
        &[
            "x {podSelector: {matchLabels: {pod: a}}, ingress: [{ports: [{port: serve-80, protocol: TCP}], from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: y}}}]}]}",
        ],
        "TCP 80",
        &["x/* > x/a", "z/* > x/a"],
    ),
    (
        "egress access on one named port",
        &["x {podSelector: {}, policyTypes: [Egress], egress: [{ports: [{port: serve-80}]}]}"],
        "TCP 80",
        &[],
    ),
    (
        "egress access on one named port: another one",
        &["x {podSelector: {}, policyTypes: [Egress], egress: [{ports: [{port: serve-80}]}]}"],
        "TCP 81",
        &["x/* > */*"],
    ),
    (
        "from pods on other namespaces",
        &["x {podSelector: {}, ingress: [{from: [{podSelector: {matchLabels: {}}}]}]}"],
        "TCP 80",
        &["y/* > x/*", "z/* > x/*"],
    ),
    (
        "egress from pods based on PodSelector",
        &["x {podSelector: {matchLabels: {pod: a}}, policyTypes: [Egress], egress: []}"],
        "TCP 80",
        &["x/a > */*"],
    ),
    (
        "egress from all pods in a namespace",
        &["x {podSelector: {}, policyTypes: [Egress]}"],
        "TCP 80",
        &["x/* > */*"],
    ),
    (
        "Ingress, Egress specified together",
        &[
            "x {podSelector: {matchLabels: {pod: a}}, policyTypes: [Egress, Ingress], ingress: [{from: [{podSelector: {matchLabels: {pod: b}}}]}], egress: [{ports: [{port: 80}]}]}",
        ],
        "TCP 81",
        &["*/* > x/a", "x/a > */*", "x/b + x/a"],
    ),
    (
        "denying of egress traffic on the client side (even if the server explicitly allows this traffic)",
        &[
            "x {podSelector: {matchLabels: {pod: a}}, policyTypes: [Egress], egress: [{to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: y}}, podSelector: {matchLabels: {pod: a}}}]}]}",
            "y {podSelector: {matchLabels: {pod: a}}, ingress: [{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: x}}, podSelector: {matchLabels: {pod: a}}}]}]}",
            "y {podSelector: {matchLabels: {pod: b}}, ingress: [{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: x}}, podSelector: {matchLabels: {pod: a}}}]}]}",
        ],
        "TCP 80",
        &["x/a > */*", "*/* > y/a", "x/a + y/a", "*/* > y/b"],
    ),
    (
        "egress to a server in a different namespace",
        &[
            "x {podSelector: {matchLabels: {pod: a}}, policyTypes: [Egress], egress: [{to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: y}}, podSelector: {matchLabels: {pod: a}}}]}]}",
        ],
        "TCP 80",
        &["x/a > */*", "x/a + y/a"],
    ),
    (
        "any port traffic to a server on a specific protocol",
        &["x {podSelector: {matchLabels: {pod: a}}, ingress: [{ports: [{protocol: TCP}]}]}"],
        "TCP 80",
        &[],
    ),
    (
        "any port traffic on a specific protocol: another one",
        &["x {podSelector: {matchLabels: {pod: a}}, ingress: [{ports: [{protocol: TCP}]}]}"],
        "UDP 80",
        &["*/* > x/a"],
    ),
    (
        "ingress allow-all policy taking precedence",
        &["x {podSelector: {}, ingress: [{ports: [{port: 80}]}]}", "x {podSelector: {}, ingress: [{}]}"],
        "TCP 81",
        &[],
    ),
    (
        "egress allow-all policy taking precedence",
        &[
            "x {podSelector: {}, policyTypes: [Egress], egress: [{ports: [{port: 80}]}]}",
            "x {podSelector: {}, policyTypes: [Egress], egress: [{}]}",
        ],
        "TCP 81",
        &[],
    ),
    (
        "egress access to server in CIDR block",
        &[
            "x {podSelector: {matchLabels: {pod: a}}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 10.42.0.5/32}}]}]}",
        ],
        "TCP 80",
        &["x/a > */*", "x/a + y/b"],
    ),
    (
        "except clause",
        &[
            "x {podSelector: {matchLabels: {pod: a}}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 10.42.0.0/24, except: [10.42.0.2/32]}}]}]}",
        ],
        "TCP 80",
        &["x/a > x/b"],
    ),
    (
        "except clause of IPv6",
        &[
            "x {podSelector: {matchLabels: {pod: a}}, policyTypes: [Egress], egress: [{ports: [{port: 80}], to: [{ipBlock: {cidr: 'fd00::/64', except: ['fd00::2/128', 'fd00::4/126']}}]}]}",
        ],
        "TCP 80",
        &["x/a > x/b", "x/a > y/*", "x/a > z/a"],
    ),
    (
        "an IP overlapping both IPBlock.CIDR and IPBlock.Except is allowed",
        &[
            "x {podSelector: {matchLabels: {pod: a}}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 10.42.0.0/24, except: [10.42.0.2/32]}}]}]}",
            "x {podSelector: {matchLabels: {pod: a}}, policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 10.42.0.2/32}}]}]}",
        ],
        "TCP 80",
        &[],
    ),
    (
        "ingress and egress policies can be controlled independently",
        &[
            "x {podSelector: {matchLabels: {pod: a}}, policyTypes: [Egress], egress: [{}]}",
            "x {podSelector: {matchLabels: {pod: a}}, policyTypes: [Ingress]}",
        ],
        "TCP 80",
        &["*/* > x/a"],
    ),
    (
        "should not mistakenly treat 'protocol: SCTP' as 'protocol: TCP'",
        &[
            "x {podSelector: {}, ingress: []}",
            "x {podSelector: {matchLabels: {pod: a}}, ingress: [{ports: [{port: 81, protocol: SCTP}]}]}",
        ],
        "TCP 81",
        &["*/* > x/*"],
    ),
    (
        "SCTP is allowed",
        &["x {podSelector: {}, ingress: [{ports: [{port: 81, protocol: SCTP}]}]}"],
        "SCTP 81",
        &[],
    ),
    (
        "access by TCP when a policy specifies only UDP",
        &["x {podSelector: {matchLabels: {pod: a}}, ingress: [{ports: [{port: 81, protocol: UDP}]}]}"],
        "TCP 81",
        &["*/* > x/a"],
    ),
    (
        "a range of ports",
        &["x {podSelector: {}, ingress: [{ports: [{port: 79, endPort: 81}]}]}"],
        "TCP 81",
        &[],
    ),
    (
        "a range of ports: beyond it",
        &["x {podSelector: {}, ingress: [{ports: [{port: 79, endPort: 80}]}]}"],
        "TCP 81",
        &["*/* > x/*"],
    ),
    (
        "MatchExpressions using default ns label",
        &[
            "x {podSelector: {matchLabels: {pod: a}}, policyTypes: [Egress], egress: [{to: [{namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: NotIn, values: [y]}]}}]}]}",
        ],
        "TCP 80",
        &["x/a > y/*"],
    ),
    (
        "a peer without fields is none",
        &["x {podSelector: {}, ingress: [{from: [{}]}]}"],
        "TCP 80",
        &["*/* > x/*"],
    ),
];

fn is_of(pattern: &str, pod: &TestPod) -> bool {
    let (namespace, name) = pattern.split_once('/').unwrap();
    [(namespace, pod.namespace), (name, pod.name)]
        .iter()
        .all(|(pattern, text)| *pattern == "*" || pattern == text)
}

/// What the exceptions make of "all is allowed".
fn is_wanted(exceptions: &[&str], from: &TestPod, to: &TestPod) -> bool {
    let mut wanted = true;
    for exception in exceptions {
        let (of, is_allowed) = match exception.split_once(" > ") {
            Some(of) => (of, false),
            None => (exception.split_once(" + ").unwrap(), true),
        };
        if is_of(of.0, from) && is_of(of.1, to) {
            wanted = is_allowed;
        }
    }
    wanted
}

fn assert_allowed(cluster: &Cluster, pods: &[TestPod], (name, _, of, exceptions): &Case) {
    let (protocol, port) = of.split_once(' ').unwrap();
    let (protocol, port) = (Transport::read(Some(protocol)).unwrap(), port.parse().unwrap());
    for from in pods {
        for to in pods.iter().filter(|to| *to != from) {
            let wanted = is_wanted(exceptions, from, to);
            let (a, b) =
                (format!("{}/{}", from.namespace, from.name), format!("{}/{}", to.namespace, to.name));
            assert_eq!(cluster.allows(from, to, protocol, port), wanted, "{name}: {a} to {b}");
        }
    }
}

#[test]
fn policies_allow_what_upstreams_tests_want() {
    // Each case on new nodes, and all of them one behind the other.
    let mut cluster = Cluster::new();
    for case @ (_, policies, ..) in CASES {
        let pods = pods(policies.iter().any(|policy| policy.contains("fd00")));
        let mut alone = Cluster::new();
        for cluster in [&mut alone, &mut cluster] {
            listed(cluster, &pods);
            for (number, text) in policies.iter().enumerate() {
                let (namespace, spec) = text.split_once(' ').unwrap();
                cluster.apply(Resource::Policies, &policy(namespace, &format!("p{number}"), spec));
            }
            cluster.flush();
            assert_allowed(cluster, &pods, case);
        }
    }
}

#[test]
fn updates_of_policies_namespaces_and_pods_count() {
    let mut cluster = Cluster::new();
    let mut pods = pods(false);
    listed(&mut cluster, &pods);
    let steps = |cluster: &mut Cluster, pods: &[TestPod], name, exceptions| {
        cluster.flush();
        assert_allowed(cluster, pods, &(name, &[], "TCP 80", exceptions));
    };
    cluster.apply(Resource::Policies, &policy("x", "p", "{podSelector: {}, ingress: [{}]}"));
    steps(&mut cluster, &pods, "allow all", &[]);
    cluster.apply(Resource::Policies, &policy("x", "p", "{podSelector: {}, ingress: []}"));
    steps(&mut cluster, &pods, "mutated to deny all", &["*/* > x/*"]);
    let by_label = "{podSelector: {matchLabels: {pod: a}}, ingress: [{from: [{namespaceSelector: {matchLabels: {ns2: updated}}}]}]}";
    cluster.apply(Resource::Policies, &policy("x", "p", by_label));
    steps(&mut cluster, &pods, "no namespace has the label", &["*/* > x/a"]);
    cluster.apply(Resource::Namespaces, &namespace("y", "ns2: updated"));
    steps(&mut cluster, &pods, "updated namespace", &["*/* > x/a", "y/* + x/a"]);
    cluster.delete(Resource::Namespaces, &namespace("y", ""));
    steps(&mut cluster, &pods, "a namespace that is gone", &["*/* > x/a"]);
    let by_pod = "{podSelector: {matchLabels: {target: isolated}}, ingress: [{from: [{podSelector: {matchLabels: {pod2: updated}}}]}]}";
    cluster.apply(Resource::Policies, &policy("x", "p", by_pod));
    steps(&mut cluster, &pods, "selects no pod", &[]);
    pods[0].labels.push(("target", "isolated"));
    cluster.apply(Resource::Pods, &pods[0].object());
    steps(&mut cluster, &pods, "updated pod is isolated", &["*/* > x/a"]);
    pods[1].labels.push(("pod2", "updated"));
    cluster.apply(Resource::Pods, &pods[1].object());
    steps(&mut cluster, &pods, "updated pod is allowed", &["*/* > x/a", "x/b + x/a"]);
    cluster.delete(Resource::Policies, &policy("x", "p", "{}"));
    steps(&mut cluster, &pods, "deleted", &[]);
}

#[test]
fn a_pod_reaches_itself_and_the_node_as_egress_allows() {
    let mut cluster = Cluster::new();
    let pods = pods(false);
    listed(&mut cluster, &pods);
    let spec = "{podSelector: {}, policyTypes: [Ingress, Egress], egress: [{to: [{ipBlock: {cidr: 192.0.2.0/24}}], ports: [{port: 53, protocol: UDP}]}]}";
    cluster.apply(Resource::Policies, &policy("x", "p", spec));
    cluster.flush();
    let own = &pods[1];
    assert_eq!(own.node, "n1");
    assert!(cluster.allows(own, own, Transport::Tcp, 80), "through a Service");
    let node = &cluster.nodes[0].kernel;
    for (to, protocol, port, is_taken) in [
        ("192.0.2.1", Transport::Udp, 53, true),
        ("192.0.2.1", Transport::Tcp, 53, false),
        ("192.0.3.1", Transport::Udp, 53, false),
    ] {
        let packet = super::Packet { from: own.ip(), to: to.parse().unwrap(), protocol, port };
        assert_eq!(node.takes(&packet), is_taken, "{packet:?}");
    }
    let other = super::Packet { from: pods[3].ip(), to: pods[0].ip(), protocol: Transport::Tcp, port: 22 };
    assert!(node.takes(&other), "no policy isolates it");
}
