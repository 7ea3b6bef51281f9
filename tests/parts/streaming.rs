//! The client of the streaming server against one that plays a part, over a real socket: what containerd does, and what none
//! should do. What containerd itself does with it is tested in tests/real/exec.rs.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

use std::future::Future;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

use async_io::{Async, Timer};
use smol::channel::{Receiver, Sender, bounded};
use smolet::limits::{STREAM_CHUNK_BYTES, STREAM_STATUS_BYTES_MAX};
use smolet::streaming::command::{self, Ending, Size, Streams};
use smolet::streaming::upgrade::{self, COMMAND_PROTOCOL, FORWARD_PROTOCOL};
use smolet::streaming::{Connection, forward};

/// How long any one step may take, emulated on a busy machine.
const PATIENCE: Duration = Duration::from_mins(2);
const SUCCESS: &str = r#"{"metadata":{},"status":"Success"}"#;
const SWITCH: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n";

/// The server's end of one connection.
struct Peer(TcpStream);

/// A frame of the client's: a control frame's type or 0, the flags, and the payload; data with its stream.
#[derive(Debug, PartialEq, Eq)]
struct Got {
    kind: u16,
    stream: u32,
    fin: bool,
    payload: Vec<u8>,
}

impl Peer {
    fn read(&mut self, length: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.0.read_exact(&mut bytes).ok().map(|()| bytes)
    }

    /// The request, whose head ends with an empty line.
    fn request(&mut self) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.extend(self.read(1).expect("a request"));
        }
        String::from_utf8(head).unwrap()
    }

    /// The next frame; nothing when the client has gone.
    fn frame(&mut self) -> Option<Got> {
        let head = self.read(8)?;
        let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
        let first = number(&head[..4]);
        let length = number(&head[4..]) & 0xff_ffff;
        let payload = self.read(length as usize)?;
        let control = first >> 31 == 1;
        let kind = if control { u16::try_from(first & 0xffff).unwrap() } else { 0 };
        let stream = if control && kind != 6 { number(&payload[..4]) } else { first & !(1 << 31) };
        Some(Got { kind, stream, fin: head[4] & 1 == 1, payload })
    }

    fn control(&mut self, kind: u16, payload: &[u8]) {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let head = [&[0x80, 3], &kind.to_be_bytes()[..], &[0], &length[1..]].concat();
        self.0.write_all(&[&head, payload].concat()).expect("the client reads");
    }

    fn data(&mut self, stream: u32, data: &[u8], fin: bool) {
        let length = u32::try_from(data.len()).unwrap().to_be_bytes();
        let head = [&stream.to_be_bytes()[..], &[u8::from(fin)], &length[1..]].concat();
        self.0.write_all(&[&head, data].concat()).expect("the client reads");
    }

    /// Takes the request and so many streams; each by its number with its headers.
    fn accept(&mut self, streams: usize) -> Vec<(u32, Vec<(String, String)>)> {
        self.request();
        self.0.write_all(SWITCH).unwrap();
        let opened = (0..streams).map(|index| {
            let frame = self.frame().expect("a stream");
            assert_eq!(frame.kind, 1, "{frame:?}");
            (frame.stream, headers(&frame.payload[10..], index == 0))
        });
        let opened: Vec<_> = opened.collect();
        for (stream, _) in &opened {
            // With a block of headers, which nobody has to understand.
            self.control(2, &[&stream.to_be_bytes()[..], b"\x78\xf9\xe3\xc6\xa7\xc2what?"].concat());
        }
        opened
    }

    /// The command has ended.
    fn end(&mut self, status: &str) {
        for stream in [5, 7] {
            self.data(stream, &[], true);
        }
        self.data(1, status.as_bytes(), true);
        self.control(7, &[0; 8]);
    }
}

/// Reads a block as zlib does: stored blocks, the last of them empty.
fn headers(mut block: &[u8], first: bool) -> Vec<(String, String)> {
    fn take<'b>(block: &mut &'b [u8], length: usize) -> &'b [u8] {
        let (taken, rest) = block.split_at(length);
        *block = rest;
        taken
    }
    if first {
        assert_eq!(take(&mut block, 6), [0x78, 0xbb, 0xe3, 0xc6, 0xa7, 0xc2], "zlib, SPDY/3's dictionary");
    }
    let mut text = Vec::new();
    loop {
        assert_eq!(take(&mut block, 1), [0], "a stored block that is not the stream's last");
        let length = u16::from_le_bytes(take(&mut block, 2).try_into().unwrap());
        assert_eq!(take(&mut block, 2), (!length).to_le_bytes());
        text.extend_from_slice(take(&mut block, length.into()));
        if length == 0 {
            break;
        }
    }
    assert!(block.is_empty(), "the block is read to its end");
    let mut rest = text.as_slice();
    let count = u32::from_be_bytes(take(&mut rest, 4).try_into().unwrap());
    let mut string = || {
        let length = u32::from_be_bytes(take(&mut rest, 4).try_into().unwrap());
        String::from_utf8(take(&mut rest, length as usize).to_vec()).unwrap()
    };
    let all = (0..count).map(|_| (string(), string())).collect();
    assert!(rest.is_empty());
    all
}

