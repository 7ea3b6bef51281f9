//! `smolet k3s takeover`: smolet in the place of `k3s agent` on its own board, and back (`k3s_back`). Pods run on both ways: they belong
//! to k3s' containerd, which goes on as a unit of its own.
//!
//! Everything that can be wrong is looked at before anything is changed. When smolet does not come up, or the node is not one of its
//! cluster soon, k3s agent is started again. A call that is interrupted is continued by the next one: the drop-in is written last, and
//! removed last.

use std::fs;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::client::{self, Refusal};
use super::k3s_back::{end_own_rules, give_back, return_to_k3s};
use super::{agent, fail, k3s_flags, print, say};
use crate::config::Config;
use crate::filesystem::{read_linked, replace};
use crate::flannel;
use crate::k3s::check_credentials;
use crate::k3s::takeover::{
    AGENT_UNIT, AgentCommand, CONTAINERD_UNIT, FLANNEL_MASQUERADE, Variables, agent_command, containerd_unit,
    drop_in, environment_files, has_systemd_cgroups, is_plain, variables_file, without_k3s,
};
use crate::kube::ServerUrl;
use crate::limits::{
    CONFIG_FILE_BYTES_MAX, TAKEOVER_CONNECT_TIME, TAKEOVER_FILE_BYTES_MAX, TAKEOVER_JOIN_TIME,
    TAKEOVER_LOOK_PERIOD, TAKEOVER_RESTARTS, TAKEOVER_RULES_BYTES_MAX, TAKEOVER_RULES_TIME,
    TAKEOVER_UNIT_TIME,
};
use crate::metrics::NODE_REGISTERED;
use crate::netlink::{Netlink, Protocol};
use crate::network_policy;
use crate::nftables::{self, Batch, Family};
use crate::paths::K3S_CONTAINERD;
use crate::program;
use crate::service_proxy;

/// Units of the machine's owner.
const UNITS: &str = "/etc/systemd/system";
/// Below [`UNITS`]: makes k3s' unit run smolet.
pub(super) const DROP_IN: &str = "k3s-agent.service.d/smolet.conf";
/// Below [`UNITS`]: the token that the unit has in its command. The drop-in is read by everybody, and so are processes' arguments.
pub(super) const TOKEN: &str = "k3s-agent.service.d/smolet.token";
/// Below [`UNITS`]: variables of k3s' containerd, root's alone, because a proxy's URL may have a password.
pub(super) const VARIABLES: &str = "k3s-containerd.service.env";
/// The unit of smolet's package.
const OWN_UNIT: &str = "smolet.service";
/// k3s' directory, where nothing else is said.
const K3S_DIR: &str = "/var/lib/rancher/k3s";
/// Root's alone: what a program prints, or reads.
const CAPTURE: &str = "/run/smolet/takeover";
/// The kubelet's directory, with the volumes of the pods that run.
const KUBELET_DIR: &str = "/var/lib/kubelet";

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// takeover: take the place of k3s agent on this board. Its pods run on, the node keeps its name, password, certificates and
    /// flags
    #[arg(value_name = "COMMAND", value_parser = ["takeover"])]
    _command: String,
    /// Give the board back to k3s agent; its pods run on
    #[arg(long)]
    back: bool,
    /// Check everything and print the files that would be written, and change nothing
    #[arg(long, conflicts_with = "back")]
    dry_run: bool,
}

pub(super) fn run(args: &Args) -> ExitCode {
    let done = if args.back { give_back() } else { take_over(args.dry_run) };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => fail(&why),
    }
}

/// A path below the directory of units.
pub(super) fn units(name: &str) -> PathBuf {
    Path::new(UNITS).join(name)
}

/// What both ways need.
pub(super) fn check_machine() -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("k3s takeover: must be run as root".to_owned());
    }
    if !Path::new("/run/systemd/system").is_dir() {
        return Err("k3s takeover: systemd does not run this machine, and other service managers are not supported; stop \
                    k3s agent and start smolet agent with its flags by hand"
            .to_owned());
    }
    Ok(())
}

