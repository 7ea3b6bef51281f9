//! Pods that have ended, and those beside them: what is over takes no room, and what runs comes first.

use std::time::Duration;

use serde_json::{Value, json};

use crate::common::fake::Program;
use crate::world::{NODE, World, app};

/// A pod of that many KiB.
fn of_kib(kib: usize) -> Value {
    let mut spec = app();
    spec["containers"][0]["env"] = json!([{"name": "BULK", "value": "x".repeat(kib * 1024)}]);
    spec
}

/// Pods of Jobs that have succeeded, and of which nothing is here; before all others in the order of names.
fn finished(world: &World, count: usize, kib: usize) {
    let mut spec = of_kib(kib);
    spec["restartPolicy"] = "Never".into();
    for number in 0..count {
        let name = format!("a-job-{number:04}");
        world.bind(&name, spec.clone());
        world.api.patch("pods", "default", &name, &json!({"status": {"phase": "Succeeded"}}));
    }
}

fn reason(world: &World, name: &str) -> String {
    world.pod(name).unwrap_or_default()["status"]["reason"].as_str().unwrap_or_default().to_owned()
}

fn event(world: &World, name: &str, reason: &str) -> Option<Value> {
    let events = world.api.list("events", "default").into_iter();
    events.into_iter().find(|event| event["reason"] == reason && event["involvedObject"]["name"] == name)
}

/// Kills the agent, and waits until the next one has told the status of this pod.
fn restart_until_told(world: &World, name: &str, meanwhile: impl Fn(&World)) {
    world.kill();
    meanwhile(world);
    world.api.clear_requests();
    world.start();
    let path = format!("/api/v1/namespaces/default/pods/{name}/status");
    world.until("its status is told", |world| world.api.count("PATCH", &path) > 0);
}

/// The agent is restarted between 30 pods that run and 500 that have ended.
#[test]
fn five_hundred_finished_pods_take_no_room_from_those_that_run() {
    let world = World::without_agent();
    finished(&world, 500, 12);
    world.start();
    for number in 0..30 {
        world.bind(&format!("web-{number:02}"), app());
    }
    let ready = |world: &World| (0..30).all(|number| world.is_ready(&format!("web-{number:02}")));
    world.until("they are ready", ready);
    let ran = world.fake.state().running();
    restart_until_told(&world, "web-00", |world| {
        world.bind("web-new", app());
    });
    world.until("the new one is ready", |world| world.is_ready("web-new"));
    let runs = world.fake.state().running();
    assert!(ran.iter().all(|container| runs.contains(container)), "{ran:?}; {runs:?}");
    assert!(ready(&world));
    let failed = |pod: &&Value| pod["status"]["phase"] == "Failed";
    assert_eq!(world.api.list("pods", "default").iter().filter(failed).count(), 0);
    // One that is over and has nothing here goes when it is deleted.
    world.api.delete("pods", "default", "a-job-0499", None);
    world.until("it is gone there", |world| world.pod("a-job-0499").is_none());
}

/// 112 pods of Jobs run here and end, with one that stays: what they have left here is bounded, and the next one runs.
#[test]
fn pods_that_have_ended_here_do_not_count() {
    let world = World::new();
    world.run("web");
    world.fake.program("job", Program::exits(0, Duration::from_millis(10)));
    let job = json!({"restartPolicy": "Never", "containers": [{"name": "job", "image": "busybox:1"}]});
    let over = |world: &World, name: &str| world.phase(name) == "Succeeded";
    for wave in 0..4 {
        let names: Vec<String> = (0..28).map(|number| format!("job-{wave}-{number:02}")).collect();
        for name in &names {
            world.bind(name, job.clone());
        }
        world.until("they have succeeded", |world| names.iter().all(|name| over(world, name)));
    }
    world.run("late");
    restart_until_told(&world, "web", |_| {});
    world.run("later");
    world.bind("job-last", job);
    world.until("it has succeeded", |world| over(world, "job-last"));
    let failed = |pod: &&Value| pod["status"]["phase"] == "Failed";
    assert_eq!(world.api.list("pods", "default").iter().filter(failed).count(), 0);
    let mut running = world.fake.state().running();
    running.sort();
    assert_eq!(running, ["late/app#0", "later/app#0", "web/app#0"]);
    world.until("what is left of them here is bounded", |world| {
        world.fake.state().sandboxes.len() <= smolet::limits::ENDED_PODS_MAX + 3
    });
}

