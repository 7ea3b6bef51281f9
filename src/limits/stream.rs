//! Bounds of one turn of sockets, tasks and the loop.

use std::time::Duration;

use super::KIB;

/// Consecutive reads from a socket without a wait. Reached: the other tasks have their turn first.
pub const SOCKET_TURN_READS: usize = 16;
/// Bytes of these reads. Reached: the same. That is 7,000 of HTTP/2's smallest frames.
pub const SOCKET_TURN_BYTES: usize = 64 * KIB;
/// How long the work between the first and the last of these reads may take. Reached: the same.
pub const SOCKET_TURN_TIME: Duration = Duration::from_millis(5);

/// Consecutive polls of tasks. Reached: the loop has its turn, and timers and sockets wake their tasks.
pub const POLLS_PER_TURN_MAX: usize = 16;
/// How long a poll of a task or a turn of the loop may hold the thread. Longer: it is counted, and logged with the task's name.
pub const POLL_TIME_MAX: Duration = Duration::from_millis(100);
/// Least time between two such log lines, unless the later poll took twice as long. More often: only counted. A slow board has one a minute,
/// for each of which systemd-journald wrote some 80 KiB to its flash, which is to get 1 MiB a day.
pub const POLL_LOG_PERIOD: Duration = Duration::from_hours(24);
/// How long the loop processes events before the tasks have their turn. Reached: the loop continues after them.
pub const LOOP_TURN_TIME: Duration = Duration::from_millis(10);
