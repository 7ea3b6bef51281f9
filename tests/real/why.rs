//! What the agent tells of its pods, what they use and what happened to them, and what `smolet doctor` does of the machine.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::sync::mpsc;
use std::time::Duration;

use crate::agent::{Agent, PATIENCE, smolet};
use crate::runtime::{Kind, Runtime, wait_for};

/// Beside an agent and without one; what it finds of the machine itself is printed.
pub fn doctor_judges_the_machine_and_its_runtime(runtime: &Runtime) {
    let root = runtime.dir().join("agents/doctor/root");
    let doctor = |words: &[&str]| {
        let mut command = smolet();
        command.args(["doctor", "--runtime-endpoint", &runtime.endpoint(), "--root-dir"]).arg(&root);
        command.args(words).output().expect("smolet can be run")
    };
    let findings = || {
        let output = doctor(&["-o", "json"]);
        let said: serde_json::Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
        let findings = said["findings"].as_array().expect("a list").clone();
        let is_problem = |finding: &serde_json::Value| finding["level"] == "problem";
        assert_eq!(output.status.success(), !findings.iter().any(is_problem), "{said}");
        findings
    };
    let of = |findings: &[serde_json::Value], check: &str| {
        let found = findings.iter().find(|finding| finding["check"] == check);
        let found = found.unwrap_or_else(|| panic!("no {check} among {findings:?}"));
        let text = |name: &str| found[name].as_str().expect("text").to_owned();
        (text("level"), text("message"))
    };
    let ok = |message: &str| ("ok".to_owned(), message.to_owned());
    let alone = findings();
    let told = "10-smolet-test.conflist (bridge, host-local, portmap)";
    let (name, cni) = match Kind::chosen() {
        Kind::Containerd => ("containerd ", told),
        Kind::Embedded => ("smolet ", told),
        Kind::CriO => {
            ("cri-o ", "the runtime's network is ready; it does not tell which CNI configuration it uses")
        }
    };
    let (level, message) = of(&alone, "runtime");
    assert!(level == "ok" && message.starts_with(name), "{message}");
    assert_eq!(of(&alone, "other agents"), ok("none on this runtime"));
    assert_eq!(of(&alone, "pause image"), ok("smolet.test/pause:1"));
    assert_eq!(of(&alone, "cni"), ok(cni));
    let (_, message) = of(&alone, "disk of images");
    assert!(message.starts_with(&runtime.dir().join("root").display().to_string()), "{message}");
    assert_eq!(of(&alone, "memory cgroup").0, "ok", "other tests limit memory on this machine");
    assert!(!root.exists(), "it changes nothing");

    let agent = Agent::started(runtime, "doctor");
    agent.apply_pod("web", "  containers: [{name: app, image: 'smolet.test/version:1'}]");
    agent.running("web");
    assert_eq!(of(&findings(), "other agents"), ok("none on this runtime"), "the agent's own are ours");
    let foreign = runtime.run_foreign_sandbox("stranger");
    let (level, message) = of(&findings(), "other agents");
    assert_eq!(level, "warning");
    assert_eq!(message, "the running sandbox of pod default/stranger was not made by smolet");
    println!("{}", String::from_utf8_lossy(&doctor(&[]).stdout));
    runtime.stop_sandbox(&foreign);
    runtime.remove_sandbox(&foreign);
    agent.end_pods();
}

/// Thousandths of cores and MiB of a row of `smolet top`; none before it is known what the pod uses.
fn used(table: &str, pod: &str) -> Option<(u64, u64, Option<u64>)> {
    let row = table.lines().find(|row| row.starts_with(&format!("{pod}\t")));
    let row = row.unwrap_or_else(|| panic!("{pod} is not in\n{table}"));
    let [_, cpu, memory, written] = row.split('\t').collect::<Vec<_>>()[..] else { panic!("{row}") };
    let number = |text: &str, unit| text.strip_suffix(unit).and_then(|number| number.parse().ok());
    if [cpu, memory].contains(&"<unknown>") {
        return None;
    }
    let (cpu, memory) = (number(cpu, "m").expect("a number"), number(memory, "Mi").expect("a number"));
    Some((cpu, memory, number(written, "Mi")))
}

