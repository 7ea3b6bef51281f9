//! Joining by a bootstrap token, and the renewal of the node's certificate.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use smolet::config::{Config, Registration};
use smolet::model::Wall;

use crate::client::Client;
use crate::world::{NODE, World};

const TOKEN_USER: &str = "system:bootstrap:abcdef";
const REQUESTS: &str = "certificatesigningrequests";

/// The settings of a node that has a token, and nothing else.
fn bootstrapping(world: &World) -> Config {
    let groups = ["system:bootstrappers", "system:bootstrappers:kubeadm:default-node-token"];
    let bootstrap =
        world.api.kubeconfig_with_token(&world.path("root"), TOKEN_USER, "abcdef.0123456789abcdef", &groups);
    Config {
        kubeconfig: Some(world.path("etc/kubelet.conf")),
        bootstrap_kubeconfig: Some(bootstrap),
        ..world.config()
    }
}

fn name(request: &Value) -> String {
    request["metadata"]["name"].as_str().unwrap().to_owned()
}

/// A request that nobody has said anything to.
fn pending(world: &World) -> Option<Value> {
    let all = world.api.list(REQUESTS, "");
    all.into_iter().find(|request| request["status"]["conditions"].is_null())
}

fn requests(world: &World) -> usize {
    world.api.list(REQUESTS, "").len()
}

fn is_ready(world: &World) -> bool {
    let node = world.node().unwrap_or_default();
    let conditions = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).mode() & 0o777
}

#[test]
fn a_node_joins_by_a_token_and_its_manifests_run_meanwhile() {
    let world = World::without_agent();
    let config = bootstrapping(&world);
    let manifest = "apiVersion: v1\nkind: Pod\nmetadata: {name: local}\nspec:\n  containers: [{name: app, image: 'busybox:1'}]\n";
    std::fs::write(world.path("manifests/local.yaml"), manifest).unwrap();
    world.start_with(config.clone());
    let request = world.wait("it asks for a certificate", pending);
    assert_eq!(request["spec"]["username"], TOKEN_USER);
    assert_eq!(request["spec"]["signerName"], "kubernetes.io/kube-apiserver-client-kubelet");
    world.until("its own pod runs", |world| {
        world.fake.state().running().iter().any(|name| name.starts_with(&format!("local-{NODE}/app")))
    });
    let (pki, kubeconfig) = (world.path("root/pki"), config.kubeconfig.clone().unwrap());
    assert_eq!(mode(&pki.join("kubelet-client.key.tmp")), 0o600);
    assert!(!kubeconfig.exists() && world.node().is_none());
    // The answer comes late: it is looked for until then.
    let path = format!("/apis/certificates.k8s.io/v1/{REQUESTS}/{}", name(&request));
    world.until("it looks again", |world| {
        world.api.requests().iter().filter(|request| request.path == path).count() >= 2
    });
    world.api.approve_request(&name(&request));
    world.until("the node is ready", is_ready);
    world.run("web");

    let current = pki.join("kubelet-client-current.pem");
    let target = std::fs::read_link(&current).unwrap();
    assert!(target.to_str().unwrap().starts_with("kubelet-client-2"), "{target:?}");
    for path in [&current, &kubeconfig] {
        assert_eq!(mode(path), 0o600, "{}", path.display());
    }
    assert!(!pki.join("kubelet-client.key.tmp").exists(), "the key has gone to its certificate");
    let text = std::fs::read_to_string(&kubeconfig).unwrap();
    assert!(text.contains(current.to_str().unwrap()) && !text.contains("0123456789abcdef"), "{text}");
    for request in world.api.requests() {
        let by_token = request.user == TOKEN_USER;
        assert_eq!(by_token, request.path.contains(REQUESTS), "{request}");
    }
    // From now on it is known.
    world.kill();
    world.api.revoke_token("abcdef.0123456789abcdef");
    world.start_with(config);
    world.run("other");
    assert_eq!(requests(&world), 1);
}

#[test]
fn what_was_asked_before_a_restart_is_not_asked_again() {
    let world = World::without_agent();
    let config = bootstrapping(&world);
    world.start_with(config.clone());
    let first = world.wait("it asks for a certificate", pending);
    world.kill();
    let key = std::fs::read(world.path("root/pki/kubelet-client.key.tmp")).unwrap();
    world.api.clear_requests();
    world.start_with(config);
    let path = format!("/apis/certificates.k8s.io/v1/{REQUESTS}/{}", name(&first));
    world.until("it asks after that one", |world| {
        world.api.requests().iter().any(|request| request.verb == "get" && request.path == path)
    });
    assert_eq!(std::fs::read(world.path("root/pki/kubelet-client.key.tmp")).unwrap(), key);
    // Forgotten by the server, it is made again.
    world.api.delete(REQUESTS, "", &name(&first), None);
    let again = world.wait("it asks once more", pending);
    assert_eq!(name(&again), name(&first));
    world.api.approve_request(&name(&again));
    world.until("the node is ready", is_ready);
    assert_eq!(requests(&world), 1);
}

#[test]
fn after_a_denial_it_asks_with_another_key() {
    let world = World::without_agent();
    world.start_with(bootstrapping(&world));
    let first = world.wait("it asks for a certificate", pending);
    let begun = world.now();
    world.api.deny_request(&name(&first), "Unknown");
    let second = world.wait("it asks again", pending);
    assert!(world.since(begun) > Duration::from_secs(9), "not at once: {:?}", world.since(begun));
    assert_ne!(name(&second), name(&first));
    assert!(world.node().is_none());
    world.api.approve_request(&name(&second));
    world.until("the node is ready", is_ready);
}

