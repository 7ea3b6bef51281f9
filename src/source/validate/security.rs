//! Security contexts (`validatePodSpecSecurityContext`, `ValidateSecurityContext`). PURE.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, PodSpec, SeccompProfile};

use super::{Check, names};

/// Largest user and group id.
const ID_MAX: i64 = i32::MAX as i64;

fn id(check: &mut Check, field: &str, value: Option<i64>) {
    if let Some(value) = value {
        check.at(field, |check| check.range(value, 0, ID_MAX));
    }
}

/// `spec.securityContext`, and the namespaces beside it.
pub(super) fn pod(check: &mut Check, spec: &PodSpec) {
    if spec.share_process_namespace == Some(true) && spec.host_pid == Some(true) {
        check
            .at("shareProcessNamespace", |check| check.invalid(true, "may not be true beside hostPID: true"));
    }
    let Some(context) = &spec.security_context else { return };
    check.at("securityContext", |check| {
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
        seccomp(check, context.seccomp_profile.as_ref());
        let mut seen = BTreeSet::new();
        check.each("sysctls", context.sysctls.as_deref().unwrap_or_default(), |check, sysctl| {
            check.at("name", |check| {
                if sysctl.name.is_empty() {
                    return check.required("the sysctl's name");
                }
                check.text(&sysctl.name, names::sysctl);
                let dotted = sysctl.name.replace('/', ".");
                if !seen.insert(sysctl.name.as_str()) {
                    check.invalid_text(&sysctl.name, "must be unique");
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
pub(super) fn container(check: &mut Check, container: &Container, spec: &PodSpec) {
    let Some(context) = &container.security_context else { return };
    check.at("securityContext", |check| {
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
fn seccomp(check: &mut Check, profile: Option<&SeccompProfile>) {
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
