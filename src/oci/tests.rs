//! Rules of the spec, as tables.

use serde_json::{Value, json};

use super::*;
use crate::oci::runtime_spec::DeviceKind;
use crate::proto::runtime::v1::{self as proto, security_profile::ProfileType};

/// A machine that has everything.
pub(super) fn node() -> NodeFacts {
    NodeFacts {
        cgroup: CgroupVersion::V2 { swap_controller: true },
        hugetlb: true,
        seccomp: true,
        apparmor: None,
        last_capability: 40,
        capabilities: u64::MAX,
        oom_score_adj_min: -1000,
        user_namespaces: true,
        runtime: RuntimeFeatures { recursive_read_only: true, id_mapped_mounts: true },
        mountinfo: String::new(),
        hostname: "gateway".into(),
        rlimits: Vec::new(),
        pids_limit: None,
    }
}

/// All that a spec is made of, with a good value for each.
struct Case {
    config: ContainerConfig,
    sandbox: PodSandboxConfig,
    image: ImageConfig,
    passwd: &'static str,
    group: &'static str,
    namespaces: SandboxNamespaces,
    files: SandboxFiles,
    volumes: Vec<Volume>,
    seccomp_profile: Option<&'static str>,
    selinux: Option<SelinuxLabels>,
    devices: Vec<Device>,
    cdi: Vec<(&'static str, String)>,
    node: NodeFacts,
}

impl Case {
    fn new() -> Self {
        let pinned = |kind: &str| Some(format!("/run/smolet/runtime/{kind}"));
        Self {
            config: ContainerConfig {
                metadata: Some(proto::ContainerMetadata { name: "web".into(), attempt: 0 }),
                linux: Some(proto::LinuxContainerConfig {
                    resources: None,
                    security_context: Some(LinuxContainerSecurityContext {
                        namespace_options: Some(proto::NamespaceOption {
                            pid: NamespaceMode::Container.into(),
                            ..Default::default()
                        }),
                        ..Default::default()
                    }),
                }),
                ..Default::default()
            },
            sandbox: PodSandboxConfig {
                metadata: Some(proto::PodSandboxMetadata {
                    name: "pod".into(),
                    uid: "u-1".into(),
                    namespace: "default".into(),
                    attempt: 0,
                }),
                hostname: "pod".into(),
                linux: Some(proto::LinuxPodSandboxConfig {
                    cgroup_parent: "/kubepods/podu-1".into(),
                    ..Default::default()
                }),
                ..Default::default()
            },
            image: ImageConfig { entrypoint: vec!["/app".into()], ..Default::default() },
            passwd: "root:x:0:0:root:/root:/bin/sh\napp:x:1000:1001::/home/app:/bin/sh\n",
            group: "root:x:0:\nwheel:x:10:root,app\n",
            namespaces: SandboxNamespaces {
                network: pinned("net"),
                ipc: pinned("ipc"),
                uts: pinned("uts"),
                ..Default::default()
            },
            files: SandboxFiles::default(),
            volumes: Vec::new(),
            seccomp_profile: None,
            selinux: None,
            devices: Vec::new(),
            cdi: Vec::new(),
            node: node(),
        }
    }

    fn context(&mut self) -> &mut LinuxContainerSecurityContext {
        self.config.linux.as_mut().unwrap().security_context.as_mut().unwrap()
    }

    fn resources(&mut self) -> &mut proto::LinuxContainerResources {
        self.config.linux.as_mut().unwrap().resources.get_or_insert_default()
    }

    fn spec(&self) -> Result<Spec, SpecError> {
        let cdi: Vec<CdiFile<'_>> =
            self.cdi.iter().map(|(path, text)| CdiFile { path, text: text.as_bytes() }).collect();
        spec(&Input {
            id: "c0ffee",
            sandbox_id: "5a4db0",
            config: &self.config,
            sandbox: &self.sandbox,
            image: &self.image,
            image_name: "docker.io/library/web:1",
            rootfs: "rootfs",
            passwd: self.passwd.as_bytes(),
            group: self.group.as_bytes(),
            namespaces: &self.namespaces,
            files: &self.files,
            volumes: &self.volumes,
            seccomp_profile: self.seccomp_profile.map(str::as_bytes),
            selinux: self.selinux.as_ref(),
            devices: &self.devices,
            cdi: &cdi,
            annotations: &Map::new(),
            node: &self.node,
        })
    }

    /// The spec's JSON text at this pointer; null when it is not written.
    fn at(&self, pointer: &str) -> Value {
        let spec = serde_json::to_value(self.spec().unwrap()).unwrap();
        spec.pointer(pointer).cloned().unwrap_or_default()
    }

