//! Flags of a node that joins a cluster.

use std::path::{Path, PathBuf};

use crate::kernel_tunables::network::Conntrack;
use crate::limits::CLUSTER_CIDRS_MAX;
use crate::model::Network;

use super::kubelet::parse_go_duration;
use super::{Call, ConfigError, FileSettings, Flags, NodeApi, paths};

/// A secret string: its `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// The secret.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// A k3s server, and the credentials for joining it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct K3s {
    /// `https://HOST:PORT`.
    pub server: String,
    /// The token of its cluster.
    pub token: TokenSource,
    /// The file with the password by which the server identifies this node; it is created if missing.
    pub node_password: PathBuf,
    /// The file with the ID that is appended to the node's name, created if missing; `None`: none is.
    pub node_id: Option<PathBuf>,
    /// Port of this machine's own behind which the servers are; `None`: none.
    pub load_balancer_port: Option<u16>,
    /// How the agent was called, for the Node's annotations.
    pub call: Call,
    /// The program that loads the kernel modules of the cluster's network.
    pub modprobe: PathBuf,
    /// The kernel's table of connections.
    pub conntrack: Conntrack,
}

/// Settings of the service proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceProxySettings {
    /// The kubeconfig of its watches; `None`: a k3s server gives the credentials.
    pub kubeconfig: Option<PathBuf>,
    /// Ranges of the cluster's pods; none: those that a k3s server names.
    pub cluster_cidrs: Vec<Network>,
}

/// Settings of flannel's network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlannelSettings {
    /// The interface between the nodes, by its name or an address of it; `None`: that of the node's address.
    pub interface: Option<String>,
    /// The file for k3s' own CNI plugin.
    pub subnet_file: PathBuf,
}

/// `k3s agent`'s default of `--lb-server-port`.
const LOAD_BALANCER_PORT: u16 = 6444;

/// The source of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenSource {
    /// The token itself.
    Given(Secret),
    /// This file, which is read at each use.
    File(PathBuf),
    /// None: an earlier join has left a certificate, in the state directory or in this one of `k3s agent`.
    EarlierJoin(Option<PathBuf>),
}

/// The cluster's kubeconfig, if this build supports joining one; below `k3s` when a k3s server issues it.
pub(super) fn kubeconfig(flags: &Flags, k3s: &Path) -> Result<Option<PathBuf>, ConfigError> {
    let no_tls = "this build has no TLS and joins no cluster; use one made without --no-default-features";
    let wrong = |path: &Path, why: &str| Err(ConfigError(format!("--kubeconfig: {}: {why}", path.display())));
    match flags.kubeconfig.as_deref() {
        Some(path) if cfg!(not(feature = "tls")) => wrong(path, no_tls),
        Some(path) if flags.server.is_some() => {
            wrong(path, "may not be given beside --server, by which a k3s server makes one")
        }
        Some(path) if !path.is_absolute() => wrong(path, "must be an absolute path"),
        Some(path) => Ok(Some(path.to_owned())),
        None if flags.server.is_some() && cfg!(not(feature = "tls")) => {
            Err(ConfigError(format!("--server: {no_tls}")))
        }
        None => Ok(flags.server.as_ref().map(|_| k3s.join("kubelet.kubeconfig"))),
    }
}

/// The bootstrap kubeconfig.
pub(super) fn bootstrap(flags: &Flags) -> Result<Option<PathBuf>, ConfigError> {
    let wrong = |why: &str| Err(ConfigError(format!("--bootstrap-kubeconfig: {why}")));
    match flags.bootstrap_kubeconfig.as_deref() {
        Some(_) if flags.kubeconfig.is_none() => {
            wrong("needs --kubeconfig, the file that is written when the node has joined")
        }
        Some(path) if !path.is_absolute() => wrong("must be an absolute path"),
        given => Ok(given.map(Path::to_owned)),
    }
}

