//! The wiring of a node of a cluster: its client, what follows the cluster's objects, and its own API.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use smol::channel::Sender;
use smol::lock::Semaphore;

use super::agent::Event;
use super::certificate_asking::Asking;
use super::certificate_files::Wanted;
use super::certificate_serving::ServingCertificate;
use super::certificates::Certificates;
use super::cluster::{Cluster, ClusterEvent, Joined, Network};
use super::cluster_kept::{self, Keeping};
use super::k3s::{self, Joining};
use super::{forward, node_api};
use crate::addresses::NodeAddresses;
use crate::blocking::Blocking;
use crate::clock::SharedClock;
use crate::cluster::csr::Purpose;
use crate::config::Config;
use crate::cri::{RuntimeHandler, RuntimeVersion};
use crate::executor::Executor;
use crate::facts;
use crate::iptables;
use crate::k3s::{Common, Reach, Servers, Supervisor, Tunnels};
use crate::kube;
use crate::limits::TUNNEL_CONNECTIONS_MAX;
use crate::metrics::NodeApiUse;
use crate::render::NodeSettings;
use crate::server::{Asker, Query};
use crate::source::NodeName;
use crate::source::api::{ApiPods, Shared};
use crate::source::api_here::PodsHere;
use crate::source::api_kept::Trees;
use crate::source::api_node::ApiNode;
use crate::source::api_objects::Found;
use crate::source::api_statuses::StatusesThere;
use crate::store::keep::folder::Folder;

/// Begins what goes on with the cluster.
pub(super) fn begin(
    joined: Joined,
    executor: &Rc<Executor>,
    events: &Sender<Event>,
    clock: &SharedClock,
) -> Cluster {
    executor.spawn("pod source", forward(joined.pods, events.clone(), Event::Source)).detach();
    let (news, found) = smol::channel::bounded(1);
    let told = |()| Event::Cluster(Box::new(ClusterEvent::Found));
    executor.spawn("objects found", forward(found, events.clone(), told)).detach();
    let marked = |marks| Event::Cluster(Box::new(ClusterEvent::Marked(marks)));
    executor.spawn("pod annotations", forward(joined.marks, events.clone(), marked)).detach();
    let dns = |settings| Event::Cluster(Box::new(ClusterEvent::Dns(settings)));
    executor.spawn("cluster DNS", forward(joined.dns, events.clone(), dns)).detach();
    let network = Network::new(joined.bridge, clock.now().mono, &joined.machine.name);
    executor
        .spawn("offline copy wait", cluster_kept::wait(joined.failed, clock.clone(), events.clone()))
        .detach();
    let keeping = Keeping::new(joined.folder, joined.trees, clock.now().mono);
    let now = clock.now().mono;
    Cluster::new(joined.client, joined.machine, Found::new(news), network, keeping, joined.shared, now)
}

/// What a k3s server said of its cluster counts until it says something else. I/O, blocking.
pub(super) fn remember(config: &Config, node: &mut NodeSettings) {
    if config.k3s.is_some()
        && config.cluster_dns.is_empty()
        && let Some(kept) = k3s::Files::new(&config.root_dir).kept_settings()
    {
        node.cluster_dns = kept.cluster_dns;
        node.cluster_domain = kept.cluster_domain;
    }
}

/// What this node asks its cluster for.
fn asking(
    config: &Config,
    node: &NodeSettings,
    addresses: &NodeAddresses,
    purpose: Purpose,
    clock: &SharedClock,
) -> Asking {
    let folder = config.root_dir.join("pki");
    let wanted = Wanted { purpose, folder, node: node.node_name.clone(), names: Vec::new() };
    Asking { wanted, addresses: addresses.clone(), clock: clock.clone(), told: RefCell::default() }
}

