//! Parses the bytes of one manifest file into its pods and problems: decoding, identity, defaults and validation. PURE.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;

use super::identity::{self, ManifestKind, NodeName};
use super::{Problem, defaults, object, validate};
use crate::decode::{ErrorKind, FieldError, FieldErrors, Node, Path, join, middle_cut, quoted, typed, yaml};
use crate::limits;
use crate::model::annotations::{CONFIG_SEEN, CONFIG_SOURCE};
use crate::model::packed::{self, PodManifest, leave_out};
use crate::model::{NanoFixed, Object, ObjectKind, Wall};

/// A valid pod of a file. Holds no `Rc`, because files are read on another thread.
#[derive(Clone, Debug)]
pub struct ManifestPod {
    /// Defaulted, validated, with its identity.
    pub pod: Pod,
    /// Its document in the file, from 1.
    pub document: u32,
    /// The hash of its whole manifest.
    pub config_hash: Box<str>,
    /// Memory, as [`cost`] estimates it.
    pub bytes: usize,
}

/// A valid ConfigMap or Secret of a file.
#[derive(Clone, Debug)]
pub struct ManifestObject {
    /// The object.
    pub object: Object,
    /// Its document in the file, from 1.
    pub document: u32,
}

/// The result of parsing one file.
#[derive(Clone, Debug, Default)]
pub struct ParsedFile {
    /// The valid pods, in the order of the documents.
    pub pods: Vec<ManifestPod>,
    /// The valid ConfigMaps and Secrets, in the same order.
    pub objects: Vec<ManifestObject>,
    /// The problems, in the order of the documents; at most `PROBLEMS_PER_FILE_MAX`.
    pub problems: Vec<Problem>,
    /// Memory of all of them, as [`cost`] and `object::cost` estimate it.
    pub bytes: usize,
}

/// Memory of a typed pod in bytes, estimated from its tree, rather overestimated.
pub fn cost(pod: &Node) -> usize {
    const POD: usize = 3 * 1024;
    const VOLUME: usize = 3328;
    const MAP: usize = 512;
    const OTHER: usize = 32;
    fn values(node: &Node) -> usize {
        match node {
            Node::Null | Node::Bool(_) | Node::Int(_) | Node::Float(_) => OTHER,
            Node::Text(text) => OTHER + text.len(),
            Node::List(items) => OTHER + items.iter().map(values).sum::<usize>(),
            Node::Map(entries) => {
                MAP + entries.iter().map(|(key, value)| key.len() + values(value)).sum::<usize>()
            }
        }
    }
    let items =
        |field| pod.field("spec").and_then(|spec| spec.field(field)).map_or(0, |list| list.items().len());
    let containers = items("containers") + items("initContainers") + items("ephemeralContainers");
    POD + containers * limits::CONTAINER_BYTES + items("volumes") * VOLUME + values(pod)
}

/// Memory of an idle pod of an API server: its object when that is small, else its text (`packed`). An allowance for its
/// containers and volumes while they are started is included in part, which bounds the number of desired pods.
fn packed_cost(pod: &Pod, tree: &Node) -> usize {
    const RECORD: usize = 1024;
    const VOLUME: usize = 1024;
    fn text(node: &Node) -> usize {
        match node {
            Node::Null | Node::Bool(_) | Node::Int(_) | Node::Float(_) => 8,
            Node::Text(text) => 3 + text.len(),
            Node::List(items) => 3 + items.iter().map(text).sum::<usize>(),
            Node::Map(entries) => {
                3 + entries.iter().map(|(key, value)| 4 + key.len() + text(value)).sum::<usize>()
            }
        }
    }
    let opened = packed::opened_bytes(pod);
    if opened <= limits::POD_OPENED_BYTES {
        // Its long strings (arguments, scripts) are in the text once.
        return RECORD + opened + text(tree);
    }
    let (mut containers, mut volumes) = (0, 0);
    if let Some(spec) = &pod.spec {
        let others =
            [spec.init_containers.as_ref().map(Vec::len), spec.ephemeral_containers.as_ref().map(Vec::len)];
        containers = spec.containers.len() + others.into_iter().flatten().sum::<usize>();
        volumes = spec.volumes.as_ref().map_or(0, Vec::len);
    }
    RECORD + containers * limits::CONTAINER_BYTES + volumes * VOLUME + text(tree)
}

