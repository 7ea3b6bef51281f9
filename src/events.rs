//! The event recorder: a fixed-size ring of decisions and errors about pods, in which repeated events are counted. PURE.
//!
//! `smolet events` shows it, `smolet describe` ends with a pod's events, and a new entry is logged: one line per real change.
//!
//! A pod cannot displace the other pods' events: events of one reason whose messages differ (a probe's, for example) are
//! combined after a few, as in Kubernetes' `EventCorrelator`, and a full ring drops the oldest entry of the pod with the most
//! entries.

use std::collections::VecDeque;

use crate::limits::{EVENT_MESSAGE_BYTES_MAX, EVENTS_MAX, EVENTS_SIMILAR_MAX, KIB};
use crate::model::SortedMap;
use crate::model::{ContainerKind, Mono, PodKey};
use crate::text::start_of;

/// Kubernetes' `Event.type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// Expected.
    Normal,
    /// A failure.
    Warning,
}

/// The object of an event: a pod, or one of its containers (`GenerateContainerRef`).
#[derive(Clone, Copy, Debug)]
pub struct About<'a> {
    /// The pod; without a namespace it is the node of that name.
    pub pod: &'a PodKey,
    /// The container's list and name.
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
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    /// The UID of the pod that it is about.
    pub uid: &'a str,
    /// The pod's namespace; without one it is the node of that name.
    pub pod_namespace: &'a str,
    /// The pod's name.
    pub name: &'a str,
    /// Of one of its containers: `spec.containers{NAME}` (`involvedObject.fieldPath`).
    pub field_path: Option<&'a str>,
    /// Normal or warning.
    pub kind: EventKind,
    /// Kubernetes' event reason: `Pulling`, `Created`, `Killing`, `BackOff` ...
    pub reason: &'static str,
    /// One sentence; at most `EVENT_MESSAGE_BYTES_MAX` bytes.
    pub message: &'a str,
    /// How often.
    pub count: u32,
    /// First occurrence. Monotonic, as all ages: a gateway without an RTC steps its clock after boot.
    pub first: Mono,
    /// Last occurrence.
    pub last: Mono,
    /// The ring's revision at the last occurrence.
    pub revision: u64,
}

impl Event<'_> {
    /// It stands for many whose messages differ.
    pub fn is_combined(&self) -> bool {
        self.message.starts_with(COMBINED)
    }

    /// It is about the node, not about a pod.
    pub fn is_of_node(&self) -> bool {
        self.pod_namespace.is_empty()
    }

    /// Where it stands; a node's are in `default`, as Kubernetes has them.
    pub fn namespace(&self) -> &str {
        if self.is_of_node() { "default" } else { self.pod_namespace }
    }

    /// The same, without the ring.
    pub fn to_owned(&self) -> OwnedEvent {
        let mut text = String::new();
        let parts =
            [self.uid, self.pod_namespace, self.name, self.field_path.unwrap_or_default(), self.message];
        let spans = parts.map(|part| push(&mut text, part));
        let &Event { kind, reason, count, first, last, revision, .. } = self;
        OwnedEvent { entry: Entry { spans, kind, reason, count, first, last, revision }, text: text.into() }
    }
}

/// An event that outlives the ring's next change.
#[derive(Clone, Debug)]
pub struct OwnedEvent {
    entry: Entry,
    text: Box<str>,
}

impl OwnedEvent {
    /// As the ring showed it.
    pub fn event(&self) -> Event<'_> {
        self.entry.event(&self.text)
    }
}

/// A part of a text: where it begins, and how many bytes.
type Span = (u32, u32);

/// An event but for its texts.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The pod's UID, namespace and name, the field path (empty: none), the message.
    spans: [Span; 5],
    kind: EventKind,
    reason: &'static str,
    count: u32,
    first: Mono,
    last: Mono,
    revision: u64,
}

impl Entry {
    fn event<'a>(&self, text: &'a str) -> Event<'a> {
        let [uid, pod_namespace, name, field_path, message] = self.spans.map(|span| part(text, span));
        let &Self { kind, reason, count, first, last, revision, .. } = self;
        let field_path = Some(field_path).filter(|path| !path.is_empty());
        Event { uid, pod_namespace, name, field_path, kind, reason, message, count, first, last, revision }
    }

    fn text_bytes(&self) -> usize {
        self.spans.iter().map(|(_, bytes)| *bytes as usize).sum()
    }

    fn again(&mut self, now: Mono, revision: u64) {
        self.count = self.count.saturating_add(1);
        self.last = now;
        self.revision = revision;
    }
}

fn part(text: &str, (begin, bytes): Span) -> &str {
    text.get(begin as usize..begin as usize + bytes as usize).unwrap_or_default()
}

