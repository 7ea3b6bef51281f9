//! Rules of the spec, as tables: what a container is made of, its process, its users and namespaces here, the rest in the parts.

mod cdi;
mod mounts;
mod resources;
mod sandbox;
mod security;

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
        apparmor: false,
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
    apparmor: Option<String>,
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
            apparmor: None,
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
            apparmor: self.apparmor.as_deref(),
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

fn mount(container_path: &str, host_path: &str) -> proto::Mount {
    proto::Mount { container_path: container_path.into(), host_path: host_path.into(), ..Default::default() }
}

fn device(path: &str, kind: DeviceKind, major: u32, minor: u32) -> Device {
    Device { kind, path: path.into(), major, minor, file_mode: Some(0o660), uid: Some(0), gid: Some(5) }
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
