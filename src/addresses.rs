//! The node's addresses, followed while the agent runs (kubelet `nodestatus.NodeAddress`, which reads them with each node
//! status): a gateway may boot before DHCP answers, and its lease may change.
//!
//! ```text
//!      rtnetlink message about an address or a route ─► ADDRESSES_SETTLE, or ADDRESSES_PERIOD since the last read
//!                                                       without a change ─► read the default routes' addresses
//!                                                       ─► changed: every subscriber is notified
//! ```
//!
//! The kernel's messages are not parsed: any of them triggers a read. The task is idle while nothing changes.

use std::cell::RefCell;
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
    now: RefCell<Vec<Box<str>>>,
    /// One for each part of the agent that keeps state derived from them.
    subscribers: RefCell<Vec<Sender<()>>>,
}

impl NodeAddresses {
    /// With these addresses until the first read.
    pub fn new(addresses: &[Box<str>]) -> Self {
        let this = Self::default();
        this.0.now.replace(addresses.to_vec());
        this
    }

    /// What the node is called, in its cluster and by these.
    #[cfg(feature = "tls")]
    pub(crate) fn names(&self, node: &str) -> Vec<String> {
        std::iter::once(node.to_owned()).chain(self.now().into_iter().map(String::from)).collect()
    }

    /// As they are now.
    pub fn now(&self) -> Vec<Box<str>> {
        self.0.now.borrow().clone()
    }

    /// Receives a message when they change; several changes may be one message.
    pub fn changes(&self) -> Receiver<()> {
        let (sender, receiver) = smol::channel::bounded(1);
        self.0.subscribers.borrow_mut().push(sender);
        receiver
    }

    /// Replaces the addresses. True when they have changed.
    fn set(&self, addresses: Vec<Box<str>>) -> bool {
        if *self.0.now.borrow() == addresses {
            return false;
        }
        log::info!("node addresses: [{}], before: [{}]", addresses.join(" "), self.now().join(" "));
        self.0.now.replace(addresses);
        for subscriber in &*self.0.subscribers.borrow() {
            // Full: the subscriber has not handled the last change yet, and will read the current addresses.
            let _ = subscriber.try_send(());
        }
        true
    }

    /// Follows the default routes' addresses until dropped, if `given` (`--node-ip`) leaves any of them open.
    pub async fn follow(self, given: Vec<IpAddr>, clock: SharedClock) {
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
            let is_news = self.set(facts::node_ips(&given));
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
                + if is_news || self.0.now.borrow().is_empty() { ADDRESSES_SETTLE } else { ADDRESSES_PERIOD };
            clock.sleep_until(settled.max(quiet)).await;
            drain(kernel.get_ref());
        }
    }
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
