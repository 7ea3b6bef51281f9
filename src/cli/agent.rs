//! `smolet agent`: `smolet run` in the words of `k3s agent`, with k3s' configuration files and variables. A symbolic link `k3s` to
//! smolet takes the place of k3s in units and scripts.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::FromArgMatches as _;

use super::k3s_flags::{self, CONFIG_FILE, CONFIG_VARIABLE, Translated};
use super::{fail, run};
use crate::config::{Call, files_in};
use crate::decode::{Node, yaml};
use crate::filesystem::read_linked;
use crate::limits::CONFIG_FILE_BYTES_MAX;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Flags of k3s agent: --server, --token, --token-file, --node-name, --with-node-id, --node-label, --node-taint, --node-ip,
    /// --node-external-ip, --resolv-conf, --kubelet-arg, --lb-server-port and others; also from /etc/rancher/k3s/config.yaml and
    /// `K3S_URL`, `K3S_TOKEN`, `K3S_TOKEN_FILE`, `K3S_NODE_NAME`
    #[arg(value_name = "FLAGS", trailing_var_arg = true, allow_hyphen_values = true)]
    flags: Vec<String>,
}

pub(super) fn run(args: &Args) -> ExitCode {
    match translated(args) {
        Ok((args, call)) => run::run_as(&args, call),
        Err(why) => fail(&why),
    }
}

