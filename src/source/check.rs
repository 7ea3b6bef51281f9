//! `smolet check`: reads and validates manifests as the agent does, without an agent.

use std::cell::Cell;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::file::{NAME, sourced, sourced_object};
use super::identity::NodeName;
use super::manifest::{ParsedFile, parse};
use super::scan::{self, ScanRequest, ScannedFile};
use super::{Problem, ServerPods, SourceUpdate, SourceUsage, SourcedObject, SourcedPod, shown_file};
use crate::desired::Desired;
use crate::limits;
use crate::model::{Side, SortedMap, SortedSet, Wall};

/// The result of [`check`].
#[derive(Debug)]
pub struct CheckReport {
    /// The pods that would run, by UID.
    pub pods: Vec<SourcedPod>,
    /// The ConfigMaps and Secrets, by their key.
    pub objects: Vec<SourcedObject>,
    /// All problems, at most `PROBLEMS_MAX` of each file and of the whole.
    pub problems: Vec<Problem>,
}

impl CheckReport {
    /// There are no problems.
    pub fn is_good(&self) -> bool {
        self.problems.is_empty()
    }
}

/// One line for each problem, then one for each pod.
impl fmt::Display for CheckReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.problems.is_empty() && self.pods.is_empty() && self.objects.is_empty() {
            return writeln!(
                f,
                "no manifest is there: a directory's *.yaml, *.yml and *.json files are read"
            );
        }
        for problem in &self.problems {
            writeln!(f, "{problem}")?;
        }
        for object in &self.objects {
            let (file, document) = (shown_file(&object.origin.file), object.origin.document);
            writeln!(f, "{file}: document {document}: {}: ok", object.object.key(Side::Manifests))?;
        }
        for pod in &self.pods {
            let (file, document) = (shown_file(&pod.origin.file), pod.origin.document);
            writeln!(f, "{file}: document {document}: pod {}: ok, uid {}", pod.pod.key, pod.pod.key.uid)?;
        }
        Ok(())
    }
}

/// Checks files (whatever their names), directories (as the agent reads them) and `-` (standard input) together: two of them with
/// the same pod are a problem. Blocking.
pub fn check(paths: &[PathBuf], node: &NodeName, seen: Wall) -> CheckReport {
    let mut update = SourceUpdate {
        source: NAME,
        pods: Vec::new(),
        objects: Vec::new(),
        problems: Vec::new(),
        complete: true,
        held: SourceUsage::default(),
        server: ServerPods::default(),
    };
    let room = Cell::new(limits::PODS_BYTES_MAX);
    let mut take = |file: &Arc<str>, outcome: Result<ParsedFile, String>| match outcome {
        Err(why) => update.problems.push(Problem::of_file(file, why)),
        Ok(parsed) => {
            room.set(room.get().saturating_sub(parsed.bytes));
            update.problems.extend(parsed.problems);
            update.pods.extend(parsed.pods.into_iter().map(|pod| sourced(pod, file)));
            update.objects.extend(parsed.objects.into_iter().map(|object| sourced_object(object, file)));
        }
    };
    for path in paths {
        let shown: Arc<str> = Arc::from(path.to_string_lossy());
        if path.as_os_str() == "-" {
            let shown: Arc<str> = Arc::from("standard input");
            let bytes = scan::read_stream(&mut std::io::stdin().lock());
            take(&shown, bytes.map(|bytes| parse(&shown, &bytes, node, seen, room.get())));
        } else if path.is_dir() {
            match scan(path, node, seen) {
                Err(why) => take(&shown, Err(why)),
                Ok(found) => {
                    for (name, file) in found.files {
                        let file_path: Arc<str> = Arc::from(path.join(name).to_string_lossy());
                        match file {
                            ScannedFile::Read { parsed, .. } => take(&file_path, Ok(parsed)),
                            ScannedFile::Refused(why) => take(&file_path, Err(why)),
                            ScannedFile::Same | ScannedFile::Skipped => {}
                        }
                    }
                    if found.left_off > 0 {
                        let (more, max) = (found.left_off, limits::MANIFEST_FILES_MAX);
                        take(&shown, Err(format!("has {more} manifests more than the {max} that are read")));
                    }
                }
            }
        } else {
            let bytes = scan::read_file(path);
            take(&shown, bytes.map(|bytes| parse(&shown, &bytes, node, seen, room.get())));
        }
    }
    let more = update.problems.len().saturating_sub(limits::PROBLEMS_MAX);
    if more > 0 {
        update.problems.truncate(limits::PROBLEMS_MAX - 1);
        update
            .problems
            .push(Problem::of_file(&Arc::from("all files"), format!("{} more problems", more + 1)));
    }
    // All inputs are given, so no removal has to be delayed: duplicates and the number of pods are checked.
    let mut desired = Desired::new(&[NAME]);
    desired.apply(update, |_| false);
    CheckReport {
        pods: desired.entries().map(|entry| entry.wanted.clone()).collect(),
        objects: desired.sourced_objects().cloned().collect(),
        problems: desired.problems().cloned().collect(),
    }
}

fn scan(dir: &Path, node: &NodeName, seen: Wall) -> Result<scan::ScanResult, String> {
    scan::scan(&ScanRequest {
        dir: dir.to_owned(),
        node: node.clone(),
        seen,
        known: SortedMap::new(),
        force: SortedSet::new(),
        skip: SortedSet::new(),
        watch: scan::Watch::Without,
        taken: 0,
        set_aside: Arc::default(),
    })
}
