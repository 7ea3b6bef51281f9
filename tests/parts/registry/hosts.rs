//! Mirrors and proxies.

use std::path::Path;

use smolet::proto::runtime::v1::AuthConfig;
use smolet::registry::Proxies;

use super::server::{Auth, Faults, LOGIN, Registry};
use super::{Node, put_app, with_app};
use crate::common::{Stopwatch, TempDir};

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
    assert!(error.ends_with("hosts.toml: server: must be a string"), "{error}");
}

/// A node whose images are asked for at that mirror first.
fn with_mirror(directory: &Path, origin: &Registry, mirror: &str) -> Node {
    let file = directory.join(format!("{}/hosts.toml", origin.host().replace(':', "_") + "_"));
    write(&file, &format!("[host.\"http://{mirror}\"]\n"));
    let mut node = Node::new();
    node.hosts.directories = vec![directory.to_owned()];
    node
}

#[test]
fn a_mirror_that_fails_holds_up_no_layer() {
    const LAYERS: [usize; 6] = [3000, 4000, 5000, 6000, 7000, 8000];
    let (origin, image) = with_app(&LAYERS);
    let failing = Registry::start();
    put_app(&failing, &LAYERS);
    failing.set(Auth::Anyone, Faults { layers: Some(503), ..Faults::default() });
    let cutting = Registry::start();
    put_app(&cutting, &LAYERS);
    cutting.set(Auth::Anyone, Faults { cut: Some((0, u32::MAX)), ..Faults::default() });
    for (what, mirror) in
        [("refuses", "127.0.0.1:1".to_owned()), ("fails", failing.host()), ("cuts", cutting.host())]
    {
        let directory = TempDir::new();
        let node = with_mirror(directory.path(), &origin, &mirror);
        node.pull(&image).unwrap();
        // Deadlines are timers of 30 s, of which a busy machine may begin one late; the first wait is half a second.
        let waits: Vec<_> = node.sleeps.borrow().iter().copied().filter(|wait| wait.as_secs() < 20).collect();
        assert!(waits.is_empty(), "a mirror that {what}: {waits:?}");
    }
    let asked = failing.log().iter().filter(|request| request.target.contains("/blobs/")).count();
    assert!(asked <= 1 + LAYERS.len(), "{asked} requests for a configuration and {} layers", LAYERS.len());
}

#[test]
fn a_mirror_that_does_not_answer_is_asked_once() {
    let (origin, image) = with_app(&[3000, 4000, 5000, 6000, 7000, 8000]);
    // Connections are accepted by the kernel and by nobody else.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let directory = TempDir::new();
    let node = with_mirror(directory.path(), &origin, &silent.local_addr().unwrap().to_string());
    let began = Stopwatch::start();
    node.pull(&image).unwrap();
    let took = began.elapsed();
    // 30 s are 1.5 s here.
    assert!(took < std::time::Duration::from_millis(2900), "{took:?}");
    silent.set_nonblocking(true).unwrap();
    let asked = std::iter::from_fn(|| silent.accept().ok()).count();
    assert_eq!(asked, 1, "connections to the mirror");
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

/// A mirror may be somebody else's, and is asked by HTTP here.
#[test]
fn a_login_that_names_its_server_goes_to_no_other_host() {
    let (origin, image) = with_app(&[5000]);
    let mirror = Registry::start();
    put_app(&mirror, &[5000]);
    let directory = TempDir::new();
    let knows_login =
        |registry: &Registry| registry.log().iter().any(|of| of.headers.contains_key("authorization"));
    for (server_address, is_mirrors) in
        [(origin.host(), false), (format!("https://{}/v2/", mirror.host()), true), (String::new(), true)]
    {
        for asks in [Auth::Basic, Auth::TokenForLogin] {
            for registry in [&origin, &mirror] {
                registry.set(asks.clone(), Faults::default());
            }
            let mut node = with_mirror(directory.path(), &origin, &mirror.host());
            node.auth = Some(AuthConfig {
                username: LOGIN.0.into(),
                password: LOGIN.1.into(),
                server_address: server_address.clone(),
                ..AuthConfig::default()
            });
            node.pull(&image).unwrap();
            let known = (knows_login(&mirror), knows_login(&origin));
            assert_eq!(known, (is_mirrors, !is_mirrors), "{server_address:?} {asks:?}");
        }
    }
}

#[test]
fn a_registry_with_mirrors_is_not_asked_itself_where_that_is_disabled() {
    let (origin, image) = with_app(&[5000]);
    let directory = TempDir::new();
    let mut by_toml = with_mirror(directory.path(), &origin, "127.0.0.1:1");
    let mut by_yaml = Node::new();
    let file = directory.path().join("registries.yaml");
    let of_origin = format!("mirrors: {{\"{}\": {{endpoint: [\"http://127.0.0.1:1\"]}}}}", origin.host());
    write(&file, &of_origin);
    by_yaml.hosts.registries = Some(file.clone());
    for node in [&mut by_toml, &mut by_yaml] {
        node.hosts.only_mirrors = true;
        let error = node.pull(&image).unwrap_err().to_string();
        assert!(error.contains("http://127.0.0.1:1/v2/"), "{error}");
        assert!(origin.log().is_empty(), "{:?}", origin.log());
        node.hosts.only_mirrors = false;
        node.pull(&image).unwrap();
        origin.set(Auth::Anyone, Faults::default());
    }
    // As with k3s: a configuration of its own names it.
    write(&file, &format!("{of_origin}\nconfigs: {{\"{}\": {{}}}}", origin.host()));
    let mut named = Node::new();
    (named.hosts.registries, named.hosts.only_mirrors) = (Some(file), true);
    named.pull(&image).unwrap();
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
