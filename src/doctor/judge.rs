//! PURE: derives the findings from the facts, in the order in which they should be fixed.
//!
//! | check | problem | warning |
//! |---|---|---|
//! | configuration | the given settings are invalid | |
//! | user | | not root: some facts are missing |
//! | memory cgroup | disabled, or not mounted | |
//! | cgroups | none; no cpu or pids controller | |
//! | kernel | built without what containers need | |
//! | runtime | none answers, or not ready | its status is unknown |
//! | pod network | CNI CHECK of a running pod fails | not all could be checked |
//! | overlayfs | | cannot be mounted: containers are copies of their images |
//! | other agents | one on the same runtime | running sandboxes that smolet did not create |
//! | cgroup driver | cgroupfs, and the runtime has systemd and does not report it by the CRI | other differences |
//! | pause image | | is absent, or unknown |
//! | cni | no configuration, an invalid one, or missing plugins | the runtime's network is not ready |
//! | disk | so little available that pods are evicted | less than twice that |
//! | clock | is before this program's build | is not synchronised |
//! | swap | | is on |
//! | inotify | | limits lower than Linux' own |
//! | kernel settings | | differ from the kubelet's |
//! | cluster network | | the kernel lacks what k3s sets up for Services and for pods on other nodes |
//! | router advertisements | | the kernel ignores them, because it forwards IPv6 |
//! | kernel modules | the kernel cannot load those of Services, policies or links to other nodes | |
//! | firewall | | iptables drops forwarded packets that no rule accepts; firewalld trusts no range |
//! | rules of others | | kube-proxy's or kube-router's beside those of smolet |
//! | name servers | | pods cannot reach those of the node |

use std::fmt::Write as _;

use super::facts::{
    CgroupFacts, ClockFacts, CniFacts, DiskFacts, Facts, InotifyFacts, Kubelet, RuntimeFacts,
};
use super::{Finding, Level};
use crate::cri::endpoint::{self, USUAL_SOCKETS};
use crate::cri::shims::Shim;
use crate::kernel_tunables::network::Lacking;
use crate::kernel_tunables::{self, Differing};
use crate::limits::MIB;
use crate::model::Wall;
use crate::render::CgroupDriver;
use crate::resolv_conf::PodServers;
use crate::runtime::{
    OVERLAY_CONDITION, POD_NETWORK_CONDITION, POD_NETWORK_UNKNOWN_CONDITION, SELINUX_CONDITION,
};

/// Required controllers for pods' limits, besides memory.
const CONTROLLERS: [&str; 2] = ["cpu", "pids"];
/// Linux' least default (`inotify_user_setup`).
const INOTIFY_INSTANCES_MIN: u64 = 128;
const INOTIFY_WATCHES_MIN: u64 = 8192;

/// All findings, good or bad.
pub fn judge(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Some(why) = &facts.bad_settings {
        findings.push(Finding::problem(
            "configuration",
            format!("{why}; the usual settings are looked at"),
            "",
        ));
    }
    if !facts.is_root {
        let message = "not root: not everything can be seen";
        findings.push(Finding::warning("user", message, "run as root (sudo smolet doctor)"));
    }
    findings.push(memory_cgroup(&facts.cgroups));
    findings.push(cgroups(&facts.cgroups));
    findings.push(kernel(&facts.kernel_lacks));
    findings.push(runtime(&facts.runtime));
    findings.push(other_agents(&facts.kubelets, facts.runtime.as_ref().ok()));
    if let Ok(runtime) = &facts.runtime {
        findings.extend(cgroup_driver(facts.cgroup_driver, runtime));
        // The embedded runtime needs none.
        findings.extend((!runtime.is_embedded).then(|| pause_image(runtime)));
        findings.extend(orphaned_shims(&runtime.orphaned_shims));
        findings.extend(runtime.lacks_apparmor_parser.then(apparmor));
        for of in runtime.conditions.iter().flatten() {
            let (level, check, mend) = match &*of.kind {
                SELINUX_CONDITION => (Level::Warning, "SELinux", SELINUX_MEND),
                OVERLAY_CONDITION => (Level::Warning, "overlayfs", OVERLAY_MEND),
                POD_NETWORK_CONDITION => (Level::Problem, "pod network", POD_NETWORK_MEND),
                POD_NETWORK_UNKNOWN_CONDITION => (
                    Level::Warning,
                    "pod network",
                    "the time was over: try again while the machine has less to do",
                ),
                _ => continue,
            };
            findings.push(Finding { level, check, message: of.message.to_string(), mend: mend.to_owned() });
        }
    }
    findings.push(network(&facts.cni, facts.runtime.as_ref().ok()));
    findings.extend(facts.disks.iter().map(disk));
    findings.push(clock(&facts.clock));
    findings.push(swap(&facts.swaps));
    findings.push(inotify(&facts.inotify));
    findings.push(tunables(&facts.tunables));
    findings.extend(facts.cluster_network.as_ref().map(cluster_network));
    findings.extend(
        (!facts.ignored_announcements.is_empty()).then(|| announcements(&facts.ignored_announcements)),
    );
    findings.extend(facts.missing_modules.as_deref().map(modules));
    findings.extend((!facts.forward_drops.is_empty()).then(|| firewall(&facts.forward_drops)));
    findings.extend(facts.firewalld_trusts_none.then(firewalld));
    findings.extend((!facts.foreign_rules.is_empty()).then(|| foreign_rules(&facts.foreign_rules)));
    findings.extend(facts.name_servers.as_ref().map(name_servers));
    findings
}

