//! Specs that a real OCI runtime runs: what is written in them holds in the container.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use smolet::oci::runtime_spec::{Map, Rlimit};
use smolet::oci::{
    self, CdiFile, ImageConfig, Input, NodeFacts, RuntimeFeatures, SandboxFiles, SandboxInput,
    SandboxNamespaces, Spec, Volume,
};
use smolet::proto::runtime::v1::security_profile::ProfileType;
use smolet::proto::runtime::v1::{
    Capability, CdiDevice, ContainerConfig, Device as CriDevice, HugepageLimit, Int64Value,
    LinuxContainerConfig, LinuxContainerResources, LinuxContainerSecurityContext, LinuxPodSandboxConfig,
    LinuxSandboxSecurityContext, Mount, MountPropagation, NamespaceMode, NamespaceOption, PodSandboxConfig,
    SecurityProfile,
};
use smolet::render::CgroupVersion;

use crate::common::write_program;

const PASSWD: &str = "root:x:0:0::/root:/bin/sh\napp:x:1000:1001::/:/bin/sh\n";
const GROUP: &str = "root:x:0:\napp:x:1001:\naudio:x:29:app\n";

/// A bundle with busybox's root file system and a runc with a state of its own; gone with the value.
struct Bundle {
    dir: PathBuf,
    id: String,
    config: ContainerConfig,
    sandbox: PodSandboxConfig,
    files: SandboxFiles,
    volumes: Vec<Volume>,
    namespaces: SandboxNamespaces,
    seccomp_profile: Option<String>,
    cdi: Option<String>,
    node: NodeFacts,
}

