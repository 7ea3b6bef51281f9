//! The Node object (`nodestatus`, `initialNode`). PURE.
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::rc::Rc;

use serde_json::{Map, Value, json};

use super::k3s_node::K3sNode;
use super::node_images::NodeImage;
use crate::admit::{DECLARED_FEATURES, Resources};
use crate::config::{NodeTaint, Periods, Reserved};
use crate::eviction::NodeCondition;
use crate::model::SortedMap;
use crate::model::Wall;
use crate::model::runtime::{RuntimeHandler, RuntimeStatus};

/// The kubelet version whose behaviour this is, for `status.nodeInfo.kubeletVersion` and version checks.
pub const KUBELET_VERSION: &str = concat!("v1.36.2+smolet", env!("CARGO_PKG_VERSION"));
/// Distinguishes it from a kubelet's version.
pub(super) const KUBELET_VERSION_MARK: &str = "+smolet";
/// The taint that a cloud controller removes (`TaintExternalCloudProvider`).
pub(super) const CLOUD_TAINT: &str = "node.cloudprovider.kubernetes.io/uninitialized";
/// `AnnotationAlphaProvidedIPAddr`.
pub(super) const PROVIDED_IPS: &str = "alpha.kubernetes.io/provided-node-ip";

/// The machine's properties. Its addresses, and those that the runtime reports, may change.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// The node's name, which is also its host name in the cluster, as with the kubelet's `--hostname-override`: two machines
    /// with the same host name differ in it.
    pub name: Box<str>,
    /// Its addresses, the primary one first.
    pub addresses: Vec<Box<str>>,
    /// `/etc/machine-id`.
    pub machine_id: Box<str>,
    /// The board's UUID, else the machine id.
    pub system_uuid: Box<str>,
    /// The boot id.
    pub boot_id: Box<str>,
    /// `uname -r`.
    pub kernel: Box<str>,
    /// `PRETTY_NAME` of the distribution.
    pub os_image: Box<str>,
    /// `containerd://1.6.20`.
    pub runtime: Box<str>,
    /// Go's name: `arm64`, `arm`, `amd64`.
    pub architecture: &'static str,
    /// CPUs.
    pub cpus: u64,
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes of the file system of the pods' directories.
    pub disk: u64,
    /// Greatest number of pods.
    pub pods: usize,
    /// Greatest number of images in the status.
    pub images_max: usize,
    /// Resources that pods do not get: reserved ones, and those that eviction keeps free.
    pub reserved: Reserved,
    /// Labels that are added when the Node is created, besides the standard ones.
    pub labels: SortedMap<Box<str>, Box<str>>,
    /// Taints that are added when the Node is created.
    pub taints: Vec<NodeTaint>,
    /// `spec.providerID`; empty: none.
    pub provider_id: Box<str>,
    /// How often status and lease are updated.
    pub periods: Periods,
    /// The port of the node's own API; 0 = none.
    pub port: u16,
    /// The runtime's handlers, by name; the default handler's is empty.
    pub handlers: Vec<Handler>,
    /// The runtime supports `supplementalGroupsPolicy`; `None` = not known yet.
    pub supplemental_groups_policy: Option<bool>,
    /// Bytes of swap.
    pub swap: u64,
    /// Huge pages: page sizes in the form of resource names (`2Mi`), and bytes of all pages of that size.
    pub huge_pages: Vec<(Box<str>, u64)>,
    /// `--cloud-provider=external`: the cloud controller sets the addresses.
    pub external_cloud: bool,
    /// The addresses of `--node-ip`.
    pub provided_addresses: Vec<Box<str>>,
    /// What a node of k3s has besides; `None`: it is none.
    pub k3s: Option<K3sNode>,
}

/// A runtime handler.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Handler {
    /// Empty: the default handler.
    pub name: Box<str>,
    /// It supports recursive read-only mounts.
    pub recursive_read_only_mounts: bool,
    /// It supports user namespaces.
    pub user_namespaces: bool,
}

/// The changing part of the status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// The conditions that hold.
    pub pressure: Vec<NodeCondition>,
    /// Why the node is not ready; empty: it is ready.
    pub not_ready: Vec<String>,
    /// The images on the node.
    pub images: Rc<[NodeImage]>,
}

