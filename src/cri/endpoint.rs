//! Finds the container runtime: which sockets to try, whether a CRI v1 runtime answers there, and if not, one clear sentence
//! that says how to fix it.

use std::fmt;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::{GrpcRuntime, Runtime, RuntimeError, RuntimeVersion};
use crate::clock::SharedClock;
use crate::executor::Executor;
use crate::filesystem::read_start;
use crate::limits::{CRICTL_CONFIG_BYTES_MAX, ENDPOINT_CHECK_TIMEOUT, SOCKET_PATH_BYTES_MAX};
use crate::paths;
use crate::stream::Socket;

/// Sockets of known runtimes, in the order in which they are tried when none is configured.
pub const USUAL_SOCKETS: [&str; 3] =
    ["/run/containerd/containerd.sock", paths::K3S_CONTAINERD, "/run/crio/crio.sock"];

/// crictl's configuration file, which has the runtime's socket too.
pub const CRICTL_CONFIG: &str = "/etc/crictl.yaml";

/// The environment variable with the runtime's socket, shared with crictl.
pub const ENDPOINT_VARIABLE: &str = "CONTAINER_RUNTIME_ENDPOINT";

/// Source of the socket's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// `--runtime-endpoint` or `containerRuntimeEndpoint`.
    Flag,
    /// [`ENDPOINT_VARIABLE`].
    Environment,
    /// [`CRICTL_CONFIG`].
    Crictl,
    /// Not configured: one of [`USUAL_SOCKETS`].
    Usual,
    /// `--drain-runtime`: the runtime that the node leaves.
    Drain,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Flag => "--runtime-endpoint",
            Self::Environment => ENDPOINT_VARIABLE,
            Self::Crictl => CRICTL_CONFIG,
            Self::Usual => "the usual sockets",
            Self::Drain => "--drain-runtime",
        })
    }
}

/// The sockets to try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidates {
    /// Source of the paths.
    pub origin: Origin,
    /// In order; a single one if configured.
    pub sockets: Vec<PathBuf>,
}

/// A runtime that answered.
pub struct ConnectedRuntime {
    /// Its client, connected already.
    pub runtime: GrpcRuntime,
    /// CRI `VersionResponse`.
    pub version: RuntimeVersion,
    /// Source of the socket's path.
    pub origin: Origin,
}

/// Why there is no usable runtime. The text is one sentence that says how to fix it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndpointError {
    /// The configured endpoint is invalid.
    Invalid {
        /// Its source.
        origin: Origin,
        /// The configured value.
        given: String,
        /// The error.
        why: &'static str,
    },
    /// No file there.
    Missing(PathBuf),
    /// The path is not a socket.
    NotASocket(PathBuf),
    /// This user has no permission to connect.
    Denied(PathBuf),
    /// A socket on which no process listens.
    Refused(PathBuf),
    /// Connected, but no response in time.
    Silent(PathBuf),
    /// The server does not speak gRPC.
    NotGrpc(PathBuf),
    /// containerd without its CRI plugin.
    CriDisabled(PathBuf),
    /// A CRI version before v1.
    CriTooOld(PathBuf),
    /// A gRPC server without the CRI.
    NotCri(PathBuf),
    /// A runtime that reports that it cannot run pods now.
    NotReady {
        /// `RuntimeReady` or `NetworkReady`.
        condition: Box<str>,
        /// The runtime's reason and message.
        why: String,
    },
    /// Any other error, in the runtime's wording.
    Failed(PathBuf, String),
    /// No socket is configured and none of the usual ones works; the error of each.
    NoneAnswers(Vec<EndpointError>),
}

