//! One agent under test: its directory, its process and what it says of its pods.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};
use rustix::process::{Pid, Signal, kill_process};

use crate::runtime::{Runtime, is_embedded, wait_for};

/// How long any one step of a pod may take on a slow machine.
pub const PATIENCE: u64 = 60;

/// The binary under test.
pub fn smolet() -> Command {
    let default = || env!("CARGO_BIN_EXE_smolet").into();
    Command::new(std::env::var_os("SMOLET_BIN").unwrap_or_else(default))
}

/// True when the binary under test is the one that is shipped: only that has figures to hold.
pub fn is_release() -> bool {
    std::env::var_os("SMOLET_BIN").is_some()
}

/// The KubeletConfiguration of an agent whose cost is measured.
pub const WATCHED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/env/watched.yaml");

/// An agent in a directory and with a node name of its own. Dropped: its pods are ended and its process too.
pub struct Agent<'r> {
    pub runtime: &'r Runtime,
    pub dir: PathBuf,
    node: String,
    /// That of its runtime, or `embedded`.
    pub endpoint: String,
    pub log_level: &'static str,
    /// Further arguments of `smolet run`.
    pub arguments: Vec<OsString>,
    /// Its KubeletConfiguration.
    pub config: PathBuf,
    child: Option<Child>,
}

impl<'r> Agent<'r> {
    /// Prepared, not started.
    pub fn new(runtime: &'r Runtime, name: &str) -> Self {
        let dir = runtime.dir().join("agents").join(name);
        for part in ["manifests", "out"] {
            fs::create_dir_all(dir.join(part)).expect("the agent's directories can be made");
        }
        let calm = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/env/calm.yaml").into();
        Self {
            runtime,
            dir,
            node: name.to_owned(),
            endpoint: runtime.endpoint(),
            log_level: "debug",
            arguments: Vec::new(),
            config: calm,
            child: None,
        }
    }

    pub fn started(runtime: &'r Runtime, name: &str) -> Self {
        let mut agent = Self::new(runtime, name);
        agent.start();
        agent
    }

    /// `smolet run` with this agent's paths.
    pub fn command(&self) -> Command {
        let mut command = smolet();
        command
            .arg("run")
            .args(["--runtime-endpoint", &self.endpoint, "--node-name", &self.node])
            .args(["--cgroup-root", &self.runtime.cgroup_root, "--log-level", self.log_level])
            .arg("--config")
            .arg(&self.config)
            .arg("--manifests")
            .arg(self.manifests())
            .arg("--root-dir")
            .arg(self.dir.join("root"))
            .arg("--socket")
            .arg(self.socket())
            .arg("--pod-logs-dir")
            .arg(self.pod_logs())
            .arg("--container-logs-dir")
            .arg(self.container_logs())
            .args(&self.arguments)
            .stdin(Stdio::null());
        command
    }

