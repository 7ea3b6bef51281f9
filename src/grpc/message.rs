//! gRPC's length-prefixed messages and protobuf's outermost fields, parsed from pieces as they arrive. PURE.
//!
//! [`Deframer`] finds messages in the bytes of HTTP/2 frames and feeds a [`Sink`]: [`WholeMessage`] keeps a message up to a
//! limit; [`Fields`] parses it and keeps one field at a time, so that a list of 5,000 items needs the memory of one.

use hyper::body::Bytes;
use prost::Message;

use super::status::GrpcError;
use crate::limits::{GRPC_ANSWER_BYTES_MAX, GRPC_REQUEST_BYTES_MAX};

/// One compression byte and a big-endian length stand before every message.
pub(super) const PREFIX_BYTES: usize = 5;

/// A message with its prefix, ready to send.
///
/// # Errors
/// `Protocol` when it is over `limits::GRPC_REQUEST_BYTES_MAX`: nothing is sent then.
pub(super) fn framed(message: &impl Message) -> Result<Bytes, GrpcError> {
    let length = message.encoded_len();
    let Some(prefix) = u32::try_from(length).ok().filter(|_| length <= GRPC_REQUEST_BYTES_MAX) else {
        return Err(GrpcError::Protocol(format!(
            "the request has {length} bytes, the limit is {GRPC_REQUEST_BYTES_MAX}: make the pod's annotations, \
             environment or arguments smaller"
        )));
    };
    let mut bytes = Vec::with_capacity(PREFIX_BYTES + length);
    bytes.push(0);
    bytes.extend_from_slice(&prefix.to_be_bytes());
    message.encode_raw(&mut bytes);
    Ok(bytes.into())
}

/// Receives a message's bytes as they arrive.
pub trait Sink {
    /// A message begins, with that declared length in bytes.
    fn begin(&mut self, _length: usize) {}
    /// The next piece; pieces end at HTTP/2 frame boundaries.
    fn piece(&mut self, bytes: &[u8]) -> Result<(), GrpcError>;
    /// The message is complete.
    fn end(&mut self) -> Result<(), GrpcError>;
}

/// Finds messages in a byte stream.
#[derive(Debug, Default)]
pub struct Deframer {
    prefix: [u8; PREFIX_BYTES],
    /// Number of prefix bytes read so far.
    prefix_bytes: usize,
    /// Remaining bytes of the message.
    left: usize,
}

impl Deframer {
    /// Feeds `bytes` to `sink` up to the end of the first message in them. Returns how many bytes were consumed and whether
    /// a message ended.
    ///
    /// # Errors
    /// `Protocol` for a compressed message (none was requested), and the sink's errors.
    pub fn feed(&mut self, bytes: &[u8], sink: &mut dyn Sink) -> Result<(usize, bool), GrpcError> {
        let mut taken = 0;
        if self.prefix_bytes < PREFIX_BYTES {
            taken = bytes.len().min(PREFIX_BYTES - self.prefix_bytes);
            self.prefix[self.prefix_bytes..self.prefix_bytes + taken].copy_from_slice(&bytes[..taken]);
            self.prefix_bytes += taken;
            if self.prefix_bytes < PREFIX_BYTES {
                return Ok((taken, false));
            }
            let [compressed, length @ ..] = self.prefix;
            if compressed != 0 {
                return Err(GrpcError::Protocol("the server sent a compressed message unasked".to_owned()));
            }
            // Lossless: usize has 32 bits or more on every target.
            self.left = u32::from_be_bytes(length) as usize;
            sink.begin(self.left);
        }
        let piece = bytes.len().saturating_sub(taken).min(self.left);
        if piece > 0 {
            sink.piece(&bytes[taken..taken + piece])?;
        }
        self.left -= piece;
        taken += piece;
        if self.left > 0 {
            return Ok((taken, false));
        }
        self.prefix_bytes = 0;
        sink.end()?;
        Ok((taken, true))
    }

