//! Restart policies and the crash-loop back-off.

use std::time::Duration;

use crate::common::fake::Program;
use crate::world::World;

const SECOND: Duration = Duration::from_secs(1);
const APP: &str = "containers: [{name: app, image: 'busybox:1'}]";
const STARTED: &str = "StartContainer web/app";

/// Seconds from each exit to the next start, for an app that runs for a second each time.
fn waits(world: &World) -> Vec<i64> {
    let starts = world.times(STARTED);
    starts.windows(2).map(|pair| pair[1] - (pair[0] + 1)).collect()
}

/// Each wait is at least the back-off, and at most a relist longer.
fn assert_waits(waits: &[i64], wanted: &[i64]) {
    let fits = |(wait, wanted): (&i64, &i64)| (*wanted..=wanted + 3).contains(wait);
    assert!(waits.len() == wanted.len() && waits.iter().zip(wanted).all(fits), "{waits:?}, not {wanted:?}");
}

#[test]
fn restart_policies_decide_which_containers_restart() {
    for (policy, good_again, bad_again) in
        [("Always", true, true), ("OnFailure", false, true), ("Never", false, false)]
    {
        let world = World::without_agent();
        world.fake.program("good", Program::exits(0, SECOND));
        world.fake.program("bad", Program::exits(3, SECOND));
        let containers = "containers: [{name: good, image: 'busybox:1'}, {name: bad, image: 'busybox:1'}, \
                          {name: stays, image: 'busybox:1'}]";
        world.put("web", &format!("restartPolicy: {policy}, {containers}"));
        world.start();
        world.pass(30);
        let again = |name: &str| world.count(&format!("StartContainer web/{name}")) > 1;
        assert_eq!((again("good"), again("bad")), (good_again, bad_again), "{policy}");
        assert_eq!(world.count("StartContainer web/stays"), 1, "{policy}");
        assert_eq!(world.phase("web"), "Running", "{policy}");
        if policy == "Never" {
            let ended = |name: &str| {
                let state = world.status_of("web", name).unwrap().state.unwrap();
                state.terminated.map(|t| (t.exit_code, t.reason.unwrap()))
            };
            assert_eq!(ended("good"), Some((0, "Completed".to_owned())));
            assert_eq!(ended("bad"), Some((3, "Error".to_owned())));
        }
    }
}

#[test]
fn a_crash_loops_back_off_doubles_up_to_five_minutes() {
    let world = World::without_agent();
    world.fake.program("app", Program::exits(1, SECOND));
    world.put("web", APP);
    world.start();
    let wanted = [0, 10, 20, 40, 80, 160, 300, 300];
    for (index, wait) in wanted.iter().enumerate() {
        world.until("a crash", |world| world.running().is_empty());
        if *wait > 15 {
            world.pass(2);
            assert_eq!(world.waiting("web", "app").0, "CrashLoopBackOff");
            world.leap(wait - 5);
            assert_eq!(world.times(STARTED).len(), index + 1, "not before the wait of {wait} s is over");
        }
        world.until("a restart", |world| world.times(STARTED).len() == index + 2);
    }
    assert_waits(&waits(&world), &wanted.map(|wait| i64::try_from(wait).unwrap()));
    let status = world.status_of("web", "app").unwrap();
    assert_eq!(status.restart_count, i32::try_from(wanted.len()).unwrap());
    let (_, message) = world.waiting("web", "app");
    assert!(message.is_empty(), "it runs: {message}");
    world.until("the next crash", |world| world.waiting("web", "app").0 == "CrashLoopBackOff");
    let (_, message) = world.waiting("web", "app");
    assert!(
        message.starts_with("back-off 5m0s restarting failed container=app pod=web-gw_default("),
        "{message}"
    );
    let shown = world.describe("web");
    assert!(shown.contains("Back-off restarting failed container app"), "{shown}");
}

#[test]
fn a_container_that_ran_for_ten_minutes_resets_its_back_off() {
    let world = World::without_agent();
    world.fake.program("app", Program::exits(1, SECOND));
    world.put("web", APP);
    world.start();
    world.until("the third start", |world| world.times(STARTED).len() == 3);
    // The next one, after 20 s, runs for a while.
    world.fake.program("app", Program::exits(1, Duration::from_secs(605)));
    world.until("the fourth start", |world| world.times(STARTED).len() == 4);
    world.fake.program("app", Program::exits(1, SECOND));
    world.leap(600);
    world.until("the fifth start", |world| world.times(STARTED).len() == 5);
    world.until("the sixth start", |world| world.times(STARTED).len() == 6);
    world.until("the seventh start", |world| world.times(STARTED).len() == 7);
    assert_waits(&waits(&world), &[0, 10, 20, 604, 10, 20]);
}

