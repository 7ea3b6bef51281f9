//! Decompresses a layer while it arrives: gzip, zstd, or none, told by its first bytes. PURE.
//!
//! ```text
//!     gzip   between two deflate blocks and between two members   may stop there and go on later ([`Decoder::state`])
//!     zstd   between two frames                                    (within one, tables and a window of megabytes would be needed)
//!     none   anywhere
//! ```
//!
//! Check sums of the formats are not compared: both digests of the layer are (`super::layer`).

use std::io::Read as _;

use minicbor::{Decode, Encode};
use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::{
    TINFL_FLAG_HAS_MORE_INPUT, TINFL_FLAG_STOP_ON_BLOCK_BOUNDARY,
};
use miniz_oxide::inflate::core::{BlockBoundaryState, DecompressorOxide, decompress};
use ruzstd::decoding::FrameDecoder;
use ruzstd::decoding::errors::FrameDecoderError;

use super::tar::Refused;
use crate::limits::{
    GZIP_HEADER_BYTES_MAX, INFLATE_WINDOW_BYTES, LAYER_STEP_BYTES, ZSTD_BLOCK_BYTES_MAX,
    ZSTD_WINDOW_BYTES_MAX,
};

pub(crate) const GZIP: &[u8] = b"\x1f\x8b\x08";
pub(crate) const ZSTD: &[u8] = b"\x28\xb5\x2f\xfd";
/// Bytes that tell a layer's form.
pub(super) const MAGIC_BYTES: usize = 6;
/// Bytes that a match may lie back.
const WINDOW: usize = 32 * 1024;

/// A decoder.
pub(super) enum Decoder {
    Plain,
    Gzip(Box<Gzip>),
    Zstd(Box<Zstd>),
}

/// What a step has done.
pub(super) struct Step<'a> {
    /// Bytes of the input that were read.
    pub(super) consumed: usize,
    /// Decompressed bytes.
    pub(super) out: &'a [u8],
}

/// State of a decoder where it may stop.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub(super) enum State {
    #[n(0)]
    Plain,
    /// Between members.
    #[n(1)]
    GzipMember,
    /// Between blocks: number of bits, bits, and the window.
    #[n(2)]
    GzipBlock(#[n(0)] u8, #[n(1)] u8, #[cbor(n(2), with = "minicbor::bytes")] Vec<u8>),
    /// Between frames.
    #[n(3)]
    ZstdFrame,
}

impl Decoder {
    /// For a layer with these first bytes ([`MAGIC_BYTES`] of them). It has no window of zstd before [`Decoder::allow_window`].
    pub(super) fn of(first: &[u8]) -> Result<Self, Refused> {
        Self::with_window(first, 0)
    }

    /// The same, with that largest window of zstd.
    pub(super) fn with_window(first: &[u8], window: u64) -> Result<Self, Refused> {
        const OTHERS: [(&[u8], &str); 3] =
            [(b"BZh", "bzip2"), (b"\xfd7zXZ", "xz"), (b"\x04\x22\x4d\x18", "lz4")];
        if first.starts_with(GZIP) {
            return Ok(Self::Gzip(Box::new(Gzip::new())));
        }
        if first.starts_with(ZSTD) || is_skippable(first) {
            return Ok(Self::Zstd(Box::new(Zstd::new(window))));
        }
        match OTHERS.iter().find(|(magic, _)| first.starts_with(magic)) {
            Some((_, kind)) => Err(Refused::because(format!(
                "it is compressed with {kind}, which is not supported; build the image with gzip or zstd"
            ))),
            None => Ok(Self::Plain),
        }
    }

    /// Goes on where it stopped. `None` when the state is damaged.
    pub(super) fn resume(state: &State) -> Option<Self> {
        Some(match state {
            State::Plain => Self::Plain,
            State::GzipMember => Self::Gzip(Box::new(Gzip::new())),
            State::GzipBlock(bits, value, window) => {
                if *bits > 7 || window.len() > WINDOW {
                    return None;
                }
                let mut gzip = Gzip::new();
                let block = BlockBoundaryState { num_bits: *bits, bit_buf: *value, ..Default::default() };
                *gzip.inflater = DecompressorOxide::from_block_boundary_state(&block);
                gzip.window[..window.len()].copy_from_slice(window);
                gzip.at = window.len();
                gzip.filled = window.len();
                gzip.phase = GzipPhase::Body;
                gzip.is_at_boundary = true;
                Self::Gzip(Box::new(gzip))
            }
            State::ZstdFrame => Self::Zstd(Box::new(Zstd::new(0))),
        })
    }

