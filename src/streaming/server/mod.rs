//! The streaming server of the embedded runtime: `exec`, `attach` and `port-forward` for those who have a URL of it.
//!
//! ```text
//!     CRI Exec, Attach, PortForward ──► url(): http://127.0.0.1:PORT/exec/TOKEN, good for one connection within a minute
//!
//!     kubelet, crictl, smolet ──► head (token, protocol) ─┬─► command ──► Streams::exec, attach
//!                                                         └─► forward, ports ──► Streams::port_forward, a call for each connection
//! ```
//!
//! `head`, `spdy` and `websocket` are PURE. Streams are carried by SPDY/3.1 (`channel.k8s.io` 1 to 5) or by messages of WebSocket
//! (1, 4 and 5); forwarded ports by SPDY, by SPDY within WebSocket, or by messages of it (4). Every queue between a client and a container is short: one
//! that does not read holds up its own connection alone.
//!
//! Loopback only, and the token is the authorisation: 128 random bits that go over the CRI socket (0600) or the node API.

mod command;
mod forward;
mod head;
mod ports;
mod spdy;
mod websocket;
mod wire;

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::pin::Pin;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_io::{Async, Timer};
use smol::channel::{Receiver, Sender};
use smol::io::{AsyncReadExt as _, AsyncWriteExt as _};
use smol::lock::Semaphore;

use super::command::Size;
use crate::executor::Executor;
use crate::limits::{
    FORWARDED_PORTS_MAX, SERVED_HEAD_BYTES_MAX, SERVED_STREAMS_MAX, STREAM_HEAD_TIME, STREAM_HEADS_MAX,
    STREAM_TOKEN_TIME, STREAM_TOKENS_MAX,
};
use crate::proto::runtime::v1::{AttachRequest, ExecRequest, PortForwardRequest};
use crate::stream::Socket;
use head::{Carrier, Head, negotiate, refusal};

/// The container's ends of a command's streams. A full channel makes the other side wait.
#[derive(Debug)]
pub struct Ends {
    /// Standard input; closed at its end. `None`: there is none.
    pub stdin: Option<Receiver<Vec<u8>>>,
    /// Standard output, or the terminal; dropped at its end.
    pub stdout: Option<Sender<Vec<u8>>>,
    /// Standard error; dropped at its end.
    pub stderr: Option<Sender<Vec<u8>>>,
    /// Sizes of the terminal, if there is one.
    pub sizes: Option<Receiver<Size>>,
}

/// Something that runs; dropped when its client is gone.
pub type Running<T> = Pin<Box<dyn Future<Output = T>>>;

/// What the server's clients want of the containers.
pub trait Streams {
    /// Runs a command to its end: the exit code. Dropped: the command is ended.
    fn exec(&self, request: ExecRequest, ends: Ends) -> Running<Result<i32, String>>;
    /// Attaches to a container's main process until it has ended. Dropped: only the attachment ends.
    fn attach(&self, request: AttachRequest, ends: Ends) -> Running<Result<(), String>>;
    /// Connects to that port within the network of a pod.
    fn port_forward(&self, sandbox: String, port: u16) -> Running<Result<Socket<TcpStream>, String>>;
}

/// What a URL is good for.
#[derive(Clone, Debug)]
pub enum Asked {
    /// A command in a container.
    Exec(ExecRequest),
    /// A container's main process.
    Attach(AttachRequest),
    /// Ports of a pod.
    PortForward(PortForwardRequest),
}

impl Asked {
    fn path(&self) -> &'static str {
        match self {
            Self::Exec(_) => "exec",
            Self::Attach(_) => "attach",
            Self::PortForward(_) => "portforward",
        }
    }
}

/// Why there is no URL.
#[derive(Debug)]
pub enum StreamingError {
    /// The streams asked for cannot be: the message says why.
    Invalid(&'static str),
    /// `limits::STREAM_TOKENS_MAX` URLs wait for their connections.
    Full,
    /// The kernel gave no random number.
    Random(io::Error),
}

impl fmt::Display for StreamingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(why) => f.write_str(why),
            Self::Full => {
                write!(f, "{STREAM_TOKENS_MAX} streaming URLs are unused; try again within a minute")
            }
            Self::Random(error) => write!(f, "no random number for a streaming URL: {error}"),
        }
    }
}

