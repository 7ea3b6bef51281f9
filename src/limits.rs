//! Every bound of the crate. Each doc comment says what happens at the bound; const assertions hold the relations between them.

use std::time::Duration;

mod choice;
mod cri_server;
mod debug;
mod device;
mod eviction;
mod flannel;
mod gc;
mod handover;
mod image_store;
mod k3s;
mod kube;
mod logs;
mod metrics;
mod monitor;
mod network_policy;
mod nfs;
mod node;
mod node_api;
mod oci;
mod offline;
mod probe;
mod pulled;
mod rate;
mod registry;
mod resize;
mod runtime;
mod service;
mod service_proxy;
mod share;
mod shutdown;
mod source;
mod stream;
mod streaming;
mod tls;
mod why;

pub use choice::*;
pub use cri_server::*;
pub use debug::*;
pub use device::*;
pub use eviction::*;
pub use flannel::*;
pub use gc::*;
pub use handover::*;
pub use image_store::*;
pub use k3s::*;
pub use kube::*;
pub use logs::*;
pub use metrics::*;
pub use monitor::*;
pub use network_policy::*;
pub use nfs::*;
pub use node::*;
pub use node_api::*;
pub use oci::*;
pub use offline::*;
pub use probe::*;
pub use pulled::*;
pub use rate::*;
pub use registry::*;
pub use resize::*;
pub use runtime::*;
pub use service::*;
pub use service_proxy::*;
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

/// Pods one node runs (kubelet `maxPods`). Full: the pod of a further manifest is refused with a message; running pods stay.
pub const PODS_MAX: usize = 110;

/// Pods that the agent manages at once, terminating ones included: manifests may be replaced faster than pods terminate. Full: a
/// new pod waits, with a message, until one has terminated.
pub const PODS_IN_HAND_MAX: usize = 2 * PODS_MAX;

/// Terminated pods of an API server that still have dead containers with logs on this node. Full: the containers and logs of the
/// pod that terminated first are removed; its status stays in the API server. They do not count for [`PODS_MAX`].
pub const ENDED_PODS_MAX: usize = 64;

/// Memory of the pods of [`ENDED_PODS_MAX`], as [`PODS_BYTES_MAX`] counts it. Full: as for [`ENDED_PODS_MAX`].
pub const ENDED_PODS_BYTES_MAX: usize = MIB;
const _: () = assert!(PODS_MAX + ENDED_PODS_MAX < PODS_IN_HAND_MAX);

// ---- sync ------------------------------------------------------------------------------------------------

/// Longest crash-loop back-off (kubelet `MaxContainerBackOff`).
pub const CRASH_BACKOFF_MAX: Duration = Duration::from_mins(5);
/// Wait before a failed sync of a pod is retried (kubelet `backOffPeriod`).
pub const SYNC_RETRY: Duration = Duration::from_secs(10);
/// How long the first pod start after the agent's own start waits for the ConfigMaps, Secrets and other objects that the pod
/// references.
pub const OBJECTS_PATIENCE: Duration = Duration::from_secs(5);
/// Wait before a pod's next sync after one that succeeded and changed nothing that the runtime reports.
pub const UNCHANGED_RETRY: Duration = Duration::from_secs(1);
/// Containers of one pod whose probe results a plan reads: all that a pod may have. Full: the oldest result is dropped and counts
/// as "no result yet".
pub const PROBED_CONTAINERS_MAX: usize = 2 * CONTAINERS_PER_LIST_MAX;
/// Entries of a back-off table: nine crashing containers in each of [`PODS_MAX`] pods. Full: the least recently updated entry is
/// dropped; its container restarts once without a wait.
pub const BACKOFF_ENTRIES_MAX: usize = 1024;
/// Bytes of one back-off entry: key, last update and current back-off.
pub const BACKOFF_ENTRY_BYTES: usize = 16;
/// First wait before a crashed container restarts, and after a failed image pull (kubelet `backOffPeriod`).
pub const BACKOFF_INITIAL: Duration = Duration::from_secs(10);
/// Longest wait between two pulls of an image (kubelet `MaxImageBackOff`).
pub const IMAGE_BACKOFF_MAX: Duration = Duration::from_mins(5);
/// A container that ran for longer than this resets its back-off, whatever the longest wait is.
pub const BACKOFF_RESET: Duration = Duration::from_mins(10);

/// Containers of one pod that are stopped at the same time. Full: the next waits until one has stopped; containers that others
/// depend on in the stop order come first.
pub const STOPS_AT_ONCE_MAX: usize = 64;
/// Least time between the stop signal and SIGKILL, in seconds (kubelet `minimumGracePeriodInSeconds`).
pub const GRACE_SECONDS_MIN: i64 = 2;
/// Least grace period of a pod that is killed with an override of its own, in seconds (`calculateEffectiveGracePeriod`).
pub const OVERRIDE_GRACE_SECONDS_MIN: i64 = 1;
/// How late the kill of an evicted pod may be before an event reports it (`killPodNow`).
pub const KILL_PATIENCE_MIN: Duration = Duration::from_secs(10);
/// Names read in a container's log directory to find its restart count. More: the rest is not read.
pub const LOG_NAMES_READ_MAX: usize = 4096;
/// Links to container logs read when a pod's logs are removed. More: the rest may stay as dangling links.
pub const LOG_LINKS_READ_MAX: usize = 16 * KIB;
/// Bytes read of the node's hosts file for pods with `hostNetwork`. More: the rest is left out.
pub const HOSTS_FILE_BYTES_MAX: usize = 64 * KIB;
/// Results of one sync: every container and sandbox of a pod fits. Full: a further one is only logged.
pub const SYNC_RESULTS_MAX: usize = 1024;

const _: () = assert!(BACKOFF_ENTRIES_MAX >= 9 * PODS_MAX);

