//! PURE: compares a relist with the last reads → the changed pods.
use std::collections::BTreeMap;
use std::hash::Hasher;

use super::FormerPods;
use crate::model::{ContainerId, ContainerState, ObservedPod, PodKey, PodUid, SandboxId, SandboxState};

/// Result of one relist, a few bytes a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Relist {
    /// The pods of interest that have sandboxes or containers in the runtime.
    pub pods: BTreeMap<PodUid, RelistPod>,
    /// Sandboxes that are not ours: counted, never changed.
    pub foreign_sandboxes: usize,
    /// Those of them that a former agent of this node may have created, by pod.
    pub former: FormerPods,
}

impl Relist {
    /// Moves a pod of a former agent to our pods. False when there is none of this UID.
    pub fn take_over(&mut self, uid: &PodUid) -> bool {
        let Some(former) = self.former.remove(uid) else { return false };
        self.pods.entry(uid.clone()).or_insert_with(|| RelistPod::new(&former.key));
        true
    }

    /// Takes the keys that are held of its pods already. Each relist reads them anew, and what is kept of them until the next one
    /// would lie wherever a burst has left room.
    pub fn share_keys<'a>(&mut self, held: impl Fn(&PodUid) -> Option<&'a PodKey>) {
        let shared = |(uid, pod): (PodUid, RelistPod)| match held(&uid).filter(|key| **key == pod.key) {
            Some(key) => (key.uid.clone(), RelistPod { key: key.clone(), ..pod }),
            None => (uid, pod),
        };
        self.pods = std::mem::take(&mut self.pods).into_iter().map(shared).collect();
    }

    /// Memory it takes, but for what a former agent has left.
    pub fn bytes(&self) -> usize {
        let entry = size_of::<(PodUid, RelistPod)>();
        self.pods.values().map(|pod| entry + pod.key.bytes()).sum()
    }
}

/// One pod in a relist.
#[derive(Clone, Debug, PartialEq)]
pub struct RelistPod {
    /// As in the labels of its sandbox or container.
    pub key: PodKey,
    /// A sandbox carries this node's annotation.
    pub made_here: bool,
    /// Changes when a sandbox or container appears, changes its state, or disappears.
    digest: Digest,
}

/// Digest of a pod's sandboxes and containers, independent of their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Digest(u64);

impl RelistPod {
    /// A pod without sandboxes and containers.
    pub fn new(key: &PodKey) -> Self {
        Self { key: key.clone(), made_here: false, digest: Digest::default() }
    }

    /// Adds a sandbox. The order of the runtime's list does not matter.
    pub fn note_sandbox(&mut self, id: &SandboxId, attempt: u32, ready: bool) {
        self.digest.note_sandbox(id, attempt, ready);
    }

    /// Adds a container.
    pub fn note_container(&mut self, id: &ContainerId, state: ContainerState) {
        self.digest.note_container(id, state);
    }
}

impl Digest {
    fn note_sandbox(&mut self, id: &SandboxId, attempt: u32, ready: bool) {
        self.note(id.as_str(), u64::from(attempt) << 8 | 0x40 | u64::from(ready));
    }

    fn note_container(&mut self, id: &ContainerId, state: ContainerState) {
        self.note(id.as_str(), 0x80 | state as u64);
    }

    fn note(&mut self, id: &str, what: u64) {
        // The default hasher has fixed keys: the same in every relist of this process.
        let mut hasher = std::hash::DefaultHasher::new();
        hasher.write(id.as_bytes());
        hasher.write_u64(what);
        self.0 = self.0.wrapping_add(hasher.finish());
    }
}

/// The digest of a relist in which the pod is as in this read; 0 without sandboxes and containers.
fn digest_of(observed: &ObservedPod) -> u64 {
    let mut pod = Digest::default();
    for sandbox in &observed.sandboxes {
        pod.note_sandbox(&sandbox.id, sandbox.attempt, sandbox.state == SandboxState::Ready);
    }
    for container in &observed.containers {
        pod.note_container(&container.id, container.state);
    }
    pod.0
}

impl Relist {
    /// `None` when the pod is as in this read, else the digest of its new state.
    pub fn differs(&self, uid: &PodUid, observed: &ObservedPod) -> Option<u64> {
        let listed = self.pods.get(uid).map_or(0, |pod| pod.digest.0);
        (listed != digest_of(observed)).then_some(listed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{SandboxStatus, Wall};

    fn observed(sandboxes: &[(&str, SandboxState)]) -> ObservedPod {
        let sandbox = |(id, state): &(&str, SandboxState)| SandboxStatus {
            id: SandboxId::from(*id),
            attempt: 1,
            state: *state,
            created_at: Wall(1),
            network_namespace: None,
            network: None,
        };
        ObservedPod { sandboxes: sandboxes.iter().map(sandbox).collect(), ..ObservedPod::default() }
    }

    fn relist(sandboxes: &[(&str, SandboxState)], containers: &[(&str, ContainerState)]) -> Relist {
        let mut relist = Relist::default();
        let key = PodKey::new("default", "a", "a");
        let pod = relist.pods.entry(key.uid.clone()).or_insert_with(|| RelistPod::new(&key));
        for (id, state) in sandboxes {
            pod.note_sandbox(&SandboxId::from(*id), 1, *state == SandboxState::Ready);
        }
        for (id, state) in containers {
            pod.note_container(&ContainerId::from(*id), *state);
        }
        relist
    }

    #[test]
    fn keys_that_are_held_already_are_shared() {
        let (held, other) = (PodKey::new("default", "a", "a"), PodKey::new("default", "other", "a"));
        let mut shared = relist(&[("1", SandboxState::Ready)], &[]);
        shared.share_keys(|_| Some(&other));
        assert!(!std::rc::Rc::ptr_eq(&shared.pods[&held.uid].key.name, &other.name), "another pod's");
        shared.share_keys(|uid| Some(&held).filter(|key| key.uid == *uid));
        assert!(std::rc::Rc::ptr_eq(&shared.pods[&held.uid].key.name, &held.name));
        assert_eq!(shared, relist(&[("1", SandboxState::Ready)], &[]));
    }

    #[test]
    fn a_pod_differs_by_any_appearance_state_or_disappearance_and_not_by_order() {
        use ContainerState::{Exited, Running};
        use SandboxState::{NotReady, Ready};
        let uid = PodUid::from("a");
        let read = observed(&[("1", Ready), ("2", NotReady)]);
        assert_eq!(relist(&[("2", NotReady), ("1", Ready)], &[]).differs(&uid, &read), None);
        let mut all = vec![
            relist(&[("1", Ready)], &[]),
            relist(&[("1", NotReady), ("2", NotReady)], &[]),
            relist(&[("1", Ready), ("2", NotReady)], &[("3", Running)]),
            relist(&[("1", Ready), ("2", NotReady)], &[("3", Exited)]),
            relist(&[("1", Ready), ("3", NotReady)], &[]),
            Relist::default(),
        ];
        let mut digests: Vec<u64> = all.drain(..).map(|now| now.differs(&uid, &read).unwrap()).collect();
        digests.sort_unstable();
        digests.dedup();
        assert_eq!(digests.len(), 6, "all digests differ");
        assert_eq!(Relist::default().differs(&uid, &ObservedPod::default()), None);
    }
}
