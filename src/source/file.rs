//! The manifest directory as a source: inotify with a slow rescan.
//!
//! A change counts once the directory has settled:
//!
//! ```text
//!     file renamed into place, or a new one closed after writing ──► read
//!     other event ──► quiet for MANIFEST_DEBOUNCE (MANIFEST_WRITE_QUIET while a writer has the file open) ──► read
//!     read: a file changed again within MANIFEST_DEBOUNCE ──► read again after it
//!     read: a file became invalid, has fewer pods or is missing ──► MANIFEST_GRACE ──► read again ──► counts
//! ```
//!
//! so that half-written files, and files that an editor removes and restores, are never read in between, and a file that is
//! certainly complete is read without a delay.
use std::ffi::{OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_io::Async;
use rustix::fs::inotify::{ReadFlags, Reader};

use super::identity::NodeName;
use super::manifest::{ManifestObject, ManifestPod, ParsedFile};
use super::scan::{self, DirId, ScanRequest, ScanResult, ScannedFile, Stamp, Watch, is_manifest_name};
use super::{
    ManifestRoom, Origin, Problem, ServerPods, SourceUpdate, SourceUsage, SourcedObject, SourcedPod,
    shown_file,
};
use crate::clock::SharedClock;
use crate::limits;
use crate::model::{DesiredPod, Mono, Side, SortedMap, SortedSet};
use crate::poison::SetAside;

/// The name of this source in `SourceUpdate::source`.
pub const NAME: &str = "file";

/// Watches one directory of manifests.
pub struct FileSource {
    dir: PathBuf,
    /// The directory's name in problems.
    shown: Arc<str>,
    node: NodeName,
    clock: SharedClock,
    rescan: Duration,
    watch: Option<Async<OwnedFd>>,
    /// The directory of the inotify watch.
    watched: Option<DirId>,
    /// The directory whose manifests count.
    home: Option<DirId>,
    files: SortedMap<OsString, Record>,
    /// Events not processed yet. Full: the whole directory is read again.
    pending: SortedMap<OsString, Pending>,
    read_all: bool,
    dir_problem: Option<String>,
    left_off: usize,
    /// File names already logged as ignored, at most `MANIFEST_FILES_MAX`.
    ignored: SortedSet<OsString>,
    said_no_watch: bool,
    reported: Vec<Problem>,
    /// A change that no update contains yet.
    changed: bool,
    unsettled_since: Option<Mono>,
    /// The last update was sent before the directory had settled: another one follows once it has.
    told_unsettled: bool,
    scan_at: Mono,
    first: bool,
    set_aside: Arc<SetAside>,
    room: ManifestRoom,
}

/// The last content of a file that counted.
#[derive(Default)]
struct Record {
    stamp: Option<Stamp>,
    pods: Vec<SourcedPod>,
    objects: Vec<SourcedObject>,
    /// Memory of its pods and objects (`manifest::cost`, `object::cost`).
    bytes: usize,
    problems: Vec<Problem>,
    /// Number of further problems that are not kept.
    more_problems: usize,
    /// When its content last changed.
    changed_at: Option<Mono>,
    /// Since when its new content is invalid, or has fewer pods or objects; it may be half-written, or a pod is being moved to
    /// another file.
    suspect_since: Option<Mono>,
    /// Since when it is missing; it may be restored.
    missing_since: Option<Mono>,
}

/// A file with inotify events.
#[derive(Clone, Copy)]
struct Pending {
    last: Mono,
    change: FileChange,
}

/// The state of a file's content by its last event.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FileChange {
    /// Complete: it was renamed into place, or is new and was closed after writing.
    Whole,
    /// It may change again at once: by the next step of an editor, or the next append of a script.
    Unsettled,
    /// Open for writing.
    Writing,
}

impl Pending {
    fn ready_at(self) -> Mono {
        match self.change {
            FileChange::Whole => self.last,
            FileChange::Unsettled => self.last + limits::MANIFEST_DEBOUNCE,
            FileChange::Writing => self.last + limits::MANIFEST_WRITE_QUIET,
        }
    }
}

