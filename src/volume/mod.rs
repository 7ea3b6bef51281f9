//! Volumes on disk and where containers see them: emptyDir and hostPath.
//!
//! [`pod_volumes`] and [`container_mounts`] are PURE; [`make`] and [`remove_pod_dir`] touch the disk and belong on
//! a thread of its own. The layout below the pod's directory is the kubelet's. Every other kind of volume is refused
//! at the source.

use std::fmt;
use std::fs::{DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{HostPathVolumeSource, Volume, VolumeMount};

use crate::limits::MOUNTINFO_BYTES_MAX;
use crate::model::DesiredPod;
use crate::proto::runtime::v1::{Mount, MountPropagation};

/// Why a volume is not there. Shown in the pod's status and its events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeError(pub String);

impl fmt::Display for VolumeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for VolumeError {}

/// What has to be on disk before the pod's sandbox is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeStep {
    /// An emptyDir's directory, mode 0777 (kubelet `emptyDir.setupDir`); with an `fsGroup`, owned by it and setgid.
    EmptyDir {
        /// Below the pod's directory.
        path: PathBuf,
        /// `spec.securityContext.fsGroup`.
        group: Option<u32>,
    },
    /// A path of the node that must be, or is made to be, of a kind (kubelet `hostPathTypeChecker`).
    HostPath {
        /// The volume's name, for messages.
        name: String,
        /// On the node.
        path: PathBuf,
        /// What must be there.
        kind: HostPathKind,
    },
}

/// `hostPath.type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostPathKind {
    /// Anything; the runtime makes a directory where nothing is.
    Unchecked,
    /// A directory, made with mode 0755 when nothing is there.
    DirectoryOrCreate,
    /// A directory.
    Directory,
    /// A file, made with mode 0644 when nothing is there; its directory must exist.
    FileOrCreate,
    /// A file.
    File,
    /// A Unix socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

impl HostPathKind {
    /// Reads the API's word; `None` for one that is none of Kubernetes'.
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "" => Self::Unchecked,
            "DirectoryOrCreate" => Self::DirectoryOrCreate,
            "Directory" => Self::Directory,
            "FileOrCreate" => Self::FileOrCreate,
            "File" => Self::File,
            "Socket" => Self::Socket,
            "CharDevice" => Self::CharDevice,
            "BlockDevice" => Self::BlockDevice,
            _ => return None,
        })
    }
}

/// The steps for a pod's volumes, in spec order. PURE.
pub fn pod_volumes(pod: &DesiredPod, pod_dir: &str) -> Vec<VolumeStep> {
    let group = pod.spec().security_context.as_ref().and_then(|context| context.fs_group);
    let volumes = pod.spec().volumes.iter().flatten();
    volumes
        .filter_map(|volume| match host_path(volume) {
            Some(source) => Some(VolumeStep::HostPath {
                name: volume.name.clone(),
                path: PathBuf::from(&source.path),
                // Validated at the source: an unknown word does not come this far.
                kind: HostPathKind::parse(source.type_.as_deref().unwrap_or(""))?,
            }),
            None => volume.empty_dir.is_some().then(|| VolumeStep::EmptyDir {
                path: empty_dir_path(pod_dir, &volume.name).into(),
                group: group.and_then(|group| u32::try_from(group).ok()),
            }),
        })
        .collect()
}

/// The mounts of one container, in spec order (kubelet `makeMounts`). PURE.
///
/// # Errors
/// A mount names a volume the pod does not have; the source refuses that, the core's types admit it.
pub fn container_mounts(
    pod: &DesiredPod,
    mounts: &[VolumeMount],
    pod_dir: &str,
) -> Result<Vec<Mount>, VolumeError> {
    let find = |name: &str| pod.spec().volumes.iter().flatten().find(|volume| volume.name == name);
    mounts
        .iter()
        .map(|mount| {
            let volume = find(&mount.name).ok_or_else(|| {
                VolumeError(format!("cannot find volume {:?} to mount at {}", mount.name, mount.mount_path))
            })?;
            let propagation = match mount.mount_propagation.as_deref() {
                Some("HostToContainer") => MountPropagation::PropagationHostToContainer,
                Some("Bidirectional") => MountPropagation::PropagationBidirectional,
                _ => MountPropagation::PropagationPrivate,
            };
            // A relative mount path counts from the root, as in the kubelet.
            let slash = if mount.mount_path.starts_with('/') { "" } else { "/" };
            Ok(Mount {
                container_path: format!("{slash}{}", mount.mount_path),
                host_path: host_path(volume)
                    .map_or_else(|| empty_dir_path(pod_dir, &volume.name), |source| source.path.clone()),
                readonly: mount.read_only.unwrap_or(false),
                propagation: propagation as i32,
                ..Mount::default()
            })
        })
        .collect()
}

