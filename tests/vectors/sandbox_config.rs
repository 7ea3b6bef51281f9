//! Set `sandbox_config`: `generatePodSandboxConfig`, `GetPodDNS`, cgroup parents and the hosts file.

use serde_json::json;
use smolet::model::{ContainerKind, DesiredPod};
use smolet::render::{
    CgroupDriver, CgroupVersion, ContainerInput, NodeSettings, environment, hosts_file, mounts_hosts_file,
    qos, sandbox_config,
};

use crate::fixture::{Fixture, Sources, pod_ips};
use crate::protojson::protojson;
use crate::run_set;

#[test]
fn sandbox_config_set() {
    let fixture = Fixture::load();
    run_set("sandbox_config", |case| {
        let pod = DesiredPod::new(serde_json::from_value(case.input["pod"].clone()).expect("a pod"));
        let attempt = u32::try_from(case.input["attempt"].as_u64().unwrap_or_default()).unwrap();
        let config = match sandbox_config(&fixture.node, &pod, attempt, None) {
            Ok(config) => config,
            Err(error) => return json!({"error": error.to_string()}),
        };
        let v2 = NodeSettings {
            cgroup_version: CgroupVersion::V2 { swap_controller: true },
            cgroup_driver: CgroupDriver::Systemd,
            ..fixture.node.clone()
        };
        let linux =
            sandbox_config(&v2, &pod, attempt, None).expect("as before").linux.expect("Linux settings");
        let pod_ips = pod_ips(&case.input);
        let hosts = wants_hosts_file(&fixture.node, &pod, &pod_ips, &fixture.sources)
            .then(|| hosts_file(&fixture.node, &pod, &pod_ips, "").expect("as the sandbox's host name"));
        json!({
            "config": protojson("PodSandboxConfig", &config),
            "linuxResourcesCgroupV2": protojson("LinuxContainerResources", &linux.resources.expect("resources")),
            "cgroupParentSystemd": linux.cgroup_parent,
            "qosClass": qos::pod_qos(&pod.pod).as_str(),
            "etcHosts": hosts,
        })
    });
}

/// The kubelet writes the file while it renders a container's mounts, so only for a container whose environment
/// could be made; the vectors leave the file of the host's network out.
fn wants_hosts_file(node: &NodeSettings, pod: &DesiredPod, pod_ips: &[Box<str>], sources: &Sources) -> bool {
    let containers = (0..pod.init_containers().len())
        .map(|index| (ContainerKind::Init, index))
        .chain((0..pod.containers().len()).map(|index| (ContainerKind::App, index)));
    pod.spec().host_network != Some(true)
        && containers.into_iter().any(|(kind, index)| {
            let input = ContainerInput {
                pod,
                kind,
                index,
                restart_count: 0,
                image_ref: "",
                image: None,
                pod_ips,
                mounts: &[],
                termination_log: None,
                target: None,
                recursive_read_only: false,
                annotations: &[],
                user_namespace: None,
                env: sources,
            };
            let container = input.container().expect("it is in the spec");
            mounts_hosts_file(&input) && environment(node, &input, &container).is_ok()
        })
}
