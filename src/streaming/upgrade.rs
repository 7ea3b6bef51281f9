//! Opens a SPDY/3.1 connection to the URL that the CRI returned (`httpstream/spdy` in `k8s.io/streaming`).

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};

use async_io::Timer;
use hyper::StatusCode;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use smol::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::Connection;
use crate::limits::{STREAM_HEAD_BYTES_MAX, STREAM_HEADERS_MAX, STREAM_OPEN_TIME};
use crate::stream::Socket;

/// The protocol of `exec` and `attach`: the fourth version is the first with the exit code. containerd and CRI-O know no fifth
/// over SPDY; it would add nothing there.
pub const COMMAND_PROTOCOL: &str = "v4.channel.k8s.io";
/// The protocol of `port-forward`.
pub const FORWARD_PROTOCOL: &str = "portforward.k8s.io";

/// A parsed streaming URL.
#[derive(Debug, PartialEq, Eq)]
pub struct Target<'u> {
    /// The streaming server.
    pub address: SocketAddr,
    /// Host and port as in the URL.
    pub host: &'u str,
    /// Path and query, with the token.
    pub path: &'u str,
}

impl<'u> Target<'u> {
    /// Parses the URL. PURE.
    ///
    /// # Errors
    /// TLS, or a host name instead of an address.
    pub fn parse(url: &'u str) -> Result<Self, String> {
        const MEND: &str = "let it listen on loopback without TLS (containerd: stream_server_address = \"127.0.0.1\", \
            enable_tls_streaming = false; CRI-O: stream_address, stream_enable_tls), as it does by default";
        let rest = url
            .strip_prefix("http://")
            .ok_or_else(|| format!("the runtime's streaming server at {} wants TLS: {MEND}", origin(url)))?;
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let numeric = match host.strip_prefix("localhost:") {
            Some(port) => {
                port.parse().ok().map(|port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port))
            }
            None => host.parse().ok(),
        };
        // The path becomes part of a request's head.
        let sound = path.bytes().all(|byte| byte.is_ascii_graphic()) && path.len() < STREAM_HEAD_BYTES_MAX;
        match numeric {
            Some(address) if sound && !path.is_empty() => Ok(Self { address, host, path }),
            _ => Err(format!(
                "the runtime's streaming server at {} has no numeric address and port: {MEND}",
                origin(url)
            )),
        }
    }

    fn request(&self, protocol: &str) -> String {
        format!(
            "POST {} HTTP/1.1\r\nHost: {}\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
             X-Stream-Protocol-Version: {protocol}\r\nContent-Length: 0\r\n\r\n",
            self.path, self.host
        )
    }
}

/// The URL without its path, because the token gives access to a container.
fn origin(url: &str) -> &str {
    let host = url.find("://").map_or(0, |at| at + 3);
    let end = url[host..].find(['/', '?', '#']).map_or(url.len(), |at| host + at);
    &url[..end]
}

/// Connects to the streaming server at `url`, with `protocol` over SPDY/3.1.
///
/// # Errors
/// It is unreachable, refuses, or does not answer within `STREAM_OPEN_TIME`.
pub async fn connect(url: &str, protocol: &str) -> Result<Connection, String> {
    let target = Target::parse(url)?;
    let late = async {
        Timer::after(STREAM_OPEN_TIME).await;
        Err(format!("no answer within {} s", STREAM_OPEN_TIME.as_secs()))
    };
    let connected = smol::future::or(open(&target, protocol), late).await;
    connected.map_err(|why| format!("the runtime's streaming server at {}: {why}", target.address))
}

