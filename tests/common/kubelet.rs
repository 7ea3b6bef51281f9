//! A kubelet on this machine, if the environment variable `KUBELET` has its path.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Standalone: static pods, no API server, no listening port, and the kubelet's defaults for everything that uses resources.
/// Its manifests are in `DIR/manifests`, its state in `DIR/root`, its logs in `DIR/logs/pods`.
pub fn command(endpoint: &str, cgroup_root: &str, binary: &Path, dir: &Path, node: &str) -> Command {
    let d = dir.display();
    let config = dir.join("config.yaml");
    let text = format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
staticPodPath: {d}/manifests
podLogsDir: {d}/logs/pods
volumePluginDir: {d}/plugins
containerRuntimeEndpoint: {endpoint}
cgroupRoot: {cgroup_root}
cgroupDriver: cgroupfs
enforceNodeAllocatable: [none]
failCgroupV1: false
failSwapOn: false
enableServer: false
readOnlyPort: 0
healthzPort: 0
makeIPTablesUtilChains: false
registerNode: false
maxPods: 250
resolvConf: ''
imageGCHighThresholdPercent: 100
evictionHard: {{memory.available: 0%, nodefs.available: 0%, nodefs.inodesFree: 0%, imagefs.available: 0%}}
authentication: {{anonymous: {{enabled: true}}, webhook: {{enabled: false}}}}
authorization: {{mode: AlwaysAllow}}
"
    );
    fs::write(&config, text).expect("a configuration can be written");
    let mut command = Command::new(binary);
    command.arg("--config").arg(config).args(["--hostname-override", node]);
    command.arg("--root-dir").arg(dir.join("root")).arg("--cert-dir").arg(dir.join("pki"));
    command
}

/// The machine's settings that a kubelet changes, as they were before.
pub struct Settings {
    node: String,
    sysctls: Vec<(&'static str, String)>,
    /// The directory of the kubelet's links to container logs cannot be configured.
    links: Option<Vec<PathBuf>>,
}

const SYSCTLS: [&str; 6] = [
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/vm/panic_on_oom",
    "/proc/sys/kernel/panic",
    "/proc/sys/kernel/panic_on_oops",
    "/proc/sys/kernel/keys/root_maxkeys",
    "/proc/sys/kernel/keys/root_maxbytes",
];
const LINKS: &str = "/var/log/containers";

fn links() -> Option<Vec<PathBuf>> {
    Some(fs::read_dir(LINKS).ok()?.flatten().map(|entry| entry.path()).collect())
}

impl Settings {
    /// The state before the kubelet of that name starts.
    pub fn kept(node: &str) -> Self {
        let kept = SYSCTLS.iter().filter_map(|path| Some((*path, fs::read_to_string(path).ok()?)));
        Self { node: node.to_owned(), sysctls: kept.collect(), links: links() }
    }

    pub fn put_back(&self) {
        for (path, was) in &self.sysctls {
            if fs::read_to_string(path).is_ok_and(|is| is != *was) {
                let _ = fs::write(path, was);
            }
        }
        let before = self.links.as_deref().unwrap_or_default();
        for link in links().unwrap_or_default().iter().filter(|link| !before.contains(link)) {
            // Ours are links to logs of this agent's node.
            if link.to_string_lossy().contains(&format!("-{}_", self.node)) {
                let _ = fs::remove_file(link);
            }
        }
        if self.links.is_none() {
            // Only when it is empty again.
            let _ = fs::remove_dir(LINKS);
        }
    }
}
