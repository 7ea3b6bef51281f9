//! Pods that get other CPU and memory while they run.

use std::time::Duration;

use serde_json::{Value, json};

use crate::common::fake::Program;
use crate::world::{NODE, World};

/// A pod of one container; requests and limits as `cpu/memory`.
fn sized(requests: &str, limits: &str, policies: &Value) -> Value {
    json!({"terminationGracePeriodSeconds": 1, "containers": [{
        "name": "app", "image": "busybox:1", "resizePolicy": policies, "resources": resources(requests, limits),
    }]})
}

fn resources(requests: &str, limits: &str) -> Value {
    let list = |text: &str| {
        let (cpu, memory) = text.split_once('/').unwrap();
        let both = [("cpu", cpu), ("memory", memory)].into_iter().filter(|(_, value)| !value.is_empty());
        both.map(|(name, value)| (name.to_owned(), Value::from(value))).collect::<serde_json::Map<_, _>>()
    };
    json!({"requests": list(requests), "limits": list(limits)})
}

/// As `kubectl patch pod --subresource resize`.
fn resize(world: &World, pod: &str, container: &str, resources: &Value) {
    let mut spec = world.pod(pod).unwrap()["spec"].clone();
    let lists = ["containers", "initContainers"];
    for list in lists {
        for one in spec[list].as_array_mut().into_iter().flatten().filter(|one| one["name"] == *container) {
            one["resources"] = resources.clone();
        }
    }
    let lists = lists.into_iter().filter(|list| spec[list].is_array());
    let lists: serde_json::Map<_, _> = lists.map(|list| (list.to_owned(), spec[list].clone())).collect();
    world.api.patch("pods", "default", pod, &json!({"spec": lists}));
}

fn condition(world: &World, pod: &str, kind: &str) -> Option<Value> {
    let pod = world.pod(pod)?;
    let conditions = pod["status"]["conditions"].as_array()?.clone();
    conditions.into_iter().find(|condition| condition["type"] == kind)
}

/// All of it has what it is wanted with, and the server knows.
fn is_done(world: &World, name: &str) -> bool {
    let Some(pod) = world.pod(name) else { return false };
    let status = &pod["status"];
    let statuses = status["containerStatuses"].as_array().cloned().unwrap_or_default();
    let wanted = pod["spec"]["containers"].as_array().cloned().unwrap_or_default();
    status["observedGeneration"] == pod["metadata"]["generation"]
        && condition(world, name, "PodResizePending").is_none()
        && condition(world, name, "PodResizeInProgress").is_none()
        && world.is_ready(name)
        && wanted.iter().all(|container| {
            statuses.iter().any(|status| {
                status["name"] == container["name"]
                    && status["resources"] == container["resources"]
                    && status["allocatedResources"] == container["resources"]["requests"]
            })
        })
}

/// The runtime's calls that change something, since they were cleared.
fn changes(world: &World) -> Vec<String> {
    let mut calls = world.fake.actions();
    calls.retain(|call| !call.starts_with("UpdatePodSandboxResources") && !call.starts_with("UpdateRuntime"));
    calls
}

fn events(world: &World, pod: &str) -> Vec<String> {
    let events = world.api.list("events", "default").into_iter();
    let of_pod = events.filter(|event| event["involvedObject"]["name"] == pod);
    let resizes = of_pod.filter(|event| event["reason"].as_str().is_some_and(|r| r.starts_with("Resize")));
    resizes.map(|event| format!("{} {} {}", event["type"], event["reason"], event["message"])).collect()
}

