//! Starts monitors without blocking the loop or a thread: the OCI runtime that a monitor runs may take a minute.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use async_io::Async;
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
    let late = async {
        context.clock.sleep(MONITOR_REPORT_TIME).await;
        Err(MonitorError::DeadlineExceeded(dir.clone()))
    };
    let report = async { read(launched.report).await.map_err(|source| failed(&dir, source)) };
    let text = or(report, late).await?;
    Launched::read(dir, &text)
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
