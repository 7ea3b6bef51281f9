//! Pods that have ended, here or in the word of others.

use std::time::Duration;

use serde_json::json;
use smolet::config::{Config, EvictionPolicy};
use smolet::eviction::{Amount, Signal, Threshold};

use crate::common::fake::Program;
use crate::world::{World, app};

#[test]
fn of_a_pod_that_has_ended_no_object_is_followed() {
    let world = World::without_agent();
    world.api.admit_accounts();
    world.fake.program("app", Program::exits(0, Duration::from_millis(500)));
    world.start();
    let mut spec = app();
    spec["restartPolicy"] = "Never".into();
    spec["containers"][0]["envFrom"] = json!([{"configMapRef": {"name": "words"}}]);
    world.api.create("configmaps", json!({"metadata": {"name": "words"}, "data": {"word": "hello"}}));
    world.bind("job", spec);
    world.until("it has succeeded", |world| world.phase("job") == "Succeeded");
    let uid = world.pod("job").unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
    let volumes = world.path(&format!("root/pods/{uid}/volumes"));
    world.until("its volumes are gone", |_| !volumes.exists());
    world.until("nothing is followed", |world| {
        world.local("/metrics").contains("\nsmolet_bounded_entries{structure=\"cluster_objects\"} 0\n")
    });
    assert_eq!(world.fake.state().dead().len(), 1, "its container stays for its logs");
    world.api.delete("pods", "default", "job", None);
    world.until("it is gone there", |world| world.pod("job").is_none());
    world.until("and here", |world| world.fake.state().dead().is_empty());
}

/// As the taint manager, or an administrator, ends a pod of a node of which nothing is heard.
fn fail(world: &World, name: &str) {
    let status =
        json!({"status": {"phase": "Failed", "reason": "NodeLost", "message": "nobody heard of it"}});
    world.api.patch("pods", "default", name, &status);
}

/// It has ended here and there, with the words of whoever ended it.
fn has_failed(world: &World, name: &str) {
    world.until("its container has ended", |world| world.fake.state().running().is_empty());
    world.until("its end is told", |world| {
        let status = world.pod(name).unwrap()["status"].clone();
        !status["containerStatuses"][0]["state"]["terminated"].is_null()
    });
    let status = world.pod(name).unwrap()["status"].clone();
    let said = [&status["phase"], &status["reason"], &status["message"]];
    assert_eq!(said, [&json!("Failed"), &json!("NodeLost"), &json!("nobody heard of it")]);
    assert!(!world.is_ready(name));
}

#[test]
fn a_pod_that_others_have_set_to_failed_ends_here() {
    let world = World::new();
    world.run("web");
    fail(&world, "web");
    has_failed(&world, "web");
    let starts = world.fake.actions().iter().filter(|call| call.starts_with("StartContainer")).count();
    assert_eq!(starts, 1, "{:?}", world.fake.actions());
}

#[test]
fn a_pod_that_was_set_to_failed_while_no_agent_ran_does_not_run_again() {
    for forgets in [false, true] {
        let world = World::new();
        world.run("web");
        world.kill();
        fail(&world, "web");
        if forgets {
            std::fs::remove_file(world.path("root/checkpoint")).ok();
        }
        world.fake.clear_calls();
        world.start();
        has_failed(&world, "web");
        let actions = world.fake.actions();
        assert!(actions.iter().all(|call| !call.starts_with("StartContainer")), "{actions:?}");
        // Its replacement is not held up by it.
        world.api.delete("pods", "default", "web", None);
        world.until("it is gone there", |world| world.pod("web").is_none());
    }
}

