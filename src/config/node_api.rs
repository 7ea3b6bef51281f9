//! Settings of the node's own API: its address, authentication and authorization.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::kubelet::GoDuration;
use super::{ConfigError, FileSettings, Flags};

/// The kubelet's port.
const PORT: u16 = 10_250;
/// The kubelet's port of `/healthz` alone.
const HEALTHZ_PORT: u16 = 10_248;

/// The directory of `/logs/` (`nodeLogDir`).
const SYSTEM_LOGS: &str = "/var/log";

/// Settings of the node API of a cluster's node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeApi {
    /// Address to listen on.
    pub address: IpAddr,
    /// Port to listen on; 0, which no file can set: any free one.
    pub port: u16,
    /// Its certificate and the key, in PEM; `None`: a self-signed one in the state directory.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// The client certificate authorities, in PEM; `None`: no client is authenticated by a certificate.
    pub client_ca: Option<PathBuf>,
    /// A request without credentials is `system:anonymous` instead of being rejected.
    pub anonymous: bool,
    /// How long a `TokenReview` is cached; `None`: bearer tokens are not accepted.
    pub token_ttl: Option<Duration>,
    /// Authorization mode.
    pub authorization: Authorization,
    /// TLS 1.2 is disabled (`tlsMinVersion`).
    pub tls13_only: bool,
    /// The offered cipher suites of TLS 1.2, by their names; empty: all (`tlsCipherSuites`).
    pub cipher_suites: Vec<String>,
    /// Idle timeout of exec, attach and port-forward connections (`streamingConnectionIdleTimeout`).
    pub stream_idle_max: Duration,
    /// Address of the unauthenticated `/healthz`, without TLS.
    pub healthz: Option<SocketAddr>,
    /// The directory of `/logs/`; `None`: the path is disabled.
    pub system_logs: Option<PathBuf>,
}

/// Authorization mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Authorization {
    /// Every authenticated user may do everything (`AlwaysAllow`).
    Everything,
    /// `SubjectAccessReview`s of the API server (`Webhook`).
    Asked {
        /// How long an allowed decision is cached.
        allowed_ttl: Duration,
        /// How long a denied decision is cached.
        denied_ttl: Duration,
    },
}

/// Flags take precedence over the file, the file over the defaults (`SetDefaults_KubeletConfiguration`,
/// `ValidateKubeletConfiguration`).
pub(super) fn join(flags: &Flags, file: &FileSettings) -> Result<NodeApi, ConfigError> {
    let address = |field: &str, given: Option<&str>, default: Ipv4Addr| match given {
        None => Ok(default.into()),
        Some(text) => text
            .parse::<IpAddr>()
            .map_err(|_| ConfigError(format!("{field}: {text:?}: must be an IP address such as {default}"))),
    };
    let port = |field: &str, given: Option<i32>, default: u16, least: u16| {
        let Some(given) = given else { return Ok(default) };
        let port = u16::try_from(given).ok().filter(|port| *port >= least);
        port.ok_or_else(|| ConfigError(format!("{field}: {given}: must be between {least} and 65535")))
    };
    // Empty is the default in the packages' file.
    let path = |flag: &Option<PathBuf>, field: &str| {
        let given = flag.clone().or_else(|| file.path(field));
        given.filter(|path| !path.as_os_str().is_empty())
    };
    let certificate = certificate(
        path(&flags.tls_cert_file, "tlsCertFile"),
        path(&flags.tls_private_key_file, "tlsPrivateKeyFile"),
    )?;
    let client_ca = path(&flags.client_ca_file, "authentication.x509.clientCAFile");
    if let Some(client_ca) = &client_ca {
        absolute("authentication.x509.clientCAFile", client_ca)?;
    }
    let ttl = |field: &str, default| GoDuration::or(file.time(field), default);
    let token_ttl = (file.bool("authentication.webhook.enabled").unwrap_or(true))
        .then(|| ttl("authentication.webhook.cacheTTL", Duration::from_mins(2)));
    let authorization = match file.text("authorization.mode") {
        None | Some("" | "Webhook") => Authorization::Asked {
            allowed_ttl: ttl("authorization.webhook.cacheAuthorizedTTL", Duration::from_mins(5)),
            denied_ttl: ttl("authorization.webhook.cacheUnauthorizedTTL", Duration::from_secs(30)),
        },
        Some("AlwaysAllow") => Authorization::Everything,
        Some(other) => {
            return Err(ConfigError(format!(
                "authorization.mode: {other:?}: must be Webhook or AlwaysAllow"
            )));
        }
    };
    let healthz_address = address(
        "healthzBindAddress",
        file.text("healthzBindAddress").filter(|text| !text.is_empty()),
        Ipv4Addr::LOCALHOST,
    )?;
    let healthz_port = port("healthzPort", file.int("healthzPort"), HEALTHZ_PORT, 0)?;
    let given = flags.address.as_deref().or(file.text("address").filter(|text| !text.is_empty()));
    let tls13_only = match file.text("tlsMinVersion") {
        None | Some("" | "VersionTLS12") => false,
        Some("VersionTLS13") => true,
        Some(other) => {
            return Err(ConfigError(format!(
                "tlsMinVersion: {other:?}: must be VersionTLS12 or VersionTLS13; older versions are not supported"
            )));
        }
    };
    Ok(NodeApi {
        tls13_only,
        cipher_suites: cipher_suites(file.texts("tlsCipherSuites"))?,
        stream_idle_max: ttl("streamingConnectionIdleTimeout", Duration::from_hours(4)),
        address: address("address", given, Ipv4Addr::UNSPECIFIED)?,
        port: port("port", flags.port.or(file.int("port")), PORT, 1)?,
        certificate,
        client_ca,
        anonymous: file.bool("authentication.anonymous.enabled").unwrap_or(false),
        token_ttl,
        authorization,
        system_logs: file.bool("enableSystemLogHandler").unwrap_or(true).then(|| SYSTEM_LOGS.into()),
        healthz: (healthz_port > 0).then(|| SocketAddr::new(healthz_address, healthz_port)),
    })
}

