//! The service proxy: what is watched for it, and the changes of the kernel's rules that follow.
//!
//! ```text
//!     Services ───────┐
//!                     ├─► Cluster ─► changed services ─► Kernel (on a thread) ─► nf_tables
//!     EndpointSlices ─┘     ▲                              └─ refused: everything of that family anew, after a wait
//!     the node's addresses ─┘
//! ```
//!
//! The rules stay when the agent ends, and while the API server cannot be reached. After a start nothing is changed before both
//! collections were listed.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use smol::Task;
use smol::channel::{Receiver, Sender};
use smol::future::or;

use crate::addresses::NodeAddresses;
use crate::blocking::Blocking;
use crate::clock::SharedClock;
use crate::config::ServiceProxySettings;
use crate::decode::Node;
use crate::executor::Executor;
use crate::kube::{Client, Collection, Follower, KubeError, Resource, RetryWait, follow};
use crate::limits::{
    COMPONENT_CREDENTIALS_WAIT, KUBE_OBJECT_BYTES_MAX, SERVICES_CHECK_PERIOD, SERVICES_WHOLE_PERIOD,
};
use crate::model::{Mono, Network, SortedMap};
use crate::service_proxy::{
    Cluster, FamilySync, HealthCheck, HealthChecks, Kernel, ServiceName, ServicePort, Settings,
};

/// Number of service ports and endpoints, and the bytes of all that is kept for them.
pub(super) type Held = Rc<Cell<(usize, usize)>>;

/// What the task needs.
pub(super) struct ServiceProxy {
    /// With credentials that may list and watch `Services` and `EndpointSlices`.
    pub(super) client: Client,
    pub(super) node: Box<str>,
    pub(super) addresses: NodeAddresses,
    pub(super) blocking: Rc<Blocking>,
    pub(super) executor: Rc<Executor>,
    pub(super) clock: SharedClock,
    pub(super) seed: u64,
    pub(super) held: Held,
    pub(super) api_servers: ApiServers,
}

/// Addresses of the cluster's API servers, as its own Service (`default/kubernetes`) has them. Clones are the same.
#[derive(Clone)]
pub(super) struct ApiServers {
    known: Rc<RefCell<Option<String>>>,
    changed: Option<Sender<()>>,
}

impl ApiServers {
    /// `changed` is told when they change.
    pub(super) fn new(changed: Option<Sender<()>>) -> Self {
        Self { known: Rc::default(), changed }
    }

    /// Looks at any `EndpointSlice`. Its addresses are in the order of their text (`lease` of the API server).
    fn look(&self, slice: &Node) {
        let Some(changed) = &self.changed else { return };
        let meta = |field| slice.field("metadata").and_then(|meta| meta.field(field)).and_then(Node::text);
        if (meta("namespace"), meta("name")) != (Some("default"), Some("kubernetes")) {
            return;
        }
        let endpoints = slice.field("endpoints").map_or(&[][..], Node::items).iter();
        let addresses = endpoints.filter_map(|endpoint| endpoint.field("addresses")).flat_map(Node::items);
        let now = addresses.filter_map(Node::text).collect::<Vec<_>>().join(" ");
        let before = self.known.replace(Some(now.clone()));
        if before.is_some_and(|before| before != now) {
            // Full: it is to be told already.
            let _ = changed.try_send(());
        }
    }
}

/// What may change while the agent runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// None: a k3s server has not said it yet.
    pub(super) is_on: Option<bool>,
    /// Ranges of the cluster's pods.
    cluster_cidrs: Vec<Network>,
    /// The configuration has them.
    has_own_cidrs: bool,
    /// `topology.kubernetes.io/zone` of this node.
    zone: Box<str>,
}

impl Wanted {
    /// As the configuration has it.
    pub(super) fn new(settings: Option<&ServiceProxySettings>) -> Self {
        let cluster_cidrs = settings.map(|settings| settings.cluster_cidrs.clone()).unwrap_or_default();
        Self {
            is_on: Some(settings.is_some()),
            has_own_cidrs: !cluster_cidrs.is_empty(),
            cluster_cidrs,
            zone: Box::default(),
        }
    }

