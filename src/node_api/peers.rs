//! Rate limits of unauthenticated work, by origin. PURE.
//!
//! ```text
//!                                   processor time of handshakes, rate of TokenReviews
//!      an unknown address           its own share
//!      all unknown addresses        a share of all of them, beside their own
//!      a known address              a larger one of its own, whatever the others use
//!      another process here         the same
//!      k3s servers by tunnels       the same, without a wait for the share of all together
//!      all of these together        a share of a processor; when it is used up, each known one still has a small one of its own
//! ```

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use crate::limits::{
    NODE_HANDSHAKES, NODE_HANDSHAKES_GUARANTEED, NODE_HANDSHAKES_IN_ALL, NODE_HANDSHAKES_OF_KNOWN,
    NODE_HANDSHAKES_OF_UNKNOWN, NODE_PEERS_KNOWN_MAX, NODE_PEERS_MAX, NODE_TOKENS, NODE_TOKENS_OF_KNOWN,
    NODE_TOKENS_OF_UNKNOWN, Rate,
};
use crate::model::{Mono, SortedMap};
use crate::rate::TokenBucket;

/// The origin of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Origin {
    /// A k3s server, through a tunnel: the agent has opened the socket itself.
    Tunnel,
    /// Any other process on this machine, whoever its user is.
    Own,
    /// Another IPv4 address.
    V4(Ipv4Addr),
    /// An IPv6 network of 64 bits: a host with one of its addresses has all of them.
    V6(u64),
}

impl Origin {
    /// The origin is this machine.
    pub(super) fn is_here(self) -> bool {
        match self {
            Self::Tunnel | Self::Own => true,
            Self::V4(_) | Self::V6(_) => false,
        }
    }

    /// The origin of a connection from `peer` to the local address `ours`.
    pub(super) fn of(peer: IpAddr, ours: Option<IpAddr>) -> Self {
        match (peer.to_canonical(), ours.map(|ours| ours.to_canonical())) {
            (peer, Some(ours)) if peer == ours => Self::Own,
            (IpAddr::V4(Ipv4Addr::LOCALHOST), _) => Self::Own,
            (IpAddr::V4(peer), _) => Self::V4(peer),
            (IpAddr::V6(peer), _) if peer.is_loopback() => Self::Own,
            (IpAddr::V6(peer), _) => {
                Self::V6(peer.segments()[..4].iter().fold(0, |net, part| net << 16 | u64::from(*part)))
            }
        }
    }
}

/// The remaining budget of one origin.
#[derive(Debug)]
struct Budget {
    /// Processor time, in microseconds.
    handshakes: TokenBucket,
    /// Processor time that stays available when all origins together have used up theirs; unknown ones have none.
    guaranteed: Option<TokenBucket>,
    tokens: TokenBucket,
}

impl Budget {
    fn new(handshakes: Rate, tokens: Rate, now: Mono) -> Self {
        Self {
            handshakes: TokenBucket::new(handshakes, now),
            guaranteed: None,
            tokens: TokenBucket::new(tokens, now),
        }
    }
}

#[derive(Debug)]
struct Peer {
    known: bool,
    rations: Budget,
    used: Mono,
}

impl Peer {
    fn new(known: bool, now: Mono) -> Self {
        let rations = if known {
            let guaranteed = Some(TokenBucket::new(NODE_HANDSHAKES_GUARANTEED, now));
            Budget { guaranteed, ..Budget::new(NODE_HANDSHAKES_OF_KNOWN, NODE_TOKENS_OF_KNOWN, now) }
        } else {
            Budget::new(NODE_HANDSHAKES, NODE_TOKENS, now)
        };
        Self { known, rations, used: now }
    }
}

/// The most recent origins. Full: of the unknown ones the one that has been absent for the longest is dropped.
#[derive(Debug)]
pub(super) struct Peers {
    origins: SortedMap<Origin, Peer>,
    /// The budget of all unknown origins.
    unknown: Budget,
    /// Processor time of all origins together, in microseconds.
    handshakes: TokenBucket,
}

