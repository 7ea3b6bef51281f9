//! The program itself, as a process of the target (under an emulator where that is another one) on the fake runtime:
//! its commands, `run --once`, and a life from start to SIGTERM.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::agent::{Home, PATIENCE};
use crate::common::fake::Fake;
use crate::common::runner;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
use rustix::process::{Pid, Signal, kill_process};

/// 2040-01-01, which a time of 32 bits cannot hold.
const AFTER_2038: i64 = 2_208_988_800;

/// One agent's directory beside its runtime.
pub struct Node {
    pub fake: Fake,
    pub home: Home,
}

impl Node {
    /// A manifest of two containers, last written in 2040.
    fn new() -> Self {
        let node = Self { fake: Fake::start_on_real_time(), home: Home::before_an_agent() };
        node.fake.add_image("busybox:1");
        let file = node.home.manifest("web");
        std::fs::write(
            &file,
            "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  volumes: [{name: v, emptyDir: {}}]\n  containers:\n  \
             - {name: app, image: 'busybox:1', volumeMounts: [{name: v, mountPath: /v}]}\n  \
             - {name: side, image: 'busybox:1', resources: {limits: {memory: 5Gi}}}\n",
        )
        .unwrap();
        let at = Timespec { tv_sec: AFTER_2038, tv_nsec: 0 };
        let times = Timestamps { last_access: at, last_modification: at };
        utimensat(CWD, &file, &times, AtFlags::empty()).unwrap();
        node
    }

    fn path(&self, name: &str) -> String {
        self.home.path(name).display().to_string()
    }

