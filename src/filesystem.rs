//! How full a file system is, and how a file is read that others may have a hand in. I/O; blocks, for as long as the file
//! system does not answer.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

/// What a file system has, as the kubelet counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filesystem {
    /// Its device.
    pub device: u64,
    /// Bytes in all.
    pub bytes: u64,
    /// Bytes that a user who is not root may still write; at most all of them.
    pub bytes_free: u64,
    /// Inodes in all; 0 where they are made as they are needed.
    pub inodes: u64,
    /// Inodes that are free.
    pub inodes_free: u64,
}

impl Filesystem {
    /// The one that `path` lies on.
    ///
    /// # Errors
    /// There is no such path, or its file system does not tell.
    pub fn of(path: &Path) -> io::Result<Self> {
        let device = std::fs::metadata(path)?.dev();
        let told = rustix::fs::statvfs(path)?;
        let bytes = |blocks: u64| blocks.saturating_mul(told.f_frsize);
        Ok(Self {
            device,
            bytes: bytes(told.f_blocks),
            bytes_free: bytes(told.f_bavail.min(told.f_blocks)),
            inodes: told.f_files,
            inodes_free: told.f_ffree.min(told.f_files),
        })
    }
}

/// Opens a regular file that others may have a hand in: a container, whoever writes to a directory of the node's. A link in
/// the file's place is not followed, and what is there is known before it is opened: opening a FIFO may wait for its writer, and
/// opening a device may do anything (a watchdog's begins to count).
///
/// # Errors
/// It is not there, or is no regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    opened(path, OFlags::NOFOLLOW)
}

/// The same of a file that the node's owner names, who may name a link.
///
/// # Errors
/// As [`open_regular`].
pub fn open_linked(path: &Path) -> io::Result<File> {
    opened(path, OFlags::empty())
}

fn opened(path: &Path, links: OFlags) -> io::Result<File> {
    let handle = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC | links, Mode::empty())?;
    if is_regular(&handle)? {
        reopened(&handle, OFlags::RDONLY)
    } else {
        Err(io::Error::other("is no regular file"))
    }
}

fn is_regular(handle: &OwnedFd) -> io::Result<bool> {
    Ok(FileType::from_raw_mode(rustix::fs::fstat(handle)?.st_mode) == FileType::RegularFile)
}

/// What the handle stands for, which cannot become another file. Whoever holds a lease on it keeps nobody waiting.
///
/// # Errors
/// The kernel's.
pub fn reopened(handle: &OwnedFd, access: OFlags) -> io::Result<File> {
    let path = format!("/proc/self/fd/{}", handle.as_raw_fd());
    let flags = access | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}

/// What is in a file that others may have a hand in ([`open_regular`]).
///
/// # Errors
/// As [`open_regular`]; it has more than `bytes_max` bytes, of which none is read then, as far as its size says so.
pub fn read_bounded(path: &Path, bytes_max: usize) -> io::Result<Vec<u8>> {
    read_whole(&open_regular(path)?, bytes_max)
}

/// What is in a file that the node's owner names ([`open_linked`]).
///
/// # Errors
/// As [`read_bounded`].
pub fn read_linked(path: &Path, bytes_max: usize) -> io::Result<Vec<u8>> {
    read_whole(&open_linked(path)?, bytes_max)
}

/// Content of an open file.
///
/// # Errors
/// It has more than `bytes_max` bytes.
pub fn read_whole(file: &File, bytes_max: usize) -> io::Result<Vec<u8>> {
    let too_large =
        || Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("has more than {bytes_max} bytes")));
    let most = u64::try_from(bytes_max).unwrap_or(u64::MAX);
    if file.metadata()?.len() > most {
        return too_large();
    }
    let mut bytes = Vec::new();
    // One byte too many shows that there are more: of files that the kernel makes, their size says nothing.
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() > bytes_max { too_large() } else { Ok(bytes) }
}

