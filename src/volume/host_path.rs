//! Type checks of hostPath volumes and of claims bound to host paths (kubelet `hostPathTypeChecker`). [`of`] is PURE; the
//! check is blocking I/O, and may hang: the path may be on an unreachable file server. A volume without a type is not
//! checked.

use std::fs::{DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Volume, VolumeMount};
use rustix::fs::{major, minor};

use super::mounts::{container_path, is_read_only, volume_of};
use super::{VolumeError, set_up_failed};
use crate::limits::{CONTAINER_DEVICES_OPENED_MAX, DEVICE_PATH_BYTES_MAX};
use crate::model::object::VolumeSource;
use crate::model::{DesiredPod, DeviceNumber};

/// A hostPath volume with a type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPath {
    /// The volume's name, for messages.
    name: Box<str>,
    /// The path on the node.
    pub path: PathBuf,
    kind: Kind,
}

/// `hostPath.type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Created when missing, mode 0755.
    DirectoryOrCreate,
    Directory,
    /// Created when missing, mode 0644; its parent directory must exist.
    FileOrCreate,
    File,
    Socket,
    CharDevice,
    BlockDevice,
}

impl Kind {
    fn is_device(self) -> bool {
        match self {
            Self::CharDevice | Self::BlockDevice => true,
            Self::DirectoryOrCreate | Self::Directory | Self::FileOrCreate | Self::File | Self::Socket => {
                false
            }
        }
    }

