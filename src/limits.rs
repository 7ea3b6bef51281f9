//! Every bound in one place. Each says what happens when it is reached; const assertions hold the relations.

use std::time::Duration;

mod debug;
mod eviction;
mod gc;
mod handover;
mod k3s;
mod keep;
mod kube;
mod logs;
mod metrics;
mod nfs;
mod node;
mod node_api;
mod probe;
mod pulled;
mod rate;
mod resize;
mod service;
mod share;
mod shutdown;
mod source;
mod stream;
mod streaming;
mod tls;
mod why;

pub use debug::*;
pub use eviction::*;
pub use gc::*;
pub use handover::*;
pub use k3s::*;
pub use keep::*;
pub use kube::*;
pub use logs::*;
pub use metrics::*;
pub use nfs::*;
pub use node::*;
pub use node_api::*;
pub use probe::*;
pub use pulled::*;
pub use rate::*;
pub use resize::*;
pub use service::*;
pub use share::*;
pub use shutdown::*;
pub use source::*;
pub use stream::*;
pub use streaming::*;
pub use tls::*;
pub use why::*;

/// One KiB.
pub const KIB: usize = 1024;
/// One MiB.
pub const MIB: usize = 1024 * KIB;

// ---- pods ------------------------------------------------------------------------------------------------

/// Pods one node runs (kubelet `maxPods`). Full: a further manifest's pod is refused with a message, what runs stays.
pub const PODS_MAX: usize = 110;

/// Pods in hand at once, those that end included: manifests may be replaced faster than pods end. Full: a new pod waits,
/// with a message, until one has ended.
pub const PODS_IN_HAND_MAX: usize = 2 * PODS_MAX;

/// Pods of an API server that are over and have something here: dead containers with their logs. Full: what the one has left that
/// ended first goes; its status stays with the server. They take no place of [`PODS_MAX`].
pub const ENDED_PODS_MAX: usize = 64;

/// Memory of these, as [`PODS_BYTES_MAX`] counts it. Full: as above.
pub const ENDED_PODS_BYTES_MAX: usize = MIB;
const _: () = assert!(PODS_MAX + ENDED_PODS_MAX < PODS_IN_HAND_MAX);

// ---- sync ------------------------------------------------------------------------------------------------

/// Longest crash-loop back-off (kubelet `MaxContainerBackOff`).
pub const CRASH_BACKOFF_MAX: Duration = Duration::from_mins(5);
/// How long a failed job of a pod waits before it is tried again (kubelet `backOffPeriod`).
pub const SYNC_RETRY: Duration = Duration::from_secs(10);
/// How long a start after the agent's own waits for the cluster's word on what the pod names.
pub const OBJECTS_PATIENCE: Duration = Duration::from_secs(5);
/// How long the next job of a pod waits after one that went well and changed nothing the runtime shows.
pub const UNCHANGED_RETRY: Duration = Duration::from_secs(1);
/// Containers of one pod whose probe results a plan looks at: all that it may have.
/// Full: the oldest result goes and counts as "no result yet".
pub const PROBED_CONTAINERS_MAX: usize = 2 * CONTAINERS_PER_LIST_MAX;
/// Entries of a back-off table: nine crashing containers in each of [`PODS_MAX`] pods.
/// Full: the entry updated longest ago goes; its container restarts once without a wait.
pub const BACKOFF_ENTRIES_MAX: usize = 1024;
/// Bytes of one back-off entry: key, last update and current back-off.
pub const BACKOFF_ENTRY_BYTES: usize = 16;
/// First wait before a crashed container restarts, and after a failed image pull (kubelet `backOffPeriod`).
pub const BACKOFF_INITIAL: Duration = Duration::from_secs(10);
/// Longest wait between two pulls of an image (kubelet `MaxImageBackOff`).
pub const IMAGE_BACKOFF_MAX: Duration = Duration::from_mins(5);
/// A container that ran for longer than this starts its back-off anew, whatever the longest wait is.
pub const BACKOFF_RESET: Duration = Duration::from_mins(10);

/// Containers of one pod that are stopped at the same time. Full: the next waits until one has stopped; those
/// that others wait for come first.
pub const STOPS_AT_ONCE_MAX: usize = 64;
/// Least time between the stop signal and SIGKILL, in seconds (kubelet `minimumGracePeriodInSeconds`).
pub const GRACE_SECONDS_MIN: i64 = 2;
/// Least grace period that a pod is given that is to end sooner than it asks for, in seconds (`calculateEffectiveGracePeriod`).
pub const OVERRIDE_GRACE_SECONDS_MIN: i64 = 1;
/// How late the kill of an evicted pod may be before an event tells it (`killPodNow`).
pub const KILL_PATIENCE_MIN: Duration = Duration::from_secs(10);
/// Names read in a container's log directory to find its restart count. More: the rest is not looked at.
pub const LOG_NAMES_READ_MAX: usize = 4096;
/// Links to container logs looked at when a pod's logs are removed. More: the rest may stay as links to nothing.
pub const LOG_LINKS_READ_MAX: usize = 16 * KIB;
/// Bytes read of the node's own hosts file for pods on its network. More: the rest is left out.
pub const HOSTS_FILE_BYTES_MAX: usize = 64 * KIB;
/// Results one sync keeps: every container and sandbox of a pod fits. Full: a further one is logged only.
pub const SYNC_RESULTS_MAX: usize = 1024;

const _: () = assert!(BACKOFF_ENTRIES_MAX >= 9 * PODS_MAX);

