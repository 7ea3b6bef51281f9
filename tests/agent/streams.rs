//! Targets of `exec`, `attach` and `port-forward`: the selected container and pod, or an error.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use smolet::limits::{FORWARDED_PORTS_MAX, STREAM_COMMAND_BYTES_MAX};

use crate::common::fake::Program;
use crate::world::World;

const SOON: Duration = Duration::from_secs(1);
const SEVERAL: &str = "initContainers: [{name: first, image: 'busybox:1'}], containers: [\
    {name: app, image: 'busybox:1', ports: [{name: http, containerPort: 8080}, {containerPort: 53, protocol: UDP}]}, \
    {name: shell, image: 'busybox:1', stdin: true, tty: true}]";

fn several() -> World {
    let world = World::without_agent();
    world.fake.program("first", Program::exits(0, SOON));
    world.start();
    world.run("several", SEVERAL);
    world.fake.clear_calls();
    world
}

/// The runtime's streaming calls.
fn streams(world: &World) -> Vec<String> {
    let of = |call: &String| ["Exec ", "Attach ", "PortForward "].iter().any(|name| call.starts_with(name));
    world.fake.calls().into_iter().filter(of).map(|call| call.replace("-gw", "")).collect()
}

#[test]
fn a_command_runs_in_the_named_or_default_container() {
    let world = several();
    let all = "app, shell, first (init)";
    for (query, call, facts) in [
        (
            "pod=several",
            "Exec several/app#0 2> ls -l ä b",
            &*format!("container app\nnote Defaulted container \"app\" out of: {all}\n"),
        ),
        (
            "pod=several&container=shell&stdin=1&tty=1",
            "Exec several/shell#0 -i -t ls -l ä b",
            "container shell\n",
        ),
        (
            "pod=several-gw&namespace=default&container=app&stdin=1",
            "Exec several/app#0 -i 2> ls -l ä b",
            "container app\n",
        ),
    ] {
        world.fake.clear_calls();
        let (code, body) = world.post(&format!("/exec?{query}"), "ls\0-l\0ä b\0".as_bytes());
        let url = "url http://127.0.0.1:1/exec/token\npod default several-gw\n";
        assert_eq!((code, body), (200, format!("{url}{facts}")), "{query}");
        assert_eq!(streams(&world), [call]);
    }
    // The annotation names another container, or a missing one.
    let noted = |name: &str, container: &str| {
        let text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  annotations: \
             {{kubectl.kubernetes.io/default-container: {container}}}\nspec:\n  containers: \
             [{{name: a, image: 'busybox:1'}}, {{name: b, image: 'busybox:1'}}]\n"
        );
        world.put_text(name, &text);
        world.until("it to run", |world| world.phase(name) == "Running");
        let (code, body) = world.post(&format!("/exec?pod={name}"), b"ls\0");
        assert_eq!(code, 200, "{body}");
        body
    };
    let body = noted("noted", "b");
    assert!(body.ends_with("\ncontainer b\n"), "{body}");
    let body = noted("astray", "gone");
    let notes = "container a\nnote Default container name \"gone\" not found in pod astray-";
    assert!(body.contains(notes), "{body}");
    assert!(body.ends_with("\nnote Defaulted container \"a\" out of: a, b\n"), "{body}");
}

#[test]
fn an_attach_uses_the_containers_stdin_and_tty() {
    let world = several();
    for (query, call, tty) in [
        ("pod=several&container=shell&stdin=1", "Attach several/shell#0 -i -t", 1),
        ("pod=several&container=app", "Attach several/app#0 2>", 0),
    ] {
        world.fake.clear_calls();
        let (code, body) = world.post(&format!("/attach?{query}"), b"");
        assert!(code == 200 && body.contains(&format!("\ntty {tty}\n")), "{body}");
        assert!(body.starts_with("url http://127.0.0.1:1/attach/token\n"), "{body}");
        assert_eq!(streams(&world), [call]);
    }
}

