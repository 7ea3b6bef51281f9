//! Memory under attack: the whole agent, as a process, stays within its promise of 16 MiB whatever manifests, the
//! runtime, containers and local clients do, and everything else goes on meanwhile.
//!
//! The figure is `VmHWM` of the process: the most that was ever resident, the program's own text included. The promise is
//! the release build's, which `SMOLET_BIN` names (`make attack`): a debug build's text and stacks are several times its.

#![allow(
    missing_docs,
    unreachable_pub,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::pedantic
)]

#[path = "../common/mod.rs"]
mod common;

mod agent;
// Where the tests' API server is.
#[cfg(all(feature = "tls", target_arch = "x86_64"))]
mod burst;
#[cfg(all(feature = "tls", target_arch = "x86_64"))]
mod cluster;
mod files;
mod silence;
#[cfg(all(feature = "tls", target_arch = "x86_64"))]
#[path = "../cluster/supervisor.rs"]
#[allow(dead_code, reason = "a part of it is used here")]
mod supervisor;

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::ops::RangeInclusive;
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use agent::{Agent, CALM, WATCHED, pod};
use common::fake::{Crowd, Exec, Fake};
use prost::Message as _;
use smolet::cri::{EventService, RuntimeEventKind};
use smolet::limits;
use smolet::proto::runtime::v1 as cri;

/// Like [`pod`], with `more` in its metadata.
fn pod_with_metadata(name: &str, more: &str) -> String {
    pod(name, "").replace(&format!("{{name: {name}}}"), &format!("{{name: {name}, {more}}}"))
}

// ---- manifests -----------------------------------------------------------------------------------------------

#[test]
fn ten_thousand_manifests() {
    let mut agent = Agent::start();
    // In one step, as an unpacked archive or a bad mount would bring them.
    for number in 0..10_000 {
        fs::write(agent.manifest(&format!("z-{number}")), pod(&format!("z-{number}"), "")).unwrap();
    }
    agent.wait("a word on the directory", |agent| agent.log().contains("has more than 4096 entries"));
    assert!(agent.fake.state().running().contains(&"other-1-gw/app#0".to_owned()), "what ran runs on");
    assert!(agent.ask("/pods?output=table").contains("other-1-gw"));
    for number in 0..10_000 {
        fs::remove_file(agent.manifest(&format!("z-{number}"))).unwrap();
    }
    agent.withstood("10,000 manifests");
}

#[test]
fn four_thousand_manifests_that_are_all_read_by_name() {
    let mut agent = Agent::start();
    for number in 0..4_000 {
        fs::write(agent.manifest(&format!("z-{number:04}")), pod(&format!("z-{number}"), "")).unwrap();
    }
    let all = limits::PODS_MAX;
    agent.wait("as many pods as a node may have", |agent| agent.fake.state().running().len() == all);
    assert!(agent.ask("/pods").contains("z-0-gw"));
    for number in 0..4_000 {
        fs::remove_file(agent.manifest(&format!("z-{number:04}"))).unwrap();
    }
    agent.wait("their end", |agent| agent.fake.state().running().len() == 1);
    agent.withstood("4,000 manifests, 110 pods");
}

#[test]
fn manifests_replaced_faster_than_pods_end() {
    let mut agent = Agent::start();
    agent.fake.hang_on("StopPodSandbox", "z-");
    for round in 0..12 {
        let name = |number: usize| format!("z-{round}-{number}");
        for number in 0..limits::PODS_MAX {
            agent.apply(&format!("z-{number}"), pod(&name(number), ""));
        }
        // Those of the round before, which may still wait for room, are not wanted any more.
        let told = match round {
            0 => format!("pod default/{}-gw: Started", name(5)),
            _ => format!("pod default/z-{}-5-gw: its manifest is gone", round - 1),
        };
        agent.wait("the next ones", |agent| agent.log().contains(&told));
    }
    agent.fake.heal("StopPodSandbox");
    let last = |name: &String| name.starts_with("z-11-");
    // One of the pods that a node may have is the good one.
    agent.wait("the last ones, which had to wait", |agent| {
        agent.fake.state().running().into_iter().filter(last).count() == limits::PODS_MAX - 1
    });
    for number in 0..limits::PODS_MAX {
        fs::remove_file(agent.manifest(&format!("z-{number}"))).unwrap();
    }
    agent.wait("their end", |agent| agent.fake.state().running().len() == 1);
    agent.withstood("1,320 pods, 110 at a time");
}

