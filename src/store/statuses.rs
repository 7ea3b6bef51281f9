//! PURE: the pods' statuses, one compact record each, within a fixed number of bytes.
//!
//! When the budget is exceeded, in this order and the largest record first, until it fits:
//!
//! ```text
//!     1. messages are cut              of pods that have ended, then of all others
//!     2. records are bared (`cut`)     of pods that have ended, then of all others
//!     3. records are dropped           of pods that no source wants
//!     4. the new status is refused     `limits.rs` proves that bared records of all wanted pods fit
//! ```
//!
//! A record that was cut stays so until an eighth of the budget is free again: pods do not push each other out in
//! turns. Each real change has a revision of its own, so that who has told one sees that there is another.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use k8s_openapi::api::core::v1::PodStatus;

use super::codec;
use super::cut::{Cut, cut};
use crate::limits::STATUS_ENTRY_BYTES;
use crate::model::PodUid;
use crate::status::Phase;

/// One pod's status.
#[derive(Debug)]
struct Entry {
    record: Box<[u8]>,
    revision: u64,
    cut: Cut,
    /// A source wants the pod; otherwise it is terminating, or not known to be desired yet.
    wanted: bool,
    /// The phase is terminal.
    ended: bool,
    /// The condition `AllContainersRestarting` holds.
    restarting: bool,
    /// Of what a boot does not find out anew by itself, see [`lasting`].
    digest: u32,
}

const _: () = assert!(size_of::<Entry>() + size_of::<PodUid>() <= STATUS_ENTRY_BYTES);

impl Entry {
    fn new(status: &PodStatus, cut: Cut) -> Self {
        let holds = |kind| crate::status::condition_holds(status, kind);
        Self {
            record: codec::encode(status).into_boxed_slice(),
            revision: 0,
            cut,
            wanted: true,
            ended: Phase::terminal(status.phase.as_deref()).is_some(),
            restarting: holds("AllContainersRestarting"),
            digest: 0,
        }
    }

    fn bytes(&self) -> usize {
        self.record.len() + STATUS_ENTRY_BYTES
    }
}

/// A digest of all but conditions and readiness: these come and go with a probe, and a boot begins without them.
fn lasting(mut status: PodStatus) -> u32 {
    status.conditions = None;
    let all = [&mut status.init_container_statuses, &mut status.container_statuses];
    for container in all.into_iter().flatten().flatten() {
        container.ready = false;
    }
    let mut hasher = DefaultHasher::new();
    codec::encode(&status).hash(&mut hasher);
    (hasher.finish() >> 32) as u32
}

/// Usage of the store, and the counts of cut and dropped statuses since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreUsage {
    /// Bytes in use.
    pub bytes: usize,
    /// The budget.
    pub bytes_max: usize,
    /// Pods with a status.
    pub records: usize,
    /// Records whose messages were cut.
    pub messages_cut: u64,
    /// Records that were bared.
    pub bared: u64,
    /// Records of unwanted pods that were dropped.
    pub evicted: u64,
    /// Statuses that were refused.
    pub refused: u64,
}

/// The store; the loop owns it.
#[derive(Debug)]
pub struct StatusStore {
    entries: BTreeMap<PodUid, Entry>,
    revision: u64,
    lasting: u64,
    used: usize,
    counts: StoreUsage,
}

impl StatusStore {
    /// An empty store with this budget (`limits::STATUS_STORE_BYTES_MIN` at least, or statuses may be refused).
    pub fn new(bytes_max: usize) -> Self {
        let counts = StoreUsage { bytes_max, ..StoreUsage::default() };
        Self { entries: BTreeMap::new(), revision: 0, lasting: 0, used: 0, counts }
    }

    /// Stores the pod's status. True when the stored status has changed, and with it the revision.
    pub fn put(&mut self, uid: &PodUid, mut status: PodStatus) -> bool {
        let known = self.entries.get(uid);
        let (old_cut, old_bytes) = known.map_or((Cut::Whole, 0), |entry| (entry.cut, entry.bytes()));
        let wanted = known.is_none_or(|entry| entry.wanted);
        let mut fresh = Entry::new(&status, Cut::Whole);
        let spare = self.limit() - self.limit() / 8;
        if old_cut != Cut::Whole && self.used - old_bytes + fresh.bytes() > spare {
            cut(&mut status, old_cut);
            fresh = Entry::new(&status, old_cut);
        }
        if known.is_some_and(|entry| entry.record == fresh.record) {
            return false;
        }
        fresh.digest = lasting(status);
        self.revision += 1;
        if known.is_none_or(|entry| entry.digest != fresh.digest) {
            self.lasting += 1;
        }
        fresh.revision = self.revision;
        fresh.wanted = wanted;
        self.used = self.used - old_bytes + fresh.bytes();
        let before = self.entries.insert(uid.clone(), fresh);
        self.make_room();
        if self.used <= self.limit() {
            return true;
        }
        // Refused: the former status is kept.
        self.counts.refused += 1;
        self.take_out(uid);
        if let Some(before) = before {
            self.used += before.bytes();
            self.entries.insert(uid.clone(), before);
        }
        false
    }

