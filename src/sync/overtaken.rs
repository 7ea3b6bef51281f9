//! Guards a sync's creates against changes of the pod after the observation it was planned from.
//!
//! A pull may take minutes between the observation and the create. An agent that creates containers from an observation that
//! is out of date may create one twice (the known fault of event-driven kubelets). So an event of the pod marks the sync,
//! and a marked sync lists the pod's containers once more before it creates anything.

use std::cell::Cell;
use std::rc::Rc;

use crate::cri::Runtime;
use crate::model::{ContainerItem, ContainerState, PodUid, SandboxItem, SandboxState};

/// Set by the loop when an event shows that the pod is no longer as observed; the sync's own actions may set it too.
#[derive(Clone, Debug, Default)]
pub struct Overtaken(Rc<Cell<bool>>);

impl Overtaken {
    /// Marks the pod as changed.
    pub fn tell(&self) {
        self.0.set(true);
    }

    /// True when the pod's sandbox of that attempt may be created: nothing changed since the observation, or the change does
    /// not conflict with it. False when the runtime does not answer: the next sync tries again.
    pub(super) async fn sandbox_may_be_made<R: Runtime>(
        &self,
        runtime: &R,
        pod: &PodUid,
        attempt: u32,
    ) -> bool {
        if !self.0.take() {
            return true;
        }
        let mut may = true;
        let mut each = |item: SandboxItem| may &= leaves_room_for_sandbox(&item, attempt);
        runtime.list_pod_sandboxes(Some(pod), &mut each).await.is_ok() && may
    }

    /// The same check for a container.
    pub(super) async fn container_may_be_made<R: Runtime>(
        &self,
        runtime: &R,
        pod: &PodUid,
        name: &str,
        attempt: u32,
    ) -> bool {
        if !self.0.take() {
            return true;
        }
        let mut may = true;
        let mut each = |item: ContainerItem| may &= leaves_room_for_container(&item, name, attempt);
        runtime.list_containers(Some(pod), &mut each).await.is_ok() && may
    }
}

/// PURE: false for a sandbox that the plan did not know: a ready one, or one of this or a later attempt.
fn leaves_room_for_sandbox(item: &SandboxItem, attempt: u32) -> bool {
    item.state == SandboxState::NotReady && item.attempt < attempt
}

/// PURE: false for a container of that name that the plan did not know: one that runs, or may run, or is of this or a later
/// attempt. One that was created and never started does not conflict: the start removes it.
fn leaves_room_for_container(item: &ContainerItem, name: &str, attempt: u32) -> bool {
    let may_run = matches!(item.state, ContainerState::Running | ContainerState::Unknown);
    &*item.name != name || (!may_run && item.attempt < attempt)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ContainerId, PodKey, SandboxId, Wall};

    #[test]
    fn what_lives_or_is_newer_leaves_no_room() {
        use ContainerState::{Created, Exited, Running, Unknown};
        let container = |name: &str, attempt, state| ContainerItem {
            id: ContainerId::from("c"),
            sandbox_id: SandboxId::from("s"),
            pod: None,
            name: name.into(),
            attempt,
            state,
            created_at: Wall(1),
            image: "".into(),
            hash: 0,
        };
        for (name, attempt, state, room) in [
            ("app", 0, Exited, true),
            ("app", 0, Created, true),
            ("app", 0, Running, false),
            ("app", 0, Unknown, false),
            ("app", 1, Exited, false),
            ("app", 1, Created, false),
            ("app", 2, Exited, false),
            ("other", 7, Running, true),
        ] {
            let item = container(name, attempt, state);
            assert_eq!(leaves_room_for_container(&item, "app", 1), room, "{name}#{attempt} {state:?}");
        }
        let sandbox = |attempt, state| SandboxItem {
            id: SandboxId::from("s"),
            pod: PodKey::new("default", "web", "u1"),
            attempt,
            state,
            created_at: Wall(1),
            node: None,
            labelled: true,
            of_file: false,
        };
        for (attempt, state, room) in [
            (0, SandboxState::NotReady, true),
            (0, SandboxState::Ready, false),
            (1, SandboxState::NotReady, false),
            (2, SandboxState::Ready, false),
        ] {
            assert_eq!(leaves_room_for_sandbox(&sandbox(attempt, state), 1), room, "{attempt} {state:?}");
        }
    }
}
