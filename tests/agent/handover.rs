//! A node that a kubelet ran before: its pods are adopted, replaced, ignored, or terminated.

use smolet::config::Config;
use smolet::model::container_hash;
use smolet::proto::runtime::v1 as cri;

use crate::common::fake::Fake;
use crate::world::{World, full};

const APP: &str = "terminationGracePeriodSeconds: 7, containers: [{name: app, image: 'busybox:1'}]";
const UID: &str = "6b1fb6a5e19e3c4f2c6a8d0a5f0c1e77";

fn map<const N: usize>(entries: [(&str, &str); N]) -> std::collections::BTreeMap<String, String> {
    entries.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

/// A kubelet's static pod, or (`api`) its pod of an API server.
pub fn of_kubelet(fake: &Fake, name: &str, uid: &str, image: &str, source: &str) {
    let labels = map([
        ("io.kubernetes.pod.name", name),
        ("io.kubernetes.pod.namespace", "default"),
        ("io.kubernetes.pod.uid", uid),
    ]);
    let sandbox = cri::PodSandboxConfig {
        metadata: Some(cri::PodSandboxMetadata {
            name: name.into(),
            uid: uid.into(),
            namespace: "default".into(),
            attempt: 0,
        }),
        labels: labels.clone(),
        annotations: map([
            ("kubernetes.io/config.hash", uid),
            ("kubernetes.io/config.seen", "2026-02-02T02:40:00.000000000Z"),
            ("kubernetes.io/config.source", source),
        ]),
        ..Default::default()
    };
    let mut labels = labels;
    labels.insert("io.kubernetes.container.name".into(), "app".into());
    let container = cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata { name: "app".into(), attempt: 0 }),
        image: Some(cri::ImageSpec { image: image.into(), ..Default::default() }),
        labels,
        annotations: map([
            ("io.kubernetes.container.hash", &format!("{:x}", container_hash("app", image))),
            ("io.kubernetes.container.restartCount", "0"),
            ("io.kubernetes.pod.terminationGracePeriod", "5"),
        ]),
        ..Default::default()
    };
    fake.run_pod(sandbox, vec![container]);
}

fn taking_over(world: &World) -> Config {
    Config { take_over: true, ..world.config() }
}

pub fn remembered(world: &World, uid: &str) -> bool {
    let identity = std::fs::read(world.path("root").join("identity.cbor")).unwrap();
    identity.windows(uid.len()).any(|bytes| bytes == uid.as_bytes())
}

#[test]
fn a_kubelets_static_pod_is_adopted_with_its_uid() {
    let world = World::without_agent();
    of_kubelet(&world.fake, &full("web"), UID, "busybox:1", "file");
    let kept = world.path("root").join("pods").join(UID).join("volumes/kubernetes.io~empty-dir/data/kept");
    std::fs::create_dir_all(kept.parent().unwrap()).unwrap();
    std::fs::write(&kept, "data").unwrap();
    world.put("web", APP);
    world.start();
    world.pass(5);
    assert_eq!(world.actions(), [""; 0]);
    assert_eq!((world.phase("web"), world.uid("web")), ("Running".into(), UID.into()));
    assert_eq!(world.status_of("web", "app").unwrap().restart_count, 0);
    world.wait("the record", |world| remembered(world, UID));
    // After any restart of the agent, and after the runtime has lost it.
    for ending in [World::stop, World::kill] {
        ending(&world);
        world.start();
        world.pass(5);
        assert_eq!(world.actions(), [""; 0]);
        assert_eq!(world.uid("web"), UID);
    }
    world.kill();
    world.fake.forget_sandbox(&full("web"));
    world.start();
    world.until("the pod", |world| world.phase("web") == "Running");
    assert_eq!(world.uid("web"), UID);
    assert_eq!(std::fs::read_to_string(&kept).unwrap(), "data");
    // It is ours by now: a new image restarts its container, any other change replaces it.
    world.put("web", &APP.replace("busybox:1", "busybox:2"));
    world.until("the new image", |world| world.count("CreateContainer web/app#1") == 1);
    assert_eq!(world.uid("web"), UID);
    world.put("web", &format!("hostname: other, {APP}"));
    world.until("another pod", |world| {
        !["", UID].contains(&&*world.uid("web")) && world.phase("web") == "Running"
    });
    world.until("one pod", |world| world.fake.state().sandboxes.len() == 1);
    world.wait("the record's end", |world| !remembered(world, UID));
}

