//! The cgroups of pods and of their classes: made before a pod's sandbox, removed with the pod.
//!
//! With the driver systemd the directories are systemd's. It is asked for a slice only when the slice is not there or its
//! files are not as wanted; what systemd has no property for is written behind it. A slice is stopped before its
//! directories are removed, as in the kubelet: else systemd would make them anew, and keep the unit until the next boot.
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::blocking::{Blocking, Stuck};
use crate::cgroup::{Cgroups, Missing, SettingError};
use crate::cri::Runtime;
use crate::model::SortedSet;
use crate::model::{DesiredPod, PodUid};
use crate::render::cgroup_name::pod_cgroup_candidates;
use crate::render::cgroup_settings::{CgroupSettings, PodLimits, PodPart, class_settings, pod_settings};
use crate::render::slice::unit_of;
use crate::render::{NodeSettings, paths};
use crate::sync::act::{ActContext, CgroupFuture, PodCgroups};
use crate::sync::files::create_dir;
use crate::systemd::{Session, Systemd, SystemdError};
use crate::volume::{self, VolumeError};

/// The node's cgroups. One of it; a job has a clone.
#[derive(Clone)]
pub(super) struct NodeCgroups {
    pub(super) hierarchies: Arc<Cgroups>,
    classes: Arc<Classes>,
    /// With its driver.
    systemd: Option<Rc<Systemd>>,
}

/// What the classes of pods weigh. Jobs end in any order, so each writes what was told last and not what held at its begin,
/// one after the other.
#[derive(Default)]
struct Classes {
    /// Thousandths of a CPU that the node's burstable pods ask for together.
    burstable_milli_cpu: Mutex<i64>,
    /// Held while it is written; the loop takes the other lock alone, and never waits for a file. systemd's turn does the same.
    turn: Mutex<()>,
}

/// A slice, or its cgroups, that are not as wanted.
pub(super) enum SliceError {
    Systemd(SystemdError),
    Files(SettingError),
    Stuck(Stuck),
}

impl From<Stuck> for SliceError {
    fn from(stuck: Stuck) -> Self {
        Self::Stuck(stuck)
    }
}

impl From<SystemdError> for SliceError {
    fn from(error: SystemdError) -> Self {
        Self::Systemd(error)
    }
}

impl std::fmt::Display for SliceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Systemd(error) => error.fmt(f),
            Self::Files(error) => error.fmt(f),
            Self::Stuck(stuck) => stuck.fmt(f),
        }
    }
}

/// Removes a pod's directory ([`volume::remove_pod_dir`]), or what of it an ended pod needs no more
/// ([`volume::remove_volumes`]), or a piece of it. Whether all is gone.
pub(super) type RemoveFiles = fn(&Path) -> Result<bool, VolumeError>;

impl NodeCgroups {
    /// `systemd` is asked for slices, with its driver.
    pub(super) fn new(hierarchies: Cgroups, systemd: Option<Systemd>) -> Self {
        Self { hierarchies: Arc::new(hierarchies), classes: Arc::default(), systemd: systemd.map(Rc::new) }
    }

    /// From now on the node's burstable pods ask for so many thousandths of a CPU: the next job writes it that makes a pod's
    /// cgroup or removes one.
    pub(super) fn set_burstable_milli_cpu(&self, burstable_milli_cpu: i64) {
        *lock(&self.classes.burstable_milli_cpu) = burstable_milli_cpu;
    }

    /// `UpdateQOSCgroups`, `EnsureExists`.
    pub(super) async fn ensure<R: Runtime>(
        &self,
        ctx: &ActContext<R>,
        pod: &DesiredPod,
    ) -> Result<(), String> {
        let (uid, node, settings) = (&pod.key.uid, &ctx.node, pod_settings(&ctx.node, pod));
        let pod_dir = paths::pod_dir(node, &pod.key);
        let make_dir = move || {
            // By its directory is found what an agent that was killed has left of a pod.
            create_dir(&pod_dir, 0o750).map_err(|error| format!("pod directory {pod_dir}: {error}"))
        };
        let Some(systemd) = &self.systemd else {
            let (hierarchies, classes, node) =
                (self.hierarchies.clone(), self.classes.clone(), NodeSettings::clone(node));
            let set = ctx.manager.blocking.run_for(uid, move || {
                make_dir()?;
                classes.write(&hierarchies, &node, Missing::Make);
                hierarchies.set(&settings, Missing::Make).map_err(|error| error.to_string())
            });
            return set.await?.map(drop);
        };
        ctx.manager.blocking.run_for(uid, make_dir).await??;
        let set = async {
            let mut turn = systemd.session().await?;
            self.weigh_slices(ctx, uid, &mut turn, Missing::Make).await?;
            self.set_slice(&ctx.manager.blocking, node, uid, Some(&mut turn), settings, Missing::Make).await
        };
        set.await.map_err(|error: SliceError| error.to_string())
    }

