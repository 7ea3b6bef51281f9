//! The servers of a node's cluster, shared by their clients, and a tunnel to each (`agentTunnel.watchEndpoints`).

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use smol::Task;
use smol::channel::{Receiver, Sender};

use super::servers::{List, supervisor};
use super::tunnel::{Common, Tunnel, TunnelState};
use crate::kube::{Others, ServerUrl};

/// The known servers.
pub(crate) struct Servers {
    /// The server that the user names, by its supervisor.
    named: ServerUrl,
    /// The API's port, when it differs from the supervisor's.
    api_port: Cell<Option<u16>>,
    /// The other servers, by their API.
    others: Others,
    /// Notified when they change.
    changed: Sender<()>,
    /// Supervisors whose tunnel could not be opened, or was lost: at most `limits::TUNNELS_MAX`.
    lost: RefCell<Vec<ServerUrl>>,
    /// Notified when the servers, or the ones that are lost, change.
    watcher: RefCell<Option<Sender<()>>>,
}

impl Servers {
    /// The server that the user names, and `others` once they are set; `changed` is notified of each change.
    pub(crate) fn new(named: ServerUrl, others: Others, changed: Sender<()>) -> Self {
        let (lost, watcher) = Default::default();
        Self { named, api_port: Cell::new(None), others, changed, lost, watcher }
    }

    /// The channel that tells its one receiver of each change.
    pub(super) fn watch(&self) -> Receiver<()> {
        let (sender, receiver) = smol::channel::bounded(1);
        self.watcher.replace(Some(sender));
        receiver
    }

    /// The supervisors whose tunnel is not lost, and the others, which may accept connections and serve none.
    pub(super) fn by_health(&self) -> [Vec<ServerUrl>; 2] {
        let lost = self.lost.borrow();
        let (bad, good) = self.supervisors().into_iter().partition(|server| lost.contains(server));
        [good, bad]
    }

    /// Whether connections to that supervisor go on: it is one of the cluster's, and not lost where another is there.
    pub(super) fn keeps(&self, server: &ServerUrl) -> bool {
        let (all, lost) = (self.supervisors(), self.lost.borrow());
        all.contains(server) && (!lost.contains(server) || all.iter().all(|other| lost.contains(other)))
    }

    fn set_lost(&self, lost: Vec<ServerUrl>) {
        if *self.lost.borrow() != lost {
            self.lost.replace(lost);
            self.tell();
        }
    }

    /// Full: a notification is pending already.
    fn tell(&self) {
        if let Some(watcher) = &*self.watcher.borrow() {
            let _ = watcher.try_send(());
        }
    }

    /// The server that the user names.
    pub(crate) fn named(&self) -> &ServerUrl {
        &self.named
    }

    /// Its API, as far as is known.
    pub(crate) fn api(&self) -> ServerUrl {
        ServerUrl { port: self.api_port.get().unwrap_or(self.named.port), ..self.named.clone() }
    }

    /// Sets the API's port by the server's settings.
    pub(crate) fn set_api_port(&self, port: Option<u16>) {
        if self.api_port.replace(port) != port {
            // Full: a notification is pending already.
            let _ = self.changed.try_send(());
            self.tell();
        }
    }

    /// Replaces the others. True when they have changed. Nodes start with different ones, by their `seed`, so that nodes that
    /// lose the same server do not all move to the same one.
    pub(crate) fn set(&self, list: &List, seed: u64) -> bool {
        let first = usize::try_from(seed % list.servers.len().max(1) as u64).unwrap_or(0);
        let (front, rear) = list.servers.split_at(first);
        let servers = [rear, front].concat();
        let is_changed = self.others.all() != servers;
        if is_changed {
            self.others.set(servers);
            let _ = self.changed.try_send(());
            self.tell();
        }
        is_changed
    }

    /// The supervisors of the listed servers.
    fn listed(&self) -> Vec<ServerUrl> {
        let mut found = Vec::new();
        for api in self.others.all() {
            let server = supervisor(&api, &self.named, self.api_port.get());
            // A host may be listed with two ports.
            if !found.contains(&server) {
                found.push(server);
            }
        }
        found
    }

    /// All supervisors, the one that the user names first.
    pub(crate) fn supervisors(&self) -> Vec<ServerUrl> {
        let listed = Others::default();
        listed.set(self.listed());
        listed.behind(&self.named)
    }
}

/// Keeps the tunnels open.
pub(crate) struct Tunnels {
    pub(crate) servers: Rc<Servers>,
    pub(crate) common: Common,
    /// The servers or the tunnels have changed.
    pub(crate) changes: Receiver<()>,
    /// Sender of `changes`.
    pub(crate) changed: Sender<()>,
    /// Notified when a tunnel is lost, or cannot be opened at first.
    pub(crate) lost: Sender<()>,
}

/// A tunnel whose task is cancelled when this is dropped.
struct TunnelTask {
    server: ServerUrl,
    _task: Task<()>,
    standing: Rc<Cell<TunnelState>>,
}

