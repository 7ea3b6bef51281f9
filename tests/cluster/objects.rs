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
