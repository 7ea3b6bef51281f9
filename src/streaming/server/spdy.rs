//! PURE: SPDY/3.1 as a server reads it. Control frames are kept whole, since the headers of `SYN_STREAM` say what a stream is;
//! data is passed on as it arrives.
//!
//! The header blocks of one connection are one zlib stream with a preset dictionary. The decompressor takes no dictionary, so it is
//! given one as the first block of the stream, stored: from then on the window is what the client's compressor expects.

use flate2::{Decompress, FlushDecompress, Status};

use crate::limits::{SERVED_CONTROL_BYTES_MAX, SERVED_HEADER_BYTES_MAX, SERVED_HEADERS_MAX};
use crate::streaming::frame::{FrameError, StreamId};

const HEAD_BYTES: usize = 8;
const FLAG_FIN: u8 = 1;
/// The head of the client's zlib stream names the dictionary by this checksum.
const ZLIB_DICTIONARY: [u8; 4] = [0xe3, 0xc6, 0xa7, 0xc2];

/// The dictionary of SPDY/3 (draft 3, 2.6.10.1): names with their lengths, then text.
const NAMES: &str = "options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age \
    allow authorization cache-control connection content-base content-encoding content-language content-length \
    content-location content-md5 content-range content-type date etag expect expires from host if-match if-modified-since \
    if-none-match if-range if-unmodified-since last-modified location max-forwards pragma proxy-authenticate \
    proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade user-agent vary via warning \
    www-authenticate method get status 200_OK version HTTP/1.1 url public set-cookie keep-alive origin";
const TEXT: &str = "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505203 \
    Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden404 Not \
    Found500 Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec \
    00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,application/xml,\
    application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdchcharset=utf-8charset=iso-8859-1,\
    utf-,*,enq=0.";

fn dictionary() -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1423);
    for name in NAMES.split(' ') {
        let name = name.replace('_', " ");
        bytes.extend_from_slice(&u32::try_from(name.len()).unwrap_or_default().to_be_bytes());
        bytes.extend_from_slice(name.as_bytes());
    }
    bytes.extend_from_slice(TEXT.as_bytes());
    bytes
}

/// Names, in lower case, and values.
pub(super) type Headers = Vec<(String, String)>;

/// A frame of the client.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame<'b> {
    /// It opens a stream.
    Open(StreamId, Headers),
    /// The next bytes of a stream; never empty.
    Data(StreamId, &'b [u8]),
    /// It sends nothing more on the stream.
    End(StreamId),
    /// It neither sends nor accepts anything more on the stream.
    Reset(StreamId),
    /// It expects the same number back.
    Ping(u32),
}

/// Decodes frames from the input, however it is cut. Holds one control frame at most.
#[derive(Debug)]
pub(super) struct Reader {
    state: State,
    control: Vec<u8>,
    headers: Inflater,
}

#[derive(Debug)]
enum State {
    Head {
        bytes: [u8; HEAD_BYTES],
        filled: usize,
    },
    Control {
        kind: u16,
        fin: bool,
        left: usize,
    },
    Data {
        stream: StreamId,
        fin: bool,
        left: usize,
    },
    /// A stream was opened that has no data of the client's.
    Ended(StreamId),
}

const HEAD: State = State::Head { bytes: [0; HEAD_BYTES], filled: 0 };

impl Default for Reader {
    fn default() -> Self {
        Self { state: HEAD, control: Vec::new(), headers: Inflater::default() }
    }
}

