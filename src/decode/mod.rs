//! Decodes a manifest's bytes into documents and these into typed objects, all within the bounds of `limits`.
//!
//! `yaml` (PURE) parses text into [`Node`] trees; JSON is parsed as YAML. `typed` (PURE) deserializes a tree into a Kubernetes
//! type and names the fields that do not match. `toml` (PURE) is for containerd's files. The identity of a manifest is computed from the
//! tree, and there is only one deserializer of the big generated types.

pub mod json;
pub mod toml;
pub mod typed;
pub mod yaml;

use std::fmt;
use std::fmt::Write as _;

use crate::limits;

/// One value of a document, in the order it was written. Maps hold no key twice.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    /// `null`, `~` or empty.
    Null,
    /// A boolean, YAML 1.1's `yes`, `no`, `on`, `off` included.
    Bool(bool),
    /// An integer within 64 bits.
    Int(i64),
    /// Any other number; always finite.
    Float(f64),
    /// Text.
    Text(Box<str>),
    /// A list.
    List(Vec<Node>),
    /// A map; keys that are not strings are converted as JSON would (`1` → `"1"`), as sigs.k8s.io/yaml does.
    Map(Vec<(Box<str>, Node)>),
}

impl Node {
    /// The value under `key`; `None` when this is not a map or the value is null.
    pub fn field(&self, key: &str) -> Option<&Node> {
        let Node::Map(entries) = self else { return None };
        entries.iter().find(|(k, _)| &**k == key).map(|(_, v)| v).filter(|v| !matches!(v, Node::Null))
    }

    /// The string; `None` when this is another type.
    pub fn text(&self) -> Option<&str> {
        if let Node::Text(text) = self { Some(text) } else { None }
    }

    /// Number of nodes in the tree, and bytes of text. Recursion is bounded by `MANIFEST_DEPTH_MAX`.
    pub fn weigh(&self) -> (usize, usize) {
        match self {
            Node::Null | Node::Bool(_) | Node::Int(_) | Node::Float(_) => (1, 0),
            Node::Text(text) => (1, text.len()),
            Node::List(items) => items.iter().map(Self::weigh).fold((1, 0), |(n, b), (m, c)| (n + m, b + c)),
            Node::Map(entries) => entries.iter().fold((1, 0), |(n, b), (key, value)| {
                let (m, c) = value.weigh();
                (n + m + 1, b + c + key.len())
            }),
        }
    }

    /// The items; empty when this is not a list.
    pub fn items(&self) -> &[Node] {
        if let Node::List(items) = self { items } else { &[] }
    }
}

/// For messages: scalars as JSON, cut; lists and maps by their type.
impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Node::Null => f.write_str("null"),
            Node::Bool(value) => write!(f, "{value}"),
            Node::Int(value) => write!(f, "{value}"),
            Node::Float(value) => write!(f, "{value:?}"),
            Node::Text(text) => f.write_str(&quoted(text)),
            Node::List(items) => write!(f, "a list of {}", items.len()),
            Node::Map(entries) => match entries.first() {
                None => f.write_str("{}"),
                Some((key, _)) => write!(f, "a map with {}", quoted(key)),
            },
        }
    }
}

/// `text` in double quotes without control characters, cut to `PROBLEM_VALUE_CHARS_MAX`.
pub fn quoted(text: &str) -> String {
    let mut shown = String::from("\"");
    for c in text.chars().take(limits::PROBLEM_VALUE_CHARS_MAX) {
        match c {
            '"' | '\\' => shown.extend(['\\', c]),
            '\n' => shown.push_str("\\n"),
            c if c.is_control() => shown.push('\u{fffd}'),
            c => shown.push(c),
        }
    }
    let chars = text.chars().count();
    if chars > limits::PROBLEM_VALUE_CHARS_MAX {
        let _ = write!(shown, "…\" ({chars} characters)");
    } else {
        shown.push('"');
    }
    shown
}

/// What sort of error it is, in the words of apimachinery's `field.ErrorType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// None of these: the message says it all.
    Other,
    /// The field is missing or empty.
    Required,
    /// The value breaks a rule of its own, or one between fields.
    Invalid,
    /// The value is none of those that the field takes.
    NotSupported,
    /// Another item has the value.
    Duplicate,
    /// The field may not be given here.
    Forbidden,
}

impl ErrorKind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Other => "",
            Self::Required => "Required value",
            Self::Invalid => "Invalid value",
            Self::NotSupported => "Unsupported value",
            Self::Duplicate => "Duplicate value",
            Self::Forbidden => "Forbidden",
        }
    }
}

/// An invalid field of a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// `spec.containers[0].image`; empty for the document as a whole.
    pub path: String,
    /// What sort of error it is.
    pub kind: ErrorKind,
    /// The offending value as a message shows it; nothing when there is none (a missing field).
    pub value: Option<String>,
    /// The error, and the allowed values; may be empty where the kind says it.
    pub message: String,
}

