//! The fake's socket: hyper's HTTP/2 server on a single-threaded executor.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::task::{Context, Poll};

use async_io::Async;
use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{HeaderMap, Request, Response};
use smol::LocalExecutor;
use smol_hyper::rt::FuturesIo;

use super::Shared;
use super::events::EventStream;
use super::state::{BreakOff, Fault, Reply};
use super::store;

pub enum Command {
    Listen,
    Refuse,
    Cut,
}

/// A command, and a channel for its completion.
pub struct Message(pub Command, pub mpsc::Sender<()>);

#[derive(Clone)]
struct Spawner(Rc<LocalExecutor<'static>>);

impl<F: Future + 'static> hyper::rt::Executor<F> for Spawner
where
    F::Output: 'static,
{
    fn execute(&self, task: F) {
        self.0.spawn(task).detach();
    }
}

/// Serves until the command channel is closed.
pub fn run(shared: Arc<Shared>, socket: &Path, inbox: smol::channel::Receiver<Message>) {
    let executor = Rc::new(LocalExecutor::new());
    shared.gauge.clone().block_on(executor.run(async {
        let mut listening: Option<smol::Task<()>> = None;
        while let Ok(Message(command, done)) = inbox.recv().await {
            match command {
                Command::Listen => {
                    let _ = std::fs::remove_file(socket);
                    let listener = UnixListener::bind(socket).expect("the fake can bind its socket");
                    let listener = Async::new(listener).unwrap();
                    listening = Some(executor.spawn(accept(shared.clone(), listener, executor.clone())));
                }
                Command::Refuse => {
                    // The socket file stays: connecting is refused, as when a runtime has died.
                    if let Some(task) = listening.take() {
                        task.cancel().await;
                    }
                    cut(&shared);
                }
                Command::Cut => cut(&shared),
            }
            let _ = done.send(());
        }
        if let Some(task) = listening.take() {
            task.cancel().await;
        }
        cut(&shared);
    }));
}

fn cut(shared: &Shared) {
    for stream in std::mem::take(&mut shared.settled().streams).into_values() {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

async fn accept(shared: Arc<Shared>, listener: Async<UnixListener>, executor: Rc<LocalExecutor<'static>>) {
    loop {
        let (stream, _) = listener.accept().await.expect("the fake can accept");
        let raw: UnixStream = stream.get_ref().try_clone().unwrap();
        let number = {
            let mut state = shared.settled();
            state.connections += 1;
            let number = state.connections;
            state.streams.insert(number, raw);
            number
        };
        let shared = shared.clone();
        let served = shared.clone();
        let service = hyper::service::service_fn(move |request| {
            let shared = shared.clone();
            async move { Ok::<_, Infallible>(serve(shared, request).await) }
        });
        let connection = hyper::server::conn::http2::Builder::new(Spawner(executor.clone()))
            .max_concurrent_streams(10_000)
            .serve_connection(FuturesIo::new(stream), service);
        let serving = async move {
            drop(connection.await);
            // The last handle: the client sees that the stream is closed.
            served.settled().streams.remove(&number);
        };
        executor.spawn(serving).detach();
    }
}

async fn serve(shared: Arc<Shared>, request: Request<Incoming>) -> Response<Answer> {
    let mut active = Active::new(&shared);
    let path = request.uri().path().to_owned();
    let (service, method) = path[1..].split_once('/').unwrap_or_default();
    if !shared.settled().has(service) {
        return status(12, &format!("unknown service {service}"));
    }
    let method = &*store::named(service, method).unwrap_or_else(|| method.to_owned());
    if let Some((code, message)) = store::answered_at_once(method) {
        return status(code, message);
    }
    let timeout = request.headers().get("grpc-timeout").map(|value| value.to_str().unwrap().to_owned());
    let Ok(body) = request.into_body().collect().await else { return status(13, "the request broke off") };
    let bytes = body.to_bytes();
    let Some(message) = bytes.get(5..) else { return status(13, "no message") };

    let target = shared.settled().record(method, message, timeout, shared.clock.now());
    let fault = shared.settled().fault(method, &target);
    let lose = matches!(fault, Some(Fault::LoseAnswer));
    let mut break_off = None;
    match fault {
        None | Some(Fault::LoseAnswer) => {}
        Some(Fault::BreakOff(how)) => break_off = Some(how),
        Some(Fault::Fail { code, message }) => return status(code, &message),
        Some(Fault::Delay(delay)) => {
            let start = Starting::new(&shared, method, &target);
            active.pause();
            shared.clock.shared().sleep(delay).await;
            active.resume();
            start.goes_on();
        }
        Some(Fault::Hang) => {
            let start = Starting::new(&shared, method, &target);
            active.pause();
            std::future::poll_fn(|cx| shared.settled().poll_hanging(method, &target, cx)).await;
            active.resume();
            start.goes_on();
        }
    }

    if let Some(told) = shared.settled().teller.follow(method) {
        let mut response = Response::new(Answer {
            told: Some(told),
            data: VecDeque::new(),
            trailers: Some(trailers(0, "")),
            silent: false,
            shared: None,
        });
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        return response;
    }
    let list = shared.settled().list_of(method);
    let mut graced = false;
    let reply = loop {
        let reply = shared.settled().handle(list.unwrap_or(method), message, shared.clock.now(), graced);
        match reply {
            // The program ignores SIGTERM: its grace period has to elapse.
            Reply::After(wait) => {
                active.pause();
                shared.clock.shared().sleep(wait).await;
                active.resume();
                graced = true;
            }
            Reply::Done(result) => break result,
        }
    };
    shared.settled().check(method, &target);
    if lose {
        active.pause();
        cut(&shared);
        std::future::pending::<()>().await;
    }
    match reply {
        Ok(message) => {
            let crowd = |method| {
                if target.is_empty() { shared.settled().crowd.items(method) } else { Vec::new() }
            };
            let mut data: VecDeque<Bytes> = match list {
                None => {
                    let foreign = crowd(method);
                    let length = message.len() + foreign.iter().flatten().map(Bytes::len).sum::<usize>();
                    let own = [prefix(length), message.into()];
                    // Without empty pieces: gRPC servers send no empty frames.
                    let all = own.into_iter().chain(foreign.into_iter().flatten());
                    all.filter(|piece| !piece.is_empty()).collect()
                }
                // Two items a message; no message without items.
                Some(list) => {
                    let mut data: VecDeque<_> = items(&message).map(|item| [item, Bytes::new()]).collect();
                    data.extend(crowd(list));
                    let mut frames = VecDeque::new();
                    while !data.is_empty() {
                        let some: Vec<_> = data.drain(..data.len().min(2)).flatten().collect();
                        frames.push_back(prefix(some.iter().map(Bytes::len).sum()));
                        frames.extend(some.into_iter().filter(|piece| !piece.is_empty()));
                    }
                    frames
                }
            };
            let mut ending = Some(trailers(0, ""));
            if let Some(how) = break_off {
                // A message: its prefix and two items.
                data.truncate(if matches!(how, BreakOff::WithinMessage) { 2 } else { 3 });
                ending = match how {
                    BreakOff::Silence | BreakOff::NoStatus => None,
                    BreakOff::Status(code) => Some(trailers(code, "that was all")),
                    BreakOff::WithinMessage => ending,
                };
            }
            let silent = matches!(break_off, Some(BreakOff::Silence));
            let mut response =
                Response::new(Answer { told: None, data, trailers: ending, silent, shared: Some(shared) });
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
            response
        }
        Err((code, message)) => status(code, &message),
    }
}

/// The prefix of a message on the wire.
fn prefix(length: usize) -> Bytes {
    let mut prefix = vec![0];
    prefix.extend_from_slice(&u32::try_from(length).unwrap().to_be_bytes());
    prefix.into()
}

/// The items of a list response, each with its field's key and length.
fn items(answer: &[u8]) -> impl Iterator<Item = Bytes> {
    let mut rest = answer;
    std::iter::from_fn(move || {
        let mut body = rest.strip_prefix(&[0x0a])?;
        let length = prost::encoding::decode_varint(&mut body).unwrap();
        let end = rest.len() - body.len() + usize::try_from(length).unwrap();
        let (item, after) = rest.split_at(end);
        rest = after;
        Some(Bytes::copy_from_slice(item))
    })
}

/// A start that takes time. As in containerd, it fails when the client disconnects meanwhile: the container exits with
/// `StartError`.
struct Starting {
    shared: Arc<Shared>,
    container: Option<String>,
}

impl Starting {
    fn new(shared: &Arc<Shared>, method: &str, target: &str) -> Self {
        let container = (method == "StartContainer").then(|| target.to_owned());
        Self { shared: shared.clone(), container }
    }

    fn goes_on(mut self) {
        self.container = None;
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        if let Some(container) = self.container.take() {
            let now = self.shared.clock.now();
            self.shared.settled().start_was_cut_off(&container, now.wall);
        }
    }
}

/// Counts a call in progress, until dropped.
struct Active {
    shared: Arc<Shared>,
    counted: bool,
}

impl Active {
    fn new(shared: &Arc<Shared>) -> Self {
        let mut active = Self { shared: shared.clone(), counted: false };
        active.resume();
        active
    }

    fn resume(&mut self) {
        self.counted = true;
        self.shared.settled().active += 1;
    }

    fn pause(&mut self) {
        if std::mem::take(&mut self.counted) {
            self.shared.settled().active -= 1;
        }
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.pause();
    }
}

/// A trailers-only response, as grpc-go sends errors.
fn status(code: i32, message: &str) -> Response<Answer> {
    let mut response = Response::new(Answer {
        told: None,
        data: VecDeque::new(),
        trailers: None,
        silent: false,
        shared: None,
    });
    *response.headers_mut() = trailers(code, message);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

fn trailers(code: i32, message: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("grpc-status", HeaderValue::from(code));
    if !message.is_empty() {
        let mut escaped = String::new();
        for byte in message.bytes() {
            match byte {
                b'%' => escaped.push_str("%25"),
                b' '..=b'~' => escaped.push(char::from(byte)),
                _ => escaped.push_str(&format!("%{byte:02X}")),
            }
        }
        headers.insert("grpc-message", HeaderValue::try_from(escaped).unwrap());
    }
    headers
}

/// A message as it goes over the wire.
fn framed(message: &[u8]) -> Bytes {
    let mut framed = vec![0];
    framed.extend_from_slice(&u32::try_from(message.len()).unwrap().to_be_bytes());
    framed.extend_from_slice(message);
    framed.into()
}

struct Answer {
    /// The messages of a stream, before the trailers.
    told: Option<EventStream>,
    data: VecDeque<Bytes>,
    trailers: Option<HeaderMap>,
    /// It stays open after the messages.
    silent: bool,
    /// Counter of its data.
    shared: Option<Arc<Shared>>,
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(told) = &mut self.told {
            match told.poll_next(cx) {
                Poll::Ready(Some(message)) => return Poll::Ready(Some(Ok(Frame::data(framed(&message))))),
                Poll::Ready(None) => self.told = None,
                Poll::Pending => return Poll::Pending,
            }
        }
        if let Some(data) = self.data.pop_front() {
            if let Some(shared) = &self.shared {
                shared.sent.fetch_add(data.len() as u64, Ordering::Relaxed);
            }
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        if self.silent {
            return Poll::Pending;
        }
        Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.told.is_none() && self.data.is_empty() && self.trailers.is_none() && !self.silent
    }
}
