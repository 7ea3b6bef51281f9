//! The local socket, `--once`, and two agents in one directory.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use k8s_openapi::List;
use k8s_openapi::api::core::v1::Pod;
use smolet::limits::{SERVER_CONNECTION_TIME, SERVER_CONNECTIONS_MAX, SERVER_PART_BYTES};
use smolet::poison::pod_mark;

use crate::common::fake::Program;
use crate::world::{World, ask};

const APP: &str = "containers: [{name: app, image: 'busybox:1'}]";

#[test]
fn pods_are_a_pod_list_with_their_status() {
    let world = World::new();
    let (_, empty) = world.ask("/pods");
    assert!(serde_json::from_str::<List<Pod>>(&empty).unwrap().items.is_empty(), "{empty}");
    world.run("web", APP);
    let (code, body) = world.ask("/pods");
    let value: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!((code, &value["kind"], &value["apiVersion"]), (200, &"PodList".into(), &"v1".into()));
    let pod = &value["items"][0];
    assert_eq!(pod["metadata"]["uid"], world.uid("web"));
    assert_eq!(pod["metadata"]["name"], "web-gw");
    assert_eq!(pod["spec"]["containers"][0]["image"], "busybox:1");
    let status = &pod["status"];
    assert_eq!(status["phase"], "Running");
    assert_eq!(status["podIP"], world.sandbox("web", |sandbox| sandbox.ip.clone()));
    let container = &status["containerStatuses"][0];
    assert_eq!((&container["ready"], &container["restartCount"]), (&true.into(), &0.into()));
    assert!(container["containerID"].as_str().unwrap().ends_with("://container-0002"), "{container}");
    let kinds: Vec<_> = status["conditions"].as_array().unwrap().iter().map(|c| &c["type"]).collect();
    assert!(kinds.contains(&&"Ready".into()), "{kinds:?}");
    assert_eq!(world.ask("/healthz"), (200, "ok".to_owned()));
    assert_eq!(world.ask("/describe?pod=nobody").0, 404);
    assert_eq!(world.ask("/nothing").0, 404);
    let (_, others) = world.ask("/pods?namespace=kube-system");
    assert!(serde_json::from_str::<List<Pod>>(&others).unwrap().items.is_empty(), "{others}");
}

#[test]
fn the_socket_is_accessible_only_to_root_and_removed_with_the_agent() {
    use std::os::unix::fs::MetadataExt as _;

    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, socket};
    let world = World::new();
    let meta = std::fs::metadata(world.path("sock")).unwrap();
    assert!(meta.file_type().is_socket());
    assert_eq!(meta.permissions().mode() & 0o777, 0o600);
    assert_eq!(meta.uid(), std::fs::metadata(world.path("root")).unwrap().uid());
    world.stop();
    assert!(!world.path("sock").exists());
    // A file left by a dead agent is replaced. This one never listened: of a listener a program that another test starts has a copy
    // for a moment.
    let dead = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    bind(&dead, &SocketAddrUnix::new(world.path("sock").as_path()).unwrap()).unwrap();
    drop(dead);
    assert!(world.path("sock").exists());
    world.start();
    assert_eq!(world.ask("/healthz").0, 200);
}

#[test]
fn silent_connections_are_bounded_in_number_and_time() {
    let world = World::new();
    let connect = || UnixStream::connect(world.path("sock")).unwrap();
    // With all connections in use no other client is answered.
    world.silent(true);
    let mut idle: Vec<UnixStream> = (0..SERVER_CONNECTIONS_MAX).map(|_| connect()).collect();
    idle[0].write_all(b"GET /pods HTT").unwrap();
    world.settle();
    // One more waits in the kernel's queue, and is served when the idle ones have timed out.
    let late = connect();
    let asked = std::thread::spawn(move || ask(late, "/healthz"));
    world.pass(5);
    assert!(!asked.is_finished());
    world.leap(SERVER_CONNECTION_TIME.as_secs());
    assert_eq!(asked.join().unwrap(), (200, "ok".to_owned()));
    world.silent(false);
    world.run("web", APP);
}

#[test]
fn answers_carry_no_date() {
    // It would be the standard library's, which has 32 bits for it on some targets and panics after 2038.
    let world = World::new();
    let mut stream = UnixStream::connect(world.path("sock")).unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: smolet\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(
        answer.starts_with("HTTP/1.1 200 OK\r\n") && !answer.to_ascii_lowercase().contains("\ndate:"),
        "{answer}"
    );
}