    fn refused(&self, shown: &str) {
        let error = self.spec().unwrap_err().to_string();
        assert!(error.contains(shown), "{error}, not {shown}");
    }
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// The whole of it, as containerd has it for such a container but for what the code notes.
#[test]
fn a_plain_container() {
    let capabilities: Vec<&str> = capabilities::DEFAULT.to_vec();
    assert_eq!(
        Case::new().at(""),
        json!({
            "ociVersion": "1.1.0",
            "process": {
                "user": {"uid": 0, "gid": 0, "additionalGids": [0, 10]},
                "args": ["/app"],
                "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOSTNAME=pod"],
                "cwd": "/",
                "capabilities": {"bounding": capabilities, "effective": capabilities, "permitted": capabilities},
            },
            "root": {"path": "rootfs"},
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"]},
                {"destination": "/dev", "type": "tmpfs", "source": "tmpfs",
                 "options": ["nosuid", "strictatime", "mode=755", "size=65536k"]},
                {"destination": "/dev/pts", "type": "devpts", "source": "devpts",
                 "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"]},
                {"destination": "/dev/shm", "type": "tmpfs", "source": "shm",
                 "options": ["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"]},
                {"destination": "/dev/mqueue", "type": "mqueue", "source": "mqueue",
                 "options": ["nosuid", "noexec", "nodev"]},
                {"destination": "/sys", "type": "sysfs", "source": "sysfs",
                 "options": ["nosuid", "noexec", "nodev", "ro"]},
                {"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup",
                 "options": ["nosuid", "noexec", "nodev", "relatime", "ro"]},
            ],
            "annotations": {
                "io.kubernetes.cri.container-name": "web",
                "io.kubernetes.cri.container-type": "container",
                "io.kubernetes.cri.image-name": "docker.io/library/web:1",
                "io.kubernetes.cri.sandbox-id": "5a4db0",
                "io.kubernetes.cri.sandbox-name": "pod",
                "io.kubernetes.cri.sandbox-namespace": "default",
                "io.kubernetes.cri.sandbox-uid": "u-1",
            },
            "linux": {
                "resources": {"devices": [{"allow": false, "access": "rwm"}]},
                "cgroupsPath": "/kubepods/podu-1/c0ffee",
                "namespaces": [
                    {"type": "pid"},
                    {"type": "ipc", "path": "/run/smolet/runtime/ipc"},
                    {"type": "uts", "path": "/run/smolet/runtime/uts"},
                    {"type": "mount"},
                    {"type": "network", "path": "/run/smolet/runtime/net"},
                    {"type": "cgroup"},
                ],
            },
        })
    );
}

#[test]
fn arguments_of_the_pod_over_those_of_the_image() {
    for (entrypoint, cmd, command, args, expected) in [
        ("/e", "c d", "", "", Some("/e c d")),
        ("/e", "c d", "", "a", Some("/e a")),
        ("/e", "c d", "/p", "", Some("/p")),
        ("/e", "c d", "/p", "a b", Some("/p a b")),
        ("", "c d", "", "", Some("c d")),
        ("", "", "", "a", Some("a")),
        ("", "", "", "", None),
    ] {
        let mut case = Case::new();
        case.image.entrypoint = words(entrypoint);
        case.image.cmd = words(cmd);
        case.config.command = words(command);
        case.config.args = words(args);
        match expected {
            Some(expected) => assert_eq!(case.at("/process/args"), json!(words(expected))),
            None => case.refused("set spec.containers[].command"),
        }
    }
    // Docker's way to reset an entrypoint.
    let mut case = Case::new();
    case.image.entrypoint = vec![String::new()];
    case.image.cmd = words("sh");
    assert_eq!(case.at("/process/args"), json!(["sh"]));
}

#[test]
fn the_last_value_of_a_variable_counts() {
    let mut case = Case::new();
    case.image.env = words("A=1 PATH=/bin B=x B=y GONE=1 GONE HOSTNAME A=2 C=a=b");
    let variable = |key: &str, value: &[u8]| proto::KeyValue { key: key.into(), value: value.to_vec() };
    case.config.envs = vec![variable("B", b"z"), variable("NEW", b""), variable("NEW", "n é".as_bytes())];
    assert_eq!(case.at("/process/env"), json!(["PATH=/bin", "A=2", "B=z", "C=a=b", "NEW=n é"]));
    case.config.tty = true;
    assert_eq!(case.at("/process/env/1"), json!("TERM=xterm"));
    assert_eq!(case.at("/process/terminal"), json!(true));
    case.sandbox.hostname.clear();
    case.image.env.clear();
    assert_eq!(case.at("/process/env/2"), json!("HOSTNAME=gateway"));
    for (key, value, shown) in [
        ("A=B", &b""[..], "cannot be a variable"),
        ("", b"", "cannot be"),
        ("A", b"\0", "cannot be"),
        ("A", b"\xff", "UTF-8"),
    ] {
        case.config.envs = vec![variable(key, value)];
        case.refused(shown);
    }
}

#[test]
fn working_directories() {
    for (own, image, expected) in [
        ("", "", Ok("/")),
        ("", "/i", Ok("/i")),
        ("/o", "/i", Ok("/o")),
        ("", "i", Err("WorkingDir")),
        ("o", "/", Err("working_dir")),
    ] {
        let mut case = Case::new();
        case.config.working_dir = own.into();
        case.image.working_dir = image.into();
        match expected {
            Ok(expected) => assert_eq!(case.at("/process/cwd"), json!(expected)),
            Err(shown) => case.refused(shown),
        }
    }
}

#[test]
fn users_and_groups() {
    let strict = proto::SupplementalGroupsPolicy::Strict as i32;
    let number = |value| Some(proto::Int64Value { value });
    type Change = fn(&mut LinuxContainerSecurityContext);
    let rows: [(&str, i32, Change, Value); 11] = [
        ("", 0, |_| {}, json!({"uid": 0, "gid": 0, "additionalGids": [0, 10]})),
        ("", strict, |_| {}, json!({"uid": 0, "gid": 0})),
        ("app", 0, |_| {}, json!({"uid": 1000, "gid": 1001, "additionalGids": [10, 1001]})),
        ("app", strict, |_| {}, json!({"uid": 1000, "gid": 1001, "additionalGids": [1001]})),
        ("1000:7", 0, |_| {}, json!({"uid": 1000, "gid": 7, "additionalGids": [7, 10]})),
        ("4711", 0, |_| {}, json!({"uid": 4711, "gid": 0, "additionalGids": [0]})),
        (
            "4711",
            0,
            |context| context.run_as_username = "app".into(),
            json!({"uid": 1000, "gid": 1001, "additionalGids": [10, 1001]}),
        ),
        (
            "app",
            0,
            |context| context.run_as_user = Some(proto::Int64Value { value: 0 }),
            json!({"uid": 0, "gid": 0, "additionalGids": [0, 10]}),
        ),
        (
            "app",
            0,
            |context| {
                context.run_as_user = Some(proto::Int64Value { value: 1000 });
                context.run_as_group = Some(proto::Int64Value { value: 3 });
                context.supplemental_groups = vec![50, 3, 50];
            },
            json!({"uid": 1000, "gid": 3, "additionalGids": [3, 10, 50]}),
        ),
        (
            "app",
            strict,
            |context| context.supplemental_groups = vec![50],
            json!({"uid": 1000, "gid": 1001, "additionalGids": [50, 1001]}),
        ),
        ("root:wheel", strict, |_| {}, json!({"uid": 0, "gid": 10, "additionalGids": [10]})),
    ];
    for (image, policy, change, expected) in rows {
        let mut case = Case::new();
        case.image.user = image.into();
        case.context().supplemental_groups_policy = policy;
        change(case.context());
        assert_eq!(case.at("/process/user"), expected, "{image}");
    }
    let mut case = Case::new();
    case.context().run_as_group = number(1);
    case.refused("a group is given without a user");
    case.context().run_as_user = number(-1);
    case.refused("run_as_user: -1 is out of range");
    case.context().run_as_user = number(1);
    case.context().supplemental_groups = vec![1 << 40];
    case.refused("is no group id");
    case.context().supplemental_groups.clear();
    case.context().supplemental_groups_policy = 9;
    case.refused("no policy has the number 9");
}