impl Tunnels {
    /// Keeps a tunnel to each server until dropped.
    pub(crate) async fn run(self) {
        let mut kept: Vec<TunnelTask> = Vec::new();
        loop {
            let listed = self.servers.listed();
            let named = self.servers.named();
            kept.retain(|of| {
                let stays = of.server == *named || listed.contains(&of.server);
                if !stays {
                    let server = of.server.authority();
                    log::info!("tunnel to k3s server {server}: closed, the server left the cluster");
                }
                stays
            });
            for server in &listed {
                self.keep(&mut kept, server);
            }
            if !listed.contains(named) {
                let of_listed = kept.iter().filter(|of| of.server != *named);
                let standings: Vec<TunnelState> = of_listed.map(|of| of.standing.get()).collect();
                match is_named_kept(&standings) {
                    Some(true) => self.keep(&mut kept, named),
                    Some(false) => kept.retain(|of| of.server != *named),
                    None => {}
                }
            }
            let lost = kept.iter().filter(|of| of.standing.get() == TunnelState::Lost);
            self.servers.set_lost(lost.map(|of| of.server.clone()).collect());
            if self.changes.recv().await.is_err() {
                return;
            }
        }
    }

    /// At most `limits::TUNNELS_MAX`: one to each listed server, and to the one that the user names.
    fn keep(&self, kept: &mut Vec<TunnelTask>, server: &ServerUrl) {
        if kept.iter().any(|of| of.server == *server) {
            return;
        }
        let Some(executor) = self.common.executor.upgrade() else { return };
        let standing = Rc::new(Cell::new(TunnelState::Tried));
        let tunnel = Tunnel {
            server: server.clone(),
            common: self.common.clone(),
            standing: standing.clone(),
            changed: self.changed.clone(),
            lost: self.lost.clone(),
        };
        let task = executor.spawn("k3s tunnel", tunnel.run());
        kept.push(TunnelTask { server: server.clone(), _task: task, standing });
    }
}

/// Whether to keep a tunnel to the server that the user names, when it is not listed by that name; `None`: unchanged.
///
/// k3s has none as soon as there is a list. But a node outside the cluster's network may reach no server by the listed addresses.
///
/// | listed tunnels          | tunnel to the named server |
/// |-------------------------|----------------------------|
/// | one is open             | no                         |
/// | all lost, or none       | yes                        |
/// | otherwise               | unchanged                  |
fn is_named_kept(listed: &[TunnelState]) -> Option<bool> {
    if listed.contains(&TunnelState::Open) {
        return Some(false);
    }
    listed.iter().all(|standing| *standing == TunnelState::Lost).then_some(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_to_a_server_that_leaves_or_is_lost_do_not_go_on_where_another_one_is_there() {
        let server = |host: &str| ServerUrl::parse(&format!("https://{host}:6443")).unwrap();
        let (named, other) = (server("10.0.0.1"), server("10.0.0.2"));
        let (changed, _changes) = smol::channel::bounded(1);
        let servers = Servers::new(named.clone(), Others::default(), changed);
        let watched = servers.watch();
        let list = |text: &str| List::parse(text.as_bytes()).unwrap();
        servers.set(&list(r#"["10.0.0.1:6443","10.0.0.2:6443"]"#), 0);
        assert!(watched.try_recv().is_ok() && servers.keeps(&named) && servers.keeps(&other));
        servers.set_lost(vec![named.clone()]);
        assert!(watched.try_recv().is_ok() && !servers.keeps(&named) && servers.keeps(&other));
        assert_eq!(servers.by_health(), [vec![other.clone()], vec![named.clone()]]);
        servers.set_lost(vec![named.clone()]);
        assert!(watched.try_recv().is_err(), "nothing is new");
        servers.set_lost(vec![named.clone(), other.clone()]);
        assert!(servers.keeps(&named) && servers.keeps(&other), "there is no other one");
        servers.set_lost(Vec::new());
        servers.set(&list(r#"["10.0.0.3:6443"]"#), 0);
        assert!(!servers.keeps(&other) && servers.keeps(&named), "it has left");
    }

    #[test]
    fn a_server_that_is_not_listed_has_a_tunnel_while_no_listed_one_can_be_reached() {
        use TunnelState::{Lost, Open, Tried};
        for (listed, wanted) in [
            (&[][..], Some(true)),
            (&[Lost], Some(true)),
            (&[Lost, Lost], Some(true)),
            (&[Tried], None),
            (&[Tried, Lost], None),
            (&[Open], Some(false)),
            (&[Lost, Open], Some(false)),
            (&[Tried, Open], Some(false)),
        ] {
            assert_eq!(is_named_kept(listed), wanted, "{listed:?}");
        }
    }

    #[test]
    fn a_change_of_the_servers_is_notified_once_and_each_node_begins_with_another_one() {
        let (changed, changes) = smol::channel::bounded(1);
        let named = ServerUrl::parse("https://vip:6443").unwrap();
        let others = Others::default();
        let servers = Servers::new(named, others.clone(), changed);
        assert_eq!(servers.supervisors(), [servers.api()]);
        let list = List::parse(br#"["10.0.0.1:6443","10.0.0.2:6443"]"#).unwrap();
        assert!(servers.set(&list, 1) && changes.try_recv().is_ok());
        assert!(!servers.set(&list, 1) && changes.try_recv().is_err());
        let hosts = |all: Vec<ServerUrl>| all.into_iter().map(|server| server.host).collect::<Vec<_>>();
        assert_eq!(hosts(others.all()), ["10.0.0.2", "10.0.0.1"]);
        assert_eq!(hosts(servers.supervisors()), ["vip", "10.0.0.2", "10.0.0.1"]);
        // When the API has a port of its own.
        servers.set_api_port(Some(7443));
        assert!(changes.try_recv().is_ok());
        assert_eq!(servers.api().authority(), "vip:7443");
        assert!(servers.set(&List::parse(br#"["10.0.0.1:7443"]"#).unwrap(), 1));
        assert_eq!(servers.supervisors()[1].authority(), "10.0.0.1:6443");
    }
}