impl fmt::Display for EndpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid { origin, given, why } => {
                write!(
                    f,
                    "runtime endpoint {given:?} from {origin} {why}: use unix:///run/containerd/containerd.sock"
                )
            }
            Self::Missing(at) => write!(
                f,
                "there is no runtime socket {}: start the container runtime (systemctl start {}) or name \
                 its socket with --runtime-endpoint",
                at.display(),
                service(at)
            ),
            Self::NotASocket(at) => {
                write!(f, "{} is no socket: name the runtime's socket with --runtime-endpoint", at.display())
            }
            Self::Denied(at) => write!(
                f,
                "permission denied on the runtime socket {}: run as root, or as a member of the group that owns it",
                at.display()
            ),
            Self::Refused(at) => write!(
                f,
                "nobody listens on the runtime socket {}: start or restart the container runtime (systemctl restart {})",
                at.display(),
                service(at)
            ),
            Self::Silent(at) => write!(
                f,
                "the runtime at {} gives no answer within {} s: see its log (journalctl -u {}) and restart it",
                at.display(),
                ENDPOINT_CHECK_TIMEOUT.as_secs(),
                service(at)
            ),
            Self::NotGrpc(at) => write!(
                f,
                "whatever listens on {} speaks no gRPC: name the runtime's CRI socket with --runtime-endpoint",
                at.display()
            ),
            Self::CriDisabled(at) => write!(
                f,
                "containerd's CRI plugin is disabled at {}: remove \"cri\" from disabled_plugins in \
                 /etc/containerd/config.toml and restart containerd",
                at.display()
            ),
            Self::CriTooOld(at) => write!(
                f,
                "the runtime at {} has only CRI v1alpha2: update it (containerd 1.6, CRI-O 1.20 or later)",
                at.display()
            ),
            Self::NotCri(at) => write!(
                f,
                "the server at {} has no CRI v1 runtime service: name the runtime's CRI socket with --runtime-endpoint",
                at.display()
            ),
            Self::NotReady { condition, why } => write_not_ready(f, condition, why),
            Self::Failed(at, why) => {
                write!(
                    f,
                    "the runtime at {} failed the first call ({why}): see the runtime's log",
                    at.display()
                )
            }
            Self::NoneAnswers(errors) => write_none_answers(f, errors),
        }
    }
}

/// systemd's unit of the runtime with that socket. k3s runs its containerd itself.
fn service(socket: &Path) -> &'static str {
    if socket.ends_with("crio.sock") {
        "crio"
    } else if socket == Path::new(paths::K3S_CONTAINERD) {
        "k3s"
    } else {
        "containerd"
    }
}

/// The runtime answers, and reports this condition as false.
fn write_not_ready(f: &mut fmt::Formatter<'_>, condition: &str, why: &str) -> fmt::Result {
    if condition == "NetworkReady" {
        return write!(
            f,
            "the runtime's pod network is not ready ({why}): put a CNI configuration into /etc/cni/net.d"
        );
    }
    write!(f, "the runtime is not ready: {condition} does not hold ({why}): see the runtime's log")
}

/// No usual socket works: each with its error in short.
fn write_none_answers(f: &mut fmt::Formatter<'_>, errors: &[EndpointError]) -> fmt::Result {
    let tried: Vec<_> = errors.iter().map(EndpointError::short).collect();
    write!(
        f,
        "no container runtime answers ({}): install and start containerd or CRI-O, or name its socket with \
         --runtime-endpoint",
        tried.join(", ")
    )
}

impl std::error::Error for EndpointError {}

impl EndpointError {
    /// True when the runtime works, but not its pod network.
    pub fn is_network(&self) -> bool {
        matches!(self, Self::NotReady { condition, .. } if &**condition == "NetworkReady")
    }

    /// A short form with the path, for a list; the whole sentence where the fix matters.
    fn short(&self) -> String {
        let (at, what) = match self {
            Self::Missing(at) => (at, "no such socket"),
            Self::NotASocket(at) => (at, "no socket"),
            Self::Denied(at) => (at, "permission denied, run as root"),
            Self::Refused(at) => (at, "nobody listens"),
            Self::Silent(at) => (at, "no answer"),
            Self::NotGrpc(at) => (at, "no gRPC"),
            Self::CriTooOld(at) => (at, "only CRI v1alpha2, update it"),
            Self::NotCri(at) => (at, "no CRI"),
            Self::Invalid { .. }
            | Self::CriDisabled(_)
            | Self::NotReady { .. }
            | Self::Failed(..)
            | Self::NoneAnswers(_) => return self.to_string(),
        };
        format!("{}: {what}", at.display())
    }
}

