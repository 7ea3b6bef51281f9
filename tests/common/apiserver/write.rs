//! Writes of objects, with the rules of the real server's registry: fields that the server owns, conflicts, and deletion.

use std::sync::atomic::{AtomicU64, Ordering};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};
use smolet::model::Wall;

use super::defaults;
use super::failure::{Failure, Outcome};
use super::patch::{self, PatchKind};
use super::resource::Resource;
use super::store::{Key, Object, Store, known, text};

/// Objects of all kinds. Full: nothing can be created, with the real server's error.
const OBJECTS_MAX: usize = 50_000;
/// Objects that controllers create in every namespace.
const ROOT_CA: &str = "kube-root-ca.crt";

/// The part of an object that a request writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Main,
    Status,
}

/// Options of a deletion.
#[derive(Clone, Debug, Default)]
pub struct Deletion {
    pub grace_seconds: Option<i64>,
    pub uid: Option<String>,
    pub resource_version: Option<String>,
}

impl Store {
    pub fn create(
        &mut self,
        resource: &'static Resource,
        namespace: &str,
        mut object: Value,
        now: Wall,
    ) -> Outcome<Object> {
        check_type(resource, &mut object)?;
        let generated = text(&object, "/metadata/generateName").to_owned();
        let metadata = fields(&mut object, "metadata")?;
        if metadata
            .get("resourceVersion")
            .is_some_and(|version| version.as_str().is_some_and(|text| !text.is_empty()))
        {
            return Err(Failure::new(
                500,
                "InternalError",
                "resourceVersion should not be set on objects to be created",
            ));
        }
        if metadata.get("name").and_then(Value::as_str).is_none_or(str::is_empty) && !generated.is_empty() {
            let name = format!("{generated}{}", self.suffix());
            fields(&mut object, "metadata")?.insert("name".into(), name.into());
        }
        let name = text(&object, "/metadata/name").to_owned();
        if name.is_empty() {
            return Err(Failure::invalid(
                resource,
                "",
                "metadata.name: Required value: name or generateName is required",
            ));
        }
        self.check_namespace(resource, namespace, &object)?;
        if self.find(resource, namespace, &name).is_some() {
            return Err(Failure::already_exists(resource, &name));
        }
        if self.len() >= OBJECTS_MAX {
            return Err(Failure::new(500, "InternalError", "etcdserver: mvcc: database space exceeded"));
        }
        let metadata = fields(&mut object, "metadata")?;
        for theirs in ["deletionTimestamp", "deletionGracePeriodSeconds", "generation", "selfLink"] {
            metadata.remove(theirs);
        }
        metadata.insert("uid".into(), uid().into());
        metadata.insert("creationTimestamp".into(), now.to_string().into());
        if resource.namespaced {
            metadata.insert("namespace".into(), namespace.into());
        }
        match resource.plural {
            "pods" => {
                metadata.insert("generation".into(), 1.into());
                if object.pointer("/spec/containers/0").is_none() {
                    return Err(Failure::invalid(resource, &name, "spec.containers: Required value"));
                }
                defaults::pod(&mut object);
                self.admit_account(namespace, &mut object)?;
            }
            "priorityclasses" => drop(metadata.insert("generation".into(), 1.into())),
            "namespaces" => {
                if let Some(labels) = metadata.entry("labels").or_insert_with(|| json!({})).as_object_mut() {
                    labels.insert("kubernetes.io/metadata.name".into(), name.as_str().into());
                }
                object["status"] = json!({"phase": "Active"});
            }
            "secrets" => defaults::secret(&mut object),
            "certificatesigningrequests" => object["status"] = json!({}),
            _ => {}
        }
        let made = self.write(resource, object);
        if resource.plural == "namespaces" {
            self.furnish(&name, now)?;
        }
        Ok(made)
    }

    /// Creates the controllers' objects in a namespace.
    fn furnish(&mut self, namespace: &str, now: Wall) -> Outcome<()> {
        let account = json!({"metadata": {"name": "default"}});
        self.create(known("serviceaccounts"), namespace, account, now)?;
        let root = json!({"metadata": {"name": ROOT_CA}, "data": {"ca.crt": self.root_ca}});
        self.create(known("configmaps"), namespace, root, now)?;
        Ok(())
    }

