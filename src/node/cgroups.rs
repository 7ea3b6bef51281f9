//! The cgroups of pods and of their classes: made before a pod's sandbox, removed with the pod.
//!
//! With the driver systemd, systemd owns the directories. A slice is requested only if it does not exist or its files differ
//! from the desired values; values without a systemd property are written afterwards. A slice is stopped before its directories
//! are removed, as in the kubelet: otherwise systemd would create them again, and keep the unit until the next boot.
use std::cell::RefCell;
use std::collections::VecDeque;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::blocking::{Blocking, Stuck};
use crate::cgroup::{Cgroups, Missing, SettingError};
use crate::cri::Runtime;
use crate::limits::ENDED_PODS_WRITTEN_MAX;
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

/// The node's cgroups. Clones, which jobs have, share its state.
#[derive(Clone)]
pub(super) struct NodeCgroups {
    pub(super) hierarchies: Arc<Cgroups>,
    classes: Arc<Classes>,
    /// With its driver.
    systemd: Option<Rc<Systemd>>,
    /// What pods have written to disks whose cgroups are removed, the latest last; at most `limits::ENDED_PODS_WRITTEN_MAX`.
    ended: Rc<RefCell<VecDeque<(PodUid, u64)>>>,
}

/// CPU weights of the QoS classes. Jobs end in any order, so each writes the latest value, not the one at its start; writes
/// are serialised.
#[derive(Default)]
struct Classes {
    /// Sum of the burstable pods' CPU requests, in thousandths of a CPU.
    burstable_milli_cpu: Mutex<i64>,
    /// Held during a write; the loop takes only the other lock, and so never waits for a file. The permit for systemd does the same.
    turn: Mutex<()>,
}

/// Why a slice or its cgroups could not be brought to the desired state.
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

/// Removes a pod's directory ([`volume::remove_pod_dir`]) or only the volumes of a terminated pod
/// ([`volume::remove_volumes`]), a piece with each call. True when nothing is left.
pub(super) type RemoveFiles = fn(&Path) -> Result<bool, VolumeError>;

impl NodeCgroups {
    /// `systemd`: its client, with the driver systemd.
    pub(super) fn new(hierarchies: Cgroups, systemd: Option<Systemd>) -> Self {
        Self {
            hierarchies: Arc::new(hierarchies),
            classes: Arc::default(),
            systemd: systemd.map(Rc::new),
            ended: Rc::default(),
        }
    }

    /// Bytes that these pods have written to disks, those without a cgroup any more too; `None` where nothing counts them.
    pub(super) async fn written(
        &self,
        blocking: &Blocking,
        node: NodeSettings,
        pods: &[PodUid],
    ) -> Vec<Option<u64>> {
        let hierarchies = self.hierarchies.clone();
        let uids: Vec<String> = pods.iter().map(ToString::to_string).collect();
        let count =
            move || -> Vec<_> { uids.iter().map(|uid| hierarchies.written_by_pod(&node, uid)).collect() };
        let counted = blocking.run(count).await;
        let ended = self.ended.borrow();
        let of_ended = |pod: &PodUid| ended.iter().find(|(of, _)| of == pod).map(|(_, bytes)| *bytes);
        counted.into_iter().zip(pods).map(|(bytes, pod)| bytes.or_else(|| of_ended(pod))).collect()
    }

    /// `None`: nothing has counted it now; what is known of before stays.
    fn keep_written(&self, pod: &PodUid, bytes: Option<u64>) {
        let Some(bytes) = bytes else { return };
        self.forget_written(pod);
        let mut ended = self.ended.borrow_mut();
        if ended.len() >= ENDED_PODS_WRITTEN_MAX {
            ended.pop_front();
        }
        ended.push_back((pod.clone(), bytes));
    }

    /// Of a pod that is not shown any more.
    pub(super) fn forget_written(&self, pod: &PodUid) {
        self.ended.borrow_mut().retain(|(of, _)| of != pod);
    }

    /// Sets the sum of the burstable pods' CPU requests, in thousandths of a CPU: the next job that creates or removes a pod's
    /// cgroup writes it.
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
            // After a kill of the agent, the sweep finds a pod's leftovers by its directory.
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

    /// Writes the classes' weights after a pod was removed. A failure is logged, as in the kubelet, and retried the next time.
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

    /// As [`Classes::write`]; returns an error only if systemd does not answer, which affects every pod.
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

    /// Writes through systemd if its permit is given.
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

