//! The terminal of a command in a container that crun sends to a socket (`exec --console-socket`), as to containerd's shim. I/O.
//!
//! ```text
//!     BUNDLE/tty-N ◄── crun exec: the other side of the command's terminal ──► the agent
//! ```
//!
//! Without the socket crun copies between its standard streams and the terminal, and what that still holds when the command has ended
//! becomes crun's own error message (`flush_fd_to_err`): in red, and in pieces of 255 bytes. On a busy board that is all that `ls` prints.
//! Before 1.9 it passes on no sizes either. runc copies to the end, and sends a terminal only when it is detached: then nobody has
//! the command's exit code.

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
use super::oci_runtime::is_crun;
use crate::monitor::sent_terminal;

/// The socket. Dropped: it is removed.
pub(super) struct Console {
    listener: Async<UnixListener>,
    path: PathBuf,
}

impl Console {
    /// For the command of that number in the container with that bundle; none: that OCI runtime copies. Blocking.
    ///
    /// # Errors
    /// The bundle is gone, or no socket can be made.
    pub(super) fn for_runtime(runtime: &Path, bundle: &Path, number: u64) -> io::Result<Option<Self>> {
        if !is_crun(runtime) {
            return Ok(None);
        }
        // Short: crun before 1.5 takes 107 bytes for the whole path.
        let name = format!("{TERMINAL}{number}");
        let path = bundle.join(&name);
        // A former agent's.
        let _ = std::fs::remove_file(&path);
        let folder =
            rustix::fs::open(bundle, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let listener = UnixListener::bind(format!("/proc/self/fd/{}/{name}", folder.as_raw_fd()))?;
        Ok(Some(Self { listener: Async::new(listener)?, path }))
    }

    /// Arguments of the OCI runtime, before the container's.
    pub(super) fn arguments(&self) -> [OsString; 2] {
        ["--console-socket".into(), self.path.clone().into()]
    }

    /// The agent's side of the terminal; none: the OCI runtime has exited without one. It does not block. `exit`: the OCI runtime's.
    ///
    /// # Errors
    /// What was sent is no descriptor.
    pub(super) async fn terminal(self, exit: &Async<OwnedFd>) -> io::Result<Option<OwnedFd>> {
        let accept = async { Ok(self.listener.accept().await?.0) };
        let accept_now = || Async::new(self.listener.get_ref().accept()?.0);
        let Some(socket) = before_exit(exit, accept, accept_now).await? else { return Ok(None) };
        before_exit(exit, socket.read_with(sent_terminal), || sent_terminal(socket.get_ref())).await
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// What is waited for, or `now` has when the OCI runtime has exited: whatever it has sent is there then.
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