    fn check_namespace(&self, resource: &Resource, namespace: &str, object: &Value) -> Outcome<()> {
        namespace_fits(namespace, object)?;
        if resource.namespaced {
            let place = self.read(known("namespaces"), "", namespace)?;
            if place.pointer("/metadata/deletionTimestamp").is_some() {
                let why = format!(
                    "unable to create new content in namespace {namespace} because it is being terminated"
                );
                return Err(Failure::forbidden(resource, text(object, "/metadata/name"), &why));
            }
        }
        Ok(())
    }

    fn admit_account(&mut self, namespace: &str, pod: &mut Value) -> Outcome<()> {
        // A mirror pod has no service account.
        let mirror = pod.pointer("/metadata/annotations/kubernetes.io~1config.mirror").is_some();
        if !self.admits_accounts || mirror {
            return Ok(());
        }
        let account = text(pod, "/spec/serviceAccountName").to_owned();
        if self.find(known("serviceaccounts"), namespace, &account).is_none() {
            let why = format!(
                "error looking up service account {namespace}/{account}: serviceaccount {account:?} not found"
            );
            return Err(Failure::forbidden(known("pods"), text(pod, "/metadata/name"), &why));
        }
        let volume = format!("kube-api-access-{}", self.suffix());
        defaults::service_account_token(pod, &volume);
        Ok(())
    }

    /// PUT: a whole object, of which only the part is written.
    pub fn replace(
        &mut self,
        resource: &'static Resource,
        key: &Key,
        mut object: Value,
        part: Part,
        now: Wall,
    ) -> Outcome<Object> {
        let (namespace, name) = key;
        check_type(resource, &mut object)?;
        let own = text(&object, "/metadata/name");
        if own != name {
            let message =
                format!("the name of the object ({own}) does not match the name on the URL ({name})");
            return Err(Failure::bad_request(message));
        }
        namespace_fits(namespace, &object)?;
        let version = text(&object, "/metadata/resourceVersion");
        let Some(old) = self.find(resource, namespace, name) else {
            // The real server creates such an object when there is none.
            if matches!(resource.plural, "leases" | "events") && version.is_empty() {
                return self.create(resource, namespace, object, now);
            }
            return Err(Failure::not_found(resource, name));
        };
        if resource.plural == "leases" && version.is_empty() {
            let why = "metadata.resourceVersion: Invalid value: 0: must be specified for an update";
            return Err(Failure::invalid(resource, name, why));
        }
        self.update(resource, &old, object, part)
    }

    pub fn patch(
        &mut self,
        resource: &'static Resource,
        key: &Key,
        (patch, kind): (&Value, PatchKind),
        part: Part,
    ) -> Outcome<Object> {
        let old = self.read(resource, &key.0, &key.1)?;
        if !patch.is_object() {
            return Err(Failure::bad_request("the patch has to be an object"));
        }
        let new = patch::patched(&old, patch, kind).map_err(Failure::bad_request)?;
        self.update(resource, &old, new, part)
    }

