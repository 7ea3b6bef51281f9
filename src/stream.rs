//! Sockets to other processes: probed servers, clients of the node API, API servers, the runtime, streaming servers.
//!
//! The peer of a [`Socket`] cannot occupy the loop's thread. A reader that always has data (an HTTP head without end, empty
//! HTTP/2 frames) never waits, and its task would never yield: so a socket that was read too often, too much or for too long
//! without a wait returns `Pending` once, which moves its task to the end of the queue. It may also have a ration of bytes,
//! beyond which reads fail.

use std::cell::Cell;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use async_io::Async;
use smol::io::{AsyncRead, AsyncWrite};
use smol_hyper::rt::FuturesIo;

use crate::limits::{SOCKET_TURN_BYTES, SOCKET_TURN_READS, SOCKET_TURN_TIME};

/// A byte stream for hyper. One type for every kind of socket, so that its clients are compiled once.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Unpin {}

impl Duplex for Socket<UnixStream> {}
impl Duplex for Socket<TcpStream> {}

/// Any socket, with hyper's traits.
pub(crate) type Stream = FuturesIo<Box<dyn Duplex>>;

/// The socket as a [`Stream`].
pub(crate) fn stream(socket: impl Duplex + 'static) -> Stream {
    FuturesIo::new(Box::new(socket))
}

/// A socket whose task yields after a bounded amount of work.
#[derive(Debug)]
pub struct Socket<S> {
    inner: Async<S>,
    turn: Cell<ReadTurn>,
    /// Remaining bytes of the ration, if there is one.
    left: Cell<Option<usize>>,
}

/// Reads since the task last yielded.
#[derive(Clone, Copy, Debug, Default)]
struct ReadTurn {
    began: Option<Instant>,
    reads: usize,
    bytes: usize,
}

impl ReadTurn {
    /// `limits::SOCKET_TURN_READS`, `SOCKET_TURN_BYTES` or `SOCKET_TURN_TIME` is reached.
    fn is_over(&self) -> bool {
        let is_long = |began: Instant| began.elapsed() >= SOCKET_TURN_TIME;
        self.reads >= SOCKET_TURN_READS || self.bytes >= SOCKET_TURN_BYTES || self.began.is_some_and(is_long)
    }

    fn add(&mut self, read: usize) {
        self.began.get_or_insert_with(Instant::now);
        self.reads += 1;
        self.bytes += read;
    }
}

impl<S> From<Async<S>> for Socket<S> {
    fn from(socket: Async<S>) -> Self {
        Self { inner: socket, turn: Cell::default(), left: Cell::default() }
    }
}

impl<S> Socket<S> {
    /// The kernel's socket, for options.
    pub fn get_ref(&self) -> &S {
        self.inner.get_ref()
    }

    /// From now on at most this many bytes can be read; more is an error.
    pub(crate) fn set_ration(&self, bytes: usize) {
        self.left.set(Some(bytes));
    }

    /// Removes the ration.
    #[cfg(feature = "tls")]
    pub(crate) fn end_ration(&self) {
        self.left.set(None);
    }
}

impl Socket<TcpStream> {
    /// Connects to that address.
    ///
    /// # Errors
    /// The kernel's.
    pub async fn connect(to: SocketAddr) -> io::Result<Self> {
        Async::<TcpStream>::connect(to).await.map(Self::from)
    }

    /// Waits until data or the end of the stream can be read.
    ///
    /// # Errors
    /// The kernel's.
    #[cfg(feature = "tls")]
    pub(crate) async fn readable(&self) -> io::Result<()> {
        // Unlike `Async::readable` it does not wait for the reactor when data is available.
        self.inner.peek(&mut [0]).await.map(drop)
    }
}

impl Socket<UnixStream> {
    /// Connects to that path.
    ///
    /// # Errors
    /// The kernel's.
    pub async fn connect(to: &Path) -> io::Result<Self> {
        Async::<UnixStream>::connect(to).await.map(Self::from)
    }
}

impl<S> AsyncRead for &Socket<S>
where
    for<'a> &'a S: io::Read,
{
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut turn = self.turn.take();
        if turn.is_over() {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let left = self.left.get();
        if left == Some(0) {
            return Poll::Ready(Err(io::Error::other("the peer sends too much")));
        }
        let end = buffer.len().min(left.unwrap_or(usize::MAX)).min(SOCKET_TURN_BYTES);
        let read = ready!(Pin::new(&mut &self.inner).poll_read(cx, &mut buffer[..end]))?;
        turn.add(read);
        self.turn.set(turn);
        self.left.set(left.map(|left| left - read));
        Poll::Ready(Ok(read))
    }
}

impl<S> AsyncWrite for &Socket<S>
where
    for<'a> &'a S: io::Write,
{
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut &self.inner).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut &self.inner).poll_write_vectored(cx, pieces)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut &self.inner).poll_flush(cx)
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut &self.inner).poll_close(cx)
    }
}

impl<S> AsyncRead for Socket<S>
where
    for<'a> &'a S: io::Read,
{
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut &*self).poll_read(cx, buffer)
    }
}

