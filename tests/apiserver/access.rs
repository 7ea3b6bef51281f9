//! Tokens, reviews, certificates, and what a node may do.

use std::time::Duration;

use k8s_openapi::ByteString;
use serde_json::{Value, json};
use smolet::clock::VirtualClock;
use smolet::model::Wall;

use crate::client::{Client, Config, STRATEGIC};
use crate::common::apiserver::ApiServer;

const TOKEN: &str = "/api/v1/namespaces/default/serviceaccounts/default/token";
const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";

fn pod(name: &str, node: &str) -> Value {
    let env = json!([{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "env", "key": "a"}}}]);
    json!({"metadata": {"name": name}, "spec": {
        "nodeName": node,
        "containers": [{"name": "app", "image": "nginx", "env": env}],
        "volumes": [{"name": "v", "secret": {"secretName": "tls"}}],
        "imagePullSecrets": [{"name": "registry"}],
    }})
}

fn base64(text: &[u8]) -> Value {
    serde_json::to_value(ByteString(text.to_vec())).unwrap()
}

fn unbase64(text: &Value) -> String {
    let bytes: ByteString = serde_json::from_value(text.clone()).unwrap();
    String::from_utf8(bytes.0).unwrap()
}

#[test]
fn a_service_accounts_token_is_bound_to_its_pod() {
    let clock = VirtualClock::new(Wall(1_770_000_000_000_000_000));
    let server = ApiServer::start_on(clock.clone());
    let mut client = Client::named(&server, "system:node:gw");
    let made = server.create("pods", pod("web", "gw"));
    let bound = json!({"kind": "Pod", "apiVersion": "v1", "name": "web", "uid": made["metadata"]["uid"]});
    let ask = json!({"spec": {"audiences": ["vault"], "expirationSeconds": 3607, "boundObjectRef": bound}});
    let first = client.post(TOKEN, ask.clone());
    assert_eq!(first.code, 201);
    let first = first.ok();
    assert_eq!(
        (&first["kind"], &first["apiVersion"]),
        (&json!("TokenRequest"), &json!("authentication.k8s.io/v1"))
    );
    assert_eq!(first["status"]["expirationTimestamp"], "2026-02-02T03:40:07Z");
    let token = first["status"]["token"].as_str().unwrap();
    let parts: Vec<&str> = token.split('.').collect();
    assert_eq!(parts.len(), 3);
    let end = "=".repeat((4 - parts[1].len() % 4) % 4);
    let claims: Value =
        serde_json::from_str(&unbase64(&json!(parts[1].replace('-', "+").replace('_', "/") + &end))).unwrap();
    assert_eq!((&claims["aud"], &claims["exp"]), (&json!(["vault"]), &json!(1_770_003_607)));
    assert_eq!(claims["sub"], "system:serviceaccount:default:default");
    assert_eq!(claims["kubernetes.io"]["pod"]["name"], "web");
    clock.advance(Duration::from_hours(1));
    let second = client.post(TOKEN, ask).ok();
    assert_ne!(second["status"]["token"], token);
    let issued = server.tokens_issued();
    assert_eq!((issued.len(), &issued[0].bound, &*issued[1].expiration), (2, &bound, "2026-02-02T04:40:07Z"));

    let default = client.post(TOKEN, json!({"spec": {}})).ok();
    assert_eq!(default["spec"]["expirationSeconds"], 3600);
    let bind = |bound: Value| json!({"spec": {"boundObjectRef": bound}});
    for (path, body, wanted) in [
        (TOKEN, json!({"spec": {"expirationSeconds": 599}}), (422, "Invalid")),
        (TOKEN, json!({}), (400, "BadRequest")),
        (TOKEN, bind(json!({"kind": "Pod", "name": "gone"})), (404, "NotFound")),
        (TOKEN, bind(json!({"kind": "Pod", "name": "web", "uid": "other"})), (409, "Conflict")),
        (TOKEN, bind(json!({"kind": "Service", "name": "web"})), (400, "BadRequest")),
        ("/api/v1/namespaces/default/serviceaccounts/robot/token", json!({"spec": {}}), (404, "NotFound")),
        ("/api/v1/namespaces/default/pods/web/token", json!({}), (404, "NotFound")),
    ] {
        let (code, reason) = client.post(path, body.clone()).why();
        assert_eq!((code, &*reason), wanted, "{path} {body}");
    }
    server.create("serviceaccounts", json!({"metadata": {"name": "robot"}}));
    let others = client.post("/api/v1/namespaces/default/serviceaccounts/robot/token", bind(bound));
    assert_eq!(others.why().0, 400, "a pod of another account");
}

