//! Pods that are bound to the node: from the server to the runtime and back.

use serde_json::json;

use crate::common::fake::Program;
use crate::world::{World, app};

#[test]
fn a_bound_pod_runs_and_its_status_is_told() {
    let world = World::new();
    world.run("web");
    let pod = world.pod("web").unwrap();
    let status = &pod["status"];
    assert_eq!(status["phase"], "Running");
    assert_eq!(status["containerStatuses"][0]["ready"], true);
    assert!(status["podIP"].as_str().is_some_and(|ip| !ip.is_empty()));
    assert_eq!(status["podIPs"][0]["ip"], status["podIP"]);
    assert_eq!(status["observedGeneration"], pod["metadata"]["generation"]);
    // A status is told when it changes, and not again.
    let told = world.api.count("PATCH", "/api/v1/namespaces/default/pods/web/status");
    world.pass(std::time::Duration::from_secs(3));
    assert_eq!(world.api.count("PATCH", "/api/v1/namespaces/default/pods/web/status"), told);
    assert!(told <= 4, "{told} patches for one start");
}

#[test]
fn a_pod_that_was_not_ready_for_a_while_does_not_say_why_any_more() {
    let world = World::new();
    world.run("web");
    let conditions = world.pod("web").unwrap()["status"]["conditions"].clone();
    for condition in conditions.as_array().unwrap() {
        assert_eq!(
            (&condition["status"], &condition["reason"]),
            (&json!("True"), &json!(null)),
            "{condition}"
        );
        assert_eq!(condition["message"], json!(null), "{condition}");
    }
}

#[test]
fn a_pod_that_was_marked_with_its_node_is_ready_again() {
    let world = World::new();
    world.run("web");
    // As the cluster does with all pods of a node of which nothing is heard.
    let mut conditions = world.pod("web").unwrap()["status"]["conditions"].clone();
    for condition in conditions.as_array_mut().unwrap() {
        if condition["type"] == "Ready" {
            condition["status"] = "False".into();
        }
    }
    world.api.patch("pods", "default", "web", &json!({"status": {"conditions": conditions}}));
    assert!(!world.is_ready("web"));
    world.until("it is ready again", |world| world.is_ready("web"));
}

#[test]
fn a_status_that_somebody_changes_is_put_right() {
    let world = World::new();
    world.run("web");
    let own = |world: &World| {
        let status = world.pod("web").unwrap()["status"].clone();
        [&status["podIP"], &status["podIPs"], &status["containerStatuses"]].map(|field| field.to_string())
    };
    let before = own(&world);
    for changed in
        [json!({"podIP": "192.0.2.1", "podIPs": [{"ip": "192.0.2.1"}]}), json!({"containerStatuses": []})]
    {
        world.api.patch("pods", "default", "web", &json!({"status": changed}));
        assert_ne!(own(&world), before);
        world.until("it is as it was", |world| own(world) == before);
    }
    // What is not the node agent's stays as it is.
    world.api.patch(
        "pods",
        "default",
        "web",
        &json!({"status": {"nominatedNodeName": "other", "hostIP": "192.0.2.1", "hostIPs": [{"ip": "192.0.2.1"}]}}),
    );
    world.until("it is as it was", |world| world.pod("web").unwrap()["status"]["hostIP"] != "192.0.2.1");
    assert_eq!(world.pod("web").unwrap()["status"]["nominatedNodeName"], "other");
}

#[test]
fn a_deleted_pod_ends_within_its_grace_and_goes() {
    let world = World::new();
    world.run("web");
    world.api.delete("pods", "default", "web", None);
    world.until("it is gone there", |world| world.pod("web").is_none());
    assert!(world.fake.state().running().is_empty(), "and here");
    let stop = world.fake.actions().into_iter().find(|call| call.starts_with("StopContainer")).unwrap();
    assert!(stop.contains('3'), "with the pod's grace: {stop}");
}

