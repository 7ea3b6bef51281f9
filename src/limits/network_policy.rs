//! Bounds of network policies.

use std::time::Duration;

use super::{KIB, MIB};

/// Policies that are kept. Full: all connections of the pods in the namespace of a further one are denied, with a message, until there
/// is room.
pub const NETWORK_POLICIES_MAX: usize = 1024;
/// Rules, peers, exceptions and ports of one policy together. More: it allows nothing to the pods that it selects, with a message.
pub const NETWORK_POLICY_TERMS_MAX: usize = 1024;
/// Pods of other nodes that are kept while there are policies. Full: no policy allows a further one as a peer, with a message, until
/// there is room.
pub const NETWORK_POLICY_PODS_MAX: usize = 10_000;
/// Bytes of one pod with its labels, on average; a label's text is held once for all pods.
pub const NETWORK_POLICY_POD_BYTES: usize = 200;
/// Bytes of the specifications of all policies, about. Full: a further one allows nothing in its namespace, with a message.
pub const NETWORK_POLICY_SPECS_BYTES_MAX: usize = MIB;
/// Bytes of all records. Full: as with too many pods.
pub const NETWORK_POLICY_BYTES_MAX: usize = 3 * MIB;
/// Namespaces that are kept, those of policies and of this node's pods besides. Full: no `namespaceSelector` selects a further one,
/// with a message.
pub const NETWORK_POLICY_NAMESPACES_MAX: usize = 4096;
/// Labels of a pod or a namespace. More: it is no peer of any policy, and each policy of its namespace isolates the pod.
pub const NETWORK_POLICY_LABELS_MAX: usize = 128;
/// Named ports of a pod. More: the later ones are unknown, and no policy allows them.
pub const NETWORK_POLICY_POD_PORTS_MAX: usize = 64;
/// Pods in the kernel's sets, each once for each selector of a peer. Full: no policy allows a further one as a peer, with a message.
pub const NETWORK_POLICY_MEMBERS_MAX: usize = 65_536;
/// Changes within this time are one transaction: the start of a node has hundreds.
pub const NETWORK_POLICY_SETTLE: Duration = Duration::from_millis(10);
/// How long a new pod waits for its rules before its first container starts. Longer: it starts, and they follow.
pub const NETWORK_POLICY_START_WAIT: Duration = Duration::from_secs(2);
/// Requests for policies that had no credentials, one each `COMPONENT_CREDENTIALS_WAIT`, behind which new pods wait no longer.
pub const NETWORK_POLICY_CREDENTIALS_TRIES: u32 = 15;
/// New pods that wait at once. Full: a further one does not wait.
pub const NETWORK_POLICY_STARTS_MAX: usize = 64;
/// New pods of this node that the API server has not shown with their address yet. Full: the oldest one is forgotten.
pub const NETWORK_POLICY_NEW_PODS_MAX: usize = 2 * super::PODS_MAX;
/// Bytes of their names, labels and ports, which are kept while nobody follows pods. More: the oldest are forgotten.
pub const NETWORK_POLICY_NEW_PODS_BYTES_MAX: usize = 512 * KIB;
/// How often the kernel is asked whether the table is there: whoever flushes all rules takes it away.
pub const NETWORK_POLICY_CHECK_PERIOD: Duration = Duration::from_secs(30);
/// Bytes of a transaction's elements, with those of both families of a pod.
const MEMBER_BYTES: usize = 16 + 32;
const _: () = assert!(NETWORK_POLICY_MEMBERS_MAX * MEMBER_BYTES + 4 * MIB <= super::NETLINK_SEND_BYTES_MAX);
const _: () = assert!(
    NETWORK_POLICY_PODS_MAX * NETWORK_POLICY_POD_BYTES + NETWORK_POLICY_SPECS_BYTES_MAX + 64 * KIB
        <= NETWORK_POLICY_BYTES_MAX
);
