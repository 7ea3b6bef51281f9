//! What the API server is told of the pods' statuses, and when (`status_manager.go`). PURE.
//!
//! | the pod in the API server | on this node | what is told (`syncPod`) |
//! |---|---|---|
//! | is being deleted | nothing of it is left | its last status, then it is deleted for good (`canBeDeleted`) |
//! | is rejected by this node | nothing was told of it yet, or its status has another revision, as when it has ended | the rejection |
//! | any | was not read since the start | nothing: its status is not known |
//! | any | has another revision of its status (`needsUpdate`) | that status |
//! | any | has the revision that was told last | nothing |
//!
//! | what happens | what follows |
//! |---|---|
//! | the call succeeds | what changed meanwhile is told at once |
//! | it succeeds, and the pod was deleted for good | the pod is forgotten |
//! | another client has changed the status (`needsReconcile`) | it is told again, at most every [`STATUS_CORRECTION_PERIOD`] |
//! | the call fails | it is repeated with back-off, with what there is to tell then |
//! | it fails for good | this revision is given up; the next one is told. A deletion is repeated |
//!
//! One call per pod is in flight at a time.

use k8s_openapi::api::core::v1::PodStatus;

use super::pod_status::{rejection, tells_of_resize};
use super::task::Task;
use crate::desired::update::{EndingPod, MirrorPod, RefusedPod, SourceUpdate};
use crate::limits::{KUBE_RETRY_MAX, STATUS_CORRECTION_PERIOD};
use crate::model::{Mono, PodKey, PodUid, Seconds, SortedMap, Wall};

/// A pod as the API server knows it.
#[derive(Clone, Debug)]
pub struct ReportedPod {
    key: PodKey,
    /// It is a static pod, and `key` that of its mirror pod.
    is_mirror: bool,
    /// The revision of the status that was told last; 0 = none of this process.
    revision: u64,
    /// The status there may have a resize condition.
    resized: bool,
    /// Another client has changed the status there.
    changed: bool,
    /// When the status was told again for that, or is to be.
    corrected: Option<Mono>,
    /// It was deleted there.
    ending: Option<EndingPod>,
    /// Why it does not run here.
    refused: Option<Box<RefusedPod>>,
    /// Its status when the last of it went.
    last: Option<Box<PodStatus>>,
    task: Task,
}

/// The same pod on this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LocalState {
    /// Something of it is left in the runtime or in the loop. Asked only of a pod that is being deleted.
    pub is_left: bool,
    /// It was read since the start, or needs no read: its status is known.
    pub is_known: bool,
    /// The revision of its status.
    pub revision: u64,
    /// The runtime has containers of it.
    pub has_containers: bool,
}

/// What is told of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// The status that it has here.
    Status,
    /// That this node rejects it.
    Rejection,
    /// Its last status; then it is deleted for good.
    Deletion,
}

/// A call to the API server.
#[derive(Clone, Debug, PartialEq)]
pub struct StatusCall {
    /// The revision of the status.
    pub revision: u64,
    /// The status to patch; `None`: there is none.
    pub status: Option<PodStatus>,
    /// Resize conditions that the status does not have are removed.
    pub resized: bool,
    /// The pod is deleted for good.
    pub deleted: bool,
}

/// How the call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallEnd {
    /// The server has it; another client has changed it since, or not.
    Succeeded {
        /// It has.
        changed: bool,
    },
    /// It does not.
    Failed {
        /// The same once more would fail again.
        is_final: bool,
    },
}

impl ReportedPod {
    fn new(key: PodKey, now: Mono, seed: u64) -> Self {
        Self {
            key,
            is_mirror: false,
            revision: 0,
            resized: false,
            changed: false,
            corrected: None,
            ending: None,
            refused: None,
            last: None,
            task: Task::new(now, seed),
        }
    }

    /// Its key there; of a static pod that of its mirror pod.
    pub fn key(&self) -> &PodKey {
        &self.key
    }

