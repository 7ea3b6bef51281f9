//! Imports image archives from a directory into the runtime's store, at start-up and whenever they change; the lists of images beside
//! them (`*.txt`) are read for whoever pulls these.
//!
//! ```text
//! |     change ──► quiet for IMAGE_ARCHIVE_QUIET ──► scan ──► plan (archive) ──► lease, blobs, records (cri::store)
//! ```
//!
//! The state of an import is kept in a label of the image records ([`ARCHIVE_LABEL`]: size, time, name and number of images
//! of the archive), so nothing is imported twice, not even after a restart, and no other state is stored. An imported image
//! is pinned for as long as its archive exists: runtimes report that, and garbage collection keeps it. An archive that could
//! not be imported is retried when it changes, or when the agent starts; one that found no space, or that the disk failed, after
//! [`IMAGE_ARCHIVE_SPACE_RETRY`] too, and then after twice as long each time.
//!
//! An image in several archives belongs to the last of them by name: archives are processed from the last to the first, and
//! none takes over an image of a later one. When that one is removed, or no longer has the image, the others are processed
//! again.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_io::Async;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};

use super::archive::{Blob, Data, Extent, Index, Plan, Platform, plan};
use super::archive_store::ArchiveStore;
use super::gc::is_no_space;
use super::lists;
use super::lists::ListedImages;
use crate::blocking::unblock_apart;
use crate::clock::SharedClock;
use crate::cri::store::{Labels, Target};
use crate::cri::{ImageStore, Runtime as _, RuntimeError};
use crate::filesystem::open_linked;
use crate::limits::{
    IMAGE_ARCHIVE_QUIET, IMAGE_ARCHIVE_RETRY, IMAGE_ARCHIVE_SPACE_RETRY, IMAGE_ARCHIVE_SPACE_RETRY_MAX,
    IMAGE_ARCHIVES_MAX, IMAGE_CHUNK_BYTES, IMAGE_KNOWN_TIME, INOTIFY_BUFFER_BYTES, MANIFEST_DIR_ENTRIES_MAX,
};
use crate::model::Mono;
use crate::model::backoff::GoDuration;

/// Label on the record of an imported image: `SIZE MTIME IMAGES NAME` of its archive.
pub const ARCHIVE_LABEL: &str = "smolet.io/archive";
/// containerd's own label: the CRI reports the image as pinned (from 1.7.3 on).
pub(super) const PINNED_LABEL: &str = "io.cri-containerd.pinned";

/// What follows the error of an archive that found no space.
const NEXT_TRY: &str = "; tried again in ten minutes, later on less often, and when the archive changes";

/// Name of the lease that a node's imports hold.
pub fn lease(node_name: &str) -> String {
    format!("smolet-images-{node_name}")
}

/// State of an archive, to detect changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    size: u64,
    modified: (i64, i64),
}

impl Stamp {
    fn of(meta: &fs::Metadata) -> Self {
        Self { size: meta.size(), modified: (meta.mtime(), meta.mtime_nsec()) }
    }

    /// The label of an archive in this state with that number of images.
    fn label(&self, images: usize, name: &str) -> String {
        format!("{} {images} {name}", self.state())
    }

    fn state(&self) -> String {
        let (seconds, nanos) = self.modified;
        format!("{} {seconds}.{nanos:09}", self.size)
    }
}

/// The archive's name in a label.
fn archive_of(label: &str) -> &str {
    label.splitn(4, ' ').nth(3).unwrap_or_default()
}

/// Records of imported images: the label by the image's name, at most `limits::IMAGE_RECORDS_MAX`.
type Records = BTreeMap<String, String>;

/// Why an archive was not imported.
#[derive(Debug)]
pub enum Failure {
    /// Not until it changes: the error, as a text that follows the archive's name.
    Refused(String),
    /// Not now: the disk has no space for it, or failed. Others may be imported.
    Disk(String),
    /// Not now: the runtime is unreachable.
    Later(String),
    /// Not now: no thread was available to read it.
    NoThread(io::Error),
    /// This runtime does not have containerd's services.
    Unsupported,
}

