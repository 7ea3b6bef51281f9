//! Waits for the container runtime; meanwhile the local socket says why there are no pods yet.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use smol::channel::Receiver;

use super::Stop;
use super::drain::drain;
use super::node_runtime::{EmbeddedNode, NodeRuntime};
use super::unpacked_layers::{LayerRecord, remove_doubted};
use crate::blocking::Blocking;
use crate::clock::SharedClock;
use crate::config::Config;
use crate::cri::choice::{RuntimeChoice, choose_beside};
use crate::cri::endpoint::{self, Candidates, EndpointError};
use crate::cri::{Runtime as _, RuntimeHandler, RuntimeVersion};
use crate::cri_server::CriServer;
use crate::executor::Executor;
use crate::facts;
use crate::image_store::ImageStore;
use crate::limits::{RELIST_RETRY_MAX, RUNTIME_SEARCH_PERIOD, RUNTIME_SEARCH_SHARE, RUNTIME_START_PATIENCE};
use crate::metrics::Metrics;
use crate::paths::K3S_CONTAINERD;
use crate::process;
use crate::registry::{Environment, Hosts, Platform, Registries};
use crate::render::CgroupDriver;
use crate::runtime::{Embedded, OVERLAY_CONDITION, StoredImages, readiness};
use crate::server::{Answer, Query, Question};
use crate::store::identity::Identity;
use crate::systemd::notify::Notify;

/// What the search for the runtime needs.
pub(super) struct Wait<'a> {
    pub(super) config: &'a Config,
    /// The node's name, and the pods that it has taken over.
    pub(super) identity: &'a Identity,
    pub(super) executor: &'a Rc<Executor>,
    pub(super) clock: &'a SharedClock,
    pub(super) blocking: &'a Rc<Blocking>,
    /// The first failure ends it.
    pub(super) once: bool,
    pub(super) metrics: &'a Metrics,
}

/// The runtime once it is ready; `None` if the agent is stopped before. Meanwhile requests on the local socket are answered.
pub(super) async fn wait_for_runtime(
    wait: &Wait<'_>,
    asked: &Receiver<Query>,
    stopped: &Receiver<Stop>,
    notify: &Notify,
) -> Result<Option<FoundRuntime>, String> {
    let why = RefCell::new("the agent looks for its container runtime".to_owned());
    let found = async { find_runtime(wait, &why, notify).await.map(Some) };
    let stop = async {
        loop {
            match stopped.recv().await {
                Ok(Stop::Agent | Stop::Pods) | Err(_) => break,
                // There is no known pod to terminate.
                Ok(Stop::Prepare(_) | Stop::Cancelled) => {}
            }
        }
        notify.stopping();
        Ok(None)
    };
    let meanwhile = smol::future::or(answer_meanwhile(asked, &why), notify.keep(wait.clock));
    smol::future::or(stop, smol::future::or(found, meanwhile)).await
}

/// Answers a request on the local socket while there is no runtime: with the reason, since no pods are known.
async fn answer_meanwhile<T>(asked: &Receiver<Query>, why: &RefCell<String>) -> T {
    while let Ok(query) = asked.recv().await {
        let answer = match query.question {
            Question::Health => Answer::Found("ok".to_owned()),
            Question::Pods(_)
            | Question::Describe { .. }
            | Question::Logs { .. }
            | Question::Metrics
            | Question::Top
            | Question::TopPods(_)
            | Question::Events(_)
            | Question::EventAfter(_)
            | Question::Stream(_)
            | Question::Debug(_) => Answer::NotFound(format!("{}\n", why.borrow())),
            // The node API's ports are open only while the loop runs.
            #[cfg(feature = "tls")]
            Question::Node(_) => Answer::NotFound(format!("{}\n", why.borrow())),
        };
        // Full or closed: the client disconnected.
        let _ = query.answer.try_send(answer);
    }
    std::future::pending().await
}

/// A runtime that is ready.
pub(super) struct FoundRuntime {
    pub(super) runtime: NodeRuntime,
    pub(super) version: RuntimeVersion,
    pub(super) handlers: Vec<RuntimeHandler>,
    /// The cgroup driver that it uses.
    pub(super) cgroup_driver: CgroupDriver,
}

