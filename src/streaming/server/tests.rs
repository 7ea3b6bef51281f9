//! The server against this crate's own client (SPDY), and against a WebSocket client written here.

use std::cell::Cell;
use std::io::{Read as _, Write as _};
use std::net::TcpListener as StdListener;

use super::*;
use crate::limits::{SERVED_CLIENT_PERIOD, STREAM_QUEUE_MAX};
use crate::streaming::command::{Ending, Streams as ClientStreams, run};
use crate::streaming::frame;
use crate::streaming::upgrade::{COMMAND_PROTOCOL, FORWARD_PROTOCOL, connect};

/// What the first word of the command says; for a forwarded port, an echo.
#[derive(Clone, Default)]
struct TestStreams(Sleep);

/// How far the command `sleep` is.
type Sleep = Rc<Cell<Option<&'static str>>>;

struct Ended(Sleep);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.set(Some("ended"));
    }
}

impl Streams for TestStreams {
    fn exec(&self, request: ExecRequest, ends: Ends) -> Running<Result<i32, String>> {
        let slept = self.0.clone();
        Box::pin(async move {
            let Ends { stdin, stdout, stderr, sizes } = ends;
            match request.cmd[0].as_str() {
                "cat" => {
                    let (stdin, stdout) = (stdin.unwrap(), stdout.unwrap());
                    while let Ok(bytes) = stdin.recv().await {
                        stdout.send(bytes).await.unwrap();
                    }
                    Ok(0)
                }
                "both" => {
                    stdout.unwrap().send(b"out\n".to_vec()).await.unwrap();
                    stderr.unwrap().send(b"err\n".to_vec()).await.unwrap();
                    Ok(7)
                }
                "size" => {
                    let size = sizes.unwrap().recv().await.unwrap();
                    let text = format!("{}x{}", size.width, size.height);
                    stdout.unwrap().send(text.into_bytes()).await.unwrap();
                    Ok(0)
                }
                "flood" => {
                    let stdout = stdout.unwrap();
                    for _ in 0..1000 {
                        stdout.send(vec![b'x'; 32 * 1024]).await.unwrap();
                    }
                    Ok(0)
                }
                "head" => {
                    drop(stdin);
                    Ok(3)
                }
                "sleep" => {
                    let _end = Ended(slept.clone());
                    slept.set(Some("runs"));
                    std::future::pending().await
                }
                _ => Err("no such command".to_owned()),
            }
        })
    }

    fn attach(&self, _: AttachRequest, ends: Ends) -> Running<Result<(), String>> {
        Box::pin(async move {
            ends.stdout.unwrap().send(b"attached".to_vec()).await.unwrap();
            Ok(())
        })
    }

    fn port_forward(&self, sandbox: String, port: u16) -> Running<Result<Socket<TcpStream>, String>> {
        Box::pin(async move {
            assert_eq!(sandbox, "sandbox");
            let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            Socket::<TcpStream>::connect(to).await.map_err(|error| format!("port {port}: {error}"))
        })
    }
}

struct World {
    executor: Rc<Executor>,
    server: Rc<StreamingServer>,
    sleep: Sleep,
}

impl World {
    fn new() -> Self {
        let executor = Rc::new(Executor::new());
        let server = StreamingServer::bind().unwrap();
        let streams = TestStreams::default();
        let sleep = streams.0.clone();
        let run = server.clone().run(Rc::new(streams), Rc::downgrade(&executor));
        executor.spawn("streaming server", run).detach();
        Self { executor, server, sleep }
    }

    fn exec_url(&self, command: &str, stdin: bool, tty: bool) -> String {
        let cmd = vec![command.to_owned()];
        let request =
            ExecRequest { container_id: "c".to_owned(), cmd, tty, stdin, stdout: true, stderr: !tty };
        self.server.url(Asked::Exec(request)).unwrap()
    }

    fn forward_url(&self) -> String {
        let request = PortForwardRequest { pod_sandbox_id: "sandbox".to_owned(), port: Vec::new() };
        self.server.url(Asked::PortForward(request)).unwrap()
    }

    fn run<T>(&self, work: impl Future<Output = T>) -> T {
        smol::block_on(self.executor.run(work))
    }

