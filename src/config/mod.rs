//! Flags and a KubeletConfiguration file become one validated [`Config`].
//!
//! Precedence, as in the kubelet: a flag overrides the file, the file overrides the default.

mod call;
mod cluster;
#[cfg(feature = "tls")]
mod configz;
mod embedded;
mod eviction;
mod features;
pub mod fields;
mod gc;
mod images;
mod kubelet;
mod logs;
mod node_api;
#[cfg(test)]
mod packaged;
mod registration;
mod shutdown;
mod static_pods;

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::gc::GcPolicy;
use crate::image::gc::ImageGcPolicy;
use crate::image::pulled::policy::VerificationPolicy;
use crate::limits::{self, ApiRates, Rate};
use crate::logs::memory::LogMemory;
use crate::logs::rotate::Rotation;
use crate::model::names;
use crate::render::{CgroupDriver, SwapBehavior, admission};
use crate::resolv_conf::Resolver;
use crate::shutdown::ShutdownGroups;
use crate::systemd::notify::Supervisor;
use kubelet::GoDuration;

pub use call::Call;
pub use cluster::{FlannelSettings, K3s, Secret, ServiceProxySettings, TokenSource};
pub use embedded::EmbeddedSettings;
pub use eviction::EvictionPolicy;
pub(crate) use kubelet::parse_go_duration;
pub use kubelet::{FileSettings, files_in};
pub use node_api::{Authorization, NodeApi};
pub use registration::{NodeTaint, Periods, Registration, Reserved};
pub use static_pods::StaticPodUrl;

pub use crate::paths;