impl Machine {
    /// The object to create.
    pub fn object(&self, health: &Health, before: &[Value], now: Wall) -> Value {
        let mut labels = self.with_given(self.labels());
        without_nulls(&mut labels);
        let taint =
            |taint: &NodeTaint| json!({"key": taint.key, "value": taint.value, "effect": taint.effect});
        let mut taints: Vec<Value> = self.taints.iter().map(taint).collect();
        if self.is_of_cloud() {
            taints.push(json!({"key": CLOUD_TAINT, "value": "true", "effect": "NoSchedule"}));
        }
        let mut spec = Map::new();
        if !taints.is_empty() {
            spec.insert("taints".to_owned(), taints.into());
        }
        if !self.provider_id.is_empty() {
            spec.insert("providerID".to_owned(), (*self.provider_id).into());
        }
        let mut annotations = self.annotations();
        without_nulls(&mut annotations);
        let mut status = self.status(health, before, now);
        if self.is_of_cloud() && self.provided().is_empty() {
            status["addresses"] = json!([hostname(&self.name)]);
        }
        json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {
                "name": &*self.name, "labels": labels,
                "annotations": annotations,
            },
            "spec": spec,
            "status": status,
        })
    }

    /// Standard annotations (`NodeAddress`); null removes one. A node of k3s without an address leaves them as they are.
    pub fn annotations(&self) -> Value {
        let provided = self.provided();
        let provided = (self.is_of_cloud() && !provided.is_empty()).then(|| provided.join(","));
        let mut annotations = self.k3s_annotations();
        let is_without = self.k3s.is_some() && self.is_of_cloud() && self.addresses.is_empty();
        annotations
            .insert("volumes.kubernetes.io/controller-managed-attach-detach".to_owned(), "true".into());
        if !is_without {
            annotations.insert(PROVIDED_IPS.to_owned(), provided.into());
        }
        Value::Object(annotations)
    }

    /// A cloud controller sets the addresses: the one of k3s' server does, unless it is disabled.
    pub(super) fn is_of_cloud(&self) -> bool {
        self.external_cloud || self.k3s.as_ref().is_some_and(|k3s| k3s.has_cloud_controller)
    }

    /// The addresses that a cloud controller finds among its own (`--node-ip`); `k3s agent` gives all of them.
    fn provided(&self) -> &[Box<str>] {
        if self.k3s.is_some() { &self.addresses } else { &self.provided_addresses }
    }

    /// The status of an existing Node: with an external cloud provider its addresses are left to the cloud controller once it has
    /// some; they stay as they are while the node has none (`NodeAddress`).
    pub fn report(&self, health: &Health, before: &[Value], now: Wall) -> Value {
        let mut status = self.status(health, before, now);
        let leaves_addresses = self.is_of_cloud() || self.addresses.is_empty();
        if let (true, Some(status)) = (leaves_addresses, status.as_object_mut()) {
            status.remove("addresses");
        }
        status
    }

    /// The status' digest, times apart (`nodeStatusHasChanged`).
    pub fn digest(&self, health: &Health) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.report(health, &[], Wall(0)).to_string().hash(&mut hasher);
        hasher.finish()
    }

    /// The machine with what the runtime says of its handlers and features; `None`: it is as before.
    pub fn with_runtime(&self, said: &RuntimeStatus) -> Option<Self> {
        let mut handlers: Vec<Handler> = said.handlers.iter().map(Handler::of).collect();
        handlers.sort_by(|a, b| a.name.cmp(&b.name));
        let policy = Some(said.supplemental_groups_policy);
        (self.handlers != handlers || self.supplemental_groups_policy != policy).then(|| Self {
            handlers,
            supplemental_groups_policy: policy,
            ..self.clone()
        })
    }

    /// The labels that are set in an existing Node at a start; null removes one. Those of `--node-labels` are not, but in a node of
    /// k3s (`updateMutableLabels`).
    pub fn labels_of_start(&self) -> Value {
        let labels = self.labels();
        if self.k3s.is_some() { self.with_given(labels) } else { labels }
    }

    fn with_given(&self, mut labels: Value) -> Value {
        for (key, value) in &self.labels {
            labels[&**key] = (**value).into();
        }
        labels
    }

    /// Standard labels; null removes one.
    pub fn labels(&self) -> Value {
        let mut labels = self.k3s_labels();
        for (label, value) in [
            ("beta.kubernetes.io/arch", self.architecture),
            ("beta.kubernetes.io/os", "linux"),
            ("kubernetes.io/arch", self.architecture),
            ("kubernetes.io/hostname", &*self.name),
            ("kubernetes.io/os", "linux"),
        ] {
            labels.insert(label.to_owned(), value.into());
        }
        Value::Object(labels)
    }

    /// The status. A condition that is unchanged from `before` keeps the time of its last transition.
    pub fn status(&self, health: &Health, before: &[Value], now: Wall) -> Value {
        let mut addresses: Vec<Value> =
            self.addresses.iter().map(|ip| json!({"type": "InternalIP", "address": &**ip})).collect();
        addresses.push(hostname(&self.name));
        let handlers: Vec<Value> = self.handlers.iter().map(Handler::value).collect();
        let features = self.supplemental_groups_policy.map(|of| json!({"supplementalGroupsPolicy": of}));
        let swap = (self.swap > 0).then(|| json!({"capacity": self.swap}));
        json!({
            "addresses": addresses,
            "allocatable": resources(&self.allocatable()),
            "capacity": resources(&self.capacity()),
            "conditions": conditions(health, before, now),
            "images": health.images.iter().map(NodeImage::value).collect::<Vec<_>>(),
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self.port}},
            "declaredFeatures": DECLARED_FEATURES,
            "features": features,
            "nodeInfo": {
                "architecture": self.architecture, "bootID": &*self.boot_id,
                "containerRuntimeVersion": &*self.runtime, "kernelVersion": &*self.kernel,
                "kubeProxyVersion": "", "kubeletVersion": KUBELET_VERSION, "machineID": &*self.machine_id,
                "operatingSystem": "linux", "osImage": &*self.os_image, "swap": swap,
                "systemUUID": &*self.system_uuid,
            },
            "runtimeHandlers": handlers,
        })
    }

    fn capacity(&self) -> Resources {
        Resources {
            milli_cpu: number(self.cpus.saturating_mul(1000)),
            memory: number(self.memory),
            ephemeral_storage: number(self.disk),
            pods: i64::try_from(self.pods).unwrap_or(i64::MAX),
            scalars: self
                .huge_pages
                .iter()
                .map(|(size, bytes)| (huge_pages_of(size), number(*bytes)))
                .collect(),
        }
    }

    /// `status.allocatable` (`GetNodeAllocatableReservation`).
    pub fn allocatable(&self) -> Resources {
        let (there, kept) = (self.capacity(), &self.reserved);
        let left = |there: i64, kept: u64| there.saturating_sub(number(kept)).max(0);
        let in_huge_pages = self.huge_pages.iter().map(|(_, bytes)| *bytes).sum();
        Resources {
            milli_cpu: left(there.milli_cpu, kept.milli_cpu),
            memory: left(left(there.memory, kept.memory), in_huge_pages),
            ephemeral_storage: left(there.ephemeral_storage, kept.ephemeral_storage),
            ..there
        }
    }
}

