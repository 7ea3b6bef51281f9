//! Networks of sandboxes through CNI plugins, which are executed (specification 0.3 to 1.1). `config` (PURE) has the data, `pod` (PURE)
//! what a pod passes to plugins; here plugins run.

mod config;
mod pod;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};
use smol::lock::RwLock;

use super::links;
use super::process::{self, Program, ProgramError};
use super::settings::Settings;
use crate::blocking::Blocking;
use crate::clock::SharedClock;
use crate::filesystem::read_linked;
use crate::limits::{
    CNI_CONFIGURATION_BYTES_MAX, CNI_FILES_MAX, CNI_PLUGIN_TIME, CNI_RESULT_BYTES_MAX,
    PROGRAM_ERROR_BYTES_MAX,
};
use crate::text::{hex, start_of};
use config::{ConfigurationError, Version, own_network};

pub(super) use config::{Asked, Network, addresses};
pub(super) use pod::{arguments, capabilities};

/// The interface in a pod.
pub(super) const INTERFACE: &str = "eth0";

/// A failure of a network.
#[derive(Debug)]
pub(super) enum CniError {
    /// The directory of configurations cannot be read.
    Directory(PathBuf, io::Error),
    /// There is no configuration yet, and no network of the runtime's own.
    Awaited(PathBuf),
    /// A configuration file cannot be read.
    File(PathBuf, io::Error),
    /// A configuration is refused.
    Configuration(PathBuf, ConfigurationError),
    /// The configuration that was kept with a sandbox is refused.
    Kept(ConfigurationError),
    /// A plugin is not installed.
    Missing { plugin: String, network: String, dirs: Vec<PathBuf> },
    /// A plugin failed.
    Plugin { plugin: String, network: String, command: &'static str, why: String },
}

impl CniError {
    /// The plugin that is not installed, whether the runtime or another plugin looked for it.
    pub(super) fn lacks(&self) -> Option<&str> {
        match self {
            Self::Missing { plugin, .. } => Some(plugin),
            Self::Plugin { why, .. } => why.split_once("failed to find plugin \"")?.1.split('"').next(),
            _ => None,
        }
    }

    /// What was to be released is not there any more (go-cni's `Remove`).
    pub(super) fn says_gone(&self) -> bool {
        let is_gone =
            |why: &String| ["not found", "no such file or directory"].iter().any(|words| why.contains(words));
        matches!(self, Self::Plugin { why, .. } if is_gone(why))
    }
}

impl fmt::Display for CniError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(path, error) => {
                write!(f, "the directory of CNI configurations {}: {error}", path.display())
            }
            Self::Awaited(path) => write!(
                f,
                "no CNI configuration in {}: flannel writes one when the Node has its podCIDR; servers without flannel \
                 (--flannel-backend=none) need another network to be installed",
                path.display()
            ),
            Self::File(path, error) => write!(f, "the CNI configuration {}: {error}", path.display()),
            Self::Configuration(path, error) => {
                write!(f, "the CNI configuration {}: {error}", path.display())
            }
            Self::Kept(error) => write!(f, "the sandbox's CNI configuration: {error}"),
            Self::Missing { plugin, network, dirs } => {
                let dirs: Vec<_> = dirs.iter().map(|dir| dir.display().to_string()).collect();
                write!(
                    f,
                    "CNI plugin {plugin} of network {network} is not in {}; install it (apt install \
                     containernetworking-plugins)",
                    dirs.join(" or ")
                )
            }
            Self::Plugin { plugin, network, command, why } => {
                write!(f, "CNI plugin {plugin} of network {network}: {command}: {why}")
            }
        }
    }
}

impl std::error::Error for CniError {}

/// What a sandbox attaches to a network.
#[derive(Clone, Debug)]
pub(super) struct Attachment {
    /// The sandbox's id.
    pub(super) container: Box<str>,
    /// Its network namespace; `None`: it is gone.
    pub(super) namespace: Option<PathBuf>,
    /// `CNI_ARGS`.
    pub(super) arguments: String,
    /// Values of capabilities.
    pub(super) capabilities: Map<String, Value>,
}

/// Runs plugins.
pub(super) struct Plugins {
    dirs: Vec<PathBuf>,
    /// GC runs alone, ADD and DEL of different sandboxes beside each other: the specification wants it so.
    turns: RwLock<()>,
    blocking: Rc<Blocking>,
    clock: SharedClock,
}

impl Plugins {
    pub(super) fn new(dirs: &[PathBuf], blocking: Rc<Blocking>, clock: SharedClock) -> Self {
        Self { dirs: dirs.to_owned(), turns: RwLock::new(()), blocking, clock }
    }