/// The flags of `smolet run`, as given; `None` = not given.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Flags {
    /// Directory of pod manifests (kubelet: staticPodPath) [default: /etc/smolet/manifests]
    #[arg(long, value_name = "DIR", visible_alias = "pod-manifest-path")]
    pub manifests: Option<PathBuf>,
    /// State, and the pods' directories [default: /var/lib/smolet]
    #[arg(long, value_name = "DIR")]
    pub root_dir: Option<PathBuf>,
    /// The runtime's CRI socket, e.g. `unix:///run/containerd/containerd.sock`, or embedded: smolet runs the containers [default:
    /// the first socket that answers; embedded where no CRI runtime is installed]
    #[arg(long, value_name = "URI", visible_alias = "container-runtime-endpoint")]
    pub runtime_endpoint: Option<String>,
    /// End this node's pods in the runtime at this socket before pods start in another: the runtime that the node leaves
    #[arg(long, value_name = "URI")]
    pub drain_runtime: Option<String>,
    /// The node's name, also the ending of every static pod's name [default: the host's name at first start]
    #[arg(long, value_name = "NAME", visible_alias = "hostname-override")]
    pub node_name: Option<String>,
    /// Directory of image archives to import [default: images in the state directory]
    #[arg(long, value_name = "DIR")]
    pub images_dir: Option<PathBuf>,
    /// Container logs [default: /var/log/pods]
    #[arg(long, value_name = "DIR")]
    pub pod_logs_dir: Option<PathBuf>,
    /// Memory for a pod's container logs, which are not written to the disk then [default: 0, they are]
    #[arg(long, value_name = "QUANTITY")]
    pub pod_logs_memory: Option<String>,
    /// Time after which the newest lines of logs in memory are written to the disk; 0 = only when the agent ends [default: 1h]
    #[arg(long, value_name = "DURATION")]
    pub pod_logs_flush_period: Option<String>,
    /// Symlinks to container logs [default: /var/log/containers]
    #[arg(long, value_name = "DIR")]
    pub container_logs_dir: Option<PathBuf>,
    /// Bytes of a container's log before it is rotated; negative = never (kubelet: containerLogMaxSize) [default: 10Mi]
    #[arg(long, value_name = "QUANTITY", allow_hyphen_values = true)]
    pub container_log_max_size: Option<String>,
    /// Files of a container's log, rotated ones included (kubelet: containerLogMaxFiles) [default: 5]
    #[arg(long, value_name = "COUNT")]
    pub container_log_max_files: Option<i32>,
    /// Space that image garbage collection keeps free, at most a quarter of the disk, besides the percentages (imageGC*)
    /// [default: 512Mi]
    #[arg(long, value_name = "QUANTITY")]
    pub image_gc_min_available: Option<String>,
    /// How long an ended container is kept at least (kubelet's flag) [default: 0s]
    #[arg(long, value_name = "DURATION")]
    pub minimum_container_ttl_duration: Option<String>,
    /// Ended instances kept of each container; negative = all (kubelet's flag) [default: 1]
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true)]
    pub maximum_dead_containers_per_container: Option<i32>,
    /// Ended containers kept of all running pods together; negative = no limit (kubelet's flag) [default: -1]
    #[arg(long, value_name = "COUNT", allow_negative_numbers = true)]
    pub maximum_dead_containers: Option<i32>,
    /// Parent of the pods' cgroups [default: /]
    #[arg(long, value_name = "PATH")]
    pub cgroup_root: Option<String>,
    /// Where the cgroup hierarchies are mounted [default: /sys/fs/cgroup]
    #[arg(long, value_name = "DIR")]
    pub cgroup_mounts: Option<PathBuf>,
    /// Where the kernel's settings are; for tests.
    #[arg(long, value_name = "DIR", hide = true)]
    pub sysctl_root: Option<PathBuf>,
    /// cgroupfs or systemd [default: cgroupfs]
    #[arg(long, value_name = "DRIVER", value_parser = ["cgroupfs", "systemd"])]
    pub cgroup_driver: Option<String>,
    /// Memory for the pods' statuses, in bytes [default: 2097152]
    #[arg(long, value_name = "BYTES")]
    pub status_store_bytes: Option<usize>,
    /// Time for all pods to end when the machine shuts down (kubelet: shutdownGracePeriod) [default: pods are not ended]
    #[arg(long, value_name = "DURATION")]
    pub shutdown_grace_period: Option<String>,
    /// The part of it for critical pods (kubelet: shutdownGracePeriodCriticalPods) [default: 0s]
    #[arg(long, value_name = "DURATION")]
    pub shutdown_grace_period_critical_pods: Option<String>,
    /// Treat every SIGTERM as a shutdown of the machine: for machines without logind and systemd
    #[arg(long)]
    pub shutdown_on_sigterm: bool,
    /// End pods that a kubelet has left on this node and that no source wants
    #[arg(long)]
    pub take_over: bool,
    /// Join the cluster of this kubeconfig; manifests are still read
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Request a certificate with the token of this kubeconfig, and write that of --kubeconfig, when that does not exist
    #[arg(long, value_name = "FILE")]
    pub bootstrap_kubeconfig: Option<PathBuf>,
    /// Join the cluster of this k3s server, `https://HOST:6443`; needs --token-file or --token
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
    /// Token of that cluster; visible in the process list, unlike --token-file
    #[arg(long, value_name = "TOKEN")]
    pub token: Option<Secret>,
    /// File with that token
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Append an ID of this machine's own to the node's name (/etc/rancher/node/id), as k3s agent; needs --server
    #[arg(long)]
    pub with_node_id: bool,
    /// Port on 127.0.0.1 that leads to the k3s servers; 0 = none [default: 6444 with --server]
    #[arg(long, value_name = "PORT")]
    pub lb_server_port: Option<u16>,
    /// Labels of the Node when it is registered, as KEY=VALUE,...
    #[arg(long, value_name = "LABELS")]
    pub node_labels: Option<String>,
    /// Taints of the Node when it is registered, as KEY=VALUE:EFFECT,... (kubelet: registerWithTaints)
    #[arg(long, value_name = "TAINTS")]
    pub register_with_taints: Option<String>,
    /// The node's IP address, or one of IPv4 and one of IPv6 [default: those of the default routes]
    #[arg(long, value_name = "IP")]
    pub node_ip: Option<String>,
    /// Address by which the node is reached from outside its network, or one of IPv4 and one of IPv6, as with k3s agent; needs
    /// --server
    #[arg(long, value_name = "IP")]
    pub node_external_ip: Vec<String>,
    /// The cloud provider's ID of the node (kubelet: providerID)
    #[arg(long, value_name = "ID")]
    pub provider_id: Option<String>,
    /// external: the cloud's controller sets the Node's addresses
    #[arg(long, value_name = "NAME")]
    pub cloud_provider: Option<String>,
    /// Address that the node's API listens on, in a cluster [default: 0.0.0.0]
    #[arg(long, value_name = "IP")]
    pub address: Option<String>,
    /// Port of the node's API [default: 10250]
    #[arg(long, value_name = "PORT", allow_negative_numbers = true)]
    pub port: Option<i32>,
    /// Certificate of the node's API, in PEM (kubelet: tlsCertFile) [default: self-signed, in the state directory]
    #[arg(long, value_name = "FILE")]
    pub tls_cert_file: Option<PathBuf>,
    /// The key of that certificate, in PEM (kubelet: tlsPrivateKeyFile)
    #[arg(long, value_name = "FILE")]
    pub tls_private_key_file: Option<PathBuf>,
    /// Authorities of client certificates, in PEM [default: no client is authenticated by a certificate]
    #[arg(long, value_name = "FILE")]
    pub client_ca_file: Option<PathBuf>,
    /// Write a CNI configuration of a bridge with the Node's podCIDR to DIR, unless there is another one; needs --kubeconfig
    /// [DIR without a value: /etc/cni/net.d]
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true, default_missing_value = paths::CNI)]
    pub cni_bridge: Option<PathBuf>,
    /// Serve the cluster's Services on this node by nftables, in the place of kube-proxy; needs --server, or --service-proxy-kubeconfig
    #[arg(long)]
    pub service_proxy: bool,
    /// Kubeconfig that may list and watch services and endpointslices of all namespaces [default: with --server the one that the
    /// server gives]
    #[arg(long, value_name = "FILE")]
    pub service_proxy_kubeconfig: Option<PathBuf>,
    /// Ranges of the cluster's pods: what comes from elsewhere to a cluster IP is masqueraded [default: with --server the server's]
    #[arg(long, value_name = "CIDRS")]
    pub cluster_cidr: Option<String>,
    /// Connections that the kernel tracks for each processor, 0 = as it is (kube-proxy's flag); needs --server [default: 32768]
    #[arg(long, value_name = "COUNT", requires = "server")]
    pub conntrack_max_per_core: Option<i32>,
    /// Connections that the kernel tracks at least (kube-proxy's flag) [default: 131072]
    #[arg(long, value_name = "COUNT", requires = "server")]
    pub conntrack_min: Option<i32>,
    /// Time without packets after which the kernel forgets an established connection, 0 = as it is (kube-proxy's flag)
    /// [default: 24h]
    #[arg(long, value_name = "DURATION", requires = "server")]
    pub conntrack_tcp_timeout_established: Option<String>,
    /// The same of a connection in the state `CLOSE_WAIT` (kube-proxy's flag) [default: 1h]
    #[arg(long, value_name = "DURATION", requires = "server")]
    pub conntrack_tcp_timeout_close_wait: Option<String>,
    /// Bring up the pods' network between nodes as k3s agent does (flannel: vxlan, host-gw or wireguard-native, as the server has it); needs --server
    #[arg(long)]
    pub flannel: bool,
    /// Interface between the nodes, by its name or an address of it; without --node-ip its addresses are the node's
    /// [default: that of the node's address]
    #[arg(long, value_name = "NAME")]
    pub flannel_iface: Option<String>,
    /// Enforce network policies of this node's pods with nftables; needs --server, or --network-policy-kubeconfig
    #[arg(long)]
    pub network_policy: bool,
    /// Kubeconfig that may list and watch pods, namespaces and networkpolicies of all namespaces [default: with --server the one
    /// that the server gives]
    #[arg(long, value_name = "FILE")]
    pub network_policy_kubeconfig: Option<PathBuf>,
    /// OCI runtime of the embedded runtime; with NAME= that of the `RuntimeClass` handler NAME, once for each [default: crun, else runc]
    #[arg(long, value_name = "[NAME=]PATH")]
    pub oci_runtime: Vec<String>,
    /// Give the embedded runtime's containers `SELinux` labels, where the node has a policy (k3s' flag)
    #[arg(long)]
    pub selinux: bool,
    /// In a cluster too, hostPath volumes of type `CharDevice` and `BlockDevice` open their device to containers that are not privileged
    #[arg(long)]
    pub host_path_devices: bool,
    /// Directory of CNI configurations of the embedded runtime [default: /etc/cni/net.d]
    #[arg(long, value_name = "DIR")]
    pub cni_conf_dir: Option<PathBuf>,
    /// Directory of CNI plugins of the embedded runtime, once for each [default: /opt/cni/bin, /usr/lib/cni]
    #[arg(long, value_name = "DIR")]
    pub cni_bin_dir: Vec<PathBuf>,
    /// Directory with HOST/hosts.toml for registries, as containerd's `config_path` [default: /etc/smolet/certs.d, then
    /// /etc/containerd/certs.d]
    #[arg(long, value_name = "DIR")]
    pub registry_config_dir: Option<PathBuf>,
    /// Mirrors and credentials of registries in k3s' format [default: /etc/rancher/k3s/registries.yaml]
    #[arg(long, value_name = "FILE")]
    pub registries: Option<PathBuf>,
    /// Write the mirrors and certificates of --registries to DIR/HOST/hosts.toml for containerd, whose `config_path` DIR is
    #[arg(long, value_name = "DIR")]
    pub containerd_certs_dir: Option<PathBuf>,
    /// Pull images of a registry that has mirrors from these alone, not from the registry itself (k3s' flag)
    #[arg(long)]
    pub disable_default_registry_endpoint: bool,
    /// A KubeletConfiguration file (kubelet.config.k8s.io/v1beta1)
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// A directory of such files, `*.conf`: by their names, each counts more than those before it and than --config
    #[arg(long, value_name = "DIR")]
    pub config_dir: Option<PathBuf>,
    /// The kubelet's flags for fields of such a file, without dashes, and their values.
    #[arg(skip)]
    pub kubelet: Vec<(String, String)>,
    /// The directory in which `k3s agent` has its certificates, for a node without a token.
    #[arg(skip)]
    pub k3s_agent_dir: Option<PathBuf>,
}

