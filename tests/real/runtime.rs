//! The private containerd, and the truth as its CRI reports it.

use std::future::Future;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use smolet::clock::SystemClock;
use smolet::cri::client::GrpcRuntime;
use smolet::cri::{Runtime as _, RuntimeResult};
use smolet::executor::Executor;
use smolet::model::{
    ContainerId, ContainerItem, ContainerState, ContainerStatus, PodUid, SandboxId, SandboxItem, SandboxState,
};

/// A runtime of this test run's own; taken down when dropped.
pub struct Runtime {
    dir: PathBuf,
    /// As `--cgroup-root` wants it.
    pub cgroup_root: String,
    executor: Rc<Executor>,
    /// The calls themselves, to be driven by [`Self::drive`].
    pub cri: GrpcRuntime,
}

/// What the tests run on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Containerd,
    /// That of the binary under test.
    Embedded,
    /// The one that `CRIO` names.
    CriO,
}

impl Kind {
    /// That of `SMOLET_TEST_RUNTIME`, by default containerd.
    pub fn chosen() -> Self {
        match std::env::var("SMOLET_TEST_RUNTIME").as_deref() {
            Err(_) | Ok("containerd") => Self::Containerd,
            Ok("embedded") => Self::Embedded,
            Ok("crio") => Self::CriO,
            Ok(other) => panic!("SMOLET_TEST_RUNTIME={other}: write containerd, embedded or crio"),
        }
    }
}

pub fn is_embedded() -> bool {
    Kind::chosen() == Kind::Embedded
}

/// The name of a container's cgroup, below its pod's.
#[allow(dead_code, reason = "not the benchmark's")]
pub fn cgroup_of(id: &str) -> String {
    if Kind::chosen() == Kind::CriO { format!("crio-{id}") } else { id.to_owned() }
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/env/runtime.sh")
}

impl Runtime {
    /// In a directory of that name; whoever runs side by side has names of their own.
    pub fn up(name: &str) -> Self {
        Self::up_as(name, Kind::chosen())
    }

    /// The same, on that runtime.
    pub fn up_as(name: &str, kind: Kind) -> Self {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let variables = {
            let up = match kind {
                Kind::Containerd => "up",
                Kind::Embedded => "up-embedded",
                Kind::CriO => "up-crio",
            };
            run(&dir, up);
            run(&dir, "env")
        };
        let value = |name: &str| {
            let line = variables.lines().find_map(|line| line.strip_prefix(&format!("{name}=")));
            line.unwrap_or_else(|| panic!("runtime.sh env has no {name}: {variables}")).to_owned()
        };
        let executor = Rc::new(Executor::new());
        let cri = GrpcRuntime::new(Path::new(&value("SOCKET")), &executor, Rc::new(SystemClock));
        Self { cgroup_root: value("CGROUP_ROOT"), dir, executor, cri }
    }

