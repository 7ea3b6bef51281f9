//! Rotates the logs of running containers (kubelet `container_log_manager.go`): a task of its own, to which the loop reports
//! running containers.
//!
//! ```text
//! |     quiet ──(inotify: log written)──► check after (rest of the limit) / (5 MB/s) ──► grew? check again
//! |       ▲                                               │                                │
//! |       └──────────────── did not grow ◄────────────────┘   limit reached: rename, ReopenContainerLog ─► gzip
//! ```
//!
//! The kubelet checks every log every ten seconds, in which a log at 5 MB/s grows by five times the limit; here a quiet log
//! causes no wakeups. And when an agent ends in the middle of a rotation no log is lost: a missing log is reopened, and the
//! renamed one counts as rotated.

use std::cell::{Cell, RefCell};
use std::io::{self, ErrorKind};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use async_io::Async;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use smol::channel::{Receiver, Sender};

use super::files;
use super::memory::{self, Share};
use crate::blocking::Blocking;
use crate::clock::SharedClock;
use crate::cri::Runtime;
use crate::limits::{
    INOTIFY_BUFFER_BYTES, LOG_BYTES_PER_SECOND, LOG_CHECK_MIN, LOG_CHECK_WHOLE, LOG_FILES_RANGE,
    LOG_PATH_BYTES_MAX, LOG_RETRY, LOG_RETRY_MAX, LOGS_TO_COMPRESS_MAX, LOGS_WATCHED_MAX,
};
use crate::model::SortedMap;
use crate::model::{ContainerId, Mono, PodUid};

/// Settings of log rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// Size in bytes from which on a log is rotated.
    pub size_max: u64,
    /// Number of files per log, including the current one.
    pub files_max: usize,
    /// Longest interval between two checks of a growing log.
    pub check_max: Duration,
}

impl Rotation {
    /// PURE: that of a log with this share of memory, which has two files.
    fn of(self, share: Option<Share>) -> Self {
        let Some(share) = share else { return self };
        Self { size_max: self.size_max.min(share.size_max), files_max: LOG_FILES_RANGE.0, ..self }
    }
}

/// The log of a running container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningLog {
    /// The container.
    pub id: ContainerId,
    /// The path to which the runtime writes it.
    pub path: PathBuf,
}

/// Reports from the loop until the rotator takes them: only the latest of each pod, so at most one per pod in hand.
#[derive(Clone)]
pub struct LogReports {
    pods: Rc<RefCell<SortedMap<PodUid, Vec<RunningLog>>>>,
    wake: Sender<()>,
    /// Number of watched logs, and their bytes.
    held: Rc<Cell<(usize, usize)>>,
}

impl LogReports {
    /// With the channel that wakes the rotator. After that is dropped, nothing is kept.
    pub fn new() -> (Self, Receiver<()>) {
        let (wake, woken) = smol::channel::bounded(1);
        (Self { pods: Rc::default(), wake, held: Rc::default() }, woken)
    }

    /// Reports that exactly these containers of the pod run.
    pub fn report(&self, pod: &PodUid, logs: Vec<RunningLog>) {
        if !self.wake.is_closed() {
            self.pods.borrow_mut().insert(pod.clone(), logs);
            // Full: the rotator is woken already.
            let _ = self.wake.try_send(());
        }
    }

    /// Number of watched logs, and their bytes.
    pub fn held(&self) -> (usize, usize) {
        self.held.get()
    }

    fn take(&self) -> SortedMap<PodUid, Vec<RunningLog>> {
        self.pods.take()
    }
}

/// Rotates logs until the process ends.
pub struct Rotator<R> {
    rotation: Rotation,
    runtime: R,
    clock: SharedClock,
    blocking: Rc<Blocking>,
    reports: LogReports,
    woken: Receiver<()>,
    inotify: Option<Async<OwnedFd>>,
    /// At most `limits::LOGS_WATCHED_MAX`.
    logs: SortedMap<ContainerId, Log>,
    /// The log of each watch.
    watches: SortedMap<i32, ContainerId>,
    to_compress: Sender<PathBuf>,
    said_full: bool,
}

struct Log {
    pod: PodUid,
    path: PathBuf,
    /// At the last check.
    size: u64,
    checked: Mono,
    next: NextCheck,
    /// Consecutive failures.
    failures: u32,
    /// Its share of its pod's memory, at the last check; `None`: it is on the disk.
    share: Option<Share>,
    /// The log has told that the memory is short.
    told_short: bool,
}

