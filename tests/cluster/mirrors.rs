//! Static pods, as the cluster sees them.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::time::Duration;

use hyper::header::HeaderMap;
use serde_json::{Value, json};
use smolet::config::{Config, StaticPodUrl};
use smolet::net::http::HttpGet;

use crate::world::{NODE, World};

const NAME: &str = "own-gw";

/// A manifest of one container.
fn manifest(image: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: own, labels: {{a: b}}}}\nspec:\n  terminationGracePeriodSeconds: 1\n  \
         containers: [{{name: app, image: 'busybox:{image}'}}]\n"
    )
}

fn write(world: &World, text: &str) {
    let folder = world.path("manifests");
    std::fs::write(folder.join("own.yaml.part"), text).unwrap();
    std::fs::rename(folder.join("own.yaml.part"), folder.join("own.yaml")).unwrap();
}

/// With a static pod that runs, and is told to.
fn with_static() -> (World, Value) {
    let world = World::without_agent();
    write(&world, &manifest("1"));
    world.start();
    world.until("the mirror pod is ready", |world| world.is_ready(NAME));
    let mirror = world.pod(NAME).unwrap();
    (world, mirror)
}

fn uid(pod: &Value) -> &str {
    pod["metadata"]["uid"].as_str().unwrap_or_default()
}

/// Another one of the name is there, and ready.
fn renewed(world: &World, before: &Value) -> Value {
    world.wait("another mirror pod", |world| {
        world.pod(NAME).filter(|pod| uid(pod) != uid(before) && world.is_ready(NAME))
    })
}

#[test]
fn a_static_pod_is_shown_as_the_nodes_own() {
    let (world, mirror) = with_static();
    let metadata = &mirror["metadata"];
    let annotation = |name: &str| metadata["annotations"][format!("kubernetes.io/config.{name}")].clone();
    assert_eq!(annotation("mirror"), annotation("hash"));
    assert_eq!(annotation("source"), "file");
    assert!(annotation("seen").is_string());
    assert_eq!(metadata["labels"], json!({"a": "b"}));
    let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": uid(&world.node().unwrap()),
        "controller": true}]);
    assert_eq!(metadata["ownerReferences"], owner);
    assert_eq!(mirror["status"]["phase"], "Running");
    assert!(mirror["status"]["podIP"].is_string());
    // What happens to it is found by kubectl, which looks for the hash.
    world.until("an event", |world| {
        let events = world.api.list("events", "default");
        events.iter().any(|event| event["involvedObject"]["uid"] == annotation("mirror"))
    });
    // It is a copy: one container runs, however often the agent starts anew.
    world.kill();
    world.api.clear_requests();
    world.start();
    world.until("its status is told again", |world| {
        world.api.count("PATCH", "/api/v1/namespaces/default/pods/own-gw/status") > 0
    });
    assert_eq!(world.fake.state().running(), [format!("{NAME}/app#0")]);
    assert_eq!(world.api.count("POST", "/api/v1/namespaces/default/pods"), 0);
    assert_eq!(uid(&world.pod(NAME).unwrap()), uid(&mirror));
}

#[test]
fn a_mirror_pod_that_is_deleted_comes_again_and_its_pod_runs_on() {
    let (world, mirror) = with_static();
    let before = world.fake.actions();
    for grace in [None, Some(0)] {
        let mirror = world.pod(NAME).unwrap_or_else(|| mirror.clone());
        world.api.delete("pods", "default", NAME, grace);
        renewed(&world, &mirror);
    }
    assert_eq!(world.fake.actions(), before, "nothing was done to the static pod");
}

#[test]
fn a_changed_manifest_has_another_mirror_pod() {
    let (world, mirror) = with_static();
    write(&world, &manifest("2"));
    let other = renewed(&world, &mirror);
    assert_eq!(other["spec"]["containers"][0]["image"], "busybox:2");
    world.until("its restart is told", |world| {
        world.pod(NAME).is_some_and(|pod| pod["status"]["containerStatuses"][0]["restartCount"] == 1)
    });
}