/// Containers of all pods whose start failure is kept (kubelet `maxReasonCacheEntries`). Full: the reason of a further one is not
/// kept; its container is shown as `ContainerCreating`.
pub const START_FAILURES_MAX: usize = 1000;
/// Bytes of the message of a start failure. Longer: cut.
pub const START_FAILURE_BYTES_MAX: usize = KIB;

// ---- grpc and cri ----------------------------------------------------------------------------------------

/// Calls running at once on the connection. Full: a further call waits, within its deadline.
pub const GRPC_CALLS_MAX: usize = 1280;
/// Calls of [`GRPC_CALLS_MAX`] on the connection that stays, with the streams of events. More: they share a further one while they
/// last.
pub const GRPC_CONNECTION_CALLS: usize = 16;
/// `StopContainer` and `StopPodSandbox` calls among [`GRPC_CALLS_MAX`]; they take a grace period, or minutes when the runtime
/// hangs. Each pod has one of its own, and a share of the common ones. Full: a further call waits for a permit.
pub const CRI_STOPS: Share = Share { own: PODS_IN_HAND_MAX, common: 80 };
/// Image pulls among [`GRPC_CALLS_MAX`], which have no deadline (`PULL_TURN`), divided as the stops are. Full: a further pull
/// waits for a permit.
pub const CRI_PULLS: Share = Share { own: PODS_IN_HAND_MAX, common: CRI_PULLS_AT_ONCE_MAX };
/// The most pulls at once that may be configured (`maxParallelImagePulls`).
pub const CRI_PULLS_AT_ONCE_MAX: usize = 16;
/// Waiters for permits of one `fair_semaphore`: all containers that there may be, terminating ones included. Full: a further waiter
/// fails as if the runtime were not available, and is retried in the same way.
pub const PERMIT_WAITERS_MAX: usize = 4096;
const _: () = assert!(PERMIT_WAITERS_MAX > 2 * (PODS_BYTES_MAX / CONTAINER_BYTES) + 2 * PODS_IN_HAND_MAX);
// Lists, statuses and other short calls always have slots beside the calls that create sandboxes, start containers and exec.
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
/// Bytes of one response that is buffered whole (lists and `ExecSync` are not). Over: the call fails and is reset. The kubelet
/// takes 16 MiB; a decoded message may need ten times its bytes, which is too much here.
pub const GRPC_ANSWER_BYTES_MAX: usize = MIB;
/// Bytes of one item of a list. Over: skipped and counted in a list of everything; an error in the list of one pod. The API
/// allows 256 KiB of annotations.
pub const CRI_ITEM_BYTES_MAX: usize = 512 * KIB;
/// Bytes of an error status' message. Over: cut.
pub const GRPC_STATUS_MESSAGE_BYTES_MAX: usize = 4 * KIB;
/// Bytes of one response's headers or trailers, which hold error messages. Announced to the server: grpc-go resets a call whose
/// headers are larger. Over, from a server that ignores it: the fields that do not fit are dropped; far over: the connection is
/// closed, and the next call opens another one.
pub const GRPC_HEADER_BYTES_MAX: u32 = 64 * 1024;
/// Bytes of header fields that a server may have us remember between its answers, on either kind of connection (HPACK's dynamic
/// table): none. It would be dates and ids of requests, each in small pieces of memory between those that come and go, and a
/// page or a dozen stays for each.
pub const HTTP2_HEADER_TABLE_BYTES: u32 = 0;
/// Bytes of one HTTP/2 frame (the protocol's minimum).
pub const GRPC_FRAME_BYTES_MAX: u32 = 16 * 1024;
/// Flow-control window of one call. Full: the server pauses this call.
pub const GRPC_WINDOW_STREAM_BYTES: u32 = 64 * 1024;
/// Flow-control window of the connection. Full: the server pauses all calls.
pub const GRPC_WINDOW_CONNECTION_BYTES: u32 = 1024 * 1024;
/// Messages queued for sending in one bidirectional call. Full: sending waits.
pub const GRPC_QUEUE_MAX: usize = 4;
/// A status message of the kept length fits into the trailers, even with every byte escaped.
const _: () = assert!(3 * GRPC_STATUS_MESSAGE_BYTES_MAX < GRPC_HEADER_BYTES_MAX as usize);
/// Streams that are not read may fill their windows and still leave a window for the other calls.
const _: () = assert!(GRPC_WINDOW_CONNECTION_BYTES >= 8 * GRPC_WINDOW_STREAM_BYTES);

/// Bytes of an id in the runtime. Over: the item is skipped, a status is refused.
pub const CRI_ID_BYTES_MAX: usize = KIB;
/// Bytes of a name, reason, image or address the runtime reports. Over: cut.
pub const CRI_TEXT_BYTES_MAX: usize = KIB;
/// Bytes of a message the runtime reports (the kubelet's `MaxContainerTerminationMessageLength`). Over: cut.
pub const CRI_MESSAGE_BYTES_MAX: usize = 4 * KIB;
/// Bytes of a JSON annotation (preStop handler, ports). Over: counts as absent, because a truncated one cannot be parsed.
pub const CRI_JSON_BYTES_MAX: usize = 64 * KIB;
/// Entries of a list within one reported object (tags, addresses, groups, conditions). Over: the rest is dropped.
pub const CRI_ENTRIES_MAX: usize = 256;

/// Bytes of a log's end that become a termination message (kubelet `MaxContainerTerminationMessageLogLength`).
pub const TERMINATION_LOG_BYTES_MAX: usize = 2 * KIB;
/// Lines of a log's end that become a termination message (kubelet `MaxContainerTerminationMessageLogLines`).
pub const TERMINATION_LOG_LINES_MAX: usize = 80;
/// Bytes read of a log's end for a termination message. Longer lines: fewer of them are shown.
pub const TERMINATION_LOG_BYTES_READ: u64 = 64 * 1024;
/// Bytes of a Unix socket's path (`sun_path` without its NUL). Over: refused with a message.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;
/// Bytes read of crictl's configuration. Over: the rest is not read.
pub const CRICTL_CONFIG_BYTES_MAX: usize = 64 * KIB;

