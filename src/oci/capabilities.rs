//! The capabilities of a container's processes. PURE.

use std::borrow::Cow;

use super::runtime_spec::Capabilities;
use super::{NodeFacts, SpecError};
use crate::proto::runtime::v1::LinuxContainerSecurityContext;

/// All of the kernel's, in its order: a capability's number is its place.
const ALL: [&str; 41] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_DAC_READ_SEARCH",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETPCAP",
    "CAP_LINUX_IMMUTABLE",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_BROADCAST",
    "CAP_NET_ADMIN",
    "CAP_NET_RAW",
    "CAP_IPC_LOCK",
    "CAP_IPC_OWNER",
    "CAP_SYS_MODULE",
    "CAP_SYS_RAWIO",
    "CAP_SYS_CHROOT",
    "CAP_SYS_PTRACE",
    "CAP_SYS_PACCT",
    "CAP_SYS_ADMIN",
    "CAP_SYS_BOOT",
    "CAP_SYS_NICE",
    "CAP_SYS_RESOURCE",
    "CAP_SYS_TIME",
    "CAP_SYS_TTY_CONFIG",
    "CAP_MKNOD",
    "CAP_LEASE",
    "CAP_AUDIT_WRITE",
    "CAP_AUDIT_CONTROL",
    "CAP_SETFCAP",
    "CAP_MAC_OVERRIDE",
    "CAP_MAC_ADMIN",
    "CAP_SYSLOG",
    "CAP_WAKE_ALARM",
    "CAP_BLOCK_SUSPEND",
    "CAP_AUDIT_READ",
    "CAP_PERFMON",
    "CAP_BPF",
    "CAP_CHECKPOINT_RESTORE",
];

/// Those of a container that asks for none: Docker's and containerd's fourteen.
pub(super) const DEFAULT: [&str; 14] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FSETID",
    "CAP_FOWNER",
    "CAP_MKNOD",
    "CAP_NET_RAW",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETFCAP",
    "CAP_SETPCAP",
    "CAP_NET_BIND_SERVICE",
    "CAP_SYS_CHROOT",
    "CAP_KILL",
    "CAP_AUDIT_WRITE",
];

/// The sets of a container (`WithCapabilities`):
///
/// | asks for           | bounding, effective, permitted            |
/// |--------------------|-------------------------------------------|
/// | nothing            | the default ones                          |
/// | add X              | the default ones and X                    |
/// | drop X             | the default ones without X                |
/// | add ALL, drop X    | the agent's own without X                 |
/// | drop ALL, add X    | X                                         |
/// | add ALL, drop ALL  | those added by name, for dropping is later |
/// | privileged         | the agent's own                           |
///
/// Ambient ones are in all sets, as the CRI says; containerd passes over them (and the kubelet never sends them). A name that is
/// no capability is refused as by CRI-O: with runc it would be missing, with crun the container would fail.
pub(super) fn of_container(
    context: &LinuxContainerSecurityContext,
    node: &NodeFacts,
) -> Result<Capabilities, SpecError> {
    let known_to_kernel = &ALL[..ALL.len().min(usize::from(node.last_capability) + 1)];
    let all = || {
        let numbered = known_to_kernel.iter().enumerate();
        numbered.filter(|(number, _)| node.capabilities >> number & 1 == 1).map(|(_, name)| *name).collect()
    };
    if context.privileged {
        return Ok(sets(all(), &[]));
    }
    let Some(asked) = &context.capabilities else { return Ok(sets(DEFAULT.to_vec(), &[])) };
    let is_all = |name: &String| name.eq_ignore_ascii_case("ALL");
    let mut held = DEFAULT.to_vec();
    if asked.add_capabilities.iter().any(is_all) {
        held = all();
    }
    if asked.drop_capabilities.iter().any(is_all) {
        held.clear();
    }
    for name in asked.add_capabilities.iter().filter(|name| !is_all(name)) {
        let name = known("linux.security_context.capabilities.add_capabilities", name)?;
        if !held.contains(&name) {
            held.push(name);
        }
    }
    for name in asked.drop_capabilities.iter().filter(|name| !is_all(name)) {
        let name = known("linux.security_context.capabilities.drop_capabilities", name)?;
        held.retain(|one| *one != name);
    }
    let mut ambient = Vec::new();
    for name in &asked.add_ambient_capabilities {
        let name = known("linux.security_context.capabilities.add_ambient_capabilities", name)?;
        if known_to_kernel.contains(&name) && !ambient.contains(&name) {
            ambient.push(name);
        }
        if !held.contains(&name) {
            held.push(name);
        }
    }
    // What only a newer kernel has is passed over, as by runc.
    held.retain(|name| known_to_kernel.contains(name));
    Ok(sets(held, &ambient))
}

