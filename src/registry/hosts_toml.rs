//! containerd's `certs.d/HOST/hosts.toml`. PURE.

use std::fmt;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use hyper::header::{HeaderName, HeaderValue};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};

use super::endpoint::{Capabilities, Endpoint, TlsOptions};
use crate::limits::{REGISTRY_ENDPOINTS_MAX, REGISTRY_HEADERS_MAX};

/// A table of the file: its top, or one below `host`. Keys of later versions of containerd are passed over, as there.
#[derive(serde::Deserialize, Default)]
struct Table {
    server: Option<String>,
    #[serde(default)]
    host: Ordered<Table>,
    capabilities: Option<Vec<String>>,
    ca: Option<Texts>,
    client: Option<Clients>,
    #[serde(default)]
    skip_verify: bool,
    #[serde(default)]
    override_path: bool,
    #[serde(default)]
    header: Ordered<Texts>,
}

#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Texts {
    One(String),
    Many(Vec<String>),
}

#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Clients {
    One(String),
    Files(Vec<String>),
    Pairs(Vec<Vec<String>>),
}

/// A table in the order of the file.
struct Ordered<T>(Vec<(String, T)>);

impl<T> Default for Ordered<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Ordered<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Entries<T> {
            type Value = Ordered<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Ordered<T>, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Ordered(entries))
            }
        }
        deserializer.deserialize_map(Entries(PhantomData))
    }
}

/// Parses the file, which is in `directory`, for the registry `host`: the mirrors in order, then the server.
///
/// # Errors
/// A sentence: the table and the key that are wrong.
pub(super) fn parse(text: &str, directory: &Path, host: &str) -> Result<Vec<Endpoint>, String> {
    let top: Table = basic_toml::from_str(text).map_err(|error| error.to_string())?;
    if top.host.0.len() >= REGISTRY_ENDPOINTS_MAX {
        return Err(format!(
            "has {} hosts, at most {} are supported",
            top.host.0.len(),
            REGISTRY_ENDPOINTS_MAX - 1
        ));
    }
    let mut endpoints = Vec::new();
    for (url, table) in &top.host.0 {
        let at = |why: String| format!("[host.{}]: {why}", crate::text::quoted(url));
        let parsed = Endpoint::parse(url, table.override_path).map_err(at)?;
        endpoints.push(with(parsed, table, directory).map_err(at)?);
    }
    let server = match &top.server {
        Some(url) => Endpoint::parse(url, top.override_path).map_err(|why| format!("server: {why}"))?,
        None => Endpoint::origin(host)?,
    };
    endpoints.push(with(server, &top, directory)?);
    Ok(endpoints)
}

fn with(mut endpoint: Endpoint, table: &Table, directory: &Path) -> Result<Endpoint, String> {
    if let Some(capabilities) = &table.capabilities {
        endpoint.capabilities = Capabilities { pull: false, resolve: false };
        for capability in capabilities {
            match capability.as_str() {
                "pull" => endpoint.capabilities.pull = true,
                "resolve" => endpoint.capabilities.resolve = true,
                "push" => {}
                other => {
                    let other = crate::text::quoted(other);
                    return Err(format!(
                        "capabilities: {other} is none of \"pull\", \"resolve\" and \"push\""
                    ));
                }
            }
        }
    }
    endpoint.tls_options = TlsOptions {
        authorities: table.ca.iter().flat_map(texts).map(|file| directory.join(file)).collect(),
        client: table.client.as_ref().map_or(Ok(Vec::new()), |clients| client(clients, directory))?,
        skip_verify: table.skip_verify,
    };
    for (name, values) in &table.header.0 {
        let wrong = || format!("header: {} is no header", crate::text::quoted(name));
        let name = HeaderName::try_from(name.as_str()).map_err(|_| wrong())?;
        for value in texts(values) {
            // Its value is not shown: it may be a login.
            let mut value = HeaderValue::try_from(value).map_err(|_| format!("{}: its value", wrong()))?;
            value.set_sensitive(true);
            if endpoint.headers.len() == REGISTRY_HEADERS_MAX {
                return Err(format!("header: more than {REGISTRY_HEADERS_MAX}"));
            }
            endpoint.headers.append(name.clone(), value);
        }
    }
    Ok(endpoint)
}

fn texts(texts: &Texts) -> impl Iterator<Item = &str> {
    let texts = match texts {
        Texts::One(one) => std::slice::from_ref(one),
        Texts::Many(many) => many,
    };
    texts.iter().map(String::as_str)
}

fn client(clients: &Clients, directory: &Path) -> Result<Vec<(PathBuf, PathBuf)>, String> {
    let both = |file: &String| (directory.join(file), directory.join(file));
    match clients {
        Clients::One(file) => Ok(vec![both(file)]),
        Clients::Files(files) => Ok(files.iter().map(both).collect()),
        Clients::Pairs(pairs) => pairs
            .iter()
            .map(|pair| match &pair[..] {
                [file] => Ok(both(file)),
                [file, key] if key.is_empty() => Ok(both(file)),
                [file, key] => Ok((directory.join(file), directory.join(key))),
                _ => Err("client: each entry is a certificate's file and its key's".to_owned()),
            })
            .collect(),
    }
}

