//! Container logs in memory: a pod's log directory is a tmpfs of its own, and the newest lines are kept on the disk. Blocking I/O.
//!
//! ```text
//!     /var/log/pods/NAMESPACE_POD_UID/      a tmpfs, which is full at its size
//!         CONTAINER/N.log ──(flush period; the agent ends)──► ROOT/pods/UID/logs/CONTAINER/N.log: its last 64 KiB
//!                ▲                                                        │
//!                └───────────── the agent starts in another boot ◄────────┘
//! ```
//!
//! Not in the kubelet. What a directory is shows its mount, so that neither a restart of the agent nor a changed manifest loses a
//! log. Whoever reads logs finds them at the kubelet's paths.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::statfs;
use rustix::mount::{MountFlags, UnmountFlags, mount_remount, unmount};

use super::files::Rotated;
use crate::filesystem::{open_regular, read_bounded, replace};
use crate::limits::{
    LOG_BYTES_MIN, LOG_KEPT_BYTES, LOG_KEPT_STARTS, LOG_LINKS_READ_MAX, LOG_MEMORY_RANGE, LOG_MEMORY_SHARES,
    LOG_NAMES_READ_MAX,
};
use crate::mounts::mount_tmpfs;
use crate::render::paths::{KEPT_LOGS, uid_of_logs_dir};

/// Settings of logs in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogMemory {
    /// Bytes for the logs of a pod that asks for nothing else; `None`: on the disk.
    pub bytes: Option<u64>,
    /// Time between two flushes; `None`: only when the agent ends.
    pub flush_period: Option<Duration>,
}

const FLAGS: MountFlags = MountFlags::NODEV.union(MountFlags::NOSUID).union(MountFlags::NOEXEC);
/// `TMPFS_MAGIC`.
const TMPFS: u64 = 0x0102_1994;
/// Name of a file that is being written.
const UNFINISHED: &str = "unfinished";

/// True when the pod's log directory is a tmpfs of its own.
pub fn is_in_memory(logs: &Path) -> bool {
    let own = fs::symlink_metadata(logs).map(|meta| meta.dev());
    let above = logs.parent().map(|above| fs::metadata(above).map(|meta| meta.dev()));
    matches!((own, above), (Ok(own), Some(Ok(above))) if own != above)
        && statfs(logs).is_ok_and(|of| u64::try_from(of.f_type) == Ok(TMPFS))
}

/// Puts a pod's logs where they are wanted before its sandbox is made: into `bytes` of memory, with what was kept of them, or
/// on the disk. `logs` exists; `kept` is the directory for what is kept.
///
/// # Errors
/// A mount or a file; names it.
pub fn prepare(logs: &Path, bytes: Option<u64>, kept: &Path) -> Result<(), String> {
    match (bytes, is_in_memory(logs)) {
        (None, false) => Ok(()),
        (Some(bytes), false) => mount(logs, bytes, kept),
        (Some(bytes), true) => {
            let size = format!("size={bytes}");
            // Less than what is there: the logs that are too much go with their containers, and the next sandbox gets it.
            if let Err(error) = mount_remount(logs, FLAGS, size.as_str()) {
                log::warn!("{} keeps its memory instead of {bytes} bytes: {error}", logs.display());
            }
            Ok(())
        }
        (None, true) => {
            keep_pod(logs, kept)?;
            unmounted(logs)?;
            restore(kept, logs)?;
            match fs::remove_dir_all(kept) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    Err(format!("{}: {error}", kept.display()))
                }
                Ok(()) | Err(_) => Ok(()),
            }
        }
    }
}

fn mount(logs: &Path, bytes: u64, kept: &Path) -> Result<(), String> {
    mount_tmpfs(logs, FLAGS, 0o755, Some(bytes))
        .map_err(|error| format!("no memory is mounted on {}: {error}", logs.display()))?;
    // Logs that do not come back do not keep the pod from its start.
    if let Err(error) = restore(kept, logs) {
        log::warn!("{}: logs of the last boot are not all there: {error}", logs.display());
    }
    Ok(())
}

/// Ends a log directory in memory, before it is removed. Who still reads a log of it reads on.
///
/// # Errors
/// The kernel's; names the directory.
pub fn unmounted(logs: &Path) -> Result<(), String> {
    if !is_in_memory(logs) {
        return Ok(());
    }
    unmount(logs, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)
        .map_err(|error| format!("{} was not unmounted: {error}", logs.display()))
}

