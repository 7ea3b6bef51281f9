//! smolet with the cgroup driver systemd, against a real one: tests/env/systemd.sh starts it as the first process of
//! namespaces of its own, below a cgroup of its own. Root only; `make systemd` runs it.
//!
//! What systemd makes of each call is shown on version 2 of cgroups, and on version 1 where the machine has it. The kernel's
//! controllers are in one of them, so what the kernel then does is shown on that one, by the whole agent on a containerd in that
//! systemd's world.

#![allow(missing_docs, unreachable_pub, clippy::pedantic, clippy::unwrap_used, clippy::expect_used)]
#![allow(clippy::print_stdout, reason = "what the agent said last")]

// The packages are made of what is linked with musl, which is built so on these machines.
#[cfg(target_arch = "x86_64")]
mod archive;
#[cfg(target_arch = "x86_64")]
mod formats;
#[cfg(target_arch = "x86_64")]
mod package;
mod shutdown;
#[cfg(target_arch = "x86_64")]
mod takeover;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use smolet::clock::SystemClock;
use smolet::model::DesiredPod;
use smolet::render::cgroup_settings::pod_settings;
use smolet::render::slice::slices;
use smolet::render::{CgroupDriver, CgroupVersion, NodeSettings};
use smolet::systemd::Systemd;

/// A systemd of this test's own; gone with everything in it when dropped.
struct World {
    dir: PathBuf,
    pid: i32,
}

/// More than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_mins(3);
/// Starts, ends and asks a containerd of a test's own.
const RUNTIME: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/env/runtime.sh");

fn script(command: &str, dir: &Path) -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut script = Command::new(root.join("tests/env/systemd.sh"));
    script.arg(command).arg(dir).stdin(Stdio::null());
    script
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

impl World {
    fn up(name: &str, version: &str) -> Self {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let output = script("up", &dir).arg(version).stderr(Stdio::inherit()).output().unwrap();
        let pid = text(&output).trim().parse().unwrap();
        Self { dir, pid }
    }

    /// A path there, as it is seen from here.
    fn path(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.pid))
    }

    /// Starts a containerd of its own there, which has systemd make its control groups.
    fn start_runtime(&self) {
        let mut up = self.program(RUNTIME);
        text(&up.arg("up").arg(self.dir.join("rt")).env("SYSTEMD_CGROUP", "true").output().unwrap());
    }

    fn program(&self, program: &str) -> Command {
        let mut command = script("in", &self.dir);
        command.arg(program);
        command
    }

    fn show(&self, unit: &str, properties: &[&str]) -> Vec<String> {
        show(self.program("systemctl"), unit, properties)
    }
}

/// What systemd says of a unit, these properties in this order.
fn show(mut systemctl: Command, unit: &str, properties: &[&str]) -> Vec<String> {
    let shown = text(&systemctl.args(["show", unit]).output().unwrap());
    let of = |name: &&str| {
        let line = shown.lines().find_map(|line| line.strip_prefix(&format!("{name}=")));
        line.unwrap_or_else(|| panic!("no {name} of {unit} in {shown}")).to_owned()
    };
    properties.iter().map(of).collect()
}

/// Files that pods' units have left in systemd's directories of units.
fn leftovers(root: &Path) -> Vec<PathBuf> {
    let directories = ["transient", "system.control", "system"].map(|d| root.join("run/systemd").join(d));
    let entries = directories.iter().filter_map(|d| fs::read_dir(d).ok()).flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.to_string_lossy().contains("-pod")).collect()
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = fs::read_to_string(self.dir.join("log")).unwrap_or_default();
            println!("---- systemd's last words\n{log}----");
        }
        let down = script("down", &self.dir).status();
        assert!(std::thread::panicking() || down.unwrap().success());
    }
}

fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "waited for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn pod(resources: Value) -> DesiredPod {
    let pod = json!({"metadata": {"name": "p", "uid": "u-1"},
        "spec": {"containers": [{"name": "c", "resources": resources}]}});
    DesiredPod::new(serde_json::from_value(pod).unwrap())
}

