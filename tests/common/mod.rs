//! What the integration tests share: the fake CRI server and temporary folders.

#![allow(missing_docs, unreachable_pub, clippy::pedantic, clippy::unwrap_used, clippy::expect_used)]
// Every test binary compiles this module and uses another part of it.
#![allow(dead_code)]

pub mod fake;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder of its own under the system's temporary folder, removed at the end.
///
/// The path is short, because a Unix socket's may have 107 bytes at most.
pub struct TempDir(PathBuf);

impl TempDir {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("smolet-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a temporary folder can be made");
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