/// Kept bytes of each output of an `ExecSync`. Full: the rest is cut.
pub const EXEC_OUTPUT_BYTES_MAX: usize = 16 * KIB;

// ---- volumes ---------------------------------------------------------------------------------------------

/// Bytes of the mount table that are read before a pod's directory is removed. Longer: nothing is removed.
pub const MOUNTINFO_BYTES_MAX: usize = 4 * MIB;
/// Symbolic links followed to find the file system of a path, the target of a link below `/logs/`, or a path within a root that the
/// kernel does not resolve (the kernel's `MAXSYMLINKS`). More: the path counts as on the file system of the last link; under `/logs/`
/// it is not served; within a root it is `ELOOP`.
pub const LINKS_FOLLOWED_MAX: usize = 40;

// ---- user namespaces -------------------------------------------------------------------------------------

/// Pods with a user namespace (`hostUsers: false`). Full: a further one waits, with a message, until one is gone.
pub const USER_NAMESPACES_MAX: u32 = 2 * 110;
const _: () = assert!(USER_NAMESPACES_MAX as usize == PODS_IN_HAND_MAX);
// Ids are 32 bits wide.
const _: () = assert!(((USER_NAMESPACES_MAX + 1) as u64) << 16 <= u32::MAX as u64);
/// Pod directories read for their user namespace at a start. More: a pod with a user namespace waits, with a message.
pub const POD_DIRS_READ_MAX: usize = 4 * KIB;
/// Bytes read of a pod's user namespace file; the kubelet's have some 150. Longer: it counts as damaged.
pub const USERNS_FILE_BYTES_MAX: usize = 4096;

// ---- images ----------------------------------------------------------------------------------------------

/// Pulls at the same time (kubelet `serializeImagePulls`). Full: a further pull waits; a pod whose image is present does not.
pub const PULLS_AT_ONCE: usize = 1;
/// How long one pull keeps the others waiting. Longer: it continues and the next one starts beside it, so that one registry that
/// hangs does not hold up every pod.
pub const PULL_TURN: Duration = Duration::from_mins(1);
/// Image pulls at once with `serializeImagePulls: false` and no `maxParallelImagePulls` (the kubelet: any number). Full:
/// further ones wait for their turn.
pub const PULLS_AT_ONCE_MAX: usize = 4;
/// Failed pulls whose message is kept for `ImagePullBackOff`. Full: the oldest is dropped; its back-off shows no cause.
pub const PULL_MESSAGES_MAX: usize = 128;
/// Bytes of the message of a failed pull. Longer: cut.
pub const PULL_MESSAGE_BYTES_MAX: usize = 1024;

/// Bytes of the node's registry credentials (`config.json` in the state directory). Larger: none of them is used, with a message.
pub const NODE_LOGINS_BYTES_MAX: usize = 256 * KIB;
/// Credentials tried for one pull, those of the pod's pull secrets first. More: the rest is not tried.
pub const PULL_LOGINS_MAX: usize = 8;

/// Image archives read in one directory. Full: those after them in name order are named in one message and not imported.
pub const IMAGE_ARCHIVES_MAX: usize = 256;
/// Bytes of one list of images to pull. Longer: it is skipped with a message.
pub const IMAGE_LIST_BYTES_MAX: usize = 64 * KIB;
/// Images of all lists. More: the last ones are skipped with a message.
pub const IMAGE_LISTED_MAX: usize = 256;
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
/// Bytes of a blob in flight to the runtime.
pub const IMAGE_CHUNK_BYTES: usize = 128 * KIB;
/// Quiet time after a change in the directory of image archives before it is read, because copies take a while.
pub const IMAGE_ARCHIVE_QUIET: Duration = Duration::from_secs(2);
/// Wait before the directory of image archives is read again when it could not be read or the runtime was not available.
pub const IMAGE_ARCHIVE_RETRY: Duration = Duration::from_secs(30);
/// Wait before an archive is imported again that found no space on the disk: each try unpacks it, and writes.
pub const IMAGE_ARCHIVE_SPACE_RETRY: Duration = Duration::from_mins(10);
/// The longest such wait, which doubles with each try: a card wears out where an archive never fits.
pub const IMAGE_ARCHIVE_SPACE_RETRY_MAX: Duration = Duration::from_hours(24);
/// How long the runtime may take to list, by its name, an image that was put into its store. Longer: the import ends without it.
pub const IMAGE_KNOWN_TIME: Duration = Duration::from_secs(10);
/// Records of imported images that are read. More: the rest counts as not imported, and is imported again.
pub const IMAGE_RECORDS_MAX: usize = 4096;
/// Bytes of one image record in the runtime's list. Longer: skipped.
pub const IMAGE_RECORD_BYTES_MAX: usize = 16 * KIB;
const _: () = assert!(IMAGE_CHUNK_BYTES < GRPC_REQUEST_BYTES_MAX);

