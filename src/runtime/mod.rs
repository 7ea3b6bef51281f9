//! The embedded container runtime: sandboxes and containers through an OCI runtime and CNI plugins, which are executed.
//!
//! ```text
//!     Embedded ─► Sandboxes   namespaces, network, files of pods
//!              ─► Containers  root file systems, monitors, OCI runtime
//! ```
//!
//! The state is the directories' below `Settings::root_dir` and `run_dir`: what is in memory is read from there at the start. Every
//! operation writes its intention first, and every step back is idempotent, so that SIGKILL at any instant leaves nothing that the
//! next start does not find.

mod apparmor;
mod archives;
mod cgroups;
mod checkpoint;
mod cni;
mod command;
mod conditions;
mod console;
mod container;
mod container_calls;
mod context;
mod create;
mod ends;
mod events;
mod exec;
mod force;
mod host;
mod images;
mod links;
mod makers;
mod metrics;
mod monitors;
mod namespaces;
mod oci_runtime;
mod pause;
mod pod_config;
mod process;
mod records;
mod recovery;
mod sandbox;
mod sandboxes;
mod selinux;
mod service;
mod settings;
mod spec;
mod stats;
mod status;
mod stored_images;
mod streams;
mod users;
mod verbose;
mod volumes;
mod watch;

use std::rc::Rc;

use crate::blocking::Blocking;
use crate::clock::SharedClock;
use crate::cri::{RuntimeEvent, RuntimeResult};
use crate::executor::Executor;
use crate::filesystem::read_bounded;
use crate::limits::{KEPT_POD_CIDR_BYTES_MAX, NETWORK_CHECKS_TIME, NETWORK_FAULTS_MAX};
use crate::model::ContainerId;
use crate::oci::{NodeFacts, RuntimeFeatures};
use crate::proto::runtime::v1 as cri;
use crate::render::CgroupDriver;
use container::Containers;
use context::{Context, full, invalid};
use exec::Execs;
use sandbox::Sandbox;
use sandboxes::Sandboxes;

pub use apparmor::lacks_apparmor_parser;
pub use conditions::{
    OVERLAY_CONDITION, POD_NETWORK_CONDITION, POD_NETWORK_UNKNOWN_CONDITION, overlay, readiness,
};
pub use host::cgroup_version;
pub use images::{FoundImage, Images, Local};
pub use pause::main as pause_main;
pub use selinux::{CONDITION as SELINUX_CONDITION, is_enabled as is_selinux_enabled};
pub use settings::{Settings, find_oci_runtime, find_program};
pub use stored_images::StoredImages;
pub use users::main as user_namespace_main;

/// The embedded runtime. Clones are the same one.
#[derive(Clone)]
pub struct Embedded {
    context: Rc<Context>,
    sandboxes: Rc<Sandboxes>,
    containers: Rc<Containers>,
    execs: Rc<Execs>,
    /// They end with the last clone.
    _tasks: Rc<[Option<smol::Task<()>>; 2]>,
}