#[test]
fn reviews_are_answered_from_the_tests_tables() {
    let server = ApiServer::start();
    let mut client = Client::named(&server, "system:node:gw");
    server.add_token("let-me-in", "alice", &["ops"]);
    server.allow_access("alice", "get", "nodes/metrics");
    server.allow_access("ops", "*", "/healthz");
    let mut token = |token: &str| {
        let review = client
            .post("/apis/authentication.k8s.io/v1/tokenreviews", json!({"spec": {"token": token}}))
            .ok();
        review["status"].clone()
    };
    let user = json!({"username": "alice", "groups": ["ops", "system:authenticated"]});
    assert_eq!(token("let-me-in"), json!({"authenticated": true, "user": user}));
    assert!(token("guessed").get("authenticated").is_none());
    let mut may = |spec: Value| {
        let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        client.post(path, json!({"spec": spec})).ok()["status"]["allowed"] == true
    };
    let metrics = json!({"verb": "get", "resource": "nodes", "subresource": "metrics", "name": "gw"});
    assert!(may(json!({"user": "alice", "resourceAttributes": metrics})));
    assert!(!may(json!({"user": "bob", "resourceAttributes": metrics})));
    let proxy = json!({"verb": "get", "resource": "nodes", "subresource": "proxy"});
    assert!(!may(json!({"user": "alice", "resourceAttributes": proxy})));
    let path = json!({"verb": "get", "path": "/healthz"});
    assert!(may(json!({"user": "carol", "groups": ["ops"], "nonResourceAttributes": path})));
    assert!(!may(json!({"user": "carol", "nonResourceAttributes": path})));
}

/// A request for a certificate as PEM, in base64, and the key.
fn request(names: &[&str]) -> (Value, Vec<u8>) {
    let key = rcgen::KeyPair::generate().unwrap();
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let mut params = rcgen::CertificateParams::new(names).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(rcgen::DnType::CommonName, "system:node:gw");
    let der = params.serialize_request(&key).unwrap().der().to_vec();
    let pem = pem("CERTIFICATE REQUEST", &der);
    (base64(pem.as_bytes()), key.serialize_der())
}

fn pem(label: &str, der: &[u8]) -> String {
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", base64(der).as_str().unwrap())
}

#[test]
fn a_request_for_a_certificate_is_approved_signed_and_used() {
    let server = ApiServer::start();
    server.add_token("abcdef.0123", "system:bootstrap:abcdef", &["system:bootstrappers"]);
    let bootstrap = Config { token: Some("abcdef.0123".into()), ..Config::anonymous(&server) };
    let mut client = Client::connect(&bootstrap).unwrap();
    let (csr, key) = request(&[]);
    let spec = json!({"request": csr, "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
        "usages": ["digital signature", "client auth"], "expirationSeconds": 3600});
    let made = client.post(REQUESTS, json!({"metadata": {"generateName": "csr-"}, "spec": spec})).ok();
    assert_eq!((&made["spec"]["username"], &made["status"]), (&json!("system:bootstrap:abcdef"), &json!({})));
    let name = made["metadata"]["name"].as_str().unwrap();
    let from = made["metadata"]["resourceVersion"].as_str().unwrap();
    let mut watch = client
        .watch(&format!("{REQUESTS}?watch=1&fieldSelector=metadata.name%3D{name}&resourceVersion={from}"))
        .unwrap();
    server.approve_request(name);
    let signed = watch.next().1;
    assert_eq!(signed["status"]["conditions"][0]["type"], "Approved");
    let identity = (unbase64(&signed["status"]["certificate"]), pem("PRIVATE KEY", &key));
    let own = Config { identity: Some(identity), ..Config::anonymous(&server) };
    Client::connect(&own).unwrap().get("/api/v1/nodes").ok();
    assert_eq!(server.requests().last().unwrap().user, "system:node:gw");
}

#[test]
fn a_nodes_serving_certificate_has_the_names_that_were_asked_for() {
    let server = ApiServer::start();
    let (csr, _) = request(&["gw", "192.0.2.7"]);
    let spec =
        json!({"request": csr, "signerName": "kubernetes.io/kubelet-serving", "usages": ["server auth"]});
    server.create("certificatesigningrequests", json!({"metadata": {"name": "serving"}, "spec": spec}));
    let certificate = unbase64(&server.approve_request("serving")["status"]["certificate"]);
    use futures_rustls::pki_types::pem::PemObject as _;
    use futures_rustls::pki_types::{CertificateDer, ServerName, UnixTime};
    use futures_rustls::rustls::client::WebPkiServerVerifier;
    use futures_rustls::rustls::client::danger::ServerCertVerifier as _;
    use futures_rustls::rustls::{RootCertStore, crypto::ring};
    let der = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(der(&server.client_ca_pem())).unwrap();
    let provider = std::sync::Arc::new(ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), provider).build().unwrap();
    for (name, wanted) in [("gw", true), ("192.0.2.7", true), ("other", false), ("192.0.2.8", false)] {
        let name = ServerName::try_from(name).unwrap();
        let judged = verifier.verify_server_cert(&der(&certificate), &[], &name, &[], UnixTime::now());
        assert_eq!(judged.is_ok(), wanted, "{name:?}: {judged:?}");
    }
    server.create("certificatesigningrequests", json!({"metadata": {"name": "denied"}, "spec": spec}));
    assert_eq!(server.deny_request("denied", "NotYou")["status"]["conditions"][0]["reason"], "NotYou");
}

