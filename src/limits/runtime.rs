//! Bounds of the embedded runtime: sandboxes, containers, the programs that it executes.

use std::time::Duration;

use super::{KIB, MIB, PODS_IN_HAND_MAX, Share};

/// Sandboxes that the embedded runtime keeps, ended ones included. Full: a further sandbox is refused until one is removed.
pub const SANDBOXES_MAX: usize = 4 * PODS_IN_HAND_MAX;
/// Containers that the embedded runtime keeps, ended ones included. Full: a further container is refused until one is removed.
pub const RUNTIME_CONTAINERS_MAX: usize = 4096;
/// Bytes of the record of a sandbox or container, its configuration included. Larger: the sandbox or container is refused.
pub const RUNTIME_RECORD_BYTES_MAX: usize = 4 * MIB;
/// Directories read in `sandboxes` and `containers` at the start. More: the rest is read at the next start.
pub const RUNTIME_ENTRIES_READ_MAX: usize = 2 * (SANDBOXES_MAX + RUNTIME_CONTAINERS_MAX);

/// Plugins of a CNI network. More: the configuration is refused.
pub const CNI_PLUGINS_MAX: usize = 32;
/// Bytes of the file with the node's last pod CIDRs. More: it is not read.
pub const KEPT_POD_CIDR_BYTES_MAX: usize = KIB;
/// Bytes of a CNI configuration file. More: the configuration is refused.
pub const CNI_CONFIGURATION_BYTES_MAX: usize = 64 * KIB;
/// Bytes of a CNI plugin's result, of which a result has some hundred. More: the plugin counts as failed.
pub const CNI_RESULT_BYTES_MAX: usize = 256 * KIB;
/// Longest run of one CNI plugin. Later: it is killed, and counts as failed.
pub const CNI_PLUGIN_TIME: Duration = Duration::from_mins(1);
/// After this time of a look at the networks of all pods (CNI CHECK), for `smolet doctor`, no further one is begun, and the answer says so.
pub const NETWORK_CHECKS_TIME: Duration = Duration::from_secs(30);
/// Pods that it names. More: the rest is not looked at.
pub const NETWORK_FAULTS_MAX: usize = 16;
/// Port mappings of a sandbox. More: the sandbox is refused.
pub const PORT_MAPPINGS_MAX: usize = 1024;

/// Longest run of one call of the OCI runtime, except for `exec`. Later: it is killed, and the call counts as failed.
pub const OCI_RUNTIME_TIME: Duration = Duration::from_mins(1);
/// Bytes kept of what a program prints on standard error. More: the rest is read and dropped.
pub const PROGRAM_ERROR_BYTES_MAX: usize = 8 * KIB;
/// Bytes kept of each output of a command that the CRI's `ExecSync` runs (containerd, CRI-O: 16 MiB). More: the rest is read and
/// dropped.
pub const EXEC_SYNC_BYTES_MAX: usize = 16 * MIB;
/// Bytes kept of the outputs of all commands that `ExecSync` runs, while they run. More: the rest is read and dropped.
pub const EXEC_OUTPUTS_BYTES_MAX: usize = 4 * EXEC_SYNC_BYTES_MAX;
/// How long the outputs of a program that has exited are read while another process holds them open. Later: what came is used.
pub const PROGRAM_DRAIN_TIME: Duration = Duration::from_millis(500);
/// Bytes of outputs read before other tasks have a turn.
pub const OUTPUT_TURN_BYTES: usize = 64 * KIB;

/// How long the process that makes a pod's user namespace may take. Longer: it is killed, and the sandbox fails.
pub const USER_NAMESPACE_TIME: Duration = Duration::from_secs(10);
/// Size of a pod's `/dev/shm` (containerd, CRI-O). Full: writes to it fail in the pod.
pub const POD_SHM_BYTES: usize = 64 * MIB;

