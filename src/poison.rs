//! Poison: what was being handled when the agent panicked. Handled twice so, it is set aside, and the others run.
//!
//! ```text
//!     handling(mark) ─► panic ─► the hook appends "VERSION MARK" to ROOT/panics, then the process ends
//!     next start: marks that stand there twice ─► SetAside ─► their pods and files are left alone
//!
//!     Working::on(mark) ─► MEMORY/work/HASH holds "VERSION 0 MARK" until the work on the disk is over
//!     next start: each file that is left counts one more; at the third life in a row ─► SetAside
//! ```
//!
//! No hook sees an abort without a panic (a stack that overflows), so the second list is of what was under way, on a tmpfs: a mark
//! whose work ended the process in so many lives on end, none of which did any work for it to its end. An agent that is killed now
//! and then blames nobody so; one that is ended in order leaves no file, nor does a reboot.
//!
//! A mark names a pod with the hash of its manifest, or a manifest file with the hash of its content: what is changed
//! is tried again, and so is everything by another version of smolet. The hook runs in release builds too, where a
//! panic aborts. Nothing is written to the disk before a panic. (The kubelet recovers a
//! panicking worker and tries again forever, which costs it unwinding tables and half-changed state.)

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

/// What panics are put down to: [`pod_mark`] or [`file_mark`].
pub type Mark = Arc<str>;

thread_local! {
    static HANDLED: RefCell<Option<Mark>> = const { RefCell::new(None) };
}

/// The mark of a pod; without a manifest only its UID counts.
pub fn pod_mark(uid: &dyn Display, config_hash: &str) -> Mark {
    Arc::from(format!("pod {uid} {}", if config_hash.is_empty() { "-" } else { config_hash }))
}

/// The mark of a manifest file with this content.
pub fn file_mark(path: &str, content: &[u8]) -> Mark {
    // A path may hold anything; the list has a line for each panic.
    let path: String = path.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    Arc::from(format!("file {:016x} {path}", hash(content)))
}

fn hash(bytes: &[u8]) -> u64 {
    let further = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, further)
}

/// Until dropped, a panic of this thread is put down to the mark it was made with.
#[derive(Debug)]
pub struct Handling(Option<Mark>);

impl Drop for Handling {
    fn drop(&mut self) {
        HANDLED.replace(self.0.take());
    }
}

/// From here on `mark` is handled; `None` = nothing in particular.
#[must_use]
pub fn handling(mark: Option<Mark>) -> Handling {
    Handling(HANDLED.replace(mark))
}

/// What this thread handles.
pub fn handled() -> Option<Mark> {
    HANDLED.with_borrow(Clone::clone)
}

/// The future, each poll of it handling `mark`.
pub async fn scoped<T>(mark: Mark, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    std::future::poll_fn(|cx| {
        let _handling = handling(Some(mark.clone()));
        future.as_mut().poll(cx)
    })
    .await
}

/// What ended the process too often.
#[derive(Clone, Debug, Default)]
pub struct SetAside(SortedMap<Box<str>, u32>);

impl SetAside {
    /// Reads `ROOT/panics` of the lives before, and what they left under way. A file that is not there, or cannot be read,
    /// sets nothing aside. Blocking.
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
            // Else the list would be full one day, and the next panic not counted.
            let _ = replace(&path, &kept).inspect_err(|error| log::warn!("{}: {error}", path.display()));
        }
        Self::count(&kept, env!("CARGO_PKG_VERSION"))
    }

    /// PURE: how often each mark stands in the list, of panics of this version.
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

    /// How often handling it ended the process, when that was too often.
    pub fn panics(&self, mark: &str) -> Option<u32> {
        self.0.get(mark).copied()
    }
}

/// From now on a panic that happens while something is handled is written down in `ROOT/panics`, after everything
/// the hook before does.
pub fn watch_panics(root_dir: &Path) {
    let (path, before) = (file(root_dir), std::panic::take_hook());
    std::panic::set_hook(Box::new(move |info| {
        before(info);
        // A panic in here would hide the first one: whatever fails is left.
        let mark = HANDLED.try_with(|handled| handled.try_borrow().ok().and_then(|mark| mark.clone()));
        if let Ok(Some(mark)) = mark {
            let _ = append(&path, &mark);
        }
    }));
}

/// Where it stands what is under way; not set in a process that keeps no such list.
static WORK: OnceLock<PathBuf> = OnceLock::new();

