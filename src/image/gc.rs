//! PURE: image garbage collection: which images to remove when their disk is nearly full, or when they are old
//! (`image_gc_manager.go`).
//!
//! ```text
//! |     all images ── in use, pinned, imported, in a manifest, a pause image, young ──► kept
//! |         │ the others, least recently used first ([`candidates`])
//! |         ▼
//! |     not used for longer than the maximum age  ──► removed
//! |     the disk is over the high threshold       ──► removed, until it is below the low one
//! |     a pull failed: disk or store are full     ──► removed (`DeleteUnusedImages`)
//! ```
//!
//! Ages are measured on the monotonic clock since the image was first seen ([`super::seen`]): a clock step makes no image
//! old.
//!
//! Differs from the kubelet, which removes every image that no container uses at the moment: here an image in a manifest is
//! kept although none of its containers exists (a gateway may be offline when its pod starts again), and so is one that was
//! imported from an archive. Between two removals the disk is measured, where the kubelet adds up the images' sizes: those
//! are of compressed layers, which other images may share.
use std::time::Duration;

use super::name::{ImageName, full_name, is_of_a_pause};
use crate::cri::Image;
use crate::limits::{
    CRI_ENTRIES_MAX, IMAGE_GC_AVAILABLE_MIN, IMAGE_GC_AVAILABLE_SHARE, IMAGE_GC_HIGH_PERCENT,
    IMAGE_GC_LOW_PERCENT, IMAGE_GC_MIN_AGE,
};
use crate::model::SortedSet;

/// In the error of a pull: the embedded runtime's store has as many images as it can have.
pub const STORE_IS_FULL: &str = "the image store is full";

/// True when an error says that there is no space for an image: the text of `ENOSPC`, which runtimes pass through, in Go's words or
/// the C library's, or [`STORE_IS_FULL`]. PURE.
pub fn is_no_space(message: &str) -> bool {
    let texts = ["no space left on device", "No space left on device", STORE_IS_FULL];
    // Root's watches are used up, which the kernel has the same error for: the disk has nothing to do with it.
    !message.contains("inotify") && texts.iter().any(|text| message.contains(text))
}

/// `ImageGCPolicy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageGcPolicy {
    /// Disk usage in percent from which on images are removed; 100 = only for their age.
    pub high_percent: u8,
    /// Disk usage in percent down to which images are removed.
    pub low_percent: u8,
    /// Bytes to keep available in any case, at most a share of the disk; not with `high_percent` 100.
    pub available_min: u64,
    /// Younger images are kept.
    pub min_age: Duration,
    /// Images not used for longer are removed whatever the disk usage; `None` = none is.
    pub max_age: Option<Duration>,
}

/// The kubelet's defaults, and a minimum of available bytes.
impl Default for ImageGcPolicy {
    fn default() -> Self {
        Self {
            high_percent: IMAGE_GC_HIGH_PERCENT,
            low_percent: IMAGE_GC_LOW_PERCENT,
            available_min: IMAGE_GC_AVAILABLE_MIN,
            min_age: IMAGE_GC_MIN_AGE,
            max_age: None,
        }
    }
}

impl ImageGcPolicy {
    /// True when the disk usage is over the threshold.
    pub fn is_over(&self, disk: DiskSpace) -> bool {
        disk.used_percent() >= self.high_percent || disk.available < self.floor(disk)
    }

    /// Bytes to free to get below the low threshold.
    pub fn missing(&self, disk: DiskSpace) -> u64 {
        let percent = u64::from(100_u8.saturating_sub(self.low_percent));
        let wanted = share(disk.capacity, percent).max(self.floor(disk));
        wanted.saturating_sub(disk.available)
    }

    /// True when this one of the [`candidates`] is to be removed now.
    pub fn goes(&self, goal: Goal, disk: DiskSpace, candidate: &Candidate) -> bool {
        candidate.is_old
            || match goal {
                Goal::OldOnes => false,
                Goal::Room => self.missing(disk) > 0,
                Goal::Everything => true,
            }
    }

    fn floor(&self, disk: DiskSpace) -> u64 {
        if self.high_percent >= 100 {
            return 0;
        }
        self.available_min.min(disk.capacity / IMAGE_GC_AVAILABLE_SHARE)
    }
}

/// A percentage of a size; computed in 128 bits, since a disk may have more bytes than a hundredth of 64 bits.
fn share(of: u64, percent: u64) -> u64 {
    u64::try_from(u128::from(of) * u128::from(percent) / 100).unwrap_or(u64::MAX)
}

