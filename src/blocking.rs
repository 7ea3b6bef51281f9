//! Work that blocks (directories, mounts, fsync) on a thread of its own, which ends with the work.
//!
//! ```text
//!     run, run_for            smolet's own paths    few turns, no deadline: it is done when it is done
//!     run_outside, …_for      any other path        turns of their own, and a deadline: the path may never answer
//!     run_with_server         an NFS server         the same turns, and the deadline that its programs have
//!     run_alone               one job at a time     no turn: it may hang, and holds up nothing but itself
//! ```
//!
//! A path that is not smolet's own (a hostPath, what a link in a volume leads to) may lie on a server that is away: then
//! the system call ends when that is back, days later or never, and nothing can end it before. So its thread is left to
//! itself: whoever waited gets an error, and until it ends nobody begins anything more on that file system, with that server, or in
//! that pod's volumes. On the file systems of the agent itself, which answer, each path is apart.
//!
//! Not the pool of the `blocking` crate: its threads stay once they were needed (1.7) and wake twice a second each, for
//! nothing, for as long as the agent lives.

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
use crate::limits::{
    BLOCKING_JOBS_MAX, IN_PODS_JOBS_MIN, OUTSIDE_OF_NODE_MAX, OUTSIDE_OF_PODS, OUTSIDE_PATIENCE,
};
use crate::model::SortedMap;
use crate::model::pod_dirs::{NFS, SUBPATHS};
use crate::model::{Mono, PodUid};
use crate::mounts;
use crate::poison::{self, Working};
use crate::turns::{Party, Turn, Turns};

type Job = Box<dyn FnOnce() + Send>;

/// Turns for blocking work.
pub struct Blocking {
    /// Of work on smolet's own paths, at most `limits::BLOCKING_JOBS_MAX` at once.
    turns: Arc<Semaphore>,
    /// Of work on other paths for pods, divided by pod (`limits::OUTSIDE_OF_PODS`).
    of_pods: Turns,
    /// Of work on what is in pods' directories, `limits::IN_PODS_JOBS_MIN` at once; then those of `of_pods`.
    in_pods: Arc<Semaphore>,
    /// Of work on other paths that is for no pod, `limits::OUTSIDE_OF_NODE_MAX` at once.
    of_node: Arc<Semaphore>,
    /// One for each pod whose work is under way or waits; at most as many as pods in hand.
    pods: RefCell<SortedMap<Box<str>, Arc<AsyncMutex<()>>>>,
    /// One for each place at which work is under way or waits: for each turn one, and one for each pod in hand.
    paths: RefCell<SortedMap<Region, Arc<RegionState>>>,
    /// Where the agent keeps what is its own.
    root: PathBuf,
    place: RunOn,
}

/// Where a path of others lies. What does not answer takes the whole place with it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Region {
    /// Below that pod's directory: a container may have put or mounted anything there.
    InPod(PathBuf),
    /// On that device.
    On(Box<str>),
    /// With that server: all it exports is away with it.
    With(Box<str>),
    /// A program that asks that server.
    Asked(Server, Box<str>),
    /// On a device of the agent's own, which answers; a link in it may not.
    At(PathBuf),
}

/// Where a path of others lies ([`Blocking::location_of`]).
#[derive(Clone, Debug)]
pub struct Location {
    path: PathBuf,
    lies: Region,
    /// The pod whose turns its work takes.
    pod: Option<PodUid>,
}

impl Region {
    /// Reads links on the agent's own devices, and touches no others. I/O, blocking.
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

    /// `None` for a server's volume too, and for parts of volumes, which may be a server's: of the pods that have one there, not
    /// each is to wait for it with a thread of its own.
    fn in_pod(path: &Path, root: &Path) -> Option<Self> {
        let pods = root.join("pods");
        let mut below = path.strip_prefix(&pods).ok()?.iter();
        let (pod, part) = (below.next()?, below.next());
        let may_be_of_server = part.is_some_and(|part| part == SUBPATHS)
            || part.is_some_and(|part| part == "volumes") && below.next().is_some_and(|part| part == NFS);
        (!may_be_of_server).then(|| Self::InPod(pods.join(pod)))
    }
}