#[allow(clippy::unused_async, reason = "every call of the CRI is awaited, whatever it does")]
impl Embedded {
    /// Opens the runtime in its directories: what is there is taken over, what is half-made is removed.
    ///
    /// # Errors
    /// The directories cannot be read or made.
    pub async fn open(
        settings: Settings,
        images: Rc<dyn Images>,
        blocking: Rc<Blocking>,
        clock: SharedClock,
        executor: Rc<Executor>,
    ) -> RuntimeResult<Self> {
        let mounts = settings.cgroup_mounts.clone();
        let features = oci_runtime::features(&settings, &blocking, &clock).await;
        let of_default = features.get("").copied().unwrap_or_default();
        let node = move || NodeFacts::read(host::cgroup_version(&mounts), of_default);
        let node = blocking.run(node).await.map_err(|error| context::failed(format!("/proc: {error}")))?;
        let context = Rc::new(Context::new(settings, blocking, clock, executor, (node, features)));
        let settings = context.settings.clone();
        let begin = move || {
            let was_cut = checkpoint::sweep(&settings);
            (was_cut, read_bounded(&settings.pod_cidr(), KEPT_POD_CIDR_BYTES_MAX).unwrap_or_default())
        };
        let (was_cut, kept) = context.blocking(begin).await;
        *context.pod_cidr.borrow_mut() = String::from_utf8(kept).unwrap_or_default();
        Box::pin(makers::end_commands(&context)).await;
        let sandboxes = Box::pin(Sandboxes::open(context.clone())).await?;
        let containers = Containers::new(context.clone(), images);
        let containers = containers.map_err(|error| container_calls::no_inotify(&error))?;
        let ends = container_calls::follow_ends(&containers, &sandboxes);
        Box::pin(recovery::recover(&containers, &sandboxes)).await?;
        sandboxes.collect_garbage_later();
        let swept = was_cut.then(|| checkpoint::sweep_later(&containers));
        Ok(Self {
            context,
            sandboxes,
            containers,
            execs: Rc::default(),
            _tasks: Rc::new([Some(ends), swept]),
        })
    }

    /// `RunPodSandbox`.
    ///
    /// # Errors
    /// The configuration is refused; a namespace or the network cannot be made.
    pub async fn run_pod_sandbox_cri(
        &self,
        request: cri::RunPodSandboxRequest,
    ) -> RuntimeResult<cri::RunPodSandboxResponse> {
        let runtime = self.clone();
        let run = async move {
            let Some(config) = request.config else { return Err(invalid("config is missing")) };
            let sandbox = runtime.sandboxes.run(config, &request.runtime_handler).await?;
            let id = ContainerId::from(sandbox.id().as_str());
            ends::watch(&runtime.containers, Some(&runtime.sandboxes), &id).await;
            runtime.sandboxes.set_ready(&sandbox).await?;
            runtime.sandboxes.look_soon(sandbox.id().as_str());
            Ok(cri::RunPodSandboxResponse { pod_sandbox_id: sandbox.id().to_string() })
        };
        self.context.to_the_end("run sandbox", run).await
    }

    /// `StopPodSandbox`; idempotent.
    ///
    /// # Errors
    /// A container's or the network's; a further call goes on.
    pub async fn stop_pod_sandbox_cri(
        &self,
        request: cri::StopPodSandboxRequest,
    ) -> RuntimeResult<cri::StopPodSandboxResponse> {
        let Some(sandbox) = self.sandboxes.find(&request.pod_sandbox_id) else {
            return Ok(cri::StopPodSandboxResponse {});
        };
        let runtime = self.clone();
        let stop = async move {
            let _turn = sandbox.turn().write().await;
            runtime.stop_sandbox(&sandbox).await
        };
        self.context.to_the_end("stop sandbox", stop).await?;
        Ok(cri::StopPodSandboxResponse {})
    }

    /// `RemovePodSandbox`; idempotent. Its containers are stopped and removed.
    ///
    /// # Errors
    /// As for [`Embedded::stop_pod_sandbox_cri`].
    pub async fn remove_pod_sandbox_cri(
        &self,
        request: cri::RemovePodSandboxRequest,
    ) -> RuntimeResult<cri::RemovePodSandboxResponse> {
        let Some(sandbox) = self.sandboxes.find(&request.pod_sandbox_id) else {
            return Ok(cri::RemovePodSandboxResponse {});
        };
        let runtime = self.clone();
        let remove = async move {
            let _turn = sandbox.turn().write().await;
            if runtime.sandboxes.find(sandbox.id().as_str()).is_none() {
                return Ok(());
            }
            runtime.containers.remove_all(&sandbox).await?;
            runtime.sandboxes.remove(&sandbox).await
        };
        self.context.to_the_end("remove sandbox", remove).await?;
        Ok(cri::RemovePodSandboxResponse {})
    }

