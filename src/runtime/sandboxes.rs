//! All [`Sandbox`]es: their namespaces, their network, their files, and the records by which they are found again.
//!
//! ```text
//!     run:     record (Making) ─► namespaces, files ─► CNI ADD ─► record (Ready)
//!     stop:    CNI DEL ─► namespaces released ─► record (NotReady)
//!     remove:  stop ─► directory removed
//! ```
//!
//! Each step may be the last one of this process. A sandbox that is found half-made is removed; every step back is idempotent.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use prost::Message as _;
use serde_json::Value;

use super::cni::{self, Asked, Attachment};
use super::context::{Context, failed, full, invalid, is_id, make_dir, not_now};
use super::makers;
use super::namespaces;
use super::oci_runtime::OciRuntime;
use super::pause::{self, PAUSE};
use super::pod_config;
use super::records::{self, SandboxPhase, SandboxRecord};
use super::sandbox::{HOSTNAME, RESOLV_CONF, Sandbox};
use super::selinux;
use super::users::{self, Owner, Users};
use super::verbose;
use crate::cri::{RuntimeError, RuntimeEventKind, RuntimeResult};
use crate::filesystem::read_start;
use crate::limits::{
    LOCK_RELEASE_TIME, REMOVAL_RETRY_MAX, REMOVAL_RETRY_MIN, RESOLV_CONF_BYTES_MAX, RUNTIME_ENTRIES_READ_MAX,
    SANDBOXES_MAX, WATCH_RETRY_PERIOD,
};
use crate::model::{SandboxId, SortedMap};
use crate::oci::SelinuxLabels;
use crate::proto::runtime::v1 as cri;

/// Of a network that releases what any pod may have had.
const ALL: Asked = Asked { ports: true, bandwidth: false };

/// All sandboxes.
pub(super) struct Sandboxes {
    context: Rc<Context>,
    all: RefCell<SortedMap<SandboxId, Rc<Sandbox>>>,
    /// The text of the network whose garbage was collected last.
    collected: RefCell<String>,
}

impl Sandboxes {
    /// Those whose records are there. Half-made ones are removed behind the start, and not ready until then, as those of an earlier boot.
    ///
    /// # Errors
    /// The directories cannot be read.
    pub(super) async fn open(context: Rc<Context>) -> RuntimeResult<Rc<Self>> {
        let (dir, run_dir) = (context.settings.sandboxes(), context.settings.sandboxes_run());
        let found = context.blocking(move || found(&dir, &run_dir)).await;
        let found = found.map_err(|error| failed(format!("the sandboxes' directories: {error}")))?;
        let sandboxes = Rc::new(Self {
            context: context.clone(),
            all: RefCell::default(),
            collected: RefCell::default(),
        });
        for (id, record) in found {
            let (is_torn, mut record) = (record.is_none(), record.unwrap_or_default());
            if is_torn {
                // It may have an address, which plugins release by its id (`detach`), and a first process.
                record.shares_pids = true;
            }
            let sandbox = Sandbox::new(SandboxId::from(&*id), record);
            sandboxes.all.borrow_mut().insert(sandbox.id().clone(), sandbox.clone());
            Box::pin(sandboxes.recover(&sandbox)).await;
        }
        Ok(sandboxes)
    }

    /// Of one whose record is torn its directory tells, which goes with the boot.
    async fn may_be_of_this_boot(&self, sandbox: &Rc<Sandbox>) -> bool {
        let dir = self.run_dir(sandbox.id());
        if sandbox.record.borrow().is_torn() {
            self.context.blocking(move || dir.exists()).await
        } else {
            sandbox.record.borrow().boot == self.context.boot
        }
    }

    async fn recover(self: &Rc<Self>, sandbox: &Rc<Sandbox>) {
        let phase = sandbox.record.borrow().phase;
        match phase {
            // Its processes and its namespaces ended with the boot; what its plugins have left is released behind the start of the others.
            // Removed behind the start: its plugins may take a minute each. It is listed, so that it does not keep its pod's next one from
            // being made, and can be removed.
            SandboxPhase::Making => {
                sandbox.has_makers.set(self.may_be_of_this_boot(sandbox).await);
                sandbox.record.borrow_mut().phase = SandboxPhase::NotReady;
                self.remove_later(sandbox);
            }
            SandboxPhase::Ready => {
                if self.is_intact(sandbox).await {
                    return;
                }
                let why = if sandbox.record.borrow().boot == self.context.boot {
                    "its first process or its network namespace is gone"
                } else {
                    "the machine was restarted"
                };
                log::info!("sandbox {}: {why}; it is not ready any more", sandbox.id());
                // Its network is released when it is stopped: at the start this would take a second for each pod.
                sandbox.record.borrow_mut().phase = SandboxPhase::NotReady;
                if let Err(error) = self.write(sandbox).await {
                    log::warn!("sandbox {}: {error}", sandbox.id());
                }
            }
            SandboxPhase::NotReady => {}
        }
    }

