//! The node's resolver configuration for its pods. I/O, except for `reachable` and `for_pods`.
//!
//! A resolver on a loopback address (systemd-resolved, dnsmasq) is unreachable from a pod with its own network. Unless a file is
//! configured, pods get the upstream servers of that resolver, as with k3s (`locateOrGenerateResolvConf`); the kubelet passes the
//! loopback address on.

use std::net::IpAddr;
use std::path::Path;

use crate::filesystem::read_start;
use crate::limits::RESOLV_CONF_BYTES_MAX;
use crate::paths;
use crate::render::ResolvConf;

/// systemd-resolved's file with its upstream servers.
const RESOLVED: &str = "/run/systemd/resolve/resolv.conf";
/// DNS server for pods when the node has none that they can reach.
const PUBLIC: &str = "8.8.8.8";

/// The node's current resolver configuration, for a pod in the node's network or in its own. `None` when the configuration
/// disables the node's resolver with an empty path.
pub fn resolv_conf(path: &Path, host_network: bool) -> Option<ResolvConf> {
    if path.as_os_str().is_empty() {
        return None;
    }
    let own = match read(path) {
        Ok(own) => own,
        Err(error) => {
            log::warn!("{}: {error}; pods get no name servers from the node", path.display());
            ResolvConf::default()
        }
    };
    if host_network || path != Path::new(paths::RESOLV_CONF) {
        return Some(own);
    }
    Some(for_pods(own, || read(Path::new(RESOLVED)).unwrap_or_default()))
}

/// Logs at the start what pods get instead of an unreachable resolver, or that the configured one is unreachable.
pub(super) fn warn(path: &Path, given: Option<&ResolvConf>) {
    let is_default = path == Path::new(paths::RESOLV_CONF);
    let own = if is_default { read(path).ok() } else { given.cloned() };
    let (Some(own), Some(given)) = (own, given) else { return };
    if own.nameservers.iter().all(|server| reachable(server)) {
        return;
    }
    let (path, servers) = (path.display(), given.nameservers.join(", "));
    if is_default {
        log::warn!(
            "{path} names a loopback or link-local name server, which pods cannot reach; pods with a network of their own \
             get {servers} instead; set resolvConf to a file for them"
        );
    } else {
        log::warn!(
            "{path} (resolvConf) names a loopback or link-local name server, which pods cannot reach: {servers}"
        );
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

/// The configuration for pods of a node with this one; `resolved` is systemd-resolved's upstream one.
fn for_pods(own: ResolvConf, resolved: impl FnOnce() -> ResolvConf) -> ResolvConf {
    let all_reachable = |of: &ResolvConf| of.nameservers.iter().all(|server| reachable(server));
    if all_reachable(&own) {
        return own;
    }
    let resolved = resolved();
    if !resolved.nameservers.is_empty() && all_reachable(&resolved) {
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
            ("search a", "nameserver 9.9.9.9", " | a"),
            ("", "", " | "),
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
        let given = resolv_conf(&path, false);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(given.unwrap().nameservers, [Box::from("127.0.0.53")]);
        assert!(resolv_conf(Path::new(""), false).is_none());
    }
}
