//! The kernel modules of the node's network: what its services, policies and links to other nodes are made of. I/O, blocking.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;

use crate::config::Config;
use crate::limits::DOCTOR_MODULES_BYTES_MAX;

/// depmod's lists of what is built in, and of what can be loaded.
const LISTS: [&str; 2] = ["modules.builtin", "modules.dep"];
/// Of all tables of nftables, of flannel's, and of Services.
const NFTABLES: &str = "nf_tables";
const MASQUERADE: &str = "nft_masq";
const SERVICES: [&str; 6] = ["nf_conntrack", "nft_numgen", "nft_nat", MASQUERADE, "nft_fib", "nft_reject"];

/// Those that the settings need and the kernel neither has built in nor can load; `None`: they need none, or there is no list of them.
pub(super) fn missing(config: &Config) -> Option<Vec<&'static str>> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    missing_of(&needed(config), &Path::new("/lib/modules").join(release))
}

fn needed(config: &Config) -> Vec<&'static str> {
    let mut names = flannel(config);
    if config.service_proxy.is_some() {
        names.extend([NFTABLES].into_iter().chain(SERVICES));
    }
    if config.network_policy.is_some() {
        names.push(NFTABLES);
    }
    names.sort_unstable();
    names.dedup();
    names
}

/// Those of flannel's links and rules; none where the servers have no flannel, or have said nothing yet.
#[cfg(feature = "tls")]
fn flannel(config: &Config) -> Vec<&'static str> {
    let network = || crate::k3s::Files::new(&config.root_dir).kept_settings().map(|kept| kept.network);
    let network = config.flannel.as_ref().and_then(|_| network());
    match network.map(|network| network.backend()) {
        Some(Ok(Some(backend))) => [NFTABLES, MASQUERADE].into_iter().chain(backend.module()).collect(),
        _ => Vec::new(),
    }
}

#[cfg(not(feature = "tls"))]
fn flannel(_config: &Config) -> Vec<&'static str> {
    Vec::new()
}

fn missing_of(needed: &[&'static str], modules: &Path) -> Option<Vec<&'static str>> {
    let mut missing = needed.to_vec();
    for list in LISTS {
        let list = File::open(modules.join(list)).ok()?;
        for line in BufReader::new(list.take(DOCTOR_MODULES_BYTES_MAX)).split(b'\n').map_while(Result::ok) {
            let file = line.split(|byte| *byte == b':').next().unwrap_or_default();
            let name = file.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
            let name = name.split(|byte| *byte == b'.').next().unwrap_or_default();
            // A file's name may have the one where the module's has the other.
            let is_same = |(a, b): (&u8, &u8)| a == b || (*a == b'_' && *b == b'-');
            missing.retain(|module| {
                module.len() != name.len() || !module.as_bytes().iter().zip(name).all(is_same)
            });
        }
    }
    (!needed.is_empty()).then_some(missing)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_module_is_there_when_it_is_built_in_or_can_be_loaded() {
        let dir = std::env::temp_dir().join(format!("smolet-modules-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let needed = ["nf_tables", "nft_masq", "vxlan", "wireguard"];
        assert_eq!(missing_of(&needed, &dir), None, "there are no lists");
        fs::write(dir.join("modules.builtin"), "kernel/net/netfilter/nf-tables.ko\nkernel/a/xvxlan.ko\n")
            .unwrap();
        let loadable = "kernel/net/netfilter/nft_masq.ko.xz: kernel/net/netfilter/vxlan.ko kernel/b/wireguard.ko\n\
                        kernel/drivers/net/wireguard/wireguard2.ko:\n";
        fs::write(dir.join("modules.dep"), loadable).unwrap();
        assert_eq!(
            missing_of(&needed, &dir),
            Some(vec!["vxlan", "wireguard"]),
            "what others need is named by its own line"
        );
        fs::write(
            dir.join("modules.dep"),
            format!("{loadable}kernel/drivers/net/wireguard/wireguard.ko:\nvxlan.ko:"),
        )
        .unwrap();
        assert_eq!(missing_of(&needed, &dir), Some(Vec::new()));
        assert_eq!(missing_of(&[], &dir), None, "none is needed");
        fs::remove_dir_all(&dir).unwrap();
    }
}
