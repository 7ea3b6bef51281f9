//! What the pods of an API server name: each ConfigMap and Secret followed by itself, for a node may read no others, and
//! tokens of their service accounts.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use serde_json::json;
use smol::channel::Sender;

use super::decode::{Node, Path};
use super::object;
use crate::kube::{
    Client, Collection, Content, Follower, KubeError, Resource, RetryWait, follow, subresource_path,
};
use crate::limits::{TOKEN_AGE_MAX, TOKEN_RETRY_MAX};
use crate::model::object::{Token, TokenWish};
use crate::model::{Object, ObjectKey, ObjectKind};

/// What was found of the followed objects and is not taken yet; `None` = it is not there. One entry for each of them.
#[derive(Clone)]
pub struct Found {
    found: Rc<RefCell<BTreeMap<ObjectKey, Option<Object>>>>,
    /// Bounded by one: there is something to take.
    news: Sender<()>,
}

impl Found {
    /// `news`, which holds one, is told when there is something to take.
    pub fn new(news: Sender<()>) -> Self {
        Self { found: Rc::default(), news }
    }

    fn put(&self, key: &ObjectKey, object: Option<Object>) {
        self.found.borrow_mut().insert(key.clone(), object);
        // Full: it is known that there is something.
        let _ = self.news.try_send(());
    }

    /// All that was found since the last time.
    pub fn take(&self) -> BTreeMap<ObjectKey, Option<Object>> {
        std::mem::take(&mut self.found.borrow_mut())
    }
}

/// Follows a ConfigMap or Secret until it is dropped.
pub async fn follow_object(client: Client, key: ObjectKey, found: Found) {
    let resource = match key.kind {
        ObjectKind::ConfigMap => Resource::CONFIG_MAPS,
        ObjectKind::Secret => Resource::SECRETS,
        // Nobody follows a token: it is asked for.
        ObjectKind::Token => return,
    };
    let collection = Collection {
        resource,
        namespace: key.namespace.clone(),
        field_selector: format!("metadata.name={}", key.name).into(),
    };
    let mut follower = One { key, now: None, has_told: false, told: None, found };
    follow::<()>(&client, &collection, &mut follower).await;
}

struct One {
    key: ObjectKey,
    /// As it is there.
    now: Option<Object>,
    /// Something was told, and what.
    has_told: bool,
    told: Option<Object>,
    found: Found,
}

impl Follower for One {
    fn list_begins(&mut self) {
        self.now = None;
    }

    fn is_there(&mut self, tree: &Node) {
        match object::read(self.key.kind, tree, Path::default()) {
            Ok(object) if object.key() == self.key => self.now = Some(object),
            Ok(_) => {}
            Err(errors) => {
                for error in errors {
                    log::warn!("{}: {}: {}; it is left out", self.key, error.path, error.message);
                }
            }
        }
    }

    fn is_gone(&mut self, _: &Node) {
        self.now = None;
    }

    fn settled(&mut self) {
        if !self.has_told || self.told != self.now {
            self.has_told = true;
            self.told.clone_from(&self.now);
            self.found.put(&self.key, self.now.clone());
        }
    }

    fn lost(&mut self, why: &KubeError) {
        log::debug!("{}: {why}", self.key);
        // A node may read what a pod of its names, and the server learns of the pod a moment after the node.
        if !self.has_told && why.is_final() {
            self.settled();
        }
    }
}

/// Asks for a token, and for the next before it ends, until it is dropped.
pub async fn keep_token(client: Client, pod: Box<str>, key: ObjectKey, wish: TokenWish, found: Found) {
    let path = subresource_path(Resource::SERVICE_ACCOUNTS, &key.namespace, &wish.account, "token");
    let audiences: Vec<&str> =
        [&*wish.audience].into_iter().filter(|audience| !audience.is_empty()).collect();
    let request = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": {
            "audiences": audiences, "expirationSeconds": wish.seconds,
            "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": &*pod, "uid": &*wish.pod},
        },
    });
    let mut wait = RetryWait::new(crate::kube::seed(&key.name));
    let mut has_one = false;
    loop {
        let asked = client.call(Method::POST, &path, Some(Content::json(&request))).await;
        let answer = asked.and_then(|answer| {
            let told = answer.field("status").and_then(|status| status.field("token")).and_then(Node::text);
            told.map(Box::<str>::from)
                .ok_or_else(|| KubeError::Protocol("a TokenRequest without a token".to_owned()))
        });
        let pause = match answer {
            Ok(value) => {
                wait.succeeded();
                has_one = true;
                let token = Token { namespace: key.namespace.clone(), name: key.name.clone(), value };
                found.put(&key, Some(Object::Token(Arc::new(token))));
                renewal(wish.seconds)
            }
            Err(why) => {
                log::debug!("token of {} in {}: {why}", wish.account, key.namespace);
                if !has_one {
                    found.put(&key, None);
                }
                wait.failed().min(TOKEN_RETRY_MAX)
            }
        };
        client.clock().sleep(pause).await;
    }
}

/// A token is renewed when four fifths of its time are over, and each day (`requiresRefresh`).
fn renewal(seconds: i64) -> Duration {
    let seconds = u64::try_from(seconds).unwrap_or_default();
    (Duration::from_secs(seconds) * 4 / 5).min(TOKEN_AGE_MAX)
}
