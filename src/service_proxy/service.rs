//! v1 `Service`, parsed into a record of what is served of it (`newBaseServiceInfo`). PURE.

use std::net::IpAddr;

use crate::decode::Node;
use crate::limits::{AFFINITY_SECONDS_DEFAULT, ALLOCATION_BYTES, SERVICE_PORTS_EACH_MAX, SOURCE_RANGES_MAX};
use crate::model::network::parse_ip;
use crate::model::{Network, Transport};

use super::model::{ServiceName, ServicePort, label, port_number, transport};

/// Another proxy serves the Service (`LabelServiceProxyName`).
const PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";

/// What is kept of a Service.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Service {
    /// One of each family at most.
    cluster_ips: Box<[IpAddr]>,
    ports: Box<[SpecPort]>,
    /// Of both families.
    external_ips: Box<[IpAddr]>,
    load_balancer_ips: Box<[IpAddr]>,
    source_ranges: Box<[Network]>,
    affinity_seconds: u32,
    health_check_node_port: u16,
    is_internal_local: bool,
    is_external_local: bool,
}

#[derive(Debug, PartialEq, Eq)]
struct SpecPort {
    name: Box<str>,
    transport: Transport,
    number: u16,
    node_port: u16,
}

impl Service {
    /// `None`: nothing is served of it (`ShouldSkipService`, and the label selector of kube-proxy).
    pub(super) fn read(object: &Node) -> Option<Self> {
        let spec = object.field("spec")?;
        let text = |field| spec.field(field).and_then(Node::text).unwrap_or_default();
        let kind = text("type");
        let is_skipped = label(object, PROXY_NAME).is_some()
            || matches!(text("clusterIP"), "" | "None")
            || kind == "ExternalName";
        if is_skipped {
            return None;
        }
        let cluster_ips = cluster_ips(spec);
        let external_ips: Box<[IpAddr]> = texts(spec, "externalIPs").filter_map(parse_ip).collect();
        // `ExternallyAccessible` of the Service; each port has a test of its own besides.
        let is_external = match kind {
            "LoadBalancer" | "NodePort" => true,
            _ => spec.field("externalIPs").is_some_and(|ips| !ips.items().is_empty()),
        };
        let is_external_local = is_external && text("externalTrafficPolicy") == "Local";
        let needs_health_check = kind == "LoadBalancer" && is_external_local;
        let ingress = object.field("status").and_then(|status| status.field("loadBalancer"));
        let ingress = ingress.and_then(|balancer| balancer.field("ingress")).map(Node::items);
        // A balancer in mode `Proxy` is to see the traffic of the cluster too.
        let is_vip = |ingress: &&Node| ingress.field("ipMode").is_none_or(|mode| mode.text() == Some("VIP"));
        let load_balancer_ips = ingress.unwrap_or_default().iter().filter(is_vip);
        let load_balancer_ips = load_balancer_ips
            .filter_map(|ingress| ingress.field("ip").and_then(Node::text).and_then(parse_ip));
        Some(Self {
            ports: ports(spec),
            load_balancer_ips: load_balancer_ips.collect(),
            source_ranges: texts(spec, "loadBalancerSourceRanges").filter_map(Network::parse).collect(),
            affinity_seconds: if text("sessionAffinity") == "ClientIP" { affinity_seconds(spec) } else { 0 },
            health_check_node_port: if needs_health_check {
                port_number(spec, "healthCheckNodePort").unwrap_or_default()
            } else {
                0
            },
            is_internal_local: text("internalTrafficPolicy") == "Local",
            is_external_local,
            cluster_ips,
            external_ips,
        })
    }

    /// How many ports it has.
    pub(super) fn ports(&self) -> usize {
        self.ports.len()
    }

    /// More than any node takes of one.
    pub(super) fn is_too_large(&self) -> bool {
        self.ports.len() > SERVICE_PORTS_EACH_MAX || self.source_ranges.len() > SOURCE_RANGES_MAX
    }

    /// The node's own addresses count for who may use it.
    pub(super) fn depends_on_node_addresses(&self) -> bool {
        !self.source_ranges.is_empty() && !self.load_balancer_ips.is_empty()
    }

