//! The words of `k3s agent`, put into those of `smolet run`. PURE.
//!
//! ```text
//!     config.yaml, then config.yaml.d/*.yaml ─┐ a later file wins, `key+` appends
//!     the command line ───────────────────────┴► flags, the last one of a name counts ─► arguments of `smolet run`
//!     K3S_… ─────── where there is no such flag ─┘                                       and what of them has no effect here
//! ```

use crate::config::fields;
use crate::decode::Node;
use crate::paths;

/// A flag with its value; of a switch `true` or `false`.
type Given = (String, String);

/// What a flag of `k3s agent` becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    /// This flag of `smolet run`, with the last value.
    One(&'static str),
    /// This flag of `smolet run`, with all values, and commas between them.
    List(&'static str),
    /// This flag of `smolet run`, without a value.
    Switch(&'static str),
    /// `--runtime-endpoint`, for a path or a URI.
    Endpoint,
    /// A flag of the kubelet, `NAME=VALUE`.
    Kubelet,
    /// A flag of kube-proxy, `NAME=VALUE`.
    KubeProxy,
    /// k3s' directory, below which are images and manifests.
    DataDir,
    /// It has no effect here, for this reason.
    Unused(&'static str),
    /// The same, of a switch.
    UnusedSwitch(&'static str),
    /// It is refused, for this reason.
    Refused(&'static str),
}

use Meaning::{DataDir, Endpoint, KubeProxy, Kubelet, List, One, Refused, Switch, Unused, UnusedSwitch};

const OWN_FLANNEL: &str = "is not supported: the pods' network is as the servers have it; leave it out, or have the servers run with \
     --flannel-backend=none and install another network";
const NO_VPN: &str = "VPNs are not included";
const OTHER_RUNTIME: &str = "it is a setting of k3s' own containerd";
const OTHER_LOG: &str = "smolet logs to standard error: --log-level of smolet run";
const NOT_SUPPORTED: &str = "it is not supported";

/// The flags of `k3s agent` (`cmds.NewAgentCommand`): name, short name, variable, meaning.
const FLAGS: [(&str, &str, &str, Meaning); 47] = [
    ("server", "s", "K3S_URL", One("server")),
    // Before the token: a file counts more than a variable.
    ("token-file", "", "K3S_TOKEN_FILE", One("token-file")),
    ("token", "t", "K3S_TOKEN", One("token")),
    ("data-dir", "d", "K3S_DATA_DIR", DataDir),
    ("node-name", "", "K3S_NODE_NAME", One("node-name")),
    ("with-node-id", "", "", Switch("with-node-id")),
    ("node-label", "", "", List("node-labels")),
    ("node-taint", "", "", List("register-with-taints")),
    ("node-ip", "i", "", List("node-ip")),
    ("node-external-ip", "", "", List("node-external-ip")),
    ("resolv-conf", "", "K3S_RESOLV_CONF", One("resolv-conf")),
    ("kubelet-arg", "", "", Kubelet),
    ("container-runtime-endpoint", "", "", Endpoint),
    ("private-registry", "", "", One("registries")),
    ("protect-kernel-defaults", "", "", Switch("protect-kernel-defaults")),
    ("debug", "", "K3S_DEBUG", Switch("log-level=debug")),
    ("cluster-secret", "", "K3S_CLUSTER_SECRET", One("token")),
    ("lb-server-port", "", "K3S_LB_SERVER_PORT", One("lb-server-port")),
    ("disable-apiserver-lb", "", "", Switch("lb-server-port=0")),
    ("flannel-iface", "", "", One("flannel-iface")),
    ("flannel-conf", "", "", Refused(OWN_FLANNEL)),
    ("flannel-cni-conf", "", "", Refused(OWN_FLANNEL)),
    ("no-flannel", "", "", Switch(NO_FLANNEL)),
    ("vpn-auth", "", "K3S_VPN_AUTH", Unused(NO_VPN)),
    ("vpn-auth-file", "", "K3S_VPN_AUTH_FILE", Unused(NO_VPN)),
    ("kube-proxy-arg", "", "", KubeProxy),
    ("snapshotter", "", "", Unused(OTHER_RUNTIME)),
    ("pause-image", "", "", Unused(OTHER_RUNTIME)),
    ("airgap-extra-registry", "", "", Unused(OTHER_RUNTIME)),
    ("default-runtime", "", "", Unused(OTHER_RUNTIME)),
    ("disable-default-registry-endpoint", "", "", Switch("disable-default-registry-endpoint")),
    ("nonroot-devices", "", "", UnusedSwitch(OTHER_RUNTIME)),
    ("docker", "", "", UnusedSwitch(OTHER_RUNTIME)),
    ("selinux", "", "K3S_SELINUX", Switch("selinux")),
    ("prefer-bundled-bin", "", "", UnusedSwitch(OTHER_RUNTIME)),
    ("image-service-endpoint", "", "", Unused(NOT_SUPPORTED)),
    ("image-credential-provider-bin-dir", "", "", Unused(NOT_SUPPORTED)),
    ("image-credential-provider-config", "", "", Unused(NOT_SUPPORTED)),
    ("rootless", "", "", UnusedSwitch(NOT_SUPPORTED)),
    ("bind-address", "", "", One("address")),
    ("node-internal-dns", "", "", Unused(NOT_SUPPORTED)),
    ("node-external-dns", "", "", Unused(NOT_SUPPORTED)),
    ("enable-pprof", "", "", UnusedSwitch(NOT_SUPPORTED)),
    ("v", "v", "", Unused(OTHER_LOG)),
    ("vmodule", "", "", Unused(OTHER_LOG)),
    ("log", "l", "", Unused(OTHER_LOG)),
    ("alsologtostderr", "", "", UnusedSwitch(OTHER_LOG)),
];

/// By which `k3s agent` reaches its servers through an HTTP proxy.
const PROXY_VARIABLE: &str = "K3S_AGENT_HTTP_PROXY_ALLOWED";
/// The switch that keeps flannel off, which `smolet run` does without its own.
const NO_FLANNEL: &str = "no-flannel";
/// The name of the flag with the file of these words: it is none of `smolet run`.
const CONFIG: (&str, &str) = ("config", "c");
pub(super) const CONFIG_VARIABLE: &str = "K3S_CONFIG_FILE";
pub(super) const CONFIG_FILE: &str = "/etc/rancher/k3s/config.yaml";
/// `data-dir`'s default.
const DATA_DIR: &str = "/var/lib/rancher/k3s";

/// The arguments of `smolet run`, and what is said of those that have no effect.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Translated {
    pub(super) run: Vec<String>,
    pub(super) kubelet: Vec<(String, String)>,
    pub(super) warnings: Vec<String>,
    /// All flags, as the Node tells them.
    pub(super) call: Vec<String>,
    /// k3s' directory.
    pub(super) data_dir: String,
}

fn meaning(name: &str) -> Option<(&'static str, Meaning)> {
    let found = FLAGS.iter().find(|(long, short, ..)| *long == name || !short.is_empty() && *short == name);
    found.map(|(long, .., meaning)| (*long, *meaning))
}

/// The flags of a command line.
///
/// # Errors
/// A sentence that names the flag.
pub(super) fn of_args(args: &[String]) -> Result<Vec<Given>, String> {
    Ok(counted(args)?.into_iter().map(|(given, _)| given).collect())
}

/// For each word of a command line, whether it belongs to a flag with a secret.
///
/// # Errors
/// As [`of_args`].
pub(super) fn are_secret(args: &[String]) -> Result<Vec<bool>, String> {
    const SECRETS: [&str; 3] = ["token", "cluster-secret", "vpn-auth"];
    let of = |((name, _), words): (Given, usize)| std::iter::repeat_n(SECRETS.contains(&&*name), words);
    Ok(counted(args)?.into_iter().flat_map(of).collect())
}

/// The flags of a command line, and how many words each takes.
fn counted(args: &[String]) -> Result<Vec<(Given, usize)>, String> {
    let mut given = Vec::new();
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let before = args.len();
        let flag = arg.strip_prefix("--").or_else(|| arg.strip_prefix('-')).filter(|flag| !flag.is_empty());
        let flag = flag.ok_or_else(|| format!("{arg:?}: k3s agent has no arguments besides its flags"))?;
        let (name, value) = match flag.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (flag, None),
        };
        if [CONFIG.0, CONFIG.1].contains(&name) {
            let value = value.or_else(|| args.next().cloned());
            let value = value.ok_or_else(|| format!("{arg}: needs a value"))?;
            given.push(((CONFIG.0.to_owned(), value), 1 + before - args.len()));
            continue;
        }
        let (long, meaning) = meaning(name).ok_or_else(|| format!("{arg}: k3s agent has no such flag"))?;
        let value = match (value, meaning) {
            (Some(value), _) => value,
            (None, Switch(_) | UnusedSwitch(_)) => "true".to_owned(),
            (None, One(_) | List(_) | Endpoint | Kubelet | KubeProxy | DataDir | Unused(_) | Refused(_)) => {
                args.next().cloned().ok_or_else(|| format!("{arg}: needs a value"))?
            }
        };
        given.push(((long.to_owned(), value), 1 + before - args.len()));
    }
    Ok(given)
}

/// The file that the command line names, if it does.
pub(super) fn config_file(given: &[Given]) -> Option<&str> {
    given.iter().rev().find(|(name, _)| name == CONFIG.0).map(|(_, value)| value.as_str())
}

/// The flags in configuration files, the first one's first (`readConfigFile`): a key of a later file takes the place of one of an
/// earlier file, with a `+` at its end it adds to it. Keys that are no flags of an agent are named in `warnings`.
///
/// # Errors
/// A sentence: a file holds no map of flags.
pub(super) fn of_files(files: &[Node], warnings: &mut Vec<String>) -> Result<Vec<Given>, String> {
    let mut merged: Vec<(String, Vec<String>)> = Vec::new();
    for file in files {
        let entries = match file {
            Node::Map(entries) => entries.as_slice(),
            Node::Null => &[],
            other => return Err(format!("{other}: must be a map of flags of k3s agent")),
        };
        for (key, value) in entries {
            let (key, appends) = match key.strip_suffix('+') {
                Some(key) => (key, true),
                None => (&**key, false),
            };
            let values = match value {
                Node::List(items) => items.iter().map(|item| scalar(key, item)).collect::<Result<_, _>>()?,
                Node::Null => vec![String::new()],
                one => vec![scalar(key, one)?],
            };
            match merged.iter_mut().find(|(of, _)| of == key) {
                Some((_, before)) if appends => before.extend(values),
                Some((_, before)) => *before = values,
                None => merged.push((key.to_owned(), values)),
            }
        }
    }
    let mut given = Vec::new();
    for (key, values) in merged {
        match meaning(&key) {
            Some((long, _)) => given.extend(values.into_iter().map(|value| (long.to_owned(), value))),
            // A file is often shared with servers.
            None => warnings.push(format!("{key}: is no flag of k3s agent; skipped")),
        }
    }
    Ok(given)
}

fn scalar(key: &str, value: &Node) -> Result<String, String> {
    match value {
        Node::Text(text) => Ok(text.to_string()),
        Node::Bool(_) | Node::Int(_) | Node::Float(_) => Ok(value.to_string()),
        Node::Null | Node::List(_) | Node::Map(_) => {
            Err(format!("{key}: must be a value, or a list of values"))
        }
    }
}

/// What `smolet run` is called with. `given` are the flags of the files and behind them those of the command line, `variable` is the
/// environment.
///
/// # Errors
/// A sentence that names the flag.
pub(super) fn translate(
    given: &[Given],
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Translated, String> {
    let mut all: Vec<Given> = given.iter().filter(|(name, _)| name != CONFIG.0).cloned().collect();
    let mut out = Translated { call: vec!["agent".to_owned()], ..Translated::default() };
    out.call.extend(all.iter().map(|(name, value)| format!("--{name}={value}")));
    for (name, _, key, _) in FLAGS.iter().filter(|(.., key, _)| !key.is_empty()) {
        // A token of either kind in the flags is the one that counts.
        let is_given = |name: &str| all.iter().any(|(of, _)| of == name);
        let is_token = |name: &str| ["token", "token-file", "cluster-secret"].contains(&name);
        let tokens = FLAGS.iter().filter(|(name, ..)| is_token(name)).any(|(name, ..)| is_given(name));
        if is_given(name) || is_token(name) && tokens {
            continue;
        }
        if let Some(value) = variable(key).filter(|value| !value.is_empty()) {
            all.push(((*name).to_owned(), value));
        }
    }
    if variable(PROXY_VARIABLE).is_some_and(|value| is_true(PROXY_VARIABLE, &value) == Ok(true)) {
        let why = "smolet reaches the servers without a proxy; images are pulled through HTTPS_PROXY";
        out.warnings.push(format!("{PROXY_VARIABLE}: has no effect: {why}"));
    }
    // As in k3s the file counts more.
    if all.iter().any(|(name, _)| name == "token-file") {
        all.retain(|(name, _)| name != "token" && name != "cluster-secret");
    }
    let mut data_dir = DATA_DIR.to_owned();
    let mut lists: Vec<(&'static str, Vec<String>)> = Vec::new();
    for (name, value) in &all {
        let Some((name, meaning)) = meaning(name) else { continue };
        // Of a flag that is given twice the last one counts.
        let last = all.iter().rev().find(|(of, _)| of == name).map_or(value, |(_, last)| last);
        let is_last = std::ptr::eq(last, value);
        match meaning {
            // As k3s has it (`GetHostnameAndIPs`).
            One(flag @ "node-name") if is_last => {
                out.run.push(format!("--{flag}={}", value.to_ascii_lowercase()));
            }
            One(flag) if is_last => out.run.push(format!("--{flag}={value}")),
            Switch(flag) if is_last && is_true(name, value)? => out.run.push(format!("--{flag}")),
            Endpoint if is_last && !value.is_empty() => {
                let scheme = if value.starts_with('/') { "unix://" } else { "" };
                out.run.push(format!("--runtime-endpoint={scheme}{value}"));
            }
            DataDir => data_dir.clone_from(value),
            List(flag) => match lists.iter_mut().find(|(of, _)| *of == flag) {
                Some((_, values)) => values.push(value.clone()),
                None => lists.push((flag, vec![value.clone()])),
            },
            KubeProxy => kube_proxy_arg(value, &mut out),
            Unused(why) if is_last => out.warnings.push(format!("--{name}: has no effect: {why}")),
            Refused(why) if !value.is_empty() => return Err(format!("--{name}: {why}")),
            UnusedSwitch(why) if is_last && is_true(name, value)? => {
                out.warnings.push(format!("--{name}: has no effect: {why}"));
            }
            // Those of the kubelet come behind k3s' own.
            One(_) | Switch(_) | Endpoint | Kubelet | Unused(_) | UnusedSwitch(_) | Refused(_) => {}
        }
    }
    let is_kubelet = |given: &&Given| matches!(meaning(&given.0), Some((_, Kubelet)));
    kubelet_args(all.iter().filter(is_kubelet).map(|(_, value)| &**value), &mut lists, &mut out);
    out.run.extend(lists.into_iter().map(|(flag, values)| format!("--{flag}={}", values.join(","))));
    // k3s' directories, as the scripts that fill them know them.
    let data_dir = data_dir.trim_end_matches('/');
    out.run.push(format!("--images-dir={data_dir}/agent/images"));
    out.run.push(format!("--manifests={data_dir}/agent/pod-manifests"));
    out.run.push(format!("--containerd-certs-dir={data_dir}/agent/etc/containerd/certs.d"));
    // Where k3s' own containerd looks for the pods' network.
    if out.run.iter().any(|arg| arg.strip_prefix("--runtime-endpoint=unix://") == Some(paths::K3S_CONTAINERD))
    {
        out.run.push(format!("--cni-conf-dir={data_dir}/agent/etc/cni/net.d"));
    }
    data_dir.clone_into(&mut out.data_dir);
    // k3s agent serves Services, unless the server says that it does not.
    out.run.push("--service-proxy".to_owned());
    let before = out.run.len();
    out.run.retain(|arg| arg.strip_prefix("--") != Some(NO_FLANNEL));
    if out.run.len() == before {
        out.run.push("--flannel".to_owned());
    } else {
        out.run.retain(|arg| !arg.starts_with("--flannel-iface="));
    }
    // k3s agent enforces them, unless the server says that it does not.
    out.run.push("--network-policy".to_owned());
    for flag in ["resolv-conf", "protect-kernel-defaults"] {
        let taken = |arg: &String| {
            let rest = arg.strip_prefix("--")?.strip_prefix(flag)?;
            rest.strip_prefix('=').or(rest.is_empty().then_some("true")).map(str::to_owned)
        };
        out.kubelet.extend(out.run.iter().filter_map(taken).map(|value| (flag.to_owned(), value)));
        out.run.retain(|arg| taken(arg).is_none());
    }
    if !out.run.iter().any(|arg| arg.starts_with("--server=")) {
        return Err("--server: is missing; give it, or K3S_URL, with https://HOST:6443".to_owned());
    }
    Ok(out)
}

fn is_true(name: &str, value: &str) -> Result<bool, String> {
    match value {
        "true" | "1" | "t" | "T" | "TRUE" | "True" => Ok(true),
        "false" | "0" | "f" | "F" | "FALSE" | "False" | "" => Ok(false),
        _ => Err(format!("--{name}={value}: must be true or false")),
    }
}

/// Flags of the kubelet: of fields of the `KubeletConfiguration`, and of `smolet run` with the kubelet's names. They count more than
/// k3s' own, whose lists they replace, or with `+` or `-` behind the name append or prepend to (`GetArgs`).
fn kubelet_args<'a>(
    args: impl Iterator<Item = &'a str>,
    lists: &mut Vec<(&'static str, Vec<String>)>,
    out: &mut Translated,
) {
    /// Those of the kubelet's flags that `smolet run` has itself.
    const OWN: [&str; 12] = [
        "address",
        "cgroup-driver",
        "cgroup-root",
        "cloud-provider",
        "container-runtime-endpoint",
        "config",
        "maximum-dead-containers",
        "maximum-dead-containers-per-container",
        "minimum-container-ttl-duration",
        "port",
        "provider-id",
        "root-dir",
    ];
    /// Those among them that k3s makes of its own flags: whether further ones of the kubelet add to the first.
    const LISTS: [(&str, bool); 3] =
        [("node-ip", false), ("node-labels", true), ("register-with-taints", true)];
    let mut replaced = Vec::new();
    for text in args {
        let (name, value) = component_arg(text);
        if let Some((list, adds)) = LISTS.into_iter().find(|(list, _)| *list == name) {
            let at = lists.iter().position(|(of, _)| *of == list).unwrap_or_else(|| {
                lists.push((list, Vec::new()));
                lists.len() - 1
            });
            let values = &mut lists[at].1;
            let given = text.split_once('=').map_or(text, |(name, _)| name);
            if given.ends_with('-') {
                values.insert(0, value.to_owned());
            } else {
                let keeps = given.ends_with('+') || adds && replaced.contains(&list);
                if !keeps {
                    values.clear();
                }
                values.push(value.to_owned());
            }
            replaced.push(list);
        } else if OWN.contains(&name) {
            out.run.push(format!("--{name}={value}"));
        } else if fields::of_flag(name).is_some() {
            out.kubelet.push((name.to_owned(), value.to_owned()));
        } else {
            out.warnings.push(format!("--kubelet-arg={name}: has no effect: smolet has no such flag"));
        }
    }
}

/// A flag of kube-proxy.
fn kube_proxy_arg(text: &str, out: &mut Translated) {
    /// Those that `smolet run` has too.
    const OWN: [&str; 5] = [
        "cluster-cidr",
        "conntrack-max-per-core",
        "conntrack-min",
        "conntrack-tcp-timeout-close-wait",
        "conntrack-tcp-timeout-established",
    ];
    let (name, value) = component_arg(text);
    let why = match name {
        _ if OWN.contains(&name) => return out.run.push(format!("--{name}={value}")),
        "metrics-bind-address" | "metrics-port" => {
            "smolet has no metrics of kube-proxy; its own are on the port of the node's API"
        }
        "nodeport-addresses" => "node ports are on all addresses of the node but those of loopback",
        _ => "smolet serves Services itself and has no such flag",
    };
    out.warnings.push(format!("--kube-proxy-arg={name}: has no effect: {why}"));
}

/// Name and value of a component's flag, without the `+` or `-` behind the name that say how k3s merges it with others.
fn component_arg(text: &str) -> (&str, &str) {
    let text = text.trim_start_matches('-');
    let (name, value) = text.split_once('=').unwrap_or((text, "true"));
    (name.trim_end_matches(['+', '-']), value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(all: &[&str]) -> Vec<String> {
        all.iter().map(ToString::to_string).collect()
    }

    fn yaml(text: &str) -> Node {
        let mut found = Node::Null;
        crate::decode::yaml::documents(text.as_bytes(), |_, document| found = document.expect("valid"))
            .expect("valid");
        found
    }

    /// Of files, a command line and variables.
    fn translated(files: &[&str], args: &[&str], env: &[(&str, &str)]) -> Result<Translated, String> {
        let mut warnings = Vec::new();
        let mut given = of_files(&files.iter().map(|text| yaml(text)).collect::<Vec<_>>(), &mut warnings)?;
        given.extend(of_args(&strings(args))?);
        let variable =
            |key: &str| env.iter().find(|(of, _)| *of == key).map(|(_, value)| (*value).to_owned());
        let mut translated = translate(&given, variable)?;
        warnings.append(&mut translated.warnings);
        translated.warnings = warnings;
        Ok(translated)
    }

    /// What always comes last.
    const USUAL: [&str; 6] = [
        "--images-dir=/var/lib/rancher/k3s/agent/images",
        "--manifests=/var/lib/rancher/k3s/agent/pod-manifests",
        "--containerd-certs-dir=/var/lib/rancher/k3s/agent/etc/containerd/certs.d",
        "--service-proxy",
        "--flannel",
        "--network-policy",
    ];

    fn run(args: &[&str]) -> Vec<String> {
        strings(&[args, &USUAL].concat())
    }

    #[test]
    fn with_k3s_containerd_the_pods_network_is_configured_where_that_looks() {
        let of = |endpoint: &str| {
            let args =
                ["-s", "https://a", "-t", "x", "-d", "/srv/k3s/", "--container-runtime-endpoint", endpoint];
            translated(&[], &args, &[]).unwrap()
        };
        for (endpoint, is_k3s) in [
            ("/run/k3s/containerd/containerd.sock", true),
            ("unix:///run/k3s/containerd/containerd.sock", true),
            ("/run/containerd/containerd.sock", false),
            ("", false),
        ] {
            let found = of(endpoint);
            let wanted = "--cni-conf-dir=/srv/k3s/agent/etc/cni/net.d";
            assert_eq!(found.run.iter().any(|arg| arg == wanted), is_k3s, "{endpoint}: {:?}", found.run);
            assert_eq!(found.data_dir, "/srv/k3s");
        }
        let args = ["-s", "https://a", "-t", "x", "--kubelet-arg=root-dir=/srv/kubelet"];
        assert!(translated(&[], &args, &[]).unwrap().run.contains(&"--root-dir=/srv/kubelet".to_owned()));
    }

    #[test]
    fn the_installers_variables_are_enough() {
        let env = [("K3S_URL", "https://h:6443"), ("K3S_TOKEN", "secret"), ("K3S_NODE_NAME", "gw")];
        let found = translated(&[], &[], &env).unwrap();
        assert_eq!(found.run, run(&["--server=https://h:6443", "--token=secret", "--node-name=gw"]));
        assert_eq!((found.warnings, found.call), (Vec::new(), strings(&["agent"])));
        // A flag counts more than a variable; of the kinds of tokens one counts.
        let proxied = translated(&[], &["--node-name=Barn-2"], &[env[0], (PROXY_VARIABLE, "true")]).unwrap();
        assert!(proxied.run.contains(&"--node-name=barn-2".to_owned()), "{:?}", proxied.run);
        assert!(
            proxied.warnings[0].starts_with("K3S_AGENT_HTTP_PROXY_ALLOWED: has no effect"),
            "{proxied:?}"
        );
        let env = [env[0], env[1], ("K3S_TOKEN_FILE", "/t"), ("K3S_RESOLV_CONF", "/r")];
        let found = translated(&[], &[], &env).unwrap();
        assert_eq!(found.run, run(&["--server=https://h:6443", "--token-file=/t"]));
        let found = translated(&[], &["-s", "https://i", "-t", "x", "--token-file=/u"], &env).unwrap();
        assert_eq!(found.run, run(&["--server=https://i", "--token-file=/u"]));
        assert_eq!(found.kubelet, [("resolv-conf".to_owned(), "/r".to_owned())]);
        assert!(translated(&[], &[], &[]).unwrap_err().contains("K3S_URL"));
    }

    #[test]
    fn files_come_first_and_their_parts_in_order() {
        let base = "server: https://h:6443\ntoken: a\nnode-label: [x=1]\nkubelet-arg:\n- max-pods=50\ncluster-cidr: 10.0.0.0/8\n";
        let part = "node-label+: [y=2]\ntoken: b\nlb-server-port: 7000\nwith-node-id: true\ndebug: false\n";
        let found = translated(&[base, part], &["--node-label", "z=3", "--token=c"], &[]).unwrap();
        let wanted = [
            "--server=https://h:6443",
            "--lb-server-port=7000",
            "--with-node-id",
            "--token=c",
            "--node-labels=x=1,y=2,z=3",
        ];
        assert_eq!(found.run, run(&wanted));
        assert_eq!(found.kubelet, [("max-pods".to_owned(), "50".to_owned())]);
        assert_eq!(found.warnings, ["cluster-cidr: is no flag of k3s agent; skipped"]);
        assert!(found.call.contains(&"--node-label=y=2".to_owned()), "{:?}", found.call);
        for wrong in ["[a]", "server: {a: b}", "node-label: [[a]]", "just text"] {
            assert!(translated(&[wrong], &[], &[]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn each_flag_has_its_effect_or_is_said_to_have_none() {
        let server = "--server=https://h";
        // Flags, and what becomes of them: arguments, kubelet's flags, a warning.
        for (args, wanted, kubelet, warning) in [
            (&["-i", "10.0.0.1", "--node-ip=fd00::1"][..], "--node-ip=10.0.0.1,fd00::1", "", ""),
            (&["--node-external-ip", "192.0.2.1"], "--node-external-ip=192.0.2.1", "", ""),
            (&["--node-taint", "a=b:NoSchedule"], "--register-with-taints=a=b:NoSchedule", "", ""),
            (&["--container-runtime-endpoint=/run/c.sock"], "--runtime-endpoint=unix:///run/c.sock", "", ""),
            (&["--private-registry", "/r.yaml"], "--registries=/r.yaml", "", ""),
            (&["--disable-default-registry-endpoint"], "--disable-default-registry-endpoint", "", ""),
            (&["--disable-default-registry-endpoint=false"], "", "", ""),
            (&["--protect-kernel-defaults"], "", "protect-kernel-defaults=true", ""),
            (&["--debug"], "--log-level=debug", "", ""),
            (&["--kubelet-arg=--node-labels=a=b"], "--node-labels=a=b", "", ""),
            // k3s' own lists are replaced, or added to; further ones add to the first.
            (
                &["--kubelet-arg=node-labels=c=d", "--node-label=a=b", "--kubelet-arg=node-labels=e=f"],
                "--node-labels=c=d,e=f",
                "",
                "",
            ),
            (
                &["--node-label=a=b", "--kubelet-arg=node-labels+=c=d", "--kubelet-arg=node-labels-=e=f"],
                "--node-labels=e=f,a=b,c=d",
                "",
                "",
            ),
            (
                &["--kubelet-arg=register-with-taints=a:NoSchedule", "--node-taint=b:NoSchedule"],
                "--register-with-taints=a:NoSchedule",
                "",
                "",
            ),
            (
                &["--kubelet-arg=node-ip=10.0.0.2", "--kubelet-arg=node-ip=10.0.0.3"],
                "--node-ip=10.0.0.3",
                "",
                "",
            ),
            (
                &["--kubelet-arg", "eviction-hard=memory.available<5%"],
                "",
                "eviction-hard=memory.available<5%",
                "",
            ),
            (&["--kubelet-arg=feature-gates+=A=true"], "", "feature-gates=A=true", ""),
            (&["--kubelet-arg=v=4"], "", "v=4", ""),
            (&["--kubelet-arg=nonsense=4"], "", "", "--kubelet-arg=nonsense: has no effect"),
            (&["--kube-proxy-arg=cluster-cidr=10.42.0.0/16"], "--cluster-cidr=10.42.0.0/16", "", ""),
            (&["--kube-proxy-arg", "--conntrack-min=0"], "--conntrack-min=0", "", ""),
            (&["--kube-proxy-arg=conntrack-max-per-core=1024"], "--conntrack-max-per-core=1024", "", ""),
            (
                &["--kube-proxy-arg=conntrack-tcp-timeout-established=2h"],
                "--conntrack-tcp-timeout-established=2h",
                "",
                "",
            ),
            (
                &["--kube-proxy-arg=conntrack-tcp-timeout-close-wait=1m"],
                "--conntrack-tcp-timeout-close-wait=1m",
                "",
                "",
            ),
            (
                &["--kube-proxy-arg=metrics-bind-address=0.0.0.0:10249"],
                "",
                "",
                "--kube-proxy-arg=metrics-bind-address: has no effect: smolet has no metrics of kube-proxy",
            ),
            (
                &["--kube-proxy-arg=nodeport-addresses=primary"],
                "",
                "",
                "--kube-proxy-arg=nodeport-addresses: has no effect: node ports are on all addresses",
            ),
            (
                &["--kube-proxy-arg=proxy-mode=ipvs"],
                "",
                "",
                "--kube-proxy-arg=proxy-mode: has no effect: smolet serves Services itself",
            ),
            (&["--flannel-iface", "eth1"], "--flannel-iface=eth1", "", ""),
            (&["--vpn-auth", "x"], "", "", "--vpn-auth: has no effect"),
            (&["--docker"], "", "", "--docker: has no effect"),
            (&["--docker=false", "--rootless=false"], "", "", ""),
        ] {
            let found = translated(&[], &[&[server][..], args].concat(), &[]).unwrap();
            let head: &[&str] = if wanted.is_empty() { &[server] } else { &[server, wanted] };
            assert_eq!(found.run, run(head), "{args:?}");
            let shown: Vec<String> =
                found.kubelet.iter().map(|(flag, value)| format!("{flag}={value}")).collect();
            assert_eq!(shown.join(" "), kubelet, "{args:?}");
            let is_said = found.warnings.iter().any(|line| line.starts_with(warning));
            assert!(
                if warning.is_empty() { found.warnings.is_empty() } else { is_said },
                "{:?}",
                found.warnings
            );
        }
        let found = translated(&[], &[server, "-d", "/data/"], &[]).unwrap();
        assert_eq!(
            found.run[1..],
            [
                "--images-dir=/data/agent/images",
                "--manifests=/data/agent/pod-manifests",
                "--containerd-certs-dir=/data/agent/etc/containerd/certs.d",
                "--service-proxy",
                "--flannel",
                "--network-policy"
            ]
        );
        let found = translated(&[], &[server, "--no-flannel", "--flannel-iface=eth1"], &[]).unwrap();
        assert_eq!(found.run, strings(&[&[server], &USUAL[..4], &["--network-policy"]].concat()));
        for (args, named) in [
            (&["--nonsense"][..], "--nonsense: k3s agent has no such flag"),
            (&["stop"], "\"stop\": k3s agent has no arguments"),
            (&["--token"], "--token: needs a value"),
            (&["--flannel-conf=/etc/net.json"], "--flannel-conf: is not supported"),
            (&["--config"], "--config: needs a value"),
            (&["--with-node-id=perhaps"], "must be true or false"),
        ] {
            let why = translated(&[], &[&[server][..], args].concat(), &[]).unwrap_err();
            assert!(why.contains(named), "{why}");
        }
        assert_eq!(config_file(&of_args(&strings(&["-c", "/a", "--config=/b"])).unwrap()), Some("/b"));
    }
}
