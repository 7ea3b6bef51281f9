//! Volumes on the node and their mounts in containers: emptyDir, hostPath, configMap, secret, downwardAPI, projected, nfs,
//! and claims of persistent volumes that are host paths or NFS; an image volume is mounted by the runtime.
//!
//! ```text
//! |     pod_volumes ──► steps ──► disk::make          before the sandbox is created
//!     host_paths ───► check                         as above
//!     nfs_volumes ──► mount                         as above
//!     object_volumes ─► steps ─► disk::make         when an object or the pod's metadata changed
//! |     mounts ──► subpath::find ──► bind             before each container is created
//! |     nfs::mounted_below ─► unmount                 after the pod has ended
//! |     remove::volumes, remove::pod_dir              after that: when the pod has ended; when no source has it any more
//! ```
//!
//! This file, `files` and `mounts` are PURE; the others do disk I/O and run on the blocking pool's threads. The layout below
//! the pod's directory is the kubelet's. Every other kind of volume is rejected in a manifest; a pod of an API server that
//! has one waits.

mod atomic;
mod disk;
mod env_file;
pub mod files;
mod host_path;
mod mounts;
pub mod nfs;
mod remove;
pub mod subpath;
pub mod usage;

use std::fmt;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, Volume};

use crate::model::DesiredPod;
use crate::model::pod_dirs::NFS;
use crate::model::quantity::Quantity;
use crate::render::resources::{huge_page_sizes, pod_cgroup};
use files::{File, Sources};

pub use disk::{make, make_or_keep};
pub use env_file::{EnvFile, of as env_files};
pub use host_path::{DeviceMount, HostPath, device_at, device_mounts, device_paths, of as host_paths};
pub use mounts::{ImageVolume, Mounts, VolumeImages, container_mounts, image_volumes, needs_variables};
pub use nfs::{Nfs, of as nfs_volumes};
pub use remove::{pod_dir as remove_pod_dir, volumes as remove_volumes};

/// Why a volume could not be set up. Shown in the pod's status and its events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeError(pub String);

impl fmt::Display for VolumeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for VolumeError {}

/// One volume to set up before the pod's sandbox is created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeStep {
    /// The volume's name, for messages.
    pub name: String,
    /// Its path, below the pod's directory.
    pub path: PathBuf,
    /// Its content.
    pub content: VolumeContent,
}

/// Content of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeContent {
    /// Empty at first: a directory of mode 0777 (kubelet `emptyDir.setupDir`).
    Empty {
        /// Medium of the emptyDir.
        medium: Medium,
        /// `spec.securityContext.fsGroup`: owned by it and setgid.
        group: Option<u32>,
    },
    /// Exactly these files; anything else there is removed.
    Files {
        /// All files of the volume.
        files: Vec<File>,
        /// `spec.securityContext.fsGroup`.
        group: Option<u32>,
        /// A tmpfs when they may contain secrets.
        medium: Medium,
    },
}

/// Medium of a volume (`emptyDir.medium`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// The node's disk.
    Disk,
    /// A tmpfs of at most this size; `None`: the kernel's default, half of the memory.
    Memory {
        /// Its `size`.
        bytes_max: Option<u64>,
    },
    /// Huge pages of that size.
    HugePages {
        /// Its `pagesize`.
        page_bytes: u64,
    },
}

/// A volume that lacks something (an object, a key of one, huge pages): its path, and what is missing.
pub type Missing = (PathBuf, VolumeError);

/// The steps for a pod's volumes, in spec order, and the volumes that cannot be set up now. Host paths are not among them
/// ([`host_paths`]).
pub fn pod_volumes(from: Sources<'_>, pod_dir: &str) -> (Vec<VolumeStep>, Vec<Missing>) {
    let (mut steps, mut missing) = (Vec::new(), Vec::new());
    for volume in from.pod.spec().volumes.iter().flatten() {
        match step(volume, from, pod_dir) {
            Some(Ok(step)) => steps.push(step),
            Some(Err(error)) => missing.push((own_path(pod_dir, volume).into(), error)),
            None => {}
        }
    }
    (steps, missing)
}