impl<S> AsyncWrite for Socket<S>
where
    for<'a> &'a S: io::Write,
{
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut &*self).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut &*self).poll_write_vectored(cx, pieces)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut &*self).poll_flush(cx)
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut &*self).poll_close(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use smol::io::AsyncReadExt as _;

    use super::*;

    /// A socket with so many bytes to read, and its peer, which stays open.
    fn sent(bytes: usize) -> (Socket<UnixStream>, UnixStream) {
        let (near, mut far) = UnixStream::pair().unwrap();
        far.set_nonblocking(true).unwrap();
        far.write_all(&vec![b'x'; bytes]).unwrap();
        (Async::new(near).unwrap().into(), far)
    }

    /// Bytes that a reader gets in one poll with a buffer of this size.
    fn in_one_poll(socket: &Socket<UnixStream>, piece: usize) -> usize {
        let mut read = 0;
        let reading = async {
            let mut socket = socket;
            loop {
                read += socket.read(&mut vec![0; piece]).await.unwrap();
            }
        };
        let never: Option<()> = smol::block_on(smol::future::poll_once(reading));
        assert_eq!(never, None);
        read
    }

    #[test]
    fn a_reader_yields_after_a_number_of_reads_or_bytes() {
        let (socket, _far) = sent(SOCKET_TURN_READS * 3);
        assert_eq!(in_one_poll(&socket, 1), SOCKET_TURN_READS);
        assert_eq!(in_one_poll(&socket, 1), SOCKET_TURN_READS);
        let (socket, _far) = sent(SOCKET_TURN_BYTES + 2 * 8192);
        assert_eq!(in_one_poll(&socket, 8192), SOCKET_TURN_BYTES);
    }

    #[test]
    fn a_reader_that_yielded_is_woken() {
        let (socket, _far) = sent(4 * SOCKET_TURN_BYTES / 3);
        let mut all = vec![0; 4 * SOCKET_TURN_BYTES / 3];
        let mut other = 0;
        let others = async {
            loop {
                other += 1;
                smol::future::yield_now().await;
            }
        };
        let mut reader = &socket;
        smol::block_on(smol::future::or(async { reader.read_exact(&mut all).await.unwrap() }, others));
        assert!(other > 0, "no other task was polled");
    }

    #[test]
    fn a_wait_resets_the_count() {
        let (socket, mut far) = sent(SOCKET_TURN_READS - 1);
        assert_eq!(in_one_poll(&socket, 1), SOCKET_TURN_READS - 1);
        far.write_all(&[b'x'; SOCKET_TURN_READS]).unwrap();
        assert_eq!(in_one_poll(&socket, 1), SOCKET_TURN_READS);
    }

    #[test]
    fn a_read_beyond_the_ration_is_an_error() {
        let (mut socket, _far) = sent(100);
        socket.set_ration(60);
        let mut came = Vec::new();
        let error = smol::block_on(socket.read_to_end(&mut came)).unwrap_err();
        assert_eq!((came.len(), error.to_string().as_str()), (60, "the peer sends too much"));
        #[cfg(feature = "tls")]
        {
            socket.end_ration();
            let mut rest = [0; 40];
            smol::block_on(socket.read_exact(&mut rest)).unwrap();
        }
    }

    /// An HTTP/2 client whose server sends frames without effect and without end, on the loop's executor.
    #[test]
    fn endless_http2_frames_starve_no_other_task() {
        use std::rc::Rc;

        use crate::executor::Executor;
        use crate::http2::{RequestBody, Spawner};

        let (near, mut far) = UnixStream::pair().unwrap();
        let server = std::thread::spawn(move || {
            // SETTINGS, then PRIORITY (RFC 9113, 6.3), until the client closes the connection.
            let mut sent = far.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0]);
            let frames = [0, 0, 5, 2, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1].repeat(10_000);
            while sent.is_ok() {
                sent = far.write_all(&frames);
            }
        });
        let executor = Rc::new(Executor::new());
        let spawner = Spawner::new(&executor);
        let socket: Socket<UnixStream> = Async::new(near).unwrap().into();
        let turns = async {
            let builder = hyper::client::conn::http2::Builder::new(spawner);
            let (requests, connection) = builder.handshake::<_, RequestBody>(stream(socket)).await.unwrap();
            let connection = executor.spawn("connection", connection);
            for _ in 0..100 {
                smol::future::yield_now().await;
            }
            async_io::Timer::after(SOCKET_TURN_TIME).await;
            assert!(!connection.is_finished(), "the server goes on");
            drop(requests);
        };
        smol::block_on(executor.run(turns));
        drop(executor);
        server.join().unwrap();
    }

    /// Every socket to somebody else is a [`Socket`]. Of the others systemd's and its bus' are the machine's own, and those of `smolet
    /// port-forward` are in a process of its own.
    #[test]
    fn no_socket_goes_past_it() {
        fn search(directory: &Path, found: &mut Vec<String>) {
            for entry in std::fs::read_dir(directory).unwrap().flatten() {
                let path = entry.path();
                if path.is_dir() {
                    search(&path, found);
                    continue;
                }
                let text = std::fs::read_to_string(&path).unwrap();
                let text = text.split("mod tests {").next().unwrap();
                let is_past = |kind: &&str| {
                    text.contains(&format!("Async<{kind}Stream>"))
                        || text.contains(&format!("Async::<{kind}Stream>"))
                };
                if !path.ends_with("tests.rs") && ["Tcp", "Unix"].iter().any(is_past) {
                    found.push(path.strip_prefix(env!("CARGO_MANIFEST_DIR")).unwrap().display().to_string());
                }
            }
        }
        let mut found = Vec::new();
        search(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
        found.sort_unstable();
        assert_eq!(
            found,
            [
                "src/cli/port_forward.rs",
                "src/stream.rs",
                "src/streaming/forward.rs",
                "src/systemd/logind.rs",
                "src/systemd/mod.rs"
            ]
        );
    }
}