impl Peers {
    pub(super) fn new(now: Mono) -> Self {
        let unknown = Budget::new(NODE_HANDSHAKES_OF_UNKNOWN, NODE_TOKENS_OF_UNKNOWN, now);
        let handshakes = TokenBucket::new(NODE_HANDSHAKES_IN_ALL, now);
        Self { origins: SortedMap::new(), unknown, handshakes }
    }

    /// The origin is a tunnel, this machine, or an address from which a request was admitted.
    pub(super) fn is_known(&self, origin: Origin) -> bool {
        origin.is_here() || self.origins.get(&origin).is_some_and(|peer| peer.known)
    }

    /// A request was admitted from there. Too many are known: the one that has been absent for the longest becomes unknown.
    pub(super) fn mark_known(&mut self, origin: Origin, now: Mono) {
        let peer = self.peer(origin, now);
        if peer.known {
            return;
        }
        *peer = Peer::new(true, now);
        let known = self.origins.iter_mut().filter(|(of, peer)| peer.known && !of.is_here());
        let mut known: Vec<(Mono, &mut Peer)> = known.map(|(_, peer)| (peer.used, peer)).collect();
        if known.len() > NODE_PEERS_KNOWN_MAX {
            known.sort_by_key(|(used, _)| *used);
            for (_, forgotten) in known.into_iter().take(1) {
                *forgotten = Peer::new(false, forgotten.used);
            }
        }
    }

    /// When a handshake of that origin may start; `None`: now.
    pub(super) fn handshake_at(&mut self, origin: Origin, now: Mono) -> Option<Mono> {
        let peer = self.peer(origin, now);
        let (known, own) = (peer.known, peer.rations.handshakes.wait(now));
        // The earlier of the two; `None` when there is no wait.
        let guaranteed = peer.rations.guaranteed.as_mut().map(|bucket| bucket.wait(now));
        let of_unknown = if known { None } else { self.unknown.handshakes.wait(now) };
        let of_all = match (origin, self.handshakes.wait(now), guaranteed) {
            // The use of tunnels counts, but they do not wait for the others.
            (Origin::Tunnel, ..) => None,
            (_, of_all, Some(guaranteed)) => of_all.min(guaranteed),
            (_, of_all, None) => of_all,
        };
        own.max(of_unknown).max(of_all)
    }

    /// Charges the time of a handshake, even if it exceeds the budget.
    pub(super) fn spend(&mut self, origin: Origin, time: Duration, now: Mono) {
        let micros = u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
        let is_used_up = self.handshakes.wait(now).is_some();
        self.handshakes.spend(micros, now);
        let peer = self.peer(origin, now);
        peer.rations.handshakes.spend(micros, now);
        if let Some(guaranteed) = peer.rations.guaranteed.as_mut().filter(|_| is_used_up) {
            guaranteed.spend(micros, now);
        }
        if !peer.known {
            self.unknown.handshakes.spend(micros, now);
        }
    }

    /// Whether a `TokenReview` for that origin is within the rate.
    pub(super) fn try_review(&mut self, origin: Origin, now: Mono) -> bool {
        let peer = self.peer(origin, now);
        let (known, own) = (peer.known, peer.rations.tokens.try_accept(now));
        own && (known || self.unknown.tokens.try_accept(now))
    }

