//! The back-off table (`flowcontrol.Backoff`): the waits of crashed containers and failed pulls.
//!
//! PURE. Fixed capacity, sixteen bytes an entry, no allocation after start-up. The wait doubles with every attempt up to the
//! maximum; it is reset when the container ran for longer than the reset time.
//!
//! ```text
//!     crash ──► next: 10 s ──► crash ──► next: 20 s ──► … ──► 300 s
//!                 └─ ran > 600 s after the last update ─► 10 s again
//! ```

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::time::Duration;

use k8s_openapi::api::core::v1::Container;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::limits::{
    BACKOFF_ENTRIES_MAX, BACKOFF_ENTRY_BYTES, BACKOFF_INITIAL, BACKOFF_RESET, CRASH_BACKOFF_MAX,
    IMAGE_BACKOFF_MAX,
};
use crate::model::{DesiredPod, Mono, PodUid};

/// Key of an entry: a 64-bit hash of a stable key. Keys that collide share one wait; in a full table the probability is 10^-13.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BackoffKey(u64);

impl BackoffKey {
    /// A container of a pod (`GetBackoffKey`): name, namespace, UID, container name, image and resources, so that
    /// a changed definition starts without a wait.
    pub fn container(pod: &DesiredPod, container: &Container) -> Self {
        Self(container_key(pod, container))
    }

    /// An image that a pod pulls (`imageManager.pullImage`): UID and image. FNV-1a, 64 bits; no UID contains `_`.
    pub fn image(pod: &PodUid, image: &str) -> Self {
        let bytes = pod.as_str().bytes().chain([b'_']).chain(image.bytes());
        Self(bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        }))
    }
}

impl BackoffKey {
    /// As stored in a checkpoint: the hashes are the same in every version.
    pub fn kept(self) -> u64 {
        self.0
    }

    /// From a checkpoint.
    pub fn from_kept(kept: u64) -> Self {
        Self(kept)
    }
}

/// The key of a container's crash back-off (`GetBackoffKey`): a change of its definition starts a new one.
///
/// The kubelet's key has resources as Go prints its parsed quantities; here as written in the manifest. The key is used only by
/// this agent, so it has to be stable only for the same definition.
fn container_key(pod: &DesiredPod, container: &Container) -> u64 {
    let mut key = Fnv64(0xcbf2_9ce4_8422_2325);
    // Writing to a hash does not fail.
    let _ = write!(
        key,
        "{}/{}/{}/{}/{}/&ResourceRequirements{{Limits:ResourceList{{",
        pod.key.name,
        pod.key.namespace,
        pod.key.uid,
        container.name,
        container.image.as_deref().unwrap_or_default()
    );
    let resources = container.resources.as_ref();
    key.amounts(resources.and_then(|resources| resources.limits.as_ref()));
    let _ = key.write_str("},Requests:ResourceList{");
    key.amounts(resources.and_then(|resources| resources.requests.as_ref()));
    let _ = key.write_str("},Claims:[]ResourceClaim{");
    for claim in resources.and_then(|resources| resources.claims.as_deref()).unwrap_or_default() {
        let request = claim.request.as_deref().unwrap_or_default();
        let _ = write!(key, "ResourceClaim{{Name:{},Request:{request},}},", claim.name);
    }
    let _ = key.write_str("},}");
    key.0
}

/// FNV-1a, 64 bits.
struct Fnv64(u64);

impl Fnv64 {
    fn amounts(&mut self, list: Option<&BTreeMap<String, Quantity>>) {
        for (name, amount) in list.into_iter().flatten() {
            let _ = write!(self, "{name}: {},", amount.0);
        }
    }
}

impl std::fmt::Write for Fnv64 {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        for byte in text.bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        Ok(())
    }
}

/// An entry. `packed` has the last update in milliseconds since the table's epoch (upper 40 bits: 34 years) and the wait in
/// milliseconds (lower 24 bits: 4.6 hours).
#[derive(Clone, Copy, Debug)]
struct Entry {
    key: u64,
    packed: u64,
}

