//! Image garbage collection: removes unused images when their disk is nearly full, or when they are old
//! (`image_gc_manager.go`).
//!
//! ```text
//!     every IMAGE_GC_PERIOD, or a pull found no space ──► list (task) ──► candidates
//!         ┌───────────────────────────────────────────────────────────────┘
//!         ▼
//!     next candidate that no pod uses now ──► remove, measure the disk (task) ──┐
//!         ▲─────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Each removal is checked against the desired pods of that moment: a pod that is added during a collection keeps its image.
//! The decisions are in `image::gc`.

use std::collections::VecDeque;
use std::path::Path;
use std::rc::Rc;

use super::agent::Event;
use super::effects::{Effect, Effects};
use super::pods::Pods;
use crate::cri::{Image, ImageStore, Runtime, RuntimeError, RuntimeResult};
use crate::events::EventKind;
use crate::filesystem::Filesystem;
use crate::image::gc::{
    Candidate, DiskSpace, Goal, ImageGcPolicy, ListedImage, Named, candidates, shown_size,
};
use crate::image::import::ARCHIVE_LABEL;
use crate::image::seen::ImagesSeen;
use crate::limits::{
    IMAGE_GC_PERIOD, IMAGE_GC_PERIOD_MIN, IMAGES_LISTED_BYTES_MAX, IMAGES_LISTED_MAX, IMAGES_USED_BYTES_MAX,
    PODS_IN_HAND_MAX,
};
use crate::metrics::Collected;
use crate::model::SortedSet;
use crate::model::{ContainerItem, Mono, PodUid};
use crate::sync::act::ActContext;

/// Schedule and progress of the collections.
pub(super) struct ImageGc {
    /// `None` = never.
    policy: Option<ImageGcPolicy>,
    /// Collects periodically, not only under disk pressure.
    is_periodic: bool,
    /// The runtime's image store, which marks imported images; `None` = images cannot be imported.
    store: Option<Rc<ImageStore>>,
    /// Earliest time of the next collection.
    next: Mono,
    began: Mono,
    /// The next collection removes all unused images, regardless of the thresholds.
    needs_room: bool,
    /// Pods whose pulls found no disk space since the last collection began; retried when some is freed.
    waiting: SortedSet<PodUid>,
    /// The eviction manager waits for the next collection.
    reclaiming: bool,
    /// A task runs.
    in_flight: bool,
    run: Option<Run>,
    /// The last collection failed.
    failed: bool,
    /// When each image was first seen and last used.
    seen: ImagesSeen,
    /// The number of pod reads when the images in use were last recorded.
    reads: u64,
}

/// The collection in progress.
struct Run {
    goal: Goal,
    /// Pods whose pulls found no disk space.
    waiting: SortedSet<PodUid>,
    candidates: VecDeque<Candidate>,
    mountpoint: Rc<str>,
    /// Before the first removal.
    before: DiskSpace,
    disk: DiskSpace,
    freed: u64,
    /// Bytes to free.
    wanted: u64,
    /// Images that could not be removed, and the first error.
    not_removed: usize,
    error: Option<String>,
}

/// The runtime's images, which of them are used, and their disk.
pub(super) struct ListedImages {
    images: Vec<ListedImage>,
    used: Named,
    /// Images that are never removed: imported ones, and the sandbox image.
    protected: Named,
    mountpoint: Rc<str>,
    disk: DiskSpace,
}

/// Result of a removal.
pub(super) struct RemovedImage {
    candidate: Candidate,
    result: RuntimeResult<()>,
    /// The disk after the removal; `None` = it could not be measured.
    disk: Option<DiskSpace>,
}

impl ImageGc {
    pub(super) fn new(policy: Option<ImageGcPolicy>, store: Option<ImageStore>, now: Mono) -> Self {
        Self {
            policy,
            // The kubelet disables the collection with these values.
            is_periodic: policy.is_some_and(|policy| policy.high_percent < 100 || policy.max_age.is_some()),
            store: store.map(Rc::new),
            next: now + IMAGE_GC_PERIOD,
            began: now - IMAGE_GC_PERIOD_MIN,
            needs_room: false,
            waiting: SortedSet::new(),
            reclaiming: false,
            in_flight: false,
            run: None,
            failed: false,
            seen: ImagesSeen::default(),
            reads: 0,
        }
    }