#[test]
fn what_runs_here_comes_before_all_others_after_a_restart() {
    let world = World::new();
    let names = ["web-0", "web-1", "web-2"];
    for name in names {
        world.bind(name, of_kib(200));
    }
    world.until("they are ready", |world| names.iter().all(|name| world.is_ready(name)));
    restart_until_told(&world, "web-2", |world| {
        for number in 0..20 {
            world.bind(&format!("a-new-{number:02}"), of_kib(200));
        }
        finished(world, 10, 200);
    });
    for name in names {
        assert_eq!((world.phase(name).as_str(), reason(&world, name).as_str()), ("Running", ""), "{name}");
    }
    let decided = |world: &World| {
        let new: Vec<Value> = world.api.list("pods", "default");
        let new = new.iter().filter(|pod| pod["metadata"]["name"].as_str().unwrap().starts_with("a-new"));
        new.clone().all(|pod| ["Running", "Failed"].contains(&pod["status"]["phase"].as_str().unwrap()))
    };
    world.until("the others run, or do not fit", decided);
    // Those that came first of those that came meanwhile, and as many as fit.
    assert_eq!((world.phase("a-new-00").as_str(), world.phase("a-new-19").as_str()), ("Running", "Failed"));
    let running = world.fake.state().running();
    assert!(names.iter().all(|name| running.contains(&format!("{name}/app#0"))), "{running:?}");
}

#[test]
fn one_pod_too_many_fails_and_says_so() {
    let world = World::without_agent();
    world.start_with(smolet::config::Config { max_pods: 2, ..world.config() });
    world.run("a");
    world.run("b");
    world.bind("c", app());
    world.until("it has failed", |world| world.phase("c") == "Failed");
    assert_eq!(reason(&world, "c"), "OutOfpods");
    let event = world.wait("its event", |world| event(world, "c", "OutOfpods"));
    assert_eq!(
        event["message"],
        "Node didn't have enough resource: pods, requested: 1, used: 2, capacity: 2"
    );
    // Neither it nor one that has ended takes a place.
    world.api.delete("pods", "default", "a", Some(1));
    world.until("it is gone", |world| world.pod("a").is_none());
    world.run("d");
}

/// It is over as soon as it has failed: nothing of it is kept, but for what nobody has heard of it yet.
#[test]
fn an_event_of_a_pod_that_is_over_is_sent_late() {
    let world = World::without_agent();
    world.start_with(smolet::config::Config { max_pods: 1, ..world.config() });
    world.run("a");
    world.wait("the last of its events", |world| event(world, "a", "Started"));
    // One event at a time is sent, but statuses are four at once.
    let names = ["b", "c", "d", "e"];
    world.api.delay(std::time::Duration::from_millis(300));
    for name in names {
        world.bind(name, app());
    }
    for name in names {
        world.until("it has failed", |world| world.phase(name) == "Failed");
        world.wait("its event", |world| event(world, name, "OutOfpods"));
    }
}

/// More objects than are known at once: what was left out comes when there is room.
#[test]
fn a_pod_that_was_left_out_comes_when_there_is_room() {
    let world = World::without_agent();
    for number in 0..450 {
        let name = format!("a-{number:03}");
        world.bind(&name, app());
        world.api.delete("pods", "default", &name, None);
    }
    world.bind("web", app());
    world.start();
    world.until("it is ready", |world| world.is_ready("web"));
    world.until("the others are gone", |world| world.api.list("pods", "default").len() == 1);
}

/// As with the kubelet, whose pod manager forgets a pod that is gone from the server.
#[test]
fn a_pod_that_was_deleted_by_force_takes_no_room_while_it_ends() {
    let world = World::new();
    world.fake.program("app", Program::STUBBORN);
    let mut spec = app();
    spec["terminationGracePeriodSeconds"] = 600.into();
    spec["containers"][0]["ports"] = json!([{"containerPort": 80, "hostPort": 8080}]);
    world.bind("first", spec.clone());
    world.until("it is ready", |world| world.is_ready("first"));
    world.api.delete("pods", "default", "first", None);
    let stops = |world: &World| world.fake.actions().iter().any(|call| call.starts_with("StopContainer"));
    world.until("it is being stopped", stops);
    world.bind("refused", spec.clone());
    world.until("it counts while it ends", |world| world.phase("refused") == "Failed");
    assert_eq!(reason(&world, "refused"), "NodePorts");
    world.fake.program("app", Program::FOREVER);
    let uid = world.pod("first").unwrap()["metadata"]["uid"].clone();
    world.api.delete("pods", "default", "first", Some(0));
    world.until("it is gone there", |world| {
        world.pod("first").is_none_or(|pod| pod["metadata"]["uid"] != uid)
    });
    world.run_as("second", spec);
}

