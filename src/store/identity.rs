//! The node's name and its adopted pods: one small minicbor file, written only when it changes.
//!
//! `ROOT_DIR/identity.cbor` holds the node's name from the first start (a later change of the hostname is logged and not
//! followed: every static pod's name and UID depend on it) and the UIDs of adopted pods (running before smolet was installed,
//! without its annotation). The lock on `ROOT_DIR/lock` allows one agent per state directory.
use std::fs::File;
use std::path::{Path, PathBuf};

use minicbor::{Decode, Encode};

use crate::filesystem::read_linked;
use crate::filesystem::replace;
use crate::limits::{ADOPTED_MAX, ADOPTED_UIDS_MAX, IDENTITY_FILE_BYTES_MAX, LOCK_RETRY, LOCK_TRIES};
use crate::model::PodUid;
use crate::model::{SortedMap, SortedSet};

/// The file's content. Fields are numbered; a new one gets a new number.
#[derive(Debug, Default, Encode, Decode)]
struct Record {
    #[n(0)]
    version: u8,
    #[n(1)]
    node_name: String,
    #[n(2)]
    adopted: Vec<String>,
    /// Pairs of UIDs: the one a manifest's pod would get from this agent, and the one it was adopted with.
    #[n(3)]
    #[cbor(default)]
    kept: Vec<(String, String)>,
}

const VERSION: u8 = 1;

/// The locked state directory, and the node's identity.
#[derive(Debug)]
pub struct Identity {
    path: PathBuf,
    node_name: String,
    adopted: SortedSet<PodUid>,
    /// By the UID that the manifest's pod would get from this agent; adopted pods only.
    kept: SortedMap<PodUid, PodUid>,
    // Held for its flock, which the kernel releases when the process ends in any way.
    _lock: File,
}

impl Identity {
    /// Locks the state directory, and reads or creates the node's identity. `given` is the name from the configuration, `host`
    /// the machine's hostname, used at the first start without a configured one.
    ///
    /// # Errors
    /// One sentence that says how to fix it: another agent holds the directory, it cannot be written, the file is damaged, the
    /// name is invalid, or it differs from the stored one.
    pub fn open(root_dir: &Path, given: Option<&str>, host: &str) -> Result<Identity, String> {
        let shown = root_dir.display();
        std::fs::create_dir_all(root_dir)
            .map_err(|e| format!("state directory {shown}: {e}; choose another with --root-dir"))?;
        let lock = lock(root_dir)?;
        let path = root_dir.join("identity.cbor");
        let stored = read(&path)?;
        let node_name = match (&stored, given) {
            (Some(record), Some(given)) if record.node_name != given => {
                return Err(format!(
                    "node name {given:?}: this node's pods are named after {:?} since its first start; start with \
                     --node-name {} or, once no pod of the old name runs, remove {}",
                    record.node_name,
                    record.node_name,
                    path.display()
                ));
            }
            (Some(record), _) => {
                if given.is_none() && record.node_name != host {
                    log::warn!(
                        "hostname changed to {host:?}; keeping the node name {:?} of the first start",
                        record.node_name
                    );
                }
                record.node_name.clone()
            }
            (None, Some(given)) => given.to_owned(),
            (None, None) => host.to_ascii_lowercase(),
        };
        if !is_dns_subdomain(&node_name) {
            return Err(format!(
                "node name {node_name:?}: must be a DNS name (lower-case letters, digits, - and ., at most 253 \
                 characters); give one with --node-name"
            ));
        }
        let adopted = stored.iter().flat_map(|r| &r.adopted).map(|uid| PodUid::from(uid.as_str())).collect();
        let kept = stored.iter().flat_map(|r| &r.kept);
        let kept =
            kept.map(|(own, found)| (PodUid::from(own.as_str()), PodUid::from(found.as_str()))).collect();
        let identity = Identity { path, node_name, adopted, kept, _lock: lock };
        if stored.is_none() {
            identity
                .pending()
                .write()
                .map_err(|e| format!("state directory {shown}: cannot be written: {e}"))?;
        }
        Ok(identity)
    }