    /// Removes a half-made one, as nobody else may know of it; the pause between two tries doubles.
    fn remove_later(self: &Rc<Self>, sandbox: &Rc<Sandbox>) {
        let (weak, id, clock) = (Rc::downgrade(self), sandbox.id().clone(), self.context.clock.clone());
        let again = async move {
            let (mut pause, mut level) = (Duration::ZERO, log::Level::Warn);
            loop {
                clock.sleep(pause).await;
                pause = (pause * 2).clamp(REMOVAL_RETRY_MIN, REMOVAL_RETRY_MAX);
                let Some(sandboxes) = weak.upgrade() else { return };
                // Removed by who listed it.
                let Some(sandbox) = sandboxes.find(id.as_str()) else { return };
                let _turn = sandbox.turn().write().await;
                match sandboxes.remove(&sandbox).await {
                    Ok(()) => return log::info!("sandbox {id}: half-made, and removed now"),
                    Err(error) => log::log!(level, "{error}; half-made, and not removed; retrying"),
                }
                level = log::Level::Debug;
            }
        };
        drop(self.context.to_the_end("half-made sandbox", again));
    }

    /// Ends what a former agent has begun for it: afterwards nothing adds to it.
    async fn end_makers(&self, sandbox: &Sandbox) {
        let id = sandbox.id().as_str();
        if sandbox.shares_pids() {
            makers::end(&self.context, id, &self.run_dir(sandbox.id()).join(PAUSE)).await;
        }
        makers::end_plugins(&self.context, id).await;
    }

    /// Looks at the first process of that sandbox, if it has one, behind the caller's back.
    pub(super) fn look_soon(self: &Rc<Self>, id: &str) {
        let Some(sandbox) = self.all.borrow().get(id).cloned() else { return };
        if !sandbox.is_ready() || !sandbox.shares_pids() || sandbox.expect_look() {
            return;
        }
        let sandboxes = self.clone();
        let look = async move {
            sandboxes.look(&sandbox).await;
            if sandbox.is_ready() {
                // As of a container: the lock's end may follow its event.
                sandboxes.context.clock.sleep(LOCK_RELEASE_TIME).await;
                sandboxes.look(&sandbox).await;
            }
        };
        drop(self.context.to_the_end("first process of a sandbox", look));
    }

    /// The same for all.
    pub(super) fn look_at_all_soon(self: &Rc<Self>) {
        for sandbox in self.all() {
            self.look_soon(sandbox.id().as_str());
        }
    }

    /// A sandbox whose first process has ended is not ready any more: its containers have ended too, and no further one can be made. A
    /// monitor that was killed is replaced; where it cannot be, this is tried again until the sandbox is stopped.
    async fn look(&self, sandbox: &Rc<Sandbox>) {
        let _looking = sandbox.begin_look().await;
        loop {
            let run_dir = self.run_dir(sandbox.id());
            let seen = self.context.blocking(move || pause::seen(&run_dir)).await;
            if !sandbox.is_ready() {
                return;
            }
            match seen {
                pause::Seen::Runs => return,
                pause::Seen::Ended => {
                    log::warn!(
                        "sandbox {}: its first process has ended; it is not ready any more",
                        sandbox.id()
                    );
                    return self.set_not_ready(sandbox).await;
                }
                pause::Seen::Abandoned => {
                    match self.context.adopt(self.run_dir(sandbox.id()).join(PAUSE)).await {
                        Ok(_) => return,
                        // Another agent's try, or one that is over.
                        Err(error) => log::debug!("sandbox {}: {error}", sandbox.id()),
                    }
                    self.context.clock.sleep(WATCH_RETRY_PERIOD).await;
                }
            }
        }
    }