#[test]
fn a_manifest_of_a_gigabyte() {
    let mut agent = Agent::start();
    File::create(agent.manifest("giant")).and_then(|file| file.set_len(1 << 30)).unwrap();
    agent.wait("a word on it", |agent| agent.log().contains("is too large: 1073741824 bytes"));
    agent.everything_goes_on();
    // The same behind a manifest's usual beginning, and growing while it is read.
    let file = File::create(agent.manifest("growing")).unwrap();
    for megabyte in 0..64_u64 {
        file.write_all_at(pod("growing", "").as_bytes(), megabyte << 20).unwrap();
        std::thread::sleep(Duration::from_millis(20));
    }
    agent.withstood("a manifest of a gigabyte");
}

#[test]
fn annotations_of_megabytes() {
    let mut agent = Agent::start();
    // More than a manifest may have, more than annotations may have, and just what they may have.
    for (name, bytes) in [("four", 4 << 20), ("most", 1_000_000), ("over", 262_144)] {
        let annotation = format!("annotations: {{a: \"{}\"}}", "x".repeat(bytes));
        agent.apply(name, pod_with_metadata(name, &annotation));
    }
    for number in 0..20 {
        let name = format!("fits-{number}");
        let annotation = format!("annotations: {{a: \"{}\"}}", "x".repeat(250_000));
        agent.apply(&name, pod_with_metadata(&name, &annotation));
    }
    agent.wait("a word on each", |agent| {
        let log = agent.log();
        ["four.yaml", "most.yaml", "over.yaml"].iter().all(|file| log.contains(file))
    });
    agent.wait("those that fit", |agent| agent.fake.state().running().len() >= 6);
    agent.withstood("annotations of megabytes");
}

#[test]
fn directories_without_end_in_a_volume() {
    let mut agent = Agent::start();
    let volume = |agent: &Agent| {
        let pods = fs::read_dir(agent.path("root/pods")).into_iter().flatten().flatten();
        let mut volumes = pods.map(|pod| pod.path().join("volumes/kubernetes.io~empty-dir/v"));
        volumes.find(|volume| volume.exists())
    };
    let spec = "  volumes: [{name: v, emptyDir: {sizeLimit: 1Mi}}]\n";
    let mounts = "volumeMounts: [{name: v, mountPath: /v}]";
    agent.apply("deep", format!("{}{spec}", pod("deep", mounts)));
    agent.wait("its volume", |agent| volume(agent).is_some());
    agent.wait("the pod", |agent| agent.fake.state().running().contains(&"deep-gw/app#0".to_owned()));
    let path = volume(&agent).expect("there it was");
    let pod_dir = path.ancestors().nth(3).expect("above the volumes").to_owned();
    let mut dir = File::open(&path).expect("the volume");
    for _ in 0..21_000 {
        rustix::fs::mkdirat(&dir, "d", rustix::fs::Mode::RWXU).expect("one level more");
        let below = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
        dir = rustix::fs::openat(&dir, "d", below, rustix::fs::Mode::empty()).expect("made").into();
    }
    drop(dir);
    // With what the directories themselves take it has outgrown its limit long before; ended for that or not, it goes.
    fs::remove_file(agent.manifest("deep")).expect("it was there");
    agent.wait("its end", |_| !pod_dir.exists());
    agent.withstood("21,000 directories within each other");
}

#[test]
fn many_valid_manifests_as_large_as_they_may_be() {
    let mut agent = Agent::start();
    let env = |n: usize| format!("{{name: A{n}, value: \"{}\"}},", "v".repeat(50));
    let env: String = (0..1_000).map(env).collect();
    for number in 0..limits::PODS_MAX {
        let name = format!("huge-{number}");
        agent.apply(&name, pod(&name, &format!("env: [{env}]")));
    }
    agent.wait("a word on those that do not fit", |agent| agent.log().contains("does not fit"));
    agent.wait("those that fit", |agent| agent.fake.state().running().len() > 2);
    agent.ask("/pods");
    for number in 0..limits::PODS_MAX {
        fs::remove_file(agent.manifest(&format!("huge-{number}"))).unwrap();
    }
    agent.wait("their end", |agent| agent.fake.state().running().len() == 1);
    agent.withstood("110 valid manifests of 70 kB");
}

