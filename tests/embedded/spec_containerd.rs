//! Our spec beside that of a real containerd for the same container: every difference is known and has a reason.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use serde_json::Value;
use smolet::clock::SystemClock;
use smolet::cri::client::GrpcRuntime;
use smolet::cri::{Runtime as _, RuntimeResult};
use smolet::executor::Executor;
use smolet::oci::runtime_spec::Map;
use smolet::oci::{self, ImageConfig, Input, SandboxFiles, SandboxNamespaces};
use smolet::proto::runtime::v1::security_profile::ProfileType;
use smolet::proto::runtime::v1::{
    Capability, ContainerConfig, ContainerMetadata, Device, ImageSpec, Int64Value, KeyValue,
    LinuxContainerResources, LinuxContainerSecurityContext, LinuxPodSandboxConfig,
    LinuxSandboxSecurityContext, Mount, PodSandboxConfig, PodSandboxMetadata, SecurityProfile,
};

use super::spec::{context, linux, node};

const IMAGE: &str = "smolet.test/busybox:1";

/// A containerd of this test's own; taken down when dropped.
struct Containerd {
    dir: PathBuf,
    cgroup_root: String,
    executor: Rc<Executor>,
    cri: GrpcRuntime,
}

impl Containerd {
    fn up() -> Self {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("oci-containerd");
        script(&dir, "up");
        let variables = script(&dir, "env");
        let value = |name: &str| {
            let value = variables.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
            value.unwrap_or_else(|| panic!("runtime.sh env has no {name}: {variables}")).to_owned()
        };
        let executor = Rc::new(Executor::new());
        let cri = GrpcRuntime::new(Path::new(&value("SOCKET")), &executor, Rc::new(SystemClock));
        Self { cgroup_root: value("CGROUP_ROOT"), dir, executor, cri }
    }

    fn call<T>(&self, call: impl Future<Output = RuntimeResult<T>>) -> T {
        async_io::block_on(self.executor.run(call)).unwrap_or_else(|error| panic!("CRI: {error}"))
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        script(&self.dir, "down");
    }
}

fn script(dir: &Path, command: &str) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/env/runtime.sh");
    let output = Command::new(script).arg(command).arg(dir).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn container(name: &str) -> ContainerConfig {
    ContainerConfig {
        metadata: Some(ContainerMetadata { name: name.into(), attempt: 0 }),
        image: Some(ImageSpec { image: IMAGE.into(), ..Default::default() }),
        command: ["/bin/sleep", "60"].map(str::to_owned).to_vec(),
        log_path: format!("{name}.log"),
        linux: linux(),
        ..Default::default()
    }
}

/// With as many fields as may differ.
fn confined(host: &str) -> ContainerConfig {
    let variable = |key: &str, value: &str| KeyValue { key: key.into(), value: value.into() };
    let mount = |container_path: &str, readonly| Mount {
        container_path: container_path.into(),
        host_path: host.into(),
        readonly,
        ..Default::default()
    };
    let mut config = ContainerConfig {
        args: vec!["7".into()],
        working_dir: "/tmp".into(),
        envs: vec![variable("A", "1"), variable("PATH", "/bin"), variable("HOSTNAME", "mine")],
        mounts: vec![mount("/deep/er", true), mount("/etc/hosts", false), mount("/deep", false)],
        devices: vec![Device {
            container_path: "/dev/nought".into(),
            host_path: "/dev/zero".into(),
            permissions: "rw".into(),
        }],
        tty: true,
        ..container("confined")
    };
    config.linux.as_mut().unwrap().resources = Some(LinuxContainerResources {
        cpu_period: 100_000,
        cpu_quota: 50_000,
        cpu_shares: 512,
        memory_limit_in_bytes: 64 << 20,
        oom_score_adj: 900,
        cpuset_cpus: "0".into(),
        ..Default::default()
    });
    *context(&mut config) = LinuxContainerSecurityContext {
        capabilities: Some(Capability {
            add_capabilities: vec!["NET_ADMIN".into(), "SYS_TIME".into()],
            drop_capabilities: vec!["KILL".into(), "MKNOD".into()],
            ..Default::default()
        }),
        run_as_user: Some(Int64Value { value: 1000 }),
        run_as_group: Some(Int64Value { value: 7 }),
        supplemental_groups: vec![50, 20],
        readonly_rootfs: true,
        no_new_privs: true,
        masked_paths: vec!["/proc/kcore".into(), "/sys/firmware".into()],
        readonly_paths: vec!["/proc/sys".into()],
        seccomp: Some(SecurityProfile {
            profile_type: ProfileType::RuntimeDefault.into(),
            ..Default::default()
        }),
        ..context(&mut config).clone()
    };
    config
}