impl Bundle {
    fn new(name: &str) -> Self {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("oci-spec-{name}"));
        let id = format!("smolet-test-oci-{name}");
        let bundle = Self {
            id: id.clone(),
            config: ContainerConfig { linux: linux(), ..Default::default() },
            sandbox: PodSandboxConfig {
                linux: Some(LinuxPodSandboxConfig { cgroup_parent: format!("/{id}"), ..Default::default() }),
                ..Default::default()
            },
            files: SandboxFiles::default(),
            volumes: Vec::new(),
            namespaces: SandboxNamespaces::default(),
            seccomp_profile: None,
            cdi: None,
            node: node(),
            dir,
        };
        bundle.remove();
        let rootfs = bundle.dir.join("rootfs");
        for directory in ["bin", "dev", "etc", "proc", "sys", "tmp", "data"] {
            fs::create_dir_all(rootfs.join(directory)).unwrap();
        }
        fs::copy("/usr/bin/busybox", rootfs.join("bin/busybox")).unwrap();
        for applet in
            ["sh", "id", "cat", "grep", "touch", "mkdir", "mount", "unshare", "sleep", "ls", "stat", "kill"]
        {
            symlink("busybox", rootfs.join("bin").join(applet)).unwrap();
        }
        fs::write(rootfs.join("etc/passwd"), PASSWD).unwrap();
        fs::write(rootfs.join("etc/group"), GROUP).unwrap();
        bundle
    }

    fn context(&mut self) -> &mut LinuxContainerSecurityContext {
        context(&mut self.config)
    }

    fn resources(&mut self) -> &mut LinuxContainerResources {
        self.config.linux.as_mut().unwrap().resources.as_mut().unwrap()
    }

    fn privileged(&mut self) {
        self.context().privileged = true;
        self.sandbox.linux.as_mut().unwrap().security_context =
            Some(LinuxSandboxSecurityContext { privileged: true, ..Default::default() });
    }

    /// A directory of the machine beside the bundle.
    fn host(&self, name: &str) -> String {
        let path = self.dir.join(name);
        fs::create_dir_all(&path).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn spec(&self, script: &str) -> Spec {
        let mut config = self.config.clone();
        config.command = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
        let devices = oci::find_devices(&mut config).unwrap();
        let cdi: Vec<CdiFile<'_>> =
            self.cdi.iter().map(|text| CdiFile { path: "x.yaml", text: text.as_bytes() }).collect();
        oci::spec(&Input {
            id: &self.id,
            sandbox_id: "sandbox",
            config: &config,
            sandbox: &self.sandbox,
            image: &ImageConfig::default(),
            image_name: "busybox",
            rootfs: "rootfs",
            passwd: PASSWD.as_bytes(),
            group: GROUP.as_bytes(),
            namespaces: &self.namespaces,
            files: &self.files,
            volumes: &self.volumes,
            seccomp_profile: self.seccomp_profile.as_deref().map(str::as_bytes),
            selinux: None,
            devices: &devices,
            cdi: &cdi,
            apparmor: None,
            annotations: &Map::new(),
            node: &self.node,
        })
        .unwrap()
    }

    fn runc(&self, args: &[&str], stdin: &str) -> (bool, String) {
        let mut runc = Command::new("runc");
        runc.arg("--root").arg(self.dir.join("state")).args(args).current_dir(&self.dir);
        let mut runc =
            runc.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("runc");
        runc.stdin.take().unwrap().write_all(stdin.as_bytes()).unwrap();
        let output = runc.wait_with_output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).trim().to_owned())
    }

    /// What the script writes.
    fn run(&self, script: &str) -> String {
        fs::write(self.dir.join("config.json"), self.spec(script).to_json().unwrap()).unwrap();
        self.runc(&["run", &self.id], "").1
    }

    /// Runs it in the background.
    fn start(&self, spec: &Spec) {
        fs::write(self.dir.join("config.json"), spec.to_json().unwrap()).unwrap();
        let log = fs::File::create(self.dir.join("log")).unwrap();
        let status = Command::new("runc")
            .arg("--root")
            .arg(self.dir.join("state"))
            .args(["run", "--detach", "--pid-file", "pid", &self.id])
            .current_dir(&self.dir)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .status()
            .unwrap();
        assert!(status.success(), "{}", fs::read_to_string(self.dir.join("log")).unwrap());
    }

    fn pid(&self) -> String {
        fs::read_to_string(self.dir.join("pid")).unwrap()
    }

    fn remove(&self) {
        if self.dir.join("state").join(&self.id).exists() {
            self.runc(&["delete", "--force", &self.id], "");
        }
        // The pod's cgroup in every hierarchy; the container's is the runtime's.
        let hierarchies = fs::read_dir("/sys/fs/cgroup").unwrap().map(|entry| entry.unwrap().path());
        for hierarchy in hierarchies.chain(["/sys/fs/cgroup".into()]) {
            let _ = fs::remove_dir(hierarchy.join(&self.id));
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

impl Drop for Bundle {
    fn drop(&mut self) {
        self.remove();
    }
}

/// A container with a PID namespace of its own.
pub fn linux() -> Option<LinuxContainerConfig> {
    let options = NamespaceOption { pid: NamespaceMode::Container.into(), ..Default::default() };
    Some(LinuxContainerConfig {
        resources: Some(LinuxContainerResources::default()),
        security_context: Some(LinuxContainerSecurityContext {
            namespace_options: Some(options),
            ..Default::default()
        }),
    })
}

pub fn context(config: &mut ContainerConfig) -> &mut LinuxContainerSecurityContext {
    config.linux.as_mut().unwrap().security_context.as_mut().unwrap()
}

/// This machine with its runc.
pub fn node() -> NodeFacts {
    let cgroup = if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        CgroupVersion::V2 { swap_controller: false }
    } else {
        let swap = Path::new("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes");
        CgroupVersion::V1 { swap_controller: swap.exists() }
    };
    let features = Command::new("runc").arg("features").output().unwrap().stdout;
    let runtime = RuntimeFeatures::parse(&features);
    assert!(runtime.recursive_read_only, "{}", String::from_utf8_lossy(&features));
    NodeFacts { hostname: "machine".into(), ..NodeFacts::read(cgroup, runtime).unwrap() }
}

fn profile(kind: ProfileType) -> Option<SecurityProfile> {
    Some(SecurityProfile { profile_type: kind.into(), localhost_ref: String::new() })
}

#[test]
fn users_groups_directory_and_environment() {
    let mut bundle = Bundle::new("user");
    bundle.context().run_as_username = "app".into();
    bundle.context().supplemental_groups = vec![50];
    bundle.config.working_dir = "/data".into();
    bundle.config.envs =
        vec![smolet::proto::runtime::v1::KeyValue { key: "GREETING".into(), value: b"hello".to_vec() }];
    let seen = bundle.run("id -u; id -g; id -G; pwd; echo $GREETING $HOSTNAME");
    assert_eq!(seen, "1000\n1001\n1001 29 50\n/data\nhello machine");
    bundle.context().run_as_username.clear();
    bundle.context().run_as_user = Some(Int64Value { value: 4711 });
    bundle.context().run_as_group = Some(Int64Value { value: 7 });
    assert_eq!(bundle.run("id -u; id -g; id -G"), "4711\n7\n7 50");
}

#[test]
fn capabilities_privileges_and_limits_of_the_process() {
    let mut bundle = Bundle::new("caps");
    let script = "grep -E 'CapBnd|CapEff|CapAmb|NoNewPrivs' /proc/self/status; ulimit -n; cat /proc/self/oom_score_adj";
    let values = |seen: String| {
        seen.lines()
            .map(|line| line.split_whitespace().last().unwrap().to_owned())
            .collect::<Vec<_>>()
            .join(" ")
    };
    bundle.node.rlimits = vec![Rlimit { kind: "RLIMIT_NOFILE".into(), hard: 99, soft: 77 }];
    bundle.resources().oom_score_adj = 321;
    let default = "00000000a80425fb 00000000a80425fb 0000000000000000 0 77 321";
    assert_eq!(values(bundle.run(script)), default);
    bundle.context().no_new_privs = true;
    bundle.context().capabilities = Some(Capability {
        add_capabilities: vec!["NET_BIND_SERVICE".into()],
        drop_capabilities: vec!["ALL".into()],
        ..Default::default()
    });
    let bound = "0000000000000400 0000000000000400 0000000000000000 1 77 321";
    assert_eq!(values(bundle.run(script)), bound);
    bundle.context().capabilities = Some(Capability {
        drop_capabilities: vec!["ALL".into()],
        add_ambient_capabilities: vec!["NET_BIND_SERVICE".into()],
        ..Default::default()
    });
    bundle.context().run_as_username = "app".into();
    let ambient = "0000000000000400 0000000000000400 0000000000000400 1 77 321";
    assert_eq!(values(bundle.run(script)), ambient);
}

#[test]
fn seccomp_profiles_filter_system_calls() {
    let mut bundle = Bundle::new("seccomp");
    let script = "grep '^Seccomp:' /proc/self/status; unshare -U true && echo made; mkdir /tmp/x && echo dir";
    assert_eq!(bundle.run(script), "Seccomp:\t0\nmade\ndir");
    fs::remove_dir(bundle.dir.join("rootfs/tmp/x")).unwrap();
    bundle.context().seccomp = profile(ProfileType::RuntimeDefault);
    let seen = bundle.run(script);
    assert!(seen.contains("Seccomp:\t2") && seen.contains("Operation not permitted"), "{seen}");
    assert!(!seen.contains("made") && seen.contains("dir"), "{seen}");
    fs::remove_dir(bundle.dir.join("rootfs/tmp/x")).unwrap();
    bundle.context().seccomp = profile(ProfileType::Localhost);
    bundle.seccomp_profile = Some(
        r#"{"defaultAction": "SCMP_ACT_ALLOW",
            "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 30}]}"#
            .into(),
    );
    let seen = bundle.run(script);
    assert!(seen.contains("Seccomp:\t2\nmade") && seen.contains("Read-only file system"), "{seen}");
}

#[test]
fn masked_and_read_only_paths() {
    let mut bundle = Bundle::new("masked");
    let script = "cat /proc/keys; touch /proc/sys/kernel/hostname; ls /sys/firmware; touch /x; echo end";
    bundle.context().masked_paths = vec!["/proc/keys".into(), "/sys/firmware".into()];
    bundle.context().readonly_paths = vec!["/proc/sys".into()];
    let seen = bundle.run(script);
    assert!(
        seen == "end\ntouch: /proc/sys/kernel/hostname: Read-only file system"
            && bundle.dir.join("rootfs/x").exists(),
        "{seen}"
    );
    fs::remove_file(bundle.dir.join("rootfs/x")).unwrap();
    bundle.context().readonly_rootfs = true;
    let seen = bundle.run("touch /x; touch /dev/shm/x && echo shm");
    assert!(seen.contains("touch: /x: Read-only file system") && seen.contains("shm"), "{seen}");
    bundle.context().masked_paths.clear();
    assert!(bundle.run(script).contains("perm") || !Path::new("/proc/keys").exists());
}

#[test]
fn mounts_of_the_pod_of_the_image_and_of_the_cri() {
    let mut bundle = Bundle::new("mounts");
    let (host, volume, shm) = (bundle.host("host"), bundle.host("volume"), bundle.host("shm"));
    fs::write(format!("{host}/file"), "of the host").unwrap();
    let hosts = format!("{host}/hosts");
    fs::write(&hosts, "127.0.0.1 pod").unwrap();
    bundle.files = SandboxFiles { hosts: Some(hosts), shm: Some(shm.clone()), ..SandboxFiles::default() };
    bundle.volumes = vec![Volume { container_path: "/vol".into(), host_path: volume.clone() }];
    bundle.config.mounts = vec![
        Mount {
            container_path: "/data/a".into(),
            host_path: host.clone(),
            readonly: true,
            ..Default::default()
        },
        Mount { container_path: "/data".into(), host_path: bundle.host("below"), ..Default::default() },
        Mount {
            container_path: "/rro".into(),
            host_path: host,
            readonly: true,
            recursive_read_only: true,
            ..Default::default()
        },
    ];
    let seen = bundle.run(
        "cat /data/a/file /etc/hosts; echo; touch /data/a/x; touch /rro/x; touch /data/x /vol/x /dev/shm/x && echo good",
    );
    assert!(seen.contains("of the host127.0.0.1 pod") && seen.contains("good"), "{seen}");
    assert!(seen.matches("Read-only file system").count() == 2, "{seen}");
    assert!(Path::new(&volume).join("x").exists() && Path::new(&shm).join("x").exists());
}

#[test]
fn mounts_propagate() {
    let mut bundle = Bundle::new("propagation");
    let host = bundle.host("host");
    let mount = |args: &[&str]| assert!(Command::new("mount").args(args).status().unwrap().success());
    mount(&["-t", "tmpfs", "smolet-test", &host]);
    mount(&["--make-rshared", &host]);
    fs::create_dir(format!("{host}/in")).unwrap();
    fs::create_dir(format!("{host}/out")).unwrap();
    bundle.node.mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap();
    bundle.privileged();
    bundle.config.mounts = vec![Mount {
        container_path: "/shared".into(),
        host_path: host.clone(),
        propagation: MountPropagation::PropagationBidirectional.into(),
        ..Default::default()
    }];
    let seen = bundle.run("mount -t tmpfs of-container /shared/out && touch /shared/out/x && echo good");
    let is_there = Path::new(&host).join("out/x").exists();
    let unmounted = Command::new("umount").args(["--recursive", "--lazy", &host]).status().unwrap().success();
    assert!(seen == "good" && is_there && unmounted, "{seen}");
}

#[test]
fn limits_are_in_the_cgroup() {
    let mut bundle = Bundle::new("cgroup");
    bundle.node.pids_limit = Some(55);
    *bundle.resources() = LinuxContainerResources {
        cpu_shares: 512,
        cpu_quota: 50_000,
        cpu_period: 100_000,
        memory_limit_in_bytes: 64 << 20,
        cpuset_cpus: "0".into(),
        ..Default::default()
    };
    let script = if matches!(bundle.node.cgroup, CgroupVersion::V2 { .. }) {
        "cd /sys/fs/cgroup; cat memory.max cpu.max pids.max cpuset.cpus"
    } else {
        "cd /sys/fs/cgroup; cat memory/memory.limit_in_bytes cpu/cpu.cfs_quota_us cpu/cpu.cfs_period_us \
         pids/pids.max cpuset/cpuset.cpus; cat cpu/cpu.shares"
    };
    let seen = bundle.run(script);
    let expected = if matches!(bundle.node.cgroup, CgroupVersion::V2 { .. }) {
        "67108864\n50000 100000\n55\n0"
    } else {
        "67108864\n50000\n100000\n55\n0\n512"
    };
    assert_eq!(seen, expected);
    // Of the machine's smallest huge page, where the kernel counts them.
    if bundle.node.hugetlb {
        let sizes = fs::read_dir("/sys/kernel/mm/hugepages").unwrap();
        let kib = sizes.map(|size| {
            let name = size.unwrap().file_name().into_string().unwrap();
            name.trim_start_matches("hugepages-").trim_end_matches("kB").parse::<u64>().unwrap()
        });
        let kib = kib.min().unwrap();
        let page_size = if kib >= 1024 { format!("{}MB", kib / 1024) } else { format!("{kib}KB") };
        let (directory, file) = if matches!(bundle.node.cgroup, CgroupVersion::V2 { .. }) {
            ("/sys/fs/cgroup", "max")
        } else {
            ("/sys/fs/cgroup/hugetlb", "limit_in_bytes")
        };
        bundle.resources().hugepage_limits =
            vec![HugepageLimit { page_size: page_size.clone(), limit: 2 * kib * 1024 }];
        let seen = bundle.run(&format!("cat {directory}/hugetlb.{page_size}.{file}"));
        assert_eq!(seen, (2 * kib * 1024).to_string());
    }
    // In place, and in the files that the container itself reads.
    bundle.start(&bundle.spec("sleep 60"));
    let asked = LinuxContainerResources {
        memory_limit_in_bytes: 32 << 20,
        cpu_quota: 20_000,
        cpu_period: 100_000,
        ..Default::default()
    };
    let update = serde_json::to_string(&oci::update(&asked, &bundle.node).unwrap()).unwrap();
    let (updated, shown) = bundle.runc(&["update", "--resources", "-", &bundle.id], &update);
    assert!(updated, "{shown}");
    let config = fs::read(bundle.dir.join("config.json")).unwrap();
    let script = ["/bin/sh", "-c", script].map(str::to_owned);
    let process = oci::exec_process(&config, &script, false).unwrap();
    fs::write(bundle.dir.join("process.json"), process).unwrap();
    let (_, seen) = bundle.runc(&["exec", "--process", "process.json", &bundle.id], "");
    assert_eq!(seen, expected.replace("67108864", "33554432").replace("50000", "20000"));
}

#[test]
fn devices_of_the_cri_of_cdi_and_of_the_machine() {
    let mut bundle = Bundle::new("devices");
    // Devices are often named by links, as those of /dev/serial/by-id.
    let zero = bundle.dir.join("zero");
    symlink("/dev/zero", &zero).unwrap();
    bundle.config.devices = vec![CriDevice {
        container_path: "/dev/nought".into(),
        host_path: zero.to_str().unwrap().into(),
        permissions: "rwm".into(),
    }];
    bundle.cdi = Some(
        "cdiVersion: 0.6.0\nkind: smolet.test/log\ndevices:\n- name: all\n  containerEdits:\n    env: [LOG=kernel]\n    \
         deviceNodes: [{path: /dev/log0, hostPath: /dev/kmsg, permissions: r}]\n    hooks: [{hookName: createRuntime, \
         path: /bin/sh, args: [sh, -c, 'touch hook']}]\n"
            .into(),
    );
    bundle.config.cdi_devices = vec![CdiDevice { name: "smolet.test/log=all".into() }];
    let seen = bundle
        .run("stat -c '%t,%T' /dev/nought /dev/log0; echo $LOG; ls /dev/kmsg; (echo x >/dev/log0) 2>&1");
    assert!(seen.starts_with("1,5\n1,b\nkernel\n"), "{seen}");
    assert!(seen.contains("/dev/kmsg: No such file") && seen.contains("can't create /dev/log0"), "{seen}");
    bundle.config.cdi_devices.clear();
    bundle.privileged();
    let seen =
        bundle.run("ls /dev/kmsg; grep CapEff /proc/self/status; mount -t tmpfs none /tmp && echo mounted");
    let all = format!("{:016x}", bundle.node.capabilities);
    assert!(seen.starts_with("/dev/kmsg\n") && seen.ends_with("mounted") && seen.contains(&all), "{seen}");
}

#[test]
fn containers_join_the_pid_namespace_of_the_sandboxs_init() {
    let mut pause = Bundle::new("pause");
    let program = pause.dir.join("pause");
    write_program(&program, "#!/bin/sh\nexec sleep 60\n");
    pause.namespaces.network = Some("/proc/self/ns/net".into());
    let spec = oci::sandbox_spec(&SandboxInput {
        id: &pause.id,
        sandbox_id: &pause.id,
        config: &pause.sandbox,
        rootfs: "rootfs",
        pause: program.to_str().unwrap(),
        libraries: &[],
        namespaces: &SandboxNamespaces::default(),
        selinux: None,
        node: &pause.node,
    });
    pause.start(&spec.unwrap());
    let mut bundle = Bundle::new("joined");
    bundle.namespaces.pid = Some(format!("/proc/{}/ns/pid", pause.pid()));
    bundle.context().namespace_options.as_mut().unwrap().pid = NamespaceMode::Pod.into();
    let seen = bundle
        .run("cat /proc/1/cmdline | grep -o sleep; grep -E 'NoNewPrivs|Seccomp:|CapBnd' /proc/1/status");
    assert_eq!(seen, "sleep\nCapBnd:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2");
}