impl Candidates {
    /// The socket that is named.
    ///
    /// # Errors
    /// It is no Unix socket's path.
    pub fn one(origin: Origin, given: &str) -> Result<Self, EndpointError> {
        let invalid = |why| EndpointError::Invalid { origin, given: given.to_owned(), why };
        Ok(Self { origin, sockets: vec![socket_path(given).map_err(invalid)?] })
    }

    /// The sockets of known runtimes.
    pub fn usual() -> Self {
        Self { origin: Origin::Usual, sockets: USUAL_SOCKETS.map(PathBuf::from).into() }
    }
}

/// The endpoint that is named: the flag's, else the environment's, else crictl's. PURE; the arguments are the configured values.
/// An empty value counts as not set.
fn first_named(
    flag: Option<&str>,
    environment: Option<&str>,
    crictl: Option<&str>,
) -> Option<(Origin, String)> {
    let crictl = crictl.and_then(runtime_endpoint);
    let named =
        [(Origin::Flag, flag), (Origin::Environment, environment), (Origin::Crictl, crictl.as_deref())];
    let given = |given: &str| Some(given.trim().to_owned()).filter(|given| !given.is_empty());
    named.into_iter().find_map(|(origin, text)| Some((origin, text.and_then(given)?)))
}

/// [`first_named`] with the process' environment and [`CRICTL_CONFIG`]. I/O, blocking: a small local file.
pub(super) fn named(flag: Option<&str>) -> Option<(Origin, String)> {
    let environment = std::env::var(ENDPOINT_VARIABLE).ok();
    // A missing or invalid file counts as not configured.
    let crictl = read_start(Path::new(CRICTL_CONFIG), CRICTL_CONFIG_BYTES_MAX).ok();
    let crictl = crictl.and_then(|bytes| String::from_utf8(bytes).ok());
    first_named(flag, environment.as_deref(), crictl.as_deref())
}

/// The first candidate where a CRI v1 runtime answers, with `limits::ENDPOINT_CHECK_TIMEOUT` for each.
pub async fn find(
    candidates: &Candidates,
    executor: &Rc<Executor>,
    clock: &SharedClock,
) -> Result<ConnectedRuntime, EndpointError> {
    let mut errors = Vec::new();
    for socket in &candidates.sockets {
        let runtime = GrpcRuntime::new(socket, executor, clock.clone());
        match check(&runtime).await {
            Ok(version) => return Ok(ConnectedRuntime { runtime, version, origin: candidates.origin }),
            Err(error) => errors.push(error),
        }
    }
    match (candidates.origin, errors.pop()) {
        (Origin::Flag | Origin::Environment | Origin::Crictl | Origin::Drain, Some(error)) => Err(error),
        (_, last) => {
            errors.extend(last);
            Err(EndpointError::NoneAnswers(errors))
        }
    }
}

