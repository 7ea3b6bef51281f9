//! Upgraded connections: the client's upgrade (SPDY/3.1, WebSocket) is forwarded to the runtime's streaming server, whose
//! response is passed on; from then on bytes are copied both ways (`proxyStream`).

use std::cell::Cell;
use std::io;
use std::net::TcpStream;
use std::time::Duration;

use async_io::Timer;

use hyper::header::{CONNECTION, HeaderMap, HeaderName, UPGRADE};
use hyper::http::request::Parts;
use hyper::{Response, StatusCode};
use smol::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::request::{Refusal, TEXT};
use crate::clock::SharedClock;
use crate::limits::{
    NODE_CLOSE_TIME, NODE_REFUSAL_BYTES_MAX, NODE_SPLICE_BYTES, STREAM_HEAD_BYTES_MAX, STREAM_OPEN_TIME,
};
use crate::server::{Body, text};
use crate::stream::{Duplex, Socket};
use crate::streaming::upgrade::{self, Head, Target};

/// Headers of the client that are forwarded. No others: the runtime must not see the client's token.
const PASSED: [HeaderName; 9] = [
    HeaderName::from_static("connection"),
    HeaderName::from_static("upgrade"),
    HeaderName::from_static("x-stream-protocol-version"),
    HeaderName::from_static("sec-websocket-key"),
    HeaderName::from_static("sec-websocket-version"),
    HeaderName::from_static("sec-websocket-protocol"),
    HeaderName::from_static("sec-websocket-extensions"),
    HeaderName::from_static("origin"),
    HeaderName::from_static("user-agent"),
];

/// The backend connection, and bytes that followed the response's head.
pub(super) struct Backend {
    socket: Socket<TcpStream>,
    rest: Vec<u8>,
}

/// Whether the client requests an upgrade (`httpstream.IsUpgradeRequest`). PURE.
pub(super) fn is_wanted(headers: &HeaderMap) -> bool {
    let mut connection = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    connection.any(|value| value.to_ascii_lowercase().contains("upgrade")) && headers.contains_key(UPGRADE)
}

/// Sends the client's upgrade to the streaming server at `url`; returns its response, and the connection when that is an upgrade.
///
/// # Errors
/// It is unreachable, or does not answer within `STREAM_OPEN_TIME`.
pub(super) async fn open(url: &str, request: &Parts) -> Result<(Response<Body>, Option<Backend>), Refusal> {
    let failed = |why: String| (502, format!("the runtime's streaming server: {why}\n"));
    let target = Target::parse(url).map_err(|why| (502, format!("{why}\n")))?;
    let late = async {
        Timer::after(STREAM_OPEN_TIME).await;
        Err(format!("no answer within {} s", STREAM_OPEN_TIME.as_secs()))
    };
    smol::future::or(ask(&target, request), late).await.map_err(failed)
}

async fn ask(target: &Target<'_>, request: &Parts) -> Result<(Response<Body>, Option<Backend>), String> {
    let words = |error: io::Error| error.to_string();
    let mut socket = Socket::<TcpStream>::connect(target.address).await.map_err(words)?;
    // A keystroke is sent at once.
    socket.get_ref().set_nodelay(true).map_err(words)?;
    socket.write_all(&head(target, request)).await.map_err(words)?;
    let mut bytes = vec![0; STREAM_HEAD_BYTES_MAX];
    let mut filled = 0;
    let Head { status, headers, end, .. } = loop {
        let read = socket.read(&mut bytes[filled..]).await.map_err(words)?;
        filled += read;
        if let Some(answer) = upgrade::head(&bytes[..filled])? {
            break answer;
        }
        if read == 0 {
            return Err("it closed the connection".to_owned());
        }
    };
    bytes.truncate(filled);
    let mut rest = bytes.split_off(end);
    if status == StatusCode::SWITCHING_PROTOCOLS {
        let mut response = text(status, TEXT, String::new());
        *response.headers_mut() = headers;
        return Ok((response, Some(Backend { socket, rest })));
    }
    let length = headers.get("content-length").and_then(|value| value.to_str().ok()?.parse().ok());
    let wanted = length.unwrap_or(NODE_REFUSAL_BYTES_MAX).min(NODE_REFUSAL_BYTES_MAX);
    let mut piece = [0; 512];
    while rest.len() < wanted {
        match socket.read(&mut piece).await {
            Ok(0) | Err(_) => break,
            Ok(read) => rest.extend_from_slice(&piece[..read]),
        }
    }
    rest.truncate(wanted);
    Ok((text(status, TEXT, String::from_utf8_lossy(&rest).into_owned()), None))
}

