//! Bounds of what a container's runtime-spec is made of ([`oci`](crate::oci)).

use std::time::Duration;

/// Bytes of an image's configuration. Full: the image is refused; real ones have a few kilobytes.
pub const IMAGE_CONFIG_BYTES_MAX: usize = 4 << 20;
/// Bytes of `/etc/passwd` and of `/etc/group` of an image. Full: the user is refused, as an account might stand beyond the end.
pub const USER_DATABASE_BYTES_MAX: usize = 1 << 20;
/// Supplementary groups of a process, by Linux (`NGROUPS_MAX`). Full: the container is refused.
pub const SUPPLEMENTAL_GROUPS_MAX: usize = 65536;
/// Arguments of a container's process. Full: the container is refused.
pub const PROCESS_ARGS_MAX: usize = 16384;
/// Environment variables of a container, those of its image included. Full: the container is refused.
pub const PROCESS_ENV_MAX: usize = 16384;
/// Mounts of a container, those of its image's volumes included. Full: the container is refused.
pub const CONTAINER_MOUNTS_MAX: usize = 4096;
/// Device nodes of a container. Full: the container is refused.
pub const CONTAINER_DEVICES_MAX: usize = 8192;
/// Volumes of an image, and labels of one. Full: the image is refused.
pub const IMAGE_CONFIG_ENTRIES_MAX: usize = 1024;
/// Layers of an image. Full: the image is refused; overlay file systems end at 500 directories, and Docker at 127 layers.
pub const IMAGE_LAYERS_MAX: usize = 500;
/// Bytes of a seccomp profile of the node's owner. Full: the container is refused.
pub const SECCOMP_PROFILE_BYTES_MAX: usize = 1 << 20;
/// Bytes of a CDI specification. Full: the file is refused, and the containers that ask for its devices.
pub const CDI_SPEC_BYTES_MAX: usize = 1 << 20;
/// CDI devices of a container. Full: the container is refused.
pub const CDI_DEVICES_MAX: usize = 1024;
/// Bytes of what an OCI runtime says of its features. Full: it counts as one without features.
pub const OCI_FEATURES_BYTES_MAX: usize = 256 << 10;
/// Depth of directories that devices are looked for in. Full: what is deeper is passed over.
pub const DEVICE_DIRECTORY_DEPTH_MAX: usize = 8;
/// Directory entries that are looked at for the devices of a container. Full: the container is refused.
pub const DEVICE_ENTRIES_MAX: usize = 65536;
/// Bytes of `/sys/kernel/security/apparmor/profiles`. Full: profiles beyond it count as not loaded.
pub const APPARMOR_PROFILES_BYTES_MAX: usize = 256 << 10;
/// How long a client waits for a checkpoint where it says nothing else, and at most. Expired: it is told so, and the checkpoint goes on.
pub const CHECKPOINT_TIME: Duration = Duration::from_mins(4);
/// How long after a start, and between two looks, the rest of a checkpoint whose agent was killed is looked for.
pub const CHECKPOINT_SWEEP_PERIOD: Duration = Duration::from_secs(5);
/// How often it is. Later: the next checkpoint or start removes it.
pub const CHECKPOINT_SWEEPS: usize = 12;
/// Bytes of CRIU's log in which its error is looked for. Full: an error beyond them is not shown.
pub const CRIU_LOG_BYTES_MAX: usize = 1 << 20;
/// Bytes that a disk keeps free when a checkpoint is written to it. Less: it is refused.
pub const CHECKPOINT_DISK_FREE_MIN: u64 = 64 << 20;
/// Bytes of a file of `SELinux`' settings that are read. Full: what is beyond them counts as absent.
pub const SELINUX_FILE_BYTES_MAX: usize = 64 << 10;
/// Bytes of an `SELinux` label. Full: a file with a longer one counts as one with another label.
pub const SELINUX_LABEL_BYTES_MAX: usize = 512;
/// How long a mount's files may take to get a label. Expired: the container is refused; the next try finds those that have it.
pub const SELINUX_RELABEL_TIME: Duration = Duration::from_mins(10);
/// How long `apparmor_parser` may take to compile and load our profile. Expired: it is killed.
pub const APPARMOR_LOAD_TIME: Duration = Duration::from_mins(1);
/// After a failure our profile is tried again with the first container after so long; until then containers that need it are refused.
pub const APPARMOR_LOAD_PERIOD: Duration = Duration::from_mins(5);
