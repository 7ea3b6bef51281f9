//! Garbage collection of dead containers, sandboxes and log directories (`kuberuntime_gc.go`). PURE.
//!
//! ```text
//!     dead containers ─► of deleted pods: all
//!                     ─► per container name: all but the newest N
//!                     ─► over the total: the oldest
//!     sandboxes       ─► not ready, without containers, not the newest of a pod that is kept
//!     log directories ─► of deleted pods
//! ```
//!
//! The input contains only this agent's objects, with ages on the monotonic clock: a step of the wall clock must not make a
//! young container old. Differs from the kubelet for equal times: there the order is random, here it is by attempt, then by id.
use std::time::Duration;

use crate::limits::GC_MIN_AGE;
use crate::model::{
    ContainerId, ContainerState, ContainerStatus, Mono, Now, ObservedPod, PodKey, PodUid, SandboxId,
    SandboxState, Wall,
};
use crate::model::{SortedMap, SortedSet};
use crate::render::paths::uid_of_logs_dir;

/// `GCPolicy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GcPolicy {
    /// Younger containers are kept.
    pub min_age: Duration,
    /// Dead containers kept for each container of a pod; `None` = no limit.
    pub per_container_max: Option<usize>,
    /// Dead containers kept in all; `None` = no limit.
    pub containers_max: Option<usize>,
}

/// The kubelet's defaults: one dead container for each container.
impl Default for GcPolicy {
    fn default() -> Self {
        Self { min_age: GC_MIN_AGE, per_container_max: Some(1), containers_max: None }
    }
}

/// State of a pod (`podStateProvider`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodFate {
    /// Desired or terminating: its newest containers are kept.
    Stays,
    /// Terminated (`ShouldPodRuntimeBeRemoved`): its containers are removed under disk pressure.
    Stopped,
    /// Deleted (`ShouldPodContentBeRemoved`): all of it is removed.
    Gone,
}

/// A container of the runtime's list.
#[derive(Clone, Debug)]
pub struct GcContainer {
    /// Its id.
    pub id: ContainerId,
    /// Its sandbox.
    pub sandbox_id: SandboxId,
    /// Its pod.
    pub pod: PodUid,
    /// Its name in the pod.
    pub name: Box<str>,
    /// Its restart count.
    pub attempt: u32,
    /// Its state.
    pub state: ContainerState,
    /// Its age: since its exit if it has exited, else since its creation.
    pub age: Duration,
}

/// A sandbox of the runtime's list.
#[derive(Clone, Debug)]
pub struct GcSandbox {
    /// Its id.
    pub id: SandboxId,
    /// Its pod.
    pub pod: PodUid,
    /// Its attempt.
    pub attempt: u32,
    /// Its state.
    pub state: SandboxState,
    /// Time since its creation.
    pub age: Duration,
}

/// Input of a collection.
#[derive(Clone, Copy)]
pub struct GcInput<'a> {
    /// The limits.
    pub policy: GcPolicy,
    /// Every source has been read once: only then does an unknown pod count as deleted.
    pub all_sources_ready: bool,
    /// Under disk pressure: terminated pods count as deleted (`evictNonDeletedPods`).
    pub evict_stopped_pods: bool,
    /// The runtime's containers.
    pub containers: &'a [GcContainer],
    /// The runtime's sandboxes.
    pub sandboxes: &'a [GcSandbox],
    /// Names in the pods' log directory.
    pub log_directories: &'a [Box<str>],
    /// State of a pod.
    pub fate: &'a dyn Fn(&str) -> PodFate,
}

/// Objects to remove. Removals are idempotent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GcPlan {
    /// Containers to remove, with their logs.
    pub containers: Vec<GcRemoval>,
    /// Sandboxes to stop and remove.
    pub sandboxes: Vec<SandboxId>,
    /// Log directories to remove, by name.
    pub log_directories: Vec<Box<str>>,
}

