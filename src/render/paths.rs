//! Paths of a pod's files: the kubelet's layout below another root. PURE: names only.

use super::NodeSettings;
use crate::model::PodKey;

/// A pod's directory for the newest lines of its logs in memory.
pub const FLUSHED_LOGS: &str = "logs";

/// `ROOT/pods/UID` (`getPodDir`).
pub fn pod_dir(node: &NodeSettings, pod: &PodKey) -> String {
    format!("{}/pods/{}", node.root_dir, pod.uid)
}

/// `ROOT/pods/UID/etc-hosts` (`getEtcHostsPath`).
pub fn hosts_file_path(node: &NodeSettings, pod: &PodKey) -> String {
    format!("{}/etc-hosts", pod_dir(node, pod))
}

/// `ROOT/pods/UID/containers/NAME` (`getPodContainerDir`): contains the termination logs, named by eight random hexadecimal
/// digits.
pub fn termination_log_dir(node: &NodeSettings, pod: &PodKey, container: &str) -> String {
    format!("{}/containers/{container}", pod_dir(node, pod))
}

/// `/var/log/pods/NAMESPACE_NAME_UID` (`BuildPodLogsDirectory`).
pub fn pod_logs_dir(node: &NodeSettings, pod: &PodKey) -> String {
    format!("{}/{}_{}_{}", node.pod_logs_dir, pod.namespace, pod.name, pod.uid)
}

/// The container's directory in it (`BuildContainerLogsDirectory`). Created before the container, mode 0755.
pub fn container_logs_dir(node: &NodeSettings, pod: &PodKey, container: &str) -> String {
    format!("{}/{container}", pod_logs_dir(node, pod))
}

/// `ROOT/pods/UID/logs`: the newest lines of container logs in memory, flushed to the disk.
pub fn flushed_logs_dir(node: &NodeSettings, pod: &PodKey) -> String {
    format!("{}/{FLUSHED_LOGS}", pod_dir(node, pod))
}

/// The UID in the name of a log directory (`parsePodUIDFromLogsDirectory`).
pub fn uid_of_logs_dir(name: &str) -> &str {
    name.rsplit('_').next().unwrap_or(name)
}

/// `CONTAINER/N.log` below the pod's log directory (`buildContainerLogsPath`).
pub fn container_log_path(container: &str, restart_count: u32) -> String {
    format!("{container}/{restart_count}.log")
}

/// `/var/log/containers/NAME_NAMESPACE_CONTAINER-ID.log`, which log collectors read (`legacyLogSymlink`). The name is
/// truncated to ext4's limit.
pub fn legacy_log_symlink(pod: &PodKey, container: &str, container_id: &str) -> String {
    const FILE_NAME_BYTES_MAX: usize = 255;
    const SUFFIX: &str = ".log";
    let mut name = format!("{}_{}_{container}-{container_id}", pod.name, pod.namespace);
    // Slicing inside a UTF-8 character would panic; Go cuts bytes. Names are ASCII.
    crate::text::cut(&mut name, FILE_NAME_BYTES_MAX - SUFFIX.len());
    format!("/var/log/containers/{name}{SUFFIX}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kubelets_layout() {
        let node = NodeSettings::new("n", "/var/lib/smolet");
        let pod = PodKey::new("prod", "web", "u1");
        assert_eq!(hosts_file_path(&node, &pod), "/var/lib/smolet/pods/u1/etc-hosts");
        assert_eq!(termination_log_dir(&node, &pod, "c"), "/var/lib/smolet/pods/u1/containers/c");
        assert_eq!(pod_logs_dir(&node, &pod), "/var/log/pods/prod_web_u1");
        assert_eq!(container_logs_dir(&node, &pod, "c"), "/var/log/pods/prod_web_u1/c");
        assert_eq!(uid_of_logs_dir("prod_web_u1"), "u1");
        assert_eq!(uid_of_logs_dir("u1"), "u1", "the layout before 1.14");
        let link = legacy_log_symlink(&pod, "c", &"f".repeat(300));
        assert_eq!(link.len(), "/var/log/containers/".len() + 255);
    }
}
