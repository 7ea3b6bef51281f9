//! The folder of the offline copy: written file by file, read once at a start without the API server. I/O, blocking.
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use ring::digest::{SHA256, digest};

use super::super::checkpoint::Unreadable;
use super::content::{self, OfflineNode};
use super::record::{DIGEST_BYTES, Digest, Kind, Name, Record, from_bytes, to_bytes};
use super::seal::Key;
use super::tree;
use crate::filesystem::read_start;
use crate::filesystem::replace_only;
use crate::limits::{OFFLINE_BYTES_MAX, OFFLINE_RECORD_BYTES_MAX, OFFLINE_RECORDS_MAX};
use crate::model::{Object, ObjectKey};
use crate::model::{SortedMap, SortedSet};

/// Its name in the state directory.
const FOLDER: &str = "cluster";
/// The key's file in it.
const KEY: &str = "key";
/// The temporary file of a write.
const NEW: &str = "new";

/// The first bytes of the SHA-256 hash.
fn first_bytes(of: &[u8]) -> Digest {
    let mut first = [0; DIGEST_BYTES];
    first.copy_from_slice(&digest(&SHA256, of).as_ref()[..DIGEST_BYTES]);
    first
}

/// The cluster and node that files belong to: those of another one are not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner(Digest);

impl Owner {
    /// The owner for that node in the cluster with that `trust`: the certificate authorities, else the server's address.
    pub fn new(node: &str, trust: &[u8]) -> Self {
        Self(first_bytes(&[node.as_bytes(), &[0], trust].concat()))
    }

    /// Associated data of an encrypted content: it is valid for that owner and name only.
    fn about(self, name: &Name) -> Vec<u8> {
        [&self.0, &*name.as_bytes()].concat()
    }
}

/// The name of an object's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileName(Digest);

impl FileName {
    /// The file name of that object.
    pub fn of(name: &Name) -> Self {
        Self(first_bytes(&name.as_bytes()))
    }

    fn text(self) -> String {
        let digit = |half: u8| char::from_digit(u32::from(half), 16).unwrap_or_default();
        self.0.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 0xf)]).collect()
    }

    fn read(text: &str) -> Option<Self> {
        let digits = text.as_bytes();
        if digits.len() != 2 * DIGEST_BYTES || !digits.iter().all(u8::is_ascii_hexdigit) {
            return None;
        }
        let mut digest = [0; DIGEST_BYTES];
        for (byte, digits) in digest.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        }
        let name = Self(digest);
        (name.text() == text).then_some(name)
    }
}

/// A file to write.
pub struct Put {
    /// Its object.
    pub name: Name,
    /// Its content.
    pub content: Content,
}

/// A file's content, encoded when it is written.
pub enum Content {
    /// Encoded already.
    Bytes(Vec<u8>),
    /// An object; `None` = it does not exist.
    Object(Option<Object>),
}

impl Content {
    /// `None` = nothing is stored for it.
    fn bytes(&self) -> Option<Vec<u8>> {
        match self {
            Self::Bytes(bytes) => Some(bytes.clone()),
            Self::Object(object) => content::encode(object.as_ref()),
        }
    }
}

/// Result of a write.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Files that were created or replaced.
    pub files: usize,
    /// Objects that were left out because the folder is full.
    pub left_out: usize,
    /// Why Secrets and tokens were not stored.
    pub no_key: Option<String>,
}

/// The content of the folder.
#[derive(Default)]
pub struct OfflineState {
    /// The encoded pods ([`tree::decode`]).
    pub pods: Vec<Vec<u8>>,
    /// Objects that they reference; `None` = it does not exist.
    pub objects: SortedMap<ObjectKey, Option<Object>>,
    /// The Node's labels, taints and pod CIDRs.
    pub node: Option<OfflineNode>,
}

/// The folder. Clones share it.
#[derive(Clone)]
pub struct Folder {
    dir: PathBuf,
    /// One write at a time: an abandoned one continues in its thread.
    turn: Arc<Mutex<()>>,
}

impl Folder {
    /// The folder in that state directory, which this process has locked.
    pub fn new(root_dir: &Path) -> Self {
        Self { dir: root_dir.join(FOLDER), turn: Arc::default() }
    }