/// The next check of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextCheck {
    /// At that time.
    At(Mono),
    /// When it is written to.
    Written(i32),
    /// Never: it is not a regular file, or not one of ours.
    Never,
}

impl<R: Runtime> Rotator<R> {
    /// With the task that compresses rotated logs.
    pub fn new(
        rotation: Rotation,
        runtime: R,
        clock: SharedClock,
        blocking: Rc<Blocking>,
        (reports, woken): (LogReports, Receiver<()>),
    ) -> (Self, impl Future<Output = ()>) {
        let (to_compress, asked) = smol::channel::bounded(LOGS_TO_COMPRESS_MAX);
        let compressing = compress(asked, blocking.clone());
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok();
        let inotify = inotify.and_then(|fd| Async::new_nonblocking(fd).ok());
        if inotify.is_none() {
            log::warn!(
                "container logs: inotify is unavailable (see fs.inotify.max_user_instances); checking every {} s",
                rotation.check_max.as_secs()
            );
        }
        let (logs, watches, said_full) = Default::default();
        let rotator = Self {
            rotation,
            runtime,
            clock,
            blocking,
            reports,
            woken,
            inotify,
            logs,
            watches,
            to_compress,
            said_full,
        };
        (rotator, compressing)
    }

    /// Runs for the process' lifetime.
    pub async fn run(mut self) {
        loop {
            self.take_reports();
            let now = self.clock.now().mono;
            let due = |log: &Log| matches!(log.next, NextCheck::At(at) if at <= now);
            let due: Vec<ContainerId> =
                self.logs.iter().filter(|(_, log)| due(log)).map(|(id, _)| id.clone()).collect();
            for id in due {
                self.check(&id).await;
            }
            self.wait().await;
        }
    }

    fn take_reports(&mut self) {
        let (now, reports) = (self.clock.now().mono, self.reports.take());
        if reports.is_empty() {
            return;
        }
        for (pod, running) in reports {
            let ended = |(id, log): (&ContainerId, &Log)| {
                (log.pod == pod && !running.iter().any(|other| other.id == *id)).then(|| id.clone())
            };
            let ended: Vec<ContainerId> = self.logs.iter().filter_map(ended).collect();
            for id in ended {
                self.forget(&id);
            }
            for RunningLog { id, path } in running {
                if self.logs.contains_key(&id) || path.as_os_str().len() > LOG_PATH_BYTES_MAX {
                    continue;
                }
                if self.logs.len() == LOGS_WATCHED_MAX {
                    if !std::mem::replace(&mut self.said_full, true) {
                        log::warn!(
                            "container logs: {LOGS_WATCHED_MAX} are watched; further ones are not rotated"
                        );
                    }
                    continue;
                }
                let log = Log {
                    pod: pod.clone(),
                    path,
                    size: 0,
                    checked: now,
                    next: NextCheck::At(now),
                    failures: 0,
                    share: None,
                    told_short: false,
                };
                self.logs.insert(id, log);
            }
        }
        // The ids are shared with the relist.
        let bytes = |log: &Log| size_of::<(ContainerId, Log)>() + log.path.as_os_str().len();
        self.reports.held.set((self.logs.len(), self.logs.values().map(bytes).sum()));
    }

    fn forget(&mut self, id: &ContainerId) {
        if let Some(Log { next: NextCheck::Written(watch), .. }) = self.logs.remove(id) {
            self.watches.remove(&watch);
            if let Some(inotify) = &self.inotify {
                // The file may be gone, and the watch with it.
                let _ = inotify::remove_watch(inotify.get_ref(), watch);
            }
        }
    }

    /// Waits until a log is due, a log is written to, or the loop reports containers.
    async fn wait(&mut self) {
        let due = |log: &Log| match log.next {
            NextCheck::At(at) => Some(at),
            NextCheck::Written(_) | NextCheck::Never => None,
        };
        let due = self.logs.values().filter_map(due).min();
        let timer = async {
            match due {
                Some(at) => self.clock.sleep_until(at).await,
                None => std::future::pending().await,
            }
            false
        };
        let reports = async {
            // The sender is in `reports`.
            let _ = self.woken.recv().await;
            false
        };
        let written = async {
            match &self.inotify {
                // A reactor error shows again when the events are read.
                Some(inotify) => drop(inotify.readable().await),
                None => std::future::pending().await,
            }
            true
        };
        if smol::future::or(reports, smol::future::or(timer, written)).await {
            let written = self.take_events();
            self.written_to(written).await;
        }
    }

