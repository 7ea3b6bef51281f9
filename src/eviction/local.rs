//! Eviction by a pod's own limits on local ephemeral storage (`localStorageEviction`). PURE.

use k8s_openapi::api::core::v1::Container;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;

use super::pods::PodUsage;
use super::threshold::Resource;
use crate::model::DesiredPod;
use crate::model::quantity::{Quantity, shown};
use crate::status::resources::pod_limits;

/// The limit that a pod exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnLimit {
    /// The `sizeLimit` of an emptyDir.
    EmptyDir,
    /// The sum of its containers' limits on `ephemeral-storage`.
    Pod,
    /// One container's.
    Container,
}

impl OwnLimit {
    /// All of them, in the order of `as usize`.
    pub const ALL: [Self; 3] = [Self::EmptyDir, Self::Pod, Self::Container];

    /// The name in the kubelet's metric.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::EmptyDir => "emptydirfs.limit",
            Self::Pod => "ephemeralpodfs.limit",
            Self::Container => "ephemeralcontainerfs.limit",
        }
    }
}

const NAME: &str = Resource::EphemeralStorage.as_str();

fn limit(container: &Container) -> Option<&Text> {
    container.resources.as_ref()?.limits.as_ref()?.get(NAME)
}

/// True when a container has a limit on `ephemeral-storage`: then the usage of all containers counts.
pub fn is_limited(pod: &DesiredPod) -> bool {
    pod.containers().iter().chain(pod.init_containers()).any(|container| limit(container).is_some())
}

/// The limit that the pod exceeds, and the kubelet's message; `None` when it exceeds none.
///
/// The sum of limits applies to the usage of all containers, those without a limit included, and of the volumes
/// (`podEphemeralStorageLimitEviction`); the limit of an app container to its own usage
/// (`containerEphemeralStorageLimitEviction`), its writable layer included unless images have a separate disk. While that is
/// not known (`images_apart`), no container limit is checked.
pub fn broken(pod: &DesiredPod, usage: &PodUsage, images_apart: Option<bool>) -> Option<(OwnLimit, String)> {
    // Compared exactly, not rounded up to whole bytes. An invalid quantity is no limit: sources refuse it.
    let above = |used: u64, limit: &Text| {
        let used = Quantity::from_units(i64::try_from(used).unwrap_or(i64::MAX));
        Quantity::parse(&limit.0).is_ok_and(|limit| used > limit)
    };
    let all = usage.containers.iter().flat_map(|container| [container.layer_bytes(), container.logs.bytes]);
    let used = all.fold(usage.volumes.bytes, u64::saturating_add);
    if let Some(most) = pod_limits(&pod.pod).get(NAME).filter(|most| above(used, most)) {
        let message = format!(
            "Pod ephemeral local storage usage exceeds the total limit of containers {}. ",
            shown(most)
        );
        return Some((OwnLimit::Pod, message));
    }
    let images_apart = images_apart?;
    usage.containers.iter().find_map(|container| {
        let own = pod.containers().iter().find(|own| *own.name == *container.name)?;
        let layer = if images_apart { 0 } else { container.layer_bytes() };
        // 0 means no limit.
        let most = limit(own)
            .filter(|most| above(container.logs.bytes.saturating_add(layer), most) && shown(most) != "0")?;
        let message = format!(
            "Container {} exceeded its local ephemeral storage limit {:?}. ",
            container.name,
            shown(most)
        );
        Some((OwnLimit::Container, message))
    })
}

#[cfg(test)]
mod tests {
    use super::super::pods::{ContainerUsage, DiskUse};
    use super::*;
    use serde_json::{Value, json};

    const MIB: u64 = 1 << 20;

    /// A pod with these limits of its containers; `""` = none.
    fn pod(app: &[&str], init: &[(&str, bool)]) -> DesiredPod {
        let container = |name: String, limit: &str, sidecar: bool| {
            let mut container = json!({"name": name});
            if !limit.is_empty() {
                container["resources"] = json!({"limits": {"ephemeral-storage": limit}});
            }
            if sidecar {
                container["restartPolicy"] = json!("Always");
            }
            container
        };
        let app: Vec<Value> =
            app.iter().enumerate().map(|(at, limit)| container(format!("app-{at}"), limit, false)).collect();
        let init = init.iter().enumerate();
        let init: Vec<Value> =
            init.map(|(at, (limit, sidecar))| container(format!("init-{at}"), limit, *sidecar)).collect();
        let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": app, "initContainers": init}});
        DesiredPod::new(serde_json::from_value(pod).unwrap())
    }