/// The validated settings of `smolet run`.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Directory of pod manifests.
    pub manifests: PathBuf,
    /// State and pod directories; one agent each (flock).
    pub root_dir: PathBuf,
    /// Directory of image archives to import.
    pub images_dir: PathBuf,
    /// The local socket.
    pub socket: PathBuf,
    /// The runtime's socket, or `embedded`, if given.
    pub runtime_endpoint: Option<String>,
    /// The socket of the runtime that the node leaves, if given.
    pub drain_runtime: Option<String>,
    /// Settings of the embedded runtime.
    pub embedded: EmbeddedSettings,
    /// The node's name, if given.
    pub node_name: Option<String>,
    /// Container logs by pod.
    pub pod_logs_dir: PathBuf,
    /// Container logs in memory.
    pub log_memory: LogMemory,
    /// Symlinks by container.
    pub container_logs_dir: PathBuf,
    /// Root of the pods' cgroups.
    pub cgroup_root: String,
    /// Driver of the pods' cgroups.
    pub cgroup_driver: CgroupDriver,
    /// Mount points of the cgroup hierarchies; hierarchies elsewhere are not used.
    pub cgroup_mounts: PathBuf,
    /// systemd's socket, for the driver that creates slices through it.
    pub systemd_socket: PathBuf,
    /// CPU limits are enforced by CFS quota.
    pub cpu_cfs_quota: bool,
    /// Period of that quota.
    pub cpu_cfs_quota_period: Duration,
    /// Pods without a seccomp profile get `RuntimeDefault`.
    pub seccomp_default: bool,
    /// hostPath volumes of type `CharDevice` and `BlockDevice` open their device to containers that are not privileged.
    pub opens_devices: bool,
    /// Unsafe sysctls that pods may set; a trailing `*` matches the rest of a name. `None`: none, or those that a k3s server's
    /// own pods need.
    pub allowed_unsafe_sysctls: Option<Vec<String>>,
    /// DNS servers for pods with `dnsPolicy: ClusterFirst`.
    pub cluster_dns: Vec<String>,
    /// The cluster's DNS domain.
    pub cluster_domain: String,
    /// The node's resolver configuration; empty = it is not used for pods.
    pub resolv_conf: PathBuf,
    /// systemd-resolved's, for pods that cannot reach the node's servers; `None`: a file is configured, and is used as it is.
    pub upstream_resolv_conf: Option<PathBuf>,
    /// Period in which the manifest directory is read besides inotify.
    pub file_check_frequency: Duration,
    /// A URL with further manifests (`staticPodURL`).
    pub static_pods: Option<StaticPodUrl>,
    /// Timeout of a call to the runtime that has no rule of its own.
    pub runtime_request_timeout: Duration,
    /// Pods of this node, at most `limits::PODS_MAX`.
    pub max_pods: usize,
    /// Longest crash-loop back-off.
    pub max_container_restart_period: Duration,
    /// Image pulls at a time (`serializeImagePulls`, `maxParallelImagePulls`).
    pub image_pulls: usize,
    /// When container logs are rotated; `None` = never.
    pub log_rotation: Option<Rotation>,
    /// When unused images are removed; `None` = never.
    pub image_gc: Option<ImageGcPolicy>,
    /// When pods are evicted.
    pub eviction: EvictionPolicy,
    /// Path of the kernel's memory statistics.
    pub meminfo: PathBuf,
    /// Which dead containers are removed.
    pub dead_containers: GcPolicy,
    /// Memory for the pods' statuses.
    pub status_store_bytes: usize,
    /// The service manager, if it expects notifications; from the process's environment.
    pub supervisor: Option<Supervisor>,
    /// Graceful node shutdown.
    pub shutdown: ShutdownGroups,
    /// SIGTERM counts as the machine's shutdown.
    pub shutdown_on_sigterm: bool,
    /// Pods of a former agent that no source has are terminated.
    pub take_over: bool,
    /// The system bus with logind.
    pub system_bus: PathBuf,
    /// The kubeconfig of the cluster that this node joins; `None` = standalone.
    pub kubeconfig: Option<PathBuf>,
    /// The bootstrap kubeconfig, used when there is no certificate yet.
    pub bootstrap_kubeconfig: Option<PathBuf>,
    /// The k3s server that issues certificate and kubeconfig; `None` = another way of joining.
    pub k3s: Option<K3s>,
    /// The client certificate is renewed before it expires.
    pub rotate_certificates: bool,
    /// The cluster signs the serving certificate of the node's API.
    pub server_tls_bootstrap: bool,
    /// Settings of the Node object.
    pub registration: Registration,
    /// The node's own API.
    pub node_api: NodeApi,
    /// Directory of the bridge's CNI configuration; `None` = none is written.
    pub cni_bridge: Option<PathBuf>,
    /// The service proxy; `None`: Services are not served.
    pub service_proxy: Option<ServiceProxySettings>,
    /// containerd's directory of `HOST/hosts.toml`; `None` = none are written.
    pub containerd_certs_dir: Option<PathBuf>,
    /// flannel's network; `None` = it is not brought up.
    pub flannel: Option<FlannelSettings>,
    /// Kubeconfig for network policies; `None`: they are not enforced.
    pub network_policy: Option<PathBuf>,
    /// The agent checks the kernel's settings instead of setting them (`protectKernelDefaults`).
    pub protect_kernel_defaults: bool,
    /// Root of the kernel's sysctls.
    pub sysctl_root: PathBuf,
    /// The agent creates the iptables chains by which network plugins choose the iptables variant, and `KUBE-FIREWALL`
    /// (`makeIPTablesUtilChains`).
    pub make_iptables_util_chains: bool,
    /// The agent refuses to start on a node with swap (`failSwapOn`).
    pub fail_swap_on: bool,
    /// Settings of the agent's own process.
    pub process: Process,
    /// Which containers may swap (`memorySwap.swapBehavior`).
    pub memory_swap: SwapBehavior,
    /// An OOM kill ends one process and not its container; on cgroup v2 (`singleProcessOOMKill`).
    pub single_process_oom_kill: bool,
    /// PID limit of a pod; `None` = no limit (`podPidsLimit`).
    pub pod_pids_limit: Option<u64>,
    /// Pods per CPU, within `max_pods`; `None` = no such limit (`podsPerCore`).
    pub pods_per_core: Option<usize>,
    /// Rate of image pulls; `None` = no limit (`registryPullQPS`, `registryBurst`).
    pub pull_rate: Option<Rate>,
    /// For which present images a pod's credentials are verified (`imagePullCredentialsVerificationPolicy`).
    pub pull_verification: VerificationPolicy,
    /// Rates of requests and events to the API server.
    pub api_rates: ApiRates,
    /// Images in the Node's status (`nodeStatusMaxImages`).
    pub node_images: usize,
    /// Fields with other values than their defaults, for `/configz`.
    pub given: FileSettings,
}