    /// Says that it is not ready any more, if nobody has said so.
    async fn set_not_ready(&self, sandbox: &Sandbox) {
        if !sandbox.is_ready() {
            return;
        }
        sandbox.record.borrow_mut().phase = SandboxPhase::NotReady;
        self.context.events.publish(RuntimeEventKind::Exited, sandbox.id().as_str(), &sandbox.pod_uid());
        if let Err(error) = self.write(sandbox).await {
            // A full disk must not keep it from being stopped: whether it is intact is looked at after a restart.
            log::warn!("sandbox {}: {error}", sandbox.id());
        }
    }

    /// Its namespaces are those of its creation.
    async fn is_intact(&self, sandbox: &Sandbox) -> bool {
        if sandbox.record.borrow().boot != self.context.boot {
            return false;
        }
        let of = pod_config::namespaces(&sandbox.config());
        let dir = self.run_dir(sandbox.id());
        let is_intact = move || {
            let has_network = of.host_network || namespaces::pinned_net(&dir)?.is_some();
            std::io::Result::Ok(has_network && (!of.shares_pids || pause::runs(&dir)))
        };
        self.context.blocking(is_intact).await.unwrap_or_else(|error| {
            log::warn!("sandbox {}: its network namespace: {error}; it counts as ready", sandbox.id());
            true
        })
    }

    fn dir(&self, id: &SandboxId) -> PathBuf {
        self.context.settings.sandboxes().join(id.as_str())
    }

    /// Its namespaces.
    pub(super) fn run_dir(&self, id: &SandboxId) -> PathBuf {
        self.context.settings.sandboxes_run().join(id.as_str())
    }

    /// A file that its containers have mounted.
    pub(super) fn file(&self, id: &SandboxId, name: &str) -> PathBuf {
        self.dir(id).join(name)
    }

    pub(super) fn all(&self) -> Vec<Rc<Sandbox>> {
        self.all.borrow().values().cloned().collect()
    }

    /// The sandbox with that id, or the only one whose id begins so.
    pub(super) fn find(&self, id: &str) -> Option<Rc<Sandbox>> {
        let all = self.all.borrow();
        if let Some(found) = all.get(id) {
            return Some(found.clone());
        }
        let mut begin =
            all.values().filter(|sandbox| !id.is_empty() && sandbox.id().as_str().starts_with(id));
        let found = begin.next()?;
        begin.next().is_none().then(|| found.clone())
    }

    /// The sandbox of that pod which was made last.
    pub(super) fn newest_of(&self, pod: &str) -> Option<Rc<Sandbox>> {
        let all = self.all.borrow();
        let of_pod = all.values().filter(|sandbox| sandbox.pod_uid() == pod);
        of_pod.max_by_key(|sandbox| sandbox.record.borrow().created_at).cloned()
    }

    /// The same of one that is known to exist.
    ///
    /// # Errors
    /// It does not exist.
    pub(super) fn existing(&self, id: &str) -> RuntimeResult<Rc<Sandbox>> {
        self.find(id).ok_or_else(|| RuntimeError::NotFound(format!("pod sandbox {id:?} does not exist")))
    }

    async fn write(&self, sandbox: &Sandbox) -> RuntimeResult<()> {
        let _writing = sandbox.writing().lock().await;
        let record = sandbox.record.borrow().clone();
        self.context.write(self.dir(sandbox.id()), record).await
    }

    /// The text of the node's network.
    async fn network(&self, asked: Asked) -> RuntimeResult<String> {
        let (settings, pod_cidr) = (self.context.settings.clone(), self.context.pod_cidr.borrow().clone());
        let loaded = self.context.blocking(move || cni::load(&settings, &pod_cidr, asked)).await;
        loaded.map_err(|error| failed(error.to_string()))
    }

