//! Validation of static pods, as Kubernetes does it (`ValidatePodCreate` in `pkg/apis/core/validation`), and the
//! list of what this version does not do yet (`unsupported`), which is part of the table of all fields (`fields`). PURE.
//!
//! Every rule looks at a defaulted pod and adds to one list of errors: all of them are found at once, each with the
//! field's path, the offending value and what is allowed.

mod container;
mod env;
pub mod fields;
mod metadata;
mod node;
mod probe;
mod resources;
mod security;
mod spec;
mod unsupported;
mod volumes;

use std::fmt::Display;

use k8s_openapi::api::core::v1::{EphemeralContainer, Pod, PodSpec};

use super::identity::NodeName;
use crate::decode::{ErrorKind, FieldError, FieldErrors, Path, quoted};
use crate::limits;
use crate::model::names;

/// Checks what the identity is made of, before the pod gets it: the name, the UID and the node's name.
pub fn as_written(pod: &Pod, node: &NodeName, unread: &[String]) -> FieldErrors {
    let mut check = Check::beside(unread);
    check.at("metadata", |check| metadata::as_written(check, &pod.metadata, node));
    if pod.spec.is_none() {
        check.at("spec", |check| check.required("the pod's containers"));
    }
    check.errors
}

/// Checks the name and the namespace of a ConfigMap or Secret.
pub fn object_names(name: Option<&str>, namespace: &str, unread: &[String]) -> FieldErrors {
    let mut check = Check::beside(unread);
    check.at("metadata", |check| {
        check.at("name", |check| match name.unwrap_or_default() {
            "" => check.required("the object's name"),
            name => check.text(name, names::subdomain),
        });
        check.at("namespace", |check| check.text(namespace, names::label));
    });
    check.errors
}

/// Checks a defaulted pod that has its identity: first what this version does not do, then what no version takes.
pub fn pod(pod: &Pod, unread: &[String]) -> FieldErrors {
    let mut check = Check::beside(unread);
    unsupported::pod(&mut check, pod);
    check.at("metadata", |check| {
        metadata::metadata(check, &pod.metadata);
        security::app_armor_annotations(check, pod);
    });
    if let Some(spec) = &pod.spec {
        check.at("spec", |check| spec::spec(check, spec));
    }
    check.errors
}

/// Checks a pod that an API server has bound to this node, and has checked itself: only what memory bounds. What this version does
/// not do lets the pod wait, as with a kubelet that lacks a plugin or a driver: a pod that is Failed is made anew by its controller,
/// again and again.
pub fn bound(pod: &Pod) -> FieldErrors {
    let mut check = Check::default();
    let gates = pod.spec.as_ref().and_then(|spec| spec.readiness_gates.as_ref());
    if gates.is_some_and(|gates| gates.len() > limits::READINESS_GATES_MAX) {
        let message = format!("must have at most {} items", limits::READINESS_GATES_MAX);
        check.at_path("spec.readinessGates", |check| check.wrong(&message));
    }
    check.errors
}

/// Checks an ephemeral container that is to be added to a pod, defaulted.
///
/// Differs from Kubernetes, where a static pod gets none: what the API server has of it is a copy, and the kubelet goes by
/// the manifest.
pub fn ephemeral_container(spec: &PodSpec, added: &EphemeralContainer) -> FieldErrors {
    let mut check = Check::default();
    let place = spec.ephemeral_containers.as_ref().map_or(0, Vec::len);
    check.at_path(&format!("spec.ephemeralContainers[{place}]"), |check| {
        container::ephemeral(check, added, spec);
    });
    check.errors
}

/// The paths of fields that do not hold what was meant (`typed::Decoded`).
#[derive(Default)]
struct Unread<'a>(&'a [String]);

