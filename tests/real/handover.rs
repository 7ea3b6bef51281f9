//! A node that a kubelet ran is taken over, and given back. Needs a kubelet: `KUBELET` names it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use smolet::model::SandboxState;

use crate::agent::{Agent, PATIENCE, container, id_of, text, wait_until};
use crate::kubelet::{self, Settings};
use crate::runtime::{Runtime, wait_for};

/// A kubelet on the directories of an agent. Dropped: its process ends; its pods run on.
struct Kubelet {
    child: Child,
    log: PathBuf,
    settings: Settings,
}

impl Kubelet {
    fn start(binary: &Path, agent: &Agent<'_>, node: &str) -> Self {
        let settings = Settings::kept(node);
        make_cgroup(&agent.runtime.cgroup_root);
        let path = agent.dir.join("kubelet.log");
        let log = File::options().create(true).append(true).open(&path).expect("a log file");
        let (endpoint, cgroup_root) = (agent.runtime.endpoint(), &agent.runtime.cgroup_root);
        let child = kubelet::command(&endpoint, cgroup_root, binary, &agent.dir, node)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second handle"))
            .stderr(log)
            .spawn()
            .expect("KUBELET can be run");
        Self { child, log: path, settings }
    }

    /// As `systemctl stop`.
    fn stop(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).expect("our own child");
        let ended =
            wait_until(Duration::from_secs(PATIENCE), || self.child.try_wait().expect("our own child"));
        assert!(ended.is_some(), "the kubelet ends");
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            lines.iter().skip(lines.len().saturating_sub(60)).for_each(|line| println!("{line}"));
        }
        self.settings.put_back();
    }
}

/// A kubelet wants its root cgroup to be there, in every hierarchy.
fn make_cgroup(root: &str) {
    let mounts = Path::new("/sys/fs/cgroup");
    let hierarchies = fs::read_dir(mounts).expect("the cgroups are mounted").flatten().map(|e| e.path());
    let of_v1 = hierarchies.filter(|path| path.join("cgroup.procs").exists());
    let all: Vec<PathBuf> =
        if mounts.join("cgroup.controllers").exists() { vec![mounts.to_owned()] } else { of_v1.collect() };
    for hierarchy in all {
        fs::create_dir_all(hierarchy.join(root.trim_start_matches('/'))).expect("a cgroup can be made");
    }
}

const WEB: &str = "
  initContainers:
  - name: first
    image: smolet.test/busybox:1
    command: [sh, -c, 'echo begun >> /data/starts']
    volumeMounts: [{name: data, mountPath: /data}]
  containers:
  - name: app
    image: smolet.test/busybox:1
    command: [sh, -c, 'echo started >> /data/starts; while :; do echo tick; sleep 0.2; done']
    volumeMounts: [{name: data, mountPath: /data}]
  - {name: idle, image: smolet.test/busybox:1, command: [sleep, '1000000']}
  terminationGracePeriodSeconds: 1
  volumes: [{name: data, emptyDir: {}}]
";
const IDLE: &str = "
  terminationGracePeriodSeconds: 1
  containers:
  - {name: app, image: smolet.test/busybox:1, command: [sleep, '1000000']}
";

/// The containers and sandboxes of a pod, with their attempts.
fn parts(runtime: &Runtime, pod: &str) -> Vec<String> {
    let containers = runtime.containers_of(pod).into_iter().map(|c| format!("{} {}", c.id, c.attempt));
    let sandboxes = runtime.sandboxes_of(pod).into_iter().map(|s| format!("{} {}", s.id, s.attempt));
    containers.chain(sandboxes).collect()
}

