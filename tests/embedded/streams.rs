//! `exec`, `attach` and `port-forward` to real containers through the streaming server, and the CRI on its socket.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::time::Duration;

use smol::channel::{Receiver, bounded};
use smolet::clock::SystemClock;
use smolet::cri::{Runtime as _, StreamRequest};
use smolet::cri_server::CriServer;
use smolet::grpc::{Channel, Code, GrpcError};
use smolet::limits::CRI_CONNECTIONS_MAX;
use smolet::proto::runtime::v1 as cri;
use smolet::runtime::Embedded;
use smolet::streaming::command::{self, Ending, Size, Streams};
use smolet::streaming::upgrade::{COMMAND_PROTOCOL, FORWARD_PROTOCOL, connect};
use smolet::streaming::{Connection, forward};

use crate::common::write_program;

use super::machine::{
    Machine, OCI_RUNTIMES, PATIENCE, create, exec, exited, remove_sandbox, run_container, run_sandbox,
    script, start, stop_sandbox,
};

/// Opens the runtime with its streaming server.
pub async fn open(machine: &Machine) -> Embedded {
    let runtime = machine.open().await;
    let serve = runtime.serve_streams(&machine.executor).unwrap();
    machine.executor.spawn("streaming server", serve).detach();
    runtime
}

pub async fn of_url(runtime: &Embedded, request: StreamRequest) -> Connection {
    let protocol = match &request {
        StreamRequest::PortForward(_) => FORWARD_PROTOCOL,
        StreamRequest::Exec(_) | StreamRequest::Attach(_) => COMMAND_PROTOCOL,
    };
    connect(&runtime.streaming_url(request).await.unwrap(), protocol).await.unwrap()
}

fn variable(text: &str) -> cri::KeyValue {
    let (key, value) = text.split_once('=').unwrap();
    cri::KeyValue { key: key.into(), value: value.into() }
}

