//! The update of a source: all its pods and objects, and all its problems. PURE.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use crate::decode::middle_cut;
use crate::limits;
use crate::model::annotations;
use crate::model::{DesiredPod, Object, PodKey, PodUid, Seconds, SortedSet};

/// The name of the API server's source in `SourceUpdate::source`; that of files is `source::file::NAME`, that of a URL
/// `source::http::NAME`.
pub const API: &str = annotations::OF_API;

/// File and document of a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Origin {
    /// The file's path.
    pub file: Arc<str>,
    /// The document in it, from 1.
    pub document: u32,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (document {})", shown_file(&self.file), self.document)
    }
}

/// One desired pod of a source.
#[derive(Clone, Debug)]
pub struct SourcedPod {
    /// The pod: defaulted, validated, with its identity.
    pub pod: DesiredPod,
    /// Its file and document.
    pub origin: Origin,
    /// The hash of its whole manifest: the same hash means the same desired state.
    pub config_hash: Box<str>,
    /// Its memory (`manifest::cost`).
    pub bytes: usize,
}

/// One ConfigMap or Secret of a source.
#[derive(Clone, Debug)]
pub struct SourcedObject {
    /// The object.
    pub object: Object,
    /// Its file and document.
    pub origin: Origin,
}

/// The full state of a source.
#[derive(Clone, Debug)]
pub struct SourceUpdate {
    /// The source's name: `file`, `http` or `api`.
    pub source: &'static str,
    /// Every pod of every valid document, in the order of files and documents. Pods of a manifest that became invalid are
    /// missing: `Desired` holds the running ones, because `complete` is false.
    pub pods: Vec<SourcedPod>,
    /// Every ConfigMap and Secret of every valid document, in the same order; missing ones are held as pods are.
    pub objects: Vec<SourcedObject>,
    /// All current problems; those with `Problem::fresh` were not reported before.
    pub problems: Vec<Problem>,
    /// Everything was readable and valid. When false, a pod that is missing from `pods` may still be desired.
    pub complete: bool,
    /// Memory that the source holds.
    pub held: SourceUsage,
    /// Further pods of an API server; empty for files.
    pub server: ServerPods,
}

/// Pods of an API server that are bound to this node, besides the desired ones.
#[derive(Clone, Debug, Default)]
pub struct ServerPods {
    /// Pods to terminate, and then to delete in the API.
    pub ending: Vec<EndingPod>,
    /// Pods that cannot run here, and get a status that says so.
    pub refused: Vec<RefusedPod>,
    /// Desired pods that are Succeeded or Failed in the API: they are not started here, and do not count for the node's capacity.
    /// At most `limits::ENDED_PODS_MAX`.
    pub over: SortedSet<PodUid>,
    /// Desired pods whose statuses another client has changed: they are sent again.
    pub changed: SortedSet<PodUid>,
    /// Mirror pods of static pods: nothing runs for them.
    pub mirrors: Vec<MirrorPod>,
}

/// A mirror pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorPod {
    /// Its key; the UID is the mirror pod's own.
    pub key: PodKey,
    /// Its manifest's hash, cut at `limits::MIRROR_HASH_BYTES_MAX`.
    pub hash: Box<str>,
    /// It has a deletionTimestamp.
    pub deleted: bool,
    /// Another client has changed its status: it is sent again.
    pub changed: bool,
}

/// A pod with a deletionTimestamp.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndingPod {
    /// Its key.
    pub key: PodKey,
    /// `metadata.deletionGracePeriodSeconds`.
    pub grace: Seconds,
}

/// A pod that this node rejects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedPod {
    /// Its key.
    pub key: PodKey,
    /// `status.reason` (`OutOfmemory`, `NodeAffinity` ...).
    pub reason: Cow<'static, str>,
    /// `status.message`.
    pub message: Box<str>,
    /// `metadata.generation` of the rejected pod, for `status.observedGeneration`.
    pub generation: Option<i64>,
}

/// What a source holds between two updates, to be shown beside its limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceUsage {
    /// Memory of the pods, ConfigMaps and Secrets (`manifest::cost`, `object::cost`).
    pub pod_bytes: usize,
    /// Number of problems.
    pub problems: usize,
    /// Memory of the problems.
    pub problem_bytes: usize,
}

/// A problem of a manifest; shown as one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file, or the directory.
    pub file: Arc<str>,
    /// The document, from 1; `None` when it concerns the whole file.
    pub document: Option<u32>,
    /// `NAMESPACE/NAME` as in the manifest, when known.
    pub pod: Option<Box<str>>,
    /// `KIND NAMESPACE/NAME` of a ConfigMap or Secret, if it is about one.
    pub object: Option<Box<str>>,
    /// The field's path.
    pub field: Option<Box<str>>,
    /// The invalid value, if any, and the error.
    pub message: Box<str>,
    /// Not reported before: to be logged once.
    pub fresh: bool,
}

impl Problem {
    /// A problem of a whole file or directory.
    pub fn of_file(file: &Arc<str>, message: impl Into<Box<str>>) -> Self {
        Self {
            file: file.clone(),
            document: None,
            pod: None,
            object: None,
            field: None,
            message: message.into(),
            fresh: true,
        }
    }

    /// Its memory; the file's name is shared.
    pub fn bytes(&self) -> usize {
        let text = |part: &Option<Box<str>>| part.as_ref().map_or(0, |part| part.len());
        size_of::<Self>() + text(&self.pod) + text(&self.object) + text(&self.field) + self.message.len()
    }

    /// Whether it is the same problem, reported or not.
    pub fn same_as(&self, other: &Problem) -> bool {
        (&self.file, self.document, &self.pod, &self.object, &self.field, &self.message)
            == (&other.file, other.document, &other.pod, &other.object, &other.field, &other.message)
    }
}

/// `FILE: document 2: pod default/web: spec.containers[0].image: message`.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", shown_file(&self.file))?;
        if let Some(document) = self.document {
            write!(f, ": document {document}")?;
        }
        if let Some(pod) = &self.pod {
            write!(f, ": pod {pod}")?;
        }
        if let Some(object) = &self.object {
            write!(f, ": {object}")?;
        }
        if let Some(field) = &self.field {
            write!(f, ": {field}")?;
        }
        write!(f, ": {}", self.message)
    }
}

/// A file's name for messages: without control characters, cut in the middle.
pub(crate) fn shown_file(file: &str) -> String {
    let clean: String = file.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    middle_cut(&clean, limits::PROBLEM_PATH_CHARS_MAX)
}