/// Settings of the agent's own process; `None`: the service manager's value is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Process {
    /// `oomScoreAdj`.
    pub oom_score_adj: Option<i64>,
    /// `maxOpenFiles`.
    pub open_files: Option<u64>,
}

/// Why the configuration is refused: one message that names the flag or field and the remedy.
#[derive(Debug, PartialEq, Eq)]
pub struct ConfigError(pub String);

impl std::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ConfigError {}

impl Config {
    /// Merges the flags with the file they name, if any.
    ///
    /// # Errors
    /// When the file cannot be read, holds unknown or unsupported fields (all are named), or a value is out of
    /// range.
    pub fn load(flags: &Flags, socket: Option<&Path>) -> Result<Config, ConfigError> {
        let mut file = match &flags.config {
            Some(path) => FileSettings::read(path)?,
            None => FileSettings::default(),
        };
        if let Some(dir) = &flags.config_dir {
            file.take_directory(dir)?;
        }
        Config::join(flags, socket, file)
    }

    fn join(flags: &Flags, socket: Option<&Path>, mut file: FileSettings) -> Result<Config, ConfigError> {
        file.take_stronger(of_kubelet_flags(flags)?);
        if flags.server.is_some() {
            file.take_weaker(of_k3s()?);
        }
        let path = |flag: &Option<PathBuf>, file: Option<PathBuf>, default: &str| {
            flag.clone().or(file).unwrap_or_else(|| PathBuf::from(default))
        };
        let time = |field: &str, default| file.time(field).map_or(default, |duration| duration.0);
        let nonzero = |field: &str, default| GoDuration::or(file.time(field), default);
        let node_api = node_api::join(flags, &file)?;
        let registration = registration::join(flags, &file)?;
        let server_tls_bootstrap = cluster::server_tls_bootstrap(flags, &file, &node_api)?;
        features::check(&file)?;
        let manifests = file.path("staticPodPath").filter(|path| !path.as_os_str().is_empty());
        let root_dir = path(&flags.root_dir, None, paths::ROOT_DIR);
        let root_of_k3s = root_dir.join("k3s");
        let config = Config {
            images_dir: flags.images_dir.clone().unwrap_or_else(|| root_dir.join("images")),
            manifests: path(&flags.manifests, manifests, paths::MANIFESTS),
            root_dir,
            socket: socket.map_or_else(|| PathBuf::from(paths::SOCKET), Path::to_path_buf),
            runtime_endpoint: runtime_endpoint(flags, &file),
            embedded: EmbeddedSettings::of(flags).map_err(ConfigError)?,
            drain_runtime: flags.drain_runtime.clone().filter(|endpoint| !endpoint.is_empty()),
            node_name: flags.node_name.clone(),
            pod_logs_dir: path(&flags.pod_logs_dir, file.path("podLogsDir"), paths::POD_LOGS),
            log_memory: logs::log_memory(flags, &file)?,
            container_logs_dir: path(&flags.container_logs_dir, None, paths::CONTAINER_LOGS),
            cgroup_root: cgroup_root(flags, &file),
            cgroup_driver: cgroup_driver(flags.cgroup_driver.as_deref().or(file.text("cgroupDriver")))?,
            cgroup_mounts: path(&flags.cgroup_mounts, None, paths::CGROUP_MOUNTS),
            systemd_socket: paths::SYSTEMD.into(),
            cpu_cfs_quota: file.bool("cpuCFSQuota").unwrap_or(true),
            cpu_cfs_quota_period: time("cpuCFSQuotaPeriod", Duration::from_millis(100)),
            seccomp_default: file.bool("seccompDefault").unwrap_or(false),
            // In a cluster a pod's author is not the node's owner.
            opens_devices: flags.host_path_devices || (flags.kubeconfig.is_none() && flags.server.is_none()),
            // None, as the kubelet's default says, is no choice of the configuration's.
            allowed_unsafe_sysctls: Some(file.texts("allowedUnsafeSysctls")).filter(|all| !all.is_empty()),
            cluster_dns: file.texts("clusterDNS"),
            cluster_domain: file.text("clusterDomain").unwrap_or_default().to_owned(),
            upstream_resolv_conf: match file.text("resolvConf") {
                None | Some(paths::RESOLV_CONF) => Some(paths::UPSTREAM_RESOLV_CONF.into()),
                Some(_) => None,
            },
            resolv_conf: path(&None, file.path("resolvConf"), paths::RESOLV_CONF),
            file_check_frequency: nonzero("fileCheckFrequency", limits::FILE_CHECK_FREQUENCY),
            static_pods: static_pods::url(&file)?,
            runtime_request_timeout: nonzero("runtimeRequestTimeout", limits::RUNTIME_REQUEST_TIMEOUT),
            max_pods: max_pods(file.int("maxPods"))?,
            max_container_restart_period: time(
                "crashLoopBackOff.maxContainerRestartPeriod",
                limits::CRASH_BACKOFF_MAX,
            ),
            image_pulls: images::image_pulls(&file)?,
            log_rotation: logs::log_rotation(flags, &file)?,
            image_gc: Some(gc::image_gc(flags, &file)?),
            eviction: eviction::policy(eviction::GivenFields::of(&file))?,
            meminfo: paths::MEMINFO.into(),
            dead_containers: gc::dead_containers(flags)?,
            status_store_bytes: flags.status_store_bytes.unwrap_or(limits::STATUS_STORE_BYTES),
            supervisor: None,
            shutdown: shutdown::groups(flags, &file)?,
            shutdown_on_sigterm: flags.shutdown_on_sigterm,
            take_over: flags.take_over,
            system_bus: paths::SYSTEM_BUS.into(),
            kubeconfig: cluster::kubeconfig(flags, &root_of_k3s)?,
            k3s: cluster::k3s(flags)?,
            bootstrap_kubeconfig: cluster::bootstrap(flags)?,
            rotate_certificates: file.bool("rotateCertificates").unwrap_or(false),
            server_tls_bootstrap,
            registration,
            node_api,
            cni_bridge: cluster::cni_bridge(flags)?,
            service_proxy: cluster::service_proxy(flags)?,
            containerd_certs_dir: images::certs_dir(flags)?,
            flannel: cluster::flannel(flags)?,
            network_policy: cluster::network_policy(flags, &root_of_k3s)?,
            protect_kernel_defaults: file.bool("protectKernelDefaults").unwrap_or(false),
            sysctl_root: path(&flags.sysctl_root, None, "/proc/sys"),
            make_iptables_util_chains: file.bool("makeIPTablesUtilChains").unwrap_or(true),
            fail_swap_on: file.bool("failSwapOn").unwrap_or(false),
            process: process(&file)?,
            memory_swap: swap_behavior(file.text("memorySwap.swapBehavior"))?,
            single_process_oom_kill: file.bool("singleProcessOOMKill").unwrap_or(false),
            pod_pids_limit: positive(file.long("podPidsLimit")),
            pods_per_core: positive(between(&file, "podsPerCore", 0, i64::from(i32::MAX))?),
            pull_rate: limit(rate(&file, ("registryPullQPS", 5), ("registryBurst", 10))?),
            pull_verification: images::pull_verification(&file)?,
            api_rates: api_rates(&file)?,
            node_images: images::reported_max(&file)?,
            given: file.shown(),
        };
        config.check().map(|()| config)
    }

