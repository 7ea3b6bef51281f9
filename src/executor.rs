//! The executor of the loop's thread: each task has a name, and the duration of each poll is measured.
//!
//! One thread runs all tasks, so a long poll delays all others. A poll that takes `limits::POLL_TIME_MAX` or longer is counted
//! and, once a day or when it took much longer, logged with the task's name; the longest one is a metric. `tests/attack`
//! requires less than 250 ms for any input from pods, servers and unauthenticated peers.

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

/// The name of `main`, which is not a task.
const LOOP: &str = "loop";

/// Runs tasks on one thread.
#[derive(Debug, Default)]
pub struct Executor {
    tasks: LocalExecutor<'static>,
    polls: Rc<Polls>,
}

impl Executor {
    /// An executor without tasks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Spawns a task. The name is for the log and `/metrics`.
    pub fn spawn<T: 'static>(&self, name: &'static str, task: impl Future<Output = T> + 'static) -> Task<T> {
        // Boxed: the executor's code is compiled once for each type of result, not for each task.
        let task: Pin<Box<dyn Future<Output = T>>> = Box::pin(task);
        self.tasks.spawn(Measured { name, polls: self.polls.clone(), task })
    }

    /// Runs the tasks until `main` ends. After `limits::POLLS_PER_TURN_MAX` polls of tasks, `main`, timers and sockets are
    /// polled.
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

    /// Polls one ready task; false when there is none.
    pub fn try_tick(&self) -> bool {
        self.tasks.try_tick()
    }

    /// Durations of polls.
    pub fn polls(&self) -> &Rc<Polls> {
        &self.polls
    }
}

/// Durations of polls, without the time in which the thread waited for a processor, if the kernel reports it.
#[derive(Debug)]
pub struct Polls {
    /// The kernel's scheduling statistics of the thread that created this.
    schedstat: Option<File>,
    /// Time that the thread had waited for a processor when the loop's poll began.
    waited: Cell<Duration>,
    /// What the loop is processing, while its own poll is measured.
    at: Cell<&'static str>,
    /// When the loop's own poll began.
    began: Cell<Option<Instant>>,
    longest: Cell<(Duration, &'static str)>,
    slow: Cell<u64>,
    /// When a poll was logged last, and how long it took.
    logged: Cell<Option<(Instant, Duration)>>,
}

/// A slow poll is logged when none has been for `limits::POLL_LOG_PERIOD`, or when it took twice as long as the `last` one
/// logged, given with its age. On a slow board an idle agent has many, and each line is some 80 KiB of
/// journal on its flash.
fn is_logged(took: Duration, last: Option<(Duration, Duration)>) -> bool {
    last.is_none_or(|(age, logged)| age >= POLL_LOG_PERIOD || took >= 2 * logged)
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
    /// Sets what the loop is processing.
    pub fn at(&self, what: &'static str) {
        self.at.set(what);
    }

    /// Yields when the loop's poll has lasted for `limits::LOOP_TURN_TIME`: a queue of events would delay the tasks.
    pub async fn give_way(&self) {
        if self.began.get().is_some_and(|began| began.elapsed() >= LOOP_TURN_TIME) {
            smol::future::yield_now().await;
        }
    }

    /// The longest poll so far, and its task.
    pub fn longest(&self) -> (Duration, &'static str) {
        self.longest.get()
    }

    /// Number of polls that took `limits::POLL_TIME_MAX` or longer.
    pub fn slow(&self) -> u64 {
        self.slow.get()
    }

    fn loop_begins(&self, now: Instant) {
        self.began.set(Some(now));
        self.waited.set(self.waits());
    }

    /// Time that the thread has waited for a processor so far (`run_delay`), which is part of the elapsed time on a busy
    /// machine.
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
        // The loop's poll is named by what it is processing.
        let name = match self.at.get() {
            at if name == LOOP && !at.is_empty() => at,
            _ => name,
        };
        if took > longest {
            self.longest.set((took, name));
        }
        if took >= POLL_TIME_MAX {
            self.slow.set(self.slow.get().saturating_add(1));
            if is_logged(took, self.logged.get().map(|(at, logged)| (at.elapsed(), logged))) {
                self.logged.set(Some((Instant::now(), took)));
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
    fn a_long_poll_is_counted_and_named() {
        let executor = Executor::new();
        executor.spawn("quick", async {}).detach();
        let slow = executor.spawn("slow", async {
            smol::future::yield_now().await;
            // On a busy machine other polls may be slow, but less.
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

    /// With more computing threads than processors, their time does not count as the poll's. The time that a hypervisor takes
    /// is not reported, so it is tried more than once; neither are an emulator's waits.
    #[test]
    #[cfg(target_arch = "x86_64")]
    fn waits_for_a_processor_do_not_count() {
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

    /// Tasks that are always ready do not starve others, timers and `main`.
    #[test]
    fn tasks_that_are_always_ready_starve_no_others() {
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