/// Containers of all pods of which it is kept why they did not start (kubelet `maxReasonCacheEntries`).
/// Full: a further one's reason is not kept; its container is shown as being created.
pub const START_FAILURES_MAX: usize = 1000;
/// Bytes of such a reason's sentence. Longer: cut.
pub const START_FAILURE_BYTES_MAX: usize = KIB;

// ---- grpc and cri ----------------------------------------------------------------------------------------

/// Calls running at once on the connection. Full: a further call waits, within its deadline.
pub const GRPC_CALLS_MAX: usize = 1280;
/// Of these, stops, which take a grace period, or minutes where the runtime hangs. Each pod may have one whatever the others'
/// containers do, and a share of the common ones. Full: a further one waits for its turn.
pub const CRI_STOPS: Share = Share { own: PODS_IN_HAND_MAX, common: 80 };
/// Of these, pulls, which have no deadline (`PULL_TURN`), divided as the stops are. Full: a further one waits for its turn.
pub const CRI_PULLS: Share = Share { own: PODS_IN_HAND_MAX, common: CRI_PULLS_AT_ONCE_MAX };
/// The most pulls at once that may be configured (`maxParallelImagePulls`).
pub const CRI_PULLS_AT_ONCE_MAX: usize = 16;
/// What waits for turns of one kind (`turns`): all containers that there may be, those that end included. Full: a further one
/// fails, as if the runtime were away, and is tried again as it would be then.
pub const TURNS_WAITING_MAX: usize = 4096;
const _: () = assert!(TURNS_WAITING_MAX > 2 * (PODS_BYTES_MAX / CONTAINER_BYTES) + 2 * PODS_IN_HAND_MAX);
// Looks and short calls always find room beside what makes sandboxes, starts containers and runs commands in them.
const _: () = assert!(
    CRI_STOPS.most()
        + CRI_PULLS.most()
        + STARTS_AT_ONCE_MAX
        + STARTS_OVERDUE_MAX
        + PROBES_AT_ONCE_MAX
        + HOOKS_EXEC.most()
        < GRPC_CALLS_MAX
);
/// Bytes of one encoded request. Over: the call fails before anything is sent.
pub const GRPC_REQUEST_BYTES_MAX: usize = 4 * MIB;
/// Bytes of one answer that is kept whole (lists and `ExecSync` are not). Over: the call fails and is reset.
/// The kubelet takes 16 MiB; decoded messages may need ten times their bytes, so that is too much here.
pub const GRPC_ANSWER_BYTES_MAX: usize = MIB;
/// Bytes of one item of a list. Over: skipped and counted in a list of everything, an error in a pod's own list.
/// The API allows 256 KiB of annotations.
pub const CRI_ITEM_BYTES_MAX: usize = 512 * KIB;
/// Bytes of an error status' message. Over: cut.
pub const GRPC_STATUS_MESSAGE_BYTES_MAX: usize = 4 * KIB;
/// Bytes of one answer's headers or trailers (error messages stand there); announced to the server, and grpc-go resets a
/// call whose headers are larger. Over, by a server that ignores it: the fields that do not fit are dropped; far over:
/// the connection ends, and the next call makes another one.
pub const GRPC_HEADER_BYTES_MAX: u32 = 64 * 1024;
/// Bytes of one HTTP/2 frame (the protocol's minimum).
pub const GRPC_FRAME_BYTES_MAX: u32 = 16 * 1024;
/// Unread bytes of one call. Full: the server waits with this call.
pub const GRPC_WINDOW_STREAM_BYTES: u32 = 64 * 1024;
/// Unread bytes of all calls. Full: the server waits with all calls.
pub const GRPC_WINDOW_CONNECTION_BYTES: u32 = 1024 * 1024;
/// Messages that wait to be sent in one bidirectional call. Full: sending waits.
pub const GRPC_QUEUE_MAX: usize = 4;
/// A status message of the kept length fits into the trailers, even with every byte escaped.
const _: () = assert!(3 * GRPC_STATUS_MESSAGE_BYTES_MAX < GRPC_HEADER_BYTES_MAX as usize);
/// Streams that nobody reads may fill their windows and still leave the other calls room.
const _: () = assert!(GRPC_WINDOW_CONNECTION_BYTES >= 8 * GRPC_WINDOW_STREAM_BYTES);

/// Bytes of an id in the runtime. Over: the item is skipped, a status is refused.
pub const CRI_ID_BYTES_MAX: usize = KIB;
/// Bytes of a name, reason, image or address the runtime reports. Over: cut.
pub const CRI_TEXT_BYTES_MAX: usize = KIB;
/// Bytes of a message the runtime reports (the kubelet's `MaxContainerTerminationMessageLength`). Over: cut.
pub const CRI_MESSAGE_BYTES_MAX: usize = 4 * KIB;
/// Bytes of a JSON annotation (preStop handler, ports). Over: counts as absent, because half of it is no JSON.
pub const CRI_JSON_BYTES_MAX: usize = 64 * KIB;
/// Entries of a list within one reported object (tags, addresses, groups, conditions). Over: the rest is dropped.
pub const CRI_ENTRIES_MAX: usize = 256;

