//! Hooks: what begins after them, what ends for them, and the grace period that they are part of.

#[cfg(feature = "tls")]
use std::io::Read as _;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::time::Duration;

use crate::common::fake::Exec;
use crate::world::World;

fn app(hooks: &str) -> String {
    format!("containers: [{{name: app, image: 'busybox:1', lifecycle: {{{hooks}}}}}]")
}

fn stops(world: &World) -> Vec<String> {
    world.actions().into_iter().filter(|call| call.starts_with("StopContainer")).collect()
}

#[test]
fn a_container_whose_post_start_hook_fails_is_killed_and_says_why_but_no_event_does() {
    let world = World::new();
    world.fake.exec("warm-up", Exec { code: 7, stdout: b"the secret".to_vec(), stderr: Vec::new() });
    world.put("web", &app("postStart: {exec: {command: [warm-up]}}, preStop: {exec: {command: [bye]}}"));
    world.until("it to end", |world| !stops(world).is_empty());
    assert_eq!(stops(&world), ["StopContainer web/app#0 grace=30"]);
    // The preStop hook of a killed container runs too.
    assert_eq!((world.count("ExecSync web/app#0 warm-up"), world.count("ExecSync web/app#0 bye")), (1, 1));
    let (reason, message) = world.waiting("web", "app");
    assert_eq!(reason, "PostStartHookError");
    let expected = "Exec lifecycle hook ([warm-up]) for Container \"app\" in Pod ";
    assert!(message.starts_with(expected) && message.contains("exited with 7"), "{message}");
    let (code, events) = world.ask("/describe?pod=web");
    assert_eq!(code, 200);
    assert!(events.contains("PostStartHook of app failed"), "{events}");
    let after = events.split("Events:").nth(1).unwrap_or_default();
    assert!(after.contains("FailedPostStartHook") && !after.contains("the secret"), "{after}");
    world.fake.exec("warm-up", Exec::default());
    world.until("the next one", |world| world.running() == ["web/app#1"]);
    world.pass(60);
    assert_eq!(stops(&world).len(), 1);
}

#[test]
fn a_post_start_hook_delays_the_next_container_and_no_other_pod() {
    let world = World::new();
    world.fake.hang("ExecSync");
    world.put(
        "web",
        "containers: [{name: first, image: 'busybox:1', lifecycle: {postStart: {exec: {command: [x]}}}}, \
         {name: second, image: 'busybox:1'}]",
    );
    world.until("the first", |world| world.count("ExecSync web/first#0 x") == 1);
    for pod in 0..8 {
        world.put(&format!("other{pod}"), &app(""));
    }
    world.until("the others", |world| world.running().len() == 9);
    assert!(!world.running().contains(&"web/second#0".to_owned()));
    // Longer than any call with a deadline may take.
    world.pass(600);
    assert_eq!(world.count("StopContainer"), 0);
    world.fake.heal("ExecSync");
    world.until("the second", |world| world.running().contains(&"web/second#0".to_owned()));
    // The pod's termination waits for no hook.
    world.fake.hang("ExecSync");
    world.put("late", &app("postStart: {exec: {command: [x]}}"));
    world.until("its hook", |world| world.count("ExecSync late/app#0 x") == 1);
    world.remove("late");
    world.until("its end", |world| world.pod("late").is_none());
    world.fake.heal("ExecSync");
}

#[test]
fn a_pre_stop_hook_is_part_of_the_grace_period() {
    let world = World::new();
    world.run("exec", &app("preStop: {exec: {command: [drain]}}"));
    world.run("sleep", &app("preStop: {sleep: {seconds: 12}}"));
    world.run("fails", &app("preStop: {exec: {command: [fails]}}"));
    world.fake.exec("fails", Exec { code: 1, ..Exec::default() });
    world.fake.delay("ExecSync", Duration::from_secs(10));
    for pod in ["exec", "sleep", "fails"] {
        world.remove(pod);
    }
    world.until("their end", |world| world.pods().is_empty());
    // Of 30 s each. On a busy machine a second or two pass between a hook's end and its result.
    for (pod, left) in [("exec", 20), ("fails", 20), ("sleep", 18)] {
        let stop = |grace: i64| format!("StopContainer {pod}/app#0 grace={grace}");
        let stopped = (left - 2..=left).any(|grace| world.count(&stop(grace)) == 1);
        assert!(stopped, "{pod}: {left} s are left: {}", world.trace());
    }
    assert_eq!(stops(&world).len(), 3);
}

