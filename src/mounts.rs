//! The mount table, and mounting memory. I/O, blocking: reads the table and links, never a mounted file system.

use std::borrow::Cow;
use std::ffi::{CString, OsStr, OsString};
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, mount};

use crate::limits::{KIB, LINKS_FOLLOWED_MAX, MOUNTINFO_BYTES_MAX};

/// A line of `/proc/self/mountinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// A real path. Bytes that are not UTF-8 are replaced.
    pub point: String,
    /// `MAJOR:MINOR`; the same for two mounts of one file system.
    pub device: Box<str>,
    /// The file system's type.
    pub kind: Box<str>,
    /// The mounted source; `SERVER:PATH` for a server's.
    pub source: Box<str>,
    /// It propagates to other namespaces.
    pub is_shared: bool,
}

impl Mount {
    /// The server of its source, if it has one.
    pub fn server(&self) -> Option<&str> {
        let (server, _) = self.source.split_once(":/")?;
        (!server.is_empty() && !server.contains('/')).then_some(server)
    }
}

/// Reads all mounts, in the order of mounting.
///
/// # Errors
/// The list cannot be read, or is longer than `limits::MOUNTINFO_BYTES_MAX`.
pub fn read() -> io::Result<Vec<Mount>> {
    read_where(|_| true)
}

/// Those at or below this real path, in the order of their mounting.
///
/// # Errors
/// Those of [`read`].
pub fn read_below(real: &Path) -> io::Result<Vec<Mount>> {
    read_where(|point| Path::new(point).starts_with(real))
}

/// True when something is mounted on this path. Only its parent directory is accessed.
///
/// # Errors
/// Those of [`read`]; the directory cannot be accessed.
pub fn is_mounted(path: &Path) -> io::Result<bool> {
    let real = real(path)?;
    Ok(!read_where(|point| Path::new(point) == real)?.is_empty())
}

/// True when something is mounted on this path or below it.
///
/// # Errors
/// As [`is_mounted`].
pub fn has_mounts(path: &Path) -> io::Result<bool> {
    Ok(!read_below(&real(path)?)?.is_empty())
}

/// Mounts a tmpfs of at most `bytes_max` bytes on a directory.
///
/// # Errors
/// The kernel's.
pub fn mount_tmpfs(at: &Path, flags: MountFlags, mode: u32, bytes_max: Option<u64>) -> io::Result<()> {
    let size = bytes_max.map(|bytes| format!(",size={bytes}")).unwrap_or_default();
    let options = format!("mode={mode:o}{size}");
    // Excluded from swap where the kernel supports it (6.4).
    let no_swap = CString::new(format!("{options},noswap"))?;
    let options = CString::new(options)?;
    mount("tmpfs", at, "tmpfs", flags, Some(&*no_swap))
        .or_else(|_| mount("tmpfs", at, "tmpfs", flags, Some(&*options)))?;
    Ok(())
}

/// Those whose mount point is wanted. A node of 110 pods has some six hundred mounts, and each pod that comes or goes looks for
/// its own: one line at a time is held.
fn read_where(wanted: impl Fn(&str) -> bool) -> io::Result<Vec<Mount>> {
    let file = std::fs::File::open("/proc/self/mountinfo")?.take(MOUNTINFO_BYTES_MAX as u64);
    let (mut table, mut line, mut mounts) =
        (BufReader::with_capacity(READ_BYTES, file), Vec::new(), Vec::new());
    while table.read_until(b'\n', &mut line)? > 0 {
        // Names elsewhere need not be UTF-8.
        mounts.extend(parse_line(&String::from_utf8_lossy(&line), &wanted));
        line.clear();
    }
    match table.get_ref().limit() {
        0 => Err(io::Error::other("the mount table is too long")),
        _ => Ok(mounts),
    }
}

/// The kernel gives no more of the table at a time than a page.
const READ_BYTES: usize = 4 * KIB;

fn real(path: &Path) -> io::Result<PathBuf> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    };
    Ok(parent.canonicalize()?.join(name))
}

/// The mount of a path. Links are followed as long as they are on the devices `own`, which answer.
pub fn mount_of<'a>(mounts: &'a [Mount], path: &Path, own: &[&str]) -> Option<&'a Mount> {
    let (mut real, mut links) = (PathBuf::from("/"), 0);
    let parts = |path: &Path| path.iter().rev().map(OsStr::to_owned).collect::<Vec<OsString>>();
    let mut left = parts(path);
    while let Some(part) = left.pop() {
        if part == ".." {
            real.pop();
        } else {
            // If it is absolute, the first part is the root.
            real.push(part);
        }
        if !own.contains(&&*under(mounts, &real)?.device) {
            break;
        }
        if links < LINKS_FOLLOWED_MAX
            && let Ok(to) = real.read_link()
        {
            links += 1;
            real.pop();
            left.extend(parts(&to));
        }
    }
    real.extend(left.into_iter().rev());
    under(mounts, &real)
}

/// The mount of a real path.
fn under<'a>(mounts: &'a [Mount], real: &Path) -> Option<&'a Mount> {
    let above = mounts.iter().filter(|mount| real.starts_with(&mount.point));
    // Of two on one mount point the last one hides the other.
    above.max_by_key(|mount| mount.point.len())
}

