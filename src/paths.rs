//! Default paths of the configuration, as users of k3s and kubeadm expect them. PURE.

/// Manifests.
pub const MANIFESTS: &str = "/etc/smolet/manifests";
/// State, and the pods' directories in the kubelet's layout.
pub const ROOT_DIR: &str = "/var/lib/smolet";
/// The local socket.
pub const SOCKET: &str = "/run/smolet/smolet.sock";
/// The CRI socket of the embedded runtime.
pub const CRI_SOCKET: &str = "/run/smolet/cri.sock";
/// Container logs by pod (kubelet `podLogsDir`).
pub const POD_LOGS: &str = "/var/log/pods";
/// Symlinks to them by container, for log collectors.
pub const CONTAINER_LOGS: &str = "/var/log/containers";
/// cgroup hierarchies.
pub const CGROUP_MOUNTS: &str = "/sys/fs/cgroup";
/// systemd's private socket.
pub const SYSTEMD: &str = "/run/systemd/private";
/// The kernel's memory statistics.
pub const MEMINFO: &str = "/proc/meminfo";
/// CNI configurations.
pub const CNI: &str = "/etc/cni/net.d";
/// What flannel tells k3s' own CNI plugin.
pub const FLANNEL_SUBNET: &str = "/run/flannel/subnet.env";
/// CNI plugins: those of the CNI project's archive, and of Debian.
pub const CNI_PLUGINS: [&str; 2] = ["/opt/cni/bin", "/usr/lib/cni"];
/// Directories with a `HOST/hosts.toml` for registries.
pub const REGISTRY_HOSTS: [&str; 2] = ["/etc/smolet/certs.d", CONTAINERD_HOSTS];
/// The usual one of containerd.
pub const CONTAINERD_HOSTS: &str = "/etc/containerd/certs.d";
/// containerd's configuration.
pub const CONTAINERD_CONFIG: &str = "/etc/containerd/config.toml";
/// The directory of files that it usually imports.
pub const CONTAINERD_CONFIG_DIR: &str = "/etc/containerd/conf.d";
/// Mirrors and credentials of registries (k3s).
pub const REGISTRIES: &str = "/etc/rancher/k3s/registries.yaml";
/// The system bus.
pub const SYSTEM_BUS: &str = "/run/dbus/system_bus_socket";
/// The node's resolver configuration.
pub const RESOLV_CONF: &str = "/etc/resolv.conf";
/// systemd-resolved's file with its upstream servers.
pub const UPSTREAM_RESOLV_CONF: &str = "/run/systemd/resolve/resolv.conf";
/// The program that loads kernel modules, wherever it is.
pub const MODPROBE: &str = "modprobe";
/// The socket of k3s' own containerd.
pub const K3S_CONTAINERD: &str = "/run/k3s/containerd/containerd.sock";
/// The node password with which a k3s server identifies a node (k3s).
pub const NODE_PASSWORD: &str = "/etc/rancher/node/password";
/// The ID behind a node's name, k3s' own.
pub const NODE_ID: &str = "/etc/rancher/node/id";