/// A container to remove.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GcRemoval {
    /// Its id.
    pub id: ContainerId,
    /// It runs, or its state is unknown: stop it first, and keep it when that fails.
    pub stop: bool,
}

impl GcPlan {
    /// True without removals.
    pub fn is_empty(&self) -> bool {
        self.containers.is_empty() && self.sandboxes.is_empty() && self.log_directories.is_empty()
    }
}

/// Removals of a pod that is kept: all dead containers but the newest ones of each name, and unused sandboxes. `containers_max`
/// applies to all pods: see [`surplus`].
///
/// The kubelet collects every minute; here the loop collects after each read of the pod, and at [`ripe_at`].
pub fn collect_pod(policy: GcPolicy, key: &PodKey, observed: &ObservedPod, now: Now) -> GcPlan {
    let containers: Vec<GcContainer> =
        observed.containers.iter().map(|c| gc_container(key, c, now)).collect();
    let age = |at: Wall| age_by_wall(at, now);
    let sandboxes: Vec<GcSandbox> = observed
        .sandboxes
        .iter()
        .map(|sandbox| GcSandbox {
            id: sandbox.id.clone(),
            pod: key.uid.clone(),
            attempt: sandbox.attempt,
            state: sandbox.state,
            age: age(sandbox.created_at),
        })
        .collect();
    let mut plan = collect(&GcInput {
        policy: GcPolicy { containers_max: None, ..policy },
        all_sources_ready: true,
        evict_stopped_pods: false,
        containers: &containers,
        sandboxes: &sandboxes,
        log_directories: &[],
        fate: &|_| PodFate::Stays,
    });
    // Differs from the kubelet, which checks only the newest container of a name (`computePodActions`): an older one that
    // started late, after its start had timed out, runs on there until the pod terminates.
    let doubled = observed.containers.iter().enumerate().filter(|(at, older)| {
        older.state == ContainerState::Running
            && observed.containers[..*at].iter().any(|newer| newer.name == older.name)
    });
    plan.containers.extend(doubled.map(|(_, older)| GcRemoval { id: older.id.clone(), stop: true }));
    plan
}

/// Removals of all pods together, by pod, so that at most `containers_max` dead containers are kept; of each pod only those
/// count that [`collect_pod`] keeps.
pub fn surplus<'a>(
    policy: GcPolicy,
    pods: impl Iterator<Item = (&'a PodKey, &'a ObservedPod)>,
    now: Now,
) -> SortedMap<PodUid, Vec<GcRemoval>> {
    let containers = |(key, pod): (&'a PodKey, &'a ObservedPod)| {
        pod.containers.iter().map(move |container| gc_container(key, container, now))
    };
    let containers: Vec<GcContainer> = pods.flat_map(containers).collect();
    let removals = containers_to_remove(&GcInput {
        policy,
        all_sources_ready: true,
        evict_stopped_pods: false,
        containers: &containers,
        sandboxes: &[],
        log_directories: &[],
        fate: &|_| PodFate::Stays,
    });
    let pod_of: SortedMap<&str, &PodUid> = containers.iter().map(|c| (c.id.as_str(), &c.pod)).collect();
    let mut by_pod: SortedMap<PodUid, Vec<GcRemoval>> = SortedMap::new();
    for removal in removals {
        if let Some(pod) = pod_of.get(removal.id.as_str()) {
            by_pod.entry((*pod).clone()).or_default().push(removal);
        }
    }
    by_pod
}

/// When the next exited container of the pod reaches the minimum age; `None` without one, or when all have.
pub fn ripe_at(policy: GcPolicy, observed: &ObservedPod, now: Mono) -> Option<Mono> {
    if policy.min_age.is_zero() {
        return None;
    }
    let ends = observed.containers.iter().filter_map(|container| container.finished_mono);
    ends.map(|end| end + policy.min_age).filter(|at| *at > now).min()
}

