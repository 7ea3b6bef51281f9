//! The local socket: HTTP/1.1 for `smolet pods`, `smolet describe` and whoever has root.
//!
//! `/healthz` → `ok`; `/pods` → a `v1.PodList`, as the kubelet's own `/pods`; `/events` → decisions and errors,
//! newest last; `/problems` → what is wrong with the manifests. The server owns no state: each request becomes a
//! [`Query`] for the loop, which answers with a finished body.

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use async_io::Async;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE};
use hyper::{Method, Request, Response, StatusCode};
use smol::channel::Sender;
use smol::lock::Semaphore;
use smol_hyper::rt::FuturesIo;

use crate::clock::SharedClock;
use crate::limits::{SERVER_BUFFER_BYTES, SERVER_CONNECTION_TIME, SERVER_CONNECTIONS_MAX};

/// What a request asks of the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// Does the loop turn?
    Health,
    /// All pods with their status.
    Pods,
    /// The ring of decisions and errors.
    Events,
    /// What is wrong with the manifests.
    Problems,
}

/// A question with the way back for its answer.
#[derive(Debug)]
pub struct Query {
    /// What is asked.
    pub question: Question,
    /// Takes one finished body. Nobody listens any more when the client hung up.
    pub answer: Sender<Vec<u8>>,
}

/// The bound socket; the file goes when this is dropped.
#[derive(Debug)]
pub struct Server {
    listener: Async<UnixListener>,
    path: PathBuf,
}

impl Server {
    /// Binds the socket with mode 0600. A file left behind by a dead agent is replaced: the caller holds the
    /// lock on the state directory, but another agent may have been given the same socket, so a socket that
    /// answers is left alone.
    ///
    /// # Errors
    /// One sentence that names the path and the mend.
    pub fn bind(path: &Path) -> Result<Server, String> {
        let fail = |what: &str, e: std::io::Error| {
            format!("socket {}: {what}: {e}; choose another with --socket", path.display())
        };
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).map_err(|e| fail("its directory cannot be made", e))?;
        }
        if std::os::unix::net::UnixStream::connect(path).is_ok() {
            return Err(format!(
                "socket {}: another agent answers there; stop it or choose another with --socket",
                path.display()
            ));
        }
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(fail("cannot be replaced", e)),
            _ => {}
        }
        // The mode is right from the first instant: no moment in which another user could connect.
        let before = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
        let bound = Async::<UnixListener>::bind(path);
        rustix::process::umask(before);
        Ok(Server { listener: bound.map_err(|e| fail("cannot be bound", e))?, path: path.to_path_buf() })
    }

    /// Serves until dropped. At most `SERVER_CONNECTIONS_MAX` connections at once, further ones wait in the
    /// kernel's queue; each lasts at most `SERVER_CONNECTION_TIME`.
    pub async fn run(
        self,
        executor: Rc<smol::LocalExecutor<'static>>,
        clock: SharedClock,
        queries: Sender<Query>,
    ) {
        let slots = std::sync::Arc::new(Semaphore::new(SERVER_CONNECTIONS_MAX));
        loop {
            let slot = slots.acquire_arc().await;
            let stream = match self.listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Out of descriptors, as a rule: waiting is all that helps.
                    log::warn!("local socket: {error}");
                    clock.sleep(Duration::from_secs(1)).await;
                    continue;
                }
            };
            let (queries, time_is_up) = (queries.clone(), clock.sleep(SERVER_CONNECTION_TIME));
            executor
                .spawn(async move {
                    let service = hyper::service::service_fn(move |request| answer(request, queries.clone()));
                    let connection = hyper::server::conn::http1::Builder::new()
                        .keep_alive(false)
                        .max_buf_size(SERVER_BUFFER_BYTES)
                        .serve_connection(FuturesIo::new(stream), service);
                    // A broken or slow client is its own trouble.
                    let _ = smol::future::or(async { connection.await.is_ok() }, async {
                        time_is_up.await;
                        false
                    })
                    .await;
                    drop(slot);
                })
                .detach();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Best effort: a leftover file is replaced at the next start.
        let _ = std::fs::remove_file(&self.path);
    }
}

async fn answer(
    request: Request<Incoming>,
    queries: Sender<Query>,
) -> Result<Response<Full<Bytes>>, std::convert::Infallible> {
    let (question, content_type) = match request.uri().path() {
        "/healthz" => (Question::Health, "text/plain; charset=utf-8"),
        "/pods" | "/pods/" => (Question::Pods, "application/json"),
        "/events" => (Question::Events, "application/json"),
        "/problems" => (Question::Problems, "application/json"),
        _ => {
            return Ok(plain(
                StatusCode::NOT_FOUND,
                "not found; there are /healthz /pods /events /problems\n",
            ));
        }
    };
    if request.method() != Method::GET {
        let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "only GET\n");
        response.headers_mut().insert(ALLOW, hyper::header::HeaderValue::from_static("GET"));
        return Ok(response);
    }
    let (tx, rx) = smol::channel::bounded(1);
    let asked = queries.send(Query { question, answer: tx }).await.is_ok();
    let body = if asked { rx.recv().await.ok() } else { None };
    Ok(match body {
        Some(body) => {
            let mut response = Response::new(Full::new(Bytes::from(body)));
            response
                .headers_mut()
                .insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(content_type));
            response
        }
        None => plain(StatusCode::SERVICE_UNAVAILABLE, "the agent is stopping\n"),
    })
}

fn plain(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = status;
    response
}