    /// The state, where it may stop.
    pub(super) fn state(&self) -> Option<State> {
        match self {
            Self::Plain => Some(State::Plain),
            Self::Gzip(gzip) => gzip.state(),
            Self::Zstd(zstd) => zstd.is_between_frames().then_some(State::ZstdFrame),
        }
    }

    /// Bytes of the next frame's window, when that is larger than is allowed: the frame is read once [`Decoder::allow_window`] was called.
    /// No window is in memory until then.
    pub(super) fn wants_window(&self) -> Option<u64> {
        let Self::Zstd(zstd) = self else { return None };
        zstd.wants_window
    }

    /// Allows windows of that many bytes.
    pub(super) fn allow_window(&mut self, bytes: u64) {
        if let Self::Zstd(zstd) = self {
            zstd.decoder.set_max_window_size(bytes);
        }
    }

    /// Bytes of the largest window that it may have in memory.
    pub(super) fn window_bytes(&self) -> u64 {
        let Self::Zstd(zstd) = self else { return 0 };
        zstd.decoder.max_window_size()
    }

    /// Reads some bytes. It is to be called until all bytes are read and it returns none, or wants a window.
    pub(super) fn step<'a>(&'a mut self, input: &'a [u8]) -> Result<Step<'a>, Refused> {
        match self {
            Self::Gzip(gzip) => gzip.step(input),
            Self::Zstd(zstd) => zstd.step(input),
            Self::Plain => Ok(Step { consumed: input.len(), out: input }),
        }
    }

    /// There are no more bytes.
    pub(super) fn finish(&self) -> Result<(), Refused> {
        let whole = match self {
            Self::Plain => true,
            Self::Gzip(gzip) => {
                matches!(gzip.phase, GzipPhase::Header | GzipPhase::Padding) && gzip.members > 0
            }
            Self::Zstd(zstd) => zstd.is_between_frames(),
        };
        if whole { Ok(()) } else { Err(Refused::because("it is cut off")) }
    }
}

// ---- gzip ----------------------------------------------------------------------------------------------------

pub(super) struct Gzip {
    phase: GzipPhase,
    /// A header or a trailer that is being collected.
    held: Vec<u8>,
    inflater: Box<DecompressorOxide>,
    /// Written in a ring.
    window: Box<[u8]>,
    at: usize,
    /// Bytes of the window that were written, at most all.
    filled: usize,
    is_at_boundary: bool,
    members: u64,
}

enum GzipPhase {
    Header,
    Body,
    Trailer,
    /// Zeros after the last member.
    Padding,
}

impl Gzip {
    fn new() -> Self {
        Self {
            phase: GzipPhase::Header,
            held: Vec::new(),
            inflater: Box::default(),
            window: vec![0; INFLATE_WINDOW_BYTES].into_boxed_slice(),
            at: 0,
            filled: 0,
            is_at_boundary: false,
            members: 0,
        }
    }

    fn state(&self) -> Option<State> {
        match self.phase {
            GzipPhase::Header if self.held.is_empty() && self.members > 0 => Some(State::GzipMember),
            GzipPhase::Body if self.is_at_boundary => {
                let block = self.inflater.block_boundary_state()?;
                let count = self.filled.min(WINDOW);
                let ring = self.window.iter().cycle().skip(self.at + self.window.len() - count);
                Some(State::GzipBlock(block.num_bits, block.bit_buf, ring.take(count).copied().collect()))
            }
            GzipPhase::Header | GzipPhase::Body | GzipPhase::Trailer | GzipPhase::Padding => None,
        }
    }

