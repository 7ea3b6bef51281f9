//! Image archives and their images for pods. Their blobs are tested with a real containerd.

use std::process::Command;
use std::time::Duration;

use crate::common::fake::Program;
use crate::world::World;

const LABEL: &str = "smolet.io/archive";
const APP: &str = "docker.io/library/app:1";

/// A world whose runtime has containerd's stores.
fn world() -> World {
    let world = World::without_agent();
    world.fake.state().store.is_there = true;
    world
}

/// Adds an archive in the format of `docker save`, with one image of that content under those names.
fn archive(world: &World, name: &str, content: &str, names: &[&str]) {
    let dir = world.path("save");
    std::fs::create_dir(&dir).unwrap();
    let layer = format!("sha256:{:064x}", content.len());
    let tags = serde_json::json!([{"Config": "c.json", "RepoTags": names, "Layers": ["layer.tar"]}]);
    let config = serde_json::json!({"comment": content, "rootfs": {"type": "layers", "diff_ids": [layer]}});
    for (file, text) in [
        ("manifest.json", tags.to_string()),
        ("c.json", config.to_string()),
        ("layer.tar", content.to_owned()),
    ] {
        std::fs::write(dir.join(file), text).unwrap();
    }
    let (images, part) = (world.path("root").join("images"), world.path("part"));
    let mut tar = Command::new("tar");
    tar.arg("-cf").arg(&part).arg("-C").arg(&dir).args(["manifest.json", "c.json", "layer.tar"]);
    assert!(tar.status().unwrap().success());
    std::fs::create_dir_all(&images).unwrap();
    std::fs::rename(part, images.join(name)).unwrap();
    std::fs::remove_dir_all(dir).unwrap();
}

fn remove(world: &World, name: &str) {
    std::fs::remove_file(world.path("root").join("images").join(name)).unwrap();
}

/// The archive and the digest of a named image.
fn holder(world: &World, image: &str) -> Option<(String, String)> {
    let state = world.fake.state();
    let record = state.store.records.get(image)?;
    let archive = record.labels.get(LABEL)?.splitn(4, ' ').nth(3)?.to_owned();
    Some((archive, record.target.clone()?.digest))
}

fn is_of(world: &World, image: &str, archive: &str) -> bool {
    holder(world, image).is_some_and(|(holder, _)| holder == archive)
}

/// Number of calls that wrote a record of that image.
fn writes(world: &World, image: &str) -> usize {
    let state = world.fake.state();
    state.calls.iter().filter(|call| call.method.starts_with("Images/") && call.target == image).count()
}

/// Lets the agent scan all archives: this one is processed last.
fn look(world: &World, content: &str) {
    archive(world, "0.tar", content, &["last:1"]);
    let before = holder(world, "docker.io/library/last:1");
    world.until("a look", |world| holder(world, "docker.io/library/last:1") != before);
}

#[test]
fn an_image_of_two_archives_is_that_of_the_last_and_is_not_imported_again() {
    let world = world();
    archive(&world, "a.tar", "a", &["app:1", "own:1"]);
    archive(&world, "b.tar", "bb", &["app:1"]);
    world.start();
    look(&world, "first");
    let (archive_of, digest) = holder(&world, APP).unwrap();
    assert_eq!(archive_of, "b.tar");
    assert!(is_of(&world, "docker.io/library/own:1", "a.tar"));
    for life in ["second", "third"] {
        world.stop();
        world.start();
        look(&world, life);
        assert_eq!(holder(&world, APP).unwrap().1, digest);
        assert_eq!(writes(&world, APP), 0, "{life}: {:?}", world.fake.calls());
        assert_eq!(writes(&world, "docker.io/library/own:1"), 0);
    }
}

#[test]
fn an_image_that_somebody_removed_is_imported_again_with_the_next_look() {
    const OWN: &str = "docker.io/library/own:1";
    let world = world();
    archive(&world, "a.tar", "a", &["app:1", "own:1"]);
    archive(&world, "b.tar", "bb", &["app:1"]);
    world.start();
    look(&world, "first");
    assert!(is_of(&world, OWN, "a.tar") && is_of(&world, APP, "b.tar"));
    let before = writes(&world, APP);
    world.fake.state().store.records.remove(OWN);
    look(&world, "second");
    assert!(is_of(&world, OWN, "a.tar"));
    assert_eq!(writes(&world, APP), before, "the other archive's is left alone");
}

#[test]
fn the_image_is_taken_from_the_next_archive_when_the_last_no_longer_has_it() {
    let world = world();
    archive(&world, "a.tar", "a", &["app:1"]);
    archive(&world, "b.tar", "bb", &["app:1", "other:1"]);
    world.start();
    look(&world, "first");
    assert!(is_of(&world, APP, "b.tar"));
    // It changes, and no longer has the image.
    archive(&world, "b.tar", "bbb", &["other:1"]);
    world.until("the other's image", |world| is_of(world, APP, "a.tar"));
    assert!(is_of(&world, "docker.io/library/other:1", "b.tar"));
    // It has it again, and is removed.
    archive(&world, "b.tar", "bbbb", &["app:1"]);
    world.until("the last one's image", |world| is_of(world, APP, "b.tar"));
    world.until("what it had before is released", |world| {
        holder(world, "docker.io/library/other:1").is_none()
    });
    remove(&world, "b.tar");
    world.until("the other's image again", |world| is_of(world, APP, "a.tar"));
    // Also while the agent is stopped.
    archive(&world, "c.tar", "c", &["app:1"]);
    world.until("that of a third", |world| is_of(world, APP, "c.tar"));
    world.stop();
    remove(&world, "c.tar");
    world.start();
    world.until("the other's image at last", |world| is_of(world, APP, "a.tar"));
}

