//! Records of sandboxes and containers: one small file each, replaced atomically, written before what it announces. I/O, blocking.
//!
//! ```text
//!     sandbox    Making ─► Ready ─► NotReady ─► (removed)
//!     container  Making ─► Created ─► Starting ─► Running ─► Exited ─► Removing ─► (removed)
//! ```
//!
//! A record is not synced to the disk: after the agent's SIGKILL the kernel still has it, and after a power cut every container has
//! ended anyway. What is torn or unreadable by then is removed by the name of its directory, which is its id.

use std::fmt;
use std::io;
use std::path::Path;

use minicbor::{Decode, Encode};
use prost::Message as _;
use rustix::io::Errno;

use crate::filesystem::{is_lost, read_bounded};
use crate::limits::RUNTIME_RECORD_BYTES_MAX;
use crate::proto::runtime::v1 as cri;

/// The record's name in the directory of a sandbox or container.
const NAME: &str = "record";
/// First bytes of a record. The version of its format follows.
const HEAD: &[u8] = b"smolet-runtime ";
/// The version. Within one, fields may be added: a record without a field has its default, and one that is not known is passed over.
const VERSION: u32 = 1;

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
    #[cbor(n(0), default)]
    pub(super) phase: SandboxPhase,
    /// Nanoseconds since the epoch.
    #[cbor(n(1), default)]
    pub(super) created_at: i64,
    /// The boot in which it was made.
    #[cbor(n(2), default)]
    pub(super) boot: Box<str>,
    /// Its runtime handler.
    #[cbor(n(3), default)]
    pub(super) handler: Box<str>,
    /// A `PodSandboxConfig` of the CRI.
    #[cbor(n(4), default, with = "minicbor::bytes")]
    pub(super) config: Vec<u8>,
    /// The CNI configuration of its network; empty: it has none, or it was released.
    #[cbor(n(5), default)]
    pub(super) network: String,
    /// The result of the network's plugins; empty: there is none yet.
    #[cbor(n(6), default)]
    pub(super) network_result: String,
    /// Its addresses.
    #[cbor(n(7), default)]
    pub(super) addresses: Vec<Box<str>>,
    /// It has a PID namespace of its own, which its pause container holds.
    #[cbor(n(8), default)]
    pub(super) shares_pids: bool,
    /// The OCI runtime of its pause container, which alone knows it. Empty: it has none.
    #[cbor(n(9), default)]
    pub(super) oci_runtime: Box<str>,
    /// The `SELinux` label of its processes; empty: it has none.
    #[cbor(n(10), default)]
    pub(super) process_label: Box<str>,
    /// That of its files.
    #[cbor(n(11), default)]
    pub(super) mount_label: Box<str>,
}