#[test]
fn objects_as_large_as_they_may_be() {
    let mut agent = Agent::start();
    let object = |name: &str, keys: usize, bytes: usize, letter: &str| {
        let data: String = (0..keys).map(|key| format!("{{k{key}: {}}}", letter.repeat(bytes))).collect();
        let data = data.replace("}{", ", ");
        format!("{{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}}}, data: {data}}}\n")
    };
    let large = |letter: &str| object("large", 10, 100_000, letter);
    agent.apply("large", large("x"));
    agent.apply("variables", object("variables", 2, 120_000, "x"));
    let spec = |from: &str| {
        format!(
            "envFrom: [{{configMapRef: {{name: {from}}}}}], volumeMounts: [{{name: v, mountPath: /v}}]}}\n  \
             volumes: [{{name: v, configMap: {{name: large}}}}] #"
        )
    };
    for number in 0..50 {
        for from in ["variables", "large"] {
            let name = format!("{from}-{number}");
            agent.apply(&name, pod(&name, &spec(from)));
        }
    }
    agent.wait("those whose variables fit", |agent| agent.fake.state().running().len() == 51);
    agent
        .wait("a word on the others", |agent| agent.log().contains("of at most 262144; mount what is large"));
    let holds = |agent: &Agent, letter: u8| {
        let pods = fs::read_dir(agent.path("root/pods")).unwrap().flatten();
        let file = |pod: fs::DirEntry| {
            fs::read(pod.path().join("volumes/kubernetes.io~configmap/v/k9")).unwrap_or_default()
        };
        pods.map(file).filter(|bytes| bytes.first() == Some(&letter)).count()
    };
    agent.wait("the volumes", |agent| holds(agent, b'x') == 100);
    agent.apply("large", large("y"));
    agent.wait("the files of those that run follow", |agent| holds(agent, b'y') >= 50);
    for number in 0..50 {
        for from in ["variables", "large"] {
            fs::remove_file(agent.manifest(&format!("{from}-{number}"))).unwrap();
        }
    }
    agent.wait("their end", |agent| agent.fake.state().running().len() == 1);
    agent.withstood("a ConfigMap of a megabyte in 100 volumes and 50 containers' variables");
}

// ---- the runtime ---------------------------------------------------------------------------------------------

#[test]
fn five_thousand_foreign_containers() {
    for streams_lists in [false, true] {
        foreign_containers(streams_lists);
    }
}

fn foreign_containers(streams_lists: bool) {
    let fake = Fake::start_on_real_time();
    fake.state().streams_lists = streams_lists;
    fake.crowd(Crowd { sandboxes: 5_000, containers: 5_000, label_bytes: 20_000, images: 0 });
    let mut agent = Agent::beside(fake);
    let (before, sent) = (agent.fake.state().relists, agent.fake.bytes_sent());
    agent.wait("three looks at them", |agent| agent.fake.state().relists >= before + 3);
    // Two lists of 100 MB a look; of the third one some may still be on its way.
    let sent = agent.fake.bytes_sent() - sent;
    assert!(sent >= 2 * 200_000_000, "the agent reads to the end: {sent} bytes in three looks");
    // Fewer and larger: each at the size an item may have, and over it.
    for label_bytes in [200_000, limits::CRI_ITEM_BYTES_MAX + 1] {
        agent.fake.crowd(Crowd { sandboxes: 200, containers: 200, label_bytes, images: 0 });
        let before = agent.fake.state().relists;
        agent.wait("a look at them", |agent| agent.fake.state().relists >= before + 2);
        // Each of these clients has the runtime list what all of them use, twice.
        let clients: Vec<UnixStream> =
            (0..limits::SERVER_CONNECTIONS_MAX).map(|_| agent.request("/top/pods")).collect();
        std::thread::sleep(Duration::from_secs(1));
        drop(clients);
        let table = agent.ask("/top/pods?columns=0");
        assert!(table.contains("\tother-1-gw\t25"), "{table}");
        agent.everything_goes_on();
    }
    let what = if streams_lists { "streamed lists" } else { "lists" };
    agent.withstood(&format!("5,000 foreign sandboxes and containers, {what} of 100 MB"));
}

