//! Joins a k3s server: carries out the steps that [`Joining`] decides on. Certificates are requested if there are none, and
//! before they expire; the cluster's settings once at each start; the list of servers every ten minutes, with the check of the
//! certificates, and after a tunnel was lost. A task of its own: meanwhile static pods run, and those of the offline copy.

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use futures_rustls::pki_types::PrivateKeyDer;
use futures_rustls::pki_types::pem::PemObject as _;
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use smol::channel::{Receiver, Sender};

use super::files::{Files, node_password};
use super::joining::{
    Certificates, Cluster, Credentials, Given, Inspection, Joining, Line, Next, Outcome, Step,
};
use super::{Ask, Component, ComponentClients, Does, List, Refused, Servers, Settings, Supervisor};
use crate::addresses::NodeAddresses;
use crate::certificates::{apart, usable};
use crate::clock::SharedClock;
use crate::config::K3s;
use crate::kernel_tunables::network::{self, Network};
use crate::kube::{self, Access, Client, Loaded, Rotation, ServerUrl};
use crate::limits::MODPROBE_TIME;
use crate::program;
use crate::x509;

/// Inputs of the join task.
pub(crate) struct JoinTask {
    pub(crate) k3s: K3s,
    pub(crate) supervisor: Supervisor,
    /// The servers of the cluster.
    pub(crate) servers: Rc<Servers>,
    /// The choice of the next server.
    pub(crate) turn: RefCell<Rotation>,
    /// The node's credentials, once it has joined.
    pub(crate) access: Access,
    /// Notified when a tunnel was lost, or the cluster has other API servers.
    pub(crate) lost: Receiver<()>,
    pub(crate) files: Files,
    pub(crate) kubeconfig: PathBuf,
    pub(crate) node: Box<str>,
    /// The node's addresses, which the certificate of its API has to name.
    pub(crate) addresses: NodeAddresses,
    /// Further ones that it has to name (`--node-external-ip`).
    pub(crate) external_addresses: Vec<Box<str>>,
    pub(crate) client: Client,
    /// The clients of the components, which get credentials here.
    pub(crate) components: ComponentClients,
    /// Whether the server reaches pods through the tunnel.
    pub(crate) pods: Rc<Cell<bool>>,
    /// Receives the cluster's settings.
    pub(crate) settings: Sender<Settings>,
    pub(crate) clock: SharedClock,
    pub(crate) kernel: Kernel,
    pub(crate) does: Does,
    /// What the node leaves out of a k3s node's network, as it was logged last.
    pub(crate) left_out: RefCell<String>,
    /// The servers' flags without an effect here, likewise.
    pub(crate) no_effect: RefCell<Vec<&'static str>>,
}

/// The kernel that the cluster's network needs.
pub(crate) struct Kernel {
    /// `/proc/sys`
    pub(crate) sysctl_root: PathBuf,
    pub(crate) cpus: u64,
    /// What was logged last of it; empty: nothing lacks.
    pub(crate) lacking: RefCell<String>,
}

impl JoinTask {
    /// Joins the node and keeps it joined; never returns.
    pub(crate) async fn run(self) {
        let changes = self.addresses.changes();
        self.restore().await;
        let mut joining = Joining::new(&self.node, self.clock.now().mono);
        let mut step = Step::Inspect;
        loop {
            let outcome = self.perform(step, &changes).await;
            let next: Next;
            (joining, next) = joining.next(outcome, self.clock.now());
            match next.line {
                Some(Line::Info(text)) => log::info!("{text}"),
                Some(Line::Warn(text)) => log::warn!("{text}"),
                None => {}
            }
            step = next.step;
        }
    }

    /// What was kept counts from the start: one of these servers may be the only one that is there.
    async fn restore(&self) {
        let (files, named) = (self.files.clone(), self.servers.named().clone());
        let kept = apart(move || Ok((files.kept_servers(&named), files.kept_settings())));
        let Ok((servers, settings)) = kept.await else { return };
        self.servers.set_api_port(settings.as_ref().and_then(|settings| settings.api_port));
        if let Some(settings) = &settings {
            self.pods.set(settings.reaches_pods);
        }
        if let Some(servers) = servers {
            self.servers.set(&List { servers, skipped: None }, kube::seed(&self.node));
        }
        if let Some(settings) = settings {
            self.set_up_kernel(&settings).await;
        }
    }

    /// Sets up the kernel for the network of a cluster with these settings; what lacks is logged once.
    async fn set_up_kernel(&self, settings: &Settings) {
        let conntrack = self.k3s.conntrack;
        let of = Network { has_ipv6: settings.has_ipv6(), cpus: self.kernel.cpus, conntrack };
        let (root, modprobe) = (self.kernel.sysctl_root.clone(), self.k3s.modprobe.clone());
        let done = apart(move || network::set_up(&root, of, |module| load(&modprobe, module))).await;
        let why = done.err().unwrap_or_default();
        if !why.is_empty() && *self.kernel.lacking.borrow() != why {
            log::warn!("{why}");
        }
        self.kernel.lacking.replace(why);
    }

