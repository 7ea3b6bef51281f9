//! Messages of rancher/remotedialer in k3s' tunnel. PURE.
//!
//! ```text
//!     number, connection, kind (numbers as Go's binary.PutVarint), of Data and Connect a deadline, then the rest
//! ```
//!
//! Its `AddClient`, `RemoveClient` and `SyncConnections` are between servers, or redundant: each connection's end is reported on
//! the same ordered stream.

/// The deadline field of a message, which is ignored (`legacyDeadline`, in milliseconds).
const DEADLINE: i64 = 15_000;
/// Bytes of a destination address (as remotedialer).
const ADDRESS_BYTES_MAX: usize = 266;

const DATA: i64 = 1;
const CONNECT: i64 = 2;
const ERROR: i64 = 3;
const PAUSE: i64 = 6;
const RESUME: i64 = 7;

/// The reason of a connection that ended without an error.
pub const END: &str = "EOF";

/// A message about one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message<'b> {
    /// The server asks for a connection to `HOST:PORT` by that protocol.
    Connect(&'b str, &'b str),
    /// Bytes of the connection.
    Data(&'b [u8]),
    /// The connection has ended, for this reason.
    Ended(&'b [u8]),
    /// The peer asks to pause sending.
    Pause,
    /// Sending may resume.
    Resume,
    /// Irrelevant to a node.
    Other,
}

/// Parses the connection's id and the message.
///
/// # Errors
/// It is not such a message.
pub fn read(mut bytes: &[u8]) -> Result<(i64, Message<'_>), String> {
    let rest = &mut bytes;
    number(rest)?;
    let (connection, kind) = (number(rest)?, number(rest)?);
    if matches!(kind, DATA | CONNECT) {
        number(rest)?;
    }
    let rest = *rest;
    let message = match kind {
        DATA => Message::Data(rest),
        CONNECT => {
            let text =
                rest.get(..rest.len().min(ADDRESS_BYTES_MAX)).and_then(|text| std::str::from_utf8(text).ok());
            let (protocol, address) =
                text.and_then(|text| text.split_once('/')).ok_or("a message names no address")?;
            Message::Connect(protocol, address)
        }
        ERROR => Message::Ended(rest),
        PAUSE => Message::Pause,
        RESUME => Message::Resume,
        _ => Message::Other,
    };
    Ok((connection, message))
}

/// Encodes the head of a message, before its data or its reason.
pub fn head(number: i64, connection: i64, message: &Message<'_>) -> Vec<u8> {
    let kind = match message {
        Message::Data(_) => DATA,
        Message::Connect(..) => CONNECT,
        Message::Ended(_) => ERROR,
        Message::Pause => PAUSE,
        Message::Resume | Message::Other => RESUME,
    };
    let mut out = Vec::with_capacity(32);
    for value in [number, connection, kind] {
        put(&mut out, value);
    }
    if matches!(kind, DATA | CONNECT) {
        put(&mut out, DEADLINE);
    }
    out
}

fn number(bytes: &mut &[u8]) -> Result<i64, String> {
    let mut value = 0_u64;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first().ok_or("a message is cut off")?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            // Zigzag encoding: small negative numbers are short, too.
            return Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed());
        }
    }
    Err("a message begins with no number".to_owned())
}

fn put(out: &mut Vec<u8>, value: i64) {
    let mut value = (value << 1 ^ value >> 63).cast_unsigned();
    loop {
        let low = u8::try_from(value & 0x7f).unwrap_or_default();
        value >>= 7;
        if value == 0 {
            out.push(low);
            return;
        }
        out.push(low | 0x80);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_as_remotedialer_writes_them() {
        // PutVarint: 1 -> 02, -1 -> 01, 64 -> 80 01, 15000 -> b0 ea 01.
        let connect = [&[0x80, 0x01, 0x02, 0x04, 0xb0, 0xea, 0x01][..], b"tcp/127.0.0.1:10250"].concat();
        assert_eq!(read(&connect), Ok((1, Message::Connect("tcp", "127.0.0.1:10250"))));
        assert_eq!(head(64, 1, &Message::Connect("", "")), connect[..7]);
        let data = [&[0x01, 0x04, 0x02, 0xb0, 0xea, 0x01][..], b"bytes"].concat();
        assert_eq!(read(&data), Ok((2, Message::Data(b"bytes"))));
        assert_eq!(head(-1, 2, &Message::Data(b"bytes")), data[..6]);
        assert_eq!(head(0, 1, &Message::Ended(b"")), [0, 2, 6]);
        assert_eq!(read(&[0, 2, 6, b'E', b'O', b'F']), Ok((1, Message::Ended(END.as_bytes()))));
        assert_eq!(head(0, 1, &Message::Pause), [0, 2, 12]);
        assert_eq!(read(&[0, 2, 14]), Ok((1, Message::Resume)));
        assert_eq!(read(&[0, 0, 16, 1, 2]), Ok((0, Message::Other)));
        for number in [i64::MIN, i64::MAX, -65, 0, 63, 64] {
            let mut out = Vec::new();
            put(&mut out, number);
            assert_eq!(super::number(&mut &out[..]), Ok(number));
        }
    }

    #[test]
    fn what_is_none_is_refused() {
        for wrong in
            [&[][..], &[0], &[0, 2], &[0, 2, 2], &[0x80; 11], &[0, 2, 4, 0, b't'], &[0, 2, 4, 0, 0xff, b'/']]
        {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
    }
}
