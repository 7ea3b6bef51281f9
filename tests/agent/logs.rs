//! Container logs: rotation, removal, and `smolet logs`.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use smolet::logs::rotate::Rotation;

use crate::common::fake::Program;
use crate::common::runner;
use crate::world::{World, names};

const APP: &str = "containers: [{name: app, image: 'busybox:1'}]";
const LIMIT: usize = 8192;

/// An agent with small logs, three files of each, and a pod `web`.
fn world(rotation: Option<Rotation>) -> World {
    let world = World::without_agent();
    restart(&world, rotation);
    world.run("web", APP);
    world.pass(2);
    world
}

fn small() -> Option<Rotation> {
    Some(Rotation { size_max: LIMIT as u64, files_max: 3, check_max: Duration::from_secs(10) })
}

fn restart(world: &World, rotation: Option<Rotation>) {
    let mut config = world.config();
    config.log_rotation = rotation;
    world.spawn(config, false);
    world.wait("the first relist", |world| world.fake.count("ListContainers") > 0);
    world.settle();
}

fn log(world: &World) -> PathBuf {
    world.logs("web").join("app/0.log")
}

/// The container writes so many bytes.
fn write(world: &World, byte: u8, bytes: usize) {
    let mut file = std::fs::File::options().append(true).open(log(world)).unwrap();
    file.write_all(&vec![byte; bytes]).unwrap();
    // The rotator has been notified.
    world.settle();
}

fn files(world: &World) -> Vec<String> {
    names(&world.logs("web").join("app"))
}

fn reopened(world: &World) -> usize {
    world.fake.count("ReopenContainerLog")
}

/// Bytes of the rotated logs that are not compressed.
fn rotated(world: &World) -> Vec<Vec<u8>> {
    let plain = |name: &String| name.starts_with("0.log.") && !name.ends_with(".gz");
    let read = |name: String| std::fs::read(world.logs("web").join("app").join(name)).unwrap();
    files(world).into_iter().filter(plain).map(read).collect()
}

#[test]
fn a_log_that_reaches_its_limit_is_rotated_and_a_smaller_one_is_not() {
    let world = world(small());
    assert_eq!(reopened(&world), 0, "no rotation at its start");
    write(&world, b'a', LIMIT - 1);
    world.pass(20);
    assert_eq!(files(&world), ["0.log"]);
    write(&world, b'b', 1);
    world.until("the rotation", |world| reopened(world) == 1);
    assert_eq!(rotated(&world), [[vec![b'a'; LIMIT - 1], vec![b'b']].concat()]);
    assert_eq!(std::fs::read(log(&world)).unwrap(), b"");
    for byte in b'c'..=b'h' {
        let before = reopened(&world);
        write(&world, byte, LIMIT);
        world.until("the next one", |world| reopened(world) == before + 1);
    }
    let compressed = |name: &String| name.ends_with(".gz");
    world.wait("one compressed log", |world| {
        let files = files(world);
        files.len() == 3 && files.iter().filter(|name| compressed(name)).count() == 1
    });
    assert_eq!(files(&world)[0], "0.log");
    assert_eq!(rotated(&world), [vec![b'h'; LIMIT]], "the newest is not compressed");
    // All files are removed with the pod.
    let logs = world.logs("web");
    world.remove("web");
    world.until("its end", |world| world.fake.state().sandboxes.is_empty());
    world.until("no logs", |_| !logs.exists());
}

#[test]
fn a_log_that_is_full_at_the_agents_start_is_rotated() {
    let world = world(None);
    write(&world, b'a', 3 * LIMIT);
    world.pass(60);
    assert_eq!((files(&world).len(), reopened(&world)), (1, 0), "switched off");
    world.stop();
    restart(&world, small());
    world.until("the rotation", |world| reopened(world) == 1);
    assert_eq!(rotated(&world), [vec![b'a'; 3 * LIMIT]]);
}

#[test]
fn a_log_keeps_its_name_while_the_runtime_does_not_reopen_it() {
    let world = world(small());
    world.fake.fail("ReopenContainerLog", 2, 2, "no");
    write(&world, b'a', LIMIT);
    world.until("a try", |world| reopened(world) == 1);
    world.wait("its name", |world| files(world) == ["0.log"]);
    assert_eq!(std::fs::read(log(&world)).unwrap(), vec![b'a'; LIMIT]);
    let before = world.seconds();
    world.until("the third", |world| reopened(world) == 3);
    assert!((29..=32).contains(&(world.seconds() - before)), "after 10 s and after 20");
    assert_eq!(rotated(&world), [vec![b'a'; LIMIT]]);
}

