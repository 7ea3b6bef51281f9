//! The lines of a container's log in the CRI format (kubelet `parseCRILog`, `logWriter`). PURE.
//!
//! ```text
//!     2026-01-02T03:04:05.678901234Z stdout F a whole line
//!     2026-01-02T03:04:05.678901235Z stderr P a part, which goes on in the next line of this stream
//! ```
//!
//! A line is processed in pieces: one without an end takes no memory.

use crate::limits::LOG_HEAD_BYTES_MAX;
use crate::model::Wall;

/// An output stream of the container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// `stdout`.
    Out,
    /// `stderr`.
    Err,
}

/// The fields before a line's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// When it was written.
    pub time: Wall,
    /// The output stream.
    pub stream: Stream,
    /// The tag `P`: the stream's next line continues this one.
    pub partial: bool,
}

/// Receiver of the content. An error ends the reading.
pub trait Sink {
    /// Takes a piece of the container's output.
    ///
    /// # Errors
    /// It cannot be written.
    fn write(&mut self, stream: Stream, bytes: &[u8]) -> std::io::Result<()>;

    /// No more content is available for now.
    ///
    /// # Errors
    /// The lines taken before cannot be written.
    fn flush(&mut self) -> std::io::Result<()>;
}

/// Parses the head of the line that `text` begins with; `None` when it is incomplete or not a log line.
pub fn head(text: &[u8]) -> Option<Head> {
    let text = &text[..text.len().min(LOG_HEAD_BYTES_MAX)];
    let text = text.split(|byte| *byte == b'\n').next()?;
    let mut parts = text.splitn(4, |byte| *byte == b' ');
    let (time, stream, tags) = (parts.next()?, parts.next()?, parts.next()?);
    // The blank after the tags is part of the head.
    parts.next()?;
    let stream = match stream {
        b"stdout" => Stream::Out,
        b"stderr" => Stream::Err,
        _ => return None,
    };
    let partial = tags.split(|byte| *byte == b':').next() == Some(b"P");
    Some(Head { time: rfc3339(time)?, stream, partial })
}

/// `YYYY-MM-DDTHH:MM:SS[.fraction](Z|±HH:MM)`.
pub(crate) fn rfc3339(text: &[u8]) -> Option<Wall> {
    let number = |from: usize, to: usize| {
        let digits = text.get(from..to)?;
        digits.iter().all(u8::is_ascii_digit).then(|| decimal(digits))
    };
    let separators = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
    if separators.iter().any(|(at, byte)| text.get(*at) != Some(byte)) {
        return None;
    }
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let within = (1..=12).contains(&month) && (1..=31).contains(&day);
    if !within || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let rest = &text[19..];
    let (fraction, zone) = match rest.strip_prefix(b".") {
        Some(rest) => rest.split_at(rest.iter().take_while(|byte| byte.is_ascii_digit()).count()),
        None => (&rest[..0], rest),
    };
    let mut nanos = 0;
    for at in 0..9 {
        nanos = nanos * 10 + fraction.get(at).map_or(0, |digit| i64::from(digit - b'0'));
    }
    let east = match zone {
        b"Z" => 0,
        [sign @ (b'+' | b'-'), h, hh, b':', m, mm] if [h, hh, m, mm].iter().all(|d| d.is_ascii_digit()) => {
            let seconds = decimal(&[*h, *hh]) * 3600 + decimal(&[*m, *mm]) * 60;
            if *sign == b'-' { -seconds } else { seconds }
        }
        _ => return None,
    };
    let of_day = hour * 3600 + minute * 60 + second - east;
    let whole = Wall::of_civil(year, month, day, of_day);
    Some(Wall(whole.0.saturating_add(nanos)))
}

fn decimal(digits: &[u8]) -> i64 {
    digits.iter().fold(0, |number, digit| number * 10 + i64::from(digit - b'0'))
}

