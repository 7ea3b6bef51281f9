//! PURE: two relists → the pods that changed.

use std::collections::BTreeMap;
use std::hash::Hasher;

use crate::model::{ContainerId, ContainerState, PodKey, PodUid, SandboxId};

/// What one relist found, a few bytes a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Relist {
    /// The pods of interest that have anything in the runtime.
    pub pods: BTreeMap<PodUid, RelistPod>,
    /// Sandboxes that are not ours: reported, never touched.
    pub foreign_sandboxes: usize,
}

/// One pod in a relist.
#[derive(Clone, Debug, PartialEq)]
pub struct RelistPod {
    /// As its sandbox or container names it.
    pub key: PodKey,
    /// A sandbox carries this node's annotation.
    pub made_here: bool,
    /// Changes with any sandbox's or container's appearance, state or disappearance.
    digest: u64,
}

impl RelistPod {
    /// A pod with nothing noted yet.
    pub fn new(key: &PodKey) -> Self {
        Self { key: key.clone(), made_here: false, digest: 0 }
    }

    /// Adds a sandbox. The order of the runtime's list does not matter.
    pub fn note_sandbox(&mut self, id: &SandboxId, attempt: u32, ready: bool) {
        self.note(id.as_str(), u64::from(attempt) << 8 | 0x40 | u64::from(ready));
    }

    /// Adds a container.
    pub fn note_container(&mut self, id: &ContainerId, state: ContainerState) {
        self.note(id.as_str(), 0x80 | state as u64);
    }

    fn note(&mut self, id: &str, what: u64) {
        // The default hasher has fixed keys: the same in every relist of this process.
        let mut hasher = std::hash::DefaultHasher::new();
        hasher.write(id.as_bytes());
        hasher.write_u64(what);
        self.digest = self.digest.wrapping_add(hasher.finish());
    }
}

/// UIDs of the pods that differ between two relists, gone ones included, in UID order.
pub fn changed<'a>(old: &'a Relist, new: &'a Relist) -> impl Iterator<Item = &'a PodUid> {
    let differs =
        |(uid, pod): &(&PodUid, &RelistPod)| old.pods.get(*uid).is_none_or(|o| o.digest != pod.digest);
    let gone = old.pods.keys().filter(|uid| !new.pods.contains_key(*uid));
    new.pods.iter().filter(differs).map(|(uid, _)| uid).chain(gone)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relist(pods: &[(&str, &[(&str, ContainerState)])]) -> Relist {
        let mut relist = Relist::default();
        for (uid, containers) in pods {
            let key = PodKey::new("default", uid, uid);
            let pod = relist.pods.entry(key.uid.clone()).or_insert_with(|| RelistPod::new(&key));
            for (id, state) in *containers {
                pod.note_container(&ContainerId::from(*id), *state);
            }
        }
        relist
    }

    #[test]
    fn a_change_of_any_kind_is_seen_once() {
        use ContainerState::{Exited, Running};
        let before =
            relist(&[("a", &[("1", Running), ("2", Running)]), ("b", &[("3", Running)]), ("c", &[])]);
        let reordered =
            relist(&[("c", &[]), ("b", &[("3", Running)]), ("a", &[("2", Running), ("1", Running)])]);
        let names = |old: &Relist, new: &Relist| -> Vec<String> {
            changed(old, new).map(ToString::to_string).collect()
        };
        assert_eq!(names(&before, &reordered), [""; 0]);
        for (after, expected) in [
            (relist(&[("a", &[("1", Running), ("2", Exited)]), ("b", &[("3", Running)]), ("c", &[])]), "a"),
            (relist(&[("a", &[("1", Running), ("2", Running)]), ("c", &[])]), "b"),
            (relist(&[("a", &[("1", Running), ("2", Running)]), ("b", &[("4", Running)]), ("c", &[])]), "b"),
            (
                relist(&[
                    ("a", &[("1", Running), ("2", Running)]),
                    ("b", &[("3", Running)]),
                    ("c", &[]),
                    ("d", &[("5", Running)]),
                ]),
                "d",
            ),
        ] {
            assert_eq!(names(&before, &after), [expected]);
        }
    }
}
