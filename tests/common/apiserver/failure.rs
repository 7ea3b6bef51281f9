//! Errors, as a `v1.Status` with the real server's messages: clients use reason and code, people the message.

use serde_json::{Value, json};

use super::resource::Resource;

/// A request's failure.
#[derive(Clone, Debug)]
pub struct Failure {
    pub code: u16,
    pub reason: String,
    pub message: String,
    details: Value,
}

pub type Outcome<T> = Result<T, Failure>;

impl Failure {
    pub fn new(code: u16, reason: &str, message: impl Into<String>) -> Self {
        Self { code, reason: reason.to_owned(), message: message.into(), details: Value::Null }
    }

    fn of(resource: &Resource, name: &str, code: u16, reason: &str, message: String) -> Self {
        let mut details = json!({"name": name, "kind": resource.plural});
        if !resource.group.is_empty() {
            details["group"] = resource.group.into();
        }
        Self { details, ..Self::new(code, reason, message) }
    }

    pub fn not_found(resource: &Resource, name: &str) -> Self {
        let message = format!("{} {name:?} not found", resource.qualified());
        Self::of(resource, name, 404, "NotFound", message)
    }

    pub fn already_exists(resource: &Resource, name: &str) -> Self {
        let message = format!("{} {name:?} already exists", resource.qualified());
        Self::of(resource, name, 409, "AlreadyExists", message)
    }

    pub fn conflict(resource: &Resource, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} {name:?}: {why}", resource.qualified());
        Self::of(resource, name, 409, "Conflict", message)
    }

    /// A conflict with another write.
    pub fn modified(resource: &Resource, name: &str) -> Self {
        let why =
            "the object has been modified; please apply your changes to the latest version and try again";
        Self::conflict(resource, name, why)
    }

    /// The object of that name has another UID.
    pub fn other_uid(resource: &Resource, name: &str, wanted: &str, found: &str) -> Self {
        let why = format!("Precondition failed: UID in precondition: {wanted}, UID in object meta: {found}");
        Self::conflict(resource, name, &why)
    }

    pub fn invalid(resource: &Resource, name: &str, why: &str) -> Self {
        let message = match resource.group {
            "" => format!("{} {name:?} is invalid: {why}", resource.kind),
            group => format!("{}.{group} {name:?} is invalid: {why}", resource.kind),
        };
        Self::of(resource, name, 422, "Invalid", message)
    }

    pub fn forbidden(resource: &Resource, name: &str, why: &str) -> Self {
        let subject = if name.is_empty() { String::new() } else { format!(" {name:?}") };
        let message = format!("{}{subject} is forbidden: {why}", resource.qualified());
        Self::of(resource, name, 403, "Forbidden", message)
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    pub fn unknown_path() -> Self {
        Self::new(404, "NotFound", "the server could not find the requested resource")
    }

    pub fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::new(405, "MethodNotAllowed", message)
    }

    pub fn not_acceptable() -> Self {
        Self::new(406, "NotAcceptable", "only the following media types are accepted: application/json")
    }

    pub fn unsupported_media_type(accepted: &str) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {accepted}"
        );
        Self::new(415, "UnsupportedMediaType", message)
    }

    pub fn too_large(limit: usize) -> Self {
        let message = format!("Request entity too large: limit is {limit}");
        Self::new(413, "RequestEntityTooLarge", message)
    }

    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    /// Error of a watch from a revision before the history.
    pub fn too_old(asked: u64, begin: u64) -> Self {
        Self::expired(format!("too old resource version: {asked} ({begin})"))
    }

    /// The requested revision is in the future. The real server waits a while first.
    pub fn too_new(asked: u64, current: u64) -> Self {
        let message = format!("Timeout: Too large resource version: {asked}, current: {current}");
        let details = json!({"causes": [{"reason": "ResourceVersionTooLarge",
            "message": "Too large resource version"}], "retryAfterSeconds": 1});
        Self { details, ..Self::new(504, "Timeout", message) }
    }

    /// An injected failure.
    pub fn wanted(code: u16, reason: &str) -> Self {
        let mut failure = Self::new(code, reason, format!("the test wants this to fail: {reason}"));
        if failure.retry_after() {
            failure.details = json!({"retryAfterSeconds": 1});
        }
        failure
    }

    /// True when the response has the header `Retry-After`.
    pub fn retry_after(&self) -> bool {
        matches!(self.code, 429 | 504) || (self.code == 503 && self.reason == "ServiceUnavailable")
    }

    pub fn status(&self) -> Value {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        });
        if !self.details.is_null() {
            status["details"] = self.details.clone();
        }
        status
    }
}
