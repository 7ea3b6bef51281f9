//! The threads of blocking work: one for each job, which ends with it. While a pod is started a thread waits for the next job, of which
//! a start has a dozen in a row.

use std::convert::Infallible;
use std::ffi::CStr;
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use rustix::thread::set_name;
use smol::channel::{Receiver, Sender};

use super::{Job, lock};

/// The name of a thread, and its name while it waits for a job.
const BUSY: &CStr = c"blocking";
const IDLE: &CStr = c"idle";

/// All threads.
#[derive(Default)]
pub(super) struct Threads(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    /// Operations that have jobs in a row.
    keepers: usize,
    waiting: Waiting,
}

/// At most one thread waits.
#[derive(Default)]
enum Waiting {
    #[default]
    Nobody,
    Thread,
    /// It has a job, and has not woken up yet.
    Given(Work),
}

struct Work {
    job: Job,
    /// Dropped when the job has ended, or has panicked.
    ends: Sender<Infallible>,
}

/// A thread waits for jobs until this is dropped.
#[must_use]
pub struct KeptThread(Arc<Shared>);

impl Drop for KeptThread {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.keepers -= 1;
        if state.keepers == 0 {
            self.0.wake.notify_one();
        }
    }
}

impl Threads {
    pub(super) fn keep(&self) -> KeptThread {
        lock(&self.0.state).keepers += 1;
        KeptThread(self.0.clone())
    }

    /// Runs the job on a thread; the returned channel closes when it ends.
    ///
    /// # Errors
    /// No thread can be started; the job is returned.
    pub(super) fn run(&self, job: Job) -> Result<Receiver<Infallible>, (io::Error, Job)> {
        let (ends, ended) = smol::channel::bounded::<Infallible>(1);
        let work = Work { job, ends };
        {
            let mut state = lock(&self.0.state);
            if matches!(state.waiting, Waiting::Thread) {
                state.waiting = Waiting::Given(work);
                self.0.wake.notify_one();
                return Ok(ended);
            }
        }
        // Where no thread can be started it is still here.
        let (first, shared) = (Arc::new(Mutex::new(Some(work))), self.0.clone());
        let theirs = first.clone();
        let there = move || {
            let mut next = lock(&theirs).take();
            drop(theirs);
            while let Some(Work { job, ends }) = next {
                job();
                next = shared.next(ends);
            }
        };
        let spawned = std::thread::Builder::new().name(BUSY.to_string_lossy().into_owned()).spawn(there);
        match spawned {
            Ok(_) => Ok(ended),
            Err(error) => {
                let work = lock(&first).take();
                Err((error, work.map_or_else(|| Box::new(|| ()) as Job, |work| work.job)))
            }
        }
    }
}

impl Shared {
    /// Waits for a job after one that has ended; `None`: none is to come, or another thread waits.
    fn next(&self, ends: Sender<Infallible>) -> Option<Work> {
        let mut state = lock(&self.state);
        let is_kept = state.keepers > 0 && matches!(state.waiting, Waiting::Nobody);
        if is_kept {
            state.waiting = Waiting::Thread;
        }
        // Now, so that who waited for the end finds this thread waiting.
        drop(ends);
        if !is_kept {
            return None;
        }
        // Whoever looks at the process sees that this one is not at the disk.
        let _ = set_name(IDLE);
        while matches!(state.waiting, Waiting::Thread) && state.keepers > 0 {
            state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let _ = set_name(BUSY);
        match std::mem::take(&mut state.waiting) {
            Waiting::Given(work) => Some(work),
            Waiting::Nobody | Waiting::Thread => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread::{ThreadId, current};
    use std::time::{Duration, Instant};

    use super::*;

    /// Whether a thread of this process has that name.
    fn is_there(name: &str) -> bool {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let mut names =
            tasks.map(|task| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default());
        names.any(|of| of.trim() == name)
    }

    /// The thread of a job.
    fn thread_of(threads: &Threads) -> ThreadId {
        let (tell, told) = std::sync::mpsc::channel();
        let job: Job = Box::new(move || tell.send(current().id()).expect("it is awaited"));
        let Ok(ended) = threads.run(job) else { panic!("a thread can be started") };
        assert!(ended.recv_blocking().is_err(), "nothing is sent");
        told.recv().unwrap()
    }

    #[test]
    fn a_thread_is_kept_while_somebody_wants_it() {
        let threads = Threads::default();
        assert_ne!(thread_of(&threads), thread_of(&threads));
        let kept = [threads.keep(), threads.keep()];
        let first = thread_of(&threads);
        for _ in 0..100 {
            assert_eq!(thread_of(&threads), first);
        }
        // Nothing takes it for one that works, or waits for a disk.
        let patience = Instant::now() + Duration::from_mins(1);
        while !is_there("idle") {
            assert!(Instant::now() < patience, "its name is another one");
        }
        // While it works there are others, of which one may wait after it.
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let Ok(long) = threads.run(Box::new(move || assert!(wait.recv().is_err()))) else {
            panic!("it can be started")
        };
        assert_ne!(thread_of(&threads), first);
        drop(go);
        assert!(long.recv_blocking().is_err());
        let [one, other] = kept;
        drop(one);
        let last = thread_of(&threads);
        assert_eq!(thread_of(&threads), last);
        drop(other);
        // It wakes up, and ends.
        let patience = Instant::now() + Duration::from_mins(1);
        while !matches!(lock(&threads.0.state).waiting, Waiting::Nobody) {
            assert!(Instant::now() < patience, "it waits for ever");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_ne!(thread_of(&threads), last);
    }

    #[test]
    fn a_job_that_panics_ends_and_the_next_one_runs() {
        let threads = Threads::default();
        let _kept = threads.keep();
        let first = thread_of(&threads);
        let Ok(ended) = threads.run(Box::new(|| panic!("on purpose"))) else { panic!("it can be started") };
        assert!(ended.recv_blocking().is_err());
        assert_ne!(thread_of(&threads), first);
    }
}