// ---- control groups --------------------------------------------------------------------------------------

fn memory_cgroup(facts: &CgroupFacts) -> Finding {
    const CHECK: &str = "memory cgroup";
    let has = |controllers: &[String]| controllers.iter().any(|controller| controller == "memory");
    let on = facts.unified.as_deref().map_or_else(|| has(&facts.v1), has);
    if on && !facts.memory_disabled {
        return Finding::ok(CHECK, "on");
    }
    let message = if facts.memory_disabled {
        "disabled on the kernel command line, so that no pod's memory is limited"
    } else {
        "the kernel has none mounted, so that no pod's memory is limited"
    };
    let mend = match facts.cmdline_file {
        Some(file) => {
            format!("add cgroup_enable=memory at the end of the one line of {file}, and reboot")
        }
        None => "add cgroup_enable=memory to the kernel's command line (where it says cgroup_disable=memory, remove \
                 that), and reboot"
            .to_owned(),
    };
    Finding::problem(CHECK, message, mend)
}

fn cgroups(facts: &CgroupFacts) -> Finding {
    const CHECK: &str = "cgroups";
    let (version, controllers) = match &facts.unified {
        Some(controllers) => ("version 2", controllers),
        None if facts.v1.is_empty() => {
            let mend = format!("mount them at {} (systemd or the cgroup service does)", facts.mounts);
            return Finding::problem(CHECK, "no hierarchy is mounted", mend);
        }
        None => ("version 1", &facts.v1),
    };
    let is_missing = |wanted: &&str| !controllers.iter().any(|controller| controller == wanted);
    let missing: Vec<&str> = CONTROLLERS.into_iter().filter(is_missing).collect();
    if missing.is_empty() {
        return Finding::ok(CHECK, version);
    }
    let message = format!("{version} without {}", missing.join(" and "));
    Finding::problem(CHECK, message, "use a kernel that has it")
}

fn kernel(lacks: &[&str]) -> Finding {
    const CHECK: &str = "kernel";
    if lacks.is_empty() {
        return Finding::ok(CHECK, "has what containers need");
    }
    let message = format!("built without {}: no pod runs", lacks.join(", "));
    Finding::problem(CHECK, message, "use a kernel that has them")
}

// ---- the runtime -----------------------------------------------------------------------------------------

