//! Removes what a former agent has left in the status of this node's Node (`reconcileExtendedResource`,
//! `reconcileHugePageResource`). PURE.

use serde_json::{Map, Value, json};

use super::node_object::{KUBELET_VERSION_MARK, Machine};
use crate::decode::Node;

impl Machine {
    /// The patch that corrects the Node's status from `there` for the status `wanted`; `None`: no correction is needed.
    ///
    /// Extended resources that a kubelet's device plugins have left are zeroed, because there are no device plugins here. The
    /// kubelet does so at each start without a checkpoint of its device manager; here it is done when another agent has reported
    /// the status last, so that a resource that an administrator adds to the Node later stays.
    pub fn reconciliation(&self, there: &Node, wanted: &Value) -> Option<Value> {
        let status = there.field("status");
        let capacity = status.and_then(|status| status.field("capacity"));
        let info = status.and_then(|status| status.field("nodeInfo"));
        let version = info.and_then(|info| info.field("kubeletVersion")).and_then(Node::text);
        let is_ours = version.is_some_and(|version| version.contains(KUBELET_VERSION_MARK));
        let mut amounts = Map::new();
        if let Some(Node::Map(entries)) = capacity {
            for (name, amount) in entries {
                if is_extended(name) && !is_ours && amount.text() != Some("0") {
                    amounts.insert(name.to_string(), "0".into());
                } else if name.starts_with("hugepages-") && wanted["capacity"][&**name].is_null() {
                    // This kernel does not support pages of that size.
                    amounts.insert(name.to_string(), Value::Null);
                }
            }
        }
        let mut patch = Map::new();
        if !amounts.is_empty() {
            patch.insert("capacity".to_owned(), amounts.clone().into());
            patch.insert("allocatable".to_owned(), amounts.into());
        }
        let has_addresses = status
            .and_then(|status| status.field("addresses"))
            .is_some_and(|addresses| !addresses.items().is_empty());
        if self.is_of_cloud() && !has_addresses {
            patch.insert("addresses".to_owned(), wanted["addresses"].clone());
        }
        (!patch.is_empty()).then(|| json!({"status": patch}))
    }
}

/// `IsExtendedResourceName`.
fn is_extended(name: &str) -> bool {
    let domain = name.split_once('/').map(|(domain, _)| domain);
    domain.is_some_and(|domain| !domain.ends_with("kubernetes.io") && !domain.starts_with("requests."))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::NodeTaint;

    fn node(version: &str, capacity: &str, addresses: &str) -> Node {
        let text = format!(
            "{{status: {{nodeInfo: {{kubeletVersion: '{version}'}}, capacity: {{{capacity}}}, addresses: [{addresses}]}}}}"
        );
        let mut found = None;
        crate::decode::yaml::documents(text.as_bytes(), |_, document| found = document.ok())
            .expect("one document");
        found.expect("valid")
    }

    #[test]
    fn what_device_plugins_have_left_is_zeroed_once() {
        let machine = Machine { taints: vec![NodeTaint::default()], ..Machine::default() };
        let wanted =
            json!({"capacity": {"cpu": "4", "hugepages-2Mi": "0"}, "addresses": [{"type": "Hostname"}]});
        let left =
            "cpu: '2', example.com/gpu: '2', kubernetes.io/x: '1', hugepages-2Mi: '0', hugepages-1Gi: '0'";
        let zero = json!({"example.com/gpu": "0", "hugepages-1Gi": null});
        let patch = machine.reconciliation(&node("v1.36.2", left, "{type: Hostname}"), &wanted);
        assert_eq!(patch, Some(json!({"status": {"capacity": zero, "allocatable": zero}})));
        let own = format!("v1.36.2{KUBELET_VERSION_MARK}0.1.0");
        for (version, capacity) in
            [(own.as_str(), "example.com/gpu: '2'"), ("v1.36.2", "example.com/gpu: '0'")]
        {
            assert_eq!(
                machine.reconciliation(&node(version, capacity, ""), &wanted),
                None,
                "{version} {capacity}"
            );
        }
    }

    #[test]
    fn addresses_are_told_to_an_external_cloud_where_there_are_none() {
        let machine = Machine { external_cloud: true, ..Machine::default() };
        let wanted = json!({"addresses": [{"type": "Hostname", "address": "gw"}]});
        assert_eq!(machine.reconciliation(&node("v1", "", "{type: ExternalIP}"), &wanted), None);
        let patch = machine.reconciliation(&node("v1", "", ""), &wanted);
        assert_eq!(patch, Some(json!({"status": wanted})));
    }
}
