//! Bounds of the requests to an API server, and of its responses.

use std::time::Duration;

use super::{
    Bound, ENDED_PODS_BYTES_MAX, ENDPOINTS_MAX, FLANNEL_PEER_BYTES, FLANNEL_PEERS_MAX,
    K3S_BALANCER_CONNECTIONS_MAX, K3S_BALANCER_PIECE_BYTES, K3S_SERVER_BYTES_MAX, K3S_SERVERS_MAX, KIB, MIB,
    NETWORK_POLICY_BYTES_MAX, NETWORK_POLICY_NEW_PODS_BYTES_MAX, NETWORK_POLICY_NEW_PODS_MAX,
    NETWORK_POLICY_PODS_MAX, NODE_CONNECTION_BYTES, NODE_CONNECTIONS_MAX, NODE_DECISIONS_MAX,
    NODE_KNOWN_BYTES, NODE_SPLICE_BYTES, NODE_USER_BYTES_MAX, NODE_USERS_MAX, OFFLINE_RECORDS_MAX,
    OFFLINE_TREES_BYTES_MAX, PODS_BYTES_MAX, PODS_MAX, PODS_OPENED_BYTES_MAX, RESIZES_WAITING_BYTES_MAX,
    SERVICE_PORTS_MAX, SERVICES_BYTES_MAX, TUNNEL_BYTES, TUNNEL_CONNECTIONS_MAX, TUNNEL_QUEUED_BYTES_MAX,
    TUNNELS_MAX,
};