fn privileged() -> ContainerConfig {
    let mut config = container("privileged");
    *context(&mut config) =
        LinuxContainerSecurityContext { privileged: true, ..context(&mut config).clone() };
    config
}

/// Differences that there are, and no others: pointers into `config.json`.
const KNOWN: [(&str, &str); 1] = [(
    "/ociVersion",
    "the version that is written: runtimes compare the major number, containerd writes that of its day",
)];

/// Calls that its profile of 2023 allows and ours, of 2026, does not.
const CALLS_OF_OLD: &[&str] = &["io_uring_enter", "io_uring_register", "io_uring_setup", "socket"];
/// Calls that ours allows and an older profile does not name; libseccomp passes over those that it does not know.
const CALLS_SINCE: &[&str] = &[
    "cachestat",
    "fchmodat2",
    "futex_requeue",
    "futex_wait",
    "futex_wake",
    "getxattrat",
    "listmount",
    "listxattrat",
    "lsm_get_self_attr",
    "lsm_list_modules",
    "lsm_set_self_attr",
    "map_shadow_stack",
    "mseal",
    "name_to_handle_at",
    "process_vm_readv",
    "process_vm_writev",
    "removexattrat",
    "setxattrat",
    "socket 0 \"SCMP_CMP_EQ\" 39",
    "socket 0 \"SCMP_CMP_GT\" 40",
    "socket 0 \"SCMP_CMP_LT\" 38",
    "statmount",
    "uretprobe",
];

#[test]
fn our_spec_is_containerds_but_for_known_differences() {
    let containerd = Containerd::up();
    let host = containerd.dir.join("host");
    fs::create_dir_all(&host).unwrap();
    let host = host.to_str().unwrap().to_owned();
    let sandbox = PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: "pod".into(),
            uid: "uid-1".into(),
            namespace: "default".into(),
            attempt: 0,
        }),
        hostname: "pod".into(),
        log_directory: containerd.dir.join("logs").to_str().unwrap().into(),
        linux: Some(LinuxPodSandboxConfig {
            cgroup_parent: format!("{}/pod", containerd.cgroup_root),
            security_context: Some(LinuxSandboxSecurityContext { privileged: true, ..Default::default() }),
            ..Default::default()
        }),
        ..Default::default()
    };
    let sandbox_id = containerd.call(containerd.cri.run_pod_sandbox(&sandbox, ""));
    let bundles = containerd.dir.join("state/io.containerd.runtime.v2.task/k8s.io");
    let pause = fs::read_to_string(bundles.join(sandbox_id.as_str()).join("init.pid")).unwrap();
    let of_pause = |kind: &str| Some(format!("/proc/{}/ns/{kind}", pause.trim()));
    let files = containerd.dir.join("root/io.containerd.grpc.v1.cri/sandboxes").join(sandbox_id.as_str());
    let shm = containerd
        .dir
        .join("state/io.containerd.grpc.v1.cri/sandboxes")
        .join(sandbox_id.as_str())
        .join("shm");
    let file = |name: &str| Some(files.join(name).to_str().unwrap().to_owned());
    let mut differences: BTreeMap<String, String> = BTreeMap::new();
    for mut config in [container("plain"), confined(&host), privileged()] {
        let id = containerd.call(containerd.cri.create_container(&sandbox_id, &config, &sandbox));
        containerd.call(containerd.cri.start_container(&id));
        let bundle = bundles.join(id.as_str());
        let mut theirs: Value =
            serde_json::from_slice(&fs::read(bundle.join("config.json")).unwrap()).unwrap();
        let read = |name: &str| fs::read(bundle.join("rootfs/etc").join(name)).unwrap_or_default();
        let devices = oci::find_devices(&mut config).unwrap();
        let ours = oci::spec(&Input {
            id: id.as_str(),
            sandbox_id: sandbox_id.as_str(),
            config: &config,
            sandbox: &sandbox,
            // As tests/env/images.sh has it.
            image: &ImageConfig { env: vec!["PATH=/bin".into()], ..Default::default() },
            image_name: IMAGE,
            rootfs: "rootfs",
            passwd: &read("passwd"),
            group: &read("group"),
            namespaces: &SandboxNamespaces {
                network: of_pause("net"),
                ipc: of_pause("ipc"),
                uts: of_pause("uts"),
                ..Default::default()
            },
            files: &SandboxFiles {
                hostname: file("hostname"),
                hosts: file("hosts"),
                resolv_conf: file("resolv.conf"),
                shm: Some(shm.to_str().unwrap().into()),
            },
            volumes: &[],
            seccomp_profile: None,
            selinux: None,
            devices: &devices,
            cdi: &[],
            apparmor: None,
            annotations: &Map::new(),
            node: &node(),
        });
        let mut ours = serde_json::to_value(ours.unwrap()).unwrap();
        let seccomp = |spec: &mut Value| spec["linux"].as_object_mut().unwrap().remove("seccomp");
        match (seccomp(&mut theirs), seccomp(&mut ours)) {
            (Some(theirs), Some(ours)) => {
                let (mut theirs, mut ours) = (normal(theirs), normal(ours));
                let (their_calls, our_calls) = (calls(&mut theirs), calls(&mut ours));
                let only = |these: &BTreeSet<String>, those: &BTreeSet<String>| {
                    these.difference(those).cloned().collect::<Vec<_>>()
                };
                assert_eq!(only(&their_calls, &our_calls), CALLS_OF_OLD);
                assert_eq!(only(&our_calls, &their_calls), CALLS_SINCE);
                compare(&mut differences, "/linux/seccomp", &theirs, &ours);
            }
            (None, None) => {}
            (theirs, ours) => panic!("{theirs:?} and ours {ours:?}"),
        }
        compare(&mut differences, "", &normal(theirs), &normal(ours));
    }
    for (known, why) in KNOWN {
        assert!(!why.is_empty() && differences.remove(known).is_some(), "{known} does not differ");
    }
    let shown: Vec<String> = differences.iter().map(|(at, how)| format!("{at}: {how}")).collect();
    assert!(shown.is_empty(), "{}", shown.join("\n"));
}

