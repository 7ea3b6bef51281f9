//! Ensures the images of one container: those of the image volumes that it mounts (`getImageVolumes`), then its own.
use std::path::Path;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;

use super::act::ActContext;
use super::outcome::{Failure, SyncError};
use super::sandbox::PodSandbox;
use super::start_limiter::StartPermit;
use crate::cri::Runtime;
use crate::events::{About, EventKind};
use crate::image::credentials::NODE_LOGINS;
use crate::image::pull::{ImageError, ImageRequest, LoginSources, PullPolicy, ReadyImage};
use crate::model::SortedMap;
use crate::model::{ContainerKind, ContainerSpec, DesiredPod, object};
use crate::proto::runtime::v1::ImageSpec;
use crate::render::admission::runtime_handler;
use crate::volume::{ImageVolume, VolumeImages, image_volumes};

/// The images of one container.
pub(super) struct Images {
    /// The container's image.
    pub own: ReadyImage,
    /// Images of the image volumes that it mounts.
    pub volumes: VolumeImages,
}

/// The pod's pull secrets that exist (`getPullSecretsForPod`). Missing ones are reported as an event; the pull is tried
/// without them.
pub(super) fn pull_secrets<R: Runtime>(ctx: &ActContext<R>, pod: &DesiredPod) -> Vec<Arc<Secret>> {
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for name in object::pull_secrets(&pod.pod) {
        match ctx.env.secret(pod, name) {
            Ok(Some(secret)) => found.push(secret),
            Ok(None) | Err(_) => missing.push(name),
        }
    }
    if !missing.is_empty() {
        let message = format!(
            "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
            missing.join(", ")
        );
        ctx.note(&pod.key, EventKind::Warning, "FailedToRetrieveImagePullSecret", &message);
    }
    found
}

/// Ensures that every image that the container needs is on the node, and waits for pulls without a deadline.
pub(super) async fn ensure_images<R: Runtime>(
    ctx: &ActContext<R>,
    pod: &DesiredPod,
    container: &ContainerSpec<'_>,
    sandbox: &PodSandbox<'_>,
    secrets: &[Arc<Secret>],
    permit: &mut StartPermit<'_>,
) -> Result<Images, Failure> {
    let kind = pod.container_kind(container.name).unwrap_or(ContainerKind::App);
    let about = About::container(&pod.key, kind, container.name);
    let mut from = Puller { ctx, about, pod, sandbox, secrets, permit };
    let wanted = image_volumes(pod, container.volume_mounts);
    let volumes = if wanted.is_empty() {
        VolumeImages::new()
    } else {
        // Boxed: few containers mount images.
        Box::pin(from.volumes(&wanted)).await?
    };
    let own = from.ensure(container.image, container.image_pull_policy).await?;
    Ok(Images { own, volumes })
}

struct Puller<'a, 't, R> {
    ctx: &'a ActContext<R>,
    about: About<'a>,
    pod: &'a DesiredPod,
    sandbox: &'a PodSandbox<'a>,
    secrets: &'a [Arc<Secret>],
    permit: &'a mut StartPermit<'t>,
}

impl<R: Runtime> Puller<'_, '_, R> {
    async fn ensure(&mut self, image: &str, policy: Option<&str>) -> Result<ReadyImage, ImageError> {
        let Self { ctx, about, pod, sandbox, secrets, permit } = self;
        let node_logins = Path::new(&*ctx.node.root_dir).join(NODE_LOGINS);
        let request = ImageRequest {
            pod: &pod.key.uid,
            image,
            policy: PullPolicy::parse(policy),
            logins: LoginSources { secrets, node: &node_logins, blocking: &ctx.manager.blocking },
            sandbox: sandbox.config,
        };
        let note = |kind, reason, message: &str| ctx.note(*about, kind, reason, message);
        ctx.manager.images.ensure(&*ctx.manager.runtime, &request, &note, &mut || permit.release()).await
    }

    /// Tries all of them, and reports the last one that failed (`toKubeContainerImageVolumes`).
    ///
    /// Differs from the kubelet, which ensures the images of all the pod's volumes at every sync, whether a container that
    /// starts now mounts them or not.
    async fn volumes(&mut self, wanted: &[ImageVolume<'_>]) -> Result<VolumeImages, Failure> {
        self.runtime_mounts(wanted).await?;
        let (mut found, mut failed) = (SortedMap::new(), None);
        for volume in wanted {
            match self.ensure(volume.reference, volume.pull_policy).await {
                Ok(image) => {
                    // Differs from the kubelet, which sends the pod's annotations with every mount; runtimes ignore them
                    // here.
                    let spec = ImageSpec {
                        image: image.image_ref.into(),
                        user_specified_image: volume.reference.to_owned(),
                        runtime_handler: runtime_handler(self.pod).to_owned(),
                        ..ImageSpec::default()
                    };
                    found.insert(volume.name.into(), spec);
                }
                Err(error) => {
                    let earlier = failed.and_then(|error: ImageError| error.retry_at);
                    let retry_at = earlier.into_iter().chain(error.retry_at).min();
                    failed = Some(ImageError { retry_at, ..error });
                }
            }
        }
        failed.map_or(Ok(found), |error| Err(error.into()))
    }

    /// Refuses image volumes that this runtime would not mount: an old one fails with an unclear error, or ignores part of
    /// the request (`RuntimeVersion::image_volumes`). The version is queried each time, since an upgrade may add support.
    async fn runtime_mounts(&self, wanted: &[ImageVolume<'_>]) -> Result<(), Failure> {
        // Without an answer the mount is tried all the same, and the runtime's error is reported.
        let Ok(version) = self.ctx.manager.runtime.version().await else { return Ok(()) };
        let known = version.image_volumes();
        let refused = wanted.iter().find_map(|volume| {
            let why = match (known.whole, known.in_part, volume.in_part) {
                (false, ..) => "mounts no images; volumes of images need containerd 2.1, CRI-O 1.31 or later",
                (true, false, true) => {
                    "mounts images as a whole only; subPath on volumes of images needs containerd 2.2, CRI-O 1.33 or later"
                }
                (true, true, _) | (true, false, false) => return None,
            };
            Some((volume.name, why))
        });
        let Some((volume, why)) = refused else { return Ok(()) };
        // The reason that runtimes return for it (cri-api `ErrImageVolumeMountFailed`).
        let message = format!(
            "ImageVolumeMountFailed: volume {volume:?}: {} {} {why}",
            version.runtime_name, version.runtime_version
        );
        Err(Failure::new(SyncError::CreateContainer, message))
    }
}

impl From<ImageError> for Failure {
    fn from(error: ImageError) -> Self {
        Self { error: SyncError::Image(error.problem), message: error.message, retry_at: error.retry_at }
    }
}
