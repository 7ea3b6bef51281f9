//! The kubelet's iptables chains and rules on a node (`syncIPTablesRules`), and flannel's for forwarded packets. I/O, blocking.
//!
//! - The empty chains by which other programs detect which iptables variant a node uses, legacy or `nf_tables`: images of CNI
//!   plugins and of kube-proxy look for them (`iptables-wrapper`).
//! - The rule that drops outside packets to the node's 127.0.0.0/8 (CVE-2020-8558): kube-proxy sets `route_localnet`, so that
//!   node ports are available on 127.0.0.1 too, and with it the kernel accepts such packets from pods and from the network.
//!
//! Unlike in the kubelet, which checks its canary chain every minute, they are created at the agent's start and at each join: a
//! flush of a node's tables removes the service rules as well, and the program that recreates those recreates the hint.
//! kube-proxy creates the same rule wherever it sets `route_localnet`.
//!
//! flannel's let packets from and to pods through where others drop what is forwarded: the policy of the chain `FORWARD` is `DROP` with
//! Docker and with ufw. smolet's own tables cannot: what one table accepts another one may still drop.

use std::io;
use std::sync::atomic::AtomicBool;

use crate::limits::IPTABLES_TIME;
use crate::model::Network;
use crate::program::{self, Ended};

/// The program of each address family.
const PROGRAMS: [&str; 2] = [IPV4, "ip6tables"];
const IPV4: &str = "iptables";

const FIREWALL: &str = "KUBE-FIREWALL";

/// Chains, and their tables.
const CHAINS: [(&str, &str); 4] = [
    ("KUBE-IPTABLES-HINT", "mangle"),
    ("KUBE-KUBELET-CANARY", "mangle"),
    ("KUBE-KUBELET-CANARY", "nat"),
    ("KUBE-KUBELET-CANARY", "filter"),
];

/// Rules of IPv4's table `filter` (IPv6 has no such network): the chain, the position in it, the rule.
const RULES: [(&str, RulePosition, &[&str]); 3] = [
    ("OUTPUT", RulePosition::First, &["-j", FIREWALL]),
    ("INPUT", RulePosition::First, &["-j", FIREWALL]),
    (
        FIREWALL,
        RulePosition::Last,
        &[
            "-m",
            "comment",
            "--comment",
            "block incoming localnet connections",
            "--dst",
            "127.0.0.0/8",
            "!",
            "--src",
            "127.0.0.0/8",
            "-m",
            "conntrack",
            "!",
            "--ctstate",
            "RELATED,ESTABLISHED,DNAT",
            "-j",
            "DROP",
        ],
    ),
];

/// flannel's chain of the table `filter`.
pub(crate) const FORWARD: &str = "FLANNEL-FWD";
/// Words of its rules.
const COMMENT: [&str; 4] = ["-m", "comment", "--comment", "flanneld forward"];

/// What kube-proxy's chain `KUBE-FORWARD` accepts: clients of a Service whose endpoint is another node's own address, with the service
/// proxy's mark, and the answers.
const SERVICES_FORWARD: [&[&str]; 2] =
    [&["-m", "mark", "--mark", "0x4000/0x4000"], &["-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED"]];

#[derive(Clone, Copy)]
enum RulePosition {
    First,
    Last,
}

/// Exit code of `iptables` when a chain exists already (`EnsureChain`), and when a rule does not (`checkRuleUsingCheck`).
const NO: i32 = 1;

/// Creates missing chains and rules. On a machine without the program there are none; a failure is logged and has no other
/// effect.
pub(crate) fn ensure_rules() {
    let run = |program: &str, arguments: &[String]| {
        program::run(program, arguments, IPTABLES_TIME, &AtomicBool::new(false))
    };
    for program in PROGRAMS {
        let tables = Tables { program, run: &run };
        if let Err(why) = tables.ensure_chains() {
            log::warn!(
                "{program}: creating the chains KUBE-IPTABLES-HINT and KUBE-KUBELET-CANARY failed: {why}"
            );
        }
        if program == IPV4
            && let Err(why) = tables.ensure_firewall()
        {
            log::warn!("{program}: adding the rule that protects 127.0.0.0/8 ({FIREWALL}) failed: {why}");
        }
    }
}

