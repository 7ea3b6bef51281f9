//! Image garbage collection: only unused images are removed. The thresholds are tested in `image::gc`.

use std::collections::BTreeSet;
use std::time::Duration;

use smolet::config::Config;
use smolet::image::gc::ImageGcPolicy;
use smolet::proto::containerd::images as proto;
use smolet::proto::runtime::v1 as cri;

use crate::world::World;

const APP: &str = "containers: [{name: app, image: 'busybox:1'}]";
const PERIOD: u64 = 300;

/// Over the threshold whatever the disk's usage is.
const FULL: ImageGcPolicy = ImageGcPolicy {
    high_percent: 0,
    low_percent: 0,
    available_min: 0,
    min_age: Duration::from_secs(120),
    max_age: None,
};
/// Only the age counts, whatever the disk's usage is.
const OLD: ImageGcPolicy =
    ImageGcPolicy { high_percent: 100, low_percent: 80, max_age: Some(Duration::from_secs(1000)), ..FULL };

fn world() -> World {
    let world = World::without_agent();
    world.fake.state().image_mountpoint = Some("/".to_owned());
    world
}

fn start(world: &World, policy: ImageGcPolicy) {
    world.spawn(Config { image_gc: Some(policy), ..world.config() }, false);
    world.wait("the first relist", |world| world.fake.count("ListContainers") > 0);
    world.settle();
}

/// The names of the present images.
fn images(world: &World) -> BTreeSet<String> {
    let state = world.fake.state();
    let name = |tag: &str| tag.trim_start_matches("docker.io/library/").to_owned();
    state.images.values().map(|image| name(&image.tag)).collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Waits until every collection that began has ended, in real time: the disk is measured on a thread, which virtual time does
/// not wait for and which is abandoned after ten virtual seconds.
fn await_looks(world: &World) {
    world.settle();
    let ended = |world: &World| {
        let page = world.ask("/metrics").1;
        let looks = page.lines().filter(|line| line.starts_with("smolet_image_looks_total"));
        looks.map(|line| line.rsplit(' ').next().unwrap().parse::<usize>().unwrap()).sum::<usize>()
    };
    world.wait("the end of a look", |world| ended(world) == world.fake.count("ListImages"));
    world.settle();
}

/// Lets the next collection begin, and waits for its end.
fn collect(world: &World) {
    let before = world.fake.count("ListImages");
    world.leap(PERIOD);
    world.wait("a look at the images", |world| world.fake.count("ListImages") > before);
    await_looks(world);
}

#[test]
fn only_unused_unreferenced_unpinned_images_are_removed() {
    let world = world();
    let besides = [
        "pinned:1",
        "imported:1",
        "foreign:1",
        "registry.k8s.io/pause:3.8",
        "registry.k8s.io/sandboxes:1",
        "waits:1",
    ];
    for name in besides.into_iter().chain(["busybox:4"]) {
        world.fake.add_image(name);
    }
    {
        let mut state = world.fake.state();
        state.sandbox_image = Some("registry.k8s.io/sandboxes:1".to_owned());
        state.store.is_there = true;
        let pinned = state.images.values_mut().find(|image| image.tag.ends_with("/pinned:1"));
        pinned.expect("was added").pinned = true;
        let name = "docker.io/library/imported:1".to_owned();
        let labels = [("smolet.io/archive".to_owned(), "1 1.000000000 1 a.tar".to_owned())].into();
        let record = proto::Image { name: name.clone(), labels, ..Default::default() };
        state.store.records.insert(name, record);
    }
    let images_dir = world.path("root").join("images");
    std::fs::create_dir_all(&images_dir).unwrap();
    // It was refused before, so it only has to exist: its label is kept.
    std::fs::write(images_dir.join("a.tar"), "not an archive").unwrap();
    let metadata = cri::PodSandboxMetadata {
        name: "other".into(),
        uid: "other-uid".into(),
        namespace: "default".into(),
        attempt: 0,
    };
    let container = cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata { name: "c".into(), attempt: 0 }),
        image: Some(cri::ImageSpec { image: "foreign:1".into(), ..Default::default() }),
        ..Default::default()
    };
    let sandbox = cri::PodSandboxConfig { metadata: Some(metadata), ..Default::default() };
    world.fake.run_pod(sandbox, vec![container]);
    // References its image, and never runs: its sandbox fails.
    world.fake.fail_on("RunPodSandbox", "waits", u32::MAX, 2, "no");
    world.put("waits", "containers: [{name: app, image: 'waits:1'}]");
    start(&world, FULL);
    world.run("web", APP);
    collect(&world);
    assert_eq!(images(&world).len(), 10, "all were detected just now");
    collect(&world);
    world.until("the removals", |world| world.count("RemoveImage") == 3);
    assert_eq!(images(&world), set(&[&besides[..], &["busybox:1"]].concat()));
    assert!(world.ask("/metrics").1.contains("kubelet_image_garbage_collected_total{reason=\"space\"} 3"));
    collect(&world);
    assert_eq!(world.count("RemoveImage"), 3);
}

