//! Image volumes: pulled as a container's image is, mounted by the runtime, and refused for a runtime without support.

use smolet::proto::runtime::v1 as cri;

use crate::world::{World, full};

/// A pod that mounts a volume with these fields and `more`.
fn pod(image: &str, more: &str) -> String {
    format!(
        "volumes: [{{name: model, image: {{{image}}}}}], containers: [{{name: app, image: 'busybox:1', \
         volumeMounts: [{{name: model, mountPath: /model, {more}}}]}}]"
    )
}

const MODEL: &str = "reference: 'model:1'";

/// The newest container's mount of the volume.
fn mount(world: &World) -> cri::Mount {
    let state = world.fake.state();
    let container = state.container(&format!("{}/app", full("web"))).expect("the container");
    container.config.mounts.iter().find(|mount| mount.container_path == "/model").expect("the mount").clone()
}

fn id_of(world: &World, tag: &str) -> String {
    let state = world.fake.state();
    state.images.values().find(|image| image.tag.ends_with(tag)).expect("the image").id.clone()
}

#[test]
fn an_image_volume_is_pulled_before_its_container_and_mounted_by_the_runtime() {
    let world = World::new();
    world.run(
        "web",
        &pod(MODEL, "subPathExpr: $(NAME)")
            .replace("volumeMounts", "env: [{name: NAME, value: a/b}], volumeMounts"),
    );
    let actions = world.actions();
    let order: Vec<&str> = actions.iter().map(String::as_str).collect();
    assert_eq!(
        order,
        ["RunPodSandbox web#0", "PullImage model:1", "CreateContainer web/app#0", "StartContainer web/app#0"]
    );
    let image = cri::ImageSpec {
        image: id_of(&world, "model:1"),
        user_specified_image: "model:1".to_owned(),
        ..cri::ImageSpec::default()
    };
    let wanted = cri::Mount {
        container_path: "/model".to_owned(),
        readonly: true,
        image: Some(image),
        image_sub_path: "a/b".to_owned(),
        ..cri::Mount::default()
    };
    assert_eq!(mount(&world), wanted);
    assert!(!world.pod_dir("web").join("volumes").exists(), "it has no directory on the node");
    let described = world.describe("web-gw");
    assert!(described.contains("Image (a container image or OCI artifact)"), "{described}");
    assert!(described.contains("Successfully pulled image \"model:1\""), "{described}");
}

#[test]
fn an_image_volume_is_pulled_by_its_own_policy() {
    for (policy, pulls) in [("", 1), (", pullPolicy: IfNotPresent", 1), (", pullPolicy: Always", 2)] {
        let world = World::new();
        world.run("web", &pod(&format!("{MODEL}{policy}"), ""));
        world.fake.exit("web-gw/app", 1, "Error", "");
        world.until("its restart", |world| world.running() == ["web/app#1"]);
        assert_eq!(world.count("PullImage model:1"), pulls, "{policy}");
    }
    let world = World::new();
    world.put("web", &pod(&format!("{MODEL}, pullPolicy: Never"), ""));
    world.until("the reason", |world| world.waiting("web", "app").0 == "ErrImageNeverPull");
    assert_eq!((world.count("PullImage"), world.count("CreateContainer")), (0, 0));
    world.fake.add_image("model:1");
    world.until("the pod", |world| world.running() == ["web/app#0"]);
}

