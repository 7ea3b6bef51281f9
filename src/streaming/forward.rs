//! One forwarded connection (client-go `portforward.handleConnection`), with its own connection to the server.

use std::convert::Infallible;
use std::net::TcpStream;

use async_io::Async;
use smol::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::Connection;
use super::connection::{Incoming, Outgoing, ReaderState, keep};
use super::frame::{Frame, StreamId};
use crate::limits::STREAM_CHUNK_BYTES;

const ERROR: StreamId = StreamId(1);
const DATA: StreamId = StreamId(3);

/// Copies bytes between `local` and that port of the pod until the pod's end has closed.
///
/// # Errors
/// A message, usually the runtime's: the port has no listener.
pub async fn run(connection: Connection, local: &Async<TcpStream>, port: u16) -> Result<(), String> {
    let Connection { mut incoming, mut outgoing } = connection;
    let port = port.to_string();
    let headers = [("port", port.as_str()), ("requestid", "0")];
    outgoing.open(ERROR, "error", &headers);
    outgoing.open(DATA, "data", &headers);
    let state = ReaderState::new();
    let send = async {
        let never = send(&mut outgoing, &state, local).await;
        match never {}
    };
    smol::future::or(smol::future::or(receive(&mut incoming, &state, local), state.late()), send).await
}

async fn receive(
    incoming: &mut Incoming,
    state: &ReaderState,
    local: &Async<TcpStream>,
) -> Result<(), String> {
    let mut awaited = vec![ERROR, DATA];
    let mut running = vec![ERROR, DATA];
    let mut error = Vec::new();
    let mut local = local;
    while !running.is_empty() {
        let Some(frame) = incoming.frame()? else {
            if incoming.fill().await {
                continue;
            }
            if error.is_empty() && running.contains(&DATA) {
                return Err("the connection to the runtime was lost".to_owned());
            }
            break;
        };
        match frame {
            Frame::Reply(stream) => state.accepted(&mut awaited, stream),
            Frame::Data(DATA, bytes) => {
                // The local end was closed; that is not an error.
                if local.write_all(bytes).await.is_err() {
                    return Ok(());
                }
            }
            Frame::Data(ERROR, bytes) => keep(&mut error, bytes),
            Frame::End(stream) | Frame::Reset(stream) => running.retain(|runs| *runs != stream),
            Frame::Ping(number) => state.pinged(number),
            Frame::Data(..) | Frame::GoAway => {}
        }
    }
    if error.is_empty() { Ok(()) } else { Err(String::from_utf8_lossy(&error).into_owned()) }
}

/// Writes for as long as it is polled.
async fn send(outgoing: &mut Outgoing, state: &ReaderState, mut local: &Async<TcpStream>) -> Infallible {
    let mut buffer = vec![0; STREAM_CHUNK_BYTES];
    let mut more = true;
    let mut sent = outgoing.flush().await;
    while sent.is_ok() {
        let reads = more && state.open.get();
        let input =
            async { if reads { Some(local.read(&mut buffer).await) } else { std::future::pending().await } };
        let heard = async {
            state.heard().await;
            None
        };
        sent = match smol::future::or(heard, input).await {
            None => state.pong(outgoing).await,
            Some(Ok(read)) => {
                // The local end has ended; the pod may still send.
                more = read > 0;
                outgoing.data(DATA, &buffer[..read], !more).await
            }
            Some(Err(_)) => {
                more = false;
                outgoing.reset(DATA);
                outgoing.flush().await
            }
        };
    }
    std::future::pending().await
}
