//! API objects that pods of an API server reference: each ConfigMap and Secret is followed alone, because a node may read no
//! others; tokens of their service accounts; and the services of their namespaces, for environment variables.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::json;
use smol::channel::Sender;

use super::object;
use crate::decode::Node;
use crate::kube::{
    AuthorizerLag, Client, Collection, Content, Follower, KubeError, Resource, RetryWait, Watches,
    follow_or_list, subresource_path,
};
use crate::limits::{
    KUBE_SERVICES_MAX, KUBE_WATCHES_ALL_MAX, KUBE_WATCHES_MAX, TOKEN_AGE_MAX, TOKEN_RETRY_MAX,
};
use crate::model::SortedMap;
use crate::model::object::{Services, Token, TokenRequest};
use crate::model::{Object, ObjectKey, ObjectKind};

/// State of an object in the API server.
#[derive(Clone, Debug, PartialEq)]
pub enum ObjectState {
    /// It exists.
    Present(Object),
    /// It does not exist.
    Missing,
    /// Unknown: the server denies access.
    Refused,
}

/// States of followed objects that the loop has not taken yet. One entry for each object.
#[derive(Clone)]
pub struct ObjectStates {
    found: Rc<RefCell<SortedMap<ObjectKey, ObjectState>>>,
    /// Bounded by one: there are entries to take.
    news: Sender<()>,
}

impl ObjectStates {
    /// `news`, which holds one message, is notified of new entries.
    pub fn new(news: Sender<()>) -> Self {
        Self { found: Rc::default(), news }
    }

    pub(super) fn put(&self, key: &ObjectKey, state: ObjectState) {
        self.found.borrow_mut().insert(key.clone(), state);
        // Full: a notification is pending already.
        let _ = self.news.try_send(());
    }

    /// Takes all entries.
    pub fn take(&self) -> SortedMap<ObjectKey, ObjectState> {
        std::mem::take(&mut self.found.borrow_mut())
    }
}

/// Follows a ConfigMap, a Secret, a runtime class or services until it is dropped.
pub async fn follow_object(client: Client, key: ObjectKey, watches: Watches, found: ObjectStates) {
    let resource = match key.kind {
        ObjectKind::ConfigMap => Resource::CONFIG_MAPS,
        ObjectKind::Secret => Resource::SECRETS,
        ObjectKind::Services => Resource::SERVICES,
        ObjectKind::RuntimeClass => Resource::RUNTIME_CLASSES,
        // These are polled, not followed.
        ObjectKind::Token | ObjectKind::Claim => return,
    };
    let selector = if key.name.is_empty() { String::new() } else { format!("metadata.name={}", key.name) };
    let collection = Collection {
        namespace: (*key.namespace).into(),
        field_selector: selector.into(),
        ..Collection::all(resource)
    };
    let may_be_many = matches!(key.kind, ObjectKind::ConfigMap | ObjectKind::Secret);
    let watches_max = if may_be_many { KUBE_WATCHES_MAX } else { KUBE_WATCHES_ALL_MAX };
    let mut follower = follower(key, found);
    follow_or_list::<()>(&client, &collection, &mut *follower, Some((&watches, watches_max))).await;
}

/// The follower of that object, or of those services.
pub fn follower(key: ObjectKey, found: ObjectStates) -> Box<dyn Follower> {
    if key.kind == ObjectKind::Services {
        Box::new(ServicesFollower { key, now: SortedMap::new(), reported: None, refused: false, found })
    } else {
        let lag = AuthorizerLag::default();
        Box::new(ObjectFollower { key, now: None, reported: None, refused: 0, lag, found })
    }
}

struct ObjectFollower {
    key: ObjectKey,
    /// The current object.
    now: Option<Object>,
    /// The last reported state.
    reported: Option<ObjectState>,
    /// Consecutive denials; two count as any number.
    refused: u8,
    lag: AuthorizerLag,
    found: ObjectStates,
}

impl Follower for ObjectFollower {
    fn list_begins(&mut self) {
        self.now = None;
    }

    fn apply(&mut self, tree: Node) {
        match object::read(self.key.kind, &tree) {
            Ok(object) if object.key(self.key.side) == self.key => self.now = Some(object),
            Ok(_) => {}
            Err(errors) => {
                for error in errors {
                    log::warn!("{}: {error}; it is left out", self.key);
                }
            }
        }
    }

    fn delete(&mut self, _: &Node) {
        self.now = None;
    }

    fn settled(&mut self) {
        self.lag.reset();
        let now = self.now.clone().map_or(ObjectState::Missing, ObjectState::Present);
        if self.reported.as_ref() != Some(&now) {
            self.reported = Some(now.clone());
            self.found.put(&self.key, now);
        }
    }

    fn lost(&mut self, why: &KubeError) {
        self.refused = self.refused.saturating_add(match why {
            // The fast retries are used up.
            KubeError::Refused { code: 403, .. } => 2,
            KubeError::Refused { .. } => 1,
            KubeError::Unreachable(_)
            | KubeError::Protocol(_)
            | KubeError::Config(_)
            | KubeError::Untrusted(_)
            | KubeError::NotJoined(_) => 0,
        });
        if self.refused > 1 && self.reported.is_none() {
            log::warn!("{}: {why}; pods that reference it wait", self.key);
            self.reported = Some(ObjectState::Refused);
            self.found.put(&self.key, ObjectState::Refused);
        } else {
            log::debug!("{}: {why}", self.key);
        }
    }

    fn again_in(&mut self, why: &KubeError) -> Option<Duration> {
        self.lag.wait(why)
    }

