//! Which pods a node takes.

use serde_json::{Value, json};

use crate::world::{NODE, World, app};

/// Reason and message of a pod that was refused.
fn refused(world: &World, name: &str, spec: Value) -> (String, String) {
    world.bind(name, spec);
    let status = world.wait("it has failed", |world| {
        let status = world.pod(name)?["status"].clone();
        (status["phase"] == "Failed").then_some(status)
    });
    let text = |field: &str| status[field].as_str().unwrap_or_default().to_owned();
    (text("reason"), text("message"))
}

fn with(change: impl Fn(&mut Value)) -> Value {
    let mut spec = app();
    change(&mut spec);
    spec
}

#[test]
fn what_does_not_fit_fails_in_the_kubelets_words() {
    let world = World::new();
    let huge = with(|spec| spec["containers"][0]["resources"] = json!({"requests": {"memory": "1Pi"}}));
    let (reason, message) = refused(&world, "huge", huge);
    assert_eq!(reason, "OutOfmemory");
    let words = "Pod was rejected: Node didn't have enough resource: memory, requested: 1125899906842624, used: 0, capacity: ";
    assert!(message.starts_with(words), "{message}");

    let disk = json!({"limits": {"ephemeral-storage": "1Pi"}, "requests": {"ephemeral-storage": "1Pi"}});
    let large = with(|spec| spec["containers"][0]["resources"] = disk.clone());
    let (reason, message) = refused(&world, "large", large);
    assert_eq!(reason, "OutOfephemeral-storage");
    let words = words.replace("memory", "ephemeral-storage");
    assert!(message.starts_with(&words), "{message}");

    let choosy = with(|spec| spec["nodeSelector"] = json!({"site": "roof"}));
    let (reason, message) = refused(&world, "choosy", choosy.clone());
    assert_eq!(reason, "NodeAffinity");
    let words =
        "Pod was rejected: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector";
    assert_eq!(message, words);

    let unsafe_sysctl = with(|spec| {
        spec["securityContext"] = json!({"sysctls": [{"name": "kernel.msgmax", "value": "10000"}]});
    });
    let (reason, message) = refused(&world, "sysctl", unsafe_sysctl);
    assert_eq!(reason, "SysctlForbidden");
    assert_eq!(message, "Pod was rejected: forbidden sysctl: \"kernel.msgmax\" not allowlisted");
    for (name, reason) in [("huge", "OutOfmemory"), ("choosy", "NodeAffinity"), ("sysctl", "SysctlForbidden")]
    {
        let event = world.wait("its event", |world| {
            let events = world.api.list("events", "default").into_iter();
            let mut events = events.filter(|event| event["involvedObject"]["name"] == name);
            let event = events.next()?;
            assert_eq!(events.next(), None, "one for each pod");
            Some(event)
        });
        assert_eq!((&event["type"], &event["reason"]), (&json!("Warning"), &json!(reason)));
        let message = event["message"].as_str().unwrap();
        assert!(!message.is_empty() && !message.starts_with("Pod was rejected"), "{message}");
    }
    for name in ["huge", "choosy", "sysctl"] {
        let pod = world.pod(name).expect("it is there");
        let generation = &pod["metadata"]["generation"];
        assert!(generation.is_i64(), "{name}: the API server counts what is wanted of it");
        assert_eq!(&pod["status"]["observedGeneration"], generation, "{name}");
    }

    let port = with(|spec| spec["containers"][0]["ports"] = json!([{"containerPort": 80, "hostPort": 8080}]));
    world.bind("first", port.clone());
    world.until("the first has the port", |world| world.is_ready("first"));
    assert_eq!(refused(&world, "second", port).0, "NodePorts");

    // Nothing of them came to the runtime, and each goes when it is deleted.
    assert_eq!(world.fake.state().running(), ["first/app#0"]);
    for name in ["huge", "large", "choosy", "sysctl", "second"] {
        world.api.delete("pods", "default", name, None);
    }
    world.until("they are gone", |world| world.api.list("pods", "default").len() == 1);
}

#[test]
fn a_label_that_comes_with_the_pod_counts() {
    let world = World::new();
    world.until("it is registered", |world| world.node().is_some());
    world.bind("choosy", with(|spec| spec["nodeSelector"] = json!({"site": "roof"})));
    world.api.patch("nodes", "", NODE, &json!({"metadata": {"labels": {"site": "roof"}}}));
    world.until("it runs", |world| world.is_ready("choosy"));
}

