//! The pods' addresses, as the Node has them: the runtime is told, and with `--cni-bridge` a configuration is written for a
//! node that has no network of pods.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::agent::{Agent, Event};
use super::cluster::{ClusterEvent, Task};
use crate::cluster::bridge::{self, Step};
use crate::cni::is_configuration;
use crate::cri::Runtime;
use crate::events::EventKind;
use crate::filesystem::open_regular;
use crate::filesystem::replace;
use crate::k3s::Settings;
use crate::kube::seed;
use crate::limits::{CNI_FILE_BYTES_MAX, CNI_FILES_MAX, KUBE_RETRY_MAX};
use crate::model::{DesiredPod, Mono, Now};
use crate::render::NodeSettings;
use crate::text::quoted;

/// What is said where pods are to have the cluster's name servers, and there are none.
const MISSING_DNS: &str = "kubelet does not have ClusterDNS IP configured and cannot create Pod using \"ClusterFirst\" policy. Falling back to \"Default\" policy.";

/// What is known of them.
pub(super) struct Network {
    /// `None` = not known yet.
    pod_cidrs: Option<Vec<Box<str>>>,
    /// Where the bridge's configuration goes, if there is to be one.
    bridge: Option<PathBuf>,
    /// All is told as it is.
    told: bool,
    task: Task,
    said: Option<String>,
}

impl Network {
    pub(super) fn new(bridge: Option<PathBuf>, now: Mono, node: &str) -> Self {
        Self { pod_cidrs: None, bridge, told: true, task: Task::new(now, seed(node)), said: None }
    }

    /// The Node has these.
    pub(super) fn has(&mut self, pod_cidrs: &[Box<str>], now: Mono) {
        if self.pod_cidrs.as_deref() != Some(pod_cidrs) {
            self.pod_cidrs = Some(pod_cidrs.to_vec());
            self.told = false;
            self.task.at = now;
        }
    }

    pub(super) fn due(&self) -> Option<Mono> {
        self.task.due().filter(|_| !self.told)
    }
}

impl<R: Runtime + 'static> Agent<R> {
    /// The cluster's name servers are these: pods that start from now on have them.
    pub(super) fn dns_known(&mut self, settings: &Settings) {
        let node = &self.ctx.node;
        if node.cluster_dns == settings.cluster_dns && node.cluster_domain == settings.cluster_domain {
            return;
        }
        let mut node = NodeSettings::clone(node);
        node.cluster_dns.clone_from(&settings.cluster_dns);
        node.cluster_domain.clone_from(&settings.cluster_domain);
        self.ctx.node = Rc::new(node);
    }

    /// Says that the pod, whose sandbox is made, has the node's name servers instead of the cluster's (`GetPodDNS`).
    pub(super) fn note_missing_dns(&self, pod: &DesiredPod) {
        let spec = pod.spec();
        let wants_cluster = match spec.dns_policy.as_deref() {
            None | Some("ClusterFirst") => spec.host_network != Some(true),
            Some(policy) => policy == "ClusterFirstWithHostNet",
        };
        if self.cluster.is_none() || !self.ctx.node.cluster_dns.is_empty() || !wants_cluster {
            return;
        }
        self.note_node(EventKind::Warning, "MissingClusterDNS", MISSING_DNS);
        let message = format!("pod: {}. {MISSING_DNS}", quoted(&pod.key.kubelet_format()));
        self.ctx.note(&pod.key, EventKind::Warning, "MissingClusterDNS", &message);
    }

    pub(super) fn turn_network(&mut self, now: Now) {
        let Some(cluster) = &mut self.cluster else { return };
        let network = &mut cluster.network;
        if network.due().is_none_or(|at| at > now.mono) {
            return;
        }
        network.task.begins(now.mono);
        network.told = true;
        let (cidrs, directory) = (network.pod_cidrs.clone().unwrap_or_default(), network.bridge.clone());
        let (runtime, blocking) = (self.ctx.runtime.clone(), self.ctx.blocking.clone());
        let events = self.events.clone();
        let task = async move {
            let told = if cidrs.is_empty() {
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
                        let placed = blocking.run(move || place(&directory, &text)).await;
                        placed.map_err(|error| format!("the bridge's configuration in {shown}: {error}"))
                    }
                };
            let event = ClusterEvent::NetworkTold(told.and(placed));
            // The loop is gone only when the process ends.
            let _ = events.send(Event::Cluster(Box::new(event))).await;
        };
        self.executor.spawn("pod network", task).detach();
    }

    pub(super) fn network_told(&mut self, result: Result<(), String>) {
        let now = self.ctx.clock.now().mono;
        let Some(cluster) = &mut self.cluster else { return };
        let network = &mut cluster.network;
        network.task.ended(result.is_ok(), now, KUBE_RETRY_MAX);
        if !network.told {
            // The Node has others meanwhile.
            network.task.at = now;
        }
        match result {
            Ok(()) => network.said = None,
            Err(why) => {
                network.told = false;
                if network.said.as_ref() != Some(&why) {
                    log::warn!("the pods' network: {why}; trying again");
                    network.said = Some(why);
                }
            }
        }
    }
}

/// What is there in our configuration's place, as far as ours may go: what is longer or no file is not ours.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file = open_regular(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => error,
        _ => io::Error::other(format!("{} is no file that can be read ({error}); remove it", path.display())),
    })?;
    let mut bytes = Vec::new();
    file.take(CNI_FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Writes the configuration, or removes it, as the table has it. Blocks.
fn place(directory: &Path, text: &str) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    let (mut others, mut count) = (false, 0);
    for entry in std::fs::read_dir(directory)? {
        count += 1;
        if count > CNI_FILES_MAX {
            return Err(io::Error::other(format!(
                "there are more than {CNI_FILES_MAX} files; nothing is written"
            )));
        }
        let name = entry?.file_name();
        others |= name.to_str().is_some_and(|name| name != bridge::FILE && is_configuration(name));
    }
    let path = directory.join(bridge::FILE);
    let ours = match read(&path) {
        Ok(bytes) => Some(bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    match bridge::step(others, ours.as_deref(), text.as_bytes()) {
        Step::Keep => Ok(()),
        Step::Remove => {
            log::info!("{}: removed, for the pods have another network", path.display());
            std::fs::remove_file(&path)
        }
        Step::Write => {
            log::info!("{}: written", path.display());
            // Not an ending that is taken for a configuration.
            replace(&path, &directory.join(".smolet-bridge.new"), text.as_bytes())
        }
    }
}
