//! Pull records on the disk (`fsPullRecordsAccessor`): `image_manager/{pulling,pulled}/sha256-…`, named by the digest of the
//! image's name and of the runtime's id. Everything here blocks.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use sha2::{Digest as _, Sha256};

use super::record::{self, Access, PulledRecord};
use crate::filesystem::read_bounded;
use crate::filesystem::replace;
use crate::image::name::{full_name, without_tag};
use crate::limits::{PULL_RECORD_BYTES_MAX, PULL_RECORDS_READ_MAX};
use crate::model::Wall;
use crate::status;
use crate::text::hex;

const PREFIX: &str = "sha256-";

/// Pull records of an image that is present.
pub(super) struct KnownImage {
    /// The agent pulled it, or may have.
    pub(super) is_pulled: bool,
    pub(super) record: Option<PulledRecord>,
}

/// The two directories, and the pulls in progress.
pub(super) struct Records {
    pulling: PathBuf,
    pulled: PathBuf,
    /// Number and image of each pull. At most as many as pulls run at once.
    under_way: Vec<(u64, String)>,
    /// During a prune, the images pulled since the list was requested: at most as many as pulls end in that time.
    since_prune: Option<BTreeSet<String>>,
}

impl Records {
    pub(super) fn new(root_dir: &Path) -> Self {
        let dir = root_dir.join("image_manager");
        Self {
            pulling: dir.join("pulling"),
            pulled: dir.join("pulled"),
            under_way: Vec::new(),
            since_prune: None,
        }
    }

    pub(super) fn begin(&mut self, number: u64, image: &str) -> io::Result<()> {
        if !self.is_under_way(image) {
            // Not synced to the disk: a pull takes longer than the write-back, or brings nothing.
            make(&self.pulling)?;
            let path = path(&self.pulling, image);
            fs::write(path.with_extension("tmp"), record::intent(image))?;
            fs::rename(path.with_extension("tmp"), path)?;
        }
        self.under_way.push((number, image.to_owned()));
        Ok(())
    }

    pub(super) fn pulled(&mut self, number: u64, image_ref: &str, by: Access) -> io::Result<()> {
        let image = self.under_way.iter().find(|(of, _)| *of == number).map(|(_, image)| image.clone());
        if let Some(image) = image {
            self.add(&image, image_ref, by)?;
        }
        self.end(number);
        Ok(())
    }

    pub(super) fn end(&mut self, number: u64) {
        let Some(at) = self.under_way.iter().position(|(of, _)| *of == number) else { return };
        let (_, image) = self.under_way.swap_remove(at);
        if !self.is_under_way(&image) {
            remove(&path(&self.pulling, &image));
        }
    }

    fn is_under_way(&self, image: &str) -> bool {
        self.under_way.iter().any(|(_, of)| of == image)
    }

    /// `writePulledRecordIfChanged`.
    pub(super) fn add(&mut self, image: &str, image_ref: &str, by: Access) -> io::Result<()> {
        if let Some(pulled) = &mut self.since_prune {
            pulled.insert(image_ref.to_owned());
        }
        // An unreadable record is written again.
        let known = self.read(image_ref).unwrap_or_default();
        let is_new = known.is_none();
        let mut record = known.unwrap_or_else(|| PulledRecord::new(image_ref));
        if record.add(without_tag(image), by) || is_new {
            self.write_record(&record)?;
        }
        Ok(())
    }

    fn write_record(&self, record: &PulledRecord) -> io::Result<()> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let now = Wall(i64::try_from(now.as_nanos()).unwrap_or_default() / 1_000_000_000 * 1_000_000_000);
        let updated = status::time(now).map(|time| time.0.to_string()).unwrap_or_default();
        write(&self.pulled, &record.image_ref, &record.to_bytes(&updated))
    }

    pub(super) fn known(&self, image: &str, image_ref: &str) -> io::Result<KnownImage> {
        let record = self.read(image_ref)?;
        // A damaged record counts too: its name is that of the image.
        let is_intended = || optional(fs::symlink_metadata(path(&self.pulling, image)));
        let is_pulled = record.is_some() || self.is_under_way(image) || is_intended()?.is_some();
        Ok(KnownImage { is_pulled, record })
    }

    fn read(&self, image_ref: &str) -> io::Result<Option<PulledRecord>> {
        let Some(bytes) = optional(read_bounded(&path(&self.pulled, image_ref), PULL_RECORD_BYTES_MAX))?
        else {
            return Ok(None);
        };
        match PulledRecord::parse(&bytes) {
            Some(record) => Ok(Some(record).filter(|record| record.image_ref == image_ref)),
            None => Err(io::Error::new(io::ErrorKind::InvalidData, "it is no ImagePulledRecord")),
        }
    }

    /// True when an earlier agent left intents of unfinished pulls.
    pub(super) fn left_behind(&self) -> bool {
        self.intents().any(|image| !self.is_under_way(&image))
    }

    fn intents(&self) -> impl Iterator<Item = String> {
        files(&self.pulling)
            .filter_map(|path| record::intended(&read_bounded(&path, PULL_RECORD_BYTES_MAX).ok()?))
    }

    /// Settles the pulls of an earlier agent: images that are present were pulled with unknown credentials; the other
    /// intents are removed.
    pub(super) fn settle(&mut self, images: &[(String, Vec<String>)]) {
        let left: Vec<String> = self.intents().filter(|image| !self.is_under_way(image)).collect();
        for image in left {
            let full = full_name(&image).unwrap_or_default();
            let is_named = |name: &String| *name == image || *name == full;
            let mut there = images.iter().filter(|(_, names)| names.iter().any(is_named));
            match there.try_for_each(|(id, _)| self.mark_pulled(id)) {
                Ok(()) => remove(&path(&self.pulling, &image)),
                Err(error) => log::warn!("image {image}: pull record not written: {error}"),
            }
        }
    }

    fn mark_pulled(&self, image_ref: &str) -> io::Result<()> {
        match self.read(image_ref) {
            Ok(Some(_)) => Ok(()),
            Ok(None) | Err(_) => self.write_record(&PulledRecord::new(image_ref)),
        }
    }

    pub(super) fn begin_prune(&mut self) {
        self.since_prune = Some(BTreeSet::new());
    }

    pub(super) fn prune(&mut self, images: &[String]) {
        let meanwhile = self.since_prune.take().unwrap_or_default();
        let kept: BTreeSet<String> =
            images.iter().chain(&meanwhile).map(|image_ref| file_name(image_ref)).collect();
        for path in files(&self.pulled) {
            let is_kept =
                path.file_name().and_then(|name| name.to_str()).is_some_and(|name| kept.contains(name));
            if !is_kept {
                remove(&path);
            }
        }
    }
}

fn file_name(of: &str) -> String {
    format!("{PREFIX}{}", hex(&Sha256::digest(of)))
}

fn path(dir: &Path, of: &str) -> PathBuf {
    dir.join(file_name(of))
}

/// The records in a directory, at most `PULL_RECORDS_READ_MAX`.
fn files(dir: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(dir).into_iter().flatten().take(PULL_RECORDS_READ_MAX).flatten();
    entries.map(|entry| entry.path()).filter(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with(PREFIX) && !name.contains('.')
    })
}

fn optional<T>(read: io::Result<T>) -> io::Result<Option<T>> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Readable by root only: the records contain digests of credentials.
fn write(dir: &Path, of: &str, bytes: &[u8]) -> io::Result<()> {
    make(dir)?;
    let path = path(dir, of);
    replace(&path, &path.with_extension("tmp"), bytes)
}

fn make(dir: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        log::warn!("{}: not removed: {error}", path.display());
    }
}
