//! Authentication and authorization of requests: client certificates, bearer tokens, `SubjectAccessReview`s
//! (`server.InstallAuthFilter`, `BuildAuth`).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use futures_rustls::pki_types::CertificateDer;
use hyper::Method;
use hyper::header::{AUTHORIZATION, HeaderMap};
use serde_json::{Value, json};
use smol::lock::Semaphore;

use super::decision_cache::{DecisionCache, key};
use super::peers::{Origin, Peers};
use super::request;
use super::request::Refusal;
use super::tls::Clients;
use crate::clock::SharedClock;
use crate::config::{Authorization, NodeApi};
use crate::decode::Node;
use crate::kube::{Client, Content, KubeError, Resource};
use crate::limits::{
    NODE_DECISIONS_MAX, NODE_REVIEWS_MAX, NODE_UNKNOWN_REVIEWS_MAX, NODE_USER_BYTES_MAX, NODE_USERS_MAX,
};
use crate::metrics::NodeApiUse;
use crate::x509;

/// The group of all authenticated users.
const AUTHENTICATED: &str = "system:authenticated";

/// The user of requests without credentials, where anonymous requests are allowed.
const ANONYMOUS: &str = "system:anonymous";

/// A user (`user.Info`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct User {
    pub(super) name: String,
    uid: String,
    groups: Vec<String>,
    extra: BTreeMap<String, Vec<String>>,
}

impl User {
    fn new(name: String, mut groups: Vec<String>) -> Self {
        if !groups.iter().any(|group| group == AUTHENTICATED) {
            groups.push(AUTHENTICATED.to_owned());
        }
        Self { name, groups, ..Self::default() }
    }

    /// The user is not anonymous.
    fn is_named(&self) -> bool {
        self.name != ANONYMOUS
    }

    fn anonymous() -> Self {
        Self {
            name: ANONYMOUS.to_owned(),
            groups: vec!["system:unauthenticated".to_owned()],
            ..Self::default()
        }
    }

    /// The user that a verified certificate names.
    pub(super) fn of_certificate(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (name, groups) = x509::subject(certificate)?;
        let user = Self::new(name, groups);
        user.is_bounded().then_some(user)
    }

    /// `TokenReview.status`.
    fn of_review(status: &Node) -> Option<Self> {
        let user =
            status.field("user").filter(|_| status.field("authenticated") == Some(&Node::Bool(true)))?;
        let text = |field| user.field(field).and_then(Node::text).unwrap_or_default().to_owned();
        let texts = |list: &Node| list.items().iter().filter_map(Node::text).map(str::to_owned).collect();
        let mut known = Self::new(text("username"), user.field("groups").map(texts).unwrap_or_default());
        known.uid = text("uid");
        if let Some(Node::Map(extra)) = user.field("extra") {
            known.extra = extra.iter().map(|(name, values)| (name.to_string(), texts(values))).collect();
        }
        if !known.is_bounded() {
            log::warn!("node API: user {:?} has too many groups or attributes to be cached", known.name);
            return None;
        }
        (!known.name.is_empty()).then_some(known)
    }

    fn is_bounded(&self) -> bool {
        let list =
            |texts: &[String]| texts.iter().map(|text| text.len() + size_of::<String>()).sum::<usize>();
        let extra = self.extra.iter().map(|(name, values)| name.len() + list(values) + 64).sum::<usize>();
        self.name.len() + self.uid.len() + list(&self.groups) + extra <= NODE_USER_BYTES_MAX
    }

    /// The spec of a `SubjectAccessReview`.
    fn review(&self, node: &str, verb: &str, subresource: &str) -> Value {
        json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
            "spec": {
                "user": self.name, "uid": self.uid, "groups": self.groups, "extra": self.extra,
                "resourceAttributes": {
                    "verb": verb, "version": "v1", "resource": "nodes", "subresource": subresource, "name": node,
                },
            },
        })
    }
}

/// The client certificate of a connection.
pub(super) enum PeerCertificate {
    /// No certificate.
    Nothing,
    /// A certificate signed by a client authority, with a user name.
    User(User),
    /// A certificate that does not authenticate a user.
    Unverified,
}

