//! How the agent was called, as a node of k3s tells it (`nodeconfig`): arguments and variables, without their secrets.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// `nodeconfig.OmittedValue`.
const OMITTED: &str = "********";
/// Arguments and variables whose values are secrets (`nodeconfig.isSecret`), also those of other versions of k3s.
const SECRETS: [&str; 17] = [
    "K3S_TOKEN",
    "K3S_DATASTORE_ENDPOINT",
    "K3S_AGENT_TOKEN",
    "K3S_CLUSTER_SECRET",
    "K3S_VPN_AUTH",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "--token",
    "-t",
    "--agent-token",
    "--datastore-endpoint",
    "--cluster-secret",
    "--etcd-s3-access-key",
    "--etcd-s3-secret-key",
    "--etcd-s3-session-token",
    "--vpn-auth",
];

/// How an agent was called, without its secrets, as JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    args: Box<str>,
    env: Box<str>,
    hash: Box<str>,
}

impl Call {
    /// Of this process.
    pub fn of_process() -> Self {
        let args: Vec<String> =
            std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
        let env = std::env::vars_os()
            .map(|(key, value)| (key.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()));
        Self::new(&args, &env.collect::<Vec<_>>())
    }

    /// The arguments, a list.
    pub fn args(&self) -> &str {
        &self.args
    }

    /// The variables, a map.
    pub fn env(&self) -> &str {
        &self.env
    }

    /// SHA-256 of both, in base 32.
    pub fn hash(&self) -> &str {
        &self.hash
    }
}

impl Default for Call {
    fn default() -> Self {
        Self::new(&[], &[])
    }
}

impl Call {
    /// From the arguments behind the program's name, and the variables of which `K3S_` is the beginning.
    pub fn new(args: &[String], env: &[(String, String)]) -> Self {
        let mut shown: Vec<&str> = Vec::new();
        for arg in args {
            match arg.split_once('=') {
                Some((flag, value)) if arg.starts_with("--") => shown.extend([flag, value]),
                _ => shown.push(arg),
            }
        }
        for at in 1..shown.len() {
            if SECRETS.contains(&shown[at - 1]) {
                shown[at] = OMITTED;
            }
        }
        let env: BTreeMap<&str, &str> = env
            .iter()
            .filter(|(key, _)| key.starts_with("K3S_"))
            .map(|(key, value)| {
                let is_secret = SECRETS.contains(&key.as_str());
                (key.as_str(), if is_secret { OMITTED } else { value.as_str() })
            })
            .collect();
        let (args, env) = (as_go(&json!(shown)), as_go(&json!(env)));
        let hash = base32(&Sha256::digest([args.as_bytes(), env.as_bytes()].concat()));
        Self { args: args.into(), env: env.into(), hash: hash.into() }
    }
}

/// As Go's `json.Marshal` writes it, for HTML too: the hash is of this text.
fn as_go(value: &Value) -> String {
    value.to_string().replace('&', "\\u0026").replace('<', "\\u003c").replace('>', "\\u003e")
}

/// With padding (`base32.StdEncoding`).
fn base32(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let mut text = String::new();
    for group in bytes.chunks(5) {
        let bits = (0..5).fold(0_u64, |bits, at| bits << 8 | u64::from(*group.get(at).unwrap_or(&0)));
        let digits = (8 * group.len()).div_ceil(5);
        for at in 0..8 {
            let digit = usize::try_from(bits >> (35 - 5 * at) & 31).unwrap_or_default();
            text.push(if at < digits { char::from(DIGITS[digit]) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agents_call_is_told_without_its_secrets() {
        let strings = |all: &[&str]| all.iter().map(ToString::to_string).collect::<Vec<_>>();
        let args = ["run", "--server=https://h:6443", "--token", "a", "-t", "b", "--token=c=d", "--x", "e=f"];
        let env = [("K3S_URL", "u"), ("K3S_TOKEN", "secret"), ("HOME", "/root"), ("K3S_A", "<&>")];
        let env: Vec<(String, String)> =
            env.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        let call = Call::new(&strings(&args), &env);
        let shown = r#"["run","--server","https://h:6443","--token","********","-t","********","--token","********","--x","e=f"]"#;
        assert_eq!(&*call.args, shown);
        assert_eq!(
            &*call.env, r#"{"K3S_A":"\u003c\u0026\u003e","K3S_TOKEN":"********","K3S_URL":"u"}"#,
            "as Go writes it"
        );
        assert_eq!(call.hash.len(), 56, "52 digits of 256 bits, and 4 of padding");
        assert_ne!(call.hash, Call::default().hash);
        assert_eq!(Call::new(&strings(&["--token"]), &[]).args, "[\"--token\"]".into(), "cut short");
        for flag in SECRETS.iter().filter(|of| of.starts_with('-')) {
            let call =
                Call::new(&strings(&[&format!("{flag}=name=x,joinKey=hunter2"), flag, "hunter2"]), &[]);
            assert!(*flag == "-t" || !call.args.contains("joinKey"), "{}", call.args);
            assert!(!call.args.contains("\"hunter2\""), "{}", call.args);
        }
        for name in SECRETS.iter().filter(|of| of.starts_with("K3S_")) {
            let call = Call::new(&[], &[((*name).to_owned(), "hunter2".to_owned())]);
            assert_eq!(&*call.env, format!("{{\"{name}\":\"********\"}}"));
        }
        assert!(SECRETS.contains(&"--vpn-auth") && SECRETS.contains(&"K3S_VPN_AUTH"));
        // RFC 4648.
        for (bytes, text) in [
            ("", ""),
            ("f", "MY======"),
            ("fo", "MZXQ===="),
            ("foo", "MZXW6==="),
            ("foob", "MZXW6YQ="),
            ("fooba", "MZXW6YTB"),
            ("foobar", "MZXW6YTBOI======"),
        ] {
            assert_eq!(base32(bytes.as_bytes()), text);
        }
    }
}
