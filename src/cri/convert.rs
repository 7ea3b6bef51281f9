//! Converts the runtime's messages to model types. PURE.
//!
//! The input is untrusted: unknown enum values are read cautiously, strings are truncated, counts are bounded
//! (`limits::CRI_*`). Follows the kubelet's `toKubeContainerStatus`, `toKubeContainer`, `getKubeletSandboxes` and
//! `labels.go`.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::{
    ContainerStats, CpuSample, FilesystemUsage, Image, RuntimeCondition, RuntimeHandler, RuntimeStatus,
};
use crate::limits::{CRI_ENTRIES_MAX, CRI_ID_BYTES_MAX, CRI_MESSAGE_BYTES_MAX, CRI_TEXT_BYTES_MAX};
use crate::model::annotations::{CONFIG_SOURCE, OF_FILE, OF_URL};
use crate::model::observed::ContainerResources;
use crate::model::{
    ContainerId, ContainerItem, ContainerState, ContainerStatus, ContainerUser, NamespaceMode, PodKey,
    SandboxId, SandboxItem, SandboxNetwork, SandboxState, SandboxStatus, Wall,
};
use crate::proto::runtime::v1 as cri;
use crate::render::labels::{
    CONTAINER_NAME, NODE_ANNOTATION, POD_NAME, POD_NAMESPACE, POD_UID, TERMINATION_MESSAGE_PATH,
    container_hash_of, container_meta,
};
use crate::text::start_of;

/// Labels or annotations as prost decodes them.
pub type Map = BTreeMap<String, String>;

/// An item of `ListPodSandbox`; `None` without an id or metadata, which the kubelet skips too.
pub fn sandbox_item(mut row: cri::PodSandbox) -> Option<SandboxItem> {
    let metadata = row.metadata.take()?;
    let pod = PodKey::new(
        start_of(&metadata.namespace, CRI_TEXT_BYTES_MAX),
        start_of(&metadata.name, CRI_TEXT_BYTES_MAX),
        start_of(&metadata.uid, CRI_TEXT_BYTES_MAX),
    );
    Some(SandboxItem {
        id: SandboxId::from(id(row.id)?),
        attempt: metadata.attempt,
        labelled: pod_key(&row.labels).as_ref() == Some(&pod),
        of_file: row
            .annotations
            .get(CONFIG_SOURCE)
            .is_some_and(|source| source == OF_FILE || source == OF_URL),
        pod,
        state: sandbox_state(row.state),
        created_at: Wall(row.created_at),
        node: row.annotations.remove(NODE_ANNOTATION).map(text),
    })
}

/// An item of `ListContainers`; `None` without an id.
pub fn container_item(mut row: cri::Container) -> Option<ContainerItem> {
    let metadata = row.metadata.take().unwrap_or_default();
    // Runtimes before Kubernetes 1.30 have no image_id (kubelet `toKubeContainer`).
    let image = if row.image_id.is_empty() { row.image_ref } else { row.image_id };
    Some(ContainerItem {
        id: ContainerId::from(id(row.id)?),
        sandbox_id: SandboxId::from(start_of(&row.pod_sandbox_id, CRI_ID_BYTES_MAX)),
        pod: pod_key(&row.labels),
        name: Rc::from(&*text(row.labels.remove(CONTAINER_NAME).unwrap_or(metadata.name))),
        attempt: metadata.attempt,
        state: container_state(row.state),
        created_at: Wall(row.created_at),
        image: text(image),
        hash: container_hash_of(&row.annotations),
    })
}

/// `PodSandboxStatus`; `None` when its id is empty or too long.
pub fn sandbox_status(status: cri::PodSandboxStatus) -> Option<SandboxStatus> {
    let options = status.linux.and_then(|linux| linux.namespaces).and_then(|namespaces| namespaces.options);
    Some(SandboxStatus {
        id: SandboxId::from(id(status.id)?),
        attempt: status.metadata.map_or(0, |metadata| metadata.attempt),
        state: sandbox_state(status.state),
        created_at: Wall(status.created_at),
        network_namespace: options.map(|options| namespace_mode(options.network)),
        network: status.network.map(|network| SandboxNetwork {
            ip: text(network.ip),
            additional_ips: some(network.additional_ips).map(|more| text(more.ip)).collect(),
        }),
    })
}