#[test]
fn namespaces_by_mode() {
    let mut case = Case::new();
    let kinds = |case: &Case| {
        let namespaces = case.spec().unwrap().linux.namespaces;
        namespaces.into_iter().map(|n| format!("{}={}", n.kind, n.path)).collect::<Vec<_>>().join(" ")
    };
    case.namespaces = SandboxNamespaces { ipc: Some("/i".into()), ..Default::default() };
    assert_eq!(kinds(&case), "pid= ipc=/i mount= cgroup=");
    case.node.cgroup = CgroupVersion::V1 { swap_controller: false };
    assert_eq!(kinds(&case), "pid= ipc=/i mount=");
    let mode = |case: &mut Case, mode: NamespaceMode| {
        case.context().namespace_options.as_mut().unwrap().pid = mode.into();
    };
    mode(&mut case, NamespaceMode::Node);
    assert_eq!(kinds(&case), "ipc=/i mount=");
    mode(&mut case, NamespaceMode::Pod);
    case.refused("without a PID namespace");
    case.namespaces.pid = Some("/p".into());
    assert_eq!(kinds(&case), "pid=/p ipc=/i mount=");
    mode(&mut case, NamespaceMode::Target);
    case.refused("the target container is not running");
    case.namespaces.target_pid = Some("/t".into());
    assert_eq!(kinds(&case), "pid=/t ipc=/i mount=");
    case.context().namespace_options.as_mut().unwrap().pid = 7;
    case.refused("no namespace mode has the number 7");
}

#[test]
fn user_namespaces_are_the_sandboxs() {
    let range = |host_id, length| proto::IdMapping { host_id, container_id: 0, length };
    let of = |mode: NamespaceMode, uids: Vec<proto::IdMapping>| proto::UserNamespace {
        mode: mode.into(),
        gids: uids.clone(),
        uids,
    };
    let set = |case: &mut Case, options: proto::UserNamespace| {
        case.context().namespace_options.as_mut().unwrap().userns_options = Some(options.clone());
        case.sandbox.linux.as_mut().unwrap().security_context = Some(proto::LinuxSandboxSecurityContext {
            namespace_options: Some(proto::NamespaceOption {
                userns_options: Some(options),
                ..Default::default()
            }),
            ..Default::default()
        });
    };
    let mut case = Case::new();
    case.namespaces.user = Some("/u".into());
    set(&mut case, of(NamespaceMode::Pod, vec![range(65536, 65536)]));
    assert_eq!(case.at("/linux/uidMappings"), json!([{"containerID": 0, "hostID": 65536, "size": 65536}]));
    assert_eq!(case.at("/linux/uidMappings"), case.at("/linux/gidMappings"));
    assert_eq!(case.at("/linux/namespaces/6"), json!({"type": "user", "path": "/u"}));
    assert_eq!(case.at("/mounts/5/type"), json!("sysfs"));
    let options =
        &mut case.sandbox.linux.as_mut().unwrap().security_context.as_mut().unwrap().namespace_options;
    options.as_mut().unwrap().network = NamespaceMode::Node.into();
    assert_eq!(case.at("/mounts/5/options"), json!(["rbind", "rro", "nosuid", "nodev", "noexec"]));
    case.context().namespace_options.as_mut().unwrap().userns_options = None;
    case.refused("another one than the sandbox's");
    for (options, shown) in [
        (of(NamespaceMode::Pod, vec![]), "one range"),
        (of(NamespaceMode::Pod, vec![range(1, 1), range(5, 1)]), "one range"),
        (of(NamespaceMode::Pod, vec![range(1, 0)]), "is empty"),
        (of(NamespaceMode::Node, vec![range(1, 1)]), "has no mappings"),
        (of(NamespaceMode::Container, vec![]), "the pod's or the node's"),
    ] {
        set(&mut case, options);
        case.refused(shown);
    }
    set(&mut case, of(NamespaceMode::Node, vec![]));
    assert_eq!(case.at("/linux/uidMappings"), Value::Null);
}

fn mount(container_path: &str, host_path: &str) -> proto::Mount {
    proto::Mount { container_path: container_path.into(), host_path: host_path.into(), ..Default::default() }
}

/// `DESTINATION OPTIONS` of the mounts that are bound.
fn bound(case: &Case) -> Vec<String> {
    let mounts = case.spec().unwrap().mounts.into_iter().filter(|mount| mount.kind == "bind");
    mounts
        .map(|mount| format!("{} {} {}", mount.destination, mount.source, mount.options.join(",")))
        .collect()
}

