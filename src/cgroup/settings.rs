//! Creates cgroups and writes their settings, which `render::cgroup_settings` decides. I/O, small; blocking.
//!
//! On version 1 each setting is in the hierarchy of its controller, and only directories with settings are created: the runtime
//! creates the others with its containers. On version 2 there is one directory, and controllers have to be enabled for it from
//! the root down (`cgroup.subtree_control`). A file that has its value already is not written.

use std::fmt;
use std::fs;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};

use super::Cgroups;
use crate::limits::CGROUP_FILE_BYTES_MAX;
use crate::render::CgroupVersion;
use crate::render::cgroup_settings::{CgroupFile, CgroupSettings, Controller, PodLimits, weight_to_shares};
use crate::render::slice::{Slice, slices};

/// Controllers that are enabled on version 2 if the kernel has them (`supportedControllers`); the runtime needs them for its
/// containers too.
const HANDED_DOWN: [&str; 5] = ["cpu", "cpuset", "memory", "hugetlb", "pids"];

/// Version 1 shows no limit as the largest number of whole pages; no machine has this much memory.
const NO_LIMIT_BYTES: i64 = 1 << 60;

/// A cgroup that could not be created or set.
#[derive(Debug)]
pub enum SettingError {
    /// A limit is required, and the kernel has no such controller or has it disabled.
    NoController(Controller),
    /// A directory or file, and its error.
    Io(PathBuf, io::Error),
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoController(Controller::Memory) => f.write_str(
                "the kernel does not limit memory: its memory cgroup is off; boot it with cgroup_enable=memory \
                 (Raspberry Pi OS: at the end of the line in /boot/firmware/cmdline.txt), or leave the limit out",
            ),
            Self::NoController(controller) => {
                write!(f, "the kernel has no cgroup controller {}, which a limit requires", controller.as_str())
            }
            Self::Io(path, error) => write!(f, "cgroup {}: {error}", path.display()),
        }
    }
}

impl std::error::Error for SettingError {}

/// What to do with a missing cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// Create it.
    Make,
    /// Do nothing.
    Leave,
}

impl Cgroups {
    /// Writes the cgroup's settings and returns the number of written files.
    ///
    /// # Errors
    /// The first error; later settings are not written.
    pub fn set(&self, settings: &CgroupSettings, missing: Missing) -> Result<usize, SettingError> {
        let mut written = 0;
        if let Some(root) = &self.unified {
            let Some(directory) = enter(root, &settings.name, missing)? else { return Ok(0) };
            let has = fs::read_to_string(directory.join("cgroup.controllers")).unwrap_or_default();
            for file in &settings.files {
                let is_there = words(&has).any(|word| word == file.controller.as_str());
                written += usize::from(write(is_there.then_some(&*directory), file)?);
            }
        } else if !self.hierarchies.is_empty() {
            for file in &settings.files {
                let root = self.controllers.iter().find(|(controller, _)| *controller == file.controller);
                let directory = root.map(|(_, root)| root.join(settings.name.trim_start_matches('/')));
                if let Some(directory) = directory.as_deref().filter(|directory| !directory.is_dir()) {
                    if missing == Missing::Leave {
                        continue;
                    }
                    make(directory)?;
                }
                written += usize::from(write(directory.as_deref(), file)?);
            }
        }
        Ok(written)
    }

    /// The cgroup's current limits (`GetCgroupConfig`, `MemoryUsage`). A missing file has no value.
    ///
    /// # Errors
    /// An existing file that cannot be read or parsed.
    pub fn limits(&self, name: &str) -> Result<PodLimits, SettingError> {
        let value = |controller: Controller, file: &str| -> Result<Option<i64>, SettingError> {
            let root = match &self.unified {
                Some(root) => Some(root),
                None => self.controllers.iter().find(|(of, _)| *of == controller).map(|(_, root)| root),
            };
            let Some(root) = root else { return Ok(None) };
            let path = root.join(name.trim_start_matches('/')).join(file);
            let text = match read(&path) {
                Ok(text) => text,
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(SettingError::Io(path, error)),
            };
            // `max 100000`; -1 and the largest number also mean no limit.
            let word = words(&text).next().unwrap_or_default();
            match word.parse::<i64>() {
                Ok(number) => Ok(Some(number).filter(|number| (0..=NO_LIMIT_BYTES).contains(number))),
                Err(_) if word == "max" => Ok(None),
                Err(_) => Err(SettingError::Io(path, ErrorKind::InvalidData.into())),
            }
        };
        let [shares, quota, memory, usage] = match self.unified {
            Some(_) => ["cpu.weight", "cpu.max", "memory.max", "memory.current"],
            None => ["cpu.shares", "cpu.cfs_quota_us", "memory.limit_in_bytes", "memory.usage_in_bytes"],
        };
        let shares = value(Controller::Cpu, shares)?;
        Ok(PodLimits {
            cpu_shares: if self.unified.is_some() { shares.map(weight_to_shares) } else { shares },
            cpu_quota_us: value(Controller::Cpu, quota)?,
            memory_limit_bytes: value(Controller::Memory, memory)?,
            memory_usage_bytes: value(Controller::Memory, usage)?.and_then(|bytes| u64::try_from(bytes).ok()),
        })
    }

