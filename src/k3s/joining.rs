//! Joins a k3s server: what it gives a node is fetched when there is none, and anew before it ends; the settings of its cluster
//! once at each start; which servers that has every ten minutes, when the certificates are looked at anyway, and after a tunnel
//! was lost. A task of its own: pods of manifests run meanwhile, and those of the cluster that were kept.

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use futures_rustls::pki_types::PrivateKeyDer;
use futures_rustls::pki_types::pem::PemObject as _;
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use smol::channel::{Receiver, Sender};

use crate::addresses::NodeAddresses;
use crate::certificates::{apart, is_for, usable};
use crate::clock::SharedClock;
use crate::cluster::csr::{self, Due};
use crate::config::{K3s, TokenSource};
use crate::filesystem::replace;
use crate::k3s::{Ask, List, Refused, Servers, Settings, Supervisor, Token, pinned};
use crate::kube::{self, Access, Client, Credential, Loaded, RetryWait, Rotation};
use crate::limits::{CERTIFICATE_LOOK, CSR_RETRY_MIN, K3S_LIST_PERIOD, K3S_LOST_WAIT, KUBE_RETRY_MIN};
use crate::model::Mono;
use crate::tls::certificates;
use crate::x509;

/// The files of a node of k3s, below the state directory.
#[derive(Clone, Debug)]
pub(crate) struct Files(PathBuf);

impl Files {
    pub(crate) fn new(root: &Path) -> Self {
        Self(root.join("k3s"))
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Authority behind the API server's certificate.
    fn server_ca(&self) -> PathBuf {
        self.at("server-ca.crt")
    }

    /// Authority behind the certificates of the node API's clients.
    pub(crate) fn client_ca(&self) -> PathBuf {
        self.at("client-ca.crt")
    }

    /// The node's certificate with its key.
    fn client(&self) -> PathBuf {
        self.at("client-kubelet.pem")
    }

    /// That of its API, with its key.
    pub(crate) fn serving(&self) -> PathBuf {
        self.at("serving-kubelet.pem")
    }

    /// What the server said of its cluster.
    fn settings(&self) -> PathBuf {
        self.at("config.json")
    }

    /// The servers of its cluster.
    fn servers(&self) -> PathBuf {
        self.at("servers.json")
    }

    /// The settings that were kept, if there are any. I/O, blocking.
    pub(crate) fn kept_settings(&self) -> Option<Settings> {
        Settings::parse(&read(&self.settings()).ok()?).ok()
    }

    /// Writes a file unless it is so already: nothing wears out for nothing. I/O, blocking.
    fn keep(&self, path: &Path, bytes: &[u8]) -> Result<(), String> {
        if read(path).is_ok_and(|found| found == bytes) {
            return Ok(());
        }
        std::fs::create_dir_all(&self.0).map_err(|error| format!("{}: {error}", self.0.display()))?;
        replace(path, &path.with_extension("new"), bytes)
            .map_err(|error| format!("{}: {error}", path.display()))
    }
}

/// What it takes.
pub(crate) struct Joining {
    pub(crate) k3s: K3s,
    pub(crate) supervisor: Supervisor,
    /// Whom it asks.
    pub(crate) servers: Rc<Servers>,
    /// Which of them.
    pub(crate) turn: RefCell<Rotation>,
    /// By what, once it has joined.
    pub(crate) access: Access,
    /// A tunnel was lost.
    pub(crate) lost: Receiver<()>,
    pub(crate) files: Files,
    pub(crate) kubeconfig: PathBuf,
    pub(crate) node: Box<str>,
    /// Its addresses, for which the certificate of its API is.
    pub(crate) addresses: NodeAddresses,
    pub(crate) client: Client,
    /// Whether the server reaches pods through the tunnel.
    pub(crate) pods: Rc<Cell<bool>>,
    /// Who wants to know the cluster's name servers.
    pub(crate) told: Option<Sender<Settings>>,
    pub(crate) clock: SharedClock,
}

/// What a request is made with.
struct With {
    loaded: Loaded,
    /// The token's, where there is one.
    authorization: Option<String>,
}

/// Where it stands.
struct State {
    /// The server was heard since the start.
    greeted: bool,
    /// The node has certificates that are not to be renewed yet.
    is_known: bool,
    /// It was said that nothing tells whom to trust.
    warned: bool,
    /// A new certificate is not renewed before this instant, whatever the clock says.
    kept: Mono,
    /// When the servers are asked for.
    list_due: Mono,
    /// How long the next try waits after one that failed.
    list_wait: Duration,
    /// What was wrong with their list.
    list_said: String,
}

impl Joining {
    /// Keeps the node joined, for ever.
    pub(crate) async fn run(self) {
        let mut said = String::new();
        let mut wait = RetryWait::new(kube::seed(&self.node));
        let now = self.clock.now().mono;
        let mut state = State {
            greeted: false,
            is_known: false,
            warned: false,
            kept: now,
            list_due: now,
            list_wait: KUBE_RETRY_MIN,
            list_said: String::new(),
        };
        let changes = self.addresses.changes();
        self.remember().await;
        loop {
            let pause = match self.turn(&mut state).await {
                Ok(pause) => {
                    wait.succeeded();
                    said.clear();
                    pause
                }
                Err(why) => {
                    if why != said {
                        log::warn!("joining failed: {why}; retrying");
                    }
                    said = why;
                    // A node that has what it needs asks for news only.
                    if state.is_known { CERTIFICATE_LOOK } else { wait.failed() }
                }
            };
            if state.greeted && state.list_due <= self.clock.now().mono {
                self.list(&mut state).await;
            }
            let until_list = state.list_due.since(self.clock.now().mono);
            let late = async {
                self.clock.sleep(if state.greeted { pause.min(until_list) } else { pause }).await;
                false
            };
            let lost = async { self.lost.recv().await.is_ok() || std::future::pending().await };
            // Others are in its certificates then.
            let changed = async {
                let _ = changes.recv().await;
                false
            };
            if smol::future::or(smol::future::or(late, lost), changed).await {
                state.list_due = state.list_due.min(self.clock.now().mono + K3S_LOST_WAIT);
            }
        }
    }