impl SandboxRecord {
    /// What a power cut has left of one says nothing: each that was written has a configuration.
    pub(super) fn is_torn(&self) -> bool {
        self.config.is_empty()
    }

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
    #[cbor(n(0), default)]
    pub(super) phase: ContainerPhase,
    /// Nanoseconds since the epoch, as all times here; 0 = not yet.
    #[cbor(n(1), default)]
    pub(super) created_at: i64,
    #[cbor(n(2), default)]
    pub(super) started_at: i64,
    #[cbor(n(3), default)]
    pub(super) finished_at: i64,
    /// The boot in which it was made.
    #[cbor(n(4), default)]
    pub(super) boot: Box<str>,
    /// Its sandbox.
    #[cbor(n(5), default)]
    pub(super) sandbox: Box<str>,
    /// A `ContainerConfig` of the CRI, without the environment, which may have secrets.
    #[cbor(n(6), default, with = "minicbor::bytes")]
    pub(super) config: Vec<u8>,
    /// The image's id.
    #[cbor(n(7), default)]
    pub(super) image_id: Box<str>,
    /// The image by digest, else its id.
    #[cbor(n(8), default)]
    pub(super) image_ref: Box<str>,
    /// Exit code of the first process.
    #[cbor(n(9), default)]
    pub(super) exit_code: i32,
    /// `Completed`, `Error`, `OOMKilled` ...
    #[cbor(n(10), default)]
    pub(super) reason: Box<str>,
    /// Details of the reason.
    #[cbor(n(11), default)]
    pub(super) message: Box<str>,
    /// The stop signal's number on Linux.
    #[cbor(n(19), default)]
    pub(super) stop_signal: i32,
    /// User id of the first process.
    #[cbor(n(13), default)]
    pub(super) uid: i64,
    /// Group id of the first process.
    #[cbor(n(14), default)]
    pub(super) gid: i64,
    /// Its supplementary groups.
    #[cbor(n(15), default)]
    pub(super) groups: Vec<i64>,
    /// Its cgroup within each hierarchy.
    #[cbor(n(16), default)]
    pub(super) cgroup: Box<str>,
    /// Number of images that are mounted in it.
    #[cbor(n(17), default)]
    pub(super) image_mounts: u32,
    /// The image's name with a tag.
    #[cbor(n(18), default)]
    pub(super) image_name: Box<str>,
    /// The OCI runtime with which it was made, and which alone knows it: another one may be the handler's by now.
    #[cbor(n(20), default)]
    pub(super) oci_runtime: Box<str>,
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

/// Why the runtime cannot go on with a record: what it is about may run, and must not be removed.
#[derive(Debug)]
pub(super) enum RecordError {
    /// It could not be read now.
    Io(io::Error),
    /// A later version of smolet has written it.
    Newer(u32),
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "the record cannot be read: {error}"),
            Self::Newer(version) => write!(
                f,
                "the record has format {version}, of a later version of smolet: install that version, or drain the node and remove \
                 the directory"
            ),
        }
    }
}

/// Reads the record of that directory; `None` when there is none, or when it is damaged or the disk does not give it any more: that one is
/// removed.
///
/// # Errors
/// It may be there, and is not known.
pub(super) fn read<T: for<'b> Decode<'b, ()>>(dir: &Path) -> Result<Option<T>, RecordError> {
    match read_bounded(&dir.join(NAME), RUNTIME_RECORD_BYTES_MAX) {
        // Records are not synced: they go with the boot.
        Ok(bytes) if is_lost(&bytes) => {
            log::info!(
                "{}: the power went before the record was on the disk; what it is about is removed",
                dir.display()
            );
            Ok(None)
        }
        Ok(bytes) => from_bytes(&bytes).inspect(|record| {
            if record.is_none() {
                log::warn!("{}: the record is damaged; what it is about is removed", dir.display());
            }
        }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) if is_of_now(&error) => Err(RecordError::Io(error)),
        Err(error) => {
            log::warn!("{}: the record cannot be read: {error}; what it is about is removed", dir.display());
            Ok(None)
        }
    }
}

