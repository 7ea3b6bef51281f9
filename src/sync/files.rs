//! The files of a container outside its root file system: the pod's hosts file, the termination log, the log directory and
//! the symlink to the log. Blocking I/O: containers have some of them mounted and may replace them by anything, and log
//! collectors work in the directories of the others. So none is touched on the loop's thread, no symlink in a file's place
//! is followed, and every read has a byte limit.

use std::fs::{DirBuilder, File, Permissions};
use std::hash::{BuildHasher as _, Hasher as _};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use crate::filesystem::{read_bounded, read_start, replace_content};
use crate::limits::{HOSTS_FILE_BYTES_MAX, LOG_NAMES_READ_MAX, TERMINATION_LOGS_READ_MAX};
use crate::logs::files::log_number;

/// Creates a directory and its parents; an existing one is no error.
pub(crate) fn create_dir(path: &str, mode: u32) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(mode).create(path)
}

/// The node's own hosts file, up to the byte limit; empty when there is none.
pub(super) fn read_hosts(path: &Path) -> io::Result<String> {
    match read_start(path, HOSTS_FILE_BYTES_MAX) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(error),
    }
}

/// The pod's hosts file (`ensureHostsFile`). Rewritten only when it differs: running containers have it mounted, and flash
/// wears out. They may have written to it too: no more of it is read than the expected length.
pub(super) fn write_hosts(pod_dir: &str, path: &Path, text: &str) -> io::Result<()> {
    create_dir(pod_dir, 0o750)?;
    if read_bounded(path, text.len()).is_ok_and(|known| known == text.as_bytes()) {
        return Ok(());
    }
    replace_content(path, text.as_bytes(), 0o644)
}

/// Creates an empty termination log in that directory, mode 0666 whatever the umask, and removes the others but those of that
/// name.
///
/// Differs from the kubelet (`generateContainerConfig`), where they stay until the pod is removed: a crash loop leaves 288 a day.
pub(super) fn termination_log(dir: &str, kept: &[Box<str>]) -> io::Result<String> {
    create_dir(dir, 0o750)?;
    let there = std::fs::read_dir(dir).into_iter().flatten().take(TERMINATION_LOGS_READ_MAX).flatten();
    for left in there.filter(|entry| !kept.iter().any(|name| entry.file_name() == **name)) {
        // One that stays is removed at the next start.
        let _ = std::fs::remove_file(left.path());
    }
    // The hasher's random keys are the standard library's only random numbers; 32 bits as the kubelet's `makeUID`.
    let random = std::hash::RandomState::new().build_hasher().finish() >> 32;
    let path = format!("{dir}/{random:08x}");
    let file = File::options().write(true).create_new(true).mode(0o666).open(&path)?;
    file.set_permissions(Permissions::from_mode(0o666))?;
    Ok(path)
}

/// `calcRestartCountByLogDir`: one more than the highest N of the files `N.log` and `N.log.…`, so that a runtime that lost
/// its records over a reboot does not append to old logs.
pub(super) fn restart_count_of_logs(dir: &Path) -> u32 {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    let is_dir = |entry: &std::fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    let files = entries.take(LOG_NAMES_READ_MAX).flatten().filter(|entry| !is_dir(entry));
    let counts = files.filter_map(|entry| log_number(entry.file_name().to_str()?));
    counts.map(|count| count.saturating_add(1)).max().unwrap_or(0)
}