    /// The files of the node's resolver configuration.
    pub fn resolver(&self) -> Resolver {
        Resolver { path: self.resolv_conf.clone(), upstream: self.upstream_resolv_conf.clone() }
    }

    /// The interface whose addresses are the node's (`--flannel-iface`, as with k3s); `None`: given ones are, or those of the
    /// default routes.
    pub fn node_interface(&self) -> Option<&str> {
        let of_flannel = self.flannel.as_ref().filter(|_| self.registration.addresses.is_empty());
        of_flannel?.interface.as_deref()
    }

    /// The CRI socket of the embedded runtime: beside the local socket.
    pub fn cri_socket(&self) -> PathBuf {
        self.socket.with_file_name("cri.sock")
    }

    /// State of the embedded runtime that is of this boot only: beside the local socket.
    pub fn runtime_run_dir(&self) -> PathBuf {
        self.socket.with_file_name("runtime")
    }

    fn check(&self) -> Result<(), ConfigError> {
        for (name, path) in [
            ("--manifests (staticPodPath)", &self.manifests),
            ("--root-dir", &self.root_dir),
            ("--images-dir", &self.images_dir),
            ("--socket", &self.socket),
            ("--pod-logs-dir (podLogsDir)", &self.pod_logs_dir),
            ("--container-logs-dir", &self.container_logs_dir),
            ("--cgroup-mounts", &self.cgroup_mounts),
            ("resolvConf", &self.resolv_conf),
        ] {
            // The runtime resolves paths in its own working directory, so a relative one would be ambiguous.
            let none = name == "resolvConf" && path.as_os_str().is_empty();
            if !path.is_absolute() && !none {
                return Err(ConfigError(format!("{name}: {}: must be an absolute path", path.display())));
            }
        }
        let within = |name: &str, value: Duration, least: Duration, most: Duration| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            let [value, least, most] = [value, least, most].map(|duration| duration.as_secs_f64());
            Err(ConfigError(format!("{name}: {value} s: must be between {least} s and {most} s")))
        };
        let (second, day) = (Duration::from_secs(1), Duration::from_hours(24));
        within("fileCheckFrequency", self.file_check_frequency, second, day)?;
        if let Some(of) = &self.static_pods {
            within("httpCheckFrequency", of.period, second, day)?;
        }
        within("runtimeRequestTimeout", self.runtime_request_timeout, second, day)?;
        within(
            "crashLoopBackOff.maxContainerRestartPeriod",
            self.max_container_restart_period,
            second,
            limits::CRASH_BACKOFF_MAX,
        )?;
        within("cpuCFSQuotaPeriod", self.cpu_cfs_quota_period, Duration::from_millis(1), second)?;
        let (bytes, least, most) =
            (self.status_store_bytes, limits::STATUS_STORE_BYTES_MIN, limits::STATUS_STORE_BYTES_MAX);
        if !(least..=most).contains(&bytes) {
            return Err(ConfigError(format!(
                "--status-store-bytes: {bytes}: must be between {least} and {most}"
            )));
        }
        if self.shutdown_on_sigterm && self.shutdown.is_empty() {
            return Err(ConfigError(
                "--shutdown-on-sigterm: needs the time that pods may take, shutdownGracePeriod or --shutdown-grace-period"
                    .to_owned(),
            ));
        }
        self.check_cluster_dns()?;
        self.check_unsafe_sysctls()?;
        if !self.cgroup_root.starts_with('/') || self.cgroup_root.split('/').any(|part| part == "..") {
            return Err(ConfigError(format!(
                "cgroupRoot: {:?}: must be an absolute path without ..",
                self.cgroup_root
            )));
        }
        Ok(())
    }

    fn check_cluster_dns(&self) -> Result<(), ConfigError> {
        if self.cluster_dns.len() > limits::DNS_SERVERS_MAX {
            return Err(ConfigError(format!("clusterDNS: at most {} servers", limits::DNS_SERVERS_MAX)));
        }
        for server in &self.cluster_dns {
            if server.parse::<std::net::IpAddr>().is_err() {
                return Err(ConfigError(format!("clusterDNS: {server:?}: must be an IP address")));
            }
        }
        let domain =
            (!self.cluster_domain.is_empty()).then(|| names::subdomain(&self.cluster_domain)).flatten();
        match domain {
            Some(rule) => Err(ConfigError(format!("clusterDomain: {:?}: {rule}", self.cluster_domain))),
            None => Ok(()),
        }
    }

    fn check_unsafe_sysctls(&self) -> Result<(), ConfigError> {
        let Some(sysctls) = &self.allowed_unsafe_sysctls else { return Ok(()) };
        if sysctls.len() > limits::UNSAFE_SYSCTLS_MAX {
            return Err(ConfigError(format!(
                "allowedUnsafeSysctls: at most {} patterns",
                limits::UNSAFE_SYSCTLS_MAX
            )));
        }
        if let Some(other) = sysctls.iter().find(|pattern| !admission::is_namespaced_sysctl(pattern)) {
            return Err(ConfigError(format!(
                "allowedUnsafeSysctls: {other:?}: must begin with kernel.shm, kernel.msg, fs.mqueue. or net., or be \
                 kernel.sem: the kernel has no other sysctl for each pod"
            )));
        }
        Ok(())
    }
}