    /// As a k3s server has it; the configuration's own ranges stay.
    pub(super) fn set_cluster(&mut self, is_on: bool, cluster_cidrs: Vec<Network>) {
        self.is_on = Some(is_on);
        if !self.has_own_cidrs {
            self.cluster_cidrs = cluster_cidrs;
        }
    }
}

/// What the rest of the agent has of the task.
pub(crate) struct ProxySwitch {
    wanted: RefCell<Wanted>,
    changes: Sender<Wanted>,
}

impl ProxySwitch {
    /// A k3s server has said whether its nodes serve, and for whom.
    pub(super) fn set_cluster(&self, is_on: bool, cluster_cidrs: Vec<Network>) {
        self.change(|wanted| wanted.set_cluster(is_on, cluster_cidrs));
    }

    /// This node's zone is that.
    pub(super) fn set_zone(&self, zone: &str) {
        self.change(|wanted| wanted.zone = zone.into());
    }

    fn change(&self, change: impl FnOnce(&mut Wanted)) {
        let before = self.wanted.borrow().clone();
        change(&mut self.wanted.borrow_mut());
        if *self.wanted.borrow() != before {
            // The last word counts; the task ends only with the process.
            let _ = self.changes.force_send(self.wanted.borrow().clone());
        }
    }
}

/// The services, and the news that they have changed.
#[derive(Clone)]
struct Shared {
    cluster: Rc<RefCell<Cluster>>,
    changed: Sender<()>,
    api_servers: ApiServers,
}

/// The two collections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Services,
    Slices,
}

impl Kind {
    fn resource(self) -> Resource {
        match self {
            Self::Services => Resource::SERVICES,
            Self::Slices => Resource::ENDPOINT_SLICES,
        }
    }

    /// What another proxy serves, or nobody does, does not come. Differs from kube-proxy, which selects Services by
    /// `spec.clusterIP!=None` too: servers before 1.31 refuse that.
    fn label_selector(self) -> &'static str {
        match self {
            Self::Services => "!service.kubernetes.io/service-proxy-name",
            Self::Slices => "!service.kubernetes.io/headless",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Services => "services",
            Self::Slices => "endpointslices",
        }
    }
}

/// The follower of a collection.
struct ServicesFollower {
    of: Kind,
    shared: Shared,
    said: Option<String>,
}

impl Follower for ServicesFollower {
    fn list_begins(&mut self) {
        let mut cluster = self.shared.cluster.borrow_mut();
        match self.of {
            Kind::Services => cluster.services_begin(),
            Kind::Slices => cluster.slices_begin(),
        }
    }

    fn apply(&mut self, object: Node) {
        let mut cluster = self.shared.cluster.borrow_mut();
        match self.of {
            Kind::Services => cluster.apply_service(&object),
            Kind::Slices => {
                self.shared.api_servers.look(&object);
                cluster.apply_slice(&object);
            }
        }
    }

    fn delete(&mut self, object: &Node) {
        let mut cluster = self.shared.cluster.borrow_mut();
        match self.of {
            Kind::Services => cluster.delete_service(object),
            Kind::Slices => cluster.delete_slice(object),
        }
    }

    fn skipped(&mut self) {
        log::warn!("services: one of the {} has more than {KUBE_OBJECT_BYTES_MAX} bytes", self.of.name());
    }

    fn has_room(&self) -> bool {
        let cluster = self.shared.cluster.borrow();
        match self.of {
            Kind::Services => cluster.services_have_room(),
            Kind::Slices => cluster.slices_have_room(),
        }
    }

    fn settled(&mut self) {
        self.said = None;
        let mut cluster = self.shared.cluster.borrow_mut();
        match self.of {
            Kind::Services => cluster.services_settled(),
            Kind::Slices => cluster.slices_settled(),
        }
        // Full: the change before has not been looked at.
        let _ = self.shared.changed.try_send(());
    }

    fn again_in(&mut self, why: &KubeError) -> Option<Duration> {
        matches!(why, KubeError::NotJoined(_)).then_some(COMPONENT_CREDENTIALS_WAIT)
    }

    fn lost(&mut self, why: &KubeError) {
        let why = why.to_string();
        if self.said.as_ref() != Some(&why) {
            log::warn!("services: list or watch of {}: {why}; retrying, the rules stay", self.of.name());
            self.said = Some(why);
        }
    }
}

