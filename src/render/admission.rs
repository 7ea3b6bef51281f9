//! Pod admission: pods that this node cannot run, whatever its free resources (the kubelet's `PodAdmitHandler`s). PURE.
//!
//! ```text
//!     SysctlForbidden                       a sysctl that is neither safe nor allowed (`sysctl.patternAllowlist`)
//!     InvalidLogMemory                      the annotation smolet.io/log-memory has a value that cannot be followed (not in the kubelet)
//!     InvalidDeviceChange                   the annotation smolet.io/device-change has an unknown value (not in the kubelet)
//!     AppArmor                              a profile, and AppArmor is off (`appArmorAdmitHandler`)
//!     SupplementalGroupsPolicyNotSupported  Strict, and the runtime has only Merge (`predicateAdmitHandler`)
//! |     RuntimeClassNotFound                  a runtime class that no handler of the runtime implements
//! |     TooManyObjects                        its ConfigMaps and Secrets of the cluster exceed the node's limits
//!     FailedPrepareDynamicResources         claims of dynamic resources, for which there are no drivers (`PrepareDynamicResources`)
//! |     CreatePodSandboxError                 a user namespace, and the handler does not support it (`userns.Manager`)
//! ```
//!
//! Differs from the kubelet, which sets such a pod to Failed for good, for a controller to replace: a manifest in a
//! directory has no controller. Here its containers wait, with the kubelet's reason and message, and start when the node can
//! run them. No container of such a pod is started, not even in an existing sandbox. A pod of the API server fails as with
//! the kubelet when the node's own settings refuse it ([`refusal_of_settings`]).

use super::log_memory::log_memory;
use super::node::NodeSettings;
pub use super::sandbox::sysctl_name;
use crate::model::DesiredPod;
use crate::model::desired::ClassHandler;
use crate::model::device::updates_devices;
use crate::model::runtime::RuntimeStatus;
use crate::text::quoted;

/// Message when the pod's objects of the cluster exceed `limits::KUBE_OBJECTS_MAX` or `limits::KUBE_OBJECTS_BYTES_MAX`. The
/// kubelet has no such limits.
pub const TOO_MANY_OBJECTS: &str = "too many objects on this node: its pods may name 1024 ConfigMaps, Secrets, tokens, claims, \
     classes and namespaces with services together, of 2 MiB; the pod waits until others end: run it on another node, or name \
     fewer or smaller objects";

/// Why a pod cannot run here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The kubelet's reason.
    pub reason: &'static str,
    /// The message.
    pub message: String,
}

/// Sysctls without influence outside the pod (`safeSysctls`). The kubelet leaves some of them out on kernels before 4.15, on
/// which no CRI v1 runtime runs.
const SAFE_SYSCTLS: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
];

/// True when this sysctl, or all with this prefix (`kernel.msg*`), is namespaced in the kernel (`GetNamespace`): only such
/// may be allowed.
pub fn is_namespaced_sysctl(pattern: &str) -> bool {
    let name = sysctl_name(pattern);
    let name = name.strip_suffix('*').unwrap_or(&name);
    name == "kernel.sem"
        || ["kernel.shm", "kernel.msg", "fs.mqueue.", "net."].iter().any(|prefix| name.starts_with(prefix))
}

/// True when [`refusal`] needs the runtime's status.
pub fn asks_runtime(pod: &DesiredPod) -> bool {
    wants_user_namespace(pod) || runtime_class(pod).is_some() || wants_strict_groups(pod)
}

/// True when the pod asks for its own user namespace (`hostUsers: false`).
pub fn wants_user_namespace(pod: &DesiredPod) -> bool {
    pod.spec().host_users == Some(false)
}

/// The runtime handler of the pod: that of its `RuntimeClass` object, or the default one, whose name is empty
/// (`LookupRuntimeHandler`).
/// (`LookupRuntimeHandler`).
///
/// Differs from the kubelet for static pods: the class name is taken as the handler's name, since there may be no API server
/// with the object. Where classes are generated from a runtime's handlers (k3s makes one for each) both have the same name.
pub fn runtime_handler(pod: &DesiredPod) -> &str {
    match (runtime_class(pod), &pod.handler) {
        (None, _) => "",
        (Some(_), ClassHandler::Of(handler)) => handler,
        (Some(class), ClassHandler::Named | ClassHandler::Missing) => class,
    }
}