/// Its age is on the monotonic clock, as the minimum age requires. A container that has not exited has an age by the runtime's
/// wall clock, which only orders equal attempts.
fn gc_container(key: &PodKey, container: &ContainerStatus, now: Now) -> GcContainer {
    let ended = container.finished_mono.map(|end| now.mono.since(end));
    GcContainer {
        id: container.id.clone(),
        sandbox_id: container.sandbox_id.clone(),
        pod: key.uid.clone(),
        name: Box::from(&*container.name),
        attempt: container.meta.restart_count,
        state: container.state,
        age: ended.unwrap_or_else(|| age_by_wall(container.created_at, now)),
    }
}

fn age_by_wall(at: Wall, now: Now) -> Duration {
    Duration::from_nanos(u64::try_from(now.wall.0.saturating_sub(at.0)).unwrap_or(0))
}

/// True when removing the containers for which `goes` is true loses a container's newest restart count.
pub fn loses_counts(observed: &ObservedPod, goes: impl Fn(&ContainerStatus) -> bool) -> bool {
    observed.containers.iter().filter(|container| goes(container)).any(|gone| {
        let as_new = |other: &&ContainerStatus| {
            other.name == gone.name && other.meta.restart_count >= gone.meta.restart_count
        };
        !observed.containers.iter().filter(as_new).any(|other| !goes(other))
    })
}

/// `containerGC.GarbageCollect`.
pub fn collect(input: &GcInput<'_>) -> GcPlan {
    let containers = containers_to_remove(input);
    let sandboxes = sandboxes_to_remove(input, &containers);
    let log_directories = if input.all_sources_ready {
        let gone = |name: &str| (input.fate)(uid_of_logs_dir(name)) == PodFate::Gone;
        input.log_directories.iter().filter(|name| gone(name)).cloned().collect()
    } else {
        Vec::new()
    };
    GcPlan { containers, sandboxes, log_directories }
}

/// Dead containers of one container of one pod (`evictUnit`), newest first.
type Unit<'a> = Vec<&'a GcContainer>;

/// `evictContainers`.
fn containers_to_remove(input: &GcInput<'_>) -> Vec<GcRemoval> {
    let mut units: SortedMap<(&str, &str), Unit<'_>> = SortedMap::new();
    for container in input.containers {
        let dead = match container.state {
            ContainerState::Running => false,
            ContainerState::Created | ContainerState::Exited | ContainerState::Unknown => true,
        };
        if dead && container.age >= input.policy.min_age {
            units.entry((container.pod.as_str(), &container.name)).or_default().push(container);
        }
    }
    for unit in units.values_mut() {
        unit.sort_by(|a, b| (b.attempt, a.age, &a.id).cmp(&(a.attempt, b.age, &b.id)));
    }
    let mut removed: Unit<'_> = Vec::new();
    if input.all_sources_ready {
        units.retain(|(pod, _), unit| {
            let gone = records_go(input, pod);
            if gone {
                removed.extend(unit.drain(..).rev());
            }
            !gone
        });
    }
    if let Some(max) = input.policy.per_container_max {
        keep_newest(&mut units, max, &mut removed);
    }
    if let Some(max) = input.policy.containers_max {
        let total = |units: &SortedMap<_, Unit<'_>>| units.values().map(Vec::len).sum::<usize>();
        if total(&units) > max {
            // The same share for each, but at least one; then the oldest of all.
            let share = (max / units.len()).max(1);
            keep_newest(&mut units, share, &mut removed);
            let over = total(&units).saturating_sub(max);
            let mut left: Unit<'_> = units.into_values().flatten().collect();
            left.sort_by(|a, b| (b.age, &a.id).cmp(&(a.age, &b.id)));
            removed.extend(left.into_iter().take(over));
        }
    }
    let removal = |c: &GcContainer| GcRemoval { id: c.id.clone(), stop: c.state == ContainerState::Unknown };
    removed.into_iter().map(removal).collect()
}