    fn run(&self) -> Command {
        let mut command = runner::smolet();
        command
            .args(self.home.words(&self.fake))
            .args(["--config", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/env/calm.yaml")])
            .stdin(Stdio::null());
        command
    }

    pub fn ask(&self, words: &[&str]) -> Output {
        runner::smolet().args(words).args(["--socket", &self.path("sock")]).output().unwrap()
    }

    fn both_run(&self) {
        self.fake.wait_for("both containers", PATIENCE, |state| state.running().len() == 2);
    }
}

/// An agent's process; does not outlive the test.
pub struct Process(Child);

impl Process {
    pub fn start(command: &mut Command) -> Self {
        Self(command.stderr(Stdio::null()).spawn().expect("the agent starts"))
    }

    /// SIGTERM; true when it ended well.
    pub fn stop(&mut self) -> bool {
        kill_process(Pid::from_child(&self.0), Signal::TERM).expect("our own child can be signalled");
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if let Some(status) = self.0.try_wait().expect("our own child") {
                return status.success();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Ended already, as a rule.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn text(output: &Output) -> (bool, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn it_shows_its_version_and_judges_manifests() {
    let version = text(&runner::smolet().arg("version").output().unwrap());
    assert_eq!(version, (true, format!("smolet {}\n", env!("CARGO_PKG_VERSION")), String::new()));

    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/manifests");
    let (good, said, errors) = text(&runner::smolet().arg("check").arg(&demo).output().unwrap());
    assert!(good && errors.is_empty(), "{said}{errors}");
    let (good, said, _) = text(&runner::smolet().arg("check").arg("/proc/self/status").output().unwrap());
    assert!(!good, "{said}");
}

#[test]
fn the_process_is_given_what_the_kubelets_flags_say() {
    let node = Node::new();
    let mut agent = Process::start(node.run().args(["--oom-score-adj=500", "--max-open-files", "512"]));
    let of_process = |file: &str| {
        std::fs::read_to_string(format!("/proc/{}/{file}", Pid::from_child(&agent.0).as_raw_nonzero()))
            .unwrap()
    };
    // Both are set before the runtime is asked for anything.
    node.both_run();
    assert_eq!(of_process("oom_score_adj").trim(), "500");
    let limits = of_process("limits");
    let open_files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(open_files.split_whitespace().nth(3), Some("512"), "{open_files}");
    assert!(agent.stop());
    let refused = text(&node.run().arg("--max-pods=many").output().unwrap());
    assert!(!refused.0 && refused.2.contains("--max-pods: \"many\": must be an integer"), "{}", refused.2);
    let unknown = text(&node.run().arg("--no-such-flag=1").output().unwrap());
    assert!(!unknown.0 && unknown.2.contains("unexpected argument '--no-such-flag'"), "{}", unknown.2);
}

/// Without `CAP_SYS_PTRACE` the kernel shows one root process what is another's only where that is dumpable.
#[test]
fn the_agents_memory_is_not_dumpable() {
    let without = |command: &Command| {
        let mut all = Command::new("setpriv");
        all.args(["--bounding-set", "-sys_ptrace"]).arg(command.get_program()).args(command.get_args());
        all.stdin(Stdio::null());
        all
    };
    let reads = |process: &Process| {
        let mut readlink = Command::new("readlink");
        readlink.args(["-v", &format!("/proc/{}/exe", Pid::from_child(&process.0).as_raw_nonzero())]);
        text(&without(&readlink).output().expect("setpriv (util-linux) is there"))
    };
    let other = Process::start(&mut without(Command::new("sleep").arg("600")));
    let node = Node::new();
    let mut agent = Process::start(&mut without(&node.run()));
    node.both_run();
    let (well, _, errors) = reads(&other);
    assert!(well, "any other process is read: {errors}");
    let (well, _, errors) = reads(&agent);
    assert!(!well && errors.contains("Permission denied"), "{errors}");
    assert!(agent.stop());
}

/// Whether the program under test, which need not be built as the tests are, has TLS.
fn has_tls() -> bool {
    cfg!(feature = "tls") && !runner::is_plain()
}

/// As k3s' installer names its program and the links to it.
#[test]
fn called_as_k3s_it_is_the_agent_and_refuses_the_rest() {
    let home = Home::before_an_agent();
    let program: std::ffi::OsString =
        std::env::var_os("SMOLET_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_smolet").into());
    std::fs::write(home.path("config.yaml"), "").unwrap();
    let said = |name: &str, words: &[&str]| {
        let link = home.path(name);
        std::os::unix::fs::symlink(&program, &link).unwrap();
        let mut command = runner::command(&link);
        command.args(words).env("K3S_CONFIG_FILE", home.path("config.yaml")).env_remove("K3S_URL");
        let output = command.output();
        std::fs::remove_file(link).unwrap();
        let output = output.unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let agent = if has_tls() {
        "--server: is missing; give it, or K3S_URL"
    } else {
        "agent: needs TLS, and this program was built without it"
    };
    for (name, words, wanted) in [
        ("k3s", &["server", "--disable", "traefik"][..], "k3s server: smolet is a node agent"),
        ("k3s", &["kubectl", "get", "nodes"], "k3s kubectl: not included"),
        ("kubectl", &["get", "nodes"], "kubectl: not included"),
        ("crictl", &["ps"], "crictl: not included"),
        ("ctr", &["version"], "ctr: not included"),
        ("k3s", &["agent", "--token", "x"], agent),
    ] {
        let (code, text) = said(name, words);
        assert!(code == Some(1) && text.contains(wanted), "{name} {words:?}: {code:?} {text}");
    }
}

/// What is found depends on the machine; of the runtime, which is a fake, it is known.
#[test]
fn doctor_judges_the_machine_without_an_agent() {
    let node = Node::new();
    node.fake.add_image("registry.k8s.io/pause:3.10");
    let doctor = |words: &[&str]| {
        let endpoint = format!("unix://{}", node.fake.socket().display());
        let arguments = ["doctor", "--root-dir", &node.path("root"), "--runtime-endpoint", &endpoint];
        text(&runner::smolet().args(arguments).args(words).output().unwrap())
    };
    let (good, said, errors) = doctor(&["-o", "json"]);
    let found: serde_json::Value = serde_json::from_str(&said).unwrap_or_else(|_| panic!("{said}{errors}"));
    let findings = found["findings"].as_array().unwrap();
    let level = |check: &str| findings.iter().find(|one| one["check"] == check).map(|one| &one["level"]);
    for check in ["runtime", "other agents", "pause image"] {
        assert_eq!(level(check), Some(&"ok".into()), "{check}: {said}");
    }
    let others = ["cni", "disk of state", "disk of images", "clock", "swap", "inotify"];
    for check in ["memory cgroup", "cgroups", "kernel"].into_iter().chain(others) {
        assert!(level(check).is_some(), "{check}: {said}");
    }
    assert_eq!(good, findings.iter().all(|one| one["level"] != "problem"), "{said}");
    assert!(!node.home.path("root").exists(), "it changes nothing");

    let (good, said, _) = doctor(&["--status-store-bytes", "1"]);
    let line = said.lines().find(|line| line.starts_with("problem   configuration ")).unwrap_or_default();
    assert!(!good && line.contains("--status-store-bytes: 1"), "{said}");
    let wanted = if has_tls() { "--server: needs --token-file" } else { "--server: this build has no TLS" };
    let (good, said, _) = doctor(&["--server", "https://127.0.0.1:1"]);
    let line = said.lines().find(|line| line.starts_with("problem   configuration ")).unwrap_or_default();
    assert!(!good && line.contains(wanted), "{said}");
    node.fake.refuse_connections();
    let (good, said, _) = doctor(&[]);
    let line = said.lines().find(|line| line.starts_with("problem   runtime ")).unwrap_or_default();
    assert!(!good && line.contains("nobody listens on the runtime socket"), "{said}");
}

#[test]
fn once_brings_a_pod_up_and_ends() {
    let node = Node::new();
    let (all_well, said, log) = text(&node.run().arg("--once").output().unwrap());
    assert!(all_well && said.contains("default/web-gw: Running"), "{said}{log}");
    node.both_run();
    // 5 GiB are more than a 32-bit size holds.
    let limits: Vec<i64> = (node.fake.state().containers.values())
        .filter_map(|container| container.config.linux.as_ref()?.resources.as_ref())
        .map(|resources| resources.memory_limit_in_bytes)
        .collect();
    assert!(limits.contains(&(5 * 1024 * 1024 * 1024)), "{limits:?}");
}

#[test]
fn it_answers_its_socket_and_leaves_the_containers_when_it_is_ended() {
    let node = Node::new();
    let mut agent = Process::start(&mut node.run());
    node.both_run();
    let start = Instant::now();
    let table = loop {
        let (answered, said, why) = text(&node.ask(&["pods"]));
        if answered && said.contains("2/2") {
            break said;
        }
        assert!(start.elapsed() < PATIENCE, "{said}{why}");
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(table.contains("web"), "{table}");
    let (answered, said, why) = text(&node.ask(&["describe", "web"]));
    assert!(answered && said.contains("busybox:1"), "{said}{why}");
    assert!(agent.stop(), "SIGTERM ends the agent with exit code 0");
    node.both_run();
}

/// What the supervisor is told next.
fn told(socket: &UnixDatagram) -> String {
    let mut bytes = [0; 1024];
    let received = loop {
        match socket.recv(&mut bytes) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            received => break received,
        }
    };
    let length = received.expect("the supervisor is told in time");
    String::from_utf8_lossy(&bytes[..length]).into_owned()
}

#[test]
fn a_supervisor_is_told_that_it_is_ready_that_it_lives_and_that_it_ends() {
    let node = Node::new();
    let supervisor = UnixDatagram::bind(node.path("notify")).unwrap();
    supervisor.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut command = node.run();
    command
        .env("NOTIFY_SOCKET", node.path("notify"))
        .env("WATCHDOG_USEC", "400000")
        .env_remove("WATCHDOG_PID");
    let start = Instant::now();
    let mut agent = Process::start(&mut command);
    assert_eq!(told(&supervisor), "READY=1");
    assert!(UnixStream::connect(node.path("sock")).is_ok(), "it listens when it says that it is ready");
    let mut signs = 0;
    while signs < 10 {
        match told(&supervisor).as_str() {
            "WATCHDOG=1" => signs += 1,
            other => assert!(other.starts_with("STATUS="), "{other}"),
        }
    }
    assert!(start.elapsed() >= Duration::from_millis(9 * 200), "a sign each half of the time");
    assert!(agent.stop());
    // On a busy machine the runtime may be found, and told of, after the last of those signs.
    let is_of_life = |told: &String| told == "WATCHDOG=1" || told.starts_with("STATUS=");
    let last = std::iter::repeat_with(|| told(&supervisor)).find(|told| !is_of_life(told));
    assert_eq!(last.as_deref(), Some("STOPPING=1"));
}