    /// `RunPodSandbox`.
    ///
    /// # Errors
    /// The configuration is refused; a namespace or the network cannot be made.
    pub(super) async fn run(
        self: &Rc<Self>,
        config: cri::PodSandboxConfig,
        handler: &str,
    ) -> RuntimeResult<Rc<Sandbox>> {
        let Some(metadata) = &config.metadata else { return Err(invalid("config.metadata is missing")) };
        let named = format!("sandbox of pod {}/{}", metadata.namespace, metadata.name);
        let refused = |why: String| invalid(format!("{named}: {why}"));
        if !self.context.settings.handlers.contains_key(handler) {
            return Err(refused(match handler {
                "" => "there is no OCI runtime; apt install crun, or runc".to_owned(),
                _ => format!("runtime handler {handler:?} is not configured"),
            }));
        }
        let mut wanted = pod_config::wanted(&config).map_err(refused)?;
        // The pod's interface is there once the pod is in its network (`net/ipv4/conf/eth0/…`).
        let is_of_interface =
            |(path, _): &mut (String, String)| path.split('/').any(|part| part == cni::INTERFACE);
        let of_interface: Vec<_> = wanted.sysctls.extract_if(.., is_of_interface).collect();
        let asked = Asked::by(&cni::capabilities(&config).map_err(refused)?);
        let of = pod_config::namespaces(&config);
        let network = if of.host_network { String::new() } else { self.network(asked).await? };
        self.collect_garbage_of(&network);
        let of_node = selinux::of_node(&self.context).await?;
        let id = SandboxId::from(self.context.new_id().await?);
        let labels = of_node.map(|labels| self.labels(&labels, &config, &id)).unwrap_or_default();
        let record = SandboxRecord {
            phase: SandboxPhase::Making,
            created_at: self.context.now(),
            boot: self.context.boot.clone(),
            handler: handler.into(),
            config: config.encode_to_vec(),
            network,
            shares_pids: of.shares_pids,
            oci_runtime: self.context.settings.path_of(handler),
            process_label: labels.process.into(),
            mount_label: labels.mount.into(),
            ..SandboxRecord::default()
        };
        let sandbox = Sandbox::new(id, record);
        self.reserve(&sandbox, metadata)?;
        let made = Box::pin(async {
            if let Some(labels) = sandbox.selinux() {
                selinux::check(&self.context, &labels).await?;
            }
            self.make(&sandbox, &config, wanted).await?;
            self.attach(&sandbox, &config).await?;
            if !of_interface.is_empty() {
                let net = self.run_dir(sandbox.id()).join(namespaces::NET);
                let set = self.context.blocking(move || namespaces::set_sysctls(&net, of_interface)).await;
                set.map_err(|error| failed(error.to_string()))?;
            }
            if of.shares_pids {
                pause::start(&self.context, &sandbox, &config, self.run_dir(sandbox.id())).await?;
            }
            RuntimeResult::Ok(())
        });
        match made.await {
            Ok(()) => Ok(sandbox),
            Err(error) => {
                self.give_up(&sandbox).await;
                Err(failed(format!("{named}: {error}")))
            }
        }
    }

    /// The `SELinux` labels of a new sandbox: no other one has its level.
    fn labels(
        &self,
        of_node: &SelinuxLabels,
        config: &cri::PodSandboxConfig,
        id: &SandboxId,
    ) -> SelinuxLabels {
        let context = config.linux.as_ref().and_then(|linux| linux.security_context.as_ref());
        let options = context.and_then(|context| context.selinux_options.as_ref());
        let taken: Vec<SelinuxLabels> = self.all.borrow().values().filter_map(|of| of.selinux()).collect();
        // Its id is a random number.
        let start = u32::from_str_radix(id.as_str().get(..8).unwrap_or_default(), 16).unwrap_or_default();
        of_node.of_sandbox(options, |level| taken.iter().any(|labels| labels.level() == level), start)
    }

    /// Removes one that cannot be made to the end.
    async fn give_up(&self, sandbox: &Rc<Sandbox>) {
        if let Err(left) = self.remove(sandbox).await {
            log::warn!("sandbox {}: {left}; what was made of it is removed later", sandbox.id());
            sandbox.record.borrow_mut().phase = SandboxPhase::NotReady;
        }
    }

    /// Says that it is complete: from now on it is listed.
    ///
    /// # Errors
    /// The record cannot be written: it is removed, as the next start of the agent would do with it and its containers.
    pub(super) async fn set_ready(&self, sandbox: &Rc<Sandbox>) -> RuntimeResult<()> {
        sandbox.record.borrow_mut().phase = SandboxPhase::Ready;
        if let Err(error) = self.write(sandbox).await {
            sandbox.record.borrow_mut().phase = SandboxPhase::Making;
            self.give_up(sandbox).await;
            return Err(error);
        }
        for kind in [RuntimeEventKind::Created, RuntimeEventKind::Started] {
            self.context.events.publish(kind, sandbox.id().as_str(), &sandbox.pod_uid());
        }
        Ok(())
    }