/// What is asked of a server. One does not wait for the other, nor for who looks at a path there: unmounting by force ends what
/// hangs, and that server's mounts may take long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Server {
    /// To mount what it exports.
    Mount,
    /// To unmount it.
    Unmount,
}

enum RunOn {
    /// With the clock of the deadlines.
    OwnThread(SharedClock),
    Here,
}

/// A place that is not smolet's own.
#[derive(Debug, Default)]
struct RegionState {
    turn: Arc<AsyncMutex<()>>,
    /// When the thread began that is at it, and its path.
    began: Mutex<Option<(Mono, PathBuf)>>,
}

impl RegionState {
    /// A thread is at it for so long that it is given up.
    fn hangs(&self, now: Mono) -> bool {
        lock(&self.began).as_ref().is_some_and(|(began, _)| now.since(*began) >= OUTSIDE_PATIENCE)
    }
}

/// What a thread at a path holds until its work ends, and the kernel lets go of it.
struct ThreadGuard {
    at: Arc<RegionState>,
    _path: MutexGuardArc<()>,
    _turn: Permit,
}

/// A turn, until it is dropped.
enum Permit {
    Shared { _turn: Turn },
    Kept { _turn: SemaphoreGuardArc },
}

impl Drop for ThreadGuard {
    fn drop(&mut self) {
        *lock(&self.at.began) = None;
    }
}

