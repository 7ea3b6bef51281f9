//! The node's addresses, followed while the agent runs (kubelet `nodestatus.NodeAddress`, which looks at them with each node
//! status): a gateway may boot before DHCP answers, and its lease may change.
//!
//! ```text
//!     the kernel tells of an address, a route (rtnetlink) ─► ADDRESSES_SETTLE, or ADDRESSES_PERIOD since the
//!                                                            last look that found nothing new ─► look at the default routes
//!                                                            ─► others than before: every subscriber is told
//! ```
//!
//! What the kernel says is not parsed: any message means that it is worth a look. Nothing is done while nothing changes.

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

/// `RTMGRP_IPV4_IFADDR`, `RTMGRP_IPV4_ROUTE`, `RTMGRP_IPV6_IFADDR` and `RTMGRP_IPV6_ROUTE` of `linux/rtnetlink.h`.
const GROUPS: u32 = 0x10 | 0x40 | 0x100 | 0x400;
/// A message that is longer is cut: its text is not read.
const MESSAGE_BYTES: usize = 64;

/// The node's addresses as they are now, the primary one first; shared by all that need them.
#[derive(Clone, Debug, Default)]
pub struct NodeAddresses(Rc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    now: RefCell<Vec<Box<str>>>,
    /// One for each part of the agent that keeps something made of them.
    subscribers: RefCell<Vec<Sender<()>>>,
}

impl NodeAddresses {
    /// These, until others are found.
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

    /// Brings a message when they change; several changes may be one message.
    pub fn changes(&self) -> Receiver<()> {
        let (sender, receiver) = smol::channel::bounded(1);
        self.0.subscribers.borrow_mut().push(sender);
        receiver
    }

    /// Whether they are others than before.
    fn set(&self, addresses: Vec<Box<str>>) -> bool {
        if *self.0.now.borrow() == addresses {
            return false;
        }
        log::info!("node addresses: [{}], before: [{}]", addresses.join(" "), self.now().join(" "));
        self.0.now.replace(addresses);
        for subscriber in &*self.0.subscribers.borrow() {
            // Full: it has not seen the last change yet, and finds this one with it.
            let _ = subscriber.try_send(());
        }
        true
    }

    /// Follows the default routes' addresses for ever, where `given` (`--node-ip`) leaves any of them open.
    pub async fn follow(self, given: Vec<IpAddr>, clock: SharedClock) {
        if !given.is_empty() && !given.iter().any(IpAddr::is_unspecified) {
            return;
        }
        let kernel = match subscribe() {
            Ok(kernel) => kernel,
            Err(error) => {
                log::warn!(
                    "node addresses: watch failed: rtnetlink: {error}; restart smolet after an address change"
                );
                return;
            }
        };
        loop {
            // After the subscription: what changed before it is found, too.
            let is_news = self.set(facts::node_ips(&given));
            let looked = clock.now().mono;
            if let Err(error) = kernel.readable().await {
                log::warn!(
                    "node addresses: watch ended: rtnetlink: {error}; restart smolet after an address change"
                );
                return;
            }
            // An address comes with its routes, and many a one with others.
            let settled = clock.now().mono + ADDRESSES_SETTLE;
            // Each pod that comes or goes changes addresses of the machine, and none of the node's own.
            let quiet = looked
                + if is_news || self.0.now.borrow().is_empty() { ADDRESSES_SETTLE } else { ADDRESSES_PERIOD };
            clock.sleep_until(settled.max(quiet)).await;
            drain(kernel.get_ref());
        }
    }
}

fn subscribe() -> io::Result<Async<OwnedFd>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // No protocol: NETLINK_ROUTE is 0.
    let socket = net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    net::bind(&socket, &SocketAddrNetlink::new(0, GROUPS))?;
    Async::new_nonblocking(socket)
}

/// Takes what is there. An overrun (`ENOBUFS`) has lost messages, which would have said no more.
fn drain(socket: &OwnedFd) {
    let mut message = [0; MESSAGE_BYTES];
    while matches!(
        net::recv(socket, &mut message, RecvFlags::DONTWAIT),
        Ok(_) | Err(Errno::NOBUFS | Errno::INTR)
    ) {}
}
