//! The vocabulary of the service proxy: one port of a Service in one address family, and who serves it. PURE.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::decode::Node;
use crate::model::{Network, Transport};

/// The namespace and name of a Service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServiceName {
    /// Its namespace.
    pub namespace: Box<str>,
    /// Its name.
    pub name: Box<str>,
}

/// `NAMESPACE/NAME`.
impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// An address and port that serve a port of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Backend {
    /// Its address.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// It runs on this node.
    pub is_local: bool,
}

/// One port of a Service in one address family: all addresses in it are of the family of `cluster_ip`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// The Service.
    pub service: ServiceName,
    /// Empty where the only port has no name.
    pub port_name: Box<str>,
    /// The port's protocol.
    pub transport: Transport,
    /// The Service's address in the family.
    pub cluster_ip: IpAddr,
    /// The port of all its addresses but the nodes'.
    pub port: u16,
    /// 0: none.
    pub node_port: u16,
    /// `externalIPs`.
    pub external_ips: Box<[IpAddr]>,
    /// Addresses of `status.loadBalancer` that the nodes answer for (`ipMode: VIP`).
    pub load_balancer_ips: Box<[IpAddr]>,
    /// Who may use the addresses of the load balancer; empty: everybody.
    pub source_ranges: Box<[Network]>,
    /// How long a client stays with its backend; 0: no session affinity.
    pub affinity_seconds: u32,
    /// `internalTrafficPolicy: Local`.
    pub is_internal_local: bool,
    /// `externalTrafficPolicy: Local`.
    pub is_external_local: bool,
    /// 0: none.
    pub health_check_node_port: u16,
    /// Backends under traffic policy `Cluster`, by address and port; empty too where no traffic has that policy.
    pub cluster: Vec<Backend>,
    /// Backends under traffic policy `Local`, by address and port; empty too where no traffic has that policy.
    pub local: Vec<Backend>,
    /// All that still serve a port of UDP, whatever the policies say (`IsServing`): connections to others are forgotten.
    pub serving: Vec<SocketAddr>,
    /// Some node has a usable backend (`hasAnyEndpoints`): traffic that finds none here is dropped, and not rejected.
    pub has_endpoints: bool,
}

impl ServicePort {
    /// It has an address besides the cluster IP (`ExternallyAccessible`).
    pub fn is_external(&self) -> bool {
        self.node_port != 0 || !self.external_ips.is_empty() || !self.load_balancer_ips.is_empty()
    }

    /// Some traffic has the policy `Cluster` (`UsesClusterEndpoints`): with `externalTrafficPolicy: Local` that of this node and its
    /// pods.
    pub fn uses_cluster(&self) -> bool {
        !self.is_internal_local || self.is_external()
    }

    /// Some traffic has the policy `Local` (`UsesLocalEndpoints`).
    pub fn uses_local(&self) -> bool {
        self.is_internal_local || (self.is_external_local && self.is_external())
    }
}

/// The value of a label of the object.
pub(super) fn label<'a>(object: &'a Node, label: &str) -> Option<&'a Node> {
    object.field("metadata")?.field("labels")?.field(label)
}

/// A number of a port; `None` for 0 and for what is no port.
pub(super) fn port_number(of: &Node, field: &str) -> Option<u16> {
    let Some(Node::Int(number)) = of.field(field) else { return None };
    u16::try_from(*number).ok().filter(|number| *number != 0)
}

/// `protocol` of a port; `None` for one that the API does not know.
pub(super) fn transport(of: &Node) -> Option<Transport> {
    Transport::read(of.field("protocol").and_then(Node::text))
}
