//! Why: a fixed-size ring of decisions and errors about pods, counted instead of repeated. PURE.
//!
//! `smolet events` shows it, `smolet describe` ends with a pod's part of it, and the log prints an entry when it is new: one
//! line per real change.
//!
//! No pod pushes the others' entries out, however much happens to it: messages that differ each time (a probe's, say) are
//! combined after a few of one reason, as Kubernetes' own `EventCorrelator` does, and when the ring is full the pod with the
//! most entries loses its oldest.

use std::collections::VecDeque;
use std::rc::Rc;

use crate::limits::{EVENT_MESSAGE_BYTES_MAX, EVENTS_MAX, EVENTS_SIMILAR_MAX};
use crate::model::SortedMap;
use crate::model::{ContainerKind, Mono, PodKey, PodUid};
use crate::text::start_of;

/// As Kubernetes' `Event.type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// Something went as wanted.
    Normal,
    /// Something did not.
    Warning,
}

/// What an event is about: a pod, or one of its containers (`GenerateContainerRef`).
#[derive(Clone, Copy, Debug)]
pub struct About<'a> {
    /// The pod; one without a namespace stands for the node of that name.
    pub pod: &'a PodKey,
    /// The list that the container stands in, and its name.
    pub container: Option<(ContainerKind, &'a str)>,
}

impl<'a> About<'a> {
    /// One container of the pod.
    pub const fn container(pod: &'a PodKey, kind: ContainerKind, name: &'a str) -> Self {
        Self { pod, container: Some((kind, name)) }
    }

    /// `involvedObject.fieldPath`.
    fn field_path(self) -> Option<String> {
        self.container.map(|(kind, name)| {
            let list = match kind {
                ContainerKind::Init => "initContainers",
                ContainerKind::App => "containers",
                ContainerKind::Ephemeral => "ephemeralContainers",
            };
            format!("spec.{list}{{{name}}}")
        })
    }
}

impl<'a> From<&'a PodKey> for About<'a> {
    fn from(pod: &'a PodKey) -> Self {
        Self { pod, container: None }
    }
}

/// One decision or error, however often it was made.
#[derive(Clone, Debug)]
pub struct Event {
    /// Which pod it is about; one without a namespace stands for the node of that name.
    pub pod: PodKey,
    /// Of one of its containers: `spec.containers{NAME}` (`involvedObject.fieldPath`).
    pub field_path: Option<Rc<str>>,
    /// Normal or warning.
    pub kind: EventKind,
    /// Kubernetes' event reason: `Pulling`, `Created`, `Killing`, `BackOff` ...
    pub reason: &'static str,
    /// One sentence; at most `EVENT_MESSAGE_BYTES_MAX` bytes.
    pub message: Rc<str>,
    /// How often.
    pub count: u32,
    /// First seen. Monotonic, as all ages: a gateway without an RTC steps its clock after boot.
    pub first: Mono,
    /// Last seen.
    pub last: Mono,
    /// The ring's revision since it was seen last.
    pub revision: u64,
}

impl Event {
    /// It stands for many whose messages differ.
    pub fn is_combined(&self) -> bool {
        self.message.starts_with(COMBINED)
    }
}

/// What stands before the last one of many messages that differ (`EventAggregatorByReasonMessageFunc`).
const COMBINED: &str = "(combined from similar events): ";

/// The ring. Full: of the pod that has the most entries, the one that was touched longest ago goes.
#[derive(Debug, Default)]
pub struct EventRing {
    /// The one touched last at the end.
    entries: VecDeque<Event>,
    /// How many events there were.
    revision: u64,
}

impl EventRing {
    /// Notes an event; true when no entry says the same of this pod yet, so that it deserves a log line: once for messages
    /// that are combined.
    pub fn record(
        &mut self,
        about: About<'_>,
        kind: EventKind,
        reason: &'static str,
        message: &str,
        now: Mono,
    ) -> bool {
        self.revision += 1;
        let (pod, field_path) = (about.pod, about.field_path());
        let message = start_of(message, EVENT_MESSAGE_BYTES_MAX);
        let similar = |e: &Event| {
            e.pod.uid == pod.uid && e.field_path.as_deref() == field_path.as_deref() && e.reason == reason
        };
        let same = |e: &Event| similar(e) && same_but_ids(&e.message, message);
        if let Some(mut entry) = self.entries.iter().position(same).and_then(|at| self.entries.remove(at)) {
            entry.again(now, self.revision);
            self.entries.push_back(entry);
            return false;
        }
        if self.entries.iter().filter(|e| similar(e)).count() >= EVENTS_SIMILAR_MAX {
            return self.combine(similar, kind, message, now);
        }
        if self.entries.len() == EVENTS_MAX {
            self.make_room();
        }
        self.entries.push_back(Event {
            pod: pod.clone(),
            field_path: field_path.as_deref().map(Rc::from),
            kind,
            reason,
            message: Rc::from(message),
            count: 1,
            first: now,
            last: now,
            revision: self.revision,
        });
        true
    }

