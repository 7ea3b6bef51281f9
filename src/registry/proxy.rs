//! Proxies of the environment, chosen as Go's `net/http` does (`ProxyFromEnvironment`). PURE.

use std::fmt;
use std::net::IpAddr;

use base64::prelude::{BASE64_STANDARD, Engine as _};

use crate::model::Network;
use crate::net::Address;

/// A proxy. Its `Debug` output hides the credentials.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Proxy {
    /// Its address.
    pub(super) address: Address,
    /// The value of `Proxy-Authorization`.
    pub(super) authorization: Option<String>,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Proxy({})", self.address)
    }
}

/// The proxies that the environment names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proxies {
    http: String,
    https: String,
    none_for: String,
}

impl Proxies {
    /// From the variables; `variable` returns the value of one. Upper case comes first, as in Go.
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Self {
        let of = |upper: &str| {
            let found = variable(upper).filter(|value| !value.is_empty());
            found.or_else(|| variable(&upper.to_ascii_lowercase())).unwrap_or_default()
        };
        // In a CGI program the variable is a header of the client's; a node agent is none.
        Self { http: of("HTTP_PROXY"), https: of("HTTPS_PROXY"), none_for: of("NO_PROXY") }
    }

    /// The proxy for this server.
    ///
    /// # Errors
    /// The variable holds no proxy that is supported; names the variable without its value.
    pub(super) fn of(&self, tls: bool, to: &Address) -> Result<Option<Proxy>, String> {
        let (name, value) = if tls { ("HTTPS_PROXY", &self.https) } else { ("HTTP_PROXY", &self.http) };
        if value.is_empty() || !self.applies(to) {
            return Ok(None);
        }
        parse(value).map(Some).ok_or_else(|| {
            format!("the environment's {name} is no proxy as http://HOST:PORT; correct it, or name {} in NO_PROXY", to.host)
        })
    }

    /// `useProxy`.
    fn applies(&self, to: &Address) -> bool {
        let host = to.host.trim_end_matches('.').to_ascii_lowercase();
        let ip = host.parse::<IpAddr>().ok();
        if host == "localhost" || ip.is_some_and(|ip| ip.is_loopback()) {
            return false;
        }
        let patterns = self.none_for.split(',').map(|pattern| pattern.trim().to_ascii_lowercase());
        !patterns.filter(|pattern| !pattern.is_empty()).any(|pattern| matches(&pattern, &host, ip, to.port))
    }
}

/// One pattern of `NO_PROXY`.
fn matches(pattern: &str, host: &str, ip: Option<IpAddr>, port: u16) -> bool {
    if pattern == "*" {
        return true;
    }
    if let Some((network, bits)) = pattern.split_once('/') {
        let (Ok(address), Ok(prefix)) = (network.parse(), bits.parse()) else { return false };
        let network = Network::new(address, prefix);
        return ip.is_some_and(|ip| network.is_some_and(|network| network.contains(ip)));
    }
    let (name, of_port) = match pattern.rsplit_once(':') {
        Some((name, port)) if !name.contains(':') || name.ends_with(']') => (name, Some(port)),
        _ => (pattern, None),
    };
    if of_port.is_some_and(|of_port| of_port.parse() != Ok(port)) {
        return false;
    }
    let name = name.trim_start_matches('[').trim_end_matches(']');
    if let Ok(named) = name.parse::<IpAddr>() {
        return ip == Some(named);
    }
    let name = name.strip_prefix('*').unwrap_or(name);
    match name.strip_prefix('.') {
        Some(_) => host.ends_with(name),
        None => host == name || host.strip_suffix(name).is_some_and(|before| before.ends_with('.')),
    }
}

