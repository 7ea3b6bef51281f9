//! The node's own API in front of containerd: logs, commands and ports, as the API server asks for them.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use async_io::Async;
use futures_rustls::TlsConnector;
use futures_rustls::pki_types::CertificateDer;
use futures_rustls::pki_types::pem::PemObject as _;
use futures_rustls::rustls::crypto::ring;
use futures_rustls::rustls::{ClientConfig, RootCertStore};
use smol::LocalExecutor;
use smolet::streaming::command::{self, Ending, Streams};
use smolet::streaming::upgrade::{self, COMMAND_PROTOCOL, FORWARD_PROTOCOL};
use smolet::streaming::{Connection, forward};

use crate::agent::{Agent, PATIENCE, text, wait_until};
use crate::runtime::{Runtime, wait_for};

const NODE: &str = "api";
const PODS: &str = r#"
  terminationGracePeriodSeconds: 2
  containers:
  - name: app
    image: smolet.test/busybox:1
    command: [sh, -c, 'echo hello; mkdir /www; echo page >/www/index.html; exec httpd -f -p 8080 -h /www']
  - name: counts
    image: smolet.test/busybox:1
    command: [sh, -c, 'for n in $(seq 1000); do echo line $n; sleep 0.2; done']
"#;
/// What goes in and comes back.
const BYTES: usize = 5_000_000;

/// Plain TCP on loopback, each connection of which becomes one over TLS to the node.
fn bridge(agent: &Agent, port: u16) -> SocketAddr {
    let pem = std::fs::read(agent.dir.join("root/pki/smolet.crt")).expect("the node's certificate");
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(&pem).expect("PEM")).expect("a certificate");
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring knows both versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = TlsConnector::from(Arc::new(config));
    let listener = Async::new(TcpListener::bind("127.0.0.1:0").expect("a port")).expect("a socket");
    let address = listener.get_ref().local_addr().expect("bound");
    let serve = async move |near: Async<TcpStream>| -> std::io::Result<()> {
        let far = Async::<TcpStream>::connect(([127, 0, 0, 1], port)).await?;
        let far = connector.connect(NODE.try_into().expect("a name"), far).await?;
        let (far_in, far_out) = smol::io::split(far);
        let (there, back) = (smol::io::copy(&near, far_out), smol::io::copy(far_in, &near));
        smol::future::or(async { there.await.map(drop) }, async { back.await.map(drop) }).await
    };
    // Ends with the test's process.
    std::thread::spawn(move || {
        let executor = LocalExecutor::new();
        smol::block_on(executor.run(async {
            while let Ok((near, _)) = listener.accept().await {
                executor.spawn(serve(near)).detach();
            }
        }));
    });
    address
}

fn get(at: SocketAddr, path: &str) -> String {
    let mut socket = TcpStream::connect(at).expect("the bridge");
    write!(socket, "GET {path} HTTP/1.1\r\nHost: api\r\n\r\n").expect("a request");
    let mut said = String::new();
    socket.read_to_string(&mut said).expect("an answer");
    said
}

async fn connect(at: SocketAddr, path: &str, protocol: &str) -> Connection {
    upgrade::connect(&format!("http://{at}{path}"), protocol).await.expect("an upgrade")
}