impl Reader {
    /// The next frame in `input`, from which the consumed bytes are removed; `None` when more are needed.
    ///
    /// # Errors
    /// It is not SPDY/3.1; the reader cannot continue then.
    pub(super) fn next<'b>(&mut self, input: &mut &'b [u8]) -> Result<Option<Frame<'b>>, FrameError> {
        loop {
            match &mut self.state {
                State::Head { bytes, filled } => {
                    let here = (HEAD_BYTES - *filled).min(input.len());
                    let (taken, rest) = input.split_at(here);
                    bytes[*filled..*filled + here].copy_from_slice(taken);
                    *filled += here;
                    *input = rest;
                    if *filled < HEAD_BYTES {
                        return Ok(None);
                    }
                    self.state = head(*bytes)?;
                }
                State::Control { kind, fin, left } => {
                    let (kind, fin) = (*kind, *fin);
                    let (taken, rest) = input.split_at((*left).min(input.len()));
                    self.control.extend_from_slice(taken);
                    *left -= taken.len();
                    *input = rest;
                    if *left > 0 {
                        return Ok(None);
                    }
                    self.state = HEAD;
                    let payload = std::mem::take(&mut self.control);
                    if let Some(frame) = self.control_frame(kind, fin, &payload)? {
                        return Ok(Some(frame));
                    }
                }
                State::Data { stream, fin, left } => {
                    let (stream, fin) = (*stream, *fin);
                    if *left > 0 {
                        let (data, rest) = input.split_at((*left).min(input.len()));
                        *left -= data.len();
                        *input = rest;
                        return Ok((!data.is_empty()).then_some(Frame::Data(stream, data)));
                    }
                    self.state = HEAD;
                    if fin {
                        return Ok(Some(Frame::End(stream)));
                    }
                }
                State::Ended(stream) => {
                    let stream = *stream;
                    self.state = HEAD;
                    return Ok(Some(Frame::End(stream)));
                }
            }
        }
    }

    fn control_frame(
        &mut self,
        kind: u16,
        fin: bool,
        payload: &[u8],
    ) -> Result<Option<Frame<'static>>, FrameError> {
        let number = |at: usize| -> Result<u32, FrameError> {
            let bytes = payload.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
            bytes.map(u32::from_be_bytes).ok_or(FrameError("a control frame that is too short"))
        };
        let stream = |number: u32| StreamId(number & (u32::MAX >> 1));
        Ok(match kind {
            // SYN_STREAM: the stream, an associated one, priority and slot, then the headers.
            1 => {
                let stream = stream(number(0)?);
                let block = payload.get(10..).ok_or(FrameError("a control frame that is too short"))?;
                let headers = self.headers.headers(block)?;
                if fin {
                    self.state = State::Ended(stream);
                }
                Some(Frame::Open(stream, headers))
            }
            3 => Some(Frame::Reset(stream(number(0)?))),
            6 => Some(Frame::Ping(number(0)?)),
            // SYN_REPLY, HEADERS: their headers are part of the connection's zlib stream.
            2 | 8 => {
                let block = payload.get(4..).ok_or(FrameError("a control frame that is too short"))?;
                self.headers.headers(block)?;
                None
            }
            // SETTINGS, GOAWAY and WINDOW_UPDATE say nothing that is needed here.
            _ => None,
        })
    }
}

fn head(bytes: [u8; HEAD_BYTES]) -> Result<State, FrameError> {
    let [first, second, third, fourth, flags, length @ ..] = bytes;
    let fin = flags & FLAG_FIN != 0;
    // 24 bits: they fit on every target.
    let left = length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
    if first & 0x80 == 0 {
        return match u32::from_be_bytes([first, second, third, fourth]) {
            0 => Err(FrameError("data of stream 0")),
            stream => Ok(State::Data { stream: StreamId(stream), fin, left }),
        };
    }
    if [first, second] != [0x80, 3] {
        return Err(FrameError("a control frame of another version"));
    }
    if left > SERVED_CONTROL_BYTES_MAX {
        return Err(FrameError("a control frame over the limit"));
    }
    Ok(State::Control { kind: u16::from_be_bytes([third, fourth]), fin, left })
}

/// The zlib stream of the client's header blocks.
#[derive(Debug)]
struct Inflater {
    inflate: Decompress,
    begun: bool,
}

impl Default for Inflater {
    fn default() -> Self {
        Self { inflate: Decompress::new(false), begun: false }
    }
}

