//! Parses a kubeconfig (`clientcmd`): the server's address, its certificate authorities and the client's credentials. PURE.
//!
//! Unsupported fields are refused by name: credential plugins (`exec`, `auth-provider`), proxies, basic authentication,
//! impersonation.

use std::path::{Path, PathBuf};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use hyper::Uri;

use crate::decode::{Node, quoted, yaml};

/// The server's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerUrl {
    /// Host name or address, an IPv6 address without its brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Path prefix: empty, or `/k8s/clusters/c-1`.
    pub(crate) prefix: String,
}

impl ServerUrl {
    /// Parses `https://HOST:PORT`.
    ///
    /// # Errors
    /// A message that says what is wrong with it.
    pub(crate) fn parse(url: &str) -> Result<Self, String> {
        let wrong = |why: &str| format!("{}: {why}", quoted(url));
        let uri: Uri = url.parse().map_err(|_| wrong("must be https://HOST:PORT"))?;
        if uri.scheme_str() != Some("https") {
            return Err(wrong("must begin with https://; what a node says is not for others to read"));
        }
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(|| wrong("names no host"))?;
        Ok(Self {
            host: host.trim_start_matches('[').trim_end_matches(']').to_owned(),
            port: uri.port_u16().unwrap_or(443),
            prefix: uri.path().trim_end_matches('/').to_owned(),
        })
    }

    /// Host and port, in the form of a header or a URL.
    pub(crate) fn authority(&self) -> String {
        let Self { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

/// PEM data or a token. Its `Debug` shows none of it.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Material {
    Inline(Vec<u8>),
    /// Read at use; relative to the kubeconfig's directory.
    File(PathBuf),
}

impl std::fmt::Debug for Material {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Inline(_) => f.write_str("Inline"),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

/// How the server's certificate is verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trust {
    /// Against these certificate authorities.
    Authorities(Material),
    /// Not at all (`insecure-skip-tls-verify`).
    AnyCertificate,
}

/// The current context of a kubeconfig.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kubeconfig {
    pub(super) server: ServerUrl,
    pub(super) trust: Trust,
    /// The expected name of the server's certificate, when it is not the host (`tls-server-name`).
    pub(super) server_name: Option<String>,
    /// Certificate and key, which may be in one file.
    pub(super) certificate: Option<(Material, Material)>,
    pub(super) token: Option<Material>,
}

impl Kubeconfig {
    /// Parses it. The server must have an HTTPS URL, and the current context must be complete.
    ///
    /// # Errors
    /// A message that names the field and the remedy, without any part of a credential.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let mut tree = Err("is empty".to_owned());
        let read = yaml::documents(bytes, |document, outcome| {
            if document == 1 {
                tree = outcome.map_err(|error| format!("line {}: {}", error.line, error.message));
            }
        });
        let tree = tree.and_then(|tree| match read {
            Ok(()) => Ok(tree),
            Err(error) => Err(format!("line {}: {}", error.line, error.message)),
        })?;
        let current = text(&tree, "current-context")
            .ok_or("current-context: is required; kubectl config use-context NAME sets it")?;
        let context = entry(&tree, "contexts", "context", current, "current-context")?;
        let name = text(context, "cluster").ok_or("the current context has no cluster")?;
        let cluster = entry(&tree, "clusters", "cluster", name, "the current context's cluster")?;
        let nobody = Node::Null;
        let user = match (text(context, "user"), context.field("user")) {
            (Some(name), _) => entry(&tree, "users", "user", name, "the current context's user")?,
            // YAML's `n` and `on` are not strings.
            (None, Some(other)) if other.text().is_none() => {
                return Err(format!("the current context's user is {other}; put it in quotes"));
            }
            (None, _) => &nobody,
        };
        refuse(cluster, "cluster", &[("proxy-url", "a proxy is not supported; name the server itself")])?;
        refuse(
            user,
            "user",
            &[
                ("exec", "no program is run for credentials; use a client certificate, or tokenFile"),
                ("auth-provider", "is gone from Kubernetes; use a client certificate, or tokenFile"),
                ("username", "servers take no passwords; use a client certificate, or a token"),
                ("as", "a node acts as itself"),
            ],
        )?;
        Ok(Self {
            server: ServerUrl::parse(text(cluster, "server").ok_or("the cluster has no server")?)
                .map_err(|why| format!("server: {why}"))?,
            trust: trust(cluster)?,
            server_name: text(cluster, "tls-server-name").map(str::to_owned),
            certificate: certificate(user)?,
            token: match (text(user, "token"), text(user, "tokenFile")) {
                // As client-go: the file takes precedence, because it is the one that is renewed.
                (_, Some(path)) => Some(Material::File(path.into())),
                (Some(token), None) => Some(Material::Inline(token.as_bytes().to_vec())),
                (None, None) => None,
            },
        })
    }