#[test]
fn mounts_are_sorted_and_replace_those_of_the_pod_and_the_system() {
    let mut case = Case::new();
    case.files = SandboxFiles {
        hostname: Some("/s/hostname".into()),
        hosts: Some("/s/hosts".into()),
        resolv_conf: Some("/s/resolv.conf".into()),
        shm: Some("/s/shm".into()),
    };
    case.config.mounts =
        vec![mount("/a/b/c", "/1"), mount("/etc/hosts/", "/2"), mount("/a", "/3"), mount("b", "/4")];
    case.image.volumes = words("/data /a /v/../w / /etc/hosts");
    let paths = image_volume_paths(&case.config, &case.image);
    assert_eq!(paths, ["/data", "/w"]);
    case.volumes = paths
        .into_iter()
        .map(|path| Volume { host_path: format!("/vol{path}"), container_path: path })
        .collect();
    assert_eq!(
        bound(&case),
        [
            "/a /3 rbind,rprivate,rw",
            "/b /4 rbind,rprivate,rw",
            "/data /vol/data rbind,rprivate,rw",
            "/w /vol/w rbind,rprivate,rw",
            "/etc/hosts /2 rbind,rprivate,rw",
            "/etc/hostname /s/hostname rbind,rprivate,rw",
            "/etc/resolv.conf /s/resolv.conf rbind,rprivate,rw",
            "/dev/shm /s/shm rbind,rprivate,rw",
            "/a/b/c /1 rbind,rprivate,rw",
        ]
    );
    case.context().readonly_rootfs = true;
    assert_eq!(case.at("/root/readonly"), json!(true));
    assert!(bound(&case).contains(&"/etc/hostname /s/hostname rbind,rprivate,ro".to_owned()));
    assert!(bound(&case).contains(&"/dev/shm /s/shm rbind,rprivate,rw".to_owned()));
    // With the machine's /dev nothing else is mounted below it.
    case.config.mounts.push(mount("/dev", "/dev"));
    case.files.shm = None;
    let destinations = case.spec().unwrap().mounts.into_iter().map(|mount| mount.destination);
    assert_eq!(destinations.filter(|path| path.starts_with("/dev")).collect::<Vec<_>>(), ["/dev"]);
}

#[test]
fn options_of_mounts() {
    use proto::MountPropagation::{PropagationBidirectional as Both, PropagationHostToContainer as Slave};
    type Change = fn(&mut proto::Mount);
    type Row<'a> = (Change, Result<(&'a str, &'a str), &'a str>);
    let rows: [Row<'_>; 11] = [
        (|m| m.readonly = true, Ok(("ro", ""))),
        (|m| m.propagation = Slave.into(), Ok(("rslave", "rslave"))),
        (|m| m.propagation = Both.into(), Ok(("rshared", "rshared"))),
        (|m| m.propagation = 8, Err("no propagation has the number 8")),
        (|m| (m.readonly, m.recursive_read_only) = (true, true), Ok(("rro", ""))),
        (|m| m.recursive_read_only = true, Err("cannot be writable and recursively")),
        (
            |m| (m.readonly, m.recursive_read_only, m.propagation) = (true, true, Slave.into()),
            Err("needs private propagation"),
        ),
        (|m| m.host_path = "data".into(), Err("is not absolute")),
        (|m| m.container_path = "/x/..".into(), Err("take the place of the root file system")),
        (|m| m.image = Some(proto::ImageSpec { image: "i".into(), ..Default::default() }), Ok(("ro", ""))),
        (|m| m.host_path = "/private/x".into(), Ok(("rprivate", ""))),
    ];
    for (change, expected) in rows {
        let mut case = Case::new();
        case.node.mountinfo = "1 0 8:1 / / rw shared:1 - ext4 /dev/a rw\n\
            2 1 8:1 / /private rw - ext4 /dev/a rw\n3 1 8:1 / /sl\\040ave rw master:1 - ext4 /dev/a rw"
            .into();
        case.config.mounts = vec![mount("/data", "/data")];
        change(&mut case.config.mounts[0]);
        match expected {
            Ok((option, propagation)) => {
                let bound = bound(&case);
                assert!(bound[0].split([' ', ',']).any(|one| one == option), "{bound:?}");
                assert_eq!(case.spec().unwrap().linux.rootfs_propagation, propagation);
            }
            Err(shown) => case.refused(shown),
        }
    }
}

#[test]
fn sources_that_do_not_propagate() {
    use proto::MountPropagation::{PropagationBidirectional as Both, PropagationHostToContainer as Slave};
    for (source, propagation, shown) in [
        (
            "/private/x",
            Slave,
            Some("/private/x is mounted on /private, which is not a shared or slave mount"),
        ),
        ("/private", Both, Some("is not a shared mount; run mount --make-rshared /private")),
        ("/sl ave/x", Slave, None),
        ("/sl ave/x", Both, Some("/sl ave")),
        ("/privateer", Both, None),
    ] {
        let mut case = Case::new();
        case.node.mountinfo = "1 0 8:1 / / rw shared:1 - ext4 /dev/a rw\n\
            2 1 8:1 / /private rw - ext4 /dev/a rw\n3 1 8:1 / /sl\\040ave rw master:1 - ext4 /dev/a rw"
            .into();
        case.config.mounts = vec![proto::Mount { propagation: propagation.into(), ..mount("/data", source) }];
        match shown {
            Some(shown) => case.refused(shown),
            None => drop(case.spec().unwrap()),
        }
    }
}

#[test]
fn what_the_oci_runtime_lacks_is_refused() {
    let mut case = Case::new();
    case.node.runtime.recursive_read_only = false;
    case.node.runtime.id_mapped_mounts = false;
    case.config.mounts =
        vec![proto::Mount { readonly: true, recursive_read_only: true, ..mount("/a", "/a") }];
    case.refused("recursive_read_only is not supported here");
    let uid_mappings = vec![proto::IdMapping { host_id: 5, container_id: 0, length: 9 }];
    case.config.mounts = vec![proto::Mount { uid_mappings, ..mount("/a", "/a") }];
    case.refused("uid_mappings is not supported here");
    case.node.runtime.id_mapped_mounts = true;
    assert_eq!(case.at("/mounts/7/uidMappings"), json!([{"containerID": 0, "hostID": 5, "size": 9}]));
}

