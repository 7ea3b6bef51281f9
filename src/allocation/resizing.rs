//! The state of one pod's resize: what its containers run with, its conditions, and its events (`allocation_manager.go`,
//! `status_manager.go`, `events/resize.go`). PURE.
//!
//! | what happens | `PodResizePending` | `PodResizeInProgress` | event |
//! |---|---|---|---|
//! | it is put off (`Deferred`, `Infeasible`) | set; its transition is that of the reason | | `ResizeDeferred`, `ResizeInfeasible`: once for each reason and generation |
//! | the allocated resources are desired again | removed | | |
//! | it is allocated | removed | set anew | `ResizeStarted` |
//! | the runtime or the cgroup refuses it | | reason `Error` | `ResizeError`: once for each message |
//! | a running container differs from what is allocated | | set, if it is not | |
//! | none does any more, and the cgroup has it too | | removed | `ResizeCompleted` |
//!
//! Init containers that end by themselves are not waited for.

use k8s_openapi::api::core::v1::{Container, Pod, PodCondition, PodStatus};
use serde_json::{Value, json};

use super::pending::Pending;
use super::{AllocatedSizes, container_sizes, may_resize, resizable, same_sizes};
use crate::events::EventKind;
use crate::model::{ContainerId, ContainerState, DesiredPod, ObservedPod, Resource, Sizes, Wall};
use crate::render::NodeSettings;
use crate::render::resources::{container_resources, is_sidecar, sizes};
use crate::status::{nanos, time};
use crate::store::checkpoint::SizesCheckpoint;
use crate::sync::resize::{difference, restarts_for};
use crate::sync::worker::Life;

const PENDING: &str = "PodResizePending";
const IN_PROGRESS: &str = "PodResizeInProgress";

/// A pod that is being resized, or was. Its allocated resources are those of the pod that its worker has.
#[derive(Debug, Default)]
pub struct Resizing {
    /// Resources of running containers that were created with others; of all pods at most `RESIZES_NOTED_MAX`.
    actuated: Vec<(ContainerId, Sizes)>,
    pending: Option<PodCondition>,
    in_progress: Option<PodCondition>,
    /// No resize has succeeded since it is in progress.
    unsettled: bool,
    /// Counts allocations and actuations of all pods: the checkpoint has this one when it has that number.
    pub number: u64,
}

/// An event of the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResizeEvent {
    /// Its type.
    pub kind: EventKind,
    /// Its reason.
    pub reason: &'static str,
    /// Its message.
    pub message: String,
}

/// The pod of a resize at a retry.
#[derive(Clone, Copy, Debug)]
pub struct ResizingPod<'a> {
    /// Its state in its life cycle.
    pub life: Life,
    /// Nothing is done to it, because handling it ended the process too often.
    pub set_aside: bool,
    /// A job of its worker is in flight.
    pub in_flight: bool,
    /// With the desired resources.
    pub desired: &'a DesiredPod,
    /// With the allocated ones.
    pub allocated: &'a DesiredPod,
    /// As the runtime shows it.
    pub observed: Option<&'a ObservedPod>,
}

/// What a retry of pending resizes does about one pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// Nothing.
    Leave,
    /// Its resize is decided ([`super::pending::decide`]).
    Decide {
        /// When it was reported as pending, if it was: nanoseconds since 1970.
        since: Option<i64>,
    },
    /// The allocated resources are desired again: it is not pending any more.
    Withdraw,
    /// The containers say all that is known of it: it is forgotten.
    Forget,
}

/// How far a resize is (`IsPodResizeInProgress`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// As at the last look.
    Unchanged,
    /// A container differs from what is allocated.
    Begun,
    /// None does any more.
    Completed(ResizeEvent),
}

/// `updatedPodResizeCondition`.
fn condition(
    kind: &str,
    old: Option<&PodCondition>,
    reason: &str,
    message: &str,
    generation: Option<i64>,
    now: Wall,
) -> PodCondition {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let since = old.filter(|old| old.reason.as_deref().unwrap_or_default() == reason);
    PodCondition {
        type_: kind.to_owned(),
        status: "True".to_owned(),
        last_probe_time: time(now),
        last_transition_time: since.map_or_else(|| time(now), |old| old.last_transition_time.clone()),
        observed_generation: generation,
        reason: text(reason),
        message: text(message),
    }
}

