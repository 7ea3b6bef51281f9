//! A start without the server: what was kept of the pods begins, and the server's word counts when it is back.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::common::apiserver::ApiServer;
use crate::world::{NODE, World, app};

const WORD: &str = "plain-as-day-4711";

/// The files of what is kept, and which write each is of.
fn kept(world: &World) -> BTreeMap<PathBuf, (u64, i64)> {
    let entries = fs::read_dir(world.path("root/cluster")).into_iter().flatten().flatten();
    let files = entries.filter(|entry| entry.file_name().len() == 32);
    files
        .filter_map(|entry| {
            let metadata = entry.metadata().ok()?;
            Some((entry.path(), (metadata.ino(), metadata.mtime_nsec())))
        })
        .collect()
}

/// The node loses its power and its link: containers are dead, what was in memory is gone.
pub fn reboot_offline(world: &World) {
    world.api.stop_listening();
    reboot(world);
}

fn reboot(world: &World) {
    world.fake.reboot();
    let sandboxes: Vec<String> =
        world.fake.state().sandboxes.values().map(|sandbox| sandbox.pod().to_owned()).collect();
    sandboxes.iter().for_each(|pod| world.fake.forget_sandbox(pod));
    world.fake.clear_calls();
    world.start();
}

pub fn env(world: &World, container: &str, name: &str) -> Option<String> {
    let state = world.fake.state();
    let envs = &state.container(container)?.config.envs;
    let found = envs.iter().find(|env| env.key == name)?;
    Some(String::from_utf8(found.value.clone()).unwrap())
}

pub fn runs(world: &World, container: &str) -> bool {
    world.fake.state().running().iter().any(|running| running.split('#').next() == Some(container))
}

/// A pod with a variable of each, and the ConfigMap as files.
fn named() -> Value {
    let mut spec = app();
    let from = |kind: &str, name: &str| json!({kind: {"name": name, "key": "word"}});
    spec["containers"][0]["env"] = json!([
        {"name": "OPEN", "valueFrom": from("configMapKeyRef", "words")},
        {"name": "CLOSED", "valueFrom": from("secretKeyRef", "keys")},
    ]);
    spec["containers"][0]["envFrom"] = json!([{"configMapRef": {"name": "perhaps", "optional": true}}]);
    spec["volumes"] = json!([{"name": "words", "configMap": {"name": "words"}}]);
    spec["containers"][0]["volumeMounts"] = json!([{"name": "words", "mountPath": "/words"}]);
    spec
}

fn objects(world: &World) {
    world.api.create("configmaps", json!({"metadata": {"name": "words"}, "data": {"word": "hello"}}));
    world.api.create(
        "secrets",
        json!({"metadata": {"name": "keys"}, "stringData": {"word": WORD}, "data": {"word": base64(WORD)}}),
    );
}

fn base64(text: &str) -> String {
    crate::common::apiserver::base64(text.as_bytes())
}

pub fn uid(world: &World, name: &str) -> String {
    world.pod(name).unwrap()["metadata"]["uid"].as_str().unwrap().to_owned()
}