    /// Stops the slices of a pod that has no container in the runtime any more. No effect without systemd.
    pub(super) async fn stop<R: Runtime>(&self, ctx: &ActContext<R>, uid: &PodUid) -> Result<(), SliceError> {
        let Some(systemd) = &self.systemd else { return Ok(()) };
        let (hierarchies, node, of) =
            (self.hierarchies.clone(), NodeSettings::clone(&ctx.node), uid.to_string());
        let may_come = pod_cgroup_candidates(&node, uid.as_str());
        let ending = ctx.manager.blocking.run_for(uid, move || {
            // Its slices take the counts with them.
            let written = hierarchies.written_by_pod(&node, &of);
            let (cgroups, killed) = hierarchies.end_pod(&node, &of);
            log_killed(&of, &killed);
            (cgroups, written)
        });
        let (there, written) = ending.await?;
        self.keep_written(uid, written);
        for cgroup in &may_come {
            // A slice that was requested before the pod's removal may be created only now.
            if let Some(unit) = unit_of(cgroup)
                && (there.contains(cgroup) || systemd.may_come(unit))
            {
                systemd.stop(unit).await?;
            }
        }
        Ok(())
    }

    /// Kills what a pod whose containers have ended still has running, so that the next attempt can remove them: after a
    /// `StartContainer` that was interrupted containerd can take a container for ended whose process runs, stops it no more, and does not
    /// remove it (`cannot delete running task`). The kubelet's `podContainerManagerImpl.Destroy` kills too, whatever the runtime has.
    pub(super) async fn end<R: Runtime>(&self, ctx: &ActContext<R>, uid: &PodUid) {
        let (hierarchies, node, of) =
            (self.hierarchies.clone(), NodeSettings::clone(&ctx.node), uid.to_string());
        let ending = ctx.manager.blocking.run_for(uid, move || {
            let (_, killed) = hierarchies.end_pod(&node, &of);
            log_killed(&of, &killed);
        });
        if let Err(stuck) = ending.await {
            log::warn!(
                "pod {uid}: what its ended containers have left running was not killed: {stuck}; tried again"
            );
        }
    }

    /// Removes the pod's cgroups from the hierarchies, its NFS mounts, then its directory or a part of it, as `remove` does. The
    /// directory is last: after a kill of the agent, the sweep finds the pod by it.
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
            let written = hierarchies.written_by_pod(&node, &of);
            let removed = hierarchies.remove_pod(&node, &of).map_err(|error| error.to_string())?;
            log_killed(&of, &removed.killed);
            Ok::<_, String>((volume::nfs::has_volumes(&theirs), written))
        });
        let (has_nfs, written) = removed.await??;
        self.keep_written(uid, written);
        if has_nfs {
            super::jobs::unmount(ctx, uid).await?;
        }
        // A large directory is removed in pieces: other pods are handled in between.
        loop {
            let theirs = pod_dir.clone();
            let removed = ctx.manager.blocking.run_for(uid, move || remove(&theirs));
            if removed.await?.map_err(|error| error.0)? {
                return Ok(());
            }
        }
    }
}

/// [`NodeCgroups`] for syncs, which change the cgroups of running pods.
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
    /// Brings them to the desired state.
    fn settings(&self, node: &NodeSettings) -> [CgroupSettings; 3] {
        let milli_cpu = *lock(&self.burstable_milli_cpu);
        class_settings(node, milli_cpu)
    }

    /// Writes the classes' weights: with each sandbox that is created and each pod that is removed; the kubelet also does so every
    /// minute. As there a failure is no pod's: it is logged, and retried the next time. Blocking.
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
            "pod {uid}: killed processes {killed:?}, which belong to no container that the runtime has running"
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

    #[test]
    fn what_an_ended_pod_has_written_is_kept_until_others_have_ended() {
        let root = std::env::temp_dir().join(format!("smolet-written-{}", std::process::id()));
        let pod = root.join("kubepods/besteffort/podb");
        std::fs::create_dir_all(&pod).unwrap();
        std::fs::write(pod.join("io.stat"), "8:0 wbytes=7\n").unwrap();
        let mounts = format!("cgroup2 {} cgroup2 rw 0 0\n", root.display());
        let cgroups = NodeCgroups::new(Cgroups::from_mounts(&mounts, &root), None);
        let blocking = Blocking::on_this_thread();
        let pods = ["a", "b", "c"].map(PodUid::from);
        let written = || smol::block_on(cgroups.written(&blocking, NodeSettings::new("n", "/r"), &pods));
        cgroups.keep_written(&pods[0], Some(5));
        assert_eq!(written(), [Some(5), Some(7), None]);
        // The same pod ended again; others fill the rest.
        cgroups.keep_written(&pods[0], Some(6));
        assert_eq!(written()[0], Some(6));
        (1..ENDED_PODS_WRITTEN_MAX)
            .for_each(|n| cgroups.keep_written(&PodUid::from(format!("d{n}")), Some(1)));
        assert_eq!(written()[0], Some(6));
        cgroups.keep_written(&pods[2], Some(1));
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(written(), [None, None, Some(1)]);
    }

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
