//! Network policies: what is watched for them, and the transactions that follow from it.
//!
//! ```text
//!     policies ────────────────► Controller ─► transaction ─► kernel
//!     namespaces, pods ─────────┘ while there is a policy        └─ refused: everything anew, after a wait
//! ```
//!
//! The rules stay when the agent ends, and when the server cannot be reached. A new pod of this node is known here before the server
//! shows its address, and its first container waits for its rules.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, ContainerPort};
use smol::channel::{Receiver, Sender};
use smol::future::or;

use crate::blocking::Blocking;
use crate::clock::SharedClock;
use crate::decode::Node;
use crate::kube::{Client, Collection, Follower, KubeError, RetryWait, follow};
use crate::limits::{
    COMPONENT_CREDENTIALS_WAIT, KUBE_OBJECT_BYTES_MAX, NETWORK_POLICY_CHECK_PERIOD,
    NETWORK_POLICY_CREDENTIALS_TRIES, NETWORK_POLICY_LABELS_MAX, NETWORK_POLICY_POD_PORTS_MAX,
    NETWORK_POLICY_SETTLE, NETWORK_POLICY_START_WAIT, NETWORK_POLICY_STARTS_MAX,
};
use crate::model::{DesiredPod, PodKey};
use crate::netlink::{Netlink, Protocol};
use crate::network_policy::{Controller, NewPod, NewPods, Resource, TABLE, Transaction};
use crate::nftables::{self, Family};
use crate::sync::act::{NetworkFuture, PodNetwork};

/// Without these connections within a bridge are not seen.
const BRIDGE_SETTINGS: [&str; 2] =
    ["/proc/sys/net/bridge/bridge-nf-call-iptables", "/proc/sys/net/bridge/bridge-nf-call-ip6tables"];

/// Number of pods that are kept, and bytes of all records.
pub(super) type Held = Rc<Cell<(usize, usize)>>;

/// What the task needs.
pub(super) struct NetworkPolicies {
    pub(super) client: Client,
    pub(super) node: Box<str>,
    pub(super) blocking: Rc<Blocking>,
    pub(super) clock: SharedClock,
    pub(super) seed: u64,
    pub(super) held: Held,
}

/// The controller, and the news that it has changed.
#[derive(Clone)]
struct Shared {
    controller: Rc<RefCell<Controller>>,
    changed: Sender<()>,
    /// The server's last answer was none: nobody knows when rules come.
    is_away: Rc<Cell<bool>>,
}

struct PolicyFollower {
    of: Resource,
    shared: Shared,
    said: Option<String>,
    /// Requests in a row for which there were no credentials.
    without_credentials: u32,
}

impl PolicyFollower {
    fn new(of: Resource, shared: &Shared) -> Self {
        Self { of, shared: shared.clone(), said: None, without_credentials: 0 }
    }

    fn set_away(&self) {
        if !self.shared.is_away.replace(true) {
            // Full: the change before has not been looked at.
            let _ = self.shared.changed.try_send(());
        }
    }
}

impl Follower for PolicyFollower {
    fn list_begins(&mut self) {
        self.shared.controller.borrow_mut().list_begins(self.of);
    }

    fn apply(&mut self, object: Node) {
        self.shared.controller.borrow_mut().apply(self.of, &object);
    }

    fn delete(&mut self, object: &Node) {
        self.shared.controller.borrow_mut().delete(self.of, object);
    }

    fn skipped(&mut self) {
        log::warn!(
            "network policies: one of the {} has more than {KUBE_OBJECT_BYTES_MAX} bytes",
            self.of.plural()
        );
    }

    fn has_room(&self) -> bool {
        self.shared.controller.borrow().has_room(self.of)
    }

    fn settled(&mut self) {
        self.said = None;
        self.without_credentials = 0;
        self.shared.is_away.set(false);
        self.shared.controller.borrow_mut().settled(self.of);
        // Full: the change before has not been looked at.
        let _ = self.shared.changed.try_send(());
    }