    /// Drains inotify's events: the logs that were written to.
    fn take_events(&mut self) -> Vec<ContainerId> {
        let Some(inotify) = self.inotify.take() else { return Vec::new() };
        let mut written = Vec::new();
        let mut buffer = [MaybeUninit::uninit(); INOTIFY_BUFFER_BYTES];
        let mut reader = Reader::new(inotify.get_ref(), &mut buffer);
        let mut works = true;
        loop {
            match reader.next() {
                Ok(event) if event.events().contains(ReadFlags::QUEUE_OVERFLOW) => {
                    // Queue overflow: any of them may have been written to.
                    written.extend(std::mem::take(&mut self.watches).into_values());
                }
                // The watch is one-shot, which is reported too.
                Ok(event) => {
                    written.extend(self.watches.remove(&event.wd()));
                }
                Err(rustix::io::Errno::AGAIN) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    log::warn!(
                        "container logs: inotify: {error}; checking every {} s",
                        self.rotation.check_max.as_secs()
                    );
                    works = false;
                    break;
                }
            }
        }
        if works {
            self.inotify = Some(inotify);
        } else {
            written.extend(std::mem::take(&mut self.watches).into_values());
        }
        written
    }

    /// Schedules a check for when these logs may have reached the limit.
    async fn written_to(&mut self, ids: Vec<ContainerId>) {
        for id in ids {
            let Some(Log { pod, path, .. }) = self.logs.get(&id) else { continue };
            let size = self.at((pod, path), |path| files::size(path).ok().flatten()).await.ok().flatten();
            let now = self.clock.now().mono;
            let Some(log) = self.logs.get_mut(&id) else { continue };
            let wait = match size {
                Some(size) => {
                    log.size = size;
                    next_check(self.rotation, log.share, size, 0, Duration::ZERO)
                }
                // Renamed or removed by another program, or it does not answer: the check shows which.
                None => Duration::ZERO,
            };
            log.checked = now;
            log.next = NextCheck::At(now + wait);
        }
    }

    /// Log collectors have access to the log directories and may redirect a log's path: a log that does not answer is
    /// checked again later, and the others are checked meanwhile.
    async fn at<T: Send + 'static>(
        &self,
        (pod, path): (&PodUid, &Path),
        look: impl FnOnce(&Path) -> T + Send + 'static,
    ) -> io::Result<T> {
        let theirs = path.to_owned();
        let checked = self.blocking.run_on_logs(pod, path, move || look(&theirs)).await;
        checked.map_err(io::Error::other)
    }

    /// Checks a log: rotates it, watches it, or schedules the next check.
    async fn check(&mut self, id: &ContainerId) {
        let now = self.clock.now().mono;
        let Some(Log { pod, path, .. }) = self.logs.get(id) else { return };
        let seen = self.at((pod, path), |path| {
            let size = files::size(path);
            // Of a pod from another agent, with its logs elsewhere.
            let is_elsewhere = size.is_err() && !path.parent().is_some_and(Path::exists);
            let share = memory::share(path);
            let freed = share.filter(|share| share.is_short()).map(|_| memory::free(path));
            (size, is_elsewhere, share, freed)
        });
        let (size, is_elsewhere, share, freed) =
            seen.await.unwrap_or_else(|error| (Err(error), false, None, None));
        let Some(log) = self.logs.get_mut(id) else { return };
        log.share = share;
        if let Some(freed) = freed
            && !std::mem::replace(&mut log.told_short, true)
        {
            log::warn!(
                "{}: the memory for its pod's logs is short; rotated ones are removed, and lines may be lost; give the pod \
                 more (smolet.io/log-memory, --pod-logs-memory)",
                log.path.display()
            );
            if let Err(error) = freed {
                log::warn!("{}: no memory was freed: {error}", log.path.display());
            }
        }
        let size_max = self.rotation.of(share).size_max;
        match size {
            Ok(Some(size)) if size >= size_max => return self.rotate(id).await,
            Ok(Some(size)) => {
                log.failures = 0;
                let (grew, took) = (size.saturating_sub(log.size), now.since(log.checked));
                let known = !took.is_zero();
                log.size = size;
                log.checked = now;
                if known && grew > 0 {
                    log.next = NextCheck::At(now + next_check(self.rotation, share, size, grew, took));
                } else {
                    self.watch(id).await;
                }
            }
            Ok(None) => {
                log::info!("{}: not a regular file; ignored", log.path.display());
                log.next = NextCheck::Never;
            }
            Err(_) if is_elsewhere => {
                log::debug!("{}: not found; ignored", log.path.display());
                log.next = NextCheck::Never;
            }
            Err(error) if error.kind() == ErrorKind::NotFound => self.ask_for(id).await,
            Err(error) => self.failed(id, &error.to_string()),
        }
    }

    /// Waits for the log to be written to.
    async fn watch(&mut self, id: &ContainerId) {
        let Some(Log { pod, path, .. }) = self.logs.get(id) else { return };
        let inotify = self.inotify.as_ref().and_then(|fd| fd.get_ref().try_clone().ok());
        let watched = self.at((pod, path), move |path| {
            let once = WatchFlags::MODIFY | WatchFlags::ONESHOT | WatchFlags::DONT_FOLLOW;
            let watch = inotify.and_then(|fd| inotify::add_watch(&fd, path, once).ok());
            (watch, files::size(path).ok().flatten())
        });
        let (watch, size) = watched.await.unwrap_or_default();
        let now = self.clock.now().mono;
        let Some(log) = self.logs.get_mut(id) else { return };
        let Some(watch) = watch else {
            log.next = NextCheck::At(now + self.rotation.check_max);
            return;
        };
        log.next = NextCheck::Written(watch);
        let written = size != Some(log.size);
        self.watches.insert(watch, id.clone());
        if written {
            // Written before the watch existed. A further event would only schedule a check.
            self.written_to(vec![id.clone()]).await;
        }
    }

    /// Reopens a missing log: an agent was killed in the middle of a rotation, or the file was removed by hand.
    async fn ask_for(&mut self, id: &ContainerId) {
        let reopened = self.runtime.reopen_container_log(id).await;
        let Some(Log { pod, path, .. }) = self.logs.get(id) else { return };
        match reopened {
            Ok(()) if matches!(self.at((pod, path), files::size).await, Ok(Ok(_))) => {
                let now = self.clock.now().mono;
                if let Some(log) = self.logs.get_mut(id) {
                    log.size = 0;
                    log.checked = now;
                    log.next =
                        NextCheck::At(now + next_check(self.rotation, log.share, 0, 0, Duration::ZERO));
                }
            }
            Ok(()) => self.failed(id, "the runtime does not write it"),
            Err(error) => self.failed(id, &error.to_string()),
        }
    }

    /// `rotateLog`. Differs from the kubelet, which compresses first, while the log keeps growing.
    async fn rotate(&mut self, id: &ContainerId) {
        let Some(log) = self.logs.get(id) else { return };
        let (pod, path) = (log.pod.clone(), log.path.clone());
        let (files_max, wall) = (self.rotation.of(log.share).files_max, self.clock.now().wall);
        let rotated = self.at((&pod, &path), move |path| files::rotate(path, files_max, wall)).await;
        let rotated = match rotated.map_err(|error| error.to_string()).and_then(|rotated| rotated) {
            Ok(rotated) => rotated,
            Err(error) => return self.failed(id, &error),
        };
        if let Err(error) = self.runtime.reopen_container_log(id).await {
            let back = self.at((&pod, &path), move |path| files::put_back(&rotated, path)).await;
            if let Err(error) = back.and_then(|back| back) {
                log::debug!("{}: not renamed back: {error}", path.display());
            }
            return self.failed(id, &error.to_string());
        }
        log::debug!("{}: rotated", path.display());
        if let Some(share) = self.logs.get(id).and_then(|log| log.share) {
            let cut = self.at((&pod, &path), move |_| memory::cut(&rotated, share.size_max)).await;
            if let Err(error) = cut.and_then(|cut| cut) {
                log::debug!("{}: its rotated log was not cut: {error}", path.display());
            }
        }
        let now = self.clock.now().mono;
        let Some(log) = self.logs.get_mut(id) else { return };
        log.failures = 0;
        log.size = 0;
        log.checked = now;
        // A container that filled a log usually continues.
        log.next = NextCheck::At(now + next_check(self.rotation, log.share, 0, 0, Duration::ZERO));
        // In memory there is none but the newest, which is not compressed.
        if log.share.is_none() {
            // Full: compressed with the next rotation.
            let _ = self.to_compress.try_send(path);
        }
    }

    fn failed(&mut self, id: &ContainerId, why: &str) {
        let now = self.clock.now().mono;
        let Some(log) = self.logs.get_mut(id) else { return };
        // At the first failure the container may have exited a moment ago.
        if log.failures == 1 {
            log::warn!("{}: rotation failed: {why}; retrying", log.path.display());
        }
        let wait = LOG_RETRY.saturating_mul(1 << log.failures.min(10)).min(LOG_RETRY_MAX);
        log.failures = log.failures.saturating_add(1);
        log.checked = now;
        log.next = NextCheck::At(now + wait);
    }
}

