//! `AppArmor`: our profile is in the kernel when a container that it confines is made, as with containerd (`LoadDefaultProfile`). I/O.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use smol::lock::Mutex;

use super::context::{Context, failed};
use super::settings::find_program;
use crate::cri::RuntimeResult;
use crate::limits::{APPARMOR_LOAD_PERIOD, APPARMOR_LOAD_TIME};
use crate::model::Mono;
use crate::oci::{self, APPARMOR_PROFILE_NAME};
use crate::program;
use crate::proto::runtime::v1 as cri;

/// The program that gives profiles to the kernel.
const PARSER: &str = "apparmor_parser";
/// The profile's file in the run directory.
const FILE: &str = "apparmor-profile";
/// Where the distribution has what a profile includes.
const DISTRIBUTION: &str = "/etc/apparmor.d";

/// Whether the kernel has `AppArmor`, and there is nothing that gives it our profile. Blocking.
pub fn lacks_apparmor_parser() -> bool {
    oci::has_apparmor() && find_program(PARSER).is_none()
}

/// What became of our profile. The lock is held while it is loaded: other containers wait for that.
#[derive(Default)]
pub(super) struct Loading(Mutex<State>);

#[derive(Default)]
enum State {
    #[default]
    New,
    /// This agent has loaded it: not the version of an older one.
    Loaded,
    NoParser,
    /// When it could not be loaded for the last time, and why.
    Failed(Mono, String),
}

/// What is to be done for a container. PURE.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Load,
    GoOn,
    Refuse(String),
}

impl State {
    fn step(&self, is_there: bool, now: Mono) -> Step {
        match self {
            // Somebody may have removed it.
            Self::Loaded if is_there => Step::GoOn,
            Self::Failed(at, why) if now < *at + APPARMOR_LOAD_PERIOD => Step::Refuse(why.clone()),
            // A parser may be installed meanwhile, and is looked for quickly.
            Self::New | Self::Loaded | Self::NoParser | Self::Failed(..) => Step::Load,
        }
    }
}

/// The profiles that the kernel has now; ours is among them for a container that may need it. `None`: there is no `AppArmor`.
///
/// # Errors
/// Our profile could not be loaded. Without `apparmor_parser` there is no error: a container that asks for nothing runs without, as with
/// containerd.
pub(super) async fn profiles(
    context: &Context,
    container: &cri::ContainerConfig,
) -> RuntimeResult<Option<String>> {
    if !context.node.apparmor {
        return Ok(None);
    }
    let read = || context.blocking(oci::read_apparmor_profiles);
    let wants_ours = container.linux.as_ref().and_then(|linux| linux.security_context.as_ref());
    if !wants_ours.is_none_or(oci::may_want_default_apparmor) {
        return Ok(Some(read().await));
    }
    let mut state = context.apparmor.0.lock().await;
    let profiles = read().await;
    let is_there = oci::is_apparmor_loaded(&profiles, APPARMOR_PROFILE_NAME);
    match state.step(is_there, context.clock.now().mono) {
        Step::GoOn => return Ok(Some(profiles)),
        Step::Refuse(why) => return Err(failed(why)),
        Step::Load => {}
    }
    let run_dir = context.settings.run_dir.clone();
    // It compiles the profile, for seconds on a small machine.
    let loaded = context.blocking.run_alone(move || load(&run_dir)).await;
    match loaded.unwrap_or_else(|error| Err(error.to_string())) {
        Ok(true) => *state = State::Loaded,
        Ok(false) => {
            if !matches!(*state, State::NoParser) {
                log::warn!(
                    "AppArmor profile {APPARMOR_PROFILE_NAME} is not loaded: {PARSER} is not installed; containers without a profile of \
                     their own are not confined; apt install apparmor"
                );
            }
            *state = State::NoParser;
        }
        Err(why) => {
            let minutes = APPARMOR_LOAD_PERIOD.as_secs() / 60;
            let why = format!(
                "the AppArmor profile {APPARMOR_PROFILE_NAME} cannot be loaded: {why}; it is tried again after {minutes} minutes, and \
                 appArmorProfile: {{type: Unconfined}} does without"
            );
            *state = State::Failed(context.clock.now().mono, why.clone());
            return Err(failed(why));
        }
    }
    let mut profiles = read().await;
    if matches!(*state, State::Loaded) && !oci::is_apparmor_loaded(&profiles, APPARMOR_PROFILE_NAME) {
        // The kernel's list cannot be read, or is longer than what is read of it.
        profiles = format!("{APPARMOR_PROFILE_NAME} (enforce)\n{profiles}");
    }
    Ok(Some(profiles))
}

/// False: there is no parser. Blocking.
fn load(run_dir: &Path) -> Result<bool, String> {
    let Some(parser) = find_program(PARSER) else { return Ok(false) };
    let path = run_dir.join(FILE);
    let text = oci::apparmor_profile(|file| Path::new(DISTRIBUTION).join(file).is_file());
    std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    // Not what an older version of the profile was compiled to.
    let arguments = ["--skip-read-cache", "--replace", "--quiet"].map(str::to_owned);
    let arguments = [&arguments[..], &[path.display().to_string()]].concat();
    let parser = parser.to_string_lossy();
    let ended = program::run(&parser, &arguments, APPARMOR_LOAD_TIME, &AtomicBool::new(false));
    let ended = ended.map_err(|error| format!("{parser}: {error}"))?;
    match ended.status {
        Some(status) if status.success() => Ok(true),
        Some(_) => Err(format!("{parser}: {}", ended.output.trim())),
        None => Err(format!("{parser} did not end within {} s", APPARMOR_LOAD_TIME.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profile_is_loaded_once_and_tried_again_after_a_while() {
        let at = Mono(0);
        let late = at + APPARMOR_LOAD_PERIOD;
        let failed = || State::Failed(at, "why".to_owned());
        for (state, is_there, now, step) in [
            (State::New, true, at, Step::Load),
            (State::Loaded, true, at, Step::GoOn),
            (State::Loaded, false, at, Step::Load),
            (State::NoParser, false, at, Step::Load),
            (failed(), true, at, Step::Refuse("why".to_owned())),
            (failed(), false, late, Step::Load),
        ] {
            assert_eq!(state.step(is_there, now), step);
        }
    }
}
