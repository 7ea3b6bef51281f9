//! Which runtime runs the containers: a CRI runtime behind a socket, or smolet itself.
//!
//! ```text
//! |     named (flag, configuration, environment)              ──► that one
//! |     not named: recorded in ROOT_DIR/runtime-kind          ──► that kind
//! |     not recorded: named in crictl.yaml                    ──► that one
//! |                   containerd, CRI-O or k3s is installed   ──► its socket, when it answers
//! |                   none of them                            ──► smolet itself, when it can
//! ```
//!
//! The kind is recorded once a runtime was ready. From then on it changes only when another one is named: a socket that is late at
//! boot, or a runtime that is installed later, changes nothing.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::endpoint::{Candidates, EndpointError, Origin, USUAL_SOCKETS, named};
use crate::filesystem::{is_lost, read_linked, replace};
use crate::limits::RUNTIME_KIND_BYTES_MAX;
use crate::paths::{CRI_SOCKET, K3S_CONTAINERD};

/// The endpoint that names the embedded runtime.
pub const EMBEDDED: &str = "embedded";

/// The file in the state directory.
const FILE: &str = "runtime-kind";
/// Its next version until it is whole.
const BESIDE: &str = "runtime-kind.new";

/// Programs of CRI runtimes, and where they are installed. k3s has a containerd of its own.
const PROGRAMS: [&str; 3] = ["containerd", "crio", K3S];
const K3S: &str = "k3s";
const PROGRAM_DIRS: [&str; 5] = ["/usr/local/bin", "/usr/bin", "/usr/local/sbin", "/usr/sbin", "/bin"];

/// What runs the containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuntimeKind {
    /// A CRI runtime behind a socket.
    Cri,
    /// smolet itself.
    Embedded,
}

impl RuntimeKind {
    /// As recorded.
    fn as_str(self) -> &'static str {
        match self {
            Self::Cri => "cri",
            Self::Embedded => EMBEDDED,
        }
    }

    /// The recorded kind of the state directory; `None` before a runtime was ready, and where a power cut has kept the record from the
    /// disk. I/O, blocking.
    ///
    /// # Errors
    /// One sentence that says how to fix it: the file cannot be read, or names no kind.
    pub fn recorded(root_dir: &Path) -> Result<Option<Self>, String> {
        let path = root_dir.join(FILE);
        let bytes = match read_linked(&path, RUNTIME_KIND_BYTES_MAX) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(format!("{}: {error}", path.display())),
        };
        if is_lost(&bytes) {
            log::info!("{}: has not reached the disk; the runtime is chosen anew", path.display());
            return Ok(None);
        }
        let text = String::from_utf8_lossy(&bytes);
        let known = [Self::Cri, Self::Embedded].into_iter().find(|kind| kind.as_str() == text.trim());
        known.map(Some).ok_or_else(|| {
            format!(
                "{}: {:?} is no kind of runtime: write cri or embedded into it, or name the runtime with --runtime-endpoint",
                path.display(),
                text.trim()
            )
        })
    }

    /// Records the kind, if another one or none is recorded, and waits for the disk: no later start chooses another runtime. I/O, blocking.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn record(self, root_dir: &Path) -> Result<(), String> {
        if Self::recorded(root_dir) == Ok(Some(self)) {
            return Ok(());
        }
        let (path, beside) = (root_dir.join(FILE), root_dir.join(BESIDE));
        let line = format!("{}\n", self.as_str());
        replace(&path, &beside, line.as_bytes()).map_err(|error| format!("{}: {error}", path.display()))
    }
}

/// The runtime to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuntimeChoice {
    /// smolet itself.
    Embedded,
    /// The runtime behind the first of these sockets that answers.
    Sockets(Candidates),
}

impl RuntimeChoice {
    /// Its kind.
    pub fn kind(&self) -> RuntimeKind {
        match self {
            Self::Embedded => RuntimeKind::Embedded,
            Self::Sockets(_) => RuntimeKind::Cri,
        }
    }
}

/// The runtime of a node with this configured endpoint and state directory. I/O, blocking: small local files.
///
/// # Errors
/// One sentence that says how to fix it.
pub fn choose_here(flag: Option<&str>, root_dir: &Path) -> Result<RuntimeChoice, String> {
    choose_beside(flag, root_dir, (Path::new(CRI_SOCKET), false))
}

