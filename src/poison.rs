//! Poison: the pod or manifest that was being handled when the agent crashed. After two crashes it is set aside, and the others
//! run.
//!
//! ```text
//!     handling(mark) ─► panic ─► the hook appends "VERSION MARK" to ROOT/panics, then the process ends
//!     next start: marks that occur twice ─► SetAside ─► their pods and files are ignored
//!
//!     Working::on(mark) ─► MEMORY/work/HASH holds "VERSION 0 MARK" until the work on the disk is done
//!     next start: each remaining file counts one more; at the third consecutive run ─► SetAside
//! ```
//!
//! An abort without a panic (a stack overflow) runs no hook, so the second list has the work in progress, on a tmpfs: a mark is
//! set aside when its work ended the process in so many consecutive runs, and was never completed in one of them. An agent that
//! is killed occasionally blames no mark, and an orderly stop or a reboot leaves no file.
//!
//! A mark names a pod with the hash of its manifest, or a manifest file with the hash of its content: a changed one is tried
//! again, and so is everything by another version of smolet. The hook runs in release builds too, where a panic aborts. Nothing
//! is written to the disk before a panic. (The kubelet recovers a panicking worker and retries without end, which costs unwind
//! tables and may leave state half changed.)

use std::cell::RefCell;
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, OnceLock};

use rustix::fs::statfs;

use crate::filesystem::{read_bounded, read_linked};
use crate::limits::{
    CUT_OFF_BYTES_MAX, CUT_OFF_KEPT_MAX, CUT_OFF_TO_SET_ASIDE, PANICS_FILE_BYTES_MAX, PANICS_KEPT_MAX,
    PANICS_TO_SET_ASIDE,
};
use crate::model::SortedMap;

/// What a crash is attributed to: [`pod_mark`] or [`file_mark`].
pub type Mark = Arc<str>;

thread_local! {
    static HANDLED: RefCell<Option<Mark>> = const { RefCell::new(None) };
}

/// The mark of a pod; without a manifest only by its UID.
pub fn pod_mark(uid: &dyn Display, config_hash: &str) -> Mark {
    Arc::from(format!("pod {uid} {}", if config_hash.is_empty() { "-" } else { config_hash }))
}

/// The mark of a manifest file with this content.
pub fn file_mark(path: &str, content: &[u8]) -> Mark {
    // A path may have control characters; the list has a line for each panic.
    let path: String = path.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    Arc::from(format!("file {:016x} {path}", hash(content)))
}

fn hash(bytes: &[u8]) -> u64 {
    let further = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, further)
}

/// While it lives, a panic of this thread is attributed to its mark.
#[derive(Debug)]
pub struct Handling(Option<Mark>);

impl Drop for Handling {
    fn drop(&mut self) {
        HANDLED.replace(self.0.take());
    }
}

/// From here on `mark` is handled; `None` = none.
#[must_use]
pub fn handling(mark: Option<Mark>) -> Handling {
    Handling(HANDLED.replace(mark))
}

/// The mark that this thread handles.
pub fn handled() -> Option<Mark> {
    HANDLED.with_borrow(Clone::clone)
}

/// The future with `mark` handled in each poll.
pub async fn scoped<T>(mark: Mark, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    std::future::poll_fn(|cx| {
        let _handling = handling(Some(mark.clone()));
        future.as_mut().poll(cx)
    })
    .await
}

/// Marks that are set aside, with the number of their crashes.
#[derive(Clone, Debug, Default)]
pub struct SetAside(SortedMap<Box<str>, u32>);

impl SetAside {
    /// Reads `ROOT/panics`, and the work in progress of the previous run. A missing or unreadable file sets nothing aside.
    /// Blocking.
    pub fn read(root_dir: &Path) -> Self {
        let mut aside = Self::of_panics(root_dir);
        if let Some(work) = WORK.get() {
            aside.0.extend(cut_off(work));
        }
        aside
    }

    fn of_panics(root_dir: &Path) -> Self {
        let path = file(root_dir);
        let most = usize::try_from(2 * PANICS_FILE_BYTES_MAX).unwrap_or(usize::MAX);
        let Ok(bytes) = read_linked(&path, most) else { return Self::default() };
        let text = String::from_utf8_lossy(&bytes);
        let kept = newest(&text);
        if kept.len() < text.lines().count() {
            // Otherwise the list would be full one day, and later panics would not count.
            let _ = replace(&path, &kept).inspect_err(|error| log::warn!("{}: {error}", path.display()));
        }
        Self::count(&kept, env!("CARGO_PKG_VERSION"))
    }

    /// PURE: counts each mark in the list, for panics of this version.
    fn count(lines: &[&str], version: &str) -> Self {
        let mut counts = SortedMap::new();
        for line in lines {
            if let Some((of, mark)) = line.split_once(' ')
                && of == version
            {
                *counts.entry(Box::from(mark)).or_insert(0) += 1;
            }
        }
        counts.retain(|_, count| *count >= PANICS_TO_SET_ASIDE);
        Self(counts)
    }

