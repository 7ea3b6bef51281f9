//! Gives a containerd what k3s' `registries.yaml` says: `HOST/hosts.toml` in the directory of its `config_path`, and logins with the
//! pulls. I/O, blocking.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use super::certs_d::{HEADERS, HostsFile, hosts_files};
use crate::filesystem::{read_linked, replace};
use crate::image::keyring::Login;
use crate::limits::{REGISTRY_CONFIG_BYTES_MAX, REGISTRY_MIRRORS_MAX};

const HOSTS_TOML: &str = "hosts.toml";

/// What was written.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct HostsWritten {
    /// Registries that have a file here, whoever wrote it.
    pub registries: usize,
    /// Registries whose file was written or removed.
    pub changed: Vec<String>,
    /// Registries that rewrite names of repositories.
    pub rewriting: Vec<String>,
    /// Files of somebody else, which stay.
    pub foreign: Vec<String>,
}

/// Writes the files of all registries in `registries`, and removes those of registries that it no longer names. Files that neither
/// smolet nor k3s has written stay. `only_mirrors` is that of [`Hosts`](super::Hosts).
///
/// # Errors
/// A sentence that names the file.
pub fn write_hosts(registries: &Path, directory: &Path, only_mirrors: bool) -> Result<HostsWritten, String> {
    let bytes = read(registries)?.unwrap_or_default();
    let files =
        hosts_files(&bytes, only_mirrors).map_err(|why| format!("{}: {why}", registries.display()))?;
    let mut done = HostsWritten { registries: files.len(), ..HostsWritten::default() };
    remove_others(directory, &files, &mut done)?;
    for HostsFile { directory: name, text, rewrites } in files {
        let folder = directory.join(&name);
        let path = folder.join(HOSTS_TOML);
        let found = read(&path)?;
        if found.as_deref().is_some_and(|found| !is_written(found)) {
            done.foreign.push(path.display().to_string());
            continue;
        }
        if rewrites {
            done.rewriting.push(name.clone());
        }
        if found.as_deref() == Some(text.as_bytes()) {
            continue;
        }
        let at = |error: std::io::Error| format!("{}: {error}", path.display());
        DirBuilder::new().recursive(true).mode(0o755).create(&folder).map_err(at)?;
        replace(&path, &folder.join(".hosts.toml.new"), text.as_bytes()).map_err(at)?;
        done.changed.push(name);
    }
    Ok(done)
}

/// Removes what was written for registries that have no file any more.
fn remove_others(directory: &Path, files: &[HostsFile], done: &mut HostsWritten) -> Result<(), String> {
    let at = |error: std::io::Error| format!("{}: {error}", directory.display());
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(at(error)),
    };
    for entry in entries.take(2 * REGISTRY_MIRRORS_MAX) {
        let Ok(name) = entry.map_err(at)?.file_name().into_string() else { continue };
        let folder = directory.join(&name);
        let path = folder.join(HOSTS_TOML);
        let is_ours = |path: &Path| read(path).ok().flatten().is_some_and(|found| is_written(&found));
        if files.iter().all(|file| file.directory != name) && is_ours(&path) {
            fs::remove_file(&path).map_err(at)?;
            // Not empty: somebody else's certificates are there.
            let _ = fs::remove_dir(&folder);
            done.changed.push(name);
        }
    }
    Ok(())
}

/// The logins of `registries` for images of the registry `host`.
///
/// # Errors
/// A sentence that names the file, and no value of it.
pub fn logins(registries: &Path, host: &str) -> Result<Vec<Login>, String> {
    let Some(bytes) = read(registries)? else { return Ok(Vec::new()) };
    super::certs_d::logins(&bytes, host).map_err(|why| format!("{}: {why}", registries.display()))
}

fn is_written(text: &[u8]) -> bool {
    HEADERS.iter().any(|header| text.starts_with(header.as_bytes()))
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, String> {
    match read_linked(path, REGISTRY_CONFIG_BYTES_MAX) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_follow_registries_yaml_and_those_of_others_stay() {
        let root = std::env::temp_dir().join(format!("smolet-certs-d-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let (registries, certs) = (root.join("registries.yaml"), root.join("certs.d"));
        assert_eq!(write_hosts(&registries, &certs, false), Ok(HostsWritten::default()));
        let put = |name: &str, text: &str| {
            fs::create_dir_all(certs.join(name)).unwrap();
            fs::write(certs.join(name).join(HOSTS_TOML), text).unwrap();
        };
        put("own.io", "server = \"https://own.io\"\n");
        put("old.io", "# File generated by k3s. DO NOT EDIT.\nserver = \"https://old.io\"\n");
        let mirror = "{endpoint: [\"https://m.io\"]}";
        fs::write(
            &registries,
            format!("mirrors: {{own.io: {mirror}, docker.io: {mirror}, r.io: {{endpoint: [m.io], rewrite: {{a: b}}}}}}"),
        )
        .unwrap();
        let done = write_hosts(&registries, &certs, false).unwrap();
        assert_eq!(done.changed, ["old.io", "docker.io", "r.io"]);
        assert_eq!(done.rewriting, ["r.io"]);
        assert_eq!(done.foreign, [certs.join("own.io/hosts.toml").display().to_string()]);
        assert!(!certs.join("old.io").exists());
        let text = fs::read_to_string(certs.join("docker.io/hosts.toml")).unwrap();
        assert!(text.contains("[host.\"https://m.io/v2\"]"), "{text}");
        // Nothing is written anew.
        assert_eq!(write_hosts(&registries, &certs, false).unwrap().changed, Vec::<String>::new());

        // A directory with certificates of the owner's stays.
        fs::write(certs.join("docker.io/ca.crt"), "").unwrap();
        fs::remove_file(&registries).unwrap();
        let mut gone = write_hosts(&registries, &certs, false).unwrap().changed;
        gone.sort_unstable();
        assert_eq!(gone, ["docker.io", "r.io"]);
        assert!(certs.join("docker.io/ca.crt").exists() && !certs.join("docker.io/hosts.toml").exists());
        assert!(certs.join("own.io/hosts.toml").exists());
        fs::write(&registries, "mirrors: 1").unwrap();
        let why = write_hosts(&registries, &certs, false).unwrap_err();
        assert!(why.contains("registries.yaml: mirrors: is no map"), "{why}");
        fs::remove_dir_all(root).unwrap();
    }
}
