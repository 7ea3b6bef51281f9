//! Container logs in memory: a pod's log directory is a tmpfs of its own, whose newest lines are flushed to the disk. Blocking I/O.
//!
//! ```text
//!     /var/log/pods/NAMESPACE_POD_UID/      a tmpfs, bounded by its size
//!         CONTAINER/N.log ──(flush period; the agent ends)──► ROOT/pods/UID/logs/CONTAINER/N.log: its last 64 KiB
//!                ▲                                                        │
//!                └───────── another boot: the agent's start, the pod's next sandbox ◄──┘
//! ```
//!
//! Not in the kubelet. The mount itself says that a pod's logs are in memory: no record of the agent's does.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags, statfs, syncfs};
use rustix::mount::{MountFlags, UnmountFlags, unmount};

use super::files::{Rotated, log_number};
use crate::filesystem::{is_lost, open_regular, read_bounded, read_start};
use crate::limits::{
    LOG_BYTES_MIN, LOG_CHUNK_BYTES, LOG_FLUSH_BYTES_MAX, LOG_FLUSH_STARTS_MAX, LOG_LINKS_READ_MAX,
    LOG_MEMORY_SHARES, LOG_NAMES_READ_MAX, LOG_OPEN_TRIES,
};
use crate::mounts::mount_tmpfs;
use crate::render::paths::{FLUSHED_LOGS, uid_of_logs_dir};
use crate::tree;

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
/// In a log directory in memory: the flushed logs have been copied to it. Without it they are not replaced by what is there.
const COMPLETE: &str = ".complete";
/// Suffix of a flushed log that is not whole yet.
const UNFLUSHED: &str = ".new";

/// True when the pod's log directory is a tmpfs of its own.
pub fn is_in_memory(logs: &Path) -> bool {
    let own = fs::symlink_metadata(logs).map(|meta| meta.dev());
    let above = logs.parent().map(|above| fs::metadata(above).map(|meta| meta.dev()));
    matches!((own, above), (Ok(own), Some(Ok(above))) if own != above)
        && statfs(logs).is_ok_and(|of| u64::try_from(of.f_type) == Ok(TMPFS))
}

/// Prepares a pod's log directory, which exists, for its next sandbox: in `bytes` of memory, unless the log directories in memory
/// would take more than `node_max` then; else on the disk. `flushed`: the pod's flushed logs, which are copied to it. Logs that are
/// in memory already stay there.
///
/// # Errors
/// What could not be done, with the path.
pub fn prepare(logs: &Path, flushed: &Path, bytes: Option<u64>, node_max: u64) -> Result<(), String> {
    if !is_in_memory(logs) {
        let bytes = bytes.filter(|bytes| has_room(logs, *bytes, node_max));
        let Some(bytes) = bytes else { return restore_to_disk(flushed, logs) };
        // Those of the last boot, or of the time before the manifest asked for memory.
        flush_pods([(logs.to_owned(), flushed.to_owned())])?;
        let emptied = entries(logs).try_for_each(|name| tree::remove(&logs.join(name), || true).map(drop));
        emptied.map_err(|error| format!("{} was not emptied: {error}", logs.display()))?;
        mount_tmpfs(logs, FLAGS, 0o755, Some(bytes)).map_err(|error| {
            format!("{bytes} bytes of memory were not mounted on {}: {error}", logs.display())
        })?;
    }
    if !logs.join(COMPLETE).exists() {
        // Logs that are not copied do not keep the pod from its start.
        if let Err(error) = restore(flushed, logs) {
            log::warn!("{}: logs of the last boot were not copied: {error}", logs.display());
        }
        File::create_new(logs.join(COMPLETE)).map_err(|error| format!("{}: {error}", logs.display()))?;
    }
    Ok(())
}

