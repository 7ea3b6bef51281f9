//! Image pulls, which images a pod may use, and images in the Node's status (`ValidateKubeletConfiguration`:
//! `serializeImagePulls`, `maxParallelImagePulls`, `imagePullCredentialsVerificationPolicy`,
//! `preloadedImagesVerificationAllowlist`, `nodeStatusMaxImages`).

use std::path::{Path, PathBuf};

use super::{ConfigError, FileSettings, Flags, between};
use crate::image::pulled::policy::{Allowlist, VerificationPolicy};
use crate::limits::{CRI_PULLS_AT_ONCE_MAX, PULLS_AT_ONCE, PULLS_AT_ONCE_MAX};

/// Greatest number of parallel pulls (`SetDefaults_KubeletConfiguration`, `ValidateKubeletConfiguration`).
pub(super) fn image_pulls(file: &FileSettings) -> Result<usize, ConfigError> {
    let most = CRI_PULLS_AT_ONCE_MAX;
    let (serialize, parallel) = (file.bool("serializeImagePulls"), file.int("maxParallelImagePulls"));
    let parallel = match parallel.map(|given| (given, usize::try_from(given).unwrap_or_default())) {
        None => None,
        Some((_, pulls)) if (1..=most).contains(&pulls) => Some(pulls),
        Some((given, _)) => {
            let message = format!("maxParallelImagePulls: {given}: must be between 1 and {most}");
            return Err(ConfigError(message));
        }
    };
    match (serialize, parallel) {
        (Some(true), Some(pulls)) if pulls > 1 => Err(ConfigError(format!(
            "maxParallelImagePulls: {pulls}: more than one pull at a time needs serializeImagePulls: false"
        ))),
        (_, Some(pulls)) => Ok(pulls),
        (Some(false), None) => Ok(PULLS_AT_ONCE_MAX),
        (Some(true) | None, None) => Ok(PULLS_AT_ONCE),
    }
}

/// containerd's directory of `HOST/hosts.toml`.
pub(super) fn certs_dir(flags: &Flags) -> Result<Option<PathBuf>, ConfigError> {
    match flags.containerd_certs_dir.as_deref() {
        Some(path) if !path.is_absolute() => {
            Err(ConfigError("--containerd-certs-dir: must be an absolute path".to_owned()))
        }
        given => Ok(given.map(Path::to_owned)),
    }
}

/// Greatest number of images in the Node's status.
pub(super) fn reported_max(file: &FileSettings) -> Result<usize, ConfigError> {
    let images = between(file, "nodeStatusMaxImages", 0, 50)?;
    Ok(images.and_then(|images| usize::try_from(images).ok()).unwrap_or(50))
}

/// Which pods may use present images (`ValidateKubeletConfiguration`).
pub(super) fn pull_verification(file: &FileSettings) -> Result<VerificationPolicy, ConfigError> {
    let allowlist = file.texts("preloadedImagesVerificationAllowlist");
    let policy = match file.text("imagePullCredentialsVerificationPolicy").unwrap_or_default() {
        "" | "NeverVerifyPreloadedImages" => VerificationPolicy::NotPreloaded,
        "NeverVerify" => VerificationPolicy::Never,
        "AlwaysVerify" => VerificationPolicy::Always,
        "NeverVerifyAllowlistedImages" => {
            let list = Allowlist::parse(&allowlist);
            return list
                .map(VerificationPolicy::NotListed)
                .map_err(|why| ConfigError(format!("preloadedImagesVerificationAllowlist: {why}")));
        }
        other => {
            return Err(ConfigError(format!(
                "imagePullCredentialsVerificationPolicy: {other:?}: must be NeverVerify, NeverVerifyPreloadedImages, \
                 NeverVerifyAllowlistedImages or AlwaysVerify"
            )));
        }
    };
    if allowlist.is_empty() {
        return Ok(policy);
    }
    Err(ConfigError(
        "preloadedImagesVerificationAllowlist: needs imagePullCredentialsVerificationPolicy: \
         NeverVerifyAllowlistedImages"
            .to_owned(),
    ))
}
