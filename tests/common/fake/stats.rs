//! Resource usage of the fake's containers: a quarter of a core and, unless a test sets it, 5 MiB each.

use smolet::model::Now;
use smolet::proto::runtime::v1 as cri;

use super::state::{Container, State};

impl State {
    /// `ListContainerStats` of the running containers.
    pub(super) fn stats(&self, now: Now) -> cri::ListContainerStatsResponse {
        let value = |value: i64| Some(cri::UInt64Value { value: value.unsigned_abs() });
        let attributes = |container: &Container| cri::ContainerAttributes {
            id: container.id.clone(),
            labels: container.config.labels.clone(),
            ..Default::default()
        };
        let stats = |container: &Container| cri::ContainerStats {
            attributes: Some(attributes(container)),
            cpu: Some(cri::CpuUsage {
                timestamp: now.wall.0,
                usage_core_nano_seconds: value((now.wall.0 - container.started_at.0) / 4),
                usage_nano_cores: None,
            }),
            memory: Some(cri::MemoryUsage {
                timestamp: now.wall.0,
                working_set_bytes: value(self.memory.get(container.name()).copied().unwrap_or(5 << 20)),
                usage_bytes: value(self.memory.get(container.name()).copied().unwrap_or(6 << 20)),
                ..Default::default()
            }),
            writable_layer: Some(cri::FilesystemUsage {
                timestamp: now.wall.0,
                fs_id: None,
                used_bytes: value(self.written.get(container.name()).copied().unwrap_or(1 << 20)),
                inodes_used: value(10),
            }),
            swap: None,
        };
        let running = self.containers.values().filter(|container| container.running());
        let twice = running.clone().filter(|_| self.repeats_stats);
        let ended = self.containers.values().filter(|of| self.lists_ended_stats && !of.running());
        let without =
            |of: &Container| cri::ContainerStats { attributes: Some(attributes(of)), ..Default::default() };
        let stats = running.chain(twice).map(stats).chain(ended.map(without)).collect();
        cri::ListContainerStatsResponse { stats }
    }
}