/// The configured runtime socket. Empty is the default in the packages' file: the runtime is detected.
fn runtime_endpoint(flags: &Flags, file: &FileSettings) -> Option<String> {
    let endpoint = flags.runtime_endpoint.as_deref().or(file.text("containerRuntimeEndpoint"));
    endpoint.filter(|endpoint| !endpoint.is_empty()).map(str::to_owned)
}

fn cgroup_root(flags: &Flags, file: &FileSettings) -> String {
    let root = flags.cgroup_root.as_deref().or(file.text("cgroupRoot"));
    root.filter(|root| !root.is_empty()).unwrap_or("/").to_owned()
}

/// A limit; 0 and negative numbers mean none.
fn positive<T: TryFrom<i64> + PartialOrd + Default>(limit: Option<i64>) -> Option<T> {
    limit.and_then(|limit| T::try_from(limit).ok()).filter(|limit| *limit > T::default())
}

/// The settings of the kubelet's own flags, as a file would set them.
fn of_kubelet_flags(flags: &Flags) -> Result<FileSettings, ConfigError> {
    let mut settings = FileSettings::default();
    for (flag, text) in &flags.kubelet {
        match fields::of_flag(flag) {
            Some(field) => settings.take_flag(field, text)?,
            None => return Err(ConfigError(format!("--{flag}: unknown flag"))),
        }
    }
    Ok(settings)
}