fn host_path(volume: &Volume) -> Option<&HostPathVolumeSource> {
    volume.host_path.as_ref()
}

fn empty_dir_path(pod_dir: &str, name: &str) -> String {
    format!("{pod_dir}/volumes/kubernetes.io~empty-dir/{name}")
}

/// Makes what the steps say; what is there already stays as it is. Blocks.
///
/// # Errors
/// The first step that fails, in a sentence that names the volume or path.
pub fn make(steps: &[VolumeStep]) -> Result<(), VolumeError> {
    for step in steps {
        match step {
            VolumeStep::EmptyDir { path, group } => make_empty_dir(path, *group).map_err(|error| {
                VolumeError(format!("emptyDir {} cannot be made: {error}", path.display()))
            })?,
            VolumeStep::HostPath { name, path, kind } => check_host_path(path, *kind).map_err(|what| {
                VolumeError(format!("volume {name:?}: hostPath type check failed: {} {what}", path.display()))
            })?,
        }
    }
    Ok(())
}

fn make_empty_dir(path: &Path, group: Option<u32>) -> io::Result<()> {
    if path.symlink_metadata().is_ok_and(|there| there.is_dir()) {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o750).create(parent)?;
    }
    std::fs::create_dir(path)?;
    if let Some(group) = group {
        std::os::unix::fs::chown(path, None, Some(group))?;
    }
    // After the chown, which may clear setgid; not through umask, as every user of the pod has to write here.
    let mode = if group.is_some() { 0o2777 } else { 0o777 };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
}

fn check_host_path(path: &Path, kind: HostPathKind) -> Result<(), String> {
    let there = match path.metadata() {
        Ok(metadata) => Some(metadata.file_type()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(format!("cannot be read: {error}")),
    };
    let is = |matches: bool, what: &str| if matches { Ok(()) } else { Err(format!("is not {what}")) };
    match (kind, there) {
        (HostPathKind::Unchecked, _) => Ok(()),
        (HostPathKind::DirectoryOrCreate, None) => DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(path)
            .map_err(|error| format!("cannot be made: {error}")),
        (HostPathKind::FileOrCreate, None) => OpenOptions::new()
            .create_new(true)
            .write(true)
            .open(path)
            .map(drop)
            .map_err(|error| format!("cannot be made: {error}")),
        (HostPathKind::DirectoryOrCreate | HostPathKind::Directory, Some(t)) => is(t.is_dir(), "a directory"),
        (HostPathKind::FileOrCreate | HostPathKind::File, Some(t)) => is(t.is_file(), "a file"),
        (HostPathKind::Socket, Some(t)) => is(t.is_socket(), "a socket file"),
        (HostPathKind::CharDevice, Some(t)) => is(t.is_char_device(), "a character device"),
        (HostPathKind::BlockDevice, Some(t)) => is(t.is_block_device(), "a block device"),
        (_, None) => Err("does not exist".to_owned()),
    }
}

/// Removes a pod's directory with all that is in it. Symlinks are removed, never followed; where something is
/// still mounted below it nothing is touched. Blocks.
///
/// # Errors
/// One sentence; the caller tries again later.
pub fn remove_pod_dir(pod_dir: &Path) -> Result<(), VolumeError> {
    let fail = |what: String| VolumeError(format!("pod directory {}: {what}", pod_dir.display()));
    if let Some(mounted) =
        mounted_below(pod_dir).map_err(|error| fail(format!("cannot be checked: {error}")))?
    {
        return Err(fail(format!("{mounted} is still mounted; unmount it")));
    }
    match std::fs::remove_dir_all(pod_dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(fail(format!("cannot be removed: {error}")))
        }
        _ => Ok(()),
    }
}

