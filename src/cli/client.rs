//! HTTP client of the agent's local socket: one GET or POST, the whole response, bounded in time and size.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use async_io::Timer;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::{Method, Request, StatusCode};
use serde_json::Value;

use crate::limits::{ANSWER_BYTES_MAX, ANSWER_PATIENCE};
use crate::stream::{Socket, stream};

/// Why a request failed: one message.
pub(super) enum Refusal {
    /// The agent is not running; with the remedy.
    Unreachable(String),
    /// The agent's error message.
    Said(String),
}

impl From<Refusal> for String {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Unreachable(why) | Refusal::Said(why) => why,
        }
    }
}

/// The response's text.
///
/// # Errors
/// One message: the agent is not running (with the remedy), or its error message.
pub(super) fn get(socket: &Path, path_and_query: &str) -> Result<String, String> {
    Ok(ask_for(socket, path_and_query)?)
}

/// The same, with the two kinds of failure apart.
///
/// # Errors
/// See [`Refusal`].
pub(super) fn ask_for(socket: &Path, path_and_query: &str) -> Result<String, Refusal> {
    async_io::block_on(within_patience(socket, Method::GET, path_and_query, Bytes::new()))
}

/// Where the agent has its state, and where it imports archives of images from.
pub(super) struct Directories {
    pub(super) root: PathBuf,
    pub(super) images: PathBuf,
}

/// Those of the agent at that socket; `None` when none answers, or one that does not know the question.
pub(super) fn directories(socket: &Path) -> Option<Directories> {
    let answer: Value = serde_json::from_str(&get(socket, "/directories").ok()?).ok()?;
    let of = |name: &str| answer[name].as_str().map(PathBuf::from);
    Some(Directories { root: of("root")?, images: of("images")? })
}

/// The response to a POST with that body.
///
/// # Errors
/// As [`get`].
pub(super) async fn post(socket: &Path, path_and_query: &str, body: Vec<u8>) -> Result<String, String> {
    Ok(within_patience(socket, Method::POST, path_and_query, body.into()).await?)
}

async fn within_patience(
    socket: &Path,
    method: Method,
    path_and_query: &str,
    body: Bytes,
) -> Result<String, Refusal> {
    let asked = ask(socket, method, path_and_query, body);
    let late = async {
        Timer::after(ANSWER_PATIENCE).await;
        Err(format!(
            "the agent at {} gives no answer within {} s",
            socket.display(),
            ANSWER_PATIENCE.as_secs()
        ))
    };
    match smol::future::or(asked, late).await {
        Ok((StatusCode::OK, text)) => Ok(text),
        Ok((_, text)) => Err(Refusal::Said(text.trim_end().to_owned())),
        Err(why) => Err(Refusal::Unreachable(why)),
    }
}

async fn ask(
    socket: &Path,
    method: Method,
    path_and_query: &str,
    body: Bytes,
) -> Result<(StatusCode, String), String> {
    let connected = Socket::<UnixStream>::connect(socket).await.map_err(|error| {
        let mend = match error.kind() {
            std::io::ErrorKind::PermissionDenied => "run as root",
            _ => "is the agent running (smolet run)? Its socket can be named with --socket",
        };
        format!("cannot reach the agent at {}: {error}: {mend}", socket.display())
    })?;
    let broken = |error: hyper::Error| format!("the agent at {}: {error}", socket.display());
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(stream(connected)).await.map_err(broken)?;
    let request = Request::builder()
        .method(method)
        .uri(path_and_query)
        .header(hyper::header::HOST, "smolet")
        .body(Full::new(body))
        .map_err(|_| format!("{path_and_query:?} cannot be asked for"))?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(broken)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|error| format!("the agent at {}: {error}", socket.display()))?;
        Ok((status, String::from_utf8_lossy(&body.to_bytes()).into_owned()))
    };
    // The connection only makes progress while it is polled; the exchange shows its end.
    let drive = async {
        let _ = connection.await;
        std::future::pending().await
    };
    smol::future::or(exchange, drive).await
}