    /// Heap that it holds.
    pub(super) fn bytes(&self) -> usize {
        let names: usize = self.ports.iter().map(|port| held(&*port.name)).sum();
        let addresses = held(&*self.cluster_ips) + held(&*self.external_ips) + held(&*self.load_balancer_ips);
        held(&*self.ports) + names + addresses + held(&*self.source_ranges)
    }

    /// Its ports in each family, without backends.
    pub(super) fn families(&self, name: &ServiceName) -> impl Iterator<Item = ServicePort> {
        self.cluster_ips
            .iter()
            .flat_map(move |ip| self.ports.iter().map(move |port| self.port(name, port, *ip)))
    }

    fn port(&self, name: &ServiceName, port: &SpecPort, cluster_ip: IpAddr) -> ServicePort {
        let of_family = |ips: &[IpAddr]| -> Box<[IpAddr]> {
            ips.iter().copied().filter(|ip| ip.is_ipv4() == cluster_ip.is_ipv4()).collect()
        };
        let ranges = self.source_ranges.iter().copied();
        let mut source_ranges: Box<[Network]> =
            ranges.filter(|range| range.address.is_ipv4() == cluster_ip.is_ipv4()).collect();
        if source_ranges.iter().any(|range| range.prefix == 0) {
            source_ranges = Box::default();
        }
        ServicePort {
            service: name.clone(),
            port_name: port.name.clone(),
            transport: port.transport,
            cluster_ip,
            port: port.number,
            node_port: port.node_port,
            external_ips: of_family(&self.external_ips),
            load_balancer_ips: of_family(&self.load_balancer_ips),
            source_ranges,
            affinity_seconds: self.affinity_seconds,
            is_internal_local: self.is_internal_local,
            is_external_local: self.is_external_local,
            health_check_node_port: self.health_check_node_port,
            cluster: Vec::new(),
            local: Vec::new(),
            serving: Vec::new(),
            has_endpoints: false,
        }
    }
}

/// Heap of a box: what is in it, and what the allocator adds.
pub(super) fn held<T: ?Sized>(of: &T) -> usize {
    match size_of_val(of) {
        0 => 0,
        bytes => bytes + ALLOCATION_BYTES,
    }
}

/// The strings of a list.
fn texts<'a>(of: &'a Node, field: &str) -> impl Iterator<Item = &'a str> {
    of.field(field).map(Node::items).unwrap_or_default().iter().filter_map(Node::text)
}

/// One of each family: where `ipFamilies` names the family, or, of an old Service without it, `clusterIP`
/// (`GetClusterIPByFamily`).
fn cluster_ips(spec: &Node) -> Box<[IpAddr]> {
    let families: Vec<&str> = texts(spec, "ipFamilies").collect();
    if families.is_empty() {
        return spec.field("clusterIP").and_then(Node::text).and_then(parse_ip).into_iter().collect();
    }
    let ips = || families.iter().zip(texts(spec, "clusterIPs"));
    let of_family = |family: &str| {
        let ip = ips().find(|(of, _)| **of == family).and_then(|(_, ip)| parse_ip(ip));
        ip.filter(|ip| ip.is_ipv4() == (family == "IPv4"))
    };
    ["IPv4", "IPv6"].into_iter().filter_map(of_family).collect()
}

/// The API server admits no name twice.
fn ports(spec: &Node) -> Box<[SpecPort]> {
    let read = |port: &Node| {
        Some(SpecPort {
            name: port.field("name").and_then(Node::text).unwrap_or_default().into(),
            transport: transport(port)?,
            number: port_number(port, "port")?,
            node_port: port_number(port, "nodePort").unwrap_or_default(),
        })
    };
    spec.field("ports").map(Node::items).unwrap_or_default().iter().filter_map(read).collect()
}

fn affinity_seconds(spec: &Node) -> u32 {
    let config = spec.field("sessionAffinityConfig").and_then(|config| config.field("clientIP"));
    let seconds = match config.and_then(|config| config.field("timeoutSeconds")) {
        Some(Node::Int(seconds)) => u32::try_from(*seconds).ok().filter(|seconds| *seconds != 0),
        _ => None,
    };
    seconds.unwrap_or(AFFINITY_SECONDS_DEFAULT)
}