/// The steps for only those volumes whose content may change while the pod runs, and the errors of those that cannot be
/// made.
pub fn object_volumes(from: Sources<'_>, pod_dir: &str) -> (Vec<VolumeStep>, Vec<VolumeError>) {
    let (mut steps, mut errors) = (Vec::new(), Vec::new());
    let is_own = |volume: &Volume| {
        volume.host_path.is_none() && volume.nfs.is_none() && volume.persistent_volume_claim.is_none()
    };
    let made = |volume: &&Volume| is_own(volume) && volume.empty_dir.is_none();
    for volume in from.pod.spec().volumes.iter().flatten().filter(made) {
        match step(volume, from, pod_dir) {
            Some(Ok(step)) => steps.push(step),
            Some(Err(error)) => errors.push(error),
            None => {}
        }
    }
    (steps, errors)
}

/// `None` for volumes that the node, a file server or the runtime provides (hostPath, nfs, a claim's volume, image).
fn step(volume: &Volume, from: Sources<'_>, pod_dir: &str) -> Option<Result<VolumeStep, VolumeError>> {
    let content = if volume.host_path.is_some() || volume.nfs.is_some() {
        return None;
    } else if is_device(from.pod, volume) {
        return Some(Err(not_processed(from.pod, volume, "block devices are not mapped by this node")));
    } else if let Some(claimed) = from.pod.claimed(volume) {
        let why = claimed.err()?;
        return Some(Err(not_processed(from.pod, volume, why)));
    } else if volume.image.is_some() {
        return None;
    } else if let Some(source) = &volume.empty_dir {
        medium(source, from).map(|medium| VolumeContent::Empty { medium, group: group(from.pod) })
    } else {
        let Some(files) = files::of_volume(volume, from) else {
            return Some(Err(no_plugin(&volume.name)));
        };
        let medium = if files::in_memory(volume) {
            memory(&EmptyDirVolumeSource::default(), from)
        } else {
            Medium::Disk
        };
        files.map(|files| VolumeContent::Files { files, group: group(from.pod), medium })
    };
    let path = PathBuf::from(own_path(pod_dir, volume));
    Some(match content {
        Ok(content) => Ok(VolumeStep { name: volume.name.clone(), path, content }),
        Err(why) => Err(set_up_failed(&volume.name, &why)),
    })
}

/// The kubelet's error (`generateVolumeMountFunc`).
fn set_up_failed(volume: &str, why: &str) -> VolumeError {
    VolumeError(format!("MountVolume.SetUp failed for volume {volume:?} : {why}"))
}

/// The kubelet's error (`WaitForAttachAndMount`, `processPodVolumes`).
fn not_processed(pod: &DesiredPod, volume: &Volume, why: &str) -> VolumeError {
    let name = &volume.name;
    let claim = volume.persistent_volume_claim.as_ref().map_or("", |claim| &claim.claim_name);
    VolumeError(format!(
        "Unable to attach or mount volumes: unmounted volumes=[{name}], unattached volumes=[], failed to process \
         volumes=[{name}]: error processing PVC {}/{claim}: {why}",
        pod.key.namespace
    ))
}

/// The kubelet's error for a volume without a matching plugin (`FindPluginBySpec`). Only for pods of an API server:
/// manifests with one are rejected.
fn no_plugin(volume: &str) -> VolumeError {
    VolumeError(format!(
        "Unable to attach or mount volumes: unmounted volumes=[{volume}], unattached volumes=[], failed to process \
         volumes=[{volume}]: failed to get Plugin from volumeSpec for volume {volume:?} err=no volume plugin matched"
    ))
}

/// True when a container of the pod uses the volume as a block device.
fn is_device(pod: &DesiredPod, volume: &Volume) -> bool {
    let all = pod.init_containers().iter().chain(pod.containers());
    all.flat_map(|container| container.volume_devices.iter().flatten())
        .any(|device| device.name == volume.name)
}

fn group(pod: &DesiredPod) -> Option<u32> {
    let context = pod.spec().security_context.as_ref();
    context.and_then(|context| context.fs_group).and_then(|group| u32::try_from(group).ok())
}

fn medium(source: &EmptyDirVolumeSource, from: Sources<'_>) -> Result<Medium, String> {
    Ok(match source.medium.as_deref().unwrap_or_default() {
        "" => Medium::Disk,
        "Memory" => memory(source, from),
        medium => Medium::HugePages { page_bytes: huge_page(medium, from.pod)? },
    })
}

