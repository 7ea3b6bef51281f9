//! Ports that are forwarded by messages of WebSocket (`v4.channel.k8s.io`), as the kubelet's `portforward/websocket.go` has it and the
//! Python client asks for: one connection to each port of the request, whose data have the channel 2·i and whose error has 2·i+1.
//! Each channel begins with its port, as two bytes with the lower one first.

use std::net::{Shutdown, TcpStream};
use std::rc::Rc;

use smol::channel::{Receiver, Sender, bounded};
use smol::future::or;
use smol::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::websocket::{self, Event};
use super::wire::{Answer, Outgoing, Source, pong, while_connected};
use super::{Running, Streams};
use crate::executor::Executor;
use crate::limits::{FORWARDED_PORTS_MAX, SERVED_ANSWERS_MAX, STREAM_CHUNK_BYTES, STREAM_QUEUE_MAX};
use crate::proto::runtime::v1::PortForwardRequest;
use crate::stream::Socket;

/// Forwards until all connections have ended, or the client is gone.
pub(super) async fn serve(
    socket: Rc<Socket<TcpStream>>,
    already: Vec<u8>,
    request: PortForwardRequest,
    streams: &Rc<dyn Streams>,
) {
    // The connections' tasks run on an executor of their own, which ends with this future.
    let executor = Executor::new();
    let (answers, answered) = bounded(SERVED_ANSWERS_MAX);
    let ports = request.port.iter().filter_map(|port| u16::try_from(*port).ok()).take(FORWARDED_PORTS_MAX);
    let (mut queues, mut tasks) = (Vec::new(), Vec::new());
    for (pair, port) in (0..).zip(ports) {
        let (queue, queued) = bounded(STREAM_QUEUE_MAX);
        let connect = streams.port_forward(request.pod_sandbox_id.clone(), port);
        let out = Out { data: 2 * pair, answers: answers.clone() };
        tasks.push(executor.spawn("forwarded port", forward(connect, port, queued, out)));
        queues.push(queue);
    }
    let out = Outgoing::new(socket.clone(), false);
    let source = Source::new(socket.clone(), already);
    let mut reading = Reading { socket, source, queues, answers: answers.clone() };
    let read = async {
        if let Err(why) = reading.run().await {
            log::debug!("streaming connection: {why}");
        }
    };
    let ended = async {
        for task in tasks {
            task.await;
        }
        // What is queued is sent before the channel ends.
        let _ = answers.send(Answer::WebSocket(websocket::CLOSE.to_vec())).await;
        answers.close();
        std::future::pending::<()>().await;
    };
    let write = async {
        while let Ok(answer) = answered.recv().await {
            if out.send(answer).await.is_err() {
                return;
            }
        }
    };
    executor.run(or(write, or(read, ended))).await;
    let rest = async {
        let _ = reading.run().await;
    };
    out.finish(rest).await;
}

/// The client's half.
struct Reading {
    socket: Rc<Socket<TcpStream>>,
    source: Source,
    /// What goes to each port.
    queues: Vec<Sender<Vec<u8>>>,
    answers: Sender<Answer>,
}

impl Reading {
    /// Reads until the client is gone.
    async fn run(&mut self) -> Result<(), String> {
        let mut reader = websocket::Reader::default();
        // The first byte of the message, once it was read.
        let mut number = None;
        loop {
            let mut input = self.source.bytes();
            while let Some(event) = reader.next(&mut input).map_err(|error| error.to_string())? {
                match event {
                    Event::Begin | Event::End => number = None,
                    Event::Piece(piece) => {
                        let mut bytes: &[u8] = piece;
                        let of = match (number, bytes.split_first()) {
                            (Some(number), _) => number,
                            (None, Some((first, rest))) => {
                                bytes = rest;
                                *number.insert(*first)
                            }
                            (None, None) => continue,
                        };
                        // Nothing is to be said on an error's channel. A port that has ended takes nothing.
                        let queue = self.queues.get(usize::from(of / 2)).filter(|_| of.is_multiple_of(2));
                        if let Some(queue) = queue.filter(|_| !bytes.is_empty()) {
                            let _ = while_connected(&self.socket, queue.send(bytes.to_vec())).await?;
                        }
                    }
                    Event::Ping(ping) => {
                        if self.answers.send(pong(&ping)).await.is_err() {
                            return Ok(());
                        }
                    }
                    Event::Close => return Ok(()),
                }
            }
            if !self.source.fill().await {
                return Ok(());
            }
        }
    }
}

/// Where the bytes of a port go.
struct Out {
    /// The number of its data's channel; the next one is its error's.
    data: u8,
    answers: Sender<Answer>,
}

impl Out {
    /// False: the client is gone.
    async fn send(&self, channel: u8, bytes: &[u8]) -> bool {
        let mut frame = Vec::with_capacity(bytes.len() + 11);
        websocket::put(&mut frame, websocket::BINARY, &[&[channel], bytes]);
        self.answers.send(Answer::WebSocket(frame)).await.is_ok()
    }
}

/// Copies until the pod has closed its end, or the client is gone.
async fn forward(
    connect: Running<Result<Socket<TcpStream>, String>>,
    port: u16,
    queued: Receiver<Vec<u8>>,
    out: Out,
) {
    for channel in [out.data, out.data + 1] {
        out.send(channel, &port.to_le_bytes()).await;
    }
    let socket = match connect.await {
        Ok(socket) => socket,
        Err(why) => {
            queued.close();
            out.send(out.data + 1, why.as_bytes()).await;
            return;
        }
    };
    let there = async {
        let mut socket = &socket;
        while let Ok(bytes) = queued.recv().await {
            if socket.write_all(&bytes).await.is_err() {
                break;
            }
        }
        queued.close();
        let _ = socket.get_ref().shutdown(Shutdown::Write);
        std::future::pending::<()>().await;
    };
    let back = async {
        let mut socket = &socket;
        let mut buffer = vec![0; STREAM_CHUNK_BYTES];
        while let Ok(read @ 1..) = socket.read(&mut buffer).await {
            if !out.send(out.data, &buffer[..read]).await {
                break;
            }
        }
    };
    or(back, there).await;
    queued.close();
}
