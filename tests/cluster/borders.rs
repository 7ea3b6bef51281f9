//! Objects of manifests and of the API server: each pod has those of its own side, whatever they are called.

use serde_json::{Value, json};

use crate::common::apiserver::base64;
use crate::offline::{env, reboot_offline, runs, uid};
use crate::world::{World, app};

/// The static pod, as it is called on the node.
const STATIC: &str = "own-gw";

/// Its UID, as its manifest has it.
const UID: &str = "own-uid";

/// Writes the static pod and its objects.
fn write(world: &World, spec: Value, objects: &[Value]) {
    write_as(world, UID, spec, objects);
}

/// The same with that UID.
fn write_as(world: &World, uid: &str, spec: Value, objects: &[Value]) {
    let metadata = json!({"name": "own", "uid": uid});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec});
    let items: Vec<Value> = objects.iter().cloned().chain([pod]).collect();
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    let path = world.path("manifests/own.json");
    let part = world.path("manifests/own.part");
    std::fs::write(&part, list.to_string()).unwrap();
    std::fs::rename(&part, path).unwrap();
}

fn config_map(name: &str, word: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"word": word}})
}

fn secret(name: &str, word: &str) -> Value {
    let data = json!({"word": base64(word.as_bytes())});
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data})
}

/// The login `user` for the registry of the images here.
fn login(user: &str) -> Value {
    let auths = json!({"auths": {"docker.io": {"username": user, "password": "x"}}});
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "login"}, "type": "kubernetes.io/dockerconfigjson",
        "data": {".dockerconfigjson": base64(auths.to_string().as_bytes())}})
}

/// A pod that names the ConfigMap `open` and the Secrets `closed` and `login` in every way.
fn named(image: &str) -> Value {
    let mut spec = app();
    let container = &mut spec["containers"][0];
    let from = |kind: &str, name: &str| json!({kind: {"name": name, "key": "word"}});
    container["image"] = image.into();
    container["imagePullPolicy"] = "Always".into();
    container["env"] = json!([
        {"name": "OPEN", "valueFrom": from("configMapKeyRef", "open")},
        {"name": "CLOSED", "valueFrom": from("secretKeyRef", "closed")},
    ]);
    container["envFrom"] = json!([
        {"prefix": "OPEN_", "configMapRef": {"name": "open"}}, {"prefix": "CLOSED_", "secretRef": {"name": "closed"}},
    ]);
    container["volumeMounts"] = json!([
        {"name": "open", "mountPath": "/open"}, {"name": "closed", "mountPath": "/closed/word", "subPath": "word"},
        {"name": "both", "mountPath": "/both"},
    ]);
    spec["volumes"] = json!([
        {"name": "open", "configMap": {"name": "open"}}, {"name": "closed", "secret": {"secretName": "closed"}},
        {"name": "both", "projected": {"sources": [
            {"configMap": {"name": "open", "items": [{"key": "word", "path": "open"}]}},
            {"secret": {"name": "closed", "items": [{"key": "word", "path": "closed"}]}}]}},
    ]);
    spec["imagePullSecrets"] = json!([{"name": "login"}]);
    spec
}

/// The files in its volumes.
fn files(uid: &str) -> [String; 4] {
    let files = ["configmap/open/word", "secret/closed/word", "projected/both/open", "projected/both/closed"];
    files.map(|path| format!("root/pods/{uid}/volumes/kubernetes.io~{path}"))
}

/// All that the pod has of the word: variables and files.
fn words(world: &World, container: &str, uid: &str) -> Vec<String> {
    let variables = ["OPEN", "CLOSED", "OPEN_word", "CLOSED_word"];
    let variables = variables.map(|name| env(world, container, name).unwrap_or_default());
    let files = files(uid).map(|path| std::fs::read_to_string(world.path(&path)).unwrap_or_default());
    variables.into_iter().chain(files).collect()
}

fn all(open: &str, closed: &str) -> Vec<String> {
    [open, closed].repeat(4).into_iter().map(str::to_owned).collect()
}

/// Logins with which that image was pulled.
fn logins(world: &World, image: &str) -> Vec<String> {
    let calls = world.fake.actions();
    let pulls = calls.iter().filter_map(|call| call.strip_prefix("PullImage "));
    pulls.filter(|pull| pull.contains(image)).map(str::to_owned).collect()
}

fn is_pulled_as(world: &World, image: &str, user: &str) {
    let logins = logins(world, image);
    let ends = format!(" as {user}");
    assert!(!logins.is_empty() && logins.iter().all(|login| login.ends_with(&ends)), "{logins:?}");
}

