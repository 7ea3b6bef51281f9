//! The name of a pod's cgroup parent, for both drivers. PURE.
//! Follows `cm/pod_container_manager_linux.go` and `cm/cgroup_manager_linux.go`.

use super::node::{CgroupDriver, NodeSettings};
use super::qos::QosClass;

/// The parent cgroup of all pods, inside the cgroup root (`defaultNodeAllocatableCgroupName`).
const KUBEPODS: &str = "kubepods";

/// The quality-of-service classes with their own directory; `None` is Guaranteed, whose pods are directly in `kubepods`.
const CLASSES: [Option<&str>; 3] = [None, Some("burstable"), Some("besteffort")];

/// The pod's cgroup parent in the CRI's format, absolute in every hierarchy (`GetPodContainerName`).
pub fn pod_cgroup_parent(node: &NodeSettings, uid: &str, qos: QosClass) -> String {
    literal(node, directory(qos), Some(&format!("pod{uid}")))
}

/// The cgroup of all pods of a quality-of-service class; `kubepods` itself for Guaranteed.
pub fn class_cgroup(node: &NodeSettings, qos: QosClass) -> String {
    literal(node, directory(qos), None)
}

fn directory(qos: QosClass) -> Option<&'static str> {
    match qos {
        QosClass::Guaranteed => None,
        QosClass::Burstable => Some("burstable"),
        QosClass::BestEffort => Some("besteffort"),
    }
}

/// Every name that the pod's cgroup may have, whatever its class was when it ran.
pub fn pod_cgroup_candidates(node: &NodeSettings, uid: &str) -> [String; 3] {
    CLASSES.map(|class| literal(node, class, Some(&format!("pod{uid}"))))
}

fn literal(node: &NodeSettings, class: Option<&str>, pod: Option<&str>) -> String {
    let root = node.cgroup_root.split('/').filter(|part| !part.is_empty());
    let parts = root.chain([KUBEPODS]).chain(class).chain(pod);
    let mut name = String::new();
    match node.cgroup_driver {
        CgroupDriver::Cgroupfs => {
            for part in parts {
                name.push('/');
                name.push_str(part);
            }
        }
        // systemd nests slices by the prefixes of their names: a-b.slice is inside a.slice (`ExpandSlice`).
        CgroupDriver::Systemd => {
            let mut prefix = String::new();
            for part in parts {
                let part = part.replace('-', "_");
                for piece in ["/", &prefix, &part, ".slice"] {
                    name.push_str(piece);
                }
                prefix.push_str(&part);
                prefix.push('-');
            }
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_both_drivers() {
        let mut node = NodeSettings::new("n", "/r");
        assert_eq!(pod_cgroup_parent(&node, "a-b", QosClass::Guaranteed), "/kubepods/poda-b");
        assert_eq!(pod_cgroup_parent(&node, "a-b", QosClass::BestEffort), "/kubepods/besteffort/poda-b");
        node.cgroup_root = "/edge-1/x/".into();
        assert_eq!(
            pod_cgroup_parent(&node, "a-b", QosClass::Burstable),
            "/edge-1/x/kubepods/burstable/poda-b"
        );
        node.cgroup_driver = CgroupDriver::Systemd;
        assert_eq!(
            pod_cgroup_parent(&node, "a-b", QosClass::Burstable),
            "/edge_1.slice/edge_1-x.slice/edge_1-x-kubepods.slice/edge_1-x-kubepods-burstable.slice/\
             edge_1-x-kubepods-burstable-poda_b.slice"
        );
    }
}
