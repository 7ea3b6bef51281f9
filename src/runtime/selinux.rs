//! `SELinux` of the node: the labels of sandboxes, and those of the files that containers mount. I/O.
//! Follows opencontainers/selinux, as containerd uses it with `enable_selinux`.

use std::ffi::CStr;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::fs::{Stat, XattrFlags, lgetxattr, lsetxattr};
use rustix::io::Errno;

use super::context::{Context, failed, invalid};
use super::settings::Settings;
use crate::cri::RuntimeResult;
use crate::filesystem::read_start;
use crate::limits::{REMOVAL_PIECE, SELINUX_FILE_BYTES_MAX, SELINUX_LABEL_BYTES_MAX, SELINUX_RELABEL_TIME};
use crate::model::PodUid;
use crate::oci::{SelinuxLabels, value_of};
use crate::tree::{Walk, WalkResult};

/// Where the kernel shows its policy.
const KERNEL: &str = "/sys/fs/selinux";
/// The label of this process; `kernel` as long as no policy is loaded.
const OWN_LABEL: &str = "/proc/self/attr/current";
/// Policies of the node, and which one is used.
const POLICIES: &str = "/etc/selinux";
/// Labels that count before those of the policy.
const CONTAINERS: &str = "/usr/share/containers/selinux/contexts";
/// The attribute with a file's label.
const ATTRIBUTE: &str = "security.selinux";
/// The system's own: nobody gives them to a container (`rchcon`).
const SYSTEM: [&str; 24] = [
    "/",
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/etc/passwd",
    "/etc/pki",
    "/etc/shadow",
    "/home",
    "/lib",
    "/lib64",
    "/media",
    "/opt",
    "/proc",
    "/root",
    "/run",
    "/sbin",
    "/srv",
    "/sys",
    "/tmp",
    "/usr",
    "/var",
    "/var/lib",
    "/var/log",
];

/// Whether the kernel has a policy. Blocking.
pub fn is_enabled() -> bool {
    let own = || read_start(Path::new(OWN_LABEL), SELINUX_LABEL_BYTES_MAX).unwrap_or_default();
    Path::new(KERNEL).join("enforce").exists() && !own().starts_with(b"kernel")
}

/// The condition of a runtime whose containers have not the labels that the node has for them; another one has no such condition.
pub const CONDITION: &str = "SELinuxLabels";

/// What keeps containers from having the labels of the node's policy; `None`: they have them, or there is no policy. Blocking.
pub(super) fn fault(settings: &Settings) -> Option<String> {
    if !is_enabled() {
        None
    } else if settings.selinux {
        labels_of_policy().err()
    } else {
        Some(
            "SELinux is enabled on this host, and --selinux is not given: containers get no labels"
                .to_owned(),
        )
    }
}

/// The labels of containers in the node's policy.
fn labels_of_policy() -> Result<SelinuxLabels, String> {
    let read = |path: &Path| {
        let text = read_start(path, SELINUX_FILE_BYTES_MAX)?;
        io::Result::Ok(String::from_utf8_lossy(&text).into_owned())
    };
    let policies = Path::new(POLICIES);
    let policy =
        value_of(&read(&policies.join("config")).unwrap_or_default(), "SELINUXTYPE").unwrap_or_default();
    let of_policy = policies.join(policy).join("contexts/lxc_contexts");
    let text = read(Path::new(CONTAINERS)).or_else(|_| read(&of_policy)).unwrap_or_default();
    SelinuxLabels::of_policy(&text).ok_or_else(|| {
        format!(
            "{}: it names no labels for containers (process, file); install the distribution's policy for them (container-selinux)",
            of_policy.display()
        )
    })
}

/// Those of the node's policy; `None`: containers get none.
///
/// # Errors
/// The policy has none for containers.
pub(super) async fn of_node(context: &Context) -> RuntimeResult<Option<SelinuxLabels>> {
    if !context.settings.selinux {
        return Ok(None);
    }
    let labels = context.blocking(|| is_enabled().then(labels_of_policy).transpose()).await;
    labels.map_err(failed)
}

/// Whether the policy knows these labels.
///
/// # Errors
/// It does not.
pub(super) async fn check(context: &Context, labels: &SelinuxLabels) -> RuntimeResult<()> {
    let labels = [labels.process.clone(), labels.mount.clone()];
    let check = move || {
        let asked = Path::new(KERNEL).join("context");
        labels.iter().filter(|label| !label.is_empty()).try_for_each(|label| {
            std::fs::write(&asked, label).map_err(|error| match error.kind() {
                io::ErrorKind::InvalidInput => {
                    invalid(format!("seLinuxOptions: the node's policy does not know the label {label}"))
                }
                _ => failed(format!(
                    "{}: {error}; is smolet in the domain of container runtimes?",
                    asked.display()
                )),
            })
        })
    };
    context.blocking(check).await
}

