//! A pod's own limits on the node's disk: `ephemeral-storage`, and the `sizeLimit` of an emptyDir. The decisions are tested in
//! `eviction`.

use std::fs;

use smolet::eviction::pods::SYSTEM_CRITICAL_PRIORITY;

use crate::checkpoint::pass_until_saved;
use crate::world::World;

const MIB: i64 = 1 << 20;

/// A container with this limit on disk usage; `""` = none.
fn container(name: &str, limit: &str) -> String {
    let limits =
        if limit.is_empty() { String::new() } else { format!("limits: {{ephemeral-storage: {limit}}}") };
    format!("{{name: {name}, image: 'busybox:1', resources: {{{limits}}}}}")
}

fn run(world: &World, name: &str, spec: &str, containers: &[String]) {
    world.run(name, &format!("{spec}containers: [{}]", containers.join(", ")));
}

/// Sets the size of the writable layers of containers of that name.
fn write(world: &World, container: &str, mib: i64) {
    world.fake.state().written.insert(container.to_owned(), mib * MIB);
}

/// Advances time until the runtime has been asked twice for usage.
fn look(world: &World) {
    let before = world.fake.count("ListContainerStats");
    world.until("two looks", |world| world.fake.count("ListContainerStats") >= before + 2);
}

/// The message of a pod that failed because of its own limit.
fn why(world: &World, name: &str) -> String {
    world.until(name, |world| world.phase(name) == "Failed");
    let status = world.pod(name).and_then(|pod| pod.status).expect("a status");
    assert_eq!(status.reason.as_deref(), Some("Evicted"));
    let target = status.conditions.iter().flatten().find(|condition| condition.type_ == "DisruptionTarget");
    assert_eq!(target, None, "no condition of the node");
    status.message.unwrap_or_default()
}

fn of_sum(limit: &str) -> String {
    format!("Pod ephemeral local storage usage exceeds the total limit of containers {limit}. ")
}

#[test]
fn a_pod_above_its_disk_limit_fails_for_good() {
    let world = World::new();
    write(&world, "app", 4);
    run(&world, "greedy", "restartPolicy: OnFailure, ", &[container("app", "5Mi")]);
    run(&world, "free", "", &[container("free", "")]);
    write(&world, "free", 1 << 20);
    look(&world);
    assert_eq!(world.phase("greedy"), "Running", "4 of 5 MiB");
    write(&world, "app", 6);
    assert_eq!(why(&world, "greedy"), of_sum("5Mi"));
    let page = world.ask("/metrics").1;
    let line = "kubelet_evictions{eviction_signal=\"ephemeralpodfs.limit\"} 1";
    assert!(page.contains(line), "{line} in\n{page}");
    assert!(world.describe("greedy").contains("Evicted"));
    world.until("its end", |world| world.running() == ["free/free#0"]);
    pass_until_saved(&world);
    let asked = world.fake.count("ListContainerStats");
    world.pass(60);
    assert_eq!(world.fake.count("ListContainerStats"), asked, "no pod with a limit is left");
    world.kill();
    world.start();
    world.pass(60);
    assert_eq!((world.phase("greedy").as_str(), world.running()), ("Failed", vec!["free/free#0".to_owned()]));
    assert_eq!(world.count("StartContainer"), 0, "{}", world.trace());
}

#[test]
fn logs_and_volumes_on_disk_count_and_a_tmpfs_does_not() {
    let world = World::new();
    let volumes = "volumes: [{name: data, emptyDir: {}}], ";
    for name in ["logs", "data", "little"] {
        write(&world, name, 1);
        run(&world, name, volumes, &[container(name, "5Mi")]);
    }
    let lots = vec![1; 5 << 20];
    let log = world.logs("logs").join("logs/0.log.20260102-030405");
    fs::write(log, &lots).unwrap();
    fs::write(world.pod_dir("data").join("volumes/kubernetes.io~empty-dir/data/x"), &lots).unwrap();
    // A secret's files are on a tmpfs, where the test may mount.
    let secret = world.pod_dir("little").join("volumes/kubernetes.io~secret");
    fs::create_dir_all(&secret).unwrap();
    fs::write(secret.join("x"), &lots).unwrap();
    for name in ["logs", "data"] {
        assert_eq!(why(&world, name), of_sum("5Mi"));
    }
    look(&world);
    assert_eq!(world.running(), ["little/little#0"]);
}