/// True when the machine has its controllers in cgroups of version 1.
fn has_version_1() -> bool {
    is_version_1(&fs::read_to_string("/proc/mounts").unwrap())
}

fn is_version_1(mounts: &str) -> bool {
    let mut fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    fields.any(|f| f[2] == "cgroup" && f[3].split(',').any(|option| option == "memory"))
}

#[test]
fn the_version_is_the_one_with_the_controllers() {
    let debian_12 = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid,nodev,noexec,relatime,nsdelegate,memory_recursiveprot 0 0\n";
    let hybrid =
        "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
    let named = format!("{debian_12}cgroup /sys/fs/cgroup/systemd cgroup rw,name=systemd 0 0\n");
    assert_eq!([debian_12, hybrid, &named].map(is_version_1), [false, true, false]);
}

/// What [`calls_are_understood`] runs in: systemd takes no connection from a process that it cannot see.
const INSIDE: &str = "SMOLET_TEST_INSIDE";

fn calls_are_understood(version: CgroupVersion) {
    let names = match version {
        CgroupVersion::V1 { .. } => ["CPUShares", "MemoryLimit", "BlockIOAccounting"],
        CgroupVersion::V2 { .. } => ["CPUWeight", "MemoryMax", "IOAccounting"],
    };
    let weight = |shares: i64| match version {
        CgroupVersion::V1 { .. } => shares,
        CgroupVersion::V2 { .. } => 1 + (shares - 2) * 9999 / 262_142,
    };
    let mut node = NodeSettings::new("n", "/r");
    (node.cgroup_version, node.cgroup_driver) = (version, CgroupDriver::Systemd);
    let systemd = Systemd::new(Path::new(smolet::config::paths::SYSTEMD), Rc::new(SystemClock));
    let make = |pod: &DesiredPod| {
        let wanted = slices(version, &pod_settings(&node, pod));
        async_io::block_on(async {
            let mut session = systemd.session().await.unwrap();
            for (_, slice) in &wanted {
                session.start(slice).await.unwrap_or_else(|error| panic!("{error}"));
            }
        });
        wanted.into_iter().map(|(_, slice)| slice.name.into_string()).collect::<Vec<_>>()
    };
    let units =
        make(&pod(json!({"requests": {"cpu": "500m"}, "limits": {"cpu": "1234m", "memory": "64Mi"}})));
    let expected = ["kubepods.slice", "kubepods-burstable.slice", "kubepods-burstable-podu_1.slice"];
    assert_eq!(units, expected);
    let own = expected[2];
    let asked = [
        "ActiveState",
        "Transient",
        "DefaultDependencies",
        "Wants",
        "MemoryAccounting",
        "CPUAccounting",
        "TasksAccounting",
        names[2],
        names[0],
        names[1],
        "CPUQuotaPerSecUSec",
    ];
    let shown = show(Command::new("systemctl"), own, &asked);
    let weight_and = |shares| [weight(shares).to_string(), (64 << 20).to_string(), "1.240000s".to_owned()];
    assert_eq!(shown[..8], ["active", "yes", "no", expected[1], "yes", "yes", "yes", "yes"]);
    assert_eq!(shown[8..], weight_and(512));
    for outer in &expected[..2] {
        assert_eq!(
            show(Command::new("systemctl"), outer, &["ActiveState", "Transient"]),
            ["active", "yes"],
            "{outer}"
        );
    }

    // It is there: only what it has is changed.
    make(&pod(json!({"requests": {"cpu": "1"}, "limits": {"cpu": "2", "memory": "32Mi"}})));
    let shown = show(Command::new("systemctl"), own, &asked);
    assert_eq!(shown[8..], [weight(1024).to_string(), (32 << 20).to_string(), "2s".to_owned()]);
    // It stays so when systemd reads its units anew.
    assert!(Command::new("systemctl").arg("daemon-reload").status().unwrap().success());
    assert_eq!(show(Command::new("systemctl"), own, &asked)[8..], shown[8..]);

    let stop = |unit: &str| async_io::block_on(async { systemd.stop(unit).await.map_err(|e| e.to_string()) });
    assert_eq!(stop(own), Ok(()));
    assert_eq!(show(Command::new("systemctl"), own, &["ActiveState", "LoadState"])[0], "inactive");
    assert_eq!(leftovers(Path::new("/")), Vec::<PathBuf>::new());
    assert_eq!(stop(own), Ok(()), "it is stopped");
    assert_eq!(stop("kubepods-none.slice"), Ok(()), "and what never was");
    assert!(stop("no/unit").unwrap_err().contains("systemd refuses no/unit"));

    let is_stopping = || async_io::block_on(systemd.is_stopping()).unwrap_or_else(|error| panic!("{error}"));
    assert!(!is_stopping());
    fs::write("/run/systemd/transient/shutdown.target", "[Unit]\nDefaultDependencies=no\n").unwrap();
    for words in [&["daemon-reload"][..], &["start", "shutdown.target"]] {
        assert!(Command::new("systemctl").args(words).status().unwrap().success(), "{words:?}");
    }
    assert!(is_stopping());
}