    fn step(&mut self, input: &[u8]) -> Result<Step<'_>, Refused> {
        match self.phase {
            GzipPhase::Header => {
                if self.held.is_empty() && self.members > 0 && input.first() == Some(&0) {
                    self.phase = GzipPhase::Padding;
                    return Ok(Step { consumed: 0, out: &[] });
                }
                let before = self.held.len();
                let most = input.len().min(GZIP_HEADER_BYTES_MAX - before);
                self.held.extend_from_slice(&input[..most]);
                let Some(end) = header_end(&self.held)? else {
                    if self.held.len() == GZIP_HEADER_BYTES_MAX {
                        return Err(Refused::because("a gzip header is too long"));
                    }
                    return Ok(Step { consumed: most, out: &[] });
                };
                self.held.clear();
                *self.inflater = DecompressorOxide::default();
                (self.at, self.filled, self.phase) = (0, 0, GzipPhase::Body);
                // A header is complete with its last byte only: the end lies behind what was held before.
                Ok(Step { consumed: end.saturating_sub(before), out: &[] })
            }
            GzipPhase::Body => {
                let flags = TINFL_FLAG_HAS_MORE_INPUT | TINFL_FLAG_STOP_ON_BLOCK_BOUNDARY;
                let from = self.at;
                let (status, consumed, count) =
                    decompress(&mut self.inflater, input, &mut self.window, from, flags);
                self.is_at_boundary = status == TINFLStatus::BlockBoundary;
                self.at = (from + count) % self.window.len();
                self.filled = (self.filled + count).min(self.window.len());
                match status {
                    TINFLStatus::Done => self.phase = GzipPhase::Trailer,
                    TINFLStatus::BlockBoundary | TINFLStatus::HasMoreOutput | TINFLStatus::NeedsMoreInput => {
                    }
                    TINFLStatus::Failed
                    | TINFLStatus::BadParam
                    | TINFLStatus::Adler32Mismatch
                    | TINFLStatus::FailedCannotMakeProgress => {
                        return Err(Refused::because("its compressed data are damaged"));
                    }
                    _ => return Err(Refused::because("its compressed data are of an unknown form")),
                }
                Ok(Step { consumed, out: &self.window[from..from + count] })
            }
            GzipPhase::Trailer => {
                let most = input.len().min(8 - self.held.len());
                self.held.extend_from_slice(&input[..most]);
                if self.held.len() == 8 {
                    self.held.clear();
                    self.members += 1;
                    self.phase = GzipPhase::Header;
                }
                Ok(Step { consumed: most, out: &[] })
            }
            GzipPhase::Padding => {
                if input.iter().any(|byte| *byte != 0) {
                    return Err(Refused::because("there are data after its end"));
                }
                Ok(Step { consumed: input.len(), out: &[] })
            }
        }
    }
}

/// The length of a member's header; `None` when it is not complete.
fn header_end(bytes: &[u8]) -> Result<Option<usize>, Refused> {
    let magic = bytes.len().min(GZIP.len());
    if bytes[..magic] != GZIP[..magic] {
        return Err(Refused::because("there are data after its end"));
    }
    let Some(flags) = bytes.get(3) else { return Ok(None) };
    let mut end = 10;
    if flags & 4 != 0 {
        let (Some(low), Some(high)) = (bytes.get(10), bytes.get(11)) else { return Ok(None) };
        end += 2 + usize::from(u16::from_le_bytes([*low, *high]));
    }
    // Name and comment.
    for flag in [8, 16] {
        if flags & flag != 0 {
            let rest = bytes.get(end..).unwrap_or_default();
            let Some(zero) = rest.iter().position(|byte| *byte == 0) else { return Ok(None) };
            end += zero + 1;
        }
    }
    if flags & 2 != 0 {
        end += 2;
    }
    Ok((bytes.len() >= end).then_some(end))
}

// ---- zstd ----------------------------------------------------------------------------------------------------

pub(super) struct Zstd {
    decoder: FrameDecoder,
    phase: ZstdPhase,
    /// Bytes of a block that is not complete.
    held: Vec<u8>,
    out: Box<[u8]>,
    /// The last block of the frame was decoded: its check sum follows, if it has one.
    is_last_block: bool,
    frames: u64,
    wants_window: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ZstdPhase {
    Header,
    Frame,
    /// Bytes of a skippable frame that are left.
    Skip(u64),
}

/// The longest header of a frame, with its magic number.
const ZSTD_HEADER_BYTES: usize = 18;

fn is_skippable(first: &[u8]) -> bool {
    first.len() >= 4 && first[0] & 0xf0 == 0x50 && first[1..4] == *b"\x2a\x4d\x18"
}

impl Zstd {
    fn new(window_max: u64) -> Self {
        Self {
            decoder: frame_decoder(window_max),
            phase: ZstdPhase::Header,
            held: Vec::new(),
            out: vec![0; LAYER_STEP_BYTES].into_boxed_slice(),
            is_last_block: false,
            frames: 0,
            wants_window: None,
        }
    }

    fn is_between_frames(&self) -> bool {
        self.phase == ZstdPhase::Header && self.held.is_empty() && self.frames > 0
    }

