//! `smolet debug`: adds an ephemeral container to an existing pod.
//!
//! ```text
//!     request ─► validation as an ephemeral container ─► desired pod ─► checkpoint ─► the plan starts it
//! ```
//!
//! The container is in the pod's `spec.ephemeralContainers` as long as the pod keeps its UID; manifests have none of their own.
//! It is written to the checkpoint before it starts, so that it survives the agent's death. It never restarts: after a reboot
//! it is removed from the list.

use std::fmt::Write as _;

use k8s_openapi::api::core::v1::EphemeralContainer;

use super::checkpoint::Checkpointing;
use super::effects::Effects;
use super::pods::Pods;
use super::pods::Work;
use crate::cri::Runtime;
use crate::gc::GcRemoval;
use crate::image::name::{default_pull_policy, full_name};
use crate::limits::{DEBUGGED_PODS_BYTES_MAX, DEBUGGER_MEMORY_BYTES, DEBUGGERS_MAX, DEBUGGERS_PER_POD_MAX};
use crate::model::debugger::name_suffix;
use crate::model::{ContainerKind, ContainerState, Debugger, DesiredPod, ObservedPod, PodUid};
use crate::server::{Answer, DebugQuestion};
use crate::source::validate;
use crate::sync::worker::Life;

/// Adds the container; it starts when the checkpoint has it.
pub(super) fn debug<R: Runtime + 'static>(
    pods: &mut Pods<R>,
    checkpointing: &mut Checkpointing,
    out: &mut Effects,
    question: &DebugQuestion,
) -> Answer {
    match add_debugger(pods, checkpointing, question) {
        Ok((uid, facts)) => {
            out.drive(&uid);
            Answer::Found(facts)
        }
        Err(why) => Answer::NotFound(format!("{}\n", why.trim_end())),
    }
}

fn add_debugger<R: Runtime + 'static>(
    pods: &mut Pods<R>,
    checkpointing: &mut Checkpointing,
    question: &DebugQuestion,
) -> Result<(PodUid, String), String> {
    let record = pods.find_record(&question.name, question.namespace.as_deref())?;
    let key = record.worker().key().clone();
    let phase = pods.statuses().status(&key.uid).and_then(|status| status.phase);
    let phase = phase.as_deref().unwrap_or("Unknown");
    let (Some(pod), Life::Syncing, false) =
        (record.worker().pod().cloned(), record.worker().life(), record.is_set_aside())
    else {
        let why =
            if matches!(phase, "Succeeded" | "Failed") { "is completed" } else { "is not kept running" };
        return Err(format!("pod {key} {why}: nothing can be added to it; current phase is {phase}"));
    };
    if pod.pod.is_of_api_server() {
        return Err(format!("pod {key} is the API server's: add a container with kubectl debug"));
    }
    let mut containers = pod.ephemeral_containers().to_vec();
    let observed = record.worker().observed();
    let has_ended = |name: &str| {
        let container = observed.and_then(|observed| observed.container(name));
        container.is_some_and(|container| container.state == ContainerState::Exited)
    };
    has_memory_for(pods, &key.uid)?;
    if !make_room(&mut containers, debuggers(pods).0, has_ended) {
        return Err(format!(
            "pod {key} gets no further container: a pod may have {DEBUGGERS_PER_POD_MAX}, all of this node \
             {DEBUGGERS_MAX}, and none of this pod has ended"
        ));
    }
    full_name(&question.image).map_err(|why| format!("invalid image name {:?}: {why}", question.image))?;
    let seed = key.uid.as_str().bytes().fold(pods.now().mono.0.cast_unsigned(), |seed, byte| {
        seed.wrapping_mul(31).wrapping_add(byte.into())
    });
    let name = question.container.clone().unwrap_or_else(|| free_name(&pod, seed));
    let policy = question.pull_policy.as_deref();
    let added = Debugger {
        name: &name,
        image: &question.image,
        pull_policy: policy.unwrap_or_else(|| default_pull_policy(&question.image)),
        command: question.command.iter().map(String::as_str).collect(),
        target: question.target.as_deref(),
        stdin: question.stdin,
        tty: question.tty,
    };
    let added = added.container();
    let errors = validate::ephemeral_container(pod.spec(), &added);
    if !errors.is_empty() {
        return Err(errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"));
    }
    containers.push(added);
    let number = checkpointing.next_debugger();
    pods.debug(&key.uid, containers, number);
    log::info!("pod {key}: ephemeral container {name} added");
    let mut facts = format!("pod {} {}\ncontainer {name}\n", key.namespace, key.name);
    if let Some(target) = &question.target {
        let _ = writeln!(
            facts,
            "note Targeting container {target:?}. If you don't see processes from this container it may be because \
             the container runtime doesn't support this feature."
        );
    }
    if question.container.is_none() {
        let _ = writeln!(facts, "note Defaulting debug container name to {name}.");
    }
    Ok((key.uid, facts))
}

/// The pod's object may be there once more.
fn has_memory_for<R: Runtime + 'static>(pods: &Pods<R>, uid: &PodUid) -> Result<(), String> {
    let (_, held) = debugged_pods(pods, Some(uid));
    let own = pods.desired().pod(uid).map_or(0, |entry| entry.wanted.bytes);
    if held + own <= DEBUGGED_PODS_BYTES_MAX {
        return Ok(());
    }
    Err(format!(
        "pods that are debugged may take {DEBUGGED_PODS_BYTES_MAX} bytes together; {held} are taken, and this one \
         takes {own}"
    ))
}

