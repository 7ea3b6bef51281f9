//! A pod network for a node without one: a CNI configuration of a bridge with the Node's `podCIDRs`. PURE.
//!
//! | other configurations | smolet's | action |
//! |---|---|---|
//! | none | none, or of other ranges | write it |
//! | none | up to date | none |
//! | some | present | remove it: the pods have another network |
//! | some | none | none |

use std::net::IpAddr;

use serde_json::{Value, json};

use crate::cni::CNI_VERSION;

/// The file's name: it sorts after other configurations.
pub const FILE: &str = "99-smolet-bridge.conflist";
/// The bridge's name.
const BRIDGE: &str = "cni0";

/// The action on the CNI configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// None.
    Keep,
    /// Write it.
    Write,
    /// Remove it.
    Remove,
}

/// Looks up the row of the table. `ours` is the file's content, if it exists.
pub fn action(others: bool, ours: Option<&[u8]>, wanted: &[u8]) -> Action {
    match (others, ours) {
        (false, Some(ours)) if ours == wanted => Action::Keep,
        (false, Some(_) | None) => Action::Write,
        (true, Some(_)) => Action::Remove,
        (true, None) => Action::Keep,
    }
}

/// The configuration: a bridge with masquerading, addresses from these ranges, and host ports.
///
/// # Errors
/// There is no range, or an invalid one.
pub fn conflist(pod_cidrs: &[Box<str>]) -> Result<String, String> {
    if pod_cidrs.is_empty() {
        return Err("the Node has no spec.podCIDR, of which a bridge would give its pods addresses; let the cluster's \
                    controller-manager allocate them (--allocate-node-cidrs --cluster-cidr=RANGE), or leave out \
                    --cni-bridge"
            .to_owned());
    }
    let mut ranges: Vec<Value> = Vec::new();
    let mut routes: Vec<Value> = Vec::new();
    for cidr in pod_cidrs {
        let v6 =
            family(cidr).ok_or_else(|| format!("the Node's podCIDR {cidr:?} is no range of addresses"))?;
        ranges.push(json!([{"subnet": &**cidr}]));
        routes.push(json!({"dst": if v6 { "::/0" } else { "0.0.0.0/0" }}));
    }
    let list = json!({
        "cniVersion": CNI_VERSION, "name": "smolet-bridge",
        "plugins": [
            {
                "type": "bridge", "bridge": BRIDGE, "isGateway": true, "ipMasq": true, "hairpinMode": true,
                "ipam": {"type": "host-local", "ranges": ranges, "routes": routes},
            },
            {"type": "portmap", "capabilities": {"portMappings": true}, "snat": true},
        ],
    });
    Ok(format!("{list}\n"))
}

/// Whether a range is IPv6; `None` when it is invalid.
fn family(cidr: &str) -> Option<bool> {
    let (address, bits) = cidr.split_once('/')?;
    let address: IpAddr = address.parse().ok()?;
    let bits: u8 = bits.parse().ok()?;
    let most = if address.is_ipv6() { 128 } else { 32 };
    (bits <= most).then_some(address.is_ipv6())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bridge_gives_way_to_others() {
        for (others, ours, wanted) in [
            (false, None, Action::Write),
            (false, Some("old"), Action::Write),
            (false, Some("new"), Action::Keep),
            (true, None, Action::Keep),
            (true, Some("new"), Action::Remove),
        ] {
            assert_eq!(action(others, ours.map(str::as_bytes), b"new"), wanted, "{others} {ours:?}");
        }
    }

    #[test]
    fn the_configuration_has_the_nodes_ranges_or_says_what_is_missing() {
        let of = |cidrs: &[&str]| conflist(&cidrs.iter().map(|cidr| (*cidr).into()).collect::<Vec<_>>());
        let text = of(&["10.42.1.0/24", "fd00:1::/64"]).expect("two ranges");
        let list: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(list["cniVersion"], "0.4.0");
        let manager = &list["plugins"][0]["ipam"];
        assert_eq!(manager["ranges"], json!([[{"subnet": "10.42.1.0/24"}], [{"subnet": "fd00:1::/64"}]]));
        assert_eq!(manager["routes"], json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]));
        assert_eq!(
            crate::cni::plugins(&text),
            Ok(["bridge", "host-local", "portmap"].map(str::to_owned).into())
        );
        assert!(crate::cni::is_configuration(FILE));
        assert!(of(&[]).is_err_and(|why| why.contains("spec.podCIDR")));
        for wrong in ["10.42.1.0", "10.42.1.0/33", "x/24", "10.42.1.0/24/1", "fd00::/129"] {
            assert!(of(&[wrong]).is_err(), "{wrong}");
        }
    }
}
