//! Measures memory, file systems and the pods' usage for node-pressure eviction; `eviction` decides what follows.
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::cgroup::Cgroups;
use crate::cri::{ContainerStats, Runtime, RuntimeResult};
use crate::eviction::pods::{ContainerUsage, DiskUse, PodUsage};
use crate::eviction::{Observation, Observations, Signal};
use crate::filesystem::Filesystem;
use crate::limits::MEMINFO_BYTES_MAX;
use crate::logs::memory::is_in_memory;
use crate::model::SortedMap;
use crate::model::{ContainerState, DesiredPod, ObservedPod};
use crate::render::{NodeSettings, paths};
use crate::sync::act::ActContext;
use crate::volume::usage::{measured, measured_pod};

/// The measured values.
pub(super) struct NodeStats {
    pub(super) signals: Observations,
    /// Mount point of the image file system, from the runtime; `None` = it has to be read again.
    pub(super) images_at: Option<Box<str>>,
    /// The images are on a dedicated file system (`HasDedicatedImageFs`).
    pub(super) images_apart: bool,
}

/// Measures once; process IDs only with `pids`. A value that cannot be read is unknown, and meets no threshold.
pub(super) async fn observe<R: Runtime>(
    ctx: &ActContext<R>,
    meminfo: PathBuf,
    pids: bool,
    images_at: Option<Box<str>>,
) -> NodeStats {
    let root = PathBuf::from(&*ctx.node.root_dir);
    let look = move || {
        // The others stand beside it.
        let pids = meminfo.parent().filter(|_| pids).and_then(processes);
        (memory(&meminfo), pids, Filesystem::of(&root).ok())
    };
    let (memory, pids, node) = ctx.manager.blocking.run(look).await;
    let mut images_at = images_at;
    if images_at.is_none() {
        let told = ctx.manager.runtime.image_fs_info().await.unwrap_or_default();
        images_at = told.into_iter().next().map(|filesystem| filesystem.mountpoint);
    }
    let images = match images_at.as_deref().map(PathBuf::from) {
        Some(path) => {
            let theirs = path.clone();
            let found = ctx.manager.blocking.run_outside(&path, move || Filesystem::of(&theirs)).await;
            found.ok().and_then(Result::ok)
        }
        None => None,
    };
    let mut signals = Observations::default();
    signals[Signal::MemoryAvailable as usize] = memory;
    signals[Signal::PidAvailable as usize] = pids;
    for (of, bytes, inodes) in [
        (&node, Signal::NodeFsAvailable, Signal::NodeFsInodesFree),
        (&images, Signal::ImageFsAvailable, Signal::ImageFsInodesFree),
    ] {
        let observed = |available, capacity| (capacity > 0).then_some(Observation { available, capacity });
        signals[bytes as usize] = of.as_ref().and_then(|of| observed(of.bytes_free, of.bytes));
        signals[inodes as usize] = of.as_ref().and_then(|of| observed(of.inodes_free, of.inodes));
    }
    let images_apart = images.as_ref().zip(node).is_some_and(|(images, node)| images.device != node.device);
    NodeStats { signals, images_at: images_at.filter(|_| images.is_some()), images_apart }
}

