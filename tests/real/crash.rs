//! Kills, a frozen runtime, a full disk, a state directory that cannot be written.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use smolet::model::{ContainerState, SandboxState};

use crate::agent::{Agent, PATIENCE, id_of};
use crate::runtime::{Runtime, wait_for};

/// Kills during churn; a promise of the project.
const KILLS: u32 = 30;

fn spec(host: u32, version: u8) -> String {
    format!(
        "
  hostname: h{host}
  terminationGracePeriodSeconds: 2
  volumes: [{{name: data, emptyDir: {{}}}}]
  containers:
  - name: app
    image: smolet.test/busybox:{version}
    command: [forever]
    volumeMounts: [{{name: data, mountPath: /data}}]
"
    )
}

pub fn thirty_kills_during_churn_double_nothing(runtime: &Runtime) {
    let seed = crate::seeds::to_run(1..2).start;
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut agent = Agent::new(runtime, "crash");
    let mut wanted: BTreeMap<&str, (u32, u8)> = BTreeMap::new();
    let foreign = runtime.run_foreign_sandbox("crash-other");
    for round in 0..KILLS {
        agent.start();
        let name = ["a", "b", "c"][rng.usize(..3)];
        match (rng.u8(..6), wanted.get(name).copied()) {
            (0, Some(_)) => {
                wanted.remove(name);
                agent.delete(name);
            }
            // A new image restarts the container in place, another host name makes another pod.
            (1..=3, Some((host, version))) => drop(wanted.insert(name, (host, 3 - version))),
            _ => drop(wanted.insert(name, (round, rng.u8(1..=2)))),
        }
        if let Some((host, version)) = wanted.get(name) {
            agent.apply_pod(name, &spec(*host, *version));
        }
        let frozen = round % 10 == 4;
        if frozen {
            runtime.freeze(true);
        }
        std::thread::sleep(Duration::from_millis(rng.u64(20..700)));
        agent.kill();
        if frozen {
            runtime.freeze(false);
        }
        assert_alone(runtime);
        if round % 10 == 9 {
            runtime.kill();
            runtime.start();
        }
    }
    agent.start();
    for (name, (_, version)) in &wanted {
        let full = agent.full(name);
        let image = runtime.image(&format!("smolet.test/busybox:{version}")).expect("the image is there").id;
        // Until the agent has looked at it, the container of the image before counts as a good one.
        wait_for(&format!("{name} runs with its last image"), PATIENCE, || {
            let mut all = runtime.containers_of(&full);
            all.retain(|container| container.state == ContainerState::Running);
            matches!(&all[..], [one] if one.image == image).then_some(())
        });
        agent.running(name);
        runtime.ready_sandbox(&full);
    }
    assert_alone(runtime);
    assert!(runtime.sandboxes().iter().any(|sandbox| sandbox.id == foreign), "another agent's pod is there");
    agent.end_pods();
    wait_for("nothing is left on the disk", PATIENCE, || {
        let left = [agent.dir.join("root/pods"), agent.pod_logs(), agent.container_logs()];
        left.iter().all(|dir| names(dir).is_empty()).then_some(())
    });
    runtime.stop_sandbox(&foreign);
    runtime.remove_sandbox(&foreign);
}

pub fn a_full_or_read_only_disk_is_survived(runtime: &Runtime) {
    let mut agent = Agent::new(runtime, "full");
    let disk = Disk::mount(agent.dir.join("root"));
    agent.start();
    agent.apply_pod("a", &spec(0, 1));
    let before = agent.running("a");
    let untouched = |agent: &Agent<'_>| {
        let after = agent.running("a");
        assert_eq!(id_of(&after, "app"), id_of(&before, "app"), "the running container was not touched");
        assert_eq!(runtime.containers_of(&agent.full("a")).len(), 1);
    };

    disk.fill();
    agent.apply_pod("b", &spec(0, 1));
    wait_for("the full disk is told", PATIENCE, || agent.log().contains("No space left").then_some(()));
    assert!(agent.is_alive());
    untouched(&agent);
    disk.free();
    agent.running("b");

    disk.read_only(true);
    agent.apply_pod("c", &spec(0, 1));
    wait_for("the read-only disk is told", PATIENCE, || {
        agent.log().contains("Read-only file system").then_some(())
    });
    assert!(agent.is_alive());
    untouched(&agent);
    disk.read_only(false);
    agent.running("c");
    untouched(&agent);
    for what in ["No space left", "Read-only file system"] {
        let lines = agent.log().lines().filter(|line| line.contains(what)).count();
        assert!(lines <= 2, "said once, not {lines} times: {what}");
    }
    agent.end_pods();
    wait_for("nothing is left on the disk", PATIENCE, || {
        names(&agent.dir.join("root/pods")).is_empty().then_some(())
    });
    agent.kill();
}

/// No container of a pod runs twice, and no pod of one name has two ready sandboxes.
fn assert_alone(runtime: &Runtime) {
    runtime.answers();
    let mut seen = BTreeSet::new();
    for container in runtime.containers() {
        let pod = container.pod.map(|key| key.name.to_string()).unwrap_or_default();
        let runs = container.state == ContainerState::Running;
        assert!(
            !runs || seen.insert((pod.clone(), container.name.to_string())),
            "{pod}/{} runs twice",
            container.name
        );
    }
    for sandbox in runtime.sandboxes().into_iter().filter(|sandbox| sandbox.state == SandboxState::Ready) {
        let pod = sandbox.pod.name.to_string();
        assert!(seen.insert((pod.clone(), String::new())), "{pod} has two ready sandboxes");
    }
}

fn names(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// A small file system of its own.
struct Disk(PathBuf);

impl Disk {
    fn mount(path: PathBuf) -> Self {
        fs::create_dir_all(&path).expect("a mount point");
        let disk = Self(path);
        disk.run("mount", &["-t", "tmpfs", "-o", "size=256k", "smolet-test"]);
        disk
    }

    fn run(&self, program: &str, arguments: &[&str]) {
        let status = Command::new(program).args(arguments).arg(&self.0).status().expect("it can be run");
        assert!(status.success(), "{program} {arguments:?}: {status}");
    }

    fn fill(&self) {
        use std::io::Write as _;
        let mut file = fs::File::create(self.0.join("filler")).expect("a file");
        while file.write_all(&[0; 4096]).is_ok() {}
    }

    fn free(&self) {
        fs::remove_file(self.0.join("filler")).expect("the filler is there");
    }

    /// A read-only view mounted above it, or taken away: the agent's lock is open for writing, so that the disk itself
    /// cannot be switched.
    fn read_only(&self, read_only: bool) {
        if read_only {
            let path = self.0.display().to_string();
            self.run("mount", &["--bind", &path]);
            self.run("mount", &["-o", "remount,bind,ro"]);
        } else {
            self.run("umount", &["-l"]);
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // After a failure pods may still hold it, and the read-only view may lie above it.
        while Command::new("umount")
            .arg("-l")
            .arg(&self.0)
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|s| s.success())
        {}
    }
}