#[test]
fn resources_of_both_hierarchies() {
    let mut case = Case::new();
    *case.resources() = proto::LinuxContainerResources {
        cpu_period: 100_000,
        cpu_quota: 50_000,
        cpu_shares: 512,
        memory_limit_in_bytes: 1 << 20,
        oom_score_adj: 900,
        cpuset_cpus: "0-1".into(),
        cpuset_mems: "0".into(),
        hugepage_limits: vec![proto::HugepageLimit { page_size: "2MB".into(), limit: 0 }],
        unified: [("memory.high".to_owned(), "9".to_owned())].into(),
        memory_swap_limit_in_bytes: 0,
    };
    assert_eq!(
        case.at("/linux/resources"),
        json!({
            "devices": [{"allow": false, "access": "rwm"}],
            "memory": {"limit": 1_048_576, "swap": 1_048_576},
            "cpu": {"shares": 512, "quota": 50_000, "period": 100_000, "cpus": "0-1", "mems": "0"},
            "hugepageLimits": [{"pageSize": "2MB", "limit": 0}],
            "unified": {"memory.high": "9"},
        })
    );
    assert_eq!(case.at("/process/oomScoreAdj"), json!(900));
    case.node.oom_score_adj_min = 950;
    assert_eq!(case.at("/process/oomScoreAdj"), json!(950));
    case.resources().memory_swap_limit_in_bytes = 3 << 20;
    assert_eq!(case.at("/linux/resources/memory/swap"), json!(3 << 20));
    case.node.cgroup = CgroupVersion::V2 { swap_controller: false };
    case.node.hugetlb = false;
    case.node.pids_limit = Some(77);
    assert_eq!(case.at("/linux/resources/memory/swap"), Value::Null);
    assert_eq!(case.at("/linux/resources/hugepageLimits"), Value::Null);
    assert_eq!(case.at("/linux/resources/pids/limit"), json!(77));
    case.node.cgroup = CgroupVersion::V1 { swap_controller: true };
    case.refused("unified is not supported here");
    case.resources().unified.clear();
    case.resources().cpu_shares = -1;
    case.refused("cpu_shares: -1 is negative");
    case.resources().cpu_shares = 0;
    case.resources().oom_score_adj = 1001;
    case.refused("oom_score_adj: 1001");
}

#[test]
fn an_update_says_what_is_given_alone() {
    let asked = proto::LinuxContainerResources { cpu_quota: -1, ..Default::default() };
    let update = |asked| serde_json::to_value(update(asked, &node()).unwrap()).unwrap();
    assert_eq!(update(&asked), json!({"cpu": {"quota": -1}}));
    assert_eq!(update(&proto::LinuxContainerResources::default()), json!({}));
}

#[test]
fn cgroup_paths() {
    for (parent, path) in [
        ("", "/smolet/c"),
        ("/", "/smolet/c"),
        ("/kubepods/besteffort/pod1", "/kubepods/besteffort/pod1/c"),
        ("kubepods/", "/kubepods/c"),
        ("/kubepods.slice/kubepods-pod1.slice", "kubepods-pod1.slice:smolet:c"),
        ("kubepods.slice", "kubepods.slice:smolet:c"),
    ] {
        assert_eq!(cgroups_path(parent, "c"), path);
    }
}

fn device(path: &str, kind: DeviceKind, major: u32, minor: u32) -> Device {
    Device { kind, path: path.into(), major, minor, file_mode: Some(0o660), uid: Some(0), gid: Some(5) }
}