    pub fn start(&mut self) {
        assert!(self.child.is_none(), "the agent runs already");
        let log = File::options().create(true).append(true).open(self.log_file()).expect("a log file");
        let child = self
            .command()
            .stdout(log.try_clone().expect("a second handle"))
            .stderr(log)
            .spawn()
            .expect("the agent can be started");
        self.child = Some(child);
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("the agent runs").id()
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("our own child can be killed");
            child.wait().expect("our own child can be waited for");
        }
    }

    /// SIGTERM, and the exit status; its pods run on.
    pub fn stop(&mut self) -> ExitStatus {
        let mut child = self.child.take().expect("the agent runs");
        let pid = Pid::from_child(&child);
        kill_process(pid, Signal::TERM).expect("our own child can be signalled");
        // A panic below must not leave it running.
        let patience = Duration::from_secs(PATIENCE);
        let status = wait_until(patience, || child.try_wait().expect("our own child"));
        status.unwrap_or_else(|| {
            let _ = child.kill();
            let _ = child.wait();
            panic!("the agent does not end within {PATIENCE} s of SIGTERM")
        })
    }

    /// True while the process has not ended.
    pub fn is_alive(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| child.try_wait().expect("our own child").is_none())
    }

    // ---- paths -----------------------------------------------------------------------------------------

    pub fn manifests(&self) -> PathBuf {
        self.dir.join("manifests")
    }

    /// Where image archives are imported from; made by who imports them: the agent, or the one whose runtime is embedded.
    pub fn images(&self) -> PathBuf {
        let of = if is_embedded() { self.runtime.dir() } else { &self.dir };
        of.join("root/images")
    }

    /// How often these archives were imported.
    pub fn imports(&self, archives: &[&Path]) -> usize {
        let log = self.log_of_imports();
        archives.iter().map(|path| log.matches(&format!("{}: imported in ", path.display())).count()).sum()
    }

    /// What who imports archives says.
    pub fn log_of_imports(&self) -> String {
        if is_embedded() { self.runtime.log() } else { self.log() }
    }

    /// Ends who imports archives, if it runs.
    pub fn stop_imports(&mut self) {
        if is_embedded() {
            self.runtime.kill();
        } else if self.child.is_some() {
            self.stop();
        }
    }

    pub fn start_imports(&mut self) {
        if is_embedded() {
            self.runtime.start();
            self.runtime.answers();
        } else {
            self.start();
        }
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.join("s.sock")
    }

    pub fn pod_logs(&self) -> PathBuf {
        self.dir.join("logs/pods")
    }

    pub fn container_logs(&self) -> PathBuf {
        self.dir.join("logs/containers")
    }

    /// A directory of the host for hostPath volumes: what containers write there is seen here.
    pub fn out(&self) -> PathBuf {
        self.dir.join("out")
    }

    /// A file of that directory; empty when it is not there yet.
    pub fn read_out(&self, file: &str) -> String {
        fs::read_to_string(self.out().join(file)).unwrap_or_default()
    }

    /// That file once a container has written a line there: it may run and have written nothing yet.
    pub fn wait_out(&self, file: &str) -> String {
        wait_for(&format!("a container writes {file}"), PATIENCE, || {
            Some(self.read_out(file)).filter(|text| text.ends_with('\n'))
        })
    }

    fn log_file(&self) -> PathBuf {
        self.dir.join("agent.log")
    }

    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.log_file()).unwrap_or_default()).into_owned()
    }

    // ---- manifests -------------------------------------------------------------------------------------

    /// Writes NAME.yaml whole, as careful tools do.
    pub fn apply(&self, name: &str, text: &str) {
        let new = self.manifests().join(format!(".{name}.new"));
        fs::write(&new, text).expect("a manifest can be written");
        fs::rename(new, self.manifest(name)).expect("a manifest can be renamed");
    }

    /// A pod of that name with this spec (YAML, indented by two).
    pub fn apply_pod(&self, name: &str, spec: &str) {
        self.apply(name, &self.pod_text(name, spec));
    }

    /// `$OUT` in the spec becomes [`Agent::out`].
    pub fn pod_text(&self, name: &str, spec: &str) -> String {
        let spec = spec.replace("$OUT", &self.out().display().to_string());
        format!("apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n{}\n", spec.trim_matches('\n'))
    }

    pub fn delete(&self, name: &str) {
        fs::remove_file(self.manifest(name)).expect("the manifest is there");
    }

    pub fn manifest(&self, name: &str) -> PathBuf {
        self.manifests().join(format!("{name}.yaml"))
    }

    /// The name of the static pod.
    pub fn full(&self, name: &str) -> String {
        format!("{name}-{}", self.node)
    }

    // ---- what the agent says ---------------------------------------------------------------------------

    /// A subcommand that asks this agent.
    pub fn ask(&self, arguments: &[&str]) -> Output {
        smolet().args(arguments).arg("--socket").arg(self.socket()).output().expect("smolet can be run")
    }

    /// The page of `/metrics`.
    pub fn metrics(&self) -> String {
        let mut stream = UnixStream::connect(self.socket()).expect("the agent listens");
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("it reads");
        let mut page = String::new();
        stream.read_to_string(&mut page).expect("it answers");
        page
    }

    /// `smolet pods -o json`; none while the agent does not answer.
    pub fn pods(&self) -> Vec<Pod> {
        let output = self.ask(&["pods", "-o", "json"]);
        if !output.status.success() {
            return Vec::new();
        }
        let list: serde_json::Value = serde_json::from_slice(&output.stdout).expect("pods -o json is JSON");
        let items = list["items"].as_array().expect("a PodList has items").clone();
        items.into_iter().map(|pod| serde_json::from_value(pod).expect("an item is a v1.Pod")).collect()
    }

    pub fn pod(&self, name: &str) -> Option<Pod> {
        let full = self.full(name);
        self.pods().into_iter().find(|pod| pod.metadata.name.as_deref() == Some(&full))
    }

    /// Waits until the pod is as `accept` wants it.
    pub fn wait_pod(&self, name: &str, what: &str, accept: impl Fn(&PodStatus) -> bool) -> Pod {
        let mut last = None;
        let found = wait_until(Duration::from_secs(PATIENCE), || {
            last = self.pod(name);
            last.clone().filter(|pod| pod.status.as_ref().is_some_and(&accept))
        });
        found.unwrap_or_else(|| {
            let last = last.map(|pod| serde_json::to_string(&pod.status).expect("a status is JSON"));
            panic!(
                "pod {name} is not {what} within {PATIENCE} s, but {}",
                last.as_deref().unwrap_or("unknown")
            )
        })
    }

    /// Waits until the pod runs and all its containers are ready.
    pub fn running(&self, name: &str) -> Pod {
        self.wait_pod(name, "running and ready", is_ready)
    }

    /// Waits until neither the agent nor the runtime knows the pod, and its log directory is gone.
    pub fn wait_gone(&self, name: &str) {
        let full = self.full(name);
        wait_for(&format!("pod {full} is gone from the runtime"), PATIENCE, || {
            let none =
                self.runtime.sandboxes_of(&full).is_empty() && self.runtime.containers_of(&full).is_empty();
            none.then_some(())
        });
        wait_for(&format!("pod {full} is gone from smolet pods"), PATIENCE, || {
            self.pod(name).is_none().then_some(())
        });
        wait_for(&format!("the log directory of {full} is gone"), PATIENCE, || {
            self.log_dir(name).is_none().then_some(())
        });
    }

    /// The pod's log directory, NAMESPACE_NAME_UID.
    pub fn log_dir(&self, name: &str) -> Option<PathBuf> {
        let prefix = format!("default_{}_", self.full(name));
        let entries = fs::read_dir(self.pod_logs()).ok()?;
        let mut paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        paths.find(|path| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(&prefix)))
    }

    /// Removes all manifests and waits until nothing of this agent's is left in the runtime.
    pub fn end_pods(&self) {
        for entry in fs::read_dir(self.manifests()).expect("the manifest directory").flatten() {
            let path = entry.path();
            if path.is_dir() && !path.is_symlink() {
                fs::remove_dir_all(&path)
            } else {
                fs::remove_file(&path)
            }
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        }
        let suffix = format!("-{}", self.node);
        // A hundred at once, too.
        wait_for("the agent ends all pods whose manifests are gone", 5 * PATIENCE, || {
            let left = self.runtime.sandboxes().iter().any(|sandbox| sandbox.pod.name.ends_with(&suffix));
            (!left).then_some(())
        });
    }
}

