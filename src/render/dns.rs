//! A pod's resolver settings (`network/dns/dns.go`) and the parsing of the node's `resolv.conf`. PURE.

use super::NodeSettings;
use super::node::ResolvConf;
use crate::model::DesiredPod;
use crate::proto::runtime::v1::DnsConfig;

/// The resolver's limit on name servers; further ones are dropped.
const SERVERS_MAX: usize = 3;
const SEARCHES_MAX: usize = 32;
const SEARCH_LINE_BYTES_MAX: usize = 2048;
/// A longer search domain aborts glibc's resolver.
const SEARCH_BYTES_MAX: usize = 253;

impl ResolvConf {
    /// Parses a `resolv.conf` (`parseResolvConf`): `nameserver` lines accumulate, the last `search` line wins, options of
    /// one name override each other.
    ///
    /// Differs from the kubelet: a `nameserver` line without an address is ignored, as resolvers do; the kubelet starts no
    /// pod then.
    pub fn parse(text: &str) -> Self {
        let mut conf = Self::default();
        for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
            let mut fields = line.split_whitespace();
            match fields.next() {
                Some("nameserver") => conf.nameservers.extend(fields.next().map(Box::from)),
                Some("search") => {
                    // A final dot does not change the domain.
                    let domain = |field: &str| field.strip_suffix('.').unwrap_or(field).into();
                    conf.searches = fields.filter(|field| *field != ".").map(domain).collect();
                }
                Some("options") => fields.for_each(|field| put_option(&mut conf.options, field)),
                Some(_) | None => {}
            }
        }
        conf
    }
}

fn option_name(option: &str) -> &str {
    option.split(':').next().unwrap_or(option)
}

fn put_option(options: &mut Vec<Box<str>>, option: &str) {
    match options.iter_mut().find(|known| option_name(known) == option_name(option)) {
        Some(known) => *known = option.into(),
        None => options.push(option.into()),
    }
}

/// The sandbox's resolver settings (`GetPodDNS`). Options are sorted: the kubelet's order is random.
pub fn pod_dns(node: &NodeSettings, pod: &DesiredPod) -> DnsConfig {
    formed(node, pod).0
}

/// Entries that exceed the resolver's limits and were dropped from [`pod_dns`], one sentence each (the `DNSConfigForming`
/// events).
pub fn dns_warnings(node: &NodeSettings, pod: &DesiredPod) -> Vec<String> {
    formed(node, pod).1
}

fn formed(node: &NodeSettings, pod: &DesiredPod) -> (DnsConfig, Vec<String>) {
    let spec = pod.spec();
    let host_network = spec.host_network.unwrap_or(false);
    let mut dns = match spec.dns_policy.as_deref() {
        Some("None") => DnsConfig::default(),
        Some("Default") => host_dns(node),
        Some("ClusterFirst") if host_network => host_dns(node),
        // ClusterFirst, ClusterFirstWithHostNet, and values that the API rejects. Without a cluster DNS the node's is used.
        _ if node.cluster_dns.is_empty() => host_dns(node),
        _ => cluster_dns(node, &pod.key.namespace),
    };
    if let Some(own) = &spec.dns_config {
        dns.servers.extend(own.nameservers.iter().flatten().cloned());
        omit_duplicates(&mut dns.servers);
        dns.searches.extend(own.searches.iter().flatten().cloned());
        omit_duplicates(&mut dns.searches);
        for option in own.options.iter().flatten() {
            let name = option.name.as_deref().unwrap_or_default();
            let text = match option.value.as_deref() {
                Some(value) if !value.is_empty() => format!("{name}:{value}"),
                _ => name.to_owned(),
            };
            dns.options.retain(|known| option_name(known) != name);
            dns.options.push(text);
        }
    }
    dns.options.sort_unstable();
    let mut warnings = Vec::new();
    if dns.servers.len() > SERVERS_MAX {
        dns.servers.truncate(SERVERS_MAX);
        warnings.push(format!(
            "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: {}",
            dns.servers.join(" ")
        ));
    }
    let searches = dns.searches.len();
    fit_searches(&mut dns.searches);
    if dns.searches.len() < searches {
        warnings.push(format!(
            "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: {}",
            dns.searches.join(" ")
        ));
    }
    (dns, warnings)
}

fn owned(texts: &[Box<str>]) -> Vec<String> {
    texts.iter().map(ToString::to_string).collect()
}

