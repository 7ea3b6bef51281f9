//! References of images: registry, repository, tag and digest. PURE.

use super::{RegistryError, RegistryResult};
use crate::image::name::ImageName;
use crate::image_store::Digest;

/// A reference, completed as the kubelet and containerd do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// `docker.io`, `registry.example:5000`.
    pub host: String,
    /// `library/busybox`.
    pub repository: String,
    /// Empty when a digest is given, which a tag beside it adds nothing to (`ParseDockerRef`).
    pub tag: String,
    /// The digest that was asked for.
    pub digest: Option<Digest>,
}

impl Reference {
    /// Parses `busybox`, `registry.example:5000/a/b:tag@sha256:…`.
    ///
    /// # Errors
    /// The kubelet's message; another digest than SHA-256.
    pub fn parse(image: &str) -> RegistryResult<Self> {
        let ImageName { repository, tag, digest } =
            ImageName::parse(image).map_err(RegistryError::Reference)?;
        let (host, repository) = repository.split_once('/').ok_or_else(|| {
            RegistryError::Reference(format!("image name {} has no registry", crate::text::quoted(image)))
        })?;
        let digest = match digest.as_str() {
            "" => None,
            text => Some(Digest::parse(text).ok_or_else(|| {
                RegistryError::Reference(format!(
                    "{image}: digest {text} is not supported; use a sha256 digest"
                ))
            })?),
        };
        let tag = if digest.is_some() { String::new() } else { tag };
        Ok(Self { host: host.to_owned(), repository: repository.to_owned(), tag, digest })
    }

    /// `docker.io/library/busybox`.
    pub fn name(&self) -> String {
        format!("{}/{}", self.host, self.repository)
    }

    /// `docker.io/library/busybox:latest`, or with the digest if one was given.
    pub fn full(&self) -> String {
        let mut full = self.name();
        if !self.tag.is_empty() {
            full.push(':');
            full.push_str(&self.tag);
        }
        if let Some(digest) = self.digest {
            full.push('@');
            full.push_str(&digest.to_string());
        }
        full
    }

    /// What a manifest is asked for by: the digest, else the tag.
    pub(super) fn manifest(&self) -> String {
        self.digest.map_or_else(|| self.tag.clone(), |digest| digest.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_completed() {
        let digest = format!("sha256:{}", "a".repeat(64));
        for (image, host, repository, manifest, full) in [
            ("busybox", "docker.io", "library/busybox", "latest", "docker.io/library/busybox:latest"),
            ("a/b:1", "docker.io", "a/b", "1", "docker.io/a/b:1"),
            ("localhost:5000/x", "localhost:5000", "x", "latest", "localhost:5000/x:latest"),
            (&format!("r.io/x:1@{digest}"), "r.io", "x", &digest, &format!("r.io/x@{digest}")),
        ] {
            let found = Reference::parse(image).unwrap();
            assert_eq!((&*found.host, &*found.repository), (host, repository), "{image}");
            assert_eq!((&*found.manifest(), &*found.full()), (manifest, full), "{image}");
        }
        for (image, error) in
            [("UPPER", "repository name (library/UPPER) must be lowercase"), ("", "invalid reference format")]
        {
            let found = Reference::parse(image).unwrap_err().to_string();
            assert!(found.contains(error), "{image}: {found}");
        }
    }
}
