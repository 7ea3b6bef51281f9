//! PURE: SPDY/3.1 frames, as far as the streaming servers of container runtimes use them (moby/spdystream, on which
//! `k8s.io/streaming` is built). Decodes bytes to frames, and encodes frames to bytes.
//!
//! ```text
//!     control  |1| version 3 (15) | type (16) | flags (8) | length (24) | payload
//!     data     |0| stream (31)                | flags (8) | length (24) | payload
//! ```
//!
//! A DATA frame's payload is passed on as it arrives, so no frame has to fit into memory. The header blocks of the server have no
//! needed information (its `SYN_REPLY` has none at all), so they are skipped, and nothing is ever inflated. Sent header blocks
//! are deflate blocks of type "stored", which every zlib reads.

use std::fmt;

use crate::limits::STREAM_CONTROL_BYTES_MAX;

/// The version in control frames: SPDY/3.1 has SPDY/3's.
const VERSION: u16 = 3;
const FLAG_FIN: u8 = 1;
const HEAD_BYTES: usize = 8;

const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GOAWAY: u16 = 7;

/// The status `CANCEL` of a `RST_STREAM`.
const CANCEL: u32 = 5;

/// The head of the zlib stream of sent header blocks: deflate, window of 32 KiB, a preset dictionary, and the checksum of
/// SPDY/3's. Stored blocks do not refer to the dictionary, so it is not needed here.
const ZLIB_HEAD: [u8; 6] = [0x78, 0xbb, 0xe3, 0xc6, 0xa7, 0xc2];
/// An empty stored block (zlib's sync flush): all that was written so far can be decoded.
const ZLIB_FLUSH: [u8; 5] = [0, 0, 0, 0xff, 0xff];

/// A stream of one connection; odd if the client opened it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamId(pub u32);

/// A frame of the server.
#[derive(Debug, PartialEq, Eq)]
pub enum Frame<'b> {
    /// It has accepted the stream.
    Reply(StreamId),
    /// The next bytes of a stream; never empty.
    Data(StreamId, &'b [u8]),
    /// It sends nothing more on the stream.
    End(StreamId),
    /// It neither sends nor accepts anything more on the stream.
    Reset(StreamId),
    /// It expects the same number back.
    Ping(u32),
    /// It accepts no further streams.
    GoAway,
}

/// The input is not SPDY/3.1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameError(pub(super) &'static str);

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "what it sends is not SPDY/3.1: {}", self.0)
    }
}

/// Decodes frames from the input, however it is cut.
#[derive(Debug)]
pub struct Reader(State);

#[derive(Debug)]
enum State {
    /// In a frame's head.
    Head { bytes: [u8; HEAD_BYTES], filled: usize },
    /// In the needed part of a control frame's payload; `rest` bytes follow it.
    Fixed { kind: u16, fin: bool, bytes: [u8; HEAD_BYTES], filled: usize, wanted: usize, rest: usize },
    /// In a DATA frame.
    Data { stream: StreamId, fin: bool, left: usize },
    /// In the skipped part of a control frame; a stream that ends with the frame is reported after it.
    Skip { left: usize, ended: Option<StreamId> },
}

impl Default for Reader {
    fn default() -> Self {
        Self(HEAD)
    }
}

const HEAD: State = State::Head { bytes: [0; HEAD_BYTES], filled: 0 };