#[test]
fn a_taint_that_evicts_refuses_those_that_come_and_leaves_those_that_are_here() {
    let world = World::new();
    world.run("here");
    let taint = json!({"spec": {"taints": [{"key": "k", "value": "v", "effect": "NoExecute"}]}});
    world.api.patch("nodes", "", NODE, &taint);
    world.until("it is known", |world| {
        let name = format!("late{}", world.api.revision());
        world.bind(&name, app());
        world.until("it is decided", |world| world.is_ready(&name) || world.phase(&name) == "Failed");
        world.phase(&name) == "Failed"
    });
    let tolerates = with(|spec| spec["tolerations"] = json!([{"key": "k", "operator": "Exists"}]));
    world.bind("bold", tolerates);
    world.until("it runs", |world| world.is_ready("bold"));
    assert!(world.is_ready("here"));
    world.kill();
    world.api.clear_requests();
    world.start();
    world.until("its status is told again", |world| {
        world.api.count("PATCH", "/api/v1/namespaces/default/pods/here/status") > 0
    });
    assert!(world.is_ready("here"), "it was here before the taint");
}

#[test]
fn a_critical_pod_ends_others_for_its_room() {
    let world = World::new();
    let node = world.wait("its room is known", |world| {
        world.node().filter(|node| node["status"]["allocatable"]["memory"].is_string())
    });
    let text = node["status"]["allocatable"]["memory"].as_str().unwrap_or_default().to_owned();
    let kib: u64 = text.trim_end_matches("Ki").parse().expect("KiB");
    let needs = |kib: u64| {
        with(|spec| {
            spec["containers"][0]["resources"] = json!({"requests": {"memory": format!("{kib}Ki")}});
        })
    };
    world.bind("large", needs(kib - kib / 4));
    world.bind("small", needs(kib / 8));
    world.until("both run", |world| world.is_ready("large") && world.is_ready("small"));
    let mut critical = needs(kib / 2);
    critical["priority"] = 2_000_000_000.into();
    critical["priorityClassName"] = "system-cluster-critical".into();
    world.bind("critical", critical);
    world.until("the critical one runs", |world| world.is_ready("critical"));
    let status = world.pod("large").unwrap_or_default()["status"].clone();
    assert_eq!((status["phase"].as_str(), status["reason"].as_str()), (Some("Failed"), Some("Preempting")));
    assert!(world.is_ready("small"), "no more than have to");
    assert_eq!(world.fake.state().running(), ["small/app#0", "critical/app#0"]);
}

/// The scheduler binds a pod that needs a feature only to a node that declares it.
#[test]
fn a_pod_may_need_what_the_node_declares() {
    let world = World::new();
    let rule = json!({"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}});
    let restarts = with(|spec| {
        spec["containers"][0]["restartPolicy"] = json!("Never");
        spec["containers"][0]["restartPolicyRules"] = json!([rule]);
    });
    world.bind("restarts", restarts);
    world.until("it runs", |world| world.is_ready("restarts"));
    let declared =
        world.wait("the features", |world| world.node()?["status"].get("declaredFeatures").cloned());
    assert_eq!(
        declared,
        json!(["InPlacePodVerticalScalingInitContainers", "RestartAllContainersOnContainerExits"])
    );
}

/// An init container whose rule restarts all has not failed for good, though its own policy and the pod's say Never.
#[test]
fn an_init_container_may_restart_all() {
    let world = World::new();
    let rule = json!({"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}});
    let restarts = with(|spec| {
        spec["restartPolicy"] = json!("Never");
        spec["initContainers"] = json!([{"name": "prepare", "image": "busybox:1", "restartPolicy": "Never",
            "restartPolicyRules": [rule]}]);
    });
    world.bind("again", restarts);
    let prepares = |world: &World| {
        let state = world.fake.state();
        let runs = state.running().iter().any(|container| container.starts_with("again/prepare#"));
        state.container("again/prepare").filter(|_| runs).map(|container| container.id.clone())
    };
    let first = world.wait("it prepares", prepares);
    world.fake.exit("again/prepare", 42, "Error", "");
    world.until("it prepares once more", |world| prepares(world).is_some_and(|id| id != first));
    world.fake.exit("again/prepare", 0, "Completed", "");
    world.until("it runs", |world| world.is_ready("again"));
}