/// Removes the logs of starts that no record of the runtime names (`known`), but for that of `restart_count` and the one before it: a
/// runtime that has lost its records at a reboot never has them removed with their containers.
///
/// Differs from the kubelet, where they stay until the pod is removed.
pub(super) fn remove_stray_logs(dir: &Path, known: &[u32], restart_count: u32) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    let number = |name: &str| {
        log_number(name).filter(|number| {
            let rest = name.strip_prefix(&format!("{number}.log"));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
    };
    let is_dir = |entry: &std::fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    let logs = entries.take(LOG_NAMES_READ_MAX).flatten().filter(|entry| !is_dir(entry));
    let logs: Vec<_> =
        logs.filter_map(|entry| Some((number(entry.file_name().to_str()?)?, entry.path()))).collect();
    let before = logs.iter().map(|(number, _)| *number).filter(|number| *number < restart_count).max();
    for (number, path) in logs {
        if number < restart_count && Some(number) != before && !known.contains(&number) {
            let _ =
                std::fs::remove_file(&path).inspect_err(|error| log::warn!("{}: {error}", path.display()));
        }
    }
}

/// Creates the symlink that log collectors read, when the log exists.
pub(super) fn link_log(log: &Path, link: &Path) -> io::Result<()> {
    if log.symlink_metadata().is_ok() { std::os::unix::fs::symlink(log, link) } else { Ok(()) }
}

/// Removes the container's log and its rotated files: the files in the log's directory whose names begin with the log's
/// name.
pub(super) fn remove_logs(log: &Path) {
    let (Some(dir), Some(prefix)) = (log.parent(), log.file_name().and_then(|name| name.to_str())) else {
        return;
    };
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.take(LOG_NAMES_READ_MAX).flatten() {
        if entry.file_name().to_str().is_some_and(|name| name.starts_with(prefix)) {
            let _ = std::fs::remove_file(entry.path())
                .inspect_err(|error| log::warn!("{}: {error}", entry.path().display()));
        }
    }
}

/// Removes the symlink to a log; a missing one is no error.
pub(super) fn remove_link(link: &Path) {
    match std::fs::remove_file(link) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            log::warn!("{}: {error}", link.display());
        }
        Ok(()) | Err(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_a_log_is_read_as_the_kubelet_reads_it() {
        for (name, number) in [
            ("0.log", Some(0)),
            ("12.log", Some(12)),
            ("3.log.20260101-000000", Some(3)),
            ("3.log.20260101-000000.gz", Some(3)),
            ("3.logs", Some(3)),
            ("a3.log", None),
            (".log", None),
            ("+3.log", None),
            ("99999999999.log", None),
            ("3", None),
        ] {
            assert_eq!(log_number(name), number, "{name}");
        }
    }

    #[test]
    fn the_termination_logs_of_removed_containers_go() {
        let dir = std::env::temp_dir().join(format!("smolet-ends-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        let path = dir.to_str().unwrap();
        let name = |path: String| Box::from(path.rsplit('/').next().unwrap());
        let first: Box<str> = name(termination_log(path, &[]).unwrap());
        // A kubelet's are called the same.
        for number in 0..9 {
            std::fs::write(dir.join(format!("0000000{number}")), "").unwrap();
        }
        let second: Box<str> = name(termination_log(path, std::slice::from_ref(&first)).unwrap());
        let there = || {
            let entries = std::fs::read_dir(&dir).unwrap();
            let mut names: Vec<Box<str>> =
                entries.map(|entry| entry.unwrap().file_name().to_str().unwrap().into()).collect();
            names.sort();
            names
        };
        let both = |mut names: [Box<str>; 2]| {
            names.sort();
            names
        };
        assert_eq!(there(), both([first.clone(), second.clone()]));
        let third = name(termination_log(path, std::slice::from_ref(&second)).unwrap());
        assert_eq!(there(), both([second, third]));
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn restart_counts_go_on_from_the_logs() {
        let dir = std::env::temp_dir().join(format!("smolet-start-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("9.log")).unwrap();
        assert_eq!(restart_count_of_logs(&dir), 0, "a directory is no log");
        std::fs::write(dir.join("0.log"), "").unwrap();
        std::fs::write(dir.join("4.log.20260101-000000.gz"), "").unwrap();
        std::fs::write(dir.join("notes.txt"), "").unwrap();
        assert_eq!(restart_count_of_logs(&dir), 5);
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(restart_count_of_logs(&dir), 0);
    }

    #[test]
    fn logs_that_no_container_has_go_but_the_last() {
        let dir = std::env::temp_dir().join(format!("smolet-stray-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(dir.join("2.log")).unwrap();
        let others = ["0.logs", "notes.txt", "9.log"];
        for name in ["0.log", "0.log.20260101-000000.gz", "1.log", "3.log", "4.log", "4.log.tmp"]
            .iter()
            .chain(&others)
        {
            std::fs::write(dir.join(name), "").unwrap();
        }
        let left = || {
            let entries = std::fs::read_dir(&dir).unwrap();
            let names = entries.map(|entry| entry.unwrap().file_name().to_str().unwrap().to_owned());
            names.collect::<std::collections::BTreeSet<_>>().into_iter().collect::<Vec<_>>()
        };
        remove_stray_logs(&dir, &[1], 5);
        assert_eq!(left(), ["0.logs", "1.log", "2.log", "4.log", "4.log.tmp", "9.log", "notes.txt"]);
        remove_stray_logs(&dir, &[4], 5);
        assert_eq!(left(), ["0.logs", "2.log", "4.log", "4.log.tmp", "9.log", "notes.txt"]);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn whatever_a_container_made_of_its_hosts_file_the_next_one_gets_the_pods_own() {
        let root = std::env::temp_dir().join(format!("smolet-hosts-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        std::fs::create_dir(&root).unwrap();
        let (pod_dir, path) = (root.join("pod").to_str().unwrap().to_owned(), root.join("pod/etc-hosts"));
        let mode = || path.symlink_metadata().unwrap().permissions().mode() & 0o7777;
        let write = || write_hosts(&pod_dir, &path, "127.0.0.1 localhost\n");
        let is_written =
            || std::fs::read_to_string(&path).unwrap() == "127.0.0.1 localhost\n" && mode() == 0o644;
        write().unwrap();
        assert!(is_written());
        let inode = || std::os::unix::fs::MetadataExt::ino(&path.metadata().unwrap());
        let (first, written) = (inode(), path.metadata().unwrap().modified().unwrap());
        write().unwrap();
        assert_eq!(path.metadata().unwrap().modified().unwrap(), written, "the same is not written again");
        // A file that containers have mounted must stay the same inode.
        File::create(&path).unwrap().set_len(600 << 20).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        write().unwrap();
        assert!(is_written() && inode() == first);
        let outside = root.join("outside");
        std::fs::write(&outside, "kept").unwrap();
        let replaced: [&dyn Fn(); 3] = [
            &|| std::os::unix::fs::symlink(&outside, &path).unwrap(),
            &|| std::os::unix::fs::symlink("/dev/zero", &path).unwrap(),
            &|| rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap(),
        ];
        for replace in replaced {
            std::fs::remove_file(&path).unwrap();
            replace();
            write().unwrap();
            assert!(is_written() && path.symlink_metadata().unwrap().is_file());
        }
        assert_eq!(std::fs::read_to_string(&outside).unwrap(), "kept", "no link is followed");
        std::fs::remove_dir_all(&root).unwrap();
    }
}
