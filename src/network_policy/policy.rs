//! The specification of a `NetworkPolicy`. PURE.
//!
//! | field | empty or missing |
//! |---|---|
//! | `podSelector` | every pod of the namespace |
//! | `policyTypes` | Ingress, and Egress when there are egress rules |
//! | `ingress`, `egress` | nothing is allowed in that direction, if it is one of `policyTypes` |
//! | `from`, `to` | every peer |
//! | `ports` | every port; `protocol`: TCP; `port`: all ports of the protocol |
//! | peer without a field | no peer |
//! | peer without `namespaceSelector` | pods of the policy's namespace |

use super::records::NamespaceId;
use super::selector::{Held, Selector};
use super::words::{WordId, Words};
use crate::decode::Node;
use crate::limits::NETWORK_POLICY_TERMS_MAX;
use crate::model::{Network, Transport};

/// Seen from the isolated pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Direction {
    Ingress,
    Egress,
}

pub(super) const DIRECTIONS: [Direction; 2] = [Direction::Ingress, Direction::Egress];

/// What a policy selects and allows. The peers of one that cannot be understood, or does not fit, are none: it denies.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Spec {
    pub(super) pods: Selector,
    /// `None`: does not isolate in this direction.
    pub(super) ingress: Option<Box<[Rule]>>,
    pub(super) egress: Option<Box<[Rule]>>,
}

impl Spec {
    pub(super) fn rules(&self, direction: Direction) -> Option<&[Rule]> {
        match direction {
            Direction::Ingress => self.ingress.as_deref(),
            Direction::Egress => self.egress.as_deref(),
        }
    }
}

/// A peer and a port of it are allowed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Rule {
    /// `None`: everybody.
    pub(super) peers: Option<Box<[Peer]>>,
    /// Empty: all ports.
    pub(super) ports: Box<[Port]>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Peer {
    Pods(GroupKey),
    Block { network: Network, except: Box<[Network]> },
}

/// The pods that a peer selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GroupKey {
    pub(super) namespaces: Scope,
    pub(super) pods: Selector,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    One(NamespaceId),
    Matching(Selector),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Port {
    All(Transport),
    Numbers(Transport, u16, u16),
    /// Resolved against the pod that a connection goes to.
    Named(Transport, WordId),
}

/// What was read of a policy.
pub(super) struct Parsed {
    pub(super) spec: Spec,
    /// The texts that it holds.
    pub(super) words: Box<[WordId]>,
    /// Its bytes, about.
    pub(super) bytes: usize,
    /// What is wrong with it.
    pub(super) why: Option<String>,
}

impl Parsed {
    /// Isolates for ingress, or for egress, every pod of its namespace, and allows nothing.
    pub(super) fn deny((ingress, egress): (bool, bool), why: Option<String>) -> Self {
        let none = |is_there: bool| is_there.then(Box::default);
        let spec = Spec { pods: Selector::default(), ingress: none(ingress), egress: none(egress) };
        Self { spec, words: Box::default(), bytes: 0, why }
    }
}

fn list<'a>(of: Option<&'a Node>, field: &str) -> &'a [Node] {
    of.and_then(|of| of.field(field)).map(Node::items).unwrap_or_default()
}

/// Rules, peers, exceptions and ports.
fn terms(spec: Option<&Node>) -> usize {
    let except = |peer: &Node| 1 + peer.field("ipBlock").map_or(0, |block| list(Some(block), "except").len());
    let of = |rule: &Node| {
        let peers = ["from", "to"].iter().flat_map(|field| list(Some(rule), field));
        1 + list(Some(rule), "ports").len() + peers.map(except).sum::<usize>()
    };
    ["ingress", "egress"].iter().flat_map(|field| list(spec, field)).map(of).sum()
}

/// Reads the policy's specification. One that is wrong, or has too much, selects and isolates as far as it is understood, and allows
/// nothing.
pub(super) fn read(spec: Option<&Node>, namespace: NamespaceId, words: &mut Words) -> Parsed {
    let mut reader = Reader { held: Held { words, ids: Vec::new() }, namespace };
    let terms = terms(spec);
    let pods = spec.and_then(|spec| spec.field("podSelector"));
    let pods = pods.map_or(Ok(Selector::default()), |pods| Selector::read(pods, &mut reader.held));
    let (ingress, egress) = types(spec);
    let (pods, wrong) = match pods {
        Ok(pods) => (pods, None),
        // Which pods it selects is not known: it is all.
        Err(why) => (Selector::default(), Some(format!("spec.podSelector.{why}"))),
    };
    let too_many = || {
        format!("spec has more than {NETWORK_POLICY_TERMS_MAX} rules, peers, exceptions and ports; divide it")
    };
    let wrong = wrong.or_else(|| (terms > NETWORK_POLICY_TERMS_MAX).then(too_many));
    let mut rules = |is_there: bool, field: &str, peers: &str| {
        is_there.then(|| reader.rules(list(spec, field), field, peers)).transpose()
    };
    let rules = match wrong {
        Some(why) => Err(why),
        None => rules(ingress, "ingress", "from")
            .and_then(|ingress| Ok((ingress, rules(egress, "egress", "to")?))),
    };
    let (rules, why) = match rules {
        Ok(rules) => (rules, None),
        Err(why) => ((ingress.then(Box::default), egress.then(Box::default)), Some(why)),
    };
    let spec = Spec { pods, ingress: rules.0, egress: rules.1 };
    let bytes = (terms + reader.held.ids.len()) * TERM_BYTES;
    Parsed { spec, words: reader.held.ids.into(), bytes, why }
}

