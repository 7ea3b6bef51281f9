//! Answers the queries of the node's own API: paths of logs, the runtime's streaming URLs, usage. Errors have the kubelet's
//! wording.

use std::net::IpAddr;
use std::rc::Rc;

use k8s_openapi::api::core::v1::ContainerPort;
use serde_json::{Value, json};

use super::pods::Pods;
use super::pods::Record;
use crate::addresses::NodeAddresses;
use crate::blocking::Blocking;
use crate::certificates;
use crate::clock::SharedClock;
use crate::cluster::csr::Purpose;
use crate::config::Config;
use crate::cri::{ContainerStats, Runtime, RuntimeError, RuntimeResult, StreamRequest};
use crate::facts;
use crate::filesystem::Filesystem;
use crate::k3s;
use crate::limits::STATS_CONTAINERS_MAX;
use crate::logs::choose::container_id;
use crate::model::SortedMap;
use crate::model::{ContainerId, ContainerState, ContainerStatus, SandboxState, Wall};
use crate::node_api::Issued;
pub(super) use crate::node_api::Listening;
use crate::node_api::stats::{ContainerUse, NodeUse, PodUse, Uses};
use crate::proto::runtime::v1::{AttachRequest, ExecRequest, PortForwardRequest};
use crate::render::NodeSettings;
use crate::server::node_question::{CommandStreams, NodeQuestion, Target};
use crate::server::{Answer, Later, PodCursor};
use crate::sync::worker::Life;

/// Binds the API's ports when this node joins a cluster; `None` = standalone.
///
/// # Errors
/// A port cannot be bound, or a certificate cannot be used.
pub(super) fn listen(
    config: &Config,
    node: &NodeSettings,
    addresses: &NodeAddresses,
) -> Result<Option<Listening>, String> {
    if config.kubeconfig.is_none() {
        return Ok(None);
    }
    let issued = match &config.k3s {
        Some(_) => {
            let files = k3s::Files::new(&config.root_dir);
            Some(Issued { certificate: files.serving(), client_ca: Some(files.client_ca()) })
        }
        None => config.server_tls_bootstrap.then(|| {
            let certificate = certificates::current(&config.root_dir.join("pki"), Purpose::Server);
            Issued { certificate, client_ca: None }
        }),
    };
    let (node, addresses, hostname) = (node.node_name.clone(), addresses.clone(), facts::hostname());
    let names = Rc::new(move || {
        let mut names = addresses.names(&node);
        if !names.contains(&hostname) {
            names.insert(1, hostname.clone());
        }
        names
    });
    Listening::bind(&config.node_api, &config.root_dir, names, issued).map(Some)
}

/// HTTP status and sentence.
type Refusal = (u16, String);

pub(super) fn node_question<R: Runtime + 'static>(pods: &Pods<R>, question: &NodeQuestion) -> Answer {
    let answer = match question {
        NodeQuestion::Log { target, container, previous } => {
            locate_log(pods, target, container, *previous).map(Answer::Found)
        }
        NodeQuestion::Exec { target, container, command, streams } => running_id(pods, target, container)
            .map(|id| {
                let CommandStreams { stdin, stdout, stderr, tty } = *streams;
                let container_id = id.to_string();
                let cmd = command.clone();
                stream_at(
                    pods,
                    StreamRequest::Exec(ExecRequest { container_id, cmd, tty, stdin, stdout, stderr }),
                )
            }),
        NodeQuestion::Attach { target, container, streams } => attach_to(pods, target, container, *streams),
        NodeQuestion::PortForward { target, ports } => forward_to(pods, target, ports),
        NodeQuestion::Reaches { ip, port } if reaches(pods, *ip, *port) => Ok(Answer::Found(String::new())),
        NodeQuestion::Reaches { .. } => Err((403, "no pod of this node".to_owned())),
        NodeQuestion::Run { target, container, command } => running_id(pods, target, container).map(|id| {
            let (runtime, command, id) = (pods.manager().runtime.clone(), command.clone(), id.clone());
            Answer::Later(Later(Box::pin(async move { run(&*runtime, &id, &command).await })))
        }),
        NodeQuestion::RunningPods => Ok(Answer::Found(running_pods(pods))),
        NodeQuestion::Resources => Ok(measure_all(pods, false, Uses::resources)),
        NodeQuestion::Summary { only_cpu_and_memory } => {
            let only = *only_cpu_and_memory;
            Ok(measure_all(pods, !only, move |uses| uses.summary(only)))
        }
    };
    answer.unwrap_or_else(|(status, why)| Answer::Refused(status, why))
}

