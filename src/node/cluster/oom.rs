//! Events of the Node for processes that the kernel kills because the machine is out of memory (`SystemOOM`).
//!
//! The kernel's count of kills is read with each report of the Node; its log only when the count has grown, so that other
//! entries of the log cause no wakeups.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;

use super::ClusterEventKind;
use crate::cluster::system_oom::{oom_kills, system_oom};
use crate::cri::Runtime;
use crate::events::EventKind;
use crate::limits::{KMSG_RECORD_BYTES_MAX, KMSG_RECORDS_MAX, SYSTEM_OOM_EVENTS_MAX};
use crate::node::effects::Effects;
use crate::node::pods::Pods;

/// The kernel's OOM kills.
#[derive(Default)]
pub(super) struct SystemOoms {
    /// `None` = not counted yet.
    kills: Option<u64>,
    /// The kernel's log, positioned behind the last entry read; `None` = it is being read, or cannot be.
    log: Option<File>,
}

/// The log, and the victims that it names.
pub(super) struct OomsRead {
    log: File,
    messages: Vec<String>,
}

impl SystemOoms {
    /// Checks whether the kernel has killed more processes.
    pub(super) fn count<R: Runtime + 'static>(&mut self, pods: &Pods<R>, out: &Effects) {
        // Procfs: kept in memory, so the read does not block.
        let vmstat = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
        let Some(kills) = oom_kills(&vmstat) else { return };
        let Some(before) = self.kills.replace(kills) else {
            self.log =
                open().inspect_err(|error| log::debug!("/dev/kmsg: {error}; no SystemOOM events")).ok();
            return;
        };
        let Some(log) = (kills > before).then(|| self.log.take()).flatten() else { return };
        let blocking = pods.manager().blocking.clone();
        let task = async move { ClusterEventKind::OomsRead(blocking.run(move || read(log)).await).event() };
        out.start("kernel log", task);
    }

    /// The kernel's log was read.
    pub(super) fn take(&mut self, read: OomsRead, out: &Effects) {
        self.log = Some(read.log);
        for message in read.messages {
            out.note_node(EventKind::Warning, "SystemOOM", &message);
        }
    }
}

/// Opens the log behind its last entry.
fn open() -> std::io::Result<File> {
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let mut log = File::options().read(true).custom_flags(flags).open("/dev/kmsg")?;
    log.seek(SeekFrom::End(0))?;
    Ok(log)
}

/// Reads the new entries, one record at a time. I/O, blocking.
fn read(mut log: File) -> OomsRead {
    let (mut record, mut messages) = (vec![0; KMSG_RECORD_BYTES_MAX], Vec::new());
    for _ in 0..KMSG_RECORDS_MAX {
        match log.read(&mut record) {
            Ok(0) => break,
            Ok(length) if messages.len() < SYSTEM_OOM_EVENTS_MAX => {
                messages.extend(system_oom(&String::from_utf8_lossy(&record[..length])));
            }
            Ok(_) => {}
            // EPIPE: the oldest records were overwritten; the next ones follow.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
            Err(_) => break,
        }
    }
    OomsRead { log, messages }
}
