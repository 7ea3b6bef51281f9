//! The checkpoint: what survives a restart of the agent, a reboot, and a runtime that loses its state.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::PodStatus;
use smolet::config::Config;
use smolet::image::gc::ImageGcPolicy;
use smolet::status::restarts::next_restart_counts;
use smolet::store::checkpoint::{Checkpoint, from_bytes, restored_status, to_bytes};

use crate::common::fake::Program;
use crate::world::{PATIENCE, World, full, names};

const SECOND: Duration = Duration::from_secs(1);
const APP: &str = "containers: [{name: app, image: 'busybox:1'}]";
const STARTED: &str = "StartContainer web/app";

/// What is on the disk; its bytes stay until the tests end.
pub fn checkpoint(world: &World) -> Option<Checkpoint<'static>> {
    let bytes = std::fs::read(world.path("root/checkpoint")).ok()?;
    Some(from_bytes(bytes.leak()).expect("what is on the disk is always whole"))
}

/// Time of the last checkpoint, in seconds since boot.
fn written(world: &World) -> Option<u64> {
    checkpoint(world).map(|kept| kept.written_ms / 1000)
}

/// What is written within seconds: conditions and readiness are not.
fn lasting(mut status: PodStatus) -> PodStatus {
    status.conditions = None;
    let all = [&mut status.init_container_statuses, &mut status.container_statuses];
    all.into_iter().flatten().flatten().for_each(|container| container.ready = false);
    status
}