/// Waits until the runtime answers and is ready; logs each reason once, when a runtime that is only being started would have
/// answered. With `Wait::once` the first failure ends the wait.
///
/// The kind of runtime is chosen anew at each try, until it is recorded: a runtime may be installed meanwhile.
async fn find_runtime(
    wait: &Wait<'_>,
    said: &RefCell<String>,
    notify: &Notify,
) -> Result<FoundRuntime, String> {
    let began = wait.clock.now().mono;
    let mut warned: Option<String> = None;
    let mut is_drained = wait.config.drain_runtime.is_none();
    loop {
        let error = match try_runtime(wait, &mut is_drained).await {
            Ok(found) => {
                notify.status("");
                return Ok(found);
            }
            Err(error) if wait.once => return Err(error),
            Err(error) => error,
        };
        let waited = wait.clock.now().mono.since(began);
        let warned = warned.get_or_insert_with(|| {
            log::info!("waiting for the container runtime");
            String::new()
        });
        if waited >= RUNTIME_START_PATIENCE && *warned != error {
            log::warn!("{error}; retrying");
            warned.clone_from(&error);
        }
        if *said.borrow() != error {
            notify.status(&error);
            said.replace(error);
        }
        wait.clock.sleep(search_pause(waited)).await;
    }
}

/// The wait until the next search. PURE.
fn search_pause(waited: Duration) -> Duration {
    (waited / RUNTIME_SEARCH_SHARE).clamp(RUNTIME_SEARCH_PERIOD, RELIST_RETRY_MAX)
}

/// One try: the runtime that is named, recorded or installed. The runtime that the node leaves is drained once.
async fn try_runtime(wait: &Wait<'_>, is_drained: &mut bool) -> Result<FoundRuntime, String> {
    let (config, executor, clock) = (wait.config, wait.executor, wait.clock);
    let (flag, root_dir, own) =
        (config.runtime_endpoint.clone(), config.root_dir.clone(), config.cri_socket());
    let joins_k3s = config.k3s.is_some();
    let choice =
        wait.blocking.run(move || choose_beside(flag.as_deref(), &root_dir, (&own, joins_k3s))).await?;
    if let Some(endpoint) = config.drain_runtime.as_deref().filter(|_| !*is_drained) {
        drain(endpoint, &choice, wait.identity, executor, clock).await?;
        *is_drained = true;
    }
    let kind = choice.kind();
    let found = match choice {
        RuntimeChoice::Sockets(candidates) => {
            connect(wait, &candidates).await.map_err(|error| error.to_string())?
        }
        RuntimeChoice::Embedded => embedded(wait).await?,
    };
    // k3s' containerd ends with `k3s agent`: the node is not bound to it, unless it is named, and then it need not be recorded.
    if is_of_k3s(&found.runtime) {
        return Ok(found);
    }
    let root_dir = config.root_dir.clone();
    if let Err(error) = wait.blocking.run(move || kind.record(&root_dir)).await {
        log::warn!("{error}; the kind of runtime is chosen anew at the next start");
    }
    Ok(found)
}

fn is_of_k3s(runtime: &NodeRuntime) -> bool {
    matches!(runtime, NodeRuntime::Cri(cri) if cri.socket() == Path::new(K3S_CONTAINERD))
}

/// A CRI runtime.
///
/// The cgroup driver is the runtime's (KEP-4033, `getCgroupDriverFromCRI`); the configured one is used if the runtime does not
/// have that call.
async fn connect(wait: &Wait<'_>, candidates: &Candidates) -> Result<FoundRuntime, EndpointError> {
    let (config, executor, clock) = (wait.config, wait.executor, wait.clock);
    let found = endpoint::find(candidates, executor, clock).await?;
    match endpoint::ready(&found.runtime).await {
        // As in the kubelet: pods with hostNetwork run without it, the others show the reason in their status.
        Err(error) if error.is_network() => log::warn!("{error}; pods with hostNetwork still run"),
        other => other?,
    }
    let driver = found.runtime.cgroup_driver().await;
    let driver = driver
        .map_err(|error| EndpointError::Failed(found.runtime.socket().to_path_buf(), error.to_string()))?;
    let cgroup_driver = driver.unwrap_or(config.cgroup_driver);
    if cgroup_driver != config.cgroup_driver {
        log::warn!(
            "using cgroup driver {} of the runtime; the configured {} is ignored",
            cgroup_driver.as_str(),
            config.cgroup_driver.as_str()
        );
    }
    log::info!(
        "runtime {} {} at {}",
        found.version.runtime_name,
        found.version.runtime_version,
        found.runtime.socket().display()
    );
    let record = LayerRecord::new(&config.root_dir, clock.boot_id());
    remove_doubted(&found.runtime, record, &wait.metrics.layers_removed, wait.blocking, clock).await;
    // A failed call counts as unsupported: the runtime was ready a moment ago.
    let handlers = found.runtime.status().await.map(|status| status.handlers).unwrap_or_default();
    let runtime = NodeRuntime::Cri(found.runtime.with_timeout(config.runtime_request_timeout));
    Ok(FoundRuntime { runtime, version: found.version, handlers, cgroup_driver })
}

