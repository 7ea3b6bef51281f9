//! The node's certificates: the signing request, its approval or denial, and the time of renewal (client-go `certificate`). PURE.

use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use serde_json::{Value, json};

use crate::decode::Node;
use crate::kube::{Resource, object_path};
use crate::limits::{CERTIFICATE_CHECK_PERIOD, KUBE_MESSAGE_BYTES_MAX};
use crate::model::Wall;
use crate::text::start_of;
use crate::x509::{self, Validity};

/// The use of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Client certificate for the API server.
    Client,
    /// Serving certificate of the node's own API.
    Server,
}

impl Purpose {
    /// `spec.signerName`.
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

    /// Prefix of its files' names (the kubelet's names).
    pub(crate) fn files(self) -> &'static str {
        match self {
            Self::Client => "kubelet-client",
            Self::Server => "kubelet-server",
        }
    }
}

/// The user name in the certificate.
pub(crate) fn user(node: &str) -> String {
    format!("system:node:{node}")
}

/// The group of all nodes.
pub(crate) const GROUP: &str = "system:nodes";

/// Name of the request for a certificate of this key, by which the holder of the key finds it again. The end of a public key is
/// as good as random.
pub(crate) fn name(public_key: &[u8]) -> String {
    let end = public_key.get(public_key.len().saturating_sub(16)..).unwrap_or_default();
    format!("node-csr-{}", crate::text::hex(end))
}

/// The path of that request.
pub(crate) fn path(name: &str) -> String {
    object_path(Resource::SIGNING_REQUESTS, "", name)
}

/// The `CertificateSigningRequest` with a PKCS #10 request.
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

/// The state of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Neither signed nor denied; it may be approved.
    Pending,
    /// The certificate, in PEM.
    Issued(Vec<u8>),
    /// Denied or failed: a message with the remedy.
    Refused(String),
}

/// Reads the state from the object. As the kubelet: a denial takes precedence over everything else.
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
            let (reason, message) = (start_of(&reason, 64), start_of(&message, KUBE_MESSAGE_BYTES_MAX));
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
    /// None for this long.
    Later(Duration),
    /// Renew it.
    Now,
    /// It has expired, by this machine's clock.
    Ended,
}

/// When a certificate is renewed: once between 70 and 90 % of its lifetime have passed, a different share for each node and
/// certificate (the kubelet's `jitteryDuration`).
///
/// It depends on the machine's clock, which may be wrong:
/// - before the certificate's start, the time is unknown (no battery, no NTP yet): nothing is renewed, because the server's
///   certificate could not be verified either;
/// - too late, the certificate is renewed too early, which is harmless unless it happens repeatedly: [`least_age`] uses the time
///   since boot, which is never set;
/// - `Ended` is not final: the certificate is still presented to the server, and its clock decides;
/// - it is checked again every `limits::CERTIFICATE_CHECK_PERIOD`, so that a clock that is set meanwhile counts.
pub(crate) fn due(validity: Validity, now: Wall, seed: u64) -> Due {
    let (from, until, now) = (validity.from.0, validity.until.0, now.0);
    if now >= until {
        return Due::Ended;
    }
    if now < from {
        return Due::Later(CERTIFICATE_CHECK_PERIOD);
    }
    let life = until.saturating_sub(from);
    // In thousandths, from 700 to 899.
    let share = 700
        + i64::try_from((seed ^ until.unsigned_abs()).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32).unwrap_or(0)
            % 200;
    let renewed = from.saturating_add(life / 1000 * share);
    match u64::try_from(renewed.saturating_sub(now)) {
        Ok(left) if left > 0 => Due::Later(Duration::from_nanos(left).min(CERTIFICATE_CHECK_PERIOD)),
        Ok(_) | Err(_) => Due::Now,
    }
}

/// Least age at which a certificate is renewed: half of its lifetime, and a day at most.
pub(crate) fn least_age(validity: Validity) -> Duration {
    let life = u64::try_from(validity.until.0.saturating_sub(validity.from.0)).unwrap_or(0);
    Duration::from_nanos(life / 2).min(Duration::from_hours(24))
}

/// The file name of a certificate that was issued at `now` (the kubelet's `kubelet-client-2006-01-02-15-04-05.pem`).
pub(crate) fn file_name(purpose: Purpose, now: Wall) -> String {
    let date = now.to_string().replace(['T', ':'], "-");
    format!("{}-{}{FILE_END}", purpose.files(), date.trim_end_matches('Z'))
}

/// Whether `name` is such a file name.
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

    fn answer_of(status: &Value) -> Answer {
        answer("node-csr-1", &read(json!({"status": status}).to_string().as_bytes()).unwrap())
    }

    #[test]
    fn what_is_said_of_a_request_is_read() {
        let condition = |kind: &str| json!({"type": kind, "status": "True", "reason": "R", "message": "m"});
        assert_eq!(answer_of(&json!({})), Answer::Pending);
        assert_eq!(answer_of(&json!({"conditions": [condition("Approved")]})), Answer::Pending);
        let issued = json!({"conditions": [condition("Approved")], "certificate": "aGk="});
        assert_eq!(answer_of(&issued), Answer::Issued(b"hi".to_vec()));
        for (kind, words) in
            [("Denied", "node-csr-1 was denied (R: m); approve"), ("Failed", "could not be signed (R: m)")]
        {
            let both = json!({"conditions": [condition("Approved"), condition(kind)], "certificate": "aGk="});
            assert!(matches!(answer_of(&both), Answer::Refused(why) if why.contains(words)), "{kind}");
        }
        assert!(
            matches!(answer_of(&json!({"certificate": "?"})), Answer::Refused(why) if why.contains("no base64"))
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
            Due::Later(CERTIFICATE_CHECK_PERIOD),
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
