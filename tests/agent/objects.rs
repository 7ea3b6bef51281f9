//! ConfigMaps and Secrets from the manifest directory.

use crate::common::fake::Program;
use crate::world::World;

const POD: &str = "containers: [{name: app, image: 'busybox:1', \
                   env: [{name: A, valueFrom: {configMapKeyRef: {name: conf, key: a}}}], \
                   envFrom: [{prefix: L_, secretRef: {name: login}}]}]";
const CONF: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: conf}\ndata: {a: '1'}\n";
const LOGIN: &str = "apiVersion: v1\nkind: Secret\nmetadata: {name: login}\nstringData: {word: hunter2}\n";

/// The environment variables of the newest container of that name.
fn variables(world: &World, name: &str) -> Vec<(String, String)> {
    let state = world.fake.state();
    let container = state.containers.values().filter(|c| c.name() == name).max_by_key(|c| c.attempt());
    let envs = &container.expect("the container").config.envs;
    let own = envs.iter().filter(|env| env.key == "A" || env.key.starts_with("L_"));
    own.map(|env| (env.key.clone(), String::from_utf8_lossy(&env.value).into_owned())).collect()
}

fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn a_pod_waits_for_its_objects_and_starts_when_they_exist() {
    let world = World::new();
    world.put("web", POD);
    let missed = |what: &str| ("CreateContainerConfigError".to_owned(), format!("{what} not found"));
    world.until("the Secret is missed", |world| world.waiting("web", "app") == missed("secret \"login\""));
    world.put_text("login", LOGIN);
    world.until("the ConfigMap is missed", |world| {
        world.waiting("web", "app") == missed("configmap \"conf\"")
    });
    let before = world.seconds();
    world.put_text("conf", CONF);
    world.until("it runs", |world| world.running() == ["web/app#0"]);
    assert!(world.seconds() - before < 5, "at once, not with the next retry");
    assert_eq!(variables(&world, "app"), pairs(&[("A", "1"), ("L_word", "hunter2")]));
    for path in ["/pods", "/pods?output=yaml", "/pods?output=table", "/describe?pod=web-gw", "/metrics"] {
        let (_, body) = world.ask(path);
        assert!(!body.contains("hunter2"), "{path} shows a Secret's value");
    }
}

#[test]
fn a_changed_object_applies_to_the_next_container() {
    let world = World::new();
    world.put_text("all", &format!("{CONF}---\n{LOGIN}"));
    world.run("web", POD);
    world.fake.clear_calls();
    world.put_text("all", &format!("{}---\n{LOGIN}", CONF.replace("'1'", "'2'")));
    world.pass(15);
    assert_eq!(world.actions(), [""; 0], "running containers are unchanged");
    world.put("web", &POD.replace("busybox:1", "busybox:2"));
    world.until("the new container", |world| world.running() == ["web/app#1"]);
    assert_eq!(variables(&world, "app"), pairs(&[("A", "2"), ("L_word", "hunter2")]));
}

#[test]
fn objects_are_kept_while_a_manifest_cannot_be_read_and_removed_with_their_file() {
    let world = World::new();
    world.put_text("conf", CONF);
    world.put_text("login", LOGIN);
    world.run("web", POD);
    world.put_text("conf", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: conf}\ndata: [a]\n");
    world.pass(5);
    world.put("other", &POD.replace("name: app", "name: second"));
    world.until("the held object serves", |world| world.running().contains(&"other/second#0".to_owned()));
    world.remove("conf");
    world.pass(5);
    world.put("third", &POD.replace("name: app", "name: third"));
    world.until("it is missed", |world| world.waiting("third", "third").0 == "CreateContainerConfigError");
    assert_eq!(world.running().len(), 2, "running containers no longer need it");
}

const FILES: &str = "volumes: [{name: files, configMap: {name: conf, items: [{key: a, path: sub/a, mode: 0400}]}}], \
                     containers: [{name: app, image: 'busybox:1', volumeMounts: [{name: files, mountPath: /etc/app}]}]";

#[test]
fn a_volume_has_the_files_of_its_config_map_and_is_updated() {
    let world = World::new();
    world.put("web", FILES);
    let missed = "MountVolume.SetUp failed for volume \"files\" : configmap \"conf\" not found";
    // Volumes are created on a thread, which virtual time does not wait for.
    world.until("the word", |world| world.pod("web").is_some() && world.describe("web-gw").contains(missed));
    assert_eq!(world.waiting("web", "app").0, "ContainerCreating");
    world.put_text("conf", CONF);
    world.until("it runs", |world| world.running() == ["web/app#0"]);
    let pod_dir = world.pod_dir("web");
    let dir = pod_dir.join("volumes/kubernetes.io~configmap/files");
    let file = || std::fs::read_to_string(dir.join("sub/a")).unwrap();
    assert_eq!(file(), "1");
    {
        let state = world.fake.state();
        let container = state.containers.values().find(|c| c.name() == "app").unwrap();
        let mount = container.config.mounts.iter().find(|mount| mount.container_path == "/etc/app").unwrap();
        assert_eq!((mount.host_path.as_str(), mount.readonly), (dir.to_str().unwrap(), true));
    }

    world.fake.clear_calls();
    world.put_text("conf", &CONF.replace("'1'", "'2'"));
    world.until("the file follows", |_| file() == "2");
    world.remove("conf");
    world.pass(5);
    assert_eq!(file(), "2", "a removed ConfigMap leaves the files of running containers");
    assert!(world.describe("web-gw").contains(missed));
    assert_eq!(world.actions(), [""; 0], "the container is unchanged");
    world.fake.exit("web-gw/app", 1, "", "");
    world.until("it is started again, with its files", |world| world.running() == ["web/app#1"]);
    assert_eq!(file(), "2");

    world.kill();
    world.put_text("conf", &CONF.replace("'1'", "'3'"));
    world.start();
    world.until("what changed meanwhile is made good", |_| file() == "3");
    // Both at once: the object's removal must not start the pod again.
    world.remove("conf");
    world.remove("web");
    world.until("it is gone", |world| world.pods().is_empty());
    world.pass(15);
    assert!(world.running().is_empty() && world.pods().is_empty());
    assert!(!pod_dir.exists());
}

#[test]
fn an_object_that_changes_during_a_termination_does_not_restart_the_old_pod() {
    let world = World::new();
    world.fake.program("app", Program::STUBBORN);
    world.put_text("all", &format!("{CONF}---\n{LOGIN}"));
    let pod = |version: u32| {
        let pod = POD.replace("busybox:1", &format!("busybox:{version}"));
        format!("terminationGracePeriodSeconds: 20, {pod}")
    };
    world.run("web", &pod(1));
    world.remove("web");
    world.until("its end begins", |world| world.count("StopContainer web/app#0") == 1);
    world.put("web", &pod(2));
    world.pass(2);
    world.put_text("all", &format!("{}---\n{LOGIN}", CONF.replace("'1'", "'2'")));
    world.pass(2);
    assert_eq!(world.count("RunPodSandbox"), 1, "it is still terminating");
    world.until("the new version", |world| world.count("StartContainer web/app") == 2);
    let image = world.status_of("web", "app").unwrap().image;
    assert!(image.contains("busybox:2"), "{image}");
    assert_eq!(variables(&world, "app"), pairs(&[("A", "2"), ("L_word", "hunter2")]));
}
