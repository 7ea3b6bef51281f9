//! `/events`: the output of `smolet events`, and following it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::thread::JoinHandle;

use smolet::limits::{EVENTS_MAX, EVENTS_WAIT_MAX, EVENTS_WAITING_MAX};

use crate::common::runner;
use crate::metrics::entries;
use crate::world::{World, answer};

const APP: &str = "containers: [{name: app, image: 'busybox:1'}]";

/// The revision at the beginning of a response, and its rows.
fn followed(world: &World, since: u64, filter: &str) -> (u64, Vec<String>) {
    let (code, said) = world.ask(&format!("/events?since={since}{filter}"));
    assert_eq!(code, 200, "{said}");
    let (head, table) = said.split_once('\n').unwrap();
    let revision = head.strip_prefix("revision ").unwrap().parse().unwrap();
    (revision, table.lines().map(str::to_owned).collect())
}

/// The fields of the rows, without the heading.
fn rows(table: &str) -> Vec<Vec<&str>> {
    table.lines().skip(1).map(|row| row.split('\t').collect()).collect()
}

fn wait_for_event(world: &World, after: u64) -> JoinHandle<(u16, String)> {
    let mut stream = UnixStream::connect(world.path("sock")).unwrap();
    // Here, and not on the thread, which may be late on a busy machine.
    write!(stream, "GET /events/next?after={after} HTTP/1.0\r\n\r\n").unwrap();
    std::thread::spawn(move || answer(stream))
}

#[test]
fn events_are_listed_with_kubectls_columns() {
    let world = World::new();
    assert_eq!(world.ask("/events"), (200, String::new()), "no events");
    world.run("web", APP);
    let (_, table) = world.ask("/events?columns=0");
    assert_eq!(table.lines().next(), Some("NAMESPACE\tLAST SEEN\tTYPE\tREASON\tOBJECT\tMESSAGE"));
    let all = rows(&table);
    for reason in ["Pulled", "Created", "Started"] {
        let row = all.iter().find(|row| row[3] == reason).unwrap_or_else(|| panic!("{reason} in\n{table}"));
        assert_eq!((row[0], row[2], row[4]), ("default", "Normal", "Pod/web-gw"), "{table}");
    }
    world.run("db", APP);
    for path in ["/events?pod=db", "/events?pod=db-gw", "/events?pod=db&namespace=default"] {
        let (_, of_db) = world.ask(&format!("{path}&columns=0"));
        assert!(of_db.starts_with("LAST SEEN\tTYPE\t"), "{of_db}");
        assert!(rows(&of_db).len() >= 3 && rows(&of_db).iter().all(|row| row[3] == "Pod/db-gw"), "{of_db}");
    }
    assert_eq!(world.ask("/events?namespace=prod").1, "");
    // A pod's events outlive it.
    world.remove("db");
    world.until("the end", |world| world.pod("db").is_none());
    assert!(world.ask("/events?pod=db").1.contains("Killing"));
}

#[test]
fn ages_count_on_the_monotonic_clock_here_and_in_describe() {
    let world = World::new();
    world.run("web", APP);
    world.fake.exit("web-gw/app", 1, "", "");
    world.until("the next life", |world| world.running() == ["web/app#1"]);
    world.pass(60);
    // By the wall clock ten years have passed, or are in the future.
    for step in [10 * 365 * 24 * 3600, -20 * 365 * 24 * 3600] {
        world.clock.step_wall(step);
        let (_, table) = world.ask("/events?pod=web&columns=0");
        let page = world.describe("web");
        for row in rows(&table) {
            let (last, times) = row[0].split_once(' ').unwrap_or((row[0], ""));
            let seconds: u32 = last.strip_suffix('s').unwrap().parse().unwrap();
            assert!((60..=90).contains(&seconds), "{table}");
            assert!(row[2] != "Started" || times.starts_with("(x2 over "), "{table}");
            assert!(page.contains(row[0]), "{row:?} in {page}");
        }
    }
}

#[test]
fn a_follower_is_woken_by_each_event_and_gets_it_once() {
    let world = World::new();
    world.run("web", APP);
    world.pass(2);
    let (revision, rows) = followed(&world, 0, "");
    assert!(rows[0].starts_with("NAMESPACE"), "{rows:?}");
    assert_eq!(followed(&world, revision, ""), (revision, Vec::new()), "nothing new");

    let waiting = wait_for_event(&world, revision);
    world.settle();
    assert!(!waiting.is_finished(), "no event yet");
    let before = world.seconds();
    world.put("db", APP);
    world.until("an event", |world| !world.ask("/events?pod=db").1.is_empty());
    assert!(world.seconds() - before < EVENTS_WAIT_MAX.as_secs().cast_signed());
    world.wait("the answer", |_| waiting.is_finished());
    assert_eq!(waiting.join().unwrap(), (200, String::new()));
    world.until("db runs", |world| world.phase("db") == "Running");
    let (later, rows) = followed(&world, revision, "&heading=0");
    assert!(later > revision && !rows.is_empty());
    assert!(rows.iter().all(|row| row.contains("Pod/db-gw")), "{rows:?}");

    // Another agent's ring starts at revision 0.
    world.stop();
    world.start();
    world.run("more", APP);
    let (fresh, rows) = followed(&world, later + 1000, "");
    assert!(fresh < later + 1000 && rows.iter().any(|row| row.contains("Pod/more-gw")), "{rows:?}");
}

