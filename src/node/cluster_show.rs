//! What a node of a cluster holds besides what each holds, for `/metrics` and `smolet top --self`.

use super::agent::Agent;
use crate::cluster::node_images::NodeImage;
use crate::cri::Runtime;
use crate::limits::{
    CLUSTER_BOUNDED, CLUSTER_BOUNDS, K3S_SERVER_BYTES_MAX, KUBE_WINDOW_CONNECTION_BYTES,
    NODE_CONNECTION_BYTES, NODE_KNOWN_BYTES, NODE_SPLICE_BYTES, NODE_USER_BYTES_MAX, TUNNEL_BYTES,
    TUNNEL_QUEUED_BYTES_MAX,
};
use crate::metrics::{Gauge, Usage};
use crate::source;

impl<R: Runtime + 'static> Agent<R> {
    /// How often the node went to another of its cluster's API servers; `None`: it is alone.
    pub(super) fn server_moves(&self) -> Option<u64> {
        self.cluster.as_ref().map(|cluster| cluster.client.moves())
    }

    /// The use of each of `limits::CLUSTER_BOUNDS`, in that order; none on a node that is alone.
    pub(super) fn cluster_usage(&self) -> Vec<Usage> {
        let Some(cluster) = &self.cluster else { return Vec::new() };
        let held = self.held.get(source::API);
        let (calls, servers) = (cluster.client.calls_under_way(), cluster.client.others());
        let api = &self.metrics.node_api;
        let [connections, users, decisions] = [&api.connections, &api.users, &api.decisions].map(Gauge::get);
        let [tunnels, through] = [&api.tunnels, &api.tunnel_connections].map(Gauge::get);
        let used: [(usize, usize); CLUSTER_BOUNDED] = [
            (cluster.pods.len(), held.map_or(0, |held| held.pod_bytes) + self.opened_bytes()),
            cluster.following.held(),
            // What its buffers may hold; how full they are only the kernel and hyper know.
            (calls, if calls > 0 { KUBE_WINDOW_CONNECTION_BYTES as usize } else { 0 }),
            cluster.keeping.held(),
            self.resizes_waiting(None),
            cluster.said.held(),
            (cluster.status.images().len(), cluster.status.images().iter().map(NodeImage::bytes).sum()),
            (connections, connections * NODE_CONNECTION_BYTES),
            (users, users * (NODE_USER_BYTES_MAX / 2 + NODE_KNOWN_BYTES)),
            (decisions, decisions * NODE_KNOWN_BYTES),
            (servers, servers * 4 * (K3S_SERVER_BYTES_MAX + 64)),
            (tunnels, tunnels * TUNNEL_BYTES + if tunnels > 0 { TUNNEL_QUEUED_BYTES_MAX } else { 0 }),
            (through, through * NODE_SPLICE_BYTES),
        ];
        let of = |(bound, (entries, bytes))| Usage::of(bound, entries, bytes);
        CLUSTER_BOUNDS.iter().zip(used).map(of).collect()
    }
}
