//! One probe of one container: its schedule and the evaluation of its results (prober `worker`). PURE.
//!
//! The kubelet's worker wakes up each period, whether there is something to probe or not. Here a prober without a running
//! container has no timer: it is updated when the container changes. From the second probe on it runs at whole seconds of
//! the monotonic clock, as all probers do: many of them cause as many wakeups as one.

use std::time::Duration;

use k8s_openapi::api::core::v1::Probe;

use crate::limits::{PROBE_LATE, PROBER_BYTES_MAX};
use crate::model::{ContainerId, Mono};
use crate::sync::ProbeResult;

/// A kind of probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProbeKind {
    /// `livenessProbe`.
    Liveness,
    /// `readinessProbe`.
    Readiness,
    /// `startupProbe`.
    Startup,
}

impl ProbeKind {
    /// All kinds, in the order of `as usize`.
    pub const ALL: [Self; 3] = [Self::Liveness, Self::Readiness, Self::Startup];

    /// The kubelet's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
            Self::Startup => "Startup",
        }
    }

    /// The result from the container's start to the first probe (worker `initialValue`).
    fn initial(self) -> ProbeResult {
        match self {
            Self::Liveness => ProbeResult::Success,
            Self::Readiness => ProbeResult::Failure,
            Self::Startup => ProbeResult::Unknown,
        }
    }
}

/// Schedule and thresholds of a probe: the numbers of a `v1.Probe` with its defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    initial_delay_seconds: u32,
    period_seconds: u32,
    successes: u32,
    failures: u32,
}

impl Schedule {
    /// From a probe with its defaults set (`source::defaults`); missing values get the default here too.
    pub fn new(probe: &Probe) -> Self {
        let number = |number: Option<i32>, default: u32| {
            number
                .and_then(|number| u32::try_from(number).ok())
                .filter(|number| *number > 0)
                .unwrap_or(default)
        };
        Self {
            initial_delay_seconds: number(probe.initial_delay_seconds, 0),
            period_seconds: number(probe.period_seconds, 10),
            successes: number(probe.success_threshold, 1),
            failures: number(probe.failure_threshold, 3),
        }
    }

    fn initial_delay(self) -> Duration {
        Duration::from_secs(self.initial_delay_seconds.into())
    }

    fn period(self) -> Duration {
        Duration::from_secs(self.period_seconds.into())
    }
}

/// State of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Created, not started.
    Made,
    /// Running since then.
    Runs(Mono),
    /// Exited.
    Ended,
}

/// The status shown of a container that ran before the agent started; it holds until a probe has a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreviousStatus {
    /// `ready` in its status.
    pub ready: bool,
    /// Fraction of a period until the first probe, in 1/2^32: spreads the probes of a node's containers.
    pub jitter: u32,
}

/// A prober's container: the newest of its name.
#[derive(Clone, Copy, Debug)]
pub struct ProbedContainer<'a> {
    /// Its id.
    pub id: &'a ContainerId,
    /// Its state.
    pub progress: Progress,
    /// `started` in its status: the startup probe succeeded, or there is none.
    pub started: bool,
    /// Set when it ran before the agent started.
    pub before: Option<PreviousStatus>,
    /// The pod is terminating.
    pub is_ending: bool,
}

/// One probe of one container, across its restarts.
#[derive(Clone, Debug)]
pub struct Prober {
    kind: ProbeKind,
    /// Its result for this container is final.
    on_hold: bool,
    in_flight: bool,
    last: Option<ProbeResult>,
    /// The container's current result.
    result: Option<ProbeResult>,
    /// Number of consecutive results equal to `last`.
    run: u32,
    schedule: Schedule,
    container: Option<ContainerId>,
    /// When the container began to run, set when first observed: the runtime's time is of a clock that may step.
    since: Option<Mono>,
    next: Option<Mono>,
}

const _: () = assert!(size_of::<Prober>() <= PROBER_BYTES_MAX);

/// A probe to run now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueProbe {
    /// The container.
    pub container: ContainerId,
    /// It is overdue: the node, or the previous probe, was too slow.
    pub is_late: bool,
}

impl Prober {
    /// A prober without a container.
    pub fn new(kind: ProbeKind, schedule: Schedule) -> Self {
        Self {
            kind,
            on_hold: false,
            in_flight: false,
            last: None,
            result: None,
            run: 0,
            schedule,
            container: None,
            since: None,
            next: None,
        }
    }

    /// The kind of probe.
    pub fn kind(&self) -> ProbeKind {
        self.kind
    }

    /// Changes the schedule; the container's results are kept.
    pub fn set_schedule(&mut self, schedule: Schedule) {
        self.schedule = schedule;
    }