/// Bytes of a log's end that become a termination message (kubelet `MaxContainerTerminationMessageLogLength`).
pub const TERMINATION_LOG_BYTES_MAX: usize = 2 * KIB;
/// Lines of a log's end that become a termination message (kubelet `MaxContainerTerminationMessageLogLines`).
pub const TERMINATION_LOG_LINES_MAX: usize = 80;
/// Bytes read of a log's end to find them. Longer lines: fewer of them are shown.
pub const TERMINATION_LOG_BYTES_READ: u64 = 64 * 1024;
/// Bytes of a Unix socket's path (`sun_path` less its end mark). Over: refused with a message.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;
/// Bytes read of crictl's settings. Over: the rest is not looked at.
pub const CRICTL_CONFIG_BYTES_MAX: usize = 64 * KIB;

/// Kept bytes of each output of an `ExecSync`. Full: the rest is cut.
pub const EXEC_OUTPUT_BYTES_MAX: usize = 16 * KIB;

// ---- volumes ---------------------------------------------------------------------------------------------

/// Bytes of the mount table that are read before a pod's directory is removed. Longer: nothing is removed.
pub const MOUNTINFO_BYTES_MAX: usize = 4 * MIB;
/// Links that are followed to find what a path lies on, or where one of `/logs/` leads (the kernel's `MAXSYMLINKS`). More: it is
/// taken to lie where the last one lies; it cannot be shown.
pub const LINKS_FOLLOWED_MAX: usize = 40;

// ---- user namespaces -------------------------------------------------------------------------------------

/// Pods with users of their own (`hostUsers: false`). Full: a further one waits, with a message, until one is gone.
pub const USER_NAMESPACES_MAX: u32 = 2 * 110;
const _: () = assert!(USER_NAMESPACES_MAX as usize == PODS_IN_HAND_MAX);
// Ids are 32 bits wide.
const _: () = assert!(((USER_NAMESPACES_MAX + 1) as u64) << 16 <= u32::MAX as u64);
/// Directories of pods that are looked at for the users they have. More: a pod with users of its own waits, with a message.
pub const POD_DIRS_READ_MAX: usize = 4 * KIB;
/// Bytes read of such a file; the kubelet's have some 150. Longer: it counts as damaged.
pub const USERNS_FILE_BYTES_MAX: usize = 4096;

// ---- images ----------------------------------------------------------------------------------------------

/// Pulls at the same time (kubelet `serializeImagePulls`). Full: a further pull waits; an image that is there is
/// not held up.
pub const PULLS_AT_ONCE: usize = 1;
/// How long one pull keeps the others waiting. Longer: it goes on, and the next one begins beside it, so that one
/// registry that hangs does not hold up every pod.
pub const PULL_TURN: Duration = Duration::from_mins(1);
/// Image pulls at once with `serializeImagePulls: false` and no `maxParallelImagePulls` (the kubelet: any number). Full:
/// further ones wait for their turn.
pub const PULLS_AT_ONCE_MAX: usize = 4;
/// Failed pulls whose message is kept for the back-off's. Full: the oldest goes; its back-off shows no cause.
pub const PULL_MESSAGES_MAX: usize = 128;
/// Bytes of such a message. Longer: cut.
pub const PULL_MESSAGE_BYTES_MAX: usize = 1024;

/// Bytes of the node's own logins (`config.json` in the state directory). Larger: none of them is used, and it is said.
pub const NODE_LOGINS_BYTES_MAX: usize = 256 * KIB;
/// Logins that are tried for one pull, those of the pod's pull secrets first. More: the rest is not tried.
pub const PULL_LOGINS_MAX: usize = 8;

/// Image archives looked at in one directory. Full: those behind them in name order are named in one message and left.
pub const IMAGE_ARCHIVES_MAX: usize = 256;
/// Entries of one image archive. More: it is refused.
pub const IMAGE_ARCHIVE_ENTRIES_MAX: usize = 4096;
/// Bytes of a name in an image archive, and of an extended header. Longer: the archive is refused.
pub const IMAGE_ARCHIVE_NAME_BYTES_MAX: usize = 4 * KIB;
/// Images with a name in one archive. More: it is refused.
pub const IMAGES_PER_ARCHIVE_MAX: usize = 64;
/// Layers of one image of an archive. More: it is refused. (overlayfs has 500 at most.)
pub const LAYERS_PER_IMAGE_MAX: usize = 512;
/// Bytes of an index, a manifest or a configuration in an archive. Longer: it is refused.
pub const IMAGE_JSON_BYTES_MAX: usize = 512 * KIB;
/// Bytes of a blob that are on their way to the runtime at once.
pub const IMAGE_CHUNK_BYTES: usize = 128 * KIB;
/// Quiet time after a change in the directory of image archives before it is looked at: copies take a while.
pub const IMAGE_ARCHIVE_QUIET: Duration = Duration::from_secs(2);
/// Wait before a look after one that could not be carried out: the directory cannot be read, the runtime is away.
pub const IMAGE_ARCHIVE_RETRY: Duration = Duration::from_secs(30);
/// How long the runtime may take to know an image by its name that was put into its store. Longer: it is left to find it.
pub const IMAGE_KNOWN_TIME: Duration = Duration::from_secs(10);
/// Records of imported images that are looked through. More: the rest of them counts as not imported, and is again.
pub const IMAGE_RECORDS_MAX: usize = 4096;
/// Bytes of one image record in the runtime's list. Longer: passed over.
pub const IMAGE_RECORD_BYTES_MAX: usize = 16 * KIB;
const _: () = assert!(IMAGE_CHUNK_BYTES < GRPC_REQUEST_BYTES_MAX);

/// Images whose first sight and last use is remembered. Full: a further one is not, and stays, until another is gone.
pub const IMAGES_SEEN_MAX: usize = 512;

