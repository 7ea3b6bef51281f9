//! Records of sandboxes and containers: one small file each, replaced atomically, written before what it announces. I/O, blocking.
//!
//! ```text
//!     sandbox    Making ─► Ready ─► NotReady ─► (removed)
//!     container  Making ─► Created ─► Starting ─► Running ─► Exited ─► Removing ─► (removed)
//! ```
//!
//! A record is not synced to the disk: after the agent's SIGKILL the kernel still has it, and after a power cut every container has
//! ended anyway. What is torn or unreadable by then is removed by the name of its directory, which is its id.

use std::io;
use std::path::Path;

use minicbor::{Decode, Encode};
use prost::Message as _;

use crate::filesystem::read_bounded;
use crate::limits::RUNTIME_RECORD_BYTES_MAX;
use crate::proto::runtime::v1 as cri;

/// The record's name in the directory of a sandbox or container.
const NAME: &str = "record";
/// First bytes of a record, with the version of its format. Fields may be added within a version.
const HEAD: &[u8] = b"smolet-runtime 1\n";

/// State of a sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub(super) enum SandboxPhase {
    /// Its namespaces and network are being made. After a restart it is removed.
    #[default]
    #[n(0)]
    Making,
    /// Containers may be created in it.
    #[n(1)]
    Ready,
    /// It was stopped, or the machine was.
    #[n(2)]
    NotReady,
}

/// State of a container.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub(super) enum ContainerPhase {
    /// Its root file system and its first process are being made. After a restart it is removed.
    #[default]
    #[n(0)]
    Making,
    /// Its first process waits for the start.
    #[n(1)]
    Created,
    /// The OCI runtime was told to start it; whether it did is asked after a restart.
    #[n(2)]
    Starting,
    /// Its first process runs, unless its monitor has recorded the exit.
    #[n(3)]
    Running,
    /// Its first process has exited.
    #[n(4)]
    Exited,
    /// It is being removed. After a restart the removal goes on.
    #[n(5)]
    Removing,
}

/// A sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub(super) struct SandboxRecord {
    #[n(0)]
    pub(super) phase: SandboxPhase,
    /// Nanoseconds since the epoch.
    #[n(1)]
    pub(super) created_at: i64,
    /// The boot in which it was made.
    #[n(2)]
    pub(super) boot: Box<str>,
    /// Its runtime handler.
    #[n(3)]
    pub(super) handler: Box<str>,
    /// A `PodSandboxConfig` of the CRI.
    #[cbor(n(4), with = "minicbor::bytes")]
    pub(super) config: Vec<u8>,
    /// The CNI configuration of its network; empty: it has none, or it was released.
    #[n(5)]
    pub(super) network: String,
    /// The result of the network's plugins; empty: there is none yet.
    #[n(6)]
    pub(super) network_result: String,
    /// Its addresses.
    #[n(7)]
    pub(super) addresses: Vec<Box<str>>,
    /// It has a PID namespace of its own, which its pause container holds.
    #[n(8)]
    pub(super) shares_pids: bool,
}

impl SandboxRecord {
    /// The configuration of its creation.
    pub(super) fn config(&self) -> cri::PodSandboxConfig {
        // It was encoded here; whatever else it is counts as an empty one.
        cri::PodSandboxConfig::decode(&*self.config).unwrap_or_default()
    }
}

