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
use crate::text::decimal;

/// What k3s writes for its own kubelet, in the directory of its owner's files.
const K3S_DEFAULTS: &str = "00-k3s-defaults.conf";

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

    /// Reads the files of a directory over these settings (`mergeKubeletConfigurations`): a list takes the place of another one, maps
    /// are merged. [`K3S_DEFAULTS`] is none of the owner's.
    ///
    /// # Errors
    /// The same, and that the directory cannot be read or has too many of them.
    pub(super) fn take_directory(&mut self, dir: &Path) -> Result<(), ConfigError> {
        if !dir.is_dir() {
            return Err(ConfigError(format!("{}: is no directory", dir.display())));
        }
        let mut files = files_in(dir, &["conf"]).map_err(ConfigError)?;
        files.retain(|path| !path.ends_with(K3S_DEFAULTS));
        for path in files {
            for (field, value) in Self::read(&path)?.0 {
                self.merge(field, value);
            }
        }
        Ok(())
    }

    /// Sets the field, of a map its keys.
    fn merge(&mut self, field: Field, mut value: Node) {
        let before = self.0.iter_mut().find(|(of, _)| *of == field).map(|(_, before)| before);
        if let (Some(Node::Map(before)), Node::Map(more)) = (before, &mut value) {
            let kept = before.drain(..).filter(|(key, _)| more.iter().all(|(other, _)| other != key));
            let kept: Vec<_> = kept.collect();
            more.splice(..0, kept);
        }
        self.put(field, value);
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

/// Files of a directory with one of these extensions, by their names; none when it is not there. At most `limits::CONFIG_FILES_MAX`.
///
/// # Errors
/// A sentence that names the directory: it cannot be read, or has more of them.
pub fn files_in(dir: &Path, extensions: &[&str]) -> Result<Vec<PathBuf>, String> {
    let fail = |why: &dyn std::fmt::Display| format!("{}: {why}", dir.display());
    let entries = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|error| fail(&error))?,
    };
    let max = limits::CONFIG_FILES_MAX;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(|error| fail(&error))?.path();
        if path.extension().is_some_and(|of| extensions.iter().any(|one| of.eq_ignore_ascii_case(one))) {
            if files.len() == max {
                return Err(fail(&format!("has more than {max} files")));
            }
            files.push(path);
        }
    }
    files.sort_unstable();
    Ok(files)
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
        let number = decimal(&rest[..digits])?;
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
    fn files_of_a_directory_count_by_their_names() {
        let dir = std::env::temp_dir().join(format!("smolet-config-dir-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
        for (name, text) in [
            ("20-gc.conf", "maxPods: 30\nevictionHard: {memory.available: 5%}\nclusterDNS: [10.0.0.2]\n"),
            ("10-gc.conf", "maxPods: 20\nevictionHard: {memory.available: 1%, nodefs.available: 7%}\n"),
            ("00-k3s-defaults.conf", "maxPods: 10\npodCIDR: 10.0.0.0/24\n"),
            ("notes.txt", "maxPods: 9\n"),
        ] {
            std::fs::write(dir.join(name), format!("{head}{text}")).unwrap();
        }
        let mut settings =
            FileSettings::parse(format!("{head}clusterDNS: [10.0.0.1]\ncpuCFSQuota: false\n").as_bytes())
                .unwrap();
        let taken = settings.take_directory(&dir);
        std::fs::write(dir.join("30.conf"), "maxPods: 1\n").unwrap();
        let wrong = settings.clone().take_directory(&dir).unwrap_err().to_string();
        let absent = settings.clone().take_directory(&dir.join("absent")).unwrap_err().to_string();
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(taken, Ok(()));
        assert_eq!((settings.int("maxPods"), settings.bool("cpuCFSQuota")), (Some(30), Some(false)));
        assert_eq!(settings.texts("clusterDNS"), ["10.0.0.2"]);
        let hard = settings.map("evictionHard").unwrap();
        let hard: Vec<String> = hard.iter().map(|(signal, at)| format!("{signal}<{at}")).collect();
        assert_eq!(hard, ["memory.available<5%", "nodefs.available<7%"]);
        assert!(wrong.contains("30.conf: kind: null: must be KubeletConfiguration"), "{wrong}");
        assert!(absent.contains("absent: is no directory"), "{absent}");
    }

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
