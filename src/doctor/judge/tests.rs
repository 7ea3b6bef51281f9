use super::*;
use crate::cri::RuntimeCondition;
use crate::doctor::has_problems;
use crate::filesystem::Filesystem;

const MIB_64: u64 = MIB as u64;

fn strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn condition(kind: &str, status: bool) -> RuntimeCondition {
    let (reason, message) = if status { ("", "") } else { ("Cause", "says why") };
    RuntimeCondition { kind: kind.into(), status, reason: reason.into(), message: message.into() }
}

/// A gateway where nothing is wrong.
fn good() -> Facts {
    let disk = |of, path: &str, percent: u64| DiskFacts {
        of,
        path: path.to_owned(),
        space: Filesystem {
            device: 1,
            bytes: 100 * MIB_64,
            bytes_free: 50 * MIB_64,
            inodes: 1000,
            inodes_free: 500,
        },
        bytes_least: percent * MIB_64,
        inodes_least: 50,
    };
    Facts {
        is_root: true,
        bad_settings: None,
        cgroups: CgroupFacts {
            mounts: "/sys/fs/cgroup".to_owned(),
            unified: Some(strings(&["cpuset", "cpu", "io", "memory", "pids"])),
            ..CgroupFacts::default()
        },
        runtime: Ok(RuntimeFacts {
            socket: "/run/containerd/containerd.sock".to_owned(),
            version: "containerd 1.7.28".to_owned(),
            conditions: Ok(vec![condition("RuntimeReady", true), condition("NetworkReady", true)]),
            pause_image: Some(("registry.k8s.io/pause:3.10".to_owned(), true)),
            foreign_sandboxes: None,
            orphaned_shims: Vec::new(),
            runtime_cgroup_driver: None,
            cgroup_driver_set: None,
            is_embedded: false,
            lacks_apparmor_parser: false,
        }),
        kubelets: Vec::new(),
        cni: CniFacts {
            conf_dir: "/etc/cni/net.d".to_owned(),
            is_told: true,
            configuration: Some(("10-bridge.conflist".to_owned(), Ok(strings(&["bridge", "host-local"])))),
            bin_dirs: strings(&["/opt/cni/bin"]),
            missing: Vec::new(),
        },
        disks: vec![disk("state", "/var/lib/smolet", 10), disk("images", "/var/lib/containerd", 15)],
        clock: ClockFacts {
            now: Wall::of_civil(2026, 1, 1, 0),
            is_synchronised: Some(true),
            ..ClockFacts::default()
        },
        swaps: Vec::new(),
        inotify: InotifyFacts { instances: Some(128), watches: Some(8192) },
        tunables: Vec::new(),
        cluster_network: None,
        ignored_announcements: Vec::new(),
        missing_modules: None,
        forward_drops: Vec::new(),
        foreign_rules: Vec::new(),
        firewalld_trusts_none: false,
        name_servers: Some(name_servers(&["10.0.0.1"], &["10.0.0.1"])),
        cgroup_driver: CgroupDriver::Cgroupfs,
        kernel_lacks: Vec::new(),
    }
}

/// Of the node's default file, and of pods with a network of their own.
fn name_servers(own: &[&str], given: &[&str]) -> PodServers {
    let boxed = |servers: &[&str]| servers.iter().map(|server| Box::from(*server)).collect::<Vec<_>>();
    PodServers {
        path: "/etc/resolv.conf".to_owned(),
        own: boxed(own),
        given: boxed(given),
        are_reachable: own == given,
        is_configured: false,
    }
}

fn runtime_of(facts: &mut Facts) -> &mut RuntimeFacts {
    facts.runtime.as_mut().unwrap()
}

#[test]
fn the_embedded_runtime_is_judged_by_what_the_machine_has() {
    let mut facts = good();
    let runtime = runtime_of(&mut facts);
    runtime.is_embedded = true;
    runtime.version = "smolet 0.1.0".to_owned();
    runtime.pause_image = None;
    facts.cni.configuration = None;
    let said = |facts: &Facts| -> Vec<(&'static str, Level, String)> {
        let of = |finding: Finding| (finding.check, finding.level, finding.message);
        judge(facts)
            .into_iter()
            .map(of)
            .filter(|(check, ..)| ["runtime", "cni", "pause image"].contains(check))
            .collect()
    };
    assert_eq!(
        said(&facts),
        [
            ("runtime", Level::Ok, "smolet 0.1.0, embedded".to_owned()),
            ("cni", Level::Ok, "the embedded runtime's own network (/etc/cni/net.d is empty)".to_owned()),
        ]
    );
    let not =
        |kind: &str, message: &str| RuntimeCondition { message: message.into(), ..condition(kind, false) };
    let missing = vec![
        not("RuntimeReady", "no OCI runtime is installed; apt install crun, or runc"),
        not("NetworkReady", "plugin bridge is missing; apt install containernetworking-plugins"),
    ];
    runtime_of(&mut facts).conditions = Ok(missing);
    let missing = said(&facts);
    assert!(
        missing.iter().all(|(_, level, message)| *level == Level::Problem && message.contains("apt install")),
        "{missing:?}"
    );
}

