//! The node's addresses, followed while the agent runs (kubelet `nodestatus.NodeAddress`, which reads them with each node
//! status): a gateway may boot before DHCP answers, and its lease may change.
//!
//! ```text
//!      rtnetlink message about an address or a route ─► ADDRESSES_SETTLE, or ADDRESSES_PERIOD since the last read
//!                                                       without a change ─► read the default routes' addresses, and
//!                                                       whether links still have the present ones
//!                                                       ─► changed: every subscriber is notified
//! ```
//!
//! An address of the node stays while a link of the machine has it, wherever the default route leads: other nodes, certificates and
//! flannel's link depend on it, and a second uplink (LTE, a VPN) takes the route and gives it back. k3s agent and the kubelet's
//! `--node-ip` choose once, at the start. With `--flannel-iface` its addresses count instead of the default routes'.
//!
//! Which family comes first, the ranges of a k3s cluster decide (`put_first`).
//!
//! The kernel's messages are not parsed: any of them triggers a read. The task is idle while nothing changes.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use async_io::Async;
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{self, AddressFamily, RecvFlags, SocketFlags, SocketType};
use smol::channel::{Receiver, Sender};

use crate::clock::SharedClock;
use crate::facts;
use crate::limits::{ADDRESSES_PERIOD, ADDRESSES_SETTLE};
#[cfg(feature = "tls")]
use crate::limits::{FLANNEL_SETTLE, FLANNEL_WATCH_PERIOD};
use crate::netlink::link_address::LinkAddress;

/// `RTMGRP_IPV4_IFADDR`, `RTMGRP_IPV4_ROUTE`, `RTMGRP_IPV6_IFADDR` and `RTMGRP_IPV6_ROUTE` of `linux/rtnetlink.h`.
const GROUPS: u32 = 0x10 | 0x40 | 0x100 | 0x400;
/// `RTMGRP_LINK`, `RTMGRP_IPV4_ROUTE` and `RTMGRP_IPV6_ROUTE`.
#[cfg(feature = "tls")]
const LINK_GROUPS: u32 = 1 | 0x40 | 0x400;
/// A longer message is truncated: its content is not used.
const MESSAGE_BYTES: usize = 64;

/// The node's current addresses, the primary one first; shared by all their users.
#[derive(Clone, Debug, Default)]
pub struct NodeAddresses(Rc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// In the order in which they are given or found.
    found: RefCell<Vec<Box<str>>>,
    /// Whether one of IPv6 comes first; `None`: the order stays.
    v6_first: Cell<Option<bool>>,
    /// One for each part of the agent that keeps state derived from them.
    subscribers: RefCell<Vec<Sender<()>>>,
}

impl NodeAddresses {
    /// With these addresses until the first read.
    pub fn new(addresses: &[Box<str>]) -> Self {
        let this = Self::default();
        this.0.found.replace(addresses.to_vec());
        this
    }

    /// What the node is called, in its cluster and by these.
    #[cfg(feature = "tls")]
    pub(crate) fn names(&self, node: &str) -> Vec<String> {
        std::iter::once(node.to_owned()).chain(self.now().into_iter().map(String::from)).collect()
    }

    /// As they are now.
    pub fn now(&self) -> Vec<Box<str>> {
        let mut now = self.as_found();
        if let ([first, _, ..], Some(is_v6)) = (&*now, self.0.v6_first.get())
            && first.contains(':') != is_v6
        {
            now.swap(0, 1);
        }
        now
    }

    /// The same, in the order in which they are given or found.
    pub(crate) fn as_found(&self) -> Vec<Box<str>> {
        self.0.found.borrow().clone()
    }

    /// Puts the second one first where the first is of the other family than the cluster's first range (k3s' `get` of its agent's
    /// configuration); given ones too. `None`: that family is not known.
    #[cfg(feature = "tls")]
    pub(crate) fn put_first(&self, is_v6: Option<bool>) {
        self.change(|shared| shared.v6_first.set(is_v6));
    }

    /// Receives a message when they change; several changes may be one message.
    pub fn changes(&self) -> Receiver<()> {
        let (sender, receiver) = smol::channel::bounded(1);
        self.0.subscribers.borrow_mut().push(sender);
        receiver
    }

    /// Replaces the addresses. True when they have changed.
    fn set(&self, addresses: Vec<Box<str>>) -> bool {
        self.change(|shared| drop(shared.found.replace(addresses)))
    }