pub fn a_node_goes_from_a_kubelet_to_smolet_and_back(runtime: &Runtime) {
    let Some(binary) = std::env::var_os("KUBELET").map(PathBuf::from) else {
        println!(
            "==== KUBELET names no kubelet: that a node is taken over from one and given back IS NOT SHOWN ===="
        );
        return;
    };
    let node = "handover";
    let mut agent = Agent::new(runtime, node);
    for dir in [agent.pod_logs(), agent.container_logs()] {
        fs::create_dir_all(dir).expect("the log directories can be made");
    }
    agent.apply_pod("web", WEB);
    agent.apply_pod("left", IDLE);

    // The kubelet's.
    let kubelet = Kubelet::start(&binary, &agent, node);
    for (pod, name) in [("web", "app"), ("web", "idle"), ("left", "app")] {
        let full = agent.full(pod);
        wait_for(&format!("{pod} runs"), PATIENCE, || {
            let all = runtime.containers_of(&full);
            let runs = |c: &smolet::model::ContainerItem| {
                &*c.name == name && c.state == smolet::model::ContainerState::Running
            };
            all.iter().any(runs).then_some(())
        });
    }
    let (full, left) = (agent.full("web"), agent.full("left"));
    let uid = runtime.ready_sandbox(&full).pod.uid.to_string();
    let before = (parts(runtime, &full), parts(runtime, &left));
    kubelet.stop();
    let starts = agent.dir.join("root/pods").join(&uid).join("volumes/kubernetes.io~empty-dir/data/starts");
    assert_eq!(text(&starts), "begun\nstarted\n");
    let log = agent.log_dir("web").expect("a log directory").join("app/0.log");
    let lines = |log: &Path| text(log).lines().count();

    // Ours: what a manifest names goes on, and nothing else is touched.
    agent.delete("left");
    agent.start();
    let pod = agent.running("web");
    assert_eq!(pod.metadata.uid.as_deref(), Some(&*uid));
    let status = pod.status.as_ref().expect("a status");
    assert_eq!(container(status, "app").expect("a status").restart_count, 0);
    assert_eq!(id_of(&pod, "app"), runtime.running_container(&full, "app").id.to_string());
    let written = lines(&log);
    wait_for("the log goes on", PATIENCE, || (lines(&log) > written).then_some(()));
    assert_eq!(agent.ask(&["logs", &full, "-c", "app", "--tail", "1"]).stdout, b"tick\n");
    agent.apply_pod("own", IDLE);
    agent.running("own");
    assert_eq!((parts(runtime, &full), parts(runtime, &left)), before, "as the kubelet left them");

    // Told to take the node over, it ends what nothing names.
    assert!(agent.stop().success());
    agent.arguments.push("--take-over".into());
    agent.start();
    agent.running("web");
    agent.wait_gone("left");
    assert_eq!(parts(runtime, &full), before.0, "across a restart of the agent");
    assert!(agent.stop().success());

    // And back: it keeps what it has made itself, and makes anew what only we knew.
    let own = runtime.ready_sandbox(&agent.full("own")).pod.uid;
    let kubelet = Kubelet::start(&binary, &agent, node);
    wait_for("the kubelet's own pod", PATIENCE, || {
        let all = runtime.sandboxes_of(&agent.full("own"));
        let ready = |s: &smolet::model::SandboxItem| s.state == SandboxState::Ready && s.pod.uid != own;
        all.iter().any(ready).then_some(())
    });
    // Whatever it ends that it does not know, it has ended when a pod that came later is gone.
    agent.apply_pod("later", IDLE);
    wait_for("a later pod", PATIENCE, || {
        (runtime.containers_of(&agent.full("later")).len() == 1).then_some(())
    });
    agent.delete("later");
    wait_for("its end", PATIENCE, || {
        let all = runtime.sandboxes_of(&agent.full("later"));
        all.iter().all(|s| s.state == SandboxState::NotReady).then_some(())
    });
    assert_eq!(parts(runtime, &full), before.0, "given back as it was taken");
    assert_eq!(text(&starts), "begun\nstarted\n");
    kubelet.stop();

    agent.start();
    agent.running("web");
    assert_eq!(parts(runtime, &full), before.0, "and taken over once more");
    agent.end_pods();
}
