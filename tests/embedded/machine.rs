//! A machine for one test: directories, a bridge and addresses of its own, and the runtime in them. What is left at the end fails
//! the test, and is removed.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use smolet::blocking::Blocking;
use smolet::clock::{Clock, SharedClock, SystemClock};
use smolet::cri::RuntimeResult;
use smolet::executor::Executor;
use smolet::image_store::RootfsOptions;
use smolet::proto::runtime::v1 as cri;
use smolet::runtime::{Embedded, FoundImage, Images, Local, Settings, find_program};

use crate::common::write_program;

/// How long what must happen may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The OCI runtimes that are tested.
pub const OCI_RUNTIMES: [&str; 2] = ["runc", "crun"];

pub struct Machine {
    pub root: PathBuf,
    pub settings: Settings,
    pub executor: Rc<Executor>,
    pub number: u32,
    /// The boot's id, when it is not this machine's.
    boot: Box<str>,
}

impl Machine {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = std::process::id() % 50 * 5 + NEXT.fetch_add(1, Ordering::Relaxed);
        // Of one length: none is the begin of another one's, whose processes would be taken for its own.
        let root = std::env::temp_dir().join(format!("smolet-embedded-{}-{number:03}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        Self::at(root, number)
    }

    /// The same one, of a thread or process that does not remove it.
    pub fn beside(root: PathBuf, number: u32) -> std::mem::ManuallyDrop<Self> {
        std::mem::ManuallyDrop::new(Self::at(root, number))
    }

    /// The machine in that directory.
    pub fn at(root: PathBuf, number: u32) -> Self {
        std::fs::create_dir_all(root.join("net.d")).unwrap();
        let program =
            std::env::var_os("SMOLET_BIN").map_or_else(|| env!("CARGO_BIN_EXE_smolet").into(), PathBuf::from);
        let mut settings = Settings::of_machine(
            &root.join("state"),
            &root.join("run"),
            &program,
            Path::new("/sys/fs/cgroup"),
        );
        settings.cni_conf_dir = root.join("net.d");
        settings.is_cni_shared = false;
        settings.bridge = format!("smt{number}").into();
        settings.subnet = format!("10.{}.{}.0/24", 100 + number / 250, number % 250).into();
        Self { root, settings, executor: Rc::new(Executor::new()), number, boot: Box::default() }
    }

    /// One whose containers are run by that OCI runtime.
    pub fn with_oci_runtime(name: &str) -> Self {
        let mut machine = Self::new();
        machine.use_oci_runtime(name);
        machine
    }

    /// Its containers are run by that OCI runtime. crun refuses a hybrid tree of cgroup v1 and v2: it gets one of v1 alone to see.
    pub fn use_oci_runtime(&mut self, name: &str) {
        let path = match name {
            "crun" => {
                let path = self.root.join(name);
                let text = "#!/bin/sh\nexec unshare --mount --propagation private sh -c \
                            'umount /sys/fs/cgroup/unified 2>/dev/null; exec crun \"$@\"' crun \"$@\"\n";
                // A monitor of a process that was killed may run it just now.
                if !path.exists() {
                    write_program(&path, text);
                }
                path
            }
            _ => find_program(name).unwrap(),
        };
        self.settings.handlers.insert("".into(), path);
    }

    /// Runs the test's future, and the runtime's tasks beside it.
    pub fn run<T>(&self, test: impl Future<Output = T>) -> T {
        smol::block_on(self.executor.run(test))
    }

    /// Opens the runtime, as a start of the agent does.
    pub async fn open(&self) -> Embedded {
        let clock: SharedClock = Rc::new(BootClock(self.boot.clone()));
        let blocking = Rc::new(Blocking::on_threads(clock.clone(), &self.root));
        let images = Rc::new(Busybox { root: self.root.join("rootfs") });
        Box::pin(Embedded::open(self.settings.clone(), images, blocking, clock, self.executor.clone()))
            .await
            .unwrap()
    }

    /// Runs a command in the network, IPC and UTS namespaces of a sandbox.
    pub fn inside(&self, sandbox: &str, script: &str) -> String {
        let dir = self.settings.run_dir.join("sandboxes").join(sandbox);
        let mut command = Command::new("nsenter");
        for kind in ["net", "ipc", "uts"] {
            command.arg(format!("--{kind}={}", dir.join(kind).display()));
        }
        output(command.args(["sh", "-c", script]))
    }

    /// Ends everything that a reboot ends: processes, mounts, what is on the tmpfs, network namespaces.
    pub fn reboot(&mut self) {
        // A monitor that is killed first may have been replaced meanwhile.
        for _ in 0..100 {
            let left = self.processes();
            if left.is_empty() {
                break;
            }
            for pid in left {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        self.unmount();
        self.remove_cgroups();
        self.remove_rules();
        std::fs::remove_dir_all(&self.settings.run_dir).unwrap();
        self.boot = format!("boot of {}", self.number).into();
        self.executor = Rc::new(Executor::new());
    }

    /// Removes rules of the machine's bridge, as a reboot does; a plugin that finds no network namespace leaves them.
    pub fn remove_rules(&self) {
        let rules = output(Command::new("iptables").args(["-w", "-t", "nat", "-S"]));
        for rule in rules.lines().filter(|rule| self.is_of_bridge(rule)) {
            // A shell reads the quotes of the comments.
            let delete = format!("iptables -w -t nat {}", rule.replacen("-A", "-D", 1));
            let _ = Command::new("sh").args(["-c", &delete]).output();
        }
        for rule in rules.lines().filter(|rule| self.is_of_bridge(rule)) {
            if let Some(chain) = rule.rsplit(' ').next().filter(|chain| chain.starts_with("CNI-")) {
                let _ = Command::new("iptables").args(["-w", "-t", "nat", "-X", chain]).output();
            }
        }
    }

    /// A rule of the machine's bridge, or of that of a pod CIDR.
    fn is_of_bridge(&self, rule: &str) -> bool {
        ['\\', '-'].iter().any(|next| rule.contains(&format!("name: \\\"{}{next}", self.settings.bridge)))
    }

    fn bridges(&self) -> Vec<String> {
        let names = std::fs::read_dir("/sys/class/net").unwrap().flatten();
        let names = names.filter_map(|entry| entry.file_name().into_string().ok());
        let of_cidr = format!("{}-", self.settings.bridge);
        names.filter(|name| **name == *self.settings.bridge || name.starts_with(&of_cidr)).collect()
    }

    fn remove_cgroups(&self) {
        // The cgroups of pods are the agent's.
        for hierarchy in std::fs::read_dir("/sys/fs/cgroup").unwrap().flatten() {
            let cgroup = hierarchy.path().join(self.cgroup());
            for pod in std::fs::read_dir(&cgroup).into_iter().flatten().flatten() {
                for container in std::fs::read_dir(pod.path()).into_iter().flatten().flatten() {
                    let _ = std::fs::remove_dir(container.path());
                }
                let _ = std::fs::remove_dir(pod.path());
            }
            let _ = std::fs::remove_dir(cgroup);
        }
    }

    fn unmount(&self) {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        for line in mounts.lines().rev() {
            let point = line.split(' ').nth(4).unwrap();
            if Path::new(point).starts_with(&self.root) {
                let _ = Command::new("umount").args(["-l", point]).status();
            }
        }
    }

    /// Addresses that host-local holds.
    pub fn leases(&self) -> Vec<String> {
        let dir = self.settings.run_dir.join("cni").join(&*self.settings.bridge);
        let names = std::fs::read_dir(dir).into_iter().flatten().map(|entry| entry.unwrap().file_name());
        let names = names.map(|name| name.into_string().unwrap());
        names.filter(|name| name.parse::<std::net::IpAddr>().is_ok()).collect()
    }

    /// Nothing of any pod is left.
    pub fn assert_clean(&self) {
        assert_eq!(self.left(), Vec::<String>::new());
    }

    /// The same, after what is being ended has ended.
    pub fn assert_clean_soon(&self) {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE && !self.left().is_empty() {
            std::thread::sleep(Duration::from_millis(50));
        }
        self.assert_clean();
    }

    fn left(&self) -> Vec<String> {
        let root = self.root.display().to_string();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mut left: Vec<String> =
            mounts.lines().filter(|line| line.contains(&root)).map(|line| format!("mount {line}")).collect();
        left.extend(self.leases().into_iter().map(|lease| format!("lease {lease}")));
        for (dir, names) in [
            (&self.settings.root_dir, ["sandboxes", "containers"]),
            (&self.settings.run_dir, ["sandboxes", "containers"]),
            (&self.settings.run_dir, ["oci", "none"]),
            (&self.root, ["rootfs", "none"]),
        ] {
            for name in names {
                let entries = std::fs::read_dir(dir.join(name)).into_iter().flatten();
                left.extend(entries.map(|entry| entry.unwrap().path().display().to_string()));
            }
        }
        let rules = output(Command::new("iptables").args(["-w", "-t", "nat", "-S"]));
        left.extend(rules.lines().filter(|rule| self.is_of_bridge(rule)).map(str::to_owned));
        left.extend(self.processes().into_iter().map(|pid| format!("process {pid:?}")));
        let cgroup = format!("/sys/fs/cgroup/memory/{}", self.cgroup());
        // The cgroups of pods are the agent's.
        let inside = |dir: PathBuf| {
            let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
            entries.filter(|entry| entry.file_type().unwrap().is_dir()).map(|entry| entry.path())
        };
        for container in inside(cgroup.into()).flat_map(inside) {
            left.push(format!("cgroup {}", container.display()));
        }
        left
    }

    /// Processes that have the machine's directory among their arguments, or are in its cgroup.
    fn processes(&self) -> Vec<rustix::process::Pid> {
        let root = self.root.display().to_string();
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let name = entry.file_name().into_string().unwrap();
            let Some(pid) = name.parse().ok().and_then(rustix::process::Pid::from_raw) else { continue };
            // Of a process that is gone meanwhile nothing can be read.
            let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let cgroups = std::fs::read_to_string(entry.path().join("cgroup")).unwrap_or_default();
            let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            // Its parent was killed: the machine's first process reaps it in its own time.
            if stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z')) {
                continue;
            }
            if String::from_utf8_lossy(&command).contains(&root)
                || cgroups.contains(&format!("/{}/", self.cgroup()))
            {
                found.push(pid);
            }
        }
        found
    }

    /// The cgroup of its pods.
    pub fn cgroup(&self) -> String {
        format!("{}", self.root.file_name().unwrap().display())
    }

    /// The configuration of a pod's sandbox, in the machine's cgroup.
    pub fn pod(&self, name: &str) -> cri::PodSandboxConfig {
        let mut config = pod(name);
        config.linux.as_mut().unwrap().cgroup_parent = format!("/{}/pod{name}", self.cgroup());
        config.log_directory = self.root.join("logs").join(name).display().to_string();
        config
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        for process in self.processes() {
            let _ = rustix::process::kill_process(process, rustix::process::Signal::KILL);
        }
        let left = self.left();
        if !left.is_empty() && !std::thread::panicking() {
            eprintln!("left behind: {left:#?}");
        }
        self.unmount();
        for bridge in self.bridges() {
            let _ = Command::new("ip").args(["link", "delete", &bridge]).output();
        }
        self.remove_rules();
        self.remove_cgroups();
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

/// The machine's clock, with a boot of its own after the machine's reboot.
struct BootClock(Box<str>);

impl Clock for BootClock {
    fn now(&self) -> smolet::model::Now {
        SystemClock.now()
    }

    fn sleep_until(&self, at: smolet::model::Mono) -> smolet::clock::Sleep {
        SystemClock.sleep_until(at)
    }

    fn boot_id(&self) -> Box<str> {
        if self.0.is_empty() { SystemClock.boot_id() } else { self.0.clone() }
    }
}

/// One image, `busybox`, whose root file systems are directories with the machine's busybox.
struct Busybox {
    root: PathBuf,
}

impl Images for Busybox {
    fn find<'a>(&'a self, image: &'a str) -> Local<'a, RuntimeResult<Option<FoundImage>>> {
        let found = FoundImage {
            id: "sha256:busybox".into(),
            reference: "docker.io/library/busybox@sha256:1".into(),
            name: "docker.io/library/busybox:1".into(),
            config: br#"{"config": {"Env": ["PATH=/bin", "OF_IMAGE=yes"], "Cmd": ["sleep", "1000"], "WorkingDir": "/tmp"}}"#.to_vec(),
        };
        let with_volumes = FoundImage {
            config: br#"{"config": {"Env": ["PATH=/bin"], "Volumes": {"/data/": {}, "/none/below": {}, "/mounted": {}, "/etc": {}}}}"#
                .to_vec(),
            ..found.clone()
        };
        Box::pin(async move {
            Ok(match image {
                "busybox" => Some(found),
                "with-volumes" => Some(with_volumes),
                _ => None,
            })
        })
    }

    fn make_rootfs<'a>(
        &'a self,
        name: &'a str,
        _: &'a str,
        options: RootfsOptions,
    ) -> Local<'a, RuntimeResult<PathBuf>> {
        Box::pin(async move {
            let path = self.root.join(name);
            for dir in ["bin", "etc", "tmp", "proc", "dev", "sys"] {
                std::fs::create_dir_all(path.join(dir)).unwrap();
            }
            std::fs::write(
                path.join("etc/passwd"),
                "root:x:0:0:root:/root:/bin/sh\nweb:x:100:101::/:/bin/sh\n",
            )
            .unwrap();
            std::fs::write(path.join("etc/group"), "root:x:0:\nweb:x:101:\nextra:x:102:web\n").unwrap();
            std::fs::copy("/bin/busybox", path.join("bin/busybox")).unwrap();
            for applet in [
                "sh", "sleep", "echo", "cat", "hostname", "ps", "id", "env", "true", "false", "kill", "dd",
                "head", "yes", "df", "mount", "nc", "touch", "ls", "stat", "readlink", "grep",
            ] {
                std::os::unix::fs::symlink("busybox", path.join("bin").join(applet)).unwrap();
            }
            if let (Some(uids), Some(gids)) = (options.uids.first(), options.gids.first()) {
                let owner = format!("{}:{}", uids.host_id, gids.host_id);
                output(Command::new("chown").args(["-hR", &owner]).arg(&path));
            }
            Ok(path)
        })
    }

    /// There is no overlay; containers of these tests write to `/tmp`.
    fn written_dir(&self, name: &str) -> Option<PathBuf> {
        Some(self.root.join(name).join("tmp"))
    }

    fn remove_rootfs<'a>(&'a self, name: &'a str) -> Local<'a, RuntimeResult<()>> {
        let _ = std::fs::remove_dir_all(self.root.join(name));
        Box::pin(async { Ok(()) })
    }

    fn copy_out<'a>(
        &'a self,
        name: &'a str,
        directory: &'a str,
        to: &'a Path,
    ) -> Local<'a, RuntimeResult<()>> {
        let from = self.root.join(name).join(directory.trim_start_matches('/'));
        if from.exists() {
            output(Command::new("cp").arg("-a").arg(from.join(".")).arg(to));
        }
        Box::pin(async { Ok(()) })
    }

    fn rootfs_names(&self) -> Local<'_, RuntimeResult<Vec<String>>> {
        let entries = std::fs::read_dir(&self.root).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
        Box::pin(async { Ok(names) })
    }

    fn written<'a>(&'a self, _: &'a str) -> Local<'a, Option<(u64, u64)>> {
        Box::pin(async { Some((4096, 1)) })
    }
}