/// The request head for the streaming server. PURE.
fn head(target: &Target<'_>, request: &Parts) -> Vec<u8> {
    let mut head =
        format!("{} {} HTTP/1.1\r\nHost: {}\r\n", request.method, target.path, target.host).into_bytes();
    for name in &PASSED {
        for value in request.headers.get_all(name) {
            head.extend_from_slice(name.as_str().as_bytes());
            head.extend_from_slice(b": ");
            head.extend_from_slice(value.as_bytes());
            head.extend_from_slice(b"\r\n");
        }
    }
    head.extend_from_slice(b"Content-Length: 0\r\n\r\n");
    head
}

/// Moves bytes both ways until one side has no more, as the kubelet's does, or nothing has moved for `idle_max`. `already`: what
/// the client has sent by now.
pub(super) async fn splice(
    client: Box<dyn Duplex>,
    already: Vec<u8>,
    backend: Backend,
    clock: &SharedClock,
    idle_max: Duration,
) {
    let (mut client_in, mut client_out) = smol::io::split(client);
    let Backend { socket, rest } = backend;
    let moved = Cell::new(clock.now().mono);
    let moves = || moved.set(clock.now().mono);
    let there = async {
        let mut socket = &socket;
        let _ = copy(&already, &mut client_in, &mut socket, &moves).await;
    };
    let back = async {
        let mut socket = &socket;
        let _ = copy(&rest, &mut socket, &mut client_out, &moves).await;
    };
    let idle = async {
        while clock.now().mono < moved.get() + idle_max {
            clock.sleep_until(moved.get() + idle_max).await;
        }
        log::info!(
            "node API: streaming connection closed: idle for {} s (streamingConnectionIdleTimeout)",
            idle_max.as_secs()
        );
    };
    // The first end closes both: in these protocols a side that sends no more reads no more either.
    smol::future::or(smol::future::or(back, there), idle).await;
    close(&mut client_out).await;
}

/// Closes TLS, without a long wait for a client that does not read.
pub(super) async fn close(client: &mut (impl AsyncWrite + Unpin)) {
    let close = async {
        let _ = client.close().await;
    };
    let late = async {
        Timer::after(NODE_CLOSE_TIME).await;
    };
    smol::future::or(close, late).await;
}

async fn copy(
    already: &[u8],
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    moves: &impl Fn(),
) -> io::Result<()> {
    to.write_all(already).await?;
    let mut buffer = vec![0; NODE_SPLICE_BYTES];
    loop {
        to.flush().await?;
        let read = from.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        moves();
        to.write_all(&buffer[..read]).await?;
        moves();
    }
}

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;

    fn parts(headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::post("/exec/default/web/app?command=ls");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn the_runtime_gets_the_upgrade_and_no_token() {
        let parts = parts(&[
            ("Authorization", "Bearer secret"),
            ("Connection", "Upgrade"),
            ("Upgrade", "SPDY/3.1"),
            ("X-Stream-Protocol-Version", "v4.channel.k8s.io"),
            ("X-Stream-Protocol-Version", "channel.k8s.io"),
            ("X-Other", "y"),
        ]);
        assert!(is_wanted(&parts.headers));
        let target = Target::parse("http://127.0.0.1:1/exec/t").unwrap();
        assert_eq!(
            String::from_utf8(head(&target, &parts)).unwrap(),
            "POST /exec/t HTTP/1.1\r\nHost: 127.0.0.1:1\r\nconnection: Upgrade\r\nupgrade: SPDY/3.1\r\n\
             x-stream-protocol-version: v4.channel.k8s.io\r\nx-stream-protocol-version: channel.k8s.io\r\n\
             Content-Length: 0\r\n\r\n"
        );
    }

    #[test]
    fn an_upgrade_is_wanted_with_both_headers() {
        for (headers, wanted) in [
            (&[("Connection", "keep-alive, Upgrade"), ("Upgrade", "websocket")][..], true),
            (&[("Connection", "Upgrade")], false),
            (&[("Upgrade", "SPDY/3.1")], false),
            (&[], false),
        ] {
            assert_eq!(is_wanted(&parts(headers).headers), wanted, "{headers:?}");
        }
    }
}
