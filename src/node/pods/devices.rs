//! The devices behind device volumes, and the pods that have them.

use super::Pods;
use crate::cri::Runtime;
use crate::limits::DEVICE_PATH_BYTES_MAX;
use crate::model::{ContainerState, ObservedPod};
use crate::node::devices::FoundDevices;
use crate::node::effects::Effects;
use crate::sync::{ProbeResult, ProbeResults};
use crate::volume::device_paths;

impl<R: Runtime + 'static> Pods<R> {
    /// Sets what is behind the watched paths: the pods with those that changed are planned again, also while a failed sync waits.
    pub(in crate::node) fn set_devices(&mut self, found: FoundDevices, out: &mut Effects) {
        let before = std::mem::replace(&mut self.facts.devices, found);
        let changed = |path: &str| match (before.get(path), self.facts.devices.get(path)) {
            // The first look: the containers that run may have been started with another one.
            (None, _) => true,
            (Some(before), after) => Some(before) != after,
        };
        for (path, device) in &self.facts.devices {
            let was = before.get(path).copied().flatten();
            match device {
                Some(device) if was.is_some_and(|was| was != *device) => {
                    log::info!("device {path}: is another one now, {device}");
                }
                Some(device) => log::debug!("device {path}: {device}"),
                None if was.is_some() => log::info!("device {path}: is gone; its pods keep running"),
                None => {}
            }
        }
        for (uid, record) in &mut self.records {
            let Some(entry) = self.desired.pod(uid) else { continue };
            if device_paths(&entry.wanted.pod).any(|path| changed(&path.to_string_lossy())) {
                record.worker.runtime_is_back();
                record.worker.plan_again();
                out.drive(uid);
            }
        }
    }

    /// Number and bytes of the paths.
    pub(in crate::node) fn devices_held(&self) -> (usize, usize) {
        let devices = &self.facts.devices;
        (devices.len(), devices.len() * (DEVICE_PATH_BYTES_MAX + 64))
    }
}

/// Marks the running containers with a device volume behind which there is another device now. One that is gone comes back, or its
/// container ends by itself.
pub(super) fn other_devices(found: &FoundDevices, observed: &ObservedPod, marked: &mut ProbeResults) {
    if found.is_empty() {
        return;
    }
    for status in observed.containers.iter().filter(|status| status.state == ContainerState::Running) {
        let devices = status.meta.devices.iter().flat_map(|devices| devices.iter());
        let mut now = devices.filter_map(|device| Some((device.number, found.get(&*device.path)?.as_ref()?)));
        if now.any(|(then, now)| then != *now) {
            marked.set(&status.id, ProbeResult::Failure);
        }
    }
}