    /// The servers that were kept are known from the start: one of them may be the only one that is there.
    async fn remember(&self) {
        let (files, named) = (self.files.clone(), self.servers.named().clone());
        let kept = apart(move || {
            let servers = read(&files.servers()).ok().and_then(|bytes| List::kept(&bytes, &named));
            Ok((servers, files.kept_settings()))
        });
        let Ok((servers, settings)) = kept.await else { return };
        self.servers.set_api_port(settings.and_then(|settings| settings.api_port));
        if let Some(servers) = servers {
            self.servers.set(&List { servers, passed_over: None }, kube::seed(&self.node));
        }
    }

    /// Asks which servers the cluster has. The longer nobody knows, the more seldom.
    async fn list(&self, state: &mut State) {
        let now = self.clock.now().mono;
        state.list_due = now + state.list_wait;
        state.list_wait = (2 * state.list_wait).min(K3S_LIST_PERIOD);
        let wrong = match self.listed().await {
            Ok(Some(wrong)) => {
                state.list_due = now + K3S_LIST_PERIOD;
                state.list_wait = KUBE_RETRY_MIN;
                wrong
            }
            Ok(None) => return,
            Err(why) => why,
        };
        if !wrong.is_empty() && wrong != state.list_said {
            log::warn!("joining: the servers at /v1-k3s/apiservers: {wrong}");
        }
        state.list_said = wrong;
    }

    /// After what is listed counts and is kept: what was wrong with some of it. `None`: nobody knows at the moment. Those that are
    /// known stay then, and whatever is wrong.
    async fn listed(&self) -> Result<Option<String>, String> {
        let mut with = self.access.load().await.map_err(|error| error.to_string())?;
        let ask = Ask { path: "/v1-k3s/apiservers", ..Ask::default() };
        let list = match self.reach(&mut with, &ask).await {
            Ok(bytes) => List::parse(&bytes)?,
            // An older server knows no such list.
            Err(Refused::Status(404, _)) => return Ok(Some(String::new())),
            // Who is not there was said of the connection and the tunnels.
            Err(Refused::Unreachable(_)) => return Ok(None),
            Err(refused) => return Err(self.refused(&with, &refused)),
        };
        if list.servers.is_empty() {
            return list.passed_over.map_or(Ok(None), Err);
        }
        if self.servers.set(&list, kube::seed(&self.node)) {
            let names: Vec<String> = list.servers.iter().map(kube::ServerUrl::authority).collect();
            log::info!("node {}: k3s servers: {}", self.node, names.join(", "));
            self.client.servers_changed();
        }
        let (files, bytes) = (self.files.clone(), list.to_json(self.servers.named()));
        apart(move || files.keep(&files.servers(), &bytes)).await?;
        Ok(Some(list.passed_over.unwrap_or_default()))
    }