/// What a wait ended with.
enum News {
    Changed,
    Wanted(Wanted),
    /// It is time to look at the tables.
    Due,
}

impl ServiceProxy {
    /// The task, and what changes it.
    pub(super) fn switched(self, wanted: Wanted) -> (ProxySwitch, impl Future<Output = ()>) {
        let (changes, changed) = smol::channel::bounded(1);
        (ProxySwitch { wanted: RefCell::new(wanted.clone()), changes }, self.run(wanted, changed))
    }

    async fn run(self, mut wanted: Wanted, changes: Receiver<Wanted>) {
        let addresses = self.addresses.changes();
        loop {
            let next = match wanted.is_on {
                Some(true) => self.serve(wanted, &changes, &addresses).await,
                Some(false) => {
                    self.end_tables().await;
                    changes.recv().await.ok()
                }
                None => changes.recv().await.ok(),
            };
            match next {
                Some(next) => wanted = next,
                // Nobody wants it any more.
                None => return,
            }
        }
    }

    fn settings(&self, wanted: &Wanted) -> Settings {
        let node_addresses = self.addresses.now().iter().filter_map(|ip| ip.parse::<IpAddr>().ok()).collect();
        Settings { cluster_cidrs: wanted.cluster_cidrs.clone(), node_addresses }
    }

    /// Serves until it is switched off, or nobody can switch it.
    async fn serve(
        &self,
        wanted: Wanted,
        changes: &Receiver<Wanted>,
        addresses: &Receiver<()>,
    ) -> Option<Wanted> {
        let (changed, news) = smol::channel::bounded(1);
        let mut cluster = Cluster::new(&self.node);
        cluster.set_zone(&wanted.zone);
        let api_servers = self.api_servers.clone();
        let shared = Shared { cluster: Rc::new(RefCell::new(cluster)), changed, api_servers };
        let follows = or(self.follow(Kind::Services, &shared), self.follow(Kind::Slices, &shared));
        let ended = or(follows, self.keep_rules(&shared, wanted, [&news, addresses], changes)).await;
        self.held.set((0, 0));
        ended
    }

    async fn follow<T>(&self, of: Kind, shared: &Shared) -> T {
        let collection = Collection { label_selector: of.label_selector(), ..Collection::all(of.resource()) };
        let mut follower = ServicesFollower { of, shared: shared.clone(), said: None };
        Box::pin(follow(&self.client, &collection, &mut follower)).await
    }

    /// The kernel's tables, as soon as it has such; or what is wanted instead of them.
    async fn open_kernel(
        &self,
        wanted: &mut Wanted,
        changes: &Receiver<Wanted>,
    ) -> Result<Kernel, Option<Wanted>> {
        let mut wait = RetryWait::new(self.seed);
        let mut said = None;
        loop {
            let settings = self.settings(wanted);
            match self.blocking.run(move || Kernel::open(settings)).await {
                Ok(kernel) => return Ok(kernel),
                Err(error) => {
                    let why = error.to_string();
                    if said.as_ref() != Some(&why) {
                        log::warn!(
                            "services: {why}; retrying, no service is served: where this kernel has no nf_tables, load that module, or \
                             run kube-proxy"
                        );
                        said = Some(why);
                    }
                }
            }
            let changed = async { Some(changes.recv().await.ok()) };
            let waited = async {
                self.clock.sleep(wait.failed()).await;
                None
            };
            match or(changed, waited).await {
                Some(Some(next)) if next.is_on == Some(true) => *wanted = next,
                Some(next) => return Err(next),
                None => {}
            }
        }
    }

