//! A cache of API server decisions with expiry, so that not every request needs a review. PURE.
use std::time::Duration;

use sha2::{Digest as _, Sha256};

use crate::metrics::{Entered, Gauge};
use crate::model::Mono;
use crate::model::SortedMap;

/// The digest of a request; tokens are not kept in plain text.
pub(super) type Key = [u8; 32];

/// The key of these parts, in this order.
pub(super) fn key(parts: &[&str]) -> Key {
    let mut digest = Sha256::new();
    for part in parts {
        // With its length, so that different lists of parts differ in the digest.
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part.as_bytes());
    }
    digest.finalize().into()
}

/// Decisions by key. Full: the one that expires first is dropped.
pub(super) struct DecisionCache<T> {
    entries_max: usize,
    entries: SortedMap<Key, (Mono, T, Entered)>,
    held: Gauge,
}

impl<T: Clone> DecisionCache<T> {
    /// A cache of at most `entries_max` decisions, which `held` counts.
    pub(super) fn new(entries_max: usize, held: Gauge) -> Self {
        Self { entries_max, entries: SortedMap::new(), held }
    }

    /// The cached decision, until it expires.
    pub(super) fn get(&self, key: &Key, now: Mono) -> Option<T> {
        self.entries.get(key).filter(|(until, ..)| now < *until).map(|(_, known, _)| known.clone())
    }

    /// Caches it for `time`; not at all when that is zero.
    pub(super) fn put(&mut self, key: Key, known: T, now: Mono, time: Duration) {
        if time.is_zero() {
            return;
        }
        self.entries.retain(|_, (until, ..)| now < *until);
        if self.entries.len() >= self.entries_max && !self.entries.contains_key(&key) {
            let first = self.entries.iter().min_by_key(|(_, (until, ..))| *until).map(|(key, _)| *key);
            first.map(|key| self.entries.remove(&key));
        }
        self.entries.insert(key, (now + time, known, self.held.enter()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: i64) -> Mono {
        Mono(seconds * 1_000_000_000)
    }

    #[test]
    fn what_is_known_is_forgotten_in_time() {
        let mut known = DecisionCache::new(2, Gauge::default());
        known.put(key(&["a"]), 1, at(0), Duration::from_secs(10));
        assert_eq!(known.get(&key(&["a"]), at(9)), Some(1));
        assert_eq!(known.get(&key(&["a"]), at(10)), None);
        known.put(key(&["none"]), 2, at(0), Duration::ZERO);
        assert_eq!(known.get(&key(&["none"]), at(0)), None);
    }

    #[test]
    fn the_one_whose_time_is_over_first_makes_room() {
        let mut known = DecisionCache::new(2, Gauge::default());
        known.put(key(&["long"]), 1, at(0), Duration::from_secs(30));
        known.put(key(&["short"]), 2, at(1), Duration::from_secs(10));
        known.put(key(&["new"]), 3, at(2), Duration::from_secs(20));
        let get = |name: &str| known.get(&key(&[name]), at(3));
        assert_eq!([get("long"), get("short"), get("new")], [Some(1), None, Some(3)]);
        known.put(key(&["new"]), 4, at(3), Duration::from_secs(20));
        assert_eq!(known.entries.len(), 2);
    }

    #[test]
    fn parts_are_told_apart() {
        assert_ne!(key(&["ab", "c"]), key(&["a", "bc"]));
        assert_ne!(key(&["a"]), key(&["a", ""]));
    }
}
