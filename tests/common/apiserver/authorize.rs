//! Authorization: the rules of the real server's Node authorizer and NodeRestriction plugin for the resources here, and those
//! for bootstrap tokens, as kubeadm sets them up. Other users may do everything.

use std::collections::BTreeMap;

use serde_json::Value;

use super::User;
use super::failure::{Failure, Outcome};
use super::resource::{Query, Route, Selector};
use super::store::{Object, Scope, Store, known, text};

/// The namespace of nodes' leases.
const LEASES: &str = "kube-node-lease";

/// The authorization attributes of a request.
pub struct Attempt<'a> {
    pub user: &'a User,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`.
    pub verb: &'a str,
    pub route: &'a Route,
    pub query: &'a Query,
    /// `Null` without one.
    pub body: &'a Value,
}

/// Checks the request.
///
/// # Errors
/// 403, with the real server's message.
pub fn authorize(store: &Store, attempt: &Attempt<'_>) -> Outcome<()> {
    let user = attempt.user;
    let node = match user.name.strip_prefix("system:node:") {
        Some(node) if user.groups.iter().any(|group| group == "system:nodes") => node,
        // The role `system:node-bootstrapper`.
        _ if user.groups.iter().any(|group| group == "system:bootstrappers") => {
            let asks = attempt.route.resource.plural == "certificatesigningrequests"
                && attempt.route.subresource.is_none()
                && ["create", "get", "list", "watch"].contains(&attempt.verb);
            return if asks { Ok(()) } else { Err(forbidden(attempt, "")) };
        }
        _ => return Ok(()),
    };
    let why = refusal(store, attempt, node);
    why.map_or(Ok(()), |why| Err(forbidden(attempt, &why)))
}

/// Delay of the authorizer: each object that a node may read because of a pod is denied so often first.
#[derive(Default)]
pub struct Lag {
    pub refusals: u32,
    refused: BTreeMap<String, u32>,
}

impl Lag {
    /// # Errors
    /// 403, until it knows the pod.
    pub fn authorize(&mut self, attempt: &Attempt<'_>) -> Outcome<()> {
        let by_pod =
            ["configmaps", "secrets", "persistentvolumeclaims", "persistentvolumes", "serviceaccounts"];
        let node = attempt.user.name.strip_prefix("system:node:");
        let Some(node) = node.filter(|_| by_pod.contains(&attempt.route.resource.plural)) else {
            return Ok(());
        };
        let name = attempt.route.name.as_deref().or_else(|| attempt.query.selector.wants("/metadata/name"));
        let pod = text(attempt.body, "/spec/boundObjectRef/uid");
        let route = attempt.route;
        let what =
            format!("{} {}/{} {pod}", route.resource.plural, route.namespace, name.unwrap_or_default());
        let refused = self.refused.entry(what).or_default();
        if *refused >= self.refusals {
            return Ok(());
        }
        *refused += 1;
        Err(forbidden(attempt, &unrelated(node)))
    }
}

