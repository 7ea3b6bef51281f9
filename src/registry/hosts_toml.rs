//! containerd's `certs.d/HOST/hosts.toml`. PURE.

use std::path::{Path, PathBuf};

use hyper::header::{HeaderName, HeaderValue};

use super::endpoint::{Capabilities, Endpoint, TlsOptions};
use crate::decode::{Node, toml};
use crate::limits::{REGISTRY_ENDPOINTS_MAX, REGISTRY_HEADERS_MAX};

/// Parses the file, which is in `directory`, for the registry `host`: the mirrors in order, then the server. With `only_mirrors` a
/// registry that has some is not asked itself, unless it is one of them or the server.
///
/// # Errors
/// A sentence: the table and the key that are wrong.
pub(super) fn parse(
    text: &str,
    directory: &Path,
    host: &str,
    only_mirrors: bool,
) -> Result<Vec<Endpoint>, String> {
    let top = toml::document(text)?;
    let hosts = table(&top, "host")?;
    if hosts.len() >= REGISTRY_ENDPOINTS_MAX {
        return Err(format!(
            "has {} hosts, at most {} are supported",
            hosts.len(),
            REGISTRY_ENDPOINTS_MAX - 1
        ));
    }
    let mut endpoints = Vec::new();
    for (url, host) in hosts {
        let at = |why: String| format!("[host.{}]: {why}", crate::text::quoted(url));
        if !matches!(host, Node::Map(_)) {
            return Err(at("must be a table".to_owned()));
        }
        let parsed = Endpoint::parse(url, flag(host, "override_path").map_err(at)?).map_err(at)?;
        endpoints.push(with(parsed, host, directory).map_err(at)?);
    }
    let server = match text_of(&top, "server")? {
        Some(url) => {
            Endpoint::parse(url, flag(&top, "override_path")?).map_err(|why| format!("server: {why}"))?
        }
        None if only_mirrors && !endpoints.is_empty() => return Ok(endpoints),
        None => Endpoint::origin(host)?,
    };
    endpoints.push(with(server, &top, directory)?);
    Ok(endpoints)
}

fn table<'t>(of: &'t Node, key: &str) -> Result<&'t [(Box<str>, Node)], String> {
    match of.field(key) {
        None => Ok(&[]),
        Some(Node::Map(entries)) => Ok(entries),
        Some(_) => Err(format!("{key}: must be a table")),
    }
}

fn text_of<'t>(of: &'t Node, key: &str) -> Result<Option<&'t str>, String> {
    let given = of.field(key);
    given.map(|given| given.text().ok_or_else(|| format!("{key}: must be a string"))).transpose()
}

fn flag(of: &Node, key: &str) -> Result<bool, String> {
    match of.field(key) {
        None => Ok(false),
        Some(Node::Bool(given)) => Ok(*given),
        Some(_) => Err(format!("{key}: must be true or false")),
    }
}

/// One string, or a list of them.
fn texts<'t>(given: &'t Node, key: &str) -> Result<Vec<&'t str>, String> {
    let items = if let Node::List(items) = given { items } else { std::slice::from_ref(given) };
    let texts = items.iter().map(Node::text).collect::<Option<_>>();
    texts.ok_or_else(|| format!("{key}: must be a string or a list of strings"))
}

