//! PURE: a patch applied to an object, as `application/merge-patch+json` (RFC 7386) and as Kubernetes'
//! `application/strategic-merge-patch+json`, which merges lists by a key.

use serde_json::{Map, Value};

/// The kind of a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchKind {
    Merge,
    Strategic,
}

impl PatchKind {
    pub const ACCEPTED: &'static str = "application/merge-patch+json, application/strategic-merge-patch+json";

    /// The kind of a content type.
    pub fn of(content_type: &str) -> Option<Self> {
        match content_type.split(';').next().unwrap_or_default().trim() {
            "application/merge-patch+json" => Some(Self::Merge),
            "application/strategic-merge-patch+json" => Some(Self::Strategic),
            _ => None,
        }
    }
}

const DIRECTIVE: &str = "$patch";
const ORDER: &str = "$setElementOrder/";
const DELETE_PRIMITIVES: &str = "$deleteFromPrimitiveList/";
const RETAIN: &str = "$retainKeys";

/// The object with the patch applied.
///
/// # Errors
/// A sentence: the patch is invalid.
pub fn patched(object: &Value, patch: &Value, kind: PatchKind) -> Result<Value, String> {
    let mut object = object.clone();
    match (kind, &mut object, patch) {
        (PatchKind::Merge, object, patch) => merge(object, patch),
        (PatchKind::Strategic, Value::Object(object), Value::Object(patch)) => strategic(object, patch)?,
        (PatchKind::Strategic, ..) => return Err("a strategic merge patch has to be an object".into()),
    }
    Ok(object)
}

fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(target) = target else { return };
    for (key, value) in patch {
        if value.is_null() {
            target.remove(key);
        } else {
            merge(target.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

/// Kubernetes' `mergeMap`.
fn strategic(target: &mut Map<String, Value>, patch: &Map<String, Value>) -> Result<(), String> {
    match patch.get(DIRECTIVE) {
        None => {}
        Some(Value::String(directive)) if directive == "replace" => {
            *target = plain(patch);
            return Ok(());
        }
        Some(Value::String(directive)) if directive == "delete" => {
            target.clear();
            return Ok(());
        }
        Some(Value::String(directive)) if directive == "merge" => {}
        Some(other) => return Err(format!("unknown patch directive {other}")),
    }
    if let Some(retained) = patch.get(RETAIN) {
        let retained = retained.as_array().ok_or("$retainKeys has to be a list")?;
        target.retain(|key, _| retained.iter().any(|wanted| wanted == key));
    }
    for (key, value) in patch {
        if let Some(list) = key.strip_prefix(DELETE_PRIMITIVES) {
            let gone = value.as_array().ok_or("$deleteFromPrimitiveList has to be a list")?;
            if let Some(Value::Array(items)) = target.get_mut(list) {
                items.retain(|item| !gone.contains(item));
            }
        }
    }
    for (key, value) in patch.iter().filter(|(key, _)| !is_directive(key)) {
        match (target.get_mut(key), value) {
            (_, Value::Null) => {
                target.remove(key);
            }
            (Some(Value::Object(target)), Value::Object(patch)) => strategic(target, patch)?,
            (Some(Value::Array(target)), Value::Array(patch)) => merge_list(key, target, patch)?,
            // The same directives apply to a list that does not exist yet.
            (None, Value::Array(patch)) => {
                let mut list = Vec::new();
                merge_list(key, &mut list, patch)?;
                target.insert(key.clone(), Value::Array(list));
            }
            (_, Value::Object(patch)) => {
                let mut object = Map::new();
                strategic(&mut object, patch)?;
                target.insert(key.clone(), Value::Object(object));
            }
            (_, value) => {
                target.insert(key.clone(), value.clone());
            }
        }
    }
    for (key, order) in patch {
        if let Some(list) = key.strip_prefix(ORDER) {
            let order = order.as_array().ok_or("$setElementOrder has to be a list")?;
            if let Some(Value::Array(items)) = target.get_mut(list) {
                put_in_order(list, items, order);
            }
        }
    }
    Ok(())
}

/// Kubernetes' `mergeSlice`: by key if the list has one, else the patch's list replaces the other.
fn merge_list(name: &str, target: &mut Vec<Value>, patch: &[Value]) -> Result<(), String> {
    if is_set(name) {
        for item in patch {
            if !target.contains(item) {
                target.push(item.clone());
            }
        }
        return Ok(());
    }
    let directive = |item: &Value| item.get(DIRECTIVE).and_then(Value::as_str).map(str::to_owned);
    if patch.iter().any(|item| directive(item).as_deref() == Some("replace")) {
        let rest = patch.iter().filter(|item| directive(item).is_none());
        *target = rest.cloned().collect();
        return Ok(());
    }
    let Some(key) = merge_key(name, patch) else {
        *target = patch.to_vec();
        return Ok(());
    };
    for item in patch {
        let Value::Object(fields) = item else { return Err(format!("{name}: objects and others are mixed")) };
        let wanted =
            fields.get(key).ok_or_else(|| format!("map does not contain declared merge key: {key}"))?;
        let found = target.iter().position(|old| old.get(key) == Some(wanted));
        match (directive(item).as_deref(), found) {
            (Some("delete"), _) => target.retain(|old| old.get(key) != Some(wanted)),
            (_, Some(index)) => {
                if let Value::Object(old) = &mut target[index] {
                    strategic(old, fields)?;
                }
            }
            (_, None) => {
                let mut new = Map::new();
                strategic(&mut new, fields)?;
                target.push(Value::Object(new));
            }
        }
    }
    Ok(())
}

/// Reorders the named items among the indexes that they have together; the others stay.
fn put_in_order(name: &str, items: &mut [Value], order: &[Value]) {
    let key = merge_key(name, order);
    let rank = |item: &Value| {
        order.iter().position(|wanted| match key {
            Some(key) => wanted.get(key) == item.get(key),
            None => wanted == item,
        })
    };
    let places: Vec<usize> = (0..items.len()).filter(|index| rank(&items[*index]).is_some()).collect();
    let mut named: Vec<Value> = places.iter().map(|index| items[*index].clone()).collect();
    named.sort_by_key(|item| rank(item));
    for (place, item) in places.into_iter().zip(named) {
        items[place] = item;
    }
}

fn is_directive(key: &str) -> bool {
    key == DIRECTIVE || key == RETAIN || key.starts_with(ORDER) || key.starts_with(DELETE_PRIMITIVES)
}

fn plain(patch: &Map<String, Value>) -> Map<String, Value> {
    patch
        .iter()
        .filter(|(key, _)| !is_directive(key))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect()
}

/// Lists of plain values that a patch adds to (`patchStrategy: merge` without a key).
fn is_set(list: &str) -> bool {
    matches!(list, "finalizers" | "podCIDRs")
}

/// The `patchMergeKey` of the list with this name. Other lists are replaced, container statuses among them.
fn merge_key(list: &str, items: &[Value]) -> Option<&'static str> {
    Some(match list {
        "conditions" | "addresses" => "type",
        "podIPs" | "hostIPs" | "hostAliases" => "ip",
        "containers"
        | "initContainers"
        | "ephemeralContainers"
        | "volumes"
        | "env"
        | "imagePullSecrets"
        | "secrets"
        | "resourceClaims"
        | "resourceClaimStatuses" => "name",
        "volumeMounts" => "mountPath",
        "volumeDevices" => "devicePath",
        "topologySpreadConstraints" => "topologyKey",
        "ownerReferences" => "uid",
        // The lists of a container and of a service have the same name.
        "ports" if items.iter().any(|item| item.get("containerPort").is_some()) => "containerPort",
        "ports" => "port",
        _ => return None,
    })
}