    /// Attaches a sandbox: ADD of each plugin in order. The final result.
    ///
    /// # Errors
    /// A plugin's. [`Plugins::delete`] removes what the others have made.
    pub(super) async fn add(&self, network: &Network, attachment: &Attachment) -> Result<Value, CniError> {
        let _turn = self.turns.read().await;
        let mut result = None;
        for index in 0..network.len() {
            if let Some(bridge) = network.bridge(index).map(str::to_owned) {
                let name = bridge.clone();
                if let Err(error) = self.blocking.run(move || links::give_address(&name)).await {
                    log::warn!(
                        "bridge {bridge}: a missing hardware address cannot be set: {error}; attaching the pod all the same"
                    );
                }
            }
            let stdin = network.request(index, &attachment.capabilities, result.as_ref(), None);
            let stdout = self.run(network, index, "ADD", Some(attachment), stdin).await?;
            let read = serde_json::from_slice(&stdout);
            result =
                Some(read.map_err(|error| {
                    blame(network, index, "ADD", format!("its result is no JSON: {error}"))
                })?);
        }
        Ok(result.unwrap_or_default())
    }

    /// Detaches a sandbox: DEL of each plugin in reverse order, with the result of ADD. Idempotent.
    ///
    /// # Errors
    /// A plugin's, after all have run.
    pub(super) async fn delete(
        &self,
        network: &Network,
        attachment: &Attachment,
        result: Option<&Value>,
    ) -> Result<(), CniError> {
        let _turn = self.turns.read().await;
        let result = result.filter(|_| network.version >= Version::V0_4);
        let mut done = Ok(());
        for index in (0..network.len()).rev() {
            let stdin = network.request(index, &attachment.capabilities, result, None);
            let ran = self.run(network, index, "DEL", Some(attachment), stdin).await;
            // The others' addresses and rules are released all the same; the caller tries again.
            done = done.and(ran.map(drop));
        }
        done
    }

    /// Checks that a sandbox is attached as the result says. Without effect where the network's version has no CHECK.
    ///
    /// # Errors
    /// A plugin's.
    pub(super) async fn check(
        &self,
        network: &Network,
        attachment: &Attachment,
        result: &Value,
    ) -> Result<(), CniError> {
        if network.version < Version::V0_4 || network.disables_check {
            return Ok(());
        }
        for index in 0..network.len() {
            let stdin = network.request(index, &attachment.capabilities, Some(result), None);
            self.run(network, index, "CHECK", Some(attachment), stdin).await?;
        }
        Ok(())
    }

    /// Lets plugins remove what belongs to none of the sandboxes there are when no ADD and no DEL runs. Those that come wait for it, for
    /// [`CNI_PLUGIN_TIME`] per plugin at most. Without effect where the network's version has no GC.
    ///
    /// # Errors
    /// A plugin's, after all have run.
    pub(super) async fn collect_garbage(
        &self,
        network: &Network,
        sandboxes: impl Fn() -> Vec<Box<str>>,
    ) -> Result<(), CniError> {
        if network.version < Version::V1_1 || network.disables_gc {
            return Ok(());
        }
        let _turn = self.turns.write().await;
        let valid = sandboxes().into_iter().map(|id| json!({ "containerID": id, "ifname": INTERFACE }));
        let valid = Value::Array(valid.collect());
        let mut done = Ok(());
        for index in 0..network.len() {
            let stdin = network.request(index, &Map::new(), None, Some(&valid));
            done = done.and(self.run(network, index, "GC", None, stdin).await.map(drop));
        }
        done
    }

    /// The plugin of that network that is not installed. Blocking.
    pub(super) fn missing(dirs: &[PathBuf], network: &Network) -> Option<CniError> {
        let programs = network.programs();
        let missing = programs.iter().find(|program| find(dirs, program).is_none())?;
        Some(CniError::Missing {
            plugin: (*missing).to_owned(),
            network: network.name.clone(),
            dirs: dirs.to_owned(),
        })
    }

    async fn run(
        &self,
        network: &Network,
        index: usize,
        command: &'static str,
        attachment: Option<&Attachment>,
        stdin: Vec<u8>,
    ) -> Result<Vec<u8>, CniError> {
        let plugin = network.kind(index).to_owned();
        let (dirs, named) = (self.dirs.clone(), plugin.clone());
        let Some(path) = self.blocking.run(move || find(&dirs, &named)).await else {
            return Err(CniError::Missing { plugin, network: network.name.clone(), dirs: self.dirs.clone() });
        };
        let search: Vec<_> = self.dirs.iter().map(|dir| dir.as_os_str()).collect();
        let mut environment =
            vec![("CNI_COMMAND", command.into()), ("CNI_PATH", search.join(std::ffi::OsStr::new(":")))];
        if let Some(of) = attachment {
            environment.push(("CNI_CONTAINERID", (*of.container).into()));
            environment.push(("CNI_IFNAME", INTERFACE.into()));
            environment.push(("CNI_ARGS", of.arguments.clone().into()));
            let namespace = of.namespace.as_ref().map(|path| path.as_os_str().to_owned());
            environment.push(("CNI_NETNS", namespace.unwrap_or_default()));
        }
        let program = Program {
            path,
            arguments: Vec::new(),
            environment,
            stdin,
            stdout_bytes_max: CNI_RESULT_BYTES_MAX,
            stderr_bytes_max: PROGRAM_ERROR_BYTES_MAX,
            time: Some(CNI_PLUGIN_TIME),
            command: None,
            owner: None,
            outlives: false,
            room: None,
        };
        let ran = process::run(&self.blocking, &self.clock, program).await;
        let output = ran.map_err(|error: ProgramError| blame(network, index, command, error.to_string()))?;
        if !output.status.success() {
            let why = config::error_of(&output.stdout).unwrap_or_else(|| output.last_error());
            return Err(blame(network, index, command, why));
        }
        if output.is_cut {
            let why = format!("its result has more than {CNI_RESULT_BYTES_MAX} bytes");
            return Err(blame(network, index, command, why));
        }
        Ok(output.stdout)
    }
}

