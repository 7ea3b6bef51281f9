//! One probe of one container: when it asks, and what the answers make of the container (prober `worker`). PURE.
//!
//! The kubelet's worker wakes up each period, whether there is something to probe or not. Here a prober without a running
//! container has no timer: it is looked at again when the container changes. From the second time on it asks at whole seconds
//! of the monotonic clock, as all others do: many probers wake the agent up as often as one.

use std::time::Duration;

use k8s_openapi::api::core::v1::Probe;

use crate::limits::{PROBE_LATE, PROBER_BYTES_MAX};
use crate::model::{ContainerId, Mono};
use crate::sync::ProbeResult;

/// Which of a container's probes.
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
    /// All of them, in the order of `as usize`.
    pub const ALL: [Self; 3] = [Self::Liveness, Self::Readiness, Self::Startup];

    /// The kubelet's word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Liveness => "Liveness",
            Self::Readiness => "Readiness",
            Self::Startup => "Startup",
        }
    }

    /// What holds from the container's start to the first answer (worker `initialValue`).
    fn initial(self) -> ProbeResult {
        match self {
            Self::Liveness => ProbeResult::Success,
            Self::Readiness => ProbeResult::Failure,
            Self::Startup => ProbeResult::Unknown,
        }
    }
}

/// When a probe asks, and how often an answer has to come to count: the numbers of a `v1.Probe` with its defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    initial_delay_seconds: u32,
    period_seconds: u32,
    successes: u32,
    failures: u32,
}

impl Schedule {
    /// Of a probe whose defaults are set (`source::defaults`); what is not there all the same is the default.
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

/// How far a container is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It was made, and has not started.
    Made,
    /// It runs since then.
    Runs(Mono),
    /// It ran.
    Ended,
}

/// What was shown of a container that ran before the agent did; it holds until a probe says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Before {
    /// `ready` of its status.
    pub ready: bool,
    /// What part of a period goes by until the first probe, in 1/2^32: not all containers of a node are asked at once.
    pub jitter: u32,
}

/// A prober's container: the newest of its name.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// Its id.
    pub id: &'a ContainerId,
    /// How far it is.
    pub progress: Progress,
    /// `started` of its status: the startup probe succeeded, or there is none.
    pub started: bool,
    /// It ran before the agent did.
    pub before: Option<Before>,
    /// The pod is being ended.
    pub is_ending: bool,
}

/// One probe of one container, whichever generation of it runs.
#[derive(Clone, Debug)]
pub struct Prober {
    kind: ProbeKind,
    /// It has spoken for good on this generation.
    on_hold: bool,
    in_flight: bool,
    last: Option<ProbeResult>,
    /// What holds of the container.
    result: Option<ProbeResult>,
    /// How often in a row the probe said `last`.
    run: u32,
    schedule: Schedule,
    container: Option<ContainerId>,
    /// When the container began to run, fixed at first sight: the runtime tells it by a clock that may step.
    since: Option<Mono>,
    next: Option<Mono>,
}

const _: () = assert!(size_of::<Prober>() <= PROBER_BYTES_MAX);

/// A probe that is to be run now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// On this container.
    pub container: ContainerId,
    /// It should have run before: the node, or the probe before it, was too slow.
    pub is_late: bool,
}

impl Prober {
    /// A prober that has seen no container yet.
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

    /// Which probe.
    pub fn kind(&self) -> ProbeKind {
        self.kind
    }

    /// The definition changed; what was seen of the container holds on.
    pub fn set_schedule(&mut self, schedule: Schedule) {
        self.schedule = schedule;
    }

    /// The container that was seen last, and what holds of it (`proberesults.Manager`), if anything does yet.
    pub fn result(&self) -> Option<(&ContainerId, ProbeResult)> {
        self.container.as_ref().zip(self.result)
    }

    /// Takes over what is there now.
    ///
    /// Differs from the kubelet, whose worker takes a container that was made and has not started for one that is dead: when
    /// it ticks just then, a failed liveness probe stands against a container that never had one.
    pub fn look(&mut self, seen: &Seen<'_>, now: Mono) {
        if self.container.as_ref() != Some(seen.id) {
            *self = Self { container: Some(seen.id.clone()), ..Self::new(self.kind, self.schedule) };
            self.result = match (seen.before, self.kind) {
                (None, kind) => Some(kind.initial()),
                // A sidecar that had started lets the next init container go on.
                (Some(_), ProbeKind::Startup) => seen.started.then_some(ProbeResult::Success),
                // The kubelet asks the API server's status; a pod of a manifest has none there, and is not ready after each
                // restart of the kubelet.
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
            // A quiet end: nothing is restarted any more.
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

    /// There is no such container (any more).
    pub fn lost(&mut self) {
        self.next = None;
    }

    fn part_of_period(&self, jitter: u32) -> Duration {
        // Whole seconds are asked at anyway.
        Duration::from_secs((u64::from(self.schedule.period_seconds) * u64::from(jitter)) >> 32)
    }

    /// When it asks next; `None` while there is nothing to ask, or an answer is under way.
    pub fn due(&self) -> Option<Mono> {
        self.next.filter(|_| !self.in_flight)
    }

    /// It asks now: the caller runs the probe and brings the answer to [`Self::answered`].
    pub fn ask(&mut self, now: Mono) -> Option<Asked> {
        let due = self.due().filter(|due| *due <= now)?;
        let container = self.container.clone()?;
        self.in_flight = true;
        // A late probe moves no other.
        let next = whole_second(due + self.schedule.period());
        self.next = Some(if next > now { next } else { whole_second(now + self.schedule.period()) });
        Some(Asked { container, is_late: now.since(due) >= PROBE_LATE })
    }

    /// The answer of the probe that ran on `container`; `None` when it could not be run, which counts for nothing. True when
    /// [`Self::result`] is another one from now on.
    pub fn answered(&mut self, container: &ContainerId, answer: Option<ProbeResult>) -> bool {
        if self.container.as_ref() != Some(container) {
            // Of a generation that is gone; this one's probe may be under way.
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
            // Exec in a container that is being stopped does harm; and one that started needs no second word.
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
