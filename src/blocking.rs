//! Blocking work (directories, mounts, fsync) on its own thread, which ends with the work, or with the operation that it is a part of
//! ([`Blocking::keep_thread`]).
//!
//! ```text
//!     run, run_for            smolet's own paths    few permits, no deadline
//!     run_outside, …_for      any other path        other permits, and a deadline: the path may never answer
//!     run_with_server         an NFS server         the same permits, and the deadline of its programs
//!     run_alone               one job at a time     no permit: it may hang without delaying other work
//! ```
//!
//! A path that is not smolet's own (a hostPath, the target of a link in a volume) may be on a server that is unreachable: then
//! the system call returns when the server is back, days later or never, and cannot be interrupted. Its thread is abandoned:
//! the caller gets an error, and until the call returns no further work starts on that file system, with that server, or in
//! that pod's volumes. On the agent's own file systems, which answer, each path is separate.
//!
//! Not the thread pool of the `blocking` crate (1.7): its threads stay once started, and wake up twice a second each for the
//! agent's lifetime.

mod threads;

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use smol::channel::Receiver;
use smol::lock::{Mutex as AsyncMutex, MutexGuardArc, Semaphore, SemaphoreGuardArc};

use crate::clock::SharedClock;
use crate::fair_semaphore::{FairPermit, FairSemaphore, PermitOwner};
use crate::limits::{
    BLOCKING_JOBS_MAX, IN_PODS_JOBS_MIN, OUTSIDE_OF_NODE_MAX, OUTSIDE_OF_PODS, OUTSIDE_PATIENCE,
};
use crate::model::SortedMap;
use crate::model::pod_dirs::{NFS, SUBPATHS};
use crate::model::{Mono, PodUid};
use crate::mounts;
use crate::poison::{self, Working};

pub use threads::KeptThread;
use threads::Threads;

type Job = Box<dyn FnOnce() + Send>;

/// Limits and locks of blocking work.
pub struct Blocking {
    /// Permits for smolet's own paths, `limits::BLOCKING_JOBS_MAX`.
    own_paths: Arc<Semaphore>,
    /// Permits for other paths of pods, divided by pod (`limits::OUTSIDE_OF_PODS`).
    of_pods: FairSemaphore,
    /// Permits for the content of pods' directories, `limits::IN_PODS_JOBS_MIN`; when they are used up, those of `of_pods`.
    in_pods: Arc<Semaphore>,
    /// Permits for other paths of the node, `limits::OUTSIDE_OF_NODE_MAX`.
    of_node: Arc<Semaphore>,
    /// A lock for each pod with running or waiting work; at most as many as managed pods.
    pods: RefCell<SortedMap<Box<str>, Arc<AsyncMutex<()>>>>,
    /// A state for each region with running or waiting work: one for each permit, and one for each managed pod.
    paths: RefCell<SortedMap<Region, Arc<RegionState>>>,
    /// The agent's directory.
    root: PathBuf,
    threads: Threads,
    place: RunOn,
}

/// Location of a path outside smolet's directories. A path that hangs makes its whole region unavailable.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Region {
    /// In that pod's directory: a container may have created or mounted anything there.
    InPod(PathBuf),
    /// On that device.
    On(Box<str>),
    /// On that server: when it is unreachable, so are all its exports.
    With(Box<str>),
    /// A mount or unmount with that server.
    Asked(Server, Box<str>),
    /// On a device of the agent's own, which answers; the target of a link may not.
    At(PathBuf),
}

/// Location of a path outside smolet's directories ([`Blocking::location_of`]).
#[derive(Clone, Debug)]
pub struct Location {
    path: PathBuf,
    lies: Region,
    /// The pod whose permits its work uses.
    pod: Option<PodUid>,
}

