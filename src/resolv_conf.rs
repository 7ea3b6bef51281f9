//! The node's resolver configuration for its pods. I/O, except for `reachable` and `for_pods`.
//!
//! A resolver on a loopback address (systemd-resolved, dnsmasq) is unreachable from a pod with its own network, and so is the one
//! that a file without any means, which is that of the machine itself. Unless a file is configured, pods get the upstream servers
//! of systemd-resolved, else a public one, as with k3s (`locateOrGenerateResolvConf`); the kubelet passes the loopback address on.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use crate::filesystem::read_start;
use crate::limits::RESOLV_CONF_BYTES_MAX;
use crate::render::ResolvConf;

/// DNS server for pods when the node has none that they can reach.
const PUBLIC: &str = "8.8.8.8";

/// The files of the node's resolver configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolver {
    /// The node's file; empty: the configuration disables it.
    pub path: PathBuf,
    /// systemd-resolved's file with its upstream servers, for pods that cannot reach those of the node's. `None`: a file is
    /// configured, and is passed on as it is.
    pub upstream: Option<PathBuf>,
}

/// What pods with a network of their own get, and where from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodServers {
    /// The node's file.
    pub path: String,
    /// The servers in it.
    pub own: Vec<Box<str>>,
    /// The servers of such pods.
    pub given: Vec<Box<str>>,
    /// Pods can reach those of the node's file.
    pub are_reachable: bool,
    /// A file is configured.
    pub is_configured: bool,
}

impl Resolver {
    /// The node's current resolver configuration, for a pod in the node's network or in its own. `None` when the configuration
    /// disables the node's resolver with an empty path.
    pub fn read(&self, host_network: bool) -> Option<ResolvConf> {
        if self.path.as_os_str().is_empty() {
            return None;
        }
        let own = match read(&self.path) {
            Ok(own) => own,
            Err(error) => {
                let path = self.path.display();
                match &self.upstream {
                    Some(_) => log::warn!("{path}: {error}; pods get other name servers than the node's"),
                    None => log::warn!("{path}: {error}; pods get no name servers from the node"),
                }
                ResolvConf::default()
            }
        };
        match &self.upstream {
            Some(upstream) if !host_network => Some(for_pods(own, || read(upstream).unwrap_or_default())),
            Some(_) | None => Some(own),
        }
    }

    /// What pods with a network of their own get; `None` when the configuration disables the node's resolver.
    pub fn pod_servers(&self) -> Option<PodServers> {
        if self.path.as_os_str().is_empty() {
            return None;
        }
        let own = read(&self.path).unwrap_or_default();
        let are_reachable = all_reachable(&own);
        let own_servers = own.nameservers.clone();
        let given = match &self.upstream {
            Some(upstream) => for_pods(own, || read(upstream).unwrap_or_default()).nameservers,
            None => own.nameservers,
        };
        Some(PodServers {
            path: self.path.display().to_string(),
            own: own_servers,
            given,
            are_reachable,
            is_configured: self.upstream.is_none(),
        })
    }
}

impl PodServers {
    /// What is wrong with the node's servers, and what pods get; `None`: nothing is.
    pub fn problem(&self) -> Option<String> {
        if self.are_reachable {
            return None;
        }
        let named = match self.own.as_slice() {
            [] => "no name server".to_owned(),
            servers => format!("{}, which pods cannot reach", servers.join(", ")),
        };
        let path = &self.path;
        Some(if self.is_configured {
            format!("{path} (resolvConf) names {named}")
        } else {
            let given = self.given.join(", ");
            format!("{path} names {named}; pods with a network of their own get {given} instead")
        })
    }
}

/// Logs at the start what pods get instead of an unreachable resolver, or that the configured one is unreachable.
pub(super) fn warn(resolver: &Resolver) {
    if let Some(problem) = resolver.pod_servers().and_then(|servers| servers.problem()) {
        log::warn!("{problem}; set resolvConf (--resolv-conf) to a file for them");
    }
}

fn read(path: &Path) -> std::io::Result<ResolvConf> {
    let text = read_start(path, RESOLV_CONF_BYTES_MAX)?;
    Ok(ResolvConf::parse(&String::from_utf8_lossy(&text)))
}

/// Whether pods can reach the server, judged by its address (`isValidNameserver`). Invalid names are left to the runtime.
fn reachable(server: &str) -> bool {
    // `fe80::1%eth0`.
    let address = server.split('%').next().unwrap_or_default();
    match address.parse::<IpAddr>() {
        Ok(IpAddr::V4(of)) => {
            !of.is_loopback() && !of.is_unspecified() && !of.is_link_local() && !of.is_multicast()
        }
        Ok(IpAddr::V6(of)) => {
            !of.is_loopback() && !of.is_unspecified() && !of.is_unicast_link_local() && !of.is_multicast()
        }
        Err(_) => true,
    }
}