/// The k3s server to join.
pub(super) fn k3s(flags: &Flags) -> Result<Option<K3s>, ConfigError> {
    let wrong = |flag: &str, why: &str| Err(ConfigError(format!("{flag}: {why}")));
    let Some(server) = &flags.server else {
        return match (&flags.token, &flags.token_file) {
            (None, None) if flags.with_node_id => wrong("--with-node-id", "needs --server"),
            (None, None) if flags.lb_server_port.is_some() => wrong("--lb-server-port", "needs --server"),
            (None, None) => Ok(None),
            (Some(_), _) => wrong("--token", "needs --server, the k3s server that it is for"),
            (None, Some(_)) => wrong("--token-file", "needs --server, the k3s server that it is for"),
        };
    };
    #[cfg(feature = "tls")]
    {
        let url =
            crate::kube::ServerUrl::parse(server).map_err(|why| ConfigError(format!("--server: {why}")))?;
        if !url.prefix.is_empty() {
            return wrong("--server", "must be https://HOST:PORT, without a path");
        }
    }
    let token = match (&flags.token, &flags.token_file) {
        (Some(token), None) => TokenSource::Given(token.clone()),
        (None, Some(path)) if path.is_absolute() => TokenSource::File(path.clone()),
        (None, Some(_)) => return wrong("--token-file", "must be an absolute path"),
        (Some(_), Some(_)) => return wrong("--token", "may not be given beside --token-file"),
        (None, None) => TokenSource::EarlierJoin(flags.k3s_agent_dir.clone()),
    };
    Ok(Some(K3s {
        server: server.clone(),
        token,
        node_password: paths::NODE_PASSWORD.into(),
        node_id: flags.with_node_id.then(|| paths::NODE_ID.into()),
        load_balancer_port: Some(flags.lb_server_port.unwrap_or(LOAD_BALANCER_PORT)).filter(|port| *port > 0),
        call: Call::default(),
        modprobe: paths::MODPROBE.into(),
        conntrack: conntrack(flags)?,
    }))
}

fn conntrack(flags: &Flags) -> Result<Conntrack, ConfigError> {
    let usual = Conntrack::default();
    let count = |flag: &str, given: Option<i32>, usual: u32| {
        let count = given.map_or(Ok(usual), u32::try_from);
        count.map_err(|_| ConfigError(format!("{flag}: must be 0 or more")))
    };
    let seconds = |flag: &str, given: Option<&str>, usual: u64| match given {
        None => Ok(usual),
        Some(text) => parse_go_duration(text).map(|time| time.as_secs()).ok_or_else(|| {
            ConfigError(format!("{flag}: {text:?}: must be a duration such as 20s, 1m30s or 2h"))
        }),
    };
    let (established, close_wait) =
        (&flags.conntrack_tcp_timeout_established, &flags.conntrack_tcp_timeout_close_wait);
    Ok(Conntrack {
        max_per_core: count("--conntrack-max-per-core", flags.conntrack_max_per_core, usual.max_per_core)?,
        min: count("--conntrack-min", flags.conntrack_min, usual.min)?,
        tcp_established_seconds: seconds(
            "--conntrack-tcp-timeout-established",
            established.as_deref(),
            usual.tcp_established_seconds,
        )?,
        tcp_close_wait_seconds: seconds(
            "--conntrack-tcp-timeout-close-wait",
            close_wait.as_deref(),
            usual.tcp_close_wait_seconds,
        )?,
    })
}

/// Whether the cluster signs the certificate of the node's API.
pub(super) fn server_tls_bootstrap(
    flags: &Flags,
    file: &FileSettings,
    node_api: &NodeApi,
) -> Result<bool, ConfigError> {
    let wrong = |why: &str| Err(ConfigError(format!("serverTLSBootstrap: {why}")));
    match file.bool("serverTLSBootstrap") {
        Some(true) if node_api.certificate.is_some() => {
            wrong("may not be true beside tlsCertFile, which is the certificate then")
        }
        Some(true) if flags.server.is_some() => {
            wrong("may not be true beside --server: a k3s server gives that certificate anyway")
        }
        given => Ok(given.unwrap_or(false)),
    }
}

/// Directory of the bridge's CNI configuration.
pub(super) fn cni_bridge(flags: &Flags) -> Result<Option<PathBuf>, ConfigError> {
    let wrong = |why: &str| Err(ConfigError(format!("--cni-bridge: {why}")));
    match flags.cni_bridge.as_deref() {
        Some(_) if flags.kubeconfig.is_none() && flags.server.is_none() => {
            wrong("needs --kubeconfig or --server: its addresses are the Node's podCIDR")
        }
        Some(path) if !path.is_absolute() => wrong("the directory must be an absolute path"),
        given => Ok(given.map(Path::to_owned)),
    }
}