    /// The node's name.
    pub fn node_name(&self) -> &str {
        &self.node_name
    }

    /// UIDs of adopted pods.
    pub fn adopted(&self) -> &SortedSet<PodUid> {
        &self.adopted
    }

    /// Records an adopted pod. Full (`ADOPTED_MAX`): not recorded; the pod is then ours only while a manifest has it.
    ///
    /// True when the identity has to be written.
    #[must_use]
    pub fn adopt(&mut self, uid: &PodUid) -> bool {
        self.adopted.len() < ADOPTED_MAX && self.adopted.insert(uid.clone())
    }

    /// The UID with which a manifest's pod was adopted, by the one it would get from this agent.
    pub fn kept(&self, own: &PodUid) -> Option<&PodUid> {
        self.kept.get(own)
    }

    /// Records the UID with which a manifest's pod is adopted. False when full (`ADOPTED_MAX`, `ADOPTED_UIDS_MAX`): then it
    /// must not be adopted.
    #[must_use]
    pub fn keep(&mut self, own: &PodUid, found: &PodUid) -> bool {
        let has_room = (self.adopted.contains(found) || self.adopted.len() < ADOPTED_MAX)
            && (self.kept.contains_key(own) || self.kept.len() < ADOPTED_UIDS_MAX);
        if has_room {
            self.adopted.insert(found.clone());
            self.kept.insert(own.clone(), found.clone());
        }
        has_room
    }

    /// Removes an adopted pod that no longer exists. True when the identity has to be written.
    #[must_use]
    pub fn release(&mut self, uid: &PodUid) -> bool {
        self.kept.retain(|_, found| found != uid);
        self.adopted.remove(uid)
    }

    /// Removes all adopted pods but these. True when the identity has to be written.
    #[must_use]
    pub fn release_all_but(&mut self, stays: impl Fn(&PodUid) -> bool) -> bool {
        let before = self.adopted.len();
        self.adopted.retain(stays);
        self.kept.retain(|_, found| self.adopted.contains(found));
        self.adopted.len() < before
    }

    /// The current content, to be written. One write at a time, because all go to the same file.
    pub fn pending(&self) -> Pending {
        let record = Record {
            version: VERSION,
            node_name: self.node_name.clone(),
            adopted: self.adopted.iter().map(|uid| uid.as_str().to_owned()).collect(),
            kept: self.kept.iter().map(|(own, found)| (own.to_string(), found.to_string())).collect(),
        };
        Pending { path: self.path.clone(), record }
    }
}

/// A pending write, to be done off the loop's thread: it waits for the disk.
#[derive(Debug)]
#[must_use]
pub struct Pending {
    path: PathBuf,
    record: Record,
}

impl Pending {
    /// Writes a temporary file and renames it: after a power loss the old or the new one is there, complete.
    ///
    /// # Errors
    /// The disk's; the old file then stays.
    pub fn write(&self) -> std::io::Result<()> {
        let bytes = minicbor::to_vec(&self.record).map_err(|e| std::io::Error::other(e.to_string()))?;
        replace(&self.path, &self.path.with_extension("new"), &bytes)
    }
}

fn lock(root_dir: &Path) -> Result<File, String> {
    use rustix::fs::{FlockOperation, flock};
    let path = root_dir.join("lock");
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(|e| format!("{}: {e}; run as root or choose another --root-dir", path.display()))?;
    // A process that is being killed, or its child before its exec, holds the lock a moment longer.
    let free = (0..LOCK_TRIES).any(|tried| {
        if tried > 0 {
            std::thread::sleep(LOCK_RETRY);
        }
        flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
    });
    if !free {
        return Err(format!(
            "state directory {}: another smolet uses it; stop that one or choose another --root-dir",
            root_dir.display()
        ));
    }
    Ok(file)
}