    /// Slices that systemd has to create or set, the outermost first: missing parents, and the slice itself when it is missing
    /// or one of its files differs. Empty without cgroups.
    pub fn lacking(&self, version: CgroupVersion, settings: &CgroupSettings, missing: Missing) -> Vec<Slice> {
        let is_there = |cgroup: &str| {
            self.hierarchies.iter().any(|root| root.join(cgroup.trim_start_matches('/')).is_dir())
        };
        if self.hierarchies.is_empty() || missing == Missing::Leave && !is_there(&settings.name) {
            return Vec::new();
        }
        let mut slices = slices(version, settings);
        slices.retain(|(cgroup, _)| !is_there(cgroup) || *cgroup == settings.name && !self.holds(settings));
        slices.into_iter().map(|(_, slice)| slice).collect()
    }

    /// True when every file that systemd writes has its value. Controllers without a hierarchy do not count.
    fn holds(&self, settings: &CgroupSettings) -> bool {
        settings.files.iter().filter(|file| file.controller != Controller::Hugetlb).all(|file| {
            let root = match &self.unified {
                Some(root) => Some(root),
                None => self.controllers.iter().find(|(of, _)| *of == file.controller).map(|(_, root)| root),
            };
            root.is_none_or(|root| {
                let path = root.join(settings.name.trim_start_matches('/')).join(&file.name);
                read(&path).is_ok_and(|now| is_as_wanted(now.trim_end(), file))
            })
        })
    }
}

/// The kernel rounds a memory limit to whole pages.
fn is_as_wanted(now: &str, file: &CgroupFile) -> bool {
    let whole_pages = |text: &str| text.parse::<u64>().ok().map(|bytes| bytes - bytes % page_size());
    now == file.value
        || (file.controller == Controller::Memory
            && whole_pages(now).is_some_and(|now| whole_pages(&file.value) == Some(now)))
}

fn page_size() -> u64 {
    u64::try_from(rustix::param::page_size()).unwrap_or(4096).max(1)
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split_ascii_whitespace()
}

fn make(directory: &Path) -> Result<(), SettingError> {
    fs::create_dir_all(directory).map_err(|error| SettingError::Io(directory.to_owned(), error))
}

/// The directory of that name below the root of version 2, with all its controllers enabled; `None` when it is missing and not
/// to be created.
fn enter(root: &Path, name: &str, missing: Missing) -> Result<Option<PathBuf>, SettingError> {
    let mut directory = root.to_owned();
    for part in name.split('/').filter(|part| !part.is_empty()) {
        let below = directory.join(part);
        if !below.is_dir() && missing == Missing::Leave {
            return Ok(None);
        }
        hand_down(&directory);
        make(&below)?;
        directory = below;
    }
    Ok(Some(directory))
}

/// Enables the directory's controllers for its children. When one cannot be enabled, the write of a limit that needs it fails.
fn hand_down(directory: &Path) {
    let read = |name: &str| fs::read_to_string(directory.join(name)).unwrap_or_default();
    let (has, down) = (read("cgroup.controllers"), read("cgroup.subtree_control"));
    for controller in HANDED_DOWN {
        if words(&has).any(|word| word == controller) && !words(&down).any(|word| word == controller) {
            let path = directory.join("cgroup.subtree_control");
            if let Err(error) = put(&path, &format!("+{controller}")) {
                log::warn!(
                    "cgroup {}: controller {controller} not enabled for child cgroups: {error}",
                    directory.display()
                );
            }
        }
    }
}

