//! Applies the sources' updates to the pods (`HandlePodAdditions`, `HandlePodUpdates`, `HandlePodRemoves`,
//! `HandlePodCleanups`): starts desired pods, terminates removed ones, and terminates orphans of the runtime.

use std::cmp::Reverse;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{EphemeralContainer, PodStatus};

use super::record::Record;
use super::{MachineState, Pods};
use crate::allocation::with_allocation;
use crate::cri::Runtime;
use crate::desired::Change;
use crate::events::EventKind;
use crate::image::name::full_name;
use crate::limits::{HELD_PODS_REPORTED_MAX, PODS_IN_HAND_MAX, PODS_OPENED_BYTES_MAX};
use crate::model::backoff::BackoffKey;
use crate::model::{DesiredPod, Mono, Now, ObjectKey, ObjectKind, PodKey, PodUid, SortedSet, object};
use crate::node::agent::Event;
use crate::node::checkpoint::Restored;
use crate::node::effects::{Effect, Effects};
use crate::node::jobs;
use crate::pleg::{Relist, RelistPod};
use crate::poison;
use crate::render::ManifestObjects;
use crate::source::{SourceUpdate, SourcedPod};
use crate::status::merge;
use crate::status::restarts::is_in_crash_backoff;
use crate::sync::worker::{Life, Worker};