/// The calls of a seccomp profile, each with its conditions, which are taken out of it.
fn calls(profile: &mut Value) -> BTreeSet<String> {
    let rules = profile.as_object_mut().unwrap().remove("syscalls").unwrap();
    let rules = rules.as_array().unwrap().iter().flat_map(|rule| {
        let names = rule["names"].as_array().unwrap().iter();
        let how = match (&rule["args"], &*rule["action"].to_string()) {
            (Value::Null, "\"SCMP_ACT_ALLOW\"") => String::new(),
            (Value::Null, action) => format!(" {action} {}", rule["errnoRet"]),
            (args, _) => format!(" {} {} {}", args[0]["index"], args[0]["op"], args[0]["value"]),
        };
        names.map(move |name| format!("{}{how}", name.as_str().unwrap())).collect::<Vec<_>>()
    });
    rules.collect()
}

/// Without what is null or empty, and lists in which the order says nothing in one order.
fn normal(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter().map(|(key, value)| {
                let is_unordered =
                    ["bounding", "effective", "permitted", "namespaces", "devices"].contains(&&*key);
                let mut value = normal(value);
                if let (true, Value::Array(items)) = (is_unordered, &mut value) {
                    items.sort_by_key(Value::to_string);
                }
                (key, value)
            });
            Value::Object(fields.filter(|(_, value)| !is_empty(value)).collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(normal).collect()),
        value => value,
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

fn compare(differences: &mut BTreeMap<String, String>, at: &str, theirs: &Value, ours: &Value) {
    match (theirs, ours) {
        (Value::Object(their_fields), Value::Object(our_fields)) => {
            let keys =
                their_fields.keys().chain(our_fields.keys().filter(|key| !their_fields.contains_key(*key)));
            for key in keys {
                compare(differences, &format!("{at}/{key}"), &theirs[key], &ours[key]);
            }
        }
        (Value::Array(their_items), Value::Array(our_items)) if their_items.len() == our_items.len() => {
            for (number, (their, our)) in their_items.iter().zip(our_items).enumerate() {
                compare(differences, &format!("{at}/{number}"), their, our);
            }
        }
        (theirs, ours) if theirs == ours => {}
        (theirs, ours) => _ = differences.insert(at.to_owned(), format!("{theirs} and ours {ours}")),
    }
}