/// The text of k3s' unit, and its command.
///
/// # Errors
/// This board has no k3s agent that smolet could take over from.
pub(super) fn agent_unit() -> Result<(String, AgentCommand), String> {
    let shown = || captured(&format!("systemctl cat {AGENT_UNIT}"), TAKEOVER_FILE_BYTES_MAX);
    // After a call that was interrupted systemd may name a drop-in that is gone, and shows no unit then.
    let unit = shown()
        .or_else(|_| systemctl(&["daemon-reload"]).and_then(|_| shown()))
        .map_err(|_| format!("{AGENT_UNIT} is not there: this board has no k3s agent to take over from"))?;
    for question in ["is-active", "is-enabled"] {
        if systemctl(&[question, OWN_UNIT]).is_ok() {
            return Err(format!(
                "{OWN_UNIT} runs or is enabled, and a board has one agent: systemctl disable --now {OWN_UNIT}"
            ));
        }
    }
    let command = agent_command(&unit)?;
    if fs::canonicalize(&command.program).is_ok_and(|program| program.ends_with("smolet")) {
        return Err(format!("{AGENT_UNIT} runs smolet already: {} leads to it", command.program));
    }
    Ok((unit, command))
}

/// The variables of k3s' unit, of its files too.
fn variables_of(unit: &str) -> Variables {
    let text = |file: &String| read_text(file.trim_start_matches('-'), TAKEOVER_FILE_BYTES_MAX);
    Variables::new(unit, &environment_files(unit).iter().map(text).collect::<Vec<_>>())
}

/// The settings with which smolet starts by these flags of `k3s agent`, and k3s' directory.
fn settings(flags: &[String], known: impl Fn(&str) -> Option<String>) -> Result<(Config, String), String> {
    let translated = agent::translate(flags, known)?;
    let args = agent::args_of(&translated)?;
    let config = Config::load(&args.flags, Some(&args.socket.socket)).map_err(|error| error.to_string())?;
    check_credentials(&config)?;
    Ok((config, translated.data_dir))
}

/// A board that runs `k3s agent`, and the files that make it run smolet.
struct Board {
    /// Text of the drop-in.
    drop_in: String,
    /// The token of the unit's command, if it is the one that counts.
    token: Option<String>,
    /// Text of the unit of k3s' containerd; `None`: the node uses another runtime.
    containerd: Option<String>,
    /// Variables of k3s' containerd that its unit does not show.
    variables: Vec<(String, String)>,
    /// `agent` in k3s' directory.
    agent_dir: PathBuf,
    /// The kubelet's directory.
    root_dir: PathBuf,
    /// smolet's local socket.
    socket: PathBuf,
    /// `https://HOST:PORT` of the server that the flags name; empty: none.
    server: String,
    /// What of the flags has no effect.
    warnings: Vec<String>,
}

impl Board {
    /// Looks at everything that is needed.
    fn find() -> Result<Self, String> {
        let (unit, command) = agent_unit()?;
        let variables = variables_of(&unit);
        let known = |name: &str| variables.value(name).map(str::to_owned);
        let first = agent::translate(&command.flags, known)?;
        let given =
            |flag: &str| first.run.iter().rev().find_map(|arg| arg.strip_prefix(flag)?.strip_prefix('='));

        let data_dir = first.data_dir.clone();
        let agent_dir = Path::new(&data_dir).join("agent");
        let mut more = Vec::new();
        let has_runtime = given("--runtime-endpoint").is_some_and(|of| !of.ends_with(K3S_CONTAINERD));
        let config = agent_dir.join("etc/containerd/config.toml");
        let containerd = if has_runtime {
            None
        } else {
            if !is_plain(&data_dir) {
                return Err(format!("--data-dir={data_dir}: must be a path of letters, digits, / . _ and -"));
            }
            let program = Path::new(&data_dir).join("data/current/bin/containerd");
            for needed in [&program, &config] {
                fs::metadata(needed).map_err(|error| {
                    format!("{}: {error}; k3s agent has not run its containerd here", needed.display())
                })?;
            }
            more.push(format!("--container-runtime-endpoint={K3S_CONTAINERD}"));
            if given("--cgroup-driver").is_none()
                && has_systemd_cgroups(&read_text(&config.to_string_lossy(), TAKEOVER_FILE_BYTES_MAX))
            {
                more.push("--kubelet-arg=cgroup-driver=systemd".to_owned());
            }
            let file = units(VARIABLES).display().to_string();
            Some(containerd_unit(&data_dir, &unit, &variables, &file))
        };
        if given("--root-dir").is_none() {
            more.push(format!("--kubelet-arg=root-dir={KUBELET_DIR}"));
        }
        let root_dir = PathBuf::from(given("--root-dir").unwrap_or(KUBELET_DIR));
        let program = std::env::current_exe().map_err(|error| format!("smolet's own path: {error}"))?;
        let (config, _) = settings(&[&*command.flags, &*more].concat(), known)?;
        let are_secret = k3s_flags::are_secret(&command.flags)?;
        let token = given("--token").filter(|_| are_secret.contains(&true)).map(str::to_owned);
        if token.is_some() {
            more.push(format!("--token-file={}", units(TOKEN).display()));
        }
        let command = command.without(&are_secret);
        Ok(Self {
            token,
            drop_in: drop_in(&program.to_string_lossy(), &command, &more),
            variables: containerd.as_ref().map(|_| variables.of_containerd(&data_dir)).unwrap_or_default(),
            containerd,
            agent_dir,
            root_dir,
            server: config.k3s.map(|k3s| k3s.server).unwrap_or_default(),
            socket: config.socket,
            warnings: first.warnings,
        })
    }