#[test]
fn ports_are_those_of_the_ready_sandbox_by_number_or_name() {
    let world = several();
    let (code, body) = world.post("/portforward?pod=several&port=80&port=http", b"");
    let url = "url http://127.0.0.1:1/portforward/token\npod default several-gw\n";
    assert_eq!((code, body), (200, format!("{url}port 80\nport 8080\n")));
    assert_eq!(streams(&world), ["PortForward several#0"]);
    world.fake.clear_calls();
    for (ports, why) in [
        ("port=metrics", "Pod 'several-gw' does not have a named port 'metrics'\n"),
        ("port=53", "UDP protocol is not supported for 53\n"),
        ("port=0", "0 is not a port number\n"),
        ("port=65536", "65536 is not a port number\n"),
    ] {
        assert_eq!(world.post(&format!("/portforward?pod=several&{ports}"), b""), (404, why.to_owned()));
    }
    let many = "&port=1".repeat(FORWARDED_PORTS_MAX + 1);
    assert_eq!(
        world.post(&format!("/portforward?pod=several{many}"), b""),
        (400, "too many ports\n".to_owned())
    );
    assert_eq!(streams(&world), [""; 0]);
}

#[test]
fn a_stream_to_a_container_that_does_not_run_is_refused_with_the_reason() {
    let world = several();
    world.fake.program("ends", Program::exits(0, SOON));
    world.fake.program("fails", Program::exits(3, SOON));
    world.put("done", "restartPolicy: Never, containers: [{name: ends, image: 'busybox:1'}]");
    world.put("crashes", "containers: [{name: fails, image: 'busybox:1'}]");
    world.put("waits", "containers: [{name: app, image: 'nowhere:1'}]");
    world.fake.state().missing.insert("nowhere:1".to_owned());
    world.until("done has ended", |world| world.phase("done") == "Succeeded");
    world.until("crashes waits", |world| world.waiting("crashes", "fails").0 == "CrashLoopBackOff");
    world.until("waits waits", |world| !world.waiting("waits", "app").0.is_empty());
    world.fake.clear_calls();
    for (path, code, why) in [
        ("/exec?pod=nobody", 404, "there is no pod nobody"),
        ("/exec?pod=several&namespace=prod", 404, "there is no pod several in namespace prod"),
        (
            "/exec?pod=several&container=nope",
            404,
            "container nope is not valid for pod several-gw out of: app, shell, first (init)",
        ),
        (
            "/exec?pod=several&container=first",
            404,
            "container first of pod several-gw is not running: it has exited with code 0; \
            see smolet describe several-gw",
        ),
        ("/exec?pod=crashes", 404, "is not running: it has exited with code 3"),
        ("/attach?pod=waits", 404, "container app of pod waits-gw is not running: it has not been started"),
        (
            "/exec?pod=done",
            404,
            "cannot exec into a container in a completed pod; current phase is Succeeded",
        ),
        ("/attach?pod=done", 404, "cannot attach a container in a completed pod; current phase is Succeeded"),
        (
            "/portforward?pod=done&port=80",
            404,
            "unable to forward port because pod is not running. Current status=Succeeded",
        ),
        ("/portforward?pod=waits&port=80", 404, "because pod is not running. Current status=Pending"),
        ("/exec?container=app", 400, "which pod?"),
    ] {
        let (got, said) = world.post(path, b"ls\0");
        assert!(got == code && said.contains(why), "{path}: {got} {said}");
    }
    assert_eq!(
        world.post("/exec?pod=several", b""),
        (400, "you must specify at least one command for the container\n".to_owned())
    );
    let long = vec![b'x'; STREAM_COMMAND_BYTES_MAX + 1];
    let (code, said) = world.post("/exec?pod=several", &long);
    assert!(code == 400 && said.contains("too long"), "{said}");
    assert_eq!(world.ask("/exec?pod=several"), (405, "only POST\n".to_owned()));
    assert_eq!(world.post("/pods", b""), (405, "only GET\n".to_owned()));
    assert_eq!(streams(&world), [""; 0]);
}

#[test]
fn a_slow_runtime_delays_no_other_request() {
    let world = several();
    world.fake.hang("Exec");
    let mut waits = UnixStream::connect(world.path("sock")).unwrap();
    waits
        .write_all(b"POST /exec?pod=several HTTP/1.1\r\nHost: smolet\r\nContent-Length: 3\r\n\r\nls\0")
        .unwrap();
    world.wait("the call", |world| world.fake.count("Exec") == 1);
    assert_eq!(world.ask("/healthz").0, 200);
    assert_eq!(world.ask("/describe?pod=several").0, 200);
    world.step();
    world.fake.heal("Exec");
    let mut answer = String::new();
    waits.read_to_string(&mut answer).unwrap();
    assert!(answer.contains("url http://127.0.0.1:1/exec/token"), "{answer}");
    world.fake.fail("Attach", 1, 12, "unknown method Attach");
    let (code, said) = world.post("/attach?pod=several", b"");
    assert_eq!((code, &*said), (404, "the runtime returned no streaming URL: unknown method Attach\n"));
}