/// Both sides have the objects, with other values.
fn two_sided() -> (World, String) {
    let world = World::without_agent();
    for (plural, object) in [
        ("configmaps", config_map("open", "tenant's")),
        ("secrets", secret("closed", "tenant's secret")),
        ("secrets", login("tenant")),
    ] {
        world.api.create(plural, object);
    }
    let own = [config_map("open", "node's"), secret("closed", "node's secret"), login("node")];
    write(&world, named("busybox:2"), &own);
    world.start();
    world.until("the static pod runs", |world| runs(world, "own-gw/app"));
    world.bind("web", named("busybox:1"));
    world.until("the other is ready", |world| world.is_ready("web"));
    let uid = uid(&world, "web");
    (world, uid)
}

fn each_has_its_own(world: &World, web: &str) {
    assert_eq!(words(world, "web/app", web), all("tenant's", "tenant's secret"));
    assert_eq!(words(world, "own-gw/app", UID), all("node's", "node's secret"));
    assert_eq!(env(world, "web/app", "KUBERNETES_SERVICE_HOST").as_deref(), Some("10.96.0.1"));
    assert_eq!(env(world, "own-gw/app", "KUBERNETES_SERVICE_HOST"), None, "services are the cluster's");
}

#[test]
fn of_objects_of_one_name_each_pod_has_its_own_sides() {
    let (world, web) = two_sided();
    each_has_its_own(&world, &web);
    is_pulled_as(&world, "busybox:1", "tenant");
    is_pulled_as(&world, "busybox:2", "node");
    // A change on one side is none on the other.
    world.api.patch("configmaps", "default", "open", &json!({"data": {"word": "tenant's new"}}));
    let read = |uid: &str| std::fs::read_to_string(world.path(&files(uid)[0])).unwrap_or_default();
    world.until("the tenant's file is another", |_| read(&web) == "tenant's new");
    assert_eq!(read(UID), "node's");
    let own = [config_map("open", "node's new"), secret("closed", "node's secret"), login("node")];
    write(&world, named("busybox:2"), &own);
    world.until("the node's file is another", |_| read(UID) == "node's new");
    assert_eq!(read(&web), "tenant's new");
    assert_eq!(world.fake.count("CreateContainer"), 2, "{:?}", world.fake.actions());
}

#[test]
fn a_restart_of_the_agent_touches_neither_sides_pods_and_what_begins_then_has_its_own() {
    let (world, web) = two_sided();
    for away in [false, true] {
        world.kill();
        world.fake.clear_calls();
        if away {
            world.api.stop_listening();
        }
        world.start();
        if !away {
            // By then the server's pods are taken over.
            world.run("other");
            world.api.delete("pods", "default", "other", Some(0));
        }
        for pod in ["web", STATIC] {
            let touched = |call: &String| {
                let is_change =
                    ["Create", "Start", "Stop", "Remove", "Run"].iter().any(|w| call.starts_with(w));
                is_change && call.contains(pod)
            };
            assert!(!world.fake.actions().iter().any(touched), "{:?}", world.fake.actions());
        }
        for pod in ["web", STATIC] {
            let container = format!("{pod}/app");
            let before = world.fake.state().running();
            world.fake.exit(&container, 1, "Error", "");
            world.until("it is started again", |world| {
                runs(world, &container) && world.fake.state().running() != before
            });
        }
        each_has_its_own(&world, &web);
    }
}

#[test]
fn a_reboot_without_a_server_gives_each_pod_its_own_sides_objects() {
    let (world, web) = two_sided();
    world.stop();
    for path in [&*web, UID].into_iter().flat_map(files) {
        // As what was in memory, which is gone.
        std::fs::write(world.path(&path), "of before").unwrap();
    }
    reboot_offline(&world);
    world.until("both run", |world| runs(world, "web/app") && runs(world, "own-gw/app"));
    each_has_its_own(&world, &web);
    is_pulled_as(&world, "busybox:1", "tenant");
    is_pulled_as(&world, "busybox:2", "node");
}

/// What the server says of it, in its events too.
fn says(world: &World, pod: &str, words: &str) -> bool {
    let events = world.api.list("events", "default");
    let of_pod = events.iter().filter(|event| event["involvedObject"]["name"] == pod);
    let status = world.pod(pod).unwrap_or_default()["status"]["containerStatuses"].to_string();
    status.contains(words)
        || of_pod.map(|event| event["message"].to_string()).any(|said| said.contains(words))
}