#[test]
fn an_empty_dir_above_its_limit_is_reported_before_its_pod() {
    let world = World::new();
    let volumes = "volumes: [{name: data, emptyDir: {sizeLimit: 4Mi}}], ";
    run(&world, "both", volumes, &[container("both", "5Mi")]);
    let data = world.pod_dir("both").join("volumes/kubernetes.io~empty-dir/data");
    fs::write(data.join("x"), vec![1; 3 << 20]).unwrap();
    look(&world);
    assert_eq!(world.phase("both"), "Running");
    fs::write(data.join("y"), vec![1; 3 << 20]).unwrap();
    assert_eq!(why(&world, "both"), "Usage of EmptyDir volume \"data\" exceeds the limit \"4Mi\". ");
    let page = world.ask("/metrics").1;
    let evictions: Vec<&str> = page.lines().filter(|line| line.starts_with("kubelet_evictions{")).collect();
    assert_eq!(evictions, ["kubelet_evictions{eviction_signal=\"emptydirfs.limit\"} 1"]);
}

#[test]
fn a_containers_own_limit_applies_where_images_share_the_disk() {
    for (images, ends) in [("root", true), ("/proc", false)] {
        let world = World::without_agent();
        // The reported directory has to exist.
        fs::create_dir_all(world.path("root")).unwrap();
        world.fake.state().image_mountpoint = Some(world.path(images).to_string_lossy().into_owned());
        world.start();
        write(&world, "a", 6);
        let containers = [container("a", "5Mi"), container("b", "1Gi")];
        run(&world, "two", "", &containers);
        if ends {
            let words = "Container a exceeded its local ephemeral storage limit \"5Mi\". ";
            assert_eq!(why(&world, "two"), words);
            let page = world.ask("/metrics").1;
            assert!(page.contains("kubelet_evictions{eviction_signal=\"ephemeralcontainerfs.limit\"} 1"));
        } else {
            look(&world);
            assert_eq!(world.phase("two"), "Running", "its writable layer is on another disk");
        }
        assert_eq!(world.fake.count("ImageFsInfo"), 2, "once for the limits, once to write the image out");
    }
}

#[test]
fn a_critical_pod_is_not_evicted_nor_any_without_reported_usage() {
    let world = World::new();
    write(&world, "app", 6);
    let critical = format!("priority: {SYSTEM_CRITICAL_PRIORITY}, ");
    run(&world, "critical", &critical, &[container("app", "5Mi")]);
    world.pass(60);
    assert_eq!(world.fake.count("ListContainerStats"), 0, "the result would have no effect");
    world.fake.fail("ListContainerStats", u32::MAX, 2, "broken");
    run(&world, "greedy", "", &[container("app", "5Mi")]);
    look(&world);
    assert_eq!(world.phase("greedy"), "Running");
    world.fake.heal("ListContainerStats");
    assert_eq!(why(&world, "greedy"), of_sum("5Mi"));
    assert_eq!(world.running(), ["critical/app#0"]);
}

#[test]
fn containers_have_their_disk_limits_in_variables() {
    let world = World::new();
    let field = |name: &str| {
        format!(
            "{{name: {name}, valueFrom: {{resourceFieldRef: {{resource: {}.ephemeral-storage}}}}}}",
            name.to_ascii_lowercase()
        )
    };
    let env = format!("env: [{}, {}]", field("LIMITS"), field("REQUESTS"));
    for (name, limit) in [("some", "5Mi"), ("all", "")] {
        let container = container(name, limit);
        let container = container.strip_suffix('}').unwrap();
        run(&world, name, "", &[format!("{container}, {env}}}")]);
    }
    let of = |container: &str, variable: &str| {
        let state = world.fake.state();
        let found = state.containers.values().find(|found| found.name() == container).unwrap();
        let found = found.config.envs.iter().find(|env| env.key == variable).unwrap();
        String::from_utf8_lossy(&found.value).parse::<u64>().unwrap()
    };
    assert_eq!((of("some", "LIMITS"), of("some", "REQUESTS")), (5 << 20, 5 << 20));
    // Nothing is reserved here.
    let disk = smolet::filesystem::Filesystem::of(&world.path("root")).unwrap().bytes;
    assert_eq!((of("all", "LIMITS"), of("all", "REQUESTS")), (disk, 0));
}