/// Gives a file that others may have a hand in that content and mode, whatever is there, unless it is a directory. A regular file
/// stays the same one: others hold it mounted.
///
/// # Errors
/// The file system's.
pub fn replace_content(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(handle) if is_regular(&handle)? => reopened(&handle, OFlags::WRONLY)?,
        there => {
            match there {
                Ok(_) => std::fs::remove_file(path)?,
                Err(Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
            // Never what somebody puts there meanwhile.
            File::options().write(true).create_new(true).mode(mode).open(path)?
        }
    };
    file.set_len(0)?;
    (&file).write_all(bytes)?;
    // Whatever the umask, and whatever mode others gave it.
    file.set_permissions(std::fs::Permissions::from_mode(mode))
}

/// Replaces `path` by way of `beside`, mode 0600, and waits for the disk.
pub(crate) fn replace(path: &Path, beside: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_only(path, beside, bytes)?;
    if let Some(directory) = path.parent() {
        File::open(directory)?.sync_all()?;
    }
    Ok(())
}

/// The same, but for the directory, which whoever replaces several waits for once.
pub(crate) fn replace_only(path: &Path, beside: &Path, bytes: &[u8]) -> io::Result<()> {
    // What a write that was cut off has left, or anybody, keeps its mode, and whoever has it open.
    match std::fs::remove_file(beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    // For root alone from the first moment on: a container's last words may hold secrets.
    let mut file = File::options().create_new(true).write(true).mode(0o600).open(beside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(beside, path)
}

/// The first bytes of a file that the node's owner names or the kernel makes; what is behind them is left out.
///
/// # Errors
/// As [`open_linked`].
pub fn read_start(path: &Path, bytes_max: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_linked(path)?.take(u64::try_from(bytes_max).unwrap_or(u64::MAX)).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_opened_and_only_what_fits_is_read() {
        let root = std::env::temp_dir().join(format!("smolet-bounded-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        std::fs::create_dir(&root).unwrap();
        let at = |name: &str| root.join(name);
        std::fs::write(at("file"), "four").unwrap();
        File::create(at("sparse")).unwrap().set_len(600 << 20).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, at("fifo"), Mode::RWXU).unwrap();
        std::os::unix::fs::symlink("file", at("link")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", at("zero")).unwrap();
        let no_file = "is no regular file";
        // Of a FIFO, a plain open(2) would wait for its writer.
        for (name, own, linked) in [
            ("file", Ok(4), Ok(4)),
            ("link", Err(no_file), Ok(4)),
            ("zero", Err(no_file), Err(no_file)),
            ("fifo", Err(no_file), Err(no_file)),
            (".", Err(no_file), Err(no_file)),
            ("sparse", Err("has more than 4 bytes"), Err("has more than 4 bytes")),
        ] {
            let shown =
                |read: io::Result<Vec<u8>>| read.map(|bytes| bytes.len()).map_err(|error| error.to_string());
            assert_eq!(shown(read_bounded(&at(name), 4)), own.map_err(str::to_owned), "{name}");
            assert_eq!(shown(read_linked(&at(name), 4)), linked.map_err(str::to_owned), "{name}");
        }
        assert!(read_bounded(&at("file"), 3).is_err());
        assert_eq!(read_bounded(&at("none"), 3).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(read_start(&at("sparse"), 7).unwrap(), [0; 7]);
        // Its size says nothing.
        assert!(!read_linked(Path::new("/proc/self/status"), 1 << 20).unwrap().is_empty());
        assert!(read_linked(Path::new("/proc/self/status"), 10).is_err());
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_file_system_has_no_more_free_than_it_has() {
        let here = Filesystem::of(Path::new("/")).expect("there is a root");
        assert!(here.bytes > 0 && here.bytes_free <= here.bytes, "{here:?}");
        assert!(here.inodes_free <= here.inodes, "{here:?}");
        assert!(Filesystem::of(Path::new("/nowhere/at/all")).is_err());
    }
}