#[test]
fn an_image_is_kept_when_its_manifest_is_added_during_a_collection() {
    let world = world();
    start(&world, FULL);
    collect(&world);
    world.fake.hang("RemoveImage");
    collect(&world);
    world.wait("the first removal", |world| world.count("RemoveImage") == 1);
    let first = world.fake.state().images.keys().next().cloned().unwrap();
    let last = world.fake.state().images.values().next_back().unwrap().tag.clone();
    world.put("web", &format!("containers: [{{name: app, image: '{last}'}}]"));
    world.until("the pod", |world| world.phase("web") == "Running");
    world.fake.heal("RemoveImage");
    world.until("the end", |world| world.count("RemoveImage") == 2);
    world.pass(3);
    assert!(world.fake.state().images.values().any(|image| image.tag == last));
    assert_ne!(first, last);
    assert_eq!(world.count("PullImage"), 0);
}

#[test]
fn with_free_space_images_are_removed_only_for_their_age() {
    let world = world();
    start(&world, OLD);
    world.run("web", APP);
    for _ in 0..4 {
        collect(&world);
    }
    assert_eq!(world.count("RemoveImage"), 0, "900 s are not more than 1000 s");
    collect(&world);
    world.until("the removals", |world| world.count("RemoveImage") == 2);
    assert_eq!(images(&world), set(&["busybox:1"]), "the one in use is never old");
}

#[test]
fn a_clock_step_does_not_age_images() {
    let world = world();
    start(&world, OLD);
    let ten_years = 10 * 365 * 86_400;
    for step in [ten_years, -2 * ten_years] {
        collect(&world);
        world.clock.step_wall(step);
        collect(&world);
        assert_eq!(world.count("RemoveImage"), 0, "{step}");
    }
    collect(&world);
    world.until("the removals", |world| world.count("RemoveImage") == 3);
}

#[test]
fn ages_survive_the_agent() {
    let world = world();
    start(&world, OLD);
    collect(&world);
    collect(&world);
    collect(&world);
    world.stop();
    start(&world, OLD);
    collect(&world);
    assert_eq!(world.count("RemoveImage"), 0, "900 s");
    collect(&world);
    world.until("the removals", |world| world.count("RemoveImage") == 3);
}

#[test]
fn a_pull_on_a_full_disk_triggers_a_collection_at_a_limited_rate() {
    let world = world();
    let roomy = ImageGcPolicy { min_age: Duration::ZERO, ..OLD };
    start(&world, roomy);
    let full = "failed to extract layer: write /var/lib/x: no space left on device: unknown";
    world.fake.fail_on("PullImage", "big", 3, 2, full);
    let began = world.seconds();
    world.put("web", "containers: [{name: app, image: 'big:1'}]");
    world.until("the removals", |world| {
        await_looks(world);
        world.count("RemoveImage") == 3
    });
    assert!(world.seconds() - began < 60, "not with the next period");
    assert_eq!(world.fake.count("ListImages"), 1);
    world.until("the pull", |world| {
        await_looks(world);
        world.phase("web") == "Running"
    });
    // After 10, 20 and 40 s; of the two failures within 30 s of the first collection, one requests another.
    assert!(world.fake.count("ListImages") <= 3, "{}", world.trace());
}

#[test]
fn without_a_measurement_nothing_is_removed() {
    let world = world();
    world.fake.state().image_mountpoint = None;
    start(&world, FULL);
    for _ in 0..3 {
        collect(&world);
    }
    assert_eq!(world.count("RemoveImage"), 0);
}

#[test]
fn an_image_that_cannot_be_removed_delays_no_other() {
    let world = world();
    start(&world, FULL);
    collect(&world);
    world.fake.fail("RemoveImage", 1, 2, "it is held");
    collect(&world);
    world.until("the removals", |world| world.count("RemoveImage") == 3);
    assert_eq!(images(&world).len(), 1);
    collect(&world);
    world.until("the last one", |world| images(world).is_empty());
}