/// PURE.
#[cfg(test)]
pub(crate) fn parse(table: &str) -> Vec<Mount> {
    table.lines().filter_map(|line| parse_line(line, &|_| true)).collect()
}

/// PURE. Nothing when its mount point is not wanted.
fn parse_line(line: &str, wanted: &impl Fn(&str) -> bool) -> Option<Mount> {
    // Field 3 is the device, 5 the mount point, from 7 on stands how it is propagated; type and source stand behind " - ".
    let (before, after) = line.trim_end_matches('\n').split_once(" - ")?;
    let mut fields = before.split(' ').skip(2);
    let (device, point) = (fields.next()?, plain(fields.nth(1)?));
    if !wanted(&point) {
        return None;
    }
    let is_shared = fields.skip(1).any(|field| field.starts_with("shared:"));
    let mut after = after.split(' ');
    let kind = after.next()?.into();
    let source = plain(after.next().unwrap_or_default()).into();
    Some(Mount { point: point.into_owned(), device: device.into(), kind, source, is_shared })
}

/// Blanks and the like are `\ooo` in the kernel's table.
fn plain(field: &str) -> Cow<'_, str> {
    if !field.contains('\\') {
        return field.into();
    }
    let mut parts = field.split('\\');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let code = part.get(..3).and_then(|code| u8::from_str_radix(code, 8).ok());
        bytes.push(code.unwrap_or(b'\\'));
        bytes.extend(part.bytes().skip(if code.is_some() { 3 } else { 0 }));
    }
    String::from_utf8_lossy(&bytes).into_owned().into()
}

/// A file system whose server never answers: access to it blocks in the kernel.
#[cfg(test)]
pub(crate) struct SilentServer {
    at: PathBuf,
    server: Option<std::fs::File>,
}

#[cfg(test)]
impl SilentServer {
    pub(crate) fn mount(at: &Path) -> Self {
        use std::os::fd::AsRawFd as _;
        let server = std::fs::File::options().read(true).write(true).open("/dev/fuse");
        let server = server.expect("/dev/fuse (modprobe fuse)");
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", server.as_raw_fd());
        let options = std::ffi::CString::new(options).unwrap();
        let flags = rustix::mount::MountFlags::NODEV | rustix::mount::MountFlags::NOSUID;
        rustix::mount::mount("smolet-test-away", at, "fuse", flags, Some(&*options))
            .expect("mounting needs root");
        Self { at: at.to_owned(), server: Some(server) }
    }

    /// Lets all access fail from now on.
    pub(crate) fn die(&mut self) {
        self.server = None;
    }
}

#[cfg(test)]
impl Drop for SilentServer {
    fn drop(&mut self) {
        self.die();
        rustix::mount::unmount(&self.at, rustix::mount::UnmountFlags::DETACH).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_decoded() {
        for (field, wanted) in
            [("/a\\040b", "/a b"), ("/a\\134b\\011", "/a\\b\t"), ("/a\\", "/a\\"), ("/a\\9x", "/a\\9x")]
        {
            assert_eq!(plain(field), wanted);
        }
    }

    #[test]
    fn a_path_is_on_the_mount_with_the_longest_matching_mount_point() {
        let root = std::env::temp_dir().join(format!("smolet-mounts-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&root);
        std::fs::create_dir_all(root.join("here")).unwrap();
        let root = root.canonicalize().unwrap();
        let shown = root.display();
        std::os::unix::fs::symlink("away/deep", root.join("link")).unwrap();
        std::os::unix::fs::symlink(root.join("link"), root.join("here/again")).unwrap();
        std::os::unix::fs::symlink("loop", root.join("loop")).unwrap();
        let mounts = parse(&format!(
            "1 0 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n\
             2 1 0:40 / {shown}/hidden rw - tmpfs none rw\n\
             3 1 0:41 / {shown}/hidden rw - nfs4 server:/x rw\n\
             4 1 0:42 / {shown}/away rw master:2 - fuse none rw\n\
             5 4 0:43 / {shown}/away/deep/er rw - nfs4 [fd00::7]:/y rw\n\
             6 1 0:42 / {shown}/bound rw - fuse none rw\n"
        ));
        assert!(mounts[0].is_shared && !mounts[3].is_shared && &*mounts[3].kind == "fuse");
        for (path, device) in [
            ("here", "8:1"),
            ("awayward", "8:1"),
            ("not/there", "8:1"),
            ("loop", "8:1"),
            ("hidden/x", "0:41"),
            ("away/x", "0:42"),
            ("bound", "0:42"),
            ("away/deep/er/x", "0:43"),
            ("link/x", "0:42"),
            ("here/again/er", "0:43"),
            ("here/../away", "0:42"),
        ] {
            let found = mount_of(&mounts, &root.join(path), &["8:1"]).map(|mount| &*mount.device);
            assert_eq!(found, Some(device), "{path}");
        }
        let found = mount_of(&mounts, &root.join("link"), &[]).map(|mount| &*mount.device);
        assert_eq!(found, Some("8:1"), "no link is followed");
        let servers: Vec<Option<&str>> = mounts.iter().map(Mount::server).collect();
        assert_eq!(servers, [None, None, Some("server"), None, Some("[fd00::7]"), None]);
        std::fs::remove_dir_all(&root).unwrap();
    }
}