/// Events that a subscriber has not taken yet. Full: its stream ends, and it lists everything again.
pub const RUNTIME_EVENTS_MAX: usize = 1024;
/// Subscribers of events: the agent, and clients of the CRI server. Full: a further one is refused.
pub const RUNTIME_SUBSCRIBERS_MAX: usize = 16;
/// How long a container's end is awaited after SIGKILL. Later: the stop counts as failed and is retried by the caller.
pub const KILL_TIME: Duration = Duration::from_secs(30);
/// How often SIGKILL is sent within that time: an OCI runtime may fail, and a monitor may have been killed.
pub const KILL_TRIES: u32 = 30;
/// Least time between two readings of a counter of CPU time that make a rate. Less: the last rate is given.
pub const CPU_RATE_TIME_MIN: Duration = Duration::from_secs(1);
/// Bytes of a cgroup's file.
pub const CGROUP_STAT_BYTES_MAX: usize = 64 * KIB;
/// Processes of a container whose open files the CRI's metrics count. More: those of the rest are not counted.
pub const METRICS_PROCESSES_MAX: usize = 64;
/// Open files of a container that the CRI's metrics count. More: the rest is not counted.
pub const METRICS_FILES_MAX: usize = 1024;
/// Names read in a directory of CDI specifications. More: the rest is passed over.
pub const CDI_FILES_MAX: usize = 256;
/// Longest text of a command that `ExecSync` runs, its arguments included (Linux: a quarter of the stack's limit). More: it is refused.
pub const EXEC_COMMAND_BYTES_MAX: usize = MIB;
/// Bytes of a container's runtime-spec that a verbose `ContainerStatus` shows. More: it shows none.
pub const SHOWN_SPEC_BYTES_MAX: usize = MIB;
/// Commands that `ExecSync` runs at once, each of which has a keeper, a process: each pod has a permit of its own,
/// whatever hooks and probes of others do, and a share of the common ones. Full: the next one waits, within its time.
pub const EXEC_SYNC: Share = Share { own: PODS_IN_HAND_MAX, common: 40 };
/// Calls that wait for a container's monitor at once: to be replaced, or to open its log again.
/// Each has a thread. Full: the next one waits.
pub const MONITOR_WAITS_MAX: usize = 16;
/// Pause before a container whose monitor was killed, and that could not get a new one, is looked at again; it doubles.
pub const ADOPT_RETRY_MIN: Duration = Duration::from_secs(1);
/// The longest one.
pub const ADOPT_RETRY_MAX: Duration = Duration::from_mins(1);
/// How often all containers are looked at while inotify fails.
pub const WATCH_RETRY_PERIOD: Duration = Duration::from_secs(10);
/// How long the kernel may take from the event that a lock's file was closed to the end of the lock.
pub const LOCK_RELEASE_TIME: Duration = Duration::from_millis(200);
/// How long what the OCI runtime has of an ended container stays, where the kernel has ended all its processes: a container that is started
/// in its place comes first. Of an agent that is killed meanwhile the next start removes it.
pub const CLEAN_UP_PAUSE: Duration = Duration::from_secs(1);
/// How long a first process is waited for that was killed without the OCI runtime. Later: it counts as running, and is tried again.
pub const FORCED_END_TIME: Duration = Duration::from_secs(1);
/// Bytes of a container's runtime-spec that is read again: to update it before its start, and for each command in it. More: the update, or the
/// command, is refused.
pub const BUNDLE_SPEC_BYTES_MAX: usize = 16 * MIB;
/// Bytes of the runtime-spec of a pod's first process. More: its cgroup is not known.
pub const PAUSE_SPEC_BYTES_MAX: usize = MIB;
/// How long the monitor of a pod's first process is waited for before its directory is removed. Later: the stop fails, and is retried.
pub const PAUSE_END_TIME: Duration = Duration::from_secs(5);
/// Pause before the removal of a half-made sandbox or container that failed at the start is tried again; it doubles.
pub const REMOVAL_RETRY_MIN: Duration = Duration::from_secs(5);
/// The longest one.
pub const REMOVAL_RETRY_MAX: Duration = Duration::from_mins(5);
/// Containers that are put into their states at once at the start. Full: the next one waits.
pub const RECOVERIES_AT_ONCE_MAX: usize = 16;
/// How often the end of a half-made container's monitor is looked for at the start.
pub const MONITOR_END_PERIOD: Duration = Duration::from_millis(20);
/// How often what works for a half-made container or sandbox is killed at the start, as long as there is some. After the last time: it
/// cannot exit, as for a disk that does not answer, and the start goes on.
pub const MAKERS_KILLS_MAX: usize = 100;
/// Bytes of a process's environment that are looked through for whom it works. More: the rest is not seen.
pub const PLUGIN_ENVIRONMENT_BYTES_MAX: usize = 64 * KIB;