#[test]
fn five_thousand_images_on_a_full_disk() {
    let fake = Fake::start_on_real_time();
    fake.fail_on("PullImage", "full", u32::MAX, 2, "write /layer: no space left on device");
    fake.state().image_mountpoint = Some("/".to_owned());
    fake.crowd(Crowd { containers: 5_000, images: 5_000, ..Crowd::default() });
    let mut agent = Agent::with(fake, WATCHED, &[]);
    agent.apply("full", pod("full", "").replace("image: x", "image: 'full:1'"));
    agent.wait("a look at too much", |agent| {
        agent.log().contains("image names of the runtime's containers exceed 1.0 MiB")
    });
    // As much as is just looked at.
    agent.fake.crowd(Crowd { containers: 4_000, images: 5_000, ..Crowd::default() });
    let before = agent.fake.count("ImageFsInfo");
    agent.wait("a look at all of it", |agent| agent.fake.count("ImageFsInfo") > before);
    agent.withstood("5,000 images and as many containers of them");
}

#[test]
fn giant_error_messages() {
    let mut agent = Agent::start();
    for (number, length) in [4_000, 60_000, 1_000_000, 30_000_000].into_iter().enumerate() {
        let methods = ["RunPodSandbox", "CreateContainer", "ListContainers"];
        for method in methods {
            agent.fake.fail(method, 1, 2, &"no way! ".repeat(length / 8));
        }
        for name in ["a", "b"].map(|letter| format!("bad-{number}{letter}")) {
            agent.apply(&name, pod(&name, ""));
        }
        agent.wait("the errors", |agent| methods.iter().all(|method| agent.fake.state().healthy(method)));
    }
    agent.withstood("error messages of 30 MB");
}

#[test]
fn floods_of_events() {
    for service in [EventService::Cri, EventService::Containerd] {
        flood_of_events(service);
    }
}

fn flood_of_events(service: EventService) {
    let fake = Fake::start_on_real_time();
    fake.tell_events(service);
    let mut agent = Agent::beside(fake);
    let stream = |agent: &mut Agent| {
        agent.wait("a stream of events", |agent| agent.fake.event_streams() == 1);
    };
    stream(&mut agent);
    let ours = agent.fake.state().container("other-1-gw/app").unwrap().id.clone();
    let strange = |number: usize| {
        let kind = [RuntimeEventKind::Started, RuntimeEventKind::Exited][number % 2];
        // Ids as long as they may be, in messages as small as they may be.
        let length = if number.is_multiple_of(100) { limits::CRI_ID_BYTES_MAX } else { 16 };
        (kind, format!("{number:0>length$}"), format!("pod-{number}"))
    };
    let lies = |number: usize| {
        let kinds = [RuntimeEventKind::Exited, RuntimeEventKind::Started, RuntimeEventKind::Deleted];
        (kinds[number % 3], ours.clone(), String::new())
    };
    agent.fake.flood((0..200_000).map(strange));
    agent.everything_goes_on();
    stream(&mut agent);
    agent.fake.flood((0..200_000).map(lies));
    agent.everything_goes_on();
    stream(&mut agent);
    // As large as a message may be, full of values that are small on the wire.
    let labels = |number: usize| (format!("{number:06}"), String::new());
    let sandbox = cri::PodSandboxStatus {
        metadata: Some(cri::PodSandboxMetadata { uid: "other-1".into(), ..Default::default() }),
        labels: (0..100_000).map(labels).collect(),
        ..Default::default()
    };
    let large = cri::ContainerEventResponse {
        container_id: ours.clone(),
        container_event_type: cri::ContainerEventType::ContainerStoppedEvent.into(),
        pod_sandbox_status: Some(sandbox),
        ..Default::default()
    };
    let large = large.encode_to_vec();
    assert!((990_000..limits::GRPC_ANSWER_BYTES_MAX).contains(&large.len()), "{}", large.len());
    agent.fake.flood_with((0..100).map(|_| large.clone()));
    agent.wait("their end", |agent| agent.fake.events_waiting() == 0);
    agent.everything_goes_on();
    // And larger, which ends the stream.
    agent.fake.flood_with((0..4).map(|_| vec![0; 100 << 20]));
    agent.wait("another stream", |agent| agent.fake.events_waiting() == 0 && agent.fake.event_streams() == 1);
    agent.withstood(&format!("floods of {service} events"));
}

