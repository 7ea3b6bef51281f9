//! A node within this machine: a whole agent that runs its pods itself, in network, mount, PID, IPC and host name namespaces that no
//! other node shares. They last as long as their first process, which waits for the end of its standard input: when the test ends,
//! however it ends, every process, mount and link of the node ends with it.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::common::TempDir;
use crate::common::namespace::ip;

/// How long what must happen may take on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// How often a test looks at what it waits for.
const LOOK: Duration = Duration::from_millis(10);
/// The bridge between the nodes, in the test's own network namespace.
pub const LAN: &str = "lan";

/// The first process of a node. Its arguments are the node's name and directory. Each boot has an ID of its own.
const INIT: &str = r#"
set -e
hostname "$1"
for dir in etc var/lib var/log; do mount --bind "$2/$dir" "/$dir"; done
mount -t tmpfs run /run
cat /proc/sys/kernel/random/uuid >/run/boot-id
mount --bind /run/boot-id /proc/sys/kernel/random/boot_id
ip link set lo up
echo ready
# A shell that waits for a child reaps those that were left to it, too.
cat
exit 0
"#;

/// A node that is switched on, and its agent, if that runs.
pub struct Node {
    pub name: &'static str,
    address: Ipv4Addr,
    router: Ipv4Addr,
    dir: TempDir,
    /// Its pods' cgroup: `runtime.sh sweep` knows it by the directory's name.
    cgroup: String,
    holder: Child,
    init: Pid,
    agent: Option<Agent>,
}

/// Its process, and the `nsenter` that waits for it.
struct Agent {
    pid: Pid,
    waits: Child,
}

impl Node {
    /// Switches it on, with this address, and with an archive of images where k3s looks for them.
    pub fn start(name: &'static str, address: Ipv4Addr, router: Ipv4Addr, images: &Path) -> Self {
        let own_dir = TempDir::in_memory();
        let (dir, cgroup) = (own_dir.path(), format!("{}", own_dir.path().file_name().unwrap().display()));
        for folder in ["var/log", "var/lib/rancher/k3s/agent/images"] {
            fs::create_dir_all(dir.join(folder)).unwrap();
        }
        fs::copy(images, dir.join("var/lib/rancher/k3s/agent/images/test.tar")).unwrap();
        // The machine's, for the programs that CNI plugins call.
        done(Command::new("cp").args(["-a", "/etc"]).arg(dir.join("etc")));
        let resolver = dir.join("etc/resolv.conf");
        let _ = fs::remove_file(&resolver);
        fs::write(resolver, "nameserver 192.0.2.53\n").unwrap();
        let (holder, init) = boot(name, dir);
        let node = Self { name, address, router, dir: own_dir, cgroup, holder, init, agent: None };
        node.plug_in();
        node
    }

    /// Its power is cut and comes again. It has no network and no agent then.
    pub fn reboot(&mut self) {
        self.switch_off();
        self.remove_cgroups();
        (self.holder, self.init) = boot(self.name, self.dir.path());
    }

    /// The cable is in.
    pub fn plug_in(&self) {
        let Self { name, address, router, init, .. } = self;
        ip(&format!("link add to-{name} type veth peer name eth0 netns {}", init.as_raw_nonzero()));
        ip(&format!("link set to-{name} master {LAN} up"));
        self.run(&format!("ip address add {address}/24 dev eth0"));
        self.run("ip link set eth0 up");
        self.run(&format!("ip route add default via {router}"));
    }

    /// A command that runs within it.
    fn within(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--target={}", self.init.as_raw_nonzero()));
        command.args(["--net", "--mount", "--pid", "--ipc", "--uts", "--"]);
        command
    }

    /// What a command prints there.
    pub fn run(&self, words: &str) -> String {
        done(self.within().args(words.split(' ')))
    }

    /// What smolet's command prints there, for the agent.
    pub fn smolet(&self, words: &[&str]) -> String {
        done(self.within().arg(program()).args(words))
    }

    /// The same, if the command succeeds.
    pub fn shown(&self, words: &[&str]) -> Option<String> {
        let output = self.within().arg(program()).args(words).stdin(Stdio::null()).output();
        let output = output.expect("nsenter of util-linux is there");
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
    }

