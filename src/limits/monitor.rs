//! Bounds of the monitor of a container ([`monitor`](crate::monitor)).

use std::time::Duration;

use super::KIB;

/// Bytes of a container's `monitor.json`. More: the monitor refuses to start.
pub const MONITOR_ARGUMENTS_BYTES_MAX: usize = 64 * KIB;
/// Bytes of the small files that a monitor leaves (`exit`, `pid`, `lock`) and of its report. More: the file is taken as damaged.
pub const MONITOR_RECORD_BYTES_MAX: usize = 16 * KIB;
/// How long the OCI runtime may take to create a container. Longer: it is killed, the container is deleted by force, and the
/// creation fails. Below the CRI's two minutes.
pub const CONTAINER_CREATE_TIME: Duration = Duration::from_secs(90);
/// How often a monitor moves between its own cgroups while the OCI runtime begins, so that the OCI runtime's move waits for nothing. More:
/// that one waits.
pub const CGROUP_MOVES_MAX: usize = 8;
/// The pause after each: for so long a further move is quick.
pub const CGROUP_MOVE_PERIOD: Duration = Duration::from_millis(8);
/// How long the OCI runtime may take to delete a container that it could not create. Longer: it is killed; the agent deletes it.
pub const CONTAINER_DELETE_TIME: Duration = Duration::from_secs(15);
/// How long the agent waits for a monitor's report. Longer: the creation fails, and the monitor ends by its own deadlines.
pub const MONITOR_REPORT_TIME: Duration = Duration::from_secs(110);
/// Bytes that are read of the OCI runtime's log and of its standard error. More: the rest is not read.
pub const RUNTIME_LOG_BYTES_MAX: usize = 64 * KIB;
/// Bytes kept of the OCI runtime's message. Longer: cut.
pub const RUNTIME_MESSAGE_BYTES_MAX: usize = 2 * KIB;

/// Bytes of a line in a container's log, as containerd's `max_container_log_line_size`. Longer: it becomes several entries, all
/// but the last one with the tag `P`.
pub const LOG_LINE_BYTES_MAX: usize = 16 * KIB;
/// Bytes of a container's output that are read at once. More: the next read takes them.
pub const OUTPUT_READ_BYTES: usize = 16 * KIB;
/// Bytes of log entries that are collected for one write. Full: they are written.
pub const LOG_BATCH_BYTES: usize = 16 * KIB;
/// Without output for so long a monitor gives its buffers back.
pub const MONITOR_IDLE_TIME: Duration = Duration::from_secs(1);
/// Longest pause between a monitor's looks for what the OCI runtime has left of the container's start. It doubles from
/// [`MONITOR_IDLE_TIME`]; after the last look, some two minutes after the start, nothing is looked for.
pub const MONITOR_STARTER_PAUSE_MAX: Duration = Duration::from_secs(64);
/// How often a monitor looks for orphans where the container shares the node's process IDs: nothing tells of their end.
pub const MONITOR_REAP_PERIOD: Duration = Duration::from_secs(10);
/// How long a monitor reads on after the container's first process has ended, while others that it started hold the output open.
/// Longer: the rest is not read.
pub const OUTPUT_DRAIN_TIME: Duration = Duration::from_secs(5);
/// The same without any output.
pub const OUTPUT_DRAIN_IDLE_TIME: Duration = Duration::from_millis(500);

/// Clients that are attached to a container at once. Full: a further one is closed with a message.
pub const ATTACH_CLIENTS_MAX: usize = 8;
/// Bytes of one frame between a monitor and an attached client. More: the client is closed.
pub const ATTACH_FRAME_BYTES_MAX: usize = 16 * KIB;
/// Bytes of output that wait in a monitor for one client. While the container runs they are few, as its output is not read meanwhile; after its
/// end they are what its pipes held, 64 KiB each. More: the client is closed.
pub const ATTACH_UNSENT_BYTES_MAX: usize = 192 * KIB;
/// How long a client that does not take its output, as on a bad link, holds the container's. Longer: the client is closed; the container
/// goes on.
pub const ATTACH_STALL_TIME: Duration = Duration::from_secs(5);
/// How long a monitor waits for a request on its control socket, and for a place for the answer. Longer: that connection is closed.
pub const CONTROL_REQUEST_TIME: Duration = Duration::from_secs(2);
/// Bytes of such a request. More: it is refused.
pub const CONTROL_REQUEST_BYTES_MAX: usize = 64;
/// How long the agent waits for a monitor's answer: a slow disk may hold it. Longer: the request fails.
pub const CONTROL_ANSWER_TIME: Duration = Duration::from_secs(5);
/// How often a new monitor tries to get the lock of its container, which a reader holds for an instant.
pub const MONITOR_LOCK_TRIES: u32 = 20;
/// How long it waits between two tries.
pub const MONITOR_LOCK_PAUSE: Duration = Duration::from_millis(10);

const _: () = assert!(ATTACH_FRAME_BYTES_MAX >= OUTPUT_READ_BYTES);
const _: () = assert!(ATTACH_UNSENT_BYTES_MAX >= 2 * (64 * KIB + 2 * OUTPUT_READ_BYTES));
/// How often it is tried to record an exit where there is no space for it, and the time between two tries: a day. Then it is unknown.
pub const MONITOR_EXIT_TRIES: u32 = 86_400;
/// See [`MONITOR_EXIT_TRIES`].
pub const MONITOR_EXIT_PAUSE: Duration = Duration::from_secs(1);
