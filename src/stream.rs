//! The sockets to everybody else: probed servers, clients of the node's API, API servers, the runtime, streaming servers.
//!
//! Whoever is at the other end of a [`Socket`] cannot hold the loop's thread. A reader that always finds something to read (an
//! HTTP head without end, HTTP/2 frames that mean nothing) never waits, and its task would never let another one run: so a
//! socket that was read from so often, so much or for so long without a wait says "not yet" once, and its task goes to the end
//! of the queue. It may also have a ration of bytes, after which it is an error.

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

/// A byte stream as hyper takes it. One type for every kind of socket, so that its clients are compiled once.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Unpin {}

impl Duplex for Socket<UnixStream> {}
impl Duplex for Socket<TcpStream> {}

/// Any socket, with hyper's traits.
pub(crate) type Stream = FuturesIo<Box<dyn Duplex>>;

/// That socket as a [`Stream`].
pub(crate) fn stream(socket: impl Duplex + 'static) -> Stream {
    FuturesIo::new(Box::new(socket))
}

/// A socket that shares the thread with all others.
#[derive(Debug)]
pub struct Socket<S> {
    inner: Async<S>,
    turn: Cell<ReadTurn>,
    /// Bytes that may still be read, where there is a limit.
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
    /// The kernel's socket, for its options.
    pub fn get_ref(&self) -> &S {
        self.inner.get_ref()
    }

    /// From now on no more than so many bytes can be read; one more is an error.
    pub(crate) fn set_ration(&self, bytes: usize) {
        self.left.set(Some(bytes));
    }

    /// From now on any number of bytes can be read.
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

    /// Ends when there is something to read, or the end of all.
    ///
    /// # Errors
    /// The kernel's.
    #[cfg(feature = "tls")]
    pub(crate) async fn readable(&self) -> io::Result<()> {
        // Unlike `Async::readable` it needs no turn of the reactor when something is there.
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
            return Poll::Ready(Err(io::Error::other("the other end sends too much")));
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

    /// A socket to which the other end, which stays open, has sent so much.
    fn sent(bytes: usize) -> (Socket<UnixStream>, UnixStream) {
        let (near, mut far) = UnixStream::pair().unwrap();
        far.set_nonblocking(true).unwrap();
        far.write_all(&vec![b'x'; bytes]).unwrap();
        (Async::new(near).unwrap().into(), far)
    }

    /// Bytes that a reader of pieces that large gets in one poll.
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
    fn a_turn_ends_after_so_many_reads_or_bytes() {
        let (socket, _far) = sent(SOCKET_TURN_READS * 3);
        assert_eq!(in_one_poll(&socket, 1), SOCKET_TURN_READS);
        assert_eq!(in_one_poll(&socket, 1), SOCKET_TURN_READS);
        let (socket, _far) = sent(SOCKET_TURN_BYTES + 2 * 8192);
        assert_eq!(in_one_poll(&socket, 8192), SOCKET_TURN_BYTES);
    }

    #[test]
    fn a_turn_that_is_over_leaves_the_reader_awake() {
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
        assert!(other > 0, "nobody else had a turn");
    }

    #[test]
    fn a_wait_begins_another_turn() {
        let (socket, mut far) = sent(SOCKET_TURN_READS - 1);
        assert_eq!(in_one_poll(&socket, 1), SOCKET_TURN_READS - 1);
        far.write_all(&[b'x'; SOCKET_TURN_READS]).unwrap();
        assert_eq!(in_one_poll(&socket, 1), SOCKET_TURN_READS);
    }

    #[test]
    fn what_is_beyond_the_ration_is_an_error() {
        let (mut socket, _far) = sent(100);
        socket.set_ration(60);
        let mut came = Vec::new();
        let error = smol::block_on(socket.read_to_end(&mut came)).unwrap_err();
        assert_eq!((came.len(), error.to_string().as_str()), (60, "the other end sends too much"));
        #[cfg(feature = "tls")]
        {
            socket.end_ration();
            let mut rest = [0; 40];
            smol::block_on(socket.read_exact(&mut rest)).unwrap();
        }
    }

    /// A client of HTTP/2 whose server sends frames without end that mean nothing, on the executor of the loop.
    #[test]
    fn http2_that_never_ends_holds_up_nobody() {
        use std::rc::Rc;

        use crate::executor::Executor;
        use crate::http2::{RequestBody, Spawner};

        let (near, mut far) = UnixStream::pair().unwrap();
        let server = std::thread::spawn(move || {
            // SETTINGS, then PRIORITY (RFC 9113, 6.3), until the client hangs up.
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
