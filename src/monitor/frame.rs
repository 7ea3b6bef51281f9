//! Frames between a monitor and an attached client: a byte for the kind, three for the length, the content. PURE.

use crate::limits::ATTACH_FRAME_BYTES_MAX;

pub(super) const HEAD_BYTES: usize = 4;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A client's first frame, with its [`Streams`], and the monitor's answer: output from here on comes.
    Hello,
    /// To the container.
    Stdin,
    /// The client's input ends; it may still read.
    StdinEnd,
    /// Columns and rows, 16 bits each, most significant byte first.
    Resize,
    /// From the container.
    Stdout,
    /// From the container.
    Stderr,
    /// The container has ended: all its output came before.
    End,
    /// The client is not served; the reason.
    Refused,
}

const KINDS: [(Kind, u8); 8] = [
    (Kind::Hello, b'H'),
    (Kind::Stdin, b'I'),
    (Kind::StdinEnd, b'C'),
    (Kind::Resize, b'R'),
    (Kind::Stdout, b'O'),
    (Kind::Stderr, b'E'),
    (Kind::End, b'X'),
    (Kind::Refused, b'N'),
];

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) kind: Kind,
    /// Bytes of the content; at most `limits::ATTACH_FRAME_BYTES_MAX`.
    pub(super) length: usize,
}

/// A frame of no known kind, or longer than one may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadFrame;

/// The head's bytes.
pub(super) fn head(kind: Kind, length: usize) -> [u8; HEAD_BYTES] {
    let letter = KINDS.iter().find(|(known, _)| *known == kind).map_or(0, |(_, letter)| *letter);
    let [.., a, b, c] = length.to_be_bytes();
    [letter, a, b, c]
}

/// The head at the beginning of these bytes; `None` when they are too few.
pub(super) fn head_of(bytes: &[u8]) -> Result<Option<Head>, BadFrame> {
    let Some([letter, a, b, c]) = bytes.first_chunk::<HEAD_BYTES>() else {
        return Ok(None);
    };
    let kind = KINDS.iter().find(|(_, known)| known == letter).map(|(kind, _)| *kind);
    let length = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
    match kind {
        Some(kind) if length <= ATTACH_FRAME_BYTES_MAX => Ok(Some(Head { kind, length })),
        Some(_) | None => Err(BadFrame),
    }
}

/// The streams that a client wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Streams {
    /// It sends input.
    pub stdin: bool,
    /// It gets standard output, or the terminal's.
    pub stdout: bool,
    /// It gets standard error.
    pub stderr: bool,
}

impl Streams {
    pub(super) fn bytes(self) -> [u8; 1] {
        [u8::from(self.stdin) | u8::from(self.stdout) << 1 | u8::from(self.stderr) << 2]
    }

    pub(super) fn of(bytes: &[u8]) -> Self {
        let bits = bytes.first().copied().unwrap_or(0);
        Self { stdin: bits & 1 != 0, stdout: bits & 2 != 0, stderr: bits & 4 != 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read_as_they_are_written() {
        for (kind, _) in KINDS {
            for length in [0, 1, 255, 256, ATTACH_FRAME_BYTES_MAX] {
                assert_eq!(head_of(&head(kind, length)), Ok(Some(Head { kind, length })));
            }
        }
        assert_eq!(head_of(&head(Kind::Stdin, ATTACH_FRAME_BYTES_MAX + 1)), Err(BadFrame));
        assert_eq!(head_of(b"?\0\0\0"), Err(BadFrame));
        assert_eq!(head_of(b"H\0\0"), Ok(None));
        for bits in 0..8 {
            assert_eq!(Streams::of(&[bits]).bytes(), [bits]);
        }
    }
}