// ---- render ----------------------------------------------------------------------------------------------

/// A container's annotation that holds a path or a word, read back. Longer: it counts as absent; no file has such
/// a path.
pub const ANNOTATION_PATH_BYTES_MAX: usize = 4 * KIB;

// ---- cgroups -----------------------------------------------------------------------------------------------

/// Directories below a pod's cgroup, one in another. Deeper: the pod's cgroup is left alone and an error told.
pub const CGROUP_DEPTH_MAX: usize = 16;
/// Directories of one pod in one hierarchy. More: the rest goes with the next try.
pub const CGROUPS_PER_POD_MAX: usize = 4096;
/// Entries read of one cgroup directory, its files included. More: the rest is found the next time.
pub const CGROUP_ENTRIES_MAX: usize = 16 * 1024;
/// Bytes read of one `cgroup.procs`, some 8,000 PIDs. More: the rest is killed with the next try.
pub const CGROUP_PROCS_BYTES_MAX: u64 = 64 * 1024;
/// Bytes read of a cgroup's setting. Longer: it is written again.
pub const CGROUP_FILE_BYTES_MAX: u64 = 4096;
/// Tries to remove a pod's cgroups when processes in them were killed; then with the pod's next sync.
pub const CGROUP_REMOVE_TRIES: u32 = 10;
/// The wait after the first of them; the second is twice as long, the third three times: 0.45 s in all.
pub const CGROUP_REMOVE_PAUSE: Duration = Duration::from_millis(10);

/// How long systemd may take to answer a call, and then for the call's job, as the kubelet's library waits (30 s). Longer: the
/// pod waits, and is tried with its next sync. Without an answer whoever waited behind it is told so too, and keeps nobody
/// waiting again; a job that is late is its unit's own.
pub const SYSTEMD_CALL_TIME: Duration = Duration::from_secs(30);
/// Bytes of one message of systemd's: signals about units that are none of ours have a few thousand. Longer: the connection
/// is given up, and the call tried with the pod's next sync.
pub const SYSTEMD_MESSAGE_BYTES_MAX: usize = 256 * KIB;
/// Bytes of the line with which it accepts a connection. Longer: it is no D-Bus.
pub const SYSTEMD_LINE_BYTES_MAX: u64 = 128;

// ---- status and store ------------------------------------------------------------------------------------

/// Pods taken over from another agent that are remembered. Full: a further one is not remembered, and is ours only
/// as long as a manifest names it.
pub const ADOPTED_MAX: usize = 4 * PODS_MAX;
/// Bytes of the identity file. Larger: damaged.
pub const IDENTITY_FILE_BYTES_MAX: usize = 64 * KIB;
/// How often the state directory's lock is tried at start. More: another agent runs.
pub const LOCK_TRIES: u32 = 11;
/// How long to wait between two of these tries.
pub const LOCK_RETRY: Duration = Duration::from_millis(100);
// A UID is 36 bytes or less where anyone makes them; the longest list fits with room for the name.
const _: () = assert!(ADOPTED_MAX * 64 + 512 <= IDENTITY_FILE_BYTES_MAX);

/// Memory for the pods' statuses unless configured (`--status-store-bytes`): an ordinary pod's record has a kilobyte.
/// Full: messages are cut, then records bared to what is necessary, those of ended pods first
/// (`store::statuses`).
pub const STATUS_STORE_BYTES: usize = 2 * MIB;
/// The least that may be configured: the statuses of all pods fit when they are cut to what is necessary.
pub const STATUS_STORE_BYTES_MIN: usize = MIB;
/// The most that may be configured.
pub const STATUS_STORE_BYTES_MAX: usize = 16 * MIB;
/// What a record counts beside its bytes, for its place in the table.
pub const STATUS_ENTRY_BYTES: usize = 128;
/// Bytes of a record that is cut to what is necessary, with [`STATUS_ENTRY_BYTES`] and without its containers.
pub const STATUS_BARE_POD_BYTES: usize = 768;
/// Bytes of one container in it.
pub const STATUS_BARE_CONTAINER_BYTES: usize = 352;
/// Bytes of a message in a status that is cut. Longer: cut.
pub const STATUS_MESSAGE_BYTES_CUT: usize = 128;
/// Bytes of a reason in a status that is cut to what is necessary. Longer: cut.
pub const STATUS_REASON_BYTES_CUT: usize = 48;
/// Bytes of a container's id, with the runtime's name before it, in a status that is cut to what is necessary. Longer:
/// left out. (Runtimes' ids have 64 digits.)
pub const STATUS_ID_BYTES_CUT: usize = 96;
/// Pods that are gone and remembered as gone, for readers who ask what changed. Full: the oldest goes; who asks for
/// longer ago reads everything.
pub const STATUS_GONE_MAX: usize = 128;
// Every container of a manifest was paid for in its cost, so there are only so many, and those of `smolet debug`.
const _: () = assert!(
    (PODS_MAX + ENDED_PODS_MAX) * STATUS_BARE_POD_BYTES
        + ((PODS_BYTES_MAX + ENDED_PODS_BYTES_MAX) / CONTAINER_BYTES + DEBUGGERS_MAX)
            * STATUS_BARE_CONTAINER_BYTES
        <= STATUS_STORE_BYTES_MIN
);
const _: () =
    assert!(STATUS_STORE_BYTES_MIN <= STATUS_STORE_BYTES && STATUS_STORE_BYTES <= STATUS_STORE_BYTES_MAX);