impl From<RuntimeError> for Failure {
    fn from(error: RuntimeError) -> Self {
        match error {
            RuntimeError::Unavailable(why) | RuntimeError::DeadlineExceeded(why) => Self::Later(why),
            RuntimeError::Unimplemented(_) => Self::Unsupported,
            RuntimeError::NotFound(why)
            | RuntimeError::Failed { message: why, .. }
            | RuntimeError::Protocol(why) => Self::Refused(format!("the runtime refuses it: {why}")),
        }
    }
}

/// An archive that was processed.
struct ProcessedArchive {
    archive: (String, Stamp),
    /// It cannot be imported.
    refused: bool,
    /// It found no space, and is tried again then, after that wait.
    again: Option<(Mono, Duration)>,
    /// Images that had its label then. Fewer now: somebody has removed one, and it is processed again.
    images: usize,
}

/// Inflates an archive into a file that is at that path for a moment only. True: it may have a zstd window in memory. Blocks. The error
/// follows the archive's name.
pub type Inflate = fn(&File, &Path, bool) -> Result<Inflated, String>;

/// What an archive is.
#[derive(Debug)]
pub enum Inflated {
    /// It is not compressed.
    Plain,
    /// It was, and this is what it has.
    File(File),
    /// It may not have the zstd window that it needs.
    NeedsWindow,
}

/// Imports the archives of one directory. Blocking work has its own thread, one at a time, and no permit of the shared pool: an
/// archive may be a link to an unreachable file server, and then only the other archives wait.
pub struct Importer {
    dir: PathBuf,
    store: ArchiveStore,
    platform: Platform,
    clock: SharedClock,
    /// Receives the full names of imported images.
    imported: smol::channel::Sender<Vec<String>>,
    /// Archives not to be read until they change; as many as the directory has.
    settled: Vec<ProcessedArchive>,
    /// True once the lease of an interrupted import has been ended.
    lease_ended: bool,
    watch: Option<Async<OwnedFd>>,
    /// The last error logged about the directory or the runtime, to log each once.
    said: Option<String>,
    inflate: (Inflate, PathBuf),
    /// Receives the images of lists.
    listed: ListedImages,
    /// The lists that were read.
    lists: Vec<(String, Stamp)>,
}

impl Importer {
    /// An importer for the archives and lists in `dir`, which is created when missing.
    pub fn new(
        dir: &Path,
        store: ArchiveStore,
        clock: SharedClock,
        imported: smol::channel::Sender<Vec<String>>,
        inflate: (Inflate, PathBuf),
        listed: ListedImages,
    ) -> Self {
        let platform = Platform::here();
        let dir = dir.to_owned();
        let (settled, lease_ended, watch, said, lists) = Default::default();
        Self {
            dir,
            store,
            platform,
            clock,
            imported,
            settled,
            lease_ended,
            watch,
            said,
            inflate,
            listed,
            lists,
        }
    }

    /// Scans now, and after every change, for the agent's lifetime.
    pub async fn run(mut self) {
        loop {
            let retry = match self.scan().await {
                Ok(()) => {
                    self.said = None;
                    let now = self.clock.now().mono;
                    self.settled
                        .iter()
                        .filter_map(|settled| settled.again)
                        .map(|(again, _)| again.since(now))
                        .min()
                }
                Err(why) => {
                    self.say(why);
                    Some(IMAGE_ARCHIVE_RETRY)
                }
            };
            self.wait(retry).await;
        }
    }

    fn say(&mut self, why: String) {
        if self.said.as_ref() != Some(&why) {
            log::warn!("{why}");
            self.said = Some(why);
        }
    }

