//! A Kubernetes API server with the resources that a node uses: stateful, with real HTTP/2 over real TLS on loopback, on its
//! own thread. [`ApiServer`] is the handle of a test: it reads and changes objects, injects faults and waits.
//!
//! `store` has the objects and their history, `write` the rules of writes, with the pure `patch` and `defaults`; `resource`
//! parses paths and queries; `watch` streams changes; `review` answers reviews and `authorize` checks nodes; `handle` processes
//! a request; `wire` has sockets, TLS and the link; `pki` and `der` certificates; `state` is shared by both threads.
//!
//! Objects are JSON, as on the wire. A test names a kind by its plural (`pods`), and an object without a namespace is in
//! `default`.
//!
//! Time comes from the [`FakeClock`]: timestamps, the times of watches and delays are virtual when it is.
//!
//! Not implemented: JSON patches and server-side apply, deletion of collections, eviction, managed fields, validation that a
//! node does not trigger, protobuf, tables, compression, discovery.

mod authorize;
mod defaults;
mod der;
mod failure;
mod handle;
pub mod patch;
mod pki;
mod resource;
mod review;
pub mod signer;
mod state;
mod store;
mod watch;
mod wire;
mod write;

use std::fs;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use smolet::model::Wall;

use super::fake::FakeClock;
use super::gauge::Gauge;
use failure::Outcome;
use patch::PatchKind;
use pki::Pki;
#[allow(unused_imports, reason = "each test binary names other ones")]
pub use pki::{Authority, Identity, base64};
use resource::{Resource, Selector};
#[allow(unused_imports, reason = "each test binary names other ones")]
pub use review::{Grant, IssuedToken};
#[allow(unused_imports, reason = "each test binary names other ones")]
pub use state::{Expired, Request};
use state::{Fault, State};
use store::{Key, Object, Scope};
use write::{Deletion, Part};

/// Deadline for the server's thread to execute a test's command.
const PATIENCE: Duration = Duration::from_secs(30);
/// The default namespace.
const DEFAULT: &str = "default";

/// An authenticated user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub groups: Vec<String>,
}

/// The server; stops when dropped, with its thread and its sockets.
pub struct ApiServer {
    shared: Arc<Shared>,
    commands: smol::channel::Sender<wire::Message>,
    thread: Option<JoinHandle<()>>,
    address: SocketAddr,
    /// Reserves the port while nothing listens on it.
    _port: TcpListener,
}