/// Processes that work for the machine and whose arguments are such.
pub fn processes_of(machine: &Machine, is_one: impl Fn(&[&str]) -> bool) -> Vec<rustix::process::Pid> {
    let root = machine.root.display().to_string();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
            .and_then(rustix::process::Pid::from_raw)
        else {
            continue;
        };
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).into_owned();
        // No other test's: the directory is the machine's own.
        if line.contains(&root) && is_one(&line.split('\0').collect::<Vec<_>>()) {
            found.push(pid);
        }
    }
    found
}

/// The configuration of a container that runs a script.
pub fn script(name: &str, script: &str) -> cri::ContainerConfig {
    let options = cri::NamespaceOption { pid: cri::NamespaceMode::Container.into(), ..Default::default() };
    cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata { name: name.into(), attempt: 0 }),
        image: Some(cri::ImageSpec { image: "busybox".into(), ..Default::default() }),
        command: vec!["/bin/sh".into(), "-c".into(), script.into()],
        log_path: format!("{name}.log"),
        labels: [("container".to_owned(), name.to_owned())].into(),
        linux: Some(cri::LinuxContainerConfig {
            security_context: Some(cri::LinuxContainerSecurityContext {
                namespace_options: Some(options),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

pub async fn create(
    runtime: &Embedded,
    sandbox: &str,
    config: cri::ContainerConfig,
) -> RuntimeResult<String> {
    let request = cri::CreateContainerRequest {
        pod_sandbox_id: sandbox.into(),
        config: Some(config),
        sandbox_config: None,
    };
    Ok(runtime.create_container_cri(request).await?.container_id)
}

pub async fn start(runtime: &Embedded, id: &str) -> RuntimeResult<()> {
    runtime.start_container_cri(cri::StartContainerRequest { container_id: id.into() }).await.map(drop)
}

/// Creates and starts a container.
pub async fn run_container(runtime: &Embedded, sandbox: &str, config: cri::ContainerConfig) -> String {
    let id = create(runtime, sandbox, config).await.unwrap();
    start(runtime, &id).await.unwrap();
    id
}

pub async fn container_of(runtime: &Embedded, id: &str) -> cri::ContainerStatus {
    let request = cri::ContainerStatusRequest { container_id: id.into(), verbose: false };
    runtime.container_status_cri(request).await.unwrap().status.unwrap()
}

/// Waits for the container's end.
pub async fn exited(runtime: &Embedded, id: &str) -> cri::ContainerStatus {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        let status = container_of(runtime, id).await;
        if status.state() == cri::ContainerState::ContainerExited {
            return status;
        }
        async_io::Timer::after(Duration::from_millis(20)).await;
    }
    panic!("container {id} does not end: {:?}", container_of(runtime, id).await);
}

/// Waits until it holds.
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < PATIENCE, "{what} does not happen");
        async_io::Timer::after(Duration::from_millis(20)).await;
    }
}