impl<R: Runtime + 'static> Pods<R> {
    /// Approximate memory of the large pods' unpacked objects, in bytes.
    pub(in crate::node) fn opened_bytes(&self) -> usize {
        self.records.values().map(|record| record.worker.opened_bytes()).sum()
    }

    /// Packs idle pods, the largest first, until the unpacked objects take at most [`PODS_OPENED_BYTES_MAX`].
    pub(in crate::node) fn pack(&mut self) {
        self.desired.pack();
        let mut sum = self.opened_bytes();
        if sum <= PODS_OPENED_BYTES_MAX {
            return;
        }
        let open = |record: &Record| record.worker.opened_bytes();
        let mut large: Vec<&mut Record> =
            self.records.values_mut().filter(|record| open(record) > 0).collect();
        large.sort_by_key(|record| Reverse(open(record)));
        for record in large {
            let before = open(record);
            record.worker.pack();
            sum -= before - open(record);
            if sum <= PODS_OPENED_BYTES_MAX {
                return;
            }
        }
    }

    /// Stores the update until the first relist; returns it when there was one.
    pub(in crate::node) fn await_relist(&mut self, update: SourceUpdate) -> Option<SourceUpdate> {
        if self.relist.is_some() {
            return Some(update);
        }
        self.early_updates.insert(update.source, update);
        None
    }

    /// Applies a source's full set of pods.
    pub(in crate::node) fn apply(&mut self, mut update: SourceUpdate, out: &mut Effects) {
        self.held.insert(update.source, update.held);
        let over = update.server.over.clone();
        // A pod that ended on this node counts as ended before the API server has its status (`filterOutInactivePods`).
        let ended = update.pods.iter().map(|sourced| &sourced.pod.key.uid);
        update.server.over.extend(ended.filter(|uid| self.statuses.has_ended(uid)).cloned());
        let relist = self.relist.as_ref();
        let changes = self.desired.apply(update, |uid| relist.is_some_and(|r| r.pods.contains_key(uid)));
        for problem in self.desired.merge_problems().filter(|problem| problem.fresh) {
            log::warn!("{problem}");
        }
        let now = self.now();
        let mut touched = SortedSet::new();
        let (mut wanted, mut objects) = (Vec::new(), SortedSet::new());
        for change in changes {
            match change {
                Change::Removed(key) => {
                    let pod = self.records.get(&key.uid).and_then(|record| record.worker.pod());
                    let of_server = pod.is_some_and(|pod| pod.pod.is_of_api_server());
                    let why = match (of_server, over.contains(&key.uid)) {
                        (true, true) => "finished; removing its containers and directories",
                        (true, false) => "deleted on the API server; terminating it",
                        (false, _) => "its manifest is gone; terminating it",
                    };
                    log::info!("pod {key}: {why}");
                    touched.insert(key.uid.clone());
                    self.remove_desired(&key.uid, now);
                }
                Change::Changed(pod) | Change::Added(pod) => wanted.push(pod),
                Change::Object(key) => drop(objects.insert(key)),
            }
        }
        if !objects.is_empty() {
            self.ctx.env = Rc::new(ManifestObjects(self.desired.objects()));
            self.retry_with_objects(&objects, &mut touched);
        }
        self.retry_after_cluster_change(&mut touched);
        // Before new pods start: they may have to wait for an orphan's name.
        self.end_orphans(&mut touched, out);
        for pod in wanted {
            touched.insert(pod.key.uid.clone());
            self.set_desired(pod, out);
        }
        for uid in touched {
            out.drive(&uid);
        }
        out.push(Effect::Applied(over));
    }

    /// Retries the pods that reference one of the changed objects. The volumes of running pods are updated; environment variables
    /// are read when a container is created.
    fn retry_with_objects(&mut self, objects: &SortedSet<ObjectKey>, touched: &mut SortedSet<PodUid>) {
        for (uid, record) in &mut self.records {
            // The desired pod, not the record's, which a terminating pod keeps. A removed pod must not start again.
            let Some(entry) = self.desired.pod(uid) else { continue };
            let pod = &entry.wanted.pod;
            if !object::named_by(&pod.pod).is_disjoint(objects) {
                // Differs from the kubelet, whose pull back-off goes on with changed credentials.
                if object::pull_secrets(&pod.pod)
                    .any(|name| objects.contains(&pod.names(ObjectKind::Secret, name)))
                {
                    for image in pod.images() {
                        self.ctx.manager.images.forget(uid, image);
                    }
                    // A pull that hangs with the old credentials must not delay the new one.
                    record.give_up = None;
                }
                record.set_desired(pod.clone());
                record.volumes_stale = true;
                touched.insert(uid.clone());
            }
        }
    }

    /// Retries the pods whose runtime handler, claimed volumes or room for objects changed in the cluster. Running containers are
    /// not affected.
    fn retry_after_cluster_change(&mut self, touched: &mut SortedSet<PodUid>) {
        for entry in self.desired.entries() {
            let pod = &entry.wanted.pod;
            let Some(record) = self.records.get_mut(&pod.key.uid) else { continue };
            let known = record.worker.pod();
            let is_other = |known: &DesiredPod| {
                known.claims != pod.claims
                    || known.handler != pod.handler
                    || known.too_many_objects != pod.too_many_objects
            };
            if known.is_some_and(|known| is_other(known)) {
                record.set_desired(pod.clone());
                touched.insert(pod.key.uid.clone());
            }
        }
    }

    /// Images were imported: retries the pods that use one of them, without their pull back-off.
    pub(in crate::node) fn imported(&mut self, images: &[String], out: &mut Effects) {
        let is_one = |image: &&str| full_name(image).is_ok_and(|name| images.contains(&name));
        let mut touched = SortedSet::new();
        for (uid, record) in &mut self.records {
            let Some(entry) = self.desired.pod(uid) else { continue };
            // Containers of `smolet debug` are in the record only.
            let debuggers = record.worker.pod().map(|pod| pod.ephemeral_containers()).unwrap_or_default();
            let debuggers = debuggers.iter().filter_map(|container| container.image.as_deref());
            let images = entry.wanted.pod.images().chain(debuggers).filter(is_one);
            let waited = images.inspect(|image| self.ctx.manager.images.forget(uid, image)).count();
            if waited > 0 {
                record.set_desired(entry.wanted.pod.clone());
                // What is still pulled is there.
                record.give_up = None;
                touched.insert(uid.clone());
            }
        }
        for uid in touched {
            out.drive(&uid);
        }
    }

    pub(in crate::node) fn set_desired(&mut self, pod: DesiredPod, out: &mut Effects) {
        let uid = pod.key.uid.clone();
        let file = self.desired.pod(&uid).map(|entry| entry.wanted.origin.file.clone());
        self.note_resize_request(&pod);
        // A file that changed is a new pod for the kubelet; here the UID of a static pod stays where only images or metadata change.
        if !pod.pod.is_of_api_server()
            && self.statuses.has_ended(&uid)
            && self.records.get(&uid).is_some_and(|record| record.is_changed_by(&pod))
        {
            let now = self.now();
            self.remove_desired(&uid, now);
        }
        if let Some(record) = self.records.get_mut(&uid) {
            record.set_desired(pod);
            self.statuses.set_wanted(&uid, true);
            record.file = file;
            // A pull of the old image that hangs must not delay the new one.
            record.give_up = None;
            // Downward API volumes have labels and annotations.
            record.volumes_stale = true;
            record.manifest_changed();
            self.judge(&uid);
        } else if self.records.len() < PODS_IN_HAND_MAX {
            self.insert(Rc::new(pod), file, out);
        } else {
            let message =
                format!("waiting: {PODS_IN_HAND_MAX} pods are on this node, terminating ones included");
            self.ctx.note(&pod.key, EventKind::Warning, "TooManyPods", &message);
        }
    }

    /// The first desired pod without a record: it waits for room among [`PODS_IN_HAND_MAX`] records.
    pub(in crate::node) fn next_waiting(&self) -> Option<&SourcedPod> {
        let mut wanted = self.desired.entries().map(|entry| &entry.wanted);
        wanted.find(|wanted| !self.records.contains_key(&wanted.pod.key.uid))
    }

    /// Inserts the next waiting pod: there is room for one more record.
    pub(in crate::node) fn take_next_waiting(&mut self, out: &mut Effects) -> Option<PodUid> {
        let next = self.next_waiting()?;
        let (pod, file) = (next.pod.clone(), next.origin.file.clone());
        let uid = pod.key.uid.clone();
        self.insert(Rc::new(pod), Some(file), out);
        Some(uid)
    }

    /// Adds the record of a desired pod, with its state from the checkpoint if there is one.
    pub(in crate::node) fn insert(&mut self, pod: Rc<DesiredPod>, file: Option<Arc<str>>, out: &mut Effects) {
        let uid = pod.key.uid.clone();
        let waits = self.must_wait(&pod.key);
        let now = self.now();
        let restored = self.claim(&pod);
        let is_restored = restored.is_some();
        let is_of_earlier_boot = restored.as_ref().is_some_and(|restored| restored.is_of_earlier_boot);
        let mut restored = restored;
        let resizing = restored.as_mut().and_then(|restored| restored.resizing.take());
        let (resizing, allocated) = resizing.unzip();
        let of = |name: &str| {
            let allocated = allocated.iter().flatten();
            allocated.into_iter().find(|(known, _)| **known == *name).map(|(_, sizes)| *sizes)
        };
        let pod = if allocated.is_some() { Rc::new(with_allocation((*pod).clone(), of)) } else { pod };
        let (active_since, pod) = match restored {
            Some(Restored { active_since, debuggers, .. })
                if !debuggers.is_empty() && !pod.pod.is_of_api_server() =>
            {
                (active_since, Rc::new(pod.with_ephemeral_containers(debuggers)))
            }
            restored => (restored.and_then(|restored| restored.active_since), pod),
        };
        if is_of_earlier_boot {
            self.forget_crashes(&pod);
        }
        let mut record = Record::new(Worker::wanted(pod, waits), file);
        record.restored = is_restored;
        self.retry_resizes |= resizing.is_some();
        record.resizing = resizing;
        record.active_since = active_since;
        record.wanted_since = Some(now.mono);
        let _handling = poison::handling(Some(record.mark.clone()));
        self.records.insert(uid.clone(), record);
        out.push(Effect::LocalPods);
        if !self.judge(&uid) {
            self.refresh_status(&uid, now);
        }
        self.refuse_for_shutdown(&uid, out);
    }

    /// Sets the pod aside when handling it ended the process too often. Returns whether it did.
    fn judge(&mut self, uid: &PodUid) -> bool {
        let Some(record) = self.records.get_mut(uid) else { return false };
        let Some(panics) = self.set_aside.panics(&record.mark) else { return false };
        // The statuses of its containers are kept.
        let mut status = self.statuses.status(uid).unwrap_or_default();
        record.set_aside(panics, &mut status);
        let message = status.message.as_deref().unwrap_or_default();
        self.ctx.note(record.worker.key(), EventKind::Warning, "SetAside", message);
        self.statuses.put(uid, status);
        true
    }

    /// Another pod with this name still exists, or the sweep of orphaned directories, which would remove the pod's, still runs.
    fn must_wait(&self, key: &PodKey) -> bool {
        self.is_name_taken(key) || self.spared.as_ref().is_some_and(|spared| !spared.contains(&key.uid))
    }

    /// Another pod with this name exists, with a record or only in the runtime.
    fn is_name_taken(&self, key: &PodKey) -> bool {
        let other = |of: &PodKey| same_name(of, key) && of.uid != key.uid;
        let in_hand = |record: &Record| record.worker.life() != Life::Waiting && other(record.worker.key());
        let runs = |relist: &Relist| {
            let ours = |uid: &PodUid, pod: &RelistPod| pod.made_here || self.identity.adopted().contains(uid);
            relist.pods.iter().any(|(uid, pod)| other(&pod.key) && ours(uid, pod))
        };
        self.records.values().any(in_hand) || self.relist.as_ref().is_some_and(runs)
    }

    /// Starts the pods whose names have become free.
    pub(in crate::node) fn free_names(&mut self, touched: &mut SortedSet<PodUid>) {
        if matches!(self.facts.machine, MachineState::ShutsDown(_)) {
            return;
        }
        let waiting = |record: &&Record| record.worker.life() == Life::Waiting;
        let keys: Vec<PodKey> =
            self.records.values().filter(waiting).map(|record| record.worker.key().clone()).collect();
        for key in keys {
            if !self.must_wait(&key)
                && let Some(record) = self.records.get_mut(&key.uid)
            {
                record.worker.name_is_free();
                touched.insert(key.uid);
            }
        }
    }

    pub(in crate::node) fn remove_desired(&mut self, uid: &PodUid, now: Now) {
        if let Some(record) = self.records.get_mut(uid) {
            record.worker.remove_desired();
            self.statuses.set_wanted(uid, false);
            record.manifest_removed();
            record.unwanted_at.get_or_insert(now.wall);
            record.cut_off_act();
        }
        self.judge(uid);
    }

    /// Terminates pods of this agent in the runtime that no source has (`HandlePodCleanups`).
    pub(in crate::node) fn end_orphans(&mut self, touched: &mut SortedSet<PodUid>, out: &mut Effects) {
        self.sweep(out);
        self.take_over_orphans();
        let Some(relist) = &self.relist else { return };
        let ours = relist.pods.iter().filter(|(uid, pod)| {
            (pod.made_here || self.identity.adopted().contains(*uid)) && !self.records.contains_key(*uid)
        });
        let ours: Vec<PodKey> = ours.map(|(_, pod)| pod.key.clone()).collect();
        let now = self.now();
        for key in ours {
            if self.desired.may_terminate(&key) || self.is_deleted(&key.uid) {
                log::info!("pod {key}: orphaned, as no source has it; terminating it");
                let mut record = Record::new(Worker::orphan(key.clone()), None);
                record.unwanted_at = Some(now.wall);
                // The grace period of the deletion; the one recorded with the container is the spec's.
                record.hurried = self.facts.deleted.get(&key.uid).copied();
                self.records.insert(key.uid.clone(), record);
                self.judge(&key.uid);
                touched.insert(key.uid);
            } else if self.desired.reported()
                && self.desired.pod(&key.uid).is_none()
                && !self.reported_held.contains(&key.uid)
            {
                if self.reported_held.len() == HELD_PODS_REPORTED_MAX {
                    self.reported_held.clear();
                }
                self.reported_held.insert(key.uid.clone());
                log::warn!(
                    "pod {key}: no valid manifest names it; kept running until all manifests can be read"
                );
            }
        }
    }

    /// Removes the directories of orphaned pods (`cleanupOrphanedPodDirs`), once, when every source and the runtime were read.
    pub(in crate::node) fn sweep(&mut self, out: &mut Effects) {
        let Some(relist) =
            self.relist.as_ref().filter(|_| !self.swept && self.desired.may_terminate_orphans())
        else {
            return;
        };
        self.swept = true;
        let wanted = self.desired.entries().map(|entry| &entry.wanted.pod.key.uid);
        let known: SortedSet<PodUid> =
            relist.pods.keys().chain(self.records.keys()).chain(wanted).cloned().collect();
        // Adopted pods that were removed while no agent ran.
        self.identity_changed |= self.identity.release_all_but(|uid| known.contains(uid));
        self.forget_restored_but(&known);
        let spared = known.iter().map(ToString::to_string).collect();
        self.spared = Some(known);
        let (ctx, cgroups) = (self.ctx.clone(), self.cgroups.clone());
        let set_aside = self.set_aside.clone();
        let task = async move {
            let (swept, slow) = jobs::sweep(&ctx, &cgroups, spared, &set_aside).await;
            match swept {
                Ok(0) => {}
                Ok(pods) => log::info!("removed the directories of {pods} orphaned pods"),
                Err(error) => {
                    log::warn!(
                        "removing the directories of orphaned pods failed: {error}; retrying at the next start"
                    );
                }
            }
            Event::Swept(slow)
        };
        out.start("orphaned pods", task);
    }

    /// The sweep ended: pods that waited for it start. The `slow` pods still have mounts, such as of an NFS server that is
    /// unreachable: they are removed as other pods, with retries and with events of the node.
    pub(in crate::node) fn sweep_ended(&mut self, slow: Vec<PodUid>, out: &mut Effects) {
        self.spared = None;
        let mut touched = SortedSet::new();
        for uid in slow {
            if !self.records.contains_key(&uid) {
                let key = PodKey::new("", self.identity.node_name(), uid.as_str());
                let mut record = Record::new(Worker::orphan(key), None);
                record.unwanted_at = Some(self.now().wall);
                self.records.insert(uid.clone(), record);
                touched.insert(uid);
            }
        }
        self.free_names(&mut touched);
        for uid in touched {
            out.drive(&uid);
        }
    }

    /// Restores a pod from the checkpoint; no source has sent it yet.
    pub(in crate::node) fn restore(&mut self, restored: Restored, status: PodStatus) {
        let uid = restored.key.uid.clone();
        self.statuses.put(&uid, status);
        self.statuses.set_wanted(&uid, false);
        self.restored.insert(uid, restored);
    }

    /// A container that was not in crash back-off when its boot ended has not crashed: the end of the boot ended it, and it
    /// starts without a wait. The kubelet (`doBackOff`) has its table in memory only: after a reboot no container waits there.
    fn forget_crashes(&mut self, pod: &DesiredPod) {
        let Some(status) = self.statuses.status(&pod.key.uid) else { return };
        for container in pod.init_containers().iter().chain(pod.containers()) {
            if !is_in_crash_backoff(&status, &container.name) {
                self.backoff.forget(BackoffKey::container(pod, container));
            }
        }
    }

    /// Restores a back-off from the checkpoint.
    pub(in crate::node) fn restore_backoff(&mut self, key: BackoffKey, wait: Duration, since: Mono) {
        self.backoff.restore(key, wait, since);
    }

    /// Sets the pod's ephemeral containers; the last one is new, and has that number.
    pub(in crate::node) fn debug(&mut self, uid: &PodUid, containers: Vec<EphemeralContainer>, number: u64) {
        if let Some(record) = self.records.get_mut(uid) {
            record.debug(containers, number);
        }
    }

    /// There is disk space again: retries the pod's image pulls at once.
    pub(in crate::node) fn pull_again(&mut self, uid: &PodUid, out: &mut Effects) {
        let (Some(entry), Some(record)) = (self.desired.pod(uid), self.records.get_mut(uid)) else { return };
        let pod = entry.wanted.pod.clone();
        for image in pod.images() {
            self.ctx.manager.images.forget(uid, image);
        }
        record.set_desired(pod);
        self.drive(uid, out);
    }

    /// Takes the checkpoint's state of a pod that a source has sent; `None` = there is none, or it is of another pod.
    pub(in crate::node) fn claim(&mut self, pod: &DesiredPod) -> Option<Restored> {
        let uid = &pod.key.uid;
        let restored = self.restored.remove(uid)?;
        let fits = |status| restored.key == pod.key && merge::is_of(&pod.pod, &status);
        if self.statuses.status(uid).is_some_and(fits) {
            self.statuses.set_wanted(uid, true);
            return Some(restored);
        }
        self.statuses.forget(uid);
        None
    }

    /// Drops the checkpoint's pods that neither a source nor the runtime has.
    pub(in crate::node) fn forget_restored_but(&mut self, known: &SortedSet<PodUid>) {
        let (statuses, restored) = (&mut self.statuses, &mut self.restored);
        restored.retain(|uid, _| {
            let stays = known.contains(uid);
            if !stays {
                statuses.forget(uid);
            }
            stays
        });
    }

    /// Drops the status of a removed pod.
    pub(in crate::node) fn forget_status(&mut self, uid: &PodUid) {
        self.statuses.forget(uid);
        self.restored.remove(uid);
    }
}

fn same_name(a: &PodKey, b: &PodKey) -> bool {
    a.namespace == b.namespace && a.name == b.name
}