fn runtime_class(pod: &DesiredPod) -> Option<&str> {
    pod.spec().runtime_class_name.as_deref().filter(|class| !class.is_empty())
}

fn wants_strict_groups(pod: &DesiredPod) -> bool {
    let context = pod.spec().security_context.as_ref();
    context.and_then(|context| context.supplemental_groups_policy.as_deref()) == Some("Strict")
}

/// Why the node's own settings do not allow the pod; `None` when they do.
pub fn refusal_of_settings(node: &NodeSettings, pod: &DesiredPod) -> Option<Refusal> {
    let refuse = |reason, message| Some(Refusal { reason, message });
    if let Some(name) = forbidden_sysctl(node, pod) {
        let message = format!("forbidden sysctl: {} not allowlisted", quoted(&name));
        return refuse("SysctlForbidden", message);
    }
    if !node.apparmor && wants_apparmor(pod) {
        let message = "Cannot enforce AppArmor: AppArmor is not enabled on the host".to_owned();
        return refuse("AppArmor", message);
    }
    if let Err(message) = log_memory(node, pod) {
        return refuse("InvalidLogMemory", message);
    }
    if let Err(message) = updates_devices(pod) {
        return refuse("InvalidDeviceChange", message);
    }
    None
}

/// Why the pod cannot run here, if it cannot. `runtime` is the runtime's current status; required when [`asks_runtime`] is
/// true.
pub fn refusal(node: &NodeSettings, pod: &DesiredPod, runtime: Option<&RuntimeStatus>) -> Option<Refusal> {
    let refuse = |reason, message| Some(Refusal { reason, message });
    if let Some(why) = refusal_of_settings(node, pod) {
        return Some(why);
    }
    if pod.too_many_objects {
        return refuse("TooManyObjects", TOO_MANY_OBJECTS.to_owned());
    }
    if pod.spec().resource_claims.as_ref().is_some_and(|claims| !claims.is_empty()) {
        let message = "Failed to prepare dynamic resources: this node has no drivers for them".to_owned();
        return refuse("FailedPrepareDynamicResources", message);
    }
    if let (Some(class), ClassHandler::Missing) = (runtime_class(pod), &pod.handler) {
        let message = format!("RuntimeClass.node.k8s.io {} not found", quoted(class));
        return refuse("RuntimeClassNotFound", message);
    }
    let (handlers, strict) =
        runtime.map_or((&[][..], false), |r| (&*r.handlers, r.supplemental_groups_policy));
    if wants_strict_groups(pod) && !strict {
        let message = "SupplementalGroupsPolicy=Strict is not supported in this node".to_owned();
        return refuse("SupplementalGroupsPolicyNotSupported", message);
    }
    let wanted = runtime_handler(pod);
    let handler = handlers.iter().find(|handler| *handler.name == *wanted);
    // A runtime that lists no handlers (containerd before 2.0) itself reports an unknown one.
    if handler.is_none() && !handlers.is_empty() && !wanted.is_empty() {
        let known: Vec<&str> = handlers.iter().map(|h| &*h.name).filter(|name| !name.is_empty()).collect();
        let (class, known) = (quoted(runtime_class(pod).unwrap_or_default()), known.join(", "));
        let message = match &pod.handler {
            ClassHandler::Of(_) => format!(
                "RuntimeClass {class}: its handler {} is none of the runtime's, {known}",
                quoted(wanted)
            ),
            ClassHandler::Named | ClassHandler::Missing => format!(
                "RuntimeClass {class} not found: it has to be the name of one of the runtime's handlers, {known}"
            ),
        };
        return refuse("RuntimeClassNotFound", message);
    }
    if wants_user_namespace(pod) && !handler.is_some_and(|handler| handler.user_namespaces) {
        let who = if wanted.is_empty() {
            "runtime".to_owned()
        } else {
            format!("RuntimeClass handler {}", quoted(wanted))
        };
        let message = format!("can't set `spec.hostUsers: false`, {who} does not support user namespaces");
        return refuse("CreatePodSandboxError", message);
    }
    None
}

/// The first sysctl of the pod that is neither safe nor allowed.
fn forbidden_sysctl(node: &NodeSettings, pod: &DesiredPod) -> Option<String> {
    let context = pod.spec().security_context.as_ref()?;
    let allowed = |name: &str| {
        SAFE_SYSCTLS.contains(&name)
            || node.allowed_unsafe_sysctls.iter().any(|pattern| match pattern.strip_suffix('*') {
                Some(prefix) => name.starts_with(prefix),
                None => **pattern == *name,
            })
    };
    let names = context.sysctls.iter().flatten().map(|sysctl| sysctl_name(&sysctl.name));
    names.into_iter().find(|name| !allowed(name))
}

