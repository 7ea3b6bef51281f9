//! A build without TLS joins no cluster.

use std::rc::Rc;

use smol::channel::Sender;

use super::effects::{Effects, Forgotten, Tasks};
use super::node_api;
use super::pods::{NodeRoom, Pods};
use crate::addresses::NodeAddresses;
use crate::blocking::Blocking;
use crate::clock::SharedClock;
use crate::config::Config;
use crate::cri::{RuntimeHandler, RuntimeVersion};
use crate::executor::Executor;
use crate::metrics::{NodeApiUse, Usage};
use crate::model::{Mono, Now};
use crate::render::NodeSettings;
use crate::server::Query;
use crate::sync::act::PodNetwork;

/// There is no cluster to join.
pub enum Joined {}

impl Joined {
    pub(super) fn network(&self, _: SharedClock) -> Box<dyn PodNetwork> {
        match *self {}
    }
}

/// There is no membership.
pub(super) enum Cluster {}

/// There is no event.
pub(super) enum ClusterEvent {}

/// The given name.
pub(super) fn node_name(config: &Config) -> Result<Option<String>, String> {
    Ok(config.node_name.clone())
}

/// There are no stored settings of a cluster.
pub(super) fn remember(_: &Config, _: &mut NodeSettings, _: &NodeAddresses) {}

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

impl Cluster {
    pub(super) fn begin(joined: Joined, _: &Tasks, _: &SharedClock) -> Self {
        match joined {}
    }

    pub(super) fn room(&self) -> NodeRoom {
        match *self {}
    }

    pub(super) fn due<R>(&self, _: &Pods<R>, _: &Effects) -> Option<Mono> {
        match *self {}
    }

    pub(super) fn turn_admission(&self, _: Mono, _: &mut Effects) {
        match *self {}
    }

    pub(super) fn turn<R>(&mut self, _: &Pods<R>, _: Now, _: &mut Effects) {
        match *self {}
    }

    pub(super) fn take<R>(&mut self, _: ClusterEvent, _: &Pods<R>, _: Mono, _: &mut Effects) {
        match *self {}
    }

    pub(super) fn forget(&mut self, _: Forgotten) {
        match *self {}
    }

    pub(super) fn publish_local_pods<R>(&self, _: &Pods<R>) {
        match *self {}
    }

    pub(super) fn report_node(&mut self, _: Mono) {
        match *self {}
    }

    pub(super) fn is_node_reported(&self) -> bool {
        match *self {}
    }

    pub(super) fn set_addresses(&mut self, _: &[Box<str>], _: Mono) {
        match *self {}
    }

    #[expect(clippy::unused_async, reason = "with a cluster it awaits the disk")]
    pub(super) async fn save_offline_copy<R>(&mut self, _: &Pods<R>) {
        match *self {}
    }

    pub(super) fn server_moves(&self) -> u64 {
        match *self {}
    }

    pub(super) fn is_registered(&self) -> bool {
        match *self {}
    }

    pub(super) fn usage<R>(&self, _: &Pods<R>, _: &Effects) -> Vec<Usage> {
        match *self {}
    }
}