#[test]
fn a_deletions_own_grace_counts() {
    let world = World::new();
    world.fake.program("app", Program::STUBBORN);
    world.run("web");
    world.api.delete("pods", "default", "web", Some(1));
    let begun = world.now();
    world.until("it is gone there", |world| world.pod("web").is_none());
    assert!(world.since(begun) < std::time::Duration::from_secs(20), "{:?}", world.since(begun));
}

#[test]
fn a_second_deletion_with_a_shorter_grace_is_followed() {
    let world = World::new();
    world.fake.program("app", Program::STUBBORN);
    let mut spec = app();
    spec["terminationGracePeriodSeconds"] = 600.into();
    let stops = |world: &World| {
        world.fake.actions().into_iter().filter(|call| call.starts_with("StopContainer")).collect::<Vec<_>>()
    };
    for (number, (second, restarted)) in [(1, false), (0, false), (1, true)].into_iter().enumerate() {
        world.bind("web", spec.clone());
        world.until("it runs", |world| world.is_ready("web"));
        let before = stops(&world).len();
        world.api.delete("pods", "default", "web", None);
        world.until("it is being stopped", |world| stops(world).len() > before);
        if restarted {
            world.kill();
            world.start();
            world.until("it is being stopped again", |world| stops(world).len() > before + 1);
        }
        // One that is longer changes nothing.
        world.api.delete("pods", "default", "web", Some(900));
        let begun = world.now();
        world.api.delete("pods", "default", "web", Some(second));
        world.until("it is gone there", |world| world.pod("web").is_none());
        world.until("and here", |world| world.fake.state().running().is_empty());
        assert!(
            world.since(begun) < std::time::Duration::from_secs(30),
            "{number}: {:?}",
            world.since(begun)
        );
    }
    // The next agent knows it from the server.
    world.bind("web", spec);
    world.until("it runs", |world| world.is_ready("web"));
    let before = stops(&world).len();
    world.kill();
    world.api.delete("pods", "default", "web", Some(1));
    let begun = world.now();
    world.start();
    world.until("it is gone there", |world| world.pod("web").is_none());
    assert!(stops(&world).len() > before);
    assert!(world.since(begun) < std::time::Duration::from_secs(30), "{:?}", world.since(begun));
}

#[test]
fn a_pod_that_is_deleted_while_the_agent_is_away_goes_when_it_is_back() {
    let world = World::new();
    world.run("web");
    world.kill();
    world.api.delete("pods", "default", "web", None);
    world.start();
    world.until("it is gone there", |world| world.pod("web").is_none());
    assert!(world.fake.state().running().is_empty(), "and here");
}

#[test]
fn a_restart_of_the_agent_touches_nothing() {
    let world = World::new();
    world.run("web");
    for end in [World::stop, World::kill] {
        let before = world.fake.actions();
        let id = world.pod("web").unwrap()["status"]["containerStatuses"][0]["containerID"].clone();
        end(&world);
        world.api.clear_requests();
        world.start();
        world.until("its status is told", |world| {
            world.api.count("PATCH", "/api/v1/namespaces/default/pods") > 0
        });
        world.pass(std::time::Duration::from_secs(2));
        assert_eq!(world.fake.actions(), before);
        let pod = world.pod("web").unwrap();
        assert_eq!(pod["status"]["containerStatuses"][0]["containerID"], id);
        assert!(world.is_ready("web"));
    }
}

#[test]
fn a_pod_that_has_ended_stays_so() {
    let world = World::new();
    world.fake.program("app", Program::exits(0, std::time::Duration::from_millis(100)));
    let mut spec = app();
    spec["restartPolicy"] = "Never".into();
    world.bind("job", spec);
    world.until("it has succeeded", |world| world.phase("job") == "Succeeded");
    world.stop();
    std::fs::remove_dir_all(world.path("root")).unwrap();
    std::fs::create_dir(world.path("root")).unwrap();
    world.fake.reboot();
    world.fake.forget_container("job/app");
    world.fake.forget_sandbox("job");
    let before = world.fake.actions();
    world.start();
    world.pass(std::time::Duration::from_secs(3));
    assert_eq!(world.fake.actions(), before, "it does not begin once more");
    world.api.delete("pods", "default", "job", None);
    world.until("it is gone there", |world| world.pod("job").is_none());
}

