//! Credentials, and what a token service is asked and answers. PURE.

use std::fmt;
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use hyper::header::HeaderValue;
use serde::Deserialize;

use super::endpoint::{Endpoint, encoded};
use crate::image::keyring::Login;
use crate::limits::REGISTRY_TOKEN_BYTES_MAX;
use crate::proto::runtime::v1::AuthConfig;

/// How long a token is valid whose service does not say (the distribution specification).
const VALID_BY_DEFAULT: Duration = Duration::from_mins(1);
/// Part of its time after which a token is renewed, in percent: a request that has begun with it may take a while.
const RENEWED_AFTER_PERCENT: u32 = 90;

/// Credentials for a registry. The `Debug` output hides them.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    username: String,
    password: String,
    /// A refresh token for the token service.
    identity_token: String,
    /// A token for the registry itself.
    registry_token: String,
    /// The one server that they are for; empty: whoever serves the image.
    server: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials")
    }
}

impl Credentials {
    /// From the fields of a configuration file; `auth` is base64 of `username:password`.
    ///
    /// # Errors
    /// A sentence without any value: `auth` is not of that form.
    pub fn new(username: &str, password: &str, auth: &str, identity_token: &str) -> Result<Self, String> {
        let mut found = Self {
            username: username.to_owned(),
            password: password.to_owned(),
            identity_token: identity_token.to_owned(),
            registry_token: String::new(),
            server: String::new(),
        };
        if username.is_empty() && !auth.is_empty() {
            let wrong = || "auth is no base64 of USERNAME:PASSWORD; encode it again".to_owned();
            let decoded = BASE64_STANDARD.decode(auth.trim()).map_err(|_| wrong())?;
            let text = String::from_utf8(decoded).map_err(|_| wrong())?;
            let (username, password) = text.split_once(':').ok_or_else(wrong)?;
            // Docker pads the password with NUL bytes.
            (found.username, found.password) =
                (username.to_owned(), password.trim_end_matches('\0').to_owned());
        }
        Ok(found)
    }

    /// The CRI's, for the server that they name, if they name one; `None` when they are empty.
    ///
    /// # Errors
    /// As [`Credentials::new`].
    pub fn of_auth_config(config: &AuthConfig) -> Result<Option<Self>, String> {
        let AuthConfig { username, password, auth, identity_token, registry_token, .. } = config;
        let found = Self::new(username, password, auth, identity_token)?;
        let found = Self { registry_token: registry_token.clone(), ..found };
        let server = registry_of(&config.server_address).to_owned();
        Ok(if found == Self::default() { None } else { Some(Self { server, ..found }) })
    }

    /// True when they may be sent to that host (`ParseAuth`, which containerd calls for each host).
    pub(super) fn is_for(&self, endpoint: &Endpoint) -> bool {
        // The port of the scheme may be written or not.
        let names = [endpoint.host(), endpoint.address.to_string()];
        self.server.is_empty() || names.iter().any(|name| registry_of(name) == self.server)
    }

    /// The same for the CRI, and for that server alone.
    pub(super) fn login(&self, server: &str) -> Login {
        Login::of_server(&self.username, &self.password, &self.identity_token, server)
    }

    /// `Basic …`, when there is a user name.
    pub(super) fn basic(&self) -> Option<HeaderValue> {
        let pair = format!("{}:{}", self.username, self.password);
        let value = format!("Basic {}", BASE64_STANDARD.encode(pair));
        if self.username.is_empty() { None } else { secret(&value) }
    }

    /// `Bearer …`, when there is a token for the registry itself.
    pub(super) fn bearer(&self) -> Option<HeaderValue> {
        if self.registry_token.is_empty() { None } else { bearer(&self.registry_token) }
    }

    /// The form of a request with the refresh token, when there is one.
    pub(super) fn refresh_form(&self, service: &str, scope: &str) -> Option<String> {
        if self.identity_token.is_empty() {
            return None;
        }
        let token = encoded(&self.identity_token);
        let (service, scope) = (encoded(service), encoded(scope));
        Some(format!(
            "grant_type=refresh_token&client_id=smolet&service={service}&scope={scope}&refresh_token={token}"
        ))
    }
}

/// Host and port of a server's address, as Docker's configuration writes it.
fn registry_of(address: &str) -> &str {
    let address = address.split_once("://").map_or(address, |(_, rest)| rest);
    match address.split('/').next().unwrap_or_default() {
        "index.docker.io" | "registry-1.docker.io" => "docker.io",
        host => host,
    }
}