    /// Takes a place among the sandboxes: one for each attempt of a pod, as containerd reserves names.
    fn reserve(&self, sandbox: &Rc<Sandbox>, metadata: &cri::PodSandboxMetadata) -> RuntimeResult<()> {
        let mut all = self.all.borrow_mut();
        if all.len() >= SANDBOXES_MAX {
            return Err(full(format!("there are {SANDBOXES_MAX} sandboxes; remove ended ones")));
        }
        let same = all.values().find(|other| other.config().metadata.as_ref() == Some(metadata));
        if let Some(other) = same {
            return Err(not_now(format!(
                "sandbox {} is attempt {} of pod {}/{} already; remove it first",
                other.id(),
                metadata.attempt,
                metadata.namespace,
                metadata.name
            )));
        }
        all.insert(sandbox.id().clone(), sandbox.clone());
        Ok(())
    }

    async fn make(
        &self,
        sandbox: &Sandbox,
        config: &cri::PodSandboxConfig,
        wanted: namespaces::Wanted,
    ) -> RuntimeResult<()> {
        let (dir, run_dir) = (self.dir(sandbox.id()), self.run_dir(sandbox.id()));
        let made = dir.clone();
        let shown = dir.display().to_string();
        let unmade = |error: std::io::Error| failed(format!("{shown}: {error}"));
        self.context.blocking(move || make_dir(&made)).await.map_err(unmade)?;
        self.write(sandbox).await?;
        let resolv_conf = pod_config::resolv_conf(config);
        let hostname = if config.hostname.is_empty() {
            self.context.node.hostname.clone()
        } else {
            config.hostname.clone()
        };
        let root = wanted.users.as_ref().map(Users::root);
        self.context
            .blocking(move || write_files(&dir, resolv_conf, &hostname, root))
            .await
            .map_err(unmade)?;
        let program = self.context.settings.program.clone();
        let spaces = self.context.blocking(move || namespaces::make(&run_dir, &wanted, &program)).await;
        spaces.map_err(|error| failed(error.to_string()))
    }

    async fn attach(&self, sandbox: &Sandbox, config: &cri::PodSandboxConfig) -> RuntimeResult<()> {
        let text = sandbox.record.borrow().network.clone();
        if text.is_empty() {
            return Ok(());
        }
        let network = cni::kept(&text).map_err(|error| failed(error.to_string()))?;
        let attachment = self.attachment(sandbox, config).await?;
        let added = self.context.plugins.add(&network, &attachment).await;
        let result = added.map_err(|error| failed(error.to_string()))?;
        let addresses = cni::addresses(&result);
        if addresses.is_empty() {
            return Err(failed("the CNI plugins gave the pod no address; check the network's ipam"));
        }
        let mut record = sandbox.record.borrow_mut();
        record.network_result = result.to_string();
        record.addresses = addresses;
        Ok(())
    }

    async fn attachment(
        &self,
        sandbox: &Sandbox,
        config: &cri::PodSandboxConfig,
    ) -> RuntimeResult<Attachment> {
        let run_dir = self.run_dir(sandbox.id());
        let metadata = config.metadata.clone().unwrap_or_default();
        let pinned = self.context.blocking(move || namespaces::pinned_net(&run_dir)).await;
        let namespace = pinned
            .map_err(|error| failed(format!("sandbox {}: its network namespace: {error}", sandbox.id())))?;
        Ok(Attachment {
            container: sandbox.id().as_str().into(),
            namespace,
            arguments: cni::arguments(sandbox.id().as_str(), &metadata),
            // They were checked before it was made.
            capabilities: cni::capabilities(config).unwrap_or_default(),
        })
    }

    /// CNI CHECK of its network. One that is being stopped has none, and plugins are not to run for it twice at once.
    ///
    /// # Errors
    /// The plugins'.
    pub(super) async fn check_network(&self, sandbox: &Sandbox) -> RuntimeResult<()> {
        let turn = sandbox.turn().try_read().filter(|_| sandbox.is_ready());
        let Some(_turn) = turn else { return Ok(()) };
        let (text, result) = {
            let record = sandbox.record.borrow();
            (record.network.clone(), record.network_result.clone())
        };
        if text.is_empty() {
            return Ok(());
        }
        let network = cni::kept(&text).map_err(|error| failed(error.to_string()))?;
        let result: Value = serde_json::from_str(&result).unwrap_or_default();
        let attachment = self.attachment(sandbox, &sandbox.config()).await?;
        let checked = self.context.plugins.check(&network, &attachment, &result).await;
        checked.map_err(|error| failed(format!("sandbox {}: {error}", sandbox.id())))
    }