    fn write_units(&self) -> Result<(), String> {
        if let Some(text) = &self.containerd {
            put(&units(CONTAINERD_UNIT), text.as_bytes(), 0o644)?;
        }
        if !self.variables.is_empty() {
            put(&units(VARIABLES), variables_file(&self.variables).as_bytes(), 0o600)?;
        }
        if let Some(token) = &self.token {
            put(&units(TOKEN), token.as_bytes(), 0o600)?;
        }
        put(&units(DROP_IN), self.drop_in.as_bytes(), 0o644)
    }

    /// Gives smolet what the node has of its cluster: its certificates count also where its token has expired.
    fn import_identity(&self) -> Result<(), String> {
        let to = self.root_dir.join("k3s");
        for (name, parts) in [
            ("server-ca.crt", ["server-ca.crt"].as_slice()),
            ("client-ca.crt", &["client-ca.crt"]),
            ("serving-kubelet.pem", &["serving-kubelet.crt", "serving-kubelet.key"]),
            ("client-kubelet.pem", &["client-kubelet.crt", "client-kubelet.key"]),
        ] {
            let read = |part: &&str| read_linked(&self.agent_dir.join(part), CONFIG_FILE_BYTES_MAX).ok();
            // Without them the node joins with its token.
            let Some(parts) = parts.iter().map(read).collect::<Option<Vec<_>>>() else { continue };
            put(&to.join(name), &parts.join(&b'\n'), 0o600)?;
        }
        Ok(())
    }
}

/// A board that smolet has, by its drop-in.
pub(super) struct Taken {
    /// smolet, as the unit names it.
    program: String,
    /// `agent` in k3s' directory.
    pub(super) agent_dir: PathBuf,
    /// The kubelet's directory.
    pub(super) root_dir: PathBuf,
    socket: PathBuf,
    server: String,
}

impl Taken {
    /// Reads the drop-in; systemd need not know it yet.
    pub(super) fn find() -> Result<Self, String> {
        let command = agent_command(&read_text(&units(DROP_IN).to_string_lossy(), TAKEOVER_FILE_BYTES_MAX))?;
        let unit = captured(&format!("systemctl cat {AGENT_UNIT}"), TAKEOVER_FILE_BYTES_MAX);
        let variables = variables_of(&unit.unwrap_or_default());
        let (config, data_dir) = settings(&command.flags, |name| variables.value(name).map(str::to_owned))?;
        Ok(Self {
            program: command.program,
            agent_dir: Path::new(&data_dir).join("agent"),
            root_dir: config.root_dir,
            socket: config.socket,
            server: config.k3s.map(|k3s| k3s.server).unwrap_or_default(),
        })
    }

    /// One with all its files below that directory.
    #[cfg(test)]
    pub(super) fn below(dir: &Path) -> Self {
        Self {
            program: String::new(),
            agent_dir: dir.join("agent"),
            root_dir: dir.join("kubelet"),
            socket: dir.join("smolet.sock"),
            server: String::new(),
        }
    }

    /// The unit is active, and what it runs is not k3s agent any more.
    fn runs_smolet(&self) -> bool {
        let pid = systemctl(&["show", "--property=MainPID", "--value", AGENT_UNIT]).unwrap_or_default();
        let command = read_text(&format!("/proc/{}/cmdline", pid.trim()), TAKEOVER_FILE_BYTES_MAX);
        is_active(AGENT_UNIT) && command.split('\0').next() == Some(self.program.as_str())
    }
}