impl FieldError {
    /// An error without a value.
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self::of(ErrorKind::Other, path, message)
    }

    /// An error of that kind without a value.
    pub fn of(kind: ErrorKind, path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), kind, value: None, message: message.into() }
    }

    /// An invalid value, given as it is to be shown.
    pub fn with_value(path: impl Into<String>, value: impl Into<String>, message: impl Into<String>) -> Self {
        Self { value: Some(value.into()), ..Self::of(ErrorKind::Invalid, path, message) }
    }

    /// What follows the path, as `field.Error.ErrorBody` has it: `Invalid value: 99999: must be between 1 and 65535`.
    pub fn body(&self) -> String {
        let parts = [self.kind.as_str(), self.value.as_deref().unwrap_or_default(), &self.message];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(": ")
    }
}

/// `spec.containers[0].image: Required value: the image's name`.
impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = if self.path.is_empty() { "" } else { ": " };
        write!(f, "{}{separator}{}", self.path, self.body())
    }
}

/// The errors of one document, as apimachinery's `field.ErrorList`: all of them, up to a bound.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldErrors {
    /// At most `FIELD_ERRORS_MAX`. Full: further ones are counted.
    listed: Vec<FieldError>,
    more: usize,
}

impl FieldErrors {
    /// Adds one.
    pub fn push(&mut self, error: FieldError) {
        if self.has_room() {
            self.listed.push(error);
        } else {
            self.more += 1;
        }
    }

    /// Another one is listed, not only counted.
    pub fn has_room(&self) -> bool {
        self.listed.len() < limits::FIELD_ERRORS_MAX
    }

    /// Adds all of another list's.
    pub fn append(&mut self, other: Self) {
        self.more += other.more;
        self.extend(other.listed);
    }

    /// There is none.
    pub fn is_empty(&self) -> bool {
        self.listed.is_empty()
    }

    /// Those that are listed.
    pub fn iter(&self) -> std::slice::Iter<'_, FieldError> {
        self.listed.iter()
    }

    /// Says what must be, not what is: the values are secret.
    pub fn hide_values(&mut self) {
        for error in &mut self.listed {
            error.value = None;
        }
    }
}

impl Extend<FieldError> for FieldErrors {
    fn extend<I: IntoIterator<Item = FieldError>>(&mut self, errors: I) {
        for error in errors {
            self.push(error);
        }
    }
}

impl From<FieldError> for FieldErrors {
    fn from(error: FieldError) -> Self {
        Self { listed: vec![error], more: 0 }
    }
}

impl<'a> IntoIterator for &'a FieldErrors {
    type Item = &'a FieldError;
    type IntoIter = std::slice::Iter<'a, FieldError>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// All of them; where some were counted only, the last says how many.
impl IntoIterator for FieldErrors {
    type Item = FieldError;
    type IntoIter = std::iter::Chain<std::vec::IntoIter<FieldError>, std::option::IntoIter<FieldError>>;

    fn into_iter(self) -> Self::IntoIter {
        let more = (self.more > 0).then(|| FieldError::new("", format!("and {} more errors", self.more)));
        self.listed.into_iter().chain(more)
    }
}

/// The path of a field, extended and cut while a document is walked: `spec.containers[0].ports[1].hostPort`.
#[derive(Clone, Debug, Default)]
pub struct Path(String);

impl Path {
    /// Adds a field or, where its name would be ambiguous, a key in brackets. Returns the mark for [`Path::cut`].
    pub fn push(&mut self, key: &str) -> usize {
        let mark = self.0.len();
        let letters = key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
        let plain = letters && !key.is_empty() && !key.starts_with('-');
        if plain && key.len() <= 64 {
            if mark > 0 {
                self.0.push('.');
            }
            self.0.push_str(key);
        } else {
            let short: String = key.chars().take(64).filter(|c| !c.is_control()).collect();
            self.0.push('[');
            self.0.push_str(&short);
            self.0.push_str(if short.len() < key.len() { "…]" } else { "]" });
        }
        mark
    }

    /// Adds several steps that are already formatted. Returns the mark for [`Path::cut`].
    pub fn push_shown(&mut self, path: &str) -> usize {
        let mark = self.0.len();
        if mark > 0 && !path.starts_with('[') {
            self.0.push('.');
        }
        self.0.push_str(path);
        mark
    }

    /// Adds a list's index. Returns the mark for [`Path::cut`].
    pub fn push_index(&mut self, index: usize) -> usize {
        let mark = self.0.len();
        self.0.push('[');
        self.0.push_str(&index.to_string());
        self.0.push(']');
        mark
    }

    /// Cuts back to a mark of [`Path::push`] or [`Path::push_index`].
    pub fn cut(&mut self, mark: usize) {
        self.0.truncate(mark);
    }

    /// The path as text, cut in the middle to `PROBLEM_PATH_CHARS_MAX`.
    pub fn shown(&self) -> String {
        middle_cut(&self.0, limits::PROBLEM_PATH_CHARS_MAX)
    }
}

/// A path below another, either of which may be empty.
pub fn join(above: &str, path: &str) -> String {
    let parts = [above, path].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>();
    middle_cut(&parts.join("."), limits::PROBLEM_PATH_CHARS_MAX)
}

/// `text` with `…` in its middle when it has more than `chars_max` characters.
pub fn middle_cut(text: &str, chars_max: usize) -> String {
    let chars = text.chars().count();
    if chars <= chars_max {
        return text.to_owned();
    }
    let half = chars_max / 2;
    let head: String = text.chars().take(half).collect();
    let tail: String = text.chars().skip(chars - half).collect();
    format!("{head}…{tail}")
}