#[test]
fn a_running_container_gets_what_its_pod_is_to_have() {
    let world = World::new();
    world.fake.state().reports_resources = true;
    world.bind("web", sized("100m/64Mi", "200m/128Mi", &json!([])));
    world.until("it runs", |world| is_done(world, "web"));
    let id = world.pod("web").unwrap()["status"]["containerStatuses"][0]["containerID"].clone();
    world.fake.clear_calls();
    resize(&world, "web", "app", &resources("200m/32Mi", "400m/64Mi"));
    world.until("it has them", |world| is_done(world, "web"));
    // Memory first, then CPU with the memory that it has by then.
    assert_eq!(
        changes(&world),
        [
            "UpdateContainerResources web/app#0 shares=102 quota=20000 memory=67108864",
            "UpdateContainerResources web/app#0 shares=204 quota=40000 memory=67108864",
        ]
    );
    let status = world.pod("web").unwrap()["status"].clone();
    assert_eq!(status["containerStatuses"][0]["containerID"], id);
    assert_eq!(status["containerStatuses"][0]["restartCount"], 0);
    assert_eq!(status["resources"], resources("200m/32Mi", "400m/64Mi"));
    assert_eq!(status["allocatedResources"], json!({"cpu": "200m", "memory": "32Mi"}));
    world.until("it is told", |world| events(world, "web").len() == 2);
    let told = events(&world, "web");
    assert!(told.iter().any(|event| event.starts_with(r#""Normal" "ResizeStarted" "Pod resize started: {"#)));
    assert!(
        told.iter().any(|event| event.starts_with(r#""Normal" "ResizeCompleted" "Pod resize completed: {"#))
    );
    // Nothing more happens, neither with another agent.
    for end in [World::stop, World::kill] {
        world.fake.clear_calls();
        end(&world);
        world.api.clear_requests();
        world.start();
        world.until("its status is told", |world| {
            world.api.count("PATCH", "/api/v1/namespaces/default/pods") > 0
        });
        world.pass(Duration::from_secs(2));
        assert_eq!(changes(&world), Vec::<String>::new());
        assert!(is_done(&world, "web"));
    }
    assert_eq!(events(&world, "web").len(), 2);
    assert!(world.node().is_some_and(|node| node["metadata"]["name"] == NODE));
}

#[test]
fn a_container_whose_policy_wants_it_starts_anew() {
    let world = World::new();
    world.fake.state().reports_resources = true;
    let policies = json!([{"resourceName": "cpu", "restartPolicy": "NotRequired"},
        {"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
    world.bind("web", sized("100m/64Mi", "200m/128Mi", &policies));
    world.until("it runs", |world| is_done(world, "web"));
    world.fake.clear_calls();
    resize(&world, "web", "app", &resources("100m/32Mi", "300m/128Mi"));
    world.until("it has them", |world| is_done(world, "web"));
    let calls = changes(&world);
    assert_eq!(
        calls,
        ["StopContainer web/app#0 grace=2", "CreateContainer web/app#1", "StartContainer web/app#1"],
    );
    assert_eq!(world.pod("web").unwrap()["status"]["containerStatuses"][0]["restartCount"], 1);
    assert_eq!(made_with(&world, "web/app"), (102, 30_000, 128 << 20));
    // Its other resource needs no restart.
    world.fake.clear_calls();
    resize(&world, "web", "app", &resources("150m/32Mi", "300m/128Mi"));
    world.until("it has them", |world| is_done(world, "web"));
    assert_eq!(
        changes(&world),
        ["UpdateContainerResources web/app#1 shares=153 quota=30000 memory=134217728"]
    );
    world.fake.clear_calls();
    world.kill();
    world.start();
    world.until("it is told", |world| world.api.count("PATCH", "/api/v1/namespaces/default/pods") > 0);
    world.pass(Duration::from_secs(2));
    assert_eq!(changes(&world), Vec::<String>::new());
}

/// The node's CPUs as pods may have them, in thousandths.
fn allocatable(world: &World) -> i64 {
    let node = world.wait("its room", |world| {
        world.node().filter(|node| node["status"]["allocatable"]["cpu"].is_string())
    });
    let text = node["status"]["allocatable"]["cpu"].as_str().unwrap().to_owned();
    text.strip_suffix('m').map_or_else(|| text.parse::<i64>().unwrap() * 1000, |milli| milli.parse().unwrap())
}

#[test]
fn what_does_not_fit_waits_for_room() {
    let world = World::new();
    let all = allocatable(&world);
    // No round number, which is written otherwise.
    let half = all / 2 - 1;
    let milli = |milli: i64| format!("{milli}m/16Mi");
    world.bind("other", sized(&milli(half), "/32Mi", &json!([])));
    world.bind("small", sized(&milli(all / 8), "/32Mi", &json!([])));
    world.bind("web", sized(&milli(all / 8), "/32Mi", &json!([])));
    world.until("they run", |world| ["other", "small", "web"].iter().all(|pod| is_done(world, pod)));
    world.fake.clear_calls();
    resize(&world, "web", "app", &resources(&milli(half), "/64Mi"));
    let told = world.wait("it is told", |world| condition(world, "web", "PodResizePending"));
    assert_eq!((&told["status"], &told["reason"]), (&json!("True"), &json!("Deferred")));
    let (wanted, used) = (half, half + all / 8);
    let words =
        format!("Node didn't have enough resource: cpu, requested: {wanted}, used: {used}, capacity: {all}");
    assert_eq!(told["message"], words);
    assert_eq!(told["observedGeneration"], 2);
    assert!(told["lastTransitionTime"].is_string(), "{told}");
    let status = world.pod("web").unwrap()["status"].clone();
    assert_eq!(status["containerStatuses"][0]["allocatedResources"]["cpu"], format!("{}m", all / 8));
    assert_eq!(status["containerStatuses"][0]["resources"], resources(&milli(all / 8), "/32Mi"));
    assert_eq!(status["observedGeneration"], 2);
    // What waits takes no room: one that fits beside what it has is taken.
    world.bind("late", sized(&milli(all / 8), "/32Mi", &json!([])));
    world.until("it runs", |world| is_done(world, "late"));
    // Another agent does not know better.
    for end in [World::stop, World::kill] {
        end(&world);
        world.api.clear_requests();
        world.start();
        world.until("it is told", |world| {
            world.api.count("PATCH", "/api/v1/namespaces/default/pods/web/status") > 0
        });
        world.pass(Duration::from_secs(1));
        let told = condition(&world, "web", "PodResizePending").unwrap();
        assert_eq!((&told["reason"], &told["message"]), (&json!("Deferred"), &told["message"]));
        let status = world.pod("web").unwrap()["status"].clone();
        assert_eq!(status["containerStatuses"][0]["allocatedResources"]["cpu"], format!("{}m", all / 8));
    }
    assert!(!changes(&world).iter().any(|call| call.starts_with("Update")), "{:?}", changes(&world));
    // One shrinks, and one goes.
    resize(&world, "other", "app", &resources(&milli(half - all / 8), "/32Mi"));
    world.until("it has less", |world| is_done(world, "other"));
    assert!(condition(&world, "web", "PodResizePending").is_some());
    world.api.delete("pods", "default", "late", None);
    world.until("there is room", |world| is_done(world, "web"));
    let granted =
        changes(&world).into_iter().filter(|call| call.starts_with("UpdateContainerResources web/"));
    assert_eq!(granted.count(), 2, "{:?}", changes(&world));
    world.until("it is told", |world| events(world, "web").len() == 3);
    let told = events(&world, "web");
    let deferred = told.iter().find(|event| event.starts_with(r#""Warning" "ResizeDeferred""#)).unwrap();
    assert!(deferred.contains("Pod resize OutOfcpu: {"), "{deferred}");
}

#[test]
fn a_wish_that_is_taken_back_waits_no_more() {
    let world = World::new();
    let all = allocatable(&world);
    world.bind("web", sized("100m/16Mi", "/32Mi", &json!([])));
    world.until("it runs", |world| is_done(world, "web"));
    world.fake.clear_calls();
    resize(&world, "web", "app", &resources(&format!("{}m/16Mi", 2 * all), "/32Mi"));
    world.until("it waits", |world| condition(world, "web", "PodResizePending").is_some());
    resize(&world, "web", "app", &resources("100m/16Mi", "/32Mi"));
    world.until("it does not", |world| is_done(world, "web"));
    assert_eq!(changes(&world), Vec::<String>::new());
}

#[test]
fn a_limit_of_memory_does_not_go_below_what_is_in_use() {
    let world = World::new();
    world.bind("web", sized("/64Mi", "/128Mi", &json!([])));
    world.until("it runs", |world| is_done(world, "web"));
    world.fake.state().memory.insert("app".into(), 100 << 20);
    world.fake.clear_calls();
    resize(&world, "web", "app", &resources("/32Mi", "/96Mi"));
    let told = world.wait("it is told", |world| {
        condition(world, "web", "PodResizeInProgress").filter(|told| told["reason"] == "Error")
    });
    let words = "cannot decrease memory limits: attempting to set container \"app\" memory limit (100663296) below \
                 current usage (104857600)";
    assert_eq!((&told["message"], &told["observedGeneration"]), (&json!(words), &json!(2)));
    assert_eq!(condition(&world, "web", "PodResizePending"), None);
    assert_eq!(changes(&world), Vec::<String>::new());
    let status = world.pod("web").unwrap()["status"]["containerStatuses"][0].clone();
    assert_eq!(status["allocatedResources"], json!({"memory": "32Mi"}));
    assert_eq!(status["resources"], resources("/64Mi", "/128Mi"));
    world.until("it is an event", |world| {
        events(world, "web")
            .iter()
            .any(|event| event.starts_with(r#""Warning" "ResizeError" "Pod resize error: {"#))
    });
    // A wish that can be is carried out, and so is this one once there is less in use.
    resize(&world, "web", "app", &resources("/32Mi", "/256Mi"));
    world.until("it has more", |world| is_done(world, "web"));
    resize(&world, "web", "app", &resources("/32Mi", "/96Mi"));
    world.until("it is told", |world| {
        condition(world, "web", "PodResizeInProgress").is_some_and(|told| told["reason"] == "Error")
    });
    world.fake.state().memory.insert("app".into(), 1 << 20);
    world.until("it has less", |world| is_done(world, "web"));
    assert_eq!(
        changes(&world),
        [
            "UpdateContainerResources web/app#0 shares=2 quota=0 memory=268435456",
            "UpdateContainerResources web/app#0 shares=2 quota=0 memory=100663296"
        ]
    );
}

#[test]
fn containers_that_shrink_come_before_those_that_grow() {
    let world = World::new();
    let container = |name: &str, requests: &str| json!({"name": name, "image": "busybox:1", "resources": resources(requests, requests)});
    world.bind("web", json!({"terminationGracePeriodSeconds": 1, "containers": [
        container("grows", "100m/32Mi"), container("shrinks", "200m/64Mi"), container("stays", "150m/16Mi"),
    ], "initContainers": [
        {"name": "beside", "image": "busybox:1", "restartPolicy": "Always",
            "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "RestartContainer"}],
            "resources": resources("50m/8Mi", "50m/8Mi")},
    ]}));
    world.until("it runs", |world| is_done(world, "web"));
    world.fake.clear_calls();
    let mut spec = world.pod("web").unwrap()["spec"].clone();
    for (at, wanted) in [(0, "300m/96Mi"), (1, "50m/24Mi")] {
        spec["containers"][at]["resources"] = resources(wanted, wanted);
    }
    spec["initContainers"][0]["resources"] = resources("60m/4Mi", "60m/4Mi");
    let lists = json!({"initContainers": spec["initContainers"], "containers": spec["containers"]});
    world.api.patch("pods", "default", "web", &json!({"spec": lists}));
    world.until("all have theirs", |world| {
        is_done(world, "web") && made_with(world, "web/beside") == (61, 6000, 4 << 20)
    });
    let calls = changes(&world);
    assert_eq!(
        calls,
        [
            "StopContainer web/beside#0 grace=2",
            "CreateContainer web/beside#1",
            "StartContainer web/beside#1",
            "UpdateContainerResources web/shrinks#0 shares=204 quota=20000 memory=25165824",
            "UpdateContainerResources web/grows#0 shares=102 quota=10000 memory=100663296",
            "UpdateContainerResources web/shrinks#0 shares=51 quota=5000 memory=25165824",
            "UpdateContainerResources web/grows#0 shares=307 quota=30000 memory=100663296",
        ]
    );
    let init = world.pod("web").unwrap()["status"]["initContainerStatuses"][0].clone();
    assert_eq!((&init["restartCount"], &init["resources"]), (&json!(1), &resources("60m/4Mi", "60m/4Mi")));
}

#[test]
fn an_init_container_that_runs_is_resized_too() {
    let world = World::new();
    let mut spec = sized("100m/16Mi", "100m/16Mi", &json!([]));
    spec["initContainers"] =
        json!([{"name": "prepare", "image": "busybox:1", "resources": resources("100m/16Mi", "100m/16Mi")}]);
    world.bind("web", spec);
    world.until("it prepares", |world| {
        made_with(world, "web/prepare").0 == 102 && world.phase("web") == "Pending"
    });
    world.until("it runs", |world| world.fake.state().running() == ["web/prepare#0"]);
    resize(&world, "web", "prepare", &resources("200m/32Mi", "200m/32Mi"));
    world.until("it has more", |world| made_with(world, "web/prepare") == (204, 20_000, 32 << 20));
    world.until("the server knows", |world| {
        let status = world.pod("web").unwrap()["status"].clone();
        status["initContainerStatuses"][0]["resources"] == resources("200m/32Mi", "200m/32Mi")
            && condition(world, "web", "PodResizeInProgress").is_none()
    });
    world.fake.exit("web/prepare", 0, "Completed", "");
    world.until("it runs", |world| is_done(world, "web"));
}

#[test]
fn a_neighbour_that_waits_out_its_back_off_holds_up_nothing() {
    let world = World::new();
    world.fake.program("crashes", Program::exits(1, Duration::from_millis(50)));
    let mut spec = sized("100m/16Mi", "100m/16Mi", &json!([]));
    spec["containers"].as_array_mut().unwrap().push(json!({"name": "crashes", "image": "busybox:1"}));
    world.bind("web", spec);
    let waits = |world: &World| {
        let statuses = world.pod("web")?["status"]["containerStatuses"].as_array()?.clone();
        statuses.into_iter().find(|status| status["state"]["waiting"]["reason"] == "CrashLoopBackOff")
    };
    world.until("it waits", |world| waits(world).is_some());
    let begun = world.now();
    resize(&world, "web", "app", &resources("200m/16Mi", "200m/16Mi"));
    world.until("the other has more", |world| made_with(world, "web/app") == (204, 20_000, 16 << 20));
    // The first wait is ten seconds.
    assert!(world.since(begun) < Duration::from_secs(7), "{:?}", world.since(begun));
}

/// Where a runtime reports what a container has, and where it does not.
#[test]
fn an_agent_that_is_killed_in_the_middle_leaves_nothing_half_done() {
    for reports in [true, false] {
        let world = World::new();
        world.fake.state().reports_resources = reports;
        let policies = json!([{"resourceName": "memory", "restartPolicy": "RestartContainer"}]);
        world.bind("web", sized("100m/16Mi", "200m/32Mi", &policies));
        world.until("it runs", |world| is_done(world, "web"));
        // In the call that changes it.
        world.fake.clear_calls();
        world.fake.hang("UpdateContainerResources");
        resize(&world, "web", "app", &resources("150m/16Mi", "300m/32Mi"));
        world.until("it begins", |world| !changes(world).is_empty());
        world.kill();
        world.fake.heal("UpdateContainerResources");
        world.start();
        world.until("it has more", |world| is_done(world, "web"));
        assert_eq!(made_with(&world, "web/app"), (153, 30_000, 32 << 20));
        // In the call that starts it anew, and as soon as that is over.
        world.fake.hang_on("StartContainer", "web/app#1");
        resize(&world, "web", "app", &resources("150m/24Mi", "300m/48Mi"));
        world
            .until("it begins", |world| changes(world).iter().any(|call| call.starts_with("StartContainer")));
        world.kill();
        world.fake.heal("StartContainer");
        world.start();
        world.until("it runs anew", |world| is_done(world, "web"));
        world.kill();
        world.start();
        world.pass(Duration::from_secs(2));
        assert_eq!(made_with(&world, "web/app"), (153, 30_000, 48 << 20));
        assert_eq!(world.fake.state().running().len(), 1, "{:?}", world.fake.state().running());
        let restarts = |call: &&String| call.starts_with("StopContainer");
        let calls = changes(&world);
        assert_eq!(calls.iter().filter(restarts).count(), 1, "{calls:?}");
        // Without its files the agent knows what the containers were made with.
        world.stop();
        std::fs::remove_dir_all(world.path("root")).unwrap();
        std::fs::create_dir(world.path("root")).unwrap();
        world.fake.clear_calls();
        world.api.clear_requests();
        world.start();
        world.until("it is told", |world| {
            world.api.count("PATCH", "/api/v1/namespaces/default/pods/web/status") > 0
        });
        world.pass(Duration::from_secs(2));
        assert_eq!(changes(&world), Vec::<String>::new());
        assert!(is_done(&world, "web"));
    }
}

#[test]
fn what_is_asked_while_no_agent_runs_is_carried_out_by_the_next() {
    let world = World::new();
    let all = allocatable(&world);
    world.bind("web", sized("100m/16Mi", "/32Mi", &json!([])));
    world.bind("other", sized("100m/16Mi", "/32Mi", &json!([])));
    world.until("they run", |world| is_done(world, "web") && is_done(world, "other"));
    world.kill();
    world.fake.clear_calls();
    resize(&world, "web", "app", &resources("200m/16Mi", "/48Mi"));
    resize(&world, "other", "app", &resources(&format!("{}m/16Mi", 2 * all), "/48Mi"));
    world.start();
    world.until("one has more", |world| is_done(world, "web"));
    world.until("the other waits", |world| condition(world, "other", "PodResizePending").is_some());
    let calls = changes(&world);
    assert!(calls.iter().all(|call| call.starts_with("UpdateContainerResources web/app#0 ")), "{calls:?}");
    let status = world.pod("other").unwrap()["status"]["containerStatuses"][0].clone();
    assert_eq!(status["allocatedResources"], json!({"cpu": "100m", "memory": "16Mi"}));
}

/// CPU weight, quota and memory that a container has.
fn made_with(world: &World, container: &str) -> (i64, i64, i64) {
    let state = world.fake.state();
    let linux = state.container(container).and_then(|container| container.config.linux.clone());
    let resources = linux.unwrap_or_default().resources.unwrap_or_default();
    (resources.cpu_shares, resources.cpu_quota, resources.memory_limit_in_bytes)
}
