//! containerd's shims, and which of them serve no sandbox any more (containerd#12560): each holds some megabytes for good.

use std::path::Path;
use std::time::Duration;

use super::{Runtime, RuntimeResult};
use crate::clock::SharedClock;
use crate::filesystem::read_start;
use crate::limits::{SHIM_CMDLINE_BYTES_MAX, SHIM_LEAVES_WITHIN, SHIM_STARTS_WITHIN, SHIMS_MAX};
use crate::model::SandboxItem;

/// A shim that has run for longer than the start of a sandbox may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shim {
    /// Its process.
    pub pid: u32,
    /// The sandbox that it was started for.
    pub sandbox: Box<str>,
}

/// The shims of the containerd at that socket, in the CRI's namespace; at most `limits::SHIMS_MAX`. Blocks.
pub fn shims(proc: &Path, socket: &Path) -> Vec<Shim> {
    let same = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let socket = same(socket);
    let text = |path: &Path| {
        let bytes = read_start(path, SHIM_CMDLINE_BYTES_MAX).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let uptime = text(&proc.join("uptime"));
    let pids = std::fs::read_dir(proc).into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let found = pids.filter_map(|pid| {
        let of = proc.join(pid.to_string());
        let line = text(&of.join("cmdline"));
        let (sandbox, address) = of_command(&line)?;
        let age = age(&text(&of.join("stat")), &uptime)?;
        let is_ours = age > SHIM_STARTS_WITHIN && same(Path::new(address)) == socket;
        is_ours.then(|| Shim { pid, sandbox: sandbox.into() })
    });
    found.take(SHIMS_MAX).collect()
}

/// Sandbox and socket of a shim's command line. PURE.
fn of_command(line: &str) -> Option<(&str, &str)> {
    let mut words = line.split('\0');
    words.next()?.rsplit('/').next()?.strip_prefix("containerd-shim-")?;
    let words: Vec<&str> = words.collect();
    let after = |flag| words.iter().position(|word| *word == flag).and_then(|at| words.get(at + 1).copied());
    (after("-namespace")? == "k8s.io").then_some((after("-id")?, after("-address")?))
}

/// How long a process has run, from its `stat` and the kernel's `uptime`. PURE.
fn age(stat: &str, uptime: &str) -> Option<Duration> {
    // Hundredths of seconds since the boot, the 22nd field; the second is in brackets, and may have any byte.
    let began = stat.rsplit_once(") ")?.1.split_whitespace().nth(19)?.parse::<u64>().ok()?;
    let up = uptime.split('.').next()?.parse::<u64>().ok()?;
    Some(Duration::from_secs(up.saturating_sub(began / 100)))
}

/// The shims that serve no sandbox, by two looks: one that is about to end is none of them. `look` is [`shims`].
///
/// # Errors
/// The runtime's.
pub async fn orphaned<R: Runtime>(
    runtime: &R,
    clock: &SharedClock,
    mut look: impl AsyncFnMut() -> Vec<Shim>,
) -> RuntimeResult<Vec<Shim>> {
    let mut suspects = look().await;
    if suspects.is_empty() {
        return Ok(Vec::new());
    }
    let mut served = |of: SandboxItem| suspects.retain(|shim| *shim.sandbox != *of.id.as_str());
    runtime.list_pod_sandboxes(None, &mut served).await?;
    if suspects.is_empty() {
        return Ok(Vec::new());
    }
    clock.sleep(SHIM_LEAVES_WITHIN).await;
    Ok(look().await.into_iter().filter(|shim| suspects.contains(shim)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shim_is_one_of_the_cris_namespace_and_names_sandbox_and_socket() {
        let line = |words: &str| words.replace(' ', "\0");
        let shim = line("/usr/bin/containerd-shim-runc-v2 -namespace k8s.io -id abc -address /run/c.sock");
        assert_eq!(of_command(&shim), Some(("abc", "/run/c.sock")));
        for other in [
            "/usr/bin/containerd-shim-runc-v2 -namespace moby -id abc -address /run/c.sock",
            "/usr/bin/containerd -namespace k8s.io -id abc -address /run/c.sock",
            "/usr/bin/containerd-shim-runc-v2 -namespace k8s.io -id",
            "",
        ] {
            assert_eq!(of_command(&line(other)), None, "{other}");
        }
    }

    #[test]
    fn those_of_a_socket_are_found_once_they_are_old() {
        let proc = std::env::temp_dir().join(format!("smolet-shims-{}", std::process::id()));
        let process = |pid: u32, began: u64, words: &str| {
            let of = proc.join(pid.to_string());
            std::fs::create_dir_all(&of).expect("made");
            std::fs::write(of.join("cmdline"), words.replace(' ', "\0")).expect("written");
            let stat = format!("{pid} (shim) S 1 {} {began} 0", "0 ".repeat(17).trim_end());
            std::fs::write(of.join("stat"), stat).expect("written");
        };
        let shim = |id: &str, socket: &str| {
            format!("/bin/containerd-shim-runc-v2 -namespace k8s.io -id {id} -address {socket}")
        };
        process(1, 0, "/sbin/init");
        process(7, 1_000, &shim("old", "/run/c.sock"));
        process(8, 90_000, &shim("young", "/run/c.sock"));
        process(9, 1_000, &shim("others", "/run/other.sock"));
        std::fs::write(proc.join("uptime"), "1000.50 7.0\n").expect("written");
        let found = shims(&proc, Path::new("/run/c.sock"));
        assert_eq!(found, [Shim { pid: 7, sandbox: "old".into() }]);
        std::fs::remove_dir_all(proc).expect("removed");
    }

    #[test]
    fn an_age_is_the_time_since_a_process_began() {
        let stat = |began: u64| format!("7 (a) b) S 1 {} {began} 0 0", "0 ".repeat(17).trim_end());
        assert_eq!(age(&stat(1_000), "310.25 5.0\n"), Some(Duration::from_mins(5)));
        assert_eq!(age(&stat(90_000), "310.25 5.0\n"), Some(Duration::ZERO));
        assert_eq!((age("7 (a", "3.0 1.0"), age(&stat(1), "")), (None, None));
        let own = std::fs::read_to_string("/proc/self/stat").expect("the kernel's");
        let uptime = std::fs::read_to_string("/proc/uptime").expect("the kernel's");
        assert!(age(&own, &uptime).expect("an age") < Duration::from_hours(1));
    }
}