/// The same of a node whose embedded runtime has its CRI socket there, and which may join a k3s cluster ([`is_installed`]).
///
/// # Errors
/// The same.
pub fn choose_beside(
    flag: Option<&str>,
    root_dir: &Path,
    (own_socket, joins_k3s): (&Path, bool),
) -> Result<RuntimeChoice, String> {
    let named = named(flag);
    let named = named.as_ref().map(|(origin, given)| (*origin, &**given));
    // A damaged record is of no importance where the runtime is named, and is replaced.
    let recorded = if named.is_some_and(|(origin, _)| origin != Origin::Crictl) {
        None
    } else {
        RuntimeKind::recorded(root_dir)?
    };
    choose(named, recorded, || is_installed(joins_k3s), (own_socket, joins_k3s))
        .map_err(|error| error.to_string())
}

/// The choice from what is known. PURE, but for `is_installed`: whether a CRI runtime is installed.
fn choose(
    named: Option<(Origin, &str)>,
    recorded: Option<RuntimeKind>,
    is_installed: impl Fn() -> bool,
    (own_socket, joins_k3s): (&Path, bool),
) -> Result<RuntimeChoice, EndpointError> {
    let kind = match (named, recorded) {
        // crictl's file is no setting of smolet: it does not change the kind, and may name smolet's own socket.
        (Some((_, EMBEDDED)), _) | (Some((Origin::Crictl, _)), Some(RuntimeKind::Embedded)) => {
            RuntimeKind::Embedded
        }
        (Some((origin, given)), _) => {
            let one = Candidates::one(origin, given)?;
            let is_own = one.sockets.iter().any(|socket| socket == own_socket);
            return Ok(if is_own { RuntimeChoice::Embedded } else { RuntimeChoice::Sockets(one) });
        }
        // It ran k3s' containerd before it joined k3s by itself, and that one is gone with `k3s agent`.
        (None, Some(RuntimeKind::Cri)) if joins_k3s && !is_installed() => RuntimeKind::Embedded,
        (None, Some(recorded)) => recorded,
        (None, None) if is_installed() => RuntimeKind::Cri,
        (None, None) => RuntimeKind::Embedded,
    };
    Ok(match kind {
        RuntimeKind::Embedded => RuntimeChoice::Embedded,
        RuntimeKind::Cri => RuntimeChoice::Sockets(Candidates::usual()),
    })
}

/// Whether a CRI runtime is installed: its program or its socket exists. Not k3s' where smolet `joins_k3s`, a k3s cluster in the place of
/// `k3s agent`: its containerd is a child of that one, and what was left of it ends with the boot. Blocking.
pub fn is_installed(joins_k3s: bool) -> bool {
    let programs = PROGRAM_DIRS.iter().flat_map(|dir| PROGRAMS.map(|program| Path::new(dir).join(program)));
    USUAL_SOCKETS.iter().map(PathBuf::from).chain(programs).any(|path| is_there(&path, joins_k3s))
}

