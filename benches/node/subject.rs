//! A node agent under measurement: smolet, or a kubelet beside it. Both keep the pods of a manifest directory on the
//! same containerd, one after the other, each in a directory of its own.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use smolet::model::{ContainerState, SandboxItem, SandboxState, Wall};

use crate::finding;
use crate::kubelet::{self, Settings};
use crate::runtime::{Runtime, wait_for};

/// How long any step may take, in seconds: 110 pods start and end one after another on a slow machine.
pub const PATIENCE: u64 = 300;

/// Which agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The binary of `SMOLET_BIN`.
    Smolet(PathBuf),
    /// The same as the whole node: the agent that is the runtime of `tests/env/runtime.sh`.
    Embedded(PathBuf),
    /// A kubelet without an API server.
    Kubelet(PathBuf),
}

/// A running agent. Dropped: its process ends; its pods run on until the runtime goes.
pub struct Subject<'r> {
    runtime: &'r Runtime,
    kind: Kind,
    dir: PathBuf,
    /// None is ours where the runtime is the agent.
    child: Option<Child>,
    /// Of the machine, which a kubelet changes; smolet changes nothing.
    settings: Option<Settings>,
}

impl<'r> Subject<'r> {
    pub fn start(runtime: &'r Runtime, kind: Kind) -> Self {
        let dir = match kind {
            Kind::Smolet(_) => runtime.dir().join("agents/smolet"),
            Kind::Kubelet(_) => runtime.dir().join("agents/kubelet"),
            Kind::Embedded(_) => runtime.dir().to_owned(),
        };
        for part in ["manifests", "new", "out", "logs/pods", "logs/containers"] {
            fs::create_dir_all(dir.join(part)).expect("the agent's directories can be made");
        }
        let settings = matches!(kind, Kind::Kubelet(_)).then(|| Settings::kept("kubelet"));
        let command = match &kind {
            Kind::Smolet(binary) => Some(smolet(runtime, binary, &dir)),
            Kind::Kubelet(binary) => {
                Some(kubelet::command(&runtime.endpoint(), &runtime.cgroup_root, binary, &dir, "kubelet"))
            }
            Kind::Embedded(_) => None,
        };
        let child = command.map(|mut command| {
            let log = File::create(dir.join("agent.log")).expect("a log file");
            let second = log.try_clone().expect("a second handle");
            let child = command.stdin(Stdio::null()).stdout(second).stderr(log).spawn();
            child.unwrap_or_else(|error| panic!("{kind:?}: {error}"))
        });
        Self { runtime, kind, dir, child, settings }
    }

    pub fn runtime(&self) -> &Runtime {
        self.runtime
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().map_or_else(|| self.runtime.pid(), Child::id)
    }

    pub fn is_smolet(&self) -> bool {
        !matches!(self.kind, Kind::Kubelet(_))
    }

    /// KiB of the whole node but for the containers' own processes, shared pages counted once (proportional set size): the agent, the
    /// runtime, and what the runtime has for each pod or container.
    pub fn node_pss_kib(&self) -> u64 {
        self.node_processes().into_iter().map(finding::pss_kib).sum()
    }

    /// CPU of the same processes so far, and of the programs that they have run to an end, in milliseconds.
    pub fn node_cpu_ms(&self) -> f64 {
        // utime, stime, cutime and cstime of proc(5), in hundredths of a second; the name may have spaces.
        let ticks = |pid: u32| -> u64 {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let (_, fields) = stat.rsplit_once(") ").unwrap_or_default();
            fields.split(' ').skip(11).take(4).filter_map(|field| field.parse::<u64>().ok()).sum()
        };
        self.node_processes().into_iter().map(ticks).sum::<u64>() as f64 * 10.0
    }

