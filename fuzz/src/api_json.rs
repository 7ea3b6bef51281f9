//! Bytes of an API server, in pieces as the first byte says: pages of a list or a watch, come apart into objects and taken in as
//! the pods, the Node and the objects of this node. Nothing depends on where the pieces end, and what is held is within its
//! limits.

use std::rc::Rc;

use smolet::clock::VirtualClock;
use smolet::decode::Node;
use smolet::decode::json;
use smolet::kube::split::{Shape, Splitter};
use smolet::kube::{Follower, take_event};
use smolet::limits;
use smolet::model::{ObjectKey, ObjectKind, Side, Wall};
use smolet::source::api::{ApiPods, Shared};
use smolet::source::api_local_pods::LocalPods;
use smolet::source::api_node::ApiNode;
use smolet::source::api_objects::{ObjectState, ObjectStates, follower};
use smolet::source::api_offline::Trees;
use smolet::source::api_status_versions::ApiStatusVersions;
use smolet::source::{NodeName, claim};

pub fn run(data: &[u8]) {
    let Some((&first, said)) = data.split_first() else { return };
    let shape = if first & 1 == 1 { Shape::Documents } else { Shape::List };
    let parts = split(shape, said, usize::from(first >> 1) + 1);
    assert_eq!(parts, split(shape, said, said.len().max(1)));
    let (items, head) = parts;
    assert!(items.iter().map(Vec::len).sum::<usize>() <= said.len());
    let objects: Vec<Node> = items.iter().filter_map(|item| json::read(item).ok()).collect();
    if let Some(head) = head.and_then(|head| json::read(&head).ok()) {
        let _ = head.field("metadata").map(|metadata| metadata.field("continue"));
    }
    pods(shape, &objects);
    node(shape, &objects);
    for (kind, name) in [
        (ObjectKind::ConfigMap, "web"),
        (ObjectKind::Secret, "web"),
        (ObjectKind::RuntimeClass, "web"),
        (ObjectKind::Services, ""),
    ] {
        one(shape, &objects, kind, name);
    }
    claims(&objects);
}

/// The objects, and the list's head where all of it came. Up to what is malformed.
fn split(shape: Shape, said: &[u8], size: usize) -> (Vec<Vec<u8>>, Option<Vec<u8>>) {
    let (mut splitter, mut items) = (Splitter::new(shape), Vec::new());
    for piece in said.chunks(size) {
        let fed = splitter.feed(piece, &mut |item| {
            items.extend(item.map(|item| {
                assert!(item.len() <= limits::KUBE_OBJECT_BYTES_MAX);
                item.to_vec()
            }));
        });
        if fed.is_err() {
            return (items, None);
        }
    }
    let head = splitter.head().map(<[u8]>::to_vec);
    assert!(head.as_ref().is_none_or(|head| head.len() <= limits::KUBE_HEAD_BYTES_MAX));
    (items, head)
}

/// As a list or as a watch.
fn tell(shape: Shape, objects: &[Node], follower: &mut dyn Follower) {
    follower.list_begins();
    if shape == Shape::List {
        for object in objects {
            follower.apply(object.clone());
        }
        return follower.settled();
    }
    follower.settled();
    let mut version = "".into();
    for event in objects {
        if take_event(event.clone(), follower, &mut version).is_err() {
            break;
        }
        follower.settled();
    }
}

fn pods(shape: Shape, objects: &[Node]) {
    let (updates, told) = smol::channel::bounded(1);
    let (failed, _failed) = smol::channel::bounded(1);
    let (local_pods, _looked) = LocalPods::new();
    local_pods.are(["u2".into()].into_iter().collect());
    let trees = Trees::new(failed);
    let shared = Shared { local_pods, statuses: ApiStatusVersions::default() };
    let clock = Rc::new(VirtualClock::new(Wall(0)));
    let mut pods = ApiPods::new(NodeName::new("gw"), clock, updates, trees.clone(), shared);
    tell(shape, objects, &mut pods);
    let (kept, bytes) = trees.held();
    assert!(kept <= objects.len() && bytes <= limits::OFFLINE_TREES_BYTES_MAX);
    let Ok(update) = told.try_recv() else { return };
    assert!(update.pods.len() <= limits::KUBE_PODS_MAX + 1);
    assert!(update.held.pod_bytes <= limits::PODS_BYTES_MAX + limits::ENDED_PODS_BYTES_MAX);
    for pod in &update.pods {
        assert!(pod.pod.key.is_path_safe(), "{:?}", pod.pod.key);
    }
    for pod in &update.server.refused {
        assert!(pod.key.is_path_safe(), "{:?}", pod.key);
    }
}

fn node(shape: Shape, objects: &[Node]) {
    let (node, told) = smol::channel::bounded(1);
    tell(shape, objects, &mut ApiNode::new(node));
    if let Ok(Some(node)) = told.try_recv() {
        assert!(node.pod_cidrs.len() <= limits::POD_CIDRS_MAX);
    }
}

fn one(shape: Shape, objects: &[Node], kind: ObjectKind, name: &str) {
    let namespace = if kind == ObjectKind::RuntimeClass { "" } else { "default" };
    let key = ObjectKey::new(Side::ApiServer, kind, namespace, name);
    let (news, _news) = smol::channel::bounded(1);
    let found = ObjectStates::new(news);
    tell(shape, objects, &mut *follower(key.clone(), found.clone()));
    for (of, sought) in &found.take() {
        assert_eq!(*of, key);
        if let ObjectState::Present(object) = sought {
            assert_eq!(object.key(Side::ApiServer), key);
        }
    }
}

/// Each as a claim, and as the volume of the claim before.
fn claims(objects: &[Node]) {
    let mut bound = None;
    for object in objects {
        if let Some(bound) = &bound {
            let _ = claim::volume(object, bound);
        }
        bound = claim::bound(object).ok().or(bound);
    }
}