/// With the settings of a table: the top of the file, or one below `host`. Keys of later versions of containerd are passed over, as
/// there.
fn with(mut endpoint: Endpoint, of: &Node, directory: &Path) -> Result<Endpoint, String> {
    if let Some(capabilities) = of.field("capabilities") {
        endpoint.capabilities = Capabilities { pull: false, resolve: false };
        if !matches!(capabilities, Node::List(_)) {
            return Err("capabilities: must be a list of strings".to_owned());
        }
        for capability in texts(capabilities, "capabilities")? {
            match capability {
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
    let authorities = of.field("ca").map_or(Ok(Vec::new()), |given| texts(given, "ca"))?;
    endpoint.tls_options = TlsOptions {
        authorities: authorities.into_iter().map(|file| directory.join(file)).collect(),
        client: of.field("client").map_or(Ok(Vec::new()), |given| client(given, directory))?,
        skip_verify: flag(of, "skip_verify")?,
    };
    for (name, values) in table(of, "header")? {
        let wrong = || format!("header: {} is no header", crate::text::quoted(name));
        let of_header = HeaderName::try_from(&**name).map_err(|_| wrong())?;
        for value in texts(values, &format!("header: {}", crate::text::quoted(name)))? {
            // Its value is not shown: it may be a login.
            let mut value = HeaderValue::try_from(value).map_err(|_| format!("{}: its value", wrong()))?;
            value.set_sensitive(true);
            if endpoint.headers.len() == REGISTRY_HEADERS_MAX {
                return Err(format!("header: more than {REGISTRY_HEADERS_MAX}"));
            }
            endpoint.headers.append(of_header.clone(), value);
        }
    }
    Ok(endpoint)
}

/// Client certificates: a file with certificate and key, a list of such, or a list of pairs.
fn client(given: &Node, directory: &Path) -> Result<Vec<(PathBuf, PathBuf)>, String> {
    let both = |file: &str| (directory.join(file), directory.join(file));
    let Node::List(items) = given else {
        return Ok(texts(given, "client")?.into_iter().map(both).collect());
    };
    let pair = |item: &Node| match texts(item, "client").as_deref() {
        Ok([file] | [file, ""]) => Ok(both(file)),
        Ok([file, key]) => Ok((directory.join(file), directory.join(key))),
        _ => Err("client: each entry is a certificate's file and its key's".to_owned()),
    };
    items.iter().map(pair).collect()
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
        let endpoints = parse(text, Path::new("/c/r.io"), "r.io", false)?;
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
              header = {}
            [host."n.io"]
              client = [["one.pem"], ["two.pem"]]
              dial_timeout = "3s"
        "#;
        assert_eq!(
            shown(text).unwrap(),
            [
                "https://z.io:443/v2 pull resolve ca=/c/r.io/a.crt ca=/etc/b.crt \
                 client=/c/r.io/c.cert+/c/r.io/c.key client=/c/r.io/d.pem+/c/r.io/d.pem x-one=1 x-two=2 x-two=3",
                "http://a.io:81/proxy/v2 pull skip_verify",
                "https://m.io:443/v2 pull resolve client=/c/r.io/all.pem+/c/r.io/all.pem",
                "https://n.io:443/v2 pull resolve client=/c/r.io/one.pem+/c/r.io/one.pem \
                 client=/c/r.io/two.pem+/c/r.io/two.pem",
                "https://upstream.io:443/v2 pull resolve ca=/c/r.io/up.crt",
            ]
        );
        assert_eq!(shown("").unwrap(), ["https://r.io:443/v2 pull resolve"]);
    }

    #[test]
    fn mirrors_alone_are_asked_unless_the_file_names_a_server() {
        for (text, wanted) in [
            ("", &["r.io"][..]),
            ("ca = \"a.crt\"", &["r.io"]),
            ("[host.\"https://m.io\"]\n", &["m.io"]),
            ("server = \"https://r.io\"\n[host.\"https://m.io\"]\n", &["m.io", "r.io"]),
        ] {
            let found = parse(text, Path::new("/c"), "r.io", true).unwrap();
            assert_eq!(found.iter().map(Endpoint::host).collect::<Vec<_>>(), wanted, "{text}");
        }
    }

    #[test]
    fn errors_name_table_and_key() {
        for (text, error) in [
            ("server = 1", "server: must be a string"),
            ("host = 1", "host: must be a table"),
            ("[host]\n\"x.io\" = 1", "[host.\"x.io\"]: must be a table"),
            ("[host.\"x.io\"]\nskip_verify = 1", "[host.\"x.io\"]: skip_verify: must be true or false"),
            ("[host.\"x.io\"]\nca = [1]", "[host.\"x.io\"]: ca: must be a string or a list of strings"),
            ("client = [[[\"a\"]]]", "client: each entry is a certificate's file and its key's"),
            ("client = 1", "client: must be a string or a list of strings"),
            ("header = {x = 1}", "header: \"x\": must be a string or a list of strings"),
            ("capabilities = \"pull\"", "capabilities: must be a list of strings"),
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
