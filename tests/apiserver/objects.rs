//! Verbs on objects: what the server adds, what it refuses, and in whose words.

use serde_json::{Value, json};

use crate::client::{Client, MERGE, STRATEGIC};
use crate::common::apiserver::ApiServer;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

fn revision(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap()).collect()
}

#[test]
fn an_object_is_made_read_changed_and_deleted() {
    let server = ApiServer::start();
    let mut client = Client::of(&server);
    let made = client.post(MAPS, json!({"metadata": {"name": "a", "uid": "mine"}, "data": {"x": "1"}}));
    assert_eq!(made.code, 201);
    let made = made.ok();
    assert_eq!((&made["kind"], &made["apiVersion"]), (&json!("ConfigMap"), &json!("v1")));
    assert_eq!(made["metadata"]["namespace"], "default");
    let uid = made["metadata"]["uid"].as_str().unwrap();
    assert_eq!((uid.len(), uid.matches('-').count()), (36, 4), "{uid}");
    let created = made["metadata"]["creationTimestamp"].as_str().unwrap();
    assert!(created.ends_with('Z') && created.len() == 20, "{created}");
    assert_eq!(revision(&made), server.revision());
    assert_eq!(client.get(&format!("{MAPS}/a")).ok(), made);
    assert_eq!(server.get("configmaps", "default", "a"), Some(made.clone()));

    let mut other = made.clone();
    other["data"]["x"] = "2".into();
    other["metadata"]["creationTimestamp"] = "2000-01-01T00:00:00Z".into();
    let put = client.put(&format!("{MAPS}/a"), other.clone()).ok();
    assert!(revision(&put) > revision(&made));
    assert_eq!(put["metadata"]["creationTimestamp"], created);
    // What is as it was is not written.
    assert_eq!(client.put(&format!("{MAPS}/a"), put.clone()).ok(), put);
    assert_eq!(server.revision(), revision(&put));

    let gone = client.delete(&format!("{MAPS}/a"), json!({})).ok();
    assert_eq!((&gone["kind"], &gone["status"]), (&json!("Status"), &json!("Success")));
    assert_eq!(gone["details"], json!({"name": "a", "kind": "configmaps", "uid": uid}));
    assert_eq!(
        client.get(&format!("{MAPS}/a")).failed(),
        (404, "NotFound".into(), "configmaps \"a\" not found".into())
    );
}

#[test]
fn failures_have_the_words_of_the_real_server() {
    let server = ApiServer::start();
    let mut client = Client::of(&server);
    let made = client.post(MAPS, json!({"metadata": {"name": "a"}})).ok();
    let uid = made["metadata"]["uid"].as_str().unwrap();
    let again = client.post(MAPS, json!({"metadata": {"name": "a"}}));
    assert_eq!(again.body["details"], json!({"name": "a", "kind": "configmaps"}));
    assert_eq!(again.failed(), (409, "AlreadyExists".into(), "configmaps \"a\" already exists".into()));
    server.patch("configmaps", "default", "a", &json!({"data": {"b": "c"}}));
    let modified = "Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please apply your changes to the latest version and try again";
    let conflict = (409, "Conflict".to_owned(), modified.to_owned());
    assert_eq!(client.put(&format!("{MAPS}/a"), made.clone()).failed(), conflict);
    let late = json!({"metadata": {"resourceVersion": "1"}, "data": {}});
    assert_eq!(client.patch(&format!("{MAPS}/a"), MERGE, late).failed(), conflict);
    let other = json!({"metadata": {"uid": "b"}, "data": {}});
    let uids = format!(
        "Operation cannot be fulfilled on configmaps \"a\": Precondition failed: UID in precondition: b, UID in object meta: {uid}"
    );
    let conflict = (409, "Conflict".to_owned(), uids);
    assert_eq!(client.patch(&format!("{MAPS}/a"), STRATEGIC, other).failed(), conflict);
    assert_eq!(
        client.delete(&format!("{MAPS}/a"), json!({"preconditions": {"uid": "b"}})).failed(),
        conflict
    );
    assert_eq!(
        client.put(&format!("{MAPS}/a"), json!({"metadata": {"name": "b"}})).failed().2,
        "the name of the object (b) does not match the name on the URL (a)"
    );
    assert_eq!(
        client.post(MAPS, json!({"metadata": {"name": "b", "namespace": "other"}})).failed().2,
        "the namespace of the provided object does not match the namespace sent on the request"
    );
    assert_eq!(
        client.get("/apis/coordination.k8s.io/v1/namespaces/x/leases/gw").failed().2,
        "leases.coordination.k8s.io \"gw\" not found"
    );
    let elsewhere = client.post("/api/v1/namespaces/nowhere/configmaps", json!({"metadata": {"name": "a"}}));
    assert_eq!(elsewhere.failed(), (404, "NotFound".into(), "namespaces \"nowhere\" not found".into()));
}