#[test]
fn a_new_image_restarts_the_container_in_place() {
    let world = World::new();
    world.run("web");
    let patch = json!({"spec": {"containers": [{"name": "app", "image": "busybox:2"}]}});
    world.api.patch("pods", "default", "web", &patch);
    world.until("the new image runs", |world| {
        let status = world.pod("web").unwrap()["status"]["containerStatuses"][0].clone();
        status["restartCount"] == 1 && status["image"].as_str().is_some_and(|image| image.ends_with(":2"))
    });
}

#[test]
fn what_this_version_does_not_do_is_told_there() {
    let world = World::new();
    let mut gated = app();
    let gates: Vec<_> =
        (0..100).map(|number| json!({"conditionType": format!("example.com/{number}")})).collect();
    gated["readinessGates"] = gates.into();
    world.bind("gated", gated);
    world.until("it has failed", |world| world.phase("gated") == "Failed");
    let status = world.pod("gated").unwrap()["status"].clone();
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("spec.readinessGates"), "{message}");
    world.api.delete("pods", "default", "gated", None);
    world.until("it is gone there", |world| world.pod("gated").is_none());
}

#[test]
fn what_happens_is_told_there_and_counted() {
    let world = World::new();
    world.fake.program("app", Program::exits(1, std::time::Duration::from_millis(10)));
    world.bind("web", app());
    let events = |world: &World| world.api.list("events", "default");
    let of = |world: &World, reason: &str| {
        let mut all = events(world).into_iter();
        all.find(|event| event["reason"] == reason && event["involvedObject"]["name"] == "web")
    };
    for reason in ["Pulled", "Created", "Started", "BackOff"] {
        let event = world.wait(reason, |world| of(world, reason));
        assert_eq!(event["involvedObject"]["uid"], world.pod("web").unwrap()["metadata"]["uid"]);
        assert_eq!(event["source"]["component"], "kubelet");
        assert_eq!(event["involvedObject"]["fieldPath"], "spec.containers{app}");
    }
    world.until("the second start is counted", |world| {
        of(world, "Started").is_some_and(|event| event["count"].as_u64().is_some_and(|count| count > 1))
    });
    let started = events(&world).iter().filter(|event| event["reason"] == "Started").count();
    assert_eq!(started, 1, "one object");
}

#[test]
fn a_broken_manifest_holds_up_no_pod_of_the_cluster() {
    let world = World::without_agent();
    std::fs::write(world.path("manifests/broken.yaml"), "kind: Pod\nspec: [").unwrap();
    world.start();
    world.run("web");
    let first = world.pod("web").unwrap()["metadata"]["uid"].clone();
    // As a StatefulSet's: gone, and another one of its name.
    world.api.delete("pods", "default", "web", Some(0));
    world.run("web");
    assert_ne!(world.pod("web").unwrap()["metadata"]["uid"], first);
    world.until("one of them runs", |world| world.fake.state().running() == ["web/app#0"]);
    world.kill();
    world.api.delete("pods", "default", "web", None);
    world.start();
    world.until("it is gone there", |world| world.pod("web").is_none());
    assert!(world.fake.state().running().is_empty(), "and here");
}

#[test]
fn a_pod_that_takes_more_disk_than_it_may_fails_for_good() {
    let world = World::new();
    world.fake.state().written.insert("app".to_owned(), 10 << 20);
    let mut spec = app();
    spec["restartPolicy"] = "OnFailure".into();
    spec["containers"][0]["resources"] =
        json!({"limits": {"ephemeral-storage": "5Mi"}, "requests": {"ephemeral-storage": "5Mi"}});
    world.bind("greedy", spec);
    world.until("it is evicted", |world| world.phase("greedy") == "Failed");
    world.until("its container has ended", |world| {
        let pod = world.pod("greedy").unwrap();
        !pod["status"]["containerStatuses"][0]["state"]["terminated"].is_null()
    });
    world.pass(std::time::Duration::from_secs(3));
    let status = &world.pod("greedy").unwrap()["status"];
    let words = "Pod ephemeral local storage usage exceeds the total limit of containers 5Mi. ";
    assert_eq!((&status["phase"], &status["reason"]), (&json!("Failed"), &json!("Evicted")));
    assert_eq!(status["message"], words);
    let conditions = status["conditions"].as_array().unwrap();
    assert!(conditions.iter().all(|condition| condition["type"] != "DisruptionTarget"), "{conditions:?}");
    assert_eq!(world.fake.state().running(), Vec::<String>::new());
    world.until("an event tells why", |world| {
        world
            .api
            .list("events", "default")
            .iter()
            .any(|event| event["reason"] == "Evicted" && event["message"] == words)
    });
}

