//! PURE: the head of a client's request, the protocol that both sides speak, and the answer.

use super::websocket;
use crate::limits::{SERVED_HEAD_BYTES_MAX, STREAM_HEADERS_MAX};

/// How the connection goes on after the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Upgrade {
    /// SPDY/3.1, with these protocols, the preferred one first.
    Spdy(Vec<String>),
    /// WebSocket, with the client's key and these subprotocols.
    WebSocket(String, Vec<String>),
}

/// The head of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Head {
    /// Without the query.
    pub(super) path: String,
    /// `None`: no upgrade is wanted.
    pub(super) upgrade: Option<Upgrade>,
    /// Where the head ends.
    pub(super) end: usize,
}

/// The head at the beginning of `bytes`; nothing as long as it is not all there.
///
/// # Errors
/// It is no HTTP/1.1 request, or too long.
pub(super) fn head(bytes: &[u8]) -> Result<Option<Head>, &'static str> {
    let mut headers = [httparse::EMPTY_HEADER; STREAM_HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let end = match request.parse(bytes) {
        Ok(httparse::Status::Complete(end)) => end,
        Ok(httparse::Status::Partial) if bytes.len() < SERVED_HEAD_BYTES_MAX => return Ok(None),
        Ok(httparse::Status::Partial) => return Err("a request head over the limit"),
        Err(_) => return Err("no HTTP request"),
    };
    if !matches!(request.method, Some("GET" | "POST")) {
        return Err("neither GET nor POST");
    }
    let values = |name: &'static str| {
        let of_name = request.headers.iter().filter(move |header| header.name.eq_ignore_ascii_case(name));
        let text = of_name.filter_map(|header| std::str::from_utf8(header.value).ok());
        text.flat_map(|value| value.split(',')).map(str::trim).filter(|value| !value.is_empty())
    };
    let list = |name| values(name).map(str::to_owned).collect::<Vec<_>>();
    let is_upgrade = values("connection").any(|value| value.eq_ignore_ascii_case("upgrade"));
    let mut wanted = values("upgrade").filter(|_| is_upgrade);
    let upgrade = wanted.find_map(|value| match value.to_ascii_lowercase().as_str() {
        "spdy/3.1" => Some(Upgrade::Spdy(list("x-stream-protocol-version"))),
        "websocket" => {
            let key = values("sec-websocket-key").next()?.to_owned();
            Some(Upgrade::WebSocket(key, list("sec-websocket-protocol")))
        }
        _ => None,
    });
    let path = request.path.unwrap_or_default();
    let path = path.split('?').next().unwrap_or_default().to_owned();
    Ok(Some(Head { path, upgrade, end }))
}

/// How the streams of an exec or attach are carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carrier {
    /// Streams of SPDY.
    Spdy,
    /// Messages of WebSocket, each with the number of its channel.
    Channels,
    /// SPDY within the messages of WebSocket.
    Tunnel,
    /// Messages of WebSocket, each with the number of a port's channel.
    Ports,
}

/// What both sides speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Agreed {
    pub(super) carrier: Carrier,
    /// The version of `channel.k8s.io`; the command's status is JSON from 4 on, and channels are closed from 5 on.
    pub(super) version: u8,
}

/// `remotecommand`: SPDY knows versions 1 to 5 (the fifth adds nothing there), WebSocket 1, 4 and 5.
const COMMAND_SPDY: [(&str, u8); 5] = [
    ("v5.channel.k8s.io", 5),
    ("v4.channel.k8s.io", 4),
    ("v3.channel.k8s.io", 3),
    ("v2.channel.k8s.io", 2),
    ("channel.k8s.io", 1),
];
const COMMAND_CHANNELS: [(&str, u8); 3] =
    [("v5.channel.k8s.io", 5), ("v4.channel.k8s.io", 4), ("channel.k8s.io", 1)];
const FORWARD: &str = "portforward.k8s.io";
const FORWARD_TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";
/// A connection to each of the request's ports, as the kubelet's `websocket.go` has it.
const FORWARD_PORTS: &str = "v4.channel.k8s.io";
const FORWARD_CHANNELS: [(&str, u8); 2] = [(FORWARD_TUNNEL, 1), (FORWARD_PORTS, 4)];