/// Why work was not done, or is not known to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stuck {
    /// The path does not answer.
    Hangs(PathBuf),
    /// It was not looked at: others, this one among them, hold all turns.
    Full {
        /// The path.
        path: PathBuf,
        /// One that does not answer.
        other: PathBuf,
    },
    /// Earlier work of the pod is still running.
    PodBusy,
    /// No thread can be started for it.
    NoThread(PathBuf, String),
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MEND: &str = "bring back what it lies on (a network mount, a disk?) or unmount it";
        let seconds = OUTSIDE_PATIENCE.as_secs();
        match self {
            Self::Hangs(path) => write!(f, "{} does not answer within {seconds} s: {MEND}", path.display()),
            Self::Full { path, other } => {
                let (path, other) = (path.display(), other.display());
                write!(
                    f,
                    "{path} was not looked at: too many others do not answer, {other} among them: {MEND}"
                )
            }
            Self::PodBusy => write!(f, "what was begun for the pod before is not over after {seconds} s"),
            Self::NoThread(path, error) => {
                write!(
                    f,
                    "{} was not looked at, no thread can be started: {error}; end other processes",
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
    /// Each on a thread of its own; the clock is that of the deadlines, `root` the agent's directory (`--root-dir`).
    pub fn on_threads(clock: SharedClock, root: &Path) -> Self {
        Self::at(RunOn::OwnThread(clock), root)
    }

    /// On the caller's own thread, between two awaits: jobs end in the order they began, so that a simulation does
    /// the same each time. Nothing has a deadline there.
    pub fn on_this_thread() -> Self {
        Self::at(RunOn::Here, Path::new(""))
    }

    fn at(place: RunOn, root: &Path) -> Self {
        Self {
            turns: Arc::new(Semaphore::new(BLOCKING_JOBS_MAX)),
            of_pods: Turns::new(OUTSIDE_OF_PODS),
            in_pods: Arc::new(Semaphore::new(IN_PODS_JOBS_MIN)),
            of_node: Arc::new(Semaphore::new(OUTSIDE_OF_NODE_MAX)),
            pods: RefCell::default(),
            paths: RefCell::default(),
            root: root.to_owned(),
            place,
        }
    }

    /// Waits for a turn and for the work. Dropped after the work began, the work goes on to its end, and keeps its turn.
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (job, done) = kept(work);
        self.own(job).await;
        done.take()
    }

    /// As [`Blocking::run`], and after all other work for the pod: work whose task was cancelled goes on, and must not make
    /// anew what the pod's removal takes away.
    ///
    /// # Errors
    /// That other work is not over within `limits::OUTSIDE_PATIENCE`.
    pub async fn run_for<T: Send + 'static>(
        &self,
        pod: &PodUid,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Stuck> {
        let mine = self.turn_of(pod).await?;
        let done = self.run(move || {
            let _mine = mine;
            work()
        });
        let done = done.await;
        self.forget_idle();
        Ok(done)
    }

    /// Work on a path that is not smolet's own, one job after the other. What lies in a pod's directory takes the pod's turns, the
    /// rest is the node's.
    ///
    /// # Errors
    /// It is not over within `limits::OUTSIDE_PATIENCE`, its turn included; what was begun goes on, and where the
    /// path lies nothing begins until it is over.
    pub async fn run_outside<T: Send + 'static>(
        &self,
        path: &Path,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Stuck> {
        let (job, done) = kept(work);
        self.away(path, (None, None), job).await?;
        Ok(done.take())
    }

    /// As [`Blocking::run_outside`], in that pod's turns.
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

    /// As [`Blocking::run_outside_of`], on a log of the pod's or its directory: where that lies is not looked for, so that no other
    /// path waits for it, and it takes a thread of its own.
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

    /// Where that path lies, for work there that comes in pieces: it is looked for once. It takes that pod's turns, or the node's.
    pub async fn location_of(&self, path: &Path, pod: Option<&PodUid>) -> Location {
        let path = path.to_owned();
        let lies = match self.place {
            RunOn::Here => Region::At(path.clone()),
            RunOn::OwnThread(_) => self.lies(&path).await,
        };
        Location { path, lies, pod: pod.cloned() }
    }

    /// As [`Blocking::run_outside`], on a path of which it is known where it lies.
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

    /// As [`Blocking::run_outside`], and after all other work for the pod.
    ///
    /// # Errors
    /// Those of both.
    pub async fn run_outside_for<T: Send + 'static>(
        &self,
        pod: &PodUid,
        path: &Path,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Stuck> {
        let mine = self.turn_of(pod).await?;
        let done = self.run_outside_of(pod, path, move || {
            let _mine = mine;
            work()
        });
        let done = done.await;
        self.forget_idle();
        done
    }

    /// Work with that server, which ends by itself in such a time, one job of its kind after the other, and after all other work
    /// for the pod; `path` is what is shown.
    ///
    /// # Errors
    /// Its turn does not come within `limits::OUTSIDE_PATIENCE`, or the work does not end; as with [`Blocking::run_outside`].
    pub async fn run_with_server<T: Send + 'static>(
        &self,
        pod: &PodUid,
        (kind, server): (Server, &str),
        path: &Path,
        time: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Stuck> {
        let mine = self.turn_of(pod).await?;
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
        let for_turn = Cell::new(false);
        let entered = self.enter(path, (Some(lies), Some(pod)), clock, &for_turn);
        let stay = or_late(clock, OUTSIDE_PATIENCE, entered).await;
        let ended = begin(path, stay.unwrap_or_else(|| Err(self.late(path, &for_turn)))?, job)?;
        or_late(clock, time, over(&ended)).await.ok_or_else(|| Stuck::Hangs(path.to_owned()))
    }

    /// Work that takes no turn: it may hang, and its caller has no more than one at a time.
    ///
    /// # Errors
    /// No thread can be started for it.
    pub async fn run_alone<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        match self.place {
            RunOn::OwnThread(_) => unblock_apart(work).await,
            RunOn::Here => Ok(self.run(work).await),
        }
    }

    /// Paths of others at which work is under way, those that hang among them, and the bytes of their names.
    pub fn held(&self) -> (usize, usize) {
        let paths = self.paths.borrow();
        let held =
            paths.values().filter_map(|at| lock(&at.began).as_ref().map(|(_, path)| path.as_os_str().len()));
        held.fold((0, 0), |(n, sum), bytes| (n + 1, sum + bytes))
    }

    async fn own(&self, job: Job) {
        let turn = self.turns.acquire_arc().await;
        match &self.place {
            RunOn::OwnThread(_) => start(marked(watched(job), turn)).await,
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
        let for_turn = Cell::new(false);
        let done = or_late(clock, OUTSIDE_PATIENCE, async {
            let stay = self.enter(path, known, clock, &for_turn).await?;
            over(&begin(path, stay, job)?).await;
            Ok(())
        });
        let done = done.await.unwrap_or_else(|| Err(self.late(path, &for_turn)));
        self.forget_idle();
        done
    }

    fn late(&self, path: &Path, for_turn: &Cell<bool>) -> Stuck {
        if for_turn.get() { self.full(path) } else { Stuck::Hangs(path.to_owned()) }
    }

    /// Waits for the turn of a path, whose place is looked for unless it is known. `for_turn` tells whether it waits for a thread.
    async fn enter(
        &self,
        path: &Path,
        (lies, pod): (Option<Region>, Option<&PodUid>),
        clock: &SharedClock,
        for_turn: &Cell<bool>,
    ) -> Result<ThreadGuard, Stuck> {
        let lies = match lies {
            Some(lies) => lies,
            None => self.lies(path).await,
        };
        let is_in_pod = matches!(lies, Region::InPod(_) | Region::Asked(Server::Unmount, _));
        let at = self.paths.borrow_mut().entry(lies).or_default().clone();
        // Known to hang: whoever waits here may hold up others meanwhile.
        if at.hangs(clock.now().mono) {
            return Err(Stuck::Hangs(path.to_owned()));
        }
        let of_path = at.turn.lock_arc().await;
        let kept = if is_in_pod { self.in_pods.try_acquire_arc() } else { None };
        let turn = if let Some(turn) = kept {
            Permit::Kept { _turn: turn }
        } else {
            let mut wait = std::pin::pin!(self.turn_at(path, pod));
            match smol::future::poll_once(&mut wait).await {
                Some(turn) => turn?,
                None if self.all_hang(clock.now().mono) => return Err(self.full(path)),
                None => {
                    for_turn.set(true);
                    wait.await?
                }
            }
        };
        for_turn.set(false);
        *lock(&at.began) = Some((clock.now().mono, path.to_owned()));
        Ok(ThreadGuard { at, _path: of_path, _turn: turn })
    }

    /// A turn of the pod's, or of the pod in whose directory the path lies; else of the node's.
    async fn turn_at(&self, path: &Path, pod: Option<&PodUid>) -> Result<Permit, Stuck> {
        let in_dir = || {
            let below = path.strip_prefix(self.root.join("pods")).ok()?;
            Some(PodUid::from(below.iter().next()?.to_str()?))
        };
        let party = pod.map(Party::from).or_else(|| in_dir().as_ref().map(Party::from));
        match party {
            Some(party) => match self.of_pods.take(party).await {
                Ok(turn) => Ok(Permit::Shared { _turn: turn }),
                Err(_) => Err(self.full(path)),
            },
            None => Ok(Permit::Kept { _turn: self.of_node.acquire_arc().await }),
        }
    }

    async fn lies(&self, path: &Path) -> Region {
        if let Some(lies) = Region::in_pod(path, &self.root) {
            return lies;
        }
        let (path, root) = (path.to_owned(), self.root.clone());
        self.run(move || Region::of(&path, &root)).await
    }

    /// Every thread is at a path that does not answer.
    fn all_hang(&self, now: Mono) -> bool {
        self.paths.borrow().values().all(|at| lock(&at.began).is_none() || at.hangs(now))
    }

    fn full(&self, path: &Path) -> Stuck {
        // The one that is there for the longest time.
        let paths = self.paths.borrow();
        let held = paths.values().filter_map(|at| lock(&at.began).clone());
        let other = held.min().map(|(_, path)| path).unwrap_or_default();
        Stuck::Full { path: path.to_owned(), other }
    }

    async fn turn_of(&self, pod: &PodUid) -> Result<MutexGuardArc<()>, Stuck> {
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

/// What comes in time.
async fn or_late<T>(clock: &SharedClock, time: Duration, awaited: impl Future<Output = T>) -> Option<T> {
    let late = async {
        clock.sleep(time).await;
        None
    };
    smol::future::or(async { Some(awaited.await) }, late).await
}

/// Starts the work at a path, whose end closes what is returned. Never here and now: the agent would hang with it.
fn begin(path: &Path, stay: ThreadGuard, job: Job) -> Result<Receiver<Infallible>, Stuck> {
    spawn(&Arc::new(Mutex::new(Some(marked(job, stay)))))
        .map_err(|error| Stuck::NoThread(path.to_owned(), error.to_string()))
}

/// The work as a job, and where its result is afterwards.
fn kept<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> (Job, Done<T>) {
    let done = Arc::new(Mutex::new(None));
    let theirs = done.clone();
    (Box::new(move || *lock(&theirs) = Some(work())), Done(done))
}

struct Done<T>(Arc<Mutex<Option<T>>>);

impl<T> Done<T> {
    /// Once the job has ended.
    fn take(self) -> T {
        let done = lock(&self.0).take();
        match done {
            Some(done) => done,
            // Where panics do not end the process (tests), this one goes on.
            None => std::panic::resume_unwind(Box::new("the work on a thread of its own panicked")),
        }
    }
}

/// The job with what it holds to its end. A panic on its thread is put down to the pod too.
fn marked(job: Job, held: impl Send + 'static) -> Job {
    let mark = poison::handled();
    Box::new(move || {
        let (_handling, _held) = (poison::handling(mark), held);
        job();
    })
}

/// The job, to which an abort is put down too: none of it may hang, so that it stands there only while it is worked on.
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

/// Runs `work` on a thread of its own. The caller bounds how many run at once (`Blocking`; a source has one look). Dropping the
/// future does not end the work. Where no thread can be started, the work is done here and now: it has to be done.
pub(crate) async fn unblock<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (job, done) = kept(work);
    start(job).await;
    done.take()
}

/// As [`unblock`], for work that may hang: it is never done here, where the agent would hang with it.
///
/// # Errors
/// No thread can be started for it.
pub(crate) async fn unblock_apart<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let (job, done) = kept(work);
    let ended = spawn(&Arc::new(Mutex::new(Some(job))));
    let why = |error: io::Error| {
        io::Error::other(format!("no thread can be started: {error}; end other processes"))
    };
    over(&ended.map_err(why)?).await;
    Ok(done.take())
}

/// Waits until the job has ended, or panicked.
async fn start(job: Job) {
    let job = Arc::new(Mutex::new(Some(job)));
    match spawn(&job) {
        Ok(ended) => over(&ended).await,
        Err(error) => {
            log::warn!(
                "cannot start a thread: {error}; file operations block the loop until threads can be started again"
            );
            run(&job);
        }
    }
}

/// Starts a thread for the job; what is returned closes with its end.
fn spawn(job: &Arc<Mutex<Option<Job>>>) -> io::Result<Receiver<Infallible>> {
    let (ends, ended) = smol::channel::bounded::<Infallible>(1);
    let theirs = job.clone();
    let there = move || {
        let _ends = ends;
        run(&theirs);
    };
    std::thread::Builder::new().name("blocking".to_owned()).spawn(there).map(|_| ended)
}

fn run(job: &Mutex<Option<Job>>) {
    let job = lock(job).take();
    if let Some(job) = job {
        job();
    }
}

async fn over(ended: &Receiver<Infallible>) {
    // Nothing ever comes; the sender goes with the thread.
    let _ = ended.recv().await;
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