#[test]
fn an_archive_ends_the_pull_of_its_image_that_is_under_way() {
    let world = world();
    world.fake.missing_image("app:1");
    world.fake.hang_on("PullImage", "app");
    world.put("web", "containers: [{name: app, image: 'app:1'}]");
    world.start();
    world.until("the pull", |world| world.count("PullImage") == 1);
    archive(&world, "a.tar", "one", &["app:1"]);
    world.until("its image", |world| is_of(world, APP, "a.tar"));
    world.fake.state().missing.clear();
    world.until("the pod", |world| world.phase("web") == "Running");
    assert_eq!(world.count("PullImage"), 1, "{}", world.trace());
}

#[test]
fn the_lease_of_an_import_that_was_killed_ends_with_the_next_start() {
    let world = world();
    let leases = |world: &World| world.fake.state().store.leases.len();
    world.fake.state().store.leases.extend(["smolet-images-gw".to_owned(), "another's".to_owned()]);
    // The first scan fails.
    world.fake.fail("Images/List", 1, 14, "not yet");
    world.start();
    world.until("its end", |world| leases(world) == 1);
    assert!(world.fake.state().store.leases.contains("another's"));
    look(&world, "first");
    assert_eq!(leases(&world), 1);
    let ends = world.fake.count("Leases/Delete");
    archive(&world, "0.tar", "second", &["again:1"]);
    world.until("another import", |world| is_of(world, "docker.io/library/again:1", "0.tar"));
    world.settle();
    assert_eq!(world.fake.count("Leases/Delete"), ends + 1, "its own");
}

#[test]
fn an_image_imported_during_a_termination_does_not_restart_the_old_pod() {
    let world = world();
    world.fake.program("app", Program::STUBBORN);
    world.start();
    let pod = |version: u32| {
        format!("terminationGracePeriodSeconds: 20, containers: [{{name: app, image: 'busybox:{version}'}}]")
    };
    world.run("web", &pod(1));
    world.remove("web");
    world.until("its end begins", |world| world.count("StopContainer web/app#0") == 1);
    world.put("web", &pod(2));
    world.pass(2);
    archive(&world, "a.tar", "a", &["busybox:1"]);
    world.until("the import", |world| is_of(world, "docker.io/library/busybox:1", "a.tar"));
    world.leap_for(Duration::from_secs(1));
    assert_eq!(world.count("RunPodSandbox"), 1, "it is still terminating");
    world.until("the new version", |world| world.count("StartContainer web/app") == 2);
    let image = world.status_of("web", "app").unwrap().image;
    assert!(image.contains("busybox:2"), "{image}");
}

#[test]
fn images_are_reported_despite_later_errors_and_the_lease_ends_later() {
    for (broken, of) in [("Leases/Delete", ""), ("Images/Create", "zz:1")] {
        let world = world();
        world.fake.missing_image("app:1");
        world.start();
        look(&world, "first");
        world.put("web", "containers: [{name: app, image: 'app:1'}]");
        world.until("a long wait for the next pull", |world| world.fake.count("PullImage") == 4);
        world.fake.fail_on(broken, of, 1, 14, "not now");
        archive(&world, "a.tar", "a", &["app:1", "zz:1"]);
        let from = world.seconds();
        world.until("its start", |world| world.count("StartContainer web/app") == 1);
        assert!(world.seconds() - from < 20, "{} s, {broken}", world.seconds() - from);
        world.until("the other image", |world| is_of(world, "docker.io/library/zz:1", "a.tar"));
        world.until("the end of the lease", |world| world.fake.state().store.leases.is_empty());
    }
}

#[test]
fn an_archive_that_found_no_space_is_imported_when_there_is_some() {
    let world = world();
    let full = "failed to create image record: write /var/lib/containerd/meta.db: no space left on device";
    world.fake.fail_on("Images/Create", "app:1", 2, 2, full);
    world.start();
    look(&world, "first");
    archive(&world, "a.tar", "a", &["app:1"]);
    archive(&world, "b.tar", "b", &["other:1"]);
    world.until("the other archive", |world| is_of(world, "docker.io/library/other:1", "b.tar"));
    // Each try unpacks it.
    let leap = |seconds: u64| world.leap_for(Duration::from_secs(seconds));
    leap(500);
    assert_eq!(writes(&world, APP), 1);
    leap(100);
    world.until("another try, in vain too", |world| writes(world, APP) == 2);
    assert!(holder(&world, APP).is_none());
    // A card would wear out where there is never space.
    leap(1_100);
    assert_eq!(writes(&world, APP), 2);
    leap(100);
    world.until("its import", |world| is_of(world, APP, "a.tar"));
}