pub struct Ran {
    pub ending: Result<Ending, String>,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

/// Moves the streams with that input; an input that is left open ends with the command.
pub async fn run(connection: Connection, input: Option<(Vec<u8>, bool)>, size: Option<Size>) -> Ran {
    let (stdout, out) = bounded(4);
    let (stderr, err) = bounded(4);
    let (to_stdin, stdin) = bounded(4);
    let (to_sizes, sizes) = bounded(1);
    let streams = Streams {
        stdin: input.is_some().then_some(stdin),
        stdout,
        stderr: size.is_none().then_some(stderr),
        sizes: size.is_some().then_some(sizes),
    };
    let all = |of: Receiver<Vec<u8>>| async move {
        let mut all = Vec::new();
        while let Ok(bytes) = of.recv().await {
            all.extend(bytes);
        }
        all
    };
    let feed = async {
        if let Some(size) = size {
            to_sizes.send(size).await.unwrap();
        }
        if let Some((bytes, ends)) = input {
            for piece in bytes.chunks(32 * 1024) {
                let _ = to_stdin.send(piece.to_vec()).await;
            }
            if ends {
                drop(to_stdin);
                return None;
            }
        }
        Some(to_stdin)
    };
    let outputs = smol::future::zip(all(out), all(err));
    let ((ending, _stdin), (stdout, stderr)) =
        smol::future::zip(smol::future::zip(command::run(connection, streams), feed), outputs).await;
    Ran { ending, stdout, stderr }
}

pub fn command(id: &str, script: &str, stdin: bool, tty: bool) -> StreamRequest {
    let cmd = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
    StreamRequest::Exec(cri::ExecRequest {
        container_id: id.into(),
        cmd,
        tty,
        stdin,
        stdout: true,
        stderr: !tty,
    })
}

#[test]
fn commands_are_executed_with_their_streams() {
    OCI_RUNTIMES.into_iter().for_each(stream_commands);
}

fn stream_commands(oci_runtime: &str) {
    let machine = Machine::with_oci_runtime(oci_runtime);
    machine.run(async {
        let runtime = open(&machine).await;
        let sandbox = run_sandbox(&runtime, machine.pod("exec")).await;
        let id = run_container(&runtime, &sandbox, script("app", "sleep 1000")).await;

        let ran = of_url(&runtime, command(&id, "echo out; echo err >&2; exit 7", false, false)).await;
        let Ran { ending, stdout, stderr } = run(ran, None, None).await;
        assert_eq!((ending, &*stdout, &*stderr), (Ok(Ending::Exit(7)), &b"out\n"[..], &b"err\n"[..]));

        let words = vec![b'w'; 1 << 20];
        let ran = of_url(&runtime, command(&id, "cat", true, false)).await;
        let Ran { ending, stdout, .. } = run(ran, Some((words.clone(), true)), None).await;
        assert_eq!((ending, stdout == words), (Ok(Ending::Exit(0)), true));

        let ran = of_url(&runtime, command(&id, "head -c 1 > /dev/null; kill -9 $$", true, false)).await;
        let Ran { ending, .. } = run(ran, Some((words, false)), None).await;
        assert_eq!(ending, Ok(Ending::Exit(137)), "input that nobody reads");

        let request = cri::ExecRequest {
            container_id: id.clone(),
            cmd: vec!["/bin/nothing".into()],
            stdout: true,
            stderr: true,
            ..Default::default()
        };
        let Ran { ending, .. } = run(of_url(&runtime, StreamRequest::Exec(request)).await, None, None).await;
        let why = ending.unwrap_err();
        assert!(
            why.contains("failed to exec in container") && why.to_ascii_lowercase().contains("no such file"),
            "{why}"
        );

        // A client that goes takes its command along.
        let ran = of_url(&runtime, command(&id, "echo begun; exec sleep 4242", false, false)).await;
        let (stdout, out) = bounded(4);
        let (stderr, _err) = bounded(4);
        let streams = Streams { stdin: None, stdout, stderr: Some(stderr), sizes: None };
        let begun = async {
            assert_eq!(out.recv().await.unwrap(), b"begun\n");
            None
        };
        let ended = smol::future::or(async { Some(command::run(ran, streams).await) }, begun).await;
        assert_eq!(ended, None);
        let mut listed = String::new();
        for _ in 0..100 {
            listed = String::from_utf8(exec(&runtime, &id, "ps").await.unwrap().stdout).unwrap();
            if !listed.contains("sleep 4242") {
                break;
            }
            async_io::Timer::after(Duration::from_millis(50)).await;
        }
        assert!(!listed.contains("sleep 4242"), "{listed}");
        stop_sandbox(&runtime, &sandbox).await;
        remove_sandbox(&runtime, &sandbox).await;
    });
    machine.assert_clean();
}

#[test]
fn a_command_has_a_terminal_of_the_clients_size() {
    OCI_RUNTIMES.into_iter().for_each(run_in_terminal);
}

fn run_in_terminal(oci_runtime: &str) {
    let machine = Machine::with_oci_runtime(oci_runtime);
    machine.run(async {
        let runtime = open(&machine).await;
        let sandbox = run_sandbox(&runtime, machine.pod("tty")).await;
        let mut config = script("app", "sleep 1000");
        config.envs = ["TERM=dumb", "OF_POD=yes"].map(variable).to_vec();
        let context = config.linux.as_mut().unwrap().security_context.as_mut().unwrap();
        context.run_as_username = "web".into();
        context.no_new_privs = true;
        let id = run_container(&runtime, &sandbox, config).await;
        let text = "until [ \"$(busybox stty size)\" = '43 132' ]; do busybox usleep 50000; done; \
            read line; id -un; pwd; grep NoNewPrivs /proc/self/status; echo \"$OF_IMAGE $OF_POD $TERM $line\"; exit 5";
        // By its name: the container's own PATH leads to it.
        let request = cri::ExecRequest {
            container_id: id.clone(),
            cmd: ["sh", "-c", text].map(str::to_owned).to_vec(),
            tty: true,
            stdin: true,
            stdout: true,
            stderr: false,
        };
        let ran = of_url(&runtime, StreamRequest::Exec(request)).await;
        let input = Some((b"typed\n".to_vec(), false));
        let Ran { ending, stdout, .. } = run(ran, input, Some(Size { width: 132, height: 43 })).await;
        let stdout = String::from_utf8(stdout).unwrap();
        assert_eq!(ending, Ok(Ending::Exit(5)), "{stdout:?}");
        let shown = "web\r\n/tmp\r\nNoNewPrivs:\t1\r\nyes yes xterm typed\r\n";
        assert!(stdout.ends_with(shown), "{stdout:?}");
        stop_sandbox(&runtime, &sandbox).await;
        remove_sandbox(&runtime, &sandbox).await;
    });
    machine.assert_clean();
}

#[test]
fn a_terminal_shows_all_that_a_short_command_prints() {
    OCI_RUNTIMES.into_iter().for_each(run_short_commands);
}

fn run_short_commands(oci_runtime: &str) {
    let machine = Machine::with_oci_runtime(oci_runtime);
    machine.run(async {
        let runtime = open(&machine).await;
        let sandbox = run_sandbox(&runtime, machine.pod("short")).await;
        let id = run_container(&runtime, &sandbox, script("app", "sleep 1000")).await;
        let size = Some(Size { width: 80, height: 24 });
        for _ in 0..4 {
            // At once, so that an OCI runtime is slower than its command.
            let commands = (0..12).map(|number| {
                let (runtime, id) = (runtime.clone(), id.clone());
                machine.executor.spawn("command", async move {
                    let echo = command(&id, &format!("echo {number}; exit 3"), false, true);
                    let Ran { ending, stdout, .. } = run(of_url(&runtime, echo).await, None, size).await;
                    let shown = String::from_utf8_lossy(&stdout).into_owned();
                    assert_eq!((ending, shown), (Ok(Ending::Exit(3)), format!("{number}\r\n")));
                })
            });
            for command in commands.collect::<Vec<_>>() {
                command.await;
            }
        }

        let long = command(&id, "head -c 60000 /dev/zero | tr '\\0' x", false, true);
        let Ran { ending, stdout, .. } = run(of_url(&runtime, long).await, None, size).await;
        assert_eq!(
            (ending, stdout.len(), stdout.iter().all(|byte| *byte == b'x')),
            (Ok(Ending::Exit(0)), 60000, true)
        );

        let request = cri::ExecRequest {
            container_id: id.clone(),
            cmd: vec!["/bin/nothing".into()],
            tty: true,
            stdout: true,
            ..Default::default()
        };
        let Ran { ending, .. } = run(of_url(&runtime, StreamRequest::Exec(request)).await, None, size).await;
        let why = ending.unwrap_err();
        assert!(
            why.contains("failed to exec in container") && why.to_ascii_lowercase().contains("no such file"),
            "{why:?}"
        );
        assert!(!why.contains('\u{1b}'), "{why:?}");
        stop_sandbox(&runtime, &sandbox).await;
        remove_sandbox(&runtime, &sandbox).await;
    });
    machine.assert_clean();
}

#[test]
fn a_terminal_that_nobody_has_open_for_a_moment_goes_on() {
    OCI_RUNTIMES.into_iter().for_each(close_terminal);
}

fn close_terminal(oci_runtime: &str) {
    let machine = Machine::with_oci_runtime(oci_runtime);
    machine.run(async {
        let runtime = open(&machine).await;
        let sandbox = run_sandbox(&runtime, machine.pod("closed")).await;
        let id = run_container(&runtime, &sandbox, script("app", "sleep 1000")).await;
        // As getty does before a login.
        let text =
            "echo first; exec </dev/null >/dev/null 2>&1; busybox usleep 300000; echo second > /dev/tty";
        let size = Some(Size { width: 80, height: 24 });
        let Ran { ending, stdout, .. } =
            run(of_url(&runtime, command(&id, text, false, true)).await, None, size).await;
        assert_eq!(
            (ending, &*String::from_utf8_lossy(&stdout)),
            (Ok(Ending::Exit(0)), "first\r\nsecond\r\n")
        );
        stop_sandbox(&runtime, &sandbox).await;
        remove_sandbox(&runtime, &sandbox).await;
    });
    machine.assert_clean();
}

#[test]
fn a_commands_terminal_follows_the_clients_window() {
    OCI_RUNTIMES.into_iter().for_each(resize_terminal);
}

fn resize_terminal(oci_runtime: &str) {
    let machine = Machine::with_oci_runtime(oci_runtime);
    machine.run(async {
        let runtime = open(&machine).await;
        let sandbox = run_sandbox(&runtime, machine.pod("window")).await;
        let id = run_container(&runtime, &sandbox, script("app", "sleep 1000")).await;
        let text = "is() { until [ \"$(busybox stty size)\" = \"$1\" ]; do busybox usleep 50000; done; echo \"$2\"; }; \
            is '43 132' first; is '24 80' second; is '50 200' third";
        let ran = of_url(&runtime, command(&id, text, true, true)).await;
        let (stdout, out) = bounded(4);
        let (_to_stdin, stdin) = bounded(4);
        let (to_sizes, sizes) = bounded(1);
        let streams = Streams { stdin: Some(stdin), stdout, stderr: None, sizes: Some(sizes) };
        let sizes = async {
            for (width, height, seen) in [(132, 43, "first"), (80, 24, "second"), (200, 50, "third")] {
                to_sizes.send(Size { width, height }).await.unwrap();
                let mut said = Vec::new();
                while !String::from_utf8_lossy(&said).contains(seen) {
                    said.extend(out.recv().await.expect(seen));
                }
            }
            std::future::pending::<()>().await;
        };
        let ended = async { assert_eq!(command::run(ran, streams).await, Ok(Ending::Exit(0))) };
        let late = async {
            async_io::Timer::after(PATIENCE).await;
            panic!("{oci_runtime}: the terminal does not follow");
        };
        smol::future::or(ended, smol::future::or(sizes, late)).await;
        stop_sandbox(&runtime, &sandbox).await;
        remove_sandbox(&runtime, &sandbox).await;
    });
    machine.assert_clean();
}

/// A command has the score of its keeper with crun, and runc gives it its container's: a program in the place of the OCI runtime tells that one.
#[test]
fn commands_are_started_with_the_oom_score_of_their_container() {
    let mut machine = Machine::new();
    let path = machine.root.join("oci");
    let scores = machine.root.join("scores");
    let text = format!(
        "#!/bin/sh\n\
         for word; do\n\
         [ \"$word\" = exec ] || continue\n\
         sleep 0.5; cat /proc/self/oom_score_adj >>{}; exit 7\n\
         done\n\
         exec runc \"$@\"\n",
        scores.display()
    );
    write_program(&path, &text);
    machine.settings.handlers.insert("".into(), path);
    machine.run(async {
        let runtime = open(&machine).await;
        let sandbox = run_sandbox(&runtime, machine.pod("score")).await;
        let mut config = script("app", "sleep 1000");
        config.linux.as_mut().unwrap().resources =
            Some(cri::LinuxContainerResources { oom_score_adj: 765, ..Default::default() });
        let id = run_container(&runtime, &sandbox, config).await;
        assert_eq!(exec(&runtime, &id, "true").await.unwrap().exit_code, 7);
        for tty in [false, true] {
            let size = tty.then_some(Size { width: 80, height: 24 });
            // No command was started.
            let ran = of_url(&runtime, command(&id, "true", false, tty)).await;
            assert!(run(ran, None, size).await.ending.is_err());
        }
        assert_eq!(std::fs::read_to_string(&scores).unwrap(), "765\n".repeat(3));
        remove_sandbox(&runtime, &sandbox).await;
    });
    machine.assert_clean();
}

#[test]
fn a_client_attaches_to_a_container() {
    let machine = Machine::new();
    machine.run(async {
        let runtime = open(&machine).await;
        let sandbox = run_sandbox(&runtime, machine.pod("attach")).await;
        let mut config = script("app", "read line; echo \"got $line\"; echo bad >&2; exit 4");
        config.stdin = true;
        let id = create(&runtime, &sandbox, config).await.unwrap();
        start(&runtime, &id).await.unwrap();
        let request = cri::AttachRequest {
            container_id: id.clone(),
            stdin: true,
            tty: false,
            stdout: true,
            stderr: true,
        };
        let attached = of_url(&runtime, StreamRequest::Attach(request)).await;
        let Ran { ending, stdout, stderr } = run(attached, Some((b"words\n".to_vec(), false)), None).await;
        assert_eq!((ending, &*stdout, &*stderr), (Ok(Ending::Exit(0)), &b"got words\n"[..], &b"bad\n"[..]));
        assert_eq!(exited(&runtime, &id).await.exit_code, 4);
        stop_sandbox(&runtime, &sandbox).await;
        remove_sandbox(&runtime, &sandbox).await;
    });
    machine.assert_clean();
}

#[test]
fn ports_of_a_pod_are_forwarded() {
    let machine = Machine::new();
    machine.run(async {
        let runtime = open(&machine).await;
        let sandbox = run_sandbox(&runtime, machine.pod("forward")).await;
        let id =
            run_container(&runtime, &sandbox, script("app", "while true; do nc -l -p 8080 -e cat; done"))
                .await;
        while exec(&runtime, &id, "busybox netstat -ltn | busybox grep -q 8080").await.unwrap().exit_code != 0
        {
            async_io::Timer::after(Duration::from_millis(50)).await;
        }
        for (port, is_open) in [(8080, true), (9, false)] {
            let near = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let address = near.local_addr().unwrap();
            let user = std::thread::spawn(move || {
                let mut socket = TcpStream::connect(address).unwrap();
                let _ = socket.write_all(b"through the pod");
                let _ = socket.shutdown(Shutdown::Write);
                let mut came = Vec::new();
                let _ = socket.read_to_end(&mut came);
                came
            });
            let request =
                cri::PortForwardRequest { pod_sandbox_id: sandbox.clone(), port: vec![port.into()] };
            let connection = of_url(&runtime, StreamRequest::PortForward(request)).await;
            let local = async_io::Async::new(near.accept().unwrap().0).unwrap();
            let ended = forward::run(connection, &local, port).await;
            drop(local);
            let came = user.join().unwrap();
            if is_open {
                assert_eq!((ended, &*came), (Ok(()), &b"through the pod"[..]));
            } else {
                let why = ended.unwrap_err();
                assert!(why.contains("localhost:9 inside the pod's network: connection refused"), "{why}");
            }
        }
        stop_sandbox(&runtime, &sandbox).await;
        remove_sandbox(&runtime, &sandbox).await;
    });
    machine.assert_clean();
}

#[test]
fn the_cri_is_served_on_a_socket() {
    let machine = Machine::new();
    machine.run(async {
        let runtime = open(&machine).await;
        let path = machine.root.join("cri.sock");
        let server = CriServer::bind(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let clock = Rc::new(SystemClock);
        let serve = server.run(Rc::new(runtime.clone()), machine.executor.clone(), clock.clone());
        let serving = machine.executor.spawn("CRI server", serve);
        let channel = Channel::new(&path, &machine.executor, clock);
        macro_rules! call {
            ($name:literal, $request:expr) => {
                channel.unary(
                    concat!("/runtime.v1.RuntimeService/", $name),
                    &$request,
                    Some(Duration::from_secs(60)),
                )
            };
        }
        let version: cri::VersionResponse = call!("Version", cri::VersionRequest::default()).await.unwrap();
        assert_eq!((&*version.runtime_name, &*version.runtime_api_version), ("smolet", "v1"));
        let status: cri::StatusResponse = call!("Status", cri::StatusRequest::default()).await.unwrap();
        assert!(status.status.unwrap().conditions.iter().any(|condition| condition.r#type == "RuntimeReady"));

        let mut events = channel
            .server_stream("/runtime.v1.RuntimeService/GetContainerEvents", &cri::GetEventsRequest {}, None)
            .await
            .unwrap();
        let listed: cri::ListContainersResponse =
            call!("ListContainers", cri::ListContainersRequest::default()).await.unwrap();
        assert_eq!(listed.containers.len(), 0, "and by now the events are followed");
        let config = Some(machine.pod("cri"));
        let uid = config.as_ref().unwrap().metadata.as_ref().unwrap().uid.clone();
        let request = cri::RunPodSandboxRequest { config: config.clone(), runtime_handler: String::new() };
        let cri::RunPodSandboxResponse { pod_sandbox_id } = call!("RunPodSandbox", request).await.unwrap();
        let request = cri::CreateContainerRequest {
            pod_sandbox_id: pod_sandbox_id.clone(),
            config: Some(script("app", "sleep 1000")),
            sandbox_config: config,
        };
        let cri::CreateContainerResponse { container_id } = call!("CreateContainer", request).await.unwrap();
        let request = cri::StartContainerRequest { container_id: container_id.clone() };
        let _: cri::StartContainerResponse = call!("StartContainer", request).await.unwrap();
        loop {
            let event: cri::ContainerEventResponse = events.next().await.unwrap().expect("an event");
            if event.container_id == container_id
                && event.container_event_type() == cri::ContainerEventType::ContainerStartedEvent
            {
                assert_eq!(event.containers_statuses.len(), 1);
                break;
            }
        }
        // A kubelet with EventedPLEG takes these for all containers of the pod.
        let request = cri::PodSandboxStatusRequest { pod_sandbox_id: pod_sandbox_id.clone(), verbose: false };
        let answer: cri::PodSandboxStatusResponse = call!("PodSandboxStatus", request).await.unwrap();
        assert!(answer.timestamp > 0);
        assert_eq!(answer.containers_statuses[0].id, container_id);
        assert_eq!(answer.containers_statuses[0].state(), cri::ContainerState::ContainerRunning);
        let mut stream = channel
            .server_stream(
                "/runtime.v1.RuntimeService/StreamContainers",
                &cri::ListContainersRequest::default(),
                None,
            )
            .await
            .unwrap();
        let part: cri::ListContainersResponse = stream.next().await.unwrap().expect("a message");
        assert_eq!(part.containers[0].id, container_id);
        assert_eq!(stream.next::<cri::ListContainersResponse>().await, Ok(None));
        let described: cri::ListMetricDescriptorsResponse =
            call!("ListMetricDescriptors", cri::ListMetricDescriptorsRequest {}).await.unwrap();
        assert!(described.descriptors.iter().any(|of| of.name == "container_memory_rss"));
        let mut stream = channel
            .server_stream(
                "/runtime.v1.RuntimeService/StreamPodSandboxMetrics",
                &cri::ListPodSandboxMetricsRequest {},
                None,
            )
            .await
            .unwrap();
        let part: cri::ListPodSandboxMetricsResponse = stream.next().await.unwrap().expect("a message");
        assert_eq!(part.pod_metrics[0].container_metrics[0].container_id, container_id);
        let request = cri::ContainerStatsRequest { container_id: container_id.clone() };
        let stats: cri::ContainerStatsResponse = call!("ContainerStats", request).await.unwrap();
        assert!(stats.stats.unwrap().cpu.is_some());
        let request = cri::ExecSyncRequest {
            container_id: container_id.clone(),
            cmd: vec!["/bin/hostname".into()],
            timeout: 10,
        };
        let ran: cri::ExecSyncResponse = call!("ExecSync", request).await.unwrap();
        assert_eq!((&*ran.stdout, ran.exit_code), (&b"cri\n"[..], 0));
        let request = cri::ExecRequest {
            container_id,
            cmd: vec!["/bin/true".into()],
            stdout: true,
            ..Default::default()
        };
        let url: cri::ExecResponse = call!("Exec", request).await.unwrap();
        assert!(url.url.starts_with("http://127.0.0.1:"));

        let gone = cri::ContainerStatusRequest { container_id: "none".into(), verbose: false };
        let answer: Result<cri::ContainerStatusResponse, _> = call!("ContainerStatus", gone).await;
        assert!(matches!(answer, Err(GrpcError::Status { code: Code::NOT_FOUND, .. })), "{answer:?}");
        let gone = cri::CheckpointContainerRequest { container_id: "none".into(), ..Default::default() };
        let answer: Result<cri::CheckpointContainerResponse, _> = call!("CheckpointContainer", gone).await;
        assert!(matches!(answer, Err(GrpcError::Status { code: Code::NOT_FOUND, .. })), "{answer:?}");

        let request = cri::StopPodSandboxRequest { pod_sandbox_id: pod_sandbox_id.clone() };
        let _: cri::StopPodSandboxResponse = call!("StopPodSandbox", request).await.unwrap();
        let request = cri::RemovePodSandboxRequest { pod_sandbox_id: pod_sandbox_id.clone() };
        let _: cri::RemovePodSandboxResponse = call!("RemovePodSandbox", request).await.unwrap();
        // It passes over events without a sandbox.
        let mut deleted = Vec::new();
        while deleted.len() < 2 {
            let event: cri::ContainerEventResponse = events.next().await.unwrap().expect("an event");
            if event.container_event_type() == cri::ContainerEventType::ContainerDeletedEvent {
                let of = event.pod_sandbox_status.expect("a sandbox");
                assert_eq!(of.metadata.expect("its metadata").uid, uid);
                deleted.push((event.container_id, of.id));
            }
        }
        assert_eq!(deleted[1], (pod_sandbox_id.clone(), pod_sandbox_id));
        serving.cancel().await;
        assert!(!path.exists());
    });
    machine.assert_clean();
}

/// More of them than there are places, and none reads, writes or closes anything: stopped processes.
#[test]
fn clients_that_do_not_answer_keep_no_others_out() {
    let machine = Machine::new();
    machine.run(async {
        let runtime = open(&machine).await;
        let path = machine.root.join("cri.sock");
        let clock = Rc::new(SystemClock);
        let server = CriServer::bind(&path).unwrap();
        let serve = server.run(Rc::new(runtime.clone()), machine.executor.clone(), clock.clone());
        let serving = machine.executor.spawn("CRI server", serve);
        let mut silent = Vec::new();
        for said in
            [&b""[..], &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"[..], &b"garbage\r\n\r\n"[..]]
        {
            for _ in 0..CRI_CONNECTIONS_MAX + 1 {
                let mut client = UnixStream::connect(&path).unwrap();
                client.write_all(said).unwrap();
                silent.push(client);
            }
            let channel = Channel::new(&path, &machine.executor, clock.clone());
            let request = cri::VersionRequest::default();
            let call =
                channel.unary("/runtime.v1.RuntimeService/Version", &request, Some(Duration::from_secs(20)));
            let version: cri::VersionResponse = call.await.unwrap();
            assert_eq!(&*version.runtime_name, "smolet");
        }
        drop(silent);
        serving.cancel().await;
    });
    machine.assert_clean();
}
