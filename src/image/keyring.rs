//! Matches registry credentials to images (`BasicDockerKeyring`), and parses docker's configuration files with them. PURE.
//!
//! A registry is written as `host[:port][/path]`, with `*` for any part of a label of the host. A path matches every image
//! whose name begins with it; of several matches, the longest comes first, and all of them are tried.

use std::fmt;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::{Map, Value};

use super::pulled::record::{PullSecret, credential_hash};
use crate::proto::runtime::v1::AuthConfig;

/// The host name under which docker stores the credentials of Docker Hub.
const DEFAULT_REGISTRY: &str = "index.docker.io";

/// Credentials for a registry. The `Debug` output hides them.
#[derive(Clone, PartialEq, Eq)]
pub struct Login {
    username: String,
    password: String,
    email: String,
    /// A token for the token service, instead of both.
    identity_token: String,
    /// The one server that they are for; empty: whoever serves the image.
    server: String,
    /// The pull secret with these credentials; `None` for the node's own.
    secret: Option<PullSecret>,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Login")
    }
}

impl Login {
    /// The node's own credentials for one server.
    pub(crate) fn of_server(username: &str, password: &str, identity_token: &str, server: &str) -> Self {
        Self {
            username: username.to_owned(),
            password: password.to_owned(),
            email: String::new(),
            identity_token: identity_token.to_owned(),
            server: server.to_owned(),
            secret: None,
        }
    }

    /// The CRI's `AuthConfig`: the kubelet fills user name and password and no other field.
    pub fn auth(&self) -> AuthConfig {
        AuthConfig {
            username: self.username.clone(),
            password: self.password.clone(),
            identity_token: self.identity_token.clone(),
            server_address: self.server.clone(),
            ..AuthConfig::default()
        }
    }

    /// The pull secret with these credentials, with their digest; `None` for credentials that all pods of the node may use.
    pub fn secret(&self) -> Option<PullSecret> {
        let secret = self.secret.clone()?;
        let credential_hash = credential_hash(&self.username, &self.password, &self.email);
        Some(PullSecret { credential_hash, ..secret })
    }
}

/// A docker configuration file: registries as written, with their credentials.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DockerConfig {
    logins: Vec<(String, Login)>,
    /// The file configures credential helpers. As in the kubelet, none is run.
    pub names_helpers: bool,
}

impl DockerConfig {
    /// Parses `config.json` and the key `.dockerconfigjson` of a Secret.
    ///
    /// # Errors
    /// The error, with the registry that it is about and without any value.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let mut config = object(bytes)?;
        let names_helpers = ["credsStore", "credHelpers"].iter().any(|field| config.contains_key(*field));
        let logins = match config.remove("auths") {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Object(auths)) => logins(auths).map_err(|error| format!("auths{error}"))?,
            Some(_) => return Err("auths: must be an object".to_owned()),
        };
        Ok(Self { logins, names_helpers })
    }

    /// Parses the older `.dockercfg`, with only the credentials.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn parse_legacy(bytes: &[u8]) -> Result<Self, String> {
        Ok(Self { logins: logins(object(bytes)?)?, names_helpers: false })
    }
}

/// Parser of a pull secret's value.
pub type Reader = fn(&[u8]) -> Result<DockerConfig, String>;

/// The key and the parser of a pull secret of that type; `None` for another type.
pub fn pull_secret(type_: &str) -> Option<(&'static str, Reader)> {
    match type_ {
        "kubernetes.io/dockerconfigjson" => Some((".dockerconfigjson", DockerConfig::parse)),
        "kubernetes.io/dockercfg" => Some((".dockercfg", DockerConfig::parse_legacy)),
        _ => None,
    }
}

fn object(bytes: &[u8]) -> Result<Map<String, Value>, String> {
    serde_json::from_slice(bytes).map_err(|_| "must be a JSON object".to_owned())
}

fn logins(entries: Map<String, Value>) -> Result<Vec<(String, Login)>, String> {
    let login = |(registry, entry): (String, Value)| match login(entry) {
        Ok(login) => Ok((registry, login)),
        // Only the key: the value may contain credentials too.
        Err(error) => Err(format!("[{:?}]{error}", key(&registry).unwrap_or_default())),
    };
    entries.into_iter().map(login).collect()
}