    /// Number of crashes, when the mark is set aside.
    pub fn panics(&self, mark: &str) -> Option<u32> {
        self.0.get(mark).copied()
    }
}

/// From now on a panic while a mark is handled is written to `ROOT/panics`, after the previous hook has run.
pub fn watch_panics(root_dir: &Path) {
    let (path, before) = (file(root_dir), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |info| {
        before(info);
        // A panic here would hide the first one: errors are ignored.
        let mark = HANDLED.try_with(|handled| handled.try_borrow().ok().and_then(|mark| mark.clone()));
        if let Ok(Some(mark)) = mark {
            let _ = append(&path, &mark);
        }
    }));
}

/// Directory of the work in progress; not set in a process without that list.
static WORK: OnceLock<PathBuf> = OnceLock::new();

/// From now on work in progress is recorded in `DIRECTORY/work`, if that is on a tmpfs, so that no disk is written. Blocking.
pub fn watch_work(directory: &Path) {
    const TMPFS: u64 = 0x0102_1994;
    const RAMFS: u64 = 0x8584_58f6;
    // 32 bits, signed on some targets.
    #[allow(clippy::cast_sign_loss, clippy::unnecessary_cast, clippy::cast_lossless)]
    let kind = |of: rustix::fs::StatFs| of.f_type as u64 & 0xffff_ffff;
    if statfs(directory).is_ok_and(|of| matches!(kind(of), TMPFS | RAMFS)) {
        let work = directory.join("work");
        let made = fs::create_dir(&work).or_else(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => Ok(()),
            _ => Err(error),
        });
        match made {
            Ok(()) => drop(WORK.set(work)),
            Err(error) => log::warn!("{}: {error}; aborts are not counted", work.display()),
        }
    }
}

