//! Eviction thresholds (`ParseThresholdConfig`, `ValidateKubeletConfiguration`: `eviction*`).

use std::collections::BTreeMap;
use std::time::Duration;

use super::ConfigError;
use super::kubelet::{FileSettings, GoDuration, parse_go_duration};
use crate::eviction::{Amount, EVICTION_HARD, Signal, Threshold};
use crate::limits::EVICTION_TRANSITION;

/// By signal.
pub(super) type BySignal<T> = BTreeMap<String, T>;

/// The fields of the file, each `None` when it is not set.
#[derive(Default)]
pub(super) struct GivenFields {
    pub(super) hard: Option<BySignal<String>>,
    pub(super) soft: Option<BySignal<String>>,
    pub(super) soft_grace: Option<BySignal<String>>,
    pub(super) min_reclaim: Option<BySignal<String>>,
    pub(super) transition: Option<GoDuration>,
    pub(super) max_pod_grace: Option<i32>,
    /// Signals that `hard` does not name keep their defaults (`mergeDefaultEvictionSettings`).
    pub(super) merge_defaults: bool,
}

impl GivenFields {
    pub(super) fn of(file: &FileSettings) -> Self {
        Self {
            hard: file.map("evictionHard"),
            soft: file.map("evictionSoft"),
            soft_grace: file.map("evictionSoftGracePeriod"),
            min_reclaim: file.map("evictionMinimumReclaim"),
            transition: file.time("evictionPressureTransitionPeriod"),
            max_pod_grace: file.int("evictionMaxPodGracePeriod"),
            merge_defaults: file.bool("mergeDefaultEvictionSettings").unwrap_or(false),
        }
    }
}

/// When pods are evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvictionPolicy {
    /// Hard thresholds first.
    pub thresholds: Vec<Threshold>,
    /// How long a condition holds after it was last met (`evictionPressureTransitionPeriod`).
    pub transition: Duration,
    /// Greatest grace period of a pod when a soft threshold is met (`evictionMaxPodGracePeriod`), in seconds.
    pub max_pod_grace: i64,
}

impl EvictionPolicy {
    /// No signals are observed, and no pod is evicted.
    pub const NEVER: Self = Self { thresholds: Vec::new(), transition: Duration::ZERO, max_pod_grace: 0 };
}

/// As the kubelet: `evictionHard` replaces all defaults, or with `mergeDefaultEvictionSettings` those of its signals.
pub(super) fn policy(given: GivenFields) -> Result<EvictionPolicy, ConfigError> {
    let min_reclaim = amounts("evictionMinimumReclaim", given.min_reclaim.unwrap_or_default())?;
    let hard = match given.hard {
        Some(hard) => {
            let mut usual = EVICTION_HARD.to_vec();
            // A signal that is given as 0 is off, not merged.
            usual.retain(|(signal, _)| given.merge_defaults && !hard.contains_key(signal.as_str()));
            let mut merged = amounts("evictionHard", hard)?;
            merged.extend(usual);
            merged.sort_by_key(|(signal, _)| *signal);
            merged
        }
        None => EVICTION_HARD.to_vec(),
    };
    let mut graces = given.soft_grace.unwrap_or_default();
    let mut thresholds: Vec<Threshold> = Vec::new();
    let threshold = |signal: Signal, at: Amount, grace: Duration| {
        let min_reclaim = min_reclaim.iter().find(|(of, _)| *of == signal).map(|(_, least)| *least);
        Threshold { signal, at, grace, min_reclaim }
    };
    thresholds.extend(hard.into_iter().map(|(signal, at)| threshold(signal, at, Duration::ZERO)));
    for (signal, at) in amounts("evictionSoft", given.soft.unwrap_or_default())? {
        let grace = graces.remove(signal.as_str()).map(|text| {
            parse_go_duration(&text).ok_or_else(|| {
                ConfigError(format!(
                    "evictionSoftGracePeriod.{}: {text:?}: must be a duration such as 20s, 1m30s or 2h",
                    signal.as_str()
                ))
            })
        });
        let grace = grace.transpose()?;
        let Some(grace) = grace.filter(|grace| !grace.is_zero()) else {
            return Err(ConfigError(format!(
                "evictionSoftGracePeriod: must have a period greater than 0 for the soft threshold {}",
                signal.as_str()
            )));
        };
        thresholds.push(threshold(signal, at, grace));
    }
    if let Some(left) = graces.keys().next() {
        return Err(ConfigError(format!(
            "evictionSoftGracePeriod: {left:?}: evictionSoft has no such threshold"
        )));
    }
    let max_pod_grace = i64::from(given.max_pod_grace.unwrap_or_default());
    if max_pod_grace < 0 {
        return Err(ConfigError(format!("evictionMaxPodGracePeriod: {max_pod_grace}: must not be negative")));
    }
    // As the kubelet: 0 means the default.
    let transition = GoDuration::or(given.transition, EVICTION_TRANSITION);
    Ok(EvictionPolicy { thresholds, transition, max_pod_grace })
}

