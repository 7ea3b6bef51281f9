//! Forwarded connections of one client: each is a pair of streams, `data` and `error`, with a connection to a port of the pod.

use std::net::{Shutdown, TcpStream};
use std::rc::Rc;

use smol::Task;
use smol::channel::{Receiver, Sender, bounded};
use smol::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::spdy::{Frame, Headers, Reader, header};
use super::wire::{Answer, Outgoing, Source, SpdySource, of_channel, while_connected};
use super::{Running, Streams};
use crate::executor::Executor;
use crate::limits::{FORWARDED_CONNECTIONS_MAX, SERVED_ANSWERS_MAX, STREAM_CHUNK_BYTES, STREAM_QUEUE_MAX};
use crate::proto::runtime::v1::PortForwardRequest;
use crate::stream::Socket;
use crate::streaming::frame::{Opener, StreamId, put_data, put_ping, put_reset};

/// Forwards until the client is gone.
pub(super) async fn serve(
    socket: Rc<Socket<TcpStream>>,
    already: Vec<u8>,
    is_tunnel: bool,
    request: PortForwardRequest,
    streams: &Rc<dyn Streams>,
) {
    // The connections' tasks run on an executor of their own, which ends with this future.
    let executor = Executor::new();
    let (answers, answered) = bounded(SERVED_ANSWERS_MAX);
    let out = Outgoing::new(socket.clone(), is_tunnel);
    let source = SpdySource::new(Source::new(socket.clone(), already), is_tunnel, answers.clone());
    let read = async {
        let pairs = Pairs { socket, request, open: Vec::new(), answers, streams, executor: &executor };
        if let Err(why) = pairs.run(source).await {
            log::debug!("streaming connection: {why}");
        }
    };
    let write = async {
        while let Ok(answer) = answered.recv().await {
            if out.send(answer).await.is_err() {
                return;
            }
        }
    };
    executor.run(smol::future::or(read, write)).await;
}

/// A forwarded connection.
struct Pair {
    /// The client's name of it.
    request: String,
    port: u16,
    error: Option<StreamId>,
    data: Option<StreamId>,
    /// What the client sends; `None`: nothing more.
    queue: Option<Sender<Vec<u8>>>,
    /// It was begun when both streams were there.
    task: Option<Task<()>>,
}

struct Pairs<'a> {
    socket: Rc<Socket<TcpStream>>,
    request: PortForwardRequest,
    /// At most `FORWARDED_CONNECTIONS_MAX`.
    open: Vec<Pair>,
    answers: Sender<Answer>,
    streams: &'a Rc<dyn Streams>,
    executor: &'a Executor,
}

