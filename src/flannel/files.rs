//! Files for the plugins of the pods' network: the CNI configuration, and what k3s' own reads. PURE.

use std::fmt::Write as _;
use std::net::IpAddr;

use serde_json::{Value, json};

use super::family;
use crate::cni::CNI_VERSION;
use crate::model::Network;

/// The configuration's name: k3s', whose effect it has, without the plugin `flannel`.
pub(crate) const CONFLIST: &str = "10-flannel.conflist";
/// A plugin that need not be installed.
pub(crate) const BANDWIDTH: &str = "bandwidth";

/// The CNI configuration: the bridge that the plugin `flannel` makes of k3s' one, host ports, and limits of bandwidth where that
/// plugin is there. `cbr0` is k3s' name, under which addresses in use are kept.
pub(crate) fn conflist(networks: &[Network], own: &[Network], mtu: u32, has_bandwidth: bool) -> String {
    let ranges: Vec<Value> = own.iter().map(|range| json!([{"subnet": range.to_string()}])).collect();
    let routes: Vec<Value> = networks.iter().map(|range| json!({"dst": range.to_string()})).collect();
    let mut plugins = vec![
        json!({
            "type": "bridge", "bridge": "cni0", "mtu": mtu, "isGateway": true, "isDefaultGateway": true, "ipMasq": false,
            "hairpinMode": true, "forceAddress": true,
            "ipam": {"type": "host-local", "ranges": ranges, "routes": routes},
        }),
        json!({"type": "portmap", "capabilities": {"portMappings": true}}),
    ];
    if has_bandwidth {
        plugins.push(json!({"type": BANDWIDTH, "capabilities": {"bandwidth": true}}));
    }
    let list = json!({"cniVersion": CNI_VERSION, "name": "cbr0", "plugins": plugins});
    format!("{list}\n")
}

/// `/run/flannel/subnet.env` (`WriteSubnetFile`), for a CNI configuration of k3s that a runtime has.
pub(crate) fn subnet_env(networks: &[Network], own: &[Network], mtu: u32) -> String {
    let mut text = String::new();
    for (network, own) in networks.iter().zip(own) {
        let prefix = if family(own.address) == 0 { "FLANNEL_" } else { "FLANNEL_IPV6_" };
        let (gateway, bits) = (second(own.address), own.prefix);
        let _ = write!(text, "{prefix}NETWORK={network}\n{prefix}SUBNET={gateway}/{bits}\n");
    }
    let _ = write!(text, "FLANNEL_MTU={mtu}\nFLANNEL_IPMASQ=true\n");
    text
}

/// The address behind the first one of a range.
fn second(first: IpAddr) -> IpAddr {
    match first {
        IpAddr::V4(ip) => IpAddr::V4((u32::from(ip) | 1).into()),
        IpAddr::V6(ip) => IpAddr::V6((u128::from(ip) | 1).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(texts: &[&str]) -> Vec<Network> {
        texts.iter().map(|text| Network::parse(text).unwrap()).collect()
    }

    #[test]
    fn the_configuration_is_what_the_plugin_flannel_makes() {
        let (networks, own) =
            (ranges(&["10.42.0.0/16", "fd00:42::/56"]), ranges(&["10.42.1.0/24", "fd00:42:0:1::/64"]));
        let text = conflist(&networks, &own, 1450, true);
        let list: Value = serde_json::from_str(&text).unwrap();
        let bridge = &list["plugins"][0];
        assert_eq!((&list["name"], &bridge["mtu"]), (&json!("cbr0"), &json!(1450)));
        assert_eq!(list["cniVersion"], "0.4.0");
        assert_eq!(
            bridge["ipam"]["ranges"],
            json!([[{"subnet": "10.42.1.0/24"}], [{"subnet": "fd00:42:0:1::/64"}]])
        );
        assert_eq!(bridge["ipam"]["routes"], json!([{"dst": "10.42.0.0/16"}, {"dst": "fd00:42::/56"}]));
        let plugins = |text: &str| crate::cni::plugins(text).unwrap();
        assert_eq!(plugins(&text), ["bandwidth", "bridge", "host-local", "portmap"]);
        assert_eq!(plugins(&conflist(&networks, &own, 1450, false)), ["bridge", "host-local", "portmap"]);
        assert!(crate::cni::is_configuration(CONFLIST));
    }

    #[test]
    fn the_file_of_the_subnet_is_flannels() {
        let text = subnet_env(
            &ranges(&["10.42.0.0/16", "fd00:42::/56"]),
            &ranges(&["10.42.1.0/24", "fd00:42:0:1::/64"]),
            1450,
        );
        assert_eq!(
            text,
            "FLANNEL_NETWORK=10.42.0.0/16\nFLANNEL_SUBNET=10.42.1.1/24\nFLANNEL_IPV6_NETWORK=fd00:42::/56\n\
             FLANNEL_IPV6_SUBNET=fd00:42:0:1::1/64\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
        );
    }
}
