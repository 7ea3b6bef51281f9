//! Declared node features that a pod needs (`declaredFeaturesAdmitHandler`, `nodedeclaredfeatures`). PURE.

use k8s_openapi::api::core::v1::PodSpec;

use super::Rejection;

/// A container's exit restarts the whole pod.
const RESTART_ALL: &str = "RestartAllContainersOnContainerExits";
/// A user namespace in the node's network.
const USERS_ON_HOST_NETWORK: &str = "UserNamespacesHostNetworkSupport";

/// In-place resize of a non-sidecar init container; that of other containers is supported on any node.
const RESIZES_INIT: &str = "InPlacePodVerticalScalingInitContainers";

/// The declared features (`status.declaredFeatures`, sorted). Of the five features that a node of 1.36 may declare, these are
/// absent: the API server has to translate `WebSockets` for the runtime (`ExtendWebSocketsToKubelet`), pod-level resources are
/// not resized in place (`InPlacePodLevelResourcesVerticalScaling`), and a user namespace is not combined with the node's
/// network.
pub const DECLARED_FEATURES: &[&str] = &[RESIZES_INIT, RESTART_ALL];

/// The node declares what the pod needs. Of the five features that a node of 1.36 may declare a new pod needs these two
/// (`InferForScheduling`); sorted by name.
pub(super) fn check(spec: &PodSpec, declared: &[&str]) -> Result<(), Rejection> {
    let needed = [(RESTART_ALL, restarts_all(spec)), (USERS_ON_HOST_NETWORK, users_on_host_network(spec))];
    let missing = needed.into_iter().filter(|(name, needed)| *needed && !declared.contains(name));
    let missing: Vec<&str> = missing.map(|(name, _)| name).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let message = format!("Pod requires node features that are not available: {}", missing.join(", "));
    Err(Rejection::new("PodFeatureUnsupported", message))
}

fn restarts_all(spec: &PodSpec) -> bool {
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let mut rules = containers.flat_map(|container| container.restart_policy_rules.iter().flatten());
    rules.any(|rule| rule.action == "RestartAllContainers")
}

fn users_on_host_network(spec: &PodSpec) -> bool {
    spec.host_network == Some(true) && spec.host_users == Some(false)
}