/// The service proxy.
pub(super) fn service_proxy(flags: &Flags) -> Result<Option<ServiceProxySettings>, ConfigError> {
    let wrong = |flag: &str, why: &str| Err(ConfigError(format!("{flag}: {why}")));
    if !flags.service_proxy {
        return match (&flags.service_proxy_kubeconfig, &flags.cluster_cidr) {
            (None, None) => Ok(None),
            (Some(_), _) => wrong("--service-proxy-kubeconfig", "needs --service-proxy"),
            (None, Some(_)) => wrong("--cluster-cidr", "needs --service-proxy"),
        };
    }
    if flags.kubeconfig.is_none() && flags.server.is_none() {
        return wrong("--service-proxy", "needs --kubeconfig or --server: services are a cluster's");
    }
    let mut cluster_cidrs = Vec::new();
    for cidr in flags.cluster_cidr.iter().flat_map(|cidrs| cidrs.split(',')) {
        match Network::parse(cidr) {
            Some(network) if cluster_cidrs.len() < CLUSTER_CIDRS_MAX => cluster_cidrs.push(network),
            Some(_) => return wrong("--cluster-cidr", "may have one range of each family"),
            None => {
                return wrong(
                    "--cluster-cidr",
                    &format!("{cidr:?} is no range of addresses, as 10.42.0.0/16"),
                );
            }
        }
    }
    let kubeconfig = match flags.service_proxy_kubeconfig.as_deref() {
        Some(path) if !path.is_absolute() => {
            return wrong("--service-proxy-kubeconfig", "must be an absolute path");
        }
        Some(path) => Some(path.to_owned()),
        None if flags.server.is_none() => {
            return wrong(
                "--service-proxy",
                "needs --service-proxy-kubeconfig beside --kubeconfig: a node's own credentials show no endpoints",
            );
        }
        None => None,
    };
    Ok(Some(ServiceProxySettings { kubeconfig, cluster_cidrs }))
}

/// flannel's network.
pub(super) fn flannel(flags: &Flags) -> Result<Option<FlannelSettings>, ConfigError> {
    let wrong = |flag: &str, why: &str| Err(ConfigError(format!("{flag}: {why}")));
    match &flags.flannel_iface {
        None if !flags.flannel => Ok(None),
        Some(_) if !flags.flannel => wrong("--flannel-iface", "needs --flannel"),
        _ if flags.server.is_none() => {
            wrong("--flannel", "needs --server, a k3s server, whose settings describe the network")
        }
        _ if flags.cni_bridge.is_some() => wrong(
            "--cni-bridge",
            "may not be given beside --flannel, which has a bridge of its own; leave it out",
        ),
        Some(interface) if interface.is_empty() => {
            wrong("--flannel-iface", "must be the name of an interface")
        }
        interface => {
            let subnet_file = paths::FLANNEL_SUBNET.into();
            Ok(Some(FlannelSettings { interface: interface.clone(), subnet_file }))
        }
    }
}