#[test]
fn a_reboot_without_a_server_starts_the_pods_and_what_changed_meanwhile_is_done_later() {
    let world = World::without_agent();
    world.api.admit_accounts();
    objects(&world);
    world.start();
    world.bind("web", named());
    world.run("goes");
    world.until("it runs", |world| world.is_ready("web"));
    let word =
        world.path(&format!("root/pods/{}/volumes/kubernetes.io~configmap/words/word", uid(&world, "web")));
    world.stop();
    fs::remove_dir_all(word.parent().unwrap()).unwrap();
    reboot_offline(&world);
    world.until("both run", |world| runs(world, "web/app") && runs(world, "goes/app"));
    assert_eq!(env(&world, "web/app", "OPEN").as_deref(), Some("hello"));
    assert_eq!(env(&world, "web/app", "CLOSED").as_deref(), Some(WORD));
    assert_eq!(env(&world, "web/app", "KUBERNETES_SERVICE_HOST").as_deref(), Some("10.96.0.1"));
    assert_eq!(fs::read_to_string(&word).unwrap(), "hello");
    let token = world.path(&format!("root/pods/{}/volumes/kubernetes.io~projected", uid(&world, "web")));
    let token = fs::read_dir(token).unwrap().flatten().next().unwrap().path().join("token");
    assert!(!fs::read(&token).unwrap().is_empty(), "a token, though an old one");
    // It crashes, and is started again.
    world.fake.exit("web/app", 1, "Error", "");
    world.until("it is started again", |world| {
        world
            .fake
            .state()
            .running()
            .iter()
            .any(|running| running.starts_with("web/app#") && running != "web/app#0")
    });
    // Meanwhile, elsewhere.
    world.api.delete("pods", "default", "goes", None);
    world.api.patch("configmaps", "default", "words", &json!({"data": {"word": "goodbye"}}));
    world.bind("comes", app());
    assert_eq!(world.fake.count("StopPodSandbox"), 0, "{:?}", world.fake.actions());
    world.api.listen_again();
    world.until("the new one runs", |world| world.is_ready("comes"));
    world.until("the deleted one is gone", |world| world.pod("goes").is_none());
    world.until("the files are new", |_| fs::read_to_string(&word).unwrap_or_default() == "goodbye");
    world.until("the restart is told", |world| {
        world.pod("web").unwrap()["status"]["containerStatuses"][0]["restartCount"].as_i64() > Some(0)
    });
    assert!(runs(&world, "web/app"));
}

#[test]
fn the_pods_of_an_agent_that_starts_without_a_server_are_restarted_when_they_crash() {
    let world = World::new();
    world.run("web");
    world.stop();
    world.api.stop_listening();
    world.start();
    world.fake.exit("web/app", 1, "Error", "");
    world
        .until("it is started again", |world| world.fake.state().running().contains(&"web/app#1".to_owned()));
    assert_eq!(world.fake.count("RunPodSandbox"), 1);
}

#[test]
fn a_power_cut_loses_nothing_that_was_kept() {
    let world = World::new();
    world.run("web");
    // The pod, the Node, two services.
    world.until("all is kept", |world| kept(world).len() == 4);
    world.kill();
    reboot_offline(&world);
    world.until("it runs", |world| runs(world, "web/app"));
}

#[test]
fn what_has_ended_or_was_being_deleted_does_not_begin_again() {
    let world = World::new();
    let mut job = app();
    job["restartPolicy"] = "Never".into();
    world.bind("told", job.clone());
    world.bind("untold", job);
    world.run("stays");
    world.run("deleted");
    world.until("the jobs run", |world| world.is_ready("told") && world.is_ready("untold"));
    world.fake.exit("told/app", 0, "Completed", "");
    world.until("its end is told", |world| world.phase("told") == "Succeeded");
    world.until("all is kept", |world| kept(world).len() == 6);
    world.fake.hang_on("StopContainer", "deleted/app");
    world.api.delete("pods", "default", "deleted", Some(30));
    world.until("it is not kept any more", |world| kept(world).len() == 5);
    world.api.stop_listening();
    world.fake.exit("untold/app", 0, "Completed", "");
    world.until("its end is seen", |world| {
        world.fake.actions().iter().any(|call| call.starts_with("StopPodSandbox untold"))
    });
    world.stop();
    world.fake.heal("StopContainer");
    reboot_offline(&world);
    world.until("the one that stays runs", |world| runs(world, "stays/app"));
    assert_eq!(world.fake.state().running().len(), 1, "{:?}", world.fake.actions());
    world.api.listen_again();
    world.until("its end is told too", |world| world.phase("untold") == "Succeeded");
    world.until("the deleted one is gone", |world| world.pod("deleted").is_none());
    assert_eq!(world.fake.count("RunPodSandbox"), 1, "{:?}", world.fake.actions());
}

#[test]
fn with_a_server_that_answers_nothing_begins_that_was_deleted_meanwhile() {
    let world = World::new();
    world.run("web");
    world.stop();
    world.api.delete("pods", "default", "web", Some(0));
    world.bind("other", app());
    reboot(&world);
    world.until("the other runs", |world| world.is_ready("other"));
    assert!(!world.fake.actions().iter().any(|call| call.contains("web")), "{:?}", world.fake.actions());
}

