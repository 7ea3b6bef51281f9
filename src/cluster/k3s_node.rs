//! What a node of k3s has in its Node object besides the kubelet's (`configureNode`, `nodeconfig`). PURE.
//!
//! | in the Node | value | set by |
//! |---|---|---|
//! | label `egress.k3s.io/cluster` | `true` where the server reaches pods through the node's tunnel, else absent | the node |
//! | annotations `k3s.io/internal-ip`, `hostname`, `external-ip` | what the server's cloud controller makes addresses of | the node, where there is that controller |
//! | annotation `alpha.kubernetes.io/provided-node-ip` | the addresses that the controller has to find among them | the node, likewise |
//! | annotations `flannel.alpha.coreos.com/…` | how other nodes reach its pods | the node, with `--flannel` |
//! | annotations `k3s.io/node-args`, `node-env`, `node-config-hash` | how the agent was called, without its secrets | the node |
//! | `spec.providerID` `k3s://NAME`, instance type `k3s` | | the cloud controller, when it removes the taint of a new Node; the node, where there is no such taint and they are absent |
//!
//! `k3s agent` sets these at its start. Here they are set again when somebody changes them, and when the server's settings or the
//! node's addresses change.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::node_object::{CLOUD_TAINT, Machine, PROVIDED_IPS};
use crate::config::Call;
use crate::model::SortedMap;

/// `nodeconfig.ClusterEgressLabel`.
const EGRESS: &str = "egress.k3s.io/cluster";
/// The prefix of k3s' own annotations.
const PREFIX: &str = "k3s.io/";
/// `cloudprovider.InternalIPKey`, `HostnameKey`, `ExternalIPKey`.
const INTERNAL_IP: &str = "k3s.io/internal-ip";
const HOSTNAME: &str = "k3s.io/hostname";
const EXTERNAL_IP: &str = "k3s.io/external-ip";
/// `nodeconfig.NodeArgsAnnotation`, `NodeEnvAnnotation`, `NodeConfigHashAnnotation`.
const ARGS: &str = "k3s.io/node-args";
const ENV: &str = "k3s.io/node-env";
const CONFIG_HASH: &str = "k3s.io/node-config-hash";
/// The prefix of flannel's annotations (`FlannelBaseAnnotation`).
pub const FLANNEL: &str = "flannel.alpha.coreos.com/";
/// The labels of the instance type (`node_controller.go`).
const INSTANCE_TYPES: [&str; 2] = ["node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type"];
/// `version.Program`, the instance type.
const PROGRAM: &str = "k3s";
/// What the Node of a node of k3s says, besides its addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct K3sNode {
    /// The server reaches pods through the node's tunnel (`EgressSelectorMode` `pod` or `cluster`).
    pub reaches_pods: bool,
    /// The server's cloud controller sets the node's addresses (`DisableCCM` is false).
    pub has_cloud_controller: bool,
    /// The machine's host name.
    pub host_name: Box<str>,
    /// Addresses by which the node is reached from outside, the primary one first (`--node-external-ip`).
    pub external_addresses: Vec<Box<str>>,
    /// How the agent was called.
    pub call: Call,
    /// flannel's annotations, once its network is up.
    pub flannel: SortedMap<Box<str>, Box<str>>,
}

/// The fields of a Node that are compared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeMetadata {
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// Those of `metadata.annotations` that a node of k3s sets.
    pub annotations: SortedMap<Box<str>, Box<str>>,
    /// `spec.providerID`.
    pub provider_id: Box<str>,
    /// It has the taint of Nodes whose cloud controller has not seen them yet.
    pub is_uninitialized: bool,
}

impl NodeMetadata {
    /// Whether a node of k3s sets such an annotation.
    pub fn is_kept_annotation(key: &str) -> bool {
        key.starts_with(PREFIX) || key == PROVIDED_IPS || key.starts_with(FLANNEL)
    }

    /// Whether a taint with this key is that of Nodes whose cloud controller has not seen them yet.
    pub fn is_uninitialized_taint(key: &str) -> bool {
        key == CLOUD_TAINT
    }
}

