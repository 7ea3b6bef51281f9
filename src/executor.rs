//! The executor of the loop's thread: it gives each task a name, and measures how long each poll holds the thread.
//!
//! One thread does everything, so that what one poll takes all others wait for. A poll that takes `limits::POLL_TIME_MAX` or
//! longer is counted and, once a minute, logged with the task's name; the longest one is a metric. `tests/attack` holds it to
//! 250 ms whatever pods, servers and strangers do.

use std::cell::Cell;
use std::fs::File;
use std::future::Future;
use std::os::unix::fs::FileExt as _;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use smol::{LocalExecutor, Task};

use crate::limits::{LOOP_TURN_TIME, POLL_LOG_PERIOD, POLL_TIME_MAX, POLLS_PER_TURN_MAX};

/// The name of what is no task but `main`.
const LOOP: &str = "loop";

/// Runs tasks on one thread.
#[derive(Debug, Default)]
pub struct Executor {
    tasks: LocalExecutor<'static>,
    polls: Rc<Polls>,
}

impl Executor {
    /// One without tasks.
    pub fn new() -> Self {
        Self::default()
    }

    /// A further task. The name is for the log and `/metrics`.
    pub fn spawn<T: 'static>(&self, name: &'static str, task: impl Future<Output = T> + 'static) -> Task<T> {
        // Behind a pointer: the executor's own code is compiled once for each kind of result, and not for each task.
        let task: Pin<Box<dyn Future<Output = T>>> = Box::pin(task);
        self.tasks.spawn(Measured { name, polls: self.polls.clone(), task })
    }

    /// Runs the tasks until `main` ends. After `limits::POLLS_PER_TURN_MAX` polls of tasks it is `main`'s turn again, and that of
    /// the timers and sockets that woke meanwhile.
    pub async fn run<T>(&self, main: impl Future<Output = T>) -> T {
        let main = Measured { name: LOOP, polls: self.polls.clone(), task: Box::pin(main) };
        let others = async {
            loop {
                for _ in 0..POLLS_PER_TURN_MAX {
                    self.tasks.tick().await;
                }
                smol::future::yield_now().await;
            }
        };
        smol::future::or(main, others).await
    }

    /// Polls one task that is ready; false when there is none.
    pub fn try_tick(&self) -> bool {
        self.tasks.try_tick()
    }

    /// What the polls took.
    pub fn polls(&self) -> &Rc<Polls> {
        &self.polls
    }
}

/// How long polls held the thread. Time in which the thread waited for a processor is none of theirs, as far as the kernel tells it.
#[derive(Debug)]
pub struct Polls {
    /// What the kernel tells of the thread that this was made on.
    schedstat: Option<File>,
    /// How long the thread had waited for a processor when the loop's own poll began.
    waited: Cell<Duration>,
    /// What the loop is at, where its own poll is measured.
    at: Cell<&'static str>,
    /// When the loop's own poll began.
    began: Cell<Option<Instant>>,
    longest: Cell<(Duration, &'static str)>,
    slow: Cell<u64>,
    logged: Cell<Option<Instant>>,
}

impl Default for Polls {
    fn default() -> Self {
        Self {
            schedstat: File::open("/proc/thread-self/schedstat").ok(),
            waited: Cell::default(),
            at: Cell::default(),
            began: Cell::default(),
            longest: Cell::default(),
            slow: Cell::default(),
            logged: Cell::default(),
        }
    }
}

impl Polls {
    /// The loop begins this now.
    pub fn at(&self, what: &'static str) {
        self.at.set(what);
    }

    /// Ends the loop's poll when it has lasted for `limits::LOOP_TURN_TIME`: events that wait one behind the other would keep the tasks
    /// from theirs.
    pub async fn give_way(&self) {
        if self.began.get().is_some_and(|began| began.elapsed() >= LOOP_TURN_TIME) {
            smol::future::yield_now().await;
        }
    }

    /// The longest poll so far, and whose it was.
    pub fn longest(&self) -> (Duration, &'static str) {
        self.longest.get()
    }

    /// How many took `limits::POLL_TIME_MAX` or longer.
    pub fn slow(&self) -> u64 {
        self.slow.get()
    }

    fn loop_begins(&self, now: Instant) {
        self.began.set(Some(now));
        self.waited.set(self.waits());
    }

    /// How long the thread has waited for a processor so far (`run_delay`): of what takes long on a busy machine that is a part.
    fn waits(&self) -> Duration {
        let mut text = [0; 64];
        let read = self.schedstat.as_ref().and_then(|file| file.read_at(&mut text, 0).ok());
        let text = std::str::from_utf8(&text[..read.unwrap_or_default()]).unwrap_or_default();
        let nanos = text.split_whitespace().nth(1).and_then(|nanos| nanos.parse().ok());
        Duration::from_nanos(nanos.unwrap_or_default())
    }