struct Shared {
    state: Mutex<State>,
    clock: FakeClock,
    pki: Pki,
    link: wire::Link,
    gauge: Arc<Gauge>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ApiServer {
    /// On the machine's clock.
    pub fn start() -> Self {
        Self::start_on(FakeClock::System)
    }

    /// Listens on its own port, with the namespaces of an empty cluster.
    pub fn start_on(clock: impl Into<FakeClock>) -> Self {
        Self::start_at(Ipv4Addr::LOCALHOST, clock)
    }

    /// The same on another address of this machine.
    pub fn start_at(host: Ipv4Addr, clock: impl Into<FakeClock>) -> Self {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            clock: clock.into(),
            pki: Pki::new(host),
            link: wire::Link::default(),
            gauge: Arc::default(),
        });
        let any = SocketAddrV4::new(host, 0);
        let port =
            TcpListener::from(wire::bound(any).expect("the address is this machine's and has a free port"));
        let address = port.local_addr().expect("a bound socket has an address");
        let listens_at = SocketAddrV4::new(host, address.port());
        let (commands, inbox) = smol::channel::unbounded();
        let thread = {
            let shared = shared.clone();
            std::thread::Builder::new()
                .name("api-server".into())
                .spawn(move || wire::run(shared, listens_at, inbox))
                .expect("a thread can be started")
        };
        let server = Self { shared, commands, thread: Some(thread), address, _port: port };
        server.shared.state().store.root_ca = server.ca_pem();
        for namespace in [DEFAULT, "kube-system", "kube-public", "kube-node-lease"] {
            server.create("namespaces", json!({"metadata": {"name": namespace}}));
        }
        let ports = json!([{"name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443}]);
        let spec = json!({"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"], "type": "ClusterIP", "ports": ports});
        server.create("services", json!({"metadata": {"name": "kubernetes"}, "spec": spec}));
        server.command(wire::Command::Listen);
        server
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// True when its thread is idle: every received request is answered, and the response written.
    pub fn is_idle(&self) -> bool {
        self.shared.gauge.idle()
    }

    /// How often its thread woke so far.
    pub fn turns(&self) -> u64 {
        self.shared.gauge.turns()
    }

    fn now(&self) -> Wall {
        self.shared.clock.now().wall
    }

    // ---- who may come in -----------------------------------------------------------------------------

    /// The authority of the server's certificate.
    pub fn ca_pem(&self) -> String {
        self.shared.pki.cluster.pem()
    }

    /// The authority of clients' certificates, and of those that the server signs for nodes.
    pub fn client_ca_pem(&self) -> String {
        self.shared.pki.clients.pem()
    }

    /// A client's certificate and key. Two groups at most; always valid, or between two times.
    pub fn identity(&self, user: &str, groups: &[&str], valid: Option<(Wall, Wall)>) -> Identity {
        self.shared.pki.clients.client(user, groups, valid)
    }

    /// Adds a bearer token, which TokenReviews accept too.
    pub fn add_token(&self, token: &str, user: &str, groups: &[&str]) {
        let groups = groups.iter().map(ToString::to_string).collect();
        self.shared.state().access.tokens.insert(token.into(), User { name: user.into(), groups });
    }

    pub fn revoke_token(&self, token: &str) {
        self.shared.state().access.tokens.remove(token);
    }

    /// SubjectAccessReviews allow this user or group this verb on that: `nodes/proxy`, `pods` or a path. `*`: all.
    pub fn allow_access(&self, user: &str, verb: &str, what: &str) {
        let grant = Grant { user: user.into(), verb: verb.into(), what: what.into() };
        self.shared.state().access.grants.push(grant);
    }

    /// From now on the Node authorizer applies.
    pub fn authorize_nodes(&self) {
        self.shared.state().authorizes_nodes = true;
    }

    /// Each object that a node may read because of a pod is denied so often first: the authorizer learns of pods later than the
    /// node.
    pub fn authorize_late(&self, refusals: u32) {
        self.shared.state().lag.refusals = refusals;
    }

    /// From now on pods need their service account, and get the volume with its token.
    pub fn admit_accounts(&self) {
        self.shared.state().store.admits_accounts = true;
    }

    /// A kubeconfig in `dir` for a user with a certificate, in the group of nodes for a node, else of the masters.
    pub fn kubeconfig(&self, dir: &Path, user: &str) -> PathBuf {
        let group = if user.starts_with("system:node:") { "system:nodes" } else { "system:masters" };
        self.kubeconfig_as(dir, user, &self.identity(user, &[group], None))
    }

    pub fn kubeconfig_as(&self, dir: &Path, name: &str, identity: &Identity) -> PathBuf {
        let data = |text: String| pki::base64(text.as_bytes());
        let user = format!(
            "client-certificate-data: {}\n    client-key-data: {}",
            data(identity.certificate_pem()),
            data(identity.key_pem())
        );
        self.write_kubeconfig(dir, name, &user)
    }

    /// The same for a user with a new token.
    pub fn kubeconfig_with_token(&self, dir: &Path, user: &str, token: &str, groups: &[&str]) -> PathBuf {
        self.add_token(token, user, groups);
        self.write_kubeconfig(dir, user, &format!("token: {token:?}"))
    }

    fn write_kubeconfig(&self, dir: &Path, name: &str, user: &str) -> PathBuf {
        let path = dir.join(format!("kubeconfig-{}", name.replace([':', '/'], "-")));
        let text = format!(
            "apiVersion: v1\nkind: Config\nclusters:\n- name: test\n  cluster:\n    server: {}\n    \
             certificate-authority-data: {}\nusers:\n- name: {name:?}\n  user:\n    {user}\ncontexts:\n- name: test\n  \
             context:\n    cluster: test\n    user: {name:?}\ncurrent-context: test\n",
            self.url(),
            pki::base64(self.ca_pem().as_bytes()),
        );
        // It has keys.
        let file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path);
        file.and_then(|mut file| file.write_all(text.as_bytes())).expect("the test's folder can be written");
        path
    }

    // ---- the link ------------------------------------------------------------------------------------

    /// The server is down: connections are closed, and new ones refused. Objects and history are kept.
    pub fn stop_listening(&self) {
        self.command(wire::Command::Refuse);
    }

    /// The server is up again, on the same port.
    pub fn listen_again(&self) {
        self.command(wire::Command::Listen);
    }

    /// Closes every connection abruptly.
    pub fn cut_connections(&self) {
        self.command(wire::Command::Cut);
    }

    /// Sends GOAWAY to every client; requests in progress complete.
    pub fn go_away(&self) {
        self.command(wire::Command::GoAway);
    }

    /// Freezes the link silently: no byte is transferred in either direction; or thaws it.
    pub fn freeze(&self, frozen: bool) {
        self.shared.link.freeze(frozen);
    }

    /// Bytes received and sent below TLS since the start.
    pub fn bytes_received(&self) -> u64 {
        self.shared.link.received.load(Ordering::Relaxed)
    }

    pub fn bytes_sent(&self) -> u64 {
        self.shared.link.sent.load(Ordering::Relaxed)
    }

    /// Number of connections since the start.
    pub fn connections(&self) -> u64 {
        self.shared.link.accepted.load(Ordering::Relaxed)
    }

    pub fn open_connections(&self) -> usize {
        self.shared.link.open.load(Ordering::Relaxed)
    }

    pub fn open_watches(&self) -> usize {
        self.shared.state().watches_open
    }

    fn command(&self, command: wire::Command) {
        let (done, ack) = std::sync::mpsc::channel();
        self.commands.try_send(wire::Message(command, done)).expect("the server's thread runs");
        ack.recv_timeout(PATIENCE).expect("the server's thread answers");
    }

    // ---- faults --------------------------------------------------------------------------------------

    /// The next `times` requests of this method (HTTP's, or the Kubernetes verb; empty: all) whose path begins so fail without
    /// an effect.
    pub fn fail_next(&self, times: u32, method: &str, path_prefix: &str, code: u16, reason: &str) {
        let fault = Fault::Fail { code, reason: reason.into() };
        self.shared.state().rule(times, method, path_prefix, fault);
    }

    /// The next `times` such requests take effect, but the connection is closed before the response.
    pub fn lose_next(&self, times: u32, method: &str, path_prefix: &str) {
        self.shared.state().rule(times, method, path_prefix, Fault::Lose);
    }

    /// Delays every request.
    pub fn delay(&self, delay: Duration) {
        self.shared.state().delay = delay;
    }

    /// Removes every fault and the delay.
    pub fn heal(&self) {
        self.shared.state().heal();
    }

    /// Drops the history: a watch from an earlier revision fails (410). Open watches continue, as in the real server.
    pub fn compact(&self) {
        self.shared.state().store.compact();
    }

    /// The server is started with a backup of its data, from before half of its revisions; the first watches meet a server that is not
    /// ready.
    pub fn restore(&self) {
        self.fail_next(8, "GET", "/", 503, "ServiceUnavailable");
        self.restore_at_once();
    }

    /// The same, and it is ready before anybody asks.
    pub fn restore_at_once(&self) {
        let mut state = self.shared.state();
        let revision = state.store.revision();
        state.store.restore(revision / 2);
        drop(state);
        self.cut_connections();
    }

    /// The kind of that failure.
    pub fn tell_expired(&self, how: Expired) {
        self.shared.state().expired = how;
    }

    /// Ends every open watch with an ERROR event: its revision is gone.
    pub fn expire_watches(&self) {
        let mut state = self.shared.state();
        state.expiries += 1;
        state.store.wake();
    }

    /// Sends a bookmark on every watch that accepts bookmarks.
    pub fn send_bookmarks(&self) {
        let mut state = self.shared.state();
        state.bookmarks += 1;
        state.store.wake();
    }

    // ---- objects -------------------------------------------------------------------------------------

    /// The current revision.
    pub fn revision(&self) -> u64 {
        self.shared.state().store.revision()
    }

    /// Creates an object, and its namespace if missing; returns the stored object.
    pub fn create(&self, plural: &str, object: Value) -> Value {
        let resource = kind(plural);
        let namespace = if resource.namespaced { own_namespace(&object) } else { String::new() };
        let now = self.now();
        let mut state = self.shared.state();
        if resource.namespaced && state.store.find(kind("namespaces"), "", &namespace).is_none() {
            let place = json!({"metadata": {"name": namespace}});
            done(state.store.create(kind("namespaces"), "", place, now));
        }
        done(state.store.create(resource, &namespace, object, now))
    }

    /// An empty namespace means cluster scope.
    pub fn get(&self, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        self.shared.state().store.find(kind(plural), namespace, name).map(|object| Value::clone(&object))
    }

    /// All objects of a namespace; empty: of all namespaces.
    pub fn list(&self, plural: &str, namespace: &str) -> Vec<Value> {
        let scope =
            Scope { resource: kind(plural), namespace: namespace.into(), selector: Selector::default() };
        self.shared.state().store.all(&scope).iter().map(|object| Value::clone(object)).collect()
    }

    /// Replaces the object of that name, as PUT: without its status if that is a subresource.
    pub fn update(&self, plural: &str, object: Value) -> Value {
        let resource = kind(plural);
        let namespace = if resource.namespaced { own_namespace(&object) } else { String::new() };
        let key = (namespace, store::text(&object, "/metadata/name").to_owned());
        let now = self.now();
        done(self.shared.state().store.replace(resource, &key, object, Part::Main, now))
    }

    /// Sets an object's status.
    pub fn update_status(&self, plural: &str, namespace: &str, name: &str, status: Value) -> Value {
        let patch = json!({"status": status});
        // Removed first, so that no field of the former one is left.
        let none = json!({"status": null});
        let key = key(namespace, name);
        let mut state = self.shared.state();
        let old = done(state.store.read(kind(plural), namespace, name));
        let bare = patch::patched(&old, &none, PatchKind::Merge).expect("a merge patch always fits");
        let new = patch::patched(&bare, &patch, PatchKind::Merge).expect("a merge patch always fits");
        done(state.store.replace(kind(plural), &key, new, Part::Status, self.now()))
    }

    /// Applies a merge patch to the object, or to its status if it has only that.
    pub fn patch(&self, plural: &str, namespace: &str, name: &str, patch: &Value) -> Value {
        let resource = kind(plural);
        let only_status = patch.as_object().is_some_and(|fields| fields.keys().all(|key| key == "status"));
        let part = if resource.status && only_status { Part::Status } else { Part::Main };
        let patch = (patch, PatchKind::Merge);
        done(self.shared.state().store.patch(resource, &key(namespace, name), patch, part))
    }

    /// Deletes with this grace period, or the object's own; returns whether it is removed.
    pub fn delete(&self, plural: &str, namespace: &str, name: &str, grace_seconds: Option<i64>) -> bool {
        let how = Deletion { grace_seconds, ..Deletion::default() };
        let now = self.now();
        let deleted = self.shared.state().store.delete(kind(plural), &key(namespace, name), &how, now);
        deleted.unwrap_or_else(|failure| panic!("{}", failure.message)).1
    }

    /// Approves and signs a CertificateSigningRequest, as a serving certificate if its signer is the kubelets' serving one.
    pub fn approve_request(&self, name: &str) -> Value {
        self.approve_request_for(name, None)
    }

    /// The certificate is valid for so long.
    pub fn approve_request_for(&self, name: &str, time: Option<Duration>) -> Value {
        let now = self.now();
        let approved = review::approve(&mut self.shared.state().store, &self.shared.pki, (name, time), now);
        Value::clone(&approved.unwrap_or_else(|why| panic!("{why}")))
    }

    pub fn deny_request(&self, name: &str, reason: &str) -> Value {
        let denied = review::deny(&mut self.shared.state().store, name, reason, self.now());
        Value::clone(&denied.unwrap_or_else(|why| panic!("{why}")))
    }

    // ---- what was asked ------------------------------------------------------------------------------

    /// The recorded requests, the oldest first.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.state().requests()
    }

