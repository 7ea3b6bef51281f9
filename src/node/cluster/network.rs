//! The pod CIDRs of the Node: configures the runtime with them, and with `--cni-bridge` writes a CNI configuration for a node
//! without a pod network.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use super::{ClusterEventKind, Task};
use crate::cluster::bridge::{self, Action};
use crate::cni::is_configuration;
use crate::cri::Runtime;
use crate::filesystem::open_regular;
use crate::filesystem::replace;
use crate::limits::{CNI_FILE_BYTES_MAX, CNI_FILES_MAX, KUBE_RETRY_MAX};
use crate::model::{Mono, Now};
use crate::node::effects::Effects;
use crate::node::pods::Pods;

/// The state of the pods' network.
pub(super) struct Network {
    /// `None` = not known yet.
    pod_cidrs: Option<Vec<Box<str>>>,
    /// The directory of the bridge's CNI configuration, if it is to be written.
    bridge: Option<PathBuf>,
    /// The runtime and the bridge are configured with the current CIDRs.
    configured: bool,
    task: Task,
    said: Option<String>,
}

impl Network {
    pub(super) fn new(bridge: Option<PathBuf>, now: Mono, seed: u64) -> Self {
        Self { pod_cidrs: None, bridge, configured: true, task: Task::new(now, seed), said: None }
    }

    /// Sets the Node's pod CIDRs.
    pub(super) fn set_pod_cidrs(&mut self, pod_cidrs: &[Box<str>], now: Mono) {
        if self.pod_cidrs.as_deref() != Some(pod_cidrs) {
            self.pod_cidrs = Some(pod_cidrs.to_vec());
            self.configured = false;
            self.task.at = now;
        }
    }

    pub(super) fn due(&self) -> Option<Mono> {
        self.task.due().filter(|_| !self.configured)
    }
    /// Configures the runtime and writes the bridge's configuration after a change.
    pub(super) fn turn<R: Runtime + 'static>(&mut self, pods: &Pods<R>, now: Now, out: &Effects) {
        if self.due().is_none_or(|at| at > now.mono) {
            return;
        }
        self.task.begin_if_due(now.mono);
        self.configured = true;
        let (cidrs, directory) = (self.pod_cidrs.clone().unwrap_or_default(), self.bridge.clone());
        let (runtime, blocking) = (pods.manager().runtime.clone(), pods.manager().blocking.clone());
        let task = async move {
            let configured = if cidrs.is_empty() {
                Ok(())
            } else {
                runtime.update_runtime_config(&cidrs.join(",")).await.map_err(|error| error.to_string())
            };
            let placed =
                match directory.map(|directory| bridge::conflist(&cidrs).map(|text| (directory, text))) {
                    None => Ok(()),
                    Some(Err(why)) => Err(why),
                    Some(Ok((directory, text))) => {
                        let shown = directory.display().to_string();
                        let placed = blocking.run(move || write_config(&directory, &text)).await;
                        placed.map_err(|error| format!("CNI configuration of the bridge in {shown}: {error}"))
                    }
                };
            ClusterEventKind::NetworkConfigured(configured.and(placed)).event()
        };
        out.start("pod network", task);
    }

    /// The configuration ended.
    pub(super) fn take(&mut self, result: Result<(), String>, now: Mono) {
        self.task.ended(result.is_ok(), now, KUBE_RETRY_MAX);
        if !self.configured {
            // The Node has other CIDRs meanwhile.
            self.task.at = now;
        }
        match result {
            Ok(()) => self.said = None,
            Err(why) => {
                self.configured = false;
                if self.said.as_ref() != Some(&why) {
                    log::warn!("pod network: {why}; retrying");
                    self.said = Some(why);
                }
            }
        }
    }
}

/// The agent's own CNI configuration file, if it exists. A file that is longer, or no regular file, is not the agent's.
pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file = open_regular(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => error,
        _ => io::Error::other(format!("{} cannot be read as a file ({error}); remove it", path.display())),
    })?;
    let mut bytes = Vec::new();
    file.take(CNI_FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Writes or removes the configuration file, as `bridge::action` decides. Blocks.
fn write_config(directory: &Path, text: &str) -> io::Result<()> {
    let others = another(directory, |name| name != bridge::FILE)?.is_some();
    let path = directory.join(bridge::FILE);
    match bridge::action(others, there(&path)?.as_deref(), text.as_bytes()) {
        Action::Keep => Ok(()),
        Action::Remove => {
            log::info!("{}: removed, the pods have another network", path.display());
            std::fs::remove_file(&path)
        }
        Action::Write => {
            log::info!("{}: written", path.display());
            // A suffix that no CNI plugin reads.
            replace(&path, &directory.join(".smolet-bridge.new"), text.as_bytes())
        }
    }
}

/// Writes a configuration file beside those of others, which are left alone. Blocks.
pub(super) fn place(directory: &Path, file: &str, text: &str) -> io::Result<()> {
    let other = another(directory, |name| name < file)?;
    let path = directory.join(file);
    if there(&path)?.is_some_and(|bytes| bytes == text.as_bytes()) {
        return Ok(());
    }
    match other {
        Some(other) => log::warn!(
            "{}: written, and has no effect: pods have the network of {other}, which comes before it; remove one of them",
            path.display()
        ),
        None => log::info!("{}: written", path.display()),
    }
    replace(&path, &directory.join(".smolet-network.new"), text.as_bytes())
}

/// One of the other configurations in the directory, which is made if it does not exist.
fn another(directory: &Path, counts: impl Fn(&str) -> bool) -> io::Result<Option<String>> {
    std::fs::create_dir_all(directory)?;
    let mut found = None;
    for (count, entry) in std::fs::read_dir(directory)?.enumerate() {
        if count == CNI_FILES_MAX {
            return Err(io::Error::other(format!(
                "more than {CNI_FILES_MAX} files; no configuration is written"
            )));
        }
        let name = entry?.file_name();
        let name = name.to_str().filter(|name| counts(name) && is_configuration(name));
        found = found.or_else(|| name.map(str::to_owned));
    }
    Ok(found)
}

/// The file's content, if it exists.
fn there(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