/// Whether the node has `bytes` for one more log directory.
fn has_room(logs: &Path, bytes: u64, node_max: u64) -> bool {
    let all = logs.parent().into_iter().flat_map(|all| entries(all).map(|name| all.join(name)));
    let taken: u64 = all.filter(|logs| is_in_memory(logs)).filter_map(|logs| size_of(&logs)).sum();
    let fits = taken.saturating_add(bytes) <= node_max;
    if !fits {
        log::warn!(
            "{}: its logs are on the disk: those of other pods have {taken} of the {node_max} bytes of memory for logs",
            logs.display()
        );
    }
    fits
}

fn size_of(logs: &Path) -> Option<u64> {
    let of = statfs(logs).ok()?;
    Some(of.f_blocks.saturating_mul(u64::try_from(of.f_bsize).ok()?))
}

/// Copies flushed logs to a log directory on the disk, where they have their place from now on.
fn restore_to_disk(flushed: &Path, logs: &Path) -> Result<(), String> {
    if !flushed.is_dir() {
        return Ok(());
    }
    let copied = restore(flushed, logs).and_then(|()| {
        // Before these are all that there is of them.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let disk = rustix::fs::open(logs, flags, Mode::empty()).and_then(syncfs);
        disk.map_err(|error| error.to_string())
    });
    copied.map_err(|error| format!("{}: flushed logs were not copied: {error}", logs.display()))?;
    fs::remove_dir_all(flushed).map_err(|error| format!("{} was not removed: {error}", flushed.display()))
}

/// Unmounts a log directory in memory, before it is removed. A log that is still open there can be read to its end.
///
/// # Errors
/// The kernel's, with the path.
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
    /// Bytes of the pod's memory that are free.
    pub free: u64,
}

impl Share {
    /// Less than one share is free: the next lines may be lost.
    pub fn is_short(self) -> bool {
        self.free < self.size_max
    }
}

/// The share of a log whose pod has its logs in memory; `None`: they are on the disk.
pub fn share(log: &Path) -> Option<Share> {
    let pod = log.parent()?.parent().filter(|pod| is_in_memory(pod))?;
    let of = statfs(pod).ok()?;
    let free = of.f_bavail.saturating_mul(u64::try_from(of.f_bsize).ok()?);
    let containers = u64::try_from(entries(pod).count()).ok()?.max(1);
    Some(Share { size_max: (size_of(pod)? / containers / LOG_MEMORY_SHARES).max(LOG_BYTES_MIN), free })
}

/// Frees memory of the pod of this log: removes rotated logs, and where that is not enough those of earlier starts.
///
/// # Errors
/// A file could not be removed.
pub fn free(log: &Path) -> io::Result<()> {
    let Some(pod) = log.parent().and_then(Path::parent) else { return Ok(()) };
    let of_earlier_starts = |name: &str, newest| log_number(name).is_some_and(|start| start < newest);
    let kinds: [fn(&str, u32) -> bool; 2] = [|name, _| is_rotated(name), of_earlier_starts];
    for is_old in kinds {
        for container in entries(pod).map(|container| pod.join(container)) {
            let newest = starts(&container).pop().unwrap_or_default();
            for name in entries(&container).filter(|name| is_old(name, newest)) {
                fs::remove_file(container.join(name))?;
            }
        }
        if share(log).is_none_or(|share| !share.is_short()) {
            break;
        }
    }
    Ok(())
}

fn is_rotated(name: &str) -> bool {
    log_number(name).is_some() && name.strip_suffix(".log").is_none()
}

/// Cuts a rotated log to its last `size_max` bytes, in place: there may be no memory for a copy.
///
/// # Errors
/// The file's.
pub fn cut(rotated: &Path, size_max: u64) -> io::Result<()> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(rotated, flags, Mode::empty())?);
    let Some(cut) = file.metadata()?.len().checked_sub(size_max).filter(|cut| *cut > 0) else {
        return Ok(());
    };
    let (mut chunk, mut to) = (vec![0; LOG_CHUNK_BYTES], 0);
    loop {
        let bytes = file.read_at(&mut chunk, to + cut)?;
        if bytes == 0 {
            return file.set_len(to);
        }
        file.write_all_at(&chunk[..bytes], to)?;
        to += bytes as u64;
    }
}

