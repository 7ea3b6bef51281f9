//! `/metrics` and `smolet top --self`: counters count, and usage is within its limits.

use std::time::Duration;

use smolet::limits::{
    BOUNDS, EVENTS_MAX, KIB, MANIFEST_FILES_MAX, PODS_BYTES_MAX, PROBLEMS_MAX, PULL_MESSAGES_MAX,
    RELIST_ORPHANS_MAX, STATUS_STORE_BYTES, memory_ceiling,
};

use crate::adopt::foreign;
use crate::common::fake::Program;
use crate::world::{NODE, World};

/// A value on the page.
fn value(page: &str, name: &str) -> f64 {
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{name} is not there:\n{page}")).parse().unwrap()
}

fn page(world: &World) -> String {
    let (code, page) = world.ask("/metrics");
    assert_eq!(code, 200, "{page}");
    page
}

pub fn count(world: &World, name: &str) -> usize {
    value(&page(world), name) as usize
}

/// Entries of a bounded structure.
pub fn entries(world: &World, structure: &str) -> usize {
    count(world, &format!("smolet_bounded_entries{{structure=\"{structure}\"}}"))
}

/// No usage exceeds its limit, and both pages show the limits of the code.
fn within_bounds(world: &World) {
    let page = page(world);
    let (_, top) = world.ask("/top");
    for bound in &BOUNDS {
        let of = |family: &str| value(&page, &format!("{family}{{structure=\"{}\"}}", bound.name)) as usize;
        let limits = (of("smolet_bounded_entries_limit"), of("smolet_bounded_bytes_limit"));
        assert_eq!(limits, (bound.entries_max, bound.bytes_max), "{}", bound.name);
        let (entries, bytes) = (of("smolet_bounded_entries"), of("smolet_bounded_bytes"));
        assert!(entries <= bound.entries_max, "{}: {entries} of {}", bound.name, bound.entries_max);
        assert!(bytes <= bound.bytes_max, "{}: {bytes} of {} bytes", bound.name, bound.bytes_max);
        let line = top.lines().find(|line| line.starts_with(bound.name)).expect("a line of its own");
        let words: Vec<&str> = line.split_whitespace().collect();
        let shown = (words[2], words[4]);
        let wanted = (bound.entries_max.to_string(), bound.bytes_max.div_ceil(KIB).to_string());
        assert_eq!(shown, (&*wanted.0, &*wanted.1), "{line}");
    }
    assert_eq!(value(&page, "smolet_memory_ceiling_bytes") as usize, memory_ceiling(STATUS_STORE_BYTES));
}

#[test]
fn counters_have_the_kubelets_names() {
    let world = World::new();
    world.fake.program("first", Program::exits(0, Duration::ZERO));
    world.fake.missing_image("nothere:1");
    world.run(
        "web",
        "initContainers: [{name: first, image: 'busybox:1'}], containers: [{name: app, image: 'busybox:1'}]",
    );
    world.put("bad", "containers: [{name: app, image: 'nothere:1'}]");
    world.until("the failed pull", |world| world.waiting("bad", "app").0 == "ImagePullBackOff");
    foreign(&world.fake, "other", "uid-of-another", Some("another-node"));
    world.pass(2);
    let page = page(&world);
    // An operation that never failed has no line.
    assert!(!page.contains("errors_total{operation_type=\"run_podsandbox\"}"), "{page}");
    assert!(!page.contains("errors_total{container_type=\"init_container\""), "{page}");
    for (name, wanted) in [
        ("kubelet_running_pods", 2),
        ("kubelet_running_containers{container_state=\"running\"}", 1),
        ("kubelet_running_containers{container_state=\"exited\"}", 1),
        ("kubelet_started_containers_total{container_type=\"init_container\"}", 1),
        (
            "kubelet_terminated_containers_total{container_type=\"init_container\",exit_code=\"0\",reason=\"Completed\"}",
            1,
        ),
        ("kubelet_pod_start_duration_seconds_count", 1),
        ("kubelet_runtime_operations_total{operation_type=\"run_podsandbox\"}", 2),
        ("kubelet_runtime_operations_total{operation_type=\"create_container\"}", 2),
        ("kubelet_runtime_operations_total{operation_type=\"pull_image\"}", world.fake.count("PullImage")),
        (
            "kubelet_runtime_operations_errors_total{operation_type=\"pull_image\"}",
            world.fake.count("PullImage"),
        ),
        ("smolet_foreign_sandboxes", 1),
        ("smolet_bounded_entries{structure=\"manifests\"}", 2),
        ("smolet_bounded_entries{structure=\"start_failures\"}", 1),
        ("smolet_bounded_entries{structure=\"pull_messages\"}", 1),
        ("smolet_bounded_entries{structure=\"image_backoff\"}", 1),
        ("smolet_bounded_entries{structure=\"socket_connections\"}", 1),
    ] {
        assert_eq!(value(&page, name) as usize, wanted, "{name}\n{page}");
    }
    let failed = |code: &str| {
        let line = "kubelet_started_containers_errors_total{container_type=\"container\",code=";
        value(&page, &format!("{line}\"{code}\"}}"))
    };
    assert!(failed("ErrImagePull") >= 1.0 && failed("ImagePullBackOff") >= 1.0, "{page}");
    let failed = failed("ErrImagePull") + failed("ImagePullBackOff");
    let all = value(&page, "kubelet_started_containers_total{container_type=\"container\"}");
    assert!(all - failed == 1.0, "{failed} of {all} failed");
    for name in [
        "kubelet_pleg_relist_duration_seconds_count",
        "smolet_loop_turns_total",
        "process_resident_memory_bytes",
        "process_cpu_seconds_total",
        "smolet_process_threads",
    ] {
        assert!(value(&page, name) > 0.0, "{name}\n{page}");
    }
    within_bounds(&world);
}