    fn change(&self, change: impl FnOnce(&Shared)) -> bool {
        let before = self.now();
        change(&self.0);
        let now = self.now();
        if now == before {
            return false;
        }
        log::info!("node addresses: [{}], before: [{}]", now.join(" "), before.join(" "));
        for subscriber in &*self.0.subscribers.borrow() {
            // Full: the subscriber has not handled the last change yet, and will read the current addresses.
            let _ = subscriber.try_send(());
        }
        true
    }

    /// The node's addresses by the machine as it is, as they are found, where `given` is `--node-ip` and `interface`
    /// [`Config::node_interface`](crate::config::Config::node_interface). The present ones stay while links have them. Blocks for a
    /// few system calls.
    pub fn read(&self, given: &[IpAddr], interface: Option<&str>) -> Vec<Box<str>> {
        let present: Vec<IpAddr> = self.as_found().iter().filter_map(|ip| ip.parse().ok()).collect();
        let own = facts::own_ips(interface);
        if present.is_empty() || present == own {
            return facts::node_ips(given, &own);
        }
        match facts::link_addresses(|of| present.contains(&of.address)) {
            Ok(there) => facts::node_ips(given, &in_use(&present, &own, &there)),
            Err(error) => {
                log::debug!("node addresses: rtnetlink: {error}; those that are found now are taken");
                facts::node_ips(given, &own)
            }
        }
    }

    /// Follows the node's addresses until dropped, if `given` (`--node-ip`) leaves any of them open.
    pub async fn follow(self, given: Vec<IpAddr>, interface: Option<String>, clock: SharedClock) {
        if !given.is_empty() && !given.iter().any(IpAddr::is_unspecified) {
            return;
        }
        let kernel = match subscribe(GROUPS) {
            Ok(kernel) => kernel,
            Err(error) => {
                log::warn!(
                    "node addresses: watch failed: rtnetlink: {error}; restart smolet after an address change"
                );
                return;
            }
        };
        loop {
            // After the subscription, so that earlier changes are found, too.
            let is_news = self.set(self.read(&given, interface.as_deref()));
            let looked = clock.now().mono;
            if let Err(error) = kernel.readable().await {
                log::warn!(
                    "node addresses: watch ended: rtnetlink: {error}; restart smolet after an address change"
                );
                return;
            }
            // An address arrives with its routes, and often with other addresses.
            let settled = clock.now().mono + ADDRESSES_SETTLE;
            // Pods that come and go change addresses of the machine, but none of the node's own.
            let quiet = looked
                + if is_news || self.0.found.borrow().is_empty() {
                    ADDRESSES_SETTLE
                } else {
                    ADDRESSES_PERIOD
                };
            clock.sleep_until(settled.max(quiet)).await;
            drain(kernel.get_ref());
        }
    }
}

/// The addresses in use, IPv4 first; `own` are those of the default routes, or of the interface. PURE.
///
/// | a link has the present one of the family | the default route, or the interface, has one | the node has |
/// |---|---|---|
/// | yes | any | the present one |
/// | yes, deprecated | yes | the default route's, or the interface's |
/// | yes, deprecated | no | the present one |
/// | no | yes or no | the default route's, or the interface's, or none |
fn in_use(present: &[IpAddr], own: &[IpAddr], there: &[LinkAddress]) -> Vec<IpAddr> {
    let of = |is_v4: bool| {
        let own = own.iter().find(|ip| ip.is_ipv4() == is_v4).copied();
        let present = present.iter().find(|ip| ip.is_ipv4() == is_v4).copied();
        let may_stay = |link: &LinkAddress| !link.is_deprecated() || own.is_none();
        present.filter(|ip| there.iter().any(|link| link.address == *ip && may_stay(link))).or(own)
    };
    [true, false].into_iter().filter_map(of).collect()
}

/// Sends to `changed`, which holds one, when links or routes of the machine change, until it is closed.
#[cfg(feature = "tls")]
pub(crate) async fn watch_links(clock: SharedClock, changed: Sender<()>) {
    let kernel = match subscribe(LINK_GROUPS) {
        Ok(kernel) => kernel,
        Err(error) => {
            return log::warn!("links: watch failed: rtnetlink: {error}; they are looked at now and then");
        }
    };
    while kernel.readable().await.is_ok() && !changed.is_closed() {
        clock.sleep(FLANNEL_SETTLE).await;
        drain(kernel.get_ref());
        // Full: the last change is not handled yet.
        let _ = changed.try_send(());
        clock.sleep(FLANNEL_WATCH_PERIOD).await;
    }
}

fn subscribe(groups: u32) -> io::Result<Async<OwnedFd>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // Protocol 0 is NETLINK_ROUTE.
    let socket = net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    net::bind(&socket, &SocketAddrNetlink::new(0, groups))?;
    Async::new_nonblocking(socket)
}