    /// Runs a script of blocking calls beside the server.
    fn beside<T: Send + 'static>(&self, script: impl FnOnce() -> T + Send + 'static) -> T {
        let script = std::thread::spawn(script);
        while !script.is_finished() {
            self.run(Timer::after(Duration::from_millis(2)));
        }
        script.join().unwrap()
    }

    /// Output and error of a command with that input, and how it ended.
    fn exec(
        &self,
        command: &str,
        input: Option<Vec<Vec<u8>>>,
        size: Option<Size>,
    ) -> (Result<Ending, String>, Vec<u8>, Vec<u8>) {
        let url = self.exec_url(command, input.is_some(), size.is_some());
        self.run(async {
            let connection = connect(&url, COMMAND_PROTOCOL).await.unwrap();
            let (stdout, out) = smol::channel::bounded(4);
            let (stderr, err) = smol::channel::bounded(4);
            let (to_stdin, stdin) = smol::channel::bounded(4);
            let (to_sizes, sizes) = smol::channel::bounded(1);
            let streams = ClientStreams {
                stdin: input.is_some().then_some(stdin),
                stdout,
                stderr: size.is_none().then_some(stderr),
                sizes: size.is_some().then_some(sizes),
            };
            let feed = async move {
                if let Some(size) = size {
                    to_sizes.send(size).await.unwrap();
                }
                for bytes in input.unwrap_or_default() {
                    let _ = to_stdin.send(bytes).await;
                }
            };
            let all = |of: Receiver<Vec<u8>>| async move {
                let mut all = Vec::new();
                while let Ok(bytes) = of.recv().await {
                    all.extend(bytes);
                }
                all
            };
            let outputs = smol::future::zip(all(out), all(err));
            let ((ending, ()), (out, err)) =
                smol::future::zip(smol::future::zip(run(connection, streams), feed), outputs).await;
            (ending, out, err)
        })
    }
}

#[test]
fn commands_have_their_streams_and_their_exit_code() {
    let world = World::new();
    let (ending, out, err) = world.exec("both", None, None);
    assert_eq!((ending, &*out, &*err), (Ok(Ending::Exit(7)), &b"out\n"[..], &b"err\n"[..]));
    let words: Vec<Vec<u8>> = (0..100).map(|number| vec![number; 10_000]).collect();
    let (ending, out, _) = world.exec("cat", Some(words.clone()), None);
    assert_eq!((ending, out == words.concat()), (Ok(Ending::Exit(0)), true));
    let (ending, out, _) = world.exec("size", None, Some(Size { width: 132, height: 43 }));
    assert_eq!((ending, out), (Ok(Ending::Exit(0)), b"132x43".to_vec()));
    let (ending, ..) = world.exec("none", None, None);
    assert_eq!(ending, Err("Internal error occurred: no such command".to_owned()));
    let (ending, out, _) = world.exec("flood", None, None);
    assert_eq!((ending, out.len()), (Ok(Ending::Exit(0)), 32_768_000));
    let (ending, ..) = world.exec("head", Some(vec![vec![b'x'; 30_000]; 100]), None);
    assert_eq!(ending, Ok(Ending::Exit(3)), "input that nobody reads is dropped");
}

#[test]
fn a_url_is_good_once_and_for_what_it_was_made() {
    let world = World::new();
    let url = world.exec_url("both", false, false);
    let other = url.replace("/exec/", "/portforward/");
    let forward = connect(&other, FORWARD_PROTOCOL);
    let refused = |result: Result<_, String>| result.err().unwrap();
    assert!(refused(world.run(forward)).contains("the streaming URL is unknown, used or over a minute old"));
    assert!(
        refused(world.run(connect(&url, "v9.channel.k8s.io")))
            .contains("the server speaks v5.channel.k8s.io")
    );
    let again = refused(world.run(connect(&url, COMMAND_PROTOCOL)));
    assert!(again.contains("the streaming URL is unknown"), "{again}");
    let request = ExecRequest { tty: true, stderr: true, ..ExecRequest::default() };
    assert!(matches!(world.server.url(Asked::Exec(request)), Err(StreamingError::Invalid(_))));
    assert!(matches!(
        world.server.url(Asked::Attach(AttachRequest::default())),
        Err(StreamingError::Invalid(_))
    ));
    for _ in 0..STREAM_TOKENS_MAX {
        world.exec_url("both", false, false);
    }
    let request = PortForwardRequest::default();
    assert!(matches!(world.server.url(Asked::PortForward(request)), Err(StreamingError::Full)));
}

