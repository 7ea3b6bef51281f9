//! Converts a ring entry of a pod or of the node to an Event (`recorderImpl.makeEvent`, `EventCorrelator`). PURE.
//!
//! One object for each entry of the ring: its count is increased when the entry repeats.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use serde_json::{Value, json};

use crate::events::{Event, EventKind};
use crate::limits::EVENT_NAME_BYTES_MAX;
use crate::model::{Mono, Now, Wall};

/// The reporting component.
const COMPONENT: &str = "kubelet";

/// Namespace and name of the Event. An entry of the same pod and message has the same name.
pub fn place(event: &Event<'_>) -> (String, String) {
    let mut hasher = DefaultHasher::new();
    // A combined entry changes its message each time, and is one object.
    let message = (!event.is_combined()).then_some(event.message);
    (event.uid, event.field_path, event.reason, message, event.first).hash(&mut hasher);
    let name = crate::text::start_of(event.name, EVENT_NAME_BYTES_MAX);
    (event.namespace().to_owned(), format!("{name}.{:016x}", hasher.finish()))
}

/// The whole object. `uid` is the pod's UID in the API: of a static pod its manifest's hash, by which kubectl finds the events of
/// its mirror pod.
pub fn object(event: &Event<'_>, uid: &str, node: &str, now: Now) -> Value {
    let (namespace, name) = place(event);
    let mut about = if event.is_of_node() {
        json!({"apiVersion": "v1", "kind": "Node", "name": event.name, "uid": event.name})
    } else {
        json!({
            "apiVersion": "v1", "kind": "Pod", "namespace": event.pod_namespace, "name": event.name, "uid": uid,
        })
    };
    if let Some(path) = event.field_path {
        about["fieldPath"] = path.into();
    }
    json!({
        "apiVersion": "v1", "kind": "Event", "metadata": {"namespace": namespace, "name": name},
        "involvedObject": about, "reason": event.reason, "message": event.message, "type": kind(event.kind),
        "count": event.count, "firstTimestamp": at(event.first, now), "lastTimestamp": at(event.last, now),
        "source": {"component": COMPONENT, "host": node},
        "reportingComponent": COMPONENT, "reportingInstance": node,
    })
}

/// The patch for a repeated entry.
pub fn again(event: &Event<'_>, now: Now) -> Value {
    json!({"count": event.count, "lastTimestamp": at(event.last, now), "message": event.message})
}

fn kind(kind: EventKind) -> &'static str {
    match kind {
        EventKind::Normal => "Normal",
        EventKind::Warning => "Warning",
    }
}

/// That instant by the current wall clock.
fn at(then: Mono, now: Now) -> String {
    let ago = i64::try_from(now.mono.since(then).as_nanos()).unwrap_or(i64::MAX);
    Wall(now.wall.0.saturating_sub(ago)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::EventRing;
    use crate::model::PodKey;

    #[test]
    fn the_same_again_is_the_same_object() {
        let mut ring = EventRing::default();
        let pod = PodKey::new("default", "web", "u");
        let seconds = |seconds: i64| Mono(seconds * 1_000_000_000);
        ring.record((&pod).into(), EventKind::Warning, "BackOff", "waits", seconds(1));
        let first = ring.iter().next().map(|event| place(&event));
        ring.record((&pod).into(), EventKind::Warning, "BackOff", "waits", seconds(5));
        let event = ring.iter().next().expect("one");
        assert_eq!(first, Some(place(&event)));
        let now = Now { mono: seconds(6), wall: Wall(0) };
        let object = object(&event, "u", "gw", now);
        assert_eq!((&object["count"], &object["type"]), (&json!(2), &json!("Warning")));
        assert_eq!(object["lastTimestamp"], "1969-12-31T23:59:59Z");
        assert_eq!(object["involvedObject"]["uid"], "u");
        assert_eq!(again(&event, now)["count"], 2);
        ring.record((&pod).into(), EventKind::Normal, "Started", "x", seconds(6));
        let names: Vec<_> = ring.iter().map(|event| place(&event)).collect();
        assert_ne!(names[0], names[1]);
        // The name of a pod that only the runtime knows is its label, which need not be a DNS name.
        let foreign = PodKey::new("default", &format!("a{}", "é".repeat(EVENT_NAME_BYTES_MAX)), "u");
        ring.record((&foreign).into(), EventKind::Normal, "Started", "x", seconds(7));
        let (_, name) = ring.iter().last().map(|event| place(&event)).expect("the last one");
        assert!(name.len() <= EVENT_NAME_BYTES_MAX + 17, "{name}");
    }
}
