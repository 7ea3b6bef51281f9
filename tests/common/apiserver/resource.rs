//! The resources, and the parsing of paths and queries.

use std::borrow::Cow;

use serde_json::Value;

use super::failure::{Failure, Outcome};

/// A resource.
#[derive(Debug)]
pub struct Resource {
    pub group: &'static str,
    pub version: &'static str,
    pub plural: &'static str,
    pub kind: &'static str,
    pub namespaced: bool,
    /// `status` is a subresource.
    pub status: bool,
    /// Fields that a field selector may use, besides name and namespace.
    fields: &'static [&'static str],
}

const POD_FIELDS: &[&str] = &[
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "spec.hostNetwork",
    "status.phase",
    "status.podIP",
    "status.nominatedNodeName",
];
const EVENT_FIELDS: &[&str] = &[
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "type",
];

/// In the order of groups; the plurals are unique.
static RESOURCES: [Resource; 18] = [
    row("", "v1", "configmaps", "ConfigMap", true, false, &[]),
    row("", "v1", "events", "Event", true, false, EVENT_FIELDS),
    row("", "v1", "namespaces", "Namespace", false, true, &["status.phase"]),
    row("", "v1", "nodes", "Node", false, true, &["spec.unschedulable"]),
    row("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", true, true, &[]),
    row("", "v1", "persistentvolumes", "PersistentVolume", false, true, &[]),
    row("", "v1", "pods", "Pod", true, true, POD_FIELDS),
    row("", "v1", "secrets", "Secret", true, false, &["type"]),
    row("", "v1", "serviceaccounts", "ServiceAccount", true, false, &[]),
    row("", "v1", "services", "Service", true, true, &["spec.clusterIP", "spec.type"]),
    row("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", false, false, &[]),
    row("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", false, false, &[]),
    row(
        "certificates.k8s.io",
        "v1",
        "certificatesigningrequests",
        "CertificateSigningRequest",
        false,
        true,
        &["spec.signerName"],
    ),
    row("coordination.k8s.io", "v1", "leases", "Lease", true, false, &[]),
    row("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", true, false, &[]),
    row("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", true, false, &[]),
    row("node.k8s.io", "v1", "runtimeclasses", "RuntimeClass", false, false, &[]),
    row("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", false, false, &[]),
];

const fn row(
    group: &'static str,
    version: &'static str,
    plural: &'static str,
    kind: &'static str,
    namespaced: bool,
    status: bool,
    fields: &'static [&'static str],
) -> Resource {
    Resource { group, version, plural, kind, namespaced, status, fields }
}

impl Resource {
    /// As in `apiVersion`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// As in messages: `pods`, `leases.coordination.k8s.io`.
    pub fn qualified(&self) -> String {
        if self.group.is_empty() { self.plural.to_owned() } else { format!("{}.{}", self.plural, self.group) }
    }

    /// It is answered at once, and not stored.
    pub fn is_review(&self) -> bool {
        self.plural.ends_with("reviews")
    }
}

/// The resource of that plural.
pub fn named(plural: &str) -> Option<&'static Resource> {
    RESOURCES.iter().find(|resource| resource.plural == plural)
}

/// A parsed path.
#[derive(Clone, Debug)]
pub struct Route {
    pub resource: &'static Resource,
    /// Empty: all namespaces, or cluster scope.
    pub namespace: String,
    pub name: Option<String>,
    pub subresource: Option<String>,
}

impl Route {
    pub fn of(path: &str) -> Outcome<Self> {
        let parts: Option<Vec<String>> = path.split('/').skip(1).map(|part| decoded(part, false)).collect();
        let parts = parts.ok_or_else(|| Failure::bad_request("the path is no UTF-8"))?;
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let (group, version, rest) = match parts.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] if !group.is_empty() => (*group, *version, rest),
            _ => return Err(Failure::unknown_path()),
        };
        // `namespaces/x` and `namespaces/x/status` are the namespace itself.
        let (namespace, rest) = match rest {
            ["namespaces", _] | ["namespaces", _, "status" | "finalize"] => ("", rest),
            ["namespaces", namespace, rest @ ..] => (*namespace, rest),
            _ => ("", rest),
        };
        let (plural, name, subresource) = match rest {
            [plural] => (*plural, None, None),
            [plural, name] => (*plural, Some(*name), None),
            [plural, name, subresource] => (*plural, Some(*name), Some(*subresource)),
            _ => return Err(Failure::unknown_path()),
        };
        let found = RESOURCES.iter().find(|resource| {
            resource.plural == plural && resource.group == group && resource.version == version
        });
        let resource = found.ok_or_else(Failure::unknown_path)?;
        let placed = !namespace.is_empty();
        // An object of a namespaced resource has a namespace, one of a cluster resource none.
        if (placed && !resource.namespaced) || (!placed && resource.namespaced && name.is_some()) {
            return Err(Failure::unknown_path());
        }
        let owned = |part: Option<&str>| part.map(str::to_owned);
        Ok(Self {
            resource,
            namespace: namespace.to_owned(),
            name: owned(name),
            subresource: owned(subresource),
        })
    }
}

/// A parsed query.
#[derive(Clone, Debug, Default)]
pub struct Query {
    pub watch: bool,
    /// `None`: not given.
    pub resource_version: Option<u64>,
    pub limit: Option<usize>,
    pub continued: Option<String>,
    pub timeout_seconds: Option<u64>,
    pub bookmarks: bool,
    pub initial_events: bool,
    pub selector: Selector,
    /// DELETE may have it here instead of in its body.
    pub grace_seconds: Option<i64>,
}

