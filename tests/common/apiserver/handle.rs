//! Processes a request: authentication, authorization, injected faults, and the response.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_rustls::pki_types::CertificateDer;
use http_body_util::{BodyExt as _, Either, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{Method, Response, StatusCode};
use serde_json::{Value, json};
use smol::channel::Sender;

use super::authorize::{Attempt, authorize};
use super::failure::{Failure, Outcome};
use super::patch::PatchKind;
use super::resource::{Query, Resource, Route};
use super::store::{Key, Scope, text};
use super::watch::{Begin, Watch};
use super::write::{Deletion, Part};
use super::{Expired, Fault, Shared, State, User};

/// The real server's limit on a body.
const BODY_BYTES_MAX: usize = 3 * 1024 * 1024;
/// Default duration of a watch.
const WATCH_SECONDS_MAX: u64 = 3600;

pub type Answer = Either<Full<Bytes>, Watch>;

/// The peer of a connection.
pub struct Peer {
    pub certificates: Vec<CertificateDer<'static>>,
    /// Closed: the connection is closed.
    pub cut: Sender<Infallible>,
}

/// Result of a request.
enum Reply {
    Object(u16, Value),
    Text(&'static str),
    Watch(Box<Watch>),
}

/// A parsed request.
struct ParsedRequest<'a> {
    method: &'a Method,
    route: &'a Route,
    query: &'a Query,
    content_type: &'a str,
    user: &'a User,
    verb: &'static str,
    body: Value,
}

pub async fn serve(
    shared: Arc<Shared>,
    peer: Rc<Peer>,
    request: hyper::Request<Incoming>,
) -> Result<Response<Answer>, Infallible> {
    let (head, body) = request.into_parts();
    let path = head.uri.path().to_owned();
    let text = head.uri.query().unwrap_or_default().to_owned();
    let content_type = header(&head.headers, &CONTENT_TYPE).to_owned();
    let user = who(&shared, &peer, &head.headers);
    let route = Route::of(&path);
    let query = route.as_ref().map_err(Clone::clone).and_then(|route| Query::of(&text, route.resource));
    let verb = verb(&head.method, &route, &query);
    let number = {
        let name = user.as_ref().map(|user| user.name.clone()).unwrap_or_default();
        let now = shared.clock.now().mono;
        shared.state().note(&head.method, verb, (&path, &text), name, &content_type, now)
    };

    let read = Limited::new(body, BODY_BYTES_MAX).collect().await;
    let read =
        read.map(|body| body.to_bytes()).map_err(|error| match error.downcast_ref::<LengthLimitError>() {
            Some(_) => Failure::too_large(BODY_BYTES_MAX),
            None => Failure::bad_request("the request's body broke off"),
        });
    let read = read.and_then(|bytes| json_of(&bytes).map(|value| (bytes.len(), value)));
    if let Ok((length, value)) = &read {
        shared.state().note_body(number, *length, value);
    }
    let delay = shared.state().delay;
    if delay > Duration::ZERO {
        shared.clock.shared().sleep(delay).await;
    }
    let fault = shared.state().fault(&head.method, verb, &path);

    let reply = match (&fault, user) {
        (Some(Fault::Fail { code, reason }), _) => Err(Failure::wanted(*code, reason)),
        (_, None) if !is_public(&path) => Err(Failure::unauthorized()),
        (_, user) => read.and_then(|(_, body)| {
            accepts_json(&head.headers)?;
            if let Some(reply) = plain(&head.method, &path) {
                return reply;
            }
            let (route, query) = (route?, query?);
            let user = user.as_ref().ok_or_else(Failure::unauthorized)?;
            let content_type = &content_type;
            act(
                &shared,
                ParsedRequest {
                    method: &head.method,
                    route: &route,
                    query: &query,
                    content_type,
                    user,
                    verb,
                    body,
                },
            )
        }),
    };
    if matches!(fault, Some(Fault::Lose)) {
        peer.cut.close();
        std::future::pending::<()>().await;
    }
    let response = response(reply);
    shared.state().answered(number, response.status().as_u16());
    Ok(response)
}

fn header<'a>(headers: &'a HeaderMap, name: &HeaderName) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// A client certificate takes precedence over a token, as in the real server.
fn who(shared: &Shared, peer: &Peer, headers: &HeaderMap) -> Option<User> {
    let by_certificate = shared.pki.verifier.user(&peer.certificates, shared.clock.now().wall);
    by_certificate.or_else(|| {
        let (scheme, token) = header(headers, &AUTHORIZATION).split_once(' ')?;
        let state = shared.state();
        state.access.tokens.get(token.trim()).filter(|_| scheme.eq_ignore_ascii_case("bearer")).cloned()
    })
}

