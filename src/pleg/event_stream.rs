//! PURE: how far the runtime's event stream is trusted, and the relist period that follows from it.
//!
//! ```text
//!                 first event                   a relist finds a missed change
//!     Fresh ───────────────────► Trusted ──────────────────────────────► Doubted (the other service is tried)
//!     1, 2, 4 … 60 s             every 60 s ◄─── every second for a minute; without end after repeated misses
//!        ▲ opened                                   next event
//!     Closed: every second; the next attempt after a back-off
//! ```
//!
//! An open stream may never deliver an event (CRI-O's is disabled by default), and containerd's does not even answer before its
//! first event: only an event shows that the stream works, and only a missing event about a container that the agent started
//! shows that it does not. Unlike the kubelet's `EventedPLEG`, which gives up its stream after some failures, it is reopened
//! without end.
use std::time::Duration;

use crate::cri::EventService;
use crate::limits::{
    DOUBTED_RELISTS_MAX, EVENT_LATE_MAX, EVENT_MISSES_MAX, EVENTS_RETRY_MAX, EVENTS_UNSUPPORTED_RETRY,
    RELIST_PERIOD, RELIST_PERIOD_MAX,
};
use crate::model::SortedSet;
use crate::model::{Mono, PodUid};

/// State of the runtime's event streams.
#[derive(Debug)]
pub struct EventStream {
    service: EventService,
    state: State,
    /// No event has arrived since the last miss.
    doubted: bool,
    /// Misses since the last event, and since the runtime became available.
    misses: u32,
    /// Relists since the last miss.
    relists_in_doubt: u32,
    /// Consecutive streams that ended or missed an event.
    failures: u32,
    /// [`StreamReport::Absent`] was reported last.
    absent: bool,
    missed: u64,
    /// Pods that a relist found changed without an event, which may still arrive. At most one for each pod.
    suspects: SortedSet<PodUid>,
    judged_at: Option<Mono>,
    /// When the first event is overdue: a container was started while the stream was open.
    overdue_at: Option<Mono>,
}

#[derive(Debug)]
enum State {
    /// No stream; the time of the next attempt.
    Closed(Mono),
    /// Open since then, without an event; the next relist period.
    Fresh(Mono, Duration),
    /// Open since then; events arrive.
    Trusted(Mono),
}

/// A change of the stream's state, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamReport {
    /// Events of this service arrive.
    Trusted(EventService),
    /// The runtime implements no event service.
    Absent,
    /// A stream that had delivered events ended.
    Ended(EventService),
    /// The stream missed this many changes; the total since the start.
    Missed(EventService, usize, u64),
    /// Another stream missed a change before its first event; the total since the start.
    MissedAgain(EventService, u64),
}

impl EventStream {
    /// The first stream is due at once.
    pub fn new(now: Mono) -> Self {
        Self {
            service: EventService::Cri,
            state: State::Closed(now),
            doubted: false,
            misses: 0,
            relists_in_doubt: 0,
            failures: 0,
            absent: false,
            missed: 0,
            suspects: SortedSet::new(),
            judged_at: None,
            overdue_at: None,
        }
    }

    /// When a stream has to be opened, or suspected misses have to be judged.
    pub fn due(&self) -> Option<Mono> {
        let open = match self.state {
            State::Closed(at) => Some(at),
            State::Fresh(..) | State::Trusted(_) => None,
        };
        [open, self.judged_at, self.overdue_at].into_iter().flatten().min()
    }

    /// The service whose stream has to be opened now, if one is due.
    pub fn open(&mut self, now: Mono) -> Option<EventService> {
        match self.state {
            State::Closed(at) if at <= now => {
                self.state = State::Fresh(now, RELIST_PERIOD);
                Some(self.service)
            }
            State::Closed(_) | State::Fresh(..) | State::Trusted(_) => None,
        }
    }

    /// True for a service whose events follow the change of the runtime's status.
    pub fn reports_after_status(&self) -> bool {
        self.service == EventService::Cri
    }