impl Inflater {
    fn headers(&mut self, block: &[u8]) -> Result<Headers, FrameError> {
        let mut block = block;
        if !std::mem::replace(&mut self.begun, true) {
            // Deflate, with a preset dictionary.
            let [method, flags, dictionary_id @ ..] =
                block.get(..6).and_then(|head| <[u8; 6]>::try_from(head).ok()).unwrap_or_default();
            if method & 0x0f != 8 || flags & 0x20 == 0 || dictionary_id != ZLIB_DICTIONARY {
                return Err(FrameError("headers that are not compressed as SPDY/3's"));
            }
            block = &block[6..];
            let dictionary = dictionary();
            let [low, high, ..] = dictionary.len().to_le_bytes();
            let stored = [&[0, low, high, !low, !high][..], &dictionary].concat();
            self.inflate(&stored, dictionary.len() + 1)?;
        }
        parse(&self.inflate(block, SERVED_HEADER_BYTES_MAX)?)
    }

    /// All that these bytes become; at most `bytes_max`.
    fn inflate(&mut self, mut from: &[u8], bytes_max: usize) -> Result<Vec<u8>, FrameError> {
        let mut bytes = Vec::with_capacity(bytes_max);
        loop {
            let (read, written) = (self.inflate.total_in(), self.inflate.total_out());
            let status = self.inflate.decompress_vec(from, &mut bytes, FlushDecompress::Sync);
            let status = status.map_err(|_| FrameError("headers that cannot be decompressed"))?;
            let read = usize::try_from(self.inflate.total_in() - read).unwrap_or(from.len());
            from = &from[read.min(from.len())..];
            if bytes.len() == bytes_max {
                return Err(FrameError("headers over the limit"));
            }
            let is_idle = read == 0 && self.inflate.total_out() == written;
            match status {
                Status::StreamEnd => return Err(FrameError("headers that end the compression")),
                Status::Ok | Status::BufError if from.is_empty() || is_idle => break,
                Status::Ok | Status::BufError => {}
            }
        }
        if from.is_empty() { Ok(bytes) } else { Err(FrameError("headers that cannot be decompressed")) }
    }
}

/// A number of pairs, each with its lengths.
fn parse(mut block: &[u8]) -> Result<Headers, FrameError> {
    fn number(block: &mut &[u8]) -> Option<usize> {
        let (bytes, rest) = block.split_first_chunk::<4>()?;
        *block = rest;
        usize::try_from(u32::from_be_bytes(*bytes)).ok()
    }
    fn text(block: &mut &[u8]) -> Option<String> {
        let length = number(block)?;
        let (text, rest) = block.split_at_checked(length)?;
        *block = rest;
        String::from_utf8(text.to_vec()).ok()
    }
    let malformed = FrameError("headers that cannot be read");
    let count = number(&mut block).filter(|count| *count <= SERVED_HEADERS_MAX).ok_or(malformed.clone())?;
    let mut headers = Vec::with_capacity(count);
    for _ in 0..count {
        let pair = text(&mut block).zip(text(&mut block));
        let (name, value) = pair.ok_or(malformed.clone())?;
        headers.push((name.to_ascii_lowercase(), value));
    }
    Ok(headers)
}