/// The endpoints of a directory without `hosts.toml` (docker's `certs.d`): `*.crt` are authorities, `*.cert` with `*.key` client
/// certificates.
pub(super) fn of_certificates(
    names: &[String],
    directory: &Path,
    host: &str,
) -> Result<Vec<Endpoint>, String> {
    let mut origin = Endpoint::origin(host)?;
    let mut options = TlsOptions::default();
    for name in names {
        let path = Path::new(name);
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("crt") => options.authorities.push(directory.join(name)),
            Some("cert") => {
                let key = path.with_extension("key");
                if !names.iter().any(|name| Path::new(name) == key) {
                    return Err(format!("{name} has no {} beside it", key.display()));
                }
                options.client.push((directory.join(name), directory.join(key)));
            }
            Some(_) | None => {}
        }
    }
    if !options.is_empty() && !host.ends_with(":80") {
        origin.tls = true;
        if !host.contains(':') {
            origin.address.port = 443;
        }
    }
    origin.tls_options = options;
    Ok(vec![origin])
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    fn shown(text: &str) -> Result<Vec<String>, String> {
        let endpoints = parse(text, Path::new("/c/r.io"), "r.io")?;
        let shown = endpoints.iter().map(|endpoint| {
            let Capabilities { pull, resolve } = endpoint.capabilities;
            let TlsOptions { authorities, client, skip_verify } = &endpoint.tls_options;
            let mut shown = endpoint.url("").to_string();
            for (is, word) in [(pull, " pull"), (resolve, " resolve"), (*skip_verify, " skip_verify")] {
                if is {
                    shown.push_str(word);
                }
            }
            for authority in authorities {
                let _ = write!(shown, " ca={}", authority.display());
            }
            for (certificate, key) in client {
                let _ = write!(shown, " client={}+{}", certificate.display(), key.display());
            }
            for (name, value) in &endpoint.headers {
                let _ = write!(shown, " {name}={}", value.to_str().unwrap());
            }
            shown
        });
        Ok(shown.collect())
    }

    #[test]
    fn hosts_come_in_the_order_of_the_file_and_the_server_last() {
        let text = r#"
            server = "https://upstream.io"
            ca = "up.crt"

            [host."https://z.io"]
              capabilities = ["pull", "resolve", "push"]
              ca = ["a.crt", "/etc/b.crt"]
              client = [["c.cert", "c.key"], ["d.pem", ""]]
            [host."https://z.io".header]
              x-one = "1"
              x-two = ["2", "3"]
            [host."http://a.io:81/proxy/v2"]
              capabilities = ["pull"]
              override_path = true
              skip_verify = true
            [host."m.io"]
              client = "all.pem"
              dial_timeout = "3s"
        "#;
        assert_eq!(
            shown(text).unwrap(),
            [
                "https://z.io:443/v2 pull resolve ca=/c/r.io/a.crt ca=/etc/b.crt \
                 client=/c/r.io/c.cert+/c/r.io/c.key client=/c/r.io/d.pem+/c/r.io/d.pem x-one=1 x-two=2 x-two=3",
                "http://a.io:81/proxy/v2 pull skip_verify",
                "https://m.io:443/v2 pull resolve client=/c/r.io/all.pem+/c/r.io/all.pem",
                "https://upstream.io:443/v2 pull resolve ca=/c/r.io/up.crt",
            ]
        );
        assert_eq!(shown("").unwrap(), ["https://r.io:443/v2 pull resolve"]);
    }

    #[test]
    fn errors_name_table_and_key() {
        for (text, error) in [
            ("server = 1", "invalid type"),
            ("[host", "expected"),
            ("server = \"ftp://x\"", "server: \"ftp://x\" is no URL"),
            ("[host.\"https://a b\"]\ncapabilities = [\"fly\"]", "capabilities: \"fly\" is none of"),
            ("[host.\"x.io\".header]\n\"a b\" = \"secret\"", "[host.\"x.io\"]: header: \"a b\" is no header"),
            ("[host.\"x.io\".header]\na = \"sec\\nret\"", "is no header: its value"),
            ("client = [[\"a\", \"b\", \"c\"]]", "client: each entry"),
        ] {
            let found = shown(text).unwrap_err();
            assert!(found.contains(error) && !found.contains("sec\nret"), "{text}: {found}");
        }
        let many: Vec<_> = (0..REGISTRY_ENDPOINTS_MAX).map(|n| format!("[host.\"h{n}.io\"]\n")).collect();
        assert!(shown(&many.concat()).unwrap_err().contains("at most 15"));
    }

    #[test]
    fn a_directory_of_certificates() {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let dir = Path::new("/c");
        let found = of_certificates(&names(&["ca.crt", "me.cert", "me.key"]), dir, "localhost:5000").unwrap();
        assert!(found[0].tls);
        assert_eq!(found[0].tls_options.authorities, [Path::new("/c/ca.crt")]);
        assert_eq!(found[0].tls_options.client, [("/c/me.cert".into(), "/c/me.key".into())]);
        assert!(of_certificates(&names(&["me.cert"]), dir, "r.io").unwrap_err().contains("me.key beside it"));
    }
}