fn without_nulls(entries: &mut Value) {
    if let Some(entries) = entries.as_object_mut() {
        entries.retain(|_, value| !value.is_null());
    }
}

/// In the form of the status.
fn resources(of: &Resources) -> Value {
    let cpu = match of.milli_cpu {
        whole if whole % 1000 == 0 => (whole / 1000).to_string(),
        thousandths => format!("{thousandths}m"),
    };
    let mut amounts = json!({
        "cpu": cpu,
        "ephemeral-storage": quantity(of.ephemeral_storage),
        "memory": quantity(of.memory),
        "pods": of.pods.to_string(),
    });
    for (name, bytes) in &of.scalars {
        amounts[&**name] = if *bytes == 0 { "0".into() } else { quantity(*bytes).into() };
    }
    amounts
}

fn hostname(name: &str) -> Value {
    json!({"type": "Hostname", "address": name})
}

/// The resource name of huge pages of that size.
fn huge_pages_of(size: &str) -> Box<str> {
    format!("hugepages-{size}").into()
}

fn number(of: u64) -> i64 {
    i64::try_from(of).unwrap_or(i64::MAX)
}

/// Status fields that a kubelet writes and this agent does not: they are removed when a kubelet has left them.
const NOT_OURS: &[&str] = &["config", "volumesInUse"];

/// The strategic merge patch that sets this status of the Node (`PatchNodeStatus`). The server merges addresses by their type, so
/// that two of one type would become the same twice: the list is replaced instead.
pub fn patch(mut status: Value) -> Value {
    // Without addresses, they belong to the cloud controller, and stay.
    if let Some(addresses) = status.get_mut("addresses").and_then(Value::as_array_mut) {
        addresses.push(json!({"$patch": "replace"}));
    }
    for field in NOT_OURS {
        status[*field] = Value::Null;
    }
    json!({"status": status})
}

/// In whole KiB, as the kubelet's.
fn quantity(bytes: i64) -> String {
    format!("{}Ki", bytes / 1024)
}

