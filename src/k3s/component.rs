//! The parts of `k3s agent` that have credentials of their own, and when those are fetched. PURE.
//!
//! `k3s agent` fetches them at each start (`getHostFile`), and does not start without them. Here a node joins without them: no pod
//! needs them.

use std::time::Duration;

use crate::cluster::csr::{self, Due};
use crate::limits::{CSR_RETRY_MIN, K3S_LIST_PERIOD};
use crate::model::{Mono, Now, Wall};
use crate::x509::Validity;

/// Life of a certificate of k3s.
const LIFE_NANOS: i64 = 365 * 24 * 3600 * 1_000_000_000;

/// A part of `k3s agent` that asks the API server for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Component {
    /// Reads Services and `EndpointSlices` (`system:kube-proxy`).
    KubeProxy,
    /// Reads Nodes, `NetworkPolicies`, Namespaces and Pods (`system:k3s-controller`).
    Controller,
}

impl Component {
    pub(crate) const ALL: [Self; 2] = [Self::KubeProxy, Self::Controller];

    /// Its name in k3s' certificates.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::KubeProxy => "kube-proxy",
            Self::Controller => "k3s-controller",
        }
    }

    /// The supervisor's path.
    pub(super) fn path(self) -> &'static str {
        match self {
            Self::KubeProxy => "/v1-k3s/client-kube-proxy.crt",
            Self::Controller => "/v1-k3s/client-k3s-controller.crt",
        }
    }

    /// The file with the certificate and its key.
    pub(super) fn file(self) -> &'static str {
        match self {
            Self::KubeProxy => "client-kube-proxy.pem",
            Self::Controller => "client-k3s-controller.pem",
        }
    }

    /// The kubeconfig that names it.
    pub(super) fn kubeconfig(self) -> &'static str {
        match self {
            Self::KubeProxy => "kubeproxy.kubeconfig",
            Self::Controller => "k3scontroller.kubeconfig",
        }
    }
}

/// When the credentials of all components are fetched: together, so that they hold for the same time.
pub(super) struct ComponentsDue {
    is_wanted: bool,
    /// Not before this instant.
    at: Mono,
    /// How long after a failure they are asked for again.
    wait: Duration,
    /// The failure that was logged last; empty: none.
    logged: String,
}

/// When a certificate of k3s is renewed. It is valid for a year; servers before 2026 date its start back to that of their CA
/// (dynamiclistener `NewSignedCert`), so that in an old cluster each one is late in such a life.
pub(super) fn due(validity: Validity, now: Wall, seed: u64) -> Due {
    let from = validity.from.0.max(validity.until.0.saturating_sub(LIFE_NANOS));
    csr::due(Validity { from: Wall(from), ..validity }, now, seed)
}

impl ComponentsDue {
    pub(super) fn new(now: Mono) -> Self {
        Self { is_wanted: false, at: now, wait: CSR_RETRY_MIN, logged: String::new() }
    }

    /// The time until they are fetched, by what is on the disk: `None` for what cannot be used.
    pub(super) fn inspect(&mut self, found: [Option<Validity>; 2], seed: u64, now: Now) -> Duration {
        let until = |validity| match due(validity, now.wall, seed) {
            Due::Later(pause) => pause,
            Due::Now | Due::Ended => Duration::ZERO,
        };
        let first =
            found.map(|found| found.map_or(Duration::ZERO, until)).into_iter().min().unwrap_or_default();
        self.is_wanted = first.is_zero();
        first.max(self.at.since(now.mono))
    }

    /// The node's own certificates were replaced: theirs are, too.
    pub(super) fn renew(&mut self, now: Mono) {
        (self.is_wanted, self.at) = (true, now);
    }

    pub(super) fn is_due(&self, now: Mono) -> bool {
        self.is_wanted && self.at <= now
    }

    /// They were fetched. Whatever the clock says, they are not fetched again before half of their life has passed.
    pub(super) fn stored(&mut self, validity: Validity, now: Mono) {
        *self = Self { at: now + csr::least_age(validity), ..Self::new(now) };
    }

    /// They were not, or not all of them. Returns whether that is news.
    pub(super) fn failed(&mut self, why: &str, now: Mono) -> bool {
        self.at = now + self.wait;
        self.wait = (2 * self.wait).min(K3S_LIST_PERIOD);
        let is_news = self.logged != why;
        why.clone_into(&mut self.logged);
        is_news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_that_is_dated_back_to_its_authoritys_start_is_no_old_one() {
        for years in [0, 5, 10] {
            let validity = Validity { from: Wall(1), until: Wall(1 + (years + 1) * LIFE_NANOS) };
            let made = 1 + years * LIFE_NANOS;
            for seed in 0..100 {
                let at = |share: i64| due(validity, Wall(made + LIFE_NANOS / 100 * share), seed);
                assert!(matches!((at(0), at(69)), (Due::Later(_), Due::Later(_))), "{years}");
                assert_eq!((at(91), at(101)), (Due::Now, Due::Ended), "{years}");
            }
        }
    }
}