impl Region {
    /// Reads links on the agent's own devices, and accesses no others. I/O, blocking.
    fn of(path: &Path, root: &Path) -> Self {
        let at = || Self::At(path.to_owned());
        let Ok(mounts) = mounts::read() else { return at() };
        let Some(system) = mounts::mount_of(&mounts, Path::new("/"), &[]) else { return at() };
        let Some(own) = mounts::mount_of(&mounts, root, &[&system.device]) else { return at() };
        let own = [&*system.device, &*own.device];
        match mounts::mount_of(&mounts, path, &own).filter(|mount| !own.contains(&&*mount.device)) {
            None => at(),
            Some(mount) => mount
                .server()
                .map_or_else(|| Self::On(mount.device.clone()), |server| Self::With(server.into())),
        }
    }

    /// `None` also for volumes of a server, and for subpaths, which may be on one: pods that share a server must not wait for
    /// it with a thread each.
    fn in_pod(path: &Path, root: &Path) -> Option<Self> {
        let pods = root.join("pods");
        let mut below = path.strip_prefix(&pods).ok()?.iter();
        let (pod, part) = (below.next()?, below.next());
        let may_be_of_server = part.is_some_and(|part| part == SUBPATHS)
            || part.is_some_and(|part| part == "volumes") && below.next().is_some_and(|part| part == NFS);
        (!may_be_of_server).then(|| Self::InPod(pods.join(pod)))
    }
}

/// An operation with a server. The two do not wait for each other, nor for access to paths on it: a forced unmount ends
/// operations that hang, and mounting may take long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Server {
    /// Mount an export.
    Mount,
    /// Unmount one.
    Unmount,
}

enum RunOn {
    /// With the clock for deadlines.
    OwnThread(SharedClock),
    Here,
}

/// State of a region.
#[derive(Debug, Default)]
struct RegionState {
    turn: Arc<AsyncMutex<()>>,
    /// The start of the thread that works there, and its path.
    began: Mutex<Option<(Mono, PathBuf)>>,
}

impl RegionState {
    /// True when a thread has exceeded its deadline there.
    fn hangs(&self, now: Mono) -> bool {
        lock(&self.began).as_ref().is_some_and(|(began, _)| now.since(*began) >= OUTSIDE_PATIENCE)
    }
}

/// Held by a thread until its work ends.
struct ThreadGuard {
    at: Arc<RegionState>,
    _path: MutexGuardArc<()>,
    _permit: Permit,
}

/// A permit, released when it is dropped.
enum Permit {
    OfPod { _permit: FairPermit },
    OfNode { _permit: SemaphoreGuardArc },
}

impl Drop for ThreadGuard {
    fn drop(&mut self) {
        *lock(&self.at.began) = None;
    }
}

/// Why work was not done, or its result is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stuck {
    /// The path does not answer.
    Hangs(PathBuf),
    /// It was not accessed: paths that do not answer hold all permits.
    Full {
        /// The path.
        path: PathBuf,
        /// One of the paths that do not answer.
        other: PathBuf,
    },
    /// Earlier work for the pod is still running.
    PodBusy,
    /// No thread can be started.
    NoThread(PathBuf, String),
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MEND: &str = "restore the network mount or disk it is on, or unmount it";
        let seconds = OUTSIDE_PATIENCE.as_secs();
        match self {
            Self::Hangs(path) => write!(f, "{} does not answer within {seconds} s: {MEND}", path.display()),
            Self::Full { path, other } => {
                let (path, other) = (path.display(), other.display());
                write!(
                    f,
                    "{path} was not accessed: too many other paths do not answer, {other} among them: {MEND}"
                )
            }
            Self::PodBusy => write!(f, "an earlier operation for the pod has not finished after {seconds} s"),
            Self::NoThread(path, error) => {
                write!(
                    f,
                    "{} was not accessed: no thread can be started: {error}; end other processes",
                    path.display()
                )
            }
        }
    }
}

impl std::error::Error for Stuck {}

impl From<Stuck> for String {
    fn from(stuck: Stuck) -> Self {
        stuck.to_string()
    }
}