/// Number of added containers, and the memory of them and of their pods.
pub(super) fn debuggers<R: Runtime + 'static>(pods: &Pods<R>) -> (usize, usize) {
    let (containers, bytes) = debugged_pods(pods, None);
    (containers, bytes + containers * DEBUGGER_MEMORY_BYTES)
}

/// The containers that were added to pods, but for one pod, and what these pods take.
fn debugged_pods<R: Runtime + 'static>(pods: &Pods<R>, but: Option<&PodUid>) -> (usize, usize) {
    let others = pods.iter().filter(|(uid, _)| Some(*uid) != but);
    let added =
        others.filter_map(|(uid, record)| Some((uid, record.worker().pod()?.ephemeral_containers().len())));
    added.filter(|(_, added)| *added > 0).fold((0, 0), |(containers, bytes), (uid, added)| {
        let own = pods.desired().pod(uid).map_or(0, |entry| entry.wanted.bytes);
        (containers + added, bytes + own)
    })
}

impl Work {
    /// It starts an ephemeral container.
    pub(super) fn starts_debugger(&self) -> bool {
        let Self::Act(plan) = self else { return false };
        plan.starts().iter().any(|start| start.kind == ContainerKind::Ephemeral)
    }
}

/// Containers in the runtime that were removed from the list to make room: no status shows them any more.
pub(super) fn forgotten(pod: &DesiredPod, observed: &ObservedPod) -> impl Iterator<Item = GcRemoval> {
    let known = |name: &str| {
        let of_spec =
            pod.init_containers().iter().chain(pod.containers()).any(|container| container.name == name);
        of_spec || pod.ephemeral_containers().iter().any(|container| container.name == name)
    };
    let ended = observed.containers.iter().filter(|container| container.state == ContainerState::Exited);
    let forgotten = ended.filter(move |container| !known(&container.name));
    forgotten.map(|container| GcRemoval { id: container.id.clone(), stop: false })
}

/// Makes room for one more container, if necessary by removing the oldest ended one. False = no room.
/// `all` = those of the whole node.
fn make_room(containers: &mut Vec<EphemeralContainer>, all: usize, has_ended: impl Fn(&str) -> bool) -> bool {
    if containers.len() < DEBUGGERS_PER_POD_MAX && all < DEBUGGERS_MAX {
        return true;
    }
    let oldest = containers.iter().position(|container| has_ended(&container.name));
    oldest.map(|oldest| containers.remove(oldest)).is_some()
}

/// A name that is unique in the pod.
fn free_name(pod: &DesiredPod, seed: u64) -> String {
    let spec = pod.init_containers().iter().chain(pod.containers()).map(|container| &container.name);
    let taken: Vec<&String> =
        spec.chain(pod.ephemeral_containers().iter().map(|container| &container.name)).collect();
    let mut name = String::new();
    // One more name than containers: one of them is free.
    for further in 0..=taken.len() as u64 {
        name = format!("debugger-{}", name_suffix(seed.wrapping_add(further)));
        if !taken.contains(&&name) {
            break;
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(added: &[&str]) -> DesiredPod {
        let names = |names: &[&str]| names.iter().map(|name| json!({"name": name})).collect::<Vec<Value>>();
        let pod = json!({"metadata": {"name": "web"}, "spec": {"initContainers": names(&["first"]),
            "containers": names(&["app"]), "ephemeralContainers": names(added)}});
        DesiredPod::new(serde_json::from_value(pod).unwrap())
    }

    fn names(containers: &[EphemeralContainer]) -> Vec<&str> {
        containers.iter().map(|container| &*container.name).collect()
    }

    #[test]
    fn the_oldest_that_has_ended_makes_room() {
        let of = |added: &[&str]| pod(added).ephemeral_containers().to_vec();
        let ended = |name: &str| matches!(name, "b" | "d");
        let mut few = of(&["a", "b"]);
        assert!(make_room(&mut few, 2, ended) && names(&few) == ["a", "b"]);
        assert!(make_room(&mut few, DEBUGGERS_MAX, ended) && names(&few) == ["a"]);
        assert!(!make_room(&mut few, DEBUGGERS_MAX, ended) && names(&few) == ["a"]);
        let mut many = of(&["a", "b", "c", "d", "e", "f", "g", "h"]);
        assert_eq!(many.len(), DEBUGGERS_PER_POD_MAX);
        assert!(make_room(&mut many, 8, ended) && names(&many) == ["a", "c", "d", "e", "f", "g", "h"]);
        assert!(make_room(&mut many, 7, ended) && many.len() == 7);
        assert!(!make_room(&mut of(&["x"; DEBUGGERS_PER_POD_MAX]), 8, ended));
    }

    #[test]
    fn a_name_is_one_that_no_container_has() {
        let first = free_name(&pod(&[]), 5);
        assert!(first.starts_with("debugger-") && first.len() == "debugger-xxxxx".len(), "{first}");
        let second = free_name(&pod(&[&first]), 5);
        assert!(second != first && second == free_name(&pod(&[&first, "x"]), 5));
        assert_ne!(free_name(&pod(&[&first, &second]), 5), second);
    }
}
