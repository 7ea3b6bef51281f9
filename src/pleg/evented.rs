//! PURE: evaluates a CRI event against the pod's last read (`EventedPLEG`): whether the read shows it already, and which state
//! of the runtime's status to wait for, because the status may show a change later than its event.
//!
//! Ids of containers and sandboxes are never reused: one that was read as exited or removed stays so. Duplicate, late and
//! reordered events are therefore recognized as known.

use std::collections::VecDeque;
use std::time::Duration;

use crate::cri::{RuntimeEvent, RuntimeEventKind};
use crate::limits::{
    CHANGE_POLL_FIRST, CHANGE_POLL_SHARE, CHANGE_POLL_TIME, UNKNOWN_EVENT_PATIENCE, UNKNOWN_EVENTS_MAX,
};
use crate::model::{ContainerId, ContainerState, Mono, ObservedPod, SandboxId, SandboxState};

/// State that the runtime's status has to show before the pod is read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AwaitedState {
    /// The container has exited or the sandbox is not ready; removed counts too.
    Ended,
    /// Removed.
    Gone,
}

/// The container or sandbox whose status has to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Instance {
    /// Polled with `ContainerStatus`.
    Container(ContainerId),
    /// Polled with `PodSandboxStatus`.
    Sandbox(SandboxId),
}

/// Effect of an event on a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Relevance {
    /// None: the last read shows it.
    Known,
    /// The state differs from the last read.
    Changed,
    /// The pod is read once the status shows this state.
    Await(Instance, AwaitedState),
    /// No read has shown this id yet.
    UnknownId,
}

/// Evaluates an event about the pod with the last read `observed`; `None` for an unknown pod.
pub fn judge(event: &RuntimeEvent, observed: Option<&ObservedPod>) -> Relevance {
    use RuntimeEventKind::{Created, Deleted, Exited, OutOfMemory, Started};
    let Some((instance, state)) = observed.and_then(|observed| find(observed, &event.id)) else {
        return Relevance::UnknownId;
    };
    match (event.kind, state) {
        (Created, _) | (Started, Phase::Live | Phase::Ended) | (Exited, Phase::Ended) => Relevance::Known,
        (Started, Phase::Created) | (OutOfMemory, _) => Relevance::Changed,
        (Exited, Phase::Live | Phase::Created) => Relevance::Await(instance, AwaitedState::Ended),
        (Deleted, _) => Relevance::Await(instance, AwaitedState::Gone),
    }
}