fn runtime(runtime: &Result<RuntimeFacts, String>) -> Finding {
    const CHECK: &str = "runtime";
    let facts = match runtime {
        Ok(facts) => facts,
        // The message contains its remedy.
        Err(why) => return Finding::problem(CHECK, why.as_str(), ""),
    };
    let shown = if facts.is_embedded {
        format!("{}, embedded", facts.version)
    } else {
        format!("{} at {}", facts.version, facts.socket)
    };
    let conditions = match &facts.conditions {
        Ok(conditions) => conditions,
        Err(why) => {
            let message = format!("{shown} does not tell whether it is ready ({why})");
            return Finding::warning(CHECK, message, "see its log");
        }
    };
    match conditions.iter().find(|condition| !condition.status && &*condition.kind == "RuntimeReady") {
        // The message contains its remedy.
        Some(not) if facts.is_embedded => Finding::problem(CHECK, format!("{shown}: {}", not.message), ""),
        Some(not) => {
            let message = format!("{shown} is not ready ({}: {})", not.reason, not.message);
            Finding::problem(CHECK, message, "see its log, and restart it")
        }
        None => Finding::ok(CHECK, shown),
    }
}

/// The kubelet's default endpoint when its arguments have none (its configuration file may still have one).
fn usual_endpoint(name: &str) -> &'static str {
    let [containerd, k3s, _] = USUAL_SOCKETS;
    if name.starts_with("k3s") { k3s } else { containerd }
}

fn other_agents(kubelets: &[Kubelet], runtime: Option<&RuntimeFacts>) -> Finding {
    const CHECK: &str = "other agents";
    let shares = |kubelet: &&Kubelet| {
        let named = kubelet.endpoint.as_deref().unwrap_or_else(|| usual_endpoint(&kubelet.name));
        let path = endpoint::socket_path(named).ok();
        runtime.is_some_and(|runtime| path.is_some_and(|path| path.as_os_str() == runtime.socket.as_str()))
    };
    if let Some(Kubelet { pid, name, .. }) = kubelets.iter().find(shares) {
        let message =
            format!("{name} (process {pid}) runs on the same runtime: two agents end each other's pods");
        let unit = name.split('-').next().unwrap_or(name);
        return Finding::problem(
            CHECK,
            message,
            format!("stop one of them (systemctl disable --now {unit})"),
        );
    }
    let Some((number, pod)) = runtime.and_then(|runtime| runtime.foreign_sandboxes.as_ref()) else {
        return Finding::ok(CHECK, "none on this runtime");
    };
    let message = if *number == 1 {
        format!("the running sandbox of pod {pod} was not made by smolet")
    } else {
        format!("{number} running sandboxes were not made by smolet, that of pod {pod} among them")
    };
    let mend = "what no manifest names is left alone; end what nobody needs with crictl rmp";
    Finding::warning(CHECK, message, mend)
}

const OVERLAY_MEND: &str = "load the kernel module overlay (modprobe overlay, and at each boot by a file of /etc/modules-load.d), or use a kernel with \
     CONFIG_OVERLAY_FS, and restart smolet; where the kernel has it, use another file system for the images";

const POD_NETWORK_MEND: &str = "give the pod a new sandbox, and with it a new network: kubectl delete pod; of a static pod move the manifest \
     away and, once the pod has ended, back";

const SELINUX_MEND: &str =
    "run smolet with --selinux, and install the distribution's policy for containers (container-selinux)";

fn apparmor() -> Finding {
    let message = "the kernel has it, and apparmor_parser is not installed: containers have no profile of the runtime's";
    Finding::warning("AppArmor", message, "apt install apparmor")
}

/// `None` when the runtime reports no driver at all.
fn cgroup_driver(configured: CgroupDriver, runtime: &RuntimeFacts) -> Option<Finding> {
    const CHECK: &str = "cgroup driver";
    let own = configured.as_str();
    if let Some(reported) = runtime.runtime_cgroup_driver {
        if reported == configured {
            return Some(Finding::ok(CHECK, own));
        }
        let message = format!(
            "{}, as reported by the runtime; the configured driver {own} is not used",
            reported.as_str()
        );
        return Some(Finding::warning(CHECK, message, "configure the same, or leave it out"));
    }
    let set = runtime.cgroup_driver_set?;
    if set == configured {
        return Some(Finding::ok(CHECK, own));
    }
    let runtimes = set.as_str();
    let mend = format!(
        "set cgroupDriver: {runtimes} (or --cgroup-driver {runtimes}), or SystemdCgroup = {} in the runtime's \
         configuration",
        configured == CgroupDriver::Systemd
    );
    let message = format!("smolet is configured with {own}, and the runtime with {runtimes}");
    Some(match set {
        CgroupDriver::Systemd => Finding::problem(CHECK, format!("{message}: no pod starts"), mend),
        // The runtime makes what smolet names, below a slice that is systemd's.
        CgroupDriver::Cgroupfs => Finding::warning(
            CHECK,
            format!("{message}: systemd may undo what the runtime sets for containers"),
            mend,
        ),
    })
}

