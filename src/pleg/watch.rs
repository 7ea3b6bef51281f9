//! PURE: how far the runtime's events are trusted, and how often everything is looked at for that.
//!
//! ```text
//!                 first event                   a relist finds what no event told of
//!     Fresh ───────────────────► Trusted ──────────────────────────────► Doubted (the other service is tried)
//!     1, 2, 4 … 60 s             every 60 s ◄─── every second for a minute; for good after some misses
//!        ▲ opened                                   next event
//!     Closed: every second; the next attempt after a growing wait
//! ```
//!
//! A stream that is open may be one on which nothing ever comes (CRI-O sends nothing unless it is told to), and a quiet
//! one of containerd's does not even answer before its first event: only an event shows that events come, and only what
//! we start ourselves shows that they do not. Unlike the kubelet's `EventedPLEG`, which gives up its stream after some
//! failures, nothing here is for ever.
use std::time::Duration;

use crate::cri::EventService;
use crate::limits::{
    DOUBTED_LOOKS, EVENT_LATE_MAX, EVENTS_RETRY_MAX, EVENTS_UNSUPPORTED_RETRY, RELIST_PERIOD,
    RELIST_PERIOD_MAX, UNTOLD_MAX,
};
use crate::model::SortedSet;
use crate::model::{Mono, PodUid};

/// State of the runtime's event streams.
#[derive(Debug)]
pub struct Watch {
    service: EventService,
    state: State,
    /// Since the last miss no event has come.
    doubted: bool,
    /// Misses since the last event, and since the runtime was found.
    untold: u32,
    /// Relists since then.
    looks_in_doubt: u32,
    /// In a row: streams that ended or missed something.
    failures: u32,
    /// Said last: there are none.
    absent: bool,
    missed: u64,
    /// Pods that a relist found changed without an event, which may be on its way. As many as there are pods.
    suspects: SortedSet<PodUid>,
    judged_at: Option<Mono>,
    /// When the first event is overdue: something was started while the stream was open.
    overdue_at: Option<Mono>,
}

#[derive(Debug)]
enum State {
    /// No stream; the next attempt then.
    Closed(Mono),
    /// Nothing came yet; what the next relist waits.
    Fresh(Mono, Duration),
    /// Events come.
    Trusted(Mono),
}

/// What a change of trust is worth saying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// Events of this service come.
    Trusted(EventService),
    /// The runtime has no service of events.
    Absent,
    /// A stream that had brought events ended.
    Ended(EventService),
    /// Events of this service missed so many changes, so many since the start.
    Missed(EventService, usize, u64),
    /// So did another stream before any event came: so many since the start.
    MissedAgain(EventService, u64),
}

impl Watch {
    /// Nothing is known: the first stream is due.
    pub fn new(now: Mono) -> Self {
        Self {
            service: EventService::Cri,
            state: State::Closed(now),
            doubted: false,
            untold: 0,
            looks_in_doubt: 0,
            failures: 0,
            absent: false,
            missed: 0,
            suspects: SortedSet::new(),
            judged_at: None,
            overdue_at: None,
        }
    }

    /// When something is to be done: a stream to be opened, or suspicions to be judged.
    pub fn due(&self) -> Option<Mono> {
        let open = match self.state {
            State::Closed(at) => Some(at),
            State::Fresh(..) | State::Trusted(_) => None,
        };
        [open, self.judged_at, self.overdue_at].into_iter().flatten().min()
    }

    /// The service to open a stream of now, if one is due.
    pub fn open(&mut self, now: Mono) -> Option<EventService> {
        match self.state {
            State::Closed(at) if at <= now => {
                self.state = State::Fresh(now, RELIST_PERIOD);
                Some(self.service)
            }
            State::Closed(_) | State::Fresh(..) | State::Trusted(_) => None,
        }
    }

    /// Its service tells after the runtime's status shows the change, not before.
    pub fn tells_after_the_status(&self) -> bool {
        self.service == EventService::Cri
    }

    /// An event came.
    pub fn delivered(&mut self) -> Option<Said> {
        self.failures = 0;
        self.untold = 0;
        self.overdue_at = None;
        match self.state {
            State::Closed(_) | State::Trusted(_) => None,
            State::Fresh(since, _) => {
                self.state = State::Trusted(since);
                self.doubted = false;
                self.absent = false;
                Some(Said::Trusted(self.service))
            }
        }
    }

