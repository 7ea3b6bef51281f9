//! Every field of the KubeletConfiguration (kubelet.config.k8s.io/v1beta1 of 1.36) and its support. PURE.
//!
//! `fields.txt` has a line for each, in the API's order: its path, the kind of its value, the default here in the form of a
//! flag's value (`-`: none; `|` before an equivalent value), the kubelet's flag for it (`-`: none), its support, and a reason:
//!
//! ```text
//! +    honoured
//! *    any value is accepted; the reason says why it makes no difference
//! =    only the default is accepted; the reason says why
//! ```
//!
//! `docs/configuration.md` is generated from the table, and `/configz` shows its defaults.

use super::kubelet::parse_go_duration;
use super::registration;
use crate::decode::{Node, typed};
use crate::text::decimal;

const LINES: &str = include_str!("fields.txt");

/// The support of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Implemented as in the kubelet's documentation.
    Honoured,
    /// Any value is accepted, because none makes a difference here.
    Taken,
    /// Only the default is accepted, which describes smolet's behaviour; any other value is refused.
    Fixed,
}

/// The kind of a field's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Bool,
    Int,
    Long,
    Num,
    Text,
    Time,
    Texts,
    Map,
    Bools,
    Headers,
    Taints,
    /// Checked by its reader.
    Any,
}

/// By the kind names of `fields.txt`.
const KINDS: &[(&str, Kind)] = &[
    ("bool", Kind::Bool),
    ("int", Kind::Int),
    ("long", Kind::Long),
    ("num", Kind::Num),
    ("text", Kind::Text),
    ("time", Kind::Time),
    ("texts", Kind::Texts),
    ("map", Kind::Map),
    ("bools", Kind::Bools),
    ("headers", Kind::Headers),
    ("taints", Kind::Taints),
];

/// A line of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// `authentication.webhook.enabled`.
    pub path: &'static str,
    /// The name of its value's kind.
    pub kind: &'static str,
    /// The default in the form of a flag's value; empty: none.
    pub default: &'static str,
    /// The kubelet's flag, without dashes; empty: none.
    pub flag: &'static str,
    /// Its support.
    pub answer: Answer,
    /// The reason; may be empty when it is honoured.
    pub words: &'static str,
}

/// The whole table, in the API's order.
pub fn fields() -> impl Iterator<Item = Field> {
    LINES.lines().filter_map(|line| {
        let mut columns = line.splitn(6, ' ');
        let mut column = || columns.next().map(|text| if text == "-" { "" } else { text });
        let (path, kind, default, flag) = (column()?, column()?, column()?, column()?);
        let answer = match column()? {
            "+" => Answer::Honoured,
            "*" => Answer::Taken,
            _ => Answer::Fixed,
        };
        Some(Field { path, kind, default, flag, answer, words: column().unwrap_or_default() })
    })
}

/// The field of a kubelet flag, named without dashes.
pub fn of_flag(name: &str) -> Option<Field> {
    fields().find(|field| field.flag == name && !name.is_empty())
}

/// The known field closest to the name of an unknown one.
pub(super) fn nearest(path: &str) -> Option<&'static str> {
    let paths: Vec<&'static str> = fields().map(|field| field.path).collect();
    typed::nearest(path, &paths)
}

impl Field {
    fn kind(&self) -> Kind {
        KINDS.iter().find(|(word, _)| *word == self.kind).map_or(Kind::Any, |(_, kind)| *kind)
    }

    /// Whether the flag may be given without a value.
    pub fn is_switch(&self) -> bool {
        self.kind() == Kind::Bool
    }

    /// The default.
    pub(super) fn default_value(&self) -> Option<Node> {
        let default = self.default.split('|').next().filter(|text| !text.is_empty())?;
        self.of_text(default).ok()
    }

    /// Parses a flag's value; the error says what it has to be.
    pub(super) fn of_text(&self, text: &str) -> Result<Node, String> {
        let parts = || text.split(',').map(str::trim).filter(|part| !part.is_empty());
        let pairs = |between: &[char], value: fn(&str) -> Option<Node>| {
            let pair = |part: &str| {
                let (key, of_key) = part.split_once(between)?;
                Some((Box::from(key.trim()), value(of_key.trim())?))
            };
            parts().map(pair).collect::<Option<Vec<_>>>().map(Node::Map)
        };
        let bool_of = |text: &str| match text {
            "" | "1" | "t" | "T" | "true" | "True" | "TRUE" => Some(Node::Bool(true)),
            "0" | "f" | "F" | "false" | "False" | "FALSE" => Some(Node::Bool(false)),
            _ => None,
        };
        let text_of = |text: &str| Some(Node::Text(text.into()));
        let node = match self.kind() {
            Kind::Bool => bool_of(text),
            Kind::Int | Kind::Long => text.parse().ok().map(Node::Int),
            Kind::Num => decimal(text).map(Node::Float),
            Kind::Text | Kind::Time | Kind::Any => text_of(text),
            Kind::Texts => Some(Node::List(parts().map(|part| Node::Text(part.into())).collect())),
            Kind::Map => pairs(&['<', '='], text_of),
            Kind::Bools => pairs(&['='], bool_of),
            Kind::Headers => pairs(&[':'], |value| Some(Node::List(vec![Node::Text(value.into())]))),
            Kind::Taints => return registration::taints(text),
        };
        node.and_then(|node| self.read(node)).ok_or_else(|| self.rule().to_owned())
    }