impl Reader {
    /// The next frame in `input`, from which the consumed bytes are removed; `None` when more are needed.
    ///
    /// # Errors
    /// It is not SPDY/3.1; the reader cannot continue then.
    pub fn next<'b>(&mut self, input: &mut &'b [u8]) -> Result<Option<Frame<'b>>, FrameError> {
        loop {
            match &mut self.0 {
                State::Head { bytes, filled } => {
                    if !fill(bytes, filled, HEAD_BYTES, input) {
                        return Ok(None);
                    }
                    self.0 = head(*bytes)?;
                }
                State::Fixed { kind, fin, bytes, filled, wanted, rest } => {
                    if !fill(bytes, filled, *wanted, input) {
                        return Ok(None);
                    }
                    let [a, b, c, d, ..] = *bytes;
                    let number = u32::from_be_bytes([a, b, c, d]);
                    let stream = StreamId(number & (u32::MAX >> 1));
                    let frame = match *kind {
                        SYN_REPLY => Some(Frame::Reply(stream)),
                        RST_STREAM => Some(Frame::Reset(stream)),
                        PING => Some(Frame::Ping(number)),
                        GOAWAY => Some(Frame::GoAway),
                        // SETTINGS, HEADERS and the like are irrelevant. The server opens no streams.
                        _ => None,
                    };
                    let ended = (*fin && *kind == SYN_REPLY).then_some(stream);
                    self.0 = State::Skip { left: *rest, ended };
                    if frame.is_some() {
                        return Ok(frame);
                    }
                }
                State::Data { stream, fin, left } => {
                    let (stream, here) = (*stream, (*left).min(input.len()));
                    if here > 0 {
                        let (data, rest) = input.split_at(here);
                        *input = rest;
                        *left -= here;
                        return Ok(Some(Frame::Data(stream, data)));
                    }
                    if *left > 0 {
                        return Ok(None);
                    }
                    let fin = *fin;
                    self.0 = HEAD;
                    if fin {
                        return Ok(Some(Frame::End(stream)));
                    }
                }
                State::Skip { left, ended } => {
                    let here = (*left).min(input.len());
                    *input = &input[here..];
                    *left -= here;
                    if *left > 0 {
                        return Ok(None);
                    }
                    let ended = *ended;
                    self.0 = HEAD;
                    if let Some(stream) = ended {
                        return Ok(Some(Frame::End(stream)));
                    }
                }
            }
        }
    }
}

/// Copies missing bytes from the input; true when complete.
fn fill(bytes: &mut [u8; HEAD_BYTES], filled: &mut usize, wanted: usize, input: &mut &[u8]) -> bool {
    let here = (wanted - *filled).min(input.len());
    let (taken, rest) = input.split_at(here);
    bytes[*filled..*filled + here].copy_from_slice(taken);
    *filled += here;
    *input = rest;
    *filled == wanted
}

fn head(bytes: [u8; HEAD_BYTES]) -> Result<State, FrameError> {
    let [first, second, third, fourth, flags, length @ ..] = bytes;
    let fin = flags & FLAG_FIN != 0;
    // 24 bits: they fit on every target.
    let length = length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
    if first & 0x80 == 0 {
        return match u32::from_be_bytes([first, second, third, fourth]) {
            0 => Err(FrameError("data of stream 0")),
            stream => Ok(State::Data { stream: StreamId(stream), fin, left: length }),
        };
    }
    if u16::from_be_bytes([first & 0x7f, second]) != VERSION {
        return Err(FrameError("a control frame of another version"));
    }
    if length > STREAM_CONTROL_BYTES_MAX {
        return Err(FrameError("a control frame over the limit"));
    }
    let kind = u16::from_be_bytes([third, fourth]);
    let wanted = match kind {
        SYN_REPLY | PING => 4,
        RST_STREAM | GOAWAY => 8,
        _ => 0,
    };
    let rest = length.checked_sub(wanted).ok_or(FrameError("a control frame that is too short"))?;
    Ok(State::Fixed { kind, fin, bytes: [0; HEAD_BYTES], filled: 0, wanted, rest })
}

/// Opens and accepts streams. The header blocks of one connection are one zlib stream, so each connection has one of these.
#[derive(Debug, Default)]
pub struct Opener {
    begun: bool,
}

impl Opener {
    /// Appends a `SYN_STREAM` to `out`. Names of headers are in lower case; Go's server accepts any case.
    pub fn open(&mut self, out: &mut Vec<u8>, stream: StreamId, headers: &[(&str, &str)]) {
        // No associated stream, the highest priority, no credential slot.
        self.put(out, SYN_STREAM, stream, &[0; 6], headers);
    }

    /// Appends a `SYN_REPLY` without headers to `out`: the stream is accepted.
    pub fn reply(&mut self, out: &mut Vec<u8>, stream: StreamId) {
        self.put(out, SYN_REPLY, stream, &[], &[]);
    }

