//! Identifies connections to the port that come from the agent's own k3s tunnels: by their address they are local, like those of
//! any local user.
//!
//! The tunnel connects the socket itself, and registers its local address before the accept loop can see the connection: both run
//! on one thread. No other process can have that address and port towards this one while the socket is open.

use std::cell::RefCell;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::rc::Rc;

use async_io::Async;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};

use crate::limits::TUNNEL_CONNECTIONS_MAX;
use crate::stream::Socket;

/// Local addresses of connections that tunnels have opened and that were not accepted yet. Clones share them. At most
/// `limits::TUNNEL_CONNECTIONS_MAX`. Full: a further connection counts as a local user's.
#[derive(Clone, Debug, Default)]
pub(crate) struct TunnelSockets(Rc<RefCell<Vec<SocketAddr>>>);

impl TunnelSockets {
    /// Connects to the node's own API. The connection counts as the tunnel's when it is accepted while the registration lasts.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) async fn connect(&self, to: SocketAddr) -> io::Result<(Socket<TcpStream>, Registration)> {
        let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
        match net::connect(&socket, &to) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        // The socket has its address from here on, and nothing was awaited yet.
        let socket = Async::new(TcpStream::from(socket))?;
        let registration = self.register(socket.get_ref().local_addr()?);
        socket.writable().await?;
        match socket.get_ref().take_error()? {
            None => Ok((socket.into(), registration)),
            Some(error) => Err(error),
        }
    }

    fn register(&self, address: SocketAddr) -> Registration {
        let address = canonical(address);
        let mut sockets = self.0.borrow_mut();
        if sockets.len() < TUNNEL_CONNECTIONS_MAX {
            sockets.push(address);
        }
        Registration { of: self.clone(), address }
    }

    /// Whether the connection from that address is a tunnel's; removes the registration, so true only once for each.
    pub(super) fn take(&self, peer: SocketAddr) -> bool {
        let mut sockets = self.0.borrow_mut();
        let found = sockets.iter().position(|socket| *socket == canonical(peer));
        found.map(|found| sockets.swap_remove(found)).is_some()
    }
}

/// Ends the registration when it is dropped, which is when the connection ends.
#[derive(Debug)]
pub(crate) struct Registration {
    of: TunnelSockets,
    address: SocketAddr,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.of.take(self.address);
    }
}

/// The IPv4 address of an IPv4-mapped one, without a scope.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_tunnels_connection_is_known_once_by_its_address_and_no_other_one() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap();
        let sockets = TunnelSockets::default();
        let _other = TcpStream::connect(to).unwrap();
        let (_, of_other) = listener.accept().unwrap();
        let (socket, registration) = smol::block_on(sockets.connect(to)).unwrap();
        let (_, of_tunnel) = listener.accept().unwrap();
        assert_eq!(socket.get_ref().local_addr().unwrap(), of_tunnel);
        assert!(!sockets.take(of_other) && sockets.take(of_tunnel) && !sockets.take(of_tunnel));
        drop(registration);
        // A registration that was never accepted is removed with its connection.
        let (socket, registration) = smol::block_on(sockets.connect(to)).unwrap();
        let address = socket.get_ref().local_addr().unwrap();
        drop((socket, registration));
        assert!(!sockets.take(address));
    }

    #[test]
    fn no_more_are_registered_than_tunnels_have_connections() {
        let sockets = TunnelSockets::default();
        let address = |port| SocketAddr::new([127, 0, 0, 1].into(), port);
        let all: Vec<Registration> = (0..=u16::try_from(TUNNEL_CONNECTIONS_MAX).unwrap())
            .map(|port| sockets.register(address(port + 1)))
            .collect();
        assert_eq!(sockets.0.borrow().len(), TUNNEL_CONNECTIONS_MAX);
        assert!(!sockets.take(address(u16::try_from(TUNNEL_CONNECTIONS_MAX).unwrap() + 1)));
        drop(all);
        assert!(sockets.0.borrow().is_empty());
    }

    #[test]
    fn who_cannot_be_connected_to_is_an_error() {
        // The kernel gives that port to no other test.
        let to = SocketAddr::from(([127, 0, 0, 1], 1));
        let sockets = TunnelSockets::default();
        assert!(smol::block_on(sockets.connect(to)).is_err());
        assert!(sockets.0.borrow().is_empty());
    }
}