    /// Asks the server whose turn it is, or one behind it. Of one that answers that it is not ready there is nothing to be had.
    async fn reach(&self, with: &mut Loaded, ask: &Ask<'_>) -> Result<Vec<u8>, Refused> {
        let all = self.servers.supervisors();
        let mut first = String::new();
        loop {
            with.server = self.turn.borrow().aim(&all).clone();
            let refused = match self.supervisor.ask(with, ask).await {
                Err(refused @ (Refused::Unreachable(_) | Refused::Status(500.., _))) => refused,
                answer => {
                    self.turn.borrow_mut().reached(&with.server);
                    if !first.is_empty() {
                        log::warn!("joining: {first}; trying {} instead", with.server.authority());
                    }
                    return answer;
                }
            };
            let all_failed = self.turn.borrow_mut().failed(&with.server, all.len());
            let why = self.refused(with, &refused);
            if all_failed {
                return Err(match refused {
                    Refused::Unreachable(_) if !first.is_empty() => {
                        Refused::Unreachable(format!("{first}; {why}"))
                    }
                    refused => refused,
                });
            }
            if first.is_empty() {
                first = why;
            }
        }
    }

    /// Does what is to be done; how long to wait before the next look.
    async fn turn(&self, state: &mut State) -> Result<Duration, String> {
        let (kubeconfig, files, mark) = (self.kubeconfig.clone(), self.files.clone(), self.mark());
        let has_addresses = !self.addresses.now().is_empty();
        let (held, has_authorities, settings) = apart(move || {
            // What cannot be used is as good as none: it is replaced.
            let held = kube::credential(&kubeconfig).unwrap_or(Credential::NoKubeconfig);
            let serves = read(&files.serving()).ok().filter(|pem| is_for(pem, &mark, has_addresses));
            let serves = serves.is_some_and(|pem| usable(&pem).is_ok());
            let known = read(&files.client()).is_ok_and(|pem| usable(&pem).is_ok());
            let is_authority = |path: &Path| read(path).is_ok_and(|pem| certificates(&pem).is_some());
            let has_authorities = is_authority(&files.client_ca()) && is_authority(&files.server_ca());
            let held = match held {
                Credential::InFile(_, validity) if serves && known => Some(validity),
                _ => None,
            };
            Ok((held, has_authorities, files.kept_settings()))
        })
        .await?;
        let is_whole = has_authorities && settings.is_some();
        if let Some(kept) = settings.filter(|_| !state.greeted) {
            self.pods.set(kept.reaches_pods);
        }
        let now = self.clock.now();
        let pause = match held.map(|validity| csr::due(validity, now.wall, kube::seed(&self.node))) {
            Some(Due::Later(pause)) => Some(pause),
            Some(Due::Now | Due::Ended) if state.kept > now.mono => Some(CERTIFICATE_LOOK),
            Some(Due::Now | Due::Ended) | None => None,
        };
        state.is_known = pause.is_some() && is_whole;
        if let (true, true, Some(pause)) = (state.greeted, is_whole, pause) {
            return Ok(pause);
        }
        let mut with = self.greet(state).await?;
        let with = &mut with;
        let settings = Settings::parse(&self.get(with, "/v1-k3s/config", &[]).await?)?;
        let client_ca = self.get(with, "/v1-k3s/client-ca.crt", &[]).await?;
        let server_ca = self.get(with, "/v1-k3s/server-ca.crt", &[]).await?;
        for (path, pem) in [("client-ca.crt", &client_ca), ("server-ca.crt", &server_ca)] {
            if certificates(pem).is_none() {
                return Err(format!("/v1-k3s/{path} holds no certificate in PEM"));
            }
        }
        self.servers.set_api_port(settings.api_port);
        let text = kube::kubeconfig_of(self.servers.api(), &self.files.server_ca(), &self.files.client());
        let (files, client, server) = (self.files.clone(), client_ca.clone(), server_ca.clone());
        let same_cluster = apart(move || {
            let is = |path: &Path, pem: &[u8]| read(path).is_ok_and(|found| found == pem);
            Ok(is(&files.client_ca(), &client) && is(&files.server_ca(), &server))
        });
        let issued = match pause {
            Some(_) if same_cluster.await? => None,
            Some(_) | None => Some(self.issue(with).await?),
        };
        let (files, kubeconfig, known) = (self.files.clone(), self.kubeconfig.clone(), settings.clone());
        let renewed = issued.as_ref().map(|(_, _, validity)| *validity);
        apart(move || {
            files.keep(&files.settings(), &known.to_json())?;
            // Before the authorities: while these are another cluster's, certificates are fetched anew.
            if let Some((serving, client, _)) = issued {
                files.keep(&files.serving(), &serving)?;
                files.keep(&files.client(), &client)?;
            }
            files.keep(&files.client_ca(), &client_ca)?;
            files.keep(&files.server_ca(), &server_ca)?;
            // Last: it never names what is not there.
            files.keep(&kubeconfig, text.as_bytes())
        })
        .await?;
        state.greeted = true;
        self.pods.set(settings.reaches_pods);
        if let Some(told) = &self.told {
            // The loop goes last.
            let _ = told.send(settings).await;
        }
        if let Some(validity) = renewed {
            log::info!("node {}: client certificate valid until {}", self.node, validity.until);
            state.kept = now.mono + csr::least_age(validity);
            self.client.reconnect();
        }
        // Whatever is wrong with what it gave, the server is not asked again at once.
        Ok(CSR_RETRY_MIN)
    }