/// True when the file was written.
fn write(directory: Option<&Path>, file: &CgroupFile) -> Result<bool, SettingError> {
    let Some(directory) = directory else {
        return if file.is_limit { Err(SettingError::NoController(file.controller)) } else { Ok(false) };
    };
    let path = directory.join(&file.name);
    match read(&path) {
        Ok(now) if is_as_wanted(now.trim_end(), file) => return Ok(false),
        Ok(_) => {}
        // A huge page size without a cgroup file.
        Err(error) if error.kind() == ErrorKind::NotFound && !file.is_limit => return Ok(false),
        Err(error) => return Err(SettingError::Io(path, error)),
    }
    put(&path, &file.value).map(|()| true).map_err(|error| SettingError::Io(path, error))
}

fn read(path: &Path) -> io::Result<String> {
    let mut now = String::new();
    fs::File::open(path)?.take(CGROUP_FILE_BYTES_MAX).read_to_string(&mut now)?;
    Ok(now)
}

/// Files of a cgroup cannot be created.
pub(super) fn put(path: &Path, text: &str) -> io::Result<()> {
    fs::File::options().write(true).truncate(true).open(path)?.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::super::tests::Scratch;
    use super::*;

    fn file(controller: Controller, name: &str, value: &str, is_limit: bool) -> CgroupFile {
        CgroupFile { controller, name: name.to_owned(), value: value.to_owned(), is_limit }
    }

    fn settings(files: Vec<CgroupFile>) -> CgroupSettings {
        CgroupSettings { name: "/kubepods/burstable/podu1".to_owned(), files, properties: Vec::new() }
    }

    const POD: &str = "kubepods/burstable/podu1";

    impl Scratch {
        fn file(&self, path: &str, text: &str) {
            let (directory, name) = path.rsplit_once('/').unwrap();
            std::fs::write(self.make(directory).join(name), text).unwrap();
        }

        fn text(&self, path: &str) -> String {
            std::fs::read_to_string(self.0.join(path)).unwrap()
        }
    }

    #[test]
    fn version_1_has_a_directory_for_each_controller() {
        let scratch = Scratch::new();
        let root = scratch.0.display();
        let mounts = format!(
            "cgroup {root}/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\ncgroup {root}/memory cgroup rw,memory 0 0\n\
             cgroup {root}/pids cgroup rw,pids 0 0\ncgroup2 {root}/unified cgroup2 rw 0 0\n"
        );
        let cgroups = Cgroups::from_mounts(&mounts, &scratch.0);
        let shares = file(Controller::Cpu, "cpu.shares", "512", false);
        let limit = file(Controller::Memory, "memory.limit_in_bytes", "4096", true);
        let both = settings(vec![shares, limit]);
        assert_eq!(cgroups.set(&both, Missing::Leave).unwrap(), 0);
        assert!(!scratch.has("cpu,cpuacct"), "without settings no directory");
        // The kernel creates a new cgroup's files; here the test does.
        scratch.file(&format!("cpu,cpuacct/{POD}/cpu.shares"), "1024\n");
        scratch.file(&format!("memory/{POD}/memory.limit_in_bytes"), "9223372036854771712\n");
        assert_eq!(cgroups.set(&both, Missing::Leave).unwrap(), 2);
        assert_eq!(cgroups.set(&both, Missing::Make).unwrap(), 0, "unchanged files are not written");
        // 100 M are not a multiple of the page size.
        let decimal = settings(vec![file(Controller::Memory, "memory.limit_in_bytes", "100000000", true)]);
        let kept = 100_000_000 - 100_000_000 % page_size();
        scratch.file(&format!("memory/{POD}/memory.limit_in_bytes"), &format!("{kept}\n"));
        assert_eq!(cgroups.set(&decimal, Missing::Make).unwrap(), 0);
        scratch
            .file(&format!("memory/{POD}/memory.limit_in_bytes"), &format!("{}\n", kept + 4 * page_size()));
        assert_eq!(cgroups.set(&decimal, Missing::Make).unwrap(), 1);
        scratch.file(&format!("memory/{POD}/memory.limit_in_bytes"), "4096");
        assert_eq!(scratch.text(&format!("cpu,cpuacct/{POD}/cpu.shares")), "512");
        assert_eq!(scratch.text(&format!("memory/{POD}/memory.limit_in_bytes")), "4096");
        assert!(!scratch.has("pids") && !scratch.has("unified"));

        // Without its hierarchy a limit is an error, other settings are left out.
        let pages =
            |is_limit| settings(vec![file(Controller::Hugetlb, "hugetlb.2MB.limit_in_bytes", "0", is_limit)]);
        assert_eq!(cgroups.set(&pages(false), Missing::Make).unwrap(), 0);
        let error = cgroups.set(&pages(true), Missing::Make).unwrap_err().to_string();
        assert_eq!(error, "the kernel has no cgroup controller hugetlb, which a limit requires");
        let without_memory = Cgroups::from_mounts(mounts.lines().next().unwrap(), &scratch.0);
        let error = without_memory.set(&both, Missing::Make).unwrap_err().to_string();
        assert!(error.contains("cgroup_enable=memory"), "{error}");
        // A directory without the kernel's files: the file's error.
        let error =
            cgroups.set(&settings(vec![file(Controller::Cpu, "cpu.cfs_quota_us", "1", true)]), Missing::Make);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("cpu.cfs_quota_us") && error.contains("No such file"), "{error}");
    }

    #[test]
    fn version_2_enables_controllers_from_the_root_down() {
        let scratch = Scratch::new();
        let mounts = format!("cgroup2 {} cgroup2 rw,nosuid 0 0\n", scratch.0.display());
        let cgroups = Cgroups::from_mounts(&mounts, &scratch.0);
        let wanted = settings(vec![
            file(Controller::Cpu, "cpu.weight", "20", false),
            file(Controller::Memory, "memory.max", "4096", true),
            file(Controller::Hugetlb, "hugetlb.2MB.max", "0", false),
        ]);
        assert_eq!(cgroups.set(&wanted, Missing::Leave).unwrap(), 0);
        assert!(!scratch.has("kubepods"));
        let levels = ["", "kubepods/", "kubepods/burstable/"];
        for level in levels {
            scratch.file(&format!("./{level}cgroup.controllers"), "cpu io memory pids\n");
            scratch.file(
                &format!("./{level}cgroup.subtree_control"),
                if level.is_empty() { "cpu memory\n" } else { "" },
            );
        }
        scratch.file(&format!("{POD}/cgroup.controllers"), "cpu memory pids\n");
        scratch.file(&format!("{POD}/cpu.weight"), "100\n");
        scratch.file(&format!("{POD}/memory.max"), "max\n");
        assert_eq!(cgroups.set(&wanted, Missing::Make).unwrap(), 2);
        assert_eq!(scratch.text(&format!("{POD}/cpu.weight")), "20");
        assert_eq!(scratch.text(&format!("{POD}/memory.max")), "4096");
        // The kernel accumulates what is written there; a plain file has the last value.
        assert_eq!(
            levels.map(|level| scratch.text(&format!("./{level}cgroup.subtree_control"))),
            ["+pids"; 3]
        );

        // As on a Raspberry Pi with the memory cgroup disabled.
        scratch.file(&format!("{POD}/cgroup.controllers"), "cpu pids\n");
        let error = cgroups.set(&wanted, Missing::Make).unwrap_err().to_string();
        assert!(error.contains("cgroup_enable=memory"), "{error}");
    }

    #[test]
    fn a_cgroups_limits_are_read_on_both_versions() {
        let scratch = Scratch::new();
        let root = scratch.0.display();
        let v1 = format!("cgroup {root}/cpu cgroup rw,cpu 0 0\ncgroup {root}/memory cgroup rw,memory 0 0\n");
        let v1 = Cgroups::from_mounts(&v1, &scratch.0);
        assert_eq!(v1.limits("/kubepods/podu1").unwrap(), PodLimits::default(), "it is not there");
        for (file, text) in [
            ("cpu/kubepods/podu1/cpu.shares", "512\n"),
            ("cpu/kubepods/podu1/cpu.cfs_quota_us", "-1\n"),
            ("memory/kubepods/podu1/memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory/kubepods/podu1/memory.usage_in_bytes", "4096\n"),
        ] {
            scratch.file(file, text);
        }
        let mut limits =
            PodLimits { cpu_shares: Some(512), memory_usage_bytes: Some(4096), ..PodLimits::default() };
        assert_eq!(v1.limits("/kubepods/podu1").unwrap(), limits);
        scratch.file("cpu/kubepods/podu1/cpu.cfs_quota_us", "20000\n");
        scratch.file("memory/kubepods/podu1/memory.limit_in_bytes", "8192\n");
        (limits.cpu_quota_us, limits.memory_limit_bytes) = (Some(20_000), Some(8192));
        assert_eq!(v1.limits("/kubepods/podu1").unwrap(), limits);
        scratch.file("memory/kubepods/podu1/memory.limit_in_bytes", "lots\n");
        assert!(v1.limits("/kubepods/podu1").unwrap_err().to_string().contains("memory.limit_in_bytes"));

        let scratch = Scratch::new();
        let v2 =
            Cgroups::from_mounts(&format!("cgroup2 {} cgroup2 rw 0 0\n", scratch.0.display()), &scratch.0);
        for (file, text) in [("cpu.weight", "20\n"), ("cpu.max", "max 100000\n"), ("memory.max", "max\n")] {
            scratch.file(&format!("{POD}/{file}"), text);
        }
        let mut limits = PodLimits { cpu_shares: Some(500), ..PodLimits::default() };
        assert_eq!(v2.limits(POD).unwrap(), limits);
        for (file, text) in
            [("cpu.max", "5000 100000\n"), ("memory.max", "8192\n"), ("memory.current", "1\n")]
        {
            scratch.file(&format!("{POD}/{file}"), text);
        }
        limits = PodLimits {
            cpu_quota_us: Some(5000),
            memory_limit_bytes: Some(8192),
            memory_usage_bytes: Some(1),
            ..limits
        };
        assert_eq!(v2.limits(POD).unwrap(), limits);
    }

    #[test]
    fn systemd_is_asked_only_for_slices_that_differ() {
        const SLICE: &str = "kubepods.slice/kubepods-podu.slice";
        let v1 = CgroupVersion::V1 { swap_controller: false };
        let v2 = CgroupVersion::V2 { swap_controller: false };
        for version in [v1, v2] {
            let scratch = Scratch::new();
            let root = scratch.0.display();
            let (mounts, cpu, memory) = match version {
                CgroupVersion::V2 { .. } => (format!("cgroup2 {root} cgroup2 rw 0 0\n"), "", ""),
                CgroupVersion::V1 { .. } => (
                    format!("cgroup {root}/c cgroup rw,cpu 0 0\ncgroup {root}/m cgroup rw,memory 0 0\n"),
                    "c/",
                    "m/",
                ),
            };
            let cgroups = Cgroups::from_mounts(&mounts, &scratch.0);
            let wanted = CgroupSettings {
                name: format!("/{SLICE}"),
                files: vec![
                    file(Controller::Cpu, "weight", "20", false),
                    file(Controller::Memory, "max", "4096", true),
                    // Settings that systemd does not support.
                    file(Controller::Hugetlb, "hugetlb.2MB.max", "0", false),
                ],
                properties: vec![("CPUWeight", 20)],
            };
            let asked = |missing| {
                let slices = cgroups.lacking(version, &wanted, missing);
                slices.into_iter().map(|s| (s.name.into_string(), s.properties.len())).collect::<Vec<_>>()
            };
            let [outer, own] = [("kubepods.slice".to_owned(), 0), ("kubepods-podu.slice".to_owned(), 1)];
            assert_eq!(asked(Missing::Make), [outer, own.clone()]);
            assert_eq!(asked(Missing::Leave), []);
            scratch.make(&format!("{cpu}kubepods.slice"));
            assert_eq!(asked(Missing::Make), vec![own.clone()]);
            scratch.file(&format!("{cpu}{SLICE}/weight"), "20\n");
            scratch.file(&format!("{memory}{SLICE}/max"), "max\n");
            assert_eq!(asked(Missing::Leave), [own]);
            scratch.file(&format!("{memory}{SLICE}/max"), "4096\n");
            assert_eq!(asked(Missing::Make), []);
        }
        let none = Cgroups::from_mounts("", Path::new("/sys/fs/cgroup"));
        assert_eq!(none.lacking(v2, &settings(Vec::new()), Missing::Make), []);
    }

    #[test]
    fn without_cgroups_there_is_nothing_to_do() {
        let cgroups = Cgroups::from_mounts("/dev/sda1 / ext4 rw 0 0\n", Path::new("/sys/fs/cgroup"));
        let limit = file(Controller::Memory, "memory.max", "4096", true);
        assert_eq!(cgroups.set(&settings(vec![limit]), Missing::Make).unwrap(), 0);
    }
}
