//! One GET for a probe, a lifecycle hook (`pkg/probe/http`) or a manifest: HTTP/1.1, a connection for each request.

use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::client::conn::http1::Builder;
use hyper::header::{CONNECTION, HOST, HeaderMap, HeaderValue, LOCATION};
use hyper::{Request, Response, Uri};

use super::handler::HttpGet;
use super::run::{Answer, Lookups};
use super::tls;
use crate::events::cut;
use crate::limits::{
    PROBE_ANSWER_BYTES_MAX, PROBE_BODY_BYTES_MAX, PROBE_HEAD_BYTES_MAX, PROBE_OUTPUT_BYTES_MAX,
    PROBE_REQUESTS_MAX,
};
use crate::stream::{Stream, stream};

/// What Go says of a server that answers HTTPS with HTTP.
pub(crate) const NOT_TLS: &str = "http: server gave HTTP response to HTTPS client";

/// An answer to a request.
pub(crate) struct Reply {
    status: u16,
    /// The beginning of its body.
    body: String,
}

impl Reply {
    /// `DoHTTPProbe`.
    pub(super) fn answer(self) -> Answer {
        match self.status {
            200..300 => Answer::Success,
            300..400 => Answer::Warning(format!("Probe terminated redirects, Response body: {}", self.body)),
            status => Answer::Failure(format!("HTTP probe failed with statuscode: {status}")),
        }
    }
}

/// Asks, and follows redirects on the same host.
///
/// # Errors
/// A sentence: there was no answer. Differs from the kubelet, to which a body that breaks off is a probe that could not be
/// run: a server that hangs in the middle of its answers would never be found.
pub(crate) async fn get(lookups: &Lookups, request: &HttpGet) -> Result<Reply, String> {
    let failed = |error: String| format!("Get \"{request}\": {error}");
    let mut next: Option<HttpGet> = None;
    for _ in 0..PROBE_REQUESTS_MAX {
        let current = next.as_ref().unwrap_or(request);
        let socket = lookups.connect(&current.address).await.map_err(failed)?;
        let socket = if current.tls {
            tls::connect(&current.address.host, socket).await.map_err(failed)?
        } else {
            socket.set_ration(PROBE_ANSWER_BYTES_MAX);
            stream(socket)
        };
        let (reply, location) = exchange(socket, current, answer).await.map_err(failed)?;
        let followed = matches!(reply.status, 301 | 302 | 303 | 307 | 308);
        match location.filter(|_| followed).and_then(|location| current.redirected(&location)) {
            Some(to) => next = Some(to),
            None => return Ok(reply),
        }
    }
    Err(failed(format!("stopped after {PROBE_REQUESTS_MAX} redirects")))
}

/// The answer, with where it redirects to.
async fn answer(response: Response<Incoming>) -> Result<(Reply, Option<String>), String> {
    let status = response.status().as_u16();
    let location = response.headers().get(LOCATION).and_then(|to| to.to_str().ok()).map(str::to_owned);
    let body = beginning(response).await.map_err(|error| error.to_string())?;
    Ok((Reply { status, body }, location))
}

/// One request, and its answer as `read` takes it.
pub(crate) async fn exchange<T>(
    socket: Stream,
    get: &HttpGet,
    read: impl AsyncFnOnce(Response<Incoming>) -> Result<T, String>,
) -> Result<T, String> {
    let broken = |error: hyper::Error| error.to_string();
    // Heads that are not quite as they should be are those of small devices; capitals in names are what these know.
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
    // The connection moves only while it is polled; its end is known from the exchange.
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

/// Reads the body as far as it is read; keeps as much as an event has room for.
async fn beginning(response: Response<Incoming>) -> Result<String, hyper::Error> {
    let mut body = response.into_body();
    let (mut kept, mut read) = (Vec::new(), 0);
    while read < PROBE_BODY_BYTES_MAX && !body.is_end_stream() {
        let Some(frame) = body.frame().await else { break };
        if let Ok(data) = frame?.into_data() {
            read += data.len();
            kept.extend(data.iter().take(PROBE_OUTPUT_BYTES_MAX - kept.len()));
        }
    }
    Ok(cut(&String::from_utf8_lossy(&kept), PROBE_OUTPUT_BYTES_MAX).to_owned())
}
