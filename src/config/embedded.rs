//! Settings of the embedded runtime. PURE.

use std::path::PathBuf;

use super::Flags;
use crate::limits::OCI_RUNTIMES_MAX;
use crate::paths;

/// Settings of the embedded runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbeddedSettings {
    /// OCI runtimes by handler; the empty name is the default handler's. At most `limits::OCI_RUNTIMES_MAX`. Without a default one
    /// that of the machine is used.
    pub oci_runtimes: Vec<(Box<str>, PathBuf)>,
    /// Directory of CNI configurations.
    pub cni_conf_dir: PathBuf,
    /// Directories of CNI plugins, in the order of the search.
    pub cni_bin_dirs: Vec<PathBuf>,
    /// Directories with a `HOST/hosts.toml` for registries; the first that has the host counts.
    pub registry_dirs: Vec<PathBuf>,
    /// k3s' `registries.yaml`, for hosts that no directory has.
    pub registries: Option<PathBuf>,
    /// Registries that have mirrors are not asked themselves (`--disable-default-registry-endpoint`).
    pub only_mirrors: bool,
    /// Containers get `SELinux` labels where the node has a policy (`--selinux`, as k3s' flag).
    pub selinux: bool,
}

impl EmbeddedSettings {
    /// Those of the flags.
    ///
    /// # Errors
    /// An OCI runtime that is not NAME=PATH or PATH with an absolute path, one handler twice, or too many.
    pub(super) fn of(flags: &Flags) -> Result<Self, String> {
        let mut oci_runtimes: Vec<(Box<str>, PathBuf)> = Vec::new();
        let invalid = |given: &str, why: &str| format!("--oci-runtime {given:?}: {why}");
        for given in &flags.oci_runtime {
            let (name, path) = given.split_once('=').unwrap_or(("", given));
            if !path.starts_with('/') {
                return Err(invalid(given, "is no absolute path; use /usr/bin/crun or NAME=/usr/bin/crun"));
            }
            if oci_runtimes.iter().any(|(other, _)| **other == *name) {
                return Err(invalid(given, "this handler has an OCI runtime already; name each once"));
            }
            oci_runtimes.push((name.into(), path.into()));
        }
        if oci_runtimes.len() > OCI_RUNTIMES_MAX {
            return Err(invalid("", "too many handlers"));
        }
        let usual = || paths::CNI_PLUGINS.map(PathBuf::from).into();
        Ok(Self {
            oci_runtimes,
            cni_conf_dir: flags.cni_conf_dir.clone().unwrap_or_else(|| paths::CNI.into()),
            cni_bin_dirs: if flags.cni_bin_dir.is_empty() { usual() } else { flags.cni_bin_dir.clone() },
            registry_dirs: match &flags.registry_config_dir {
                Some(dir) => vec![dir.clone()],
                None => paths::REGISTRY_HOSTS.map(PathBuf::from).into(),
            },
            registries: Some(flags.registries.clone().unwrap_or_else(|| paths::REGISTRIES.into())),
            only_mirrors: flags.disable_default_registry_endpoint,
            selinux: flags.selinux,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oci_runtimes_are_paths_by_handler() {
        let of = |given: &[&str]| {
            let oci_runtime = given.iter().map(|text| (*text).to_owned()).collect();
            EmbeddedSettings::of(&Flags { oci_runtime, ..Flags::default() })
        };
        let found = of(&["/usr/bin/crun", "youki=/opt/bin/youki"]).unwrap().oci_runtimes;
        let expected = [("", "/usr/bin/crun"), ("youki", "/opt/bin/youki")];
        assert_eq!(found, expected.map(|(name, path)| (name.into(), path.into())));
        for (given, why) in [
            (&["crun"][..], "is no absolute path"),
            (&["a=crun"], "is no absolute path"),
            (&["/a", "/b"], "has an OCI runtime already"),
        ] {
            let error = of(given).unwrap_err();
            assert!(error.contains("--oci-runtime") && error.contains(why), "{error}");
        }
        assert_eq!(of(&[]).unwrap().cni_bin_dirs.len(), 2);
    }
}
