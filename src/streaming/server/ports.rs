//! Ports that are forwarded by messages of WebSocket (`v4.channel.k8s.io`), as the kubelet's `portforward/websocket.go` has it and the
//! Python client asks for: one connection to each port of the request, whose data have the channel 2·i and whose error has 2·i+1.
//! Each channel begins with its port, as two bytes with the lower one first.

use std::net::TcpStream;
use std::rc::Rc;

use smol::channel::{Sender, bounded};
use smol::future::or;

use super::Streams;
use super::forward::{Out, To, forward};
use super::websocket;
use super::wire::{Answer, ChannelEvent, ChannelReader, Outgoing, Source, of_channel, pong, while_connected};
use crate::executor::Executor;
use crate::limits::{FORWARDED_PORTS_MAX, SERVED_ANSWERS_MAX, STREAM_QUEUE_MAX};
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
    let mut begins = Vec::new();
    for (pair, port) in (0..).zip(ports) {
        let (queue, queued) = bounded(STREAM_QUEUE_MAX);
        let connect = streams.port_forward(request.pod_sandbox_id.clone(), port);
        begins.extend([2 * pair, 2 * pair + 1].map(|channel| of_channel(channel, &port.to_le_bytes())));
        let out = Out { to: To::Channels(2 * pair), answers: answers.clone() };
        tasks.push(executor.spawn("forwarded port", forward(connect, queued, out)));
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
        for begin in begins {
            if out.send(begin).await.is_err() {
                return;
            }
        }
        while let Ok(answer) = answered.recv().await {
            if out.send(answer).await.is_err() {
                return;
            }
        }
    };
    executor.run(or(write, or(read, ended))).await;
    // With it the connections end.
    drop(executor);
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
        let mut reader = ChannelReader::default();
        loop {
            let mut input = self.source.bytes();
            while let Some(event) = reader.next(&mut input)? {
                match event {
                    ChannelEvent::Bytes(number, bytes) => {
                        // Nothing is to be said on an error's channel. A port that has ended takes nothing.
                        let queue =
                            self.queues.get(usize::from(number / 2)).filter(|_| number.is_multiple_of(2));
                        if let Some(queue) = queue.filter(|_| !bytes.is_empty()) {
                            let _ = while_connected(&self.socket, queue.send(bytes.to_vec())).await?;
                        }
                    }
                    ChannelEvent::Ping(ping) => {
                        // After the last answer there is none, and what is queued is still sent.
                        let _ = self.answers.send(pong(&ping)).await;
                    }
                    ChannelEvent::Close => return Ok(()),
                }
            }
            if !self.source.fill().await {
                return Ok(());
            }
        }
    }
}