    /// Writes the changed files and removes those that are not `wanted`. Waits for the disk.
    ///
    /// # Errors
    /// The disk's; files written before it stay.
    pub fn write(
        &self,
        owner: Owner,
        wanted: &SortedSet<FileName>,
        puts: &SortedMap<FileName, Put>,
    ) -> io::Result<Written> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        let mut write = Write {
            folder: self,
            owner,
            // Damaged files and those of a newer version are renamed when they are read; files of another cluster are removed
            // or replaced here.
            sizes: self.list()?.into_iter().collect(),
            key: None,
            changed: false,
            written: Written::default(),
        };
        let unwanted: Vec<FileName> =
            write.sizes.keys().filter(|file| !wanted.contains(file)).copied().collect();
        for file in unwanted {
            write.remove(file)?;
        }
        for (file, put) in puts.iter().filter(|(file, _)| wanted.contains(file)) {
            write.put(*file, put)?;
        }
        if write.changed {
            File::open(&self.dir)?.sync_all()?;
        }
        Ok(write.written)
    }

    /// Reads all files. Unreadable ones are set aside, with one log line for all of them: their pods wait for the server.
    pub fn read(&self, owner: Owner) -> OfflineState {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let mut read = Reading {
            kept: OfflineState::default(),
            owner,
            key: self.key(),
            aside: 0,
            unopened: 0,
            others: 0,
        };
        match self.list() {
            Ok(files) => files.into_iter().for_each(|(file, _)| read.file(self, file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => log::warn!("{}: {error}; pods wait for the API server", self.dir.display()),
        }
        read.tell(self);
        read.kept
    }

    /// The files, with their sizes.
    fn list(&self) -> io::Result<Vec<(FileName, u64)>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            let file = entry.file_name().to_str().and_then(FileName::read);
            if let Some(file) = file.filter(|_| files.len() < OFFLINE_RECORDS_MAX) {
                files.push((file, entry.metadata()?.len()));
            }
        }
        Ok(files)
    }

    fn path(&self, file: FileName) -> PathBuf {
        self.dir.join(file.text())
    }

    fn bytes(&self, file: FileName) -> io::Result<Vec<u8>> {
        // One byte more than allowed shows that the file is too long.
        read_start(&self.path(file), OFFLINE_RECORD_BYTES_MAX + 1)
    }

    fn key(&self) -> Result<Option<Key>, String> {
        Key::read(&self.dir.join(KEY))
    }
}

/// One write.
struct Write<'a> {
    folder: &'a Folder,
    owner: Owner,
    sizes: SortedMap<FileName, u64>,
    /// Read, or created, when it is needed.
    key: Option<Result<Key, String>>,
    changed: bool,
    written: Written,
}

impl Write<'_> {
    fn remove(&mut self, file: FileName) -> io::Result<()> {
        fs::remove_file(self.folder.path(file))?;
        self.sizes.remove(&file);
        self.changed = true;
        Ok(())
    }

    fn key(&mut self) -> Result<&Key, &String> {
        let path = self.folder.dir.join(KEY);
        let found = self.key.get_or_insert_with(|| match Key::read(&path)? {
            Some(key) => Ok(key),
            None => Key::make(&path).map_err(|error| format!("{}: {error}", path.display())),
        });
        found.as_ref()
    }

    fn put(&mut self, file: FileName, put: &Put) -> io::Result<()> {
        let Some(content) = put.content.bytes() else { return Ok(()) };
        if self.is_stored(file, put, &content) {
            return Ok(());
        }
        let about = self.owner.about(&put.name);
        let content = if put.name.kind.is_sealed() {
            match self.key() {
                Ok(key) => key.seal(content, &about)?,
                Err(why) => {
                    self.written.no_key = Some(why.clone());
                    return Ok(());
                }
            }
        } else {
            content
        };
        let Name { kind, namespace, name } = &put.name;
        let bytes =
            to_bytes(&Record { owner: self.owner.0, kind: *kind, namespace, name, content: &content });
        let others: u64 = self.sizes.iter().filter(|(other, _)| **other != file).map(|(_, size)| size).sum();
        let is_new = !self.sizes.contains_key(&file);
        if bytes.len() > OFFLINE_RECORD_BYTES_MAX
            || others + bytes.len() as u64 > OFFLINE_BYTES_MAX as u64
            || is_new && self.sizes.len() >= OFFLINE_RECORDS_MAX
        {
            self.written.left_out += 1;
            // The earlier version is out of date.
            return if is_new { Ok(()) } else { self.remove(file) };
        }
        let beside = self.folder.dir.join(NEW);
        if let Err(error) = replace_only(&self.folder.path(file), &beside, &bytes) {
            // A partial file would only use space on a full disk.
            let _ = fs::remove_file(beside);
            return Err(error);
        }
        self.sizes.insert(file, bytes.len() as u64);
        self.changed = true;
        self.written.files += 1;
        Ok(())
    }

    /// True when the file holds this content already; any token counts as the same.
    fn is_stored(&mut self, file: FileName, put: &Put, content: &[u8]) -> bool {
        if !self.sizes.contains_key(&file) {
            return false;
        }
        let Ok(bytes) = self.folder.bytes(file) else { return false };
        let Ok(record) = from_bytes(&bytes) else { return false };
        if record.owner != self.owner.0 || record.of() != put.name {
            return false;
        }
        if !put.name.kind.is_sealed() {
            return record.content == content;
        }
        let about = self.owner.about(&put.name);
        let opened = self.key().ok().and_then(|key| key.open(record.content, &about));
        opened.is_some_and(|opened| opened == content || put.name.kind == Kind::Token)
    }
}