    /// True between two messages: where a stream may end.
    pub fn between_messages(&self) -> bool {
        self.prefix_bytes == 0
    }
}

/// Keeps a whole message of at most `limits::GRPC_ANSWER_BYTES_MAX`. A larger one is an error as soon as it is over
/// the cap; the call is reset then.
#[derive(Debug, Default)]
pub struct WholeMessage {
    bytes: Vec<u8>,
    ended: bool,
}

impl WholeMessage {
    /// The message, once it is complete.
    pub fn take(&mut self) -> Option<Vec<u8>> {
        std::mem::take(&mut self.ended).then(|| std::mem::take(&mut self.bytes))
    }
}

impl Sink for WholeMessage {
    fn begin(&mut self, length: usize) {
        // Reserved at once, as doubling would take up to three times the message. Pages become resident only as bytes
        // arrive, whatever the declared length.
        self.bytes.reserve_exact(length.min(GRPC_ANSWER_BYTES_MAX));
    }

    fn piece(&mut self, bytes: &[u8]) -> Result<(), GrpcError> {
        if self.bytes.len() + bytes.len() > GRPC_ANSWER_BYTES_MAX {
            return Err(GrpcError::Protocol(format!("the answer is over {GRPC_ANSWER_BYTES_MAX} bytes")));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn end(&mut self) -> Result<(), GrpcError> {
        self.ended = true;
        Ok(())
    }
}

/// One field of a message, at its outermost level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    /// The field's number.
    pub number: u32,
    /// Its value.
    pub value: Value<'a>,
}

/// A field's value. Fixed-width values are skipped: nothing we read has any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// A number or a bool.
    Varint(u64),
    /// A string, bytes or a message.
    Bytes {
        /// At most the cap.
        kept: &'a [u8],
        /// The field's length in bytes; more than `kept.len()` when it was truncated.
        length: u64,
    },
}

/// Parses a message into its outermost fields and passes on one at a time. The message's total size is unlimited, and memory
/// never exceeds one field's.
pub struct Fields<'a> {
    cap: usize,
    each: &'a mut dyn FnMut(Field<'_>) -> Result<(), GrpcError>,
    step: ParserState,
    varint: u64,
    shift: u32,
    kept: Vec<u8>,
}

#[derive(Clone, Copy)]
enum ParserState {
    Key,
    Varint { number: u32 },
    Length { number: u32 },
    Bytes { number: u32, length: u64, left: u64 },
    Fixed { left: u64 },
}

impl<'a> Fields<'a> {
    /// Truncates each field's value to `cap` bytes.
    pub fn new(cap: usize, each: &'a mut dyn FnMut(Field<'_>) -> Result<(), GrpcError>) -> Self {
        Self { cap, each, step: ParserState::Key, varint: 0, shift: 0, kept: Vec::new() }
    }

    /// A varint, complete with its last byte.
    fn varint(&mut self, byte: u8) -> Result<Option<u64>, GrpcError> {
        let bits = u64::from(byte & 0x7f);
        if self.shift > 63 || self.shift == 63 && bits > 1 {
            return Err(malformed("a varint is too long"));
        }
        self.varint |= bits << self.shift;
        self.shift += 7;
        if byte & 0x80 != 0 {
            return Ok(None);
        }
        self.shift = 0;
        Ok(Some(std::mem::take(&mut self.varint)))
    }

    fn key(key: u64) -> Result<ParserState, GrpcError> {
        let number = u32::try_from(key >> 3).ok().filter(|number| *number != 0 && *number < 1 << 29);
        let Some(number) = number else { return Err(malformed("a field has no valid number")) };
        Ok(match key & 7 {
            0 => ParserState::Varint { number },
            1 => ParserState::Fixed { left: 8 },
            2 => ParserState::Length { number },
            5 => ParserState::Fixed { left: 4 },
            // Groups are not part of proto3.
            _ => return Err(malformed("a field has an unknown wire type")),
        })
    }

    fn field(&mut self, number: u32, value: Value<'_>) -> Result<ParserState, GrpcError> {
        (self.each)(Field { number, value })?;
        Ok(ParserState::Key)
    }
}