/// A log's share of its pod's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Size in bytes from which on it is rotated.
    pub size_max: u64,
    /// The memory is full: what is written is lost.
    pub is_full: bool,
}

/// The share of a log whose pod has its logs in memory; `None`: they are on the disk.
pub fn share(log: &Path) -> Option<Share> {
    let pod = log.parent()?.parent().filter(|pod| is_in_memory(pod))?;
    let of = statfs(pod).ok()?;
    let block = u64::try_from(of.f_bsize).ok()?;
    let containers = u64::try_from(names(pod, LOG_NAMES_READ_MAX).count()).ok()?.max(1);
    let size_max = of.f_blocks.saturating_mul(block) / containers / LOG_MEMORY_SHARES;
    Some(Share { size_max: size_max.max(LOG_BYTES_MIN), is_full: of.f_bavail == 0 })
}

/// Brings the kept logs of all pods back into memory, at the agent's start in another boot. Pods whose logs are there already,
/// and those without a log directory, are left alone.
pub fn restore_all(all_logs: &Path, pods: &Path) {
    for name in names(all_logs, LOG_LINKS_READ_MAX) {
        let (logs, kept) = (all_logs.join(&name), kept_of(pods, &name));
        if kept.is_dir()
            && !is_in_memory(&logs)
            // Its own size comes with its next sandbox.
            && let Err(error) = mount(&logs, LOG_MEMORY_RANGE.1, &kept)
        {
            log::warn!("{error}");
        }
    }
}

fn kept_of(pods: &Path, name: &str) -> PathBuf {
    pods.join(uid_of_logs_dir(name)).join(KEPT_LOGS)
}

/// Keeps the newest lines of all logs in memory on the disk. What is there already is not written again.
///
/// # Errors
/// The first failure; the other logs are kept all the same.
pub fn keep_all(all_logs: &Path, pods: &Path) -> Result<(), String> {
    let mut first = Ok(());
    for name in names(all_logs, LOG_LINKS_READ_MAX) {
        let (logs, kept) = (all_logs.join(&name), kept_of(pods, &name));
        // Without its directory the pod is being removed, or is another agent's.
        if is_in_memory(&logs) && kept.parent().is_some_and(Path::is_dir) {
            first = first.and(keep_pod(&logs, &kept));
        }
    }
    first
}

fn keep_pod(logs: &Path, kept: &Path) -> Result<(), String> {
    let mut first = Ok(());
    for container in names(logs, LOG_NAMES_READ_MAX) {
        let (from, to) = (logs.join(&container), kept.join(&container));
        first = first.and(
            keep_container(&from, &to)
                .map_err(|error| format!("{}: its logs were not kept on the disk: {error}", from.display())),
        );
    }
    first
}

/// The logs of the container's last starts; what is kept of earlier ones is removed.
fn keep_container(from: &Path, to: &Path) -> io::Result<()> {
    let starts = starts(from);
    for start in starts.iter().rev().take(LOG_KEPT_STARTS) {
        let name = format!("{start}.log");
        let Some(tail) = tail(&from.join(&name), LOG_KEPT_BYTES)? else { continue };
        let kept = to.join(&name);
        if read_bounded(&kept, LOG_KEPT_BYTES).is_ok_and(|there| there == tail) {
            continue;
        }
        DirBuilder::new().recursive(true).mode(0o750).create(to)?;
        replace(&kept, &to.join(UNFINISHED), &tail)?;
    }
    let oldest = starts.iter().rev().take(LOG_KEPT_STARTS).next_back();
    for old in self::starts(to).into_iter().filter(|start| oldest.is_some_and(|oldest| start < oldest)) {
        fs::remove_file(to.join(format!("{old}.log")))?;
    }
    Ok(())
}

/// The restart counts N of the files N.log in a container's directory, in order.
fn starts(directory: &Path) -> Vec<u32> {
    let number = |name: String| name.strip_suffix(".log").and_then(|number| number.parse().ok());
    let mut starts: Vec<u32> = names(directory, LOG_NAMES_READ_MAX).filter_map(number).collect();
    starts.sort_unstable();
    starts
}

