//! Bounds of what is asked of an API server, and of what it answers.

use std::time::Duration;

use super::{
    Bound, ENDED_PODS_BYTES_MAX, K3S_SERVER_BYTES_MAX, K3S_SERVERS_MAX, KEPT_RECORDS_MAX,
    KEPT_TREES_BYTES_MAX, KIB, MIB, NODE_CONNECTION_BYTES, NODE_CONNECTIONS_MAX, NODE_DECISIONS_MAX,
    NODE_KNOWN_BYTES, NODE_SPLICE_BYTES, NODE_USER_BYTES_MAX, NODE_USERS_MAX, PODS_BYTES_MAX, PODS_MAX,
    PODS_OPENED_BYTES_MAX, RESIZES_WAITING_BYTES_MAX, TUNNEL_BYTES, TUNNEL_CONNECTIONS_MAX,
    TUNNEL_QUEUED_BYTES_MAX, TUNNELS_MAX,
};

/// Bytes of one object as JSON. Longer: it is passed over with a message; the server itself takes 1.5 MiB.
pub const KUBE_OBJECT_BYTES_MAX: usize = 2 * MIB;
/// Bytes of a list besides its items. Longer: it is no list.
pub const KUBE_HEAD_BYTES_MAX: usize = 64 * KIB;
/// Bytes of an answer that is read whole. Longer: the call fails.
pub const KUBE_ANSWER_BYTES_MAX: usize = KUBE_OBJECT_BYTES_MAX;
/// Bytes of an answer that is an error. Longer: only the HTTP status is told.
pub const KUBE_ERROR_BYTES_MAX: usize = 16 * KIB;
/// Bytes of the server's words in a message. Longer: cut.
pub const KUBE_MESSAGE_BYTES_MAX: usize = KIB;
/// Objects of one page of a list. More: the list has further pages.
pub const KUBE_PAGE_ITEMS: u32 = 64;
/// How long connecting may take: the name, TCP, TLS. Longer: the server is not there.
pub const KUBE_CONNECT_TIME: Duration = Duration::from_secs(15);
/// How long a call may take, and a list may stand still. Longer: the connection is given up with all that is on it.
pub const KUBE_CALL_TIME: Duration = Duration::from_secs(30);
/// How long a watch lasts before the server ends it and it begins anew (client-go: 5 to 10 minutes).
pub const KUBE_WATCH_TIME: Duration = Duration::from_mins(8);
/// A watch that ends so soon without a word counts as failed: it is not begun anew at once.
pub const KUBE_WATCH_SHORT: Duration = Duration::from_secs(1);
/// First wait after a failure (client-go's reflector); doubles with each further one.
pub const KUBE_RETRY_MIN: Duration = Duration::from_millis(800);
/// Longest wait between two tries, before jitter: a server that is back is found about as soon as by a kubelet, which looks
/// every ten seconds.
pub const KUBE_RETRY_MAX: Duration = Duration::from_secs(10);
/// First wait before a certificate that was asked for is looked for again; doubles.
pub const CSR_POLL_MIN: Duration = Duration::from_secs(1);
/// Longest such wait, for as long as nobody says yes or no.
pub const CSR_POLL_MAX: Duration = Duration::from_secs(15);
/// The same of a request that somebody has to approve by hand.
pub const CSR_POLL_SERVER_MAX: Duration = Duration::from_mins(5);
/// First wait before another certificate is asked for when one was refused; doubles.
pub const CSR_RETRY_MIN: Duration = Duration::from_secs(10);
/// Longest such wait: requests stay with the server for an hour.
pub const CSR_RETRY_MAX: Duration = Duration::from_mins(15);
/// How often the node's certificate is looked at: it, or the clock, may be another one.
pub const CERTIFICATE_LOOK: Duration = Duration::from_mins(10);
/// Requests and watches at once on the connection, of the 250 that the server allows.
pub const KUBE_STREAMS_MAX: usize = 200;
/// Bytes a stream may send before they are read. Full: the server waits.
pub const KUBE_WINDOW_STREAM_BYTES: u32 = 64 * 1024;
/// The same of all streams together.
pub const KUBE_WINDOW_CONNECTION_BYTES: u32 = 256 * 1024;
/// Bytes of an answer's head. Longer: the call fails.
pub const KUBE_HEADER_BYTES_MAX: u32 = 16 * 1024;
/// Bytes of a kubeconfig, and of a file that it names. Longer: it is refused.
pub const KUBECONFIG_BYTES_MAX: usize = 256 * KIB;
/// Pods of the API server that are known at once, those that end and those that are refused included; of one that is over and has
/// nothing here nothing is known. Full: a further one waits, with a message, until there is room; all are listed anew then. One
/// that has something here is known all the same.
pub const KUBE_PODS_MAX: usize = 4 * super::PODS_MAX;
/// Least time between two lists of all there is, of which the second looks for what the first had no room for.
pub const KUBE_LIST_AGAIN: Duration = Duration::from_secs(2);
/// Bytes of the hash that a static pod's copy has in its annotation; the node's own are shorter. Longer: cut.
pub const MIRROR_HASH_BYTES_MAX: usize = 64;
/// Ranges of addresses that a Node gives its pods, one of each family. More: left out.
pub const POD_CIDRS_MAX: usize = 2;
/// Bytes of one. Longer: it is none.
pub const POD_CIDR_BYTES_MAX: usize = 64;
/// Files of the directory of CNI configurations that are looked at for others'. More: nothing is written.
pub const CNI_FILES_MAX: usize = 1024;
/// Bytes of the one in our place that are compared with ours. Longer: it is another one, and ours takes its place.
pub const CNI_FILE_BYTES_MAX: u64 = 64 * 1024;
/// Bytes of a persistent volume's path (`PATH_MAX`). Longer: it is refused.
pub const CLAIM_PATH_BYTES_MAX: usize = 4096;
/// Longest wait before a claim without a volume is asked for again.
pub const CLAIM_RETRY_MAX: Duration = Duration::from_secs(10);
/// Readiness gates of a pod. More: the pod is refused.
pub const READINESS_GATES_MAX: usize = 64;
/// Bytes of a condition's status that others have set (`True`, `False`, `Unknown`). Longer: cut.
pub const CONDITION_STATUS_BYTES_MAX: usize = 16;
/// Bytes each of the phase, the reason and the message of a pod that others have set to Succeeded or Failed. Longer: cut.
pub const TERMINAL_STATUS_TEXT_BYTES_MAX: usize = 1024;
/// How long a lease holds, unless configured (`nodeLeaseDurationSeconds`).
pub const LEASE_SECONDS: u16 = 40;
/// How often the node looks whether its status has changed, unless configured (`nodeStatusUpdateFrequency`).
pub const NODE_LOOK_PERIOD: Duration = Duration::from_secs(10);
/// How often an unchanged status is told all the same, unless configured (`nodeStatusReportFrequency`).
pub const NODE_REPORT_PERIOD: Duration = Duration::from_mins(5);
/// How often the images that the Node tells of are listed (kubelet `imageCache`: 30 s).
pub const NODE_IMAGES_PERIOD: Duration = Duration::from_mins(1);
/// Images that it tells of, the largest ones (`nodeStatusMaxImages`). More: the rest is not told.
pub const NODE_IMAGES_MAX: usize = 50;
/// Names of one of them (`MaxNamesPerImageInNodeStatus`). More: not told.
pub const NODE_IMAGE_NAMES_MAX: usize = 5;
/// Bytes of one of these names. Longer: not told.
pub const NODE_IMAGE_NAME_BYTES_MAX: usize = 512;
/// Labels that are given with `--node-labels`. More: refused.
pub const NODE_LABELS_MAX: usize = 64;
/// Taints a node is registered with. More: refused.
pub const NODE_TAINTS_MAX: usize = 64;
/// Refusals of the server's that are said once in `NODE_REPORT_PERIOD` each. Full: further ones are not said.
pub const KUBE_REFUSALS_SAID_MAX: usize = 64;
/// How long it is doubted that the node's labels do not fit a new pod: the word of them may be on its way.
pub const ADMISSION_DOUBT: Duration = Duration::from_secs(2);
/// How often a status that somebody changes again and again is sent once more (`syncPeriod` of the kubelet's status manager).
pub const STATUS_CORRECTION_PERIOD: Duration = Duration::from_secs(10);
/// Statuses and deletions of pods that are told at once. Full: further ones wait for their turn.
pub const KUBE_TELLING_MAX: usize = 4;
/// ConfigMaps, Secrets, tokens, claims, classes and services' namespaces that are followed at once: nine for each of 110 pods.
/// Those of manifests do not count here: no pod of an API server has them.
/// Full: a further pod that names others waits, with a message, until there is room.
pub const KUBE_OBJECTS_MAX: usize = 1024;
/// ConfigMaps and Secrets of them that are watched, a stream of the connection each. Full: further ones are listed now and then.
pub const KUBE_WATCHES_MAX: u32 = 128;
/// The same of services and classes, which come last.
pub const KUBE_WATCHES_ALL_MAX: u32 = KUBE_WATCHES_MAX + 24;
/// How often what is not watched is listed (the kubelet's `defaultTTL`), give or take half of it.
pub const KUBE_LIST_PERIOD: Duration = Duration::from_mins(1);
/// Time between two such lists, about: many together come less often.
pub const KUBE_LIST_SPACING: Duration = Duration::from_millis(200);
/// How often the node asks again, in short order, for what the server does not let it read yet.
pub const NODE_AUTHORIZER_TRIES: u32 = 5;
/// The first wait before that; doubles.
pub const NODE_AUTHORIZER_WAIT: Duration = Duration::from_millis(25);
/// Bytes of a pod's name in that of an event. Longer: cut; the rest tells them apart.
pub const EVENT_NAME_BYTES_MAX: usize = 200;
/// Services of one namespace. More: those that come behind them have no variables.
pub const KUBE_SERVICES_MAX: usize = 256;
/// Memory of what was found of them. Full: the pods that name a further one wait, with a message, until there is room.
pub const KUBE_OBJECTS_BYTES_MAX: usize = 2 * MIB;
/// A token is renewed after so long, however long it holds (kubelet `maxTTL`).
pub const TOKEN_AGE_MAX: Duration = Duration::from_hours(24);
/// Longest wait before a token is asked for again.
pub const TOKEN_RETRY_MAX: Duration = Duration::from_secs(20);
/// What a node of a cluster keeps beside what each keeps; `node::cluster` measures it in this order.
pub static CLUSTER_BOUNDS: [Bound; CLUSTER_BOUNDED] = CLUSTER_BOUNDS_TABLE;
/// How many there are.
pub const CLUSTER_BOUNDED: usize = 13;
const CLUSTER_BOUNDS_TABLE: [Bound; CLUSTER_BOUNDED] = [
    // All that are known, those that end, are over or are refused included; and what stays open of large ones.
    Bound {
        name: "cluster_pods",
        entries_max: KUBE_PODS_MAX,
        bytes_max: PODS_BYTES_MAX + ENDED_PODS_BYTES_MAX + PODS_OPENED_BYTES_MAX,
    },
    Bound { name: "cluster_objects", entries_max: KUBE_OBJECTS_MAX, bytes_max: KUBE_OBJECTS_BYTES_MAX },
    Bound {
        name: "server_calls",
        entries_max: KUBE_CALLS_MAX,
        bytes_max: KUBE_WINDOW_CONNECTION_BYTES as usize,
    },
    // On their way to the disk: pods as they came, and what they name.
    Bound { name: "kept_changes", entries_max: 2 * KEPT_RECORDS_MAX, bytes_max: 2 * KEPT_TREES_BYTES_MAX },
    Bound { name: "resizes_waiting", entries_max: PODS_MAX, bytes_max: RESIZES_WAITING_BYTES_MAX },
    Bound::of("refusals_said", KUBE_REFUSALS_SAID_MAX, 2 * KUBE_MESSAGE_BYTES_MAX),
    Bound::of("node_images", NODE_IMAGES_MAX, NODE_IMAGE_NAMES_MAX * NODE_IMAGE_NAME_BYTES_MAX),
    Bound::of("node_api_connections", NODE_CONNECTIONS_MAX, NODE_CONNECTION_BYTES),
    // As many tokens of nobody, of which the digest is kept.
    Bound::of("node_api_users", 2 * NODE_USERS_MAX, NODE_USER_BYTES_MAX / 2 + NODE_KNOWN_BYTES),
    Bound::of("node_api_decisions", NODE_DECISIONS_MAX, NODE_KNOWN_BYTES),
    // As the API's addresses, and as those that are told and kept.
    Bound::of("api_servers", K3S_SERVERS_MAX, 4 * (K3S_SERVER_BYTES_MAX + 64)),
    Bound {
        name: "tunnels",
        entries_max: TUNNELS_MAX,
        bytes_max: TUNNELS_MAX * TUNNEL_BYTES + TUNNEL_QUEUED_BYTES_MAX,
    },
    Bound::of("tunnel_connections", TUNNEL_CONNECTIONS_MAX, NODE_SPLICE_BYTES + KIB),
];
/// The sum of them.
pub const KUBE_MEMORY_MAX: usize = {
    let (mut sum, mut index) = (0, 0);
    while index < CLUSTER_BOUNDED {
        sum += CLUSTER_BOUNDS_TABLE[index].bytes_max;
        index += 1;
    }
    sum
};
/// Requests at once, besides the streams of watches. Full: further ones wait.
pub const KUBE_CALLS_MAX: usize = 16;
const _: () = assert!(KUBE_WATCHES_ALL_MAX as usize + KUBE_CALLS_MAX + 8 <= KUBE_STREAMS_MAX);
