//! The desired state: merges the sources' pods into one set, and computes the changes of that set. PURE.
//!
//! Rules, in this order:
//!
//! | situation | result |
//! |---|---|
//! | two manifests have the same pod (or the same UID) | the one already running stays, the other is a problem naming both |
//! | more than `PODS_MAX` pods, besides those that are terminated in an API server | existing ones stay, a new one is a problem |
//! | a source was never read without error | nothing is removed or replaced |
//! | a source is incomplete (invalid or unreadable manifest) | a pod without a valid manifest is held unchanged |
//! | a pod is missing from all sources, which are complete | `Removed` |
//! | a pod's UID changed | `Removed` of the old one, then `Added` of the new one |
//! | the same UID, another manifest | `Changed` |
//!
//! ConfigMaps and Secrets: see `objects`.
//!
//! The kubelet has the first rule for UIDs only (`podStorage.merge`) and uses a directory that it could read only in part
//! (`listConfig`): there a syntax error terminates the pod.

mod objects;
pub mod update;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use crate::limits;
use crate::model::SortedSet;
use crate::model::{DesiredPod, ObjectKey, Objects, PodKey, PodUid, Side, object};
use update::{API, Problem, SourceUpdate, SourcedObject, SourcedPod};

/// One change of the desired set.
#[derive(Clone, Debug)]
pub enum Change {
    /// No longer desired: terminate it. A later `Added` of the same UID starts it again afterwards.
    Removed(PodKey),
    /// The same pod with another manifest (an image of an app container or sidecar, metadata).
    Changed(DesiredPod),
    /// A new pod.
    Added(DesiredPod),
    /// A ConfigMap or Secret was added, removed or changed.
    Object(ObjectKey),
}

/// A desired pod.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The pod and its origin.
    pub wanted: SourcedPod,
    /// No valid manifest has it: it stays because some manifest cannot be read.
    pub held: bool,
}

struct Source {
    name: &'static str,
    /// It has reported at least once.
    reported: bool,
    /// It was read without error at least once.
    settled: bool,
    /// Its last update was read without error.
    complete: bool,
    pods: Vec<SourcedPod>,
    /// Its terminated pods.
    over: SortedSet<PodUid>,
    objects: Vec<SourcedObject>,
    problems: Vec<Problem>,
}

impl Source {
    /// The side of its objects.
    fn side(&self) -> Side {
        if self.name == API { Side::ApiServer } else { Side::Manifests }
    }
}

/// The merged pods and objects of all sources.
pub struct Desired {
    sources: Vec<Source>,
    entries: BTreeMap<PodUid, Entry>,
    objects: objects::MergedObjects,
    shared: Rc<Objects>,
    problems: Vec<Problem>,
}

type Name = (Rc<str>, Rc<str>);

fn name_of(key: &PodKey) -> Name {
    (key.namespace.clone(), key.name.clone())
}

