//! Asks systemd for the slices of pods and of their classes, as libcontainer's systemd manager does for the kubelet:
//! `StartTransientUnit`, `SetUnitProperties` for one that is there, `StopUnit`.
//!
//! ```text
//!     connect /run/systemd/private ─► "\0AUTH EXTERNAL uid", "BEGIN" ─► "OK" ─► a call ─► its answer, and the end of its job
//! ```
//!
//! The manager's own socket, which `systemctl` and the kubelet's library use too: root's alone, and it needs no bus daemon, which
//! a small system may not have. No program is run: `systemctl` cannot make a slice with properties that go with it
//! (`set-property` leaves files in `/run/systemd/system.control` for each pod that ever was), and `busctl` speaks to the
//! bus daemon only. No library: the three calls are a few hundred bytes with five types of values (`wire`), where zbus brings
//! megabytes of code.
//!
//! A connection lives as long as a [`Turn`]. A longer one would wake the agent for every unit of the system: on this socket
//! systemd tells everybody everything, the end of jobs (`JobRemoved`) among it, without being asked to. One turn at a time,
//! so that what was asked for last is what holds. Only a stop's job is waited for without the turn: it lasts as long as the
//! processes there, and no other pod is to wait for those.

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

/// What went wrong with a unit.
#[derive(Debug)]
pub enum SystemdError {
    /// Nobody listens there, or hung up.
    Away(Box<Path>, io::Error),
    /// No answer within [`SYSTEMD_CALL_TIME`].
    Silent,
    /// It answers what is no D-Bus.
    Garbled,
    /// It refuses; in its own words.
    Refused(Box<str>, String),
    /// The job ended with this result instead of `done`.
    Failed(Box<str>, String),
    /// The job has begun and is not over within [`SYSTEMD_CALL_TIME`].
    Late(Box<str>),
}

impl SystemdError {
    /// True when it is about this unit alone: another one may do.
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
                "systemd does not answer within {} s; see what it does: systemctl list-jobs, journalctl -b -p err",
                SYSTEMD_CALL_TIME.as_secs()
            ),
            Self::Garbled => f.write_str("systemd's answer is no D-Bus message; is it the machine's init?"),
            Self::Refused(unit, words) => write!(f, "systemd refuses {unit}: {words}"),
            Self::Failed(unit, result) => {
                write!(f, "systemd's job for {unit} ended with {result:?}; see: systemctl status {unit}")
            }
            Self::Late(unit) => write!(
                f,
                "systemd's job for {unit} is not over after {} s; see what it waits for: systemctl status {unit}",
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
    turn: Mutex<()>,
    /// When it last left a call without an answer.
    silent: Cell<Option<Mono>>,
    /// Slices that it was asked for and whose call was given up: they may come yet. At most one for each pod that is not
    /// removed, and the classes'.
    unanswered: RefCell<SortedSet<Box<str>>>,
}

impl Systemd {
    /// The one whose private socket this is. Nothing is connected yet.
    pub fn new(socket: &Path, clock: SharedClock) -> Self {
        Self {
            socket: socket.into(),
            clock,
            turn: Mutex::new(()),
            silent: Cell::new(None),
            unanswered: RefCell::default(),
        }
    }