impl Machine {
    /// The labels of a node of k3s; null: it has none.
    pub(super) fn k3s_labels(&self) -> Map<String, Value> {
        let mut labels = Map::new();
        if let Some(k3s) = &self.k3s {
            labels.insert(EGRESS.to_owned(), k3s.reaches_pods.then_some("true").into());
        }
        labels
    }

    /// The annotations of a node of k3s (`updateAddressAnnotations`, `SetNodeConfigAnnotations`); null: it has none.
    pub(super) fn k3s_annotations(&self) -> Map<String, Value> {
        let mut annotations = Map::new();
        let Some(k3s) = &self.k3s else { return annotations };
        let mut put = |key: &str, value: Value| annotations.insert(key.to_owned(), value);
        if k3s.has_cloud_controller {
            let joined = |all: &[Box<str>]| if all.is_empty() { Value::Null } else { all.join(",").into() };
            // Those of before stay while the node has none.
            if !self.addresses.is_empty() {
                put(INTERNAL_IP, joined(&self.addresses));
                // The controller gives no addresses while it has others there.
                put(PROVIDED_IPS, joined(&self.addresses));
            }
            put(HOSTNAME, (*k3s.host_name).into());
            put(EXTERNAL_IP, joined(&k3s.external_addresses));
        }
        put(ARGS, k3s.call.args().into());
        put(ENV, k3s.call.env().into());
        put(CONFIG_HASH, k3s.call.hash().into());
        for (key, value) in &k3s.flannel {
            put(key, (**value).into());
        }
        annotations
    }

    /// The patch by which a Node becomes that of this node of k3s; `None`: it is.
    pub fn k3s_patch(&self, there: &NodeMetadata) -> Option<Value> {
        let k3s = self.k3s.as_ref()?;
        let mut labels = self.k3s_labels();
        labels.retain(|key, value| there.labels.get(key).map(String::as_str) != value.as_str());
        let mut annotations = self.k3s_annotations();
        annotations
            .retain(|key, value| there.annotations.get(&**key).map(|there| &**there) != value.as_str());
        let mut spec = Map::new();
        // What a cloud controller sets once it removes the taint, of a Node that never had it.
        if k3s.has_cloud_controller && !there.is_uninitialized {
            for key in INSTANCE_TYPES.into_iter().filter(|key| !there.labels.contains_key(*key)) {
                labels.insert(key.to_owned(), PROGRAM.into());
            }
            if there.provider_id.is_empty() {
                spec.insert("providerID".to_owned(), self.k3s_provider_id().into());
            }
        }
        let mut metadata = Map::new();
        for (field, entries) in [("labels", labels), ("annotations", annotations)] {
            if !entries.is_empty() {
                metadata.insert(field.to_owned(), entries.into());
            }
        }
        let mut patch = Map::new();
        for (field, entries) in [("metadata", metadata), ("spec", spec)] {
            if !entries.is_empty() {
                patch.insert(field.to_owned(), entries.into());
            }
        }
        (!patch.is_empty()).then_some(Value::Object(patch))
    }