    fn note(&self, name: &'static str, began: Instant) {
        let (took, longest) = (began.elapsed(), self.longest.get().0);
        let counts = |took: Duration| took > longest || took >= POLL_TIME_MAX;
        if !counts(took) {
            return;
        }
        let took = took.saturating_sub(self.waits().saturating_sub(self.waited.get()));
        if !counts(took) {
            return;
        }
        // The loop's own poll is known by what it is at.
        let name = match self.at.get() {
            at if name == LOOP && !at.is_empty() => at,
            _ => name,
        };
        if took > longest {
            self.longest.set((took, name));
        }
        if took >= POLL_TIME_MAX {
            self.slow.set(self.slow.get().saturating_add(1));
            let is_due = |logged: Instant| logged.elapsed() >= POLL_LOG_PERIOD;
            if self.logged.get().is_none_or(is_due) {
                self.logged.set(Some(Instant::now()));
                log::warn!("task {name} blocked the loop for {} ms", took.as_millis());
            }
        }
    }
}

/// A task whose polls are measured.
struct Measured<F> {
    name: &'static str,
    polls: Rc<Polls>,
    task: F,
}

impl<F: Future + Unpin> Future for Measured<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let began = Instant::now();
        if self.name == LOOP {
            self.polls.loop_begins(began);
        }
        let polled = Pin::new(&mut self.task).poll(cx);
        self.polls.note(self.name, began);
        polled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_poll_that_holds_the_thread_is_counted_and_named() {
        let executor = Executor::new();
        executor.spawn("quick", async {}).detach();
        let slow = executor.spawn("slow", async {
            smol::future::yield_now().await;
            // On a busy machine others may be slow too, but not so slow.
            std::thread::sleep(10 * POLL_TIME_MAX);
        });
        let longest = || executor.polls().longest();
        smol::block_on(executor.run(slow));
        assert!(executor.polls().slow() >= 1);
        assert_eq!(longest().1, "slow");
        let before = executor.polls().slow();
        let main = async {
            executor.polls().at("a source's update");
            std::thread::sleep(longest().0 + Duration::from_millis(1));
        };
        smol::block_on(executor.run(main));
        assert!(executor.polls().slow() > before);
        assert_eq!(longest().1, "a source's update");
    }

    /// More threads that compute than there are processors: none of their time is the poll's. What a virtual machine is kept from
    /// running nobody tells, so that it is tried more than once; and an emulator's own waits are none for a processor.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn waits_for_a_processor_are_no_polls() {
        use std::sync::Arc;
        use std::sync::atomic::{AtomicBool, Ordering};

        let (threads, over) =
            (8 * std::thread::available_parallelism().map_or(1, usize::from), Arc::default());
        let computes =
            |over: Arc<AtomicBool>| std::thread::spawn(move || while !over.load(Ordering::Relaxed) {});
        let busy: Vec<_> = (0..threads).map(|_| computes(Arc::clone(&over))).collect();
        let spent = || {
            let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            Duration::try_from(time).unwrap_or_default()
        };
        let mut seen = Vec::new();
        for _ in 0..20 {
            let executor = Executor::new();
            let begun = Instant::now();
            smol::block_on(executor.run(async {
                let until = spent() + POLL_TIME_MAX / 2;
                while spent() < until {}
            }));
            let (longest, slow) = (executor.polls().longest().0, executor.polls().slow());
            seen.push((begun.elapsed(), longest, slow));
            if begun.elapsed() > 2 * POLL_TIME_MAX && longest >= POLL_TIME_MAX / 2 && slow == 0 {
                break;
            }
        }
        over.store(true, Ordering::Relaxed);
        for thread in busy {
            thread.join().expect("it only computes");
        }
        assert!(
            seen.last().is_some_and(|(took, _, slow)| *took > 2 * POLL_TIME_MAX && *slow == 0),
            "{seen:?}"
        );
    }

    /// Tasks that are always ready leave the others, the timers and `main` their turns.
    #[test]
    fn tasks_that_never_wait_hold_up_nobody() {
        let executor = Executor::new();
        let count = Rc::new(Cell::new(0_u64));
        for _ in 0..4 {
            let count = count.clone();
            let busy = async move {
                loop {
                    count.set(count.get() + 1);
                    smol::future::yield_now().await;
                }
            };
            executor.spawn("busy", busy).detach();
        }
        let timer = executor.spawn("timer", async {
            async_io::Timer::after(Duration::from_millis(1)).await;
        });
        let main = async {
            let before = count.get();
            smol::future::yield_now().await;
            let between = count.get() - before;
            timer.await;
            between
        };
        let between = smol::block_on(executor.run(main));
        assert!((1..=POLLS_PER_TURN_MAX as u64).contains(&between), "{between}");
    }
}