/// Parses the manifest in `bytes`, called `file`, for `node`. `seen` becomes the pods' `config.seen`. Its content may take `room`
/// bytes of memory; what does not fit is refused.
///
/// Never fails as a whole: an invalid document becomes a problem, the others become pods.
pub fn parse(file: &Arc<str>, bytes: &[u8], node: &NodeName, seen: Wall, room: usize) -> ParsedFile {
    parse_as(ManifestKind::File, file, bytes, node, seen, room)
}

/// The same for a manifest that need not be a file.
pub fn parse_as(
    kind: ManifestKind<'_>,
    file: &Arc<str>,
    bytes: &[u8],
    node: &NodeName,
    seen: Wall,
    room: usize,
) -> ParsedFile {
    let mut reader = FileReader { kind, file, node, seen, room, parsed: ParsedFile::default(), left_off: 0 };
    let mut empty = true;
    let outcome = yaml::documents(bytes, |document, outcome| {
        empty = false;
        match outcome {
            Ok(tree) => reader.document(document, tree),
            Err(error) => {
                let message = format!("line {}: {}", error.line, error.message);
                reader.report(Some(document), Of::Document, FieldError::new("", message));
            }
        }
    });
    match outcome {
        Ok(()) if empty => {
            // Not "no pods": an editor or a copy may just have truncated the file, and a full disk leaves such files.
            let message = "is empty; to stop its pods, remove the file";
            reader.report(None, Of::Document, FieldError::new("", message));
        }
        Ok(()) => {}
        Err(error) => {
            let message = format!("line {}: {}", error.line, error.message);
            reader.report(None, Of::Document, FieldError::new("", message));
        }
    }
    reader.finish()
}

/// Parses a pod that an API server has bound to this node: it has its identity and its defaults already. Fields of its status are
/// ignored, and so are fields that change with each of its versions; both are removed from the tree.
///
/// # Errors
/// What this version does not do, by field.
pub fn bound(tree: &mut Node, node: &NodeName, seen: Wall) -> Result<ManifestPod, FieldErrors> {
    if let Node::Map(entries) = tree {
        entries.retain(|(key, _)| &**key != "status");
    }
    leave_out(tree, "metadata", "resourceVersion");
    let tree = &*tree;
    let too_many = too_many(tree);
    if !too_many.is_empty() {
        return Err(too_many);
    }
    let read = typed::read_known::<PodManifest>(tree, Path::default())?;
    let mut pod = Pod { metadata: read.metadata, spec: read.spec, status: None };
    let errors = validate::bound(&pod);
    if !errors.is_empty() {
        return Err(errors);
    }
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(CONFIG_SOURCE.to_owned(), super::API.to_owned());
    annotations.insert(CONFIG_SEEN.to_owned(), NanoFixed(seen).to_string());
    let config_hash = identity::identity(ManifestKind::File, node, tree).config_hash.into();
    let bytes = packed_cost(&pod, tree);
    Ok(ManifestPod { pod, document: 1, config_hash, bytes })
}

/// The subject of an error.
#[derive(Clone, Copy)]
enum Of<'a> {
    /// The document, or the whole file.
    Document,
    /// The pod of that name, `NAMESPACE/NAME`.
    Pod(&'a str),
    /// The ConfigMap or Secret, `KIND NAMESPACE/NAME`.
    Object(&'a str),
}

struct FileReader<'a> {
    kind: ManifestKind<'a>,
    file: &'a Arc<str>,
    node: &'a NodeName,
    seen: Wall,
    room: usize,
    parsed: ParsedFile,
    left_off: usize,
}

