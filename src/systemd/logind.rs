//! Delays the machine's shutdown until its pods have terminated: a delay inhibitor lock of logind, and its signal before the
//! shutdown (`pkg/kubelet/nodeshutdown/systemd`).
//!
//! ```text
//!     system bus ─► Hello, AddMatch, the maximum delay ─► Inhibit: the lock is a descriptor
//!     PrepareForShutdown(true) ─► the loop gets the lock, and drops it when the pods have terminated
//!     PrepareForShutdown(false) ─► another lock
//! ```
//!
//! logind is reachable only on the system bus, so the bus daemon is needed here. The connection stays open and is subscribed to
//! this signal only.
//!
//! Differs from the kubelet, which writes a logind configuration file when logind's maximum delay is shorter than the pods'
//! grace periods: here that is logged, and the machine's configuration stays its owner's.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use async_io::Async;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use smol::channel::Sender;
use smol::io::AsyncWriteExt as _;

use super::greeting;
use super::wire::{self, HEAD_BYTES, Kind, Message, Object, Writer};
use crate::clock::SharedClock;
use crate::limits::{LOGIND_DESCRIPTORS_MAX, LOGIND_RETRY, SYSTEMD_CALL_TIME, SYSTEMD_LINE_BYTES_MAX};

const BUS: Object = Object {
    destination: "org.freedesktop.DBus",
    path: "/org/freedesktop/DBus",
    interface: "org.freedesktop.DBus",
};
const LOGIN: Object = Object {
    destination: "org.freedesktop.login1",
    path: "/org/freedesktop/login1",
    interface: "org.freedesktop.login1.Manager",
};
const LOGIN_PROPERTIES: Object = Object { interface: "org.freedesktop.DBus.Properties", ..LOGIN };
const MATCH: &str = "type='signal',sender='org.freedesktop.login1',path='/org/freedesktop/login1',\
    interface='org.freedesktop.login1.Manager',member='PrepareForShutdown'";
const SIGNAL: &str = "PrepareForShutdown";

/// Inhibitor lock: while it is held the machine does not shut down, up to logind's maximum delay.
#[derive(Debug)]
pub struct DelayLock(#[expect(dead_code, reason = "held, not used")] OwnedFd);

/// A signal of logind.
#[derive(Debug)]
pub enum Preparation {
    /// The machine is about to shut down.
    Begun(Option<DelayLock>),
    /// The shutdown was cancelled.
    Cancelled,
}

/// The machine's logind.
pub struct Logind {
    /// The system bus.
    socket: Box<Path>,
    clock: SharedClock,
    /// Longest time that the pods' termination takes.
    wanted: Duration,
    preparations: Sender<Preparation>,
}

impl Logind {
    /// With the system bus at that socket. Does not connect yet.
    pub fn new(
        socket: &Path,
        clock: SharedClock,
        wanted: Duration,
        preparations: Sender<Preparation>,
    ) -> Self {
        Self { socket: socket.into(), clock, wanted, preparations }
    }

    /// Waits for its signals until the agent ends; retries while there is no bus or no logind.
    pub async fn watch(self) {
        let mut said = String::new();
        loop {
            let Err(trouble) = self.session().await;
            let trouble = trouble.to_string();
            if trouble != said {
                log::warn!(
                    "logind on the bus at {}: {trouble}; shutdown is detected by SIGTERM only: while systemd shuts down, or with --shutdown-on-sigterm",
                    self.socket.display()
                );
                said = trouble;
            }
            self.clock.sleep(LOGIND_RETRY).await;
        }
    }

    /// One connection, until it fails.
    async fn session(&self) -> Result<std::convert::Infallible, ConnectionError> {
        let mut bus = self.in_time(Bus::connect(&self.socket)).await?;
        self.call(&mut bus, &BUS, "Hello", "", &[]).await?;
        self.call(&mut bus, &BUS, "AddMatch", "s", &[MATCH]).await?;
        let delay = [LOGIN.interface, "InhibitDelayMaxUSec"];
        let delay = self.call(&mut bus, &LOGIN_PROPERTIES, "Get", "ss", &delay).await?;
        let delay = Duration::from_micros(delay.numbers.first().copied().ok_or(ConnectionError::Garbled)?);
        if delay < self.wanted {
            let (delay, wanted) = (delay.as_secs(), self.wanted.as_secs());
            log::warn!(
                "logind delays shutdown for {delay} s at most, shutdownGracePeriod is {wanted} s: set \
                 InhibitDelayMaxSec={wanted} in /etc/systemd/logind.conf.d/smolet.conf, section [Login], and restart it"
            );
        }
        let mut lock = Some(self.inhibit(&mut bus).await?);
        log::debug!("logind: watching for shutdown");
        loop {
            if bus.prepared().await? {
                self.tell(Preparation::Begun(lock.take())).await;
            } else {
                self.tell(Preparation::Cancelled).await;
                lock = Some(self.inhibit(&mut bus).await?);
            }
        }
    }

    async fn tell(&self, preparation: Preparation) {
        // The loop ends only with the process.
        let _ = self.preparations.send(preparation).await;
    }

    async fn inhibit(&self, bus: &mut Bus) -> Result<DelayLock, ConnectionError> {
        let why = ["shutdown", "smolet", "Pods need time to end", "delay"];
        self.call(bus, &LOGIN, "Inhibit", "ssss", &why).await?;
        bus.descriptors.pop_front().map(DelayLock).ok_or(ConnectionError::Garbled)
    }

    async fn call(
        &self,
        bus: &mut Bus,
        to: &Object,
        method: &str,
        types: &str,
        texts: &[&str],
    ) -> Result<Message, ConnectionError> {
        let mut arguments = Writer::default();
        for text in texts {
            arguments.text(text);
        }
        self.in_time(bus.call(to, method, types, &arguments)).await
    }

    async fn in_time<T>(
        &self,
        asked: impl Future<Output = Result<T, ConnectionError>>,
    ) -> Result<T, ConnectionError> {
        let late = async {
            self.clock.sleep(SYSTEMD_CALL_TIME).await;
            Err(ConnectionError::Silent)
        };
        smol::future::or(asked, late).await
    }
}

/// Why a connection failed.
#[derive(Debug)]
enum ConnectionError {
    Io(io::Error),
    Silent,
    Garbled,
    /// The call was refused, with this message.
    Refused(String),
}

impl From<io::Error> for ConnectionError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl fmt::Display for ConnectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "{error}"),
            Self::Silent => write!(f, "no answer within {} s", SYSTEMD_CALL_TIME.as_secs()),
            Self::Garbled => f.write_str("the answer is not a D-Bus message"),
            Self::Refused(words) => f.write_str(words),
        }
    }
}

