//! Bounds of inputs: manifests, objects, volumes and variables, and of the reported problems.

use std::time::Duration;

use super::{KIB, MIB};

/// Bytes of one manifest file. Longer: the file is refused unread; its pods stay as they were.
pub const MANIFEST_BYTES_MAX: usize = MIB;

/// Memory all pods, ConfigMaps and Secrets of one source may take, as `manifest::cost` and `object::cost` estimate it (8 KiB for
/// a small pod; 25 KiB for a container with resources, eight variables and two volumes). A pod of an API server counts by
/// `manifest::packed_cost`: 12 KiB for a small one with its token; a large one its text, and an allowance for each container and
/// volume. The objects of an API server are bounded by `KUBE_OBJECTS_BYTES_MAX`. Full: a further one is refused with a message.
/// While pods start, their requests to the runtime take twice as much again.
pub const PODS_BYTES_MAX: usize = 3 * MIB;

/// Memory of a pod's typed object up to which it stays decoded while the pod is idle. More: it is packed into its text, and
/// decoded when it is needed.
pub const POD_OPENED_BYTES: usize = 16 * KIB;

/// Memory of larger objects that stay decoded while their pods are idle, of all pods. Full: the largest are packed.
pub const PODS_OPENED_BYTES_MAX: usize = 512 * KIB;

/// Least cost of one container: its typed object. It bounds the containers of all pods.
pub const CONTAINER_BYTES: usize = 2304;

/// Values of one pod (scalars, lists and maps): each may become some 360 bytes once typed. More: the pod is refused.
pub const POD_NODES_MAX: usize = 8 * KIB;

/// Bytes of all values of one ConfigMap or Secret (`MaxSecretSize`). More: the object is refused.
pub const OBJECT_BYTES_MAX: usize = MIB;

/// How often pods with ephemeral-storage limits are measured, when there are any (the kubelet's eviction monitor).
pub const VOLUME_USAGE_PERIOD: Duration = Duration::from_secs(10);

/// How long one volume is measured before the turn of the others.
pub const VOLUME_USAGE_PIECE: Duration = Duration::from_millis(250);

/// Volumes whose measurement continues the next time, of as many pods. Each holds its open directories and the levels and links
/// that it remembers: 150 KiB at most. Full: a further one is restarted the next time, before the others.
pub const VOLUMES_HALF_MEASURED_MAX: usize = 4;

/// Hard-linked files that are remembered while one volume is measured. Full: a further one counts once for each name.
pub const VOLUME_LINKS_MAX: usize = 4 * KIB;

/// Parts of a path within a root that are left to enter, where the kernel does not resolve it; as many directories are open. More:
/// `ENAMETOOLONG`.
pub const PATH_PARTS_MAX: usize = 256;

/// Levels of a tree whose directories are open while it is removed or measured. A removal moves deeper ones up; a measurement
/// returns by `..`.
pub const TREE_LEVELS_HELD_MAX: usize = 32;

/// Levels above those that are remembered, by inode and position (32 bytes each). Full: every second one is dropped, and found
/// again from its neighbours.
pub const TREE_MARKS_MAX: usize = 2 * KIB;
const _: () = assert!(TREE_LEVELS_HELD_MAX >= 2 && TREE_MARKS_MAX >= 4);

/// How long the removal of a pod's directory takes in one blocking job. Longer: other jobs have their turn before the next piece.
pub const REMOVAL_PIECE: Duration = Duration::from_secs(1);

/// Bytes of names read from a directory at once.
pub const TREE_BATCH_BYTES: usize = 8 * KIB;

/// Bytes of a container's environment, names and values, as in its `CreateContainer`. More: the container waits with a message.
/// The kernel takes 128 KiB for one and 2 MiB in all; eight containers that start at once have theirs three times in memory.
pub const ENVIRONMENT_BYTES_MAX: usize = 256 * KIB;