fn host_dns(node: &NodeSettings) -> DnsConfig {
    if let Some(conf) = &node.resolv_conf {
        return DnsConfig {
            servers: owned(&conf.nameservers),
            searches: owned(&conf.searches),
            options: owned(&conf.options),
        };
    }
    // `resolvConf: ""` disables name resolution: a local server that nothing runs, and no search domains.
    let local = |ip: &str| if ip.contains(':') { "::1" } else { "127.0.0.1" };
    let mut servers: Vec<String> = node.node_ips.iter().map(|ip| local(ip).to_owned()).collect();
    if servers.is_empty() {
        servers.push("127.0.0.1".into());
    }
    DnsConfig { servers, searches: vec![".".into()], options: Vec::new() }
}

fn cluster_dns(node: &NodeSettings, namespace: &str) -> DnsConfig {
    let of_host = node.resolv_conf.as_ref().map(|conf| owned(&conf.searches)).unwrap_or_default();
    let domain = &node.cluster_domain;
    let searches = if domain.is_empty() {
        of_host
    } else {
        let mut searches =
            vec![format!("{namespace}.svc.{domain}"), format!("svc.{domain}"), domain.to_string()];
        searches.extend(of_host);
        omit_duplicates(&mut searches);
        searches
    };
    DnsConfig { servers: owned(&node.cluster_dns), searches, options: vec!["ndots:5".into()] }
}

fn omit_duplicates(texts: &mut Vec<String>) {
    let mut seen = crate::model::SortedSet::new();
    texts.retain(|text| seen.insert(text.clone()));
}

/// `formDNSSearchFitsLimits`: too many domains, too long a domain, too long a line.
fn fit_searches(searches: &mut Vec<String>) {
    searches.truncate(SEARCHES_MAX);
    searches.retain(|search| search.len() <= SEARCH_BYTES_MAX);
    while searches.iter().map(|search| search.len() + 1).sum::<usize>() > SEARCH_LINE_BYTES_MAX + 1 {
        searches.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolv_conf_lines_add_up_or_override() {
        let conf = ResolvConf::parse(
            "# comment\nnameserver 1.1.1.1 ignored\n nameserver fe80::1%eth0\nsearch a.example\nsearch b.example. . c\n\
             options ndots:3 edns0\noptions ndots:5\ndomain x\nnameserver\n",
        );
        let texts = |all: &[Box<str>]| all.join(" ");
        assert_eq!(texts(&conf.nameservers), "1.1.1.1 fe80::1%eth0");
        assert_eq!(texts(&conf.searches), "b.example c");
        assert_eq!(texts(&conf.options), "ndots:5 edns0");
        assert_eq!(ResolvConf::parse(""), ResolvConf::default());
    }

    fn pod(spec: &serde_json::Value) -> DesiredPod {
        let pod = serde_json::json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": spec});
        DesiredPod::new(serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn limits_are_kept() {
        let mut node = NodeSettings::new("n", "/r");
        let long = std::iter::once("y".repeat(254));
        let searches: Vec<String> =
            long.chain((0..40).map(|n| format!("{}{n:02}", "x".repeat(200)))).collect();
        let spec = serde_json::json!({"containers": [], "dnsPolicy": "None", "dnsConfig": {
            "nameservers": ["1.1.1.1", "1.1.1.1", "2.2.2.2", "3.3.3.3", "4.4.4.4"],
            "searches": searches,
        }});
        let dns = pod_dns(&node, &pod(&spec));
        assert_eq!(dns.servers, ["1.1.1.1", "2.2.2.2", "3.3.3.3"]);
        let warnings = dns_warnings(&node, &pod(&spec));
        assert_eq!(warnings.len(), 2);
        assert!(
            warnings[0].ends_with("the applied nameserver line is: 1.1.1.1 2.2.2.2 3.3.3.3"),
            "{warnings:?}"
        );
        assert!(warnings[1].starts_with("Search Line limits were exceeded"), "{warnings:?}");
        assert_eq!(dns.searches.len(), 10, "ten of 202 bytes and nine blanks are 2029 bytes");
        node.resolv_conf = None;
        let spec = serde_json::json!({"containers": [], "dnsPolicy": "Default"});
        assert_eq!(dns_warnings(&node, &pod(&spec)), [""; 0]);
        let dns = pod_dns(&node, &pod(&spec));
        assert_eq!((dns.servers, dns.searches), (vec!["127.0.0.1".to_owned()], vec![".".to_owned()]));
    }
}