impl PeerCertificate {
    /// Verifies the chain, the client's own certificate first. The handshake has proven that the client has its key.
    pub(super) fn of(clients: Option<&Clients>, chain: Option<&[CertificateDer<'_>]>) -> Self {
        match (clients, chain.and_then(<[_]>::split_first)) {
            (Some(clients), Some((own, others))) => {
                let user = clients.verify(own, others).then(|| User::of_certificate(own)).flatten();
                user.map_or(Self::Unverified, Self::User)
            }
            (None, _) | (_, None) => Self::Nothing,
        }
    }
}

/// The authentication and authorization filter.
pub(super) struct Gate {
    client: Client,
    clock: SharedClock,
    settings: NodeApi,
    node: Box<str>,
    users: RefCell<DecisionCache<User>>,
    /// Rejected tokens, in a cache of their own, so that a client that tries many evicts no user.
    unknown: RefCell<DecisionCache<()>>,
    decisions: RefCell<DecisionCache<bool>>,
    reviews: Arc<Semaphore>,
    /// Slots of `reviews` that unknown addresses may use.
    strangers_reviews: Arc<Semaphore>,
    peers: Rc<RefCell<Peers>>,
}

impl Gate {
    pub(super) fn new(
        client: Client,
        clock: SharedClock,
        settings: NodeApi,
        node: Box<str>,
        peers: Rc<RefCell<Peers>>,
        held: &NodeApiUse,
    ) -> Self {
        Self {
            client,
            clock,
            settings,
            node,
            users: RefCell::new(DecisionCache::new(NODE_USERS_MAX, held.users.clone())),
            unknown: RefCell::new(DecisionCache::new(NODE_USERS_MAX, held.users.clone())),
            decisions: RefCell::new(DecisionCache::new(NODE_DECISIONS_MAX, held.decisions.clone())),
            reviews: Arc::new(Semaphore::new(NODE_REVIEWS_MAX)),
            strangers_reviews: Arc::new(Semaphore::new(NODE_UNKNOWN_REVIEWS_MAX)),
            peers,
        }
    }

    /// Authenticates and authorizes the request.
    ///
    /// # Errors
    /// The kubelet's response: 401, 403, or 500 when the API server does not answer; 429 when the rate of `TokenReview`s is
    /// exceeded.
    pub(super) async fn admit(
        &self,
        shown: &PeerCertificate,
        origin: Origin,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<(), Refusal> {
        let user = self.user(shown, origin, headers).await?;
        let user = user.ok_or_else(|| (401, "Unauthorized".to_owned()))?;
        let (verb, parts) = request::attributes(method.as_str(), path);
        for part in &parts {
            match self.allows(&user, verb, part).await {
                Ok(true) => {
                    if user.is_named() {
                        self.peers.borrow_mut().mark_known(origin, self.clock.now().mono);
                    }
                    return Ok(());
                }
                Ok(false) => {}
                Err(error) => {
                    let name = &user.name;
                    log::warn!(
                        "node API: SubjectAccessReview of user {name:?}, {verb} nodes/{part}, failed: {error}"
                    );
                    let why = format!(
                        "Authorization error (user={name}, verb={verb}, resource=nodes, subresource={part})"
                    );
                    return Err((500, why));
                }
            }
        }
        let (name, parts) = (&user.name, parts.join(" "));
        Err((
            403,
            format!("Forbidden (user={name}, verb={verb}, resource=nodes, subresource(s)=[{parts}])\n"),
        ))
    }

    /// Authenticates by the certificate, else by the token; a request with neither may be anonymous.
    async fn user(
        &self,
        shown: &PeerCertificate,
        origin: Origin,
        headers: &HeaderMap,
    ) -> Result<Option<User>, Refusal> {
        if let PeerCertificate::User(user) = shown {
            return Ok(Some(user.clone()));
        }
        let token = headers.get(AUTHORIZATION).and_then(|value| bearer(value.to_str().ok()?));
        match token.filter(|_| self.settings.token_ttl.is_some()) {
            Some(token) => self.user_of(token, origin).await,
            // As the kubelet: invalid credentials do not make a request anonymous.
            None if matches!(shown, PeerCertificate::Unverified) => Ok(None),
            None => Ok(self.settings.anonymous.then(User::anonymous)),
        }
    }

    /// The token's user (`TokenReview`).
    async fn user_of(&self, token: &str, origin: Origin) -> Result<Option<User>, Refusal> {
        let Some(ttl) = self.settings.token_ttl else { return Ok(None) };
        let place = key(&[token]);
        let known = |gate: &Self| {
            let now = gate.clock.now().mono;
            let user = gate.users.borrow().get(&place, now).map(Some);
            user.or_else(|| gate.unknown.borrow().get(&place, now).map(|()| None))
        };
        if let Some(known) = known(self) {
            return Ok(known);
        }
        let is_stranger = !self.peers.borrow().is_known(origin);
        let _turn_of_strangers =
            if is_stranger { Some(self.strangers_reviews.acquire().await) } else { None };
        let _turn = self.reviews.acquire().await;
        // A request before it in the queue may have reviewed the same token.
        if let Some(known) = known(self) {
            return Ok(known);
        }
        if !self.peers.borrow_mut().try_review(origin, self.clock.now().mono) {
            return Err((429, "TokenReview rate limit of this address exceeded; retry\n".to_owned()));
        }
        let review = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token},
        });
        match self.ask(Resource::TOKEN_REVIEWS, &review).await {
            Ok(answer) => {
                let (status, now) = (answer.field("status"), self.clock.now().mono);
                let user = status.and_then(User::of_review);
                // As the kubelet: an error is not a decision, and is not cached.
                let error = status.and_then(|status| status.field("error")).and_then(Node::text);
                match &user {
                    Some(user) => self.users.borrow_mut().put(place, user.clone(), now, ttl),
                    None if error.is_none_or(str::is_empty) => {
                        self.unknown.borrow_mut().put(place, (), now, ttl);
                    }
                    None => {}
                }
                Ok(user)
            }
            Err(error) => {
                log::warn!("node API: TokenReview failed: {error}");
                Ok(None)
            }
        }
    }

    /// Authorization decision (`SubjectAccessReview`).
    async fn allows(&self, user: &User, verb: &str, part: &str) -> Result<bool, KubeError> {
        let Authorization::Asked { allowed_ttl, denied_ttl } = self.settings.authorization else {
            return Ok(true);
        };
        let review = user.review(&self.node, verb, part);
        let place = key(&[&review.to_string()]);
        let known = |gate: &Self| gate.decisions.borrow().get(&place, gate.clock.now().mono);
        if let Some(known) = known(self) {
            return Ok(known);
        }
        let _turn = self.reviews.acquire().await;
        if let Some(known) = known(self) {
            return Ok(known);
        }
        let answer = self.ask(Resource::ACCESS_REVIEWS, &review).await?;
        let allowed = answer.field("status").and_then(|status| status.field("allowed"));
        let allowed = allowed == Some(&Node::Bool(true));
        let ttl = if allowed { allowed_ttl } else { denied_ttl };
        self.decisions.borrow_mut().put(place, allowed, self.clock.now().mono, ttl);
        Ok(allowed)
    }

    async fn ask(&self, kind: Resource, review: &Value) -> Result<Node, KubeError> {
        self.client.call(Method::POST, &kind.path(""), Some(Content::json(review))).await
    }
}

