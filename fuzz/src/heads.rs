//! Heads of HTTP that strangers write: the answer of a streaming server, the URL to it, and what a client asks of the node's own
//! API, by itself and as hyper hands it over in pieces as the first byte says. Nothing is read beyond its end, no command runs
//! by a lesser right than `create`, and whoever asks has an answer.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use smol::io::{AsyncRead, AsyncWrite};
use smolet::limits::{FORWARDED_PORTS_MAX, STREAM_HEAD_BYTES_MAX};
use smolet::node_api::handshake;
use smolet::node_api::request::{Route, attributes, route};
use smolet::server::NodeQuestion;
use smolet::streaming::upgrade::{Head, Target, answer, head};

/// What a request asks is told with as much of it as there is, each byte as `\u{…}` at most.
fn answer_bytes_max(request: usize) -> usize {
    1024 + 16 * request
}

pub fn run(data: &[u8]) {
    let Some((&piece, said)) = data.split_first() else { return };
    answers(said);
    if let Ok(text) = std::str::from_utf8(said) {
        url(text);
        let first = text.lines().next().unwrap_or_default();
        if let [method, uri, ..] = *first.split(' ').collect::<Vec<_>>().as_slice() {
            let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
            asked(method, path, query);
        }
    }
    served(usize::from(piece).max(1), said);
}

fn answers(said: &[u8]) {
    let read = head(said);
    let upgraded = answer(said);
    if let Ok(Some(Head { status, headers, end, .. })) = &read {
        assert!(said[..*end].ends_with(b"\r\n\r\n"));
        assert!((100..1000).contains(&status.as_u16()));
        let bytes = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum::<usize>();
        assert!(bytes <= *end);
        // One byte less, and it is not all there.
        let cut = &said[..end - 1];
        assert_eq!(head(cut).is_ok(), cut.len() < STREAM_HEAD_BYTES_MAX);
    }
    match (read, upgraded) {
        (Ok(Some(read)), Ok(Some(other))) => assert_eq!(read.end, other),
        (Ok(None), other) => assert_eq!(other, Ok(None)),
        (_, other) => assert_ne!(other, Ok(None)),
    }
}

fn url(text: &str) {
    match Target::parse(text) {
        Ok(target) => {
            assert_eq!(
                text.strip_prefix("http://"),
                Some(format!("{}{}", target.host, target.path).as_str())
            );
            assert!(target.path.starts_with('/') && !target.path.contains(['\r', '\n', ' ']));
            assert!(!target.host.contains(['\r', '\n', ' ']));
        }
        Err(why) => assert!(why.len() <= text.len() + 1024),
    }
}

fn asked(method: &str, path: &str, query: &str) {
    let (verb, parts) = attributes(method, path);
    assert!((1..=2).contains(&parts.len()));
    let found = match route(method, path, query) {
        Ok(found) => found,
        Err((status, why)) => {
            assert!(matches!(status, 400 | 404 | 405 | 422), "{status} {why}");
            return;
        }
    };
    assert!(matches!(verb, "get" | "create"));
    match found {
        Route::Stream(question) => {
            assert_eq!((verb, parts), ("create", vec!["proxy"]));
            match question {
                NodeQuestion::PortForward { target, ports } => {
                    assert!(
                        !target.pod.is_empty() && ports.len() <= FORWARDED_PORTS_MAX && !ports.contains(&0)
                    );
                }
                NodeQuestion::Exec { target, command, .. } => {
                    assert!(!target.namespace.is_empty());
                    assert!(command.iter().map(String::len).sum::<usize>() <= query.len());
                }
                NodeQuestion::Attach { streams, .. } => {
                    assert!(streams.stdin || streams.stdout || streams.stderr);
                }
                other => panic!("{other:?} is no stream"),
            }
        }
        Route::Run(_) => {
            assert_eq!(method, "POST");
            assert_eq!((verb, parts), ("create", vec!["proxy"]));
        }
        Route::Log(log) => {
            assert!(method == "GET" && parts == ["proxy"]);
            assert!(log.bytes_max != Some(0));
        }
        Route::SystemLog(parts, _) => {
            assert!(method == "GET" && parts.iter().map(String::len).sum::<usize>() <= path.len());
        }
        Route::Ask(..) | Route::Measure(..) | Route::Config => assert_eq!(method, "GET"),
    }
}

/// A client that sends its bytes, hangs up and reads all there is.
struct Client<'a> {
    sends: &'a [u8],
    piece: usize,
    got: &'a mut Vec<u8>,
}

impl AsyncRead for Client<'_> {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        let bytes = into.len().min(self.piece);
        Poll::Ready(io::Read::read(&mut self.sends, &mut into[..bytes]))
    }
}

impl AsyncWrite for Client<'_> {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.got.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn served(piece: usize, said: &[u8]) {
    let mut got = Vec::new();
    smol::future::block_on(handshake::ask(Client { sends: said, piece, got: &mut got }));
    assert!(got.len() <= answer_bytes_max(said.len()));
    match got.strip_prefix(b"HTTP/1.").and_then(|head| head.get(2..5)) {
        None => assert!(got.is_empty(), "{}", String::from_utf8_lossy(&got)),
        Some(code) => assert!(code == b"200" || code[0] == b'4', "{}", String::from_utf8_lossy(&got)),
    }
    let heads = got.windows(7).filter(|part| *part == b"HTTP/1.").count();
    assert!(heads <= 1 || got.len() > 200, "one request a connection");
}
