//! A container as the CRI shows it: its status, and its item in lists. PURE.

use super::records::{ContainerPhase, ContainerRecord};
use crate::oci::{ImageConfig, stop_signal as stop_signal_of};
use crate::proto::runtime::v1 as cri;

fn state_of(phase: ContainerPhase) -> cri::ContainerState {
    match phase {
        ContainerPhase::Making | ContainerPhase::Created | ContainerPhase::Starting => {
            cri::ContainerState::ContainerCreated
        }
        ContainerPhase::Running => cri::ContainerState::ContainerRunning,
        ContainerPhase::Exited | ContainerPhase::Removing => cri::ContainerState::ContainerExited,
    }
}

/// Its image, by the name that it has in the store.
fn image_of(record: &ContainerRecord, asked: Option<cri::ImageSpec>) -> cri::ImageSpec {
    let mut image = asked.unwrap_or_default();
    if !record.image_name.is_empty() {
        image.image = record.image_name.to_string();
    }
    image
}

/// `ContainerStatus`.
pub(super) fn status(id: &str, record: &ContainerRecord, log_directory: &str) -> cri::ContainerStatus {
    let config = record.config();
    let log_path = match (log_directory, &*config.log_path) {
        (_, "") => String::new(),
        ("", path) => path.to_owned(),
        (directory, path) => format!("{}/{path}", directory.trim_end_matches('/')),
    };
    let resources = config.linux.as_ref().and_then(|linux| linux.resources.clone());
    cri::ContainerStatus {
        id: id.to_owned(),
        metadata: config.metadata,
        state: state_of(record.phase).into(),
        created_at: record.created_at,
        started_at: record.started_at,
        finished_at: record.finished_at,
        exit_code: record.exit_code,
        image: Some(image_of(record, config.image)),
        image_ref: record.image_ref.to_string(),
        image_id: record.image_id.to_string(),
        reason: record.reason.to_string(),
        message: record.message.to_string(),
        labels: config.labels,
        annotations: config.annotations,
        mounts: config.mounts,
        log_path,
        resources: resources.map(|linux| cri::ContainerResources { linux: Some(linux) }),
        user: Some(cri::ContainerUser {
            linux: Some(cri::LinuxContainerUser {
                uid: record.uid,
                gid: record.gid,
                supplemental_groups: record.groups.clone(),
            }),
        }),
        stop_signal: stop_signal(config.stop_signal, record.stop_signal),
    }
}

/// The CRI's number of the stop signal: that of the configuration, else of the image's.
fn stop_signal(config: i32, number: i32) -> i32 {
    let is_its = |candidate: &i32| {
        let config = cri::ContainerConfig { stop_signal: *candidate, ..cri::ContainerConfig::default() };
        stop_signal_of(&config, &ImageConfig::default()) == number
    };
    if config == 0 { (1..=i32::from(cri::Signal::Sigrtmax)).find(is_its).unwrap_or_default() } else { config }
}

/// An item of `ListContainers`.
pub(super) fn item(id: &str, record: &ContainerRecord) -> cri::Container {
    let config = record.config();
    cri::Container {
        id: id.to_owned(),
        pod_sandbox_id: record.sandbox.to_string(),
        metadata: config.metadata,
        image: Some(image_of(record, config.image)),
        image_ref: record.image_ref.to_string(),
        image_id: record.image_id.to_string(),
        state: state_of(record.phase).into(),
        created_at: record.created_at,
        labels: config.labels,
        annotations: config.annotations,
    }
}

/// Whether an item passes the filter.
pub(super) fn passes(item: &cri::Container, filter: Option<&cri::ContainerFilter>) -> bool {
    filter.is_none_or(|filter| {
        item.id.starts_with(&filter.id)
            && item.pod_sandbox_id.starts_with(&filter.pod_sandbox_id)
            && filter.state.is_none_or(|wanted| wanted.state == item.state)
            && filter.label_selector.iter().all(|(key, value)| item.labels.get(key) == Some(value))
    })
}

/// What a container's configuration says after an update: a value of 0 leaves that resource unchanged.
pub(super) fn merge(config: &mut cri::ContainerConfig, asked: cri::LinuxContainerResources) {
    let resources = config.linux.get_or_insert_default().resources.get_or_insert_default();
    for (kept, value) in [
        (&mut resources.cpu_period, asked.cpu_period),
        (&mut resources.cpu_quota, asked.cpu_quota),
        (&mut resources.cpu_shares, asked.cpu_shares),
        (&mut resources.memory_limit_in_bytes, asked.memory_limit_in_bytes),
        (&mut resources.memory_swap_limit_in_bytes, asked.memory_swap_limit_in_bytes),
        (&mut resources.oom_score_adj, asked.oom_score_adj),
    ] {
        if value != 0 {
            *kept = value;
        }
    }
    for (kept, value) in
        [(&mut resources.cpuset_cpus, asked.cpuset_cpus), (&mut resources.cpuset_mems, asked.cpuset_mems)]
    {
        if !value.is_empty() {
            *kept = value;
        }
    }
    resources.unified.extend(asked.unified);
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    #[test]
    fn a_status_has_what_the_record_has() {
        let config = cri::ContainerConfig {
            metadata: Some(cri::ContainerMetadata { name: "app".into(), attempt: 2 }),
            image: Some(cri::ImageSpec { image: "sha256:1".into(), ..Default::default() }),
            log_path: "app/2.log".into(),
            ..Default::default()
        };
        let record = ContainerRecord {
            phase: ContainerPhase::Exited,
            config: config.encode_to_vec(),
            exit_code: 3,
            reason: "Error".into(),
            image_name: "docker.io/library/busybox:1".into(),
            sandbox: "s1".into(),
            stop_signal: 37,
            ..Default::default()
        };
        let shown = status("c1", &record, "/var/log/pods/a/");
        assert_eq!((shown.state, shown.exit_code, &*shown.reason), (2, 3, "Error"));
        assert_eq!(
            (&*shown.log_path, &*shown.image.unwrap().image),
            ("/var/log/pods/a/app/2.log", "docker.io/library/busybox:1")
        );
        assert_eq!(shown.stop_signal, i32::from(cri::Signal::Sigrtminplus3));
        let item = item("c1", &record);
        let filter = |pod_sandbox_id: &str| cri::ContainerFilter {
            pod_sandbox_id: pod_sandbox_id.into(),
            ..Default::default()
        };
        assert!(
            passes(&item, Some(&filter("s1"))) && !passes(&item, Some(&filter("s2"))) && passes(&item, None)
        );
    }

    #[test]
    fn an_update_leaves_what_it_does_not_name() {
        let mut config = cri::ContainerConfig::default();
        let of = |cpu_shares, memory_limit_in_bytes| cri::LinuxContainerResources {
            cpu_shares,
            memory_limit_in_bytes,
            ..Default::default()
        };
        merge(&mut config, of(512, 1000));
        merge(&mut config, of(0, 2000));
        assert_eq!(config.linux.unwrap().resources.unwrap(), of(512, 2000));
    }
}