/// Space on the images' disk, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskSpace {
    /// The capacity.
    pub capacity: u64,
    /// Available to users other than root; at most the capacity.
    pub available: u64,
}

impl DiskSpace {
    /// Usage in percent as the kubelet rounds it: the available percentage is rounded down. 100 for a disk of zero bytes.
    pub fn used_percent(self) -> u8 {
        let left = u128::from(self.available.min(self.capacity)) * 100 / u128::from(self.capacity.max(1));
        100 - u8::try_from(left).unwrap_or(100)
    }
}

/// The reason for a collection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// The disk has space: only images older than the maximum age.
    OldOnes,
    /// The disk is over the high threshold.
    Room,
    /// A pull failed because the disk or the store was full: all unused images, whatever the usage is now.
    Everything,
}

/// An image of the runtime's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedImage {
    /// The image id.
    pub id: Box<str>,
    /// Names with tags and with digests.
    pub names: Vec<Box<str>>,
    /// Size as reported by the runtime, in bytes.
    pub size_bytes: u64,
    /// Pinned: never removed.
    pub pinned: bool,
}

impl ListedImage {
    /// Size of its strings in bytes.
    pub fn bytes(&self) -> usize {
        self.names.iter().map(|name| name.len()).sum::<usize>() + self.id.len()
    }
}

impl From<Image> for ListedImage {
    fn from(image: Image) -> Self {
        let Image { id, repo_tags, repo_digests, size_bytes, pinned, .. } = image;
        // The list of names was truncated: the one that a manifest has may be missing.
        let cut = repo_tags.len().max(repo_digests.len()) >= CRI_ENTRIES_MAX;
        let names = repo_tags.into_iter().chain(repo_digests).collect();
        Self { id, names, size_bytes, pinned: pinned || cut }
    }
}

/// Image references: ids, full names and digests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    names: SortedSet<String>,
    digests: SortedSet<String>,
    bytes: usize,
}

/// Adds a text, and its bytes when it is new.
fn put(texts: &mut SortedSet<String>, text: String, bytes: &mut usize) {
    let length = text.len();
    if texts.insert(text) {
        *bytes += length;
    }
}

impl Named {
    /// Size of the strings in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a reference as in a manifest, a container or an image record.
    pub fn add(&mut self, image: &str) {
        if image.is_empty() || self.names.contains(image) {
            return;
        }
        if let Ok(name) = ImageName::parse(image)
            && !name.digest.is_empty()
        {
            put(&mut self.digests, name.digest, &mut self.bytes);
        }
        // A text that is not a valid name may be an id.
        for name in full_name(image).into_iter().chain([image.to_owned()]) {
            put(&mut self.names, name, &mut self.bytes);
        }
    }

    /// True when one of the references is to this image.
    pub fn holds(&self, image: &ListedImage) -> bool {
        let digest =
            |name: &str| name.split_once('@').is_some_and(|(_, digest)| self.digests.contains(digest));
        self.names.contains(&*image.id)
            || image.names.iter().any(|name| self.names.contains(&**name) || digest(name))
    }
}

impl<'a> FromIterator<&'a str> for Named {
    fn from_iter<I: IntoIterator<Item = &'a str>>(images: I) -> Self {
        let mut named = Self::default();
        images.into_iter().for_each(|image| named.add(image));
        named
    }
}

/// Age and use of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageAge {
    /// Time since it was first seen.
    pub seen: Duration,
    /// Time since its last use, or since it was first seen when it was never used.
    pub idle: Duration,
    /// A container that used it was observed.
    pub was_used: bool,
}

/// An image that may be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The image.
    pub image: ListedImage,
    /// Not used for longer than the maximum age.
    pub is_old: bool,
}

/// Removable images in eviction order (`imagesInEvictionOrder`, `byLastUsedAndDetected`): first those never used, then those
/// not used for the longest time. `age` is `None` for images beyond `IMAGES_SEEN_MAX`: they are kept.
pub fn candidates(
    policy: &ImageGcPolicy,
    images: Vec<ListedImage>,
    kept: impl Fn(&ListedImage) -> bool,
    age: impl Fn(&str) -> Option<ImageAge>,
) -> Vec<Candidate> {
    let mut found: Vec<(ImageAge, Candidate)> = images
        .into_iter()
        .filter(|image| !image.pinned && !is_of_sandboxes(image) && !kept(image))
        .filter_map(|image| {
            let age = age(&image.id).filter(|age| age.seen >= policy.min_age)?;
            let is_old = policy.max_age.is_some_and(|max| age.idle > max);
            Some((age, Candidate { image, is_old }))
        })
        .collect();
    found.sort_by(|(a, one), (b, other)| {
        let by_use = a.was_used.cmp(&b.was_used).then(b.idle.cmp(&a.idle));
        by_use.then(b.seen.cmp(&a.seen)).then_with(|| one.image.id.cmp(&other.image.id))
    });
    found.into_iter().map(|(_, candidate)| candidate).collect()
}