impl Query {
    pub fn of(text: &str, resource: &Resource) -> Outcome<Self> {
        let mut query = Self::default();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let decoded = (decoded(key, true), decoded(value, true));
            let (Some(key), Some(value)) = decoded else {
                return Err(Failure::bad_request("the query is no UTF-8"));
            };
            let number = || {
                let wrong = || Failure::bad_request(format!("{key}: Invalid value: {value:?}"));
                value.parse::<u64>().map_err(|_| wrong())
            };
            let yes = matches!(&*value, "true" | "1");
            match &*key {
                "watch" => query.watch = yes,
                "allowWatchBookmarks" => query.bookmarks = yes,
                "sendInitialEvents" => query.initial_events = yes,
                "resourceVersion" if !value.is_empty() => query.resource_version = Some(number()?),
                "limit" if !value.is_empty() => {
                    query.limit = usize::try_from(number()?).ok().filter(|limit| *limit > 0)
                }
                "continue" if !value.is_empty() => query.continued = Some(value),
                "timeoutSeconds" if !value.is_empty() => query.timeout_seconds = Some(number()?),
                "gracePeriodSeconds" if !value.is_empty() => {
                    query.grace_seconds = i64::try_from(number()?).ok()
                }
                "fieldSelector" => query.selector.fields(&value, resource)?,
                "labelSelector" => query.selector.labels(&value)?,
                // Accepted without an effect: this server always answers with the newest state.
                _ => {}
            }
        }
        Ok(query)
    }
}

/// A label and field selector.
#[derive(Clone, Debug, Default)]
pub struct Selector(Vec<Term>);

#[derive(Clone, Debug)]
struct Term {
    place: TermField,
    wanted: Wanted,
}

#[derive(Clone, Debug)]
enum TermField {
    /// A JSON pointer.
    Field(String),
    Label(String),
}

#[derive(Clone, Debug)]
enum Wanted {
    Is(String),
    Not(String),
    There,
    Absent,
}

impl Selector {
    fn fields(&mut self, text: &str, resource: &Resource) -> Outcome<()> {
        for term in text.split(',').filter(|term| !term.is_empty()) {
            let Some((field, wanted)) = comparison(term) else {
                return Err(Failure::bad_request(format!(
                    "invalid selector: {text:?}; can't understand {term:?}"
                )));
            };
            let known =
                matches!(field, "metadata.name" | "metadata.namespace") || resource.fields.contains(&field);
            if !known {
                return Err(Failure::bad_request(format!("field label not supported: {field}")));
            }
            let place = TermField::Field(format!("/{}", field.replace('.', "/")));
            self.0.push(Term { place, wanted });
        }
        Ok(())
    }

    /// Equality and presence; sets (`in (a,b)`) are refused.
    fn labels(&mut self, text: &str) -> Outcome<()> {
        if text.contains('(') {
            return Err(Failure::bad_request("this server knows no sets in label selectors"));
        }
        for term in text.split(',').map(str::trim).filter(|term| !term.is_empty()) {
            let (label, wanted) = match (comparison(term), term.strip_prefix('!')) {
                (Some(found), _) => found,
                (None, Some(label)) => (label, Wanted::Absent),
                (None, None) => (term, Wanted::There),
            };
            self.0.push(Term { place: TermField::Label(label.to_owned()), wanted });
        }
        Ok(())
    }

    /// Matches only the object of that name.
    pub fn name(&mut self, name: &str) {
        let place = TermField::Field("/metadata/name".into());
        self.0.push(Term { place, wanted: Wanted::Is(name.to_owned()) });
    }

    pub fn matches(&self, object: &Value) -> bool {
        self.0.iter().all(|term| term.matches(object))
    }

    /// The required value of the field with this JSON pointer, if the selector has one.
    pub fn wants(&self, pointer: &str) -> Option<&str> {
        self.0.iter().find_map(|term| match (&term.place, &term.wanted) {
            (TermField::Field(field), Wanted::Is(value)) if field == pointer => Some(&**value),
            _ => None,
        })
    }
}

/// `a=b`, `a==b` and `a!=b`.
fn comparison(term: &str) -> Option<(&str, Wanted)> {
    if let Some((left, right)) = term.split_once("!=") {
        return Some((left.trim(), Wanted::Not(right.trim().to_owned())));
    }
    let (left, right) = term.split_once("==").or_else(|| term.split_once('='))?;
    Some((left.trim(), Wanted::Is(right.trim().to_owned())))
}

impl Term {
    fn matches(&self, object: &Value) -> bool {
        let found = match &self.place {
            TermField::Field(pointer) => object.pointer(pointer),
            TermField::Label(label) => {
                object.pointer("/metadata/labels").and_then(|labels| labels.get(label))
            }
        };
        let text = found.map(|value| match value {
            Value::String(text) => Cow::Borrowed(&**text),
            other => Cow::Owned(other.to_string()),
        });
        match &self.wanted {
            Wanted::There => found.is_some(),
            Wanted::Absent => found.is_none(),
            // A missing field counts as an empty text, a missing label as none.
            Wanted::Is(wanted) => match (&self.place, text) {
                (TermField::Field(_), None) => wanted.is_empty(),
                (_, text) => text.is_some_and(|text| text == **wanted),
            },
            Wanted::Not(wanted) => match (&self.place, text) {
                (TermField::Field(_), None) => !wanted.is_empty(),
                (_, text) => text.is_none_or(|text| text != **wanted),
            },
        }
    }
}

/// Decodes a part of a URL; in queries `+` is a space.
fn decoded(text: &str, query: bool) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        match first {
            b'%' => {
                let (digits, after) = after.split_at_checked(2)?;
                bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
                rest = after;
            }
            b'+' if query => bytes.push(b' '),
            byte => bytes.push(*byte),
        }
    }
    String::from_utf8(bytes).ok()
}