/// The value of a header, by its name in lower case.
pub(super) fn header<'h>(headers: &'h Headers, name: &str) -> Option<&'h str> {
    headers.iter().find(|(of, _)| of == name).map(|(_, value)| value.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::streaming::frame::{Opener, put_data};

    /// Go's spdystream: three `SYN_STREAM` frames of one connection, with Huffman codes and references into the dictionary.
    const RECORDED: &str = "800300010000002a0000000100000000000078f9e3c6a7c26260606004a7b392a2d4c45c6851c29a5a54945f04000000 \
        ffff800300010000001700000003000000000000c22e555c92929907000000ffff800300010000003400000005000000 \
        00000062606060c6906249492c498494e5452520dac2c0c280818181b30812f799290c0c0c8c0600000000ffff";

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
        let pair = |two: &[u8]| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap();
        digits.chunks(2).map(pair).collect()
    }

    fn read<'p>(pieces: impl IntoIterator<Item = &'p [u8]>) -> Result<Vec<String>, FrameError> {
        let (mut reader, mut frames) = (Reader::default(), Vec::<String>::new());
        for mut piece in pieces {
            while let Some(frame) = reader.next(&mut piece)? {
                match frame {
                    Frame::Open(stream, headers) => {
                        let headers: Vec<_> =
                            headers.iter().map(|(name, value)| format!("{name}={value}")).collect();
                        frames.push(format!("open {} {}", stream.0, headers.join(" ")));
                    }
                    Frame::Data(stream, data) => {
                        let data = String::from_utf8_lossy(data);
                        let begun = format!("data {} ", stream.0);
                        match frames.last_mut().filter(|last| last.starts_with(&begun)) {
                            Some(last) => last.push_str(&data),
                            None => frames.push(begun + &data),
                        }
                    }
                    Frame::End(stream) => frames.push(format!("end {}", stream.0)),
                    Frame::Reset(stream) => frames.push(format!("reset {}", stream.0)),
                    Frame::Ping(number) => frames.push(format!("ping {number}")),
                }
            }
        }
        Ok(frames)
    }

    #[test]
    fn the_dictionary_is_spdys() {
        let (mut low, mut high) = (1_u32, 0_u32);
        for byte in dictionary() {
            low = (low + u32::from(byte)) % 65521;
            high = (high + low) % 65521;
        }
        assert_eq!((high << 16 | low).to_be_bytes(), ZLIB_DICTIONARY);
    }

    #[test]
    fn go_clients_streams_are_read_however_they_are_cut() {
        let recorded = bytes(RECORDED);
        let frames = read([recorded.as_slice()]).unwrap();
        assert_eq!(
            frames,
            [
                "open 1 streamtype=error",
                "open 3 streamtype=stdin",
                "open 5 streamtype=data port=8080 requestid=0"
            ]
        );
        assert_eq!(read(recorded.chunks(1)).unwrap(), frames);
    }

    #[test]
    fn our_own_clients_streams_are_read() {
        let (mut out, mut opener) = (Vec::new(), Opener::default());
        opener.open(&mut out, StreamId(1), &[("streamtype", "error"), ("port", "80")]);
        opener.open(&mut out, StreamId(3), &[("streamtype", "stdin")]);
        put_data(&mut out, StreamId(3), b"words", true);
        out.extend(bytes(
            "8003000600000004 00000001 8003000300000008 00000003 00000005 8003000400000004 00000000",
        ));
        let frames = read([out.as_slice()]).unwrap();
        let expected = [
            "open 1 streamtype=error port=80",
            "open 3 streamtype=stdin",
            "data 3 words",
            "end 3",
            "ping 1",
            "reset 3",
        ];
        assert_eq!(frames, expected);
        assert_eq!(read(out.chunks(1)).unwrap(), frames);
    }

    #[test]
    fn what_is_no_spdy_is_an_error() {
        for (hex, why) in [
            ("0000000000000001 61", "data of stream 0"),
            ("8002000600000004 00000002", "a control frame of another version"),
            ("8003000100ffffff", "a control frame over the limit"),
            ("8003000100000004 00000001", "a control frame that is too short"),
            ("800300010000000a 00000001 00000000 0000", "headers that are not compressed as SPDY/3's"),
            (
                "8003000100000012 00000001 00000000 0000 78bbe3c6a7c2 ffff",
                "headers that cannot be decompressed",
            ),
        ] {
            assert_eq!(read([bytes(hex).as_slice()]), Err(FrameError(why)), "{hex}");
        }
        let mut random = fastrand::Rng::with_seed(19);
        for _ in 0..crate::cases(2000) {
            let noise: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(200).collect();
            let _ = read([noise.as_slice()]);
            let mut framed = bytes("80030001000000c0 00000001 00000000 0000 78bbe3c6a7c2");
            framed.extend(&noise);
            let _ = read([framed.as_slice()]);
        }
    }

    #[test]
    fn a_bomb_of_headers_is_refused() {
        use std::io::Write as _;
        let mut deflate = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::best());
        deflate.write_all(&vec![0; 1 << 20]).unwrap();
        deflate.flush().unwrap();
        let block = deflate.get_ref().clone();
        let payload = [&bytes("00000001 00000000 0000 78bbe3c6a7c2")[..], &block].concat();
        let [.., high, middle, low] = payload.len().to_be_bytes();
        let frame = [&[0x80, 3, 0, 1, 0, high, middle, low][..], &payload].concat();
        assert_eq!(read([frame.as_slice()]), Err(FrameError("headers over the limit")));
    }
}
