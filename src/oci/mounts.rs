//! The mounts of a container: the system's, the pod's files, the image's volumes, the CRI's. PURE.
//! Follows containerd's `withMounts`, `linuxContainerMounts` and `volumeMounts`.

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::runtime_spec::{IdMapping, Mount};
use super::{ImageConfig, Input, SpecError, borrowed, clean, sandbox};
use crate::limits::CONTAINER_MOUNTS_MAX;
use crate::proto::runtime::v1::{
    self as proto, ContainerConfig, LinuxContainerSecurityContext, MountPropagation, NamespaceMode,
};
use crate::render::CgroupVersion;

/// What every container has: destination, type, source, options.
const SYSTEM: [(&str, &str, &str, &[&str]); 6] = [
    ("/proc", "proc", "proc", &["nosuid", "noexec", "nodev"]),
    ("/dev", "tmpfs", "tmpfs", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
    (
        "/dev/pts",
        "devpts",
        "devpts",
        &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"],
    ),
    ("/dev/shm", "tmpfs", "shm", &["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"]),
    ("/dev/mqueue", "mqueue", "mqueue", &["nosuid", "noexec", "nodev"]),
    ("/sys", "sysfs", "sysfs", &["nosuid", "noexec", "nodev", "ro"]),
];

/// The directory of a volume that the image declares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// The path in the container.
    pub container_path: String,
    /// The directory on the machine, removed with the container.
    pub host_path: String,
}

/// Paths of the image's volumes that no mount of the CRI takes the place of: the caller makes a directory for each, with what the
/// image has there. One of `/` is passed over: it would hide the image.
pub fn image_volume_paths(config: &ContainerConfig, image: &ImageConfig) -> Vec<String> {
    let taken: BTreeSet<String> = config.mounts.iter().map(|mount| clean(&mount.container_path)).collect();
    let paths: BTreeSet<String> = image.volumes.iter().map(|path| clean(path)).collect();
    paths.into_iter().filter(|path| path != "/" && !taken.contains(path)).collect()
}

/// `mounts` and `linux.rootfsPropagation`.
pub(super) fn of_container(
    input: &Input<'_>,
    context: &LinuxContainerSecurityContext,
    has_user_namespace: bool,
) -> Result<(Vec<Mount>, &'static str), SpecError> {
    let mut asked: Vec<Cow<'_, proto::Mount>> = input.config.mounts.iter().map(Cow::Borrowed).collect();
    let of_cri: BTreeSet<String> = asked.iter().map(|mount| clean(&mount.container_path)).collect();
    // The CRI's own come before those of the pod and of the image.
    let extra = sandbox_files(input, context).into_iter().chain(volumes(input));
    asked.extend(extra.filter(|mount| !of_cri.contains(&clean(&mount.container_path))).map(Cow::Owned));
    SpecError::at_most("mounts", asked.len(), CONTAINER_MOUNTS_MAX)?;
    // A mount never hides one below it. The sort is stable: of two on one path the later one is seen.
    asked.sort_by_cached_key(|mount| clean(&mount.container_path).matches('/').count());

    let taken: BTreeSet<String> = asked.iter().map(|mount| clean(&mount.container_path)).collect();
    let mut mounts: Vec<Mount> = Vec::with_capacity(SYSTEM.len() + 1 + asked.len());
    mounts.extend(system(input, context, shares_network(input) && has_user_namespace).into_iter().filter(
        |mount| {
            let is_below_dev = taken.contains("/dev") && mount.destination.starts_with("/dev/");
            !taken.contains(&mount.destination) && !is_below_dev
        },
    ));
    let mut propagation = "";
    for mount in asked {
        let bind = bind(input, &mount)?;
        for option in &bind.options {
            match (&**option, propagation) {
                ("rshared", _) => propagation = "rshared",
                ("rslave", "") => propagation = "rslave",
                _ => {}
            }
        }
        mounts.push(bind);
    }
    Ok((mounts, propagation))
}

/// The pod has the node's network namespace.
fn shares_network(input: &Input<'_>) -> bool {
    let of_sandbox = input.sandbox.linux.as_ref().and_then(|linux| linux.security_context.as_ref());
    let options = of_sandbox.and_then(|context| context.namespace_options.as_ref());
    options.is_some_and(|options| options.network == NamespaceMode::Node as i32)
}

