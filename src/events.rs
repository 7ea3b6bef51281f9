//! Why: a fixed-size ring of decisions and errors about pods, counted instead of repeated. PURE.
//!
//! `smolet describe` ends with it, and the log prints an entry when it is new: one line per real change.

use std::collections::VecDeque;
use std::rc::Rc;

use crate::limits::{EVENT_MESSAGE_BYTES_MAX, EVENTS_MAX};
use crate::model::{Mono, Now, PodKey, Wall};

/// As Kubernetes' `Event.type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// Something went as wanted.
    Normal,
    /// Something did not.
    Warning,
}

/// One decision or error, however often it was made.
#[derive(Clone, Debug)]
pub struct Event {
    /// Which pod it is about.
    pub pod: PodKey,
    /// Normal or warning.
    pub kind: EventKind,
    /// Kubernetes' event reason: `Pulling`, `Created`, `Killing`, `BackOff` ...
    pub reason: &'static str,
    /// One sentence; at most `EVENT_MESSAGE_BYTES_MAX` bytes.
    pub message: Rc<str>,
    /// How often.
    pub count: u32,
    /// First seen, for display.
    pub first: Wall,
    /// Last seen, for display.
    pub last: Wall,
    /// Last seen, for ordering.
    pub last_mono: Mono,
}

/// The ring. Full: the entry that was touched longest ago goes.
#[derive(Debug, Default)]
pub struct EventRing {
    entries: VecDeque<Event>,
}

impl EventRing {
    /// Notes an event; true when no entry says the same of this pod yet, so that it deserves a log line.
    pub fn record(
        &mut self,
        pod: &PodKey,
        kind: EventKind,
        reason: &'static str,
        message: &str,
        now: Now,
    ) -> bool {
        let message = cut(message, EVENT_MESSAGE_BYTES_MAX);
        let same =
            |e: &Event| e.pod.uid == pod.uid && e.reason == reason && same_but_ids(&e.message, message);
        if let Some(mut entry) = self.entries.iter().position(same).and_then(|at| self.entries.remove(at)) {
            entry.count = entry.count.saturating_add(1);
            entry.last = now.wall;
            entry.last_mono = now.mono;
            self.entries.push_back(entry);
            return false;
        }
        if self.entries.len() == EVENTS_MAX {
            self.entries.pop_front();
        }
        self.entries.push_back(Event {
            pod: pod.clone(),
            kind,
            reason,
            message: Rc::from(message),
            count: 1,
            first: now.wall,
            last: now.wall,
            last_mono: now.mono,
        });
        true
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
        let of = |e: &Event| size_of::<Event>() + e.message.len() + e.pod.bytes();
        self.entries.iter().map(of).sum()
    }

    /// True before the first event.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
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

/// At most `bytes_max` bytes of `text`, cut at a character.
pub fn cut(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now(second: i64) -> Now {
        Now { mono: Mono(second * 1_000_000_000), wall: Wall(second * 1_000_000_000) }
    }

    #[test]
    fn the_same_again_is_counted_and_moves_to_the_end() {
        let mut ring = EventRing::default();
        let pod = PodKey::new("default", "web", "u1");
        assert!(ring.record(&pod, EventKind::Normal, "Started", "one", now(1)));
        assert!(ring.record(&pod, EventKind::Normal, "Started", "two", now(2)));
        assert!(!ring.record(&pod, EventKind::Normal, "Started", "one", now(3)));
        let seen: Vec<_> = ring.iter().map(|e| (&*e.message, e.count, e.first, e.last)).collect();
        assert_eq!(seen, [("two", 1, now(2).wall, now(2).wall), ("one", 2, now(1).wall, now(3).wall)]);
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
        let pod = PodKey::new("default", "web", "u1");
        for second in 0..=i64::try_from(EVENTS_MAX).expect("small") {
            ring.record(&pod, EventKind::Warning, "Failed", &format!("number {second}"), now(second));
        }
        assert_eq!(ring.len(), EVENTS_MAX);
        assert_eq!(&*ring.iter().next().expect("full").message, "number 1");
        ring.record(&pod, EventKind::Warning, "Failed", &"é".repeat(EVENT_MESSAGE_BYTES_MAX), now(0));
        let last = ring.iter().last().expect("just added");
        assert!(
            last.message.len() <= EVENT_MESSAGE_BYTES_MAX && last.message.len() > EVENT_MESSAGE_BYTES_MAX - 2
        );
    }
}
