//! PURE: when images were first seen and last used, for garbage collection.
//!
//! The kubelet keeps these times in memory (`imageRecord`) and starts again with each restart; here they are in the
//! checkpoint.

use std::time::Duration;

use super::gc::{ImageAge, ListedImage};
use crate::limits::{CRI_TEXT_BYTES_MAX, IMAGES_SEEN_MAX};
use crate::model::Mono;

/// One image.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SeenImage {
    /// Its id; before the first list of all images, the reference that a container has.
    image: Box<str>,
    first: Mono,
    /// For an image in use: when that was last observed. The next observation moves it, which does not count as a change.
    last: Mono,
    in_use: bool,
    /// The last read of the containers that showed one of its.
    read: u64,
}

/// The images seen. Full (`IMAGES_SEEN_MAX`): a further one is not remembered until another is removed.
#[derive(Clone, Debug, Default)]
pub struct ImagesSeen {
    /// Sorted by image.
    images: Vec<SeenImage>,
    changes: u64,
    /// Reads of the containers.
    reads: u64,
    /// All images were listed since the start.
    is_listed: bool,
}

impl ImagesSeen {
    /// Marks the images of all containers, just read, each by its id or by a name with a digest (`imageRef`), as in use until the next
    /// list of all images. True when one of them had no container at the read before: it may have been removed and unpacked anew meanwhile.
    pub fn used<'a>(&mut self, images: impl Iterator<Item = &'a str>, now: Mono) -> bool {
        let mut is_new = false;
        let before = self.reads;
        self.reads += 1;
        let read = self.reads;
        for image in images.filter(|image| fits(image)) {
            if let Ok(at) = self.index(image) {
                let seen = &mut self.images[at];
                seen.last = now;
                self.changes += u64::from(!std::mem::replace(&mut seen.in_use, true));
                is_new |= std::mem::replace(&mut seen.read, read) < before.max(1);
            } else {
                self.put(SeenImage { image: image.into(), first: now, last: now, in_use: true, read });
                is_new = true;
            }
        }
        is_new
    }

    /// Records that exactly these images exist at `now`, in use or not (`detectImages`). Times recorded under another name
    /// of an image move to its id, which is no change. Nor are the images that the first list finds: nothing happened, and their times
    /// are written with the next change.
    pub fn observe(&mut self, listed: &[ListedImage], in_use: impl Fn(&ListedImage) -> bool, now: Mono) {
        let (mut known, mut fresh): (Vec<SeenImage>, Vec<SeenImage>) = Default::default();
        let is_first = !std::mem::replace(&mut self.is_listed, true);
        let (mut found, mut is_change) = (vec![false; self.images.len()], false);
        for image in listed.iter().filter(|image| fits(&image.id)) {
            let (id, in_use) = (image.id.clone(), in_use(image));
            let names = std::iter::once(&image.id).chain(&image.names);
            let seen = names.filter_map(|name| {
                let at = self.index(name).ok()?;
                if let Some(found) = found.get_mut(at) {
                    *found = true;
                }
                let seen = self.images.get(at)?;
                Some((seen.first, seen.last, seen.in_use, seen.read))
            });
            match seen.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1), a.2 || b.2, a.3.max(b.3))) {
                Some((first, last, was_in_use, read)) => {
                    is_change |= in_use != was_in_use;
                    let last = if in_use || was_in_use { now } else { last };
                    known.push(SeenImage { image: id, first, last, in_use, read });
                }
                None => fresh.push(SeenImage { image: id, first: now, last: now, in_use, read: 0 }),
            }
        }
        is_change |=
            found.contains(&false) || !is_first && !fresh.is_empty() && known.len() < IMAGES_SEEN_MAX;
        known.extend(fresh);
        known.truncate(IMAGES_SEEN_MAX);
        known.sort_by(|a, b| a.image.cmp(&b.image));
        known.dedup_by(|a, b| a.image == b.image);
        self.changes += u64::from(is_change);
        self.images = known;
    }

    /// Restores an image from the checkpoint; not in use until it is observed.
    pub fn restore(&mut self, image: &str, first: Mono, last: Mono) {
        self.put(SeenImage { image: image.into(), first, last: last.max(first), in_use: false, read: 0 });
    }

    /// Image, age, and time since the last use of every image.
    pub fn ages(&self, now: Mono) -> impl Iterator<Item = (&str, Duration, Duration)> {
        self.images.iter().map(move |seen| {
            let idle = if seen.in_use { Duration::ZERO } else { now.since(seen.last) };
            (&*seen.image, now.since(seen.first), idle)
        })
    }

    /// Age and use of that image; `None` when it is unknown.
    pub fn age(&self, image: &str, now: Mono) -> Option<ImageAge> {
        let seen = self.images.get(self.index(image).ok()?)?;
        let idle = if seen.in_use { Duration::ZERO } else { now.since(seen.last) };
        Some(ImageAge { seen: now.since(seen.first), idle, was_used: seen.in_use || seen.last > seen.first })
    }

    /// Increases with each change but that of time.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Number of images and their bytes.
    pub fn held(&self) -> (usize, usize) {
        let bytes = |seen: &SeenImage| size_of::<SeenImage>() + seen.image.len();
        (self.images.len(), self.images.iter().map(bytes).sum())
    }

    fn index(&self, image: &str) -> Result<usize, usize> {
        self.images.binary_search_by(|seen| (*seen.image).cmp(image))
    }

    fn put(&mut self, seen: SeenImage) {
        if let Err(at) = self.index(&seen.image)
            && self.images.len() < IMAGES_SEEN_MAX
        {
            self.images.insert(at, seen);
            self.changes += 1;
        }
    }
}