    /// Gives the classes their weights when a pod is gone. A failure is told, as in the kubelet, and tried the next time.
    pub(super) async fn weigh<R: Runtime>(&self, ctx: &ActContext<R>, uid: &PodUid) {
        if let Some(systemd) = &self.systemd {
            let weighed = async {
                let mut turn = systemd.session().await?;
                self.weigh_slices(ctx, uid, &mut turn, Missing::Leave).await
            };
            if let Err(error) = weighed.await {
                log::warn!("setting the cgroup weight of the QoS classes failed: {error}");
            }
        } else {
            let (hierarchies, classes, node) =
                (self.hierarchies.clone(), self.classes.clone(), NodeSettings::clone(&ctx.node));
            let weighed = move || classes.write(&hierarchies, &node, Missing::Leave);
            if let Err(stuck) = ctx.manager.blocking.run_for(uid, weighed).await {
                log::warn!("setting the cgroup weight of the QoS classes failed: {stuck}");
            }
        }
    }

    /// As [`Classes::write`]; that systemd does not answer is everybody's.
    async fn weigh_slices<R: Runtime>(
        &self,
        ctx: &ActContext<R>,
        uid: &PodUid,
        turn: &mut Session<'_>,
        missing: Missing,
    ) -> Result<(), SystemdError> {
        for settings in self.classes.settings(&ctx.node) {
            match self.set_slice(&ctx.manager.blocking, &ctx.node, uid, Some(turn), settings, missing).await {
                Ok(()) => {}
                Err(SliceError::Systemd(error)) if !error.is_of_unit() => return Err(error),
                Err(error) => log::warn!("setting the cgroup weight of a QoS class failed: {error}"),
            }
        }
        Ok(())
    }

    /// Through systemd where there is its turn.
    async fn set_slice(
        &self,
        blocking: &Blocking,
        node: &NodeSettings,
        uid: &PodUid,
        turn: Option<&mut Session<'_>>,
        settings: CgroupSettings,
        missing: Missing,
    ) -> Result<(), SliceError> {
        let (hierarchies, version, settings) =
            (self.hierarchies.clone(), node.cgroup_version, Arc::new(settings));
        if let Some(turn) = turn {
            let (files, wanted) = (hierarchies.clone(), settings.clone());
            let lacking = blocking.run_for(uid, move || files.lacking(version, &wanted, missing)).await?;
            for slice in &lacking {
                turn.start(slice).await?;
            }
        }
        let set = blocking.run_for(uid, move || hierarchies.set(&settings, missing));
        set.await?.map(drop).map_err(SliceError::Files)
    }

    /// Stops the slices of a pod of which the runtime knows no container any more. Without systemd there is nothing to do.
    pub(super) async fn stop<R: Runtime>(&self, ctx: &ActContext<R>, uid: &PodUid) -> Result<(), SliceError> {
        let Some(systemd) = &self.systemd else { return Ok(()) };
        let (hierarchies, node, of) =
            (self.hierarchies.clone(), NodeSettings::clone(&ctx.node), uid.to_string());
        let may_come = pod_cgroup_candidates(&node, uid.as_str());
        let ending = ctx.manager.blocking.run_for(uid, move || {
            let (cgroups, killed) = hierarchies.end_pod(&node, &of);
            log_killed(&of, &killed);
            cgroups
        });
        let there = ending.await?;
        for cgroup in &may_come {
            // One that was asked for when the pod was wanted no more may be made only now.
            if let Some(unit) = unit_of(cgroup)
                && (there.contains(cgroup) || systemd.may_come(unit))
            {
                systemd.stop(unit).await?;
            }
        }
        Ok(())
    }

