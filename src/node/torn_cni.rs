//! Files of CNI that a power cut has emptied, found at the agent's start. libcni and host-local do not sync what they write. On XFS
//! and f2fs such a file may keep its length, and has NULs alone.
//!
//! Without its content a kept result of libcni fails every `StopPodSandbox` of its sandbox ("failed to get network … cached
//! result: … unexpected end of JSON input"), so that the pod never starts again; libcni does without the file. An empty
//! reservation of host-local belongs to no container, so that its address is never released. Both say nothing, to anybody.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use crate::blocking::Blocking;
use crate::clock::SharedClock;
use crate::filesystem::{is_lost, read_bounded};
use crate::limits::{CNI_RESULT_BYTES_MAX, TORN_CNI_ENTRIES_MAX, TORN_CNI_FILES_MAX, TORN_CNI_WAIT};

/// Where libcni and its plugins keep what they know, unless they are told otherwise.
pub(super) const DIR: &str = "/var/lib/cni";

/// Removes them. A plugin that is about to write makes its file empty too: one that has been so for a while is torn.
pub(super) async fn remove(dir: &'static str, blocking: Blocking, clock: SharedClock) {
    let found = blocking.run(move || torn(Path::new(dir))).await;
    if found.is_empty() {
        return;
    }
    clock.sleep(TORN_CNI_WAIT).await;
    let removed = blocking.run(move || found.iter().filter(|file| remove_torn(file)).count()).await;
    if removed == 0 {
        return;
    }
    log::warn!(
        "CNI: {removed} files below {dir} that a power cut had emptied were removed, so that their sandboxes can be stopped and their addresses released"
    );
}

/// Torn results of libcni, and torn reservations of host-local, which are named by their address.
fn torn(dir: &Path) -> Vec<PathBuf> {
    let mut found = torn_files(&dir.join("results"), |_| true);
    for network in entries(&dir.join("networks")) {
        found.extend(torn_files(&network.path(), |name| name.parse::<IpAddr>().is_ok()));
    }
    found.truncate(TORN_CNI_FILES_MAX);
    found
}

fn entries(dir: &Path) -> impl Iterator<Item = fs::DirEntry> {
    fs::read_dir(dir).into_iter().flatten().take(TORN_CNI_ENTRIES_MAX).flatten()
}

fn torn_files(dir: &Path, is_one: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let named = entries(dir).filter(|entry| entry.file_name().to_str().is_some_and(&is_one));
    named.map(|entry| entry.path()).filter(|path| is_torn(path)).collect()
}

/// A regular file without content, or of NULs alone; no link is followed. One of more than [`CNI_RESULT_BYTES_MAX`] is not opened.
fn is_torn(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.len() <= CNI_RESULT_BYTES_MAX as u64)
        && read_bounded(path, CNI_RESULT_BYTES_MAX).is_ok_and(|bytes| is_lost(&bytes))
}

fn remove_torn(path: &Path) -> bool {
    is_torn(path) && fs::remove_file(path).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_results_and_reservations_without_content_are_torn() {
        let dir = std::env::temp_dir().join(format!("smolet-torn-cni-{}", std::process::id()));
        for (file, text, _) in FILES {
            let path = dir.join(file);
            fs::create_dir_all(path.parent().expect("below the directory")).expect("made");
            fs::write(path, text).expect("written");
        }
        let mut found = torn(&dir);
        found.sort();
        let expected: Vec<PathBuf> =
            FILES.iter().filter(|(.., is_torn)| *is_torn).map(|(file, ..)| dir.join(file)).collect();
        assert_eq!(found, expected);

        // One that was written meanwhile stays.
        fs::write(&expected[0], "10-abc\neth0").expect("written");
        let removed: Vec<bool> = found.iter().map(|file| remove_torn(file)).collect();
        assert_eq!(removed, [false, true, true, true, true]);
        assert!(torn(&dir).is_empty() && expected[0].exists());
        fs::remove_dir_all(dir).expect("removed");
    }

    /// File, content, whether it is torn; in order.
    const FILES: [(&str, &str, bool); 11] = [
        ("networks/pods/10.88.0.7", "", true),
        ("networks/pods/10.88.0.8", "abc\neth0", false),
        ("networks/pods/10.88.0.9", "\0\0\0\0\0\0\0\0", true),
        ("networks/pods/fd00::7", "", true),
        ("networks/pods/last_reserved_ip.0", "", false),
        ("networks/pods/lock", "", false),
        ("other/10.88.0.9", "", false),
        ("results/pods-abc-eth0", "", true),
        ("results/pods-def-eth0", "{}", false),
        ("results/pods-ghi-eth0", "\0\0", true),
        ("results/pods-jkl-eth0", "\0}", false),
    ];
}
