//! Records of pulled images: `ImagePulledRecord` of `kubelet.config.k8s.io/v1beta1`. PURE.

use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::limits::{PULL_RECORD_REPOSITORIES_MAX, PULL_RECORD_SECRETS_MAX};
use crate::text::hex;

const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";

/// A pull secret and a digest of its credentials (`ImagePullSecret`), never the credentials themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullSecret {
    /// Empty for a Secret from the manifests.
    pub uid: String,
    /// The Secret's namespace.
    pub namespace: String,
    /// The Secret's name.
    pub name: String,
    /// SHA-256 of the credentials (`hashAuthConfig`).
    pub credential_hash: String,
}

impl PullSecret {
    fn is_same_object(&self, other: &Self) -> bool {
        (&self.uid, &self.namespace, &self.name) == (&other.uid, &other.namespace, &other.name)
    }

    fn of(value: &Value) -> Self {
        let text = |field: &str| value[field].as_str().unwrap_or_default().to_owned();
        Self {
            uid: text("uid"),
            namespace: text("namespace"),
            name: text("name"),
            credential_hash: text("credentialHash"),
        }
    }

    fn to_json(&self) -> Value {
        let Self { uid, namespace, name, credential_hash } = self;
        json!({"uid": uid, "namespace": namespace, "name": name, "credentialHash": credential_hash})
    }
}

/// Who may use an image under one of its names (`ImagePullCredentials`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// All pods of the node: it was pulled anonymously, or with the node's own credentials.
    pub node_pods: bool,
    /// Pods with one of these pull secrets.
    pub secrets: Vec<PullSecret>,
    /// A kubelet's `kubernetesServiceAccounts`, kept unchanged: smolet runs no credential providers.
    accounts: Vec<Value>,
}

impl Access {
    /// Access after a pull without a pod's credentials.
    pub fn of_node() -> Self {
        Self { node_pods: true, ..Self::default() }
    }

    /// Access after a pull with those credentials.
    pub fn of_secret(secret: PullSecret) -> Self {
        Self { secrets: vec![secret], ..Self::default() }
    }

    /// The first of a pod's credentials that gives access, by their digest or by their Secret; and whether both match.
    pub fn matching<'a>(&self, of_pod: &'a [PullSecret]) -> Option<(&'a PullSecret, bool)> {
        of_pod.iter().find_map(|secret| {
            let mut known = self.secrets.iter();
            let known = known.find(|known| {
                let is_same_login =
                    !known.credential_hash.is_empty() && known.credential_hash == secret.credential_hash;
                is_same_login || known.is_same_object(secret)
            })?;
            Some((secret, known == secret))
        })
    }

    /// Merges the access from another pull (`pulledRecordMergeNewCreds`); false when nothing is new.
    fn merge(&mut self, new: Self) -> bool {
        if self.node_pods {
            return false;
        }
        if new.node_pods {
            *self = Self::of_node();
            return true;
        }
        let (mut changed, mut room) = (false, PULL_RECORD_SECRETS_MAX.saturating_sub(self.secrets.len()));
        for secret in new.secrets {
            match self.secrets.iter_mut().find(|known| known.is_same_object(&secret)) {
                Some(known) if *known == secret => {}
                Some(known) => {
                    *known = secret;
                    changed = true;
                }
                None if room > 0 => {
                    room -= 1;
                    self.secrets.push(secret);
                    changed = true;
                }
                None => {}
            }
        }
        let place = |secret: &PullSecret| (secret.namespace.clone(), secret.name.clone(), secret.uid.clone());
        self.secrets.sort_by_key(place);
        changed
    }

    fn of(value: &Value) -> Self {
        let list = |field: &str| value[field].as_array().map(Vec::as_slice).unwrap_or_default();
        Self {
            node_pods: value["nodePodsAccessible"].as_bool().unwrap_or(false),
            secrets: list("kubernetesSecrets").iter().map(PullSecret::of).collect(),
            accounts: list("kubernetesServiceAccounts").to_vec(),
        }
    }

    fn to_json(&self) -> Value {
        let mut fields = Map::new();
        if !self.secrets.is_empty() {
            let secrets = self.secrets.iter().map(PullSecret::to_json).collect();
            fields.insert("kubernetesSecrets".to_owned(), Value::Array(secrets));
        }
        if !self.accounts.is_empty() {
            fields.insert("kubernetesServiceAccounts".to_owned(), Value::Array(self.accounts.clone()));
        }
        if self.node_pods {
            fields.insert("nodePodsAccessible".to_owned(), Value::Bool(true));
        }
        Value::Object(fields)
    }
}