    fn node_processes(&self) -> Vec<u32> {
        let mut pids = self.runtime.processes();
        pids.push(self.pid());
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    fn node(&self) -> &str {
        match self.kind {
            Kind::Smolet(_) => "smolet",
            Kind::Kubelet(_) => "kubelet",
            Kind::Embedded(_) => self.runtime.cgroup_root.trim_start_matches('/'),
        }
    }

    /// The name of the static pod.
    pub fn full(&self, name: &str) -> String {
        format!("{name}-{}", self.node())
    }

    /// A directory of the host for hostPath volumes.
    pub fn out(&self) -> PathBuf {
        self.dir.join("out")
    }

    /// Hands over these manifests as quickly as the file system does, and says when the first was there.
    pub fn apply(&self, pods: &[(String, String)]) -> Wall {
        let (new, manifests) = (self.dir.join("new"), self.dir.join("manifests"));
        let path = |dir: &Path, name: &str| dir.join(format!("{name}.yaml"));
        for (name, text) in pods {
            fs::write(path(&new, name), text).expect("a manifest can be written");
        }
        let at = now();
        for (name, _) in pods {
            fs::rename(path(&new, name), path(&manifests, name)).expect("a manifest can be renamed");
        }
        at
    }

    /// When smolet's source handed a pod over (`kubernetes.io/config.seen`).
    pub fn seen(&self, names: &[String]) -> Vec<Wall> {
        let (binary, socket) = match &self.kind {
            Kind::Smolet(binary) => (binary, "s.sock"),
            Kind::Embedded(binary) => (binary, "smolet.sock"),
            Kind::Kubelet(_) => panic!("only smolet is asked"),
        };
        let output = Command::new(binary)
            .args(["pods", "-o", "json", "--socket"])
            .arg(self.dir.join(socket))
            .output()
            .expect("smolet can be run");
        let list: serde_json::Value = serde_json::from_slice(&output.stdout).expect("pods -o json is JSON");
        let full: Vec<String> = names.iter().map(|name| self.full(name)).collect();
        let ours = list["items"]
            .as_array()
            .expect("a PodList has items")
            .iter()
            .filter(|pod| full.iter().any(|name| pod["metadata"]["name"].as_str() == Some(name)));
        ours.map(|pod| {
            let seen = pod["metadata"]["annotations"]["kubernetes.io/config.seen"].as_str();
            let seen: k8s_openapi::jiff::Timestamp = seen.expect("an annotation").parse().expect("a time");
            Wall(i64::try_from(seen.as_nanosecond()).expect("a time of today"))
        })
        .collect()
    }

    /// When each pod's container started, once all have; in the order of `names`.
    pub fn running(&self, names: &[String]) -> Vec<Wall> {
        let full: Vec<String> = names.iter().map(|name| self.full(name)).collect();
        let ids = wait_for("all pods run", PATIENCE, || {
            let all = self.runtime.containers();
            let of = |name: &String| {
                all.iter().find(|c| {
                    c.state == ContainerState::Running
                        && c.pod.as_ref().is_some_and(|pod| *pod.name == **name)
                })
            };
            full.iter().map(|name| of(name).map(|c| c.id.clone())).collect::<Option<Vec<_>>>()
        });
        ids.iter().map(|id| self.runtime.container_status(id).started_at.expect("it started")).collect()
    }

    /// Removes all manifests and waits until the pods have ended. smolet then removes their sandboxes at once; a
    /// kubelet comes back to them with its garbage collection, once a minute, which is not waited for.
    pub fn end_pods(&self) {
        for entry in fs::read_dir(self.dir.join("manifests")).expect("the manifest directory").flatten() {
            fs::remove_file(entry.path()).expect("a manifest can be removed");
        }
        let suffix = format!("-{}", self.node());
        let counts = |sandbox: &SandboxItem| match self.kind {
            Kind::Smolet(_) | Kind::Embedded(_) => true,
            Kind::Kubelet(_) => sandbox.state == SandboxState::Ready,
        };
        wait_for("all pods are gone", PATIENCE, || {
            let all = self.runtime.sandboxes();
            let left = all.iter().any(|sandbox| sandbox.pod.name.ends_with(&suffix) && counts(sandbox));
            (!left).then_some(())
        });
    }
}

impl Drop for Subject<'_> {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            let name = if self.child.is_some() { "agent.log" } else { "containerd.log" };
            let log = fs::read_to_string(self.dir.join(name)).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            lines.iter().skip(lines.len().saturating_sub(40)).for_each(|line| eprintln!("{line}"));
        }
        if let Some(settings) = &self.settings {
            settings.put_back();
        }
    }
}

/// The wall clock, which containerd's timestamps are taken from too.
pub fn now() -> Wall {
    use smolet::clock::Clock as _;
    smolet::clock::SystemClock.now().wall
}

fn smolet(runtime: &Runtime, binary: &Path, dir: &Path) -> Command {
    let mut command = Command::new(binary);
    command
        .args(["run", "--node-name", "smolet", "--runtime-endpoint", &runtime.endpoint()])
        .args(["--cgroup-root", &runtime.cgroup_root])
        // A machine whose disk is nearly full would have its pods evicted.
        .args(["--config", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/env/watched.yaml")]);
    for (flag, part) in [
        ("--manifests", "manifests"),
        ("--root-dir", "root"),
        ("--socket", "s.sock"),
        ("--pod-logs-dir", "logs/pods"),
        ("--container-logs-dir", "logs/containers"),
    ] {
        command.arg(flag).arg(dir.join(part));
    }
    command
}