#[test]
fn a_pod_of_the_server_has_nothing_that_only_manifests_have() {
    let world = World::without_agent();
    let own = [config_map("open", "node's"), secret("closed", "node's secret"), login("node")];
    write(&world, named("busybox:2"), &own);
    world.start();
    world.until("the static pod runs", |world| runs(world, "own-gw/app"));
    let of_env = |kind: &str, name: &str, optional: bool| {
        let mut spec = app();
        let from = json!({kind: {"name": name, "key": "word", "optional": optional}});
        spec["containers"][0]["env"] = json!([{"name": "WORD", "valueFrom": from}]);
        spec
    };
    let of_volume = |volume: Value, sub_path: &str| {
        let mut spec = app();
        spec["volumes"] = json!([volume]);
        spec["containers"][0]["volumeMounts"] =
            json!([{"name": "v", "mountPath": "/v", "subPath": sub_path}]);
        spec
    };
    let closed = json!({"name": "v", "secret": {"secretName": "closed"}});
    let both = json!({"name": "v", "projected": {"sources": [{"secret": {"name": "closed"}}]}});
    let open = json!({"name": "v", "configMap": {"name": "open"}});
    let waiting = [
        ("env-secret", of_env("secretKeyRef", "closed", false), "secret \"closed\" not found"),
        ("env-map", of_env("configMapKeyRef", "open", false), "configmap \"open\" not found"),
        ("files", of_volume(closed.clone(), ""), "secret \"closed\" not found"),
        ("sub-path", of_volume(closed, "word"), "secret \"closed\" not found"),
        ("projected", of_volume(both, ""), "secret \"closed\" not found"),
        ("map-files", of_volume(open, ""), "configmap \"open\" not found"),
    ];
    for (name, spec, _) in &waiting {
        world.bind(name, spec.clone());
    }
    let mut pulls = app();
    pulls["containers"][0]["imagePullPolicy"] = "Always".into();
    pulls["imagePullSecrets"] = json!([{"name": "login"}]);
    world.run_as("pulls", pulls);
    assert!(
        logins(&world, "busybox:1").iter().all(|login| !login.contains(" as ")),
        "{:?}",
        world.fake.actions()
    );
    world.until("it is told", |world| {
        says(world, "pulls", "Unable to retrieve some image pull secrets (login)")
    });
    world.run_as("optional", of_env("secretKeyRef", "closed", true));
    assert_eq!(env(&world, "optional/app", "WORD"), None);
    for (name, _, words) in &waiting {
        // As JSON has them.
        let words = words.replace('"', "\\\"");
        world.until(&format!("{name} says why it waits"), |world| says(world, name, &words));
        assert!(!runs(&world, &format!("{name}/app")));
        assert!(world.fake.state().container(&format!("{name}/app")).is_none());
    }
    // What they wait for is the server's.
    world.api.create("secrets", secret("closed", "tenant's secret"));
    world.api.create("configmaps", config_map("open", "tenant's"));
    for (name, ..) in &waiting {
        world.until("it begins", |world| world.is_ready(name));
    }
    assert_eq!(env(&world, "env-secret/app", "WORD").as_deref(), Some("tenant's secret"));
    assert_eq!(env(&world, "env-map/app", "WORD").as_deref(), Some("tenant's"));
    assert_eq!(words(&world, "own-gw/app", UID), all("node's", "node's secret"));
}

#[test]
fn a_static_pod_has_nothing_of_the_servers_and_is_no_reason_to_watch_it() {
    let world = World::without_agent();
    world.api.create("configmaps", config_map("open", "tenant's"));
    world.api.create("secrets", secret("closed", "tenant's secret"));
    world.api.create("secrets", login("tenant"));
    world.start();
    // The server's objects are known on the node: it has a pod that names them.
    world.run_as("web", named("busybox:1"));
    let closed = |optional: bool| json!({"secretRef": {"name": "closed", "optional": optional}});
    let mut spec = app();
    spec["containers"][0]["image"] = "busybox:2".into();
    spec["containers"][0]["imagePullPolicy"] = "Always".into();
    spec["containers"][0]["envFrom"] = json!([closed(true)]);
    spec["imagePullSecrets"] = json!([{"name": "login"}]);
    write_as(&world, "first-uid", spec, &[]);
    world.until("it runs without", |world| runs(world, "own-gw/app"));
    assert_eq!(env(&world, "own-gw/app", "word"), None);
    assert!(
        logins(&world, "busybox:2").iter().all(|login| !login.contains(" as ")),
        "{:?}",
        world.fake.actions()
    );
    // One that cannot do without waits for its own.
    write(&world, named("busybox:2"), &[]);
    world.until("the first one is gone", |world| !runs(world, "own-gw/app"));
    world.until("it says why", |world| says(world, STATIC, "configmap \\\"open\\\" not found"));
    assert!(!runs(&world, "own-gw/app"), "{:?}", world.fake.actions());
    world.api.delete("pods", "default", "web", Some(0));
    world.until("nothing is watched for the static pod", |world| world.api.open_watches() == 2);
    let own = [config_map("open", "node's"), secret("closed", "node's secret"), login("node")];
    write(&world, named("busybox:2"), &own);
    world.until("it runs", |world| runs(world, "own-gw/app"));
    assert_eq!(words(&world, "own-gw/app", UID), all("node's", "node's secret"));
    assert_eq!(world.api.open_watches(), 2);
}