/// The desired generation, as conditions have it.
fn generation(pod: &Pod) -> Option<i64> {
    pod.metadata.generation.filter(|generation| *generation != 0)
}

impl Resizing {
    /// From the checkpoint and the status in it, with what is allocated to the pod.
    pub fn restored(kept: &[SizesCheckpoint<'_>], status: &PodStatus) -> (Self, AllocatedSizes) {
        let (mut resizing, mut allocated) = (Self::default(), AllocatedSizes::new());
        for kept in kept {
            let sizes = Sizes::of_numbers(kept.sizes);
            if kept.runs {
                resizing.actuated.push((kept.name.into(), sizes));
            } else {
                allocated.push((kept.name.into(), sizes));
            }
        }
        for condition in status.conditions.iter().flatten() {
            match &*condition.type_ {
                PENDING => resizing.pending = Some(condition.clone()),
                IN_PROGRESS => {
                    (resizing.in_progress, resizing.unsettled) = (Some(condition.clone()), true);
                }
                _ => {}
            }
        }
        (resizing, allocated)
    }

    /// For the checkpoint.
    pub fn kept<'a>(&'a self, allocated: impl Iterator<Item = (&'a str, Sizes)>) -> Vec<SizesCheckpoint<'a>> {
        let kept = |name, runs, sizes: &Sizes| SizesCheckpoint { name, runs, sizes: sizes.numbers() };
        let allocated = allocated.map(|(name, sizes)| kept(name, false, &sizes));
        allocated.chain(self.actuated.iter().map(|(id, sizes)| kept(id.as_str(), true, sizes))).collect()
    }

    /// The conditions of the pod's status (`GetPodResizeConditions`).
    pub fn conditions(&self) -> impl Iterator<Item = &PodCondition> {
        self.pending.iter().chain(&self.in_progress)
    }

    /// It waits for an allocation.
    pub fn is_pending(&self) -> bool {
        self.pending.is_some()
    }

    /// It is allocated, and not yet completed.
    pub fn is_in_progress(&self) -> bool {
        self.in_progress.is_some()
    }

    /// Containers that run with other resources than they were created with.
    pub fn noted(&self) -> usize {
        self.actuated.len()
    }

    /// Notes resizes that were actuated and not written down, because the agent was killed: the runtime's report counts. Of a
    /// resource whose change needs a restart it says nothing: that stands on the container which was created then.
    pub fn recognise(&mut self, node: &NodeSettings, pod: &DesiredPod, observed: &ObservedPod) {
        for container in resizable(pod) {
            let Some(status) = observed.container(&container.name) else { continue };
            let known = self.actuated(&status.id).or(status.meta.sizes);
            let (Some(has), Some(reported)) = (known, &status.resources) else { continue };
            let (wanted, allocated) = (container_resources(node, &pod.pod, container), sizes(container));
            let is = |wanted: i64, reported: i64| wanted == 0 || wanted == reported;
            let same = |resource: Resource| match resource {
                Resource::Cpu => {
                    is(wanted.cpu_shares, reported.cpu_shares) && is(wanted.cpu_quota, reported.cpu_quota)
                }
                Resource::Memory => is(wanted.memory_limit_in_bytes, reported.memory_limit_in_bytes),
            };
            let done = [Resource::Cpu, Resource::Memory].into_iter();
            let done = done.filter(|resource| same(*resource) && !restarts_for(container, *resource));
            let now = done.fold(has, |now, resource| now.with(resource, &allocated));
            if now != has && status.state == ContainerState::Running {
                self.actuate(&status.id, now);
            }
        }
    }

    /// Writes into an observation what its containers run with. A note of a container that is gone, or was created with it, is
    /// dropped.
    pub fn complete(&mut self, observed: &mut ObservedPod) {
        self.actuated.retain(|(id, sizes)| {
            let status = observed.containers.iter().find(|status| status.id == *id);
            status.is_some_and(|status| status.meta.sizes != Some(*sizes))
        });
        for status in &mut observed.containers {
            status.meta.sizes = self.actuated(&status.id).or(status.meta.sizes);
        }
    }

    /// Notes that containers which another agent created run with what is allocated to their pod so far. True when there are any:
    /// the pod has to be read anew.
    pub fn note_unknown(&mut self, allocated: &DesiredPod, observed: Option<&ObservedPod>) -> bool {
        let before = self.actuated.len();
        let containers = observed.into_iter().flat_map(|observed| &observed.containers);
        let unknown = containers
            .filter(|status| status.meta.sizes.is_none() && status.state == ContainerState::Running)
            .filter_map(|status| Some((status.id.clone(), container_sizes(allocated, &status.name)?)));
        self.actuated.extend(unknown);
        self.actuated.len() > before
    }

    /// That container runs with this now.
    pub fn actuate(&mut self, id: &ContainerId, sizes: Sizes) {
        self.actuated.retain(|(of, _)| of != id);
        self.actuated.push((id.clone(), sizes));
    }

    fn actuated(&self, id: &ContainerId) -> Option<Sizes> {
        self.actuated.iter().find(|(of, _)| of == id).map(|(_, sizes)| *sizes)
    }

    /// What a retry does about the pod (`RetryPendingResizes`).
    ///
    /// | the pod | is pending | |
    /// |---|---|---|
    /// | set aside, ending or ended | | left |
    /// | desired otherwise than allocated | | decided |
    /// | desired as allocated | yes | withdrawn |
    /// | desired as allocated, a condition or a note is there, a container differs, or a job is in flight | no | left |
    /// | desired as allocated, nothing of these | no | forgotten |
    pub fn retry(&self, pod: &ResizingPod<'_>) -> Retry {
        if pod.set_aside || !may_resize(pod.life) {
            return Retry::Leave;
        }
        if !same_sizes(pod.desired, pod.allocated) {
            let at = |condition: &PodCondition| Some(nanos(condition.last_transition_time.as_ref()?).0);
            return Retry::Decide { since: self.pending.as_ref().and_then(at) };
        }
        if self.is_pending() {
            return Retry::Withdraw;
        }
        let differs = |container: &Container| {
            let status = pod.observed.and_then(|observed| observed.container(&container.name));
            status.is_some_and(|status| difference(container, status).is_some())
        };
        let is_over = !self.is_in_progress()
            && !self.unsettled
            && self.actuated.is_empty()
            && !resizable(pod.allocated).any(differs)
            && !pod.in_flight;
        if is_over { Retry::Forget } else { Retry::Leave }
    }

    /// A resize has begun, and none has succeeded since.
    pub fn is_unsettled(&self) -> bool {
        self.unsettled
    }

    /// Containers and cgroup have taken what is allocated.
    pub fn settle(&mut self) {
        self.unsettled = false;
    }

    /// It is not pending any more.
    pub fn withdraw(&mut self) {
        self.pending = None;
    }

    /// The pod's desired resources are allocated to it.
    pub fn allocate(&mut self, desired: &DesiredPod, now: Wall) -> ResizeEvent {
        self.pending = None;
        let of = generation(&desired.pod);
        (self.in_progress, self.unsettled) = (Some(condition(IN_PROGRESS, None, "", "", of, now)), true);
        ResizeEvent {
            kind: EventKind::Normal,
            reason: "ResizeStarted",
            message: event_message("Pod resize started", &desired.pod, of, ""),
        }
    }

    /// They are not, or not yet.
    pub fn put_off(&mut self, desired: &DesiredPod, pending: &Pending, now: Wall) -> Option<ResizeEvent> {
        let (reason, of) = (pending.condition_reason(), generation(&desired.pod));
        let old = self.pending.take();
        let is_known = old
            .as_ref()
            .is_some_and(|old| old.reason.as_deref() == Some(reason) && old.observed_generation == of);
        self.pending = Some(condition(PENDING, old.as_ref(), reason, &pending.message, of, now));
        let what = format!("Pod resize {}", pending.reason);
        (!is_known).then(|| ResizeEvent {
            kind: EventKind::Warning,
            reason: pending.event_reason(),
            message: event_message(&what, &desired.pod, of, &pending.message),
        })
    }

    /// The runtime or the cgroup did not take what is allocated.
    pub fn fail(&mut self, allocated: &DesiredPod, message: &str, now: Wall) -> Option<ResizeEvent> {
        let old = self.in_progress.take();
        let of = old.as_ref().map_or_else(|| generation(&allocated.pod), |old| old.observed_generation);
        let fresh = condition(IN_PROGRESS, old.as_ref(), "Error", message, of, now);
        let is_known = old.is_some_and(|old| old.reason == fresh.reason && old.message == fresh.message);
        (self.in_progress, self.unsettled) = (Some(fresh), true);
        (!is_known).then(|| ResizeEvent {
            kind: EventKind::Warning,
            reason: "ResizeError",
            message: event_message("Pod resize error", &allocated.pod, of, message),
        })
    }

    /// Compares what runs with what is allocated (`IsPodResizeInProgress`).
    pub fn look(&mut self, allocated: &DesiredPod, observed: &ObservedPod, now: Wall) -> Progress {
        // Of an init container that ends by itself nobody waits for it.
        let sidecars = allocated.init_containers().iter().filter(|container| is_sidecar(container));
        let differs = |container: &Container| {
            observed.container(&container.name).is_some_and(|status| difference(container, status).is_some())
        };
        let runs = || observed.containers.iter().any(|status| status.state == ContainerState::Running);
        let in_progress = sidecars.chain(allocated.containers()).any(differs) || self.unsettled && runs();
        match (&self.in_progress, in_progress) {
            (Some(_), true) | (None, false) => Progress::Unchanged,
            (None, true) => {
                let of = generation(&allocated.pod);
                self.in_progress = Some(condition(IN_PROGRESS, None, "", "", of, now));
                Progress::Begun
            }
            (Some(done), false) => {
                let of = done.observed_generation;
                self.in_progress = None;
                Progress::Completed(ResizeEvent {
                    kind: EventKind::Normal,
                    reason: "ResizeCompleted",
                    message: event_message("Pod resize completed", &allocated.pod, of, ""),
                })
            }
        }
    }
}

/// The message of an event: the action, and the resources of the pod's containers (`podResizeMessage`).
fn event_message(what: &str, pod: &Pod, generation: Option<i64>, error: &str) -> String {
    let of = |list: &[Container]| -> Value {
        let one = |container: &Container| {
            let resources = container.resources.as_ref();
            let lists = resources.and_then(|resources| serde_json::to_value(resources).ok());
            json!({"name": container.name, "resources": lists.unwrap_or_else(|| json!({}))})
        };
        list.iter().map(one).collect()
    };
    let mut summary = serde_json::Map::new();
    if let Some(spec) = &pod.spec {
        let init = spec.init_containers.as_deref().unwrap_or_default();
        for (name, list) in [("initContainers", init), ("containers", &*spec.containers)] {
            if !list.is_empty() {
                summary.insert(name.to_owned(), of(list));
            }
        }
    }
    summary.insert("generation".to_owned(), generation.unwrap_or_default().into());
    if !error.is_empty() {
        summary.insert("error".to_owned(), error.into());
    }
    format!("{what}: {}", Value::Object(summary))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{ContainerMeta, ContainerStatus};
    use crate::sync::worker::Why;

    /// A sidecar of 1 m, an init container of 1 m and an app of so much.
    fn pod(cpu: &str, generation: i64) -> DesiredPod {
        let of = |cpu: &str| json!({"requests": {"cpu": cpu}});
        let pod = json!({"metadata": {"name": "p", "uid": "u", "generation": generation}, "spec": {
            "initContainers": [{"name": "s", "restartPolicy": "Always", "resources": of("1m")},
                {"name": "i", "resources": of("1m")}],
            "containers": [{"name": "c", "resources": of(cpu)}],
        }});
        DesiredPod::new(serde_json::from_value(pod).unwrap())
    }

    fn cpu(millis: i64) -> Sizes {
        Sizes { cpu_request: millis, ..Sizes::default() }
    }

    /// `container=MILLIS`, or `container=?` of one that another agent created; ids are the names.
    fn observed(containers: &str) -> ObservedPod {
        let containers = containers.split_whitespace().map(|word| {
            let (name, millis) = word.split_once('=').unwrap();
            ContainerStatus {
                id: name.into(),
                name: name.into(),
                state: ContainerState::Running,
                meta: ContainerMeta { sizes: millis.parse().ok().map(cpu), ..ContainerMeta::default() },
                ..ContainerStatus::default()
            }
        });
        ObservedPod { containers: containers.collect(), ..ObservedPod::default() }
    }

    fn pending(infeasible: bool, message: &str) -> Pending {
        Pending { infeasible, reason: "OutOfcpu".into(), message: message.to_owned() }
    }

    /// `Pending Deferred #2 @1 why`: type, reason, generation, second of the transition, message.
    fn shown(resizing: &Resizing) -> String {
        let one = |of: &PodCondition| {
            let generation = of.observed_generation.unwrap_or_default();
            let seconds = nanos(of.last_transition_time.as_ref().unwrap()).0 / 1_000_000_000;
            let kind = of.type_.trim_start_matches("PodResize");
            let texts = [of.reason.as_deref(), of.message.as_deref()].map(Option::unwrap_or_default);
            format!("{kind} {} #{generation} @{seconds} {}", texts[0], texts[1]).trim().to_owned()
        };
        resizing.conditions().map(one).collect::<Vec<_>>().join(", ")
    }

    /// The conditions and the events after these steps, one each second from 0:
    /// `allocate`, `defer WHY`, `infeasible`, `withdraw`, `fail WHY`, `done`, `look CONTAINERS`; `#N` is the next generation.
    fn after(steps: &str) -> (String, String) {
        let (mut resizing, mut generation, mut events) = (Resizing::default(), 1, Vec::new());
        for (second, step) in steps.split(", ").enumerate() {
            let now = Wall(i64::try_from(second).unwrap() * 1_000_000_000);
            let (step, argument) = step.split_once(' ').unwrap_or((step, ""));
            let pod = pod("100m", generation);
            let event = match step {
                "allocate" => Some(resizing.allocate(&pod, now)),
                "defer" => resizing.put_off(&pod, &pending(false, argument), now),
                "infeasible" => resizing.put_off(&pod, &pending(true, "never"), now),
                "withdraw" => {
                    resizing.withdraw();
                    None
                }
                "fail" => resizing.fail(&pod, argument, now),
                "done" => {
                    resizing.settle();
                    None
                }
                "look" => match resizing.look(&pod, &observed(argument), now) {
                    Progress::Unchanged | Progress::Begun => None,
                    Progress::Completed(event) => Some(event),
                },
                _ => {
                    generation = step.trim_start_matches('#').parse().unwrap();
                    None
                }
            };
            events.extend(event.map(|event| event.reason.trim_start_matches("Resize").to_owned()));
        }
        (shown(&resizing), events.join(" "))
    }

    #[test]
    fn conditions_and_events() {
        #[rustfmt::skip]
        let rows = [
            // Put off: the transition is that of the reason, an event that of reason and generation.
            ("defer a", "Pending Deferred #1 @0 a", "Deferred"),
            ("defer a, defer b", "Pending Deferred #1 @0 b", "Deferred"),
            ("defer a, #2, defer a", "Pending Deferred #2 @0 a", "Deferred Deferred"),
            ("defer a, infeasible", "Pending Infeasible #1 @1 never", "Deferred Infeasible"),
            ("infeasible, infeasible", "Pending Infeasible #1 @0 never", "Infeasible"),
            ("defer a, withdraw", "", "Deferred"),
            // A first generation of 0 is none.
            ("#0, defer a", "Pending Deferred #0 @1 a", "Deferred"),
            // Allocated: whatever there was begins anew.
            ("allocate", "InProgress  #1 @0", "Started"),
            ("defer a, allocate", "InProgress  #1 @1", "Deferred Started"),
            ("allocate, #2, allocate", "InProgress  #2 @2", "Started Started"),
            ("allocate, fail a, #2, allocate", "InProgress  #2 @3", "Started Error Started"),
            // The next resize waits while one is in progress.
            ("allocate, #2, defer a", "Pending Deferred #2 @2 a, InProgress  #1 @0", "Started Deferred"),
            ("allocate, #2, defer a, done, look c=100", "Pending Deferred #2 @2 a", "Started Deferred Completed"),
            // Refused: of the generation that was allocated, once for each message.
            ("allocate, fail a", "InProgress Error #1 @1 a", "Started Error"),
            ("allocate, fail a, fail a", "InProgress Error #1 @1 a", "Started Error"),
            ("allocate, fail a, fail b", "InProgress Error #1 @1 b", "Started Error Error"),
            ("allocate, #2, fail a", "InProgress Error #1 @2 a", "Started Error"),
            ("fail a", "InProgress Error #1 @0 a", "Error"),
            ("allocate, fail a, look c=50", "InProgress Error #1 @1 a", "Started Error"),
            // The containers have it, the pod's cgroup may not.
            ("allocate, fail a, look c=100", "InProgress Error #1 @1 a", "Started Error"),
            ("allocate, fail a, done, look c=100", "", "Started Error Completed"),
            // Looked at.
            ("allocate, look c=50", "InProgress  #1 @0", "Started"),
            ("allocate, look c=100", "InProgress  #1 @0", "Started"),
            ("allocate, done, look c=100", "", "Started Completed"),
            ("allocate, done, look c=50", "InProgress  #1 @0", "Started"),
            // Nothing runs with anything.
            ("allocate, look", "", "Started Completed"),
            ("look c=50", "InProgress  #1 @0", ""),
            ("look c=100", "", ""),
            ("look s=2 c=100", "InProgress  #1 @0", ""),
            ("look i=2 c=100", "", ""),
            ("look c=?", "", ""),
            ("look", "", ""),
            ("defer a, look c=50", "Pending Deferred #1 @0 a, InProgress  #1 @1", "Deferred"),
        ];
        for (steps, conditions, events) in rows {
            assert_eq!(after(steps), (conditions.to_owned(), events.to_owned()), "{steps}");
        }
    }

    #[test]
    fn what_a_retry_does() {
        #[derive(Clone, Copy)]
        struct Row<'a> {
            life: Life,
            set_aside: bool,
            in_flight: bool,
            /// What was done to the resize; `note` is a container that runs with other resources than it was created with.
            steps: &'a str,
            desired: &'a str,
            observed: &'a str,
        }
        let plain = Row {
            life: Life::Syncing,
            set_aside: false,
            in_flight: false,
            steps: "",
            desired: "100m",
            observed: "c=100",
        };
        let decide = |since: Option<i64>| Retry::Decide { since: since.map(|at| at * 1_000_000_000) };
        #[rustfmt::skip]
        let rows = [
            (Row { desired: "200m", ..plain }, decide(None)),
            (Row { desired: "200m", steps: "defer", ..plain }, decide(Some(7))),
            (Row { desired: "200m", steps: "allocate", ..plain }, decide(None)),
            (Row { desired: "200m", life: Life::Waiting, in_flight: true, ..plain }, decide(None)),
            (Row { desired: "200m", set_aside: true, ..plain }, Retry::Leave),
            (Row { desired: "200m", life: Life::Ending(Why::Finished), ..plain }, Retry::Leave),
            (Row { desired: "200m", life: Life::Ending(Why::Unwanted), ..plain }, Retry::Leave),
            (Row { desired: "200m", life: Life::Ended, ..plain }, Retry::Leave),
            (Row { desired: "200m", life: Life::Removing, ..plain }, Retry::Leave),
            (Row { steps: "defer", ..plain }, Retry::Withdraw),
            (Row { steps: "defer", in_flight: true, observed: "c=50", ..plain }, Retry::Withdraw),
            (Row { steps: "defer", set_aside: true, ..plain }, Retry::Leave),
            (Row { steps: "allocate", ..plain }, Retry::Leave),
            (Row { steps: "note", ..plain }, Retry::Leave),
            (Row { observed: "c=50", ..plain }, Retry::Leave),
            (Row { observed: "i=50 c=100", ..plain }, Retry::Leave),
            (Row { in_flight: true, ..plain }, Retry::Leave),
            (Row { life: Life::Ended, ..plain }, Retry::Leave),
            (plain, Retry::Forget),
            (Row { observed: "", ..plain }, Retry::Forget),
            (Row { observed: "c=?", ..plain }, Retry::Forget),
        ];
        for (at, (row, want)) in rows.into_iter().enumerate() {
            let (mut resizing, allocated, now) = (Resizing::default(), pod("100m", 1), Wall(7_000_000_000));
            match row.steps {
                "defer" => drop(resizing.put_off(&allocated, &pending(false, "a"), now)),
                "allocate" => drop(resizing.allocate(&allocated, now)),
                "note" => resizing.actuate(&"c".into(), cpu(100)),
                _ => {}
            }
            let (desired, observed) = (pod(row.desired, 1), observed(row.observed));
            let got = resizing.retry(&ResizingPod {
                life: row.life,
                set_aside: row.set_aside,
                in_flight: row.in_flight,
                desired: &desired,
                allocated: &allocated,
                observed: Some(&observed),
            });
            assert_eq!(got, want, "row {at}");
        }
    }

    /// What the containers run with after a read, by their notes.
    fn read(notes: &str, created: &str) -> String {
        let mut resizing = Resizing::default();
        for status in observed(notes).containers {
            resizing.actuate(&status.id, status.meta.sizes.unwrap());
        }
        let mut seen = observed(created);
        resizing.complete(&mut seen);
        let one = |of: &ContainerStatus| of.meta.sizes.map_or(-1, |sizes| sizes.cpu_request).to_string();
        let runs: Vec<_> = seen.containers.iter().map(one).collect();
        format!("{} noted {}", runs.join(" "), resizing.noted())
    }

    #[test]
    fn what_containers_run_with() {
        #[rustfmt::skip]
        let rows = [
            // notes, created with → they run with
            ("", "c=100", "100 noted 0"),
            ("c=200", "c=100", "200 noted 1"),
            ("c=200", "c=?", "200 noted 1"),
            // It was created anew with it, or is gone.
            ("c=200", "c=200", "200 noted 0"),
            ("c=200", "s=1", "1 noted 0"),
            ("c=200 s=2", "s=1 c=100", "2 200 noted 2"),
        ];
        for (notes, created, want) in rows {
            assert_eq!(read(notes, created), want, "{notes}; {created}");
        }
        // Of containers of another agent only those that run are noted, with what is allocated to their pod.
        let (mut resizing, mut seen) = (Resizing::default(), observed("c=? s=1 i=? x=?"));
        assert!(!resizing.note_unknown(&pod("100m", 1), None));
        seen.containers[2].state = ContainerState::Exited;
        assert!(resizing.note_unknown(&pod("100m", 1), Some(&seen)));
        assert_eq!((resizing.noted(), resizing.actuated(&"c".into())), (1, Some(cpu(100))));
        assert!(!resizing.note_unknown(&pod("100m", 1), Some(&observed("c=100"))));
    }

    #[test]
    fn a_resize_that_was_not_written_down_is_recognised() {
        use crate::model::observed::ContainerResources;
        let node = NodeSettings::new("n", "/r");
        let of = |cpu: &str, memory: &str, policy: &str| {
            let list = json!({"cpu": cpu, "memory": memory});
            let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c",
                "resizePolicy": [{"resourceName": "memory", "restartPolicy": policy}],
                "resources": {"requests": list, "limits": list}}]}});
            DesiredPod::new(serde_json::from_value(pod).unwrap())
        };
        let allocated = |policy: &str| of("200m", "64Mi", policy);
        let (runs, had) = (ContainerState::Running, container_sizes(&of("100m", "32Mi", ""), "c").unwrap());
        let both = container_sizes(&allocated(""), "c").unwrap();
        let (cpu, memory) = (had.with(Resource::Cpu, &both), had.with(Resource::Memory, &both));
        #[rustfmt::skip]
        let rows = [
            // shares, quota, memory limit as the runtime reports them; policy of memory; state → noted
            ((204, 20_000, 64 << 20), "NotRequired", runs, Some(both)),
            ((204, 20_000, 32 << 20), "NotRequired", runs, Some(cpu)),
            ((102, 10_000, 64 << 20), "NotRequired", runs, Some(memory)),
            ((204, 10_000, 32 << 20), "NotRequired", runs, None),
            ((102, 20_000, 32 << 20), "NotRequired", runs, None),
            ((102, 10_000, 32 << 20), "NotRequired", runs, None),
            ((204, 20_000, 64 << 20), "RestartContainer", runs, Some(cpu)),
            ((204, 20_000, 64 << 20), "NotRequired", ContainerState::Exited, None),
        ];
        for ((cpu_shares, cpu_quota, memory_limit_in_bytes), policy, state, want) in rows {
            let mut seen = observed("c=?");
            let resources = ContainerResources {
                cpu_quota,
                cpu_shares,
                memory_limit_in_bytes,
                ..ContainerResources::default()
            };
            let status = &mut seen.containers[0];
            (status.meta.sizes, status.resources, status.state) = (Some(had), Some(resources.into()), state);
            let mut resizing = Resizing::default();
            resizing.recognise(&node, &allocated(policy), &seen);
            assert_eq!(resizing.actuated(&"c".into()), want, "{cpu_shares} {memory_limit_in_bytes} {policy}");
            // Without a word of the runtime's, or of what it had, nothing is known.
            for status in &mut seen.containers {
                status.resources = None;
            }
            let mut resizing = Resizing::default();
            resizing.recognise(&node, &allocated(policy), &seen);
            assert_eq!(resizing.noted(), 0);
        }
    }

    #[test]
    fn what_is_kept_comes_back() {
        let mut resizing = Resizing::default();
        let sizes = Sizes::of_numbers([1, 2, 3, 4]);
        resizing.actuate(&"id".into(), sizes);
        let status: PodStatus = serde_json::from_value(json!({"conditions": [
            {"type": "Ready", "status": "True"}, {"type": PENDING, "status": "True", "reason": "Deferred"}]}))
        .unwrap();
        let kept = resizing.kept([("c", cpu(100))].into_iter());
        let (restored, allocated) = Resizing::restored(&kept, &status);
        assert_eq!(restored.actuated(&"id".into()), Some(sizes));
        assert_eq!((restored.is_pending(), restored.is_in_progress()), (true, false));
        assert!(!restored.is_unsettled());
        assert_eq!(allocated, [("c".into(), cpu(100))]);
        // Whether the pod's cgroup was reached is not known.
        let status =
            serde_json::from_value(json!({"conditions": [{"type": IN_PROGRESS, "status": "True"}]})).unwrap();
        assert!(Resizing::restored(&kept, &status).0.is_unsettled());
    }

    #[test]
    fn events_say_what_the_containers_are_to_have() {
        let pod = json!({"spec": {"initContainers": [{"name": "i"}],
            "containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        assert_eq!(
            event_message("Pod resize started", &pod, Some(3), ""),
            r#"Pod resize started: {"containers":[{"name":"c","resources":{"requests":{"cpu":"2"}}}],"generation":3,"initContainers":[{"name":"i","resources":{}}]}"#
        );
        let message = event_message("Pod resize error", &pod, Some(3), "why");
        assert!(message.contains(r#","error":"why","generation":3,"#), "{message}");
    }
}
