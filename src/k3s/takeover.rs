//! `smolet k3s takeover`: what takes the place of `k3s agent` on its own board. PURE.
//!
//! ```text
//!     k3s-agent.service ─ its command ─► a drop-in: the same flags, by smolet
//!     k3s' containerd, a child of k3s ─► k3s-containerd.service, on the same socket
//!     iptables-save ───────────────────► what kube-proxy, kube-router and flannel of k3s have left there
//! ```

use std::fmt::Write as _;

use crate::iptables;
use crate::paths::K3S_CONTAINERD;

/// The unit that k3s' installer writes.
pub(crate) const AGENT_UNIT: &str = "k3s-agent.service";
/// The unit of k3s' containerd.
pub(crate) const CONTAINERD_UNIT: &str = "k3s-containerd.service";

/// The first line of both files.
const MADE: &str = "# By smolet k3s takeover; smolet k3s takeover --back removes it.";

/// The command of the unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AgentCommand {
    /// The program.
    pub(crate) program: String,
    /// The flags of `k3s agent`.
    pub(crate) flags: Vec<String>,
    /// The same as the unit has them, quoted.
    texts: Vec<String>,
}

impl AgentCommand {
    /// Without the words for which it is true.
    pub(crate) fn without(&self, is_left_out: &[bool]) -> Self {
        let kept = |words: &[String]| {
            let words = words.iter().zip(is_left_out).filter(|(_, is_left_out)| !**is_left_out);
            words.map(|(word, _)| word.clone()).collect()
        };
        Self { program: self.program.clone(), flags: kept(&self.flags), texts: kept(&self.texts) }
    }
}

/// The command that `systemctl cat` shows of [`AGENT_UNIT`]: the last `ExecStart=`.
///
/// # Errors
/// A sentence: it does not run `k3s agent`.
pub(crate) fn agent_command(unit: &str) -> Result<AgentCommand, String> {
    let joined = unit.replace("\\\n", " ");
    let mut starts = joined.lines().filter_map(|line| line.trim_start().strip_prefix("ExecStart="));
    let command = starts.next_back().unwrap_or_default().trim();
    let (words, ends) = words(command.trim_start_matches(['@', '-', ':', '+', '!']))?;
    let command = command.trim_start_matches(['@', '-', ':', '+', '!']);
    match words.as_slice() {
        [program, agent, flags @ ..] if agent == "agent" => Ok(AgentCommand {
            program: program.clone(),
            flags: flags.to_vec(),
            texts: ends[1..].windows(2).map(|ends| command[ends[0]..ends[1]].trim().to_owned()).collect(),
        }),
        _ => Err(format!("{AGENT_UNIT} does not run k3s agent: ExecStart={command}")),
    }
}

/// The words of a command as systemd splits it, and where each ends.
fn words(command: &str) -> Result<(Vec<String>, Vec<usize>), String> {
    let (mut words, mut ends) = (Vec::new(), Vec::new());
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = command.char_indices();
    while let Some((at, c)) = chars.next() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, c) if c.is_ascii_whitespace() => {
                if let Some(word) = word.take() {
                    words.push(word);
                    ends.push(at);
                }
            }
            (_, '\\') if quote != Some('\'') => {
                word.get_or_insert_default().extend(chars.next().map(|(_, escaped)| escaped));
            }
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    if quote.is_some() {
        return Err(format!("{AGENT_UNIT}: a quote is not closed: ExecStart={command}"));
    }
    if let Some(word) = word {
        words.push(word);
        ends.push(command.len());
    }
    // The one specifier that stands for itself; others are systemd's alone.
    Ok((words.iter().map(|word| word.replace("%%", "%")).collect(), ends))
}

/// The files that the unit reads variables from (`EnvironmentFile=`), as it names them.
pub(crate) fn environment_files(unit: &str) -> Vec<String> {
    let lines = unit.lines().filter_map(|line| line.trim().strip_prefix("EnvironmentFile="));
    // The unit's name, which the installer uses.
    let name = AGENT_UNIT.trim_end_matches(".service");
    lines.filter(|file| !file.is_empty()).map(|file| file.replace("%N", name)).collect()
}

