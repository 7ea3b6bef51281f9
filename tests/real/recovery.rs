//! Crashes: of the agent, of containerd, of what runs below them.

use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use rustix::process::{Pid, Signal, kill_process};
use smolet::model::{ContainerState, SandboxState};

use crate::agent::{Agent, PATIENCE, container, id_of, ip_of, is_ready};
use crate::runtime::{Runtime, wait_for};

const PLAIN: &str = "
  terminationGracePeriodSeconds: 2
  containers:
  - {name: app, image: 'smolet.test/version:1'}";

pub fn a_killed_agent_takes_its_pods_up_again(runtime: &Runtime) {
    let mut agent = Agent::started(runtime, "killed");
    for name in ["a", "b", "c"] {
        agent.apply_pod(name, PLAIN);
    }
    let before: Vec<_> = ["a", "b", "c"].map(|name| agent.running(name)).into();
    agent.kill();
    agent.start();
    for (name, before) in ["a", "b", "c"].into_iter().zip(&before) {
        let after = agent.running(name);
        assert_eq!(id_of(&after, "app"), id_of(before, "app"), "pod {name} was not touched");
        assert_eq!((ip_of(&after), &after.metadata.uid), (ip_of(before), &before.metadata.uid));
        let status = container(after.status.as_ref().expect("a status"), "app").expect("a container status");
        assert_eq!(status.restart_count, 0);
        let started = |pod: &Pod| {
            pod.status.as_ref().and_then(|status| status.start_time.clone()).map(|time| time.0.as_second())
        };
        // An agent that is killed before its record was written takes the age of what it finds.
        let sandbox = runtime.ready_sandbox(&agent.full(name)).created_at.0.div_euclid(1_000_000_000);
        assert!(
            [started(before), Some(sandbox)].contains(&started(&after)),
            "pod {name} started at {:?}, its sandbox at {sandbox}, and is shown as started at {:?}",
            started(before),
            started(&after)
        );
    }
    assert_eq!(runtime.sandboxes().len(), 3);
    assert_eq!(runtime.containers().len(), 3);
    agent.end_pods();
}

pub fn an_agent_killed_while_it_starts_pods_doubles_nothing(runtime: &Runtime) {
    let mut agent = Agent::new(runtime, "midway");
    let names: Vec<String> = (0..8).map(|n| format!("p{n}")).collect();
    names.iter().for_each(|name| agent.apply_pod(name, PLAIN));
    // Different instants of the start: a sandbox half made, one without a container, a container not started.
    for millis in [120, 260, 410, 90, 330, 500] {
        agent.start();
        std::thread::sleep(Duration::from_millis(millis));
        agent.kill();
    }
    agent.start();
    names.iter().for_each(|name| drop(agent.running(name)));
    for name in &names {
        let full = agent.full(name);
        runtime.ready_sandbox(&full);
        runtime.running_container(&full, "app");
    }
    agent.end_pods();
}

pub fn what_happened_while_the_agent_was_away_is_made_good(runtime: &Runtime) {
    let mut agent = Agent::started(runtime, "away");
    agent.apply_pod("removed", PLAIN);
    agent.apply_pod(
        "exits",
        r"
  terminationGracePeriodSeconds: 2
  volumes: [{name: out, hostPath: {path: $OUT}}]
  containers:
  - name: app
    image: smolet.test/busybox:1
    command: [sh, -c, 'while [ ! -e /out/stop ]; do sleep 0.1; done; rm /out/stop; exit 4']
    volumeMounts: [{name: out, mountPath: /out}]
",
    );
    agent.running("removed");
    agent.running("exits");
    let status = agent.stop();
    assert!(status.success(), "SIGTERM is an orderly end: {status}");
    runtime.running_container(&agent.full("removed"), "app");

    agent.delete("removed");
    agent.apply_pod("added", PLAIN);
    std::fs::write(agent.out().join("stop"), "").expect("a mark for the container");
    wait_for("the container has exited", PATIENCE, || {
        let containers = runtime.containers_of(&agent.full("exits"));
        (containers.first()?.state == ContainerState::Exited).then_some(())
    });
    agent.start();
    agent.running("added");
    agent.wait_pod("exits", "restarted once", |status| {
        is_ready(status) && container(status, "app").is_some_and(|app| app.restart_count == 1)
    });
    agent.wait_gone("removed");
    agent.end_pods();
}

