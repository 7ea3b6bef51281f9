//! What NFS servers and the programs that speak to them may take.

use std::time::Duration;

use super::{KIB, OUTSIDE_PATIENCE};

/// Bytes of a server's name (RFC 1035). Longer: the volume is refused.
pub const NFS_SERVER_BYTES_MAX: usize = 253;
/// Bytes of a path on it (`MNTPATHLEN`). Longer: the volume is refused.
pub const NFS_PATH_BYTES_MAX: usize = KIB;
/// Bytes of a volume's mount options, with a comma for each. Longer: the volume is refused. (The kernel takes a page of them.)
pub const NFS_OPTIONS_BYTES_MAX: usize = KIB;
/// How long a mount may take: mount.nfs itself tries for so long. Longer: its processes are killed, and the pod is tried again.
/// Its event comes after `OUTSIDE_PATIENCE`; with one server there is one mount at a time, and one unmount.
pub const NFS_MOUNT_TIME: Duration = Duration::from_mins(2);
/// How long an unmount may take, and then one by force (kubelet `unMountTimeout`, a minute, and then without end). Longer: it is
/// killed, the pod's directory stays with an event, and it is tried again.
pub const NFS_UNMOUNT_TIME: Duration = Duration::from_secs(20);
/// Bytes kept of what a program prints. More: the rest is read and dropped.
pub const PROGRAM_OUTPUT_BYTES_MAX: usize = KIB;
/// How often it is looked whether a program has ended that says nothing, or is to be ended.
pub const PROGRAM_LOOK: Duration = Duration::from_millis(100);
/// Directories of pods with such volumes that an agent that was killed left, and that are taken in hand at a start. More: the
/// rest goes at the next start.
pub const NFS_LEFTOVERS_MAX: usize = super::RELIST_ORPHANS_MAX;
// What hangs is known to hang before it is ended.
const _: () = assert!(NFS_UNMOUNT_TIME.as_millis() > OUTSIDE_PATIENCE.as_millis());
