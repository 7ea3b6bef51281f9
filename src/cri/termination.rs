//! The termination message of a container that has exited: from its termination log, else from the end of its container log
//! (kubelet `getTerminationMessage`, `readLastStringFromContainerLogs`).
//!
//! Both files are under the container's control: a volume that it mounts over the file may be on a server that hangs, and
//! the files have any size. So both are read as foreign paths, on a thread with a deadline, and never more than their ends.

use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use super::convert::{self, cut};
use crate::blocking::Blocking;
use crate::filesystem::open_regular;
use crate::limits::{
    CRI_MESSAGE_BYTES_MAX, CRI_TEXT_BYTES_MAX, TERMINATION_LOG_BYTES_MAX, TERMINATION_LOG_BYTES_READ,
    TERMINATION_LOG_LINES_MAX,
};
use crate::model::ContainerStatus;
use crate::proto::runtime::v1 as cri;

/// Annotation of a container (kubelet `labels.go`).
const POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";

/// The status as the agent knows it; `None` without a valid id.
pub async fn with_message(status: cri::ContainerStatus, blocking: &Blocking) -> Option<ContainerStatus> {
    // Boxed: nearly all containers run, and have no termination message.
    let last_word = Box::pin(message(&status, blocking)).await;
    let mut status = convert::container_status(status)?;
    // Joined as in the kubelet: the runtime's message and the container's (`convertToKubeContainerStatus`).
    status.message = match (status.message.is_empty(), last_word.is_empty()) {
        (true, _) => last_word,
        (false, true) => status.message,
        (false, false) => [&*status.message, &*last_word].join(": ").into(),
    };
    Some(status)
}

/// The text to append to the message of `status`; empty while the container has not exited, or when it left no message.
async fn message(status: &cri::ContainerStatus, blocking: &Blocking) -> Box<str> {
    let Some(MessageSources { written, log }) = MessageSources::of(status) else { return Box::default() };
    let written = match written {
        Some(path) => match last_bytes(&path, CRI_MESSAGE_BYTES_MAX as u64, blocking).await {
            Ok((bytes, _)) => Ok(bytes),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => {
                let path = cut(path.display().to_string(), CRI_TEXT_BYTES_MAX);
                Err(format!("Error on reading termination log {path}: {error}"))
            }
        },
        None => Ok(Vec::new()),
    };
    match (written, log) {
        (Err(error), _) => error.into(),
        (Ok(bytes), Some(log)) if bytes.is_empty() => {
            match last_bytes(&log, TERMINATION_LOG_BYTES_READ, blocking).await {
                Ok((bytes, whole)) => last_words(&bytes, whole),
                Err(error) => format!("Error on reading termination message from logs: {error}").into(),
            }
        }
        (Ok(bytes), _) => lossy(&bytes, CRI_MESSAGE_BYTES_MAX),
    }
}

/// Sources of an exited container's termination message.
#[derive(Debug, PartialEq, Eq)]
struct MessageSources {
    /// The termination log.
    written: Option<PathBuf>,
    /// The container log, when the policy allows it.
    log: Option<PathBuf>,
}

impl MessageSources {
    fn of(status: &cri::ContainerStatus) -> Option<Self> {
        if status.state() != cri::ContainerState::ContainerExited {
            return None;
        }
        let annotation = |name: &str| status.annotations.get(name).map_or("", String::as_str);
        // A container that could not be started has no log of its own.
        let from_log = annotation(POLICY) == "FallbackToLogsOnError"
            && status.exit_code != 0
            && status.reason != "ContainerCannotRun";
        Some(Self {
            written: convert::termination_log(status).map(PathBuf::from),
            log: from_log.then(|| PathBuf::from(&status.log_path)),
        })
    }
}

/// The last bytes of a file, and whether that is the whole file.
async fn last_bytes(path: &Path, bytes_max: u64, blocking: &Blocking) -> io::Result<(Vec<u8>, bool)> {
    let theirs = path.to_owned();
    // Boxed: nearly all containers run.
    let read = Box::pin(blocking.run_outside(path, move || end_of(&theirs, bytes_max))).await;
    read.map_err(|stuck| io::Error::other(stuck.to_string()))?
}

/// PURE: the message from the end of a log: its last `limits::TERMINATION_LOG_LINES_MAX` lines, truncated to the last
/// `limits::TERMINATION_LOG_BYTES_MAX` bytes. `whole` = `log` begins with the file's first line.
pub fn last_words(log: &[u8], whole: bool) -> Box<str> {
    lossy(&contents(log, whole), TERMINATION_LOG_BYTES_MAX)
}

/// The content of a CRI log's last lines. A line is `TIME STREAM TAGS CONTENT`; the tag `P` says that the next line
/// continues it. Other lines are skipped. `whole` = `log` begins with the file's first line.
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

/// As [`last_bytes`]. Blocking I/O.
fn end_of(path: &Path, bytes_max: u64) -> io::Result<(Vec<u8>, bool)> {
    let mut file = open_regular(path)?;
    let start = file.metadata()?.len().saturating_sub(bytes_max);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(bytes_max).read_to_end(&mut bytes)?;
    Ok((bytes, start == 0))
}

/// The last `max` bytes as text, whole characters; invalid UTF-8 is replaced.
fn lossy(bytes: &[u8], max: usize) -> Box<str> {
    crate::text::end_of(&String::from_utf8_lossy(bytes), max).into()
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