    /// Where agents may keep their state: removed with the runtime, mounts included.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn endpoint(&self) -> String {
        format!("unix://{}", self.cri.socket().display())
    }

    /// The process of containerd or CRI-O, or of the agent with the embedded runtime.
    pub fn pid(&self) -> u32 {
        let pid = std::fs::read_to_string(self.dir.join("containerd.pid")).expect("the runtime runs");
        pid.trim().parse().expect("a PID")
    }

    /// The runtime's own processes: the one above, and its shims, conmons or monitors.
    pub fn processes(&self) -> Vec<u32> {
        let (socket, dir) = (self.cri.socket().display().to_string(), self.dir.display().to_string());
        let is_ours = |pid: u32| {
            let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let mut words = line.split('\0');
            let program = words.next().unwrap_or_default().to_owned();
            program.contains("containerd-shim") && words.any(|word| word == socket)
                || (line.contains("\0monitor\0") || program.ends_with("/conmon")) && line.contains(&dir)
        };
        let all = std::fs::read_dir("/proc").expect("/proc").flatten();
        let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        pids.filter(|pid| is_ours(*pid)).chain([self.pid()]).collect()
    }

    /// Stand-ins for the images of examples/gateway.
    pub fn import_gateway_images(&self) {
        run(&self.dir, "gateway");
    }

    /// SIGKILL for containerd; pods run on.
    pub fn kill(&self) {
        run(&self.dir, "kill");
    }

    pub fn start(&self) {
        run(&self.dir, "start");
        self.answers();
    }

    /// What containerd, or the agent with the embedded runtime, says.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.dir.join("containerd.log")).unwrap_or_default())
            .into_owned()
    }

    /// What `ctr` says in the CRI's namespace.
    pub fn ctr(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(script());
        let output =
            command.arg("ctr").arg(&self.dir).args(arguments).output().expect("runtime.sh can be run");
        assert!(output.status.success(), "ctr {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The image of that name.
    pub fn image(&self, name: &str) -> Option<smolet::cri::Image> {
        self.block(self.cri.image_status(name))
    }

    /// As at the beginning, whatever a test that failed has left it in.
    pub fn recover(&self) {
        self.kill();
        self.start();
        self.answers();
    }

    /// Waits for the CRI: after a start the other services answer before it does.
    pub fn answers(&self) {
        // containerd says its version before it does anything else.
        let lists = || self.drive(self.cri.list_pod_sandboxes(None, &mut |_| {})).ok();
        wait_for("the CRI answers", 120, lists);
    }

    /// Runs to the end of `work`, and the connection's own tasks meanwhile.
    pub fn drive<T>(&self, work: impl Future<Output = T>) -> T {
        async_io::block_on(self.executor.run(work))
    }

    /// SIGSTOP for containerd: it takes connections and does not answer; or SIGCONT.
    pub fn freeze(&self, frozen: bool) {
        let pid = Pid::from_raw(self.pid().try_into().expect("a PID")).expect("a PID");
        kill_process(pid, if frozen { Signal::STOP } else { Signal::CONT }).expect("our own containerd");
    }

    fn block<T>(&self, call: impl Future<Output = RuntimeResult<T>>) -> T {
        self.drive(call).unwrap_or_else(|error| panic!("CRI: {error}"))
    }

    /// All sandboxes, newest first.
    pub fn sandboxes(&self) -> Vec<SandboxItem> {
        let mut all = Vec::new();
        self.block(self.cri.list_pod_sandboxes(None, &mut |item| all.push(item)));
        all.sort_by_key(|item| std::cmp::Reverse(item.created_at));
        all
    }

    /// The sandboxes of the pod of that name, newest first.
    pub fn sandboxes_of(&self, pod: &str) -> Vec<SandboxItem> {
        let mut of = self.sandboxes();
        of.retain(|sandbox| &*sandbox.pod.name == pod);
        of
    }

    /// The one ready sandbox of that pod.
    pub fn ready_sandbox(&self, pod: &str) -> SandboxItem {
        let mut ready = self.sandboxes_of(pod);
        ready.retain(|sandbox| sandbox.state == SandboxState::Ready);
        assert_eq!(ready.len(), 1, "pod {pod} has one ready sandbox: {ready:?}");
        ready.remove(0)
    }

    /// The address of a sandbox.
    pub fn ip(&self, sandbox: &SandboxId) -> String {
        let status = self.block(self.cri.pod_sandbox_status(sandbox));
        status.network.expect("the runtime reports a network").ip.to_string()
    }

    /// All containers, newest first.
    pub fn containers(&self) -> Vec<ContainerItem> {
        let mut all = Vec::new();
        self.block(self.cri.list_containers(None, &mut |item| all.push(item)));
        all.sort_by_key(|item| std::cmp::Reverse(item.created_at));
        all
    }

    /// The containers of the pod of that name, newest first.
    pub fn containers_of(&self, pod: &str) -> Vec<ContainerItem> {
        let mut of = self.containers();
        of.retain(|container| container.pod.as_ref().is_some_and(|key| &*key.name == pod));
        of
    }

    /// The one running container of that name.
    pub fn running_container(&self, pod: &str, name: &str) -> ContainerItem {
        let mut running = self.containers_of(pod);
        running.retain(|c| &*c.name == name && c.state == ContainerState::Running);
        assert_eq!(running.len(), 1, "container {name} of pod {pod} runs once: {running:?}");
        running.remove(0)
    }

    pub fn container_status(&self, id: &ContainerId) -> ContainerStatus {
        self.block(self.cri.container_status(id))
    }

    pub fn stop_sandbox(&self, id: &SandboxId) {
        self.block(self.cri.stop_pod_sandbox(&PodUid::from(""), id));
    }

    pub fn remove_sandbox(&self, id: &SandboxId) {
        self.block(self.cri.remove_pod_sandbox(id));
    }

    /// Stops and removes a container behind the agent's back.
    pub fn remove_container(&self, id: &ContainerId) {
        self.block(async {
            self.cri.stop_container(&PodUid::from(""), id, smolet::model::Seconds(0)).await?;
            self.cri.remove_container(id).await
        });
    }

    /// A pod sandbox that no smolet made, as another program on the same runtime would.
    pub fn run_foreign_sandbox(&self, name: &str) -> SandboxId {
        use smolet::proto::runtime::v1::{LinuxPodSandboxConfig, PodSandboxConfig, PodSandboxMetadata};
        let config = PodSandboxConfig {
            metadata: Some(PodSandboxMetadata {
                name: name.to_owned(),
                uid: format!("{name}-uid"),
                namespace: "default".to_owned(),
                ..Default::default()
            }),
            linux: Some(LinuxPodSandboxConfig {
                cgroup_parent: self.cgroup_root.clone(),
                ..Default::default()
            }),
            ..Default::default()
        };
        self.block(self.cri.run_pod_sandbox(&config, ""))
    }

    /// Ends every pod there is, whoever made it.
    pub fn remove_all_pods(&self) {
        for sandbox in self.sandboxes() {
            self.block(async {
                self.cri.stop_pod_sandbox(&PodUid::from(""), &sandbox.id).await?;
                self.cri.remove_pod_sandbox(&sandbox.id).await
            });
        }
    }

    /// Every test ends the pods it made.
    pub fn assert_empty(&self) {
        let (sandboxes, containers) = (self.sandboxes(), self.containers());
        assert!(sandboxes.is_empty(), "sandboxes are left: {sandboxes:?}");
        assert!(containers.is_empty(), "containers are left: {containers:?}");
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        run(&self.dir, "down");
    }
}

/// Runs runtime.sh; its words go to ours when it fails.
fn run(dir: &Path, command: &str) -> String {
    let default = || env!("CARGO_BIN_EXE_smolet").into();
    let output = Command::new(script())
        .env("SMOLET", std::env::var_os("SMOLET_BIN").unwrap_or_else(default))
        .arg(command)
        .arg(dir)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .expect("runtime.sh can be run");
    assert!(output.status.success(), "runtime.sh {command} failed: {}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Held by a test that needs what the machine has once, as a port of the node: tests on the other runtime run beside it.
pub fn alone(what: &str) -> std::fs::File {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{what}.lock"));
    let file = std::fs::File::create(path).expect("a lock file");
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).expect("locked");
    file
}

/// Looks every 20 ms until there is something, at most `seconds`.
pub fn wait_for<T>(what: &str, seconds: u64, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(seconds);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < end, "not within {seconds} s: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The answer to a GET, with its head. A forwarded port takes connections before the server behind it does, and closes them.
pub fn http_get(address: &str, path: &str) -> String {
    wait_for(&format!("{address} answers"), 60, || {
        let mut stream = TcpStream::connect(address).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(20))).ok()?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        (!answer.is_empty()).then_some(answer)
    })
}