/// At most the last `bytes_max` bytes of the log and of its newest rotated file, whole lines; `None`: it is gone by now.
fn tail(log: &Path, bytes_max: usize) -> io::Result<Option<Vec<u8>>> {
    let Some(newest) = end_of(log, bytes_max)? else { return Ok(None) };
    let left = bytes_max - newest.len();
    let rotated = Rotated::of(log)?;
    let before = rotated.logs.last_key_value().filter(|(_, forms)| forms.plain).map(|(stamp, _)| stamp);
    let mut bytes = match before {
        Some(stamp) if left > 0 => end_of(&rotated.plain(stamp), left)?.unwrap_or_default(),
        _ => Vec::new(),
    };
    bytes.extend(newest);
    Ok(Some(bytes))
}

/// The last bytes of one file, from the beginning of a line.
fn end_of(log: &Path, bytes_max: usize) -> io::Result<Option<Vec<u8>>> {
    let mut file = match open_regular(log) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let bytes_max = u64::try_from(bytes_max).unwrap_or(u64::MAX);
    let from = file.metadata()?.len().saturating_sub(bytes_max);
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(bytes_max).read_to_end(&mut bytes)?;
    if from > 0 {
        let begin = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |end| end + 1);
        bytes.drain(..begin);
    }
    Ok(Some(bytes))
}

/// Copies what is kept to a log directory. A log that is there already stays.
fn restore(kept: &Path, logs: &Path) -> Result<(), String> {
    let copy = |container: &str, start: u32| -> io::Result<()> {
        let name = format!("{start}.log");
        let bytes = read_bounded(&kept.join(container).join(&name), LOG_KEPT_BYTES)?;
        let to = logs.join(container);
        DirBuilder::new().recursive(true).mode(0o755).create(&to)?;
        let new: io::Result<File> =
            OpenOptions::new().write(true).create_new(true).mode(0o640).open(to.join(name));
        match new {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            new => new?.write_all(&bytes),
        }
    };
    let mut first = Ok(());
    for container in names(kept, LOG_NAMES_READ_MAX) {
        for start in starts(&kept.join(&container)) {
            let copied = copy(&container, start);
            first = first.and(copied.map_err(|error| format!("{container}/{start}.log: {error}")));
        }
    }
    first
}

/// The UTF-8 names in a directory, at most so many; none when it cannot be read.
fn names(directory: &Path, most: usize) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(directory).into_iter().flatten().take(most).flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok())
}

#[cfg(test)]
mod tests {
    use super::super::tests::Folder;
    use super::*;

    const SIZE: u64 = 512 << 10;

    /// A node with the log directory of one pod, and that pod's directory.
    struct Node {
        folder: Folder,
        logs: PathBuf,
        kept: PathBuf,
    }

    impl Node {
        fn new(name: &str) -> Self {
            let folder = Folder::new(name);
            let (logs, kept) = (folder.path("log/default_web_u1"), folder.path("pods/u1/logs"));
            fs::create_dir_all(&logs).unwrap();
            fs::create_dir_all(kept.parent().unwrap()).unwrap();
            Self { folder, logs, kept }
        }

        fn write(&self, name: &str, text: &str) {
            let path = self.logs.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn read(&self, name: &str) -> String {
            fs::read_to_string(self.logs.join(name)).unwrap_or_default()
        }

        fn kept(&self, name: &str) -> Option<String> {
            fs::read_to_string(self.kept.join(name)).ok()
        }

        fn keep_all(&self) {
            keep_all(&self.folder.path("log"), &self.folder.path("pods")).unwrap();
        }

        /// Memory is empty after a power cut.
        fn boot(&self) {
            unmount(&self.logs, UnmountFlags::NOFOLLOW).unwrap();
            assert_eq!(names(&self.logs, 10).count(), 0, "nothing was written to the disk");
            restore_all(&self.folder.path("log"), &self.folder.path("pods"));
        }
    }

    impl Drop for Node {
        fn drop(&mut self) {
            let _ = unmounted(&self.logs);
        }
    }

    fn inode(path: &Path) -> u64 {
        path.metadata().unwrap().ino()
    }