async fn open(target: &Target<'_>, protocol: &str) -> Result<Connection, String> {
    let text = |error: std::io::Error| error.to_string();
    let mut socket = Socket::<TcpStream>::connect(target.address).await.map_err(text)?;
    // A keystroke is sent at once.
    socket.get_ref().set_nodelay(true).map_err(text)?;
    socket.write_all(target.request(protocol).as_bytes()).await.map_err(text)?;
    let mut head = vec![0; STREAM_HEAD_BYTES_MAX];
    let mut filled = 0;
    loop {
        let read = socket.read(&mut head[filled..]).await.map_err(text)?;
        filled += read;
        let behind = answer(&head[..filled])?;
        if let Some(behind) = behind {
            head.copy_within(behind..filled, 0);
            head.truncate(filled - behind);
            return Ok(Connection::new(socket, head));
        }
        if read == 0 {
            return Err("it closed the connection".to_owned());
        }
    }
}

/// The length of the response's head, once it is complete. PURE.
///
/// # Errors
/// It is not HTTP, too long, or a rejection.
pub fn answer(bytes: &[u8]) -> Result<Option<usize>, String> {
    let Some(head) = head(bytes)? else { return Ok(None) };
    if head.status == StatusCode::SWITCHING_PROTOCOLS {
        return Ok(Some(head.end));
    }
    let body = String::from_utf8_lossy(&bytes[head.end..]);
    Err(match body.trim() {
        "" => format!("it refuses: {} {}", head.status.as_str(), head.reason),
        said => format!("it refuses: {said}"),
    })
}

/// The head of an answer by HTTP/1.
#[derive(Debug, PartialEq, Eq)]
pub struct Head {
    /// The status.
    pub status: StatusCode,
    /// The words behind it; may be empty.
    pub reason: String,
    /// The headers, in their order.
    pub headers: HeaderMap,
    /// Where the head ends.
    pub end: usize,
}

/// The head at the beginning of `bytes`; nothing as long as it is not all there. PURE.
///
/// Stricter than httparse: each line ends with CRLF, and values are UTF-8.
///
/// # Errors
/// A sentence: it is no HTTP, or too long.
pub fn head(bytes: &[u8]) -> Result<Option<Head>, String> {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4) else {
        let full = bytes.len() >= STREAM_HEAD_BYTES_MAX;
        return if full { Err("its answer has no end".to_owned()) } else { Ok(None) };
    };
    parsed(&bytes[..end]).map(Some).ok_or_else(|| "it does not speak HTTP".to_owned())
}

