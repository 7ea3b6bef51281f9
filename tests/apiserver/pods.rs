//! Pods: their defaults, their status, their generation, and how they go.

use std::time::Duration;

use serde_json::{Value, json};
use smolet::clock::VirtualClock;
use smolet::model::Wall;

use crate::client::{Client, MERGE, STRATEGIC};
use crate::common::apiserver::ApiServer;

const PODS: &str = "/api/v1/namespaces/default/pods";
const WEB: &str = "/api/v1/namespaces/default/pods/web";

fn pod(name: &str, node: Option<&str>) -> Value {
    let mut pod =
        json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "app", "image": "nginx"}]}});
    if let Some(node) = node {
        pod["spec"]["nodeName"] = node.into();
    }
    pod
}

#[test]
fn a_pod_comes_with_defaults_and_a_status() {
    let server = ApiServer::start();
    let mut client = Client::of(&server);
    let mut wanted = pod("web", None);
    wanted["status"] = json!({"phase": "Running"});
    wanted["metadata"]["generation"] = 9.into();
    let made = client.post(PODS, wanted).ok();
    assert_eq!(made["status"], json!({"phase": "Pending", "qosClass": "BestEffort"}));
    assert_eq!(made["metadata"]["generation"], 1);
    let spec = &made["spec"];
    assert_eq!(
        (&spec["restartPolicy"], &spec["terminationGracePeriodSeconds"]),
        (&json!("Always"), &json!(30))
    );
    assert_eq!((&spec["serviceAccountName"], &spec["enableServiceLinks"]), (&json!("default"), &json!(true)));
    assert_eq!(spec["containers"][0]["imagePullPolicy"], "Always");
    assert!(spec.get("volumes").is_none());
    let resources = json!({"limits": {"cpu": "1", "memory": "1Gi"}});
    let containers = json!([{"name": "app", "image": "r:5000/nginx:1.15", "resources": resources}]);
    let made = server.create("pods", json!({"metadata": {"name": "g"}, "spec": {"containers": containers}}));
    assert_eq!(made["status"]["qosClass"], "Guaranteed");
    assert_eq!(made["spec"]["containers"][0]["imagePullPolicy"], "IfNotPresent");
    let resources = json!({"requests": {"cpu": "0", "memory": "1Mi"}});
    let containers = json!([{"name": "app", "image": "nginx@sha256:0", "resources": resources}]);
    let made = server.create("pods", json!({"metadata": {"name": "b"}, "spec": {"containers": containers}}));
    assert_eq!(made["status"]["qosClass"], "Burstable");
}

#[test]
fn a_status_is_patched_by_merge_keys_and_changes_no_generation() {
    let server = ApiServer::start();
    let mut client = Client::named(&server, "system:node:gw");
    let made = server.create("pods", pod("web", Some("gw")));
    let uid = made["metadata"]["uid"].clone();
    let status = |ip: &str, ready: &str| {
        json!({"metadata": {"uid": uid}, "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": ready}],
            "podIPs": [{"ip": ip}],
            "hostIP": "192.0.2.1",
            "hostIPs": [{"ip": "192.0.2.1"}],
            "containerStatuses": [{"name": "app", "ready": ready == "True"}],
        }})
    };
    let mut other = status("10.0.0.1", "False");
    other["status"]["hostIP"] = json!("192.0.2.2");
    assert_eq!(client.patch(&format!("{WEB}/status"), STRATEGIC, other).why(), (422, "Invalid".into()));
    client.patch(&format!("{WEB}/status"), STRATEGIC, status("10.0.0.1", "False")).ok();
    let patched = client.patch(&format!("{WEB}/status"), STRATEGIC, status("10.0.0.2", "True")).ok();
    let found = &patched["status"];
    assert_eq!(found["conditions"], json!([{"type": "Ready", "status": "True"}]));
    assert_eq!(found["podIPs"], json!([{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}]), "merged by address");
    assert_eq!(found["hostIPs"], json!([{"ip": "192.0.2.1"}]));
    assert_eq!(found["containerStatuses"], json!([{"name": "app", "ready": true}]));
    assert_eq!((&found["qosClass"], &patched["metadata"]["generation"]), (&json!("BestEffort"), &json!(1)));
    let patched = client
        .patch(
            WEB,
            STRATEGIC,
            json!({"spec": {"containers": [{"name": "app", "image": "nginx:2"}]},
        "status": {"phase": "Failed"}}),
        )
        .ok();
    assert_eq!(patched["spec"]["containers"][0]["image"], "nginx:2");
    assert_eq!(patched["spec"]["containers"][0]["terminationMessagePolicy"], "File");
    assert_eq!(
        (&patched["metadata"]["generation"], &patched["status"]["phase"]),
        (&json!(2), &json!("Running"))
    );
    // A pod of the same name that came later is another one.
    server.delete("pods", "default", "web", Some(0));
    server.create("pods", pod("web", Some("gw")));
    let late = client.patch(&format!("{WEB}/status"), STRATEGIC, status("10.0.0.3", "True"));
    assert_eq!(late.why(), (409, "Conflict".into()));
}

