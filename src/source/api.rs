//! The pods that an API server has bound to this node, as a source (`NewSourceApiserver`).
//!
//! What the server tells of each pod becomes one entry:
//!
//! | the pod there | here |
//! |---|---|
//! | is a mirror of a static pod | nothing |
//! | has a deletionTimestamp | ends, and is deleted there when nothing of it is left |
//! | cannot be run by this version | is refused, and told so there |
//! | has Succeeded or Failed | is wanted, and does not begin |
//! | else | is wanted |

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use smol::channel::Sender;

use super::decode::Node;
use super::identity::NodeName;
use super::{EndingPod, Held, Origin, RefusedPod, ServerPods, SourceUpdate, SourcedPod, manifest};
use crate::clock::SharedClock;
use crate::kube::{Collection, Follower, KubeError, Resource};
use crate::limits::{KUBE_PODS_MAX, PODS_BYTES_MAX};
use crate::model::{DesiredPod, PodKey, PodUid, Seconds};

/// What stands in the place of a manifest's file.
pub(crate) const ORIGIN: &str = "the API server";

/// `status.reason` of a pod that this version cannot run.
const REFUSED: &str = "UnexpectedAdmissionError";

/// The annotation of a static pod's copy.
const MIRROR: &str = "kubernetes.io/config.mirror";

/// The pods as the server has them, told to the loop with each change.
pub struct ApiPods {
    node: NodeName,
    clock: SharedClock,
    /// Bounded by one: the newest update takes the place of one that was not taken yet.
    updates: Sender<SourceUpdate>,
    origin: Arc<str>,
    /// At most `KUBE_PODS_MAX`. Full: a further pod is passed over, with a message.
    pods: BTreeMap<PodUid, Entry>,
    /// Those that the list under way has told so far.
    listed: Option<BTreeSet<PodUid>>,
    /// That list does not tell all there are.
    short: bool,
    /// There is something that no update told yet; most of what comes is the echo of our own statuses.
    changed: bool,
    lost: Option<KubeError>,
}

enum Entry {
    Wanted { pod: SourcedPod, over: bool },
    Ending(EndingPod),
    Refused(RefusedPod),
}

impl Entry {
    /// It asks for the same.
    fn is_as(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Wanted { pod, over }, Self::Wanted { pod: other, over: was_over }) => {
                pod.config_hash == other.config_hash && over == was_over
            }
            (Self::Ending(pod), Self::Ending(other)) => pod == other,
            (Self::Refused(pod), Self::Refused(other)) => pod == other,
            (Self::Wanted { .. } | Self::Ending(_) | Self::Refused(_), _) => false,
        }
    }
}

impl ApiPods {
    /// Which pods are followed.
    pub fn collection(node: &NodeName) -> Collection {
        Collection {
            resource: Resource::PODS,
            namespace: "".into(),
            field_selector: format!("spec.nodeName={}", node.as_str()).into(),
        }
    }

    /// Tells each change to `updates`, which holds one.
    pub fn new(node: NodeName, clock: SharedClock, updates: Sender<SourceUpdate>) -> Self {
        Self {
            node,
            clock,
            updates,
            origin: Arc::from(ORIGIN),
            pods: BTreeMap::new(),
            listed: None,
            short: false,
            changed: true,
            lost: None,
        }
    }

    fn bytes(&self) -> usize {
        let bytes = |entry: &Entry| if let Entry::Wanted { pod, .. } = entry { pod.bytes } else { 0 };
        self.pods.values().map(bytes).sum()
    }

