//! `AppArmor`: our profile is in the kernel when a container is made, as with containerd (`LoadDefaultProfile`). I/O.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use smol::lock::Mutex;

use super::context::Context;
use super::settings::find_program;
use crate::limits::{APPARMOR_LOAD_PERIOD, APPARMOR_LOAD_TIME};
use crate::model::Mono;
use crate::oci::{APPARMOR_PROFILE, APPARMOR_PROFILE_NAME, NodeFacts, is_apparmor_loaded};
use crate::program;

/// The program that gives profiles to the kernel.
const PARSER: &str = "apparmor_parser";
/// The profile's file in the run directory.
const FILE: &str = "apparmor-profile";

/// Whether the kernel has `AppArmor`, and there is nothing that gives it our profile. Blocking.
pub fn lacks_apparmor_parser() -> bool {
    Path::new("/sys/kernel/security/apparmor/profiles").exists() && find_program(PARSER).is_none()
}

/// Held while our profile is loaded: other containers wait for that. When it could not be loaded for the last time.
#[derive(Default)]
pub(super) struct Loading(Mutex<Option<Mono>>);

/// The profiles that the kernel has now; ours is among them, if it can be. `None`: `AppArmor` is not enabled.
pub(super) async fn profiles(context: &Context) -> Option<String> {
    context.node.apparmor.as_ref()?;
    let mut failed = context.apparmor.0.lock().await;
    let profiles = context.blocking(NodeFacts::read_apparmor_profiles).await;
    let now = context.clock.now().mono;
    let waits = failed.is_some_and(|at| now < at + APPARMOR_LOAD_PERIOD);
    if waits || is_apparmor_loaded(&profiles, APPARMOR_PROFILE_NAME) {
        return Some(profiles);
    }
    let run_dir = context.settings.run_dir.clone();
    // It compiles the profile, for seconds on a small machine.
    let loaded = context.blocking.run_alone(move || load(&run_dir)).await;
    if let Err(why) = loaded.unwrap_or_else(|error| Err(error.to_string())) {
        *failed = Some(now);
        log::warn!(
            "the AppArmor profile {APPARMOR_PROFILE_NAME} is not loaded, and confines no container: {why}"
        );
        return Some(profiles);
    }
    *failed = None;
    Some(context.blocking(NodeFacts::read_apparmor_profiles).await)
}

/// Blocking.
fn load(run_dir: &Path) -> Result<(), String> {
    let path = run_dir.join(FILE);
    std::fs::write(&path, APPARMOR_PROFILE).map_err(|error| format!("{}: {error}", path.display()))?;
    // Not what an older version of the profile was compiled to.
    let arguments = ["--skip-read-cache", "--replace", "--quiet"].map(str::to_owned);
    let arguments = [&arguments[..], &[path.display().to_string()]].concat();
    let parser =
        find_program(PARSER).ok_or_else(|| format!("{PARSER} is not installed; apt install apparmor"))?;
    let parser = parser.to_string_lossy();
    let ended = program::run(&parser, &arguments, APPARMOR_LOAD_TIME, &AtomicBool::new(false));
    let ended = ended.map_err(|error| format!("{parser}: {error}"))?;
    match ended.status {
        Some(status) if status.success() => Ok(()),
        Some(_) => Err(format!("{PARSER}: {}", ended.output.trim())),
        None => Err(format!("{PARSER} did not end within {} s", APPARMOR_LOAD_TIME.as_secs())),
    }
}