/// Panics while one pod or manifest file was handled, after which it is set aside.
pub const PANICS_TO_SET_ASIDE: u32 = 2;
/// Lives of the agent on end that ended in the work on the disk for one pod without a panic, none of which did work for it to its end.
pub const CUT_OFF_TO_SET_ASIDE: u32 = 3;
/// Such works remembered. More: others are forgotten at the next start.
pub const CUT_OFF_KEPT_MAX: usize = 64;
/// Bytes of one. Longer: it counts for nothing, and goes.
pub const CUT_OFF_BYTES_MAX: usize = 8 * 1024;
/// Panics remembered. More: the oldest are forgotten at the next start.
pub const PANICS_KEPT_MAX: usize = 64;
/// Bytes of their list. Full: a further panic is not written down until the next start cuts the list.
pub const PANICS_FILE_BYTES_MAX: u64 = 512 * 1024;
// A path has at most 4096 bytes.
const _: () = assert!(PANICS_KEPT_MAX as u64 * (5 * 1024) < PANICS_FILE_BYTES_MAX);

/// How long a change waits for others before the checkpoint is written.
pub const CHECKPOINT_SETTLE: Duration = Duration::from_secs(1);
/// Least time between two writes of the checkpoint, because flash wears out; a removal that needs one does not wait.
pub const CHECKPOINT_PERIOD: Duration = Duration::from_secs(10);
/// While an active deadline runs, its age is written each such part of the shortest one, though nothing changes.
pub const CHECKPOINT_AGES_SHARE: u32 = 16;
/// But at most so often.
pub const CHECKPOINT_AGES_PERIOD_MIN: Duration = Duration::from_mins(1);
/// How long the agent's end waits for the last write. Longer: it ends without, and the next start goes by the one
/// before.
pub const CHECKPOINT_END_PATIENCE: Duration = Duration::from_secs(5);
/// Pods in the checkpoint: those that are wanted, those that end, and those that nobody knows any more. Full: the
/// rest is left out; the runtime still knows them.
pub const CHECKPOINT_PODS_MAX: usize = 4 * PODS_MAX;
/// Bytes of an id, a name or an image in the checkpoint. Longer: left out.
pub const CHECKPOINT_TEXT_BYTES_MAX: usize = KIB;
/// Bytes of the checkpoint. Larger: damaged.
pub const CHECKPOINT_BYTES_MAX: usize = STATUS_STORE_BYTES_MAX + 4 * MIB;
/// The highest restart count that is believed of a checkpoint: one restart a second for 34 years. Higher: cut down.
pub const RESTORED_RESTART_COUNT_MAX: i32 = 1 << 30;
const _: () = assert!(
    STATUS_STORE_BYTES_MAX
        + CHECKPOINT_PODS_MAX * (3 * CHECKPOINT_TEXT_BYTES_MAX + 64)
        + DEBUGGERS_MAX * (DEBUGGER_BYTES_MAX + 4 * DEBUGGER_WORDS_MAX + KIB)
        + 2 * BACKOFF_ENTRIES_MAX * 40
        + IMAGES_SEEN_MAX * (CHECKPOINT_TEXT_BYTES_MAX + 40)
        + KEPT_SIZES_MAX * (CHECKPOINT_TEXT_BYTES_MAX + 48)
        + KIB
        <= CHECKPOINT_BYTES_MAX
);

/// Bytes of termination messages one pod's status shows, shared evenly by its containers (kubelet
/// `MaxPodTerminationMessageLogLength`). Full: each message is cut to its share.
pub const TERMINATION_MESSAGES_BYTES_MAX: usize = 12 * KIB;

// ---- configuration ---------------------------------------------------------------------------------------

/// Bytes of a KubeletConfiguration file. Larger: refused.
pub const CONFIG_FILE_BYTES_MAX: usize = 256 * KIB;
/// Bytes of the node's resolver configuration (the kubelet reads 10 MiB). Longer: the rest is not read.
pub const RESOLV_CONF_BYTES_MAX: usize = MIB;
/// Patterns in `allowedUnsafeSysctls`. More: refused.
pub const UNSAFE_SYSCTLS_MAX: usize = 64;
/// Name servers in `clusterDNS`. More: refused.
pub const DNS_SERVERS_MAX: usize = 16;

// ---- node loop -------------------------------------------------------------------------------------------