/// Copies the flushed logs of all pods to their log directories, at the agent's start in another boot: those of pods that have
/// ended are asked for too. Logs in memory, which are those of this boot, are left alone.
pub fn restore_all(all_logs: &Path, pods: &Path) {
    for name in entries(all_logs) {
        let (logs, flushed) = (all_logs.join(&name), flushed_of(pods, &name));
        if flushed.is_dir()
            && !is_in_memory(&logs)
            && let Err(error) = restore(&flushed, &logs)
        {
            log::warn!("{}: logs of the last boot were not copied: {error}", logs.display());
        }
    }
}

fn flushed_of(pods: &Path, name: &str) -> PathBuf {
    pods.join(uid_of_logs_dir(name)).join(FLUSHED_LOGS)
}

/// Flushes the newest lines of all logs in memory to the disk. What is there already is not written again. One call at a time.
///
/// # Errors
/// The first failure; the other logs are flushed all the same.
pub fn flush_all(all_logs: &Path, pods: &Path) -> Result<(), String> {
    let all = entries(all_logs).map(|name| (all_logs.join(&name), flushed_of(pods, &name)));
    flush_pods(all.filter(|(logs, _)| is_in_memory(logs) && logs.join(COMPLETE).exists()))
}

/// Writes new files, waits once for the disk, and puts them in the place of the old ones: neither is torn by a power cut.
fn flush_pods(pods: impl IntoIterator<Item = (PathBuf, PathBuf)>) -> Result<(), String> {
    let (mut first, mut new) = (Ok(()), Vec::new());
    for (logs, flushed) in pods {
        // Without its directory the pod is being removed, or is another agent's.
        if !flushed.parent().is_some_and(Path::is_dir) {
            continue;
        }
        for container in entries(&logs) {
            let (from, to) = (logs.join(&container), flushed.join(&container));
            first = first.and(flush_container(&from, &to, &mut new).map_err(|error| {
                format!("{}: its logs in memory were not flushed to the disk: {error}", from.display())
            }));
        }
    }
    let settled =
        settle(&new).map_err(|error| format!("logs in memory were not flushed to the disk: {error}"));
    first.and(settled)
}

/// Writes the logs of the container's last starts beside those that were flushed before, where they differ, and adds their
/// paths to `new`. What is left of earlier starts is removed.
fn flush_container(from: &Path, to: &Path, new: &mut Vec<PathBuf>) -> io::Result<()> {
    let starts = starts(from);
    let last = &starts[starts.len().saturating_sub(LOG_FLUSH_STARTS_MAX)..];
    for start in last {
        let name = format!("{start}.log");
        let Some(tail) = tail(&from.join(&name), LOG_FLUSH_BYTES_MAX)? else { continue };
        let flushed = to.join(&name);
        let there = read_bounded(&flushed, LOG_FLUSH_BYTES_MAX).ok();
        // Nothing does not replace something: a copy of it whose bytes a power cut took.
        if there.is_some_and(|there| there == tail || is_lost(&tail) && !is_lost(&there)) {
            continue;
        }
        // Not those above: the pod may be removed meanwhile.
        for directory in to.parent().into_iter().chain([to]) {
            match DirBuilder::new().mode(0o750).create(directory) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
        let beside = to.join(name + UNFLUSHED);
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside);
        file?.write_all(&tail)?;
        new.push(flushed);
    }
    // With what an interrupted flush left of them.
    let is_old =
        |name: &String| last.first().is_some_and(|first| log_number(name).is_some_and(|old| old < *first));
    for old in entries(to).filter(is_old) {
        fs::remove_file(to.join(old))?;
    }
    Ok(())
}

/// Puts the new files in their places, once they are on the disk.
fn settle(new: &[PathBuf]) -> io::Result<()> {
    let mut disk = None;
    for directory in new.iter().filter_map(|flushed| flushed.parent()) {
        let opened = File::open(directory);
        // All are on the same disk; that of a pod that was removed meanwhile is gone.
        if !is_gone(&opened) {
            disk = Some(opened?);
            break;
        }
    }
    let Some(disk) = disk else { return Ok(()) };
    syncfs(&disk)?;
    for flushed in new {
        let mut beside = flushed.clone().into_os_string();
        beside.push(UNFLUSHED);
        let renamed = fs::rename(beside, flushed);
        if !is_gone(&renamed) {
            renamed?;
        }
    }
    Ok(syncfs(&disk)?)
}