    /// Waits for a change and the quiet time after it, or until the retry is due.
    async fn wait(&mut self, retry: Option<Duration>) {
        // Without a watch there are no change events.
        let retry = if self.watch.is_none() { Some(IMAGE_ARCHIVE_RETRY) } else { retry };
        let due = async {
            match retry {
                Some(retry) => self.clock.sleep(retry).await,
                None => std::future::pending().await,
            }
            false
        };
        let Some(watch) = &self.watch else {
            due.await;
            return;
        };
        let change = async {
            // A reactor error shows again when the events are read.
            let _ = watch.readable().await;
            true
        };
        if !smol::future::or(change, due).await {
            return;
        }
        loop {
            match self.watch.as_ref().map(|watch| drain(watch.get_ref())) {
                Some(Ok(0)) => return,
                Some(Ok(_)) => self.clock.sleep(IMAGE_ARCHIVE_QUIET).await,
                // The directory was replaced or removed: the next scan creates a new watch.
                Some(Err(())) | None => {
                    self.watch = None;
                    return self.clock.sleep(IMAGE_ARCHIVE_QUIET).await;
                }
            }
        }
    }

    /// Imports new archives. The error is about the directory or the runtime; errors of an archive are logged.
    async fn scan(&mut self) -> Result<(), String> {
        let (dir, watches) = (self.dir.clone(), self.watch.is_none());
        let found = unblock_apart(move || scan(&dir, watches)).await.flatten();
        let shown = self.dir.display().to_string();
        let found = found.map_err(|error| format!("{shown}: {error}; image archives are not imported"))?;
        if let Some(watch) = found.watch {
            self.watch = Async::new_nonblocking(watch).ok();
        }
        if found.lists != self.lists {
            self.read_lists(found.lists).await?;
        }
        let (archives, now) = (found.archives, self.clock.now().mono);
        self.settled.retain(|settled| archives.contains(&settled.archive));
        let is_due = |settled: &mut ProcessedArchive| settled.again.is_some_and(|(again, _)| again <= now);
        let retried: Vec<ProcessedArchive> = self.settled.extract_if(.., is_due).collect();
        let of_runtime = |failure: Failure| format!("{shown}: {}", failure.of_runtime());
        let mut records: Records = match self.store.labelled().await {
            Ok(records) => records.into_iter().collect(),
            Err(failure @ Failure::Unsupported) => {
                if archives.len() != self.settled.len() {
                    log::warn!("{}", of_runtime(failure));
                }
                let refused = |archive| ProcessedArchive { archive, refused: true, again: None, images: 0 };
                self.settled = archives.into_iter().map(refused).collect();
                return Ok(());
            }
            Err(failure) => return Err(of_runtime(failure)),
        };
        if !self.lease_ended {
            // The lease of an interrupted import: the blobs that it protects are imported again, or not at all.
            self.store.end_lease().await.map_err(of_runtime)?;
            self.lease_ended = true;
        }
        let is_gone = |label: &str| !archives.iter().any(|(name, _)| name == archive_of(label));
        self.release(&mut records, is_gone).await.map_err(of_runtime)?;
        self.settled.retain(|settled| images_of(&records, &settled.archive.0) >= settled.images);
        for (name, stamp) in archives.into_iter().rev() {
            let archive = (name, stamp);
            if self.settled.iter().any(|settled| settled.archive == archive) {
                continue;
            }
            let (refused, again) = match self.ensure_imported(&archive.0, stamp, &mut records).await {
                Ok(()) => (false, None),
                Err(ref failure @ (Failure::Refused(ref why) | Failure::Disk(ref why))) => {
                    let is_retried = matches!(failure, Failure::Disk(_)) || is_no_space(why);
                    let last =
                        retried.iter().find(|before| before.archive == archive).and_then(|of| of.again);
                    let wait = last.map_or(IMAGE_ARCHIVE_SPACE_RETRY, |(_, wait)| {
                        (2 * wait).min(IMAGE_ARCHIVE_SPACE_RETRY_MAX)
                    });
                    let again = is_retried.then(|| (self.clock.now().mono + wait, wait));
                    let retry = if again.is_some() { NEXT_TRY } else { "" };
                    // Each line wears the flash out that is full: it is said once.
                    let is_said = again.is_some() && last.is_some();
                    let level = if is_said { log::Level::Debug } else { log::Level::Warn };
                    log::log!(level, "{}: {why}{retry}", self.dir.join(&archive.0).display());
                    (true, again)
                }
                Err(failure) => return Err(of_runtime(failure)),
            };
            let images = images_of(&records, &archive.0);
            self.settled.push(ProcessedArchive { archive, refused, again, images });
        }
        Ok(())
    }

