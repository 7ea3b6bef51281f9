//! Image names. PURE: parses and completes them as the kubelet does (`pkg/util/parsers`, `distribution/reference`).

use crate::text::to_lower;

/// A parsed image name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageName {
    /// Domain and path: `docker.io/library/busybox`.
    pub repository: String,
    /// `latest` when neither tag nor digest is given; empty when only a digest is.
    pub tag: String,
    /// `sha256:…`; empty when none is given.
    pub digest: String,
}

const DOMAIN_DEFAULT: &str = "docker.io";
const DOMAIN_LEGACY: &str = "index.docker.io";
const PATH_BYTES_MAX: usize = 255;
const TAG_BYTES_MAX: usize = 128;
const INVALID: &str = "invalid reference format";

impl ImageName {
    /// Parses a name (`ParseImageName`). The error is the kubelet's.
    pub fn parse(image: &str) -> Result<Self, String> {
        parse(image)
            .map_err(|error| format!("couldn't parse image name {}: {error}", crate::text::quoted(image)))
    }
}

/// The name for the CRI (`applyDefaultImageTag`): with `:latest` when it has neither tag nor digest, otherwise unchanged.
pub fn for_runtime(image: &str) -> Result<String, String> {
    let name = ImageName::parse(image)?;
    let complete =
        !name.digest.is_empty() || name.tag.is_empty() || image.ends_with(&format!(":{}", name.tag));
    Ok(if complete { image.to_owned() } else { format!("{image}:{}", name.tag) })
}

/// The name as written, without its tag and digest (`trimImageTagDigest`).
pub fn without_tag(image: &str) -> &str {
    let image = image.split_once('@').map_or(image, |(image, _)| image);
    let path_from = image.rfind('/').map_or(0, |at| at + 1);
    image[path_from..].find(':').map_or(image, |at| &image[..path_from + at])
}

/// The full name, as runtimes store it: `docker.io/library/busybox:latest` for `busybox`.
pub fn full_name(image: &str) -> Result<String, String> {
    let ImageName { mut repository, tag, digest } = ImageName::parse(image)?;
    for (mark, part) in [(':', tag), ('@', digest)] {
        if !part.is_empty() {
            repository.push(mark);
            repository.push_str(&part);
        }
    }
    Ok(repository)
}

/// `Always` for the tag `latest`, else `IfNotPresent` (`SetDefaults_Container`); an invalid name is treated like any other.
pub fn default_pull_policy(image: &str) -> &'static str {
    match ImageName::parse(image) {
        Ok(name) if name.tag == "latest" => "Always",
        Ok(_) | Err(_) => "IfNotPresent",
    }
}

/// True for the usual names of pause images: `registry.k8s.io/pause:3.10`, `rancher/mirrored-pause`.
pub fn is_of_a_pause(image: &str) -> bool {
    let path = image.split_once('@').map_or(image, |(path, _)| path);
    let last = path.rsplit_once('/').map_or(path, |(_, last)| last);
    let repository = last.split_once(':').map_or(last, |(repository, _)| repository);
    repository == "pause" || repository.ends_with("-pause")
}

/// `ParseNormalizedNamed`.
fn parse(image: &str) -> Result<ImageName, String> {
    if image.len() == 64 && image.bytes().all(is_lower_hex) {
        return Err(format!("invalid repository name ({image}), cannot specify 64-byte hexadecimal strings"));
    }
    let (domain, remainder) = split_domain(image);
    let remote = remainder.split(':').next().unwrap_or_default();
    if to_lower(remote) != remote {
        return Err(format!("{INVALID}: repository name ({remote}) must be lowercase"));
    }
    reference(&format!("{domain}/{remainder}"))
}

