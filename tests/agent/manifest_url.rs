//! Manifests from a URL (`staticPodURL`): a server with real HTTP/1.1, whose responses the test sets.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper::header::{HeaderMap, HeaderValue};
use smolet::config::{Config, StaticPodUrl};
use smolet::net::http::HttpGet;

use crate::handover::{of_kubelet, remembered};
use crate::world::{World, full};

/// A server with one response. Its thread ends with the process.
struct Site {
    address: SocketAddr,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    /// Empty: it never responds.
    answer: String,
    heads: Vec<String>,
}

impl Site {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, shared) = (listener.local_addr().unwrap(), Arc::new(Mutex::new(Shared::default())));
        let of_thread = shared.clone();
        std::thread::spawn(move || {
            let mut open = Vec::new();
            while let Ok((mut socket, _)) = listener.accept() {
                let (mut head, mut byte) = (Vec::new(), [0]);
                while !head.ends_with(b"\r\n\r\n") && socket.read_exact(&mut byte).is_ok() {
                    head.push(byte[0]);
                }
                let answer = {
                    let mut shared: std::sync::MutexGuard<'_, Shared> = of_thread.lock().unwrap();
                    shared.heads.push(String::from_utf8(head).unwrap());
                    shared.answer.clone()
                };
                let _ = socket.write_all(answer.as_bytes());
                if answer.is_empty() {
                    open.push(socket);
                }
            }
        });
        Self { address, shared }
    }

    fn says(&self, answer: impl Into<String>) {
        self.shared.lock().unwrap().answer = answer.into();
    }

    fn serves(&self, body: &str) {
        self.says(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()));
    }

    fn redirects(&self, to: &str) {
        self.says(format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n"));
    }

    fn requests(&self) -> usize {
        self.shared.lock().unwrap().heads.len()
    }

    fn last(&self) -> String {
        self.shared.lock().unwrap().heads.last().cloned().unwrap_or_default()
    }

    fn url(&self) -> String {
        format!("http://{}/pods.yaml?token=hunter2", self.address)
    }
}

/// The configuration with that URL.
fn config(world: &World, site: &Site) -> Config {
    let mut key = HeaderValue::from_static("hunter2");
    key.set_sensitive(true);
    let headers = HeaderMap::from_iter([("x-key".parse().unwrap(), key)]);
    let get = HttpGet::of_url(&site.url(), headers).unwrap();
    Config { static_pods: Some(StaticPodUrl { get, period: Duration::from_secs(20) }), ..world.config() }
}

/// Advances time to the next fetch, and waits for it.
fn fetched(world: &World, site: &Site) {
    let before = site.requests();
    world.until("a fetch", |_| site.requests() > before);
    world.settle();
}

fn running(world: &World) -> Vec<String> {
    let mut running = world.running();
    running.sort();
    running
}

fn pod(name: &str) -> String {
    format!(
        "{{\"apiVersion\": \"v1\", \"kind\": \"Pod\", \"metadata\": {{\"name\": \"{name}\"}}, \"spec\": {{\"containers\": \
         [{{\"name\": \"app\", \"image\": \"busybox:1\"}}]}}}}"
    )
}

const PLAIN: &str = "containers: [{name: app, image: 'busybox:1'}]";