/// Why the node may not do this; `None` if it may.
fn refusal(store: &Store, attempt: &Attempt<'_>, node: &str) -> Option<String> {
    let Attempt { verb, route, query, body, .. } = attempt;
    let (namespace, name) = (&*route.namespace, route.name.as_deref().unwrap_or_default());
    let reads = matches!(*verb, "get" | "list" | "watch");
    let selected = query.selector.wants("/metadata/name");
    let no = |why: &str| Some(why.to_owned());
    let unless = |allowed: bool, why: &str| if allowed { None } else { Some(why.to_owned()) };
    let part = route.subresource.as_deref();
    match (route.resource.plural, part, *verb) {
        ("nodes", None, "create") => {
            unless(text(body, "/metadata/name") == node, "a node may only create itself")
        }
        ("nodes", None, "list" | "watch") => unless(
            selected == Some(node),
            "node can only list/watch its own Node object, with a field selector on metadata.name",
        ),
        ("nodes", None | Some("status"), "get" | "update" | "patch") => {
            unless(name == node, "node cannot read or modify other nodes")
        }
        ("pods", None, "list" | "watch") => unless(
            query.selector.wants("/spec/nodeName") == Some(node),
            "can only list/watch pods with spec.nodeName field selector",
        ),
        ("pods", None, "create") => mirror_refusal(store, body, node),
        ("pods", None | Some("status"), "get") => {
            unless(bound(store, namespace, name, node).is_some(), &unrelated(node))
        }
        ("pods", None, "delete") | ("pods", Some("status"), "update" | "patch") => {
            let there = store.find(route.resource, namespace, name).is_some();
            let ours = !there || bound(store, namespace, name, node).is_some();
            unless(
                ours,
                "node can only delete and modify the status of pods with spec.nodeName set to itself",
            )
        }
        ("configmaps" | "secrets", None, _) if reads => {
            let wanted = if name.is_empty() { selected.unwrap_or_default() } else { name };
            if wanted.is_empty() || namespace.is_empty() {
                return no("no object name found: can only read objects of this type by name");
            }
            let kind = route.resource.plural;
            let mut pods = pods_of(store, namespace, node).into_iter();
            unless(pods.any(|pod| names(&pod, kind, wanted)), &unrelated(node))
        }
        ("persistentvolumeclaims", None, "get") => {
            let mut pods = pods_of(store, namespace, node).into_iter();
            unless(pods.any(|pod| claims(&pod, name)), &unrelated(node))
        }
        ("persistentvolumes", None, "get") => {
            // By the claim in the volume itself, as in the server's graph.
            let volume = store.find(route.resource, "", name);
            let claim = |field: &str| {
                volume
                    .as_deref()
                    .map(|volume| text(volume, &format!("/spec/claimRef/{field}")))
                    .unwrap_or_default()
            };
            let mut pods = pods_of(store, claim("namespace"), node).into_iter();
            unless(!claim("name").is_empty() && pods.any(|pod| claims(&pod, claim("name"))), &unrelated(node))
        }
        ("serviceaccounts", None, "get") => unless(uses(store, namespace, name, node), &unrelated(node)),
        ("serviceaccounts", Some("token"), "create") => {
            let of_pod = text(body, "/spec/boundObjectRef/kind") == "Pod";
            if !of_pod || text(body, "/spec/boundObjectRef/uid").is_empty() {
                return no("node requested token not bound to a pod");
            }
            if bound(store, namespace, text(body, "/spec/boundObjectRef/name"), node).is_none() {
                return no("node requested token bound to a pod scheduled on a different node");
            }
            unless(uses(store, namespace, name, node), &unrelated(node))
        }
        ("leases", None, "create") => {
            let own = namespace == LEASES && text(body, "/metadata/name") == node;
            unless(own, "a node may only have its own lease")
        }
        ("leases", None, "get" | "update" | "patch" | "delete") => unless(
            namespace == LEASES && name == node,
            "can only access node lease with the same name as the requesting node",
        ),
        ("events", None, "create" | "update" | "patch") => None,
        ("services" | "runtimeclasses", None, _) if reads => None,
        ("certificatesigningrequests", None, "create") => None,
        ("certificatesigningrequests", None, _) if reads => None,
        ("tokenreviews" | "subjectaccessreviews", None, "create") => None,
        _ => Some(String::new()),
    }
}

/// Why the node may not create this pod (`admitPodCreate`).
fn mirror_refusal(store: &Store, pod: &Value, node: &str) -> Option<String> {
    const MIRROR: &str = "kubernetes.io/config.mirror";
    let annotation = format!("/metadata/annotations/{}", MIRROR.replace('/', "~1"));
    if pod.pointer(&annotation).is_none() {
        let why =
            format!("pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods");
        return Some(why);
    }
    let only = |what: &str| Some(format!("node {node:?} can only create pods with {what}"));
    let not = |what: &str| Some(format!("node {node:?} can not create pods that reference {what}"));
    if text(pod, "/spec/nodeName") != node {
        return only("spec.nodeName set to itself");
    }
    let Some([owner]) = pod.pointer("/metadata/ownerReferences").and_then(Value::as_array).map(Vec::as_slice)
    else {
        return only("a single owner reference set to itself");
    };
    let of = |field: &str| owner[field].as_str().unwrap_or_default();
    if (of("apiVersion"), of("kind"), of("name")) != ("v1", "Node", node) {
        return only("an owner reference set to itself");
    }
    if owner["controller"] != true {
        return only("a controller owner reference set to itself");
    }
    if owner["blockOwnerDeletion"] == true {
        return Some(format!("node {node:?} must not set blockOwnerDeletion on an owner reference"));
    }
    let found = store.find(known("nodes"), "", node);
    let uid = found.as_deref().map(|node| text(node, "/metadata/uid")).unwrap_or_default();
    if uid != of("uid") {
        return Some(format!("node {node} UID mismatch: expected {} got {uid}", of("uid")));
    }
    if !text(pod, "/spec/serviceAccountName").is_empty() {
        return not("a service account");
    }
    for (kinds, what) in
        [(SECRETS, "secrets"), (CONFIG_MAPS, "configmaps"), (CLAIMS, "persistentvolumeclaims")]
    {
        if has_any(pod, kinds) {
            return not(what);
        }
    }
    None
}

