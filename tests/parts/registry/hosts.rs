//! Mirrors and proxies.

use std::path::Path;

use smolet::registry::Proxies;

use super::server::{Auth, Faults, LOGIN, Registry};
use super::{Node, put_app, with_app};
use crate::common::TempDir;

fn write(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

#[test]
fn mirrors_of_hosts_toml_come_in_order_and_then_the_registry() {
    let (origin, image) = with_app(&[5000]);
    let (empty, denying, partial) = (Registry::start(), Registry::start(), Registry::start());
    denying.set(Auth::TokenForLogin, Faults::default());
    put_app(&partial, &[5000]);
    partial.set(Auth::Anyone, Faults::default());
    let directory = TempDir::new();
    let file = directory.path().join(format!("{}/hosts.toml", origin.host().replace(':', "_") + "_"));
    let mirror = |host: &str| format!("[host.\"http://{host}\"]\n");
    write(&file, &format!("{}{}{}", mirror("127.0.0.1:1"), mirror(&empty.host()), mirror(&denying.host())));
    let node = || {
        let mut node = Node::new();
        node.hosts.directories = vec![directory.path().join("none"), directory.path().to_owned()];
        node
    };
    node().pull(&image).unwrap();
    assert_eq!(empty.log().iter().filter(|request| request.method == "HEAD").count(), 1);
    assert!(empty.log()[0].target.ends_with(&format!("?ns={}", origin.host().replace(':', "%3A"))));
    assert!(origin.log().iter().all(|request| !request.target.contains("ns=")));
    assert!(denying.log().len() >= 2);

    // A mirror that pulls and does not resolve; headers; the registry itself is asked for the tag only.
    origin.set(Auth::Anyone, Faults::default());
    let host = partial.host();
    let text = format!(
        "{}capabilities = [\"pull\"]\n[host.\"http://{host}\".header]\nx-key = \"of-mirror\"\n",
        mirror(&host)
    );
    write(&file, &text);
    node().pull(&image).unwrap();
    assert_eq!(origin.log().len(), 1);
    let log = partial.log();
    assert!(log.len() >= 4 && log.iter().all(|request| request.headers["x-key"] == "of-mirror"), "{log:?}");

    // The mirror serves wrong layers: the registry itself is asked.
    partial.set(Auth::Anyone, Faults { wrong: u32::MAX, ..Faults::default() });
    node().pull(&image).unwrap();

    write(&file, "server = 1");
    let error = node().pull(&image).unwrap_err().to_string();
    assert!(error.contains("hosts.toml: ") && error.contains("invalid type"), "{error}");
}

#[test]
fn mirrors_of_registries_yaml() {
    let mirror = Registry::start();
    mirror.put_image("hub/busybox", "1", &[("arm", "v7")], &[super::layer(1, 500)]);
    mirror.set(Auth::Basic, Faults::default());
    let directory = TempDir::new();
    let file = directory.path().join("registries.yaml");
    let (host, (username, password)) = (mirror.host(), LOGIN);
    write(
        &file,
        &format!(
            "mirrors:\n  docker.io:\n    endpoint: [\"http://{host}\"]\n    rewrite: {{\"^library/(.*)\": \"hub/$1\"}}\n\
             configs:\n  \"{host}\":\n    auth: {{username: {username}, password: {password}}}\n"
        ),
    );
    let mut node = Node::with_login("other", "other-secret");
    node.hosts.registries = Some(file);
    let pulled = node.pull("busybox:1").unwrap();
    assert!(pulled.repo_digest.starts_with("docker.io/library/busybox@sha256:"), "{pulled:?}");
    assert!(
        mirror.log()[0].target.ends_with("/v2/hub/busybox/manifests/1?ns=docker.io"),
        "{:?}",
        mirror.log()[0]
    );
}

#[test]
fn a_proxy_is_asked_for_hosts_by_http() {
    let registry = Registry::start();
    put_app(&registry, &[5000]);
    let proxy = format!("http://me:proxy-secret@{}", registry.host());
    let mut node = Node::new();
    node.hosts.environment.proxies =
        Proxies::from_variables(|name| (name == "HTTP_PROXY").then(|| proxy.clone()));
    node.pull("registry.test:80/team/app:1").unwrap();
    for request in registry.log() {
        assert!(request.target.starts_with("http://registry.test/v2/"), "{request:?}");
        assert_eq!(request.headers["proxy-authorization"], "Basic bWU6cHJveHktc2VjcmV0");
    }
}