/// Snapshots of containerd that are listed. More: no layer is recorded or removed.
pub const SNAPSHOTS_MAX: usize = 2048;
/// Digests of blobs and archives that are known of containerd. More: layers of the rest count as ones that it cannot unpack again.
pub const BLOBS_MAX: usize = 8192;
/// Snapshots on one another. Further down none is looked at: images have at most 127 layers.
pub const SNAPSHOTS_DEPTH_MAX: usize = 130;
/// How often it is tried to remove layers that a power cut may have damaged.
pub const SNAPSHOT_TRIES: u32 = 3;
/// Bytes of the file `unpacked-layers`. More: it is not written, and does not count.
pub const UNPACKED_LAYERS_BYTES_MAX: usize = 512 * KIB;
/// Shims that are looked at. More: the rest is not seen.
pub const SHIMS_MAX: usize = 1024;
/// Bytes of a process's command line that are read to find shims.
pub const SHIM_CMDLINE_BYTES_MAX: usize = 4 * KIB;
/// Time between two looks for shims without a sandbox.
pub const SHIM_LOOK_PERIOD: Duration = Duration::from_hours(1);
/// How long a sandbox takes to start at most, pulls and networks included: a younger shim may serve one that is not listed yet.
pub const SHIM_STARTS_WITHIN: Duration = Duration::from_mins(5);
/// How long a shim may outlive its sandbox.
pub const SHIM_LEAVES_WITHIN: Duration = Duration::from_secs(2);
/// Time from the first use of an image, or its import, until its disk is written out: pods come in bursts.
pub const IMAGE_SYNC_DELAY: Duration = Duration::from_secs(2);
/// Time until the disk is written out again after that failed, or took too long.
pub const IMAGE_SYNC_RETRY: Duration = Duration::from_mins(10);
/// Images whose first detection and last use are remembered. Full: a further one is not, and is not collected, until another is
/// gone.
pub const IMAGES_SEEN_MAX: usize = 512;

// ---- render ----------------------------------------------------------------------------------------------

/// Bytes of a container annotation that holds a path or an enum value, read back. Longer: it counts as absent; no file has such a path.
pub const ANNOTATION_PATH_BYTES_MAX: usize = 4 * KIB;

// ---- cgroups -----------------------------------------------------------------------------------------------

/// Depth of directories below a pod's cgroup. Deeper: the pod's cgroup is not removed, and an error is reported.
pub const CGROUP_DEPTH_MAX: usize = 16;
/// Directories of one pod in one hierarchy. More: the rest is removed by the next attempt.
pub const CGROUPS_PER_POD_MAX: usize = 4096;
/// Entries read of one cgroup directory, its files included. More: the rest is read by the next attempt.
pub const CGROUP_ENTRIES_MAX: usize = 16 * 1024;
/// Bytes read of one `cgroup.procs`, some 8,000 PIDs. More: the rest is killed by the next attempt.
pub const CGROUP_PROCS_BYTES_MAX: u64 = 64 * 1024;
/// Bytes read of a cgroup's interface file. Longer: it is written again.
pub const CGROUP_FILE_BYTES_MAX: u64 = 4096;
/// Bytes of a cgroup's list of what it has written, a line a device. More: the rest does not count.
pub const CGROUP_WRITTEN_BYTES_MAX: usize = 16 * KIB;
/// Attempts to remove a pod's cgroups after processes in them were killed; further ones with the pod's next sync.
pub const CGROUP_REMOVE_TRIES: u32 = 10;
/// The wait after the first attempt; the second is twice as long, the third three times: 0.45 s in all.
pub const CGROUP_REMOVE_PAUSE: Duration = Duration::from_millis(10);

/// How long systemd may take to answer a call, and then for the call's job, as the kubelet's library waits (30 s). Longer: the
/// pod waits, and is retried with its next sync. Without an answer the calls queued behind it fail too, and no later call waits
/// for it; a late job belongs to its unit alone.
pub const SYSTEMD_CALL_TIME: Duration = Duration::from_secs(30);
/// Bytes of one D-Bus message of systemd; signals about other units have a few thousand. Longer: the connection is closed, and
/// the call is retried with the pod's next sync.
pub const SYSTEMD_MESSAGE_BYTES_MAX: usize = 256 * KIB;
/// Bytes of the line with which the server accepts D-Bus authentication. Longer: it is not D-Bus.
pub const SYSTEMD_LINE_BYTES_MAX: u64 = 128;

// ---- status and store ------------------------------------------------------------------------------------

/// Adopted pods, taken over from another agent, that are remembered. Full: a further one is not remembered, and is managed only
/// as long as a manifest names it.
pub const ADOPTED_MAX: usize = 4 * PODS_MAX;
/// Bytes of the identity file. Larger: damaged.
pub const IDENTITY_FILE_BYTES_MAX: usize = 64 * KIB;
/// Attempts to lock the state directory at start. More: another agent runs.
pub const LOCK_TRIES: u32 = 11;
/// Wait between two attempts to lock the state directory.
pub const LOCK_RETRY: Duration = Duration::from_millis(100);
// A Kubernetes UID is 36 bytes; the longest list fits with space for the node's name.
const _: () = assert!(ADOPTED_MAX * 64 + 512 <= IDENTITY_FILE_BYTES_MAX);

/// Memory for the pods' statuses unless configured (`--status-store-bytes`); the record of an ordinary pod has one KiB. Full:
/// messages are cut, then records are reduced to the necessary fields, those of terminated pods first (`store::statuses`).
pub const STATUS_STORE_BYTES: usize = 2 * MIB;
/// Least value of `--status-store-bytes`: the statuses of all pods fit when they are reduced to the necessary fields.
pub const STATUS_STORE_BYTES_MIN: usize = MIB;
/// Greatest value of `--status-store-bytes`.
pub const STATUS_STORE_BYTES_MAX: usize = 16 * MIB;
/// Overhead of a record in the table, counted beside its bytes.
pub const STATUS_ENTRY_BYTES: usize = 128;
/// Bytes of a record reduced to the necessary fields, with [`STATUS_ENTRY_BYTES`] and without its containers.
pub const STATUS_BARE_POD_BYTES: usize = 768;
/// Bytes of one container in a reduced record.
pub const STATUS_BARE_CONTAINER_BYTES: usize = 352;
/// Bytes of a message in a reduced status. Longer: cut.
pub const STATUS_MESSAGE_BYTES_CUT: usize = 128;
/// Bytes of a reason in a reduced status. Longer: cut.
pub const STATUS_REASON_BYTES_CUT: usize = 48;
/// Bytes of a container's id, with the runtime's prefix, in a reduced status. Longer: left out. (Runtimes' ids have 64 digits.)
pub const STATUS_ID_BYTES_CUT: usize = 96;
// Every container of a manifest counts in its cost, which bounds their number; debug containers are counted beside them.
const _: () = assert!(
    (PODS_MAX + ENDED_PODS_MAX) * STATUS_BARE_POD_BYTES
        + ((PODS_BYTES_MAX + ENDED_PODS_BYTES_MAX) / CONTAINER_BYTES + DEBUGGERS_MAX)
            * STATUS_BARE_CONTAINER_BYTES
        <= STATUS_STORE_BYTES_MIN
);
const _: () =
    assert!(STATUS_STORE_BYTES_MIN <= STATUS_STORE_BYTES && STATUS_STORE_BYTES <= STATUS_STORE_BYTES_MAX);