fn pause_image(runtime: &RuntimeFacts) -> Finding {
    const CHECK: &str = "pause image";
    match &runtime.pause_image {
        Some((name, true)) => Finding::ok(CHECK, name.as_str()),
        Some((name, false)) => Finding::warning(
            CHECK,
            format!("{name} is not there, and no pod starts while it cannot be pulled"),
            format!("crictl pull {name}, or put its archive into the images directory"),
        ),
        None => Finding::warning(
            CHECK,
            "the runtime does not tell its name, and no image looks like it",
            "pull the one that the runtime's configuration names, or no pod starts offline",
        ),
    }
}

/// containerd#12560.
fn orphaned_shims(shims: &[Shim]) -> Option<Finding> {
    let last = shims.last()?;
    let message = format!(
        "{} shims of containerd serve no sandbox any more, and keep some megabytes each; one was that of sandbox {}",
        shims.len(),
        last.sandbox
    );
    let pids: Vec<String> = shims.iter().map(|shim| shim.pid.to_string()).collect();
    Some(Finding::warning("shims", message, format!("end them: kill {}", pids.join(" "))))
}

// ---- network ---------------------------------------------------------------------------------------------

/// On a node of a cluster the agent sets them itself; on a standalone node they are left to the user.
fn tunables(differing: &[Differing]) -> Finding {
    const CHECK: &str = "kernel settings";
    if differing.is_empty() {
        return Finding::ok(CHECK, "as a kubelet has them");
    }
    let each = differing.iter().map(|of| format!("{} is {} instead of {}", of.name, of.actual, of.wanted));
    let message = format!("not as a kubelet has them: {}", each.collect::<Vec<_>>().join(", "));
    let mend = format!("{}, and the same in a file of /etc/sysctl.d", kernel_tunables::command(differing));
    Finding::warning(CHECK, message, mend)
}

/// The agent sets it up itself when it joins, as far as it may.
fn cluster_network(lacking: &Lacking) -> Finding {
    const CHECK: &str = "cluster network";
    if *lacking == Lacking::default() {
        return Finding::ok(CHECK, "kernel modules and settings are as k3s agent has them");
    }
    let modules = lacking.modules.iter().map(|module| format!("module {module} is not loaded"));
    let differs = |of: &Differing| format!("{} is {} instead of {}", of.name, of.actual, of.wanted);
    let all: Vec<String> = modules.chain(lacking.settings.iter().map(differs)).collect();
    let mend = format!(
        "{}; the agent does it when it joins, unless its service may load no modules: name them in a file of \
         /etc/modules-load.d then",
        lacking.command()
    );
    Finding::warning(CHECK, all.join(", "), mend)
}

/// The agent leaves it to the owner: which routers a link trusts is its network's affair.
fn announcements(ignored: &[Differing]) -> Finding {
    let each = ignored.iter().map(|of| format!("{} is {}", of.name, of.actual));
    let message = format!(
        "{}: a node of a cluster with IPv6 forwards it, and the kernel ignores the router then, so that the link's IPv6 address and \
         default route end",
        each.collect::<Vec<_>>().join(", ")
    );
    let mend = format!("{}, and the same in a file of /etc/sysctl.d", kernel_tunables::command(ignored));
    Finding::warning("router advertisements", message, mend)
}

fn modules(missing: &[&str]) -> Finding {
    const CHECK: &str = "kernel modules";
    if missing.is_empty() {
        return Finding::ok(CHECK, "the kernel has those of the node's network");
    }
    let message =
        format!("the kernel has no module {}: the node's network does not work", missing.join(", "));
    Finding::problem(
        CHECK,
        message,
        "install the package with the rest of its modules (Ubuntu on a Raspberry Pi: apt install linux-modules-extra-raspi), or use a \
         kernel that has them",
    )
}