    /// The pod's status, if it has one.
    pub fn status(&self, uid: &PodUid) -> Option<PodStatus> {
        // A record was written by `codec::encode`, or checked by `codec::decode` before it was stored.
        codec::decode(&self.entries.get(uid)?.record).ok()
    }

    /// The pod has a status.
    pub fn contains(&self, uid: &PodUid) -> bool {
        self.entries.contains_key(uid)
    }

    /// The pod's phase is Succeeded or Failed.
    pub fn has_ended(&self, uid: &PodUid) -> bool {
        self.entries.get(uid).is_some_and(|entry| entry.ended)
    }

    /// The pod's containers are all restarting in place (its condition `AllContainersRestarting`).
    pub fn is_restarting(&self, uid: &PodUid) -> bool {
        self.entries.get(uid).is_some_and(|entry| entry.restarting)
    }

    /// Sets whether a source wants the pod: an unwanted pod's record is dropped first when the store is full.
    pub fn set_wanted(&mut self, uid: &PodUid, wanted: bool) {
        if let Some(entry) = self.entries.get_mut(uid) {
            entry.wanted = wanted;
        }
    }

    /// Removes a pod.
    pub fn forget(&mut self, uid: &PodUid) {
        if self.take_out(uid).is_none() {
            return;
        }
        self.revision += 1;
        self.lasting += 1;
    }

    /// Revision of the last change of any status; 0 before the first.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The number of changes of statuses so far, but for those of conditions and readiness alone.
    pub fn lasting_changes(&self) -> u64 {
        self.lasting
    }

    /// Revision of the last change of the pod's status; 0 without one.
    pub fn revision_of(&self, uid: &PodUid) -> u64 {
        self.entries.get(uid).map_or(0, |entry| entry.revision)
    }

    /// The records as they are kept, for the checkpoint.
    pub fn records(&self) -> impl Iterator<Item = (&PodUid, &[u8])> {
        self.entries.iter().map(|(uid, entry)| (uid, &*entry.record))
    }

    /// Current usage.
    pub fn usage(&self) -> StoreUsage {
        StoreUsage { bytes: self.used, records: self.entries.len(), ..self.counts }
    }

    fn limit(&self) -> usize {
        self.counts.bytes_max
    }

    fn take_out(&mut self, uid: &PodUid) -> Option<Entry> {
        let entry = self.entries.remove(uid)?;
        self.used -= entry.bytes();
        Some(entry)
    }

    fn make_room(&mut self) {
        while self.used > self.limit() && (self.cut_one(Cut::Messages) || self.cut_one(Cut::Bare)) {}
        while self.used > self.limit() {
            let unwanted = self.entries.iter().filter(|(_, entry)| !entry.wanted);
            let Some(uid) = unwanted.max_by_key(|(_, entry)| entry.bytes()).map(|(uid, _)| uid.clone())
            else {
                return;
            };
            self.counts.evicted += 1;
            self.forget(&uid);
        }
    }

    /// Cuts the next record. False when all records are cut this far.
    fn cut_one(&mut self, how: Cut) -> bool {
        let left = self.entries.iter_mut().filter(|(_, entry)| entry.cut < how);
        let Some((_, entry)) = left.max_by_key(|(_, entry)| (entry.ended, entry.bytes())) else {
            return false;
        };
        // Marked even when it did not get smaller, so that the next call cuts another one.
        entry.cut = how;
        let Ok(mut status) = codec::decode(&entry.record) else { return true };
        cut(&mut status, how);
        let record = codec::encode(&status).into_boxed_slice();
        if record != entry.record {
            self.used = self.used + record.len() - entry.record.len();
            entry.record = record;
            self.revision += 1;
            entry.revision = self.revision;
            match how {
                Cut::Whole => {}
                Cut::Messages => self.counts.messages_cut += 1,
                Cut::Bare => self.counts.bared += 1,
            }
        }
        true
    }
}
