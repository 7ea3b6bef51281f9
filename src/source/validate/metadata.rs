//! `metadata` of a static pod (`ValidateObjectMeta`). PURE.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::Check;
use crate::model::names;
use crate::render::labels::CDI_PREFIX;
use crate::source::identity::NodeName;
use crate::text::to_lower;

/// Bytes of all annotations together (`TotalAnnotationSizeLimitB`).
const ANNOTATIONS_BYTES_MAX: usize = 256 * 1024;

/// Name, UID and node name, before the name gets the node's behind it.
pub(super) fn as_written(check: &mut Check<'_>, meta: &ObjectMeta, node: &NodeName) {
    check.at("name", |check| {
        let name = meta.name.as_deref().unwrap_or_default();
        if name.is_empty() {
            return check.required("the pod's name");
        }
        if let Some(message) = names::subdomain(name) {
            return check.invalid_text(name, message);
        }
        let full = node.pod_name(name);
        if full.len() > 253 {
            let over = full.len() - 253;
            check.invalid_text(
                name,
                &format!("is {over} characters too long with the node's name {node} behind it"),
            );
        } else if names::subdomain(&full).is_some() {
            check.invalid_text(
                name,
                &format!("gives no valid name with the node's name \"{node}\" behind it"),
            );
        }
    });
    if let Some(uid) = meta.uid.as_deref().filter(|uid| !uid.is_empty()) {
        check.at("uid", |check| check.text(uid, names::uid));
    }
    if let Some(namespace) = meta.namespace.as_deref().filter(|namespace| !namespace.is_empty()) {
        check.at("namespace", |check| check.text(namespace, names::label));
    }
}

/// Labels and annotations.
pub(super) fn metadata(check: &mut Check<'_>, meta: &ObjectMeta) {
    check.at("labels", |check| {
        for (key, value) in meta.labels.iter().flatten() {
            label(check, key, value);
        }
    });
    check.at("annotations", |check| {
        let mut bytes = 0;
        for (key, value) in meta.annotations.iter().flatten() {
            bytes += key.len() + value.len();
            if let Some(message) = names::qualified(&to_lower(key)) {
                check.invalid_text(key, message);
            }
            if key.starts_with(CDI_PREFIX) && !value.split(',').all(is_cdi_device) {
                check.at(key, |check| {
                    check.invalid_text(
                        value,
                        "must be devices, VENDOR/CLASS=DEVICE, with commas between them",
                    );
                });
            }
        }
        if bytes > ANNOTATIONS_BYTES_MAX {
            check.invalid(bytes, &format!("must be at most {ANNOTATIONS_BYTES_MAX} bytes together"));
        }
    });
}

/// `vendor.com/class=device`, as far as it decides what is meant.
fn is_cdi_device(name: &str) -> bool {
    let parts = name.split_once('/').and_then(|(vendor, rest)| Some((vendor, rest.split_once('=')?)));
    parts.is_some_and(|(vendor, (class, device))| ![vendor, class, device].contains(&""))
}

/// One entry of a map of labels.
pub(super) fn label(check: &mut Check<'_>, key: &str, value: &str) {
    check.text(key, names::qualified);
    if let Some(message) = names::label_value(value) {
        check.at(key, |check| check.invalid_text(value, message));
    }
}
