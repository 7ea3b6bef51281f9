//! Bounds of container logs: rotating, reading and following them.

use std::time::Duration;

use super::KIB;

/// Bytes of a container's log before it is rotated, unless configured (kubelet `containerLogMaxSize`).
pub const LOG_BYTES: u64 = 10 * 1024 * 1024;
/// The least that may be configured.
pub const LOG_BYTES_MIN: u64 = 4 * 1024;
/// Files of one log, the rotated ones and the one that is written, unless configured (kubelet `containerLogMaxFiles`).
/// More: the oldest goes.
pub const LOG_FILES: usize = 5;
/// The least and the most that may be configured.
pub const LOG_FILES_RANGE: (usize, usize) = (2, 1000);
/// How fast a log may grow, in bytes a second, so that it is rotated in time when it was never seen to grow faster.
pub const LOG_BYTES_PER_SECOND: u64 = 5_000_000;
/// Least time between two looks at a log that grows.
pub const LOG_LOOK_MIN: Duration = Duration::from_millis(20);
/// Until when a log that grows is left alone when it is to be full then. Longer: it is looked at after three quarters.
pub const LOG_LOOK_WHOLE: Duration = Duration::from_secs(1);
/// Longest time between two looks at a log that grows, and at every log where inotify has no watch left, unless configured
/// (kubelet `containerLogMonitorInterval`).
pub const LOG_LOOK_MAX: Duration = Duration::from_secs(10);
/// First wait after a rotation that failed, and before a log that is not there is asked for again; doubles.
pub const LOG_RETRY: Duration = Duration::from_secs(10);
/// Longest wait.
pub const LOG_RETRY_MAX: Duration = Duration::from_mins(5);
/// Running containers whose logs are watched. Full: a further one's log is not rotated, which is said once.
pub const LOGS_WATCHED_MAX: usize = 1024;
/// Bytes of a log's path. Longer: it is not rotated; no such path is made here.
pub const LOG_PATH_BYTES_MAX: usize = KIB;
/// Logs that wait to be compressed. Full: a further one's are compressed with its next rotation.
pub const LOGS_TO_COMPRESS_MAX: usize = 64;
/// Bytes of a log that are read at once.
pub const LOG_CHUNK_BYTES: usize = 64 * KIB;
/// Bytes before a line's content: a time and tags. Longer: it is no line of a log, and is not shown.
pub const LOG_HEAD_BYTES_MAX: usize = 256;
/// Looks for a log's files while it is rotated or its rotated ones are compressed. More: an error.
pub const LOG_OPEN_TRIES: usize = 50;
/// The wait between two of them.
pub const LOG_OPEN_PAUSE: Duration = Duration::from_millis(10);
/// Pieces of one log that are shown before it is another one's turn.
pub const LOG_CHUNKS_AT_ONCE: usize = 16;
/// How long a rotated log is followed whose writer does not let go of it. Longer: the next one is shown.
pub const LOG_LAST_WORDS: Duration = Duration::from_secs(1);
/// First wait before the agent is asked whether a container still runs whose log is quiet; doubles.
pub const LOG_ASK_FIRST: Duration = Duration::from_millis(100);
/// Longest wait.
pub const LOG_ASK_MAX: Duration = Duration::from_secs(10);
/// How often a log is looked at that is followed where the kernel has no inotify left to tell of changes.
pub const LOG_LOOK_UNTOLD: Duration = Duration::from_secs(1);
// The time between two looks is not what makes a log of the usual size outgrow its limit.
const _: () =
    assert!(LOG_BYTES_PER_SECOND as u128 * LOG_LOOK_MIN.as_millis() / 1000 <= LOG_BYTES as u128 / 20);
const _: () = assert!(LOG_LOOK_MIN.as_millis() < LOG_LOOK_MAX.as_millis());
const _: () =
    assert!(LOG_BYTES_MIN <= LOG_BYTES && LOG_FILES_RANGE.0 <= LOG_FILES && LOG_FILES <= LOG_FILES_RANGE.1);