/// True of what was removed meanwhile.
fn is_gone<T>(outcome: &io::Result<T>) -> bool {
    outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

/// The restart counts of the logs in a container's directory, rotated ones included, in order.
fn starts(directory: &Path) -> Vec<u32> {
    let mut starts: Vec<u32> = entries(directory).filter_map(|name| log_number(&name)).collect();
    starts.sort_unstable();
    starts.dedup();
    starts
}

/// At most the last `bytes_max` bytes of the log and of its newest rotated file, whole lines; `None`: both are gone by now.
fn tail(log: &Path, bytes_max: usize) -> io::Result<Option<Vec<u8>>> {
    let newest = || -> io::Result<Option<PathBuf>> {
        let rotated = Rotated::of(log)?;
        Ok(rotated
            .logs
            .last_key_value()
            .filter(|(_, forms)| forms.plain)
            .map(|(stamp, _)| rotated.plain(stamp)))
    };
    for _ in 0..LOG_OPEN_TRIES {
        let before = newest()?;
        let (current, rotated) = (open(log)?, before.as_deref().map_or(Ok(None), open)?);
        // Not in the middle of a rotation.
        if newest()? != before {
            continue;
        }
        let end = current.map(|log| end_of(log, bytes_max)).transpose()?;
        let left = bytes_max - end.as_ref().map_or(0, Vec::len);
        let begin = rotated.filter(|_| left > 0).map(|log| end_of(log, left)).transpose()?;
        return Ok(match (begin, end) {
            (Some(begin), end) => Some([begin, end.unwrap_or_default()].concat()),
            (None, end) => end,
        });
    }
    Err(io::Error::other("it is rotated all the time"))
}

fn open(log: &Path) -> io::Result<Option<File>> {
    let file = open_regular(log);
    if is_gone(&file) { Ok(None) } else { file.map(Some) }
}

/// The last bytes of one file, from the beginning of a line.
fn end_of(mut file: File, bytes_max: usize) -> io::Result<Vec<u8>> {
    let bytes_max = u64::try_from(bytes_max).unwrap_or(u64::MAX);
    let from = file.metadata()?.len().saturating_sub(bytes_max);
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(bytes_max).read_to_end(&mut bytes)?;
    if from > 0 {
        let begin = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |end| end + 1);
        bytes.drain(..begin);
    }
    Ok(bytes)
}

/// Copies flushed logs to a log directory. A log that is there already stays, unless nothing is in it: another power cut has taken
/// the bytes of a copy.
fn restore(flushed: &Path, logs: &Path) -> Result<(), String> {
    let copy = |container: &str, name: &str| -> io::Result<()> {
        let bytes = read_bounded(&flushed.join(container).join(name), LOG_FLUSH_BYTES_MAX)?;
        let (directory, to) = (logs.join(container), logs.join(container).join(name));
        DirBuilder::new().recursive(true).mode(0o755).create(directory)?;
        let mut file = match OpenOptions::new().write(true).create_new(true).mode(0o640).open(&to) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                if !is_lost(&read_start(&to, LOG_FLUSH_BYTES_MAX)?) {
                    return Ok(());
                }
                let flags =
                    OFlags::WRONLY | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                rustix::fs::open(&to, flags, Mode::empty())?.into()
            }
            file => file?,
        };
        file.write_all(&bytes).inspect_err(|_| drop(fs::remove_file(&to)))
    };
    let mut first = Ok(());
    for container in entries(flushed) {
        let whole = |name: &String| log_number(name).is_some() && !is_rotated(name);
        for name in entries(&flushed.join(&container)).filter(whole) {
            let copied = copy(&container, &name);
            first = first.and(copied.map_err(|error| format!("{container}/{name}: {error}")));
        }
    }
    first
}

