//! The end of a container's log → a termination message: within its limits, and nothing that the log does not say. The same
//! bytes as a log that is read: the same lines however they come, and no more bytes than it has.

use smolet::cri::termination::last_words;
use smolet::limits;
use smolet::logs::line::{Lines, Shown, Sink, Stream};

pub fn run(data: &[u8]) {
    let Some((&first, log)) = data.split_first() else { return };
    let said = last_words(log, first & 1 == 1);
    assert!(said.len() <= limits::TERMINATION_LOG_BYTES_MAX);
    assert!(said.split_inclusive('\n').count() <= limits::TERMINATION_LOG_LINES_MAX);
    let replaced = said.chars().filter(|char| *char == char::REPLACEMENT_CHARACTER).count();
    assert!(said.len() <= log.len() + 2 * replaced);

    let shown = Shown { since: None, timestamps: first & 2 == 2 };
    let whole = read(log, shown, log.len().max(1));
    assert_eq!(read(log, shown, usize::from(first >> 2) + 1), whole);
    // A time may get nine digits where it had none.
    let times = log.split(|byte| *byte == b'\n').count() * 10;
    assert!(whole.0.len() + whole.1.len() <= log.len() + if shown.timestamps { times } else { 0 });
}

#[derive(Debug, Default, PartialEq)]
struct Both(Vec<u8>, Vec<u8>);

impl Sink for Both {
    fn write(&mut self, stream: Stream, bytes: &[u8]) -> std::io::Result<()> {
        match stream {
            Stream::Out => self.0.extend_from_slice(bytes),
            Stream::Err => self.1.extend_from_slice(bytes),
        }
        Ok(())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn read(log: &[u8], shown: Shown, piece: usize) -> Both {
    let (mut lines, mut both) = (Lines::new(shown), Both::default());
    for piece in log.chunks(piece) {
        assert!(lines.push(piece, &mut both).is_ok());
    }
    both
}
