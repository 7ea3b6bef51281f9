//! k3s' `registries.yaml`: mirrors with rewrites, and credentials and certificates of hosts. PURE.

use std::path::PathBuf;

use regex_lite::Regex;

use super::Credentials;
use super::endpoint::{Endpoint, Rewrite, TlsOptions};
use crate::decode::{Node, yaml};
use crate::limits::{
    REGISTRY_ENDPOINTS_MAX, REGISTRY_MIRRORS_MAX, REGISTRY_PATTERN_BYTES_MAX, REGISTRY_REWRITES_MAX,
};
use crate::text::quoted;

/// Mirrors of every registry that has none of its own.
pub(super) const ANY: &str = "*";

/// The endpoints of the registry `host` by this file: its mirrors, then the registry itself.
///
/// # Errors
/// A sentence: the field that is wrong, without values that may be secret.
pub(super) fn parse(bytes: &[u8], host: &str) -> Result<Vec<Endpoint>, String> {
    endpoints(&document(bytes)?, host, false)
}

/// The one document of the file.
pub(super) fn document(bytes: &[u8]) -> Result<Node, String> {
    let mut document = None;
    let mut wrong = None;
    yaml::documents(bytes, |number, node| match node {
        Ok(node) if number == 1 => document = Some(node),
        Ok(_) => wrong = Some("has more than one document".to_owned()),
        Err(error) => wrong = Some(format!("line {}: {}", error.line, error.message)),
    })
    .map_err(|error| format!("line {}: {}", error.line, error.message))?;
    if let Some(wrong) = wrong {
        return Err(wrong);
    }
    Ok(document.unwrap_or(Node::Null))
}

/// The registries that the document names, [`ANY`] among them.
pub(super) fn hosts(document: &Node) -> Result<Vec<&str>, String> {
    let (mirrors, configs) = (map(document, "mirrors", "")?, map(document, "configs", "")?);
    let mut hosts: Vec<&str> = mirrors.iter().chain(configs).map(|(host, _)| &**host).collect();
    hosts.sort_unstable();
    hosts.dedup();
    Ok(hosts)
}

/// The same as [`parse`] of a document; of [`ANY`] the mirrors alone. With `only_mirrors` a registry that has some is not asked itself,
/// unless it is one of them or `configs` names it (`getHostConfigs`).
pub(super) fn endpoints(document: &Node, host: &str, only_mirrors: bool) -> Result<Vec<Endpoint>, String> {
    let (mirrors, configs) = (map(document, "mirrors", "")?, map(document, "configs", "")?);
    for (field, entries) in [("mirrors", mirrors), ("configs", configs)] {
        if entries.len() > REGISTRY_MIRRORS_MAX {
            return Err(format!(
                "{field}: has {} entries, at most {REGISTRY_MIRRORS_MAX} are supported",
                entries.len()
            ));
        }
    }
    let of = |key: &str| mirrors.iter().find(|(name, _)| **name == *key);
    let mut endpoints = Vec::new();
    if let Some((name, mirror)) = of(host).or_else(|| of(ANY)) {
        let at = format!("mirrors[{}]", quoted(name));
        let rewrites = rewrites(mirror, &at)?;
        for (index, url) in list(mirror, "endpoint", &at)?.iter().enumerate() {
            let at = format!("{at}.endpoint[{index}]");
            let url = url.text().ok_or_else(|| format!("{at}: is no text"))?;
            let mut endpoint = mirror_endpoint(url).map_err(|why| format!("{at}: {why}"))?;
            endpoint.rewrites.clone_from(&rewrites);
            endpoints.push(endpoint);
        }
        if endpoints.len() >= REGISTRY_ENDPOINTS_MAX {
            return Err(format!("{at}.endpoint: at most {} are supported", REGISTRY_ENDPOINTS_MAX - 1));
        }
    }
    if host != ANY {
        let origin = Endpoint::origin(host)?;
        // The registry itself may be among its own endpoints, with another scheme.
        let is_listed = endpoints.iter().any(|endpoint| endpoint.address == origin.address);
        let is_named = || configs.iter().any(|(name, _)| **name == *host);
        if !is_listed && (!only_mirrors || endpoints.is_empty() || is_named()) {
            endpoints.push(origin);
        }
    }
    for endpoint in &mut endpoints {
        let names = [endpoint.host(), endpoint.address.to_string()];
        let docker = (names[0] == "registry-1.docker.io").then_some("docker.io");
        let mut names = names.iter().map(String::as_str).chain(docker).chain([ANY]);
        let found = names.find_map(|name| configs.iter().find(|(key, _)| **key == *name));
        if let Some((name, config)) = found {
            configure(endpoint, config, &format!("configs[{}]", quoted(name)))?;
        }
    }
    Ok(endpoints)
}