#[test]
fn a_certificate_is_renewed_before_it_ends() {
    let world = World::without_agent();
    let config = Config { rotate_certificates: true, ..bootstrapping(&world) };
    world.start_with(config);
    let first = world.wait("it asks for a certificate", pending);
    let life = Duration::from_secs(20);
    world.api.approve_request_for(&name(&first), Some(life));
    let begun = world.now();
    world.until("the node is ready", is_ready);
    let current = world.path("root/pki/kubelet-client-current.pem");
    let before = std::fs::read_link(&current).unwrap();
    let second = world.wait("it asks for another", pending);
    assert!(
        world.since(begun) >= Duration::from_secs(13) && world.since(begun) < life,
        "{:?}",
        world.since(begun)
    );
    assert_eq!(second["spec"]["username"], format!("system:node:{NODE}"));
    assert_ne!(name(&second), name(&first));
    let connections = world.api.connections();
    world.api.approve_request(&name(&second));
    world.until("it has another", |_| std::fs::read_link(&current).unwrap() != before);
    world.until("it uses another connection", |world| world.api.connections() > connections);
    assert!(!current.with_file_name(before).exists(), "the old one is gone");
    // The first one has ended: whoever is let in has shown the other.
    world.pass(life.saturating_sub(world.since(begun)));
    world.api.clear_requests();
    world.run("web");
    assert!(world.api.requests().iter().all(|request| request.code != Some(401)));
    assert_eq!(requests(&world), 2);
}

#[test]
fn the_cluster_signs_the_certificate_of_the_nodes_api() {
    let world = World::without_agent();
    let config = Config { server_tls_bootstrap: true, ..world.config() };
    world.start_with(config.clone());
    let request = world.wait("it asks for it", pending);
    assert_eq!(request["spec"]["signerName"], "kubernetes.io/kubelet-serving");
    assert_eq!(request["spec"]["username"], format!("system:node:{NODE}"));
    assert_eq!(request["spec"]["usages"], serde_json::json!(["digital signature", "server auth"]));
    // Its own serves meanwhile.
    world.api.allow_access("kube-apiserver", "*", "*");
    let server = world.api.identity("kube-apiserver", &[], None);
    assert_eq!(world.request(Some(&server), "GET", "/healthz", "").body, "ok");
    let authority = world.api.client_ca_pem();
    let by_authority = |world: &World| Client::connect(world.node_port(), &authority, Some(&server)).ok();
    assert!(by_authority(&world).is_none());
    world.api.approve_request(&name(&request));
    let mut client = world.wait("the cluster's certificate serves", by_authority);
    client.send(b"GET /healthz HTTP/1.1\r\nHost: gw\r\n\r\n");
    assert_eq!(client.rest().body, "ok");
    let current = world.path("root/pki/kubelet-server-current.pem");
    let target = std::fs::read_link(&current).unwrap();
    assert!(target.to_str().unwrap().starts_with("kubelet-server-2"), "{target:?}");
    assert_eq!(mode(&current), 0o600);
    world.kill();
    world.forget_port();
    world.start_with(config.clone());
    assert!(by_authority(&world).is_some(), "at once after a start");
    world.run("web");
    assert_eq!(requests(&world), 1);
    // For other addresses it asks for another.
    world.kill();
    world.forget_port();
    let registration =
        Registration { addresses: vec!["192.0.2.7".parse().unwrap()], ..config.registration.clone() };
    world.start_with(Config { registration, ..config });
    world.wait("it asks for another", pending);
    assert!(by_authority(&world).is_some(), "the one before serves until then");
}

#[test]
fn a_node_whose_certificate_has_ended_joins_again() {
    let world = World::without_agent();
    let config = bootstrapping(&world);
    let user = format!("system:node:{NODE}");
    let (from, until) = (Wall::of_civil(2020, 1, 1, 0), Wall::of_civil(2021, 1, 1, 0));
    let old = world.api.identity(&user, &["system:nodes"], Some((from, until)));
    let current = world.path("root/pki/kubelet-client-current.pem");
    std::fs::create_dir_all(current.parent().unwrap()).unwrap();
    std::fs::write(&current, old.certificate_pem() + &old.key_pem()).unwrap();
    let text = std::fs::read_to_string(config.bootstrap_kubeconfig.as_ref().unwrap()).unwrap();
    let (at, file) = ("token: \"abcdef.0123456789abcdef\"", current.display());
    let named = text.replace(at, &format!("client-certificate: {file}\n    client-key: {file}"));
    assert_ne!(named, text);
    let kubeconfig = config.kubeconfig.clone().unwrap();
    std::fs::create_dir_all(kubeconfig.parent().unwrap()).unwrap();
    std::fs::write(&kubeconfig, &named).unwrap();
    world.start_with(config);
    let request = world.wait("it asks for a certificate", pending);
    assert_eq!(request["spec"]["username"], TOKEN_USER);
    world.api.approve_request(&name(&request));
    world.until("the node is ready", is_ready);
    assert_eq!(std::fs::read_to_string(&kubeconfig).unwrap(), named, "a kubeconfig that is there stays");
    assert_eq!(mode(&current), 0o600);
}
