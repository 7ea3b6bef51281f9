//! The small files in a container's directory: the arguments of its monitor, its first process, its exit. Blocking I/O on the
//! agent's own files.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use super::{MonitorError, names};
use crate::filesystem::{read_bounded, read_start};
use crate::limits::{MONITOR_ARGUMENTS_BYTES_MAX, MONITOR_RECORD_BYTES_MAX};

/// What a monitor does, as `monitor.json` in the container's directory. All paths are absolute. Fields of a later version are
/// ignored: an older one may adopt its containers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Arguments {
    /// The container's ID, as the OCI runtime is to know it.
    pub id: String,
    /// The bundle: a directory with `config.json`. `process.terminal` there is `tty` here, and `process.oomScoreAdj` is set.
    pub bundle: PathBuf,
    /// The OCI runtime.
    pub runtime: PathBuf,
    /// Its global arguments, before the command: `--root DIR`, `--systemd-cgroup`. `--log` is the monitor's own.
    #[serde(default)]
    pub runtime_arguments: Vec<String>,
    /// The log in the CRI's format; its directory exists. `None`: the output is discarded.
    #[serde(default)]
    pub log: Option<PathBuf>,
    /// The container has a terminal.
    #[serde(default)]
    pub tty: bool,
    /// Standard input stays open for attached clients; otherwise it is `/dev/null`.
    #[serde(default)]
    pub stdin: bool,
    /// Standard input is closed when the first client with input detaches.
    #[serde(default)]
    pub stdin_once: bool,
    /// The file with the counter `oom_kill` of the container's cgroup: `memory.events` with version 2, `memory.oom_control` of the
    /// memory controller with version 1. Processes of that cgroup end with the first one. `None`: nobody sees an OOM kill, and others live on.
    #[serde(default)]
    pub oom_events: Option<PathBuf>,
    /// The user and group whose the standard streams are, the root of the container's user namespace: its processes may open them by
    /// their names (`/dev/stdout`). `None`: the monitor's own.
    #[serde(default)]
    pub owner: Option<(u32, u32)>,
    /// The `SELinux` label of the container's files, which its standard streams get. Empty: they have the directory's.
    #[serde(default)]
    pub label: String,
}

/// The exit code of a container whose end nobody saw: its monitor was killed before (containerd's `UnknownExitStatus`).
pub const EXIT_CODE_UNKNOWN: i32 = 255;

/// Of the kernel's ticks in `/proc` (`USER_HZ`).
const MS_PER_TICK: u64 = 10;

/// How a container ended, as `exit` in its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// The exit code; 128 and the signal's number after a signal; [`EXIT_CODE_UNKNOWN`] when nobody saw it.
    pub code: i32,
    /// When it ended, in nanoseconds of the wall clock since 1970.
    pub finished_at: i64,
    /// A process of its cgroup was killed for want of memory.
    pub oom_killed: bool,
}

/// The first process of a container, as `pid` in its directory. The number alone may be another process's by now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Init {
    /// Its process ID.
    pub pid: u32,
    /// When it started, in the kernel's ticks since the boot (`/proc/PID/stat`).
    pub started: u64,
    /// The boot's identity.
    pub boot: String,
}

impl Init {
    /// How long ago it started; `None` when it was in another boot. Blocking.
    pub fn age(&self) -> Option<Duration> {
        Self::of(std::process::id()).ok().filter(|own| own.boot == self.boot)?;
        let uptime = read_start(Path::new("/proc/uptime"), MONITOR_RECORD_BYTES_MAX).ok()?;
        // Whole seconds and hundredths: ticks, but for the point.
        let digits = uptime.iter().take_while(|byte| **byte != b' ').filter(|byte| byte.is_ascii_digit());
        let uptime =
            digits.fold(0_u64, |all, digit| all.wrapping_mul(10).wrapping_add(u64::from(digit - b'0')));
        Some(Duration::from_millis(uptime.checked_sub(self.started)?.checked_mul(MS_PER_TICK)?))
    }

    /// The process that has this ID now.
    ///
    /// # Errors
    /// There is none (`SRCH`); the kernel's.
    pub(super) fn of(pid: u32) -> rustix::io::Result<Self> {
        let read = |path: &str| {
            read_start(Path::new(path), MONITOR_RECORD_BYTES_MAX).map_err(|error| {
                Errno::from_io_error(&error).filter(|errno| *errno != Errno::NOENT).unwrap_or(Errno::SRCH)
            })
        };
        let stat = read(&format!("/proc/{pid}/stat"))?;
        let started = stat_field(&stat, STAT_START_TIME).ok_or(Errno::SRCH)?;
        let boot = read("/proc/sys/kernel/random/boot_id")?;
        Ok(Self { pid, started, boot: String::from_utf8_lossy(&boot).trim().to_owned() })
    }