    fn put(
        &mut self,
        out: &mut Vec<u8>,
        kind: u16,
        stream: StreamId,
        fixed: &[u8],
        headers: &[(&str, &str)],
    ) {
        let mut block = Vec::with_capacity(128);
        put_number(&mut block, headers.len());
        for (name, value) in headers {
            for text in [name, value] {
                put_number(&mut block, text.len());
                block.extend_from_slice(text.as_bytes());
            }
        }
        let at = out.len();
        out.extend_from_slice(&[0; HEAD_BYTES]);
        out.extend_from_slice(&stream.0.to_be_bytes());
        out.extend_from_slice(fixed);
        if !std::mem::replace(&mut self.begun, true) {
            out.extend_from_slice(&ZLIB_HEAD);
        }
        // A stored block: its type, its length, the complement of the length, and the bytes.
        for part in block.chunks(usize::from(u16::MAX)) {
            let [low, high, ..] = part.len().to_le_bytes();
            out.extend_from_slice(&[0, low, high, !low, !high]);
            out.extend_from_slice(part);
        }
        out.extend_from_slice(&ZLIB_FLUSH);
        let head = control_head(kind, out.len() - at - HEAD_BYTES);
        out[at..at + HEAD_BYTES].copy_from_slice(&head);
    }
}

/// Appends a DATA frame to `out`: at most 16 MiB - 1 of data. With `fin` nothing more follows on the stream.
pub fn put_data(out: &mut Vec<u8>, stream: StreamId, data: &[u8], fin: bool) {
    out.extend_from_slice(&stream.0.to_be_bytes());
    out.push(u8::from(fin) * FLAG_FIN);
    out.extend_from_slice(&length_bytes(data.len()));
    out.extend_from_slice(data);
}

/// Appends the answer to a `PING` to `out`.
pub fn put_ping(out: &mut Vec<u8>, number: u32) {
    out.extend_from_slice(&control_head(PING, 4));
    out.extend_from_slice(&number.to_be_bytes());
}

/// Appends a `RST_STREAM` to `out`: the stream is no longer needed.
pub fn put_reset(out: &mut Vec<u8>, stream: StreamId) {
    out.extend_from_slice(&control_head(RST_STREAM, 8));
    out.extend_from_slice(&stream.0.to_be_bytes());
    out.extend_from_slice(&CANCEL.to_be_bytes());
}

/// Appends a `GOAWAY` to `out`: the connection ends as agreed, after all streams up to that one.
pub fn put_go_away(out: &mut Vec<u8>, last: StreamId) {
    out.extend_from_slice(&control_head(GOAWAY, 8));
    out.extend_from_slice(&last.0.to_be_bytes());
    out.extend_from_slice(&[0; 4]);
}

fn control_head(kind: u16, length: usize) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[..2].copy_from_slice(&(VERSION | 0x8000).to_be_bytes());
    head[2..4].copy_from_slice(&kind.to_be_bytes());
    head[5..].copy_from_slice(&length_bytes(length));
    head
}

/// A 24-bit length.
fn length_bytes(length: usize) -> [u8; 3] {
    let [.., high, middle, low] = length.to_be_bytes();
    [high, middle, low]
}

