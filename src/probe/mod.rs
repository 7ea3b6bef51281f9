//! Liveness, readiness and startup probes (`pkg/kubelet/prober`, `pkg/probe`).
//!
//! ```text
//!     status, observed ─► update ─► due ─► begin ─► run (a task) ─► record ─► result ─► plan, status
//!                        └──────── prober ────────┘
//! ```
//!
//! [`prober`] decides when a probe runs and evaluates its results, [`handler`] resolves its action; both are PURE, and so is
//! this file: the probers of one pod. [`run`] executes probes, using `http` and `grpc`. A probe is a task only while it
//! runs; in between it is a record of `limits::PROBER_BYTES_MAX` bytes.

mod grpc;
pub mod handler;
pub(crate) mod http;
pub mod prober;
pub mod run;
#[cfg(feature = "tls")]
mod tls;
#[cfg(not(feature = "tls"))]
mod tls {
    use std::net::TcpStream;

    use crate::stream::{Socket, Stream};

    /// Manifests with HTTPS probes are rejected; this is reached by the hook of a container that another build has started.
    pub(super) async fn connect(_: &str, _: Socket<TcpStream>) -> Result<Stream, String> {
        Err("this build of smolet has no TLS".to_owned())
    }
}

use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, PodStatus, Probe};

use crate::limits::PROBER_BYTES_MAX;
use crate::model::{ContainerId, ContainerKind, ContainerState, DesiredPod, Mono, Now, ObservedPod, PodUid};
use crate::render::resources::is_sidecar;
use crate::status::container_status;
use crate::sync::{ProbeResult, Probes};
use prober::{DueProbe, PreviousStatus, ProbeKind, ProbedContainer, Prober, Progress, Schedule};

/// Index of a container in the pod's spec, and one of its probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeKey {
    list: ContainerKind,
    index: u16,
    kind: ProbeKind,
}

impl ProbeKey {
    /// The kind of probe.
    pub fn kind(self) -> ProbeKind {
        self.kind
    }

    /// The container's list in the spec.
    pub fn list(self) -> ContainerKind {
        self.list
    }

    /// The definitions of the container and the probe, while the pod has them.
    pub fn find(self, pod: &DesiredPod) -> Option<(&Container, &Probe)> {
        let list = match self.list {
            ContainerKind::Init => pod.init_containers(),
            ContainerKind::App => pod.containers(),
            ContainerKind::Ephemeral => return None,
        };
        let container = list.get(usize::from(self.index))?;
        Some((container, probe_of(container, self.kind)?))
    }
}

fn probe_of(container: &Container, kind: ProbeKind) -> Option<&Probe> {
    match kind {
        ProbeKind::Liveness => container.liveness_probe.as_ref(),
        ProbeKind::Readiness => container.readiness_probe.as_ref(),
        ProbeKind::Startup => container.startup_probe.as_ref(),
    }
}

/// `timeoutSeconds`.
pub fn timeout(probe: &Probe) -> Duration {
    let seconds = probe.timeout_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    Duration::from_secs(seconds.unwrap_or(1).max(1))
}

/// Every probe of the pod's sidecars and app containers.
fn keys(pod: &DesiredPod) -> impl Iterator<Item = (ProbeKey, &Probe)> {
    let sidecars = pod.init_containers().iter().enumerate().filter(|(_, container)| is_sidecar(container));
    let apps = pod.containers().iter().enumerate();
    let all = sidecars.map(|of| (ContainerKind::Init, of)).chain(apps.map(|of| (ContainerKind::App, of)));
    all.flat_map(|(list, (index, container))| {
        ProbeKind::ALL.into_iter().filter_map(move |kind| {
            let key = ProbeKey { list, index: u16::try_from(index).ok()?, kind };
            Some((key, probe_of(container, kind)?))
        })
    })
}

/// True when the pod has that probe for the container of this name (prober manager `getWorker`).
pub fn has_probe(pod: &DesiredPod, kind: ProbeKind, name: &str) -> bool {
    let mut containers =
        pod.containers().iter().chain(pod.init_containers().iter().filter(|c| is_sidecar(c)));
    containers.any(|container| container.name == name && probe_of(container, kind).is_some())
}

#[derive(Clone, Debug)]
struct Entry {
    key: ProbeKey,
    prober: Prober,
}

const _: () = assert!(size_of::<Entry>() <= PROBER_BYTES_MAX);

/// The limit on probers is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom;

/// The probers of one pod.
#[derive(Debug, Default)]
pub struct Probers {
    entries: Vec<Entry>,
    /// They match the pod's definition.
    fitted: bool,
    /// Containers that existed when the agent first observed the pod.
    found: Box<[ContainerId]>,
}