/// Queries the runtime's version, and finds out why it does not answer.
pub async fn check(runtime: &GrpcRuntime) -> Result<RuntimeVersion, EndpointError> {
    let socket = runtime.socket().to_path_buf();
    match std::fs::metadata(&socket) {
        Ok(file) if file.file_type().is_socket() => {}
        Ok(_) => return Err(EndpointError::NotASocket(socket)),
        Err(error) => return Err(of_io(error.kind(), &socket, &error.to_string())),
    }
    let quick = runtime.clone().with_timeout(ENDPOINT_CHECK_TIMEOUT);
    let error = match quick.version().await {
        Ok(version) => return Ok(version),
        Err(error) => error,
    };
    Err(match error {
        RuntimeError::DeadlineExceeded(_) => EndpointError::Silent(socket),
        RuntimeError::Protocol(_) => EndpointError::NotGrpc(socket),
        RuntimeError::Unimplemented(_) => without_cri(&quick, socket).await,
        RuntimeError::Unavailable(message) => match Socket::<UnixStream>::connect(&socket).await {
            // Accepts and closes the connection: most likely a server of another protocol.
            Ok(_) => EndpointError::NotGrpc(socket),
            Err(error) => of_io(error.kind(), &socket, &message),
        },
        RuntimeError::NotFound(message) | RuntimeError::Failed { message, .. } => {
            EndpointError::Failed(socket, message)
        }
    })
}

/// Checks that the runtime can run pods: its conditions `RuntimeReady` and `NetworkReady`. The kubelet still starts
/// host-network pods while only `NetworkReady` is false.
pub async fn ready(runtime: &GrpcRuntime) -> Result<(), EndpointError> {
    let failed = |error: RuntimeError| EndpointError::Failed(runtime.socket().into(), error.to_string());
    for condition in runtime.status().await.map_err(failed)?.conditions {
        if !condition.status && ["RuntimeReady", "NetworkReady"].contains(&&*condition.kind) {
            let why = [&*condition.reason, &*condition.message].join(": ");
            return Err(EndpointError::NotReady { condition: condition.kind, why });
        }
    }
    Ok(())
}

/// Identifies a server that does not implement `runtime.v1.RuntimeService`.
async fn without_cri(runtime: &GrpcRuntime, socket: PathBuf) -> EndpointError {
    if runtime.answers("/runtime.v1alpha2.RuntimeService/Version").await {
        EndpointError::CriTooOld(socket)
    } else if runtime.answers("/containerd.services.version.v1.Version/Version").await {
        EndpointError::CriDisabled(socket)
    } else {
        EndpointError::NotCri(socket)
    }
}

fn of_io(kind: ErrorKind, socket: &Path, message: &str) -> EndpointError {
    let at = socket.to_path_buf();
    match kind {
        ErrorKind::NotFound => EndpointError::Missing(at),
        ErrorKind::PermissionDenied => EndpointError::Denied(at),
        ErrorKind::ConnectionRefused => EndpointError::Refused(at),
        _ => EndpointError::Failed(at, message.to_owned()),
    }
}

/// `unix:///run/x.sock`, `unix:/run/x.sock` or `/run/x.sock` as a path; otherwise the error.
pub fn socket_path(given: &str) -> Result<PathBuf, &'static str> {
    let path = match given.split_once(':') {
        Some(("unix", rest)) => rest.strip_prefix("//").unwrap_or(rest),
        Some((scheme, _)) if !scheme.contains('/') => return Err("is no Unix socket"),
        Some(_) | None => given,
    };
    let path = Path::new(path);
    if !path.is_absolute() {
        return Err("is no absolute path");
    }
    if path.as_os_str().as_bytes().len() > SOCKET_PATH_BYTES_MAX {
        return Err("is longer than a socket's path may be");
    }
    Ok(path.to_path_buf())
}