    /// Waits until nobody else asks it for something.
    ///
    /// # Errors
    /// It left a call without an answer meanwhile: who waited behind that one is not kept waiting again.
    pub async fn turn(&self) -> Result<Turn<'_>, SystemdError> {
        let since = self.clock.now().mono;
        let guard = self.turn.lock().await;
        if self.silent.get().is_some_and(|at| at >= since) {
            return Err(SystemdError::Silent);
        }
        Ok(Turn { systemd: self, connection: None, _guard: guard })
    }

    /// True when it was asked for this slice and the call was given up, so that the slice may come although its cgroup is
    /// not there: until it is stopped.
    pub fn may_come(&self, unit: &str) -> bool {
        self.unanswered.borrow().contains(unit)
    }

    /// Stops the unit, in a turn of its own, and waits until it is stopped; one that systemd does not know is.
    pub async fn stop(&self, unit: &str) -> Result<(), SystemdError> {
        let mut turn = self.turn().await?;
        let mut arguments = Writer::default();
        arguments.text(unit);
        arguments.text("replace");
        match turn.call("StopUnit", "ss", &arguments, unit).await? {
            Answer::Done => {}
            Answer::Job(job) => {
                let open = turn.connection.take();
                // What others ask for meanwhile is other units'.
                drop(turn);
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
    /// True when it ends the machine, or its own life in a container (`systemctl is-system-running`: `stopping`).
    pub async fn is_stopping(&self) -> Result<bool, SystemdError> {
        let mut turn = self.turn().await?;
        let mut arguments = Writer::default();
        arguments.text(MANAGER.interface);
        arguments.text("SystemState");
        match turn.call_on(&MANAGER_PROPERTIES, "Get", "ss", &arguments, "SystemState").await? {
            Answer::Job(Job { path: state, .. }) => Ok(state == "stopping"),
            Answer::Done => Err(SystemdError::Garbled),
            Answer::Error { words, .. } => Err(SystemdError::Refused("SystemState".into(), words)),
        }
    }
}

/// The right to ask systemd. Connects with the first call.
pub struct Turn<'s> {
    systemd: &'s Systemd,
    connection: Option<Connection>,
    _guard: MutexGuard<'s, ()>,
}

impl Turn<'_> {
    /// Makes the slice with its properties and waits until it is there; one that is there gets them (`LegacyManager.Apply`,
    /// `UnifiedManager.Apply` and `Set`).
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
        // No further units beside it.
        arguments.array(8, &mut |_| {});
        match self.call(START, "ssa(sv)a(sa(sv))", &arguments, &slice.name).await? {
            Answer::Done => {}
            Answer::Job(job) => {
                let open = self.connection.take();
                self.connection = self.systemd.finish(open, job, &slice.name).await?;
            }
            Answer::Error { name, words } => {
                // It has it, or never will: this call makes none.
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
        // For as long as the unit is there: not on the disk.
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
        // Put back when the call went well: what is left of another one would be taken for the next one's answer.
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
    /// Waits until the job is over that this connection was told of. Its lateness is the unit's own: systemd has answered.
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

/// What a connection begins with, and what is asked for besides.
fn greeting(besides: &str) -> String {
    // The user is known by the socket's credentials; its number's digits are sent as the hexadecimal numbers of their
    // characters, 0x30 to 0x39.
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

/// The method that makes a unit.
const START: &str = "StartTransientUnit";

enum Answer {
    Done,
    /// It does it; this job's end says whether it could. Of a property its value.
    Job(Job),
    Error {
        name: String,
        words: String,
    },
}

struct Job {
    path: String,
    /// The last of the unit's jobs that ended, with its result: a job's end may come before the answer that names it.
    ended: Option<(String, String)>,
}

struct Connection {
    stream: BufReader<Async<UnixStream>>,
    /// Of the last call.
    serial: u32,
}

impl Connection {
    /// Full (systemd takes no connections): an error at once, as a socket that does not wait gives it.
    async fn new(socket: &Path) -> Result<Self, ConnectionError> {
        let mut stream = BufReader::new(Async::<UnixStream>::connect(socket).await?);
        // In one piece, as `systemctl` sends it. systemd looks at a message that it has read together with "BEGIN" only when
        // there is more to read, that is never: so the first one follows its "OK".
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

/// The job of this unit's whose end a message tells, and its result.
fn end_of_job(kind: &Kind, texts: Vec<String>, unit: &str) -> Option<(String, String)> {
    let mut texts = texts.into_iter();
    match (kind, texts.next(), texts.next(), texts.next()) {
        (Kind::Signal(name), Some(path), Some(of), Some(result)) if name == "JobRemoved" && of == unit => {
            Some((path, result))
        }
        _ => None,
    }
}
