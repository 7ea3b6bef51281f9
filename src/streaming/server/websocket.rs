//! PURE: WebSocket (RFC 6455) as a server speaks it: received frames are masked, sent ones are not. A message is passed on in pieces
//! as it arrives, so no frame has to fit into memory.

#![allow(clippy::mut_mut, reason = "input is consumed from a slice that is unmasked in place")]

use std::fmt;

use base64::Engine as _;

/// Bytes of a control frame's payload, by the protocol.
const CONTROL_BYTES_MAX: usize = 125;
/// Two bytes, a length of eight, and the mask.
const HEAD_BYTES_MAX: usize = 14;

/// A part of the client's messages.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event<'b> {
    /// A message begins.
    Begin,
    /// Its next bytes; never empty.
    Piece(&'b [u8]),
    /// The message has ended.
    End,
    /// The client expects the payload back.
    Ping(Vec<u8>),
    /// The client closes the connection.
    Close,
}

/// What was received is no WebSocket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WebSocketError(&'static str);

impl fmt::Display for WebSocketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "what the client sends is not WebSocket: {}", self.0)
    }
}

/// Decodes frames from the input, however it is cut.
#[derive(Debug)]
pub(super) struct Reader {
    state: State,
    /// Within a message of several frames.
    continues: bool,
}

#[derive(Clone, Debug)]
enum State {
    Head {
        bytes: [u8; HEAD_BYTES_MAX],
        filled: usize,
    },
    /// In a frame of a message.
    Data {
        left: u64,
        last: bool,
        mask: [u8; 4],
        at: usize,
    },
    Control {
        kind: u8,
        payload: Vec<u8>,
        length: usize,
        mask: [u8; 4],
    },
    Closed,
}

const HEAD: State = State::Head { bytes: [0; HEAD_BYTES_MAX], filled: 0 };

impl Default for Reader {
    fn default() -> Self {
        Self { state: HEAD, continues: false }
    }
}

impl Reader {
    /// The next event in `input`, from which the consumed bytes are removed, and in which they are unmasked; `None` when more are
    /// needed.
    ///
    /// # Errors
    /// It is not WebSocket; the reader cannot continue then.
    pub(super) fn next<'b>(&mut self, input: &mut &'b mut [u8]) -> Result<Option<Event<'b>>, WebSocketError> {
        loop {
            match &mut self.state {
                State::Head { bytes, filled } => {
                    let wanted = head_bytes(&bytes[..*filled]);
                    if *filled < wanted {
                        let here = take(input, wanted - *filled);
                        if here.is_empty() {
                            return Ok(None);
                        }
                        bytes[*filled..*filled + here.len()].copy_from_slice(here);
                        *filled += here.len();
                        continue;
                    }
                    let head = bytes[..wanted].to_vec();
                    if let Some(begins) = self.begin(&head)? {
                        return Ok(Some(begins));
                    }
                }
                State::Data { left, last, mask, at } => {
                    if *left == 0 {
                        let last = *last;
                        self.state = HEAD;
                        self.continues = !last;
                        if last {
                            return Ok(Some(Event::End));
                        }
                        continue;
                    }
                    let piece = take(input, usize::try_from(*left).unwrap_or(usize::MAX));
                    if piece.is_empty() {
                        return Ok(None);
                    }
                    for byte in piece.iter_mut() {
                        *byte ^= mask[*at % 4];
                        *at += 1;
                    }
                    *at %= 4;
                    *left -= piece.len() as u64;
                    return Ok(Some(Event::Piece(piece)));
                }
                State::Control { kind, payload, length, mask } => {
                    let piece = take(input, *length - payload.len());
                    payload.extend_from_slice(piece);
                    if payload.len() < *length {
                        return Ok(None);
                    }
                    let unmasked =
                        payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask).collect();
                    let kind = *kind;
                    self.state = HEAD;
                    match kind {
                        8 => {
                            self.state = State::Closed;
                            return Ok(Some(Event::Close));
                        }
                        9 => return Ok(Some(Event::Ping(unmasked))),
                        // A pong that nobody asked for.
                        _ => {}
                    }
                }
                State::Closed => {
                    *input = &mut [];
                    return Ok(None);
                }
            }
        }
    }

    /// A frame begins, with this head.
    fn begin(&mut self, head: &[u8]) -> Result<Option<Event<'static>>, WebSocketError> {
        let [first, second, rest @ ..] = head else { return Err(WebSocketError("a head that is too short")) };
        let (length, mask) = rest.split_at(rest.len().saturating_sub(4));
        let length = match length {
            [] => u64::from(second & 0x7f),
            longer => longer.iter().fold(0, |length, byte| length << 8 | u64::from(*byte)),
        };
        let mask = <[u8; 4]>::try_from(mask).map_err(|_| WebSocketError("a frame without a mask"))?;
        let (last, kind) = (first & 0x80 != 0, first & 0x0f);
        if first & 0x70 != 0 {
            return Err(WebSocketError("an extension that was not agreed on"));
        }
        match kind {
            8..=10 => {
                let short =
                    usize::try_from(length).ok().filter(|length| last && *length <= CONTROL_BYTES_MAX);
                let length = short.ok_or(WebSocketError("a control frame over the limit"))?;
                self.state = State::Control { kind, payload: Vec::new(), length, mask };
                Ok(None)
            }
            0..=2 if (kind == 0) == self.continues => {
                self.state = State::Data { left: length, last, mask, at: 0 };
                Ok((kind != 0).then_some(Event::Begin))
            }
            0..=2 => Err(WebSocketError("a message within another")),
            _ => Err(WebSocketError("a frame of an unknown kind")),
        }
    }
}