/// Joins the cluster of the configured kubeconfig, if there is one.
pub(super) fn join(
    config: &Config,
    node: &NodeSettings,
    addresses: &NodeAddresses,
    (runtime, handlers): (&RuntimeVersion, &[RuntimeHandler]),
    executor: &Rc<Executor>,
    clock: &SharedClock,
    listening: Option<(node_api::Listening, Sender<Query>, Rc<Blocking>, NodeApiUse)>,
) -> Option<Joined> {
    let kubeconfig = config.kubeconfig.as_deref()?;
    let mut machine = facts::machine(config, node, runtime, handlers);
    if config.make_iptables_util_chains
        && let Some((_, _, blocking, _)) = &listening
    {
        let blocking = blocking.clone();
        executor.spawn("iptables rules", async move { blocking.run(iptables::ensure_rules).await }).detach();
    }
    let bootstrap = config.bootstrap_kubeconfig.clone();
    let access = match (&bootstrap, &config.k3s) {
        (None, None) => kube::Access::new(kubeconfig),
        (Some(_), _) | (_, Some(_)) => kube::Access::awaited(kubeconfig),
    };
    let seed = kube::seed(&node.node_name);
    let client = kube::Client::new(access.clone(), executor, clock.clone(), seed, config.api_rates);
    let (settings_told, dns) = smol::channel::bounded(1);
    let reaches_pods = Rc::new(Cell::new(false));
    let k3s = config.k3s.as_ref().and_then(|k3s| {
        // It was looked at with the other settings.
        let server = kube::ServerUrl::parse(&k3s.server).ok()?;
        let supervisor = Supervisor::new(clock.clone(), access.authenticated().clone());
        let (told, news) = smol::channel::bounded(1);
        let (lost, tunnel_lost) = smol::channel::bounded(1);
        let servers = Rc::new(Servers::new(server, access.others().clone(), told.clone()));
        let joining = Joining {
            k3s: k3s.clone(),
            supervisor: supervisor.clone(),
            servers: servers.clone(),
            turn: RefCell::default(),
            access: access.clone(),
            lost: tunnel_lost,
            files: k3s::Files::new(&config.root_dir),
            kubeconfig: kubeconfig.to_owned(),
            node: node.node_name.clone(),
            addresses: addresses.clone(),
            client: client.clone(),
            // What the settings say of it counts more.
            told: config.cluster_dns.is_empty().then_some(settings_told),
            pods: reaches_pods.clone(),
            clock: clock.clone(),
        };
        executor.spawn("k3s joining", joining.run()).detach();
        Some((supervisor, servers, told, news, lost))
    });
    let certificates = Certificates {
        kubeconfig: kubeconfig.to_owned(),
        bootstrap,
        rotates: config.rotate_certificates,
        asking: asking(config, node, addresses, Purpose::Client, clock),
        client: client.clone(),
        executor: executor.clone(),
    };
    if config.server_tls_bootstrap {
        let asking = asking(config, node, addresses, Purpose::Server, clock);
        let kubeconfig = kubeconfig.to_owned();
        let serving = ServingCertificate { asking, kubeconfig, client: client.clone() };
        executor.spawn("serving certificate", serving.run()).detach();
    }
    // A k3s server gives it, and renews it.
    if k3s.is_none() {
        executor.spawn("client certificate", certificates.run()).detach();
    }
    let (updates, pods) = smol::channel::bounded(1);
    let name = NodeName::new(&node.node_name);
    let (collection, followed) = (ApiPods::collection(&name), client.clone());
    let (unreached, failed) = smol::channel::bounded(1);
    let trees = Trees::new(unreached);
    let (here, looked) = PodsHere::new();
    let shared = Shared { here, statuses: StatusesThere::default() };
    let mut follower = ApiPods::new(name, clock.clone(), updates, trees.clone(), shared.clone());
    let follow = async move {
        // What runs here comes first: it has to be known what does. Closed: the loop is gone, and the process with it.
        let _ = looked.recv().await;
        kube::follow::<()>(&followed, &collection, &mut follower).await;
    };
    executor.spawn("pod watch", follow).detach();
    let (told, marks) = smol::channel::bounded(1);
    let (collection, followed) = (ApiNode::collection(&node.node_name), client.clone());
    let mut follower = ApiNode::new(told);
    executor
        .spawn("node watch", async move { kube::follow::<()>(&followed, &collection, &mut follower).await })
        .detach();
    if let Some((listening, queries, blocking, held)) = listening {
        machine.port = listening.port();
        if let Some((supervisor, servers, told, news, lost)) = k3s {
            let asker = Asker::new(queries.clone());
            let (node_api, sockets) = (listening.own_address(), listening.tunnel_sockets());
            let reach = Reach { node_api, sockets, asker, pods: reaches_pods };
            let common = Common {
                supervisor,
                access,
                reach,
                executor: executor.clone(),
                clock: clock.clone(),
                seed,
                held: held.clone(),
                places: Arc::new(Semaphore::new(TUNNEL_CONNECTIONS_MAX)),
                queued: Rc::default(),
            };
            executor.spawn("k3s tunnels", Tunnels { servers, common, news, told, lost }.run()).detach();
        }
        let configz = config.configz();
        let needs = crate::node_api::Needs {
            settings: config.node_api.clone(),
            node: node.node_name.clone(),
            configz,
            client: client.clone(),
            queries,
            blocking,
            executor: executor.clone(),
            clock: clock.clone(),
            held,
        };
        executor.spawn("node API", crate::node_api::run(listening, needs)).detach();
    }
    let folder = Folder::new(&config.root_dir);
    let bridge = config.cni_bridge.clone();
    Some(Joined { client, machine, pods, marks, trees, shared, failed, folder, bridge, dns })
}