/// True for pause images. No listed container uses them, and containerd pins its own only since 1.7.3; without it, and
/// offline, no pod could start. All images with a usual name (`registry.k8s.io/pause`, `rancher/mirrored-pause`) are kept
/// besides the one that the runtime reports.
fn is_of_sandboxes(image: &ListedImage) -> bool {
    image.names.iter().any(|name| is_of_a_pause(name))
}

/// A size as the kubelet shows it (`formatSize`), rounded to one decimal.
pub fn shown_size(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    let Some(mut unit) = (bytes >= 1024).then_some(0_usize) else { return format!("{bytes} B") };
    while unit + 1 < UNITS.len() && bytes >> (10 * (unit + 2)) > 0 {
        unit += 1;
    }
    let one = 1_u128 << (10 * (unit + 1));
    let tenths = (u128::from(bytes) * 10 + one / 2) / one;
    format!("{}.{} {}", tenths / 10, tenths % 10, UNITS.get(unit).copied().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn image(id: &str, names: &[&str]) -> ListedImage {
        let names = names.iter().map(|name| Box::from(*name)).collect();
        ListedImage { id: id.into(), names, size_bytes: 1, pinned: false }
    }

    fn age(seen: u64, idle: u64, was_used: bool) -> ImageAge {
        ImageAge { seen: Duration::from_secs(seen), idle: Duration::from_secs(idle), was_used }
    }

    #[test]
    fn images_are_removed_over_the_threshold_or_below_the_minimum() {
        let policy = ImageGcPolicy::default();
        let none = ImageGcPolicy { available_min: 0, ..policy };
        let off = ImageGcPolicy { high_percent: 100, ..policy };
        // Policy, capacity, available; is over, missing.
        for (name, policy, capacity, available, over, missing) in [
            ("empty", policy, 100 * GIB, 100 * GIB, false, 0),
            ("just below", policy, 100 * GIB, 16 * GIB, false, 4 * GIB),
            ("at the threshold", policy, 100 * GIB, 15 * GIB, true, 5 * GIB),
            ("full", policy, 100 * GIB, 0, true, 20 * GIB),
            ("the available share is rounded down", policy, 1000 * GIB, 159 * GIB, true, 41 * GIB),
            ("low and high differ", policy, 100 * GIB, 20 * GIB, false, 0),
            ("the minimum of a small card", policy, 2 * GIB, GIB / 2 - 1, true, 1),
            ("exactly the minimum", policy, 2 * GIB, GIB / 2, false, 0),
            ("the minimum of a tiny card is a share", policy, GIB, GIB / 4, false, 0),
            ("and below it", policy, GIB, GIB / 4 - 1, true, 1),
            ("without a minimum", none, 2 * GIB, GIB / 2 - 1, false, 0),
            ("switched off", off, 100 * GIB, 2 * GIB, false, 18 * GIB),
        ] {
            let disk = DiskSpace { capacity, available };
            assert_eq!((policy.is_over(disk), policy.missing(disk)), (over, missing), "{name}");
        }
        let huge = DiskSpace { capacity: u64::MAX, available: u64::MAX };
        assert_eq!((huge.used_percent(), policy.missing(huge)), (0, 0));
        assert_eq!(DiskSpace { capacity: 0, available: 0 }.used_percent(), 100);
    }

    #[test]
    fn a_referenced_image_is_kept_under_any_of_its_names() {
        let digest = format!("sha256:{}", "a".repeat(64));
        let by_digest = format!("docker.io/library/busybox@{digest}");
        let listed = image("sha256:1", &["docker.io/library/busybox:1", &by_digest]);
        for (name, holds) in [
            ("busybox:1", true),
            ("library/busybox:1", true),
            ("docker.io/library/busybox:1", true),
            ("index.docker.io/library/busybox:1", true),
            ("sha256:1", true),
            (&*by_digest, true),
            (&*format!("busybox:1@{digest}"), true),
            (&*format!("mirror.local/other:7@{digest}"), true),
            ("busybox", false),
            ("busybox:2", false),
            ("", false),
            ("sha256:2", false),
        ] {
            assert_eq!([name].into_iter().collect::<Named>().holds(&listed), holds, "{name}");
        }
        let nameless = image("sha256:2", &[]);
        assert!(!Named::default().holds(&nameless));
        assert!(["sha256:2"].into_iter().collect::<Named>().holds(&nameless));
    }

    #[test]
    fn unused_images_are_removed_first_then_the_longest_idle_ones() {
        let ages = [
            ("used-long-ago", age(9_000, 8_000, true)),
            ("used-lately", age(9_000, 300, true)),
            ("never-b", age(500, 500, false)),
            ("never-a", age(500, 500, false)),
            ("never-old", age(900, 900, false)),
            ("young", age(119, 119, false)),
        ];
        let images = |names: &[&str]| names.iter().map(|name| image(name, &[])).collect::<Vec<_>>();
        let all: Vec<&str> = ages.iter().map(|(name, _)| *name).chain(["unknown"]).collect();
        let of = |id: &str| ages.iter().find(|(name, _)| *name == id).map(|(_, age)| *age);
        let order = |policy: &ImageGcPolicy| {
            let found = candidates(policy, images(&all), |_| false, of);
            found.into_iter().map(|c| (c.image.id.to_string(), c.is_old)).collect::<Vec<_>>()
        };
        let policy = ImageGcPolicy::default();
        let ids = order(&policy).into_iter().map(|(id, _)| id).collect::<Vec<_>>();
        assert_eq!(ids, ["never-old", "never-a", "never-b", "used-long-ago", "used-lately"]);
        let policy = ImageGcPolicy { max_age: Some(Duration::from_secs(500)), ..policy };
        let old: Vec<String> = order(&policy).into_iter().filter(|(_, old)| *old).map(|(id, _)| id).collect();
        assert_eq!(old, ["never-old", "used-long-ago"], "500 s are not more than 500 s");
    }

    #[test]
    fn pinned_kept_and_sandboxes_images_are_no_candidates() {
        let old = |_: &str| Some(age(9_000, 9_000, false));
        let mut pinned = image("pinned", &[]);
        pinned.pinned = true;
        let images = vec![
            pinned,
            image("kept", &[]),
            image("p1", &["registry.k8s.io/pause:3.8"]),
            image("p2", &["docker.io/rancher/mirrored-pause:3.6"]),
            image("p3", &["localhost:5000/pause@sha256:00"]),
            image("app", &["docker.io/acme/pause/app:1"]),
            image("menopause", &["docker.io/acme/unpause:1"]),
        ];
        let found = candidates(&ImageGcPolicy::default(), images, |image| &*image.id == "kept", old);
        let ids: Vec<&str> = found.iter().map(|candidate| &*candidate.image.id).collect();
        assert_eq!(ids, ["app", "menopause"]);
    }

    #[test]
    fn an_image_with_truncated_names_is_pinned() {
        let of = |tags: usize| Image {
            id: "a".into(),
            repo_tags: (0..tags).map(|n| format!("a:{n}").into()).collect(),
            repo_digests: Vec::new(),
            size_bytes: 1,
            uid: None,
            username: "".into(),
            pinned: false,
        };
        assert!(!ListedImage::from(of(3)).pinned);
        assert!(ListedImage::from(of(CRI_ENTRIES_MAX)).pinned);
    }

    #[test]
    fn a_collection_ends_with_enough_space_and_removes_old_images_anyway() {
        let policy = ImageGcPolicy { available_min: 0, ..ImageGcPolicy::default() };
        let candidate = |is_old| Candidate { image: image("a", &[]), is_old };
        let short = DiskSpace { capacity: 100, available: 10 };
        let enough = DiskSpace { capacity: 100, available: 20 };
        for (goal, disk, is_old, goes) in [
            (Goal::Room, short, false, true),
            (Goal::Room, enough, false, false),
            (Goal::Room, enough, true, true),
            (Goal::OldOnes, short, false, false),
            (Goal::OldOnes, short, true, true),
            (Goal::Everything, enough, false, true),
        ] {
            assert_eq!(policy.goes(goal, disk, &candidate(is_old)), goes, "{goal:?} {disk:?} {is_old}");
        }
    }

    #[test]
    fn sizes_are_shown_as_by_the_kubelet() {
        for (bytes, shown) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (1536, "1.5 KiB"),
            (5 << 20, "5.0 MiB"),
            (GIB - 1, "1024.0 MiB"),
            (GIB, "1.0 GiB"),
            (15_728_640_000, "14.6 GiB"),
            (3 << 40, "3.0 TiB"),
            (u64::MAX, "16777216.0 TiB"),
        ] {
            assert_eq!(shown_size(bytes), shown, "{bytes}");
        }
    }
}
