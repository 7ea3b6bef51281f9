//! What the parts of the embedded runtime share: settings, threads, clock, tasks, events, and the making of ids. I/O.

use std::cell::RefCell;
use std::future::Future;
use std::io::{self, Read as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as Waking, Poll};

use minicbor::Encode;
use rustix::rand::GetRandomFlags;
use smol::lock::Semaphore;

use super::apparmor;
use super::cni::Plugins;
use super::events::Events;
use super::records;
use super::settings::Settings;
use crate::blocking::Blocking;
use crate::clock::SharedClock;
use crate::cri::{RuntimeError, StreamRequest};
use crate::executor::Executor;
use crate::limits::MONITOR_WAITS_MAX;
use crate::model::SortedMap;
use crate::monitor::{self, MonitorError};
use crate::oci::{NodeFacts, RuntimeFeatures};
use crate::text::hex;

/// Shared by the parts.
pub(super) struct Context {
    pub(super) settings: Settings,
    pub(super) blocking: Rc<Blocking>,
    pub(super) clock: SharedClock,
    pub(super) plugins: Plugins,
    pub(super) events: Events,
    /// The machine, with the default OCI runtime.
    pub(super) node: Arc<NodeFacts>,
    /// The `AppArmor` profile of containers.
    pub(super) apparmor: apparmor::Loading,
    /// What the OCI runtimes of the handlers have.
    pub(super) features: SortedMap<Box<str>, RuntimeFeatures>,
    /// This boot's id.
    pub(super) boot: Box<str>,
    /// The node's pod CIDRs, separated by commas; empty until they are known.
    pub(super) pod_cidr: RefCell<String>,
    /// Where clients of streams go: the streaming server's part.
    pub(super) streaming_url: RefCell<Option<StreamingUrl>>,
    executor: Rc<Executor>,
    /// Held while a monitor is waited for.
    monitors: Arc<Semaphore>,
}

/// Makes the URL of a stream.
pub(super) type StreamingUrl = Box<dyn Fn(StreamRequest) -> Result<String, RuntimeError>>;

impl Context {
    pub(super) fn new(
        settings: Settings,
        blocking: Rc<Blocking>,
        clock: SharedClock,
        executor: Rc<Executor>,
        (node, features): (NodeFacts, SortedMap<Box<str>, RuntimeFeatures>),
    ) -> Self {
        Self {
            node: Arc::new(node),
            apparmor: apparmor::Loading::default(),
            features,
            plugins: Plugins::new(&settings.cni_bin_dirs, blocking.clone(), clock.clone()),
            settings,
            blocking,
            boot: clock.boot_id(),
            clock,
            events: Events::default(),
            pod_cidr: RefCell::default(),
            streaming_url: RefCell::default(),
            executor,
            monitors: Arc::new(Semaphore::new(MONITOR_WAITS_MAX)),
        }
    }

    /// The machine, with the OCI runtime of a handler.
    pub(super) fn node_of(&self, handler: &str) -> Arc<NodeFacts> {
        let runtime = self.features.get(handler).copied().unwrap_or_default();
        if runtime == self.node.runtime {
            self.node.clone()
        } else {
            Arc::new(NodeFacts { runtime, ..(*self.node).clone() })
        }
    }

    /// Nanoseconds since the epoch.
    pub(super) fn now(&self) -> i64 {
        self.clock.now().wall.0
    }