/// True when the name is short enough to be kept.
fn fits(image: &str) -> bool {
    !image.is_empty() && image.len() <= CRI_TEXT_BYTES_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Mono {
        Mono(seconds * 1_000_000_000)
    }

    fn ages(seen: &ImagesSeen, now: i64) -> Vec<(String, u64, u64)> {
        seen.ages(at(now))
            .map(|(image, age, idle)| (image.to_owned(), age.as_secs(), idle.as_secs()))
            .collect()
    }

    /// An image with that id and these additional names.
    fn image(id: &str, names: &[&str]) -> ListedImage {
        let names = names.iter().map(|name| Box::from(*name)).collect();
        ListedImage { id: id.into(), names, size_bytes: 1, pinned: false }
    }

    /// Observes images by id; those with a `+` are in use.
    fn look(seen: &mut ImagesSeen, images: &str, now: i64) {
        let listed: Vec<ListedImage> =
            images.split_whitespace().map(|id| image(id.trim_end_matches('+'), &[])).collect();
        let in_use = |of: &ListedImage| images.split_whitespace().any(|id| id == format!("{}+", of.id));
        seen.observe(&listed, in_use, at(now));
    }

    fn owned(ages: &[(&str, u64, u64)]) -> Vec<(String, u64, u64)> {
        ages.iter().map(|(image, age, idle)| ((*image).to_owned(), *age, *idle)).collect()
    }

    #[test]
    fn an_image_ages_from_its_detection_and_is_idle_from_its_last_use() {
        let mut seen = ImagesSeen::default();
        look(&mut seen, "b+ a+ b+", 10);
        let changes = seen.changes();
        look(&mut seen, "a+ b+", 20);
        assert_eq!(seen.changes(), changes, "time alone is no change");
        look(&mut seen, "a+ b", 30);
        assert_eq!(seen.changes(), changes + 1);
        assert_eq!(ages(&seen, 50), owned(&[("a", 40, 0), ("b", 40, 20)]));
        look(&mut seen, "a+ b", 55);
        assert_eq!(seen.changes(), changes + 1, "nor is idleness");
        look(&mut seen, "a+ b+", 60);
        assert_eq!(ages(&seen, 60), owned(&[("a", 50, 0), ("b", 50, 0)]));
    }

    #[test]
    fn a_use_between_two_lists_counts() {
        let mut seen = ImagesSeen::default();
        look(&mut seen, "a b", 10);
        let changes = seen.changes();
        seen.used(["a", "a", ""].into_iter(), at(20));
        assert_eq!(seen.changes(), changes + 1);
        seen.used(["a"].into_iter(), at(30));
        assert_eq!(seen.changes(), changes + 1);
        assert_eq!(ages(&seen, 40), owned(&[("a", 30, 0), ("b", 30, 30)]));
        // Its container is removed by now.
        look(&mut seen, "a b", 50);
        assert_eq!(ages(&seen, 60), owned(&[("a", 50, 10), ("b", 50, 50)]));
        assert!(seen.age("a", at(60)).is_some_and(|age| age.was_used));
    }

    #[test]
    fn an_image_without_a_container_for_a_while_is_used_anew() {
        let mut seen = ImagesSeen::default();
        let mut used = |images: &[&str]| seen.used(images.iter().copied(), at(20));
        assert!(used(&["a"]));
        assert!(!used(&["a"]) && used(&["a", "b"]) && !used(&["b", "a"]));
        assert!(!used(&["a"]), "an end is no use");
        assert!(used(&["a", "b"]), "long before the next list of all images");
        look(&mut seen, "a+ b c", 30);
        assert!(!seen.used(["a", "b"].into_iter(), at(40)), "a list is no end");
        assert!(seen.used(["c"].into_iter(), at(40)));
        seen.restore("d", at(0), at(0));
        assert!(seen.used(["d"].into_iter(), at(50)));
    }

    #[test]
    fn a_use_by_another_name_is_the_images() {
        let mut seen = ImagesSeen::default();
        seen.observe(&[image("id", &["x:1", "x@sha256:7"])], |_| false, at(10));
        seen.used(["x@sha256:7", "y@sha256:8"].into_iter(), at(20));
        assert_eq!(ages(&seen, 20), owned(&[("id", 10, 10), ("x@sha256:7", 0, 0), ("y@sha256:8", 0, 0)]));
        let listed = [image("id", &["x:1", "x@sha256:7"]), image("other", &["y@sha256:8"])];
        seen.observe(&listed, |image| &*image.id == "other", at(30));
        assert_eq!(ages(&seen, 40), owned(&[("id", 30, 10), ("other", 20, 0)]));
        assert!(seen.age("id", at(40)).is_some_and(|age| age.was_used));
    }

    #[test]
    fn an_image_that_was_never_used_differs_from_one_that_was() {
        let mut seen = ImagesSeen::default();
        look(&mut seen, "a b+", 10);
        look(&mut seen, "a b", 20);
        let age =
            |image| seen.age(image, at(40)).map(|age| (age.seen.as_secs(), age.idle.as_secs(), age.was_used));
        assert_eq!(age("a"), Some((30, 30, false)));
        assert_eq!(age("b"), Some((30, 20, true)));
        assert_eq!(age("c"), None);
    }

    #[test]
    fn what_was_there_all_the_time_is_no_change() {
        let mut seen = ImagesSeen::default();
        seen.used(["x@sha256:7"].into_iter(), at(10));
        let changes = seen.changes();
        let used = image("id", &["x:1", "x@sha256:7"]);
        let listed = [used.clone(), image("other", &[])];
        for now in [20, 30] {
            seen.observe(&listed, |image| &*image.id == "id", at(now));
        }
        assert_eq!(ages(&seen, 30), owned(&[("id", 20, 0), ("other", 10, 10)]));
        assert_eq!(seen.changes(), changes);
        seen.observe(&[used], |_| true, at(40));
        assert_eq!(seen.changes(), changes + 1, "one is gone");
        seen.observe(&listed, |image| &*image.id == "id", at(50));
        assert_eq!(seen.changes(), changes + 2, "one is new");
    }

    #[test]
    fn a_removed_image_is_dropped() {
        let mut seen = ImagesSeen::default();
        look(&mut seen, "a b+", 10);
        let changes = seen.changes();
        look(&mut seen, "b+", 20);
        assert!(seen.changes() > changes);
        look(&mut seen, "a b+", 30);
        assert_eq!(ages(&seen, 40), owned(&[("a", 10, 10), ("b", 30, 0)]), "seen anew");
    }

    #[test]
    fn a_restored_image_keeps_its_ages() {
        let mut seen = ImagesSeen::default();
        seen.restore("a", at(-100), at(-50));
        seen.restore("a", at(0), at(0));
        assert_eq!(ages(&seen, 10), owned(&[("a", 110, 60)]), "the first one counts");
        look(&mut seen, "a", 10);
        assert_eq!(ages(&seen, 10), owned(&[("a", 110, 60)]));
        look(&mut seen, "a+", 20);
        assert_eq!(ages(&seen, 20), owned(&[("a", 120, 0)]));
    }

    #[test]
    fn a_full_table_drops_a_further_image_until_another_is_removed() {
        let all: Vec<ListedImage> =
            (0..IMAGES_SEEN_MAX).map(|n| image(&format!("image-{n:04}"), &[])).collect();
        // The first of all in name order.
        let more = |images: &[ListedImage]| [&[image("another", &[])][..], images].concat();
        let mut seen = ImagesSeen::default();
        seen.observe(&all, |_| false, at(0));
        let changes = seen.changes();
        seen.observe(&more(&all), |_| true, at(1));
        assert_eq!(seen.held().0, IMAGES_SEEN_MAX);
        assert_eq!(seen.changes(), changes + 1, "they are in use now");
        seen.used(["another"].into_iter(), at(1));
        assert!(seen.age("another", at(1)).is_none());
        seen.observe(&more(&all[1..]), |_| true, at(2));
        assert!(seen.age("another", at(2)).is_some() && seen.age(&all[0].id, at(2)).is_none());
        assert!(ages(&seen, 2).is_sorted() && seen.held().0 == IMAGES_SEEN_MAX);
    }
}