/// `enforceMaxContainersPerEvictUnit`: the oldest are removed first.
fn keep_newest<'a>(units: &mut SortedMap<(&str, &str), Unit<'a>>, max: usize, removed: &mut Unit<'a>) {
    for unit in units.values_mut() {
        if unit.len() > max {
            removed.extend(unit.drain(max..).rev());
        }
    }
}

/// `evictSandboxes`: those without containers after these removals.
fn sandboxes_to_remove(input: &GcInput<'_>, removed: &[GcRemoval]) -> Vec<SandboxId> {
    let removed: SortedSet<&str> = removed.iter().map(|removal| removal.id.as_str()).collect();
    let staying = input.containers.iter().filter(|container| !removed.contains(container.id.as_str()));
    let used: SortedSet<&str> = staying.map(|container| container.sandbox_id.as_str()).collect();
    let mut pods: SortedMap<&str, Vec<&GcSandbox>> = SortedMap::new();
    for sandbox in input.sandboxes {
        pods.entry(sandbox.pod.as_str()).or_default().push(sandbox);
    }
    let mut going = Vec::new();
    for (pod, mut sandboxes) in pods {
        sandboxes.sort_by(|a, b| (b.attempt, a.age, &a.id).cmp(&(a.attempt, b.age, &b.id)));
        let keep = usize::from(!records_go(input, pod));
        let idle = |s: &&&GcSandbox| s.state == SandboxState::NotReady && !used.contains(s.id.as_str());
        going.extend(sandboxes.iter().skip(keep).rev().filter(idle).map(|sandbox| sandbox.id.clone()));
    }
    going
}

