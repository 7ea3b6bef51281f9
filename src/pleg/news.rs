//! PURE: what an event means beside what was read: news, or known already; and what to wait for in the runtime's
//! status, which may show an event later than it was told.
//!
//! Containers and sandboxes never come back under the same id: what was once seen ended or gone stays so. Events that are
//! doubled, late or out of order are therefore known already.

use std::collections::VecDeque;
use std::time::Duration;

use crate::cri::{RuntimeEvent, RuntimeEventKind};
use crate::limits::{
    CHANGE_LOOK_FIRST, CHANGE_LOOK_SHARE, CHANGE_LOOK_TIME, STRANGER_PATIENCE, STRANGERS_MAX,
};
use crate::model::{ContainerId, ContainerState, Mono, ObservedPod, SandboxId, SandboxState};

/// What the runtime's status is to show before a pod is read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// A container that has exited, a sandbox that is not ready; gone will do.
    Ended,
    /// Not there any more.
    Gone,
}

/// A container or sandbox whose status is to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Instance {
    /// Ask `ContainerStatus`.
    Container(ContainerId),
    /// Ask `PodSandboxStatus`.
    Sandbox(SandboxId),
}

/// What an event means for a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// Nothing: the last read shows it.
    Known,
    /// Something is not as it was read.
    Changed,
    /// The status is to show this first.
    Await(Instance, Until),
    /// The id was in no read yet.
    Stranger,
}

/// Judges an event about the pod that was read as `observed`, or about one of no pod we know (`None`).
pub fn judge(event: &RuntimeEvent, observed: Option<&ObservedPod>) -> News {
    use RuntimeEventKind::{Created, Deleted, Exited, OutOfMemory, Started};
    let Some((instance, state)) = observed.and_then(|observed| find(observed, &event.id)) else {
        return News::Stranger;
    };
    match (event.kind, state) {
        (Created, _) | (Started, Phase::Live | Phase::Ended) | (Exited, Phase::Ended) => News::Known,
        (Started, Phase::Created) | (OutOfMemory, _) => News::Changed,
        (Exited, Phase::Live | Phase::Created) => News::Await(instance, Until::Ended),
        (Deleted, _) => News::Await(instance, Until::Gone),
    }
}

