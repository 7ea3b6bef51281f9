//! A k3s server's cluster settings at `/v1-k3s/config` (`config.Control`). PURE.

use std::net::IpAddr;

use serde_json::json;

use crate::config::Config;
use crate::decode::Node;
use crate::decode::json as reader;
use crate::flannel::NetConf;
use crate::limits::DNS_SERVERS_MAX;
use crate::model::Network;
use crate::model::names;
use crate::render::NodeSettings;

/// The settings that a node needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    /// DNS servers for pods with `dnsPolicy: ClusterFirst` (`ClusterDNSs`, of older servers `ClusterDNS`).
    pub(crate) cluster_dns: Vec<Box<str>>,
    /// The cluster's DNS domain (`ClusterDomain`).
    pub(crate) cluster_domain: Box<str>,
    /// The API server's port, when it differs from the supervisor's (`HTTPSPort`).
    pub(crate) api_port: Option<u16>,
    /// The server reaches pods through the tunnel (`EgressSelectorMode`: `pod` or `cluster`).
    pub(crate) reaches_pods: bool,
    /// No pods are made for Services of type `LoadBalancer` (`DisableServiceLB`).
    pub(crate) disable_service_lb: bool,
    /// The server sets no Node's addresses (`DisableCCM`).
    pub(crate) disable_cloud_controller: bool,
    /// Services are another program's, or nobody's (`DisableKubeProxy`).
    pub(crate) disable_kube_proxy: bool,
    /// The pods' network.
    pub(crate) network: NetConf,
    /// Network policies are another program's, or nobody's (`DisableNPC`).
    pub(crate) disable_network_policy: bool,
    /// The servers' settings of images that have no effect here, with their flags.
    pub(crate) no_effect: Vec<&'static str>,
}

/// Which of the server's settings count, because the configuration has no others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unset {
    /// `clusterDNS`.
    pub(crate) cluster_dns: bool,
    /// `allowedUnsafeSysctls`.
    pub(crate) unsafe_sysctls: bool,
}

impl Unset {
    pub(crate) fn of(config: &Config) -> Self {
        Self {
            cluster_dns: config.cluster_dns.is_empty(),
            unsafe_sysctls: config.allowed_unsafe_sysctls.is_none(),
        }
    }
}

/// What of the cluster's network this node does.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Does {
    pub(crate) services: bool,
    pub(crate) flannel: bool,
    pub(crate) policies: bool,
}

/// Unsafe sysctls that the pods of k3s' load balancer (servicelb) set (`kubeletArgsAndConfig`).
const SERVICE_LB_SYSCTLS: [&str; 2] = ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"];