fn read(path: &Path) -> Result<Option<Record>, String> {
    let damaged = |what: &str| {
        format!("{}: {what}; move it away and give the node's former name with --node-name", path.display())
    };
    let bytes = match read_linked(path, IDENTITY_FILE_BYTES_MAX) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) if e.kind() == std::io::ErrorKind::FileTooLarge => {
            return Err(damaged("is too large to be ours"));
        }
        Err(e) => return Err(damaged(&e.to_string())),
    };
    let record: Record = minicbor::decode(&bytes).map_err(|_| damaged("is damaged"))?;
    if record.version != VERSION {
        return Err(damaged("was written by another version"));
    }
    Ok(Some(record))
}

/// RFC 1123 subdomain, as Kubernetes requires for node names.
fn is_dns_subdomain(name: &str) -> bool {
    let label = |label: &str| {
        let edge = |c: Option<u8>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
        let bytes = label.as_bytes();
        edge(bytes.first().copied())
            && edge(bytes.last().copied())
            && bytes.iter().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || *c == b'-')
    };
    name.len() <= 253 && name.split('.').all(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("smolet-identity-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&path);
            Folder(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_first_name_is_kept_and_a_different_one_is_refused() {
        let folder = Folder::new("name");
        let identity = Identity::open(&folder.0, None, "Gateway-7").expect("first start");
        assert_eq!(identity.node_name(), "gateway-7");
        drop(identity);
        let identity =
            Identity::open(&folder.0, None, "renamed").expect("a changed hostname is not followed");
        assert_eq!(identity.node_name(), "gateway-7");
        drop(identity);
        let error = Identity::open(&folder.0, Some("other"), "x").expect_err("a changed flag is refused");
        assert!(error.contains("gateway-7") && error.contains("--node-name"), "{error}");
        let error = Identity::open(&Folder::new("bad").0, Some("no_name"), "x").expect_err("not a DNS name");
        assert!(error.contains("DNS"), "{error}");
    }

    #[test]
    fn a_directory_is_locked_by_one_agent() {
        let folder = Folder::new("lock");
        let first = Identity::open(&folder.0, Some("n"), "h").expect("first");
        let error = Identity::open(&folder.0, Some("n"), "h").expect_err("second");
        assert!(error.contains("another smolet"), "{error}");
        drop(first);
        // A process that is ending releases the lock in time.
        let held = lock(&folder.0).expect("free");
        let ending = std::thread::spawn(move || {
            std::thread::sleep(2 * LOCK_RETRY);
            drop(held);
        });
        Identity::open(&folder.0, Some("n"), "h").expect("free again");
        ending.join().expect("it ends");
    }

    #[test]
    fn adopted_pods_are_stored_and_a_damaged_file_is_reported() {
        let folder = Folder::new("adopted");
        let mut identity = Identity::open(&folder.0, Some("n"), "h").expect("open");
        assert!(identity.adopt(&PodUid::from("u1")), "a change");
        identity.pending().write().expect("written");
        assert!(identity.adopt(&PodUid::from("u2")), "a change");
        identity.pending().write().expect("written");
        assert!(identity.release(&PodUid::from("u1")), "a change");
        identity.pending().write().expect("written");
        drop(identity);
        let mut identity = Identity::open(&folder.0, None, "n").expect("again");
        assert_eq!(identity.adopted().iter().map(PodUid::as_str).collect::<Vec<_>>(), ["u2"]);
        assert!(!identity.adopt(&PodUid::from("u2")), "already recorded");
        assert!(!identity.release_all_but(|uid| uid.as_str() == "u2"), "it stays");
        let (own, found) = (PodUid::from("own"), PodUid::from("found"));
        assert!(identity.keep(&own, &found) && identity.adopted().contains(&found));
        identity.pending().write().expect("written");
        drop(identity);
        let mut identity = Identity::open(&folder.0, None, "n").expect("again");
        assert_eq!(identity.kept(&own), Some(&found));
        assert!(identity.release_all_but(|_| false) && identity.adopted().is_empty());
        assert_eq!(identity.kept(&own), None, "with the pod");
        drop(identity);
        std::fs::write(folder.0.join("identity.cbor"), b"\xff\xff").expect("write");
        let error = Identity::open(&folder.0, None, "n").expect_err("damaged");
        assert!(error.contains("damaged") && error.contains("identity.cbor"), "{error}");
    }
}
