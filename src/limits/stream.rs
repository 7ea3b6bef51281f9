//! Bounds of the sockets to everybody else.

use std::time::Duration;

use super::KIB;

/// Reads from a socket, one behind the other, without a wait. Reached: the other tasks have their turn first.
pub const SOCKET_TURN_READS: usize = 16;
/// Bytes that are read so. Reached: the same. Of the smallest frames of HTTP/2 that is 7,000.
pub const SOCKET_TURN_BYTES: usize = 64 * KIB;
/// How long what is done between the first and the last of these reads may take. Reached: the same.
pub const SOCKET_TURN_TIME: Duration = Duration::from_millis(5);

/// Polls of tasks, one behind the other. Reached: the loop has its turn, and timers and sockets wake who waits for them.
pub const POLLS_PER_TURN_MAX: usize = 16;
/// How long a poll of a task or a turn of the loop may hold the thread. Longer: it is counted, and logged with the task's name.
pub const POLL_TIME_MAX: Duration = Duration::from_millis(100);
/// How often that is logged, at most. More often: counted only.
pub const POLL_LOG_PERIOD: Duration = Duration::from_mins(1);
/// How long the loop takes events, one behind the other, before the tasks have their turn. Reached: the next one after that.
pub const LOOP_TURN_TIME: Duration = Duration::from_millis(10);