impl Handler {
    /// From the runtime's `Status`.
    pub fn of(handler: &RuntimeHandler) -> Self {
        Self {
            name: handler.name.clone(),
            recursive_read_only_mounts: handler.recursive_read_only_mounts,
            user_namespaces: handler.user_namespaces,
        }
    }

    fn value(&self) -> Value {
        json!({"name": &*self.name, "features": {
            "recursiveReadOnlyMounts": self.recursive_read_only_mounts, "userNamespaces": self.user_namespaces,
        }})
    }
}

/// In the kubelet's order, `Ready` last.
fn conditions(health: &Health, before: &[Value], now: Wall) -> Vec<Value> {
    let pressure = |of| health.pressure.contains(&of);
    let ready = health.not_ready.is_empty();
    let why = health.not_ready.join(", ");
    [
        if pressure(NodeCondition::Memory) {
            (
                "MemoryPressure",
                true,
                "KubeletHasInsufficientMemory",
                "kubelet has insufficient memory available",
            )
        } else {
            ("MemoryPressure", false, "KubeletHasSufficientMemory", "kubelet has sufficient memory available")
        },
        if pressure(NodeCondition::Disk) {
            ("DiskPressure", true, "KubeletHasDiskPressure", "kubelet has disk pressure")
        } else {
            ("DiskPressure", false, "KubeletHasNoDiskPressure", "kubelet has no disk pressure")
        },
        if pressure(NodeCondition::Pid) {
            ("PIDPressure", true, "KubeletHasInsufficientPID", "kubelet has insufficient PID available")
        } else {
            ("PIDPressure", false, "KubeletHasSufficientPID", "kubelet has sufficient PID available")
        },
        if ready {
            ("Ready", true, "KubeletReady", "kubelet is posting ready status")
        } else {
            ("Ready", false, "KubeletNotReady", why.as_str())
        },
    ]
    .into_iter()
    .map(|(kind, holds, reason, message)| {
        let status = if holds { "True" } else { "False" };
        let was = before.iter().find(|condition| condition["type"] == kind && condition["status"] == status);
        let since = was.and_then(|was| was["lastTransitionTime"].as_str()).map(str::to_owned);
        let now = now.to_string();
        json!({
            "type": kind, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": since.unwrap_or_else(|| now.clone()), "lastHeartbeatTime": now,
        })
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        Machine {
            name: "gw".into(),
            addresses: vec!["10.0.0.2".into(), "fd00::2".into()],
            architecture: "arm64",
            cpus: 4,
            memory: 512 << 20,
            disk: 8 << 30,
            reserved: Reserved { milli_cpu: 200, memory: 100 << 20, ephemeral_storage: 1 << 30 },
            labels: SortedMap::from([("edge".into(), "yes".into())]),
            taints: vec![NodeTaint { key: "edge".into(), value: String::new(), effect: "NoSchedule".into() }],
            provider_id: "metal://gw".into(),
            images_max: 50,
            pods: 110,
            port: 10_250,
            ..Machine::default()
        }
    }

    #[test]
    fn the_object_says_what_there_is_for_pods() {
        let object = machine().object(&Health::default(), &[], Wall(0));
        let status = &object["status"];
        assert_eq!(status["capacity"]["memory"], "524288Ki");
        assert_eq!(status["allocatable"]["memory"], "421888Ki");
        assert_eq!(status["allocatable"]["pods"], "110");
        assert_eq!(
            (&status["capacity"]["cpu"], &status["allocatable"]["cpu"]),
            (&json!("4"), &json!("3800m"))
        );
        assert_eq!(status["allocatable"]["ephemeral-storage"], "7340032Ki");
        assert_eq!(status["addresses"][0], json!({"type": "InternalIP", "address": "10.0.0.2"}));
        assert_eq!(object["metadata"]["labels"]["kubernetes.io/arch"], "arm64");
        assert_eq!(object["metadata"]["labels"]["kubernetes.io/hostname"], "gw");
        assert_eq!(object["metadata"]["labels"]["edge"], "yes");
        let taints = json!([{"key": "edge", "value": "", "effect": "NoSchedule"}]);
        assert_eq!(object["spec"], json!({"taints": taints, "providerID": "metal://gw"}));
    }

    #[test]
    fn the_digest_tells_what_changed_but_times() {
        let (machine, plain) = (machine(), Health::default());
        let same = machine.digest(&plain);
        assert_eq!(machine.digest(&Health { pressure: Vec::new(), ..Health::default() }), same);
        for other in [
            Health { pressure: vec![NodeCondition::Pid], ..Health::default() },
            Health { not_ready: vec!["why".to_owned()], ..Health::default() },
        ] {
            assert_ne!(machine.digest(&other), same, "{other:?}");
        }
        assert_ne!(Machine { addresses: Vec::new(), ..machine.clone() }.digest(&plain), same);
    }

    #[test]
    fn the_runtime_changes_the_machine_once() {
        let handler = |name: &str| RuntimeHandler {
            name: name.into(),
            recursive_read_only_mounts: true,
            user_namespaces: false,
        };
        let said = |names: &[&str], policy| RuntimeStatus {
            handlers: names.iter().map(|name| handler(name)).collect(),
            supplemental_groups_policy: policy,
            ..RuntimeStatus::default()
        };
        let machine = machine().with_runtime(&said(&["runc", ""], false)).expect("nothing was known of it");
        let names: Vec<&str> = machine.handlers.iter().map(|handler| &*handler.name).collect();
        assert_eq!((names, machine.supplemental_groups_policy), (vec!["", "runc"], Some(false)));
        for (names, policy, changes) in [
            (&["", "runc"][..], false, false),
            (&["runc", ""], false, false),
            (&["runc", ""], true, true),
            (&[""], false, true),
        ] {
            assert_eq!(machine.with_runtime(&said(names, policy)).is_some(), changes, "{names:?} {policy}");
        }
    }

    #[test]
    fn huge_pages_are_off_the_memory_of_pods() {
        let huge_pages = vec![("2Mi".into(), 64 << 20), ("1Gi".into(), 0)];
        let machine =
            Machine { huge_pages, swap: 1 << 30, supplemental_groups_policy: Some(true), ..machine() };
        let status = machine.status(&Health::default(), &[], Wall(0));
        let of = |list: &str, name: &str| status[list][name].clone();
        for list in ["capacity", "allocatable"] {
            assert_eq!(
                (of(list, "hugepages-2Mi"), of(list, "hugepages-1Gi")),
                (json!("65536Ki"), json!("0"))
            );
        }
        assert_eq!(
            (of("capacity", "memory"), of("allocatable", "memory")),
            (json!("524288Ki"), json!("356352Ki"))
        );
        assert_eq!(status["nodeInfo"]["swap"], json!({"capacity": 1 << 30}));
        assert_eq!(status["features"], json!({"supplementalGroupsPolicy": true}));
    }

    #[test]
    fn addresses_stay_while_the_node_has_none() {
        let machine = Machine { addresses: Vec::new(), ..machine() };
        assert!(machine.report(&Health::default(), &[], Wall(0)).get("addresses").is_none());
        assert!(machine.object(&Health::default(), &[], Wall(0))["status"]["addresses"].is_array());
    }

    #[test]
    fn addresses_take_the_place_of_those_that_are_there() {
        let patch = patch(machine().status(&Health::default(), &[], Wall(0)));
        assert_eq!(
            patch["status"]["addresses"],
            json!([
                {"type": "InternalIP", "address": "10.0.0.2"},
                {"type": "InternalIP", "address": "fd00::2"},
                {"type": "Hostname", "address": "gw"},
                {"$patch": "replace"},
            ])
        );
        let Value::Object(fields) = &patch["status"] else { panic!("an object") };
        assert_eq!(fields.get("volumesInUse"), Some(&Value::Null), "what a kubelet left goes");
        assert_eq!(fields["declaredFeatures"], json!(DECLARED_FEATURES));
    }

    #[test]
    fn a_condition_keeps_the_time_of_its_change() {
        let of = |conditions: &Vec<Value>, kind: &str, field: &str| {
            let found = conditions.iter().find(|condition| condition["type"] == kind).expect(kind);
            found[field].as_str().unwrap_or_default().to_owned()
        };
        let first = conditions(&Health::default(), &[], Wall(0));
        assert_eq!(of(&first, "Ready", "reason"), "KubeletReady");
        let short = Health {
            pressure: vec![NodeCondition::Memory],
            not_ready: vec!["no runtime".to_owned()],
            ..Health::default()
        };
        let second = conditions(&short, &first, Wall(5_000_000_000));
        assert_eq!(of(&second, "Ready", "message"), "no runtime");
        assert_eq!(of(&second, "MemoryPressure", "status"), "True");
        assert_eq!(of(&second, "MemoryPressure", "lastTransitionTime"), "1970-01-01T00:00:05Z");
        assert_eq!(of(&second, "DiskPressure", "lastTransitionTime"), "1970-01-01T00:00:00Z");
        assert_eq!(of(&second, "DiskPressure", "lastHeartbeatTime"), "1970-01-01T00:00:05Z");
    }
}
