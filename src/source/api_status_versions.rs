//! Whether the API server still has the statuses that were sent (`needsReconcile`). PURE.
//!
//! A status that another client has changed is sent again. The response to a patch and the pod in the watch are compared by their
//! resourceVersions and a digest of the fields that a node agent owns: an event older than the response, the echo of the patch,
//! and fields of other clients (readiness gates, labels, `nominatedNodeName`) do not count as changes.
//!
//! | pod in the watch | the status was changed |
//! |---|---|
//! | nothing was sent since the agent started | no: it is sent anyway |
//! | a patch is in flight | decided by its response |
//! | resourceVersion not after that of the response | no |
//! | a later one, same digest | no |
//! | a later one, another digest | yes |

use std::cell::RefCell;
use std::hash::{DefaultHasher, Hasher};
use std::rc::Rc;

use crate::decode::Node;
use crate::model::{PodUid, SortedMap};

/// Status fields that a node agent writes.
const FIELDS: &[&str] = &[
    "containerStatuses",
    "ephemeralContainerStatuses",
    "hostIP",
    "hostIPs",
    "initContainerStatuses",
    "message",
    "observedGeneration",
    "phase",
    "podIP",
    "podIPs",
    "qosClass",
    "reason",
    "startTime",
];

/// Conditions that a node agent owns (`PodConditionByKubelet`).
const CONDITIONS: &[&str] = &[
    "ContainersReady",
    "Initialized",
    "PodReadyToStartContainers",
    "PodResizeInProgress",
    "PodResizePending",
    "PodScheduled",
    "Ready",
];

/// One version of a pod's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApiStatusVersion {
    /// `metadata.resourceVersion`; for one pod a later one is greater (KEP-5504).
    version: u64,
    digest: u64,
}

impl ApiStatusVersion {
    /// The version of this pod; `None` when its resourceVersion is not a number.
    pub fn of(object: &Node) -> Option<Self> {
        let version = object.field("metadata")?.field("resourceVersion")?.text()?.parse().ok()?;
        let mut hasher = DefaultHasher::new();
        let status = object.field("status");
        for field in FIELDS {
            hash(status.and_then(|status| status.field(field)).unwrap_or(&Node::Null), &mut hasher);
        }
        let conditions = status.and_then(|status| status.field("conditions"));
        for condition in conditions.map(Node::items).unwrap_or_default() {
            let kind = condition.field("type").and_then(Node::text);
            if kind.is_some_and(|kind| CONDITIONS.contains(&kind)) {
                hash(condition, &mut hasher);
            }
        }
        Some(Self { version, digest: hasher.finish() })
    }
}

/// Recursion is bounded by the parser.
fn hash(node: &Node, into: &mut impl Hasher) {
    let mut put = |kind: u8, bytes: &[u8]| {
        into.write_u8(kind);
        into.write_usize(bytes.len());
        into.write(bytes);
    };
    match node {
        Node::Null => put(0, &[]),
        Node::Bool(value) => put(1, &[u8::from(*value)]),
        Node::Int(value) => put(2, &value.to_le_bytes()),
        Node::Float(value) => put(3, &value.to_le_bytes()),
        Node::Text(text) => put(4, text.as_bytes()),
        Node::List(items) => {
            put(5, &items.len().to_le_bytes());
            for item in items {
                hash(item, into);
            }
        }
        Node::Map(entries) => {
            put(6, &entries.len().to_le_bytes());
            for (key, value) in entries {
                into.write(key.as_bytes());
                hash(value, into);
            }
        }
    }
}

#[derive(Default)]
struct Compared {
    is_sending: bool,
    /// From the response to the last patch.
    sent: Option<ApiStatusVersion>,
    /// From the last watch event.
    watched: Option<ApiStatusVersion>,
}

impl Compared {
    fn is_changed(&self) -> bool {
        let (Some(sent), Some(watched)) = (self.sent, self.watched) else { return false };
        !self.is_sending && watched.version > sent.version && watched.digest != sent.digest
    }
}

/// The versions of the pods' statuses in the API server. The source records watch events, the loop patches.
#[derive(Clone, Default)]
pub struct ApiStatusVersions {
    /// Entries of the source's pods, and bounded as they are.
    pods: Rc<RefCell<SortedMap<PodUid, Compared>>>,
}