    /// Finds out whom to trust, and by what the server knows this node.
    async fn greet(&self, state: &mut State) -> Result<With, String> {
        let (source, files) = (self.k3s.token.clone(), self.files.clone());
        let (token, certificate, trusted) = apart(move || {
            let certificate = read(&files.client()).ok().filter(|pem| usable(pem).is_ok());
            let trusted = read(&files.server_ca()).ok().filter(|pem| certificates(pem).is_some());
            // Whoever is known by a certificate needs no token, which may have ended meanwhile, or be gone.
            let token = match token(&source) {
                Err(_) if certificate.is_some() && trusted.is_some() => None,
                token => Some(token?),
            };
            Ok((token, certificate.map(|pem| (pem.clone(), pem)), trusted))
        })
        .await?;
        let hash = token.as_ref().and_then(|token| token.authority.as_deref());
        let authorities = match (hash, trusted) {
            (None, Some(trusted)) => trusted,
            (hash, _) => {
                let mut anybody = self.loaded(None, None);
                let ask = Ask { path: "/cacerts", ..Ask::default() };
                let answer = self.reach(&mut anybody, &ask).await;
                let pem = answer.map_err(|refused| self.refused(&anybody, &refused))?;
                let server = &anybody.server.host;
                if let Some(hash) = hash {
                    pinned(&pem, hash).map_err(|why| format!("k3s server {server}: {why}"))?
                } else {
                    if !std::mem::replace(&mut state.warned, true) {
                        log::warn!(
                            "joining: the token has no CA hash; trusting the CA of k3s server {server} on first use; \
                             use the whole token of its /var/lib/rancher/k3s/server/node-token"
                        );
                    }
                    pem
                }
            }
        };
        let authorization = token.map(|token| token.authorization);
        Ok(With { loaded: self.loaded(Some(authorities), certificate), authorization })
    }

    fn loaded(&self, authorities: Option<Vec<u8>>, certificate: Option<(Vec<u8>, Vec<u8>)>) -> Loaded {
        // The one whose turn it is takes its place.
        let server = self.servers.named().clone();
        Loaded { server, server_name: None, authorities, certificate, token: None }
    }

    /// Certificates for the node's API and for itself, with keys that nobody else has; and from when until when they hold.
    async fn issue(&self, with: &mut With) -> Result<(Vec<u8>, Vec<u8>, x509::Validity), String> {
        let path = self.k3s.node_password.clone();
        let password = apart(move || node_password(&path)).await?;
        let ips = self.addresses.now().join(",");
        let headers = [
            ("k3s-node-name", &*self.node),
            ("k3s-node-password", password.as_str()),
            ("k3s-node-ip", ips.as_str()),
        ];
        let (serving, _) = self.certificate(with, "/v1-k3s/serving-kubelet.crt", &headers).await?;
        let (client, validity) = self.certificate(with, "/v1-k3s/client-kubelet.crt", &headers).await?;
        Ok(([self.mark().as_bytes(), &serving].concat(), client, validity))
    }

    /// What the certificate of the node's API begins with: for whom it is.
    fn mark(&self) -> String {
        format!("# {} {}\n", self.node, self.addresses.now().join(" "))
    }