#[test]
#[should_panic(expected = "not signed with its own key")]
fn a_request_that_is_not_signed_with_its_own_key_is_not_signed() {
    let server = ApiServer::start();
    let (csr, _) = request(&[]);
    let text = unbase64(&csr);
    let body: String = text.lines().filter(|line| !line.starts_with('-')).collect();
    let bytes: ByteString = serde_json::from_value(body.into()).unwrap();
    let mut der = bytes.0;
    // Another name: what was signed is not what is there.
    let at = der.windows(14).position(|part| part == b"system:node:gw").unwrap();
    der[at + 13] = b'x';
    let forged = base64(pem("CERTIFICATE REQUEST", &der).as_bytes());
    let spec = json!({"request": forged, "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
        "usages": ["digital signature", "client auth"]});
    server.create("certificatesigningrequests", json!({"metadata": {"name": "forged"}, "spec": spec}));
    server.approve_request("forged");
}

#[test]
fn a_node_may_do_what_the_real_server_lets_it_do() {
    let server = ApiServer::start();
    server.authorize_nodes();
    let ours = server.create("pods", pod("ours", "gw"));
    let theirs = server.create("pods", pod("theirs", "other"));
    for (plural, name) in [
        ("secrets", "tls"),
        ("secrets", "registry"),
        ("secrets", "foreign"),
        ("configmaps", "env"),
        ("configmaps", "foreign"),
    ] {
        server.create(plural, json!({"metadata": {"name": name}}));
    }
    let mut client = Client::named(&server, "system:node:gw");
    let bound = |pod: &Value| {
        let reference =
            json!({"kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]});
        json!({"spec": {"boundObjectRef": reference}})
    };
    let node = |name: &str| json!({"metadata": {"name": name}});
    let lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    let maps = "/api/v1/namespaces/default/configmaps";
    let secrets = "/api/v1/namespaces/default/secrets";
    let pods = "/api/v1/namespaces/default/pods";
    let none = Value::Null;
    for (method, path, body, wanted) in [
        ("POST", "/api/v1/nodes".to_owned(), node("gw"), 201),
        ("POST", "/api/v1/nodes".to_owned(), node("other"), 403),
        ("GET", "/api/v1/nodes/gw".to_owned(), none.clone(), 200),
        ("GET", "/api/v1/nodes/other".to_owned(), none.clone(), 403),
        ("GET", "/api/v1/nodes".to_owned(), none.clone(), 403),
        ("GET", "/api/v1/nodes?fieldSelector=metadata.name%3Dgw".to_owned(), none.clone(), 200),
        ("PATCH", "/api/v1/nodes/gw/status".to_owned(), json!({"status": {}}), 200),
        ("DELETE", "/api/v1/nodes/gw".to_owned(), none.clone(), 403),
        ("GET", "/api/v1/pods?fieldSelector=spec.nodeName%3Dgw".to_owned(), none.clone(), 200),
        ("GET", "/api/v1/pods?fieldSelector=spec.nodeName%3Dother".to_owned(), none.clone(), 403),
        ("GET", "/api/v1/pods".to_owned(), none.clone(), 403),
        ("GET", format!("{pods}/ours"), none.clone(), 200),
        ("GET", format!("{pods}/theirs"), none.clone(), 403),
        ("PATCH", format!("{pods}/ours/status"), json!({"status": {"phase": "Running"}}), 200),
        ("PATCH", format!("{pods}/theirs/status"), json!({"status": {"phase": "Running"}}), 403),
        ("PATCH", format!("{pods}/gone/status"), json!({"status": {"phase": "Running"}}), 404),
        ("PATCH", format!("{pods}/ours"), json!({}), 403),
        ("POST", pods.to_owned(), pod("mine", "gw"), 403),
        ("GET", format!("{maps}?fieldSelector=metadata.name%3Denv"), none.clone(), 200),
        ("GET", format!("{maps}/env"), none.clone(), 200),
        ("GET", format!("{maps}/foreign"), none.clone(), 403),
        ("GET", maps.to_owned(), none.clone(), 403),
        ("GET", "/api/v1/secrets".to_owned(), none.clone(), 403),
        ("GET", format!("{secrets}?fieldSelector=metadata.name%3Dtls"), none.clone(), 200),
        ("GET", format!("{secrets}/registry"), none.clone(), 200),
        ("GET", format!("{secrets}/foreign"), none.clone(), 403),
        ("POST", TOKEN.to_owned(), bound(&ours), 201),
        ("POST", TOKEN.to_owned(), json!({"spec": {}}), 403),
        ("POST", lease.to_owned(), node("gw"), 201),
        ("POST", lease.to_owned(), node("other"), 403),
        ("GET", format!("{lease}/gw"), none.clone(), 200),
        ("GET", "/api/v1/services".to_owned(), none.clone(), 200),
        ("GET", "/apis/node.k8s.io/v1/runtimeclasses".to_owned(), none.clone(), 200),
        ("GET", "/api/v1/namespaces".to_owned(), none.clone(), 403),
        ("POST", "/api/v1/namespaces/default/events".to_owned(), node("e"), 201),
        (
            "POST",
            "/apis/authentication.k8s.io/v1/tokenreviews".to_owned(),
            json!({"spec": {"token": "x"}}),
            201,
        ),
        ("DELETE", format!("{pods}/theirs"), json!({"gracePeriodSeconds": 0}), 403),
        ("DELETE", format!("{pods}/ours"), json!({"gracePeriodSeconds": 0}), 200),
    ] {
        let kind = if method == "PATCH" { STRATEGIC } else { "application/json" };
        let answer = client.call(method, &path, (kind, Some(&body).filter(|body| !body.is_null()))).unwrap();
        assert_eq!(answer.code, wanted, "{method} {path}: {}", answer.body);
    }
    // What is not the node's pods' any more is out of its reach.
    let (code, reason, message) = client.get(&format!("{maps}/env")).failed();
    assert_eq!((code, &*reason), (403, "Forbidden"));
    let wanted = "configmaps \"env\" is forbidden: User \"system:node:gw\" cannot get resource \"configmaps\" in API group \"\" \
                  in the namespace \"default\": no relationship found between node 'gw' and this object";
    assert_eq!(message, wanted);
    assert_eq!(client.post(TOKEN, bound(&theirs)).why().0, 403);
    assert_eq!(Client::of(&server).get("/api/v1/secrets").code, 200, "others may do everything");
}

#[test]
fn a_node_creates_pods_only_as_copies_of_its_own_static_ones() {
    let server = ApiServer::start();
    server.authorize_nodes();
    let node = server.create("nodes", json!({"metadata": {"name": "gw"}}));
    let owner = json!({"apiVersion": "v1", "kind": "Node", "name": "gw", "uid": node["metadata"]["uid"], "controller": true});
    let mirror = json!({
        "metadata": {"name": "static-gw", "annotations": {"kubernetes.io/config.mirror": "hash"},
            "ownerReferences": [owner]},
        "spec": {"nodeName": "gw", "containers": [{"name": "c", "image": "x"}]},
    });
    let volume = |kind: &str| json!([{"name": "v", kind: {"name": "x"}}]);
    let rows: [(&str, Value, &str); 12] = [
        ("/metadata/annotations", json!({}), "can only create mirror pods"),
        ("/metadata/ownerReferences", json!([]), "a single owner reference"),
        ("/metadata/ownerReferences", json!([owner, owner]), "a single owner reference"),
        ("/metadata/ownerReferences/0/name", json!("other"), "an owner reference set to itself"),
        ("/metadata/ownerReferences/0/uid", json!("other"), "UID mismatch"),
        ("/metadata/ownerReferences/0/controller", json!(false), "a controller owner reference"),
        ("/metadata/ownerReferences/0/blockOwnerDeletion", json!(true), "must not set blockOwnerDeletion"),
        ("/spec/nodeName", json!("other"), "spec.nodeName set to itself"),
        ("/spec/serviceAccountName", json!("default"), "a service account"),
        ("/spec/volumes", volume("secret"), "secrets"),
        ("/spec/volumes", volume("configMap"), "configmaps"),
        ("/spec/volumes", volume("persistentVolumeClaim"), "persistentvolumeclaims"),
    ];
    let mut client = Client::named(&server, "system:node:gw");
    let pods = "/api/v1/namespaces/default/pods";
    for (at, value, why) in rows {
        let mut other = mirror.clone();
        let (parent, field) = at.rsplit_once('/').expect("a pointer");
        other.pointer_mut(parent).expect(parent)[field] = value;
        let (code, _, message) = client.post(pods, other).failed();
        assert!(code == 403 && message.contains(why), "{at}: {message}");
    }
    let made = client.post(pods, mirror).ok();
    assert_eq!(made["spec"].get("serviceAccountName"), None, "it has no account");
}
