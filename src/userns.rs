//! Assigns ranges of the node's user ids to pods with user namespaces (`hostUsers: false`; the kubelet's `userns.Manager`).
//! I/O, small; blocking, so that callers run it on another thread.
//!
//! ```text
//!     node   0 … 65535   65536 …            131072 …            …
//!     pod    the node's  the first pod's 0  the second one's 0
//! ```
//!
//! The file `userns` in a pod's directory has the pod's range, in the kubelet's format; a range is in use while that file
//! exists, and the file is removed with the pod's directory, after everything else of the pod. Nothing is kept in memory: the
//! files are read when a pod needs a range, one pod after the other.
use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

use crate::filesystem::read_bounded;
use crate::filesystem::replace;
use crate::limits::{POD_DIRS_READ_MAX, USER_NAMESPACES_MAX, USERNS_FILE_BYTES_MAX};
use crate::model::SortedSet;
use crate::render::UserNamespace;

/// `mappingsFile`.
pub(crate) const NAME: &str = "userns";

/// One pod at a time: otherwise two might select the same free range.
static TURN: Mutex<()> = Mutex::new(());

/// The range of the pod with the existing directory `pods/uid`: that of its file, or else a free one, which is written there
/// and synced when this returns. `is_new`: nothing of the pod is in the runtime yet. A pod that is there without a file has an
/// unknown range, and gets no other one.
///
/// # Errors
/// One sentence: no range is free, a file cannot be read or written, or is not in the kubelet's format.
pub fn of_pod(pods: &Path, uid: &str, is_new: bool) -> Result<UserNamespace, String> {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let path = pods.join(uid).join(NAME);
    if let Some(known) = read(&path)? {
        return Ok(known);
    }
    if !is_new {
        return Err(format!("user namespace: {} is not there, and the pod runs already", path.display()));
    }
    let failed = |what: &str, error: io::Error| format!("user namespace: {what}: {error}");
    let mut taken = SortedSet::new();
    let entries = std::fs::read_dir(pods).map_err(|error| failed("pods", error))?;
    for (count, entry) in entries.enumerate() {
        if count == POD_DIRS_READ_MAX {
            return Err(format!("user namespace: {} has more than {count} directories", pods.display()));
        }
        let entry = entry.map_err(|error| failed("pods", error))?;
        taken.extend(read(&entry.path().join(NAME))?.map(|known| known.first));
    }
    let ranges = (1..=USER_NAMESPACES_MAX).map(|n| n * UserNamespace::LENGTH);
    let free = ranges.into_iter().find(|first| !taken.contains(first));
    let first = free.ok_or("could not find an empty slot to allocate a user namespace")?;
    let users = UserNamespace { first };
    let beside = path.with_extension("new");
    replace(&path, &beside, text(users).as_bytes())
        .map_err(|error| failed(&path.display().to_string(), error))?;
    Ok(users)
}

fn text(users: UserNamespace) -> String {
    let mapping = json!([{"hostId": users.first, "containerId": 0, "length": UserNamespace::LENGTH}]);
    json!({"uidMappings": mapping, "gidMappings": mapping}).to_string()
}

/// The range in a pod's file; `None` without one.
fn read(path: &Path) -> Result<Option<UserNamespace>, String> {
    let bytes = match read_bounded(path, USERNS_FILE_BYTES_MAX) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::FileTooLarge => Vec::new(),
        // The latter: an entry of the pods' directory that is not a directory.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(format!("user namespace: {}: {error}", path.display())),
    };
    parse(&bytes).map(Some).ok_or_else(|| {
        format!(
            "invalid user namespace mappings file {}: remove it with the pod it belongs to",
            path.display()
        )
    })
}

/// One mapping, the same for users and groups, of a possible range (`parseUserNsFileAndRecord`).
fn parse(bytes: &[u8]) -> Option<UserNamespace> {
    let file: Value = serde_json::from_slice(bytes).ok()?;
    let [mapping] = file["uidMappings"].as_array()?.as_slice() else { return None };
    let first = u32::try_from(mapping["hostId"].as_u64()?).ok()?;
    let users = UserNamespace { first };
    let in_range = first != 0 && first.is_multiple_of(UserNamespace::LENGTH);
    (in_range && serde_json::from_str::<Value>(&text(users)).ok()? == file).then_some(users)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pod_has_its_own_range_and_keeps_it() {
        let pods = std::env::temp_dir().join(format!("smolet-userns-{}", std::process::id()));
        let range = |uid: &str| {
            std::fs::create_dir_all(pods.join(uid)).unwrap();
            of_pod(&pods, uid, true).map(|users| users.first)
        };
        assert_eq!(range("a"), Ok(65_536));
        assert_eq!(range("b"), Ok(131_072));
        assert_eq!(range("a"), Ok(65_536), "the same again");
        let written = std::fs::read_to_string(pods.join("b/userns")).unwrap();
        let kubelets = r#"{"uidMappings":[{"hostId":131072,"containerId":0,"length":65536}],"gidMappings":[{"hostId":131072,"containerId":0,"length":65536}]}"#;
        assert_eq!(
            serde_json::from_str::<Value>(&written).unwrap(),
            serde_json::from_str::<Value>(kubelets).unwrap()
        );
        std::fs::remove_dir_all(pods.join("a")).unwrap();
        std::fs::write(pods.join("no-directory"), "").unwrap();
        assert_eq!(range("c"), Ok(65_536), "a pod's range is free when its directory is gone");

        std::fs::create_dir_all(pods.join("adopted")).unwrap();
        let error = of_pod(&pods, "adopted", false).unwrap_err();
        assert!(error.contains("runs already"), "{error}");

        for wrong in [
            "",
            "{}",
            "[]",
            &kubelets.replace("131072", "0"),
            &kubelets.replace("65536", "65535"),
            &kubelets.replacen("131072", "196608", 1),
            &kubelets.replace("131072", "131073"),
            &kubelets.replace("131072", "4294967296"),
        ] {
            std::fs::write(pods.join("c/userns"), wrong).unwrap();
            let error = range("d").unwrap_err();
            assert!(error.contains("c/userns"), "{wrong}: {error}");
        }
        std::fs::remove_dir_all(&pods).unwrap();
    }

    #[test]
    fn there_is_a_range_for_each_managed_pod() {
        let pods = std::env::temp_dir().join(format!("smolet-userns-full-{}", std::process::id()));
        for n in 0..USER_NAMESPACES_MAX {
            let dir = pods.join(n.to_string());
            std::fs::create_dir_all(&dir).unwrap();
            let users = UserNamespace { first: (n + 1) * UserNamespace::LENGTH };
            std::fs::write(dir.join(NAME), text(users)).unwrap();
        }
        std::fs::create_dir_all(pods.join("more")).unwrap();
        let error = of_pod(&pods, "more", true).unwrap_err();
        assert_eq!(error, "could not find an empty slot to allocate a user namespace");
        std::fs::remove_dir_all(&pods).unwrap();
    }
}