#[test]
fn an_agent_killed_in_the_middle_of_a_rotation_loses_nothing() {
    let world = world(small());
    world.fake.hang("ReopenContainerLog");
    write(&world, b'a', LIMIT);
    world.until("the call", |world| reopened(world) == 1);
    assert!(!log(&world).exists());
    world.kill();
    world.fake.heal("ReopenContainerLog");
    restart(&world, small());
    world.until("a log", |world| log(world).exists());
    assert_eq!(rotated(&world), [vec![b'a'; LIMIT]]);
    // It is watched as any other. The runtime may have reopened it for the killed agent.
    world.settle();
    let opened = reopened(&world);
    write(&world, b'b', LIMIT);
    world.until("its rotation", |world| reopened(world) == opened + 1);
    assert!(rotated(&world).contains(&vec![b'b'; LIMIT]));
}

#[test]
fn a_log_that_is_not_a_regular_file_is_ignored() {
    let world = world(small());
    std::fs::write(world.path("precious"), vec![b'p'; 2 * LIMIT]).unwrap();
    std::os::unix::fs::symlink(world.path("precious"), world.path("link")).unwrap();
    std::fs::rename(world.path("link"), log(&world)).unwrap();
    world.pass(60);
    assert_eq!((files(&world), reopened(&world)), (vec!["0.log".to_owned()], 0));
    assert_eq!(std::fs::read(world.path("precious")).unwrap().len(), 2 * LIMIT);
}

#[test]
fn a_dead_containers_log_is_kept_and_removed_with_it() {
    let world = world(small());
    write(&world, b'a', LIMIT);
    world.until("the rotation", |world| reopened(world) == 1);
    write(&world, b'b', 10);
    world.fake.exit("web-gw/app", 1, "", "");
    world.until("the next life", |world| world.running() == ["web/app#1"]);
    write(&world, b'c', LIMIT);
    world.pass(30);
    assert_eq!(reopened(&world), 1, "it is no longer written");
    assert_eq!(files(&world).iter().filter(|name| name.starts_with("0.log")).count(), 2);
    // The container is removed when there is a newer dead one, with all its files.
    world.fake.exit("web-gw/app", 1, "", "");
    world.until("the life after", |world| world.running() == ["web/app#2"]);
    world.until("its files gone", |world| files(world) == ["1.log", "2.log"]);
}

#[test]
fn a_quiet_log_causes_no_wakeups() {
    let world = World::without_agent();
    world.fake.tell_events(smolet::cri::EventService::Cri);
    world.seldom(true);
    restart(&world, small());
    world.run("web", APP);
    world.pass(122);
    // The wakeups within a minute. Requests on the socket have timers too.
    let timers = || {
        world.silent(true);
        world.leap_for(Duration::from_secs(40));
        let mut seen = BTreeSet::new();
        for _ in 0..60 {
            world.leap_for(Duration::from_secs(1));
            seen.insert(world.clock.next_sleeper());
        }
        world.silent(false);
        seen.len()
    };
    let before = timers();
    // The manifests are scanned every 20 s, the runtime is relisted every minute.
    assert!(before <= 6, "{before} in a minute");
    for _ in 0..5 {
        write(&world, b'a', 10);
        world.leap_for(Duration::from_secs(1));
    }
    world.pass(20);
    let after = timers();
    assert!(after <= before + 2, "{after} in a minute, {before} before it was written to");
    write(&world, b'a', LIMIT);
    world.until("it is still watched", |world| reopened(world) == 1);
}

// ---- smolet logs -------------------------------------------------------------------------------------------

fn smolet_logs(world: &World, args: &[&str]) -> Command {
    let mut command = runner::smolet();
    command.arg("logs").arg("--socket").arg(world.path("sock")).args(args);
    command
}

