//! PURE: pods that a former agent of this node has left running, and the manifests that they belong to.
//!
//! Agents give a static pod different UIDs: each hashes the manifest in its own way. A pod is matched by what they write alike:
//! namespace, name, the file source, and the hashes of its containers.

use crate::limits::{FORMER_HASHES_MAX, FORMER_KEY_BYTES_MAX, FORMER_PODS_MAX, FORMER_UID_BYTES_MAX};
use crate::model::SortedMap;
use crate::model::{ContainerItem, DesiredPod, PodKey, PodUid, SandboxItem, SandboxState, Wall};

/// A pod of a former agent.
#[derive(Clone, Debug, PartialEq)]
pub struct FormerPod {
    /// As in the labels of its sandbox.
    pub key: PodKey,
    /// It is a static pod from a file.
    pub of_file: bool,
    /// One of its sandboxes is ready.
    ready: bool,
    /// Creation time of its newest sandbox.
    created_at: Wall,
    /// The distinct hashes of its containers.
    hashes: Vec<u64>,
    /// It has more hashes than are kept: no manifest adopts it.
    is_cut: bool,
}

/// All pods of a former agent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FormerPods(SortedMap<PodUid, FormerPod>);

impl FormerPods {
    /// Adds a sandbox that is not ours. Only those with a kubelet's labels count, and none of another smolet. `all`: whatever
    /// their source, not only files.
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
            // An unknown static pod would be started a second time.
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

    /// Iterates over them.
    pub fn iter(&self) -> impl Iterator<Item = &FormerPod> {
        self.0.values()
    }

    /// True for a UID of one of them.
    pub fn contains(&self, uid: &PodUid) -> bool {
        self.0.contains_key(uid)
    }

    /// Removes one that this agent takes over.
    pub fn remove(&mut self, uid: &PodUid) -> Option<FormerPod> {
        self.0.remove(uid)
    }

    /// Number of pods, and their memory.
    pub fn held(&self) -> (usize, usize) {
        let of = |pod: &FormerPod| pod.key.bytes() + pod.hashes.capacity() * size_of::<u64>();
        let entry = size_of::<(PodUid, FormerPod)>();
        (self.0.len(), self.0.values().map(|pod| entry + of(pod)).sum())
    }

    /// Those that may belong to the manifest of this pod, by name; the first value is the one that matches, if any.
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
    /// True when one of its sandboxes is ready.
    pub fn is_ready(&self) -> bool {
        self.ready
    }

    /// True when all its containers are containers of this pod; some of the pod's may not have been created.
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
    fn a_former_pod_is_matched_by_its_containers_hashes() {
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
    fn of_several_the_running_one_matches_then_the_newest() {
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
    fn only_a_kubelets_static_pods_match() {
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
        assert!(former.of_name(&wanted()).1.is_empty(), "an API server's pod belongs to no manifest");
    }

    #[test]
    fn the_number_of_former_pods_is_bounded() {
        let mut former = FormerPods::default();
        former.note_sandbox(&SandboxItem { of_file: false, ..sandbox("served", true, 1) }, true);
        for n in 0..FORMER_PODS_MAX {
            former.note_sandbox(&sandbox(&format!("u{n}"), true, 1), false);
        }
        assert_eq!(former.held().0, FORMER_PODS_MAX);
        assert!(former.iter().all(|pod| pod.of_file), "static pods are preferred");
        for n in 0..=FORMER_HASHES_MAX {
            former.note_container(&container("u0", &format!("c{n}"), "x"));
        }
        assert!(former.iter().any(|pod| pod.is_cut && pod.hashes.len() == FORMER_HASHES_MAX));
    }
}
