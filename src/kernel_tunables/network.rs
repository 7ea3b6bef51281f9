//! What a node of k3s needs of the kernel for Services, and for pods on other nodes (k3s `syssetup.Configure`): forwarding, bridged
//! packets that netfilter sees, room for connections. I/O, small; blocking.
//!
//! Differs from k3s: of the modules only those are loaded that the kernel does not load itself when they are used; a larger table of
//! connections stays, for whoever enlarged it had a reason.

use std::fs;
use std::path::Path;

use super::{Differing, set};

/// Modules, and a setting that exists when they are loaded or built in.
const MODULES: [(&str, &str); 2] =
    [("br_netfilter", "net/bridge/bridge-nf-call-iptables"), ("nf_conntrack", CONNECTIONS_MAX)];
const CONNECTIONS_MAX: &str = "net/netfilter/nf_conntrack_max";
/// However many processors there are (`getConntrackMax`).
const CONNECTIONS_SCALED_MAX: u64 = 1 << 20;

/// Settings below `/proc/sys`, with their required values.
const SETTINGS: [(&str, u64); 3] = [
    // A new network namespace takes one or the other, by the kernel's version.
    ("net/ipv4/conf/all/forwarding", 1),
    ("net/ipv4/conf/default/forwarding", 1),
    ("net/bridge/bridge-nf-call-iptables", 1),
];

/// The same of a cluster with IPv6. With them the kernel ignores router advertisements: others do not get them.
const SETTINGS_IPV6: [(&str, u64); 4] = [
    ("net/ipv6/conf/all/forwarding", 1),
    ("net/ipv6/conf/default/forwarding", 1),
    ("net/core/devconf_inherit_init_net", 1),
    ("net/bridge/bridge-nf-call-ip6tables", 1),
];

/// The table of connections (kube-proxy's `KubeProxyConntrackConfiguration`). What is 0 stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conntrack {
    /// Connections for each processor.
    pub max_per_core: u32,
    /// Connections at least, unless there is nothing for a processor.
    pub min: u32,
    /// Time after which an established connection of TCP without packets is forgotten, in seconds.
    pub tcp_established_seconds: u64,
    /// The same of one that is half closed.
    pub tcp_close_wait_seconds: u64,
}

impl Default for Conntrack {
    fn default() -> Self {
        Self {
            max_per_core: 32_768,
            min: 131_072,
            tcp_established_seconds: 86_400,
            tcp_close_wait_seconds: 3600,
        }
    }
}

impl Conntrack {
    fn settings(self, cpus: u64) -> impl Iterator<Item = (&'static str, u64)> {
        let scaled = cpus.saturating_mul(self.max_per_core.into());
        let connections = match scaled {
            0 => 0,
            _ if scaled > CONNECTIONS_SCALED_MAX => CONNECTIONS_SCALED_MAX,
            _ => scaled.max(self.min.into()),
        };
        let all = [
            (CONNECTIONS_MAX, connections),
            ("net/netfilter/nf_conntrack_tcp_timeout_established", self.tcp_established_seconds),
            ("net/netfilter/nf_conntrack_tcp_timeout_close_wait", self.tcp_close_wait_seconds),
        ];
        all.into_iter().filter(|(_, wanted)| *wanted > 0)
    }
}

/// The cluster and the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// Its pods have IPv6 addresses.
    pub has_ipv6: bool,
    /// Processors of the machine.
    pub cpus: u64,
    /// Its table of connections.
    pub conntrack: Conntrack,
}

/// Modules that are not there, and settings that differ; one that this kernel does not have is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lacking {
    /// Names of modules.
    pub modules: Vec<&'static str>,
    /// Settings with another value.
    pub settings: Vec<Differing>,
}

impl Lacking {
    /// The command that mends it, and keeps it so; empty: nothing lacks.
    pub fn command(&self) -> String {
        let modules = match &*self.modules {
            [] => String::new(),
            modules => format!("modprobe -a {}", modules.join(" ")),
        };
        let settings = match &*self.settings {
            [] => String::new(),
            settings => super::command(settings),
        };
        let both = if modules.is_empty() || settings.is_empty() { "" } else { " && " };
        format!("{modules}{both}{settings}")
    }
}

