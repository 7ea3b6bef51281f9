//! Confinement of a container: seccomp, `AppArmor`. PURE. Follows containerd's `sputil`.

use super::runtime_spec::{Process, Seccomp};
use super::{Input, SpecError, seccomp};
use crate::limits::SECCOMP_PROFILE_BYTES_MAX;
use crate::proto::runtime::v1::security_profile::ProfileType;
use crate::proto::runtime::v1::{LinuxContainerSecurityContext, SecurityProfile};

/// The name of our `AppArmor` profile; the runtime loads [`apparmor_profile`] where the kernel has `AppArmor`.
pub const APPARMOR_PROFILE_NAME: &str = "smolet-default";

/// Our `AppArmor` profile, for `apparmor_parser --replace`: beside its capabilities a container may do what concerns itself. It
/// does not mount, does not write what is the machine's below `/proc` and `/sys` (also where nothing masks it), and no other
/// container traces it or sends it signals.
///
/// A process may have a stack of two profiles, which count as one name in the order of the alphabet: with `no_new_privs` crun adds ours to
/// its own where the distribution has one (`crun//&smolet-default`), and since Linux 6.17 a command in a container has
/// `smolet-default//&unconfined`.
const APPARMOR_PROFILE: &str = "\
#include <tunables/global>

profile smolet-default flags=(attach_disconnected,mediate_deleted) {
  #include <abstractions/base>

  network,
  capability,
  file,
  umount,
  deny mount,

  # The agent and the OCI runtime are not confined, or by a profile of the distribution.
  signal (receive) peer=unconfined,
  signal (receive) peer={runc,crun,/usr/bin/runc,/usr/bin/crun,/usr/sbin/runc},
  signal (send,receive) peer={,crun//&,runc//&}smolet-default{,//&unconfined},
  ptrace (trace,read,tracedby,readby) peer={,crun//&,runc//&}smolet-default{,//&unconfined},

  # The kernel's memory, and its emergency keys.
  deny @{PROC}/{kcore,kmem,mem,sysrq-trigger} rwklx,
  # Parameters of the whole machine; those below kernel/ that begin with msg, sem or shm are of an IPC namespace.
  deny @{PROC}/{acpi,bus,fs,irq,scsi}/** wklx,
  deny @{PROC}/sys/{abi,debug,dev,fs,net,user,vm}/** wklx,
  deny @{PROC}/sys/kernel/{[^ms],m[^s],ms[^g],s[^eh],se[^m],sh[^m]}** wklx,

  # Hardware and drivers; cgroups are left, as they are the container's own.
  deny /sys/{block,bus,class,dev,devices,hypervisor,kernel,module,power}/** wklx,
  deny /sys/fs/[^c]** wklx,
  deny /sys/{firmware,kernel/security,devices/virtual/powercap}/** rwklx,
}
";

/// Our profile, where the distribution has these files below `/etc/apparmor.d`: one that a file lacks does without, as containerd's.
pub fn apparmor_profile(has: impl Fn(&str) -> bool) -> String {
    let mut text = APPARMOR_PROFILE.to_owned();
    for (file, instead) in [("tunables/global", "@{PROC}=/proc/"), ("abstractions/base", "")] {
        if !has(file) {
            text = text.replace(&format!("#include <{file}>"), instead);
        }
    }
    text
}

/// Whether the runtime's default profile may confine a container with this context: not a privileged one, and not one that names another. PURE.
pub fn may_want_default_apparmor(context: &LinuxContainerSecurityContext) -> bool {
    let is_default =
        |profile: &SecurityProfile| profile.profile_type == i32::from(ProfileType::RuntimeDefault);
    let wants = match &context.apparmor {
        Some(profile) => is_default(profile),
        None if context.apparmor_profile.is_empty() => true,
        None => of_deprecated("", &context.apparmor_profile).is_ok_and(|profile| is_default(&profile)),
    };
    wants && !context.privileged
}

/// The `AppArmor` profile of the container's processes; empty is none:
///
/// | asks for        | kernel without `AppArmor` | privileged | else                          |
/// |-----------------|-------------------------|------------|-------------------------------|
/// | nothing         | none                    | none       | ours, when it is loaded       |
/// | `RuntimeDefault`  | refused                 | none       | ours, refused when not loaded |
/// | Unconfined      | none                    | none       | none                          |
/// | Localhost       | refused                 | the named  | the named, when it is loaded  |
///
/// Ours is loaded when a container is created, or that fails, as with containerd; a node without `apparmor_parser` counts as one without
/// `AppArmor` there, and who asks for nothing gets nothing, as here.
pub(super) fn apparmor(
    input: &Input<'_>,
    context: &LinuxContainerSecurityContext,
) -> Result<String, SpecError> {
    const FIELD: &str = "linux.security_context.apparmor";
    let of_path;
    let asked = match &context.apparmor {
        Some(profile) => Some(profile),
        None if context.apparmor_profile.is_empty() => None,
        None => {
            of_path = of_deprecated("linux.security_context.apparmor_profile", &context.apparmor_profile)?;
            Some(&of_path)
        }
    };
    let kind = asked.map(|profile| kind(FIELD, profile)).transpose()?;
    let Some(loaded) = input.apparmor else {
        return match kind {
            None | Some(ProfileType::Unconfined) => Ok(String::new()),
            Some(ProfileType::RuntimeDefault | ProfileType::Localhost) => {
                Err(SpecError::unsupported(FIELD, "the kernel has AppArmor not enabled; remove the profile"))
            }
        };
    };
    let is_loaded = |name: &str| is_apparmor_loaded(loaded, name);
    match kind {
        None | Some(ProfileType::RuntimeDefault)
            if !context.privileged && is_loaded(APPARMOR_PROFILE_NAME) =>
        {
            Ok(APPARMOR_PROFILE_NAME.to_owned())
        }
        None | Some(ProfileType::Unconfined) => Ok(String::new()),
        Some(ProfileType::RuntimeDefault) if context.privileged => Ok(String::new()),
        Some(ProfileType::RuntimeDefault) => Err(SpecError::unsupported(
            FIELD,
            "the runtime's default profile is not loaded: apparmor_parser is not installed; apt install apparmor",
        )),
        Some(ProfileType::Localhost) => {
            let name = asked.map_or("", |profile| local_name(profile));
            if name.is_empty() || !is_loaded(name) {
                return Err(SpecError::invalid(
                    FIELD,
                    format!("no AppArmor profile {name:?} is loaded on the node"),
                ));
            }
            Ok(name.to_owned())
        }
    }
}

/// Whether a profile is among those of the kernel's list, whose lines are `NAME (MODE)`.
pub fn is_apparmor_loaded(profiles: &str, name: &str) -> bool {
    profiles.lines().any(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(" (")))
}

/// The seccomp filter of the container's processes: none for a privileged one, and none where none is asked for.
pub(super) fn seccomp(
    input: &Input<'_>,
    context: &LinuxContainerSecurityContext,
    process: &Process,
) -> Result<Option<Seccomp>, SpecError> {
    const FIELD: &str = "linux.security_context.seccomp";
    if context.privileged {
        return Ok(None);
    }
    let of_path;
    let asked = match &context.seccomp {
        Some(profile) => profile,
        None if context.seccomp_profile_path.is_empty() => return Ok(None),
        None => {
            of_path =
                of_deprecated("linux.security_context.seccomp_profile_path", &context.seccomp_profile_path)?;
            &of_path
        }
    };
    match kind(FIELD, asked)? {
        ProfileType::Unconfined => Ok(None),
        ProfileType::RuntimeDefault | ProfileType::Localhost if !input.node.seccomp => {
            Err(SpecError::unsupported(
                FIELD,
                "the kernel has no seccomp filters; set seccompProfile to Unconfined",
            ))
        }
        ProfileType::RuntimeDefault => Ok(Some(seccomp::default_profile(&process.capabilities.bounding))),
        ProfileType::Localhost => {
            let path = local_name(asked);
            let invalid = |why: String| SpecError::invalid(FIELD, format!("profile {path:?}: {why}"));
            let text =
                input.seccomp_profile.ok_or_else(|| invalid("it is not to be found on the node".into()))?;
            SpecError::at_most("bytes of the seccomp profile", text.len(), SECCOMP_PROFILE_BYTES_MAX)?;
            serde_json::from_slice(text)
                .map(Some)
                .map_err(|error| invalid(format!("{error}; see the OCI runtime-spec")))
        }
    }
}

fn kind(field: &'static str, profile: &SecurityProfile) -> Result<ProfileType, SpecError> {
    let kind = ProfileType::try_from(profile.profile_type).map_err(|_| {
        SpecError::invalid(field, format!("no profile type has the number {}", profile.profile_type))
    })?;
    if kind != ProfileType::Localhost && !profile.localhost_ref.is_empty() {
        return Err(SpecError::invalid(
            field,
            "localhost_ref is set, and the profile's type is not Localhost",
        ));
    }
    Ok(kind)
}

/// The profile that a deprecated field's text names (`generateSecurityProfile`).
fn of_deprecated(field: &'static str, text: &str) -> Result<SecurityProfile, SpecError> {
    let profile = |kind: ProfileType, name: &str| SecurityProfile {
        profile_type: kind.into(),
        localhost_ref: name.to_owned(),
    };
    match text {
        "runtime/default" | "docker/default" => Ok(profile(ProfileType::RuntimeDefault, "")),
        "unconfined" => Ok(profile(ProfileType::Unconfined, "")),
        text => match text.strip_prefix("localhost/") {
            Some(name) => Ok(profile(ProfileType::Localhost, name)),
            None => Err(SpecError::invalid(
                field,
                format!("{text:?} is not runtime/default, unconfined or localhost/NAME"),
            )),
        },
    }
}

/// The name or path of a profile of the node's owner.
fn local_name(profile: &SecurityProfile) -> &str {
    profile.localhost_ref.strip_prefix("localhost/").unwrap_or(&profile.localhost_ref)
}