pub fn logs_commands_and_ports_of_pods_are_reached_through_it(runtime: &Runtime) {
    let mut agent = Agent::new(runtime, NODE);
    // None that a connection of somebody else gets meanwhile.
    let mut ports = (0..1000).map(|n| 20_000 + ((std::process::id() + n) % 10_000) as u16);
    let port = ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).expect("a free port");
    let settings = format!(
        "{}address: 127.0.0.1\nport: {port}\nhealthzPort: 0\nauthorization: {{mode: AlwaysAllow}}\n\
         authentication: {{anonymous: {{enabled: true}}}}\nmakeIPTablesUtilChains: false\n",
        text(&agent.config)
    );
    agent.config = agent.dir.join("config.yaml");
    std::fs::write(&agent.config, settings).expect("a file");
    // Of a cluster whose server is away.
    let kubeconfig = agent.dir.join("kubeconfig");
    let lines = "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: 'https://127.0.0.1:1', \
                 insecure-skip-tls-verify: true}}]\nusers: [{name: u, user: {token: t}}]\n\
                 contexts: [{name: c, context: {cluster: c, user: u}}]\ncurrent-context: c\n";
    std::fs::write(&kubeconfig, lines).expect("a file");
    // The machine's own settings and chains stay as they are.
    let sysctls = agent.dir.join("sys");
    agent.arguments = vec!["--kubeconfig".into(), kubeconfig.into(), "--sysctl-root".into(), sysctls.into()];
    agent.start();
    agent.apply_pod("web", PODS);
    agent.running("web");
    let at = bridge(&agent, port);
    let pod = format!("default/{}", agent.full("web"));

    wait_for("what the container says", PATIENCE, || {
        let said = get(at, &format!("/containerLogs/{pod}/app"));
        (said.starts_with("HTTP/1.1 200 OK\r\n") && said.contains("hello\n")).then_some(())
    });
    let mut follows = TcpStream::connect(at).expect("the bridge");
    write!(follows, "GET /containerLogs/{pod}/counts?follow=true HTTP/1.1\r\nHost: api\r\n\r\n")
        .expect("a request");
    follows.set_read_timeout(Some(Duration::from_secs(PATIENCE))).expect("a time");
    let (mut seen, mut piece) = (String::new(), [0; 4096]);
    while !seen.contains("line 10\n") {
        let read = follows.read(&mut piece).expect("more lines");
        seen.push_str(std::str::from_utf8(&piece[..read]).expect("text"));
    }
    drop(follows);

    smol::block_on(async {
        let path = format!("/exec/{pod}/app?command=cat&input=1&output=1&error=1");
        let (input, stdin) = smol::channel::bounded(1);
        let (stdout, output) = smol::channel::bounded(1);
        let (stderr, _errors) = smol::channel::bounded(1);
        let connection = connect(at, &path, COMMAND_PROTOCOL).await;
        let streams = Streams { stdin: Some(stdin), stdout, stderr: Some(stderr), sizes: None };
        let run = command::run(connection, streams);
        let write = async {
            for _ in 0..BYTES / 10_000 {
                input.send(b"0123456789".repeat(1000)).await.expect("it is read");
            }
            drop(input);
        };
        let read = async {
            let mut bytes = 0;
            while let Ok(piece) = output.recv().await {
                bytes += piece.len();
            }
            bytes
        };
        let ((ended, ()), bytes) = smol::future::zip(smol::future::zip(run, write), read).await;
        assert_eq!((ended, bytes), (Ok(Ending::Exit(0)), BYTES));

        let path = format!("/exec/{pod}/app?command=sh&command=-c&command=exit+7&output=1&error=1");
        let connection = connect(at, &path, COMMAND_PROTOCOL).await;
        let (stdout, _output) = smol::channel::bounded(1);
        let (stderr, _errors) = smol::channel::bounded(1);
        let streams = Streams { stdin: None, stdout, stderr: Some(stderr), sizes: None };
        assert_eq!(command::run(connection, streams).await, Ok(Ending::Exit(7)));
    });

    let local = TcpListener::bind("127.0.0.1:0").expect("a port");
    let asks = local.local_addr().expect("bound");
    let path = format!("/portForward/{pod}");
    let forwards = std::thread::spawn(move || {
        smol::block_on(async {
            let (near, _) = Async::new(local)?.accept().await?;
            let connection = connect(at, &path, FORWARD_PROTOCOL).await;
            Ok::<_, std::io::Error>(forward::run(connection, &near, 8080).await)
        })
    });
    let mut socket = TcpStream::connect(asks).expect("the forwarder");
    socket.write_all(b"GET /index.html HTTP/1.0\r\n\r\n").expect("a request");
    let mut said = String::new();
    socket.read_to_string(&mut said).expect("an answer");
    assert!(said.ends_with("page\n"), "{said}");
    drop(socket);
    assert_eq!(forwards.join().expect("no panic").expect("sockets"), Ok(()));

    let row = format!(
        "container_memory_working_set_bytes{{container=\"app\",namespace=\"default\",pod=\"{}\"}} ",
        agent.full("web")
    );
    let measured = wait_until(Duration::from_secs(PATIENCE), || {
        let page = get(at, "/metrics/resource");
        page.lines().any(|line| line.starts_with(&row)).then_some(())
    });
    assert!(measured.is_some(), "{}", get(at, "/metrics/resource"));
    agent.end_pods();
}
