//! Whether the embedded runtime can run pods, with the reason why not and what mends it. I/O, blocking.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use rustix::thread::UnshareFlags;

use super::cni::{self, Asked, Plugins};
use super::sandbox::Sandbox;
use super::selinux;
use super::settings::{Settings, is_hybrid};
use crate::cri::{RuntimeCondition, convert};
use crate::image_store::overlay_refusal_at;
use crate::proto::runtime::v1 as cri;

/// The CRI's conditions.
pub(super) fn conditions(settings: &Settings, pod_cidr: &str) -> Vec<cri::RuntimeCondition> {
    all(settings, None, pod_cidr)
}

fn all(settings: &Settings, agent: Option<u32>, pod_cidr: &str) -> Vec<cri::RuntimeCondition> {
    let mut all = vec![runtime_ready(settings, agent), network_ready(settings, pod_cidr)];
    let fault = selinux::fault(settings);
    all.extend(fault.map(|message| condition(selinux::CONDITION, Some(("NoSELinuxLabels", message)))));
    all
}

/// The same of a node without a pod CIDR, without opening the runtime, as the agent with this process ID finds it; `None`: none runs, and
/// it would find what this process finds. Blocking.
pub fn readiness(settings: &Settings, agent: Option<u32>) -> Vec<RuntimeCondition> {
    shown(all(settings, agent, ""))
}

/// The condition of a runtime without overlayfs, for a node whose runtime is not opened: it would find that out in the same way, by a mount.
/// For root alone. Blocking.
pub fn overlay(settings: &Settings) -> Vec<RuntimeCondition> {
    shown(overlay_refusal_at(&settings.images()).map(|_| no_overlay()).into_iter().collect())
}

fn shown(conditions: Vec<cri::RuntimeCondition>) -> Vec<RuntimeCondition> {
    convert::runtime_status(cri::StatusResponse {
        status: Some(cri::RuntimeStatus { conditions }),
        ..cri::StatusResponse::default()
    })
    .conditions
}

/// The condition of a runtime whose containers have copies of their images; another one has no such condition.
pub const OVERLAY_CONDITION: &str = "Overlay";

/// Overlayfs cannot be mounted where the images are.
pub(super) fn no_overlay() -> cri::RuntimeCondition {
    let message = "overlayfs cannot be mounted where the images are: each container gets a full copy of its image, which takes time \
                   and space";
    condition(OVERLAY_CONDITION, Some(("NoOverlay", message.to_owned())))
}

/// The condition of a pod's network that is not as it was made, among those of all pods' networks.
pub const POD_NETWORK_CONDITION: &str = "PodNetwork";

/// The condition of the first pod whose network there was no time for.
pub const POD_NETWORK_UNKNOWN_CONDITION: &str = "PodNetworkUnknown";

/// One of both.
pub(super) fn pod_network(sandbox: &Sandbox, kind: &str, why: &dyn Display) -> cri::RuntimeCondition {
    let of = sandbox.config().metadata.unwrap_or_default();
    condition(kind, Some((kind, format!("pod {}/{}: {why}", of.namespace, of.name))))
}

fn condition(kind: &str, trouble: Option<(&str, String)>) -> cri::RuntimeCondition {
    let status = trouble.is_none();
    let (reason, message) = trouble.unwrap_or_default();
    cri::RuntimeCondition { r#type: kind.to_owned(), status, reason: reason.to_owned(), message }
}

fn runtime_ready(settings: &Settings, agent: Option<u32>) -> cri::RuntimeCondition {
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
        Some(path) if refuses_hybrid(path, &settings.cgroup_mounts) => {
            let message = format!(
                "{} refuses a hybrid tree of cgroup v1 and v2, which this machine has; apt install runc, or boot with \
                 systemd.unified_cgroup_hierarchy=1",
                path.display()
            );
            Some(("HybridCgroups", message))
        }
        Some(_) => cgroups(&settings.cgroup_mounts).map(|message| ("NoCgroups", message)).or_else(|| {
            let status = agent.map_or("/proc/self/status".to_owned(), |pid| format!("/proc/{pid}/status"));
            let status = std::fs::read_to_string(status).unwrap_or_default();
            // Of another process only that is seen.
            let namespaces = if agent.is_some() { Ok(()) } else { may_make_namespaces() };
            let message = denied(&status, namespaces, &drop_ins(std::env::current_exe().ok().as_deref()))?;
            Some(("Denied", message))
        }),
    };
    condition("RuntimeReady", trouble)
}

/// crun refuses every container on such a tree.
fn refuses_hybrid(runtime: &Path, mounts: &Path) -> bool {
    is_hybrid(mounts) && is_crun(runtime)
}

/// Tries to make a namespace: a service may be denied that, whatever its capabilities are.
fn may_make_namespaces() -> std::io::Result<()> {
    // On a thread that ends with it: a namespace belongs to a thread.
    // Unsound with CLONE_FILES alone, which is not among the flags.
    #[allow(deprecated, reason = "its successor is an unsafe function")]
    let unshare = || rustix::thread::unshare(UnshareFlags::NEWUTS);
    let tried = std::thread::Builder::new().name("namespaces".to_owned()).spawn(unshare)?;
    Ok(tried.join().map_err(|_| std::io::Error::other("the try failed"))??)
}

/// Where the installation of this program has the drop-ins of its unit: PREFIX/share, or that of the packages. PURE.
fn drop_ins(program: Option<&Path>) -> PathBuf {
    let directory = program.and_then(Path::parent).filter(|directory| directory.ends_with("bin"));
    let prefix = directory.and_then(Path::parent).filter(|prefix| prefix.parent().is_some());
    prefix.unwrap_or(Path::new("/usr")).join("share/smolet/systemd")
}