    /// A kubeconfig for the same server with the certificate and the key in `file` (the kubelet's
    /// `writeKubeconfigFromBootstrapping`). Paths in this kubeconfig are relative to `folder`.
    pub(super) fn by_certificate(&self, folder: &Path, file: &Path) -> String {
        // JSON strings are valid YAML.
        let quote = |text: &str| serde_json::Value::from(text).to_string();
        let (at, prefix) = (self.server.authority(), &self.server.prefix);
        let trust = match &self.trust {
            Trust::Authorities(Material::Inline(pem)) => {
                format!("certificate-authority-data: {}", quote(&BASE64_STANDARD.encode(pem)))
            }
            Trust::Authorities(Material::File(path)) => {
                format!("certificate-authority: {}", quote(&folder.join(path).to_string_lossy()))
            }
            Trust::AnyCertificate => "insecure-skip-tls-verify: true".to_owned(),
        };
        let name = self.server_name.as_deref();
        let name = name.map_or_else(String::new, |name| format!("    tls-server-name: {}\n", quote(name)));
        let (server, file) = (quote(&format!("https://{at}{prefix}")), quote(&file.to_string_lossy()));
        format!(
            "apiVersion: v1\nkind: Config\nclusters:\n- name: default-cluster\n  cluster:\n    server: {server}\n    \
             {trust}\n{name}users:\n- name: default-auth\n  user:\n    client-certificate: {file}\n    client-key: \
             {file}\ncontexts:\n- name: default-context\n  context:\n    cluster: default-cluster\n    user: \
             default-auth\ncurrent-context: default-context\n"
        )
    }
}

fn text<'a>(node: &'a Node, field: &str) -> Option<&'a str> {
    node.field(field).and_then(Node::text).filter(|text| !text.is_empty())
}

/// The entry named `name` in one of the lists.
fn entry<'a>(tree: &'a Node, list: &str, of: &str, name: &str, who: &str) -> Result<&'a Node, String> {
    let items = tree.field(list).map(Node::items).unwrap_or_default();
    let found = items.iter().find(|item| text(item, "name") == Some(name));
    let found = found.ok_or_else(|| format!("{who} is {}, which is not in {list}", quoted(name)))?;
    found.field(of).ok_or_else(|| format!("{list}: {}: has no {of}", quoted(name)))
}

fn refuse(node: &Node, of: &str, fields: &[(&str, &str)]) -> Result<(), String> {
    match fields.iter().find(|(field, _)| node.field(field).is_some()) {
        Some((field, why)) => Err(format!("{of}: {field}: {why}")),
        None => Ok(()),
    }
}

fn trust(cluster: &Node) -> Result<Trust, String> {
    if matches!(cluster.field("insecure-skip-tls-verify"), Some(Node::Bool(true))) {
        return Ok(Trust::AnyCertificate);
    }
    let found = material(cluster, "cluster", "certificate-authority")?;
    found.map(Trust::Authorities).ok_or_else(|| {
        "cluster: certificate-authority-data: is required: the server is trusted by its own authority, not by those \
         of the web"
            .to_owned()
    })
}

fn certificate(user: &Node) -> Result<Option<(Material, Material)>, String> {
    let certificate = material(user, "user", "client-certificate")?;
    let key = material(user, "user", "client-key")?;
    match (certificate, key) {
        (Some(certificate), Some(key)) => Ok(Some((certificate, key))),
        (None, None) => Ok(None),
        (Some(_), None) => Err("user: client-certificate: there is no client-key for it".to_owned()),
        (None, Some(_)) => Err("user: client-key: there is no client-certificate for it".to_owned()),
    }
}

