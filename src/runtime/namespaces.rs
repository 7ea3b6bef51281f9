//! The namespaces of sandboxes: made by a thread that ends at once, and pinned as bind-mounted files. I/O, blocking.
//!
//! ```text
//!     RUN_DIR/sandboxes/ID/net   the network namespace, unless it is the node's
//!                          ipc   the same for IPC
//!                          uts   the host name
//!                          user  the user namespace of a pod that has one: the others belong to it (`users`)
//!                          shm/  /dev/shm of the pod, a tmpfs
//! ```
//!
//! A namespace belongs to a thread: one that unshares its own, sets them up, mounts them on files and ends leaves nothing else
//! behind. No process has to hold them. unshare(2) may not be called on the loop's thread, nor on one that is used again.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, unmount};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use super::links::set_loopback_up;
use super::pod_config::DEFAULT_SYSCTLS;
use super::users::{self, Users};
use crate::limits::POD_SHM_BYTES;
use crate::mounts;

/// Files of the namespaces in a sandbox's directory.
pub(super) const NET: &str = "net";
pub(super) const IPC: &str = "ipc";
pub(super) const UTS: &str = "uts";
/// The pod's `/dev/shm`.
pub(super) const SHM: &str = "shm";

/// Which namespaces a sandbox has of its own.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted {
    pub(super) net: bool,
    pub(super) ipc: bool,
    /// The host name, in a UTS namespace.
    pub(super) hostname: Option<String>,
    /// Paths below `/proc/sys`, which are those of the thread's namespaces.
    pub(super) sysctls: Vec<(String, String)>,
    /// The user namespace.
    pub(super) users: Option<Users>,
}

/// A sandbox's namespaces could not be made or removed.
#[derive(Debug)]
pub(super) struct NamespaceError {
    what: String,
    source: io::Error,
}

impl fmt::Display for NamespaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.source)
    }
}

impl std::error::Error for NamespaceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

fn failed<E: Into<io::Error>>(what: impl fmt::Display) -> impl FnOnce(E) -> NamespaceError {
    move |error| NamespaceError { what: what.to_string(), source: error.into() }
}

/// Makes the namespaces in that directory, which is made too. The program is smolet's own.
///
/// # Errors
/// The kernel's. [`release`] removes what was made.
pub(super) fn make(dir: &Path, wanted: &Wanted, program: &Path) -> Result<(), NamespaceError> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(failed(format_args!("the directory {}", dir.display())))?;
    if wanted.ipc {
        make_shm(&dir.join(SHM))?;
    }
    let (dir, wanted, program) = (dir.to_owned(), wanted.clone(), program.to_owned());
    let thread = std::thread::Builder::new().name("namespaces".to_owned());
    let made = thread
        .spawn(move || on_thread(&dir, &wanted, &program))
        .map_err(failed("a thread for namespaces"))?;
    made.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn make_shm(path: &Path) -> Result<(), NamespaceError> {
    let named = || format!("the pod's /dev/shm at {}", path.display());
    std::fs::create_dir(path).map_err(failed(named()))?;
    let options = format!("mode=1777,size={POD_SHM_BYTES}");
    let options = std::ffi::CString::new(options).map_err(failed(named()))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("shm", path, "tmpfs", flags, Some(&*options)).map_err(failed(named()))
}

/// Leaves the thread in the new namespaces, with which it ends.
fn on_thread(dir: &Path, wanted: &Wanted, program: &Path) -> Result<(), NamespaceError> {
    let kinds = [
        (NET, wanted.net, LinkNameSpaceType::Network, UnshareFlags::NEWNET),
        (IPC, wanted.ipc, LinkNameSpaceType::InterProcessCommunication, UnshareFlags::NEWIPC),
        (UTS, wanted.hostname.is_some(), LinkNameSpaceType::HostNameAndNISDomainName, UnshareFlags::NEWUTS),
    ];
    let kinds = kinds.into_iter().filter(|(_, is_wanted, ..)| *is_wanted);
    let names: Vec<&str> = kinds.clone().map(|(name, ..)| name).collect();
    if let Some(users) = &wanted.users {
        let made = users::make(program, dir, users, &names);
        made.map_err(failed("a user namespace (/proc/sys/user/max_user_namespaces may forbid it)"))?;
        for (name, _, kind, _) in kinds {
            let entered = File::open(dir.join(name))
                .and_then(|file| Ok(move_into_link_name_space(file.as_fd(), Some(kind))?));
            entered.map_err(failed(format_args!("entering the {name} namespace")))?;
        }
    } else {
        let flags = kinds.fold(UnshareFlags::empty(), |flags, (.., flag)| flags | flag);
        if !flags.is_empty() {
            // Unsound with CLONE_FILES alone, which is not among the flags.
            #[allow(deprecated, reason = "its successor is an unsafe function")]
            rustix::thread::unshare(flags).map_err(failed("new namespaces"))?;
        }
    }
    if wanted.net {
        set_loopback_up().map_err(failed("the loopback interface of the pod"))?;
    }
    // Without one it has the node's, as runc leaves it.
    if let Some(name) = wanted.hostname.as_ref().filter(|name| !name.is_empty()) {
        rustix::system::sethostname(name.as_bytes())
            .map_err(failed(format_args!("the pod's host name {name:?}")))?;
    }
    set_all(&wanted.sysctls)?;
    // Those of a user namespace are pinned already.
    for name in names.iter().filter(|_| wanted.users.is_none()) {
        let file = dir.join(name);
        let named = || format!("the {name} namespace at {}", file.display());
        File::create_new(&file).map_err(failed(named()))?;
        mount_bind(format!("/proc/thread-self/ns/{name}"), &file).map_err(failed(named()))?;
    }
    Ok(())
}

