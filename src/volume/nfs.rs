//! NFS volumes (kubelet `pkg/volume/nfs`): mounted and unmounted by the machine's mount and umount programs, which may hang
//! and are killed then. [`of`] is PURE; the rest is blocking I/O.
//!
//! Any access to an unreachable server's mount hangs: so the agent never touches the mounted directory, only the kernel's
//! mount table, and leaves the rest to programs, which can be killed.
use std::fmt::Write as _;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use super::{VolumeError, nfs_path, set_up_failed};
use crate::limits::{NFS_MOUNT_TIME, NFS_UNMOUNT_TIME};
use crate::model::SortedSet;
use crate::model::object::VolumeSource;
use crate::model::pod_dirs::{NFS, SUBPATHS};
use crate::model::{DesiredPod, NfsExport};
use crate::mounts::{self, Mount};
use crate::program::{self, Ended};

/// An NFS volume of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nfs {
    /// The volume's name, for messages: the persistent volume's, or else the one in the pod.
    name: Box<str>,
    /// The server's name or address.
    pub server: Box<str>,
    /// `SERVER:PATH`.
    pub source: String,
    /// The mount point.
    pub directory: PathBuf,
    /// Arguments of `mount`.
    arguments: Vec<String>,
}

/// The pod's NFS volumes in spec order; an error for one with invalid fields, which a pod of an API server may have.
pub fn of(pod: &DesiredPod, pod_dir: &str) -> Vec<Result<Nfs, VolumeError>> {
    let volumes = pod.spec().volumes.iter().flatten();
    let found = volumes.filter_map(|volume| {
        if let Some(of) = &volume.nfs {
            let export = NfsExport::new(&of.server, &of.path, std::iter::empty());
            let export = export.map_err(|refused| set_up_failed(&volume.name, &refused.to_string()));
            let read_only = of.read_only.unwrap_or(false);
            return Some(export.map(|export| Nfs::new(&volume.name, &export, read_only, pod_dir)));
        }
        let claimed = pod.claimed(volume)?.ok()?;
        let VolumeSource::Nfs(export) = &claimed.volume.source else { return None };
        Some(Ok(Nfs::new(&claimed.volume.name, export, claimed.read_only, pod_dir)))
    });
    found.collect()
}

impl Nfs {
    fn new(name: &str, export: &NfsExport, read_only: bool, pod_dir: &str) -> Self {
        let directory = nfs_path(pod_dir, name);
        let source = export.source();
        // `JoinMountOptions`: each option once, sorted.
        let mut options: SortedSet<&str> = export.options.iter().map(|option| &**option).collect();
        if read_only {
            options.insert("ro");
        }
        let mut arguments = vec!["-t".to_owned(), "nfs".to_owned()];
        if !options.is_empty() {
            arguments.push("-o".to_owned());
            arguments.push(options.into_iter().collect::<Vec<_>>().join(","));
        }
        arguments.extend([source.clone(), directory.clone()]);
        Self {
            name: name.into(),
            server: export.server.clone(),
            source,
            directory: directory.into(),
            arguments,
        }
    }

    /// The error of a mount that failed.
    pub fn failed(&self, why: &str) -> VolumeError {
        set_up_failed(&self.name, why)
    }

    /// True when anything is mounted there: as in the kubelet that counts as the volume, whoever mounted it.
    ///
    /// # Errors
    /// The mount table cannot be read.
    pub fn is_mounted(&self) -> Result<bool, VolumeError> {
        match mounts::is_mounted(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            found => found.map_err(|error| self.failed(&format!("{}: {error}", self.directory.display()))),
        }
    }