/// Panics while one pod or manifest file was processed, after which it is set aside.
pub const PANICS_TO_SET_ASIDE: u32 = 2;
/// Consecutive runs of the agent that ended without a panic during disk work for one pod, none of which completed work for it.
pub const CUT_OFF_TO_SET_ASIDE: u32 = 3;
/// Records of interrupted disk work. More: the others are dropped at the next start.
pub const CUT_OFF_KEPT_MAX: usize = 64;
/// Bytes of one record of interrupted disk work. Longer: it does not count, and is removed.
pub const CUT_OFF_BYTES_MAX: usize = 8 * 1024;
/// Panics remembered. More: the oldest are dropped at the next start.
pub const PANICS_KEPT_MAX: usize = 64;
/// Bytes of the list of panics. Full: a further panic is not recorded until the next start cuts the list.
pub const PANICS_FILE_BYTES_MAX: u64 = 512 * 1024;
// A path has at most 4096 bytes.
const _: () = assert!(PANICS_KEPT_MAX as u64 * (5 * 1024) < PANICS_FILE_BYTES_MAX);

/// How long a change waits for others before the checkpoint is written.
pub const CHECKPOINT_SETTLE: Duration = Duration::from_secs(1);
/// Least time between two writes of the checkpoint, because flash wears out; a removal that needs one does not wait.
pub const CHECKPOINT_PERIOD: Duration = Duration::from_secs(10);
/// The same where conditions and readiness alone have changed, which a boot finds out anew.
pub const CHECKPOINT_LIGHT_PERIOD: Duration = Duration::from_mins(10);
/// While an active deadline runs, its age is written each time this fraction of the shortest deadline has passed, though nothing
/// changes.
pub const CHECKPOINT_AGES_SHARE: u32 = 16;
/// Least time between two writes of ages alone.
pub const CHECKPOINT_AGES_PERIOD_MIN: Duration = Duration::from_mins(1);
/// How long the agent's end waits for the last write of the checkpoint. Longer: it ends without, and the next start uses the
/// previous one.
pub const CHECKPOINT_END_PATIENCE: Duration = Duration::from_secs(5);
/// Pods in the checkpoint: desired, terminating and orphaned ones. Full: the rest is left out; the runtime still lists them.
pub const CHECKPOINT_PODS_MAX: usize = 4 * PODS_MAX;
/// Bytes of an id, a name or an image in the checkpoint. Longer: left out.
pub const CHECKPOINT_TEXT_BYTES_MAX: usize = KIB;
/// Bytes of the checkpoint. Larger: damaged.
pub const CHECKPOINT_BYTES_MAX: usize = STATUS_STORE_BYTES_MAX + 4 * MIB;
/// The highest restart count accepted from a checkpoint: one restart a second for 34 years. Higher: reduced to this.
pub const RESTORED_RESTART_COUNT_MAX: i32 = 1 << 30;
const _: () = assert!(
    STATUS_STORE_BYTES_MAX
        + CHECKPOINT_PODS_MAX * (3 * CHECKPOINT_TEXT_BYTES_MAX + 64)
        + DEBUGGERS_MAX * (DEBUGGER_BYTES_MAX + 4 * DEBUGGER_WORDS_MAX + KIB)
        + 2 * BACKOFF_ENTRIES_MAX * 40
        + IMAGES_SEEN_MAX * (CHECKPOINT_TEXT_BYTES_MAX + 40)
        + CHECKPOINT_SIZES_MAX * (CHECKPOINT_TEXT_BYTES_MAX + 48)
        + KIB
        <= CHECKPOINT_BYTES_MAX
);

/// Bytes of termination messages in one pod's status, shared evenly by its containers (kubelet
/// `MaxPodTerminationMessageLogLength`). Full: each message is cut to its share.
pub const TERMINATION_MESSAGES_BYTES_MAX: usize = 12 * KIB;

// ---- configuration ---------------------------------------------------------------------------------------

/// Bytes of a KubeletConfiguration file. Larger: refused.
pub const CONFIG_FILE_BYTES_MAX: usize = 256 * KIB;
/// Files of a directory of k3s' configuration (`config.yaml.d`). More: refused.
pub const CONFIG_FILES_MAX: usize = 32;
/// Bytes of the node's resolver configuration (the kubelet reads 10 MiB). Longer: the rest is not read.
pub const RESOLV_CONF_BYTES_MAX: usize = MIB;
/// Patterns in `allowedUnsafeSysctls`. More: refused.
pub const UNSAFE_SYSCTLS_MAX: usize = 64;
/// Name servers in `clusterDNS`. More: refused.
pub const DNS_SERVERS_MAX: usize = 16;

// ---- node loop -------------------------------------------------------------------------------------------