/// Bytes of one object as JSON. Longer: it is skipped with a message; the server itself takes 1.5 MiB.
pub const KUBE_OBJECT_BYTES_MAX: usize = 2 * MIB;
/// Bytes of a list besides its items. Longer: the list is refused.
pub const KUBE_HEAD_BYTES_MAX: usize = 64 * KIB;
/// Bytes of a response that is buffered whole. Longer: the call fails.
pub const KUBE_ANSWER_BYTES_MAX: usize = KUBE_OBJECT_BYTES_MAX;
/// Bytes of an error response. Longer: only the HTTP status is reported.
pub const KUBE_ERROR_BYTES_MAX: usize = 16 * KIB;
/// Bytes of the server's message in an error. Longer: cut.
pub const KUBE_MESSAGE_BYTES_MAX: usize = KIB;
/// Objects of one page of a list. More: the list has further pages.
pub const KUBE_PAGE_ITEMS: u32 = 64;
/// How long connecting may take: name resolution, TCP, TLS. Longer: the server counts as unreachable.
pub const KUBE_CONNECT_TIME: Duration = Duration::from_secs(15);
/// How long a call may take, and a list may receive nothing. Longer: the connection is closed with all calls on it.
pub const KUBE_CALL_TIME: Duration = Duration::from_secs(30);
/// Silence of a connection after which the server is asked whether it is there, and the time between the questions. Without an answer
/// for `KUBE_CALL_TIME`: closed (client-go: 30 s and 15 s).
pub const KUBE_KEEPALIVE: Duration = Duration::from_secs(15);
/// How long a watch lasts before the server ends it and it begins anew (client-go: 5 to 10 minutes).
pub const KUBE_WATCH_TIME: Duration = Duration::from_mins(8);
/// A watch that ends sooner than this without an event counts as failed: it is not restarted at once.
pub const KUBE_WATCH_SHORT: Duration = Duration::from_secs(1);
/// First wait after a failure (client-go's reflector); doubles with each further one.
pub const KUBE_RETRY_MIN: Duration = Duration::from_millis(800);
/// Longest wait between two attempts, before jitter: a server that is reachable again is found about as soon as by a kubelet,
/// which retries every ten seconds.
pub const KUBE_RETRY_MAX: Duration = Duration::from_secs(10);
/// First wait before a certificate signing request is read again; doubles.
pub const CSR_POLL_MIN: Duration = Duration::from_secs(1);
/// Longest such wait, for as long as the request is neither approved nor denied.
pub const CSR_POLL_MAX: Duration = Duration::from_secs(15);
/// The same for a request that has to be approved by hand.
pub const CSR_POLL_SERVER_MAX: Duration = Duration::from_mins(5);
/// First wait before another request after a denied one; doubles.
pub const CSR_RETRY_MIN: Duration = Duration::from_secs(10);
/// Longest such wait: requests stay in the server for an hour.
pub const CSR_RETRY_MAX: Duration = Duration::from_mins(15);
/// How often the node's certificate is checked: it, or the clock, may have changed.
pub const CERTIFICATE_CHECK_PERIOD: Duration = Duration::from_mins(10);
/// Requests and watches at once on the connection, of the 250 that the server allows.
pub const KUBE_STREAMS_MAX: usize = 200;
/// Flow-control window of a stream. Full: the server waits.
pub const KUBE_WINDOW_STREAM_BYTES: u32 = 64 * 1024;
/// Flow-control window of the connection.
pub const KUBE_WINDOW_CONNECTION_BYTES: u32 = 256 * 1024;
/// Bytes of a response's head. Longer: the call fails.
pub const KUBE_HEADER_BYTES_MAX: u32 = 16 * 1024;
/// Bytes of a kubeconfig, and of a file that it references. Longer: it is refused.
pub const KUBECONFIG_BYTES_MAX: usize = 256 * KIB;
/// Pods of the API server that are known at once, terminating and rejected ones included; a terminated pod without anything on
/// this node is not kept. Full: a further one waits, with a message, until there is space; then all pods are listed again. A pod
/// that has something on this node is known all the same.
pub const KUBE_PODS_MAX: usize = 4 * super::PODS_MAX;
/// Least time between two full lists, of which the second fetches the pods that did not fit before.
pub const KUBE_LIST_AGAIN: Duration = Duration::from_secs(2);
/// Bytes of a mirror pod's hash annotation; the node's own are shorter. Longer: cut.
pub const MIRROR_HASH_BYTES_MAX: usize = 64;
/// A Node's `podCIDRs`, one of each family. More: left out.
pub const POD_CIDRS_MAX: usize = 2;
/// Bytes of one of `podCIDRs`. Longer: it is ignored.
pub const POD_CIDR_BYTES_MAX: usize = 64;
/// Files of the CNI configuration directory that are read for other configurations. More: nothing is written.
pub const CNI_FILES_MAX: usize = 1024;
/// Bytes of the existing file of smolet's name that are compared with its own. Longer: it differs, and is replaced.
pub const CNI_FILE_BYTES_MAX: u64 = 64 * 1024;
/// Bytes of a persistent volume's path (`PATH_MAX`). Longer: it is refused.
pub const CLAIM_PATH_BYTES_MAX: usize = 4096;
/// Longest wait before an unbound claim is read again.
pub const CLAIM_RETRY_MAX: Duration = Duration::from_secs(10);
/// Readiness gates of a pod. More: the pod is refused.
pub const READINESS_GATES_MAX: usize = 64;
/// Bytes of the status of a condition that another client has set (`True`, `False`, `Unknown`). Longer: cut.
pub const CONDITION_STATUS_BYTES_MAX: usize = 16;
/// Bytes each of the phase, the reason and the message of a pod that another client has set to Succeeded or Failed. Longer: cut.
pub const TERMINAL_STATUS_TEXT_BYTES_MAX: usize = 1024;
/// Duration of the node lease, unless configured (`nodeLeaseDurationSeconds`).
pub const LEASE_SECONDS: u16 = 40;
/// How often the node's status is computed, unless configured (`nodeStatusUpdateFrequency`).
pub const NODE_STATUS_UPDATE_PERIOD: Duration = Duration::from_secs(10);
/// How long after the other it is computed at least while the node is not ready (kubelet `fastStatusUpdateOnce`: 100 ms).
pub const NODE_UNREADY_UPDATE_PERIOD: Duration = Duration::from_millis(500);
/// And at most this part of the time since the start: a node that is not ready for long is looked at as every other one.
pub const NODE_UNREADY_PART: u32 = 8;
/// How often an unchanged status is reported all the same, unless configured (`nodeStatusReportFrequency`).
pub const NODE_REPORT_PERIOD: Duration = Duration::from_mins(5);
/// How often the images of the Node's status are listed (kubelet `imageCache`: 30 s).
pub const NODE_IMAGES_PERIOD: Duration = Duration::from_mins(1);
/// Images in the Node's status, the largest ones (`nodeStatusMaxImages`). More: the rest is left out.
pub const NODE_IMAGES_MAX: usize = 50;
/// Names of one image in the Node's status (`MaxNamesPerImageInNodeStatus`). More: left out.
pub const NODE_IMAGE_NAMES_MAX: usize = 5;
/// Bytes of one of these names. Longer: left out.
pub const NODE_IMAGE_NAME_BYTES_MAX: usize = 512;
/// Labels of `--node-labels`. More: refused.
pub const NODE_LABELS_MAX: usize = 64;
/// Taints a node is registered with. More: refused.
pub const NODE_TAINTS_MAX: usize = 64;
/// Rejections by the server that are logged once in `NODE_REPORT_PERIOD` each. Full: further ones are not logged.
pub const KUBE_REFUSALS_LOGGED_MAX: usize = 64;
/// How long a new pod whose node selector does not match is not rejected yet: the watch may still deliver the node's new labels.
pub const ADMISSION_DOUBT: Duration = Duration::from_secs(2);
/// How often a status that another client changes again and again is sent once more (`syncPeriod` of the kubelet's status
/// manager).
pub const STATUS_CORRECTION_PERIOD: Duration = Duration::from_secs(10);
/// Status updates and deletions of pods in flight at once. Full: further ones wait for their turn.
pub const KUBE_STATUS_CALLS_MAX: usize = 4;
/// ConfigMaps, Secrets, tokens, claims, classes and services' namespaces that are read for pods at once: nine for each of 110
/// pods. Those of manifests do not count: no pod of an API server has them. Full: a further pod that references others waits,
/// with a message, until there is space.
pub const KUBE_OBJECTS_MAX: usize = 1024;
/// ConfigMaps and Secrets of them that are watched, one stream of the connection each. Full: further ones are listed
/// periodically.
pub const KUBE_WATCHES_MAX: u32 = 128;
/// The same with services and classes, which come last.
pub const KUBE_WATCHES_ALL_MAX: u32 = KUBE_WATCHES_MAX + 24;
/// How often unwatched objects are listed (the kubelet's `defaultTTL`), with a jitter of half of it.
pub const KUBE_LIST_PERIOD: Duration = Duration::from_mins(1);
/// Time between two such lists, about: many objects are listed less often.
pub const KUBE_LIST_SPACING: Duration = Duration::from_millis(200);
/// Attempts, in quick succession, to read an object that the node authorizer does not allow yet.
pub const NODE_AUTHORIZER_TRIES: u32 = 5;
/// First wait before such an attempt; doubles.
pub const NODE_AUTHORIZER_WAIT: Duration = Duration::from_millis(25);
/// Bytes of the pod's name in an event's name. Longer: cut; the suffix keeps them distinct.
pub const EVENT_NAME_BYTES_MAX: usize = 200;
/// Services of one namespace. More: those after them have no environment variables.
pub const KUBE_SERVICES_MAX: usize = 256;
/// Memory of these objects. Full: the pods that reference a further one wait, with a message, until there is space.
pub const KUBE_OBJECTS_BYTES_MAX: usize = 2 * MIB;
/// Age at which a token is renewed, however long it is valid (kubelet `maxTTL`).
pub const TOKEN_AGE_MAX: Duration = Duration::from_hours(24);
/// Longest wait before a token is requested again.
pub const TOKEN_RETRY_MAX: Duration = Duration::from_secs(20);
/// What a node of a cluster keeps beside what each keeps; `node::cluster` measures it in this order.
pub static CLUSTER_BOUNDS: [Bound; CLUSTER_BOUNDED] = CLUSTER_BOUNDS_TABLE;
/// Number of these structures.
pub const CLUSTER_BOUNDED: usize = 17;
const CLUSTER_BOUNDS_TABLE: [Bound; CLUSTER_BOUNDED] = [
    // All known pods: terminating, terminated and rejected ones included; and the opened objects of large ones.
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
    // Waiting to be written: pods as received, and the objects that they reference.
    Bound {
        name: "kept_changes",
        entries_max: 2 * OFFLINE_RECORDS_MAX,
        bytes_max: 2 * OFFLINE_TREES_BYTES_MAX,
    },
    Bound { name: "resizes_waiting", entries_max: PODS_MAX, bytes_max: RESIZES_WAITING_BYTES_MAX },
    Bound::of("refusals_said", KUBE_REFUSALS_LOGGED_MAX, 2 * KUBE_MESSAGE_BYTES_MAX),
    Bound::of("node_images", NODE_IMAGES_MAX, NODE_IMAGE_NAMES_MAX * NODE_IMAGE_NAME_BYTES_MAX),
    Bound::of("node_api_connections", NODE_CONNECTIONS_MAX, NODE_CONNECTION_BYTES),
    // Also as many rejected tokens, of which the digest is kept.
    Bound::of("node_api_users", 2 * NODE_USERS_MAX, NODE_USER_BYTES_MAX / 2 + NODE_KNOWN_BYTES),
    Bound::of("node_api_decisions", NODE_DECISIONS_MAX, NODE_KNOWN_BYTES),
    // As the API's addresses, as those of the tunnels, and as those on the disk.
    Bound::of("api_servers", K3S_SERVERS_MAX, 4 * (K3S_SERVER_BYTES_MAX + 64)),
    Bound {
        name: "tunnels",
        entries_max: TUNNELS_MAX,
        bytes_max: TUNNELS_MAX * TUNNEL_BYTES + TUNNEL_QUEUED_BYTES_MAX,
    },
    Bound::of("tunnel_connections", TUNNEL_CONNECTIONS_MAX, NODE_SPLICE_BYTES + KIB),
    Bound::of(
        "load_balancer_connections",
        K3S_BALANCER_CONNECTIONS_MAX,
        2 * (K3S_BALANCER_PIECE_BYTES + KIB),
    ),
    // The records of the cluster's objects, and what the kernel has of them.
    Bound {
        name: "services",
        entries_max: SERVICE_PORTS_MAX + ENDPOINTS_MAX,
        bytes_max: 2 * SERVICES_BYTES_MAX,
    },
    // While all Nodes are listed, those that are listed besides those that are known.
    Bound::of("flannel_peers", 2 * FLANNEL_PEERS_MAX, FLANNEL_PEER_BYTES),
    // Pods of the cluster, beside those of this node.
    Bound {
        name: "network_policy_pods",
        entries_max: NETWORK_POLICY_PODS_MAX + KUBE_PODS_MAX + NETWORK_POLICY_NEW_PODS_MAX,
        bytes_max: NETWORK_POLICY_BYTES_MAX + NETWORK_POLICY_NEW_PODS_BYTES_MAX,
    },
];
/// Sum of `bytes_max`.
pub const KUBE_MEMORY_MAX: usize = {
    let (mut sum, mut index) = (0, 0);
    while index < CLUSTER_BOUNDED {
        sum += CLUSTER_BOUNDS_TABLE[index].bytes_max;
        index += 1;
    }
    sum
};
/// Requests at once, besides the streams of watches. Full: further requests wait.
pub const KUBE_CALLS_MAX: usize = 16;
const _: () = assert!(KUBE_WATCHES_ALL_MAX as usize + KUBE_CALLS_MAX + 8 <= KUBE_STREAMS_MAX);
