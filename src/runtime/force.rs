//! Ends what the OCI runtime does not end: it failed, takes too long, or is not installed any more. By the first process and the
//! cgroup, which the kernel knows. I/O.

use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::process::Signal;

use super::cgroups;
use super::context::{Context, failed};
use super::namespaces;
use super::oci_runtime::OciRuntime;
use crate::cri::RuntimeResult;
use crate::filesystem::read_bounded;
use crate::limits::{FORCED_END_TIME, PAUSE_SPEC_BYTES_MAX};
use crate::monitor;

/// A container of the OCI runtime: a pod's, or the first process of a pod.
pub(super) struct Target<'a> {
    pub(super) id: &'a str,
    /// An error: it is not known any more.
    pub(super) runtime: RuntimeResult<OciRuntime>,
    /// Its bundle, with the files of its monitor.
    pub(super) dir: PathBuf,
    /// Its cgroup within each hierarchy; empty: the bundle names it.
    pub(super) cgroup: String,
}

/// Ends all its processes, and lets the OCI runtime forget it. Idempotent.
///
/// # Errors
/// A process of it may run on.
pub(super) async fn end(context: &Rc<Context>, target: Target<'_>) -> RuntimeResult<()> {
    let Target { id, runtime, dir, cgroup } = target;
    let (error, program) = match runtime {
        Ok(runtime) => match runtime.delete(id).await {
            Ok(()) => return Ok(()),
            Err(error) => (error, Some(runtime.path().to_owned())),
        },
        Err(error) => (error, None),
    };
    let (mounts, state) = (context.settings.cgroup_mounts.clone(), context.settings.oci_state().join(id));
    let id_ = id.to_owned();
    let kill = move || {
        kill(&dir, (&mounts, &cgroup), &id_)?;
        // Nobody is left who could remove it.
        if program.is_none_or(|program| !program.is_file()) { namespaces::remove_dir(&state) } else { Ok(()) }
    };
    match context.blocking(kill).await {
        Ok(()) => {
            log::warn!("container {id}: {error}; ended without the OCI runtime");
            Ok(())
        }
        Err(left) => Err(failed(format!("container {id}: {error}; without the OCI runtime: {left}"))),
    }
}

/// Kills the first process, and what else is in the cgroup. Blocking.
fn kill(dir: &Path, (mounts, cgroup): (&Path, &str), id: &str) -> io::Result<()> {
    let init = monitor::init_of(dir).map_err(|error| io::Error::other(error.to_string()))?;
    if let Some(init) = &init {
        // It may have exited.
        let _ = init.signal(Signal::KILL);
    }
    // Its last part is the container's id: nothing else is removed.
    let cgroup = if cgroup.is_empty() { cgroup_of(dir) } else { Some(cgroup.to_owned()) };
    if let Some(cgroup) = cgroup.filter(|cgroup| cgroup.contains(id)) {
        cgroups::remove(mounts, &cgroup)?;
    }
    if init.is_some_and(|init| !init.exits_within(FORCED_END_TIME)) {
        return Err(io::Error::other(
            "its first process runs on after SIGKILL; it may wait for a disk or a server",
        ));
    }
    Ok(())
}

/// The cgroup that its runtime-spec names. Blocking.
fn cgroup_of(bundle: &Path) -> Option<String> {
    let text = read_bounded(&bundle.join("config.json"), PAUSE_SPEC_BYTES_MAX).ok()?;
    let spec: serde_json::Value = serde_json::from_slice(&text).ok()?;
    let path = spec.get("linux")?.get("cgroupsPath")?.as_str()?;
    Some(super::stats::cgroup_dir(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cgroup_is_that_of_the_bundle() {
        let dir = std::env::temp_dir().join(format!("smolet-force-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        assert_eq!(cgroup_of(&dir), None);
        for (path, cgroup) in [
            ("/kubepods/pod1/abc", "kubepods/pod1/abc"),
            ("kubepods-pod1.slice:smolet:abc", "kubepods.slice/kubepods-pod1.slice/smolet-abc.scope"),
        ] {
            let spec = serde_json::json!({ "linux": { "cgroupsPath": path } });
            std::fs::write(dir.join("config.json"), spec.to_string()).unwrap();
            assert_eq!(cgroup_of(&dir).as_deref(), Some(cgroup));
        }
        // Nothing is known of a process: there is none.
        kill(&dir, (Path::new("/nonexistent"), ""), "no").unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