    fn again_in(&mut self, why: &KubeError) -> Option<Duration> {
        let KubeError::NotJoined(_) = why else { return None };
        // The node is joining; a server that gives no such credentials has no rules for new pods to wait for.
        self.without_credentials = self.without_credentials.saturating_add(1);
        if self.without_credentials >= NETWORK_POLICY_CREDENTIALS_TRIES {
            self.set_away();
        }
        Some(COMPONENT_CREDENTIALS_WAIT)
    }

    fn lost(&mut self, why: &KubeError) {
        self.set_away();
        let why = why.to_string();
        if self.said.as_ref() != Some(&why) {
            log::warn!(
                "network policies: list or watch of {}: {why}; retrying, the rules stay",
                self.of.plural()
            );
            self.said = Some(why);
        }
    }
}

/// What is dropped when a new pod's rules are there.
type Wait = Sender<Infallible>;

/// What the pods of this node tell.
enum Told {
    /// One has got its addresses; it waits, unless the agent before this one started it.
    Started(NewPod, Option<Wait>),
    /// The one of this namespace and name has no network any more.
    Ended(Box<str>, Box<str>),
}

/// What the rest of the agent has of the task.
pub(crate) struct PolicySwitch {
    switch: Sender<bool>,
    /// What was said last: the same again would begin everything anew.
    is_on: Cell<Option<bool>>,
    told: Sender<Told>,
}

impl PolicySwitch {
    /// Switches policies on or off.
    pub(super) fn set(&self, is_on: bool) {
        if self.is_on.replace(Some(is_on)) != Some(is_on) {
            // The last word counts; the task ends only with the process.
            let _ = self.switch.force_send(is_on);
        }
    }

    /// What new pods of the node wait for.
    pub(super) fn gate(&self, clock: SharedClock) -> PolicyGate {
        PolicyGate { told: self.told.clone(), clock }
    }
}

/// Holds up new pods until their rules are there.
pub(super) struct PolicyGate {
    told: Sender<Told>,
    clock: SharedClock,
}

/// What policies need of the pod, with as many labels and ports as they count; `None`: it has no network of its own.
fn new_pod(pod: &DesiredPod, ips: &[Box<str>]) -> Option<NewPod> {
    let object = pod.pod.open();
    let spec = object.spec.as_ref().filter(|spec| spec.host_network != Some(true))?;
    let is_sidecar = |init: &&Container| init.restart_policy.as_deref() == Some("Always");
    let sidecars = spec.init_containers.iter().flatten().filter(is_sidecar);
    let ports = spec.containers.iter().chain(sidecars).flat_map(|container| container.ports.iter().flatten());
    let port = |port: &ContainerPort| {
        let name = port.name.as_deref()?.into();
        let protocol = port.protocol.as_deref().unwrap_or("TCP").into();
        Some((name, protocol, u16::try_from(port.container_port).ok()?))
    };
    // One more than counts says that there are too many.
    let labels = object.metadata.labels.iter().flatten().take(NETWORK_POLICY_LABELS_MAX + 1);
    Some(NewPod {
        namespace: pod.key.namespace.as_ref().into(),
        name: pod.key.name.as_ref().into(),
        labels: labels.map(|(key, value)| (key.as_str().into(), value.as_str().into())).collect(),
        ports: ports.filter_map(port).take(NETWORK_POLICY_POD_PORTS_MAX).collect(),
        ips: ips.to_vec(),
    })
}

impl PodNetwork for PolicyGate {
    fn ready<'a>(&'a self, pod: &'a DesiredPod, ips: &'a [Box<str>]) -> NetworkFuture<'a> {
        Box::pin(async move {
            let Some(new) = new_pod(pod, ips) else { return };
            let (wait, done) = smol::channel::bounded(1);
            // Full, or there is no task: the rules follow when the server shows the address.
            if self.told.try_send(Told::Started(new, Some(wait))).is_err() {
                return;
            }
            let is_over = async {
                let _ = done.recv().await;
                true
            };
            let is_late = async {
                self.clock.sleep(NETWORK_POLICY_START_WAIT).await;
                false
            };
            if !or(is_over, is_late).await {
                log::warn!("pod {}: starts before the rules of network policies are there", pod.key);
            }
        })
    }

    fn found(&self, pod: &DesiredPod, ips: &[Box<str>]) {
        if let Some(found) = new_pod(pod, ips) {
            // Full, or there is no task: as the server shows it.
            let _ = self.told.try_send(Told::Started(found, None));
        }
    }

    fn gone(&self, pod: &PodKey) {
        // Full, or there is no task: it stays until another has its name or address.
        let _ = self.told.try_send(Told::Ended(pod.namespace.as_ref().into(), pod.name.as_ref().into()));
    }
}

