//! Bounds of what is asked of an API server, and of what it answers.

use std::time::Duration;

use super::{KIB, MIB};

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
/// Longest wait between two tries, before jitter.
pub const KUBE_RETRY_MAX: Duration = Duration::from_secs(30);
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
/// Pods of the API server that are known at once, those that end and those that are refused included. Full: a further one
/// is passed over with a message.
pub const KUBE_PODS_MAX: usize = 4 * super::PODS_MAX;
/// How often the lease is renewed (kubelet: a quarter of `nodeLeaseDurationSeconds`).
pub const LEASE_PERIOD: Duration = Duration::from_secs(10);
/// How long a lease holds (`nodeLeaseDurationSeconds`).
pub const LEASE_SECONDS: i32 = 40;
/// How often the node looks whether its status has changed (`nodeStatusUpdateFrequency`).
pub const NODE_LOOK_PERIOD: Duration = Duration::from_secs(10);
/// How often an unchanged status is told all the same (`nodeStatusReportFrequency`).
pub const NODE_REPORT_PERIOD: Duration = Duration::from_mins(5);
/// How long it is doubted that the node's labels do not fit a new pod: the word of them may be on its way.
pub const ADMISSION_DOUBT: Duration = Duration::from_secs(2);
/// Statuses and deletions of pods that are told at once. Full: further ones wait for their turn.
pub const KUBE_TELLING_MAX: usize = 4;
/// ConfigMaps, Secrets and tokens that are followed at once. Full: a further one is not, its pods wait, with a message.
pub const KUBE_OBJECTS_MAX: usize = 256;
/// ConfigMaps and Secrets of them, a stream of the connection each.
pub const KUBE_WATCHES_MAX: usize = 128;
/// Bytes of a pod's name in that of an event. Longer: cut; the rest tells them apart.
pub const EVENT_NAME_BYTES_MAX: usize = 200;
/// Services of one namespace. More: those that come behind them have no variables.
pub const KUBE_SERVICES_MAX: usize = 256;
/// Memory of what was found of them. Full: a further one counts as not there, with a message.
pub const KUBE_OBJECTS_BYTES_MAX: usize = 2 * MIB;
/// A token is renewed after so long, however long it holds (kubelet `maxTTL`).
pub const TOKEN_AGE_MAX: Duration = Duration::from_hours(24);
/// Longest wait before a token is asked for again.
pub const TOKEN_RETRY_MAX: Duration = Duration::from_secs(20);
/// What a node of a cluster keeps beside what each keeps: the server's pods, what they name, and what is on its way to it.
pub const KUBE_MEMORY_MAX: usize =
    super::PODS_BYTES_MAX + KUBE_OBJECTS_BYTES_MAX + KUBE_WINDOW_CONNECTION_BYTES as usize;
/// Requests at once, besides the streams of watches. Full: further ones wait.
pub const KUBE_CALLS_MAX: usize = 16;
const _: () = assert!(KUBE_WATCHES_MAX + KUBE_CALLS_MAX + 8 <= KUBE_STREAMS_MAX);