/// The embedded runtime.
async fn embedded(wait: &Wait<'_>) -> Result<FoundRuntime, String> {
    let config = wait.config;
    let (clock, blocking) = (wait.clock.clone(), wait.blocking.clone());
    let of_settings = config.clone();
    let look = move || {
        let settings = facts::embedded_runtime(&of_settings);
        let conditions = readiness(&settings, None);
        (settings, conditions)
    };
    let (settings, conditions) = blocking.run(look).await;
    // Before anything is opened: a node without an OCI runtime would open it all again at each try.
    if let Some(not) = conditions.iter().find(|of| !of.status && &*of.kind == "RuntimeReady") {
        return Err(format!("the embedded runtime is not ready: {}", not.message));
    }
    process::raise_limits_of_containers();
    let store = ImageStore::open(&settings.images(), blocking.clone()).await;
    let store = store.map_err(|error| format!("the embedded runtime's images: {error}"))?;
    let hosts = Hosts {
        directories: config.embedded.registry_dirs.clone(),
        registries: config.embedded.registries.clone(),
        only_mirrors: config.embedded.only_mirrors,
        environment: Environment::of_process(),
    };
    let registries =
        Registries::new(hosts, Platform::of_this_machine(), clock.clone(), wait.blocking.clone());
    let images = StoredImages::new(store.clone(), registries, clock.clone());
    let opened = Embedded::open(settings, images, blocking, clock.clone(), wait.executor.clone());
    let runtime = Box::pin(opened).await.map_err(|error| format!("the embedded runtime: {error}"))?;
    let status = runtime.status().await.map_err(|error| error.to_string())?;
    for condition in status.conditions.iter().filter(|condition| !condition.status) {
        let why = &condition.message;
        match &*condition.kind {
            "NetworkReady" => {
                log::warn!("the embedded runtime is not ready: {why}; pods with hostNetwork still run");
            }
            // The image store has logged it, with the kernel's error.
            OVERLAY_CONDITION => {}
            _ => log::warn!("{why}"),
        }
    }
    // A task holds the runtime: none before nothing can fail any more, as a further try opens it again.
    let version = runtime.version().await.map_err(|error| error.to_string())?;
    let server = CriServer::bind(&config.cri_socket())?;
    let streams = runtime.serve_streams(wait.executor);
    let streams = streams.map_err(|error| format!("the embedded runtime's streaming server: {error}"))?;
    wait.executor.spawn("streaming server", streams).detach();
    let serving = server.run(Rc::new(runtime.clone()), wait.executor.clone(), clock.clone());
    wait.executor.spawn("CRI server", serving).detach();
    log::info!("runtime {} {}, embedded", version.runtime_name, version.runtime_version);
    Ok(FoundRuntime {
        runtime: NodeRuntime::Embedded(EmbeddedNode::new(runtime, store, &clock)),
        version,
        handlers: status.handlers,
        cgroup_driver: config.cgroup_driver,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;
    use crate::config::Flags;

    #[test]
    fn without_an_oci_runtime_nothing_is_opened() {
        let root = std::env::temp_dir().join(format!("smolet-no-runtime-{}", std::process::id()));
        let flags = Flags {
            root_dir: Some(root.clone()),
            oci_runtime: vec!["/nonexistent/crun".to_owned()],
            ..Flags::default()
        };
        let config = Config::load(&flags, Some(&root.join("run/smolet.sock"))).unwrap();
        let identity = Identity::open(&root, Some("node"), "").unwrap();
        let clock: SharedClock = Rc::new(SystemClock);
        let wait = Wait {
            config: &config,
            identity: &identity,
            executor: &Rc::new(Executor::new()),
            clock: &clock,
            blocking: &Rc::new(Blocking::on_this_thread()),
            once: true,
            metrics: &Metrics::default(),
        };
        let why = smol::block_on(embedded(&wait)).err().unwrap();
        assert!(why.contains("not ready: the OCI runtime /nonexistent/crun is not there"), "{why}");
        assert!(!root.join("runtime").exists() && !root.join("run").exists());
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn the_search_for_the_runtime_loses_little_of_a_boot() {
        for (waited_ms, pause_ms) in
            [(0, 250), (2_000, 250), (8_000, 500), (32_000, 2_000), (160_000, 10_000), (86_400_000, 10_000)]
        {
            let pause = search_pause(Duration::from_millis(waited_ms));
            assert_eq!(pause, Duration::from_millis(pause_ms), "after {waited_ms} ms");
        }
        let (mut waited, mut searches) = (Duration::ZERO, 0);
        while waited < Duration::from_mins(1) {
            waited += search_pause(waited);
            searches += 1;
        }
        assert!(searches < 70, "{searches} in a minute");
    }
}
