//! Decides which failed calls are logged, so that a lasting failure does not fill the journal. PURE.

use crate::kube::KubeError;
use crate::limits::{KUBE_REFUSALS_LOGGED_MAX, NODE_REPORT_PERIOD};
use crate::model::Mono;
use crate::model::SortedMap;

/// The failures that were logged.
#[derive(Default)]
pub(super) struct FailureLog {
    /// A failure of the link, which affects all calls: logged once, until a call succeeds.
    link: Option<KubeError>,
    /// Refused calls, and when each was logged: once in `NODE_REPORT_PERIOD`, whatever else succeeds.
    refusals: SortedMap<Box<str>, (KubeError, Mono)>,
}

impl FailureLog {
    /// Whether to log that failure. When the table is full, a further refusal is not logged.
    pub(super) fn note(&mut self, what: &str, why: &KubeError, now: Mono) -> bool {
        // What keeps the node from joining is logged by whoever joins it.
        if matches!(why, KubeError::NotJoined(_)) {
            return false;
        }
        if !matches!(why, KubeError::Refused { .. }) {
            return self.link.replace(why.clone()).as_ref() != Some(why);
        }
        self.refusals.retain(|_, (_, at)| now.since(*at) < NODE_REPORT_PERIOD);
        let known = self.refusals.get(what).is_some_and(|(said, _)| said == why);
        let room = self.refusals.contains_key(what) || self.refusals.len() < KUBE_REFUSALS_LOGGED_MAX;
        let is_news = !known && room;
        if is_news {
            self.refusals.insert(what.into(), (why.clone(), now));
        }
        is_news
    }

    /// Number and bytes of the refusals in the table.
    pub(super) fn held(&self) -> (usize, usize) {
        let bytes = self.refusals.iter().map(|(what, (why, _))| what.len() + why.to_string().len());
        (self.refusals.len(), bytes.sum())
    }

    /// A call succeeded.
    pub(super) fn note_success(&mut self) {
        self.link = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: i64) -> Mono {
        Mono(seconds * 1_000_000_000)
    }

    fn refused(message: &str) -> KubeError {
        KubeError::Refused { code: 403, reason: "Forbidden".into(), message: message.into() }
    }

    #[test]
    fn a_link_that_is_down_is_logged_once_until_it_is_up() {
        let mut said = FailureLog::default();
        let down = KubeError::Unreachable("refused".into());
        assert!(said.note("the lease", &down, at(0)));
        assert!(!said.note("pod a", &down, at(1)), "it is the same");
        assert!(!said.note("the lease", &down, at(1_000_000)));
        said.note_success();
        assert!(said.note("the lease", &down, at(1_000_001)));
    }

    #[test]
    fn a_node_that_has_not_joined_yet_logs_no_failed_calls() {
        let mut said = FailureLog::default();
        assert!(!said.note("the lease", &KubeError::NotJoined("kubeconfig".into()), at(0)));
        assert!(said.note("the lease", &KubeError::Unreachable("refused".into()), at(1)), "it has joined");
    }

    #[test]
    fn a_refusal_is_logged_once_per_period_whatever_else_succeeds() {
        let mut said = FailureLog::default();
        let period = NODE_REPORT_PERIOD.as_secs().try_into().unwrap();
        for second in (0..period).step_by(10) {
            assert_eq!(said.note("pod a", &refused("no"), at(second)), second == 0, "{second}");
            assert_eq!(
                said.note("pod b", &refused("no"), at(second)),
                second == 0,
                "another pod is another matter"
            );
            said.note_success();
        }
        assert!(said.note("pod a", &refused("never"), at(1)), "another answer is news");
        assert!(said.note("pod b", &refused("no"), at(period)), "it lasts");
    }

    #[test]
    fn a_full_table_logs_no_further_refusals() {
        let mut said = FailureLog::default();
        for n in 0..2 * KUBE_REFUSALS_LOGGED_MAX {
            let is_news = said.note(&format!("pod {n}"), &refused("no"), at(0));
            assert_eq!(is_news, n < KUBE_REFUSALS_LOGGED_MAX, "{n}");
        }
        assert_eq!(said.refusals.len(), KUBE_REFUSALS_LOGGED_MAX);
    }
}