impl Blocking {
    /// On threads, with the clock for deadlines; `root` is the agent's directory (`--root-dir`).
    pub fn on_threads(clock: SharedClock, root: &Path) -> Self {
        Self::at(RunOn::OwnThread(clock), root)
    }

    /// On the caller's thread, between two awaits: jobs end in the order of their starts, so that a simulation is
    /// deterministic. Without deadlines.
    pub fn on_this_thread() -> Self {
        Self::at(RunOn::Here, Path::new(""))
    }

    fn at(place: RunOn, root: &Path) -> Self {
        Self {
            own_paths: Arc::new(Semaphore::new(BLOCKING_JOBS_MAX)),
            of_pods: FairSemaphore::new(OUTSIDE_OF_PODS),
            in_pods: Arc::new(Semaphore::new(IN_PODS_JOBS_MIN)),
            of_node: Arc::new(Semaphore::new(OUTSIDE_OF_NODE_MAX)),
            pods: RefCell::default(),
            paths: RefCell::default(),
            root: root.to_owned(),
            threads: Threads::default(),
            place,
        }
    }

    /// While it is held a thread without work waits for the next job: for operations that have many of them in a row.
    pub fn keep_thread(&self) -> KeptThread {
        self.threads.keep()
    }

    /// Waits for a permit and for the work. When it is dropped after the work began, the work continues to its end and keeps
    /// its permit.
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (job, done) = kept(work);
        self.own(job).await;
        done.take()
    }

    /// As [`Blocking::run`], after all other work for the pod: work of a cancelled task continues, and must not create again
    /// what the pod's removal deletes.
    ///
    /// # Errors
    /// The other work has not ended within `limits::OUTSIDE_PATIENCE`.
    pub async fn run_for<T: Send + 'static>(
        &self,
        pod: &PodUid,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Stuck> {
        let mine = self.pod_lock(pod).await?;
        let done = self.run(move || {
            let _mine = mine;
            work()
        });
        let done = done.await;
        self.forget_idle();
        Ok(done)
    }

    /// Work on a path outside smolet's directories, one job after the other. A path in a pod's directory uses the pod's
    /// permits, another one the node's.
    ///
    /// # Errors
    /// It has not ended within `limits::OUTSIDE_PATIENCE`, the wait for a permit included; running work continues, and no other
    /// work starts in its region until it ends.
    pub async fn run_outside<T: Send + 'static>(
        &self,
        path: &Path,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Stuck> {
        let (job, done) = kept(work);
        self.away(path, (None, None), job).await?;
        Ok(done.take())
    }

    /// As [`Blocking::run_outside`], with that pod's permits.
    ///
    /// # Errors
    /// The same.
    pub async fn run_outside_of<T: Send + 'static>(
        &self,
        pod: &PodUid,
        path: &Path,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Stuck> {
        let (job, done) = kept(work);
        self.away(path, (None, Some(pod)), job).await?;
        Ok(done.take())
    }

    /// As [`Blocking::run_outside_of`], on a log of the pod or its directory: the region is not determined, so that no other
    /// path waits for it, and it takes its own thread.
    ///
    /// # Errors
    /// The same.
    pub async fn run_on_logs<T: Send + 'static>(
        &self,
        pod: &PodUid,
        path: &Path,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Stuck> {
        let (job, done) = kept(work);
        self.away(path, (Some(Region::At(path.to_owned())), Some(pod)), job).await?;
        Ok(done.take())
    }

    /// The pod's directory in which a path is, if it is in one: paths there are waited for together, and may share a job.
    pub fn pod_dir_of(&self, path: &Path) -> Option<PathBuf> {
        match Region::in_pod(path, &self.root) {
            Some(Region::InPod(dir)) => Some(dir),
            _ => None,
        }
    }

    /// Determines the location of a path once, for work in several pieces. It uses that pod's permits, or the node's.
    pub async fn location_of(&self, path: &Path, pod: Option<&PodUid>) -> Location {
        let path = path.to_owned();
        let lies = match self.place {
            RunOn::Here => Region::At(path.clone()),
            RunOn::OwnThread(_) => self.lies(&path).await,
        };
        Location { path, lies, pod: pod.cloned() }
    }

    /// As [`Blocking::run_outside`], on a path with a known location.
    ///
    /// # Errors
    /// The same.
    pub async fn run_at<T: Send + 'static>(
        &self,
        location: &Location,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Stuck> {
        let (job, done) = kept(work);
        self.away(&location.path, (Some(location.lies.clone()), location.pod.as_ref()), job).await?;
        Ok(done.take())
    }

    /// As [`Blocking::run_outside`], after all other work for the pod.
    ///
    /// # Errors
    /// Those of both.
    pub async fn run_outside_for<T: Send + 'static>(
        &self,
        pod: &PodUid,
        path: &Path,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Stuck> {
        let mine = self.pod_lock(pod).await?;
        let done = self.run_outside_of(pod, path, move || {
            let _mine = mine;
            work()
        });
        let done = done.await;
        self.forget_idle();
        done
    }

    /// Work with that server, which has its own deadline; one job of its kind at a time, and after all other work for the pod.
    /// `path` is for messages.
    ///
    /// # Errors
    /// There is no permit within `limits::OUTSIDE_PATIENCE`, or the work does not end; as with [`Blocking::run_outside`].
    pub async fn run_with_server<T: Send + 'static>(
        &self,
        pod: &PodUid,
        (kind, server): (Server, &str),
        path: &Path,
        time: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Stuck> {
        let mine = self.pod_lock(pod).await?;
        let (job, done) = kept(move || {
            let _mine = mine;
            work()
        });
        let over = self.with((Region::Asked(kind, server.into()), pod), path, time, job).await;
        self.forget_idle();
        over.map(|()| done.take())
    }

    async fn with(
        &self,
        (lies, pod): (Region, &PodUid),
        path: &Path,
        time: Duration,
        job: Job,
    ) -> Result<(), Stuck> {
        let RunOn::OwnThread(clock) = &self.place else {
            here(job).await;
            return Ok(());
        };
        let for_permit = Cell::new(false);
        let entered = self.enter(path, (Some(lies), Some(pod)), clock, &for_permit);
        let stay = or_late(clock, OUTSIDE_PATIENCE, entered).await;
        let stay = stay.unwrap_or_else(|| Err(self.late(path, &for_permit)))?;
        let ended = self.begin(path, stay, job)?;
        or_late(clock, time, over(&ended)).await.ok_or_else(|| Stuck::Hangs(path.to_owned()))
    }

    /// Work without a permit: it may hang, and its caller runs at most one at a time.
    ///
    /// # Errors
    /// No thread can be started.
    pub async fn run_alone<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        match self.place {
            RunOn::OwnThread(_) => unblock_apart(work).await,
            RunOn::Here => Ok(self.run(work).await),
        }
    }

    /// Number of regions with running or hanging work, and the bytes of their names.
    pub fn held(&self) -> (usize, usize) {
        let paths = self.paths.borrow();
        let held =
            paths.values().filter_map(|at| lock(&at.began).as_ref().map(|(_, path)| path.as_os_str().len()));
        held.fold((0, 0), |(n, sum), bytes| (n + 1, sum + bytes))
    }

    async fn own(&self, job: Job) {
        let turn = self.own_paths.acquire_arc().await;
        match &self.place {
            RunOn::OwnThread(_) => start(&self.threads, marked(watched(job), turn)).await,
            RunOn::Here => here(job).await,
        }
    }

    async fn away(
        &self,
        path: &Path,
        known: (Option<Region>, Option<&PodUid>),
        job: Job,
    ) -> Result<(), Stuck> {
        let RunOn::OwnThread(clock) = &self.place else {
            here(job).await;
            return Ok(());
        };
        let for_permit = Cell::new(false);
        let done = or_late(clock, OUTSIDE_PATIENCE, async {
            let stay = self.enter(path, known, clock, &for_permit).await?;
            over(&self.begin(path, stay, job)?).await;
            Ok(())
        });
        let done = done.await.unwrap_or_else(|| Err(self.late(path, &for_permit)));
        self.forget_idle();
        done
    }

    fn late(&self, path: &Path, for_permit: &Cell<bool>) -> Stuck {
        if for_permit.get() { self.full(path) } else { Stuck::Hangs(path.to_owned()) }
    }

    /// Waits for the region of a path, which is determined unless it is known. `for_permit` is true while it waits for a
    /// thread.
    async fn enter(
        &self,
        path: &Path,
        (lies, pod): (Option<Region>, Option<&PodUid>),
        clock: &SharedClock,
        for_permit: &Cell<bool>,
    ) -> Result<ThreadGuard, Stuck> {
        let lies = match lies {
            Some(lies) => lies,
            None => self.lies(path).await,
        };
        let is_in_pod = matches!(lies, Region::InPod(_) | Region::Asked(Server::Unmount, _));
        let at = self.paths.borrow_mut().entry(lies).or_default().clone();
        // Known to hang: a waiting caller could delay others.
        if at.hangs(clock.now().mono) {
            return Err(Stuck::Hangs(path.to_owned()));
        }
        let of_path = at.turn.lock_arc().await;
        let kept = if is_in_pod { self.in_pods.try_acquire_arc() } else { None };
        let turn = if let Some(turn) = kept {
            Permit::OfNode { _permit: turn }
        } else {
            let mut wait = std::pin::pin!(self.permit_at(path, pod));
            match smol::future::poll_once(&mut wait).await {
                Some(turn) => turn?,
                None if self.all_hang(clock.now().mono) => return Err(self.full(path)),
                None => {
                    for_permit.set(true);
                    wait.await?
                }
            }
        };
        for_permit.set(false);
        *lock(&at.began) = Some((clock.now().mono, path.to_owned()));
        Ok(ThreadGuard { at, _path: of_path, _permit: turn })
    }

    /// A permit of that pod, or of the pod in whose directory the path is; else of the node.
    async fn permit_at(&self, path: &Path, pod: Option<&PodUid>) -> Result<Permit, Stuck> {
        let in_dir = || {
            let below = path.strip_prefix(self.root.join("pods")).ok()?;
            Some(PodUid::from(below.iter().next()?.to_str()?))
        };
        let owner = pod.map(PermitOwner::from).or_else(|| in_dir().as_ref().map(PermitOwner::from));
        match owner {
            Some(owner) => match self.of_pods.acquire(owner).await {
                Ok(turn) => Ok(Permit::OfPod { _permit: turn }),
                Err(_) => Err(self.full(path)),
            },
            None => Ok(Permit::OfNode { _permit: self.of_node.acquire_arc().await }),
        }
    }

    async fn lies(&self, path: &Path) -> Region {
        if let Some(lies) = Region::in_pod(path, &self.root) {
            return lies;
        }
        let (path, root) = (path.to_owned(), self.root.clone());
        self.run(move || Region::of(&path, &root)).await
    }

    /// Starts the work at a path; the returned channel closes when it ends. Always on a thread, because it may hang.
    fn begin(&self, path: &Path, stay: ThreadGuard, job: Job) -> Result<Receiver<Infallible>, Stuck> {
        let begun = self.threads.run(marked(job, stay));
        begun.map_err(|(error, _)| Stuck::NoThread(path.to_owned(), error.to_string()))
    }

    /// True when all threads are at paths that do not answer.
    fn all_hang(&self, now: Mono) -> bool {
        self.paths.borrow().values().all(|at| lock(&at.began).is_none() || at.hangs(now))
    }

    fn full(&self, path: &Path) -> Stuck {
        // The one that runs longest.
        let paths = self.paths.borrow();
        let held = paths.values().filter_map(|at| lock(&at.began).clone());
        let other = held.min().map(|(_, path)| path).unwrap_or_default();
        Stuck::Full { path: path.to_owned(), other }
    }

    async fn pod_lock(&self, pod: &PodUid) -> Result<MutexGuardArc<()>, Stuck> {
        let turn = self.pods.borrow_mut().entry(pod.as_str().into()).or_default().clone();
        match (turn.try_lock_arc(), &self.place) {
            (Some(mine), _) => Ok(mine),
            (None, RunOn::Here) => Ok(turn.lock_arc().await),
            (None, RunOn::OwnThread(clock)) => {
                or_late(clock, OUTSIDE_PATIENCE, turn.lock_arc()).await.ok_or(Stuck::PodBusy)
            }
        }
    }

    fn forget_idle(&self) {
        self.pods.borrow_mut().retain(|_, turn| Arc::strong_count(turn) > 1);
        self.paths.borrow_mut().retain(|_, at| Arc::strong_count(at) > 1);
    }
}