#[test]
fn what_the_kernel_was_built_without_is_named() {
    let lacks = vec!["PID namespaces (CONFIG_PID_NS)", "seccomp filters (CONFIG_SECCOMP_FILTER)"];
    let findings = judge(&Facts { kernel_lacks: lacks, ..good() });
    let kernel = findings.iter().find(|finding| finding.check == "kernel").unwrap();
    assert_eq!(kernel.level, Level::Problem);
    assert_eq!(
        kernel.message,
        "built without PID namespaces (CONFIG_PID_NS), seccomp filters (CONFIG_SECCOMP_FILTER): no pod runs"
    );
}

#[test]
fn a_runtime_that_does_not_tell_its_cni_configuration_is_judged_by_its_network() {
    let mut facts = good();
    (facts.cni.configuration, facts.cni.is_told) = (None, false);
    let cni = |facts: &Facts| judge(facts).into_iter().find(|finding| finding.check == "cni").unwrap();
    let ready = "the runtime's network is ready; it does not tell which CNI configuration it uses";
    assert_eq!((cni(&facts).level, &*cni(&facts).message), (Level::Ok, ready));
    runtime_of(&mut facts).conditions = Ok(vec![condition("NetworkReady", false)]);
    assert_eq!(cni(&facts).level, Level::Problem);
    for untold in [Ok(Vec::new()), Err("no answer".to_owned())] {
        runtime_of(&mut facts).conditions = untold;
        assert_eq!(cni(&facts).level, Level::Problem);
    }
}

#[test]
fn where_nothing_is_wrong_everything_is_ok() {
    let findings = judge(&good());
    let bad: Vec<_> = findings.iter().filter(|finding| finding.level != Level::Ok).collect();
    assert!(bad.is_empty(), "{bad:?}");
    let checks: Vec<_> = findings.iter().map(|finding| finding.check).collect();
    assert_eq!(
        checks,
        [
            "memory cgroup",
            "cgroups",
            "kernel",
            "runtime",
            "other agents",
            "pause image",
            "cni",
            "disk of state",
            "disk of images",
            "clock",
            "swap",
            "inotify",
            "kernel settings",
            "name servers"
        ]
    );
    assert!(!has_problems(&findings));
}

/// What is changed in the good facts, and the one finding that comes of it: its level and words of its line.
type Row = (fn(&mut Facts), &'static str, Level, &'static str);