/// `ContainerStatus` (kubelet `toKubeContainerStatus`); `None` when its id is empty or too long.
///
/// `sandbox_id` is empty, as only lists have it, and `finished_mono` is `None`: the caller sets both, the second when
/// `finished_at` is first observed.
pub fn container_status(mut status: cri::ContainerStatus) -> Option<ContainerStatus> {
    let state = container_state(status.state);
    let exited = state == ContainerState::Exited;
    let metadata = status.metadata.take().unwrap_or_default();
    let meta = container_meta(&status.annotations);
    let termination_log =
        termination_log(&status).and_then(|path| path.rsplit('/').next()).map(|name| text(name.to_owned()));
    Some(ContainerStatus {
        id: ContainerId::from(id(status.id)?),
        name: Rc::from(&*text(status.labels.remove(CONTAINER_NAME).unwrap_or(metadata.name))),
        sandbox_id: SandboxId::from(""),
        state,
        created_at: Wall(status.created_at),
        started_at: instant(status.started_at).filter(|_| state != ContainerState::Created),
        finished_at: instant(status.finished_at).filter(|_| exited),
        finished_mono: None,
        exit_code: if exited { status.exit_code } else { 0 },
        reason: if exited { text(status.reason) } else { Box::default() },
        message: if exited { cut(status.message, CRI_MESSAGE_BYTES_MAX) } else { Box::default() },
        image: text(status.image.map(|image| image.image).unwrap_or_default()),
        image_ref: text(if status.image_ref.is_empty() { status.image_id } else { status.image_ref }),
        user: status.user.and_then(|user| user.linux).map(|user| ContainerUser {
            uid: user.uid,
            gid: user.gid,
            supplemental_groups: some(user.supplemental_groups).collect(),
        }),
        resources: status.resources.and_then(|resources| resources.linux).map(|linux| {
            Box::new(ContainerResources {
                cpu_period: linux.cpu_period,
                cpu_quota: linux.cpu_quota,
                cpu_shares: linux.cpu_shares,
                memory_limit_in_bytes: linux.memory_limit_in_bytes,
            })
        }),
        stop_signal: status.stop_signal,
        termination_log,
        meta,
    })
}

/// The path of a container's termination log on the node: of what is mounted where its annotation says.
pub(super) fn termination_log(status: &cri::ContainerStatus) -> Option<&str> {
    let path = status.annotations.get(TERMINATION_MESSAGE_PATH)?.trim_start_matches('/');
    let is_log = |mount: &&cri::Mount| mount.container_path.trim_start_matches('/') == path;
    status.mounts.iter().find(is_log).filter(|_| !path.is_empty()).map(|mount| &*mount.host_path)
}

/// `ImageStatusResponse.image` and the items of `ListImages`; `None` without an id.
pub fn image(image: cri::Image) -> Option<Image> {
    let names = |names: Vec<String>| some(names).map(text).collect();
    Some(Image {
        id: id(image.id)?.into(),
        repo_tags: names(image.repo_tags),
        repo_digests: names(image.repo_digests),
        size_bytes: image.size,
        uid: image.uid.map(|uid| uid.value),
        username: text(image.username),
        pinned: image.pinned,
    })
}