#[test]
fn waits_for_events_are_bounded_in_time_and_number() {
    let world = World::new();
    world.run("web", APP);
    world.pass(2);
    let (revision, _) = followed(&world, 0, "");
    assert_eq!(world.ask("/events/next?after=0"), (200, String::new()), "there was more");
    let waiting: Vec<_> = (0..EVENTS_WAITING_MAX).map(|_| wait_for_event(&world, revision)).collect();
    world.settle();
    assert!(waiting.iter().all(|one| !one.is_finished()));
    assert_eq!(world.ask(&format!("/events/next?after={revision}")), (200, String::new()), "one too many");
    assert!(waiting.iter().all(|one| !one.is_finished()));
    world.leap(EVENTS_WAIT_MAX.as_secs());
    for one in waiting {
        assert_eq!(one.join().unwrap(), (200, String::new()));
    }
    // A client that disconnected does not count.
    for _ in 0..2 * EVENTS_WAITING_MAX {
        drop(wait_and_hang_up(&world, revision));
        world.settle();
    }
    let waiting = wait_for_event(&world, revision);
    world.settle();
    assert!(!waiting.is_finished());
    world.leap(EVENTS_WAIT_MAX.as_secs());
    assert_eq!(waiting.join().unwrap(), (200, String::new()));
}

/// Sends a request, and disconnects when the agent has received it.
fn wait_and_hang_up(world: &World, after: u64) -> UnixStream {
    let mut stream = UnixStream::connect(world.path("sock")).unwrap();
    write!(stream, "GET /events/next?after={after} HTTP/1.0\r\n\r\n").unwrap();
    world.settle();
    stream
}

#[test]
fn a_pod_with_many_different_events_displaces_no_other() {
    let world = World::new();
    world.run("quiet", APP);
    let probe = "readinessProbe: {exec: {command: [check]}, periodSeconds: 1}";
    world.put("loud", &format!("containers: [{{name: app, image: 'busybox:1', {probe}}}]"));
    for second in 0..60 {
        let stdout = format!("disk {second} is full").into_bytes();
        world.fake.exec("check", crate::common::fake::Exec { code: 1, stdout, stderr: Vec::new() });
        world.step();
    }
    let (_, table) = world.ask("/events?pod=loud&columns=0");
    let unhealthy: Vec<_> = rows(&table).into_iter().filter(|row| row[2] == "Unhealthy").collect();
    let last = unhealthy.last().unwrap_or_else(|| panic!("{table}"));
    let said = "(combined from similar events): Readiness probe failed: disk 5";
    assert!(unhealthy.len() == 16 && last[4].starts_with(said), "{table}");
    assert!(world.ask("/events?pod=quiet").1.contains("Started"));
    assert!(entries(&world, "events") < EVENTS_MAX);
}

#[test]
fn the_command_follows_until_the_agent_ends() {
    let world = World::new();
    let smolet = |args: &[&str]| {
        let mut command = runner::smolet();
        command.arg("events").arg("--socket").arg(world.path("sock")).args(args);
        command
    };
    let none = smolet(&["nobody"]).output().unwrap();
    assert_eq!(
        (none.status.success(), &*none.stdout, &*none.stderr),
        (true, &b""[..], &b"No events found.\n"[..])
    );

    let follower = smolet(&["-w", "db"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut follower = follower.unwrap();
    world.run("web", APP);
    world.run("db", APP);
    let mut lines = BufReader::new(follower.stdout.take().unwrap()).lines();
    let mut line = || lines.next().map(Result::unwrap);
    assert_eq!(line().as_deref(), Some("LAST SEEN\tTYPE\tREASON\tOBJECT\tMESSAGE"));
    let until = |line: &mut dyn FnMut() -> Option<String>, reason: &str| loop {
        let row = line().unwrap_or_else(|| panic!("it ended before {reason}"));
        let fields: Vec<&str> = row.split('\t').collect();
        assert!(fields[3] == "Pod/db-gw", "{row}");
        if fields[2] == reason {
            break;
        }
    };
    until(&mut line, "Started");
    world.remove("db");
    world.until("the end", |world| world.pod("db").is_none());
    until(&mut line, "Killing");
    world.stop();
    while line().is_some() {}
    let ended = follower.wait_with_output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(!ended.status.success() && said.starts_with("smolet: "), "{said}");
}
