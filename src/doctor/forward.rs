//! What firewalls do with packets of pods: Docker and ufw have iptables drop what is forwarded and no rule accepts, and firewalld
//! refuses what comes from a zone that it does not trust. I/O, blocking.

use crate::config::Config;
use crate::limits::{FIREWALL_CMD_TIME, IPTABLES_TIME};
use crate::program;

/// The program of each address family, with the family.
const PROGRAMS: [(&str, &str); 2] = [("iptables", "IPv4"), ("ip6tables", "IPv6")];
/// Chains of flannel, of the CNI plugin firewall, of Calico and of Cilium, which accept packets of pods.
const ACCEPTING: [&str; 4] = ["FLANNEL-FWD", "CNI-FORWARD", "cali-FORWARD", "CILIUM_FORWARD"];
/// Chains of the owner's rules, with that which leads there: Docker's, and those of `ufw route`.
const OWNERS: [(&str, &str); 3] = [
    ("DOCKER-USER", "DOCKER-USER"),
    ("ufw-before-forward", "ufw-user-forward"),
    ("ufw6-before-forward", "ufw6-user-forward"),
];

/// The families of which packets are dropped that no rule accepts, as far as that can be told.
pub(super) fn dropping() -> Vec<&'static str> {
    let families = PROGRAMS.iter().filter(|(program, _)| {
        let forward = rules(program, "FORWARD");
        let owners = OWNERS.iter().filter(|(by, _)| leads_to(&forward, by));
        let owners: String = owners.map(|(_, chain)| rules(program, chain)).collect();
        drops(&format!("{forward}{owners}"))
    });
    families.map(|(_, family)| *family).collect()
}

/// The rules of a chain; nothing where the program is not there, or refuses.
fn rules(program: &str, chain: &str) -> String {
    program::output(program, &["-w", "5", "-S", chain], IPTABLES_TIME).unwrap_or_default()
}

/// Chains that kube-proxy or kube-router has left, or keeps, on a node that does their work itself.
pub(super) fn foreign(config: &Config) -> Vec<&'static str> {
    let all = [
        (config.service_proxy.is_some(), "nat", "KUBE-SERVICES"),
        (config.network_policy.is_some(), "filter", "KUBE-ROUTER-FORWARD"),
    ];
    let is_there = |(table, chain): (&str, &str)| {
        PROGRAMS.iter().any(|(program, _)| {
            program::output(program, &["-w", "5", "-t", table, "-S", chain], IPTABLES_TIME).is_some()
        })
    };
    let found = all.into_iter().filter(|(is_own, table, chain)| *is_own && is_there((table, chain)));
    found.map(|(.., chain)| chain).collect()
}

/// Whether firewalld runs and trusts nothing; false also when it does not say so in time.
pub(super) fn firewalld_trusts_none() -> bool {
    // It fails where firewalld does not run.
    let zones = program::output("firewall-cmd", &["--get-active-zones"], FIREWALL_CMD_TIME);
    zones.is_some_and(|zones| !is_active(&zones, "trusted"))
}

/// Whether the zone has a source or an interface. A version says `(default)` behind a name. PURE.
fn is_active(zones: &str, zone: &str) -> bool {
    zones.lines().any(|line| line.split(' ').next() == Some(zone))
}

/// Whether a rule leads to that target. PURE.
fn leads_to(rules: &str, target: &str) -> bool {
    rules.lines().any(|rule| words_after(rule, &["-j", "-g"]) == Some(target))
}

/// Whether the policy drops, and no rule accepts the packets of a range of addresses, or is another network's. PURE.
fn drops(rules: &str) -> bool {
    let accepts = |rule: &str| {
        words_after(rule, &["-j"]) == Some("ACCEPT") && words_after(rule, &["-s", "-d"]).is_some()
    };
    rules.lines().any(|rule| rule == "-P FORWARD DROP")
        && !ACCEPTING.iter().any(|chain| leads_to(rules, chain))
        && !rules.lines().any(accepts)
}

/// The word behind the first of these.
fn words_after<'a>(rule: &'a str, options: &[&str]) -> Option<&'a str> {
    rule.split(' ').skip_while(|word| !options.contains(word)).nth(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_drops_packets_of_pods_unless_a_rule_accepts_them() {
        let docker = "-P FORWARD DROP\n-A FORWARD -j DOCKER-USER\n-A FORWARD -j DOCKER-FORWARD\n\
                      -A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n";
        for (rules, expected) in [
            ("", false),
            ("-P FORWARD ACCEPT\n", false),
            ("-P FORWARD DROP\n", true),
            (docker, true),
            (
                &*format!("{docker}-A FORWARD -m comment --comment \"flanneld forward\" -j FLANNEL-FWD\n"),
                false,
            ),
            (&*format!("{docker}-A FORWARD -m comment --comment \"CNI\" -j CNI-FORWARD\n"), false),
            (&*format!("{docker}-N DOCKER-USER\n-A DOCKER-USER -s 10.88.0.0/16 -j ACCEPT\n"), false),
            (&*format!("{docker}-A DOCKER-USER -s 10.88.0.0/16 -j DROP\n"), true),
            (&*format!("{docker}-A ufw-user-forward -d 10.88.0.0/16 -j ACCEPT\n"), false),
        ] {
            assert_eq!(drops(rules), expected, "{rules}");
        }
        assert!(leads_to(docker, "DOCKER-USER") && !leads_to(docker, "DOCKER"));
    }

    #[test]
    fn a_zone_is_active_with_a_source_or_an_interface() {
        let usual = "public (default)\n  interfaces: eth0\n";
        assert!(!is_active(usual, "trusted") && is_active(usual, "public") && !is_active("", "trusted"));
        assert!(is_active(&format!("{usual}trusted\n  sources: 10.42.0.0/16 10.43.0.0/16\n"), "trusted"));
        assert!(is_active("trusted (default)\n  interfaces: eth0\n", "trusted"));
        assert!(!is_active("trusted-too\n  interfaces: eth0\n", "trusted"));
    }
}