// ---- containers ----------------------------------------------------------------------------------------------

#[test]
fn commands_of_probes_and_hooks_that_print_megabytes() {
    let mut agent = Agent::start();
    let much = || [b"\xff\0\x1b \xc3\xa4".as_slice(), b"all is lost. "].concat().repeat(50_000);
    agent.fake.exec("talk", Exec { code: 1, stdout: much(), stderr: much() });
    let probe = |kind: &str| {
        format!("{kind}Probe: {{exec: {{command: [talk]}}, periodSeconds: 1, failureThreshold: 1000}}")
    };
    for number in 0..30 {
        let probes = format!("{}, {}", probe("readiness"), probe("liveness"));
        agent.apply(&format!("talks-{number}"), pod(&format!("talks-{number}"), &probes));
    }
    agent.apply("hook", pod("hook", "lifecycle: {postStart: {exec: {command: [talk]}}}"));
    agent.wait("their answers", |agent| {
        let calls = agent.fake.calls();
        calls.iter().filter(|call| call.starts_with("ExecSync")).count() >= 300
    });
    agent.wait("what they said", |agent| {
        agent.ask("/describe?pod=talks-7").contains("Readiness probe failed")
            && agent.ask("/describe?pod=hook").contains("PostStartHook of app failed")
    });
    for what in ["/events", "/events/next?after=0", "/events/next?after=1000000"] {
        let clients: Vec<UnixStream> =
            (0..3 * limits::SERVER_CONNECTIONS_MAX).map(|_| agent.request(what)).collect();
        std::thread::sleep(Duration::from_secs(1));
        drop(clients);
    }
    assert!(agent.ask("/events?pod=talks-7").contains("Readiness probe failed"));
    agent.withstood("60 probes and a hook whose commands print 2 MB");
}

/// Writes a hundred megabytes and a last line behind what is there.
fn giant(path: &str, piece: &[u8]) {
    let mut file =
        File::options().create(true).append(true).open(path).expect("the agent made its directory");
    let block = piece.repeat((1 << 20) / piece.len());
    (0..100).for_each(|_| file.write_all(&block).unwrap());
    file.write_all(b"\n2026-01-01T00:00:00Z stderr F the very end\n").unwrap();
}

/// Where the container's last words and its log are.
fn outputs(agent: &Agent, name: &str) -> (String, String) {
    let state = agent.fake.state();
    let container = state.container(&format!("{name}-gw/app")).unwrap();
    let mount = container.config.mounts.iter().find(|m| m.container_path == "/dev/termination-log");
    let folder = state.sandbox(&format!("{name}-gw")).unwrap().config.log_directory.clone();
    (mount.unwrap().host_path.clone(), format!("{folder}/{}", container.config.log_path))
}

#[test]
fn termination_messages_and_logs_of_a_hundred_megabytes() {
    // Not rotated: the log is read as it is.
    let flags = ["--container-log-max-size", "1Gi"];
    let mut agent = Agent::with(Fake::start_on_real_time(), CALM, &flags);
    for (name, policy) in
        [("file", "File"), ("logs", "FallbackToLogsOnError"), ("line", "FallbackToLogsOnError")]
    {
        agent.apply(name, pod(name, &format!("terminationMessagePolicy: {policy}")));
        let app = format!("{name}-gw/app");
        let running = format!("{app}#0");
        agent.wait("the pod", |agent| agent.fake.state().running().contains(&running));
        let (written, log) = outputs(&agent, name);
        match name {
            "file" => giant(&written, b"all is lost. "),
            "logs" => giant(&log, b"2026-01-01T00:00:00Z stderr F a line of the log\n"),
            _ => giant(&log, b"one line without an end "),
        }
        agent.fake.exit(&app, 1, "", "");
        agent.wait("its last word", |agent| agent.ask("/pods").contains("the very end"));
        fs::remove_file(&written).unwrap();
        let _ = fs::remove_file(&log);
        fs::remove_file(agent.manifest(name)).unwrap();
    }
    agent.withstood("termination messages and logs of 100 MB");
}