/// The length of a head by its first bytes. A frame without a mask has none of these bytes, and is refused with them.
fn head_bytes(begun: &[u8]) -> usize {
    let [_, second, ..] = begun else { return 2 };
    let length = match second & 0x7f {
        126 => 2,
        127 => 8,
        _ => 0,
    };
    2 + length + if second & 0x80 == 0 { 0 } else { 4 }
}

fn take<'b>(input: &mut &'b mut [u8], count: usize) -> &'b mut [u8] {
    let all = std::mem::take(input);
    let (taken, rest) = all.split_at_mut(count.min(all.len()));
    *input = rest;
    taken
}

/// Opcode of a binary message.
pub(super) const BINARY: u8 = 2;
/// Opcode of the answer to a ping.
pub(super) const PONG: u8 = 10;
/// A whole close frame: normal closure (1000).
pub(super) const CLOSE: [u8; 4] = [0x88, 2, 0x03, 0xe8];

/// Appends a frame that is a whole message, with its payload in parts.
pub(super) fn put(out: &mut Vec<u8>, opcode: u8, payload: &[&[u8]]) {
    let length: usize = payload.iter().map(|part| part.len()).sum();
    out.push(0x80 | opcode);
    match (u8::try_from(length), u16::try_from(length)) {
        (Ok(short @ ..126), _) => out.push(short),
        (_, Ok(middle)) => {
            out.push(126);
            out.extend_from_slice(&middle.to_be_bytes());
        }
        (_, Err(_)) => {
            out.push(127);
            out.extend_from_slice(&(length as u64).to_be_bytes());
        }
    }
    for part in payload {
        out.extend_from_slice(part);
    }
}

/// `Sec-WebSocket-Accept` for the client's key.
pub(super) fn accept(key: &str) -> String {
    base64::engine::general_purpose::STANDARD
        .encode(sha1(format!("{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11").as_bytes()))
}