/// The head's own time with nine decimals (`RFC3339NanoFixed`), and a blank.
fn nine_digits(head: &[u8]) -> Vec<u8> {
    let time = head.split(|byte| *byte == b' ').next().unwrap_or_default();
    let (whole, rest) = time.split_at(time.len().min(19));
    let rest = rest.strip_prefix(b".").unwrap_or(rest);
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let mut out = whole.to_vec();
    out.push(b'.');
    out.extend(rest[..digits].iter().copied().chain(std::iter::repeat(b'0')).take(9));
    out.extend_from_slice(&rest[digits..]);
    out.push(b' ');
    out
}

/// Selection and format of the lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    /// Only lines written at that time or later.
    pub since: Option<Wall>,
    /// Prefix each line with its time.
    pub timestamps: bool,
}

/// The position in a line at the end of the bytes so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// In its head.
    Head,
    /// In its content.
    Content(Head),
    /// In a line that is not shown, or is not a log line.
    Skipped,
}

/// Parses a log's bytes and writes the content of its lines to a sink.
#[derive(Debug)]
pub struct Lines {
    shown: Shown,
    at: At,
    /// The line's head so far, at most `LOG_HEAD_BYTES_MAX`.
    head: Vec<u8>,
    /// By stream: the last line was partial.
    parts: [bool; 2],
}

impl Lines {
    /// A parser at the beginning of a log.
    pub fn new(shown: Shown) -> Self {
        Self { shown, at: At::Head, head: Vec::with_capacity(LOG_HEAD_BYTES_MAX), parts: [false; 2] }
    }

    /// The next bytes are from another file, which begins with a line. An incomplete line before it stays incomplete.
    pub fn next_file(&mut self) {
        self.at = At::Head;
        self.head.clear();
    }

    /// Takes the next bytes.
    ///
    /// # Errors
    /// The sink's.
    pub fn push(&mut self, mut bytes: &[u8], sink: &mut impl Sink) -> std::io::Result<()> {
        while !bytes.is_empty() {
            bytes = match self.at {
                At::Head => self.begin(bytes, sink)?,
                At::Content(head) => {
                    let (line, rest, ended) = line_end(bytes);
                    sink.write(
                        head.stream,
                        if head.partial && ended { &line[..line.len() - 1] } else { line },
                    )?;
                    if ended {
                        self.next_file();
                    }
                    rest
                }
                At::Skipped => {
                    let (_, rest, ended) = line_end(bytes);
                    if ended {
                        self.next_file();
                    }
                    rest
                }
            };
        }
        Ok(())
    }

    /// Consumes the line's head; returns the rest.
    fn begin<'b>(&mut self, bytes: &'b [u8], sink: &mut impl Sink) -> std::io::Result<&'b [u8]> {
        for (at, byte) in bytes.iter().enumerate() {
            if *byte == b'\n' {
                // Not a log line.
                self.next_file();
                return Ok(&bytes[at + 1..]);
            }
            self.head.push(*byte);
            if *byte == b' '
                && let Some(head) = head(&self.head)
            {
                self.at = At::Content(head);
                if self.shown.since.is_some_and(|since| head.time < since) {
                    self.at = At::Skipped;
                } else {
                    let goes_on = std::mem::replace(&mut self.parts[head.stream as usize], head.partial);
                    if self.shown.timestamps && !goes_on {
                        sink.write(head.stream, &nine_digits(&self.head))?;
                    }
                }
                return Ok(&bytes[at + 1..]);
            }
            if self.head.len() == LOG_HEAD_BYTES_MAX {
                self.at = At::Skipped;
                return Ok(&bytes[at + 1..]);
            }
        }
        Ok(&[])
    }
}

