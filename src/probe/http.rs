//! HTTP GET for probes, lifecycle hooks (`pkg/probe/http`) and manifests: HTTP/1.1, one connection per request.

use http_body_util::BodyExt as _;
use hyper::Response;
use hyper::body::{Body as _, Incoming};
use hyper::header::LOCATION;

use super::run::Answer;
use super::tls;

use crate::limits::{
    PROBE_ANSWER_BYTES_MAX, PROBE_BODY_BYTES_MAX, PROBE_OUTPUT_BYTES_MAX, PROBE_REQUESTS_MAX,
};
use crate::net::Lookups;
use crate::net::http::{HttpGet, exchange};
use crate::stream::stream;
use crate::text::start_of;

/// Go's error for a server that answers HTTPS with HTTP.
pub(crate) const NOT_TLS: &str = "http: server gave HTTP response to HTTPS client";

/// A response.
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

/// Sends the request, and follows redirects on the same host.
///
/// # Errors
/// A sentence: there was no response. Differs from the kubelet, for which an incomplete body is a probe that could not run:
/// a server that hangs in the middle of its responses would never be detected.
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

/// The response, and the target of its redirect.
async fn answer(response: Response<Incoming>) -> Result<(Reply, Option<String>), String> {
    let status = response.status().as_u16();
    let location = response.headers().get(LOCATION).and_then(|to| to.to_str().ok()).map(str::to_owned);
    let body = beginning(response).await.map_err(|error| error.to_string())?;
    Ok((Reply { status, body }, location))
}

/// Reads the body up to the limit; keeps as much as fits into an event.
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
    Ok(start_of(&String::from_utf8_lossy(&kept), PROBE_OUTPUT_BYTES_MAX).to_owned())
}
