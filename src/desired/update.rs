//! What a source hands over: all pods and objects that it wants, and all that is wrong with them. PURE.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use crate::decode::middle_cut;
use crate::limits;
use crate::model::annotations;
use crate::model::{DesiredPod, Object, PodKey, PodUid, Seconds, SortedSet};

/// The name of the source that an API server is, in `SourceUpdate::source`; of files, `source::file::NAME`, and of a URL, `source::http::NAME`.
pub const API: &str = annotations::OF_API;

/// Where in which file a pod stands.
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

/// One pod a source wants.
#[derive(Clone, Debug)]
pub struct SourcedPod {
    /// The pod: defaulted, validated, with its identity.
    pub pod: DesiredPod,
    /// Where it was read.
    pub origin: Origin,
    /// The hash of its whole manifest: the same hash means the same wish.
    pub config_hash: Box<str>,
    /// Memory it takes (`manifest::cost`).
    pub bytes: usize,
}

/// One ConfigMap or Secret of a source.
#[derive(Clone, Debug)]
pub struct SourcedObject {
    /// The object.
    pub object: Object,
    /// Where it was read.
    pub origin: Origin,
}

/// What a source wants and what is wrong with it; always all of it.
#[derive(Clone, Debug)]
pub struct SourceUpdate {
    /// The source's name: `file`, `http` or `api`.
    pub source: &'static str,
    /// Every pod of every valid document, in the order of files and documents. Pods of a manifest that became
    /// invalid are not here: `Desired` keeps what ran, since `complete` is false.
    pub pods: Vec<SourcedPod>,
    /// Every ConfigMap and Secret of every valid document, in the same order; what is missing here is held as pods are.
    pub objects: Vec<SourcedObject>,
    /// Everything that is wrong now; `Problem::fresh` tells what was not yet said.
    pub problems: Vec<Problem>,
    /// Everything was readable and valid. When false, a pod that is missing from `pods` may still be wanted.
    pub complete: bool,
    /// What the source holds.
    pub held: Held,
    /// What an API server says besides; nothing from files.
    pub server: ServerPods,
}

/// What an API server says of pods that are bound to this node, besides those that are wanted.
#[derive(Clone, Debug, Default)]
pub struct ServerPods {
    /// They are to end, and then to be deleted there.
    pub ending: Vec<EndingPod>,
    /// They cannot run here, and are to be told so there.
    pub refused: Vec<RefusedPod>,
    /// Of the wanted ones, those that have Succeeded or Failed there: they do not begin here, and take none of the node's room.
    /// At most `limits::ENDED_PODS_MAX`.
    pub over: SortedSet<PodUid>,
    /// Of the wanted ones, those whose statuses somebody has changed there: they are sent again.
    pub changed: SortedSet<PodUid>,
    /// Copies of static pods: nothing of them runs by itself.
    pub mirrors: Vec<MirrorPod>,
}

/// A static pod's copy in an API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorPod {
    /// Which one; the UID is the copy's own.
    pub key: PodKey,
    /// The hash of the manifest that it is of, cut at `limits::MIRROR_HASH_BYTES_MAX`.
    pub hash: Box<str>,
    /// It was deleted and waits for its node.
    pub deleted: bool,
    /// Somebody has changed its status there: it is sent again.
    pub changed: bool,
}

/// A pod that was deleted and waits for its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndingPod {
    /// Which one.
    pub key: PodKey,
    /// `metadata.deletionGracePeriodSeconds`.
    pub grace: Seconds,
}

/// A pod that this node does not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedPod {
    /// Which one.
    pub key: PodKey,
    /// Why, in a word (`OutOfmemory`, `NodeAffinity` ...): `status.reason`.
    pub reason: Cow<'static, str>,
    /// Why, in a sentence: `status.message`.
    pub message: Box<str>,
    /// `metadata.generation` of what was refused: `status.observedGeneration`.
    pub generation: Option<i64>,
}

/// What a source holds between two updates, to be shown beside its limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Memory of the pods, ConfigMaps and Secrets (`manifest::cost`, `object::cost`).
    pub pod_bytes: usize,
    /// Problems.
    pub problems: usize,
    /// Memory of these.
    pub problem_bytes: usize,
}

/// One thing that is wrong with a manifest; shown as one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file, or the directory.
    pub file: Arc<str>,
    /// The document, from 1; nothing when it concerns the whole file.
    pub document: Option<u32>,
    /// `NAMESPACE/NAME` as the manifest has it, when known.
    pub pod: Option<Box<str>>,
    /// `KIND NAMESPACE/NAME` of a ConfigMap or Secret, when it is one's.
    pub object: Option<Box<str>>,
    /// The field's path.
    pub field: Option<Box<str>>,
    /// The offending value, when there is one, and what is wrong.
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

    /// Memory it takes; the file's name is shared.
    pub fn bytes(&self) -> usize {
        let text = |part: &Option<Box<str>>| part.as_ref().map_or(0, |part| part.len());
        size_of::<Self>() + text(&self.pod) + text(&self.object) + text(&self.field) + self.message.len()
    }

    /// The same thing, whether reported or not.
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

/// A file's name as a message shows it: without control characters, cut in the middle.
pub(crate) fn shown_file(file: &str) -> String {
    let clean: String = file.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    middle_cut(&clean, limits::PROBLEM_PATH_CHARS_MAX)
}