const _: () = assert!(size_of::<Entry>() == BACKOFF_ENTRY_BYTES);
const _: () = assert!(CRASH_BACKOFF_MAX.as_millis() < 1 << WAIT_BITS);
const _: () = assert!(IMAGE_BACKOFF_MAX.as_millis() < 1 << WAIT_BITS);

const WAIT_BITS: u32 = 24;
const WAIT_MS_MAX: u64 = (1 << WAIT_BITS) - 1;
const UPDATED_MS_MAX: u64 = (1 << (64 - WAIT_BITS)) - 1;

impl Entry {
    fn new(key: BackoffKey, updated_ms: u64, wait_ms: u64) -> Self {
        Self { key: key.0, packed: updated_ms.min(UPDATED_MS_MAX) << WAIT_BITS | wait_ms.min(WAIT_MS_MAX) }
    }

    fn wait_ms(self) -> u64 {
        self.packed & WAIT_MS_MAX
    }

    fn updated_ms(self) -> u64 {
        self.packed >> WAIT_BITS
    }
}

/// End and length of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// The first instant at which the container may start.
    pub until: Mono,
    /// The whole wait, for the message.
    pub wait: Duration,
}

/// The table, sorted by key: a lookup is a binary search in at most 16 KiB.
#[derive(Clone, Debug)]
pub struct Backoff {
    entries: Vec<Entry>,
    epoch: Mono,
    initial_ms: u64,
    max_ms: u64,
    reset: Duration,
    changes: u64,
}

impl Backoff {
    /// An empty table that counts from `epoch`, with the waits of a restarting container: `longest` is
    /// `crashLoopBackOff.maxContainerRestartPeriod` (300 s unless configured), the first wait the smaller of it
    /// and 10 s.
    pub fn new(epoch: Mono, longest: Duration) -> Self {
        Self::with_limits(epoch, BACKOFF_INITIAL.min(longest), longest, BACKOFF_RESET)
    }

    /// The same table for image pulls: 10 s to 300 s, reset after twice the maximum (`flowcontrol.NewBackOff`).
    pub fn for_images(epoch: Mono) -> Self {
        Self::with_limits(epoch, BACKOFF_INITIAL, IMAGE_BACKOFF_MAX, 2 * IMAGE_BACKOFF_MAX)
    }

