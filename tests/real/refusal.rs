//! What the agent refuses, and what it leaves alone.

use std::os::unix::fs::symlink;
use std::time::Duration;

use rustix::fs::{CWD, Mode, mkfifoat};
use smolet::model::SandboxState;

use crate::agent::{Agent, PATIENCE, id_of, is_release, smolet, wait_until};
use crate::finding::Finding;
use crate::runtime::Runtime;

const PLAIN: &str = "
  terminationGracePeriodSeconds: 2
  containers:
  - {name: app, image: 'smolet.test/version:1'}";

pub fn a_second_agent_on_the_same_state_is_refused(runtime: &Runtime) {
    let mut agent = Agent::started(runtime, "second");
    agent.apply_pod("app", PLAIN);
    let before = agent.running("app");
    let mut second = agent.command();
    second.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::piped());
    let mut second = second.spawn().expect("a second agent can be started");
    let Some(status) =
        wait_until(Duration::from_secs(PATIENCE), || second.try_wait().expect("our own child"))
    else {
        let _ = second.kill();
        let _ = second.wait();
        panic!("the second agent goes on");
    };
    let words = second.wait_with_output().expect("its words").stderr;
    let words = String::from_utf8_lossy(&words).into_owned();
    assert!(!status.success(), "the second agent fails: {words}");
    let root = agent.dir.join("root").display().to_string();
    assert!(words.contains(&root), "and names the directory that is taken: {words}");
    assert!(agent.is_alive());
    assert_eq!(id_of(&agent.running("app"), "app"), id_of(&before, "app"), "the first one is not disturbed");
    agent.end_pods();
}

pub fn an_invalid_manifest_keeps_the_pod(runtime: &Runtime) {
    let mut agent = Agent::started(runtime, "invalid");
    agent.apply_pod("app", PLAIN);
    let id = id_of(&agent.running("app"), "app");
    let same = |agent: &Agent, when: &str| {
        let running = runtime.running_container(&agent.full("app"), "app");
        assert_eq!(running.id.as_str(), id, "{when}");
    };

    agent.apply("app", "apiVersion: v1\nkind: Pod\nmetadata: {name: app\nspec: [");
    std::thread::sleep(Duration::from_secs(2));
    same(&agent, "while the manifest is broken");
    assert!(agent.is_alive());
    agent.stop();
    agent.start();
    // The agent has come up: another pod runs.
    agent.apply_pod("other", PLAIN);
    agent.running("other");
    same(&agent, "after a restart with the manifest still broken");

    agent.apply_pod("app", PLAIN);
    agent.running("app");
    same(&agent, "after the manifest is whole again");
    agent.end_pods();
}

pub fn hostile_manifests_do_not_end_the_agent(runtime: &Runtime) {
    let mut agent = Agent::started(runtime, "hostile");
    agent.apply_pod("good", PLAIN);
    let before = agent.running("good");

    let mut bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for (next, last) in ('b'..='z').zip('a'..='y') {
        bomb += &format!(
            "{next}: &{next} [*{last}, *{last}, *{last}, *{last}, *{last}, *{last}, *{last}, *{last}]\n"
        );
    }
    let annotations: String = (0..20_000).map(|n| format!("    key{n}: '{}'\n", "x".repeat(200))).collect();
    let containers: String =
        (0..5_000).map(|n| format!("  - {{name: c{n}, image: 'smolet.test/version:1'}}\n")).collect();
    let hostile = [
        ("bomb", bomb),
        ("deep", "[".repeat(200_000)),
        ("deep-json", "{\"a\":".repeat(100_000)),
        (
            "huge",
            format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: huge}}\nx: '{}'", "y".repeat(40 << 20)),
        ),
        ("binary", String::from_utf8_lossy(&[0, 159, 146, 150, 7, 27]).repeat(10_000)),
        ("empty", String::new()),
        ("list", "apiVersion: v1\nkind: List\nitems: []\n".to_owned()),
        ("deployment", "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\n".to_owned()),
        ("escape", agent.pod_text("../../escape", PLAIN)),
        ("upper", agent.pod_text("Not_A_Name", PLAIN)),
        ("no-containers", agent.pod_text("empty", "\n  containers: []")),
        (
            "twice",
            agent.pod_text(
                "twice",
                &PLAIN.replace("  - {name: app", "  - {name: app, image: x}\n  - {name: app"),
            ),
        ),
        ("number", agent.pod_text("number", &PLAIN.replace("Seconds: 2", "Seconds: -99999999999999999999"))),
        (
            "annotated",
            format!(
                "apiVersion: v1\nkind: Pod\nmetadata:\n  name: annotated\n  annotations:\n{annotations}spec:{PLAIN}\n"
            ),
        ),
        ("many", agent.pod_text("many", &format!("\n  containers:\n{containers}"))),
        ("terminal", agent.pod_text("\"a\\e[2Jb\"", PLAIN)),
    ];
    for (name, text) in &hostile {
        agent.apply(name, text);
    }
    let there = |name: &str| agent.manifests().join(name);
    mkfifoat(CWD, there("pipe.yaml"), Mode::from_raw_mode(0o600)).expect("a pipe");
    symlink(there("loop.yaml"), there("loop.yaml")).expect("a link to itself");
    symlink("/nowhere/at/all", there("dangling.yaml")).expect("a dangling link");
    symlink("/dev/zero", there("zero.yaml")).expect("a link to an endless device");
    std::fs::create_dir(there("dir.yaml")).expect("a directory");
    std::fs::write(
        there("good.yaml.backup"),
        agent.pod_text("good", "\n  containers: [{name: app, image: old}]"),
    )
    .expect("an editor's backup");

    // It still does its work, with the same memory as before.
    agent.apply_pod("after", PLAIN);
    agent.running("after");
    assert!(agent.is_alive());
    let finding = Finding::of(agent.pid());
    println!("  at most {} KiB resident", finding.resident_kib_max);
    if is_release() {
        assert!(finding.resident_kib_max <= 16 * 1024, "the promise is 16 MiB: {finding:?}");
    }
    let after = agent.running("good");
    assert_eq!(id_of(&after, "app"), id_of(&before, "app"), "the good pod is not disturbed");
    let mut names: Vec<_> = runtime.sandboxes().iter().map(|sandbox| sandbox.pod.name.to_string()).collect();
    names.sort();
    assert_eq!(names, [agent.full("after"), agent.full("good")], "and none of the others runs");
    agent.end_pods();
}

