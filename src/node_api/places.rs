//! Who leaves when a further connection comes. PURE.
//!
//! ```text
//!     a further one comes ...                          of those that nobody was let in by yet there leaves
//!     nobody knows its address, which has its share    the oldest of that address
//!     the like have their share, all together          of their addresses that which has most: its oldest
//!     no place is free                                 of all addresses that which has most: its oldest
//! ```
//!
//! Of an address that is known, and of this machine itself, so many do not count. The one that comes counts for its own
//! address. Of several that have most the unknown ones are first, then the oldest.

use super::peers::Origin;

/// How many there are of what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Connections.
    pub(super) connections_max: usize,
    /// Of them those from one address that nobody knows, and that nobody was let in by.
    pub(super) of_address_max: usize,
    /// The same of all those addresses.
    pub(super) of_strangers_max: usize,
    /// So many of an address that is known do not count.
    pub(super) of_known: usize,
}

impl Limits {
    /// Which one leaves of those that nobody was let in by, in the order in which they came; `free`: a place is.
    pub(super) fn leaves(
        &self,
        here: &[Origin],
        newcomer: Origin,
        is_known: impl Fn(Origin) -> bool,
        free: bool,
    ) -> Option<usize> {
        let count = |of: Origin| here.iter().filter(|origin| **origin == of).count();
        if !is_known(newcomer) {
            if count(newcomer) >= self.of_address_max {
                return here.iter().position(|origin| *origin == newcomer);
            }
            if here.iter().filter(|origin| !is_known(**origin)).count() >= self.of_strangers_max {
                return Self::of_most(here, |of| {
                    (!is_known(of)).then(|| count(of) + usize::from(of == newcomer))
                });
            }
        }
        if free {
            return None;
        }
        Self::of_most(here, |of| {
            let all = count(of) + usize::from(of == newcomer);
            // Twice, so that an unknown one is before a known one that has as many.
            Some(if is_known(of) { 2 * all.saturating_sub(self.of_known) } else { 2 * all + 1 })
        })
    }

    /// The oldest of the address with the most.
    fn of_most(here: &[Origin], has: impl Fn(Origin) -> Option<usize>) -> Option<usize> {
        let all = here.iter().enumerate().filter_map(|(index, origin)| Some((has(*origin)?, index)));
        all.min_by_key(|(has, index)| (usize::MAX - has, *index)).map(|(_, index)| index)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const LIMITS: Limits = Limits { connections_max: 8, of_address_max: 3, of_strangers_max: 5, of_known: 2 };

    fn v4(host: u8) -> Origin {
        Origin::V4(Ipv4Addr::new(192, 0, 2, host))
    }

    /// Capital letters are known, `O` is this machine.
    fn origins(text: &str) -> Vec<Origin> {
        text.bytes().map(|letter| if letter == b'O' { Origin::Own } else { v4(letter) }).collect()
    }

    fn is_known(origin: Origin) -> bool {
        match origin {
            Origin::Own => true,
            Origin::V4(ip) => ip.octets()[3].is_ascii_uppercase(),
            Origin::V6(_) => false,
        }
    }

    #[test]
    fn the_oldest_of_the_address_that_has_most_leaves() {
        for (here, newcomer, free, leaves) in [
            ("", "a", true, None),
            ("", "a", false, None),
            ("bab", "a", true, None),
            // An address has its share.
            ("baaba", "a", true, Some(1)),
            ("aaa", "b", true, None),
            // All that nobody knows have theirs.
            ("baaac", "d", true, Some(1)),
            ("abcde", "f", true, Some(0)),
            ("abcde", "c", true, Some(2)),
            ("abcde", "O", true, None),
            ("abcde", "A", true, None),
            ("OabcdeO", "f", true, Some(1)),
            // No place is free.
            ("abb", "O", false, Some(1)),
            ("OOa", "O", false, Some(2)),
            ("OOOOa", "O", false, Some(0)),
            ("OOAAAA", "b", false, Some(2)),
            ("AABB", "C", false, Some(0)),
            ("aO", "A", false, Some(0)),
            ("a", "b", false, Some(0)),
        ] {
            let found = LIMITS.leaves(&origins(here), origins(newcomer)[0], is_known, free);
            assert_eq!(found, leaves, "{here:?} {newcomer:?} {free}");
        }
    }

    #[test]
    fn nobody_leaves_for_an_address_that_has_more() {
        let letters = ["a", "b", "c", "A", "O"];
        for number in 0..5_usize.pow(5) {
            let here: String = (0..5).map(|place| letters[number / 5_usize.pow(place) % 5]).collect();
            let here = origins(&here);
            for newcomer in letters.map(|letter| origins(letter)[0]) {
                let count = |of: Origin| here.iter().filter(|origin| **origin == of).count();
                for free in [false, true] {
                    let Some(leaves) = LIMITS.leaves(&here, newcomer, is_known, free) else { continue };
                    let left = here[leaves];
                    assert!(!here[..leaves].contains(&left), "the oldest of its address");
                    if !is_known(newcomer) {
                        assert!(count(left) >= count(newcomer), "{here:?} {newcomer:?}");
                        assert!(
                            free || !is_known(left)
                                || count(left) > LIMITS.of_known
                                || here.iter().all(|of| is_known(*of))
                        );
                    }
                }
            }
        }
    }
}