/// The pod with that name (`GetPodByName`); a pod that waits until its name is free comes last.
fn record_of<'a, R: Runtime + 'static>(pods: &'a Pods<R>, target: &Target) -> Option<&'a Record> {
    let named = |record: &&Record| {
        let key = record.worker().key();
        *key.name == *target.pod && *key.namespace == *target.namespace && record.worker().pod().is_some()
    };
    let found = pods.records().values().filter(named);
    found.min_by_key(|record| record.worker().life() == Life::Waiting)
}

/// The ID of the running container (`findContainer`).
fn running_id<'a, R: Runtime + 'static>(
    pods: &'a Pods<R>,
    target: &Target,
    container: &str,
) -> Result<&'a ContainerId, Refusal> {
    let record = record_of(pods, target).ok_or_else(|| (404, "pod does not exist".to_owned()))?;
    let is_it = target.uid.as_deref().is_none_or(|uid| uid == record.worker().key().uid.as_str());
    let observed = record.worker().observed().filter(|_| is_it);
    let found = observed.and_then(|observed| observed.container(container));
    let running = found.filter(|container| container.state == ContainerState::Running);
    running
        .map(|container| &container.id)
        .ok_or_else(|| (500, format!("container not found ({container:?})")))
}

fn stream_at<R: Runtime + 'static>(pods: &Pods<R>, request: StreamRequest) -> Answer {
    let runtime = pods.manager().runtime.clone();
    Answer::Later(Later(Box::pin(async move { streaming(runtime.streaming_url(request).await) })))
}

/// `GetAttach`.
fn attach_to<R: Runtime + 'static>(
    pods: &Pods<R>,
    target: &Target,
    container: &str,
    streams: CommandStreams,
) -> Result<Answer, Refusal> {
    let container_id = running_id(pods, target, container)?.to_string();
    // By the container's spec: a terminal cannot be added to a running process.
    let tty = record_of(pods, target).and_then(|record| spec_of(record, container)).unwrap_or_default();
    let CommandStreams { stdin, stdout, stderr, .. } = streams;
    let stderr = stderr && !tty;
    Ok(stream_at(pods, StreamRequest::Attach(AttachRequest { container_id, stdin, tty, stdout, stderr })))
}

/// True when a pod has that IP address, or uses that port of the node's network (`agentTunnel.authorized`, mode `pod`).
fn reaches<R: Runtime + 'static>(pods: &Pods<R>, ip: IpAddr, port: u16) -> bool {
    let text = ip.to_string();
    let is_node = pods.ctx().node.node_ips.iter().any(|of| **of == *text);
    pods.records().values().any(|record| {
        let (Some(pod), Some(observed)) = (record.worker().pod(), record.worker().observed()) else {
            return false;
        };
        let mut ready = observed.sandboxes.iter().filter(|of| of.state == SandboxState::Ready);
        if pod.spec().host_network != Some(true) {
            let mut networks = ready.filter_map(|of| of.network.as_ref());
            return networks.any(|of| *of.ip == *text || of.additional_ips.iter().any(|ip| **ip == *text));
        }
        let mut ports = pod.containers().iter().flat_map(|of| of.ports.iter().flatten());
        let is_it = |of: &ContainerPort| {
            of.container_port == i32::from(port) && of.protocol.as_deref().is_none_or(|of| of == "TCP")
        };
        is_node && ready.next().is_some() && ports.any(is_it)
    })
}

