//! The desired pod. PURE.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, EnvVar, EphemeralContainer, Lifecycle, Pod, PodSpec, Volume, VolumeMount,
};

use super::hash::container_hash;
use super::ids::PodKey;
use super::object::{ClaimedVolume, ObjectKey, ObjectKind};
use crate::model::packed::PackedPod;

/// A list of containers in the pod's spec.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ContainerKind {
    /// `spec.initContainers`, sidecars (`restartPolicy: Always`) included.
    Init,
    /// `spec.containers`.
    App,
    /// `spec.ephemeralContainers`.
    Ephemeral,
}

/// The fields that all kinds of containers have. `Default` is a container without any.
#[derive(Clone, Copy, Debug, Default)]
pub struct ContainerSpec<'a> {
    /// Its name.
    pub name: &'a str,
    /// The image in the manifest; empty when absent.
    pub image: &'a str,
    /// `imagePullPolicy`.
    pub image_pull_policy: Option<&'a str>,
    /// `terminationMessagePath`.
    pub termination_message_path: Option<&'a str>,
    /// `env`, empty when absent.
    pub env: &'a [EnvVar],
    /// `volumeMounts`, empty when absent.
    pub volume_mounts: &'a [VolumeMount],
    /// `ports`, empty when absent.
    pub ports: &'a [ContainerPort],
    /// `lifecycle`; an ephemeral container may have none.
    pub lifecycle: Option<&'a Lifecycle>,
    /// `targetContainerName` of an ephemeral container, unless it is empty.
    pub target: Option<&'a str>,
}

/// Views a `Container` or an `EphemeralContainer`: two types of the API with the same fields.
macro_rules! container_spec {
    ($of:expr, $target:expr) => {
        ContainerSpec {
            name: &$of.name,
            image: $of.image.as_deref().unwrap_or_default(),
            image_pull_policy: $of.image_pull_policy.as_deref(),
            termination_message_path: $of.termination_message_path.as_deref(),
            env: $of.env.as_deref().unwrap_or_default(),
            volume_mounts: $of.volume_mounts.as_deref().unwrap_or_default(),
            ports: $of.ports.as_deref().unwrap_or_default(),
            lifecycle: $of.lifecycle.as_ref(),
            target: $target,
        }
    };
}

/// A pod of a source: the typed object, and values that are computed from it once.
///
/// Built by the sources after validation; the core also admits what the kubelet's functions admit (undefaulted pods, no app
/// container), as the test vectors do.
#[derive(Clone, Debug)]
pub struct DesiredPod {
    /// UID, namespace and name.
    pub key: PodKey,
    /// The object, defaulted when it comes from a source. Reading it decodes it.
    pub pod: PackedPod,
    /// The container hashes (`kubecontainer.HashContainer`) of `spec.initContainers`, in spec order.
    pub init_hashes: Box<[u32]>,
    /// The container hashes of `spec.containers`, in spec order.
    pub app_hashes: Box<[u32]>,
    /// The handler of its runtime class, if it has one.
    pub handler: ClassHandler,
    /// Its claims' persistent volumes, by the volume's name.
    pub claims: Vec<(Box<str>, Claimed)>,
    /// The objects that it references exceed the node's limits.
    pub too_many_objects: bool,
}

/// The persistent volume of a claim, or why there is none.
pub type Claimed = Result<ClaimedSource, Arc<str>>;

/// Reason while the claim has not been fetched.
pub const CLAIM_NOT_FETCHED: &str = "not fetched from the API server yet";

/// A claim's persistent volume.
#[derive(Clone, Debug, PartialEq)]
pub struct ClaimedSource {
    /// The volume.
    pub volume: Arc<ClaimedVolume>,
    /// The claim's `readOnly`: containers of the pod must not write to it.
    pub read_only: bool,
}

/// The runtime handler of a pod's runtime class.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ClassHandler {
    /// The handler with the class' name: a static pod has no `RuntimeClass` object.
    #[default]
    Named,
    /// The handler in the `RuntimeClass` object.
    Of(Arc<str>),
    /// The API server has no such object, or it has not been fetched.
    Missing,
}

