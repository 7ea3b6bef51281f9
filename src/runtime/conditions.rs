//! Whether the embedded runtime can run pods, with the reason why not and what mends it. I/O, blocking.

use std::path::Path;

use super::cni::{self, Asked, Plugins};
use super::settings::{Settings, is_hybrid};
use crate::cri::{RuntimeCondition, convert};
use crate::proto::runtime::v1 as cri;

/// The CRI's conditions.
pub(super) fn conditions(settings: &Settings, pod_cidr: &str) -> Vec<cri::RuntimeCondition> {
    vec![runtime_ready(settings), network_ready(settings, pod_cidr)]
}

/// The same of a node without a pod CIDR, without opening the runtime. Blocking.
pub fn readiness(settings: &Settings) -> Vec<RuntimeCondition> {
    let conditions = conditions(settings, "");
    convert::runtime_status(cri::StatusResponse {
        status: Some(cri::RuntimeStatus { conditions }),
        ..cri::StatusResponse::default()
    })
    .conditions
}

fn condition(kind: &str, trouble: Option<(&str, String)>) -> cri::RuntimeCondition {
    let status = trouble.is_none();
    let (reason, message) = trouble.unwrap_or_default();
    cri::RuntimeCondition { r#type: kind.to_owned(), status, reason: reason.to_owned(), message }
}

fn runtime_ready(settings: &Settings) -> cri::RuntimeCondition {
    let trouble = match settings.handlers.get("") {
        None => {
            let fitting = if is_hybrid(&settings.cgroup_mounts) { "runc" } else { "crun, or runc" };
            Some(("NoOCIRuntime", format!("no OCI runtime is installed; apt install {fitting}")))
        }
        Some(path) if !path.is_file() => {
            let message =
                format!("the OCI runtime {} is not there; apt install crun, or runc", path.display());
            Some(("NoOCIRuntime", message))
        }
        Some(_) => cgroups(&settings.cgroup_mounts).map(|message| ("NoCgroups", message)),
    };
    condition("RuntimeReady", trouble)
}

/// What keeps containers from having cgroups.
fn cgroups(mounts: &Path) -> Option<String> {
    let has = |file: &str| mounts.join(file).exists();
    if has("cgroup.controllers") {
        let controllers = std::fs::read_to_string(mounts.join("cgroup.controllers")).unwrap_or_default();
        let missing: Vec<&str> = ["cpu", "memory", "pids"]
            .into_iter()
            .filter(|of| !controllers.split_whitespace().any(|c| c == *of))
            .collect();
        return (!missing.is_empty()).then(|| {
            format!(
                "the kernel gives no cgroup controller {}; add cgroup_enable=memory cgroup_memory=1 to the kernel's \
                 command line",
                missing.join(", ")
            )
        });
    }
    let missing: Vec<&str> = ["cpu", "memory", "devices"].into_iter().filter(|of| !has(of)).collect();
    (!missing.is_empty()).then(|| {
        let (mounts, missing) = (mounts.display(), missing.join(", "));
        format!("no cgroup hierarchy of {missing} is mounted below {mounts}; boot with systemd, or mount cgroup2 there")
    })
}

/// The CNI configuration of sandboxes, which is that of a file, or the node's own.
pub(super) fn network(settings: &Settings, pod_cidr: &str) -> Result<String, cni::CniError> {
    // Ports are an everyday wish, limits of the bandwidth are not.
    cni::load(settings, pod_cidr, Asked { ports: true, bandwidth: false })
}

fn network_ready(settings: &Settings, pod_cidr: &str) -> cri::RuntimeCondition {
    let trouble = match network(settings, pod_cidr).and_then(|text| cni::kept(&text)) {
        Ok(network) => Plugins::missing(&settings.cni_bin_dirs, &network),
        Err(error) => Some(error),
    };
    condition("NetworkReady", trouble.map(|error| ("NetworkPluginNotReady", error.to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_with_its_mend() {
        let root = std::env::temp_dir().join(format!("smolet-conditions-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        let mut settings = Settings::of_machine(
            &root,
            &root,
            Path::new("/bin/true"),
            Path::new(crate::paths::CGROUP_MOUNTS),
        );
        settings.cgroup_mounts = root.join("cgroup");
        settings.cni_conf_dir = root.join("net.d");
        settings.cni_bin_dirs = vec![root.join("bin")];
        let shown = |settings: &Settings| {
            let all = conditions(settings, "")
                .into_iter()
                .map(|of| format!("{} {} {}", of.status, of.reason, of.message));
            <[String; 2]>::try_from(all.collect::<Vec<_>>()).unwrap()
        };
        std::fs::create_dir_all(root.join("bin")).unwrap();
        std::fs::create_dir_all(root.join("net.d")).unwrap();
        settings.handlers.clear();
        let [runtime, network] = shown(&settings);
        assert_eq!(runtime, "false NoOCIRuntime no OCI runtime is installed; apt install crun, or runc");
        // crun refuses a hybrid tree.
        std::fs::create_dir_all(root.join("cgroup/unified")).unwrap();
        std::fs::write(root.join("cgroup/unified/cgroup.procs"), "").unwrap();
        assert!(runtime_ready(&settings).message.ends_with("; apt install runc"));
        std::fs::remove_dir_all(root.join("cgroup/unified")).unwrap();
        assert!(
            network.starts_with("false NetworkPluginNotReady CNI plugin bridge of network smolet0"),
            "{network}"
        );
        settings.handlers.insert("".into(), "/bin/sh".into());
        assert!(
            shown(&settings)[0].starts_with("false NoCgroups no cgroup hierarchy of cpu, memory, devices")
        );
        std::fs::create_dir_all(&settings.cgroup_mounts).unwrap();
        std::fs::write(settings.cgroup_mounts.join("cgroup.controllers"), "cpu io pids\n").unwrap();
        assert!(
            shown(&settings)[0].starts_with("false NoCgroups the kernel gives no cgroup controller memory;")
        );
        std::fs::write(settings.cgroup_mounts.join("cgroup.controllers"), "cpu io memory pids\n").unwrap();
        for plugin in ["bridge", "host-local", "portmap"] {
            std::fs::write(root.join("bin").join(plugin), "").unwrap();
        }
        assert_eq!(shown(&settings), ["true  ", "true  "]);
        std::fs::write(root.join("net.d/10-a.conflist"), "{}").unwrap();
        assert!(
            shown(&settings)[1].contains("10-a.conflist: name \"\" is not valid"),
            "{:?}",
            shown(&settings)
        );
        std::fs::remove_dir_all(&root).unwrap();
    }
}
