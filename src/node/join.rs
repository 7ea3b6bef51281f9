//! Wires a node of a cluster: its client, the watches of the cluster's objects, and its own API.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use smol::channel::{Receiver, Sender};
use smol::lock::Semaphore;

use super::cluster::{FlannelInputs, Joined};
use super::network_policy::{NetworkPolicies, PolicySwitch};
use super::node_api;
use super::service_proxy::{ApiServers, ProxySwitch, ServiceProxy, Wanted};
use crate::addresses::{NodeAddresses, watch_links};
use crate::blocking::Blocking;
use crate::certificates::{CertificateRequester, CertificateSpec, Certificates, ServingCertificate};
use crate::clock::SharedClock;
use crate::cluster::csr::Purpose;
use crate::cluster::k3s_node::K3sNode;
use crate::config::{self, Config};
use crate::cri::{RuntimeHandler, RuntimeVersion};
use crate::executor::Executor;
use crate::facts;
use crate::flannel::{NetConf, PeerFollower, Peers};
use crate::iptables;
use crate::k3s::{
    self, Common, Component, ComponentClients, JoinTask, Kernel, LoadBalancer, Reach, Servers, Settings,
    Supervisor, Tunnels, Unset,
};
use crate::kube;
use crate::limits::TUNNEL_CONNECTIONS_MAX;
use crate::metrics::NodeApiUse;
use crate::render::NodeSettings;
use crate::server::{Query, QuerySender};
use crate::source::api::{ApiPods, Shared};
use crate::source::api_local_pods::LocalPods;
use crate::source::api_node::{ApiNode, NodeFields};
use crate::source::api_offline::Trees;
use crate::source::api_status_versions::ApiStatusVersions;
use crate::source::{NodeName, SourceUpdate};
use crate::store::offline::folder::Folder;

/// The node's name, if it is given: with `--with-node-id` what the machine has of its own is behind it. I/O, blocking.
///
/// # Errors
/// The file with the ID cannot be used; or the node has nothing by which a k3s server knows it.
pub(super) fn node_name(config: &Config) -> Result<Option<String>, String> {
    k3s::check_credentials(config)?;
    let Some(path) = config.k3s.as_ref().and_then(|k3s| k3s.node_id.as_deref()) else {
        return Ok(config.node_name.clone());
    };
    let id = k3s::node_id(path)?;
    let name = config.node_name.clone().unwrap_or_else(|| facts::hostname().to_ascii_lowercase());
    Ok(Some(format!("{name}-{id}")))
}

/// Restores the settings that a k3s server sent last; they hold until it sends others. Before it has sent any, k3s' defaults do.
/// I/O, blocking.
pub(super) fn remember(config: &Config, node: &mut NodeSettings, addresses: &NodeAddresses) {
    if config.k3s.is_some() {
        let kept = k3s::Files::new(&config.root_dir).kept_settings().unwrap_or_default();
        kept.apply(Unset::of(config), node);
        addresses.put_first(kept.network.is_v6_first);
        node.node_ips = addresses.now();
    }
}

/// What the Node of a node of k3s says besides. I/O, blocking.
fn k3s_node(config: &Config, node: &NodeSettings, k3s: &config::K3s) -> K3sNode {
    let kept = k3s::Files::new(&config.root_dir).kept_settings().unwrap_or_default();
    K3sNode {
        reaches_pods: kept.reaches_pods,
        has_cloud_controller: !kept.disable_cloud_controller,
        host_name: k3s_host_name(&facts::hostname(), &node.node_name),
        external_addresses: external_addresses(config),
        call: k3s.call.clone(),
        ..K3sNode::default()
    }
}

fn external_addresses(config: &Config) -> Vec<Box<str>> {
    config.registration.external_addresses.iter().map(|ip| ip.to_string().into()).collect()
}

/// The machine's host name, unless it is no name for others (`getHostname`).
fn k3s_host_name(host: &str, node: &str) -> Box<str> {
    if host.is_empty() || host.contains("localhost") { node.into() } else { host.into() }
}

/// The node API's sockets, and the inputs of its server.
type NodeApi = (node_api::Listening, Sender<Query>, Rc<Blocking>, NodeApiUse);

/// Inputs of the tasks of a node that joins.
struct Start<'a> {
    config: &'a Config,
    kubeconfig: &'a Path,
    node: &'a NodeSettings,
    addresses: &'a NodeAddresses,
    executor: &'a Rc<Executor>,
    clock: &'a SharedClock,
    client: &'a kube::Client,
    access: &'a kube::Access,
    seed: u64,
}

/// The client of a k3s server, and the channels of its tunnels.
struct K3s {
    supervisor: Supervisor,
    servers: Rc<Servers>,
    changed: Sender<()>,
    changes: Receiver<()>,
    lost: Sender<()>,
    reaches_pods: Rc<Cell<bool>>,
    components: ComponentClients,
}