    /// It is being deleted there.
    pub fn is_ending(&self) -> bool {
        self.ending.is_some()
    }

    /// What is to be told of it.
    pub fn report(&self, here: &LocalState) -> Option<Report> {
        let has_news = here.is_known && here.revision != self.revision;
        if self.is_ending() && !here.is_left {
            Some(Report::Deletion)
        } else if self.refused.is_some() {
            (self.revision == 0 || has_news).then_some(Report::Rejection)
        } else {
            has_news.then_some(Report::Status)
        }
    }

    /// When that is due; `None`: there is nothing, or a call is in flight.
    pub fn due(&self, here: impl FnOnce() -> LocalState) -> Option<Mono> {
        let at = self.task.due()?;
        self.report(&here()).map(|_| at)
    }

    /// Begins the call. `status` is asked for only when that of the pod is told.
    pub fn begin(
        &mut self,
        here: &LocalState,
        status: impl FnOnce() -> Option<PodStatus>,
        now: Wall,
    ) -> Option<StatusCall> {
        let report = self.report(here)?;
        let (revision, status) = match report {
            Report::Status => (here.revision, status()),
            Report::Rejection => (1, self.refused.as_deref().map(|refused| rejection(refused, now))),
            Report::Deletion => (self.revision, self.last.as_deref().cloned()),
        };
        let tells = status.as_ref().is_some_and(tells_of_resize);
        // An earlier process may have told anything of what runs.
        let unknown = self.revision == 0 && here.has_containers;
        let resized = std::mem::replace(&mut self.resized, tells) || unknown;
        self.task.begin();
        Some(StatusCall { revision, status, resized, deleted: report == Report::Deletion })
    }

    /// The call ended. True: the API server has the pod no more.
    fn ended(&mut self, revision: u64, deleted: bool, end: CallEnd, now: Mono) -> bool {
        self.task.ended(matches!(end, CallEnd::Succeeded { .. }), now, KUBE_RETRY_MAX);
        match end {
            CallEnd::Succeeded { .. } if deleted => return true,
            CallEnd::Succeeded { changed } => {
                self.revision = revision;
                self.task.at = now;
                if changed {
                    self.correct(now);
                }
            }
            CallEnd::Failed { is_final } => {
                self.resized = true;
                // What is deleted for good is so whatever was told of it.
                if is_final {
                    self.revision = revision;
                }
            }
        }
        false
    }

    /// The watch shows that another client has changed the status, or that it is as it was told.
    fn compared(&mut self, changed: bool, now: Mono) {
        if changed && !self.changed {
            self.correct(now);
        }
        self.changed = changed;
    }

    /// The status is told again (`needsReconcile`), after the last correction not at once.
    fn correct(&mut self, now: Mono) {
        let at = self.corrected.map_or(now, |before| now.max(before + STATUS_CORRECTION_PERIOD));
        self.corrected = Some(at);
        self.revision = 0;
        self.task.at = at;
    }
}

/// The pods of this node that the API server has. At most `KUBE_PODS_MAX`, as it tells no more.
#[derive(Clone, Debug, Default)]
pub struct ReportedPods {
    /// Boxed: each update from the server rebuilds the map.
    pods: SortedMap<PodUid, Box<ReportedPod>>,
}

/// What an update of the API server's pods changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodChanges {
    /// This node rejects them, and did not before.
    pub rejected: Vec<RefusedPod>,
    /// They are being deleted, and were not before.
    pub deleted: Vec<EndingPod>,
    /// They were being deleted, and are to end sooner.
    pub sooner: Vec<EndingPod>,
    /// The server has them no more.
    pub gone: Vec<PodUid>,
}

impl ReportedPods {
    /// How many.
    pub fn len(&self) -> usize {
        self.pods.len()
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// The server has the pod, or its mirror pod.
    pub fn has(&self, uid: &str) -> bool {
        self.pods.contains_key(uid)
    }

    /// The pods, by UID on this node.
    pub fn iter(&self) -> impl Iterator<Item = (&PodUid, &ReportedPod)> {
        self.pods.iter().map(|(uid, pod)| (uid, &**pod))
    }

    /// The same, to begin calls.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&PodUid, &mut ReportedPod)> {
        self.pods.iter_mut().map(|(uid, pod)| (uid, &mut **pod))
    }