/// A server that plays `part` on its one connection.
fn serve<T: Send + 'static>(part: impl FnOnce(Peer) -> T + Send + 'static) -> (String, JoinHandle<T>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/exec/token", listener.local_addr().unwrap());
    let serving = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        part(Peer(stream))
    });
    (url, serving)
}

/// Runs it, within patience.
fn run<T>(work: impl Future<Output = T>) -> T {
    let late = async {
        Timer::after(PATIENCE).await;
        panic!("it does not end");
    };
    async_io::block_on(smol::future::or(work, late))
}

async fn connect(url: &str) -> Connection {
    upgrade::connect(url, COMMAND_PROTOCOL).await.expect("it is upgraded")
}

/// The far ends of a command's streams.
struct Ends {
    stdin: Sender<Vec<u8>>,
    stdout: Receiver<Vec<u8>>,
    stderr: Receiver<Vec<u8>>,
    sizes: Sender<Size>,
}

fn ends(tty: bool) -> (Streams, Ends) {
    let (stdin, input) = bounded(1);
    let (output, stdout) = bounded(64);
    let (errors, stderr) = bounded(64);
    let (sizes, resizes) = bounded(4);
    let streams = Streams {
        stdin: Some(input),
        stdout: output,
        stderr: (!tty).then_some(errors),
        sizes: tty.then_some(resizes),
    };
    (streams, Ends { stdin, stdout, stderr, sizes })
}

fn all(from: &Receiver<Vec<u8>>) -> String {
    let mut all = Vec::new();
    while let Ok(part) = from.try_recv() {
        all.extend(part);
    }
    String::from_utf8(all).unwrap()
}