    /// Lets the node's plugins remove what belongs to no sandbox (CNI 1.1), behind the caller's back. While there is no network yet, this is
    /// done for the first sandbox that has one.
    pub(super) fn collect_garbage_later(self: &Rc<Self>) {
        let sandboxes = self.clone();
        let look = async move {
            if let Ok(network) = sandboxes.network(ALL).await {
                sandboxes.collect_garbage_of(&network);
            }
        };
        drop(self.context.to_the_end("CNI garbage collection", look));
    }

    /// The same of that network, once until the configuration changes; again where a plugin is not installed yet. Not where another runtime
    /// may use it: its sandboxes are not known here, and would lose theirs.
    fn collect_garbage_of(self: &Rc<Self>, text: &str) {
        if self.context.settings.is_cni_shared || *self.collected.borrow() == text {
            return;
        }
        // One on the node's network has no text.
        let Ok(network) = cni::kept(text) else { return };
        self.collected.replace(text.to_owned());
        let sandboxes = self.clone();
        let collect = async move {
            let ids = || sandboxes.all().iter().map(|of| of.id().as_str().into()).collect();
            if let Err(error) = sandboxes.context.plugins.collect_garbage(&network, ids).await {
                log::warn!("{error}; addresses of former pods may stay reserved");
                if error.lacks().is_some() {
                    sandboxes.collected.take();
                }
            }
        };
        drop(self.context.to_the_end("CNI garbage collection", collect));
    }

    /// Releases network and namespaces. Idempotent. Its containers have ended, and nobody else works on it.
    ///
    /// # Errors
    /// A plugin's, the kernel's. What is left is released by the next call.
    pub(super) async fn stop(&self, sandbox: &Rc<Sandbox>) -> RuntimeResult<()> {
        self.set_not_ready(sandbox).await;
        if sandbox.has_makers.take() {
            self.end_makers(sandbox).await;
        }
        if sandbox.shares_pids() {
            let runtime = OciRuntime::kept(&self.context, &sandbox.oci_runtime(), &sandbox.handler());
            let run_dir = self.run_dir(sandbox.id());
            Box::pin(pause::end(&self.context, sandbox.id().as_str(), runtime, &run_dir)).await?;
        }
        Box::pin(self.detach(sandbox)).await?;
        let run_dir = self.run_dir(sandbox.id());
        let released = self.context.blocking(move || namespaces::release(&run_dir)).await;
        released.map_err(|error| failed(format!("sandbox {}: {error}", sandbox.id())))
    }

    /// Whether a sandbox is released though its plugins fail, so that its pod does not stay for ever when the node's network is another
    /// one now: one that was never attached (containerd's `stopPodSandbox` always releases it), and one whose plugin is not installed any
    /// more; else one whose namespace has gone with what was in it (go-cni's `Remove`).
    async fn goes_without(&self, sandbox: &Sandbox, error: &cni::CniError, has_namespace: bool) -> bool {
        if !has_namespace && error.says_gone() {
            return true;
        }
        let config = sandbox.config();
        let asked = cni::capabilities(&config).map_or(ALL, |capabilities| Asked::by(&capabilities));
        let Ok(now) = self.network(asked).await else { return false };
        let Ok(network) = cni::kept(&now) else { return false };
        let record = sandbox.record.borrow();
        // Of a torn record nobody knows whether it was attached.
        let was_attached = !record.network_result.is_empty() || record.is_torn();
        let is_former = record.network != now;
        is_former
            && (!was_attached || error.lacks().is_some_and(|lacking| !network.programs().contains(&lacking)))
    }