fn sets(held: Vec<&'static str>, ambient: &[&'static str]) -> Capabilities {
    let held: Vec<Cow<'static, str>> = held.into_iter().map(Cow::Borrowed).collect();
    let ambient = super::borrowed(ambient);
    Capabilities {
        bounding: held.clone(),
        effective: held.clone(),
        permitted: held,
        inheritable: ambient.clone(),
        ambient,
    }
}

/// `net_admin`, `NET_ADMIN` or `CAP_NET_ADMIN` → `CAP_NET_ADMIN`.
fn known(field: &'static str, name: &str) -> Result<&'static str, SpecError> {
    let upper = name.to_ascii_uppercase();
    let bare = upper.strip_prefix("CAP_").unwrap_or(&upper);
    ALL.iter().find(|one| one.strip_prefix("CAP_") == Some(bare)).copied().ok_or_else(|| {
        SpecError::invalid(field, format!("no capability has the name {name:?}; see capabilities(7)"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oci::tests::node;
    use crate::proto::runtime::v1::Capability;

    #[test]
    fn capabilities_of_a_container() {
        let listed = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        for (add, drop, ambient, expected) in [
            ("", "", "", Ok((14, "CAP_CHOWN", ""))),
            ("NET_ADMIN", "", "", Ok((15, "CAP_NET_ADMIN CAP_CHOWN", ""))),
            ("cap_net_admin chown", "", "", Ok((15, "CAP_NET_ADMIN", "CAP_SYS_ADMIN"))),
            ("", "net_raw", "", Ok((13, "CAP_CHOWN", "CAP_NET_RAW"))),
            ("ALL", "", "", Ok((41, "CAP_SYS_ADMIN CAP_CHECKPOINT_RESTORE", ""))),
            ("all", "CHOWN", "", Ok((40, "CAP_BPF", "CAP_CHOWN"))),
            ("SYS_TIME", "ALL", "", Ok((1, "CAP_SYS_TIME", ""))),
            ("ALL SYS_TIME", "All", "", Ok((1, "CAP_SYS_TIME", ""))),
            ("SYS_TIME", "SYS_TIME", "", Ok((14, "", "CAP_SYS_TIME"))),
            ("", "ALL", "NET_BIND_SERVICE", Ok((1, "CAP_NET_BIND_SERVICE", ""))),
            ("NET_ADMINS", "", "", Err("add_capabilities: no capability has the name \"NET_ADMINS\"")),
            ("", "X", "", Err("drop_capabilities: no capability")),
            ("", "", "X", Err("add_ambient_capabilities: no capability")),
        ] {
            let context = LinuxContainerSecurityContext {
                capabilities: Some(Capability {
                    add_capabilities: listed(add),
                    drop_capabilities: listed(drop),
                    add_ambient_capabilities: listed(ambient),
                }),
                ..Default::default()
            };
            match (of_container(&context, &node()), expected) {
                (Ok(sets), Ok((count, with, without))) => {
                    assert_eq!(sets.bounding.len(), count, "{add} {drop}");
                    assert!(sets.bounding == sets.effective && sets.bounding == sets.permitted);
                    assert!(
                        with.split_whitespace().all(|name| sets.bounding.contains(&name.into())),
                        "{add}"
                    );
                    assert!(
                        !without.split_whitespace().any(|name| sets.bounding.contains(&name.into())),
                        "{drop}"
                    );
                    assert_eq!(sets.ambient.len(), ambient.split_whitespace().count());
                    assert_eq!(sets.ambient, sets.inheritable);
                }
                (Err(error), Err(shown)) => assert!(error.to_string().contains(shown), "{error}"),
                (found, expected) => panic!("{add} {drop}: {found:?}, not {expected:?}"),
            }
        }
    }

    #[test]
    fn an_older_kernel_has_fewer() {
        let old = NodeFacts { last_capability: 37, ..node() };
        let privileged = LinuxContainerSecurityContext { privileged: true, ..Default::default() };
        assert_eq!(of_container(&privileged, &old).unwrap().bounding.len(), 38);
        let capabilities = Some(Capability { add_capabilities: vec!["BPF".into()], ..Default::default() });
        let asks = LinuxContainerSecurityContext { capabilities, ..Default::default() };
        assert_eq!(of_container(&asks, &old).unwrap().bounding.len(), 14);
        assert_eq!(of_container(&asks, &node()).unwrap().bounding.len(), 15);
        let bound = NodeFacts { capabilities: !0b11, ..node() };
        assert_eq!(of_container(&privileged, &bound).unwrap().bounding[0], "CAP_DAC_READ_SEARCH");
    }
}