/// The amounts of a field, in the order of the signals; disabled ones are left out.
fn amounts(field: &str, texts: BySignal<String>) -> Result<Vec<(Signal, Amount)>, ConfigError> {
    let mut found = Vec::new();
    for (name, text) in texts {
        let Some(signal) = Signal::ALL.into_iter().find(|signal| signal.as_str() == name) else {
            let all: Vec<&str> = Signal::ALL.iter().map(|signal| signal.as_str()).collect();
            return Err(ConfigError(format!("{field}: {name:?}: must be one of {}", all.join(", "))));
        };
        match Amount::parse(&text) {
            Ok(amount) => found.extend(amount.map(|amount| (signal, amount))),
            Err(rule) => return Err(ConfigError(format!("{field}: {name}: {text:?}: {rule}"))),
        }
    }
    found.sort_by_key(|(signal, _)| *signal);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(of: &[(&str, &str)]) -> Option<BySignal<String>> {
        (!of.is_empty()).then(|| of.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect())
    }

    #[test]
    fn the_defaults_are_the_kubelets_and_what_is_given_replaces_all_of_them() {
        let default = policy(GivenFields::default()).expect("valid");
        let shown = |threshold: &Threshold| (threshold.signal.as_str(), threshold.at, threshold.is_hard());
        let found: Vec<_> = default.thresholds.iter().map(shown).collect();
        assert_eq!(
            found,
            [
                ("memory.available", Amount::Quantity(100 << 20), true),
                ("nodefs.available", Amount::Share(100_000), true),
                ("nodefs.inodesFree", Amount::Share(50_000), true),
                ("imagefs.available", Amount::Share(150_000), true),
                ("imagefs.inodesFree", Amount::Share(50_000), true),
            ]
        );
        assert_eq!((default.transition, default.max_pod_grace), (Duration::from_mins(5), 0));
        let given = GivenFields {
            hard: texts(&[("nodefs.available", "1Gi"), ("memory.available", "0%")]),
            soft: texts(&[("memory.available", "200Mi")]),
            soft_grace: Some([("memory.available".to_owned(), "1m30s".to_owned())].into()),
            min_reclaim: texts(&[("nodefs.available", "500Mi")]),
            max_pod_grace: Some(30),
            ..GivenFields::default()
        };
        let found = policy(given).expect("valid");
        let shown: Vec<_> =
            found.thresholds.iter().map(|t| (shown(t), t.grace.as_secs(), t.min_reclaim)).collect();
        let gib = ("nodefs.available", Amount::Quantity(1 << 30), true);
        let soft = ("memory.available", Amount::Quantity(200 << 20), false);
        assert_eq!(shown, [(gib, 0, Some(Amount::Quantity(500 << 20))), (soft, 90, None)]);
        assert_eq!(found.max_pod_grace, 30);
    }

    #[test]
    fn bad_thresholds_name_their_field() {
        let grace = |seconds| Some([("memory.available".to_owned(), format!("{seconds}s"))].into());
        let soft = || texts(&[("memory.available", "1Gi")]);
        for (given, said) in [
            (
                GivenFields { hard: texts(&[("memory.free", "1Mi")]), ..GivenFields::default() },
                "evictionHard: \"memory.free\": ",
            ),
            (
                GivenFields { hard: texts(&[("memory.available", "0")]), ..GivenFields::default() },
                "evictionHard: memory.available: ",
            ),
            (GivenFields { soft: soft(), ..GivenFields::default() }, "evictionSoftGracePeriod: must have"),
            (
                GivenFields { soft: soft(), soft_grace: grace(0), ..GivenFields::default() },
                "evictionSoftGracePeriod: must have",
            ),
            (
                GivenFields { soft_grace: grace(30), ..GivenFields::default() },
                "evictionSoftGracePeriod: \"memory.available\"",
            ),
            (
                GivenFields { max_pod_grace: Some(-1), ..GivenFields::default() },
                "evictionMaxPodGracePeriod: -1: must not",
            ),
        ] {
            let error = policy(given).expect_err("must be refused");
            assert!(error.0.starts_with(said), "{error}");
        }
    }
}
