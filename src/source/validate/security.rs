//! Security contexts (`validatePodSpecSecurityContext`, `ValidateSecurityContext`). PURE.

use k8s_openapi::api::core::v1::{
    AppArmorProfile, Container, Pod, PodSpec, SeccompProfile, WindowsSecurityContextOptions,
};

use super::Check;
use crate::model::SortedSet;
use crate::model::names;
use crate::render::admission::APPARMOR_ANNOTATION;

/// Largest user and group id.
const ID_MAX: i64 = i32::MAX as i64;

fn id(check: &mut Check<'_>, field: &str, value: Option<i64>) {
    if let Some(value) = value {
        check.at(field, |check| check.range(value, 0, ID_MAX));
    }
}

/// Options for Windows are ignored here, unless the pod says that it is one for Linux (`validateLinux`).
fn windows(check: &mut Check<'_>, options: Option<&WindowsSecurityContextOptions>, spec: &PodSpec) {
    if options.is_some() && spec.os.as_ref().is_some_and(|os| os.name == "linux") {
        check.at("windowsOptions", |check| check.forbidden("may not be given when os.name is linux"));
    }
}

/// `spec.securityContext`, and the namespaces beside it.
pub(super) fn pod(check: &mut Check<'_>, spec: &PodSpec) {
    if spec.host_users == Some(false) {
        // `validateHostUsers`.
        let hosts =
            [("hostNetwork", spec.host_network), ("hostPID", spec.host_pid), ("hostIPC", spec.host_ipc)];
        for (field, _) in hosts.iter().filter(|(_, host)| *host == Some(true)) {
            check.at(field, |check| check.invalid(true, "may not be true beside hostUsers: false"));
        }
    }
    if spec.share_process_namespace == Some(true) && spec.host_pid == Some(true) {
        check
            .at("shareProcessNamespace", |check| check.invalid(true, "may not be true beside hostPID: true"));
    }
    let Some(context) = &spec.security_context else { return };
    check.at("securityContext", |check| {
        windows(check, context.windows_options.as_ref(), spec);
        id(check, "fsGroup", context.fs_group);
        id(check, "runAsUser", context.run_as_user);
        id(check, "runAsGroup", context.run_as_group);
        check.each(
            "supplementalGroups",
            context.supplemental_groups.as_deref().unwrap_or_default(),
            |check, group| {
                check.range(*group, 0, ID_MAX);
            },
        );
        if let Some(policy) = context.fs_group_change_policy.as_deref() {
            check.at("fsGroupChangePolicy", |check| check.one_of(policy, &["OnRootMismatch", "Always"]));
        }
        if let Some(policy) = context.supplemental_groups_policy.as_deref() {
            check.at("supplementalGroupsPolicy", |check| check.one_of(policy, &["Merge", "Strict"]));
        }
        if let Some(policy) = context.se_linux_change_policy.as_deref() {
            check.at("seLinuxChangePolicy", |check| check.one_of(policy, &["MountOption", "Recursive"]));
        }
        seccomp(check, context.seccomp_profile.as_ref());
        app_armor(check, context.app_armor_profile.as_ref());
        let mut seen = SortedSet::new();
        check.each("sysctls", context.sysctls.as_deref().unwrap_or_default(), |check, sysctl| {
            check.at("name", |check| {
                if sysctl.name.is_empty() {
                    return check.required("the sysctl's name");
                }
                check.text(&sysctl.name, names::sysctl);
                let dotted = sysctl.name.replace('/', ".");
                if !seen.insert(sysctl.name.as_str()) {
                    check.duplicate(&sysctl.name, "");
                }
                if spec.host_network == Some(true) && dotted.starts_with("net.") {
                    check.invalid_text(&sysctl.name, "may not be set when hostNetwork is true");
                }
                let ipc = ["kernel.shm", "kernel.msg", "fs.mqueue."].iter().any(|p| dotted.starts_with(p))
                    || dotted == "kernel.sem";
                if spec.host_ipc == Some(true) && ipc {
                    check.invalid_text(&sysctl.name, "may not be set when hostIPC is true");
                }
            });
        });
    });
}