    async fn stop_sandbox(&self, sandbox: &Rc<Sandbox>) -> RuntimeResult<()> {
        self.containers.stop_all(sandbox).await?;
        self.sandboxes.stop(sandbox).await
    }

    /// `PodSandboxStatus`, with the statuses of all its containers at that moment: a kubelet with `EventedPLEG` asks for no others where there
    /// is a timestamp (`GetPodStatus`).
    ///
    /// # Errors
    /// It does not exist.
    pub async fn pod_sandbox_status_cri(
        &self,
        request: cri::PodSandboxStatusRequest,
    ) -> RuntimeResult<cri::PodSandboxStatusResponse> {
        let sandbox = self.sandboxes.existing(&request.pod_sandbox_id)?;
        let info = if request.verbose { self.sandboxes.info(&sandbox).await } else { verbose::Info::new() };
        Ok(cri::PodSandboxStatusResponse {
            status: Some(sandbox.status()),
            timestamp: self.context.now(),
            containers_statuses: self.statuses_of(&sandbox),
            info,
        })
    }

    /// `ListPodSandbox`.
    ///
    /// # Errors
    /// None.
    pub async fn list_pod_sandbox_cri(
        &self,
        request: cri::ListPodSandboxRequest,
    ) -> RuntimeResult<cri::ListPodSandboxResponse> {
        Ok(cri::ListPodSandboxResponse { items: self.sandboxes.list(request.filter.as_ref()) })
    }

    /// CNI CHECK of all pods' networks, one after the other: a condition for each that is not as it was made, [`NETWORK_FAULTS_MAX`] at most.
    /// After [`NETWORK_CHECKS_TIME`] no further one is begun. It is no method of the CRI; `smolet doctor` asks for it.
    ///
    /// # Errors
    /// None.
    pub async fn check_networks_cri(
        &self,
        _request: cri::StatusRequest,
    ) -> RuntimeResult<cri::StatusResponse> {
        let clock = &self.context.clock;
        let (end, mut conditions) = (clock.now().mono + NETWORK_CHECKS_TIME, Vec::new());
        for sandbox in self.sandboxes.all().iter().filter(|sandbox| sandbox.is_ready()) {
            if clock.now().mono >= end {
                conditions.push(conditions::pod_network(
                    sandbox,
                    POD_NETWORK_UNKNOWN_CONDITION,
                    &"not checked",
                ));
                break;
            }
            if let Err(error) = self.sandboxes.check_network(sandbox).await {
                conditions.push(conditions::pod_network(sandbox, POD_NETWORK_CONDITION, &error));
            }
            if conditions.len() == NETWORK_FAULTS_MAX {
                break;
            }
        }
        let status = Some(cri::RuntimeStatus { conditions });
        Ok(cri::StatusResponse { status, ..cri::StatusResponse::default() })
    }

    /// `UpdateRuntimeConfig`: the pod CIDRs, for sandboxes that are made from now on.
    ///
    /// # Errors
    /// None.
    pub async fn update_runtime_config_cri(
        &self,
        request: cri::UpdateRuntimeConfigRequest,
    ) -> RuntimeResult<cri::UpdateRuntimeConfigResponse> {
        let network = request.runtime_config.and_then(|config| config.network_config);
        let pod_cidr = network.map(|network| network.pod_cidr).unwrap_or_default();
        // None is known yet.
        if pod_cidr.is_empty() || *self.context.pod_cidr.borrow() == pod_cidr {
            return Ok(cri::UpdateRuntimeConfigResponse {});
        }
        let settings = self.context.settings.clone();
        let former = self.context.pod_cidr.replace(pod_cidr.clone());
        let change = move || {
            let path = settings.pod_cidr();
            let kept = crate::filesystem::replace(&path, &path.with_extension("new"), pod_cidr.as_bytes());
            (kept, links::remove_idle_bridge(&cni::bridge_of(&settings, &former)))
        };
        let (kept, removed) = self.context.blocking(change).await;
        if let Err(error) = kept {
            log::warn!(
                "the pod CIDR is not kept: {error}; after a restart pods may start with other addresses"
            );
        }
        if let Err(error) = removed {
            log::warn!("the bridge of the former pod CIDR is not removed: {error}");
        }
        Ok(cri::UpdateRuntimeConfigResponse {})
    }