/// A read of all files.
struct Reading {
    kept: OfflineState,
    owner: Owner,
    key: Result<Option<Key>, String>,
    /// Files that were set aside.
    aside: usize,
    /// Files that the key does not decrypt.
    unopened: usize,
    /// Files of another cluster or node.
    others: usize,
}

impl Reading {
    fn file(&mut self, folder: &Folder, file: FileName) {
        let bytes = match folder.bytes(file) {
            Ok(bytes) => bytes,
            Err(error) => {
                log::warn!("{}: {error}; its pods wait for the API server", folder.path(file).display());
                return;
            }
        };
        if let Err(unreadable) = self.take(file, &bytes) {
            let aside = match unreadable {
                Unreadable::Newer => "newer",
                Unreadable::Damaged => "damaged",
            };
            self.aside += 1;
            // One of each kind is kept for inspection.
            if let Err(error) = fs::rename(folder.path(file), folder.dir.join(aside)) {
                log::warn!("{}: not set aside: {error}", folder.path(file).display());
            }
        }
    }

    fn take(&mut self, file: FileName, bytes: &[u8]) -> Result<(), Unreadable> {
        let record = from_bytes(bytes)?;
        let name = record.of();
        if FileName::of(&name) != file {
            return Err(Unreadable::Damaged);
        }
        if record.owner != self.owner.0 {
            self.others += 1;
            return Ok(());
        }
        let opened;
        let content = if name.kind.is_sealed() {
            let about = self.owner.about(&name);
            let key = self.key.as_ref().ok().and_then(Option::as_ref);
            let Some(content) = key.and_then(|key| key.open(record.content, &about)) else {
                // The key may be restored later.
                self.unopened += 1;
                return Ok(());
            };
            opened = content;
            &*opened
        } else {
            record.content
        };
        let damaged = |_| Unreadable::Damaged;
        match (name.kind, content::key_of(&name)) {
            (Kind::Pod, _) => {
                tree::decode(content).map_err(damaged)?;
                self.kept.pods.push(content.to_vec());
            }
            (Kind::Node, _) | (_, None) => {
                self.kept.node = Some(content::decode_node(content).map_err(damaged)?);
            }
            (_, Some(key)) => {
                let object = content::decode(&key, content).map_err(damaged)?;
                self.kept.objects.insert(key, object);
            }
        }
        Ok(())
    }

    fn tell(&self, folder: &Folder) {
        let dir = folder.dir.display();
        if self.aside > 0 {
            log::warn!(
                "{dir}: {} files are damaged or of a newer version; set aside, their pods wait for the API server",
                self.aside
            );
        }
        if self.others > 0 {
            log::warn!("{dir}: {} files are of another cluster or node; ignored", self.others);
        }
        if self.unopened > 0 {
            let why = match &self.key {
                Err(why) => why.clone(),
                Ok(None) => format!("{}: is not there", folder.dir.join(KEY).display()),
                Ok(Some(_)) => format!("{}: is another key", folder.dir.join(KEY).display()),
            };
            log::warn!(
                "{why}: {} Secrets and tokens cannot be decrypted; pods that need them wait for the API server",
                self.unopened
            );
        }
    }
}
