//! Links whose IPv6 addresses come from router advertisements, which the kernel ignores once the node forwards IPv6. PURE.

use crate::kernel_tunables::Differing;

/// `IFA_F_PERMANENT`: an address without a lifetime.
const PERMANENT: u8 = 0x80;
/// `accept_ra`: taken unless the link forwards; taken in any case.
const UNLESS_FORWARDING: u64 = 1;
const ALWAYS: u64 = 2;

/// Links of `if_inet6` (`/proc/net/if_inet6`) with a global address that has a lifetime, where the kernel takes router advertisements
/// unless it forwards: the address and the default route end then. A network manager that takes them itself sets `accept_ra` to 0.
pub(super) fn ignored(if_inet6: &str, accept_ra: impl Fn(&str) -> Option<u64>) -> Vec<Differing> {
    let mut links: Vec<&str> = if_inet6.lines().filter_map(with_lifetime).collect();
    links.sort_unstable();
    links.dedup();
    links.retain(|link| accept_ra(link) == Some(UNLESS_FORWARDING));
    // sysctl(8) has a dot of a name as a slash.
    let name = |link: &str| format!("net.ipv6.conf.{}.accept_ra", link.replace('.', "/"));
    links
        .into_iter()
        .map(|link| Differing { name: name(link), actual: UNLESS_FORWARDING, wanted: ALWAYS })
        .collect()
}

/// The link of a line with such an address: address, index, prefix, scope and flags in hexadecimal, name.
fn with_lifetime(line: &str) -> Option<&str> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [_, _, _, scope, flags, link] = fields[..] else { return None };
    (scope == "00" && u8::from_str_radix(flags, 16).ok()? & PERMANENT == 0).then_some(link)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_whose_addresses_would_end_are_named() {
        let if_inet6 = "\
            00000000000000000000000000000001 01 80 10 80       lo\n\
            fe80000000000000021122fffe334455 02 40 20 80     eth0\n\
            20010db8000000000000000000000002 02 40 00 00     eth0\n\
            20010db8000000000000000000000003 02 40 00 01     eth0\n\
            20010db8000100000000000000000002 03 40 00 80    wlan0\n\
            20010db8000200000000000000000002 04 40 00 00 eth0.100\n\
            20010db8000300000000000000000002 05 40 00 00     eth1\n\
            cut short\n";
        let accept_ra = |link: &str| match link {
            "eth0" | "eth0.100" | "wlan0" => Some(1),
            "eth1" => Some(0),
            _ => None,
        };
        let names: Vec<String> = ignored(if_inet6, accept_ra).into_iter().map(|of| of.name).collect();
        assert_eq!(names, ["net.ipv6.conf.eth0.accept_ra", "net.ipv6.conf.eth0/100.accept_ra"]);
    }
}
