//! Rotating, reading and following log files, each test in its own directory.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use flate2::read::GzDecoder;

use super::files::{self, Rotated};
use super::follow::Follower;
use super::line::{Shown, Sink, Stream};
use super::read::{LogReader, Part};
use crate::limits::LOG_DRAIN_TIME;
use crate::model::Wall;

/// 2026-01-02T03:04:05Z
const NOW: Wall = Wall(1_767_323_045_000_000_000);
const TIME: &str = "2026-01-01T00:00:00.1Z";

pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("smolet-logs-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(super) fn log(&self) -> PathBuf {
        self.0.join("0.log")
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn put(&self, name: &str, text: &str) {
        fs::write(self.0.join(name), text).unwrap();
    }

    fn unpacked(&self, name: &str) -> String {
        let mut text = String::new();
        GzDecoder::new(File::open(self.0.join(name)).unwrap()).read_to_string(&mut text).unwrap();
        text
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[derive(Default)]
pub(super) struct Both([Vec<u8>; 2]);

impl Sink for Both {
    fn write(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        self.0[stream as usize].extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Both {
    pub(super) fn out(&self) -> &str {
        std::str::from_utf8(&self.0[0]).unwrap()
    }
}

/// What `smolet logs --tail` shows.
fn tail(log: &Path, tail: Option<u64>) -> String {
    let mut both = Both::default();
    let part = Part { tail, follow: false };
    LogReader::open(log, part, Shown::default()).unwrap().read(&mut both).unwrap();
    both.out().to_owned()
}

#[test]
fn each_rotation_has_a_later_name_whatever_the_clock_says_and_the_oldest_go() {
    let folder = Folder::new("names");
    // Foreign files: other names, a symlink, a directory.
    folder.put("0.log.bak", "kept");
    folder.put("10.log", "another life's");
    let day_before = Wall(NOW.0 - 86_400_000_000_000);
    for (at, now) in [NOW, NOW, day_before, NOW].into_iter().enumerate() {
        folder.put("0.log", &format!("{at}"));
        files::rotate(&folder.log(), 4, now).unwrap();
    }
    let rotated = ["0.log.20260102-030406", "0.log.20260102-030407", "0.log.20260102-030408"];
    assert_eq!(folder.names(), [&rotated[..], &["0.log.bak", "10.log"]].concat());
    let texts = rotated.map(|name| fs::read_to_string(folder.0.join(name)).unwrap());
    assert_eq!(texts, ["1", "2", "3"]);
    // At the turn of a year too.
    folder.put("0.log.20261231-235959", "last");
    folder.put("0.log", "next");
    let name = files::rotate(&folder.log(), 10, NOW).unwrap();
    assert!(name.ends_with("0.log.20270101-000000"), "{}", name.display());
}

#[test]
fn all_rotated_logs_but_the_newest_are_compressed_and_what_was_cut_off_is_mended() {
    let folder = Folder::new("gzip");
    let stamps = ["20260101-000001", "20260101-000002", "20260101-000003", "20260101-000004"];
    for stamp in stamps {
        folder.put(&format!("0.log.{stamp}"), stamp);
    }
    // Interrupted compressions: before the rename, and before the old file was removed.
    folder.put("0.log.20260101-000001.tmp", "half");
    folder.put("0.log.20260101-000002.gz", "whole");
    files::compress(&folder.log()).unwrap();
    let names = [
        "0.log.20260101-000001.gz",
        "0.log.20260101-000002.gz",
        "0.log.20260101-000003.gz",
        "0.log.20260101-000004",
    ];
    assert_eq!(folder.names(), names);
    assert_eq!(folder.unpacked(names[0]), stamps[0]);
    assert_eq!(fs::read_to_string(folder.0.join(names[1])).unwrap(), "whole");
    // They count and are removed like the others.
    folder.put("0.log", "now");
    files::rotate(&folder.log(), 3, NOW).unwrap();
    assert_eq!(folder.names(), ["0.log.20260101-000004", "0.log.20260102-030405"]);
    fs::remove_dir_all(&folder.0).unwrap();
    assert_eq!(files::compress(&folder.log()), Ok(()), "it went with its container");
}

#[test]
fn a_log_that_is_no_file_is_left_alone_and_a_name_is_given_back_once() {
    let folder = Folder::new("kinds");
    folder.put("secret", "of somebody else");
    symlink(folder.0.join("secret"), folder.log()).unwrap();
    assert_eq!(files::size(&folder.log()).unwrap(), None);
    assert!(crate::filesystem::open_regular(&folder.log()).is_err());
    assert!(LogReader::open(&folder.log(), Part::default(), Shown::default()).is_err());
    fs::remove_file(folder.log()).unwrap();
    folder.put("0.log", "mine");
    let rotated = files::rotate(&folder.log(), 5, NOW).unwrap();
    files::put_back(&rotated, &folder.log()).unwrap();
    assert_eq!(fs::read_to_string(folder.log()).unwrap(), "mine");
    // The runtime has created a new log although its call failed: neither is lost.
    let rotated = files::rotate(&folder.log(), 5, NOW).unwrap();
    folder.put("0.log", "new");
    files::put_back(&rotated, &folder.log()).unwrap_err();
    assert_eq!(fs::read_to_string(folder.log()).unwrap(), "new");
    assert_eq!(fs::read_to_string(rotated).unwrap(), "mine");
}

#[test]
fn the_end_of_a_log_is_found_from_its_end_and_goes_into_the_log_before() {
    let folder = Folder::new("tail");
    let line = |text: &str| format!("{TIME} stdout F {text}\n");
    let older = (0..5).map(|n| line(&format!("old {n}"))).collect::<String>();
    folder.put("0.log.20260101-000001", &older);
    folder.put("0.log.20260101-000000.gz", "not looked at");
    let long = "x".repeat(300_000);
    let parts = format!("{TIME} stdout P {long}\n{TIME} stdout P {long}\n{TIME} stdout F {long}\n");
    folder.put("0.log", &format!("{}{parts}{}{TIME} stdout F no end", line("one"), line("three")));
    let long_line = format!("{long}{long}{long}\n");
    for (lines, shown) in [
        (Some(0), "no end".to_owned()),
        (Some(1), "three\nno end".to_owned()),
        (Some(2), format!("{long_line}three\nno end")),
        (Some(3), format!("one\n{long_line}three\nno end")),
        (Some(4), format!("old 4\none\n{long_line}three\nno end")),
        (Some(8), format!("old 0\nold 1\nold 2\nold 3\nold 4\none\n{long_line}three\nno end")),
        (Some(9), format!("old 0\nold 1\nold 2\nold 3\nold 4\none\n{long_line}three\nno end")),
        (None, format!("old 0\nold 1\nold 2\nold 3\nold 4\none\n{long_line}three\nno end")),
    ] {
        assert!(tail(&folder.log(), lines) == shown, "{lines:?}");
    }
    folder.put("0.log", "");
    assert_eq!(tail(&folder.log(), Some(1)), "old 4\n", "right after a rotation");
    fs::remove_file(folder.0.join("0.log.20260101-000001")).unwrap();
    assert_eq!(tail(&folder.log(), Some(1)), "");
}

#[test]
fn the_end_of_any_log_is_the_end_of_its_lines() {
    let folder = Folder::new("tails");
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..300 {
        let (mut text, mut lines, mut part) = (String::new(), Vec::new(), String::new());
        for _ in 0..random.usize(..12) {
            let content = "é".repeat(random.usize(..80) * random.usize(1..3_000) / 100);
            let whole = random.u8(..4) > 0;
            writeln!(text, "{TIME} stdout {} {content}", if whole { "F" } else { "P" }).unwrap();
            part += &content;
            if whole {
                lines.push(std::mem::take(&mut part) + "\n");
            }
            if random.u8(..6) == 0 {
                text += "no line of a log\n";
            }
        }
        folder.put("0.log", &text);
        let count = random.usize(..10);
        let shown = lines[lines.len().saturating_sub(count)..].concat() + &part;
        let shown = if count == 0 && !part.is_empty() { part } else { shown };
        assert_eq!(tail(&folder.log(), Some(count as u64)), shown, "{count} of {text}");
    }
}

/// Writes like containerd: into the old file for a moment after a rotation, then closes it.
pub(super) struct Writer {
    log: PathBuf,
    file: File,
    next: usize,
    /// It was delayed so long that a follower may have continued without it (`LOG_DRAIN_TIME`).
    held_up: bool,
}

impl Writer {
    pub(super) fn new(log: &Path) -> Self {
        Self {
            log: log.to_owned(),
            file: File::options().create(true).append(true).open(log).unwrap(),
            next: 0,
            held_up: false,
        }
    }

    pub(super) fn lines(&mut self, count: usize) {
        for _ in 0..count {
            // Some in two parts, occasionally one on each side of a rotation.
            let (tag, end) = if self.next % 7 == 3 { ("P", "") } else { ("F", "\n") };
            write!(self.file, "{TIME} stdout {tag} {:06}{end}", self.next).unwrap();
            if end.is_empty() {
                self.file.write_all(format!("\n{TIME} stdout F \n").as_bytes()).unwrap();
            }
            self.next += 1;
        }
    }

    pub(super) fn rotate(&mut self, late: usize) {
        let begun = Instant::now();
        // So many that a slow follower on a busy machine finds all of them.
        files::rotate(&self.log, 100, NOW).unwrap();
        self.lines(late);
        let new = File::options().create(true).append(true).open(&self.log).unwrap();
        std::thread::sleep(Duration::from_millis(2));
        self.lines(late);
        self.held_up |= begun.elapsed() > LOG_DRAIN_TIME / 2;
        self.file = new;
    }

    pub(super) fn expected(&self) -> String {
        (0..self.next).fold(String::new(), |text, n| format!("{text}{n:06}\n"))
    }
}

/// What a follower shows of `work`, after which the container has exited.
fn followed(log: &Path, sink: &mut (impl Sink + Send), work: impl FnOnce() + Send) {
    followed_by(Follower::new().unwrap(), log, sink, work);
}

fn followed_by(
    mut follower: Follower,
    log: &Path,
    sink: &mut (impl Sink + Send),
    work: impl FnOnce() + Send,
) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let part = Part { tail: None, follow: true };
        follower.add(log, || LogReader::open(log, part, Shown::default())).unwrap();
        scope.spawn(|| {
            work();
            over.store(true, Ordering::SeqCst);
        });
        follower.run(sink, |at| at != 0 || !over.load(Ordering::SeqCst)).unwrap();
    });
}

/// Asserts equal lines, and shows where they differ.
pub(super) fn assert_same(shown: &str, written: &str) {
    let mut lines = shown.lines().zip(written.lines());
    if let Some((shown, written)) = lines.find(|(shown, written)| shown != written) {
        panic!("{shown} where {written} was written");
    }
    assert_eq!(shown.len(), written.len());
}

#[test]
fn nothing_is_lost_or_doubled_across_rotations() {
    // Repeated when the machine delays the writer for longer than assumed.
    for _ in 0..5 {
        let folder = Folder::new("follow");
        let mut writer = Writer::new(&folder.log());
        writer.lines(10);
        let mut both = Both::default();
        followed(&folder.log(), &mut both, || {
            for round in 0..40 {
                writer.lines(50);
                writer.rotate(round % 3);
                if round % 5 == 4 {
                    files::compress(&writer.log).unwrap();
                }
            }
            writer.lines(5);
        });
        if !writer.held_up {
            return assert_same(both.out(), &writer.expected());
        }
    }
    panic!("this machine lets nobody write in time");
}

#[test]
fn without_inotify_a_log_is_looked_at_now_and_then() {
    let folder = Folder::new("untold");
    let mut writer = Writer::new(&folder.log());
    writer.lines(10);
    let mut both = Both::default();
    followed_by(Follower::untold(), &folder.log(), &mut both, || {
        writer.lines(50);
        writer.rotate(0);
        writer.lines(5);
    });
    assert_same(both.out(), &writer.expected());
}

/// A terminal that accepts no output until `rotations` have passed.
struct Stopped<'a>(Both, &'a AtomicUsize, usize);

