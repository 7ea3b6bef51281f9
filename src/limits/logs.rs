//! Bounds of container logs: rotating, reading and following them.

use std::time::Duration;

use super::KIB;

/// Bytes of a container's log before it is rotated, unless configured (kubelet `containerLogMaxSize`).
pub const LOG_BYTES: u64 = 10 * 1024 * 1024;
/// Least value of `containerLogMaxSize`.
pub const LOG_BYTES_MIN: u64 = 4 * 1024;
/// Files of one log, the rotated ones and the one that is written, unless configured (kubelet `containerLogMaxFiles`). More: the
/// oldest is removed.
pub const LOG_FILES: usize = 5;
/// Least and greatest value of `containerLogMaxFiles`.
pub const LOG_FILES_RANGE: (usize, usize) = (2, 1000);
/// Assumed growth of a log in bytes a second, so that it is rotated in time before its growth has been measured.
pub const LOG_BYTES_PER_SECOND: u64 = 5_000_000;
/// Least time between two checks of a log that grows.
pub const LOG_CHECK_MIN: Duration = Duration::from_millis(20);
/// A log that will be full within this time is not checked before. Longer: it is checked after three quarters of the time.
pub const LOG_CHECK_WHOLE: Duration = Duration::from_secs(1);
/// Longest time between two checks of a log that grows, and of every log when inotify watches are exhausted, unless configured
/// (kubelet `containerLogMonitorInterval`).
pub const LOG_CHECK_MAX: Duration = Duration::from_secs(10);
/// First wait after a failed rotation, and before a missing log is asked for again; doubles.
pub const LOG_RETRY: Duration = Duration::from_secs(10);
/// Longest such wait.
pub const LOG_RETRY_MAX: Duration = Duration::from_mins(5);
/// Running containers whose logs are watched. Full: the log of a further one is not rotated, which is logged once.
pub const LOGS_WATCHED_MAX: usize = 1024;
/// Bytes of a log's path. Longer: it is not rotated; smolet makes no such path.
pub const LOG_PATH_BYTES_MAX: usize = KIB;
/// Logs waiting to be compressed. Full: those of a further one are compressed with its next rotation.
pub const LOGS_TO_COMPRESS_MAX: usize = 64;
/// Bytes of a log that are read at once.
pub const LOG_CHUNK_BYTES: usize = 64 * KIB;
/// Bytes before a line's content: a time and tags. Longer: it is not a CRI log line, and is not shown.
pub const LOG_HEAD_BYTES_MAX: usize = 256;
/// Files looked at in a container's directory of termination logs when it starts. More: the rest is removed at its next starts.
pub const TERMINATION_LOGS_READ_MAX: usize = 1024;
/// Attempts to open a log's files while it is rotated or its rotated ones are compressed. More: an error.
pub const LOG_OPEN_TRIES: usize = 50;
/// The wait between two attempts.
pub const LOG_OPEN_PAUSE: Duration = Duration::from_millis(10);
/// Least and greatest memory in bytes for the container logs of a pod (`--pod-logs-memory`).
pub const LOG_MEMORY_RANGE: (u64, u64) = (64 * KIB as u64, 16 * 1024 * 1024);
/// Parts of that memory for each container: the current log and the newest rotated one, both of the last start too, and one for what
/// is written before a rotation.
pub const LOG_MEMORY_SHARES: u64 = 5;
/// The part of the machine's memory that all pods' log directories in memory may have together. Full: the logs of a further pod are
/// on the disk, which is logged.
pub const LOG_MEMORY_NODE_PART: u64 = 8;
/// Bytes of a log in memory that are flushed to the disk, the newest.
pub const LOG_FLUSH_BYTES_MAX: usize = 64 * KIB;
/// Starts of a container whose logs in memory are flushed to the disk, the newest.
pub const LOG_FLUSH_STARTS_MAX: usize = 2;
/// Time between two flushes of logs in memory, unless configured (`--pod-logs-flush-period`).
pub const LOG_FLUSH_PERIOD: Duration = Duration::from_hours(1);
/// Least and greatest value of it, besides 0: only when the agent ends.
pub const LOG_FLUSH_RANGE: (Duration, Duration) = (Duration::from_mins(1), Duration::from_hours(24));
/// How long the agent's end waits for the last flush. Longer: it ends, and what was not flushed yet stays in memory.
pub const LOG_FLUSH_END_PATIENCE: Duration = Duration::from_secs(10);
/// Chunks of one log that are shown before the next log's turn.
pub const LOG_CHUNKS_AT_ONCE: usize = 16;
/// How long a rotated log is followed whose writer has not closed it. Longer: the next one is shown.
pub const LOG_DRAIN_TIME: Duration = Duration::from_secs(1);
/// First wait before the agent is asked whether the container of a quiet log still runs; doubles.
pub const LOG_ASK_FIRST: Duration = Duration::from_millis(100);
/// Longest such wait.
pub const LOG_ASK_MAX: Duration = Duration::from_secs(10);
/// How often a followed log is polled when inotify watches are exhausted.
pub const LOG_POLL_PERIOD: Duration = Duration::from_secs(1);
// The poll period alone does not let a log of the usual size outgrow its limit.
const _: () =
    assert!(LOG_BYTES_PER_SECOND as u128 * LOG_CHECK_MIN.as_millis() / 1000 <= LOG_BYTES as u128 / 20);
// The smallest memory has two files of the least size for a container.
const _: () = assert!(LOG_MEMORY_RANGE.0 / LOG_MEMORY_SHARES >= LOG_BYTES_MIN);
const _: () = assert!(LOG_CHECK_MIN.as_millis() < LOG_CHECK_MAX.as_millis());
const _: () =
    assert!(LOG_BYTES_MIN <= LOG_BYTES && LOG_FILES_RANGE.0 <= LOG_FILES && LOG_FILES <= LOG_FILES_RANGE.1);