/// Discards the pending messages. An overrun (`ENOBUFS`) has lost messages, which do not matter.
fn drain(socket: &OwnedFd) {
    let mut message = [0; MESSAGE_BYTES];
    while matches!(
        net::recv(socket, &mut message, RecvFlags::DONTWAIT),
        Ok(_) | Err(Errno::NOBUFS | Errno::INTR)
    ) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ips(text: &str) -> Vec<IpAddr> {
        text.split_whitespace().map(|ip| ip.parse().unwrap()).collect()
    }

    #[test]
    fn an_address_stays_while_a_link_has_it() {
        // Present, of the default routes, of links with `~` before a deprecated one; what is in use.
        for (present, of_routes, there, expected) in [
            // The default route moves to another uplink, and back.
            ("10.7.0.2", "100.64.0.9", "10.7.0.2", "10.7.0.2"),
            ("10.7.0.2", "10.7.0.2", "10.7.0.2", "10.7.0.2"),
            // It goes.
            ("10.7.0.2", "", "10.7.0.2", "10.7.0.2"),
            ("10.7.0.2 2001:db8::2", "2001:db8::2", "10.7.0.2 2001:db8::2", "10.7.0.2 2001:db8::2"),
            // The address goes, with its route or without.
            ("10.7.0.2", "10.7.0.3", "", "10.7.0.3"),
            ("10.7.0.2", "", "", ""),
            ("10.7.0.2 2001:db8::2", "2001:db8::2", "2001:db8::2", "2001:db8::2"),
            // One comes.
            ("", "10.7.0.2", "", "10.7.0.2"),
            ("2001:db8::2", "10.7.0.2 2001:db8::2", "2001:db8::2", "10.7.0.2 2001:db8::2"),
            // The provider announces another prefix; or none.
            ("2001:db8::2", "2001:db8:1::2", "~2001:db8::2", "2001:db8:1::2"),
            ("2001:db8::2", "", "~2001:db8::2", "2001:db8::2"),
        ] {
            let link = |text: &str| LinkAddress {
                link: 2,
                address: text.trim_start_matches('~').parse().unwrap(),
                bits: 24,
                flags: if text.starts_with('~') { 0x20 } else { 0 },
            };
            let links: Vec<LinkAddress> = there.split_whitespace().map(link).collect();
            let found = in_use(&ips(present), &ips(of_routes), &links);
            assert_eq!(found, ips(expected), "{present:?} {of_routes:?} {there:?}");
        }
    }

    #[cfg(feature = "tls")]
    #[test]
    fn the_first_address_is_of_the_family_of_the_clusters_first_range() {
        // Found or given, whether IPv6 is first in the cluster, as the node has them.
        for (found, v6_first, expected) in [
            ("10.7.0.2 2001:db8::2", None, "10.7.0.2 2001:db8::2"),
            ("10.7.0.2 2001:db8::2", Some(false), "10.7.0.2 2001:db8::2"),
            ("10.7.0.2 2001:db8::2", Some(true), "2001:db8::2 10.7.0.2"),
            ("2001:db8::2 10.7.0.2", None, "2001:db8::2 10.7.0.2"),
            ("2001:db8::2 10.7.0.2", Some(false), "10.7.0.2 2001:db8::2"),
            ("2001:db8::2 10.7.0.2", Some(true), "2001:db8::2 10.7.0.2"),
            ("10.7.0.2", Some(true), "10.7.0.2"),
            ("2001:db8::2", Some(false), "2001:db8::2"),
            ("", Some(true), ""),
        ] {
            let of = |text: &str| text.split_whitespace().map(Box::from).collect::<Vec<Box<str>>>();
            let addresses = NodeAddresses::new(&of(found));
            let changes = addresses.changes();
            addresses.put_first(v6_first);
            assert_eq!((addresses.now(), addresses.as_found()), (of(expected), of(found)), "{v6_first:?}");
            assert_eq!(changes.try_recv().is_ok(), found != expected, "{found:?} {v6_first:?}");
            assert!(!addresses.set(of(found)), "that is no change");
        }
    }

    #[test]
    fn the_kernel_tells_which_addresses_links_have() {
        // Without a link that is up the machine has none.
        let wanted = ips("127.0.0.1 192.0.2.1");
        let there = facts::link_addresses(|of| wanted.contains(&of.address)).unwrap();
        let loopback = ips("127.0.0.1")[0];
        assert!(there.iter().all(|of| of.address == loopback && !of.is_deprecated()), "{there:?}");
    }
}
