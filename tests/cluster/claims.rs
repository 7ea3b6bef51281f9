//! Claims of persistent volumes.

use serde_json::{Value, json};

use crate::world::{World, app};

/// A pod's spec with the claim `data` at /data.
fn with_claim(read_only: bool) -> Value {
    let mut spec = app();
    spec["volumes"] =
        json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data", "readOnly": read_only}}]);
    spec["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/data"}]);
    spec
}

/// A claim that waits for its volume.
fn claim(world: &World) -> Value {
    let claim = json!({"metadata": {"name": "data"}, "spec": {}, "status": {"phase": "Pending"}});
    world.api.create("persistentvolumeclaims", claim)
}

/// As the controller: the claim gets a volume of that kind.
fn bind(world: &World, claim: &Value, spec: Value) {
    let mut spec = spec;
    spec["claimRef"] = json!({"namespace": "default", "name": "data", "uid": claim["metadata"]["uid"]});
    world.api.create("persistentvolumes", json!({"metadata": {"name": "pv"}, "spec": spec}));
    world.api.patch("persistentvolumeclaims", "default", "data", &json!({"spec": {"volumeName": "pv"}}));
    world.api.patch("persistentvolumeclaims", "default", "data", &json!({"status": {"phase": "Bound"}}));
}

/// The node says that the pod's volume cannot be had because of this.
fn waits(world: &World, why: &str) {
    world.until(why, |world| {
        let events = world.api.list("events", "default");
        events.iter().any(|event| {
            event["reason"] == "FailedMount"
                && event["message"].as_str().is_some_and(|message| message.ends_with(why))
        })
    });
    assert!(world.fake.state().running().is_empty(), "it does not begin without");
}

/// Path and mode of what the container has at /data.
fn mounted(world: &World, name: &str) -> (String, bool) {
    let state = world.fake.state();
    let config = &state.container(&format!("{name}/app")).expect("the container").config;
    let mount = config.mounts.iter().find(|mount| mount.container_path == "/data").expect("a mount");
    (mount.host_path.clone(), mount.readonly)
}

#[test]
fn a_pod_waits_for_its_claim_and_has_the_volumes_path() {
    let world = World::new();
    world.bind("web", with_claim(false));
    waits(
        &world,
        "error processing PVC default/data: failed to fetch PVC from API server: persistentvolumeclaims \"data\" not found",
    );
    let claim = claim(&world);
    waits(&world, "error processing PVC default/data: PVC is not bound");
    let path = world.path("volume");
    bind(&world, &claim, json!({"hostPath": {"path": path, "type": "DirectoryOrCreate"}}));
    world.until("it runs", |world| world.is_ready("web"));
    assert_eq!(mounted(&world, "web"), (path.display().to_string(), false));
    assert!(path.is_dir(), "made as its type has it");
    world.bind("reader", with_claim(true));
    world.until("the reader runs", |world| world.is_ready("reader"));
    assert_eq!(mounted(&world, "reader"), (path.display().to_string(), true));
    // The next agent keeps both, and begins nothing anew.
    let before = world.fake.actions().len();
    world.kill();
    world.start();
    world.run("other");
    let since = &world.fake.actions()[before..];
    assert!(since.iter().all(|call| !call.contains("web") && !call.contains("reader")), "{since:?}");
    assert_eq!(world.fake.state().running(), ["web/app#0", "reader/app#0", "other/app#0"]);
    // What is in the volume stays when its pods go.
    std::fs::write(path.join("kept"), "x").unwrap();
    for name in ["web", "reader"] {
        world.api.delete("pods", "default", name, None);
        world.until("it is gone", |world| world.pod(name).is_none());
    }
    assert_eq!(std::fs::read_to_string(path.join("kept")).unwrap(), "x");
}

#[test]
fn a_volume_that_is_not_this_nodes_or_of_another_kind_is_refused_in_the_kubelets_words() {
    let world = World::new();
    let affinity = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
        {"key": "site", "operator": "In", "values": ["roof"]}]}]}});
    let claim = claim(&world);
    bind(&world, &claim, json!({"csi": {"driver": "x", "volumeHandle": "y"}}));
    world.bind("web", with_claim(false));
    waits(&world, "failed to get Plugin from volumeSpec for volume \"pv\" err=no volume plugin matched");
    let local = json!({"local": {"path": world.path("disk")}, "nodeAffinity": affinity, "csi": null});
    world.api.patch("persistentvolumes", "", "pv", &json!({"spec": local}));
    waits(&world, "MountVolume.NodeAffinity check failed for volume \"pv\" : no matching NodeSelectorTerms");
    world.api.patch("nodes", "", crate::world::NODE, &json!({"metadata": {"labels": {"site": "roof"}}}));
    waits(&world, &format!("hostPath type check failed: {} does not exist", world.path("disk").display()));
    std::fs::create_dir(world.path("disk")).unwrap();
    world.until("it runs", |world| world.is_ready("web"));
    assert_eq!(mounted(&world, "web").0, world.path("disk").display().to_string());
}