#[test]
fn options_for_windows_are_ignored_and_a_pod_of_windows_is_refused() {
    let world = World::new();
    let mut spec = app();
    let options = json!({"windowsOptions": {"runAsUserName": "ContainerUser", "hostProcess": false}});
    spec["securityContext"] = options.clone();
    spec["containers"][0]["securityContext"] = options;
    world.bind("web", spec.clone());
    world.until("it runs", |world| world.is_ready("web"));
    spec["os"] = json!({"name": "windows"});
    world.bind("windows", spec);
    world.until("it is refused", |world| {
        world.pod("windows").unwrap()["status"]["reason"] == "PodOSNotSupported"
    });
}

/// One that failed would be made anew by its controller, again and again.
#[test]
fn a_pod_with_what_this_node_cannot_mount_waits_and_says_why() {
    let world = World::new();
    let mut spec = app();
    spec["volumes"] = json!([{"name": "disk", "csi": {"driver": "disks.example.com"}}]);
    spec["containers"][0]["volumeMounts"] = json!([{"name": "disk", "mountPath": "/disk"}]);
    world.bind("web", spec);
    let message = world.wait("it says why it waits", |world| {
        let events = world.api.list("events", "default").into_iter();
        let mut mounts = events.filter(|event| event["reason"] == "FailedMount");
        Some(mounts.next()?["message"].as_str()?.to_owned())
    });
    assert!(message.ends_with("for volume \"disk\" err=no volume plugin matched"), "{message}");
    assert_eq!(world.phase("web"), "Pending");
    assert!(world.fake.state().running().is_empty());
}

/// The pods of the e2e test "EmptyDir wrapper race": fifty ConfigMaps each, with items and a mount, fifteen at once.
#[test]
fn fifteen_pods_of_fifty_volumes_run_at_once() {
    let world = World::new();
    let name = |n: usize| format!("racey-configmap-{n}");
    for n in 0..50 {
        world.api.create("configmaps", json!({"metadata": {"name": name(n)}, "data": {"data-1": "value-1"}}));
    }
    let items = json!([{"key": "data-1", "path": "data-1"}]);
    let volumes: Vec<_> =
        (0..50).map(|n| json!({"name": name(n), "configMap": {"name": name(n), "items": items}})).collect();
    let mounts: Vec<_> =
        (0..50).map(|n| json!({"name": name(n), "mountPath": format!("/etc/config-{n}")})).collect();
    let mut spec = app();
    spec["volumes"] = volumes.into();
    spec["containers"][0]["volumeMounts"] = mounts.into();
    let pods: Vec<String> = (0..15).map(|n| format!("wrapped-volume-race-{n}")).collect();
    for pod in &pods {
        world.bind(pod, spec.clone());
    }
    world.until("all of them are ready", |world| {
        for pod in &pods {
            assert_ne!(world.phase(pod), "Failed", "{:?}", world.pod(pod));
        }
        pods.iter().all(|pod| world.is_ready(pod))
    });
    // Packed and opened again they are the same pods: nothing is started anew.
    let started = || world.fake.actions().iter().filter(|call| call.starts_with("StartContainer")).count();
    assert_eq!(started(), pods.len());
    for pod in &pods {
        world.api.delete("pods", "default", pod, Some(1));
    }
    world.until("all of them are gone", |world| pods.iter().all(|pod| world.pod(pod).is_none()));
    assert_eq!(started(), pods.len());
}