impl Desired {
    /// An empty set. `sources` are the names of all that will report; until each has, nothing is removed.
    pub fn new(sources: &[&'static str]) -> Self {
        let source = |&name| Source {
            name,
            reported: false,
            settled: false,
            complete: false,
            pods: Vec::new(),
            over: SortedSet::new(),
            objects: Vec::new(),
            problems: Vec::new(),
        };
        Self {
            sources: sources.iter().map(source).collect(),
            entries: BTreeMap::new(),
            objects: objects::MergedObjects::new(),
            shared: Rc::default(),
            problems: Vec::new(),
        }
    }

    /// Applies one source's full set and returns the changes, removals first. `running` says whether the runtime has anything of
    /// this pod: of two manifests with the same pod the running one stays, across a restart too.
    pub fn apply(&mut self, update: SourceUpdate, running: impl Fn(&PodUid) -> bool) -> Vec<Change> {
        let Some(source) = self.sources.iter_mut().find(|source| source.name == update.source) else {
            return Vec::new();
        };
        source.reported = true;
        source.settled |= update.complete;
        source.complete = update.complete;
        source.pods = update.pods;
        source.over = update.server.over;
        source.objects = update.objects;
        source.problems = update.problems;
        let Merge { mut entries, problems, .. } = Merge::new(self, &running).run();
        let mut named = SortedSet::new();
        for Entry { wanted, .. } in entries.values_mut() {
            named.extend(object::named_by(&wanted.pod.pod));
            wanted.pod.pod.pack();
        }
        let (held, object_problems) = objects::merge(&self.objects, &self.sources, &named);
        let mut changes = changes(&self.entries, &entries);
        let before = changes.len();
        changes.extend(objects::changes(&self.objects, &held).cloned().map(Change::Object));
        let objects_changed = changes.len() > before;
        let mut problems = problems;
        problems.extend(object_problems);
        problems.truncate(limits::PROBLEMS_MAX);
        for problem in &mut problems {
            problem.fresh = !self.problems.iter().any(|known| known.same_as(problem));
        }
        self.entries = entries;
        self.objects = held;
        if objects_changed {
            let shared = self.objects.iter().map(|(key, held)| (key.clone(), held.object.clone()));
            self.shared = Rc::new(shared.collect());
        }
        self.problems = problems;
        changes
    }

    /// Packs every pod, so that its decoded form is not kept.
    pub fn pack(&mut self) {
        self.entries.values_mut().for_each(|entry| entry.wanted.pod.pod.pack());
    }

    /// All desired pods, by UID.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    /// Every ConfigMap and Secret of both sides.
    pub fn objects(&self) -> Rc<Objects> {
        self.shared.clone()
    }

    /// The same, with their origins.
    pub fn sourced_objects(&self) -> impl Iterator<Item = &SourcedObject> {
        self.objects.values()
    }

    /// The desired pod of this UID.
    pub fn pod(&self, uid: &PodUid) -> Option<&Entry> {
        self.pod_of(uid.as_str())
    }

    /// The same by a UID that stands somewhere else.
    pub fn pod_of(&self, uid: &str) -> Option<&Entry> {
        self.entries.get(uid)
    }

    /// Current problems: the sources', then those of merging them. `fresh` of a source's problem is that of the source's last
    /// update.
    pub fn problems(&self) -> impl Iterator<Item = &Problem> {
        self.sources.iter().flat_map(|source| &source.problems).chain(&self.problems)
    }

    /// Errors that concern several manifests together.
    pub fn merge_problems(&self) -> impl Iterator<Item = &Problem> {
        self.problems.iter()
    }

    /// Every source has reported at least once, with or without errors.
    pub fn reported(&self) -> bool {
        self.sources.iter().all(|source| source.reported)
    }

    /// Every source was read without error at least once since the start.
    pub fn settled(&self) -> bool {
        self.sources.iter().all(|source| source.settled)
    }

    /// The sources that a pod like this may come from: an API server's pods are not in manifests, and the other way round.
    fn sources_of(&self, pod: &SourcedPod) -> impl Iterator<Item = &Source> {
        let side = pod.pod.pod.side();
        self.sources.iter().filter(move |source| source.side() == side)
    }

    /// These sources were read without error at least once since the start.
    fn settled_for(&self, pod: &SourcedPod) -> bool {
        self.sources_of(pod).all(|source| source.settled)
    }

    /// Running pods that are not desired may be terminated: every source has been read without error, and none has an invalid or
    /// unreadable manifest now that could contain them.
    pub fn may_terminate_orphans(&self) -> bool {
        self.sources.iter().all(|source| source.settled && source.complete)
    }

    /// This running pod may be terminated: it is not desired, and either orphans may be terminated or a valid manifest has the
    /// pod that replaces it.
    pub fn may_terminate(&self, key: &PodKey) -> bool {
        let replaced = || self.entries.values().any(|entry| name_of(&entry.wanted.pod.key) == name_of(key));
        !self.entries.contains_key(&key.uid)
            && (self.may_terminate_orphans() || (self.settled() && replaced()))
    }
}

struct Merge<'a> {
    before: &'a Desired,
    running: &'a dyn Fn(&PodUid) -> bool,
    names: BTreeMap<Name, PodUid>,
    entries: BTreeMap<PodUid, Entry>,
    problems: Vec<Problem>,
}

impl<'a> Merge<'a> {
    fn new(before: &'a Desired, running: &'a dyn Fn(&PodUid) -> bool) -> Self {
        Self { before, running, names: BTreeMap::new(), entries: BTreeMap::new(), problems: Vec::new() }
    }

