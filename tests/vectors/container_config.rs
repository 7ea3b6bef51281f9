//! Set `container_config`: `Kubelet.GenerateRunContainerOptions` and `generateContainerConfig`.

use serde_json::{Value, json};
use smolet::cri::Image;
use smolet::model::{ContainerKind, DesiredPod};
use smolet::proto::runtime::v1::{ContainerConfig, LinuxContainerResources};
use smolet::render::{CgroupVersion, ContainerInput, NodeSettings, container_config, paths};

use crate::fixture::{Fixture, pod_ips};
use crate::protojson::protojson;
use crate::run_set;

#[test]
fn container_config_set() {
    let fixture = Fixture::load();
    run_set("container_config", |case| {
        let pod = DesiredPod::new(serde_json::from_value(case.input["pod"].clone()).expect("a pod"));
        let name = case.input["containerName"].as_str().expect("a name");
        let (kind, index) = place(&pod, name);
        let user = &case.input["imageUser"];
        let image = (!user.is_null()).then(|| image(user));
        let pod_ips = pod_ips(&case.input);
        let termination_log =
            format!("{}/RANDOM8", paths::termination_log_dir(&fixture.node, &pod.key, name));
        let input = ContainerInput {
            pod: &pod,
            kind,
            index,
            restart_count: u32::try_from(case.input["restartCount"].as_u64().unwrap_or_default()).unwrap(),
            image_ref: case.input["imageRef"].as_str().unwrap_or_default(),
            image: image.as_ref(),
            pod_ips: &pod_ips,
            mounts: &[],
            termination_log: Some(&termination_log),
            target: None,
            recursive_read_only: false,
            annotations: &[],
            user_namespace: None,
            env: &fixture.sources,
        };
        let with = |version| {
            let node = NodeSettings {
                seccomp_default: case.input["seccompDefault"].as_bool().unwrap_or_default(),
                cgroup_version: version,
                ..fixture.node.clone()
            };
            container_config(&node, &input)
        };
        let resources = |config: ContainerConfig| -> Value {
            let linux = config.linux.expect("Linux settings");
            let resources: LinuxContainerResources = linux.resources.expect("resources");
            protojson("LinuxContainerResources", &resources)
        };
        match with(CgroupVersion::V1 { swap_controller: false }) {
            Err(error) => json!({"error": error.to_string()}),
            Ok(config) => json!({
                "config": protojson("ContainerConfig", &config),
                "linuxResourcesCgroupV1SwapController":
                    resources(with(CgroupVersion::V1 { swap_controller: true }).expect("as before")),
                "linuxResourcesCgroupV2":
                    resources(with(CgroupVersion::V2 { swap_controller: true }).expect("as before")),
            }),
        }
    });
}

fn place(pod: &DesiredPod, name: &str) -> (ContainerKind, usize) {
    if let Some(index) = pod.init_containers().iter().position(|container| container.name == name) {
        return (ContainerKind::Init, index);
    }
    if let Some(index) = pod.containers().iter().position(|container| container.name == name) {
        return (ContainerKind::App, index);
    }
    let index = pod.ephemeral_containers().iter().position(|container| container.name == name);
    (ContainerKind::Ephemeral, index.expect("the container is in the spec"))
}

fn image(user: &Value) -> Image {
    Image {
        id: "sha256:abc".into(),
        repo_tags: Vec::new(),
        repo_digests: Vec::new(),
        size_bytes: 0,
        uid: user["uid"].as_i64(),
        username: user["username"].as_str().unwrap_or_default().into(),
        pinned: false,
    }
}
