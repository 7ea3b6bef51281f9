//! `/top/pods`: the output of `smolet top`.

use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::Duration;

use smolet::limits::STATS_SAMPLE_TIME;

use crate::common::fake::Program;
use crate::common::runner;
use crate::world::{World, ask};

const APP: &str = "containers: [{name: app, image: 'busybox:1'}]";
const TWO: &str = "containers: [{name: app, image: 'busybox:1'}, {name: more, image: 'busybox:1'}]";

/// The response, after the time between two samples.
fn measured(world: &World, path: &'static str) -> (u16, String) {
    let stream = UnixStream::connect(world.path("sock")).unwrap();
    // Counted first: the thread's look may be there before this one goes on.
    let before = looks(world);
    let asked = std::thread::spawn(move || ask(stream, path));
    await_looks(world, before + 1);
    world.leap_for(STATS_SAMPLE_TIME);
    asked.join().unwrap()
}

fn looks(world: &World) -> usize {
    world.fake.count("ListContainerStats")
}

fn await_looks(world: &World, number: usize) {
    world.wait("a look", |world| looks(world) == number);
    world.settle();
}

#[test]
fn pods_are_measured_only_on_request() {
    let world = World::new();
    world.run("web", TWO);
    world.run("db", APP);
    world.pass(30);
    assert_eq!(looks(&world), 0);
    // A quarter of a core and 5 MiB for each container of the fake, which has no cgroups.
    let table = "NAMESPACE\tNAME\tCPU(cores)\tMEMORY(bytes)\tWRITTEN(bytes)\n\
                 default\tdb-gw\t250m\t5Mi\t<unknown>\n\
                 default\tweb-gw\t500m\t10Mi\t<unknown>\n";
    assert_eq!(measured(&world, "/top/pods?columns=0"), (200, table.to_owned()));
    assert_eq!(looks(&world), 2);
    let of_db = "NAME\tCPU(cores)\tMEMORY(bytes)\tWRITTEN(bytes)\ndb-gw\t250m\t5Mi\t<unknown>\n";
    for path in [
        "/top/pods?pods=db&columns=0",
        "/top/pods?pods=default/db-gw,db&columns=0",
        "/top/pods?pods=db&namespace=default&columns=0",
    ] {
        assert_eq!(measured(&world, path), (200, of_db.to_owned()), "{path}");
    }
    let before = looks(&world);
    for path in ["/top/pods?pods=nobody", "/top/pods?pods=db,prod/db", "/top/pods?pods=db&namespace=prod"] {
        let (code, said) = world.ask(path);
        assert!(code == 404 && said.starts_with("there is no pod "), "{path}: {said}");
    }
    assert_eq!(looks(&world), before, "no pod to measure");
}

#[test]
fn ended_containers_that_the_runtime_lists_without_stats_use_nothing() {
    let world = World::new();
    world.fake.state().lists_ended_stats = true;
    world.fake.program("first", Program::exits(0, Duration::from_secs(1)));
    world.run("web", &format!("initContainers: [{{name: first, image: 'busybox:1'}}], {APP}"));
    world.run("done", &format!("restartPolicy: Never, {APP}"));
    world.fake.exit("done-gw/app", 0, "", "");
    world.until("its end", |world| world.phase("done") == "Succeeded");
    let (_, table) = measured(&world, "/top/pods?columns=0");
    let rows: Vec<&str> = table.lines().skip(1).collect();
    assert_eq!(rows, ["default\tdone-gw\t0m\t0Mi\t<unknown>", "default\tweb-gw\t250m\t5Mi\t<unknown>"]);
}

#[test]
fn unknown_usage_is_shown_as_unknown() {
    let world = World::new();
    world.run("web", APP);
    world.run("done", &format!("restartPolicy: Never, {APP}"));
    world.fake.exit("done-gw/app", 0, "", "");
    world.until("its end", |world| world.phase("done") == "Succeeded");
    let (_, table) = measured(&world, "/top/pods?pods=done&columns=0");
    assert_eq!(table.lines().last(), Some("done-gw\t0m\t0Mi\t<unknown>"), "{table}");

    let stream = UnixStream::connect(world.path("sock")).unwrap();
    let before = looks(&world);
    let asked = std::thread::spawn(move || ask(stream, "/top/pods?pods=web&columns=0"));
    await_looks(&world, before + 1);
    // By the wall clock ten years pass.
    world.clock.step_wall(10 * 365 * 24 * 3600);
    world.leap_for(STATS_SAMPLE_TIME);
    let (_, table) = asked.join().unwrap();
    assert_eq!(table.lines().last(), Some("web-gw\t<unknown>\t5Mi\t<unknown>"), "{table}");

    world.fake.fail("ListContainerStats", 1, 12, "unknown method ListContainerStats");
    let (code, said) = world.ask("/top/pods");
    let why = "the runtime reports no container stats: unknown method ListContainerStats\n";
    assert_eq!((code, &*said), (404, why));
}

#[test]
fn a_measurement_delays_only_the_next_measurement() {
    let world = World::new();
    world.run("web", APP);
    world.fake.hang("ListContainerStats");
    let mut asked = Vec::new();
    for _ in 0..2 {
        let stream = UnixStream::connect(world.path("sock")).unwrap();
        asked.push(std::thread::spawn(move || ask(stream, "/top/pods?columns=0")));
    }
    await_looks(&world, 1);
    assert!(world.ask("/pods?output=table").1.contains("web-gw"));
    assert_eq!(looks(&world), 1, "the second waits");
    world.fake.heal("ListContainerStats");
    for number in [2, 4] {
        await_looks(&world, number - 1);
        world.leap_for(STATS_SAMPLE_TIME);
        world.wait("the second look", |world| looks(world) >= number);
    }
    for asked in asked {
        let (code, table) = asked.join().unwrap();
        assert!(code == 200 && table.ends_with("default\tweb-gw\t250m\t5Mi\t<unknown>\n"), "{table}");
    }
}

#[test]
fn the_command_shows_the_table_and_errors() {
    let world = World::new();
    world.run("web", APP);
    let top = |args: &[&str]| {
        let mut command = runner::smolet();
        command.arg("top").arg("--socket").arg(world.path("sock")).args(args);
        command
    };
    let said = |args: &[&str]| {
        let output = top(args).output().unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    let child = top(&["pod/web", "default/web-gw"]).stdout(Stdio::piped()).spawn().unwrap();
    await_looks(&world, 1);
    world.leap_for(STATS_SAMPLE_TIME);
    let shown = child.wait_with_output().unwrap();
    assert_eq!(
        String::from_utf8(shown.stdout).unwrap(),
        "NAME\tCPU(cores)\tMEMORY(bytes)\tWRITTEN(bytes)\nweb-gw\t250m\t5Mi\t<unknown>\n"
    );
    let wrong = |why: &str| (false, format!("smolet: {why}\n"));
    assert_eq!(said(&["nobody"]), wrong("there is no pod nobody"));
    assert_eq!(
        said(&["web", "default/web", "-n", "prod"]),
        wrong("default/web and -n name two namespaces; give one")
    );
}