/// `securityContext` of a container.
pub(super) fn container(check: &mut Check<'_>, container: &Container, spec: &PodSpec) {
    let Some(context) = &container.security_context else { return };
    check.at("securityContext", |check| {
        windows(check, context.windows_options.as_ref(), spec);
        id(check, "runAsUser", context.run_as_user);
        id(check, "runAsGroup", context.run_as_group);
        if let Some(mount) = context.proc_mount.as_deref() {
            check.at("procMount", |check| {
                check.one_of(mount, &["Default", "Unmasked"]);
                if mount == "Unmasked" && spec.host_users != Some(false) {
                    check.invalid_text(mount, "needs hostUsers: false");
                }
            });
        }
        seccomp(check, context.seccomp_profile.as_ref());
        app_armor(check, context.app_armor_profile.as_ref());
        if context.allow_privilege_escalation == Some(false) {
            check.at("allowPrivilegeEscalation", |check| {
                if context.privileged == Some(true) {
                    check.invalid(false, "may not be false beside privileged: true");
                }
                let added =
                    context.capabilities.as_ref().and_then(|capabilities| capabilities.add.as_deref());
                if added.unwrap_or_default().iter().any(|capability| capability == "CAP_SYS_ADMIN") {
                    check.invalid(false, "may not be false beside the capability CAP_SYS_ADMIN");
                }
            });
        }
    });
}

/// `validateSeccompProfileField`.
fn seccomp(check: &mut Check<'_>, profile: Option<&SeccompProfile>) {
    let Some(profile) = profile else { return };
    check.at("seccompProfile", |check| {
        let localhost = profile.type_ == "Localhost";
        check.at("type", |check| {
            if profile.type_.is_empty() {
                check.required("RuntimeDefault, Unconfined or Localhost");
            } else {
                check.one_of(&profile.type_, &["RuntimeDefault", "Unconfined", "Localhost"]);
            }
        });
        check.at("localhostProfile", |check| match profile.localhost_profile.as_deref() {
            None if localhost => check.required("type is Localhost"),
            Some(path) if localhost => check.text(path, names::descending),
            Some(path) => check.invalid_text(path, "may only be given when type is Localhost"),
            None => {}
        });
    });
}

/// `ValidateAppArmorProfileField`.
fn app_armor(check: &mut Check<'_>, profile: Option<&AppArmorProfile>) {
    const NAME_BYTES_MAX: usize = 4095;
    let Some(profile) = profile else { return };
    check.at("appArmorProfile", |check| {
        check.at("type", |check| match profile.type_.as_str() {
            "" => check.required("RuntimeDefault, Unconfined or Localhost"),
            kind => check.one_of(kind, &["Localhost", "RuntimeDefault", "Unconfined"]),
        });
        check.at("localhostProfile", |check| match profile.localhost_profile.as_deref() {
            None | Some("") if profile.type_ == "Localhost" => check.required("type is Localhost"),
            Some(name) if profile.type_ != "Localhost" => {
                check.invalid_text(name, "may only be given when type is Localhost");
            }
            Some(name) if name.trim() != name || name.len() > NAME_BYTES_MAX => {
                check.invalid_text(name, "must have at most 4095 bytes and no blanks before or behind it");
            }
            None | Some(_) => {}
        });
    });
}

/// Profiles in annotations (`ValidateAppArmorPodAnnotations`, `validateAppArmorAnnotationsAndFieldsMatchOnCreate`).
pub(super) fn app_armor_annotations(check: &mut Check<'_>, pod: &Pod) {
    let Some(spec) = &pod.spec else { return };
    let find = |name: &str| {
        let mut all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
        all.find(|container| container.name == name)
    };
    for (key, value) in pod.metadata.annotations.iter().flatten() {
        let Some(name) = key.strip_prefix(APPARMOR_ANNOTATION) else { continue };
        check.at("annotations", |check| {
            let Some(container) = find(name) else {
                return check.at(key, |check| check.wrong("names no container of the pod"));
            };
            let (kind, local) = match value.as_str() {
                "" => return,
                "runtime/default" => ("RuntimeDefault", None),
                "unconfined" => ("Unconfined", None),
                value => {
                    let Some(local) = value.strip_prefix("localhost/") else {
                        let allowed = "must be runtime/default, unconfined or localhost/NAME";
                        return check.at(key, |check| check.invalid_text(value, allowed));
                    };
                    ("Localhost", Some(local))
                }
            };
            let field = container.security_context.as_ref().and_then(|own| own.app_armor_profile.as_ref());
            if field.is_some_and(|f| {
                f.type_ != kind || local.is_some() && f.localhost_profile.as_deref() != local
            }) {
                check
                    .at(key, |check| check.invalid_text(value, "must be as the container's appArmorProfile"));
            }
        });
    }
}
