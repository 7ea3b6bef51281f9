//! Sets up volumes on the node. Blocking I/O.

use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _, chown};
use std::path::Path;

use rustix::mount::{MountFlags, mount};

use super::{Medium, Missing, VolumeContent, VolumeError, VolumeStep, atomic, set_up_failed};
use crate::mounts;

/// Executes the steps; existing volumes are left unchanged, except for the files of object volumes.
///
/// # Errors
/// The first step that failed; names the volume and the path.
pub fn make(steps: &[VolumeStep]) -> Result<(), VolumeError> {
    for VolumeStep { name, path, content } in steps {
        let failed = |error: io::Error| set_up_failed(name, &format!("{}: {error}", path.display()));
        match content {
            VolumeContent::Empty { medium, group } => empty(path, *medium, *group).map_err(failed)?,
            VolumeContent::Files { files, group, medium } => {
                directory(path, *medium, 0o755)
                    .and_then(|_| atomic::write(path, files, *group))
                    .map_err(failed)?;
            }
        }
    }
    Ok(())
}

/// As [`make`], with volumes that lack something. A volume that was written once keeps its files then (the kubelet leaves it
/// mounted); what is missing is returned, to be reported.
///
/// # Errors
/// A volume that was never written lacks something, or a step failed.
pub fn make_or_keep(steps: &[VolumeStep], missing: Vec<Missing>) -> Result<Vec<VolumeError>, VolumeError> {
    if let Some((_, error)) = missing.iter().find(|(path, _)| !atomic::is_written(path)) {
        return Err(error.clone());
    }
    make(steps)?;
    Ok(missing.into_iter().map(|(_, error)| error).collect())
}

/// Mode of an emptyDir until it is set up. No container gives its own emptyDir that mode, and changes by containers are
/// kept.
const UNREADY: u32 = 0;

fn empty(path: &Path, medium: Medium, group: Option<u32>) -> io::Result<()> {
    if !directory(path, medium, UNREADY)? {
        return Ok(());
    }
    if let Some(group) = group {
        chown(path, None, Some(group))?;
    }
    // After the chown, which may clear setgid; not through umask, as every user of the pod must be able to write here. A
    // tmpfs is sticky when mounted, which the kubelet leaves so.
    let sticky = if matches!(medium, Medium::Memory { .. }) { 0o1000 } else { 0 };
    let mode = sticky | if group.is_some() { 0o2777 } else { 0o777 };
    std::fs::set_permissions(path, Permissions::from_mode(mode))
}

/// Creates a volume's directory and mounts its medium. Returns whether it is new: created or mounted by this call, or by an
/// interrupted one.
fn directory(path: &Path, medium: Medium, mode: u32) -> io::Result<bool> {
    let parent = path.parent().unwrap_or(path);
    if let Some(volumes) = parent.parent() {
        DirBuilder::new().recursive(true).mode(0o750).create(volumes)?;
    }
    // Only root may enter a tmpfs volume from outside its pod.
    let private = if medium == Medium::Disk { 0o750 } else { 0o700 };
    DirBuilder::new().recursive(true).mode(private).create(parent)?;
    match DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        // A container mounted something on it, which may hang or is dead; the volume was set up before that.
        Err(_) if medium == Medium::Disk && mounts::is_mounted(path)? => return Ok(false),
        Ok(()) | Err(_) => {}
    }
    let there = path.symlink_metadata()?;
    if !there.is_dir() {
        return Err(io::Error::from(io::ErrorKind::NotADirectory));
    }
    let flags = MountFlags::NODEV | MountFlags::NOSUID;
    let is_mounted = there.dev() != parent.metadata()?.dev();
    match medium {
        Medium::Memory { bytes_max } if !is_mounted => {
            mounts::mount_tmpfs(path, flags, mode, bytes_max)?;
            Ok(true)
        }
        Medium::HugePages { page_bytes } if !is_mounted => {
            let options = cstring(&format!("mode={mode:o},pagesize={page_bytes}"))?;
            mount("nodev", path, "hugetlbfs", flags, Some(&*options))?;
            Ok(true)
        }
        _ => Ok(there.permissions().mode() & 0o7777 == mode),
    }
}

