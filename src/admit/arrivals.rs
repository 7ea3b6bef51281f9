//! Which of the pods that came for this node may begin on it, beside those that are here (`HandlePodAdditions`,
//! `canAdmitPod`). PURE.
//!
//! | the node and the pod | what becomes of it |
//! |---|---|
//! | labels and taints of the Node are not known | it waits |
//! | it fits | it is wanted, and counts for those behind it |
//! | it does not, and this is not the server's last word | it waits |
//! | the node's labels do not fit it | it waits for [`ADMISSION_DOUBT`]: the word of a new label may come behind it; then it is refused |
//! | it is critical and others may end for it | they do; it waits, and is asked about again after [`ADMISSION_DOUBT`] |
//! | else | it is refused, for good |
//!
//! They are asked about in the order of [`first_come`], whatever order they came in.

use std::rc::Rc;

use k8s_openapi::api::core::v1::Pod;

use super::preempt::victims;
use super::{NodeView, Rejection, Remedy, admit, first_come};
use crate::limits::ADMISSION_DOUBT;
use crate::model::{Mono, PodUid, SortedMap, SortedSet};

/// A pod that came.
#[derive(Debug)]
pub struct Arrival {
    /// Which one.
    pub uid: PodUid,
    /// All of it.
    pub pod: Rc<Pod>,
    /// The node refuses it whatever room there is: it is short of something, or its settings do not let the pod run.
    pub refusal: Option<Rejection>,
}

/// What becomes of those that came; who stands nowhere here is wanted.
#[derive(Debug, Default)]
pub struct Answers {
    /// They do not run here.
    pub refused: Vec<(PodUid, Rejection)>,
    /// They are asked about again; with what stands in their way where that is known.
    pub waiting: SortedMap<PodUid, Option<Rejection>>,
    /// These end for critical ones.
    pub preempted: SortedSet<PodUid>,
    /// Of those that wait, the ones that are asked about again at that instant.
    pub doubted: SortedMap<PodUid, Mono>,
}

/// How a pod that wants room is answered.
#[derive(Debug)]
pub enum RoomFor {
    /// It has it.
    Here,
    /// Once these of the others have ended.
    After(Vec<PodUid>),
    /// It has none.
    None(Rejection),
}

/// Whether there is room for the pod beside the others, or those that would end for it (`HandleAdmissionFailure`).
pub fn room_for(pod: &Pod, view: &NodeView<'_>, others: &[Rc<Pod>]) -> RoomFor {
    let Err(rejection) = admit(pod, view, &mut others.iter().map(|other| &**other)) else {
        return RoomFor::Here;
    };
    let Remedy::Preemption(shortages) = &rejection.remedy else { return RoomFor::None(rejection) };
    let all: Vec<&Pod> = others.iter().map(|other| &**other).collect();
    match victims(pod, &all, shortages) {
        Ok(places) => {
            let uid_of = |place: usize| all.get(place)?.metadata.uid.as_deref().map(PodUid::from);
            RoomFor::After(places.into_iter().filter_map(uid_of).collect())
        }
        Err(hopeless) => RoomFor::None(hopeless),
    }
}

