//! Bytes of a manifest → decoded, validated, with an identity; what is valid is rendered, its volumes too, and hashed. Nothing panics,
//! problems are short, and what is valid can be told to the runtime.

use std::rc::Rc;
use std::sync::Arc;

use smolet::limits;
use smolet::model::{ContainerKind, DesiredPod, Objects, Side, Wall};
use smolet::render::{ContainerInput, ManifestObjects, NodeSettings, container_config, sandbox_config};
use smolet::source::{NodeName, manifest};
use smolet::volume::{self, files::Sources};

pub fn run(data: &[u8]) {
    let file = Arc::from("fuzz.yaml");
    let parse = || manifest::parse(&file, data, &NodeName::new("gw"), Wall(0), limits::PODS_BYTES_MAX);
    let parsed = parse();
    assert!(parsed.problems.len() <= limits::PROBLEMS_PER_FILE_MAX);
    assert!(parsed.bytes <= limits::PODS_BYTES_MAX);
    for problem in &parsed.problems {
        let line = problem.to_string();
        assert!(line.chars().count() <= 1000 && !line.chars().any(char::is_control), "{line:?}");
    }
    let again = parse();
    assert_eq!(parsed.pods.len(), again.pods.len());
    let node = NodeSettings::new("gw", "/var/lib/smolet");
    let objects = parsed.objects.into_iter().map(|of| (of.object.key(Side::Manifests), of.object));
    let env = ManifestObjects(Rc::new(objects.collect::<Objects>()));
    for (pod, twin) in parsed.pods.into_iter().zip(again.pods) {
        assert_eq!((&pod.pod.metadata, &pod.config_hash), (&twin.pod.metadata, &twin.config_hash));
        let pod = DesiredPod::new(pod.pod);
        assert!(pod.key.is_path_safe(), "{:?}", pod.key);
        let _ = sandbox_config(&node, &pod, 0, None);
        let _ = volume::pod_volumes(Sources { pod: &pod, node: &node, objects: &env.0 }, "/pods/u");
        let lists = [
            (ContainerKind::Init, pod.init_containers().len()),
            (ContainerKind::App, pod.containers().len()),
            (ContainerKind::Ephemeral, pod.ephemeral_containers().len()),
        ];
        for (kind, index) in lists.into_iter().flat_map(|(kind, count)| (0..count).map(move |i| (kind, i))) {
            let input = ContainerInput {
                pod: &pod,
                kind,
                index,
                restart_count: 1,
                image_ref: "sha256:abc",
                image: None,
                pod_ips: &[],
                mounts: &[],
                termination_log: None,
                target: None,
                recursive_read_only: false,
                annotations: &[],
                user_namespace: None,
                env: &env,
            };
            let _ = container_config(&node, &input);
        }
    }
}
