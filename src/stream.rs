//! A byte stream as hyper takes it. One type for every kind of socket, so that its clients are compiled once.

use async_io::Async;
use smol::io::{AsyncRead, AsyncWrite};
use smol_hyper::rt::FuturesIo;

/// A socket.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Unpin {}

impl Duplex for Async<std::os::unix::net::UnixStream> {}
impl Duplex for Async<std::net::TcpStream> {}

/// Any socket, with hyper's traits.
pub(crate) type Stream = FuturesIo<Box<dyn Duplex>>;

/// That socket as a [`Stream`].
pub(crate) fn stream(socket: impl Duplex + 'static) -> Stream {
    FuturesIo::new(Box::new(socket))
}