/// `StatusResponse`.
pub fn runtime_status(status: cri::StatusResponse) -> RuntimeStatus {
    let condition = |condition: cri::RuntimeCondition| RuntimeCondition {
        kind: text(condition.r#type),
        status: condition.status,
        reason: text(condition.reason),
        message: cut(condition.message, CRI_MESSAGE_BYTES_MAX),
    };
    let handler = |handler: cri::RuntimeHandler| RuntimeHandler {
        name: text(handler.name),
        user_namespaces: handler.features.as_ref().is_some_and(|features| features.user_namespaces),
        recursive_read_only_mounts: handler.features.is_some_and(|f| f.recursive_read_only_mounts),
    };
    RuntimeStatus {
        conditions: some(status.status.unwrap_or_default().conditions).map(condition).collect(),
        handlers: some(status.runtime_handlers).map(handler).collect(),
        supplemental_groups_policy: status.features.is_some_and(|f| f.supplemental_groups_policy),
    }
}

/// The pause image, from the JSON of the runtime's own configuration: reported by containerd 1 and CRI-O.
pub fn sandbox_image(settings: &str) -> Option<String> {
    let settings: serde_json::Value = serde_json::from_str(settings).ok()?;
    let image = settings.get("sandboxImage")?.as_str()?;
    (!image.is_empty() && image.len() <= CRI_TEXT_BYTES_MAX).then(|| image.to_owned())
}

/// `ImageFsInfoResponse.image_filesystems`.
pub fn filesystems(info: cri::ImageFsInfoResponse) -> Vec<FilesystemUsage> {
    let usage = |usage: cri::FilesystemUsage| FilesystemUsage {
        mountpoint: text(usage.fs_id.unwrap_or_default().mountpoint),
        used_bytes: usage.used_bytes.map_or(0, |bytes| bytes.value),
        inodes_used: usage.inodes_used.map_or(0, |inodes| inodes.value),
        timestamp: Wall(usage.timestamp),
    };
    some(info.image_filesystems).map(usage).collect()
}

/// An item of `ListContainerStats`; `None` without an id.
pub fn container_stats(stats: cri::ContainerStats) -> Option<ContainerStats> {
    let attributes = stats.attributes?;
    let cpu = stats.cpu.as_ref();
    let nanos = cpu.and_then(|cpu| Some((cpu.timestamp, cpu.usage_core_nano_seconds?.value)));
    let memory = stats.memory.unwrap_or_default();
    let (working_set, usage) = (memory.working_set_bytes, memory.usage_bytes);
    let bytes = |bytes: Option<cri::UInt64Value>| bytes.map(|bytes| bytes.value);
    let layer = stats.writable_layer;
    let inodes = |layer: &cri::FilesystemUsage| layer.inodes_used.map_or(0, |inodes| inodes.value);
    Some(ContainerStats {
        id: ContainerId::from(id(attributes.id)?),
        pod: pod_key(&attributes.labels),
        cpu: nanos.map(|(at, nanos)| CpuSample { at: Wall(at), nanos }),
        nano_cores: cpu.and_then(|cpu| Some(cpu.usage_nano_cores?.value)),
        memory_bytes: bytes(working_set.or(usage)),
        memory_usage_bytes: bytes(usage.or(working_set)),
        writable_layer: layer.and_then(|layer| Some((layer.used_bytes?.value, inodes(&layer)))),
    })
}

/// The container's pod; `None` unless all three labels are present.
fn pod_key(labels: &Map) -> Option<PodKey> {
    let label = |key| labels.get(key).map(|value| start_of(value, CRI_TEXT_BYTES_MAX));
    Some(PodKey::new(label(POD_NAMESPACE)?, label(POD_NAME)?, label(POD_UID)?))
}

/// A state of a later CRI version counts as not ready.
fn sandbox_state(state: i32) -> SandboxState {
    match cri::PodSandboxState::try_from(state) {
        Ok(cri::PodSandboxState::SandboxReady) => SandboxState::Ready,
        Ok(cri::PodSandboxState::SandboxNotready) | Err(_) => SandboxState::NotReady,
    }
}

fn container_state(state: i32) -> ContainerState {
    match cri::ContainerState::try_from(state) {
        Ok(cri::ContainerState::ContainerCreated) => ContainerState::Created,
        Ok(cri::ContainerState::ContainerRunning) => ContainerState::Running,
        Ok(cri::ContainerState::ContainerExited) => ContainerState::Exited,
        Ok(cri::ContainerState::ContainerUnknown) | Err(_) => ContainerState::Unknown,
    }
}

fn namespace_mode(mode: i32) -> NamespaceMode {
    match cri::NamespaceMode::try_from(mode) {
        Ok(cri::NamespaceMode::Pod) | Err(_) => NamespaceMode::Pod,
        Ok(cri::NamespaceMode::Container) => NamespaceMode::Container,
        Ok(cri::NamespaceMode::Node) => NamespaceMode::Node,
        Ok(cri::NamespaceMode::Target) => NamespaceMode::Target,
    }
}

/// Nanoseconds since the epoch; 0 and Go's zero time (far below 0) mean "not set".
fn instant(nanos: i64) -> Option<Wall> {
    (nanos > 0).then_some(Wall(nanos))
}

/// The unchanged id: a truncated one would identify something else.
pub(super) fn id(id: String) -> Option<String> {
    (!id.is_empty() && id.len() <= CRI_ID_BYTES_MAX).then_some(id)
}

fn text(text: String) -> Box<str> {
    cut(text, CRI_TEXT_BYTES_MAX)
}

/// Truncates to at most `max` bytes, whole characters.
pub(super) fn cut(mut text: String, max: usize) -> Box<str> {
    crate::text::cut(&mut text, max);
    text.into_boxed_str()
}

fn some<T>(entries: Vec<T>) -> impl Iterator<Item = T> {
    entries.into_iter().take(CRI_ENTRIES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> Map {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn exited() -> cri::ContainerStatus {
        cri::ContainerStatus {
            id: "c1".into(),
            state: cri::ContainerState::ContainerExited.into(),
            created_at: 1,
            started_at: 2,
            finished_at: 3,
            exit_code: 9,
            reason: "Error".into(),
            message: "gone".into(),
            ..cri::ContainerStatus::default()
        }
    }

    #[test]
    fn times_and_exit_belong_to_their_states() {
        let done = container_status(exited()).unwrap();
        assert_eq!((done.started_at, done.finished_at), (Some(Wall(2)), Some(Wall(3))));
        assert_eq!((done.exit_code, &*done.reason, &*done.message), (9, "Error", "gone"));

        let running =
            cri::ContainerStatus { state: cri::ContainerState::ContainerRunning.into(), ..exited() };
        let running = container_status(running).unwrap();
        assert_eq!((running.started_at, running.finished_at), (Some(Wall(2)), None));
        assert_eq!((running.exit_code, &*running.reason, &*running.message), (0, "", ""));

        let created =
            cri::ContainerStatus { state: cri::ContainerState::ContainerCreated.into(), ..exited() };
        assert_eq!(container_status(created).unwrap().started_at, None);

        // Go's zero time in nanoseconds.
        let never =
            cri::ContainerStatus { finished_at: -6_795_364_578_871_345_152, started_at: 0, ..exited() };
        let never = container_status(never).unwrap();
        assert_eq!((never.started_at, never.finished_at), (None, None));
    }

    #[test]
    fn unknown_states_get_the_cautious_reading() {
        assert_eq!(sandbox_state(7), SandboxState::NotReady);
        assert_eq!(container_state(-1), ContainerState::Unknown);
        assert_eq!(namespace_mode(99), NamespaceMode::Pod);
    }

    #[test]
    fn a_container_has_a_pod_only_with_all_three_labels() {
        let mut labels = map(&[(POD_NAME, "web"), (POD_NAMESPACE, "default")]);
        let row = |labels: &Map| cri::Container {
            id: "c1".into(),
            metadata: Some(cri::ContainerMetadata { name: "raw".into(), attempt: 3 }),
            image_ref: "sha256:1".into(),
            labels: labels.clone(),
            ..cri::Container::default()
        };
        let foreign = container_item(row(&labels)).unwrap();
        assert_eq!((foreign.pod, &*foreign.name, foreign.attempt), (None, "raw", 3));
        labels.extend(map(&[(POD_UID, "u"), (CONTAINER_NAME, "app")]));
        let ours = container_item(row(&labels)).unwrap();
        assert_eq!(ours.pod, Some(PodKey::new("default", "web", "u")));
        assert_eq!((&*ours.name, &*ours.image), ("app", "sha256:1"));
    }

    #[test]
    fn hostile_values_are_cut() {
        let huge = "é".repeat(1_000_000);
        let hostile = cri::ContainerStatus {
            reason: huge.clone(),
            message: huge.clone(),
            image_ref: huge.clone(),
            labels: map(&[(CONTAINER_NAME, &huge)]),
            user: Some(cri::ContainerUser {
                linux: Some(cri::LinuxContainerUser {
                    supplemental_groups: vec![1; 100_000],
                    ..Default::default()
                }),
            }),
            ..exited()
        };
        let status = container_status(hostile).unwrap();
        assert_eq!(status.reason.len(), CRI_TEXT_BYTES_MAX);
        assert_eq!(status.message.len(), CRI_MESSAGE_BYTES_MAX);
        assert_eq!((status.image_ref.len(), status.name.len()), (CRI_TEXT_BYTES_MAX, CRI_TEXT_BYTES_MAX));
        assert_eq!(status.user.unwrap().supplemental_groups.len(), CRI_ENTRIES_MAX);
        // A truncated id would identify something else.
        assert_eq!(container_status(cri::ContainerStatus { id: huge, ..exited() }), None);
        assert_eq!(container_status(cri::ContainerStatus { id: String::new(), ..exited() }), None);
    }

    #[test]
    fn what_a_runtime_does_not_tell_of_a_containers_use_is_unknown() {
        let attributes =
            |id: &str| Some(cri::ContainerAttributes { id: id.to_owned(), ..Default::default() });
        let nothing = cri::ContainerStats { attributes: attributes("c1"), ..Default::default() };
        let stats = container_stats(nothing.clone()).unwrap();
        let converted = (stats.pod, stats.cpu, stats.nano_cores, stats.memory_bytes, stats.writable_layer);
        assert_eq!(converted, (None, None, None, None, None));
        let value = |value| Some(cri::UInt64Value { value });
        let cpu = cri::CpuUsage { timestamp: 7, usage_nano_cores: value(8), ..Default::default() };
        let memory = cri::MemoryUsage { usage_bytes: value(9), ..Default::default() };
        let writable_layer = Some(cri::FilesystemUsage { used_bytes: value(10), ..Default::default() });
        let some =
            cri::ContainerStats { cpu: Some(cpu), memory: Some(memory), writable_layer, ..nothing.clone() };
        let stats = container_stats(some).unwrap();
        assert_eq!((stats.cpu, stats.nano_cores, stats.memory_bytes), (None, Some(8), Some(9)));
        assert_eq!(stats.writable_layer, Some((10, 0)));
        for bad in [attributes(""), attributes(&"x".repeat(CRI_ID_BYTES_MAX + 1)), None] {
            assert_eq!(container_stats(cri::ContainerStats { attributes: bad, ..nothing.clone() }), None);
        }
    }

    #[test]
    fn the_sandboxes_image_is_read_from_the_runtimes_settings() {
        let settings = r#"{"containerd": {"x": 1}, "sandboxImage": "registry.k8s.io/pause:3.8"}"#;
        assert_eq!(sandbox_image(settings).as_deref(), Some("registry.k8s.io/pause:3.8"));
        for none in ["", "{}", "[1]", r#"{"sandboxImage": 7}"#, r#"{"sandboxImage": ""}"#, "pause = 'x'"] {
            assert_eq!(sandbox_image(none), None, "{none}");
        }
    }

    #[test]
    fn no_network_is_not_an_empty_address() {
        let status = cri::PodSandboxStatus { id: "s".into(), ..cri::PodSandboxStatus::default() };
        let bare = sandbox_status(status.clone()).unwrap();
        assert_eq!((bare.network, bare.network_namespace), (None, None));
        let network = Some(cri::PodSandboxNetworkStatus::default());
        let empty = sandbox_status(cri::PodSandboxStatus { network, ..status }).unwrap();
        assert_eq!(empty.network, Some(SandboxNetwork::default()));
    }

    #[test]
    fn a_sandbox_row_needs_its_metadata() {
        let row = cri::PodSandbox { id: "s".into(), ..cri::PodSandbox::default() };
        assert_eq!(sandbox_item(row.clone()), None);
        let metadata = cri::PodSandboxMetadata {
            name: "web".into(),
            uid: "u".into(),
            namespace: "default".into(),
            attempt: 2,
        };
        let annotations = map(&[(NODE_ANNOTATION, "gateway")]);
        let item = sandbox_item(cri::PodSandbox { metadata: Some(metadata), annotations, ..row }).unwrap();
        assert_eq!((item.pod, item.attempt), (PodKey::new("default", "web", "u"), 2));
        assert_eq!((item.state, item.node.as_deref()), (SandboxState::Ready, Some("gateway")));
    }
}
