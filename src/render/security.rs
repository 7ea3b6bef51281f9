//! Security contexts, profiles, namespaces and users. PURE.
//! Follows `security_context.go`, `kuberuntime/util`, `pkg/securitycontext` and `pkg/security/apparmor`.

use k8s_openapi::api::core::v1::{
    AppArmorProfile, Capabilities, Container, PodSecurityContext, SELinuxOptions, SeccompProfile,
};

use super::NodeSettings;
use super::admission::APPARMOR_ANNOTATION;
use crate::model::DesiredPod;
use crate::model::runtime::Image;
use crate::proto::runtime::v1::{
    self as proto, Capability, IdMapping, Int64Value, LinuxContainerSecurityContext, NamespaceMode,
    NamespaceOption, SeLinuxOption, SecurityProfile, SupplementalGroupsPolicy, security_profile::ProfileType,
};
use crate::text::quoted;

const MASKED_PATHS: [&str; 12] = [
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];

const READONLY_PATHS: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// The user in an image's configuration (`getImageUser`): a number, else a name; neither = root.
pub(super) enum ImageUser<'a> {
    Uid(i64),
    Name(&'a str),
}

pub(super) fn image_user(image: Option<&Image>) -> ImageUser<'_> {
    match image {
        Some(Image { uid: Some(uid), .. }) => ImageUser::Uid(*uid),
        Some(image) if !image.username.is_empty() => ImageUser::Name(&image.username),
        Some(_) | None => ImageUser::Uid(0),
    }
}

/// The container's value, else the pod's (`DetermineEffectiveSecurityContext`).
macro_rules! effective {
    ($pod:expr, $container:expr, $field:ident) => {
        $container
            .security_context
            .as_ref()
            .and_then(|own| own.$field.as_ref())
            .or_else(|| $pod.spec().security_context.as_ref().and_then(|of_pod| of_pod.$field.as_ref()))
    };
}

/// Rejects a container that must not run as root and would, or might (`verifyRunAsNonRoot`).
pub(super) fn verify_run_as_non_root(
    pod: &DesiredPod,
    container: &Container,
    user: &ImageUser<'_>,
) -> Result<(), String> {
    if effective!(pod, container, run_as_non_root) != Some(&true) {
        return Ok(());
    }
    let why = match (effective!(pod, container, run_as_user), user) {
        (Some(0), _) => "container's runAsUser breaks non-root policy".to_owned(),
        (None, ImageUser::Name(name)) => format!(
            "container has runAsNonRoot and image has non-numeric user ({name}), cannot verify user is non-root"
        ),
        (None, ImageUser::Uid(0)) => "container has runAsNonRoot and image will run as root".to_owned(),
        (None, ImageUser::Uid(uid)) if *uid < 0 || *uid > i64::from(i32::MAX) => format!(
            "container has runAsNonRoot and image has an invalid user id ({uid}). (Must be 1-({max})): must be \
             between 0 and {max}, inclusive",
            max = i32::MAX
        ),
        (Some(_), _) | (None, ImageUser::Uid(_)) => return Ok(()),
    };
    Err(format!("{why} (pod: {}, container: {})", quoted(&pod.key.kubelet_format()), container.name))
}

/// A container's security context (`determineEffectiveSecurityContext`).
pub(super) fn container_security_context(
    node: &NodeSettings,
    pod: &DesiredPod,
    container: &Container,
    user: &ImageUser<'_>,
    user_namespace: Option<UserNamespace>,
) -> Result<LinuxContainerSecurityContext, String> {
    let own = container.security_context.as_ref();
    let of_pod = pod.spec().security_context.as_ref();
    let mut context = LinuxContainerSecurityContext {
        capabilities: own.and_then(|own| own.capabilities.as_ref()).map(capabilities),
        privileged: own.and_then(|own| own.privileged).unwrap_or(false),
        namespace_options: Some(namespaces(pod, user_namespace)?),
        selinux_options: effective!(pod, container, se_linux_options).map(selinux_option),
        run_as_user: effective!(pod, container, run_as_user).map(|&value| Int64Value { value }),
        run_as_group: effective!(pod, container, run_as_group).map(|&value| Int64Value { value }),
        readonly_rootfs: own.and_then(|own| own.read_only_root_filesystem).unwrap_or(false),
        supplemental_groups: supplemental_groups(of_pod),
        no_new_privs: own.and_then(|own| own.allow_privilege_escalation) == Some(false),
        ..LinuxContainerSecurityContext::default()
    };
    context.seccomp = Some(seccomp(node, effective!(pod, container, seccomp_profile))?);
    if let Some((profile, deprecated)) = apparmor(pod, container)? {
        context.apparmor = Some(profile);
        context.apparmor_profile = deprecated;
    }
    if context.run_as_user.is_none() {
        match user {
            ImageUser::Uid(uid) => context.run_as_user = Some(Int64Value { value: *uid }),
            ImageUser::Name(name) => context.run_as_username = String::from(*name),
        }
    }
    context.supplemental_groups_policy = supplemental_groups_policy(of_pod)?;
    if own.and_then(|own| own.proc_mount.as_deref()) != Some("Unmasked") {
        let throttle = node.thermal_throttle_paths.iter().map(ToString::to_string);
        context.masked_paths = MASKED_PATHS.into_iter().map(str::to_owned).chain(throttle).collect();
        context.readonly_paths = READONLY_PATHS.map(str::to_owned).into();
    }
    Ok(context)
}

