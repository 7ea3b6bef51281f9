//! A Kubernetes API server that knows a node's kinds of objects: stateful, with real HTTP/2 over real TLS on loopback, on a
//! thread of its own. [`ApiServer`] is the handle a test holds: it looks at objects and changes them, breaks things and
//! waits.
//!
//! `store` owns objects and their history, `write` the rules for changing them, `patch` and `defaults` are the pure parts of
//! that; `resource` reads paths and queries; `watch` tells changes; `review` answers who may do what and `authorize` what a
//! node may; `handle` takes one request through all of it; `wire` owns sockets, TLS and the link; `pki` and `der`
//! certificates; `state` what both threads share.
//!
//! Objects are JSON, as the wire has them. A test names a kind by its plural (`pods`), and an object without a namespace is
//! in `default`.
//!
//! Time comes from the [`FakeClock`]: timestamps, the times of watches and delays are virtual when it is.
//!
//! Left out: json patches and server-side apply, deletion of collections, eviction, managed fields, validation beyond what
//! a node can run into, protobuf, tables, compression, discovery.

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
use std::net::{SocketAddr, TcpListener};
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

/// How long the server's thread may take for anything a test asks of it.
const PATIENCE: Duration = Duration::from_secs(30);
/// Where what has no namespace goes.
const DEFAULT: &str = "default";

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub groups: Vec<String>,
}

/// The server; ends when dropped, with its thread and its sockets.
pub struct ApiServer {
    shared: Arc<Shared>,
    commands: smol::channel::Sender<wire::Letter>,
    thread: Option<JoinHandle<()>>,
    address: SocketAddr,
    /// Holds the port while nobody listens on it.
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

