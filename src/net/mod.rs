//! Hosts by address or name, and TCP connections to them.

pub mod http;

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs as _};

use crate::blocking::unblock_apart;
use crate::fair_semaphore::{FairSemaphore, PermitOwner};
use crate::limits::{ADDRESSES_TRIED_MAX, LOOKUPS};
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
            name.to_socket_addrs().map(|found| found.take(ADDRESSES_TRIED_MAX).collect())
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
        let mut refused = format!("dial tcp: lookup {}: no address", to.host);
        for address in found {
            match Socket::<TcpStream>::connect(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => refused = format!("dial tcp {address}: connect: {}", error.kind()),
            }
        }
        Err(refused)
    }
}

#[cfg(test)]
mod tests {
    use smol::future::{block_on, poll_once};

    use super::*;

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
