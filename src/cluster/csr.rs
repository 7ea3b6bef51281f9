//! The certificate by which a node is known to its cluster: how it is asked for, what the answer says, when it is renewed.
//! PURE.

use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::{Value, json};

use crate::decode::Node;
use crate::events::cut;
use crate::kube::{Resource, object_path};
use crate::limits::{CERTIFICATE_LOOK, KUBE_MESSAGE_BYTES_MAX};
use crate::model::Wall;
use crate::x509::{self, Validity};

/// What a certificate is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The node shows it to the API server.
    Client,
    /// The node's own API has it.
    Server,
}

impl Purpose {
    /// Who signs it.
    fn signer(self) -> &'static str {
        match self {
            Self::Client => "kubernetes.io/kube-apiserver-client-kubelet",
            Self::Server => "kubernetes.io/kubelet-serving",
        }
    }

    fn usage(self) -> &'static str {
        match self {
            Self::Client => "client auth",
            Self::Server => "server auth",
        }
    }

    /// What its files begin with (the kubelet's names).
    pub(crate) fn files(self) -> &'static str {
        match self {
            Self::Client => "kubelet-client",
            Self::Server => "kubelet-server",
        }
    }
}

/// The user that the certificate names.
pub(crate) fn user(node: &str) -> String {
    format!("system:node:{node}")
}

/// The group of all nodes.
pub(crate) const GROUP: &str = "system:nodes";

/// What the request for a certificate of this key is called: whoever has the key finds it again. The end of a public key is
/// as good as random.
pub(crate) fn name(public_key: &[u8]) -> String {
    let end = public_key.get(public_key.len().saturating_sub(16)..).unwrap_or_default();
    format!("node-csr-{}", crate::text::hex(end))
}

/// Where it is.
pub(crate) fn path(name: &str) -> String {
    object_path(Resource::SIGNING_REQUESTS, "", name)
}

/// The `CertificateSigningRequest` around one of PKCS #10.
pub(crate) fn request(purpose: Purpose, name: &str, pkcs10: &[u8]) -> Value {
    let pem = x509::pem("CERTIFICATE REQUEST", pkcs10);
    json!({
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": name},
        "spec": {
            "request": BASE64_STANDARD.encode(pem),
            "signerName": purpose.signer(),
            "usages": ["digital signature", purpose.usage()],
        },
    })
}

/// What the cluster says to the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Nothing yet, or that somebody will sign it.
    Pending,
    /// The certificate, in PEM.
    Issued(Vec<u8>),
    /// There will be none: a sentence with the mend.
    Refused(String),
}

/// Reads it from the object. As the kubelet: a denial counts whatever else is there.
pub(crate) fn answer(name: &str, object: &Node) -> Answer {
    let Some(status) = object.field("status") else { return Answer::Pending };
    let conditions = status.field("conditions").map(Node::items).unwrap_or_default();
    let text =
        |node: &Node, field: &str| node.field(field).and_then(Node::text).unwrap_or_default().to_owned();
    let of_kind = |kind: &str| conditions.iter().find(|condition| text(condition, "type") == kind);
    for (kind, what, mend) in [
        ("Denied", "was denied", "approve the next one: kubectl get csr"),
        ("Failed", "could not be signed", "see to the cluster's signer"),
    ] {
        if let Some(condition) = of_kind(kind) {
            let (reason, message) = (text(condition, "reason"), text(condition, "message"));
            let (reason, message) = (cut(&reason, 64), cut(&message, KUBE_MESSAGE_BYTES_MAX));
            return Answer::Refused(format!(
                "the certificate signing request {name} {what} ({reason}: {message}); {mend}"
            ));
        }
    }
    let certificate = text(status, "certificate");
    if certificate.is_empty() {
        return Answer::Pending;
    }
    match BASE64_STANDARD.decode(&certificate) {
        Ok(pem) => Answer::Issued(pem),
        Err(_) => Answer::Refused(format!(
            "the certificate signing request {name} has a status.certificate that is no base64; see to the cluster's signer"
        )),
    }
}

/// The next action for a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// Nothing for so long.
    Later(Duration),
    /// It is renewed.
    Now,
    /// It has ended, by this machine's clock.
    Ended,
}

/// When a certificate is renewed: once between 70 and 90 % of its life have passed, for each node and each certificate another
/// share (the kubelet's `jitteryDuration`).
///
/// The machine's clock says so, and it may be wrong:
/// - behind the certificate's begin, it knows nothing (no battery, no time from the network yet): nothing is renewed, for the
///   server's own certificate could not be verified either;
/// - ahead, the certificate is renewed too early, which harms nobody as long as it is not done over and over:
///   [`least_age`] goes by the time since the machine's start, which is never set;
/// - `Ended` is not taken for true: the server is asked with the certificate, and its clock decides;
/// - it is looked at again every `limits::CERTIFICATE_LOOK`, so that a clock that is set meanwhile counts.
pub(crate) fn due(validity: Validity, now: Wall, seed: u64) -> Due {
    let (from, until, now) = (validity.from.0, validity.until.0, now.0);
    if now >= until {
        return Due::Ended;
    }
    if now < from {
        return Due::Later(CERTIFICATE_LOOK);
    }
    let life = until.saturating_sub(from);
    // Thousandths, from 700 to 899.
    let share = 700
        + i64::try_from((seed ^ until.unsigned_abs()).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32).unwrap_or(0)
            % 200;
    let renewed = from.saturating_add(life / 1000 * share);
    match u64::try_from(renewed.saturating_sub(now)) {
        Ok(left) if left > 0 => Due::Later(Duration::from_nanos(left).min(CERTIFICATE_LOOK)),
        Ok(_) | Err(_) => Due::Now,
    }
}