/// The value of a variable that the unit has itself (`Environment=`); a file counts more.
pub(crate) fn own_variable(unit: &str, name: &str) -> Option<String> {
    let lines = unit.lines().filter_map(|line| line.trim().strip_prefix("Environment="));
    let words = lines.filter_map(|line| words(line).ok()).flat_map(|(words, _)| words);
    words.filter_map(|word| Some(word.strip_prefix(name)?.strip_prefix('=')?.to_owned())).next_back()
}

/// The value of a variable in such a file, without its quotes.
pub(crate) fn variable<'a>(file: &'a str, name: &str) -> Option<&'a str> {
    let value = |line: &'a str| line.trim().strip_prefix(name)?.strip_prefix('=');
    let value = file.lines().filter_map(value).next_back()?.trim();
    let quoted = |quote: char| value.strip_prefix(quote)?.strip_suffix(quote);
    Some(quoted('\'').or_else(|| quoted('"')).unwrap_or(value))
}

/// A path that both units can name as it is.
pub(crate) fn is_plain(path: &str) -> bool {
    let fits = |c: u8| c.is_ascii_alphanumeric() || b"/._-".contains(&c);
    path.starts_with('/') && path.bytes().all(fits)
}

/// Of [`CONTAINERD_UNIT`]: k3s' containerd as `k3s agent` starts it (`getContainerdArgs`), with `data_dir` below which k3s is.
pub(crate) fn containerd_unit(data_dir: &str, environment_files: &[String]) -> String {
    let programs = format!("{data_dir}/data/current/bin");
    let mut text = format!(
        "{MADE}\n[Unit]\nDescription=containerd of k3s, without k3s\nAfter=network.target\nBefore={AGENT_UNIT}\n\
         StartLimitIntervalSec=0\n\n[Service]\nType=notify\n"
    );
    for file in environment_files {
        let _ = writeln!(text, "EnvironmentFile={file}");
    }
    let _ = write!(
        text,
        "Environment=PATH={programs}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:{programs}/aux\n\
         ExecStartPre=-/sbin/modprobe overlay\n\
         ExecStart={programs}/containerd -c {data_dir}/agent/etc/containerd/config.toml -a {K3S_CONTAINERD} \
         --state /run/k3s/containerd --root {data_dir}/agent/containerd\n\
         KillMode=process\nDelegate=yes\nRestart=always\nRestartSec=5\nTimeoutStartSec=0\nOOMScoreAdjust=-999\n\
         LimitNOFILE=1048576\nLimitNPROC=infinity\nLimitCORE=0\nTasksMax=infinity\n\n\
         [Install]\nWantedBy=multi-user.target\n"
    );
    text
}

/// The drop-in of [`AGENT_UNIT`] by which smolet, `program`, runs with the flags of `k3s agent` and `more`.
pub(crate) fn drop_in(program: &str, command: &AgentCommand, more: &[String]) -> String {
    let flags: Vec<&str> = command.texts.iter().chain(more).map(String::as_str).collect();
    format!(
        "{MADE}\n[Unit]\nWants={CONTAINERD_UNIT}\nAfter={CONTAINERD_UNIT}\nStartLimitIntervalSec=0\n\n[Service]\nType=notify\n\
         NotifyAccess=main\nExecStart=\nExecStart={program} agent {}\nWatchdogSec=60\nKillMode=process\nDelegate=yes\nRestart=always\n\
         OOMScoreAdjust=-999\nLimitCORE=0\n",
        flags.join(" ")
    )
}

/// True when containerd has systemd make the cgroups, by the text of its configuration.
pub(crate) fn has_systemd_cgroups(config: &str) -> bool {
    config.lines().any(|line| line.split_ascii_whitespace().collect::<String>() == "SystemdCgroup=true")
}

/// Chains of kube-proxy, of kube-router's network policies and of flannel. Those stay of which smolet has the same.
fn is_of_k3s(chain: &str) -> bool {
    const SHARED: [&str; 4] =
        ["KUBE-FIREWALL", "KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY", iptables::FORWARD];
    (chain.starts_with("KUBE-") || chain.starts_with("FLANNEL-")) && !SHARED.contains(&chain)
}

/// Comments of their rules in the kernel's own chains.
const COMMENTS: [&str; 3] = [
    "\"flanneld masq\"",
    "\"rule to explicitly ACCEPT traffic that comply to network policies\"",
    "\"KUBE-ROUTER rule to explicitly ACCEPT traffic that comply to network policies\"",
];