pub fn foreign_pods_are_left_alone(runtime: &Runtime) {
    let foreign = runtime.run_foreign_sandbox("foreign");
    let agent = Agent::started(runtime, "owner");
    agent.apply_pod("mine", PLAIN);
    agent.running("mine");
    agent.end_pods();
    agent.wait_gone("mine");
    let left = runtime.sandboxes();
    assert_eq!(left.len(), 1);
    assert_eq!((&left[0].id, left[0].state), (&foreign, SandboxState::Ready));
    runtime.remove_all_pods();
}

pub fn once_tells_what_became_of_each_pod(runtime: &Runtime) {
    let agent = Agent::new(runtime, "once");
    let once = |agent: &Agent| {
        let output = agent.command().arg("--once").output().expect("smolet run --once");
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    agent.apply_pod("runs", PLAIN);
    let job = "\n  restartPolicy: Never\n  containers:\n  - {name: app, image: 'smolet.test/busybox:1', command: [sh, -c, exit CODE]}";
    agent.apply_pod("ends", &job.replace("CODE", "0"));
    let (code, words) = once(&agent);
    assert_eq!(code, Some(0), "all is as wanted: {words}");
    assert!(words.contains(&agent.full("runs")) && words.contains(&agent.full("ends")), "{words}");
    runtime.running_container(&agent.full("runs"), "app");

    // An init container's failure: the pod is never seen running.
    let fails = job.replace("CODE", "0").replace("containers:", "initContainers:\n  - {name: init, image: 'smolet.test/busybox:1', command: [sh, -c, exit 1]}\n  containers:");
    agent.apply_pod("fails", &fails);
    let (code, words) = once(&agent);
    assert!(code.is_some_and(|code| code != 0), "a failed pod is not as wanted: {words}");
    assert!(words.contains(&agent.full("fails")), "{words}");

    let mut agent = agent;
    agent.start();
    agent.running("runs");
    agent.end_pods();
}

pub fn check_judges_manifests_without_an_agent(runtime: &Runtime) {
    let agent = Agent::new(runtime, "check");
    let check = |path: &std::path::Path| {
        let output = smolet().arg("check").arg(path).output().expect("smolet check");
        let words = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&words).into_owned())
    };
    agent.apply_pod("right", PLAIN);
    let (good, words) = check(&agent.manifests());
    assert!(good, "{words}");
    agent.apply_pod("wrong", &PLAIN.replace("containers:", "containres:"));
    let (good, words) = check(&agent.manifest("wrong"));
    assert!(!good && words.contains("wrong.yaml") && words.contains("contain"), "{words}");
    assert!(!check(&agent.manifests()).0, "a directory is as good as its worst file");
}
