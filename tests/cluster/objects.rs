//! ConfigMaps, Secrets and tokens that pods name.

use serde_json::json;

use crate::world::{World, app};

fn with_env(kind: &str) -> serde_json::Value {
    let mut spec = app();
    spec["containers"][0]["env"] =
        json!([{"name": "WORD", "valueFrom": {kind: {"name": "words", "key": "word"}}}]);
    spec
}

#[test]
fn a_pod_waits_for_what_it_names_and_begins_when_it_comes() {
    let world = World::new();
    world.bind("web", with_env("configMapKeyRef"));
    world.until("it says why it waits", |world| {
        let pod = world.pod("web").unwrap();
        pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "CreateContainerConfigError"
    });
    world.api.create("configmaps", json!({"metadata": {"name": "words"}, "data": {"word": "hello"}}));
    world.until("it runs", |world| world.is_ready("web"));
    let state = world.fake.state();
    let envs = &state.container("web/app").expect("the container").config.envs;
    assert!(envs.iter().any(|env| env.key == "WORD" && env.value == b"hello"), "{envs:?}");
}

#[test]
fn a_pod_whose_objects_are_there_begins_without_a_failure() {
    let world = World::new();
    let words = json!({"metadata": {"name": "words"}, "data": {"word": "aGVsbG8="}});
    world.api.create("secrets", words);
    world.bind("web", with_env("secretKeyRef"));
    world.until("it runs", |world| world.is_ready("web"));
    let starts = world.fake.actions().iter().filter(|call| call.starts_with("CreateContainer")).count();
    assert_eq!(starts, 1, "{:?}", world.fake.actions());
    assert_eq!(world.fake.actions().iter().filter(|call| call.starts_with("RunPodSandbox")).count(), 1);
}

#[test]
fn every_pod_gets_its_token_and_the_root_of_trust() {
    let world = World::without_agent();
    world.api.admit_accounts();
    world.start();
    world.run("web");
    let uid = world.pod("web").unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
    let volumes = world.path(&format!("root/pods/{uid}/volumes/kubernetes.io~projected"));
    let volume = std::fs::read_dir(&volumes).unwrap().flatten().next().unwrap().path();
    let issued = world.api.tokens_issued();
    assert_eq!(issued.len(), 1, "one token");
    let token = std::fs::read_to_string(volume.join("token")).unwrap();
    assert!(!token.is_empty());
    assert_eq!(std::fs::read_to_string(volume.join("ca.crt")).unwrap(), world.api.ca_pem());
    assert_eq!(std::fs::read_to_string(volume.join("namespace")).unwrap(), "default");
    // The next agent finds the files as they are, and has nothing to complain of before it knows the objects.
    world.kill();
    world.start();
    world.until("another token is there", |world| world.api.tokens_issued().len() > 1);
    world.until("and in the file", |_| std::fs::read_to_string(volume.join("token")).unwrap() != token);
    let events = world.api.list("events", "default");
    assert!(events.iter().all(|event| event["type"] != "Warning"), "{events:?}");
}

#[test]
fn a_token_that_is_refused_once_delays_its_pod_and_nothing_else() {
    let world = World::without_agent();
    world.api.admit_accounts();
    world.start();
    world.until("the node is registered", |world| world.node().is_some());
    world.api.fail_next(1, "POST", "/api/v1/namespaces/default/serviceaccounts", 403, "Forbidden");
    world.run("web");
    assert_eq!(world.api.count("POST", "/api/v1/namespaces/default/serviceaccounts"), 2);
    let events = world.api.list("events", "default");
    assert!(events.iter().all(|event| event["type"] != "Warning"), "{events:?}");
}