/// Waits until the agent's state is in the file: the second change within ten seconds waits for them to pass, and the disk is
/// slower than virtual time.
pub fn pass_until_saved(world: &World) {
    let is_saved = || {
        let kept = checkpoint(world).unwrap_or_default();
        world.pods().iter().all(|pod| {
            let same = kept.pods.iter().find(|kept| pod.metadata.uid.as_deref() == Some(kept.uid));
            same.and_then(restored_status).map(lasting) == pod.status.clone().map(lasting)
        })
    };
    world.pass(11);
    for _ in 0..60 {
        for _ in 0..20 {
            if is_saved() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        world.pass(1);
    }
    panic!("nothing is saved: {}", world.trace());
}

/// A power cut: the runtime loses everything; the logs were on a tmpfs.
pub fn power_cut(world: &World) {
    {
        let mut state = world.fake.state();
        state.sandboxes.clear();
        state.containers.clear();
    }
    for name in names(&world.path("logs")) {
        std::fs::remove_dir_all(world.path("logs").join(name)).unwrap();
    }
    world.clock.reboot();
}

#[test]
fn restart_counts_and_last_terminations_survive_a_reboot_without_the_runtimes_state() {
    let world = World::without_agent();
    world.fake.program("app", Program::exits(3, SECOND));
    world.put("web", APP);
    world.start();
    world.until("the third start", |world| world.times(STARTED).len() == 3);
    pass_until_saved(&world);
    let before = world.pod("web").unwrap().status.unwrap();
    let count = before.container_statuses.as_ref().unwrap()[0].restart_count;
    assert!(count >= 2, "{count}");
    world.kill();
    power_cut(&world);
    world.fake.program("app", Program::FOREVER);
    world.start();
    world.until("it runs", |world| world.phase("web") == "Running" && !world.running().is_empty());
    let after = world.pod("web").unwrap().status.unwrap();
    assert_eq!(
        (world.running(), world.count("CreateContainer")),
        (vec![format!("web/app#{}", count + 1)], 1)
    );
    let status = &after.container_statuses.as_ref().unwrap()[0];
    assert_eq!(status.restart_count, count + 1);
    let end = status.last_state.as_ref().and_then(|last| last.terminated.as_ref()).expect("an end");
    assert_eq!(end.exit_code, 3);
    assert_eq!(after.start_time, before.start_time);
}

#[test]
fn the_restart_count_continues_after_a_power_cut_and_a_removal_by_others() {
    let world = World::new();
    world.run("web", APP);
    for (restarts, reboot) in [(1, true), (2, false), (3, true)] {
        world.stop();
        if reboot {
            power_cut(&world);
        } else {
            world.fake.state().containers.clear();
            std::fs::remove_dir_all(world.logs("web")).unwrap();
        }
        world.start();
        world.until("it runs", |world| world.running() == [format!("web/app#{restarts}")]);
        // Until the agent has observed it running, it may not have started.
        let runs = |world: &World| world.status_of("web", "app")?.state?.running;
        world.until("its status", |world| runs(world).is_some());
        let status = world.status_of("web", "app").unwrap();
        assert_eq!(status.restart_count, restarts, "{status:?}");
    }
}

#[test]
fn a_restart_of_the_agent_does_not_increase_restart_counts() {
    let world = World::new();
    world.run("web", APP);
    let before = world.pod("web").unwrap().status.unwrap();
    for ending in [World::stop, World::kill] {
        pass_until_saved_if_needed(&world);
        ending(&world);
        world.start();
        world.pass(3);
        assert_eq!(world.actions(), [""; 0]);
        assert_eq!(world.pod("web").unwrap().status.unwrap(), before);
    }
}

/// The pod's start may be saved already.
fn pass_until_saved_if_needed(world: &World) {
    world.pass(12);
    world.wait("the checkpoint", |world| checkpoint(world).is_some_and(|kept| !kept.pods.is_empty()));
}

#[test]
fn a_terminated_pod_does_not_run_again() {
    for (code, phase) in [(0, "Succeeded"), (7, "Failed")] {
        let world = World::without_agent();
        world.fake.program("app", Program::exits(code, SECOND));
        world.put("web", &format!("restartPolicy: Never, {APP}"));
        world.start();
        world.until("its end", |world| world.phase("web") == phase);
        pass_until_saved(&world);
        world.kill();
        for _ in 0..2 {
            power_cut(&world);
            world.start();
            world.pass(15);
            assert_eq!(world.actions(), [""; 0]);
            assert_eq!(world.phase("web"), phase);
            let ended = world.status_of("web", "app").unwrap().state.unwrap().terminated.unwrap();
            assert_eq!(ended.exit_code, code);
            world.stop();
        }
        // Its manifest is restored after its removal: a new pod.
        world.start();
        world.remove("web");
        world.until("nothing left", |world| world.pods().is_empty());
        world.put("web", &format!("restartPolicy: Never, {APP}"));
        world.until("its start", |world| world.count(STARTED) == 1);
    }
}

#[test]
fn a_crash_loops_back_off_survives_a_restart_of_the_agent() {
    for ending in [World::stop, World::kill] {
        let world = World::without_agent();
        world.fake.program("app", Program::exits(1, SECOND));
        world.put("web", APP);
        world.start();
        world.until("the fourth start", |world| world.times(STARTED).len() == 4);
        let end = world.times(STARTED)[3] + 1;
        pass_until_saved(&world);
        ending(&world);
        world.start();
        world.until("a restart", |world| world.times(STARTED).len() == 1);
        let wait = world.times(STARTED)[0] - end;
        assert!((40..=43).contains(&wait), "{wait} s");
        let end = world.times(STARTED)[0] + 1;
        world.until("another", |world| world.times(STARTED).len() == 2);
        let wait = world.times(STARTED)[1] - end;
        assert!((80..=83).contains(&wait), "{wait} s");
    }
}

/// A power cut as containerd shows it in the next boot: the records are there, and what ran has exited with 255 now.
fn power_cut_with_records(world: &World) {
    world.fake.reboot();
    world.clock.reboot();
}

#[test]
fn what_ran_when_the_boot_ended_has_not_crashed() {
    let world = World::new();
    world.fake.program("first", Program::exits(0, SECOND));
    world.run("web", &format!("initContainers: [{{name: first, image: 'busybox:1'}}], {APP}"));
    for boot in 1..=4 {
        pass_until_saved(&world);
        world.kill();
        power_cut_with_records(&world);
        world.start();
        let from = world.seconds();
        world.until("it runs", |world| world.running() == [format!("web/app#{boot}")]);
        assert!(world.seconds() - from <= 4, "boot {boot}: {}", world.trace());
    }
    // The first crash of this boot waits for as long as the first one after a reboot of the kubelet.
    world.fake.exit("web-gw/app", 1, "", "");
    let end = world.seconds();
    world.until("it runs", |world| world.running() == ["web/app#5"]);
    assert!((10..=13).contains(&(world.seconds() - end)), "{}", world.trace());
}

#[test]
fn a_readiness_that_flaps_is_not_written_each_time() {
    let world = World::new();
    let probe = "readinessProbe: {exec: {command: [check]}, periodSeconds: 5, failureThreshold: 1}";
    world.put("web", &format!("containers: [{{name: app, image: 'busybox:1', {probe}}}]"));
    let flap = |code: i32| {
        let said = crate::common::fake::Exec { code, stdout: Vec::new(), stderr: Vec::new() };
        world.fake.exec("check", said);
        let shown = world.status_of("web", "app").is_some_and(|status| status.ready);
        world.until("another answer", |world| {
            world.status_of("web", "app").is_some_and(|status| status.ready != shown)
        });
    };
    flap(0);
    pass_until_saved(&world);
    let mut times = BTreeSet::new();
    let from = world.seconds();
    while world.seconds() - from < 1800 {
        flap(1);
        flap(0);
        times.extend(written(&world));
    }
    // One that was before, and one in ten minutes.
    assert!((2..=5).contains(&times.len()), "{times:?}");
    // A crash is another matter.
    world.fake.exit("web-gw/app", 1, "", "");
    world.until("it runs again", |world| world.running() == ["web/app#1"]);
    let restarted = world.seconds();
    pass_until_saved(&world);
    assert!(world.seconds() - restarted < 20, "{} s", world.seconds() - restarted);
}

#[test]
fn until_it_is_read_a_pod_is_not_shown_with_what_the_last_boot_had() {
    let world = World::new();
    world.run("web", APP);
    pass_until_saved(&world);
    let row = |world: &World| {
        let table = world.ask("/pods?output=wide").1;
        table.lines().find(|line| line.contains("web-gw")).unwrap_or_default().to_owned()
    };
    assert!(row(&world).contains("1/1") && row(&world).contains(" 10."), "{}", row(&world));
    world.kill();
    power_cut_with_records(&world);
    world.fake.hang("PodSandboxStatus");
    world.silent(true);
    world.start_in_trouble();
    world.wait("its manifest", |world| !row(world).is_empty());
    assert!(row(&world).contains("0/1") && row(&world).contains("<none>"), "{}", row(&world));
    world.fake.heal("PodSandboxStatus");
    world.silent(false);
    world.until("it runs", |world| world.running() == ["web/app#1"] && row(world).contains("1/1"));
}

#[test]
fn a_container_in_crash_back_off_waits_on_after_a_power_cut() {
    let world = World::without_agent();
    world.fake.program("app", Program::exits(1, SECOND));
    world.put("web", APP);
    world.start();
    world.until("the fourth start", |world| world.times(STARTED).len() == 4);
    world.until("its wait", |world| world.waiting("web", "app").0 == "CrashLoopBackOff");
    pass_until_saved(&world);
    world.kill();
    power_cut_with_records(&world);
    world.start();
    world.pass(3);
    let (reason, message) = world.waiting("web", "app");
    assert!(reason == "CrashLoopBackOff" && message.contains("back-off 40s"), "{reason}: {message}");
    world.until("a restart", |world| world.times(STARTED).len() == 1);
    let end = world.times(STARTED)[0] + 1;
    world.until("another", |world| world.times(STARTED).len() == 2);
    let wait = world.times(STARTED)[1] - end;
    assert!((80..=83).contains(&wait), "{wait} s");
}

#[test]
fn a_failed_pull_of_days_ago_does_not_delay_the_one_after_a_reboot() {
    let world = World::without_agent();
    world.fake.missing_image("late:1");
    world.put("web", "containers: [{name: app, image: 'late:1'}]");
    world.start();
    let pulls =
        |world: &World| world.fake.calls().iter().filter(|call| call.starts_with("PullImage")).count();
    world.until("three pulls", |world| pulls(world) == 3);
    world.fake.add_image("late:1");
    world.fake.state().missing.clear();
    world.until("it runs", |world| world.phase("web") == "Running");
    pass_until_saved(&world);
    world.leap(24 * 3600);
    world.kill();
    world.fake.state().images.clear();
    power_cut_with_records(&world);
    world.start();
    world.pass(2);
    assert_eq!(pulls(&world), 1, "{}", world.trace());
}

#[test]
fn the_active_deadline_continues_after_a_reboot() {
    let world = World::new();
    world.run("web", &format!("activeDeadlineSeconds: 60, {APP}"));
    world.pass(40);
    world.stop();
    power_cut(&world);
    world.start();
    let from = world.seconds();
    world.until("its failure", |world| world.phase("web") == "Failed");
    let left = world.seconds() - from;
    assert!((14..=22).contains(&left), "{left} s");
    assert_eq!(world.pod("web").unwrap().status.unwrap().reason.as_deref(), Some("DeadlineExceeded"));
}

#[test]
fn a_power_cut_loses_at_most_a_sixteenth_of_an_active_deadline() {
    let world = World::new();
    world.run("web", &format!("activeDeadlineSeconds: 3600, {APP}"));
    for _ in 0..60 {
        world.leap(50);
        // The disk is slower than virtual time.
        let lately = u64::try_from(world.seconds()).unwrap().saturating_sub(3600 / 16 + 50);
        world.wait("the checkpoint", |world| written(world) >= Some(lately));
    }
    world.kill();
    power_cut(&world);
    world.start();
    let from = world.seconds();
    while world.phase("web") != "Failed" {
        world.leap(10);
        assert!(world.seconds() - from < 1000, "{}", world.trace());
    }
    let left = world.seconds() - from;
    assert!((590..=600 + 3600 / 16 + 70).contains(&left), "{left} s");
}

#[test]
fn a_power_cut_loses_at_most_the_last_ten_seconds() {
    let world = World::without_agent();
    world.fake.program("app", Program::exits(0, 40 * SECOND));
    world.put("job", &format!("restartPolicy: OnFailure, {APP}"));
    world.start();
    world.until("its start", |world| !world.running().is_empty());
    pass_until_saved(&world);
    // Seconds between its exit and the power cut.
    for (known_for, runs_again) in [(0, true), (12, false)] {
        world.until("its end", |world| world.phase("job") == "Succeeded");
        world.pass(known_for);
        if !runs_again {
            // As above.
            let knows = |world: &World| {
                let kept = checkpoint(world)?;
                Some(restored_status(kept.pods.first()?)?.phase? == "Succeeded")
            };
            world.wait("the checkpoint", |world| knows(world) == Some(true));
        }
        world.kill();
        power_cut(&world);
        world.fake.clear_calls();
        world.start();
        world.pass(4);
        assert_eq!(world.count("StartContainer") > 0, runs_again, "{known_for} s: {}", world.trace());
    }
}

#[test]
fn a_failed_pulls_back_off_survives_a_restart_of_the_agent() {
    let world = World::without_agent();
    world.fake.missing_image("gone:1");
    world.put("web", "containers: [{name: app, image: 'gone:1'}]");
    world.start();
    let pulls =
        |world: &World| world.fake.calls().iter().filter(|call| call.starts_with("PullImage")).count();
    world.until("three pulls", |world| pulls(world) == 3);
    world.stop();
    world.start();
    world.pass(35);
    assert_eq!(pulls(&world), 0, "40 s have to pass");
    world.until("a pull", |world| pulls(world) == 1);
}

#[test]
fn changes_are_gathered_for_ten_seconds_and_nothing_is_written_while_nothing_changes() {
    let world = World::without_agent();
    world.fake.program("app", Program::exits(1, SECOND));
    for name in ["a", "b", "c", "d"] {
        world.put(name, APP);
    }
    // Images are looked at, and there are more than those of the pods.
    world.fake.state().image_mountpoint = Some("/".to_owned());
    let policy =
        ImageGcPolicy { high_percent: 100, max_age: Some(Duration::from_hours(9000)), ..Default::default() };
    world.start_with(Config { image_gc: Some(policy), ..world.config() });
    let (mut writes, begun) = (Vec::new(), Instant::now());
    // In sixty seconds, unless the disk is slow.
    while writes.len() < 4 {
        assert!(begun.elapsed() < PATIENCE, "{writes:?}");
        world.step();
        writes.extend(written(&world).filter(|at| writes.last() != Some(at)));
    }
    assert!(writes.windows(2).all(|pair| pair[1] - pair[0] >= 10), "{writes:?}");

    world.fake.program("app", Program::FOREVER);
    world.until("all run", |world| world.running().len() == 4);
    world.pass(25);
    pass_until_saved(&world);
    let last = written(&world);
    world.pass(20);
    world.leap(3600);
    world.wait("a look at the images", |world| world.fake.count("ListImages") > 0);
    world.pass(20);
    assert_eq!(written(&world), last);
}

#[test]
fn the_agents_stop_writes_at_once_and_only_changes() {
    let world = World::new();
    world.stop();
    assert!(checkpoint(&world).is_none());
    world.start();
    world.run("web", APP);
    world.stop();
    let kept = checkpoint(&world).expect("written");
    assert_eq!(kept.pods.iter().map(|pod| pod.name).collect::<Vec<_>>(), [full("web")]);
    let status = restored_status(&kept.pods[0]).unwrap();
    assert_eq!(status.phase.as_deref(), Some("Running"));
    assert_eq!(next_restart_counts(&status).collect::<Vec<_>>(), [("app", 1)]);
    assert_eq!(kept.images.len(), 1);
}

#[test]
fn an_unreadable_file_is_set_aside_and_the_pods_keep_running() {
    let world = World::new();
    world.run("web", APP);
    for aside in ["checkpoint.damaged", "checkpoint.newer"] {
        world.stop();
        let mut bytes = std::fs::read(world.path("root/checkpoint")).unwrap();
        let at = if aside.ends_with("newer") { 6 } else { bytes.len() / 2 };
        bytes[at] ^= 0x10;
        std::fs::write(world.path("root/checkpoint"), &bytes).unwrap();
        world.start();
        world.pass(3);
        assert_eq!(std::fs::read(world.path("root").join(aside)).unwrap(), bytes);
        assert_eq!((world.actions(), world.phase("web")), (Vec::new(), "Running".to_owned()));
    }
}

#[test]
fn unknown_pods_are_dropped() {
    let world = World::new();
    world.run("web", APP);
    world.run("other", APP);
    world.stop();
    assert_eq!(checkpoint(&world).unwrap().pods.len(), 2);
    power_cut(&world);
    world.remove("web");
    world.start();
    world.until("other runs", |world| world.running() == ["other/app#1"]);
    pass_until_saved(&world);
    assert_eq!(checkpoint(&world).unwrap().pods.len(), 1);
}

#[test]
fn a_status_with_invalid_structure_is_rejected() {
    let world = World::new();
    let manifest = |init: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: web, uid: u-1}}\nspec: {{initContainers: [{{name: {init}, image: 'busybox:1'}}], {APP}}}\n"
        )
    };
    for name in ["one", "two"] {
        world.fake.program(name, Program::exits(0, SECOND));
    }
    world.put_text("web", &manifest("one"));
    world.until("it runs", |world| world.phase("web") == "Running");
    world.stop();
    power_cut(&world);
    world.put_text("web", &manifest("two"));
    world.start();
    world.until("it runs", |world| world.phase("web") == "Running");
    assert!(world.status_of("web", "two").is_some());
}