fn take_over(is_dry: bool) -> Result<(), String> {
    check_machine()?;
    let drop_in = units(DROP_IN);
    if drop_in.exists() {
        return take_over_again(is_dry);
    }
    let board = Board::find()?;
    for warning in &board.warnings {
        say(warning);
    }
    if is_dry {
        let token = board.token.map(|_| "(the token of the unit; root's alone)\n".to_owned());
        let names: Vec<&str> = board.variables.iter().map(|(name, _)| name.as_str()).collect();
        let variables = (!names.is_empty()).then(|| format!("({}; root's alone)\n", names.join(", ")));
        let files = [
            (units(CONTAINERD_UNIT), board.containerd),
            (units(VARIABLES), variables),
            (drop_in, Some(board.drop_in)),
            (units(TOKEN), token),
        ];
        let shown = files.iter().filter_map(|(path, text)| Some((path.display(), text.as_ref()?)));
        let shown: Vec<String> = shown.map(|(path, text)| format!("# {path}\n{text}")).collect();
        print(Ok(shown.join("\n")));
        return Ok(());
    }
    board.import_identity()?;
    board.write_units().map_err(|why| give_up(&why))?;
    take_place(board.containerd.is_some(), &board.socket, &board.server)
}

/// Finds the board taken over, or a call that was interrupted on its way there, which is continued.
fn take_over_again(is_dry: bool) -> Result<(), String> {
    let drop_in = units(DROP_IN);
    let why_not = |why: String| {
        format!("{}: {why}; smolet k3s takeover --back gives the board back", drop_in.display())
    };
    let taken = Taken::find().map_err(why_not)?;
    if taken.runs_smolet() {
        let by = drop_in.display();
        if is_dry {
            say(&format!("smolet has this board already, by {by}"));
            return Ok(());
        }
        say(&format!("smolet has this board already, by {by}; its rules are looked at again"));
        return end_rules();
    }
    if is_dry {
        say(
            "smolet k3s takeover was interrupted here; smolet k3s takeover goes on, and --back gives the board back",
        );
        return Ok(());
    }
    say("smolet k3s takeover was interrupted here, and goes on");
    take_place(units(CONTAINERD_UNIT).exists(), &taken.socket, &taken.server)
}

/// Starts smolet in the place of k3s agent, by the files that are written.
fn take_place(has_containerd: bool, socket: &Path, server: &str) -> Result<(), String> {
    // Whoever cannot be reached now is not to be reached by smolet either.
    let is_reachable = is_reachable(server);
    say(&format!(
        "stopping k3s agent and starting smolet; waiting until its units are active, at most {} s for each, and until the node is \
         registered, at most {} s more; if this is interrupted, smolet k3s takeover, called again, goes on",
        TAKEOVER_UNIT_TIME.as_secs(),
        TAKEOVER_JOIN_TIME.as_secs()
    ));
    let joined = change_agent(has_containerd).and_then(|()| await_node(socket, is_reachable));
    let is_registered = joined.map_err(|why| give_up(&why))?;
    say("smolet runs in the place of k3s agent; its pods run on");
    if !is_registered {
        say(&format!(
            "the server {server} could not be reached before either: the node joins when it can be; journalctl -u {AGENT_UNIT} tells"
        ));
    }
    end_rules()
}

/// Starts k3s agent again, and says so behind the reason.
fn give_up(why: &str) -> String {
    if let Err(error) = return_to_k3s() {
        return format!("{why}; {error}");
    }
    if let Err(error) = end_own_rules() {
        say(&error);
    }
    format!("{why}; k3s agent runs again")
}

/// Something listens at the server's address.
fn is_reachable(server: &str) -> bool {
    let addresses = ServerUrl::parse(server).ok().and_then(|url| url.authority().to_socket_addrs().ok());
    let mut addresses = addresses.into_iter().flatten();
    addresses.any(|address| TcpStream::connect_timeout(&address, TAKEOVER_CONNECT_TIME).is_ok())
}

/// What smolet's local socket says of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
enum NodeState {
    /// smolet does not answer, or has no runtime yet: why.
    Down(String),
    /// It runs pods, and the node is not registered in its cluster yet.
    Unregistered,
    Registered,
}

/// What the command does about it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Wait,
    /// The board is smolet's; whether the node is registered.
    Done(bool),
    /// k3s agent is to have it again: why.
    GiveBack(String),
}

impl NodeState {
    fn ask(socket: &Path) -> Self {
        match client::ask_for(socket, "/metrics") {
            Ok(page) => Self::of_page(&page),
            Err(Refusal::Said(why) | Refusal::Unreachable(why)) => Self::Down(why),
        }
    }

    /// A node without a cluster has no such line, and nothing to be registered in.
    fn of_page(page: &str) -> Self {
        let mut lines = page.lines();
        let found = lines.find_map(|line| line.strip_prefix(NODE_REGISTERED)?.strip_prefix(' '));
        if found == Some("0") { Self::Unregistered } else { Self::Registered }
    }