impl ApiStatusVersions {
    /// Records a watch event of a pod. True when another client has changed the status that was sent.
    pub fn watched(&self, uid: &PodUid, status: Option<ApiStatusVersion>) -> bool {
        let mut pods = self.pods.borrow_mut();
        let compared = pods.entry(uid.clone()).or_default();
        compared.watched = status;
        compared.is_changed()
    }

    /// Records that a patch of the pod's status was sent.
    pub fn sending(&self, uid: &PodUid) {
        if let Some(compared) = self.pods.borrow_mut().get_mut(uid) {
            compared.is_sending = true;
        }
    }

    /// Records the response to the patch, or its absence. True when another client has changed the status since.
    pub fn sent(&self, uid: &PodUid, status: Option<ApiStatusVersion>) -> bool {
        let mut pods = self.pods.borrow_mut();
        let Some(compared) = pods.get_mut(uid) else { return false };
        compared.is_sending = false;
        compared.sent = status.or(compared.sent);
        compared.is_changed()
    }

    /// Removes a pod that the API server no longer has.
    pub fn forget(&self, uid: &PodUid) {
        self.pods.borrow_mut().remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(version: &str, status: &str) -> Option<ApiStatusVersion> {
        let text = format!(r#"{{"metadata": {{"resourceVersion": "{version}"}}, "status": {status}}}"#);
        ApiStatusVersion::of(&crate::decode::json::read(text.as_bytes()).expect("JSON"))
    }

    #[test]
    fn what_others_write_beside_is_no_change() {
        let own = r#"{"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}"#;
        let digest = |status| pod("1", status).map(|status| status.digest);
        for same in [
            r#"{"phase": "Running", "nominatedNodeName": "n", "conditions": [{"type": "Ready", "status": "True"}]}"#,
            r#"{"conditions": [{"type": "DisruptionTarget", "status": "True"},
                {"type": "Ready", "status": "True"}, {"type": "example.com/gate", "status": "True"}], "phase": "Running"}"#,
        ] {
            assert_eq!(digest(same), digest(own), "{same}");
        }
        for other in [
            r#"{"phase": "Pending", "conditions": [{"type": "Ready", "status": "True"}]}"#,
            r#"{"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]}"#,
            r#"{"phase": "Running"}"#,
            r#"{"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}], "conditions": [{"type": "Ready", "status": "True"}]}"#,
            r#"{"phase": "Running", "containerStatuses": [{"restartCount": 1.5}], "conditions": [{"type": "Ready", "status": "True"}]}"#,
        ] {
            assert_ne!(digest(other), digest(own), "{other}");
        }
        assert_eq!(pod("none", own), None);
    }

    #[test]
    fn a_status_is_changed_by_what_comes_after_the_answer_alone() {
        let (ours, theirs) = (r#"{"phase": "Running"}"#, r#"{"phase": "Pending"}"#);
        let uid = PodUid::from("u");
        let there = ApiStatusVersions::default();
        assert!(!there.sent(&uid, pod("1", ours)), "the source knows no such pod");
        assert!(!there.watched(&uid, pod("2", theirs)), "nothing was sent yet");
        there.sending(&uid);
        assert!(!there.watched(&uid, pod("4", ours)), "the echo comes before the answer");
        assert!(!there.sent(&uid, pod("4", ours)));
        assert!(!there.watched(&uid, pod("3", theirs)), "older than the answer");
        assert!(!there.watched(&uid, pod("5", ours)), "somebody labelled the pod");
        assert!(there.watched(&uid, pod("6", theirs)));
        there.sending(&uid);
        assert!(!there.watched(&uid, pod("7", theirs)), "the answer decides");
        assert!(!there.sent(&uid, pod("8", ours)), "that was before");
        there.sending(&uid);
        assert!(!there.watched(&uid, pod("10", theirs)));
        assert!(there.sent(&uid, pod("9", ours)), "it was changed after the patch");
        there.sending(&uid);
        assert!(there.sent(&uid, None), "a patch that failed changes nothing");
        there.forget(&uid);
        assert!(!there.watched(&uid, pod("12", theirs)));
    }
}