/// `DockerConfigEntry.UnmarshalJSON`.
fn login(entry: Value) -> Result<Login, String> {
    let mut entry = match entry {
        Value::Object(entry) => entry,
        Value::Null => Map::new(),
        _ => return Err(": must be an object".to_owned()),
    };
    let mut text = |field: &str| match entry.remove(field) {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(format!(".{field}: must be a string")),
    };
    let (username, password, auth) = (text("username")?, text("password")?, text("auth")?);
    // Unused for authentication, and not validated by the kubelet either.
    let email = text("email").unwrap_or_default();
    let login = |username, password| Login {
        username,
        password,
        email,
        identity_token: String::new(),
        server: String::new(),
        secret: None,
    };
    if auth.is_empty() {
        return Ok(login(username, password));
    }
    match decoded(&auth).as_deref().and_then(|pair| pair.split_once(':')) {
        Some((username, password)) => Ok(login(username.to_owned(), password.to_owned())),
        None => Err(".auth: must be the base64 of user:password".to_owned()),
    }
}

/// Decodes base64 text, with or without padding.
fn decoded(auth: &str) -> Option<String> {
    let mut auth: String = auth.trim().chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    if !auth.ends_with('=') {
        auth.push_str(["", "", "==", "="][auth.len() % 4]);
    }
    String::from_utf8(BASE64_STANDARD.decode(auth).ok()?).ok()
}

/// Credentials by registry.
#[derive(Clone, Debug, Default)]
pub struct Keyring {
    /// By key (`host[:port][/path]`), in the order of adding.
    logins: Vec<(String, Login)>,
}

impl Keyring {
    /// Adds the credentials of a file of the node, or of that pull secret. An invalid registry name is left out (`Add`).
    pub fn add(&mut self, config: DockerConfig, secret: Option<&PullSecret>) {
        let keyed = config.logins.into_iter().filter_map(|(registry, login)| {
            Some((key(&registry)?, Login { secret: secret.cloned(), ..login }))
        });
        self.logins.extend(keyed);
    }

    /// The credentials to try for a repository (`docker.io/library/busybox`), in order (`Lookup`).
    pub fn lookup(&self, repository: &str) -> Vec<&Login> {
        let mut found: Vec<&(String, Login)> =
            self.logins.iter().filter(|(key, _)| urls_match(key, repository)).collect();
        if found.is_empty() && is_of_default_registry(repository) {
            found = self.logins.iter().filter(|(key, _)| key == DEFAULT_REGISTRY).collect();
        }
        // Stable: credentials of one registry keep their order. Reversed, so that longer paths come first.
        found.sort_by(|(a, _), (b, _)| b.cmp(a));
        found.into_iter().map(|(_, login)| login).collect()
    }
}

/// A registry without its scheme, and without `/v1/` or `/v2/`, which docker appends to the host.
fn key(registry: &str) -> Option<String> {
    let rest = registry.strip_prefix("https://").or_else(|| registry.strip_prefix("http://"));
    let (host, path) = split(rest.unwrap_or(registry))?;
    let path = if path.starts_with("/v1/") || path.starts_with("/v2/") { &path[3..] } else { path };
    Some(if path == "/" { host.to_owned() } else { format!("{host}{path}") })
}

/// `isDefaultRegistryMatch`.
fn is_of_default_registry(image: &str) -> bool {
    match image.split_once('/') {
        None => !image.is_empty(),
        Some(("", _)) => false,
        Some((first, _)) => first == "docker.io" || first == DEFAULT_REGISTRY || !first.contains(['.', ':']),
    }
}

/// Host (with its port) and path of a URL without its scheme, parsed as in Go's `url.Parse`; `None` when that rejects it.
fn split(url: &str) -> Option<(&str, &str)> {
    let url = url.find(['?', '#']).map_or(url, |end| &url[..end]);
    let (authority, path) = url.split_at(url.find('/').unwrap_or(url.len()));
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let port = match host.strip_prefix('[') {
        Some(address) => address.rsplit_once(']')?.1,
        None => host.rfind(':').map_or("", |at| &host[at..]),
    };
    let digits = port.strip_prefix(':').unwrap_or(port);
    let is_port =
        digits.bytes().all(|byte| byte.is_ascii_digit()) && (port.is_empty() || port.starts_with(':'));
    let refused = |byte: u8| byte <= b' ' || b"\\^{}|`%\x7f".contains(&byte);
    (is_port && !host.bytes().any(refused) && !path.bytes().any(|byte| byte.is_ascii_control()))
        .then_some((host, path))
}

