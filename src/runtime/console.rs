//! The terminal of a command in a container, which the OCI runtime sends to a socket (`exec --console-socket`), as to containerd's shim.
//! I/O.
//!
//! ```text
//!     BUNDLE/tty-N ◄── OCI runtime: the other side of the command's terminal ──► the agent
//! ```

use std::ffi::OsString;
use std::future::Future;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use async_io::Async;
use rustix::fs::{Mode, OFlags};
use smol::future::or;

use super::command::TERMINAL;
use crate::monitor::sent_terminal;

/// The socket. Dropped: it is removed.
pub(super) struct Console {
    listener: Async<UnixListener>,
    /// The bundle, by which the OCI runtime finds the socket: the path of a socket has at most 107 bytes.
    folder: OwnedFd,
    path: PathBuf,
}

impl Console {
    /// For the command of that number in the container with that bundle. Blocking.
    ///
    /// # Errors
    /// The bundle is gone, or no socket can be made.
    pub(super) fn in_bundle(bundle: &Path, number: u64) -> io::Result<Self> {
        let path = bundle.join(format!("{TERMINAL}{number}"));
        // A former agent's.
        let _ = std::fs::remove_file(&path);
        let folder =
            rustix::fs::open(bundle, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let listener = UnixListener::bind(in_folder(&folder, &path))?;
        Ok(Self { listener: Async::new(listener)?, folder, path })
    }

    /// Arguments of the OCI runtime, before the container's.
    pub(super) fn arguments(&self) -> [OsString; 2] {
        ["--console-socket".into(), in_folder(&self.folder, &self.path).into()]
    }

    /// The agent's side of the terminal; none: there is no command. It does not block. `exit`: the keeper's.
    ///
    /// # Errors
    /// What was sent is no descriptor.
    pub(super) async fn terminal(self, exit: &Async<OwnedFd>) -> io::Result<Option<OwnedFd>> {
        let accept = async { Ok(self.listener.accept().await?.0) };
        let accept_now = || Async::new(self.listener.get_ref().accept()?.0);
        let Some(socket) = before_exit(exit, accept, accept_now).await? else { return Ok(None) };
        let sent =
            before_exit(exit, socket.read_with(sent_terminal), || sent_terminal(socket.get_ref())).await;
        match sent {
            // runc connects before it knows whether there will be a command.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            sent => sent,
        }
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A path by the descriptor of its folder, for other processes too.
fn in_folder(folder: &OwnedFd, path: &Path) -> PathBuf {
    let folder = format!("/proc/{}/fd/{}", std::process::id(), folder.as_raw_fd());
    Path::new(&folder).join(path.file_name().unwrap_or_default())
}

/// What is waited for, or `now` has when the keeper has exited: whatever the OCI runtime has sent is there then.
async fn before_exit<T>(
    exit: &Async<OwnedFd>,
    waited: impl Future<Output = io::Result<T>>,
    now: impl FnOnce() -> io::Result<T>,
) -> io::Result<Option<T>> {
    let exited = async {
        let _ = exit.readable().await;
        match now() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            found => found.map(Some),
        }
    };
    or(async { waited.await.map(Some) }, exited).await
}
