//! Creates and changes the slices of pods and QoS classes through systemd, as libcontainer's systemd manager does for the
//! kubelet: `StartTransientUnit`, `SetUnitProperties` for an existing slice, `StopUnit`.
//!
//! ```text
//!     connect /run/systemd/private ─► "\0AUTH EXTERNAL uid", "BEGIN" ─► "OK" ─► a call ─► its answer, and the end of its job
//! ```
//!
//! It uses the manager's private socket, as `systemctl` and the kubelet's library do: only root may connect, and it needs no
//! bus daemon, which a small system may not have. It runs no program: `systemctl` cannot create a slice with transient
//! properties (`set-property` leaves files in `/run/systemd/system.control` for every former pod), and `busctl` uses the bus
//! daemon only. It uses no library: the three calls are a few hundred bytes with five types of values (`wire`), where zbus is
//! megabytes of code.
//!
//! A connection lives as long as a [`Session`]. A longer one would wake the agent for every unit of the system: on this socket
//! systemd sends all signals, `JobRemoved` among them, to every client. Sessions are exclusive, so that the last change takes
//! effect. Only the job of a stop is awaited without the session: it lasts as long as the unit's processes, and must not delay
//! other pods.

pub mod notify;
#[cfg(test)]
mod tests;
mod wire;

pub mod logind;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;

use async_io::Async;
use smol::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use smol::lock::{Mutex, MutexGuard};

use crate::clock::SharedClock;
use crate::limits::{SYSTEMD_CALL_TIME, SYSTEMD_LINE_BYTES_MAX};
use crate::model::Mono;
use crate::model::SortedSet;
use crate::render::slice::Slice;
use wire::{HEAD_BYTES, Kind, MANAGER, MANAGER_PROPERTIES, Message, Object, Value, Writer};

/// An error of a unit's call.
#[derive(Debug)]
pub enum SystemdError {
    /// The socket refuses or closes the connection.
    Away(Box<Path>, io::Error),
    /// No answer within [`SYSTEMD_CALL_TIME`].
    Silent,
    /// The answer is not D-Bus.
    Garbled,
    /// The call was refused, with this message.
    Refused(Box<str>, String),
    /// The job ended with this result instead of `done`.
    Failed(Box<str>, String),
    /// The job was started and has not ended within [`SYSTEMD_CALL_TIME`].
    Late(Box<str>),
}

impl SystemdError {
    /// True when it concerns only this unit: calls for other units may succeed.
    pub fn is_of_unit(&self) -> bool {
        match self {
            Self::Refused(..) | Self::Failed(..) | Self::Late(_) => true,
            Self::Away(..) | Self::Silent | Self::Garbled => false,
        }
    }
}

impl fmt::Display for SystemdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Away(path, error) => write!(
                f,
                "systemd does not answer at {}: {error}; the cgroup driver systemd needs it as the machine's init and the \
                 agent as root: else set cgroupDriver: cgroupfs, for agent and runtime",
                path.display()
            ),
            Self::Silent => write!(
                f,
                "systemd does not answer within {} s; see: systemctl list-jobs, journalctl -b -p err",
                SYSTEMD_CALL_TIME.as_secs()
            ),
            Self::Garbled => f.write_str(
                "systemd's answer is not a D-Bus message; check that systemd is the machine's init",
            ),
            Self::Refused(unit, words) => write!(f, "systemd refuses {unit}: {words}"),
            Self::Failed(unit, result) => {
                write!(f, "systemd's job for {unit} ended with {result:?}; see: systemctl status {unit}")
            }
            Self::Late(unit) => write!(
                f,
                "systemd's job for {unit} has not ended after {} s; see: systemctl status {unit}",
                SYSTEMD_CALL_TIME.as_secs()
            ),
        }
    }
}

impl std::error::Error for SystemdError {}

/// The machine's systemd.
pub struct Systemd {
    socket: Box<Path>,
    clock: SharedClock,
    exclusive: Mutex<()>,
    /// When it last left a call without an answer.
    silent: Cell<Option<Mono>>,
    /// Slices whose call was abandoned: systemd may still create them. At most one for each pod that is not removed, and the
    /// QoS classes'.
    unanswered: RefCell<SortedSet<Box<str>>>,
}