/// Joins the cluster of the configured kubeconfig, if there is one.
pub(super) fn join(
    config: &Config,
    node: &NodeSettings,
    addresses: &NodeAddresses,
    (runtime, handlers): (&RuntimeVersion, &[RuntimeHandler]),
    executor: &Rc<Executor>,
    clock: &SharedClock,
    listening: Option<NodeApi>,
) -> Option<Joined> {
    let kubeconfig = config.kubeconfig.as_deref()?;
    let mut machine = facts::machine(config, node, runtime, handlers);
    machine.k3s = config.k3s.as_ref().map(|k3s| k3s_node(config, node, k3s));
    if config.make_iptables_util_chains
        && let Some((_, _, blocking, _)) = &listening
    {
        let blocking = blocking.clone();
        executor.spawn("iptables rules", async move { blocking.run(iptables::ensure_rules).await }).detach();
    }
    let access = match (&config.bootstrap_kubeconfig, &config.k3s) {
        (None, None) => kube::Access::new(kubeconfig),
        (Some(_), _) | (_, Some(_)) => kube::Access::awaited(kubeconfig),
    };
    let seed = kube::seed(&node.node_name);
    let client = kube::Client::new(access.clone(), executor, clock.clone(), seed, config.api_rates);
    let start = Start {
        config,
        kubeconfig,
        node,
        addresses,
        executor,
        clock,
        client: &client,
        access: &access,
        seed,
    };
    let (settings_told, settings) = smol::channel::bounded(1);
    let k3s = config.k3s.as_ref().and_then(|of| start.join_k3s(of, settings_told));
    start.keep_certificates(k3s.is_some());
    let (pods, trees, shared, failed) = start.follow_pods();
    let node = start.follow_node();
    let (mut services, mut policies) = (None, None);
    let flannel = start.follow_peers(k3s.as_ref());
    if let Some(listening) = listening {
        machine.port = listening.0.port();
        services = start.serve_services(&listening, k3s.as_ref());
        policies = start.enforce_policies(&listening, k3s.as_ref());
        start.serve(listening, k3s);
    }
    let folder = Folder::new(&config.root_dir);
    let bridge = config.cni_bridge.clone();
    let unset = Unset::of(config);
    Some(Joined {
        client,
        machine,
        pods,
        node,
        trees,
        shared,
        failed,
        folder,
        bridge,
        flannel,
        settings,
        unset,
        services,
        policies,
    })
}