#[test]
fn each_fault_is_one_finding_with_its_mend() {
    use Level::{Ok as Fine, Problem, Warning};
    let rows: &[Row] = &[
        (|f| f.bad_settings = Some("maxPods: 0".to_owned()), "configuration", Problem, "maxPods: 0"),
        (|f| f.is_root = false, "user", Warning, "sudo"),
        (
            |f| f.name_servers = Some(name_servers(&["127.0.0.53"], &["192.168.1.1"])),
            "name servers",
            Warning,
            "/etc/resolv.conf names 127.0.0.53, which pods cannot reach; pods with a network of their own get 192.168.1.1 \
             instead: name servers of the network in a file, and set resolvConf (--resolv-conf) to it",
        ),
        (
            |f| f.name_servers = Some(name_servers(&[], &["8.8.8.8"])),
            "name servers",
            Warning,
            "/etc/resolv.conf names no name server; pods with a network of their own get 8.8.8.8 instead",
        ),
        (
            |f| f.tunables.push(Differing { name: "kernel.panic".to_owned(), actual: 0, wanted: 10 }),
            "kernel settings",
            Warning,
            "kernel.panic is 0 instead of 10: sysctl -w kernel.panic=10",
        ),
        (
            |f| runtime_of(f).cgroup_driver_set = Some(CgroupDriver::Systemd),
            "cgroup driver",
            Problem,
            "configured with cgroupfs, and the runtime with systemd: no pod starts: set cgroupDriver: systemd",
        ),
        (
            |f| runtime_of(f).cgroup_driver_set = Some(CgroupDriver::Cgroupfs),
            "cgroup driver",
            Fine,
            "cgroupfs",
        ),
        (
            |f| {
                f.cgroup_driver = CgroupDriver::Systemd;
                runtime_of(f).cgroup_driver_set = Some(CgroupDriver::Cgroupfs);
            },
            "cgroup driver",
            Warning,
            "configured with systemd, and the runtime with cgroupfs: systemd may undo what the runtime sets for containers: set \
             cgroupDriver: cgroupfs",
        ),
        (
            |f| runtime_of(f).runtime_cgroup_driver = Some(CgroupDriver::Systemd),
            "cgroup driver",
            Warning,
            "systemd, as reported by the runtime; the configured driver cgroupfs is not used",
        ),
        // Raspberry Pi OS: the kernel's controllers are there, without memory.
        (
            |f| {
                f.cgroups.unified = Some(strings(&["cpu", "pids"]));
                f.cgroups.memory_disabled = true;
                f.cgroups.cmdline_file = Some("/boot/firmware/cmdline.txt");
            },
            "memory cgroup",
            Problem,
            "add cgroup_enable=memory at the end of the one line of /boot/firmware/cmdline.txt, and reboot",
        ),
        (
            |f| f.cgroups.unified = Some(strings(&["cpu", "pids"])),
            "memory cgroup",
            Problem,
            "the kernel's command line",
        ),
        (|f| f.cgroups.unified = Some(strings(&["memory", "cpu"])), "cgroups", Problem, "without pids"),
        (
            |f| {
                f.cgroups.unified = None;
                f.cgroups.v1 = strings(&["cpu", "memory", "pids", "rw"]);
            },
            "cgroups",
            Fine,
            "version 1",
        ),
        (|f| f.runtime = Err("no container runtime answers".to_owned()), "runtime", Problem, "answers"),
        (
            |f| runtime_of(f).conditions = Ok(vec![condition("RuntimeReady", false)]),
            "runtime",
            Problem,
            "Cause: says why",
        ),
        (|f| runtime_of(f).conditions = Err("deadline".to_owned()), "runtime", Warning, "deadline"),
        (
            |f| runtime_of(f).pause_image = Some(("pause:3".to_owned(), false)),
            "pause image",
            Warning,
            "pull pause:3",
        ),
        (|f| runtime_of(f).pause_image = None, "pause image", Warning, "does not tell"),
        (
            |f| {
                let shim = |pid, sandbox: &str| Shim { pid, sandbox: sandbox.into() };
                runtime_of(f).orphaned_shims = vec![shim(7, "abc"), shim(9, "def")];
            },
            "shims",
            Warning,
            "2 shims of containerd serve no sandbox any more, and keep some megabytes each; one was that of sandbox def: end them: kill 7 9",
        ),
        (
            |f| runtime_of(f).lacks_apparmor_parser = true,
            "AppArmor",
            Warning,
            "containers have no profile of the runtime's: apt install apparmor",
        ),
        (
            |f| {
                runtime_of(f).conditions = Ok(vec![RuntimeCondition {
                    kind: SELINUX_CONDITION.into(),
                    status: false,
                    reason: "NoSELinuxLabels".into(),
                    message: "containers get no labels".into(),
                }]);
            },
            "SELinux",
            Warning,
            "containers get no labels: run smolet with --selinux",
        ),
        (
            |f| {
                runtime_of(f).conditions = Ok(vec![RuntimeCondition {
                    kind: OVERLAY_CONDITION.into(),
                    status: false,
                    reason: "NoOverlay".into(),
                    message: "containers are copies".into(),
                }]);
            },
            "overlayfs",
            Warning,
            "containers are copies: load the kernel module overlay",
        ),
        (
            |f| {
                runtime_of(f).conditions = Ok(vec![RuntimeCondition {
                    kind: POD_NETWORK_CONDITION.into(),
                    status: false,
                    reason: "NetworkChanged".into(),
                    message: "pod default/web: no eth0".into(),
                }]);
            },
            "pod network",
            Problem,
            "pod default/web: no eth0: give the pod a new sandbox",
        ),
        (
            |f| runtime_of(f).foreign_sandboxes = Some((3, "default/web".to_owned())),
            "other agents",
            Warning,
            "3 running sandboxes were not made by smolet, that of pod default/web among them",
        ),
        (|f| f.cni.configuration = None, "cni", Problem, "no configuration in /etc/cni/net.d"),
        (
            |f| f.cni.configuration = Some(("a.conf".to_owned(), Err("is no JSON".to_owned()))),
            "cni",
            Problem,
            "/etc/cni/net.d/a.conf is no JSON",
        ),
        (|f| f.cni.missing = strings(&["bridge"]), "cni", Problem, "containernetworking-plugins"),
        (
            |f| runtime_of(f).conditions = Ok(vec![condition("NetworkReady", false)]),
            "cni",
            Warning,
            "restart the runtime",
        ),
        (|f| f.disks[0].space.bytes_free = 9 * MIB_64, "disk of state", Problem, "9 MiB (9 %) free"),
        (|f| f.disks[0].space.bytes_free = 10 * MIB_64, "disk of state", Warning, "10 %"),
        (|f| f.disks[0].space.bytes_free = 20 * MIB_64, "disk of state", Fine, "20 %"),
        (|f| f.disks[1].space.bytes_free = 14 * MIB_64, "disk of images", Problem, "14 %"),
        (|f| f.disks[0].space.inodes_free = 49, "disk of state", Problem, "4 % of the inodes"),
        (|f| f.disks[0].space.inodes_free = 99, "disk of state", Warning, "9 % of the inodes"),
        // btrfs has no fixed number of them.
        (
            |f| (f.disks[0].space.inodes, f.disks[0].space.inodes_free) = (0, 0),
            "disk of state",
            Fine,
            "/var/lib/smolet: 50 MiB (50 %) free",
        ),
        (|f| f.disks[0].space.bytes = 0, "disk of state", Warning, "cannot be looked at"),
        (|f| f.clock.now = Wall(0), "clock", Problem, "shows 1970-01-01T00:00:00Z"),
        (
            |f| {
                f.clock.is_synchronised = Some(false);
                f.clock.service = Some("chronyd".to_owned());
            },
            "clock",
            Warning,
            "without a battery-backed clock",
        ),
        (
            |f| {
                f.clock.is_synchronised = None;
                f.clock.service = Some("chronyd".to_owned());
            },
            "clock",
            Fine,
            "kept by chronyd",
        ),
        (
            |f| (f.clock.is_synchronised, f.clock.has_rtc) = (None, true),
            "clock",
            Warning,
            "it is unknown whether it follows a time server: install",
        ),
        (|f| f.swaps = strings(&["/var/swap"]), "swap", Warning, "/var/swap is on"),
        (
            |f| f.inotify.instances = Some(127),
            "inotify",
            Warning,
            "sysctl -w fs.inotify.max_user_instances=128",
        ),
        (|f| f.inotify.watches = Some(10), "inotify", Warning, "max_user_watches is 10"),
        (|f| f.inotify.watches = None, "inotify", Warning, "cannot be read"),
    ];
    let well = judge(&good());
    for (spoil, check, level, words) in rows {
        let mut facts = good();
        spoil(&mut facts);
        let findings = judge(&facts);
        let changed: Vec<_> = findings.iter().filter(|finding| !well.contains(finding)).collect();
        let [finding] = &changed[..] else { panic!("{check}: {words}: {changed:?}") };
        let line = format!("{}: {}", finding.message, finding.mend);
        assert_eq!((finding.check, finding.level), (*check, *level), "{line}");
        assert!(line.contains(words), "{words} in {line}");
        let says_what_to_do = !finding.mend.is_empty() || ["configuration", "runtime"].contains(check);
        assert!(*level == Fine || says_what_to_do, "{line}");
    }
}