impl Pairs<'_> {
    async fn run(mut self, mut source: SpdySource) -> Result<(), String> {
        let (mut reader, mut opener) = (Reader::default(), Opener::default());
        loop {
            if !source.unwrap().await {
                return Ok(());
            }
            let mut input = source.bytes();
            while let Some(frame) = reader.next(&mut input).map_err(|error| error.to_string())? {
                let mut answer = Vec::new();
                match frame {
                    Frame::Open(stream, headers) => match self.open(stream, &headers) {
                        Some(at) => {
                            // The answer precedes whatever the pod sends.
                            opener.reply(&mut answer, stream);
                            self.send(std::mem::take(&mut answer)).await?;
                            self.begin(at);
                        }
                        None => put_reset(&mut answer, stream),
                    },
                    Frame::Data(stream, bytes) => {
                        let socket = self.socket.clone();
                        if let Some(pair) = self.of_data(stream)
                            && let Some(queue) = &pair.queue
                            && while_connected(&socket, queue.send(bytes.to_vec())).await?.is_err()
                        {
                            pair.queue = None;
                        }
                    }
                    Frame::End(stream) => {
                        if let Some(pair) = self.of_data(stream) {
                            pair.queue = None;
                        }
                    }
                    // The connection is given up.
                    Frame::Reset(stream) => self.open.retain(|pair| pair.data != Some(stream)),
                    Frame::Ping(number) => put_ping(&mut answer, number),
                }
                if !answer.is_empty() {
                    self.send(answer).await?;
                }
            }
            if !source.fill().await {
                return Ok(());
            }
        }
    }

    async fn send(&self, answer: Vec<u8>) -> Result<(), String> {
        self.answers.send(Answer::Spdy(answer)).await.map_err(|_| "the client no longer reads".to_owned())
    }

    fn of_data(&mut self, stream: StreamId) -> Option<&mut Pair> {
        self.open.iter_mut().find(|pair| pair.data == Some(stream))
    }

    /// Which pair the stream belongs to; `None`: it is refused.
    fn open(&mut self, stream: StreamId, headers: &Headers) -> Option<usize> {
        let is_error = match header(headers, "streamtype") {
            Some("error") => true,
            Some("data") => false,
            _ => return None,
        };
        let port = header(headers, "port")?.parse().ok().filter(|port| *port > 0)?;
        let allowed = &self.request.port;
        if !allowed.is_empty() && !allowed.contains(&i32::from(port)) {
            return None;
        }
        // Old clients number their requests by the error stream, which they open first.
        let first = if is_error { stream.0 } else { stream.0.saturating_sub(2) };
        let request = header(headers, "requestid").map_or_else(|| first.to_string(), str::to_owned);
        self.open.retain(|pair| pair.task.as_ref().is_none_or(|task| !task.is_finished()));
        let found = self.open.iter().position(|pair| pair.request == request && pair.task.is_none());
        let at = match found {
            Some(at) => at,
            None if self.open.len() < FORWARDED_CONNECTIONS_MAX => {
                let (error, data, queue, task) = Default::default();
                self.open.push(Pair { request, port, error, data, queue, task });
                self.open.len() - 1
            }
            None => return None,
        };
        let pair = &mut self.open[at];
        let place = if is_error { &mut pair.error } else { &mut pair.data };
        place.replace(stream).is_none().then_some(at)
    }

    /// Begins the connection, if both streams are there.
    fn begin(&mut self, at: usize) {
        let pair = &mut self.open[at];
        let (Some(error), Some(data)) = (pair.error, pair.data) else { return };
        let (queue, queued) = bounded(STREAM_QUEUE_MAX);
        let connect = self.streams.port_forward(self.request.pod_sandbox_id.clone(), pair.port);
        let out = Out { to: To::Streams { error, data }, answers: self.answers.clone() };
        pair.queue = Some(queue);
        pair.task = Some(self.executor.spawn("forwarded connection", forward(connect, queued, out)));
    }
}

/// Where a connection's bytes go.
pub(super) struct Out {
    pub(super) to: To,
    pub(super) answers: Sender<Answer>,
}

/// How the client is told.
#[derive(Clone, Copy)]
pub(super) enum To {
    /// By two streams of SPDY.
    Streams { error: StreamId, data: StreamId },
    /// By a channel of WebSocket for the data, and the next one for the error.
    Channels(u8),
}

impl Out {
    /// False: the client is gone.
    async fn data(&self, bytes: &[u8]) -> bool {
        let frame = match self.to {
            To::Streams { data, .. } => of_stream(data, bytes, false),
            To::Channels(data) => of_channel(data, bytes),
        };
        self.answers.send(frame).await.is_ok()
    }

    /// There is nothing more; empty: without an error.
    async fn end(&self, why: &str) {
        let frames = match self.to {
            To::Streams { error, data } => {
                vec![of_stream(data, &[], true), of_stream(error, why.as_bytes(), true)]
            }
            To::Channels(_) if why.is_empty() => Vec::new(),
            To::Channels(data) => vec![of_channel(data + 1, why.as_bytes())],
        };
        for frame in frames {
            let _ = self.answers.send(frame).await;
        }
    }
}

fn of_stream(stream: StreamId, bytes: &[u8], fin: bool) -> Answer {
    let mut frame = Vec::with_capacity(bytes.len() + 8);
    put_data(&mut frame, stream, bytes, fin);
    Answer::Spdy(frame)
}

/// Copies until the pod has closed its end, or the client is gone.
pub(super) async fn forward(
    connect: Running<Result<Socket<TcpStream>, String>>,
    queued: Receiver<Vec<u8>>,
    out: Out,
) {
    let mut why = String::new();
    match connect.await {
        Err(error) => why = error,
        Ok(socket) => {
            let there = async {
                let mut socket = &socket;
                while let Ok(bytes) = queued.recv().await {
                    if socket.write_all(&bytes).await.is_err() {
                        queued.close();
                        break;
                    }
                }
                let _ = socket.get_ref().shutdown(Shutdown::Write);
                std::future::pending::<()>().await;
            };
            let back = async {
                let mut socket = &socket;
                let mut buffer = vec![0; STREAM_CHUNK_BYTES];
                while let Ok(read @ 1..) = socket.read(&mut buffer).await {
                    if !out.data(&buffer[..read]).await {
                        break;
                    }
                }
            };
            smol::future::or(back, there).await;
        }
    }
    queued.close();
    out.end(&why).await;
}
