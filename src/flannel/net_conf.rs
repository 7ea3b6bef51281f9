//! The pods' network, as a k3s server's settings describe it (`createFlannelConf`, `findNetMode`). PURE.

use std::net::IpAddr;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::{Map, Value};

use super::family;
use crate::decode::Node;
use crate::model::Network;

/// How packets reach pods of other nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Backend {
    /// In UDP packets, between the links `flannel.1`.
    Vxlan,
    /// By routes by way of the other nodes, which are on the same link.
    HostGw,
    /// Encrypted, between the links `flannel-wg` (`wireguard-native` of the servers).
    Wireguard,
}

impl Backend {
    const ALL: [Self; 3] = [Self::Vxlan, Self::HostGw, Self::Wireguard];

    /// Its name in annotations.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Vxlan => "vxlan",
            Self::HostGw => "host-gw",
            Self::Wireguard => "wireguard",
        }
    }

    /// The one with this name in annotations.
    pub(crate) fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|backend| backend.name() == name)
    }

    /// The kernel module of its links, if it has some.
    pub(crate) fn module(self) -> Option<&'static str> {
        match self {
            Self::Vxlan => Some("vxlan"),
            Self::Wireguard => Some("wireguard"),
            Self::HostGw => None,
        }
    }

    /// Its name in the servers' settings.
    fn setting(self) -> &'static str {
        match self {
            Self::Vxlan | Self::HostGw => self.name(),
            Self::Wireguard => "wireguard-native",
        }
    }
}

/// What the servers' settings say of the pods' network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NetConf {
    /// `FlannelBackend`.
    backend: Box<str>,
    /// `ClusterIPRanges`, of older servers `ClusterIPRange`: the first of each family.
    pub(crate) networks: [Option<Network>; 2],
    /// `ClusterIPRange`, the cluster's first range, is of IPv6; `None`: it is not known.
    pub(crate) is_v6_first: Option<bool>,
    /// Packets of IPv6 pods to addresses outside are masqueraded (`FlannelIPv6Masq`).
    pub(crate) masquerades_v6: bool,
    /// Nodes reach each other by their external addresses (`FlannelExternalIP`).
    pub(crate) by_external_address: bool,
}

impl NetConf {
    /// From the settings. A range that is none is left out.
    pub(crate) fn of(settings: &Node) -> Self {
        let is_set = |field: &str| matches!(settings.field(field), Some(Node::Bool(true)));
        let listed = settings.field("ClusterIPRanges").map(Node::items).unwrap_or_default();
        let mut networks = [None; 2];
        let first = settings.field("ClusterIPRange");
        for range in listed.iter().chain(first).filter_map(range) {
            networks[family(range.address)].get_or_insert(range);
        }
        let backend = settings.field("FlannelBackend").and_then(Node::text).unwrap_or_default();
        Self {
            backend: backend.into(),
            networks,
            is_v6_first: first.and_then(range).map(|range| range.address.is_ipv6()),
            masquerades_v6: is_set("FlannelIPv6Masq"),
            by_external_address: is_set("FlannelExternalIP"),
        }
    }

    /// The servers have said something of it: settings that were kept by a former smolet have nothing.
    pub(crate) fn is_known(&self) -> bool {
        !self.backend.is_empty()
    }

    /// Adds the settings that it was made of.
    pub(crate) fn write(&self, settings: &mut Map<String, Value>) {
        let ranges = self.networks.iter().flatten().map(|range| range.to_string().into());
        let first = self.is_v6_first.and_then(|is_v6| self.networks[usize::from(is_v6)]);
        for (field, value) in [
            ("ClusterIPRange", first.map(|range| range.to_string()).into()),
            ("FlannelBackend", (*self.backend).into()),
            ("ClusterIPRanges", Value::Array(ranges.collect())),
            ("FlannelIPv6Masq", self.masquerades_v6.into()),
            ("FlannelExternalIP", self.by_external_address.into()),
        ] {
            // Ranges may be there.
            settings.entry(field).or_insert(value);
        }
    }