fn certificate(
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
) -> Result<Option<(PathBuf, PathBuf)>, ConfigError> {
    match (certificate, key) {
        (Some(certificate), Some(key)) => {
            absolute("tlsCertFile", &certificate)?;
            absolute("tlsPrivateKeyFile", &key)?;
            Ok(Some((certificate, key)))
        }
        (None, None) => Ok(None),
        (Some(_), None) | (None, Some(_)) => Err(ConfigError(
            "tlsCertFile and tlsPrivateKeyFile: a certificate and its key are needed both, or neither"
                .to_owned(),
        )),
    }
}

/// The cipher suites of rustls. Those of TLS 1.3 are offered with it, named or not.
const SUITES: [&str; 11] = [
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
];
/// Further suites of the kubelet (`TLSCipherPossibleValues`): without AEAD or without forward secrecy.
const OTHER_SUITES: [&str; 16] = [
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_RSA_WITH_RC4_128_SHA",
];

/// Checks that the kubelet accepts the names (`TLSCipherSuites`) and that at least one can be offered here.
fn cipher_suites(names: Vec<String>) -> Result<Vec<String>, ConfigError> {
    let is_offered = |name: &&String| SUITES.contains(&name.as_str());
    let is_known = |name: &&String| is_offered(name) || OTHER_SUITES.contains(&name.as_str());
    let refused = match names.iter().find(|name| !is_known(name)) {
        Some(other) => Some((other, "is no suite that the kubelet knows; must be of")),
        None if names.iter().any(|name| is_offered(&name)) => None,
        None => names.first().map(|first| (first, "is not offered, and no other is named; name one of")),
    };
    match refused {
        None => Ok(names),
        Some((name, why)) => {
            Err(ConfigError(format!("tlsCipherSuites: {name:?}: {why} {}", SUITES.join(", "))))
        }
    }
}