    /// Reads all lists anew.
    async fn read_lists(&mut self, lists: Vec<(String, Stamp)>) -> Result<(), String> {
        let dir = self.dir.clone();
        let paths: Vec<PathBuf> = lists.iter().map(|(name, _)| dir.join(name)).collect();
        let read = unblock_apart(move || lists::read(&paths)).await;
        self.listed.set(read.map_err(|error| format!("{}: {error}", self.dir.display()))?);
        self.lists = lists;
        Ok(())
    }

    /// Imports an archive unless that was done already.
    async fn ensure_imported(
        &mut self,
        name: &str,
        stamp: Stamp,
        records: &mut Records,
    ) -> Result<(), Failure> {
        let mut now = stamp;
        if !is_imported(records, name, stamp) {
            now = self.import(name, records).await?;
        }
        // Images that it had before and no longer has.
        let now = format!("{} ", now.state());
        self.release(records, |label| archive_of(label) == name && !label.starts_with(&now)).await
    }

    /// Images whose archive is gone, or no longer has them, become ordinary images. Another archive may have had them too.
    async fn release(
        &mut self,
        records: &mut Records,
        is_left: impl Fn(&str) -> bool,
    ) -> Result<(), Failure> {
        let left: Vec<String> =
            records.iter().filter(|(_, label)| is_left(label)).map(|(image, _)| image.clone()).collect();
        for image in left {
            self.store.unlabel(&image).await?;
            let label = records.remove(&image).unwrap_or_default();
            let archive = self.dir.join(archive_of(&label));
            log::info!("{}: image {image} is no longer pinned", archive.display());
            self.settled.retain(|settled| settled.refused);
        }
        Ok(())
    }

    /// Imports what is missing of an archive, and returns its state. Images that got their name are reported, whatever fails
    /// after them.
    async fn import(&mut self, name: &str, records: &mut Records) -> Result<Stamp, Failure> {
        let began = self.clock.now().mono;
        let path = self.dir.join(name);
        let shown = path.display().to_string();
        let mut window = None;
        let (file, stamp, mut plan) = loop {
            let (path, platform, inflate) = (path.clone(), self.platform.clone(), self.inflate.clone());
            let read = unblock_apart(move || read(&path, &platform, &inflate, window.is_some())).await;
            match read.map_err(Failure::NoThread)?.map_err(Failure::Refused)? {
                Some(read) => break read,
                // Only now: pulls over a bad link may have it for long.
                None => window = Some(self.store.archive_window().await),
            }
        };
        let label = stamp.label(plan.images.len(), name);
        plan.retain(&mut |image| {
            let (is_missing, other) = standing(records.get(image), name, &label);
            if let Some(other) = other {
                let last = other.max(name);
                log::warn!("{shown}: image {image} is also in {other}; using {last}, the last by name");
            }
            is_missing
        });
        if plan.images.is_empty() {
            return Ok(stamp);
        }
        // A lease that is not ended here is ended by the next scan.
        self.lease_ended = false;
        self.store.take_lease().await?;
        let mut named = Vec::new();
        let stored = match &self.store {
            ArchiveStore::Containerd(store, _) => {
                put(store, &Arc::new(file), &plan, &label, &mut named).await
            }
            ArchiveStore::Embedded(store) => {
                let wanted: Vec<&str> = plan.images.iter().map(|image| &*image.name).collect();
                store.import((&file, &self.dir.join(name)), &label, &wanted, &mut named).await
            }
        };
        let ended = self.store.end_lease().await;
        self.lease_ended = ended.is_ok();
        if !named.is_empty() {
            for name in &named {
                records.insert(name.clone(), label.clone());
                self.known(name).await;
            }
            let took = GoDuration(self.clock.now().mono.since(began));
            log::info!("{shown}: imported in {took}: {}", named.join(", "));
            // The receiving loop is gone only when the process ends.
            let _ = self.imported.send(named).await;
        }
        stored?;
        ended?;
        Ok(stamp)
    }