    fn k3s_provider_id(&self) -> String {
        if self.provider_id.is_empty() {
            format!("{PROGRAM}://{}", self.name)
        } else {
            self.provider_id.to_string()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn machine(reaches_pods: bool, has_cloud_controller: bool) -> Machine {
        let k3s =
            K3sNode { reaches_pods, has_cloud_controller, host_name: "board".into(), ..K3sNode::default() };
        Machine {
            name: "gw".into(),
            addresses: vec!["10.0.0.2".into(), "fd00::2".into()],
            k3s: Some(k3s),
            ..Machine::default()
        }
    }

    /// A Node after that patch.
    fn patched(mut there: NodeMetadata, patch: &Value) -> NodeMetadata {
        for (key, value) in patch["metadata"]["labels"].as_object().into_iter().flatten() {
            match value.as_str() {
                Some(value) => there.labels.insert(key.clone(), value.to_owned()),
                None => there.labels.remove(key),
            };
        }
        for (key, value) in patch["metadata"]["annotations"].as_object().into_iter().flatten() {
            match value.as_str() {
                Some(value) => there.annotations.insert(key.as_str().into(), value.into()),
                None => there.annotations.remove(key.as_str()),
            };
        }
        if let Some(id) = patch["spec"]["providerID"].as_str() {
            there.provider_id = id.into();
        }
        there
    }

    #[test]
    fn a_node_is_patched_until_it_is_one_of_k3s() {
        for (reaches_pods, cloud) in [(false, false), (false, true), (true, false), (true, true)] {
            let machine = machine(reaches_pods, cloud);
            let patch = machine.k3s_patch(&NodeMetadata::default()).expect("it has nothing yet");
            let node = patched(NodeMetadata::default(), &patch);
            assert_eq!(machine.k3s_patch(&node), None, "{patch}");
            assert_eq!(node.labels.get(EGRESS).map(String::as_str), reaches_pods.then_some("true"));
            let of = |key: &str| node.annotations.get(key).map(|value| &**value);
            assert_eq!(of(INTERNAL_IP), cloud.then_some("10.0.0.2,fd00::2"));
            assert_eq!(of(PROVIDED_IPS), of(INTERNAL_IP));
            assert_eq!(of(HOSTNAME), cloud.then_some("board"));
            assert_eq!((of(EXTERNAL_IP), of(ARGS), of(ENV)), (None, Some("[]"), Some("{}")));
            let kind = node.labels.get(INSTANCE_TYPES[0]).map(String::as_str);
            assert_eq!(
                (kind, &*node.provider_id),
                if cloud { (Some("k3s"), "k3s://gw") } else { (None, "") }
            );
        }
        assert_eq!(Machine::default().k3s_patch(&NodeMetadata::default()), None, "another cluster");
    }

    #[test]
    fn a_node_without_addresses_leaves_those_of_before() {
        let with = machine(false, true);
        let node = patched(
            NodeMetadata::default(),
            &with.k3s_patch(&NodeMetadata::default()).expect("it has nothing yet"),
        );
        let without = Machine { addresses: Vec::new(), ..with };
        assert_eq!(without.k3s_patch(&node), None);
        let of_start = without.annotations();
        for key in [INTERNAL_IP, PROVIDED_IPS] {
            assert_eq!(of_start.get(key), None, "{key}");
        }
        assert!(Machine { k3s: None, ..without }.annotations()[PROVIDED_IPS].is_null(), "another cluster");
    }

    #[test]
    fn what_others_change_is_set_right_and_what_is_theirs_stays() {
        let machine = machine(false, true);
        let node = patched(
            NodeMetadata::default(),
            &machine.k3s_patch(&NodeMetadata::default()).expect("it has nothing yet"),
        );
        let with_label = |key: &str, value: &str| {
            let mut node = node.clone();
            node.labels.insert(key.to_owned(), value.to_owned());
            machine.k3s_patch(&node)
        };
        assert_eq!(with_label(EGRESS, "true"), Some(json!({"metadata": {"labels": {EGRESS: null}}})));
        for (key, value) in [("site", "roof"), (INSTANCE_TYPES[0], "board-4")] {
            assert_eq!(with_label(key, value), None, "{key}");
        }
        let mut bent = node.clone();
        bent.annotations.insert(INTERNAL_IP.into(), "10.9.9.9".into());
        bent.annotations.insert(EXTERNAL_IP.into(), "192.0.2.1".into());
        let wanted = json!({INTERNAL_IP: "10.0.0.2,fd00::2", EXTERNAL_IP: null});
        assert_eq!(machine.k3s_patch(&bent), Some(json!({"metadata": {"annotations": wanted}})));
        let other = NodeMetadata { provider_id: "metal://gw".into(), ..node.clone() };
        assert_eq!(machine.k3s_patch(&other), None, "it cannot be changed");
        // The cloud controller has not seen it yet: these are its own.
        let fresh =
            NodeMetadata { provider_id: "".into(), labels: BTreeMap::new(), is_uninitialized: true, ..node };
        assert_eq!(machine.k3s_patch(&fresh), None);
    }
}