impl FileReader<'_> {
    fn report(&mut self, document: Option<u32>, of: Of<'_>, error: FieldError) {
        if self.parsed.problems.len() + 1 >= limits::PROBLEMS_PER_FILE_MAX {
            self.left_off += 1;
            return;
        }
        let message = error.body();
        self.parsed.problems.push(Problem {
            file: self.file.clone(),
            document,
            pod: if let Of::Pod(name) = of { Some(name.into()) } else { None },
            object: if let Of::Object(name) = of { Some(name.into()) } else { None },
            field: Some(error.path).filter(|path| !path.is_empty()).map(Box::from),
            message: message.into(),
            fresh: true,
        });
    }

    fn finish(mut self) -> ParsedFile {
        if self.left_off > 0 {
            let message = format!("{} more problems in this file", self.left_off);
            self.parsed.problems.push(Problem::of_file(self.file, message));
        }
        self.parsed
    }

    /// A document: one object, or a list of objects.
    fn document(&mut self, document: u32, tree: Node) {
        if !matches!(tree, Node::Map(_)) {
            let error = FieldError::with_value(
                "",
                tree.to_string(),
                "is no Kubernetes object; expected kind: Pod, ConfigMap or Secret",
            );
            return self.report(Some(document), Of::Document, error);
        }
        let kind: Box<str> = tree.field("kind").and_then(Node::text).unwrap_or_default().into();
        match &*kind {
            "Pod" => self.pod(document, tree, &Path::default()),
            "List" | "PodList" => self.list(document, tree, &kind),
            kind => match object::kind(kind) {
                Some(kind) => self.object(document, kind, &tree, &Path::default()),
                None => self.report(Some(document), Of::Document, kind_error("", &tree)),
            },
        }
    }

    fn list(&mut self, document: u32, tree: Node, kind: &str) {
        if let Some(error) = version_error("", &tree) {
            return self.report(Some(document), Of::Document, error);
        }
        let Node::Map(entries) = tree else { return };
        let mut items = None;
        for (key, value) in entries {
            match (&*key, value) {
                ("items", Node::List(list)) => items = Some(list),
                ("apiVersion" | "kind" | "metadata" | "items", _) => {}
                (key, _) => {
                    let mut at = Path::default();
                    at.push(key);
                    let error = FieldError::new(at.shown(), "unknown field; a List has items only");
                    self.report(Some(document), Of::Document, error);
                }
            }
        }
        let Some(items) = items else {
            let error = FieldError::of(ErrorKind::Required, "items", "the list's objects");
            return self.report(Some(document), Of::Document, error);
        };
        for (index, item) in items.into_iter().enumerate() {
            let mut at = Path::default();
            at.push("items");
            at.push_index(index);
            // The items of a PodList may omit `apiVersion` and `kind`, as those of the API server do.
            let bare = kind == "PodList" && item.field("kind").is_none();
            if bare || item.field("kind").and_then(Node::text) == Some("Pod") {
                self.pod(document, item, &at);
            } else if let Some(kind) = item.field("kind").and_then(Node::text).and_then(object::kind) {
                self.object(document, kind, &item, &at);
            } else {
                self.report(Some(document), Of::Document, kind_error(&at.shown(), &item));
            }
        }
    }

    fn object(&mut self, document: u32, kind: ObjectKind, tree: &Node, at: &Path) {
        let shown_at = at.shown();
        let name = tree.field("metadata").and_then(|m| m.field("name")).and_then(Node::text);
        let called = format!("{kind} {}/{}", identity::namespace(tree), name.unwrap_or_default());
        let called = middle_cut(&called, limits::PROBLEM_POD_CHARS_MAX).replace(char::is_control, "\u{fffd}");
        let read = match version_error("", tree) {
            Some(error) => Err(error.into()),
            None => object::read(kind, tree),
        };
        let errors = match read {
            Ok(object) => {
                let bytes = object::cost(&object);
                if self.parsed.bytes + bytes <= self.room {
                    self.parsed.bytes += bytes;
                    return self.parsed.objects.push(ManifestObject { object, document });
                }
                FieldError::new("", does_not_fit(bytes)).into()
            }
            Err(errors) => errors,
        };
        for mut error in errors {
            error.path = join(&shown_at, &error.path);
            self.report(Some(document), Of::Object(&called), error);
        }
    }

    fn pod(&mut self, document: u32, mut tree: Node, at: &Path) {
        // What a manifest says of a status is not looked at (`applyDefaults` sets it anew), however much it is.
        if let Node::Map(entries) = &mut tree {
            entries.retain(|(key, _)| &**key != "status");
        }
        let tree = &tree;
        let name = tree.field("metadata").and_then(|m| m.field("name")).and_then(Node::text);
        let called = name.map(|name| {
            middle_cut(&format!("{}/{name}", identity::namespace(tree)), limits::PROBLEM_POD_CHARS_MAX)
                .replace(char::is_control, "\u{fffd}")
        });
        let called = called.as_deref().map_or(Of::Document, Of::Pod);
        let errors = match self.valid_pod(document, tree) {
            Ok(pod) if self.parsed.bytes + pod.bytes <= self.room => {
                self.parsed.bytes += pod.bytes;
                return self.parsed.pods.push(pod);
            }
            Ok(pod) => FieldError::new("", does_not_fit(pod.bytes)).into(),
            Err(errors) => errors,
        };
        let shown_at = at.shown();
        for mut error in errors {
            error.path = join(&shown_at, &error.path);
            self.report(Some(document), called, error);
        }
    }

    /// The pod in `tree`, or all that is wrong with it; paths begin at the pod.
    fn valid_pod(&self, document: u32, tree: &Node) -> Result<ManifestPod, FieldErrors> {
        // Of another version its fields are not known.
        if (tree.field("kind").is_some() || tree.field("apiVersion").is_some())
            && let Some(error) = version_error("", tree)
        {
            return Err(error.into());
        }
        let too_many = too_many(tree);
        if !too_many.is_empty() {
            return Err(too_many);
        }
        let typed::Decoded { value, mut errors, unread } =
            typed::read_all::<PodManifest>(tree, Path::default());
        let Some(read) = value else { return Err(errors) };
        let mut pod = Pod { metadata: read.metadata, spec: read.spec, status: None };
        let identity = identity::identity(self.kind, self.node, tree);
        errors.append(validate::as_written(&pod, self.node, &unread));
        let has_spec = pod.spec.is_some();
        identity::apply(self.kind, &mut pod, &identity, self.node, self.seen);
        defaults::set(&mut pod);
        // A missing level is reported once, not for each field below it.
        pod.spec = pod.spec.filter(|_| has_spec);
        errors.append(validate::pod(&pod, &unread));
        if errors.is_empty() {
            let config_hash = identity.config_hash.into();
            Ok(ManifestPod { pod, document, config_hash, bytes: cost(tree) })
        } else {
            Err(errors)
        }
    }
}