    /// A table with its own waits; both are cut at 4.6 hours.
    pub fn with_limits(epoch: Mono, initial: Duration, longest: Duration, reset: Duration) -> Self {
        let ms = |wait: Duration| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).min(WAIT_MS_MAX);
        Self {
            entries: Vec::with_capacity(BACKOFF_ENTRIES_MAX),
            // Restored entries were updated earlier; older ones have expired.
            epoch: epoch - 2 * reset,
            initial_ms: ms(initial),
            max_ms: ms(longest),
            reset,
            changes: 0,
        }
    }

    /// The current wait of a key, zero without an entry (`Backoff.Get`).
    pub fn wait(&self, key: BackoffKey) -> Duration {
        self.find(key).map_or(Duration::ZERO, |entry| Duration::from_millis(entry.wait_ms()))
    }

    /// The wait at `now` of a container that exited at `event` (`IsInBackOffSince`); `None` when it may start.
    ///
    /// `event` is `None` when the exit time is unknown, which counts as long ago.
    pub fn held_since(&self, key: BackoffKey, event: Option<Mono>, now: Mono) -> Option<Hold> {
        let entry = self.find(key)?;
        let event = event?;
        if self.is_expired(entry, Some(event)) {
            return None;
        }
        let wait = Duration::from_millis(entry.wait_ms());
        // An event in the future (of a record read after `now`) counts as `now`.
        (now.since(event) < wait).then(|| Hold { until: event + wait, wait })
    }

    /// The wait that began with the last update (`IsInBackOffSinceUpdate`, for image pulls).
    pub fn held_since_update(&self, key: BackoffKey, now: Mono) -> Option<Hold> {
        let entry = self.find(key)?;
        if self.is_expired(entry, Some(now)) {
            return None;
        }
        let wait = Duration::from_millis(entry.wait_ms());
        let updated = self.updated(entry);
        (now.since(updated) < wait).then(|| Hold { until: updated + wait, wait })
    }

    /// Records an attempt at `now` after an exit at `event`: the wait doubles or is reset (`Backoff.Next`).
    pub fn next(&mut self, key: BackoffKey, event: Option<Mono>, now: Mono) {
        let known = self.find(key).filter(|entry| !self.is_expired(*entry, event));
        let wait_ms = known.map_or(self.initial_ms, |entry| (entry.wait_ms() * 2).min(self.max_ms));
        self.put(key, wait_ms, now);
    }

    /// Sets a wait with its last update, from a checkpoint.
    pub fn restore(&mut self, key: BackoffKey, wait: Duration, at: Mono) {
        let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).min(self.max_ms);
        self.put(key, wait_ms, at);
    }

    /// Removes an entry (`Backoff.Reset`).
    pub fn forget(&mut self, key: BackoffKey) {
        if let Ok(index) = self.index(key) {
            self.entries.remove(index);
            self.changes += 1;
        }
    }

    /// Drops entries not updated for longer than the reset time (`Backoff.GC`).
    pub fn collect(&mut self, now: Mono) {
        let (epoch, reset) = (self.epoch, self.reset);
        self.entries.retain(|entry| now.since(epoch + Duration::from_millis(entry.updated_ms())) <= reset);
    }

    /// Key, wait, and time since the last update of every entry, for a checkpoint.
    pub fn waits(&self, now: Mono) -> impl Iterator<Item = (BackoffKey, Duration, Duration)> {
        self.entries.iter().map(move |entry| {
            let wait = Duration::from_millis(entry.wait_ms());
            (BackoffKey(entry.key), wait, now.since(self.updated(*entry)))
        })
    }

    /// Number of changes so far; an expiry is no change.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True without entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn index(&self, key: BackoffKey) -> Result<usize, usize> {
        self.entries.binary_search_by_key(&key.0, |entry| entry.key)
    }

    fn find(&self, key: BackoffKey) -> Option<Entry> {
        self.index(key).ok().map(|index| self.entries[index])
    }

    fn updated(&self, entry: Entry) -> Mono {
        self.epoch + Duration::from_millis(entry.updated_ms())
    }

    /// `HasExpiredFunc`: the container ran for longer than the reset time after the last update.
    fn is_expired(&self, entry: Entry, event: Option<Mono>) -> bool {
        event.is_some_and(|event| event.since(self.updated(entry)) > self.reset)
    }

    fn put(&mut self, key: BackoffKey, wait_ms: u64, now: Mono) {
        self.changes += 1;
        let updated_ms = u64::try_from(now.since(self.epoch).as_millis()).unwrap_or(u64::MAX);
        let entry = Entry::new(key, updated_ms, wait_ms);
        match self.index(key) {
            Ok(index) => self.entries[index] = entry,
            Err(index) if self.entries.len() < BACKOFF_ENTRIES_MAX => self.entries.insert(index, entry),
            Err(_) => {
                let oldest = (0..self.entries.len()).min_by_key(|&at| self.entries[at].updated_ms());
                if let Some(oldest) = oldest {
                    self.entries.remove(oldest);
                }
                let index = self.index(key).unwrap_or_else(|free| free);
                self.entries.insert(index, entry);
            }
        }
    }
}

