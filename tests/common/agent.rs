//! An agent of a test: its folders and settings, a life of it on a thread, and what its socket answers. The worlds of tests add
//! what they have beside it: virtual time, an API server, a simulated runtime, a process.

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

pub const NODE: &str = "gw";

/// How long anything may take in real time, on a machine that is busy with other things, under an emulator too.
pub const PATIENCE: Duration = Duration::from_mins(2);

/// Where everything of one agent is.
pub struct Home(TempDir);

impl Home {
    /// As it is when an agent has been there.
    pub fn new() -> Self {
        Self(TempDir::new()).with(&["manifests", "root", "logs", "links"])
    }

    /// The same in memory where the machine has such a place.
    pub fn in_memory() -> Self {
        Self(TempDir::in_memory()).with(&["manifests", "root", "logs", "links"])
    }

    /// As a first start finds it.
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

    /// Writes a manifest as a careful editor does: whole or not at all.
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
            // Nothing is mounted there: the machine's own cgroups are not touched, whatever a test does.
            cgroup_mounts: Some(self.path("cgroup")),
            ..Flags::default()
        }
    }

    /// The settings that these flags make. How full the machine's memory and disk are decides nothing.
    pub fn config(&self, flags: &Flags) -> Config {
        let config = Config::load(flags, Some(&self.path("sock"))).expect("the settings are valid");
        Config { image_gc: None, eviction: EvictionPolicy::NEVER, ..config }
    }

    /// The words of `smolet run` for the same.
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

    /// The local socket, where nothing is waited for without end.
    pub fn socket(&self) -> UnixStream {
        let stream = UnixStream::connect(self.path("sock")).expect("the agent listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
        stream.set_write_timeout(Some(PATIENCE)).expect("a time limit");
        stream
    }

    /// One request on the local socket: the status line's code and the body.
    pub fn ask(&self, path: &str) -> (u16, String) {
        ask(self.socket(), path)
    }
}

/// The fake's, as flags have it.
pub fn endpoint(fake: &Fake) -> String {
    format!("unix://{}", fake.socket().display())
}

/// One GET of HTTP/1.0, whose answer ends with the connection; the code and the body.
pub fn ask(mut stream: UnixStream, path: &str) -> (u16, String) {
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n").expect("the request goes out");
    answer(stream)
}

/// The answer to what was asked.
pub fn answer(mut stream: UnixStream) -> (u16, String) {
    stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer in time");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    (code, body.to_owned())
}

/// A static pod's name on this node.
pub fn full(name: &str) -> String {
    format!("{name}-{NODE}")
}

/// A manifest of a pod with that `spec`.
pub fn manifest(name: &str, spec: &str) -> String {
    format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{{spec}}}\n")
}

/// How an agent's thread waits.
pub enum Waits {
    /// In the reactor, as the program's.
    InTheReactor,
    /// In the gauge, which others can read; another thread has the reactor.
    InTheGauge(Arc<Gauge>),
}

/// What a life of an agent comes to: nothing when it is killed.
pub type Ended = Result<Option<Ending>, String>;

/// One life of an agent, on a thread of its own.
pub struct Life {
    stop: Sender<Stop>,
    kill: Sender<()>,
    thread: JoinHandle<Ended>,
    tid: u32,
}

/// What an agent's main thread is called, and a thread that it has just started, until that one takes a name of its own.
pub const MAIN_THREAD: &str = "agent";

impl Life {
    /// `enter` runs first on that thread; what it returns stays until the end.
    pub fn begin<C: Clock + Send + 'static, G>(
        config: Config,
        once: bool,
        clock: C,
        waits: Waits,
        enter: impl FnOnce(&Executor) -> G + Send + 'static,
    ) -> Self {
        let (stop, stopped) = smol::channel::bounded(4);
        let (kill, killed) = smol::channel::bounded::<()>(1);
        let (tid_sender, tid) = std::sync::mpsc::channel();
        let live = move || {
            tid_sender
                .send(rustix::thread::gettid().as_raw_nonzero().get())
                .expect("the starter waits for it");
            let executor = Rc::new(Executor::new());
            let _entered = enter(&executor);
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
            // As at the end of a process: what was given up is dropped, and nothing else runs.
            while executor.try_tick() {}
            ended
        };
        let thread = std::thread::Builder::new().name(MAIN_THREAD.into()).spawn(live).expect("a thread");
        let tid = tid.recv().expect("the thread tells its number").unsigned_abs();
        Self { stop, kill, thread, tid }
    }

    /// The kernel's number of its thread.
    pub fn tid(&self) -> u32 {
        self.tid
    }

    /// Tells it of the machine's or its own end.
    pub fn tell(&self, stop: Stop) {
        self.stop.try_send(stop).expect("it is told of few things");
    }

    pub fn is_over(&self) -> bool {
        self.thread.is_finished()
    }

    /// What it comes to by itself.
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

    /// At the end of a test, however that ends; whether the agent panicked.
    pub fn abandon(self) -> bool {
        let _ = self.kill.try_send(());
        self.thread.join().is_err()
    }
}
