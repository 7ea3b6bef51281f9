//! Container logs: what `smolet logs` shows.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::common::fake::Program;
use crate::runner;
use crate::world::World;

const APP: &str = "containers: [{name: app, image: 'busybox:1'}]";
fn log(world: &World) -> PathBuf {
    world.logs("web").join("app/0.log")
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
fn the_command_shows_what_containers_wrote_in_each_of_their_lives() {
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
    let child =
        smolet_logs(&world, &["web", "-f"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut file = std::fs::File::options().append(true).open(log(&world)).unwrap();
    for second in 2..5 {
        file.write_all(line(second, "more").as_bytes()).unwrap();
    }
    drop(file);
    // It asks when the log is let go of, and now and then; the agent says no until then.
    world.fake.exit("web-gw/app", 0, "", "");
    world.until("the next life", |world| world.running() == ["web/app#1"]);
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let said = (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
    assert_eq!((status.success(), said), (true, ("first\nmore\nmore\nmore\n".to_owned(), String::new())));
}