impl DesiredPod {
    /// Computes the hashes of the object; missing metadata becomes empty text.
    pub fn new(pod: Pod) -> Self {
        let meta = &pod.metadata;
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let key = PodKey::new(&text(&meta.namespace), &text(&meta.name), &text(&meta.uid));
        let hashes = |containers: &[Container]| {
            containers.iter().map(|c| container_hash(&c.name, c.image.as_deref().unwrap_or(""))).collect()
        };
        let spec = pod.spec.as_ref();
        let init_hashes = hashes(spec.and_then(|s| s.init_containers.as_deref()).unwrap_or_default());
        let app_hashes = hashes(spec.map(|s| s.containers.as_slice()).unwrap_or_default());
        Self {
            key,
            pod: pod.into(),
            init_hashes,
            app_hashes,
            handler: ClassHandler::Named,
            claims: Vec::new(),
            too_many_objects: false,
        }
    }

    /// The pod's spec; an empty one when the object has none, as in the kubelet.
    pub fn spec(&self) -> &PodSpec {
        static EMPTY: std::sync::LazyLock<PodSpec> = std::sync::LazyLock::new(PodSpec::default);
        self.pod.spec.as_ref().unwrap_or(&EMPTY)
    }

    /// The key of the object that the pod references by that name.
    pub fn names(&self, kind: ObjectKind, name: &str) -> ObjectKey {
        ObjectKey::new(self.pod.side(), kind, &self.key.namespace, name)
    }

    /// The persistent volume, when the volume is a claim.
    pub fn claimed(&self, volume: &Volume) -> Option<Result<&ClaimedSource, &str>> {
        volume.persistent_volume_claim.as_ref()?;
        let known = self.claims.iter().find(|(name, _)| **name == *volume.name);
        Some(match known {
            Some((_, Ok(source))) => Ok(source),
            Some((_, Err(why))) => Err(why),
            None => Err(CLAIM_NOT_FETCHED),
        })
    }

    /// `spec.initContainers`, empty when absent.
    pub fn init_containers(&self) -> &[Container] {
        self.spec().init_containers.as_deref().unwrap_or_default()
    }

    /// `spec.containers`.
    pub fn containers(&self) -> &[Container] {
        &self.spec().containers
    }

    /// The images of all containers and of image volumes.
    pub fn images(&self) -> impl Iterator<Item = &str> {
        let containers = self.init_containers().iter().chain(self.containers());
        let of_containers = containers.map(|container| &container.image);
        let of_debuggers = self.ephemeral_containers().iter().map(|container| &container.image);
        let volumes = self.spec().volumes.iter().flatten();
        let of_volumes = volumes.filter_map(|volume| volume.image.as_ref()).map(|image| &image.reference);
        let all = of_containers.chain(of_debuggers).chain(of_volumes);
        all.map(|image| image.as_deref().unwrap_or_default())
    }

    /// A copy of the pod with these ephemeral containers. The object is then in memory twice.
    #[must_use]
    pub fn with_ephemeral_containers(&self, containers: Vec<EphemeralContainer>) -> Self {
        let mut pod = (*self.pod).clone();
        pod.spec.get_or_insert_default().ephemeral_containers = Some(containers);
        Self { pod: pod.into(), ..self.clone() }
    }

    /// The container at that index; an empty one when there is none.
    pub fn container(&self, kind: ContainerKind, index: usize) -> ContainerSpec<'_> {
        let found = match kind {
            ContainerKind::Init => self.init_containers().get(index).map(|of| container_spec!(of, None)),
            ContainerKind::App => self.containers().get(index).map(|of| container_spec!(of, None)),
            ContainerKind::Ephemeral => self.ephemeral_containers().get(index).map(|of| {
                let target = of.target_container_name.as_deref().filter(|target| !target.is_empty());
                container_spec!(of, target)
            }),
        };
        found.unwrap_or_default()
    }

    /// The list with the container of that name; `None` when the pod has none.
    pub fn container_kind(&self, name: &str) -> Option<ContainerKind> {
        let has = |containers: &[Container]| containers.iter().any(|container| container.name == name);
        if has(self.init_containers()) {
            Some(ContainerKind::Init)
        } else if has(self.containers()) {
            Some(ContainerKind::App)
        } else {
            let mut ephemeral = self.ephemeral_containers().iter();
            ephemeral.any(|container| container.name == name).then_some(ContainerKind::Ephemeral)
        }
    }

    /// `spec.ephemeralContainers`, empty when absent.
    pub fn ephemeral_containers(&self) -> &[EphemeralContainer] {
        self.spec().ephemeral_containers.as_deref().unwrap_or_default()
    }
}