    /// One certificate, with its key in PEM behind it.
    async fn certificate(
        &self,
        with: &mut With,
        path: &str,
        headers: &[(&'static str, &str)],
    ) -> Result<(Vec<u8>, x509::Validity), String> {
        let at = |why: String| format!("{path}: {why}");
        let key = KeyPair::generate().map_err(|error| at(error.to_string()))?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let request = params.serialize_request(&key).map_err(|error| at(error.to_string()))?;
        let posted = self.ask(with, path, headers, request.der()).await;
        let mut pem = match posted {
            // Servers before 1.27 know no requests of nodes, and send a key.
            Err(Refused::Status(404 | 405, _)) => self.get(with, path, headers).await?,
            answer => answer.map_err(|refused| self.refused(&with.loaded, &refused))?,
        };
        if !pem.ends_with(b"\n") {
            pem.push(b'\n');
        }
        if PrivateKeyDer::from_pem_slice(&pem).is_err() {
            pem.extend_from_slice(x509::pem("PRIVATE KEY", key.serialized_der()).as_bytes());
        }
        let validity = usable(&pem).map_err(|why| at(format!("what the server sends {why}")))?;
        Ok((pem, validity))
    }

    async fn get(
        &self,
        with: &mut With,
        path: &str,
        headers: &[(&'static str, &str)],
    ) -> Result<Vec<u8>, String> {
        let answer = self.ask(with, path, headers, &[]).await;
        answer.map_err(|refused| self.refused(&with.loaded, &refused))
    }

    /// By certificate and token; by the token alone when the certificate is nobody's any more (as k3s).
    async fn ask(
        &self,
        with: &mut With,
        path: &str,
        headers: &[(&'static str, &str)],
        body: &[u8],
    ) -> Result<Vec<u8>, Refused> {
        let ask = Ask { body: body.to_vec(), path, authorization: with.authorization.as_deref(), headers };
        let answer = self.reach(&mut with.loaded, &ask).await;
        match answer {
            Err(Refused::Status(401, _) | Refused::Unreachable(_)) if with.loaded.certificate.is_some() => {
                let mut unknown = self.loaded(with.loaded.authorities.clone(), None);
                let answer = self.reach(&mut unknown, &ask).await;
                with.loaded.server = unknown.server;
                answer
            }
            answer => answer,
        }
    }

    /// The refusal of that server as a sentence with its mend.
    fn refused(&self, with: &Loaded, refused: &Refused) -> String {
        let host = &with.server.host;
        let node = &self.node;
        match refused {
            Refused::Unreachable(why) => why.clone(),
            Refused::Status(401, _) => format!(
                "k3s server {host} does not take the token; take it anew from the server's \
                 /var/lib/rancher/k3s/server/node-token, or make one: k3s token create"
            ),
            Refused::Status(403, _) => format!(
                "k3s server {host} knows node {node} by another password than that of {}: another machine has this name (give \
                 another one: --node-name), or the file was lost (kubectl -n kube-system delete secret \
                 {node}.node-password.k3s)",
                self.k3s.node_password.display()
            ),
            Refused::Status(404, _) => {
                format!("{host} is no k3s server; --server names its address, https://HOST:6443")
            }
            Refused::Status(503, said) => format!("k3s server {host} is not ready yet ({said})"),
            Refused::Status(code, said) => format!("k3s server {host} answers {code}: {said}"),
        }
    }
}

/// The token, wherever it is. I/O, blocking.
fn token(source: &TokenSource) -> Result<Token, String> {
    match source {
        TokenSource::Given(text) => Token::parse(text.expose()).map_err(|why| format!("--token {why}")),
        TokenSource::File(path) => {
            let at = |why: String| format!("--token-file: {}: {why}", path.display());
            let text = read(path).map_err(at)?;
            Token::parse(&String::from_utf8_lossy(&text)).map_err(at)
        }
    }
}

/// The password by which the server tells this node from others of its name: made once, and kept for good. I/O, blocking.
fn node_password(path: &Path) -> Result<String, String> {
    let at = |error: String| format!("node password {}: {error}", path.display());
    match kube::read(path) {
        Ok(bytes) if !bytes.trim_ascii().is_empty() => {
            return String::from_utf8(bytes.trim_ascii().to_vec()).map_err(|_| at("is no text".to_owned()));
        }
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(at(error.to_string())),
        Ok(_) | Err(_) => {}
    }
    let random = crate::k3s::random::<16>().map_err(at)?;
    let password = crate::text::hex(&random);
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(|error| at(error.to_string()))?;
    }
    replace(path, &path.with_extension("new"), format!("{password}\n").as_bytes())
        .map_err(|error| at(error.to_string()))?;
    Ok(password)
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    kube::read(path).map_err(|error| error.to_string())
}