impl Sink for Fields<'_> {
    fn piece(&mut self, mut bytes: &[u8]) -> Result<(), GrpcError> {
        while let Some((&first, tail)) = bytes.split_first() {
            self.step = match self.step {
                ParserState::Key | ParserState::Varint { .. } | ParserState::Length { .. } => {
                    bytes = tail;
                    let Some(value) = self.varint(first)? else { continue };
                    match self.step {
                        ParserState::Varint { number } => self.field(number, Value::Varint(value))?,
                        ParserState::Length { number } if value == 0 => {
                            self.field(number, Value::Bytes { kept: &[], length: 0 })?
                        }
                        ParserState::Length { number } => {
                            ParserState::Bytes { number, length: value, left: value }
                        }
                        ParserState::Key | ParserState::Bytes { .. } | ParserState::Fixed { .. } => {
                            Self::key(value)?
                        }
                    }
                }
                ParserState::Bytes { number, length, left } => {
                    let take = usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()));
                    let (now, rest) = bytes.split_at(take);
                    bytes = rest;
                    let left = left - take as u64;
                    if left == 0 && self.kept.is_empty() {
                        // The usual case: the whole field is in this piece, so nothing is copied.
                        let kept = &now[..now.len().min(self.cap)];
                        self.field(number, Value::Bytes { kept, length })?
                    } else {
                        let room = self.cap.saturating_sub(self.kept.len());
                        self.kept.extend_from_slice(&now[..now.len().min(room)]);
                        if left == 0 {
                            let kept = std::mem::take(&mut self.kept);
                            self.field(number, Value::Bytes { kept: &kept, length })?
                        } else {
                            ParserState::Bytes { number, length, left }
                        }
                    }
                }
                ParserState::Fixed { left } => {
                    let take = bytes.len().min(usize::try_from(left).unwrap_or(0));
                    bytes = &bytes[take..];
                    let left = left - take as u64;
                    if left == 0 { ParserState::Key } else { ParserState::Fixed { left } }
                }
            };
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), GrpcError> {
        if matches!(self.step, ParserState::Key) && self.shift == 0 {
            Ok(())
        } else {
            Err(malformed("the message ends within a field"))
        }
    }
}

