//! Images that nobody needs go when their disk is nearly full, or when they are old (`image_gc_manager.go`).
//!
//! ```text
//!     every IMAGE_GC_PERIOD, or a pull found no room ──► look (task) ──► candidates
//!         ┌───────────────────────────────────────────────────────────────┘
//!         ▼
//!     next one that goes and that no manifest names now ──► remove, measure the disk (task) ──┐
//!         ▲───────────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Each removal is decided here with the manifests as they are at that moment: one that comes in the middle of a
//! collection keeps its image. What is decided by is in `image::gc`.

use std::collections::VecDeque;
use std::path::Path;
use std::rc::Rc;

use super::agent::{Agent, Event};
use crate::cri::{Image, ImageStore, Runtime, RuntimeError, RuntimeResult};
use crate::events::EventKind;
use crate::filesystem::Filesystem;
use crate::image::gc::{
    Candidate, DiskSpace, Goal, ImageGcPolicy, ListedImage, Named, candidates, shown_size,
};
use crate::image::import::ARCHIVE_LABEL;
use crate::limits::{
    IMAGE_GC_PERIOD, IMAGE_GC_PERIOD_MIN, IMAGES_LISTED_BYTES_MAX, IMAGES_LISTED_MAX, IMAGES_USED_BYTES_MAX,
    PODS_IN_HAND_MAX,
};
use crate::metrics::Collected;
use crate::model::SortedSet;
use crate::model::{ContainerItem, Mono, PodKey, PodUid};
use crate::sync::act::ActContext;

/// When images are collected, and how far a collection is.
pub(super) struct Collecting {
    /// `None` = never.
    policy: Option<ImageGcPolicy>,
    /// By the clock too, and not only when the node is short of disk.
    is_periodic: bool,
    /// Where what was imported is marked; `None` where nothing is ever imported.
    store: Option<Rc<ImageStore>>,
    /// Not before.
    next: Mono,
    began: Mono,
    /// Whatever the thresholds say, the next one takes all that may go.
    needs_room: bool,
    /// Pods that found no room since the last one began; they are tried again when some is made.
    waiting: SortedSet<PodUid>,
    /// Somebody waits for that.
    reclaiming: bool,
    /// A task is under way.
    in_flight: bool,
    run: Option<Run>,
    /// The last one failed.
    failed: bool,
}

/// A collection that removes.
struct Run {
    goal: Goal,
    /// Pods that found no room.
    waiting: SortedSet<PodUid>,
    candidates: VecDeque<Candidate>,
    mountpoint: Rc<str>,
    /// As it was before the first removal.
    before: DiskSpace,
    disk: DiskSpace,
    freed: u64,
    wanted: u64,
    /// Images that could not be removed, and why not the first of them.
    stayed: usize,
    error: Option<String>,
}

/// What a look found.
pub(super) struct Look {
    images: Vec<ListedImage>,
    used: Named,
    /// What stays whether it is used or not: imported ones, and the sandboxes' own.
    of_itself: Named,
    mountpoint: Rc<str>,
    disk: DiskSpace,
}

/// How a removal went.
pub(super) struct Removed {
    candidate: Candidate,
    result: RuntimeResult<()>,
    /// Afterwards; `None` when it could not be measured.
    disk: Option<DiskSpace>,
}

impl Collecting {
    pub(super) fn new(policy: Option<ImageGcPolicy>, store: Option<ImageStore>, now: Mono) -> Self {
        Self {
            policy,
            // The kubelet disables it with these values.
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
        }
    }

    /// A pull of this pod found no room: what is not used goes soon, whatever the thresholds say.
    pub(super) fn found_no_space(&mut self, pod: &PodUid, now: Mono) {
        if self.is_periodic {
            // Full: it waits out its back-off.
            if self.waiting.len() < PODS_IN_HAND_MAX {
                self.waiting.insert(pod.clone());
            }
            self.needs_room = true;
            self.next = self.next.min((self.began + IMAGE_GC_PERIOD_MIN).max(now));
        }
    }
}