#[test]
fn a_step_of_the_wall_clock_changes_no_back_off() {
    const TEN_YEARS: i64 = 10 * 365 * 24 * 3600;
    for step in [TEN_YEARS, -TEN_YEARS] {
        let world = World::without_agent();
        world.fake.program("app", Program::exits(1, SECOND));
        world.put("web", APP);
        world.start();
        world.until("the third start", |world| world.times(STARTED).len() == 3);
        // Once in the wait, once while it runs.
        world.pass(8);
        world.clock.step_wall(step);
        world.until("the fourth start", |world| world.times(STARTED).len() == 4);
        world.clock.step_wall(-step);
        world.until("the fifth start", |world| world.times(STARTED).len() == 5);
        assert_waits(&waits(&world), &[0, 10, 20, 40]);
    }
}

#[test]
fn a_back_off_continues_after_a_restart_of_the_agent() {
    let world = World::without_agent();
    world.fake.program("app", Program::exits(1, SECOND));
    world.put("web", APP);
    world.start();
    world.until("the fourth start", |world| world.times(STARTED).len() == 4);
    world.pass(2);
    world.kill();
    world.start();
    world.until("a restart", |world| world.times(STARTED).len() == 1);
    assert_eq!(world.count("RunPodSandbox"), 0);
    assert_eq!(world.status_of("web", "app").unwrap().restart_count, 4);
}

#[test]
fn a_job_runs_once_and_stays_succeeded() {
    let world = World::without_agent();
    world.fake.program("app", Program::exits(0, SECOND));
    world.put("web", &format!("restartPolicy: Never, {APP}"));
    world.start();
    world.until("its success", |world| world.phase("web") == "Succeeded");
    world.pass(3);
    assert_eq!(world.count("StopPodSandbox web#0"), 1);
    assert_eq!((world.count("RemoveContainer"), world.count("RemovePodSandbox")), (0, 0));
    for ending in [World::stop, World::kill] {
        ending(&world);
        world.start();
        world.pass(15);
        assert_eq!(world.actions(), [""; 0]);
        assert_eq!(world.phase("web"), "Succeeded");
    }
    world.remove("web");
    world.until("nothing left", |world| world.fake.state().sandboxes.is_empty() && world.pods().is_empty());
    assert!(world.fake.state().containers.is_empty());
}

#[test]
fn a_failed_job_stays_failed() {
    let world = World::without_agent();
    world.fake.program("app", Program::exits(7, SECOND));
    world.put("web", &format!("restartPolicy: Never, {APP}"));
    world.start();
    world.until("its failure", |world| world.phase("web") == "Failed");
    world.pass(15);
    assert_eq!(world.count("StartContainer"), 1);
    let ended = world.status_of("web", "app").unwrap().state.unwrap().terminated.unwrap();
    assert_eq!(ended.exit_code, 7);
}

#[test]
fn a_pod_past_its_active_deadline_fails_and_stays_stopped() {
    let world = World::new();
    world.run("web", &format!("activeDeadlineSeconds: 40, terminationGracePeriodSeconds: 6, {APP}"));
    world.pass(20);
    // The deadline counts from the pod's start, not from the agent's.
    world.kill();
    world.start();
    world.pass(15);
    assert_eq!((world.phase("web"), world.actions()), ("Running".to_owned(), Vec::new()));
    world.until("its failure", |world| world.phase("web") == "Failed");
    world.until("its stop", |world| world.running().is_empty());
    let stop = world.times("StopContainer web/app#0 grace=6")[0] - 60;
    assert!((40..=43).contains(&stop), "{stop} s after the boot of the node");
    let status = world.pod("web").unwrap().status.unwrap();
    assert_eq!(status.reason.as_deref(), Some("DeadlineExceeded"));
    world.fake.clear_calls();
    world.pass(60);
    assert_eq!(world.actions(), [""; 0]);
    world.remove("web");
    world.until("nothing left", |world| world.fake.state().sandboxes.is_empty());
}

#[test]
fn a_pod_that_has_failed_for_good_runs_again_when_its_manifest_changes() {
    let world = World::new();
    let spec = format!("activeDeadlineSeconds: 10, terminationGracePeriodSeconds: 1, {APP}");
    world.run("web", &spec);
    let uid = world.uid("web");
    world.until("its failure", |world| world.phase("web") == "Failed" && world.running().is_empty());
    world.put("web", &spec);
    world.pass(60);
    assert_eq!(world.phase("web"), "Failed", "the same manifest");
    // Only its image: the UID stays.
    world.put("web", &spec.replace("busybox:1", "busybox:2"));
    world.until("the mended one", |world| world.phase("web") == "Running");
    assert_eq!(world.uid("web"), uid);
}

#[test]
fn a_crash_looping_pod_reaches_its_active_deadline_during_its_back_off() {
    let world = World::without_agent();
    world.fake.program("app", Program::exits(1, SECOND));
    world.put("web", &format!("activeDeadlineSeconds: 60, {APP}"));
    world.start();
    world.until("its failure", |world| world.phase("web") == "Failed");
    world.fake.clear_calls();
    world.pass(60);
    assert_eq!(world.count("StartContainer"), 0);
}