impl std::error::Error for StreamingError {}

/// A URL that was given out.
struct Token {
    secret: String,
    /// Monotonic, not wall: a gateway without an RTC steps its clock after boot.
    until: Instant,
    asked: Asked,
}

/// The server, bound to a port of loopback.
pub struct StreamingServer {
    listener: Async<TcpListener>,
    address: SocketAddr,
    /// At most `limits::STREAM_TOKENS_MAX`.
    tokens: RefCell<Vec<Token>>,
}

impl StreamingServer {
    /// Binds a free port of 127.0.0.1.
    ///
    /// # Errors
    /// The kernel's.
    pub fn bind() -> io::Result<Rc<Self>> {
        let listener = Async::<TcpListener>::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.get_ref().local_addr()?;
        Ok(Rc::new(Self { listener, address, tokens: RefCell::default() }))
    }

    /// A URL for that, good for one connection within `limits::STREAM_TOKEN_TIME`.
    ///
    /// # Errors
    /// The request contradicts itself, or too many URLs are unused.
    pub fn url(&self, asked: Asked) -> Result<String, StreamingError> {
        if let Asked::PortForward(of) = &asked
            && (of.port.len() > FORWARDED_PORTS_MAX || !of.port.iter().all(|port| (1..=65535).contains(port)))
        {
            return Err(StreamingError::Invalid("at most 32 ports from 1 to 65535 are forwarded"));
        }
        let (stdin, stdout, stderr, tty) = match &asked {
            Asked::Exec(of) => (of.stdin, of.stdout, of.stderr, of.tty),
            Asked::Attach(of) => (of.stdin, of.stdout, of.stderr, of.tty),
            Asked::PortForward(_) => (false, true, false, false),
        };
        if tty && stderr {
            return Err(StreamingError::Invalid("tty and stderr cannot both be true"));
        }
        if !(stdin || stdout || stderr) {
            return Err(StreamingError::Invalid("one of stdin, stdout, or stderr must be set"));
        }
        let mut random = [0; 16];
        // Early in the boot the kernel may have no such numbers yet: the loop does not wait for them.
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::NONBLOCK)
            .map_err(|error| StreamingError::Random(error.into()))?;
        let token = format!("{:032x}", u128::from_be_bytes(random));
        let url = format!("http://{}/{}/{token}", self.address, asked.path());
        let mut tokens = self.tokens.borrow_mut();
        let now = Instant::now();
        tokens.retain(|token| token.until > now);
        if tokens.len() >= STREAM_TOKENS_MAX {
            return Err(StreamingError::Full);
        }
        tokens.push(Token { secret: token, until: now + STREAM_TOKEN_TIME, asked });
        Ok(url)
    }

    /// What the URL with that path is good for; it is used up.
    fn take(&self, path: &str) -> Option<Asked> {
        let (kind, token) = path.strip_prefix('/')?.split_once('/')?;
        let mut tokens = self.tokens.borrow_mut();
        let at = tokens.iter().position(|of| of.secret == token && of.asked.path() == kind)?;
        let found = tokens.swap_remove(at);
        (found.until > Instant::now()).then_some(found.asked)
    }

    /// Serves until dropped.
    pub async fn run(self: Rc<Self>, streams: Rc<dyn Streams>, executor: Weak<Executor>) {
        let heads = Arc::new(Semaphore::new(STREAM_HEADS_MAX));
        let served = Arc::new(Semaphore::new(SERVED_STREAMS_MAX));
        let mut logged = None;
        loop {
            let waits = heads.acquire_arc().await;
            let socket: Socket<TcpStream> = match self.listener.accept().await {
                Ok((socket, _)) => socket.into(),
                Err(error) => {
                    // Usually out of descriptors: the server can only wait, and logs it once.
                    if logged.replace(error.kind()) != Some(error.kind()) {
                        log::warn!("streaming server: accept failed: {error}; retrying every second");
                    }
                    Timer::after(Duration::from_secs(1)).await;
                    continue;
                }
            };
            // Not held across an await, where the executor may end.
            let Some(executor) = executor.upgrade() else { return };
            let (server, streams, served) = (self.clone(), streams.clone(), served.clone());
            executor
                .spawn("streaming connection", async move {
                    let Some((socket, rest, agreed)) = server.admit(socket, &served).await else { return };
                    drop(waits);
                    let Agreement { asked, agreed, slot: _slot } = agreed;
                    let (wanted, run): (_, command::Run) = match asked {
                        Asked::Exec(request) => {
                            let wanted = command::Wanted::of_exec(&request);
                            (wanted, Box::new(move |ends| streams.exec(request, ends)))
                        }
                        Asked::Attach(request) => {
                            let wanted = command::Wanted::of_attach(&request);
                            let run = move |ends| {
                                let attached = streams.attach(request, ends);
                                Box::pin(async move { attached.await.map(|()| 0) }) as Running<_>
                            };
                            (wanted, Box::new(run))
                        }
                        Asked::PortForward(request) if agreed.carrier == Carrier::Ports => {
                            return ports::serve(socket, rest, request, &streams).await;
                        }
                        Asked::PortForward(request) => {
                            let is_tunnel = agreed.carrier == Carrier::Tunnel;
                            return forward::serve(socket, rest, is_tunnel, request, &streams).await;
                        }
                    };
                    command::serve(socket, rest, agreed, wanted, run).await;
                })
                .detach();
        }
    }

    /// Reads the request and answers it: the connection, what follows the head, and what it is for.
    async fn admit(
        &self,
        mut socket: Socket<TcpStream>,
        served: &Arc<Semaphore>,
    ) -> Option<(Rc<Socket<TcpStream>>, Vec<u8>, Agreement)> {
        // A keystroke is sent at once.
        socket.get_ref().set_nodelay(true).ok()?;
        let late = async {
            Timer::after(STREAM_HEAD_TIME).await;
            Err(String::new())
        };
        let answered = match smol::future::or(read_head(&mut socket), late).await {
            Ok((head, rest)) => self.agree(&head, served).map(|(answer, agreed)| (answer, rest, agreed)),
            Err(refusal) => Err(refusal),
        };
        match answered {
            Ok((answer, rest, agreed)) => {
                socket.write_all(answer.as_bytes()).await.ok()?;
                Some((Rc::new(socket), rest, agreed))
            }
            Err(refusal) => {
                let _ = socket.write_all(refusal.as_bytes()).await;
                let _ = socket.close().await;
                None
            }
        }
    }

    fn agree(&self, head: &Head, served: &Arc<Semaphore>) -> Result<(String, Agreement), String> {
        let unknown = || refusal("404 Not Found", "the streaming URL is unknown, used or over a minute old");
        let Some(slot) = served.try_acquire_arc() else {
            return Err(refusal(
                "503 Service Unavailable",
                "too many streaming connections; try again later",
            ));
        };
        let asked = self.take(&head.path).ok_or_else(unknown)?;
        let is_forward = matches!(asked, Asked::PortForward(_));
        let (answer, agreed) = negotiate(head.upgrade.as_ref(), is_forward)?;
        Ok((answer, Agreement { asked, agreed, slot }))
    }
}

/// What a connection is for, and how it is spoken there.
struct Agreement {
    asked: Asked,
    agreed: head::Agreed,
    slot: smol::lock::SemaphoreGuardArc,
}

/// The head of the request, and what follows it.
async fn read_head(socket: &mut Socket<TcpStream>) -> Result<(Head, Vec<u8>), String> {
    let mut bytes = vec![0; SERVED_HEAD_BYTES_MAX];
    let mut filled = 0;
    loop {
        let read = socket.read(&mut bytes[filled..]).await.map_err(|_| String::new())?;
        filled += read;
        if let Some(head) = head::head(&bytes[..filled]).map_err(|why| refusal("400 Bad Request", why))? {
            let rest = bytes[head.end..filled].to_vec();
            return Ok((head, rest));
        }
        if read == 0 {
            return Err(String::new());
        }
    }
}

#[cfg(test)]
mod tests;