    fn peer(&mut self, origin: Origin, now: Mono) -> &mut Peer {
        if !self.origins.contains_key(&origin) && self.origins.len() >= NODE_PEERS_MAX {
            let unknown = self.origins.iter().filter(|(_, peer)| !peer.known);
            let last = unknown.min_by_key(|(_, peer)| peer.used).map(|(of, _)| *of);
            last.map(|last| self.origins.remove(&last));
        }
        let peer = self.origins.entry(origin).or_insert_with(|| Peer::new(origin.is_here(), now));
        peer.used = now;
        peer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Mono {
        Mono(millis * 1_000_000)
    }

    fn v4(host: u8) -> Origin {
        Origin::V4(Ipv4Addr::new(192, 0, 2, host))
    }

    #[test]
    fn an_address_is_what_one_sender_has() {
        let of = |peer: &str, ours: &str| Origin::of(peer.parse().unwrap(), Some(ours.parse().unwrap()));
        for (peer, ours) in [
            ("127.0.0.1", "127.0.0.5"),
            ("::1", "::1"),
            ("10.0.0.2", "10.0.0.2"),
            ("::ffff:10.0.0.2", "10.0.0.2"),
        ] {
            assert_eq!(of(peer, ours), Origin::Own, "{peer}");
        }
        assert_eq!(of("192.0.2.7", "10.0.0.2"), v4(7));
        assert_eq!(of("::ffff:192.0.2.7", "::ffff:10.0.0.2"), v4(7));
        assert_eq!(of("2001:db8:0:1::7", "::1"), of("2001:db8:0:1:ffff::8", "::1"));
        assert_ne!(of("2001:db8:0:1::7", "::1"), of("2001:db8:0:2::7", "::1"));
    }

    /// Processor time within ten seconds of origins that always have a handshake to start; each costs 20 ms.
    fn taken(peers: &mut Peers, origins: &[Origin]) -> Vec<Duration> {
        taken_from(peers, origins, at(0))
    }

    /// The same from that instant on.
    fn taken_from(peers: &mut Peers, origins: &[Origin], begun: Mono) -> Vec<Duration> {
        let (mut taken, cost) = (vec![Duration::ZERO; origins.len()], Duration::from_millis(20));
        for now in (0..10_000).step_by(5).map(|millis| begun + Duration::from_millis(millis)) {
            for (origin, taken) in origins.iter().zip(&mut taken) {
                if peers.handshake_at(*origin, now).is_none() {
                    peers.spend(*origin, cost, now);
                    *taken += cost;
                }
            }
        }
        taken
    }

    #[test]
    fn handshakes_cost_no_more_than_the_share_of_an_address_and_that_of_all() {
        let mut peers = Peers::new(at(0));
        let one = taken(&mut peers, &[v4(1)])[0];
        assert!(one > Duration::from_millis(1900) && one < Duration::from_millis(2100), "{one:?}");
        // A hundred of them together: a fifth of the time and the saved budget.
        let mut peers = Peers::new(at(0));
        let known = v4(200);
        peers.mark_known(known, at(0));
        let mut origins: Vec<Origin> = (0..100).map(v4).collect();
        origins.extend([known, Origin::Own]);
        let all = taken(&mut peers, &origins);
        let unknown: Duration = all[..100].iter().sum();
        assert!(unknown < Duration::from_millis(4100), "{unknown:?}");
        for known in &all[100..] {
            assert!(*known > Duration::from_millis(220), "a client that is known has its own: {known:?}");
        }
        assert!(peers.origins.len() <= NODE_PEERS_MAX);
        // One of them beside the unknown addresses has its whole share.
        let mut peers = Peers::new(at(0));
        peers.mark_known(known, at(0));
        let all = taken(&mut peers, &origins[..=100]);
        assert!(all[100] > Duration::from_millis(3400), "{:?}", all[100]);
    }

    #[test]
    fn all_together_cost_no_more_than_their_share_of_a_processor_and_tunnels_do_not_wait_for_it() {
        let mut peers = Peers::new(at(0));
        let known: Vec<Origin> =
            (0..NODE_PEERS_KNOWN_MAX).map(|host| v4(u8::try_from(host).unwrap())).collect();
        for origin in &known {
            peers.mark_known(*origin, at(0));
        }
        let unknown: Vec<Origin> = (100..120).map(v4).collect();
        let origins = [&known[..], &unknown, &[Origin::Own]].concat();
        let share = |seconds: u32| {
            let Rate { per_second, burst } = NODE_HANDSHAKES_IN_ALL;
            // The last one may exceed the budget.
            let guaranteed =
                NODE_HANDSHAKES_GUARANTEED.burst * u32::try_from(NODE_PEERS_KNOWN_MAX + 2).unwrap();
            Duration::from_micros((burst + seconds * per_second + guaranteed).into())
                + Duration::from_millis(20)
        };
        let all = taken(&mut peers, &origins);
        let (sum, of_unknown): (Duration, Duration) =
            (all.iter().sum(), all[known.len()..known.len() + 20].iter().sum());
        assert!(sum > share(10).mul_f64(0.75) && sum < share(10), "{sum:?}");
        assert!(of_unknown < Duration::from_millis(4100), "{of_unknown:?}");
        // The others have used up the common budget, and continue.
        let origins = [&origins[..], &[Origin::Tunnel]].concat();
        let all = taken_from(&mut peers, &origins, at(10_000));
        let (of_tunnel, sum) = (all[origins.len() - 1], all.iter().sum::<Duration>());
        assert!(of_tunnel > Duration::from_millis(5400), "{of_tunnel:?}");
        assert!(sum < share(10), "what the tunnel takes the others do not: {sum:?}");
    }

    /// The API server asks seldom. Other known clients use all of the budget, and so do unknown ones.
    #[test]
    fn a_known_client_that_asks_seldom_does_not_wait_for_those_that_take_all() {
        let mut peers = Peers::new(at(0));
        let known: Vec<Origin> =
            (0..NODE_PEERS_KNOWN_MAX).map(|host| v4(u8::try_from(host).unwrap())).collect();
        for origin in &known {
            peers.mark_known(*origin, at(0));
        }
        let (server, known) = known.split_last().unwrap();
        let origins = [&(100..120).map(v4).collect::<Vec<_>>()[..], known, &[Origin::Own]].concat();
        for second in 0..4 {
            let now = at(second * 10_000);
            taken_from(&mut peers, &origins, now);
            let now = now + Duration::from_secs(10);
            assert!(peers.handshakes.wait(now).is_some(), "nothing is left");
            assert_eq!(peers.handshake_at(*server, now), None);
            peers.spend(*server, Duration::from_millis(20), now);
        }
    }

    #[test]
    fn a_handshake_that_costs_more_than_there_is_is_waited_for() {
        let mut peers = Peers::new(at(0));
        peers.spend(v4(1), Duration::from_secs(2), at(0));
        let ready = peers.handshake_at(v4(1), at(0)).expect("a wait");
        assert!(ready > at(9_900) && ready < at(10_100), "{ready:?}");
        assert_eq!(peers.handshake_at(v4(1), ready), None);
        assert_eq!(peers.handshake_at(Origin::Own, at(0)), None);
    }

    #[test]
    fn tokens_of_strangers_are_asked_for_as_their_rate_has_it_and_of_those_who_are_known_at_once() {
        let mut peers = Peers::new(at(0));
        peers.mark_known(v4(200), at(0));
        let asked = |peers: &mut Peers, origin| (0..100).filter(|_| peers.try_review(origin, at(0))).count();
        assert_eq!(asked(&mut peers, v4(1)), NODE_TOKENS.burst as usize);
        let rest: usize = (2..100).map(|host| asked(&mut peers, v4(host))).sum();
        assert_eq!(rest, (NODE_TOKENS_OF_UNKNOWN.burst - NODE_TOKENS.burst) as usize);
        assert_eq!(asked(&mut peers, v4(200)), NODE_TOKENS_OF_KNOWN.burst as usize);
        assert!(peers.try_review(v4(1), at(1_100)));
    }

    #[test]
    fn those_who_are_known_stay_so_whoever_else_comes() {
        let mut peers = Peers::new(at(0));
        for host in 0..=NODE_PEERS_KNOWN_MAX {
            peers.mark_known(v4(u8::try_from(host).unwrap()), at(i64::try_from(host).unwrap()));
        }
        for host in 0..2_000 {
            peers.spend(Origin::V6(host), Duration::from_millis(1), at(100));
        }
        assert!(!peers.is_known(v4(0)), "the one that was away for the longest");
        assert!((1..=NODE_PEERS_KNOWN_MAX).all(|host| peers.is_known(v4(u8::try_from(host).unwrap()))));
        assert!(peers.is_known(Origin::Own) && peers.is_known(Origin::Tunnel));
        assert!(!peers.is_known(Origin::V6(1_999)));
        assert!(peers.origins.len() <= NODE_PEERS_MAX);
    }
}