/// What `iptables-restore --noflush` reads so that nothing of theirs is left, by what `iptables-save` has printed. `None`: there is
/// nothing of theirs.
pub(crate) fn without_k3s(saved: &str) -> Option<String> {
    let mut script = String::new();
    for text in saved.split("COMMIT\n") {
        let Some(table) = text.lines().find(|line| line.starts_with('*')) else { continue };
        let chains = text.lines().filter_map(|line| line.strip_prefix(':')?.split(' ').next());
        let chains: Vec<&str> = chains.filter(|chain| is_of_k3s(chain)).collect();
        let leads_there = |rule: &&str| {
            let mut words = rule.split(' ').skip_while(|word| !["-j", "-g"].contains(word));
            words.nth(1).is_some_and(is_of_k3s) || COMMENTS.iter().any(|comment| rule.contains(comment))
        };
        let is_kept = |rule: &&str| !rule.split(' ').next().is_some_and(is_of_k3s);
        let rules = text.lines().filter_map(|line| line.strip_prefix("-A "));
        let rules: Vec<&str> = rules.filter(is_kept).filter(leads_there).collect();
        if chains.is_empty() && rules.is_empty() {
            continue;
        }
        // A chain that is named is emptied.
        let emptied = chains.iter().map(|chain| format!(":{chain} - [0:0]"));
        let deleted = rules.iter().map(|rule| format!("-D {rule}"));
        let removed = chains.iter().map(|chain| format!("-X {chain}"));
        let lines = emptied.chain(deleted).chain(removed).chain(["COMMIT".to_owned()]);
        for line in [table.to_owned()].into_iter().chain(lines) {
            script.push_str(&line);
            script.push('\n');
        }
    }
    (!script.is_empty()).then_some(script)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As k3s' installer writes it.
    const UNIT: &str = "# /etc/systemd/system/k3s-agent.service\n[Service]\nType=notify\nEnvironmentFile=-/etc/default/%N\n\
        EnvironmentFile=-/etc/systemd/system/k3s-agent.service.env\nExecStartPre=-/sbin/modprobe overlay\n\
        ExecStart=/usr/local/bin/k3s \\\n    agent \\\n\t'--node-label' \\\n\t'site=on the roof' \\\n\t'--kubelet-arg=eviction-hard=memory.available<5%%'\n";

    #[test]
    fn the_units_command_is_read_as_systemd_reads_it() {
        let command = agent_command(UNIT).unwrap();
        assert_eq!(command.program, "/usr/local/bin/k3s");
        let own = ["--node-label", "site=on the roof", "--kubelet-arg=eviction-hard=memory.available<5%"];
        assert_eq!(command.flags, own);
        let shown = drop_in("/usr/bin/smolet", &command, &["--debug".to_owned()]);
        let line = shown.lines().rfind(|line| line.starts_with("ExecStart=")).unwrap();
        let again = agent_command(&line.replace("ExecStart=/usr/bin/smolet", "ExecStart=k3s")).unwrap();
        assert_eq!(again.flags, [&own[..], &["--debug"]].concat());
        assert!(shown.contains("\nExecStart=\nExecStart=/usr/bin/smolet agent '--node-label'"), "{shown}");
        let command = command.without(&[true, true, false]);
        assert_eq!(command.flags, own[2..]);
        let shown = drop_in("/usr/bin/smolet", &command, &[]);
        let line = "\nExecStart=/usr/bin/smolet agent '--kubelet-arg=eviction-hard=memory.available<5%%'\n";
        assert!(shown.contains(line), "{shown}");
        // A drop-in counts, also one that resets the list.
        let more =
            format!("{UNIT}\n# x.conf\n[Service]\nExecStart=\nExecStart=-\"/opt/k3s\" agent -t \"a\\\"b\"\n");
        let command = agent_command(&more).unwrap();
        assert_eq!((command.program.as_str(), command.flags), ("/opt/k3s", vec!["-t".into(), "a\"b".into()]));
        assert_eq!(agent_command("ExecStart=/usr/local/bin/k3s agent").unwrap().flags, [""; 0]);
        for (unit, why) in [
            ("ExecStart=/usr/local/bin/k3s server", "does not run k3s agent"),
            ("ExecStart=/usr/local/bin/k3s", "does not run k3s agent"),
            ("", "does not run k3s agent"),
            ("ExecStart=k3s agent 'x", "a quote is not closed"),
        ] {
            let told = agent_command(unit).unwrap_err();
            assert!(told.contains(why), "{unit}: {told}");
        }
    }

    #[test]
    fn variables_are_those_of_the_units_files() {
        assert_eq!(
            environment_files(UNIT),
            ["-/etc/default/k3s-agent", "-/etc/systemd/system/k3s-agent.service.env"]
        );
        let file = "K3S_TOKEN='a b'\nK3S_URL=https://10.0.0.1:6443\nK3S_URLS=x\nK3S_NODE_NAME=\"gw\"\nE=\n";
        let of = |name| variable(file, name);
        assert_eq!((of("K3S_TOKEN"), of("K3S_URL")), (Some("a b"), Some("https://10.0.0.1:6443")));
        assert_eq!((of("K3S_NODE_NAME"), of("E"), of("K3S")), (Some("gw"), Some(""), None));
        let unit = format!(
            "{UNIT}Environment=A=b \"K3S_TOKEN=a b\" K3S_URL=https://a\nEnvironment=K3S_URL=https://b%%\n"
        );
        assert_eq!(own_variable(&unit, "K3S_TOKEN").as_deref(), Some("a b"));
        assert_eq!(own_variable(&unit, "K3S_URL").as_deref(), Some("https://b%"));
        assert_eq!((own_variable(&unit, "K3S"), own_variable(UNIT, "K3S_URL")), (None, None));
    }

    #[test]
    fn k3s_containerd_is_started_as_k3s_does() {
        let unit = containerd_unit("/var/lib/rancher/k3s", &["-/etc/k3s.env".to_owned()]);
        for line in [
            "EnvironmentFile=-/etc/k3s.env",
            "ExecStart=/var/lib/rancher/k3s/data/current/bin/containerd -c /var/lib/rancher/k3s/agent/etc/containerd/config.toml \
             -a /run/k3s/containerd/containerd.sock --state /run/k3s/containerd --root /var/lib/rancher/k3s/agent/containerd",
            "KillMode=process",
        ] {
            assert!(unit.lines().any(|found| found == line), "{line}: {unit}");
        }
        assert!(
            is_plain("/var/lib/rancher/k3s")
                && !is_plain("/srv/my data")
                && !is_plain("k3s")
                && !is_plain("/a%n")
        );
        assert!(has_systemd_cgroups("[x]\n  SystemdCgroup  =  true\n"));
        assert!(!has_systemd_cgroups("SystemdCgroup = false\n# SystemdCgroup = true\n"));
    }

    #[test]
    fn rules_of_k3s_go_and_others_stay() {
        let saved = "# Generated\n*nat\n:PREROUTING ACCEPT [1:2]\n:KUBE-SERVICES - [0:0]\n:KUBE-KUBELET-CANARY - [0:0]\n\
            :KUBE-SVC-X - [0:0]\n:CNI-1 - [0:0]\n\
            -A PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
            -A PREROUTING -j CNI-HOSTPORT-DNAT\n-A POSTROUTING -s 10.42.0.0/16 -m comment --comment \"flanneld masq\" -j MASQUERADE\n\
            -A KUBE-SERVICES -d 10.43.0.1/32 -j KUBE-SVC-X\n-A CNI-1 -j ACCEPT\nCOMMIT\n# Completed\n\
            *filter\n:INPUT ACCEPT [0:0]\n:KUBE-FIREWALL - [0:0]\n:FLANNEL-FWD - [0:0]\n-A INPUT -j KUBE-FIREWALL\n\
            -A FORWARD -m comment --comment \"flanneld forward\" -j FLANNEL-FWD\n\
            -A FLANNEL-FWD -s 10.42.0.0/16 -m comment --comment \"flanneld forward\" -j ACCEPT\nCOMMIT\n";
        let wanted = "*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-SVC-X - [0:0]\n\
            -D PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES\n\
            -D POSTROUTING -s 10.42.0.0/16 -m comment --comment \"flanneld masq\" -j MASQUERADE\n\
            -X KUBE-SERVICES\n-X KUBE-SVC-X\nCOMMIT\n";
        assert_eq!(without_k3s(saved).as_deref(), Some(wanted));
        assert_eq!(without_k3s("*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -j KUBE-FIREWALL\nCOMMIT\n"), None);
        assert_eq!(without_k3s(""), None);
    }
}