fn translated(args: &Args) -> Result<(run::Args, Call), String> {
    let translated = translate(&args.flags, |key| std::env::var(key).ok())?;
    for warning in &translated.warnings {
        super::say(&format!("smolet agent: {warning}"));
    }
    let env: Vec<(String, String)> = std::env::vars_os()
        .map(|(key, value)| (key.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
        .collect();
    let call = Call::new(&translated.call, &env);
    Ok((args_of(&translated)?, call))
}

/// Flags of `k3s agent`, with those of its configuration files and variables.
pub(super) fn translate(
    flags: &[String],
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Translated, String> {
    let of_line = k3s_flags::of_args(flags)?;
    // As in k3s the variable counts more (`findConfigFileFlag`).
    let named = variable(CONFIG_VARIABLE).filter(|file| !file.is_empty());
    let named = named.or_else(|| k3s_flags::config_file(&of_line).map(str::to_owned));
    let file = named.as_deref().unwrap_or(CONFIG_FILE);
    let mut warnings = Vec::new();
    let files = files(Path::new(file), named.is_some())?;
    let mut given = k3s_flags::of_files(&files, &mut warnings).map_err(|why| format!("{file}: {why}"))?;
    given.extend(of_line);
    let mut translated = k3s_flags::translate(&given, variable)?;
    // k3s makes it, and gives it to its kubelet.
    let parts = Path::new(&translated.data_dir).join("agent/etc/kubelet.conf.d");
    if parts.is_dir() {
        translated.run.push(format!("--config-dir={}", parts.display()));
    }
    translated.warnings.splice(0..0, warnings);
    Ok(translated)
}

/// As if `smolet run` had been called with these.
pub(super) fn args_of(translated: &Translated) -> Result<run::Args, String> {
    let command = super::command().find_subcommand("run").cloned().ok_or("smolet run is not there")?;
    let command = command.args_override_self(true).no_binary_name(true);
    let matches = command.try_get_matches_from(&translated.run).map_err(|error| {
        // The first line names the flag; the rest is about the words of smolet run.
        error.to_string().lines().next().unwrap_or_default().to_owned()
    })?;
    let mut args = run::Args::from_arg_matches(&matches).map_err(|error| error.to_string())?;
    args.flags.kubelet.clone_from(&translated.kubelet);
    args.flags.k3s_agent_dir = Some(Path::new(&translated.data_dir).join("agent"));
    Ok(args)
}

/// The configuration file, if it exists, and the files of its directory `.d` by name (`readConfigFile`).
fn files(path: &Path, is_named: bool) -> Result<Vec<Node>, String> {
    let at = |path: &Path, why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
    let parts_dir = PathBuf::from(format!("{}.d", path.display()));
    let parts = files_in(&parts_dir, &["yaml", "yml"])?;
    let mut found = Vec::new();
    match read_linked(path, CONFIG_FILE_BYTES_MAX) {
        Ok(bytes) => found.push(document(&bytes).map_err(|why| at(path, &why))?),
        // The usual one need not exist; k3s takes a named one that does not exist as none, too, which hides a wrong name.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && (!is_named || !parts.is_empty()) => {}
        Err(error) => return Err(at(path, &error)),
    }
    for part in parts {
        let bytes = read_linked(&part, CONFIG_FILE_BYTES_MAX).map_err(|error| at(&part, &error))?;
        found.push(document(&bytes).map_err(|why| at(&part, &why))?);
    }
    Ok(found)
}

fn document(bytes: &[u8]) -> Result<Node, String> {
    let mut documents = Vec::new();
    let whole = yaml::documents(bytes, |_, document| documents.push(document));
    let documents: Result<Vec<Node>, _> = documents.into_iter().collect();
    let line = |error: yaml::YamlError| format!("line {}: {}", error.line, error.message);
    let mut documents = documents.map_err(line)?;
    whole.map_err(line)?;
    match documents.len() {
        0 => Ok(Node::Null),
        1 => Ok(documents.remove(0)),
        _ => Err("must hold one document".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    #[cfg(feature = "tls")]
    use crate::config::Config;
    #[cfg(feature = "tls")]
    use crate::kernel_tunables::network::Conntrack;

    #[cfg(feature = "tls")]
    #[test]
    fn what_is_translated_is_understood() {
        let flags = [
            "--server=https://10.0.0.1:6443",
            "--token=secret",
            "--node-name=gw",
            "--with-node-id",
            "--node-label=site=roof",
            "--node-label=floor=3",
            "--node-taint=edge=yes:NoSchedule",
            "--node-ip=10.0.0.2",
            "--node-external-ip=192.0.2.1",
            "--resolv-conf=/etc/resolv.k3s",
            "--lb-server-port=7000",
            "--kubelet-arg=max-pods=50",
            "--kubelet-arg=cgroup-driver=systemd",
            "--kube-proxy-arg=conntrack-max-per-core=1024",
            "--kube-proxy-arg=conntrack-tcp-timeout-established=2h",
            "--kube-proxy-arg=cluster-cidr=10.42.0.0/16",
            "--container-runtime-endpoint=/run/containerd/containerd.sock",
            "--private-registry=/etc/registries.yaml",
            "--protect-kernel-defaults",
            "--debug",
        ];
        let given = k3s_flags::of_args(&flags.map(str::to_owned)).unwrap();
        let args = args_of(&k3s_flags::translate(&given, |_| None).unwrap()).unwrap();
        let config = Config::load(&args.flags, None).unwrap();
        let k3s = config.k3s.unwrap();
        assert_eq!((k3s.server.as_str(), k3s.load_balancer_port), ("https://10.0.0.1:6443", Some(7000)));
        assert!(k3s.node_id.is_some() && config.protect_kernel_defaults);
        let wanted = Conntrack { max_per_core: 1024, tcp_established_seconds: 7200, ..Conntrack::default() };
        assert_eq!(k3s.conntrack, wanted);
        assert_eq!(config.service_proxy.unwrap().cluster_cidrs.len(), 1);
        assert_eq!(config.node_name.as_deref(), Some("gw"));
        let registration = config.registration;
        assert_eq!((registration.labels.len(), registration.taints.len()), (2, 1));
        assert_eq!((registration.addresses.len(), registration.external_addresses.len()), (1, 1));
        assert_eq!((config.max_pods, config.resolv_conf.to_str()), (50, Some("/etc/resolv.k3s")));
        assert_eq!(config.runtime_endpoint.as_deref(), Some("unix:///run/containerd/containerd.sock"));
        assert_eq!(config.images_dir, Path::new("/var/lib/rancher/k3s/agent/images"));
        // The kubelet's flags count more than k3s' own, wherever they stand.
        let given = k3s_flags::of_args(
            &["-s", "https://a", "-t", "x", "--kubelet-arg=node-ip=10.0.0.9", "-i", "10.0.0.8"]
                .map(str::to_owned),
        );
        let args = args_of(&k3s_flags::translate(&given.unwrap(), |_| None).unwrap()).unwrap();
        assert_eq!(args.flags.node_ip.as_deref(), Some("10.0.0.9"));
        let given =
            k3s_flags::of_args(&["-s", "https://a", "--lb-server-port=x"].map(str::to_owned)).unwrap();
        let why = args_of(&k3s_flags::translate(&given, |_| None).unwrap()).err().unwrap();
        assert!(why.contains("lb-server-port"), "{why}");
        let args = ["-s", "https://a", "-t", "x", "--kube-proxy-arg=conntrack-tcp-timeout-close-wait=soon"];
        let given = k3s_flags::of_args(&args.map(str::to_owned)).unwrap();
        let args = args_of(&k3s_flags::translate(&given, |_| None).unwrap()).unwrap();
        let why = Config::load(&args.flags, None).unwrap_err().to_string();
        assert!(why.starts_with("--conntrack-tcp-timeout-close-wait: \"soon\": must be"), "{why}");
    }

    #[test]
    fn files_are_read_in_the_order_of_their_names() {
        let dir = std::env::temp_dir().join(format!("smolet-k3s-{}", std::process::id()));
        let (file, parts) = (dir.join("config.yaml"), dir.join("config.yaml.d"));
        fs::create_dir_all(&parts).unwrap();
        assert!(files(&file, false).unwrap().is_empty(), "the usual one need not be there");
        let why = files(&file, true).unwrap_err();
        assert!(why.contains("config.yaml"), "{why}");
        for (name, text) in [("b.yml", "b: 1"), ("a.yaml", ""), ("c.txt", "c: 1"), ("d.YAML", "d: 1")] {
            fs::write(parts.join(name), text).unwrap();
        }
        let found = |is_named| files(&file, is_named).unwrap();
        assert_eq!(found(true).len(), 3);
        assert_eq!((&found(false)[0], found(false)[1].field("b").is_some()), (&Node::Null, true));
        fs::write(&file, "server: x").unwrap();
        assert!(found(true)[0].field("server").is_some());
        fs::write(&file, "a: b: c").unwrap();
        assert!(files(&file, false).unwrap_err().contains("config.yaml: line 1"));
        fs::write(&file, "a: 1\n---\nb: 1\n").unwrap();
        assert!(files(&file, false).unwrap_err().contains("must hold one document"));
        for number in 0..=crate::limits::CONFIG_FILES_MAX {
            fs::write(parts.join(format!("{number}.yaml")), "").unwrap();
        }
        assert!(files(&file, false).unwrap_err().contains("more than 32 files"));
        fs::remove_dir_all(&dir).unwrap();
    }
}
