//! The user namespace of a pod (`hostUsers: false`), and the other namespaces that belong to it. I/O, blocking.
//!
//! ```text
//!     agent ── spawns ──► smolet user-namespace net,ipc,uts     unshare(2): they all belong to the new user namespace
//!       │ ◄── "0" ──────────┘
//!       ├─ writes /proc/PID/uid_map and gid_map
//!       ├─ mounts /proc/PID/ns/* on the files of the sandbox
//!       └─ kills it
//! ```
//!
//! A process with more than one thread cannot make a user namespace of its own, so that a short-lived mode of the binary does. It ends
//! with the agent: its standard input is closed then.

use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, Gid, Uid, chownat};
use rustix::mount::mount_bind;
use rustix::thread::UnshareFlags;

use crate::limits::USER_NAMESPACE_TIME;
use crate::oci::runtime_spec::IdMapping;
use crate::proto::runtime::v1 as cri;

/// The file of the namespace in a sandbox's directory.
pub(super) const USER: &str = "user";
/// The mode of the binary.
const MODE: &str = "user-namespace";

/// The ranges of users and groups of a pod's user namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Users {
    pub(super) uids: Vec<IdMapping>,
    pub(super) gids: Vec<IdMapping>,
}

/// A user and a group on the node.
pub(super) type Owner = (u32, u32);

impl Users {
    /// Those of a sandbox; `None`: it is in the node's user namespace.
    ///
    /// # Errors
    /// The configuration's ranges are refused.
    pub(super) fn of(config: &cri::PodSandboxConfig) -> Result<Option<Self>, String> {
        let mappings = crate::oci::user_mappings(config).map_err(|error| error.to_string())?;
        Ok(mappings.map(|(uids, gids)| Self { uids, gids }))
    }

    /// The node's ids of the namespace's root user and group. A namespace without root has its first ids in their place.
    pub(super) fn root(&self) -> Owner {
        let first =
            |of: &[IdMapping]| of.iter().min_by_key(|range| range.container_id).map_or(0, |of| of.host_id);
        (first(&self.uids), first(&self.gids))
    }
}