/// Looks below `root`, `/proc/sys`.
pub fn lacking(root: &Path, of: Network) -> Lacking {
    let is_missing = |(_, setting): &&(&str, &str)| !root.join(setting).exists();
    let modules = MODULES.iter().filter(is_missing).map(|(name, _)| *name).collect();
    let ipv6 = if of.has_ipv6 { &SETTINGS_IPV6[..] } else { &[] };
    let all = SETTINGS.iter().chain(ipv6).copied().chain(of.conntrack.settings(of.cpus));
    let differs = |(path, wanted): (&str, u64)| {
        let actual = fs::read_to_string(root.join(path)).ok()?.trim().parse().ok()?;
        let is_right = if path == CONNECTIONS_MAX { actual >= wanted } else { actual == wanted };
        (!is_right).then(|| Differing { name: path.replace('/', "."), actual, wanted })
    };
    Lacking { modules, settings: all.filter_map(differs).collect() }
}

/// Loads modules, by `load`, and sets what differs.
///
/// # Errors
/// What still lacks, as a sentence with its remedy.
pub fn set_up(root: &Path, of: Network, load: impl Fn(&str) -> Result<(), String>) -> Result<(), String> {
    let mut whys = Vec::new();
    for module in lacking(root, of).modules {
        match load(module) {
            Ok(()) => log::info!("kernel module {module}: loaded"),
            Err(why) => whys.push(format!("kernel module {module}: {why}")),
        }
    }
    for Differing { name, actual, wanted } in lacking(root, of).settings {
        match set(&root.join(name.replace('.', "/")), wanted) {
            Ok(()) => log::info!("kernel setting {name}: was {actual}, set to {wanted}"),
            Err(error) => {
                whys.push(format!(
                    "kernel setting {name}: is {actual}, setting it to {wanted} failed: {error}"
                ));
            }
        }
    }
    let lacking = lacking(root, of);
    // A module may be built in, or another program may have set it meanwhile.
    if lacking == Lacking::default() {
        return Ok(());
    }
    if whys.is_empty() {
        whys.push("the kernel has not taken what was set up for the cluster's network".to_owned());
    }
    let (why, mend) = (whys.join("; "), lacking.command());
    Err(format!("{why}; Services and pods of other nodes may not be reached from here: run {mend}"))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::path::PathBuf;

    use super::*;

    const USUAL: Conntrack = Conntrack {
        max_per_core: 32_768,
        min: 131_072,
        tcp_established_seconds: 86_400,
        tcp_close_wait_seconds: 3600,
    };
    const SMALL: Network = Network { has_ipv6: false, cpus: 2, conntrack: USUAL };

    fn put(root: &Path, settings: &[(&str, u64)]) {
        for (path, value) in settings {
            fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
            fs::write(root.join(path), format!("{value}\n")).unwrap();
        }
    }

    fn root(name: &str) -> PathBuf {
        let root = std::env::temp_dir().join(format!("smolet-network-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        root
    }

    fn read(root: &Path, path: &str) -> u64 {
        fs::read_to_string(root.join(path)).unwrap().trim().parse().unwrap()
    }

    #[test]
    fn modules_are_loaded_and_settings_are_those_of_k3s() {
        let root = root("set");
        put(&root, &[("net/ipv4/conf/all/forwarding", 0), ("net/ipv4/conf/default/forwarding", 1)]);
        put(&root, &[("net/ipv6/conf/all/forwarding", 0)]);
        let loaded = RefCell::new(Vec::new());
        // A module brings its settings.
        let load = |name: &str| {
            loaded.borrow_mut().push(name.to_owned());
            match name {
                "br_netfilter" => put(&root, &[("net/bridge/bridge-nf-call-iptables", 0)]),
                _ => put(
                    &root,
                    &[
                        (CONNECTIONS_MAX, 65_536),
                        ("net/netfilter/nf_conntrack_tcp_timeout_established", 43_200),
                        ("net/netfilter/nf_conntrack_tcp_timeout_close_wait", 60),
                    ],
                ),
            }
            Ok(())
        };
        assert_eq!(set_up(&root, SMALL, load), Ok(()));
        assert_eq!(*loaded.borrow(), ["br_netfilter", "nf_conntrack"]);
        let connections = [
            (CONNECTIONS_MAX, 131_072),
            ("net/netfilter/nf_conntrack_tcp_timeout_established", 86_400),
            ("net/netfilter/nf_conntrack_tcp_timeout_close_wait", 3600),
        ];
        for (path, wanted) in SETTINGS.into_iter().chain(connections) {
            assert_eq!(read(&root, path), wanted, "{path}");
        }
        assert_eq!(read(&root, "net/ipv6/conf/all/forwarding"), 0, "the cluster has none");
        assert_eq!(set_up(&root, SMALL, |name| panic!("{name} is there")), Ok(()));

        let large = Network { has_ipv6: true, cpus: 8, ..SMALL };
        assert_eq!(set_up(&root, large, |name| panic!("{name} is there")), Ok(()));
        assert_eq!((read(&root, "net/ipv6/conf/all/forwarding"), read(&root, CONNECTIONS_MAX)), (1, 262_144));
        // The owner's larger table stays.
        put(&root, &[(CONNECTIONS_MAX, 1_000_000)]);
        assert_eq!(set_up(&root, large, |name| panic!("{name} is there")), Ok(()));
        assert_eq!(read(&root, CONNECTIONS_MAX), 1_000_000);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn the_table_of_connections_is_kube_proxys() {
        assert_eq!(Conntrack::default(), USUAL);
        // For each processor, at least, established, half closed; what is set on a machine with that many processors.
        for (of, cpus, wanted) in [
            ((32_768, 131_072, 86_400, 3600), 1, "131072 86400 3600"),
            ((32_768, 131_072, 86_400, 3600), 8, "262144 86400 3600"),
            ((32_768, 131_072, 86_400, 3600), 64, "1048576 86400 3600"),
            ((1024, 0, 7200, 60), 4, "4096 7200 60"),
            ((1, 65_536, 7200, 60), 4, "65536 7200 60"),
            ((0, 131_072, 7200, 0), 4, "7200"),
            ((0, 0, 0, 60), 4, "60"),
        ] {
            let (max_per_core, min, tcp_established_seconds, tcp_close_wait_seconds) = of;
            let of = Conntrack { max_per_core, min, tcp_established_seconds, tcp_close_wait_seconds };
            let shown: Vec<String> = of.settings(cpus).map(|(_, wanted)| wanted.to_string()).collect();
            assert_eq!(shown.join(" "), wanted, "{of:?} {cpus}");
        }
    }

    #[test]
    fn what_still_lacks_is_named_with_the_remedy() {
        let root = root("lacks");
        put(&root, &[(CONNECTIONS_MAX, 131_072), ("net/ipv4/conf/all/forwarding", 0)]);
        let why = set_up(&root, SMALL, |_| Err("modprobe: not found".to_owned())).unwrap_err();
        assert_eq!(
            why,
            "kernel module br_netfilter: modprobe: not found; Services and pods of other nodes may not be reached from here: run \
             modprobe -a br_netfilter"
        );
        put(&root, &[("net/ipv4/conf/all/forwarding", 0)]);
        let both = lacking(&root, SMALL);
        assert_eq!(both.command(), "modprobe -a br_netfilter && sysctl -w net.ipv4.conf.all.forwarding=1");
        assert_eq!(Lacking::default().command(), "");
        // modprobe fails for what is built in; what it does is there.
        put(&root, &[("net/bridge/bridge-nf-call-iptables", 1)]);
        assert_eq!(set_up(&root, SMALL, |_| Err("not found".to_owned())), Ok(()));
        fs::remove_dir_all(root).unwrap();
    }
}
