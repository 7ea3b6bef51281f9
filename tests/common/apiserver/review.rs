//! Tokens, reviews, and certificate signing requests.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde_json::{Value, json};
use smolet::model::Wall;

use super::User;
use super::failure::{Failure, Outcome};
use super::pki::{Pki, base64, base64_url, unbase64};
use super::store::{Key, Object, Store, known, text};

/// Issued tokens that are recorded. Full: the oldest is dropped from the record, and stays valid.
const ISSUED_MAX: usize = 10_000;
/// The real server's maximum of `spec.expirationSeconds`.
const TOKEN_SECONDS_MIN: i64 = 600;
const TOKEN_SECONDS: i64 = 3600;
/// Default validity of a certificate.
const CERTIFICATE_SECONDS: i64 = 365 * 86_400;
/// Signed certificates are backdated by this, as by the real signer, for nodes whose clocks are slow.
const BACKDATED: Duration = Duration::from_mins(5);

/// Certificates with a shorter validity begin at once.
const SHORT_SECONDS: i64 = 8 * 3600;

#[derive(Default)]
pub struct Access {
    /// Bearer tokens, for requests and TokenReviews.
    pub tokens: BTreeMap<String, User>,
    /// Permissions for SubjectAccessReviews.
    pub grants: Vec<Grant>,
    pub issued: VecDeque<IssuedToken>,
    serial: u64,
}

/// A permission. `*` matches every value of a field.
#[derive(Clone, Debug)]
pub struct Grant {
    /// User or group.
    pub user: String,
    pub verb: String,
    /// `nodes/proxy`, `pods`, or a path.
    pub what: String,
}

/// A service account's token.
#[derive(Clone, Debug)]
pub struct IssuedToken {
    pub namespace: String,
    pub account: String,
    pub token: String,
    pub audiences: Value,
    pub expiration: String,
    /// `spec.boundObjectRef`.
    pub bound: Value,
}

impl Access {
    /// TokenRequest: the request with its status.
    pub fn token(
        &mut self,
        store: &Store,
        (namespace, account): &Key,
        mut request: Value,
        now: Wall,
    ) -> Outcome<Value> {
        let owner = store.read(known("serviceaccounts"), namespace, account)?;
        let Some(spec) = request.get_mut("spec").and_then(Value::as_object_mut) else {
            return Err(Failure::bad_request("a TokenRequest has a spec"));
        };
        let seconds = spec.get("expirationSeconds").and_then(Value::as_i64).unwrap_or(TOKEN_SECONDS);
        if seconds < TOKEN_SECONDS_MIN {
            let message = format!(
                "TokenRequest.authentication.k8s.io {account:?} is invalid: spec.expirationSeconds: Invalid value: {seconds}: may not specify a duration less than 10 minutes"
            );
            return Err(Failure::new(422, "Invalid", message));
        }
        let mut audiences = spec.get("audiences").cloned().unwrap_or_default();
        if audiences.as_array().is_none_or(Vec::is_empty) {
            audiences = json!(["https://kubernetes.default.svc.cluster.local"]);
        }
        let bound = spec.get("boundObjectRef").cloned().unwrap_or_default();
        check_bound(store, namespace, account, &bound)?;
        spec.insert("expirationSeconds".into(), seconds.into());
        spec.insert("audiences".into(), audiences.clone());

        let begin = now.0.div_euclid(1_000_000_000);
        let expiration = Wall((begin + seconds) * 1_000_000_000).to_string();
        self.serial += 1;
        let mut private = json!({
            "namespace": namespace,
            "serviceaccount": {"name": account, "uid": text(&owner, "/metadata/uid")},
        });
        if !bound.is_null() {
            let kind = text(&bound, "/kind").to_ascii_lowercase();
            private[kind] = json!({"name": text(&bound, "/name"), "uid": text(&bound, "/uid")});
        }
        let claims = json!({
            "aud": audiences,
            "exp": begin + seconds,
            "iat": begin,
            "nbf": begin,
            "iss": "https://kubernetes.default.svc.cluster.local",
            "jti": format!("token-{}", self.serial),
            "kubernetes.io": private,
            "sub": format!("system:serviceaccount:{namespace}:{account}"),
        });
        let header = json!({"alg": "RS256", "kid": "unsigned"});
        let part = |value: &Value| base64_url(value.to_string().as_bytes());
        let token = format!("{}.{}.{}", part(&header), part(&claims), base64_url(b"unsigned"));
        if self.issued.len() >= ISSUED_MAX {
            self.issued.pop_front();
        }
        self.issued.push_back(IssuedToken {
            namespace: namespace.clone(),
            account: account.clone(),
            token: token.clone(),
            audiences,
            expiration: expiration.clone(),
            bound,
        });
        request["kind"] = "TokenRequest".into();
        request["apiVersion"] = "authentication.k8s.io/v1".into();
        request["metadata"] =
            json!({"name": account, "namespace": namespace, "creationTimestamp": now.to_string()});
        request["status"] = json!({"token": token, "expirationTimestamp": expiration});
        Ok(request)
    }

    /// TokenReview and SubjectAccessReview: the request with its status.
    pub fn review(&self, kind: &str, mut request: Value) -> Outcome<Value> {
        if !request.is_object() {
            return Err(Failure::bad_request("a review is an object"));
        }
        request["status"] = match kind {
            "TokenReview" => self.token_review(text(&request, "/spec/token")),
            _ => json!({"allowed": self.allows(&request["spec"])}),
        };
        Ok(request)
    }

    fn token_review(&self, token: &str) -> Value {
        match self.tokens.get(token) {
            Some(user) => {
                let groups: Vec<&str> =
                    user.groups.iter().map(String::as_str).chain(["system:authenticated"]).collect();
                json!({"authenticated": true, "user": {"username": user.name, "groups": groups}})
            }
            None => json!({"user": {}, "error": "invalid bearer token"}),
        }
    }