#[test]
fn an_attachment_has_its_streams() {
    let world = World::new();
    let request = AttachRequest { stdout: true, ..AttachRequest::default() };
    let url = world.server.url(Asked::Attach(request)).unwrap();
    let (ending, out) = world.run(async {
        let connection = connect(&url, COMMAND_PROTOCOL).await.unwrap();
        let (stdout, out) = smol::channel::bounded(4);
        let ending = run(connection, ClientStreams { stdin: None, stdout, stderr: None, sizes: None }).await;
        (ending, out.recv().await)
    });
    assert_eq!((ending, out), (Ok(Ending::Exit(0)), Ok(b"attached".to_vec())));
}

/// A server that sends back what it gets, for so many connections.
fn echo(connections: usize) -> u16 {
    let listener = StdListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for _ in 0..connections {
            let (mut socket, _) = listener.accept().unwrap();
            std::thread::spawn(move || std::io::copy(&mut socket.try_clone().unwrap(), &mut socket));
        }
    });
    port
}

#[test]
fn ports_are_forwarded_and_a_refused_connection_says_so() {
    let world = World::new();
    let port = echo(1);
    let words = vec![b'w'; 300_000];
    for (port, expected) in [(port, Ok(())), (1, Err("port 1: Connection refused (os error 111)".to_owned()))]
    {
        let (near, far) = (StdListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap(), words.clone());
        let address = near.local_addr().unwrap();
        let is_good = expected.is_ok();
        let user = std::thread::spawn(move || {
            let mut socket = std::net::TcpStream::connect(address).unwrap();
            let mut reader = socket.try_clone().unwrap();
            let sent = far.clone();
            std::thread::spawn(move || {
                let _ = socket.write_all(&sent);
                let _ = socket.shutdown(std::net::Shutdown::Write);
            });
            let mut came = Vec::new();
            let _ = reader.read_to_end(&mut came);
            came
        });
        let url = world.forward_url();
        let ended = world.run(async {
            let (local, _) = near.accept().unwrap();
            let local = Async::new(local).unwrap();
            let connection = connect(&url, FORWARD_PROTOCOL).await.unwrap();
            crate::streaming::forward::run(connection, &local, port).await
        });
        assert_eq!(ended, expected);
        assert_eq!(user.join().unwrap() == words, is_good);
    }
}

/// A WebSocket client, as far as a test needs it.
struct Client(std::net::TcpStream);