fn put_number(out: &mut Vec<u8>, number: usize) {
    // A count or a length of our own headers, far below 32 bits.
    out.extend_from_slice(&u32::try_from(number).unwrap_or(u32::MAX).to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// containerd 1.6.20's response to `sh -c 'echo out; echo err >&2; exit 7'` on the streams 1 (error), 5 and 7, with the
    /// status' text shortened.
    const RECORDED: &str = "8003000200000014 00000007 78f9e3c6a7c26260606000000000ffff\
        800300020000000c 00000001 026100000000ffff 800300020000000c 00000005 026100000000ffff\
        0000000500000004 6f75740a 0000000501000000 0000000700000004 6572720a 0000000701000000\
        0000000100000003 7b227d 8003000300000008 00000001 00000005 8003000700000008 00000000 00000000";

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
        let pair = |two: &[u8]| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap();
        digits.chunks(2).map(pair).collect()
    }

    /// Decodes the frames of these pieces, with data joined.
    fn read<'p>(pieces: impl IntoIterator<Item = &'p [u8]>) -> Result<Vec<String>, FrameError> {
        let (mut reader, mut frames, mut data) = (Reader::default(), Vec::new(), Vec::new());
        for piece in pieces {
            let mut rest = piece;
            while let Some(frame) = reader.next(&mut rest)? {
                match frame {
                    Frame::Data(_, part) => data.extend_from_slice(part),
                    other => {
                        if !data.is_empty() {
                            frames.push(format!("{:?}", String::from_utf8_lossy(&std::mem::take(&mut data))));
                        }
                        frames.push(format!("{other:?}").replace("StreamId", ""));
                    }
                }
            }
            assert!(rest.is_empty(), "all of it is read");
        }
        Ok(frames)
    }

    #[test]
    fn what_containerd_said_is_read_however_it_is_cut() {
        let recorded = bytes(RECORDED);
        let frames = read([recorded.as_slice()]).unwrap();
        assert_eq!(
            frames,
            [
                "Reply((7))",
                "Reply((1))",
                "Reply((5))",
                "\"out\\n\"",
                "End((5))",
                "\"err\\n\"",
                "End((7))",
                "\"{\\\"}\"",
                "Reset((1))",
                "GoAway"
            ]
        );
        for cut in 0..recorded.len() {
            let (first, second) = recorded.split_at(cut);
            assert_eq!(read([first, second]).unwrap(), frames, "cut at {cut}");
        }
        assert_eq!(read(recorded.chunks(1)).unwrap(), frames);
    }

    #[test]
    fn other_frames_are_passed_over_and_what_is_no_frame_is_an_error() {
        for (hex, expected) in [
            // A reply that ends its stream at once.
            ("8003000201000004 00000003", Ok(vec!["Reply((3))", "End((3))"])),
            ("8003000600000004 00000002", Ok(vec!["Ping(2)"])),
            // SETTINGS, HEADERS, WINDOW_UPDATE, a stream of the server, and an unknown frame.
            (
                "8003000400000004 00000000 8003000800000006 00000001aabb 8003000900000008 0000000100000001 \
                 800300010000000a 00000002000000000000 8003001000000000 0000000501000000",
                Ok(vec!["End((5))"]),
            ),
            ("0000000000000001 61", Err(FrameError("data of stream 0"))),
            ("8002000600000004 00000002", Err(FrameError("a control frame of another version"))),
            ("485454502f312e31", Ok(vec![])),
            ("8003000600000003 000000", Err(FrameError("a control frame that is too short"))),
            ("8003000200ffffff", Err(FrameError("a control frame over the limit"))),
        ] {
            let frames = read([bytes(hex).as_slice()]);
            let expected = expected.map(|frames| frames.into_iter().map(str::to_owned).collect::<Vec<_>>());
            assert_eq!(frames, expected, "{hex}");
        }
    }

    #[test]
    fn data_needs_no_room_for_its_frame() {
        let mut head: &[u8] = &bytes("0000000500ffffff");
        let mut reader = Reader::default();
        assert_eq!(reader.next(&mut head), Ok(None));
        let piece = [b'x'; 4096];
        let (mut left, mut pieces) = ((1 << 24) - 1, 0);
        while left > 0 {
            let mut rest = &piece[..left.min(piece.len())];
            let here = rest.len();
            assert_eq!(reader.next(&mut rest), Ok(Some(Frame::Data(StreamId(5), &piece[..here]))));
            (left, pieces) = (left - here, pieces + 1);
        }
        assert_eq!(
            (pieces, reader.next(&mut &bytes("8003000600000004 00000002")[..])),
            (4096, Ok(Some(Frame::Ping(2))))
        );
    }

    #[test]
    fn streams_are_opened_by_stored_blocks_of_one_zlib_stream() {
        let (mut opener, mut out) = (Opener::default(), Vec::new());
        opener.open(&mut out, StreamId(1), &[("streamtype", "error")]);
        opener.open(&mut out, StreamId(3), &[("a", ""), ("b", "c")]);
        let block = "00000001 0000000a 73747265616d74797065 00000005 6572726f72";
        let expected = format!(
            "8003000100000035 00000001 00000000 0000 78bbe3c6a7c2 00 1b00 e4ff {block} 000000ffff\
             800300010000002b 00000003 00000000 0000 00 1700 e8ff 00000002 00000001 61 00000000 00000001 62 00000001 63\
             000000ffff"
        );
        assert_eq!(out, bytes(&expected));
    }

    #[test]
    fn data_pings_and_resets_are_written_as_they_are_read() {
        let mut out = Vec::new();
        put_data(&mut out, StreamId(3), b"in", false);
        put_data(&mut out, StreamId(3), &vec![0; 0x1_2345], true);
        put_ping(&mut out, 6);
        put_reset(&mut out, StreamId(9));
        assert_eq!(out[..18], bytes("0000000300000002 696e 0000000301012345"));
        assert_eq!(
            out[out.len() - 28..],
            bytes("8003000600000004 00000006 8003000300000008 00000009 00000005")
        );
        let frames = read([out.as_slice()]).unwrap();
        assert_eq!(frames[1..], ["End((3))", "Ping(6)", "Reset((9))"]);
    }
}