/// The minimum of the node's memory, the pod's limit and `sizeLimit` (`calculateEmptyDirMemorySize`).
fn memory(source: &EmptyDirVolumeSource, from: Sources<'_>) -> Medium {
    let own = source.size_limit.as_ref().and_then(|size| Quantity::parse(&size.0).ok());
    let of_pod = pod_cgroup(&from.pod.pod, true, from.node.cpu_cfs_period_us).memory_limit_bytes;
    let all = [Some(from.node.memory_allocatable_bytes), of_pod, own.map(Quantity::value)];
    let positive = |bytes: i64| u64::try_from(bytes).ok().filter(|bytes| *bytes > 0);
    Medium::Memory { bytes_max: all.into_iter().flatten().filter_map(positive).min() }
}

/// The page size of the medium, which a container must request (`getPageSizeMountOption`).
fn huge_page(medium: &str, pod: &DesiredPod) -> Result<u64, String> {
    let asked = huge_page_sizes(&pod.pod);
    let of_name = medium.strip_prefix("HugePages-").and_then(|size| Quantity::parse(size).ok());
    let page = match (of_name, asked.len()) {
        (Some(size), _) => asked.get(&size.value()),
        (None, 0 | 1) => asked.first(),
        (None, _) => {
            return Err(format!(
                "medium: {medium} can't be used if container requests multiple huge page sizes"
            ));
        }
    };
    page.and_then(|page| u64::try_from(*page).ok()).ok_or_else(|| {
        format!(
            "medium {medium}: hugePages storage requested, but there is no resource request for huge pages"
        )
    })
}

/// Directory names of the volume kinds that use space on the node's disk.
const EMPTY_DIR: &str = "kubernetes.io~empty-dir";
const CONFIG_MAP: &str = "kubernetes.io~configmap";

/// Mount point of an NFS volume; the name is the persistent volume's, or else the one in the pod (`spec.Name`).
fn nfs_path(pod_dir: &str, name: &str) -> String {
    format!("{pod_dir}/volumes/{NFS}/{name}")
}