/// There are servers, and pods can reach all of them (`isValidResolvConf`).
fn all_reachable(of: &ResolvConf) -> bool {
    !of.nameservers.is_empty() && of.nameservers.iter().all(|server| reachable(server))
}

/// The configuration for pods of a node with this one; `resolved` is systemd-resolved's upstream one.
fn for_pods(own: ResolvConf, resolved: impl FnOnce() -> ResolvConf) -> ResolvConf {
    if all_reachable(&own) {
        return own;
    }
    let resolved = resolved();
    if all_reachable(&resolved) {
        return resolved;
    }
    let mut own = own;
    own.nameservers.retain(|server| reachable(server));
    if own.nameservers.is_empty() {
        own.nameservers.push(PUBLIC.into());
    }
    own
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_get_servers_that_they_reach() {
        for (own, resolved, wanted) in [
            ("nameserver 10.0.0.1\nsearch a", "nameserver 9.9.9.9", "10.0.0.1 | a"),
            // Without a server resolvers ask the machine itself, which is the pod.
            ("search a", "nameserver 9.9.9.9", "9.9.9.9 | "),
            ("search a", "search b", "8.8.8.8 | a"),
            ("", "", "8.8.8.8 | "),
            ("nameserver 127.0.0.53\nsearch a", "nameserver 192.168.1.1\nsearch lan", "192.168.1.1 | lan"),
            ("nameserver ::1\nsearch a", "", "8.8.8.8 | a"),
            ("nameserver 127.0.0.1\nsearch a", "nameserver 127.0.0.1", "8.8.8.8 | a"),
            ("nameserver 127.0.0.1\nnameserver 10.0.0.1", "", "10.0.0.1 | "),
            ("nameserver fe80::1%eth0\nnameserver fd00::1", "nameserver 169.254.1.1", "fd00::1 | "),
            ("nameserver 0.0.0.0", "", "8.8.8.8 | "),
        ] {
            let given = for_pods(ResolvConf::parse(own), || ResolvConf::parse(resolved));
            let shown = format!("{} | {}", given.nameservers.join(" "), given.searches.join(" "));
            assert_eq!(shown, wanted, "{own:?} {resolved:?}");
        }
    }

    #[test]
    fn a_configured_file_is_used() {
        let path = std::env::temp_dir().join(format!("smolet-resolv-{}", std::process::id()));
        std::fs::write(&path, "nameserver 127.0.0.53\n").unwrap();
        let upstream = path.with_extension("upstream");
        let resolver =
            |upstream: Option<&Path>| Resolver { path: path.clone(), upstream: upstream.map(Path::to_owned) };
        let servers = |of: Option<ResolvConf>| of.unwrap().nameservers.join(" ");
        assert_eq!(servers(resolver(None).read(false)), "127.0.0.53");
        let why = resolver(None).pod_servers().unwrap().problem().unwrap();
        assert!(why.ends_with("(resolvConf) names 127.0.0.53, which pods cannot reach"), "{why}");
        // It is not: systemd's own file counts, once there is one.
        assert_eq!(servers(resolver(Some(&upstream)).read(false)), "8.8.8.8");
        std::fs::write(&upstream, "nameserver 192.168.1.1\n").unwrap();
        assert_eq!(servers(resolver(Some(&upstream)).read(false)), "192.168.1.1");
        assert_eq!(servers(resolver(Some(&upstream)).read(true)), "127.0.0.53", "on the node's network");
        let why = resolver(Some(&upstream)).pod_servers().unwrap().problem().unwrap();
        let wanted = "names 127.0.0.53, which pods cannot reach; pods with a network of their own get 192.168.1.1 instead";
        assert!(why.ends_with(wanted), "{why}");
        std::fs::write(&path, "nameserver 10.0.0.1\n").unwrap();
        assert_eq!(resolver(Some(&upstream)).pod_servers().unwrap().problem(), None);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(servers(resolver(Some(&upstream)).read(false)), "192.168.1.1", "there is none yet");
        assert_eq!(servers(resolver(None).read(false)), "");
        std::fs::remove_file(&upstream).unwrap();
        let disabled = Resolver { path: PathBuf::new(), upstream: Some(upstream) };
        assert_eq!((disabled.read(false), disabled.pod_servers()), (None, None));
    }
}