    /// Puts the message into the entry of those combined so far, else into the one that was touched longest ago; true then.
    fn combine(
        &mut self,
        similar: impl Fn(&Event) -> bool,
        kind: EventKind,
        message: &str,
        now: Mono,
    ) -> bool {
        let combined = self.entries.iter().position(|e| similar(e) && e.is_combined());
        let Some(at) = combined.or_else(|| self.entries.iter().position(&similar)) else { return true };
        let Some(mut entry) = self.entries.remove(at) else { return true };
        entry.kind = kind;
        entry.message = Rc::from(start_of(&[COMBINED, message].concat(), EVENT_MESSAGE_BYTES_MAX));
        entry.again(now, self.revision);
        self.entries.push_back(entry);
        combined.is_none()
    }

    /// Forgets the oldest entry of the pod that has the most; of several such pods the one whose entry is the oldest.
    fn make_room(&mut self) {
        let mut of_pods: SortedMap<&PodUid, usize> = SortedMap::new();
        for entry in &self.entries {
            *of_pods.entry(&entry.pod.uid).or_default() += 1;
        }
        let most = of_pods.values().copied().max();
        let oldest = self.entries.iter().position(|e| of_pods.get(&e.pod.uid).copied() == most);
        self.entries.remove(oldest.unwrap_or_default());
    }

    /// Grows with each event: a reader that has seen one revision wants the entries whose own is larger.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// All entries, the one touched last at the end.
    pub fn iter(&self) -> impl Iterator<Item = &Event> {
        self.entries.iter()
    }

    /// How many entries are held.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Memory of the entries, the pods' names included, which most share with others.
    pub fn bytes(&self) -> usize {
        let path = |e: &Event| e.field_path.as_ref().map_or(0, |path| path.len());
        let of = |e: &Event| size_of::<Event>() + e.message.len() + path(e) + e.pod.bytes();
        self.entries.iter().map(of).sum()
    }

    /// True before the first event.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl Event {
    /// It is about the node, not about a pod.
    pub fn is_of_node(&self) -> bool {
        self.pod.namespace.is_empty()
    }

    /// Where it stands; a node's are in `default`, as Kubernetes has them.
    pub fn namespace(&self) -> &str {
        if self.is_of_node() { "default" } else { &self.pod.namespace }
    }

    fn again(&mut self, now: Mono, revision: u64) {
        self.count = self.count.saturating_add(1);
        self.last = now;
        self.revision = revision;
    }
}

/// The same text but for ids of the runtime (runs of `ID_DIGITS_MIN` hexadecimal digits and more): each try to make
/// a sandbox has a new one, and says nothing new by that.
fn same_but_ids(a: &str, b: &str) -> bool {
    let (mut a, mut b) = (a.as_bytes(), b.as_bytes());
    loop {
        let (ids_a, ids_b) = (hex_digits(a), hex_digits(b));
        if ids_a >= ID_DIGITS_MIN && ids_b >= ID_DIGITS_MIN {
            (a, b) = (&a[ids_a..], &b[ids_b..]);
            continue;
        }
        match (a.split_first(), b.split_first()) {
            (None, None) => return true,
            (Some((x, rest_a)), Some((y, rest_b))) if x == y => (a, b) = (rest_a, rest_b),
            _ => return false,
        }
    }
}

/// The shortest id a runtime shows.
const ID_DIGITS_MIN: usize = 12;

