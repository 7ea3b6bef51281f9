//! Maps of sparse files in a layer's archive: GNU's old form and the three of pax. PURE.

use minicbor::{Decode, Encode};

use super::tar::{Refused, text_number};
use crate::limits::{LAYER_BYTES_MAX, LAYER_SPARSE_PIECES_MAX};

/// Bytes of a file that the archive has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub(super) struct Piece {
    /// Where they begin in the file.
    #[n(0)]
    pub(super) offset: u64,
    /// How many.
    #[n(1)]
    pub(super) size: u64,
}

fn damaged() -> Refused {
    Refused::because("its sparse map is damaged")
}

/// Adds a piece.
pub(super) fn push(pieces: &mut Vec<Piece>, offset: u64, size: u64) -> Result<(), Refused> {
    if pieces.len() == LAYER_SPARSE_PIECES_MAX {
        return Err(Refused::because(format!(
            "its sparse map has more than {LAYER_SPARSE_PIECES_MAX} pieces"
        )));
    }
    pieces.push(Piece { offset, size });
    Ok(())
}

/// Octal digits between blanks, or base 256 with the highest bit set.
pub(super) fn header_number(field: &[u8]) -> Option<u64> {
    let (first, rest) = field.split_first()?;
    if first & 0x80 == 0 {
        let text = std::str::from_utf8(field).ok()?;
        let digits = text.split('\0').next().unwrap_or_default().trim_matches(' ');
        return if digits.is_empty() { Some(0) } else { u64::from_str_radix(digits, 8).ok() };
    }
    // Negative numbers, with 0xff first, are no size, owner or device.
    let first = u64::from(first & 0x7f);
    let fold = |sum: u64, byte: &u8| sum.checked_mul(256).map(|sum| sum | u64::from(*byte));
    rest.iter().try_fold(first, fold)
}

/// Pairs of 12 digits each in a header. False: the map ends here.
pub(super) fn gnu_block(block: &[u8], pieces: &mut Vec<Piece>) -> Result<bool, Refused> {
    for pair in block.chunks_exact(24) {
        if pair.iter().all(|byte| *byte == 0) {
            return Ok(false);
        }
        let number = |field: &[u8]| header_number(field).ok_or_else(damaged);
        push(pieces, number(&pair[..12])?, number(&pair[12..])?)?;
    }
    Ok(true)
}

/// `OFFSET,SIZE,OFFSET,SIZE` (pax 0.1).
pub(super) fn text_map(text: &[u8]) -> Result<Vec<Piece>, Refused> {
    let mut pieces = Vec::new();
    let mut numbers = text.split(|byte| *byte == b',').map(|text| text_number(text).ok_or_else(damaged));
    while let Some(offset) = numbers.next() {
        push(&mut pieces, offset?, numbers.next().ok_or_else(damaged)??)?;
    }
    Ok(pieces)
}

/// Number of pieces, then offset and size of each, one a line (pax 1.0). `None`: further blocks are needed.
pub(super) fn data_map(blocks: &[u8]) -> Result<Option<Vec<Piece>>, Refused> {
    let mut lines = blocks.split_inclusive(|byte| *byte == b'\n');
    let mut next = || -> Result<Option<u64>, Refused> {
        match lines.next().and_then(|line| line.strip_suffix(b"\n")) {
            Some(digits) => text_number(digits).map(Some).ok_or_else(damaged),
            None => Ok(None),
        }
    };
    let Some(count) = next()? else {
        return if blocks.len() > 32 { Err(damaged()) } else { Ok(None) };
    };
    if count > LAYER_SPARSE_PIECES_MAX as u64 {
        return Err(Refused::because(format!(
            "its sparse map has more than {LAYER_SPARSE_PIECES_MAX} pieces"
        )));
    }
    let mut pieces = Vec::new();
    for _ in 0..count {
        let (Some(offset), Some(size)) = (next()?, next()?) else {
            // Twenty digits and the end of the line, twice, for each piece at most.
            let most = 42 * (count + 1) + 512;
            return if blocks.len() as u64 > most { Err(damaged()) } else { Ok(None) };
        };
        push(&mut pieces, offset, size)?;
    }
    Ok(Some(pieces))
}

/// Pieces are in order, do not overlap, and are as many bytes as the archive has.
pub(super) fn check(pieces: &[Piece], size: u64) -> Result<(), Refused> {
    let (mut end, mut sum) = (0_u64, 0_u64);
    for piece in pieces {
        let is_in_order = piece.offset >= end;
        end =
            piece.offset.checked_add(piece.size).filter(|end| *end <= LAYER_BYTES_MAX).ok_or_else(damaged)?;
        sum += piece.size;
        if !is_in_order {
            return Err(damaged());
        }
    }
    if sum == size { Ok(()) } else { Err(damaged()) }
}
