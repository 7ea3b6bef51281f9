//! The settings as `/configz` of the node's API shows them: those that are in force, by the names of the
//! KubeletConfiguration.

use serde_json::{Value, json};

use super::{Authorization, Config};
use crate::render::CgroupDriver;

impl Config {
    /// `{"kubeletconfig": {…}}`. Paths of keys stand in it, and no keys.
    pub fn configz(&self) -> String {
        let duration = |time: std::time::Duration| Value::from(format!("{}s", time.as_secs_f64()));
        let api = &self.node_api;
        let certificate = api.certificate.as_ref();
        let (mode, webhook) = match api.authorization {
            Authorization::Everything => ("AlwaysAllow", json!({})),
            Authorization::Asked { allowed_ttl, denied_ttl } => (
                "Webhook",
                json!({"cacheAuthorizedTTL": duration(allowed_ttl), "cacheUnauthorizedTTL": duration(denied_ttl)}),
            ),
        };
        let driver = match self.cgroup_driver {
            CgroupDriver::Cgroupfs => "cgroupfs",
            CgroupDriver::Systemd => "systemd",
        };
        json!({"kubeletconfig": {
            "kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "staticPodPath": self.manifests, "podLogsDir": self.pod_logs_dir,
            "fileCheckFrequency": duration(self.file_check_frequency),
            "runtimeRequestTimeout": duration(self.runtime_request_timeout),
            "containerRuntimeEndpoint": self.runtime_endpoint.as_deref().unwrap_or_default(),
            "maxPods": self.max_pods, "cgroupRoot": self.cgroup_root, "cgroupDriver": driver,
            "cpuCFSQuota": self.cpu_cfs_quota, "cpuCFSQuotaPeriod": duration(self.cpu_cfs_quota_period),
            "seccompDefault": self.seccomp_default, "allowedUnsafeSysctls": self.allowed_unsafe_sysctls,
            "clusterDNS": self.cluster_dns, "clusterDomain": self.cluster_domain, "resolvConf": self.resolv_conf,
            "crashLoopBackOff": {"maxContainerRestartPeriod": duration(self.max_container_restart_period)},
            "serializeImagePulls": self.image_pulls == 1, "maxParallelImagePulls": self.image_pulls,
            "rotateCertificates": self.rotate_certificates, "serverTLSBootstrap": self.server_tls_bootstrap,
            "address": api.address, "port": api.port, "readOnlyPort": 0,
            "healthzPort": api.healthz.map_or(0, |at| at.port()),
            "healthzBindAddress": api.healthz.map(|at| at.ip()),
            "tlsCertFile": certificate.map(|(file, _)| file), "tlsPrivateKeyFile": certificate.map(|(_, file)| file),
            "authentication": {
                "x509": {"clientCAFile": api.client_ca},
                "webhook": {"enabled": api.token_ttl.is_some(), "cacheTTL": api.token_ttl.map(duration)},
                "anonymous": {"enabled": api.anonymous},
            },
            "authorization": {"mode": mode, "webhook": webhook},
        }})
        .to_string()
    }
}