/// Fields in which a pod references objects of these kinds.
const CONFIG_MAPS: &[&str] = &["configMap", "configMapRef", "configMapKeyRef"];
const SECRETS: &[&str] = &["secret", "secretRef", "secretKeyRef", "imagePullSecrets", "nodePublishSecretRef"];
const CLAIMS: &[&str] = &["persistentVolumeClaim"];

/// True when one of these fields is anywhere in it.
fn has_any(value: &Value, keys: &[&str]) -> bool {
    match value {
        Value::Object(fields) => {
            fields.iter().any(|(key, value)| keys.contains(&key.as_str()) || has_any(value, keys))
        }
        Value::Array(items) => items.iter().any(|item| has_any(item, keys)),
        _ => false,
    }
}

fn unrelated(node: &str) -> String {
    format!("no relationship found between node '{node}' and this object")
}

fn forbidden(attempt: &Attempt<'_>, why: &str) -> Failure {
    let route = attempt.route;
    let part = route.subresource.as_ref().map(|part| format!("/{part}")).unwrap_or_default();
    let place = match &*route.namespace {
        "" => "at the cluster scope".to_owned(),
        namespace => format!("in the namespace {namespace:?}"),
    };
    let end = if why.is_empty() { String::new() } else { format!(": {why}") };
    let message = format!(
        "User {:?} cannot {} resource \"{}{part}\" in API group {:?} {place}{end}",
        attempt.user.name, attempt.verb, route.resource.plural, route.resource.group
    );
    Failure::forbidden(route.resource, route.name.as_deref().unwrap_or_default(), &message)
}

fn pods_of(store: &Store, namespace: &str, node: &str) -> Vec<Object> {
    let scope =
        Scope { resource: known("pods"), namespace: namespace.to_owned(), selector: Selector::default() };
    let mut pods = store.all(&scope);
    pods.retain(|pod| text(pod, "/spec/nodeName") == node);
    pods
}

fn claims(pod: &Value, claim: &str) -> bool {
    let volumes = pod["spec"]["volumes"].as_array();
    volumes.is_some_and(|all| all.iter().any(|volume| volume["persistentVolumeClaim"]["claimName"] == claim))
}

fn bound(store: &Store, namespace: &str, name: &str, node: &str) -> Option<Object> {
    let pod = store.find(known("pods"), namespace, name)?;
    (text(&pod, "/spec/nodeName") == node).then_some(pod)
}

fn uses(store: &Store, namespace: &str, account: &str, node: &str) -> bool {
    pods_of(store, namespace, node).iter().any(|pod| text(pod, "/spec/serviceAccountName") == account)
}

/// True when a pod references this ConfigMap or Secret: in volumes, environments or pull secrets.
fn names(value: &Value, kind: &str, wanted: &str) -> bool {
    let keys: &[&str] = match kind {
        "configmaps" => CONFIG_MAPS,
        _ => SECRETS,
    };
    let is = |value: &Value| ["name", "secretName"].iter().any(|field| value[*field] == wanted);
    match value {
        Value::Object(fields) => fields.iter().any(|(key, value)| {
            let named = keys.contains(&key.as_str());
            let here = named && (is(value) || value.as_array().is_some_and(|list| list.iter().any(is)));
            here || names(value, kind, wanted)
        }),
        Value::Array(items) => items.iter().any(|item| names(item, kind, wanted)),
        _ => false,
    }
}
