//! Bounds of the diagnostic commands: `smolet events`, `smolet top` and `smolet doctor`.

use std::time::Duration;

use super::{ANSWER_PATIENCE, KIB, SERVER_CONNECTIONS_MAX};

/// Entries of the ring of decisions and errors for one pod and reason. Full: further messages are combined in one entry
/// (Kubernetes' `defaultAggregateMaxEvents`: 10; here each container of a pod should mostly have its own `Started`).
pub const EVENTS_SIMILAR_MAX: usize = 16;
/// Clients that wait for the next entry. More: they get a response at once, and ask again.
pub const EVENTS_WAITING_MAX: usize = SERVER_CONNECTIONS_MAX / 2;
/// How long one of them waits. Longer: it gets an empty response, and asks again.
pub const EVENTS_WAIT_MAX: Duration = Duration::from_secs(5);
/// Least time between two of its requests: entries in between are shown at once.
pub const EVENTS_PAUSE: Duration = Duration::from_millis(200);
const _: () = assert!(EVENTS_WAIT_MAX.as_millis() < ANSWER_PATIENCE.as_millis());

/// Containers of the pods whose usage is requested. More: they have to be requested pod by pod.
pub const STATS_CONTAINERS_MAX: usize = 1024;
/// Time between the two samples of their counters.
pub const STATS_SAMPLE_TIME: Duration = Duration::from_secs(1);
/// How long metrics wait for what pods and the runtime have written. Longer: they come without.
pub const WRITTEN_PATIENCE: Duration = Duration::from_secs(2);
/// Pods without a cgroup any more whose bytes written are kept for `smolet top` and metrics. Full: the one that ended first has none.
pub const ENDED_PODS_WRITTEN_MAX: usize = 128;
/// Time between two readings of a counter, by the runtime's timestamps; the runtime may read seldom and cache. More: the clock
/// was set in between.
pub const STATS_TIME_MAX: Duration = Duration::from_mins(1);
const _: () = assert!(STATS_SAMPLE_TIME.as_millis() < STATS_TIME_MAX.as_millis());
const _: () = assert!(STATS_SAMPLE_TIME.as_millis() < ANSWER_PATIENCE.as_millis());
const _: () = assert!(WRITTEN_PATIENCE.as_millis() < ANSWER_PATIENCE.as_millis());

/// Bytes of a file, or of a command's output, that `smolet doctor` reads. The rest counts as absent.
pub const DOCTOR_FILE_BYTES_MAX: u64 = 256 * KIB as u64;
/// Bytes of each of depmod's lists that are looked through: Debian's have 600 KiB. What comes after them counts as absent.
pub const DOCTOR_MODULES_BYTES_MAX: u64 = 8 << 20;
/// Other node agents that are reported. More: left out.
pub const DOCTOR_KUBELETS_MAX: usize = 8;
/// CNI configurations whose names are compared. More: some are not, in the directory's order.
pub const DOCTOR_CNI_FILES_MAX: usize = 256;
/// How long a command may take. Longer: it is killed and counts as without output.
pub const DOCTOR_COMMAND_PATIENCE: Duration = Duration::from_secs(3);
/// How long `firewall-cmd` may take, a program in Python that takes seconds on a small board. Longer: it is killed, and doctor does not
/// mention firewalld.
pub const FIREWALL_CMD_TIME: Duration = Duration::from_secs(10);