/// The first mount point at or below `directory`.
fn mounted_below(directory: &Path) -> io::Result<Option<String>> {
    use std::io::Read as _;
    let mut table = String::new();
    let mut file = std::fs::File::open("/proc/self/mountinfo")?.take(MOUNTINFO_BYTES_MAX as u64);
    file.read_to_string(&mut table)?;
    if file.limit() == 0 {
        return Err(io::Error::other("the mount table is too long"));
    }
    // The kernel writes real paths, so the directory's own must be one too.
    let Ok(real) = directory.canonicalize() else { return Ok(None) };
    // Field 5 is the mount point; blanks in it are octal escapes.
    let points = table.lines().filter_map(|line| line.split(' ').nth(4));
    Ok(points.map(|point| point.replace("\\040", " ")).find(|point| Path::new(point).starts_with(&real)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, Pod, PodSecurityContext, PodSpec, VolumeMount};

    fn pod() -> DesiredPod {
        let volume = |name: &str| Volume { name: name.into(), ..Volume::default() };
        DesiredPod::new(Pod {
            spec: Some(PodSpec {
                security_context: Some(PodSecurityContext { fs_group: Some(7), ..Default::default() }),
                volumes: Some(vec![
                    Volume { empty_dir: Some(EmptyDirVolumeSource::default()), ..volume("data") },
                    Volume {
                        host_path: Some(HostPathVolumeSource {
                            path: "/dev/null".into(),
                            type_: Some("CharDevice".into()),
                        }),
                        ..volume("dev")
                    },
                ]),
                ..PodSpec::default()
            }),
            ..Pod::default()
        })
    }

    #[test]
    fn volumes_become_steps_and_mounts() {
        let steps = pod_volumes(&pod(), "/r/pods/u");
        assert_eq!(
            steps,
            [
                VolumeStep::EmptyDir {
                    path: "/r/pods/u/volumes/kubernetes.io~empty-dir/data".into(),
                    group: Some(7)
                },
                VolumeStep::HostPath {
                    name: "dev".into(),
                    path: "/dev/null".into(),
                    kind: HostPathKind::CharDevice
                },
            ]
        );
        let mount = |name: &str, at: &str| VolumeMount {
            name: name.into(),
            mount_path: at.into(),
            ..Default::default()
        };
        let wanted = [
            VolumeMount {
                read_only: Some(true),
                mount_propagation: Some("HostToContainer".into()),
                ..mount("data", "/data")
            },
            mount("dev", "dev/x"),
        ];
        let mounts = container_mounts(&pod(), &wanted, "/r/pods/u").expect("volumes exist");
        let seen: Vec<_> = mounts
            .iter()
            .map(|m| (m.container_path.as_str(), m.host_path.as_str(), m.readonly, m.propagation))
            .collect();
        assert_eq!(
            seen,
            [
                ("/data", "/r/pods/u/volumes/kubernetes.io~empty-dir/data", true, 1),
                ("/dev/x", "/dev/null", false, 0)
            ]
        );
        let lost = container_mounts(&pod(), &[mount("none", "/x")], "/r").expect_err("no such volume");
        assert!(lost.0.contains("\"none\""), "{lost}");
    }

    #[test]
    fn directories_are_made_checked_and_removed_without_following_links() {
        let root = std::env::temp_dir().join(format!("smolet-volume-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        let outside = root.join("outside");
        let pod_dir = root.join("pods/u");
        std::fs::create_dir_all(&outside).expect("made");
        std::fs::write(outside.join("keep"), "x").expect("written");
        let data = pod_dir.join("volumes/kubernetes.io~empty-dir/data");
        make(&[VolumeStep::EmptyDir { path: data.clone(), group: None }]).expect("made");
        assert_eq!(data.metadata().expect("there").permissions().mode() & 0o7777, 0o777);
        std::os::unix::fs::symlink(&outside, data.join("link")).expect("linked");

        let host = |path: PathBuf, kind| VolumeStep::HostPath { name: "v".into(), path, kind };
        for (path, kind, fine) in [
            (outside.join("new"), HostPathKind::Directory, false),
            (outside.join("new"), HostPathKind::DirectoryOrCreate, true),
            (outside.join("new"), HostPathKind::Directory, true),
            (outside.join("new"), HostPathKind::File, false),
            (outside.join("file"), HostPathKind::FileOrCreate, true),
            (outside.join("file"), HostPathKind::Socket, false),
            ("/dev/null".into(), HostPathKind::CharDevice, true),
            ("/dev/null".into(), HostPathKind::BlockDevice, false),
            (outside.join("nothing"), HostPathKind::Unchecked, true),
        ] {
            assert_eq!(make(&[host(path.clone(), kind)]).is_ok(), fine, "{} as {kind:?}", path.display());
        }

        remove_pod_dir(&pod_dir).expect("removed");
        assert!(!pod_dir.exists() && outside.join("keep").exists());
        remove_pod_dir(&pod_dir).expect("removing nothing is fine");
        let error = remove_pod_dir(Path::new("/proc")).expect_err("mounted");
        assert!(error.0.contains("still mounted"), "{error}");
        std::fs::remove_dir_all(&root).expect("cleaned");
    }
}