impl Client {
    fn connect(url: &str, protocol: &str) -> Self {
        let rest = url.strip_prefix("http://").unwrap();
        let (host, path) = rest.split_once('/').unwrap();
        let mut socket = std::net::TcpStream::connect(host).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let request = format!(
            "GET /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: {protocol}\r\n\r\n"
        );
        socket.write_all(request.as_bytes()).unwrap();
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            socket.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap();
        assert!(head.starts_with("HTTP/1.1 101 ") && head.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{head}");
        assert!(head.contains(&format!("Sec-WebSocket-Protocol: {protocol}\r\n")), "{head}");
        Self(socket)
    }

    fn send(&mut self, opcode: u8, payload: &[u8]) {
        let mut frame = Vec::new();
        websocket::put(&mut frame, opcode, &[payload]);
        let at = frame.len() - payload.len();
        frame[1] |= 0x80;
        // A mask of zeros leaves the payload as it is.
        frame.splice(at..at, [0; 4]);
        self.0.write_all(&frame).unwrap();
    }

    /// The next message: its opcode and payload.
    fn next(&mut self) -> (u8, Vec<u8>) {
        let mut head = [0; 2];
        self.0.read_exact(&mut head).unwrap();
        let length = match head[1] {
            126 => {
                let mut length = [0; 2];
                self.0.read_exact(&mut length).unwrap();
                usize::from(u16::from_be_bytes(length))
            }
            127 => panic!("a long frame"),
            short => usize::from(short),
        };
        let mut payload = vec![0; length];
        self.0.read_exact(&mut payload).unwrap();
        (head[0] & 0x0f, payload)
    }
}

#[test]
fn commands_have_their_channels_over_websocket() {
    let world = World::new();
    let url = world.exec_url("cat", true, false);
    world.beside(move || {
        let mut client = Client::connect(&url, "v5.channel.k8s.io");
        assert_eq!(client.next(), (2, vec![1]), "the connection is there");
        client.send(9, b"ping");
        assert_eq!(client.next(), (10, b"ping".to_vec()));
        client.send(2, b"\0words");
        assert_eq!(client.next(), (2, b"\x01words".to_vec()));
        client.send(2, &[255, 0]);
        let status = br#"{"metadata":{},"status":"Success"}"#;
        assert_eq!(client.next(), (2, [&[3][..], status].concat()), "the input has ended");
        assert_eq!(client.next().0, 8);
    });
    for (protocol, status) in [
        ("v4.channel.k8s.io", &b"\"reason\":\"NonZeroExitCode\""[..]),
        ("channel.k8s.io", b"command terminated with non-zero exit code: exit code 7"),
    ] {
        let url = world.exec_url("both", false, false);
        world.beside(move || {
            let mut client = Client::connect(&url, protocol);
            let messages: Vec<_> = (0..4).map(|_| client.next().1).collect();
            assert_eq!(messages[..3], [&b"\x01"[..], b"\x01out\n", b"\x02err\n"]);
            assert!(
                messages[3].starts_with(&[3]) && messages[3].windows(status.len()).any(|part| part == status)
            );
        });
    }
    let url = world.exec_url("size", false, true);
    world.beside(move || {
        let mut client = Client::connect(&url, "v4.channel.k8s.io");
        client.send(2, b"\x04{\"Width\":80,\"Height\":24}");
        assert_eq!((client.next().1, client.next().1), (vec![1], b"\x0180x24".to_vec()));
    });
}

#[test]
fn ports_are_forwarded_in_a_tunnel() {
    let world = World::new();
    let (url, port) = (world.forward_url(), echo(1).to_string());
    world.beside(move || {
        let mut client = Client::connect(&url, "SPDY/3.1+portforward.k8s.io");
        let (mut out, mut opener) = (Vec::new(), frame::Opener::default());
        for (stream, kind) in [(1, "error"), (3, "data")] {
            let headers = [("streamtype", kind), ("port", &port), ("requestid", "0")];
            opener.open(&mut out, frame::StreamId(stream), &headers);
        }
        frame::put_data(&mut out, frame::StreamId(3), b"words", false);
        // Cut within frames of SPDY.
        for piece in out.chunks(25) {
            client.send(2, piece);
        }
        let (mut reader, mut came, mut ended) = (frame::Reader::default(), Vec::new(), 0);
        while ended < 2 {
            let (opcode, payload) = client.next();
            assert_eq!(opcode, 2);
            let mut input = &*payload;
            while let Some(frame) = reader.next(&mut input).unwrap() {
                match frame {
                    frame::Frame::Data(stream, data) => {
                        assert_eq!(stream, frame::StreamId(3));
                        came.extend_from_slice(data);
                        let mut end = Vec::new();
                        frame::put_data(&mut end, stream, &[], true);
                        client.send(2, &end);
                    }
                    frame::Frame::End(_) => ended += 1,
                    _ => {}
                }
            }
        }
        assert_eq!(came, b"words");
    });
}

/// As the Python client of Kubernetes does it.
#[test]
fn ports_have_their_channels_over_websocket() {
    let world = World::new();
    // Nobody listens there.
    let closed = StdListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    let ports = [echo(1), closed];
    let request =
        PortForwardRequest { pod_sandbox_id: "sandbox".to_owned(), port: ports.map(i32::from).to_vec() };
    let url = world.server.url(Asked::PortForward(request)).unwrap();
    world.beside(move || {
        let mut client = Client::connect(&url, "v4.channel.k8s.io");
        let mut came = [const { Vec::new() }; 4];
        let mut read = |client: &mut Client| {
            let (opcode, payload) = client.next();
            if opcode == 2 {
                came[usize::from(payload[0])].extend_from_slice(&payload[1..]);
            }
            (opcode, came.clone())
        };
        let port_of = |at: usize| ports[at].to_le_bytes().to_vec();
        while read(&mut client).1.iter().any(|of| of.len() < 2) {}
        client.send(2, b"\0words");
        client.send(9, b"ping");
        // Neither a port's, nor one that takes anything.
        client.send(2, b"\x01x");
        client.send(2, b"\x09x");
        let refused = format!("port {closed}: Connection refused (os error 111)");
        let wanted = [
            [port_of(0), b"words".to_vec()].concat(),
            port_of(0),
            port_of(1),
            [port_of(1), refused.into_bytes()].concat(),
        ];
        let mut is_answered = false;
        loop {
            let (opcode, came) = read(&mut client);
            is_answered |= opcode == 10;
            if came == wanted && is_answered {
                break;
            }
        }
        client.send(8, &[]);
        let mut rest = Vec::new();
        client.0.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"", "the connection ends with the client");
    });
    let url_of = |port: Vec<i32>| {
        let request = PortForwardRequest { pod_sandbox_id: "sandbox".to_owned(), port };
        world.server.url(Asked::PortForward(request))
    };
    for port in [vec![0], vec![65_536], vec![80; 33]] {
        assert!(matches!(url_of(port), Err(StreamingError::Invalid(_))));
    }
    // It ends with its ports too.
    let port = {
        let listener = StdListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || listener.accept().unwrap().0.write_all(b"bye").unwrap());
        port
    };
    let request = PortForwardRequest { pod_sandbox_id: "sandbox".to_owned(), port: vec![i32::from(port)] };
    let url = world.server.url(Asked::PortForward(request)).unwrap();
    world.beside(move || {
        let mut client = Client::connect(&url, "v4.channel.k8s.io");
        let messages: Vec<_> = (0..3).map(|_| client.next().1).collect();
        assert_eq!(messages[2], b"\0bye");
        assert_eq!(client.next().0, 8);
    });
}

