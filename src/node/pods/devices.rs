//! The devices behind device volumes, and the pods that have them.

use std::path::{Path, PathBuf};

use super::Pods;
use crate::cgroup::DeviceChange;
use crate::cri::Runtime;
use crate::events::EventKind;
use crate::limits::DEVICE_PATH_BYTES_MAX;
use crate::model::backoff::BackoffKey;
use crate::model::device::updates_devices;
use crate::model::{
    ContainerDevice, ContainerId, ContainerState, ContainerStatus, DesiredPod, DeviceNumber, ObservedPod,
    PodUid, Wall,
};
use crate::node::agent::Event;
use crate::node::devices::FoundDevices;
use crate::node::effects::Effects;
use crate::render::admission::wants_user_namespace;
use crate::sync::{ProbeResult, ProbeResults};
use crate::volume::{DeviceMount, device_mounts, device_paths};

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

    /// Marks the running containers with a device volume behind which there is another device now: they are restarted. Where their
    /// pod says so they are given it while they run, and marked only where that is not possible.
    pub(super) fn mark_other_devices(
        &mut self,
        pod: &DesiredPod,
        observed: &ObservedPod,
        now: Wall,
        marked: &mut ProbeResults,
        out: &Effects,
    ) {
        // Nodes that are made outside of a user namespace cannot be opened in it.
        let updates = updates_devices(pod) == Ok(true) && !wants_user_namespace(pod);
        let Some(record) = self.records.get_mut(&pod.key.uid) else { return };
        record.devices.retain(|of| updates && observed.containers.iter().any(|status| status.id == of.id));
        for (status, there) in found_devices(&self.facts.devices, observed, now) {
            let is_another = has_another(&there);
            if !updates && is_another {
                marked.set(&status.id, ProbeResult::Failure);
            }
            if !updates || there.is_empty() {
                continue;
            }
            let at = self.facts.devices.at;
            match record.devices.iter_mut().find(|of| of.id == status.id) {
                Some(ChangedDevices { done: None, .. }) => continue,
                Some(of) if of.at == at => {
                    if of.done == Some(false) && is_another {
                        marked.set(&status.id, ProbeResult::Failure);
                    }
                    continue;
                }
                Some(of) => (of.at, of.done) = (at, None),
                // It has what it was created with, unless a former agent gave it something else.
                None if !is_another && status.created_at >= self.started => continue,
                None => record.devices.push(ChangedDevices { id: status.id.clone(), at, done: None }),
            }
            let (blocking, cgroups) = (self.ctx.manager.blocking.clone(), self.cgroups.hierarchies.clone());
            let (uid, id, node) = (pod.key.uid.clone(), status.id.clone(), (*self.ctx.node).clone());
            let changes = changes(pod, &status.name, &there);
            let path = PathBuf::from(&*there[0].0.path);
            let names = (uid.to_string(), id.to_string());
            out.start("devices", async move {
                let change = move || cgroups.change_devices(&node, (&names.0, &names.1), &changes);
                let done = blocking.run_outside_of(&uid, &path, change).await;
                let done = done.map_err(|stuck| stuck.to_string());
                let done = done.and_then(|done| done.map_err(|error| error.to_string()));
                Event::DevicesChanged(uid, id, done)
            });
        }
    }

    /// A running container was to get other devices.
    pub(in crate::node) fn devices_changed(
        &mut self,
        uid: &PodUid,
        id: &ContainerId,
        done: Result<String, String>,
        out: &mut Effects,
    ) {
        let Some(record) = self.records.get_mut(uid) else { return };
        let Some(of) = record.devices.iter_mut().find(|of| of.id == *id) else { return };
        of.done = Some(done.is_ok());
        let key = record.worker.key();
        match done {
            Ok(changed) if !changed.is_empty() => {
                let message = format!("Container {id} runs on with other devices:{changed}");
                self.ctx.note(key, EventKind::Normal, "DeviceChanged", &message);
            }
            Ok(_) => {}
            Err(why) => {
                log::info!(
                    "pod {key}: container {id} cannot be given other devices while it runs: {why}; it gets them by a restart"
                );
            }
        }
        record.worker.plan_again();
        out.drive(uid);
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

/// What a running container was given in the place of the devices that it was created with.
pub(in crate::node) struct ChangedDevices {
    id: ContainerId,
    /// Those of the look at that time.
    at: Wall,
    /// Whether that was possible; `None` while it is done.
    done: Option<bool>,
}

/// The running containers that are older than the look: one that is newer has newer devices, and one from the future is from before the
/// clock was set back. With each its device volumes, and which of them have which device now; one that is gone comes back, or its
/// container ends by itself.
fn found_devices<'a>(
    found: &'a FoundDevices,
    observed: &'a ObservedPod,
    now: Wall,
) -> impl Iterator<Item = (&'a ContainerStatus, Vec<(&'a ContainerDevice, DeviceNumber)>)> {
    let is_older = move |status: &&ContainerStatus| {
        status.state == ContainerState::Running && (status.created_at < found.at || status.created_at > now)
    };
    observed.containers.iter().filter(is_older).map(|status| {
        let devices = status.meta.devices.iter().flat_map(|devices| devices.iter());
        let there = devices.filter_map(|of| Some((of, (*found.by_path.get(&*of.path)?)?)));
        (status, there.collect())
    })
}

fn has_another(there: &[(&ContainerDevice, DeviceNumber)]) -> bool {
    there.iter().any(|(then, now)| then.number != *now)
}

/// How these devices get into a container.
fn changes(pod: &DesiredPod, name: &str, there: &[(&ContainerDevice, DeviceNumber)]) -> Vec<DeviceChange> {
    let mut all = pod.init_containers().iter().chain(pod.containers());
    let Some(container) = all.find(|container| container.name == name) else { return Vec::new() };
    let is_privileged =
        container.security_context.as_ref().is_some_and(|context| context.privileged == Some(true));
    let mounts = device_mounts(pod, container.volume_mounts.as_deref().unwrap_or_default());
    let change = |mount: DeviceMount| {
        let (_, number) = there.iter().find(|(then, _)| Path::new(&*then.path) == mount.volume.path)?;
        Some(DeviceChange {
            path: mount.volume.path,
            container_path: mount.container_path,
            access: match (is_privileged, mount.read_only) {
                (true, _) => "",
                (false, true) => "r",
                (false, false) => "rw",
            },
            number: *number,
        })
    };
    mounts.unwrap_or_default().into_iter().filter_map(change).collect()
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
        let with_another = |found: &FoundDevices, now| {
            let all = found_devices(found, &observed, now).filter(|(_, there)| has_another(there));
            all.map(|(status, _)| status.id.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(with_another(&found, Wall(6)), ["other"]);
        // The clock was set back to before any of them.
        let found = FoundDevices { at: Wall(0), ..found };
        assert_eq!(with_another(&found, Wall(0)), ["other", "newer"]);
    }
}
