//! Policies for verifying access to present images (kubelet `image_pull_policies.go`). PURE.

use crate::image::name::{ImageName, without_tag};
use crate::limits::PULL_ALLOWLIST_MAX;

/// `imagePullCredentialsVerificationPolicy`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum VerificationPolicy {
    /// `NeverVerify`: any pod may use any present image.
    Never,
    /// `NeverVerifyPreloadedImages`: images that the agent did not pull are available to all pods.
    #[default]
    NotPreloaded,
    /// `NeverVerifyAllowlistedImages`: images with matching names are available to all pods.
    NotListed(Allowlist),
    /// `AlwaysVerify`.
    Always,
}

/// `preloadedImagesVerificationAllowlist`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowlist {
    names: Vec<String>,
    /// Each ends in a slash.
    prefixes: Vec<String>,
}

impl Allowlist {
    /// Parses the patterns (`getAllowlistImagePattern`).
    ///
    /// # Errors
    /// Names the invalid pattern.
    pub fn parse(patterns: &[String]) -> Result<Self, String> {
        if patterns.len() > PULL_ALLOWLIST_MAX {
            return Err(format!("has {} patterns, and may have {PULL_ALLOWLIST_MAX}", patterns.len()));
        }
        let mut list = Self::default();
        for pattern in patterns {
            let wrong = |why: &str| Err(format!("{pattern:?}: {why}"));
            let prefix = pattern.strip_suffix('*').filter(|prefix| prefix.ends_with('/'));
            let name = prefix.unwrap_or(pattern);
            match prefix {
                _ if pattern.trim() != pattern => return wrong("may not begin or end with a space"),
                _ if name.is_empty() => return wrong("may not be empty"),
                _ if name.contains('*') => {
                    return wrong("may have * behind the last slash only: registry/path/*");
                }
                Some("/") => return wrong("must begin with a registry's host"),
                Some(prefix) => list.prefixes.push(prefix.to_owned()),
                None if without_tag(name) != name => return wrong("may have neither a tag nor a digest"),
                None => match ImageName::parse(name) {
                    Ok(_) => list.names.push(name.to_owned()),
                    Err(why) => return wrong(&why),
                },
            }
        }
        Ok(list)
    }

    fn fits(&self, repository: &str) -> bool {
        self.names.iter().any(|name| name == repository)
            || self.prefixes.iter().any(|prefix| repository.starts_with(prefix.as_str()))
    }
}

impl VerificationPolicy {
    /// False when the image is available to all pods, however it was pulled. `repository` is its name without tag and
    /// digest.
    pub fn may_verify(&self, repository: &str) -> bool {
        match self {
            Self::Never => false,
            Self::NotPreloaded | Self::Always => true,
            Self::NotListed(list) => !list.fits(repository),
        }
    }

    /// `RequireCredentialVerificationForImage` for an image that [`Self::may_verify`]: depends on whether the agent pulled
    /// it.
    pub fn verifies(&self, is_pulled: bool) -> bool {
        match self {
            Self::Never => false,
            Self::NotPreloaded => is_pulled,
            Self::NotListed(_) | Self::Always => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_verified_by_policy() {
        let list = |patterns: &[&str]| {
            Allowlist::parse(&patterns.iter().map(|pattern| (*pattern).to_owned()).collect::<Vec<_>>())
        };
        let listed = VerificationPolicy::NotListed(list(&["r.io/a/*", "r.io/b", "c"]).unwrap());
        for (policy, repository, pulled, preloaded) in [
            (&VerificationPolicy::Never, "r.io/x", false, false),
            (&VerificationPolicy::NotPreloaded, "r.io/x", true, false),
            (&VerificationPolicy::Always, "r.io/x", true, true),
            (&listed, "r.io/x", true, true),
            (&listed, "r.io/a/x", false, false),
            (&listed, "r.io/a", true, true),
            (&listed, "r.io/b", false, false),
            (&listed, "r.io/b/x", true, true),
            (&listed, "c", false, false),
        ] {
            let verifies = |is_pulled| policy.may_verify(repository) && policy.verifies(is_pulled);
            assert_eq!((verifies(true), verifies(false)), (pulled, preloaded), "{policy:?} {repository}");
        }
        for (pattern, why) in [
            (" r.io/a", "space"),
            ("", "empty"),
            ("/*", "host"),
            ("*", "behind the last slash"),
            ("r.io/*/a", "behind the last slash"),
            ("r.io/a*", "behind the last slash"),
            ("r.io/a:1", "neither a tag"),
            ("r.io/A", "lowercase"),
        ] {
            let error = list(&[pattern]).unwrap_err();
            assert!(error.contains(why) && error.starts_with(&format!("{pattern:?}")), "{error}");
        }
        assert!(list(&vec!["a"; PULL_ALLOWLIST_MAX + 1]).is_err());
    }
}