fn cstring(text: &str) -> io::Result<std::ffi::CString> {
    Ok(std::ffi::CString::new(text)?)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::volume::files::{Content, File};
    use crate::volume::remove_pod_dir;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("smolet-disk-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&path);
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = remove_pod_dir(&self.0.join("pods/u"));
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn step(path: PathBuf, content: VolumeContent) -> [VolumeStep; 1] {
        [VolumeStep { name: "v".into(), path, content }]
    }

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn directories_are_made_and_removed_without_following_links() {
        let root = Scratch::new("host");
        let (outside, pod_dir) = (root.0.join("outside"), root.0.join("pods/u"));
        std::fs::create_dir_all(&outside).unwrap();
        std::fs::write(outside.join("keep"), "x").unwrap();
        let data = pod_dir.join("volumes/kubernetes.io~empty-dir/data");
        let empty = VolumeContent::Empty { medium: Medium::Disk, group: None };
        make(&step(data.clone(), empty.clone())).unwrap();
        assert_eq!(mode(&data), 0o777);
        // A database restricts it to its own user.
        std::fs::set_permissions(&data, Permissions::from_mode(0o700)).unwrap();
        make(&step(data.clone(), empty.clone())).unwrap();
        assert_eq!(mode(&data), 0o700, "it keeps the mode after a restart");
        std::fs::set_permissions(&data, Permissions::from_mode(UNREADY)).unwrap();
        make(&step(data.clone(), empty)).unwrap();
        assert_eq!(mode(&data), 0o777, "its creation was interrupted");
        std::os::unix::fs::symlink(&outside, data.join("link")).unwrap();

        remove_pod_dir(&pod_dir).unwrap();
        assert!(!pod_dir.exists() && outside.join("keep").exists());
        remove_pod_dir(&pod_dir).expect("removing nothing is fine");
        let error = remove_pod_dir(Path::new("/proc")).expect_err("mounted");
        assert!(error.0.contains("still mounted"), "{error}");
    }

    #[test]
    fn a_mount_by_a_container_on_its_volume_is_not_accessed() {
        let root = Scratch::new("dead");
        let pod_dir = root.0.join("pods/u");
        let data = pod_dir.join("volumes/kubernetes.io~empty-dir/data");
        let empty = step(data.clone(), VolumeContent::Empty { medium: Medium::Disk, group: None });
        make(&empty).unwrap();
        let mut away = mounts::SilentServer::mount(&data);
        away.die();
        assert!(data.symlink_metadata().is_err());
        make(&empty).unwrap();
        let error = remove_pod_dir(&pod_dir).expect_err("mounted");
        assert!(error.0.contains("data is still mounted; unmount it"), "{error}");
        drop(away);
        make(&empty).unwrap();
        remove_pod_dir(&pod_dir).unwrap();
    }

    #[test]
    fn memory_is_mounted_once_bounded_and_unmounted_with_the_pod() {
        let root = Scratch::new("memory");
        let pod_dir = root.0.join("pods/u");
        let group = rustix::process::getgid().as_raw();
        let memory = Medium::Memory { bytes_max: Some(1 << 20) };
        let (shared, secret) = (
            pod_dir.join("volumes/kubernetes.io~empty-dir/m"),
            pod_dir.join("volumes/kubernetes.io~secret/s"),
        );
        let file =
            File { path: "key".into(), mode: 0o400, user: None, content: Content::Text("hunter2".into()) };
        let steps = [
            step(shared.clone(), VolumeContent::Empty { medium: memory, group: Some(group) }),
            step(secret.clone(), VolumeContent::Files { files: vec![file], group: None, medium: memory }),
        ]
        .concat();
        for _ in 0..2 {
            make(&steps).unwrap();
            assert_eq!((mode(&shared), mode(&secret)), (0o3777, 0o755));
            assert_eq!(mode(secret.parent().unwrap()), 0o700, "only root has access from outside");
            let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
            let own: Vec<&str> =
                mounts.lines().filter(|line| line.contains(&*root.0.to_string_lossy())).collect();
            assert_eq!(own.len(), 2, "{own:?}");
            assert!(
                own.iter().all(|line| line.contains("size=1024k") && line.contains("nosuid,nodev")),
                "{own:?}"
            );
        }
        assert!(std::fs::write(shared.join("big"), vec![1; 2 << 20]).is_err(), "no more than its size");
        assert_eq!(std::fs::read_to_string(secret.join("key")).unwrap(), "hunter2");
        remove_pod_dir(&pod_dir).unwrap();
        assert!(!pod_dir.exists());
    }
}