fn capabilities(of: &Capabilities) -> Capability {
    Capability {
        add_capabilities: of.add.clone().unwrap_or_default(),
        drop_capabilities: of.drop.clone().unwrap_or_default(),
        ..Capability::default()
    }
}

pub(super) fn selinux_option(of: &SELinuxOptions) -> SeLinuxOption {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    SeLinuxOption {
        user: text(&of.user),
        role: text(&of.role),
        r#type: text(&of.type_),
        level: text(&of.level),
    }
}

/// fsGroup first, then the other groups in spec order.
pub(super) fn supplemental_groups(of: Option<&PodSecurityContext>) -> Vec<i64> {
    let groups = of.and_then(|of| of.supplemental_groups.as_deref()).unwrap_or_default();
    of.and_then(|of| of.fs_group).into_iter().chain(groups.iter().copied()).collect()
}

pub(super) fn supplemental_groups_policy(of: Option<&PodSecurityContext>) -> Result<i32, String> {
    match of.and_then(|of| of.supplemental_groups_policy.as_deref()) {
        None => Ok(SupplementalGroupsPolicy::Merge as i32),
        Some(policy) => SupplementalGroupsPolicy::from_str_name(policy)
            .map(|policy| policy as i32)
            .ok_or_else(|| format!("unsupported supplementalGroupsPolicy: {policy}")),
    }
}

/// The namespaces a pod shares with its node or among its containers (`NamespacesForPod`).
///
/// Differs from the kubelet: its explicit node-level user namespace is left out, which runtimes treat the same.
pub(super) fn namespaces(
    pod: &DesiredPod,
    user_namespace: Option<UserNamespace>,
) -> Result<NamespaceOption, String> {
    let spec = pod.spec();
    let users = match (spec.host_users, user_namespace) {
        (Some(false), Some(users)) => Some(users.options()),
        (Some(false), None) => {
            return Err("can't set `spec.hostUsers: false`, runtime does not support user namespaces".into());
        }
        (Some(true) | None, _) => None,
    };
    let node_or_pod =
        |host: Option<bool>| if host == Some(true) { NamespaceMode::Node } else { NamespaceMode::Pod };
    let pid = if spec.host_pid == Some(true) {
        NamespaceMode::Node
    } else if spec.share_process_namespace == Some(true) {
        NamespaceMode::Pod
    } else {
        NamespaceMode::Container
    };
    Ok(NamespaceOption {
        network: node_or_pod(spec.host_network) as i32,
        pid: pid as i32,
        ipc: node_or_pod(spec.host_ipc) as i32,
        userns_options: users,
        ..NamespaceOption::default()
    })
}

/// A pod's own user namespace: its id 0 is the node's id [`Self::first`], and so on for [`Self::LENGTH`] ids
/// (`userns.Manager`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserNamespace {
    /// The id on the node of the pod's root.
    pub first: u32,
}

impl UserNamespace {
    /// Number of ids per pod (`userNsUnitLength`).
    pub const LENGTH: u32 = 65_536;

    /// The mapping, the same for users and groups.
    pub(super) fn mappings(self) -> Vec<IdMapping> {
        vec![IdMapping { host_id: self.first, container_id: 0, length: Self::LENGTH }]
    }