#[test]
fn a_command_gets_its_input_to_the_end_and_its_outputs_and_exit_code_come_back() {
    let (url, server) = serve(|mut peer| {
        let opened = peer.accept(4);
        peer.data(5, b"ou", false);
        peer.data(7, b"err", false);
        let (mut input, mut ended) = (Vec::new(), false);
        while !ended {
            let frame = peer.frame().expect("input");
            assert_eq!((frame.kind, frame.stream), (0, 3));
            assert!(frame.payload.len() <= STREAM_CHUNK_BYTES);
            input.extend(frame.payload);
            ended = frame.fin;
        }
        peer.data(5, b"t", false);
        peer.end(r#"{"status":"Failure","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"7"}]}}"#);
        (opened, input)
    });
    let (streams, ends) = ends(false);
    let ended = run(async {
        let connection = connect(&url).await;
        let input = async {
            ends.stdin.send(b"first ".to_vec()).await.unwrap();
            ends.stdin.send(vec![b'x'; STREAM_CHUNK_BYTES]).await.unwrap();
            ends.stdin.close();
            std::future::pending().await
        };
        smol::future::or(command::run(connection, streams), input).await
    });
    assert_eq!(ended, Ok(Ending::Exit(7)));
    assert_eq!((all(&ends.stdout), all(&ends.stderr)), ("out".to_owned(), "err".to_owned()));
    let (opened, input) = server.join().unwrap();
    let types =
        ["error", "stdin", "stdout", "stderr"].map(|kind| vec![("streamtype".to_owned(), kind.to_owned())]);
    assert_eq!(opened, [1, 3, 5, 7].into_iter().zip(types).collect::<Vec<_>>());
    assert_eq!(input.len(), 6 + STREAM_CHUNK_BYTES);
}

#[test]
fn a_terminal_tells_its_sizes_and_pings_are_answered() {
    let (url, server) = serve(|mut peer| {
        let opened = peer.accept(4);
        assert_eq!(opened.last().unwrap(), &(9, vec![("streamtype".to_owned(), "resize".to_owned())]));
        let first = peer.frame().unwrap();
        peer.control(6, &6_u32.to_be_bytes());
        let pong = peer.frame().unwrap();
        peer.data(5, &[], true);
        peer.end(SUCCESS);
        (first, pong)
    });
    let (streams, ends) = ends(true);
    ends.sizes.try_send(Size { width: 101, height: 33 }).unwrap();
    let ended = run(async { command::run(connect(&url).await, streams).await });
    assert_eq!(ended, Ok(Ending::Exit(0)));
    let (first, pong) = server.join().unwrap();
    let size = b"{\"Width\":101,\"Height\":33}\n".to_vec();
    assert_eq!(first, Got { kind: 0, stream: 9, fin: false, payload: size });
    assert_eq!((pong.kind, pong.payload), (6, 6_u32.to_be_bytes().to_vec()));
}

#[test]
fn no_input_is_sent_before_the_streams_are_accepted_nor_after_it_was_refused() {
    let (url, server) = serve(|mut peer| {
        peer.request();
        peer.0.write_all(SWITCH).unwrap();
        for _ in 0..4 {
            assert_eq!(peer.frame().unwrap().kind, 1);
        }
        // A ping's answer shows that nothing else was to be sent.
        let pinged = |peer: &mut Peer, number: u32| {
            peer.control(6, &number.to_be_bytes());
            let mut before = 0;
            while let Some(frame) = peer.frame() {
                if frame.kind == 6 {
                    return before;
                }
                before += 1;
            }
            panic!("no answer");
        };
        let early = pinged(&mut peer, 2);
        for stream in [1, 3, 5, 7_u32] {
            peer.control(2, &stream.to_be_bytes());
        }
        let first = peer.frame().unwrap();
        peer.control(3, &[0, 0, 0, 3, 0, 0, 0, 5]);
        // What was on its way then may still come.
        pinged(&mut peer, 4);
        let late = pinged(&mut peer, 6);
        peer.end(SUCCESS);
        (early, first.stream, late)
    });
    let (streams, ends) = ends(false);
    let ended = run(async {
        let connection = connect(&url).await;
        let input = async {
            while ends.stdin.send(b"again".to_vec()).await.is_ok() {}
            std::future::pending().await
        };
        smol::future::or(command::run(connection, streams), input).await
    });
    assert_eq!(ended, Ok(Ending::Exit(0)));
    assert_eq!(server.join().unwrap(), (0, 3, 0));
}

#[test]
fn a_connection_that_is_lost_is_no_success() {
    type Part = fn(Peer);
    let parts: [(Part, &str); 4] = [
        (
            |mut peer| drop(peer.accept(4)),
            "was lost before the command ended; what became of it is not known",
        ),
        (
            |mut peer| {
                peer.accept(4);
                for stream in [1, 5, 7] {
                    peer.data(stream, &[], true);
                }
            },
            "the runtime does not say how the command ended: no status",
        ),
        (
            |mut peer| {
                peer.accept(4);
                peer.0.write_all(&[0x80, 9, 0, 0, 0, 0, 0, 0]).unwrap();
                drop(peer.frame());
            },
            "is not SPDY/3.1: a control frame of another version",
        ),
        (
            |mut peer| {
                peer.request();
                peer.0.write_all(SWITCH).unwrap();
                peer.control(3, &[0, 0, 0, 5, 0, 0, 0, 3]);
                drop(peer.frame());
            },
            "refuses a stream",
        ),
    ];
    for (index, (part, said)) in parts.into_iter().enumerate() {
        let (url, server) = serve(part);
        let (streams, _ends) = ends(false);
        let why = run(async { command::run(connect(&url).await, streams).await }).unwrap_err();
        assert!(why.contains(said), "part {index}: {why}");
        server.join().unwrap();
    }
}

#[test]
fn only_so_much_is_kept_of_what_is_said_about_the_end() {
    let (url, server) = serve(|mut peer| {
        peer.accept(4);
        let filled = SUCCESS.to_owned() + &" ".repeat(STREAM_STATUS_BYTES_MAX - SUCCESS.len());
        peer.data(1, filled.as_bytes(), false);
        peer.end("would be no JSON behind the other");
    });
    let (streams, _ends) = ends(false);
    assert_eq!(run(async { command::run(connect(&url).await, streams).await }), Ok(Ending::Exit(0)));
    server.join().unwrap();
}

#[test]
fn a_server_that_is_none_is_named_with_what_it_said() {
    for (answer, said) in [
        (
            "HTTP/1.1 404 Not Found\r\nContent-Length: 19\r\n\r\n404 page not found\n",
            "it refuses: 404 page not found",
        ),
        ("220 smtp ready\r\n\r\n", "it does not speak HTTP"),
        ("HTTP/1.1 101 Switch", "it closed the connection"),
    ] {
        let (url, server) = serve(move |mut peer| {
            peer.request();
            peer.0.write_all(answer.as_bytes()).unwrap();
            peer.0.shutdown(Shutdown::Write).unwrap();
            drop(peer.frame());
        });
        let why = run(upgrade::connect(&url, COMMAND_PROTOCOL)).unwrap_err();
        assert!(
            why.starts_with("the runtime's streaming server at 127.0.0.1:") && why.ends_with(said),
            "{why}"
        );
        server.join().unwrap();
    }
    // Nobody listens there, and the kernel gives it to nobody.
    let why = run(upgrade::connect("http://127.0.0.1:1/exec/token", COMMAND_PROTOCOL)).unwrap_err();
    assert!(why.contains("refused"), "{why}");
}

#[test]
fn output_that_nobody_takes_holds_the_server_up_and_is_kept_nowhere() {
    /// Far over what the kernel keeps of a connection.
    const ALL: usize = 64 << 20;
    let (stuck, is_stuck) = bounded(1);
    let (url, server) = serve(move |mut peer| {
        peer.accept(2);
        peer.0.set_write_timeout(Some(Duration::from_secs(2))).unwrap();
        let frame = [&[0, 0, 0, 5, 0, 0, 0x40, 0][..], &[b'x'; 0x4000]].concat();
        let mut sent = 0;
        while sent < ALL {
            match peer.0.write(&frame[sent % frame.len()..]) {
                Ok(written) => sent += written,
                Err(_) => break,
            }
        }
        stuck.send_blocking(()).unwrap();
        sent
    });
    let (output, stdout) = bounded(1);
    let streams = Streams { stdin: None, stdout: output, stderr: None, sizes: None };
    run(async {
        let command = async { drop(command::run(connect(&url).await, streams).await) };
        let stuck = async { is_stuck.recv().await.unwrap() };
        smol::future::or(stuck, command).await;
    });
    let sent = server.join().unwrap();
    assert!((1..ALL).contains(&sent), "{sent} bytes were taken");
    drop(stdout);
}

/// Both ends of a TCP connection.
fn pair() -> (Async<TcpStream>, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    far.set_read_timeout(Some(PATIENCE)).unwrap();
    (Async::new(near).unwrap(), far)
}

#[test]
fn a_forwarded_connection_passes_bytes_and_ends_both_ways() {
    let (url, server) = serve(|mut peer| {
        let opened = peer.accept(2);
        let named = |kind: &str| {
            [("streamtype", kind), ("port", "8080"), ("requestid", "0")]
                .map(|(a, b)| (a.to_owned(), b.to_owned()))
                .to_vec()
        };
        assert_eq!(opened, [(1, named("error")), (3, named("data"))]);
        let mut input = Vec::new();
        loop {
            let frame = peer.frame().expect("data");
            assert_eq!(frame.stream, 3);
            input.extend(frame.payload);
            if frame.fin {
                break;
            }
        }
        peer.data(3, &input, false);
        peer.data(3, b" and back", true);
        peer.data(1, &[], true);
    });
    let (local, mut far) = pair();
    far.write_all(b"there").unwrap();
    far.shutdown(Shutdown::Write).unwrap();
    run(async {
        let connection = upgrade::connect(&url, FORWARD_PROTOCOL).await.unwrap();
        forward::run(connection, &local, 8080).await
    })
    .unwrap();
    drop(local);
    let mut back = String::new();
    far.read_to_string(&mut back).unwrap();
    assert_eq!(back, "there and back");
    server.join().unwrap();
}

#[test]
fn a_port_that_nobody_listens_on_is_told() {
    let (url, server) = serve(|mut peer| {
        // As containerd: the error may be there before the other stream is accepted.
        peer.request();
        peer.0.write_all(SWITCH).unwrap();
        peer.control(2, &1_u32.to_be_bytes());
        peer.data(1, b"connection refused", false);
        peer.control(2, &3_u32.to_be_bytes());
        peer.control(3, &[0, 0, 0, 3, 0, 0, 0, 5]);
        peer.control(3, &[0, 0, 0, 1, 0, 0, 0, 5]);
        while peer.frame().is_some() {}
    });
    let (local, _far) = pair();
    let why = run(async {
        let connection = upgrade::connect(&url, FORWARD_PROTOCOL).await.unwrap();
        forward::run(connection, &local, 81).await
    });
    assert_eq!(why, Err("connection refused".to_owned()));
    server.join().unwrap();
}