#[test]
fn what_systemd_makes_of_the_calls() {
    match std::env::var(INSIDE).as_deref() {
        Ok("v2") => return calls_are_understood(CgroupVersion::V2 { swap_controller: false }),
        Ok(_) => return calls_are_understood(CgroupVersion::V1 { swap_controller: false }),
        Err(_) => {}
    }
    let mut versions = vec!["v2"];
    if has_version_1() {
        versions.push("v1");
    } else {
        println!(
            "==== this machine has no cgroups of version 1: what systemd makes of the calls there IS NOT SHOWN ===="
        );
    }
    for version in versions {
        let world = World::up(&format!("systemd-{version}"), version);
        let mut again = world.program(std::env::current_exe().unwrap().to_str().unwrap());
        again.args(["--exact", "what_systemd_makes_of_the_calls", "--nocapture"]).env(INSIDE, version);
        assert!(again.status().unwrap().success(), "cgroups {version}");
    }
}

/// An agent in that world. Ended with it.
struct Agent<'w> {
    world: &'w World,
    child: Child,
}

impl<'w> Agent<'w> {
    fn start(world: &'w World) -> Self {
        Self::start_with(world, &[])
    }

    /// With further arguments.
    fn start_with(world: &'w World, arguments: &[&str]) -> Self {
        let dir = world.dir.join("agent");
        for name in ["manifests", "root"] {
            fs::create_dir_all(dir.join(name)).unwrap();
        }
        let smolet = std::env::var_os("SMOLET_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_smolet").into());
        let socket = world.dir.join("rt/smolet-test.sock");
        let log = fs::File::options().create(true).append(true).open(dir.join("log")).unwrap();
        let child = world
            .program(smolet.to_str().unwrap())
            .args(["run", "--node-name", "gw", "--cgroup-driver", "systemd", "--log-level", "debug"])
            .args(["--config", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/env/calm.yaml")])
            .arg("--runtime-endpoint")
            .arg(format!("unix://{}", socket.display()))
            .arg("--manifests")
            .arg(dir.join("manifests"))
            .arg("--root-dir")
            .arg(dir.join("root"))
            .arg("--socket")
            .arg(dir.join("s.sock"))
            .arg("--pod-logs-dir")
            .arg(dir.join("logs"))
            .arg("--container-logs-dir")
            .arg(dir.join("links"))
            .args(arguments)
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        Self { world, child }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.world.dir.join("agent/log")).unwrap_or_default()
    }

    /// The program is a child of the one that entered its namespaces.
    fn signal(&self, signal: Signal) {
        let pid = self.child.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        let agent = Pid::from_raw(children.split_whitespace().next().unwrap().parse().unwrap()).unwrap();
        kill_process(agent, signal).unwrap();
    }

    fn kill(mut self) {
        self.signal(Signal::KILL);
        self.child.wait().unwrap();
    }