    /// PURE.
    ///
    /// | smolet | the server could be reached before | in time | later |
    /// |---|---|---|---|
    /// | has no runtime | either | wait | give the board back |
    /// | is not registered | yes | wait | give the board back |
    /// | is not registered | no | done | done |
    /// | is registered | either | done | done |
    fn step(self, is_reachable: bool, is_late: bool) -> Step {
        match self {
            Self::Registered => Step::Done(true),
            Self::Unregistered if !is_reachable => Step::Done(false),
            Self::Unregistered | Self::Down(_) if !is_late => Step::Wait,
            Self::Unregistered => {
                let (time, unit) = (TAKEOVER_JOIN_TIME.as_secs(), AGENT_UNIT);
                Step::GiveBack(format!(
                    "smolet did not register the node in its cluster within {time} s; journalctl -u {unit} says why"
                ))
            }
            Self::Down(why) => Step::GiveBack(format!("smolet runs no pods: {why}")),
        }
    }
}

/// Waits until smolet, whose unit is active, has its runtime and its Node. True when it has the Node, too.
fn await_node(socket: &Path, is_reachable: bool) -> Result<bool, String> {
    let until = Instant::now() + TAKEOVER_JOIN_TIME;
    loop {
        match NodeState::ask(socket).step(is_reachable, Instant::now() >= until) {
            Step::Wait => std::thread::sleep(TAKEOVER_LOOK_PERIOD),
            Step::Done(is_registered) => return Ok(is_registered),
            Step::GiveBack(why) => return Err(why),
        }
    }
}

/// Ends k3s agent, and with it its containerd; starts that one by itself, and smolet.
fn change_agent(has_containerd: bool) -> Result<(), String> {
    systemctl(&["daemon-reload"])?;
    systemctl(&["stop", AGENT_UNIT])?;
    if has_containerd {
        start(CONTAINERD_UNIT)?;
    }
    start(AGENT_UNIT)
}

/// Removes the rules of kube-proxy, kube-router and flannel of k3s once smolet's are there.
fn end_rules() -> Result<(), String> {
    let tools = tools();
    let found = rules_of_k3s(&tools);
    if found.is_empty() {
        return Ok(());
    }
    if !wait(TAKEOVER_RULES_TIME, || lacking(&found, exists).is_none()) {
        let what = lacking(&found, exists).unwrap_or("rules");
        say(&format!(
            "the rules of k3s' kube-proxy, kube-router and flannel stay, because smolet has no {what} from the server yet; smolet \
             k3s takeover removes them when it has"
        ));
        return Ok(());
    }
    for program in rule_programs() {
        // Again: two names may lead to the same rules.
        if let Some(script) = without_k3s(&saved(&tools, &program)) {
            restore(&tools, &program.replace("-save", "-restore"), &script)?;
        }
    }
    for (family, table) in KUBE_PROXY_TABLES {
        delete_table(family, table)?;
    }
    // Those that kube-router's rules named. Without the program there are none.
    let _ = shell(&format!(
        "{tools}; for set in $(ipset list -n | grep -E '^(inet6:)?KUBE-(SRC|DST)-'); do ipset destroy $set; done"
    ));
    say("the rules of kube-proxy, kube-router and flannel of k3s are removed; those of smolet serve");
    Ok(())
}

/// What kube-proxy has in its mode `nftables`.
const KUBE_PROXY_TABLES: [(Family, &str); 2] = [(Family::Ip, "kube-proxy"), (Family::Ip6, "kube-proxy")];
/// How [`rules_of_k3s`] shows one of them.
const KUBE_PROXY_TABLE: &str = "table kube-proxy";

/// What rules of a node are for: smolet's are in tables of its own, those of k3s in chains of iptables or in [`KUBE_PROXY_TABLES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RulesOf {
    /// kube-proxy's.
    Services,
    /// kube-router's.
    Policies,
    /// Masquerading of what pods send out of the cluster.
    Flannel,
}

impl RulesOf {
    /// Each of them.
    pub(super) const ALL: [Self; 3] = [Self::Services, Self::Policies, Self::Flannel];

