//! `smolet k3s takeover`: what takes the place of `k3s agent` on its own board. PURE.
//!
//! ```text
//!     k3s-agent.service ─ its command ─► a drop-in: the same flags, by smolet
//!     k3s' containerd, a child of k3s ─► k3s-containerd.service, on the same socket, with the variables that k3s gives it
//!     iptables-save ───────────────────► what kube-proxy, kube-router and flannel of k3s have left there
//!     libcni's cache ──────────────────► back: by what flannel's plugin releases the addresses of pods that smolet started
//!     certificates of smolet ──────────► back: those of k3s, where smolet has renewed them
//! ```

use std::fmt::Write as _;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::Value;

use crate::certificates::usable;
use crate::iptables;
use crate::paths::K3S_CONTAINERD;
use crate::tls::certificates;
use crate::x509::validity;

/// The unit that k3s' installer writes.
pub(crate) const AGENT_UNIT: &str = "k3s-agent.service";
/// The unit of k3s' containerd.
pub(crate) const CONTAINERD_UNIT: &str = "k3s-containerd.service";

/// The first line of each file.
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

/// The values of a setting that a unit may have several times; an empty one resets the list.
fn setting(unit: &str, name: &str) -> Vec<String> {
    let joined = unit.replace("\\\n", " ");
    let mut found = Vec::new();
    for value in joined.lines().filter_map(|line| line.trim().strip_prefix(name)) {
        if value.is_empty() {
            found.clear();
        } else {
            found.push(with_units_name(value.trim()));
        }
    }
    found
}

/// Specifiers of the unit's name as that name: a unit of another name has the line, too.
fn with_units_name(text: &str) -> String {
    let name = AGENT_UNIT.trim_end_matches(".service");
    let named = |part: &str| part.replace("%N", name).replace("%p", name).replace("%n", AGENT_UNIT);
    text.split("%%").map(named).collect::<Vec<_>>().join("%%")
}

/// The files that the unit reads variables from (`EnvironmentFile=`), as it names them.
pub(crate) fn environment_files(unit: &str) -> Vec<String> {
    setting(unit, "EnvironmentFile=")
}

/// The variables that the unit has itself (`Environment=`).
fn own_variables(unit: &str) -> Vec<(String, String)> {
    let lines = setting(unit, "Environment=");
    let words = lines.iter().filter_map(|line| words(line).ok()).flat_map(|(words, _)| words);
    let variable =
        |word: String| word.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    words.filter_map(variable).collect()
}

/// The variables of k3s' unit. They may hold secrets.
pub(crate) struct Variables {
    /// The unit's own come first.
    all: Vec<(String, String)>,
    /// How many of them are the unit's own.
    own: usize,
}

impl Variables {
    /// Those of the unit, and of its [`environment_files`] with these texts.
    pub(crate) fn new(unit: &str, files: &[String]) -> Self {
        let mut all = own_variables(unit);
        let own = all.len();
        all.extend(files.iter().flat_map(|text| file_variables(text)));
        Self { all, own }
    }

    /// The value that counts: the last one, of a file before the unit's own.
    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        self.all.iter().rfind(|(of, _)| of == name).map(|(_, value)| value.as_str())
    }

    /// What k3s gives its containerd beside the variables of [`environment_files`] (`containerd.Run`): the unit's own, those with the prefix
    /// `CONTAINERD_` without it, and the search path around which k3s puts its programs. A token is of no use to containerd.
    pub(crate) fn of_containerd(&self, data_dir: &str) -> Vec<(String, String)> {
        let mut found: Vec<(String, String)> = Vec::new();
        let mut add = |name: &str, value: &str| {
            found.retain(|(of, _)| of != name);
            found.push((name.to_owned(), value.to_owned()));
        };
        for (name, value) in self.all.iter().take(self.own) {
            if name != PATH && !name.starts_with(CONTAINERD_PREFIX) && !name.starts_with("K3S_") {
                // A file's counts more.
                add(name, self.value(name).unwrap_or(value));
            }
        }
        for (name, value) in &self.all {
            let name = name.strip_prefix(CONTAINERD_PREFIX).filter(|name| !["", LOG_LEVEL].contains(name));
            if let Some(name) = name {
                add(name, value);
            }
        }
        if !found.iter().any(|(name, _)| name == PATH)
            && let Some(path) = self.value(PATH)
        {
            found.push((PATH.to_owned(), search_path(data_dir, path)));
        }
        found
    }

    /// The level of containerd's log. One of other characters could be more than one word of a command.
    fn containerd_log_level(&self) -> Option<&str> {
        let level = self.value(&format!("{CONTAINERD_PREFIX}{LOG_LEVEL}"))?;
        Some(level).filter(|level| !level.is_empty() && level.bytes().all(|c| c.is_ascii_alphabetic()))
    }
}