#[test]
fn a_start_after_a_restart_of_the_agent_waits_for_what_the_pod_names() {
    let world = World::new();
    let words = json!({"metadata": {"name": "words"}, "data": {"word": "hello"}});
    world.api.create("configmaps", words);
    let mut spec = with_env("configMapKeyRef");
    spec["volumes"] = json!([{"name": "words", "configMap": {"name": "words"}}]);
    spec["containers"][0]["volumeMounts"] = json!([{"name": "words", "mountPath": "/words"}]);
    world.bind("web", spec);
    world.until("it runs", |world| world.is_ready("web"));
    world.stop();
    world.fake.exit("web/app", 1, "Error", "");
    world.api.fail_next(1, "GET", "/api/v1/namespaces/default/configmaps", 503, "ServiceUnavailable");
    world.start();
    world
        .until("it is started again", |world| world.fake.state().running().contains(&"web/app#1".to_owned()));
    world.until("which is told", |world| world.is_ready("web"));
    let events = world.api.list("events", "default");
    assert!(events.iter().all(|event| event["type"] != "Warning"), "{events:?}");
}

#[test]
fn a_start_after_a_restart_of_the_agent_does_not_wait_for_long() {
    let world = World::new();
    let mut spec = app();
    spec["volumes"] = json!([{"name": "words", "configMap": {"name": "words"}}]);
    spec["containers"][0]["volumeMounts"] = json!([{"name": "words", "mountPath": "/words"}]);
    world.api.create("configmaps", json!({"metadata": {"name": "words"}, "data": {"word": "hello"}}));
    world.bind("named", spec);
    world.until("it runs", |world| world.is_ready("named"));
    world.stop();
    world.fake.exit("named/app", 1, "Error", "");
    world.api.fail_next(1000, "GET", "/api/v1/namespaces/default/configmaps", 503, "ServiceUnavailable");
    world.start();
    world.until("it is started again", |world| {
        world.fake.state().running().contains(&"named/app#1".to_owned())
    });
}

#[test]
fn a_changed_config_map_reaches_the_files() {
    let world = World::new();
    world.api.create("configmaps", json!({"metadata": {"name": "words"}, "data": {"word": "one"}}));
    let mut spec = app();
    spec["volumes"] = json!([{"name": "v", "configMap": {"name": "words"}}]);
    spec["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
    world.bind("web", spec);
    world.until("it runs", |world| world.is_ready("web"));
    let uid = world.pod("web").unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
    let file = world.path(&format!("root/pods/{uid}/volumes/kubernetes.io~configmap/v/word"));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "one");
    world.api.patch("configmaps", "default", "words", &json!({"data": {"word": "two"}}));
    world.until("the file is another", |_| std::fs::read_to_string(&file).unwrap_or_default() == "two");
    // Nobody follows what no pod names; the pods themselves and the Node are.
    world.api.delete("pods", "default", "web", Some(0));
    world.until("it is followed no more", |world| world.api.open_watches() == 2);
}

#[test]
fn services_are_variables() {
    let world = World::without_agent();
    let service = json!({"metadata": {"name": "queue"}, "spec": {"clusterIP": "10.96.0.7",
        "ports": [{"name": "amqp", "port": 5672, "protocol": "TCP"}]}});
    world.api.create("services", service.clone());
    let elsewhere = json!({"metadata": {"name": "other", "namespace": "elsewhere"}, "spec": service["spec"]});
    world.api.create("services", elsewhere);
    world.start();
    world.run("web");
    let value = |name: &str| {
        let state = world.fake.state();
        let envs = &state.container("web/app").expect("the container").config.envs;
        let found = envs.iter().find(|env| env.key == name).map(|env| env.value.clone());
        found.map(|value| String::from_utf8(value).expect("text"))
    };
    assert_eq!(value("KUBERNETES_SERVICE_HOST").as_deref(), Some("10.96.0.1"));
    assert_eq!(value("QUEUE_SERVICE_PORT_AMQP").as_deref(), Some("5672"));
    assert_eq!(value("OTHER_SERVICE_HOST"), None, "of another namespace");
}