#[test]
fn a_lease_is_renewed_by_whoever_has_read_it_last() {
    let server = ApiServer::start();
    let mut client = Client::named(&server, "system:node:gw");
    let lease =
        json!({"metadata": {"name": "gw"}, "spec": {"holderIdentity": "gw", "leaseDurationSeconds": 40}});
    let made = client.post(LEASES, lease.clone()).ok();
    assert_eq!(made["apiVersion"], "coordination.k8s.io/v1");
    let path = format!("{LEASES}/gw");
    assert_eq!(client.put(&path, lease).why(), (422, "Invalid".into()), "a lease has to say which it renews");
    let mut renewed = made.clone();
    renewed["spec"]["renewTime"] = "2026-01-01T00:00:00.000000Z".into();
    let put = client.put(&path, renewed.clone()).ok();
    assert_eq!(client.put(&path, renewed).why(), (409, "Conflict".into()));
    assert_eq!(put["metadata"]["uid"], made["metadata"]["uid"]);
    // It is made where there is none.
    client.delete(&path, json!({})).ok();
    client.put(&path, json!({"metadata": {"name": "gw"}, "spec": {}})).ok();
}

#[test]
fn events_are_named_by_the_server_and_counted_by_the_node() {
    let server = ApiServer::start();
    let mut client = Client::named(&server, "system:node:gw");
    let events = "/api/v1/namespaces/default/events";
    let event = json!({"metadata": {"generateName": "web."}, "reason": "Started", "count": 1,
        "involvedObject": {"kind": "Pod", "name": "web", "namespace": "default"}});
    let (a, b) = (client.post(events, event.clone()).ok(), client.post(events, event).ok());
    let name = a["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("web.") && name.len() == 9 && a["metadata"]["name"] != b["metadata"]["name"]);
    let patch = json!({"count": 2, "lastTimestamp": "2026-01-01T00:00:00Z"});
    let patched = client.patch(&format!("{events}/{name}"), STRATEGIC, patch).ok();
    assert_eq!((&patched["count"], &patched["reason"]), (&json!(2), &json!("Started")));
    let found =
        client.get(&format!("{events}?fieldSelector=involvedObject.name%3Dweb%2Creason%3DStarted")).ok();
    assert_eq!(found["items"].as_array().unwrap().len(), 2);
    assert_eq!(client.get(&format!("{events}?fieldSelector=reason!=Started")).ok()["items"], json!([]));
}

#[test]
fn a_node_has_a_status_that_is_written_by_its_own_path() {
    let server = ApiServer::start();
    let mut client = Client::named(&server, "system:node:gw");
    let status = json!({"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": "gw"}],
        "conditions": [{"type": "Ready", "status": "False"}]});
    let node = json!({"metadata": {"name": "gw", "labels": {"a": "b"}}, "spec": {}, "status": status});
    let made = client.post("/api/v1/nodes", node).ok();
    assert_eq!(made["status"], status, "a node comes with its status");
    let patch = json!({
        "metadata": {"labels": {"slipped": "in"}},
        "spec": {"unschedulable": true},
        "status": {
            "$setElementOrder/conditions": [{"type": "New"}, {"type": "Ready"}],
            "conditions": [{"type": "Ready", "status": "True"}, {"type": "New", "status": "False"}],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.2"}, {"$patch": "replace"}],
        },
    });
    let patched = client.patch("/api/v1/nodes/gw/status", STRATEGIC, patch).ok();
    let conditions = json!([{"type": "New", "status": "False"}, {"type": "Ready", "status": "True"}]);
    let addresses = json!([{"type": "InternalIP", "address": "10.0.0.2"}]);
    assert_eq!(patched["status"], json!({"conditions": conditions, "addresses": addresses}));
    assert_eq!((&patched["spec"], &patched["metadata"]["labels"]), (&json!({}), &json!({"a": "b"})));
    let patched = client
        .patch("/api/v1/nodes/gw", MERGE, json!({"spec": {"unschedulable": true}, "status": null}))
        .ok();
    assert_eq!(patched["status"]["addresses"], addresses);
    assert_eq!(patched["spec"]["unschedulable"], true);
    assert_eq!(client.get("/api/v1/nodes/gw/status").ok(), patched);
    server.update_status("nodes", "", "gw", json!({"phase": "x"}));
    assert_eq!(client.get("/api/v1/nodes/gw").ok()["status"], json!({"phase": "x"}));
}

