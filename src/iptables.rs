//! The empty chains by which others find out which iptables a node uses, the legacy one or that of `nf_tables` (kubelet
//! `initNetworkUtil`): images of CNI plugins and of kube-proxy look for them (`iptables-wrapper`). I/O, blocking.
//!
//! Other than the kubelet, which looks for its canary every minute, they are made at the agent's start and at each join: what flushes
//! a node's tables takes the rules that matter with it, and whoever has made those makes the hint anew.

use std::io;
use std::sync::atomic::AtomicBool;

use crate::limits::IPTABLES_TIME;
use crate::volume::program;

/// A program for each family of addresses.
const PROGRAMS: [&str; 2] = ["iptables", "ip6tables"];

/// Chains, and their tables.
const CHAINS: [(&str, &str); 4] = [
    ("KUBE-IPTABLES-HINT", "mangle"),
    ("KUBE-KUBELET-CANARY", "mangle"),
    ("KUBE-KUBELET-CANARY", "nat"),
    ("KUBE-KUBELET-CANARY", "filter"),
];

/// `iptables` says so when the chain is there already (`EnsureChain`).
const IS_THERE: i32 = 1;

/// Makes the chains that are not there (`EnsureChain`). A machine without the program has none; what fails is told, and nothing else
/// suffers from it.
pub(crate) fn ensure_hint_chains() {
    for program in PROGRAMS {
        if let Err(why) = ensure(program) {
            log::warn!(
                "{program}: the chains by which others find out which iptables this node uses were not made: {why}"
            );
        }
    }
}

fn ensure(program: &str) -> Result<(), String> {
    for (chain, table) in CHAINS {
        let arguments = ["-w", "5", "-N", chain, "-t", table].map(str::to_owned);
        let ended = match program::run(program, &arguments, IPTABLES_TIME, &AtomicBool::new(false)) {
            Ok(ended) => ended,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error.to_string()),
        };
        match ended.status.map(|status| status.code()) {
            Some(Some(0 | IS_THERE)) => {}
            Some(_) => return Err(ended.output.trim().to_owned()),
            None => return Err(format!("not over after {} s, and killed", IPTABLES_TIME.as_secs())),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a network namespace of its own, which goes with the program.
    #[test]
    fn the_chains_are_made_once_and_stay() {
        let script = "set -e; for table in mangle nat filter; do iptables -t $table -S; done";
        let run = |line: &str| {
            let arguments = ["-n", "sh", "-c", line].map(str::to_owned);
            program::run("unshare", &arguments, IPTABLES_TIME, &AtomicBool::new(false))
        };
        let make: Vec<String> =
            CHAINS.iter().map(|(chain, table)| format!("iptables -w 5 -N {chain} -t {table}")).collect();
        let make = make.join("; ");
        let ended = run(&format!("set -e; {make}; set +e; {make}; echo $?; {script}")).expect("unshare runs");
        assert_eq!(ended.status.and_then(|status| status.code()), Some(0), "{}", ended.output);
        let lines: Vec<&str> = ended.output.lines().collect();
        assert!(lines.contains(&IS_THERE.to_string().as_str()), "{lines:?}");
        for chain in ["-N KUBE-IPTABLES-HINT", "-N KUBE-KUBELET-CANARY"] {
            assert!(lines.contains(&chain), "{lines:?}");
        }
    }
}