#[test]
fn a_mirror_pod_goes_with_its_manifest_and_not_with_a_broken_one() {
    let (world, mirror) = with_static();
    write(&world, "kind: Pod\nspec: [");
    world.run("web");
    world.api.delete("pods", "default", "web", None);
    world.stop();
    world.start();
    world.run("other");
    assert!(world.fake.state().running().contains(&format!("{NAME}/app#0")), "it runs on");
    assert_eq!(uid(&world.pod(NAME).unwrap()), uid(&mirror));
    std::fs::remove_file(world.path("manifests/own.yaml")).unwrap();
    world.until("the mirror pod is gone", |world| world.pod(NAME).is_none());
    world.until("and the pod", |world| world.fake.state().running() == ["other/app#0"]);
}

#[test]
fn mirror_pods_of_nothing_are_deleted_and_run_nothing() {
    let world = World::without_agent();
    let mirror = json!({"metadata": {"name": "left-gw", "namespace": "default",
        "annotations": {"kubernetes.io/config.mirror": "x"}},
        "spec": {"nodeName": NODE, "containers": [{"name": "app", "image": "busybox:1"}]}});
    world.api.create("pods", mirror);
    world.start();
    world.run("web");
    world.until("it is deleted", |world| world.pod("left-gw").is_none());
    assert_eq!(world.fake.state().running(), ["web/app#0"]);
}

#[test]
fn a_static_pod_that_names_an_object_has_no_mirror_pod() {
    let world = World::without_agent();
    let text = manifest("1");
    let named = text.trim_end().trim_end_matches("}]").to_owned()
        + ", envFrom: [{configMapRef: {name: words}}]}]\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: words}\n\
           data: {word: hello}\n";
    write(&world, &named);
    world.start();
    world.run("web");
    world.until("it runs", |world| world.fake.state().running().contains(&format!("{NAME}/app#0")));
    assert!(world.pod(NAME).is_none());
    assert_eq!(world.api.count("POST", "/api/v1/namespaces/default/pods"), 0, "the server is not asked");
    // Without the name it has one.
    write(&world, &text);
    world.until("the mirror pod is ready", |world| world.is_ready(NAME));
}

#[test]
fn a_node_that_registers_again_owns_its_mirror_pods() {
    let (world, _) = with_static();
    let first = uid(&world.node().unwrap()).to_owned();
    world.api.delete("nodes", "", NODE, None);
    // The deletions come by two watches, in any order: a copy may be made for the Node that is gone.
    world.until("it is registered again", |world| world.node().is_some());
    // As the cluster's collector of what has lost its owner.
    let mirror = world.pod(NAME).unwrap();
    world.api.delete("pods", "default", NAME, Some(0));
    let other = renewed(&world, &mirror);
    let owner = &other["metadata"]["ownerReferences"][0]["uid"];
    assert!(*owner != *first && *owner == world.node().unwrap()["metadata"]["uid"], "{owner}");
}

#[test]
fn a_static_pod_of_a_url_is_shown_as_such() {
    // On real time: whoever serves the manifest does not tell when it has answered.
    let world = World::on_real_time_without_agent();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/own.yaml", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let (mut socket, mut head, mut byte) = (socket.unwrap(), Vec::new(), [0]);
            while !head.ends_with(b"\r\n\r\n") && socket.read_exact(&mut byte).is_ok() {
                head.push(byte[0]);
            }
            let body = manifest("1");
            let _ = write!(socket, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        }
    });
    let get = HttpGet::of_url(&url, HeaderMap::new()).unwrap();
    let static_pods = Some(StaticPodUrl { get, period: Duration::from_secs(1) });
    world.start_with(Config { static_pods, ..world.config() });
    world.until("the mirror pod is ready", |world| world.is_ready(NAME));
    let mirror = world.pod(NAME).unwrap();
    let annotation =
        |name: &str| mirror["metadata"]["annotations"][format!("kubernetes.io/config.{name}")].clone();
    assert_eq!((annotation("source"), annotation("mirror")), (json!("http"), annotation("hash")));
    // A copy that was deleted is made anew.
    world.api.delete("pods", "default", NAME, Some(0));
    renewed(&world, &mirror);
}