/// The output, unless it takes longer.
async fn or_late<T>(clock: &SharedClock, time: Duration, awaited: impl Future<Output = T>) -> Option<T> {
    let late = async {
        clock.sleep(time).await;
        None
    };
    smol::future::or(async { Some(awaited.await) }, late).await
}

/// The work as a job, and its future result.
fn kept<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> (Job, Done<T>) {
    let done = Arc::new(Mutex::new(None));
    let theirs = done.clone();
    (Box::new(move || *lock(&theirs) = Some(work())), Done(done))
}

struct Done<T>(Arc<Mutex<Option<T>>>);

impl<T> Done<T> {
    /// The result, after the job has ended.
    fn take(self) -> T {
        let done = lock(&self.0).take();
        match done {
            Some(done) => done,
            // When panics do not abort the process (tests), this one continues.
            None => std::panic::resume_unwind(Box::new("the work on a thread of its own panicked")),
        }
    }
}

/// The job with a guard that it holds until its end. A panic on its thread is attributed to the pod.
fn marked(job: Job, held: impl Send + 'static) -> Job {
    let mark = poison::handled();
    Box::new(move || {
        let (_handling, _held) = (poison::handling(mark), held);
        job();
    })
}

/// The job with a mark to which an abort is attributed: it must not hang, because the mark exists only while it runs.
fn watched(job: Job) -> Job {
    Box::new(move || {
        let _working = Working::on(poison::handled().as_ref());
        job();
    })
}