impl FileSource {
    /// A source for the manifests in `dir`, which need not exist yet. Nothing is read before [`FileSource::next`].
    pub fn new(dir: &Path, node: NodeName, clock: SharedClock, rescan: Duration) -> Self {
        let scan_at = clock.now().mono;
        Self {
            dir: dir.to_owned(),
            shown: Arc::from(dir.to_string_lossy()),
            node,
            clock,
            rescan,
            watch: None,
            watched: None,
            home: None,
            files: SortedMap::new(),
            pending: SortedMap::new(),
            read_all: false,
            dir_problem: None,
            left_off: 0,
            ignored: SortedSet::new(),
            said_no_watch: false,
            reported: Vec::new(),
            changed: false,
            unsettled_since: None,
            told_unsettled: false,
            scan_at,
            first: true,
            set_aside: Arc::default(),
            room: ManifestRoom::default(),
        }
    }

    /// The same, without reading files whose parsing ended the process too often.
    #[must_use]
    pub fn setting_aside(mut self, set_aside: Arc<SetAside>) -> Self {
        self.set_aside = set_aside;
        self
    }

    /// The same, sharing its memory budget with the manifests of a URL.
    #[must_use]
    pub fn sharing(mut self, room: ManifestRoom) -> Self {
        self.room = room;
        self
    }

    /// Waits for the next change and returns all pods, objects and problems; the first call returns after the first read. May be
    /// dropped at any await: nothing is lost.
    pub async fn next(&mut self) -> SourceUpdate {
        loop {
            let now = self.clock.now().mono;
            if now >= self.wake_at() {
                self.scan().await;
                if self.should_tell() {
                    return self.update();
                }
            } else {
                self.wait().await;
            }
        }
    }

    /// Sends every update until the receiver is dropped.
    pub async fn run(mut self, updates: smol::channel::Sender<SourceUpdate>) {
        while updates.send(self.next().await).await.is_ok() {}
    }

    /// The next time to read the directory, whatever inotify reports.
    fn wake_at(&self) -> Mono {
        let pending = self.pending.values().map(|pending| pending.ready_at());
        let grace = self.files.values().filter_map(Record::grace_until);
        let overdue = self.unsettled_since.filter(|_| self.changed).map(overdue_at);
        pending.chain(grace).chain(overdue).chain([self.scan_at]).min().unwrap_or(self.scan_at)
    }

    /// Waits for an event or for that time.
    async fn wait(&mut self) {
        let timer = self.clock.sleep_until(self.wake_at());
        let Some(watch) = &self.watch else {
            timer.await;
            return;
        };
        let event = async {
            // An error of the reactor reappears when the events are read.
            let _ = watch.readable().await;
            true
        };
        let due = async {
            timer.await;
            false
        };
        if smol::future::or(event, due).await {
            self.take_events();
        }
    }

