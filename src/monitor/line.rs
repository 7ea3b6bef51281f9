//! Entries of a container's log in the CRI's format: `TIME STREAM TAG TEXT`, with the tag `P` for a part of a line and `F` for its
//! end. PURE.

use std::fmt::Write as _;

use crate::limits::LOG_LINE_BYTES_MAX;
use crate::model::Wall;
use crate::model::time::NanoFixed;

/// The stream of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output, and the terminal.
    Stdout,
    /// Standard error.
    Stderr,
}

impl Stream {
    /// As in the log.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// Divides the output of one stream into entries.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// The beginning of a line whose end has not come; at most `limits::LOG_LINE_BYTES_MAX`.
    begun: Vec<u8>,
}

impl Lines {
    /// Whether a line has begun.
    pub(super) fn is_within(&self) -> bool {
        !self.begun.is_empty()
    }

    /// Adds output that came at that time, and appends the entries that are whole to `log`. A line of more than
    /// `limits::LOG_LINE_BYTES_MAX` gives parts of that length.
    pub(super) fn add(&mut self, stamp: &Stamp, mut output: &[u8], log: &mut Vec<u8>) {
        while !output.is_empty() {
            let space = LOG_LINE_BYTES_MAX.saturating_sub(self.begun.len());
            let end = output.iter().take(space.saturating_add(1)).position(|byte| *byte == b'\n');
            let (tag, taken, rest) = match end {
                Some(end) => (Some('F'), &output[..end], &output[end + 1..]),
                None if output.len() > space => (Some('P'), &output[..space], &output[space..]),
                None => (None, output, &output[output.len()..]),
            };
            match tag {
                Some(tag) => {
                    stamp.begin(tag, log);
                    log.extend_from_slice(&self.begun);
                    log.extend_from_slice(taken);
                    log.push(b'\n');
                    self.begun = Vec::new();
                }
                None => self.begun.extend_from_slice(taken),
            }
            output = rest;
        }
    }

    /// The output has ended: a line without an end becomes a part, as with containerd.
    pub(super) fn end(&mut self, stamp: &Stamp, log: &mut Vec<u8>) {
        if self.is_within() {
            stamp.begin('P', log);
            log.append(&mut self.begun);
            log.push(b'\n');
        }
    }
}

/// Time and stream of entries.
#[derive(Debug)]
pub(super) struct Stamp {
    text: String,
}

impl Stamp {
    pub(super) fn new(at: Wall, stream: Stream) -> Self {
        let mut text = String::with_capacity(48);
        // Writing to a string cannot fail.
        let _ = write!(text, "{} {} ", NanoFixed(at), stream.as_str());
        Self { text }
    }

    fn begin(&self, tag: char, log: &mut Vec<u8>) {
        log.extend_from_slice(self.text.as_bytes());
        log.extend_from_slice(if tag == 'F' { b"F " } else { b"P " });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(pieces: &[&[u8]]) -> String {
        let (mut lines, mut log) = (Lines::default(), Vec::new());
        let stamp = Stamp::new(Wall::of_civil(2026, 11, 25, 75_600), Stream::Stdout);
        for piece in pieces {
            lines.add(&stamp, piece, &mut log);
        }
        lines.end(&stamp, &mut log);
        let text = String::from_utf8(log).unwrap();
        text.replace("2026-11-25T21:00:00.000000000Z stdout ", "")
    }

    #[test]
    fn lines_are_entries_however_they_come() {
        for (pieces, expected) in [
            (&[&b""[..]][..], ""),
            (&[b"a\n"], "F a\n"),
            (&[b"a\nb\n\n"], "F a\nF b\nF \n"),
            (&[b"a", b"b", b"\n"], "F ab\n"),
            (&[b"a\nb"], "F a\nP b\n"),
            (&[b"a\r\n"], "F a\r\n"),
        ] {
            assert_eq!(entries(pieces), expected, "{pieces:?}");
        }
    }

    #[test]
    fn a_long_line_comes_in_parts() {
        let full = vec![b'x'; LOG_LINE_BYTES_MAX];
        let shown = "x".repeat(LOG_LINE_BYTES_MAX);
        assert_eq!(entries(&[&full, b"\n"]), format!("F {shown}\n"));
        assert_eq!(entries(&[&full, b"y\n"]), format!("P {shown}\nF y\n"));
        assert_eq!(entries(&[&full, &full, b"y"]), format!("P {shown}\nP {shown}\nP y\n"));
        let odd = [&b"ab"[..], &full, &full, b"\nz\n"].concat();
        for size in [1, 7, 4096, LOG_LINE_BYTES_MAX - 1, LOG_LINE_BYTES_MAX + 1] {
            let pieces: Vec<&[u8]> = odd.chunks(size).collect();
            let ab = &shown[2..];
            assert_eq!(entries(&pieces), format!("P ab{ab}\nP {shown}\nF xx\nF z\n"), "{size}");
        }
    }
}