fn parsed(bytes: &[u8]) -> Option<Head> {
    let mut headers = [httparse::EMPTY_HEADER; STREAM_HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    let end = bytes.len();
    if response.parse(bytes) != Ok(httparse::Status::Complete(end)) || has_bare_line_end(bytes) {
        return None;
    }
    let mut headers = HeaderMap::new();
    for header in &*response.headers {
        let value = std::str::from_utf8(header.value).ok()?;
        headers
            .append(HeaderName::from_bytes(header.name.as_bytes()).ok()?, HeaderValue::from_str(value).ok()?);
    }
    let status = StatusCode::from_u16(response.code?).ok()?;
    Some(Head { status, reason: response.reason.unwrap_or_default().to_owned(), headers, end })
}

fn has_bare_line_end(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\n") || bytes.windows(2).any(|two| two[1] == b'\n' && two[0] != b'\r')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_read_and_one_that_cannot_be_reached_is_explained_without_its_token() {
        for (url, address, path) in [
            ("http://127.0.0.1:34567/exec/Tok-_en", "127.0.0.1:34567", "/exec/Tok-_en"),
            ("http://[::1]:80/attach/a?b=c", "[::1]:80", "/attach/a?b=c"),
            ("http://localhost:10010/cri/exec/x", "127.0.0.1:10010", "/cri/exec/x"),
            ("http://10.0.0.7:10010/exec/x", "10.0.0.7:10010", "/exec/x"),
        ] {
            let target = Target::parse(url).unwrap();
            assert_eq!((target.address.to_string().as_str(), target.path), (address, path));
        }
        for (url, message) in [
            (
                "https://127.0.0.1:10010/exec/secret",
                "https://127.0.0.1:10010 wants TLS: let it listen on loopback",
            ),
            ("http://node.lan:10010/exec/secret", "http://node.lan:10010 has no numeric address and port"),
            ("http://127.0.0.1/exec/secret", "no numeric address and port"),
            ("http://127.0.0.1:99999/exec/secret", "no numeric address and port"),
            ("http://127.0.0.1:1", "no numeric address and port"),
            ("http://127.0.0.1:1/exec/secret\r\nEvil: 1", "no numeric address and port"),
            ("", "wants TLS"),
        ] {
            let why = Target::parse(url).unwrap_err();
            assert!(why.contains(message) && !why.contains("secret"), "{url}: {why}");
        }
    }

    #[test]
    fn the_request_is_what_go_servers_upgrade() {
        let target = Target::parse("http://127.0.0.1:1/exec/t").unwrap();
        assert_eq!(
            target.request(COMMAND_PROTOCOL),
            "POST /exec/t HTTP/1.1\r\nHost: 127.0.0.1:1\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\
             X-Stream-Protocol-Version: v4.channel.k8s.io\r\nContent-Length: 0\r\n\r\n"
        );
    }

    #[test]
    fn an_answer_upgrades_refuses_or_is_not_all_there() {
        let switching =
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\nxy";
        let end = switching.len() - 2;
        for cut in 0..switching.len() {
            assert_eq!(answer(&switching[..cut]), Ok((cut >= end).then_some(end)), "{cut}");
        }
        for (bytes, message) in [
            (&b"HTTP/1.1 404 Not Found\r\n\r\n404 page not found\n"[..], "it refuses: 404 page not found"),
            (b"HTTP/1.1 403 Forbidden\r\n\r\n", "it refuses: 403 Forbidden"),
            (b"HTTP/1.1 1010 Odd\r\n\r\n", "it does not speak HTTP"),
            (b"HTTP/1.10 101 Odd\r\n\r\n", "it does not speak HTTP"),
            (b"HTTP/1.1 101 Odd\r\nno header\r\n\r\n", "it does not speak HTTP"),
            (b"SSH-2.0-x\r\n\r\n", "it does not speak HTTP"),
            (&[b'x'; STREAM_HEAD_BYTES_MAX], "its answer has no end"),
        ] {
            assert_eq!(answer(bytes), Err(message.to_owned()));
        }
    }

    #[test]
    fn a_head_is_read_once_it_is_all_there() {
        let whole = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: SPDY/3.1\r\nX-A: b\r\nX-A:c \r\n\r\nrest";
        for cut in 0..whole.len() - 4 {
            assert_eq!(head(&whole[..cut]), Ok(None), "cut at {cut}");
        }
        let Head { status, reason, headers, end } = head(whole).unwrap().unwrap();
        assert_eq!((status.as_u16(), reason.as_str()), (101, "Switching Protocols"));
        assert_eq!(&whole[end..], b"rest");
        assert_eq!(headers.get_all("x-a").iter().collect::<Vec<_>>(), ["b", "c"]);
        let many = "a: b\r\n".repeat(STREAM_HEADERS_MAX);
        let with = |headers: &str| format!("HTTP/1.1 200 OK\r\n{headers}\r\n");
        assert_eq!(head(with(&many).as_bytes()).unwrap().unwrap().headers.len(), STREAM_HEADERS_MAX);
        for wrong in [
            "SSH-2.0\r\n\r\n",
            "HTTP/1.1\r\n\r\n",
            "HTTP/1.1 abc\r\n\r\n",
            "HTTP/1.1 099 Low\r\n\r\n",
            "\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
            &with("x\r\n"),
            &with("a: b\nc: d\r\n"),
            &with("a : b\r\n"),
            &with("a: b\r\n c\r\n"),
            &with(&format!("{many}a: b\r\n")),
        ] {
            assert_eq!(head(wrong.as_bytes()), Err("it does not speak HTTP".to_owned()), "{wrong:?}");
        }
        assert!(head(b"HTTP/1.1 200 OK\r\na: \xe9\r\n\r\n").is_err());
        assert!(head(&vec![b'x'; STREAM_HEAD_BYTES_MAX]).is_err());
    }
}