    fn run(mut self) -> Self {
        let old_names: BTreeMap<Name, &Entry> =
            self.before.entries.values().map(|entry| (name_of(&entry.wanted.pod.key), entry)).collect();
        let mut candidates: Vec<(u8, &SourcedPod)> = self
            .before
            .sources
            .iter()
            .flat_map(|source| &source.pods)
            .map(|pod| (self.rank(pod, old_names.get(&name_of(&pod.pod.key)).copied()), pod))
            .collect();
        // Stable: equal ones stay in the order of sources, files and documents.
        candidates.sort_by_key(|(rank, _)| *rank);
        let (known, new): (Vec<_>, Vec<_>) = candidates.into_iter().partition(|(rank, _)| *rank < NEW);
        for (rank, pod) in known {
            let old = old_names.get(&name_of(&pod.pod.key));
            // Until every source was read without error once, a pod is not replaced either.
            let waits = rank == SAME_FILE && old.is_some() && !self.before.settled_for(pod);
            self.admit(pod, waits.then_some(old).flatten().copied());
        }
        self.hold(&old_names);
        for (_, pod) in new {
            let old = old_names.get(&name_of(&pod.pod.key)).filter(|_| !self.before.settled_for(pod));
            self.admit(pod, old.copied());
        }
        self
    }

    /// Precedence when two pods have the same name: the lowest first.
    fn rank(&self, pod: &SourcedPod, old: Option<&Entry>) -> u8 {
        match old {
            Some(old) if old.wanted.pod.key.uid == pod.pod.key.uid => {
                if old.wanted.origin == pod.origin {
                    SAME
                } else {
                    SAME_UID
                }
            }
            Some(old) if old.wanted.origin.file == pod.origin.file => SAME_FILE,
            Some(_) | None if (self.running)(&pod.pod.key.uid) => RUNNING,
            Some(_) | None => NEW,
        }
    }

    fn admit(&mut self, pod: &SourcedPod, waits_for: Option<&Entry>) {
        let key = &pod.pod.key;
        let name = name_of(key);
        let taken =
            self.names.get(&name).or_else(|| self.entries.get_key_value(&key.uid).map(|(uid, _)| uid));
        if let Some(other) = taken.and_then(|uid| self.entries.get(uid)).filter(|other| !other.held) {
            let what =
                if name_of(&other.wanted.pod.key) == name { "is" } else { "has the UID of a pod that is" };
            let other = other.wanted.origin.to_string();
            let message = format!("{what} in {other} too, which stays; remove it from one of them");
            return self.refuse(pod, message);
        }
        if waits_for.is_some_and(|old| old.wanted.pod.key.uid != key.uid) {
            return self
                .refuse(pod, "is not replaced before every manifest could be read once without error");
        }
        if taken.is_some() {
            // Held under this name, and now in a valid manifest again: that manifest decides.
            let uid = taken.cloned();
            uid.map(|uid| self.entries.remove(&uid));
        }
        let is_over = |uid: &PodUid| self.before.sources.iter().any(|source| source.over.contains(uid));
        // Computed only when needed.
        let takes_place = || self.entries.keys().filter(|uid| !is_over(uid)).count();
        if self.entries.len() >= limits::PODS_MAX && !is_over(&key.uid) && takes_place() >= limits::PODS_MAX {
            let message = format!("is one too many: this node runs at most {} pods", limits::PODS_MAX);
            return self.refuse(pod, message);
        }
        self.names.insert(name, key.uid.clone());
        self.entries.insert(key.uid.clone(), Entry { wanted: pod.clone(), held: false });
    }