/// The system's mounts; `/sys` and the cgroups can be written by a privileged container (`WithWriteableSysfs`,
/// `WithWriteableCgroupfs`).
fn system(input: &Input<'_>, context: &LinuxContainerSecurityContext, binds_sys: bool) -> Vec<Mount> {
    let mut mounts = system_mounts(binds_sys);
    mounts.push(Mount {
        destination: "/sys/fs/cgroup".into(),
        kind: "cgroup".into(),
        source: "cgroup".into(),
        options: borrowed(&["nosuid", "noexec", "nodev", "relatime", "ro"]),
        ..Mount::default()
    });
    if context.privileged {
        for mount in mounts.iter_mut().filter(|mount| matches!(&*mount.kind, "sysfs" | "cgroup")) {
            mount.options.retain(|option| option != "ro");
            mount.options.push("rw".into());
        }
        // In the node's cgroup namespace it is the node's own mount of cgroup v2, and would lose these options with it.
        if let (CgroupVersion::V2 { .. }, Some(cgroup)) = (input.node.cgroup, mounts.last_mut()) {
            let of_node =
                mount_of(&input.node.mountinfo, "/sys/fs/cgroup").map(|(_, line)| line).unwrap_or_default();
            let of_node = of_node.rsplit(' ').next().unwrap_or_default().split(',');
            let kept = of_node.filter(|option| matches!(*option, "nsdelegate" | "memory_recursiveprot"));
            cgroup.options.extend(kept.map(|option| Cow::Owned(option.to_owned())));
        }
    }
    mounts
}

/// Without the cgroups. A new sysfs cannot be mounted in a user namespace that does not own the network namespace: there the
/// node's is bound.
pub(super) fn system_mounts(binds_sys: bool) -> Vec<Mount> {
    let mounts = SYSTEM.iter().map(|(destination, kind, source, options)| Mount {
        destination: (*destination).to_owned(),
        kind: Cow::Borrowed(*kind),
        source: (*source).to_owned(),
        options: borrowed(options),
        ..Mount::default()
    });
    mounts
        .map(|mount| match &*mount.destination {
            "/sys" if binds_sys => Mount {
                kind: "bind".into(),
                source: "/sys".into(),
                options: borrowed(&["rbind", "rro", "nosuid", "nodev", "noexec"]),
                ..mount
            },
            _ => mount,
        })
        .collect()
}

/// `/etc/hostname`, `/etc/hosts`, `/etc/resolv.conf` and `/dev/shm` of the pod. They are the pod's: a container with a read-only
/// root file system reads them only. In a user namespace they are the namespace's, as with CRI-O: the caller gives them to its root
/// user, and no mount has to be mapped.
fn sandbox_files(input: &Input<'_>, context: &LinuxContainerSecurityContext) -> Vec<proto::Mount> {
    let files = input.files;
    let mut mounts = Vec::new();
    for (container_path, host_path) in [
        ("/etc/hostname", &files.hostname),
        ("/etc/hosts", &files.hosts),
        ("/etc/resolv.conf", &files.resolv_conf),
    ] {
        if let Some(host_path) = host_path {
            mounts.push(proto::Mount {
                container_path: container_path.to_owned(),
                host_path: host_path.clone(),
                readonly: context.readonly_rootfs,
                selinux_relabel: true,
                ..Default::default()
            });
        }
    }
    if let Some(host_path) = &files.shm {
        mounts.push(proto::Mount {
            container_path: "/dev/shm".to_owned(),
            host_path: host_path.clone(),
            selinux_relabel: host_path != "/dev/shm",
            ..Default::default()
        });
    }
    mounts
}

fn volumes(input: &Input<'_>) -> impl Iterator<Item = proto::Mount> {
    input.volumes.iter().map(|volume| proto::Mount {
        container_path: volume.container_path.clone(),
        host_path: volume.host_path.clone(),
        selinux_relabel: true,
        ..Default::default()
    })
}

/// Sources of the container's mounts whose files get its `SELinux` label: what the CRI's client asks for, the pod's files, the volumes that
/// the image declares (containerd's `WithMounts`).
pub fn relabelled(input: &Input<'_>) -> Vec<String> {
    let context = LinuxContainerSecurityContext::default();
    let ours = sandbox_files(input, &context).into_iter().chain(volumes(input));
    let ours = ours.filter(|mount| mount.selinux_relabel).map(|mount| mount.host_path);
    let asked = input.config.mounts.iter().filter(|mount| mount.selinux_relabel);
    asked.map(|mount| mount.host_path.clone()).chain(ours).collect()
}

