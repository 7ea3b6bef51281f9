//! What an OCI runtime says of itself: `runc features`. PURE.

use serde::Deserialize;

use super::runtime_spec::or_default;
use crate::limits::OCI_FEATURES_BYTES_MAX;

/// Features of an OCI runtime that specs depend on, and that the CRI's status names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuntimeFeatures {
    /// It mounts with `rro` (runc 1.1, crun 1.4).
    pub recursive_read_only: bool,
    /// It maps the ids of mounts (runc 1.2, crun 1.9).
    pub id_mapped_mounts: bool,
}

impl RuntimeFeatures {
    /// From the output of the runtime's command `features`. A runtime that has no such command, or an answer that is none, has no
    /// feature.
    pub fn parse(json: &[u8]) -> Self {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct Features {
            #[serde(deserialize_with = "or_default")]
            mount_options: Vec<String>,
            #[serde(deserialize_with = "or_default")]
            linux: Linux,
        }
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct Linux {
            #[serde(deserialize_with = "or_default")]
            mount_extensions: MountExtensions,
        }
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct MountExtensions {
            #[serde(deserialize_with = "or_default")]
            idmap: IdMap,
        }
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct IdMap {
            enabled: Option<bool>,
        }
        if json.len() > OCI_FEATURES_BYTES_MAX {
            return Self::default();
        }
        let features: Features = serde_json::from_slice(json).unwrap_or_default();
        Self {
            recursive_read_only: features.mount_options.iter().any(|option| option == "rro"),
            id_mapped_mounts: features.linux.mount_extensions.idmap.enabled == Some(true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_of_oci_runtimes() {
        for (json, recursive_read_only, id_mapped_mounts) in [
            (
                r#"{"mountOptions": ["ro", "rro"], "linux": {"mountExtensions": {"idmap": {"enabled": true}}}}"#,
                true,
                true,
            ),
            (
                r#"{"mountOptions": ["ro"], "linux": {"mountExtensions": {"idmap": {"enabled": false}}}}"#,
                false,
                false,
            ),
            (r#"{"mountOptions": ["rro"], "linux": null}"#, true, false),
            (r#"{"mountOptions": null}"#, false, false),
            ("No help topic for 'features'", false, false),
            ("", false, false),
        ] {
            let expected = RuntimeFeatures { recursive_read_only, id_mapped_mounts };
            assert_eq!(RuntimeFeatures::parse(json.as_bytes()), expected, "{json}");
        }
    }
}