/// Any profile but `Unconfined` (`isRequired`).
fn wants_apparmor(pod: &DesiredPod) -> bool {
    let spec = pod.spec();
    let of_pod = spec.security_context.as_ref().and_then(|context| context.app_armor_profile.as_ref());
    let containers = pod.init_containers().iter().chain(pod.containers());
    let own = containers.filter_map(|c| c.security_context.as_ref()?.app_armor_profile.as_ref());
    let annotations = pod.pod.metadata.annotations.iter().flatten();
    let mut annotated = annotations.filter(|(key, _)| key.starts_with(APPARMOR_ANNOTATION));
    of_pod.into_iter().chain(own).any(|profile| profile.type_ != "Unconfined")
        || annotated.any(|(_, profile)| profile != "unconfined")
}

/// A container's `AppArmor` profile, from before the field existed; the container's name follows this prefix.
pub const APPARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::model::runtime::RuntimeHandler;

    fn pod(spec: &Value, annotations: &Value) -> DesiredPod {
        let mut spec = spec.clone();
        spec["containers"] = json!([{"name": "c", "securityContext": spec["own"]}]);
        spec["own"].take();
        let pod = json!({"metadata": {"name": "p", "annotations": annotations}, "spec": spec});
        DesiredPod::new(serde_json::from_value(pod).unwrap())
    }

    fn runtime(handlers: &[(&str, bool)], strict: bool) -> RuntimeStatus {
        let handler = |(name, user_namespaces): &(&str, bool)| RuntimeHandler {
            name: (*name).into(),
            user_namespaces: *user_namespaces,
            recursive_read_only_mounts: false,
        };
        RuntimeStatus {
            conditions: Vec::new(),
            handlers: handlers.iter().map(handler).collect(),
            supplemental_groups_policy: strict,
        }
    }

    #[test]
    fn what_the_node_lacks() {
        let mut node = NodeSettings::new("n", "/r");
        node.allowed_unsafe_sysctls = vec!["kernel.msg*".into(), "net.core.somaxconn".into()];
        let sysctl = |name: &str| json!({"securityContext": {"sysctls": [{"name": name, "value": "1"}]}});
        let profile = |kind: &str| json!({"appArmorProfile": {"type": kind}});
        for (spec, annotations, expected) in [
            (json!({}), json!({}), None),
            (sysctl("net.ipv4.tcp_syncookies"), json!({}), None),
            (sysctl("net/ipv4/tcp_syncookies"), json!({}), None),
            (sysctl("kernel.msgmax"), json!({}), None),
            (sysctl("net.core.somaxconn"), json!({}), None),
            (
                sysctl("net.core.somaxconn2"),
                json!({}),
                Some(("SysctlForbidden", "forbidden sysctl: \"net.core.somaxconn2\" not allowlisted")),
            ),
            (
                sysctl("kernel.sem"),
                json!({}),
                Some(("SysctlForbidden", "forbidden sysctl: \"kernel.sem\" not allowlisted")),
            ),
            (json!({"securityContext": profile("Unconfined")}), json!({}), None),
            (
                json!({"securityContext": profile("RuntimeDefault")}),
                json!({}),
                Some(("AppArmor", "Cannot enf")),
            ),
            (
                json!({"own": profile("Localhost")}),
                json!({}),
                Some(("AppArmor", "Cannot enforce AppArmor: App")),
            ),
            (json!({}), json!({(format!("{APPARMOR_ANNOTATION}c")): "unconfined"}), None),
            (
                json!({}),
                json!({(format!("{APPARMOR_ANNOTATION}c")): "runtime/default"}),
                Some(("AppArmor", "Cannot enforce AppArmor")),
            ),
        ] {
            let ours = refusal(&node, &pod(&spec, &annotations), None);
            assert_eq!(
                ours.as_ref().map(|r| r.reason),
                expected.map(|(reason, _)| reason),
                "{spec} {ours:?}"
            );
            assert!(ours.is_none_or(|r| r.message.starts_with(expected.map_or("", |(_, words)| words))));
        }
        node.apparmor = true;
        assert_eq!(
            refusal(&node, &pod(&json!({"securityContext": profile("Localhost")}), &json!({})), None),
            None
        );
    }

    #[test]
    fn what_the_runtime_lacks() {
        let node = NodeSettings::new("n", "/r");
        let (class, users) = (json!({"runtimeClassName": "kata"}), json!({"hostUsers": false}));
        let both = json!({"runtimeClassName": "kata", "hostUsers": false});
        let strict = json!({"securityContext": {"supplementalGroupsPolicy": "Strict"}});
        let merge = json!({"securityContext": {"supplementalGroupsPolicy": "Merge"}});
        let old = runtime(&[], false);
        let new = runtime(&[("", true), ("runc", true), ("kata", false)], true);
        let other = runtime(&[("", false), ("runc", true)], false);
        for (spec, runtime, expected) in [
            (&class, &old, None),
            (&class, &new, None),
            (
                &class,
                &other,
                Some(
                    "RuntimeClass \"kata\" not found: it has to be the name of one of the runtime's handlers, runc",
                ),
            ),
            (
                &users,
                &old,
                Some("can't set `spec.hostUsers: false`, runtime does not support user namespaces"),
            ),
            (&users, &new, None),
            (
                &users,
                &other,
                Some("can't set `spec.hostUsers: false`, runtime does not support user namespaces"),
            ),
            (
                &both,
                &new,
                Some(
                    "can't set `spec.hostUsers: false`, RuntimeClass handler \"kata\" does not support user namespaces",
                ),
            ),
            (&strict, &new, None),
            (&strict, &other, Some("SupplementalGroupsPolicy=Strict is not supported in this node")),
            (&merge, &old, None),
        ] {
            let pod = pod(spec, &json!({}));
            assert_eq!(asks_runtime(&pod), *spec != merge, "{spec}");
            let ours = refusal(&node, &pod, Some(runtime));
            assert_eq!(ours.as_ref().map(|r| &*r.message), expected, "{spec}");
        }
        let mut pod = pod(&class, &json!({}));
        assert_eq!(runtime_handler(&pod), "kata");
        // A pod from an API server.
        let why = |pod: &DesiredPod| refusal(&node, pod, Some(&other)).map(|refusal| refusal.message);
        pod.handler = ClassHandler::Missing;
        assert_eq!(why(&pod).as_deref(), Some("RuntimeClass.node.k8s.io \"kata\" not found"));
        pod.handler = ClassHandler::Of("vm".into());
        let message = "RuntimeClass \"kata\": its handler \"vm\" is none of the runtime's, runc";
        assert_eq!(why(&pod).as_deref(), Some(message));
        pod.handler = ClassHandler::Of("runc".into());
        assert_eq!((runtime_handler(&pod), why(&pod)), ("runc", None));
        pod.handler = ClassHandler::Of("".into());
        assert_eq!((runtime_handler(&pod), why(&pod)), ("", None), "the default one");
    }

    #[test]
    fn only_namespaced_sysctls_can_be_allowed() {
        for (pattern, namespaced) in [
            ("kernel.sem", true),
            ("kernel.shm*", true),
            ("kernel/msg*", true),
            ("fs.mqueue.msg_max", true),
            ("net.*", true),
            ("net.core.somaxconn", true),
            ("kernel.*", false),
            ("vm.swappiness", false),
            ("*", false),
            ("", false),
        ] {
            assert_eq!(is_namespaced_sysctl(pattern), namespaced, "{pattern}");
        }
    }

    #[test]
    fn what_the_node_lacks_for_a_pod_of_a_cluster() {
        let node = NodeSettings::new("n", "/r");
        let why = |pod: &DesiredPod| refusal(&node, pod, None).map(|refusal| refusal.reason);
        let claims = pod(&json!({"resourceClaims": [{"name": "gpu"}]}), &json!({}));
        assert_eq!(why(&claims), Some("FailedPrepareDynamicResources"));
        let mut many = pod(&json!({}), &json!({}));
        assert_eq!(why(&many), None);
        many.too_many_objects = true;
        assert_eq!(why(&many), Some("TooManyObjects"));
        let bounds = (crate::limits::KUBE_OBJECTS_MAX, crate::limits::KUBE_OBJECTS_BYTES_MAX);
        assert_eq!(bounds, (1024, 2 << 20), "as TOO_MANY_OBJECTS has them");
    }
}