/// Events waiting for the loop. Full: the tasks that bring more wait; one of the runtime's own is dropped and a relist
/// requested.
pub const EVENTS_QUEUED_MAX: usize = 128;
/// Bytes of a waiting event, without what it points to.
pub const EVENT_QUEUED_BYTES_MAX: usize = 512;
/// Pods whose sandbox is made and whose containers are started at once, the most: how many they are is chosen by how long
/// the runtime's calls take (`sync::turns`). Full: further pods wait their turn; pulls, stops and paths that may not answer
/// take none. 30 pods by the raw calls on two cores (`make bench`): 1 at once 5.7 s, 2 3.3, 4 2.9, 8 3.1, 30 2.9.
/// What starts at once is in memory at once, and 110 pods that start so have to leave the promised resident size behind.
pub const STARTS_AT_ONCE_MAX: usize = 12;
/// The same, the least.
pub const STARTS_AT_ONCE_MIN: usize = 2;
/// A call of a start that takes so many times as long as usual gives its turn back, and is waited for without one.
pub const START_PATIENCE_FACTOR: u32 = 4;
/// The least of that time, and what it is before the runtime has shown anything.
pub const START_PATIENCE_MIN: Duration = Duration::from_secs(2);
/// The most of it.
pub const START_PATIENCE_MAX: Duration = Duration::from_secs(30);
/// How long files of a container's may take in its turn. Longer: it gives its turn back meanwhile, as a call does.
pub const START_FILES_PATIENCE: Duration = Duration::from_secs(1);
/// Calls that gave their turn back and have not ended. Full: a further one keeps its turn until one of them ends.
pub const STARTS_OVERDUE_MAX: usize = 64;
/// Blocking jobs (disk, mounts) at once. Full: further ones wait.
pub const BLOCKING_JOBS_MAX: usize = 4;
/// Paths that are not smolet's own (those of hostPath volumes, what is in a volume, logs) which threads are at: one of each
/// pod's volumes, one of each file system or server else, and of each server one that mounts and one that unmounts. A thread
/// stays for as long as the kernel does not answer. Full: further ones wait; when all hang, whoever wants one more gets an
/// error at once, and tries again.
pub const OUTSIDE_JOBS_MAX: usize = OUTSIDE_OF_PODS.most() + IN_PODS_JOBS_MIN + OUTSIDE_OF_NODE_MAX;
/// Of those, how many pods have: each of so many has one whatever the others' paths do.
pub const OUTSIDE_OF_PODS: Share = Share { own: 24, common: 4 };
/// Of those, kept for what is in the pods' directories, and for unmounting it.
pub const IN_PODS_JOBS_MIN: usize = 4;
/// Of those, kept for what is no pod's: the node's hosts file and resolver configuration, its system logs.
pub const OUTSIDE_OF_NODE_MAX: usize = 4;
/// How long such a path may take, and a pod's earlier work. Longer: the pod waits with a message and is tried again; at a
/// path that hangs nothing more is begun meanwhile.
pub const OUTSIDE_PATIENCE: Duration = Duration::from_secs(10);
// By the next try it is known which path hangs: no try waits a second time.
const _: () = assert!(OUTSIDE_PATIENCE.as_millis() <= SYNC_RETRY.as_millis());
/// Bytes of a path that can hang: the kernel refuses longer ones at once (`PATH_MAX`).
const PATH_BYTES_MAX: usize = 4 * KIB;
/// How long a failed pull is shown as such before the status says that it waits for the next try.
pub const PULL_ERROR_SHOWN: Duration = Duration::from_secs(2);
/// Times a status is computed anew at once, each leaning on the one before. Not at rest then: the next change goes on.
pub const STATUS_PASSES_MAX: usize = 4;
/// Time between two looks at everything in the runtime when no events come (kubelet `plegRelistPeriod`).
pub const RELIST_PERIOD: Duration = Duration::from_secs(1);
/// The same while events come: it finds, and counts, what they missed (kubelet `eventedPlegRelistPeriod`: 300 s).
pub const RELIST_PERIOD_MAX: Duration = Duration::from_mins(1);
/// Looks at everything every second after a stream of events missed something and has not delivered again. Then as
/// seldom as with events, until something is missed again: on a quiet node none may come for days.
pub const DOUBTED_LOOKS: u32 = 60;
/// Longest wait between two attempts to get a stream of events.
pub const EVENTS_RETRY_MAX: Duration = Duration::from_mins(1);
/// The same while the runtime has no service of events; another version of it may come.
pub const EVENTS_UNSUPPORTED_RETRY: Duration = Duration::from_mins(5);
/// Misses without a single event after which a runtime is looked at as one that has none (CRI-O as it is shipped), until
/// an event comes.
pub const UNTOLD_MAX: u32 = 3;
/// How long after a relist an event may come about what the relist shows. Later, or never: the change counts as missed.
pub const EVENT_LATE_MAX: Duration = Duration::from_secs(1);
/// First wait before the status of what an event says has ended is looked at.
pub const CHANGE_LOOK_FIRST: Duration = Duration::from_millis(5);
/// A later wait is this part of the time that has passed.
pub const CHANGE_LOOK_SHARE: u32 = 4;
/// How long it is looked at in all. Longer: the pod is read as it is, and the next relist looks again.
pub const CHANGE_LOOK_TIME: Duration = Duration::from_secs(2);
/// Changes of all pods that are awaited so at once. Full: the pod is read at once, and a relist requested.
pub const CHANGES_AWAITED_MAX: usize = 256;
/// Events about ids that are not known (yet) which are remembered. Full: the oldest is forgotten; a read or the next
/// relist shows the state all the same.
pub const STRANGERS_MAX: usize = 64;
/// How long something that began to run may be unknown. Longer: everything is looked at, for a call of ours that was cut
/// off may have made it.
pub const STRANGER_PATIENCE: Duration = Duration::from_secs(5);
const _: () = assert!(RELIST_PERIOD.as_millis() < RELIST_PERIOD_MAX.as_millis());
const _: () = assert!(CHANGE_LOOK_FIRST.as_millis() < CHANGE_LOOK_TIME.as_millis());
/// Longest wait between two looks while the runtime does not answer.
pub const RELIST_RETRY_MAX: Duration = Duration::from_secs(10);
/// How long `smolet run --once` waits for every pod. Longer: what does not run by then has failed.
pub const ONCE_PATIENCE: Duration = Duration::from_mins(5);
/// How long `--once` wants everything to stay as it is before it ends: a container that starts and fails at once has
/// not run.
pub const ONCE_SETTLE: Duration = Duration::from_secs(2);
/// How long a sandbox waits whose name the runtime still holds for a call that was cut off.
pub const NAME_RESERVED_RETRY: Duration = Duration::from_secs(1);
/// Pods whose leftovers on disk are removed at a start. More: the rest goes at the next start.
pub const ORPHAN_DIRS_MAX: usize = 1024;
/// Pods that run without a valid manifest and were told of, so that each is told once. Full: told again later.
pub const HELD_PODS_TOLD_MAX: usize = 512;
/// Pods in the runtime a relist keeps besides the adopted ones: those in hand, and what this node made and nothing wants any
/// more; after the agent's start all of them, for nothing is wanted yet. Full: a further one is left where it is until others are
/// gone.
pub const RELIST_ORPHANS_MAX: usize = PODS_IN_HAND_MAX;
/// Pods a relist keeps: those and the adopted ones.
pub const RELIST_PODS_MAX: usize = RELIST_ORPHANS_MAX + ADOPTED_MAX;
/// Bytes of a pod's namespace, name and UID (63, 253 and 36 where Kubernetes makes them). Longer: not a pod of ours,
/// whatever its annotation says.
pub const POD_KEY_BYTES_MAX: usize = 512;
/// Memory one pod of a relist takes: its key and what holds it.
pub const RELIST_POD_BYTES_MAX: usize = POD_KEY_BYTES_MAX + 256;
/// Entries of the ring of decisions and errors. Full: of the pod with the most, the one touched longest ago goes.
pub const EVENTS_MAX: usize = 512;
/// Bytes of one entry's message. Longer: cut.
pub const EVENT_MESSAGE_BYTES_MAX: usize = 512;
/// Dead containers, and sandboxes, of one pod that are read in full. More: the oldest are left out until they
/// are removed.
pub const CONTAINERS_READ_MAX: usize = 64;

