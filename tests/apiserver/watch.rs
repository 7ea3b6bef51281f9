//! Watches: what they tell, from where, and how they end.

use std::time::Duration;

use serde_json::{Value, json};
use smolet::clock::VirtualClock;
use smolet::model::Wall;

use crate::client::{Client, Lines};
use crate::common::apiserver::{ApiServer, Expired};
use crate::{PATIENCE, QUIET};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn map(name: &str) -> Value {
    json!({"metadata": {"name": name}})
}

fn watch(client: &mut Client, query: &str) -> Lines {
    client.watch(&format!("{MAPS}?watch=true&{query}")).unwrap()
}

fn told(kind: &str, name: &str, revision: u64) -> (String, String, u64) {
    (kind.into(), name.into(), revision)
}

/// The last event of a watch whose place in the history is gone.
fn expired(watch: &mut Lines) {
    let (kind, status) = watch.next();
    assert_eq!(kind, "ERROR");
    assert_eq!(
        (&status["kind"], &status["code"], &status["reason"]),
        (&json!("Status"), &json!(410), &json!("Expired"))
    );
    assert!(status["message"].as_str().unwrap().starts_with("too old resource version: "), "{status}");
    assert_eq!(watch.end(), Ok(()));
}

#[test]
fn a_watch_tells_every_change_once_and_in_order() {
    let server = ApiServer::start();
    let mut client = Client::of(&server);
    let from = server.revision();
    server.create("configmaps", map("a"));
    let mut changes = watch(&mut client, &format!("resourceVersion={from}"));
    server.patch("configmaps", "default", "a", &json!({"data": {"x": "1"}}));
    server.create("secrets", map("not-this"));
    server.create("configmaps", json!({"metadata": {"name": "elsewhere", "namespace": "kube-system"}}));
    server.delete("configmaps", "default", "a", None);
    let (kind, object) = changes.next();
    assert_eq!(
        (&*kind, &object["kind"], &object["apiVersion"]),
        ("ADDED", &json!("ConfigMap"), &json!("v1"))
    );
    assert_eq!(changes.brief(), told("MODIFIED", "a", from + 2));
    let (kind, object) = changes.next();
    assert_eq!((&*kind, &object["data"]["x"]), ("DELETED", &json!("1")), "with its last state");
    assert_eq!(
        object["metadata"]["resourceVersion"],
        (from + 5).to_string(),
        "at the revision that deleted it"
    );
    assert_eq!(changes.within(QUIET), None);
    assert_eq!(server.open_watches(), 1);
    drop(changes);
    // hyper tells the server of an end with the next thing that it sends.
    client.get(MAPS).ok();
    server.wait_for("the watch's end", PATIENCE, |server| server.open_watches() == 0);
}

#[test]
fn what_leaves_a_selector_is_deleted_and_what_enters_it_added() {
    let server = ApiServer::start();
    let mut client = Client::of(&server);
    let spec = json!({"containers": [{"name": "c", "image": "i"}]});
    server.create("pods", json!({"metadata": {"name": "p"}, "spec": spec}));
    let from = server.revision();
    let path = format!("/api/v1/pods?watch=true&resourceVersion={from}&fieldSelector=spec.nodeName%3Dgw");
    let mut pods = client.watch(&path).unwrap();
    server.patch("pods", "default", "p", &json!({"metadata": {"labels": {"not": "seen"}}}));
    server.patch("pods", "default", "p", &json!({"spec": {"nodeName": "gw"}}));
    server.patch("pods", "default", "p", &json!({"metadata": {"labels": {"is": "seen"}}}));
    server.patch("pods", "default", "p", &json!({"spec": {"nodeName": "other"}}));
    server.delete("pods", "default", "p", Some(0));
    assert_eq!(pods.brief(), told("ADDED", "p", from + 2));
    assert_eq!(pods.brief(), told("MODIFIED", "p", from + 3));
    let (kind, object) = pods.next();
    assert_eq!((&*kind, &object["spec"]["nodeName"]), ("DELETED", &json!("gw")));
    assert_eq!(object["metadata"]["resourceVersion"], (from + 4).to_string());
    assert_eq!(pods.within(QUIET), None);
}

#[test]
fn one_object_is_watched_by_its_name() {
    let server = ApiServer::start();
    let mut client = Client::of(&server);
    let from = server.revision();
    let mut by_field = watch(&mut client, &format!("resourceVersion={from}&fieldSelector=metadata.name%3Db"));
    let mut by_path = client.watch(&format!("{MAPS}/b?watch=1&resourceVersion={from}")).unwrap();
    server.create("configmaps", map("a"));
    server.create("configmaps", map("b"));
    for watch in [&mut by_field, &mut by_path] {
        assert_eq!(watch.brief(), told("ADDED", "b", from + 2));
    }
}