/// The UTF-8 names in a directory, but for hidden ones; none when it cannot be read.
fn entries(directory: &Path) -> impl Iterator<Item = String> {
    let all = fs::read_dir(directory).into_iter().flatten().take(LOG_LINKS_READ_MAX.max(LOG_NAMES_READ_MAX));
    let names = all.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| !name.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::super::tests::Folder;
    use super::*;

    const SIZE: u64 = 512 << 10;
    const NODE: u64 = 64 << 20;

    /// A node with the log directory of one pod, and that pod's directory.
    struct Node {
        folder: Folder,
        logs: PathBuf,
        flushed: PathBuf,
    }

    impl Node {
        fn new(name: &str) -> Self {
            let folder = Folder::new(name);
            let (logs, flushed) = (folder.path("log/default_web_u1"), folder.path("pods/u1/logs"));
            fs::create_dir_all(&logs).unwrap();
            fs::create_dir_all(flushed.parent().unwrap()).unwrap();
            Self { folder, logs, flushed }
        }

        fn prepare(&self, bytes: impl Into<Option<u64>>) {
            prepare(&self.logs, &self.flushed, bytes.into(), NODE).unwrap();
        }

        fn write(&self, name: &str, text: &str) {
            let path = self.logs.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn read(&self, name: &str) -> String {
            fs::read_to_string(self.logs.join(name)).unwrap_or_default()
        }

        fn flush(&self) {
            flush_all(&self.folder.path("log"), &self.folder.path("pods")).unwrap();
        }

        fn flushed(&self, name: &str) -> Option<String> {
            fs::read_to_string(self.flushed.join(name)).ok()
        }

        fn start(&self) {
            restore_all(&self.folder.path("log"), &self.folder.path("pods"));
        }

        /// As a power cut does. Lazily: a program that another test is about to start has the open files of this process for a moment.
        fn forget(&self) {
            unmount(&self.logs, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW).unwrap();
        }

        /// Memory is empty after a power cut.
        fn boot(&self) {
            self.forget();
            assert_eq!(entries(&self.logs).count(), 0, "nothing was written to the disk");
            self.start();
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
    fn a_pod_that_is_removed_meanwhile_costs_the_others_no_flush() {
        let node = Node::new("flush-removed");
        let new =
            ["gone", "there", "also-gone"].map(|pod| node.folder.path(&format!("pods/{pod}/logs/app/0.log")));
        let directory = new[1].parent().unwrap();
        fs::create_dir_all(directory).unwrap();
        fs::write(directory.join(format!("0.log{UNFLUSHED}")), "line\n").unwrap();
        settle(&new).unwrap();
        assert_eq!(fs::read_to_string(&new[1]).unwrap(), "line\n");
        settle(&new[..1]).unwrap();
        settle(&[]).unwrap();
    }

    #[test]
    fn the_newest_lines_of_the_last_starts_come_through_a_boot() {
        let node = Node::new("boot");
        node.prepare(SIZE);
        assert!(is_in_memory(&node.logs));
        for start in 0..3 {
            node.write(&format!("app/{start}.log"), &format!("start {start}\n"));
        }
        let lines = (0..20_000).fold(String::new(), |lines, n| lines + &format!("line {n:06}\n"));
        node.write("app/3.log.20260102-030405", &lines);
        node.write("app/3.log", "the end\n");
        node.write("app/notes", "no log\n");
        // In the middle of a rotation there is no current log.
        node.write("side/0.log.20260102-030405", "rotated\n");
        node.flush();
        assert_eq!(node.flushed("app/2.log").as_deref(), Some("start 2\n"));
        assert_eq!(node.flushed("side/0.log").as_deref(), Some("rotated\n"));
        let end = node.flushed("app/3.log").unwrap();
        assert!(end.starts_with("line ") && end.ends_with("line 019999\nthe end\n"), "whole lines");
        assert!((LOG_FLUSH_BYTES_MAX - 12..=LOG_FLUSH_BYTES_MAX).contains(&end.len()), "{}", end.len());
        assert_eq!(entries(&node.flushed.join("app")).count(), LOG_FLUSH_STARTS_MAX, "no earlier start");

        // What has not changed is not written again, and what is older goes.
        let before = inode(&node.flushed.join("app/3.log"));
        node.write("app/4.log", "start 4\n");
        node.flush();
        assert_eq!(inode(&node.flushed.join("app/3.log")), before);
        assert_eq!(node.flushed("app/2.log"), None);
        assert_eq!(node.flushed("app/4.log").as_deref(), Some("start 4\n"));

        node.boot();
        assert!(!is_in_memory(&node.logs), "a pod that does not start needs no memory");
        assert_eq!((node.read("app/3.log"), &*node.read("app/4.log")), (end.clone(), "start 4\n"));
        node.prepare(SIZE);
        assert_eq!(size_of(&node.logs), Some(SIZE));
        assert_eq!((node.read("app/3.log"), &*node.read("app/4.log")), (end, "start 4\n"));
        // A flush that was interrupted is no log, and goes with its start.
        fs::write(node.flushed.join("app/5.log.new"), "half").unwrap();
        node.boot();
        restore(&node.flushed, &node.logs).unwrap();
        assert!(!node.logs.join("app/5.log").exists());
        node.prepare(SIZE);
        node.write("app/6.log", "start 6\n");
        node.write("app/7.log", "start 7\n");
        node.flush();
        assert!(!node.flushed.join("app/5.log.new").exists());
        assert_eq!(entries(&node.flushed.join("app")).count(), LOG_FLUSH_STARTS_MAX);
    }

    #[test]
    fn what_was_not_copied_before_a_kill_is_copied_later_and_not_flushed_over() {
        let node = Node::new("killed");
        node.prepare(SIZE);
        node.write("app/5.log", "of the last boot\n");
        node.flush();
        node.boot();
        // The agent was killed between the mount and the copy.
        mount_tmpfs(&node.logs, FLAGS, 0o755, Some(SIZE)).unwrap();
        node.start();
        node.write("app/6.log", "x\n");
        node.write("app/7.log", "x\n");
        node.flush();
        assert_eq!(node.flushed("app/5.log").as_deref(), Some("of the last boot\n"));
        node.prepare(SIZE);
        assert_eq!((&*node.read("app/5.log"), &*node.read("app/7.log")), ("of the last boot\n", "x\n"));
        node.flush();
        assert_eq!((node.flushed("app/5.log"), node.flushed("app/7.log")), (None, Some("x\n".to_owned())));
        fs::remove_file(node.logs.join("app/6.log")).unwrap();
        node.prepare(SIZE);
        assert_eq!(node.read("app/6.log"), "", "what was removed stays so");
    }

    #[test]
    fn a_second_power_cut_takes_no_flushed_log() {
        let node = Node::new("cut-twice");
        node.prepare(SIZE);
        node.write("app/0.log", "of the first boot\n");
        node.flush();
        for torn in ["", "\0\0\0\0"] {
            node.boot();
            assert_eq!(node.read("app/0.log"), "of the first boot\n");
            // The copy had not reached the disk.
            node.write("app/0.log", torn);
            // In the next boot a pod starts before the agent has copied the logs again; then it copies them.
            node.prepare(SIZE);
            assert_eq!(node.flushed("app/0.log").as_deref(), Some("of the first boot\n"));
            assert_eq!(node.read("app/0.log"), "of the first boot\n");
            node.forget();
            node.write("app/0.log", torn);
            node.start();
            assert_eq!(node.read("app/0.log"), "of the first boot\n");
            node.prepare(SIZE);
        }
    }

    #[test]
    fn logs_move_from_the_disk_to_memory_and_in_another_boot_back() {
        let node = Node::new("again");
        node.prepare(None);
        assert!(!is_in_memory(&node.logs), "on the disk as ever");
        node.write("app/0.log", "on the disk\n");
        node.prepare(SIZE);
        assert_eq!(node.read("app/0.log"), "on the disk\n");
        node.write("app/1.log", "in memory\n");
        node.prepare(None);
        assert!(is_in_memory(&node.logs), "until the boot is over");
        node.flush();
        node.boot();
        node.prepare(None);
        assert!(!is_in_memory(&node.logs) && !node.flushed.exists(), "their place is the disk again");
        assert_eq!((&*node.read("app/0.log"), &*node.read("app/1.log")), ("on the disk\n", "in memory\n"));
        node.flush();
        assert!(!node.flushed.exists(), "logs on the disk are not flushed");
    }

    #[test]
    fn the_node_gives_no_more_memory_than_it_has_for_logs() {
        let node = Node::new("room");
        let mut other = Node::new("other");
        other.logs = node.folder.path("log/default_other_u2");
        fs::create_dir_all(&other.logs).unwrap();
        prepare(&node.logs, &node.flushed, Some(SIZE), SIZE + SIZE / 2).unwrap();
        prepare(&other.logs, &other.flushed, Some(SIZE), SIZE + SIZE / 2).unwrap();
        assert!(is_in_memory(&node.logs) && !is_in_memory(&other.logs));
        prepare(&other.logs, &other.flushed, Some(SIZE), 2 * SIZE).unwrap();
        assert!(is_in_memory(&other.logs));
    }

    #[test]
    fn each_containers_log_has_its_share_and_memory_that_is_short_is_freed() {
        let node = Node::new("share");
        node.write("app/1.log", "");
        let of = |name: &str| share(&node.logs.join(name)).unwrap();
        assert_eq!(share(&node.logs.join("app/1.log")), None, "on the disk");
        node.prepare(SIZE);
        assert_eq!(of("app/1.log").size_max, SIZE / LOG_MEMORY_SHARES);
        assert!(!of("app/1.log").is_short());
        node.write("side/0.log", "");
        assert_eq!(of("app/1.log").size_max, SIZE / LOG_MEMORY_SHARES / 2);

        let old = "old\n".repeat(60_000);
        node.write("app/0.log", &old);
        node.write("app/1.log.20260102-030405", &old);
        node.write("app/notes", "no log");
        assert!(of("side/0.log").is_short());
        free(&node.logs.join("side/0.log")).unwrap();
        assert!(!of("side/0.log").is_short());
        assert_eq!((&*node.read("app/1.log.20260102-030405"), node.read("app/0.log")), ("", old));
        let full = fs::write(node.logs.join("app/1.log"), vec![b'x'; usize::try_from(SIZE).unwrap()]);
        assert_eq!(full.unwrap_err().kind(), ErrorKind::StorageFull);
        free(&node.logs.join("side/0.log")).unwrap();
        assert_eq!((node.read("app/0.log"), &*node.read("app/notes")), (String::new(), "no log"));
        // A rotation makes the rest free, and the newest lines stay.
        let rotated = node.logs.join("app/1.log.20260102-030406");
        fs::rename(node.logs.join("app/1.log"), &rotated).unwrap();
        File::options().append(true).open(&rotated).unwrap().write_all(b"end\n").unwrap();
        cut(&rotated, SIZE / 10).unwrap();
        let rest = fs::read_to_string(&rotated).unwrap();
        assert!(rest.len() as u64 == SIZE / 10 && rest.ends_with("xend\n"), "{}", rest.len());
        assert!(!of("side/0.log").is_short());
        cut(&rotated, SIZE).unwrap();
        assert_eq!(fs::read_to_string(&rotated).unwrap(), rest, "nothing to cut");
    }

    #[test]
    fn pods_without_a_directory_are_left_alone_and_unmounted_once() {
        let node = Node::new("left");
        node.prepare(SIZE);
        node.write("app/0.log", "x\n");
        fs::remove_dir_all(node.folder.path("pods/u1")).unwrap();
        node.flush();
        assert!(!node.folder.path("pods/u1").exists(), "it is being removed");
        node.start();
        assert_eq!(node.read("app/0.log"), "x\n", "they are there already");
        restore_all(&node.folder.path("none"), &node.folder.path("pods"));
        unmounted(&node.logs).unwrap();
        unmounted(&node.logs).expect("once is enough");
        assert!(!is_in_memory(&node.logs));
    }
}
