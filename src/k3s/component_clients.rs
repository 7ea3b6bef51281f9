//! A client of the API server for each component of `k3s agent`, with credentials of its own. They know the same servers as the
//! node's client, and go from one to the next by themselves.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use smol::channel::{Receiver, Sender};

use super::Component;
use crate::kube::Client;

/// The clients. Clones share them.
#[derive(Clone)]
pub(crate) struct ComponentClients(Rc<Shared>);

struct Shared {
    /// In the order of [`Component::ALL`].
    clients: [Client; 2],
    /// Which have credentials.
    is_there: Cell<[bool; 2]>,
    /// One for each part of the agent that uses them.
    subscribers: RefCell<Vec<Sender<()>>>,
}

impl ComponentClients {
    /// Those that `make` returns: until they have credentials each request ends with `KubeError::NotJoined`.
    pub(crate) fn new(make: impl Fn(Component) -> Client) -> Self {
        Self(Rc::new(Shared {
            clients: Component::ALL.map(make),
            is_there: Cell::default(),
            subscribers: RefCell::default(),
        }))
    }

    /// The client with the credentials of `component`.
    #[expect(dead_code, reason = "for the parts of k3s agent, which ask for themselves")]
    pub(crate) fn client(&self, component: Component) -> Client {
        let [proxy, controller] = &self.0.clients;
        match component {
            Component::KubeProxy => proxy.clone(),
            Component::Controller => controller.clone(),
        }
    }

    /// Whether it has credentials.
    #[expect(dead_code, reason = "for the parts of k3s agent, which ask for themselves")]
    pub(crate) fn is_there(&self, component: Component) -> bool {
        let [proxy, controller] = self.0.is_there.get();
        match component {
            Component::KubeProxy => proxy,
            Component::Controller => controller,
        }
    }

    /// Receives a message when credentials came, or were renewed; several changes may be one message. The clients use new ones by
    /// themselves.
    #[expect(dead_code, reason = "for the parts of k3s agent, which ask for themselves")]
    pub(crate) fn changes(&self) -> Receiver<()> {
        let (sender, receiver) = smol::channel::bounded(1);
        self.0.subscribers.borrow_mut().push(sender);
        receiver
    }

    /// These have credentials on the disk.
    pub(super) fn found(&self, is_there: [bool; 2]) {
        if self.0.is_there.replace(is_there) != is_there {
            self.tell();
        }
    }

    /// Those of one were written.
    pub(super) fn renewed(&self, component: Component) {
        let mut is_there = self.0.is_there.get();
        for ((of, is_there), client) in Component::ALL.iter().zip(&mut is_there).zip(&self.0.clients) {
            if *of == component {
                *is_there = true;
                client.reconnect();
            }
        }
        self.0.is_there.set(is_there);
        self.tell();
    }

    /// The list of servers has changed.
    pub(super) fn servers_changed(&self) {
        for client in &self.0.clients {
            client.servers_changed();
        }
    }

    fn tell(&self) {
        for subscriber in &*self.0.subscribers.borrow() {
            // Full: the last change was not handled yet.
            let _ = subscriber.try_send(());
        }
    }
}