    /// A process that had this ID and is gone: none that gets it later is taken for it.
    pub(super) fn gone(pid: u32) -> Self {
        Self { pid, started: 0, boot: String::new() }
    }

    /// Whether the process is there, be it as a zombie.
    pub fn is_there(&self) -> bool {
        Self::of(self.pid).as_ref() == Ok(self)
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// It is not there any more (`SRCH`); the kernel's.
    pub fn signal(&self, signal: Signal) -> rustix::io::Result<()> {
        pidfd_send_signal(self.handle()?, signal)
    }

    /// Whether it has exited, within that time. What cannot be known counts as running. Blocking.
    pub fn exits_within(&self, time: Duration) -> bool {
        match self.handle() {
            Ok(handle) => super::wait_readable(&handle, time).unwrap_or_default(),
            Err(error) => error == Errno::SRCH,
        }
    }

    /// A pidfd of it; `None` when it is not there any more.
    ///
    /// # Errors
    /// The kernel's: whether it is there is not known.
    pub(super) fn held(&self) -> rustix::io::Result<Option<OwnedFd>> {
        match self.handle() {
            Err(Errno::SRCH) => Ok(None),
            handle => handle.map(Some),
        }
    }

    fn handle(&self) -> rustix::io::Result<OwnedFd> {
        let handle = pidfd_open(super::pid_of(self.pid).ok_or(Errno::SRCH)?, PidfdFlags::empty())?;
        // Looked at after it is held: the number may be another process's by now.
        if Self::of(self.pid)? == *self { Ok(handle) } else { Err(Errno::SRCH) }
    }
}

/// Fields of `/proc/PID/stat` as proc(5) counts them.
pub(super) const STAT_START_TIME: usize = 22;
pub(super) const STAT_EXIT_CODE: usize = 52;

/// A number in the text of `/proc/PID/stat`. The second field is a name, which may have spaces and brackets. PURE.
pub fn stat_field(stat: &[u8], number: usize) -> Option<u64> {
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(stat.get(end + 2..)?).ok()?;
    rest.split_ascii_whitespace().nth(number.checked_sub(3)?)?.parse().ok()
}

/// The state in the text of `/proc/PID/stat`: `R`, `S`, `D`, `Z` and others. PURE.
pub fn stat_state(stat: &[u8]) -> Option<u8> {
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    stat.get(end + 2).copied()
}

/// Whether the text of `/proc/PID/stat` is that of a process that has exited and waits for its parent. PURE.
pub(super) fn is_exited(stat: &[u8]) -> bool {
    matches!(stat_state(stat), Some(b'Z' | b'X'))
}

/// Writes `monitor.json`. The directory exists.
///
/// # Errors
/// The file system's.
pub fn write_arguments(directory: &Path, arguments: &Arguments) -> Result<(), MonitorError> {
    let path = directory.join(names::ARGUMENTS);
    let text = serde_json::to_vec(arguments).map_err(io::Error::other);
    text.and_then(|text| place(directory, names::ARGUMENTS, &text))
        .map(drop)
        .map_err(|source| MonitorError::Io { path, source })
}

/// Reads `monitor.json`.
pub(super) fn read_arguments(directory: &Path) -> Result<Arguments, MonitorError> {
    let path = directory.join(names::ARGUMENTS);
    let text = read_bounded(&path, MONITOR_ARGUMENTS_BYTES_MAX);
    text.and_then(|text| serde_json::from_slice(&text).map_err(io::Error::other))
        .map_err(|source| MonitorError::Io { path, source })
}

/// Makes the file appear whole by a rename; the caller syncs it where it is to outlast a power cut.
pub(super) fn place(directory: &Path, name: &str, bytes: &[u8]) -> io::Result<File> {
    let beside = directory.join(format!(".{name}"));
    match std::fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = File::options().create_new(true).write(true).mode(0o600).open(&beside)?;
    file.write_all(bytes)?;
    std::fs::rename(&beside, directory.join(name))?;
    Ok(file)
}

/// How the container ended; `None` while it runs, and when the record was torn by a power cut.
///
/// # Errors
/// The file system's.
pub fn exit_of(directory: &Path) -> Result<Option<Exit>, MonitorError> {
    record(directory, names::EXIT)
}

/// The container's first process; `None` before the container has started.
///
/// # Errors
/// The file system's.
pub fn init_of(directory: &Path) -> Result<Option<Init>, MonitorError> {
    record(directory, names::PID)
}

fn record<T: serde::de::DeserializeOwned>(directory: &Path, name: &str) -> Result<Option<T>, MonitorError> {
    let path = directory.join(name);
    match read_bounded(&path, MONITOR_RECORD_BYTES_MAX) {
        Ok(text) => Ok(serde_json::from_slice(&text).ok()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(MonitorError::Io { path, source }),
    }
}

/// Whether a monitor lives: it alone has the lock, which the kernel takes from it when it ends.
///
/// # Errors
/// The file system's; a missing lock file is no monitor.
pub fn is_alive(directory: &Path) -> Result<bool, MonitorError> {
    let path = directory.join(names::LOCK);
    let file = match crate::filesystem::open_regular(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(source) => return Err(MonitorError::Io { path, source }),
    };
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(false),
        Err(Errno::WOULDBLOCK) => Ok(true),
        Err(error) => Err(MonitorError::Io { path, source: error.into() }),
    }
}

/// Process ID of the living monitor: for a pidfd, which tells when it ends.
///
/// # Errors
/// The file system's.
pub fn monitor_of(directory: &Path) -> Result<Option<u32>, MonitorError> {
    if !is_alive(directory)? {
        return Ok(None);
    }
    let path = directory.join(names::LOCK);
    let text = read_bounded(&path, MONITOR_RECORD_BYTES_MAX);
    let text = text.map_err(|source| MonitorError::Io { path, source })?;
    Ok(std::str::from_utf8(&text).ok().and_then(|text| text.trim().parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_stat_are_counted_behind_the_name() {
        let rest: Vec<String> = (4..=52).map(|field| field.to_string()).collect();
        for name in ["sh", "a b", ") S 9", "(x)"] {
            let stat = format!("17 ({name}) S {}\n", rest.join(" "));
            assert_eq!(stat_field(stat.as_bytes(), STAT_START_TIME), Some(22), "{name}");
            assert_eq!(stat_field(stat.as_bytes(), STAT_EXIT_CODE), Some(52), "{name}");
        }
        assert_eq!(stat_field(b"17 (sh) S", STAT_START_TIME), None);
        assert_eq!(stat_field(b"", STAT_START_TIME), None);
    }

    #[test]
    fn the_age_of_a_process_is_known_in_its_boot() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let young = Init::of(child.id()).unwrap();
        std::thread::sleep(Duration::from_millis(300));
        let age = young.age().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(age >= Duration::from_millis(250) && age < Duration::from_mins(1), "{age:?}");
        assert!(Init::of(1).unwrap().age().unwrap() > age);
        assert_eq!(Init { boot: "another".to_owned(), ..young }.age(), None);
    }

    #[test]
    fn a_process_that_is_gone_is_not_the_one_that_has_its_id() {
        let own = Init::of(std::process::id()).unwrap();
        assert!(own.is_there() && own.held().unwrap().is_some() && !own.exits_within(Duration::ZERO));
        let before = Init { started: own.started.wrapping_sub(1), ..own.clone() };
        for gone in [Init::gone(own.pid), before, Init { boot: "another".to_owned(), ..own }] {
            assert!(!gone.is_there() && gone.held().unwrap().is_none() && gone.exits_within(Duration::ZERO));
            assert_eq!(gone.signal(Signal::CONT), Err(Errno::SRCH));
        }
        assert_eq!(Init::of(0), Err(Errno::SRCH));
    }

    #[test]
    fn arguments_that_are_left_out_have_defaults_and_unknown_ones_are_ignored() {
        let least = r#"{"id":"c","bundle":"/b","runtime":"/usr/bin/runc"}"#;
        let read: Arguments = serde_json::from_str(least).unwrap();
        let expected = Arguments {
            id: "c".to_owned(),
            bundle: "/b".into(),
            runtime: "/usr/bin/runc".into(),
            ..Arguments::default()
        };
        assert_eq!(read, expected);
        let later: Arguments = serde_json::from_str(&least.replace("\"id\"", "\"later\":1,\"id\"")).unwrap();
        assert_eq!(later, expected);
    }
}
