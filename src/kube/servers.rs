//! The servers of one cluster: where else its API is, which of them is asked next, and from which addresses they answered. PURE.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;

use super::ServerUrl;
use crate::limits::SERVERS_AUTHENTICATED_MAX;

/// Further addresses of an API server, all of the same cluster and so behind the same authorities. Clones share them.
/// At most `limits::K3S_SERVERS_MAX`, as whoever sets them sees to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Others(Rc<RefCell<Vec<ServerUrl>>>);

impl Others {
    /// Puts these in the place of those before.
    pub(crate) fn set(&self, servers: Vec<ServerUrl>) {
        *self.0.borrow_mut() = servers;
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<ServerUrl> {
        self.0.borrow().clone()
    }

    /// That one, and the others behind it.
    pub(crate) fn behind(&self, first: &ServerUrl) -> Vec<ServerUrl> {
        let others = self.0.borrow();
        std::iter::once(first).chain(others.iter().filter(|other| *other != first)).cloned().collect()
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.0.borrow().len()
    }
}

/// Addresses at which a server has shown a certificate of the cluster's. Clones share them. Full: the one that did so the longest
/// time ago is forgotten.
#[derive(Clone, Debug, Default)]
pub(crate) struct Authenticated(Rc<RefCell<Vec<IpAddr>>>);

impl Authenticated {
    /// One did so now.
    pub(crate) fn add(&self, address: IpAddr) {
        let mut addresses = self.0.borrow_mut();
        addresses.retain(|known| *known != address);
        if addresses.len() >= SERVERS_AUTHENTICATED_MAX {
            addresses.remove(0);
        }
        addresses.push(address);
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<IpAddr> {
        self.0.borrow().clone()
    }
}

/// Whose turn it is: the one that was reached last for as long as it is, then the one behind it, round and round.
#[derive(Debug, Default)]
pub(crate) struct Rotation {
    /// The one that was asked last; `None`: none yet.
    at: Option<ServerUrl>,
    /// It is passed over.
    passes: bool,
    /// How many have failed since one was reached, or since all of them had failed.
    failures: usize,
}

impl Rotation {
    /// The one of `all`, which are not none, that is asked next: at first, and when the last one is gone, the first.
    pub(crate) fn aim<'s>(&self, all: &'s [ServerUrl]) -> &'s ServerUrl {
        let found = all.iter().position(|server| Some(server) == self.at.as_ref());
        let index = found.map_or(0, |index| index + usize::from(self.passes));
        &all[index % all.len()]
    }

    /// It was not reached. Whether each of so many has failed now: whoever asks waits before the next round.
    pub(crate) fn failed(&mut self, server: &ServerUrl, count: usize) -> bool {
        self.at = Some(server.clone());
        self.passes = true;
        self.failures += 1;
        let all_failed = self.failures >= count;
        if all_failed {
            self.failures = 0;
        }
        all_failed
    }

    /// It was reached.
    pub(crate) fn reached(&mut self, server: &ServerUrl) {
        self.at = Some(server.clone());
        self.passes = false;
        self.failures = 0;
    }

    /// It was reached, and is of no use: the next turn is another one's.
    pub(crate) fn pass(&mut self) {
        self.passes = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_that_answered_last_are_known_by_their_addresses() {
        let (authenticated, most) =
            (Authenticated::default(), u8::try_from(SERVERS_AUTHENTICATED_MAX).unwrap());
        let address = |host: u8| IpAddr::from([192, 0, 2, host]);
        for host in (0..most).chain([0, most]) {
            authenticated.add(address(host));
        }
        let known: Vec<IpAddr> = (2..most).chain([0, most]).map(address).collect();
        assert_eq!(authenticated.all(), known);
    }

    fn server(host: &str) -> ServerUrl {
        ServerUrl { host: host.to_owned(), port: 6443, prefix: String::new() }
    }

    #[test]
    fn the_named_one_is_first_and_stands_there_once() {
        let others = Others::default();
        assert_eq!(others.behind(&server("a")), [server("a")]);
        others.set(vec![server("b"), server("a"), server("c")]);
        assert_eq!(others.behind(&server("a")), [server("a"), server("b"), server("c")]);
        assert_eq!(others.behind(&server("vip")).len(), 4);
    }

    #[test]
    fn the_turn_goes_on_when_one_fails_and_stays_where_one_was_reached() {
        let all = ["a", "b", "c"].map(server);
        let mut turn = Rotation::default();
        let host = |turn: &Rotation, all: &[ServerUrl]| turn.aim(all).host.clone();
        // What happens, whose turn it was, and whether all have failed.
        for (happens, whose, wanted) in [
            ("fails", "a", false),
            ("fails", "b", false),
            ("fails", "c", true),
            ("fails", "a", false),
            ("answers", "b", false),
            ("answers", "b", false),
            ("passes", "b", false),
            ("fails", "c", false),
            ("fails", "a", false),
            ("fails", "b", true),
            ("answers", "c", false),
            ("passes", "c", false),
            ("answers", "a", false),
        ] {
            assert_eq!(host(&turn, &all), whose, "{happens}");
            let server = server(whose);
            let over = match happens {
                "fails" => turn.failed(&server, all.len()),
                "answers" => {
                    turn.reached(&server);
                    false
                }
                _ => {
                    turn.pass();
                    false
                }
            };
            assert_eq!(over, wanted, "{happens} {whose}");
        }
        // One that is gone is followed by the first.
        turn.reached(&server("b"));
        turn.pass();
        assert_eq!(host(&turn, &[server("a"), server("c")]), "a");
        // Where there is one only it is always its turn.
        let one = [server("a")];
        let mut turn = Rotation::default();
        assert!(turn.failed(&one[0], 1));
        turn.pass();
        assert_eq!(host(&turn, &one), "a");
    }
}
