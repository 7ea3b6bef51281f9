//! A KubeletConfiguration file (kubelet.config.k8s.io/v1beta1): the fields smolet has, by their own names.
//!
//! Every other field is named in one message: a setting that would be ignored is refused.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use super::ConfigError;
use super::eviction::BySignal;
use super::fixed::{Logging, MemorySwap};
use super::node_api::{Authentication, AuthorizationFile};
use super::registration::{NodeTaint, ReservedFile};
use crate::limits;
use crate::source::decode::{Node, Path as FieldPath, typed, yaml};

/// What the file may set; `None` = not set.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FileSettings {
    kind: String,
    api_version: String,
    pub(super) static_pod_path: Option<PathBuf>,
    pub(super) container_runtime_endpoint: Option<String>,
    pub(super) pod_logs_dir: Option<PathBuf>,
    pub(super) cgroup_root: Option<String>,
    pub(super) cgroup_driver: Option<String>,
    #[serde(rename = "cpuCFSQuota")]
    pub(super) cpu_cfs_quota: Option<bool>,
    #[serde(rename = "cpuCFSQuotaPeriod")]
    pub(super) cpu_cfs_quota_period: Option<GoDuration>,
    pub(super) seccomp_default: Option<bool>,
    #[serde(rename = "allowedUnsafeSysctls")]
    pub(super) allowed_unsafe_sysctls: Option<Vec<String>>,
    #[serde(rename = "clusterDNS")]
    pub(super) cluster_dns: Option<Vec<String>>,
    pub(super) cluster_domain: Option<String>,
    pub(super) resolv_conf: Option<PathBuf>,
    pub(super) file_check_frequency: Option<GoDuration>,
    pub(super) runtime_request_timeout: Option<GoDuration>,
    pub(super) max_pods: Option<i32>,
    pub(super) crash_loop_back_off: CrashLoopBackOff,
    pub(super) serialize_image_pulls: Option<bool>,
    pub(super) max_parallel_image_pulls: Option<i32>,
    pub(super) eviction_hard: Option<BySignal<String>>,
    pub(super) eviction_soft: Option<BySignal<String>>,
    pub(super) eviction_soft_grace_period: Option<BySignal<GoDuration>>,
    pub(super) eviction_minimum_reclaim: Option<BySignal<String>>,
    pub(super) eviction_pressure_transition_period: Option<GoDuration>,
    pub(super) eviction_max_pod_grace_period: Option<i32>,
    #[serde(rename = "imageGCHighThresholdPercent")]
    pub(super) image_gc_high_threshold_percent: Option<i32>,
    #[serde(rename = "imageGCLowThresholdPercent")]
    pub(super) image_gc_low_threshold_percent: Option<i32>,
    #[serde(rename = "imageMinimumGCAge")]
    pub(super) image_minimum_gc_age: Option<GoDuration>,
    #[serde(rename = "imageMaximumGCAge")]
    pub(super) image_maximum_gc_age: Option<GoDuration>,
    pub(super) container_log_max_size: Option<String>,
    pub(super) container_log_max_files: Option<i32>,
    pub(super) container_log_monitor_interval: Option<GoDuration>,
    pub(super) kube_reserved: ReservedFile,
    pub(super) system_reserved: ReservedFile,
    pub(super) register_with_taints: Option<Vec<NodeTaint>>,
    #[serde(rename = "providerID")]
    pub(super) provider_id: Option<String>,
    pub(super) node_status_update_frequency: Option<GoDuration>,
    pub(super) node_status_report_frequency: Option<GoDuration>,
    pub(super) node_lease_duration_seconds: Option<i32>,
    pub(super) rotate_certificates: Option<bool>,
    #[serde(rename = "serverTLSBootstrap")]
    pub(super) server_tls_bootstrap: Option<bool>,
    pub(super) sync_frequency: Option<GoDuration>,
    pub(super) http_check_frequency: Option<GoDuration>,
    pub(super) volume_stats_agg_period: Option<GoDuration>,
    pub(super) cpu_manager_reconcile_period: Option<GoDuration>,
    pub(super) streaming_connection_idle_timeout: Option<GoDuration>,
    pub(super) memory_swap: MemorySwap,
    pub(super) logging: Logging,
    pub(super) address: Option<String>,
    pub(super) port: Option<i32>,
    pub(super) tls_cert_file: Option<PathBuf>,
    pub(super) tls_private_key_file: Option<PathBuf>,
    pub(super) authentication: Authentication,
    pub(super) authorization: AuthorizationFile,
    pub(super) read_only_port: Option<i32>,
    pub(super) healthz_port: Option<i32>,
    pub(super) healthz_bind_address: Option<String>,
    pub(super) shutdown_grace_period: Option<GoDuration>,
    pub(super) shutdown_grace_period_critical_pods: Option<GoDuration>,
    pub(super) shutdown_grace_period_by_pod_priority: Option<Vec<PodPriority>>,
}

