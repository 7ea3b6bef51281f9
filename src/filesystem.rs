//! Usage of file systems, and access to files that untrusted processes may change. I/O; blocks for as long as the file system
//! does not answer.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, openat, openat2, readlinkat};
use rustix::io::Errno;

use crate::limits::{LINKS_FOLLOWED_MAX, PATH_PARTS_MAX};

/// Capacity of a file system, as the kubelet counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Filesystem {
    /// Its device.
    pub device: u64,
    /// Total bytes.
    pub bytes: u64,
    /// Bytes available to unprivileged users; at most the total.
    pub bytes_free: u64,
    /// Total inodes; 0 where they are allocated dynamically.
    pub inodes: u64,
    /// Free inodes.
    pub inodes_free: u64,
}

impl Filesystem {
    /// The file system of `path`.
    ///
    /// # Errors
    /// The path does not exist, or its file system does not report it.
    pub fn of(path: &Path) -> io::Result<Self> {
        let device = std::fs::metadata(path)?.dev();
        let stats = rustix::fs::statvfs(path)?;
        let bytes = |blocks: u64| blocks.saturating_mul(stats.f_frsize);
        Ok(Self {
            device,
            bytes: bytes(stats.f_blocks),
            bytes_free: bytes(stats.f_bavail.min(stats.f_blocks)),
            inodes: stats.f_files,
            inodes_free: stats.f_ffree.min(stats.f_files),
        })
    }
}

/// Opens a regular file in a directory that untrusted processes may write to (a container, a user of the node). A symbolic link
/// in its place is not followed, and the type is checked before it is opened: opening a FIFO may block, and opening a device
/// may have any effect (a watchdog starts).
///
/// # Errors
/// It does not exist, or is not a regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    opened(path, OFlags::NOFOLLOW)
}

/// The same for a file that the node's owner configures, which may be a symbolic link.
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

/// Opens the handle's file, which cannot be replaced meanwhile. A lease on it does not block.
///
/// # Errors
/// The kernel's.
pub fn reopened(handle: &OwnedFd, access: OFlags) -> io::Result<File> {
    let path = format!("/proc/self/fd/{}", handle.as_raw_fd());
    let flags = access | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}

/// Reads a file that untrusted processes may change ([`open_regular`]).
///
/// # Errors
/// As [`open_regular`]; it has more than `bytes_max` bytes, of which none is read if its size says so.
pub fn read_bounded(path: &Path, bytes_max: usize) -> io::Result<Vec<u8>> {
    read_whole(&open_regular(path)?, bytes_max)
}

/// Reads a file that the node's owner configures ([`open_linked`]).
///
/// # Errors
/// As [`read_bounded`].
pub fn read_linked(path: &Path, bytes_max: usize) -> io::Result<Vec<u8>> {
    read_whole(&open_linked(path)?, bytes_max)
}

/// Reads a file below a root that untrusted processes fill ([`open_within`]).
///
/// # Errors
/// As [`open_within`] and [`read_bounded`].
pub fn read_within(root: &Path, path: &str, bytes_max: usize) -> io::Result<Vec<u8>> {
    let root = openat(CWD, root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let handle = open_within(&root, path.as_bytes(), OFlags::PATH | OFlags::CLOEXEC)?;
    if is_regular(&handle)? {
        read_whole(&reopened(&handle, OFlags::RDONLY)?, bytes_max)
    } else {
        Err(io::Error::other("is no regular file"))
    }
}

/// Opens a path below a directory as a process would whose root that is: links and `..` lead nowhere out of it, and no mount is
/// entered.
///
/// # Errors
/// The kernel's: it does not exist, has more than [`LINKS_FOLLOWED_MAX`] links.
pub(crate) fn open_within(root: &OwnedFd, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    match openat2(root, path, flags, Mode::empty(), resolve) {
        // The kernel is older than 5.6, or an emulator or a filter does not know the call.
        Err(Errno::NOSYS) => walk_within(root, path, flags),
        opened => opened,
    }
}

/// [`open_within`] part by part; mounts of the same file system are entered.
fn walk_within(root: &OwnedFd, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let own = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let device = rustix::fs::fstat(root)?.st_dev;
    let mut left: Vec<Vec<u8>> = parts_backwards(path);
    let mut entered: Vec<OwnedFd> = Vec::new();
    let mut links = 0;
    while let Some(part) = left.pop() {
        if left.len().max(entered.len()) > PATH_PARTS_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        let found = match &*part {
            b"" | b"." => continue,
            b".." => {
                entered.pop();
                continue;
            }
            name => openat(entered.last().unwrap_or(root), name, own, Mode::empty())?,
        };
        let stat = rustix::fs::fstat(&found)?;
        if stat.st_dev != device {
            return Err(Errno::XDEV);
        }
        if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
            entered.push(found);
            continue;
        }
        links += 1;
        if links > LINKS_FOLLOWED_MAX {
            return Err(Errno::LOOP);
        }
        let target = readlinkat(&found, "", Vec::new())?;
        if target.to_bytes().starts_with(b"/") {
            entered.clear();
        }
        left.extend(parts_backwards(target.to_bytes()));
    }
    let found = format!("/proc/self/fd/{}", entered.last().unwrap_or(root).as_raw_fd());
    rustix::fs::open(found, flags, Mode::empty())
}