    /// Mounts the volume, unless it is mounted already (`SetUpAt`).
    ///
    /// # Errors
    /// In the kubelet's wording, with the program's output.
    pub fn mount(&self, dropped: &AtomicBool) -> Result<(), VolumeError> {
        if self.is_mounted()? {
            return Ok(());
        }
        if !CLIENTS.iter().any(|client| Path::new(client).exists()) {
            return Err(self.failed(
                "this machine has no NFS client, there is no /sbin/mount.nfs: install nfs-common (Debian) or nfs-utils",
            ));
        }
        let made = DirBuilder::new().recursive(true).mode(0o750).create(&self.directory);
        made.map_err(|error| self.failed(&format!("{}: {error}", self.directory.display())))?;
        let ended = program::run("mount", &self.arguments, NFS_MOUNT_TIME, dropped);
        // The kubelet trusts the program's exit status, unmounts a partial mount and starts again. A program that reports
        // success may have left the mounting to another process.
        if self.is_mounted()? {
            return Ok(());
        }
        // Empty, since nothing is mounted there; if there is a mount by now, the kernel refuses.
        let _ = std::fs::remove_dir(&self.directory);
        let mut why = format!("mount failed: {}", outcome(&ended, NFS_MOUNT_TIME.as_secs()));
        let _ = write!(why, "\nMounting command: mount\nMounting arguments: {}", self.arguments.join(" "));
        said(&mut why, &ended);
        Err(self.failed(&why))
    }
}

/// Directories with the NFS mount helper: libmount's search path (`FS_SEARCH_PATH`), and those of other systems.
const CLIENTS: [&str; 4] =
    ["/sbin/mount.nfs", "/usr/sbin/mount.nfs", "/sbin/fs.d/mount.nfs", "/sbin/fs/mount.nfs"];

/// The program's exit status in Go's format.
fn outcome(ended: &io::Result<Ended>, seconds: u64) -> String {
    match ended.as_ref().map(|ended| ended.status) {
        Err(error) => error.to_string(),
        Ok(None) => format!("not finished after {seconds} s; killed"),
        Ok(Some(status)) => match (status.code(), status.signal()) {
            (Some(0), _) => "it exited successfully, and nothing is mounted".to_owned(),
            (Some(code), _) => format!("exit status {code}"),
            (None, signal) => format!("signal: {}", signal.unwrap_or_default()),
        },
    }
}

fn said(why: &mut String, ended: &io::Result<Ended>) {
    if let Ok(Ended { output, .. }) = ended
        && !output.trim().is_empty()
    {
        let _ = write!(why, "\nOutput: {}", output.trim_end());
    }
}

/// An NFS mount of a pod: a volume, or a subPath of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// The source, as in the kernel's mount table.
    pub server: Box<str>,
    /// The mount point.
    pub point: PathBuf,
}

/// NFS mounts below a pod's directory, the last one mounted first. Empty when the pod never had such a volume, which one
/// access to its directory shows.
///
/// # Errors
/// The table cannot be read; or a foreign file system is mounted in such a volume, which is left alone.
pub fn mounted_below(pod_dir: &Path) -> Result<Vec<Mounted>, VolumeError> {
    let failed = |why: &str| VolumeError(format!("pod directory {}: {why}", pod_dir.display()));
    if !has_volumes(pod_dir) {
        return Ok(Vec::new());
    }
    let read = || pod_dir.canonicalize().and_then(|real| Ok((mounts::read_below(&real)?, real)));
    let (mounts, real) = read().map_err(|error: io::Error| failed(&format!("cannot be checked: {error}")))?;
    ours(&mounts, &real).map_err(|point| failed(&format!("{point} is still mounted; unmount it")))
}

/// True when the pod with that directory has, or had, such a volume. Only the agent's own part of the directory is accessed.
pub fn has_volumes(pod_dir: &Path) -> bool {
    pod_dir.join("volumes").join(NFS).symlink_metadata().is_ok()
}

/// The NFS mounts below the directory; the error is a mount there that is not NFS.
fn ours(mounts: &[Mount], pod_dir: &Path) -> Result<Vec<Mounted>, String> {
    let (volumes, parts) = (pod_dir.join("volumes").join(NFS), pod_dir.join(SUBPATHS));
    let in_volumes = |mount: &&Mount| Path::new(&mount.point).starts_with(&volumes);
    let mut devices = SortedSet::new();
    for mount in mounts.iter().filter(in_volumes) {
        // Exports below the server's export are mounted by the kernel on access.
        let is_volume = Path::new(&mount.point).parent() == Some(&*volumes);
        if !is_volume && !mount.kind.starts_with("nfs") {
            return Err(mount.point.clone());
        }
        devices.insert(&*mount.device);
    }
    let is_part =
        |mount: &&Mount| Path::new(&mount.point).starts_with(&parts) && devices.contains(&*mount.device);
    let all = mounts.iter().rev().filter(|mount| in_volumes(mount) || is_part(mount));
    let mounted = |mount: &Mount| Mounted {
        server: mount.server().unwrap_or_default().into(),
        point: PathBuf::from(&mount.point),
    };
    Ok(all.map(mounted).collect())
}

