//! Limits of a pod's own on the node's disk: `ephemeral-storage`, and the `sizeLimit` of an emptyDir. What is held against
//! which is a table of `eviction`.

use std::fs;

use smolet::eviction::pods::SYSTEM_CRITICAL_PRIORITY;

use crate::checkpoint::pass_until_saved;
use crate::world::World;

const MIB: i64 = 1 << 20;

/// A container that may take so much disk; `""` = as much as there is.
fn container(name: &str, limit: &str) -> String {
    let limits =
        if limit.is_empty() { String::new() } else { format!("limits: {{ephemeral-storage: {limit}}}") };
    format!("{{name: {name}, image: 'busybox:1', resources: {{{limits}}}}}")
}

fn run(world: &World, name: &str, spec: &str, containers: &[String]) {
    world.run(name, &format!("{spec}containers: [{}]", containers.join(", ")));
}

/// Containers of that name have written so much to their root.
fn write(world: &World, container: &str, mib: i64) {
    world.fake.state().written.insert(container.to_owned(), mib * MIB);
}

/// Lets time pass until the runtime has been asked twice what containers use.
fn look(world: &World) {
    let before = world.fake.count("ListContainerStats");
    world.until("two looks", |world| world.fake.count("ListContainerStats") >= before + 2);
}

/// The message of a pod that has failed for a limit of its own.
fn why(world: &World, name: &str) -> String {
    world.until(name, |world| world.phase(name) == "Failed");
    let status = world.pod(name).and_then(|pod| pod.status).expect("a status");
    assert_eq!(status.reason.as_deref(), Some("Evicted"));
    let target = status.conditions.iter().flatten().find(|condition| condition.type_ == "DisruptionTarget");
    assert_eq!(target, None, "nothing was wrong with the node");
    status.message.unwrap_or_default()
}

fn of_sum(limit: &str) -> String {
    format!("Pod ephemeral local storage usage exceeds the total limit of containers {limit}. ")
}

#[test]
fn a_pod_that_takes_more_disk_than_it_may_fails_for_good() {
    let world = World::new();
    write(&world, "app", 4);
    run(&world, "greedy", "restartPolicy: OnFailure, ", &[container("app", "5Mi")]);
    run(&world, "free", "", &[container("free", "")]);
    write(&world, "free", 1 << 20);
    look(&world);
    assert_eq!(world.phase("greedy"), "Running", "4 MiB are not 5");
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
    assert_eq!(world.fake.count("ListContainerStats"), asked, "no pod is left that has a limit");
    world.kill();
    world.start();
    world.pass(60);
    assert_eq!((world.phase("greedy").as_str(), world.running()), ("Failed", vec!["free/free#0".to_owned()]));
    assert_eq!(world.count("StartContainer"), 0, "{}", world.trace());
}

#[test]
fn logs_and_volumes_on_disk_count_and_what_lies_in_memory_does_not() {
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
    // A secret's files are in memory, where the test may mount.
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
fn an_empty_dir_that_outgrows_its_limit_is_told_before_its_pod() {
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
fn a_container_is_held_to_its_own_limit_where_images_share_the_disk() {
    for (images, ends) in [("root", true), ("/proc", false)] {
        let world = World::without_agent();
        // What is told of has to be there.
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
            assert_eq!(world.phase("two"), "Running", "its root is on another disk");
        }
        assert_eq!(world.fake.count("ImageFsInfo"), 1, "what disks there are is asked once");
    }
}

#[test]
fn a_critical_pod_stays_and_a_runtime_that_does_not_tell_ends_none() {
    let world = World::new();
    write(&world, "app", 6);
    let critical = format!("priority: {SYSTEM_CRITICAL_PRIORITY}, ");
    run(&world, "critical", &critical, &[container("app", "5Mi")]);
    world.pass(60);
    assert_eq!(world.fake.count("ListContainerStats"), 0, "nothing would follow");
    world.fake.fail("ListContainerStats", u32::MAX, 2, "broken");
    run(&world, "greedy", "", &[container("app", "5Mi")]);
    look(&world);
    assert_eq!(world.phase("greedy"), "Running");
    world.fake.heal("ListContainerStats");
    assert_eq!(why(&world, "greedy"), of_sum("5Mi"));
    assert_eq!(world.running(), ["critical/app#0"]);
}

#[test]
fn containers_know_what_disk_they_may_take() {
    let world = World::new();
    let field = |name: &str| {
        format!(
            "{{name: {name}, valueFrom: {{resourceFieldRef: {{resource: {}.ephemeral-storage}}}}}}",
            name.to_lowercase()
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
    // Nothing is kept free here.
    let disk = smolet::filesystem::Filesystem::of(&world.path("root")).unwrap().bytes;
    assert_eq!((of("all", "LIMITS"), of("all", "REQUESTS")), (disk, 0));
}