    async fn keep_rules(
        &self,
        shared: &Shared,
        mut wanted: Wanted,
        news: [&Receiver<()>; 2],
        changes: &Receiver<Wanted>,
    ) -> Option<Wanted> {
        let mut kernel = match self.open_kernel(&mut wanted, changes).await {
            Ok(kernel) => kernel,
            Err(next) => return next,
        };
        let mut logged: Vec<ServiceName> = Vec::new();
        let is_healthy = Rc::new(Cell::new([false; 2]));
        let checks = HealthChecks::new(is_healthy.clone(), Rc::downgrade(&self.executor), self.clock.clone());
        let mut health = Health { checks, executor: self.executor.clone(), of: SortedMap::new() };
        let mut looks = Looks::new(self.seed, self.clock.now().mono);
        loop {
            let next = self.next(news, changes, looks.check_at).await;
            // How the tables are looked at before the change. No look goes without one: before the first services are written it would
            // take the rules of an earlier agent away.
            let mut is_thorough = None;
            match next {
                News::Changed => {}
                News::Wanted(next) if next.is_on == Some(true) => wanted = next,
                News::Wanted(next) => return Some(next),
                News::Due => is_thorough = Some(looks.begin(self.clock.now().mono)),
            }
            let settings = self.settings(&wanted);
            let changed = {
                let mut cluster = shared.cluster.borrow_mut();
                cluster.set_zone(&wanted.zone);
                cluster.set_node_addresses(&settings.node_addresses);
                if !cluster.is_synced() {
                    continue;
                }
                for name in cluster.take_left_out() {
                    log::warn!(
                        "services: {name} does not fit, with all or some of its endpoints; it is not served whole"
                    );
                }
                let mut names = cluster.take_changed();
                names.extend(kernel.contested());
                names
                    .into_iter()
                    .map(|name| {
                        let ports = cluster.ports(&name);
                        (name, ports)
                    })
                    .collect::<Vec<_>>()
            };
            health.set(&changed, &shared.cluster.borrow());
            let is_first = kernel.is_empty();
            let count = changed.len();
            let looked;
            let synced;
            (kernel, looked, synced) = self
                .blocking
                .run(move || {
                    kernel.set_settings(settings);
                    let looked = is_thorough.map(|is_thorough| kernel.check(is_thorough));
                    let synced = kernel.change(changed);
                    (kernel, looked, synced)
                })
                .await;
            for (level, line) in looks.take(self.clock.now().mono, looked, synced) {
                log::log!(level, "services: {line}");
            }
            is_healthy.set(looks.are_current());
            let (ports, endpoints) = shared.cluster.borrow().counts();
            self.held.set((ports + endpoints, shared.cluster.borrow().bytes() + kernel.bytes()));
            if is_first && count > 0 && looks.are_current() == [true; 2] {
                log::info!("services: {} services with {endpoints} endpoints are served", kernel.len());
            }
            let contested = kernel.contested();
            for name in contested.iter().filter(|name| !logged.contains(name)) {
                log::warn!(
                    "service {name}: another service has one of its externalIPs or load balancer addresses with that port; it \
                     is not served there"
                );
            }
            logged = contested;
        }
    }

    /// News put the check off for nobody.
    async fn next(&self, news: [&Receiver<()>; 2], changes: &Receiver<Wanted>, check_at: Mono) -> News {
        let changed = async {
            match or(news[0].recv(), news[1].recv()).await {
                Ok(()) => News::Changed,
                Err(_) => std::future::pending().await,
            }
        };
        let other = async {
            match changes.recv().await {
                Ok(wanted) => News::Wanted(wanted),
                Err(_) => std::future::pending().await,
            }
        };
        let due = async {
            self.clock.sleep(check_at.since(self.clock.now().mono)).await;
            News::Due
        };
        or(due, or(changed, other)).await
    }

    /// Deletes what this or an earlier agent has in the kernel.
    async fn end_tables(&self) {
        let ended =
            self.blocking.run(|| Kernel::open(Settings::default())?.end().map_err(std::io::Error::other));
        if let Err(error) = ended.await {
            log::debug!("services: deleting the rules of an earlier agent: {error}");
        }
    }
}

/// When the tables are looked at, and what the kernel refuses at present.
#[derive(Debug)]
struct Looks {
    check_at: Mono,
    /// The next look from then on is a thorough one.
    whole_at: Mono,
    wait: RetryWait,
    /// Why the last look failed.
    failed: Option<String>,
    /// IPv4's, IPv6's.
    families: [Failing; 2],
}

/// What the kernel refuses of a family.
#[derive(Debug, PartialEq, Eq)]
enum Failing {
    Nothing,
    /// To forget the connections or clients of endpoints that are gone.
    Forgetting(String),
    /// The rules.
    Rules,
}