    /// Holds pods without a valid manifest while some manifest cannot be read.
    fn hold(&mut self, old: &BTreeMap<Name, &Entry>) {
        let new_names: SortedSet<Name> = self
            .before
            .sources
            .iter()
            .flat_map(|source| &source.pods)
            .filter(|pod| self.before.settled_for(pod))
            .map(|pod| name_of(&pod.pod.key))
            .collect();
        for (name, entry) in old {
            if self.before.sources_of(&entry.wanted).all(|source| source.settled && source.complete) {
                continue;
            }
            let uid = &entry.wanted.pod.key.uid;
            if self.names.contains_key(name) || self.entries.contains_key(uid) || new_names.contains(name) {
                continue;
            }
            let why = "is in no valid manifest now; it stays as it is until every manifest can be read";
            // The problem of its own file already explains it, if the pod was in that file.
            let is_explained = self
                .before
                .sources
                .iter()
                .flat_map(|source| &source.problems)
                .any(|problem| problem.file == entry.wanted.origin.file);
            // The problem of its replacement already says that it waits.
            let is_waiting =
                self.problems.iter().any(|p| p.pod.as_deref() == Some(&*entry.wanted.pod.key.to_string()));
            if !is_explained && !is_waiting {
                self.refuse(&entry.wanted, why);
            }
            self.names.insert(name.clone(), uid.clone());
            self.entries.insert(uid.clone(), Entry { wanted: entry.wanted.clone(), held: true });
        }
    }

    fn refuse(&mut self, pod: &SourcedPod, message: impl Into<Box<str>>) {
        if self.problems.len() >= limits::PROBLEMS_MAX {
            return;
        }
        self.problems.push(Problem {
            document: Some(pod.origin.document),
            pod: Some(pod.pod.key.to_string().into()),
            ..Problem::of_file(&Arc::clone(&pod.origin.file), message)
        });
    }
}

/// The pod as it is desired already.
const SAME: u8 = 0;
/// The same pod, from another origin.
const SAME_UID: u8 = 1;
/// Another pod of the same name in the same file: an edit.
const SAME_FILE: u8 = 2;
/// The runtime has something of it.
const RUNNING: u8 = 3;
/// None of these.
const NEW: u8 = 4;