#[test]
fn devices_of_the_cri_and_of_a_privileged_container() {
    let asked = |host: &str, container: &str, permissions: &str| proto::Device {
        container_path: container.into(),
        host_path: host.into(),
        permissions: permissions.into(),
    };
    let mut case = Case::new();
    case.devices = vec![
        device("/dev/sda", DeviceKind::Block, 8, 0),
        device("/dev/sda1", DeviceKind::Block, 8, 1),
        device("/dev/snd/pcm", DeviceKind::Character, 116, 1),
        device("/dev/snd/by-path/x", DeviceKind::Character, 116, 2),
        device("/dev/console", DeviceKind::Character, 5, 1),
        device("/dev/pts/0", DeviceKind::Character, 136, 0),
        device("/dev/fifo", DeviceKind::Fifo, 0, 0),
    ];
    case.config.devices = vec![asked("/dev/sda", "/dev/disk", "rw"), asked("/dev/snd", "", "rwm")];
    let paths = |case: &Case| {
        let devices = case.spec().unwrap().linux.devices;
        devices.into_iter().map(|device| device.path).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(paths(&case), "/dev/disk /dev/snd/pcm /dev/snd/by-path/x");
    assert_eq!(
        case.at("/linux/devices/0"),
        json!({"type": "b", "path": "/dev/disk", "major": 8, "minor": 0, "fileMode": 432, "uid": 0, "gid": 5})
    );
    assert_eq!(
        case.at("/linux/resources/devices"),
        json!([
            {"allow": false, "access": "rwm"},
            {"allow": true, "type": "b", "major": 8, "minor": 0, "access": "rw"},
            {"allow": true, "type": "c", "major": 116, "minor": 1, "access": "rwm"},
            {"allow": true, "type": "c", "major": 116, "minor": 2, "access": "rwm"},
        ])
    );
    case.config.devices = vec![asked("/dev/none", "/dev/none", "r")];
    case.refused("/dev/none is no device of this machine");
    for permissions in ["", "rx"] {
        case.config.devices = vec![asked("/dev/sda", "/dev/sda", permissions)];
        case.refused("are not of r, w and m");
    }
    case.config.devices = vec![asked("/dev/sda", "/dev/sda1", "r")];
    case.context().privileged = true;
    case.refused("the pod's sandbox is not privileged");
    case.sandbox.linux.as_mut().unwrap().security_context =
        Some(proto::LinuxSandboxSecurityContext { privileged: true, ..Default::default() });
    assert_eq!(paths(&case), "/dev/sda1 /dev/sda /dev/snd/pcm /dev/snd/by-path/x");
    assert_eq!(case.at("/linux/resources/devices"), json!([{"allow": true, "access": "rwm"}]));
}

#[test]
fn a_privileged_container_is_not_confined() {
    let mut case = Case::new();
    case.sandbox.linux.as_mut().unwrap().security_context =
        Some(proto::LinuxSandboxSecurityContext { privileged: true, ..Default::default() });
    case.node.apparmor = Some(format!("{APPARMOR_PROFILE_NAME} (enforce)\n"));
    case.selinux = Some(SelinuxLabels { process: "u:r:t:l".into(), mount: "u:r:f:l".into() });
    *case.context() = LinuxContainerSecurityContext {
        privileged: true,
        namespace_options: case.context().namespace_options.clone(),
        masked_paths: words("/proc/kcore"),
        readonly_paths: words("/proc/sys"),
        seccomp: Some(profile(ProfileType::RuntimeDefault, "")),
        apparmor: Some(profile(ProfileType::RuntimeDefault, "")),
        ..Default::default()
    };
    let spec = case.spec().unwrap();
    assert_eq!(spec.process.capabilities.bounding.len(), 41);
    assert!(spec.linux.seccomp.is_none() && spec.process.apparmor_profile.is_empty());
    assert!(spec.linux.masked_paths.is_empty() && spec.linux.readonly_paths.is_empty());
    assert!(spec.process.selinux_label.is_empty() && spec.linux.mount_label.is_empty());
    assert!(spec.linux.namespaces.iter().all(|namespace| namespace.kind != "cgroup"));
    for at in [5, 6] {
        let options = &spec.mounts[at].options;
        assert!(options.contains(&"rw".into()) && !options.contains(&"ro".into()), "{:?}", spec.mounts[at]);
    }
    case.node.mountinfo = "1 0 8:1 / / rw - ext4 /dev/a rw\n\
        2 1 0:2 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot,x"
        .into();
    let options = case.at("/mounts/6/options").to_string();
    assert!(options.ends_with(r#""relatime","rw","nsdelegate","memory_recursiveprot"]"#), "{options}");
    case.context().privileged = false;
    assert!(!case.at("/mounts/6/options").to_string().contains("nsdelegate"));
    assert_eq!(case.at("/linux/maskedPaths"), json!(["/proc/kcore"]));
    assert_eq!(case.at("/linux/readonlyPaths"), json!(["/proc/sys"]));
    assert_eq!(case.at("/process/apparmorProfile"), json!(APPARMOR_PROFILE_NAME));
    assert_eq!(case.at("/process/selinuxLabel"), json!("u:r:t:l"));
}

fn profile(kind: ProfileType, name: &str) -> proto::SecurityProfile {
    proto::SecurityProfile { profile_type: kind.into(), localhost_ref: name.into() }
}

#[test]
fn seccomp_profiles() {
    let mut case = Case::new();
    let set = |case: &mut Case, kind, name: &str| case.context().seccomp = Some(profile(kind, name));
    assert_eq!(case.at("/linux/seccomp"), Value::Null);
    case.context().seccomp_profile_path = "unconfined".into();
    assert_eq!(case.at("/linux/seccomp"), Value::Null);
    case.context().seccomp_profile_path = "runtime/default".into();
    assert_eq!(case.at("/linux/seccomp/defaultAction"), json!("SCMP_ACT_ERRNO"));
    case.context().seccomp_profile_path = "odd".into();
    case.refused("\"odd\" is not runtime/default");
    set(&mut case, ProfileType::Unconfined, "");
    assert_eq!(case.at("/linux/seccomp"), Value::Null);
    set(&mut case, ProfileType::RuntimeDefault, "x");
    case.refused("localhost_ref is set");
    set(&mut case, ProfileType::Localhost, "/var/lib/smolet/seccomp/a.json");
    case.refused("not to be found");
    case.seccomp_profile = Some("{");
    case.refused("profile \"/var/lib/smolet/seccomp/a.json\": EOF");
    case.seccomp_profile = Some(
        r#"{"defaultAction": "SCMP_ACT_ALLOW", "architectures": null, "syscalls": [
            {"names": ["mkdir"], "action": "SCMP_ACT_ERRNO", "errnoRet": 5, "comment": "x", "args": [
                {"index": 1, "value": 18446744073709551615, "valueTwo": 2, "op": "SCMP_CMP_EQ"}]}]}"#,
    );
    assert_eq!(
        case.at("/linux/seccomp"),
        json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{
            "names": ["mkdir"], "action": "SCMP_ACT_ERRNO", "errnoRet": 5,
            "args": [{"index": 1, "value": u64::MAX, "valueTwo": 2, "op": "SCMP_CMP_EQ"}]}]})
    );
    case.node.seccomp = false;
    case.refused("the kernel has no seccomp filters");
}

