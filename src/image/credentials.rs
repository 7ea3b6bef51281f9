//! Registry credentials for a pull: the pod's pull secrets, then the node's own configuration file (`MakeDockerKeyring`).

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;

use super::keyring::{DockerConfig, Keyring, pull_secret};
use super::pulled::record::PullSecret;
use crate::filesystem::{open_linked, read_whole};
use crate::limits::NODE_LOGINS_BYTES_MAX;

/// The node's own credentials, in the state directory; docker's format.
pub const NODE_LOGINS: &str = "config.json";

/// The credentials in pull secrets. Secrets of another type are ignored.
///
/// # Errors
/// The first secret that cannot be parsed, by name: as in the kubelet no pull is tried then.
pub fn of_secrets(secrets: &[Arc<Secret>]) -> Result<Keyring, String> {
    let mut keyring = Keyring::default();
    for secret in secrets {
        let type_ = secret.type_.as_deref().unwrap_or_default();
        let Some((key, read)) = pull_secret(type_) else { continue };
        let Some(value) = secret.data.as_ref().and_then(|data| data.get(key)) else { continue };
        if !value.0.is_empty() {
            let text = |text: &Option<String>| text.clone().unwrap_or_default();
            let metadata = &secret.metadata;
            let of = PullSecret {
                uid: text(&metadata.uid),
                namespace: text(&metadata.namespace),
                name: text(&metadata.name),
                credential_hash: String::new(),
            };
            let config =
                read(&value.0).map_err(|error| format!("pull secret {}: {key}: {error}", of.name))?;
            keyring.add(config, Some(&of));
        }
    }
    Ok(keyring)
}

/// Content of the node's credentials file.
#[derive(Debug, Default)]
pub struct NodeLogins {
    /// The credentials; empty when the file cannot be read.
    pub keyring: Keyring,
    /// A warning about the file.
    pub complaint: Option<String>,
}

/// Reads the node's file, which is optional. Blocks.
pub fn of_node(path: &Path) -> NodeLogins {
    let complaint = |what: &str| Some(format!("{}: {what}", path.display()));
    let (bytes, mode) = match read(path) {
        Ok(read) => read,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return NodeLogins::default(),
        Err(error) => {
            let complaint = complaint(&format!("{error}; images are pulled without the node's credentials"));
            return NodeLogins { complaint, ..NodeLogins::default() };
        }
    };
    match DockerConfig::parse(&bytes) {
        Ok(config) => {
            let complaint = if mode & 0o077 != 0 {
                complaint(&format!(
                    "others than its owner may read the credentials; chmod 600 {}",
                    path.display()
                ))
            } else if config.names_helpers {
                complaint("credsStore and credHelpers are not supported; write the credentials into auths")
            } else {
                None
            };
            let mut keyring = Keyring::default();
            keyring.add(config, None);
            NodeLogins { keyring, complaint }
        }
        Err(error) => {
            let complaint = complaint(&format!("{error}; images are pulled without the node's credentials"));
            NodeLogins { complaint, ..NodeLogins::default() }
        }
    }
}

/// The file's bytes and its mode.
fn read(path: &Path) -> io::Result<(Vec<u8>, u32)> {
    let file = open_linked(path)?;
    let mode = file.metadata()?.mode();
    Ok((read_whole(&file, NODE_LOGINS_BYTES_MAX)?, mode))
}

