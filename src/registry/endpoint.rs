//! A host that images are pulled from: a mirror, or the registry itself. PURE.

use std::fmt;
use std::path::PathBuf;

use hyper::header::HeaderMap;
use regex_lite::Regex;

use super::Credentials;
use crate::net::Address;
use crate::net::http::HttpGet;

/// What a host is asked for (containerd's `HostCapabilities`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Manifests and blobs by digest.
    pub pull: bool,
    /// Digests of tags.
    pub resolve: bool,
}

impl Capabilities {
    /// Both.
    pub const ALL: Self = Self { pull: true, resolve: true };
}

/// Certificates of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// Files with authorities, trusted beside the system's.
    pub authorities: Vec<PathBuf>,
    /// Files with a client certificate and its key, which may be one file. The first one is used.
    pub client: Vec<(PathBuf, PathBuf)>,
    /// Every certificate is accepted.
    pub skip_verify: bool,
}

impl TlsOptions {
    /// There is none.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A rewrite of repositories' names (k3s).
#[derive(Clone, Debug)]
pub struct Rewrite {
    /// As written.
    pub(super) pattern: Regex,
    /// With `$1` for the first group.
    pub(super) replacement: String,
}

/// A host.
#[derive(Clone)]
pub struct Endpoint {
    /// By HTTPS.
    pub tls: bool,
    /// Its address.
    pub address: Address,
    /// Path of the API, usually `/v2`, without a slash at its end.
    pub path: String,
    /// What it is asked for.
    pub capabilities: Capabilities,
    /// Certificates.
    pub tls_options: TlsOptions,
    /// Headers sent with each request to it.
    pub headers: HeaderMap,
    /// The first one that matches is applied.
    pub rewrites: Vec<Rewrite>,
    /// Its own credentials. Without them those of the image's pull are used, unless they are for another server.
    pub credentials: Option<Credentials>,
    /// The registry's name for a host with another one: sent as `ns=`, as containerd does.
    pub namespace: Option<String>,
}

/// Without headers and credentials.
impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({}, {:?})", self.url(""), self.capabilities)
    }
}

impl Endpoint {
    /// The registry itself (`DefaultHost`, `localhost` by HTTP as containerd does).
    ///
    /// # Errors
    /// A sentence: it is no host.
    pub fn origin(host: &str) -> Result<Self, String> {
        let server = if host == "docker.io" { "registry-1.docker.io" } else { host };
        let scheme = if is_plain(server) { "http" } else { "https" };
        let mut origin = Self::parse(&format!("{scheme}://{server}"), false)?;
        origin.namespace = None;
        Ok(origin)
    }

    /// Parses a URL, with `/v2` after its path unless `override_path` is set. Without a scheme: HTTPS, for this machine HTTP.
    ///
    /// # Errors
    /// A sentence: it is no URL of a host.
    pub(super) fn parse(url: &str, override_path: bool) -> Result<Self, String> {
        let wrong = || format!("{} is no URL as https://HOST[:PORT][/PATH]", crate::text::quoted(url));
        let full = if url.contains("://") {
            url.to_owned()
        } else {
            let host = url.split('/').next().unwrap_or_default();
            format!("{}://{url}", if is_plain(host) { "http" } else { "https" })
        };
        if full.contains(['?', '#', '@']) {
            return Err(format!("{}; credentials and queries are not part of it", wrong()));
        }
        let parsed = HttpGet::of_url(&full, HeaderMap::new()).ok_or_else(wrong)?;
        let mut path = parsed.path.trim_end_matches('/').to_owned();
        if !override_path && !path.ends_with("/v2") {
            path.push_str("/v2");
        }
        Ok(Self {
            tls: parsed.tls,
            address: parsed.address,
            path,
            capabilities: Capabilities::ALL,
            tls_options: TlsOptions::default(),
            headers: HeaderMap::new(),
            rewrites: Vec::new(),
            credentials: None,
            namespace: None,
        })
    }

    /// `https://registry.example/v2` and this path.
    pub fn url(&self, path: &str) -> HttpGet {
        HttpGet {
            tls: self.tls,
            address: self.address.clone(),
            path: format!("{}{path}", self.path),
            headers: HeaderMap::new(),
            host: None,
        }
    }

    /// The URL of a part of a repository: `manifests/latest`, `blobs/sha256:…`.
    pub(super) fn url_of(&self, repository: &str, part: &str) -> HttpGet {
        let repository = self.repository(repository);
        let query = self
            .namespace
            .as_ref()
            .map_or_else(String::new, |namespace| format!("?ns={}", encoded(namespace)));
        self.url(&format!("/{repository}/{part}{query}"))
    }

    /// The repository's name there.
    pub(super) fn repository(&self, name: &str) -> String {
        let rewrite = self.rewrites.iter().find(|rewrite| rewrite.pattern.is_match(name));
        rewrite.map_or_else(
            || name.to_owned(),
            |rewrite| rewrite.pattern.replace_all(name, rewrite.replacement.as_str()).into_owned(),
        )
    }

    /// Without a default port.
    pub fn host(&self) -> String {
        let usual = if self.tls { 443 } else { 80 };
        if self.address.port == usual && !self.address.host.contains(':') {
            self.address.host.clone()
        } else {
            self.address.to_string()
        }
    }
}

/// This machine, not by the port of HTTPS; or the port of HTTP.
pub(super) fn is_plain(host: &str) -> bool {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') && (!name.contains(':') || name.ends_with(']')) => {
            (name, port)
        }
        _ => (host, ""),
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    let is_local = name == "localhost" || name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
    port == "80" || is_local && port != "443"
}

/// With percent codes for all that a query's value cannot hold.
pub(super) fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.push_str(&crate::text::hex(&[byte]).to_ascii_uppercase());
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_as_containerd_has_them() {
        for (host, url) in [
            ("docker.io", "https://registry-1.docker.io:443/v2/a/b/tags"),
            ("r.io", "https://r.io:443/v2/a/b/tags"),
            ("r.io:5000", "https://r.io:5000/v2/a/b/tags"),
            ("r.io:80", "http://r.io:80/v2/a/b/tags"),
            ("localhost:5000", "http://localhost:5000/v2/a/b/tags"),
            ("localhost", "http://localhost:80/v2/a/b/tags"),
            ("127.0.0.1:443", "https://127.0.0.1:443/v2/a/b/tags"),
            ("[::1]:5000", "http://[::1]:5000/v2/a/b/tags"),
        ] {
            let found = Endpoint::origin(host).unwrap().url_of("a/b", "tags");
            assert_eq!(found.to_string(), url, "{host}");
        }
    }

    #[test]
    fn urls_of_mirrors() {
        for (url, override_path, found) in [
            ("https://m.io", false, "https://m.io:443/v2"),
            ("https://m.io/", false, "https://m.io:443/v2"),
            ("m.io/v2/", false, "https://m.io:443/v2"),
            ("http://m.io:81/proxy", false, "http://m.io:81/proxy/v2"),
            ("http://m.io:81/proxy", true, "http://m.io:81/proxy"),
            ("127.0.0.1:5000", false, "http://127.0.0.1:5000/v2"),
        ] {
            assert_eq!(Endpoint::parse(url, override_path).unwrap().url("").to_string(), found, "{url}");
        }
        for wrong in ["ftp://m.io", "https://", "https://me:secret@m.io", "https://m.io:99999"] {
            let error = Endpoint::parse(wrong, false).unwrap_err();
            assert!(error.contains("is no URL as https://"), "{wrong}: {error}");
        }
    }
}