/// The bytes up to and including the line's end, the rest, and whether there is an end.
fn line_end(bytes: &[u8]) -> (&[u8], &[u8], bool) {
    match bytes.iter().position(|byte| *byte == b'\n') {
        Some(at) => (&bytes[..=at], &bytes[at + 1..], true),
        None => (bytes, &[], false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Both([Vec<u8>; 2]);

    impl Sink for Both {
        fn write(&mut self, stream: Stream, bytes: &[u8]) -> std::io::Result<()> {
            self.0[stream as usize].extend_from_slice(bytes);
            Ok(())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// A log's content on both streams, parsed in pieces of that size.
    fn read(log: &[u8], shown: Shown, piece: usize) -> [String; 2] {
        let (mut lines, mut both) = (Lines::new(shown), Both::default());
        log.chunks(piece).for_each(|piece| lines.push(piece, &mut both).unwrap());
        both.0.map(|bytes| String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn lines_lose_their_heads_however_they_come() {
        const T: &str = "2026-01-01T00:00:00.1Z";
        for (log, out, err) in [
            (format!("{T} stdout F one\n{T} stderr F two\n{T} stdout F three\n"), "one\nthree\n", "two\n"),
            (
                format!("{T} stdout P par\n{T} stderr F in between\n{T} stdout F tial\n"),
                "partial\n",
                "in between\n",
            ),
            (format!("{T} stdout F:x tagged\n{T} stdout P:x a\n{T} stdout F \n"), "tagged\na\n", ""),
            (format!("{T} stdout F  two  blanks \n{T} stdout F cut o"), " two  blanks \ncut o", ""),
            (format!("no log line\n\n{T} stdin F x\n{T} stdout F\n{T} stdout F kept\n"), "kept\n", ""),
            (format!("yesterday stdout F x\n{}\n{T} stdout F kept\n", "x ".repeat(900)), "kept\n", ""),
            (format!("{T} stdout F {}\n", "long".repeat(9000)), &format!("{}\n", "long".repeat(9000)), ""),
        ] {
            for piece in [1, 3, 64, usize::MAX] {
                let piece = piece.min(log.len());
                assert_eq!(read(log.as_bytes(), Shown::default(), piece), [out, err], "{log:?} by {piece}");
            }
        }
    }

    #[test]
    fn a_time_is_shown_once_for_each_whole_line_with_nine_digits() {
        let log = b"2026-01-01T00:00:00Z stdout P a\n2026-01-01T00:00:00.25+02:00 stderr F e\n\
                    2026-01-01T00:00:01.5Z stdout F b\n2026-01-01T00:00:02.123456789Z stdout F c\n";
        let shown = Shown { timestamps: true, since: None };
        let out = "2026-01-01T00:00:00.000000000Z ab\n2026-01-01T00:00:02.123456789Z c\n";
        assert_eq!(read(log, shown, 7), [out, "2026-01-01T00:00:00.250000000+02:00 e\n"]);
    }

    #[test]
    fn earlier_lines_are_left_out_whatever_zone_they_are_written_in() {
        let log = b"2026-01-01T00:59:59.9+01:00 stdout F before\n2026-01-01T00:00:00Z stdout F then\n\
                    2025-12-31T23:00:01-01:00 stdout F after\n";
        // 2026-01-01T00:00:00Z
        let since = Some(Wall(1_767_225_600_000_000_000));
        assert_eq!(read(log, Shown { since, timestamps: false }, 5), ["then\nafter\n", ""]);
    }

    #[test]
    fn times_are_read_as_they_are_shown() {
        for nanos in [0, 1, 951_782_400_000_000_000, 1_767_225_600_123_456_789, 4_102_444_799_999_999_999] {
            let shown = crate::model::NanoFixed(Wall(nanos)).to_string();
            assert_eq!(rfc3339(shown.as_bytes()), Some(Wall(nanos)), "{shown}");
        }
        for wrong in [
            "",
            "2026",
            "2026-13-01T00:00:00Z",
            "2026-01-01T24:00:00Z",
            "2026-01-01T00:00:00",
            "2026-01-01 00:00:00Z",
        ] {
            assert_eq!(rfc3339(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
