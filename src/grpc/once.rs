//! One call on its own connection: for servers that are called rarely, each at its own address.

use std::rc::Rc;
use std::time::Duration;

use hyper::Uri;
use hyper::header::{HeaderValue, USER_AGENT};
use hyper::http::uri::{Authority, PathAndQuery, Scheme};
use prost::Message;

use super::channel::{Messages, decoded, read, request};
use super::link::{blame, handshake};
use super::message::{WholeMessage, framed};
use super::status::GrpcError;
use crate::executor::Executor;
use crate::http2::{RequestBody, Spawner};
use crate::stream::Stream;

/// A call of [`unary_once`].
pub(crate) struct Once<'a> {
    /// `/package.Service/Method`.
    pub(crate) method: &'static str,
    /// The server's name as in its address.
    pub(crate) authority: &'a str,
    /// The user agent.
    pub(crate) user_agent: &'static str,
    /// The deadline sent to the server; the caller enforces it.
    pub(crate) deadline: Duration,
}

/// One request, one response of at most `limits::GRPC_ANSWER_BYTES_MAX`. The connection ends with the call, dropped or not.
pub(crate) async fn unary_once<A: Message + Default>(
    socket: Stream,
    call: Once<'_>,
    message: &impl Message,
) -> Result<A, GrpcError> {
    let message = framed(message)?;
    // hyper's tasks run on their own executor, which is dropped with this future: a server that does not answer leaves none
    // behind.
    let executor = Rc::new(Executor::new());
    let spawner = Spawner::new(&executor);
    let mut whole = WholeMessage::default();
    let made = async {
        let (mut requests, _) = handshake(socket, &spawner).await.map_err(|e| blame(&e))?;
        let mut request = request(call.method, RequestBody::One(Some(message)), Some(call.deadline));
        let mut uri = hyper::http::uri::Parts::default();
        uri.scheme = Some(Scheme::HTTP);
        uri.authority = Authority::try_from(call.authority).ok();
        uri.path_and_query = Some(PathAndQuery::from_static(call.method));
        if let Ok(uri) = Uri::from_parts(uri) {
            *request.uri_mut() = uri;
        }
        request.headers_mut().insert(USER_AGENT, HeaderValue::from_static(call.user_agent));
        let response = requests.send_request(request).await.map_err(|e| blame(&e))?;
        read(response, &mut whole, Messages::One).await
    };
    executor.run(made).await?;
    decoded(&whole.take().unwrap_or_default())
}