    /// Each step on the heap: during the wait, which is nearly always, the others take no memory.
    async fn perform(&self, step: Step, changes: &Receiver<()>) -> Outcome {
        let done = match step {
            Step::Wait(pause) => return self.wait(pause, changes).await,
            Step::FetchServers => return Box::pin(self.fetch_servers()).await,
            Step::Inspect => Box::pin(self.inspect()).await,
            Step::ReadToken => Box::pin(self.read_token()).await,
            Step::FetchAuthority => Box::pin(self.fetch_authority()).await,
            Step::FetchCluster(credentials) => Box::pin(self.fetch_cluster(&credentials)).await,
            Step::ReadPassword => Box::pin(self.read_password()).await,
            Step::RequestCertificates { credentials, password } => {
                Box::pin(self.request_certificates(&credentials, &password)).await
            }
            Step::Store(given) => Box::pin(self.store(*given)).await,
            Step::Publish { is_renewed } => Ok(self.publish(is_renewed)),
            Step::RequestComponents(credentials) => Box::pin(self.request_components(&credentials)).await,
            Step::StoreServers(list) => Box::pin(self.store_servers(list)).await,
        };
        done.unwrap_or_else(Outcome::Failed)
    }

    async fn wait(&self, pause: Duration, changes: &Receiver<()>) -> Outcome {
        let late = async {
            self.clock.sleep(pause).await;
            Outcome::Waited
        };
        let lost = async {
            match self.lost.recv().await {
                Ok(()) => Outcome::TunnelLost,
                // There are no tunnels.
                Err(_) => std::future::pending().await,
            }
        };
        // Others are in its certificates then.
        let changed = async {
            let _ = changes.recv().await;
            Outcome::Waited
        };
        smol::future::or(smol::future::or(late, lost), changed).await
    }

    async fn inspect(&self) -> Result<Outcome, String> {
        let (kubeconfig, files, mark) = (self.kubeconfig.clone(), self.files.clone(), self.mark());
        let has_addresses = !self.addresses.now().is_empty();
        let node = self.node.clone();
        let inspect = move || Ok(Inspection::new(files.found(&kubeconfig), &node, &mark, has_addresses));
        let inspection = apart(inspect).await?;
        Ok(Outcome::Inspected(inspection))
    }

    async fn read_token(&self) -> Result<Outcome, String> {
        let (source, files, node) = (self.k3s.token.clone(), self.files.clone(), self.node.clone());
        apart(move || Ok(files.identity(&source, &node))).await.map(Outcome::Identified)
    }

    async fn fetch_authority(&self) -> Result<Outcome, String> {
        let mut anybody = self.anybody();
        let ask = Ask { path: "/cacerts", ..Ask::default() };
        let answer = self.reach(&mut anybody, &ask).await;
        let pem = answer.map_err(|refused| self.explain(&anybody, &refused))?;
        Ok(Outcome::Authority { host: anybody.server.host, pem })
    }

    async fn fetch_cluster(&self, credentials: &Credentials) -> Result<Outcome, String> {
        let settings = Settings::parse(&self.get(credentials, "/v1-k3s/config", &[]).await?)?;
        let client_ca = self.get(credentials, "/v1-k3s/client-ca.crt", &[]).await?;
        let server_ca = self.get(credentials, "/v1-k3s/server-ca.crt", &[]).await?;
        let cluster = Cluster::new(settings, client_ca, server_ca)?;
        // Before the certificates, which name them in this order.
        self.addresses.put_first(cluster.settings.network.is_v6_first);
        self.servers.set_api_port(cluster.settings.api_port);
        Ok(Outcome::Described(Box::new(cluster)))
    }

    async fn read_password(&self) -> Result<Outcome, String> {
        let path = self.k3s.node_password.clone();
        apart(move || node_password(&path)).await.map(Outcome::Password)
    }

    /// Certificates for the node's API and for itself, with keys that nobody else has.
    async fn request_certificates(
        &self,
        credentials: &Credentials,
        password: &str,
    ) -> Result<Outcome, String> {
        let ips = self.certified_addresses().join(",");
        let headers =
            [("k3s-node-name", &*self.node), ("k3s-node-password", password), ("k3s-node-ip", ips.as_str())];
        let (serving, _) = self.certificate(credentials, "/v1-k3s/serving-kubelet.crt", &headers).await?;
        let (client, validity) =
            self.certificate(credentials, "/v1-k3s/client-kubelet.crt", &headers).await?;
        let serving = [self.mark().as_bytes(), &serving].concat();
        Ok(Outcome::Issued(Certificates { serving, client, validity }))
    }

