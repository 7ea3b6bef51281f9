//! The containers' side of the streaming server: `exec` through the OCI runtime, `attach` through the container's monitor,
//! `port-forward` by a socket that is made in the pod's network namespace.
//!
//! ```text
//!     exec          pipes ──► command, and its keeper (command.rs)      a terminal is sent to the agent (console.rs)
//!     attach        the monitor's socket
//!     port-forward  a thread enters the namespace and makes a socket; the reactor connects it
//! ```
//!
//! A command's keeper runs as long as the command, and has its exit code.

use std::cell::Cell;
use std::fs::File;
use std::future::{Future, pending};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;

use async_io::{Async, Timer};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use rustix::termios::{Winsize, tcsetwinsize};
use smol::channel::{Receiver, Sender};
use smol::future::{or, zip};
use smol::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::Embedded;
use super::command::{ContainerCommand, KEEPER_KILLED, STREAM};
use super::console::Console;
use super::namespaces::in_network;
use super::oci_runtime::message_of;
use super::process::give_pipes;
use super::users::Owner;
use crate::cri::{RuntimeError, RuntimeResult, StreamRequest};
use crate::executor::Executor;
use crate::limits::{
    EXEC_COMMAND_BYTES_MAX, PORT_CONNECT_TIME, PROGRAM_DRAIN_TIME, PROGRAM_ERROR_BYTES_MAX,
    STREAM_CHUNK_BYTES, STREAM_OPEN_TIME,
};
use crate::monitor::{attach, other_side};
use crate::program;
use crate::proto::runtime::v1::{AttachRequest, ExecRequest};
use crate::stream::Socket;
use crate::streaming::command::Size;
use crate::streaming::server::{Asked, Ends, Running, StreamingError, StreamingServer, Streams};
use crate::text::start_of;

/// Streams to the containers of a runtime.
#[derive(Clone)]
struct ContainerStreams {
    runtime: Embedded,
    /// Number of the next command.
    next: Rc<Cell<u64>>,
}

impl ContainerStreams {
    /// Of that runtime.
    fn new(runtime: &Embedded) -> Self {
        Self { runtime: runtime.clone(), next: Rc::default() }
    }
}

impl Embedded {
    /// Binds the streaming server, and gives out its URLs from now on. Whoever starts the agent runs the returned future as a task.
    ///
    /// # Errors
    /// No port of loopback is to be had.
    pub fn serve_streams(&self, executor: &Rc<Executor>) -> io::Result<impl Future<Output = ()> + use<>> {
        let server = StreamingServer::bind()?;
        let urls = server.clone();
        self.set_streaming_url(move |request| url(&urls, request));
        let streams: Rc<dyn Streams> = Rc::new(ContainerStreams::new(self));
        Ok(server.run(streams, Rc::downgrade(executor)))
    }
}

fn url(server: &StreamingServer, request: StreamRequest) -> RuntimeResult<String> {
    let asked = match request {
        StreamRequest::Exec(request) => Asked::Exec(request),
        StreamRequest::Attach(request) => Asked::Attach(request),
        StreamRequest::PortForward(request) => Asked::PortForward(request),
    };
    server.url(asked).map_err(|error| match error {
        StreamingError::Invalid(_) => super::context::invalid(error.to_string()),
        StreamingError::Full | StreamingError::Random(_) => super::context::full(error.to_string()),
    })
}

impl Streams for ContainerStreams {
    fn exec(&self, request: ExecRequest, ends: Ends) -> Running<Result<i32, String>> {
        let streams = self.clone();
        Box::pin(async move { exec(&streams, request, ends).await })
    }

    fn attach(&self, request: AttachRequest, ends: Ends) -> Running<Result<(), String>> {
        let runtime = self.runtime.clone();
        Box::pin(async move { attach(&runtime, &request, ends).await })
    }