/// What a wait ended with.
enum News {
    Changed,
    Pod(Told),
    /// It is time to look at the table.
    Due,
}

/// What the task hears.
struct Inbox {
    changes: Receiver<()>,
    told: Receiver<Told>,
    /// Of new pods whose rules are not there yet. At most [`NETWORK_POLICY_STARTS_MAX`], and none that waits no longer.
    held: RefCell<Vec<Wait>>,
    /// New pods that the server may not show yet. None while there are no policies at all.
    new: Option<RefCell<NewPods>>,
}

impl Inbox {
    /// One more waits; a further one does not.
    fn hold(&self, wait: Option<Wait>) {
        let mut held = self.held.borrow_mut();
        held.retain(|wait| !wait.is_closed());
        if held.len() < NETWORK_POLICY_STARTS_MAX {
            held.extend(wait);
        }
    }

    /// Those that were held wait no longer.
    fn release(&self) {
        self.held.take();
    }

    async fn next(&self) -> News {
        let changed = async {
            match self.changes.recv().await {
                Ok(()) => News::Changed,
                Err(_) => std::future::pending().await,
            }
        };
        or(changed, async {
            match self.told.recv().await {
                Ok(told) => News::Pod(self.hear(told)),
                Err(_) => std::future::pending().await,
            }
        })
        .await
    }

    /// Whoever follows pods next knows of it.
    fn hear(&self, told: Told) -> Told {
        if let Some(new) = &self.new {
            match &told {
                Told::Started(pod, _) => new.borrow_mut().add(pod.clone()),
                Told::Ended(namespace, name) => new.borrow_mut().ended(namespace, name),
            }
        }
        told
    }

    /// The controller knows of it too, and a new pod waits.
    fn tell(&self, told: Told, shared: &Shared) {
        let mut controller = shared.controller.borrow_mut();
        match told {
            Told::Started(pod, wait) => {
                controller.announce(&pod);
                self.hold(wait);
            }
            Told::Ended(namespace, name) => controller.ended(&namespace, &name),
        }
    }

    /// Whoever begins to follow pods knows of those that the server does not.
    fn announce(&self, controller: &mut Controller) {
        self.new.iter().for_each(|new| new.borrow().announce(controller));
    }

    /// The server has shown some to the controller. Those that are left, and their bytes.
    fn forget_shown(&self, controller: &Controller) -> (usize, usize) {
        let Some(new) = &self.new else { return (0, 0) };
        let mut new = new.borrow_mut();
        new.forget_shown(controller);
        new.held()
    }
}

impl NetworkPolicies {
    /// The task, and what switches it. `is_on` is the state at the start, `None` if it is not known yet.
    pub(super) fn switched(self, is_on: Option<bool>) -> (PolicySwitch, impl Future<Output = ()>) {
        let (switch, switched) = smol::channel::bounded(1);
        let (told, hears) = smol::channel::bounded(NETWORK_POLICY_STARTS_MAX);
        (PolicySwitch { switch, is_on: Cell::new(is_on), told }, self.run(is_on, switched, hears))
    }

    async fn run(self, mut is_on: Option<bool>, switched: Receiver<bool>, told: Receiver<Told>) {
        let mut new = None;
        loop {
            let (changed, changes) = smol::channel::bounded(1);
            let kept = if is_on == Some(false) { None } else { Some(new.take().unwrap_or_default()) };
            let mut inbox = Inbox { changes, told: told.clone(), held: RefCell::default(), new: kept };
            if is_on == Some(false) {
                self.end_table().await;
            }
            let enforce = async {
                if is_on == Some(true) {
                    self.enforce(changed, &inbox).await;
                }
                // New pods have nothing to wait for.
                loop {
                    inbox.next().await;
                }
            };
            match or(async { switched.recv().await.ok() }, enforce).await {
                Some(next) => {
                    is_on = Some(next);
                    new = inbox.new.take();
                }
                // The agent ends, and rules stay; or it is to have none, and has none.
                None => return,
            }
        }
    }