/// Variables of k3s' containerd alone have it before their names.
const CONTAINERD_PREFIX: &str = "CONTAINERD_";
/// The one of them that becomes a flag.
const LOG_LEVEL: &str = "LOG_LEVEL";
const PATH: &str = "PATH";
/// systemd's, for units without one of their own.
const PATH_DEFAULT: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The search path of what k3s starts (`stageAndRun`).
fn search_path(data_dir: &str, path: &str) -> String {
    let programs = format!("{data_dir}/data/current/bin");
    format!("{programs}:{path}:{programs}/aux")
}

/// The text of a file of variables (`EnvironmentFile=`).
pub(crate) fn variables_file(variables: &[(String, String)]) -> String {
    let mut text = format!("{MADE}\n");
    for (name, value) in variables {
        let mut quoted = String::new();
        for c in value.chars() {
            if ESCAPED.contains(c) {
                quoted.push('\\');
            }
            quoted.push(c);
        }
        let _ = writeln!(text, "{name}=\"{quoted}\"");
    }
    text
}

/// What a backslash stands before between double quotes, in such a file (`SHELL_NEED_ESCAPE`).
const ESCAPED: &str = "\"\\`$";

/// The variables of such a file, as systemd reads it (`parse_env_file_internal`).
fn file_variables(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let line = rest.split('\n').next().unwrap_or_default();
        rest = match line.split_once('=') {
            Some((name, _)) if !line.starts_with(['#', ';']) => {
                let (value, behind) = file_value(&rest[name.len() + 1..]);
                found.push((name.trim_end().to_owned(), value));
                behind
            }
            _ => &rest[line.len()..],
        };
        rest = rest.trim_start();
    }
    found
}

/// The value at the beginning of the text, and what is behind it. Of quoted and unquoted parts only the first ones count as such: a quote
/// within an unquoted part stands for itself.
fn file_value(text: &str) -> (String, &str) {
    let (mut value, mut quote, mut is_unquoted) = (String::new(), None, false);
    // Its length without the spaces at its end.
    let mut length = 0;
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match (quote, c) {
            (None, '\n') => {
                value.truncate(length);
                return (value, &text[at..]);
            }
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') if !is_unquoted => quote = Some(c),
            (None | Some('"'), '\\') => {
                is_unquoted = quote.is_none();
                match chars.next() {
                    // The line goes on.
                    None | Some((_, '\n')) => {}
                    Some((_, escaped)) => {
                        if quote.is_some() && !ESCAPED.contains(escaped) {
                            value.push('\\');
                        }
                        value.push(escaped);
                        length = value.len();
                    }
                }
            }
            (None, c) if c.is_ascii_whitespace() => {
                if is_unquoted {
                    value.push(c);
                }
            }
            (_, c) => {
                is_unquoted = quote.is_none();
                value.push(c);
                length = value.len();
            }
        }
    }
    value.truncate(length);
    (value, "")
}

/// A path that both units can name as it is.
pub(crate) fn is_plain(path: &str) -> bool {
    let fits = |c: u8| c.is_ascii_alphanumeric() || b"/._-".contains(&c);
    path.starts_with('/') && path.bytes().all(fits)
}