#[test]
fn of_a_pod_that_was_set_to_failed_what_has_crashed_does_not_start_again() {
    let world = World::without_agent();
    world.fake.program("app", Program::exits(1, Duration::from_millis(10)));
    world.start();
    world.bind("web", app());
    world.until("it crashed, and waits for its next start", |world| {
        let state = world.fake.state();
        !state.dead().is_empty() && state.running().is_empty()
    });
    world.kill();
    fail(&world, "web");
    // The checkpoint is of before.
    std::fs::remove_file(world.path("root/checkpoint")).ok();
    world.fake.clear_calls();
    world.start();
    has_failed(&world, "web");
    // Longer than it has to wait.
    world.pass(Duration::from_secs(25));
    let actions = world.fake.actions();
    assert!(actions.iter().all(|call| !call.starts_with("CreateContainer")), "{actions:?}");
}

fn event(world: &World, pod: &str, reason: &str) -> Option<String> {
    let all = world.api.list("events", "default");
    let of = all.iter().find(|of| of["involvedObject"]["name"] == pod && of["reason"] == reason);
    of.map(|of| of["message"].as_str().unwrap_or_default().to_owned())
}

#[test]
fn a_pod_that_comes_to_a_node_short_of_memory_fails_as_evicted() {
    let world = World::without_agent();
    let text = "MemTotal: 1048576 kB\nMemFree: 1 kB\nMemAvailable: 1024 kB\n";
    std::fs::write(world.path("meminfo"), text).unwrap();
    let threshold = Threshold {
        signal: Signal::MemoryAvailable,
        at: Amount::Quantity(100 << 20),
        grace: Duration::ZERO,
        min_reclaim: None,
    };
    let transition = Duration::from_mins(5);
    let eviction = EvictionPolicy { thresholds: vec![threshold], transition, max_pod_grace: 0 };
    world.start_with(Config { eviction, meminfo: world.path("meminfo"), ..world.config() });
    world.until("the node is short of memory", |world| {
        let node = world.node().unwrap_or_default();
        let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|of| of["type"] == "MemoryPressure" && of["status"] == "True")
    });
    world.bind("web", app());
    world.until("it has failed", |world| world.phase("web") == "Failed");
    let status = world.pod("web").unwrap()["status"].clone();
    assert_eq!(status["reason"], "Evicted");
    assert_eq!(status["message"], "Pod was rejected: The node had condition: [MemoryPressure]. ");
    assert!(status["startTime"].is_string(), "{status}");
    assert_eq!(world.fake.count("RunPodSandbox"), 0);
    world.until("an event says so", |world| {
        event(world, "web", "Evicted").as_deref() == Some("The node had condition: [MemoryPressure]. ")
    });
}

#[test]
fn a_pod_whose_groups_the_runtime_cannot_hold_to_fails() {
    let world = World::new();
    let mut spec = app();
    spec["securityContext"] = json!({"supplementalGroupsPolicy": "Strict"});
    world.bind("web", spec);
    world.until("it has failed", |world| world.phase("web") == "Failed");
    let status = world.pod("web").unwrap()["status"].clone();
    assert_eq!(status["reason"], "SupplementalGroupsPolicyNotSupported");
    let message = "Pod was rejected: SupplementalGroupsPolicy=Strict is not supported in this node";
    assert_eq!(status["message"], message);
}

#[test]
fn what_the_kubelet_tells_of_deadlines_and_the_network_is_told() {
    let world = World::new();
    let mut spec = app();
    spec["activeDeadlineSeconds"] = 1.into();
    world.bind("late", spec);
    world.until("its deadline is told", |world| {
        event(world, "late", "DeadlineExceeded").as_deref()
            == Some("Pod was active on the node longer than the specified deadline")
    });
    world.until("it has failed", |world| world.phase("late") == "Failed");
    world.fake.condition("NetworkReady", "NetworkPluginNotReady", "cni plugin not initialized");
    world.fake.fail("RunPodSandbox", 1000, 2, "cni plugin not initialized");
    world.bind("web", app());
    world.until("the network is told", |world| {
        event(world, "web", "NetworkNotReady").as_deref()
            == Some(
                "network is not ready: container runtime network not ready: NetworkReady=false \
                 reason:NetworkPluginNotReady message:cni plugin not initialized",
            )
    });
}