    /// A call of that pod under that key is still waited for: a static pod may have another mirror pod by now.
    pub fn awaits(&self, uid: &PodUid, key: &PodKey) -> bool {
        self.pods.get(uid).is_some_and(|pod| pod.key == *key)
    }

    /// A call ended, which had that revision and perhaps deleted the pod. True: the API server has the pod no more.
    pub fn ended(&mut self, uid: &PodUid, revision: u64, deleted: bool, end: CallEnd, now: Mono) -> bool {
        let is_over = self.pods.get_mut(uid).is_some_and(|pod| pod.ended(revision, deleted, end, now));
        if is_over {
            self.pods.remove(uid);
        }
        is_over
    }

    /// Takes in the pods that the API server has. One that ends here and that it has no more was deleted once more, at once
    /// (`kubectl delete --force`).
    pub fn update_pods(&mut self, update: &SourceUpdate, seed: u64, now: Mono) -> PodChanges {
        let known = std::mem::take(&mut self.pods).into_iter();
        let (mirrors, mut before): (SortedMap<_, _>, SortedMap<_, _>) =
            known.partition(|(_, pod)| pod.is_mirror);
        self.pods = mirrors;
        let mut know = |key: &PodKey| {
            before.remove(&key.uid).unwrap_or_else(|| Box::new(ReportedPod::new(key.clone(), now, seed)))
        };
        let mut changes = PodChanges::default();
        for sourced in &update.pods {
            let key = &sourced.pod.key;
            let mut pod = know(key);
            pod.refused = None;
            pod.compared(update.server.changed.contains(&key.uid), now);
            self.pods.insert(key.uid.clone(), pod);
        }
        for refused in &update.server.refused {
            let mut pod = know(&refused.key);
            if pod.refused.is_none() {
                changes.rejected.push(refused.clone());
            }
            pod.refused = Some(Box::new(refused.clone()));
            self.pods.insert(refused.key.uid.clone(), pod);
        }
        for ending in &update.server.ending {
            let mut pod = know(&ending.key);
            match &pod.ending {
                None => changes.deleted.push(ending.clone()),
                Some(before) if ending.grace < before.grace => changes.sooner.push(ending.clone()),
                Some(_) => {}
            }
            pod.ending = Some(ending.clone());
            self.pods.insert(ending.key.uid.clone(), pod);
        }
        changes.gone = before.keys().cloned().collect();
        let forgotten = before.into_values().filter(|pod| pod.is_ending());
        changes.sooner.extend(forgotten.map(|pod| EndingPod { key: pod.key, grace: Seconds(0) }));
        changes
    }

    /// Nothing of the pod is left here; this was its last status, with its revision. Of one that is being deleted it is told
    /// before the deletion, unless it was.
    pub fn forget(&mut self, uid: &PodUid, revision: u64, status: Option<PodStatus>) {
        if let Some(pod) = self.pods.get_mut(uid)
            && pod.is_ending()
            && pod.revision != revision
        {
            pod.last = status.map(Box::new);
        }
    }