/// True when the read shows what was waited for.
pub fn is_shown(observed: &ObservedPod, id: &str, until: Until) -> bool {
    match find(observed, id) {
        None => true,
        Some((_, state)) => until == Until::Ended && state == Phase::Ended,
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

/// The waits before each look at a status: 5 ms, later a quarter of the time that has passed, 2 s in all. containerd
/// publishes an exit some 10 to 100 ms before its CRI status shows it: it is seen within a quarter of that, or 5 ms.
pub fn looks() -> impl Iterator<Item = Duration> {
    let mut passed = Duration::ZERO;
    std::iter::from_fn(move || {
        let wait =
            CHANGE_LOOK_FIRST.max(passed / CHANGE_LOOK_SHARE).min(CHANGE_LOOK_TIME.saturating_sub(passed));
        passed += wait;
        (!wait.is_zero()).then_some(wait)
    })
}

/// Events about ids that no read has shown: of a container whose start is under way, of a pod that a call made which was
/// cut off, or of somebody else's. The newest `limits::STRANGERS_MAX`. Full: the oldest is forgotten; its pod's next
/// read or relist shows its state all the same.
#[derive(Debug, Default)]
pub struct Strangers(VecDeque<(Box<str>, RuntimeEventKind, Mono)>);

impl Strangers {
    /// How many are remembered, and the bytes they take.
    pub fn held(&self) -> (usize, usize) {
        let entry = size_of::<(Box<str>, RuntimeEventKind, Mono)>();
        (self.0.len(), self.0.iter().map(|(id, ..)| entry + id.len()).sum())
    }

    /// Remembers one.
    pub fn note(&mut self, event: RuntimeEvent, now: Mono) {
        if self.0.len() == STRANGERS_MAX {
            self.0.pop_front();
        }
        self.0.push_back((event.id, event.kind, now));
    }

    /// When everything is to be looked at for them: something began to run, and no job of ours has made it known.
    pub fn due(&self) -> Option<Mono> {
        self.0.iter().find(|(_, kind, _)| began(*kind)).map(|(.., at)| *at + STRANGER_PATIENCE)
    }

    /// A relist that began then has looked.
    pub fn looked(&mut self, begun: Mono) {
        self.0.retain(|(_, kind, at)| !began(*kind) || *at > begun);
    }

    /// Takes out those that `observed` makes known, and returns what their ends are to show.
    pub fn met(&mut self, observed: &ObservedPod) -> Vec<(Box<str>, Instance, Until)> {
        let mut waits = Vec::new();
        self.0.retain(|(id, kind, _)| {
            let event = RuntimeEvent { kind: *kind, id: id.clone(), pod: None };
            match judge(&event, Some(observed)) {
                News::Stranger => return true,
                News::Await(instance, until) => waits.push((event.id, instance, until)),
                // The read is newer.
                News::Known | News::Changed => {}
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
    fn an_event_is_news_when_the_last_read_does_not_show_it() {
        use ContainerState::{Created as CCreated, Exited as CExited, Running, Unknown};
        let ended = |id: &str| match id {
            "s" => News::Await(Instance::Sandbox(SandboxId::from("s")), Until::Ended),
            _ => News::Await(Instance::Container(ContainerId::from("c")), Until::Ended),
        };
        let gone = News::Await(Instance::Container(ContainerId::from("c")), Until::Gone);
        for (container, kind, id, news) in [
            (Running, Created, "c", News::Known),
            (Running, Started, "c", News::Known),
            (CExited, Started, "c", News::Known),
            (CCreated, Started, "c", News::Changed),
            (Running, Exited, "c", ended("c")),
            (CCreated, Exited, "c", ended("c")),
            (Unknown, Exited, "c", ended("c")),
            (CExited, Exited, "c", News::Known),
            (CExited, Deleted, "c", gone.clone()),
            (Running, Deleted, "c", gone),
            (CExited, OutOfMemory, "c", News::Changed),
            (Running, Exited, "s", ended("s")),
            (Running, Started, "s", News::Known),
            (Running, Started, "x", News::Stranger),
            (Running, Exited, "x", News::Stranger),
        ] {
            let observed = observed(container, SandboxState::Ready);
            assert_eq!(judge(&event(kind, id), Some(&observed)), news, "{container:?} {kind:?} {id}");
        }
        assert_eq!(judge(&event(Exited, "c"), None), News::Stranger);
        let stopped = observed(CExited, SandboxState::NotReady);
        assert_eq!(judge(&event(Exited, "s"), Some(&stopped)), News::Known);
        assert!(is_shown(&stopped, "c", Until::Ended) && is_shown(&stopped, "s", Until::Ended));
        assert!(!is_shown(&stopped, "c", Until::Gone) && is_shown(&stopped, "x", Until::Gone));
    }

    #[test]
    fn a_status_is_looked_at_for_two_seconds_less_and_less_often() {
        let millis: Vec<u128> = looks().map(|wait| wait.as_millis()).collect();
        assert_eq!(millis[..12], [5, 5, 5, 5, 5, 6, 7, 9, 12, 15, 19, 23]);
        assert_eq!((millis.len(), looks().sum()), (25, CHANGE_LOOK_TIME));
    }

    #[test]
    fn an_exit_before_the_first_read_is_not_lost() {
        let mut strangers = Strangers::default();
        strangers.note(event(Started, "c"), Mono(1));
        strangers.note(event(Exited, "c"), Mono(2));
        strangers.note(event(Exited, "other"), Mono(3));
        assert_eq!(strangers.due(), Some(Mono(1) + STRANGER_PATIENCE));
        let running = observed(ContainerState::Running, SandboxState::Ready);
        let container = Instance::Container(ContainerId::from("c"));
        assert_eq!(strangers.met(&running), [("c".into(), container, Until::Ended)]);
        assert_eq!(strangers.met(&running), []);
        assert_eq!(strangers.due(), None, "what ended is not looked for");
    }

    #[test]
    fn a_relist_looks_at_what_began_before_it() {
        let mut strangers = Strangers::default();
        strangers.note(event(Started, "a"), Mono(5));
        strangers.note(event(Created, "b"), Mono(7));
        strangers.looked(Mono(5));
        assert_eq!(strangers.due(), Some(Mono(7) + STRANGER_PATIENCE));
        for _ in 0..2 * STRANGERS_MAX {
            strangers.note(event(Exited, "x"), Mono(9));
        }
        assert_eq!((strangers.0.len(), strangers.due()), (STRANGERS_MAX, None));
    }
}