    /// Replaces the part of `old` by that of `new`.
    fn update(
        &mut self,
        resource: &'static Resource,
        old: &Object,
        new: Value,
        part: Part,
    ) -> Outcome<Object> {
        let name = text(old, "/metadata/name").to_owned();
        let (wanted, found) = (text(&new, "/metadata/uid"), text(old, "/metadata/uid"));
        if !wanted.is_empty() && wanted != found {
            return Err(Failure::other_uid(resource, &name, wanted, found));
        }
        let wanted = text(&new, "/metadata/resourceVersion");
        if !wanted.is_empty() && wanted != text(old, "/metadata/resourceVersion") {
            return Err(Failure::modified(resource, &name));
        }
        let mut object = match part {
            Part::Main if resource.plural == "secrets" => {
                let mut secret = new;
                defaults::secret(&mut secret);
                secret
            }
            Part::Main if resource.status => with(new, "status", old.get("status")),
            Part::Main => new,
            // Differs from the real server, which accepts labels and annotations too: nodes write only their status by this
            // path, and nothing else should change unnoticed.
            Part::Status => with(Value::clone(old), "status", new.get("status")),
        };
        if let Some(twice) = address_twice(&object) {
            let why = format!("status.addresses: Duplicate value: {twice}");
            return Err(Failure::invalid(resource, &name, &why));
        }
        if let Some(other) = other_host_ip(&object) {
            let why = format!("status.hostIPs[0].ip: Invalid value: {other}: must be equal to `hostIP`");
            return Err(Failure::invalid(resource, &name, &why));
        }
        let generation = old.pointer("/metadata/generation").and_then(Value::as_i64);
        let respecified = old.get("spec") != object.get("spec");
        let metadata = fields(&mut object, "metadata")?;
        for ours in [
            "name",
            "namespace",
            "uid",
            "resourceVersion",
            "creationTimestamp",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "generation",
        ] {
            match old.pointer(&format!("/metadata/{ours}")) {
                Some(value) => drop(metadata.insert(ours.into(), value.clone())),
                None => drop(metadata.remove(ours)),
            }
        }
        if let Some(generation) = generation.filter(|_| respecified) {
            metadata.insert("generation".into(), (generation + 1).into());
        }
        // Without a change there is no write, no revision, and no event.
        if object == **old {
            return Ok(old.clone());
        }
        let deleting = object.pointer("/metadata/deletionTimestamp").is_some();
        let grace =
            object.pointer("/metadata/deletionGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(0);
        let held = !finalizers(&object).is_empty();
        if deleting && grace == 0 && !held && !finalizers(old).is_empty() {
            let last = self.write(resource, object);
            self.remove(resource, &last);
            return Ok(last);
        }
        Ok(self.write(resource, object))
    }

    /// DELETE: returns the object, and whether it is removed (`rest.BeforeDelete`).
    pub fn delete(
        &mut self,
        resource: &'static Resource,
        key: &Key,
        how: &Deletion,
        now: Wall,
    ) -> Outcome<(Object, bool)> {
        let old = self.read(resource, &key.0, &key.1)?;
        let found = text(&old, "/metadata/uid");
        if let Some(wanted) = how.uid.as_deref().filter(|wanted| *wanted != found) {
            return Err(Failure::other_uid(resource, &key.1, wanted, found));
        }
        if how
            .resource_version
            .as_deref()
            .is_some_and(|wanted| wanted != text(&old, "/metadata/resourceVersion"))
        {
            return Err(Failure::modified(resource, &key.1));
        }
        match resource.plural {
            "pods" => Ok(self.delete_pod(resource, &old, how.grace_seconds, now)),
            "namespaces" => self.delete_namespace(resource, &old, now),
            _ if !finalizers(&old).is_empty() => Ok((self.mark(resource, &old, 0, now), false)),
            _ => Ok((self.remove(resource, &old), true)),
        }
    }

    fn delete_pod(
        &mut self,
        resource: &'static Resource,
        old: &Object,
        asked: Option<i64>,
        now: Wall,
    ) -> (Object, bool) {
        let pending = old.pointer("/metadata/deletionGracePeriodSeconds").and_then(Value::as_i64);
        let grace = match (asked, pending) {
            // A further deletion can only shorten the grace period.
            (None, Some(_)) => return (old.clone(), false),
            (Some(asked), Some(pending)) if asked >= pending => return (old.clone(), false),
            (Some(asked), Some(_)) => asked,
            (asked, None) => {
                let own = old.pointer("/spec/terminationGracePeriodSeconds").and_then(Value::as_i64);
                let bound = !text(old, "/spec/nodeName").is_empty();
                let ended = matches!(text(old, "/status/phase"), "Succeeded" | "Failed");
                match asked.or(own).unwrap_or(30) {
                    _ if !bound || ended => 0,
                    negative if negative < 0 => 1,
                    grace => grace,
                }
            }
        };
        // As the real server, which sets the deletionTimestamp for a grace period of zero too, and then deletes.
        let marked = self.mark(resource, old, grace, now);
        if grace > 0 || !finalizers(&marked).is_empty() {
            return (marked, false);
        }
        (self.remove(resource, &marked), true)
    }

    /// Sets the deletion fields of the object.
    fn mark(&mut self, resource: &'static Resource, old: &Object, grace: i64, now: Wall) -> Object {
        let mut object = Value::clone(old);
        let asked = old.pointer("/metadata/deletionTimestamp").and_then(Value::as_str);
        let pending =
            old.pointer("/metadata/deletionGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(0);
        let first = asked.is_none();
        let asked = match asked {
            Some(until) => shifted(until, -pending),
            None => now.to_string(),
        };
        object["metadata"]["deletionTimestamp"] = shifted(&asked, grace).into();
        object["metadata"]["deletionGracePeriodSeconds"] = grace.into();
        if let Some(generation) =
            old.pointer("/metadata/generation").and_then(Value::as_i64).filter(|_| first)
        {
            object["metadata"]["generation"] = (generation + 1).into();
        }
        if object == **old { old.clone() } else { self.write(resource, object) }
    }

    /// A namespace is removed after its pods; everything else in it is removed at once.
    fn delete_namespace(
        &mut self,
        resource: &'static Resource,
        old: &Object,
        now: Wall,
    ) -> Outcome<(Object, bool)> {
        let name = text(old, "/metadata/name").to_owned();
        let mut object = Value::clone(old);
        if object.pointer("/metadata/deletionTimestamp").is_none() {
            object["metadata"]["deletionTimestamp"] = now.to_string().into();
            object["status"] = json!({"phase": "Terminating"});
        }
        let marked = if object == **old { old.clone() } else { self.write(resource, object) };
        for (plural, object) in self.inside(&name) {
            if plural == "pods" {
                self.delete_pod(known("pods"), &object, None, now);
            } else {
                self.remove(known(plural), &object);
            }
        }
        // The removal of its last pod has removed the namespace already.
        self.end_namespace(&name);
        Ok((marked, self.find(resource, "", &name).is_none()))
    }

    /// The removal of the last pod of a terminating namespace removes the namespace.
    pub fn end_namespace(&mut self, name: &str) {
        let Some(place) = self.find(known("namespaces"), "", name) else { return };
        let deleting = place.pointer("/metadata/deletionTimestamp").is_some();
        if deleting && self.inside(name).is_empty() {
            self.remove(known("namespaces"), &place);
        }
    }
}

fn namespace_fits(namespace: &str, object: &Value) -> Outcome<()> {
    let own = text(object, "/metadata/namespace");
    if own.is_empty() || own == namespace {
        return Ok(());
    }
    let message = "the namespace of the provided object does not match the namespace sent on the request";
    Err(Failure::bad_request(message))
}

fn finalizers(object: &Value) -> &[Value] {
    object.pointer("/metadata/finalizers").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The object with another value in this field, or without it.
fn with(mut object: Value, field: &str, value: Option<&Value>) -> Value {
    if let Some(fields) = object.as_object_mut() {
        match value {
            Some(value) => drop(fields.insert(field.into(), value.clone())),
            None => drop(fields.remove(field)),
        }
    }
    object
}

fn fields<'a>(object: &'a mut Value, field: &str) -> Outcome<&'a mut Map<String, Value>> {
    let wrong = || Failure::bad_request(format!("the object has no {field}"));
    let object = object.as_object_mut().ok_or_else(wrong)?;
    object.entry(field).or_insert_with(|| json!({})).as_object_mut().ok_or_else(wrong)
}

/// Checks or sets an object's type: another kind for a path is an error of the client.
fn check_type(resource: &Resource, object: &mut Value) -> Outcome<()> {
    let Some(fields) = object.as_object_mut() else {
        return Err(Failure::bad_request("the object provided is unrecognized: it is no JSON object"));
    };
    for (field, wanted) in [("kind", resource.kind.to_owned()), ("apiVersion", resource.api_version())] {
        let found = fields.entry(field).or_insert_with(|| wanted.clone().into());
        if *found != wanted {
            let message =
                format!("the {field} in the data ({found}) does not match the expected one ({wanted})");
            return Err(Failure::bad_request(message));
        }
    }
    Ok(())
}

/// Looks random, and is unique in this process.
fn uid() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    // Multiples by this odd number spread over all bits, so that the first halves differ for long.
    let spread = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    format!(
        "{:08x}-{:04x}-4{:03x}-8{:03x}-{number:012x}",
        spread >> 32,
        spread >> 16 & 0xffff,
        spread >> 4 & 0xfff,
        spread & 0xfff
    )
}

/// A time of the API so many seconds later. An invalid one, which a test has written, is unchanged.
fn shifted(time: &str, seconds: i64) -> String {
    let Ok(at) = time.parse::<Timestamp>() else { return time.to_owned() };
    at.checked_add(SignedDuration::from_secs(seconds)).map_or_else(|_| time.to_owned(), |at| at.to_string())
}

/// The first of a Pod's host addresses where `hostIP` is another one (`validateHostIPs`).
fn other_host_ip(object: &Value) -> Option<&Value> {
    let first = object.pointer("/status/hostIPs/0/ip")?;
    (object.pointer("/status/hostIP") != Some(first)).then_some(first)
}

/// A Node's addresses are merged by their type, and each may occur once.
fn address_twice(object: &Value) -> Option<&Value> {
    let addresses = object.pointer("/status/addresses")?.as_array()?;
    addresses
        .iter()
        .enumerate()
        .find(|(index, address)| addresses[..*index].contains(address))
        .map(|(_, a)| a)
}
