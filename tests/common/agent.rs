//! An agent in a test: its directories and settings, one run of it on a thread, and requests to its socket. The tests' worlds
//! add the rest: virtual time, an API server, a simulated runtime, a process.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use smol::channel::Sender;
use smolet::clock::Clock;
use smolet::config::{Config, EvictionPolicy, Flags};
use smolet::executor::Executor;
use smolet::node::{self, Ending, Stop};

use super::TempDir;
use super::fake::Fake;
use super::gauge::Gauge;
use super::rest::MainThread;

pub const NODE: &str = "gw";

/// Deadline for anything in real time, on a busy machine, under an emulator too.
pub const PATIENCE: Duration = Duration::from_mins(2);

/// The directories of one agent.
pub struct Home(TempDir);

impl Home {
    /// The directories of an agent that has run before.
    pub fn new() -> Self {
        Self(TempDir::new()).with(&["manifests", "root", "logs", "links"])
    }

    /// The same on a tmpfs if the machine has one.
    pub fn in_memory() -> Self {
        Self(TempDir::in_memory()).with(&["manifests", "root", "logs", "links"])
    }

    /// The directories before a first start.
    pub fn before_an_agent() -> Self {
        Self(TempDir::new()).with(&["manifests"])
    }

    fn with(self, folders: &[&str]) -> Self {
        for folder in folders {
            std::fs::create_dir(self.path(folder)).expect("a fresh folder");
        }
        self
    }