/// The token of an `Authorization` header (`bearertoken.AuthenticateRequest`). PURE.
fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.trim().split_once(' ')?;
    let token = token.trim_start();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty() && !token.contains(' ')).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_what_stands_behind_the_word_bearer() {
        for (value, token) in [
            ("Bearer abc", Some("abc")),
            ("bearer  abc ", Some("abc")),
            ("Bearer", None),
            ("Bearer ", None),
            ("Basic abc", None),
            ("Bearer a b", None),
            ("", None),
        ] {
            assert_eq!(bearer(value), token, "{value:?}");
        }
    }

    fn reviewed(text: &str) -> Option<User> {
        User::of_review(&crate::decode::json::read(text.as_bytes()).unwrap())
    }

    #[test]
    fn a_review_names_a_user_or_nobody() {
        let user = reviewed(
            r#"{"authenticated": true, "user": {"username": "u", "uid": "1", "groups": ["g"], "extra": {"k": ["v"]}}}"#,
        );
        let user = user.expect("somebody");
        assert_eq!((user.name.as_str(), user.uid.as_str()), ("u", "1"));
        assert_eq!(user.groups, ["g", AUTHENTICATED]);
        let spec = user.review("gw", "get", "metrics")["spec"].clone();
        assert_eq!(spec["extra"], json!({"k": ["v"]}));
        assert_eq!(
            spec["resourceAttributes"],
            json!({"verb": "get", "version": "v1", "resource": "nodes", "subresource": "metrics", "name": "gw"})
        );
        let known = reviewed(
            r#"{"authenticated": true, "user": {"username": "u", "groups": ["system:authenticated"]}}"#,
        );
        assert_eq!(known.expect("somebody").groups, [AUTHENTICATED], "not twice");
        let many = format!(
            r#"{{"authenticated": true, "user": {{"username": "u", "groups": [{}]}}}}"#,
            vec![r#""group""#; NODE_USER_BYTES_MAX / 8].join(",")
        );
        for nobody in [
            r#"{"authenticated": false, "user": {"username": "u"}}"#,
            r#"{"authenticated": "true", "user": {"username": "u"}}"#,
            r#"{"user": {"username": "u"}}"#,
            r#"{"authenticated": true, "user": {}}"#,
            r#"{"authenticated": true}"#,
            r#"{"error": "invalid bearer token"}"#,
            &many,
        ] {
            assert_eq!(reviewed(nobody), None);
        }
    }
}