#[test]
fn logs_of_a_hundred_megabytes_are_rotated() {
    let fake = Fake::start_on_real_time();
    fake.state().writes_logs = true;
    let mut agent = Agent::beside(fake);
    agent.apply("logs", pod("logs", ""));
    agent.wait("the pod", |agent| agent.fake.state().running().contains(&"logs-gw/app#0".to_owned()));
    let (_, log) = outputs(&agent, "logs");
    let folder = std::path::Path::new(&log).parent().unwrap().to_owned();
    for (round, piece) in
        [&b"2026-01-01T00:00:00Z stderr F a line of the log\n"[..], b"no end "].iter().enumerate()
    {
        giant(&log, piece);
        agent.wait("its rotation", |_| {
            let names = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name());
            let names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
            let packed = names.iter().filter(|name| name.ends_with(".gz")).count();
            names.len() == round + 2 && packed == round
        });
    }
    agent.withstood("logs of 100 MB that are rotated");
}

// ---- the local socket ----------------------------------------------------------------------------------------

#[test]
fn hostile_clients() {
    let mut agent = Agent::start();
    // Huge heads of every kind, each refused or read within its bound; none is answered with success.
    let long = "x".repeat(100_000);
    let many: String = (0..20_000).map(|number| format!("h{number}: 1\r\n")).collect();
    for (what, head) in [
        ("a long path", format!("GET /{long} HTTP/1.1\r\n\r\n")),
        ("a long header", format!("GET /pods HTTP/1.1\r\na: {long}\r\n\r\n")),
        ("many headers", format!("GET /pods HTTP/1.1\r\n{many}\r\n")),
        ("no end", format!("GET /pods HTTP/1.1\r\na: {long}")),
        ("no HTTP", "\0\u{1}\u{2}\r\n\r\n".to_owned()),
        ("HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned()),
        (
            "a huge chunk",
            format!("POST /pods HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nfffffffff\r\n{long}"),
        ),
    ] {
        for _ in 0..20 {
            let mut stream = agent.socket();
            // The agent may hang up before all is written.
            let _ = stream.write_all(head.as_bytes());
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            assert!(!answer.starts_with(b"HTTP/1.1 200"), "{what}: {}", String::from_utf8_lossy(&answer));
            assert!(answer.len() < 4096, "{what}");
        }
    }
    // Hundreds that say half of what they want, and go once they have said it all. Full: the others wait in the kernel's
    // queue until the first ones' time is up or they go.
    let idle: Vec<_> = (0..limits::SERVER_CONNECTIONS_MAX + 100).map(|_| agent.socket()).collect();
    for stream in &idle {
        let mut stream = stream;
        let _ = stream.write_all(b"GET /pods HTTP/1.1\r\n");
    }
    let name = "meanwhile";
    agent.apply(name, pod(name, ""));
    agent.wait("a pod meanwhile", |agent| {
        agent.fake.state().running().contains(&"meanwhile-gw/app#0".to_owned())
    });
    for stream in &idle {
        let mut stream = stream;
        let _ = stream.write_all(b"host: x\r\n\r\n");
    }
    drop(idle);
    agent.withstood("hostile clients");
}

#[test]
fn readers_that_never_read() {
    let mut agent = Agent::start();
    // As many pods as a node may have, as large as all of them may be together; the last of them is so large that one
    // connection at a time may hold its text.
    (0..=FULL_LAST).for_each(|number| apply_full(&agent, number));
    agent.wait("as many pods as a node may have", all_run);
    agent.wait("the socket's word of them", |agent| {
        agent.ask("/pods?output=table").matches("Running").count() == limits::PODS_MAX
    });
    let all = limits::SERVER_CONNECTIONS_MAX;
    unread_answers(&mut agent, "/pods", all, 0..=FULL_LAST, "}\n");
    unread_answers(&mut agent, "/pods?output=yaml", all, 0..=FULL_LAST, "metadata: {}\n");
    let describe = format!("/describe?pod={}", full_name(FULL_LAST));
    unread_answers(&mut agent, &describe, 1, FULL_LAST..=FULL_LAST, "\n");
    fs::remove_file(agent.manifest(&full_name(FULL_LAST))).unwrap();
    agent.wait("room for a further pod", |agent| !all_run(agent));
    agent.withstood("readers that never read, 110 full pods");
}

#[test]
fn text_that_grows_when_it_is_escaped() {
    let mut agent = Agent::start();
    // Six times as long in JSON.
    let (bell, mark) = ("\\a".repeat(450_000), "\\a".repeat(250_000));
    agent.apply("args", pod("args", &format!("args: [\"{bell}\"]")));
    agent.apply("note", pod_with_metadata("note", &format!("annotations: {{a: \"{mark}\"}}")));
    agent.wait("the pods", |agent| agent.fake.state().running().len() == 3);
    for what in ["/pods", "/pods?output=yaml", "/describe?pod=args", "/describe?pod=note"] {
        assert!(agent.ask(what).len() > 1_000_000, "{what}");
        let clients: Vec<UnixStream> =
            (0..3 * limits::SERVER_CONNECTIONS_MAX).map(|_| agent.request(what)).collect();
        std::thread::sleep(Duration::from_secs(1));
        drop(clients);
        agent.wait("health", |agent| agent.ask("/healthz").ends_with("ok"));
    }
    agent.withstood("text that grows when it is escaped");
}

/// The last of the full pods; beside them there is the good one.
const FULL_LAST: usize = limits::PODS_MAX - 2;

fn full_name(number: usize) -> String {
    format!("full-{number:03}")
}

/// What an answer has once of each full pod.
fn full_mark(number: usize) -> String {
    format!("<{number:03}>")
}

fn apply_full(agent: &Agent, number: usize) {
    let name = full_name(number);
    let note = full_mark(number) + &"x".repeat(if number == FULL_LAST { 250_000 } else { 18_000 });
    agent.apply(&name, pod_with_metadata(&name, &format!("annotations: {{a: \"{note}\"}}")));
}

fn all_run(agent: &Agent) -> bool {
    agent.fake.state().running().len() == limits::PODS_MAX
}

/// More clients ask for the same than are served at once. Of `at_once` the answer has begun and cannot go on; then two of
/// them read slowly, and have all of these pods and this `end`.
fn unread_answers(agent: &mut Agent, what: &str, at_once: usize, pods: RangeInclusive<usize>, end: &str) {
    let bytes = agent.ask(what).len();
    let mut clients: Vec<UnixStream> =
        (0..3 * limits::SERVER_CONNECTIONS_MAX).map(|_| agent.request(what)).collect();
    // What the kernel holds for a reader. The rest is the agent's trouble.
    let unread = |client: &UnixStream| rustix::io::ioctl_fionread(client).unwrap() as usize;
    let begun = |clients: &[UnixStream]| clients.iter().map(unread).filter(|n| *n > 0).collect::<Vec<_>>();
    agent.wait("answers that begin", |_| begun(&clients).len() >= at_once);
    std::thread::sleep(Duration::from_secs(1));
    let held = begun(&clients);
    assert_eq!(held.len(), at_once, "{what}: {held:?} unread of {bytes} bytes each");
    assert!(held.iter().all(|unread| *unread < bytes), "{what}: {held:?} unread of {bytes} bytes each");

    clients.sort_by_key(|client| std::cmp::Reverse(unread(client)));
    let slow: Vec<UnixStream> = clients.drain(..at_once.min(2)).collect();
    let slow: Vec<_> = slow.into_iter().map(|client| std::thread::spawn(|| read_slowly(client))).collect();
    // One of the pods goes and comes back meanwhile.
    fs::remove_file(agent.manifest(&full_name(0))).unwrap();
    agent.wait("the end of a pod meanwhile", |agent| !all_run(agent));
    apply_full(agent, 0);
    agent.wait("a pod meanwhile", all_run);
    for reader in slow {
        let answer = reader.join().unwrap();
        for number in pods.clone().filter(|number| *number != 0) {
            let times = answer.matches(&full_mark(number)).count();
            assert_eq!(times, 1, "{what}: {} in {} bytes", full_name(number), answer.len());
        }
        assert!(answer.ends_with(end), "{what} is cut off after {} bytes", answer.len());
    }
    // Those that waited for a place, or for their turn: more than that when others' time is up by now.
    agent.wait("the next ones", |_| begun(&clients).len() >= at_once);
    drop(clients);
    assert!(agent.ask("/healthz").ends_with("ok"), "{what}");
}

fn read_slowly(mut client: UnixStream) -> String {
    let (mut answer, mut piece) = (Vec::new(), vec![0; 16 * limits::KIB]);
    loop {
        match client.read(&mut piece).expect("the answer goes on") {
            0 => return String::from_utf8(answer).expect("text"),
            bytes => answer.extend_from_slice(&piece[..bytes]),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