    async fn store(&self, given: Given) -> Result<Outcome, String> {
        self.pods.set(given.cluster.settings.reaches_pods);
        // Closed: the process ends.
        let _ = self.settings.send(given.cluster.settings.clone()).await;
        self.set_up_kernel(&given.cluster.settings).await;
        let left_out = given.cluster.settings.left_out(self.does);
        if !left_out.is_empty() && *self.left_out.borrow() != left_out {
            log::warn!(
                "k3s agent does more for the network of this cluster: {left_out}; give these flags, or start smolet agent"
            );
        }
        for flag in &given.cluster.settings.no_effect {
            if !self.no_effect.borrow().contains(flag) {
                log::warn!(
                    "the servers' {flag} has no effect on this node: its images come from the registries that their names say, or from mirrors \
                     (registries.yaml)"
                );
            }
        }
        self.no_effect.replace(given.cluster.settings.no_effect.clone());
        self.left_out.replace(left_out);
        let (files, kubeconfig) = (self.files.clone(), self.kubeconfig.clone());
        let text = kube::kubeconfig_of(self.servers.api(), &files.server_ca(), &files.client());
        let components = Component::ALL.map(|of| self.component_kubeconfig(of));
        apart(move || files.store(&given, &kubeconfig, &text, &components)).await?;
        Ok(Outcome::Stored)
    }

    fn component_kubeconfig(&self, of: Component) -> String {
        kube::kubeconfig_of(self.servers.api(), &self.files.server_ca(), &self.files.component(of))
    }

    /// Certificates for the components, each written as it comes. The error is the first one.
    async fn request_components(&self, credentials: &Credentials) -> Result<Outcome, String> {
        let (mut shortest, mut failed) = (None::<x509::Validity>, None);
        for of in Component::ALL {
            match self.request_component(credentials, of).await {
                Ok(validity) if shortest.is_none_or(|other| other.until > validity.until) => {
                    shortest = Some(validity);
                }
                Ok(_) => {}
                Err(why) => failed = failed.or(Some(why)),
            }
        }
        match (failed, shortest) {
            (None, Some(validity)) => {
                let until = validity.until;
                log::info!(
                    "node {}: credentials of k3s' service proxy and controller valid until {until}",
                    self.node
                );
                Ok(Outcome::ComponentsStored(validity))
            }
            (failed, _) => Err(failed.unwrap_or_default()),
        }
    }

    async fn request_component(
        &self,
        credentials: &Credentials,
        of: Component,
    ) -> Result<x509::Validity, String> {
        let issued = self.certificate(credentials, of.path(), &[]).await;
        let (pem, validity) = issued.map_err(|why| format!("{}: {why}", of.name()))?;
        let (files, text) = (self.files.clone(), self.component_kubeconfig(of));
        apart(move || files.store_component(of, &pem, &text)).await?;
        self.components.renewed(of);
        Ok(validity)
    }

    fn publish(&self, is_renewed: bool) -> Outcome {
        if is_renewed {
            self.client.reconnect();
        }
        Outcome::Published
    }

    async fn fetch_servers(&self) -> Outcome {
        let mut with = match self.access.load().await {
            Ok(with) => with,
            Err(error) => return Outcome::Failed(error.to_string()),
        };
        let ask = Ask { path: "/v1-k3s/apiservers", ..Ask::default() };
        match self.reach(&mut with, &ask).await {
            Ok(list) => Outcome::Servers(list),
            Err(refused) => Outcome::NoServers { why: self.explain(&with, &refused), refused },
        }
    }

    /// Applies the list of servers, and stores it.
    async fn store_servers(&self, list: List) -> Result<Outcome, String> {
        if self.servers.set(&list, kube::seed(&self.node)) {
            let names: Vec<String> = list.servers.iter().map(ServerUrl::authority).collect();
            log::info!("node {}: k3s servers: {}", self.node, names.join(", "));
            self.client.servers_changed();
            self.components.servers_changed();
        }
        let (files, bytes) = (self.files.clone(), list.to_json(self.servers.named()));
        apart(move || files.store_servers(&bytes)).await?;
        Ok(Outcome::ServersStored)
    }

    /// The first line of the serving certificate's file: the names it is valid for.
    fn mark(&self) -> String {
        format!("# {} {}\n", self.node, self.certified_addresses().join(" "))
    }

    fn certified_addresses(&self) -> Vec<Box<str>> {
        let mut addresses = self.addresses.now();
        // Before the node has an address of its own, its certificate is for its name alone.
        if !addresses.is_empty() {
            addresses.extend(self.external_addresses.iter().cloned());
        }
        addresses
    }