    /// Containers with their writable layer and logs, and volumes, in MiB.
    fn usage(containers: &[(&str, u64, u64)], volumes: u64) -> PodUsage {
        let disk = |mib: u64| DiskUse { bytes: mib * MIB, inodes: 1 };
        let containers = containers.iter().map(|(name, layer, logs)| ContainerUsage {
            name: (*name).into(),
            memory: None,
            layer: Some(disk(*layer)),
            logs: disk(*logs),
        });
        PodUsage { containers: containers.collect(), volumes: disk(volumes), pids: None }
    }

    fn words(pod: &DesiredPod, usage: &PodUsage, images_apart: Option<bool>) -> String {
        broken(pod, usage, images_apart)
            .map_or_else(String::new, |(limit, message)| format!("{}: {message}", limit.as_str()))
    }

    #[test]
    fn a_pods_usage_is_compared_with_the_sum_of_its_limits() {
        let sum = |text: &str| {
            format!(
                "ephemeralpodfs.limit: Pod ephemeral local storage usage exceeds the total limit of containers {text}. "
            )
        };
        let one = pod(&["5Mi"], &[]);
        for (layer, logs, volumes, goes) in [
            (5, 0, 0, false),
            (1, 2, 2, false),
            (6, 0, 0, true),
            (0, 6, 0, true),
            (0, 0, 6, true),
            (2, 2, 2, true),
        ] {
            let wanted = if goes { sum("5Mi") } else { String::new() };
            for images_apart in [None, Some(false), Some(true)] {
                let found = words(&one, &usage(&[("app-0", layer, logs)], volumes), images_apart);
                assert_eq!(found, wanted, "{layer} {logs} {volumes} {images_apart:?}");
            }
        }
        // App containers and sidecars together, or an init container and the sidecars before it.
        for (app, init, text) in [
            (&["1Mi", "2Mi"][..], &[][..], "3Mi"),
            (&["1Mi", ""], &[("2Mi", true)], "3Mi"),
            (&["1Mi"], &[("512Ki", true), ("4Mi", false)], "4608Ki"),
            (&["1Mi"], &[("1Mi", false), ("512Ki", true)], "1536Ki"),
            (&[""], &[("1M", false)], "1M"),
            (&["1024Ki"], &[], "1Mi"),
            (&["0"], &[], "0"),
        ] {
            let (pod, used) = (pod(app, init), usage(&[("app-0", 4, 0)], 2));
            assert!(is_limited(&pod), "{app:?} {init:?}");
            assert_eq!(words(&pod, &used, None), sum(text), "{app:?} {init:?}");
        }
        // The usage of a container without a limit counts for the sum too.
        let (mixed, used) = (pod(&["5Mi", ""], &[]), usage(&[("app-0", 1, 0), ("app-1", 5, 0)], 0));
        assert_eq!(words(&mixed, &used, None), sum("5Mi"));
        let free = pod(&["", ""], &[("", true)]);
        assert!(!is_limited(&free));
        assert_eq!(words(&free, &usage(&[("app-0", 1 << 20, 0)], 0), Some(false)), "");
    }

    #[test]
    fn a_containers_usage_is_compared_with_its_own_limit() {
        let pod = pod(&["5Mi", "1Gi", "0"], &[("5Mi", true)]);
        let own = "ephemeralcontainerfs.limit: Container app-0 exceeded its local ephemeral storage limit \"5Mi\". ";
        for (name, layer, logs, images_apart, wanted) in [
            ("app-0", 3, 3, Some(false), own),
            ("app-0", 3, 2, Some(false), ""),
            ("app-0", 6, 0, Some(true), ""),
            ("app-0", 6, 6, Some(true), own),
            ("app-0", 6, 6, None, ""),
            ("app-2", 6, 6, Some(false), ""),
            ("init-0", 6, 6, Some(false), ""),
        ] {
            let found = words(&pod, &usage(&[("app-1", 1, 1), (name, layer, logs)], 20), images_apart);
            assert_eq!(found, wanted, "{name} {layer} {logs} {images_apart:?}");
        }
        let endless = usage(&[("app-0", (1 << 44) - 1, (1 << 44) - 1)], 1 << 40);
        assert!(broken(&pod, &endless, None).is_some(), "a runtime may report any number");
        let mut unknown = usage(&[("app-0", 6, 0)], 0);
        unknown.containers[0].layer = None;
        assert_eq!(
            words(&pod, &unknown, Some(false)),
            "",
            "usage that the runtime does not report counts as none"
        );
    }
}
