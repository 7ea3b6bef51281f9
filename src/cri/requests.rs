//! The CRI's requests that take more than an id: the same over gRPC and to the embedded runtime. PURE.

use super::convert;
use crate::model::{PodUid, SandboxId};
use crate::proto::runtime::v1 as cri;
use crate::render::labels::POD_UID;

/// CNI CHECK of all pods' networks: a method of smolet's own, beside those of the CRI. Its messages are those of `Status`.
pub const CHECK_NETWORKS: &str = "/smolet.v1.Network/Check";

fn of_pod(uid: &PodUid) -> convert::Map {
    convert::Map::from([(POD_UID.to_owned(), uid.to_string())])
}

/// `ListPodSandbox`, of one pod or of all.
pub fn list_pod_sandboxes(pod: Option<&PodUid>) -> cri::ListPodSandboxRequest {
    let filter = pod.map(|uid| cri::PodSandboxFilter { label_selector: of_pod(uid), ..Default::default() });
    cri::ListPodSandboxRequest { filter }
}

/// `ListContainers`, of one pod or of all.
pub fn list_containers(pod: Option<&PodUid>) -> cri::ListContainersRequest {
    let filter = pod.map(|uid| cri::ContainerFilter { label_selector: of_pod(uid), ..Default::default() });
    cri::ListContainersRequest { filter }
}

/// `UpdatePodSandboxResources`.
pub fn update_pod_sandbox_resources(
    id: &SandboxId,
    resources: cri::LinuxContainerResources,
    overhead: cri::LinuxContainerResources,
) -> cri::UpdatePodSandboxResourcesRequest {
    cri::UpdatePodSandboxResourcesRequest {
        pod_sandbox_id: id.to_string(),
        overhead: Some(overhead),
        resources: Some(resources),
    }
}

/// An image by its name.
pub fn image(name: &str) -> cri::ImageSpec {
    cri::ImageSpec {
        image: name.to_owned(),
        user_specified_image: name.to_owned(),
        ..cri::ImageSpec::default()
    }
}

/// `PullImage`.
pub fn pull_image(
    name: &str,
    auth: Option<&cri::AuthConfig>,
    sandbox: &cri::PodSandboxConfig,
) -> cri::PullImageRequest {
    cri::PullImageRequest {
        image: Some(image(name)),
        auth: auth.cloned(),
        sandbox_config: Some(sandbox.clone()),
    }
}