/// From now on what is under way on the disk stands in `DIRECTORY/work`, when that is in memory: no disk is written for it.
/// Blocking.
pub fn watch_work(directory: &Path) {
    const TMPFS: u64 = 0x0102_1994;
    const RAMFS: u64 = 0x8584_58f6;
    // 32 bits, with a sign on some targets.
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

/// The process ends in order: what is under way is nobody's fault. Blocking.
pub fn end_of_work() {
    for entry in WORK.get().and_then(|work| fs::read_dir(work).ok()).into_iter().flatten().flatten() {
        let is_blamed = under_way(&left_of(&entry.path())).is_some_and(|(n, _)| n > 0);
        if !is_blamed {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Work on the disk for a mark: until dropped, the end of the process is put down to it.
#[derive(Debug)]
pub struct Working(Option<PathBuf>);

impl Working {
    /// Begins it. Blocking: two short system calls on a tmpfs.
    pub fn on(mark: Option<&Mark>) -> Self {
        let (Some(mark), Some(work)) = (mark, WORK.get()) else { return Self(None) };
        let path = work.join(format!("{:016x}", hash(mark.as_bytes())));
        // What is there counts the lives before.
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

/// How many lives it counts, and the mark; none of another version.
fn under_way(text: &str) -> Option<(u32, &str)> {
    let (version, text) = text.trim_end().split_once(' ')?;
    let (count, mark) = text.split_once(' ')?;
    (version == env!("CARGO_PKG_VERSION")).then_some((count.parse().ok()?, mark))
}

/// What the life before has left under way, counted once more: the marks that are set aside for it.
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

/// The text of such a file; none of what is no text.
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

/// The newest lines, as many as are kept.
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
    fn two_panics_of_one_content_set_it_aside() {
        let rows = ["1 pod u h", "1 pod u i", "1 file 7 x", "0 pod v h", "1 pod v h", "1 file 7 x", "", "1"];
        let aside = SetAside::count(&rows, "1");
        assert_eq!(aside.panics("file 7 x"), Some(2));
        assert_eq!(aside.panics("pod u h"), None, "another manifest counts for itself");
        assert_eq!(aside.panics("pod v h"), None, "so does another version of smolet");
        let rows = ["1 pod u h", "1 pod u h", "1 pod u h"];
        assert_eq!(SetAside::count(&rows, "1").panics(&pod_mark(&"u", "h")), Some(3));
    }

    #[test]
    fn marks_tell_contents_apart_and_are_one_line() {
        assert_ne!(file_mark("/m/a.yaml", b"a"), file_mark("/m/a.yaml", b"b"));
        assert_eq!(file_mark("/m/a\nb", b"").lines().count(), 1);
        assert_eq!(&*pod_mark(&"u", ""), "pod u -");
    }

    #[test]
    fn what_is_handled_ends_with_its_scope() {
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
    fn a_long_list_is_cut_to_the_newest() {
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

    /// The first half of the next test, in a process of its own: a stack that overflows in the work for a pod. It ends the
    /// process without a panic. Not under an emulator, whose own stack it is.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_life_that_overflows_its_stack() {
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
    fn aborts_in_three_lives_on_end_set_it_aside() {
        let dir = std::env::temp_dir().join(format!("smolet-aborts-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("a folder");
        let life = || {
            let test = "poison::tests::a_life_that_overflows_its_stack";
            let mut command = std::process::Command::new(std::env::current_exe().expect("this binary"));
            let command = command.args(["--exact", test, "--nocapture"]).env("SMOLET_TEST_OVERFLOW", &dir);
            let output = command.output().expect("it runs");
            let told = String::from_utf8_lossy(&output.stderr).contains("has overflowed its stack");
            assert!(told && !output.status.success(), "{output:?}");
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            said.lines()
                .find(|line| line.contains("None") || line.contains("Some"))
                .unwrap_or_default()
                .to_owned()
        };
        // What each life found of those before.
        let found = [life(), life(), life(), life()];
        for (found, wanted) in found.iter().zip(["None", "None", "None", "Some(3)"]) {
            assert!(found.ends_with(wanted), "{found}, {wanted}");
        }
        assert_eq!(fs::read_dir(&dir).expect("the folder").count(), 1, "what was done is not in it");
        // Of another version nothing counts.
        let file = fs::read_dir(&dir).expect("the folder").flatten().next().expect("a file").path();
        fs::write(&file, "0.0.0 7 pod u h\n").expect("written");
        assert!(cut_off(&dir).is_empty() && !file.exists());
        fs::remove_dir_all(&dir).expect("removed");
    }
}