impl Systemd {
    /// With that private socket. Does not connect yet.
    pub fn new(socket: &Path, clock: SharedClock) -> Self {
        Self {
            socket: socket.into(),
            clock,
            exclusive: Mutex::new(()),
            silent: Cell::new(None),
            unanswered: RefCell::default(),
        }
    }

    /// Waits until no other session is open.
    ///
    /// # Errors
    /// systemd left a call of another session without an answer during the wait: the caller does not wait for another deadline.
    pub async fn session(&self) -> Result<Session<'_>, SystemdError> {
        let since = self.clock.now().mono;
        let guard = self.exclusive.lock().await;
        if self.silent.get().is_some_and(|at| at >= since) {
            return Err(SystemdError::Silent);
        }
        Ok(Session { systemd: self, connection: None, _guard: guard })
    }

    /// True when a call for this slice was abandoned, so that the slice may appear although its cgroup is missing, until it is
    /// stopped.
    pub fn may_come(&self, unit: &str) -> bool {
        self.unanswered.borrow().contains(unit)
    }

    /// Stops the unit in its own session, and waits for its end; a unit that systemd does not know counts as stopped.
    pub async fn stop(&self, unit: &str) -> Result<(), SystemdError> {
        let mut session = self.session().await?;
        let mut arguments = Writer::default();
        arguments.text(unit);
        arguments.text("replace");
        match session.call("StopUnit", "ss", &arguments, unit).await? {
            Answer::Done => {}
            Answer::Job(job) => {
                let open = session.connection.take();
                // Other sessions concern other units.
                drop(session);
                self.finish(open, job, unit).await?;
            }
            Answer::Error { name, .. } if name.ends_with(".NoSuchUnit") => {}
            Answer::Error { words, .. } => return Err(SystemdError::Refused(unit.into(), words)),
        }
        self.unanswered.borrow_mut().remove(unit);
        Ok(())
    }
}

impl Systemd {
    /// True when the machine, or the container that systemd runs in, shuts down (`systemctl is-system-running`: `stopping`).
    pub async fn is_stopping(&self) -> Result<bool, SystemdError> {
        let mut session = self.session().await?;
        let mut arguments = Writer::default();
        arguments.text(MANAGER.interface);
        arguments.text("SystemState");
        match session.call_on(&MANAGER_PROPERTIES, "Get", "ss", &arguments, "SystemState").await? {
            Answer::Job(Job { path: state, .. }) => Ok(state == "stopping"),
            Answer::Done => Err(SystemdError::Garbled),
            Answer::Error { words, .. } => Err(SystemdError::Refused("SystemState".into(), words)),
        }
    }
}

/// Exclusive access to systemd. Connects with the first call.
pub struct Session<'s> {
    systemd: &'s Systemd,
    connection: Option<Connection>,
    _guard: MutexGuard<'s, ()>,
}

