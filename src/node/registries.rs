//! k3s' `registries.yaml` for a containerd, which does not read it: files for its mirrors, logins with its pulls. The embedded runtime
//! reads it itself, and other runtimes would send the logins to other servers than theirs.

use std::path::{Path, PathBuf};

use crate::config::{Config, files_in};
use crate::filesystem::read_linked;
use crate::image::pull::ReadLogins;
use crate::limits::CONFIG_FILE_BYTES_MAX;
use crate::paths::{CONTAINERD_CONFIG, CONTAINERD_CONFIG_DIR, CONTAINERD_HOSTS, K3S_CONTAINERD};
use crate::registry::{self, HostsWritten};

const CONTAINERD: &str = "containerd";

/// The logins for the pulls of that runtime.
pub(super) fn logins(config: &Config, runtime: &str) -> Option<(PathBuf, ReadLogins)> {
    let registries = config.embedded.registries.clone().filter(|_| runtime == CONTAINERD)?;
    let read: ReadLogins = registry::logins;
    Some((registries, read))
}

/// Writes containerd's files of mirrors, if there is a directory for them, and warns where the containerd at `socket` does not read them.
/// I/O, blocking; at the start, as k3s does it.
pub(super) fn write_hosts(config: &Config, runtime: &str, socket: Option<&Path>) {
    let (Some(directory), Some(registries)) = (&config.containerd_certs_dir, &config.embedded.registries)
    else {
        return;
    };
    if runtime != CONTAINERD {
        return;
    }
    let (of, to) = (registries.display(), directory.display());
    match registry::write_hosts(registries, directory, config.embedded.only_mirrors) {
        Ok(HostsWritten { registries, changed, rewriting, foreign }) => {
            if registries > 0
                && let Some(socket) = socket
                && let Some(mend) = unread(directory, socket, &containerds_configuration())
            {
                log::warn!("registries of {of}: its mirrors have no effect: {mend}");
            }
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

/// What containerd reads at its start; what cannot be read counts as empty.
fn containerds_configuration() -> Vec<String> {
    let imported = files_in(Path::new(CONTAINERD_CONFIG_DIR), &["toml"]).unwrap_or_default();
    let text = |path: PathBuf| {
        let bytes = read_linked(&path, CONFIG_FILE_BYTES_MAX).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    std::iter::once(CONTAINERD_CONFIG.into()).chain(imported).map(text).collect()
}

/// Why the containerd at `socket` does not read `directory`, with the setting that makes it; `None`: it does. k3s writes the
/// configuration of its own containerd, and newer ones have their usual directory without a setting. PURE.
fn unread(directory: &Path, socket: &Path, configuration: &[String]) -> Option<String> {
    if socket == Path::new(K3S_CONTAINERD) || directory == Path::new(CONTAINERD_HOSTS) {
        return None;
    }
    let directory = directory.to_str()?;
    let names = |text: &String| {
        let lines = text.lines().map(str::trim_start).filter(|line| !line.starts_with('#'));
        lines.into_iter().any(|line| line.starts_with("config_path") && line.contains(directory))
    };
    (!configuration.iter().any(names)).then(|| {
        format!(
            "they are in {directory}, which {CONTAINERD_CONFIG} does not name; set config_path = \"{directory}\" in \
             [plugins.'io.containerd.cri.v1.images'.registry] (containerd 1: [plugins.'io.containerd.grpc.v1.cri'.registry]) and \
             restart containerd"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_containerd_that_does_not_read_the_mirrors_is_told_of() {
        let own = "/var/lib/rancher/k3s/agent/etc/containerd/certs.d";
        let names = format!("[plugins.'io.containerd.cri.v1.images'.registry]\n  config_path = '{own}'\n");
        let comment = format!("# config_path = '{own}'\n");
        let stock = "/run/containerd/containerd.sock";
        for (directory, socket, configuration, is_read) in [
            (own, stock, &[][..], false),
            (own, stock, &["version = 2\n", &comment], false),
            (own, stock, &["version = 2\n", &names], true),
            (own, K3S_CONTAINERD, &[], true),
            ("/etc/containerd/certs.d", stock, &[], true),
        ] {
            let texts: Vec<String> = configuration.iter().map(|text| (*text).to_owned()).collect();
            let mend = unread(Path::new(directory), Path::new(socket), &texts);
            assert_eq!(mend.is_none(), is_read, "{directory} {socket} {mend:?}");
            assert!(mend.is_none_or(|mend| mend.contains(&format!("config_path = \"{own}\""))));
        }
    }
}