    /// What the agent has in memory, and the proportional set size of its monitors beside it. That of the agent would count its
    /// program's pages by halves here, where two nodes have them.
    pub fn agent_kib(&self) -> u64 {
        let of = |pid: Pid, file: &str| fs::read_to_string(format!("/proc/{}/{file}", pid.as_raw_nonzero()));
        let namespace = |pid: Pid| fs::read_link(format!("/proc/{}/ns/pid", pid.as_raw_nonzero())).ok();
        let kib = |pid: Pid, field: &str| -> u64 {
            let text = of(pid, "smaps_rollup").unwrap_or_default();
            let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_suffix("kB"));
            line.map_or(0, |kib| kib.trim().parse().unwrap())
        };
        let is_monitor = |pid: &Pid| {
            let command = of(*pid, "cmdline").unwrap_or_default();
            command.split('\0').nth(1) == Some("monitor") && namespace(*pid) == namespace(self.init)
        };
        let monitors: Vec<u64> = processes().filter(is_monitor).map(|pid| kib(pid, "Pss:")).collect();
        assert!(!monitors.is_empty());
        kib(self.agent.as_ref().expect("it runs").pid, "Rss:") + monitors.iter().sum::<u64>()
    }

    /// Joins it to the cluster of that server, or starts its agent again.
    pub fn start_agent(&mut self, server: &str, token: &str) {
        assert!(self.agent.is_none(), "node {}: one agent at a time", self.name);
        let log = File::options().create(true).append(true).open(self.log_file()).unwrap();
        let calm = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/env/calm.yaml");
        let mut waits = self
            .within()
            .arg(program())
            .args(["agent", "--server", server, "--token", token, "--node-name", self.name])
            .args(["--container-runtime-endpoint", "embedded"])
            .arg(format!("--kubelet-arg=config={calm}"))
            .arg(format!("--kubelet-arg=cgroup-root=/{}", self.cgroup))
            // The table of connections is the machine's.
            .arg("--kube-proxy-arg=conntrack-max-per-core=0")
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("nsenter of util-linux is there");
        let begun = Instant::now();
        let pid = loop {
            if let Some(pid) = child_of(waits.id()) {
                break pid;
            }
            let ended = waits.try_wait().unwrap();
            assert!(
                ended.is_none() && begun.elapsed() < PATIENCE,
                "{}: {ended:?}\n{}",
                self.name,
                self.log()
            );
            std::thread::sleep(LOOK);
        };
        self.agent = Some(Agent { pid, waits });
    }

    /// SIGKILL for the agent alone.
    pub fn kill_agent(&mut self) {
        let mut agent = self.agent.take().expect("an agent runs");
        kill_process(agent.pid, Signal::KILL).unwrap();
        agent.waits.wait().unwrap();
    }

    /// The agent has ended by itself.
    pub fn has_failed(&mut self) -> bool {
        self.agent.as_mut().is_some_and(|agent| agent.waits.try_wait().unwrap().is_some())
    }

    /// What its agents have logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    fn log_file(&self) -> PathBuf {
        self.dir.path().join("agent.log")
    }

    /// The process of a pod's container.
    pub fn process_of(&self, pod_uid: &str) -> Option<Pid> {
        let (of_node, of_pod) = (format!("/{}/", self.cgroup), format!("pod{pod_uid}/"));
        processes().find(|pid| {
            let cgroups = fs::read_to_string(format!("/proc/{}/cgroup", pid.as_raw_nonzero()));
            cgroups.is_ok_and(|cgroups| cgroups.contains(&of_node) && cgroups.contains(&of_pod))
        })
    }

    /// As when its power is cut.
    fn switch_off(&mut self) {
        // The first process ends, the kernel kills all others, and when they have ended this one does.
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
        // With its other end it goes in the kernel's own time: another node may have its name before that.
        let _ = Command::new("ip").args(["link", "delete", &format!("to-{}", self.name)]).output();
        if let Some(mut agent) = self.agent.take() {
            let _ = agent.waits.wait();
        }
    }

    /// They end with the machine.
    fn remove_cgroups(&self) {
        let begun = Instant::now();
        loop {
            let left = self.cgroups();
            left.iter().for_each(|dir| drop(fs::remove_dir(dir)));
            if left.is_empty() {
                break;
            }
            if begun.elapsed() > PATIENCE {
                assert!(std::thread::panicking(), "left of node {}: {left:#?}", self.name);
                eprintln!("left of node {}: {left:#?}", self.name);
                break;
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Its cgroups, of all hierarchies, the innermost first.
    fn cgroups(&self) -> Vec<PathBuf> {
        fn below(dir: &Path, found: &mut Vec<PathBuf>) {
            for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
                if entry.file_type().is_ok_and(|of| of.is_dir()) {
                    below(&entry.path(), found);
                }
            }
            found.push(dir.to_owned());
        }
        let root = Path::new("/sys/fs/cgroup");
        let hierarchies = fs::read_dir(root).into_iter().flatten().flatten().map(|entry| entry.path());
        let own = hierarchies.chain([root.to_owned()]).map(|hierarchy| hierarchy.join(&self.cgroup));
        let mut found = Vec::new();
        for dir in own.filter(|dir| dir.exists()) {
            below(&dir, &mut found);
        }
        found
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.switch_off();
        self.remove_cgroups();
    }
}

/// Its namespaces, and their first process.
fn boot(name: &str, dir: &Path) -> (Child, Pid) {
    let mut holder = Command::new("unshare")
        .args(["--net", "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "--mount-proc"])
        .args(["sh", "-c", INIT, "init", name])
        .arg(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("unshare of util-linux is there");
    let mut line = String::new();
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n", "node {name} is not up: {:?}", holder.try_wait());
    let init = child_of(holder.id()).expect("unshare waits for it");
    (holder, init)
}

/// The binary under test is the one that is shipped: that of a test build is ten times as large.
pub fn is_release() -> bool {
    fs::metadata(program()).unwrap().len() < 16 << 20
}

/// The binary under test: the release build, or this build's.
fn program() -> PathBuf {
    let named = std::env::var_os("SMOLET_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_smolet").into());
    fs::canonicalize(named).expect("SMOLET_BIN names a binary")
}

/// What the command prints; the test fails when it does.
fn done(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().expect("it can be started");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}: {errors}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

fn processes() -> impl Iterator<Item = Pid> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
}

/// The only child of a process.
fn child_of(parent: u32) -> Option<Pid> {
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
    Pid::from_raw(children.trim().parse().ok()?)
}

/// Waits until it holds, at most [`PATIENCE`]; `false` then.
pub fn waits_until(mut holds: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    while !holds() {
        if begun.elapsed() > PATIENCE {
            return false;
        }
        std::thread::sleep(LOOK);
    }
    true
}
