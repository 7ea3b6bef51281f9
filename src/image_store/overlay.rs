//! Mounts of overlayfs. I/O, blocking.
//!
//! The options of mount(2) fit into a page. Where the paths of the layers do not, or have characters with a meaning there, the layers are
//! opened and named by their descriptors (`/proc/self/fd/N`): some two hundred of them fit.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use super::disk::make_directories;
use super::layer::directory;
use crate::limits::OVERLAY_OPTIONS_BYTES_MAX;
use crate::tree;

/// A mount of overlayfs.
#[derive(Debug)]
pub(super) struct Overlay {
    /// Layers, the highest first; at least one, and two without an upper directory.
    pub(super) lower: Vec<PathBuf>,
    /// Upper and work directory; without them it is read-only.
    pub(super) upper: Option<(PathBuf, PathBuf)>,
    /// A changed owner or mode copies no data up.
    pub(super) metacopy: bool,
    /// The `SELinux` label of all its files; empty: each has its own.
    pub(super) label: String,
}

impl Overlay {
    /// Mounts it.
    ///
    /// # Errors
    /// The kernel's; or there are too many layers for its options.
    pub(super) fn mount(&self, at: &Path) -> io::Result<()> {
        let (mut shown, mut held) = (self.options(|path| Ok(path.to_owned()))?, Vec::new());
        let is_plain = |path: &Path| !path.as_os_str().as_bytes().iter().any(|byte| b":,\\\n".contains(byte));
        let upper = self.upper.iter().flat_map(|(upper, work)| [upper, work]);
        if shown.len() > OVERLAY_OPTIONS_BYTES_MAX
            || !self.lower.iter().chain(upper).all(|path| is_plain(path))
        {
            shown = self.options(|path| named(path, &mut held))?;
        }
        if shown.len() > OVERLAY_OPTIONS_BYTES_MAX {
            let layers = self.lower.len();
            return Err(io::Error::other(format!("{layers} layers are too many for overlayfs' options")));
        }
        let options = CString::new(shown)?;
        let flags = match self.upper {
            Some(_) => MountFlags::empty(),
            None => MountFlags::RDONLY | MountFlags::NODEV | MountFlags::NOSUID,
        };
        mount("overlay", at, "overlay", flags, Some(&*options))?;
        drop(held);
        Ok(())
    }

    fn options(&self, mut name: impl FnMut(&Path) -> io::Result<PathBuf>) -> io::Result<Vec<u8>> {
        let mut options = b"lowerdir=".to_vec();
        for (index, lower) in self.lower.iter().enumerate() {
            if index > 0 {
                options.push(b':');
            }
            options.extend_from_slice(name(lower)?.as_os_str().as_bytes());
        }
        if let Some((upper, work)) = &self.upper {
            for (key, path) in [("upperdir", upper), ("workdir", work)] {
                options.extend_from_slice(format!(",{key}=").as_bytes());
                options.extend_from_slice(name(path)?.as_os_str().as_bytes());
            }
        }
        if self.metacopy {
            options.extend_from_slice(b",metacopy=on");
        }
        if !self.label.is_empty() {
            // A label has commas.
            options.extend_from_slice(format!(",context=\"{}\"", self.label).as_bytes());
        }
        Ok(options)
    }
}

/// The path of a directory that is held open.
fn named(path: &Path, held: &mut Vec<OwnedFd>) -> io::Result<PathBuf> {
    let dir = directory(path)?;
    let named = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()));
    held.push(dir);
    Ok(named)
}

/// Unmounts whatever is mounted there, also when it is in use; nothing is no error.
pub(super) fn detach(at: &Path) -> io::Result<()> {
    loop {
        match unmount(at, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            // Nothing is mounted there, or there is nothing.
            Err(Errno::INVAL | Errno::NOENT) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Tries whether a container's root file system can be an overlay in that directory, with the files that a layer has.
///
/// # Errors
/// It cannot be, or that cannot be known now: see [`is_refusal`].
pub(super) fn probe(dir: &Path) -> io::Result<()> {
    let at = |name: &str| dir.join(name);
    let tried = (|| {
        detach(&at("merged"))?;
        for name in ["lower", "upper", "work", "merged"] {
            make_directories(&at(name), 0o700)?;
        }
        let lower = vec![at("lower")];
        let upper = Some((at("upper"), at("work")));
        let overlay = Overlay { lower, upper, metacopy: false, label: String::new() };
        overlay.mount(&at("merged"))?;
        // Some file systems are taken for an upper directory that cannot be one.
        let made = std::fs::create_dir(at("merged/made"));
        detach(&at("merged"))?;
        made
    })();
    for name in ["lower", "upper", "work", "merged"] {
        // Tried again with the next probe.
        let _ = tree::remove(&at(name), || true);
    }
    tried
}

/// Why containers have copies of their images where the store is, or will be; `None`: overlays can be mounted there, or that cannot be known
/// now. Nothing of the try stays. Blocking.
pub fn refusal_at(root: &Path) -> Option<io::Error> {
    let above = root.ancestors().find(|above| above.is_dir())?;
    let dir = above.join(format!(".smolet-overlay-{}", std::process::id()));
    // Made anew: above may be a directory of others.
    std::fs::create_dir(&dir).ok()?;
    let tried = probe(&dir);
    let _ = std::fs::remove_dir(&dir);
    tried.err().filter(is_refusal)
}

/// The kernel or the file system has none. A disk that is full or read-only, or a process without memory, says nothing of that. PURE.
pub(super) fn is_refusal(error: &io::Error) -> bool {
    let is_of_now = [
        Errno::NOSPC,
        Errno::DQUOT,
        Errno::ROFS,
        Errno::IO,
        Errno::NOMEM,
        Errno::MFILE,
        Errno::NFILE,
        Errno::INTR,
        Errno::AGAIN,
    ];
    !is_of_now.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_is_full_or_read_only_says_nothing_of_overlays() {
        for (errno, refuses) in [
            (Errno::NODEV, true),
            (Errno::INVAL, true),
            (Errno::PERM, true),
            (Errno::NOSPC, false),
            (Errno::ROFS, false),
            (Errno::MFILE, false),
        ] {
            assert_eq!(is_refusal(&errno.into()), refuses, "{errno:?}");
        }
        assert!(is_refusal(&io::Error::other("made for the test")));
    }

    #[test]
    fn a_label_is_quoted_as_it_has_commas() {
        let lower = vec![PathBuf::from("/a"), PathBuf::from("/b")];
        let upper = Some((PathBuf::from("/u"), PathBuf::from("/w")));
        let label = "system_u:object_r:container_file_t:s0:c1,c2".to_owned();
        let overlay = Overlay { lower, upper, metacopy: false, label };
        let options = overlay.options(|path| Ok(path.to_owned())).unwrap();
        assert_eq!(
            String::from_utf8(options).unwrap(),
            "lowerdir=/a:/b,upperdir=/u,workdir=/w,context=\"system_u:object_r:container_file_t:s0:c1,c2\""
        );
    }
}