impl Mounted {
    /// The error of an unmount that failed.
    pub fn failed(&self, why: &str) -> VolumeError {
        let name = self.point.file_name().unwrap_or_default().to_string_lossy();
        VolumeError(format!("UnmountVolume.TearDown failed for volume {name:?} : {why}"))
    }

    /// Unmounts it; with `-f` when that takes too long (`CleanupMountWithForce`).
    ///
    /// # Errors
    /// In the kubelet's wording; it is still mounted.
    pub fn unmount(&self, dropped: &AtomicBool) -> Result<(), VolumeError> {
        let times = || -> Result<usize, VolumeError> {
            let mounts = mounts::read().map_err(|error| self.failed(&error.to_string()))?;
            Ok(mounts.iter().filter(|mount| Path::new(&mount.point) == self.point).count())
        };
        let before = times()?;
        if before == 0 {
            return Ok(());
        }
        let point = self.point.display().to_string();
        let run = |arguments: &[String]| program::run("umount", arguments, NFS_UNMOUNT_TIME, dropped);
        let mut ended = run(std::slice::from_ref(&point));
        let mut arguments = point.clone();
        let is_late = ended.as_ref().is_ok_and(|ended| ended.status.is_none());
        if is_late && times()? >= before && !dropped.load(Ordering::Relaxed) {
            ended = run(&["-f".to_owned(), point]);
            arguments.insert_str(0, "-f ");
        }
        // The kernel may have completed the unmount of a program that was killed.
        if times()? < before {
            return Ok(());
        }
        let mut why = format!("unmount failed: {}", outcome(&ended, NFS_UNMOUNT_TIME.as_secs()));
        let _ = write!(why, "\nUnmounting arguments: {arguments}");
        said(&mut why, &ended);
        if ended.is_ok_and(|ended| ended.status.is_none()) {
            let _ = write!(why, "\nRestore the server {}, or give up unwritten data: umount -l", self.server);
        }
        Err(self.failed(&why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use crate::model::desired::ClaimedSource;
    use crate::model::object::ClaimedVolume;
    use serde_json::{Value, json};

    fn pod(volumes: &Value) -> DesiredPod {
        let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [], "volumes": volumes}});
        DesiredPod::new(serde_json::from_value(pod).unwrap())
    }

    fn shown(found: Vec<Result<Nfs, VolumeError>>) -> Vec<String> {
        let one = |volume: Nfs| format!("{} {} {}", volume.name, volume.server, volume.arguments.join(" "));
        found.into_iter().map(|found| found.map_or_else(|error| error.0, one)).collect()
    }

    #[test]
    fn volumes_become_the_arguments_of_mount() {
        let mut pod = pod(&json!([
            {"name": "own", "emptyDir": {}},
            {"name": "v", "nfs": {"server": "nas.lan", "path": "/data"}},
            {"name": "r", "nfs": {"server": "fd00::7", "path": "/data", "readOnly": true}},
            {"name": "bad", "nfs": {"server": "nas", "path": "/data -o suid"}},
            {"name": "c", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "ro", "persistentVolumeClaim": {"claimName": "data", "readOnly": true}},
            {"name": "host", "persistentVolumeClaim": {"claimName": "host"}},
            {"name": "untold", "persistentVolumeClaim": {"claimName": "untold"}}]));
        let export = NfsExport::new("nas", "/x", ["nfsvers=4.1", "hard", "", "hard"].into_iter()).unwrap();
        let claimed = |source: VolumeSource, read_only| {
            Ok(ClaimedSource {
                volume: Arc::new(ClaimedVolume { name: "pv".into(), source, nodes: None }),
                read_only,
            })
        };
        let path = VolumeSource::Path { path: "/x".into(), kind: "".into() };
        pod.claims = vec![
            ("c".into(), claimed(VolumeSource::Nfs(export.clone()), false)),
            ("ro".into(), claimed(VolumeSource::Nfs(export), true)),
            ("host".into(), claimed(path, false)),
        ];
        assert_eq!(
            shown(of(&pod, "/r/pods/u")),
            [
                "v nas.lan -t nfs nas.lan:/data /r/pods/u/volumes/kubernetes.io~nfs/v",
                "r [fd00::7] -t nfs -o ro [fd00::7]:/data /r/pods/u/volumes/kubernetes.io~nfs/r",
                "MountVolume.SetUp failed for volume \"bad\" : nfs.path \"/data -o suid\": must be an absolute path on the \
                 server, without '..', ',', blanks and control characters",
                "pv nas -t nfs -o hard,nfsvers=4.1 nas:/x /r/pods/u/volumes/kubernetes.io~nfs/pv",
                "pv nas -t nfs -o hard,nfsvers=4.1,ro nas:/x /r/pods/u/volumes/kubernetes.io~nfs/pv",
            ]
        );
    }