/// `runtime-endpoint` in crictl's configuration: one flat YAML map, so reading single lines is enough.
fn runtime_endpoint(config: &str) -> Option<String> {
    let value = config.lines().find_map(|line| line.strip_prefix("runtime-endpoint:"))?.trim();
    let value = match value.chars().next() {
        Some(quote @ ('"' | '\'')) => value[1..].split(quote).next().unwrap_or_default(),
        _ => value.split(" #").next().unwrap_or_default().trim_end(),
    };
    (!value.is_empty()).then(|| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_uris_or_paths() {
        for (given, path) in [
            ("unix:///run/containerd/containerd.sock", Ok("/run/containerd/containerd.sock")),
            ("unix:/run/crio/crio.sock", Ok("/run/crio/crio.sock")),
            ("/run/x:y.sock", Ok("/run/x:y.sock")),
            ("tcp://127.0.0.1:1234", Err("is no Unix socket")),
            ("npipe:////./pipe/containerd", Err("is no Unix socket")),
            ("run/containerd.sock", Err("is no absolute path")),
            ("unix://containerd.sock", Err("is no absolute path")),
        ] {
            assert_eq!(socket_path(given), path.map(PathBuf::from), "{given}");
        }
        let long = format!("/{}", "x".repeat(SOCKET_PATH_BYTES_MAX));
        assert_eq!(socket_path(&long), Err("is longer than a socket's path may be"));
    }

    #[test]
    fn crictl_settings_are_read() {
        for (config, endpoint) in [
            ("runtime-endpoint: unix:///run/a.sock\ntimeout: 2\n", Some("unix:///run/a.sock")),
            (
                "image-endpoint: x\nruntime-endpoint: \"unix:///run/a.sock\" # old\n",
                Some("unix:///run/a.sock"),
            ),
            ("runtime-endpoint: 'unix:///run/a.sock'", Some("unix:///run/a.sock")),
            ("runtime-endpoint: unix:///run/a.sock # k3s\n", Some("unix:///run/a.sock")),
            ("runtime-endpoint: \"\"\n", None),
            ("#runtime-endpoint: unix:///run/a.sock\n", None),
            ("", None),
        ] {
            assert_eq!(runtime_endpoint(config).as_deref(), endpoint, "{config}");
        }
    }

    #[test]
    fn the_first_one_named_counts() {
        let crictl = Some("runtime-endpoint: /run/crictl.sock");
        for (flag, environment, crictl, origin, socket) in [
            (Some("/run/f.sock"), Some("/run/e.sock"), crictl, Origin::Flag, "/run/f.sock"),
            (None, Some("unix:///run/e.sock"), crictl, Origin::Environment, "/run/e.sock"),
            (Some(""), Some(" "), crictl, Origin::Crictl, "/run/crictl.sock"),
            (None, None, Some("debug: true"), Origin::Usual, USUAL_SOCKETS[0]),
        ] {
            let candidates = match first_named(flag, environment, crictl) {
                Some((origin, given)) => Candidates::one(origin, &given).unwrap(),
                None => Candidates::usual(),
            };
            assert_eq!((candidates.origin, &*candidates.sockets[0]), (origin, Path::new(socket)));
            assert_eq!(candidates.sockets.len(), if origin == Origin::Usual { 3 } else { 1 });
        }
        let error = Candidates::one(Origin::Environment, "tcp://host:1").unwrap_err().to_string();
        assert_eq!(
            error,
            "runtime endpoint \"tcp://host:1\" from CONTAINER_RUNTIME_ENDPOINT is no Unix socket: use \
             unix:///run/containerd/containerd.sock"
        );
    }

    #[test]
    fn what_connecting_says_is_told_apart() {
        let at = Path::new("/run/x.sock");
        for (kind, sentence) in [
            (ErrorKind::NotFound, "there is no runtime socket /run/x.sock: start"),
            (ErrorKind::PermissionDenied, "permission denied on the runtime socket /run/x.sock: run as root"),
            (
                ErrorKind::ConnectionRefused,
                "nobody listens on the runtime socket /run/x.sock: start or restart",
            ),
            (ErrorKind::Other, "the runtime at /run/x.sock failed the first call (words): see"),
        ] {
            let said = of_io(kind, at, "words").to_string();
            assert!(said.starts_with(sentence), "{said}");
        }
        for (at, unit) in
            [("/run/crio/crio.sock", "crio"), (paths::K3S_CONTAINERD, "k3s"), ("/run/x", "containerd")]
        {
            let said = of_io(ErrorKind::NotFound, Path::new(at), "words").to_string();
            assert!(said.contains(&format!("(systemctl start {unit})")), "{said}");
        }
    }
}