impl Session<'_> {
    /// Creates the slice with its properties and waits until it exists; an existing one gets the properties
    /// (`LegacyManager.Apply`, `UnifiedManager.Apply` and `Set`).
    pub async fn start(&mut self, slice: &Slice) -> Result<(), SystemdError> {
        let properties = |list: &mut Writer| {
            for (name, value) in &slice.properties {
                list.property(name, Value::Number(*value));
            }
        };
        let mut arguments = Writer::default();
        arguments.text(&slice.name);
        arguments.text("replace");
        arguments.array(8, &mut |list| {
            list.property("Description", Value::Text("Kubernetes pods"));
            list.property("Wants", Value::List(&slice.parent));
            for name in ["MemoryAccounting", "CPUAccounting", slice.io_accounting, "TasksAccounting"] {
                list.property(name, Value::Bool(true));
            }
            list.property("DefaultDependencies", Value::Bool(false));
            properties(list);
        });
        // No auxiliary units.
        arguments.array(8, &mut |_| {});
        match self.call(START, "ssa(sv)a(sa(sv))", &arguments, &slice.name).await? {
            Answer::Done => {}
            Answer::Job(job) => {
                let open = self.connection.take();
                self.connection = self.systemd.finish(open, job, &slice.name).await?;
            }
            Answer::Error { name, words } => {
                // The slice has the properties, or the call failed: this call creates none any more.
                self.systemd.unanswered.borrow_mut().remove(&slice.name);
                if !name.ends_with(".UnitExists") {
                    return Err(SystemdError::Refused((*slice.name).into(), words));
                }
                return self.set(slice, properties).await;
            }
        }
        self.systemd.unanswered.borrow_mut().remove(&slice.name);
        Ok(())
    }

    async fn set(&mut self, slice: &Slice, properties: impl Fn(&mut Writer)) -> Result<(), SystemdError> {
        if slice.properties.is_empty() {
            return Ok(());
        }
        let mut arguments = Writer::default();
        arguments.text(&slice.name);
        // Runtime properties only: nothing is written to the disk.
        arguments.flag(true);
        arguments.array(8, &mut |list| properties(list));
        match self.call("SetUnitProperties", "sba(sv)", &arguments, &slice.name).await? {
            Answer::Done | Answer::Job(_) => Ok(()),
            Answer::Error { words, .. } => Err(SystemdError::Refused((*slice.name).into(), words)),
        }
    }

    async fn call(
        &mut self,
        method: &str,
        types: &str,
        arguments: &Writer,
        unit: &str,
    ) -> Result<Answer, SystemdError> {
        self.call_on(&MANAGER, method, types, arguments, unit).await
    }

    async fn call_on(
        &mut self,
        to: &Object,
        method: &str,
        types: &str,
        arguments: &Writer,
        unit: &str,
    ) -> Result<Answer, SystemdError> {
        let systemd = self.systemd;
        // Put back after a successful call: otherwise a late answer would be read as that of the next call.
        let open = self.connection.take();
        let asked = async {
            let mut open = match open {
                Some(open) => open,
                None => Connection::new(&systemd.socket).await?,
            };
            if method == START {
                systemd.unanswered.borrow_mut().insert(unit.into());
            }
            let answer = open.call(to, method, types, arguments, unit).await?;
            Ok((open, answer))
        };
        let silent = || {
            systemd.silent.set(Some(systemd.clock.now().mono));
            SystemdError::Silent
        };
        let (open, answer) = systemd.in_time(asked, silent).await?;
        self.connection = Some(open);
        Ok(answer)
    }
}

impl Systemd {
    /// Waits until the job has ended that this connection started. A timeout concerns the unit: systemd itself has answered.
    async fn finish(
        &self,
        mut open: Option<Connection>,
        job: Job,
        unit: &str,
    ) -> Result<Option<Connection>, SystemdError> {
        let ending = async {
            if let Some(open) = &mut open {
                open.finish(job, unit).await?;
            }
            Ok(())
        };
        self.in_time(ending, || SystemdError::Late(unit.into())).await?;
        Ok(open)
    }

    async fn in_time<T>(
        &self,
        asked: impl Future<Output = Result<T, ConnectionError>>,
        late: impl FnOnce() -> SystemdError,
    ) -> Result<T, SystemdError> {
        let in_time = async { Some(asked.await) };
        let deadline = async {
            self.clock.sleep(SYSTEMD_CALL_TIME).await;
            None
        };
        match smol::future::or(in_time, deadline).await {
            Some(answered) => answered.map_err(|trouble| match trouble {
                ConnectionError::Io(error) => SystemdError::Away(self.socket.clone(), error),
                ConnectionError::Garbled => SystemdError::Garbled,
                ConnectionError::Failed(unit, result) => SystemdError::Failed(unit, result),
            }),
            None => Err(late()),
        }
    }
}

/// The authentication at the beginning of a connection, with further commands.
fn greeting(besides: &str) -> String {
    // The socket's credentials identify the user; the digits of the UID are sent as hexadecimal character codes, 0x30 to 0x39.
    let user = rustix::process::geteuid().as_raw().to_string();
    let user: String = user.chars().flat_map(|digit| ['3', digit]).collect();
    format!("\0AUTH EXTERNAL {user}\r\n{besides}BEGIN\r\n")
}