    /// Waits until the CRI has the image, which containerd's learns by an event.
    async fn known(&self, name: &str) {
        let ArchiveStore::Containerd(_, runtime) = &self.store else { return };
        let until = self.clock.now().mono + IMAGE_KNOWN_TIME;
        let mut wait = Duration::from_millis(5);
        while self.clock.now().mono < until && !matches!(runtime.image_status(name).await, Ok(Some(_))) {
            self.clock.sleep(wait).await;
            wait *= 2;
        }
    }
}

/// Stores the blobs in containerd's store, then creates the image names, which are added to `named`.
async fn put(
    store: &ImageStore,
    file: &Arc<File>,
    plan: &Plan,
    label: &str,
    named: &mut Vec<String>,
) -> Result<(), Failure> {
    for blob in &plan.blobs {
        put_blob(store, file, blob).await?;
    }
    let labels = [(ARCHIVE_LABEL, label), (PINNED_LABEL, "pinned")];
    let labels: Labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    for image in &plan.images {
        let target = Target {
            media_type: &image.target.media_type,
            digest: &image.target.digest,
            size: image.target.size,
        };
        store.name(&image.name, &target, &labels).await?;
        named.push(image.name.clone());
    }
    Ok(())
}

async fn put_blob(store: &ImageStore, file: &Arc<File>, blob: &Blob) -> Result<(), Failure> {
    let Some(mut upload) = store.write(&blob.digest, blob.size).await? else {
        // A blob stored by somebody else may lack the labels.
        if !blob.labels.is_empty() {
            store.label(&blob.digest, &blob.labels).await?;
        }
        return Ok(());
    };
    match &blob.data {
        Data::Made(bytes) => {
            for piece in bytes.chunks(IMAGE_CHUNK_BYTES) {
                upload.put(piece.to_vec()).await?;
            }
        }
        Data::InArchive(at) => {
            let mut done = 0;
            while done < at.size {
                let size = (at.size - done).min(IMAGE_CHUNK_BYTES as u64);
                let (file, piece) = (file.clone(), Extent { offset: at.offset + done, size });
                let piece = unblock_apart(move || read_at(&file, piece)).await.map_err(Failure::NoThread)?;
                upload.put(piece.map_err(Failure::Refused)?).await?;
                done += size;
            }
        }
    }
    upload.commit(&blob.labels).await?;
    Ok(())
}

impl Failure {
    /// The error in terms of the runtime.
    fn of_runtime(&self) -> String {
        match self {
            Self::Refused(why) | Self::Disk(why) => why.clone(),
            Self::Later(why) => {
                format!("the runtime is unavailable ({why}); image archives are imported when it is back")
            }
            Self::NoThread(error) => error.to_string(),
            Self::Unsupported => {
                "image archives need containerd's own services on the runtime's socket, which this \
                                  runtime (CRI-O?) has not; load them with its own tool (podman load)"
                    .to_owned()
            }
        }
    }
}

/// Number of images with the label of an archive of that name.
fn images_of(records: &Records, name: &str) -> usize {
    records.values().filter(|label| archive_of(label) == name).count()
}

/// True when all images of the archive in this state exist. Not when another archive has one of them: then only the archive
/// itself can tell which.
fn is_imported(records: &Records, name: &str, stamp: Stamp) -> bool {
    let of_archive: Vec<usize> = records
        .values()
        .filter_map(|label| {
            let images = label.split(' ').nth(2)?.parse().ok()?;
            (*label == stamp.label(images, name)).then_some(images)
        })
        .collect();
    of_archive.first().is_some_and(|images| of_archive.len() >= *images)
}

/// Whether an image of the archive `name` is missing, by the label of its record, and the other archive that has it too.
fn standing<'r>(there: Option<&'r String>, name: &str, label: &str) -> (bool, Option<&'r str>) {
    let Some(there) = there else { return (true, None) };
    match archive_of(there) {
        own if own == name => (there != label, None),
        other => (other < name, Some(other)),
    }
}