    #[test]
    fn the_newest_lines_of_the_last_starts_come_through_a_boot() {
        let node = Node::new("boot");
        prepare(&node.logs, Some(SIZE), &node.kept).unwrap();
        assert!(is_in_memory(&node.logs));
        for start in 0..3 {
            node.write(&format!("app/{start}.log"), &format!("start {start}\n"));
        }
        let lines = (0..20_000).fold(String::new(), |lines, n| lines + &format!("line {n:06}\n"));
        node.write("app/3.log.20260102-030405", &lines);
        node.write("app/3.log", "the end\n");
        node.write("app/notes", "no log\n");
        node.keep_all();
        assert_eq!(node.kept("app/2.log").as_deref(), Some("start 2\n"));
        let kept = node.kept("app/3.log").unwrap();
        assert!(kept.starts_with("line ") && kept.ends_with("line 019999\nthe end\n"), "whole lines");
        assert!((LOG_KEPT_BYTES - 12..=LOG_KEPT_BYTES).contains(&kept.len()), "{}", kept.len());
        assert_eq!(
            names(&node.kept.join("app"), 10).count(),
            LOG_KEPT_STARTS,
            "no earlier start, no other file"
        );

        // What has not changed is not written again, and what is older goes.
        let before = inode(&node.kept.join("app/3.log"));
        node.write("app/4.log", "start 4\n");
        node.keep_all();
        assert_eq!(inode(&node.kept.join("app/3.log")), before);
        assert_eq!(node.kept("app/2.log"), None);
        assert_eq!(node.kept("app/4.log").as_deref(), Some("start 4\n"));

        node.boot();
        assert_eq!((node.read("app/3.log"), &*node.read("app/4.log")), (kept, "start 4\n"));
        // The size of the pod's own, again without a loss.
        prepare(&node.logs, Some(SIZE), &node.kept).unwrap();
        let of = statfs(&node.logs).unwrap();
        assert_eq!(of.f_blocks * u64::try_from(of.f_bsize).unwrap(), SIZE);
        assert_eq!(node.read("app/4.log"), "start 4\n");
    }

    #[test]
    fn logs_that_are_wanted_on_the_disk_again_are_written_there() {
        let node = Node::new("again");
        prepare(&node.logs, Some(SIZE), &node.kept).unwrap();
        prepare(&node.logs, None, &node.kept).expect("without a log");
        assert!(!is_in_memory(&node.logs), "on the disk as ever");
        node.write("app/0.log", "on the disk\n");
        prepare(&node.logs, Some(SIZE), &node.kept).unwrap();
        assert_eq!(node.read("app/0.log"), "", "below the mount");
        node.write("app/0.log", "another\n");
        node.write("app/1.log", "in memory\n");
        prepare(&node.logs, None, &node.kept).unwrap();
        assert!(!is_in_memory(&node.logs) && !node.kept.exists());
        assert_eq!((&*node.read("app/0.log"), &*node.read("app/1.log")), ("on the disk\n", "in memory\n"));
        node.keep_all();
        assert!(!node.kept.exists(), "there is nothing to keep of logs on the disk");
    }

    #[test]
    fn each_containers_log_has_its_share_and_no_more_than_the_memory_is_taken() {
        let node = Node::new("share");
        node.write("app/0.log", "");
        assert_eq!(share(&node.logs.join("app/0.log")), None, "on the disk");
        prepare(&node.logs, Some(SIZE), &node.kept).unwrap();
        node.write("app/0.log", "");
        let of = |name: &str| share(&node.logs.join(name)).unwrap();
        assert_eq!(of("app/0.log"), Share { size_max: SIZE / LOG_MEMORY_SHARES, is_full: false });
        node.write("sidecar/0.log", "");
        assert_eq!(of("app/0.log").size_max, SIZE / LOG_MEMORY_SHARES / 2);
        for more in 0..100 {
            node.write(&format!("c{more}/0.log"), "");
        }
        assert_eq!(of("app/0.log").size_max, LOG_BYTES_MIN);
        let full = fs::write(node.logs.join("app/0.log"), vec![b'x'; usize::try_from(SIZE).unwrap() + 1]);
        assert_eq!(full.unwrap_err().kind(), ErrorKind::StorageFull);
        assert!(of("sidecar/0.log").is_full);
        unmounted(&node.logs).unwrap();
        unmounted(&node.logs).expect("once is enough");
        assert!(!is_in_memory(&node.logs));
    }

    #[test]
    fn pods_without_a_directory_and_without_memory_are_left_alone() {
        let node = Node::new("left");
        prepare(&node.logs, Some(SIZE), &node.kept).unwrap();
        node.write("app/0.log", "x\n");
        fs::remove_dir_all(node.folder.path("pods/u1")).unwrap();
        node.keep_all();
        assert!(!node.folder.path("pods/u1").exists(), "it is being removed");
        restore_all(&node.folder.path("log"), &node.folder.path("pods"));
        assert_eq!(node.read("app/0.log"), "x\n", "they are there already");
        restore_all(&node.folder.path("none"), &node.folder.path("pods"));
    }
}
