//! A client of the API server for each component of `k3s agent`, with credentials of its own. They know the same servers as the
//! node's client, and go from one to the next by themselves.

use std::rc::Rc;

use super::Component;
use crate::kube::Client;

/// The clients, in the order of [`Component::ALL`]. Clones share them.
#[derive(Clone)]
pub(crate) struct ComponentClients(Rc<[Client; 2]>);

impl ComponentClients {
    /// Those that `make` returns: until they have credentials each request ends with `KubeError::NotJoined`.
    pub(crate) fn new(make: impl Fn(Component) -> Client) -> Self {
        Self(Rc::new(Component::ALL.map(make)))
    }

    /// The client with the credentials of `component`.
    pub(crate) fn client(&self, component: Component) -> Client {
        let [proxy, controller] = &*self.0;
        match component {
            Component::KubeProxy => proxy.clone(),
            Component::Controller => controller.clone(),
        }
    }

    /// The credentials of one were written: it uses them from now on.
    pub(super) fn renewed(&self, component: Component) {
        self.client(component).reconnect();
    }

    /// The list of servers has changed.
    pub(super) fn servers_changed(&self) {
        for client in &*self.0 {
            client.servers_changed();
        }
    }
}