#[test]
fn a_long_list_of_pods_comes_in_parts() {
    let world = World::without_agent();
    (0..30).for_each(|n| world.put(&format!("web{n:02}"), APP));
    world.start();
    world.until("all pods", |world| world.running().len() == 30);
    for (format, end) in [("json", "}\n"), ("yaml", "metadata: {}\n")] {
        let path = format!("/pods?output={format}");
        let mut stream = UnixStream::connect(world.path("sock")).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: smolet\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (_, mut rest) = answer.split_once("\r\n\r\n").unwrap();
        let (mut parts, mut whole) = (0, String::new());
        loop {
            let (size, chunk) = rest.split_once("\r\n").expect("the list is not cut off");
            let size = usize::from_str_radix(size, 16).unwrap();
            if size == 0 {
                break;
            }
            assert!(size < 2 * SERVER_PART_BYTES, "{size} bytes at once");
            whole += &chunk[..size];
            rest = &chunk[size + 2..];
            parts += 1;
        }
        assert!(parts > 2 && whole.ends_with(end), "{parts} parts: {whole}");
        assert_eq!(world.ask(&path).1, whole);
        if format == "json" {
            let names = serde_json::from_str::<List<Pod>>(&whole).unwrap().items.into_iter();
            let names: Vec<_> = names.map(|pod| pod.metadata.name.unwrap()).collect();
            assert_eq!(names, (0..30).map(|n| format!("web{n:02}-gw")).collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_second_agent_in_the_same_state_directory_is_refused() {
    let world = World::new();
    world.run("web", APP);
    world.pass(2);
    world.fake.clear_calls();
    let mut config = world.config();
    config.socket = world.path("sock2");
    let why = world.second(config).unwrap_err();
    assert!(why.contains("another smolet uses it"), "{why}");
    // The same socket with another directory.
    let mut config = world.config();
    config.root_dir = world.path("root2");
    let why = world.second(config).unwrap_err();
    assert!(why.contains("another agent answers there"), "{why}");
    assert_eq!(world.actions(), [""; 0]);
    assert_eq!(world.ask("/healthz").0, 200);
}

#[test]
fn once_reports_the_result_of_every_pod() {
    let world = World::without_agent();
    world.fake.program("job", Program::exits(0, Duration::from_secs(3)));
    world.put("web", APP);
    world.put("batch", "restartPolicy: Never, containers: [{name: job, image: 'busybox:1'}]");
    let (lines, all_well) = world.once();
    assert!(all_well, "{lines:?}");
    assert_eq!(lines.len(), 2);
    assert!(lines[0].starts_with("pod default/batch-gw: ") || lines[0].contains("batch-gw"), "{lines:?}");
    assert!(lines[1].ends_with(": Running"), "{lines:?}");
    assert!(world.running().contains(&"web/app#0".to_owned()), "containers keep running");
    assert!(!world.path("sock").exists());
}

#[test]
fn once_fails_with_the_reason_of_a_pod_that_crashes() {
    let world = World::without_agent();
    world.fake.program("app", Program::exits(1, Duration::ZERO));
    world.put("web", APP);
    let (lines, all_well) = world.once();
    assert!(!all_well && lines.len() == 1 && lines[0].contains("CrashLoopBackOff"), "{lines:?}");

    let world = World::without_agent();
    world.fake.missing_image("nothere:1");
    world.put("web", "containers: [{name: app, image: 'nothere:1'}]");
    let (lines, all_well) = world.once();
    assert!(!all_well && lines[0].contains("ErrImagePull") && lines[0].contains("nothere:1"), "{lines:?}");

    // It runs for a moment first, which is not enough.
    for after in [Duration::ZERO, Duration::from_millis(900)] {
        let world = World::without_agent();
        world.fake.program("app", Program::exits(2, after));
        world.put("web", &format!("restartPolicy: Never, {APP}"));
        let (lines, all_well) = world.once();
        assert!(!all_well && lines[0].contains("Failed"), "{lines:?}");
    }
}

#[test]
fn once_fails_on_an_invalid_manifest_and_runs_the_others() {
    let world = World::without_agent();
    world.put("web", APP);
    world.put_text("broken", "kind: Pod\n");
    let (lines, all_well) = world.once();
    assert!(!all_well);
    assert!(lines.iter().any(|line| line.ends_with(": Running")), "{lines:?}");
    assert!(lines.iter().any(|line| line.contains("broken.yaml")), "{lines:?}");
}

#[test]
fn once_reports_a_pod_that_is_set_aside() {
    let world = World::new();
    world.run("web", APP);
    let annotations = world.pod("web").unwrap().metadata.annotations.unwrap();
    let mark = pod_mark(&world.uid("web"), &annotations["kubernetes.io/config.hash"]);
    world.stop();
    let line = format!("{} {mark}\n", env!("CARGO_PKG_VERSION"));
    std::fs::write(world.path("root/panics"), line.repeat(2)).unwrap();
    let (lines, all_well) = world.once();
    assert!(!all_well && lines[0].contains("is set aside: handling it ended the agent 2 times"), "{lines:?}");
}

#[test]
fn once_times_out_for_a_pod_that_does_not_run() {
    let world = World::without_agent();
    world.fake.hang("RunPodSandbox");
    world.put("web", APP);
    world.put("other", APP);
    let (lines, all_well) = world.once();
    assert!(!all_well && lines.len() == 2, "{lines:?}");
    assert!(lines.iter().all(|line| line.ends_with("does not run yet")), "{lines:?}");
}

#[test]
fn without_a_runtime_the_commands_report_why_there_are_no_pods() {
    let world = World::without_agent();
    world.put("web", APP);
    world.fake.refuse_connections();
    world.start_in_trouble();
    world.wait("the reason", |world| {
        let (code, body) = world.ask("/pods?output=table");
        code == 404 && body.contains("runtime socket")
    });
    assert_eq!(world.ask("/healthz"), (200, "ok".to_owned()));
    world.fake.accept_connections();
    world.until("the pod", |world| world.ask("/pods").0 == 200 && world.phase("web") == "Running");
}