/// `splitDockerDomain`: the part before the first slash is a domain when it looks like one.
fn split_domain(image: &str) -> (&str, String) {
    let (domain, remainder) = match image.split_once('/') {
        None => return (DOMAIN_DEFAULT, format!("library/{image}")),
        Some((DOMAIN_LEGACY, remainder)) => (DOMAIN_DEFAULT, remainder),
        Some((domain, remainder))
            if domain == "localhost" || domain.contains(['.', ':']) || to_lower(domain) != domain =>
        {
            (domain, remainder)
        }
        Some(_) => (DOMAIN_DEFAULT, image),
    };
    if domain == DOMAIN_DEFAULT && !remainder.contains('/') {
        return (domain, format!("library/{remainder}"));
    }
    (domain, remainder.to_owned())
}

/// `Parse`: `[domain/]path[:tag][@digest]`.
fn reference(text: &str) -> Result<ImageName, String> {
    let Some(split) = split_reference(text) else {
        // Valid but for upper-case letters?
        let lower = to_lower(text);
        let capital = split_reference(&lower).is_some();
        return Err(if capital { "repository name must be lowercase" } else { INVALID }.to_owned());
    };
    let (name, tag, digest) = split;
    let path = match name.split_once('/') {
        Some((domain, path)) if is_domain(domain) && is_path(path) => path,
        _ => name,
    };
    if path.len() > PATH_BYTES_MAX {
        return Err(format!("repository name must not be more than {PATH_BYTES_MAX} characters"));
    }
    check_digest(digest)?;
    let tag = if tag.is_empty() && digest.is_empty() { "latest" } else { tag };
    Ok(ImageName { repository: name.to_owned(), tag: tag.to_owned(), digest: digest.to_owned() })
}

/// Name, tag and digest; empty when absent. `None` when it is not a valid reference (`ReferenceRegexp`).
fn split_reference(text: &str) -> Option<(&str, &str, &str)> {
    let (rest, digest) = match text.split_once('@') {
        Some((rest, digest)) if is_digest(digest) => (rest, digest),
        Some(_) => return None,
        None => (text, ""),
    };
    let path_from = rest.rfind('/').map_or(0, |at| at + 1);
    let (name, tag) = match rest[path_from..].find(':') {
        Some(at) => {
            let (name, tag) = rest.split_at(path_from + at);
            (name, Some(&tag[1..]))
        }
        None => (rest, None),
    };
    let named = is_path(name)
        || name.split_once('/').is_some_and(|(domain, path)| is_domain(domain) && is_path(path));
    (named && tag.is_none_or(is_tag)).then_some((name, tag.unwrap_or_default(), digest))
}

fn is_lower_hex(byte: u8) -> bool {
    byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)
}

/// Letters and digits between separators: one dot, one or two underscores, any number of dashes.
fn is_path(path: &str) -> bool {
    path.split('/').all(|component| {
        let alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let bytes = component.as_bytes();
        let mut rest = bytes;
        let edges = bytes.first().is_some_and(alphanumeric) && bytes.last().is_some_and(alphanumeric);
        while let Some(at) = rest.iter().position(|byte| !alphanumeric(byte)) {
            let separator = &rest[at..];
            let length = separator.iter().take_while(|byte| !alphanumeric(byte)).count();
            let allowed = match &separator[..length] {
                b"." | b"_" | b"__" => true,
                dashes => dashes.iter().all(|&byte| byte == b'-'),
            };
            if !allowed {
                return false;
            }
            rest = &separator[length..];
        }
        edges
    })
}

fn is_domain(domain: &str) -> bool {
    let (host, port) = match domain.rfind(':') {
        // Colons inside brackets are part of the address.
        Some(at) if !domain[at..].contains(']') => (&domain[..at], Some(&domain[at + 1..])),
        _ => (domain, None),
    };
    let component = |text: &str| {
        let bytes = text.as_bytes();
        bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-')
            && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
            && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
    };
    let v6 = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let host_fits = match v6 {
        Some(address) => !address.is_empty() && address.bytes().all(|b| b.is_ascii_hexdigit() || b == b':'),
        None => host.split('.').all(component),
    };
    host_fits && port.is_none_or(|port| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()))
}

