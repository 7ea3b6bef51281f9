//! The cgroups of pods and of their classes: made before a pod's sandbox, removed with the pod.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::cgroup::{Cgroups, Missing};
use crate::cri::Runtime;
use crate::model::{DesiredPod, PodKey};
use crate::render::cgroup_settings::{class_settings, pod_settings};
use crate::render::{CgroupDriver, NodeSettings, paths};
use crate::sync::act::ActContext;
use crate::sync::start::create_dir;
use crate::volume;

/// The node's cgroups. One of it; a job has a clone.
#[derive(Clone)]
pub(super) struct NodeCgroups {
    hierarchies: Arc<Cgroups>,
    classes: Arc<Classes>,
}

/// What the classes of pods weigh. Jobs end in any order, so each writes what was told last and not what held at its begin,
/// one after the other.
#[derive(Default)]
struct Classes {
    /// Thousandths of a CPU that the node's burstable pods ask for together.
    burstable_milli_cpu: Mutex<i64>,
    /// Held while it is written; the loop takes the other lock alone, and never waits for a file.
    turn: Mutex<()>,
}

impl NodeCgroups {
    pub(super) fn new(hierarchies: Cgroups) -> Self {
        Self { hierarchies: Arc::new(hierarchies), classes: Arc::default() }
    }

    /// From now on the node's burstable pods ask for so many thousandths of a CPU: the next job writes it that makes a pod's
    /// cgroup or removes one.
    pub(super) fn tell(&self, burstable_milli_cpu: i64) {
        *lock(&self.classes.burstable_milli_cpu) = burstable_milli_cpu;
    }

    /// `UpdateQOSCgroups`, `EnsureExists`.
    pub(super) async fn ensure<R: Runtime>(
        &self,
        ctx: &ActContext<R>,
        pod: &DesiredPod,
    ) -> Result<(), String> {
        if ctx.node.cgroup_driver == CgroupDriver::Systemd {
            return Ok(());
        }
        let (cgroups, node) = (self.clone(), NodeSettings::clone(&ctx.node));
        let (settings, pod_dir) = (pod_settings(&node, pod), paths::pod_dir(&node, &pod.key));
        let set = ctx.blocking.run_for(&pod.key.uid, move || {
            // By its directory is found what an agent that was killed has left of a pod.
            create_dir(&pod_dir, 0o750).map_err(|error| format!("pod directory {pod_dir}: {error}"))?;
            cgroups.weigh_classes(&node, Missing::Make);
            cgroups.hierarchies.set(&settings, Missing::Make).map_err(|error| error.to_string())
        });
        set.await?.map(drop)
    }

    /// The cgroups of a stopped pod, then its directory, by which an agent that was killed meanwhile finds it again.
    pub(super) async fn remove<R: Runtime>(&self, ctx: &ActContext<R>, key: &PodKey) -> Result<(), String> {
        let (cgroups, node, uid) = (self.clone(), NodeSettings::clone(&ctx.node), key.uid.to_string());
        let removed = ctx.blocking.run_for(&key.uid, move || {
            cgroups.remove_from_disk(&node, &uid)?;
            cgroups.weigh_classes(&node, Missing::Leave);
            Ok(())
        });
        removed.await?
    }

    /// As [`Self::remove`], of a pod that is nowhere else. Blocking.
    pub(super) fn remove_from_disk(&self, node: &NodeSettings, uid: &str) -> Result<(), String> {
        let removed = self.hierarchies.remove_pod(node, uid).map_err(|error| error.to_string())?;
        if !removed.killed.is_empty() {
            log::warn!(
                "pod {uid}: of no container that the runtime knows, and killed: processes {:?}",
                removed.killed
            );
        }
        volume::remove_pod_dir(&Path::new(&*node.root_dir).join("pods").join(uid)).map_err(|error| error.0)
    }

    /// Gives the classes their weights: with each sandbox that is made and each pod that is removed, where the kubelet looks
    /// every minute too. As there a failure is no pod's: it is told, and tried the next time. Blocking.
    fn weigh_classes(&self, node: &NodeSettings, missing: Missing) {
        if node.cgroup_driver == CgroupDriver::Systemd {
            return;
        }
        let _turn = lock(&self.classes.turn);
        let milli_cpu = *lock(&self.classes.burstable_milli_cpu);
        for settings in class_settings(node, milli_cpu) {
            if let Err(error) = self.hierarchies.set(&settings, missing) {
                log::warn!("weight of a class of pods: {error}");
            }
        }
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::CgroupVersion;

    /// Two jobs began, with one pod's 250m and with another's 1500m more; the later one's thread is done first.
    #[test]
    fn the_classes_weigh_what_was_told_last_whoever_writes_last() {
        let name = format!("smolet-weights-{}", std::process::id());
        let root = std::env::temp_dir().join(name);
        let class = root.join("kubepods/burstable");
        std::fs::create_dir_all(&class).unwrap();
        // The kernel fills a new cgroup with files; here the test does.
        std::fs::write(class.join("cpu.shares"), "1024\n").unwrap();
        let mounts = format!("cgroup {} cgroup rw,cpu 0 0\n", root.display());
        let cgroups = NodeCgroups::new(Cgroups::from_mounts(&mounts, &root));
        let mut node = NodeSettings::new("n", "/r");
        node.cgroup_version = CgroupVersion::V1 { swap_controller: false };
        let begin = |milli_cpu| {
            cgroups.tell(milli_cpu);
            let (of_job, node) = (cgroups.clone(), node.clone());
            move || of_job.weigh_classes(&node, Missing::Leave)
        };
        let (older, newer) = (begin(250), begin(1750));
        std::thread::spawn(newer).join().unwrap();
        std::thread::spawn(older).join().unwrap();
        let weight = std::fs::read_to_string(class.join("cpu.shares")).unwrap();
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(weight, "1792");
    }
}