/// Events queued for the loop. Full: the tasks that send them wait; an event of the runtime's stream is dropped and a relist
/// requested.
pub const EVENTS_QUEUED_MAX: usize = 128;
/// Bytes of a queued event, without what it points to.
pub const EVENT_QUEUED_BYTES_MAX: usize = 512;
/// Greatest number of pods whose sandbox is created and whose containers are started at once; `sync::turns` chooses the actual
/// number by the latency of the runtime's calls. Full: further pods wait for their turn; pulls, stops and paths that may hang
/// take none. 30 pods by the raw calls on two cores (`make bench`): 1 at once 5.7 s, 2 3.3, 4 2.9, 8 3.1, 30 2.9. Pods that start
/// at once are in memory at once, and after a start of 110 pods the promised resident size must hold.
pub const STARTS_AT_ONCE_MAX: usize = 12;
/// Least number of pods that start at once.
pub const STARTS_AT_ONCE_MIN: usize = 2;
/// A call of a start that takes this many times as long as usual gives its turn back; its end is awaited without one.
pub const START_PATIENCE_FACTOR: u32 = 4;
/// Least time before a call gives its turn back, and the time before the runtime has been measured.
pub const START_PATIENCE_MIN: Duration = Duration::from_secs(2);
/// Greatest time before a call gives its turn back.
pub const START_PATIENCE_MAX: Duration = Duration::from_secs(30);
/// How long writing a container's files may take in its turn. Longer: it gives its turn back meanwhile, as a call does.
pub const START_FILES_PATIENCE: Duration = Duration::from_secs(1);
/// Calls that gave their turn back and are still running. Full: a further one keeps its turn until one of them ends.
pub const STARTS_OVERDUE_MAX: usize = 64;
/// Blocking jobs (disk, mounts) at once. Full: further ones wait.
pub const BLOCKING_JOBS_MAX: usize = 4;
/// Jobs on threads at paths outside smolet's directories (hostPath volumes, the content of volumes, logs): one for each pod's
/// volumes, one for each other file system or server, and for each server one mount and one unmount. A thread is held for as long
/// as the kernel does not answer. Full: further jobs wait; when all hang, a further one fails at once and is retried.
pub const OUTSIDE_JOBS_MAX: usize = OUTSIDE_OF_PODS.most() + IN_PODS_JOBS_MIN + OUTSIDE_OF_NODE_MAX;
/// Of [`OUTSIDE_JOBS_MAX`], those of pods: each of this many pods has one of its own.
pub const OUTSIDE_OF_PODS: Share = Share { own: 24, common: 4 };
/// Of [`OUTSIDE_JOBS_MAX`], those for the content of pods' directories, and for unmounting it.
pub const IN_PODS_JOBS_MIN: usize = 4;
/// Of [`OUTSIDE_JOBS_MAX`], those for the node's hosts file, resolver configuration and system logs.
pub const OUTSIDE_OF_NODE_MAX: usize = 4;
/// How long a job at such a path, and a pod's earlier job, may take. Longer: the pod waits with a message and is retried; no
/// further job is started at a path that hangs.
pub const OUTSIDE_PATIENCE: Duration = Duration::from_secs(10);
// The next sync already knows which path hangs: no sync waits for it a second time.
const _: () = assert!(OUTSIDE_PATIENCE.as_millis() <= SYNC_RETRY.as_millis());
/// Bytes of a path that can hang: the kernel refuses longer ones at once (`PATH_MAX`).
const PATH_BYTES_MAX: usize = 4 * KIB;
/// How long a failed pull is shown as `ErrImagePull` before the status becomes `ImagePullBackOff`.
pub const PULL_ERROR_SHOWN: Duration = Duration::from_secs(2);
/// Times a status is computed again at once, each from the one before. Not stable then: it continues with the next change.
pub const STATUS_PASSES_MAX: usize = 4;
/// Time between two relists when no events arrive (kubelet `plegRelistPeriod`).
pub const RELIST_PERIOD: Duration = Duration::from_secs(1);
/// The same while events arrive: the relist finds, and counts, what they missed (kubelet `eventedPlegRelistPeriod`: 300 s).
pub const RELIST_PERIOD_MAX: Duration = Duration::from_mins(1);
/// Relists at one second each after an event stream missed something and has not delivered since. After them the relist period is
/// that with events, until something is missed again: on a quiet node no event may arrive for days.
pub const DOUBTED_RELISTS_MAX: u32 = 60;
/// Longest wait between two attempts to open an event stream.
pub const EVENTS_RETRY_MAX: Duration = Duration::from_mins(1);
/// The same while the runtime does not implement the event stream; it may be upgraded.
pub const EVENTS_UNSUPPORTED_RETRY: Duration = Duration::from_mins(5);
/// Misses without a single event after which a runtime counts as one without an event stream (CRI-O by default), until an event
/// arrives.
pub const EVENT_MISSES_MAX: u32 = 3;
/// How long after a relist an event about what it shows may arrive. Later, or never: the change counts as missed.
pub const EVENT_LATE_MAX: Duration = Duration::from_secs(1);
/// First wait before the status of a container or sandbox that has ended by an event is read.
pub const CHANGE_POLL_FIRST: Duration = Duration::from_millis(5);
/// A later wait is this fraction of the time that has passed.
pub const CHANGE_POLL_SHARE: u32 = 4;
/// How long the status is polled in all. Longer: the pod is read as it is, and the next relist reads it again.
pub const CHANGE_POLL_TIME: Duration = Duration::from_secs(2);
/// Changes of all pods that are awaited by polling. Full: the pod is read at once, and a relist requested.
pub const CHANGES_AWAITED_MAX: usize = 256;
/// Remembered events about unknown ids. Full: the oldest is dropped; a read or the next relist shows the state all the same.
pub const UNKNOWN_EVENTS_MAX: usize = 64;
/// How long an id of an event may be unknown. Longer: a relist is requested, because an interrupted call of the agent may have
/// created it.
pub const UNKNOWN_EVENT_PATIENCE: Duration = Duration::from_secs(5);
const _: () = assert!(RELIST_PERIOD.as_millis() < RELIST_PERIOD_MAX.as_millis());
const _: () = assert!(CHANGE_POLL_FIRST.as_millis() < CHANGE_POLL_TIME.as_millis());
/// Longest wait between two relists while the runtime does not answer.
pub const RELIST_RETRY_MAX: Duration = Duration::from_secs(10);
/// How long `smolet run --once` waits for every pod. Longer: a pod that does not run by then has failed.
pub const ONCE_PATIENCE: Duration = Duration::from_mins(5);
/// How long nothing may change before `--once` ends: a container that starts and fails at once has not run.
pub const ONCE_SETTLE: Duration = Duration::from_secs(2);
/// Wait before a sandbox is created whose name the runtime still reserves for an interrupted call.
pub const NAME_RESERVED_RETRY: Duration = Duration::from_secs(1);
/// Pods whose directories are removed at a start. More: the rest is removed at the next start.
pub const ORPHAN_DIRS_MAX: usize = 1024;
/// Files of CNI that a power cut has emptied, removed at a start; entries of a directory that are looked at. More: at the next start.
pub const TORN_CNI_FILES_MAX: usize = 1024;
/// See `TORN_CNI_FILES_MAX`.
pub const TORN_CNI_ENTRIES_MAX: usize = 4096;
/// How long such a file has to stay empty: a plugin that makes one writes it at once.
pub const TORN_CNI_WAIT: Duration = Duration::from_secs(2);
/// Pods without a valid manifest that were reported as kept running, so that each is reported once. Full: reported again later.
pub const HELD_PODS_REPORTED_MAX: usize = 512;
/// Pods of the runtime that a relist keeps besides the adopted ones: those that the agent manages, and its own orphans; after the
/// agent's start all of them, because no pod is desired yet. Full: a further one is left alone until others are gone.
pub const RELIST_ORPHANS_MAX: usize = PODS_IN_HAND_MAX;
/// Pods a relist keeps: those of [`RELIST_ORPHANS_MAX`] and the adopted ones.
pub const RELIST_PODS_MAX: usize = RELIST_ORPHANS_MAX + ADOPTED_MAX;
/// Bytes of a pod's namespace, name and UID (63, 253 and 36 in Kubernetes). Longer: not a pod of this agent, whatever its
/// annotation says.
pub const POD_KEY_BYTES_MAX: usize = 512;
/// Memory of one pod in a relist: its key and its entry.
pub const RELIST_POD_BYTES_MAX: usize = POD_KEY_BYTES_MAX + 256;
/// Entries of the ring of decisions and errors. Full: the least recently updated entry of the pod with the most entries is
/// dropped.
pub const EVENTS_MAX: usize = 512;
/// Bytes of one entry's message. Longer: cut.
pub const EVENT_MESSAGE_BYTES_MAX: usize = 512;
/// Dead containers, and sandboxes, of one pod whose status is read. More: the oldest are left out until they are removed.
pub const CONTAINERS_READ_MAX: usize = 64;