#[test]
fn a_kubelets_pod_of_another_manifest_is_replaced_as_by_the_kubelet() {
    let world = World::without_agent();
    of_kubelet(&world.fake, &full("web"), UID, "busybox:2", "file");
    // Nothing is terminated while this one cannot be read.
    world.put_text("broken", "kind: [\n");
    world.put("web", APP);
    world.start();
    world.pass(20);
    assert_eq!(world.actions(), [""; 0], "the two would have the same name");
    world.remove("broken");
    world.until("the new pod", |world| {
        !["", UID].contains(&&*world.uid("web")) && world.phase("web") == "Running"
    });
    let actions = world.actions();
    assert_eq!(actions[0], "StopContainer web/app#0 grace=5");
    let at = |call: &str| actions.iter().position(|action| action.starts_with(call)).unwrap();
    assert!(at("StopPodSandbox") < at("RunPodSandbox"), "{actions:?}");
    world.until("one pod", |world| world.fake.state().sandboxes.len() == 1);
}

#[test]
fn pods_without_a_source_are_ignored() {
    let world = World::without_agent();
    of_kubelet(&world.fake, &full("old"), UID, "busybox:1", "file");
    of_kubelet(&world.fake, "served", "uid-2", "busybox:1", "api");
    world.start();
    world.run("web", APP);
    world.kill();
    world.start();
    world.pass(20);
    assert_eq!(world.actions(), [""; 0]);
    assert_eq!(world.running().len(), 3);
    assert!(!remembered(&world, UID));
}

#[test]
fn taking_over_terminates_pods_without_a_source_once_all_sources_were_read() {
    let world = World::without_agent();
    of_kubelet(&world.fake, &full("web"), UID, "busybox:1", "file");
    of_kubelet(&world.fake, &full("old"), "uid-1", "busybox:1", "file");
    of_kubelet(&world.fake, "served", "uid-2", "busybox:1", "api");
    // One of another smolet, and one without pod labels.
    crate::adopt::foreign(&world.fake, "theirs", "uid-3", Some("other-node"));
    let metadata = cri::PodSandboxMetadata {
        name: "bare".into(),
        uid: "uid-4".into(),
        namespace: "default".into(),
        attempt: 0,
    };
    world.fake.run_pod(cri::PodSandboxConfig { metadata: Some(metadata), ..Default::default() }, Vec::new());
    world.put("web", APP);
    world.put_text("broken", "kind: [\n");
    world.start_with(taking_over(&world));
    world.pass(20);
    assert_eq!(world.actions(), [""; 0], "a manifest that cannot be read may have them");
    world.remove("broken");
    world.until("their end", |world| world.fake.state().sandboxes.len() == 3);
    world.pass(5);
    let actions = world.actions();
    for pod in ["old", "served"] {
        let stop = format!("StopContainer {pod}/app#0 grace=5");
        assert!(actions.contains(&stop), "{actions:?}");
    }
    let touched = |name: &str| world.fake.calls().iter().any(|call| call.contains(name));
    assert!(!touched("theirs") && !touched("bare"), "{:?}", world.fake.calls());
    assert_eq!((world.phase("web"), world.uid("web")), ("Running".into(), UID.into()));
    assert_eq!(world.sandbox("web", |sandbox| sandbox.attempt()), 0, "it kept running");
}