    /// The backend; `None`: the servers have none (`--flannel-backend=none`), and another network is installed.
    ///
    /// # Errors
    /// A sentence that names the field: it is one that this node has not, or there are no ranges.
    pub(crate) fn backend(&self) -> Result<Option<Backend>, String> {
        if ["", "none"].contains(&&*self.backend) {
            return Ok(None);
        }
        let Some(backend) = Backend::ALL.into_iter().find(|backend| backend.setting() == &*self.backend)
        else {
            return Err(format!(
                "FlannelBackend of the k3s server is {}, and this node has vxlan, host-gw and wireguard-native alone: no network \
                 is set up, and pods do not start without one; start the servers with one of these, or with none and another \
                 network",
                self.backend
            ));
        };
        if self.networks == [None; 2] {
            return Err("ClusterIPRanges of the k3s server has no range of addresses; give the servers --cluster-cidr"
                .to_owned());
        }
        Ok(Some(backend))
    }
}

/// A range: Go's `net.IPNet`, whose mask is in base64, or a text.
fn range(value: &Node) -> Option<Network> {
    if let Some(text) = value.text() {
        return Network::parse(text);
    }
    let address: IpAddr = value.field("IP")?.text()?.parse().ok()?;
    let mask = BASE64_STANDARD.decode(value.field("Mask")?.text()?).ok()?;
    // An IPv4 range may have IPv6's form.
    let mask = if address.is_ipv4() { mask.get(mask.len().checked_sub(4)?..)? } else { &mask };
    let bits: u32 = mask.iter().map(|byte| byte.leading_ones()).sum();
    Network::new(address, u8::try_from(bits).ok()?)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::decode::json::read;

    fn of(settings: &Value) -> NetConf {
        NetConf::of(&read(settings.to_string().as_bytes()).unwrap())
    }

    #[test]
    fn the_servers_settings_are_read_and_kept() {
        let v4 = json!({"IP": "10.42.0.0", "Mask": "//8AAA=="});
        let v6 = json!({"IP": "2001:cafe:42::", "Mask": "/////////wAAAAAAAAAAAA=="});
        let conf = of(&json!({"FlannelBackend": "vxlan", "ClusterIPRanges": [v4, v6], "ClusterIPRange": v4,
            "FlannelIPv6Masq": true, "FlannelExternalIP": true}));
        assert_eq!(conf.backend(), Ok(Some(Backend::Vxlan)));
        assert_eq!(conf.networks, [Network::parse("10.42.0.0/16"), Network::parse("2001:cafe:42::/56")]);
        assert!(conf.masquerades_v6 && conf.by_external_address);
        assert_eq!(conf.is_v6_first, Some(false));
        let mut kept = Map::new();
        conf.write(&mut kept);
        assert_eq!(of(&kept.into()), conf);
        for (first, is_v6) in [(&v6, Some(true)), (&json!(null), None)] {
            let conf = of(&json!({"ClusterIPRanges": [v6, v4], "ClusterIPRange": first}));
            assert_eq!(conf.is_v6_first, is_v6);
            let mut kept = Map::new();
            conf.write(&mut kept);
            assert_eq!(of(&kept.into()), conf);
        }
        let older = of(&json!({"FlannelBackend": "host-gw", "ClusterIPRange": v4}));
        assert_eq!(older.backend(), Ok(Some(Backend::HostGw)));
        let wireguard = of(&json!({"FlannelBackend": "wireguard-native", "ClusterIPRange": v4}));
        assert_eq!(wireguard.backend(), Ok(Some(Backend::Wireguard)));
        assert_eq!(older.networks, [Network::parse("10.42.0.0/16"), None]);
    }

    #[test]
    fn what_is_no_network_of_this_node_is_none_or_refused_by_its_field() {
        for settings in [json!({}), json!({"FlannelBackend": "none", "ClusterIPRange": "10.42.0.0/16"})] {
            assert_eq!(of(&settings).backend(), Ok(None), "{settings}");
        }
        for (backend, range, named) in [
            ("tailscale", "10.42.0.0/16", "FlannelBackend of the k3s server is tailscale"),
            ("wireguard", "10.42.0.0/16", "FlannelBackend of the k3s server is wireguard"),
            ("vxlan", "10.42.0.0", "ClusterIPRanges"),
        ] {
            let settings = json!({"FlannelBackend": backend, "ClusterIPRanges": [range]});
            let why = of(&settings).backend().unwrap_err();
            assert!(why.contains(named), "{why}");
        }
    }
}
