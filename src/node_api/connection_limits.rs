//! The connection limits of a port, and which connection is closed when a further one comes. PURE.
//!
//! ```text
//!     a further one comes ...                          of those that nobody was let in by yet is closed
//!     its address has its share                        the oldest of that address
//!     all unknown addresses have theirs together       of these addresses that which has most: its oldest
//!     no place is free                                 of all addresses that which has most: its oldest
//! ```
//!
//! Of an address that is known, and of this machine itself, so many do not count. The one that comes counts for its own
//! address. Of several that have most the unknown ones are first, then the oldest. Of one address those by which nobody was
//! authenticated go first, and those by which somebody was let in never: who shares a known address with the API server, by NAT or
//! in one network of IPv6, ends none of its requests. Those of tunnels have places of their own, and are closed for no other's.

use super::peers::Origin;

/// How many there are of what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Connections.
    pub(super) connections_max: usize,
    /// Of them so many are for tunnels alone.
    pub(super) of_tunnels: usize,
    /// Those from one address that nobody knows, and that nobody was let in by.
    pub(super) of_address_max: usize,
    /// The same of all those addresses.
    pub(super) of_strangers_max: usize,
    /// The same of one address that is known, and of this machine itself; tunnels apart.
    pub(super) of_known_max: usize,
    /// So many of an address that is known are not closed for an unknown one's.
    pub(super) of_known: usize,
}

/// How far a connection's client has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// It has proven nothing.
    Unauthenticated,
    /// Its certificate names somebody; what he may is not known yet.
    Authenticated,
    /// It was let in.
    Admitted,
}

/// A connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnectionInfo {
    pub(super) origin: Origin,
    pub(super) stage: Stage,
}

impl Limits {
    /// Which one is closed, of those that are here in the order in which they came; `free`: a place is.
    pub(super) fn leaves(
        &self,
        here: &[ConnectionInfo],
        newcomer: Origin,
        is_known: impl Fn(Origin) -> bool,
        free: bool,
    ) -> Option<usize> {
        let can_leave = |place: &&ConnectionInfo| place.stage != Stage::Admitted;
        let count = |of: Origin| here.iter().filter(can_leave).filter(|place| place.origin == of).count();
        let of_address_max = match newcomer {
            Origin::Tunnel => usize::MAX,
            of if is_known(of) => self.of_known_max,
            Origin::Own | Origin::V4(_) | Origin::V6(_) => self.of_address_max,
        };
        if count(newcomer) >= of_address_max {
            return Self::of_most(here, |of| (of == newcomer).then_some(1));
        }
        if !is_known(newcomer) {
            let strangers = here.iter().filter(can_leave).filter(|place| !is_known(place.origin));
            if strangers.count() >= self.of_strangers_max {
                return Self::of_most(here, |of| {
                    (!is_known(of)).then(|| count(of) + usize::from(of == newcomer))
                });
            }
        }
        if free {
            return None;
        }
        Self::of_most(here, |of| {
            if of == Origin::Tunnel && newcomer != Origin::Tunnel {
                return None;
            }
            let all = count(of) + usize::from(of == newcomer);
            // Twice, so that an unknown one is before a known one that has as many.
            Some(if is_known(of) { 2 * all.saturating_sub(self.of_known) } else { 2 * all + 1 })
        })
    }

