//! Bytes of a k3s server in its tunnel, in pieces as the first byte says: WebSocket frames, and remotedialer's messages in
//! them. A message is within its limit and holds only bytes that came; what a node writes is read again as the same.

use smolet::k3s::frame::{self, Head, Kind};
use smolet::k3s::message::{self, Message};
use smolet::limits::TUNNEL_MESSAGE_BYTES_MAX;

pub fn run(data: &[u8]) {
    let Some((&first, said)) = data.split_first() else { return };
    let mut rest = said;
    while let Some((head, payload)) = next(&mut rest) {
        assert!(head.length <= TUNNEL_MESSAGE_BYTES_MAX);
        let is_control = matches!(head.kind, Kind::Ping | Kind::Pong | Kind::Close);
        assert!(!is_control || head.is_last && head.length <= 125);
        written(head.kind, [first, 0x5a, 0, 0xff], payload);
        told(payload);
    }
    told(said);
}

/// The next frame, as far as all of it is there.
fn next<'b>(bytes: &mut &'b [u8]) -> Option<(Head, &'b [u8])> {
    let (first, behind) = bytes.split_first_chunk::<2>()?;
    let (length, behind) = behind.split_at_checked(frame::length_bytes(*first))?;
    let head = frame::head(*first, length).ok()?;
    let (payload, behind) = behind.split_at_checked(head.length)?;
    *bytes = behind;
    Some((head, payload))
}

/// A client's frame is a server's with a mask.
fn written(kind: Kind, mask: [u8; 4], payload: &[u8]) {
    let mut out = Vec::new();
    let (one, other) = payload.split_at(payload.len() / 2);
    frame::put(&mut out, kind, mask, &[one, other]);
    assert_eq!(out[1] & 0x80, 0x80, "masked");
    let first = [out[0], out[1] & 0x7f];
    let at = 2 + frame::length_bytes(first);
    let head = frame::head(first, &out[2..at]);
    assert_eq!(head, Ok(Head { kind, is_last: true, length: payload.len() }));
    assert_eq!(out[at..at + 4], mask);
    let unmasked = out[at + 4..].iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask);
    assert!(unmasked.eq(payload.iter().copied()));
}

fn told(bytes: &[u8]) {
    let Ok((connection, message)) = message::read(bytes) else { return };
    let rest = match message {
        Message::Connect(protocol, address) => {
            let length = protocol.len() + 1 + address.len();
            assert!(!protocol.contains('/') && length <= bytes.len().min(266));
            format!("{protocol}/{address}").into_bytes()
        }
        Message::Data(rest) | Message::Ended(rest) => rest.to_vec(),
        Message::Pause | Message::Resume => Vec::new(),
        // Nobody writes these.
        Message::Other => return,
    };
    assert!(bytes.ends_with(&rest) || matches!(message, Message::Connect(..)));
    let again = [message::head(i64::MIN, connection, &message), rest].concat();
    assert_eq!(message::read(&again), Ok((connection, message)));
}