/// A container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub(super) struct ContainerRecord {
    #[n(0)]
    pub(super) phase: ContainerPhase,
    /// Nanoseconds since the epoch, as all times here; 0 = not yet.
    #[n(1)]
    pub(super) created_at: i64,
    #[n(2)]
    pub(super) started_at: i64,
    #[n(3)]
    pub(super) finished_at: i64,
    /// The boot in which it was made.
    #[n(4)]
    pub(super) boot: Box<str>,
    /// Its sandbox.
    #[n(5)]
    pub(super) sandbox: Box<str>,
    /// A `ContainerConfig` of the CRI, without the environment, which may have secrets.
    #[cbor(n(6), with = "minicbor::bytes")]
    pub(super) config: Vec<u8>,
    /// The image's id.
    #[n(7)]
    pub(super) image_id: Box<str>,
    /// The image by digest, else its id.
    #[n(8)]
    pub(super) image_ref: Box<str>,
    /// Exit code of the first process.
    #[n(9)]
    pub(super) exit_code: i32,
    /// `Completed`, `Error`, `OOMKilled` ...
    #[n(10)]
    pub(super) reason: Box<str>,
    /// Details of the reason.
    #[n(11)]
    pub(super) message: Box<str>,
    /// The stop signal's number on Linux.
    #[n(19)]
    pub(super) stop_signal: i32,
    /// User id of the first process.
    #[n(13)]
    pub(super) uid: i64,
    /// Group id of the first process.
    #[n(14)]
    pub(super) gid: i64,
    /// Its supplementary groups.
    #[n(15)]
    pub(super) groups: Vec<i64>,
    /// Its cgroup within each hierarchy.
    #[n(16)]
    pub(super) cgroup: Box<str>,
    /// Number of images that are mounted in it.
    #[n(17)]
    pub(super) image_mounts: u32,
    /// The image's name with a tag.
    #[n(18)]
    pub(super) image_name: Box<str>,
}

impl ContainerRecord {
    /// The configuration of its creation.
    pub(super) fn config(&self) -> cri::ContainerConfig {
        cri::ContainerConfig::decode(&*self.config).unwrap_or_default()
    }
}

/// Writes the record into that directory, mode 0600.
///
/// # Errors
/// The file system's; the record is too large.
pub(super) fn write(dir: &Path, record: &impl Encode<()>) -> io::Result<()> {
    let bytes = to_bytes(record)?;
    let beside = dir.join("record.new");
    crate::filesystem::replace_unsynced(&dir.join(NAME), &beside, &bytes)
}

/// Reads the record of that directory.
///
/// # Errors
/// There is none; it cannot be read.
pub(super) fn read<T: for<'b> Decode<'b, ()>>(dir: &Path) -> io::Result<T> {
    from_bytes(&read_bounded(&dir.join(NAME), RUNTIME_RECORD_BYTES_MAX)?)
}

fn to_bytes(record: &impl Encode<()>) -> io::Result<Vec<u8>> {
    let mut bytes = HEAD.to_vec();
    minicbor::encode(record, &mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    if bytes.len() > RUNTIME_RECORD_BYTES_MAX {
        return Err(io::Error::other(format!("a record of {} bytes is too large", bytes.len())));
    }
    Ok(bytes)
}

fn from_bytes<T: for<'b> Decode<'b, ()>>(bytes: &[u8]) -> io::Result<T> {
    let body = bytes.strip_prefix(HEAD).ok_or_else(|| io::Error::other("is no record of this version"))?;
    minicbor::decode(body).map_err(|error| io::Error::other(format!("is a damaged record: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_they_were_written() {
        let config = cri::PodSandboxConfig { hostname: "web".into(), ..Default::default() };
        let record = SandboxRecord {
            phase: SandboxPhase::Ready,
            created_at: 7,
            config: config.encode_to_vec(),
            addresses: vec!["10.0.0.2".into()],
            ..Default::default()
        };
        let bytes = to_bytes(&record).unwrap();
        let read: SandboxRecord = from_bytes(&bytes).unwrap();
        assert_eq!((&read, read.config()), (&record, config));
        // A record that a power cut has torn, or that is another version's.
        for end in [0, HEAD.len(), bytes.len() - 1] {
            assert!(from_bytes::<SandboxRecord>(&bytes[..end]).is_err(), "{end}");
        }
        let exited = ContainerRecord {
            phase: ContainerPhase::Exited,
            exit_code: -1,
            groups: vec![1, 2],
            ..Default::default()
        };
        assert_eq!(from_bytes::<ContainerRecord>(&to_bytes(&exited).unwrap()).unwrap(), exited);
    }
}
