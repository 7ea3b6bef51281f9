//! Reads a manifest directory or file once: blocking system calls, run on a thread.
//!
//! Only regular files are opened, without ever blocking (`O_NONBLOCK`), and only when their stamp has changed, so an idle read
//! costs one `readdir` and one `stat` a file.
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

use super::Problem;
use super::identity::NodeName;
use super::manifest::{ParsedFile, parse};
use super::shown_file;
use crate::filesystem::open_linked;
use crate::limits;
use crate::model::{Object, Wall};
use crate::model::{SortedMap, SortedSet};
use crate::poison::{self, SetAside};

/// Metadata by which a changed file is detected without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    dev: u64,
    ino: u64,
    size: u64,
    modified: (i64, i64),
    /// The inode's change time: it advances even when a tool sets the modification time back.
    changed: (i64, i64),
}

impl Stamp {
    fn of(meta: &Metadata) -> Self {
        Self {
            dev: meta.dev(),
            ino: meta.ino(),
            size: meta.size(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        }
    }
}

/// Device and inode of a directory.
pub type DirId = (u64, u64);

/// Inputs of one read.
pub struct ScanRequest {
    /// The directory.
    pub dir: PathBuf,
    /// For the pods' identity.
    pub node: NodeName,
    /// For the pods' `config.seen`.
    pub seen: Wall,
    /// The files known from earlier reads, and the memory of their pods (`manifest::cost`).
    pub known: SortedMap<OsString, (Stamp, usize)>,
    /// Files to read even when their stamp is unchanged.
    pub force: SortedSet<OsString>,
    /// Files that are being written, to be skipped.
    pub skip: SortedSet<OsString>,
    /// Whether to create an inotify watch.
    pub watch: Watch,
    /// Memory of the pods of other sources.
    pub taken: usize,
    /// Files that must not be parsed any more.
    pub set_aside: Arc<SetAside>,
}

/// Whether a read creates an inotify watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// No.
    Without,
    /// Only when the directory is not this one, which is watched already.
    Has(DirId),
    /// Yes.
    Wanted,
}

/// The result of one read.
pub struct ScanResult {
    /// The directory.
    pub id: DirId,
    /// The new inotify watch, when `ScanRequest::watch` asked for one and one was left.
    pub watch: Option<OwnedFd>,
    /// The manifests, by name.
    pub files: SortedMap<OsString, ScannedFile>,
    /// Names that are not manifests, at most `MANIFEST_FILES_MAX`.
    pub ignored: Vec<OsString>,
    /// Manifests beyond `MANIFEST_FILES_MAX`.
    pub left_off: usize,
}

/// One manifest file.
pub enum ScannedFile {
    /// Its stamp is unchanged.
    Same,
    /// It was in `ScanRequest::skip`.
    Skipped,
    /// It cannot be read, for this reason.
    Refused(String),
    /// It was read.
    Read {
        /// Its stamp before reading: when it changed meanwhile, the next read sees another one.
        stamp: Stamp,
        /// It changed while it was read.
        unstable: bool,
        /// The parsed content.
        parsed: ParsedFile,
    },
}

/// Whether the name is a manifest's: `.yaml`, `.yml` or `.json`, not hidden, not an editor's or tool's copy.
///
/// The suffix alone excludes `x.yaml~`, `x.yaml.backup`, `.bak`, `.orig`, `.swp`, `.rpmsave`, `.dpkg-*` and `#x#`.
pub fn is_manifest_name(name: &OsStr) -> bool {
    let name = name.as_bytes();
    let suffix = |suffix: &[u8]| name.len() > suffix.len() && name.ends_with(suffix);
    !name.starts_with(b".")
        && !name.starts_with(b"#")
        && (suffix(b".yaml") || suffix(b".yml") || suffix(b".json"))
}