    /// Runs an operation to its end, also when the caller does not wait for it: half of one would leave behind what nobody
    /// sees.
    pub(super) fn to_the_end<T: 'static>(
        &self,
        name: &'static str,
        operation: impl Future<Output = T> + 'static,
    ) -> Lasting<T> {
        Lasting(Some(self.executor.spawn(name, operation)))
    }

    /// A task that ends when the returned value is dropped.
    pub(super) fn task(
        &self,
        name: &'static str,
        task: impl Future<Output = ()> + 'static,
    ) -> smol::Task<()> {
        self.executor.spawn(name, task)
    }

    /// Blocking work of the runtime's own directories.
    pub(super) async fn blocking<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        self.blocking.run(work).await
    }

    /// A new monitor for a container whose monitor was killed ([`monitor::adopt`]).
    ///
    /// # Errors
    /// As [`monitor::adopt`].
    pub(super) async fn adopt(&self, dir: PathBuf) -> Result<monitor::Created, MonitorError> {
        let program = self.settings.program.clone();
        self.with_monitor(dir, move |dir| monitor::adopt(&program, dir)).await
    }

    /// [`monitor::reopen_log`].
    ///
    /// # Errors
    /// The same.
    pub(super) async fn reopen_log(&self, dir: PathBuf) -> Result<(), MonitorError> {
        self.with_monitor(dir, monitor::reopen_log).await
    }

    /// Work that waits for a monitor, which may wait for a disk: on a thread of its own and
    /// with permits of its own, so that nothing else of the agent waits with it.
    async fn with_monitor<T: Send + 'static>(
        &self,
        dir: PathBuf,
        work: impl FnOnce(&Path) -> Result<T, MonitorError> + Send + 'static,
    ) -> Result<T, MonitorError> {
        // Held by the thread: it goes on when its caller does not wait any more.
        let permit = self.monitors.acquire_arc().await;
        let path = dir.clone();
        let work = move || {
            let _permit = permit;
            work(&dir)
        };
        self.blocking.run_alone(work).await.unwrap_or_else(|source| Err(MonitorError::Io { path, source }))
    }

    /// Writes a record into that directory.
    pub(super) async fn write<R: Encode<()> + Send + 'static>(
        &self,
        dir: PathBuf,
        record: R,
    ) -> Result<(), RuntimeError> {
        let shown = dir.display().to_string();
        let written = self.blocking(move || records::write(&dir, &record)).await;
        written.map_err(|error| failed(format!("the record in {shown}: {error}")))
    }

    /// A new id: 64 hexadecimal digits.
    pub(super) async fn new_id(&self) -> Result<String, RuntimeError> {
        let mut bytes = [0; 32];
        // Early in the boot the kernel has no such numbers yet, and would have the loop wait for them.
        if rustix::rand::getrandom(&mut bytes, GetRandomFlags::NONBLOCK) == Ok(bytes.len()) {
            return Ok(hex(&bytes));
        }
        let random = || -> io::Result<[u8; 32]> {
            let mut bytes = [0; 32];
            std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
            Ok(bytes)
        };
        let random = self.blocking(random).await;
        random.map(|bytes| hex(&bytes)).map_err(|error| failed(format!("/dev/urandom: {error}")))
    }
}

/// An operation that goes on when nobody waits for it.
pub(super) struct Lasting<T>(Option<smol::Task<T>>);

impl<T> Future for Lasting<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Waking<'_>) -> Poll<T> {
        match &mut self.0 {
            Some(task) => Pin::new(task).poll(cx),
            None => Poll::Pending,
        }
    }
}

impl<T> Drop for Lasting<T> {
    fn drop(&mut self) {
        if let Some(task) = self.0.take() {
            task.detach();
        }
    }
}

/// Makes a directory that nobody but root enters, and those above it. Blocking.
pub(super) fn make_dir(dir: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

/// gRPC `UNKNOWN`, as containerd's failures.
pub(super) fn failed(message: impl Into<String>) -> RuntimeError {
    RuntimeError::Failed { code: 2, message: message.into() }
}

/// gRPC `INVALID_ARGUMENT`.
pub(super) fn invalid(message: impl Into<String>) -> RuntimeError {
    RuntimeError::Failed { code: 3, message: message.into() }
}

/// gRPC `FAILED_PRECONDITION`.
pub(super) fn not_now(message: impl Into<String>) -> RuntimeError {
    RuntimeError::Failed { code: 9, message: message.into() }
}

/// gRPC `RESOURCE_EXHAUSTED`.
pub(super) fn full(message: impl Into<String>) -> RuntimeError {
    RuntimeError::Failed { code: 8, message: message.into() }
}

/// True for the name of a directory of ours.
pub(super) fn is_id(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit() && !byte.is_ascii_uppercase())
}