fn changes(before: &BTreeMap<PodUid, Entry>, after: &BTreeMap<PodUid, Entry>) -> Vec<Change> {
    let mut changes = Vec::new();
    for (uid, entry) in before {
        if !after.contains_key(uid) {
            changes.push(Change::Removed(entry.wanted.pod.key.clone()));
        }
    }
    for (uid, entry) in after {
        match before.get(uid) {
            Some(old) if old.wanted.config_hash == entry.wanted.config_hash => {}
            Some(_) => changes.push(Change::Changed(entry.wanted.pod.clone())),
            None => {}
        }
    }
    for (uid, entry) in after {
        if !before.contains_key(uid) {
            changes.push(Change::Added(entry.wanted.pod.clone()));
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::annotations::CONFIG_SOURCE;
    use crate::source::Origin;
    use k8s_openapi::api::core::v1::Pod;

    /// `NAME UID FILE [HASH]`
    fn pod(text: &str) -> SourcedPod {
        let mut words = text.split(' ');
        let mut word = || words.next().unwrap_or("h").to_owned();
        let mut pod = Pod::default();
        pod.metadata.namespace = Some("default".to_owned());
        pod.metadata.name = Some(word());
        pod.metadata.uid = Some(word());
        let file = word();
        SourcedPod {
            pod: DesiredPod::new(pod),
            origin: Origin { file: Arc::from(file), document: 1 },
            config_hash: word().into(),
            bytes: 0,
        }
    }

    fn update(source: &'static str, pods: &[&str], complete: bool) -> SourceUpdate {
        let problem = Problem::of_file(&Arc::from("bad.yaml"), "is bad");
        SourceUpdate {
            source,
            pods: pods.iter().map(|text| pod(text)).collect(),
            objects: Vec::new(),
            problems: if complete { Vec::new() } else { vec![problem] },
            complete,
            held: crate::source::SourceUsage::default(),
            server: crate::source::ServerPods::default(),
        }
    }

    fn shown(changes: &[Change]) -> String {
        let one = |change: &Change| match change {
            Change::Removed(key) => format!("-{}", key.uid),
            Change::Changed(pod) => format!("~{}", pod.key.uid),
            Change::Added(pod) => format!("+{}", pod.key.uid),
            Change::Object(key) => key.to_string(),
        };
        changes.iter().map(one).collect::<Vec<_>>().join(" ")
    }

    /// (pods, complete, changes, problems of merging)
    type Row<'a> = (&'a [&'a str], bool, &'a str, &'a [&'a str]);

    #[test]
    fn each_rule_of_the_table() {
        let runs: &[(&str, &[Row<'_>])] = &[
            (
                "added, unchanged, changed, removed",
                &[
                    (&["a 1 x h1"], true, "+1", &[]),
                    (&["a 1 x h1"], true, "", &[]),
                    (&["a 1 x h2"], true, "~1", &[]),
                    (&[], true, "-1", &[]),
                    (&["a 1 x h2"], true, "+1", &[]),
                ],
            ),
            ("a new UID replaces", &[(&["a 1 x"], true, "+1", &[]), (&["a 2 x"], true, "-1 +2", &[])]),
            (
                "two files, one pod: the running one stays, in either order of files",
                &[
                    (&["a 2 y"], true, "+2", &[]),
                    (
                        &["a 1 x", "a 2 y"],
                        true,
                        "",
                        &["x: document 1: pod default/a: is in y (document 1) too"],
                    ),
                    (&["a 1 x"], true, "-2 +1", &[]),
                ],
            ),
            (
                "two files, one pod: an edit of the one that runs is taken",
                &[
                    (&["a 2 y"], true, "+2", &[]),
                    (&["a 1 x", "a 3 y"], true, "-2 +3", &["x: document 1: pod default/a: is in y"]),
                ],
            ),
            (
                "a copy of the same pod is a duplicate too",
                &[
                    (&["a 1 x"], true, "+1", &[]),
                    (&["a 1 x", "a 1 y"], true, "", &["y: document 1: pod default/a: is"]),
                ],
            ),
            ("a renamed file is no change", &[(&["a 1 x"], true, "+1", &[]), (&["a 1 y"], true, "", &[])]),
            (
                "one UID for two names",
                &[(
                    &["a 1 x", "b 1 y"],
                    true,
                    "+1",
                    &["y: document 1: pod default/b: has the UID of a pod that is in x"],
                )],
            ),
            (
                "neither runs: the first file wins",
                &[(&["a 1 x", "a 2 y"], true, "+1", &["y: document 1: pod default/a: is in x"])],
            ),
            (
                "a manifest that became invalid keeps its pod as it was, and a removal waits",
                &[
                    (&["a 1 bad.yaml", "b 2 y"], true, "+1 +2", &[]),
                    (&["b 2 y"], false, "", &[]),
                    (&[], false, "", &["y: document 1: pod default/b: is in no valid manifest now"]),
                    (&["a 1 bad.yaml"], true, "-2", &[]),
                ],
            ),
            (
                "a valid manifest replaces while another is invalid",
                &[
                    (&["a 1 x"], true, "+1", &[]),
                    (&["a 2 y"], false, "-1 +2", &[]),
                    (&["a 2 y"], true, "", &[]),
                ],
            ),
            (
                "nothing is removed or replaced before all was read once without error",
                &[
                    (&["a 1 x", "b 2 y"], false, "+1 +2", &[]),
                    (
                        &["a 3 x"],
                        false,
                        "",
                        &[
                            "x: document 1: pod default/a: is not replaced",
                            "y: document 1: pod default/b: is in no",
                        ],
                    ),
                    (&["a 3 x"], true, "-1 -2 +3", &[]),
                ],
            ),
        ];
        for (what, rows) in runs {
            let mut desired = Desired::new(&["file"]);
            for (pods, complete, expected, problems) in *rows {
                let changes = desired.apply(update("file", pods, *complete), |_| false);
                assert_eq!(shown(&changes), *expected, "{what}: {pods:?}");
                let lines: Vec<String> = desired.problems.iter().map(ToString::to_string).collect();
                let mut sorted = lines.clone();
                sorted.sort();
                assert_eq!(sorted.len(), problems.len(), "{what}: {pods:?}: {lines:?}");
                for (line, wanted) in sorted.iter().zip(*problems) {
                    assert!(line.starts_with(wanted), "{what}: {pods:?}:\n got  {line}\n want {wanted}");
                }
            }
        }
    }

    #[test]
    fn across_a_restart_the_running_one_of_two_stays() {
        let mut desired = Desired::new(&["file"]);
        let changes = desired.apply(update("file", &["a 1 x", "a 2 y"], true), |uid| uid.as_str() == "2");
        assert_eq!(shown(&changes), "+2");
    }

    #[test]
    fn orphans_wait_for_every_source_and_every_manifest() {
        let mut desired = Desired::new(&["file", "http"]);
        let orphan = PodKey::new("default", "gone", "9");
        let replaced = PodKey::new("default", "a", "0");
        let wanted = PodKey::new("default", "a", "1");
        let may = |desired: &Desired| {
            assert!(!desired.may_terminate(&wanted));
            (
                desired.may_terminate_orphans(),
                desired.may_terminate(&orphan),
                desired.may_terminate(&replaced),
            )
        };
        desired.apply(update("file", &["a 1 x"], true), |_| false);
        assert_eq!(may(&desired), (false, false, false), "one source is missing");
        desired.apply(update("http", &[], false), |_| false);
        assert_eq!(may(&desired), (false, false, false), "it was not read without error");
        desired.apply(update("http", &[], true), |_| false);
        assert_eq!(may(&desired), (true, true, true));
        desired.apply(update("file", &["a 1 x"], false), |_| false);
        assert_eq!(may(&desired), (false, false, true), "an invalid manifest may name the orphan");
    }

    #[test]
    fn a_servers_pods_go_whatever_manifests_are_broken_and_the_other_way_round() {
        let of_server = |pods: &[&str], complete| {
            let mut update = update(API, pods, complete);
            for sourced in &mut update.pods {
                let mut pod = (*sourced.pod.pod).clone();
                let annotations = pod.metadata.annotations.get_or_insert_default();
                annotations.insert(CONFIG_SOURCE.to_owned(), API.to_owned());
                sourced.pod.pod = pod.into();
            }
            update
        };
        let mut desired = Desired::new(&["file", API]);
        desired.apply(update("file", &["a 1 x"], false), |_| false);
        assert_eq!(shown(&desired.apply(of_server(&["b 2 s", "c 3 s"], true), |_| false)), "+2 +3");
        assert_eq!(shown(&desired.apply(of_server(&["b 4 s"], true), |_| false)), "-2 -3 +4");
        assert!(!desired.may_terminate_orphans(), "a manifest may name what only the runtime knows");
        let mut desired = Desired::new(&["file", API]);
        assert_eq!(shown(&desired.apply(update("file", &["a 1 x"], true), |_| false)), "+1");
        assert_eq!(shown(&desired.apply(update("file", &[], true), |_| false)), "-1", "the server is away");
    }

    #[test]
    fn too_many_pods_are_refused_and_those_that_run_stay() {
        let name = |n: usize| format!("p{n:03} u{n:03} f{n:03}");
        let mut desired = Desired::new(&["file"]);
        let first: Vec<String> = (1..=limits::PODS_MAX).map(name).collect();
        let texts: Vec<&str> = first.iter().map(String::as_str).collect();
        assert_eq!(desired.apply(update("file", &texts, true), |_| false).len(), limits::PODS_MAX);
        let extra = name(0);
        let mut texts = texts;
        texts.insert(0, &extra);
        assert_eq!(shown(&desired.apply(update("file", &texts, true), |_| false)), "");
        let lines: Vec<String> = desired.problems().map(ToString::to_string).collect();
        assert_eq!(lines.len(), 1);
        assert!(lines[0].starts_with("f000: document 1: pod default/p000: is one too many"), "{lines:?}");
        // Pods that are terminated in the API server do not count.
        let mut with_over = update("file", &texts, true);
        with_over.server.over = [PodUid::from("u110")].into();
        assert_eq!(shown(&desired.apply(with_over, |_| false)), "+u000");
        assert_eq!(desired.problems().count(), 0);
    }

    #[test]
    fn a_problem_is_fresh_once() {
        let mut desired = Desired::new(&["file"]);
        let fresh = |desired: &Desired| desired.problems().filter(|problem| problem.fresh).count();
        desired.apply(update("file", &["a 1 x", "a 2 y"], true), |_| false);
        assert_eq!(fresh(&desired), 1);
        desired.apply(update("file", &["a 1 x", "a 2 y"], true), |_| false);
        assert_eq!(fresh(&desired), 0);
    }

    #[test]
    fn an_unknown_source_changes_nothing() {
        let mut desired = Desired::new(&["file"]);
        assert_eq!(shown(&desired.apply(update("http", &["a 1 x"], true), |_| false)), "");
    }
}