    fn options(self) -> proto::UserNamespace {
        let mode = NamespaceMode::Pod as i32;
        proto::UserNamespace { mode, uids: self.mappings(), gids: self.mappings() }
    }
}

fn profile(kind: ProfileType, localhost_ref: String) -> SecurityProfile {
    SecurityProfile { profile_type: kind as i32, localhost_ref }
}

/// `RuntimeDefault`, the profile of every sandbox.
pub(super) fn runtime_default() -> SecurityProfile {
    profile(ProfileType::RuntimeDefault, String::new())
}

/// `getSeccompProfile`, `fieldSeccompProfile`.
fn seccomp(node: &NodeSettings, of: Option<&SeccompProfile>) -> Result<SecurityProfile, String> {
    Ok(match of.map(|of| of.type_.as_str()) {
        None if node.seccomp_default => runtime_default(),
        Some("RuntimeDefault") => runtime_default(),
        Some("Localhost") => match of
            .and_then(|of| of.localhost_profile.as_deref())
            .filter(|name| !name.is_empty())
        {
            Some(name) => {
                profile(ProfileType::Localhost, joined(&format!("{}/seccomp", node.root_dir), name))
            }
            None => return Err("localhostProfile must be set if seccompProfile type is Localhost.".into()),
        },
        None | Some(_) => profile(ProfileType::Unconfined, String::new()),
    })
}

