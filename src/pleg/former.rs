//! PURE: pods that a former agent of this node has left running, and which of them is a manifest's pod.
//!
//! A static pod's UID is another one from agent to agent, for it is a hash of what each makes of the manifest. What both
//! write alike tells whose pod it is: namespace, name, that it came from a file, and the hashes of its containers.

use crate::limits::{FORMER_HASHES_MAX, FORMER_KEY_BYTES_MAX, FORMER_PODS_MAX, FORMER_UID_BYTES_MAX};
use crate::model::SortedMap;
use crate::model::{ContainerItem, DesiredPod, PodKey, PodUid, SandboxItem, SandboxState, Wall};

/// One of them.
#[derive(Clone, Debug, PartialEq)]
pub struct FormerPod {
    /// As its sandbox names it.
    pub key: PodKey,
    /// It came from a file.
    pub of_file: bool,
    /// A sandbox of it is ready.
    ready: bool,
    /// When its newest sandbox was made.
    created_at: Wall,
    /// The hashes of its containers, each once.
    hashes: Vec<u64>,
    /// It has more of them than are kept: it is nobody's then.
    is_cut: bool,
}

/// All of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FormerPods(SortedMap<PodUid, FormerPod>);

impl FormerPods {
    /// Adds a sandbox that is not ours. Only those with a kubelet's labels count, and none of another smolet's. `all`:
    /// whatever they came from, not from files alone.
    pub fn note_sandbox(&mut self, sandbox: &SandboxItem, all: bool) {
        let counts = sandbox.labelled
            && sandbox.node.is_none()
            && (all || sandbox.of_file)
            && sandbox.pod.is_path_safe()
            && sandbox.pod.bytes() <= FORMER_KEY_BYTES_MAX
            && sandbox.pod.uid.as_str().len() <= FORMER_UID_BYTES_MAX;
        if !counts {
            return;
        }
        if self.0.len() >= FORMER_PODS_MAX && !self.0.contains_key(&sandbox.pod.uid) {
            // A static pod that is not known would be begun once more beside itself.
            let other = self.0.values().find(|pod| sandbox.of_file && !pod.of_file);
            let Some(other) = other.map(|pod| pod.key.uid.clone()) else { return };
            self.0.remove(&other);
        }
        let pod = self.0.entry(sandbox.pod.uid.clone()).or_insert_with(|| FormerPod {
            key: sandbox.pod.clone(),
            of_file: sandbox.of_file,
            ready: false,
            created_at: sandbox.created_at,
            hashes: Vec::new(),
            is_cut: false,
        });
        pod.ready |= sandbox.state == SandboxState::Ready;
        pod.created_at = pod.created_at.max(sandbox.created_at);
    }

    /// Adds a container.
    pub fn note_container(&mut self, container: &ContainerItem) {
        let pod = container.pod.as_ref().and_then(|key| self.0.get_mut(&key.uid));
        let Some(pod) = pod.filter(|pod| !pod.hashes.contains(&container.hash)) else { return };
        if pod.hashes.len() < FORMER_HASHES_MAX {
            pod.hashes.push(container.hash);
        } else {
            pod.is_cut = true;
        }
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = &FormerPod> {
        self.0.values()
    }

    /// Whether it is one of them.
    pub fn contains(&self, uid: &PodUid) -> bool {
        self.0.contains_key(uid)
    }

    /// One that is ours from now on.
    pub fn remove(&mut self, uid: &PodUid) -> Option<FormerPod> {
        self.0.remove(uid)
    }

    /// How many, and the memory they take.
    pub fn held(&self) -> (usize, usize) {
        let of = |pod: &FormerPod| pod.key.bytes() + pod.hashes.capacity() * size_of::<u64>();
        let entry = size_of::<(PodUid, FormerPod)>();
        (self.0.len(), self.0.values().map(|pod| entry + of(pod)).sum())
    }

    /// Those that were made of a manifest for a pod of this one's name; the first is the pod itself, if one of them is.
    pub fn of_name(&self, pod: &DesiredPod) -> (Option<&FormerPod>, Vec<&FormerPod>) {
        let same = |of: &&FormerPod| {
            of.of_file && of.key.namespace == pod.key.namespace && of.key.name == pod.key.name
        };
        let all: Vec<&FormerPod> = self.0.values().filter(same).collect();
        let is_it = |of: &&&FormerPod| of.agrees_with(pod);
        (all.iter().filter(is_it).max_by_key(|of| (of.ready, of.created_at)).copied(), all)
    }
}

impl FormerPod {
    /// A sandbox of it is ready.
    pub fn is_ready(&self) -> bool {
        self.ready
    }

