//! A build without TLS joins no cluster.

use std::rc::Rc;

use k8s_openapi::api::core::v1::Pod;
use smol::channel::Sender;

use super::agent::{Agent, Event};
use super::node_api;
use crate::addresses::NodeAddresses;
use crate::admit::Rejection;
use crate::admit::resize::Pending;
use crate::blocking::Blocking;
use crate::clock::SharedClock;
use crate::config::Config;
use crate::cri::{Runtime, RuntimeHandler, RuntimeVersion};
use crate::executor::Executor;
use crate::metrics::{NodeApiUse, Usage};
use crate::model::{DesiredPod, Mono, Now, PodKey, PodUid, Seconds};
use crate::render::NodeSettings;
use crate::server::Query;
use crate::source::SourceUpdate;

/// There is none to hand over.
pub enum Joined {}

/// There is none to keep.
pub(super) enum Cluster {}

/// There is none to come.
pub(super) enum ClusterEvent {}

pub(super) fn begin(joined: Joined, _: &Rc<Executor>, _: &Sender<Event>, _: &SharedClock) -> Cluster {
    match joined {}
}

/// Nothing of a cluster is kept.
pub(super) fn remember(_: &Config, _: &mut NodeSettings) {}

pub(super) fn join(
    _: &Config,
    _: &NodeSettings,
    _: &NodeAddresses,
    _: (&RuntimeVersion, &[RuntimeHandler]),
    _: &Rc<Executor>,
    _: &SharedClock,
    _: Option<(node_api::Listening, Sender<Query>, Rc<Blocking>, NodeApiUse)>,
) -> Option<Joined> {
    None
}

impl<R: Runtime + 'static> Agent<R> {
    #[expect(clippy::unused_self, reason = "with a cluster it looks at the state")]
    pub(super) fn cluster_due(&self) -> Option<Mono> {
        None
    }

    pub(super) fn turn_cluster(&mut self, _: Now) {}

    #[expect(clippy::unused_self, reason = "with a cluster it looks at the state")]
    pub(super) fn admit_static(
        &mut self,
        _: &PodUid,
        _: &DesiredPod,
        _: &[Rc<Pod>],
    ) -> Option<Result<(), Option<Rejection>>> {
        None
    }

    #[expect(clippy::unused_self, reason = "with a cluster it looks at the state")]
    pub(super) fn tell_pods_here(&self) {}
    #[expect(clippy::unused_self, reason = "with a cluster it says so there")]
    pub(super) fn note_start(&self) {}

    pub(super) fn tell_node(&mut self) {}

    #[expect(clippy::unused_self, reason = "with a cluster it looks at the state")]
    pub(super) fn node_is_told(&self) -> bool {
        true
    }

    #[expect(clippy::unused_self, reason = "with a cluster it looks at the state")]
    pub(super) fn note_missing_dns(&self, _: &DesiredPod) {}

    pub(super) fn node_has_addresses(&mut self, _: &[Box<str>]) {}

    pub(super) fn cluster_event(&mut self, event: ClusterEvent) {
        match event {}
    }

    pub(super) fn server_pods(&mut self, _: &mut SourceUpdate) {}

    #[expect(clippy::unused_self, reason = "with a cluster it looks at the state")]
    pub(super) fn is_deleted(&self, _: &PodUid) -> bool {
        false
    }

    #[expect(clippy::unused_self, reason = "with a cluster it looks at the state")]
    pub(super) fn deletion_grace(&self, _: &PodUid) -> Option<Seconds> {
        None
    }

    #[expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "with a cluster it looks at the state")]
    pub(super) fn asks_for_room(&mut self, _: &PodUid, _: &DesiredPod) -> Option<Result<(), Pending>> {
        Some(Ok(()))
    }

    #[expect(clippy::unused_self, reason = "with a cluster it looks at the state")]
    pub(super) fn waits_for_objects(&self, _: &PodUid) -> bool {
        false
    }

    #[expect(clippy::unused_self, reason = "with a cluster it looks at the state")]
    pub(super) fn server_moves(&self) -> Option<u64> {
        None
    }

    #[expect(clippy::unused_self, reason = "with a cluster it looks at the state")]
    pub(super) fn cluster_usage(&self) -> Vec<Usage> {
        Vec::new()
    }

    pub(super) fn cluster_forgets(&mut self, _: &PodKey) {}
}
