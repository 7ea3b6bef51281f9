//! Bounds of what is read: manifests, objects, volumes and variables, and what is told of them.

use std::time::Duration;

use super::{KIB, MIB};

/// Bytes of one manifest file. Longer: the file is refused unread, its pods stay as they were.
pub const MANIFEST_BYTES_MAX: usize = MIB;

/// Memory all pods, ConfigMaps and Secrets of one source may take, as `manifest::cost` and `object::cost` estimate it (8
/// KiB for a small pod; 25 KiB for a container with resources, eight variables and two volumes). A pod of an API server
/// counts as `manifest::packed_cost` has it: 12 KiB for a small one with its token; a large one its text, and something for
/// each container and volume. The objects of an API server have `KUBE_OBJECTS_BYTES_MAX` for themselves. Full: a further one
/// is refused with a message.
/// While pods start, what goes to the runtime is there twice more.
pub const PODS_BYTES_MAX: usize = 3 * MIB;

/// Memory of a pod's typed object up to which it stays open while nothing is done for the pod. More: it is packed into its
/// text, and opened when it is needed.
pub const POD_OPENED_BYTES: usize = 16 * KIB;

/// Memory of larger objects that stay open while nothing is done for their pods, of all pods. Full: the largest are packed.
pub const PODS_OPENED_BYTES_MAX: usize = 512 * KIB;

/// What one container adds to that at least: its typed object. It bounds how many containers all pods have.
pub const CONTAINER_BYTES: usize = 2304;

/// Values of one pod (scalars, lists and maps): each may become some 360 bytes once typed. More: the pod is refused.
pub const POD_NODES_MAX: usize = 8 * KIB;

/// Bytes of all values of one ConfigMap or Secret (`MaxSecretSize`). More: the object is refused.
pub const OBJECT_BYTES_MAX: usize = MIB;

/// How often pods with limits of their own on the node's disk are measured, where there are any (the kubelet's eviction
/// monitor).
pub const VOLUME_USAGE_PERIOD: Duration = Duration::from_secs(10);

/// How long one volume is looked at before the others have their turn.
pub const VOLUME_USAGE_PIECE: Duration = Duration::from_millis(250);

/// Volumes whose look goes on the next time, of as many pods. Each holds its open directories and what it remembers of levels and
/// links: 150 KiB at most. Full: a further one is begun anew the next time, before the others.
pub const VOLUMES_HALF_MEASURED_MAX: usize = 4;

/// Files of several names that are remembered while one volume is measured. Full: a further one counts once for each name.
pub const VOLUME_LINKS_MAX: usize = 4 * KIB;

/// Levels of a tree whose directories are open while it is removed or measured. A removal moves deeper ones up; a measurement comes
/// back up by `..`.
pub const TREE_LEVELS_HELD_MAX: usize = 32;

/// Levels above those that are remembered, by inode and position (32 bytes each). Full: every other one is forgotten, and found
/// again from the ones around it.
pub const TREE_MARKS_MAX: usize = 2 * KIB;
const _: () = assert!(TREE_LEVELS_HELD_MAX >= 2 && TREE_MARKS_MAX >= 4);

/// How long a pod's directory is removed in one blocking job. Longer: others have a turn before the next piece.
pub const REMOVAL_PIECE: Duration = Duration::from_secs(1);

/// Bytes of names that are read from a directory at once.
pub const TREE_BATCH_BYTES: usize = 8 * KIB;

/// Bytes of a container's variables, names and values, as they stand in its `CreateContainer`. More: the container waits
/// with a message. The kernel takes 128 KiB of one and 2 MiB of all; eight containers that start at once have theirs three
/// times in memory.
pub const ENVIRONMENT_BYTES_MAX: usize = 256 * KIB;

/// Bytes of a file that variables are taken from (`fileKeyRef`). Longer: the container waits with a message.
pub const ENV_FILE_BYTES_MAX: usize = 64 * KIB;

/// How long a manifest's URL may take to give all of it, redirects included (kubelet: the same). Longer: it is tried again at its
/// next time.
pub const MANIFEST_URL_TIME: Duration = Duration::from_secs(10);

/// Bytes that may come for each request for it, those of heads, chunks and TLS included. More: the same.
pub const MANIFEST_WIRE_BYTES_MAX: usize = 2 * MANIFEST_BYTES_MAX;

/// Requests for it: the first, and one for each redirect (Go's `http.Client`). More: the same.
pub const MANIFEST_URL_REQUESTS_MAX: usize = 10;

/// Bytes of a file with the system's authorities. Longer: it is passed over.
pub const AUTHORITIES_BYTES_MAX: usize = 4 * MIB;

/// Manifest files looked at in one directory. Full: the files behind them in name order are refused in one message.
pub const MANIFEST_FILES_MAX: usize = 256;

/// Directory entries of any name read in one look. Full: the directory is refused; it holds something else.
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

/// Problems kept of all manifests. Full: the last one says how many more there are. Of merging them: further ones are
/// dropped.
pub const PROBLEMS_MAX: usize = 256;

/// Errors listed of one document's object. Full: the last one says how many more there are.
pub const FIELD_ERRORS_MAX: usize = 32;

/// Problems kept file by file. Full: of each further file only the first is kept, the others are counted.
pub const PROBLEMS_OF_FILES_MAX: usize = PROBLEMS_MAX + MANIFEST_FILES_MAX;

/// Memory one problem takes at most: its parts are cut as the limits below say, four bytes a character.
pub const PROBLEM_BYTES_MAX: usize = KIB;

/// Characters of an offending value shown in a problem. Longer: cut, with the length behind it.
pub const PROBLEM_VALUE_CHARS_MAX: usize = 32;

/// Characters of a field path or a file's name shown in a problem. Longer: cut in the middle.
pub const PROBLEM_PATH_CHARS_MAX: usize = 96;

/// Characters of a pod's name shown in a problem. Longer: cut in the middle. (A valid one has up to 317, but people
/// find theirs by the file and the document too.)
pub const PROBLEM_POD_CHARS_MAX: usize = 40;

/// Bytes of inotify events read at once; the kernel queues what does not fit (and tells when that queue overflows,
/// which leads to a look at the whole directory).
pub const INOTIFY_BUFFER_BYTES: usize = 4 * KIB;