/// The process stops in order: work in progress is not blamed. Blocking.
pub fn end_of_work() {
    for entry in WORK.get().and_then(|work| fs::read_dir(work).ok()).into_iter().flatten().flatten() {
        let is_blamed = under_way(&left_of(&entry.path())).is_some_and(|(n, _)| n > 0);
        if !is_blamed {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Work on the disk for a mark: while it lives, an end of the process is attributed to the mark.
#[derive(Debug)]
pub struct Working(Option<PathBuf>);

impl Working {
    /// Begins the work. Blocking: two short system calls on a tmpfs.
    pub fn on(mark: Option<&Mark>) -> Self {
        let (Some(mark), Some(work)) = (mark, WORK.get()) else { return Self(None) };
        let path = work.join(format!("{:016x}", hash(mark.as_bytes())));
        // An existing file counts the previous runs.
        if let Ok(mut file) = File::create_new(&path) {
            let _ = file.write_all(format!("{} 0 {mark}\n", env!("CARGO_PKG_VERSION")).as_bytes());
        }
        Self(Some(path))
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            let _ = fs::remove_file(path);
        }
    }
}

/// The count and the mark; `None` for another version.
fn under_way(text: &str) -> Option<(u32, &str)> {
    let (version, text) = text.trim_end().split_once(' ')?;
    let (count, mark) = text.split_once(' ')?;
    (version == env!("CARGO_PKG_VERSION")).then_some((count.parse().ok()?, mark))
}

/// Counts the work in progress of the previous run once more; returns the marks that are set aside.
fn cut_off(work: &Path) -> Vec<(Box<str>, u32)> {
    let (mut aside, mut kept) = (Vec::new(), 0);
    for entry in fs::read_dir(work).into_iter().flatten().flatten() {
        let path = entry.path();
        let text = left_of(&path);
        let Some((count, mark)) = under_way(&text).filter(|_| kept < CUT_OFF_KEPT_MAX) else {
            let _ = fs::remove_file(&path);
            continue;
        };
        kept += 1;
        let count = count.saturating_add(1);
        let _ = fs::write(&path, format!("{} {count} {mark}\n", env!("CARGO_PKG_VERSION")));
        if count >= CUT_OFF_TO_SET_ASIDE {
            aside.push((mark.into(), count));
        }
    }
    aside
}

/// The file's text; empty when it is not UTF-8.
fn left_of(path: &Path) -> String {
    read_bounded(path, CUT_OFF_BYTES_MAX)
        .ok()
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .unwrap_or_default()
}

fn file(root_dir: &Path) -> PathBuf {
    root_dir.join("panics")
}

fn append(path: &Path, mark: &str) -> io::Result<()> {
    let mut file = File::options().create(true).append(true).open(path)?;
    if file.metadata()?.len() >= PANICS_FILE_BYTES_MAX {
        return Ok(());
    }
    file.write_all(format!("{} {mark}\n", env!("CARGO_PKG_VERSION")).as_bytes())?;
    file.sync_all()
}

/// The newest lines, within the limit.
fn newest(text: &str) -> Vec<&str> {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(PANICS_KEPT_MAX)..].to_vec()
}

fn replace(path: &Path, lines: &[&str]) -> io::Result<()> {
    let mut text = lines.join("\n");
    text.push('\n');
    crate::filesystem::replace_only(path, &path.with_extension("new"), text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_panics_with_one_content_set_it_aside() {
        let rows = ["1 pod u h", "1 pod u i", "1 file 7 x", "0 pod v h", "1 pod v h", "1 file 7 x", "", "1"];
        let aside = SetAside::count(&rows, "1");
        assert_eq!(aside.panics("file 7 x"), Some(2));
        assert_eq!(aside.panics("pod u h"), None, "another manifest is counted separately");
        assert_eq!(aside.panics("pod v h"), None, "so does another version of smolet");
        let rows = ["1 pod u h", "1 pod u h", "1 pod u h"];
        assert_eq!(SetAside::count(&rows, "1").panics(&pod_mark(&"u", "h")), Some(3));
    }

    #[test]
    fn marks_differ_by_content_and_are_one_line() {
        assert_ne!(file_mark("/m/a.yaml", b"a"), file_mark("/m/a.yaml", b"b"));
        assert_eq!(file_mark("/m/a\nb", b"").lines().count(), 1);
        assert_eq!(&*pod_mark(&"u", ""), "pod u -");
    }

    #[test]
    fn handling_ends_with_its_scope() {
        let outer = handling(Some(Mark::from("outer")));
        {
            let _inner = handling(Some(Mark::from("inner")));
            assert_eq!(handled().as_deref(), Some("inner"));
        }
        assert_eq!(handled().as_deref(), Some("outer"));
        drop(outer);
        assert_eq!(handled(), None);
    }

    #[test]
    fn a_long_list_keeps_the_newest_lines() {
        let dir = std::env::temp_dir().join(format!("smolet-panics-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a folder");
        for number in 0..PANICS_KEPT_MAX + 5 {
            append(&file(&dir), &format!("pod {number} h")).expect("appended");
        }
        append(&file(&dir), "pod last h").expect("appended");
        append(&file(&dir), "pod last h").expect("appended");
        assert_eq!(SetAside::read(&dir).panics("pod last h"), Some(2));
        let text = fs::read_to_string(file(&dir)).expect("the list");
        assert_eq!(text.lines().count(), PANICS_KEPT_MAX);
        fs::remove_dir_all(&dir).expect("removed");
    }

    /// Helper of the next test, run in its own process: a stack overflow in the work for a pod, which ends the process without
    /// a panic. Not under an emulator, whose own stack would overflow.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_run_that_overflows_its_stack() {
        fn deeper(level: u64) -> u64 {
            let page = std::hint::black_box([level; 512]);
            if level == 0 { 0 } else { deeper(level - 1) + page[511] }
        }
        let Some(dir) = std::env::var_os("SMOLET_TEST_OVERFLOW") else { return };
        WORK.set(dir.into()).unwrap();
        println!("{:?}", SetAside::read(Path::new("/nonexistent")).panics("pod u h"));
        drop(Working::on(Some(&Mark::from("pod done h"))));
        let _working = Working::on(Some(&Mark::from("pod u h")));
        println!("{}", deeper(std::hint::black_box(1 << 40)));
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn aborts_in_three_consecutive_runs_set_it_aside() {
        let dir = std::env::temp_dir().join(format!("smolet-aborts-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a folder");
        let life = || {
            let test = "poison::tests::a_run_that_overflows_its_stack";
            let mut command = std::process::Command::new(std::env::current_exe().expect("this binary"));
            let command = command.args(["--exact", test, "--nocapture"]).env("SMOLET_TEST_OVERFLOW", &dir);
            let output = command.output().expect("it runs");
            let overflowed = String::from_utf8_lossy(&output.stderr).contains("has overflowed its stack");
            assert!(overflowed && !output.status.success(), "{output:?}");
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            said.lines()
                .find(|line| line.contains("None") || line.contains("Some"))
                .unwrap_or_default()
                .to_owned()
        };
        // What each run found of the previous ones.
        let found = [life(), life(), life(), life()];
        for (found, wanted) in found.iter().zip(["None", "None", "None", "Some(3)"]) {
            assert!(found.ends_with(wanted), "{found}, {wanted}");
        }
        assert_eq!(fs::read_dir(&dir).expect("the folder").count(), 1, "completed work is not in it");
        // Files of another version do not count.
        let file = fs::read_dir(&dir).expect("the folder").flatten().next().expect("a file").path();
        fs::write(&file, "0.0.0 7 pod u h\n").expect("written");
        assert!(cut_off(&dir).is_empty() && !file.exists());
        fs::remove_dir_all(&dir).expect("removed");
    }
}