    /// Records that an event arrived.
    pub fn delivered(&mut self) -> Option<StreamReport> {
        self.failures = 0;
        self.misses = 0;
        self.overdue_at = None;
        match self.state {
            State::Closed(_) | State::Trusted(_) => None,
            State::Fresh(since, _) => {
                self.state = State::Trusted(since);
                self.doubted = false;
                self.absent = false;
                Some(StreamReport::Trusted(self.service))
            }
        }
    }

    /// Records that the stream ended; `unsupported`: the service is not implemented.
    pub fn ended(&mut self, unsupported: bool, now: Mono) -> Option<StreamReport> {
        let service = self.service;
        let (was_trusted, lasted) = match self.state {
            State::Trusted(since) => (true, now.since(since) >= RELIST_PERIOD),
            State::Closed(_) | State::Fresh(..) => (false, false),
        };
        self.judged_at = None;
        self.overdue_at = None;
        self.suspects.clear();
        if unsupported {
            self.service = service.other();
            let wait = match service {
                EventService::Cri => Duration::ZERO,
                // The CRI's stream has failed before, or is not implemented either; an update may bring another runtime.
                EventService::Containerd if self.doubted => self.wait(),
                EventService::Containerd => EVENTS_UNSUPPORTED_RETRY,
            };
            self.state = State::Closed(now + wait);
            let none = service == EventService::Containerd && !self.doubted;
            return (none && !std::mem::replace(&mut self.absent, true)).then_some(StreamReport::Absent);
        }
        // A stream that delivered events is reopened at once, unless it ends after each event.
        let wait = if was_trusted && lasted { Duration::ZERO } else { self.wait() };
        self.state = State::Closed(now + wait);
        was_trusted.then_some(StreamReport::Ended(service))
    }

    /// Records that the runtime answers again: it may be another version.
    pub fn runtime_is_back(&mut self, now: Mono) {
        self.failures = 0;
        self.misses = 0;
        if let State::Closed(at) = &mut self.state {
            *at = now;
        }
    }

    /// The wait after the relist that ended now.
    pub fn relist_wait(&mut self) -> Duration {
        match &mut self.state {
            State::Trusted(_) => RELIST_PERIOD_MAX,
            // The runtime counts as one without events.
            State::Fresh(..) if self.misses >= EVENT_MISSES_MAX => RELIST_PERIOD,
            State::Fresh(..) if self.doubted => {
                self.relists_in_doubt = self.relists_in_doubt.saturating_add(1);
                if self.relists_in_doubt <= DOUBTED_RELISTS_MAX { RELIST_PERIOD } else { RELIST_PERIOD_MAX }
            }
            State::Fresh(_, wait) => {
                let this = *wait;
                *wait = this.saturating_mul(2).min(RELIST_PERIOD_MAX);
                this
            }
            State::Closed(_) => RELIST_PERIOD,
        }
    }

    /// Records that a relist shows a change of this pod since `agreed` that nothing else explains: a miss, if the stream was
    /// open then and no event follows.
    pub fn suspect(&mut self, pod: &PodUid, agreed: Mono, now: Mono) {
        let (State::Fresh(since, _) | State::Trusted(since)) = self.state else { return };
        if agreed >= since {
            self.suspects.insert(pod.clone());
            self.judged_at.get_or_insert(now + EVENT_LATE_MAX);
        }
    }

    /// Records that a job created or started something: a stream without events so far has to deliver one now.
    pub fn started_something(&mut self, now: Mono) {
        if matches!(self.state, State::Fresh(..)) {
            self.overdue_at.get_or_insert(now + EVENT_LATE_MAX);
        }
    }

    /// Records an event about this pod.
    pub fn event_arrived(&mut self, pod: &PodUid) {
        self.suspects.remove(pod);
    }

    /// Missed changes since the start.
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// Closes the stream when it missed events; another one is opened then.
    pub fn judge(&mut self, now: Mono) -> Option<StreamReport> {
        let overdue = self.overdue_at.take_if(|at| *at <= now).is_some();
        let suspects = match self.judged_at.take_if(|at| *at <= now) {
            Some(_) => std::mem::take(&mut self.suspects).len(),
            None => 0,
        };
        let missed = suspects.max(usize::from(overdue));
        if missed == 0 {
            return None;
        }
        self.judged_at = None;
        self.overdue_at = None;
        self.suspects.clear();
        self.missed = self.missed.saturating_add(missed as u64);
        self.misses = self.misses.saturating_add(1);
        let doubted = std::mem::replace(&mut self.doubted, true);
        self.relists_in_doubt = 0;
        let service = self.service;
        // containerd 1.7 delivers each CRI event to only one of its subscribers; its own events go to all.
        self.service = service.other();
        self.state = State::Closed(now + self.wait());
        Some(if doubted {
            StreamReport::MissedAgain(service, self.missed)
        } else {
            StreamReport::Missed(service, missed, self.missed)
        })
    }

