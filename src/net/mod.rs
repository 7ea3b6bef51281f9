//! Hosts by address or name, and TCP connections to them.

pub mod http;

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs as _};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use async_io::Timer;
use rustix::net::sockopt;

use crate::blocking::unblock_apart;
use crate::fair_semaphore::{FairSemaphore, PermitOwner};
use crate::limits::{ADDRESSES_READ_MAX, ADDRESSES_TRIED_MAX, CONNECT_HEAD_START, LOOKUPS};
use crate::model::PodUid;
use crate::stream::Socket;

/// A host, by address or name, and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Without the brackets of an IPv6 address.
    pub host: String,
    /// 1 to 65535.
    pub port: u16,
}

/// As in a URL (Go's `net.JoinHostPort`).
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// Has the kernel end a connection whose other side has vanished without a word: nothing of what was sent is acknowledged for
/// `silence`, be it data, or probes, which are sent each `probe` when nothing else is. No wake-up of the process. An option that the
/// kernel refuses is not needed before that.
pub fn notice_silence(socket: &TcpStream, probe: Duration, silence: Duration) {
    let _ = sockopt::set_socket_keepalive(socket, true);
    let _ = sockopt::set_tcp_keepidle(socket, probe);
    let _ = sockopt::set_tcp_keepintvl(socket, probe);
    let _ = sockopt::set_tcp_user_timeout(socket, u32::try_from(silence.as_millis()).unwrap_or(u32::MAX));
}

/// Resolves host names on threads, with limits per pod (`limits::LOOKUPS`). Clones share the permits.
#[derive(Clone, Debug)]
pub struct Lookups {
    permits: FairSemaphore,
    owner: PermitOwner,
}

impl Default for Lookups {
    fn default() -> Self {
        Self { permits: FairSemaphore::new(LOOKUPS), owner: PermitOwner::default() }
    }
}

impl Lookups {
    /// The same for a pod, with its own permits.
    #[must_use]
    pub fn of_pod(&self, pod: &PodUid) -> Self {
        Self { permits: self.permits.clone(), owner: pod.into() }
    }

    async fn addresses(&self, of: &Address) -> io::Result<Vec<SocketAddr>> {
        if let Ok(ip) = of.host.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(ip, of.port)]);
        }
        let permit =
            self.permits.acquire(self.owner).await.map_err(|why| io::Error::other(why.to_string()))?;
        let name = (of.host.clone(), of.port);
        let look = move || {
            // Held by the thread: a lookup continues after its caller was dropped.
            let _permit = permit;
            name.to_socket_addrs().map(|found| by_turns(found.take(ADDRESSES_READ_MAX)))
        };
        unblock_apart(look).await?
    }

    /// Connects to the first of the host's addresses that accepts. Errors are worded as in Go.
    ///
    /// Differs from the kubelet's `ProbeDialer`, which sets a linger time of one second to avoid sockets in TIME-WAIT: a
    /// lingering close may block the only thread, to save two hundred bytes in the kernel.
    ///
    /// # Errors
    /// A sentence: the host is unknown, or no address accepts the connection.
    pub async fn connect(&self, to: &Address) -> Result<Socket<TcpStream>, String> {
        let found =
            self.addresses(to).await.map_err(|error| format!("dial tcp: lookup {}: {error}", to.host))?;
        let refused = format!("dial tcp: lookup {}: no address", to.host);
        connect_to_first(found, refused).await
    }
}

/// The first addresses, of both families by turns: of one family none may be reachable.
fn by_turns(found: impl Iterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let mut found: Vec<SocketAddr> = found.collect();
    let mut ordered = Vec::with_capacity(ADDRESSES_TRIED_MAX);
    while !found.is_empty() && ordered.len() < ADDRESSES_TRIED_MAX {
        let last = ordered.last().map(SocketAddr::is_ipv6);
        let other = found.iter().position(|address| last.is_none_or(|is_ipv6| address.is_ipv6() != is_ipv6));
        ordered.push(found.remove(other.unwrap_or(0)));
    }
    ordered
}

type Connecting = Pin<Box<dyn Future<Output = (SocketAddr, io::Result<Socket<TcpStream>>)>>>;