#[test]
fn what_is_no_request_is_refused_and_the_next_one_is_served() {
    let world = World::new();
    let address = world.server.address;
    let url = world.exec_url("cat", true, false);
    let path = url.split_once(&address.to_string()).unwrap().1.to_owned();
    let upgrade = format!(
        "POST {path} HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n"
    );
    for (bytes, expected) in [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "HTTP/1.1 404 "),
        (b"SSH-2.0-client\r\n\r\n".to_vec(), "HTTP/1.1 400 "),
        (vec![b'x'; SERVED_HEAD_BYTES_MAX + 1], "HTTP/1.1 400 "),
        // Agreed on, and then no SPDY: closed.
        ([upgrade.as_bytes(), &[0xff; 100]].concat(), "HTTP/1.1 101 "),
    ] {
        let answer = world.beside(move || {
            let mut socket = std::net::TcpStream::connect(address).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            let _ = socket.write_all(&bytes);
            let mut answer = Vec::new();
            let _ = socket.read_to_end(&mut answer);
            String::from_utf8_lossy(&answer).into_owned()
        });
        assert!(
            answer.starts_with(expected) || answer.is_empty() && expected.contains("400"),
            "{expected}: {answer}"
        );
    }
    let (ending, ..) = world.exec("both", None, None);
    assert_eq!(ending, Ok(Ending::Exit(7)));
}

/// `kubectl exec -i pod -- sleep infinity <file`, and ^C.
#[test]
fn a_command_that_reads_nothing_ends_with_its_client() {
    let world = World::new();
    let url = world.exec_url("sleep", true, false);
    let client = world.beside(move || {
        let mut client = Client::connect(&url, "v5.channel.k8s.io");
        for _ in 0..3 * STREAM_QUEUE_MAX {
            client.send(2, b"\0input");
        }
        client
    });
    let until = |state| {
        let (world, began) = (&world, std::time::Instant::now());
        while world.sleep.get() != Some(state) {
            assert!(began.elapsed() < 4 * SERVED_CLIENT_PERIOD, "{state}: {:?}", world.sleep.get());
            world.run(Timer::after(Duration::from_millis(10)));
        }
    };
    until("runs");
    world.run(Timer::after(SERVED_CLIENT_PERIOD + Duration::from_secs(1)));
    assert_eq!(world.sleep.get(), Some("runs"), "its client is there");
    drop(client);
    until("ended");
}