/// The ring's texts are far below 4 GiB: its entries are as many as they may be, and so are their bytes.
fn push(text: &mut String, part: &str) -> Span {
    let begin = u32::try_from(text.len()).unwrap_or(u32::MAX);
    text.push_str(part);
    (begin, u32::try_from(part.len()).unwrap_or(u32::MAX))
}

/// Prefix of the last message of combined events (`EventAggregatorByReasonMessageFunc`).
const COMBINED: &str = "(combined from similar events): ";

/// The ring. Full: of the pod that has the most entries, the one that was touched longest ago goes.
///
/// Entries outlive what happens round them by hours. All their texts are one piece of memory: five small ones for each entry
/// would lie between those that come and go, and hold the pages that a burst has needed.
#[derive(Debug, Default)]
pub struct EventRing {
    /// The one touched last at the end.
    entries: VecDeque<Entry>,
    /// What the entries show; between that, what those have left that are gone.
    text: String,
    /// How many events there were.
    revision: u64,
}

impl EventRing {
    /// Records an event; true when it has to be logged: when the pod has no entry with this message, and once for combined
    /// events.
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
        let similar = |e: &Event<'_>| {
            e.uid == pod.uid.as_str() && e.field_path == field_path.as_deref() && e.reason == reason
        };
        let known = self.iter().position(|e| similar(&e) && same_but_ids(e.message, message));
        if let Some(at) = known {
            self.again(at, now);
            return false;
        }
        if self.iter().filter(similar).count() >= EVENTS_SIMILAR_MAX {
            return self.combine(similar, kind, message, now);
        }
        if self.entries.len() == EVENTS_MAX {
            self.make_room();
        }
        let parts =
            [pod.uid.as_str(), &pod.namespace, &pod.name, field_path.as_deref().unwrap_or_default(), message];
        self.reserve(parts.iter().map(|part| part.len()).sum());
        let spans = parts.map(|part| push(&mut self.text, part));
        let revision = self.revision;
        self.entries.push_back(Entry { spans, kind, reason, count: 1, first: now, last: now, revision });
        true
    }

    /// The entry there happens once more, and moves to the end.
    fn again(&mut self, at: usize, now: Mono) -> Option<&mut Entry> {
        let mut entry = self.entries.remove(at)?;
        entry.again(now, self.revision);
        self.entries.push_back(entry);
        self.entries.back_mut()
    }

    /// Puts the message into the entry of those combined so far, else into the one that was touched longest ago; true then.
    fn combine(
        &mut self,
        similar: impl Fn(&Event<'_>) -> bool,
        kind: EventKind,
        message: &str,
        now: Mono,
    ) -> bool {
        let combined = self.iter().position(|e| similar(&e) && e.is_combined());
        let Some(at) = combined.or_else(|| self.iter().position(|e| similar(&e))) else { return true };
        let message = [COMBINED, message].concat();
        let message = start_of(&message, EVENT_MESSAGE_BYTES_MAX);
        self.reserve(message.len());
        let span = push(&mut self.text, message);
        if let Some(entry) = self.again(at, now) {
            entry.kind = kind;
            entry.spans[4] = span;
        }
        combined.is_none()
    }

    /// Drops the oldest entry of the pod with the most entries; of several such pods, of the one with the oldest entry.
    fn make_room(&mut self) {
        let mut of_pods: SortedMap<&str, usize> = SortedMap::new();
        for event in self.iter() {
            *of_pods.entry(event.uid).or_default() += 1;
        }
        let most = of_pods.values().copied().max();
        let oldest = self.iter().position(|e| of_pods.get(e.uid).copied() == most);
        self.entries.remove(oldest.unwrap_or_default());
    }

    /// Makes room for so many bytes of text more. Where there is none, what entries have left that are gone is left out.
    fn reserve(&mut self, bytes: usize) {
        if self.text.len() + bytes <= self.text.capacity() {
            return;
        }
        let held = bytes + self.entries.iter().map(Entry::text_bytes).sum::<usize>();
        let mut text = String::with_capacity(held + held / 16 + TEXT_STEP_BYTES);
        for entry in &mut self.entries {
            entry.spans = entry.spans.map(|span| push(&mut text, part(&self.text, span)));
        }
        self.text = text;
    }

    /// Grows with each event: a reader that has seen one revision wants the entries whose own is larger.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// All entries, the one touched last at the end.
    pub fn iter(&self) -> impl Iterator<Item = Event<'_>> {
        self.entries.iter().map(|entry| entry.event(&self.text))
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Memory of the entries and their texts.
    pub fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>() + self.text.capacity()
    }

    /// True without entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// By what the text grows at least: some ten events.
