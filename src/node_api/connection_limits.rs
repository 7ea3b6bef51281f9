//! The connection limits of a port, and which connection is closed for a further one. PURE.
//!
//! ```text
//!      for a further connection, when ...            the closed one, of the unauthenticated connections, is
//!      its address has its share                     the oldest of that address
//!      all unknown addresses have theirs together    of these addresses the one with the most: its oldest
//!      no place is free                              of all addresses the one with the most: its oldest
//! ```
//!
//! A number of places of a known address, and of this machine itself, do not count. The further connection counts for its own
//! address. Of several addresses with the most the unknown ones are first, then the oldest. Of one address the unauthenticated
//! connections are closed first, and admitted ones never: a client that shares a known address with the API server, by NAT or in
//! one network of IPv6, ends none of its requests. Tunnels have places of their own, and are closed for no other connection.

use super::peers::Origin;

/// The limits of a port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Connections in all.
    pub(super) connections_max: usize,
    /// Of them those reserved for tunnels.
    pub(super) of_tunnels: usize,
    /// Unauthenticated connections from one unknown address.
    pub(super) of_address_max: usize,
    /// Unauthenticated connections from all unknown addresses.
    pub(super) of_unknown_max: usize,
    /// Unauthenticated connections from one known address, and from this machine itself; tunnels apart.
    pub(super) of_known_max: usize,
    /// Connections of a known address that are not closed for an unknown one's.
    pub(super) of_known: usize,
}

/// How far a connection's client has been authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// Not authenticated.
    Unauthenticated,
    /// Its certificate names a user; it is not authorized yet.
    Authenticated,
    /// A request was authorized.
    Admitted,
}

/// A connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnectionInfo {
    pub(super) origin: Origin,
    pub(super) stage: Stage,
}

impl Limits {
    /// The connection to close, of those in `here`, which are in the order of their acceptance; `free`: a place is free.
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
            let unknown = here.iter().filter(can_leave).filter(|place| !is_known(place.origin));
            if unknown.count() >= self.of_unknown_max {
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
            // Doubled, so that an unknown address is before a known one with as many.
            Some(if is_known(of) { 2 * all.saturating_sub(self.of_known) } else { 2 * all + 1 })
        })
    }

    /// Of the address with the most connections the one at the lowest stage, of several the oldest.
    fn of_most(here: &[ConnectionInfo], has: impl Fn(Origin) -> Option<usize>) -> Option<usize> {
        let can_leave = here.iter().enumerate().filter(|(_, place)| place.stage != Stage::Admitted);
        // Whole addresses are compared before the stages: an address whose connections are all authenticated may have the most.
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
        of_unknown_max: 5,
        of_known_max: 5,
        of_known: 2,
    };

    fn v4(host: u8) -> Origin {
        Origin::V4(Ipv4Addr::new(192, 0, 2, host))
    }

    /// Capital letters are known addresses, `O` is this machine, `T` a tunnel; `+`: authenticated, `!`: admitted.
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
            // All unknown addresses have theirs.
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
            // A known address has its share, too, and so has this machine.
            ("AaAAAA", "A", true, Some(0)),
            ("OOOOO", "O", true, Some(0)),
            ("OOOOO", "A", true, None),
            // Tunnels have no such share, and none is closed for others.
            ("TTTTTTTT", "T", true, None),
            ("TTTTTTTT", "O", false, None),
            ("TTTTTTa", "O", false, Some(6)),
            ("OOOOOO", "T", false, Some(0)),
            // Authenticated connections come last, and admitted ones are never closed.
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

    /// A neighbour of the API server behind one address opens as many connections as it likes, at any time.
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