    /// Of the address with the most the one that has come the least far, of several the oldest.
    fn of_most(here: &[ConnectionInfo], has: impl Fn(Origin) -> Option<usize>) -> Option<usize> {
        let can_leave = here.iter().enumerate().filter(|(_, place)| place.stage != Stage::Admitted);
        // Whole addresses are compared before the stages: an address of which each connection is authenticated may have most.
        let most = can_leave.clone().filter_map(|(index, place)| Some((has(place.origin)?, index)));
        let (_, oldest) = most.min_by_key(|(has, index)| (usize::MAX - has, *index))?;
        let origin = here[oldest].origin;
        let of_address = can_leave.filter(|(_, place)| place.origin == origin);
        of_address.min_by_key(|(index, place)| (place.stage, *index)).map(|(index, _)| index)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const LIMITS: Limits = Limits {
        connections_max: 8,
        of_tunnels: 2,
        of_address_max: 3,
        of_strangers_max: 5,
        of_known_max: 5,
        of_known: 2,
    };

    fn v4(host: u8) -> Origin {
        Origin::V4(Ipv4Addr::new(192, 0, 2, host))
    }

    /// Capital letters are known, `O` is this machine, `T` a tunnel. By one with `+` somebody was authenticated, by one with `!`
    /// somebody was let in.
    fn places(text: &str) -> Vec<ConnectionInfo> {
        let mut places: Vec<ConnectionInfo> = Vec::new();
        for letter in text.bytes() {
            let stage = match letter {
                b'+' => Stage::Authenticated,
                b'!' => Stage::Admitted,
                _ => {
                    places.push(ConnectionInfo { origin: origin(letter), stage: Stage::Unauthenticated });
                    continue;
                }
            };
            places.last_mut().unwrap().stage = stage;
        }
        places
    }

    fn origin(letter: u8) -> Origin {
        match letter {
            b'O' => Origin::Own,
            b'T' => Origin::Tunnel,
            _ => v4(letter),
        }
    }

    fn is_known(origin: Origin) -> bool {
        match origin {
            Origin::Own | Origin::Tunnel => true,
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
            // One that is known has its share, too, and so has this machine.
            ("AaAAAA", "A", true, Some(0)),
            ("OOOOO", "O", true, Some(0)),
            ("OOOOO", "A", true, None),
            // Tunnels have no such share, and none is closed for others.
            ("TTTTTTTT", "T", true, None),
            ("TTTTTTTT", "O", false, None),
            ("TTTTTTa", "O", false, Some(6)),
            ("OOOOOO", "T", false, Some(0)),
            // Those by which somebody was authenticated are last, and nobody who was let in is closed.
            ("a+aa", "a", true, Some(1)),
            ("a+a+a+", "a", true, Some(0)),
            ("a!a!aa", "a", true, None),
            ("A!A+A!AA", "B", false, Some(3)),
            ("A!A!A!A!", "A", true, None),
            ("A!A!A!O!", "a", false, None),
            ("a+a+ab", "O", false, Some(2)),
            ("OOAAAA", "b", false, Some(2)),
            ("AABB", "C", false, Some(0)),
            ("aO", "A", false, Some(0)),
            ("a", "b", false, Some(0)),
        ] {
            let found = LIMITS.leaves(&places(here), origin(newcomer.as_bytes()[0]), is_known, free);
            assert_eq!(found, leaves, "{here:?} {newcomer:?} {free}");
        }
    }

    #[test]
    fn nobody_leaves_for_an_address_that_has_more() {
        let kinds = ["a", "a+", "b", "A", "A!", "O", "T"];
        for number in 0..kinds.len().pow(5) {
            let here: String =
                (0..5_u32).map(|at| kinds[number / kinds.len().pow(at) % kinds.len()]).collect();
            let places = places(&here);
            for newcomer in *b"abAOT" {
                let newcomer = origin(newcomer);
                let of = |origin: Origin| {
                    places
                        .iter()
                        .filter(move |place| place.origin == origin && place.stage != Stage::Admitted)
                };
                for free in [false, true] {
                    let Some(leaves) = LIMITS.leaves(&places, newcomer, is_known, free) else { continue };
                    let left = places[leaves];
                    assert!(left.stage != Stage::Admitted, "{here} {newcomer:?}");
                    assert!(of(left.origin).all(|place| place.stage >= left.stage), "{here} {newcomer:?}");
                    let alike = |place: &ConnectionInfo| *place == left;
                    assert!(!places[..leaves].iter().any(alike), "the oldest of its address");
                    assert!(
                        left.origin != Origin::Tunnel || newcomer == Origin::Tunnel,
                        "{here} {newcomer:?}"
                    );
                    if !is_known(newcomer) {
                        let count = |origin| of(origin).count();
                        assert!(count(left.origin) >= count(newcomer), "{here} {newcomer:?}");
                        let others = places.iter().filter(|place| place.stage != Stage::Admitted);
                        assert!(
                            free || !is_known(left.origin)
                                || count(left.origin) > LIMITS.of_known
                                || others.into_iter().all(|place| is_known(place.origin))
                        );
                    }
                }
            }
        }
    }

    /// A neighbour of the API server's behind one address opens as many connections as it likes, at any time.
    #[test]
    fn who_shares_a_known_address_ends_no_request_that_was_let_in() {
        let mut here = places("A!A+A!");
        for _ in 0..100 {
            if let Some(leaves) =
                LIMITS.leaves(&here, v4(b'A'), is_known, here.len() < LIMITS.connections_max)
            {
                here.remove(leaves);
            }
            here.push(ConnectionInfo { origin: v4(b'A'), stage: Stage::Unauthenticated });
            assert!(here.len() <= LIMITS.connections_max);
        }
        let kept: Vec<Stage> = here.iter().map(|place| place.stage).take(3).collect();
        assert_eq!(kept, [Stage::Admitted, Stage::Authenticated, Stage::Admitted]);
    }
}