/// Path of a volume below the pod's directory.
fn own_path(pod_dir: &str, volume: &Volume) -> String {
    let plugin = if volume.config_map.is_some() {
        CONFIG_MAP
    } else if volume.secret.is_some() {
        "kubernetes.io~secret"
    } else if volume.downward_api.is_some() {
        "kubernetes.io~downward-api"
    } else if volume.projected.is_some() {
        "kubernetes.io~projected"
    } else if volume.nfs.is_some() {
        NFS
    } else {
        EMPTY_DIR
    };
    format!("{pod_dir}/volumes/{plugin}/{}", volume.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Object, Objects, Side};
    use crate::render::NodeSettings;
    use serde_json::{Value, json};

    fn pod(volumes: &Value, resources: &Value) -> DesiredPod {
        let pod = json!({"metadata": {"name": "p", "namespace": "ns"}, "spec": {
            "securityContext": {"fsGroup": 7}, "volumes": volumes,
            "containers": [{"name": "c", "resources": resources}]}});
        DesiredPod::new(serde_json::from_value(pod).unwrap())
    }

    fn node() -> NodeSettings {
        NodeSettings { memory_allocatable_bytes: 1 << 30, ..NodeSettings::new("n", "/r") }
    }

    fn content(volume: &Value, resources: &Value) -> String {
        let (pod, node, objects) = (pod(&json!([volume]), resources), node(), Objects::default());
        let (steps, missing) = pod_volumes(Sources { pod: &pod, node: &node, objects: &objects }, "/r");
        match missing.first() {
            None => format!("{} {:?}", steps[0].path.display(), steps[0].content),
            Some((_, error)) => error.0.clone(),
        }
    }

    #[test]
    fn volumes_become_steps() {
        let memory =
            |limit: Value| json!({"name": "v", "emptyDir": {"medium": "Memory", "sizeLimit": limit}});
        let huge = |medium: &str| json!({"name": "v", "emptyDir": {"medium": medium}});
        let pages = |sizes: &[&str]| {
            let all = sizes.iter().map(|size| (format!("hugepages-{size}"), json!("1Gi")));
            json!({"requests": all.collect::<serde_json::Map<_, _>>()})
        };
        let empty = |medium: &str| {
            format!("/r/volumes/kubernetes.io~empty-dir/v Empty {{ medium: {medium}, group: Some(7) }}")
        };
        for (volume, resources, wanted) in [
            (json!({"name": "v", "emptyDir": {}}), json!({}), empty("Disk")),
            (memory(Value::Null), json!({}), empty("Memory { bytes_max: Some(1073741824) }")),
            (memory(json!("0")), json!({}), empty("Memory { bytes_max: Some(1073741824) }")),
            (memory(json!("1Mi")), json!({}), empty("Memory { bytes_max: Some(1048576) }")),
            (memory(json!("2Gi")), json!({"limits": {"memory": "64Mi"}}), empty("Memory { bytes_max: Some(67108864) }")),
            (huge("HugePages"), pages(&["2Mi"]), empty("HugePages { page_bytes: 2097152 }")),
            (huge("HugePages-1Gi"), pages(&["2Mi", "1Gi"]), empty("HugePages { page_bytes: 1073741824 }")),
            (
                huge("HugePages"),
                pages(&["2Mi", "1Gi"]),
                "MountVolume.SetUp failed for volume \"v\" : medium: HugePages can't be used if container requests multiple huge page sizes".into(),
            ),
            (
                huge("HugePages-1Gi"),
                pages(&["2Mi"]),
                "MountVolume.SetUp failed for volume \"v\" : medium HugePages-1Gi: hugePages storage requested, but there is no resource request for huge pages".into(),
            ),
            (
                json!({"name": "v", "downwardAPI": {"items": [{"path": "n", "fieldRef": {"fieldPath": "metadata.name"}}]}}),
                json!({}),
                "/r/volumes/kubernetes.io~downward-api/v Files { files: [File { path: \"n\", mode: 420, user: None, content: 1 bytes }], group: Some(7), medium: Memory { bytes_max: Some(1073741824) } }".into(),
            ),
            (
                json!({"name": "v", "configMap": {"name": "m", "optional": true}}),
                json!({}),
                "/r/volumes/kubernetes.io~configmap/v Files { files: [], group: Some(7), medium: Disk }".into(),
            ),
            (
                json!({"name": "v", "csi": {"driver": "x"}}),
                json!({}),
                "Unable to attach or mount volumes: unmounted volumes=[v], unattached volumes=[], failed to process volumes=[v]: failed to get Plugin from volumeSpec for volume \"v\" err=no volume plugin matched".into(),
            ),
            (
                json!({"name": "v", "projected": {"sources": [{"clusterTrustBundle": {"path": "t"}}, {"podCertificate": {"signerName": "a/b", "keyType": "ED25519"}}]}}),
                json!({}),
                "MountVolume.SetUp failed for volume \"v\" : [ClusterTrustBundle projection is not supported by this node, PodCertificate projection is not supported by this node]".into(),
            ),
            (
                json!({"name": "v", "configMap": {"name": "m"}}),
                json!({}),
                "MountVolume.SetUp failed for volume \"v\" : configmap \"m\" not found".into(),
            ),
        ] {
            assert_eq!(content(&volume, &resources), wanted, "{volume}");
        }
    }

    #[test]
    fn only_volumes_of_objects_are_written_again() {
        let volumes = json!([
            {"name": "conf", "configMap": {"name": "m"}}, {"name": "data", "emptyDir": {}},
            {"name": "dev", "hostPath": {"path": "/dev"}}, {"name": "net", "nfs": {"server": "nas", "path": "/"}}, {"name": "key", "secret": {"secretName": "s"}}]);
        let map = json!({"metadata": {"name": "m", "namespace": "ns"}, "data": {"a": "1"}});
        let map = Object::ConfigMap(std::sync::Arc::new(serde_json::from_value(map).unwrap()));
        let objects = Objects::from_iter([(map.key(Side::Manifests), map)]);
        let (pod, node) = (pod(&volumes, &json!({})), node());
        let (steps, errors) = object_volumes(Sources { pod: &pod, node: &node, objects: &objects }, "/r");
        let steps: Vec<&str> = steps.iter().map(|step| step.name.as_str()).collect();
        assert_eq!(steps, ["conf"]);
        let missing = "MountVolume.SetUp failed for volume \"key\" : secret \"s\" not found";
        assert_eq!(errors, [VolumeError(missing.into())]);
    }
}
