//! Container statuses (`convertToAPIContainerStatuses`): records, previous statuses and start failures → API. PURE.

use k8s_openapi::api::core::v1::{
    ContainerState as ApiState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
    ContainerStatus as ApiStatus, ContainerUser as ApiUser, LinuxContainerUser, PodSpec, VolumeMount,
    VolumeMountStatus,
};

use super::resources::container_resources;
use super::rules::{
    self, RESTARTING_ALL, STATUS_UNKNOWN, SpecContainer, is_running, is_waiting, last_terminated, terminated,
};
use super::{StatusInput, time};
use crate::model::{ContainerKind, ContainerState, ContainerStatus};

const REMOVED_MESSAGE: &str = "The container is removed because RestartAllContainers in place";

/// Inputs for converting one of the pod's container lists.
pub(super) struct Lists<'a> {
    pub(super) input: &'a StatusInput<'a>,
    pub(super) spec: &'a PodSpec,
    /// An in-place restart of all containers is requested or in progress.
    pub(super) restarting: bool,
}

/// `None` for empty text: API fields that are not set are absent.
fn some(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn waiting(reason: &str, message: &str) -> ApiState {
    ApiState {
        waiting: Some(ContainerStateWaiting { reason: some(reason), message: some(message) }),
        ..ApiState::default()
    }
}

fn lost(reason: &str, message: &str) -> ContainerStateTerminated {
    ContainerStateTerminated {
        // 137: the container may not have exited normally, so it counts as killed.
        exit_code: 137,
        reason: some(reason),
        message: some(message),
        ..ContainerStateTerminated::default()
    }
}

/// Sets `lastState.terminated` and keeps the other fields of the last state, as the kubelet does.
fn set_last_terminated(status: &mut ApiStatus, end: ContainerStateTerminated) {
    status.last_state.get_or_insert_default().terminated = Some(end);
}

impl Lists<'_> {
    /// The statuses of one list: app and ephemeral containers sorted by name, init containers in spec order.
    pub(super) fn convert(
        &self,
        kind: ContainerKind,
        containers: &[SpecContainer<'_>],
        previous: &[ApiStatus],
    ) -> Vec<ApiStatus> {
        let mut statuses: Vec<ApiStatus> =
            containers.iter().map(|c| self.starting_point(c, find_previous(previous, c.name))).collect();

        for (container, status) in containers.iter().zip(&mut statuses) {
            let old = find_previous(previous, container.name);
            // Newest first; the second newest becomes the last state.
            let mut records =
                self.input.observed.containers.iter().filter(|record| *record.name == *container.name);
            match records.next() {
                None => {
                    if let Some(old) = old {
                        self.infer_missing(old, status);
                    }
                }
                Some(newest) => {
                    *status = self.converted(newest, old);
                    if let Some(earlier) = records.next() {
                        status.last_state = self.converted(earlier, old).state;
                    }
                }
            }
            self.apply_start_failure(kind, container, status);
        }
        if kind != ContainerKind::Init {
            statuses.sort_by(|a, b| a.name.cmp(&b.name));
        }
        statuses
    }

    /// The waiting reason of a container that was not observed yet.
    fn default_waiting(&self) -> &'static str {
        if rules::init_containers(self.spec).is_empty() { "ContainerCreating" } else { "PodInitializing" }
    }

    /// The status shown without a record in the runtime: waiting, or the previous termination.
    fn starting_point(&self, container: &SpecContainer<'_>, old: Option<&ApiStatus>) -> ApiStatus {
        if let Some(old) = old.filter(|o| terminated(o).is_some()) {
            return old.clone();
        }
        let mounts: Vec<_> = container.volume_mounts.iter().map(|m| self.mount_status(m)).collect();
        ApiStatus {
            name: container.name.to_owned(),
            image: container.image.to_owned(),
            state: Some(waiting(self.default_waiting(), "")),
            restart_count: old.map_or(0, |o| o.restart_count),
            last_state: old.and_then(|o| o.last_state.clone()),
            volume_mounts: Some(mounts).filter(|m| !m.is_empty()),
            ..ApiStatus::default()
        }
    }

    fn mount_status(&self, mount: &VolumeMount) -> VolumeMountStatus {
        let read_only = mount.read_only == Some(true);
        VolumeMountStatus {
            name: mount.name.clone(),
            mount_path: mount.mount_path.clone(),
            read_only: Some(true).filter(|_| read_only),
            recursive_read_only: read_only.then(|| {
                let enabled = recursive_read_only(mount, self.input.recursive_read_only);
                (if enabled { "Enabled" } else { "Disabled" }).to_owned()
            }),
            volume_status: None,
        }
    }

    /// Infers the end of a container that was shown before and has no record in the runtime.
    fn infer_missing(&self, old: &ApiStatus, status: &mut ApiStatus) {
        if self.restarting && !is_waiting(old) {
            let state = status.state.get_or_insert_default();
            state.terminated = None;
            state.waiting = waiting(RESTARTING_ALL, REMOVED_MESSAGE).waiting;
            set_last_terminated(status, lost(RESTARTING_ALL, REMOVED_MESSAGE));
            status.restart_count = old.restart_count.saturating_add(1);
            return;
        }
        // An earlier termination is shown unchanged; a container that never ran stays waiting. One that ran and vanished did
        // terminate, although its end was not observed: without a last state the pod would fall back to Pending.
        if terminated(old).is_some() || !is_running(old) || last_terminated(status).is_some() {
            return;
        }
        let message =
            "The container could not be located when the pod was deleted.  The container used to be Running";
        set_last_terminated(status, lost(STATUS_UNKNOWN, message));
        if self.input.pod.metadata.deletion_timestamp.is_none() {
            status.restart_count = status.restart_count.saturating_add(1);
        }
    }

    /// `convertContainerStatus`, and the fields added for every record.
    fn converted(&self, record: &ContainerStatus, old: Option<&ApiStatus>) -> ApiStatus {
        let id = format!("{}://{}", self.input.runtime_name, record.id);
        let same_container = old.is_some_and(|o| o.container_id.as_deref() == Some(&id));
        let recorded = i32::try_from(record.meta.restart_count).unwrap_or(i32::MAX);
        let mut status = ApiStatus {
            name: record.name.to_string(),
            image: record.image.to_string(),
            image_id: record.image_ref.to_string(),
            restart_count: recorded,
            ..ApiStatus::default()
        };
        if let Some(old) = old {
            status.volume_mounts.clone_from(&old.volume_mounts);
            status.restart_count = recorded.max(old.restart_count);
            // An in-place restart of the pod removes the old record; its termination is kept only here.
            let end = terminated(old).filter(|_| !same_container).or_else(|| last_terminated(old));
            if let Some(end) = end {
                set_last_terminated(&mut status, end.clone());
            }
        }

        let running = record.state == ContainerState::Running;
        let mut state = ApiState::default();
        match record.state {
            ContainerState::Running => {
                state.running = Some(ContainerStateRunning { started_at: record.started_at.and_then(time) });
                if let Some(old) = old.filter(|o| terminated(o).is_some() && o.restart_count >= recorded) {
                    status.restart_count = old.restart_count.saturating_add(1);
                }
            }
            ContainerState::Exited => {
                state.terminated = Some(ContainerStateTerminated {
                    exit_code: record.exit_code,
                    reason: some(&record.reason),
                    message: some(&record.message),
                    started_at: record.started_at.and_then(time),
                    finished_at: record.finished_at.and_then(time),
                    container_id: Some(id.clone()),
                    signal: None,
                });
            }
            ContainerState::Unknown if old.is_some_and(is_running) => {
                // It ran, and the runtime no longer knows its state: terminated, not waiting, or run-once pods would run
                // twice.
                let reason = if self.restarting { RESTARTING_ALL } else { STATUS_UNKNOWN };
                let message = "The container could not be located when the pod was terminated";
                state.terminated = Some(lost(reason, message));
                status.restart_count = old.map_or(0, |o| o.restart_count).saturating_add(1);
            }
            ContainerState::Created | ContainerState::Unknown => {
                state.waiting = Some(ContainerStateWaiting::default());
            }
        }
        status.state = Some(state);
        if running {
            status.started = old.and_then(|o| o.started);
        }

        if let Some(container) = self.spec_container(&record.name) {
            let actual = if running { self.input.facts.actual_resources(record) } else { None };
            let resources = container_resources(container.resources, running, &id, actual.as_ref(), old);
            status.resources = Some(resources);
            status.allocated_resources =
                container_resources(container.resources, false, &id, None, None).requests;
        }
        status.user = record.user.as_ref().map(|user| ApiUser {
            linux: Some(LinuxContainerUser {
                uid: user.uid,
                gid: user.gid,
                supplemental_groups: Some(user.supplemental_groups.clone())
                    .filter(|groups| !groups.is_empty()),
            }),
        });
        status.container_id = Some(id);
        status
    }

    /// `GetContainerSpec`: the first of that name among init, app and ephemeral containers.
    fn spec_container(&self, name: &str) -> Option<SpecContainer<'_>> {
        let init =
            rules::init_containers(self.spec).iter().chain(&self.spec.containers).map(SpecContainer::from);
        let ephemeral = self.spec.ephemeral_containers.iter().flatten().map(SpecContainer::from);
        init.chain(ephemeral).find(|c| c.name == name)
    }

    /// A container that the next sync restarts is waiting, with the reason of its last failed start; an init container
    /// without a record has succeeded when an app container exists.
    fn apply_start_failure(
        &self,
        kind: ContainerKind,
        container: &SpecContainer<'_>,
        status: &mut ApiStatus,
    ) {
        let observed = self.input.observed;
        let record = observed.container(container.name);
        if kind == ContainerKind::Init {
            if record.is_some_and(|r| r.state == ContainerState::Exited && r.exit_code == 0) {
                return;
            }
            let passed = record.is_none()
                && rules::any_app_created(self.spec, observed)
                && container.restart_policy != Some("Always");
            if passed && is_waiting(status) {
                let message = "Unable to get init container status from container runtime and pod has been \
                               initialized, treat it as exited normally";
                status.state = Some(ApiState {
                    terminated: Some(ContainerStateTerminated {
                        reason: some("Completed"),
                        message: some(message),
                        ..ContainerStateTerminated::default()
                    }),
                    ..ApiState::default()
                });
                return;
            }
        }
        if !self.starts_again(container, record) {
            return;
        }
        let Some((reason, message)) = self.input.facts.start_failure(container.name) else { return };
        if terminated(status).is_some() {
            status.last_state = status.state.take();
        }
        status.state = Some(waiting(reason, message));
    }

    /// `ShouldContainerBeRestarted`.
    fn starts_again(&self, container: &SpecContainer<'_>, record: Option<&ContainerStatus>) -> bool {
        if self.input.pod.metadata.deletion_timestamp.is_some() {
            return false;
        }
        let Some(record) = record else { return true };
        match record.state {
            ContainerState::Running => false,
            ContainerState::Created | ContainerState::Unknown => true,
            ContainerState::Exited => container.should_restart(self.spec, record.exit_code),
        }
    }
}

/// The previous status of that container; the last of several wins, as in the kubelet's map.
fn find_previous<'a>(previous: &'a [ApiStatus], name: &str) -> Option<&'a ApiStatus> {
    previous.iter().rev().find(|s| s.name == name)
}

/// `resolveRecursiveReadOnly`: unsupported counts as disabled.
fn recursive_read_only(mount: &VolumeMount, supported: bool) -> bool {
    let propagates = mount.mount_propagation.as_deref().is_some_and(|p| p != "None");
    let asked = matches!(mount.recursive_read_only.as_deref(), Some("IfPossible" | "Enabled"));
    asked && !propagates && supported
}
