//! The servers of one cluster: further addresses of its API, the order in which they are tried, and the addresses that were
//! authenticated. PURE.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;

use super::ServerUrl;
use crate::limits::SERVERS_AUTHENTICATED_MAX;

/// Further addresses of an API server, all of the same cluster and so with the same certificate authorities. Clones share them.
/// At most `limits::K3S_SERVERS_MAX`; the caller of `set` ensures that.
#[derive(Clone, Debug, Default)]
pub(crate) struct Others(Rc<RefCell<Vec<ServerUrl>>>);

impl Others {
    /// Replaces the addresses.
    pub(crate) fn set(&self, servers: Vec<ServerUrl>) {
        *self.0.borrow_mut() = servers;
    }

    /// All addresses.
    pub(crate) fn all(&self) -> Vec<ServerUrl> {
        self.0.borrow().clone()
    }

    /// `first`, followed by the others.
    pub(crate) fn behind(&self, first: &ServerUrl) -> Vec<ServerUrl> {
        let others = self.0.borrow();
        std::iter::once(first).chain(others.iter().filter(|other| *other != first)).cloned().collect()
    }

    /// Number of addresses.
    pub(crate) fn len(&self) -> usize {
        self.0.borrow().len()
    }
}

/// Addresses at which a server has shown a verified certificate of the cluster. Clones share them. Full: the one that was
/// authenticated the longest time ago is dropped.
#[derive(Clone, Debug, Default)]
pub(crate) struct Authenticated(Rc<RefCell<Vec<IpAddr>>>);

impl Authenticated {
    /// The address was authenticated now.
    pub(crate) fn add(&self, address: IpAddr) {
        let mut addresses = self.0.borrow_mut();
        addresses.retain(|known| *known != address);
        if addresses.len() >= SERVERS_AUTHENTICATED_MAX {
            addresses.remove(0);
        }
        addresses.push(address);
    }

    /// All addresses.
    pub(crate) fn all(&self) -> Vec<IpAddr> {
        self.0.borrow().clone()
    }
}

/// The order of the attempts: the last reached server for as long as it is reachable, then the next ones in a circle.
#[derive(Debug, Default)]
pub(crate) struct Rotation {
    /// The last server that was tried; `None`: none yet.
    at: Option<ServerUrl>,
    /// It is skipped at the next attempt.
    passes: bool,
    /// Failures since a server was last reached, or since all of them had failed.
    failures: usize,
}

impl Rotation {
    /// The next server of `all`, which is not empty: at first, and when the last one has been removed, the first.
    pub(crate) fn aim<'s>(&self, all: &'s [ServerUrl]) -> &'s ServerUrl {
        let found = all.iter().position(|server| Some(server) == self.at.as_ref());
        let index = found.map_or(0, |index| index + usize::from(self.passes));
        &all[index % all.len()]
    }

    /// Records that the server was not reached. True when each of `count` servers has failed now: the caller waits before the
    /// next round.
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

    /// Records that the server was reached.
    pub(crate) fn reached(&mut self, server: &ServerUrl) {
        self.at = Some(server.clone());
        self.passes = false;
        self.failures = 0;
    }

    /// Records that the server was reached but is unusable: the next attempt goes to another one.
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
        // Event, its server, and whether all have failed.
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
        // A server that has been removed is followed by the first.
        turn.reached(&server("b"));
        turn.pass();
        assert_eq!(host(&turn, &[server("a"), server("c")]), "a");
        // A single server is always the next.
        let one = [server("a")];
        let mut turn = Rotation::default();
        assert!(turn.failed(&one[0], 1));
        turn.pass();
        assert_eq!(host(&turn, &one), "a");
    }
}