/// True when the read shows the awaited state.
pub fn is_shown(observed: &ObservedPod, id: &str, until: AwaitedState) -> bool {
    match find(observed, id) {
        None => true,
        Some((_, state)) => until == AwaitedState::Ended && state == Phase::Ended,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Created,
    Live,
    Ended,
}

fn find(observed: &ObservedPod, id: &str) -> Option<(Instance, Phase)> {
    if let Some(container) = observed.containers.iter().find(|container| container.id.as_str() == id) {
        let seen = match container.state {
            ContainerState::Created => Phase::Created,
            ContainerState::Running | ContainerState::Unknown => Phase::Live,
            ContainerState::Exited => Phase::Ended,
        };
        return Some((Instance::Container(container.id.clone()), seen));
    }
    let sandbox = observed.sandboxes.iter().find(|sandbox| sandbox.id.as_str() == id)?;
    let seen = if sandbox.state == SandboxState::Ready { Phase::Live } else { Phase::Ended };
    Some((Instance::Sandbox(sandbox.id.clone()), seen))
}

/// Waits before each poll of a status: 5 ms, later a quarter of the elapsed time, 2 s in all. containerd publishes an exit some
/// 10 to 100 ms before its CRI status shows it: the poll finds it within a quarter of that, or 5 ms.
pub fn polls() -> impl Iterator<Item = Duration> {
    let mut passed = Duration::ZERO;
    std::iter::from_fn(move || {
        let wait =
            CHANGE_POLL_FIRST.max(passed / CHANGE_POLL_SHARE).min(CHANGE_POLL_TIME.saturating_sub(passed));
        passed += wait;
        (!wait.is_zero()).then_some(wait)
    })
}

/// Events about ids that no read has shown: of a container that is being started, of a pod from an interrupted call, or of
/// another client. The newest `limits::UNKNOWN_EVENTS_MAX`. Full: the oldest is dropped; the next read or relist shows its
/// pod's state all the same.
#[derive(Debug, Default)]
pub struct UnknownEvents(VecDeque<(Box<str>, RuntimeEventKind, Mono)>);

impl UnknownEvents {
    /// Number of events, and their memory.
    pub fn held(&self) -> (usize, usize) {
        let entry = size_of::<(Box<str>, RuntimeEventKind, Mono)>();
        (self.0.len(), self.0.iter().map(|(id, ..)| entry + id.len()).sum())
    }

    /// Adds an event.
    pub fn note(&mut self, event: RuntimeEvent, now: Mono) {
        if self.0.len() == UNKNOWN_EVENTS_MAX {
            self.0.pop_front();
        }
        self.0.push_back((event.id, event.kind, now));
    }

    /// When a relist is due for them: a container or sandbox was started, and no job of ours has made it known.
    pub fn due(&self) -> Option<Mono> {
        self.0.iter().find(|(_, kind, _)| began(*kind)).map(|(.., at)| *at + UNKNOWN_EVENT_PATIENCE)
    }

    /// Drops the start events before a relist that began at `begun`.
    pub fn relisted(&mut self, begun: Mono) {
        self.0.retain(|(_, kind, at)| !began(*kind) || *at > begun);
    }

    /// Removes the events whose ids `observed` shows, and returns the end states to await.
    pub fn take_known(&mut self, observed: &ObservedPod) -> Vec<(Box<str>, Instance, AwaitedState)> {
        let mut waits = Vec::new();
        self.0.retain(|(id, kind, _)| {
            let event = RuntimeEvent { kind: *kind, id: id.clone(), pod: None };
            match judge(&event, Some(observed)) {
                Relevance::UnknownId => return true,
                Relevance::Await(instance, until) => waits.push((event.id, instance, until)),
                // The read is newer than the event.
                Relevance::Known | Relevance::Changed => {}
            }
            false
        });
        waits
    }
}

fn began(kind: RuntimeEventKind) -> bool {
    matches!(kind, RuntimeEventKind::Created | RuntimeEventKind::Started)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ContainerStatus, SandboxStatus, Wall};
    use RuntimeEventKind::{Created, Deleted, Exited, OutOfMemory, Started};

    fn observed(state: ContainerState, sandbox: SandboxState) -> ObservedPod {
        let container = ContainerStatus {
            id: ContainerId::from("c"),
            name: "app".into(),
            sandbox_id: SandboxId::from("s"),
            state,
            created_at: Wall(1),
            ..ContainerStatus::default()
        };
        let sandbox = SandboxStatus {
            id: SandboxId::from("s"),
            attempt: 0,
            state: sandbox,
            created_at: Wall(1),
            network_namespace: None,
            network: None,
        };
        ObservedPod { ips: Vec::new(), sandboxes: vec![sandbox], containers: vec![container] }
    }

    fn event(kind: RuntimeEventKind, id: &str) -> RuntimeEvent {
        RuntimeEvent { kind, id: id.into(), pod: None }
    }

    #[test]
    fn an_event_is_relevant_when_the_last_read_does_not_show_it() {
        use ContainerState::{Created as CCreated, Exited as CExited, Running, Unknown};
        let ended = |id: &str| match id {
            "s" => Relevance::Await(Instance::Sandbox(SandboxId::from("s")), AwaitedState::Ended),
            _ => Relevance::Await(Instance::Container(ContainerId::from("c")), AwaitedState::Ended),
        };
        let gone = Relevance::Await(Instance::Container(ContainerId::from("c")), AwaitedState::Gone);
        for (container, kind, id, news) in [
            (Running, Created, "c", Relevance::Known),
            (Running, Started, "c", Relevance::Known),
            (CExited, Started, "c", Relevance::Known),
            (CCreated, Started, "c", Relevance::Changed),
            (Running, Exited, "c", ended("c")),
            (CCreated, Exited, "c", ended("c")),
            (Unknown, Exited, "c", ended("c")),
            (CExited, Exited, "c", Relevance::Known),
            (CExited, Deleted, "c", gone.clone()),
            (Running, Deleted, "c", gone),
            (CExited, OutOfMemory, "c", Relevance::Changed),
            (Running, Exited, "s", ended("s")),
            (Running, Started, "s", Relevance::Known),
            (Running, Started, "x", Relevance::UnknownId),
            (Running, Exited, "x", Relevance::UnknownId),
        ] {
            let observed = observed(container, SandboxState::Ready);
            assert_eq!(judge(&event(kind, id), Some(&observed)), news, "{container:?} {kind:?} {id}");
        }
        assert_eq!(judge(&event(Exited, "c"), None), Relevance::UnknownId);
        let stopped = observed(CExited, SandboxState::NotReady);
        assert_eq!(judge(&event(Exited, "s"), Some(&stopped)), Relevance::Known);
        assert!(is_shown(&stopped, "c", AwaitedState::Ended) && is_shown(&stopped, "s", AwaitedState::Ended));
        assert!(!is_shown(&stopped, "c", AwaitedState::Gone) && is_shown(&stopped, "x", AwaitedState::Gone));
    }

    #[test]
    fn a_status_is_polled_for_two_seconds_at_growing_intervals() {
        let millis: Vec<u128> = polls().map(|wait| wait.as_millis()).collect();
        assert_eq!(millis[..12], [5, 5, 5, 5, 5, 6, 7, 9, 12, 15, 19, 23]);
        assert_eq!((millis.len(), polls().sum()), (25, CHANGE_POLL_TIME));
    }

    #[test]
    fn an_exit_before_the_first_read_is_not_lost() {
        let mut events = UnknownEvents::default();
        events.note(event(Started, "c"), Mono(1));
        events.note(event(Exited, "c"), Mono(2));
        events.note(event(Exited, "other"), Mono(3));
        assert_eq!(events.due(), Some(Mono(1) + UNKNOWN_EVENT_PATIENCE));
        let running = observed(ContainerState::Running, SandboxState::Ready);
        let container = Instance::Container(ContainerId::from("c"));
        assert_eq!(events.take_known(&running), [("c".into(), container, AwaitedState::Ended)]);
        assert_eq!(events.take_known(&running), []);
        assert_eq!(events.due(), None, "an exited container needs no relist");
    }

    #[test]
    fn a_relist_covers_starts_before_it() {
        let mut events = UnknownEvents::default();
        events.note(event(Started, "a"), Mono(5));
        events.note(event(Created, "b"), Mono(7));
        events.relisted(Mono(5));
        assert_eq!(events.due(), Some(Mono(7) + UNKNOWN_EVENT_PATIENCE));
        for _ in 0..2 * UNKNOWN_EVENTS_MAX {
            events.note(event(Exited, "x"), Mono(9));
        }
        assert_eq!((events.0.len(), events.due()), (UNKNOWN_EVENTS_MAX, None));
    }
}