#[test]
fn a_missing_image_of_a_volume_is_retried_and_the_others_are_pulled_meanwhile() {
    let world = World::new();
    world.fake.missing_image("model:1");
    let spec = pod(MODEL, "")
        .replace("volumes: [", "volumes: [{name: other, image: {reference: 'other:1'}}, ")
        .replace("mountPath: /model, ", "mountPath: /model}, {name: other, mountPath: /other");
    world.put("web", &spec);
    world.until("the error", |world| world.waiting("web", "app").0 == "ErrImagePull");
    assert!(world.waiting("web", "app").1.contains("model:1"));
    assert_eq!(world.count("PullImage other:1"), 1, "the other volume's image is present");
    world.until("the back-off", |world| world.waiting("web", "app").0 == "ImagePullBackOff");
    let message = world.waiting("web", "app").1;
    assert!(message.starts_with("Back-off pulling image \"model:1\": ErrImagePull: "), "{message}");
    world.until("three more pulls", |world| world.times("PullImage model:1").len() == 4);
    let times = world.times("PullImage model:1");
    let gaps: Vec<i64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    for (gap, wanted) in gaps.iter().zip([10, 20, 40]) {
        assert!((wanted..=wanted + 3).contains(gap), "{gaps:?}");
    }
    assert_eq!((world.count("PullImage other:1"), world.count("CreateContainer")), (1, 0));
    world.fake.state().missing.clear();
    world.until("the pod", |world| world.running() == ["web/app#0"]);
}

#[test]
fn an_image_that_no_container_mounts_is_not_pulled() {
    let world = World::new();
    let unused = pod(MODEL, "").replace("name: model, image", "name: unused, image");
    let spec = unused.replace("volumes: [", "volumes: [{name: model, emptyDir: {}}, ");
    world.run("web", &spec);
    assert_eq!(world.count("PullImage"), 0, "{}", world.trace());
}

#[test]
fn other_credentials_reset_the_back_off_of_a_volumes_image() {
    let world = World::new();
    world.fake.state().private.insert("r.io/model:1".into(), ("me".into(), "hunter2hunter2".into()));
    let spec = format!("imagePullSecrets: [{{name: a}}], {}", pod("reference: 'r.io/model:1'", ""));
    world.put("web", &spec);
    world.until("three pulls", |world| world.count("PullImage") == 3);
    world.pass(2);
    let before = world.seconds();
    world.put_text(
        "a",
        "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\ntype: kubernetes.io/dockerconfigjson\nstringData: \
         {.dockerconfigjson: '{\"auths\": {\"r.io\": {\"username\": \"me\", \"password\": \"hunter2hunter2\"}}}'}\n",
    );
    world.until("the pod", |world| world.running() == ["web/app#0"]);
    assert!(world.seconds() - before < 5, "no back-off from the anonymous pull");
    assert_eq!(world.count("PullImage r.io/model:1 as me"), 1);
}

#[test]
fn a_pod_waits_for_a_runtime_that_mounts_images() {
    let world = World::new();
    let runtime = |name, version| world.fake.state().version = Some((name, version));
    runtime("containerd", "1.6.20~ds1");
    world.put("web", &pod(MODEL, "subPath: a"));
    let waits = |why: &str| {
        let wanted =
            ("CreateContainerError".to_owned(), format!("ImageVolumeMountFailed: volume \"model\": {why}"));
        world.until(why, |world| world.waiting("web", "app") == wanted);
        let described = world.describe("web-gw");
        assert!(described.contains(why), "{described}");
    };
    waits(
        "containerd 1.6.20~ds1 mounts no images; volumes of images need containerd 2.1, CRI-O 1.31 or later",
    );
    runtime("containerd", "v2.1.5");
    waits(
        "containerd v2.1.5 mounts images as a whole only; subPath on volumes of images needs containerd 2.2, CRI-O 1.33 \
         or later",
    );
    assert_eq!(
        (world.count("PullImage"), world.count("CreateContainer")),
        (0, 0),
        "nothing is fetched for it"
    );
    // An upgrade of the runtime needs no restart of the agent.
    runtime("containerd", "v2.2.0");
    world.until("the pod", |world| world.running() == ["web/app#0"]);
    assert_eq!(mount(&world).image_sub_path, "a");
}

#[test]
fn an_unknown_runtime_reports_its_support() {
    let world = World::new();
    let words = "ImageVolumeMountFailed: no such thing here";
    world.fake.fail("CreateContainer", 2, 2, words);
    world.put("web", &pod(MODEL, ""));
    let refused = ("CreateContainerError".to_owned(), words.to_owned());
    world.until("its words", |world| world.waiting("web", "app") == refused);
    world.until("the pod", |world| world.running() == ["web/app#0"]);
}