    /// In sentences.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Services => "Services",
            Self::Policies => "network policies",
            Self::Flannel => "network between nodes (flannel)",
        }
    }

    /// smolet's tables.
    pub(super) fn tables(self) -> &'static [(Family, &'static str)] {
        match self {
            Self::Services => &[(Family::Ip, service_proxy::TABLE), (Family::Ip6, service_proxy::TABLE)],
            Self::Policies => &[(Family::Inet, network_policy::TABLE)],
            Self::Flannel => &flannel::TABLES,
        }
    }

    /// k3s has such rules, by [`rules_of_k3s`]. PURE.
    pub(super) fn are_k3s(self, found: &str) -> bool {
        let has = |prefix: &str| found.lines().any(|line| line.starts_with(prefix));
        match self {
            Self::Services => has(":KUBE-SERVICES ") || has(KUBE_PROXY_TABLE),
            // Also without any policy.
            Self::Policies => has(":KUBE-ROUTER-"),
            // An older one has no chain of its own.
            Self::Flannel => has(":FLANNEL-") || found.contains(FLANNEL_MASQUERADE),
        }
    }

    /// These rules of k3s do something that smolet's are needed for. PURE.
    fn are_needed(self, found: &str) -> bool {
        match self {
            Self::Services | Self::Flannel => self.are_k3s(found),
            // kube-router's of each policy, but not those that are there without one.
            Self::Policies => found.lines().any(|line| {
                line.strip_prefix(":KUBE-NWPLCY-")
                    .is_some_and(|rest| !rest.starts_with("DEFAULT ") && !rest.starts_with("COMMON "))
            }),
        }
    }
}

/// What these chains of k3s do and no table of smolet's does yet. PURE.
fn lacking(found: &str, is_there: impl Fn(Family, &str) -> bool) -> Option<&'static str> {
    let lacks = |rules: &RulesOf| {
        rules.are_needed(found) && !rules.tables().iter().any(|(family, table)| is_there(*family, table))
    };
    RulesOf::ALL.into_iter().find(lacks).map(RulesOf::name)
}

/// The rules of k3s that are there, as [`without_k3s`] removes them: without those that smolet has, too. `tools`: of [`tools`].
pub(super) fn rules_of_k3s(tools: &str) -> String {
    let mut found: String =
        rule_programs().filter_map(|program| without_k3s(&saved(tools, &program))).collect();
    if KUBE_PROXY_TABLES.iter().any(|(family, table)| exists(*family, table)) {
        found.push_str(KUBE_PROXY_TABLE);
    }
    found
}

/// Programs that print rules, of both families and kinds.
fn rule_programs() -> impl Iterator<Item = String> {
    let kinds = ["", "-nft", "-legacy"];
    ["iptables", "ip6tables"].into_iter().flat_map(move |of| kinds.map(|kind| format!("{of}{kind}-save")))
}

/// Where a shell finds these programs: the machine's own, else those of k3s.
pub(super) fn tools() -> String {
    let data_dir = || {
        let unit = captured(&format!("systemctl cat {AGENT_UNIT}"), TAKEOVER_FILE_BYTES_MAX)?;
        let variables = variables_of(&unit);
        let flags = agent_command(&unit)?.flags;
        Ok::<_, String>(agent::translate(&flags, |name| variables.value(name).map(str::to_owned))?.data_dir)
    };
    let data_dir = data_dir().ok().filter(|path| is_plain(path)).unwrap_or_else(|| K3S_DIR.to_owned());
    format!("PATH=$PATH:/usr/sbin:/sbin:{data_dir}/data/current/bin/aux")
}

/// What it prints; nothing, when it is not there.
fn saved(tools: &str, program: &str) -> String {
    captured(&format!("{tools}; {program}"), TAKEOVER_RULES_BYTES_MAX).unwrap_or_default()
}

fn restore(tools: &str, program: &str, script: &str) -> Result<(), String> {
    put(Path::new(CAPTURE), script.as_bytes(), 0o600)?;
    let done = shell(&format!("{tools}; {program} -w 5 --noflush {CAPTURE}"));
    let _ = fs::remove_file(CAPTURE);
    done.map(drop).map_err(|why| format!("{program} --noflush: {why}"))
}

/// The kernel has the table.
pub(super) fn exists(family: Family, table: &str) -> bool {
    Netlink::open(Protocol::Netfilter)
        .and_then(|mut netlink| nftables::table_exists(&mut netlink, family, table))
        .unwrap_or_default()
}

/// Deletes a table with its rules; one that is not there is no error.
pub(super) fn delete_table(family: Family, table: &str) -> Result<(), String> {
    if !exists(family, table) {
        return Ok(());
    }
    let failed = |error: std::io::Error| format!("table {table} of nftables: {error}");
    let mut batch = Batch::new(family, table);
    batch.delete_table();
    let mut netlink = Netlink::open(Protocol::Netfilter).map_err(failed)?;
    nftables::run(&mut netlink, batch).map_err(|refused| failed(refused.error))
}