/// Reads the directory; the error says in one sentence why it cannot.
pub fn scan(request: &ScanRequest) -> Result<ScanResult, String> {
    let meta = fs::metadata(&request.dir).map_err(|e| dir_error(&e))?;
    if !meta.is_dir() {
        return Err("is no directory; give the directory that holds the manifests".to_owned());
    }
    let id = (meta.dev(), meta.ino());
    // Before reading: a change from here on causes an event.
    let watch = match request.watch {
        Watch::Without => None,
        Watch::Has(watched) if watched == id => None,
        Watch::Has(_) | Watch::Wanted => watch(&request.dir),
    };
    let mut names = SortedSet::new();
    let mut ignored = Vec::new();
    for (count, entry) in fs::read_dir(&request.dir).map_err(|e| dir_error(&e))?.enumerate() {
        if count >= limits::MANIFEST_DIR_ENTRIES_MAX {
            let max = limits::MANIFEST_DIR_ENTRIES_MAX;
            return Err(format!("has more than {max} entries; keep manifests in a directory of their own"));
        }
        let name = entry.map_err(|e| dir_error(&e))?.file_name();
        if is_manifest_name(&name) {
            names.insert(name);
        } else if ignored.len() < limits::MANIFEST_FILES_MAX {
            ignored.push(name);
        }
    }
    let left_off = names.len().saturating_sub(limits::MANIFEST_FILES_MAX);
    // Known files keep their memory: a new one must not push out a running pod.
    let taken = request.known.iter().filter(|(name, _)| names.contains(*name)).map(|(_, (_, bytes))| bytes);
    let mut room = limits::PODS_BYTES_MAX.saturating_sub(taken.sum::<usize>() + request.taken);
    let mut files = SortedMap::new();
    for name in names.into_iter().take(limits::MANIFEST_FILES_MAX) {
        let found = if request.skip.contains(&name) {
            ScannedFile::Skipped
        } else {
            let known = request.known.get(&name);
            one(request, &request.dir.join(&name), known, request.force.contains(&name), &mut room)
        };
        files.insert(name, found);
    }
    Ok(ScanResult { id, watch, files, ignored, left_off })
}

fn one(
    request: &ScanRequest,
    path: &Path,
    known: Option<&(Stamp, usize)>,
    force: bool,
    room: &mut usize,
) -> ScannedFile {
    if !force
        && let (Some((known, _)), Ok(meta)) = (known, fs::metadata(path))
        && meta.is_file()
        && Stamp::of(&meta) == *known
    {
        return ScannedFile::Same;
    }
    let (file, meta) = match open(path) {
        Ok(opened) => opened,
        Err(refusal) => return ScannedFile::Refused(refusal),
    };
    let stamp = Stamp::of(&meta);
    match read(&file, meta.size()) {
        Err(refusal) => ScannedFile::Refused(refusal),
        Ok(bytes) => {
            let unstable = file.metadata().is_ok_and(|after| Stamp::of(&after) != stamp);
            drop(file);
            let name: Arc<str> = Arc::from(path.to_string_lossy());
            let mark = poison::file_mark(&name, &bytes);
            if let Some(panics) = request.set_aside.panics(&mark) {
                let problem = Problem::of_file(
                    &name,
                    format!(
                        "reading it ended the agent {panics} times; it is not read until it changes or another version \
                         of smolet runs"
                    ),
                );
                let parsed = ParsedFile { problems: vec![problem], ..ParsedFile::default() };
                return ScannedFile::Read { stamp, unstable, parsed };
            }
            let handling = poison::handling(Some(mark));
            let own = known.map_or(0, |(_, bytes)| *bytes);
            let parsed = parse(&name, &bytes, &request.node, request.seen, *room + own);
            drop(handling);
            let holds_secret = parsed.objects.iter().any(|object| matches!(object.object, Object::Secret(_)));
            if holds_secret && meta.mode() & 0o077 != 0 {
                log::warn!("{}: contains a Secret and is readable by others; chmod 600", shown_file(&name));
            }
            *room = (*room + own).saturating_sub(parsed.bytes.max(own));
            ScannedFile::Read { stamp, unstable, parsed }
        }
    }
}

/// Reads a file that the user names, whatever its name.
pub fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    let (file, meta) = open(path)?;
    read(&file, meta.size())
}

/// Reads at most `MANIFEST_BYTES_MAX` from any stream, such as standard input.
pub fn read_stream(from: &mut dyn Read) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    from.take(limits::MANIFEST_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(|e| file_error(&e))?;
    if bytes.len() > limits::MANIFEST_BYTES_MAX { Err(too_large(None)) } else { Ok(bytes) }
}

fn open(path: &Path) -> Result<(File, Metadata), String> {
    // For the message: a file that is not regular is not opened in any case.
    let kind = |meta: &Metadata| {
        let kind = meta.file_type();
        match () {
            () if kind.is_dir() => Some("a directory"),
            () if kind.is_fifo() => Some("a FIFO"),
            () if kind.is_socket() => Some("a socket"),
            () if kind.is_block_device() || kind.is_char_device() => Some("a device"),
            () => None,
        }
    };
    let refuse = |kind: &str| format!("is {kind}; a manifest must be a regular file");
    let meta = fs::metadata(path).map_err(|e| file_error(&e))?;
    if let Some(kind) = kind(&meta) {
        return Err(refuse(kind));
    }
    let file = open_linked(path).map_err(|e| file_error(&e))?;
    let meta = file.metadata().map_err(|e| file_error(&e))?;
    Ok((file, meta))
}

