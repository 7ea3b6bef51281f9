//! The devices behind device volumes, and the pods that have them.

use super::Pods;
use crate::cri::Runtime;
use crate::limits::DEVICE_PATH_BYTES_MAX;
use crate::model::backoff::BackoffKey;
use crate::model::{ContainerState, ContainerStatus, ObservedPod, Wall};
use crate::node::devices::FoundDevices;
use crate::node::effects::Effects;
use crate::sync::{ProbeResult, ProbeResults};
use crate::volume::device_paths;

impl<R: Runtime + 'static> Pods<R> {
    /// Sets what is behind the watched paths: the pods that have them are planned again, also while a failed sync waits. A device that
    /// has come ends the crash back-off of its pod, whose program may have ended for want of it.
    pub(in crate::node) fn set_devices(&mut self, found: FoundDevices, out: &mut Effects) {
        let before = std::mem::replace(&mut self.facts.devices, found).by_path;
        for (path, device) in &self.facts.devices.by_path {
            let was = before.get(path).copied().flatten();
            match device {
                Some(device) if was.is_some_and(|was| was != *device) => {
                    log::info!("device {path}: is another one now, {device}");
                }
                Some(device) if was.is_none() => log::debug!("device {path}: {device}"),
                None if was.is_some() => log::info!("device {path}: is gone; its pods keep running"),
                Some(_) | None => {}
            }
        }
        for (uid, record) in &mut self.records {
            let Some(entry) = self.desired.pod(uid) else { continue };
            let pod = &entry.wanted.pod;
            let has_come = |path: &str| {
                let (before, now) = (before.get(path), self.facts.devices.by_path.get(path));
                now.is_some_and(Option::is_some) && before.is_some_and(|before| Some(before) != now)
            };
            if device_paths(pod).any(|path| path.to_str().is_some_and(has_come)) {
                for container in pod.init_containers().iter().chain(pod.containers()) {
                    self.backoff.forget(BackoffKey::container(pod, container));
                }
            }
            if device_paths(pod).next().is_some() {
                record.worker.runtime_is_back();
                record.worker.plan_again();
                out.drive(uid);
            }
        }
    }

    /// Drops what is known of such paths: nobody watches them any more.
    pub(in crate::node) fn forget_devices(&mut self, is_one: impl Fn(&str) -> bool) {
        self.facts.devices.by_path.retain(|path, _| !is_one(path));
    }

    /// Number and bytes of the paths.
    pub(in crate::node) fn devices_held(&self) -> (usize, usize) {
        let devices = &self.facts.devices.by_path;
        (devices.len(), devices.len() * (DEVICE_PATH_BYTES_MAX + 64))
    }
}

/// Marks the running containers with a device volume behind which there is another device now. One that is gone comes back, or its
/// container ends by itself. A container that is newer than the look has a newer device; one from the future is from before the
/// clock was set back.
pub(super) fn other_devices(
    found: &FoundDevices,
    observed: &ObservedPod,
    now: Wall,
    marked: &mut ProbeResults,
) {
    let is_older = |status: &&ContainerStatus| {
        status.state == ContainerState::Running && (status.created_at < found.at || status.created_at > now)
    };
    for status in observed.containers.iter().filter(is_older) {
        let devices = status.meta.devices.iter().flat_map(|devices| devices.iter());
        let mut now =
            devices.filter_map(|device| Some((device.number, found.by_path.get(&*device.path)?.as_ref()?)));
        if now.any(|(then, now)| then != *now) {
            marked.set(&status.id, ProbeResult::Failure);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ContainerMeta;
    use crate::model::device::parse_device_lines;

    #[test]
    fn only_what_runs_and_is_older_than_the_look_has_another_device() {
        let status = |id: &str, state, created, devices: &str| ContainerStatus {
            id: id.into(),
            state,
            created_at: Wall(created),
            meta: ContainerMeta { devices: parse_device_lines(devices), ..ContainerMeta::default() },
            ..ContainerStatus::default()
        };
        let running = ContainerState::Running;
        let containers = vec![
            status("same", running, 1, "c 188:0 /dev/a"),
            status("other", running, 1, "c 188:0 /dev/a\nc 188:7 /dev/b"),
            status("newer", running, 5, "c 188:7 /dev/b"),
            status("gone", running, 1, "c 188:1 /dev/c"),
            status("unwatched", running, 1, "c 188:1 /dev/d"),
            status("none", running, 1, ""),
            status("ended", ContainerState::Exited, 1, "c 188:7 /dev/b"),
        ];
        let observed = ObservedPod { containers, ..ObservedPod::default() };
        let number = |minor| Some(crate::model::DeviceNumber { is_block: false, major: 188, minor });
        let by_path = [("/dev/a".into(), number(0)), ("/dev/b".into(), number(1)), ("/dev/c".into(), None)];
        let found = FoundDevices { by_path: by_path.into_iter().collect(), at: Wall(5) };
        let mut marked = ProbeResults::default();
        other_devices(&found, &observed, Wall(6), &mut marked);
        let of = |marked: &ProbeResults| {
            let ids = observed.containers.iter().filter(|status| marked.of(&status.id).is_some());
            ids.map(|status| status.id.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(of(&marked), ["other"]);
        // The clock was set back to before any of them.
        let (found, mut marked) = (FoundDevices { at: Wall(0), ..found }, ProbeResults::default());
        other_devices(&found, &observed, Wall(0), &mut marked);
        assert_eq!(of(&marked), ["other", "newer"]);
    }
}