/// `GetPortForward`.
fn forward_to<R: Runtime + 'static>(
    pods: &Pods<R>,
    target: &Target,
    ports: &[u16],
) -> Result<Answer, Refusal> {
    let record = record_of(pods, target).ok_or_else(|| (404, "pod does not exist".to_owned()))?;
    let is_it = target.uid.as_deref().is_none_or(|uid| uid == record.worker().key().uid.as_str());
    let observed = record.worker().observed().filter(|_| is_it);
    let mut sandboxes = observed.into_iter().flat_map(|observed| &observed.sandboxes);
    let ready = sandboxes.find(|sandbox| sandbox.state == SandboxState::Ready);
    let Some(sandbox) = ready else {
        return Err((500, format!("pod not found (\"{}_{}\")", target.pod, target.namespace)));
    };
    let port = ports.iter().map(|port| i32::from(*port)).collect();
    let pod_sandbox_id = sandbox.id.to_string();
    Ok(stream_at(pods, StreamRequest::PortForward(PortForwardRequest { pod_sandbox_id, port })))
}

/// `getContainerLogs`, `GetKubeletContainerLogs`.
fn locate_log<R: Runtime + 'static>(
    pods: &Pods<R>,
    target: &Target,
    container: &str,
    previous: bool,
) -> Result<String, Refusal> {
    let pod = &target.pod;
    let record = record_of(pods, target).ok_or_else(|| (404, format!("pod {pod:?} does not exist")))?;
    if spec_of(record, container).is_none() {
        return Err((404, format!("container {container:?} not found in pod {pod:?}")));
    }
    let status = pods.statuses().status(&record.worker().key().uid).unwrap_or_default();
    let lists =
        [status.init_container_statuses, status.container_statuses, status.ephemeral_container_statuses];
    let status = lists.into_iter().flatten().flatten().find(|status| status.name == container);
    let status =
        status.ok_or_else(|| (400, format!("container {container:?} in pod {pod:?} is not available")))?;
    let id = container_id(pod, &status, previous).map_err(|why| (400, why))?;
    let bare = id.split_once("://").map_or(id, |(_, bare)| bare);
    let observed = record.worker().observed().into_iter().flat_map(|observed| &observed.containers);
    let found = observed.into_iter().find(|container| container.id.as_str() == bare);
    let found = found.ok_or_else(|| (400, format!("unable to retrieve container logs for {id}")))?;
    let running = found.state == ContainerState::Running;
    Ok(json!({"path": pods.log_path(record, found), "running": running}).to_string())
}

/// The running containers by pod, with names and images only (`getRunningPods`).
fn running_pods<R: Runtime + 'static>(pods: &Pods<R>) -> String {
    let mut items = Vec::new();
    for record in pods.sorted(None) {
        let observed = record.worker().observed().into_iter().flat_map(|observed| &observed.containers);
        let running: Vec<Value> = observed
            .filter(|container| container.state == ContainerState::Running)
            .map(|container| json!({"name": &*container.name, "image": &*container.image, "resources": {}}))
            .collect();
        if running.is_empty() {
            continue;
        }
        let key = record.worker().key();
        items.push(json!({
            "metadata": {"name": &*key.name, "namespace": &*key.namespace, "uid": key.uid.as_str()},
            "spec": {"containers": running}, "status": {},
        }));
    }
    json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}).to_string()
}

/// Reads the runtime's stats and the node's usage once.
fn measure_all<R: Runtime + 'static>(
    pods: &Pods<R>,
    with_disk: bool,
    show: impl FnOnce(&Uses) -> String + 'static,
) -> Answer {
    let mut used = Vec::new();
    let mut places = SortedMap::new();
    for record in pods.sorted(None) {
        let Some(observed) = record.worker().observed() else { continue };
        let Some(sandbox) = observed.sandboxes.first() else { continue };
        let runs = |container: &&ContainerStatus| container.state == ContainerState::Running;
        for container in observed.containers.iter().filter(runs) {
            let room = places.len() < STATS_CONTAINERS_MAX;
            if room {
                let place = (used.len(), container.name.clone(), container.started_at);
                places.insert(container.id.clone(), place);
            }
        }
        used.push(PodUse {
            key: record.worker().key().clone(),
            started: sandbox.created_at,
            containers: Vec::new(),
        });
    }
    let reader = UsageReader {
        runtime: pods.manager().runtime.clone(),
        blocking: pods.manager().blocking.clone(),
        clock: pods.manager().clock.clone(),
        node: pods.ctx().node.node_name.clone(),
        root: with_disk.then(|| pods.ctx().node.root_dir.to_string()),
    };
    Answer::Later(Later(Box::pin(async move { Answer::Found(show(&reader.read(used, places).await)) })))
}