    /// One certificate, with its key in PEM behind it.
    async fn certificate(
        &self,
        credentials: &Credentials,
        path: &str,
        headers: &[(&'static str, &str)],
    ) -> Result<(Vec<u8>, x509::Validity), String> {
        let at = |why: String| format!("{path}: {why}");
        let key = KeyPair::generate().map_err(|error| at(error.to_string()))?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let request = params.serialize_request(&key).map_err(|error| at(error.to_string()))?;
        let mut pem = match self.ask(credentials, path, headers, request.der()).await {
            Err((_, refused)) if refused.is_of_older_server() => self.get(credentials, path, headers).await?,
            answer => answer.map_err(|(with, refused)| match refused {
                // Without the node's password nothing can be wrong with it.
                Refused::Status(403, said) if headers.is_empty() => {
                    format!("k3s server {} answers 403: {said}", with.server.host)
                }
                refused => self.explain(&with, &refused),
            })?,
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
        credentials: &Credentials,
        path: &str,
        headers: &[(&'static str, &str)],
    ) -> Result<Vec<u8>, String> {
        let answer = self.ask(credentials, path, headers, &[]).await;
        answer.map_err(|(with, refused)| self.explain(&with, &refused))
    }

    /// Authenticates with certificate and token; with the token alone if the certificate is not accepted any more (as k3s). An
    /// error comes with the request, and so with the server.
    async fn ask(
        &self,
        credentials: &Credentials,
        path: &str,
        headers: &[(&'static str, &str)],
        body: &[u8],
    ) -> Result<Vec<u8>, (Box<Loaded>, Refused)> {
        let authorization = credentials.authorization.as_deref();
        let ask = Ask { body: body.to_vec(), path, authorization, headers };
        let mut with = self.loaded(credentials);
        let mut answer = self.reach(&mut with, &ask).await;
        if let Err(refused) = &answer
            && refused.may_be_of_certificate()
            && with.certificate.is_some()
        {
            with.certificate = None;
            answer = self.reach(&mut with, &ask).await;
        }
        answer.map_err(|refused| (Box::new(with), refused))
    }

    /// Sends the request to the current server, or to the next one that answers. A server that is not ready counts as failed.
    async fn reach(&self, with: &mut Loaded, ask: &Ask<'_>) -> Result<Vec<u8>, Refused> {
        let all = self.servers.supervisors();
        let mut first = String::new();
        loop {
            with.server = self.turn.borrow().aim(&all).clone();
            let refused = match self.supervisor.ask(with, ask).await {
                Err(refused) if refused.is_of_one_server() => refused,
                answer => {
                    self.turn.borrow_mut().reached(&with.server);
                    if !first.is_empty() {
                        log::warn!("joining: {first}; trying {} instead", with.server.authority());
                    }
                    return answer;
                }
            };
            let all_failed = self.turn.borrow_mut().failed(&with.server, all.len());
            let why = self.explain(with, &refused);
            if all_failed {
                return Err(match refused {
                    Refused::Unreachable(_) | Refused::Untrusted if !first.is_empty() => {
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

    /// No credentials, to a server that is not verified.
    fn anybody(&self) -> Loaded {
        // The one whose turn it is takes its place.
        let server = self.servers.named().clone();
        Loaded {
            server,
            server_name: None,
            authorities: None,
            intermediates: None,
            certificate: None,
            token: None,
        }
    }

    fn loaded(&self, credentials: &Credentials) -> Loaded {
        Loaded {
            authorities: Some(credentials.authority.clone()),
            intermediates: Some(credentials.intermediates.clone()),
            certificate: credentials.certificate.as_ref().map(|pem| (pem.clone(), pem.clone())),
            ..self.anybody()
        }
    }

    /// The refusal of that server as a sentence with its remedy.
    fn explain(&self, with: &Loaded, refused: &Refused) -> String {
        refused.explain(&with.server.host, &self.node, &self.k3s.node_password)
    }
}

/// Loads a kernel module. Blocking.
fn load(modprobe: &Path, module: &str) -> Result<(), String> {
    let (program, arguments) = (modprobe.to_string_lossy(), ["--".to_owned(), module.to_owned()]);
    let ended = program::run(&program, &arguments, MODPROBE_TIME, &AtomicBool::new(false));
    let ended = ended.map_err(|error| format!("{program}: {error}"))?;
    match ended.status {
        Some(status) if status.success() => Ok(()),
        Some(_) => Err(ended.output.trim().to_owned()),
        None => Err(format!("{program} was not finished after {} s; killed", MODPROBE_TIME.as_secs())),
    }
}