    /// What is not consumed of the input is held, up to a whole block.
    fn step(&mut self, input: &[u8]) -> Result<Step<'_>, Refused> {
        let consumed = input.len().min(ZSTD_BLOCK_BYTES_MAX - self.held.len());
        self.held.extend_from_slice(&input[..consumed]);
        let (read, written) = self.advance()?;
        self.held.drain(..read);
        let is_stuck = read == 0 && written == 0 && consumed == 0 && self.held.len() == ZSTD_BLOCK_BYTES_MAX;
        if is_stuck && self.wants_window.is_none() {
            return Err(Refused::because("its compressed data are damaged"));
        }
        Ok(Step { consumed, out: &self.out[..written] })
    }

    /// Bytes read and written.
    fn advance(&mut self) -> Result<(usize, usize), Refused> {
        let damaged = || {
            let mib = ZSTD_WINDOW_BYTES_MAX >> 20;
            Refused::because(format!(
                "its compressed data are damaged, or need a window of more than {mib} MiB"
            ))
        };
        let mut read = 0;
        loop {
            let rest = &self.held[read..];
            match self.phase {
                ZstdPhase::Skip(left) => {
                    let most = usize::try_from(left).unwrap_or(usize::MAX).min(rest.len());
                    read += most;
                    let left = left - most as u64;
                    if left > 0 {
                        self.phase = ZstdPhase::Skip(left);
                        return Ok((read, 0));
                    }
                    self.frames += 1;
                    self.phase = ZstdPhase::Header;
                }
                ZstdPhase::Header if is_skippable(rest) => {
                    let Some(size) = rest.get(4..8).and_then(|size| size.try_into().ok()) else {
                        return Ok((read, 0));
                    };
                    self.phase = ZstdPhase::Skip(u64::from(u32::from_le_bytes(size)));
                    read += 8;
                }
                ZstdPhase::Header => {
                    if rest.len() < header_bytes(rest) {
                        return Ok((read, 0));
                    }
                    let mut source = rest;
                    // Twice: what has begun makes room for a whole window, what is new grows to it, with half as much beside it.
                    let begun = self.decoder.reset(rest).and_then(|()| self.decoder.reset(&mut source));
                    self.wants_window = match begun {
                        Err(FrameDecoderError::WindowSizeTooBig { requested, .. })
                            if requested <= ZSTD_WINDOW_BYTES_MAX =>
                        {
                            Some(requested)
                        }
                        begun => begun.map(|()| None).map_err(|_| damaged())?,
                    };
                    if self.wants_window.is_some() {
                        self.decoder = frame_decoder(0);
                        return Ok((read, 0));
                    }
                    read += rest.len() - source.len();
                    (self.phase, self.is_last_block) = (ZstdPhase::Frame, false);
                }
                ZstdPhase::Frame if self.decoder.can_collect() > 0 => {
                    let written = self.decoder.read(&mut self.out).map_err(|_| damaged())?;
                    return Ok((read, written));
                }
                ZstdPhase::Frame if self.decoder.is_finished() => {
                    self.frames += 1;
                    self.phase = ZstdPhase::Header;
                }
                ZstdPhase::Frame => {
                    // One block at a time: a few bytes may stand for 128 KiB.
                    let bytes = if self.is_last_block { 4 } else { block_bytes(rest) };
                    let Some(block) = rest.get(..bytes) else { return Ok((read, 0)) };
                    self.is_last_block = block[0] & 1 != 0;
                    self.decoder.decode_from_to(block, &mut []).map_err(|_| damaged())?;
                    read += bytes;
                }
            }
        }
    }
}

/// A decoder without a window, which it takes when a frame begins.
fn frame_decoder(window_max: u64) -> FrameDecoder {
    let mut decoder = FrameDecoder::new();
    decoder.set_max_window_size(window_max);
    decoder
}

/// Bytes of a block with its header, which is as long as it tells here when it is not complete.
fn block_bytes(start: &[u8]) -> usize {
    let Some([low, middle, high]) = start.first_chunk::<3>() else { return 3 };
    let header = u32::from_le_bytes([*low, *middle, *high, 0]);
    let is_repeated = header >> 1 & 3 == 1;
    3 + if is_repeated { 1 } else { usize::try_from(header >> 3).unwrap_or(usize::MAX) }
}

/// Bytes of a frame's header, from its descriptor.
fn header_bytes(start: &[u8]) -> usize {
    let Some(descriptor) = start.get(4) else { return ZSTD_HEADER_BYTES };
    let is_single = descriptor & 0x20 != 0;
    let window = usize::from(!is_single);
    let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let content = match descriptor >> 6 {
        0 => usize::from(is_single),
        1 => 2,
        2 => 4,
        _ => 8,
    };
    5 + window + dictionary + content
}