pub fn pods_and_agent_outlive_containerd(runtime: &Runtime) {
    let mut agent = Agent::started(runtime, "outlive");
    agent.apply_pod("stays", PLAIN);
    let before = agent.running("stays");

    runtime.kill();
    agent.apply_pod("late", PLAIN);
    std::thread::sleep(Duration::from_secs(2));
    assert!(agent.is_alive(), "the agent waits for the runtime");
    assert!(agent.pod("stays").is_some(), "and still tells what it knows");
    runtime.start();

    agent.running("late");
    let after = agent.running("stays");
    assert_eq!(id_of(&after, "app"), id_of(&before, "app"), "the running container was not touched");
    assert_eq!(ip_of(&after), ip_of(&before));
    assert_eq!(runtime.containers_of(&agent.full("stays")).len(), 1);

    // The same while a container exits unseen.
    let id = runtime.running_container(&agent.full("stays"), "app").id;
    runtime.kill();
    let init = shim_child(id.as_str());
    kill_process(init, Signal::KILL).expect("the container can be killed");
    runtime.start();
    let mended = agent.wait_pod("stays", "restarted once", |status| {
        is_ready(status) && container(status, "app").is_some_and(|app| app.restart_count == 1)
    });
    assert_ne!(id_of(&mended, "app"), id.as_str());
    agent.end_pods();
}

/// The first process of a container, found by its cgroup and as the first one of its PID namespace: others may have lower numbers.
pub fn shim_child(id: &str) -> Pid {
    let processes = std::fs::read_dir("/proc").expect("/proc");
    let mut pids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let pid = pids.find(|pid| {
        let text = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let is_first = |line: &str| line.starts_with("NSpid:") && line.ends_with("\t1");
        text("cgroup").contains(id) && text("status").lines().any(is_first)
    });
    Pid::from_raw(pid.expect("the container has a process")).expect("not zero")
}

pub fn a_sandbox_stopped_from_outside_is_replaced(runtime: &Runtime) {
    let agent = Agent::started(runtime, "sandbox");
    agent.apply_pod("app", PLAIN);
    let before = agent.running("app");
    let full = agent.full("app");
    let sandbox = runtime.ready_sandbox(&full);
    runtime.stop_sandbox(&sandbox.id);

    let next = wait_for("a new sandbox is ready", PATIENCE, || {
        let mut all = runtime.sandboxes_of(&full);
        all.retain(|s| s.state == SandboxState::Ready);
        all.pop()
    });
    assert_eq!(
        (next.attempt, &next.pod.uid),
        (sandbox.attempt + 1, &sandbox.pod.uid),
        "the pod's next attempt"
    );
    // The runtime stops the container first: told of that alone, the agent may start it in the old sandbox once more.
    let ip = runtime.ip(&next.id);
    let after = agent.wait_pod("app", "ready in the new sandbox, with its address", |status| {
        is_ready(status)
            && container(status, "app").is_some_and(|app| app.restart_count >= 1)
            && status.pod_ip.as_deref() == Some(&*ip)
    });
    assert_eq!(after.metadata.uid, before.metadata.uid);
    assert_eq!(runtime.running_container(&full, "app").sandbox_id, next.id);
    agent.end_pods();
}