/// SHA-1 (FIPS 180-4), which the handshake of WebSocket is made with; nothing here is secret or signed.
fn sha1(message: &[u8]) -> [u8; 20] {
    let mut padded = message.to_vec();
    padded.push(0x80);
    padded.resize((padded.len() + 8).next_multiple_of(64) - 8, 0);
    padded.extend_from_slice(&(message.len() as u64 * 8).to_be_bytes());
    let mut state: [u32; 5] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476, 0xc3d2_e1f0];
    for block in padded.chunks_exact(64) {
        let mut words = [0_u32; 80];
        for (word, bytes) in words.iter_mut().zip(block.chunks_exact(4)) {
            *word = bytes.iter().fold(0, |word, byte| word << 8 | u32::from(*byte));
        }
        for at in 16..80 {
            words[at] = (words[at - 3] ^ words[at - 8] ^ words[at - 14] ^ words[at - 16]).rotate_left(1);
        }
        let mut mixed = state;
        for (round, word) in words.iter().enumerate() {
            let [first, second, third, fourth, fifth] = mixed;
            let (function, constant) = match round {
                0..20 => (second & third | !second & fourth, 0x5a82_7999),
                20..40 => (second ^ third ^ fourth, 0x6ed9_eba1),
                40..60 => (second & third | second & fourth | third & fourth, 0x8f1b_bcdc),
                _ => (second ^ third ^ fourth, 0xca62_c1d6_u32),
            };
            let parts = [function, fifth, constant, *word];
            let next = parts.into_iter().fold(first.rotate_left(5), u32::wrapping_add);
            mixed = [next, first, second.rotate_left(30), third, fourth];
        }
        for (word, add) in state.iter_mut().zip(mixed) {
            *word = word.wrapping_add(add);
        }
    }
    let mut digest = [0; 20];
    for (bytes, word) in digest.chunks_exact_mut(4).zip(state) {
        bytes.copy_from_slice(&word.to_be_bytes());
    }
    digest
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client's frame.
    fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        put(&mut out, 0, &[payload]);
        out[0] = first;
        out[1] |= 0x80;
        let mask = [1, 2, 3, 250];
        let at = out.len() - payload.len();
        for (byte, mask) in out[at..].iter_mut().zip(mask.iter().cycle()) {
            *byte ^= mask;
        }
        out.splice(at..at, mask);
        out
    }

    fn read(bytes: &[u8], size: usize) -> Result<Vec<String>, WebSocketError> {
        let (mut reader, mut events, mut data) = (Reader::default(), Vec::new(), Vec::new());
        for piece in bytes.chunks(size) {
            let mut piece = piece.to_vec();
            let mut input = piece.as_mut_slice();
            while let Some(event) = reader.next(&mut input)? {
                match event {
                    Event::Piece(piece) => data.extend_from_slice(piece),
                    Event::End => {
                        events.push(format!("end {}", String::from_utf8_lossy(&std::mem::take(&mut data))));
                    }
                    Event::Ping(payload) => {
                        events.push(format!("ping {}", String::from_utf8_lossy(&payload)));
                    }
                    Event::Begin => events.push("begin".to_owned()),
                    Event::Close => events.push("close".to_owned()),
                }
            }
        }
        Ok(events)
    }

    #[test]
    fn messages_are_read_however_they_are_cut() {
        let long = "y".repeat(70_000);
        let bytes = [
            frame(0x82, b"\x00words"),
            frame(0x02, b"in "),
            frame(0x89, b"still there?"),
            frame(0x80, b"parts"),
            frame(0x8a, b""),
            frame(0x82, b""),
            frame(0x81, "x".repeat(300).as_bytes()),
            frame(0x82, long.as_bytes()),
            frame(0x88, &[3, 232]),
            frame(0x82, b"after the end"),
        ]
        .concat();
        let expected = [
            "begin",
            "end \0words",
            "begin",
            "ping still there?",
            "end in parts",
            "begin",
            "end ",
            "begin",
            &format!("end {}", "x".repeat(300)),
            "begin",
            &format!("end {long}"),
            "close",
        ];
        for size in [1, 2, 3, 7, 1000, bytes.len()] {
            assert_eq!(read(&bytes, size).unwrap(), expected, "pieces of {size}");
        }
    }

    #[test]
    fn what_is_no_websocket_is_an_error() {
        for (bytes, why) in [
            (vec![0x82, 1, b'x'], "a frame without a mask"),
            (frame(0xc2, b"x"), "an extension that was not agreed on"),
            (frame(0x80, b"x"), "a message within another"),
            ([frame(0x02, b"x"), frame(0x82, b"x")].concat(), "a message within another"),
            (frame(0x83, b"x"), "a frame of an unknown kind"),
            (frame(0x89, &[0; 126]), "a control frame over the limit"),
            (frame(0x09, b"x"), "a control frame over the limit"),
        ] {
            assert_eq!(read(&bytes, 1000), Err(WebSocketError(why)), "{}", bytes.escape_ascii());
        }
        let mut random = fastrand::Rng::with_seed(19);
        for _ in 0..crate::cases(2000) {
            let noise: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(100).collect();
            let _ = read(&noise, random.usize(1..100));
        }
    }

    #[test]
    fn a_key_is_accepted_as_the_standard_says() {
        assert_eq!(accept("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }
}