/// Result of a scan of the directory.
struct ArchiveDirectory {
    watch: Option<OwnedFd>,
    /// Sorted by name.
    archives: Vec<(String, Stamp)>,
    /// The same of lists.
    lists: Vec<(String, Stamp)>,
}

/// Scans the directory, and creates it when missing. Blocks.
fn scan(dir: &Path, watches: bool) -> io::Result<ArchiveDirectory> {
    fs::create_dir_all(dir)?;
    // Before reading: later changes are reported by events.
    let watch = if watches { watch(dir).ok() } else { None };
    let (mut archives, mut lists) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(dir)?.take(MANIFEST_DIR_ENTRIES_MAX) {
        let Ok(name) = entry?.file_name().into_string() else { continue };
        let of_kind = match (is_archive(&name), lists::is_list(&name)) {
            (true, _) => &mut archives,
            (false, true) => &mut lists,
            (false, false) => continue,
        };
        // Links are followed; files removed meanwhile are skipped.
        if let Ok(meta) = fs::metadata(dir.join(&name)) {
            of_kind.push((name, Stamp::of(&meta)));
        }
    }
    for found in [&mut archives, &mut lists] {
        found.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
    }
    if archives.len() > IMAGE_ARCHIVES_MAX {
        let more = archives.len() - IMAGE_ARCHIVES_MAX;
        log::warn!("{}: {more} archives ignored, at most {IMAGE_ARCHIVES_MAX} are read", dir.display());
        archives.truncate(IMAGE_ARCHIVES_MAX);
    }
    Ok(ArchiveDirectory { watch, archives, lists })
}

/// By its name: `.tar`, and the compressed ones that k3s accepts. How it is compressed is told by its first bytes; bzip2, lz4 and xz
/// are rejected with an error when read.
fn is_archive(name: &str) -> bool {
    const ENDINGS: [&str; 9] =
        [".tar", ".tar.gz", ".tgz", ".tar.zst", ".tzst", ".tar.bz2", ".tbz", ".tar.lz4", ".tar.xz"];
    !name.starts_with('.') && ENDINGS.iter().any(|ending| name.len() > ending.len() && name.ends_with(ending))
}

fn watch(dir: &Path) -> io::Result<OwnedFd> {
    let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    let events = WatchFlags::MODIFY
        | WatchFlags::CLOSE_WRITE
        | WatchFlags::MOVED_FROM
        | WatchFlags::MOVED_TO
        | WatchFlags::CREATE
        | WatchFlags::DELETE
        | WatchFlags::ATTRIB
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVE_SELF
        | WatchFlags::ONLYDIR;
    inotify::add_watch(&fd, dir, events)?;
    Ok(fd)
}

/// Drains the pending events; returns their number, or an error when the watch is lost.
fn drain(watch: &OwnedFd) -> Result<usize, ()> {
    let mut buffer = [MaybeUninit::uninit(); INOTIFY_BUFFER_BYTES];
    let mut reader = Reader::new(watch, &mut buffer);
    let mut events = 0;
    loop {
        match reader.next() {
            Ok(event) => {
                let gone =
                    ReadFlags::IGNORED | ReadFlags::UNMOUNT | ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF;
                if event.events().intersects(gone) {
                    return Err(());
                }
                events += 1;
            }
            Err(rustix::io::Errno::AGAIN) => return Ok(events),
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return Err(()),
        }
    }
}

/// Opens an archive, inflates it if it is compressed, and plans its import; `None`: for that it needs a zstd window. Blocks.
fn read(
    path: &Path,
    platform: &Platform,
    (inflate, spool): &(Inflate, PathBuf),
    has_window: bool,
) -> Result<Option<(File, Stamp, Plan)>, String> {
    let unread = |error: io::Error| format!("cannot be read: {error}");
    let mut file = open_linked(path).map_err(unread)?;
    let stamp = Stamp::of(&file.metadata().map_err(unread)?);
    match inflate(&file, spool, has_window)? {
        Inflated::Plain => {}
        Inflated::File(plain) => file = plain,
        Inflated::NeedsWindow => return Ok(None),
    }
    let index = Index::read(&file, file.metadata().map_err(unread)?.size())?;
    let plan = plan(&index, platform, &mut |at| read_at(&file, at))?;
    Ok(Some((file, stamp, plan)))
}