/// Gives a mount's files this label: a file, or a directory with all in it. Those that have it already are not written to.
///
/// # Errors
/// It is the system's; the file system's. One that keeps no labels is no error.
pub(super) async fn relabel(context: &Context, pod: &str, path: &str, label: &str) -> RuntimeResult<()> {
    if label.is_empty() {
        return Ok(());
    }
    if SYSTEM.contains(&path) {
        return Err(invalid(format!(
            "mount of {path}: the SELinux labels of the system's files are not changed"
        )));
    }
    let refused = |why: String| failed(format!("mount of {path}: SELinux label {label}: {why}"));
    let (pod, at) = (PodUid::from(pod), PathBuf::from(path));
    let mut relabelling = Relabelling { path: at.clone(), label: label.into(), walk: None };
    let until = context.clock.now().mono + SELINUX_RELABEL_TIME;
    while context.clock.now().mono < until {
        // In pieces: others wait for a turn.
        let piece = move || relabelling.go_on();
        let done = context.blocking.run_outside_of(&pod, &at, piece).await;
        match done.map_err(|stuck| refused(stuck.to_string()))? {
            Ok(Some(left)) => relabelling = left,
            Ok(None) => return Ok(()),
            Err(error) => return Err(refused(error.to_string())),
        }
    }
    let minutes = SELINUX_RELABEL_TIME.as_secs() / 60;
    Err(refused(format!(
        "not all of its files have it after {minutes} minutes; it goes on with the next try"
    )))
}

/// The same of a root file system, which has the label already where it is an overlay.
///
/// # Errors
/// As [`relabel`].
pub(super) async fn label_copy(context: &Context, pod: &str, root: &Path, label: &str) -> RuntimeResult<()> {
    if label.is_empty() {
        return Ok(());
    }
    let (path, wanted) = (root.to_owned(), label.to_owned());
    if context.blocking(move || has(&path, &wanted)).await {
        return Ok(());
    }
    relabel(context, pod, &root.display().to_string(), label).await
}

/// A tree whose files get a label.
struct Relabelling {
    path: PathBuf,
    label: Box<str>,
    /// Begun.
    walk: Option<Walk>,
}

impl Relabelling {
    /// Works for a while. `None`: everything has the label. Blocking.
    fn go_on(mut self) -> io::Result<Option<Self>> {
        let mut walk = if let Some(walk) = self.walk.take() {
            walk
        } else {
            let is_directory = std::fs::symlink_metadata(&self.path)?.is_dir();
            if !set(&self.path, &self.label)? || !is_directory {
                return Ok(None);
            }
            Walk::new(&self.path, false)?
        };
        let (began, mut result) = (Instant::now(), Ok(true));
        let walked = walk.go_on_at(&mut |dir: &OwnedFd, name: &CStr, _: &Stat| {
            let name = Path::new(std::ffi::OsStr::from_bytes(name.to_bytes()));
            result =
                set(&Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string()).join(name), &self.label);
            if matches!(result, Ok(true)) && began.elapsed() < REMOVAL_PIECE {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        });
        match (result?, walked) {
            (false, _) | (_, WalkResult::All) => Ok(None),
            (true, WalkResult::Stopped) => Ok(Some(Self { walk: Some(walk), ..self })),
            (true, WalkResult::Cut) => Err(io::Error::other("its directories are being moved; retry")),
        }
    }
}

fn has(path: &Path, label: &str) -> bool {
    let mut there = [0; SELINUX_LABEL_BYTES_MAX];
    let length = lgetxattr(path, ATTRIBUTE, &mut there[..]).unwrap_or_default();
    let there = there.get(..length).unwrap_or_default();
    there.strip_suffix(b"\0").unwrap_or(there) == label.as_bytes()
}

/// Sets the label of a file, which may be a link. False: its file system keeps none.
fn set(path: &Path, label: &str) -> io::Result<bool> {
    if has(path, label) {
        return Ok(true);
    }
    match lsetxattr(path, ATTRIBUTE, label.as_bytes(), XattrFlags::empty()) {
        // It was removed meanwhile.
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::OPNOTSUPP) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_below_a_mount_gets_the_label_and_nothing_beside_it() {
        let root = std::env::temp_dir().join(format!("smolet-selinux-{}", std::process::id()));
        let (mounted, beside) = (root.join("mounted"), root.join("beside"));
        std::fs::create_dir_all(mounted.join("a/b")).unwrap();
        std::fs::create_dir(&beside).unwrap();
        std::fs::write(mounted.join("a/b/file"), "x").unwrap();
        std::os::unix::fs::symlink(&beside, mounted.join("a/link")).unwrap();
        let label_of = |path: &Path| {
            let mut label = [0; SELINUX_LABEL_BYTES_MAX];
            let length = lgetxattr(path, ATTRIBUTE, &mut label[..]).unwrap_or_default();
            String::from_utf8_lossy(&label[..length]).into_owned()
        };
        for label in ["u:object_r:f_t:s0:c1,c2", "u:object_r:f_t:s0:c3,c4"] {
            let mut left = Some(Relabelling { path: mounted.clone(), label: label.into(), walk: None });
            while let Some(relabelling) = left {
                left = relabelling.go_on().unwrap();
            }
            for path in ["", "a", "a/b", "a/b/file", "a/link"] {
                assert_eq!(label_of(&mounted.join(path)), label, "{path}");
            }
        }
        assert_eq!(label_of(&beside), "", "a link is not followed");
        let file = Relabelling { path: mounted.join("a/b/file"), label: "l".into(), walk: None };
        assert!(file.go_on().unwrap().is_none());
        assert_eq!(label_of(&mounted.join("a/b/file")), "l");
        let missing = Relabelling { path: root.join("missing"), label: "l".into(), walk: None };
        assert!(missing.go_on().is_err());
        std::fs::remove_dir_all(&root).unwrap();
    }
}