impl Start<'_> {
    /// Joins a k3s server, which sends its settings to `settings`.
    fn join_k3s(&self, k3s: &config::K3s, settings: Sender<Settings>) -> Option<K3s> {
        // Read together with the other settings.
        let server = kube::ServerUrl::parse(&k3s.server).ok()?;
        let supervisor = Supervisor::new(self.clock.clone(), self.access.authenticated().clone());
        let (changed, changes) = smol::channel::bounded(1);
        let (lost, tunnel_lost) = smol::channel::bounded(1);
        let servers = Rc::new(Servers::new(server, self.access.others().clone(), changed.clone()));
        let reaches_pods = Rc::new(Cell::new(false));
        let files = k3s::Files::new(&self.config.root_dir);
        let components = ComponentClients::new(|of| {
            let access = self.access.with_kubeconfig(&files.component_kubeconfig(of));
            kube::Client::new(access, self.executor, self.clock.clone(), self.seed, self.config.api_rates)
        });
        let joining = JoinTask {
            k3s: k3s.clone(),
            supervisor: supervisor.clone(),
            servers: servers.clone(),
            turn: RefCell::default(),
            access: self.access.clone(),
            lost: tunnel_lost,
            files,
            kubeconfig: self.kubeconfig.to_owned(),
            node: self.node.node_name.clone(),
            addresses: self.addresses.clone(),
            external_addresses: external_addresses(self.config),
            client: self.client.clone(),
            components: components.clone(),
            settings,
            pods: reaches_pods.clone(),
            clock: self.clock.clone(),
            kernel: Kernel {
                sysctl_root: self.config.sysctl_root.clone(),
                cpus: u64::try_from(self.node.cpu_capacity_millis / 1000).unwrap_or(1),
                lacking: RefCell::default(),
            },
            does: k3s::Does {
                services: self.config.service_proxy.is_some(),
                flannel: self.config.flannel.is_some(),
                policies: self.config.network_policy.is_some(),
            },
            left_out: RefCell::default(),
            no_effect: RefCell::default(),
        };
        self.executor.spawn("k3s joining", joining.run()).detach();
        Some(K3s { supervisor, servers, changed, changes, lost, reaches_pods, components })
    }

    /// Serves Services if that is wanted, or ends what another run has left. A k3s server decides for its cluster.
    fn serve_services(&self, (_, _, blocking, held): &NodeApi, k3s: Option<&K3s>) -> Option<ProxySwitch> {
        let settings = self.config.service_proxy.as_ref();
        let mut wanted = Wanted::new(settings);
        if self.config.k3s.is_some() && settings.is_some() {
            wanted.is_on = None;
            if let Some(kept) = k3s::Files::new(&self.config.root_dir).kept_settings() {
                wanted.set_cluster(!kept.disable_kube_proxy, kept.cluster_cidrs());
            }
        }
        let clock = self.clock.clone();
        let given = settings.and_then(|settings| settings.kubeconfig.as_deref());
        let client = match (given, k3s) {
            (None, Some(k3s)) => k3s.components.client(Component::KubeProxy),
            (path, _) => self.client_of(path.unwrap_or(self.kubeconfig)),
        };
        let proxy = ServiceProxy {
            client,
            node: self.node.node_name.clone(),
            addresses: self.addresses.clone(),
            blocking: blocking.clone(),
            executor: self.executor.clone(),
            clock,
            seed: self.seed,
            held: held.services.clone(),
            // A server that joins the cluster has a tunnel soon.
            api_servers: ApiServers::new(k3s.map(|k3s| k3s.lost.clone())),
        };
        let (switch, run) = proxy.switched(wanted);
        self.executor.spawn("service proxy", run).detach();
        // Whoever wants none gets none, whatever the server says.
        settings.map(|_| switch)
    }

    /// A client with the credentials of a kubeconfig that the configuration names.
    fn client_of(&self, kubeconfig: &Path) -> kube::Client {
        let access = kube::Access::new(kubeconfig);
        kube::Client::new(access, self.executor, self.clock.clone(), self.seed, self.config.api_rates)
    }

    /// Enforces network policies if that is wanted, or ends what another run has left. A k3s server decides for its cluster.
    fn enforce_policies(&self, (_, _, blocking, held): &NodeApi, k3s: Option<&K3s>) -> Option<PolicySwitch> {
        let kubeconfig = self.config.network_policy.as_deref();
        let is_on = match (kubeconfig, &self.config.k3s) {
            (None, _) => Some(false),
            (Some(_), None) => Some(true),
            (Some(_), Some(_)) => {
                let kept = k3s::Files::new(&self.config.root_dir).kept_settings();
                kept.map(|settings| !settings.disable_network_policy)
            }
        };
        let clock = self.clock.clone();
        let given = k3s::Files::new(&self.config.root_dir).component_kubeconfig(Component::Controller);
        let client = match k3s.filter(|_| kubeconfig == Some(&*given)) {
            Some(k3s) => k3s.components.client(Component::Controller),
            None => self.client_of(kubeconfig.unwrap_or(self.kubeconfig)),
        };
        let policies = NetworkPolicies {
            client,
            node: self.node.node_name.clone(),
            blocking: blocking.clone(),
            clock,
            seed: self.seed,
            held: held.network_policies.clone(),
        };
        let (switch, run) = policies.switched(is_on);
        self.executor.spawn("network policies", run).detach();
        // Whoever wants none gets none, whatever the server says.
        kubeconfig.map(|_| switch)
    }

    /// Starts the renewal of the certificates that the cluster signs.
    fn keep_certificates(&self, is_k3s: bool) {
        let (config, kubeconfig) = (self.config, self.kubeconfig.to_owned());
        if config.server_tls_bootstrap {
            let requester = self.requester(Purpose::Server);
            let serving =
                ServingCertificate { requester, kubeconfig: kubeconfig.clone(), client: self.client.clone() };
            self.executor.spawn("serving certificate", serving.run()).detach();
        }
        // A k3s server issues and renews it.
        if !is_k3s {
            let certificates = Certificates {
                kubeconfig,
                bootstrap: config.bootstrap_kubeconfig.clone(),
                rotates: config.rotate_certificates,
                requester: self.requester(Purpose::Client),
                client: self.client.clone(),
                executor: Rc::downgrade(self.executor),
            };
            self.executor.spawn("client certificate", certificates.run()).detach();
        }
    }

    /// The requester of certificates of this node.
    fn requester(&self, purpose: Purpose) -> CertificateRequester {
        let folder = self.config.root_dir.join("pki");
        let wanted =
            CertificateSpec { purpose, folder, node: self.node.node_name.clone(), names: Vec::new() };
        let (addresses, clock) = (self.addresses.clone(), self.clock.clone());
        CertificateRequester { wanted, addresses, clock, logged_pending: RefCell::default() }
    }

    /// Watches the pods that are bound to this node. Returns the updates, the pods' objects for the offline copy, the state
    /// shared with the source, and the channel that reports an unreachable API server.
    fn follow_pods(&self) -> (Receiver<SourceUpdate>, Trees, Shared, Receiver<()>) {
        let (updates, pods) = smol::channel::bounded(1);
        let name = NodeName::new(&self.node.node_name);
        let (collection, followed) = (ApiPods::collection(&name), self.client.clone());
        let (unreached, failed) = smol::channel::bounded(1);
        let trees = Trees::new(unreached);
        let (local_pods, looked) = LocalPods::new();
        let shared = Shared { local_pods, statuses: ApiStatusVersions::default() };
        let mut follower = ApiPods::new(name, self.clock.clone(), updates, trees.clone(), shared.clone());
        let follow = async move {
            // The running pods must be known first: they come first in the update. Closed: the loop and the process end.
            let _ = looked.recv().await;
            kube::follow::<()>(&followed, &collection, &mut follower).await;
        };
        self.executor.spawn("pod watch", follow).detach();
        (pods, trees, shared, failed)
    }

    /// Watches this node's Node object.
    fn follow_node(&self) -> Receiver<Option<NodeFields>> {
        let (fields, node) = smol::channel::bounded(1);
        let (collection, followed) = (ApiNode::collection(&self.node.node_name), self.client.clone());
        let mut follower = ApiNode::new(fields);
        let follow = async move { kube::follow::<()>(&followed, &collection, &mut follower).await };
        self.executor.spawn("node watch", follow).detach();
        node
    }

    /// Watches all Nodes once flannel begins, and the machine's links: with the credentials of k3s' controller, because a node's own may
    /// not.
    fn follow_peers(&self, k3s: Option<&K3s>) -> Option<FlannelInputs> {
        let of = self.config.flannel.as_ref()?;
        let (begin, begins) = smol::channel::bounded(1);
        let (changed, changes) = smol::channel::bounded(1);
        let (files, peers) = (k3s::Files::new(&self.config.root_dir), Peers::default());
        let client = k3s?.components.client(Component::Controller);
        let mut follower = PeerFollower::new(&self.node.node_name, peers.clone(), changed.clone());
        let watch = watch_links(self.clock.clone(), changed);
        let follow = async move {
            // Closed: the loop and the process end.
            if begins.recv().await.is_ok() {
                smol::future::zip(
                    kube::follow::<()>(&client, &PeerFollower::collection(), &mut follower),
                    watch,
                )
                .await;
            }
        };
        self.executor.spawn("flannel watches", follow).detach();
        Some(FlannelInputs {
            interface: of.interface.as_deref().map(Box::from),
            conf_dir: self.config.embedded.cni_conf_dir.clone(),
            bin_dirs: self.config.embedded.cni_bin_dirs.clone(),
            subnet_file: of.subnet_file.clone(),
            kept: files.kept_settings().map(|kept| kept.network).filter(NetConf::is_known),
            peers,
            changes,
            begin,
        })
    }

    /// Serves the node's own API, also through the tunnels of a k3s server.
    fn serve(&self, (listening, queries, blocking, held): NodeApi, k3s: Option<K3s>) {
        if let Some(K3s { supervisor, servers, changed, changes, lost, reaches_pods, .. }) = k3s {
            if let Some(port) = self.config.k3s.as_ref().and_then(|k3s| k3s.load_balancer_port) {
                let balancer = LoadBalancer {
                    port,
                    addresses: self.addresses.clone(),
                    servers: servers.clone(),
                    executor: Rc::downgrade(self.executor),
                    clock: self.clock.clone(),
                    held: held.balancer_connections.clone(),
                };
                self.executor.spawn("k3s load balancer", balancer.run()).detach();
            }
            let asker = QuerySender::new(queries.clone());
            let (node_api, sockets) = (listening.own_address(), listening.tunnel_sockets());
            let reach = Reach { node_api, sockets, asker, pods: reaches_pods };
            let common = Common {
                supervisor,
                access: self.access.clone(),
                reach,
                executor: Rc::downgrade(self.executor),
                clock: self.clock.clone(),
                seed: self.seed,
                held: held.clone(),
                places: Arc::new(Semaphore::new(TUNNEL_CONNECTIONS_MAX)),
                queued: Rc::default(),
            };
            let tunnels = Tunnels { servers, common, changes, changed, lost };
            self.executor.spawn("k3s tunnels", tunnels.run()).detach();
        }
        let needs = crate::node_api::Needs {
            settings: self.config.node_api.clone(),
            node: self.node.node_name.clone(),
            configz: self.config.configz(),
            client: self.client.clone(),
            queries,
            blocking,
            executor: Rc::downgrade(self.executor),
            clock: self.clock.clone(),
            held,
        };
        self.executor.spawn("node API", crate::node_api::run(listening, needs)).detach();
    }
}