/// True when the container has a terminal; `None` = the pod has no such container (`GetContainerSpec`).
fn spec_of(record: &Record, name: &str) -> Option<bool> {
    let pod = record.worker().pod()?;
    let apps = pod.containers().iter().map(|of| (of.name.as_str(), of.tty));
    let init = pod.init_containers().iter().map(|of| (of.name.as_str(), of.tty));
    let ephemeral = pod.ephemeral_containers().iter().map(|of| (of.name.as_str(), of.tty));
    let found = apps.chain(init).chain(ephemeral).find(|(of, _)| *of == name);
    found.map(|(_, tty)| tty.unwrap_or_default())
}

/// `streaming.WriteError`.
fn streaming(url: RuntimeResult<String>) -> Answer {
    match url {
        Ok(url) => Answer::Found(url),
        Err(error @ RuntimeError::NotFound(_)) => Answer::Refused(404, error.to_string()),
        // gRPC's RESOURCE_EXHAUSTED: too many streams are open.
        Err(error @ RuntimeError::Failed { code: 8, .. }) => Answer::Refused(429, error.to_string()),
        Err(error) => Answer::Refused(500, error.to_string()),
    }
}

/// `RunInContainer`: stdout and stderr together.
async fn run<R: Runtime>(runtime: &R, id: &ContainerId, command: &[String]) -> Answer {
    match runtime.exec_sync(id, command, std::time::Duration::ZERO).await {
        Err(error) => Answer::Refused(500, error.to_string()),
        Ok(output) => {
            let both = [output.stdout, output.stderr].concat();
            let said = String::from_utf8_lossy(&both);
            match output.exit_code {
                0 => Answer::Found(said.into_owned()),
                code => {
                    let command = command.join(" ");
                    Answer::Refused(500, format!("command '{command}' exited with {code}: {said}"))
                }
            }
        }
    }
}

/// Reads the usage of pods and node.
struct UsageReader<R> {
    runtime: Rc<R>,
    blocking: Rc<Blocking>,
    clock: SharedClock,
    node: Box<str>,
    /// A directory on the disk whose usage is read; `None` = no disk.
    root: Option<String>,
}

impl<R: Runtime> UsageReader<R> {
    async fn read(
        self,
        mut pods: Vec<PodUse>,
        mut places: SortedMap<ContainerId, (usize, Rc<str>, Option<Wall>)>,
    ) -> Uses {
        let mut each = |stats: ContainerStats| {
            // A container that is listed twice counts once.
            let Some((pod, name, started)) = places.remove(&stats.id) else { return };
            let Some(pod) = pods.get_mut(pod) else { return };
            pod.containers.push(ContainerUse {
                name,
                started,
                cpu: stats.cpu,
                nano_cores: stats.nano_cores,
                memory: stats.memory_bytes,
                written: stats.writable_layer,
            });
        };
        let failed = match self.runtime.list_container_stats(&mut each).await {
            Ok(()) => false,
            Err(error) => {
                log::warn!("the runtime reports no container stats: {error}");
                true
            }
        };
        pods.retain(|pod| !pod.containers.is_empty());
        for pod in &mut pods {
            pod.containers.sort_by(|a, b| a.name.cmp(&b.name));
        }
        pods.sort_by_key(|pod| PodCursor::of(&pod.key));
        let root = self.root;
        let (disk, stat, meminfo) = self
            .blocking
            .run(move || {
                let disk = root.and_then(|root| Filesystem::of(root.as_ref()).ok());
                let read = |path| std::fs::read_to_string(path).unwrap_or_default();
                (disk, read("/proc/stat"), read("/proc/meminfo"))
            })
            .await;
        let mut node = NodeUse { name: self.node, at: self.clock.now().wall, disk, ..NodeUse::default() };
        node.read(&stat, &meminfo);
        Uses { node, pods, failed }
    }
}
