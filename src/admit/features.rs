//! Features of the node that a pod needs (`declaredFeaturesAdmitHandler`, `nodedeclaredfeatures`). PURE.

use k8s_openapi::api::core::v1::PodSpec;

use super::Rejection;

/// A container's exit restarts the whole pod.
const RESTART_ALL: &str = "RestartAllContainersOnContainerExits";
/// Users of its own on the node's network.
const USERS_ON_HOST_NETWORK: &str = "UserNamespacesHostNetworkSupport";

/// An init container that is no sidecar is resized while it runs, as all others are on any node.
const RESIZES_INIT: &str = "InPlacePodVerticalScalingInitContainers";

/// What this node declares (`status.declaredFeatures`, sorted). Of the five features that a node of 1.36 may declare: the API server
/// has to translate `WebSockets` for the runtime (`ExtendWebSocketsToKubelet`), a pod's own resources are not changed while it runs
/// (`InPlacePodLevelResourcesVerticalScaling`), and users of a pod's own end with the node's network.
pub const DECLARED_FEATURES: &[&str] = &[RESIZES_INIT, RESTART_ALL];

/// The node declares what the pod needs. Of the five features that a node of 1.36 may declare these two are asked for by a pod
/// that is new (`InferForScheduling`); in the order of their names.
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