impl Sink for Stopped<'_> {
    fn write(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
        while self.1.load(Ordering::SeqCst) < self.2 {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.0.write(stream, bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn who_reads_slowly_finds_what_was_compressed_meanwhile() {
    let folder = Folder::new("slow");
    let mut writer = Writer::new(&folder.log());
    writer.lines(10);
    let rotations = AtomicUsize::new(0);
    let mut stopped = Stopped(Both::default(), &rotations, 4);
    followed(&folder.log(), &mut stopped, || {
        for _ in 0..4 {
            writer.lines(20);
            writer.rotate(1);
            files::compress(&writer.log).unwrap();
            rotations.fetch_add(1, Ordering::SeqCst);
        }
        writer.lines(3);
    });
    let gz = Rotated::of(&folder.log()).unwrap().logs.values().filter(|forms| forms.compressed).count();
    assert!(gz >= 2, "{:?}", folder.names());
    assert_same(stopped.0.out(), &writer.expected());
}

#[test]
fn a_log_that_is_emptied_or_removed_is_followed_all_the_same() {
    let folder = Folder::new("emptied");
    let mut writer = Writer::new(&folder.log());
    let mut both = Both::default();
    let shown = AtomicUsize::new(0);
    struct Counted<'a>(&'a mut Both, &'a AtomicUsize);
    impl Sink for Counted<'_> {
        fn write(&mut self, stream: Stream, bytes: &[u8]) -> io::Result<()> {
            self.1.fetch_add(bytes.len(), Ordering::SeqCst);
            self.0.write(stream, bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let wait = |bytes: usize| {
        while shown.load(Ordering::SeqCst) < bytes {
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    followed(&folder.log(), &mut Counted(&mut both, &shown), || {
        writer.lines(100);
        wait(700);
        // logrotate's copytruncate.
        writer.file.set_len(0).unwrap();
        writer.lines(2);
        wait(714);
        fs::remove_file(folder.log()).unwrap();
        writer.lines(1);
    });
    assert_eq!(both.out(), writer.expected());
}