/// Removes the credentials from a text, in case a registry or a proxy repeats them in an error.
pub fn without_login(text: String, auth: &crate::proto::runtime::v1::AuthConfig) -> String {
    let pair = k8s_openapi::ByteString(format!("{}:{}", auth.username, auth.password).into_bytes());
    let encoded = serde_json::to_value(&pair).ok();
    let encoded = encoded.as_ref().and_then(serde_json::Value::as_str).unwrap_or_default();
    let secrets = [encoded, encoded.trim_end_matches('='), &auth.password, &auth.identity_token];
    // Shorter texts occur in ordinary sentences, and are no secrets.
    let secrets = secrets.into_iter().filter(|secret| secret.len() >= 4);
    secrets.fold(
        text,
        |text, secret| {
            if text.contains(secret) { text.replace(secret, "[a login]") } else { text }
        },
    )
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::proto::runtime::v1::AuthConfig;
    use serde_json::json;

    /// A Secret as in memory: its values are base64 only in JSON.
    fn secret(type_: &str, key: &str, value: &str) -> Arc<Secret> {
        let data = std::collections::BTreeMap::from([(
            key.to_owned(),
            k8s_openapi::ByteString(value.as_bytes().to_vec()),
        )]);
        let mut secret: Secret =
            serde_json::from_value(json!({"metadata": {"name": "s"}, "type": type_})).unwrap();
        secret.data = Some(data);
        Arc::new(secret)
    }

    fn users(keyring: &Keyring, image: &str) -> Vec<String> {
        keyring.lookup(image).iter().map(|login| login.auth().username).collect()
    }

    #[test]
    fn both_types_of_pull_secrets_are_read_and_others_ignored() {
        let entry = |user: &str| format!(r#"{{"r.io": {{"username": "{user}", "password": "p"}}}}"#);
        let auths = |user: &str| format!(r#"{{"auths": {}}}"#, entry(user));
        let secrets = [
            secret("kubernetes.io/dockerconfigjson", ".dockerconfigjson", &auths("a")),
            secret("kubernetes.io/dockercfg", ".dockercfg", &entry("b")),
            secret("Opaque", ".dockerconfigjson", &auths("c")),
            secret("kubernetes.io/dockercfg", ".dockerconfigjson", &auths("d")),
            secret("kubernetes.io/dockercfg", ".dockercfg", ""),
        ];
        assert_eq!(users(&of_secrets(&secrets).unwrap(), "r.io/x"), ["a", "b"]);
        let bad = [secret("kubernetes.io/dockercfg", ".dockercfg", r#"{"r.io": {"auth": "hunter2"}}"#)];
        assert_eq!(
            of_secrets(&bad).unwrap_err(),
            "pull secret s: .dockercfg: [\"r.io\"].auth: must be the base64 of user:password"
        );
    }

    #[test]
    fn the_nodes_file_is_read_with_a_warning_about_its_problems() {
        let dir = std::env::temp_dir().join(format!("smolet-logins-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join(NODE_LOGINS);
        let look = |text: &str, mode| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let read = of_node(&path);
            (users(&read.keyring, "r.io/x").len(), read.complaint.unwrap_or_default())
        };
        let good = r#"{"auths": {"r.io": {"username": "u", "password": "hunter2"}}}"#;
        assert_eq!(look(good, 0o600), (1, String::new()));
        for (text, mode, logins, wanted) in [
            (good, 0o640, 1, "chmod 600"),
            (r#"{"credsStore": "x", "auths": {}}"#, 0o600, 0, "credsStore"),
            ("hunter2", 0o600, 0, "must be a JSON object; images are pulled without"),
            (&" ".repeat(NODE_LOGINS_BYTES_MAX + 1), 0o600, 0, "has more than"),
        ] {
            let (found, complaint) = look(text, mode);
            assert!(found == logins && complaint.contains(wanted), "{found} {complaint}");
            assert!(!complaint.contains("hunter2"));
        }
        fs::remove_file(&path).unwrap();
        assert!(of_node(&path).complaint.is_none(), "it is optional");
        fs::create_dir(&path).unwrap();
        assert!(of_node(&path).complaint.unwrap().contains("is no regular file"));
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_credential_is_removed_from_an_error() {
        let login = |username: &str, password: &str| AuthConfig {
            username: username.into(),
            password: password.into(),
            ..AuthConfig::default()
        };
        // `me:hunter2`
        let text = "GET http://me:hunter2@r.io: Authorization: Basic bWU6aHVudGVyMg== bWU6aHVudGVyMg: 401";
        let shown = without_login(text.to_owned(), &login("me", "hunter2"));
        assert_eq!(shown, "GET http://me:[a login]@r.io: Authorization: Basic [a login] [a login]: 401");
        assert_eq!(without_login("a p in a pod".to_owned(), &login("", "p")), "a p in a pod");
    }
}