fn records_go(input: &GcInput<'_>, pod: &str) -> bool {
    match (input.fate)(pod) {
        PodFate::Gone => true,
        PodFate::Stopped => input.evict_stopped_pods,
        PodFate::Stays => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ContainerMeta;

    fn dead(id: &str, attempt: u32, age: u64) -> GcContainer {
        GcContainer {
            id: id.into(),
            sandbox_id: "s".into(),
            pod: "u".into(),
            name: "c".into(),
            attempt,
            state: ContainerState::Exited,
            age: Duration::from_secs(age),
        }
    }

    fn running(id: &str, name: &str, attempt: u32) -> ContainerStatus {
        ContainerStatus {
            id: id.into(),
            name: name.into(),
            sandbox_id: "s".into(),
            state: ContainerState::Running,
            meta: ContainerMeta { restart_count: attempt, ..ContainerMeta::default() },
            ..ContainerStatus::default()
        }
    }

    fn removed(containers: &[GcContainer]) -> Vec<String> {
        let plan = collect(&GcInput {
            policy: GcPolicy { min_age: Duration::ZERO, ..GcPolicy::default() },
            all_sources_ready: true,
            evict_stopped_pods: false,
            containers,
            sandboxes: &[],
            log_directories: &[],
            fate: &|_| PodFate::Stays,
        });
        plan.containers.iter().map(|removal| removal.id.to_string()).collect()
    }

    #[test]
    fn of_two_running_containers_of_one_name_the_older_one_is_removed() {
        let container = running;
        let mut observed = ObservedPod {
            containers: vec![container("new", "c", 2), container("old", "c", 1), container("other", "d", 0)],
            ..ObservedPod::default()
        };
        let now = Now { mono: Mono(0), wall: Wall(0) };
        let key = PodKey::new("default", "web", "u");
        let goes = GcRemoval { id: "old".into(), stop: true };
        let policy = GcPolicy::default();
        assert_eq!(collect_pod(policy, &key, &observed, now).containers, [goes]);
        let loses = |goes: &[&str]| loses_counts(&observed, |c| goes.contains(&c.id.as_str()));
        assert!(!loses(&["old"]) && !loses(&[]), "the newer one has the count");
        assert!(loses(&["new"]) && loses(&["old", "new"]) && loses(&["old", "other"]));
        observed.containers.remove(1);
        assert!(collect_pod(policy, &key, &observed, now).is_empty());
    }

    #[test]
    fn the_minimum_age_counts_from_the_exit_on_the_monotonic_clock() {
        let key = PodKey::new("default", "web", "u");
        let ended = |id: &str, attempt: u32, end: i64| ContainerStatus {
            state: ContainerState::Exited,
            finished_mono: Some(Mono(end * 1_000_000_000)),
            ..running(id, "c", attempt)
        };
        let observed = ObservedPod {
            containers: vec![ended("new", 2, 95), ended("middle", 1, 80), ended("old", 0, 60)],
            ..ObservedPod::default()
        };
        let policy = GcPolicy { min_age: Duration::from_secs(30), ..GcPolicy::default() };
        // Of those that are old enough the newest one is kept.
        let rows: [(i64, &[&str], Option<i64>); 4] = [
            (89, &[], Some(90)),
            (90, &[], Some(110)),
            (110, &["old"], Some(125)),
            (125, &["old", "middle"], None),
        ];
        for wall in [0, i64::MAX, i64::MIN] {
            for (at, goes, ripe) in rows {
                let now = Now { mono: Mono(at * 1_000_000_000), wall: Wall(wall) };
                let plan = collect_pod(policy, &key, &observed, now);
                let ids: Vec<&str> = plan.containers.iter().map(|removal| removal.id.as_str()).collect();
                let next = ripe_at(policy, &observed, now.mono).map(|at| at.0 / 1_000_000_000);
                assert_eq!((&ids[..], next), (goes, ripe), "at {at} s, {wall}");
            }
        }
        assert_eq!(
            ripe_at(GcPolicy::default(), &observed, Mono(0)),
            None,
            "without a minimum age nothing is due"
        );
    }

    #[test]
    fn with_a_total_each_container_keeps_a_share_and_then_the_oldest_are_removed() {
        let ended = |id: &str, name: &str, attempt: u32, end: i64| ContainerStatus {
            state: ContainerState::Exited,
            finished_mono: Some(Mono(end)),
            ..running(id, name, attempt)
        };
        let pod = |containers| ObservedPod { containers, ..ObservedPod::default() };
        let (web, db) = (PodKey::new("default", "web", "u1"), PodKey::new("default", "db", "u2"));
        let of_web = pod(vec![ended("w1", "a", 1, 50), ended("w0", "a", 0, 40), running("r", "b", 0)]);
        let of_db = pod(vec![ended("d0", "a", 0, 10), ended("e0", "c", 0, 60)]);
        let now = Now { mono: Mono(100), wall: Wall(100) };
        let rows: [(usize, &[(&str, &str)]); 4] = [
            (4, &[]),
            (3, &[("u1", "w0")]),
            (2, &[("u1", "w0"), ("u2", "d0")]),
            (0, &[("u1", "w0"), ("u1", "w1"), ("u2", "d0"), ("u2", "e0")]),
        ];
        for (max, goes) in rows {
            let policy =
                GcPolicy { per_container_max: None, containers_max: Some(max), ..GcPolicy::default() };
            let found = surplus(policy, [(&web, &of_web), (&db, &of_db)].into_iter(), now);
            let mut shown: Vec<(&str, &str)> = Vec::new();
            for (uid, removals) in &found {
                shown.extend(removals.iter().map(|removal| (uid.as_str(), removal.id.as_str())));
            }
            shown.sort_unstable();
            assert_eq!(shown, goes, "at most {max}");
        }
    }

    #[test]
    fn containers_are_ordered_by_attempt_before_age() {
        // The clock was set back between the two: the newer one looks older.
        assert_eq!(removed(&[dead("new", 1, 500), dead("old", 0, 10)]), ["old"]);
        assert_eq!(removed(&[dead("a", 0, 10), dead("b", 0, 5)]), ["a"], "then by age");
        assert_eq!(removed(&[dead("b", 0, 5), dead("a", 0, 5)]), ["b"], "then by id");
    }
}