/// Bytes of a file that variables are taken from (`fileKeyRef`). Longer: the container waits with a message.
pub const ENV_FILE_BYTES_MAX: usize = 64 * KIB;

/// How long a download of the manifest URL may take, redirects included (kubelet: the same). Longer: it is retried after the
/// usual period.
pub const MANIFEST_URL_TIME: Duration = Duration::from_secs(10);

/// Bytes received for each request of the manifest URL, those of heads, chunks and TLS included. More: as for
/// [`MANIFEST_URL_TIME`].
pub const MANIFEST_WIRE_BYTES_MAX: usize = 2 * MANIFEST_BYTES_MAX;

/// Requests for the manifest URL: the first, and one for each redirect (Go's `http.Client`). More: as for [`MANIFEST_URL_TIME`].
pub const MANIFEST_URL_REQUESTS_MAX: usize = 10;

/// Bytes of a file with the system's certificate authorities. Longer: it is skipped.
pub const AUTHORITIES_BYTES_MAX: usize = 4 * MIB;

/// Manifest files read in one directory. Full: the files after them in name order are refused in one message.
pub const MANIFEST_FILES_MAX: usize = 256;

/// Directory entries of any name read at once. Full: the directory is refused; it is not a manifest directory.
pub const MANIFEST_DIR_ENTRIES_MAX: usize = 4096;

/// Documents of one manifest file. Full: the rest of the file is refused.
pub const MANIFEST_DOCUMENTS_MAX: usize = 256;

/// Nodes of one document (scalars, lists and maps), copies made by aliases included. Full: the document is refused.
pub const MANIFEST_NODES_MAX: usize = 32 * KIB;

/// Bytes of text of one document, copies made by aliases included. Full: the document is refused.
pub const MANIFEST_TEXT_BYTES_MAX: usize = 2 * MIB;

/// Nesting of one document. Deeper: the document is refused. It bounds the stack of everything that walks a document.
pub const MANIFEST_DEPTH_MAX: usize = 64;

/// Containers in each of a pod's lists: the typed object takes 2 kB for a `{}`. More: the pod is refused.
pub const CONTAINERS_PER_LIST_MAX: usize = 64;

/// Volumes of a pod. More: the pod is refused.
pub const VOLUMES_PER_POD_MAX: usize = 256;

/// Items in any other list of a pod. More: the pod is refused.
pub const LIST_ITEMS_MAX: usize = 1024;

/// Problems kept of one file. Full: the last one says how many more there are.
pub const PROBLEMS_PER_FILE_MAX: usize = 64;

/// Problems kept of all manifests. Full: the last one says how many more there are. Problems of merging: further ones are
/// dropped.
pub const PROBLEMS_MAX: usize = 256;

/// Errors listed of one document's object. Full: the last one says how many more there are.
pub const FIELD_ERRORS_MAX: usize = 32;

/// Problems kept by file. Full: of each further file only the first is kept, the others are counted.
pub const PROBLEMS_OF_FILES_MAX: usize = PROBLEMS_MAX + MANIFEST_FILES_MAX;

/// Memory one problem takes at most: its parts are cut as the limits below say, four bytes a character.
pub const PROBLEM_BYTES_MAX: usize = KIB;

/// Characters of an invalid value shown in a problem. Longer: cut, followed by the length.
pub const PROBLEM_VALUE_CHARS_MAX: usize = 32;

/// Characters of a field path or a file's name shown in a problem. Longer: cut in the middle.
pub const PROBLEM_PATH_CHARS_MAX: usize = 96;

/// Characters of a pod's name shown in a problem. Longer: cut in the middle. (A valid one has up to 317; the file and the
/// document identify the pod too.)
pub const PROBLEM_POD_CHARS_MAX: usize = 40;

/// Bytes of inotify events read at once; the kernel queues what does not fit, and reports an overflow of that queue, after which
/// the whole directory is read.
pub const INOTIFY_BUFFER_BYTES: usize = 4 * KIB;
