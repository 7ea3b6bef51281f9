//! Terminated containers by exit code and reason (`terminated_containers_total`, `updateStatusInternal`'s
//! `checkAndRecordTerminations`): counted when a pod's status first shows the termination. PURE.

use std::cell::RefCell;

use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, PodStatus};

use crate::limits::{TERMINATION_REASON_BYTES_MAX, TERMINATIONS_MAX};
use crate::model::ContainerKind;
use crate::model::SortedMap;

/// A container's list, exit code, and the runtime's reason. `None`: counted as `other`.
type TerminationLabels = (ContainerKind, Option<(i32, Box<str>)>);

/// One of the lists of a pod's status.
type List = fn(&PodStatus) -> &Option<Vec<ContainerStatus>>;

/// Number of terminations by label values.
#[derive(Debug, Default)]
pub struct Terminations(RefCell<SortedMap<TerminationLabels, u64>>);

impl Terminations {
    /// Counts terminations that are new in the pod's status.
    pub fn note(&self, before: Option<&PodStatus>, after: &PodStatus) {
        let lists: [(ContainerKind, List); 3] = [
            (ContainerKind::Init, |status| &status.init_container_statuses),
            (ContainerKind::App, |status| &status.container_statuses),
            (ContainerKind::Ephemeral, |status| &status.ephemeral_container_statuses),
        ];
        for (kind, list) in lists {
            for status in list(after).iter().flatten() {
                let Some(ended) = terminated(status) else { continue };
                let was = before.and_then(|before| list(before).as_ref());
                let was = was.into_iter().flatten().find(|was| was.name == status.name);
                if was.and_then(terminated).is_none() {
                    self.count(kind, ended);
                }
            }
        }
    }

    fn count(&self, kind: ContainerKind, ended: &ContainerStateTerminated) {
        let reason = ended.reason.as_deref().unwrap_or_default();
        let is_word = reason.len() <= TERMINATION_REASON_BYTES_MAX
            && reason.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let mut counts = self.0.borrow_mut();
        let mut way = (kind, is_word.then(|| (ended.exit_code, reason.into())));
        if counts.len() >= TERMINATIONS_MAX && !counts.contains_key(&way) {
            way.1 = None;
        }
        *counts.entry(way).or_default() += 1;
    }

    /// Labels and value of each line.
    pub(super) fn lines(&self) -> Vec<(String, u64)> {
        let line = |((kind, way), count): (&TerminationLabels, &u64)| {
            let kind = super::CONTAINER_TYPES[*kind as usize];
            let (code, reason) = match way {
                Some((code, reason)) => (code.to_string(), &**reason),
                None => ("other".to_owned(), "other"),
            };
            (format!("{{container_type=\"{kind}\",exit_code=\"{code}\",reason=\"{reason}\"}}"), *count)
        };
        self.0.borrow().iter().map(line).collect()
    }
}

fn terminated(status: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    status.state.as_ref()?.terminated.as_ref()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ContainerState;

    use super::*;

    fn status(name: &str, ended: Option<(i32, &str)>) -> PodStatus {
        let terminated = ended.map(|(exit_code, reason)| ContainerStateTerminated {
            exit_code,
            reason: Some(reason.to_owned()),
            ..ContainerStateTerminated::default()
        });
        let state = Some(ContainerState { terminated, ..ContainerState::default() });
        let container = ContainerStatus { name: name.to_owned(), state, ..ContainerStatus::default() };
        PodStatus { container_statuses: Some(vec![container]), ..PodStatus::default() }
    }

    #[test]
    fn each_termination_is_counted_once() {
        let counts = Terminations::default();
        let (runs, ended) = (status("a", None), status("a", Some((139, "Error"))));
        counts.note(None, &runs);
        counts.note(Some(&runs), &ended);
        counts.note(Some(&ended), &ended);
        counts.note(None, &status("b", Some((0, "Completed"))));
        // It ran again and terminated before a status showed that it ran.
        counts.note(Some(&ended), &status("a", Some((1, "Error"))));
        counts.note(Some(&status("a", None)), &ended);
        let of = |code, reason: &str| {
            format!("{{container_type=\"container\",exit_code=\"{code}\",reason=\"{reason}\"}}")
        };
        assert_eq!(counts.lines(), [(of(0, "Completed"), 1), (of(139, "Error"), 2)]);
    }

    #[test]
    fn the_number_of_lines_is_bounded_whatever_the_runtime_reports() {
        let counts = Terminations::default();
        for code in 0..1000 {
            counts.note(None, &status("a", Some((code, "Error"))));
        }
        for reason in ["with \"quotes\"", &"x".repeat(TERMINATION_REASON_BYTES_MAX + 1)] {
            counts.note(None, &status("a", Some((0, reason))));
        }
        let lines = counts.lines();
        assert!(lines.len() <= TERMINATIONS_MAX + 3, "{}", lines.len());
        assert_eq!(lines.iter().map(|(_, count)| count).sum::<u64>(), 1002);
        let other = "{container_type=\"container\",exit_code=\"other\",reason=\"other\"}";
        assert!(lines.iter().any(|(labels, _)| labels == other));
        assert!(lines.iter().all(|(labels, _)| !labels.contains("quotes")));
    }
}
