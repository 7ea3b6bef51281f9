//! The checkpoint on disk: read once, replaced atomically, set aside when it cannot be read.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::checkpoint::{Checkpoint, Unreadable, from_bytes};
use crate::filesystem::{read_linked, replace};
use crate::limits::CHECKPOINT_BYTES_MAX;

/// Its name below the state directory.
const NAME: &str = "checkpoint";

/// Where the checkpoint stands, and which write was the last.
#[derive(Clone, Debug)]
pub struct CheckpointFile {
    path: PathBuf,
    /// The number of the newest write. A write that was given up goes on in its thread: it must not come last.
    newest: Arc<Mutex<u64>>,
}

impl CheckpointFile {
    /// The checkpoint of that state directory, which this process holds (`identity`).
    pub fn new(root_dir: &Path) -> Self {
        Self { path: root_dir.join(NAME), newest: Arc::default() }
    }

    /// Reads it and hands it over. What cannot be read is set aside under another name (one each: an older one is
    /// replaced), with one line in the log; the agent then goes by the runtime alone.
    pub fn load<T>(&self, take: impl FnOnce(&Checkpoint<'_>) -> T) -> Option<T> {
        let unreadable = match read_linked(&self.path, CHECKPOINT_BYTES_MAX) {
            Ok(bytes) => match from_bytes(&bytes) {
                Ok(checkpoint) => return Some(take(&checkpoint)),
                Err(unreadable) => unreadable,
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => Unreadable::Damaged,
            Err(error) => {
                log::warn!("{}: {error}; restart counts come from the runtime alone", self.path.display());
                return None;
            }
        };
        let (what, aside) = match unreadable {
            Unreadable::Newer => ("is of a newer version", self.path.with_extension("newer")),
            Unreadable::Damaged => ("is damaged", self.path.with_extension("damaged")),
        };
        let moved = match std::fs::rename(&self.path, &aside) {
            Ok(()) => format!("set aside as {}", aside.display()),
            Err(error) => format!("not set aside: {error}"),
        };
        log::warn!("{} {what}: {moved}; restart counts come from the runtime alone", self.path.display());
        None
    }

    /// Replaces the file and waits for the disk; power loss leaves the old or the new one, whole. `number` rises with
    /// each write; one that comes after a newer one does nothing. Blocks.
    ///
    /// # Errors
    /// The disk's; the old file is then still there.
    pub fn write(&self, number: u64, bytes: &[u8]) -> io::Result<()> {
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        if *newest > number {
            return Ok(());
        }
        let beside = self.path.with_extension("new");
        let written = replace(&self.path, &beside, bytes);
        if written.is_ok() {
            *newest = number;
        } else {
            // Half of it would only take room on a full disk.
            let _ = std::fs::remove_file(&beside);
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::super::checkpoint::to_bytes;
    use super::*;

    #[test]
    fn what_was_written_last_is_read_and_what_cannot_be_read_is_set_aside() {
        let root = std::env::temp_dir().join(format!("smolet-checkpoint-{}", std::process::id()));
        std::fs::create_dir_all(&root).unwrap();
        let file = CheckpointFile::new(&root);
        let load = || file.load(|checkpoint| checkpoint.boot.to_owned());
        assert_eq!(load(), None);
        let named = |boot| Checkpoint { boot, ..Checkpoint::default() };
        file.write(2, &to_bytes(&named("two"))).unwrap();
        file.write(1, &to_bytes(&named("one"))).unwrap();
        assert_eq!(load().as_deref(), Some("two"), "an older write that comes late does nothing");
        let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(root.join(NAME)).unwrap());
        assert_eq!(mode & 0o777, 0o600);
        for (bytes, aside) in [(b"smolet\x02".as_slice(), "checkpoint.newer"), (b"", "checkpoint.damaged")] {
            for _ in 0..2 {
                std::fs::write(root.join(NAME), bytes).unwrap();
                assert_eq!(load(), None);
                assert_eq!(std::fs::read(root.join(aside)).unwrap(), bytes);
                assert!(!root.join(NAME).exists());
            }
        }
        // What was left beside it, with a mode that is too wide, and a link.
        let (outside, beside) = (root.join("outside"), root.join("checkpoint.new"));
        std::fs::write(&outside, "kept").unwrap();
        for left in [
            |path: &Path, _: &Path| std::fs::write(path, "left").unwrap(),
            |path: &Path, to: &Path| {
                std::os::unix::fs::symlink(to, path).unwrap();
            },
        ] {
            left(&beside, &outside);
            // Held open by whoever was let to read it.
            let held = File::open(&beside).unwrap();
            file.write(2, &to_bytes(&named("two"))).unwrap();
            assert_eq!(
                std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(root.join(NAME)).unwrap()) & 0o777,
                0o600
            );
            assert!(std::io::read_to_string(held).unwrap().len() == 4);
        }
        assert_eq!(std::fs::read_to_string(&outside).unwrap(), "kept");
        // A full disk, as far as a directory in the way is one.
        std::fs::create_dir(root.join("checkpoint.new")).unwrap();
        assert!(file.write(3, b"").is_err());
        std::fs::remove_dir_all(&root).unwrap();
    }
}