    fn wait(&mut self) -> Duration {
        let wait = RELIST_PERIOD.saturating_mul(1 << self.failures.min(16)).min(EVENTS_RETRY_MAX);
        self.failures = self.failures.saturating_add(1);
        wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use EventService::{Containerd, Cri};

    const NOW: Mono = Mono(1_000_000_000_000);

    fn after(seconds: u64) -> Mono {
        NOW + Duration::from_secs(seconds)
    }

    fn waits(stream: &mut EventStream, relists: usize) -> Vec<u64> {
        (0..relists).map(|_| stream.relist_wait().as_secs()).collect()
    }

    #[test]
    fn a_stream_is_trusted_from_its_first_event_on_and_the_relist_period_grows_until_then() {
        let mut stream = EventStream::new(NOW);
        assert_eq!(stream.due(), Some(NOW));
        assert_eq!(stream.open(NOW), Some(Cri));
        assert_eq!((stream.open(NOW), stream.due()), (None, None));
        assert_eq!(waits(&mut stream, 9), [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(stream.delivered(), Some(StreamReport::Trusted(Cri)));
        assert_eq!(stream.delivered(), None);
        assert_eq!(waits(&mut stream, 2), [60, 60]);
    }

    #[test]
    fn containerds_service_is_tried_after_the_cris_and_without_both_the_relist_period_is_a_second() {
        let mut stream = EventStream::new(NOW);
        stream.open(NOW);
        assert_eq!(stream.ended(true, NOW), None);
        assert_eq!(stream.open(NOW), Some(Containerd));
        assert_eq!(stream.ended(true, NOW), Some(StreamReport::Absent));
        assert_eq!(waits(&mut stream, 2), [1, 1]);
        let again = NOW + EVENTS_UNSUPPORTED_RETRY;
        assert_eq!((stream.due(), stream.open(after(1))), (Some(again), None));
        assert_eq!(stream.open(again), Some(Cri));
        stream.ended(true, again);
        stream.open(again);
        assert_eq!(stream.ended(true, again), None, "reported once");
        stream.runtime_is_back(after(500));
        assert_eq!(stream.open(after(500)), Some(Cri), "it may be another version");
    }

    #[test]
    fn a_stream_that_ends_is_reopened_with_back_off_unless_it_delivered() {
        let mut stream = EventStream::new(NOW);
        stream.open(NOW);
        stream.delivered();
        assert_eq!(stream.ended(false, after(9)), Some(StreamReport::Ended(Cri)));
        assert_eq!(waits(&mut stream, 2), [1, 1]);
        let mut now = after(9);
        let mut gaps = Vec::new();
        for _ in 0..8 {
            let at = stream.due().unwrap();
            gaps.push(at.since(now).as_secs());
            now = at;
            assert_eq!(stream.open(now), Some(Cri));
            assert_eq!(stream.ended(false, now), None);
        }
        assert_eq!(gaps, [0, 1, 2, 4, 8, 16, 32, 60]);
        stream.runtime_is_back(now);
        assert_eq!(stream.open(now), Some(Cri));
    }

    #[test]
    fn a_miss_is_counted_and_the_stream_is_doubted_until_it_delivers() {
        let pod = PodUid::from("u1");
        let mut stream = EventStream::new(NOW);
        stream.open(NOW);
        stream.delivered();
        stream.suspect(&pod, after(0), after(60));
        assert_eq!(stream.judge(after(60)), None, "the event may still arrive");
        assert_eq!(stream.due(), Some(after(60) + EVENT_LATE_MAX));
        assert_eq!(stream.judge(after(62)), Some(StreamReport::Missed(Cri, 1, 1)));
        assert_eq!(waits(&mut stream, 2), [1, 1]);
        assert_eq!(stream.open(stream.due().unwrap()), Some(Containerd), "another stream");
        let doubted = waits(&mut stream, DOUBTED_RELISTS_MAX as usize + 2);
        assert_eq!(
            doubted.iter().filter(|wait| **wait == 1).count(),
            DOUBTED_RELISTS_MAX as usize,
            "{doubted:?}"
        );
        assert_eq!(doubted.last(), Some(&60), "nothing changes, and nothing was missed");
        assert_eq!(stream.delivered(), Some(StreamReport::Trusted(Containerd)));
        assert_eq!(waits(&mut stream, 1), [60]);
    }

    #[test]
    fn a_runtime_without_events_is_relisted_every_second() {
        let mut stream = EventStream::new(NOW);
        for miss in 1..=EVENT_MISSES_MAX {
            let now = stream.due().unwrap();
            stream.open(now);
            assert_eq!(waits(&mut stream, 200).last(), Some(&60), "{miss}");
            stream.started_something(now);
            assert!(stream.judge(now + EVENT_LATE_MAX).is_some());
        }
        stream.open(stream.due().unwrap());
        assert_eq!(waits(&mut stream, 200), [1; 200]);
        stream.delivered();
        assert_eq!(waits(&mut stream, 1), [60]);
    }

    #[test]
    fn a_stream_that_ends_with_each_event_is_reopened_once_a_second() {
        let mut stream = EventStream::new(NOW);
        for _ in 0..3 {
            let now = stream.due().unwrap();
            stream.open(now);
            stream.delivered();
            stream.ended(false, now + Duration::from_millis(5));
            assert!(stream.due().unwrap().since(now) >= RELIST_PERIOD);
        }
    }

    #[test]
    fn a_change_with_an_event_or_without_an_open_stream_is_no_miss() {
        let pod = PodUid::from("u1");
        let mut stream = EventStream::new(NOW);
        stream.suspect(&pod, NOW, after(1));
        assert_eq!(stream.due(), Some(NOW), "no stream was open");
        stream.open(after(2));
        stream.suspect(&pod, after(1), after(3));
        assert_eq!(stream.due(), None, "it may have changed before the stream was opened");
        stream.suspect(&pod, after(2), after(3));
        stream.event_arrived(&pod);
        assert_eq!(stream.judge(after(9)), None, "late, not missed");
        stream.suspect(&pod, after(2), after(10));
        stream.ended(false, after(10));
        assert_eq!(stream.judge(after(19)), None, "the stream ended: a relist follows anyway");
    }

    #[test]
    fn a_stream_without_events_about_started_containers_is_detected() {
        let mut stream = EventStream::new(NOW);
        stream.started_something(NOW);
        stream.open(NOW);
        assert_eq!(stream.due(), None, "no stream was open");
        stream.started_something(after(5));
        stream.started_something(after(6));
        assert_eq!(stream.due(), Some(after(5) + EVENT_LATE_MAX));
        assert_eq!(stream.judge(after(6)), Some(StreamReport::Missed(Cri, 1, 1)));
        stream.open(after(9));
        stream.started_something(after(9));
        assert_eq!(stream.judge(after(10)), Some(StreamReport::MissedAgain(Containerd, 2)), "reported once");
        stream.open(after(12));
        stream.started_something(after(12));
        stream.delivered();
        assert_eq!(stream.judge(after(60)), None, "the event arrived");
        stream.started_something(after(70));
        assert_eq!(stream.due(), None, "events arrive");
    }

    #[test]
    fn attempts_back_off_when_one_service_misses_events_and_the_other_is_absent() {
        let pod = PodUid::from("u1");
        let mut stream = EventStream::new(NOW);
        stream.open(NOW);
        stream.suspect(&pod, NOW, NOW);
        stream.judge(after(1));
        let mut asked = Vec::new();
        for _ in 0..4 {
            let now = stream.due().unwrap();
            asked.push((stream.open(now).unwrap(), now.since(NOW).as_secs()));
            stream.ended(true, now);
        }
        assert_eq!(asked, [(Containerd, 2), (Cri, 4), (Containerd, 4), (Cri, 8)]);
    }
}