/// Gives a file or directory of the runtime's own to the root user of the namespace.
///
/// # Errors
/// The file system's.
pub(super) fn give(path: &Path, (uid, gid): Owner) -> io::Result<()> {
    let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
    Ok(chownat(CWD, path, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Lets the namespace's root user pass through a directory of the runtime's own, and nobody else.
///
/// # Errors
/// The file system's.
pub(super) fn let_pass(dir: &Path, (_, gid): Owner) -> io::Result<()> {
    chownat(CWD, dir, None, Some(Gid::from_raw(gid)), AtFlags::SYMLINK_NOFOLLOW)?;
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o710))
}

/// Lets the namespace's root user, who is nobody on the node, reach a path: the OCI runtime looks for the root file system as that
/// user. Directories of `ours` can be passed through from then on, not listed; those above are their owner's.
///
/// # Errors
/// A directory above is closed to others; the file system's.
pub(super) fn let_reach(path: &Path, ours: &Path, (_, gid): Owner) -> io::Result<()> {
    let (path, ours) = (path.canonicalize()?, ours.canonicalize()?);
    let of_path =
        |dir: &Path, error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", dir.display()));
    for dir in path.ancestors().skip(1).filter(|dir| !dir.as_os_str().is_empty()) {
        let is = std::fs::symlink_metadata(dir).map_err(|error| of_path(dir, error))?;
        if is.mode() & 0o001 != 0 || (is.gid() == gid && is.mode() & 0o010 != 0) {
            continue;
        }
        if !dir.starts_with(&ours) {
            let shown = dir.display();
            return Err(io::Error::other(format!(
                "users of a pod's user namespace cannot pass through {shown}; chmod o+x {shown}"
            )));
        }
        let mode = std::fs::Permissions::from_mode(is.mode() & 0o7777 | 0o001);
        std::fs::set_permissions(dir, mode).map_err(|error| of_path(dir, error))?;
    }
    Ok(())
}

/// Makes a user namespace, and namespaces of these kinds that belong to it; each is mounted on a file of its kind in the directory.
///
/// # Errors
/// The kernel's; the program cannot be run.
pub(super) fn make(program: &Path, dir: &Path, users: &Users, kinds: &[&str]) -> io::Result<()> {
    let mut command = Command::new(program);
    command.arg0("smolet").arg(MODE).arg(kinds.join(",")).env_clear();
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    let made = wait_until_made(&mut child).and_then(|()| pin(&child, dir, users, kinds));
    let _ = child.kill();
    child.wait()?;
    made
}

fn wait_until_made(child: &mut Child) -> io::Result<()> {
    let stdout = child.stdout.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
    let time = Timespec::try_from(USER_NAMESPACE_TIME).map_err(io::Error::other)?;
    if poll(&mut [PollFd::new(&*stdout, PollFlags::IN)], Some(&time))? == 0 {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let mut answer = [0; 16];
    let read = stdout.read(&mut answer)?;
    match std::str::from_utf8(&answer[..read]).ok().and_then(|text| text.trim().parse().ok()) {
        Some(0) => Ok(()),
        Some(code) => Err(io::Error::from_raw_os_error(code)),
        None => Err(io::Error::other("smolet user-namespace ended without an answer")),
    }
}

/// While the process lives, its number is its own.
fn pin(child: &Child, dir: &Path, users: &Users, kinds: &[&str]) -> io::Result<()> {
    let of_child = Path::new("/proc").join(child.id().to_string());
    for (name, ranges) in [("gid_map", &users.gids), ("uid_map", &users.uids)] {
        let line = |of: &IdMapping| format!("{} {} {}\n", of.container_id, of.host_id, of.size);
        // In one piece: the kernel takes a single write.
        std::fs::write(of_child.join(name), ranges.iter().map(line).collect::<String>())?;
    }
    for kind in [USER].iter().chain(kinds) {
        let file = dir.join(kind);
        std::fs::File::create_new(&file)?;
        mount_bind(of_child.join("ns").join(kind), &file)?;
    }
    Ok(())
}

/// `smolet user-namespace KINDS`: makes the namespaces, says so, and waits for its end. `None` when the command line is another one.
pub fn main() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != MODE {
        return None;
    }
    let kinds = arguments.next().unwrap_or_default();
    let mut flags = UnshareFlags::NEWUSER;
    for kind in kinds.to_string_lossy().split(',').filter(|kind| !kind.is_empty()) {
        flags |= match kind {
            super::namespaces::NET => UnshareFlags::NEWNET,
            super::namespaces::IPC => UnshareFlags::NEWIPC,
            super::namespaces::UTS => UnshareFlags::NEWUTS,
            _ => return Some(ExitCode::FAILURE),
        };
    }
    // Unsound with CLONE_FILES alone, which is not among the flags.
    #[allow(deprecated, reason = "its successor is an unsafe function")]
    let code = rustix::thread::unshare(flags).map_or_else(rustix::io::Errno::raw_os_error, |()| 0);
    let _ = writeln!(io::stdout(), "{code}");
    // The agent's end of it is closed when the agent ends.
    let _ = io::stdin().read(&mut [0]);
    Some(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_pass_through_directories_of_ours_alone() {
        let root = std::env::temp_dir().join(format!("smolet-users-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        let (ours, path) = (root.join("ours"), root.join("ours/a/b/rootfs"));
        std::fs::create_dir_all(&path).unwrap();
        let set =
            |dir: &Path, mode| std::fs::set_permissions(dir, std::fs::Permissions::from_mode(mode)).unwrap();
        let mode = |dir: &Path| std::fs::metadata(dir).unwrap().mode() & 0o7777;
        for dir in [&ours, &root.join("ours/a"), &path] {
            set(dir, 0o700);
        }
        let owner = (70_000, 70_001);
        let_pass(&root.join("ours/a/b"), owner).unwrap();
        let_reach(&path, &ours, owner).unwrap();
        assert_eq!(
            [&*ours, &root.join("ours/a"), &root.join("ours/a/b"), &*path].map(mode),
            [0o701, 0o701, 0o710, 0o700]
        );
        set(&root, 0o700);
        let error = let_reach(&path, &ours, owner).unwrap_err().to_string();
        assert!(error.ends_with(&format!("; chmod o+x {}", root.display())), "{error}");
        assert_eq!(mode(&root), 0o700);
        give(&path, owner).unwrap();
        assert_eq!((std::fs::metadata(&path).unwrap().uid(), std::fs::metadata(&path).unwrap().gid()), owner);
        std::fs::remove_dir_all(&root).unwrap();
    }
}
