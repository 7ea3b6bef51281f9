//! Standard input and output beside a connection: threads read and write them, so that a pipe, a file and a terminal all work and
//! a blocked reader or writer blocks nothing else.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, poll};
use smol::channel::{Receiver, Sender};

use crate::limits::STREAM_CHUNK_BYTES;

/// Ctrl-P, Ctrl-Q: detaches from an attached terminal (kubectl's `--detach-keys`).
const DETACH_KEYS: [u8; 2] = [0x10, 0x11];

/// The file of a standard stream, without the standard library's buffer.
///
/// # Errors
/// The system's, when the stream is closed.
pub(super) fn file(stream: impl AsFd) -> io::Result<File> {
    Ok(stream.as_fd().try_clone_to_owned()?.into())
}

/// Sends its content until its end, until the receiver is dropped, or, if given, until the detach keys: then true. Blocks.
pub(super) fn read(file: &File, to: &Sender<Vec<u8>>, mut detach: Option<Detach>) -> bool {
    loop {
        let mut bytes = vec![0; STREAM_CHUNK_BYTES];
        let read = again(file, PollFlags::IN, |mut file| file.read(&mut bytes));
        // A stream that cannot be read any more, such as a terminal that hung up, has ended.
        bytes.truncate(read.unwrap_or(0));
        let ended = bytes.is_empty();
        let detached = detach.as_mut().is_some_and(|detach| detach.cut(&mut bytes));
        if ended || (!bytes.is_empty() && to.send_blocking(bytes).is_err()) || detached {
            return detached;
        }
    }
}

/// Writes what is received, until the senders are dropped or a write fails. Blocks.
pub(super) fn write(from: &Receiver<Vec<u8>>, file: &File) {
    while let Ok(bytes) = from.recv_blocking() {
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            match again(file, PollFlags::OUT, |mut file| file.write(rest)) {
                Ok(written) if written > 0 => rest = &rest[written..],
                _ => return,
            }
        }
    }
}

/// Polls when another process with the same open file has made it non-blocking.
fn again(
    file: &File,
    ready: PollFlags,
    mut work: impl FnMut(&File) -> io::Result<usize>,
) -> io::Result<usize> {
    loop {
        match work(file) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                match poll(&mut [PollFd::new(file, ready)], None) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            done => return done,
        }
    }
}

/// Finds the detach keys, in one read or in two.
#[derive(Debug, Default)]
pub(super) struct Detach {
    /// The first key was the last byte; it is held back until the next byte.
    begun: bool,
}

impl Detach {
    /// Removes the keys and what follows them; true when they were found.
    fn cut(&mut self, bytes: &mut Vec<u8>) -> bool {
        if std::mem::take(&mut self.begun) {
            bytes.insert(0, DETACH_KEYS[0]);
        }
        if let Some(at) = bytes.windows(2).position(|two| two == DETACH_KEYS) {
            bytes.truncate(at);
            return true;
        }
        if bytes.last() == Some(&DETACH_KEYS[0]) {
            bytes.pop();
            self.begun = true;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

    use super::*;

    #[test]
    fn the_keys_that_detach_are_found_however_they_come() {
        for (pieces, passed, found) in [
            (&["abc", "\x10x\x11"][..], "abc\x10x\x11", false),
            (&["ab\x10\x11cd"], "ab", true),
            (&["ab\x10", "\x11"], "ab", true),
            (&["\x10", "\x10", "\x11cd"], "\x10", true),
            (&["\x10", "q"], "\x10q", false),
            (&["\x11\x10"], "\x11", false),
        ] {
            let (mut detach, mut all, mut detached) = (Detach::default(), Vec::new(), false);
            for piece in pieces {
                let mut bytes = piece.as_bytes().to_vec();
                detached |= detach.cut(&mut bytes);
                all.extend(bytes);
            }
            assert_eq!((String::from_utf8(all).unwrap().as_str(), detached), (passed, found), "{pieces:?}");
        }
    }

    #[test]
    fn files_that_do_not_wait_are_waited_for() {
        let (near, far) = UnixStream::pair().unwrap();
        for end in [&near, &far] {
            fcntl_setfl(end, fcntl_getfl(end).unwrap() | OFlags::NONBLOCK).unwrap();
        }
        let (near, far) = (file(near).unwrap(), file(far).unwrap());
        let sent: Vec<u8> = (0..1_000_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        let (out, outgoing) = smol::channel::bounded(1);
        let (read_to, incoming) = smol::channel::bounded(1);
        let writer = std::thread::spawn(move || write(&outgoing, &near));
        let reader = std::thread::spawn(move || assert!(!read(&far, &read_to, None), "nothing detached"));
        let piece = sent.clone();
        let source = std::thread::spawn(move || out.send_blocking(piece).unwrap());
        let mut got = Vec::new();
        while let Ok(bytes) = incoming.recv_blocking() {
            got.extend(bytes);
        }
        for thread in [writer, reader, source] {
            thread.join().unwrap();
        }
        assert!(got == sent, "{} of {} bytes", got.len(), sent.len());
    }
}