/// A mount of the CRI.
fn bind(input: &Input<'_>, asked: &proto::Mount) -> Result<Mount, SpecError> {
    let invalid = |why: String| SpecError::invalid("mounts", format!("{}: {why}", asked.container_path));
    let destination = clean(&asked.container_path);
    if destination == "/" {
        return Err(invalid("a mount cannot take the place of the root file system; mount it below".into()));
    }
    if !asked.host_path.starts_with('/') {
        return Err(invalid(format!("host path {:?} is not absolute", asked.host_path)));
    }
    let propagation = MountPropagation::try_from(asked.propagation)
        .map_err(|_| invalid(format!("no propagation has the number {}", asked.propagation)))?;
    let is_readonly = asked.readonly || asked.image.as_ref().is_some_and(|image| !image.image.is_empty());
    let mut options = borrowed(&["rbind"]);
    options.push(Cow::Borrowed(match propagation {
        MountPropagation::PropagationPrivate => "rprivate",
        MountPropagation::PropagationHostToContainer => {
            check_source(input, asked, &["shared:", "master:"], "a shared or slave mount")?;
            "rslave"
        }
        MountPropagation::PropagationBidirectional => {
            check_source(input, asked, &["shared:"], "a shared mount")?;
            "rshared"
        }
    }));
    options.push(Cow::Borrowed(match (is_readonly, asked.recursive_read_only) {
        (false, false) => "rw",
        (true, false) => "ro",
        (false, true) => return Err(invalid("it cannot be writable and recursively read-only".into())),
        (true, true) if propagation != MountPropagation::PropagationPrivate => {
            return Err(invalid("it is recursively read-only, which needs private propagation".into()));
        }
        (true, true) if !input.node.runtime.recursive_read_only => {
            return Err(SpecError::unsupported(
                "mounts[].recursive_read_only",
                "the OCI runtime or the kernel has no recursively read-only mounts (runc 1.1 or crun 1.4, Linux 5.12)",
            ));
        }
        (true, true) => "rro",
    }));
    let mappings = |of: &[proto::IdMapping]| of.iter().map(sandbox::id_mapping).collect::<Vec<IdMapping>>();
    let (uid_mappings, gid_mappings) = (mappings(&asked.uid_mappings), mappings(&asked.gid_mappings));
    let is_mapped = !uid_mappings.is_empty() || !gid_mappings.is_empty();
    if is_mapped && !input.node.runtime.id_mapped_mounts {
        return Err(SpecError::unsupported(
            "mounts[].uid_mappings",
            "the OCI runtime or the kernel has no id-mapped mounts (runc 1.2 or crun 1.9, Linux 5.12)",
        ));
    }
    let source = asked.host_path.clone();
    Ok(Mount { destination, kind: "bind".into(), source, options, uid_mappings, gid_mappings })
}

/// The source of a mount that propagates must propagate itself.
fn check_source(
    input: &Input<'_>,
    asked: &proto::Mount,
    tags: &[&str],
    needed: &str,
) -> Result<(), SpecError> {
    let Some((point, line)) = mount_of(&input.node.mountinfo, &asked.host_path) else { return Ok(()) };
    let mut optional = line.split(' ').skip(6).take_while(|field| *field != "-");
    if optional.any(|field| tags.iter().any(|tag| field.starts_with(tag))) {
        return Ok(());
    }
    let host_path = &asked.host_path;
    Err(SpecError::invalid(
        "mounts",
        format!("{host_path} is mounted on {point}, which is not {needed}; run mount --make-rshared {point}"),
    ))
}

/// The mount point and the line of the mount that a path is in, from `/proc/self/mountinfo`: the one with the longest mount
/// point, of these the last one.
fn mount_of<'a>(mountinfo: &'a str, path: &str) -> Option<(Cow<'a, str>, &'a str)> {
    let mut found: Option<(Cow<'a, str>, &'a str)> = None;
    for line in mountinfo.lines() {
        let Some(point) = line.split(' ').nth(4).map(unescaped) else { continue };
        let below = if point == "/" { Some(path) } else { path.strip_prefix(&*point) };
        let is_below = below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        if is_below && found.as_ref().is_none_or(|(longest, _)| longest.len() <= point.len()) {
            found = Some((point, line));
        }
    }
    found
}

/// `\040` and the like are characters that part fields.
fn unescaped(field: &str) -> Cow<'_, str> {
    if field.contains('\\') {
        let mut text = field.to_owned();
        for (escape, character) in [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")] {
            text = text.replace(escape, character);
        }
        text.into()
    } else {
        field.into()
    }
}