impl Drop for Agent<'_> {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            println!("---- the agent's last words ({})", self.node);
            lines.iter().skip(lines.len().saturating_sub(60)).for_each(|line| println!("{line}"));
            println!("----");
        }
    }
}

/// Looks every 20 ms until there is something; `None` when there is not in time.
pub fn wait_until<T>(patience: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let end = std::time::Instant::now() + patience;
    loop {
        if let Some(found) = look() {
            return Some(found);
        }
        if std::time::Instant::now() > end {
            return None;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Phase Running and condition Ready.
pub fn is_ready(status: &PodStatus) -> bool {
    let conditions = status.conditions.as_deref().unwrap_or_default();
    status.phase.as_deref() == Some("Running")
        && conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// The status of an app container.
pub fn container<'p>(status: &'p PodStatus, name: &str) -> Option<&'p ContainerStatus> {
    status.container_statuses.as_deref().unwrap_or_default().iter().find(|c| c.name == name)
}

/// The reason an app container waits for.
pub fn waits_for<'p>(status: &'p PodStatus, name: &str) -> Option<&'p str> {
    container(status, name)?.state.as_ref()?.waiting.as_ref()?.reason.as_deref()
}

/// The id of an app container without its scheme.
pub fn id_of(pod: &Pod, name: &str) -> String {
    let status = container(pod.status.as_ref().expect("a status"), name).expect("a container status");
    let id = status.container_id.as_deref().expect("a container id");
    id.split_once("://").expect("the runtime's name before its id").1.to_owned()
}

/// The pod's address.
pub fn ip_of(pod: &Pod) -> String {
    pod.status.as_ref().and_then(|status| status.pod_ip.clone()).expect("a pod address")
}

/// The node's address on the pods' bridge: the first of the pod's /24.
pub fn bridge_address(pod_ip: &str) -> String {
    let (net, _) = pod_ip.rsplit_once('.').expect("an IPv4 address");
    format!("{net}.1")
}

/// A file's bytes as text.
pub fn text(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
        .into_owned()
}