    /// The static pods of these UIDs are told through these mirror pods, and no others.
    pub fn set_mirror_pods(&mut self, mirrors: &SortedMap<PodUid, MirrorPod>, seed: u64, now: Mono) {
        let stays =
            |uid: &PodUid, pod: &ReportedPod| mirrors.get(uid).is_some_and(|mirror| mirror.key == pod.key);
        self.pods.retain(|uid, pod| !pod.is_mirror || stays(uid, pod));
        for (uid, mirror) in mirrors {
            let pod = self.pods.entry(uid.clone()).or_insert_with(|| {
                let pod = ReportedPod::new(mirror.key.clone(), now, seed);
                Box::new(ReportedPod { is_mirror: true, ..pod })
            });
            pod.compared(mirror.changed, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::desired::update::{API, Origin, ServerPods, SourceUsage, SourcedPod};
    use crate::model::DesiredPod;

    fn key(name: &str) -> PodKey {
        PodKey::new("d", name, name)
    }

    fn ending(name: &str, grace: i64) -> EndingPod {
        EndingPod { key: key(name), grace: Seconds(grace) }
    }

    fn refused(name: &str) -> RefusedPod {
        RefusedPod { key: key(name), reason: "OutOfcpu".into(), message: "why".into(), generation: None }
    }

    /// A status that names its revision.
    fn status(revision: u64) -> PodStatus {
        PodStatus { message: Some(revision.to_string()), ..PodStatus::default() }
    }

    #[test]
    fn the_report_of_a_pod() {
        use Report::{Deletion, Rejection, Status};
        /// The pod there: bound, rejected, being deleted, or both.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        enum There {
            Bound,
            Rejected,
            Deleted,
            RejectedAndDeleted,
        }
        use There::{Bound, Deleted, Rejected, RejectedAndDeleted};
        // The pod there, the revision that was told; something of it is left here, its status is known, its revision → the report
        #[rustfmt::skip]
        let rows = [
            (Bound, 0, true, true, 1, Some(Status)),
            (Bound, 1, true, true, 2, Some(Status)),
            (Bound, 2, true, true, 1, Some(Status)),
            (Bound, 1, true, true, 1, None),
            (Bound, 0, true, true, 0, None),
            (Bound, 0, true, false, 1, None),
            // One that is here no more, and that nobody has deleted.
            (Bound, 1, false, false, 0, None),
            (Bound, 0, false, true, 1, Some(Status)),
            (Rejected, 0, false, false, 0, Some(Rejection)),
            (Rejected, 1, false, false, 0, None),
            (Rejected, 0, true, true, 5, Some(Rejection)),
            // One that ran here is rejected once its status shows that it ends.
            (Rejected, 5, true, true, 5, None),
            (Rejected, 5, true, true, 6, Some(Rejection)),
            (Rejected, 5, true, false, 6, None),
            (Deleted, 1, true, true, 2, Some(Status)),
            (Deleted, 1, true, true, 1, None),
            (Deleted, 1, true, false, 2, None),
            (Deleted, 1, false, false, 0, Some(Deletion)),
            (Deleted, 1, false, true, 1, Some(Deletion)),
            (Deleted, 0, false, false, 0, Some(Deletion)),
            (RejectedAndDeleted, 0, true, false, 0, Some(Rejection)),
            (RejectedAndDeleted, 1, true, false, 0, None),
            (RejectedAndDeleted, 0, false, false, 0, Some(Deletion)),
            (RejectedAndDeleted, 1, false, false, 0, Some(Deletion)),
        ];
        for (there, told, is_left, is_known, revision, want) in rows {
            let pod = ReportedPod {
                revision: told,
                refused: matches!(there, Rejected | RejectedAndDeleted).then(|| refused("p").into()),
                ending: matches!(there, Deleted | RejectedAndDeleted).then(|| ending("p", 1)),
                ..ReportedPod::new(key("p"), Mono(0), 1)
            };
            let here = LocalState { is_left, is_known, revision, has_containers: false };
            assert_eq!(pod.report(&here), want, "{there:?} {told}; {here:?}");
        }
    }

    /// The calls that follow from these steps, with the second of each. What is due begins after each step, one call at a time.
    fn calls(steps: &str) -> String {
        let (mut now, mut log, mut call) = (0, Vec::new(), None::<StatusCall>);
        let mut pods = ReportedPods::default();
        let uid = PodUid::from("p");
        pods.pods.insert(uid.clone(), ReportedPod::new(key("p"), Mono(0), 1).into());
        let mut here = LocalState { is_left: true, is_known: true, ..LocalState::default() };
        for step in steps.split(' ') {
            let at = |seconds: i64| Mono(seconds * 1_000_000_000);
            if let Some(pod) = pods.pods.get_mut(&uid) {
                match step {
                    "new" => here.revision += 1,
                    "unread" => here.is_known = false,
                    "read" => here.is_known = true,
                    "changed" => pod.compared(true, at(now)),
                    "same" => pod.compared(false, at(now)),
                    "reject" => pod.refused = Some(refused("p").into()),
                    "delete" => pod.ending = Some(ending("p", 1)),
                    "gone" => {
                        let last = (here.revision > 0).then(|| status(here.revision));
                        pods.forget(&uid, here.revision, last);
                        here = LocalState::default();
                    }
                    "ok" | "ok!" | "fail" | "final" => {
                        let end = match step {
                            "ok" | "ok!" => CallEnd::Succeeded { changed: step == "ok!" },
                            _ => CallEnd::Failed { is_final: step == "final" },
                        };
                        let call = call.take().expect("in flight");
                        let is_over = pods.ended(&uid, call.revision, call.deleted, end, at(now));
                        assert_eq!(is_over, call.deleted && step.starts_with("ok"), "{steps}");
                    }
                    wait => now += wait.parse::<i64>().expect("seconds"),
                }
            }
            let Some(pod) = pods.pods.get_mut(&uid) else { continue };
            if pod.due(|| here).is_some_and(|due| due <= at(now)) {
                let begun = pod.begin(&here, || Some(status(here.revision)), Wall(0)).expect("due");
                let what = begun.status.as_ref().map_or("nothing", |status| {
                    if status.reason.is_some() { "rejection" } else { status.message.as_deref().unwrap() }
                });
                log.push(format!("{what}{}@{now}", if begun.deleted { "+deletion" } else { "" }));
                call = Some(begun);
            }
        }
        log.join(" ")
    }

    #[test]
    fn when_a_pod_is_reported() {
        assert_eq!(STATUS_CORRECTION_PERIOD.as_secs(), 10);
        #[rustfmt::skip]
        let rows = [
            ("new", "1@0"),
            ("new ok 60", "1@0"),
            ("unread new 60", ""),
            ("unread new read", "1@0"),
            // One call at a time; what changed meanwhile follows at once, the last of it.
            ("new new new", "1@0"),
            ("new new new ok", "1@0 3@0"),
            ("new ok 5 new", "1@0 2@5"),
            // One that failed is repeated after a while, with what there is by then.
            ("new fail", "1@0"),
            ("new fail 10", "1@0 1@10"),
            ("new fail new 10 ok", "1@0 2@10"),
            // One that failed for good is not.
            ("new final 60", "1@0"),
            ("new final new 10", "1@0 2@10"),
            // Another client's change, seen in the answer or in the watch: told again, the second time after a while.
            ("new ok!", "1@0 1@0"),
            ("new ok! ok", "1@0 1@0"),
            ("new ok! ok! 9", "1@0 1@0"),
            ("new ok! ok! 10", "1@0 1@0 1@10"),
            ("new ok 3 changed", "1@0 1@3"),
            ("new ok changed ok changed 60", "1@0 1@0"),
            ("new ok changed ok same changed 9", "1@0 1@0"),
            ("new ok changed ok same changed 10", "1@0 1@0 1@10"),
            ("new ok changed ok 60 same changed", "1@0 1@0 1@60"),
            ("new ok same 60", "1@0"),
            // Of a call in flight the answer says it.
            ("new changed ok 60", "1@0"),
            // A rejection is told once.
            ("unread reject ok 60", "rejection@0"),
            ("unread reject fail 10", "rejection@0 rejection@10"),
            ("unread reject final 60", "rejection@0"),
            ("unread reject ok!", "rejection@0 rejection@0"),
            // A pod is deleted for good when nothing of it is left, with its last status unless that was told.
            ("new ok delete 60", "1@0"),
            ("new ok delete new ok", "1@0 2@0"),
            ("new ok delete gone", "1@0 nothing+deletion@0"),
            ("new ok delete unread new gone", "1@0 2+deletion@0"),
            ("new ok unread new gone delete", "1@0 nothing+deletion@0"),
            ("new delete gone ok", "1@0 1+deletion@0"),
            ("unread reject ok delete gone", "rejection@0 nothing+deletion@0"),
            // Nothing else ends its deletion but its end.
            ("new ok delete gone fail 10", "1@0 nothing+deletion@0 nothing+deletion@10"),
            ("new ok delete gone final 10", "1@0 nothing+deletion@0 nothing+deletion@10"),
            ("new ok delete gone ok! 60", "1@0 nothing+deletion@0"),
        ];
        for (steps, want) in rows {
            assert_eq!(calls(steps), want, "{steps}");
        }
    }

    #[test]
    fn when_resize_conditions_are_removed() {
        let told: PodStatus =
            serde_json::from_value(json!({"conditions": [{"type": "PodResizePending", "status": "True"}]}))
                .unwrap();
        // the revision that was told, there may be one, containers run; the status has one → they are removed, and next time
        #[rustfmt::skip]
        let rows = [
            (1, false, true, false, false, false),
            (1, true, true, false, true, false),
            (1, false, true, true, false, true),
            (1, true, true, true, true, true),
            // What an earlier process told is not known.
            (0, false, true, false, true, false),
            (0, false, false, false, false, false),
            (0, false, true, true, true, true),
        ];
        for (revision, resized, has_containers, has_one, want, next) in rows {
            let mut pod = ReportedPod { revision, resized, ..ReportedPod::new(key("p"), Mono(0), 1) };
            let here = LocalState { is_left: true, is_known: true, revision: 2, has_containers };
            let status = || Some(if has_one { told.clone() } else { PodStatus::default() });
            let call = pod.begin(&here, status, Wall(0)).unwrap();
            assert_eq!(
                (call.resized, pod.resized),
                (want, next),
                "{revision} {resized} {has_containers} {has_one}"
            );
            // Whether the server took it is not known.
            pod.ended(2, false, CallEnd::Failed { is_final: false }, Mono(0));
            assert!(pod.resized);
        }
    }

    /// `name`, `!name` rejected, `-name:GRACE` being deleted, `~name` changed by another client.
    fn update(text: &str) -> SourceUpdate {
        let mut server = ServerPods::default();
        let mut pods = Vec::new();
        for word in text.split_whitespace() {
            if let Some(name) = word.strip_prefix('!') {
                server.refused.push(refused(name));
            } else if let Some((name, grace)) = word.strip_prefix('-').and_then(|word| word.split_once(':')) {
                server.ending.push(ending(name, grace.parse().unwrap()));
            } else {
                let name = word.trim_start_matches('~');
                let pod = json!({"metadata": {"name": name, "namespace": "d", "uid": name}});
                pods.push(SourcedPod {
                    pod: DesiredPod::new(serde_json::from_value(pod).unwrap()),
                    origin: Origin { file: "".into(), document: 0 },
                    config_hash: "".into(),
                    bytes: 0,
                });
                if word != name {
                    server.changed.insert(name.into());
                }
            }
        }
        SourceUpdate {
            source: API,
            pods,
            objects: Vec::new(),
            problems: Vec::new(),
            complete: true,
            held: SourceUsage::default(),
            server,
        }
    }

    /// `rejected | deleted | sooner | gone`.
    fn shown(changes: &PodChanges) -> String {
        let grace = |pods: &[EndingPod]| {
            let one = |pod: &EndingPod| format!("{}:{}", pod.key.name, pod.grace.0);
            pods.iter().map(one).collect::<Vec<_>>().join(" ")
        };
        let rejected: Vec<&str> = changes.rejected.iter().map(|pod| &*pod.key.name).collect();
        let gone: Vec<&str> = changes.gone.iter().map(PodUid::as_str).collect();
        [rejected.join(" "), grace(&changes.deleted), grace(&changes.sooner), gone.join(" ")].join(" | ")
    }

    #[test]
    fn what_an_update_changes() {
        // updates, one after the other → what the last one changes, and whom the server has then
        #[rustfmt::skip]
        let rows: [(&[&str], &str, &str); 13] = [
            (&["a b"], " |  |  | ", "a b"),
            (&["a b", "b"], " |  |  | a", "b"),
            (&["a !b"], "b |  |  | ", "a b"),
            (&["!b", "!b"], " |  |  | ", "b"),
            // It runs here after all, and is rejected once more.
            (&["!b", "b", "!b"], "b |  |  | ", "b"),
            (&["a", "-a:30"], " | a:30 |  | ", "a"),
            (&["-a:30"], " | a:30 |  | ", "a"),
            (&["-a:30", "-a:30"], " |  |  | ", "a"),
            (&["-a:30", "-a:1"], " |  | a:1 | ", "a"),
            (&["-a:30", "-a:60"], " |  |  | ", "a"),
            (&["-a:30", ""], " |  | a:0 | a", ""),
            (&["!a", "-a:30"], " | a:30 |  | ", "a"),
            (&["!a", ""], " |  |  | a", ""),
        ];
        for (updates, want, have) in rows {
            let mut pods = ReportedPods::default();
            let mut last = PodChanges::default();
            for text in updates {
                last = pods.update_pods(&update(text), 1, Mono(0));
            }
            let names: Vec<&str> = pods.iter().map(|(uid, _)| uid.as_str()).collect();
            assert_eq!((shown(&last), names.join(" ")), (want.to_owned(), have.to_owned()), "{updates:?}");
            assert_eq!((pods.len(), pods.is_empty()), (names.len(), names.is_empty()));
        }
    }

    #[test]
    fn what_was_told_is_kept_over_an_update() {
        let (mut pods, now) = (ReportedPods::default(), Mono(0));
        pods.update_pods(&update("a b"), 1, now);
        let here = LocalState { is_left: true, is_known: true, revision: 4, has_containers: true };
        for (_, pod) in pods.iter_mut() {
            pod.begin(&here, || Some(status(4)), Wall(0));
        }
        for uid in ["a".into(), "b".into()] {
            pods.ended(&uid, 4, false, CallEnd::Succeeded { changed: false }, now);
        }
        pods.update_pods(&update("a ~b"), 1, now);
        let due: Vec<_> = pods.iter().map(|(_, pod)| pod.due(|| here)).collect();
        assert_eq!(due, [None, Some(now)], "only what another client has changed is told again");
    }

    #[test]
    fn static_pods_are_told_through_their_mirror_pods() {
        let (mut pods, now) = (ReportedPods::default(), Mono(0));
        let mirror = |uid: &str| MirrorPod {
            key: PodKey::new("d", "static", uid),
            hash: "".into(),
            deleted: false,
            changed: false,
        };
        let mirrors = |uid: &str| SortedMap::from([(PodUid::from("s"), mirror(uid))]);
        let told = |pods: &ReportedPods| pods.iter().map(|(_, pod)| pod.revision).collect::<Vec<_>>();
        pods.set_mirror_pods(&mirrors("m1"), 1, now);
        assert!(pods.awaits(&"s".into(), &mirror("m1").key) && !pods.awaits(&"s".into(), &mirror("m2").key));
        pods.ended(&"s".into(), 3, false, CallEnd::Succeeded { changed: false }, now);
        // It is not one of the server's own pods.
        assert_eq!(pods.update_pods(&update("a"), 1, now), PodChanges::default());
        pods.set_mirror_pods(&mirrors("m1"), 1, now);
        assert_eq!(told(&pods), [0, 3]);
        pods.set_mirror_pods(&mirrors("m2"), 1, now);
        assert_eq!(told(&pods), [0, 0], "another mirror pod has none of it");
        pods.set_mirror_pods(&SortedMap::new(), 1, now);
        assert!(pods.has("a") && !pods.has("s"));
    }
}