#[test]
fn lists_are_selected_and_come_in_pages() {
    let server = ApiServer::start();
    let mut client = Client::of(&server);
    for number in 0..7 {
        let labels = json!({"app": "web", "odd": (number % 2).to_string()});
        server.create("configmaps", json!({"metadata": {"name": format!("m{number}"), "labels": labels}}));
    }
    let all = client.get("/api/v1/configmaps").ok();
    assert_eq!((&all["kind"], &all["apiVersion"]), (&json!("ConfigMapList"), &json!("v1")));
    assert_eq!(all["metadata"], json!({"resourceVersion": server.revision().to_string()}));
    assert_eq!(
        names(&all).iter().filter(|name| **name == "kube-root-ca.crt").count(),
        4,
        "in each namespace"
    );
    assert!(all["items"][0].get("kind").is_none());
    for (query, wanted) in [
        ("fieldSelector=metadata.name%3Dm3", vec!["m3"]),
        ("fieldSelector=metadata.name=m3,metadata.namespace==default", vec!["m3"]),
        ("fieldSelector=metadata.name%3Dm3%2Cmetadata.namespace%3Dother", vec![]),
        ("labelSelector=odd%3D1", vec!["m1", "m3", "m5"]),
        ("labelSelector=app,odd!=1", vec!["m0", "m2", "m4", "m6"]),
        ("labelSelector=!app", vec!["kube-root-ca.crt"]),
        (
            "resourceVersion=0&resourceVersionMatch=NotOlderThan&labelSelector=odd%3D1&limit=500",
            vec!["m1", "m3", "m5"],
        ),
    ] {
        assert_eq!(names(&client.get(&format!("{MAPS}?{query}")).ok()), wanted, "{query}");
    }

    // The pages are of one revision, whatever happens meanwhile.
    let first = client.get(&format!("{MAPS}?limit=3&labelSelector=app")).ok();
    assert_eq!(names(&first), ["m0", "m1", "m2"]);
    assert_eq!(first["metadata"]["remainingItemCount"], 4);
    server.delete("configmaps", "default", "m4", None);
    server.create("configmaps", json!({"metadata": {"name": "m4b", "labels": {"app": "web"}}}));
    server.patch("configmaps", "default", "m5", &json!({"data": {"new": "yes"}}));
    let page = |page: &Value| page["metadata"]["continue"].as_str().unwrap().to_owned();
    let second = client.get(&format!("{MAPS}?limit=3&labelSelector=app&continue={}", page(&first))).ok();
    assert_eq!(names(&second), ["m3", "m4", "m5"]);
    assert!(second["items"][2].get("data").is_none());
    assert_eq!(second["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
    let third = client.get(&format!("{MAPS}?limit=3&labelSelector=app&continue={}", page(&second))).ok();
    assert_eq!(names(&third), ["m6"]);
    assert!(third["metadata"].get("continue").is_none());
    server.compact();
    let late = client.get(&format!("{MAPS}?limit=3&labelSelector=app&continue={}", page(&second)));
    assert_eq!(late.why(), (410, "Expired".into()));
}

#[test]
fn secrets_given_as_text_are_kept_as_bytes() {
    let server = ApiServer::start();
    let mut client = Client::of(&server);
    let made = client.post(
        "/api/v1/namespaces/default/secrets",
        json!({"metadata": {"name": "s"}, "stringData": {"k": "v"}}),
    );
    let made = made.ok();
    assert_eq!((&made["data"], &made["type"]), (&json!({"k": "dg=="}), &json!("Opaque")));
    assert!(made.get("stringData").is_none());
}

#[test]
fn a_namespace_has_what_controllers_make_and_goes_with_its_last_pod() {
    let server = ApiServer::start();
    let mut client = Client::of(&server);
    let made = client.post("/api/v1/namespaces", json!({"metadata": {"name": "shop"}})).ok();
    assert_eq!(made["status"]["phase"], "Active");
    assert_eq!(
        client.get("/api/v1/namespaces/shop/configmaps/kube-root-ca.crt").ok()["data"]["ca.crt"],
        server.ca_pem()
    );
    client.get("/api/v1/namespaces/shop/serviceaccounts/default").ok();
    let spec = json!({"nodeName": "gw", "containers": [{"name": "c", "image": "i"}]});
    server.create("pods", json!({"metadata": {"name": "web", "namespace": "shop"}, "spec": spec}));
    let going = client.delete("/api/v1/namespaces/shop", json!({})).ok();
    assert_eq!(going["status"]["phase"], "Terminating");
    assert_eq!(client.get("/api/v1/namespaces/shop/configmaps").ok()["items"], json!([]));
    let late = client.post("/api/v1/namespaces/shop/events", json!({"metadata": {"name": "e"}}));
    assert_eq!(late.why(), (403, "Forbidden".into()));
    client.delete("/api/v1/namespaces/shop/pods/web", json!({"gracePeriodSeconds": 0})).ok();
    assert_eq!(client.get("/api/v1/namespaces/shop").code, 404);
    // A test's own objects bring their namespace along.
    server.create("configmaps", json!({"metadata": {"name": "a", "namespace": "new"}}));
    assert!(server.get("serviceaccounts", "new", "default").is_some());
    assert!(server.delete("namespaces", "", "new", None));
    assert!(server.list("configmaps", "new").is_empty());
}

#[test]
fn finalizers_keep_an_object() {
    let server = ApiServer::start();
    let mut client = Client::of(&server);
    server.create("configmaps", json!({"metadata": {"name": "a", "finalizers": ["test/keep"]}}));
    let kept = client.delete(&format!("{MAPS}/a"), json!({})).ok();
    assert!(kept["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(client.get(&format!("{MAPS}/a")).code, 200);
    client.patch(&format!("{MAPS}/a"), MERGE, json!({"metadata": {"finalizers": null}})).ok();
    assert_eq!(client.get(&format!("{MAPS}/a")).code, 404);
}