impl<R: Runtime + 'static> Agent<R> {
    /// Not before every source was read once: until then nobody knows what the manifests name.
    pub(super) fn collecting_due(&self) -> Option<Mono> {
        let collecting = &self.collecting;
        let wanted = collecting.is_periodic || collecting.needs_room;
        (wanted && !collecting.in_flight && self.desired.settled()).then_some(collecting.next)
    }

    /// All unused images go now, for the node is short of disk: [`Self::images_reclaimed`] follows. False when they may not,
    /// and nothing follows.
    pub(super) fn reclaim_images(&mut self, now: Mono) -> bool {
        let collecting = &mut self.collecting;
        let may = collecting.policy.is_some() && self.desired.settled();
        if may {
            collecting.reclaiming = true;
            collecting.needs_room = true;
            collecting.next = now;
        }
        may
    }

    pub(super) fn collect_when_due(&mut self, now: Mono) {
        if self.collecting_due().is_none_or(|at| at > now) {
            return;
        }
        self.collecting.began = now;
        self.collecting.next = now + IMAGE_GC_PERIOD;
        self.collecting.in_flight = true;
        let (ctx, store, events) = (self.ctx.clone(), self.collecting.store.clone(), self.events.clone());
        let task = async move {
            let looked = look(&ctx, store.as_deref()).await.map(Box::new);
            // The loop is gone only when the process ends.
            let _ = events.send(Event::ImagesLooked(looked)).await;
        };
        self.executor.spawn("image list", task).detach();
    }

    pub(super) fn images_looked(&mut self, looked: Result<Box<Look>, String>) {
        self.collecting.in_flight = false;
        let Some(policy) = self.collecting.policy else { return };
        let now = self.ctx.clock.now().mono;
        let look = match looked {
            Ok(look) => *look,
            Err(why) => return self.look_failed(&why),
        };
        let Look { images, used, of_itself, mountpoint, disk } = look;
        self.images_seen.observe(&images, |image| used.holds(image), now);
        if disk.capacity == 0 {
            let why = "invalid capacity 0 on image filesystem";
            self.note_node(EventKind::Warning, "InvalidDiskCapacity", why);
            return self.look_failed(why);
        }
        self.metrics.image_looks[0].inc();
        let goal = if std::mem::take(&mut self.collecting.needs_room) {
            Goal::Everything
        } else if policy.is_over(disk) {
            Goal::Room
        } else {
            Goal::OldOnes
        };
        let kept = |image: &ListedImage| used.holds(image) || of_itself.holds(image);
        let found = candidates(&policy, images, kept, |id| self.images_seen.age(id, now));
        let wanted = policy.missing(disk);
        if goal == Goal::Room {
            log::info!(
                "the images' disk is {} % full: unused images go until {} more are free",
                disk.used_percent(),
                shown_size(wanted)
            );
        }
        self.collecting.run = Some(Run {
            goal,
            waiting: std::mem::take(&mut self.collecting.waiting),
            candidates: found.into(),
            mountpoint,
            before: disk,
            disk,
            freed: 0,
            wanted,
            stayed: 0,
            error: None,
        });
        self.remove_next_image();
    }

    /// Removes the next image that is to go, or ends the collection.
    fn remove_next_image(&mut self) {
        let (Some(policy), Some(mut run)) = (self.collecting.policy, self.collecting.run.take()) else {
            return;
        };
        let wanted = self.desired.entries().flat_map(|entry| entry.wanted.pod.images());
        // Those of pods that still end: a volume may be one.
        let in_hand = self.records.values().filter_map(|record| record.worker.pod());
        let named: Named = wanted.chain(in_hand.flat_map(|pod| pod.images())).collect();
        while let Some(candidate) = run.candidates.pop_front() {
            if !policy.goes(run.goal, run.disk, &candidate) || named.holds(&candidate.image) {
                continue;
            }
            let (ctx, events, mountpoint) = (self.ctx.clone(), self.events.clone(), run.mountpoint.clone());
            let task = async move {
                let result = ctx.runtime.remove_image(&candidate.image.id).await;
                let disk = disk_at(&ctx, &mountpoint).await.ok();
                let removed = Removed { candidate, result, disk };
                // The loop is gone only when the process ends.
                let _ = events.send(Event::ImageRemoved(Box::new(removed))).await;
            };
            self.executor.spawn("image removal", task).detach();
            self.collecting.in_flight = true;
            self.collecting.run = Some(run);
            return;
        }
        self.collection_ended(&policy, &run);
        self.collection_is_over();
    }

    pub(super) fn image_removed(&mut self, removed: Removed) {
        self.collecting.in_flight = false;
        let Removed { candidate: Candidate { image, is_old }, result, disk } = removed;
        let Some(run) = &mut self.collecting.run else { return };
        let named = image.names.first().unwrap_or(&image.id);
        match result {
            Ok(()) => {
                log::info!("image {named} removed: nothing uses it ({})", shown_size(image.size_bytes));
                let why = if is_old { Collected::Age } else { Collected::Space };
                self.metrics.images_collected[why as usize].inc();
                run.freed = run.freed.saturating_add(image.size_bytes);
                run.disk.available =
                    run.disk.available.saturating_add(image.size_bytes).min(run.disk.capacity);
            }
            Err(error) => {
                run.stayed += 1;
                run.error.get_or_insert_with(|| error.to_string());
            }
        }
        run.disk = disk.unwrap_or(run.disk);
        self.remove_next_image();
    }

    /// Nothing is removed.
    fn look_failed(&mut self, why: &str) {
        self.metrics.image_looks[1].inc();
        self.collecting.needs_room = false;
        self.collecting.waiting.clear();
        self.collection_failed(why);
        self.collection_is_over();
    }

    fn collection_is_over(&mut self) {
        // Asked for in the middle of one: another one follows.
        if self.collecting.reclaiming && !self.collecting.needs_room {
            self.collecting.reclaiming = false;
            self.images_reclaimed();
        }
    }

    fn collection_ended(&mut self, policy: &ImageGcPolicy, run: &Run) {
        if run.freed > 0 {
            self.pull_again(&run.waiting);
        }
        if let Some(error) = &run.error {
            let (wanted, freed, stayed) = (run.wanted, run.freed, run.stayed);
            return self.collection_failed(&format!(
                "wanted to free {wanted} bytes, but freed {freed} bytes space with errors in image deletion: {error} \
                 ({stayed} images stay)"
            ));
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
            self.note_node(EventKind::Warning, "FreeDiskSpaceFailed", &message);
            return self.collection_failed(&message);
        }
        self.collecting.failed = false;
    }

    /// There is room now that these pods did not find. Differs from the kubelet, where they wait out their back-off.
    fn pull_again(&mut self, waiting: &SortedSet<PodUid>) {
        for uid in waiting {
            let (Some(entry), Some(record)) = (self.desired.pod(uid), self.records.get_mut(uid)) else {
                continue;
            };
            let pod = Rc::new(entry.wanted.pod.clone());
            for image in pod.images() {
                self.ctx.images.forget(uid, image);
            }
            record.worker.want(pod);
            self.drive(uid);
        }
    }

    /// The first failure is only logged (`StartGarbageCollection`): the next collection may go well.
    fn collection_failed(&mut self, why: &str) {
        if std::mem::replace(&mut self.collecting.failed, true) {
            self.note_node(EventKind::Warning, "ImageGCFailed", why);
        } else {
            log::warn!("image garbage collection failed: {why}");
        }
    }

    /// Notes something about the node itself.
    pub(super) fn note_node(&self, kind: EventKind, reason: &'static str, message: &str) {
        let node = self.identity.node_name();
        let about = PodKey::new("", node, node);
        let is_new = self.ring.record((&about).into(), kind, reason, message, self.ctx.clock.now().mono);
        match kind {
            EventKind::Normal if is_new => log::info!("node {node}: {reason}: {message}"),
            EventKind::Warning if is_new => log::warn!("node {node}: {reason}: {message}"),
            EventKind::Normal | EventKind::Warning => {}
        }
    }
}