/// `[http://][USER[:PASSWORD]@]HOST[:PORT][/]`.
fn parse(text: &str) -> Option<Proxy> {
    let rest = match text.split_once("://") {
        Some(("http", rest)) => rest,
        Some(_) => return None,
        None => text,
    };
    let rest = rest.split('/').next().unwrap_or_default();
    let (user, host) = match rest.rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, rest),
    };
    let (host, port) = match host.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']')?;
            (host, port.strip_prefix(':').unwrap_or(port))
        }
        None => host.split_once(':').unwrap_or((host, "")),
    };
    let port = if port.is_empty() { 80 } else { port.parse().ok().filter(|port| *port > 0)? };
    let authorization = match user {
        Some(user) => Some(format!("Basic {}", BASE64_STANDARD.encode(decoded(user)?))),
        None => None,
    };
    (!host.is_empty()).then(|| Proxy { address: Address { host: host.to_owned(), port }, authorization })
}

/// Without percent codes.
fn decoded(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        if *first != b'%' {
            bytes.push(*first);
            rest = after;
            continue;
        }
        let code = std::str::from_utf8(after.get(..2)?).ok()?;
        bytes.push(u8::from_str_radix(code, 16).ok()?);
        rest = &after[2..];
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxies_as_in_go() {
        let proxies = |none: &str| Proxies {
            http: "http://p:1".to_owned(),
            https: "me:a%40b@[::1]".to_owned(),
            none_for: none.to_owned(),
        };
        // NO_PROXY, host, port, whether the proxy is used.
        for (none, host, port, used) in [
            ("", "r.io", 443, true),
            ("", "localhost", 80, false),
            ("", "127.0.0.2", 80, false),
            ("", "::1", 80, false),
            ("*", "r.io", 443, false),
            ("r.io", "r.io", 443, false),
            ("r.io", "a.r.io", 443, false),
            ("r.io", "ar.io", 443, true),
            (".r.io", "a.r.io", 443, false),
            (".r.io", "r.io", 443, true),
            ("*.r.io", "a.r.io", 443, false),
            ("R.IO", "r.io.", 443, false),
            ("r.io:444", "r.io", 443, true),
            ("x, r.io:443", "r.io", 443, false),
            ("10.0.0.0/8", "10.1.2.3", 443, false),
            ("10.0.0.0/8", "11.1.2.3", 443, true),
            ("0.0.0.0/0", "11.1.2.3", 443, false),
            ("fd00::/8", "fd00::1", 443, false),
            ("10.1.2.3", "10.1.2.3", 443, false),
            ("[fd00::1]:443", "fd00::1", 443, false),
            ("bad/x", "r.io", 443, true),
        ] {
            let to = Address { host: host.to_owned(), port };
            let found = proxies(none).of(false, &to).unwrap();
            assert_eq!(found.is_some(), used, "NO_PROXY={none} {to}");
        }
        let to = Address { host: "r.io".to_owned(), port: 443 };
        let found = proxies("").of(true, &to).unwrap().unwrap();
        assert_eq!((found.address.host.as_str(), found.address.port), ("::1", 80));
        assert_eq!(found.authorization.as_deref(), Some("Basic bWU6YUBi"));
        assert_eq!(format!("{found:?}"), "Proxy([::1]:80)");
        for wrong in ["socks5://p:1", "http://", "http://p:0", "http://p:x", "http://%zz@p:1"] {
            let proxies = Proxies { https: wrong.to_owned(), ..Proxies::default() };
            let error = proxies.of(true, &to).unwrap_err();
            assert!(error.contains("HTTPS_PROXY is no proxy") && !error.contains("%zz"), "{wrong}: {error}");
        }
    }

    #[test]
    fn variables_in_upper_case_come_first() {
        let found = Proxies::from_variables(|name| match name {
            "HTTP_PROXY" => Some("a".to_owned()),
            "http_proxy" => Some("b".to_owned()),
            "https_proxy" => Some("c".to_owned()),
            "NO_PROXY" => Some(String::new()),
            _ => None,
        });
        assert_eq!(found, Proxies { http: "a".into(), https: "c".into(), none_for: String::new() });
    }
}