/// `FIELD-data`, else the file named in `FIELD`.
fn material(node: &Node, of: &str, field: &str) -> Result<Option<Material>, String> {
    if let Some(data) = text(node, &format!("{field}-data")) {
        let data: String = data.chars().filter(|c| !c.is_whitespace()).collect();
        let bytes =
            BASE64_STANDARD.decode(&data).map_err(|_| format!("{of}: {field}-data: must be base64"))?;
        return Ok(Some(Material::Inline(bytes)));
    }
    Ok(text(node, field).map(|path| Material::File(path.into())))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = "
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: k, user: node}}]
clusters: [{name: k, cluster: {server: 'https://10.0.0.1:6443', certificate-authority: ca.crt}}]
users: [{name: node, user: {client-certificate: /pki/n.pem, client-key: /pki/n.pem}}]
";

    #[test]
    fn the_current_context_counts() {
        let read = Kubeconfig::parse(WHOLE.as_bytes()).unwrap();
        assert_eq!(read.server, ServerUrl { host: "10.0.0.1".into(), port: 6443, prefix: String::new() });
        assert_eq!(read.trust, Trust::Authorities(Material::File("ca.crt".into())));
        assert_eq!(read.certificate.unwrap().0, Material::File("/pki/n.pem".into()));
        let inline = WHOLE.replace("certificate-authority: ca.crt", "certificate-authority-data: aGk=");
        let inline = inline.replace("https://10.0.0.1:6443", "https://[fd00::1]/k8s/c-1/");
        let inline =
            inline.replace("client-certificate: /pki/n.pem, client-key: /pki/n.pem", "token: hunter2");
        let read = Kubeconfig::parse(inline.as_bytes()).unwrap();
        assert_eq!(read.server, ServerUrl { host: "fd00::1".into(), port: 443, prefix: "/k8s/c-1".into() });
        assert_eq!(read.trust, Trust::Authorities(Material::Inline(b"hi".to_vec())));
        assert_eq!(read.token, Some(Material::Inline(b"hunter2".to_vec())));
        assert!(!format!("{read:?}").contains("hunter2"));
    }

    #[test]
    fn one_by_a_certificate_is_of_the_same_server() {
        let token = WHOLE.replace("client-certificate: /pki/n.pem, client-key: /pki/n.pem", "token: hunter2");
        let inline = token.replace("certificate-authority: ca.crt", "certificate-authority-data: aGk=");
        let named =
            inline.replace("https://10.0.0.1:6443'", "https://[fd00::1]/k8s/c-1/', tls-server-name: api");
        let anybody = token.replace("certificate-authority: ca.crt", "insecure-skip-tls-verify: true");
        for text in [token, inline, named, anybody] {
            let before = Kubeconfig::parse(text.as_bytes()).unwrap();
            let made = before.by_certificate(Path::new("/boot"), Path::new("/pki/n: \"1\".pem"));
            assert!(!made.contains("hunter2"), "{made}");
            let file = || Material::File("/pki/n: \"1\".pem".into());
            let mut wanted = Kubeconfig { certificate: Some((file(), file())), token: None, ..before };
            if wanted.trust == Trust::Authorities(Material::File("ca.crt".into())) {
                wanted.trust = Trust::Authorities(Material::File("/boot/ca.crt".into()));
            }
            assert_eq!(Kubeconfig::parse(made.as_bytes()), Ok(wanted), "{made}");
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_its_mend() {
        for (from, to, wanted) in [
            (
                "current-context: c\n",
                "",
                "current-context: is required; kubectl config use-context NAME sets it",
            ),
            (
                "current-context: c",
                "current-context: x",
                "current-context is \"x\", which is not in contexts",
            ),
            ("name: k", "name: l", "the current context's cluster is \"k\", which is not in clusters"),
            ("user: node", "user: n", "the current context's user is false; put it in quotes"),
            ("https:", "http:", "server: \"http://10.0.0.1:6443\": must begin with https://"),
            (", certificate-authority: ca.crt", "", "cluster: certificate-authority-data: is required"),
            (
                "certificate-authority: ca.crt",
                "certificate-authority-data: '?'",
                "certificate-authority-data: must be base64",
            ),
            (
                "certificate-authority: ca.crt",
                "proxy-url: 'http://p'",
                "cluster: proxy-url: a proxy is not supported",
            ),
            (", client-key: /pki/n.pem", "", "user: client-certificate: there is no client-key for it"),
            ("client-certificate: /pki/n.pem", "exec: {command: aws}", "user: exec: no program is run"),
        ] {
            let text = WHOLE.replace(from, to);
            assert_ne!(text, WHOLE, "{from}");
            let error = Kubeconfig::parse(text.as_bytes()).expect_err(to);
            assert!(error.contains(wanted), "{to}: {error}");
        }
        assert!(Kubeconfig::parse(b"").is_err());
    }
}