    /// Moves inotify's events into `pending`.
    fn take_events(&mut self) {
        let now = self.clock.now().mono;
        let Some(watch) = self.watch.take() else { return };
        let mut buffer = [MaybeUninit::uninit(); limits::INOTIFY_BUFFER_BYTES];
        let mut reader = Reader::new(watch.get_ref(), &mut buffer);
        let mut lost = false;
        loop {
            match reader.next() {
                Ok(event) => {
                    let flags = event.events();
                    let gone = ReadFlags::IGNORED
                        | ReadFlags::UNMOUNT
                        | ReadFlags::DELETE_SELF
                        | ReadFlags::MOVE_SELF;
                    if flags.intersects(gone) {
                        lost = true;
                    }
                    if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                        self.read_all = true;
                        self.scan_soon(now);
                    }
                    match event.file_name() {
                        Some(name) => self.note(now, OsStr::from_bytes(name.to_bytes()), flags),
                        None => self.scan_soon(now),
                    }
                }
                Err(rustix::io::Errno::AGAIN) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => {
                    lost = true;
                    break;
                }
            }
        }
        if lost {
            // The directory was replaced or removed: the next read creates a new watch.
            self.watched = None;
            self.scan_soon(now);
        } else {
            self.watch = Some(watch);
        }
    }

    fn note(&mut self, now: Mono, name: &OsStr, flags: ReadFlags) {
        if !is_manifest_name(name) {
            // A ConfigMap-style directory of links to `..data/*` is updated by renaming `..data`.
            if name.as_bytes().starts_with(b"..") {
                if flags.contains(ReadFlags::MOVED_TO) {
                    self.scan_at = now;
                } else {
                    self.scan_soon(now);
                }
            }
            return;
        }
        if self.pending.len() >= limits::MANIFEST_FILES_MAX && !self.pending.contains_key(name) {
            self.read_all = true;
            self.scan_soon(now);
            return;
        }
        let change = if flags.contains(ReadFlags::MODIFY) {
            FileChange::Writing
        } else if flags.contains(ReadFlags::ATTRIB) {
            self.pending.get(name).map_or(FileChange::Unsettled, |pending| pending.change)
        } else if flags.contains(ReadFlags::MOVED_TO)
            // When a file is overwritten in place, a valid prefix of the new content would restart running pods.
            || (flags.contains(ReadFlags::CLOSE_WRITE) && self.files.get(name).is_none_or(Record::is_empty))
        {
            FileChange::Whole
        } else {
            FileChange::Unsettled
        };
        self.pending.insert(name.to_owned(), Pending { last: now, change });
    }

    fn scan_soon(&mut self, now: Mono) {
        self.scan_at = self.scan_at.min(now + limits::MANIFEST_DEBOUNCE);
    }

    /// Reads the directory on a thread and processes the result.
    async fn scan(&mut self) {
        let started = self.clock.now();
        let ready = |pending: &Pending| pending.ready_at() <= started.mono;
        let due = |record: &Record| record.suspect_since.is_some();
        let names = |wanted: bool| {
            self.pending.iter().filter(move |(_, p)| ready(p) == wanted).map(|(name, _)| name.clone())
        };
        let mut force: SortedSet<OsString> = names(true).collect();
        force.extend(self.files.iter().filter(|(_, record)| due(record)).map(|(name, _)| name.clone()));
        let skip: SortedSet<OsString> = names(false).collect();
        if self.read_all {
            force.extend(self.files.keys().cloned());
        }
        let request = ScanRequest {
            dir: self.dir.clone(),
            node: self.node.clone(),
            seen: started.wall,
            known: self
                .files
                .iter()
                .filter_map(|(name, r)| Some((name.clone(), (r.stamp?, r.bytes))))
                .collect(),
            force,
            skip,
            watch: self.watched.map_or(Watch::Wanted, Watch::Has),
            taken: self.room.of_url.get(),
            set_aside: self.set_aside.clone(),
        };
        let outcome = crate::blocking::unblock(move || scan::scan(&request)).await;
        // No await from here on: a dropped `next` has processed either all of this read or none of it.
        self.pending.retain(|_, pending| pending.ready_at() > started.mono);
        self.read_all = false;
        let now = self.clock.now().mono;
        match outcome {
            Ok(found) => {
                self.scan_at = now + self.rescan;
                self.take(found, now);
            }
            Err(problem) => {
                self.end_graces();
                self.watch = None;
                self.watched = None;
                self.scan_at = now + self.rescan.min(limits::MANIFEST_DIR_RETRY);
                self.changed |= self.dir_problem.as_ref() != Some(&problem);
                self.dir_problem = Some(problem);
            }
        }
        self.room.of_files.set(self.files.values().map(|record| record.bytes).sum());
        // Events since then, before an update is sent: the files may be changing already.
        self.take_events();
        let waits = |pending: &Pending| pending.change != FileChange::Whole;
        let unsettled =
            self.pending.values().any(waits) || self.files.values().any(|r| r.grace_until().is_some());
        self.unsettled_since = if unsettled { self.unsettled_since.or(Some(now)) } else { None };
    }

    /// The state of all files is unknown now: pending files wait for the directory instead.
    fn end_graces(&mut self) {
        for record in self.files.values_mut() {
            record.suspect_since = None;
            record.missing_since = None;
        }
    }

    /// Processes a successful read of the directory.
    fn take(&mut self, found: ScanResult, now: Mono) {
        if self.watched != Some(found.id) {
            self.watch = found.watch.and_then(|fd| Async::new_nonblocking(fd).ok());
            self.watched = self.watch.is_some().then_some(found.id);
            if self.watch.is_none() && !std::mem::replace(&mut self.said_no_watch, true) {
                log::warn!(
                    "{}: inotify is unavailable (see fs.inotify.max_user_instances); checking every {} s",
                    shown_file(&self.shown),
                    self.rescan.as_secs()
                );
            }
        }
        let moved = self.home.is_some_and(|home| home.0 != found.id.0);
        if moved && found.files.is_empty() && self.files.values().any(|record| !record.is_empty()) {
            // An empty mount point after an unmount looks like a directory whose manifests were all removed.
            self.changed |= self.dir_problem.as_deref() != Some(UNMOUNTED);
            self.dir_problem = Some(UNMOUNTED.to_owned());
            self.end_graces();
            return;
        }
        self.home = Some(found.id);
        if self.dir_problem.take().is_some() {
            self.changed = true;
        }
        self.changed |= std::mem::replace(&mut self.left_off, found.left_off) != found.left_off;
        for name in found.ignored {
            if self.ignored.len() < limits::MANIFEST_FILES_MAX && !self.ignored.contains(&name) {
                let path = self.dir.join(&name);
                log::info!(
                    "{}: ignored, not a .yaml, .yml or .json file",
                    shown_file(&path.to_string_lossy())
                );
                self.ignored.insert(name);
            }
        }
        let mut gone = Vec::new();
        for (name, record) in &mut self.files {
            if found.files.contains_key(name) {
                record.missing_since = None;
            } else {
                record.suspect_since = None;
                if now >= *record.missing_since.get_or_insert(now) + limits::MANIFEST_GRACE {
                    gone.push(name.clone());
                }
            }
        }
        for name in gone {
            self.files.remove(&name);
            self.changed = true;
        }
        for (name, file) in found.files {
            self.take_file(name, file, now);
        }
    }

    fn take_file(&mut self, name: OsString, file: ScannedFile, now: Mono) {
        let path: Arc<str> = Arc::from(self.dir.join(&name).to_string_lossy());
        let (stamp, unstable, parsed) = match file {
            ScannedFile::Same => return,
            ScannedFile::Skipped => {
                // It is being written again: its validity is checked once that ends.
                if let Some(record) = self.files.get_mut(&name) {
                    record.suspect_since = None;
                }
                return;
            }
            ScannedFile::Refused(why) => {
                let problems = vec![Problem::of_file(&path, why)];
                (None, false, ParsedFile { problems, ..ParsedFile::default() })
            }
            ScannedFile::Read { stamp, unstable, parsed } => (Some(stamp), unstable, parsed),
        };
        let others = self.files.iter().filter(|(other, _)| **other != name);
        let kept: usize = others.map(|(_, record)| record.problems.len()).sum();
        let room = limits::PROBLEMS_MAX.saturating_sub(kept).max(1);
        let record = self.files.entry(name.clone()).or_default();
        let same_problems = record.problems.len() + record.more_problems == parsed.problems.len()
            && record.problems.iter().zip(&parsed.problems).all(|(old, new)| old.same_as(new));
        let invalid = !parsed.problems.is_empty();
        if ((invalid && !same_problems) || record.names_more_than(&parsed)) && !self.first {
            // It may be half-written. It counts when it is unchanged after the grace period.
            let since = *record.suspect_since.get_or_insert(now);
            if now < since + limits::MANIFEST_GRACE {
                return;
            }
        }
        record.suspect_since = None;
        if unstable {
            self.scan_at = self.scan_at.min(now + limits::MANIFEST_GRACE);
        }
        let mut pods: Vec<SourcedPod> = parsed.pods.into_iter().map(|pod| sourced(pod, &path)).collect();
        // The vector was allocated for the much larger typed pods.
        pods.shrink_to_fit();
        let same_pods = pods.len() == record.pods.len()
            && pods.iter().zip(&record.pods).all(|(new, old)| {
                (&new.pod.key, &new.config_hash, &new.origin) == (&old.pod.key, &old.config_hash, &old.origin)
            });
        let objects = parsed.objects.into_iter();
        let objects: Vec<SourcedObject> = objects.map(|object| sourced_object(object, &path)).collect();
        let same_objects = objects.len() == record.objects.len()
            && objects
                .iter()
                .zip(&record.objects)
                .all(|(new, old)| (&new.object, &new.origin) == (&old.object, &old.origin));
        let changes = !same_pods || !same_objects || !same_problems;
        if changes && !self.first {
            let settled_at = record.changed_at.map(|at| at + limits::MANIFEST_DEBOUNCE);
            if let Some(last) = record.changed_at.filter(|_| settled_at.is_some_and(|at| now < at)) {
                // Changed again shortly after the last change: its writer may not be done.
                self.pending.insert(name, Pending { last, change: FileChange::Unsettled });
                return;
            }
            record.changed_at = Some(now);
        }
        record.stamp = stamp;
        if !same_pods {
            record.pods = pods;
        }
        if !same_objects {
            record.objects = objects;
        }
        record.more_problems = parsed.problems.len().saturating_sub(room);
        record.problems = parsed.problems;
        record.problems.truncate(room);
        record.bytes = parsed.bytes;
        self.changed |= changes;
    }

    /// A change is reported once the directory has settled, or has not for too long.
    fn should_tell(&self) -> bool {
        let now = self.clock.now().mono;
        match self.unsettled_since {
            _ if self.first => true,
            None => self.changed || self.told_unsettled,
            Some(since) => self.changed && now >= overdue_at(since),
        }
    }

    /// Memory that this source holds.
    fn held(&self) -> SourceUsage {
        let of_files = self.files.values().flat_map(|record| &record.problems);
        let (mut held, all) = (SourceUsage::default(), of_files.chain(&self.reported));
        for problem in all {
            held.problems += 1;
            held.problem_bytes += problem.bytes();
        }
        held.pod_bytes = self.files.values().map(|record| record.bytes).sum();
        held
    }

    /// All pods, objects and problems of this source.
    fn update(&mut self) -> SourceUpdate {
        let mut problems: Vec<Problem> = Vec::new();
        if let Some(problem) = &self.dir_problem {
            let kept = if self.first { "" } else { "; its pods stay as they are" };
            problems.push(Problem::of_file(&self.shown, format!("{problem}{kept}")));
        }
        if self.left_off > 0 {
            let max = limits::MANIFEST_FILES_MAX;
            let message = format!("has {} manifests more than the {max} that are read", self.left_off);
            problems.push(Problem::of_file(&self.shown, message));
        }
        let all: usize = self.files.values().map(|record| record.problems.len() + record.more_problems).sum();
        let room = limits::PROBLEMS_MAX - problems.len();
        problems.extend(self.files.values().flat_map(|record| record.problems.iter().cloned()).take(room));
        if all > room {
            problems.pop();
            problems.push(Problem::of_file(&self.shown, format!("{} more problems", all - room + 1)));
        }
        for problem in &mut problems {
            problem.fresh = !self.reported.iter().any(|reported| reported.same_as(problem));
        }
        self.reported.clone_from(&problems);
        self.changed = false;
        self.first = false;
        // While files are being written or replaced, a missing pod may still be desired.
        let complete = problems.is_empty() && self.unsettled_since.is_none();
        self.told_unsettled = self.unsettled_since.is_some();
        let pods = self.files.values().flat_map(|record| record.pods.iter().cloned()).collect();
        let objects = self.files.values().flat_map(|record| record.objects.iter().cloned()).collect();
        SourceUpdate {
            source: NAME,
            pods,
            objects,
            problems,
            complete,
            held: self.held(),
            server: ServerPods::default(),
        }
    }
}