fn is_there(path: &Path, joins_k3s: bool) -> bool {
    let is_of_k3s = path.ends_with(K3S) || path == Path::new(K3S_CONTAINERD);
    // `k3s` may be a link to smolet (`smolet agent`).
    let leads_to_smolet =
        || is_of_k3s && path.canonicalize().is_ok_and(|program| program.ends_with("smolet"));
    path.exists() && !(is_of_k3s && joins_k3s) && !leads_to_smolet()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_of_k3s_is_a_runtime_where_it_is_no_link_and_not_replaced() {
        let dir = std::env::temp_dir().join(format!("smolet-choice-{}", std::process::id()));
        for name in ["own", "link", "k3s", "other"] {
            std::fs::create_dir_all(dir.join(name)).unwrap();
        }
        let (smolet, link) = (dir.join("own/smolet"), dir.join("link/k3s"));
        for file in [&smolet, &dir.join("k3s/k3s"), &dir.join("other/containerd")] {
            std::fs::write(file, "").unwrap();
        }
        std::os::unix::fs::symlink(&smolet, &link).unwrap();
        let found = ["link/k3s", "k3s/k3s", "other/containerd", "other/crio"]
            .map(|path| [false, true].map(|joins_k3s| is_there(&dir.join(path), joins_k3s)));
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(found, [[false, false], [true, false], [true, true], [false, false]]);
    }

    #[test]
    fn a_node_keeps_the_kind_of_its_first_start_until_another_is_named() {
        use RuntimeKind::{Cri, Embedded};
        let usual = || RuntimeChoice::Sockets(Candidates::usual());
        let socket = |origin, path: &str| {
            RuntimeChoice::Sockets(Candidates { origin, sockets: vec![PathBuf::from(path)] })
        };
        use Origin::{Crictl, Flag};
        for (named, recorded, installed, chosen) in [
            (None, None, true, usual()),
            (None, None, false, RuntimeChoice::Embedded),
            // What is installed or removed later changes nothing.
            (None, Some(Embedded), true, RuntimeChoice::Embedded),
            (None, Some(Cri), false, usual()),
            (Some((Flag, "embedded")), Some(Cri), true, RuntimeChoice::Embedded),
            (Some((Flag, "unix:///run/a.sock")), Some(Embedded), false, socket(Flag, "/run/a.sock")),
            (Some((Crictl, "unix:///run/a.sock")), None, false, socket(Crictl, "/run/a.sock")),
            (Some((Crictl, "unix:///run/a.sock")), Some(Cri), false, socket(Crictl, "/run/a.sock")),
            (Some((Crictl, "unix:///run/a.sock")), Some(Embedded), true, RuntimeChoice::Embedded),
            (Some((Crictl, "unix:///run/smolet/cri.sock")), None, true, RuntimeChoice::Embedded),
        ] {
            let found = choose(named, recorded, || installed, (Path::new(CRI_SOCKET), false));
            assert_eq!(found, Ok(chosen), "{named:?} {recorded:?} {installed}");
        }
        for (recorded, installed, chosen) in [
            (Cri, false, RuntimeChoice::Embedded),
            (Cri, true, usual()),
            (Embedded, true, RuntimeChoice::Embedded),
        ] {
            let found = choose(None, Some(recorded), || installed, (Path::new(CRI_SOCKET), true));
            assert_eq!(found, Ok(chosen), "in a k3s cluster: {recorded:?} {installed}");
        }
        let error = choose(Some((Flag, "tcp://a:1")), None, || true, (Path::new(CRI_SOCKET), false));
        let error = error.unwrap_err().to_string();
        assert!(
            error.starts_with("runtime endpoint \"tcp://a:1\" from --runtime-endpoint is no Unix socket"),
            "{error}"
        );
    }

    #[test]
    fn the_kind_is_recorded_once_and_a_damaged_record_is_an_error() {
        let root = std::env::temp_dir().join(format!("smolet-test-kind-{}", std::process::id()));
        std::fs::create_dir_all(&root).unwrap();
        assert_eq!(RuntimeKind::recorded(&root), Ok(None));
        RuntimeKind::Embedded.record(&root).unwrap();
        assert_eq!(RuntimeKind::recorded(&root), Ok(Some(RuntimeKind::Embedded)));
        assert_eq!(choose_here(None, &root), Ok(RuntimeChoice::Embedded));
        RuntimeKind::Cri.record(&root).unwrap();
        assert_eq!(RuntimeKind::recorded(&root), Ok(Some(RuntimeKind::Cri)));
        std::fs::write(root.join(FILE), "docker\n").unwrap();
        let error = RuntimeKind::recorded(&root).unwrap_err();
        assert!(error.contains("\"docker\" is no kind of runtime: write cri or embedded"), "{error}");
        // As a power cut leaves it: empty, or with the length and without the bytes.
        for torn in [&b""[..], &[0; 9]] {
            std::fs::write(root.join(FILE), torn).unwrap();
            assert_eq!(RuntimeKind::recorded(&root), Ok(None));
        }
        RuntimeKind::Cri.record(&root).unwrap();
        assert_eq!(RuntimeKind::recorded(&root), Ok(Some(RuntimeKind::Cri)));
        std::fs::write(root.join(FILE), "docker\n").unwrap();
        // Where the runtime is named the record is not read, and is replaced.
        assert_eq!(choose_here(Some("embedded"), &root), Ok(RuntimeChoice::Embedded));
        RuntimeKind::Embedded.record(&root).unwrap();
        assert_eq!(RuntimeKind::recorded(&root), Ok(Some(RuntimeKind::Embedded)));
        std::fs::remove_dir_all(&root).unwrap();
    }
}
