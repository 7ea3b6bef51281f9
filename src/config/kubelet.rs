//! Parses a KubeletConfiguration file (kubelet.config.k8s.io/v1beta1) and the kubelet's flags for its fields.
//!
//! Both are parsed by the table in [`super::fields`]. Fields that would be ignored are refused: every such field is named in one
//! message.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::ConfigError;
use super::fields::{self, Answer, Field};
use crate::decode::{Node, Path as FieldPath, typed, yaml};
use crate::filesystem::read_linked;
use crate::limits;

/// The fields that are set, each once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FileSettings(Vec<(Field, Node)>);

/// An entry of `shutdownGracePeriodByPodPriority`.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PodPriority {
    pub(super) priority: i32,
    pub(super) shutdown_grace_period_seconds: i64,
}

impl FileSettings {
    /// Reads and checks the file.
    ///
    /// # Errors
    /// One sentence that names the file, and every field that is unknown, not supported or of the wrong type.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let fail = |what: String| ConfigError(format!("{}: {what}", path.display()));
        let unread = |e: io::Error| fail(format!("cannot be read: {e}"));
        // Checked before it is opened: opening a FIFO would wait for its writer.
        if !std::fs::metadata(path).map_err(unread)?.is_file() {
            return Err(fail(
                "is no regular file; name a KubeletConfiguration file with --config".to_owned(),
            ));
        }
        let max = limits::CONFIG_FILE_BYTES_MAX;
        let bytes = read_linked(path, max).map_err(|error| match error.kind() {
            io::ErrorKind::FileTooLarge => fail(format!("is too large: at most {max} bytes are read")),
            _ => unread(error),
        })?;
        Self::parse(&bytes).map_err(fail)
    }

    /// Parses the file's only document.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let mut documents: Vec<Node> = Vec::new();
        let mut failed = None;
        let whole = yaml::documents(bytes, |_, document| match document {
            Ok(document) => documents.push(document),
            Err(error) => failed = Some(error),
        });
        if let Some(error) = whole.err().or(failed) {
            return Err(format!("line {}: {}", error.line, error.message));
        }
        let [Node::Map(entries)] = documents.as_mut_slice() else {
            return Err("must hold one KubeletConfiguration document".to_owned());
        };
        let mut entries = std::mem::take(entries);
        for (name, fixed) in
            [("kind", "KubeletConfiguration"), ("apiVersion", "kubelet.config.k8s.io/v1beta1")]
        {
            let at = entries.iter().position(|(key, _)| &**key == name);
            let given = at.map_or(Node::Null, |at| entries.swap_remove(at).1);
            if given.text() != Some(fixed) {
                return Err(format!("{name}: {given}: must be {fixed}"));
            }
        }
        let (mut settings, mut problems) = (Self::default(), Vec::new());
        settings.take(entries, "", &mut problems);
        if problems.is_empty() { Ok(settings) } else { Err(problems.join("; ")) }
    }

    /// Reads the fields of an object; `above` is its path and a dot.
    fn take(&mut self, entries: Vec<(Box<str>, Node)>, above: &str, problems: &mut Vec<String>) {
        for (key, value) in entries {
            if problems.len() == limits::PROBLEMS_PER_FILE_MAX {
                return;
            }
            let path = format!("{above}{key}");
            let Some(field) = fields::fields().find(|field| field.path == path) else {
                let below = format!("{path}.");
                match value {
                    _ if !fields::fields().any(|field| field.path.starts_with(&below)) => {
                        let mend = match fields::nearest(&path) {
                            Some(meant) => format!("did you mean {meant}?"),
                            None => "remove it or correct its name".to_owned(),
                        };
                        let mut shown = FieldPath::default();
                        shown.push_shown(above.trim_end_matches('.'));
                        shown.push(&key);
                        problems.push(format!("{}: unknown field; {mend}", shown.shown()));
                    }
                    Node::Map(entries) => self.take(entries, &below, problems),
                    Node::Null => {}
                    other => problems.push(format!("{path}: {other}: must be an object")),
                }
                continue;
            };
            if value == Node::Null {
                continue;
            }
            let shown = value.to_string();
            let read = field.read(value).ok_or_else(|| field.rule().to_owned());
            if let Err(why) = read.and_then(|value| self.set(field, value)) {
                let shown = if field.is_secret() { String::new() } else { format!("{shown}: ") };
                problems.push(format!("{path}: {shown}{why}"));
            }
        }
    }

    /// Sets the value of a kubelet flag. Lists and maps that are given in several flags are joined.
    pub(super) fn take_flag(&mut self, field: Field, text: &str) -> Result<(), ConfigError> {
        let value = field.of_text(text).and_then(|mut value| {
            let before = self.0.iter_mut().find(|(of, _)| *of == field).map(|(_, before)| before);
            match (before, &mut value) {
                (Some(Node::List(before)), Node::List(more)) => more.splice(..0, before.drain(..)).count(),
                (Some(Node::Map(before)), Node::Map(more)) => more.splice(..0, before.drain(..)).count(),
                _ => 0,
            };
            self.set(field, value)
        });
        let shown = if field.is_secret() { String::new() } else { format!("{text:?}: ") };
        value.map_err(|why| ConfigError(format!("--{}: {shown}{why}", field.flag)))
    }

    /// Overrides the fields that `flags` set (`kubeletConfigFlagPrecedence`).
    pub(super) fn take_stronger(&mut self, flags: FileSettings) {
        for (field, value) in flags.0 {
            self.put(field, value);
        }
    }

    /// Sets the fields of `defaults` that are not set.
    pub(super) fn take_weaker(&mut self, defaults: FileSettings) {
        for (field, value) in defaults.0 {
            if !self.0.iter().any(|(of, _)| *of == field) {
                self.put(field, value);
            }
        }
    }

    fn set(&mut self, field: Field, value: Node) -> Result<(), String> {
        if let Some(why) = field.refusal(&value) {
            return Err(why);
        }
        self.put(field, value);
        Ok(())
    }

    fn put(&mut self, field: Field, value: Node) {
        self.0.retain(|(of, _)| *of != field);
        self.0.push((field, value));
    }

    /// The fields to show: without those equivalent to their defaults, and with secret parts masked.
    pub(super) fn shown(mut self) -> Self {
        self.0.retain(|(field, value)| field.answer != Answer::Fixed && !field.is_default(value));
        for (field, value) in &mut self.0 {
            *value = field.masked(std::mem::replace(value, Node::Null));
        }
        self.0.sort_by_key(|(field, _)| field.path);
        self
    }

    /// The value, if set.
    pub(super) fn node(&self, path: &str) -> Option<&Node> {
        // A name that the table does not have would never be set.
        debug_assert!(fields::fields().any(|field| field.path == path), "{path}");
        self.0.iter().find(|(field, _)| field.path == path).map(|(_, value)| value)
    }

    pub(super) fn text(&self, path: &str) -> Option<&str> {
        self.node(path)?.text()
    }

    pub(super) fn path(&self, path: &str) -> Option<PathBuf> {
        self.text(path).map(PathBuf::from)
    }

    pub(super) fn bool(&self, path: &str) -> Option<bool> {
        if let Node::Bool(value) = self.node(path)? { Some(*value) } else { None }
    }

    pub(super) fn long(&self, path: &str) -> Option<i64> {
        if let Node::Int(value) = self.node(path)? { Some(*value) } else { None }
    }

    pub(super) fn int(&self, path: &str) -> Option<i32> {
        i32::try_from(self.long(path)?).ok()
    }

    pub(super) fn time(&self, path: &str) -> Option<GoDuration> {
        parse_go_duration(self.text(path)?).map(GoDuration)
    }

    pub(super) fn texts(&self, path: &str) -> Vec<String> {
        let items = self.node(path).map(Node::items).unwrap_or_default();
        items.iter().filter_map(|item| item.text().map(str::to_owned)).collect()
    }

    pub(super) fn map(&self, path: &str) -> Option<BTreeMap<String, String>> {
        let Node::Map(entries) = self.node(path)? else { return None };
        let text = |value: &Node| value.text().unwrap_or_default().to_owned();
        Some(entries.iter().map(|(key, value)| (key.to_string(), text(value))).collect())
    }

    /// A list of objects.
    pub(super) fn list<T: DeserializeOwned>(&self, path: &str) -> Result<Vec<T>, ConfigError> {
        let Some(node) = self.node(path) else { return Ok(Vec::new()) };
        let mut at = FieldPath::default();
        at.push_shown(path);
        typed::read(node, at).map_err(|errors| {
            let one = |error: &crate::decode::FieldError| match &error.value {
                Some(value) => format!("{}: {value}: {}", error.path, error.message),
                None => format!("{}: {}", error.path, error.message),
            };
            ConfigError(errors.iter().map(one).collect::<Vec<_>>().join("; "))
        })
    }
}

