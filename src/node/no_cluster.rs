//! A build without TLS joins no cluster.

use super::agent::Agent;
use crate::cri::Runtime;
use crate::model::{Mono, Now, PodKey, PodUid};
use crate::source::SourceUpdate;

/// There is none to hand over.
pub enum Joined {}

/// There is none to keep.
pub(super) enum Cluster {}

/// There is none to come.
pub(super) enum ClusterEvent {}

impl<R: Runtime + 'static> Agent<R> {
    #[expect(clippy::unused_self, reason = "with a cluster it looks at the state")]
    pub(super) fn cluster_due(&self) -> Option<Mono> {
        None
    }

    pub(super) fn turn_cluster(&mut self, _: Now) {}

    pub(super) fn cluster_event(&mut self, event: ClusterEvent) {
        match event {}
    }

    pub(super) fn server_pods(&mut self, _: &mut SourceUpdate) {}

    #[expect(clippy::unused_self, reason = "with a cluster it looks at the state")]
    pub(super) fn is_deleted(&self, _: &PodUid) -> bool {
        false
    }

    #[expect(clippy::unused_self, reason = "with a cluster it looks at the state")]
    pub(super) fn waits_for_objects(&self, _: &PodUid) -> bool {
        false
    }

    pub(super) fn cluster_forgets(&mut self, _: &PodKey) {}
}