/// How long a log of `size` bytes that grew by `grew` bytes within `took` can be left alone: until it reaches its limit, or has taken
/// half of the memory that is free, at that speed or at the assumed minimum. Shorter when that is long: the log may grow faster. PURE.
fn next_check(rotation: Rotation, share: Option<Share>, size: u64, grew: u64, took: Duration) -> Duration {
    let rotation = rotation.of(share);
    let free = share.map_or(u64::MAX, |share| share.free / 2);
    let left = u128::from(rotation.size_max.saturating_sub(size).min(free));
    let nanos = |bytes: u128, of: u128, within: u128| bytes.saturating_mul(within) / of.max(1);
    let reckoned = nanos(left, u128::from(LOG_BYTES_PER_SECOND), 1_000_000_000);
    let seen = if grew == 0 { reckoned } else { nanos(left, u128::from(grew), took.as_nanos()) };
    let full = Duration::from_nanos(u64::try_from(reckoned.min(seen)).unwrap_or(u64::MAX));
    let wait = if full > LOG_CHECK_WHOLE { full / 4 * 3 } else { full };
    wait.min(rotation.check_max).max(LOG_CHECK_MIN)
}

/// Compresses rotated logs, one at a time.
async fn compress(asked: Receiver<PathBuf>, blocking: Rc<Blocking>) {
    while let Ok(log) = asked.recv().await {
        let shown = log.display().to_string();
        let done = blocking.run_alone(move || files::compress(Path::new(&log))).await;
        if let Err(error) = done.map_err(|error| error.to_string()).and_then(|done| done) {
            log::warn!("{shown}: compressing rotated logs failed: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn a_log_is_looked_at_when_it_may_be_full_and_not_much_sooner() {
        const MB: u64 = 1_000_000;
        let check_max = Duration::from_secs(10);
        let rotation = Rotation { size_max: 10 * MB, files_max: 5, check_max };
        let (second, ms) = (Duration::from_secs(1), Duration::from_millis);
        for (size, grew, took, wait) in [
            (0, 0, Duration::ZERO, ms(1500)),
            (5 * MB, 5 * MB, second, ms(1000)),
            // Slower than the assumed speed: it may become faster.
            (5 * MB, 10, second, ms(1000)),
            (5 * MB, 20 * MB, second, ms(250)),
            (10 * MB - 1, 1, second, ms(20)),
            (10 * MB, 0, second, ms(20)),
            (u64::MAX, u64::MAX, second, ms(20)),
        ] {
            assert_eq!(next_check(rotation, None, size, grew, took), wait, "{size} {grew}");
        }
        let large = Rotation { size_max: u64::MAX, ..rotation };
        assert_eq!(next_check(large, None, 0, 0, second), large.check_max);
        assert_eq!(next_check(large, None, 0, u64::MAX, Duration::MAX), large.check_max);
        // In memory: its share, half of what is free, the node's limit.
        let share = |size_max, free| Some(Share { size_max, free });
        assert_eq!(next_check(rotation, share(MB / 5, MB), 0, 0, Duration::ZERO), ms(40));
        assert_eq!(next_check(rotation, share(MB / 2, MB / 2), 0, 0, Duration::ZERO), ms(50));
        assert_eq!(next_check(rotation, share(20 * MB, 100 * MB), 0, 0, Duration::ZERO), ms(1500));
    }
}