/// What `k3s agent` sets where nobody else does (`kubeletArgsAndConfig`).
///
/// Differs from k3s: the kubelet's threshold of memory stays, which k3s drops with those of inodes: a small board that is out of
/// memory is worse off with the kernel's choice of a victim.
fn of_k3s() -> Result<FileSettings, ConfigError> {
    let mut settings = FileSettings::default();
    for (flag, text) in [
        ("eviction-hard", "imagefs.available<5%,nodefs.available<5%,memory.available<100Mi"),
        ("eviction-minimum-reclaim", "imagefs.available=10%,nodefs.available=10%"),
        ("serialize-image-pulls", "false"),
    ] {
        if let Some(field) = fields::of_flag(flag) {
            settings.take_flag(field, text)?;
        }
    }
    Ok(settings)
}

fn cgroup_driver(given: Option<&str>) -> Result<CgroupDriver, ConfigError> {
    match given {
        None | Some("" | "cgroupfs") => Ok(CgroupDriver::Cgroupfs),
        Some("systemd") => Ok(CgroupDriver::Systemd),
        Some(other) => Err(ConfigError(format!("cgroupDriver: {other:?}: must be cgroupfs or systemd"))),
    }
}

fn swap_behavior(given: Option<&str>) -> Result<SwapBehavior, ConfigError> {
    match given {
        None | Some("" | "NoSwap") => Ok(SwapBehavior::NoSwap),
        Some("LimitedSwap") => Ok(SwapBehavior::LimitedSwap),
        Some(other) => {
            Err(ConfigError(format!("memorySwap.swapBehavior: {other:?}: must be NoSwap or LimitedSwap")))
        }
    }
}