#[test]
fn a_pre_stop_hook_that_hangs_leaves_the_minimum_grace_period() {
    let world = World::new();
    world.fake.hang("ExecSync");
    world.run(
        "web",
        &format!("terminationGracePeriodSeconds: 9, {}", app("preStop: {exec: {command: [drain]}}")),
    );
    let begun = world.seconds();
    world.remove("web");
    world.until("its end", |world| world.count("StopContainer") == 1);
    let took = world.seconds() - begun;
    assert_eq!(stops(&world), ["StopContainer web/app#0 grace=2"]);
    assert!((9..=11).contains(&took), "{took} s; {}", world.trace());
    world.fake.heal("ExecSync");
}

#[test]
fn a_pod_removed_while_the_agent_was_stopped_is_terminated_with_its_hook_and_grace_period() {
    let world = World::new();
    world.run(
        "web",
        &format!("terminationGracePeriodSeconds: 40, {}", app("preStop: {exec: {command: [drain]}}")),
    );
    world.stop();
    world.remove("web");
    world.fake.delay("ExecSync", Duration::from_secs(10));
    world.start();
    world.until("its end", |world| world.fake.state().sandboxes.is_empty());
    assert_eq!(world.count("ExecSync web/app#0 drain"), 1);
    assert_eq!(stops(&world), ["StopContainer web/app#0 grace=30"]);
}

#[test]
fn an_http_hook_accepts_any_response_and_fails_without_a_server() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let lines = BufReader::new(stream.try_clone().unwrap()).lines();
        let head: Vec<String> = lines.map(Result::unwrap).take_while(|line| !line.is_empty()).collect();
        stream.write_all(b"HTTP/1.1 500 Broken\r\ncontent-length: 0\r\n\r\n").unwrap();
        head
    });
    let world = World::new();
    let get =
        format!("{{host: 127.0.0.1, port: {port}, path: /warm, httpHeaders: [{{name: X-A, value: b}}]}}");
    world.run("http", &app(&format!("postStart: {{httpGet: {get}}}")));
    let head = server.join().unwrap();
    assert_eq!(head[0], "GET /warm HTTP/1.1");
    for line in ["X-A: b", "User-Agent: kube-lifecycle/1.36"] {
        assert!(head.iter().any(|sent| sent.eq_ignore_ascii_case(line)), "{head:?}");
    }
    assert_eq!(stops(&world), [""; 0]);
    // No server listens there, and the kernel gives the port to no other test.
    world.put("tcp", &app("postStart: {tcpSocket: {host: 127.0.0.1, port: 1}}"));
    world.until("its failure", |world| world.waiting("tcp", "app").0 == "PostStartHookError");
    assert_eq!(stops(&world), ["StopContainer tcp/app#0 grace=30"]);
}

#[cfg(feature = "tls")]
#[test]
fn an_https_hook_falls_back_to_http() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        // The beginning of a TLS handshake.
        let mut first = [0];
        stream.read_exact(&mut first).unwrap();
        stream.write_all(b"HTTP/1.0 400 Bad Request\r\n\r\n").unwrap();
        drop(stream);
        let (mut stream, _) = listener.accept().unwrap();
        let lines = BufReader::new(stream.try_clone().unwrap()).lines();
        let head: Vec<String> = lines.map(Result::unwrap).take_while(|line| !line.is_empty()).collect();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
        (first, head)
    });
    let world = World::new();
    let headers = "[{name: Authorization, value: Basic YTpi}, {name: X-A, value: b}]";
    let get =
        format!("{{host: 127.0.0.1, port: {port}, scheme: HTTPS, path: /warm, httpHeaders: {headers}}}");
    world.run("web", &app(&format!("postStart: {{httpGet: {get}}}")));
    let (first, head) = server.join().unwrap();
    assert_eq!((first, &*head[0]), ([0x16], "GET /warm HTTP/1.1"));
    let sent = |name: &str| head.iter().any(|line| line.to_ascii_lowercase().starts_with(name));
    assert!(sent("x-a: b") && !sent("authorization"), "{head:?}");
    let words = format!(
        "request to HTTPS lifecycle hook 127.0.0.1:{port} got HTTP response, retry with HTTP succeeded"
    );
    let (_, described) = world.ask("/describe?pod=web");
    assert!(described.contains("LifecycleHTTPFallback") && described.contains(&words), "{described}");
}