/// Go's `filepath.Join` of an absolute directory and a name: no `.`, no `..`, no empty element.
fn joined(folder: &str, name: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in folder.split('/').chain(name.split('/')) {
        match part {
            "" | "." => {}
            ".." => _ = parts.pop(),
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

/// The profile and its deprecated spelling, which older runtimes read (`getAppArmorProfile`).
fn apparmor(pod: &DesiredPod, container: &Container) -> Result<Option<(SecurityProfile, String)>, String> {
    let own = container.security_context.as_ref().and_then(|own| own.app_armor_profile.as_ref());
    let annotated = apparmor_annotation(pod, &container.name);
    let of_pod = pod.spec().security_context.as_ref().and_then(|of_pod| of_pod.app_armor_profile.as_ref());
    let Some(of) = own.or(annotated.as_ref()).or(of_pod) else { return Ok(None) };
    Ok(Some(match of.type_.as_str() {
        "RuntimeDefault" => (runtime_default(), "runtime/default".to_owned()),
        "Unconfined" => (profile(ProfileType::Unconfined, String::new()), "unconfined".to_owned()),
        "Localhost" => {
            let name = of.localhost_profile.clone().ok_or("missing localhost apparmor profile name")?;
            let deprecated = format!("localhost/{name}");
            (profile(ProfileType::Localhost, name), deprecated)
        }
        other => return Err(format!("unknown apparmor profile type: {}", quoted(other))),
    }))
}

/// Static pods may carry the profile in an annotation alone (`getProfileFromPodAnnotations`).
fn apparmor_annotation(pod: &DesiredPod, container: &str) -> Option<AppArmorProfile> {
    let key = format!("{APPARMOR_ANNOTATION}{container}");
    let value = pod.pod.metadata.annotations.as_ref()?.get(&key)?;
    let of = |kind: &str, name: Option<&str>| AppArmorProfile {
        type_: kind.to_owned(),
        localhost_profile: name.map(str::to_owned),
    };
    match value.as_str() {
        "runtime/default" => Some(of("RuntimeDefault", None)),
        "unconfined" => Some(of("Unconfined", None)),
        value => value.strip_prefix("localhost/").map(|name| of("Localhost", Some(name))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(of_pod: &Value, own: &Value, annotations: &Value) -> DesiredPod {
        let pod = json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u", "annotations": annotations},
            "spec": {"securityContext": of_pod, "containers": [{"name": "c", "securityContext": own}]}});
        DesiredPod::new(serde_json::from_value(pod).unwrap())
    }

    fn context(
        of_pod: &Value,
        own: &Value,
        annotations: &Value,
    ) -> Result<LinuxContainerSecurityContext, String> {
        let node = NodeSettings::new("n", "/var/lib/smolet");
        let pod = pod(of_pod, own, annotations);
        container_security_context(&node, &pod, &pod.containers()[0], &ImageUser::Name("app"), None)
    }

    #[test]
    fn a_profile_is_the_containers_else_the_annotations_else_the_pods() {
        let field = |kind: &str| json!({"appArmorProfile": {"type": kind, "localhostProfile": "mine"}});
        let note = |value: &str| json!({"container.apparmor.security.beta.kubernetes.io/c": value});
        for (of_pod, own, annotations, expected) in [
            (json!({}), json!({}), json!({}), Ok("")),
            (field("Unconfined"), json!({}), json!({}), Ok("unconfined")),
            (field("Unconfined"), json!({}), note("runtime/default"), Ok("runtime/default")),
            (field("Unconfined"), json!({}), note("nonsense"), Ok("unconfined")),
            (json!({}), json!({}), note("localhost/x"), Ok("localhost/x")),
            (json!({}), json!({}), note("unconfined"), Ok("unconfined")),
            (json!({}), field("Localhost"), note("unconfined"), Ok("localhost/mine")),
            (json!({}), field("Odd"), json!({}), Err("unknown apparmor profile type: \"Odd\"")),
            (
                json!({}),
                json!({"appArmorProfile": {"type": "Localhost"}}),
                json!({}),
                Err("missing localhost apparmor profile name"),
            ),
        ] {
            let ours = context(&of_pod, &own, &annotations).map(|ours| ours.apparmor_profile);
            assert_eq!(
                ours,
                expected.map(str::to_owned).map_err(str::to_owned),
                "{of_pod} {own} {annotations}"
            );
        }
    }

    #[test]
    fn a_local_seccomp_profile_stays_below_its_folder_as_the_kubelet_joins_it() {
        let own = |name: &str| json!({"seccompProfile": {"type": "Localhost", "localhostProfile": name}});
        let path = |name: &str| {
            context(&json!({}), &own(name), &json!({})).map(|c| c.seccomp.unwrap().localhost_ref)
        };
        assert_eq!(path("a/./b.json").as_deref(), Ok("/var/lib/smolet/seccomp/a/b.json"));
        assert!(path("").unwrap_err().starts_with("localhostProfile must be set"));
    }

    #[test]
    fn a_named_image_user_is_passed_on_by_name() {
        let ours = context(&json!({}), &json!({}), &json!({})).unwrap();
        assert_eq!((ours.run_as_user, &*ours.run_as_username), (None, "app"));
        let ours = context(&json!({"runAsUser": 7}), &json!({}), &json!({})).unwrap();
        assert_eq!((ours.run_as_user.map(|user| user.value), &*ours.run_as_username), (Some(7), ""));
    }

    #[test]
    fn an_unknown_groups_policy_is_refused() {
        let error = context(&json!({"supplementalGroupsPolicy": "Odd"}), &json!({}), &json!({})).unwrap_err();
        assert_eq!(error, "unsupported supplementalGroupsPolicy: Odd");
        let ours = context(
            &json!({"supplementalGroupsPolicy": "Strict", "fsGroup": 5, "supplementalGroups": [4, 5]}),
            &json!({"procMount": "Unmasked"}),
            &json!({}),
        )
        .unwrap();
        assert_eq!((ours.supplemental_groups_policy, ours.supplemental_groups), (1, vec![5, 4, 5]));
        assert!(ours.masked_paths.is_empty() && ours.readonly_paths.is_empty());
    }

    #[test]
    fn who_must_not_be_root_is_not() {
        let non_root = json!({"runAsNonRoot": true});
        for (own, user, expected) in [
            (json!({}), ImageUser::Uid(1), None),
            (json!({}), ImageUser::Uid(0), Some("image will run as root")),
            (json!({}), ImageUser::Uid(-1), Some("invalid user id (-1)")),
            (json!({}), ImageUser::Name("web"), Some("non-numeric user (web)")),
            (json!({"runAsUser": 0}), ImageUser::Uid(1), Some("runAsUser breaks non-root policy")),
            (json!({"runAsUser": 9}), ImageUser::Uid(0), None),
            (json!({"runAsNonRoot": false}), ImageUser::Uid(0), None),
        ] {
            let pod = pod(&non_root, &own, &json!({}));
            let ours = verify_run_as_non_root(&pod, &pod.containers()[0], &user).err();
            assert_eq!(ours.is_some(), expected.is_some(), "{own} {ours:?}");
            assert!(ours.unwrap_or_default().contains(expected.unwrap_or_default()));
        }
    }
}