/// Of the thread's namespaces.
fn set_all(sysctls: &[(String, String)]) -> Result<(), NamespaceError> {
    for (path, value) in sysctls {
        let set = std::fs::write(Path::new("/proc/sys").join(path), value);
        match set {
            Err(error) if error.kind() == io::ErrorKind::NotFound && DEFAULT_SYSCTLS.contains(&&**path) => {}
            set => set.map_err(failed(format_args!("the pod's sysctl {path}={value}")))?,
        }
    }
    Ok(())
}

/// Sets these in a pinned network namespace.
///
/// # Errors
/// The kernel has no such sysctl, or refuses the value.
pub(super) fn set_sysctls(namespace: &Path, sysctls: Vec<(String, String)>) -> Result<(), NamespaceError> {
    in_network(namespace, move || set_all(&sysctls)).map_err(failed("the pod's network namespace"))?
}

/// Does work in a pinned network namespace, on a thread of its own, which ends: it does not come back from there. Blocking.
///
/// # Errors
/// The namespace cannot be entered.
pub(super) fn in_network<T: Send + 'static>(
    namespace: &Path,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let namespace = File::open(namespace)?;
    let thread = std::thread::Builder::new().name("pod's network".to_owned()).spawn(move || {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
        Ok(work())
    })?;
    thread.join().map_err(|_| io::Error::other("the thread in the pod's network has ended"))?
}

/// Unmounts everything at and below the directory, and removes it. Idempotent.
///
/// # Errors
/// The kernel's.
pub(super) fn release(dir: &Path) -> Result<(), NamespaceError> {
    unmount_below(dir).map_err(failed(format_args!("unmounting {}", dir.display())))?;
    remove_dir(dir).map_err(failed(format_args!("removing {}", dir.display())))
}

/// Unmounts everything at and below the path. Idempotent.
///
/// # Errors
/// The kernel's.
pub(super) fn unmount_below(path: &Path) -> io::Result<()> {
    let real = match path.canonicalize() {
        Ok(real) => real,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for mount in mounts::read_below(&real)?.iter().rev() {
        // Detached: a container's process that still ends may hold it.
        unmount(&*mount.point, UnmountFlags::DETACH)?;
    }
    Ok(())
}

/// Removes a directory of the runtime's own in which nothing is mounted. Idempotent.
///
/// # Errors
/// Something is mounted there; the file system's.
pub(super) fn remove_dir(dir: &Path) -> io::Result<()> {
    match mounts::has_mounts(dir) {
        Ok(true) => return Err(io::Error::other("something is still mounted there")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        // What is mounted there is not the runtime's to remove.
        Err(error) => return Err(error),
        Ok(false) => {}
    }
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Writes a file that containers have mounted, mode 0644. Its directory is the runtime's own.
///
/// # Errors
/// The file system's.
pub(super) fn write_mounted(path: &Path, text: &str) -> io::Result<()> {
    std::fs::write(path, text)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644))
}

/// The network namespace's file, if the sandbox has one that is still pinned.
///
/// # Errors
/// The mount table cannot be read: it may be.
pub(super) fn pinned_net(dir: &Path) -> io::Result<Option<PathBuf>> {
    let file = dir.join(NET);
    match mounts::is_mounted(&file) {
        Ok(is_pinned) => Ok(is_pinned.then_some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn namespaces_are_pinned_set_up_and_released() {
        let dir = std::env::temp_dir().join(format!("smolet-namespaces-{}", std::process::id()));
        let wanted = Wanted {
            net: true,
            ipc: true,
            hostname: Some("pod-a".into()),
            sysctls: vec![
                ("net/ipv4/ip_unprivileged_port_start".into(), "0".into()),
                ("kernel/shm_rmid_forced".into(), "1".into()),
            ],
            users: None,
        };
        // None is run without a user namespace.
        let program = Path::new("/nonexistent");
        let node = std::fs::read("/proc/sys/kernel/shm_rmid_forced").unwrap();
        make(&dir, &wanted, program).unwrap();
        let script = "hostname; cat /proc/sys/net/ipv4/ip_unprivileged_port_start; \
                      cat /proc/sys/kernel/shm_rmid_forced; cat /sys/class/net/lo/flags; ip -o address show lo";
        let at = |name: &str| dir.join(name).display().to_string();
        let inside = Command::new("nsenter")
            .args([format!("--net={}", at(NET)), format!("--ipc={}", at(IPC)), format!("--uts={}", at(UTS))])
            .args(["sh", "-c", script])
            .output()
            .unwrap();
        let shown = String::from_utf8_lossy(&inside.stdout);
        assert!(shown.starts_with("pod-a\n0\n1\n"), "{shown} {inside:?}");
        assert!(shown.contains("127.0.0.1/8"), "{shown}");
        assert_eq!(std::fs::read("/proc/sys/kernel/shm_rmid_forced").unwrap(), node, "the node's own stays");
        assert!(pinned_net(&dir).unwrap().is_some());
        let shm = rustix::fs::statfs(dir.join(SHM)).unwrap();
        assert_eq!(u64::try_from(shm.f_bsize).unwrap() * shm.f_blocks, POD_SHM_BYTES as u64);
        release(&dir).unwrap();
        assert!(!dir.exists());
        release(&dir).unwrap();
        // Half-made: what is there is released.
        let bad = Wanted { sysctls: vec![("net/no/such".into(), "1".into())], ..wanted };
        let error = make(&dir, &bad, program).unwrap_err().to_string();
        assert!(error.starts_with("the pod's sysctl net/no/such=1: "), "{error}");
        release(&dir).unwrap();
    }
}