/// The record of a pulled image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PulledRecord {
    /// The runtime's image id.
    pub image_ref: String,
    /// By the names in pods, without tag and digest.
    by_repository: Vec<(String, Access)>,
}

impl PulledRecord {
    /// A record without credentials: only that the image was pulled.
    pub fn new(image_ref: &str) -> Self {
        Self { image_ref: image_ref.to_owned(), by_repository: Vec::new() }
    }

    /// The access recorded for that name.
    pub fn access(&self, repository: &str) -> Option<&Access> {
        self.by_repository.iter().find(|(name, _)| name == repository).map(|(_, access)| access)
    }

    /// Merges the access from a pull by that name; false when nothing is new.
    pub fn add(&mut self, repository: &str, by: Access) -> bool {
        if let Some((_, access)) = self.by_repository.iter_mut().find(|(name, _)| name == repository) {
            return access.merge(by);
        }
        let has_room = self.by_repository.len() < PULL_RECORD_REPOSITORIES_MAX;
        if has_room {
            self.by_repository.push((repository.to_owned(), by));
        }
        has_room
    }

    /// Parses a record; `None` for anything else.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let record: Value = serde_json::from_slice(bytes).ok()?;
        (record["kind"] == "ImagePulledRecord").then_some(())?;
        let image_ref = record["imageRef"].as_str()?.to_owned();
        let by_repository = match &record["credentialMapping"] {
            Value::Object(all) => {
                all.iter().map(|(name, access)| (name.clone(), Access::of(access))).collect()
            }
            _ => Vec::new(),
        };
        Some(Self { image_ref, by_repository })
    }

    /// The record in the kubelet's format; `updated` in RFC 3339.
    pub fn to_bytes(&self, updated: &str) -> Vec<u8> {
        let all: Map<String, Value> =
            self.by_repository.iter().map(|(name, access)| (name.clone(), access.to_json())).collect();
        let record = json!({
            "kind": "ImagePulledRecord",
            "apiVersion": API_VERSION,
            "lastUpdatedTime": updated,
            "imageRef": self.image_ref,
            "credentialMapping": all,
        });
        record.to_string().into_bytes()
    }
}

/// The intent record of a pull in progress (`ImagePullIntent`), in the kubelet's format.
pub fn intent(image: &str) -> Vec<u8> {
    json!({"kind": "ImagePullIntent", "apiVersion": API_VERSION, "image": image}).to_string().into_bytes()
}

/// The image in an intent record.
pub fn intended(bytes: &[u8]) -> Option<String> {
    let intent: Value = serde_json::from_slice(bytes).ok()?;
    (intent["kind"] == "ImagePullIntent").then_some(())?;
    Some(intent["image"].as_str()?.to_owned())
}