#[test]
fn apparmor_profiles() {
    use ProfileType::{Localhost, RuntimeDefault, Unconfined};
    assert!(APPARMOR_PROFILE.contains(&format!("\nprofile {APPARMOR_PROFILE_NAME} ")));
    let both = "smolet-default (enforce)\nmine (complain)\n";
    for (loaded, asked, expected) in [
        (None, None, Ok("")),
        (None, Some((Unconfined, "")), Ok("")),
        (None, Some((RuntimeDefault, "")), Err("not enabled")),
        (None, Some((Localhost, "mine")), Err("not enabled")),
        (Some(both), None, Ok("smolet-default")),
        (Some(both), Some((RuntimeDefault, "")), Ok("smolet-default")),
        (Some(both), Some((Unconfined, "")), Ok("")),
        (Some(both), Some((Localhost, "mine")), Ok("mine")),
        (Some(both), Some((Localhost, "localhost/mine")), Ok("mine")),
        (Some(both), Some((Localhost, "min")), Err("no AppArmor profile \"min\"")),
        (Some(both), Some((Localhost, "")), Err("no AppArmor profile \"\"")),
        (Some(""), None, Ok("")),
        (Some(""), Some((RuntimeDefault, "")), Err("is not loaded")),
    ] {
        let mut case = Case::new();
        case.node.apparmor = loaded.map(str::to_owned);
        case.context().apparmor = asked.map(|(kind, name)| profile(kind, name));
        match expected {
            Ok(expected) => assert_eq!(case.spec().unwrap().process.apparmor_profile, expected),
            Err(shown) => case.refused(shown),
        }
    }
    let mut case = Case::new();
    case.node.apparmor = Some(both.into());
    case.context().apparmor_profile = "localhost/mine".into();
    assert_eq!(case.at("/process/apparmorProfile"), json!("mine"));
}

#[test]
fn selinux_options_change_parts_of_the_sandboxs_labels() {
    let mut case = Case::new();
    case.selinux = Some(SelinuxLabels {
        process: "system_u:system_r:container_t:s0:c1,c2".into(),
        mount: "system_u:object_r:container_file_t:s0:c1,c2".into(),
    });
    assert_eq!(case.at("/process/selinuxLabel"), json!("system_u:system_r:container_t:s0:c1,c2"));
    case.context().selinux_options =
        Some(proto::SeLinuxOption { r#type: "spc_t".into(), level: "s0:c5".into(), ..Default::default() });
    assert_eq!(case.at("/process/selinuxLabel"), json!("system_u:system_r:spc_t:s0:c5"));
    assert_eq!(case.at("/linux/mountLabel"), json!("system_u:object_r:container_file_t:s0:c5"));
}

const CAMERA: &str = r"
cdiVersion: 0.6.0
kind: vendor.com/camera
containerEdits:
  env: [VENDOR=1]
devices:
- name: front
  containerEdits:
    env: ['CAMERA=front', 'PATH=/cam']
    deviceNodes:
    - path: /dev/cam
      hostPath: /dev/video0
      permissions: r
    - {path: /dev/made, type: c, major: 9, minor: 3, fileMode: 384, uid: 7}
    mounts:
    - {hostPath: /opt/cam, containerPath: /cam/lib, options: [ro, nosuid, bind]}
    hooks:
    - {hookName: createContainer, path: /usr/bin/ldcache, args: [ldcache, update], timeout: 5}
    additionalGids: [44]
- name: back
  containerEdits: {env: [CAMERA=back]}
";

#[test]
fn cdi_devices_edit_the_spec() {
    let mut case = Case::new();
    case.cdi = vec![("/etc/cdi/camera.yaml", CAMERA.into())];
    case.devices = vec![device("/dev/video0", DeviceKind::Character, 81, 0)];
    case.image.user = "app".into();
    case.config.cdi_devices = vec![proto::CdiDevice { name: "vendor.com/camera=front".into() }];
    case.config.mounts = vec![mount("/cam/lib/x/y", "/x")];
    assert_eq!(case.at("/process/env"), json!(["PATH=/cam", "HOSTNAME=pod", "VENDOR=1", "CAMERA=front"]));
    assert_eq!(
        case.at("/linux/devices"),
        json!([
            {"type": "c", "path": "/dev/cam", "major": 81, "minor": 0, "fileMode": 432, "uid": 1000, "gid": 1001},
            {"type": "c", "path": "/dev/made", "major": 9, "minor": 3, "fileMode": 384, "uid": 7, "gid": 1001},
        ])
    );
    assert_eq!(
        case.at("/linux/resources/devices/1"),
        json!({"allow": true, "type": "c", "major": 81, "minor": 0, "access": "r"})
    );
    assert_eq!(case.at("/linux/resources/devices/2/access"), json!("rwm"));
    assert_eq!(
        case.at("/hooks"),
        json!({"createContainer": [{"path": "/usr/bin/ldcache", "args": ["ldcache", "update"], "timeout": 5}]})
    );
    assert_eq!(case.at("/process/user/additionalGids"), json!([10, 1001, 44]));
    let destinations: Vec<_> =
        case.spec().unwrap().mounts.into_iter().map(|mount| mount.destination).collect();
    assert_eq!(destinations.last().unwrap(), "/cam/lib/x/y");
    assert!(destinations.contains(&"/cam/lib".to_owned()));
    // By an annotation, as JSON, from the later file; what is for all devices comes once.
    let json = CAMERA_JSON.replace("OTHER", "later");
    case.cdi.push(("/var/run/cdi/camera.json", json));
    case.config.annotations =
        [("cdi.k8s.io/x".to_owned(), "vendor.com/camera=back,vendor.com/camera=front".to_owned())].into();
    case.config.cdi_devices.clear();
    assert_eq!(case.at("/process/env"), json!(["PATH=/cam", "HOSTNAME=pod", "CAMERA=front", "VENDOR=1"]));
}

const CAMERA_JSON: &str = r#"{"cdiVersion": "0.5.0", "kind": "vendor.com/camera", "devices": [
    {"name": "back", "containerEdits": {"env": ["CAMERA=OTHER"]}}]}"#;

