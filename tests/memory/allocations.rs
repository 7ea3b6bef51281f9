//! What an idle agent allocates, in virtual time against the fake runtime: a bounded amount for each look at the whole
//! runtime, the connection's own part included, of which nothing stays; and nothing beside.
//!
//! The agent runs on the test's thread, where allocations are counted; the runtime has a thread of its own.

#![allow(missing_docs, clippy::expect_used, clippy::unwrap_used)]

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use crate::common::agent::{Home, endpoint, manifest};
use crate::common::fake::Fake;
use allocation_counter::AllocationInfo;
use smolet::clock::VirtualClock;
use smolet::config::{Config, Flags};
use smolet::cri::EventService;
use smolet::executor::Executor;
use smolet::model::Wall;
use smolet::node;

const PODS: u64 = 10;
/// The time between two looks at the whole runtime while events come, how many are counted, and the steps of the time.
const RELIST: Duration = Duration::from_mins(1);
const RELISTS: u32 = 240;
const STEP: Duration = Duration::from_secs(30);
/// Of one relist: what the calls themselves allocate, and what each pod's sandbox and container add.
const RELIST_MAX: u64 = 240;
const RELIST_MAX_PER_POD: u64 = 60;
/// What may be there after all relists and was not before.
const KEPT_BYTES_MAX: u64 = 4096;
/// How long anything may take in real time, on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_mins(1);
/// What the runtime may need of real time for an answer until virtual time goes on without it.
const LATE: Duration = Duration::from_millis(200);
/// Nobody woke the agent for so long in real time: it waits for virtual time alone.
const CALM: Duration = Duration::from_millis(5);

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// The agent's whole life, polled by hand.
struct Life<'a, F> {
    future: Pin<Box<F>>,
    fake: &'a Fake,
    woken: Arc<Flag>,
    spent: AllocationInfo,
}

impl<'a, F: Future> Life<'a, F> {
    fn new(future: F, fake: &'a Fake) -> Self {
        let woken = Arc::new(Flag(AtomicBool::new(true)));
        Self { future: Box::pin(future), fake, woken, spent: AllocationInfo::default() }
    }

    /// Time passes, and what that brings about. The clock gives memory back too: it holds on to the tasks whose calls
    /// had two minutes.
    fn pass(&mut self, clock: &VirtualClock, time: Duration) {
        self.spent += allocation_counter::measure(|| clock.advance(time));
        self.rest();
    }

    /// As [`Self::rest`], until nothing can be under way any more.
    fn rest_well(&mut self) {
        (0..50).for_each(|_| self.rest());
    }

    /// The runtime has read all calls and written its answers.
    fn is_answered(&self) -> bool {
        self.fake.is_idle() && !self.fake.state().is_active()
    }

    /// Polls until nobody has woken it for a while, and the runtime has nothing to answer.
    fn rest(&mut self) {
        let waker = Waker::from(self.woken.clone());
        let (begun, mut last) = (Instant::now(), Instant::now());
        while last.elapsed() < CALM || !self.is_answered() {
            assert!(begun.elapsed() < PATIENCE, "the agent does not come to rest");
            if !self.woken.0.swap(false, Ordering::SeqCst) {
                std::thread::sleep(Duration::from_micros(200));
                continue;
            }
            let future = &mut self.future;
            self.spent += allocation_counter::measure(|| {
                let ended = matches!(future.as_mut().poll(&mut Context::from_waker(&waker)), Poll::Ready(_));
                assert!(!ended, "the agent ended");
            });
            last = Instant::now();
        }
    }
}

fn config(home: &Home, fake: &Fake) -> Config {
    let config = home.config(&Flags { runtime_endpoint: Some(endpoint(fake)), ..home.flags() });
    // No look at the manifests falls into the test.
    Config { file_check_frequency: Duration::from_hours(1), ..config }
}

#[test]
fn an_idle_agent_allocates_for_its_relists_alone() {
    let clock = VirtualClock::new(Wall(1_770_000_000_000_000_000));
    let fake = Fake::start(clock.clone());
    fake.add_image("busybox:1");
    fake.tell_events(EventService::Cri);
    // As every runtime: a log that is not there is looked for again and again, on a thread.
    fake.state().writes_logs = true;
    let home = Home::before_an_agent();
    for n in 0..PODS {
        let name = format!("p{n}");
        home.put(&name, manifest(&name, "containers: [{name: app, image: 'busybox:1'}]"));
    }
    let (config, executor) = (config(&home, &fake), Rc::new(Executor::new()));
    let (_stop, stopped) = smol::channel::bounded(1);
    let agent = node::run_until(&config, false, &executor, Rc::new(clock.clone()), stopped);
    let mut life = Life::new(executor.run(agent), &fake);

    let begun = Instant::now();
    life.rest();
    while fake.state().running().len() < usize::try_from(PODS).unwrap() {
        assert!(begun.elapsed() < PATIENCE, "the pods do not run: {:?}", fake.actions());
        life.pass(&clock, Duration::from_secs(1));
    }
    // What follows the starts, and longer than any of its calls may take.
    for _ in 0..130 {
        life.pass(&clock, Duration::from_secs(1));
    }

    let relists = || u64::try_from(fake.state().relists).unwrap();
    life.rest_well();
    let (had, spent) = (relists(), life.spent);
    let mut passed = Duration::ZERO;
    for _ in 0..RELISTS {
        let (before, last, begun) = (relists(), passed, Instant::now());
        while relists() == before {
            assert!(begun.elapsed() < PATIENCE, "{} relists in {} s", before - had, passed.as_secs());
            life.pass(&clock, STEP);
            passed += STEP;
            // On a busy machine the runtime is asked, and answers, later than the agent comes to rest. While a call may be
            // under way, time stands still: it has two minutes.
            let due = Instant::now();
            while passed >= last + RELIST && relists() == before && due.elapsed() < LATE {
                life.rest();
            }
        }
    }
    life.rest_well();
    let relists = relists() - had;
    assert!(
        passed >= RELIST * (RELISTS - 1),
        "{relists} relists in {} s, more than one a minute",
        passed.as_secs()
    );
    let each = (life.spent.count_total - spent.count_total) / relists;
    // May be fewer than before.
    let kept = u64::try_from(life.spent.count_current - spent.count_current).unwrap_or(0);
    let kept_bytes = u64::try_from(life.spent.bytes_current - spent.bytes_current).unwrap_or(0);
    println!(
        "{relists} relists of {PODS} pods in {} min: {each} allocations each, {kept} of all kept, {kept_bytes} bytes",
        passed.as_secs() / 60
    );
    assert!(each <= RELIST_MAX + PODS * RELIST_MAX_PER_POD, "{each} allocations a relist");
    // A relist that the end falls into keeps something; one allocation of each is too much, and so is what grows.
    assert!(kept <= relists / 2 + 10, "{kept} allocations are kept after {relists} relists");
    assert!(kept_bytes <= KEPT_BYTES_MAX, "{kept_bytes} bytes are kept after {relists} relists");
}