/// Connects to the first address that accepts. The next one is tried when the one before it fails, or has not accepted within
/// [`CONNECT_HEAD_START`] (RFC 8305, Go's `DualStack` dialer): a network that drops packets of one family is common.
async fn connect_to_first(
    addresses: Vec<SocketAddr>,
    mut refused: String,
) -> Result<Socket<TcpStream>, String> {
    let mut waiting = addresses.into_iter();
    let mut running: Vec<Connecting> = Vec::new();
    loop {
        if let Some(address) = waiting.next() {
            running.push(Box::pin(async move { (address, Socket::<TcpStream>::connect(address).await) }));
        }
        if running.is_empty() {
            return Err(refused);
        }
        let ended = poll_fn(|cx| {
            for index in 0..running.len() {
                if let Poll::Ready(ended) = running[index].as_mut().poll(cx) {
                    drop(running.swap_remove(index));
                    return Poll::Ready(Some(ended));
                }
            }
            Poll::Pending
        });
        let ended = if waiting.len() > 0 {
            let over = async {
                Timer::after(CONNECT_HEAD_START).await;
                None
            };
            smol::future::or(ended, over).await
        } else {
            ended.await
        };
        match ended {
            Some((_, Ok(stream))) => return Ok(stream),
            Some((address, Err(error))) => {
                refused = format!("dial tcp {address}: connect: {}", error.kind());
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use smol::future::{block_on, poll_once};

    use super::*;

    #[test]
    fn both_families_are_tried_by_turns() {
        let v6 = |n: u16| SocketAddr::from(([0x2001, 0xdb8, 0, 0, 0, 0, 0, n], 443));
        let v4 = |n: u8| SocketAddr::from(([192, 0, 2, n], 443));
        for (found, wanted) in [
            (vec![v6(1), v6(2), v6(3), v6(4), v6(5), v4(1), v4(2)], vec![v6(1), v4(1), v6(2), v4(2)]),
            (vec![v4(1), v4(2), v6(1)], vec![v4(1), v6(1), v4(2)]),
            (vec![v4(1), v4(2), v4(3), v4(4), v4(5)], vec![v4(1), v4(2), v4(3), v4(4)]),
            (vec![], vec![]),
        ] {
            assert_eq!(by_turns(found.into_iter()), wanted);
        }
    }

    #[test]
    fn an_address_that_drops_packets_holds_up_the_next_one_for_a_moment() {
        use rustix::net::{AddressFamily, SocketType, bind, getsockname, listen, socket};
        // A queue of one connection: the kernel drops what is asked for beyond it.
        let full = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&full, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        listen(&full, 0).unwrap();
        let silent = SocketAddr::try_from(getsockname(&full).unwrap()).unwrap();
        let _queued = std::net::TcpStream::connect(silent).unwrap();
        let open = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let other = open.local_addr().unwrap();
        let began = std::time::Instant::now();
        let connected = block_on(async {
            let connect = async { Some(connect_to_first(vec![silent, silent, other], String::new()).await) };
            let over = async {
                Timer::after(std::time::Duration::from_secs(20)).await;
                None
            };
            smol::future::or(connect, over).await
        });
        let stream = connected.expect("it does not wait for the first").unwrap();
        assert_eq!(stream.get_ref().peer_addr().unwrap(), other);
        assert!(began.elapsed() >= 2 * CONNECT_HEAD_START);
        // The kernel gives that port to no other test.
        let closed = SocketAddr::from(([127, 0, 0, 1], 1));
        let refused = block_on(connect_to_first(vec![closed], String::new())).unwrap_err();
        assert_eq!(refused, format!("dial tcp {closed}: connect: connection refused"));
        assert_eq!(block_on(connect_to_first(Vec::new(), "none".to_owned())).unwrap_err(), "none");
    }

    #[test]
    fn names_that_are_not_found_hold_up_their_own_pod() {
        let lookups = Lookups::default();
        let (stuck, other) = (lookups.of_pod(&PodUid::from("stuck")), lookups.of_pod(&PodUid::from("other")));
        let local = Address { host: "localhost".to_owned(), port: 80 };
        block_on(async {
            // The permits of lookups whose resolver does not answer.
            let mut held = Vec::new();
            while let Some(permit) = poll_once(stuck.permits.acquire(stuck.owner)).await {
                held.push(permit);
            }
            assert!((1..LOOKUPS.most()).contains(&held.len()), "{}", held.len());
            assert!(poll_once(stuck.addresses(&local)).await.is_none(), "it has no permit left");
            let found = other.addresses(&local).await.expect("this machine is found");
            assert!(found.iter().all(|address| address.ip().is_loopback()), "{found:?}");
            held.pop();
            assert!(stuck.addresses(&local).await.is_ok());
        });
    }
}