/// Asks about those that came. `others` are here already; `doubted` is what the last answers said; `is_last_word`: the server itself
/// says that the pods are bound to this node.
pub fn answer(
    mut arrivals: Vec<Arrival>,
    view: Option<&NodeView<'_>>,
    mut others: Vec<Rc<Pod>>,
    mut doubted: SortedMap<PodUid, Mono>,
    is_last_word: bool,
    now: Mono,
) -> Answers {
    let mut answers = Answers::default();
    arrivals.sort_by(|a, b| first_come(&a.pod, &b.pod));
    for Arrival { uid, pod, refusal } in arrivals {
        let Some(view) = view else {
            answers.waiting.insert(uid, None);
            continue;
        };
        let room = match refusal {
            Some(refusal) => RoomFor::None(refusal),
            None if is_last_word => room_for(&pod, view, &others),
            // Nobody ends for one that may be gone.
            None => match admit(&pod, view, &mut others.iter().map(|other| &**other)) {
                Ok(()) => RoomFor::Here,
                Err(rejection) => RoomFor::None(rejection),
            },
        };
        match room {
            RoomFor::Here => {
                doubted.remove(&uid);
                others.push(pod);
            }
            RoomFor::None(rejection) if !is_last_word => {
                answers.waiting.insert(uid, Some(rejection));
            }
            RoomFor::After(victims) => {
                answers.preempted.extend(victims);
                // Until they have ended they count.
                doubted.insert(uid.clone(), now + ADMISSION_DOUBT);
                answers.waiting.insert(uid, None);
            }
            RoomFor::None(rejection) => {
                if matches!(rejection.remedy, Remedy::FreshNode) {
                    let until = *doubted.entry(uid.clone()).or_insert(now + ADMISSION_DOUBT);
                    if now < until {
                        answers.waiting.insert(uid, None);
                        continue;
                    }
                }
                doubted.remove(&uid);
                answers.refused.push((uid, rejection));
            }
        }
    }
    answers.doubted = doubted;
    answers
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;
    use crate::admit::Resources;

    const NOW: Mono = Mono(1_000_000_000_000);

    /// `name cpu [critical] [zone=ZONE] [refused]`.
    fn arrival(text: &str) -> Arrival {
        let mut words = text.split_whitespace();
        let (name, cpu) = (words.next().unwrap(), words.next().unwrap());
        let rest: Vec<&str> = words.collect();
        let zone = rest.iter().find_map(|word| word.strip_prefix("zone="));
        let pod = json!({
            "metadata": {"name": name, "namespace": "d", "uid": name},
            "spec": {
                "priority": if rest.contains(&"critical") { 2_000_000_000 } else { 0 },
                "nodeSelector": zone.map(|zone| json!({"zone": zone})),
                "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}],
            },
        });
        let refusal = rest.contains(&"refused").then(|| Rejection {
            reason: "Evicted".into(),
            message: "the node is short of memory".to_owned(),
            remedy: Remedy::None,
        });
        Arrival { uid: name.into(), pod: Rc::new(serde_json::from_value(pod).unwrap()), refusal }
    }

    /// What becomes of the arrivals on a node of one CPU in zone a: `wanted | waiting | refused | preempted | doubted`.
    fn answers(here: &[&str], came: &[&str], doubted: &[(&str, Mono)], known: bool, last: bool) -> String {
        let labels = BTreeMap::from([("zone".to_owned(), "a".to_owned())]);
        let allocatable = Resources { milli_cpu: 1000, pods: 10, ..Resources::default() };
        let view = NodeView {
            name: "n",
            labels: &labels,
            taints: &[],
            allocatable: &allocatable,
            declared_features: &[],
        };
        let others = here.iter().map(|text| arrival(text).pod).collect();
        let arrivals: Vec<Arrival> = came.iter().map(|text| arrival(text)).collect();
        let names: Vec<PodUid> = arrivals.iter().map(|of| of.uid.clone()).collect();
        let doubted = doubted.iter().map(|(name, at)| (PodUid::from(*name), *at)).collect();
        let got = answer(arrivals, known.then_some(&view), others, doubted, last, NOW);
        let is_wanted =
            |uid: &&PodUid| !got.waiting.contains_key(*uid) && !got.refused.iter().any(|(of, _)| of == *uid);
        let join = |uids: Vec<&PodUid>| uids.iter().map(|uid| uid.as_str()).collect::<Vec<_>>().join(" ");
        [
            join(names.iter().filter(is_wanted).collect()),
            join(got.waiting.keys().collect()),
            join(got.refused.iter().map(|(uid, _)| uid).collect()),
            join(got.preempted.iter().collect()),
            join(got.doubted.keys().collect()),
        ]
        .join(" | ")
    }

    type Row<'a> = (&'a [&'a str], &'a [&'a str], &'a [(&'a str, Mono)], bool, bool, &'a str);

    #[test]
    fn the_table_holds() {
        let (past, later) = (Mono(NOW.0 - 1), NOW + ADMISSION_DOUBT);
        // here, came, doubted, the Node is known, it is the server's last word → answers
        #[rustfmt::skip]
        let rows: [Row<'_>; 12] = [
            (&[], &["p 500m"], &[], false, true, " | p |  |  | "),
            (&[], &["p 500m"], &[], true, true, "p |  |  |  | "),
            (&[], &["p 500m", "q 400m"], &[], true, true, "p q |  |  |  | "),
            // The second one does not fit beside the first.
            (&[], &["p 600m", "q 600m"], &[], true, true, "p |  | q |  | "),
            (&["h 600m"], &["p 600m"], &[], true, true, " |  | p |  | "),
            (&["h 600m"], &["p 600m"], &[], true, false, " | p |  |  | "),
            (&[], &["p 1m refused"], &[], true, true, " |  | p |  | "),
            // A label that the node has not yet.
            (&[], &["p 1m zone=b"], &[], true, true, " | p |  |  | p"),
            (&[], &["p 1m zone=b"], &[("p", later)], true, true, " | p |  |  | p"),
            (&[], &["p 1m zone=b"], &[("p", past)], true, true, " |  | p |  | "),
            (&["h 600m"], &["p 600m critical"], &[], true, true, " | p |  | h | p"),
            // Nobody ends for one that may be gone.
            (&["h 600m"], &["p 600m critical"], &[], true, false, " | p |  |  | "),
        ];
        for (here, came, doubted, known, last, want) in rows {
            let got = answers(here, came, doubted, known, last);
            assert_eq!(got, want, "{here:?} {came:?} {doubted:?} known {known} last {last}");
        }
    }
}