fn does_not_fit(bytes: usize) -> String {
    let max = limits::PODS_BYTES_MAX;
    format!(
        "does not fit: all pods, ConfigMaps and Secrets together may take {max} bytes, this one some {bytes}"
    )
}

/// Values, and lists whose items are large once typed, are counted before they are.
fn too_many(tree: &Node) -> FieldErrors {
    let mut errors = FieldErrors::default();
    let (nodes, _) = tree.weigh();
    if nodes > limits::POD_NODES_MAX {
        let message = format!("has {nodes} values; a pod may have {}", limits::POD_NODES_MAX);
        errors.push(FieldError::new("", message));
    }
    let containers = limits::CONTAINERS_PER_LIST_MAX;
    for (field, max) in [
        ("containers", containers),
        ("initContainers", containers),
        ("ephemeralContainers", containers),
        ("volumes", limits::VOLUMES_PER_POD_MAX),
    ] {
        let list = tree.field("spec").and_then(|spec| spec.field(field));
        let items = list.map_or(0, |list| list.items().len());
        if items > max {
            let message = format!("must have at most {max} items");
            errors.push(FieldError::with_value(format!("spec.{field}"), items.to_string(), message));
        }
    }
    errors
}

fn kind_error(at: &str, tree: &Node) -> FieldError {
    let path = if at.is_empty() { "kind".to_owned() } else { format!("{at}.kind") };
    match tree.field("kind") {
        None => FieldError::of(ErrorKind::Required, path, "Pod, ConfigMap, Secret or List"),
        Some(Node::Text(kind)) if matches!(&**kind, "List" | "PodList") => FieldError::with_value(
            path,
            quoted(kind),
            "a list in a list is not read; put its objects into one list",
        ),
        Some(Node::Text(kind)) => FieldError::with_value(
            path,
            quoted(kind),
            "must be Pod, ConfigMap, Secret or List; other kinds need a Kubernetes API server",
        ),
        Some(other) => {
            FieldError::with_value(path, other.to_string(), "must be Pod, ConfigMap, Secret or List")
        }
    }
}

fn version_error(at: &str, tree: &Node) -> Option<FieldError> {
    let path = if at.is_empty() { "apiVersion".to_owned() } else { format!("{at}.apiVersion") };
    match tree.field("apiVersion") {
        None => Some(FieldError::of(ErrorKind::Required, path, "v1")),
        Some(Node::Text(version)) if &**version == "v1" => None,
        Some(other) => Some(FieldError::with_value(path, other.to_string(), "must be v1")),
    }
}
