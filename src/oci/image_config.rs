//! The configuration of an image: of the OCI image-spec, and Docker's, which has the same fields. PURE.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::SpecError;
use super::runtime_spec::or_default;
use crate::limits::{
    IMAGE_CONFIG_BYTES_MAX, IMAGE_CONFIG_ENTRIES_MAX, IMAGE_LAYERS_MAX, PROCESS_ARGS_MAX, PROCESS_ENV_MAX,
};

/// The whole document (`application/vnd.oci.image.config.v1+json`, `application/vnd.docker.container.image.v1+json`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ImageDocument {
    /// `amd64`, `arm64`, `arm` ...
    #[serde(deserialize_with = "or_default")]
    pub architecture: String,
    /// `linux`.
    #[serde(deserialize_with = "or_default")]
    pub os: String,
    /// `v6`, `v7`, `v8` of arm.
    #[serde(deserialize_with = "or_default")]
    pub variant: String,
    /// RFC 3339; empty when the image does not say.
    #[serde(deserialize_with = "or_default")]
    pub created: String,
    /// How its containers run.
    #[serde(deserialize_with = "or_default")]
    pub config: ImageConfig,
    /// Its layers.
    #[serde(deserialize_with = "or_default")]
    pub rootfs: RootFs,
}

/// `rootfs` of an image's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct RootFs {
    /// Digests of the layers' archives before compression, the lowest first.
    #[serde(deserialize_with = "or_default")]
    pub diff_ids: Vec<String>,
}

/// `config` of an image's configuration: how its containers run, where the pod does not say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ImageConfig {
    /// `USER`, `UID`, `USER:GROUP` ...
    #[serde(deserialize_with = "or_default")]
    pub user: String,
    /// `NAME=VALUE`.
    #[serde(deserialize_with = "or_default")]
    pub env: Vec<String>,
    /// The program, before `cmd`.
    #[serde(deserialize_with = "or_default")]
    pub entrypoint: Vec<String>,
    /// The arguments, or the program when there is no entrypoint.
    #[serde(deserialize_with = "or_default")]
    pub cmd: Vec<String>,
    /// The working directory.
    #[serde(deserialize_with = "or_default")]
    pub working_dir: String,
    /// `SIGTERM`, `TERM`, `15` ...
    #[serde(deserialize_with = "or_default")]
    pub stop_signal: String,
    /// Paths of volumes.
    #[serde(deserialize_with = "keys")]
    pub volumes: Vec<String>,
    /// The image's labels.
    #[serde(deserialize_with = "or_default")]
    pub labels: BTreeMap<String, String>,
}

impl ImageDocument {
    /// Reads the JSON text.
    ///
    /// # Errors
    /// It is no such document, or beyond a bound of `limits::IMAGE_*`.
    pub fn parse(json: &[u8]) -> Result<Self, SpecError> {
        SpecError::at_most("bytes of the image's configuration", json.len(), IMAGE_CONFIG_BYTES_MAX)?;
        let document: Self = serde_json::from_slice(json).map_err(|error| {
            SpecError::invalid("the image's configuration", format!("{error}; build it anew"))
        })?;
        let config = &document.config;
        for (field, count, max) in [
            (
                "rootfs.diff_ids of the image's configuration",
                document.rootfs.diff_ids.len(),
                IMAGE_LAYERS_MAX,
            ),
            ("config.Env of the image's configuration", config.env.len(), PROCESS_ENV_MAX),
            ("config.Entrypoint of the image's configuration", config.entrypoint.len(), PROCESS_ARGS_MAX),
            ("config.Cmd of the image's configuration", config.cmd.len(), PROCESS_ARGS_MAX),
            ("config.Volumes of the image's configuration", config.volumes.len(), IMAGE_CONFIG_ENTRIES_MAX),
            ("config.Labels of the image's configuration", config.labels.len(), IMAGE_CONFIG_ENTRIES_MAX),
        ] {
            SpecError::at_most(field, count, max)?;
        }
        Ok(document)
    }
}

/// The keys of a map whose values are empty objects.
fn keys<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let map = Option::<BTreeMap<String, serde_json::Value>>::deserialize(deserializer)?;
    Ok(map.unwrap_or_default().into_keys().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_docker_configuration_and_one_of_oci() {
        let docker = br##"{"architecture":"arm","variant":"v7","os":"linux","created":"2024-01-02T03:04:05Z",
            "docker_version":"20.10","container_config":{"Cmd":["/bin/sh","-c","#(nop) "]},
            "config":{"Hostname":"","User":"nobody:nogroup","ExposedPorts":{"80/tcp":{}},"Env":["PATH=/bin"],
            "Cmd":null,"Entrypoint":["/app"],"Volumes":{"/data":{},"/b":null},"WorkingDir":"/srv",
            "Labels":null,"StopSignal":"SIGINT","OnBuild":null},
            "rootfs":{"type":"layers","diff_ids":["sha256:1","sha256:2"]},"history":[{"created_by":"x"}]}"##;
        let read = ImageDocument::parse(docker).unwrap();
        assert_eq!((&*read.architecture, &*read.variant, read.rootfs.diff_ids.len()), ("arm", "v7", 2));
        let config = read.config;
        assert_eq!(
            (&*config.user, &*config.working_dir, &*config.stop_signal),
            ("nobody:nogroup", "/srv", "SIGINT")
        );
        assert_eq!(config.entrypoint, ["/app"]);
        assert!(config.cmd.is_empty() && config.labels.is_empty());
        assert_eq!(config.volumes, ["/b", "/data"]);
        let oci = ImageDocument::parse(br#"{"architecture":"arm64","os":"linux","rootfs":{"diff_ids":[]}}"#)
            .unwrap();
        assert_eq!(oci.config, ImageConfig::default());
        assert_eq!(
            ImageDocument::parse(br#"{"config":null,"rootfs":null}"#).unwrap(),
            ImageDocument::default()
        );
    }

    #[test]
    fn others_are_refused() {
        let long = format!(r#"{{"config":{{"Volumes":{{{}}}}}}}"#, {
            let volumes: Vec<String> =
                (0..=IMAGE_CONFIG_ENTRIES_MAX).map(|n| format!("\"/{n}\":{{}}")).collect();
            volumes.join(",")
        });
        for (json, shown) in [
            (b"5".to_vec(), "the image's configuration: "),
            (br#"{"config":{"Env":"A=1"}}"#.to_vec(), "the image's configuration: invalid type: string"),
            (b"{".to_vec(), "the image's configuration: EOF"),
            (vec![b' '; IMAGE_CONFIG_BYTES_MAX + 1], "bytes of the image's configuration: at most"),
            (long.into_bytes(), "config.Volumes of the image's configuration: at most 1024"),
        ] {
            let error = ImageDocument::parse(&json).unwrap_err().to_string();
            assert!(error.starts_with(shown), "{error}");
        }
    }
}