#[test]
fn without_its_key_the_pods_that_need_secrets_wait_and_others_begin() {
    for forgets in [true, false] {
        let world = World::without_agent();
        objects(&world);
        world.start();
        world.bind("secretive", named());
        let mut choosy = app();
        choosy["containers"][0]["envFrom"] = json!([{"secretRef": {"name": "keys", "optional": true}}]);
        world.bind("choosy", choosy);
        world.run("open");
        world.until("they run", |world| world.is_ready("secretive") && world.is_ready("choosy"));
        world.stop();
        fs::remove_file(world.path("root/cluster/key")).unwrap();
        world.api.stop_listening();
        if forgets {
            reboot(&world);
        } else {
            world.fake.reboot();
            world.start();
        }
        world.until("the other runs", |world| runs(world, "open/app"));
        // Longer than a start waits for a server that is there.
        world.pass(Duration::from_secs(7));
        assert_eq!(world.fake.state().running().len(), 1, "{:?}", world.fake.actions());
        world.api.listen_again();
        world.until("they run", |world| runs(world, "secretive/app") && runs(world, "choosy/app"));
        assert_eq!(env(&world, "secretive/app", "CLOSED").as_deref(), Some(WORD));
        assert_eq!(env(&world, "choosy/app", "word").as_deref(), Some(WORD));
    }
}

/// Every file below, but for what is in pods' volumes, which lies in memory.
fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap().flatten() {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() && entry.file_name() != "volumes" {
            files(&entry.path(), found);
        } else if kind.is_file() {
            found.push(entry.path());
        }
    }
}

#[test]
fn no_secret_stands_on_the_disk_as_it_is() {
    let world = World::without_agent();
    world.api.admit_accounts();
    objects(&world);
    world.start();
    world.bind("web", named());
    world.until("it runs", |world| world.is_ready("web"));
    let token = world.path(&format!("root/pods/{}/volumes/kubernetes.io~projected", uid(&world, "web")));
    let token = fs::read_dir(token).unwrap().flatten().next().unwrap().path().join("token");
    let token = fs::read_to_string(token).unwrap();
    world.stop();
    let mut found = Vec::new();
    files(&world.path("root"), &mut found);
    assert!(
        found.iter().filter(|path| path.starts_with(world.path("root/cluster"))).count() > 7,
        "{found:?}"
    );
    for path in found {
        let bytes = fs::read(&path).unwrap();
        for secret in [WORD, &base64(WORD), &token] {
            let is_in = bytes.windows(secret.len()).any(|part| part == secret.as_bytes());
            assert!(!is_in, "{} in {}", secret, path.display());
        }
    }
}

#[test]
fn nothing_is_written_while_nothing_changes() {
    let world = World::without_agent();
    objects(&world);
    world.start();
    world.bind("web", named());
    world.until("it runs", |world| world.is_ready("web"));
    world.until("all is kept", |world| kept(world).len() == 7);
    let before = kept(&world);
    // What changes is nothing that a start needs.
    let note = json!({"metadata": {"annotations": {"seen": "now"}}});
    world.api.patch("configmaps", "default", "words", &note);
    world.api.patch("nodes", "", NODE, &note);
    let taint = json!({"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"});
    world.api.patch("nodes", "", NODE, &json!({"spec": {"taints": [taint]}}));
    world.api.send_bookmarks();
    world.api.compact();
    world.api.cut_connections();
    world.stop();
    world.start();
    world.run("other");
    world.until("that is kept", |world| kept(world).len() == 8);
    let after = kept(&world);
    for (path, write) in before {
        assert_eq!(after.get(&path), Some(&write), "{}", path.display());
    }
}