/// Names of the images that an archive has for this node; `None` when it is compressed or no such archive. Blocks.
pub(crate) fn names_in(archive: &Path) -> Option<Vec<String>> {
    let platform = Platform::here();
    let plain: Inflate = |_, _, _| Ok(Inflated::Plain);
    let (_, _, plan) = read(archive, &platform, &(plain, PathBuf::new()), false).ok()??;
    Some(plan.images.into_iter().map(|image| image.name).collect())
}

/// Reads a range of a file; at most `limits::IMAGE_JSON_BYTES_MAX`, which the callers ensure.
fn read_at(file: &File, at: Extent) -> Result<Vec<u8>, String> {
    let size = usize::try_from(at.size).map_err(|_| "is too large".to_owned())?;
    let mut bytes = vec![0; size];
    file.read_exact_at(&mut bytes, at.offset).map_err(|error| format!("cannot be read: {error}"))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_is_imported_when_all_its_images_have_its_label() {
        let stamp = Stamp { size: 10, modified: (5, 7) };
        let label = stamp.label(2, "a b.tar");
        assert_eq!(label, "10 5.000000007 2 a b.tar");
        let records = |labels: &[&str]| -> Records {
            labels.iter().enumerate().map(|(at, label)| (at.to_string(), (*label).to_owned())).collect()
        };
        for (labels, name, is) in [
            (&[&*label, &label][..], "a b.tar", true),
            (&[&label], "a b.tar", false),
            (&[&label, &label], "a", false),
            (&[&label, "10 5.000000008 2 a b.tar"], "a b.tar", false),
            (&["10 5.000000007 x a b.tar", "", "10"], "a b.tar", false),
            (&[], "a b.tar", false),
        ] {
            assert_eq!(is_imported(&records(labels), name, stamp), is, "{labels:?} {name}");
        }
    }

    #[test]
    fn an_image_of_several_archives_is_that_of_the_last_by_name() {
        let label = |name: &str, at: i64| Stamp { size: 1, modified: (at, 0) }.label(1, name);
        for (there, wanted) in [
            (None, (true, None)),
            (Some(label("b.tar", 1)), (false, None)),
            (Some(label("b.tar", 2)), (true, None)),
            (Some(label("a.tar", 1)), (true, Some("a.tar"))),
            (Some(label("c d.tar", 1)), (false, Some("c d.tar"))),
        ] {
            assert_eq!(standing(there.as_ref(), "b.tar", &label("b.tar", 1)), wanted, "{there:?}");
        }
    }

    #[test]
    fn archives_are_found_by_their_names() {
        let dir = std::env::temp_dir().join(format!("smolet-archives-{}", std::process::id())).join("images");
        assert!(scan(&dir, false).unwrap().archives.is_empty(), "it is created");
        for name in ["b.tar", "a.tar.gz", ".hidden.tar", ".tar", "c.txt", "c.tar.part", "c.tgz"] {
            fs::write(dir.join(name), "").unwrap();
        }
        std::os::unix::fs::symlink("nowhere", dir.join("d.tar")).unwrap();
        let found = scan(&dir, true).unwrap();
        let names: Vec<&str> = found.archives.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["a.tar.gz", "b.tar", "c.tgz"]);
        let lists: Vec<&str> = found.lists.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(lists, ["c.txt"]);
        let watch = found.watch.expect("a watch");
        fs::write(dir.join("e.tar"), "").unwrap();
        assert!(drain(&watch).unwrap() > 0);
        assert_eq!(drain(&watch), Ok(0));
        fs::remove_dir_all(dir.parent().unwrap()).unwrap();
        assert_eq!(drain(&watch), Err(()));
    }
}