fn blame(network: &Network, index: usize, command: &'static str, why: String) -> CniError {
    CniError::Plugin { plugin: network.kind(index).to_owned(), network: network.name.clone(), command, why }
}

fn find(dirs: &[PathBuf], program: &str) -> Option<PathBuf> {
    dirs.iter().map(|dir| dir.join(program)).find(|path| path.is_file())
}

/// The text of the node's network: the first configuration by name, else the runtime's own. Blocking.
///
/// # Errors
/// The first configuration cannot be read, or is refused.
pub(super) fn load(settings: &Settings, pod_cidr: &str, asked: Asked) -> Result<String, CniError> {
    let dir = &settings.cni_conf_dir;
    let mut names = Vec::new();
    match std::fs::read_dir(dir) {
        Ok(entries) => {
            let names_of =
                entries.take(CNI_FILES_MAX).filter_map(|entry| entry.ok()?.file_name().into_string().ok());
            names.extend(names_of.filter(|name| crate::cni::is_configuration(name)));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(CniError::Directory(dir.clone(), error)),
    }
    names.sort_unstable();
    let Some(first) = names.first() else {
        let is_awaited = !settings.has_own_network;
        return if is_awaited {
            Err(CniError::Awaited(dir.clone()))
        } else {
            Ok(own(settings, pod_cidr, asked))
        };
    };
    let path = dir.join(first);
    let bytes = read_linked(&path, CNI_CONFIGURATION_BYTES_MAX);
    let bytes = bytes.map_err(|error| CniError::File(path.clone(), error))?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    match Network::parse(&text) {
        Ok(_) => Ok(text),
        Err(error) => Err(CniError::Configuration(path, error)),
    }
}

fn own(settings: &Settings, pod_cidr: &str, asked: Asked) -> String {
    let given = cidrs(pod_cidr);
    let bridge = own_bridge(&settings.bridge, &given);
    let subnets = if given.is_empty() { vec![&*settings.subnet] } else { given };
    // On the tmpfs: a reboot releases all addresses, and a pod's start writes nothing to the flash.
    let leases = leases_dir(&settings.run_dir);
    own_network(&bridge, &subnets, &leases.display().to_string(), asked)
}

/// The bridge of a range of addresses. Each has its own: the plugin `bridge` refuses one with an address of another range, and pods that
/// have addresses of that range keep their gateway. An interface's name has at most 15 bytes. PURE.
fn own_bridge(base: &str, cidrs: &[&str]) -> String {
    if cidrs.is_empty() {
        return base.to_owned();
    }
    let digest = hex(&Sha256::digest(cidrs.join(",")));
    format!("{}-{}", start_of(base, 6), &digest[..8])
}

/// The bridge of the runtime's own network with these pod CIDRs. PURE.
pub(super) fn bridge_of(settings: &Settings, pod_cidr: &str) -> String {
    own_bridge(&settings.bridge, &cidrs(pod_cidr))
}

fn cidrs(pod_cidr: &str) -> Vec<&str> {
    pod_cidr.split(',').map(str::trim).filter(|cidr| !cidr.is_empty()).collect()
}

/// Leases of the runtime's own network.
fn leases_dir(run_dir: &Path) -> PathBuf {
    run_dir.join("cni")
}

/// The network that a sandbox was attached to.
///
/// # Errors
/// It is refused: another version of this runtime has kept it.
pub(super) fn kept(text: &str) -> Result<Network, CniError> {
    Network::parse(text).map_err(CniError::Kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_range_of_addresses_has_its_bridge() {
        assert_eq!(own_bridge("smolet0", &[]), "smolet0");
        let (one, two) = (own_bridge("smolet0", &["10.42.0.0/24"]), own_bridge("smolet0", &["10.42.1.0/24"]));
        assert!(one.starts_with("smolet-") && one.len() == 15 && one != two, "{one} {two}");
        assert_eq!(cidrs(" 10.42.0.0/24, fd00::/64,"), ["10.42.0.0/24", "fd00::/64"]);
        assert_ne!(own_bridge("smolet0", &cidrs("10.42.0.0/24,fd00::/64")), one);
    }
}
