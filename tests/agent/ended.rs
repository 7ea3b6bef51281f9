//! Terminated pods: what is kept and what is removed (`SyncTerminatedPod`).

use std::time::Duration;

use crate::common::fake::Program;
use crate::world::{World, names};

const JOB: &str = "restartPolicy: Never, volumes: [{name: memory, emptyDir: {medium: Memory}}, {name: disk, emptyDir: {}}], \
                   containers: [{name: app, image: 'busybox:1', \
                   volumeMounts: [{name: memory, mountPath: /memory}, {name: disk, mountPath: /disk}]}]";

/// Mount points in the agent's directory.
fn mounted(world: &World) -> Vec<String> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let root = world.path("root").display().to_string();
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    points.filter(|point| point.starts_with(&root)).map(str::to_owned).collect()
}

#[test]
fn a_terminated_pods_volumes_are_removed_and_its_logs_and_status_kept() {
    let world = World::without_agent();
    world.fake.program("app", Program::exits(3, Duration::from_secs(5)));
    world.start();
    world.run("job", JOB);
    let dir = world.pod_dir("job");
    assert_eq!(mounted(&world).len(), 1, "the volume of memory");
    world.until("its end", |world| world.phase("job") == "Failed");
    world.until("its volumes are gone", |_| !dir.join("volumes").exists());
    assert_eq!(mounted(&world), Vec::<String>::new());
    let before = world.status_of("job", "app").unwrap();
    assert_eq!(before.state.as_ref().unwrap().terminated.as_ref().unwrap().exit_code, 3);
    let is_as_it_was = |world: &World| {
        assert_eq!(world.fake.state().dead().len(), 1, "logs are found by the dead container");
        assert!(world.logs("job").join("app/0.log").is_file());
        assert_eq!(world.status_of("job", "app").as_ref(), Some(&before));
    };
    is_as_it_was(&world);

    // Leftovers of another agent, or of a killed one, are removed too.
    world.kill();
    let left = dir.join("volumes/kubernetes.io~empty-dir/disk");
    std::fs::create_dir_all(&left).unwrap();
    std::fs::write(left.join("file"), "left").unwrap();
    world.start();
    world.until("it is gone once more", |_| !dir.join("volumes").exists());
    world.pass(3);
    is_as_it_was(&world);

    world.remove("job");
    world.until("the rest goes with its manifest", |_| names(&world.path("root/pods")).is_empty());
    assert!(names(&world.path("logs")).is_empty());
}

#[test]
fn a_terminated_pods_user_namespace_is_free() {
    let world = World::without_agent();
    world.fake.program("app", Program::exits(0, Duration::from_secs(5)));
    world.fake.state().handlers = vec![(String::new(), true)];
    world.start();
    world.run("job", "hostUsers: false, restartPolicy: Never, containers: [{name: app, image: 'busybox:1'}]");
    let file = world.pod_dir("job").join("userns");
    assert!(file.is_file());
    world.until("its end", |world| world.phase("job") == "Succeeded");
    world.until("its range is free", |_| !file.exists());
}