// ---- local server ----------------------------------------------------------------------------------------

/// Connections at once. Full: further ones wait in the kernel's queue.
pub const SERVER_CONNECTIONS_MAX: usize = 8;
/// Connections in the kernel's queue. Full: connecting waits.
pub const SERVER_BACKLOG: i32 = 128;
/// Bytes of a request's head. Longer: refused.
pub const SERVER_BUFFER_BYTES: usize = 16 * KIB;
/// Bytes of a response that every connection may hold at once. Longer: one connection at a time holds such a response, the others
/// wait for their turn and build theirs then.
pub const SERVER_ANSWER_BYTES: usize = 128 * KIB;
/// Bytes of a list of pods after which the next part begins, which is built when the client has read this one.
pub const SERVER_PART_BYTES: usize = 16 * KIB;
/// How long one connection may last. Longer: closed.
pub const SERVER_CONNECTION_TIME: Duration = Duration::from_secs(30);
/// Bytes a command reads of the agent's response. Longer: refused.
pub const ANSWER_BYTES_MAX: usize = 64 * MIB;
/// How long a command waits for the agent's response. Longer: it fails with a message.
pub const ANSWER_PATIENCE: Duration = Duration::from_secs(10);

// ---- time ------------------------------------------------------------------------------------------------

/// How long a call to the runtime may take unless it has a rule of its own (kubelet `runtimeRequestTimeout`).
pub const RUNTIME_REQUEST_TIMEOUT: Duration = Duration::from_mins(2);

/// How long the runtime's socket may take to accept a connection (kubelet `minConnectionTimeout`).
pub const GRPC_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Wait after a first failed connection (kubelet `baseBackoffDelay`); doubles with each further one.
pub const GRPC_BACKOFF_MIN: Duration = Duration::from_millis(100);
/// Longest wait between two attempts to connect (kubelet `maxBackoffDelay`).
pub const GRPC_BACKOFF_MAX: Duration = Duration::from_secs(3);
/// How long a runtime may take for its first response before it counts as not answering.
pub const ENDPOINT_CHECK_TIMEOUT: Duration = Duration::from_secs(10);
/// How often the manifest directory is read when inotify reports nothing (kubelet `fileCheckFrequency`).
pub const FILE_CHECK_FREQUENCY: Duration = Duration::from_secs(20);

/// How often a missing or unreadable manifest directory is read again.
pub const MANIFEST_DIR_RETRY: Duration = Duration::from_secs(5);

/// Quiet time after a change in the manifest directory before it is read: the several writes of an editor count as one.
pub const MANIFEST_DEBOUNCE: Duration = Duration::from_millis(100);

/// How long a changed file may be invalid, or a file missing, before that counts: it may be half-written, or about to be
/// replaced.
pub const MANIFEST_GRACE: Duration = Duration::from_millis(500);