#[test]
fn neither_a_damaged_folder_nor_another_clusters_ends_or_begins_anything() {
    let world = World::new();
    world.run("web");
    world.until("all is kept", |world| kept(world).len() == 4);
    world.kill();
    world.api.stop_listening();
    let before = world.fake.state().running();
    world.fake.clear_calls();
    for path in kept(&world).into_keys() {
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    }
    world.start();
    world.until("it is found out", |world| world.path("root/cluster/damaged").exists());
    // A moment to do what it should not.
    world.pass(Duration::from_secs(1));
    assert_eq!(world.fake.state().running(), before);
    world.api.listen_again();
    world.until("it is kept again", |world| kept(world).len() == 4);
    world.kill();

    let theirs = ApiServer::start();
    let mut config = world.config();
    fs::create_dir(world.path("theirs")).unwrap();
    config.kubeconfig = Some(theirs.kubeconfig(&world.path("theirs"), &format!("system:node:{NODE}")));
    theirs.stop_listening();
    world.fake.exit("web/app", 1, "Error", "");
    world.start_with(config);
    // Longer than the patience with a server that is away.
    world.pass(Duration::from_secs(8));
    assert_eq!(world.fake.state().running(), Vec::<String>::new());
    assert!(
        !world.fake.actions().iter().any(|call| call.starts_with("Remove")),
        "{:?}",
        world.fake.actions()
    );
}

#[test]
fn classes_and_claims_are_known_without_a_server() {
    let world = World::without_agent();
    let volume = world.path("volume");
    world.start();
    world.until("the node is registered", |world| world.node().is_some());
    let claim =
        json!({"metadata": {"name": "data"}, "spec": {"volumeName": "pv"}, "status": {"phase": "Bound"}});
    let claim = world.api.create("persistentvolumeclaims", claim);
    world.api.patch("persistentvolumeclaims", "default", "data", &json!({"status": {"phase": "Bound"}}));
    let reference = json!({"namespace": "default", "name": "data", "uid": claim["metadata"]["uid"]});
    let spec = json!({"hostPath": {"path": volume, "type": "DirectoryOrCreate"}, "claimRef": reference});
    world.api.create("persistentvolumes", json!({"metadata": {"name": "pv"}, "spec": spec}));
    world.api.create("runtimeclasses", json!({"metadata": {"name": "plain"}, "handler": "runc"}));
    let mut spec = app();
    spec["runtimeClassName"] = "plain".into();
    spec["volumes"] = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]);
    spec["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/data"}]);
    world.bind("web", spec);
    world.until("it runs", |world| world.is_ready("web"));
    world.stop();
    reboot_offline(&world);
    world.until("it runs again", |world| runs(world, "web/app"));
    let state = world.fake.state();
    let mounts = &state.container("web/app").expect("the container").config.mounts;
    assert!(mounts.iter().any(|mount| mount.host_path == volume.display().to_string()), "{mounts:?}");
    assert_eq!(state.sandbox("web").expect("its sandbox").handler, "runc");
}

#[test]
fn a_server_that_is_back_and_ill_takes_nothing_away() {
    let world = World::without_agent();
    objects(&world);
    world.start();
    world.bind("web", named());
    world.until("it runs", |world| world.is_ready("web"));
    let word =
        world.path(&format!("root/pods/{}/volumes/kubernetes.io~configmap/words/word", uid(&world, "web")));
    world.stop();
    reboot_offline(&world);
    world.until("it runs", |world| runs(world, "web/app"));
    world.api.fail_next(1000, "GET", "/api/v1/namespaces/default/configmaps", 503, "ServiceUnavailable");
    world.api.clear_requests();
    world.api.listen_again();
    world.until("it is asked again and again", |world| {
        world.api.count("GET", "/api/v1/namespaces/default/configmaps") > 6
    });
    world.until("the pod is ready there", |world| world.is_ready("web"));
    assert_eq!(fs::read_to_string(&word).unwrap(), "hello");
    let before = kept(&world);
    world.stop();
    assert_eq!(kept(&world), before, "nor from the disk");
    reboot_offline(&world);
    world.until("it runs once more", |world| runs(world, "web/app"));
    assert_eq!(env(&world, "web/app", "OPEN").as_deref(), Some("hello"));
}

#[test]
fn a_link_that_swallows_everything_is_waited_for_no_longer_than_half_a_minute() {
    let world = World::new();
    world.run("web");
    world.stop();
    world.api.freeze(true);
    let begun = world.now();
    reboot(&world);
    world.until("it runs", |world| runs(world, "web/app"));
    assert!(world.since(begun) < Duration::from_secs(30), "{:?}", world.since(begun));
    world.api.freeze(false);
    world.until("which is told", |world| world.is_ready("web"));
}
