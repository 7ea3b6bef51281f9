//! PURE: the output of `smolet top`: `kubectl top pods`' columns.

use super::style::Style;
use super::text::{Cell, columns};
use crate::cri::CpuSample;
use crate::limits::{MIB, STATS_TIME_MAX};
use crate::model::PodKey;

/// The usage of one pod: the sum of its running containers. A value that the runtime does not report for one of them is `None`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodUse {
    /// The pod.
    pub pod: PodKey,
    /// Billionths of cores.
    pub nano_cores: Option<u64>,
    /// Memory in bytes.
    pub memory_bytes: Option<u64>,
    /// Bytes written to disks since the pod's start.
    pub written_bytes: Option<u64>,
}

impl PodUse {
    /// The usage of a pod without running containers.
    pub fn nothing(pod: PodKey) -> Self {
        Self { pod, nano_cores: Some(0), memory_bytes: Some(0), written_bytes: None }
    }

    /// Adds a container.
    pub fn add(&mut self, nano_cores: Option<u64>, memory_bytes: Option<u64>) {
        let sum = |of: Option<u64>, more: Option<u64>| Some(of?.saturating_add(more?));
        self.nano_cores = sum(self.nano_cores, nano_cores);
        self.memory_bytes = sum(self.memory_bytes, memory_bytes);
    }
}

/// CPU usage in billionths of cores between two samples. `None` when the second is not later, because a runtime may cache
/// samples; when the clock by which they are dated was set meanwhile; and when the counter was reset.
pub fn nano_cores(before: CpuSample, after: CpuSample) -> Option<u64> {
    let time = u64::try_from(after.at.0.checked_sub(before.at.0)?).ok()?;
    let time = Some(time).filter(|time| (1..=STATS_TIME_MAX.as_nanos()).contains(&u128::from(*time)))?;
    let used = u128::from(after.nanos.checked_sub(before.nanos)?);
    u64::try_from(used * 1_000_000_000 / u128::from(time)).ok()
}

/// The table, in the order of the pods; in thousandths of cores, rounded up, and whole MiB, as kubectl, which has no column for what was
/// written.
pub fn top(pods: &[PodUse], namespaces: bool, style: Style) -> String {
    let row = |texts: [&str; 5]| -> Vec<Cell> {
        texts.into_iter().skip(usize::from(!namespaces)).map(Cell::from).collect()
    };
    let mut rows = vec![row(["NAMESPACE", "NAME", "CPU(cores)", "MEMORY(bytes)", "WRITTEN(bytes)"])];
    for PodUse { pod, nano_cores, memory_bytes, written_bytes } in pods {
        let unknown = || "<unknown>".to_owned();
        let cpu = nano_cores.map_or_else(unknown, |nano| format!("{}m", nano.div_ceil(1_000_000)));
        let mebibytes =
            |bytes: &Option<u64>| bytes.map_or_else(unknown, |bytes| format!("{}Mi", bytes / MIB as u64));
        let (memory, written) = (mebibytes(memory_bytes), mebibytes(written_bytes));
        rows.push(row([&*pod.namespace, &*pod.name, &*cpu, &*memory, &*written]));
    }
    columns(&rows, 0, style)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Wall;

    #[test]
    fn looks_as_kubectl_top() {
        let mut web = PodUse::nothing(PodKey::new("default", "web-gw", "u1"));
        web.add(Some(1_000_001), Some(3 * MIB as u64));
        web.add(Some(249_000_000), Some(MIB as u64 - 1));
        let mut db = PodUse::nothing(PodKey::new("prod", "db-gw", "u2"));
        db.add(None, Some(1));
        db.add(Some(1), Some(1));
        let mut idle = PodUse::nothing(PodKey::new("prod", "idle-gw", "u3"));
        idle.written_bytes = Some(7 * MIB as u64);
        let pods = [web, db, idle];
        assert_eq!(
            top(&pods, true, Style::PLAIN),
            "NAMESPACE   NAME      CPU(cores)   MEMORY(bytes)   WRITTEN(bytes)\n\
             default     web-gw    251m         3Mi             <unknown>\n\
             prod        db-gw     <unknown>    0Mi             <unknown>\n\
             prod        idle-gw   0m           0Mi             7Mi\n"
        );
        assert!(top(&pods, false, Style::PLAIN).starts_with("NAME      CPU(cores)"));
    }

    #[test]
    fn cores_are_the_time_used_in_a_time() {
        let sample = |at, nanos| CpuSample { at: Wall(at), nanos };
        for (before, after, cores) in [
            (sample(0, 0), sample(1_000_000_000, 500_000_000), Some(500_000_000)),
            (sample(5, 7), sample(2_000_000_005, 4_000_000_007), Some(2_000_000_000)),
            (sample(5, 7), sample(6, 7), Some(0)),
            (sample(0, 0), sample(60_000_000_000, 600_000_000), Some(10_000_000)),
            // The same sample again, a clock that was set back or forward, a counter that was reset.
            (sample(5, 7), sample(5, 7), None),
            (sample(5, 7), sample(4, 8), None),
            (sample(0, 0), sample(60_000_000_001, 600_000_000), None),
            (sample(5, 7), sample(6, 6), None),
            (sample(i64::MIN, 0), sample(i64::MAX, u64::MAX), None),
        ] {
            assert_eq!(nano_cores(before, after), cores, "{before:?} {after:?}");
        }
    }
}
