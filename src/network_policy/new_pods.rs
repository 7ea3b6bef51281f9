//! New pods of the node that the server may not show with their addresses yet, whether policies are followed or not. PURE.
//!
//! A controller that begins to follow pods hears of them first: the server, back after an outage, lists pods without the addresses
//! that they got meanwhile.

use super::Controller;
use super::records::NewPod;
use crate::limits::{NETWORK_POLICY_NEW_PODS_BYTES_MAX, NETWORK_POLICY_NEW_PODS_MAX};

/// The latest of each name, the oldest first.
#[derive(Debug, Default)]
pub struct NewPods(Vec<NewPod>);

impl NewPods {
    /// One has got its addresses. Another with its name or one of them is over. The oldest are forgotten beyond
    /// `limits::NETWORK_POLICY_NEW_PODS_MAX` and `NETWORK_POLICY_NEW_PODS_BYTES_MAX`.
    pub fn add(&mut self, pod: NewPod) {
        let is_over = |old: &NewPod| {
            (&old.namespace, &old.name) == (&pod.namespace, &pod.name)
                || old.ips.iter().any(|ip| pod.ips.contains(ip))
        };
        self.0.retain(|old| !is_over(old));
        self.0.push(pod);
        let mut bytes: usize = self.0.iter().map(NewPod::bytes).sum();
        while self.0.len() > NETWORK_POLICY_NEW_PODS_MAX || bytes > NETWORK_POLICY_NEW_PODS_BYTES_MAX {
            bytes -= self.0.remove(0).bytes();
        }
    }

    /// The pod of that name has no network any more.
    pub fn ended(&mut self, namespace: &str, name: &str) {
        self.0.retain(|pod| (&*pod.namespace, &*pod.name) != (namespace, name));
    }

    /// Pods, and bytes of their texts.
    pub fn held(&self) -> (usize, usize) {
        (self.0.len(), self.0.iter().map(NewPod::bytes).sum())
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.0 = Vec::new();
    }

    /// Tells a controller of all.
    pub fn announce(&self, controller: &mut Controller) {
        for pod in &self.0 {
            controller.announce(pod);
        }
    }

    /// Forgets those that the server has shown to that controller.
    pub fn forget_shown(&mut self, controller: &Controller) {
        self.0.retain(|pod| controller.has_new(pod));
    }
}