    /// Listens on a port of its own, with the namespaces of an empty cluster.
    pub fn start_on(clock: impl Into<FakeClock>) -> Self {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            clock: clock.into(),
            pki: Pki::new(),
            link: wire::Link::default(),
            gauge: Arc::default(),
        });
        let port = TcpListener::from(wire::bound(0).expect("loopback has a free port"));
        let address = port.local_addr().expect("a bound socket has an address");
        let (commands, inbox) = smol::channel::unbounded();
        let thread = {
            let shared = shared.clone();
            std::thread::Builder::new()
                .name("api-server".into())
                .spawn(move || wire::run(shared, address.port(), inbox))
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

    /// Its thread has nothing to do: what has come is answered, and the answer written.
    pub fn is_idle(&self) -> bool {
        self.shared.gauge.idle()
    }

    fn now(&self) -> Wall {
        self.shared.clock.now().wall
    }

    // ---- who may come in -----------------------------------------------------------------------------

    /// The authority behind the server's certificate.
    pub fn ca_pem(&self) -> String {
        self.shared.pki.cluster.pem()
    }

    /// The authority behind clients' certificates, and behind those that the server signs for nodes.
    pub fn client_ca_pem(&self) -> String {
        self.shared.pki.clients.pem()
    }

    /// A client's certificate and key. Two groups at most; valid always, or between two times.
    pub fn identity(&self, user: &str, groups: &[&str], valid: Option<(Wall, Wall)>) -> Identity {
        self.shared.pki.clients.client(user, groups, valid)
    }

    /// Lets this token in, and says yes to it in TokenReviews.
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

    /// From now on a node may do only what the real server lets it do.
    pub fn authorize_nodes(&self) {
        self.shared.state().authorizes_nodes = true;
    }

    /// What a node may ask for by a pod of its is refused so often first: the authorizer learns of pods later than the node.
    pub fn authorize_late(&self, refusals: u32) {
        self.shared.state().lag.refusals = refusals;
    }

    /// From now on pods need their service account, and get the volume with its token.
    pub fn admit_accounts(&self) {
        self.shared.state().store.admits_accounts = true;
    }

    /// A kubeconfig below `dir` for a user with a certificate, who is in the nodes' group when he is a node, else in the
    /// masters'.
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

    /// The same for a user with a token, which is let in from now on.
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
        // Keys are in it.
        let file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path);
        file.and_then(|mut file| file.write_all(text.as_bytes())).expect("the test's folder can be written");
        path
    }

    // ---- the link ------------------------------------------------------------------------------------

    /// The server is down: connections are cut, and new ones refused. Objects and history stay.
    pub fn stop_listening(&self) {
        self.command(wire::Command::Refuse);
    }

    /// It is back, on the same port.
    pub fn listen_again(&self) {
        self.command(wire::Command::Listen);
    }

    /// Cuts every connection without a word.
    pub fn cut_connections(&self) {
        self.command(wire::Command::Cut);
    }

    /// Asks every client to go to another connection (GOAWAY); what is under way ends in peace.
    pub fn go_away(&self) {
        self.command(wire::Command::GoAway);
    }

    /// Nothing goes over the wire any more, either way, and nobody is told; or it does again.
    pub fn freeze(&self, frozen: bool) {
        self.shared.link.freeze(frozen);
    }

    /// Bytes that came and went below TLS, since the start.
    pub fn bytes_received(&self) -> u64 {
        self.shared.link.received.load(Ordering::Relaxed)
    }

    pub fn bytes_sent(&self) -> u64 {
        self.shared.link.sent.load(Ordering::Relaxed)
    }

    /// Connections since the start.
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
        self.commands.try_send(wire::Letter(command, done)).expect("the server's thread runs");
        ack.recv_timeout(PATIENCE).expect("the server's thread answers");
    }

    // ---- faults --------------------------------------------------------------------------------------

    /// The next `times` requests of this method (HTTP's, or Kubernetes' verb; empty: all) whose path begins so fail; nothing
    /// is done.
    pub fn fail_next(&self, times: u32, method: &str, path_prefix: &str, code: u16, reason: &str) {
        let fault = Fault::Fail { code, reason: reason.into() };
        self.shared.state().rule(times, method, path_prefix, fault);
    }

    /// The next `times` such requests are done, but the connection is cut before the answer.
    pub fn lose_next(&self, times: u32, method: &str, path_prefix: &str) {
        self.shared.state().rule(times, method, path_prefix, Fault::Lose);
    }

    /// Every request waits so long before anything is done.
    pub fn delay(&self, delay: Duration) {
        self.shared.state().delay = delay;
    }

    /// Takes back every fault and the delay.
    pub fn heal(&self) {
        self.shared.state().heal();
    }

    /// Forgets the history: whoever goes on from a revision that he has seen is told that it is gone (410). Open watches
    /// go on, as with the real server.
    pub fn compact(&self) {
        self.shared.state().store.compact();
    }

    /// How those are told.
    pub fn tell_expired(&self, how: Expired) {
        self.shared.state().expired = how;
    }

    /// Ends every open watch with an ERROR event: its revision is gone.
    pub fn expire_watches(&self) {
        let mut state = self.shared.state();
        state.expiries += 1;
        state.store.wake();
    }

    /// Sends a bookmark on every watch that wants such.
    pub fn send_bookmarks(&self) {
        let mut state = self.shared.state();
        state.bookmarks += 1;
        state.store.wake();
    }

    // ---- objects -------------------------------------------------------------------------------------

    /// The newest revision.
    pub fn revision(&self) -> u64 {
        self.shared.state().store.revision()
    }

    /// Creates an object, and its namespace where that is missing; the object as it is kept.
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

    /// An empty namespace is the cluster's scope.
    pub fn get(&self, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        self.shared.state().store.find(kind(plural), namespace, name).map(|object| Value::clone(&object))
    }

    /// All of a namespace; empty: of all.
    pub fn list(&self, plural: &str, namespace: &str) -> Vec<Value> {
        let scope =
            Scope { resource: kind(plural), namespace: namespace.into(), selector: Selector::default() };
        self.shared.state().store.all(&scope).iter().map(|object| Value::clone(object)).collect()
    }

    /// Puts the object in the place of the one with its name, as PUT does: without its status where that has a path of its
    /// own.
    pub fn update(&self, plural: &str, object: Value) -> Value {
        let resource = kind(plural);
        let namespace = if resource.namespaced { own_namespace(&object) } else { String::new() };
        let key = (namespace, store::text(&object, "/metadata/name").to_owned());
        let now = self.now();
        done(self.shared.state().store.replace(resource, &key, object, Part::Main, now))
    }

    /// Gives an object this status instead of its own.
    pub fn update_status(&self, plural: &str, namespace: &str, name: &str, status: Value) -> Value {
        let patch = json!({"status": status});
        // Taken away first, so that nothing of the old one is left.
        let none = json!({"status": null});
        let key = key(namespace, name);
        let mut state = self.shared.state();
        let old = done(state.store.read(kind(plural), namespace, name));
        let bare = patch::patched(&old, &none, PatchKind::Merge).expect("a merge patch always fits");
        let new = patch::patched(&bare, &patch, PatchKind::Merge).expect("a merge patch always fits");
        done(state.store.replace(kind(plural), &key, new, Part::Status, self.now()))
    }

    /// A merge patch of the object, or of its status if it names that alone.
    pub fn patch(&self, plural: &str, namespace: &str, name: &str, patch: &Value) -> Value {
        let resource = kind(plural);
        let only_status = patch.as_object().is_some_and(|fields| fields.keys().all(|key| key == "status"));
        let part = if resource.status && only_status { Part::Status } else { Part::Main };
        let patch = (patch, PatchKind::Merge);
        done(self.shared.state().store.patch(resource, &key(namespace, name), patch, part))
    }

    /// Deletes with this grace period, or the object's own; whether it is gone.
    pub fn delete(&self, plural: &str, namespace: &str, name: &str, grace_seconds: Option<i64>) -> bool {
        let how = Deletion { grace_seconds, ..Deletion::default() };
        let now = self.now();
        let deleted = self.shared.state().store.delete(kind(plural), &key(namespace, name), &how, now);
        deleted.unwrap_or_else(|failure| panic!("{}", failure.message)).1
    }

    /// Approves a CertificateSigningRequest and signs it, for a server when its signer is the kubelets'.
    pub fn approve_request(&self, name: &str) -> Value {
        self.approve_request_for(name, None)
    }

    /// The certificate is good for so long.
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

    /// The requests so far, the oldest first; of very many only the last ones.
    pub fn requests(&self) -> Vec<Request> {
        self.shared.state().requests()
    }

    pub fn clear_requests(&self) {
        self.shared.state().forget_requests();
    }

    /// How many requests there were since the start.
    pub fn request_count(&self) -> u64 {
        self.shared.state().asked()
    }

    /// How many of [`ApiServer::requests`] are of this method (HTTP's, or Kubernetes' verb; empty: all) and begin so.
    pub fn count(&self, method: &str, path_prefix: &str) -> usize {
        self.shared.state().count(method, path_prefix)
    }

    /// Service accounts' tokens, the oldest first.
    pub fn tokens_issued(&self) -> Vec<IssuedToken> {
        self.shared.state().access.issued.iter().cloned().collect()
    }

    /// Waits (in real time) until `holds`. Panics with the last requests when it never does.
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

/// What a test asks of the store is done, or the test is wrong.
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