/// Paths without authorization.
fn is_public(path: &str) -> bool {
    matches!(path, "/healthz" | "/livez" | "/readyz" | "/version")
}

fn plain(method: &Method, path: &str) -> Option<Outcome<Reply>> {
    if !is_public(path) {
        return None;
    }
    Some(match (method, path) {
        (&Method::GET, "/version") => Ok(Reply::Object(
            200,
            json!({"major": "1", "minor": "36", "gitVersion": "v1.36.2", "platform": "linux/amd64"}),
        )),
        (&Method::GET, _) => Ok(Reply::Text("ok")),
        _ => Err(Failure::method_not_allowed()),
    })
}

/// The Kubernetes verb, which rules and tests use.
fn verb(method: &Method, route: &Outcome<Route>, query: &Outcome<Query>) -> &'static str {
    let watches = query.as_ref().is_ok_and(|query| query.watch);
    let named = route.as_ref().is_ok_and(|route| route.name.is_some());
    match *method {
        Method::GET if watches => "watch",
        Method::GET if named || route.is_err() => "get",
        Method::GET => "list",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "other",
    }
}

fn accepts_json(headers: &HeaderMap) -> Outcome<()> {
    let accepted = header(headers, &ACCEPT);
    let json = ["*/*", "application/*", "application/json"].iter().any(|kind| accepted.contains(kind));
    if accepted.is_empty() || json { Ok(()) } else { Err(Failure::not_acceptable()) }
}

fn json_of(bytes: &[u8]) -> Outcome<Value> {
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    serde_json::from_slice(bytes).map_err(|error| {
        Failure::bad_request(format!("the object provided is unrecognized (json parse error: {error})"))
    })
}

fn act(shared: &Arc<Shared>, asked: ParsedRequest<'_>) -> Outcome<Reply> {
    let ParsedRequest { method, route, query, content_type, user, verb, .. } = asked;
    let resource = route.resource;
    if shared.state().authorizes_nodes {
        let attempt = Attempt { user, verb, route, query, body: &asked.body };
        authorize(&shared.state().store, &attempt)?;
        shared.state().lag.authorize(&attempt)?;
    }
    // Patches have their own content types.
    if !matches!(content_type.split(';').next().unwrap_or_default().trim(), "" | "application/json")
        && matches!(*method, Method::POST | Method::PUT)
    {
        return Err(Failure::unsupported_media_type("application/json"));
    }
    if verb == "watch" {
        return watch(shared, route, query);
    }
    let now = shared.clock.now().wall;
    let mut state = shared.state();
    let state = &mut *state;
    let key = |name: &str| -> Key { (route.namespace.clone(), name.to_owned()) };
    let part = match (route.subresource.as_deref(), resource.status) {
        (None, _) => Some(Part::Main),
        (Some("status"), true) => Some(Part::Status),
        _ => None,
    };
    let object = |code: u16, object: &Value| Reply::Object(code, object.clone());
    match (method, route.name.as_deref(), part) {
        _ if resource.is_review() => match (method, &route.name) {
            (&Method::POST, None) => {
                state.access.review(resource.kind, asked.body).map(|answer| Reply::Object(201, answer))
            }
            _ => Err(Failure::method_not_allowed()),
        },
        (&Method::GET, None, _) => {
            let answer = state.store.list(&scope(route, query), query)?;
            Ok(Reply::Object(200, answer))
        }
        (&Method::GET, Some(name), Some(_)) => {
            state.store.read(resource, &route.namespace, name).map(|found| object(200, &found))
        }
        (&Method::POST, None, _) if resource.namespaced && route.namespace.is_empty() => {
            Err(Failure::method_not_allowed())
        }
        (&Method::POST, None, _) => {
            let sent = signed_by(resource, user, asked.body);
            state.store.create(resource, &route.namespace, sent, now).map(|made| object(201, &made))
        }
        (&Method::POST, Some(account), None)
            if resource.plural == "serviceaccounts" && route.subresource.as_deref() == Some("token") =>
        {
            let State { store, access, .. } = state;
            access.token(store, &key(account), asked.body, now).map(|token| Reply::Object(201, token))
        }
        (&Method::PUT, Some(name), Some(part)) => {
            state.store.replace(resource, &key(name), asked.body, part, now).map(|made| object(200, &made))
        }
        (&Method::PATCH, Some(name), Some(part)) => {
            let kind = PatchKind::of(content_type)
                .ok_or_else(|| Failure::unsupported_media_type(PatchKind::ACCEPTED))?;
            let made = state.store.patch(resource, &key(name), (&asked.body, kind), part)?;
            Ok(object(200, &made))
        }
        (&Method::DELETE, Some(name), Some(Part::Main)) => {
            let how = deletion(&asked.body, query);
            let (last, gone) = state.store.delete(resource, &key(name), &how, now)?;
            Ok(Reply::Object(200, deleted(resource, &last, gone)))
        }
        (_, _, None) => Err(Failure::unknown_path()),
        _ => Err(Failure::method_not_allowed()),
    }
}

