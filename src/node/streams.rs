//! Streaming URLs for `exec`, `attach` and `port-forward`: the agent finds the container or sandbox and requests the URL of the
//! runtime's streaming server. The command connects to that URL itself.

use std::fmt::Write as _;

use k8s_openapi::api::core::v1::ContainerPort;

use super::pods::Pods;
use crate::cri::{Runtime, RuntimeResult, StreamRequest};
use crate::model::{ContainerKind, ContainerState, DesiredPod, ObservedPod, SandboxState};
use crate::podcmd::{self, DEFAULT_CONTAINER};
use crate::proto::runtime::v1::{AttachRequest, ExecRequest, PortForwardRequest};
use crate::server::{Answer, Later, StreamKind, StreamQuestion};

/// Answers a query for a streaming URL. The connection's task waits for the runtime, not the loop.
pub(super) fn stream<R: Runtime + 'static>(pods: &Pods<R>, question: &StreamQuestion) -> Answer {
    let prepared = pods.find_record(&question.name, question.namespace.as_deref()).and_then(|record| {
        let worker = &record.worker();
        let status = pods.statuses().status(&worker.key().uid);
        let phase = status.and_then(|status| status.phase).unwrap_or_else(|| "Unknown".to_owned());
        match (worker.pod(), worker.observed()) {
            (Some(pod), Some(observed)) => prepare(pod, observed, &phase, &question.kind),
            _ => Err(format!("pod {} was not read from the runtime yet; try again", worker.key())),
        }
    });
    match prepared {
        Err(why) => Answer::NotFound(format!("{}\n", why.trim_end())),
        Ok((request, facts)) => {
            let runtime = pods.manager().runtime.clone();
            Answer::Later(Later(Box::pin(
                async move { answer(runtime.streaming_url(request).await, &facts) },
            )))
        }
    }
}

fn answer(url: RuntimeResult<String>, facts: &str) -> Answer {
    match url {
        Ok(url) => Answer::Found(format!("url {url}\n{facts}")),
        Err(error) => Answer::NotFound(format!("the runtime returned no streaming URL: {error}\n")),
    }
}

/// The request to the runtime, and further facts for the command, one line each. PURE.
fn prepare(
    pod: &DesiredPod,
    observed: &ObservedPod,
    phase: &str,
    kind: &StreamKind,
) -> Result<(StreamRequest, String), String> {
    let key = &pod.key;
    let mut facts = format!("pod {} {}\n", key.namespace, key.name);
    let completed = matches!(phase, "Succeeded" | "Failed");
    let request = match kind {
        StreamKind::Exec { .. } if completed => {
            return Err(format!("cannot exec into a container in a completed pod; current phase is {phase}"));
        }
        StreamKind::Attach { .. } if completed => {
            return Err(format!("cannot attach a container in a completed pod; current phase is {phase}"));
        }
        StreamKind::Exec { container, command, stdin, tty } => {
            let chosen = choose(pod, container.as_deref(), &mut facts)?;
            StreamRequest::Exec(ExecRequest {
                container_id: running(pod, observed, chosen.name)?,
                cmd: command.clone(),
                tty: *tty,
                stdin: *stdin,
                stdout: true,
                // A terminal has one output stream.
                stderr: !tty,
            })
        }
        StreamKind::Attach { container, stdin } => {
            let Chosen { name, tty } = choose(pod, container.as_deref(), &mut facts)?;
            let _ = writeln!(facts, "tty {}", u8::from(tty));
            StreamRequest::Attach(AttachRequest {
                container_id: running(pod, observed, name)?,
                stdin: *stdin,
                // By the container's spec (`GetAttach`).
                tty,
                stdout: true,
                stderr: !tty,
            })
        }
        StreamKind::PortForward { ports } => {
            let ready = observed.sandboxes.iter().find(|sandbox| sandbox.state == SandboxState::Ready);
            let sandbox = ready.filter(|_| phase == "Running").ok_or_else(|| {
                format!("unable to forward port because pod is not running. Current status={phase}")
            })?;
            for port in ports {
                let _ = writeln!(facts, "port {}", port_number(pod, port)?);
            }
            // A SPDY client names the port with each stream.
            let port = Vec::new();
            StreamRequest::PortForward(PortForwardRequest { pod_sandbox_id: sandbox.id.to_string(), port })
        }
    };
    Ok((request, facts))
}

/// A container of the spec, of any list.
struct Chosen<'p> {
    name: &'p str,
    tty: bool,
}

/// The named container, or the default one; adds the choice to the facts.
fn choose<'p>(pod: &'p DesiredPod, named: Option<&str>, facts: &mut String) -> Result<Chosen<'p>, String> {
    let apps = pod.containers().iter().map(|of| (ContainerKind::App, of.name.as_str(), of.tty));
    let ephemeral =
        pod.ephemeral_containers().iter().map(|of| (ContainerKind::Ephemeral, of.name.as_str(), of.tty));
    let init = pod.init_containers().iter().map(|of| (ContainerKind::Init, of.name.as_str(), of.tty));
    let all: Vec<_> = apps.chain(ephemeral).chain(init).collect();
    let list: Vec<_> = all.iter().map(|(kind, name, _)| (*kind, *name)).collect();
    let annotations = pod.pod.metadata.annotations.as_ref();
    let annotated = annotations.and_then(|all| all.get(DEFAULT_CONTAINER)).map(String::as_str);
    let (place, note) = podcmd::choose(&pod.key.name, &list, named, annotated)?;
    let (_, name, tty) = all[place];
    let _ = writeln!(facts, "container {name}");
    for line in note.iter().flat_map(|note| note.lines()) {
        let _ = writeln!(facts, "note {line}");
    }
    Ok(Chosen { name, tty: tty.unwrap_or_default() })
}

/// The ID of the running container.
fn running(pod: &DesiredPod, observed: &ObservedPod, name: &str) -> Result<String, String> {
    let why = match observed.container(name) {
        Some(container) if container.state == ContainerState::Running => return Ok(container.id.to_string()),
        Some(container) if container.state == ContainerState::Exited => {
            format!("it has exited with code {}", container.exit_code)
        }
        Some(_) | None => "it has not been started".to_owned(),
    };
    let pod = &pod.key.name;
    Err(format!("container {name} of pod {pod} is not running: {why}; see smolet describe {pod}"))
}

/// A port by its number or name (kubectl's `convertPodNamedPortToNumber` and `checkUDPPortInPod`).
fn port_number(pod: &DesiredPod, port: &str) -> Result<u16, String> {
    let of_apps = || pod.containers().iter().flat_map(|container| container.ports.iter().flatten());
    let number = if let Ok(number) = port.parse::<i32>() {
        number
    } else {
        let of_init = pod.init_containers().iter().flat_map(|container| container.ports.iter().flatten());
        let named = of_apps().chain(of_init).find(|known| known.name.as_deref() == Some(port));
        let none = || format!("Pod '{}' does not have a named port '{port}'", pod.key.name);
        named.ok_or_else(none)?.container_port
    };
    let is_udp = |known: &ContainerPort| known.protocol.as_deref() == Some("UDP");
    let (udp, other): (Vec<_>, Vec<_>) =
        of_apps().filter(|known| known.container_port == number).partition(|known| is_udp(known));
    if !udp.is_empty() && other.is_empty() {
        return Err(format!("UDP protocol is not supported for {port}"));
    }
    u16::try_from(number)
        .ok()
        .filter(|number| *number > 0)
        .ok_or_else(|| format!("{port} is not a port number"))
}