/// The answer's head, and what is agreed on; or an answer that refuses.
pub(super) fn negotiate(upgrade: Option<&Upgrade>, is_forward: bool) -> Result<(String, Agreed), String> {
    // The client's first protocol that is known, as the Go servers choose.
    let choose = |wanted: &[String], known: &[(&'static str, u8)]| {
        wanted.iter().find_map(|wanted| known.iter().copied().find(|(name, _)| name == wanted))
    };
    match upgrade {
        None => Err(refusal("400 Bad Request", "the request wants no upgrade to SPDY/3.1 or websocket")),
        Some(Upgrade::Spdy(wanted)) => {
            let known = if is_forward { &[(FORWARD, 1)][..] } else { &COMMAND_SPDY };
            let chosen = match choose(wanted, known) {
                None if wanted.is_empty() => ("", 1),
                None => {
                    let known: Vec<_> = known.iter().map(|(name, _)| *name).collect();
                    let why = format!("unable to upgrade: the server speaks {}", known.join(", "));
                    return Err(refusal("403 Forbidden", &why));
                }
                Some(chosen) => chosen,
            };
            let named = match chosen.0 {
                "" => String::new(),
                name => format!("X-Stream-Protocol-Version: {name}\r\n"),
            };
            let head = format!(
                "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n{named}\r\n"
            );
            Ok((head, Agreed { carrier: Carrier::Spdy, version: chosen.1 }))
        }
        Some(Upgrade::WebSocket(key, wanted)) => {
            let known = if is_forward { &FORWARD_CHANNELS[..] } else { &COMMAND_CHANNELS };
            let (name, version) = match choose(wanted, known) {
                None if wanted.is_empty() => ("", 1),
                None => {
                    let known: Vec<_> = known.iter().map(|(name, _)| *name).collect();
                    let why = format!("unable to upgrade: the server speaks {}", known.join(", "));
                    return Err(refusal("403 Forbidden", &why));
                }
                Some(chosen) => chosen,
            };
            let carrier = match name {
                FORWARD_TUNNEL => Carrier::Tunnel,
                _ if is_forward => Carrier::Ports,
                _ => Carrier::Channels,
            };
            let named = match name {
                "" => String::new(),
                name => format!("Sec-WebSocket-Protocol: {name}\r\n"),
            };
            let head = format!(
                "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                 Sec-WebSocket-Accept: {}\r\n{named}\r\n",
                websocket::accept(key)
            );
            Ok((head, Agreed { carrier, version }))
        }
    }
}

/// A whole answer that is no upgrade.
pub(super) fn refusal(status: &str, why: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{why}\n",
        why.len() + 1
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_once_it_is_all_there() {
        let whole = b"POST /exec/token?x=y HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, Upgrade\r\nUpgrade: SPDY/3.1\r\n\
            X-Stream-Protocol-Version: v4.channel.k8s.io\r\nX-Stream-Protocol-Version: v3.channel.k8s.io, channel.k8s.io\r\n\r\nrest";
        for cut in 0..whole.len() - 4 {
            assert_eq!(head(&whole[..cut]), Ok(None), "cut at {cut}");
        }
        let found = head(whole).unwrap().unwrap();
        assert_eq!((found.path.as_str(), &whole[found.end..]), ("/exec/token", &b"rest"[..]));
        let protocols =
            ["v4.channel.k8s.io", "v3.channel.k8s.io", "channel.k8s.io"].map(str::to_owned).to_vec();
        assert_eq!(found.upgrade, Some(Upgrade::Spdy(protocols)));
        let plain = head(b"GET /exec/token HTTP/1.1\r\nUpgrade: SPDY/3.1\r\n\r\n").unwrap().unwrap();
        assert_eq!(plain.upgrade, None, "without a Connection header");
        assert!(head(b"DELETE / HTTP/1.1\r\n\r\n").is_err() && head(b"SSH-2.0-x\r\n\r\n").is_err());
        let long = [&b"GET /"[..], &vec![b'x'; SERVED_HEAD_BYTES_MAX]].concat();
        assert_eq!(head(&long), Err("a request head over the limit"));
    }

    #[test]
    fn the_first_known_protocol_is_agreed_on() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let spdy = |of: &[&str]| Upgrade::Spdy(names(of));
        let socket = |of: &[&str]| Upgrade::WebSocket("dGhlIHNhbXBsZSBub25jZQ==".to_owned(), names(of));
        for (upgrade, is_forward, expected) in [
            (
                spdy(&["v4.channel.k8s.io", "v3.channel.k8s.io"]),
                false,
                Ok(("v4.channel.k8s.io", Carrier::Spdy, 4)),
            ),
            (spdy(&["v9.channel.k8s.io", "channel.k8s.io"]), false, Ok(("channel.k8s.io", Carrier::Spdy, 1))),
            (spdy(&[]), false, Ok(("", Carrier::Spdy, 1))),
            (spdy(&["portforward.k8s.io"]), true, Ok(("portforward.k8s.io", Carrier::Spdy, 1))),
            (spdy(&["v9.channel.k8s.io"]), false, Err("the server speaks v5.channel.k8s.io, v4")),
            (socket(&["v5.channel.k8s.io"]), false, Ok(("v5.channel.k8s.io", Carrier::Channels, 5))),
            (socket(&["v4.channel.k8s.io"]), false, Ok(("v4.channel.k8s.io", Carrier::Channels, 4))),
            (socket(&[]), false, Ok(("", Carrier::Channels, 1))),
            (
                socket(&["SPDY/3.1+portforward.k8s.io"]),
                true,
                Ok(("SPDY/3.1+portforward.k8s.io", Carrier::Tunnel, 1)),
            ),
            (socket(&["v4.channel.k8s.io"]), true, Ok(("v4.channel.k8s.io", Carrier::Ports, 4))),
            (
                socket(&["v4.base64.channel.k8s.io"]),
                true,
                Err("the server speaks SPDY/3.1+portforward.k8s.io, v4.channel.k8s.io"),
            ),
        ] {
            let agreed = negotiate(Some(&upgrade), is_forward);
            match (agreed, expected) {
                (Ok((head, agreed)), Ok((name, carrier, version))) => {
                    assert!(head.starts_with("HTTP/1.1 101 ") && head.ends_with("\r\n\r\n"));
                    assert!(head.contains("Protocol"));
                    assert!(head.contains(name) && agreed == Agreed { carrier, version }, "{head}");
                }
                (Err(head), Err(why)) => {
                    assert!(head.starts_with("HTTP/1.1 403 ") && head.contains(why), "{head}");
                }
                (other, _) => panic!("{other:?} for {upgrade:?}"),
            }
        }
        assert!(negotiate(None, false).unwrap_err().starts_with("HTTP/1.1 400 "));
    }
}