/// One of `shutdownGracePeriodByPodPriority`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct PodPriority {
    pub(super) priority: i32,
    pub(super) shutdown_grace_period_seconds: i64,
}

/// `crashLoopBackOff`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct CrashLoopBackOff {
    pub(super) max_container_restart_period: Option<GoDuration>,
}

/// A duration as Go writes it (`metav1.Duration`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GoDuration(pub(super) Duration);

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_go_duration(&text).map(GoDuration).ok_or_else(|| {
            serde::de::Error::custom(format!("{text:?}: must be a duration such as 20s, 1m30s or 2h"))
        })
    }
}

impl FileSettings {
    /// Reads and checks the file.
    ///
    /// # Errors
    /// One sentence that names the file, and every field that is unknown, not supported or of the wrong type.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let fail = |what: String| ConfigError(format!("{}: {what}", path.display()));
        let unread = |e: io::Error| fail(format!("cannot be read: {e}"));
        // Looked at before it is opened: a FIFO would wait for its writer.
        if !std::fs::metadata(path).map_err(unread)?.is_file() {
            return Err(fail(
                "is no regular file; name a KubeletConfiguration file with --config".to_owned(),
            ));
        }
        let max = limits::CONFIG_FILE_BYTES_MAX;
        let mut bytes = Vec::new();
        // The size a file claims says nothing (/proc), so the reading itself is bounded.
        let file = std::fs::File::open(path).map_err(unread)?;
        file.take(max as u64 + 1).read_to_end(&mut bytes).map_err(unread)?;
        if bytes.len() > max {
            return Err(fail(format!("is too large: at most {max} bytes are read")));
        }
        Self::parse(&bytes).map_err(fail)
    }

    /// Takes the file's only document.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let mut documents: Vec<Node> = Vec::new();
        let mut failed = None;
        let whole = yaml::documents(bytes, |_, document| match document {
            Ok(document) => documents.push(document),
            Err(error) => failed = Some(error),
        });
        if let Some(error) = whole.err().or(failed) {
            return Err(format!("line {}: {}", error.line, error.message));
        }
        let [document] = documents.as_slice() else {
            return Err("must hold one KubeletConfiguration document".to_owned());
        };
        let settings: Self = typed::read(document, FieldPath::default()).map_err(|errors| {
            let each = errors.iter().map(|error| match &error.value {
                Some(value) => format!("{}: {value}: {}", error.path, error.message),
                None => format!("{}: {}", error.path, error.message),
            });
            format!("not supported here: {}", each.collect::<Vec<_>>().join("; "))
        })?;
        for (name, given, fixed) in [
            ("kind", &settings.kind, "KubeletConfiguration"),
            ("apiVersion", &settings.api_version, "kubelet.config.k8s.io/v1beta1"),
        ] {
            if given != fixed {
                return Err(format!("{name}: {given:?}: must be {fixed}"));
            }
        }
        Ok(settings)
    }
}

impl GoDuration {
    /// The duration that is given, where 0 is none (`zeroDuration`).
    pub(super) fn or(given: Option<Self>, default: Duration) -> Duration {
        given.map(|given| given.0).filter(|given| !given.is_zero()).unwrap_or(default)
    }
}

/// Go's `time.ParseDuration` for durations that are not negative: `1h30m`, `1.5s`, `100ms`, `0`.
pub(crate) fn parse_go_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    if text.is_empty() {
        return None;
    }
    let (mut rest, mut nanos) = (text, 0_f64);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit_end = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        let unit = match &rest[..unit_end] {
            "ns" => 1.0,
            "us" | "µs" | "μs" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            "m" => 60e9,
            "h" => 3600e9,
            _ => return None,
        };
        nanos += number * unit;
        rest = &rest[unit_end..];
    }
    Duration::try_from_secs_f64(nanos / 1e9).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_durations() {
        for (text, expected) in [
            ("20s", Some(Duration::from_secs(20))),
            ("1m30s", Some(Duration::from_secs(90))),
            ("1.5s", Some(Duration::from_millis(1500))),
            ("100ms", Some(Duration::from_millis(100))),
            ("2h", Some(Duration::from_hours(2))),
            ("0", Some(Duration::ZERO)),
            ("", None),
            ("5", None),
            ("-1s", None),
            ("1x", None),
            ("s", None),
        ] {
            assert_eq!(parse_go_duration(text), expected, "{text:?}");
        }
    }
}