fn parts_backwards(path: &[u8]) -> Vec<Vec<u8>> {
    path.rsplit(|byte| *byte == b'/').map(<[u8]>::to_vec).collect()
}

/// Reads an open file.
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
    // One byte more than allowed shows that it is too long: files of the kernel report no size.
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() > bytes_max { too_large() } else { Ok(bytes) }
}

/// Sets content and mode of a file that untrusted processes may change, whatever is there, except for a directory. A regular
/// file keeps its inode, because containers have it mounted.
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
            // Never a file that was put there meanwhile.
            File::options().write(true).create_new(true).mode(mode).open(path)?
        }
    };
    file.set_len(0)?;
    (&file).write_all(bytes)?;
    // Regardless of the umask, and of a mode that another process set.
    file.set_permissions(std::fs::Permissions::from_mode(mode))
}

/// Replaces `path` through the temporary file `beside`, mode 0600, and waits for the disk.
pub(crate) fn replace(path: &Path, beside: &Path, bytes: &[u8]) -> io::Result<()> {
    replace_only(path, beside, bytes)?;
    if let Some(directory) = path.parent() {
        File::open(directory)?.sync_all()?;
    }
    Ok(())
}

/// The same without the sync of the directory, which a caller that replaces several files does once.
pub(crate) fn replace_only(path: &Path, beside: &Path, bytes: &[u8]) -> io::Result<()> {
    // A leftover of an interrupted write, or of another process, keeps its mode and its open handles.
    match std::fs::remove_file(beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    // Mode 0600 from the beginning: termination messages may contain secrets.
    let mut file = File::options().create_new(true).write(true).mode(0o600).open(beside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(beside, path)
}

/// The same without a wait for the disk: for state whose loss in a power cut is harmless. A torn file has to be recognised.
pub(crate) fn replace_unsynced(path: &Path, beside: &Path, bytes: &[u8]) -> io::Result<()> {
    match std::fs::remove_file(beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    File::options().create_new(true).write(true).mode(0o600).open(beside)?.write_all(bytes)?;
    std::fs::rename(beside, path)
}

/// True of what a power cut leaves of a file that had not been synced: nothing, or its length without its bytes. PURE.
pub(crate) fn is_lost(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// Reads the beginning of a file that the node's owner configures or the kernel provides; the rest is left out.
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
    fn only_regular_files_within_the_limit_are_read() {
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
        // A plain open(2) of a FIFO would block.
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
        // It reports no size.
        assert!(!read_linked(Path::new("/proc/self/status"), 1 << 20).unwrap().is_empty());
        assert!(read_linked(Path::new("/proc/self/status"), 10).is_err());
        std::fs::remove_dir_all(&root).unwrap();
    }

    /// As the kernel resolves paths, and as it is done where it cannot: emulators do not have the call.
    #[test]
    fn paths_within_a_root_do_not_lead_out_of_it() {
        let root = std::env::temp_dir().join(format!("smolet-within-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        std::fs::create_dir_all(root.join("etc")).unwrap();
        std::fs::create_dir_all(root.join("usr/lib")).unwrap();
        std::fs::write(root.join("usr/lib/passwd"), "own").unwrap();
        rustix::fs::mkfifoat(CWD, root.join("etc/fifo"), Mode::RWXU).unwrap();
        for (link, target) in [
            ("absolute", "/usr/lib/passwd"),
            ("relative", "../usr/lib/passwd"),
            ("above", "../../../../usr/./lib//passwd"),
            ("through", "dir/passwd"),
            ("dir", "/usr/lib"),
            ("node", "../../../../../../../../../../etc/hostname"),
            ("loop", "loop"),
        ] {
            std::os::unix::fs::symlink(target, root.join("etc").join(link)).unwrap();
        }
        let handle = openat(CWD, &root, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        for (path, expected) in [
            ("usr/lib/passwd", Ok("own")),
            ("../usr/lib/../lib/passwd", Ok("own")),
            ("etc/absolute", Ok("own")),
            ("etc/relative", Ok("own")),
            ("etc/above", Ok("own")),
            ("etc/through", Ok("own")),
            ("etc/node", Err(Errno::NOENT)),
            ("etc/passwd", Err(Errno::NOENT)),
            ("etc/loop", Err(Errno::LOOP)),
            ("etc/absolute/x", Err(Errno::NOTDIR)),
        ] {
            let read = |opened: Result<OwnedFd, Errno>| {
                opened.map(|handle| read_whole(&File::from(handle), 10).expect("a regular file"))
            };
            let expected = expected.map(|text| text.as_bytes().to_vec());
            let (flags, name) = (OFlags::RDONLY | OFlags::CLOEXEC, path.as_bytes());
            assert_eq!(read(open_within(&handle, name, flags)), expected, "{path}");
            assert_eq!(read(walk_within(&handle, name, flags)), expected, "{path}, by hand");
        }
        assert_eq!(read_within(&root, "etc/fifo", 10).unwrap_err().to_string(), "is no regular file");
        assert_eq!(read_within(&root, "etc/through", 10).unwrap(), b"own");
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn free_space_is_at_most_the_total() {
        let here = Filesystem::of(Path::new("/")).expect("there is a root");
        assert!(here.bytes > 0 && here.bytes_free <= here.bytes, "{here:?}");
        assert!(here.inodes_free <= here.inodes, "{here:?}");
        assert!(Filesystem::of(Path::new("/nowhere/at/all")).is_err());
    }
}