/// `URLsMatch`: the same port, the same number of labels in the host, each of which matches, and a path with the same
/// prefix.
fn urls_match(glob: &str, target: &str) -> bool {
    let (Some((glob_host, glob_path)), Some((host, path))) = (split(glob), split(target)) else {
        return false;
    };
    let ((glob_name, glob_port), (name, port)) = (split_port(glob_host), split_port(host));
    glob_port == port
        && glob_name.split('.').count() == name.split('.').count()
        && path.starts_with(glob_path)
        && glob_name
            .split('.')
            .zip(name.split('.'))
            .all(|(glob, part)| fits(glob.as_bytes(), part.as_bytes()))
}

/// `net.SplitHostPort`; a text that it rejects has no port.
fn split_port(host: &str) -> (&str, &str) {
    match host.rsplit_once(':') {
        Some((name, port)) => match name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
            Some(address) => (address, port),
            None if name.contains([':', '[', ']']) => (host, ""),
            None => (name, port),
        },
        None => (host, ""),
    }
}

/// `filepath.Match` for one label: `*`, `?` and `[a-z]`. Time is bounded by the product of both lengths.
fn fits(glob: &[u8], text: &[u8]) -> bool {
    let (mut g, mut t) = (0, 0);
    // Position after the last star, and the text position where it matched nothing.
    let mut star: Option<(usize, usize)> = None;
    loop {
        if glob.get(g) == Some(&b'*') {
            g += 1;
            star = Some((g, t));
        } else if g == glob.len() && t == text.len() {
            return true;
        } else if let Some(length) = text.get(t).and_then(|byte| takes(&glob[g..], *byte)) {
            g += length;
            t += 1;
        } else {
            match star {
                Some((behind, taken)) if taken < text.len() => {
                    (g, t) = (behind, taken + 1);
                    star = Some((behind, t));
                }
                Some(_) | None => return false,
            }
        }
    }
}