    /// Waits until it has ended by itself.
    fn wait(mut self) {
        wait_for(&format!("its end; {}", self.log()), || self.child.try_wait().unwrap());
    }

    fn manifest(&self, name: &str) -> PathBuf {
        self.world.dir.join(format!("agent/manifests/{name}.yaml"))
    }

    fn put(&self, name: &str, resources: &str) {
        let text = format!(
            "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}}}, spec: {{hostNetwork: true, \
             terminationGracePeriodSeconds: 1, containers: [{{name: c, image: 'smolet.test/version:1', \
             resources: {{{resources}}}}}]}}}}"
        );
        self.put_text(name, &text);
    }

    fn put_text(&self, name: &str, text: &str) {
        // Whole, as careful tools write.
        let new = self.world.dir.join("agent/new");
        fs::write(&new, text).unwrap();
        fs::rename(new, self.manifest(name)).unwrap();
    }

    /// `None`: the agent does not answer.
    fn pods(&self) -> Option<Vec<Value>> {
        let smolet = std::env::var_os("SMOLET_BIN").unwrap_or_else(|| env!("CARGO_BIN_EXE_smolet").into());
        let mut ask = Command::new(smolet);
        let output =
            ask.args(["pods", "-o", "json", "--socket"]).arg(self.world.dir.join("agent/s.sock")).output();
        let list: Value = serde_json::from_slice(&output.unwrap().stdout).ok()?;
        list["items"].as_array().cloned()
    }

    /// It answers, and has none.
    fn has_no_pods(&self) -> Option<()> {
        self.pods()?.is_empty().then_some(())
    }

    /// The UID and the container's id, when it runs.
    fn running(&self, name: &str) -> (String, String) {
        wait_for(&format!("{name}; {}", self.log()), || {
            let of = self.pods()?.into_iter().find(|pod| pod["metadata"]["name"] == format!("{name}-gw"))?;
            let status = &of["status"];
            (status["phase"] == "Running").then_some(())?;
            let id = status["containerStatuses"][0]["containerID"].as_str()?.rsplit('/').next()?.to_owned();
            Some((of["metadata"]["uid"].as_str()?.to_owned(), id))
        })
    }
}

impl Drop for Agent<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            println!("---- the agent's words\n{}----", self.log());
        }
    }
}