    /// A pull of this pod found no disk space: requests a collection regardless of the thresholds.
    pub(super) fn found_no_space(&mut self, pod: &PodUid, now: Mono) {
        if self.is_periodic {
            // Full: the pod waits for its back-off.
            if self.waiting.len() < PODS_IN_HAND_MAX {
                self.waiting.insert(pod.clone());
            }
            self.needs_room = true;
            self.next = self.next.min((self.began + IMAGE_GC_PERIOD_MIN).max(now));
        }
    }

    /// When each image was first seen and last used.
    pub(super) fn seen(&self) -> &ImagesSeen {
        &self.seen
    }

    /// Restores an image's times from the checkpoint.
    pub(super) fn restore(&mut self, image: &str, first: Mono, last: Mono) {
        self.seen.restore(image, first, last);
    }

    /// Records which images are in use, when a pod was read since the last time.
    /// True when one of them was not in use then.
    pub(super) fn note_used<R: Runtime + 'static>(&mut self, pods: &Pods<R>, now: Mono) -> bool {
        if std::mem::replace(&mut self.reads, pods.reads()) != pods.reads() {
            let observed = pods.iter().filter_map(|(_, record)| record.worker().observed());
            let containers = observed.flat_map(|observed| &observed.containers);
            return self.seen.used(containers.map(|container| &*container.image_ref), now);
        }
        false
    }

    /// When the next collection begins: not before every source was read once, since until then used images are unknown.
    pub(super) fn due<R: Runtime + 'static>(&self, pods: &Pods<R>) -> Option<Mono> {
        let wanted = self.is_periodic || self.needs_room;
        (wanted && !self.in_flight && pods.desired().settled()).then_some(self.next)
    }

    /// Removes all unused images because of disk pressure; [`Effect::ImagesReclaimed`] follows.
    pub(super) fn reclaim(&mut self, now: Mono) {
        self.reclaiming = true;
        self.needs_room = true;
        self.next = now;
    }

    /// Begins a collection that is due.
    pub(super) fn turn<R: Runtime + 'static>(&mut self, pods: &Pods<R>, now: Mono, out: &Effects) {
        if self.due(pods).is_none_or(|at| at > now) {
            return;
        }
        self.began = now;
        self.next = now + IMAGE_GC_PERIOD;
        self.in_flight = true;
        let (ctx, store) = (pods.ctx().clone(), self.store.clone());
        let task = async move {
            let listed = list(&ctx, store.as_deref()).await.map(Box::new);
            Event::ImagesListed(listed)
        };
        out.start("image list", task);
    }

    /// The listing ended.
    pub(super) fn take_list<R: Runtime + 'static>(
        &mut self,
        listed: Result<Box<ListedImages>, String>,
        pods: &Pods<R>,
        out: &mut Effects,
    ) {
        self.in_flight = false;
        let Some(policy) = self.policy else { return };
        let now = out.now().mono;
        let listed = match listed {
            Ok(listed) => *listed,
            Err(why) => return self.list_failed(&why, out),
        };
        let ListedImages { images, used, protected, mountpoint, disk } = listed;
        self.seen.observe(&images, |image| used.holds(image), now);
        if disk.capacity == 0 {
            let why = "invalid capacity 0 on image filesystem";
            out.note_node(EventKind::Warning, "InvalidDiskCapacity", why);
            return self.list_failed(why, out);
        }
        out.metrics().image_looks[0].inc();
        let goal = if std::mem::take(&mut self.needs_room) {
            Goal::Everything
        } else if policy.is_over(disk) {
            Goal::Room
        } else {
            Goal::OldOnes
        };
        let kept = |image: &ListedImage| used.holds(image) || protected.holds(image);
        let found = candidates(&policy, images, kept, |id| self.seen.age(id, now));
        let wanted = policy.missing(disk);
        if goal == Goal::Room {
            log::info!(
                "image file system {} % full: removing unused images until {} more are free",
                disk.used_percent(),
                shown_size(wanted)
            );
        }
        self.run = Some(Run {
            goal,
            waiting: std::mem::take(&mut self.waiting),
            candidates: found.into(),
            mountpoint,
            before: disk,
            disk,
            freed: 0,
            wanted,
            not_removed: 0,
            error: None,
        });
        self.remove_next(pods, out);
    }

    /// Removes the next candidate, or ends the collection.
    fn remove_next<R: Runtime + 'static>(&mut self, pods: &Pods<R>, out: &mut Effects) {
        let (Some(policy), Some(mut run)) = (self.policy, self.run.take()) else {
            return;
        };
        let wanted = pods.desired().entries().flat_map(|entry| entry.wanted.pod.images());
        // Images of terminating pods too: an image volume may be mounted.
        let with_record = pods.iter().map(|(_, record)| record).filter_map(|record| record.worker().pod());
        let named: Named = wanted.chain(with_record.flat_map(|pod| pod.images())).collect();
        while let Some(candidate) = run.candidates.pop_front() {
            if !policy.goes(run.goal, run.disk, &candidate) || named.holds(&candidate.image) {
                continue;
            }
            let (ctx, mountpoint) = (pods.ctx().clone(), run.mountpoint.clone());
            let task = async move {
                let result = ctx.manager.runtime.remove_image(&candidate.image.id).await;
                let disk = disk_at(&ctx, &mountpoint).await.ok();
                let removed = RemovedImage { candidate, result, disk };
                Event::ImageRemoved(Box::new(removed))
            };
            out.start("image removal", task);
            self.in_flight = true;
            self.run = Some(run);
            return;
        }
        self.collection_ended(&policy, &run, out);
        self.collection_is_over(out);
    }

    /// The removal of an image ended.
    pub(super) fn take_removed<R: Runtime + 'static>(
        &mut self,
        removed: RemovedImage,
        pods: &Pods<R>,
        out: &mut Effects,
    ) {
        self.in_flight = false;
        let RemovedImage { candidate: Candidate { image, is_old }, result, disk } = removed;
        let Some(run) = &mut self.run else { return };
        let named = image.names.first().unwrap_or(&image.id);
        match result {
            Ok(()) => {
                log::info!("image {named} removed: unused ({})", shown_size(image.size_bytes));
                let why = if is_old { Collected::Age } else { Collected::Space };
                out.metrics().images_collected[why as usize].inc();
                run.freed = run.freed.saturating_add(image.size_bytes);
                run.disk.available =
                    run.disk.available.saturating_add(image.size_bytes).min(run.disk.capacity);
            }
            Err(error) => {
                run.not_removed += 1;
                run.error.get_or_insert_with(|| error.to_string());
            }
        }
        run.disk = disk.unwrap_or(run.disk);
        self.remove_next(pods, out);
    }

    /// The collection fails before any removal.
    fn list_failed(&mut self, why: &str, out: &mut Effects) {
        out.metrics().image_looks[1].inc();
        self.needs_room = false;
        self.waiting.clear();
        self.collection_failed(why, out);
        self.collection_is_over(out);
    }

    fn collection_is_over(&mut self, out: &mut Effects) {
        // Requested during a collection: another one follows.
        if self.reclaiming && !self.needs_room {
            self.reclaiming = false;
            out.push(Effect::ImagesReclaimed);
        }
    }

    fn collection_ended(&mut self, policy: &ImageGcPolicy, run: &Run, out: &mut Effects) {
        if run.freed > 0 {
            // Differs from the kubelet, where the pulls wait for their back-off.
            run.waiting.iter().for_each(|uid| out.push(Effect::PullAgain(uid.clone())));
        }
        if let Some(error) = &run.error {
            let (wanted, freed, not_removed) = (run.wanted, run.freed, run.not_removed);
            let why = format!(
                "wanted to free {wanted} bytes, but freed {freed} bytes space with errors in image deletion: {error} \
                 ({not_removed} images not removed)"
            );
            return self.collection_failed(&why, out);
        }
        let is_short = match run.goal {
            Goal::OldOnes => false,
            Goal::Room => policy.missing(run.disk) > 0,
            Goal::Everything => run.freed == 0 && !run.waiting.is_empty(),
        };
        if is_short {
            let (percent, freed) = (run.before.used_percent(), run.freed);
            let message = format!(
                "Insufficient free disk space on the node's image filesystem ({percent}% of {} used). Failed to free \
                 sufficient space by deleting unused images (freed {freed} bytes). Investigate disk usage, as it could \
                 be used by active images, logs, volumes, or other data.",
                shown_size(run.before.capacity)
            );
            out.note_node(EventKind::Warning, "FreeDiskSpaceFailed", &message);
            return self.collection_failed(&message, out);
        }
        self.failed = false;
    }

    /// The first failure is only logged (`StartGarbageCollection`): the next collection may succeed.
    fn collection_failed(&mut self, why: &str, out: &Effects) {
        if std::mem::replace(&mut self.failed, true) {
            out.note_node(EventKind::Warning, "ImageGCFailed", why);
        } else {
            log::warn!("image garbage collection failed: {why}");
        }
    }
}