/// As [`SystemdError`], of one connection.
enum ConnectionError {
    Io(io::Error),
    Garbled,
    Failed(Box<str>, String),
}

impl From<io::Error> for ConnectionError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// The method that creates a unit.
const START: &str = "StartTransientUnit";

enum Answer {
    Done,
    /// Accepted; the job's end has the result. Or the value of a property.
    Job(Job),
    Error {
        name: String,
        words: String,
    },
}

struct Job {
    path: String,
    /// The unit's last ended job with its result: the signal may arrive before the answer that names the job.
    ended: Option<(String, String)>,
}

struct Connection {
    stream: BufReader<Async<UnixStream>>,
    /// Serial of the last call.
    serial: u32,
}

impl Connection {
    /// A full backlog is an error at once, because the socket does not block.
    async fn new(socket: &Path) -> Result<Self, ConnectionError> {
        let mut stream = BufReader::new(Async::<UnixStream>::connect(socket).await?);
        // In one write, as `systemctl` sends it. systemd does not parse a message that it has read together with "BEGIN" until
        // it reads more: so the first call follows its "OK".
        stream.get_mut().write_all(greeting("").as_bytes()).await?;
        let mut line = Vec::new();
        (&mut stream).take(SYSTEMD_LINE_BYTES_MAX).read_until(b'\n', &mut line).await?;
        if line.is_empty() {
            return Err(ConnectionError::Io(io::ErrorKind::ConnectionReset.into()));
        }
        if !line.starts_with(b"OK ") || !line.ends_with(b"\n") {
            return Err(ConnectionError::Garbled);
        }
        Ok(Self { stream, serial: 0 })
    }

    async fn call(
        &mut self,
        to: &Object,
        method: &str,
        types: &str,
        arguments: &Writer,
        unit: &str,
    ) -> Result<Answer, ConnectionError> {
        self.serial += 1;
        let message = wire::call(self.serial, to, method, types, arguments);
        self.stream.get_mut().write_all(&message).await?;
        let mut ended = None;
        loop {
            let Message { kind, texts, .. } = self.receive().await?;
            match kind {
                Kind::Return(to) if to == self.serial => {
                    let job = texts.into_iter().next().map(|path| Job { path, ended });
                    return Ok(job.map_or(Answer::Done, Answer::Job));
                }
                Kind::Error(to, name) if to == self.serial => {
                    return Ok(Answer::Error { words: texts.into_iter().next().unwrap_or_default(), name });
                }
                kind => ended = end_of_job(&kind, texts, unit).or(ended),
            }
        }
    }

    async fn finish(&mut self, job: Job, unit: &str) -> Result<(), ConnectionError> {
        let mut ended = job.ended;
        loop {
            match ended {
                Some((path, result)) if path == job.path => {
                    if result == "done" {
                        return Ok(());
                    }
                    return Err(ConnectionError::Failed(unit.into(), result));
                }
                _ => {
                    let Message { kind, texts, .. } = self.receive().await?;
                    ended = end_of_job(&kind, texts, unit);
                }
            }
        }
    }

    async fn receive(&mut self) -> Result<Message, ConnectionError> {
        let mut head = [0; HEAD_BYTES];
        self.stream.read_exact(&mut head).await?;
        let rest = wire::rest(head).ok_or(ConnectionError::Garbled)?;
        let mut whole = head.to_vec();
        whole.resize(HEAD_BYTES + rest, 0);
        self.stream.read_exact(&mut whole[HEAD_BYTES..]).await?;
        wire::parse(&whole).ok_or(ConnectionError::Garbled)
    }
}

/// The unit's job that this signal reports as ended, and its result.
fn end_of_job(kind: &Kind, texts: Vec<String>, unit: &str) -> Option<(String, String)> {
    let mut texts = texts.into_iter();
    match (kind, texts.next(), texts.next(), texts.next()) {
        (Kind::Signal(name), Some(path), Some(of), Some(result)) if name == "JobRemoved" && of == unit => {
            Some((path, result))
        }
        _ => None,
    }
}