    /// The stream ended; `unsupported`: there is no such service.
    pub fn ended(&mut self, unsupported: bool, now: Mono) -> Option<Said> {
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
                // The CRI's has failed before, or is not there either; another runtime may come with an update.
                EventService::Containerd if self.doubted => self.wait(),
                EventService::Containerd => EVENTS_UNSUPPORTED_RETRY,
            };
            self.state = State::Closed(now + wait);
            let none = service == EventService::Containerd && !self.doubted;
            return (none && !std::mem::replace(&mut self.absent, true)).then_some(Said::Absent);
        }
        // What worked a moment ago is opened again at once, unless it ends with every event.
        let wait = if was_trusted && lasted { Duration::ZERO } else { self.wait() };
        self.state = State::Closed(now + wait);
        was_trusted.then_some(Said::Ended(service))
    }

    /// The runtime answers again after it did not: it may be another one.
    pub fn runtime_is_back(&mut self, now: Mono) {
        self.failures = 0;
        self.untold = 0;
        if let State::Closed(at) = &mut self.state {
            *at = now;
        }
    }

    /// What a relist waits after the one that ended now.
    pub fn relist_wait(&mut self) -> Duration {
        match &mut self.state {
            State::Trusted(_) => RELIST_PERIOD_MAX,
            // Then it is one without events.
            State::Fresh(..) if self.untold >= UNTOLD_MAX => RELIST_PERIOD,
            State::Fresh(..) if self.doubted => {
                self.looks_in_doubt = self.looks_in_doubt.saturating_add(1);
                if self.looks_in_doubt <= DOUBTED_LOOKS { RELIST_PERIOD } else { RELIST_PERIOD_MAX }
            }
            State::Fresh(_, wait) => {
                let this = *wait;
                *wait = this.saturating_mul(2).min(RELIST_PERIOD_MAX);
                this
            }
            State::Closed(_) => RELIST_PERIOD,
        }
    }

    /// A relist shows that this pod is not as it was at `agreed`, and nothing else explains that. The stream was to
    /// tell when it was open then.
    pub fn suspect(&mut self, pod: &PodUid, agreed: Mono, now: Mono) {
        let (State::Fresh(since, _) | State::Trusted(since)) = self.state else { return };
        if agreed >= since {
            self.suspects.insert(pod.clone());
            self.judged_at.get_or_insert(now + EVENT_LATE_MAX);
        }
    }

    /// A job of ours made or started something: where nothing came yet, an event has to come now.
    pub fn started_something(&mut self, now: Mono) {
        if matches!(self.state, State::Fresh(..)) {
            self.overdue_at.get_or_insert(now + EVENT_LATE_MAX);
        }
    }

    /// An event about this pod came.
    pub fn told(&mut self, pod: &PodUid) {
        self.suspects.remove(pod);
    }

    /// Changes that events did not tell of, since the start.
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// Ends the stream when events missed something: another one is opened.
    pub fn judge(&mut self, now: Mono) -> Option<Said> {
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
        self.untold = self.untold.saturating_add(1);
        let doubted = std::mem::replace(&mut self.doubted, true);
        self.looks_in_doubt = 0;
        let service = self.service;
        // containerd 1.7 gives each event of the CRI's to one of its listeners only; its own go to all.
        self.service = service.other();
        self.state = State::Closed(now + self.wait());
        Some(if doubted {
            Said::MissedAgain(service, self.missed)
        } else {
            Said::Missed(service, missed, self.missed)
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

    fn waits(watch: &mut Watch, relists: usize) -> Vec<u64> {
        (0..relists).map(|_| watch.relist_wait().as_secs()).collect()
    }

    #[test]
    fn a_stream_is_trusted_with_its_first_event_and_tried_for_less_and_less_until_then() {
        let mut watch = Watch::new(NOW);
        assert_eq!(watch.due(), Some(NOW));
        assert_eq!(watch.open(NOW), Some(Cri));
        assert_eq!((watch.open(NOW), watch.due()), (None, None));
        assert_eq!(waits(&mut watch, 9), [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(watch.delivered(), Some(Said::Trusted(Cri)));
        assert_eq!(watch.delivered(), None);
        assert_eq!(waits(&mut watch, 2), [60, 60]);
    }

    #[test]
    fn without_the_cris_containerds_is_tried_and_without_both_a_relist_goes_every_second() {
        let mut watch = Watch::new(NOW);
        watch.open(NOW);
        assert_eq!(watch.ended(true, NOW), None);
        assert_eq!(watch.open(NOW), Some(Containerd));
        assert_eq!(watch.ended(true, NOW), Some(Said::Absent));
        assert_eq!(waits(&mut watch, 2), [1, 1]);
        let again = NOW + EVENTS_UNSUPPORTED_RETRY;
        assert_eq!((watch.due(), watch.open(after(1))), (Some(again), None));
        assert_eq!(watch.open(again), Some(Cri));
        watch.ended(true, again);
        watch.open(again);
        assert_eq!(watch.ended(true, again), None, "said once");
        watch.runtime_is_back(after(500));
        assert_eq!(watch.open(after(500)), Some(Cri), "it may be another version");
    }

    #[test]
    fn a_stream_that_ends_is_opened_again_the_later_the_less_it_brought() {
        let mut watch = Watch::new(NOW);
        watch.open(NOW);
        watch.delivered();
        assert_eq!(watch.ended(false, after(9)), Some(Said::Ended(Cri)));
        assert_eq!(waits(&mut watch, 2), [1, 1]);
        let mut now = after(9);
        let mut gaps = Vec::new();
        for _ in 0..8 {
            let at = watch.due().unwrap();
            gaps.push(at.since(now).as_secs());
            now = at;
            assert_eq!(watch.open(now), Some(Cri));
            assert_eq!(watch.ended(false, now), None);
        }
        assert_eq!(gaps, [0, 1, 2, 4, 8, 16, 32, 60]);
        watch.runtime_is_back(now);
        assert_eq!(watch.open(now), Some(Cri));
    }

    #[test]
    fn a_miss_is_counted_and_doubts_the_stream_until_it_delivers() {
        let pod = PodUid::from("u1");
        let mut watch = Watch::new(NOW);
        watch.open(NOW);
        watch.delivered();
        watch.suspect(&pod, after(0), after(60));
        assert_eq!(watch.judge(after(60)), None, "the event may be on its way");
        assert_eq!(watch.due(), Some(after(60) + EVENT_LATE_MAX));
        assert_eq!(watch.judge(after(62)), Some(Said::Missed(Cri, 1, 1)));
        assert_eq!(waits(&mut watch, 2), [1, 1]);
        assert_eq!(watch.open(watch.due().unwrap()), Some(Containerd), "another stream");
        let doubted = waits(&mut watch, DOUBTED_LOOKS as usize + 2);
        assert_eq!(doubted.iter().filter(|wait| **wait == 1).count(), DOUBTED_LOOKS as usize, "{doubted:?}");
        assert_eq!(doubted.last(), Some(&60), "nothing happens, and nothing was missed");
        assert_eq!(watch.delivered(), Some(Said::Trusted(Containerd)));
        assert_eq!(waits(&mut watch, 1), [60]);
    }

    #[test]
    fn a_runtime_that_never_tells_anything_is_looked_at_every_second() {
        let mut watch = Watch::new(NOW);
        for miss in 1..=UNTOLD_MAX {
            let now = watch.due().unwrap();
            watch.open(now);
            assert_eq!(waits(&mut watch, 200).last(), Some(&60), "{miss}");
            watch.started_something(now);
            assert!(watch.judge(now + EVENT_LATE_MAX).is_some());
        }
        watch.open(watch.due().unwrap());
        assert_eq!(waits(&mut watch, 200), [1; 200]);
        watch.delivered();
        assert_eq!(waits(&mut watch, 1), [60]);
    }

    #[test]
    fn a_stream_that_ends_with_each_event_is_opened_once_a_second() {
        let mut watch = Watch::new(NOW);
        for _ in 0..3 {
            let now = watch.due().unwrap();
            watch.open(now);
            watch.delivered();
            watch.ended(false, now + Duration::from_millis(5));
            assert!(watch.due().unwrap().since(now) >= RELIST_PERIOD);
        }
    }

    #[test]
    fn what_an_event_explains_or_no_stream_could_tell_is_no_miss() {
        let pod = PodUid::from("u1");
        let mut watch = Watch::new(NOW);
        watch.suspect(&pod, NOW, after(1));
        assert_eq!(watch.due(), Some(NOW), "no stream was open");
        watch.open(after(2));
        watch.suspect(&pod, after(1), after(3));
        assert_eq!(watch.due(), None, "it may have changed before the stream was opened");
        watch.suspect(&pod, after(2), after(3));
        watch.told(&pod);
        assert_eq!(watch.judge(after(9)), None, "late, not lost");
        watch.suspect(&pod, after(2), after(10));
        watch.ended(false, after(10));
        assert_eq!(watch.judge(after(19)), None, "the stream ended: a relist looks anyway");
    }

    #[test]
    fn a_stream_that_says_nothing_of_what_we_start_is_found_out() {
        let mut watch = Watch::new(NOW);
        watch.started_something(NOW);
        watch.open(NOW);
        assert_eq!(watch.due(), None, "no stream was open");
        watch.started_something(after(5));
        watch.started_something(after(6));
        assert_eq!(watch.due(), Some(after(5) + EVENT_LATE_MAX));
        assert_eq!(watch.judge(after(6)), Some(Said::Missed(Cri, 1, 1)));
        watch.open(after(9));
        watch.started_something(after(9));
        assert_eq!(watch.judge(after(10)), Some(Said::MissedAgain(Containerd, 2)), "told once");
        watch.open(after(12));
        watch.started_something(after(12));
        watch.delivered();
        assert_eq!(watch.judge(after(60)), None, "it came");
        watch.started_something(after(70));
        assert_eq!(watch.due(), None, "events come");
    }

    #[test]
    fn a_runtime_with_one_service_that_misses_things_is_not_asked_in_a_circle() {
        let pod = PodUid::from("u1");
        let mut watch = Watch::new(NOW);
        watch.open(NOW);
        watch.suspect(&pod, NOW, NOW);
        watch.judge(after(1));
        let mut asked = Vec::new();
        for _ in 0..4 {
            let now = watch.due().unwrap();
            asked.push((watch.open(now).unwrap(), now.since(NOW).as_secs()));
            watch.ended(true, now);
        }
        assert_eq!(asked, [(Containerd, 2), (Cri, 4), (Containerd, 4), (Cri, 8)]);
    }
}