/// Sets the requester of a certificate signing request.
fn signed_by(resource: &Resource, user: &User, mut object: Value) -> Value {
    if resource.plural == "certificatesigningrequests"
        && let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut)
    {
        spec.insert("username".into(), user.name.clone().into());
        spec.insert("groups".into(), user.groups.clone().into());
    }
    object
}

/// A deleted pod is answered with the object, other removed objects with a success.
fn deleted(resource: &Resource, last: &Value, gone: bool) -> Value {
    if !gone || resource.plural == "pods" {
        return last.clone();
    }
    let mut details = json!({"name": text(last, "/metadata/name"), "kind": resource.plural, "uid": text(last, "/metadata/uid")});
    if !resource.group.is_empty() {
        details["group"] = resource.group.into();
    }
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}

fn deletion(options: &Value, query: &Query) -> Deletion {
    let word = |pointer: &str| options.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    Deletion {
        grace_seconds: options.get("gracePeriodSeconds").and_then(Value::as_i64).or(query.grace_seconds),
        uid: word("/preconditions/uid"),
        resource_version: word("/preconditions/resourceVersion"),
    }
}

fn scope(route: &Route, query: &Query) -> Scope {
    let mut selector = query.selector.clone();
    if let Some(name) = &route.name {
        selector.name(name);
    }
    Scope { resource: route.resource, namespace: route.namespace.clone(), selector }
}

fn watch(shared: &Arc<Shared>, route: &Route, query: &Query) -> Outcome<Reply> {
    if route.subresource.is_some() || route.resource.is_review() {
        return Err(Failure::method_not_allowed());
    }
    let scope = scope(route, query);
    let begin = {
        let state = shared.state();
        let now = state.store.revision();
        let none = Begin {
            since: now,
            first: VecDeque::new(),
            first_ends: false,
            bookmarks: query.bookmarks,
            failure: None,
        };
        match query.resource_version.filter(|since| *since > 0) {
            // From the current state, which is sent first.
            None => Begin { first: state.store.all(&scope).into(), first_ends: query.initial_events, ..none },
            Some(_) if query.initial_events => {
                Begin { first: state.store.all(&scope).into(), first_ends: true, ..none }
            }
            Some(since) => match state.store.watchable(since) {
                Ok(()) => Begin { since, ..none },
                Err(failure) => match state.expired {
                    Expired::AsStatus => return Err(failure),
                    Expired::AsEvent => Begin { failure: Some(failure), ..none },
                },
            },
        }
    };
    let seconds = query.timeout_seconds.unwrap_or(WATCH_SECONDS_MAX).min(WATCH_SECONDS_MAX);
    let time_is_up = shared.clock.shared().sleep(Duration::from_secs(seconds));
    Ok(Reply::Watch(Box::new(Watch::new(shared.clone(), scope, begin, time_is_up))))
}

fn response(reply: Outcome<Reply>) -> Response<Answer> {
    let json = HeaderValue::from_static("application/json");
    let whole = |value: &Value| Either::Left(Full::new(Bytes::from(value.to_string())));
    let (code, kind, body, again) = match reply {
        Ok(Reply::Object(code, value)) => (code, json, whole(&value), false),
        Ok(Reply::Text(text)) => (
            200,
            HeaderValue::from_static("text/plain; charset=utf-8"),
            Either::Left(Full::new(text.into())),
            false,
        ),
        Ok(Reply::Watch(watch)) => (200, json, Either::Right(*watch), false),
        Err(failure) => (failure.code, json, whole(&failure.status()), failure.retry_after()),
    };
    let mut response = Response::new(body);
    // An invalid status code of a test's fault becomes the server's own error.
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(CONTENT_TYPE, kind);
    if again {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}
