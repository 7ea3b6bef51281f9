//! Type checks of hostPath volumes and of claims bound to host paths (kubelet `hostPathTypeChecker`). [`of`] is PURE; the
//! check is blocking I/O, and may hang: the path may be on an unreachable file server. A volume without a type is not
//! checked.

use std::fs::{DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _};
use std::path::PathBuf;

use super::{VolumeError, set_up_failed};
use crate::model::DesiredPod;
use crate::model::object::VolumeSource;

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
    let volumes = pod.spec().volumes.iter().flatten();
    let found = volumes.filter_map(|volume| {
        let (path, kind) = match (&volume.host_path, pod.claimed(volume)) {
            (Some(source), _) => (&*source.path, source.type_.as_deref()?),
            (None, Some(Ok(claimed))) => match &claimed.volume.source {
                VolumeSource::Path { path, kind } => (&**path, &**kind),
                VolumeSource::Nfs(_) => return None,
            },
            (None, Some(Err(_)) | None) => return None,
        };
        Some(HostPath {
            name: volume.name.as_str().into(),
            path: PathBuf::from(path),
            kind: Kind::parse(kind)?,
        })
    });
    found.collect()
}

impl HostPath {
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
    use serde_json::json;
    use std::path::Path;

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
}