    #[test]
    fn only_mounts_of_servers_are_unmounted() {
        let ours = |lines: &[&str]| {
            let table = format!("9 1 {}\n", lines.join("\n9 1 "));
            let found = ours(&mounts::parse(&table), Path::new("/r x/u"))?;
            let shown = |of: &Mounted| {
                let below = of.point.strip_prefix("/r x/u").unwrap();
                format!("{} {}", of.server, below.display())
            };
            Ok::<Vec<String>, String>(found.iter().map(shown).collect())
        };
        const OTHERS: [&str; 4] = [
            "0:9 / /r\\040x/other/volumes/kubernetes.io~nfs/v rw - nfs4 nas:/a rw",
            "0:4 / /r\\040x/u/volumes/kubernetes.io~secret/s rw - tmpfs none rw",
            "8:1 / /r\\040x/u/volume-subpaths/host/c/0 rw - ext4 /dev/sda1 rw",
            "0:9 / /r\\040x/u/volumes/kubernetes.io~empty-dir/v rw - nfs4 nas:/a rw",
        ];
        assert_eq!(ours(&OTHERS), Ok(Vec::new()));
        let own = [
            "0:5 / /r\\040x/u/volumes/kubernetes.io~nfs/v rw - nfs4 [fd00::7]:/a rw",
            "0:6 / /r\\040x/u/volumes/kubernetes.io~nfs/w rw - nfs nas:/b rw",
            "0:7 / /r\\040x/u/volumes/kubernetes.io~nfs/v/disk rw - nfs4 [fd00::7]:/a/disk rw",
            "0:5 /part /r\\040x/u/volume-subpaths/v/c/0 rw - nfs4 [fd00::7]:/a rw",
            // Mounted twice: by an agent that was killed, and by the next one.
            "0:6 / /r\\040x/u/volumes/kubernetes.io~nfs/w rw - nfs nas:/b rw",
        ];
        let wanted = [
            "nas volumes/kubernetes.io~nfs/w",
            "[fd00::7] volume-subpaths/v/c/0",
            "[fd00::7] volumes/kubernetes.io~nfs/v/disk",
            "nas volumes/kubernetes.io~nfs/w",
            "[fd00::7] volumes/kubernetes.io~nfs/v",
        ];
        assert_eq!(ours(&[&OTHERS[..], &own].concat()).unwrap(), wanted);
        // Mounted there by a container.
        let foreign = "8:2 / /r\\040x/u/volumes/kubernetes.io~nfs/v/usb rw - vfat /dev/sdb1 rw";
        let said = ours(&[&own[..], &[foreign]].concat());
        assert_eq!(said, Err("/r x/u/volumes/kubernetes.io~nfs/v/usb".to_owned()));
    }

    #[test]
    fn failures_of_programs_have_the_kubelets_wording() {
        use std::os::unix::process::ExitStatusExt as _;
        use std::process::ExitStatus;
        let ended = |status, output: &str| Ok(Ended { status, output: output.to_owned() });
        for (of, wanted) in [
            (
                ended(Some(ExitStatus::from_raw(32 << 8)), "mount.nfs: Connection refused\n"),
                "exit status 32\nOutput: mount.nfs: Connection refused",
            ),
            (ended(Some(ExitStatus::from_raw(9)), " \n"), "signal: 9"),
            (ended(None, ""), "not finished after 120 s; killed"),
            (ended(Some(ExitStatus::from_raw(0)), ""), "it exited successfully, and nothing is mounted"),
            (Err(io::Error::from(io::ErrorKind::NotFound)), "entity not found"),
        ] {
            let mut why = outcome(&of, 120);
            said(&mut why, &of);
            assert_eq!(why, wanted);
        }
    }
}