impl Probers {
    /// Marks that the pod's definition may have changed.
    pub fn changed(&mut self) {
        self.fitted = false;
    }

    /// True when they match the pod's definition.
    pub fn is_fitted(&self) -> bool {
        self.fitted
    }

    /// Records this agent's first observation of the pod.
    pub fn found(&mut self, observed: &ObservedPod) {
        self.found = observed.containers.iter().map(|container| container.id.clone()).collect();
    }

    /// Creates the probers of the pod's current definition; `room` is how many more may exist. A container's results are
    /// kept when only its probe's numbers changed.
    ///
    /// # Errors
    /// More are needed: then the pod has none, and none of its probes runs.
    pub fn fit(&mut self, pod: &DesiredPod, room: usize) -> Result<(), NoRoom> {
        if self.fitted {
            return Ok(());
        }
        if keys(pod).count() > room + self.entries.len() {
            self.entries = Vec::new();
            return Err(NoRoom);
        }
        let entries = keys(pod).map(|(key, probe)| {
            let (known, schedule) =
                (self.entries.iter().find(|entry| entry.key == key), Schedule::new(probe));
            let mut entry =
                known.cloned().unwrap_or_else(|| Entry { key, prober: Prober::new(key.kind, schedule) });
            entry.prober.set_schedule(schedule);
            entry
        });
        self.entries = entries.collect();
        self.fitted = true;
        Ok(())
    }

    /// Updates them from the runtime's status, and from the pod's status `shown` last.
    pub fn update(
        &mut self,
        pod: &DesiredPod,
        observed: &ObservedPod,
        shown: Option<&PodStatus>,
        is_ending: bool,
        now: Now,
    ) {
        for Entry { key, prober } in &mut self.entries {
            let Some((container, _)) = key.find(pod) else { continue };
            let Some(container) = observed.container(&container.name) else {
                prober.lost();
                continue;
            };
            let progress = match (container.state, container.started_at) {
                (ContainerState::Running, since) => {
                    Progress::Runs(since.map_or(now.mono, |since| now.mono_of(since)))
                }
                (ContainerState::Created, _) => Progress::Made,
                (ContainerState::Exited | ContainerState::Unknown, _) => Progress::Ended,
            };
            let shown = shown.and_then(|status| container_status(status, &container.name, &container.id));
            let before = self.found.contains(&container.id).then(|| PreviousStatus {
                ready: shown.is_some_and(|status| status.ready),
                jitter: jitter(&pod.key.uid, &container.name, key.kind),
            });
            let started = shown.is_some_and(|status| status.started == Some(true));
            prober.update(
                &ProbedContainer { id: &container.id, progress, started, before, is_ending },
                now.mono,
            );
        }
    }

    /// Time of the next probe.
    pub fn due(&self) -> Option<Mono> {
        self.entries.iter().filter_map(|entry| entry.prober.due()).min()
    }

    /// The probers that are due, and since when.
    pub fn all_due(&self, now: Mono) -> impl Iterator<Item = (Mono, ProbeKey)> {
        let due = move |entry: &Entry| Some((entry.prober.due().filter(|at| *at <= now)?, entry.key));
        self.entries.iter().filter_map(due)
    }

    /// [`Prober::begin`] for the prober at that key.
    pub fn begin(&mut self, key: ProbeKey, now: Mono) -> Option<DueProbe> {
        self.at(key)?.begin(now)
    }

    /// [`Prober::record`] for the prober at that key.
    pub fn record(&mut self, key: ProbeKey, container: &ContainerId, answer: Option<ProbeResult>) -> bool {
        self.at(key).is_some_and(|prober| prober.record(container, answer))
    }

    fn at(&mut self, key: ProbeKey) -> Option<&mut Prober> {
        self.entries.iter_mut().find(|entry| entry.key == key).map(|entry| &mut entry.prober)
    }

    /// The latest result of that probe for the container, if there is one.
    pub fn result(&self, kind: ProbeKind, container: &str) -> Option<ProbeResult> {
        let of = |entry: &Entry| {
            let (id, result) = entry.prober.result()?;
            (entry.key.kind == kind && id.as_str() == container).then_some(result)
        };
        self.entries.iter().find_map(of)
    }

    /// Results that decide which containers are killed and started.
    pub fn for_plan(&self) -> Probes {
        let mut probes = Probes::default();
        for entry in &self.entries {
            let Some((id, result)) = entry.prober.result() else { continue };
            match entry.key.kind {
                ProbeKind::Liveness => probes.liveness.set(id, result),
                ProbeKind::Startup => probes.startup.set(id, result),
                ProbeKind::Readiness => {}
            }
        }
        probes
    }

