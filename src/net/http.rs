//! HTTP/1.1 GET requests, one connection each: for probes, lifecycle hooks and manifest URLs.

use std::fmt;

use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::Builder;
use hyper::header::{CONNECTION, HOST, HeaderMap, HeaderValue};
use hyper::{Request, Response, Uri};

use super::Address;
use crate::limits::PROBE_HEAD_BYTES_MAX;
use crate::stream::Stream;

/// A GET request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpGet {
    /// Over TLS; the server's certificate is not verified.
    pub tls: bool,
    /// The server.
    pub address: Address,
    /// Path and query, percent-encoded; begins with a slash.
    pub path: String,
    /// Without `Host`.
    pub headers: HeaderMap,
    /// A `Host` header that differs from the address.
    pub host: Option<HeaderValue>,
}

impl fmt::Display for HttpGet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", if self.tls { "https" } else { "http" }, self.address, self.path)
    }
}

impl HttpGet {
    /// The request for a URL; `None` unless it is an `http://HOST` or `https://HOST` URL.
    pub fn of_url(url: &str, headers: HeaderMap) -> Option<Self> {
        let address = Address { host: String::new(), port: 80 };
        let nowhere = Self { tls: false, address, path: "/".to_owned(), headers, host: None };
        nowhere.resolved(url).filter(|get| !get.address.host.is_empty())
    }

    /// The target of a redirect (Go's `http.Client`): `None` when it is not followed, because it is on another host or not
    /// HTTP.
    pub fn redirected(&self, location: &str) -> Option<Self> {
        self.resolved(location).filter(|to| to.address.host.eq_ignore_ascii_case(&self.address.host))
    }

    /// The same for any host, with this request's headers.
    pub fn resolved(&self, location: &str) -> Option<Self> {
        let location = location.split('#').next().unwrap_or_default();
        let scheme = location.find(':').filter(|at| !location[..*at].contains(['/', '?']));
        let (is_absolute, tls, rest) = match scheme {
            None => (false, self.tls, location),
            Some(at) => match location[..at].to_ascii_lowercase().as_str() {
                "http" => (true, false, &location[at + 1..]),
                "https" => (true, true, &location[at + 1..]),
                _ => return None,
            },
        };
        let own = self.path.split('?').next().unwrap_or_default();
        let (address, own, path) = match rest.strip_prefix("//") {
            Some(rest) => {
                let end = rest.find(['/', '?']).unwrap_or(rest.len());
                (authority(&rest[..end], if tls { 443 } else { 80 })?, "/", &rest[end..])
            }
            None if is_absolute => return None,
            None => (self.address.clone(), own, rest),
        };
        let joined = match path.as_bytes().first() {
            None => own.to_owned(),
            Some(b'/') => path.to_owned(),
            Some(b'?') => format!("{own}{path}"),
            Some(_) => format!("{}/{path}", own.rsplit_once('/').map_or("", |(directory, _)| directory)),
        };
        // The manifest's own Host header stays across redirects within a site.
        let host = self.host.clone().filter(|_| !is_absolute);
        Some(Self {
            tls,
            address,
            path: encoded_path(&without_dots(&joined)),
            headers: self.headers.clone(),
            host,
        })
    }
}

/// `HOST:PORT` of a URL.
fn authority(text: &str, default_port: u16) -> Option<Address> {
    let text = text.rsplit('@').next().unwrap_or_default();
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']')?;
            (host, port.strip_prefix(':').unwrap_or(port))
        }
        None => text.split_once(':').unwrap_or((text, "")),
    };
    let port = if port.is_empty() { default_port } else { port.parse().ok().filter(|port| *port > 0)? };
    Some(Address { host: host.to_owned(), port })
}

/// A path and query without `.` and `..` (RFC 3986, 5.2.4).
fn without_dots(text: &str) -> String {
    let (path, query) = text.split_at(text.find('?').unwrap_or(text.len()));
    let mut kept: Vec<&str> = Vec::new();
    let mut parts = path.split('/').skip(1).peekable();
    while let Some(part) = parts.next() {
        let is_last = parts.peek().is_none();
        match part {
            "." | ".." => {
                if part == ".." {
                    kept.pop();
                }
                if is_last {
                    kept.push("");
                }
            }
            part => kept.push(part),
        }
    }
    format!("/{}{query}", kept.join("/"))
}

/// A path and query as sent: characters that a URL cannot contain are percent-encoded (Go's `URL.RequestURI`). A path with
/// an invalid percent code is encoded as a whole, with its question mark (`formatURL`).
pub(crate) fn encoded_path(text: &str) -> String {
    let is_url = !has_stray_percent(text);
    let text = if is_url { text.split('#').next().unwrap_or_default() } else { text };
    let mut out = String::with_capacity(text.len() + 1);
    if !text.starts_with('/') {
        out.push('/');
    }
    for byte in text.bytes() {
        let encode = match byte {
            b'%' | b'?' | b'#' => !is_url,
            b' ' | b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}' => true,
            _ => !byte.is_ascii_graphic(),
        };
        if encode {
            const HEX: &[u8; 16] = b"0123456789ABCDEF";
            let digit = |half: u8| char::from(HEX[usize::from(half & 15)]);
            out.extend(['%', digit(byte >> 4), digit(byte)]);
        } else {
            out.push(char::from(byte));
        }
    }
    out
}

fn has_stray_percent(text: &str) -> bool {
    let path = text.split(['?', '#']).next().unwrap_or_default();
    let mut codes = path.split('%').skip(1);
    codes.any(|code| code.len() < 2 || !code.as_bytes()[..2].iter().all(u8::is_ascii_hexdigit))
}

/// One request; `read` processes the response.
pub(crate) async fn exchange<T>(
    socket: Stream,
    get: &HttpGet,
    read: impl AsyncFnOnce(Response<Incoming>) -> Result<T, String>,
) -> Result<T, String> {
    let broken = |error: hyper::Error| error.to_string();
    // Small devices send slightly invalid heads, and may only know header names in capitals.
    let (mut sender, connection) = Builder::new()
        .max_buf_size(PROBE_HEAD_BYTES_MAX)
        .title_case_headers(true)
        .allow_spaces_after_header_name_in_responses(true)
        .allow_obsolete_multiline_headers_in_responses(true)
        .ignore_invalid_headers_in_responses(true)
        .handshake(socket)
        .await
        .map_err(broken)?;
    let request = request(get)?;
    let exchange = async { read(sender.send_request(request).await.map_err(broken)?).await };
    // The connection proceeds only while it is polled; its end shows in the exchange.
    let drive = async {
        let _ = connection.await;
        std::future::pending().await
    };
    smol::future::or(exchange, drive).await
}

fn request(get: &HttpGet) -> Result<Request<Empty<Bytes>>, String> {
    let wrong = |what: &str| format!("{what} cannot be asked for");
    let host = match &get.host {
        Some(host) => host.clone(),
        None => HeaderValue::try_from(get.address.to_string()).map_err(|_| wrong(&get.address.host))?,
    };
    let mut request = Request::new(Empty::new());
    *request.uri_mut() = Uri::try_from(&*get.path).map_err(|_| wrong(&get.path))?;
    let mut headers = HeaderMap::with_capacity(get.headers.len() + 2);
    headers.insert(HOST, host);
    headers.extend(get.headers.clone());
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    *request.headers_mut() = headers;
    Ok(request)
}