fn absolute(field: &str, path: &Path) -> Result<(), ConfigError> {
    if path.is_absolute() {
        return Ok(());
    }
    Err(ConfigError(format!("{field}: {}: must be an absolute path", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(flags: &Flags, text: &str) -> Result<NodeApi, String> {
        let text = format!("kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n{text}");
        let file = FileSettings::parse(text.as_bytes())?;
        join(flags, &file).map_err(|error| error.0)
    }

    #[test]
    fn the_defaults_are_the_kubelets_configurations() {
        let api = joined(&Flags::default(), "").unwrap();
        assert_eq!((api.address.to_string().as_str(), api.port), ("0.0.0.0", 10_250));
        assert_eq!((api.anonymous, api.token_ttl), (false, Some(Duration::from_mins(2))));
        let (allowed_ttl, denied_ttl) = (Duration::from_mins(5), Duration::from_secs(30));
        assert_eq!(api.authorization, Authorization::Asked { allowed_ttl, denied_ttl });
        assert_eq!(api.healthz.map(|at| at.to_string()).as_deref(), Some("127.0.0.1:10248"));
        assert_eq!((api.certificate, api.client_ca), (None, None));
        assert_eq!(api.stream_idle_max, Duration::from_hours(4));
    }

    #[test]
    fn flags_come_before_the_file() {
        let flags = Flags {
            address: Some("10.0.0.2".to_owned()),
            port: Some(10_350),
            client_ca_file: Some("/flag.crt".into()),
            ..Flags::default()
        };
        let file = "address: 10.0.0.1\nport: 1\nhealthzPort: 0\nreadOnlyPort: 0\ntlsCertFile: /a\ntlsPrivateKeyFile: /b\n\
                    authentication: {x509: {clientCAFile: /file.crt}, webhook: {enabled: false}, anonymous: {enabled: true}}\n\
                    authorization: {mode: AlwaysAllow}\n";
        let api = joined(&flags, file).unwrap();
        assert_eq!((api.address.to_string().as_str(), api.port), ("10.0.0.2", 10_350));
        assert_eq!(api.client_ca, Some("/flag.crt".into()));
        assert_eq!(api.certificate, Some(("/a".into(), "/b".into())));
        assert_eq!((api.anonymous, api.token_ttl, api.healthz), (true, None, None));
        assert_eq!(api.authorization, Authorization::Everything);
    }

    #[test]
    fn suites_are_those_that_the_kubelet_knows() {
        assert_eq!(
            SUITES.len() + OTHER_SUITES.len(),
            27,
            "Go's CipherSuites and InsecureCipherSuites, and two old names"
        );
        let with = |names: &str| joined(&Flags::default(), &format!("tlsCipherSuites: [{names}]")).unwrap();
        for name in SUITES {
            assert_eq!(with(name).cipher_suites, [name]);
            for other in OTHER_SUITES {
                assert_eq!(with(&format!("{other}, {name}")).cipher_suites.len(), 2);
            }
        }
        assert_eq!(with("").cipher_suites, [""; 0]);
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        for (text, why) in [
            ("port: 0", "port: 0: must be between 1 and 65535"),
            ("port: 65536", "port: 65536"),
            ("healthzPort: -1", "healthzPort: -1: must be between 0 and 65535"),
            ("address: gw", "address: \"gw\": must be an IP address such as 0.0.0.0"),
            ("tlsCertFile: /a", "tlsCertFile and tlsPrivateKeyFile"),
            ("tlsCertFile: a\ntlsPrivateKeyFile: b", "tlsCertFile: a: must be an absolute path"),
            ("authentication: {x509: {clientCAFile: a}}", "clientCAFile: a: must be an absolute path"),
            ("authentication: {x509: {other: a}}", "authentication.x509.other"),
            ("authorization: {mode: RBAC}", "authorization.mode: \"RBAC\": must be Webhook or AlwaysAllow"),
            ("readOnlyPort: 10255", "readOnlyPort: 10255: must be 0"),
            (
                "tlsCipherSuites: [AES]",
                "tlsCipherSuites: \"AES\": is no suite that the kubelet knows; must be of TLS_AES_",
            ),
            (
                "tlsCipherSuites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, TLS_RSA_WITH_AES_128_GCM_SHA512]",
                "tlsCipherSuites: \"TLS_RSA_WITH_AES_128_GCM_SHA512\": is no suite",
            ),
            (
                "tlsCipherSuites: [TLS_RSA_WITH_RC4_128_SHA, TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA]",
                "tlsCipherSuites: \"TLS_RSA_WITH_RC4_128_SHA\": is not offered, and no other is named",
            ),
        ] {
            let refused = joined(&Flags::default(), text).unwrap_err();
            assert!(refused.contains(why), "{text}: {refused}");
        }
    }
}