    fn allows(&self, spec: &Value) -> bool {
        let resource = |field: &str| text(spec, &format!("/resourceAttributes/{field}"));
        let (verb, what) = match (resource("resource"), resource("subresource")) {
            ("", _) => (
                text(spec, "/nonResourceAttributes/verb"),
                text(spec, "/nonResourceAttributes/path").to_owned(),
            ),
            (whole, "") => (resource("verb"), whole.to_owned()),
            (whole, part) => (resource("verb"), format!("{whole}/{part}")),
        };
        let groups: Vec<&str> =
            spec["groups"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let fits = |wanted: &str, found: &str| wanted == "*" || wanted == found;
        self.grants.iter().any(|grant| {
            let who = fits(&grant.user, text(spec, "/user")) || groups.contains(&&*grant.user);
            who && fits(&grant.verb, verb) && fits(&grant.what, &what)
        })
    }
}

/// A token is bound to an existing object, and to a pod only of this account.
fn check_bound(store: &Store, namespace: &str, account: &str, bound: &Value) -> Outcome<()> {
    let resource = match text(bound, "/kind") {
        "Pod" => known("pods"),
        "Secret" => known("secrets"),
        "Node" => known("nodes"),
        "" if bound.is_null() => return Ok(()),
        other => return Err(Failure::bad_request(format!("cannot bind token to object of type {other}"))),
    };
    let (name, uid) = (text(bound, "/name"), text(bound, "/uid"));
    let object = store.read(resource, if resource.namespaced { namespace } else { "" }, name)?;
    let found = text(&object, "/metadata/uid");
    if !uid.is_empty() && uid != found {
        let why = format!(
            "the UID in the bound object reference ({uid}) does not match the UID in record. The object might have been deleted and then recreated"
        );
        return Err(Failure::conflict(resource, name, &why));
    }
    if resource.plural == "pods" && text(&object, "/spec/serviceAccountName") != account {
        let message = format!(
            "cannot bind token for serviceaccount {account:?} to pod running with different serviceaccount name."
        );
        return Err(Failure::bad_request(message));
    }
    Ok(())
}

/// Approves a CertificateSigningRequest and signs it with the clients' authority.
///
/// # Errors
/// A sentence: it does not exist, or its request is invalid for the signer.
pub fn approve(
    store: &mut Store,
    pki: &Pki,
    (name, time): (&str, Option<Duration>),
    now: Wall,
) -> Result<Object, String> {
    let found = request(store, name)?;
    let pem = unbase64(text(&found, "/spec/request")).and_then(|bytes| String::from_utf8(bytes).ok());
    let pem = pem.ok_or_else(|| format!("{name}: spec.request is no base64 of PEM"))?;
    let seconds =
        found.pointer("/spec/expirationSeconds").and_then(Value::as_i64).unwrap_or(CERTIFICATE_SECONDS);
    let seconds = time.map_or(seconds, |time| i64::try_from(time.as_secs()).unwrap_or(0));
    let back = if seconds < SHORT_SECONDS { 0 } else { i64::try_from(BACKDATED.as_nanos()).unwrap_or(0) };
    if text(&found, "/spec/signerName") == "kubernetes.io/kube-apiserver-client-kubelet" {
        check_client(&found, &pem)?;
    }
    let valid = (Wall(now.0 - back), Wall(now.0.saturating_add(seconds.saturating_mul(1_000_000_000))));
    let server = text(&found, "/spec/signerName") == "kubernetes.io/kubelet-serving";
    let certificate = pki.clients.sign_request(&pem, server, valid)?;
    let mut object = Value::clone(&found);
    object["status"] = json!({
        "conditions": [condition("Approved", "AutoApproved", now)],
        "certificate": base64(certificate.as_bytes()),
    });
    Ok(store.write(known("certificatesigningrequests"), object))
}

/// The checks of the real signer of nodes' client certificates, and of its approver.
fn check_client(request: &Value, pem: &str) -> Result<(), String> {
    let subject = super::pki::requested(pem).ok_or("spec.request is no certificate signing request")?;
    let (User { name, groups }, has_names) = subject;
    if groups != ["system:nodes"] || !name.starts_with("system:node:") || has_names {
        return Err(format!("the subject {name:?} of {groups:?} is no node's, or has alternative names"));
    }
    let usages = &request["spec"]["usages"];
    let all = ["key encipherment", "digital signature", "client auth"];
    if *usages != json!(all) && *usages != json!(all[1..]) {
        return Err(format!("the usages {usages} are not those of a node's client certificate"));
    }
    match text(request, "/spec/username") {
        by if by == name || !by.starts_with("system:node:") => Ok(()),
        by => Err(format!("{by} may not ask for a certificate of {name}")),
    }
}

/// Denies a request.
///
/// # Errors
/// A sentence: it does not exist.
pub fn deny(store: &mut Store, name: &str, reason: &str, now: Wall) -> Result<Object, String> {
    let mut object = Value::clone(&*request(store, name)?);
    object["status"] = json!({"conditions": [condition("Denied", reason, now)]});
    Ok(store.write(known("certificatesigningrequests"), object))
}

fn request(store: &Store, name: &str) -> Result<Object, String> {
    let found = store.find(known("certificatesigningrequests"), "", name);
    found.ok_or_else(|| format!("there is no certificate signing request {name}"))
}

fn condition(kind: &str, reason: &str, now: Wall) -> Value {
    let now = now.to_string();
    json!({"type": kind, "status": "True", "reason": reason, "message": "the test says so",
        "lastUpdateTime": now, "lastTransitionTime": now})
}