fn secret(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::try_from(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

fn bearer(token: &str) -> Option<HeaderValue> {
    if token.len() > REGISTRY_TOKEN_BYTES_MAX { None } else { secret(&format!("Bearer {token}")) }
}

/// The query of a request for a token.
pub(super) fn query(realm_path: &str, service: &str, scope: &str) -> String {
    let mut path = realm_path.to_owned();
    for (name, value) in [("service", service), ("scope", scope)] {
        if !value.is_empty() {
            path.push(if path.contains('?') { '&' } else { '?' });
            path.push_str(name);
            path.push('=');
            path.push_str(&encoded(value));
        }
    }
    path
}

/// A token.
pub(super) struct Token {
    pub(super) header: HeaderValue,
    /// How long it is used.
    pub(super) used_for: Duration,
}

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    token: String,
    #[serde(default)]
    access_token: String,
    #[serde(default)]
    expires_in: u64,
}

/// Parses a token service's response.
///
/// # Errors
/// A sentence without any part of it.
pub(super) fn parse(bytes: &[u8]) -> Result<Token, String> {
    let answer: Answer = serde_json::from_slice(bytes)
        .map_err(|_| "the token service's response is no JSON with a token".to_owned())?;
    let token = if answer.token.is_empty() { &answer.access_token } else { &answer.token };
    if token.is_empty() {
        return Err("the token service's response has no token".to_owned());
    }
    let header =
        bearer(token).ok_or("the token service's token is too long, or holds what no header may hold")?;
    let valid = if answer.expires_in == 0 {
        VALID_BY_DEFAULT
    } else {
        Duration::from_secs(answer.expires_in.min(86_400))
    };
    Ok(Token { header, used_for: valid * RENEWED_AFTER_PERCENT / 100 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_of_the_cri() {
        let config = |server: &str| AuthConfig {
            auth: "bWU6aHVudGVyMg==".into(),
            server_address: server.into(),
            ..AuthConfig::default()
        };
        for (server, url, given) in [
            ("", "https://r.io", true),
            ("", "http://mirror.io", true),
            ("r.io", "https://r.io", true),
            ("https://r.io/v1/", "https://r.io/v2", true),
            ("r.io:443", "https://r.io", true),
            ("r.io:5000", "https://r.io", false),
            ("r.io", "https://r.io:5000", false),
            ("r.io", "http://mirror.io", false),
            ("http://mirror.io", "http://mirror.io/proxy", true),
            ("https://index.docker.io/v1/", "https://registry-1.docker.io", true),
            ("docker.io", "https://registry-1.docker.io", true),
            ("docker.io", "https://mirror.io", false),
        ] {
            let found = Credentials::of_auth_config(&config(server)).unwrap().unwrap();
            assert_eq!(found.basic().unwrap(), "Basic bWU6aHVudGVyMg==");
            assert_eq!(found.is_for(&Endpoint::parse(url, false).unwrap()), given, "{server} {url}");
        }
        let empty = AuthConfig { server_address: "r.io".into(), ..AuthConfig::default() };
        assert_eq!(Credentials::of_auth_config(&empty), Ok(None));
        for wrong in ["%", "bWU="] {
            let config = AuthConfig { auth: wrong.into(), ..AuthConfig::default() };
            assert!(Credentials::of_auth_config(&config).unwrap_err().contains("base64 of USERNAME"));
        }
        let token = AuthConfig { registry_token: "abc".into(), ..AuthConfig::default() };
        let found = Credentials::of_auth_config(&token).unwrap().unwrap();
        assert_eq!(found.bearer().unwrap(), "Bearer abc");
        assert_eq!(format!("{found:?}"), "Credentials");
    }

    #[test]
    fn tokens() {
        for (text, used_for) in [
            (r#"{"token": "a"}"#, 54),
            (r#"{"access_token": "a", "expires_in": 300}"#, 270),
            (r#"{"token": "a", "access_token": "b", "expires_in": 99999999}"#, 77_760),
        ] {
            let found = parse(text.as_bytes()).ok().map(|token| (token.header, token.used_for.as_secs()));
            assert_eq!(found, Some((HeaderValue::from_static("Bearer a"), used_for)), "{text}");
        }
        let long = format!(r#"{{"token": "{}"}}"#, "a".repeat(REGISTRY_TOKEN_BYTES_MAX + 1));
        for (text, error) in [
            ("no", "is no JSON"),
            ("{}", "has no token"),
            (r#"{"token": "sec\nret"}"#, "holds what no header"),
            (&long, "is too long"),
        ] {
            let found = parse(text.as_bytes()).err().unwrap();
            assert!(found.contains(error) && !found.contains("sec"), "{found}");
        }
    }

    #[test]
    fn queries_and_forms_are_encoded() {
        assert_eq!(
            query("/t", "r.io", "repository:a/b:pull"),
            "/t?service=r.io&scope=repository%3Aa%2Fb%3Apull"
        );
        assert_eq!(query("/t?a=b", "", "x y"), "/t?a=b&scope=x%20y");
        let found = Credentials::new("", "", "", "to ken").unwrap().refresh_form("s", "x").unwrap();
        assert!(found.ends_with("&refresh_token=to%20ken"), "{found}");
        assert_eq!(Credentials::new("a", "b", "", "").unwrap().refresh_form("s", "x"), None);
    }
}