impl Looks {
    fn new(seed: u64, now: Mono) -> Self {
        Self {
            check_at: now + SERVICES_CHECK_PERIOD,
            whole_at: now + SERVICES_WHOLE_PERIOD,
            wait: RetryWait::new(seed),
            failed: None,
            families: [Failing::Nothing, Failing::Nothing],
        }
    }

    /// It is time to look. Whether thoroughly.
    fn begin(&mut self, now: Mono) -> bool {
        self.check_at = now + SERVICES_CHECK_PERIOD;
        let is_thorough = self.whole_at <= now;
        if is_thorough {
            self.whole_at = now + SERVICES_WHOLE_PERIOD;
        }
        is_thorough
    }

    /// What came of a look, unless there was none, and of a change. What is to be logged of it: each failure once, when it begins.
    fn take(
        &mut self,
        now: Mono,
        looked: Option<Result<(), String>>,
        synced: [FamilySync; 2],
    ) -> Vec<(log::Level, String)> {
        let is_failed = matches!(looked, Some(Err(_))) || synced.iter().any(FamilySync::is_failed);
        let mut lines = Vec::new();
        if let Some(looked) = looked {
            let failed = looked.err();
            if failed != self.failed {
                lines.extend(failed.iter().map(|why| (log::Level::Warn, format!("{why}; retrying"))));
                self.failed = failed;
            }
        }
        for ((failing, synced), family) in self.families.iter_mut().zip(synced).zip(["IPv4", "IPv6"]) {
            let (next, line) = match synced {
                FamilySync::Waiting => continue,
                FamilySync::Current if *failing == Failing::Rules => {
                    (Failing::Nothing, Some((log::Level::Info, format!("{family}: all rules are written"))))
                }
                FamilySync::Current => (Failing::Nothing, None),
                FamilySync::Left(why) => {
                    let line = format!("{family}: {why}; retrying");
                    (Failing::Forgetting(why), Some((log::Level::Warn, line)))
                }
                // The reason has numbers that differ from one attempt to the next.
                FamilySync::Refused(why) => {
                    let line = format!("{family}: {why}; the rules stay as they are, retrying");
                    (Failing::Rules, Some((log::Level::Warn, line)))
                }
            };
            if next != *failing {
                lines.extend(line);
                *failing = next;
            }
        }
        if is_failed {
            // News put it off for nobody.
            self.check_at = self.check_at.min(now + self.wait.failed());
        } else if self.failed.is_none() && self.families.iter().all(|failing| *failing == Failing::Nothing) {
            self.wait.succeeded();
        }
        lines
    }

    /// The rules are up to date, IPv4's and IPv6's.
    fn are_current(&self) -> [bool; 2] {
        [0, 1].map(|index| self.failed.is_none() && self.families[index] != Failing::Rules)
    }
}

/// Servers of `healthCheckNodePort`.
struct Health {
    checks: HealthChecks,
    executor: Rc<Executor>,
    of: SortedMap<ServiceName, (u16, Rc<HealthCheck>, Task<()>)>,
}