    /// The container observed last and its current result (`proberesults.Manager`), if there is one yet.
    pub fn result(&self) -> Option<(&ContainerId, ProbeResult)> {
        self.container.as_ref().zip(self.result)
    }

    /// Updates the prober's container.
    ///
    /// Differs from the kubelet, whose worker treats a container that was created and not started as dead: when it ticks
    /// just then, it records a failed liveness probe for a container that never had one.
    pub fn update(&mut self, seen: &ProbedContainer<'_>, now: Mono) {
        if self.container.as_ref() != Some(seen.id) {
            *self = Self { container: Some(seen.id.clone()), ..Self::new(self.kind, self.schedule) };
            self.result = match (seen.before, self.kind) {
                (None, kind) => Some(kind.initial()),
                // A sidecar that had started does not block the next init container.
                (Some(_), ProbeKind::Startup) => seen.started.then_some(ProbeResult::Success),
                // The kubelet uses the API server's status; a static pod has none there, and is not ready after each restart
                // of the kubelet.
                (Some(before), ProbeKind::Readiness) => before.ready.then_some(ProbeResult::Success),
                (Some(_), ProbeKind::Liveness) => None,
            };
        }
        if self.on_hold {
            return;
        }
        let since = match seen.progress {
            Progress::Runs(since) => *self.since.get_or_insert(since),
            Progress::Made => return self.next = None,
            Progress::Ended => {
                self.next = None;
                self.result = Some(ProbeResult::Failure);
                return;
            }
        };
        if seen.is_ending && self.kind != ProbeKind::Readiness {
            // No further results: nothing is restarted any more.
            self.hold();
            self.result = Some(ProbeResult::Success);
        } else if seen.started == (self.kind == ProbeKind::Startup) {
            self.next = None;
        } else if self.next.is_none() {
            let first = since + self.schedule.initial_delay();
            let apart = seen.before.map_or(Duration::ZERO, |before| self.part_of_period(before.jitter));
            self.next = Some(first.max(whole_second(now + apart)).max(now));
        }
    }

    /// The container does not exist (any more).
    pub fn lost(&mut self) {
        self.next = None;
    }

    fn part_of_period(&self, jitter: u32) -> Duration {
        // Probes run at whole seconds anyway.
        Duration::from_secs((u64::from(self.schedule.period_seconds) * u64::from(jitter)) >> 32)
    }

    /// Time of the next probe; `None` while there is no container to probe, or a probe runs.
    pub fn due(&self) -> Option<Mono> {
        self.next.filter(|_| !self.in_flight)
    }

    /// Begins a probe: the caller runs it and passes its result to [`Self::record`].
    pub fn begin(&mut self, now: Mono) -> Option<DueProbe> {
        let due = self.due().filter(|due| *due <= now)?;
        let container = self.container.clone()?;
        self.in_flight = true;
        // A late probe does not shift later ones.
        let next = whole_second(due + self.schedule.period());
        self.next = Some(if next > now { next } else { whole_second(now + self.schedule.period()) });
        Some(DueProbe { container, is_late: now.since(due) >= PROBE_LATE })
    }

    /// Records the result of the probe that ran on `container`; `None` when it could not run, which has no effect. True when
    /// [`Self::result`] has changed.
    pub fn record(&mut self, container: &ContainerId, answer: Option<ProbeResult>) -> bool {
        if self.container.as_ref() != Some(container) {
            // The result of a previous container; this one's probe may be running.
            return false;
        }
        self.in_flight = false;
        let Some(answer) = answer.filter(|_| !self.on_hold) else { return false };
        if self.last == Some(answer) {
            self.run = self.run.saturating_add(1);
        } else {
            (self.last, self.run) = (Some(answer), 1);
        }
        let enough = match answer {
            ProbeResult::Success => self.schedule.successes,
            ProbeResult::Failure => self.schedule.failures,
            ProbeResult::Unknown => 1,
        };
        if self.run < enough {
            return false;
        }
        if self.kind == ProbeKind::Startup
            || (self.kind == ProbeKind::Liveness && answer == ProbeResult::Failure)
        {
            // Exec in a container that is being stopped does harm; and a container that started needs no second result.
            self.hold();
        }
        self.result.replace(answer) != Some(answer)
    }

    fn hold(&mut self) {
        (self.on_hold, self.run, self.next) = (true, 0, None);
    }
}

fn whole_second(at: Mono) -> Mono {
    Mono(at.0 - at.0.rem_euclid(1_000_000_000))
}

#[cfg(test)]
mod tests;
