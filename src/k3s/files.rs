//! The files of a k3s node: certificates, authorities and settings from the server, its token and its password. I/O, blocking.

use std::path::{Path, PathBuf};

use super::joining::{Found, Given, Identity, is_of_node};
use super::token::TOKEN_FILE;
use super::{Component, List, Settings, Token};
use crate::certificates::usable;
use crate::config::{Config, TokenSource};
use crate::filesystem::replace;
use crate::kube::{self, Credential, ServerUrl};
use crate::tls::certificates;

/// The files below the state directory.
#[derive(Clone, Debug)]
pub(crate) struct Files(PathBuf);

impl Files {
    pub(crate) fn new(root: &Path) -> Self {
        Self(root.join("k3s"))
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Authority behind the API server's certificate.
    pub(super) fn server_ca(&self) -> PathBuf {
        self.at("server-ca.crt")
    }

    /// Authority behind the certificates of the node API's clients.
    pub(crate) fn client_ca(&self) -> PathBuf {
        self.at("client-ca.crt")
    }

    /// The node's certificate with its key.
    pub(super) fn client(&self) -> PathBuf {
        self.at("client-kubelet.pem")
    }

    /// The serving certificate of the node's API, with its key.
    pub(crate) fn serving(&self) -> PathBuf {
        self.at("serving-kubelet.pem")
    }

    /// The certificate of a component, with its key.
    pub(super) fn component(&self, of: Component) -> PathBuf {
        self.at(of.file())
    }

    /// The kubeconfig of a component.
    pub(crate) fn component_kubeconfig(&self, of: Component) -> PathBuf {
        self.at(of.kubeconfig())
    }

    /// The cluster's settings, as the server sent them.
    fn settings(&self) -> PathBuf {
        self.at("config.json")
    }

    /// The servers of its cluster.
    fn servers(&self) -> PathBuf {
        self.at("servers.json")
    }

    /// The stored settings, if there are any.
    pub(crate) fn kept_settings(&self) -> Option<Settings> {
        Settings::parse(&read(&self.settings()).ok()?).ok()
    }

    /// The stored list of servers for the one that the user names.
    pub(super) fn kept_servers(&self, named: &ServerUrl) -> Option<Vec<ServerUrl>> {
        List::kept(&read(&self.servers()).ok()?, named)
    }

    /// Everything that the server gave, as it is on the disk.
    pub(super) fn found(&self, kubeconfig: &Path) -> Found {
        Found {
            // An unusable file counts as missing: it is replaced.
            certificate: match kube::credential(kubeconfig) {
                Ok(Credential::InFile(_, validity)) => Some(validity),
                Ok(_) | Err(_) => None,
            },
            client: read(&self.client()).ok(),
            serving: read(&self.serving()).ok(),
            client_ca: read(&self.client_ca()).ok(),
            server_ca: read(&self.server_ca()).ok(),
            has_settings: self.kept_settings().is_some(),
            components: Component::ALL.map(|of| {
                let named = kube::credential(&self.component_kubeconfig(of));
                read(&self.component(of)).ok().filter(|_| matches!(named, Ok(Credential::InFile(..))))
            }),
        }
    }

    /// The node's credentials, and the authority that is trusted already.
    pub(super) fn identity(&self, source: &TokenSource, node: &str) -> Identity {
        // A certificate counts before the token: with another node's the server answers 400, for ever.
        let is_own = |pem: &[u8]| is_of_node(pem, node) && usable(pem).is_ok();
        let (certificate, authority) = match source {
            TokenSource::EarlierJoin(k3s_agent) => self.earlier_join(k3s_agent.as_deref(), is_own).unzip(),
            TokenSource::Given(_) | TokenSource::File(_) => (
                read(&self.client()).ok().filter(|pem| is_own(pem)),
                read(&self.server_ca()).ok().filter(|pem| certificates(pem).is_some()),
            ),
        };
        Identity { token: token(source), certificate, authority }
    }

    /// What an earlier join has left for a node without a token: its certificate with its key, and the servers' authority; those of
    /// `k3s agent` in its directory where there are none here.
    fn earlier_join(
        &self,
        k3s_agent: Option<&Path>,
        is_own: impl Fn(&[u8]) -> bool,
    ) -> Option<(Vec<u8>, Vec<u8>)> {
        let own = || Some((read(&self.client()).ok()?, read(&self.server_ca()).ok()?));
        let of_k3s = || {
            let at = |name: &str| read(&k3s_agent?.join(name)).ok();
            let certificate = [at("client-kubelet.crt")?, at("client-kubelet.key")?].join(&b'\n');
            Some((certificate, at("server-ca.crt")?))
        };
        let counts = |(certificate, authority): &(Vec<u8>, Vec<u8>)| {
            is_own(certificate) && certificates(authority).is_some()
        };
        own().filter(counts).or_else(|| of_k3s().filter(counts))
    }

    /// Writes what the server gave, and the kubeconfig that names it; `components` are the texts of theirs.
    pub(super) fn store(
        &self,
        given: &Given,
        kubeconfig: &Path,
        text: &str,
        components: &[String; 2],
    ) -> Result<(), String> {
        let known = read(&self.client_ca()).ok();
        let is_other = known.is_some_and(|known| known != given.cluster.authorities.client);
        for (of, text) in Component::ALL.iter().zip(components) {
            let file = self.component(*of);
            match file.try_exists() {
                // Those of another cluster are worth nothing.
                Ok(true) if is_other => {
                    std::fs::remove_file(&file).map_err(|error| format!("{}: {error}", file.display()))?;
                }
                Ok(true) => self.keep(&self.component_kubeconfig(*of), text.as_bytes())?,
                Ok(false) | Err(_) => {}
            }
        }
        self.keep(&self.settings(), &given.cluster.settings.to_json())?;
        // Before the authorities: while these are another cluster's, certificates are fetched anew.
        if let Some(certificates) = &given.certificates {
            self.keep(&self.serving(), &certificates.serving)?;
            self.keep(&self.client(), &certificates.client)?;
        }
        self.keep(&self.client_ca(), &given.cluster.authorities.client)?;
        self.keep(&self.server_ca(), &given.cluster.authorities.server)?;
        // Last: the files that it names exist by then.
        self.keep(kubeconfig, text.as_bytes())
    }

    /// Writes the certificate of a component with its key, and the kubeconfig that names it.
    pub(super) fn store_component(&self, of: Component, pem: &[u8], text: &str) -> Result<(), String> {
        self.keep(&self.component(of), pem)?;
        self.keep(&self.component_kubeconfig(of), text.as_bytes())
    }

    /// Writes the list of servers.
    pub(super) fn store_servers(&self, list: &[u8]) -> Result<(), String> {
        self.keep(&self.servers(), list)
    }

    /// Writes a file unless it has these contents already, to spare the flash.
    fn keep(&self, path: &Path, bytes: &[u8]) -> Result<(), String> {
        if read(path).is_ok_and(|found| found == bytes) {
            return Ok(());
        }
        std::fs::create_dir_all(&self.0).map_err(|error| format!("{}: {error}", self.0.display()))?;
        replace(path, &path.with_extension("new"), bytes)
            .map_err(|error| format!("{}: {error}", path.display()))
    }
}

/// Whether a node of k3s has a token, or a certificate by which it is known without one (`agent.Run`).
///
/// # Errors
/// A sentence: it has neither.
pub(crate) fn check_credentials(config: &Config) -> Result<(), String> {
    let Some(TokenSource::EarlierJoin(k3s_agent)) = config.k3s.as_ref().map(|k3s| &k3s.token) else {
        return Ok(());
    };
    let is_usable = |pem: &[u8]| usable(pem).is_ok();
    match Files::new(&config.root_dir).earlier_join(k3s_agent.as_deref(), is_usable) {
        Some(_) => Ok(()),
        None => Err(
            "--server: needs --token-file, a copy of the server's /var/lib/rancher/k3s/server/agent-token"
                .to_owned(),
        ),
    }
}

/// The token, wherever it is.
fn token(source: &TokenSource) -> Result<Token, String> {
    match source {
        TokenSource::Given(text) => Token::parse(text.expose()).map_err(|why| format!("--token {why}")),
        TokenSource::File(path) => {
            let at = |why: String| format!("--token-file: {}: {why}", path.display());
            let text = read(path).map_err(at)?;
            Token::parse(&String::from_utf8_lossy(&text)).map_err(at)
        }
        TokenSource::EarlierJoin(_) => Err(format!(
            "no certificate of an earlier join is this node's, and there is no token; give --token-file the token of {TOKEN_FILE}"
        )),
    }
}

/// The node password, by which the server recognises this node: generated once, never changed.
pub(super) fn node_password(path: &Path) -> Result<String, String> {
    let at = |error: String| format!("node password {}: {error}", path.display());
    match kube::read(path) {
        Ok(bytes) if !bytes.trim_ascii().is_empty() => {
            return String::from_utf8(bytes.trim_ascii().to_vec()).map_err(|_| at("is no text".to_owned()));
        }
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(at(error.to_string())),
        Ok(_) | Err(_) => {}
    }
    let random = super::random::<16>().map_err(at)?;
    let password = crate::text::hex(&random);
    write_new(path, &password).map_err(at)?;
    Ok(password)
}

/// What is behind the node's name with `--with-node-id`: made once (`ensureNodeID`).
///
/// # Errors
/// A message that names the file.
pub(crate) fn node_id(path: &Path) -> Result<String, String> {
    let at = |error: String| format!("node ID {}: {error}", path.display());
    match kube::read(path) {
        Ok(bytes) if !bytes.trim_ascii().is_empty() => {
            return String::from_utf8(bytes.trim_ascii().to_vec()).map_err(|_| at("is no text".to_owned()));
        }
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(at(error.to_string())),
        Ok(_) | Err(_) => {}
    }
    let id = crate::text::hex(&super::random::<4>().map_err(at)?);
    write_new(path, &id).map_err(at)?;
    Ok(id)
}

fn write_new(path: &Path, text: &str) -> Result<(), String> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(|error| error.to_string())?;
    }
    replace(path, &path.with_extension("new"), format!("{text}\n").as_bytes())
        .map_err(|error| error.to_string())
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    kube::read(path).map_err(|error| error.to_string())
}