    /// Number of probers.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True when no container of the pod is probed.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// FNV-1a: stable across restarts, different for each probe.
fn jitter(uid: &PodUid, container: &str, kind: ProbeKind) -> u32 {
    let bytes = uid.as_str().bytes().chain(container.bytes()).chain([kind as u8]);
    bytes.fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Wall;
    use serde_json::{Value, json};

    const NOW: Now = Now { mono: Mono(100_000_000_000), wall: Wall(1_000_000_000_000) };

    fn pod(period: i32) -> DesiredPod {
        let probe = json!({"tcpSocket": {"port": 1}, "periodSeconds": period});
        let probed = |name: &str, policy: Value| json!({"name": name, "restartPolicy": policy, "livenessProbe": probe, "readinessProbe": probe});
        let pod = json!({
            "metadata": {"name": "web", "namespace": "default", "uid": "u"},
            "spec": {
                "initContainers": [probed("side", json!("Always")), probed("first", Value::Null)],
                "containers": [probed("app", Value::Null), {"name": "plain"}],
            },
        });
        DesiredPod::new(serde_json::from_value(pod).unwrap())
    }

    fn observed(id: &str) -> ObservedPod {
        let container = crate::model::ContainerStatus {
            id: id.into(),
            name: "app".into(),
            sandbox_id: "s".into(),
            state: ContainerState::Running,
            started_at: Some(NOW.wall),
            ..crate::model::ContainerStatus::default()
        };
        ObservedPod { containers: vec![container], ..ObservedPod::default() }
    }

    #[test]
    fn sidecars_and_app_containers_are_probed_when_there_is_room() {
        let (pod, mut probers) = (pod(10), Probers::default());
        assert_eq!(probers.fit(&pod, 3), Err(NoRoom));
        assert!(probers.is_empty() && !probers.is_fitted());
        assert_eq!((probers.fit(&pod, 4), probers.len()), (Ok(()), 4));
        assert_eq!(probers.fit(&pod, 0), Ok(()), "they are there");
        for (name, has) in [("side", true), ("app", true), ("first", false), ("plain", false)] {
            assert_eq!(has_probe(&pod, ProbeKind::Readiness, name), has, "{name}");
        }
        assert!(!has_probe(&pod, ProbeKind::Startup, "app"));
    }

    #[test]
    fn a_probe_with_other_numbers_knows_what_it_knew() {
        let (mut probers, it) = (Probers::default(), observed("c1"));
        probers.fit(&pod(10), 9).unwrap();
        let shown: PodStatus = serde_json::from_value(json!({"containerStatuses": [
            {"name": "app", "containerID": "containerd://c1", "started": true, "ready": false, "restartCount": 0,
             "image": "", "imageID": ""}
        ]}))
        .unwrap();
        probers.update(&pod(10), &it, Some(&shown), false, NOW);
        let due: Vec<(Mono, ProbeKey)> = probers.all_due(NOW.mono).collect();
        assert_eq!(
            due.iter().map(|(_, key)| key.kind()).collect::<Vec<_>>(),
            [ProbeKind::Liveness, ProbeKind::Readiness]
        );
        let readiness = due[1].1;
        let asked = probers.begin(readiness, NOW.mono).unwrap();
        assert!(probers.record(readiness, &asked.container, Some(ProbeResult::Success)));
        assert_eq!(probers.result(ProbeKind::Readiness, "c1"), Some(ProbeResult::Success));
        probers.changed();
        probers.fit(&pod(3), 0).unwrap();
        assert_eq!(probers.result(ProbeKind::Readiness, "c1"), Some(ProbeResult::Success));
        assert_eq!(probers.for_plan().liveness.of(&"c1".into()), Some(ProbeResult::Success));
        // The scheduled time is kept; after it the new period applies.
        probers.begin(readiness, Mono(110_000_000_000)).unwrap();
        probers.record(readiness, &asked.container, None);
        assert_eq!(probers.at(readiness).unwrap().due(), Some(Mono(113_000_000_000)));
        assert_eq!(probers.due(), Some(NOW.mono), "the liveness probe has not been asked");
        // Another container of that name has no result yet.
        probers.update(&pod(3), &observed("c2"), Some(&shown), false, NOW);
        assert_eq!(probers.result(ProbeKind::Readiness, "c1"), None);
        assert_eq!(probers.result(ProbeKind::Readiness, "c2"), Some(ProbeResult::Failure));
    }
}