// ---- local server ----------------------------------------------------------------------------------------

/// Connections at once. Full: further ones wait in the kernel's queue.
pub const SERVER_CONNECTIONS_MAX: usize = 8;
/// Connections in the kernel's queue. Full: connecting waits.
pub const SERVER_BACKLOG: i32 = 128;
/// Bytes of a request's head. Longer: refused.
pub const SERVER_BUFFER_BYTES: usize = 16 * KIB;
/// Bytes of an answer of which every connection may hold one. Longer: one is held at a time, the others wait for
/// their turn and are made anew then.
pub const SERVER_ANSWER_BYTES: usize = 128 * KIB;
/// Bytes of a list of pods after which the rest is another part, made when the client has taken this one.
pub const SERVER_PART_BYTES: usize = 16 * KIB;
/// How long one connection may last. Longer: closed.
pub const SERVER_CONNECTION_TIME: Duration = Duration::from_secs(30);
/// Bytes a command reads of the agent's answer. Longer: refused.
pub const ANSWER_BYTES_MAX: usize = 64 * MIB;
/// How long a command waits for the agent's answer. Longer: it says so and ends.
pub const ANSWER_PATIENCE: Duration = Duration::from_secs(10);

// ---- time ------------------------------------------------------------------------------------------------

/// How long any call to the runtime may take when it has no rule of its own (kubelet `runtimeRequestTimeout`).
pub const RUNTIME_REQUEST_TIMEOUT: Duration = Duration::from_mins(2);

/// How long the runtime's socket may take to accept a connection (kubelet `minConnectionTimeout`).
pub const GRPC_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Wait after a first failed connection (kubelet `baseBackoffDelay`); doubles with each further one.
pub const GRPC_BACKOFF_MIN: Duration = Duration::from_millis(100);
/// Longest wait between two attempts to connect (kubelet `maxBackoffDelay`).
pub const GRPC_BACKOFF_MAX: Duration = Duration::from_secs(3);
/// How long a runtime may take for its first answer before it counts as silent.
pub const ENDPOINT_CHECK_TIMEOUT: Duration = Duration::from_secs(10);
/// How often the manifest directory is looked at when inotify is silent (kubelet `fileCheckFrequency`).
pub const FILE_CHECK_FREQUENCY: Duration = Duration::from_secs(20);

/// How often a manifest directory is looked for that is not there or cannot be read.
pub const MANIFEST_DIR_RETRY: Duration = Duration::from_secs(5);

/// Quiet time after a change in the manifest directory before it is read: an editor's steps count as one.
pub const MANIFEST_DEBOUNCE: Duration = Duration::from_millis(100);

/// Time a changed file may be invalid, and a file away, before that counts: it may be half-written, or be replaced.
pub const MANIFEST_GRACE: Duration = Duration::from_millis(500);

/// Quiet time after which a file still open for writing is read all the same.
pub const MANIFEST_WRITE_QUIET: Duration = Duration::from_secs(2);

/// How long changes wait for the manifest directory to settle. Longer (a file that is written all the time): they
/// are told all the same, and removals wait.
pub const MANIFEST_UNSETTLED_MAX: Duration = Duration::from_secs(5);

// The most that pods, ordinary ones in every place, may take leaves room for what is made of them.
const _: () = assert!(PODS_MAX * 26 * KIB <= PODS_BYTES_MAX && MANIFEST_BYTES_MAX <= PODS_BYTES_MAX);
const _: () = assert!(MANIFEST_BYTES_MAX <= MANIFEST_TEXT_BYTES_MAX && POD_NODES_MAX <= MANIFEST_NODES_MAX);
const _: () =
    assert!(MANIFEST_FILES_MAX <= MANIFEST_DIR_ENTRIES_MAX && PROBLEMS_PER_FILE_MAX <= PROBLEMS_MAX);
