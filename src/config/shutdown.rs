//! A graceful node shutdown: the time that pods have (`shutdownGracePeriod*`). PURE.

use std::time::Duration;

use super::kubelet::{FileSettings, GoDuration, PodPriority, parse_go_duration};
use super::{ConfigError, Flags};
use crate::model::Seconds;
use crate::shutdown::{ShutdownGroup, ShutdownGroups};

/// Flags take precedence over the file.
pub(super) fn groups(flags: &Flags, file: &FileSettings) -> Result<ShutdownGroups, ConfigError> {
    let all = flag_duration("--shutdown-grace-period", flags.shutdown_grace_period.as_deref())?;
    let critical = flag_duration(
        "--shutdown-grace-period-critical-pods",
        flags.shutdown_grace_period_critical_pods.as_deref(),
    )?;
    shutdown_groups(
        all.or(file.time("shutdownGracePeriod")),
        critical.or(file.time("shutdownGracePeriodCriticalPods")),
        &file.list("shutdownGracePeriodByPodPriority")?,
    )
}

/// The groups of pods of a graceful node shutdown (`NewManager`, `ValidateKubeletConfiguration`).
fn shutdown_groups(
    all: Option<GoDuration>,
    critical: Option<GoDuration>,
    by_priority: &[PodPriority],
) -> Result<ShutdownGroups, ConfigError> {
    let [all, critical] = [all, critical].map(|given| given.map_or(Duration::ZERO, |duration| duration.0));
    let periods = [all, critical].iter().any(|period| !period.is_zero());
    if periods && !by_priority.is_empty() {
        return Err(ConfigError(
            "shutdownGracePeriodByPodPriority: may not be given beside shutdownGracePeriod and \
             shutdownGracePeriodCriticalPods"
                .to_owned(),
        ));
    }
    let groups = if by_priority.is_empty() {
        ShutdownGroups::of_periods(all, critical)
    } else {
        let group = |given: &PodPriority| ShutdownGroup {
            priority: given.priority,
            grace: Seconds(given.shutdown_grace_period_seconds),
        };
        ShutdownGroups::of_priorities(by_priority.iter().map(group).collect())
    };
    groups.map_err(ConfigError)
}

fn flag_duration(flag: &str, text: Option<&str>) -> Result<Option<GoDuration>, ConfigError> {
    let parsed = |text| {
        let duration = parse_go_duration(text).map(GoDuration);
        duration.ok_or_else(|| {
            ConfigError(format!("{flag}: {text:?}: must be a duration such as 20s, 1m30s or 2h"))
        })
    };
    text.map(parsed).transpose()
}