/// `hashAuthConfig`: SHA-256 of credentials in Go's JSON format.
pub fn credential_hash(username: &str, password: &str, email: &str) -> String {
    let fields = [("username", username), ("password", password), ("email", email)];
    let fields: Vec<String> = fields
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| format!("\"{name}\":{}", Value::from(value)))
        .collect();
    // Go's JSON escapes HTML characters.
    let text = format!("{{{}}}", fields.join(","))
        .replace('&', "\\u0026")
        .replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('\u{2028}', "\\u2028")
        .replace('\u{2029}', "\\u2029");
    hex(&Sha256::digest(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(name: &str, hash: &str) -> PullSecret {
        PullSecret {
            uid: format!("uid-{name}"),
            namespace: "ns".to_owned(),
            name: name.to_owned(),
            credential_hash: hash.to_owned(),
        }
    }

    #[test]
    fn logins_are_hashed_as_go_does() {
        // sha256 of {"username":"u","password":"p"}
        assert_eq!(
            credential_hash("u", "p", ""),
            hex(&Sha256::digest(br#"{"username":"u","password":"p"}"#))
        );
        assert_eq!(
            credential_hash("u", "<&>", "a@b"),
            hex(&Sha256::digest(br#"{"username":"u","password":"\u003c\u0026\u003e","email":"a@b"}"#))
        );
        assert_eq!(credential_hash("", "", ""), hex(&Sha256::digest(b"{}")));
    }

    #[test]
    fn a_record_is_in_the_kubelets_format() {
        let theirs = br#"{"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1",
            "lastUpdatedTime":"2026-01-01T00:00:00Z","imageRef":"sha256:1","credentialMapping":{
            "r.io/a":{"kubernetesSecrets":[{"uid":"uid-s","namespace":"ns","name":"s","credentialHash":"h"}],
                      "kubernetesServiceAccounts":[{"uid":"u","namespace":"ns","name":"default"}]},
            "r.io/b":{"nodePodsAccessible":true}}}"#;
        let record = PulledRecord::parse(theirs).unwrap();
        assert_eq!(record.image_ref, "sha256:1");
        assert_eq!(record.access("r.io/a").unwrap().secrets, [secret("s", "h")]);
        assert!(record.access("r.io/b").unwrap().node_pods);
        let (read, written): (Value, Value) = (
            serde_json::from_slice(theirs).unwrap(),
            serde_json::from_slice(&record.to_bytes("2026-01-01T00:00:00Z")).unwrap(),
        );
        assert_eq!(read, written);
        for none in [&b"{}"[..], b"", b"{\"kind\":\"ImagePullIntent\",\"image\":\"a\"}"] {
            assert_eq!(PulledRecord::parse(none), None);
        }
        assert_eq!(intended(&intent("r.io/a:1")).as_deref(), Some("r.io/a:1"));
        assert_eq!(intended(theirs), None);
    }

    #[test]
    fn a_credential_gives_access_by_its_digest_or_its_secret() {
        let access = Access::of_secret(secret("s", "h"));
        for (given, expected) in [
            (secret("s", "h"), Some(true)),
            (secret("other", "h"), Some(false)),
            (secret("s", "new"), Some(false)),
            (secret("other", "new"), None),
        ] {
            let found = access.matching(std::slice::from_ref(&given)).map(|(_, is_known)| is_known);
            assert_eq!(found, expected, "{given:?}");
        }
        // Credentials that could not be hashed are identified by their Secret alone.
        let unhashed = Access::of_secret(secret("s", ""));
        assert!(unhashed.matching(&[secret("other", "")]).is_none());
    }

    #[test]
    fn a_record_gains_credentials_within_its_bounds() {
        let mut record = PulledRecord::new("sha256:1");
        assert!(record.add("a", Access::of_secret(secret("s", "1"))));
        assert!(!record.add("a", Access::of_secret(secret("s", "1"))));
        assert!(record.add("a", Access::of_secret(secret("s", "2"))), "another login of the same Secret");
        assert!(record.add("a", Access::of_secret(secret("r", "1"))));
        let names: Vec<&str> = record.access("a").unwrap().secrets.iter().map(|s| &*s.name).collect();
        assert_eq!(names, ["r", "s"]);
        for n in 0..2 * PULL_RECORD_SECRETS_MAX {
            record.add("a", Access::of_secret(secret(&format!("x{n}"), "1")));
        }
        assert_eq!(record.access("a").unwrap().secrets.len(), PULL_RECORD_SECRETS_MAX);
        assert!(record.add("a", Access::of_node()), "for all from now on");
        assert!(!record.add("a", Access::of_secret(secret("s", "1"))));
        for n in 0..2 * PULL_RECORD_REPOSITORIES_MAX {
            record.add(&format!("b{n}"), Access::of_node());
        }
        assert_eq!(record.by_repository.len(), PULL_RECORD_REPOSITORIES_MAX);
    }
}
