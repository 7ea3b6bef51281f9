//! HTTP/1.1 to registries, token services and proxies: one request at a time on a connection, whose body is read as it arrives.
//!
//! No task drives a connection: it proceeds while its request or its body is waited for, and dropping it closes it.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper::header::HeaderMap;
use hyper::{Request, Response};

use crate::clock::SharedClock;
use crate::limits::{REGISTRY_ANSWER_HEADERS_MAX, REGISTRY_BUFFER_BYTES};
use crate::net::Address;
use crate::stream::Stream;

/// Bounds work by a time.
///
/// # Errors
/// A sentence: the time is over.
pub(super) async fn within<T>(
    clock: &SharedClock,
    time: Duration,
    work: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    let late = async {
        clock.sleep(time).await;
        Err(format!("nothing came back within {} s", time.as_secs()))
    };
    smol::future::or(work, late).await
}

/// A connection.
pub(super) struct Connection {
    sender: SendRequest<Full<Bytes>>,
    driver: Driver,
    /// By TLS, and to this address.
    site: (bool, Address),
}

/// A connection until it is closed.
type Work = Pin<Box<dyn Future<Output = Result<(), hyper::Error>>>>;

/// The connection's own work.
struct Driver {
    /// `None` when it has ended.
    work: Option<Work>,
    /// Why it has ended.
    failed: Option<hyper::Error>,
}

impl Driver {
    /// Waits for `work`, and lets the connection proceed.
    async fn during<T>(&mut self, work: impl Future<Output = T>) -> T {
        let drive = async {
            if let Some(driver) = &mut self.work {
                self.failed = driver.as_mut().await.err();
            }
            self.work = None;
            // Its end shows in the work.
            std::future::pending().await
        };
        smol::future::or(work, drive).await
    }

    /// The connection's error behind one that only says that it is gone.
    async fn cause(&mut self, error: hyper::Error) -> hyper::Error {
        let _ = smol::future::poll_once(self.during(std::future::pending::<()>())).await;
        if error.is_canceled() { self.failed.take().unwrap_or(error) } else { error }
    }
}

/// A response, whose body is to be read.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    body: Incoming,
    connection: Connection,
}

impl Connection {
    /// Begins HTTP on this socket.
    pub(super) async fn open(socket: Stream, site: (bool, Address)) -> Result<Self, String> {
        let (sender, connection) = Builder::new()
            .max_buf_size(REGISTRY_BUFFER_BYTES)
            .max_headers(REGISTRY_ANSWER_HEADERS_MAX)
            .handshake(socket)
            .await
            .map_err(|error| error.to_string())?;
        let driver = Driver { work: Some(Box::pin(connection)), failed: None };
        Ok(Self { sender, driver, site })
    }

    /// Where it leads: whether by TLS, and the server's address.
    pub(super) fn site(&self) -> &(bool, Address) {
        &self.site
    }

    /// Whether another request can be sent: the server may have closed it meanwhile.
    pub(super) async fn is_usable(&mut self) -> bool {
        let ready = self.driver.during(self.sender.ready());
        let ready = smol::future::poll_once(ready).await;
        ready.is_some_and(|ready| ready.is_ok()) && self.driver.work.is_some() && !self.sender.is_closed()
    }

    /// Sends a request and waits for the head of its response.
    pub(super) async fn send(mut self, request: Request<Full<Bytes>>) -> Result<Answer, String> {
        let response = self.driver.during(self.sender.send_request(request)).await;
        let response: Response<Incoming> = match response {
            Ok(response) => response,
            Err(error) => return Err(shown(&self.driver.cause(error).await)),
        };
        let (head, body) = response.into_parts();
        Ok(Answer { status: head.status.as_u16(), headers: head.headers, body, connection: self })
    }
}

impl Answer {
    /// The next bytes of the body; `None` at its end.
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, String> {
        loop {
            let frame = self.connection.driver.during(self.body.frame()).await;
            let Some(frame) = frame else { return Ok(None) };
            if let Ok(data) = frame.map_err(|error| shown(&error))?.into_data()
                && !data.is_empty()
            {
                return Ok(Some(data));
            }
        }
    }

    /// All of the body, up to a limit, and the connection for another request.
    ///
    /// # Errors
    /// The connection is cut, or the body is longer.
    pub(super) async fn whole(mut self, bytes_max: usize) -> Result<(Vec<u8>, Connection), String> {
        let mut bytes = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            if bytes.len() + chunk.len() > bytes_max {
                return Err(format!("the response is longer than {bytes_max} bytes"));
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok((bytes, self.connection))
    }

    /// The connection, after the body's end.
    pub(super) fn into_connection(self) -> Connection {
        self.connection
    }

    /// The beginning of the body.
    pub(super) async fn beginning(mut self, bytes_max: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        while bytes.len() < bytes_max {
            let Ok(Some(chunk)) = self.chunk().await else { break };
            let most = chunk.len().min(bytes_max - bytes.len());
            bytes.extend_from_slice(&chunk[..most]);
        }
        bytes
    }

    /// A header as text; `None` when it is absent or no text.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

/// With the causes, which hyper's own text leaves out.
fn shown(error: &hyper::Error) -> String {
    let mut shown = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        #[cfg(feature = "tls")]
        if let Some(error) = error.downcast_ref::<std::io::Error>().and_then(super::tls::error_of) {
            return super::tls::shown(error);
        }
        shown.push_str(": ");
        shown.push_str(&error.to_string());
        cause = error.source();
    }
    shown
}
