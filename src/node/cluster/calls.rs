//! The calls to the API server, one function for each.

use std::rc::Rc;

use hyper::Method;
use serde_json::{Value, json};

use super::node_status::RuntimeInfo;
use crate::cluster::node_images::NodeImages;
use crate::cluster::node_object::{self, Health, Machine};
use crate::cluster::node_status::{Registered, ReportEnd};
use crate::cluster::status_manager::StatusCall;
use crate::cluster::{lease, pod_status};
use crate::cri::Runtime;
use crate::decode::Node;
use crate::kube::{Client, Content, KubeError, Resource, object_path, subresource_path};
use crate::model::{PodKey, Wall};
use crate::source::api_status_versions::ApiStatusVersion;

/// The images for the Node's status, and the runtime's version (`Images`, `VersionInfo`); a failed call leaves them as they
/// were.
pub(super) async fn runtime_info(runtime: &impl Runtime, images_max: usize) -> RuntimeInfo {
    let mut images = NodeImages::default();
    let listed = runtime.list_images(&mut |image| images.add(image)).await;
    let version = runtime.version().await.ok();
    let version = version.map(|of| format!("{}://{}", of.runtime_name, of.runtime_version).into());
    let images = listed.is_ok().then(|| {
        let largest = images.largest();
        if largest.len() > images_max { Rc::from(&largest[..images_max]) } else { largest }
    });
    RuntimeInfo { images, version }
}

fn text(node: &Node, path: [&str; 2]) -> Option<Box<str>> {
    node.field(path[0])?.field(path[1])?.text().map(Box::from)
}

/// `tryRegisterWithAPIServer`.
pub(super) async fn register(
    client: &Client,
    machine: &Machine,
    health: &Health,
    now: Wall,
) -> Result<Registered, KubeError> {
    let object = machine.object(health, &[], now);
    let nodes = Resource::NODES.path("");
    let (node, is_former) = match client.call(Method::POST, &nodes, Some(Content::json(&object))).await {
        Err(error) if error.is(409) => {
            let path = object_path(Resource::NODES, "", &machine.name);
            let metadata = json!({"labels": machine.labels_of_start(), "annotations": machine.annotations()});
            let patch = json!({"metadata": metadata});
            let node = client.call(Method::PATCH, &path, Some(Content::strategic(&patch))).await?;
            if let Some(patch) = machine.reconciliation(&node, &object["status"]) {
                let path = subresource_path(Resource::NODES, "", &machine.name, "status");
                client.call(Method::PATCH, &path, Some(Content::strategic(&patch))).await?;
            }
            (node, true)
        }
        created => (created?, false),
    };
    let uid = text(&node, ["metadata", "uid"])
        .ok_or_else(|| KubeError::Protocol("a Node without a UID".to_owned()))?;
    let status = node.field("status");
    let conditions = status.and_then(|status| status.field("conditions"));
    let conditions = conditions.map(Node::items).unwrap_or_default().iter().map(|condition| {
        let of = |field| condition.field(field).and_then(Node::text).unwrap_or_default();
        json!({
            "type": of("type"), "status": of("status"), "lastTransitionTime": of("lastTransitionTime"),
        })
    });
    let boot_id = || status.and_then(|status| text(status, ["nodeInfo", "bootID"])).unwrap_or_default();
    let former_boot_id = is_former.then(boot_id);
    Ok(Registered { uid, conditions: conditions.collect(), former_boot_id })
}

/// `tryUpdateNodeStatus`: reports the status, unless its digest is `told`.
pub(super) async fn report(
    client: &Client,
    machine: &Machine,
    health: &Health,
    before: &[Value],
    told: Option<u64>,
    now: Wall,
) -> Result<ReportEnd, KubeError> {
    let digest = machine.digest(health);
    if told == Some(digest) {
        return Ok(ReportEnd::Unchanged);
    }
    let status = machine.report(health, before, now);
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    let path = subresource_path(Resource::NODES, "", &machine.name, "status");
    client.call(Method::PATCH, &path, Some(Content::strategic(&node_object::patch(status)))).await?;
    Ok(ReportEnd::Reported(digest, conditions))
}

/// `controller.sync` of the lease. Returns its resource version.
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

/// Patches a pod's status, and deletes the pod when nothing of it is left here. Returns the version of the status in the API
/// server. A pod that no longer exists, or whose name another pod has, counts as success.
pub(super) async fn patch_status(
    client: &Client,
    key: &PodKey,
    StatusCall { status, resized, deleted, .. }: StatusCall,
) -> Result<Option<ApiStatusVersion>, KubeError> {
    let is_past = |error: &KubeError| error.is_not_found() || error.is(409);
    let mut there = None;
    if let Some(status) = status {
        let path = subresource_path(Resource::PODS, &key.namespace, &key.name, "status");
        let patch = pod_status::patch(key.uid.as_str(), &status, resized);
        match client.call(Method::PATCH, &path, Some(Content::strategic(&patch))).await {
            Err(error) if !is_past(&error) => return Err(error),
            Ok(pod) => there = ApiStatusVersion::of(&pod),
            Err(_) => {}
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
    Ok(there)
}