async fn here(job: Job) {
    smol::future::yield_now().await;
    job();
    smol::future::yield_now().await;
}

/// Runs `work` on its own thread. The caller bounds how many run at once (`Blocking`; a source has one scan). Dropping the
/// future does not end the work. When no thread can be started, the work runs on the caller's thread.
pub(crate) async fn unblock<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (job, done) = kept(work);
    start(&Threads::default(), job).await;
    done.take()
}

/// As [`unblock`], for work that may hang: it never runs on the caller's thread.
///
/// # Errors
/// No thread can be started.
pub(crate) async fn unblock_apart<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let (job, done) = kept(work);
    let ended = Threads::default().run(job);
    let why =
        |(error, _)| io::Error::other(format!("no thread can be started: {error}; end other processes"));
    over(&ended.map_err(why)?).await;
    Ok(done.take())
}

/// Waits until the job has ended or panicked.
async fn start(threads: &Threads, job: Job) {
    match threads.run(job) {
        Ok(ended) => over(&ended).await,
        Err((error, job)) => {
            log::warn!(
                "cannot start a thread: {error}; file operations block the loop until threads can be started again"
            );
            job();
        }
    }
}

async fn over(ended: &Receiver<Infallible>) {
    // No message is ever sent; the sender is dropped with the job.
    let _ = ended.recv().await;
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