const UNMOUNTED: &str = "is empty and on another file system than before; if it was unmounted, mount it again, \
                         if its manifests were removed, restart the agent";

fn overdue_at(unsettled_since: Mono) -> Mono {
    unsettled_since + limits::MANIFEST_UNSETTLED_MAX
}

impl Record {
    fn is_empty(&self) -> bool {
        self.pods.is_empty() && self.objects.is_empty()
    }

    /// A pod or an object of the record is missing from the new content.
    fn names_more_than(&self, parsed: &ParsedFile) -> bool {
        let same_pod = |pod: &SourcedPod, other: &ManifestPod| {
            let (key, of) = (&pod.pod.key, &other.pod.metadata);
            of.name.as_deref() == Some(&*key.name) && of.namespace.as_deref() == Some(&*key.namespace)
        };
        self.pods.iter().any(|pod| !parsed.pods.iter().any(|other| same_pod(pod, other)))
            || self.objects.iter().any(|object| {
                let key = object.object.key(Side::Manifests);
                !parsed.objects.iter().any(|other| other.object.key(Side::Manifests) == key)
            })
    }

    fn grace_until(&self) -> Option<Mono> {
        let since = match (self.suspect_since, self.missing_since) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        since.map(|since| since + limits::MANIFEST_GRACE)
    }
}

/// The object with its origin.
pub(super) fn sourced_object(object: ManifestObject, file: &Arc<str>) -> SourcedObject {
    SourcedObject { object: object.object, origin: Origin { file: file.clone(), document: object.document } }
}

/// Converts a pod of a file to the loop's type, with its origin.
pub(super) fn sourced(pod: ManifestPod, file: &Arc<str>) -> SourcedPod {
    let (bytes, config_hash) = (pod.bytes, pod.config_hash);
    let mut desired = DesiredPod::new(pod.pod);
    desired.pod.pack();
    SourcedPod {
        pod: desired,
        origin: Origin { file: file.clone(), document: pod.document },
        config_hash,
        bytes,
    }
}