    /// `None` for empty text and for an unknown type, which the source rejects.
    fn parse(text: &str) -> Option<Self> {
        Some(match text {
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

/// The pod's hostPath volumes with a type, in spec order.
pub fn of(pod: &DesiredPod) -> Vec<HostPath> {
    pod.spec().volumes.iter().flatten().filter_map(|volume| of_volume(pod, volume)).collect()
}

fn of_volume(pod: &DesiredPod, volume: &Volume) -> Option<HostPath> {
    let (path, kind) = match (&volume.host_path, pod.claimed(volume)) {
        (Some(source), _) => (&*source.path, source.type_.as_deref()?),
        (None, Some(Ok(claimed))) => match &claimed.volume.source {
            VolumeSource::Path { path, kind } => (&**path, &**kind),
            VolumeSource::Nfs(_) => return None,
        },
        (None, Some(Err(_)) | None) => return None,
    };
    Some(HostPath { name: volume.name.as_str().into(), path: PathBuf::from(path), kind: Kind::parse(kind)? })
}

/// A volume of type `CharDevice` or `BlockDevice` where a container mounts it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceMount {
    /// The volume.
    pub volume: HostPath,
    /// `mountPath`.
    pub container_path: String,
    /// Of the mount, or of the claim.
    pub read_only: bool,
}

/// The container's mounts of device volumes, in spec order. A `subPath` of a device does not exist.
///
/// # Errors
/// There are too many, or a path is too long; names the volume.
pub fn device_mounts(pod: &DesiredPod, mounts: &[VolumeMount]) -> Result<Vec<DeviceMount>, String> {
    let mut found = Vec::new();
    for mount in mounts {
        let Some(source) = volume_of(pod, mount) else { continue };
        let Some(volume) = of_volume(pod, source).filter(|of| of.kind.is_device()) else { continue };
        let refused = |why: String| Err(format!("volume {:?}: {why}", mount.name));
        if volume.path.as_os_str().len() > DEVICE_PATH_BYTES_MAX {
            return refused(format!("the path of a device has at most {DEVICE_PATH_BYTES_MAX} bytes"));
        }
        if found.len() == CONTAINER_DEVICES_OPENED_MAX {
            return refused(format!("a container has at most {CONTAINER_DEVICES_OPENED_MAX} device volumes"));
        }
        let (container_path, read_only) = (container_path(mount), is_read_only(pod, source, mount));
        found.push(DeviceMount { volume, container_path, read_only });
    }
    Ok(found)
}

/// The paths of the pod's device volumes that may be watched.
pub fn device_paths(pod: &DesiredPod) -> impl Iterator<Item = PathBuf> {
    let devices = of(pod).into_iter().filter(|volume| volume.kind.is_device());
    devices.map(|volume| volume.path).filter(|path| path.as_os_str().len() <= DEVICE_PATH_BYTES_MAX)
}

/// The device behind a path, if there is one. Blocking.
pub fn device_at(path: &Path) -> Option<DeviceNumber> {
    let metadata = path.metadata().ok()?;
    let kind = metadata.file_type();
    (kind.is_char_device() || kind.is_block_device()).then(|| DeviceNumber {
        is_block: kind.is_block_device(),
        major: major(metadata.rdev()),
        minor: minor(metadata.rdev()),
    })
}

impl HostPath {
    /// The volume's device, and its path without links. Blocking.
    ///
    /// # Errors
    /// As [`HostPath::check`].
    pub fn device(&self) -> Result<(PathBuf, DeviceNumber), VolumeError> {
        self.check()?;
        let gone = || self.failed(&format!("{} does not exist", self.path.display()));
        let real = self.path.canonicalize().map_err(|_| gone())?;
        let number = device_at(&real).ok_or_else(gone)?;
        Ok((real, number))
    }

    /// Checks the path's type, and creates it when the type allows that.
    ///
    /// # Errors
    /// Names the volume and the path.
    pub fn check(&self) -> Result<(), VolumeError> {
        self.looked_at().map_err(|what| self.failed(&format!("{} {what}", self.path.display())))
    }

    /// The error of a check that did not complete.
    pub fn failed(&self, why: &str) -> VolumeError {
        set_up_failed(&self.name, &format!("hostPath type check failed: {why}"))
    }

    fn looked_at(&self) -> Result<(), String> {
        let there = match self.path.metadata() {
            Ok(metadata) => Some(metadata.file_type()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(format!("cannot be read: {error}")),
        };
        let is = |matches: bool, what: &str| if matches { Ok(()) } else { Err(format!("is not {what}")) };
        let made = |made: io::Result<()>| made.map_err(|error| format!("cannot be made: {error}"));
        match (self.kind, there) {
            (Kind::DirectoryOrCreate, None) => {
                made(DirBuilder::new().recursive(true).mode(0o755).create(&self.path))
            }
            (Kind::FileOrCreate, None) => {
                made(OpenOptions::new().create_new(true).write(true).open(&self.path).map(drop))
            }
            (Kind::DirectoryOrCreate | Kind::Directory, Some(t)) => is(t.is_dir(), "a directory"),
            (Kind::FileOrCreate | Kind::File, Some(t)) => is(t.is_file(), "a file"),
            (Kind::Socket, Some(t)) => is(t.is_socket(), "a socket file"),
            (Kind::CharDevice, Some(t)) => is(t.is_char_device(), "a character device"),
            (Kind::BlockDevice, Some(t)) => is(t.is_block_device(), "a block device"),
            (_, None) => Err("does not exist".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::desired::ClaimedSource;
    use crate::model::object::ClaimedVolume;
    use serde_json::json;

    fn host_paths(path: &Path, kind: &str) -> Vec<HostPath> {
        let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [], "volumes": [
            {"name": "own", "emptyDir": {}}, {"name": "v", "hostPath": {"path": path, "type": kind}}]}});
        of(&DesiredPod::new(serde_json::from_value(pod).unwrap()))
    }

    #[test]
    fn a_path_must_have_its_type() {
        let root = std::env::temp_dir().join(format!("smolet-host-path-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        std::fs::create_dir(&root).unwrap();
        for (path, kind, fails) in [
            (root.join("new"), "Directory", Some("does not exist")),
            (root.join("new/deep"), "DirectoryOrCreate", None),
            (root.join("new"), "Directory", None),
            (root.join("new"), "File", Some("is not a file")),
            (
                root.join("no/file"),
                "FileOrCreate",
                Some("cannot be made: No such file or directory (os error 2)"),
            ),
            (root.join("file"), "FileOrCreate", None),
            (root.join("file"), "File", None),
            (root.join("file"), "Socket", Some("is not a socket file")),
            (root.join("file/x"), "Directory", Some("cannot be read: Not a directory (os error 20)")),
            ("/dev/null".into(), "CharDevice", None),
            ("/dev/null".into(), "BlockDevice", Some("is not a block device")),
        ] {
            let found = host_paths(&path, kind);
            let wanted = fails.map(|what| {
                let path = path.display();
                format!(
                    "MountVolume.SetUp failed for volume \"v\" : hostPath type check failed: {path} {what}"
                )
            });
            assert_eq!(found[0].check().err().map(|error| error.0), wanted, "{} as {kind}", path.display());
        }
        assert_eq!(host_paths(&root, ""), [], "not checked");
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn device_volumes_are_found_with_their_mounts() {
        let mounts = |volumes: &serde_json::Value, mounts: &serde_json::Value| {
            let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [], "volumes": volumes}});
            let pod = DesiredPod::new(serde_json::from_value(pod).unwrap());
            let wanted: Vec<VolumeMount> = serde_json::from_value(mounts.clone()).unwrap();
            device_mounts(&pod, &wanted).map(|found| {
                found
                    .iter()
                    .map(|of| format!("{} {} {}", of.volume.name, of.container_path, of.read_only))
                    .collect()
            })
        };
        let device = |path: &str, kind: &str| json!({"name": kind, "hostPath": {"path": path, "type": kind}});
        let volumes = json!([device("/dev/null", "CharDevice"), device("/dev/sda", "BlockDevice"),
            device("/dev", "Directory"), device("/dev/null", ""), {"name": "own", "emptyDir": {}}]);
        let wanted = json!([{"name": "BlockDevice", "mountPath": "dev/b", "readOnly": true},
            {"name": "Directory", "mountPath": "/d"}, {"name": "", "mountPath": "/e"}, {"name": "own", "mountPath": "/o"},
            {"name": "none", "mountPath": "/n"}, {"name": "CharDevice", "mountPath": "/dev/c"}]);
        let found: Vec<String> = mounts(&volumes, &wanted).unwrap();
        assert_eq!(found, ["BlockDevice /dev/b true", "CharDevice /dev/c false"]);
        let many =
            vec![json!({"name": "CharDevice", "mountPath": "/dev/c"}); CONTAINER_DEVICES_OPENED_MAX + 1];
        let why = mounts(&volumes, &json!(many)).unwrap_err();
        assert_eq!(why, "volume \"CharDevice\": a container has at most 16 device volumes");
        let long = json!([device(&"/x".repeat(DEVICE_PATH_BYTES_MAX), "CharDevice")]);
        let why = mounts(&long, &json!([{"name": "CharDevice", "mountPath": "/dev/c"}])).unwrap_err();
        assert_eq!(why, "volume \"CharDevice\": the path of a device has at most 512 bytes");
    }

    #[test]
    fn a_claim_that_is_read_only_opens_its_device_for_reading_alone() {
        let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [], "volumes": [
            {"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}});
        let mut pod = DesiredPod::new(serde_json::from_value(pod).unwrap());
        let mounts: Vec<VolumeMount> =
            serde_json::from_value(json!([{"name": "v", "mountPath": "/dev/c"}])).unwrap();
        for read_only in [true, false] {
            let source = VolumeSource::Path { path: "/dev/null".into(), kind: "CharDevice".into() };
            let volume = ClaimedVolume { name: "pv".into(), source, nodes: None };
            pod.claims = vec![("v".into(), Ok(ClaimedSource { volume: volume.into(), read_only }))];
            assert_eq!(device_mounts(&pod, &mounts).unwrap()[0].read_only, read_only);
        }
    }

    #[test]
    fn a_volume_has_its_device_behind_its_links() {
        let link = std::env::temp_dir().join(format!("smolet-device-{}", std::process::id()));
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        let (real, number) = host_paths(&link, "CharDevice")[0].device().unwrap();
        assert_eq!((real, number.to_string()), (PathBuf::from("/dev/null"), "c 1:3".to_owned()));
        let why = host_paths(&link, "BlockDevice")[0].device().unwrap_err();
        assert!(why.0.ends_with("is not a block device"), "{why}");
        std::fs::remove_file(&link).unwrap();
        assert!(host_paths(&link, "CharDevice")[0].device().is_err());
    }
}