const _: () = assert!(CONTAINERS_PER_LIST_MAX <= LIST_ITEMS_MAX && VOLUMES_PER_POD_MAX <= LIST_ITEMS_MAX);
const _: () = assert!(MANIFEST_DEBOUNCE.as_millis() < MANIFEST_GRACE.as_millis());
const _: () = assert!(MANIFEST_GRACE.as_millis() < MANIFEST_WRITE_QUIET.as_millis());
const _: () = assert!(MANIFEST_WRITE_QUIET.as_millis() < MANIFEST_UNSETTLED_MAX.as_millis());

// ---- memory ----------------------------------------------------------------------------------------------

/// A structure that is kept, with its limits: what `smolet top --self` and `/metrics` show a use beside.
#[derive(Debug)]
pub struct Bound {
    /// Its name there.
    pub name: &'static str,
    /// The most entries.
    pub entries_max: usize,
    /// The most bytes all of them take.
    pub bytes_max: usize,
}

impl Bound {
    const fn of(name: &'static str, entries_max: usize, entry_bytes_max: usize) -> Self {
        Self { name, entries_max, bytes_max: entries_max * entry_bytes_max }
    }
}

/// Everything that is kept; `node::show` measures them in this order.
pub static BOUNDS: [Bound; BOUNDED] = BOUNDS_TABLE;
/// How many there are.
pub const BOUNDED: usize = 22;

/// Memory in bytes of all that is kept, each structure full, with a status store of so many. It holds neither code, stacks
/// and what the allocator has not given back, nor what is on its way: one manifest being read, answers of the runtime being
/// decoded.
pub const fn memory_ceiling(status_store_bytes: usize) -> usize {
    let (mut sum, mut index) = (status_store_bytes, 0);
    while index < BOUNDED {
        sum += BOUNDS_TABLE[index].bytes_max;
        index += 1;
    }
    sum
}
const _: () = assert!(memory_ceiling(STATUS_STORE_BYTES) <= 16 * MIB);

const BOUNDS_TABLE: [Bound; BOUNDED] = [
    Bound { name: "manifests", entries_max: PODS_MAX, bytes_max: PODS_BYTES_MAX },
    // With the pods they are in, which are there once more.
    Bound {
        name: "debug_containers",
        entries_max: DEBUGGERS_MAX,
        bytes_max: DEBUGGERS_MAX * DEBUGGER_MEMORY_BYTES + DEBUGGED_PODS_BYTES_MAX,
    },
    // Those of the files, what was said last, and what is merged.
    Bound::of("manifest_problems", PROBLEMS_OF_FILES_MAX + 3 * PROBLEMS_MAX, PROBLEM_BYTES_MAX),
    Bound::of("events", EVENTS_MAX, EVENT_MESSAGE_BYTES_MAX + RELIST_POD_BYTES_MAX),
    Bound::of("resizes", RESIZES_NOTED_MAX, RESIZE_NOTE_BYTES),
    Bound::of("start_failures", START_FAILURES_MAX, START_FAILURE_BYTES_MAX + 128),
    Bound::of("container_backoff", BACKOFF_ENTRIES_MAX, BACKOFF_ENTRY_BYTES),
    Bound::of("image_backoff", BACKOFF_ENTRIES_MAX, BACKOFF_ENTRY_BYTES),
    Bound::of("pull_messages", PULL_MESSAGES_MAX, PULL_MESSAGE_BYTES_MAX + 32),
    Bound::of("images_seen", IMAGES_SEEN_MAX, CRI_TEXT_BYTES_MAX + 48),
    Bound::of("probers", PROBERS_MAX, PROBER_BYTES_MAX),
    Bound::of("probes_running", PROBES_AT_ONCE_MAX, PROBE_BYTES_MAX),
    // While one is made, the one before is still there.
    Bound::of("relist", 2 * RELIST_PODS_MAX, RELIST_POD_BYTES_MAX),
    Bound::of("former_pods", 2 * FORMER_PODS_MAX, FORMER_POD_BYTES_MAX),
    Bound {
        name: "adopted_pods",
        entries_max: ADOPTED_MAX,
        // Some of them by another UID too.
        bytes_max: ADOPTED_MAX * 128 + KEPT_UIDS_MAX * 192,
    },
    Bound::of("unknown_events", STRANGERS_MAX, CRI_ID_BYTES_MAX + 64),
    Bound::of("awaited_changes", CHANGES_AWAITED_MAX, CRI_ID_BYTES_MAX + 256),
    Bound::of("outside_paths", OUTSIDE_JOBS_MAX, PATH_BYTES_MAX),
    // The container's id is that of the relist.
    Bound::of("watched_logs", LOGS_WATCHED_MAX, LOG_PATH_BYTES_MAX + 256),
    // One of the runtime's own has two ids.
    Bound::of("loop_queue", EVENTS_QUEUED_MAX, EVENT_QUEUED_BYTES_MAX + 2 * CRI_ID_BYTES_MAX),
    Bound {
        name: "runtime_calls",
        entries_max: GRPC_CALLS_MAX,
        bytes_max: GRPC_WINDOW_CONNECTION_BYTES as usize,
    },
    Bound::of("socket_connections", SERVER_CONNECTIONS_MAX, SERVER_BUFFER_BYTES),
];