#[test]
fn a_restart_count_out_of_range_is_rejected() {
    let world = World::new();
    world.run("web", APP);
    world.stop();
    let mut kept = checkpoint(&world).unwrap();
    let mut status = restored_status(&kept.pods[0]).unwrap();
    status.container_statuses.as_mut().unwrap()[0].restart_count = i32::MAX;
    let status = smolet::store::codec::encode(&status);
    kept.pods[0].status = &status;
    std::fs::write(world.path("root/checkpoint"), to_bytes(&kept)).unwrap();
    power_cut(&world);
    world.start();
    world.until("it runs", |world| !world.running().is_empty() && world.phase("web") == "Running");
    assert_eq!(world.status_of("web", "app").unwrap().restart_count, (1 << 30) + 1);
}

#[test]
fn a_full_disk_does_not_prevent_a_pods_new_sandbox() {
    let world = World::new();
    world.fake.program("first", Program::exits(0, SECOND));
    world.run(
        "web",
        "initContainers: [{name: first, image: 'busybox:1'}], containers: [{name: app, image: 'busybox:1'}]",
    );
    pass_until_saved(&world);
    let (checkpoint, obstacle) = (world.path("root/checkpoint"), world.path("root/checkpoint.new"));
    std::fs::create_dir(obstacle).unwrap();
    let before = std::fs::read(&checkpoint).unwrap();
    world.fake.stop_sandbox("web-gw");
    world.until("it runs again", |world| world.running() == ["web/app#1"]);
    assert_eq!(std::fs::read(&checkpoint).unwrap(), before, "the write failed");
}

