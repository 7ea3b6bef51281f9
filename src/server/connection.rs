//! One connection with one request, of the local socket and of the node's own API: hyper's server, compiled once.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;

use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue};
use hyper::{Request, Response, StatusCode};
use smol::io::{AsyncRead, AsyncWrite};
use smol_hyper::rt::FuturesIo;

use super::Body;

/// Answers a request. Called once, because a connection has one request.
pub(crate) type Handler = Box<dyn Fn(Request<Incoming>) -> Pin<Box<dyn Future<Output = Response<Body>>>>>;

/// Serves a connection with one request to its end; a head of more than `head_bytes_max` is refused. Returns the connection, with
/// bytes that were read after the request: it is to be closed, unless the response was an upgrade. An agent's own streams are all
/// `Box<dyn Duplex>`.
pub(crate) async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    head_bytes_max: usize,
    handler: Handler,
) -> (S, Vec<u8>) {
    let service = hyper::service::service_fn(|request| {
        let response = handler(request);
        Box::pin(async { Ok::<_, Infallible>(last(response.await)) })
    });
    let mut connection = hyper::server::conn::http1::Builder::new()
        // The standard library's wall clock panics after 2038 where a C time has 32 bits.
        .auto_date_header(false)
        .max_buf_size(head_bytes_max)
        .serve_connection(FuturesIo::new(stream), service);
    // A broken or slow client affects only its own connection. After an upgrade the stream is left open.
    if let Err(error) = (&mut connection).await {
        log::trace!("a request: {error}");
    }
    let parts = connection.into_parts();
    (parts.io.into_inner(), parts.read_buf.to_vec())
}

/// Adds `Connection: close` to the response, except to an upgrade: hyper would make `Connection: Upgrade, close` of it, of which
/// Go's client drops the whole header and then sees no upgrade. PURE.
fn last(mut response: Response<Body>) -> Response<Body> {
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}