/// Starts a unit, and waits until it is active: one that does not come up is tried for ever by systemd.
pub(super) fn start(unit: &str) -> Result<(), String> {
    // One that is not loaded has nothing to be reset.
    let _ = systemctl(&["reset-failed", unit]);
    systemctl(&["start", "--no-block", unit])?;
    let restarts = || {
        let shown = systemctl(&["show", "--property=NRestarts", "--value", unit]);
        shown.ok().and_then(|text| text.trim().parse::<u32>().ok()).unwrap_or_default()
    };
    wait(TAKEOVER_UNIT_TIME, || is_active(unit) || restarts() >= TAKEOVER_RESTARTS);
    if is_active(unit) {
        return Ok(());
    }
    Err(format!("{unit} does not come up; journalctl -u {unit} says why"))
}

/// systemd has the unit active.
pub(super) fn is_active(unit: &str) -> bool {
    systemctl(&["is-active", unit]).is_ok()
}

fn wait(time: Duration, is_done: impl Fn() -> bool) -> bool {
    let until = Instant::now() + time;
    loop {
        if is_done() {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(TAKEOVER_LOOK_PERIOD);
    }
}

/// The beginning of what it prints.
pub(super) fn systemctl(arguments: &[&str]) -> Result<String, String> {
    let words = arguments.join(" ");
    shell(&format!("systemctl {words}")).map_err(|why| format!("systemctl {words}: {why}"))
}

/// All that the command prints, of at most that length.
fn captured(command: &str, bytes_max: usize) -> Result<String, String> {
    put(Path::new(CAPTURE), b"", 0o600)?;
    let done = shell(&format!("{command} > {CAPTURE}"));
    let text = read_text(CAPTURE, bytes_max);
    let _ = fs::remove_file(CAPTURE);
    done.map(|_| text)
}

/// The beginning of what the command prints.
///
/// # Errors
/// The same, of one that fails or does not end in time.
fn shell(command: &str) -> Result<String, String> {
    let arguments = ["-c".to_owned(), command.to_owned()];
    let ended = program::run("sh", &arguments, TAKEOVER_UNIT_TIME, &AtomicBool::new(false));
    let ended = ended.map_err(|error| format!("sh: {error}"))?;
    match ended.status {
        Some(status) if status.success() => Ok(ended.output),
        Some(_) => Err(ended.output.trim().to_owned()),
        None => Err(format!("not finished after {} s; killed", TAKEOVER_UNIT_TIME.as_secs())),
    }
}

/// Nothing, when it cannot be read.
fn read_text(path: &str, bytes_max: usize) -> String {
    let bytes = read_linked(Path::new(path), bytes_max).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Writes a file, and its directory where there is none.
pub(super) fn put(path: &Path, bytes: &[u8], mode: u32) -> Result<(), String> {
    let made = path.parent().map_or(Ok(()), fs::create_dir_all);
    made.and_then(|()| replace(path, &path.with_extension("new"), bytes))
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(mode)))
        .map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::x509::self_signed;

    #[test]
    fn a_board_is_smolets_once_its_node_is_registered() {
        let down = NodeState::Down("no runtime".to_owned());
        let of = NodeState::of_page;
        let page = |value: u8| format!("# TYPE {NODE_REGISTERED} gauge\n{NODE_REGISTERED} {value}\n");
        assert_eq!((of(&page(0)), of(&page(1))), (NodeState::Unregistered, NodeState::Registered));
        assert_eq!(of("kubelet_running_pods 2\n"), NodeState::Registered, "it has no cluster");
        for is_reachable in [false, true] {
            for is_late in [false, true] {
                let step = |state: &NodeState| state.clone().step(is_reachable, is_late);
                assert_eq!(step(&NodeState::Registered), Step::Done(true));
                match (step(&NodeState::Unregistered), is_reachable, is_late) {
                    (Step::Done(false), false, _) | (Step::Wait, true, false) => {}
                    (Step::GiveBack(why), true, true) => assert!(why.contains("journalctl"), "{why}"),
                    other => panic!("{other:?}"),
                }
                match (step(&down), is_late) {
                    (Step::Wait, false) => {}
                    (Step::GiveBack(why), true) => assert!(why.contains("no runtime"), "{why}"),
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    #[test]
    fn a_board_without_a_token_is_known_by_its_certificate() {
        let dir = std::env::temp_dir().join(format!("smolet-without-token-{}", std::process::id()));
        let (agent, own) = (dir.join("agent"), dir.join("kubelet/k3s"));
        let flags = [
            "--server=https://10.0.0.1:6443".to_owned(),
            format!("--data-dir={}", dir.display()),
            format!("--kubelet-arg=root-dir={}", dir.join("kubelet").display()),
        ];
        let refusal = || settings(&flags, |_| None).err();
        let (certificate, key) = self_signed(2040);
        let put = |dir: &Path, name: &str, text: &str| put(&dir.join(name), text.as_bytes(), 0o600).unwrap();
        for name in ["client-kubelet.crt", "server-ca.crt"] {
            put(&agent, name, &certificate);
            assert!(refusal().unwrap().starts_with("--server: needs --token-file"), "no key is there");
        }
        put(&agent, "client-kubelet.key", &key);
        assert_eq!(refusal(), None);
        // Once it is taken over smolet has its own.
        fs::remove_dir_all(&agent).unwrap();
        assert!(refusal().is_some());
        put(&own, "server-ca.crt", &certificate);
        put(&own, "client-kubelet.pem", &format!("{certificate}{key}"));
        assert_eq!(refusal(), None);
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_server_is_reachable_while_something_listens_there() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let server = format!("https://{}", listener.local_addr().unwrap());
        assert!(is_reachable(&server));
        drop(listener);
        assert!(!is_reachable(&server) && !is_reachable(""));
    }

    #[test]
    fn rules_stay_until_all_that_they_do_is_done_by_others() {
        let usual = "*nat\n:KUBE-SERVICES - [0:0]\n:FLANNEL-POSTRTG - [0:0]\nCOMMIT\n*filter\n:KUBE-NWPLCY-DEFAULT - [0:0]\n\
                     :KUBE-NWPLCY-COMMON - [0:0]\n:KUBE-POD-FW-X - [0:0]\nCOMMIT\n";
        let with_policy = format!("{usual}:KUBE-NWPLCY-ABCDEF - [0:0]\n");
        let (services, flannel) = ((Family::Ip6, service_proxy::TABLE), flannel::TABLES[0]);
        let policies = (Family::Inet, network_policy::TABLE);
        for (found, there, expected) in [
            (usual, vec![], Some("Services")),
            (usual, vec![services], Some("network between nodes (flannel)")),
            (usual, vec![services, flannel], None),
            (&with_policy, vec![services, flannel], Some("network policies")),
            (&with_policy, vec![services, flannel, policies], None),
            ("*nat\n:CNI-HOSTPORT-DNAT - [0:0]\n", vec![], None),
            // Of an older flannel, and of kube-proxy in its mode nftables.
            (
                "*nat\n-D POSTROUTING -m comment --comment \"flanneld masq\" -j MASQUERADE\n",
                vec![services],
                Some("network between nodes (flannel)"),
            ),
            (KUBE_PROXY_TABLE, vec![flannel], Some("Services")),
        ] {
            let is_there = |family: Family, table: &str| there.contains(&(family, table));
            assert_eq!(lacking(found, is_there), expected, "{there:?}");
        }
    }

    #[test]
    fn rules_of_smolet_stay_until_k3s_has_the_same() {
        for (saved, expected) in [
            ("", vec![]),
            // smolet has it, too.
            ("*filter\n:FLANNEL-FWD - [0:0]\n:KUBE-FIREWALL - [0:0]\nCOMMIT\n", vec![]),
            ("*nat\n:KUBE-PROXY-CANARY - [0:0]\nCOMMIT\n", vec![]),
            ("*nat\n:KUBE-SERVICES - [0:0]\nCOMMIT\n", vec![RulesOf::Services]),
            ("*filter\n:KUBE-ROUTER-INPUT - [0:0]\nCOMMIT\n", vec![RulesOf::Policies]),
            ("*nat\n:FLANNEL-POSTRTG - [0:0]\nCOMMIT\n", vec![RulesOf::Flannel]),
            (
                "*nat\n-A POSTROUTING -s 10.42.0.0/16 -m comment --comment \"flanneld masq\" -j MASQUERADE\nCOMMIT\n",
                vec![RulesOf::Flannel],
            ),
            (
                "*nat\n:KUBE-SERVICES - [0:0]\n:FLANNEL-POSTRTG - [0:0]\nCOMMIT\n*filter\n:KUBE-ROUTER-FORWARD - [0:0]\nCOMMIT\n",
                RulesOf::ALL.to_vec(),
            ),
        ] {
            let found = without_k3s(saved).unwrap_or_default();
            let are: Vec<RulesOf> = RulesOf::ALL.into_iter().filter(|rules| rules.are_k3s(&found)).collect();
            assert_eq!(are, expected, "{saved}");
        }
        assert!(RulesOf::Services.are_k3s(KUBE_PROXY_TABLE));
        let mut tables = RulesOf::ALL.iter().flat_map(|rules| rules.tables());
        assert!(tables.all(|table| !KUBE_PROXY_TABLES.contains(table)));
    }
}
