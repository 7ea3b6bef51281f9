//! A pod's host name and hosts file (`kubelet_pods.go`). PURE.

use std::fmt::Write as _;

use super::NodeSettings;
use crate::model::DesiredPod;
use crate::text::{dns_label_error, dns_subdomain_error, quoted};

/// The kernel's limit for a host name: 64 bytes, less the final zero.
const HOSTNAME_BYTES_MAX: usize = 63;
const FQDN_BYTES_MAX: usize = 64;

/// The pod's short host name, and its domain, which may be empty (`GeneratePodHostNameAndDomain`).
pub(super) fn hostname_and_domain(node: &NodeSettings, pod: &DesiredPod) -> Result<(String, String), String> {
    let spec = pod.spec();
    if let Some(hostname) = &spec.hostname_override {
        if let Some(error) = dns_subdomain_error(hostname) {
            return Err(format!(
                "pod HostnameOverride {} is not a valid DNS subdomain: {error}",
                quoted(hostname)
            ));
        }
        return Ok((truncated(pod, hostname)?, String::new()));
    }
    let hostname = match spec.hostname.as_deref().filter(|hostname| !hostname.is_empty()) {
        Some(hostname) => match dns_label_error(hostname) {
            Some(error) => {
                return Err(format!("pod Hostname {} is not a valid DNS label: {error}", quoted(hostname)));
            }
            None => hostname,
        },
        None => &*pod.key.name,
    };
    let hostname = truncated(pod, hostname)?;
    let domain = match spec.subdomain.as_deref().filter(|subdomain| !subdomain.is_empty()) {
        Some(subdomain) => match dns_label_error(subdomain) {
            Some(error) => {
                return Err(format!("pod Subdomain {} is not a valid DNS label: {error}", quoted(subdomain)));
            }
            None => format!("{subdomain}.{}.svc.{}", pod.key.namespace, node.cluster_domain),
        },
        None => String::new(),
    };
    Ok((hostname, domain))
}

/// `truncatePodHostnameIfNeeded`: truncated to the kernel's limit, without a dash or dot at the end.
fn truncated(pod: &DesiredPod, hostname: &str) -> Result<String, String> {
    if hostname.len() <= HOSTNAME_BYTES_MAX {
        return Ok(hostname.to_owned());
    }
    let cut = crate::text::start_of(hostname, HOSTNAME_BYTES_MAX).trim_end_matches(['-', '.']);
    if cut.is_empty() {
        return Err(format!("hostname for pod {} was invalid: {}", quoted(&pod.key.name), quoted(hostname)));
    }
    Ok(cut.to_owned())
}

/// The sandbox's host name (`GetNodenameForKernel`): the short name, or the fully qualified one when the pod asks for it.
pub(super) fn kernel_hostname(node: &NodeSettings, pod: &DesiredPod) -> Result<String, String> {
    let (hostname, domain) = hostname_and_domain(node, pod)?;
    if domain.is_empty() || !pod.spec().set_hostname_as_fqdn.unwrap_or(false) {
        return Ok(hostname);
    }
    let full = format!("{hostname}.{domain}");
    if full.len() > FQDN_BYTES_MAX {
        return Err(format!(
            "failed to construct FQDN from pod hostname and cluster domain, FQDN {full} is too long \
             ({FQDN_BYTES_MAX} characters is the max, {} characters requested)",
            full.len()
        ));
    }
    Ok(full)
}

/// The content of the pod's hosts file (`ensureHostsFile`), for the path `paths::hosts_file_path`, mode 0644.
///
/// `of_node` is the node's own `/etc/hosts`, used for pods on the host network only.
pub fn hosts_file(
    node: &NodeSettings,
    pod: &DesiredPod,
    pod_ips: &[Box<str>],
    of_node: &str,
) -> Result<String, super::RenderError> {
    let spec = pod.spec();
    let (hostname, domain) = hostname_and_domain(node, pod).map_err(super::RenderError::Container)?;
    let mut out = String::new();
    if spec.host_network.unwrap_or(false) {
        out.push_str("# Kubernetes-managed hosts file (host network).\n");
        out.push_str(of_node);
    } else {
        out.push_str(
            "# Kubernetes-managed hosts file.\n\
             127.0.0.1\tlocalhost\n\
             ::1\tlocalhost ip6-localhost ip6-loopback\n\
             fe00::0\tip6-localnet\n\
             fe00::0\tip6-mcastprefix\n\
             fe00::1\tip6-allnodes\n\
             fe00::2\tip6-allrouters\n",
        );
        for ip in pod_ips {
            // Writing to a String is infallible.
            let _ = if domain.is_empty() {
                writeln!(out, "{ip}\t{hostname}")
            } else {
                writeln!(out, "{ip}\t{hostname}.{domain}\t{hostname}")
            };
        }
    }
    let aliases = spec.host_aliases.as_deref().unwrap_or_default();
    if !aliases.is_empty() {
        out.push_str("\n# Entries added by HostAliases.\n");
    }
    for alias in aliases {
        let names = alias.hostnames.as_deref().unwrap_or_default().join("\t");
        let _ = writeln!(out, "{}\t{names}", alias.ip);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str, spec: &serde_json::Value) -> DesiredPod {
        let pod =
            serde_json::json!({"metadata": {"name": name, "namespace": "ns", "uid": "u"}, "spec": spec});
        DesiredPod::new(serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn the_host_name_comes_from_the_first_that_is_set() {
        let mut node = NodeSettings::new("n", "/r");
        node.cluster_domain = "cluster.local".into();
        let long = format!("{}-x", "a".repeat(62));
        for (name, spec, expected) in [
            ("web", serde_json::json!({"containers": []}), Ok(("web", ""))),
            ("web", serde_json::json!({"containers": [], "hostname": "h"}), Ok(("h", ""))),
            (
                "web",
                serde_json::json!({"containers": [], "subdomain": "s"}),
                Ok(("web", "s.ns.svc.cluster.local")),
            ),
            (
                "web",
                serde_json::json!({"containers": [], "hostnameOverride": "o.x", "subdomain": "s"}),
                Ok(("o.x", "")),
            ),
            (&*long, serde_json::json!({"containers": []}), Ok((&long[..62], ""))),
            ("web", serde_json::json!({"containers": [], "hostname": "H"}), Err("pod Hostname \"H\" is not")),
            (
                "web",
                serde_json::json!({"containers": [], "subdomain": "s.t"}),
                Err("pod Subdomain \"s.t\" is not"),
            ),
            (
                "web",
                serde_json::json!({"containers": [], "hostnameOverride": ""}),
                Err("pod HostnameOverride \"\" is"),
            ),
        ] {
            let ours = hostname_and_domain(&node, &pod(name, &spec));
            match (ours, expected) {
                (Ok((hostname, domain)), Ok(expected)) => assert_eq!((&*hostname, &*domain), expected),
                (Err(error), Err(expected)) => assert!(error.starts_with(expected), "{error}"),
                (ours, expected) => panic!("{ours:?}, expected {expected:?}"),
            }
        }
    }

    #[test]
    fn the_hosts_file_on_the_hosts_network_is_the_nodes() {
        let node = NodeSettings::new("n", "/r");
        let pod = pod(
            "web",
            &serde_json::json!({"containers": [], "hostNetwork": true,
                "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a", "b"]}]}),
        );
        assert_eq!(
            hosts_file(&node, &pod, &["10.1.1.1".into()], "127.0.0.1 here\n").unwrap(),
            "# Kubernetes-managed hosts file (host network).\n127.0.0.1 here\n\n# Entries added by HostAliases.\n\
             10.0.0.1\ta\tb\n"
        );
    }
}
