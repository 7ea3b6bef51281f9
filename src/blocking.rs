//! Work that blocks (directories, mounts, fsync) on a thread of its own, which ends with the work.
//!
//! Not the pool of the `blocking` crate: its threads stay once they were needed (1.7) and wake twice a second each, for
//! nothing, for as long as the agent lives.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smol::lock::{Mutex as AsyncMutex, Semaphore};

use crate::limits::BLOCKING_JOBS_MAX;
use crate::model::PodUid;
use crate::store::poison;

type Job = Box<dyn FnOnce() + Send>;

/// Turns for blocking work, at most `limits::BLOCKING_JOBS_MAX` at once.
#[derive(Debug)]
pub struct Blocking {
    turns: Arc<Semaphore>,
    /// One for each pod whose work is under way or waits; at most as many as pods in hand.
    pods: RefCell<BTreeMap<Box<str>, Arc<AsyncMutex<()>>>>,
    place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    OwnThread,
    Here,
}

impl Blocking {
    /// Each on a thread of its own.
    pub fn on_threads() -> Self {
        Self::at(Place::OwnThread)
    }

    /// On the caller's own thread, between two awaits: jobs end in the order they began, so that a simulation does
    /// the same each time.
    pub fn on_this_thread() -> Self {
        Self::at(Place::Here)
    }

    fn at(place: Place) -> Self {
        Self { turns: Arc::new(Semaphore::new(BLOCKING_JOBS_MAX)), pods: RefCell::default(), place }
    }

    /// As [`Blocking::run`], and after all other work for the pod: work whose task was cancelled goes on, and must not make
    /// anew what the pod's removal takes away.
    pub async fn run_for<T: Send + 'static>(
        &self,
        pod: &PodUid,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let turn = self.pods.borrow_mut().entry(pod.as_str().into()).or_default().clone();
        let mine = turn.lock_arc().await;
        let done = self.run(move || {
            let _mine = mine;
            work()
        });
        let done = done.await;
        drop(turn);
        self.pods.borrow_mut().retain(|_, turn| Arc::strong_count(turn) > 1);
        done
    }

    /// Waits for a turn and for the work. Dropped after the work began, the work goes on to its end, and keeps its turn.
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let turn = self.turns.acquire_arc().await;
        let mark = poison::handled();
        match self.place {
            Place::OwnThread => {
                // A panic on that thread is put down to the pod too.
                let work = move || {
                    let (_handling, _turn) = (poison::handling(mark), turn);
                    work()
                };
                unblock(work).await
            }
            Place::Here => {
                smol::future::yield_now().await;
                let done = work();
                smol::future::yield_now().await;
                done
            }
        }
    }
}

/// Runs `work` on a thread of its own. The caller bounds how many run at once (`Blocking`; a source has one look). Dropping the
/// future does not end the work. Where no thread can be started, the work is done here and now: it has to be done.
pub(crate) async fn unblock<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let done = Arc::new(Mutex::new(None));
    let theirs = done.clone();
    // Only this knows the type: the rest is compiled once for all work.
    start(Box::new(move || *lock(&theirs) = Some(work()))).await;
    let done = lock(&done).take();
    match done {
        Some(done) => done,
        // Where panics do not end the process (tests), this one goes on.
        None => std::panic::resume_unwind(Box::new("the work on a thread of its own panicked")),
    }
}

/// Waits until the job has ended, or panicked.
async fn start(job: Job) {
    let (ends, ended) = smol::channel::bounded::<Infallible>(1);
    let job = Arc::new(Mutex::new(Some(job)));
    let theirs = job.clone();
    let run = |job: &Mutex<Option<Job>>| {
        let job = lock(job).take();
        if let Some(job) = job {
            job();
        }
    };
    let there = move || {
        let _ends = ends;
        run(&theirs);
    };
    if let Err(error) = std::thread::Builder::new().name("blocking".to_owned()).spawn(there) {
        log::warn!("no thread can be started ({error}): the agent stands still for its work on the disk");
        run(&job);
    }
    // Nothing ever comes; the sender goes with the thread.
    let _ = ended.recv().await;
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a cancelled task began is over before the pod's next work begins; others' work waits for nothing.
    #[test]
    fn the_work_for_one_pod_is_done_one_after_the_other() {
        let blocking = Blocking::on_threads();
        let (pod, other) = (PodUid::from("u"), PodUid::from("v"));
        let order = Arc::new(Mutex::new(Vec::new()));
        let (go, wait) = std::sync::mpsc::channel::<()>();
        smol::block_on(async {
            let first = order.clone();
            let begun = blocking.run_for(&pod, move || {
                lock(&first).push("begun");
                let _ = wait.recv();
                lock(&first).push("over");
            });
            let cancelled = async {
                while lock(&order).is_empty() {
                    smol::future::yield_now().await;
                }
            };
            smol::future::or(begun, cancelled).await;
            let (of_other, next) = (order.clone(), order.clone());
            blocking.run_for(&other, move || lock(&of_other).push("another's")).await;
            go.send(()).unwrap();
            blocking.run_for(&pod, move || lock(&next).push("next")).await;
        });
        assert_eq!(*lock(&order), ["begun", "another's", "over", "next"]);
        assert!(blocking.pods.borrow().is_empty());
    }

    #[test]
    fn work_is_done_elsewhere_and_its_thread_ends() {
        let here = std::thread::current().id();
        let there = smol::block_on(unblock(|| std::thread::current().id()));
        assert_ne!(here, there);
    }

    #[test]
    fn a_panic_of_the_work_is_one_of_the_caller() {
        let caught = std::panic::catch_unwind(|| smol::block_on(unblock(|| -> u8 { panic!("on purpose") })));
        assert!(caught.is_err());
    }
}