/// Bytes of a rule, peer, port or text of a selector, about.
const TERM_BYTES: usize = 64;

/// Whether it isolates for ingress and for egress.
pub(super) fn types(spec: Option<&Node>) -> (bool, bool) {
    let types = list(spec, "policyTypes");
    let is_named = |name| types.iter().any(|one| one.text() == Some(name));
    if types.is_empty() {
        return (true, !list(spec, "egress").is_empty());
    }
    match (is_named("Ingress"), is_named("Egress")) {
        // Types of a later server: better too much is denied than too little.
        (false, false) => (true, true),
        known => known,
    }
}

struct Reader<'a> {
    held: Held<'a>,
    namespace: NamespaceId,
}

impl Reader<'_> {
    fn rules(&mut self, rules: &[Node], field: &str, peers: &str) -> Result<Box<[Rule]>, String> {
        let mut read = Vec::new();
        for (index, rule) in rules.iter().enumerate() {
            let at = |why: String| format!("spec.{field}[{index}].{why}");
            let peers = self.peers(list(Some(rule), peers), peers).map_err(at)?;
            let ports = self.ports(list(Some(rule), "ports")).map_err(at)?;
            read.push(Rule { peers, ports });
        }
        Ok(read.into())
    }

    fn peers(&mut self, peers: &[Node], field: &str) -> Result<Option<Box<[Peer]>>, String> {
        if peers.is_empty() {
            return Ok(None);
        }
        let mut read = Vec::new();
        for (index, peer) in peers.iter().enumerate() {
            let at = |why: String| format!("{field}[{index}].{why}");
            let (namespaces, pods, block) =
                (peer.field("namespaceSelector"), peer.field("podSelector"), peer.field("ipBlock"));
            let selector = |selector: Option<&Node>, held: &mut Held<'_>, field: &str| {
                let read = selector.map_or(Ok(Selector::default()), |found| Selector::read(found, held));
                read.map_err(|why| at(format!("{field}.{why}")))
            };
            read.push(match (namespaces, pods, block) {
                // A field of a later server.
                (None, None, None) => continue,
                (None, None, Some(block)) => {
                    Self::block(block).map_err(|why| at(format!("ipBlock.{why}")))?
                }
                (_, _, Some(_)) => return Err(at("ipBlock may not stand beside a selector".to_owned())),
                (namespaces, pods, None) => {
                    let pods = selector(pods, &mut self.held, "podSelector")?;
                    let namespaces = match namespaces {
                        None => Scope::One(self.namespace),
                        Some(_) => {
                            Scope::Matching(selector(namespaces, &mut self.held, "namespaceSelector")?)
                        }
                    };
                    Peer::Pods(GroupKey { namespaces, pods })
                }
            });
        }
        Ok(Some(read.into()))
    }

    fn block(block: &Node) -> Result<Peer, String> {
        let network = |text: Option<&Node>| text.and_then(Node::text).and_then(Network::parse);
        let of = network(block.field("cidr")).ok_or("cidr is no network")?;
        let mut except = Vec::new();
        for (index, text) in list(Some(block), "except").iter().enumerate() {
            let wrong = || format!("except[{index}] is no network within cidr");
            let inner = network(Some(text)).filter(|inner| inner.prefix >= of.prefix);
            except.push(inner.filter(|inner| of.contains(inner.address)).ok_or_else(wrong)?);
        }
        Ok(Peer::Block { network: of, except: except.into() })
    }

    fn ports(&mut self, ports: &[Node]) -> Result<Box<[Port]>, String> {
        let mut read = Vec::new();
        for (index, port) in ports.iter().enumerate() {
            let at = |why: &str| format!("ports[{index}].{why}");
            let protocol = Transport::read(port.field("protocol").and_then(Node::text))
                .ok_or_else(|| at("protocol is none of TCP, UDP, SCTP"))?;
            let number = |node: &Node| match node {
                Node::Int(number) => u16::try_from(*number).ok().filter(|number| *number > 0),
                _ => None,
            };
            read.push(match (port.field("port"), port.field("endPort")) {
                (None, None) => Port::All(protocol),
                (Some(Node::Text(name)), None) => Port::Named(protocol, self.held.hold(name)),
                (Some(first), last) => {
                    let first = number(first).ok_or_else(|| at("port is no port"))?;
                    let last = last.map_or(Some(first), number).filter(|last| *last >= first);
                    Port::Numbers(protocol, first, last.ok_or_else(|| at("endPort is no port behind port"))?)
                }
                (None, Some(_)) => return Err(at("endPort needs port")),
            });
        }
        Ok(read.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::json;

    fn read_text(text: &str) -> (Spec, Option<String>) {
        let parsed = read(Some(&json::read(text.as_bytes()).unwrap()), NamespaceId(3), &mut Words::default());
        (parsed.spec, parsed.why)
    }

    #[test]
    fn policy_types_default_as_upstream() {
        for (spec, ingress, egress) in [
            ("{}", true, false),
            (r#"{"egress":[]}"#, true, false),
            (r#"{"egress":[{}]}"#, true, true),
            (r#"{"policyTypes":[],"egress":[{}]}"#, true, true),
            (r#"{"policyTypes":["Ingress"],"egress":[{}]}"#, true, false),
            (r#"{"policyTypes":["Egress"]}"#, false, true),
            (r#"{"policyTypes":["Egress","Ingress"]}"#, true, true),
            (r#"{"policyTypes":["Sideways"]}"#, true, true),
        ] {
            let (read, why) = read_text(spec);
            assert_eq!(
                (read.ingress.is_some(), read.egress.is_some(), why),
                (ingress, egress, None),
                "{spec}"
            );
        }
    }

    #[test]
    fn a_wrong_policy_is_named_and_denies() {
        for (rules, why) in [
            (
                r#"[{"from":[{"ipBlock":{"cidr":"10.0.0.0"}}]}]"#,
                "spec.ingress[0].from[0].ipBlock.cidr is no network",
            ),
            (r#"[{"from":[{"ipBlock":{"cidr":"10.0.0.0/33"}}]}]"#, "cidr is no network"),
            (
                r#"[{},{"from":[{"ipBlock":{"cidr":"10.0.0.0/8","except":["11.0.0.0/16"]}}]}]"#,
                "spec.ingress[1].from[0].ipBlock.except[0] is no network within cidr",
            ),
            (r#"[{"from":[{"ipBlock":{"cidr":"10.0.0.0/8","except":["10.0.0.0/7"]}}]}]"#, "except[0]"),
            (r#"[{"from":[{"ipBlock":{"cidr":"10.0.0.0/8","except":["fd00::/16"]}}]}]"#, "except[0]"),
            (
                r#"[{"from":[{"podSelector":{},"ipBlock":{"cidr":"10.0.0.0/8"}}]}]"#,
                "ipBlock may not stand beside a selector",
            ),
            (
                r#"[{"from":[{"namespaceSelector":{"matchExpressions":[{"key":"a","operator":"Lt"}]}}]}]"#,
                "spec.ingress[0].from[0].namespaceSelector.matchExpressions[0].operator is none of",
            ),
            (r#"[{"ports":[{"protocol":"ICMP"}]}]"#, "spec.ingress[0].ports[0].protocol is none of TCP"),
            (r#"[{"ports":[{"port":0}]}]"#, "ports[0].port is no port"),
            (r#"[{"ports":[{"port":65536}]}]"#, "ports[0].port is no port"),
            (r#"[{"ports":[{"port":80,"endPort":79}]}]"#, "ports[0].endPort is no port behind port"),
            (r#"[{"ports":[{"port":"http","endPort":90}]}]"#, "ports[0].port is no port"),
            (r#"[{"ports":[{"endPort":90}]}]"#, "ports[0].endPort needs port"),
        ] {
            let (spec, found) =
                read_text(&format!(r#"{{"podSelector":{{"matchLabels":{{"a":"b"}}}},"ingress":{rules}}}"#));
            let found = found.unwrap_or_default();
            assert!(found.contains(why), "{rules}: {found}");
            assert!(spec.ingress == Some(Box::default()) && spec.egress.is_none(), "{rules}");
            assert!(spec.pods != Selector::default(), "the pods are known");
        }
        let (spec, why) =
            read_text(r#"{"podSelector":{"matchLabels":{"a":1}},"policyTypes":["Egress"],"egress":[{}]}"#);
        assert_eq!(why.as_deref(), Some("spec.podSelector.matchLabels[a] is no text"));
        let all = Spec { pods: Selector::default(), ingress: None, egress: Some(Box::default()) };
        assert_eq!(spec, all, "which pods is not known: it is all");
    }

    #[test]
    fn a_policy_that_is_too_large_denies() {
        let ports = |count| vec![r#"{"port":80}"#; count].join(",");
        let of = |count| read_text(&format!(r#"{{"ingress":[{{"ports":[{}]}}]}}"#, ports(count)));
        assert_eq!(of(NETWORK_POLICY_TERMS_MAX - 1).1, None);
        let (spec, why) = of(NETWORK_POLICY_TERMS_MAX);
        assert!(why.unwrap().contains("more than 1024 rules"));
        assert_eq!(spec.ingress, Some(Box::default()));
    }
}