#[test]
fn pods_have_slices_with_their_settings() {
    let v1 = has_version_1();
    let version = if v1 { "v1" } else { "v2" };
    println!("the agent with cgroups {version}");
    let world = World::up("systemd-agent", version);
    world.start_runtime();

    let agent = Agent::start(&world);
    let (socket, aside) = (world.path("/run/systemd/private"), world.path("/run/systemd/aside"));
    fs::rename(&socket, &aside).unwrap();
    agent.put("waits", "");
    wait_for("the pod says what it waits for", || {
        let log = agent.log();
        let told = log.lines().find(|line| line.contains("default/waits-gw: FailedCreatePodContainer"))?;
        assert!(told.contains("systemd does not answer at /run/systemd/private: No such file"), "{told}");
        Some(())
    });
    fs::remove_file(agent.manifest("waits")).unwrap();
    wait_for("it is gone", || agent.has_no_pods());
    fs::rename(&aside, &socket).unwrap();

    agent.put("strict", "limits: {cpu: 500m, memory: 64Mi}");
    agent.put("elastic", "requests: {cpu: 250m, memory: 16Mi}, limits: {memory: 48Mi}");
    agent.put("free", "");
    let cgroup = |controller: &str, slice: &str| {
        let controller = if v1 { format!("/{controller}") } else { String::new() };
        world.path(&format!("/sys/fs/cgroup{controller}{}", slices_of(slice)))
    };
    let file = |controller: &str, slice: &str, file: &str| {
        let path = cgroup(controller, slice).join(file);
        fs::read_to_string(&path)
            .map(|text| text.trim().to_owned())
            .unwrap_or_else(|e| panic!("{path:?}: {e}"))
    };
    let (weight_file, weight_property) =
        if v1 { ("cpu.shares", "CPUShares") } else { ("cpu.weight", "CPUWeight") };
    let (limit_file, limit_property) =
        if v1 { ("memory.limit_in_bytes", "MemoryLimit") } else { ("memory.max", "MemoryMax") };
    let weight = |shares: u64| (if v1 { shares } else { 1 + (shares - 2) * 9999 / 262_142 }).to_string();
    let mut units = Vec::new();
    for (name, class, shares, quota, memory) in [
        ("strict", "", 512, Some("50000"), Some("67108864")),
        ("elastic", "-burstable", 256, None, Some("50331648")),
        ("free", "-besteffort", 2, None, None),
    ] {
        let (uid, id) = agent.running(name);
        let unit = format!("kubepods{class}-pod{}.slice", uid.replace('-', "_"));
        assert_eq!(file("cpu", &unit, weight_file), weight(shares), "{name}");
        if v1 {
            assert_eq!(file("cpu", &unit, "cpu.cfs_quota_us"), quota.unwrap_or("-1"), "{name}");
        } else {
            assert_eq!(file("cpu", &unit, "cpu.max"), format!("{} 100000", quota.unwrap_or("max")), "{name}");
        }
        if let Some(bytes) = memory {
            assert_eq!(file("memory", &unit, limit_file), bytes, "{name}");
            assert_eq!(world.show(&unit, &[limit_property]), [bytes]);
        }
        let shown = world.show(&unit, &["ActiveState", "Transient", weight_property]);
        assert_eq!(shown, ["active", "yes", &*weight(shares)]);
        let scope = cgroup("memory", &unit).join(format!("cri-containerd-{id}.scope"));
        assert!(scope.is_dir(), "its container is in {}", scope.display());
        units.push(unit);
    }
    // What the kernel has and what systemd would write again.
    let weighs = |name: &str, shares: u64| {
        let unit = format!("kubepods-{name}.slice");
        wait_for(&format!("{unit} weighs as {shares} shares"), || {
            let kernels = file("cpu", &unit, weight_file);
            let weights = [kernels, world.show(&unit, &[weight_property])[0].clone()];
            weights.iter().all(|found| *found == weight(shares)).then_some(())
        });
    };
    weighs("burstable", 256);
    weighs("besteffort", 2);

    // An agent that was killed finds them; another pod changes the weight of its class.
    agent.kill();
    let agent = Agent::start(&world);
    agent.put("second", "requests: {cpu: '1'}");
    agent.running("second");
    weighs("burstable", 1280);
    assert_eq!(file("cpu", &units[0], weight_file), weight(512));

    fs::remove_file(agent.manifest("second")).unwrap();
    weighs("burstable", 256);
    for name in ["strict", "elastic", "free"] {
        fs::remove_file(agent.manifest(name)).unwrap();
    }
    wait_for("no pods", || agent.has_no_pods());
    for unit in &units {
        wait_for(&format!("{unit} is stopped"), || {
            let is_inactive = world.show(unit, &["ActiveState", "LoadState"])[0] == "inactive";
            let is_gone = ["cpu", "memory", "systemd"].into_iter().all(|of| !cgroup(of, unit).exists());
            (is_inactive && is_gone).then_some(())
        });
    }
    assert_eq!(leftovers(&world.path("/")), Vec::<PathBuf>::new());
    let log = agent.log();
    // The machine's load is no fault of the node's.
    let known = |line: &str| line.contains("default/waits-gw") || line.contains("blocked the loop");
    let warnings: Vec<&str> = log.lines().filter(|line| line.contains("WARN") && !known(line)).collect();
    assert_eq!(warnings, [""; 0]);
}

/// The path of a slice's cgroup: it stands in the slices that its name begins with.
fn slices_of(unit: &str) -> String {
    let name = unit.strip_suffix(".slice").unwrap();
    let ends = name.match_indices('-').map(|(at, _)| at).chain([name.len()]);
    ends.map(|end| format!("/{}.slice", &name[..end])).collect()
}