#[test]
fn an_adopted_pod_does_not_count_as_started() {
    let world = World::new();
    world.run("web", "containers: [{name: app, image: 'busybox:1'}]");
    world.kill();
    world.start();
    world.until("the pod", |world| world.phase("web") == "Running");
    let page = page(&world);
    assert_eq!(value(&page, "kubelet_running_containers{container_state=\"running\"}") as usize, 1);
    assert_eq!(value(&page, "kubelet_pod_start_duration_seconds_count") as usize, 0);
    assert_eq!(value(&page, "kubelet_started_containers_total{container_type=\"container\"}") as usize, 0);
}

/// More than the limits: pods until their memory is full, with images whose pulls fail with messages of four KiB, and manifests
/// with thousands of errors.
#[test]
fn full_structures_stay_within_their_limits() {
    let world = World::without_agent();
    world.fake.fail("PullImage", u32::MAX, 2, &"é".repeat(2 * KIB));
    let containers: Vec<String> =
        (0..11).map(|n| format!("{{name: app{n}, image: 'absent{n}:1', imagePullPolicy: Always}}")).collect();
    for n in 0..100 {
        world.put(&format!("web{n}"), &format!("containers: [{}]", containers.join(", ")));
    }
    let faults: String = (0..20).map(|n| format!("é{n}: {{}}, ")).collect();
    // With the pods fewer than MANIFEST_FILES_MAX.
    for n in 0..140 {
        world.put_text(&format!("bad{n}"), &format!("kind: Pod\napiVersion: v1\nspec: {{{faults}}}\n"));
    }
    world.start();
    // Reading takes real time.
    world.wait("the manifests", |world| entries(world, "manifests") > 0);
    let pods = entries(&world, "manifests");
    assert!((40..100).contains(&pods), "{pods} pods fit");
    world.until("the reasons", |world| entries(world, "start_failures") == 11 * pods);
    world.pass(20);
    within_bounds(&world);
    let bytes = count(&world, "smolet_bounded_bytes{structure=\"manifests\"}");
    assert!(PODS_BYTES_MAX - bytes < PODS_BYTES_MAX / pods, "full for another pod: {bytes}");
    assert_eq!(entries(&world, "image_backoff"), 11 * pods);
    assert_eq!(entries(&world, "pull_messages"), PULL_MESSAGES_MAX);
    assert_eq!(entries(&world, "events"), EVENTS_MAX);
    let problems = entries(&world, "manifest_problems");
    assert!((3 * PROBLEMS_MAX..3 * PROBLEMS_MAX + MANIFEST_FILES_MAX).contains(&problems), "{problems}");
    // Dropped ones are counted too.
    let (_, table) = world.ask("/pods?output=table");
    let more: usize = table
        .lines()
        .find_map(|l| l.strip_suffix(" more problems")?.rsplit(' ').next()?.parse().ok())
        .unwrap();
    assert!(more >= 140 * 20 - PROBLEMS_MAX, "{more}\n{table}");
}

#[test]
fn orphans_beyond_the_limit_of_a_relist_are_terminated_after_the_others() {
    let world = World::without_agent();
    let orphans = RELIST_ORPHANS_MAX + 20;
    for n in 0..orphans {
        foreign(&world.fake, &format!("old{n}"), &format!("uid-{n}"), Some(NODE));
    }
    world.fake.hang("StopContainer");
    world.start();
    world.pass(2);
    assert_eq!(entries(&world, "relist"), RELIST_ORPHANS_MAX);
    within_bounds(&world);
    assert_eq!(count(&world, "smolet_foreign_sandboxes"), 0, "they are ours too");
    world.kill();
    world.fake.heal("StopContainer");
    world.start();
    world.until("all to end", |world| world.fake.state().sandboxes.is_empty());
}