fn malformed(what: &str) -> GrpcError {
    GrpcError::Protocol(format!("the answer is no valid protobuf: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::runtime::v1::{ExecSyncResponse, PodSandbox};

    /// A message with its prefix, in pieces of `size` bytes through a deframer.
    fn feed(bytes: &[u8], size: usize, sink: &mut dyn Sink) -> Result<u32, GrpcError> {
        let mut deframer = Deframer::default();
        let mut messages = 0;
        for mut piece in bytes.chunks(size) {
            while !piece.is_empty() {
                let (taken, ended) = deframer.feed(piece, sink)?;
                messages += u32::from(ended);
                piece = &piece[taken..];
            }
        }
        assert!(deframer.between_messages());
        Ok(messages)
    }

    fn sample() -> ExecSyncResponse {
        ExecSyncResponse { stdout: vec![b'o'; 3000], stderr: b"e".to_vec(), exit_code: -1 }
    }

    #[test]
    fn messages_survive_any_cut() {
        let framed = framed(&sample()).unwrap();
        for size in [1, 2, 3, 4, 5, 6, 7, 100, 3000, 4000] {
            let mut whole = WholeMessage::default();
            assert_eq!(feed(&framed, size, &mut whole), Ok(1), "pieces of {size}");
            let bytes = whole.take().expect("a whole message");
            assert_eq!(ExecSyncResponse::decode(&*bytes).unwrap(), sample());
            assert_eq!(whole.take(), None);
        }
    }

    #[test]
    fn an_empty_message_is_a_message() {
        let mut whole = WholeMessage::default();
        assert_eq!(feed(&[0; 10], 3, &mut whole), Ok(2));
        assert_eq!(whole.take(), Some(Vec::new()));
    }

    #[test]
    fn fields_survive_any_cut_and_are_cut_to_the_cap() {
        let framed = framed(&sample()).unwrap();
        for size in [1, 2, 5, 7, 64, 4000] {
            let mut seen = Vec::new();
            let mut each = |field: Field<'_>| {
                seen.push(match field.value {
                    Value::Varint(value) => (field.number, value, Vec::new()),
                    Value::Bytes { kept, length } => (field.number, length, kept.to_vec()),
                });
                Ok(())
            };
            feed(&framed, size, &mut Fields::new(10, &mut each)).unwrap();
            let minus_one = u64::MAX;
            let expected = [(1, 3000, vec![b'o'; 10]), (2, 1, b"e".to_vec()), (3, minus_one, Vec::new())];
            assert_eq!(seen, expected, "pieces of {size}");
        }
    }

    #[test]
    fn a_field_never_takes_more_memory_than_the_cap() {
        let mut ignore = |_: Field<'_>| Ok(());
        let mut fields = Fields::new(1000, &mut ignore);
        // Field 1 declares 2^40 bytes, of which one MiB arrives.
        fields.piece(&[0x0a, 0x80, 0x80, 0x80, 0x80, 0x80, 0x20]).unwrap();
        for _ in 0..1024 {
            fields.piece(&[7; 1024]).unwrap();
            assert!(fields.kept.len() <= 1000 && fields.kept.capacity() <= 2000);
        }
    }

    #[test]
    fn fixed_and_unknown_fields_are_skipped() {
        let item = PodSandbox { id: "x".into(), ..PodSandbox::default() };
        let mut bytes = vec![0x09, 1, 2, 3, 4, 5, 6, 7, 8, 0x15, 1, 2, 3, 4, 0x7a, 0];
        bytes.extend([0x0a, 3]);
        bytes.extend(item.encode_to_vec());
        for size in [1, 3, 100] {
            let mut seen = Vec::new();
            let mut each = |field: Field<'_>| {
                seen.push(field.number);
                Ok(())
            };
            let mut fields = Fields::new(100, &mut each);
            for piece in bytes.chunks(size) {
                fields.piece(piece).unwrap();
            }
            fields.end().unwrap();
            assert_eq!(seen, [15, 1]);
        }
    }

    #[test]
    fn broken_protobuf_is_refused() {
        for (bytes, what) in [
            (&[0xff; 11][..], "a varint is too long"),
            (&[0x00], "no valid number"),
            (&[0x0b], "unknown wire type"),
            (&[0x0a, 5, 1, 2], "ends within a field"),
            (&[0x0a, 0x80], "ends within a field"),
            (&[0x08], "ends within a field"),
        ] {
            let mut each = |_: Field<'_>| Ok(());
            let mut fields = Fields::new(100, &mut each);
            let error = fields.piece(bytes).and_then(|()| fields.end()).unwrap_err().to_string();
            assert!(error.contains(what), "{bytes:?}: {error}");
        }
    }

    #[test]
    fn random_bytes_never_panic_and_never_pile_up() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..20_000 {
            let bytes: Vec<u8> = (0..random.usize(0..64)).map(|_| random.u8(..)).collect();
            let mut each = |field: Field<'_>| {
                if let Value::Bytes { kept, .. } = field.value {
                    assert!(kept.len() <= 8);
                }
                Ok(())
            };
            let mut fields = Fields::new(8, &mut each);
            let split = random.usize(0..=bytes.len());
            let _ = fields.piece(&bytes[..split]).and_then(|()| fields.piece(&bytes[split..]));
        }
    }
}
