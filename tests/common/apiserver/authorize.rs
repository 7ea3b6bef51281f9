//! What a node may do: the rules of the real server's Node authorizer and of its NodeRestriction plugin, as far as the
//! resources here go. Everybody else may do everything.

use serde_json::Value;

use super::User;
use super::failure::{Failure, Outcome};
use super::resource::{Query, Route, Selector};
use super::store::{Object, Scope, Store, known, text};

/// The namespace of nodes' leases.
const LEASES: &str = "kube-node-lease";

/// A request as the rules look at it.
pub struct Attempt<'a> {
    pub user: &'a User,
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`.
    pub verb: &'a str,
    pub route: &'a Route,
    pub query: &'a Query,
    /// `Null` without one.
    pub body: &'a Value,
}

/// Whether the user may do this.
///
/// # Errors
/// 403, with the words of the real server.
pub fn authorize(store: &Store, attempt: &Attempt<'_>) -> Outcome<()> {
    let user = attempt.user;
    let node = match user.name.strip_prefix("system:node:") {
        Some(node) if user.groups.iter().any(|group| group == "system:nodes") => node,
        _ => return Ok(()),
    };
    let why = refusal(store, attempt, node);
    why.map_or(Ok(()), |why| Err(forbidden(attempt, &why)))
}

/// Why the node may not do this.
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
        ("pods", None, "create") => {
            let mirror = body.pointer("/metadata/annotations/kubernetes.io~1config.mirror").is_some();
            unless(
                mirror && text(body, "/spec/nodeName") == node,
                "node can only create mirror pods bound to itself",
            )
        }
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

fn bound(store: &Store, namespace: &str, name: &str, node: &str) -> Option<Object> {
    let pod = store.find(known("pods"), namespace, name)?;
    (text(&pod, "/spec/nodeName") == node).then_some(pod)
}

fn uses(store: &Store, namespace: &str, account: &str, node: &str) -> bool {
    pods_of(store, namespace, node).iter().any(|pod| text(pod, "/spec/serviceAccountName") == account)
}

/// Whether a pod names this config map or secret anywhere: in volumes, environments or for pulling images.
fn names(value: &Value, kind: &str, wanted: &str) -> bool {
    let keys: &[&str] = match kind {
        "configmaps" => &["configMap", "configMapRef", "configMapKeyRef"],
        _ => &["secret", "secretRef", "secretKeyRef", "imagePullSecrets", "nodePublishSecretRef"],
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
