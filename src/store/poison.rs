//! Poison: what was being handled when the agent panicked. Handled twice so, it is set aside, and the others run.
//!
//! ```text
//!     handling(mark) ─► panic ─► the hook appends "VERSION MARK" to ROOT/panics, then the process ends
//!     next start: marks that stand there twice ─► SetAside ─► their pods and files are left alone
//! ```
//!
//! A mark names a pod with the hash of its manifest, or a manifest file with the hash of its content: what is changed
//! is tried again, and so is everything by another version of smolet. The hook runs in release builds too, where a
//! panic aborts. Nothing is written before a panic, so an agent that is killed blames nobody. (The kubelet recovers a
//! panicking worker and tries again forever, which costs it unwinding tables and half-changed state.)

use std::cell::RefCell;
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;

use crate::limits::{PANICS_FILE_BYTES_MAX, PANICS_KEPT_MAX, PANICS_TO_SET_ASIDE};
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
    let hash = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    // A path may hold anything; the list has a line for each panic.
    let path: String = path.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    Arc::from(format!("file {:016x} {path}", content.iter().fold(0xcbf2_9ce4_8422_2325, hash)))
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
    /// Reads `ROOT/panics` of the lives before. A file that is not there, or cannot be read, sets nothing aside.
    /// Blocking.
    pub fn read(root_dir: &Path) -> Self {
        let path = file(root_dir);
        let Ok(bytes) = fs::read(&path) else { return Self::default() };
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
    let beside = path.with_extension("new");
    let mut file = File::create(&beside)?;
    for line in lines {
        writeln!(file, "{line}")?;
    }
    file.sync_all()?;
    fs::rename(&beside, path)
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
}