/// It is this process that lacks something: the record may be read later. PURE.
fn is_of_now(error: &io::Error) -> bool {
    let of_now = [Errno::NOMEM, Errno::MFILE, Errno::NFILE, Errno::INTR, Errno::AGAIN];
    of_now.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

fn to_bytes(record: &impl Encode<()>) -> io::Result<Vec<u8>> {
    let mut bytes = HEAD.to_vec();
    bytes.extend_from_slice(format!("{VERSION}\n").as_bytes());
    minicbor::encode(record, &mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    if bytes.len() > RUNTIME_RECORD_BYTES_MAX {
        return Err(io::Error::other(format!("a record of {} bytes is too large", bytes.len())));
    }
    Ok(bytes)
}

/// `None` for a damaged one. PURE.
fn from_bytes<T: for<'b> Decode<'b, ()>>(bytes: &[u8]) -> Result<Option<T>, RecordError> {
    let Some(rest) = bytes.strip_prefix(HEAD) else { return Ok(None) };
    let Some(end) = rest.iter().position(|byte| *byte == b'\n') else { return Ok(None) };
    match std::str::from_utf8(&rest[..end]).ok().and_then(|version| version.parse::<u32>().ok()) {
        Some(VERSION) => Ok(minicbor::decode(&rest[end + 1..]).ok()),
        Some(version) if version > VERSION => Err(RecordError::Newer(version)),
        Some(_) | None => Ok(None),
    }
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
        let read: SandboxRecord = from_bytes(&bytes).unwrap().unwrap();
        assert_eq!((&read, read.config()), (&record, config));
        // A record that a power cut has torn.
        for end in [0, HEAD.len(), HEAD.len() + 1, HEAD.len() + 2, bytes.len() - 1] {
            assert!(from_bytes::<SandboxRecord>(&bytes[..end]).unwrap().is_none(), "{end}");
            // Nothing of it, or only its length.
            assert!(is_lost(&vec![0; end]) && is_lost(&bytes[..end]) == (end == 0), "{end}");
        }
        let exited = ContainerRecord {
            phase: ContainerPhase::Exited,
            exit_code: -1,
            groups: vec![1, 2],
            ..Default::default()
        };
        assert_eq!(from_bytes::<ContainerRecord>(&to_bytes(&exited).unwrap()).unwrap(), Some(exited));
    }

    /// What the first release has written is read by every later one: a record that is not would end its pod at an upgrade.
    #[test]
    fn records_of_the_first_release_are_read() {
        const SANDBOX: &[u8] = b"smolet-runtime 1\n\xa9\x00\x01\x01\x07\x02\x61b\x03\x60\x04\x40\x05\x60\x06\x60\x07\x81\x6810.0.0.2\x08\xf5";
        let sandbox: SandboxRecord = from_bytes(SANDBOX).unwrap().unwrap();
        let expected = SandboxRecord {
            phase: SandboxPhase::Ready,
            created_at: 7,
            boot: "b".into(),
            addresses: vec!["10.0.0.2".into()],
            shares_pids: true,
            ..Default::default()
        };
        assert_eq!(sandbox, expected);
        const CONTAINER: &[u8] =
            b"smolet-runtime 1\n\xb3\x00\x03\x01\x01\x02\x02\x03\x00\x04\x61b\x05\x61s\x06\x40\x07\x60\x08\x60\x09\x00\x0a\x60\x0b\x60\x0d\x00\x0e\x00\x0f\x80\x10\x62/c\x11\x00\x12\x60\x13\x0f";
        let container: ContainerRecord = from_bytes(CONTAINER).unwrap().unwrap();
        let expected = ContainerRecord {
            phase: ContainerPhase::Running,
            created_at: 1,
            started_at: 2,
            boot: "b".into(),
            sandbox: "s".into(),
            cgroup: "/c".into(),
            stop_signal: 15,
            ..Default::default()
        };
        assert_eq!(container, expected);
    }

    #[test]
    fn fields_may_be_added_within_a_version() {
        // A record that has the phase alone, and a field 99 that this version does not know.
        let bytes = b"smolet-runtime 1\n\xa2\x00\x01\x18\x63\x61x";
        let ready = SandboxRecord { phase: SandboxPhase::Ready, ..Default::default() };
        assert_eq!(from_bytes::<SandboxRecord>(bytes).unwrap(), Some(ready));
    }

    #[test]
    fn only_what_is_not_there_or_damaged_is_removed() {
        let newer = from_bytes::<SandboxRecord>(b"smolet-runtime 2\nwhatever");
        assert!(matches!(newer, Err(RecordError::Newer(2))), "{newer:?}");
        let dir = std::env::temp_dir().join(format!("smolet-records-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        assert!(read::<SandboxRecord>(&dir).unwrap().is_none());
        // It cannot be read as a file, now or later.
        std::fs::create_dir_all(dir.join(NAME)).unwrap();
        assert!(read::<SandboxRecord>(&dir).unwrap().is_none());
        for (errno, is_of_now) in [(Errno::MFILE, true), (Errno::NOMEM, true), (Errno::IO, false)] {
            assert_eq!(super::is_of_now(&errno.into()), is_of_now, "{errno:?}");
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