#[test]
fn another_agent_is_a_problem_on_the_same_runtime_only() {
    let containerd = "/run/containerd/containerd.sock";
    for (name, endpoint, socket, shares) in [
        ("kubelet", None, containerd, true),
        ("kubelet", Some("unix:///run/containerd/containerd.sock"), containerd, true),
        ("kubelet", Some("unix:///run/crio/crio.sock"), containerd, false),
        ("kubelet", None, "/run/crio/crio.sock", false),
        ("k3s-agent", None, containerd, false),
        ("k3s-agent", None, "/run/k3s/containerd/containerd.sock", true),
        ("k3s-server", Some(containerd), containerd, true),
        ("kubelet", Some("nonsense"), containerd, false),
    ] {
        let mut facts = good();
        runtime_of(&mut facts).socket = socket.to_owned();
        let endpoint = endpoint.map(str::to_owned);
        facts.kubelets = vec![Kubelet { pid: 77, name: name.to_owned(), endpoint: endpoint.clone() }];
        let findings = judge(&facts);
        let found = findings.iter().find(|finding| finding.check == "other agents").unwrap();
        let expected = if shares { Level::Problem } else { Level::Ok };
        assert_eq!(found.level, expected, "{name} {endpoint:?} {socket}: {found:?}");
        assert!(!shares || found.message.contains("(process 77)"), "{found:?}");
    }
    // Without a runtime of ours there is none to share.
    let mut facts = good();
    facts.runtime = Err("none".to_owned());
    facts.kubelets = vec![Kubelet { pid: 1, name: "kubelet".to_owned(), endpoint: None }];
    assert!(
        judge(&facts).iter().any(|finding| finding.check == "other agents" && finding.level == Level::Ok)
    );
}

