//! How full a file system is. I/O; blocks, for as long as the file system does not answer.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_has_no_more_free_than_it_has() {
        let here = Filesystem::of(Path::new("/")).expect("there is a root");
        assert!(here.bytes > 0 && here.bytes_free <= here.bytes, "{here:?}");
        assert!(here.inodes_free <= here.inodes, "{here:?}");
        assert!(Filesystem::of(Path::new("/nowhere/at/all")).is_err());
    }
}
