//! Settings that say nothing but what holds here anyway: `kubeadm` writes them into each node's file. Another value than that
//! is refused. A duration of 0 is the default, as with the kubelet (`SetDefaults_KubeletConfiguration`).

use std::time::Duration;

use serde::Deserialize;

use super::kubelet::GoDuration;
use super::{ConfigError, FileSettings};

/// `memorySwap`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct MemorySwap {
    swap_behavior: Option<String>,
}

/// `logging`: what is logged, and how, is `--log-level`'s.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Logging {
    format: Option<String>,
    /// Nanoseconds or a duration; nothing is held back here that would be flushed.
    flush_frequency: Option<serde_json::Value>,
    verbosity: Option<u32>,
    options: LoggingOptions,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct LoggingOptions {
    json: LoggingBuffer,
    text: LoggingBuffer,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct LoggingBuffer {
    info_buffer_size: Option<String>,
    split_stream: Option<bool>,
}

impl LoggingBuffer {
    fn is_plain(&self) -> bool {
        self.info_buffer_size.as_deref().is_none_or(|size| size == "0") && self.split_stream != Some(true)
    }
}

/// Refuses what is not so here.
pub(super) fn check(file: &FileSettings) -> Result<(), ConfigError> {
    let minute = Duration::from_mins(1);
    for (field, given, fixed) in [
        ("syncFrequency", file.sync_frequency, minute),
        ("httpCheckFrequency", file.http_check_frequency, Duration::from_secs(20)),
        ("volumeStatsAggPeriod", file.volume_stats_agg_period, minute),
        ("cpuManagerReconcilePeriod", file.cpu_manager_reconcile_period, Duration::from_secs(10)),
        // The runtime's own, too.
        ("streamingConnectionIdleTimeout", file.streaming_connection_idle_timeout, Duration::from_hours(4)),
    ] {
        if let Some(GoDuration(given)) = given.filter(|given| !given.0.is_zero() && given.0 != fixed) {
            return Err(ConfigError(format!(
                "{field}: {} s: must be {} s, which is how it is here; leave the field out",
                given.as_secs_f64(),
                fixed.as_secs()
            )));
        }
    }
    let swap = file.memory_swap.swap_behavior.as_deref().unwrap_or_default();
    if !["", "NoSwap"].contains(&swap) {
        return Err(ConfigError(format!(
            "memorySwap.swapBehavior: {swap:?}: must be NoSwap; containers get no swap here"
        )));
    }
    let logging = &file.logging;
    let is_text = logging.format.as_deref().is_none_or(|format| ["", "text"].contains(&format));
    let is_plain = logging.options.json.is_plain() && logging.options.text.is_plain();
    if !is_text || !is_plain || logging.verbosity.is_some_and(|verbosity| verbosity > 0) {
        return Err(ConfigError(
            "logging: only what kubeadm writes, text without verbosity; use --log-level to log more"
                .to_owned(),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{Config, Flags};
    use super::*;

    const HEAD: &str = "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n";

    /// As `kubeadm join` of 1.36 writes it to `/var/lib/kubelet/config.yaml`.
    const KUBEADM: &str = r#"
authentication:
  anonymous: {enabled: false}
  webhook: {cacheTTL: 0s, enabled: true}
  x509: {clientCAFile: /etc/kubernetes/pki/ca.crt}
authorization:
  mode: Webhook
  webhook: {cacheAuthorizedTTL: 0s, cacheUnauthorizedTTL: 0s}
cgroupDriver: systemd
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
cpuManagerReconcilePeriod: 0s
crashLoopBackOff: {}
evictionPressureTransitionPeriod: 0s
fileCheckFrequency: 0s
healthzBindAddress: 127.0.0.1
healthzPort: 10248
httpCheckFrequency: 0s
imageMaximumGCAge: 0s
imageMinimumGCAge: 0s
logging:
  flushFrequency: 0
  options:
    json: {infoBufferSize: "0"}
    text: {infoBufferSize: "0"}
  verbosity: 0
memorySwap: {}
nodeStatusReportFrequency: 0s
nodeStatusUpdateFrequency: 0s
resolvConf: /run/systemd/resolve/resolv.conf
rotateCertificates: true
runtimeRequestTimeout: 0s
shutdownGracePeriod: 0s
shutdownGracePeriodCriticalPods: 0s
staticPodPath: /etc/kubernetes/manifests
streamingConnectionIdleTimeout: 0s
syncFrequency: 0s
volumeStatsAggPeriod: 0s
"#;

    fn config(text: &str) -> Result<Config, String> {
        let file = FileSettings::parse(format!("{HEAD}{text}").as_bytes())?;
        Config::join(&Flags::default(), None, file).map_err(|error| error.0)
    }

    #[test]
    fn what_kubeadm_writes_is_taken_and_its_zeros_are_defaults() {
        let (given, default) = (config(KUBEADM).expect("taken"), config("").expect("valid"));
        assert_eq!(given.file_check_frequency, default.file_check_frequency);
        assert_eq!(given.runtime_request_timeout, default.runtime_request_timeout);
        assert_eq!(given.eviction, default.eviction);
        assert_eq!(given.image_gc, default.image_gc);
        assert_eq!(given.node_api.authorization, default.node_api.authorization);
        assert_eq!(given.node_api.token_ttl, default.node_api.token_ttl);
        assert_eq!(given.registration, default.registration);
        assert!(given.rotate_certificates && !default.rotate_certificates);
    }

    #[test]
    fn another_value_is_refused_by_name() {
        for (text, field) in [
            ("syncFrequency: 10s", "syncFrequency: 10 s: must be 60 s"),
            ("streamingConnectionIdleTimeout: 5m", "streamingConnectionIdleTimeout: 300 s: must be 14400 s"),
            (
                "memorySwap: {swapBehavior: LimitedSwap}",
                "memorySwap.swapBehavior: \"LimitedSwap\": must be NoSwap",
            ),
            ("logging: {format: json}", "logging: only what kubeadm writes"),
            ("logging: {verbosity: 4}", "logging: only what kubeadm writes"),
            ("logging: {options: {text: {infoBufferSize: 1Mi}}}", "logging: only what kubeadm writes"),
        ] {
            let error = config(text).expect_err("refused");
            assert!(error.starts_with(field), "{error}");
        }
        assert!(config("logging: {flushFrequency: 5s}").is_ok(), "nothing is held back");
    }
}