/// A duration as Go prints it, for whole milliseconds: `10s`, `2m40s`, `1h0m0s`, `1.5s`, `500ms`, `0s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GoDuration(pub Duration);

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.as_millis();
        if ms > 0 && ms < 1000 {
            return write!(f, "{ms}ms");
        }
        let (hours, minutes, seconds, rest) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60, ms % 1000);
        if hours > 0 {
            write!(f, "{hours}h")?;
        }
        if hours > 0 || minutes > 0 {
            write!(f, "{minutes}m")?;
        }
        if rest == 0 {
            return write!(f, "{seconds}s");
        }
        let fraction = format!("{rest:03}");
        write!(f, "{seconds}.{}s", fraction.trim_end_matches('0'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn key(n: u64) -> BackoffKey {
        BackoffKey(n.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn at(seconds: u64) -> Mono {
        Mono(1_000_000_000_000) + S * u32::try_from(seconds).unwrap()
    }

    fn table() -> Backoff {
        Backoff::new(at(0), CRASH_BACKOFF_MAX)
    }

    #[test]
    fn a_changed_definition_changes_the_key() {
        let pod = serde_json::json!({
            "metadata": {"name": "web", "namespace": "prod", "uid": "u1"},
            "spec": {"containers": [{"name": "c", "image": "busybox", "resources": {"limits": {"cpu": "1"}}}]}
        });
        let pod = DesiredPod::new(serde_json::from_value(pod).unwrap());
        let container = &pod.containers()[0];
        let key = BackoffKey::container(&pod, container);
        let mut other = container.clone();
        other.resources = None;
        assert_ne!(BackoffKey::container(&pod, &other), key);
        let mut other = container.clone();
        other.working_dir = Some("/".into());
        assert_eq!(BackoffKey::container(&pod, &other), key);
    }

    #[test]
    fn a_wait_doubles_up_to_the_maximum_and_is_reset_after_a_long_run() {
        let mut table = table();
        let mut waits = Vec::new();
        for n in 0..8 {
            table.next(key(1), Some(at(n)), at(n));
            waits.push(table.wait(key(1)).as_secs());
        }
        assert_eq!(waits, [10, 20, 40, 80, 160, 300, 300, 300]);
        table.next(key(1), Some(at(7 + 600)), at(700));
        assert_eq!(table.wait(key(1)), 300 * S, "ran for exactly the reset time");
        table.next(key(1), Some(at(700 + 601)), at(1400));
        assert_eq!(table.wait(key(1)), 10 * S, "ran for longer");
    }

    #[test]
    fn a_wait_counts_from_the_end_of_the_container() {
        let mut table = table();
        assert_eq!(table.held_since(key(1), Some(at(0)), at(0)), None, "the first restart does not wait");
        table.next(key(1), Some(at(0)), at(5));
        assert_eq!(table.held_since(key(1), Some(at(6)), at(15)), Some(Hold { until: at(16), wait: 10 * S }));
        assert_eq!(table.held_since(key(1), Some(at(6)), at(16)), None, "strictly less");
        assert_eq!(table.held_since(key(1), None, at(5)), None, "an unknown exit time counts as long ago");
        assert_eq!(
            table.held_since(key(1), Some(at(20)), at(10)),
            Some(Hold { until: at(30), wait: 10 * S }),
            "an exit in the future counts as now"
        );
    }

    #[test]
    fn a_pull_waits_from_its_last_failure() {
        let mut table = Backoff::for_images(at(0));
        table.next(key(1), Some(at(0)), at(0));
        assert_eq!(table.held_since_update(key(1), at(9)), Some(Hold { until: at(10), wait: 10 * S }));
        assert_eq!(table.held_since_update(key(1), at(10)), None);
        assert_eq!(table.held_since_update(key(2), at(9)), None);
    }

    #[test]
    fn a_full_table_drops_the_least_recently_updated_entry() {
        let mut table = table();
        let room = table.entries.capacity();
        for n in 0..BACKOFF_ENTRIES_MAX as u64 {
            table.next(key(n), Some(at(n)), at(n));
        }
        table.next(key(0), Some(at(2000)), at(2000));
        table.next(key(5000), Some(at(2001)), at(2001));
        assert_eq!(table.len(), BACKOFF_ENTRIES_MAX);
        assert_eq!(table.entries.capacity(), room);
        assert_eq!(table.wait(key(1)), Duration::ZERO, "the oldest is gone");
        assert_eq!(table.wait(key(5000)), 10 * S);
        assert!(table.entries.is_sorted_by_key(|entry| entry.key));
        assert_eq!(table.wait(key(0)), 10 * S, "updated since, so it stays");
    }

    #[test]
    fn garbage_collection_keeps_recent_entries() {
        let mut table = table();
        table.next(key(1), None, at(0));
        table.next(key(2), None, at(1));
        table.collect(at(600));
        assert_eq!(table.len(), 2);
        table.collect(at(601));
        assert_eq!((table.len(), table.wait(key(2))), (1, 10 * S));
        table.forget(key(2));
        assert!(table.is_empty());
    }

    #[test]
    fn years_of_uptime_do_not_wrap() {
        let mut table = table();
        let year = 365 * 86_400;
        for years in [1, 10, 30] {
            let now = at(years * year);
            table.next(key(1), Some(now), now);
            assert_eq!(table.wait(key(1)), 10 * S, "after {years} years");
            assert_eq!(
                table.held_since_update(key(1), now + 9 * S).map(|hold| hold.until),
                Some(now + 10 * S),
                "after {years} years"
            );
        }
    }

    #[test]
    fn a_short_maximum_is_also_the_first_wait() {
        let mut table = Backoff::new(at(0), 4 * S);
        table.next(key(1), Some(at(0)), at(0));
        assert_eq!(table.wait(key(1)), 4 * S);
        table.restore(key(2), 100 * S, at(0));
        assert_eq!(table.wait(key(2)), 4 * S, "a restored wait is limited too");
    }

    #[test]
    fn a_stored_entry_is_restored_with_its_age() {
        let mut table = Backoff::for_images(at(1000));
        table.next(key(1), None, at(1000));
        table.next(key(1), None, at(1010));
        let kept: Vec<_> = table.waits(at(1013)).collect();
        assert_eq!(kept, [(key(1), 20 * S, 3 * S)]);
        assert_eq!(BackoffKey::from_kept(kept[0].0.kept()), key(1));
        let changes = table.changes();
        assert!(table.held_since_update(key(1), at(1029)).is_some());
        assert_eq!(table.changes(), changes, "reading is no change");
        // Another table, whose epoch is 5 s later.
        let mut table = Backoff::for_images(at(8));
        table.restore(kept[0].0, kept[0].1, at(8) - kept[0].2 - 5 * S);
        assert_eq!(table.held_since_update(key(1), at(9)), Some(Hold { until: at(20), wait: 20 * S }));
        assert_eq!(table.held_since_update(key(1), at(20)), None);
        table.restore(key(2), 20 * S, at(8) - 601 * S);
        table.collect(at(8));
        assert_eq!(table.len(), 1, "expired entries are dropped");
    }

    #[test]
    fn every_part_of_the_definition_changes_the_key() {
        let key = |uid: &str, container: serde_json::Value| {
            let pod = serde_json::json!({"metadata": {"name": "web", "namespace": "default", "uid": uid}});
            let pod = DesiredPod::new(serde_json::from_value(pod).unwrap());
            BackoffKey::container(&pod, &serde_json::from_value(container).unwrap())
        };
        let keys = [
            key("u1", serde_json::json!({"name": "c", "image": "img:1"})),
            key("u2", serde_json::json!({"name": "c", "image": "img:1"})),
            key("u1", serde_json::json!({"name": "d", "image": "img:1"})),
            key("u1", serde_json::json!({"name": "c", "image": "img:2"})),
            key(
                "u1",
                serde_json::json!({"name": "c", "image": "img:1", "resources": {"limits": {"cpu": "1"}}}),
            ),
            key(
                "u1",
                serde_json::json!({"name": "c", "image": "img:1", "resources": {"requests": {"cpu": "1"}}}),
            ),
            BackoffKey::image(&"u1".into(), "img:1"),
            BackoffKey::image(&"u1".into(), "img:2"),
        ];
        let different: crate::model::SortedSet<_> = keys.iter().collect();
        assert_eq!(different.len(), keys.len());
    }

    #[test]
    fn durations_are_shown_as_go_shows_them() {
        for (ms, shown) in [
            (0, "0s"),
            (500, "500ms"),
            (1500, "1.5s"),
            (10_000, "10s"),
            (160_000, "2m40s"),
            (300_000, "5m0s"),
            (3_600_000, "1h0m0s"),
            (3_661_050, "1h1m1.05s"),
        ] {
            assert_eq!(GoDuration(Duration::from_millis(ms)).to_string(), shown);
        }
    }
}