    /// Follows the policies for ever.
    async fn enforce(&self, changed: Sender<()>, inbox: &Inbox) {
        let controller = Rc::new(RefCell::new(Controller::new(&self.node)));
        let shared = Shared { controller, changed, is_away: Rc::default() };
        or(self.follow(Resource::Policies, &shared), self.follow_policies(&shared, inbox)).await;
    }

    async fn follow(&self, of: Resource, shared: &Shared) {
        let collection = Collection::all(of.path());
        let mut follower = PolicyFollower::new(of, shared);
        Box::pin(follow::<()>(&self.client, &collection, &mut follower)).await;
    }

    async fn follow_policies(&self, shared: &Shared, inbox: &Inbox) {
        loop {
            let (is_known, is_needed) = {
                let controller = shared.controller.borrow();
                (controller.knows_policies(), controller.needs_pods())
            };
            if is_known && is_needed {
                inbox.announce(&mut shared.controller.borrow_mut());
                let (namespaces, pods) =
                    (self.follow(Resource::Namespaces, shared), self.follow(Resource::Pods, shared));
                or(or(namespaces, pods), self.keep_table(shared, inbox)).await;
                shared.controller.borrow_mut().forget_pods();
                self.held.set((0, 0));
            } else {
                if is_known {
                    self.end_table().await;
                }
                loop {
                    let may_come = !is_known && !shared.is_away.get();
                    if !may_come {
                        inbox.release();
                    }
                    match inbox.next().await {
                        News::Changed => break,
                        // They are announced when there is somebody to announce them to.
                        News::Pod(Told::Started(_, wait)) if may_come => inbox.hold(wait),
                        News::Pod(_) | News::Due => {}
                    }
                }
            }
        }
    }

    /// Applies all changes while there are policies.
    async fn keep_table(&self, shared: &Shared, inbox: &Inbox) {
        self.check_bridges().await;
        let mut wait = RetryWait::new(self.seed);
        let mut said = None;
        let mut check_at = self.clock.now().mono + NETWORK_POLICY_CHECK_PERIOD;
        loop {
            // News put the check off for nobody.
            let is_due = async {
                self.clock.sleep(check_at.since(self.clock.now().mono)).await;
                News::Due
            };
            match or(is_due, inbox.next()).await {
                News::Changed => self.clock.sleep(NETWORK_POLICY_SETTLE).await,
                News::Pod(told) => inbox.tell(told, shared),
                News::Due => {
                    check_at = self.clock.now().mono + NETWORK_POLICY_CHECK_PERIOD;
                    let is_whole = shared.controller.borrow().is_whole();
                    if !is_whole || !self.table_is_gone().await {
                        continue;
                    }
                    log::warn!("network policies: table inet {TABLE} is gone; it is made anew");
                    shared.controller.borrow_mut().clear();
                }
            }
            while let Ok(told) = inbox.told.try_recv() {
                inbox.tell(inbox.hear(told), shared);
            }
            let transaction = {
                let mut controller = shared.controller.borrow_mut();
                if !controller.needs_pods() {
                    return;
                }
                if !controller.is_whole() {
                    if shared.is_away.get() {
                        inbox.release();
                    }
                    continue;
                }
                let (new, new_bytes) = inbox.forget_shown(&controller);
                let transaction = controller.transaction();
                let (pods, bytes) = controller.held();
                self.held.set((pods + new, bytes + new_bytes));
                for problem in controller.take_problems() {
                    log::warn!("{problem}");
                }
                transaction
            };
            match self.commit(transaction).await {
                Ok(()) => {
                    inbox.release();
                    said = None;
                    wait.succeeded();
                }
                Err(why) => {
                    if said.as_ref() != Some(&why) {
                        log::warn!("network policies: {why}; retrying, the rules before stay");
                        said = Some(why);
                    }
                    inbox.release();
                    shared.controller.borrow_mut().clear();
                    self.clock.sleep(wait.failed()).await;
                    let _ = shared.changed.try_send(());
                }
            }
        }
    }

