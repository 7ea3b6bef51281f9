//! The probers of the pods' containers: their probes and results.

use std::net::Ipv4Addr;
use std::time::Duration;

use super::Pods;
use crate::cri::Runtime;
use crate::model::{ContainerId, Mono, PodUid};
use crate::node::effects::Effects;
use crate::poison::{self, Mark};
use crate::probe::handler::Handler;
use crate::probe::{ProbeKey, timeout};
use crate::status;
use crate::sync::ProbeResult;

/// A probe to begin.
pub(in crate::node) struct AskedProbe {
    pub(in crate::node) container: ContainerId,
    pub(in crate::node) handler: Result<Handler, String>,
    pub(in crate::node) timeout: Duration,
    pub(in crate::node) mark: Mark,
}

impl<R: Runtime + 'static> Pods<R> {
    /// The container can be probed.
    pub(in crate::node) fn can_be_probed(&self, uid: &PodUid, place: ProbeKey) -> bool {
        let Some(record) = self.records.get(uid) else { return false };
        let pod = record.worker.pod().filter(|_| record.worker.observed().is_some());
        pod.is_some_and(|pod| place.find(pod).is_some())
    }

    /// The prober's next probe; `None` = its container no longer exists.
    pub(in crate::node) fn ask_probe(
        &mut self,
        uid: &PodUid,
        place: ProbeKey,
        now: Mono,
    ) -> Option<AskedProbe> {
        let record = self.records.get_mut(uid)?;
        let _handling = poison::handling(Some(record.mark.clone()));
        let (pod, observed) = (record.worker.pod()?, record.worker.observed()?);
        let (container, spec) = place.find(pod)?;
        let pod_ip = status::pod_ip(pod, observed, &self.host_ips);
        // Differs from the kubelet, which finds no address then: a node without one reaches itself all the same.
        let on_node = pod.spec().host_network == Some(true);
        let pod_ip = pod_ip.or(on_node.then_some(Ipv4Addr::LOCALHOST.into()));
        let handler = Handler::of_probe(spec, container, pod_ip);
        let timeout = timeout(spec);
        let asked = record.probers.begin(place, now)?;
        if asked.is_late {
            self.metrics.probes_late.inc();
        }
        Some(AskedProbe { container: asked.container, handler, timeout, mark: record.mark.clone() })
    }

    /// A probe's result; `None` = it is inconclusive.
    pub(in crate::node) fn probe_answered(
        &mut self,
        uid: &PodUid,
        place: ProbeKey,
        container: &ContainerId,
        result: Option<ProbeResult>,
        out: &mut Effects,
    ) {
        let now = self.now();
        let Some(record) = self.records.get_mut(uid) else { return };
        let _handling = poison::handling(Some(record.mark.clone()));
        if record.probers.record(place, container, result) {
            record.worker.probed();
            self.refresh_status(uid, now);
            self.drive(uid, out);
        }
    }
}