pub fn a_container_removed_from_outside_is_replaced(runtime: &Runtime) {
    let agent = Agent::started(runtime, "container");
    agent.apply_pod("app", PLAIN);
    let before = agent.running("app");
    let container_before = runtime.running_container(&agent.full("app"), "app");
    runtime.remove_container(&container_before.id);
    let after = wait_for("a new container is ready", PATIENCE, || {
        let pod = agent.pod("app").filter(|pod| pod.status.as_ref().is_some_and(is_ready))?;
        (id_of(&pod, "app") != container_before.id.as_str()).then_some(pod)
    });
    assert_eq!(after.metadata.uid, before.metadata.uid);
    assert_eq!(ip_of(&after), ip_of(&before), "the sandbox was kept");
    agent.end_pods();
}

pub fn a_restart_count_survives_the_loss_of_record_and_log(runtime: &Runtime) {
    let mut agent = Agent::started(runtime, "counts");
    agent.apply_pod("app", PLAIN);
    let before = agent.running("app");
    let end = shim_child(&id_of(&before, "app"));
    kill_process(end, Signal::KILL).expect("the container can be killed");
    agent.wait_pod("app", "restarted once", |status| {
        is_ready(status) && container(status, "app").is_some_and(|app| app.restart_count == 1)
    });
    let status = agent.stop();
    assert!(status.success(), "SIGTERM is an orderly end: {status}");
    for container in runtime.containers_of(&agent.full("app")) {
        runtime.remove_container(&container.id);
    }
    let logs = agent.log_dir("app").expect("the pod has logs");
    std::fs::remove_dir_all(logs).expect("they can be removed");
    agent.start();
    let after = agent.wait_pod("app", "restarted twice", |status| {
        is_ready(status) && container(status, "app").is_some_and(|app| app.restart_count == 2)
    });
    assert_eq!(after.metadata.uid, before.metadata.uid);
    let status = after.status.as_ref().expect("a status");
    assert_eq!(status.start_time, before.status.as_ref().expect("a status").start_time);
    agent.end_pods();
}

/// A containerd killed at the wrong moment knows nothing of a container that it was starting, whose processes run on.
pub fn a_process_that_the_runtime_forgot_ends_with_its_pod(runtime: &Runtime) {
    let agent = Agent::started(runtime, "forgotten");
    agent.apply_pod("app", PLAIN);
    let uid = agent.running("app").metadata.uid.expect("a UID");
    let mut forgotten = Command::new("sleep").arg("600").spawn().expect("sleep");
    let pods = cgroups(runtime, &format!("pod{uid}"));
    let moved = pods.iter().filter(|pod| {
        // Below the pod's own, which on version 2 may hold no process itself. Some controllers of version 1 take none
        // without settings.
        let path = pod.join("forgotten");
        std::fs::create_dir(&path).expect("a cgroup can be made");
        std::fs::write(path.join("cgroup.procs"), forgotten.id().to_string()).is_ok()
    });
    assert!(moved.count() > 0, "it is in one of {pods:?}");

    agent.delete("app");
    agent.wait_gone("app");
    let ended = wait_for("the process ends", PATIENCE, || forgotten.try_wait().expect("a child"));
    assert_eq!(ended.signal(), Some(Signal::KILL.as_raw()));
    wait_for("its cgroups are gone", PATIENCE, || {
        cgroups(runtime, &format!("pod{uid}")).is_empty().then_some(())
    });
    let told = format!("killed processes {{{}}}", forgotten.id());
    wait_for(&format!("the log says {told}"), PATIENCE, || agent.log().contains(&told).then_some(()));
}

/// The directories of that name below the tests' cgroup, in all hierarchies.
fn cgroups(runtime: &Runtime, name: &str) -> Vec<PathBuf> {
    let found = Command::new("find")
        .args(["/sys/fs/cgroup", "-type", "d", "-path", &format!("*{}*", runtime.cgroup_root), "-name", name])
        .output();
    let found = String::from_utf8(found.expect("find").stdout).expect("paths are text");
    found.lines().map(PathBuf::from).collect()
}