    /// It has containers of this pod and no others; some may never have been made.
    fn agrees_with(&self, pod: &DesiredPod) -> bool {
        let is_named = |hash: &u64| {
            pod.init_hashes.iter().chain(&pod.app_hashes).any(|named| u64::from(*named) == *hash)
        };
        !self.is_cut && !self.hashes.is_empty() && self.hashes.iter().all(is_named)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ContainerId, ContainerState, SandboxId, container_hash};
    use serde_json::json;

    fn wanted() -> DesiredPod {
        let pod = json!({"metadata": {"name": "web-gw", "namespace": "default", "uid": "own"}, "spec": {
            "initContainers": [{"name": "i", "image": "init"}],
            "containers": [{"name": "a", "image": "x"}, {"name": "b", "image": "y"}]}});
        DesiredPod::new(serde_json::from_value(pod).unwrap())
    }

    fn sandbox(uid: &str, ready: bool, at: i64) -> SandboxItem {
        SandboxItem {
            id: SandboxId::from("s"),
            pod: PodKey::new("default", "web-gw", uid),
            attempt: 0,
            state: if ready { SandboxState::Ready } else { SandboxState::NotReady },
            created_at: Wall(at),
            node: None,
            labelled: true,
            of_file: true,
        }
    }

    fn container(uid: &str, name: &str, image: &str) -> ContainerItem {
        ContainerItem {
            id: ContainerId::from("c"),
            sandbox_id: SandboxId::from("s"),
            pod: Some(PodKey::new("default", "web-gw", uid)),
            name: name.into(),
            attempt: 0,
            state: ContainerState::Running,
            created_at: Wall(1),
            image: "".into(),
            hash: container_hash(name, image).into(),
        }
    }

    #[test]
    fn the_hashes_of_its_containers_tell_whose_pod_it_is() {
        for (containers, is_it) in [
            (&["a x", "b y"][..], true),
            (&["i init", "a x", "b y", "a x"], true),
            (&["i init"], true),
            (&["a x"], true),
            (&["a x", "b z"], false),
            (&["a x", "b y", "c z"], false),
            (&[], false),
        ] {
            let mut former = FormerPods::default();
            former.note_sandbox(&sandbox("theirs", true, 1), false);
            for (name, image) in containers.iter().filter_map(|text| text.split_once(' ')) {
                former.note_container(&container("theirs", name, image));
            }
            let (found, all) = former.of_name(&wanted());
            assert_eq!((found.is_some(), all.len()), (is_it, 1), "{containers:?}");
        }
    }

    #[test]
    fn of_several_it_is_the_one_that_runs_then_the_newest() {
        let mut former = FormerPods::default();
        for (uid, ready, at) in [("old", true, 1), ("newer", true, 2), ("dead", false, 3)] {
            former.note_sandbox(&sandbox(uid, ready, at), false);
            former.note_container(&container(uid, "a", "x"));
            former.note_container(&container(uid, "b", "y"));
        }
        let (found, all) = former.of_name(&wanted());
        assert_eq!((found.map(|of| of.key.uid.as_str()), all.len()), (Some("newer"), 3));
    }

    #[test]
    fn what_no_kubelet_made_of_a_file_is_none() {
        let mut former = FormerPods::default();
        for odd in [
            SandboxItem { labelled: false, ..sandbox("u", true, 1) },
            SandboxItem { of_file: false, ..sandbox("u", true, 1) },
            SandboxItem { node: Some("other".into()), ..sandbox("u", true, 1) },
            sandbox("..", true, 1),
            sandbox(&"u".repeat(FORMER_UID_BYTES_MAX + 1), true, 1),
        ] {
            former.note_sandbox(&odd, false);
        }
        assert_eq!(former.held(), (0, 0));
        former.note_sandbox(&SandboxItem { of_file: false, ..sandbox("u", true, 1) }, true);
        assert_eq!(former.held().0, 1);
        assert!(former.of_name(&wanted()).1.is_empty(), "an API server's pod is no manifest's");
    }

    #[test]
    fn there_are_only_so_many() {
        let mut former = FormerPods::default();
        former.note_sandbox(&SandboxItem { of_file: false, ..sandbox("served", true, 1) }, true);
        for n in 0..FORMER_PODS_MAX {
            former.note_sandbox(&sandbox(&format!("u{n}"), true, 1), false);
        }
        assert_eq!(former.held().0, FORMER_PODS_MAX);
        assert!(former.iter().all(|pod| pod.of_file), "these first");
        for n in 0..=FORMER_HASHES_MAX {
            former.note_container(&container("u0", &format!("c{n}"), "x"));
        }
        assert!(former.iter().any(|pod| pod.is_cut && pod.hashes.len() == FORMER_HASHES_MAX));
    }
}
