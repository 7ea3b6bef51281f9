//! The checkpoint file: read once, replaced atomically, set aside when it cannot be read.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::checkpoint::{Checkpoint, Unreadable, from_bytes};
use crate::filesystem::{read_linked, replace};
use crate::limits::CHECKPOINT_BYTES_MAX;

/// Its name in the state directory.
const NAME: &str = "checkpoint";

/// Path of the checkpoint, and the number of its newest write.
#[derive(Clone, Debug)]
pub struct CheckpointFile {
    path: PathBuf,
    /// Number of the newest write. An abandoned write continues in its thread: it must not replace a newer one.
    newest: Arc<Mutex<u64>>,
}

impl CheckpointFile {
    /// The checkpoint of that state directory, which this process has locked (`identity`).
    pub fn new(root_dir: &Path) -> Self {
        Self { path: root_dir.join(NAME), newest: Arc::default() }
    }

    /// Reads the file and passes it to `take`. An unreadable file is renamed (one of each kind: an older one is replaced), with
    /// one log line; the agent then relies on the runtime's state alone.
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

    /// Replaces the file and waits for the disk; after a power loss the old or the new one is there, complete. `number`
    /// increases with each write; a write older than the newest one has no effect. Blocks.
    ///
    /// # Errors
    /// The disk's; the old file then stays.
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
            // A partial file would only use space on a full disk.
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
    fn the_newest_write_is_read_and_an_unreadable_file_is_set_aside() {
        let root = std::env::temp_dir().join(format!("smolet-checkpoint-{}", std::process::id()));
        std::fs::create_dir_all(&root).unwrap();
        let file = CheckpointFile::new(&root);
        let load = || file.load(|checkpoint| checkpoint.boot.to_owned());
        assert_eq!(load(), None);
        let named = |boot| Checkpoint { boot, ..Checkpoint::default() };
        file.write(2, &to_bytes(&named("two"))).unwrap();
        file.write(1, &to_bytes(&named("one"))).unwrap();
        assert_eq!(load().as_deref(), Some("two"), "a late older write has no effect");
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
        // A leftover temporary file with a mode that is too wide, and a symbolic link.
        let (outside, beside) = (root.join("outside"), root.join("checkpoint.new"));
        std::fs::write(&outside, "kept").unwrap();
        for left in [
            |path: &Path, _: &Path| std::fs::write(path, "left").unwrap(),
            |path: &Path, to: &Path| {
                std::os::unix::fs::symlink(to, path).unwrap();
            },
        ] {
            left(&beside, &outside);
            // Held open by a reader that the mode allowed.
            let held = File::open(&beside).unwrap();
            file.write(2, &to_bytes(&named("two"))).unwrap();
            assert_eq!(
                std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(root.join(NAME)).unwrap()) & 0o777,
                0o600
            );
            assert!(std::io::read_to_string(held).unwrap().len() == 4);
        }
        assert_eq!(std::fs::read_to_string(&outside).unwrap(), "kept");
        // A directory in its path stands for a full disk.
        std::fs::create_dir(root.join("checkpoint.new")).unwrap();
        assert!(file.write(3, b"").is_err());
        std::fs::remove_dir_all(&root).unwrap();
    }
}