    pub fn clear_requests(&self) {
        self.shared.state().forget_requests();
    }

    /// Number of requests since the start.
    pub fn request_count(&self) -> u64 {
        self.shared.state().asked()
    }

    /// Number of [`ApiServer::requests`] with this method (HTTP's, or the Kubernetes verb; empty: all) whose path begins so.
    pub fn count(&self, method: &str, path_prefix: &str) -> usize {
        self.shared.state().count(method, path_prefix)
    }

    /// Issued service account tokens, the oldest first.
    pub fn tokens_issued(&self) -> Vec<IssuedToken> {
        self.shared.state().access.issued.iter().cloned().collect()
    }

    /// Waits (in real time) until `holds` returns true. Panics with the last requests after the deadline.
    pub fn wait_for(&self, what: &str, timeout: Duration, mut holds: impl FnMut(&Self) -> bool) {
        let start = Instant::now();
        while !holds(self) {
            if start.elapsed() > timeout {
                let requests = self.requests();
                let last: Vec<String> =
                    requests.iter().rev().take(30).rev().map(ToString::to_string).collect();
                panic!("waited {timeout:?} for {what}; the last requests:\n  {}", last.join("\n  "));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.commands.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The object of a successful operation; a failure is an error of the test.
fn done(outcome: Outcome<Object>) -> Value {
    match outcome {
        Ok(object) => Value::clone(&object),
        Err(failure) => panic!("{}", failure.message),
    }
}

fn kind(plural: &str) -> &'static Resource {
    resource::named(plural).unwrap_or_else(|| panic!("this server has no {plural}"))
}

fn key(namespace: &str, name: &str) -> Key {
    (namespace.to_owned(), name.to_owned())
}

fn own_namespace(object: &Value) -> String {
    match store::text(object, "/metadata/namespace") {
        "" => DEFAULT.to_owned(),
        namespace => namespace.to_owned(),
    }
}