impl Unread<'_> {
    /// An error of `path` says nothing new: it is of a field that could not be read, or compares one with such a field.
    fn explains(&self, path: &str) -> bool {
        let names_volume = path.contains(".volumeMounts[") || path.ends_with(".fileKeyRef.volumeName");
        let compares_amounts = path.contains(".resources.");
        self.0.iter().any(|unread| {
            fields::covers(unread, path)
                || names_volume && fields::covers("spec.volumes", unread)
                || compares_amounts && unread.contains(".resources")
        })
    }
}

/// The errors found so far, and where the check is.
#[derive(Default)]
struct Check<'a> {
    path: Path,
    unread: Unread<'a>,
    errors: FieldErrors,
}

impl<'a> Check<'a> {
    /// `unread` are the paths of fields that do not hold what was meant. Errors that follow only from these are not reported.
    fn beside(unread: &'a [String]) -> Self {
        Self { unread: Unread(unread), ..Self::default() }
    }

    /// Checks the field `key` of what is being checked.
    fn at<R>(&mut self, key: &str, check: impl FnOnce(&mut Self) -> R) -> R {
        let mark = self.path.push(key);
        let result = check(self);
        self.path.cut(mark);
        result
    }

    /// Checks a field some levels below, given as it is shown: `securityContext.seLinuxOptions`.
    fn at_path(&mut self, path: &str, check: impl FnOnce(&mut Self)) {
        let mark = self.path.push_shown(path);
        check(self);
        self.path.cut(mark);
    }

    /// Checks each item of the list in field `key`.
    fn each<'i, T>(&mut self, key: &str, items: &'i [T], mut check: impl FnMut(&mut Self, &'i T)) {
        let mark = self.path.push(key);
        for (index, item) in items.iter().enumerate() {
            let mark = self.path.push_index(index);
            check(self, item);
            self.path.cut(mark);
        }
        self.path.cut(mark);
    }

    fn push(&mut self, kind: ErrorKind, value: Option<String>, message: &str) {
        let path = self.path.shown();
        if !self.unread.explains(&path) {
            self.errors.push(FieldError { path, kind, value, message: message.to_owned() });
        }
    }

    /// The field is missing.
    fn required(&mut self, what: &str) {
        self.push(ErrorKind::Required, None, what);
    }

    /// The field may not be there.
    fn forbidden(&mut self, message: &str) {
        self.push(ErrorKind::Forbidden, None, message);
    }

    /// The object as a whole is wrong.
    fn wrong(&mut self, message: &str) {
        self.push(ErrorKind::Invalid, None, message);
    }

    /// The field's number or the like is wrong.
    fn invalid(&mut self, value: impl Display, message: &str) {
        self.push(ErrorKind::Invalid, Some(value.to_string()), message);
    }

    /// The field's text is wrong.
    fn invalid_text(&mut self, value: &str, message: &str) {
        self.push(ErrorKind::Invalid, Some(quoted(value)), message);
    }

    /// Another item has this text.
    fn duplicate(&mut self, value: &str, message: &str) {
        self.push(ErrorKind::Duplicate, Some(quoted(value)), message);
    }

    /// The text breaks `rule`, when it does.
    fn text(&mut self, value: &str, rule: fn(&str) -> Option<&'static str>) {
        if let Some(message) = rule(value) {
            self.invalid_text(value, message);
        }
    }

    /// The text is one of `allowed`.
    fn one_of(&mut self, value: &str, allowed: &[&str]) {
        if !allowed.contains(&value) {
            let shown: Vec<String> =
                allowed.iter().filter(|word| !word.is_empty()).map(|word| quoted(word)).collect();
            let message = format!("supported values: {}", shown.join(", "));
            self.push(ErrorKind::NotSupported, Some(quoted(value)), &message);
        }
    }

    /// The number is within a range.
    fn range(&mut self, value: i64, min: i64, max: i64) {
        if !(min..=max).contains(&value) {
            self.invalid(value, &format!("must be between {min} and {max}"));
        }
    }

    /// The number is not negative.
    fn not_negative(&mut self, value: i64) {
        if value < 0 {
            self.invalid(value, "must be 0 or more");
        }
    }
}

#[cfg(test)]
mod tests;