    pub fn root(&self) -> &Path {
        self.0.path()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn manifest(&self, file: &str) -> PathBuf {
        self.path("manifests").join(format!("{file}.yaml"))
    }

    /// Writes a manifest atomically, as a careful editor does.
    pub fn put(&self, file: &str, text: impl AsRef<[u8]>) {
        let beside = self.path("manifests").join(format!(".{file}"));
        std::fs::write(&beside, text).expect("a file");
        std::fs::rename(beside, self.manifest(file)).expect("its place");
    }

    pub fn remove(&self, file: &str) {
        std::fs::remove_file(self.manifest(file)).expect("the manifest is there");
    }

    /// All paths of an agent.
    pub fn flags(&self) -> Flags {
        Flags {
            manifests: Some(self.path("manifests")),
            root_dir: Some(self.path("root")),
            node_name: Some(NODE.to_owned()),
            pod_logs_dir: Some(self.path("logs")),
            container_logs_dir: Some(self.path("links")),
            // Not a mount point: a test never changes the machine's own cgroups.
            cgroup_mounts: Some(self.path("cgroup")),
            ..Flags::default()
        }
    }

    /// The configuration of these flags. The usage of the machine's memory and disk does not matter.
    pub fn config(&self, flags: &Flags) -> Config {
        let config = Config::load(flags, Some(&self.path("sock"))).expect("the settings are valid");
        Config { image_gc: None, eviction: EvictionPolicy::NEVER, ..config }
    }

    /// The arguments of `smolet run` for the same configuration.
    pub fn words(&self, fake: &Fake) -> Vec<String> {
        let mut words = vec!["run".to_owned(), "--node-name".to_owned(), NODE.to_owned()];
        let paths = [
            ("--manifests", "manifests"),
            ("--root-dir", "root"),
            ("--pod-logs-dir", "logs"),
            ("--container-logs-dir", "links"),
            ("--cgroup-mounts", "cgroup"),
            ("--socket", "sock"),
        ];
        for (flag, name) in paths {
            words.extend([flag.to_owned(), self.path(name).display().to_string()]);
        }
        words.extend(["--runtime-endpoint".to_owned(), endpoint(fake)]);
        words
    }

    /// The local socket, with a timeout.
    pub fn socket(&self) -> UnixStream {
        let stream = UnixStream::connect(self.path("sock")).expect("the agent listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
        stream.set_write_timeout(Some(PATIENCE)).expect("a time limit");
        stream
    }

    /// A request on the local socket; returns the status code and the body.
    pub fn ask(&self, path: &str) -> (u16, String) {
        ask(self.socket(), path)
    }
}

/// The fake's endpoint as a flag.
pub fn endpoint(fake: &Fake) -> String {
    format!("unix://{}", fake.socket().display())
}

/// A GET with HTTP/1.0, whose response ends with the connection; returns the status code and the body.
pub fn ask(mut stream: UnixStream, path: &str) -> (u16, String) {
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n").expect("the request goes out");
    answer(stream)
}

/// Sends a request and returns the response.
pub fn answer(mut stream: UnixStream) -> (u16, String) {
    stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer in time");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    (code, body.to_owned())
}

/// A static pod's name with this node's suffix.
pub fn full(name: &str) -> String {
    format!("{name}-{NODE}")
}

/// A manifest of a pod with that `spec`.
pub fn manifest(name: &str, spec: &str) -> String {
    format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n")
}

/// How the agent's thread waits.
pub enum Waits {
    /// In the reactor, as in the program.
    InTheReactor,
    /// In the gauge, which other threads can read; another thread runs the reactor.
    InTheGauge(Arc<Gauge>),
}

/// Result of a run; `None` when it is killed.
pub type Ended = Result<Option<Ending>, String>;

/// One run of an agent on its own thread.
pub struct Life {
    stop: Sender<Stop>,
    kill: Sender<()>,
    thread: JoinHandle<Ended>,
    tid: u32,
}

/// Name of an agent's main thread, and of a new thread until it sets its own.
pub const MAIN_THREAD: &str = "agent";

impl Life {
    /// `enter` runs first on that thread.
    pub fn begin<C: Clock + Send + 'static>(
        config: Config,
        once: bool,
        clock: C,
        waits: Waits,
        enter: impl FnOnce(&Executor) + Send + 'static,
    ) -> Self {
        let (stop, stopped) = smol::channel::bounded(4);
        let (kill, killed) = smol::channel::bounded::<()>(1);
        let (tid_sender, tid) = std::sync::mpsc::channel();
        let live = move || {
            tid_sender
                .send(rustix::thread::gettid().as_raw_nonzero().get())
                .expect("the starter waits for it");
            let executor = Rc::new(Executor::new());
            let _main_thread = MainThread::enter();
            enter(&executor);
            let life = async {
                let agent = node::run_until(&config, once, &executor, Rc::new(clock), stopped);
                let agent = async { agent.await.map(Some) };
                let killed = async {
                    let _ = killed.recv().await;
                    Ok(None)
                };
                smol::future::or(agent, killed).await
            };
            let ended = match waits {
                Waits::InTheReactor => async_io::block_on(executor.run(life)),
                Waits::InTheGauge(gauge) => gauge.block_on(executor.run(life)),
            };
            // As at the end of a process: abandoned tasks are dropped, and nothing else runs.
            while executor.try_tick() {}
            ended
        };
        let thread = std::thread::Builder::new().name(MAIN_THREAD.into()).spawn(live).expect("a thread");
        let tid = tid.recv().expect("the thread tells its number").unsigned_abs();
        Self { stop, kill, thread, tid }
    }

    /// The kernel's id of its thread.
    pub fn tid(&self) -> u32 {
        self.tid
    }

    /// Sends a signal about the shutdown of the machine or the agent.
    pub fn tell(&self, stop: Stop) {
        self.stop.try_send(stop).expect("it is told of few things");
    }

    pub fn is_over(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for its result.
    pub fn end(self) -> Ended {
        self.thread.join().expect("the agent does not panic")
    }

    /// As `systemctl stop`.
    pub fn stop(self) {
        self.tell(Stop::Agent);
        assert_eq!(self.end(), Ok(Some(Ending::Stopped)));
    }

    /// As `kill -9`.
    pub fn kill(self) {
        self.kill.try_send(()).expect("it is killed once");
        assert_eq!(self.end(), Ok(None));
    }

    /// At the end of a test, also a failed one; returns whether the agent panicked.
    pub fn abandon(self) -> bool {
        let _ = self.kill.try_send(());
        self.thread.join().is_err()
    }
}