#[test]
fn a_runtime_class_names_the_handler_and_its_overhead_counts() {
    let world = World::new();
    world.fake.state().handlers = vec![(String::new(), false), ("runsc".to_owned(), false)];
    let class = |handler: &str| json!({"metadata": {"name": "careful"}, "handler": handler});
    let mut spec = app();
    spec["runtimeClassName"] = "careful".into();
    // As the server's own admission has it from the class.
    spec["overhead"] = json!({"cpu": "250m", "memory": "64Mi"});
    world.bind("web", spec.clone());
    let waits = |world: &World, wanted: &str| {
        world.until(wanted, |world| {
            let waiting =
                world.pod("web").unwrap()["status"]["containerStatuses"][0]["state"]["waiting"].clone();
            waiting["reason"] == "RuntimeClassNotFound" && waiting["message"] == wanted
        });
    };
    waits(&world, "RuntimeClass.node.k8s.io \"careful\" not found");
    world.api.create("runtimeclasses", class("none"));
    waits(&world, "RuntimeClass \"careful\": its handler \"none\" is none of the runtime's, runsc");
    world.api.update("runtimeclasses", class("runsc"));
    world.until("it runs", |world| world.is_ready("web"));
    {
        let state = world.fake.state();
        let sandbox = state.sandboxes.values().next().expect("a sandbox");
        assert_eq!(sandbox.handler, "runsc");
        let overhead =
            sandbox.config.linux.as_ref().and_then(|linux| linux.overhead.clone()).expect("overhead");
        assert_eq!((overhead.cpu_shares, overhead.memory_limit_in_bytes), (256, 64 << 20));
    }
    // The next agent runs it on, and another pod has the handler at once.
    world.kill();
    world.start();
    world.bind("other", spec);
    world.until("the other one runs", |world| world.is_ready("other"));
    let all: Vec<String> =
        world.fake.state().sandboxes.values().map(|sandbox| sandbox.handler.clone()).collect();
    assert_eq!(all, ["runsc", "runsc"]);
}