/// What is there, what of it is used, and what the disk has. Images first, as the kubelet: what a container is made of
/// meanwhile is in use then.
async fn look<R: Runtime>(ctx: &ActContext<R>, store: Option<&ImageStore>) -> Result<Look, String> {
    let said = |error: RuntimeError| error.to_string();
    let pulled = ctx.images.pull_manager();
    if let Some(pulled) = pulled {
        pulled.begin_prune(&ctx.blocking).await;
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
    ctx.runtime.list_images(&mut listed).await.map_err(said)?;
    if let Some(pulled) = pulled.filter(|_| images.len() == all) {
        let here = images.iter().map(|image| image.id.to_string()).collect();
        pulled.prune(&ctx.blocking, here).await;
    }
    let mut used = Named::default();
    // Of everybody's containers.
    let mut add = |container: ContainerItem| {
        if used.bytes() <= IMAGES_USED_BYTES_MAX {
            used.add(&container.image);
        }
    };
    ctx.runtime.list_containers(None, &mut add).await.map_err(said)?;
    if used.bytes() > IMAGES_USED_BYTES_MAX {
        return Err(format!(
            "the runtime's containers name more than {} of images: which are not used is not known",
            shown_size(IMAGES_USED_BYTES_MAX as u64)
        ));
    }
    let mut of_itself = Named::default();
    if let Some(image) = ctx.runtime.sandbox_image().await.map_err(said)? {
        of_itself.add(&image);
    }
    if let Some(store) = store {
        match store.labelled(ARCHIVE_LABEL).await {
            Ok(records) => records.iter().for_each(|(name, _)| of_itself.add(name)),
            // Nor is anything imported there.
            Err(RuntimeError::Unimplemented(_)) => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    let filesystems = ctx.runtime.image_fs_info().await.map_err(said)?;
    let mountpoint = filesystems.first().map(|filesystem| &*filesystem.mountpoint);
    let mountpoint: Rc<str> = mountpoint.ok_or("the runtime tells of no image filesystem")?.into();
    let disk = disk_at(ctx, &mountpoint).await?;
    Ok(Look { images, used, of_itself, mountpoint, disk })
}

async fn disk_at<R>(ctx: &ActContext<R>, mountpoint: &str) -> Result<DiskSpace, String> {
    let path = mountpoint.to_owned();
    let found = ctx.blocking.run_outside(Path::new(mountpoint), move || Filesystem::of(path.as_ref())).await;
    let found = found.map_err(|stuck| format!("{mountpoint}: {stuck}"))?;
    let disk = found.map_err(|error| format!("{mountpoint}: {error}"))?;
    Ok(DiskSpace { capacity: disk.bytes, available: disk.bytes_free })
}