/// Lets through what is forwarded from and to the pods of these networks (flannel's `forwardRules`), and for Services (kube-proxy's
/// `KUBE-FORWARD`). On a machine without the program nothing is done.
///
/// # Errors
/// That of a family, after both were tried.
pub(crate) fn ensure_forward(networks: impl Iterator<Item = Network>) -> Result<(), String> {
    let mut done = Ok(());
    let run = |program: &str, arguments: &[String]| {
        program::run(program, arguments, IPTABLES_TIME, &AtomicBool::new(false))
    };
    for network in networks {
        let program = PROGRAMS[usize::from(network.address.is_ipv6())];
        let made = (Tables { program, run: &run }).ensure_forward(&network);
        let failed = |why| {
            format!("{program}: adding the rules that let packets of pods through ({FORWARD}) failed: {why}")
        };
        done = done.and(made.map_err(failed));
    }
    done
}

/// The jump to flannel's chain is there: whoever flushes the table removes it. One run of the program. True on a machine without it.
pub(crate) fn has_forward(network: &Network) -> bool {
    let run = |program: &str, arguments: &[String]| {
        program::run(program, arguments, IPTABLES_TIME, &AtomicBool::new(false))
    };
    let program = PROGRAMS[usize::from(network.address.is_ipv6())];
    (Tables { program, run: &run }).has_forward()
}

/// The tables of one address family.
struct Tables<'a> {
    program: &'a str,
    run: &'a dyn Fn(&str, &[String]) -> io::Result<Ended>,
}