    /// Warns when connections within a bridge are not seen.
    async fn check_bridges(&self) {
        let is_on = |path: &&str| std::fs::read(path).is_ok_and(|text| text.trim_ascii() == b"1");
        if !self.blocking.run(move || BRIDGE_SETTINGS.iter().all(is_on)).await {
            log::warn!(
                "network policies: connections between pods on one bridge of this node are not seen; run modprobe br_netfilter && \
                 sysctl -w net.bridge.bridge-nf-call-iptables=1 net.bridge.bridge-nf-call-ip6tables=1"
            );
        }
    }

    async fn commit(&self, transaction: Transaction) -> Result<(), String> {
        if transaction.is_empty() {
            return Ok(());
        }
        let work = move || {
            let needs = "the kernel needs nf_tables for inet with ct, fib and reject (modprobe nf_tables nft_ct nft_reject_inet)";
            let mut netlink =
                Netlink::open(Protocol::Netfilter).map_err(|error| format!("{error}; {needs}"))?;
            nftables::run(&mut netlink, transaction.batch()).map_err(|failed| {
                let message = failed.message.map(|number| format!("message {number}: ")).unwrap_or_default();
                format!("nf_tables: {message}{}; {needs}", failed.error)
            })
        };
        self.blocking.run(work).await
    }

    async fn table_is_gone(&self) -> bool {
        let work = || {
            let mut netlink = Netlink::open(Protocol::Netfilter)?;
            nftables::table_exists(&mut netlink, Family::Inet, TABLE)
        };
        self.blocking.run(work).await.is_ok_and(|exists| !exists)
    }

    /// Removes the table, which may be of another run. A kernel without `nf_tables` has none.
    async fn end_table(&self) {
        let work = || {
            let mut netlink = Netlink::open(Protocol::Netfilter)?;
            if nftables::table_exists(&mut netlink, Family::Inet, TABLE)? {
                nftables::run(&mut netlink, Transaction::end().batch()).map_err(|failed| failed.error)?;
            }
            Ok(())
        };
        let ended: std::io::Result<()> = self.blocking.run(work).await;
        if let Err(error) = ended {
            log::debug!("network policies: table inet {TABLE} cannot be removed: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A k3s server says it with each greeting: what would be dropped holds up new pods, and knows those that the server does not yet.
    #[test]
    fn what_is_said_again_switches_nothing() {
        let (switch, switched) = smol::channel::bounded(1);
        let (told, _hears) = smol::channel::bounded(1);
        let policies = PolicySwitch { switch, is_on: Cell::new(Some(true)), told };
        policies.set(true);
        assert!(switched.is_empty());
        policies.set(false);
        policies.set(false);
        assert_eq!(switched.try_recv(), Ok(false));
        policies.set(true);
        assert_eq!((switched.try_recv(), switched.is_empty()), (Ok(true), true));
    }

    #[test]
    fn a_node_that_has_not_joined_yet_has_lost_no_server() {
        let (changed, changes) = smol::channel::bounded(1);
        let controller = Rc::new(RefCell::new(Controller::new("gw")));
        let shared = Shared { controller, changed, is_away: Rc::default() };
        let mut follower = PolicyFollower::new(Resource::Policies, &shared);
        let not_joined = KubeError::NotJoined("kubeconfig".to_owned());
        for _ in 1..NETWORK_POLICY_CREDENTIALS_TRIES {
            assert_eq!(follower.again_in(&not_joined), Some(COMPONENT_CREDENTIALS_WAIT));
        }
        assert!(!shared.is_away.get() && changes.is_empty(), "new pods wait for rules");
        assert_eq!(follower.again_in(&not_joined), Some(COMPONENT_CREDENTIALS_WAIT));
        assert!(shared.is_away.get() && changes.len() == 1, "the server gives none");
        assert_eq!(follower.said, None);
        follower.settled();
        assert!(!shared.is_away.get());
        assert!(follower.again_in(&KubeError::Unreachable("no route".to_owned())).is_none());
    }
}
