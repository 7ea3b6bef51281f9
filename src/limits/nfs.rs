//! Bounds of NFS servers, and of the programs that mount them.

use std::time::Duration;

use super::{KIB, OUTSIDE_PATIENCE};

/// Bytes of a server's name (RFC 1035). Longer: the volume is refused.
pub const NFS_SERVER_BYTES_MAX: usize = 253;
/// Bytes of an exported path (`MNTPATHLEN`). Longer: the volume is refused.
pub const NFS_PATH_BYTES_MAX: usize = KIB;
/// Bytes of a volume's mount options, with a comma for each. Longer: the volume is refused. (The kernel takes a page of them.)
pub const NFS_OPTIONS_BYTES_MAX: usize = KIB;
/// How long a mount may take: mount.nfs itself retries for as long. Longer: its processes are killed, and the pod is retried. Its
/// event is recorded after `OUTSIDE_PATIENCE`; each server has one mount at a time, and one unmount.
pub const NFS_MOUNT_TIME: Duration = Duration::from_mins(2);
/// How long an unmount may take, and then a forced one (kubelet `unMountTimeout`, a minute, and then without end). Longer: it is
/// killed, the pod's directory stays with an event, and the unmount is retried.
pub const NFS_UNMOUNT_TIME: Duration = Duration::from_secs(20);
/// Bytes kept of a program's output. More: the rest is read and dropped.
pub const PROGRAM_OUTPUT_BYTES_MAX: usize = KIB;
/// How often a program without output, or one that was killed, is checked for its end.
pub const PROGRAM_POLL_PERIOD: Duration = Duration::from_millis(100);
/// Directories of pods with NFS volumes, left by an agent that was killed, that are processed at a start. More: the rest at the
/// next start.
pub const NFS_LEFTOVERS_MAX: usize = super::RELIST_ORPHANS_MAX;
// A path that hangs is known to hang before its unmount is killed.
const _: () = assert!(NFS_UNMOUNT_TIME.as_millis() > OUTSIDE_PATIENCE.as_millis());