/// Lists the images, then the containers that use them, as the kubelet does: the image of a container that is created between
/// the two calls counts as used.
async fn list<R: Runtime>(ctx: &ActContext<R>, store: Option<&ImageStore>) -> Result<ListedImages, String> {
    let text = |error: RuntimeError| error.to_string();
    let pulled = ctx.manager.images.pull_manager();
    if let Some(pulled) = pulled {
        pulled.begin_prune(&ctx.manager.blocking).await;
    }
    let (mut images, mut bytes, mut all) = (Vec::new(), 0, 0_usize);
    let mut listed = |image: Image| {
        all += 1;
        let image = ListedImage::from(image);
        bytes += image.bytes();
        if images.len() < IMAGES_LISTED_MAX && bytes <= IMAGES_LISTED_BYTES_MAX {
            images.push(image);
        }
    };
    ctx.manager.runtime.list_images(&mut listed).await.map_err(text)?;
    if let Some(pulled) = pulled.filter(|_| images.len() == all) {
        let present = images.iter().map(|image| image.id.to_string()).collect();
        pulled.prune(&ctx.manager.blocking, present).await;
    }
    let mut used = Named::default();
    // All containers of the runtime, other agents' included.
    let mut add = |container: ContainerItem| {
        if used.bytes() <= IMAGES_USED_BYTES_MAX {
            used.add(&container.image);
        }
    };
    ctx.manager.runtime.list_containers(None, &mut add).await.map_err(text)?;
    if used.bytes() > IMAGES_USED_BYTES_MAX {
        return Err(format!(
            "image names of the runtime's containers exceed {}: cannot tell which images are unused",
            shown_size(IMAGES_USED_BYTES_MAX as u64)
        ));
    }
    let mut protected = Named::default();
    if let Some(image) = ctx.manager.runtime.sandbox_image().await.map_err(text)? {
        protected.add(&image);
    }
    if let Some(store) = store {
        match store.labelled(ARCHIVE_LABEL).await {
            Ok(records) => records.iter().for_each(|(name, _)| protected.add(name)),
            // Nothing can be imported into this runtime.
            Err(RuntimeError::Unimplemented(_)) => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    let filesystems = ctx.manager.runtime.image_fs_info().await.map_err(text)?;
    let mountpoint = filesystems.first().map(|filesystem| &*filesystem.mountpoint);
    let mountpoint: Rc<str> = mountpoint.ok_or("the runtime reports no image filesystem")?.into();
    let disk = disk_at(ctx, &mountpoint).await?;
    Ok(ListedImages { images, used, protected, mountpoint, disk })
}

async fn disk_at<R>(ctx: &ActContext<R>, mountpoint: &str) -> Result<DiskSpace, String> {
    let path = mountpoint.to_owned();
    let found =
        ctx.manager.blocking.run_outside(Path::new(mountpoint), move || Filesystem::of(path.as_ref())).await;
    let found = found.map_err(|stuck| format!("{mountpoint}: {stuck}"))?;
    let disk = found.map_err(|error| format!("{mountpoint}: {error}"))?;
    Ok(DiskSpace { capacity: disk.bytes, available: disk.bytes_free })
}