/// How long a certificate that was just issued is kept at least: half of its life, and a day at most.
pub(crate) fn least_age(validity: Validity) -> Duration {
    let life = u64::try_from(validity.until.0.saturating_sub(validity.from.0)).unwrap_or(0);
    Duration::from_nanos(life / 2).min(Duration::from_hours(24))
}

/// What the file of a certificate is called that was issued then (the kubelet's `kubelet-client-2006-01-02-15-04-05.pem`).
pub(crate) fn file_name(purpose: Purpose, now: Wall) -> String {
    let date = now.to_string().replace(['T', ':'], "-");
    format!("{}-{}{FILE_END}", purpose.files(), date.trim_end_matches('Z'))
}

/// Whether one is called so.
pub(crate) fn is_file_name(purpose: Purpose, name: &str) -> bool {
    let name = name.strip_prefix(purpose.files()).and_then(|name| name.strip_prefix('-'));
    let date = name.and_then(|name| name.strip_suffix(FILE_END));
    date.is_some_and(|date| date.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-'))
}

const FILE_END: &str = ".pem";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::json::read;

    const SECOND: i64 = 1_000_000_000;

    fn said(status: &Value) -> Answer {
        answer("node-csr-1", &read(json!({"status": status}).to_string().as_bytes()).unwrap())
    }

    #[test]
    fn what_is_said_of_a_request_is_read() {
        let condition = |kind: &str| json!({"type": kind, "status": "True", "reason": "R", "message": "m"});
        assert_eq!(said(&json!({})), Answer::Pending);
        assert_eq!(said(&json!({"conditions": [condition("Approved")]})), Answer::Pending);
        let issued = json!({"conditions": [condition("Approved")], "certificate": "aGk="});
        assert_eq!(said(&issued), Answer::Issued(b"hi".to_vec()));
        for (kind, words) in
            [("Denied", "node-csr-1 was denied (R: m); approve"), ("Failed", "could not be signed (R: m)")]
        {
            let both = json!({"conditions": [condition("Approved"), condition(kind)], "certificate": "aGk="});
            assert!(matches!(said(&both), Answer::Refused(why) if why.contains(words)), "{kind}");
        }
        assert!(
            matches!(said(&json!({"certificate": "?"})), Answer::Refused(why) if why.contains("no base64"))
        );
    }

    #[test]
    fn a_certificate_is_renewed_late_in_its_life_at_another_time_on_each_node() {
        let (from, until) = (Wall(1_000_000 * SECOND), Wall(2_000_000 * SECOND));
        let validity = Validity { from, until };
        let mut times = crate::model::SortedSet::new();
        for seed in 0..500 {
            let first =
                (0..1000).find(|share| due(validity, Wall(from.0 + share * 1000 * SECOND), seed) == Due::Now);
            let first = first.unwrap();
            assert!((700..900).contains(&first), "{seed}: {first}");
            times.insert(first);
        }
        assert!(times.len() > 100, "{}", times.len());
        assert_eq!(
            due(validity, Wall(from.0 - 1), 1),
            Due::Later(CERTIFICATE_LOOK),
            "a clock that is behind"
        );
        assert_eq!(due(validity, until, 1), Due::Ended);
        let short = Validity { from, until: Wall(from.0 + 20 * SECOND) };
        let Due::Later(left) = due(short, from, 1) else { panic!("it is new") };
        assert!((14..=18).contains(&left.as_secs()), "{left:?}");
        assert_eq!(least_age(short), Duration::from_secs(10));
        assert_eq!(least_age(validity), Duration::from_hours(24));
        let wild = Validity { from: Wall(i64::MAX), until: Wall(i64::MIN) };
        assert_eq!(least_age(wild), Duration::ZERO);
        assert_eq!(due(wild, Wall(0), 1), Due::Ended);
    }

    #[test]
    fn names_are_the_kubelets() {
        let at = Wall::of_civil(2026, 1, 2, 3 * 3600 + 4 * 60 + 5);
        let name = file_name(Purpose::Client, at);
        assert_eq!(name, "kubelet-client-2026-01-02-03-04-05.pem");
        let of_client = |name: &str| is_file_name(Purpose::Client, name);
        assert!(of_client(&name) && !is_file_name(Purpose::Server, &name));
        assert!(is_file_name(Purpose::Server, &file_name(Purpose::Server, at)));
        assert!(!of_client("kubelet-client-current.pem") && !of_client("kubelet.crt"));
        assert_eq!(super::name(&[0xab; 20]), format!("node-csr-{}", "ab".repeat(16)));
        assert_eq!(super::name(b""), "node-csr-");
    }

    #[test]
    fn a_request_is_of_the_kind_that_the_signer_takes() {
        let object = request(Purpose::Client, "node-csr-1", b"bytes");
        assert_eq!(object["spec"]["usages"], json!(["digital signature", "client auth"]));
        let of_server = request(Purpose::Server, "node-csr-1", b"bytes");
        assert_eq!(of_server["spec"]["signerName"], "kubernetes.io/kubelet-serving");
        assert_eq!(of_server["spec"]["usages"], json!(["digital signature", "server auth"]));
        let pem = BASE64_STANDARD.decode(object["spec"]["request"].as_str().unwrap()).unwrap();
        assert!(pem.starts_with(b"-----BEGIN CERTIFICATE REQUEST-----\n"));
        assert_eq!(path("x"), "/apis/certificates.k8s.io/v1/certificatesigningrequests/x");
    }
}
