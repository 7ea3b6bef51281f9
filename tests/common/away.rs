//! A file system that does not answer.

use std::fs::{File, create_dir_all};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// A file system whose server never answers: access to it blocks in the kernel.
pub struct Away {
    at: PathBuf,
    server: Option<File>,
}

impl Away {
    pub fn mount(at: &Path) -> Self {
        create_dir_all(at).unwrap();
        let server = File::options().read(true).write(true).open("/dev/fuse");
        let server = server.expect("/dev/fuse (modprobe fuse)");
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", server.as_raw_fd());
        let options = std::ffi::CString::new(options).unwrap();
        let flags = MountFlags::NODEV | MountFlags::NOSUID;
        mount("smolet-test-away", at, "fuse", flags, Some(&*options)).expect("mounting needs root");
        Self { at: at.to_owned(), server: Some(server) }
    }

    /// Blocked access fails, and the directory below is visible again.
    pub fn end(&mut self) {
        if self.server.take().is_some() {
            unmount(&self.at, UnmountFlags::DETACH).unwrap();
        }
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        self.end();
    }
}