fn max_pods(given: Option<i32>) -> Result<usize, ConfigError> {
    let most = limits::PODS_MAX;
    let Some(given) = given else { return Ok(most) };
    let within = usize::try_from(given).ok().filter(|pods| (1..=most).contains(pods));
    within.ok_or_else(|| ConfigError(format!("maxPods: {given}: must be between 1 and {most}")))
}

fn process(file: &FileSettings) -> Result<Process, ConfigError> {
    let open_files = between(file, "maxOpenFiles", 0, i64::MAX)?;
    Ok(Process {
        oom_score_adj: between(file, "oomScoreAdj", -1000, 1000)?,
        open_files: open_files.filter(|files| *files > 0).map(i64::unsigned_abs),
    })
}

fn api_rates(file: &FileSettings) -> Result<ApiRates, ConfigError> {
    Ok(ApiRates {
        requests: Some(match rate(file, ("kubeAPIQPS", 50), ("kubeAPIBurst", 100))? {
            // client-go's `DefaultQPS`: it treats 0 as unset.
            Rate { per_second: 0, burst } => Rate { per_second: 5, burst },
            rate => rate,
        }),
        events: limit(rate(file, ("eventRecordQPS", 50), ("eventBurst", 100))?),
    })
}

/// The configured number, within these bounds.
fn between(file: &FileSettings, field: &str, least: i64, most: i64) -> Result<Option<i64>, ConfigError> {
    match file.long(field) {
        Some(given) if !(least..=most).contains(&given) => {
            Err(ConfigError(format!("{field}: {given}: must be between {least} and {most}")))
        }
        given => Ok(given),
    }
}

/// The rate of two fields, each with its default; a burst of 0 is the default, too (`SetDefaults_KubeletConfiguration`).
fn rate(
    file: &FileSettings,
    (rate_field, rate_default): (&str, u32),
    (burst_field, burst_default): (&str, u32),
) -> Result<Rate, ConfigError> {
    let number = |field: &str, default: u32| {
        let given = between(file, field, 0, i64::from(i32::MAX))?;
        Ok(given.and_then(|given| u32::try_from(given).ok()).unwrap_or(default))
    };
    let (per_second, burst) = (number(rate_field, rate_default)?, number(burst_field, burst_default)?);
    Ok(Rate { per_second, burst: if burst == 0 { burst_default } else { burst } })
}

/// A rate of 0 is no limit.
fn limit(rate: Rate) -> Option<Rate> {
    Some(rate).filter(|rate| rate.per_second > 0)
}

#[cfg(test)]
mod tests;