    fn port_forward(&self, sandbox: String, port: u16) -> Running<Result<Socket<TcpStream>, String>> {
        let runtime = self.runtime.clone();
        Box::pin(async move { connect(&runtime, &sandbox, port).await })
    }
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn text(error: RuntimeError) -> String {
    error.to_string()
}

// ---- exec --------------------------------------------------------------------------------------------------

/// The keeper of a command. Dropped before its exit: both are killed.
struct Exec {
    child: Child,
    command: Arc<ContainerCommand>,
    has_exited: bool,
}

impl Drop for Exec {
    fn drop(&mut self) {
        if self.has_exited {
            return;
        }
        let (keeper, command) = (Pid::from_child(&self.child), self.command.clone());
        let end = move || command.end(keeper);
        let _ = std::thread::Builder::new().name("exec".to_owned()).spawn(end);
    }
}

/// A pipe, or a terminal's other side.
type End = Rc<Async<File>>;

/// The agent's ends of a command's standard streams. A terminal is sent instead: then there is `stderr` alone, the OCI runtime's.
struct Stdio3 {
    stdin: Option<File>,
    stdout: Option<File>,
    stderr: Option<File>,
}

/// Starts the keeper. Blocking.
fn start(
    mut command: Command,
    tty: bool,
    has_stdin: bool,
    owner: Option<Owner>,
) -> io::Result<(Child, Stdio3)> {
    command.arg0("smolet").process_group(0);
    command.stdin(if has_stdin && !tty { Stdio::piped() } else { Stdio::null() });
    command.stdout(if tty { Stdio::null() } else { Stdio::piped() }).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    if let Some(owner) = owner
        && !tty
        && let Err(error) = give_pipes(&child, owner)
    {
        let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
        let _ = child.wait();
        return Err(error);
    }
    let stdin = child.stdin.take().map(|pipe| OwnedFd::from(pipe).into());
    let stdout = child.stdout.take().map(|pipe| OwnedFd::from(pipe).into());
    let stderr = child.stderr.take().map(|pipe| OwnedFd::from(pipe).into());
    Ok((child, Stdio3 { stdin, stdout, stderr }))
}

async fn exec(streams: &ContainerStreams, request: ExecRequest, ends: Ends) -> Result<i32, String> {
    let ExecRequest { container_id, cmd, tty, .. } = request;
    if cmd.is_empty() || cmd.iter().map(String::len).sum::<usize>() > EXEC_COMMAND_BYTES_MAX {
        return Err(format!("the command is empty, or longer than {EXEC_COMMAND_BYTES_MAX} bytes"));
    }
    let runtime = &streams.runtime;
    let container = runtime.containers.existing(&container_id).map_err(text)?;
    let id = container.id();
    let (path, global) = runtime.oci_runtime_of(id.as_str()).map_err(text)?;
    let number = streams.next.replace(streams.next.get().wrapping_add(1));
    let (bundle, name) = (runtime.containers.run_dir(id), format!("{STREAM}{number}"));
    let command = Arc::new(ContainerCommand::in_bundle(bundle.clone(), &name, cmd, tty));
    let mut program = program::command(&runtime.containers.context.settings.program);
    program.args(command.arguments(&path, global, container.oom_score_adj()));
    let (has_stdin, owner) = (ends.stdin.is_some(), container.root());
    let (of_start, last) = (command.clone(), id.to_string());
    let start = move || {
        let console = if tty { Some(Console::in_bundle(&bundle, number)?) } else { None };
        program.args(console.iter().flat_map(Console::arguments)).arg(last);
        of_start.prepare()?;
        let (child, stdio) = start(program, tty, has_stdin, owner).inspect_err(|_| {
            of_start.remove();
        })?;
        Ok::<_, io::Error>((Exec { child, command: of_start, has_exited: false }, stdio, console))
    };
    let started = runtime.context.blocking(start).await;
    let failed = |error: io::Error| format!("the command cannot be run: {error}");
    let (mut exec, mut stdio, console) = started.map_err(failed)?;
    let keeper = Pid::from_child(&exec.child);
    let exit = pidfd_open(keeper, PidfdFlags::empty());
    let exit = exit.map_err(io::Error::from).and_then(Async::new_nonblocking).map_err(failed)?;
    let mut held = None;
    if let Some(console) = console
        && let Some(terminal) = console.terminal(&exit).await.map_err(failed)?
    {
        held = other_side(&terminal);
        stdio.stdin = if has_stdin { Some(terminal.try_clone().map_err(failed)?.into()) } else { None };
        stdio.stdout = Some(terminal.into());
    }
    let end = |file: Option<File>| file.map(|file| Async::new(file).map(Rc::new).map_err(failed)).transpose();
    let (input, output, error) = (end(stdio.stdin)?, end(stdio.stdout)?, end(stdio.stderr)?);
    let feed = feed(ends.stdin, input);
    let resize = resize(ends.sizes, output.clone());
    // The first bytes of standard error, or of a terminal that crun has opened already, say why there is no command.
    let (mut of_terminal, mut said) = (Vec::new(), Vec::new());
    let of_stdout = copy(output, ends.stdout, &exit, &mut of_terminal);
    let of_stderr = copy(error, ends.stderr, &exit, &mut said);
    let exited = async {
        let _ = exit.readable().await;
        drop(held);
        let status = exec.child.try_wait().ok().flatten();
        exec.has_exited = status.is_some();
        let code = status.and_then(|status| status.code());
        if code.is_none() {
            // It would go on printing.
            let command = command.clone();
            runtime.context.blocking(move || command.end_left(keeper)).await;
        }
        code
    };
    let ended = async { zip(exited, zip(of_stdout, of_stderr)).await.0 };
    let Some(code) = or(ended, or(feed, resize)).await else {
        return Err(format!("container {id}: command {:?}: {KEEPER_KILLED}", command.program()));
    };
    if runtime.context.blocking(move || command.remove()).await {
        return Ok(code);
    }
    let said = if tty && said.is_empty() { of_terminal } else { said };
    let said = String::from_utf8_lossy(&said);
    let line = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it does not say why");
    Err(format!("failed to exec in container {id}: {}", message_of(start_of(line.trim(), 1024))))
}

/// Moves the client's input for as long as it is polled; the command's input ends with it.
async fn feed<T>(stdin: Option<Receiver<Vec<u8>>>, input: Option<End>) -> T {
    if let (Some(stdin), Some(input)) = (stdin, input) {
        while let Ok(bytes) = stdin.recv().await {
            if (&*input).write_all(&bytes).await.is_err() {
                break;
            }
        }
    }
    pending().await
}

/// Sets the terminal's size for as long as it is polled.
async fn resize<T>(sizes: Option<Receiver<Size>>, terminal: Option<End>) -> T {
    if let (Some(sizes), Some(terminal)) = (sizes, terminal) {
        while let Ok(Size { width, height }) = sizes.recv().await {
            let size = Winsize { ws_row: height, ws_col: width, ws_xpixel: 0, ws_ypixel: 0 };
            let _ = tcsetwinsize(&*terminal, size);
        }
    }
    pending().await
}

/// Moves an output to its end. When the command has ended, others may hold the output: then silence is its end. `said`: its first bytes.
async fn copy(from: Option<End>, mut to: Option<Sender<Vec<u8>>>, exit: &Async<OwnedFd>, said: &mut Vec<u8>) {
    let Some(from) = from else { return };
    let mut buffer = vec![0; STREAM_CHUNK_BYTES];
    loop {
        // A terminal that nobody has open any more is an error.
        let read = async { (&*from).read(&mut buffer).await.unwrap_or(0) };
        let silence = async {
            let _ = exit.readable().await;
            Timer::after(PROGRAM_DRAIN_TIME).await;
            0
        };
        let read = or(read, silence).await;
        if read == 0 {
            return;
        }
        let room = PROGRAM_ERROR_BYTES_MAX.saturating_sub(said.len());
        said.extend_from_slice(&buffer[..read.min(room)]);
        if let Some(client) = &to
            && client.send(buffer[..read].to_vec()).await.is_err()
        {
            to = None;
        }
        // A command that prints without end, to nobody, does not keep the loop from its other tasks.
        smol::future::yield_now().await;
    }
}

// ---- attach ------------------------------------------------------------------------------------------------

async fn attach(runtime: &Embedded, request: &AttachRequest, ends: Ends) -> Result<(), String> {
    let dir = runtime.monitor_dir(&request.container_id).map_err(text)?;
    let Ends { stdin, stdout, stderr, sizes } = ends;
    let wanted =
        attach::Streams { stdin: stdin.is_some(), stdout: stdout.is_some(), stderr: stderr.is_some() };
    let late = async {
        Timer::after(STREAM_OPEN_TIME).await;
        Err(format!("the container's monitor does not answer within {} s", STREAM_OPEN_TIME.as_secs()))
    };
    let connected = async { attach::connect(&dir, wanted).await.map_err(|error| error.to_string()) };
    let (mut receiver, sender) = or(connected, late).await?;
    let receive = async {
        let mut bytes = Vec::new();
        loop {
            let to = match receiver.next(&mut bytes).await.map_err(|error| error.to_string())? {
                attach::Event::Output(attach::Stream::Stdout) => &stdout,
                attach::Event::Output(attach::Stream::Stderr) => &stderr,
                attach::Event::End => return Ok(()),
            };
            if let Some(to) = to {
                // Closed: the client is gone, and so is this future soon.
                let _ = to.send(bytes.clone()).await;
            }
        }
    };
    let send = async {
        // One at a time: a frame is not to be cut by another.
        let (mut stdin, mut sizes) = (stdin, sizes);
        loop {
            let sent = match next_input(stdin.as_ref(), sizes.as_ref()).await {
                Input::Bytes(bytes) => sender.send(&bytes).await,
                Input::End => {
                    stdin = None;
                    sender.end().await
                }
                Input::Size(Size { width, height }) => sender.resize(width, height).await,
                Input::NoMoreSizes => {
                    sizes = None;
                    Ok(())
                }
            };
            if sent.is_err() {
                // The container's end is received.
                return pending().await;
            }
        }
    };
    or(receive, send).await
}

enum Input {
    Bytes(Vec<u8>),
    End,
    Size(Size),
    NoMoreSizes,
}

async fn next_input(stdin: Option<&Receiver<Vec<u8>>>, sizes: Option<&Receiver<Size>>) -> Input {
    let size = async {
        match sizes {
            Some(sizes) => sizes.recv().await.map_or(Input::NoMoreSizes, Input::Size),
            None => pending().await,
        }
    };
    let bytes = async {
        match stdin {
            Some(stdin) => stdin.recv().await.map_or(Input::End, Input::Bytes),
            None => pending().await,
        }
    };
    or(size, bytes).await
}

// ---- port-forward ------------------------------------------------------------------------------------------

/// Connects to a port of the pod's loopback, by IPv4 and then by IPv6.
async fn connect(runtime: &Embedded, sandbox: &str, port: u16) -> Result<Socket<TcpStream>, String> {
    let namespace = runtime.network_namespace(sandbox).map_err(text)?;
    let mut refused = String::new();
    for address in [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)] {
        let address = SocketAddr::new(address, port);
        let late = async {
            Timer::after(PORT_CONNECT_TIME).await;
            Err(io::ErrorKind::TimedOut.into())
        };
        match or(connect_in(runtime, namespace.clone(), address), late).await {
            Ok(socket) => return Ok(socket),
            // IPv4's error is the one that is known to users.
            Err(error) if refused.is_empty() => {
                let why = why(&error);
                refused = format!("failed to connect to localhost:{port} inside the pod's network: {why}");
            }
            Err(_) => {}
        }
    }
    Err(refused)
}

/// The errors that users of containerd know in its words, which scripts look for.
fn why(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        _ => error.to_string(),
    }
}

async fn connect_in(
    runtime: &Embedded,
    namespace: Option<PathBuf>,
    address: SocketAddr,
) -> io::Result<Socket<TcpStream>> {
    let socket = runtime.context.blocking(move || socket_in(namespace.as_deref(), address.is_ipv4())).await?;
    let socket = Async::new_nonblocking(TcpStream::from(socket))?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => {}
        Err(error) => return Err(error.into()),
    }
    socket.writable().await?;
    match socket.get_ref().take_error()? {
        None => Ok(socket.into()),
        Some(error) => Err(error),
    }
}

/// A socket of that network namespace, or of the node's: it stays there, whatever thread uses it. Blocking.
fn socket_in(namespace: Option<&Path>, is_v4: bool) -> io::Result<OwnedFd> {
    let family = if is_v4 { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = move || rustix::net::socket_with(family, SocketType::STREAM, flags, None);
    let made = match namespace {
        Some(namespace) => in_network(namespace, socket)?,
        None => socket(),
    };
    Ok(made?)
}