/// `/v2` where the URL has no path of its own.
fn mirror_endpoint(url: &str) -> Result<Endpoint, String> {
    let after = url.split_once("://").map_or(url, |(_, after)| after);
    let has_path = after.split_once('/').is_some_and(|(_, path)| !path.trim_matches('/').is_empty());
    Endpoint::parse(url, has_path)
}

fn configure(endpoint: &mut Endpoint, config: &Node, at: &str) -> Result<(), String> {
    if let Some(auth) = config.field("auth") {
        let text = |field: &str| match auth.field(field) {
            None => Ok(String::new()),
            Some(Node::Text(text)) => Ok(text.to_string()),
            // `password: 1234` is a number in YAML.
            Some(Node::Int(number)) => Ok(number.to_string()),
            Some(_) => Err(format!("{at}.auth.{field}: is no text; put it in quotes")),
        };
        let credentials = Credentials::new(
            &text("username")?,
            &text("password")?,
            &text("auth")?,
            &text("identity_token")?,
        );
        endpoint.credentials = Some(credentials.map_err(|why| format!("{at}.auth: {why}"))?);
    }
    if let Some(tls) = config.field("tls") {
        let file = |field: &str| match tls.field(field) {
            None => Ok(None),
            Some(Node::Text(path)) if path.is_empty() => Ok(None),
            Some(Node::Text(path)) => Ok(Some(PathBuf::from(&**path))),
            Some(_) => Err(format!("{at}.tls.{field}: is no text")),
        };
        let client = match (file("cert_file")?, file("key_file")?) {
            (Some(certificate), Some(key)) => vec![(certificate, key)],
            (None, None) => Vec::new(),
            (Some(_), None) | (None, Some(_)) => {
                return Err(format!("{at}.tls: cert_file and key_file belong together; give both"));
            }
        };
        let skip_verify = match tls.field("insecure_skip_verify") {
            None => false,
            Some(Node::Bool(skip)) => *skip,
            Some(_) => return Err(format!("{at}.tls.insecure_skip_verify: is neither true nor false")),
        };
        endpoint.tls_options =
            TlsOptions { authorities: file("ca_file")?.into_iter().collect(), client, skip_verify };
    }
    Ok(())
}

fn rewrites(mirror: &Node, at: &str) -> Result<Vec<Rewrite>, String> {
    let entries = map(mirror, "rewrite", at)?;
    if entries.len() > REGISTRY_REWRITES_MAX {
        return Err(format!("{at}.rewrite: at most {REGISTRY_REWRITES_MAX} are supported"));
    }
    let rewrite = |(pattern, replacement): &(Box<str>, Node)| {
        let at = format!("{at}.rewrite[{}]", quoted(pattern));
        if pattern.len() > REGISTRY_PATTERN_BYTES_MAX {
            return Err(format!("{at}: is longer than {REGISTRY_PATTERN_BYTES_MAX} bytes"));
        }
        let pattern =
            Regex::new(pattern).map_err(|error| format!("{at}: is no regular expression: {error}"))?;
        let replacement = replacement.text().ok_or_else(|| format!("{at}: its replacement is no text"))?;
        Ok(Rewrite { pattern, replacement: replacement.to_owned() })
    };
    entries.iter().map(rewrite).collect()
}

fn map<'a>(node: &'a Node, field: &str, at: &str) -> Result<&'a [(Box<str>, Node)], String> {
    match node.field(field) {
        None => Ok(&[]),
        Some(Node::Map(entries)) => Ok(entries),
        Some(_) => Err(format!("{}: is no map", crate::decode::join(at, field))),
    }
}