fn hex_digits(text: &[u8]) -> usize {
    text.iter().take_while(|byte| byte.is_ascii_hexdigit()).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now(second: i64) -> Mono {
        Mono(second * 1_000_000_000)
    }

    #[test]
    fn the_same_again_is_counted_and_moves_to_the_end() {
        let mut ring = EventRing::default();
        let pod = PodKey::new("default", "web", "u1");
        assert!(ring.record((&pod).into(), EventKind::Normal, "Started", "one", now(1)));
        assert!(ring.record((&pod).into(), EventKind::Normal, "Started", "two", now(2)));
        assert!(!ring.record((&pod).into(), EventKind::Normal, "Started", "one", now(3)));
        let seen: Vec<_> = ring.iter().map(|e| (&*e.message, e.count, e.first, e.last, e.revision)).collect();
        let expected = [("two", 1, now(2), now(2), 2), ("one", 2, now(1), now(3), 3)];
        assert_eq!(seen, expected);
        assert_eq!(ring.revision(), 3);
    }

    #[test]
    fn messages_that_differ_each_time_are_combined() {
        let mut ring = EventRing::default();
        let (pod, other) = (PodKey::new("default", "web", "u1"), PodKey::new("default", "db", "u2"));
        ring.record((&other).into(), EventKind::Normal, "Started", "other", now(0));
        ring.record((&pod).into(), EventKind::Normal, "Started", "once", now(0));
        let mut logged = 0;
        for second in 1..1000 {
            let message = format!("Get http://10.0.0.1: port {second}");
            logged += usize::from(ring.record(
                (&pod).into(),
                EventKind::Warning,
                "Unhealthy",
                &message,
                now(second),
            ));
        }
        // Each once, and that they are combined from then on.
        assert_eq!(logged, EVENTS_SIMILAR_MAX + 1);
        assert_eq!(ring.len(), 2 + EVENTS_SIMILAR_MAX);
        let last = ring.iter().last().expect("just added");
        assert_eq!(&*last.message, "(combined from similar events): Get http://10.0.0.1: port 999");
        let counted: u32 = ring.iter().filter(|e| e.reason == "Unhealthy").map(|e| e.count).sum();
        assert_eq!(counted, 999);
        // What is said again of what is still there is counted where it stands.
        assert!(!ring.record(
            (&pod).into(),
            EventKind::Warning,
            "Unhealthy",
            "Get http://10.0.0.1: port 9",
            now(1000)
        ));
        assert_eq!(ring.len(), 2 + EVENTS_SIMILAR_MAX);
        let long = "x".repeat(EVENT_MESSAGE_BYTES_MAX);
        ring.record((&pod).into(), EventKind::Warning, "Unhealthy", &long, now(1001));
        assert!(ring.iter().all(|e| e.message.len() <= EVENT_MESSAGE_BYTES_MAX));
    }

    #[test]
    fn another_id_of_the_runtime_is_nothing_new() {
        for (a, b, same) in [
            ("sandbox \"09f0f63db0262b8e\": no CNI", "sandbox \"aa43f63db0262b8e28\": no CNI", true),
            ("sandbox \"09f0f63db0262b8e\": no CNI", "sandbox \"aa43f63db0262b8e28\": no disk", false),
            ("exit code 137", "exit code 143", false),
            ("back-off 10s", "back-off 20s", false),
            ("web", "webs", false),
            ("", "", true),
        ] {
            assert_eq!(same_but_ids(a, b), same, "{a} / {b}");
        }
    }

    #[test]
    fn full_drops_the_oldest_and_messages_are_cut() {
        let mut ring = EventRing::default();
        let pod = |number: usize| PodKey::new("default", "web", &format!("u{number}"));
        for number in 0..=EVENTS_MAX {
            ring.record((&pod(number)).into(), EventKind::Warning, "Failed", "it did", now(0));
        }
        assert_eq!(ring.len(), EVENTS_MAX);
        assert_eq!(ring.iter().next().expect("full").pod.uid.as_str(), "u1");
        ring.record(
            (&pod(0)).into(),
            EventKind::Warning,
            "Failed",
            &"é".repeat(EVENT_MESSAGE_BYTES_MAX),
            now(0),
        );
        let last = ring.iter().last().expect("just added");
        assert!(
            last.message.len() <= EVENT_MESSAGE_BYTES_MAX && last.message.len() > EVENT_MESSAGE_BYTES_MAX - 2
        );
    }

    #[test]
    fn a_pod_with_many_entries_loses_its_own() {
        const REASONS: [&str; 4] = ["Failed", "Unhealthy", "BackOff", "FailedMount"];
        let mut ring = EventRing::default();
        let quiet = PodKey::new("default", "quiet", "quiet");
        ring.record((&quiet).into(), EventKind::Normal, "Started", "once", now(0));
        for number in 0..4 * EVENTS_MAX {
            let loud = PodKey::new("default", "loud", &format!("loud{}", number % 50));
            let (reason, message) = (REASONS[number % REASONS.len()], format!("number {number}"));
            ring.record((&loud).into(), EventKind::Warning, reason, &message, now(1));
        }
        assert_eq!(ring.len(), EVENTS_MAX);
        assert!(ring.iter().any(|e| e.pod == quiet), "its one entry is still there");
    }
}
