//! The node and the sources of variables that the `container_config` and `sandbox_config` sets were made with.

use std::rc::Rc;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use serde::de::DeserializeOwned;
use serde_json::Value;
use smolet::model::DesiredPod;
use smolet::render::{CgroupVersion, EnvSources, NodeSettings, ResolvConf};

use crate::fixtures;

pub struct Fixture {
    /// cgroup v1 without swap controller.
    pub node: NodeSettings,
    pub sources: Sources,
}

pub struct Sources {
    config_maps: Vec<Arc<ConfigMap>>,
    secrets: Vec<Arc<Secret>>,
    services: Rc<[Service]>,
}

impl Fixture {
    pub fn load() -> Self {
        let all = fixtures();
        let kubelet = &all["kubelet"];
        let text = |value: &Value| Box::from(value.as_str().expect("text"));
        let texts =
            |value: &Value| value.as_array().expect("texts").iter().map(text).collect::<Vec<Box<str>>>();
        let mut node = NodeSettings::new("127.0.0.1", kubelet["rootDirectory"].as_str().expect("a path"));
        node.node_ips = texts(&kubelet["nodeIPs"]);
        node.cgroup_version = CgroupVersion::V1 { swap_controller: false };
        node.cpu_cfs_quota = kubelet["cpuCFSQuota"].as_bool().expect("a bool");
        node.cpu_capacity_millis = kubelet["numCores"].as_i64().expect("a number") * 1000;
        node.memory_capacity_bytes = kubelet["memoryCapacityBytes"].as_i64().expect("a number");
        // Nothing was reserved.
        (node.cpu_allocatable_millis, node.memory_allocatable_bytes) =
            (node.cpu_capacity_millis, node.memory_capacity_bytes);
        node.ephemeral_storage_bytes = 100 << 30;
        node.hugepage_sizes = texts(&kubelet["hugePageSizes"]);
        node.pod_logs_dir = text(&kubelet["podLogsDirectory"]);
        node.resolv_conf = Some(ResolvConf::parse(all["resolvConf"].as_str().expect("text")));
        node.cluster_dns = texts(&kubelet["clusterDNS"]);
        node.cluster_domain = text(&kubelet["clusterDomain"]);
        let sources = Sources {
            config_maps: list(&all["configMaps"]).into_iter().map(Arc::new).collect(),
            secrets: list(&all["secrets"]).into_iter().map(Arc::new).collect(),
            services: list(&all["services"]).into(),
        };
        Self { node, sources }
    }
}

fn list<T: DeserializeOwned>(value: &Value) -> Vec<T> {
    serde_json::from_value(value.clone()).expect("API objects")
}

impl EnvSources for Sources {
    // The fixtures' ConfigMaps and Secrets stand in every namespace.
    fn config_map(&self, _: &DesiredPod, name: &str) -> Result<Option<Arc<ConfigMap>>, String> {
        Ok(self.config_maps.iter().find(|map| map.metadata.name.as_deref() == Some(name)).cloned())
    }

    fn secret(&self, _: &DesiredPod, name: &str) -> Result<Option<Arc<Secret>>, String> {
        Ok(self.secrets.iter().find(|secret| secret.metadata.name.as_deref() == Some(name)).cloned())
    }

    fn services(&self, _: &DesiredPod) -> Rc<[Service]> {
        self.services.clone()
    }

    fn volume_file(&self, _: &str, _: &str) -> Result<Option<Rc<str>>, String> {
        Ok(None)
    }
}

/// The pod's addresses of a case.
pub fn pod_ips(input: &Value) -> Vec<Box<str>> {
    input["podIPs"].as_array().into_iter().flatten().filter_map(Value::as_str).map(Box::from).collect()
}