/// A pod that counts without an end, one that holds 32 MiB and has written 9, and one that sleeps.
pub fn top_shows_what_pods_use(runtime: &Runtime) {
    let agent = Agent::started(runtime, "top");
    let pod = |name: &str, script: &str| {
        let spec = format!(
            "
  terminationGracePeriodSeconds: 2
  containers:
  - name: app
    image: smolet.test/busybox:1
    command: [sh, -c, {script:?}]"
        );
        agent.apply_pod(name, &spec);
    };
    pod("busy", "while :; do :; done");
    pod(
        "full",
        "head -c 33554432 /dev/zero > /dev/shm/held; dd if=/dev/zero of=/file bs=1M count=9 conv=fsync; exec sleep 3600",
    );
    pod("idle", "exec sleep 3600");
    for name in ["busy", "full", "idle"] {
        agent.running(name);
    }
    let names = ["busy", "full", "idle"].map(|name| agent.full(name));
    let table =
        wait_for("32 MiB are held, 9 are written, and one counts more than the one that sleeps", 60, || {
            let output = agent.ask(&["top", &names[0], &names[1], &names[2]]);
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            let table = String::from_utf8(output.stdout).expect("text");
            let (_, held, written) = used(&table, &names[1])?;
            let (busy, idle) = (used(&table, &names[0])?.0, used(&table, &names[2])?.0);
            // Others may leave the counting one little of a core, and the start of the sleeping one counts for a while.
            let is_told = held >= 32 && (written.is_none() || written >= Some(9)) && busy > 10 * idle.max(2);
            is_told.then_some(table)
        });
    println!("{table}");
    let [busy, full, idle] = names.map(|name| used(&table, &name).expect("it is known"));
    assert!(busy.0 <= 1100, "it has one thread: {table}");
    assert!(full.1 < 48 && busy.1 < 16 && idle.1 < 16, "{table}");
    // Version 1 of cgroups does not count it.
    let counts = std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    assert_eq!([busy.2, idle.2], [counts.then_some(0); 2], "{table}");
    let page = agent.metrics();
    let written =
        |name: &str| page.lines().any(|line| line.starts_with(&format!("smolet_{name}_written_bytes_total")));
    assert_eq!([written("process"), written("pod"), written("runtime")], [true, counts, true], "{page}");
    let of_agent = agent.ask(&["top", "--self"]);
    let of_agent = String::from_utf8(of_agent.stdout).expect("text");
    assert!(of_agent.contains("\nruntime: "), "{of_agent}");
    assert_eq!(full.2.map(|written| written < 32), counts.then_some(true), "{table}");
    agent.end_pods();
}

/// `smolet events -w` while a pod is started, changed and ended.
pub fn events_are_followed_while_they_happen(runtime: &Runtime) {
    let agent = Agent::started(runtime, "events");
    agent.apply_pod("other", "  containers: [{name: app, image: 'smolet.test/version:1'}]");
    agent.running("other");
    let mut follower = smolet()
        .args(["events", "-w", "web", "--socket"])
        .arg(agent.socket())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("smolet can be run");
    let shown = BufReader::new(follower.stdout.take().expect("a pipe"));
    // A thread of its own, so that what never comes is waited for no longer than PATIENCE.
    let (sender, lines) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        shown.lines().map_while(Result::ok).all(|line| sender.send(line).is_ok());
    });
    let mut told = Vec::new();
    let mut until = |reason: &str, what: &str| loop {
        let Ok(line) = lines.recv_timeout(Duration::from_secs(PATIENCE)) else {
            panic!("no {reason} of {what} among\n{}", told.join("\n"));
        };
        let fields: Vec<&str> = line.split('\t').collect();
        let found = fields[2] == reason && fields[4].contains(what);
        told.push(line);
        if found {
            break;
        }
    };
    let spec = |version: u32| {
        format!(
            "
  terminationGracePeriodSeconds: 2
  containers: [{{name: app, image: 'smolet.test/version:{version}'}}]"
        )
    };
    let watch = std::panic::AssertUnwindSafe(|| {
        agent.apply_pod("web", &spec(1));
        until("Started", "app");
        agent.apply_pod("web", &spec(2));
        until("Killing", "app");
        until("Started", "app");
        agent.delete("web");
        until("Killing", "app");
    });
    let outcome = std::panic::catch_unwind(watch);
    // Whatever became of it: it does not outlive the test.
    follower.kill().expect("our own child can be killed");
    follower.wait().expect("our own child can be waited for");
    reader.join().expect("it ends with the command");
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
    println!("{}", told.join("\n"));
    assert!(!told.iter().any(|line| line.contains("other")), "{told:?}");
    let listed = agent.ask(&["events", "web"]);
    let listed = String::from_utf8(listed.stdout).expect("text");
    assert!(listed.contains("(x2 over "), "it was started twice:\n{listed}");
    agent.end_pods();
}
