//! PURE: parses a runtime's own configuration, and a CNI configuration.

use serde_json::Value;

use crate::render::CgroupDriver;

/// The version of configurations from here. Plugins of Debian 11 and of Ubuntu 22.04 know no later one, of which nothing is needed.
pub(crate) const CNI_VERSION: &str = "0.4.0";
/// Default directories of CNI configurations and plugins.
const CONF_DIR: &str = "/etc/cni/net.d";
const BIN_DIRS: [&str; 2] = ["/opt/cni/bin", "/usr/lib/cni"];

/// The relevant part of a runtime's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeSettings {
    /// Directory of CNI configurations.
    pub cni_conf_dir: String,
    /// The runtime tells which directory it is, as CRI-O does not.
    pub is_told: bool,
    /// Directories of CNI plugins; a plugin in one of them is enough.
    pub cni_bin_dirs: Vec<String>,
    /// The cgroup driver of its default OCI runtime.
    pub cgroup_driver: Option<CgroupDriver>,
}

impl RuntimeSettings {
    /// Parses `StatusResponse.info["config"]`, which is a runtime's own JSON: containerd 1 (`cni.binDir`), containerd 2
    /// (`cni.binDirs`). Absent values, as with CRI-O, get their defaults.
    pub fn parse(config: Option<&str>) -> Self {
        let config: Value = config.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let cni = &config["cni"];
        let listed = cni["binDirs"].as_array().map(Vec::as_slice).unwrap_or_default();
        let mut cni_bin_dirs: Vec<String> = listed.iter().filter_map(text).collect();
        cni_bin_dirs.extend(text(&cni["binDir"]));
        if cni_bin_dirs.is_empty() {
            cni_bin_dirs = BIN_DIRS.map(str::to_owned).into();
        }
        // containerd: `SystemdCgroup` in the options of runc, or of the default runtime.
        let containerd = &config["containerd"];
        let default = containerd["defaultRuntimeName"].as_str().unwrap_or("runc");
        let systemd = containerd["runtimes"][default]["options"]["SystemdCgroup"].as_bool();
        let cgroup_driver = systemd.map(|on| if on { CgroupDriver::Systemd } else { CgroupDriver::Cgroupfs });
        let told = text(&cni["confDir"]);
        let is_told = told.is_some();
        Self {
            cni_conf_dir: told.unwrap_or_else(|| CONF_DIR.to_owned()),
            is_told,
            cni_bin_dirs,
            cgroup_driver,
        }
    }
}

/// Whether libcni reads the file as a configuration.
pub fn is_configuration(file: &str) -> bool {
    [".conf", ".conflist", ".json"].iter().any(|ending| file.ends_with(ending))
}

/// The plugins of a configuration, IPAM plugins included.
///
/// # Errors
/// It is not a CNI configuration.
pub fn plugins(configuration: &str) -> Result<Vec<String>, String> {
    let read: Value = serde_json::from_str(configuration).map_err(|error| format!("is no JSON: {error}"))?;
    let one = std::slice::from_ref(&read);
    let plugins = read["plugins"].as_array().map_or(one, Vec::as_slice);
    let mut named: Vec<String> = Vec::new();
    for plugin in plugins {
        let kind = plugin["type"].as_str().filter(|kind| !kind.is_empty());
        let manager = plugin["ipam"]["type"].as_str().filter(|kind| !kind.is_empty());
        named.push(kind.ok_or("names a plugin without a type")?.to_owned());
        named.extend(manager.map(str::to_owned));
    }
    named.sort_unstable();
    named.dedup();
    if named.is_empty() { Err("names no plugin".to_owned()) } else { Ok(named) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtimes_tell_their_settings_in_their_own_ways() {
        let containerd_1 =
            r#"{"containerd": {}, "cni": {"binDir": "/usr/lib/cni", "confDir": "/etc/cni/other"}}"#;
        assert_eq!(
            RuntimeSettings::parse(Some(containerd_1)),
            RuntimeSettings {
                cni_conf_dir: "/etc/cni/other".to_owned(),
                is_told: true,
                cni_bin_dirs: vec!["/usr/lib/cni".to_owned()],
                cgroup_driver: None,
            }
        );
        let containerd_2 = r#"{"cni": {"binDir": "", "binDirs": ["/a", "/b"], "confDir": "/etc/cni/net.d"}}"#;
        assert_eq!(RuntimeSettings::parse(Some(containerd_2)).cni_bin_dirs, ["/a", "/b"]);
        let usual = RuntimeSettings {
            cni_conf_dir: "/etc/cni/net.d".to_owned(),
            is_told: false,
            cni_bin_dirs: vec!["/opt/cni/bin".to_owned(), "/usr/lib/cni".to_owned()],
            cgroup_driver: None,
        };
        for nothing in
            [None, Some(""), Some("[crio]"), Some("[]"), Some(r#"{"sandboxImage": "x", "cni": 3}"#)]
        {
            assert_eq!(RuntimeSettings::parse(nothing), usual, "{nothing:?}");
        }
    }

    #[test]
    fn containerd_tells_its_cgroup_driver() {
        let of = |default: &str, systemd: &str| {
            let options = format!(r#"{{"options": {{"SystemdCgroup": {systemd}}}}}"#);
            let config = format!(
                r#"{{"containerd": {{"defaultRuntimeName": "{default}", "runtimes": {{"{default}": {options}}}}}}}"#
            );
            RuntimeSettings::parse(Some(&config)).cgroup_driver
        };
        assert_eq!(of("runc", "true"), Some(CgroupDriver::Systemd));
        assert_eq!(of("crun", "false"), Some(CgroupDriver::Cgroupfs));
        assert_eq!(of("runc", "null"), None);
    }

    #[test]
    fn configurations_name_their_programs() {
        let ok = |names: &[&str]| Ok(names.iter().map(|name| (*name).to_owned()).collect());
        for (text, expected) in [
            (
                r#"{"plugins": [{"type": "bridge", "ipam": {"type": "host-local"}}, {"type": "portmap"}]}"#,
                ok(&["bridge", "host-local", "portmap"]),
            ),
            (r#"{"type": "ptp"}"#, ok(&["ptp"])),
            (r#"{"plugins": []}"#, Err("names no plugin".to_owned())),
            (r#"{"plugins": [{}]}"#, Err("names a plugin without a type".to_owned())),
            ("{}", Err("names a plugin without a type".to_owned())),
        ] {
            assert_eq!(plugins(text), expected, "{text}");
        }
        assert!(plugins("plugins:").unwrap_err().starts_with("is no JSON: "));
        for (name, is_one) in [
            ("10-k3s.conflist", true),
            ("a.conf", true),
            ("a.json", true),
            ("a.conflist.bak", false),
            ("README", false),
        ] {
            assert_eq!(is_configuration(name), is_one, "{name}");
        }
    }
}