impl Tables<'_> {
    fn ensure_chains(&self) -> Result<(), String> {
        CHAINS.iter().try_for_each(|(chain, table)| self.ensure_chain(chain, table))
    }

    fn ensure_firewall(&self) -> Result<(), String> {
        self.ensure_chain(FIREWALL, "filter")?;
        RULES.iter().try_for_each(|(chain, place, rule)| self.ensure_rule(chain, *place, rule))
    }

    fn ensure_forward(&self, network: &Network) -> Result<(), String> {
        self.ensure_chain(FORWARD, "filter")?;
        let network = network.to_string();
        self.ensure_rule("FORWARD", RulePosition::Last, &[&COMMENT[..], &["-j", FORWARD]].concat())?;
        for end in ["-s", "-d"] {
            let rule = [&[end, &network], &COMMENT[..], &["-j", "ACCEPT"]].concat();
            self.ensure_rule(FORWARD, RulePosition::Last, &rule)?;
        }
        for what in SERVICES_FORWARD {
            let rule = [what, &COMMENT[..], &["-j", "ACCEPT"]].concat();
            self.ensure_rule(FORWARD, RulePosition::Last, &rule)?;
        }
        Ok(())
    }

    /// An error counts as no: iptables of the legacy kind has one for a rule whose chain is gone.
    fn has_forward(&self) -> bool {
        let rule = [&COMMENT[..], &["-j", FORWARD]].concat();
        matches!(self.refusal(&["-C", "FORWARD", "-t", "filter"], &rule), Ok(None))
    }

    /// `EnsureChain`.
    fn ensure_chain(&self, chain: &str, table: &str) -> Result<(), String> {
        self.refusal(&["-N", chain, "-t", table], &[]).map(drop)
    }

    /// `EnsureRule`.
    fn ensure_rule(&self, chain: &str, place: RulePosition, rule: &[&str]) -> Result<(), String> {
        if self.refusal(&["-C", chain, "-t", "filter"], rule)?.is_none() {
            return Ok(());
        }
        let place = match place {
            RulePosition::First => "-I",
            RulePosition::Last => "-A",
        };
        self.refusal(&[place, chain, "-t", "filter"], rule)?.map_or(Ok(()), Err)
    }

    /// Its output when it exits with [`NO`]; `None`: it succeeded, or the program does not exist.
    fn refusal(&self, command: &[&str], rule: &[&str]) -> Result<Option<String>, String> {
        let words = ["-w", "5"].iter().chain(command).chain(rule);
        let arguments: Vec<String> = words.map(|&word| word.to_owned()).collect();
        let ended = match (self.run)(self.program, &arguments) {
            Ok(ended) => ended,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        let printed = ended.output.trim();
        match ended.status.map(|status| status.code()) {
            Some(Some(0)) => Ok(None),
            Some(Some(NO)) => Ok(Some(printed.to_owned())),
            Some(_) => Err(printed.to_owned()),
            None => Err(format!("not finished after {} s; killed", IPTABLES_TIME.as_secs())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// A network namespace, which lasts as long as the process in it.
    struct Namespace(Child);

    impl Namespace {
        fn new() -> Self {
            let mut process = Command::new("unshare");
            // It reports that the namespace exists.
            process.args(["-n", "sh", "-c", "echo; exec sleep 600"]).stdout(Stdio::piped());
            let mut process = process.spawn().expect("unshare runs");
            let mut out = process.stdout.take().expect("a pipe");
            io::Read::read_exact(&mut out, &mut [0]).expect("a namespace needs root");
            Self(process)
        }

        fn run(&self, program: &str, arguments: &[String]) -> io::Result<Ended> {
            let mut words = vec![format!("--net=/proc/{}/ns/net", self.0.id()), program.to_owned()];
            words.extend_from_slice(arguments);
            program::run("nsenter", &words, IPTABLES_TIME, &AtomicBool::new(false))
        }

        fn rules(&self, table: &str) -> Vec<String> {
            let ended = self.run(IPV4, &["-S", "-t", table].map(str::to_owned)).expect("it runs");
            assert_eq!(ended.status.and_then(|status| status.code()), Some(0), "{}", ended.output);
            ended.output.lines().filter(|line| !line.starts_with("-P")).map(str::to_owned).collect()
        }
    }

    impl Drop for Namespace {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn chains_and_rules_are_made_once_and_stay() {
        let space = Namespace::new();
        // An existing rule stays after one that is inserted first.
        let before = ["-A", "INPUT", "-p", "tcp", "-j", "ACCEPT"].map(str::to_owned);
        assert!(space.run(IPV4, &before).unwrap().status.is_some_and(|status| status.success()));
        let run = |program: &str, arguments: &[String]| space.run(program, arguments);
        let tables = Tables { program: IPV4, run: &run };
        for _ in 0..2 {
            tables.ensure_chains().unwrap();
            tables.ensure_firewall().unwrap();
            assert_eq!(space.rules("mangle"), ["-N KUBE-IPTABLES-HINT", "-N KUBE-KUBELET-CANARY"]);
            assert_eq!(space.rules("nat"), ["-N KUBE-KUBELET-CANARY"]);
            let drop = "-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment \"block incoming localnet \
                        connections\" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP";
            assert_eq!(
                space.rules("filter"),
                [
                    "-N KUBE-FIREWALL",
                    "-N KUBE-KUBELET-CANARY",
                    "-A INPUT -j KUBE-FIREWALL",
                    "-A INPUT -p tcp -j ACCEPT",
                    "-A OUTPUT -j KUBE-FIREWALL",
                    drop,
                ]
            );
        }
        let network = Network::parse("10.42.0.0/16").unwrap();
        assert!(!tables.has_forward());
        for _ in 0..2 {
            tables.ensure_forward(&network).unwrap();
            assert!(tables.has_forward());
            let forward: Vec<String> =
                space.rules("filter").into_iter().filter(|rule| rule.contains("flanneld forward")).collect();
            let comment = "-m comment --comment \"flanneld forward\" -j";
            assert_eq!(
                forward,
                [
                    format!("-A FORWARD {comment} FLANNEL-FWD"),
                    format!("-A FLANNEL-FWD -s 10.42.0.0/16 {comment} ACCEPT"),
                    format!("-A FLANNEL-FWD -d 10.42.0.0/16 {comment} ACCEPT"),
                    format!("-A FLANNEL-FWD -m mark --mark 0x4000/0x4000 {comment} ACCEPT"),
                    format!("-A FLANNEL-FWD -m conntrack --ctstate RELATED,ESTABLISHED {comment} ACCEPT"),
                ]
            );
        }
        let wrong = tables.ensure_rule("NO-SUCH-CHAIN", RulePosition::Last, &["-j", "DROP"]).unwrap_err();
        assert!(!wrong.is_empty());
        let flushed = ["-F", FIREWALL].map(str::to_owned);
        assert!(space.run(IPV4, &flushed).unwrap().status.is_some_and(|status| status.success()));
        tables.ensure_firewall().unwrap();
        assert_eq!(space.rules("filter").len(), 12);
        for flush in ["-F FORWARD", "-F", "-X FLANNEL-FWD"] {
            let flush: Vec<String> = flush.split(' ').map(str::to_owned).collect();
            space.run(IPV4, &flush).unwrap();
            assert!(!tables.has_forward(), "{flush:?}");
        }
        tables.ensure_forward(&network).unwrap();
        assert!(tables.has_forward());
    }

    #[test]
    fn a_machine_without_the_program_has_no_chains() {
        let run = |_: &str, _: &[String]| Err(io::ErrorKind::NotFound.into());
        let tables = Tables { program: IPV4, run: &run };
        assert_eq!(tables.ensure_chains().and_then(|()| tables.ensure_firewall()), Ok(()));
    }
}