/// Of [`CONTAINERD_UNIT`]: k3s' containerd as `k3s agent` starts it (`getContainerdArgs`), with `data_dir` below which k3s is, and with the
/// variables of k3s' unit: of its files, and in `file` those of [`Variables::of_containerd`], if there are any. It is read by everybody.
pub(crate) fn containerd_unit(data_dir: &str, unit: &str, variables: &Variables, file: &str) -> String {
    let programs = format!("{data_dir}/data/current/bin");
    let mut text = format!(
        "{MADE}\n[Unit]\nDescription=containerd of k3s, without k3s\nAfter=network.target\nBefore={AGENT_UNIT}\n\
         StartLimitIntervalSec=0\n\n[Service]\nType=notify\n"
    );
    for file in environment_files(unit) {
        let _ = writeln!(text, "EnvironmentFile={file}");
    }
    // Last: what two files have counts as the last one has it.
    if !variables.of_containerd(data_dir).is_empty() {
        let _ = writeln!(text, "EnvironmentFile=-{file}");
    }
    let path = search_path(data_dir, PATH_DEFAULT);
    let level =
        variables.containerd_log_level().map(|level| format!(" --log-level {level}")).unwrap_or_default();
    let _ = write!(
        text,
        "Environment={PATH}={path}\n\
         ExecStartPre=-/sbin/modprobe overlay\n\
         ExecStart={programs}/containerd -c {data_dir}/agent/etc/containerd/config.toml -a {K3S_CONTAINERD} \
         --state /run/k3s/containerd --root {data_dir}/agent/containerd{level}\n\
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

/// What `cmdDel` of flannel's plugin looks for in its directory: a file with the ID of the pod's sandbox as its name, and the configuration
/// of the plugin that it has called (`saveScratchNetConf`). `cached` is libcni's file of a pod, with the configuration that it was added to
/// its network by; `None`: that was flannel's plugin itself, or another one.
pub(crate) fn of_flannels_plugin(cached: &[u8]) -> Option<(String, String)> {
    let cached: Value = serde_json::from_slice(cached).ok()?;
    let id = cached["containerId"].as_str()?;
    let is_id = !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let list: Value =
        serde_json::from_slice(&BASE64_STANDARD.decode(cached["config"].as_str()?).ok()?).ok()?;
    let mut bridge = list["plugins"].get(0)?.clone();
    if !is_id || bridge["type"] != "bridge" {
        return None;
    }
    for field in ["cniVersion", "name"] {
        bridge[field] = list.get(field)?.clone();
    }
    Some((id.to_owned(), bridge.to_string()))
}

/// The certificate and the key of a file of smolet's, in two files as k3s has them, when it holds longer than the certificate of k3s,
/// `of_k3s`. `None`: k3s' counts, or smolet's cannot be used.
pub(crate) fn renewed(own: &[u8], of_k3s: &[u8]) -> Option<(String, String)> {
    let until = usable(own).ok()?.until;
    let known = certificates(of_k3s).and_then(|chain| validity(chain.first()?));
    if known.is_some_and(|known| known.until >= until) {
        return None;
    }
    Some(split_key(&String::from_utf8_lossy(own)))
}

/// The certificates in a text with blocks of PEM, and the keys (`splitCertKeyPEM`). What stands between blocks is left out.
fn split_key(pem: &str) -> (String, String) {
    let (mut certificates, mut keys) = (String::new(), String::new());
    let mut is_key = None;
    for line in pem.lines() {
        if let Some(label) = line.strip_prefix("-----BEGIN ") {
            is_key = Some(label.contains("PRIVATE KEY"));
        }
        let Some(is_in_key) = is_key else { continue };
        let text = if is_in_key { &mut keys } else { &mut certificates };
        text.push_str(line);
        text.push('\n');
        if line.starts_with("-----END ") {
            is_key = None;
        }
    }
    (certificates, keys)
}

/// Chains of kube-proxy, of kube-router's network policies and of flannel. Those stay of which smolet has the same.
fn is_of_k3s(chain: &str) -> bool {
    const SHARED: [&str; 4] =
        ["KUBE-FIREWALL", "KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY", iptables::FORWARD];
    (chain.starts_with("KUBE-") || chain.starts_with("FLANNEL-")) && !SHARED.contains(&chain)
}

/// The comment of flannel's rules that masquerade, as `iptables-save` prints it.
pub(crate) const FLANNEL_MASQUERADE: &str = "\"flanneld masq\"";

/// Comments of their rules in the kernel's own chains.
const COMMENTS: [&str; 3] = [
    FLANNEL_MASQUERADE,
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
    use crate::x509::self_signed;

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
        let reset = format!("{UNIT}EnvironmentFile=\nEnvironmentFile=/etc/%p/%%N/%n\n");
        assert_eq!(environment_files(&reset), ["/etc/k3s-agent/%%N/k3s-agent.service"]);
        let unit = format!(
            "{UNIT}Environment=A=b \"K3S_TOKEN=a b\" \\\n  K3S_URL=https://a\nEnvironment=K3S_URL=https://b%%\nEnvironment='N=%N'\n"
        );
        let own = Variables::new(&unit, &[]);
        let of = |name| own.value(name);
        assert_eq!((of("A"), of("K3S_TOKEN"), of("N")), (Some("b"), Some("a b"), Some("k3s-agent")));
        assert_eq!((of("K3S_URL"), of("K3S"), of("")), (Some("https://b%"), None, None));
        // A file counts more, and of files the last one.
        let files = ["K3S_URL=https://c\nA=c\n", "A=d"].map(str::to_owned);
        let all = Variables::new(&unit, &files);
        assert_eq!((all.value("K3S_URL"), all.value("A")), (Some("https://c"), Some("d")));
        let reset = Variables::new(&format!("{unit}Environment=\nEnvironment=C=d\n"), &[]);
        assert_eq!((reset.value("A"), reset.value("C")), (None, Some("d")));
    }

    #[test]
    fn a_file_of_variables_is_read_as_systemd_reads_it() {
        let file = "# A=comment\n; A=comment\nK3S_TOKEN='a b'\nK3S_URL=https://10.0.0.1:6443\nno variable\n  K3S_NODE_NAME = \"gw\"\nE=\n\
                    SPACES=  a b  \nWITHIN=a'b' \"c\"\nPARTS='a'\"'\"'b'\nESCAPED=\"\\\"\\$\\n\"\nSINGLE='\\$'\nBARE=a\\ \\\\\n\
                    LONG=a\\\nb\nTWO=\"a\nb\"\nLAST=z";
        let expected = [
            ("K3S_TOKEN", "a b"),
            ("K3S_URL", "https://10.0.0.1:6443"),
            ("K3S_NODE_NAME", "gw"),
            ("E", ""),
            ("SPACES", "a b"),
            ("WITHIN", "a'b' \"c\""),
            ("PARTS", "a'b"),
            ("ESCAPED", "\"$\\n"),
            ("SINGLE", "\\$"),
            ("BARE", "a \\"),
            ("LONG", "ab"),
            ("TWO", "a\nb"),
            ("LAST", "z"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(file_variables(file), expected);
        // What is written is read as it was.
        assert_eq!(file_variables(&variables_file(&expected)), expected);
        for odd in ["", "=", "A", "A='", "A=\"\\", "A=\\", "\n\n#"] {
            assert!(file_variables(odd).len() < 2, "{odd}");
        }
    }

    #[test]
    fn k3s_containerd_has_the_variables_that_k3s_gives_it() {
        let of = |unit: &str, file: &str| {
            let variables = Variables::new(unit, &[file.to_owned()]);
            let text = containerd_unit("/k", unit, &variables, "/etc/own.env");
            (variables.of_containerd("/k"), text)
        };
        let (none, text) = of(UNIT, "K3S_TOKEN=secret\nHTTPS_PROXY=http://u:secret@a\n");
        assert!(none.is_empty() && !text.contains("own.env") && !text.contains("--log-level"), "{text}");
        assert!(text.contains("\nEnvironment=PATH=/k/data/current/bin:/usr/local/sbin:"), "{text}");
        let unit = format!(
            "{UNIT}Environment=HTTP_PROXY=http://u:secret@b \"NO_PROXY=a, b\" K3S_TOKEN=secret CONTAINERD_NO_PROXY=c PATH=/opt\n"
        );
        let file = "CONTAINERD_HTTPS_PROXY='http://u:secret@p'\nCONTAINERD_LOG_LEVEL=warn\nCONTAINERD_=x\nCONTAINERD_NO_PROXY=d\n";
        let (variables, text) = of(&unit, file);
        let expected = [
            ("HTTP_PROXY", "http://u:secret@b"),
            ("HTTPS_PROXY", "http://u:secret@p"),
            ("NO_PROXY", "d"),
            ("PATH", "/k/data/current/bin:/opt:/k/data/current/bin/aux"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(variables, expected);
        let files: Vec<&str> = text.lines().filter(|line| line.starts_with("EnvironmentFile=")).collect();
        assert_eq!((files.len(), files[2]), (3, "EnvironmentFile=-/etc/own.env"), "{text}");
        let own: Vec<&str> = text.lines().filter(|line| line.starts_with("Environment=")).collect();
        assert!(matches!(own[..], [path] if path.starts_with("Environment=PATH=")), "{text}");
        assert!(!text.contains("secret"), "everybody reads it: {text}");
        assert!(text.contains(" --root /k/agent/containerd --log-level warn\n"), "{text}");
        // A file counts more than the unit, for what both have.
        let (variables, _) = of(&unit, "HTTP_PROXY=http://c\n");
        assert!(variables.contains(&("HTTP_PROXY".to_owned(), "http://c".to_owned())), "{variables:?}");
        // The prefix counts more, and a level of two words is none.
        let (variables, text) = of(&unit, "CONTAINERD_PATH=/only\nCONTAINERD_LOG_LEVEL='debug -c x'\n");
        assert!(variables.contains(&("PATH".to_owned(), "/only".to_owned())), "{variables:?}");
        assert!(!text.contains("--log-level"), "{text}");
    }

    #[test]
    fn k3s_containerd_is_started_as_k3s_does() {
        let of_k3s = "[Service]\nEnvironmentFile=-/etc/k3s.env\n";
        let variables = Variables::new(of_k3s, &[]);
        let unit = containerd_unit("/var/lib/rancher/k3s", of_k3s, &variables, "/etc/own.env");
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

    #[test]
    fn k3s_gets_the_certificates_that_smolet_has_renewed() {
        let ((old, old_key), (new, new_key)) = (self_signed(2040), self_signed(2041));
        let authority = self_signed(2050).0;
        // As smolet has it: behind the mark of what it is for, with the authority between.
        let own = format!("# system:node:gw 10.0.0.1\n{new}{authority}{new_key}");
        let expected = Some((format!("{new}{authority}"), new_key.clone()));
        for (of_k3s, expected) in [(&*old, &expected), ("", &expected), ("none\n", &expected), (&*new, &None)]
        {
            assert_eq!(&renewed(own.as_bytes(), of_k3s.as_bytes()), expected);
        }
        let of_smolet = format!("{old}\n{old_key}");
        assert_eq!(renewed(of_smolet.as_bytes(), new.as_bytes()), None, "k3s' holds longer");
        for unusable in [format!("{new}{old_key}"), new.clone(), new_key, String::new()] {
            assert_eq!(renewed(unusable.as_bytes(), old.as_bytes()), None, "{unusable}");
        }
    }

    #[test]
    fn flannels_plugin_is_told_of_the_pods_that_smolet_started() {
        let cached = |id: &str, list: &str| {
            let config = BASE64_STANDARD.encode(list);
            format!(
                r#"{{"kind":"cniCacheV1","containerId":"{id}","config":"{config}","ifName":"eth0","networkName":"cbr0"}}"#
            )
        };
        let own = ["10.42.1.0/24"].map(|range| crate::model::Network::parse(range).unwrap());
        let list = crate::flannel::conflist(&own, &own, 1450, true);
        let (id, bridge) = of_flannels_plugin(cached("abc1", &list).as_bytes()).unwrap();
        let bridge: Value = serde_json::from_str(&bridge).unwrap();
        assert_eq!((&*id, &bridge["type"], &bridge["name"]), ("abc1", &"bridge".into(), &"cbr0".into()));
        assert_eq!((&bridge["cniVersion"], &bridge["ipam"]["type"]), (&"0.4.0".into(), &"host-local".into()));
        let flannel =
            r#"{"cniVersion":"1.0.0","name":"cbr0","plugins":[{"type":"flannel"},{"type":"portmap"}]}"#;
        for other in [cached("abc1", flannel), cached("../abc1", &list), cached("abc1", "{}"), String::new()]
        {
            assert_eq!(of_flannels_plugin(other.as_bytes()), None, "{other}");
        }
    }
}