impl Settings {
    /// Parses the server's JSON.
    ///
    /// # Errors
    /// A message that names the field.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let wrong =
            |why: String| format!("/v1-k3s/config: {why}; the server is not k3s, or has an unknown version");
        let tree = reader::read(bytes).map_err(wrong)?;
        let listed = tree.field("ClusterDNSs").map(Node::items).unwrap_or_default();
        let alone = tree.field("ClusterDNS");
        let servers: Vec<&Node> =
            if listed.is_empty() { alone.into_iter().collect() } else { listed.iter().collect() };
        let mut cluster_dns = Vec::new();
        for server in servers.into_iter().take(DNS_SERVERS_MAX) {
            let address = server.text().filter(|text| text.parse::<IpAddr>().is_ok());
            cluster_dns.push(address.ok_or_else(|| wrong("ClusterDNS is no address".to_owned()))?.into());
        }
        let cluster_domain = tree.field("ClusterDomain").and_then(Node::text).unwrap_or_default();
        if !cluster_domain.is_empty() && names::subdomain(cluster_domain).is_some() {
            return Err(wrong("ClusterDomain is no name of a domain".to_owned()));
        }
        let port = |field: &str| match tree.field(field) {
            Some(Node::Int(port)) => u16::try_from(*port).ok().filter(|port| *port > 0),
            _ => None,
        };
        let mode = tree.field("EgressSelectorMode").and_then(Node::text);
        let (api, own) = (port("HTTPSPort"), port("SupervisorPort"));
        let is_set = |field: &str| matches!(tree.field(field), Some(Node::Bool(true)));
        let is_given = |value: &Node| value.text().is_some_and(|text| !text.is_empty());
        Ok(Self {
            cluster_dns,
            cluster_domain: cluster_domain.into(),
            api_port: api.filter(|api| Some(*api) != own),
            reaches_pods: mode.is_some_and(|mode| ["pod", "cluster"].contains(&mode)),
            disable_service_lb: is_set("DisableServiceLB"),
            disable_cloud_controller: is_set("DisableCCM"),
            disable_kube_proxy: is_set("DisableKubeProxy"),
            network: NetConf::of(&tree),
            disable_network_policy: is_set("DisableNPC"),
            no_effect: [
                ("--system-default-registry", tree.field("SystemDefaultRegistry").is_some_and(is_given)),
                ("--embedded-registry", is_set("EmbeddedRegistry")),
            ]
            .into_iter()
            .filter_map(|(flag, is_given)| is_given.then_some(flag))
            .collect(),
        })
    }

    /// Pods have IPv6 addresses.
    pub(crate) fn has_ipv6(&self) -> bool {
        self.network.networks[1].is_some()
    }

    /// Switches of what `k3s agent` does in this cluster and this node does not; empty: none. PURE.
    pub(crate) fn left_out(&self, does: Does) -> String {
        let has_flannel = !matches!(self.network.backend(), Ok(None));
        let all = [
            ("--service-proxy", !does.services && !self.disable_kube_proxy),
            ("--flannel", !does.flannel && has_flannel),
            ("--network-policy", !does.policies && !self.disable_network_policy),
        ];
        let left_out = all.into_iter().filter(|(_, is_out)| *is_out).map(|(switch, _)| switch);
        left_out.collect::<Vec<_>>().join(" ")
    }

    /// Ranges of the cluster's pods.
    pub(crate) fn cluster_cidrs(&self) -> Vec<Network> {
        self.network.networks.iter().flatten().copied().collect()
    }

    /// Puts them in the place of what the configuration leaves open. True when that changes something.
    pub(crate) fn apply(&self, unset: Unset, node: &mut NodeSettings) -> bool {
        let mut changed = false;
        if unset.cluster_dns
            && (node.cluster_dns != self.cluster_dns || node.cluster_domain != self.cluster_domain)
        {
            node.cluster_dns.clone_from(&self.cluster_dns);
            node.cluster_domain.clone_from(&self.cluster_domain);
            changed = true;
        }
        let sysctls: Vec<Box<str>> =
            if self.disable_service_lb { Vec::new() } else { SERVICE_LB_SYSCTLS.map(Box::from).into() };
        if unset.unsafe_sysctls && node.allowed_unsafe_sysctls != sysctls {
            node.allowed_unsafe_sysctls = sysctls;
            changed = true;
        }
        changed
    }

    /// The settings as JSON for the disk: the server's own JSON has secrets that must not be on a node's disk.
    pub(crate) fn to_json(&self) -> Vec<u8> {
        let Self {
            cluster_dns,
            cluster_domain,
            api_port,
            reaches_pods,
            disable_service_lb,
            disable_cloud_controller,
            disable_kube_proxy,
            disable_network_policy,
            network,
            no_effect: _,
        } = self;
        let mode = if *reaches_pods { "pod" } else { "agent" };
        let mut settings = json!({"ClusterDNSs": cluster_dns, "ClusterDomain": cluster_domain, "HTTPSPort": api_port,
            "EgressSelectorMode": mode, "DisableServiceLB": disable_service_lb, "DisableCCM": disable_cloud_controller,
            "DisableKubeProxy": disable_kube_proxy, "DisableNPC": disable_network_policy});
        if let Some(settings) = settings.as_object_mut() {
            network.write(settings);
        }
        settings.to_string().into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_k3s_agent_does_and_this_node_does_not_is_named() {
        let of = |json: &[u8]| Settings::parse(json).unwrap();
        let usual =
            of(br#"{"FlannelBackend":"vxlan","ClusterIPRange":{"IP":"10.42.0.0","Mask":"//8AAA=="}}"#);
        let all = Does { services: true, flannel: true, policies: true };
        for (does, left_out) in [
            (Does::default(), "--service-proxy --flannel --network-policy"),
            (Does { flannel: false, ..all }, "--flannel"),
            (Does { flannel: true, ..Does::default() }, "--service-proxy --network-policy"),
            (all, ""),
        ] {
            assert_eq!(usual.left_out(does), left_out, "{does:?}");
        }
        let none = of(br#"{"FlannelBackend":"none","DisableKubeProxy":true,"DisableNPC":true}"#);
        assert_eq!(none.left_out(Does::default()), "");
    }

    #[test]
    fn settings_count_where_the_configuration_has_none() {
        let dns = |text: &str| vec![Box::from(text)];
        for (disabled, unset, servers, sysctls) in [
            (false, Unset { cluster_dns: true, unsafe_sysctls: true }, "10.43.0.10", &SERVICE_LB_SYSCTLS[..]),
            (true, Unset { cluster_dns: true, unsafe_sysctls: true }, "10.43.0.10", &[]),
            (false, Unset { cluster_dns: false, unsafe_sysctls: true }, "10.0.0.1", &SERVICE_LB_SYSCTLS),
            (
                false,
                Unset { cluster_dns: true, unsafe_sysctls: false },
                "10.43.0.10",
                &["net.core.somaxconn"],
            ),
            (true, Unset::default(), "10.0.0.1", &["net.core.somaxconn"]),
        ] {
            let settings = Settings {
                cluster_dns: dns("10.43.0.10"),
                cluster_domain: "k3s.test".into(),
                disable_service_lb: disabled,
                ..Settings::default()
            };
            let mut node = NodeSettings::new("gw", "/");
            node.cluster_dns = dns("10.0.0.1");
            // What a server allowed before it was restarted is no configuration.
            node.allowed_unsafe_sysctls = vec!["net.core.somaxconn".into()];
            assert_eq!(settings.apply(unset, &mut node), unset != Unset::default());
            let found: Vec<&str> = node.allowed_unsafe_sysctls.iter().map(|name| &**name).collect();
            assert_eq!((node.cluster_dns.clone(), found.as_slice()), (dns(servers), sysctls), "{unset:?}");
            assert!(!settings.apply(unset, &mut node), "nothing is new");
        }
    }

    #[test]
    fn what_a_node_needs_is_read() {
        let whole = br#"{"ClusterDNSs":["10.43.0.10","fd00::a"],"ClusterDNS":"10.43.0.10","ClusterDomain":"cluster.local",
            "HTTPSPort":6443,"SupervisorPort":9345,"EgressSelectorMode":"pod","DisableCCM":true,"DisableKubeProxy":true,"DisableNPC":true,"DisableServiceLB":true,"FlannelBackend":"vxlan","ClusterIPRange":{"IP":"10.42.0.0","Mask":"//8AAA=="}}"#;
        let read = Settings::parse(whole).unwrap();
        assert_eq!(read.cluster_dns, ["10.43.0.10".into(), "fd00::a".into()]);
        assert_eq!((&*read.cluster_domain, read.api_port), ("cluster.local", Some(6443)));
        assert!(read.reaches_pods && read.disable_service_lb && read.disable_cloud_controller);
        assert!(read.disable_kube_proxy);
        assert_eq!(read.cluster_cidrs(), [Network::parse("10.42.0.0/16").unwrap()]);
        assert!(read.disable_network_policy);
        assert_eq!(Settings::parse(&read.to_json()).as_ref(), Ok(&read));
        for (ranges, wanted) in [
            (
                r#"{"ClusterIPRanges":[{"IP":"10.42.0.0","Mask":"//8AAA=="},{"IP":"fd42::","Mask":"/////////wAAAAAAAAAAAA=="}],
                "ClusterIPRange":{"IP":"10.42.0.0","Mask":"//8AAA=="}}"#,
                "10.42.0.0/16 fd42::/56",
            ),
            (
                r#"{"ClusterIPRanges":null,"ClusterIPRange":{"IP":"fd42::","Mask":"/////////wAAAAAAAAAAAA=="}}"#,
                "fd42::/56",
            ),
            (
                r#"{"ClusterIPRanges":[{"IP":"10.42.0.0"},{"IP":"10.42.0.0","Mask":"x"},"10.42.0.0/16"]}"#,
                "10.42.0.0/16",
            ),
        ] {
            let read = Settings::parse(ranges.as_bytes()).unwrap();
            let shown: Vec<String> = read.cluster_cidrs().iter().map(Network::to_string).collect();
            assert_eq!(shown.join(" "), wanted);
            assert_eq!(read.has_ipv6(), wanted.contains(':'));
            assert_eq!(Settings::parse(&read.to_json()).unwrap().cluster_cidrs(), read.cluster_cidrs());
        }
        let older = br#"{"ClusterDNSs":null,"ClusterDNS":"10.43.0.10","ClusterDomain":"cluster.local","HTTPSPort":6443,
            "SupervisorPort":6443}"#;
        let read = Settings::parse(older).unwrap();
        assert_eq!((read.cluster_dns.len(), read.api_port, read.reaches_pods), (1, None, false));
        assert_eq!(Settings::parse(b"{}"), Ok(Settings::default()));
        for (given, no_effect) in [
            (r#"{"SystemDefaultRegistry":"registry.example.com","EmbeddedRegistry":true}"#, 2),
            (r#"{"SystemDefaultRegistry":"","EmbeddedRegistry":false}"#, 0),
        ] {
            assert_eq!(Settings::parse(given.as_bytes()).unwrap().no_effect.len(), no_effect, "{given}");
        }
        for (wrong, named) in [
            ("404 page not found", "the server is not k3s"),
            (r#"{"ClusterDNS":"x"}"#, "ClusterDNS is no address"),
            (r#"{"ClusterDomain":"-"}"#, "ClusterDomain"),
        ] {
            assert!(Settings::parse(wrong.as_bytes()).unwrap_err().contains(named), "{wrong}");
        }
    }
}
