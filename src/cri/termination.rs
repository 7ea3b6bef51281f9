//! The termination message of a container that has exited: from the file it may have written, else from the end of its
//! log (kubelet `getTerminationMessage`, `readLastStringFromContainerLogs`).
//!
//! Small reads of files that were just written, so they stay on the loop's thread.

use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::Path;

use super::convert::cut;
use crate::limits::{
    CRI_MESSAGE_BYTES_MAX, CRI_TEXT_BYTES_MAX, TERMINATION_LOG_BYTES_MAX, TERMINATION_LOG_BYTES_READ,
    TERMINATION_LOG_LINES_MAX,
};
use crate::logs::files;
use crate::proto::runtime::v1 as cri;

/// Annotations of a container (kubelet `labels.go`).
const PATH: &str = "io.kubernetes.container.terminationMessagePath";
const POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";

/// What to append to the message of `status`; empty while the container has not exited or when it left no word.
pub fn message(status: &cri::ContainerStatus) -> Box<str> {
    if status.state() != cri::ContainerState::ContainerExited {
        return Box::default();
    }
    let annotation = |name: &str| status.annotations.get(name).map_or("", String::as_str);
    // A container that could not even be started has no log of its own.
    let from_log = annotation(POLICY) == "FallbackToLogsOnError"
        && status.exit_code != 0
        && status.reason != "ContainerCannotRun";
    let file = annotation(PATH).trim_start_matches('/');
    let mounted = |mount: &&cri::Mount| mount.container_path.trim_start_matches('/') == file;
    let written =
        status.mounts.iter().find(mounted).filter(|_| !file.is_empty()).map(|mount| &*mount.host_path);
    let written = written.map_or(Ok(Vec::new()), |path| {
        end_of(Path::new(path), CRI_MESSAGE_BYTES_MAX as u64).map(|(bytes, _)| bytes).or_else(|error| {
            if error.kind() == ErrorKind::NotFound {
                return Ok(Vec::new());
            }
            let path = cut(path.to_owned(), CRI_TEXT_BYTES_MAX);
            Err(format!("Error on reading termination log {path}: {error}"))
        })
    });
    match written {
        Err(error) => error.into(),
        Ok(bytes) if bytes.is_empty() && from_log => last_lines(Path::new(&status.log_path)),
        Ok(bytes) => lossy(&bytes, CRI_MESSAGE_BYTES_MAX),
    }
}

/// The end of the container's log, without timestamps and stream names.
fn last_lines(path: &Path) -> Box<str> {
    match end_of(path, TERMINATION_LOG_BYTES_READ) {
        Ok((bytes, whole)) => last_words(&bytes, whole),
        Err(error) => format!("Error on reading termination message from logs: {error}").into(),
    }
}

/// PURE: the message that the end of a log makes: its last `limits::TERMINATION_LOG_LINES_MAX` lines, of them at most
/// the last `limits::TERMINATION_LOG_BYTES_MAX` bytes. `whole` = `log` begins with the file's first line.
pub fn last_words(log: &[u8], whole: bool) -> Box<str> {
    lossy(&contents(log, whole), TERMINATION_LOG_BYTES_MAX)
}

/// What the last lines of a CRI log say. A line is `TIME STREAM TAGS CONTENT`; the tag `P` says that the next line goes
/// on with it. Other lines are skipped. `whole` = `log` begins with the file's first line.
fn contents(log: &[u8], whole: bool) -> Vec<u8> {
    let mut lines: Vec<_> = log.split_inclusive(|byte| *byte == b'\n').collect();
    if !whole && !lines.is_empty() {
        lines.remove(0);
    }
    let mut contents = Vec::new();
    for line in &lines[lines.len().saturating_sub(TERMINATION_LOG_LINES_MAX)..] {
        let mut parts = line.splitn(4, |byte| *byte == b' ');
        let (Some(_), Some(_), Some(tags), Some(content)) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let partial = tags.split(|byte| *byte == b':').next() == Some(b"P");
        let content = if partial { content.strip_suffix(b"\n").unwrap_or(content) } else { content };
        contents.extend_from_slice(content);
    }
    contents
}

/// The last bytes of a file, and whether that is all of it. Never waits: what is no regular file is refused.
fn end_of(path: &Path, bytes_max: u64) -> io::Result<(Vec<u8>, bool)> {
    let mut file = files::open(path)?;
    let start = file.metadata()?.len().saturating_sub(bytes_max);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(bytes_max).read_to_end(&mut bytes)?;
    Ok((bytes, start == 0))
}

/// The last `max` bytes as text, whole characters; what is no UTF-8 is replaced.
fn lossy(bytes: &[u8], max: usize) -> Box<str> {
    let text = String::from_utf8_lossy(bytes);
    let start = text.ceil_char_boundary(text.len().saturating_sub(max));
    text[start..].into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_lines_lose_their_heads() {
        for (log, whole, text) in [
            ("2026-01-01T00:00:00.1Z stdout F one\n2026-01-01T00:00:01Z stderr F two\n", true, "one\ntwo\n"),
            ("T stdout P par\nT stdout P ti\nT stdout F al\n", true, "partial\n"),
            ("T stdout F:x tagged\nno log line\nT stdout F a b  c\n", true, "tagged\na b  c\n"),
            ("stdout F cut at its head\nT stdout F whole\n", false, "whole\n"),
            ("T stdout F the last one is cut", true, "the last one is cut"),
            ("T stdout F \n", true, "\n"),
            ("", true, ""),
            ("", false, ""),
        ] {
            assert_eq!(String::from_utf8(contents(log.as_bytes(), whole)).unwrap(), text, "{log:?}");
        }
    }

    #[test]
    fn only_the_last_lines_count() {
        let log: Vec<u8> =
            (0..200).flat_map(|number| format!("T stdout F {number}\n").into_bytes()).collect();
        let text = String::from_utf8(contents(&log, true)).unwrap();
        assert_eq!(text.lines().count(), TERMINATION_LOG_LINES_MAX);
        assert_eq!((text.lines().next(), text.lines().last()), (Some("120"), Some("199")));
    }

    #[test]
    fn the_end_is_kept_in_whole_characters() {
        assert_eq!(&*lossy("aéé".as_bytes(), 3), "é");
        assert_eq!(&*lossy(b"a\xff", 10), "a\u{fffd}");
        assert_eq!(&*lossy(b"short", 10), "short");
    }
}
