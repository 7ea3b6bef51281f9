//! Bounds of what tells why: `smolet events`, `smolet top` and `smolet doctor`.

use std::time::Duration;

use super::{ANSWER_PATIENCE, KIB, SERVER_CONNECTIONS_MAX};

/// Entries of the ring of decisions and errors for one pod and reason. Full: further messages are combined in one of them
/// (Kubernetes' `defaultAggregateMaxEvents`: 10; here a pod's containers, `Started` each, shall mostly stand for themselves).
pub const EVENTS_SIMILAR_MAX: usize = 16;
/// Who waits for the next entry. More: they are answered at once, and ask again.
pub const EVENTS_WAITING_MAX: usize = SERVER_CONNECTIONS_MAX / 2;
/// How long one of them waits. Longer: it is told that there was none, and asks again.
pub const EVENTS_WAIT_MAX: Duration = Duration::from_secs(5);
/// Least time between two of its questions: what happens within is shown at once.
pub const EVENTS_PAUSE: Duration = Duration::from_millis(200);
const _: () = assert!(EVENTS_WAIT_MAX.as_millis() < ANSWER_PATIENCE.as_millis());

/// Containers of the pods whose use is asked for. More: they are to be asked for pod by pod.
pub const STATS_CONTAINERS_MAX: usize = 1024;
/// Time between the two looks at their counters.
pub const STATS_SAMPLE_TIME: Duration = Duration::from_secs(1);
/// Time between two readings of a counter, as the runtime dates them; it may read seldom and keep what it read. More: the
/// clock was set in between.
pub const STATS_TIME_MAX: Duration = Duration::from_mins(1);
const _: () = assert!(STATS_SAMPLE_TIME.as_millis() < STATS_TIME_MAX.as_millis());
const _: () = assert!(STATS_SAMPLE_TIME.as_millis() < ANSWER_PATIENCE.as_millis());

/// Bytes of a file, or of what a command prints, that `smolet doctor` reads. The rest counts as not there.
pub const DOCTOR_FILE_BYTES_MAX: u64 = 256 * KIB as u64;
/// Other node agents that are told of. More: those are enough.
pub const DOCTOR_KUBELETS_MAX: usize = 8;
/// CNI configurations whose names are compared. More: some are not, in the order in which the directory lists them.
pub const DOCTOR_CNI_FILES_MAX: usize = 256;
/// How long a command may take. Longer: it is ended and has said nothing.
pub const DOCTOR_COMMAND_PATIENCE: Duration = Duration::from_secs(3);