/// A connection to the bus daemon.
struct Bus {
    stream: Async<UnixStream>,
    /// Received bytes that are not parsed yet; at most a message and a read.
    came: Vec<u8>,
    /// Received descriptors, oldest first; at most `LOGIND_DESCRIPTORS_MAX`, further ones are closed.
    descriptors: VecDeque<OwnedFd>,
    /// Value of the newest signal that arrived before an answer.
    prepared: Option<bool>,
    /// Serial of the last call.
    serial: u32,
}

impl Bus {
    async fn connect(socket: &Path) -> Result<Self, ConnectionError> {
        let stream = Async::<UnixStream>::connect(socket).await?;
        let mut bus =
            Self { stream, came: Vec::new(), descriptors: VecDeque::new(), prepared: None, serial: 0 };
        // In one write, as systemd's own library sends it.
        bus.stream.write_all(greeting("NEGOTIATE_UNIX_FD\r\n").as_bytes()).await?;
        for expected in ["OK ", "AGREE_UNIX_FD"] {
            if !bus.line().await?.starts_with(expected.as_bytes()) {
                return Err(ConnectionError::Garbled);
            }
        }
        Ok(bus)
    }

    async fn line(&mut self) -> Result<Vec<u8>, ConnectionError> {
        loop {
            if let Some(end) = self.came.iter().position(|byte| *byte == b'\n') {
                return Ok(self.came.drain(..=end).collect());
            }
            if self.came.len() as u64 > SYSTEMD_LINE_BYTES_MAX {
                return Err(ConnectionError::Garbled);
            }
            self.read().await?;
        }
    }

    /// Reads what is available, or waits for more.
    async fn read(&mut self) -> Result<(), ConnectionError> {
        let (mut part, mut descriptors) = ([0; 1024], Vec::new());
        let received = self.stream.read_with(|stream| {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(LOGIND_DESCRIPTORS_MAX))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let parts = &mut [IoSliceMut::new(&mut part)];
            let received = rustix::net::recvmsg(stream, parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(rights) = message {
                    descriptors.extend(rights);
                }
            }
            Ok(received.bytes)
        });
        let bytes = received.await?;
        if bytes == 0 {
            return Err(ConnectionError::Io(io::ErrorKind::ConnectionReset.into()));
        }
        let room = LOGIND_DESCRIPTORS_MAX - self.descriptors.len();
        self.descriptors.extend(descriptors.into_iter().take(room));
        self.came.extend_from_slice(&part[..bytes]);
        Ok(())
    }

    async fn receive(&mut self) -> Result<Message, ConnectionError> {
        loop {
            if let Some(head) = self.came.first_chunk::<HEAD_BYTES>() {
                let whole = HEAD_BYTES + wire::rest(*head).ok_or(ConnectionError::Garbled)?;
                if self.came.len() >= whole {
                    let message = wire::parse(&self.came[..whole]).ok_or(ConnectionError::Garbled);
                    self.came.drain(..whole);
                    return message;
                }
            }
            self.read().await?;
        }
    }

    async fn call(
        &mut self,
        to: &Object,
        method: &str,
        types: &str,
        arguments: &Writer,
    ) -> Result<Message, ConnectionError> {
        self.serial += 1;
        let message = wire::call(self.serial, to, method, types, arguments);
        self.stream.write_all(&message).await?;
        loop {
            let message = self.receive().await?;
            match &message.kind {
                Kind::Return(serial) if *serial == self.serial => return Ok(message),
                Kind::Error(serial, name) if *serial == self.serial => {
                    let words = message.texts.first().unwrap_or(name);
                    return Err(ConnectionError::Refused(words.clone()));
                }
                Kind::Return(_) | Kind::Error(..) | Kind::Signal(_) | Kind::Other => {
                    self.prepared = prepared(&message).or(self.prepared);
                }
            }
        }
    }

    /// The value of the next `PrepareForShutdown` signal.
    async fn prepared(&mut self) -> Result<bool, ConnectionError> {
        loop {
            if let Some(prepared) = self.prepared.take() {
                return Ok(prepared);
            }
            self.prepared = prepared(&self.receive().await?);
        }
    }
}

fn prepared(message: &Message) -> Option<bool> {
    let Kind::Signal(name) = &message.kind else { return None };
    (name == SIGNAL).then_some(message.numbers.first() == Some(&1))
}