/// A duration as Go writes it (`metav1.Duration`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GoDuration(pub(super) Duration);

impl GoDuration {
    /// The given duration, where 0 means the default (`zeroDuration`).
    pub(super) fn or(given: Option<Self>, default: Duration) -> Duration {
        given.map(|given| given.0).filter(|given| !given.is_zero()).unwrap_or(default)
    }
}

/// Go's `time.ParseDuration` for durations that are not negative: `1h30m`, `1.5s`, `100ms`, `0`.
pub(crate) fn parse_go_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    if text.is_empty() {
        return None;
    }
    let (mut rest, mut nanos) = (text, 0_f64);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit_end = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        let unit = match &rest[..unit_end] {
            "ns" => 1.0,
            "us" | "µs" | "μs" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            "m" => 60e9,
            "h" => 3600e9,
            _ => return None,
        };
        nanos += number * unit;
        rest = &rest[unit_end..];
    }
    Duration::try_from_secs_f64(nanos / 1e9).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_durations() {
        for (text, expected) in [
            ("20s", Some(Duration::from_secs(20))),
            ("1m30s", Some(Duration::from_secs(90))),
            ("1.5s", Some(Duration::from_millis(1500))),
            ("100ms", Some(Duration::from_millis(100))),
            ("2h", Some(Duration::from_hours(2))),
            ("0", Some(Duration::ZERO)),
            ("", None),
            ("5", None),
            ("-1s", None),
            ("1x", None),
            ("s", None),
        ] {
            assert_eq!(parse_go_duration(text), expected, "{text:?}");
        }
    }
}