/// What this process is denied that an OCI runtime needs: it inherits that. `status` is its `/proc/PID/status`, `drop_ins` has what permits
/// it. PURE.
fn denied(status: &str, namespaces: std::io::Result<()>, drop_ins: &Path) -> Option<String> {
    const NEEDED: [(&str, u32); 5] =
        [("SETGID", 6), ("SETUID", 7), ("SETPCAP", 8), ("SYS_CHROOT", 18), ("SYS_ADMIN", 21)];
    let bound =
        status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("CapBnd:")?.trim(), 16).ok());
    let missing: Vec<String> = NEEDED
        .into_iter()
        .filter(|(_, number)| bound.is_some_and(|bound| bound & (1 << number) == 0))
        .map(|(name, _)| format!("CAP_{name}"))
        .collect();
    let what = match namespaces {
        Err(error) => format!("to make namespaces ({error})"),
        Ok(()) if missing.is_empty() => return None,
        Ok(()) => missing.join(", "),
    };
    Some(format!(
        "smolet's service is denied {what}, and containers with it: install -D -m 644 {}/embedded.conf \
         /etc/systemd/system/smolet.service.d/embedded.conf && systemctl daemon-reload && systemctl restart smolet",
        drop_ins.display()
    ))
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

/// Whether an OCI runtime is crun, by its name or by that of what it is a link to (`crun-1.28-linux-arm64`). Blocking.
fn is_crun(runtime: &Path) -> bool {
    let is_named =
        |path: &Path| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"crun"));
    is_named(runtime) || std::fs::canonicalize(runtime).is_ok_and(|path| is_named(&path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_hardened_service_is_denied_is_told() {
        let status = |bound: &str| {
            format!("Name:\tsmolet\nCapPrm:\t0000000000000000\nCapBnd:\t{bound}\nNoNewPrivs:\t1\n")
        };
        let forbidden = || Err(std::io::Error::from_raw_os_error(1));
        let drop_ins = Path::new("/opt/x/share/smolet/systemd");
        assert_eq!(denied(&status("000001ffffffffff"), Ok(()), drop_ins), None);
        assert_eq!(denied("", Ok(()), drop_ins), None);
        for (bound, namespaces, what) in [
            // As the packaged unit bounds it.
            (
                "000000040020303b",
                Ok(()),
                "is denied CAP_SETGID, CAP_SETUID, CAP_SETPCAP, CAP_SYS_CHROOT, and containers",
            ),
            (
                "000001ffffffffff",
                forbidden(),
                "is denied to make namespaces (Operation not permitted (os error 1)), and",
            ),
        ] {
            let message = denied(&status(bound), namespaces, drop_ins).unwrap();
            let mend = "install -D -m 644 /opt/x/share/smolet/systemd/embedded.conf /etc/systemd/system/smolet.service.d/";
            assert!(message.contains(what) && message.contains(mend), "{message}");
        }
    }

    #[test]
    fn drop_ins_are_those_of_the_programs_own_installation() {
        for (program, expected) in [
            (Some("/usr/bin/smolet"), "/usr/share/smolet/systemd"),
            (Some("/usr/local/bin/smolet"), "/usr/local/share/smolet/systemd"),
            // Replaced by an upgrade, and running still.
            (Some("/opt/x/bin/smolet (deleted)"), "/opt/x/share/smolet/systemd"),
            (Some("/bin/smolet"), "/usr/share/smolet/systemd"),
            (Some("/root/smolet"), "/usr/share/smolet/systemd"),
            (None, "/usr/share/smolet/systemd"),
        ] {
            assert_eq!(drop_ins(program.map(Path::new)), Path::new(expected), "{program:?}");
        }
    }

    #[test]
    fn crun_is_not_ready_on_a_hybrid_tree() {
        let mounts = std::env::temp_dir().join(format!("smolet-hybrid-{}", std::process::id()));
        std::fs::create_dir_all(mounts.join("unified")).unwrap();
        std::fs::write(mounts.join("unified/cgroup.procs"), "").unwrap();
        assert!(refuses_hybrid(Path::new("/usr/bin/crun"), &mounts));
        assert!(!refuses_hybrid(Path::new("/usr/sbin/runc"), &mounts));
        std::fs::write(mounts.join("cgroup.controllers"), "").unwrap();
        assert!(!refuses_hybrid(Path::new("/usr/bin/crun"), &mounts));
        std::fs::remove_dir_all(&mounts).unwrap();
    }

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
        assert!(runtime_ready(&settings, None).message.ends_with("; apt install runc"));
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
        let awaiting = Settings { has_own_network: false, ..settings.clone() };
        let [_, network] = shown(&awaiting);
        assert!(network.starts_with("false NetworkPluginNotReady no CNI configuration in "), "{network}");
        std::fs::write(root.join("net.d/10-flannel.conflist"), super::network(&settings, "").unwrap())
            .unwrap();
        assert_eq!(shown(&awaiting), ["true  ", "true  "]);
        std::fs::remove_file(root.join("net.d/10-flannel.conflist")).unwrap();
        std::fs::write(root.join("net.d/10-a.conflist"), "{}").unwrap();
        assert!(
            shown(&settings)[1].contains("10-a.conflist: name \"\" is not valid"),
            "{:?}",
            shown(&settings)
        );
        std::fs::remove_dir_all(&root).unwrap();
    }
}
