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
