//! What a sandbox needs, from its `PodSandboxConfig`: namespaces, host name, sysctls, resolv.conf. PURE.

use std::fmt::Write as _;

use super::namespaces::Wanted;
use super::users::Users;
use crate::proto::runtime::v1 as cri;

/// Set in each network namespace of a pod by default; a kernel without one of them goes without it.
pub(super) const DEFAULT_SYSCTLS: [&str; 2] =
    ["net/ipv4/ip_unprivileged_port_start", "net/ipv4/ping_group_range"];

/// The modes of a sandbox's namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Namespaces {
    /// The node's network.
    pub(super) host_network: bool,
    /// The node's IPC.
    pub(super) host_ipc: bool,
    /// One PID namespace for all containers.
    pub(super) shares_pids: bool,
}

/// The namespaces that a configuration asks for.
pub(super) fn namespaces(config: &cri::PodSandboxConfig) -> Namespaces {
    let context = config.linux.as_ref().and_then(|linux| linux.security_context.as_ref());
    let options = context.and_then(|context| context.namespace_options.as_ref());
    let is_node = |mode: i32| mode == i32::from(cri::NamespaceMode::Node);
    Namespaces {
        host_network: options.is_some_and(|options| is_node(options.network)),
        host_ipc: options.is_some_and(|options| is_node(options.ipc)),
        shares_pids: options.is_none_or(|options| options.pid == i32::from(cri::NamespaceMode::Pod)),
    }
}

/// What has to be made for a sandbox.
///
/// # Errors
/// A field is not valid, or asks for what is not served.
pub(super) fn wanted(config: &cri::PodSandboxConfig) -> Result<Wanted, String> {
    let of = namespaces(config);
    let users = Users::of(config)?;
    let hostname = (!of.host_network).then(|| config.hostname.clone());
    if hostname.as_ref().is_some_and(|name| name.len() > 64 || name.contains(['\0', '/'])) {
        return Err(format!("hostname {:?} has more than 64 characters, or is not valid", config.hostname));
    }
    let sysctls = crate::oci::sysctls(config).map_err(|error| error.to_string())?.into_iter().collect();
    Ok(Wanted { net: !of.host_network, ipc: !of.host_ipc, hostname, sysctls, users })
}

/// The text of a pod's resolv.conf, its lines in containerd's order. `None`: it gets the node's.
pub(super) fn resolv_conf(config: &cri::PodSandboxConfig) -> Option<String> {
    let dns = config.dns_config.as_ref()?;
    if dns.servers.is_empty() && dns.searches.is_empty() && dns.options.is_empty() {
        return None;
    }
    let mut text = String::new();
    // A line break in a value would forge another line.
    let clean = |value: &String| value.replace(['\n', '\r'], " ");
    let mut line = |keyword: &str, values: &[String]| {
        if !values.is_empty() {
            let values: Vec<String> = values.iter().map(clean).collect();
            let _ = writeln!(text, "{keyword} {}", values.join(" "));
        }
    };
    line("search", &dns.searches);
    dns.servers.iter().for_each(|server| line("nameserver", std::slice::from_ref(server)));
    line("options", &dns.options);
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(network: cri::NamespaceMode, sysctls: &[(&str, &str)]) -> cri::PodSandboxConfig {
        let options = cri::NamespaceOption {
            network: network.into(),
            pid: cri::NamespaceMode::Container.into(),
            ..Default::default()
        };
        let context =
            cri::LinuxSandboxSecurityContext { namespace_options: Some(options), ..Default::default() };
        let sysctls = sysctls.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let linux = cri::LinuxPodSandboxConfig {
            security_context: Some(context),
            sysctls: sysctls.collect(),
            ..Default::default()
        };
        cri::PodSandboxConfig { hostname: "web".into(), linux: Some(linux), ..Default::default() }
    }

    #[test]
    fn a_sandbox_gets_the_namespaces_that_it_asks_for() {
        use cri::NamespaceMode::{Node, Pod};
        let pod = wanted(&with(Pod, &[("net.core.somaxconn", "9"), ("kernel.sem", "1 2 3 4")])).unwrap();
        assert_eq!((pod.net, pod.ipc, pod.hostname.as_deref()), (true, true, Some("web")));
        for (path, value) in
            [("net/core/somaxconn", "9"), ("kernel/sem", "1 2 3 4"), (DEFAULT_SYSCTLS[0], "0")]
        {
            assert!(pod.sysctls.contains(&(path.to_owned(), value.to_owned())), "{:?}", pod.sysctls);
        }
        let node = wanted(&with(Node, &[])).unwrap();
        assert_eq!((node.net, node.ipc, node.hostname, node.sysctls.len()), (false, true, None, 0));
        let error = wanted(&with(Node, &[("net.core.somaxconn", "1")])).unwrap_err();
        assert!(error.starts_with("linux.sysctls: net.core.somaxconn is not of a namespace"), "{error}");
        assert!(namespaces(&cri::PodSandboxConfig::default()).shares_pids, "the CRI's zero value");
    }

    #[test]
    fn resolv_conf_has_what_the_pod_is_given() {
        let mut config = cri::PodSandboxConfig::default();
        assert_eq!(resolv_conf(&config), None);
        config.dns_config = Some(cri::DnsConfig {
            servers: vec!["10.0.0.10".into(), "fd00::a\nnameserver 6.6.6.6".into()],
            searches: vec!["a.local".into(), "b".into()],
            options: vec!["ndots:5".into()],
        });
        let text = resolv_conf(&config).unwrap();
        let wanted = "search a.local b\nnameserver 10.0.0.10\nnameserver fd00::a nameserver 6.6.6.6\noptions ndots:5\n";
        assert_eq!(text, wanted);
    }
}