#[test]
fn the_pods_of_a_url_run_while_it_has_them() {
    let world = World::without_agent();
    let site = Site::start();
    site.serves(&pod("web"));
    world.put("file", PLAIN);
    world.start_with(config(&world, &site));
    world.until("both run", |world| running(world) == ["file/app#0", "web/app#0"]);
    let head = site.last();
    assert!(
        head.starts_with("GET /pods.yaml?token=hunter2 HTTP/1.1\r\n") && head.contains("hunter2\r\n"),
        "{head}"
    );
    let web = world.pod("web").unwrap();
    let annotations = web.metadata.annotations.unwrap();
    assert_eq!(annotations["kubernetes.io/config.source"], "http");
    assert_eq!(annotations["kubernetes.io/config.hash"].len(), 32);
    // Only of static pods from files.
    assert_eq!(web.spec.unwrap().tolerations, None);
    let described = world.describe("web");
    assert!(described.contains(&format!("http://{}/pods.yaml", site.address)), "{described}");
    assert!(!described.contains("hunter2"), "{described}");

    // The same response and a failed fetch change nothing; a pod of a file is still terminated.
    let before = world.actions();
    fetched(&world, &site);
    site.says("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 5\r\n\r\nnever");
    fetched(&world, &site);
    world.until("it is told", |world| {
        world.table().contains("answers 503 Service Unavailable; its pods stay as they are")
    });
    assert!(!world.table().contains("hunter2"), "{}", world.table());
    assert_eq!(world.actions(), before);
    world.remove("file");
    world.until("the file's is gone", |world| running(world) == ["web/app#0"]);

    // An agent that starts without the server does not terminate running pods either.
    world.kill();
    let before = world.actions().len();
    world.start_with(config(&world, &site));
    world.until("it is told", |world| world.table().contains("answers 503 Service Unavailable"));
    world.pass(5);
    assert_eq!(running(&world), ["web/app#0"]);
    assert!(world.actions().len() <= before, "{:?}", world.actions());

    // A list, in YAML; pods that it does not have are terminated.
    site.serves(&format!("apiVersion: v1\nkind: PodList\nitems:\n- {}\n- {}\n", pod("web"), pod("other")));
    world.until("both", |world| running(world) == ["other/app#0", "web/app#0"]);
    world.until("nothing is wrong", |world| !world.table().contains("answers 503"));
    site.serves(&format!("{{\"kind\": \"PodList\", \"apiVersion\": \"v1\", \"items\": [{}]}}", pod("other")));
    world.until("one", |world| running(world) == ["other/app#0"]);

    // An invalid response keeps the pods; an empty one is invalid, as in the kubelet.
    site.serves("kind: Pot\n");
    world.until("it is told", |world| world.table().contains("Pot"));
    assert_eq!(running(&world), ["other/app#0"]);
    site.serves("");
    world.until("none", |world| running(world).is_empty());
    assert!(world.table().contains("zero-length data received"), "{}", world.table());
    site.serves(&pod("other"));
    world.until("it is back", |world| running(world) == ["other/app#0"]);
}

#[test]
fn a_server_that_hangs_or_sends_too_much_delays_no_other_source() {
    let world = World::without_agent();
    let site = Site::start();
    world.put("file", PLAIN);
    world.start_with(config(&world, &site));
    world.until("the file's pod runs", |world| running(world) == ["file/app#0"]);
    world.until("it is told", |world| world.table().contains("gave no whole answer within 10 s"));
    // The head and a part of the body.
    site.says("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nkind");
    world.until("it is told", |world| world.table().contains("the answer breaks off"));
    site.serves(&"#".repeat(2 << 20));
    world.until("it is told", |world| world.table().contains("is too large: at most 1048576 bytes are read"));
    site.says("SSH-2.0-x\r\n\r\n");
    world.until("it is told", |world| !world.table().contains("is too large"));
    site.serves(&pod("web"));
    world.until("it runs", |world| running(world) == ["file/app#0", "web/app#0"]);
}

#[test]
fn redirects_are_followed_without_the_headers_of_another_site() {
    let world = World::without_agent();
    let (site, other) = (Site::start(), Site::start());
    site.redirects(&format!("http://{}/there", other.address));
    other.serves(&pod("web"));
    world.start_with(config(&world, &site));
    world.until("it runs", |world| running(world) == ["web/app#0"]);
    assert!(site.last().contains("hunter2\r\n"), "{}", site.last());
    let head = other.last();
    assert!(head.starts_with("GET /there HTTP/1.1\r\n") && !head.contains("hunter2"), "{head}");
    for (to, why) in [
        ("file:///etc/passwd", "redirects to what is no http:// or https:// URL"),
        ("/again", "stopped after 10 redirects"),
    ] {
        site.redirects(to);
        world.until(why, |world| world.table().contains(why));
    }
    assert_eq!(running(&world), ["web/app#0"]);
}

#[test]
fn a_kubelets_pod_of_the_url_keeps_its_uid() {
    const UID: &str = "6b1fb6a5e19e3c4f2c6a8d0a5f0c1e77";
    let world = World::without_agent();
    let site = Site::start();
    site.serves(&pod("web"));
    of_kubelet(&world.fake, &full("web"), UID, "busybox:1", "http");
    let before = world.actions();
    world.start_with(config(&world, &site));
    world.until("it is known", |world| remembered(world, UID));
    world.pass(3);
    assert_eq!(running(&world), ["web/app#0"]);
    assert_eq!(world.actions().len(), before.len(), "{:?}", world.actions());
    assert_eq!(world.pod("web").unwrap().metadata.uid.as_deref(), Some(UID));
}
