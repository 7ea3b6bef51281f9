//! The Node object (`nodestatus`, `initialNode`). PURE.

use serde_json::{Map, Value, json};

use crate::eviction::NodeCondition;
use crate::model::Wall;

/// The kubelet whose behaviour this is, as `status.nodeInfo.kubeletVersion` and tests that ask for a least one have it.
pub const KUBELET_VERSION: &str = concat!("v1.36.2+smolet", env!("CARGO_PKG_VERSION"));

/// What does not change while the agent runs.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// The node's name.
    pub name: Box<str>,
    /// The machine's own name.
    pub hostname: Box<str>,
    /// Its addresses, the primary one first.
    pub addresses: Vec<Box<str>>,
    /// `/etc/machine-id`.
    pub machine_id: Box<str>,
    /// The board's own UUID, else the machine id.
    pub system_uuid: Box<str>,
    /// Of this boot.
    pub boot_id: Box<str>,
    /// `uname -r`.
    pub kernel: Box<str>,
    /// `PRETTY_NAME` of the distribution.
    pub os_image: Box<str>,
    /// `containerd://1.6.20`.
    pub runtime: Box<str>,
    /// As Go calls it: `arm64`, `arm`, `amd64`.
    pub architecture: &'static str,
    /// CPUs.
    pub cpus: u64,
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes of the disk of the pods' directories.
    pub disk: u64,
    /// The most pods.
    pub pods: usize,
    /// Bytes of memory that pods do not get: what eviction keeps free.
    pub memory_reserved: u64,
    /// The same of the disk.
    pub disk_reserved: u64,
    /// The port of the node's own API; 0 = it has none.
    pub port: u16,
    /// Names of the runtime's handlers, the default one's is empty.
    pub handlers: Vec<Handler>,
}

/// A way to run pods.
#[derive(Clone, Debug, Default)]
pub struct Handler {
    /// Empty: the default one.
    pub name: Box<str>,
    /// It makes mounts read-only with all that is mounted below them.
    pub recursive_read_only_mounts: bool,
    /// It runs pods with users of their own.
    pub user_namespaces: bool,
}

/// What changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// The conditions that hold.
    pub pressure: Vec<NodeCondition>,
    /// Why pods cannot be run; empty: they can.
    pub not_ready: Vec<String>,
}

impl Machine {
    /// The object as it is created.
    pub fn object(&self, health: &Health, before: &[Value], now: Wall) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {
                "name": &*self.name, "labels": self.labels(),
                "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
            },
            "status": self.status(health, before, now),
        })
    }

    /// The labels that every node has.
    pub fn labels(&self) -> Value {
        let mut labels = Map::new();
        for (label, value) in [
            ("beta.kubernetes.io/arch", self.architecture),
            ("beta.kubernetes.io/os", "linux"),
            ("kubernetes.io/arch", self.architecture),
            ("kubernetes.io/hostname", &*self.hostname),
            ("kubernetes.io/os", "linux"),
        ] {
            labels.insert(label.to_owned(), value.into());
        }
        Value::Object(labels)
    }

    /// The status. A condition that is as it was in `before` keeps the time of its last change.
    pub fn status(&self, health: &Health, before: &[Value], now: Wall) -> Value {
        let mut addresses: Vec<Value> =
            self.addresses.iter().map(|ip| json!({"type": "InternalIP", "address": &**ip})).collect();
        addresses.push(json!({"type": "Hostname", "address": &*self.hostname}));
        let handlers: Vec<Value> = self.handlers.iter().map(Handler::value).collect();
        json!({
            "addresses": addresses,
            "allocatable": self.resources(self.memory_reserved, self.disk_reserved),
            "capacity": self.resources(0, 0),
            "conditions": conditions(health, before, now),
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self.port}},
            "nodeInfo": {
                "architecture": self.architecture, "bootID": &*self.boot_id,
                "containerRuntimeVersion": &*self.runtime, "kernelVersion": &*self.kernel,
                "kubeProxyVersion": "", "kubeletVersion": KUBELET_VERSION, "machineID": &*self.machine_id,
                "operatingSystem": "linux", "osImage": &*self.os_image, "systemUUID": &*self.system_uuid,
            },
            "runtimeHandlers": handlers,
        })
    }

    fn resources(&self, memory: u64, disk: u64) -> Value {
        json!({
            "cpu": self.cpus.to_string(),
            "ephemeral-storage": quantity(self.disk.saturating_sub(disk)),
            "memory": quantity(self.memory.saturating_sub(memory)),
            "pods": self.pods.to_string(),
        })
    }
}

/// In whole KiB, as the kubelet's are.
fn quantity(bytes: u64) -> String {
    format!("{}Ki", bytes / 1024)
}

impl Handler {
    fn value(&self) -> Value {
        json!({"name": &*self.name, "features": {
            "recursiveReadOnlyMounts": self.recursive_read_only_mounts, "userNamespaces": self.user_namespaces,
        }})
    }
}

/// In the kubelet's order, the last one the node's as a whole.
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
        ("PIDPressure", false, "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
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
            hostname: "gw".into(),
            addresses: vec!["10.0.0.2".into()],
            architecture: "arm64",
            cpus: 4,
            memory: 512 << 20,
            memory_reserved: 100 << 20,
            disk: 8 << 30,
            disk_reserved: 1 << 30,
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
        assert_eq!(status["addresses"][0], json!({"type": "InternalIP", "address": "10.0.0.2"}));
        assert_eq!(object["metadata"]["labels"]["kubernetes.io/arch"], "arm64");
    }

    #[test]
    fn a_condition_keeps_the_time_of_its_change() {
        let of = |conditions: &Vec<Value>, kind: &str, field: &str| {
            let found = conditions.iter().find(|condition| condition["type"] == kind).expect(kind);
            found[field].as_str().unwrap_or_default().to_owned()
        };
        let first = conditions(&Health::default(), &[], Wall(0));
        assert_eq!(of(&first, "Ready", "reason"), "KubeletReady");
        let short =
            Health { pressure: vec![NodeCondition::Memory], not_ready: vec!["no runtime".to_owned()] };
        let second = conditions(&short, &first, Wall(5_000_000_000));
        assert_eq!(of(&second, "Ready", "message"), "no runtime");
        assert_eq!(of(&second, "MemoryPressure", "status"), "True");
        assert_eq!(of(&second, "MemoryPressure", "lastTransitionTime"), "1970-01-01T00:00:05Z");
        assert_eq!(of(&second, "DiskPressure", "lastTransitionTime"), "1970-01-01T00:00:00Z");
        assert_eq!(of(&second, "DiskPressure", "lastHeartbeatTime"), "1970-01-01T00:00:05Z");
    }
}