fn list<'a>(node: &'a Node, field: &str, at: &str) -> Result<&'a [Node], String> {
    match node.field(field) {
        None => Ok(&[]),
        Some(Node::List(items)) => Ok(items),
        Some(_) => Err(format!("{at}.{field}: is no list")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &[u8] = br#"
mirrors:
  docker.io:
    endpoint:
      - "https://mirror.example:5000"
      - "http://127.0.0.1:6000/hub/v2"
    rewrite:
      "^rancher/(.*)": "project/rancher-images/$1"
  quay.io:
    endpoint: ["quay.io"]
  "*":
    endpoint:
      - "https://any.example"
configs:
  "mirror.example:5000":
    auth:
      username: me
      password: 1234
    tls:
      ca_file: /etc/ca.pem
      cert_file: /etc/c.pem
      key_file: /etc/k.pem
  docker.io:
    auth: {identity_token: abc}
  any.example:
    tls: {insecure_skip_verify: true}
"#;

    fn urls(host: &str) -> Vec<String> {
        let found = parse(FILE, host).unwrap();
        found.iter().map(|endpoint| endpoint.url_of("rancher/x", "tags").to_string()).collect()
    }

    #[test]
    fn mirrors_come_first_with_their_rewrites() {
        assert_eq!(
            urls("docker.io"),
            [
                "https://mirror.example:5000/v2/project/rancher-images/x/tags",
                "http://127.0.0.1:6000/hub/v2/project/rancher-images/x/tags",
                "https://registry-1.docker.io:443/v2/rancher/x/tags",
            ]
        );
        assert_eq!(urls("quay.io"), ["https://quay.io:443/v2/rancher/x/tags"]);
        assert_eq!(
            urls("r.io"),
            ["https://any.example:443/v2/rancher/x/tags", "https://r.io:443/v2/rancher/x/tags"]
        );
        let found = parse(FILE, "docker.io").unwrap();
        assert_eq!(found[0].credentials, Some(Credentials::new("me", "1234", "", "").unwrap()));
        assert_eq!(found[0].tls_options.client, [("/etc/c.pem".into(), "/etc/k.pem".into())]);
        assert_eq!(found[1].credentials, None);
        assert_eq!(found[2].credentials, Some(Credentials::new("", "", "", "abc").unwrap()));
        assert!(parse(FILE, "r.io").unwrap()[0].tls_options.skip_verify);
        assert_eq!(parse(b"", "r.io").unwrap().len(), 1);
    }

    #[test]
    fn mirrors_alone_are_asked_unless_the_registry_is_named_too() {
        let document = document(FILE).unwrap();
        for (host, wanted) in [
            ("r.io", &["any.example"][..]),
            ("quay.io", &["quay.io"]),
            ("docker.io", &["mirror.example:5000", "127.0.0.1:6000", "registry-1.docker.io"]),
            ("mirror.example:5000", &["any.example", "mirror.example:5000"]),
        ] {
            let found = endpoints(&document, host, true).unwrap();
            assert_eq!(found.iter().map(Endpoint::host).collect::<Vec<_>>(), wanted, "{host}");
        }
        // Without a mirror nothing but the registry is there.
        let found = endpoints(&Node::Null, "r.io", true).unwrap();
        assert_eq!(found.iter().map(Endpoint::host).collect::<Vec<_>>(), ["r.io"]);
    }

    #[test]
    fn errors_name_the_field() {
        for (text, error) in [
            ("mirrors: 1", "mirrors: is no map"),
            ("mirrors: {r.io: {endpoint: x}}", "mirrors[\"r.io\"].endpoint: is no list"),
            ("mirrors: {r.io: {endpoint: [\"ftp://x\"]}}", "endpoint[0]: \"ftp://x\" is no URL"),
            ("mirrors: {r.io: {rewrite: {\"(\": x}}}", "is no regular expression"),
            ("configs: {r.io: {tls: {cert_file: x}}}", "belong together"),
            ("configs: {r.io: {auth: {password: [secret]}}}", "auth.password: is no text"),
            ("configs: {r.io: {auth: {auth: \"secret\"}}}", "auth: "),
            ("a: [", "line"),
            ("a: 1\n---\nb: 1", "more than one document"),
        ] {
            let found = parse(text.as_bytes(), "r.io").unwrap_err();
            assert!(found.contains(error) && !found.contains("secret"), "{text}: {found}");
        }
    }
}
