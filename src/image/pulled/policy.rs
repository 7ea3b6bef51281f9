//! Whose access to an image that is there is verified (kubelet `image_pull_policies.go`). PURE.

use crate::image::name::{ImageName, without_tag};
use crate::limits::PULL_ALLOWLIST_MAX;

/// `imagePullCredentialsVerificationPolicy`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum VerificationPolicy {
    /// `NeverVerify`: any pod may use any image that is there.
    Never,
    /// `NeverVerifyPreloadedImages`: images that the agent did not pull are for all.
    #[default]
    NotPreloaded,
    /// `NeverVerifyAllowlistedImages`: images whose names fit are for all.
    NotListed(Allowlist),
    /// `AlwaysVerify`.
    Always,
}

/// `preloadedImagesVerificationAllowlist`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allowlist {
    names: Vec<String>,
    /// Each ends with a slash.
    prefixes: Vec<String>,
}

impl Allowlist {
    /// Reads its patterns (`getAllowlistImagePattern`).
    ///
    /// # Errors
    /// A sentence that names the pattern.
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
    /// False: whatever is known of its pulls, it is for all. `repository` is the image's name without tag and digest.
    pub fn may_verify(&self, repository: &str) -> bool {
        match self {
            Self::Never => false,
            Self::NotPreloaded | Self::Always => true,
            Self::NotListed(list) => !list.fits(repository),
        }
    }

    /// `RequireCredentialVerificationForImage`, of an image that may be verified: it is, when the agent pulled it or did not.
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
    fn images_are_verified_as_the_policy_has_it() {
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
