//! PURE: which images containers were seen with, since when, and until when: garbage collection goes by it.
//!
//! The kubelet keeps these times in memory (`imageRecord`) and begins anew with each start; here they survive it.

use std::time::Duration;

use crate::limits::{CRI_TEXT_BYTES_MAX, IMAGES_SEEN_MAX};
use crate::model::Mono;

/// One image.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SeenImage {
    image: Box<str>,
    first: Mono,
    /// Of one in use: when it was last found to be. The next look moves it on, which is no change.
    last: Mono,
    in_use: bool,
}

/// The images seen. Full (`IMAGES_SEEN_MAX`): the one not used for the longest time goes; when all are in use, a
/// further one is not remembered.
#[derive(Clone, Debug, Default)]
pub struct ImagesSeen {
    /// Sorted by image.
    images: Vec<SeenImage>,
    changes: u64,
}

impl ImagesSeen {
    /// These images are in use at `now`, and no others.
    pub fn observe<'a>(&mut self, in_use: impl Iterator<Item = &'a str>, now: Mono) {
        let mut found = vec![false; self.images.len()];
        let mut fresh: Vec<&str> = Vec::new();
        for image in in_use.filter(|image| !image.is_empty() && image.len() <= CRI_TEXT_BYTES_MAX) {
            match self.index(image) {
                Ok(at) => found[at] = true,
                Err(_) if !fresh.contains(&image) => fresh.push(image),
                Err(_) => {}
            }
        }
        for (seen, found) in self.images.iter_mut().zip(found) {
            if found || seen.in_use {
                seen.last = now;
            }
            if seen.in_use != found {
                seen.in_use = found;
                self.changes += 1;
            }
        }
        for image in fresh {
            self.put(SeenImage { image: image.into(), first: now, last: now, in_use: true });
        }
    }

    /// An image of the checkpoint, not in use until it is seen.
    pub fn restore(&mut self, image: &str, first: Mono, last: Mono) {
        self.put(SeenImage { image: image.into(), first, last: last.max(first), in_use: false });
    }

    /// Image, age, and time since the last use of every one.
    pub fn ages(&self, now: Mono) -> impl Iterator<Item = (&str, Duration, Duration)> {
        self.images.iter().map(move |seen| {
            let idle = if seen.in_use { Duration::ZERO } else { now.since(seen.last) };
            (&*seen.image, now.since(seen.first), idle)
        })
    }

    /// Rises with each change but time's.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// How many images, and their bytes.
    pub fn held(&self) -> (usize, usize) {
        let bytes = |seen: &SeenImage| size_of::<SeenImage>() + seen.image.len();
        (self.images.len(), self.images.iter().map(bytes).sum())
    }

    fn index(&self, image: &str) -> Result<usize, usize> {
        self.images.binary_search_by(|seen| (*seen.image).cmp(image))
    }

    fn put(&mut self, seen: SeenImage) {
        let Err(mut at) = self.index(&seen.image) else { return };
        if self.images.len() >= IMAGES_SEEN_MAX {
            let idle = self.images.iter().enumerate().filter(|(_, seen)| !seen.in_use);
            let Some((oldest, _)) = idle.min_by_key(|(_, seen)| seen.last) else { return };
            self.images.remove(oldest);
            at -= usize::from(oldest < at);
        }
        self.images.insert(at, seen);
        self.changes += 1;
    }
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

    #[test]
    fn an_image_ages_from_first_sight_and_is_idle_from_its_last_use() {
        let mut seen = ImagesSeen::default();
        seen.observe(["b", "a", "b", ""].into_iter(), at(10));
        let changes = seen.changes();
        seen.observe(["a", "b"].into_iter(), at(20));
        assert_eq!(seen.changes(), changes, "time alone is no change");
        seen.observe(["a"].into_iter(), at(30));
        assert!(seen.changes() > changes);
        assert_eq!(ages(&seen, 50), [("a".to_owned(), 40, 0), ("b".to_owned(), 40, 20)]);
        seen.observe(["a", "b"].into_iter(), at(60));
        assert_eq!(ages(&seen, 60), [("a".to_owned(), 50, 0), ("b".to_owned(), 50, 0)]);
    }

    #[test]
    fn a_restored_image_keeps_its_ages() {
        let mut seen = ImagesSeen::default();
        seen.restore("a", at(-100), at(-50));
        seen.restore("a", at(0), at(0));
        assert_eq!(ages(&seen, 10), [("a".to_owned(), 110, 60)], "the first one counts");
        seen.observe(["a"].into_iter(), at(20));
        assert_eq!(ages(&seen, 20), [("a".to_owned(), 120, 0)]);
    }

    #[test]
    fn full_forgets_the_one_idle_longest_and_none_in_use() {
        let names: Vec<String> = (0..IMAGES_SEEN_MAX).map(|n| format!("image-{n:04}")).collect();
        let mut seen = ImagesSeen::default();
        seen.observe(names.iter().map(String::as_str), at(0));
        seen.observe(names.iter().map(String::as_str).chain(["z"]), at(1));
        assert_eq!(seen.held().0, IMAGES_SEEN_MAX);
        assert!(ages(&seen, 1).iter().all(|(image, ..)| image != "z"), "all others are in use");
        seen.observe(names[2..].iter().map(String::as_str), at(2));
        seen.observe(names[1..].iter().map(String::as_str).chain(["z"]), at(3));
        let left = ages(&seen, 3);
        assert!(
            left.iter().any(|(image, ..)| image == "z") && left.iter().all(|(image, ..)| *image != names[0])
        );
        assert!(left.is_sorted() && left.len() == IMAGES_SEEN_MAX);
    }
}