pub async fn exec(runtime: &Embedded, id: &str, script: &str) -> RuntimeResult<cri::ExecSyncResponse> {
    let request = cri::ExecSyncRequest {
        container_id: id.into(),
        cmd: vec!["/bin/sh".into(), "-c".into(), script.into()],
        timeout: 60,
    };
    runtime.exec_sync_cri(request).await
}

pub fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The configuration of a pod's sandbox.
pub fn pod(name: &str) -> cri::PodSandboxConfig {
    let metadata = cri::PodSandboxMetadata {
        name: name.into(),
        uid: format!("uid-{name}"),
        namespace: "default".into(),
        attempt: 0,
    };
    let options = cri::NamespaceOption { pid: cri::NamespaceMode::Container.into(), ..Default::default() };
    cri::PodSandboxConfig {
        metadata: Some(metadata),
        hostname: name.into(),
        labels: [("app".to_owned(), name.to_owned())].into(),
        linux: Some(cri::LinuxPodSandboxConfig {
            security_context: Some(cri::LinuxSandboxSecurityContext {
                namespace_options: Some(options),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// Runs a sandbox; its id.
pub async fn run_sandbox(runtime: &Embedded, config: cri::PodSandboxConfig) -> String {
    let request = cri::RunPodSandboxRequest { config: Some(config), runtime_handler: String::new() };
    runtime.run_pod_sandbox_cri(request).await.unwrap().pod_sandbox_id
}

pub async fn status_of(runtime: &Embedded, sandbox: &str) -> cri::PodSandboxStatus {
    let request = cri::PodSandboxStatusRequest { pod_sandbox_id: sandbox.into(), verbose: false };
    runtime.pod_sandbox_status_cri(request).await.unwrap().status.unwrap()
}

/// What CNI CHECK says of pods whose network is not as it was made.
pub async fn changed_networks(runtime: &Embedded) -> Vec<String> {
    let checked = runtime.check_networks_cri(cri::StatusRequest::default()).await.unwrap();
    checked.status.unwrap().conditions.into_iter().map(|condition| condition.message).collect()
}

pub async fn stop_sandbox(runtime: &Embedded, sandbox: &str) {
    let request = cri::StopPodSandboxRequest { pod_sandbox_id: sandbox.into() };
    runtime.stop_pod_sandbox_cri(request).await.unwrap();
}

pub async fn remove_sandbox(runtime: &Embedded, sandbox: &str) {
    let request = cri::RemovePodSandboxRequest { pod_sandbox_id: sandbox.into() };
    runtime.remove_pod_sandbox_cri(request).await.unwrap();
}

pub async fn list_sandboxes(runtime: &Embedded) -> Vec<cri::PodSandbox> {
    runtime.list_pod_sandbox_cri(cri::ListPodSandboxRequest::default()).await.unwrap().items
}
