//! Paths of the node that do not answer.

use std::fs::create_dir_all;
use std::path::Path;

use smolet::limits::{BLOCKING_JOBS_MAX, OUTSIDE_JOBS_MAX, OUTSIDE_PATIENCE, STARTS_AT_ONCE_MAX};

use crate::common::away::Away;
use crate::world::{World, names};

fn pod(path: &Path, kind: &str, part: &str) -> String {
    format!(
        "terminationGracePeriodSeconds: 2, volumes: [{{name: data, hostPath: {{path: {}, type: {kind}}}}}], \
         containers: [{{name: app, image: 'busybox:1', \
         volumeMounts: [{{name: data, mountPath: /data, subPath: '{part}'}}]}}]",
        path.display()
    )
}

const OWN: &str = "terminationGracePeriodSeconds: 2, volumes: [{name: own, emptyDir: {}}], \
                   containers: [{name: app, image: 'busybox:1', volumeMounts: [{name: own, mountPath: /own}]}]";

#[test]
fn paths_that_hang_delay_no_other_pod() {
    let world = World::new();
    world.run("before", OWN);
    let (dir, before) = (world.path("away"), world.pod_dir("before"));
    let mut away = Away::mount(&dir);
    // More than there are permits.
    let typed: Vec<String> = (0..=OUTSIDE_JOBS_MAX).map(|n| format!("typed{n}")).collect();
    for name in &typed {
        world.put(name, &pod(&dir.join(name), "DirectoryOrCreate", ""));
    }
    let link = world.path("link");
    std::os::unix::fs::symlink(&dir, &link).unwrap();
    world.put("part", &pod(&link.join("whole"), "''", "part"));

    world.run("after", OWN);
    let there = world.path("there");
    world.run("typed", &pod(&there, "DirectoryOrCreate", "part"));
    world.run("own", &OWN.replace("/own}", "/own, subPath: part}"));
    assert!(there.join("part").is_dir());
    world.remove("before");
    world.until("the removal of another", |_| !before.exists());

    let mend = "does not answer within 10 s: restore the network mount or disk it is on, or unmount it";
    for name in &typed {
        let path = dir.join(name);
        let why = format!(
            "MountVolume.SetUp failed for volume \"data\" : hostPath type check failed: {} {mend}",
            path.display()
        );
        world.until("the typed one is told", |world| world.describe(name).contains(&why));
    }
    let why = "failed to prepare subPath for volumeMount \"data\" of container \"app\": ";
    let why = format!("{why}{} {mend}", link.join("whole").display());
    world.until("the part is told", |world| world.waiting("part", "app").1 == why);
    assert_eq!(world.waiting("part", "app").0, "CreateContainerConfigError");

    // Each is retried, and the mount has one thread all the same.
    world.pass(30);
    let held = "smolet_bounded_entries{structure=\"outside_paths\"} 1\n";
    let (_, page) = world.ask("/metrics");
    assert!(page.contains(held), "{page}");

    // A pod whose check hangs is removed as any other, and its name is free.
    let dirs = || names(&world.path("root").join("pods")).len();
    let others = dirs();
    world.remove("part");
    world.remove("typed0");
    world.until("they are gone", |world| world.pod("part").is_none() && world.pod("typed0").is_none());
    assert_eq!(dirs(), others - 2);
    world.put("typed0", &pod(&dir.join("typed0"), "Directory", ""));
    world.pass(15);

    away.end();
    world.until("those that make their directory run", |world| {
        typed[1..].iter().all(|name| world.phase(name) == "Running")
    });
    let missing = format!("hostPath type check failed: {} does not exist", dir.join("typed0").display());
    world.until("the other is told what is wrong now", |world| world.describe("typed0").contains(&missing));
    create_dir_all(dir.join("typed0")).unwrap();
    world.until("it runs too", |world| world.phase("typed0") == "Running");
    assert!(!dir.join("whole").exists(), "nothing is created for the removed pod");
}

/// More calls of every kind hang than there are permits, and their pods wait.
#[test]
fn starts_that_hang_delay_no_other_pod() {
    for call in ["RunPodSandbox", "CreateContainer", "StartContainer"] {
        let world = World::new();
        world.run("before", OWN);
        world.fake.hang_on(call, "stuck");
        for n in 0..=STARTS_AT_ONCE_MAX {
            world.put(&format!("stuck{n}"), OWN);
        }
        world.until("all to hang", |world| world.count(&format!("{call} stuck")) > STARTS_AT_ONCE_MAX);
        // A new pod, and the restart of a running one.
        let began = world.seconds();
        world.run("after", OWN);
        world.fake.exit("before-gw/app", 1, "Error", "");
        world.until("its restart", |world| world.running().contains(&"before/app#1".to_owned()));
        let took = world.seconds() - began;
        assert!(took < 15, "{call}: {took} s, the first back-off of 10 s included");
        world.fake.heal(call);
        world.until("all to run", |world| world.running().len() == STARTS_AT_ONCE_MAX + 3);
    }
}