fn shown(world: &World, args: &[&str]) -> (bool, String, String) {
    let Output { status, stdout, stderr } = smolet_logs(world, args).output().unwrap();
    (status.success(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

fn line(second: u32, text: &str) -> String {
    format!("2026-01-01T00:00:{second:02}.5Z stdout F {text}\n")
}

#[test]
fn the_command_shows_the_logs_of_current_and_previous_containers() {
    let world = World::new();
    world.fake.program("setup", Program::exits(0, Duration::ZERO));
    world.run(
        "web",
        "initContainers: [{name: setup, image: 'busybox:1'}], \
         containers: [{name: zeta, image: 'busybox:1'}, {name: app, image: 'busybox:2'}]",
    );
    let put = |container: &str, text: &str| {
        std::fs::write(world.logs("web").join(container).join("0.log"), text).unwrap();
    };
    put("setup", &line(1, "set up"));
    put("zeta", &[line(2, "one"), line(3, "two").replace("stdout", "stderr"), line(4, "three")].concat());
    put("app", &line(5, "from app"));
    let note = "Defaulted container \"zeta\" out of: zeta, app, setup (init)\n";
    let ok = |out: &str, err: &str| (true, out.to_owned(), err.to_owned());
    assert_eq!(shown(&world, &["web"]), ok("one\nthree\n", &format!("{note}two\n")), "the first of the spec");
    assert_eq!(shown(&world, &["default/web-gw", "-c", "app"]), ok("from app\n", ""));
    assert_eq!(
        shown(&world, &["web", "-c", "zeta", "--tail", "1", "--timestamps"]),
        ok("2026-01-01T00:00:04.500000000Z three\n", "")
    );
    assert_eq!(shown(&world, &["web", "-c", "app", "--since", "1s"]), ok("", ""), "long ago");
    assert_eq!(shown(&world, &["web", "-c", "app", "--since", "200000h"]), ok("from app\n", ""));
    assert_eq!(shown(&world, &["web", "--all-containers"]), ok("set up\none\nthree\nfrom app\n", "two\n"));
    let said = |args: &[&str], why: &str| {
        assert_eq!(shown(&world, args), (false, String::new(), format!("smolet: {why}\n")), "{args:?}");
    };
    said(
        &["web", "-c", "nope"],
        "container nope is not valid for pod web-gw out of: zeta, app, setup (init)",
    );
    said(&["web", "-c", "app", "-p"], "previous terminated container \"app\" in pod \"web-gw\" not found");
    said(&["nobody"], "there is no pod nobody");
    said(&["web", "-n", "other"], "there is no pod web in namespace other");
    said(&["web", "--tail", "-2"], "--tail must be greater than or equal to -1");
    said(
        &["web", "-c", "app", "--all-containers"],
        "--all-containers=true should not be specified with container name app",
    );
    world.fake.exit("web-gw/app", 1, "", "");
    world.until("the next life", |world| world.running().contains(&"web/app#1".to_owned()));
    world.pass(2);
    assert_eq!(shown(&world, &["web", "-c", "app"]), ok("", ""));
    assert_eq!(shown(&world, &["web", "-c", "app", "--previous"]), ok("from app\n", ""));
    world.fake.missing_image("far:1");
    world.put("late", "containers: [{name: app, image: 'far:1'}]");
    world.until("the failed pull", |world| {
        world.table().contains("ErrImagePull") || world.table().contains("ImagePullBackOff")
    });
    let (_, _, why) = shown(&world, &["late"]);
    assert!(why.starts_with("smolet: container \"app\" in pod \"late-gw\" is waiting to start: "), "{why}");
}

#[test]
fn the_command_follows_until_the_container_has_ended() {
    let world = World::new();
    world.run("web", APP);
    std::fs::write(log(&world), line(1, "first")).unwrap();
    let mut child =
        smolet_logs(&world, &["web", "-f"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // It follows this container, and no later one.
    let mut begun = [0; 6];
    child.stdout.as_mut().unwrap().read_exact(&mut begun).unwrap();
    let mut file = std::fs::File::options().append(true).open(log(&world)).unwrap();
    for second in 2..5 {
        file.write_all(line(second, "more").as_bytes()).unwrap();
    }
    drop(file);
    // It asks when the log is closed, and periodically; the agent denies the end until then.
    world.fake.exit("web-gw/app", 0, "", "");
    world.until("the next life", |world| world.running() == ["web/app#1"]);
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let said = (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
    assert_eq!(&begun, b"first\n");
    assert_eq!((status.success(), said), (true, ("more\nmore\nmore\n".to_owned(), String::new())));
}