fn read(file: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(file).ok()?.take(MEMINFO_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

pub(super) fn memory(meminfo: &Path) -> Option<Observation> {
    memory_of(&read(meminfo)?)
}

/// Process IDs: the capacity is the smaller of the kernel's two limits; all threads use one each (`pidlimit.Stats`).
fn processes(proc: &Path) -> Option<Observation> {
    let limit = |name: &str| read(&proc.join("sys/kernel").join(name))?.trim().parse::<u64>().ok();
    let capacity = limit("pid_max").into_iter().chain(limit("threads-max")).min()?;
    let taken = threads_of(&read(&proc.join("loadavg"))?)?;
    Some(Observation { available: capacity.saturating_sub(taken), capacity })
}

/// Number of threads in a line of `/proc/loadavg`: `0.20 0.18 0.12 1/80 11206`. PURE.
fn threads_of(loadavg: &str) -> Option<u64> {
    loadavg.split_whitespace().nth(3)?.split_once('/')?.1.parse().ok()
}

/// Memory that is available without swapping, by the kernel's estimate. PURE.
///
/// Differs from the kubelet, which counts the active page cache as used, and so evicts pods on a small machine that has only
/// read files.
fn memory_of(meminfo: &str) -> Option<Observation> {
    let bytes = |key: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        line?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    Some(Observation { available: bytes("MemAvailable")?, capacity: bytes("MemTotal")? })
}

/// A pod to be measured, on another thread.
pub(super) struct Measured {
    pub(super) uid: String,
    /// Its running containers: their ids, and their names.
    pub(super) containers: Vec<(Box<str>, Box<str>)>,
    /// Its directory and its log directory, when its disk usage is measured.
    pub(super) directories: Option<(PathBuf, PathBuf)>,
}

impl Measured {
    /// With its disk usage, if `on_disk`.
    pub(super) fn new(node: &NodeSettings, pod: &DesiredPod, observed: &ObservedPod, on_disk: bool) -> Self {
        let running =
            observed.containers.iter().filter(|container| container.state == ContainerState::Running);
        let directories =
            || (paths::pod_dir(node, &pod.key).into(), paths::pod_logs_dir(node, &pod.key).into());
        Self {
            uid: pod.key.uid.to_string(),
            containers: running
                .map(|container| (Box::from(container.id.as_str()), Box::from(&*container.name)))
                .collect(),
            directories: on_disk.then(directories),
        }
    }
}

/// Usage of these pods, by UID; process IDs as `counted` in their cgroups. A container without stats in the runtime is left out, and so is
/// a pod none of whose running containers has any.
///
/// # Errors
/// The runtime's.
pub(super) async fn measure<R: Runtime>(
    ctx: &ActContext<R>,
    pods: Vec<Measured>,
    counted: Option<Arc<Cgroups>>,
) -> RuntimeResult<SortedMap<String, PodUsage>> {
    let mut usages: SortedMap<String, PodUsage> = SortedMap::new();
    let mut unmeasured: SortedMap<&str, (&str, &Box<str>)> = SortedMap::new();
    for pod in &pods {
        unmeasured.extend(pod.containers.iter().map(|(id, name)| (&**id, (&*pod.uid, name))));
        // Differs from the kubelet (listPodStatsPartiallyFromCRI), which has no stats of a pod that waits for its next start or its
        // image, and so evicts that one first, which frees nothing.
        if pod.containers.is_empty() {
            usages.entry(pod.uid.clone()).or_default();
        }
    }
    let mut add = |told: ContainerStats| {
        // Each container counts once, even if the runtime repeats it.
        let Some((uid, name)) = unmeasured.remove(told.id.as_str()) else { return };
        let layer = told.writable_layer.map(|(bytes, inodes)| DiskUse { bytes, inodes });
        let usage =
            ContainerUsage { name: name.clone(), memory: told.memory_bytes, layer, logs: DiskUse::default() };
        usages.entry(uid.to_owned()).or_default().containers.push(usage);
    };
    ctx.manager.runtime.list_container_stats(&mut add).await?;
    let counted = counted.map(|cgroups| (cgroups, NodeSettings::clone(&ctx.node)));
    let walk = move || {
        for Measured { uid, directories, .. } in pods {
            let Some(usage) = usages.get_mut(&uid) else { continue };
            usage.pids = counted.as_ref().and_then(|(cgroups, node)| cgroups.pids_of_pod(node, &uid));
            if let Some((directory, logs)) = directories {
                add_disk_use(usage, &directory, &logs);
            }
        }
        usages
    };
    // A large volume takes long, and holds up nothing else.
    Ok(ctx.manager.blocking.run_alone(walk).await.unwrap_or_else(|error| {
        log::warn!("measuring the usage of pods failed: {error}");
        SortedMap::new()
    }))
}

/// Blocking.
fn add_disk_use(usage: &mut PodUsage, directory: &Path, logs: &Path) {
    let on_disk = |(bytes, inodes)| DiskUse { bytes, inodes };
    usage.volumes = on_disk(measured_pod(directory));
    if is_in_memory(logs) {
        return;
    }
    for container in &mut usage.containers {
        container.logs = on_disk(measured(&logs.join(&*container.name)).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_ids_are_those_of_all_threads() {
        assert_eq!(threads_of("0.20 0.18 0.12 1/80 11206\n"), Some(80));
        for broken in ["", "0.20 0.18 0.12", "0.20 0.18 0.12 80 11206", "0.20 0.18 0.12 1/x 11206"] {
            assert_eq!(threads_of(broken), None, "{broken:?}");
        }
    }

    #[test]
    fn memory_is_what_the_kernel_says_can_be_had() {
        let text =
            "MemTotal:        1000 kB\nMemFree:           10 kB\nMemAvailable:     600 kB\nBuffers:  1 kB\n";
        assert_eq!(memory_of(text), Some(Observation { available: 600 << 10, capacity: 1000 << 10 }));
        for broken in
            ["", "MemTotal: 5 kB\n", "MemAvailable: x kB\nMemTotal: 5 kB\n", "MemTotal 5\nMemAvailable 5"]
        {
            assert_eq!(memory_of(broken), None, "{broken:?}");
        }
    }
}