#[test]
fn what_the_network_of_a_k3s_cluster_lacks_is_named() {
    let of = |lacking: Option<Lacking>| {
        let findings = judge(&Facts { cluster_network: lacking, ..good() });
        findings.into_iter().find(|finding| finding.check == "cluster network")
    };
    assert!(of(None).is_none());
    assert_eq!(of(Some(Lacking::default())).unwrap().level, Level::Ok);
    let forwarding = Differing { name: "net.ipv4.conf.all.forwarding".to_owned(), actual: 0, wanted: 1 };
    let lacking = Lacking { modules: vec!["br_netfilter"], settings: vec![forwarding] };
    let finding = of(Some(lacking)).unwrap();
    assert_eq!(finding.level, Level::Warning);
    assert_eq!(
        finding.message,
        "module br_netfilter is not loaded, net.ipv4.conf.all.forwarding is 0 instead of 1"
    );
    assert!(
        finding.mend.starts_with("modprobe -a br_netfilter && sysctl -w net.ipv4.conf.all.forwarding=1"),
        "{}",
        finding.mend
    );
}

#[test]
fn a_link_that_ignores_its_router_is_a_warning() {
    let accept_ra = Differing { name: "net.ipv6.conf.eth0.accept_ra".to_owned(), actual: 1, wanted: 2 };
    let findings = judge(&Facts { ignored_announcements: vec![accept_ra], ..good() });
    let finding = findings.into_iter().find(|finding| finding.check == "router advertisements").unwrap();
    assert_eq!(finding.level, Level::Warning);
    assert!(finding.message.starts_with("net.ipv6.conf.eth0.accept_ra is 1: "), "{}", finding.message);
    assert!(finding.mend.starts_with("sysctl -w net.ipv6.conf.eth0.accept_ra=2, "), "{}", finding.mend);
    assert!(judge(&good()).iter().all(|finding| finding.check != "router advertisements"));
}

#[test]
fn a_firewall_that_drops_packets_of_pods_is_a_warning() {
    let findings = judge(&Facts { forward_drops: vec!["IPv4"], ..good() });
    let finding = findings.into_iter().find(|finding| finding.check == "firewall").unwrap();
    assert!(finding.level == Level::Warning && finding.message.starts_with("IPv4: "), "{finding:?}");
    let findings = judge(&Facts { firewalld_trusts_none: true, ..good() });
    let finding = findings.into_iter().find(|finding| finding.check == "firewall").unwrap();
    assert_eq!(finding.level, Level::Warning);
    assert!(
        finding.message.starts_with("firewalld ") && finding.mend.contains("--zone=trusted"),
        "{finding:?}"
    );
    assert!(judge(&good()).iter().all(|finding| finding.check != "firewall"));
    let findings = judge(&Facts { foreign_rules: vec!["KUBE-SERVICES"], ..good() });
    let finding = findings.into_iter().find(|finding| finding.check == "rules of others").unwrap();
    assert!(finding.level == Level::Warning && finding.message.contains("has KUBE-SERVICES:"), "{finding:?}");
}

#[test]
fn kernel_modules_are_judged_where_they_are_needed() {
    let of = |missing: Option<Vec<&'static str>>| {
        let findings = judge(&Facts { missing_modules: missing, ..good() });
        findings.into_iter().find(|finding| finding.check == "kernel modules")
    };
    assert_eq!(of(None), None);
    assert_eq!(of(Some(Vec::new())).unwrap().level, Level::Ok);
    let finding = of(Some(vec!["nft_masq", "vxlan"])).unwrap();
    assert_eq!(finding.level, Level::Problem);
    assert_eq!(finding.message, "the kernel has no module nft_masq, vxlan: the node's network does not work");
    assert!(finding.mend.contains("linux-modules-extra-raspi"));
}