#[test]
fn a_resource_that_the_node_does_not_have_is_not_asked_for() {
    let world = World::new();
    let mut spec = app();
    let asks = |name: &str| json!({"limits": {name: "1"}, "requests": {name: "1"}});
    spec["containers"][0]["resources"] = asks("example.com/dongle");
    world.run_as("unknown", spec.clone());
    // One that an administrator gives the Node counts.
    let has =
        json!({"status": {"capacity": {"example.com/lamp": "1"}, "allocatable": {"example.com/lamp": "1"}}});
    world.api.patch("nodes", "", NODE, &has);
    spec["containers"][0]["resources"] = asks("example.com/lamp");
    world.run_as("one", spec.clone());
    world.until("one more is too many", |world| {
        let name = format!("late-{}", world.api.revision());
        world.bind(&name, spec.clone());
        world.until("it is decided", |world| world.is_ready(&name) || world.phase(&name) == "Failed");
        let failed = world.phase(&name) == "Failed";
        assert!(!failed || reason(world, &name) == "OutOfexample.com/lamp", "{:?}", world.pod(&name));
        failed
    });
}

fn manifest(world: &World, name: &str, container: &str) {
    let text = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  terminationGracePeriodSeconds: 1\n  \
         containers: [{{name: app, image: 'busybox:1', {container}}}]\n"
    );
    let folder = world.path("manifests");
    std::fs::write(folder.join("part"), text).unwrap();
    std::fs::rename(folder.join("part"), folder.join(format!("{name}.yaml"))).unwrap();
}

/// A static pod is critical, so that others end for its room; where that would not do its mirror pod says so
/// (`HandleAdmissionFailure`).
#[test]
fn a_static_pod_is_admitted_as_all_others_are() {
    let world = World::new();
    manifest(&world, "large", "resources: {requests: {cpu: '500', memory: 640Gi}}");
    world.until("it has failed", |world| world.phase("large-gw") == "Failed");
    let status = world.pod("large-gw").unwrap()["status"].clone();
    assert_eq!(status["reason"], "UnexpectedAdmissionError");
    let words = "Pod was rejected: Unexpected error while attempting to recover from admission failure: preemption: error \
                 finding a set of pods to preempt: no set of running pods found to reclaim resources: [(res: cpu, q: ";
    let message = status["message"].as_str().unwrap();
    assert!(message.starts_with(words), "{message}");
    world.wait("its event", |world| event(world, "large-gw", "UnexpectedAdmissionError"));

    let port = json!([{"containerPort": 80, "hostPort": 8080}]);
    let mut spec = app();
    spec["containers"][0]["ports"] = port;
    world.run_as("web", spec);
    manifest(&world, "second", "ports: [{containerPort: 80, hostPort: 8080}]");
    world.until("it has failed", |world| world.phase("second-gw") == "Failed");
    assert_eq!(reason(&world, "second-gw"), "NodePorts");
    assert_eq!(world.fake.state().running(), ["web/app#0"]);
    manifest(&world, "small", "resources: {requests: {memory: 1Mi}}");
    world.until("it runs", |world| world.is_ready("small-gw"));
    // What runs is not asked about again.
    world.kill();
    world.start();
    world.run("late");
    assert!(world.is_ready("small-gw") && world.is_ready("web"));
    assert_eq!(world.phase("large-gw"), "Failed");
}

/// Their dead containers and logs are still here.
#[test]
fn pods_that_have_ended_here_take_no_place_from_those_that_come() {
    let world = World::new();
    world.fake.program("job", Program::exits(0, Duration::from_millis(100)));
    let mut job = app();
    job["restartPolicy"] = "Never".into();
    job["containers"][0]["name"] = "job".into();
    for number in 0..60 {
        world.bind(&format!("a-{number:02}"), job.clone());
    }
    world.until("they have ended", |world| {
        (0..60).all(|number| world.phase(&format!("a-{number:02}")) == "Succeeded")
    });
    let names: Vec<String> = (0..60).map(|number| format!("web-{number:02}")).collect();
    for name in &names {
        world.bind(name, app());
    }
    let none = "smolet_bounded_entries{structure=\"manifest_problems\"} 0\n";
    world.until("they are ready", |world| {
        assert!(world.local("/metrics").contains(none), "one is refused");
        names.iter().all(|name| world.is_ready(name))
    });
}

/// As those of a namespace that is gone: the next ones do not wait for them (client-go `recordEvent`).
#[test]
fn events_that_are_refused_hold_up_no_others() {
    let world = World::new();
    world.run("before");
    world.wait("its event", |world| event(world, "before", "Started"));
    world.api.fail_next(30, "POST", "/api/v1/namespaces/default/events", 404, "NotFound");
    for number in 0..15 {
        world.bind(&format!("gone-{number:02}"), app());
    }
    world.until("they are ready", |world| (0..15).all(|number| world.is_ready(&format!("gone-{number:02}"))));
    world.run("after");
    world.wait("its event", |world| event(world, "after", "Started"));
}