    /// Converts the value to the canonical form of its kind; `None`: it is of another kind.
    pub(super) fn read(&self, node: Node) -> Option<Node> {
        let is_text = |node: &Node| node.text().is_some();
        let fits = match (self.kind(), &node) {
            (Kind::Int | Kind::Long, Node::Float(value)) if value.fract() == 0.0 && value.abs() < 2e9 => {
                #[allow(clippy::cast_possible_truncation, reason = "the value is whole and small")]
                return Some(Node::Int(*value as i64));
            }
            (Kind::Int, Node::Int(value)) => i32::try_from(*value).is_ok(),
            (Kind::Time, Node::Text(text)) => parse_go_duration(text).is_some(),
            (Kind::Texts, Node::List(items)) => items.iter().all(is_text),
            (Kind::Map, Node::Map(entries)) => entries.iter().all(|(_, value)| is_text(value)),
            (Kind::Bools, Node::Map(entries)) => {
                entries.iter().all(|(_, value)| matches!(value, Node::Bool(_)))
            }
            (Kind::Headers, Node::Map(entries)) => {
                let is_list = |node: &Node| matches!(node, Node::List(_)) && node.items().iter().all(is_text);
                entries.iter().all(|(_, value)| is_list(value))
            }
            (Kind::Bool, Node::Bool(_))
            | (Kind::Long, Node::Int(_))
            | (Kind::Num, Node::Int(_) | Node::Float(_))
            | (Kind::Text, Node::Text(_))
            | (Kind::Taints, Node::List(_))
            | (Kind::Any, _) => true,
            _ => false,
        };
        fits.then_some(node)
    }

    /// Whether its value is secret (`datapolicy:"token"`).
    pub(super) fn is_secret(&self) -> bool {
        self.kind() == Kind::Headers
    }

    /// The value with secret parts masked.
    pub(super) fn masked(&self, node: Node) -> Node {
        match node {
            Node::Map(entries) if self.is_secret() => {
                let masked = || Node::List(vec![Node::Text("<masked>".into())]);
                Node::Map(entries.into_iter().map(|(key, _)| (key, masked())).collect())
            }
            node => node,
        }
    }

    /// Description of valid values.
    pub(super) fn rule(&self) -> &'static str {
        match self.kind() {
            Kind::Bool => "must be true or false, without quotes",
            Kind::Int | Kind::Long => "must be an integer, without quotes",
            Kind::Num => "must be a number, without quotes",
            Kind::Text | Kind::Any => "must be a string; put it in quotes",
            Kind::Time => "must be a duration such as 20s, 1m30s or 2h",
            Kind::Texts => "must be a list of strings",
            Kind::Map => "must be a map of strings",
            Kind::Bools => "must be a map with true or false",
            Kind::Headers => "must be a map with lists of strings",
            Kind::Taints => "must be a list of taints",
        }
    }

    /// Whether the value is equivalent to the default: it is empty, or the default itself.
    pub(super) fn is_default(&self, node: &Node) -> bool {
        let of_default = self.default_value();
        match (self.kind(), node) {
            (_, Node::Null) => true,
            // `metav1.Duration` is not a pointer in most fields: 0 is the default (`SetDefaults_KubeletConfiguration`).
            (Kind::Time, Node::Text(text)) => {
                let given = parse_go_duration(text);
                given.is_none_or(|given| given.is_zero()) || given == parse_go_duration(self.default)
            }
            (_, Node::Text(text)) => {
                text.is_empty() || self.default.split('|').any(|default| default == &**text)
            }
            (_, Node::Map(entries)) if entries.is_empty() => true,
            (_, Node::List(items)) if items.is_empty() => true,
            (Kind::Texts, _) => self.default.split('|').any(|text| self.of_text(text).as_ref() == Ok(node)),
            (_, Node::Map(entries)) => match of_default {
                Some(Node::Map(usual)) => {
                    usual.len() == entries.len() && entries.iter().all(|entry| usual.contains(entry))
                }
                _ => false,
            },
            _ => of_default.as_ref() == Some(node),
        }
    }

    /// Why a value of the right kind is refused.
    pub(super) fn refusal(&self, node: &Node) -> Option<String> {
        if self.answer != Answer::Fixed || self.is_default(node) {
            return None;
        }
        let must =
            if self.default.is_empty() { "left out".to_owned() } else { self.default.replace('|', " or ") };
        Some(format!("must be {must}: {}", self.words))
    }
}
