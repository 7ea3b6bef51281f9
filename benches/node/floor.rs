//! The floor: the same CRI calls with the same configurations, one directly after another, by nobody's agent.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use smol::lock::Semaphore;
use smolet::cri::Runtime as _;
use smolet::model::{ContainerId, ContainerKind, DesiredPod, SandboxId, Wall};
use smolet::proto::runtime::v1::{ContainerConfig, PodSandboxConfig};
use smolet::render::{
    CgroupVersion, ContainerInput, Environment, ManifestObjects, NodeSettings, container_config, hosts_file,
    paths, sandbox_config,
};
use smolet::source::identity::NodeName;
use smolet::source::manifest;
use smolet::volume::{self, VolumeImages};

use crate::runtime::Runtime;
use crate::subject::now;

/// Renders pods as smolet does, and makes the calls.
pub struct Floor<'r> {
    runtime: &'r Runtime,
    node: NodeSettings,
    dir: PathBuf,
}

/// A pod ready to be started: everything on disk is there, and only the calls are left.
pub struct RawPod {
    desired: DesiredPod,
    sandbox_config: PodSandboxConfig,
    /// By restart count.
    container_configs: [ContainerConfig; 2],
    sandbox: RefCell<Option<SandboxId>>,
}

impl<'r> Floor<'r> {
    pub fn new(runtime: &'r Runtime) -> Self {
        let dir = runtime.dir().join("agents/raw");
        fs::create_dir_all(dir.join("out")).expect("the floor's directories can be made");
        let path = |part: &str| dir.join(part).display().to_string();
        let mut node = NodeSettings::new("raw", &path("root"));
        if !Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
            node.cgroup_version = CgroupVersion::V1 { swap_controller: false };
        }
        node.cgroup_root = runtime.cgroup_root.as_str().into();
        node.pod_logs_dir = path("logs/pods").into();
        node.container_logs_dir = path("logs/containers").into();
        Self { runtime, node, dir }
    }

    pub fn runtime(&self) -> &Runtime {
        self.runtime
    }

    pub fn out(&self) -> PathBuf {
        self.dir.join("out")
    }

    /// Renders the only pod of a manifest and makes what its configurations point to.
    pub fn prepare(&self, manifest: &str) -> RawPod {
        let name = NodeName::new(&self.node.node_name);
        let file: Arc<str> = Arc::from("pod.yaml");
        let parsed = manifest::parse(&file, manifest.as_bytes(), &name, now(), usize::MAX);
        assert!(parsed.problems.is_empty(), "{:?}", parsed.problems);
        let pod = parsed.pods.into_iter().next().expect("a pod").pod;
        let desired = DesiredPod::new(pod);
        let container = &desired.containers()[0];
        let image =
            self.runtime.drive(self.runtime.cri.image_status(container.image.as_deref().expect("an image")));
        let image = image.expect("an answer").expect("the image is there");
        let sandbox_config = sandbox_config(&self.node, &desired, 0, None).expect("a sandbox configuration");

        let pod_dir = paths::pod_dir(&self.node, &desired.key);
        let log_dir = paths::termination_log_dir(&self.node, &desired.key, &container.name);
        let logs = format!("{}/{}", sandbox_config.log_directory, container.name);
        for dir in [&pod_dir, &log_dir, &logs] {
            fs::create_dir_all(dir).expect("a directory can be made");
        }
        let hosts = hosts_file(&self.node, &desired, &[], "").expect("a hosts file");
        fs::write(paths::hosts_file_path(&self.node, &desired.key), hosts).expect("a hosts file");
        let last_words = format!("{log_dir}/00000000");
        fs::write(&last_words, "").expect("a termination log");
        let mounts = container.volume_mounts.as_deref().unwrap_or_default();
        let mounts = volume::container_mounts(
            &desired,
            &container.name,
            mounts,
            &VolumeImages::new(),
            &Environment::new(),
            &pod_dir,
        )
        .expect("mounts")
        .mounts;
        let configure = |restart_count| {
            let none = ManifestObjects::default();
            let input = ContainerInput {
                pod: &desired,
                kind: ContainerKind::App,
                index: 0,
                restart_count,
                image_ref: &image.id,
                image: Some(&image),
                pod_ips: &[],
                mounts: &mounts,
                termination_log: Some(&last_words),
                target: None,
                recursive_read_only: false,
                annotations: &[],
                user_namespace: None,
                env: &none,
            };
            container_config(&self.node, &input).expect("a container configuration")
        };
        let container_configs = [configure(0), configure(1)];
        RawPod { sandbox_config, container_configs, desired, sandbox: RefCell::default() }
    }

    /// `RunPodSandbox`, `CreateContainer`, `StartContainer`.
    async fn calls(&self, pod: &RawPod) -> ContainerId {
        let cri = &self.runtime.cri;
        let sandbox = cri.run_pod_sandbox(&pod.sandbox_config, "").await.expect("RunPodSandbox");
        pod.sandbox.replace(Some(sandbox));
        self.container(pod, 0).await
    }

    /// `CreateContainer`, `StartContainer`.
    async fn container(&self, pod: &RawPod, restart_count: usize) -> ContainerId {
        let (cri, sandbox) = (&self.runtime.cri, pod.sandbox.borrow().clone().expect("a sandbox"));
        let config = &pod.container_configs[restart_count];
        let id = cri.create_container(&sandbox, config, &pod.sandbox_config).await.expect("CreateContainer");
        cri.start_container(&id).await.expect("StartContainer");
        id
    }

    fn started_at(&self, id: &ContainerId) -> Wall {
        self.runtime.container_status(id).started_at.expect("it started")
    }

    /// Starts one pod: its container, and how long that took in milliseconds.
    pub fn start(&self, pod: &RawPod) -> (ContainerId, f64) {
        let at = now();
        let id = self.runtime.drive(self.calls(pod));
        let took = ms(at, self.started_at(&id));
        (id, took)
    }

    /// Starts the container of a pod again that has just been seen to have exited.
    pub fn restart(&self, pod: &RawPod) -> f64 {
        let at = now();
        let id = self.runtime.drive(self.container(pod, 1));
        ms(at, self.started_at(&id))
    }

    /// Starts all pods, so many at once: milliseconds until the last runs.
    pub fn burst(&self, pods: &[RawPod], at_once: usize) -> f64 {
        let turns = Semaphore::new(at_once);
        let at = now();
        let one = async |pod: &RawPod| {
            let _turn = turns.acquire().await;
            self.calls(pod).await
        };
        let ids = self.runtime.drive(all(pods.iter().map(one).collect()));
        ms(at, ids.iter().map(|id| self.started_at(id)).max().expect("a pod"))
    }

    /// Ends a pod and all that is left of it in the runtime.
    pub fn end(&self, pods: &[RawPod]) {
        let cri = &self.runtime.cri;
        for pod in pods {
            let Some(id) = pod.sandbox.take() else { continue };
            self.runtime.drive(async {
                cri.stop_pod_sandbox(&pod.desired.key.uid, &id).await.expect("StopPodSandbox");
                cri.remove_pod_sandbox(&id).await.expect("RemovePodSandbox");
            });
            let _ = fs::remove_dir_all(paths::pod_dir(&self.node, &pod.desired.key));
            let _ = fs::remove_dir_all(&pod.sandbox_config.log_directory);
        }
    }
}

/// Milliseconds from one reading of the wall clock to another; the clock must not be stepped meanwhile.
pub fn ms(from: Wall, to: Wall) -> f64 {
    (to.0 - from.0) as f64 / 1e6
}

/// Runs all at once on this thread; their outcomes in order.
async fn all<T>(futures: Vec<impl Future<Output = T>>) -> Vec<T> {
    let executor = smol::LocalExecutor::new();
    let tasks: Vec<_> = futures.into_iter().map(|future| executor.spawn(future)).collect();
    executor
        .run(async {
            let mut outcomes = Vec::new();
            for task in tasks {
                outcomes.push(task.await);
            }
            outcomes
        })
        .await
}