#[test]
fn cdi_files_and_devices_that_cannot_be() {
    for (file, shown) in [
        ("", "has the device \"v/c=d\"; see /etc/cdi and /var/run/cdi; /etc/cdi/x: it is empty"),
        ("a: [", "/etc/cdi/x: line"),
        ("cdiVersion: 2.0.0\nkind: v/c", "cdiVersion \"2.0.0\" is not known"),
        ("cdiVersion: 0.6.0\nkind: c", "kind \"c\" is not VENDOR/CLASS"),
        ("cdiVersion: 0.6.0\nkind: v/c", "no CDI specification of the node has the device"),
        ("cdiVersion: 0.6.0\nkind: v/c\ndevices: 5", "/etc/cdi/x: "),
        (
            "cdiVersion: 0.6.0\nkind: v/c\ndevices: [{name: d, containerEdits: {env: [A]}}]",
            "is not NAME=VALUE",
        ),
        (
            "cdiVersion: 0.6.0\nkind: v/c\ndevices: [{name: d, containerEdits: {deviceNodes: [{path: /dev/no}]}}]",
            "/dev/no is no device of this machine",
        ),
        (
            "cdiVersion: 0.6.0\nkind: v/c\ndevices: [{name: d, containerEdits: {hooks: [{hookName: x, path: /y}]}}]",
            "there is no hook \"x\"",
        ),
        (
            "cdiVersion: 1.1.0\nkind: v/c\ndevices: [{name: d, containerEdits: {netDevices: [{hostInterfaceName: e}]}}]",
            "network device \"e\"",
        ),
    ] {
        let mut case = Case::new();
        case.config.cdi_devices = vec![proto::CdiDevice { name: "v/c=d".into() }];
        case.cdi = vec![("/etc/cdi/x", file.into())];
        case.refused(shown);
    }
}

#[test]
fn processes_of_exec_are_as_the_first_one() {
    let mut case = Case::new();
    case.image.user = "app".into();
    case.context().no_new_privs = true;
    let json = case.spec().unwrap().to_json().unwrap();
    let first = case.spec().unwrap().process;
    let exec = exec_process(&json, &words("ls -l"), false).unwrap();
    assert_eq!(exec, runtime_spec::Process { args: words("ls -l"), ..first.clone() });
    let with_terminal = exec_process(&json, &words("sh"), true).unwrap();
    assert!(with_terminal.terminal && with_terminal.env.contains(&"TERM=xterm".to_owned()));
    assert!(exec_process(&json, &[], true).is_err());
    assert!(exec_process(b"{}", &words("sh"), true).is_err());
}

#[test]
fn sysctls_of_the_pods_own_namespaces() {
    let mut config = Case::new().sandbox;
    let of = |config: &mut PodSandboxConfig, name: &str| {
        config.linux.as_mut().unwrap().sysctls = [(name.to_owned(), "7".to_owned())].into();
        let paths = sysctls(config).map_err(|error| error.to_string())?;
        Ok::<_, String>(
            paths.into_iter().map(|(path, value)| format!("{path}={value}")).collect::<Vec<_>>().join(" "),
        )
    };
    const DEFAULTS: &str = "net/ipv4/ip_unprivileged_port_start=0 net/ipv4/ping_group_range=0 2147483647";
    for (name, on_node, expected) in [
        ("kernel.shm_rmid_forced", false, Ok("kernel/shm_rmid_forced=7 ")),
        ("kernel/sem", false, Ok("kernel/sem=7 ")),
        ("fs.mqueue.msg_max", false, Ok("fs/mqueue/msg_max=7 ")),
        ("kernel.domainname", false, Ok("kernel/domainname=7 ")),
        ("net.ipv4.conf.eth0/1.forwarding", false, Ok("net/ipv4/conf/eth0.1/forwarding=7 ")),
        ("net.core.somaxconn", true, Err("is not of a namespace of the pod's own")),
        ("kernel.sem", true, Err("is not of a namespace")),
        ("kernel.core_pattern", false, Err("is not of a namespace")),
        ("vm.swappiness", false, Err("is not of a namespace")),
        ("net/../kernel/core_pattern", false, Err("is no name")),
        ("net.//.kernel", false, Err("is no name")),
        ("net//x", false, Err("is no name")),
        ("", false, Err("is no name")),
    ] {
        let mode = if on_node { NamespaceMode::Node } else { NamespaceMode::Pod } as i32;
        config.linux.as_mut().unwrap().security_context = Some(proto::LinuxSandboxSecurityContext {
            namespace_options: Some(proto::NamespaceOption {
                network: mode,
                ipc: mode,
                ..Default::default()
            }),
            ..Default::default()
        });
        match (of(&mut config, name), expected) {
            (Ok(found), Ok(first)) => {
                assert!(
                    found.contains(first.trim()) && found.contains(DEFAULTS.split_once(' ').unwrap().0),
                    "{found}"
                );
            }
            (Err(error), Err(shown)) => assert!(error.contains(shown), "{error}"),
            (found, expected) => panic!("{name}: {found:?}, not {expected:?}"),
        }
    }
    config.linux = None;
    assert_eq!(sysctls(&config).unwrap().len(), 2);
}

#[test]
fn the_init_of_a_shared_pid_namespace() {
    let case = Case::new();
    let input = SandboxInput {
        id: "5a4db0",
        sandbox_id: "5a4db0",
        config: &case.sandbox,
        rootfs: "/run/smolet/runtime/pause",
        pause: "/usr/bin/smolet",
        libraries: &[],
        namespaces: &case.namespaces,
        node: &case.node,
    };
    let spec = sandbox_spec(&input).unwrap();
    let json = serde_json::to_value(&spec).unwrap();
    assert_eq!(json["process"]["args"], json!(["/smolet", "pause"]));
    assert_eq!(json["process"]["capabilities"], json!({}));
    assert_eq!(json["process"]["oomScoreAdj"], json!(-998));
    assert_eq!(json["linux"]["namespaces"][0], json!({"type": "pid"}));
    assert_eq!(json["linux"]["resources"], json!({"cpu": {"shares": 2}}));
    assert_eq!(
        json["mounts"][3],
        json!({"destination": "/smolet", "type": "bind", "source": "/usr/bin/smolet",
            "options": ["rbind", "rprivate", "ro", "nosuid", "nodev"]})
    );
    assert_eq!(json["annotations"]["io.kubernetes.cri.container-type"], json!("sandbox"));
}