fn foreign_rules(chains: &[&str]) -> Finding {
    let message = format!(
        "iptables has {}: kube-proxy or k3s agent has left it, or runs beside smolet; what it says of Services and pods is not this node's",
        chains.join(" and ")
    );
    let mend = "end what keeps it, then restart the machine (or k3s-killall.sh, which ends the pods of k3s too); smolet k3s takeover does both \
                while pods run on";
    Finding::warning("rules of others", message, mend)
}

/// As k3s' documentation has it.
fn firewalld() -> Finding {
    let message = "firewalld runs and trusts no range of addresses: pods may reach neither this node nor pods of others";
    Finding::warning(
        "firewall",
        message,
        "have it trust the pods' range (and the Services'): firewall-cmd --permanent --zone=trusted --add-source=RANGE && firewall-cmd \
         --reload; or end it: systemctl disable --now firewalld",
    )
}

fn firewall(families: &[&str]) -> Finding {
    let message = format!(
        "{}: iptables drops what is forwarded unless a rule accepts it (the policy of FORWARD; Docker and ufw set it): pods may reach \
         nothing beyond this node",
        families.join(" and ")
    );
    Finding::warning(
        "firewall",
        message,
        "accept what comes from the pods' range and goes to it: iptables (ip6tables) -A FORWARD -s RANGE -j ACCEPT && iptables -A FORWARD -d RANGE \
         -j ACCEPT, at each boot; with ufw: ufw route allow from RANGE && ufw route allow to RANGE",
    )
}

fn network(cni: &CniFacts, runtime: Option<&RuntimeFacts>) -> Finding {
    const CHECK: &str = "cni";
    let conditions = runtime.and_then(|runtime| runtime.conditions.as_ref().ok());
    let not_ready = conditions.into_iter().flatten().find(|c| !c.status && &*c.kind == "NetworkReady");
    if cni.configuration.is_none() && runtime.is_some_and(|runtime| runtime.is_embedded) {
        // It has a network of its own then; the message contains its remedy.
        return match not_ready {
            Some(not) => Finding::problem(CHECK, &*not.message, ""),
            None => {
                Finding::ok(CHECK, format!("the embedded runtime's own network ({} is empty)", cni.conf_dir))
            }
        };
    }
    let (file, plugins) = match &cni.configuration {
        None if !cni.is_told
            && conditions.into_iter().flatten().any(|c| c.status && &*c.kind == "NetworkReady") =>
        {
            let message = "the runtime's network is ready; it does not tell which CNI configuration it uses";
            return Finding::ok(CHECK, message);
        }
        None => {
            let message = format!("no configuration in {}: pods get no network of their own", cni.conf_dir);
            return Finding::problem(CHECK, message, "put one there, or give all pods hostNetwork: true");
        }
        Some((file, Err(why))) => {
            let message = format!("{}/{file} {why}", cni.conf_dir);
            return Finding::problem(CHECK, message, "mend or remove it");
        }
        Some((file, Ok(plugins))) => (file, plugins),
    };
    if !cni.missing.is_empty() {
        let message =
            format!("{file} needs {}, not found in {}", cni.missing.join(", "), cni.bin_dirs.join(" or "));
        let mend = "install the plugins (Debian: containernetworking-plugins), or name their directory in the \
                    runtime's configuration";
        return Finding::problem(CHECK, message, mend);
    }
    match not_ready {
        Some(not) => {
            let message = format!("the runtime's network is not ready ({}: {})", not.reason, not.message);
            Finding::warning(CHECK, message, "restart the runtime, so that it reads the configuration again")
        }
        None => Finding::ok(CHECK, format!("{file} ({})", plugins.join(", "))),
    }
}

// ---- disks, clock, swap, inotify -------------------------------------------------------------------------

/// `part` of `whole` in percent, rounded down.
fn percent(part: u64, whole: u64) -> u64 {
    part.saturating_mul(100) / whole.max(1)
}

fn shown_bytes(bytes: u64) -> String {
    let mib = bytes / MIB as u64;
    if mib >= 10 * 1024 { format!("{} GiB", mib / 1024) } else { format!("{mib} MiB") }
}

