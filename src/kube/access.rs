//! What a connection is made with, read from the kubeconfig's files each time anew: whoever renews a certificate or a token
//! there is followed.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::KubeError;
use super::kubeconfig::{Kubeconfig, Material, ServerUrl, Trust};
use crate::blocking::unblock_apart;
use crate::limits::KUBECONFIG_BYTES_MAX;

/// Where the kubeconfig is.
#[derive(Clone, Debug)]
pub struct Access {
    path: PathBuf,
}

/// Everything a connection is made with. Holds secrets, and is dropped when the connection stands.
pub(super) struct Loaded {
    pub(super) server: ServerUrl,
    pub(super) server_name: Option<String>,
    /// The authorities in PEM; `None`: anybody is trusted.
    pub(super) authorities: Option<Vec<u8>>,
    /// Certificate and key in PEM.
    pub(super) certificate: Option<(Vec<u8>, Vec<u8>)>,
    pub(super) token: Option<Vec<u8>>,
}

impl Access {
    /// The kubeconfig at `path`, which need not be there yet.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// Reads all that there is to read, on a thread of its own.
    pub(super) async fn load(&self) -> Result<Loaded, KubeError> {
        let path = self.path.clone();
        let loaded = unblock_apart(move || load(&path)).await;
        let loaded = loaded.map_err(|error| KubeError::Config(error.to_string()))?;
        loaded.map_err(|why| KubeError::Config(format!("kubeconfig {}: {why}", self.path.display())))
    }
}

fn load(path: &Path) -> Result<Loaded, String> {
    let config = Kubeconfig::parse(&read(path).map_err(|error| error.to_string())?)?;
    let dir = path.parent().unwrap_or(Path::new("/"));
    let bytes = |material: Material| match material {
        Material::Inline(bytes) => Ok(bytes),
        Material::File(file) => {
            let file = dir.join(file);
            read(&file).map_err(|error| format!("{}: {error}", file.display()))
        }
    };
    Ok(Loaded {
        server: config.server,
        server_name: config.server_name,
        authorities: match config.trust {
            Trust::Authorities(material) => Some(bytes(material)?),
            Trust::Anybody => None,
        },
        certificate: match config.certificate {
            Some((certificate, key)) => Some((bytes(certificate)?, bytes(key)?)),
            None => None,
        },
        token: config.token.map(bytes).transpose()?,
    })
}

fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(KUBECONFIG_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > KUBECONFIG_BYTES_MAX {
        return Err(std::io::Error::other(format!("is longer than {KUBECONFIG_BYTES_MAX} bytes")));
    }
    Ok(bytes)
}
