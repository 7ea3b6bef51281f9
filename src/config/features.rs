//! `featureGates`: a gate must agree with smolet. The feature of a gate that smolet implements cannot be disabled, and one that
//! it does not implement cannot be enabled.

use super::{ConfigError, FileSettings};
use crate::decode::Node;

/// Gates of Kubernetes 1.36 whose feature smolet implements.
const ON: &str = "ContainerRestartRules CustomCPUCFSQuotaPeriod EnvFiles ExecProbeTimeout GracefulNodeShutdown \
    GracefulNodeShutdownBasedOnPodPriority HostnameOverride ImageMaximumGCAge ImageVolume InPlacePodVerticalScaling \
    InPlacePodVerticalScalingInitContainers KubeletCgroupDriverFromCRI KubeletCrashLoopBackOffMax KubeletEnsureSecretPulledImages KubeletFineGrainedAuthz \
    NodeDeclaredFeatures PodLevelResources PodLifecycleSleepAction PodLifecycleSleepActionAllowZero \
    PodObservedGenerationTracking PodReadyToStartContainersCondition PreventStaticPodAPIReferences ProcMountType \
    RecursiveReadOnlyMounts RelaxedDNSSearchValidation RelaxedEnvironmentVariableValidation \
    RestartAllContainersOnContainerExits RotateKubeletServerCertificate SidecarContainers SupplementalGroupsPolicy \
    SystemdWatchdog UserNamespacesSupport";

/// Refuses a gate whose value disagrees.
pub(super) fn check(file: &FileSettings) -> Result<(), ConfigError> {
    let Some(Node::Map(gates)) = file.node("featureGates") else { return Ok(()) };
    for (gate, given) in gates {
        let is_on = ON.split(' ').any(|name| name == &**gate);
        if *given != Node::Bool(is_on) {
            let why = if is_on { "it is always on" } else { "smolet does not have what it adds" };
            return Err(ConfigError(format!(
                "featureGates.{gate}: {given}: must be {is_on} or left out: {why}"
            )));
        }
    }
    Ok(())
}