#[test]
fn subpaths_that_hang_hold_no_permit_of_the_starts() {
    let world = World::new();
    let dir = world.path("away");
    let _away = Away::mount(&dir);
    for n in 0..=STARTS_AT_ONCE_MAX {
        world.put(&format!("part{n}"), &pod(&dir.join(n.to_string()), "''", "part"));
    }
    world.until("the sandboxes", |world| world.count("RunPodSandbox") >= STARTS_AT_ONCE_MAX);
    let began = world.seconds();
    world.run("after", OWN);
    let took = u64::try_from(world.seconds() - began).unwrap();
    // How long a permit is held.
    assert!(took < OUTSIDE_PATIENCE.as_secs(), "{took} s");
}

/// More pods than there are permits have their termination message file on an unreachable server: one thread waits for all of
/// them.
#[test]
fn termination_messages_that_hang_hold_one_thread_and_delay_no_other_pod() {
    let world = World::new();
    let dir = world.path("away");
    let mut away = Away::mount(&dir);
    let pods: Vec<String> = (0..=OUTSIDE_JOBS_MAX).map(|n| format!("words{n}")).collect();
    for name in &pods {
        let path = dir.join(name);
        let spec = format!(
            "restartPolicy: Never, volumes: [{{name: words, hostPath: {{path: {}}}}}], containers: [{{name: app, \
             image: 'busybox:1', volumeMounts: [{{name: words, mountPath: /dev/termination-log}}]}}]",
            path.display()
        );
        world.run(name, &spec);
    }
    for name in &pods {
        world.fake.exit(&format!("{name}-gw/app"), 1, "Error", "");
    }
    let held = "smolet_bounded_entries{structure=\"outside_paths\"} 1\n";
    world.until("one to be looked at", |world| world.ask("/metrics").1.contains(held));
    let began = world.seconds();
    world.run("after", OWN);
    let took = u64::try_from(world.seconds() - began).unwrap();
    assert!(took < OUTSIDE_PATIENCE.as_secs(), "{took} s");
    let last_words = |world: &World, name: &str| {
        let state = world.status_of(name, "app").and_then(|status| status.state);
        state.and_then(|state| state.terminated).and_then(|end| end.message).unwrap_or_default()
    };
    for name in &pods {
        let what = format!("Error on reading termination log {}: ", dir.join(name).display());
        world.until("it is said why there are none", |world| {
            let said = last_words(world, name);
            said.starts_with(&what) && said.contains("does not answer within 10 s")
        });
    }
    assert!(world.ask("/metrics").1.contains(held), "one thread for all of them");
    away.end();
}

/// Log collectors may redirect the directories of logs. Those of more pods hang than there are permits for smolet's own paths.
#[test]
fn log_directories_that_hang_delay_no_other_pod_and_no_other_log() {
    let world = World::new();
    let names: Vec<String> = (0..=BLOCKING_JOBS_MAX).map(|n| format!("stuck{n}")).collect();
    let mut away = Vec::new();
    for name in &names {
        world.run(name, OWN);
        let logs = world.logs(name);
        world.remove(name);
        world.until("its removal", |world| world.pods().is_empty() && !logs.exists());
        away.push(Away::mount(&world.path(name)));
        create_dir_all(&logs).unwrap();
        std::os::unix::fs::symlink(world.path(name).join("logs"), logs.join("app")).unwrap();
    }
    // The same pods: their restart counts are read from their logs.
    for name in &names {
        world.put(name, OWN);
    }
    for name in &names {
        world.until("it to be told", |world| {
            world.waiting(name, "app").1.contains("does not answer within 10 s")
        });
    }
    let began = world.seconds();
    world.run("after", OWN);
    let took = u64::try_from(world.seconds() - began).unwrap();
    assert!(took < OUTSIDE_PATIENCE.as_secs(), "{took} s");
    let log = world.logs("after").join("app/0.log");
    std::fs::File::options().write(true).open(&log).unwrap().set_len(11 << 20).unwrap();
    world.until("its log to be rotated", |world| world.fake.count("ReopenContainerLog") > 0);
    let dir = world.pod_dir("after");
    world.remove("after");
    world.until("its removal", |_| !dir.exists());
    for name in &names {
        world.remove(name);
    }
    away.iter_mut().for_each(Away::end);
    world.until("the others' removal", |world| world.pods().is_empty());
}