#[test]
fn a_bound_pod_goes_in_two_steps() {
    let clock = VirtualClock::new(Wall(1_770_000_000_000_000_000));
    let server = ApiServer::start_on(clock.clone());
    let mut client = Client::of(&server);
    let made = server.create("pods", pod("web", Some("gw")));
    assert_eq!(made["metadata"]["creationTimestamp"], "2026-02-02T02:40:00Z");
    let from = server.revision();
    let mut watch = client.watch(&format!("{PODS}?watch=1&resourceVersion={from}")).unwrap();

    let going = client.delete(WEB, json!({})).ok();
    assert_eq!(going["metadata"]["deletionTimestamp"], "2026-02-02T02:40:30Z");
    assert_eq!(going["metadata"]["deletionGracePeriodSeconds"], 30);
    assert_eq!(going["metadata"]["generation"], 2);
    assert_eq!(watch.next(), ("MODIFIED".into(), going.clone()));
    clock.advance(Duration::from_secs(5));
    // A deletion is only ever made shorter.
    assert_eq!(client.delete(WEB, json!({"gracePeriodSeconds": 60})).ok(), going);
    assert_eq!(client.delete(WEB, json!({})).ok(), going);
    let shorter = client.delete(WEB, json!({"gracePeriodSeconds": 10})).ok();
    assert_eq!(shorter["metadata"]["deletionTimestamp"], "2026-02-02T02:40:10Z");
    assert_eq!(shorter["metadata"]["generation"], 2);
    assert_eq!(watch.next().1, shorter);
    // A status can be written meanwhile, and nothing takes the deletion back.
    client.patch(&format!("{WEB}/status"), MERGE, json!({"status": {"phase": "Succeeded"}})).ok();
    let back = json!({"metadata": {"deletionTimestamp": null}, "spec": {"activeDeadlineSeconds": 1}});
    assert!(client.patch(WEB, MERGE, back).ok()["metadata"]["deletionTimestamp"].is_string());
    assert_eq!((watch.brief().0, watch.brief().0), ("MODIFIED".into(), "MODIFIED".into()));

    let uid = made["metadata"]["uid"].clone();
    let other = json!({"gracePeriodSeconds": 0, "preconditions": {"uid": "other"}});
    assert_eq!(client.delete(WEB, other).why(), (409, "Conflict".into()));
    let last = client.delete(WEB, json!({"gracePeriodSeconds": 0, "preconditions": {"uid": uid}})).ok();
    assert_eq!(last["metadata"]["deletionGracePeriodSeconds"], 0);
    assert_eq!(watch.next(), ("MODIFIED".into(), last));
    assert_eq!(watch.brief().0, "DELETED");
    assert_eq!(client.delete(WEB, json!({"gracePeriodSeconds": 0})).why(), (404, "NotFound".into()));
}

#[test]
fn a_pod_that_nobody_runs_goes_at_once() {
    let server = ApiServer::start();
    let mut client = Client::of(&server);
    server.create("pods", pod("web", None));
    client.delete(WEB, json!({})).ok();
    assert!(server.get("pods", "default", "web").is_none());
    server.create("pods", pod("web", Some("gw")));
    server.update_status("pods", "default", "web", json!({"phase": "Failed"}));
    client.delete(WEB, json!({"gracePeriodSeconds": 20})).ok();
    assert!(server.get("pods", "default", "web").is_none(), "it has ended");
    server.create("pods", pod("web", Some("gw")));
    assert!(!server.delete("pods", "default", "web", Some(-5)));
    let going = server.get("pods", "default", "web").unwrap();
    assert_eq!(going["metadata"]["deletionGracePeriodSeconds"], 1);
    assert!(server.delete("pods", "default", "web", Some(0)));
}

#[test]
fn pods_are_found_by_their_node() {
    let server = ApiServer::start();
    let mut client = Client::of(&server);
    for (name, node) in [("a", Some("gw")), ("b", Some("other")), ("c", None), ("d", Some("gw"))] {
        server.create("pods", pod(name, node));
    }
    let names = |list: Value| -> Vec<String> {
        list["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|pod| pod["metadata"]["name"].as_str().unwrap().into())
            .collect()
    };
    let path = "/api/v1/pods?fieldSelector=spec.nodeName";
    assert_eq!(names(client.get(&format!("{path}%3Dgw")).ok()), ["a", "d"]);
    assert_eq!(names(client.get(&format!("{path}%3D")).ok()), ["c"]);
    assert_eq!(names(client.get(&format!("{path}!=gw%2Cstatus.phase%3DPending")).ok()), ["b", "c"]);
}

#[test]
fn service_accounts_are_admitted() {
    let server = ApiServer::start();
    server.admit_accounts();
    let mut client = Client::of(&server);
    let made = client.post(PODS, pod("web", Some("gw"))).ok();
    let volume = &made["spec"]["volumes"][0];
    assert!(volume["name"].as_str().unwrap().starts_with("kube-api-access-"));
    assert_eq!(volume["projected"]["sources"].as_array().unwrap().len(), 3);
    let mount = &made["spec"]["containers"][0]["volumeMounts"][0];
    assert_eq!(mount["mountPath"], "/var/run/secrets/kubernetes.io/serviceaccount");
    assert_eq!(mount["name"], volume["name"]);
    let mut other = pod("other", Some("gw"));
    other["spec"]["serviceAccountName"] = "robot".into();
    let refused = client.post(PODS, other.clone()).failed();
    assert_eq!((refused.0, &*refused.1), (403, "Forbidden"));
    assert!(refused.2.ends_with("serviceaccount \"robot\" not found"), "{}", refused.2);
    server.create("serviceaccounts", json!({"metadata": {"name": "robot"}}));
    other["spec"]["automountServiceAccountToken"] = false.into();
    assert!(client.post(PODS, other).ok()["spec"].get("volumes").is_none());
    // A mirror pod stands for one that has no account.
    let mut mirror = pod("static-gw", Some("gw"));
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "hash"});
    assert!(client.post(PODS, mirror).ok()["spec"].get("volumes").is_none());
}
