//! What follows when the node's addresses are others: pods show them, and what waited for one is tried again.

use std::rc::Rc;

use super::agent::Agent;
use crate::cri::Runtime;
use crate::model::PodUid;
use crate::render::NodeSettings;

impl<R: Runtime + 'static> Agent<R> {
    /// The node has these addresses now, the primary one first (`GetNodeHostIPs`).
    pub(super) fn addresses_changed(&mut self, addresses: &[Box<str>]) {
        if *self.ctx.node.node_ips == *addresses {
            return;
        }
        let node = NodeSettings { node_ips: addresses.to_vec(), ..NodeSettings::clone(&self.ctx.node) };
        self.ctx.node = Rc::new(node);
        self.host_ips = addresses.iter().filter_map(|ip| ip.parse().ok()).collect();
        self.node_has_addresses(addresses);
        let now = self.ctx.clock.now();
        let pods: Vec<PodUid> = self.records.keys().cloned().collect();
        for uid in pods {
            self.refresh_status(&uid, now);
            if let Some(record) = self.records.get_mut(&uid).filter(|record| record.failures.len() > 0) {
                // A variable of `status.hostIP` may be what it waits for (`CreateContainerConfigError`).
                record.worker.runtime_is_back();
                self.drive(&uid);
            }
        }
    }
}
