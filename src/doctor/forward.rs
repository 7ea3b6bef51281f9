//! What iptables does with packets of pods that are forwarded: Docker and ufw have it drop what no rule accepts. I/O, blocking.

use std::sync::atomic::AtomicBool;

use crate::limits::IPTABLES_TIME;
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
    let words = ["-w", "5", "-S", chain].map(str::to_owned);
    let ended = program::run(program, &words, IPTABLES_TIME, &AtomicBool::new(false));
    let good = ended.ok().filter(|ended| ended.status.is_some_and(|status| status.success()));
    good.map(|ended| ended.output).unwrap_or_default()
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
}