    /// `Status`.
    ///
    /// # Errors
    /// None.
    pub async fn status_cri(&self, request: cri::StatusRequest) -> RuntimeResult<cri::StatusResponse> {
        let (settings, pod_cidr) = (self.context.settings.clone(), self.context.pod_cidr.borrow().clone());
        let handler = |name: &str, features: &RuntimeFeatures| cri::RuntimeHandler {
            name: name.to_owned(),
            features: Some(cri::RuntimeHandlerFeatures {
                recursive_read_only_mounts: features.recursive_read_only,
                // The agent's files and volumes are mapped by their mounts.
                user_namespaces: features.id_mapped_mounts && self.context.node.user_namespaces,
            }),
        };
        let runtime_handlers =
            self.context.features.iter().map(|(name, features)| handler(name, features)).collect();
        let look = move || {
            let network =
                |settings| conditions::network(settings, &pod_cidr).map_err(|error| error.to_string());
            let info = request.verbose.then(|| verbose::runtime(&settings, network(&settings)));
            (conditions::conditions(&settings, &pod_cidr), info.unwrap_or_default())
        };
        let (mut conditions, info) = self.context.blocking(look).await;
        conditions.extend(self.containers.images.makes_copies().then(conditions::no_overlay));
        Ok(cri::StatusResponse {
            status: Some(cri::RuntimeStatus { conditions }),
            info,
            runtime_handlers,
            features: Some(cri::RuntimeFeatures {
                supplemental_groups_policy: true,
                user_namespaces_host_network: false,
            }),
        })
    }

    /// `Version`.
    ///
    /// # Errors
    /// None.
    pub async fn version_cri(&self, _request: cri::VersionRequest) -> RuntimeResult<cri::VersionResponse> {
        Ok(cri::VersionResponse {
            // The kubelet's runtime API version, as containerd answers.
            version: "0.1.0".to_owned(),
            runtime_name: "smolet".to_owned(),
            runtime_version: env!("CARGO_PKG_VERSION").to_owned(),
            runtime_api_version: "v1".to_owned(),
        })
    }

    /// `RuntimeConfig`.
    ///
    /// # Errors
    /// None.
    pub async fn runtime_config_cri(
        &self,
        _request: cri::RuntimeConfigRequest,
    ) -> RuntimeResult<cri::RuntimeConfigResponse> {
        let driver = match self.context.settings.cgroup_driver {
            CgroupDriver::Systemd => cri::CgroupDriver::Systemd,
            CgroupDriver::Cgroupfs => cri::CgroupDriver::Cgroupfs,
        };
        let linux = Some(cri::LinuxRuntimeConfiguration { cgroup_driver: driver.into() });
        Ok(cri::RuntimeConfigResponse { linux })
    }

    /// The images: `ImageService`.
    pub fn images(&self) -> &dyn Images {
        &*self.containers.images
    }

    /// Sets where clients of streams go; until then they are told that there is no streaming server.
    pub fn set_streaming_url(
        &self,
        url: impl Fn(crate::cri::StreamRequest) -> RuntimeResult<String> + 'static,
    ) {
        *self.context.streaming_url.borrow_mut() = Some(Box::new(url));
    }

    /// Events from now on. The channel closes when its reader is too slow.
    ///
    /// # Errors
    /// There are too many subscribers.
    pub fn subscribe(&self) -> RuntimeResult<smol::channel::Receiver<RuntimeEvent>> {
        let too_many = || full("there are too many subscribers to events; end some of them");
        self.context.events.subscribe().ok_or_else(too_many)
    }
}