fn disk(disk: &DiskFacts) -> Finding {
    let check = match disk.of {
        "images" => "disk of images",
        _ => "disk of state",
    };
    let (path, space) = (&disk.path, disk.space);
    if space.bytes == 0 {
        return Finding::warning(
            check,
            format!("{path} cannot be looked at"),
            "run as root, and see that it is mounted",
        );
    }
    let free = percent(space.bytes_free, space.bytes);
    let mut message = format!("{path}: {} ({free} %) free", shown_bytes(space.bytes_free));
    if space.inodes > 0 {
        let _ = write!(message, ", {} % of the inodes", percent(space.inodes_free, space.inodes));
    }
    let is_short = |times: u64| {
        space.bytes_free < disk.bytes_least.saturating_mul(times)
            || (space.inodes > 0 && space.inodes_free < disk.inodes_least.saturating_mul(times))
    };
    let mend = "make room: remove what is not needed (crictl rmi --prune), or use a larger disk";
    if is_short(1) {
        Finding::problem(check, message, mend)
    } else if is_short(2) {
        Finding::warning(check, message, mend)
    } else {
        Finding::ok(check, message)
    }
}

/// Before the first version of this program: a clock that was ever set is later.
fn epoch_of_this_program() -> Wall {
    Wall::of_civil(2025, 1, 1, 0)
}

fn clock(clock: &ClockFacts) -> Finding {
    const CHECK: &str = "clock";
    let mend = "install and start a time service (systemd-timesyncd or chrony), and see that its server can be reached";
    let rtc = if clock.has_rtc { "" } else { "; without a battery-backed clock it is wrong after each boot" };
    if clock.now < epoch_of_this_program() {
        let message = format!("shows {}: certificates are not valid, and images cannot be pulled", clock.now);
        return Finding::problem(CHECK, message, mend);
    }
    match (clock.is_synchronised, &clock.service) {
        (Some(true), _) => Finding::ok(CHECK, "follows a time server"),
        (Some(false), _) => Finding::warning(CHECK, format!("follows no time server{rtc}"), mend),
        (None, Some(service)) => Finding::ok(CHECK, format!("kept by {service}")),
        (None, None) => {
            let message = format!("it is unknown whether it follows a time server{rtc}");
            Finding::warning(CHECK, message, mend)
        }
    }
}

fn swap(swaps: &[String]) -> Finding {
    const CHECK: &str = "swap";
    if swaps.is_empty() {
        return Finding::ok(CHECK, "none");
    }
    let message = format!(
        "{} is on: pods get slow before they are out of memory, and flash wears out",
        swaps.join(", ")
    );
    Finding::warning(
        CHECK,
        message,
        "swapoff -a, and remove it from /etc/fstab (Pi OS: apt remove dphys-swapfile)",
    )
}

fn name_servers(servers: &PodServers) -> Finding {
    const CHECK: &str = "name servers";
    match servers.problem() {
        None => Finding::ok(CHECK, servers.own.join(", ")),
        Some(problem) => {
            let mend = "name servers of the network in a file, and set resolvConf (--resolv-conf) to it";
            Finding::warning(CHECK, problem, mend)
        }
    }
}

fn inotify(limits: &InotifyFacts) -> Finding {
    const CHECK: &str = "inotify";
    let rows = [
        ("fs.inotify.max_user_instances", limits.instances, INOTIFY_INSTANCES_MIN),
        ("fs.inotify.max_user_watches", limits.watches, INOTIFY_WATCHES_MIN),
    ];
    for (name, limit, least) in rows {
        match limit {
            None => {
                let message = format!("{name} cannot be read: this kernel may have no inotify");
                return Finding::warning(
                    CHECK,
                    message,
                    "manifests are looked at every fileCheckFrequency still",
                );
            }
            Some(limit) if limit < least => {
                let message = format!("{name} is {limit}; containers and this agent share it");
                return Finding::warning(
                    CHECK,
                    message,
                    format!("sysctl -w {name}={least}, and the same in /etc/sysctl.d"),
                );
            }
            Some(_) => {}
        }
    }
    let shown = |limit: Option<u64>| limit.unwrap_or_default();
    Finding::ok(CHECK, format!("{} instances, {} watches", shown(limits.instances), shown(limits.watches)))
}

#[cfg(test)]
mod tests;