const TEXT_STEP_BYTES: usize = 2 * KIB;

/// True for messages that differ only in ids of the runtime (`ID_DIGITS_MIN` or more hexadecimal digits): each attempt to
/// create a sandbox has a new one.
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

/// Length of the shortest id in a runtime's message.
const ID_DIGITS_MIN: usize = 12;

fn hex_digits(text: &[u8]) -> usize {
    text.iter().take_while(|byte| byte.is_ascii_hexdigit()).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::RELIST_POD_BYTES_MAX;

    fn now(second: i64) -> Mono {
        Mono(second * 1_000_000_000)
    }

    #[test]
    fn a_repeated_event_is_counted_and_moves_to_the_end() {
        let mut ring = EventRing::default();
        let pod = PodKey::new("default", "web", "u1");
        assert!(ring.record((&pod).into(), EventKind::Normal, "Started", "one", now(1)));
        assert!(ring.record((&pod).into(), EventKind::Normal, "Started", "two", now(2)));
        assert!(!ring.record((&pod).into(), EventKind::Normal, "Started", "one", now(3)));
        let seen: Vec<_> = ring.iter().map(|e| (e.message, e.count, e.first, e.last, e.revision)).collect();
        let expected = [("two", 1, now(2), now(2), 2), ("one", 2, now(1), now(3), 3)];
        assert_eq!(seen, expected);
        assert_eq!(ring.revision(), 3);
    }

    #[test]
    fn events_with_different_messages_are_combined() {
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
        // Each once, and once when they are combined from then on.
        assert_eq!(logged, EVENTS_SIMILAR_MAX + 1);
        assert_eq!(ring.len(), 2 + EVENTS_SIMILAR_MAX);
        let last = ring.iter().last().expect("just added");
        assert_eq!(last.message, "(combined from similar events): Get http://10.0.0.1: port 999");
        let counted: u32 = ring.iter().filter(|e| e.reason == "Unhealthy").map(|e| e.count).sum();
        assert_eq!(counted, 999);
        // A message that still has its own entry is counted there.
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
    fn messages_that_differ_in_a_runtimes_id_are_the_same() {
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
    fn a_full_ring_drops_the_oldest_and_messages_are_cut() {
        let mut ring = EventRing::default();
        let pod = |number: usize| PodKey::new("default", "web", &format!("u{number}"));
        for number in 0..=EVENTS_MAX {
            ring.record((&pod(number)).into(), EventKind::Warning, "Failed", "it did", now(0));
        }
        assert_eq!(ring.len(), EVENTS_MAX);
        assert_eq!(ring.iter().next().expect("full").uid, "u1");
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

    /// Pods come and go for days: what their events take stays what those take that are shown.
    #[test]
    fn what_the_entries_of_pods_that_are_gone_have_left_is_left_out() {
        let mut ring = EventRing::default();
        let event = |number: usize| {
            (format!("web-{number}"), format!("uid-{number}"), format!("did it {number:0>100}"))
        };
        for number in 0..4 * EVENTS_MAX {
            let (name, uid, message) = event(number);
            let pod = PodKey::new("default", &name, &uid);
            let about = About::container(&pod, ContainerKind::App, "app");
            ring.record(about, EventKind::Normal, "Started", &message, now(1));
            // What is said again keeps its text.
            ring.record(about, EventKind::Normal, "Started", &message, now(2));
        }
        let shown: Vec<_> =
            ring.iter().map(|e| (e.name.to_owned(), e.uid.to_owned(), e.message.to_owned())).collect();
        assert_eq!(shown, (3 * EVENTS_MAX..4 * EVENTS_MAX).map(event).collect::<Vec<_>>());
        assert!(ring.iter().all(|e| e.field_path == Some("spec.containers{app}") && e.count == 2));
        assert_eq!(
            ring.iter().next().map(|e| e.to_owned().event().message.to_owned()),
            Some(event(3 * EVENTS_MAX).2)
        );
        let text: usize = ring.entries.iter().map(Entry::text_bytes).sum();
        assert!(
            ring.text.capacity() <= text + text / 8 + TEXT_STEP_BYTES,
            "{} for {text}",
            ring.text.capacity()
        );
        let most = EVENTS_MAX * (EVENT_MESSAGE_BYTES_MAX + RELIST_POD_BYTES_MAX);
        assert!(ring.bytes() <= most, "{}", ring.bytes());
    }

    #[test]
    fn a_full_ring_drops_entries_of_the_pod_with_the_most() {
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
        assert!(ring.iter().any(|e| e.uid == "quiet"), "its one entry is still there");
    }
}
