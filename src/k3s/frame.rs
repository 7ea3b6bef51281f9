//! WebSocket frames of a client (RFC 6455): sent frames are masked, received ones are not. PURE.

use crate::limits::TUNNEL_MESSAGE_BYTES_MAX;

/// A frame's opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Continues the previous message.
    Continuation,
    /// A text message.
    Text,
    /// A binary message.
    Binary,
    /// Closes the connection.
    Close,
    /// Requests a `Pong`.
    Ping,
    /// Answers a `Ping`.
    Pong,
}

/// The head of a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Opcode.
    pub kind: Kind,
    /// The last frame of its message (FIN).
    pub is_last: bool,
    /// Bytes of the payload.
    pub length: usize,
}

/// Number of length bytes after the first two bytes of a head.
pub fn length_bytes(first: [u8; 2]) -> usize {
    match first[1] & 0x7f {
        126 => 2,
        127 => 8,
        _ => 0,
    }
}

/// Parses a head from its first two bytes and those of [`length_bytes`].
///
/// # Errors
/// It is not a server's frame, or longer than `limits::TUNNEL_MESSAGE_BYTES_MAX`.
pub fn head(first: [u8; 2], length: &[u8]) -> Result<Head, String> {
    let [of_kind, of_length] = first;
    let kind = match of_kind & 0x0f {
        0 => Kind::Continuation,
        1 => Kind::Text,
        2 => Kind::Binary,
        8 => Kind::Close,
        9 => Kind::Ping,
        10 => Kind::Pong,
        other => return Err(format!("a WebSocket frame of the unknown kind {other}")),
    };
    if of_kind & 0x70 != 0 || of_length & 0x80 != 0 {
        return Err("a WebSocket frame that is compressed or masked".to_owned());
    }
    let length = match length {
        [] => u64::from(of_length & 0x7f),
        longer => longer.iter().fold(0, |length, byte| length << 8 | u64::from(*byte)),
    };
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    let is_last = of_kind & 0x80 != 0;
    let is_control = of_kind & 0x08 != 0;
    if length > TUNNEL_MESSAGE_BYTES_MAX || is_control && (length > 125 || !is_last) {
        return Err(format!("a WebSocket frame of {length} bytes"));
    }
    Ok(Head { kind, is_last, length })
}

/// Appends a frame with that payload, given in parts.
pub fn put(out: &mut Vec<u8>, kind: Kind, mask: [u8; 4], payload: &[&[u8]]) {
    let kind = match kind {
        Kind::Continuation => 0,
        Kind::Text => 1,
        Kind::Binary => 2,
        Kind::Close => 8,
        Kind::Ping => 9,
        Kind::Pong => 10,
    };
    let length: usize = payload.iter().map(|part| part.len()).sum();
    out.push(0x80 | kind);
    match (u8::try_from(length), u16::try_from(length)) {
        (Ok(short @ ..126), _) => out.push(0x80 | short),
        (_, Ok(middle)) => {
            out.push(0x80 | 0x7e);
            out.extend_from_slice(&middle.to_be_bytes());
        }
        (_, Err(_)) => {
            out.push(0x80 | 0x7f);
            out.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(&mask);
    let bytes = payload.iter().flat_map(|part| part.iter());
    out.extend(bytes.zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_is_a_masked_frame() {
        let mut out = Vec::new();
        put(&mut out, Kind::Ping, [1, 2, 3, 4], &[b"ab", b"cde"]);
        assert_eq!(out, [0x89, 0x85, 1, 2, 3, 4, b'a' ^ 1, b'b' ^ 2, b'c' ^ 3, b'd' ^ 4, b'e' ^ 1]);
        for (length, head) in [(125, 2), (126, 4), (65535, 4), (65536, 10)] {
            let mut out = Vec::new();
            put(&mut out, Kind::Binary, [0; 4], &[&vec![7; length]]);
            assert_eq!((out[0], out.len()), (0x82, head + 4 + length), "{length}");
            // A server's frame is the same without the mask.
            let first = [out[0], out[1] & 0x7f];
            assert_eq!(length_bytes(first), head - 2);
            let read = super::head(first, &out[2..head]);
            assert_eq!(read, Ok(Head { kind: Kind::Binary, is_last: true, length }));
        }
    }

    #[test]
    fn what_is_no_servers_frame_is_refused() {
        assert_eq!(head([0x00, 3], &[]), Ok(Head { kind: Kind::Continuation, is_last: false, length: 3 }));
        for (first, length) in [
            ([0x83, 0], &[][..]),
            ([0xc2, 0], &[]),
            ([0x82, 0x80], &[]),
            ([0x09, 0], &[]),
            ([0x89, 126], &[0, 126]),
            ([0x82, 127], &[0, 0, 0, 0, 0, 2, 0, 1]),
            ([0x82, 127], &[255; 8]),
        ] {
            assert!(head(first, length).is_err(), "{first:?}");
        }
    }
}