    /// As the kubelet, which stops its reflector for an immutable object (`objectCache.Get`).
    fn is_final(&self) -> bool {
        self.now.as_ref().is_some_and(Object::is_immutable)
    }
}

/// Services of a namespace.
struct ServicesFollower {
    key: ObjectKey,
    /// Current services, at most `KUBE_SERVICES_MAX`. Full: a further one is skipped.
    now: SortedMap<Box<str>, Service>,
    reported: Option<Vec<Service>>,
    refused: bool,
    found: ObjectStates,
}

impl Follower for ServicesFollower {
    fn list_begins(&mut self) {
        self.now.clear();
    }

    fn apply(&mut self, object: Node) {
        let Some(service) = service(&object) else { return };
        let name: Box<str> = service.metadata.name.as_deref().unwrap_or_default().into();
        if self.now.len() < KUBE_SERVICES_MAX || self.now.contains_key(&name) {
            self.now.insert(name, service);
        }
    }

    fn delete(&mut self, object: &Node) {
        if let Some(name) = service(object).and_then(|service| service.metadata.name) {
            self.now.remove(&*name);
        }
    }

    fn settled(&mut self) {
        let now: Vec<Service> = self.now.values().cloned().collect();
        if self.reported.as_ref() != Some(&now) {
            self.reported = Some(now.clone());
            let (namespace, name) = (self.key.namespace.clone(), self.key.name.clone());
            let services = Services { namespace, name, list: now };
            self.found.put(&self.key, ObjectState::Present(Object::Services(Arc::new(services))));
        }
    }

    fn lost(&mut self, why: &KubeError) {
        log::debug!("{}: {why}", self.key);
        let is_news = self.reported.is_none() && !self.refused && matches!(why, KubeError::Refused { .. });
        if is_news {
            log::warn!("{}: {why}; pods start without service environment variables", self.key);
            self.refused = true;
            self.found.put(&self.key, ObjectState::Refused);
        }
    }
}

/// The fields for environment variables; parsed by hand, because deserializing the whole type would add its code to the binary.
fn service(object: &Node) -> Option<Service> {
    let text = |of: &Node, field: &str| of.field(field).and_then(Node::text).map(str::to_owned);
    let metadata = object.field("metadata")?;
    let spec = object.field("spec")?;
    let port = |port: &Node| {
        let Some(Node::Int(number)) = port.field("port") else { return None };
        let (name, protocol) = (text(port, "name"), text(port, "protocol"));
        Some(ServicePort { name, protocol, port: i32::try_from(*number).ok()?, ..ServicePort::default() })
    };
    let ports = spec.field("ports").map(Node::items).unwrap_or_default();
    Some(Service {
        metadata: ObjectMeta {
            name: text(metadata, "name"),
            namespace: text(metadata, "namespace"),
            ..ObjectMeta::default()
        },
        spec: Some(ServiceSpec {
            cluster_ip: text(spec, "clusterIP"),
            ports: Some(ports.iter().filter_map(port).collect()),
            ..ServiceSpec::default()
        }),
        status: None,
    })
}

/// Requests a token, and the next one before it expires, until it is dropped.
///
/// The task sleeps for nearly all of its time, once per pod: a request and its call have their own memory, while they last.
pub async fn keep_token(
    client: Client,
    pod: Box<str>,
    key: ObjectKey,
    wish: TokenRequest,
    found: ObjectStates,
) {
    let mut wait = RetryWait::new(crate::kube::seed(&key.name));
    let (mut has_one, mut lag) = (false, AuthorizerLag::default());
    loop {
        let pause = match Box::pin(token(&client, &pod, &key, &wish)).await {
            Ok(value) => {
                wait.succeeded();
                lag.reset();
                has_one = true;
                let token = Token { namespace: key.namespace.clone(), name: key.name.clone(), value };
                found.put(&key, ObjectState::Present(Object::Token(Arc::new(token))));
                renewal(wish.seconds)
            }
            Err(why) => {
                log::debug!("token of {} in {}: {why}", wish.account, key.namespace);
                // "bound to a pod scheduled on a different node", "no relationship found".
                let soon = lag.wait(&why);
                if !has_one && soon.is_none() {
                    found.put(&key, ObjectState::Refused);
                }
                soon.unwrap_or_else(|| wait.failed().min(TOKEN_RETRY_MAX))
            }
        };
        client.clock().sleep(pause).await;
    }
}

/// One `TokenRequest` for the pod.
async fn token(
    client: &Client,
    pod: &str,
    key: &ObjectKey,
    wish: &TokenRequest,
) -> Result<Box<str>, KubeError> {
    let path = subresource_path(Resource::SERVICE_ACCOUNTS, &key.namespace, &wish.account, "token");
    let audiences: Vec<&str> =
        [&*wish.audience].into_iter().filter(|audience| !audience.is_empty()).collect();
    let request = Content::json(&json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": {
            "audiences": audiences, "expirationSeconds": wish.seconds,
            "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": &*wish.pod},
        },
    }));
    let answer = client.call(Method::POST, &path, Some(request)).await?;
    let token = answer.field("status").and_then(|status| status.field("token")).and_then(Node::text);
    token
        .map(Box::<str>::from)
        .ok_or_else(|| KubeError::Protocol("a TokenRequest without a token".to_owned()))
}

/// When a token is renewed: after four fifths of its lifetime, and after a day at most (`requiresRefresh`).
fn renewal(seconds: i64) -> Duration {
    let seconds = u64::try_from(seconds).unwrap_or_default();
    (Duration::from_secs(seconds) * 4 / 5).min(TOKEN_AGE_MAX)
}