/// The kubeconfig for network policies, if they are to be enforced; below `k3s` when a k3s server issues it.
pub(super) fn network_policy(flags: &Flags, k3s: &Path) -> Result<Option<PathBuf>, ConfigError> {
    let wrong = |flag: &str, why: &str| Err(ConfigError(format!("{flag}: {why}")));
    match flags.network_policy_kubeconfig.as_deref() {
        Some(_) if !flags.network_policy => wrong("--network-policy-kubeconfig", "needs --network-policy"),
        _ if flags.network_policy && flags.kubeconfig.is_none() && flags.server.is_none() => {
            wrong("--network-policy", "needs --kubeconfig or --server: policies are a cluster's")
        }
        Some(path) if !path.is_absolute() => wrong("--network-policy-kubeconfig", "must be an absolute path"),
        Some(path) => Ok(Some(path.to_owned())),
        None if flags.network_policy && flags.server.is_none() => wrong(
            "--network-policy",
            "needs --network-policy-kubeconfig beside --kubeconfig: a node's own credentials show no other node's pods",
        ),
        None => Ok(flags.network_policy.then(|| k3s.join("k3scontroller.kubeconfig"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_need_a_cluster_and_credentials_for_their_endpoints() {
        let flags = |kubeconfig: Option<&str>, cidrs: Option<&str>, server: bool| Flags {
            service_proxy: true,
            service_proxy_kubeconfig: kubeconfig.map(PathBuf::from),
            cluster_cidr: cidrs.map(str::to_owned),
            server: server.then(|| "https://h:6443".to_owned()),
            kubeconfig: (!server).then(|| "/etc/k".into()),
            ..Flags::default()
        };
        let off = |flags: Flags| Flags { service_proxy: false, ..flags };
        for (flags, wanted) in [
            (Flags::default(), Ok("None")),
            (flags(None, None, true), Ok("k3s []")),
            (flags(Some("/p"), Some("10.42.0.0/16,fd42::/56"), true), Ok("/p [10.42.0.0/16 fd42::/56]")),
            (flags(Some("/p"), None, false), Ok("/p []")),
            (flags(None, None, false), Err("--service-proxy: needs --service-proxy-kubeconfig")),
            (flags(Some("p"), None, true), Err("absolute")),
            (flags(None, Some("10.42.0.0"), true), Err("--cluster-cidr: \"10.42.0.0\" is no range")),
            (flags(None, Some("10.0.0.0/8,fd00::/8,11.0.0.0/8"), true), Err("one range of each family")),
            (off(flags(Some("/p"), None, true)), Err("--service-proxy-kubeconfig: needs --service-proxy")),
            (off(flags(None, Some("10.42.0.0/16"), true)), Err("--cluster-cidr: needs --service-proxy")),
            (Flags { service_proxy: true, ..Flags::default() }, Err("needs --kubeconfig or --server")),
        ] {
            let found = service_proxy(&flags).map_err(|why| why.0);
            let shown = found.map(|settings| match settings {
                None => "None".to_owned(),
                Some(ServiceProxySettings { kubeconfig, cluster_cidrs }) => {
                    let cidrs: Vec<String> = cluster_cidrs.iter().map(Network::to_string).collect();
                    let kubeconfig = kubeconfig.unwrap_or_else(|| "k3s".into());
                    format!("{} [{}]", kubeconfig.display(), cidrs.join(" "))
                }
            });
            match (&shown, wanted) {
                (Ok(found), Ok(wanted)) => assert_eq!(found, wanted),
                (Err(why), Err(wanted)) => assert!(why.contains(wanted), "{why}"),
                (found, wanted) => panic!("{found:?} and not {wanted:?}"),
            }
        }
    }

    #[test]
    fn policies_need_a_cluster_and_credentials_for_all_of_it() {
        let flags = |is_on: bool, kubeconfig: Option<&str>, server: bool, cluster: bool| Flags {
            network_policy: is_on,
            network_policy_kubeconfig: kubeconfig.map(PathBuf::from),
            server: server.then(|| "https://h:6443".to_owned()),
            kubeconfig: cluster.then(|| "/etc/k".into()),
            ..Flags::default()
        };
        for (flags, wanted) in [
            (flags(false, None, true, false), Ok(None)),
            (flags(true, None, true, false), Ok(Some("/k3s/k3scontroller.kubeconfig"))),
            (flags(true, Some("/p"), true, false), Ok(Some("/p"))),
            (flags(true, Some("/p"), false, true), Ok(Some("/p"))),
            (flags(true, None, false, true), Err("needs --network-policy-kubeconfig")),
            (flags(true, Some("/p"), false, false), Err("needs --kubeconfig or --server")),
            (flags(true, Some("p"), true, false), Err("absolute")),
            (flags(false, Some("/p"), true, false), Err("needs --network-policy")),
        ] {
            match (network_policy(&flags, Path::new("/k3s")), wanted) {
                (Ok(found), Ok(wanted)) => assert_eq!(found.as_deref(), wanted.map(Path::new)),
                (Err(why), Err(wanted)) => assert!(why.0.contains(wanted), "{}", why.0),
                (found, wanted) => panic!("{found:?} and not {wanted:?}"),
            }
        }
    }

    #[test]
    fn a_bootstrap_kubeconfig_is_for_the_kubeconfig_that_is_written() {
        let given = |bootstrap: &str, kubeconfig: Option<&str>| {
            bootstrap_of(&Flags {
                bootstrap_kubeconfig: Some(bootstrap.into()),
                kubeconfig: kubeconfig.map(PathBuf::from),
                ..Flags::default()
            })
        };
        let bootstrap_path = given("/etc/b", Some("/etc/k"));
        assert_eq!(bootstrap_path, Ok(Some(PathBuf::from("/etc/b"))));
        assert!(given("/etc/b", None).unwrap_err().contains("needs --kubeconfig"));
        assert!(given("b", Some("/etc/k")).unwrap_err().contains("absolute"));
        assert_eq!(bootstrap_of(&Flags::default()), Ok(None));
    }

    #[cfg(feature = "tls")]
    #[test]
    fn a_k3s_server_is_joined_by_one_token() {
        let url = || Some("https://10.0.0.1:6443".to_owned());
        let flags = |server, token: Option<&str>, file: Option<&str>| Flags {
            server,
            token: token.map(|token| Secret::from(token.to_owned())),
            token_file: file.map(PathBuf::from),
            ..Flags::default()
        };
        let given = k3s(&flags(url(), Some("hunter2"), None)).unwrap().unwrap();
        assert_eq!(given.node_password, Path::new("/etc/rancher/node/password"));
        assert!(!format!("{given:?}").contains("hunter2"));
        assert_eq!((given.load_balancer_port, given.node_id), (Some(6444), None));
        let more = Flags { with_node_id: true, lb_server_port: Some(0), ..flags(url(), Some("t"), None) };
        let given = k3s(&more).unwrap().unwrap();
        assert_eq!(given.node_id.as_deref(), Some(Path::new("/etc/rancher/node/id")));
        assert_eq!(given.load_balancer_port, None);
        for alone in [
            Flags { with_node_id: true, ..Flags::default() },
            Flags { lb_server_port: Some(1), ..Flags::default() },
        ] {
            assert!(k3s(&alone).unwrap_err().0.contains("needs --server"));
        }
        let of_file = flags(url(), None, Some("/etc/token"));
        assert_eq!(k3s(&of_file).unwrap().unwrap().token, TokenSource::File("/etc/token".into()));
        // Whether there is a certificate is seen at the start.
        let without = Flags { k3s_agent_dir: Some("/k3s/agent".into()), ..flags(url(), None, None) };
        let of_k3s = TokenSource::EarlierJoin(Some("/k3s/agent".into()));
        assert_eq!(k3s(&without).unwrap().unwrap().token, of_k3s);
        let path = kubeconfig(&of_file, Path::new("/k3s")).unwrap();
        assert_eq!(path.as_deref(), Some(Path::new("/k3s/kubelet.kubeconfig")));
        let both = Flags { kubeconfig: Some("/etc/k".into()), ..of_file };
        assert!(kubeconfig(&both, Path::new("/k3s")).unwrap_err().0.contains("beside --server"));
        for (flags, named) in [
            (flags(url(), Some("t"), Some("/t")), "--token: may not be given beside --token-file"),
            (flags(url(), None, Some("t")), "--token-file: must be an absolute path"),
            (flags(None, Some("hunter2"), None), "--token: needs --server"),
            (flags(None, None, Some("/t")), "--token-file: needs --server"),
            (flags(Some("https://h/x".to_owned()), Some("t"), None), "without a path"),
            (
                flags(Some("http://h".to_owned()), Some("t"), None),
                "--server: \"http://h\": must begin with https://",
            ),
        ] {
            let why = k3s(&flags).unwrap_err().0;
            assert!(why.contains(named) && !why.contains("hunter2"), "{why}");
        }
        assert_eq!(k3s(&Flags::default()), Ok(None));
    }

    #[test]
    fn flannel_is_of_a_k3s_cluster() {
        let server = Some("https://10.0.0.1:6443".to_owned());
        let with = Flags { flannel: true, server, ..Flags::default() };
        let settings = flannel(&with).unwrap().unwrap();
        assert_eq!(settings.subnet_file, Path::new("/run/flannel/subnet.env"));
        let on = Flags { flannel_iface: Some("eth1".to_owned()), ..with.clone() };
        assert_eq!(flannel(&on).unwrap().unwrap().interface.as_deref(), Some("eth1"));
        assert_eq!(flannel(&Flags::default()), Ok(None));
        for (flags, named) in [
            (Flags { server: None, ..with.clone() }, "--flannel: needs --server"),
            (Flags { flannel: false, ..on }, "--flannel-iface: needs --flannel"),
            (Flags { cni_bridge: Some("/c".into()), ..with.clone() }, "beside --flannel"),
            (Flags { flannel_iface: Some(String::new()), ..with }, "--flannel-iface: must be"),
        ] {
            let why = flannel(&flags).unwrap_err().0;
            assert!(why.contains(named), "{why}");
        }
    }

    fn bootstrap_of(flags: &Flags) -> Result<Option<PathBuf>, String> {
        bootstrap(flags).map_err(|error| error.0)
    }
}
