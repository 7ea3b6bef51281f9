//! What the tasks of a node of a cluster ask of its server: one function for each.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::rc::Rc;

use hyper::Method;
use k8s_openapi::api::core::v1::PodStatus;
use serde_json::{Value, json};

use crate::cluster::node_images::{NodeImage, NodeImages};
use crate::cluster::node_object::{self, Health, Machine};
use crate::cluster::{lease, pod_status};
use crate::cri::{Runtime, RuntimeResult, RuntimeStatus};
use crate::eviction::NodeCondition;
use crate::kube::{Client, Content, KubeError, Resource, object_path, subresource_path};
use crate::model::{PodKey, Wall};
use crate::source::RefusedPod;
use crate::source::decode::Node;

/// The images that the Node tells of.
pub(super) async fn images(runtime: &impl Runtime) -> RuntimeResult<Rc<[NodeImage]>> {
    let mut images = NodeImages::default();
    runtime.list_images(&mut |image| images.add(image)).await?;
    Ok(images.largest())
}

/// What the runtime says of itself, in the kubelet's words.
pub(super) fn health(
    pressure: Vec<NodeCondition>,
    runtime: Result<RuntimeStatus, String>,
    images: Rc<[NodeImage]>,
) -> Health {
    let not_ready = match runtime {
        Err(error) => vec![format!("container runtime is down: {error}")],
        Ok(status) => {
            let failing = status.conditions.iter().filter(|condition| !condition.status);
            let told = failing.map(|condition| {
                let what = match &*condition.kind {
                    "NetworkReady" => "container runtime network not ready",
                    _ => "container runtime not ready",
                };
                let (kind, reason, message) = (&condition.kind, &condition.reason, &condition.message);
                format!("{what}: {kind}=false reason:{reason} message:{message}")
            });
            told.collect()
        }
    };
    Health { pressure, not_ready, images }
}

/// The status of a pod that does not run here (`rejectPod`).
pub(super) fn refusal(pod: &RefusedPod) -> PodStatus {
    PodStatus {
        observed_generation: pod.generation.filter(|generation| *generation != 0),
        phase: Some("Failed".to_owned()),
        reason: Some(pod.reason.to_string()),
        message: Some(pod.message.to_string()),
        ..PodStatus::default()
    }
}

fn text(node: &Node, path: [&str; 2]) -> Option<Box<str>> {
    node.field(path[0])?.field(path[1])?.text().map(Box::from)
}

/// `tryRegisterWithAPIServer`: the Node's UID and the conditions that it has there.
pub(super) async fn register(
    client: &Client,
    machine: &Machine,
    health: &Health,
    now: Wall,
) -> Result<(Box<str>, Vec<Value>), KubeError> {
    let object = machine.object(health, &[], now);
    let nodes = Resource::NODES.path("");
    let node = match client.call(Method::POST, &nodes, Some(Content::json(&object))).await {
        Err(error) if error.is(409) => {
            let path = object_path(Resource::NODES, "", &machine.name);
            let patch = json!({"metadata": {"labels": machine.labels()}});
            client.call(Method::PATCH, &path, Some(Content::strategic(&patch))).await?
        }
        created => created?,
    };
    let uid = text(&node, ["metadata", "uid"])
        .ok_or_else(|| KubeError::Protocol("a Node without a UID".to_owned()))?;
    let conditions = node.field("status").and_then(|status| status.field("conditions"));
    let conditions = conditions.map(Node::items).unwrap_or_default().iter().map(|condition| {
        let of = |field| condition.field(field).and_then(Node::text).unwrap_or_default();
        json!({
            "type": of("type"), "status": of("status"), "lastTransitionTime": of("lastTransitionTime"),
        })
    });
    Ok((uid, conditions.collect()))
}

/// `tryUpdateNodeStatus`: what was told, when it is another than `told`.
pub(super) async fn report(
    client: &Client,
    machine: &Machine,
    health: &Health,
    before: &[Value],
    told: Option<u64>,
    now: Wall,
) -> Result<Option<(u64, Vec<Value>)>, KubeError> {
    // Times apart.
    let mut hasher = DefaultHasher::new();
    machine.status(health, &[], Wall(0)).to_string().hash(&mut hasher);
    let digest = hasher.finish();
    if told == Some(digest) {
        return Ok(None);
    }
    let status = machine.status(health, before, now);
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    let path = subresource_path(Resource::NODES, "", &machine.name, "status");
    client.call(Method::PATCH, &path, Some(Content::strategic(&node_object::patch(status)))).await?;
    Ok(Some((digest, conditions)))
}

/// `controller.sync` of the lease: its version.
pub(super) async fn renew(
    client: &Client,
    machine: &Machine,
    uid: &str,
    version: Option<Box<str>>,
    now: Wall,
) -> Result<Box<str>, KubeError> {
    let node = &*machine.name;
    let path = object_path(Resource::LEASES, lease::NAMESPACE, node);
    let version = match version {
        Some(version) => Some(version),
        None => match client.call(Method::GET, &path, None).await {
            Ok(found) => text(&found, ["metadata", "resourceVersion"]),
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(error),
        },
    };
    let object =
        Content::json(&lease::lease(node, machine.periods.lease_seconds, Some(uid), version.as_deref(), now));
    let renewed = if version.is_some() {
        client.call(Method::PUT, &path, Some(object)).await?
    } else {
        client.call(Method::POST, &Resource::LEASES.path(lease::NAMESPACE), Some(object)).await?
    };
    text(&renewed, ["metadata", "resourceVersion"])
        .ok_or_else(|| KubeError::Protocol("a Lease without a resourceVersion".to_owned()))
}

/// Tells a pod's status, and deletes the pod when nothing of it is left here. That it is gone there, or another one has its
/// name, is as good.
pub(super) async fn tell(
    client: &Client,
    key: &PodKey,
    status: Option<PodStatus>,
    resized: bool,
    deleted: bool,
) -> Result<(), KubeError> {
    let is_past = |error: &KubeError| error.is_not_found() || error.is(409);
    if let Some(status) = status {
        let path = subresource_path(Resource::PODS, &key.namespace, &key.name, "status");
        let patch = pod_status::patch(key.uid.as_str(), &status, resized);
        match client.call(Method::PATCH, &path, Some(Content::strategic(&patch))).await {
            Err(error) if !is_past(&error) => return Err(error),
            Ok(_) | Err(_) => {}
        }
    }
    if deleted {
        let path = object_path(Resource::PODS, &key.namespace, &key.name);
        let options = Content::json(&pod_status::deletion(key.uid.as_str()));
        match client.call(Method::DELETE, &path, Some(options)).await {
            Err(error) if !is_past(&error) => return Err(error),
            Ok(_) | Err(_) => {}
        }
    }
    Ok(())
}