fn read(file: &File, size: u64) -> Result<Vec<u8>, String> {
    if size > limits::MANIFEST_BYTES_MAX as u64 {
        return Err(too_large(Some(size)));
    }
    let mut from = file;
    read_stream(&mut from)
}

fn too_large(size: Option<u64>) -> String {
    let max = limits::MANIFEST_BYTES_MAX;
    match size {
        Some(size) => format!("is too large: {size} bytes, at most {max} are read"),
        None => format!("is too large: at most {max} bytes are read"),
    }
}

fn file_error(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "does not exist, or is a symbolic link to nothing".to_owned(),
        io::ErrorKind::PermissionDenied => "cannot be read: permission denied".to_owned(),
        _ if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
            "is a symbolic link that leads back to itself".to_owned()
        }
        _ => format!("cannot be read: {error}"),
    }
}

fn dir_error(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "does not exist; create it and put the manifests there".to_owned(),
        io::ErrorKind::PermissionDenied => "cannot be read: permission denied".to_owned(),
        _ => format!("cannot be read: {error}"),
    }
}

/// An inotify watch on the directory; `None` when the system has none left.
fn watch(dir: &Path) -> Option<OwnedFd> {
    let fd = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?;
    let events = WatchFlags::CREATE
        | WatchFlags::MODIFY
        | WatchFlags::CLOSE_WRITE
        | WatchFlags::MOVED_FROM
        | WatchFlags::MOVED_TO
        | WatchFlags::DELETE
        | WatchFlags::ATTRIB
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVE_SELF
        | WatchFlags::ONLYDIR;
    inotify::add_watch(&fd, dir, events).ok()?;
    Some(fd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_ended_the_process_twice_is_not_decoded() {
        let root = std::env::temp_dir().join(format!("smolet-scan-{}", std::process::id()));
        let manifest = root.join("m/a.yaml");
        fs::create_dir_all(root.join("m")).expect("a folder");
        fs::write(&manifest, "kind: Pod").expect("a manifest");
        let line = format!(
            "{} {}\n",
            env!("CARGO_PKG_VERSION"),
            poison::file_mark(&manifest.to_string_lossy(), b"kind: Pod")
        );
        fs::write(root.join("panics"), [&*line, &*line].concat()).expect("the list");
        let problems = || {
            let scanned = scan(&ScanRequest {
                dir: root.join("m"),
                node: NodeName::new("n"),
                seen: Wall(0),
                known: SortedMap::new(),
                force: SortedSet::new(),
                skip: SortedSet::new(),
                watch: Watch::Without,
                taken: 0,
                set_aside: Arc::new(SetAside::read(&root)),
            });
            let file = scanned.expect("a directory").files.remove(OsStr::new("a.yaml"));
            let Some(ScannedFile::Read { parsed, .. }) = file else { panic!("the file is read") };
            parsed.problems.iter().map(ToString::to_string).collect::<String>()
        };
        assert!(problems().contains("reading it ended the agent 2 times"), "{}", problems());
        fs::write(&manifest, "kind: Pot").expect("another manifest");
        assert!(!problems().contains("reading it ended the agent"), "{}", problems());
        fs::remove_dir_all(&root).expect("removed");
    }

    #[test]
    fn names_of_manifests() {
        for (name, is) in [
            ("web.yaml", true),
            ("web.yml", true),
            ("web.json", true),
            ("a b.yaml", true),
            ("web.backup.yaml", true),
            (".web.yaml", false),
            (".yaml", false),
            ("web.yaml~", false),
            ("#web.yaml#", false),
            ("#web.yaml", false),
            (".#web.yaml", false),
            ("web.yaml.swp", false),
            ("web.yaml.backup", false),
            ("web.yaml.bak", false),
            ("web.yaml.orig", false),
            ("web.yaml.rpmsave", false),
            ("web.yaml.dpkg-old", false),
            ("web.yaml.tmp123", false),
            ("README", false),
            ("4913", false),
        ] {
            assert_eq!(is_manifest_name(OsStr::new(name)), is, "{name}");
        }
    }
}