    /// Removes the pod's cgroups from the hierarchies, what of servers is mounted for it, then its directory, by which an agent that
    /// was killed meanwhile finds it again, or a part of that: `remove` is told which one.
    pub(super) async fn remove<R: Runtime>(
        &self,
        ctx: &ActContext<R>,
        uid: &PodUid,
        remove: RemoveFiles,
    ) -> Result<(), String> {
        let (hierarchies, node, of) =
            (self.hierarchies.clone(), NodeSettings::clone(&ctx.node), uid.to_string());
        let pod_dir = Path::new(&*ctx.node.root_dir).join("pods").join(uid.as_str());
        let theirs = pod_dir.clone();
        let removed = ctx.manager.blocking.run_for(uid, move || {
            let removed = hierarchies.remove_pod(&node, &of).map_err(|error| error.to_string())?;
            log_killed(&of, &removed.killed);
            Ok::<_, String>(volume::nfs::has_volumes(&theirs))
        });
        if removed.await?? {
            super::jobs::unmount(ctx, uid).await?;
        }
        // A large one in pieces: other pods have their turns in between.
        loop {
            let theirs = pod_dir.clone();
            let removed = ctx.manager.blocking.run_for(uid, move || remove(&theirs));
            if removed.await?.map_err(|error| error.0)? {
                return Ok(());
            }
        }
    }
}

/// [`NodeCgroups`] for acts, which change those of pods that run.
pub(super) struct PodsCgroups {
    pub(super) cgroups: NodeCgroups,
    pub(super) node: Rc<NodeSettings>,
    pub(super) blocking: Rc<Blocking>,
}

impl PodCgroups for PodsCgroups {
    fn read<'a>(&'a self, pod: &'a DesiredPod) -> CgroupFuture<'a, PodLimits> {
        let (hierarchies, name) = (self.cgroups.hierarchies.clone(), pod_settings(&self.node, pod).name);
        let look = move || hierarchies.limits(&name).map_err(|error| error.to_string());
        Box::pin(async move { self.blocking.run_for(&pod.key.uid, look).await? })
    }

    fn set<'a>(&'a self, pod: &'a DesiredPod, part: PodPart) -> CgroupFuture<'a, ()> {
        let settings = pod_settings(&self.node, pod).part(part);
        Box::pin(async move {
            let set = async {
                let mut turn = match &self.cgroups.systemd {
                    Some(systemd) => Some(systemd.session().await?),
                    None => None,
                };
                let (blocking, node, uid) = (&self.blocking, &self.node, &pod.key.uid);
                self.cgroups.set_slice(blocking, node, uid, turn.as_mut(), settings, Missing::Make).await
            };
            set.await.map_err(|error: SliceError| error.to_string())
        })
    }
}

impl Classes {
    /// As they are to be now.
    fn settings(&self, node: &NodeSettings) -> [CgroupSettings; 3] {
        let milli_cpu = *lock(&self.burstable_milli_cpu);
        class_settings(node, milli_cpu)
    }

    /// Gives the classes their weights: with each sandbox that is made and each pod that is removed, where the kubelet looks
    /// every minute too. As there a failure is no pod's: it is told, and tried the next time. Blocking.
    fn write(&self, hierarchies: &Cgroups, node: &NodeSettings, missing: Missing) {
        let _turn = lock(&self.turn);
        for settings in self.settings(node) {
            if let Err(error) = hierarchies.set(&settings, missing) {
                log::warn!("setting the cgroup weight of a QoS class failed: {error}");
            }
        }
    }
}

fn log_killed(uid: &str, killed: &SortedSet<i32>) {
    if !killed.is_empty() {
        log::warn!(
            "pod {uid}: killed processes {killed:?}, which belong to no container that the runtime knows"
        );
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
    fn the_classes_have_the_last_weight_whichever_job_writes_last() {
        let name = format!("smolet-weights-{}", std::process::id());
        let root = std::env::temp_dir().join(name);
        let class = root.join("kubepods/burstable");
        std::fs::create_dir_all(&class).unwrap();
        // The kernel fills a new cgroup with files; here the test does.
        std::fs::write(class.join("cpu.shares"), "1024\n").unwrap();
        let mounts = format!("cgroup {} cgroup rw,cpu 0 0\n", root.display());
        let cgroups = NodeCgroups::new(Cgroups::from_mounts(&mounts, &root), None);
        let mut node = NodeSettings::new("n", "/r");
        node.cgroup_version = CgroupVersion::V1 { swap_controller: false };
        let begin = |milli_cpu| {
            cgroups.set_burstable_milli_cpu(milli_cpu);
            let (of_job, hierarchies, node) =
                (cgroups.classes.clone(), cgroups.hierarchies.clone(), node.clone());
            move || of_job.write(&hierarchies, &node, Missing::Leave)
        };
        let (older, newer) = (begin(250), begin(1750));
        std::thread::spawn(newer).join().unwrap();
        std::thread::spawn(older).join().unwrap();
        let weight = std::fs::read_to_string(class.join("cpu.shares")).unwrap();
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(weight, "1792");
    }
}