#[test]
fn the_last_dead_container_is_removed_only_after_its_restart_count_is_saved() {
    let world = World::new();
    // For the agent this is a full disk.
    let obstacle = world.path("root/checkpoint.new");
    std::fs::create_dir(&obstacle).unwrap();
    let all = "restartPolicy: Never, restartPolicyRules: [{action: RestartAllContainers, exitCodes: {operator: In, values: [42]}}]";
    world.fake.program("app", Program::exits(42, 20 * SECOND));
    world.run(
        "web",
        &format!(
            "containers: [{{name: app, image: 'busybox:1', {all}}}, {{name: other, image: 'busybox:1'}}]"
        ),
    );
    world.pass(45);
    assert_eq!((world.count("RemoveContainer"), checkpoint(&world)), (0, None), "{}", world.trace());
    assert!(world.describe("web").contains("CheckpointNotWritten"), "{}", world.describe("web"));
    assert_eq!(world.running(), ["web/other#0"], "the agent continues otherwise");

    world.fake.program("app", Program::FOREVER);
    std::fs::remove_dir(&obstacle).unwrap();
    world.until("the removal", |world| world.count("RemoveContainer") > 0);
    let kept = checkpoint(&world).expect("written before");
    let status = restored_status(&kept.pods[0]).unwrap();
    assert!(next_restart_counts(&status).all(|(_, count)| count >= 1), "{status:?}");
    world.until("both run", |world| world.running().len() == 2);
    assert_eq!(world.running(), ["web/app#1", "web/other#1"]);
}