    fn entry(&self, key: PodKey, object: Node) -> Entry {
        let metadata = object.field("metadata");
        if metadata.is_some_and(|m| m.field("deletionTimestamp").is_some()) {
            let grace = match metadata.and_then(|m| m.field("deletionGracePeriodSeconds")) {
                Some(Node::Int(seconds)) => Seconds(*seconds),
                _ => Seconds(0),
            };
            return Entry::Ending(EndingPod { key, grace });
        }
        let phase = object.field("status").and_then(|status| status.field("phase")).and_then(Node::text);
        let over = matches!(phase, Some("Succeeded" | "Failed"));
        let refused = |why: String| {
            let message = format!("Pod was rejected: {why}").into();
            Entry::Refused(RefusedPod { key: key.clone(), reason: REFUSED.into(), message })
        };
        let read = match manifest::bound(object, &self.node, self.clock.now().wall) {
            Ok(read) => read,
            Err(errors) => {
                let shown = errors.iter().map(|error| format!("{}: {}", error.path, error.message));
                return refused(shown.collect::<Vec<_>>().join("; "));
            }
        };
        let before = match self.pods.get(&key.uid) {
            Some(Entry::Wanted { pod, .. }) if pod.config_hash == read.config_hash => {
                // Only its status changed: what is held already stays.
                return Entry::Wanted { pod: pod.clone(), over };
            }
            Some(Entry::Wanted { pod, .. }) => pod.bytes,
            Some(Entry::Ending(_) | Entry::Refused(_)) | None => 0,
        };
        if self.bytes() - before + read.bytes > PODS_BYTES_MAX {
            return refused(format!(
                "does not fit: all pods of this node may take {PODS_BYTES_MAX} bytes together"
            ));
        }
        let origin = Origin { file: self.origin.clone(), document: read.document };
        let pod = SourcedPod {
            pod: DesiredPod::new(read.pod),
            origin,
            config_hash: read.config_hash,
            bytes: read.bytes,
        };
        Entry::Wanted { pod, over }
    }
}

impl Follower for ApiPods {
    fn list_begins(&mut self) {
        self.listed = Some(BTreeSet::new());
        self.short = false;
    }

    fn passed_over(&mut self) {
        self.short = true;
    }

    fn is_there(&mut self, object: Node) {
        let Some(key) = key(&object).filter(|_| !is_mirror(&object)) else { return };
        if let Some(listed) = &mut self.listed {
            listed.insert(key.uid.clone());
        }
        if self.pods.len() >= KUBE_PODS_MAX && !self.pods.contains_key(&key.uid) {
            log::warn!("pod {key}: more than {KUBE_PODS_MAX} pods are bound to this node; it is passed over");
            return;
        }
        let entry = self.entry(key.clone(), object);
        self.changed |= !self.pods.get(&key.uid).is_some_and(|known| known.is_as(&entry));
        self.pods.insert(key.uid, entry);
    }

    fn is_gone(&mut self, object: &Node) {
        if let Some(key) = key(object) {
            self.changed |= self.pods.remove(&key.uid).is_some();
        }
    }

    fn settled(&mut self) {
        if self.lost.take().is_some() {
            log::info!("the API server answers again");
        }
        // One that was passed over may be any that is missing: nothing ends for it.
        if let Some(listed) = self.listed.take().filter(|_| !self.short) {
            let before = self.pods.len();
            self.pods.retain(|uid, _| listed.contains(uid));
            self.changed |= self.pods.len() < before;
        }
        if !std::mem::take(&mut self.changed) {
            return;
        }
        let (mut pods, mut server) = (Vec::new(), ServerPods::default());
        for entry in self.pods.values() {
            match entry {
                Entry::Wanted { pod, over } => {
                    if *over {
                        server.over.insert(pod.pod.key.uid.clone());
                    }
                    pods.push(pod.clone());
                }
                Entry::Ending(pod) => server.ending.push(pod.clone()),
                Entry::Refused(pod) => server.refused.push(pod.clone()),
            }
        }
        let update = SourceUpdate {
            source: super::API,
            pods,
            objects: Vec::new(),
            problems: Vec::new(),
            complete: true,
            held: Held { pod_bytes: self.bytes(), ..Held::default() },
            server,
        };
        // The loop is gone only when the process ends.
        let _ = self.updates.force_send(update);
    }

    fn lost(&mut self, why: &KubeError) {
        if self.lost.as_ref() != Some(why) {
            log::warn!("{why}; this node's pods run on as they are, trying again");
            self.lost = Some(why.clone());
        }
    }
}

/// Which pod; nothing when the object names none that directories can be made for.
fn key(object: &Node) -> Option<PodKey> {
    let metadata = object.field("metadata")?;
    let text = |field| metadata.field(field).and_then(Node::text);
    let key = PodKey::new(text("namespace")?, text("name")?, text("uid")?);
    key.is_path_safe().then_some(key)
}

fn is_mirror(object: &Node) -> bool {
    let annotations = object.field("metadata").and_then(|metadata| metadata.field("annotations"));
    annotations.is_some_and(|annotations| annotations.field(MIRROR).is_some())
}
