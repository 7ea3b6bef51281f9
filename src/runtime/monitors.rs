//! Starts monitors without blocking the loop or a thread, as the OCI runtime that a monitor runs may take a minute, and reaps them.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Child;

use async_io::Async;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use smol::future::or;

use super::context::Context;
use crate::limits::{MONITOR_RECORD_BYTES_MAX, MONITOR_REPORT_TIME};
use crate::monitor::{self, Created, Launched, MonitorError};

/// Starts the monitor of that directory, and waits until it has started the container.
///
/// # Errors
/// As [`monitor::spawn`].
pub(super) async fn spawn(context: &Context, dir: PathBuf) -> Result<Created, MonitorError> {
    let (program, of) = (context.settings.program.clone(), dir.clone());
    let launched = context.blocking(move || monitor::launch(&program, &of)).await?;
    wait(context, dir, launched).await
}

/// The second half of [`spawn`].
///
/// # Errors
/// As [`monitor::spawn`].
pub(super) async fn wait(
    context: &Context,
    dir: PathBuf,
    (launched, child): (Launched, Child),
) -> Result<Created, MonitorError> {
    if let Err(error) = reap_later(context, child) {
        // The next agent's start does away with it.
        log::warn!("{}: the end of the monitor cannot be waited for: {error}", dir.display());
    }
    let late = async {
        context.clock.sleep(MONITOR_REPORT_TIME).await;
        Err(MonitorError::DeadlineExceeded(dir.clone()))
    };
    let report = async { read(launched.report).await.map_err(|source| failed(&dir, source)) };
    let text = or(report, late).await?;
    Launched::read(dir, &text)
}

/// It stays a zombie until somebody asks for its status.
fn reap_later(context: &Context, mut monitor: Child) -> io::Result<()> {
    let end = Async::new_nonblocking(pidfd_open(Pid::from_child(&monitor), PidfdFlags::empty())?)?;
    let reap = async move {
        // An error of the reactor: it may have ended.
        let _ = end.readable().await;
        monitor.try_wait()
    };
    drop(context.to_the_end("end of a monitor", reap));
    Ok(())
}

fn failed(dir: &Path, source: io::Error) -> MonitorError {
    MonitorError::Io { path: dir.to_owned(), source }
}

/// Reads until the monitor closes its report.
async fn read(report: OwnedFd) -> io::Result<Vec<u8>> {
    let report = Async::new(report)?;
    let (mut text, mut piece) = (Vec::new(), [0; 512]);
    loop {
        match report.read_with(|report| Ok(rustix::io::read(report, &mut piece)?)).await? {
            0 => return Ok(text),
            read => text.extend_from_slice(&piece[..read]),
        }
        if text.len() > MONITOR_RECORD_BYTES_MAX {
            return Ok(text);
        }
    }
}
