//! Random clusters that change step by step: after each step the tables of both nodes allow what the policies say, read literally.

use super::{Cluster, TestPod, namespace, pods, policy};
use crate::model::Transport;
use crate::network_policy::Resource;

/// xorshift64.
struct Random(u64);

impl Random {
    fn below(&mut self, count: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap() % count
    }

    fn one_of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())].clone()
    }
}

type Labels = Vec<(&'static str, &'static str)>;

/// Key, operator, values.
#[derive(Clone, Debug, PartialEq)]
struct Selector(Vec<(&'static str, &'static str, Vec<&'static str>)>);

const KEYS: [&str; 3] = ["pod", "app", "tier"];
const VALUES: [&str; 3] = ["a", "b", "c"];

impl Selector {
    fn random(random: &mut Random) -> Self {
        let one = |random: &mut Random| {
            let operator = random.one_of(&["In", "NotIn", "Exists", "DoesNotExist"]);
            let values = if operator.ends_with("In") {
                (0..=random.below(2)).map(|_| random.one_of(&VALUES)).collect()
            } else {
                Vec::new()
            };
            (random.one_of(&KEYS), operator, values)
        };
        Self((0..random.below(3)).map(|_| one(random)).collect())
    }

    fn matches(&self, labels: &Labels) -> bool {
        self.0.iter().all(|(key, operator, values)| {
            let value = labels.iter().find(|(of, _)| of == key).map(|(_, value)| value);
            match *operator {
                "In" => value.is_some_and(|value| values.contains(value)),
                "NotIn" => !value.is_some_and(|value| values.contains(value)),
                "Exists" => value.is_some(),
                _ => value.is_none(),
            }
        })
    }

    fn text(&self) -> String {
        let one = |(key, operator, values): &(&str, &str, Vec<&str>)| match (*operator, &values[..]) {
            ("In", [_, ..]) => {
                format!("{{key: {key}, operator: {operator}, values: [{}]}}", values.join(", "))
            }
            (_, []) => format!("{{key: {key}, operator: {operator}}}"),
            _ => format!("{{key: {key}, operator: {operator}, values: [{}]}}", values.join(", ")),
        };
        format!("{{matchExpressions: [{}]}}", self.0.iter().map(one).collect::<Vec<_>>().join(", "))
    }
}

#[derive(Clone, Debug)]
enum Peer {
    Pods(Option<Selector>, Selector),
    /// 10.42.0.0/PREFIX but for one address.
    Block(u8, Option<u8>),
}

#[derive(Clone, Debug)]
enum Port {
    All(Transport),
    Range(Transport, u16, u16),
    Named(Transport, &'static str),
}

#[derive(Clone, Debug)]
struct Rule {
    peers: Vec<Peer>,
    ports: Vec<Port>,
}

#[derive(Clone, Debug)]
struct Policy {
    namespace: &'static str,
    name: &'static str,
    pods: Selector,
    ingress: Option<Vec<Rule>>,
    egress: Option<Vec<Rule>>,
}

fn protocol_name(protocol: Transport) -> &'static str {
    match protocol {
        Transport::Tcp => "TCP",
        Transport::Udp => "UDP",
        Transport::Sctp => "SCTP",
    }
}

impl Policy {
    fn random(random: &mut Random) -> Self {
        let protocols = [Transport::Tcp, Transport::Udp];
        let rule = |random: &mut Random| Rule {
            peers: (0..random.below(3))
                .map(|_| match random.below(3) {
                    0 => Peer::Block(
                        random.one_of(&[24, 29, 30, 32]),
                        random.one_of(&[None, Some(2), Some(5)]),
                    ),
                    1 => Peer::Pods(Some(Selector::random(random)), Selector::random(random)),
                    _ => Peer::Pods(None, Selector::random(random)),
                })
                .collect(),
            ports: (0..random.below(3))
                .map(|_| match random.below(4) {
                    0 => Port::All(random.one_of(&protocols)),
                    1 => Port::Named(
                        random.one_of(&protocols),
                        random.one_of(&["serve-80", "serve-81", "none"]),
                    ),
                    2 => Port::Range(random.one_of(&protocols), 80, 81),
                    _ => Port::Range(random.one_of(&protocols), 80, 80),
                })
                .collect(),
        };
        let rules = |random: &mut Random| (0..random.below(3)).map(|_| rule(random)).collect::<Vec<_>>();
        let types = random.below(3);
        Self {
            namespace: random.one_of(&["x", "y", "z"]),
            name: random.one_of(&["p", "q"]),
            pods: Selector::random(random),
            ingress: (types != 0).then(|| rules(random)),
            egress: (types != 1).then(|| rules(random)),
        }
    }

    fn spec(&self) -> String {
        let block = |prefix: &u8, except: &Option<u8>| {
            let except = except.filter(|last| in_block(*prefix, *last));
            let except = except.map(|last| format!(", except: [10.42.0.{last}/32]")).unwrap_or_default();
            format!("{{ipBlock: {{cidr: 10.42.0.0/{prefix}{except}}}}}")
        };
        let peer = |peer: &Peer| match peer {
            Peer::Pods(Some(namespaces), pods) => {
                format!("{{namespaceSelector: {}, podSelector: {}}}", namespaces.text(), pods.text())
            }
            Peer::Pods(None, pods) => format!("{{podSelector: {}}}", pods.text()),
            Peer::Block(prefix, except) => block(prefix, except),
        };
        let port = |port: &Port| match port {
            Port::All(of) => format!("{{protocol: {}}}", protocol_name(*of)),
            Port::Range(of, first, last) => {
                format!("{{protocol: {}, port: {first}, endPort: {last}}}", protocol_name(*of))
            }
            Port::Named(of, name) => format!("{{protocol: {}, port: {name}}}", protocol_name(*of)),
        };
        let rules = |rules: &[Rule], peers: &str| {
            let rule = |rule: &Rule| {
                let of: Vec<String> = rule.peers.iter().map(peer).collect();
                let ports: Vec<String> = rule.ports.iter().map(port).collect();
                format!("{{{peers}: [{}], ports: [{}]}}", of.join(", "), ports.join(", "))
            };
            rules.iter().map(rule).collect::<Vec<_>>().join(", ")
        };
        let types: Vec<&str> =
            [self.ingress.as_ref().map(|_| "Ingress"), self.egress.as_ref().map(|_| "Egress")]
                .into_iter()
                .flatten()
                .collect();
        format!(
            "{{podSelector: {}, policyTypes: [{}], ingress: [{}], egress: [{}]}}",
            self.pods.text(),
            types.join(", "),
            rules(self.ingress.as_deref().unwrap_or_default(), "from"),
            rules(self.egress.as_deref().unwrap_or_default(), "to")
        )
    }
}

fn in_block(prefix: u8, last: u8) -> bool {
    prefix <= 24 || u32::from(last) >> (32 - prefix) == 0
}

/// What is there.
struct World {
    namespaces: Vec<(&'static str, Labels)>,
    pods: Vec<TestPod>,
    policies: Vec<Policy>,
}

impl World {
    fn is_peer(&self, peer: &Peer, of: &Policy, pod: &TestPod) -> bool {
        match peer {
            Peer::Pods(None, selector) => pod.namespace == of.namespace && selector.matches(&pod.labels),
            Peer::Pods(Some(namespaces), selector) => {
                let of_pod = self.namespaces.iter().find(|(name, _)| *name == pod.namespace);
                of_pod.is_some_and(|(_, labels)| namespaces.matches(labels)) && selector.matches(&pod.labels)
            }
            Peer::Block(prefix, except) => {
                let last: u8 = pod.ips[0].rsplit('.').next().unwrap().parse().unwrap();
                in_block(*prefix, last) && *except != Some(last)
            }
        }
    }

    fn allows(&self, from: &TestPod, to: &TestPod, protocol: Transport, port: u16) -> bool {
        let is_port = |wanted: &Port| match wanted {
            Port::All(of) => *of == protocol,
            Port::Range(of, first, last) => *of == protocol && (*first..=*last).contains(&port),
            Port::Named(of, name) => {
                *of == protocol
                    && [("serve-80", Transport::Tcp, 80), ("serve-81", Transport::Udp, 81)]
                        .contains(&(*name, protocol, port))
            }
        };
        let may = |own: &TestPod, other: &TestPod, rules: &dyn Fn(&Policy) -> Option<Vec<Rule>>| {
            let isolating: Vec<&Policy> = self
                .policies
                .iter()
                .filter(|policy| policy.namespace == own.namespace && policy.pods.matches(&own.labels))
                .filter(|policy| rules(policy).is_some())
                .collect();
            isolating.is_empty()
                || isolating.iter().any(|policy| {
                    rules(policy).unwrap().iter().any(|rule| {
                        (rule.peers.is_empty()
                            || rule.peers.iter().any(|peer| self.is_peer(peer, policy, other)))
                            && (rule.ports.is_empty() || rule.ports.iter().any(is_port))
                    })
                })
        };
        may(from, to, &|policy| policy.egress.clone()) && may(to, from, &|policy| policy.ingress.clone())
    }
}

fn labels(random: &mut Random) -> Labels {
    let mut labels = Labels::new();
    for key in KEYS {
        if random.below(3) > 0 {
            labels.push((key, random.one_of(&VALUES)));
        }
    }
    labels
}

fn text(labels: &Labels) -> String {
    labels.iter().map(|(key, value)| format!("{key}: {value}, ")).collect::<Vec<_>>().concat()
}

/// One change.
fn step(world: &mut World, cluster: &mut Cluster, random: &mut Random, uid: &mut u32) -> String {
    match random.below(8) {
        0 | 1 => {
            let new = Policy::random(random);
            cluster.apply(Resource::Policies, &policy(new.namespace, new.name, &new.spec()));
            world.policies.retain(|old| (old.namespace, old.name) != (new.namespace, new.name));
            world.policies.push(new.clone());
            format!("policy {new:?}")
        }
        2 if !world.policies.is_empty() => {
            let old = world.policies.swap_remove(random.below(world.policies.len()));
            cluster.delete(Resource::Policies, &policy(old.namespace, old.name, "{}"));
            format!("delete policy {}/{}", old.namespace, old.name)
        }
        3 => {
            let place = random.below(world.namespaces.len());
            let (name, of) = &mut world.namespaces[place];
            *of = labels(random);
            cluster.apply(Resource::Namespaces, &namespace(name, &text(of)));
            format!("namespace {name} {of:?}")
        }
        4 | 5 => {
            let place = random.below(world.pods.len());
            let pod = &mut world.pods[place];
            pod.labels = labels(random);
            cluster.apply(Resource::Pods, &pod.object());
            format!("pod {}/{} {:?}", pod.namespace, pod.name, pod.labels)
        }
        6 => {
            // Its address goes to another pod at once, whichever is heard of first.
            let place = random.below(world.pods.len());
            let old = world.pods[place].clone();
            *uid += 1;
            let pod = &mut world.pods[place];
            pod.uid = *uid;
            pod.node = random.one_of(&["n1", "n2"]);
            pod.labels = labels(random);
            let is_first = random.below(2) == 0;
            if is_first {
                cluster.delete(Resource::Pods, &old.object());
            }
            cluster.apply(Resource::Pods, &pod.object());
            if !is_first {
                if random.below(2) == 0 {
                    cluster.flush();
                }
                cluster.delete(Resource::Pods, &old.object());
            }
            format!("pod {}/{} for {old:?}", pod.namespace, pod.name)
        }
        _ => {
            cluster.nodes[random.below(2)].controller.clear();
            "the table is lost".to_owned()
        }
    }
}

#[test]
fn random_changes_lead_to_what_the_policies_say() {
    let (mut allowed, mut denied) = (0_u32, 0_u32);
    // An emulator takes a minute for all of them.
    let seeds = if std::env::var_os("SMOLET_TEST_RUNNER").is_some() { 2_u32 } else { 24 };
    for seed in 1..=seeds {
        let mut random = Random(u64::wrapping_mul(seed.into(), 0x9e37_79b9_7f4a_7c15));
        let mut world = World {
            namespaces: ["x", "y", "z"].map(|name| (name, labels(&mut random))).into(),
            pods: pods(false),
            policies: Vec::new(),
        };
        let mut cluster = Cluster::new();
        for (name, labels) in &world.namespaces {
            cluster.apply(Resource::Namespaces, &namespace(name, &text(labels)));
        }
        for pod in &mut world.pods {
            pod.labels = labels(&mut random);
            cluster.apply(Resource::Pods, &pod.object());
        }
        let mut uid = 1000;
        for number in 0..40 {
            let mut steps = Vec::new();
            for _ in 0..=random.below(3) {
                steps.push(step(&mut world, &mut cluster, &mut random, &mut uid));
            }
            cluster.flush();
            for (from, to) in world.pods.iter().flat_map(|from| world.pods.iter().map(move |to| (from, to))) {
                if from.uid == to.uid {
                    continue;
                }
                for (protocol, port) in
                    [(Transport::Tcp, 80), (Transport::Tcp, 81), (Transport::Udp, 81), (Transport::Udp, 99)]
                {
                    let wanted = world.allows(from, to, protocol, port);
                    *if wanted { &mut allowed } else { &mut denied } += 1;
                    assert_eq!(
                        cluster.allows(from, to, protocol, port),
                        wanted,
                        "seed {seed}, step {number}: {from:?} to {to:?} {protocol:?} {port}\n{}\n{:#?}",
                        steps.join("\n"),
                        world.policies
                    );
                }
            }
        }
    }
    assert!(allowed.min(denied) > 1_000 * seeds, "{allowed} allowed, {denied} denied");
}