/// Number of bytes of the glob's first element when it matches that byte.
fn takes(glob: &[u8], byte: u8) -> Option<usize> {
    match glob.first()? {
        b'?' => Some(1),
        b'[' => {
            let negated = glob.get(1) == Some(&b'^');
            let begin = 1 + usize::from(negated);
            let (mut at, mut within) = (begin, false);
            while at == begin || glob.get(at) != Some(&b']') {
                let low = *glob.get(at)?;
                let high = if glob.get(at + 1) == Some(&b'-') {
                    at += 2;
                    *glob.get(at)?
                } else {
                    low
                };
                within |= (low..=high).contains(&byte);
                at += 1;
            }
            (within != negated).then_some(at + 1)
        }
        same => (*same == byte).then_some(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `registry=user:password`, in the order of adding.
    fn keyring(entries: &[&str]) -> Keyring {
        let mut keyring = Keyring::default();
        for entry in entries {
            let (registry, login) = entry.split_once('=').unwrap();
            let (username, password) = login.split_once(':').unwrap();
            let auths = serde_json::json!({registry: {"username": username, "password": password}});
            let config = serde_json::json!({"auths": auths}).to_string();
            keyring.add(DockerConfig::parse(config.as_bytes()).unwrap(), None);
        }
        keyring
    }

    fn users(keyring: &Keyring, image: &str) -> String {
        keyring.lookup(image).iter().map(|login| login.username.as_str()).collect::<Vec<_>>().join(" ")
    }

    /// The kubelet's own cases (`TestURLsMatch`, `TestDockerKeyringForGlob`, `TestKeyringMiss` …), and registries as found
    /// in real files.
    #[test]
    fn a_registry_matches_as_in_the_kubelet() {
        for (registry, image, fits) in [
            ("*.kubernetes.io", "prefix.kubernetes.io", true),
            ("prefix.*.io", "prefix.kubernetes.io", true),
            ("prefix.kubernetes.*", "prefix.kubernetes.io", true),
            ("*-good.kubernetes.io", "prefix-good.kubernetes.io", true),
            ("*.kubernetes.io/blah", "prefix.kubernetes.io/blah", true),
            ("prefix.*.io/foo", "prefix.kubernetes.io/foo/bar", true),
            ("*.kubernetes.io:1111/blah", "prefix.kubernetes.io:1111/blah", true),
            ("prefix.*.io:1111/foo", "prefix.kubernetes.io:1111/foo/bar", true),
            ("*.kubernetes.io", "kubernetes.io", false),
            ("*.*.kubernetes.io", "prefix.kubernetes.io", false),
            ("*.*.kubernetes.io", "kubernetes.io", false),
            ("*kubernetes.io", "a.kubernetes.io", false),
            ("*kubernetes.io", "kubernetes.io", true),
            ("*.*.*.kubernetes.io", "a.b.c.kubernetes.io", true),
            ("kubernetes.io", "kubernetes.com", false),
            ("k*.io", "quay.io", false),
            ("*.kubernetes.io:1234/blah", "prefix.kubernetes.io:1111/blah", false),
            ("prefix.*.io/foo", "prefix.kubernetes.io:1111/foo/bar", false),
            ("https://hello.kubernetes.io", "hello.kubernetes.io/foo/bar", true),
            ("https://*.docker.io", "prefix.docker.io/foo/bar", true),
            ("https://*.docker.io/path", "prefix.docker.io/path/foo/bar", true),
            ("https://prefix.*.io:8888", "prefix.docker.io:8888/foo/bar", true),
            ("https://*.docker.io/path:1111", "prefix.docker.io/path:1111/foo/bar", true),
            ("https://*.docker.io/v1/", "prefix.docker.io/path:1111/foo/bar", true),
            ("https://*.docker.io/v2/", "prefix.docker.io/path:1111/foo/bar", true),
            ("prefix.docker.io:1111", "prefix.docker.io:1111/path/foo/bar", true),
            ("*.docker.io:1111", "prefix.docker.io:1111/path/foo/bar", true),
            ("https://hello.kubernetes.io", "world.mesos.org/foo/bar", false),
            ("https://*.docker.com", "prefix.docker.io/foo/bar", false),
            ("https://prefix.docker.c*", "prefix.docker.io/foo/bar", false),
            ("https://prefix.*.io/path:1111", "prefix.docker.io/path/subpath:1111/foo/bar", false),
            ("http://127.0.0.1:5000", "127.0.0.1:5000/app", true),
            ("127.0.0.1:5000/", "127.0.0.1:5000/app", true),
            ("127.0.0.1", "127.0.0.1:5000/app", false),
            ("[::1]:5000", "[::1]:5000/app", true),
            ("localhost:5000/team", "localhost:5000/other", false),
            ("gcr.io/v1/team", "gcr.io/team/app", true),
            ("r[0-9].io", "r5.io/app", true),
            ("r[^0-9].io", "r5.io/app", false),
            ("r[0-.io", "r5.io/app", false),
            ("**a*b**.io", "xxaxxb.io/app", true),
            ("*a*b*c.io", "ababab.io/app", false),
            ("user:word@quay.io", "quay.io/app", true),
            ("quay.io:https", "quay.io/app", false),
            ("qu ay.io", "qu ay.io/app", false),
            ("", "quay.io/app", false),
        ] {
            assert_eq!(
                users(&keyring(&[&format!("{registry}=u:p")]), image) == "u",
                fits,
                "{registry} {image}"
            );
        }
    }

    #[test]
    fn the_longest_match_comes_first_and_all_are_tried() {
        let of_bar = keyring(&["bar.example.com=ada:smash", "bar.example.com/pong=grace:squash"]);
        for (image, wanted) in [
            ("bar.example.com", "ada"),
            ("bar.example.com/pong", "grace ada"),
            ("bar.example.com/ping", "ada"),
            ("bar.example.com/pongz", "grace ada"),
            ("bar.example.com/pong/pang", "grace ada"),
            ("example.com", ""),
            ("foo.example.com", ""),
        ] {
            assert_eq!(users(&of_bar, image), wanted, "{image}");
        }
        let rotated = keyring(&["a.io=old:1", "b.io=other:2", "https://a.io/v2/=new:3"]);
        assert_eq!(users(&rotated, "a.io/x"), "old new");
    }

    #[test]
    fn docker_hub_has_several_names() {
        let hub = keyring(&["https://index.docker.io/v1/=hub:p"]);
        for (image, found) in [
            ("docker.io/library/busybox", true),
            ("docker.io/team/app", true),
            ("index.docker.io/team/app", true),
            ("busybox", true),
            ("team/app", true),
            ("", false),
            ("world.mesos.org/foo/bar", false),
            ("registry:5000/foo/bar", false),
            ("myhostdocker.io/foo/bar", false),
        ] {
            assert_eq!(users(&hub, image) == "hub", found, "{image}");
        }
        let both = keyring(&["https://index.docker.io/v1/=hub:p", "docker.io=exact:p"]);
        assert_eq!(users(&both, "docker.io/library/busybox"), "exact");
    }

    #[test]
    fn both_formats_are_parsed_and_errors_show_no_value() {
        let auth =
            |auth: &str| format!(r#"{{"auths": {{"https://me:hunter2@r.io/v1/": {{"auth": {auth:?}}}}}}}"#);
        let login = |config: &str| {
            let config = DockerConfig::parse(config.as_bytes());
            config.map(|config| config.logins[0].1.auth()).map(|auth| (auth.username, auth.password))
        };
        let user = Ok(("user".to_owned(), "pass:word".to_owned()));
        assert_eq!(login(&auth("dXNlcjpwYXNzOndvcmQ=")), user);
        assert_eq!(login(&auth("dXNlcjpwYXNzOndvcmQ")), user);
        assert_eq!(login(&auth(" dXNlcjpw\nYXNzOndvcmQ=\n")), user);
        assert_eq!(login(&auth("dTpwcA==")), Ok(("u".to_owned(), "pp".to_owned())));
        assert_eq!(login(&auth("dTpwcA")), Ok(("u".to_owned(), "pp".to_owned())));
        // `auth` takes precedence when present.
        let all =
            r#"{"auths": {"r.io": {"username": "x", "password": "y", "email": "z", "auth": "dTpwcA=="}}}"#;
        assert_eq!(login(all), Ok(("u".to_owned(), "pp".to_owned())));
        let legacy =
            DockerConfig::parse_legacy(br#"{"r.io": {"username": "u", "password": "p"}, "s.io": null}"#);
        assert_eq!(legacy.unwrap().logins.len(), 2);
        let empty = DockerConfig::parse(br#"{"auths": null, "credsStore": "desktop"}"#).unwrap();
        assert!(empty.logins.is_empty() && empty.names_helpers);

        for (text, wanted) in [
            ("hunter2", "must be a JSON object"),
            (r#""hunter2""#, "must be a JSON object"),
            (r#"{"auths": "hunter2"}"#, "auths: must be an object"),
            (r#"{"auths": {"r.io": "hunter2"}}"#, "auths[\"r.io\"]: must be an object"),
            (
                r#"{"auths": {"r.io": {"password": ["hunter2"]}}}"#,
                "auths[\"r.io\"].password: must be a string",
            ),
            (&auth("hunter2!"), "auths[\"r.io\"].auth: must be the base64 of user:password"),
            (&auth("aHVudGVyMg=="), "auths[\"r.io\"].auth: must be the base64 of user:password"),
            (&auth("/////w=="), "auths[\"r.io\"].auth: must be the base64 of user:password"),
        ] {
            assert_eq!(DockerConfig::parse(text.as_bytes()).unwrap_err(), wanted, "{text}");
        }
    }

    #[test]
    fn debug_output_shows_no_credentials() {
        let keyring = keyring(&["r.io=someone:hunter2"]);
        let shown =
            format!("{keyring:?} {:?} {:?}", keyring.lookup("r.io/x"), keyring.lookup("r.io/x")[0].auth());
        assert!(!shown.contains("hunter2") && !shown.contains("someone"), "{shown}");
    }
}
