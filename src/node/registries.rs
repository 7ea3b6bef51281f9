//! k3s' `registries.yaml` for a containerd, which does not read it: files for its mirrors, logins with its pulls. The embedded runtime
//! reads it itself, and other runtimes would send the logins to other servers than theirs.

use std::path::PathBuf;

use crate::config::Config;
use crate::image::pull::ReadLogins;
use crate::registry::{self, HostsWritten};

const CONTAINERD: &str = "containerd";

/// The logins for the pulls of that runtime.
pub(super) fn logins(config: &Config, runtime: &str) -> Option<(PathBuf, ReadLogins)> {
    let registries = config.embedded.registries.clone().filter(|_| runtime == CONTAINERD)?;
    let read: ReadLogins = registry::logins;
    Some((registries, read))
}

/// Writes containerd's files of mirrors, if there is a directory for them. I/O, blocking; at the start, as k3s does it.
pub(super) fn write_hosts(config: &Config, runtime: &str) {
    let (Some(directory), Some(registries)) = (&config.containerd_certs_dir, &config.embedded.registries)
    else {
        return;
    };
    if runtime != CONTAINERD {
        return;
    }
    let (of, to) = (registries.display(), directory.display());
    match registry::write_hosts(registries, directory, config.embedded.only_mirrors) {
        Ok(HostsWritten { changed, rewriting, foreign }) => {
            if !changed.is_empty() {
                log::info!("registries of {of}: written to {to}: {}", changed.join(", "));
            }
            if !rewriting.is_empty() {
                log::warn!(
                    "registries of {of}: the rewrites of {} count with k3s' containerd and with the embedded runtime only",
                    rewriting.join(", ")
                );
            }
            for file in foreign {
                log::warn!(
                    "registries of {of}: {file} was not written by smolet, and stays; remove it to have it written"
                );
            }
        }
        Err(why) => log::warn!("registries: {why}; containerd's mirrors stay as they are"),
    }
}