fn is_tag(tag: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    tag.len() <= TAG_BYTES_MAX
        && tag.bytes().next().is_some_and(word)
        && tag.bytes().all(|byte| word(byte) || matches!(byte, b'.' | b'-'))
}

/// `algorithm:hex`, at least 32 digits.
fn is_digest(digest: &str) -> bool {
    let Some((algorithm, hex)) = digest.split_once(':') else { return false };
    let component = |text: &str| {
        text.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    algorithm.split(['-', '_', '+', '.']).all(component)
        && hex.len() >= 32
        && hex.bytes().all(|b| b.is_ascii_hexdigit())
}

/// `digest.Validate`: a supported algorithm and its length.
fn check_digest(digest: &str) -> Result<(), &'static str> {
    let Some((algorithm, hex)) = digest.split_once(':') else { return Ok(()) };
    let length = match algorithm {
        "sha256" => 64,
        "sha384" => 96,
        "sha512" => 128,
        _ if algorithm.bytes().any(|byte| byte.is_ascii_uppercase()) => {
            return Err("invalid checksum digest format");
        }
        _ => return Err("unsupported digest algorithm"),
    };
    if hex.len() != length {
        return Err("invalid checksum digest length");
    }
    if hex.bytes().all(is_lower_hex) { Ok(()) } else { Err("invalid checksum digest format") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_split_and_completed() {
        let hex = "0".repeat(64);
        for (image, repository, tag, runtime) in [
            ("busybox", "docker.io/library/busybox", "latest", "busybox:latest"),
            ("a/b:1", "docker.io/a/b", "1", "a/b:1"),
            ("localhost/x", "localhost/x", "latest", "localhost/x:latest"),
            ("[::1]:5000/x:2", "[::1]:5000/x", "2", "[::1]:5000/x:2"),
            ("index.docker.io/x", "docker.io/library/x", "latest", "index.docker.io/x:latest"),
            ("UP/x", "UP/x", "latest", "UP/x:latest"),
            ("a_b.c/x", "a_b.c/x", "latest", "a_b.c/x:latest"),
        ] {
            let name = ImageName::parse(image).unwrap();
            assert_eq!((&*name.repository, &*name.tag), (repository, tag), "{image}");
            assert_eq!(for_runtime(image).as_deref(), Ok(runtime));
        }
        let image = format!("x:1@sha256:{hex}");
        let name = ImageName::parse(&image).unwrap();
        assert_eq!((&*name.tag, name.digest), ("1", format!("sha256:{hex}")));
        assert_eq!(full_name(&image), Ok(format!("docker.io/library/x:1@sha256:{hex}")));
        assert_eq!(full_name("r.io/x").as_deref(), Ok("r.io/x:latest"));
        assert_eq!(for_runtime(&image), Ok(image));
    }

    #[test]
    fn an_invalid_name_is_refused_with_the_reason() {
        for (image, error) in [
            (String::new(), INVALID),
            ("a/B".into(), "invalid reference format: repository name (a/B) must be lowercase"),
            ("x@sha256:00".into(), INVALID),
            (format!("x@sha256:{}", "0".repeat(63)), "invalid checksum digest length"),
            (format!("x@sha256:{}", "A".repeat(64)), "invalid checksum digest format"),
            (format!("x@md5:{}", "0".repeat(32)), "unsupported digest algorithm"),
            (format!("x:{}", "t".repeat(129)), INVALID),
            ("x___y".into(), INVALID),
            ("x._y".into(), INVALID),
            ("-x".into(), INVALID),
            ("http://x/y".into(), INVALID),
        ] {
            let ours = ImageName::parse(&image).unwrap_err();
            assert!(ours.ends_with(&format!("\": {error}")), "{image}: {ours}");
        }
    }
}
