//! Which endpoints this node may use (`CategorizeEndpoints`). PURE.
//!
//! | | ready ones | none of them is ready |
//! |---|---|---|
//! | policy `Cluster` | those that the hints are for, else all | those that still serve while they terminate |
//! | policy `Local` | those of this node | those of this node that still serve while they terminate |
//!
//! The policies fall back apart from each other: `Local` uses terminating endpoints of this node while other nodes have ready ones.

use std::net::IpAddr;

use super::model::{Backend, ServicePort};

/// An endpoint of a port, seen from this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    pub(super) address: IpAddr,
    pub(super) port: u16,
    /// It is to have traffic. A terminating one is not ready, unless the Service publishes those that are not ready.
    pub(super) is_ready: bool,
    /// It can answer, terminating or not.
    pub(super) is_serving: bool,
    pub(super) is_terminating: bool,
    /// It runs on this node.
    pub(super) is_local: bool,
    /// `hints.forNodes`.
    pub(super) node: Hint,
    /// `hints.forZones`.
    pub(super) zone: Hint,
}

/// What the hints of an endpoint say to this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Hint {
    /// The endpoint is for this node, or for its zone.
    Here,
    /// It is for others.
    Elsewhere,
    /// It has no hints of this sort.
    None,
}

impl Hint {
    pub(super) fn of(is_here: bool) -> Self {
        if is_here { Self::Here } else { Self::Elsewhere }
    }
}

/// The backends of a port.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Usable {
    /// Under traffic policy `Cluster`; empty where no traffic has it.
    pub(super) cluster: Vec<Backend>,
    /// Under traffic policy `Local`; empty where no traffic has it.
    pub(super) local: Vec<Backend>,
    /// Some node has a usable endpoint.
    pub(super) has_endpoints: bool,
}

/// Whose hints count (`topologyModeFromHints`): they do if all ready endpoints have them, and one is for this node.
#[derive(Clone, Copy)]
enum Mode {
    Everywhere,
    SameNode,
    SameZone,
}

impl Mode {
    fn of(endpoints: &[Endpoint]) -> Self {
        let counts = |hint: fn(&Endpoint) -> Hint| {
            let ready = || endpoints.iter().filter(|endpoint| endpoint.is_ready).map(hint);
            ready().all(|hint| hint != Hint::None) && ready().any(|hint| hint == Hint::Here)
        };
        if counts(|endpoint| endpoint.node) {
            Self::SameNode
        } else if counts(|endpoint| endpoint.zone) {
            Self::SameZone
        } else {
            Self::Everywhere
        }
    }

    fn admits(self, endpoint: &Endpoint) -> bool {
        match self {
            Self::Everywhere => true,
            Self::SameNode => endpoint.node == Hint::Here,
            Self::SameZone => endpoint.zone == Hint::Here,
        }
    }
}

impl Endpoint {
    /// It terminates and can still answer.
    fn is_draining(&self) -> bool {
        self.is_serving && self.is_terminating
    }

    /// By address and port; of those that are the same, the one that is used comes first: an address of a terminating pod may
    /// have another pod already, and an endpoint may stand in two slices while it moves.
    pub(super) fn order(&self) -> (IpAddr, u16, [bool; 4], Hint, Hint) {
        let rank = [self.is_terminating, !self.is_ready, !self.is_serving, !self.is_local];
        (self.address, self.port, rank, self.node, self.zone)
    }
}

/// The endpoints of a port that traffic to it may go to.
pub(super) fn categorize(endpoints: &[Endpoint], port: &ServicePort) -> Usable {
    let usable = |is_usable: &dyn Fn(&Endpoint) -> bool| -> Vec<Backend> {
        let usable = endpoints.iter().filter(|endpoint| is_usable(endpoint));
        usable.map(|of| Backend { address: of.address, port: of.port, is_local: of.is_local }).collect()
    };
    let mut found = Usable::default();
    if port.uses_cluster() {
        let mode = Mode::of(endpoints);
        found.cluster = usable(&|endpoint| endpoint.is_ready && mode.admits(endpoint));
        if found.cluster.is_empty() {
            found.cluster = usable(&Endpoint::is_draining);
        }
        found.has_endpoints = !found.cluster.is_empty();
    }
    if port.uses_local() {
        found.has_endpoints |= endpoints.iter().any(|endpoint| endpoint.is_ready || endpoint.is_draining());
        found.local = usable(&|endpoint| endpoint.is_local && endpoint.is_ready);
        if found.local.is_empty() {
            found.local = usable(&|endpoint| endpoint.is_local && endpoint.is_draining());
        }
    }
    found
}