/// Quiet time after which a file still open for writing is read all the same.
pub const MANIFEST_WRITE_QUIET: Duration = Duration::from_secs(2);

/// How long changes wait for the manifest directory to settle. Longer (a file that is written all the time): they are applied all
/// the same, and removals wait.
pub const MANIFEST_UNSETTLED_MAX: Duration = Duration::from_secs(5);

// Pods at their greatest memory leave space for the objects made of them.
const _: () = assert!(PODS_MAX * 26 * KIB <= PODS_BYTES_MAX && MANIFEST_BYTES_MAX <= PODS_BYTES_MAX);
const _: () = assert!(MANIFEST_BYTES_MAX <= MANIFEST_TEXT_BYTES_MAX && POD_NODES_MAX <= MANIFEST_NODES_MAX);
const _: () =
    assert!(MANIFEST_FILES_MAX <= MANIFEST_DIR_ENTRIES_MAX && PROBLEMS_PER_FILE_MAX <= PROBLEMS_MAX);
const _: () = assert!(CONTAINERS_PER_LIST_MAX <= LIST_ITEMS_MAX && VOLUMES_PER_POD_MAX <= LIST_ITEMS_MAX);
const _: () = assert!(MANIFEST_DEBOUNCE.as_millis() < MANIFEST_GRACE.as_millis());
const _: () = assert!(MANIFEST_GRACE.as_millis() < MANIFEST_WRITE_QUIET.as_millis());
const _: () = assert!(MANIFEST_WRITE_QUIET.as_millis() < MANIFEST_UNSETTLED_MAX.as_millis());

// ---- memory ----------------------------------------------------------------------------------------------

/// A kept structure and its limits: `smolet top --self` and `/metrics` show its use beside them.
#[derive(Debug)]
pub struct Bound {
    /// Name in `smolet top --self` and `/metrics`.
    pub name: &'static str,
    /// Greatest number of entries.
    pub entries_max: usize,
    /// Greatest number of bytes of all entries.
    pub bytes_max: usize,
}

impl Bound {
    const fn of(name: &'static str, entries_max: usize, entry_bytes_max: usize) -> Self {
        Self { name, entries_max, bytes_max: entries_max * entry_bytes_max }
    }
}

/// Bytes of the kernel's answer that are read at a time; it makes the messages of a dump no larger.
pub const NETLINK_ANSWER_BYTES: usize = 32 * KIB;
/// Bytes of a dump of the kernel's. Exceeded: the dump fails.
pub const NETLINK_DUMP_BYTES_MAX: usize = 64 * MIB;
/// How often a dump is begun during which what it reads changed. Then it fails, and its reader tries again later.
pub const NETLINK_DUMP_TRIES_MAX: usize = 5;
/// Bytes of messages that are sent to the kernel together. Exceeded: nothing is sent.
pub const NETLINK_SEND_BYTES_MAX: usize = 16 * MIB;

/// Chains of a table of smolet's own that are read. Exceeded: the read fails.
pub const NFTABLES_CHAINS_READ_MAX: usize = 65_536;

/// Tracked connections that are forgotten at a time. More: the others are looked for at once.
pub const CONNTRACK_DELETED_MAX: usize = 4096;
/// How often they are looked for at once: 262,144 connections. More: the others are forgotten after a wait.
pub const CONNTRACK_ROUNDS_MAX: usize = 64;

/// All kept structures; `node::show` measures them in this order.
pub static BOUNDS: [Bound; BOUNDED] = BOUNDS_TABLE;
/// Number of kept structures.
pub const BOUNDED: usize = 23;

/// Memory in bytes of all kept structures when full, with a status store of the given bytes. It includes neither code, stacks and
/// free memory of the allocator, nor data in flight: a manifest that is being read, responses of the runtime that are being
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
    // With their pods, which are kept a second time here.
    Bound {
        name: "debug_containers",
        entries_max: DEBUGGERS_MAX,
        bytes_max: DEBUGGERS_MAX * DEBUGGER_MEMORY_BYTES + DEBUGGED_PODS_BYTES_MAX,
    },
    // Problems of the files, the last reported ones, and those of merging.
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
    // The previous relist is kept while the next one is made.
    Bound::of("relist", 2 * RELIST_PODS_MAX, RELIST_POD_BYTES_MAX),
    Bound::of("former_pods", 2 * FORMER_PODS_MAX, FORMER_POD_BYTES_MAX),
    Bound {
        name: "adopted_pods",
        entries_max: ADOPTED_MAX,
        // Some of them under a second UID.
        bytes_max: ADOPTED_MAX * 128 + ADOPTED_UIDS_MAX * 192,
    },
    Bound::of("unknown_events", UNKNOWN_EVENTS_MAX, CRI_ID_BYTES_MAX + 64),
    Bound::of("awaited_changes", CHANGES_AWAITED_MAX, CRI_ID_BYTES_MAX + 256),
    Bound::of("outside_paths", OUTSIDE_JOBS_MAX, PATH_BYTES_MAX),
    // The last look, and what it is compared with.
    Bound::of("devices", 2 * DEVICES_WATCHED_MAX, DEVICE_PATH_BYTES_MAX + 64),
    // The container's id is shared with the relist.
    Bound::of("watched_logs", LOGS_WATCHED_MAX, LOG_PATH_BYTES_MAX + 256),
    // An event of the runtime's stream has two ids.
    Bound::of("loop_queue", EVENTS_QUEUED_MAX, EVENT_QUEUED_BYTES_MAX + 2 * CRI_ID_BYTES_MAX),
    Bound {
        name: "runtime_calls",
        entries_max: GRPC_CALLS_MAX,
        bytes_max: GRPC_WINDOW_CONNECTION_BYTES as usize,
    },
    Bound::of("socket_connections", SERVER_CONNECTIONS_MAX, SERVER_BUFFER_BYTES),
];