impl Health {
    /// Sets those of the services that have changed.
    fn set(&mut self, changed: &[(ServiceName, Vec<ServicePort>)], cluster: &Cluster) {
        for (name, ports) in changed {
            let port = ports.iter().map(|port| port.health_check_node_port).find(|port| *port != 0);
            let Some(port) = port else {
                self.of.remove(name);
                continue;
            };
            if self.of.get(name).is_none_or(|(known, ..)| *known != port) {
                let check = HealthCheck::new(name.clone(), self.checks.clone());
                let task = self.executor.spawn("service health checks", check.clone().run(port));
                self.of.insert(name.clone(), (port, check, task));
            }
            if let Some((_, check, _)) = self.of.get(name) {
                check.set_local_endpoints(cluster.local_ready(name));
                let has = |is_ipv6| ports.iter().any(|port| port.cluster_ip.is_ipv6() == is_ipv6);
                check.set_families([has(false), has(true)]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CURRENT: FamilySync = FamilySync::Current;
    const WAITING: FamilySync = FamilySync::Waiting;

    fn refused(number: u32) -> FamilySync {
        FamilySync::Refused(format!("nf_tables refused message {number} of a change: unsupported"))
    }

    fn lines(found: &[(log::Level, String)]) -> Vec<&str> {
        found.iter().map(|(_, line)| line.as_str()).collect()
    }

    #[test]
    fn a_family_that_is_refused_is_tried_again_at_the_look_alone() {
        let second = Duration::from_secs(1);
        let mut now = Mono(0);
        let mut looks = Looks::new(7, now);
        let found = looks.take(now, None, [CURRENT, refused(3)]);
        let said = "IPv6: nf_tables refused message 3 of a change: unsupported; the rules stay as they are, retrying";
        assert_eq!(lines(&found), [said]);
        assert_eq!(looks.are_current(), [true, false]);
        let due = looks.check_at;
        assert!(due < now + SERVICES_CHECK_PERIOD);
        // News of the other family are taken, and do not put it off.
        for _ in 0..30 {
            now = now + second;
            assert!(looks.take(now, None, [CURRENT, WAITING]).is_empty());
            assert_eq!((looks.check_at, looks.are_current()), (due, [true, false]));
        }
        // Refused again, with other numbers and for days: nothing new, and it is tried within seconds.
        for number in 0..10_000 {
            now = looks.check_at;
            looks.begin(now);
            assert!(looks.take(now, Some(Ok(())), [CURRENT, refused(number)]).is_empty());
            assert!(looks.check_at > now && looks.check_at <= now + 20_u32 * second);
        }
        now = looks.check_at;
        looks.begin(now);
        let found = looks.take(now, Some(Ok(())), [CURRENT, CURRENT]);
        assert_eq!(lines(&found), ["IPv6: all rules are written"]);
        assert_eq!((looks.check_at, looks.are_current()), (now + SERVICES_CHECK_PERIOD, [true, true]));
        // The next time it begins with a short wait again.
        assert_eq!(looks.take(now, None, [CURRENT, refused(3)]).len(), 1);
        assert!(looks.check_at <= now + 2_u32 * second);
    }

    #[test]
    fn what_fails_in_each_change_puts_no_look_off() {
        let mut now = Mono(0);
        let mut looks = Looks::new(7, now);
        let left =
            || FamilySync::Left("forgetting connections of UDP: there are too many at a time".to_owned());
        assert_eq!(looks.take(now, None, [left(), refused(1)]).len(), 2);
        let due = looks.check_at;
        for _ in 0..100 {
            now = now + Duration::from_secs(1);
            assert!(looks.take(now, None, [left(), WAITING]).is_empty());
            assert!(looks.check_at <= due);
        }
        assert_eq!(looks.are_current(), [true, false]);
    }

    #[test]
    fn a_look_that_fails_is_logged_once_until_one_succeeds() {
        let now = Mono(0);
        let mut looks = Looks::new(7, now);
        let failed = || Some(Err("reading the generation of nf_tables: no".to_owned()));
        let found = looks.take(now, failed(), [CURRENT, CURRENT]);
        assert_eq!(lines(&found), ["reading the generation of nf_tables: no; retrying"]);
        // News are no look.
        assert!(looks.take(now, None, [CURRENT, CURRENT]).is_empty());
        assert!(looks.take(now, failed(), [CURRENT, CURRENT]).is_empty());
        assert_eq!(looks.are_current(), [false, false]);
        assert!(looks.take(now, Some(Ok(())), [CURRENT, CURRENT]).is_empty());
        assert_eq!(looks.are_current(), [true, true]);
        assert_eq!(looks.take(now, failed(), [CURRENT, CURRENT]).len(), 1);
    }

    #[test]
    fn a_thorough_look_is_due_each_hour_whatever_happens() {
        let mut looks = Looks::new(7, Mono(0));
        let mut thorough = Vec::new();
        while looks.check_at <= Mono(0) + 3_u32 * SERVICES_WHOLE_PERIOD {
            let now = looks.check_at;
            if looks.begin(now) {
                thorough.push(now);
            }
            looks.take(now, Some(Ok(())), [CURRENT, CURRENT]);
        }
        assert_eq!(thorough, [1_u32, 2, 3].map(|hours| Mono(0) + hours * SERVICES_WHOLE_PERIOD));
    }
}
