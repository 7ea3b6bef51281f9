//! The machine's facts and device nodes for the specs. I/O, blocking: reads the kernel's files, and directories of devices;
//! no device is opened.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use super::runtime_spec::{Device, DeviceKind};
use super::{NodeFacts, RuntimeFeatures, SpecError, cdi};
use crate::filesystem;
use crate::limits::{
    APPARMOR_PROFILES_BYTES_MAX, DEVICE_DIRECTORY_DEPTH_MAX, DEVICE_ENTRIES_MAX, KIB, MOUNTINFO_BYTES_MAX,
};
use crate::proto::runtime::v1::ContainerConfig;
use crate::render::CgroupVersion;

/// The number of `CAP_SYS_RESOURCE`.
const SYS_RESOURCE: u32 = 24;

/// Linux 5.12 maps the ids of mounts.
fn has_user_namespaces() -> bool {
    let of_kernel = rustix::system::uname();
    let release = of_kernel.release().to_string_lossy().into_owned();
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or(0_u32));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let most = text("/proc/sys/user/max_user_namespaces").unwrap_or_default();
    version >= (5, 12) && most.trim().parse().unwrap_or(0_u64) > 0
}

impl NodeFacts {
    /// Reads them. `mountinfo` is what is mounted now: read it anew for a container with mounts that propagate
    /// ([`Self::read_mountinfo`]).
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn read(cgroup: CgroupVersion, runtime: RuntimeFeatures) -> io::Result<Self> {
        let status = text("/proc/self/status")?;
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let capabilities =
            field("CapEff:").and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or_default();
        let own_adj = text("/proc/self/oom_score_adj")?.trim().parse().unwrap_or_default();
        let hugetlb = match cgroup {
            CgroupVersion::V1 { .. } => Path::new("/sys/fs/cgroup/hugetlb").is_dir(),
            CgroupVersion::V2 { .. } => {
                text("/sys/fs/cgroup/cgroup.controllers")?.split_whitespace().any(|name| name == "hugetlb")
            }
        };
        let hostname = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Ok(Self {
            cgroup,
            hugetlb,
            seccomp: field("Seccomp:").is_some(),
            apparmor: has_apparmor(),
            last_capability: text("/proc/sys/kernel/cap_last_cap")?.trim().parse().unwrap_or(u8::MAX),
            capabilities,
            oom_score_adj_min: if capabilities >> SYS_RESOURCE & 1 == 1 { -1000 } else { own_adj },
            user_namespaces: has_user_namespaces(),
            runtime,
            mountinfo: Self::read_mountinfo()?,
            hostname,
            rlimits: Vec::new(),
            pids_limit: None,
        })
    }

    /// `/proc/self/mountinfo`.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read_mountinfo() -> io::Result<String> {
        let bytes = filesystem::read_start(Path::new("/proc/self/mountinfo"), MOUNTINFO_BYTES_MAX)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// Whether the kernel has `AppArmor` and can be given profiles, as runtimes detect it (libcontainer's `apparmor.IsEnabled`).
pub fn has_apparmor() -> bool {
    Path::new("/sys/kernel/security/apparmor").exists()
        && text("/sys/module/apparmor/parameters/enabled").is_ok_and(|text| text.starts_with('Y'))
}

/// Names and modes of the `AppArmor` profiles that are loaded; empty when that cannot be read.
pub fn read_apparmor_profiles() -> String {
    let path = Path::new("/sys/kernel/security/apparmor/profiles");
    let bytes = filesystem::read_start(path, APPARMOR_PROFILES_BYTES_MAX).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn text(path: &str) -> io::Result<String> {
    let bytes = filesystem::read_start(Path::new(path), 64 * KIB)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Follows the links of the devices' host paths in the container's configuration, and finds the nodes that
/// [`Input::devices`](super::Input) is to have.
///
/// # Errors
/// A device that is not there, or a directory of too many entries.
pub fn find_devices(config: &mut ContainerConfig) -> Result<Vec<Device>, SpecError> {
    let mut found = Found { devices: Vec::new(), entries: 0 };
    for device in &mut config.devices {
        let real = fs::canonicalize(&device.host_path)
            .map_err(|error| SpecError::invalid("devices", format!("{}: {error}", device.host_path)))?;
        found.add(&real, 0)?;
        device.host_path = real.to_string_lossy().into_owned();
    }
    let context = config.linux.as_ref().and_then(|linux| linux.security_context.as_ref());
    if context.is_some_and(|context| context.privileged) || cdi::is_asked(config) {
        found.add(Path::new("/dev"), 0)?;
    }
    let mut devices = found.devices;
    devices.sort_by(|a, b| a.path.cmp(&b.path));
    devices.dedup_by(|a, b| a.path == b.path);
    Ok(devices)
}

/// Of `/dev`: they are each container's own, and may have any number of entries (containerd's `getDevices`).
const OWN_DIRECTORIES: [&str; 4] = ["/dev/shm", "/dev/mqueue", "/dev/pts", "/dev/fd"];

struct Found {
    devices: Vec<Device>,
    entries: usize,
}

impl Found {
    /// The node, or those below the directory. No link is followed, and what is gone meanwhile is passed over.
    fn add(&mut self, path: &Path, depth: usize) -> Result<(), SpecError> {
        self.entries += 1;
        SpecError::at_most("entries of directories of devices", self.entries, DEVICE_ENTRIES_MAX)?;
        let Ok(metadata) = fs::symlink_metadata(path) else { return Ok(()) };
        let file_type = metadata.file_type();
        let kind = if file_type.is_dir() {
            if depth < DEVICE_DIRECTORY_DEPTH_MAX && !OWN_DIRECTORIES.iter().any(|own| path == Path::new(own))
            {
                for entry in fs::read_dir(path).into_iter().flatten().flatten() {
                    self.add(&entry.path(), depth + 1)?;
                }
            }
            return Ok(());
        } else if file_type.is_block_device() {
            DeviceKind::Block
        } else if file_type.is_char_device() {
            DeviceKind::Character
        } else if file_type.is_fifo() {
            DeviceKind::Fifo
        } else {
            return Ok(());
        };
        // A path that is no UTF-8 cannot stand in config.json.
        let Some(path) = path.to_str() else { return Ok(()) };
        self.devices.push(Device {
            kind,
            path: path.to_owned(),
            major: rustix::fs::major(metadata.rdev()),
            minor: rustix::fs::minor(metadata.rdev()),
            file_mode: Some(metadata.mode() & 0o7777),
            uid: Some(metadata.uid()),
            gid: Some(metadata.gid()),
        });
        Ok(())
    }
}
