//! Which hosts an image is pulled from: reads `certs.d/HOST/hosts.toml` and `registries.yaml` of the node's owner.
//!
//! They are read for each pull, as containerd does: a change needs no restart.

use std::io;
use std::path::{Path, PathBuf};

use super::endpoint::Endpoint;
use super::{Proxies, RegistryError, RegistryResult, hosts_toml, registries_yaml};
use crate::blocking::Blocking;
use crate::filesystem::read_linked;
use crate::limits::{REGISTRY_CONFIG_BYTES_MAX, REGISTRY_ROOTS_FILES_MAX};

const HOSTS_TOML: &str = "hosts.toml";
/// Directory for hosts without one of their own.
const DEFAULT: &str = "_default";

/// What the process' environment says about connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// Proxies.
    pub proxies: Proxies,
    /// `SSL_CERT_FILE`: the system's authorities.
    pub certificates_file: Option<PathBuf>,
    /// `SSL_CERT_DIR`: directories with authorities.
    pub certificates_directories: Vec<PathBuf>,
}

impl Environment {
    /// That of this process.
    pub fn of_process() -> Self {
        let path = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        Self {
            proxies: Proxies::from_variables(|name| std::env::var(name).ok()),
            certificates_file: path("SSL_CERT_FILE").map(PathBuf::from),
            certificates_directories: path("SSL_CERT_DIR").map_or_else(Vec::new, |list| {
                std::env::split_paths(&list).take(REGISTRY_ROOTS_FILES_MAX).collect()
            }),
        }
    }
}

/// The configuration of hosts.
#[derive(Clone, Debug, Default)]
pub struct Hosts {
    /// Directories as containerd's `config_path`: the first one that has the host counts.
    pub directories: Vec<PathBuf>,
    /// k3s' `registries.yaml`; counts for hosts that no directory has.
    pub registries: Option<PathBuf>,
    /// A registry that has mirrors is not asked itself, unless these files name it too (k3s' `--disable-default-registry-endpoint`).
    pub only_mirrors: bool,
    /// Proxies and authorities.
    pub environment: Environment,
}

impl Hosts {
    /// The endpoints for images of this registry, in the order in which they are tried; the registry itself, if it is asked, last.
    ///
    /// # Errors
    /// A file cannot be read, or is wrong: names the file, the field and the cause.
    pub async fn endpoints(&self, blocking: &Blocking, host: &str) -> RegistryResult<Vec<Endpoint>> {
        let Some(path) = self.directories.first().or(self.registries.as_ref()) else {
            return Endpoint::origin(host).map(|origin| vec![origin]).map_err(RegistryError::Config);
        };
        let (hosts, host) = (self.clone(), host.to_owned());
        let read = blocking.run_outside(path, move || hosts.read(&host)).await;
        read.map_err(|stuck| RegistryError::unavailable(stuck.to_string()))?.map_err(RegistryError::Config)
    }

    /// I/O, blocking.
    fn read(&self, host: &str) -> Result<Vec<Endpoint>, String> {
        let mut endpoints = self.configured(host)?;
        let origin = Endpoint::origin(host)?;
        for endpoint in &mut endpoints {
            if endpoint.address != origin.address {
                endpoint.namespace = Some(host.to_owned());
            }
        }
        Ok(endpoints)
    }

    fn configured(&self, host: &str) -> Result<Vec<Endpoint>, String> {
        for directory in &self.directories {
            for name in directory_names(host) {
                if let Some(endpoints) = of_directory(&directory.join(name), host, self.only_mirrors)? {
                    return Ok(endpoints);
                }
            }
        }
        if let Some(path) = &self.registries
            && let Some(bytes) = read(path)?
        {
            let document = registries_yaml::document(&bytes);
            let parsed = document.and_then(|of| registries_yaml::endpoints(&of, host, self.only_mirrors));
            return parsed.map_err(|why| format!("{}: {why}", path.display()));
        }
        Ok(vec![Endpoint::origin(host)?])
    }
}

/// `r.io:5000`, `r.io_5000_`, `_default` (`hostPaths`).
fn directory_names(host: &str) -> Vec<String> {
    let mut names = vec![host.to_owned()];
    if let Some((name, port)) = host.rsplit_once(':') {
        names.push(format!("{name}_{port}_"));
    }
    names.push(DEFAULT.to_owned());
    names
}

/// `None`: there is no such directory, or nothing in it.
fn of_directory(directory: &Path, host: &str, only_mirrors: bool) -> Result<Option<Vec<Endpoint>>, String> {
    let file = directory.join(HOSTS_TOML);
    if let Some(bytes) = read(&file)? {
        let text = String::from_utf8(bytes).map_err(|_| format!("{}: is no UTF-8 text", file.display()))?;
        let parsed = hosts_toml::parse(&text, directory, host, only_mirrors);
        return parsed.map(Some).map_err(|why| format!("{}: {why}", file.display()));
    }
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if is_absent(&error) => return Ok(None),
        Err(error) => return Err(format!("{}: {error}", directory.display())),
    };
    let names = entries
        .take(REGISTRY_ROOTS_FILES_MAX)
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.collect();
    names.sort_unstable();
    let found = hosts_toml::of_certificates(&names, directory, host);
    found
        .map(|found| found.first().is_some_and(|only| !only.tls_options.is_empty()).then_some(found))
        .map_err(|why| format!("{}: {why}", directory.display()))
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, String> {
    match read_linked(path, REGISTRY_CONFIG_BYTES_MAX) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}