#[test]
fn a_watch_from_nowhere_begins_with_what_there_is() {
    let server = ApiServer::start();
    let mut client = Client::of(&server);
    server.create("configmaps", map("a"));
    for query in ["", "resourceVersion=0", "resourceVersion="] {
        let mut watch = watch(&mut client, query);
        assert_eq!((watch.brief().1, watch.brief().1), ("a".into(), "kube-root-ca.crt".into()));
        server.patch("configmaps", "default", "a", &json!({"data": {"x": query}}));
        assert_eq!((watch.brief().0, watch.within(QUIET)), ("MODIFIED".into(), None));
    }
    let query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut watch = watch(&mut client, query);
    assert_eq!((watch.brief().1, watch.brief().1), ("a".into(), "kube-root-ca.crt".into()));
    let (kind, bookmark) = watch.next();
    assert_eq!((&*kind, &bookmark["kind"]), ("BOOKMARK", &json!("ConfigMap")));
    assert_eq!(bookmark["metadata"]["annotations"], json!({"k8s.io/initial-events-end": "true"}));
    assert_eq!(bookmark["metadata"]["resourceVersion"], server.revision().to_string());
}

#[test]
fn bookmarks_tell_the_newest_revision_to_who_wants_them() {
    let server = ApiServer::start();
    let mut client = Client::of(&server);
    let from = server.revision();
    let mut with = watch(&mut client, &format!("resourceVersion={from}&allowWatchBookmarks=true"));
    let mut without = watch(&mut client, &format!("resourceVersion={from}"));
    server.create("nodes", map("gw"));
    server.send_bookmarks();
    let (kind, object) = with.next();
    assert_eq!(kind, "BOOKMARK");
    let metadata = json!({"resourceVersion": (from + 1).to_string(), "creationTimestamp": null});
    assert_eq!(object, json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata}));
    assert_eq!(without.within(QUIET), None);
    // From there it goes on.
    let mut later = watch(&mut client, &format!("resourceVersion={}", from + 1));
    server.create("configmaps", map("a"));
    for watch in [&mut with, &mut without, &mut later] {
        assert_eq!(watch.brief(), told("ADDED", "a", from + 2));
    }
}

#[test]
fn a_watch_ends_when_its_time_is_up() {
    let clock = VirtualClock::new(Wall(1_770_000_000_000_000_000));
    let server = ApiServer::start_on(clock.clone());
    let mut client = Client::of(&server);
    let from = server.revision();
    let mut watch = watch(&mut client, &format!("resourceVersion={from}&timeoutSeconds=300"));
    clock.advance(Duration::from_secs(299));
    server.create("configmaps", map("a"));
    assert_eq!(watch.brief().1, "a");
    clock.advance(Duration::from_secs(1));
    assert_eq!(watch.end(), Ok(()));
    server.wait_for("the watch's end", PATIENCE, |server| server.open_watches() == 0);
}

#[test]
fn who_goes_on_from_a_compacted_revision_is_told_so() {
    let server = ApiServer::start();
    let mut client = Client::of(&server);
    let from = server.revision();
    let mut open = watch(&mut client, &format!("resourceVersion={from}"));
    server.wait_for("a watch", PATIENCE, |server| server.open_watches() == 1);
    server.compact();
    expired(&mut watch(&mut client, &format!("resourceVersion={from}")));
    server.tell_expired(Expired::AsStatus);
    let refused = client.watch(&format!("{MAPS}?watch=true&resourceVersion={from}")).map(drop).unwrap_err();
    assert_eq!(refused.why(), (410, "Expired".into()));
    // A fresh list tells from where it goes on, and whoever watches already has missed nothing.
    let list = client.get(MAPS).ok();
    let fresh = list["metadata"]["resourceVersion"].as_str().unwrap();
    let mut again = watch(&mut client, &format!("resourceVersion={fresh}"));
    server.create("configmaps", map("a"));
    assert_eq!((open.brief().1, again.brief().1), ("a".into(), "a".into()));
    server.expire_watches();
    expired(&mut open);
    expired(&mut again);
}

#[test]
fn a_watch_that_falls_behind_the_history_is_told_so() {
    let server = ApiServer::start();
    let mut client = Client::of(&server);
    let from = server.revision();
    server.create("configmaps", map("a"));
    for number in 0..10_100 {
        server.patch("configmaps", "default", "a", &json!({"data": {"n": number.to_string()}}));
    }
    expired(&mut watch(&mut client, &format!("resourceVersion={from}")));
    let near = server.revision() - 100;
    let mut watch = watch(&mut client, &format!("resourceVersion={near}"));
    for number in 1..=100 {
        assert_eq!(watch.brief(), told("MODIFIED", "a", near + number));
    }
}

#[test]
fn many_watches_share_a_connection() {
    let server = ApiServer::start();
    let mut client = Client::of(&server);
    let from = server.revision();
    let watches = (0..100).map(|number| {
        watch(&mut client, &format!("resourceVersion={from}&fieldSelector=metadata.name%3Dm{number}"))
    });
    let mut watches: Vec<Lines> = watches.collect();
    assert_eq!(server.open_watches(), 100);
    for number in (0..100).rev() {
        server.create("configmaps", map(&format!("m{number}")));
    }
    for (number, watch) in watches.iter_mut().enumerate() {
        assert_eq!(watch.brief(), told("ADDED", &format!("m{number}"), from + 100 - number as u64));
    }
    assert_eq!((server.connections(), server.count("watch", MAPS)), (1, 100));
}