/// The Node authorizer learns of a pod a moment after the node: that is no failure, and no second of waiting.
#[test]
fn what_the_authorizer_does_not_know_yet_is_asked_for_again_soon() {
    let world = World::without_agent();
    world.api.admit_accounts();
    world.api.authorize_late(3);
    let path = world.path("data");
    std::fs::create_dir(&path).unwrap();
    let claim =
        json!({"metadata": {"name": "mine"}, "spec": {"volumeName": "data"}, "status": {"phase": "Bound"}});
    let claim = world.api.create("persistentvolumeclaims", claim);
    let uid = &claim["metadata"]["uid"];
    let spec =
        json!({"hostPath": {"path": path}, "claimRef": {"namespace": "default", "name": "mine", "uid": uid}});
    world.api.create("persistentvolumes", json!({"metadata": {"name": "data"}, "spec": spec}));
    world.api.create("configmaps", json!({"metadata": {"name": "words"}, "data": {"word": "hello"}}));
    world.start();
    let mut spec = with_env("configMapKeyRef");
    spec["volumes"] = json!([{"name": "data", "persistentVolumeClaim": {"claimName": "mine"}}]);
    spec["containers"][0]["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
    world.bind("web", spec);
    world.until("it runs", |world| world.is_ready("web"));
    assert_eq!(world.api.count("POST", "/api/v1/namespaces/default/serviceaccounts"), 4);
    let events = world.api.list("events", "default");
    assert!(events.iter().all(|event| event["type"] != "Warning"), "{events:?}");
}

#[test]
fn what_the_authorizer_never_allows_is_told_and_asked_for_now_and_then() {
    let world = World::new();
    world.api.authorize_late(u32::MAX);
    world.bind("web", with_env("configMapKeyRef"));
    world.until("it says why it waits", |world| {
        let pod = world.pod("web").unwrap();
        pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "CreateContainerConfigError"
    });
    world.api.create("configmaps", json!({"metadata": {"name": "words"}, "data": {"word": "hello"}}));
    world.api.authorize_late(0);
    world.until("it runs", |world| world.is_ready("web"));
}

/// A pod with so many ConfigMaps of its own, in one volume.
fn with_maps(world: &World, name: &str, count: usize, bytes: usize) -> serde_json::Value {
    let mut spec = app();
    let names: Vec<String> = (0..count).map(|number| format!("{name}-{number}")).collect();
    for map in &names {
        world.api.create(
            "configmaps",
            json!({"metadata": {"name": map}, "data": {map.as_str(): "x".repeat(bytes)}}),
        );
    }
    let sources: Vec<_> =
        names.iter().map(|map| json!({"configMap": {"name": map, "optional": true}})).collect();
    spec["volumes"] = json!([{"name": "all", "projected": {"sources": sources}}]);
    spec["containers"][0]["volumeMounts"] = json!([{"name": "all", "mountPath": "/all"}]);
    spec
}

fn files_of(world: &World, name: &str) -> usize {
    let uid = world.pod(name).unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
    let volume = world.path(&format!("root/pods/{uid}/volumes/kubernetes.io~projected/all/..data/"));
    std::fs::read_dir(volume).map_or(0, Iterator::count)
}

#[test]
fn pods_that_name_hundreds_of_objects_start_with_all_of_them() {
    let world = World::new();
    let names: Vec<String> = (0..15).map(|number| format!("pod{number}")).collect();
    // Each of the waits is bounded, and a busy machine takes long for all of them together.
    for names in names.chunks(3) {
        for name in names {
            let spec = with_maps(&world, name, 50, 1);
            world.bind(name, spec);
        }
        for name in names {
            world.until("it runs", |world| world.is_ready(name));
            assert_eq!(files_of(&world, name), 50, "{name}");
        }
    }
    assert!(world.api.open_watches() <= 128 + 24 + 2, "{}", world.api.open_watches());
    let events = world.api.list("events", "default");
    assert!(events.iter().all(|event| event["type"] != "Warning"), "{events:?}");
    for name in &names {
        world.api.delete("pods", "default", name, Some(0));
    }
    world.until("nothing is followed any more", |world| world.api.open_watches() == 2);
}

/// Reason and message of a container that waits.
fn waits(world: &World, name: &str) -> (String, String) {
    let waiting = world.pod(name).unwrap()["status"]["containerStatuses"][0]["state"]["waiting"].clone();
    let text = |field: &str| waiting[field].as_str().unwrap_or_default().to_owned();
    (text("reason"), text("message"))
}

#[test]
fn a_pod_whose_objects_have_no_room_says_so_and_waits_for_it() {
    let world = World::new();
    let large = with_maps(&world, "large", 2, 900 << 10);
    world.bind("large", large);
    world.until("it runs", |world| world.is_ready("large"));
    let other = with_maps(&world, "other", 1, 500 << 10);
    world.bind("other", other);
    world.until("the other one says why it waits", |world| {
        let (reason, message) = waits(world, "other");
        reason == "TooManyObjects"
            && message.starts_with("too many objects on this node: its pods may name 1024 ")
    });
    assert_eq!(world.phase("other"), "Pending");
    world.api.delete("pods", "default", "large", Some(0));
    world.until("there is room for it", |world| world.is_ready("other"));
    assert_eq!(files_of(&world, "other"), 1);
}

#[test]
fn a_pod_that_has_ended_leaves_room_for_others() {
    let world = World::new();
    let mut job = with_maps(&world, "job", 2, 900 << 10);
    job["restartPolicy"] = "Never".into();
    world.bind("job", job);
    world.until("it runs", |world| world.is_ready("job"));
    world.fake.exit("job/app", 0, "Completed", "");
    world.until("it has ended", |world| world.phase("job") == "Succeeded");
    let next = with_maps(&world, "next", 2, 900 << 10);
    world.bind("next", next);
    world.until("the next one runs", |world| world.is_ready("next"));
    assert_eq!(files_of(&world, "next"), 2);
}

#[test]
fn more_objects_than_there_is_room_for_leave_out_whole_pods() {
    let world = World::new();
    for name in ["one", "two", "three", "four"] {
        let mut spec = app();
        let named =
            |number: usize| json!({"configMapRef": {"name": format!("{name}-{number}"), "optional": true}});
        spec["containers"][0]["envFrom"] = (0..300).map(named).collect();
        world.bind(name, spec);
        if name != "four" {
            world.until("it runs", |world| world.is_ready(name));
        }
    }
    world.until("the fourth says why it does not", |world| waits(world, "four").0 == "TooManyObjects");
    world.api.delete("pods", "default", "two", Some(0));
    world.until("it has its turn", |world| world.is_ready("four"));
}