    async fn detach(&self, sandbox: &Rc<Sandbox>) -> RuntimeResult<()> {
        let (text, result) = {
            let record = sandbox.record.borrow();
            (record.network.clone(), record.network_result.clone())
        };
        let text = if !text.is_empty() {
            text
        } else if sandbox.record.borrow().is_torn() {
            // Nobody knows which network it had. While the node's cannot be read this fails, and is tried again.
            self.network(ALL).await?
        } else {
            return Ok(());
        };
        let blame = |error: cni::CniError| failed(format!("sandbox {}: {error}", sandbox.id()));
        let network = cni::kept(&text).map_err(blame)?;
        let attachment = self.attachment(sandbox, &sandbox.config()).await?;
        let result: Option<Value> = serde_json::from_str(&result).ok();
        if let Err(error) = self.context.plugins.delete(&network, &attachment, result.as_ref()).await {
            if !self.goes_without(sandbox, &error, attachment.namespace.is_some()).await {
                return Err(blame(error));
            }
            log::warn!(
                "sandbox {}: {error}; it is released, and what its plugins have made may be left",
                sandbox.id()
            );
        }
        {
            let mut record = sandbox.record.borrow_mut();
            record.network = String::new();
            record.network_result = String::new();
        }
        // A record that is not there any more, or never was, is that of a half-made sandbox.
        let dir = self.dir(sandbox.id());
        if self.context.blocking(move || dir.is_dir()).await
            && let Err(error) = self.write(sandbox).await
        {
            // The next release does nothing: plugins have released it.
            log::warn!("sandbox {}: {error}", sandbox.id());
        }
        Ok(())
    }

    /// Stops and forgets it. Its containers are removed, and nobody else works on it.
    ///
    /// # Errors
    /// As [`Sandboxes::stop`]; the file system's.
    pub(super) async fn remove(&self, sandbox: &Rc<Sandbox>) -> RuntimeResult<()> {
        self.stop(sandbox).await?;
        let dir = self.dir(sandbox.id());
        let removed = self.context.blocking(move || namespaces::remove_dir(&dir)).await;
        removed.map_err(|error| failed(format!("sandbox {}: its directory: {error}", sandbox.id())))?;
        self.all.borrow_mut().remove(sandbox.id());
        let was_made = sandbox.record.borrow().phase != SandboxPhase::Making;
        if was_made {
            self.context.events.publish(RuntimeEventKind::Deleted, sandbox.id().as_str(), &sandbox.pod_uid());
        }
        Ok(())
    }

    /// What a verbose `PodSandboxStatus` has beside the status.
    pub(super) async fn info(&self, sandbox: &Sandbox) -> verbose::Info {
        let (record, run_dir) = (sandbox.record.borrow().clone(), self.run_dir(sandbox.id()));
        let look = move || {
            let is_pinned = |path: &Path| crate::mounts::is_mounted(path).unwrap_or_default();
            let pid = if record.shares_pids { pause::pid(&run_dir) } else { 0 };
            verbose::sandbox(&record, pid, &run_dir, is_pinned)
        };
        self.context.blocking(look).await
    }

    /// `ListPodSandbox`.
    pub(super) fn list(&self, filter: Option<&cri::PodSandboxFilter>) -> Vec<cri::PodSandbox> {
        self.all.borrow().values().filter_map(|sandbox| sandbox.item(filter)).collect()
    }
}

fn write_files(
    dir: &Path,
    resolv_conf: Option<String>,
    hostname: &str,
    root: Option<Owner>,
) -> std::io::Result<()> {
    let resolv_conf = resolv_conf.unwrap_or_else(|| {
        // Without the node's file the pod has no name servers, as the node.
        let node = read_start(Path::new(crate::paths::RESOLV_CONF), RESOLV_CONF_BYTES_MAX);
        String::from_utf8_lossy(&node.unwrap_or_default()).into_owned()
    });
    for (name, text) in [(RESOLV_CONF, resolv_conf), (HOSTNAME, format!("{hostname}\n"))] {
        namespaces::write_mounted(&dir.join(name), &text)?;
        root.map_or(Ok(()), |root| users::give(&dir.join(name), root))?;
    }
    Ok(())
}

/// Ids of sandboxes, with their records; `None` for one without a readable record.
type Found = Vec<(String, Option<SandboxRecord>)>;

/// Reads the directories of sandboxes, which are made if they are not there. Blocking.
fn found(dir: &Path, run_dir: &Path) -> std::io::Result<Found> {
    let mut found: Found = Vec::new();
    for at in [dir, run_dir] {
        make_dir(at)?;
        for entry in std::fs::read_dir(at)?.take(RUNTIME_ENTRIES_READ_MAX) {
            let Ok(id) = entry?.file_name().into_string() else { continue };
            if !is_id(&id) || found.iter().any(|(known, _)| *known == id) {
                continue;
            }
            let record = records::read(&dir.join(&id));
            let record = record.map_err(|error| std::io::Error::other(format!("{id}: {error}")))?;
            found.push((id, record));
        }
    }
    Ok(found)
}
