//! Netlink: messages to the kernel's networking, and its answers (netlink(7)). I/O; the kernel answers a request before `send` returns.
//!
//! ```text
//!     struct nlmsghdr   length, type, flags, sequence, port
//!     the family's      struct ifinfomsg, struct nfgenmsg …
//!     attributes        length, type, value, padded to 4 bytes; a value may be attributes again
//! ```
//!
//! Numbers are in the machine's byte order unless the family says otherwise.

pub mod link_address;

use std::io;

use rustix::fd::OwnedFd;
use rustix::net::netlink::{GENERIC, NETFILTER, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

use crate::limits::{
    NETLINK_ANSWER_BYTES, NETLINK_DUMP_BYTES_MAX, NETLINK_DUMP_TRIES_MAX, NETLINK_SEND_BYTES_MAX,
};

/// `NLM_F_REQUEST`.
pub const REQUEST: u16 = 1;
/// `NLM_F_ACK`.
pub const ACKNOWLEDGE: u16 = 4;
/// `NLM_F_DUMP`, for a GET.
pub const DUMP: u16 = 0x300;
/// `NLM_F_REPLACE`, for a NEW: it may exist.
pub const REPLACE: u16 = 0x100;
/// `NLM_F_EXCL`, for a NEW: it may not exist.
pub const EXCLUSIVE: u16 = 0x200;
/// `NLM_F_CREATE`, for a NEW.
pub const CREATE: u16 = 0x400;
/// `NLM_F_APPEND`, for a NEW: behind what is there.
pub const APPEND: u16 = 0x800;

/// `struct nlmsghdr`.
const HEADER: usize = 16;
/// `NLMSG_ERROR`, which is an acknowledgement too.
const ERROR: u16 = 2;
/// `NLMSG_DONE`.
const DONE: u16 = 3;
/// `NLM_F_DUMP_INTR`, of an answer: what is read changed meanwhile.
const INTERRUPTED: u16 = 0x10;
/// `NLA_F_NESTED`, of an attribute that has attributes.
pub const NESTED: u16 = 0x8000;
/// `NLA_TYPE_MASK`.
const ATTRIBUTE: u16 = 0x3fff;

/// Which part of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Links, addresses, routes, neighbours.
    Route,
    /// `nf_tables`, connection tracking.
    Netfilter,
    /// What has no protocol of its own: `WireGuard`.
    Generic,
}

/// A message, or several in a row.
#[derive(Clone, Debug, Default)]
pub struct Message(Vec<u8>);

impl Message {
    /// A message of this type, with `flags` besides `NLM_F_REQUEST`, and the family's own header. With attributes behind it,
    /// [`Message::end`] of 0 is called again.
    pub fn new(kind: u16, flags: u16, header: &[u8]) -> Self {
        let mut message = Self::default();
        message.begin(kind, flags, header);
        message.end(0);
        message
    }

    /// Begins a further message, and returns where.
    pub fn begin(&mut self, kind: u16, flags: u16, header: &[u8]) -> usize {
        let at = self.0.len();
        self.0.extend([0; 4]);
        self.0.extend(kind.to_ne_bytes());
        self.0.extend((flags | REQUEST).to_ne_bytes());
        self.0.extend([0; 8]);
        self.0.extend(header);
        self.pad();
        at
    }

    /// Ends the message that began there.
    pub fn end(&mut self, at: usize) {
        let length = u32::try_from(self.0.len() - at).unwrap_or(u32::MAX);
        self.0[at..at + 4].copy_from_slice(&length.to_ne_bytes());
    }

    fn pad(&mut self) {
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    /// Adds an attribute.
    pub fn attribute(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        let length = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
        self.0.extend(length.to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.pad();
        self
    }

    /// Adds an attribute that has attributes. More than 64 KiB do not fit into one.
    pub fn nest(&mut self, kind: u16, fill: impl FnOnce(&mut Self)) -> &mut Self {
        let at = self.0.len();
        self.0.extend([0; 2]);
        self.0.extend((kind | NESTED).to_ne_bytes());
        fill(self);
        let length = u16::try_from(self.0.len() - at).unwrap_or(u16::MAX);
        self.0[at..at + 2].copy_from_slice(&length.to_ne_bytes());
        self
    }

    /// As they are sent.
    #[cfg(all(test, feature = "tls"))]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Bytes so far.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the messages of another one.
    pub fn append(&mut self, other: &Self) {
        self.0.extend(&other.0);
    }
}

/// A socket.
#[derive(Debug)]
pub struct Netlink {
    socket: OwnedFd,
    sequence: u32,
    answer: Vec<u8>,
}

impl Netlink {
    /// A socket in the thread's network namespace.
    ///
    /// # Errors
    /// The kernel's: without this part of it `EPROTONOSUPPORT`.
    pub fn open(protocol: Protocol) -> io::Result<Self> {
        let protocol = match protocol {
            // Protocol 0.
            Protocol::Route => None,
            Protocol::Netfilter => Some(NETFILTER),
            Protocol::Generic => Some(GENERIC),
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, 0))?;
        // An error repeats the whole message, and may not fit: what would spare it (`NETLINK_CAP_ACK`) is set by unsafe code alone.
        let _ = sockopt::set_socket_recv_buffer_size(&socket, 2 * NETLINK_ANSWER_BYTES);
        Ok(Self { socket, sequence: 0, answer: vec![0; NETLINK_ANSWER_BYTES] })
    }

    /// Sends the message, which is to be acknowledged.
    ///
    /// # Errors
    /// The kernel's.
    pub fn request(&mut self, message: &Message) -> io::Result<()> {
        // Until the acknowledgement: what an earlier request left unread comes first.
        self.dump(&acknowledged(message), &mut |_, _| {})
    }

    /// Sends a request that has one answer, and gives its content, without `struct nlmsghdr`.
    ///
    /// # Errors
    /// As [`Netlink::dump`].
    pub fn ask(&mut self, message: &Message, each: &mut dyn FnMut(&[u8])) -> io::Result<()> {
        self.dump(&acknowledged(message), &mut |_, answer| each(answer))
    }

    /// What is found by a request with [`DUMP`]: `each` has type and content of each message of the answer, as with [`Netlink::dump`].
    /// It is read anew when it changed meanwhile: an entry may have been missed.
    ///
    /// # Errors
    /// As [`Netlink::dump`], after `limits::NETLINK_DUMP_TRIES_MAX` dumps of the kind `Interrupted`.
    pub fn collect<T: Default>(
        &mut self,
        message: &Message,
        each: &mut dyn FnMut(&mut T, u16, &[u8]),
    ) -> io::Result<T> {
        let mut tries = 1;
        loop {
            let mut found = T::default();
            let read = self.dump(message, &mut |kind, content| each(&mut found, kind, content));
            match read {
                Err(error)
                    if error.kind() == io::ErrorKind::Interrupted && tries < NETLINK_DUMP_TRIES_MAX =>
                {
                    tries += 1;
                }
                read => return read.map(|()| found),
            }
        }
    }

    /// Sends a request with [`DUMP`], and gives type and content of each message of the answer, without `struct nlmsghdr`.
    ///
    /// # Errors
    /// The kernel's; `Interrupted` at the end of an answer that may lack something; an answer of more than
    /// `limits::NETLINK_DUMP_BYTES_MAX`.
    pub fn dump(&mut self, message: &Message, each: &mut dyn FnMut(u16, &[u8])) -> io::Result<()> {
        self.send(message.clone())?;
        let (mut read, mut changed) = (0, false);
        loop {
            let Received { bytes, is_done, is_interrupted } = self.receive(each)?;
            changed |= is_interrupted;
            if is_done && changed {
                return Err(io::Error::new(io::ErrorKind::Interrupted, "it changed while it was read"));
            }
            if is_done {
                return Ok(());
            }
            read += bytes;
            if bytes == 0 || read > NETLINK_DUMP_BYTES_MAX {
                return Err(io::Error::other(format!("the kernel's answer ended after {read} bytes")));
            }
        }
    }

    /// Sends messages that the kernel takes together, all or none. What is wrong is reported before this returns.
    ///
    /// # Errors
    /// The kernel's first one, with the message's number in the batch; a batch of more than `limits::NETLINK_SEND_BYTES_MAX`.
    pub fn batch(&mut self, batch: Message) -> Result<(), BatchError> {
        let last = self.send(batch).map_err(BatchError::whole)?;
        // The numbers of the next request begin behind these.
        let first = std::mem::replace(&mut self.sequence, last);
        let (mut refused, mut unread) = (None, None);
        loop {
            let bytes = match rustix::net::recv(&self.socket, &mut self.answer[..], RecvFlags::TRUNC) {
                Ok((_, bytes)) => bytes,
                Err(rustix::io::Errno::AGAIN) => break,
                Err(rustix::io::Errno::INTR) => continue,
                // Answers are lost, and further ones would be until those that are there have been read.
                Err(rustix::io::Errno::NOBUFS) => {
                    unread = Some(rustix::io::Errno::NOBUFS.into());
                    continue;
                }
                Err(error) => {
                    unread = Some(error.into());
                    break;
                }
            };
            for message in Messages::of(&self.answer, bytes) {
                match message {
                    Ok((ERROR, _, sequence, content)) if (first..=last).contains(&sequence) => {
                        if let (None, Some(error)) = (&refused, code(content)) {
                            refused = Some(BatchError { message: Some(sequence - first), error });
                        }
                    }
                    Ok(_) => {}
                    Err(error) => unread = Some(error),
                }
            }
        }
        refused.or(unread.map(BatchError::whole)).map_or(Ok(()), Err)
    }

    /// Numbers the messages in a row, and sends them. The number of the last one.
    fn send(&mut self, mut message: Message) -> io::Result<u32> {
        if message.len() > NETLINK_SEND_BYTES_MAX {
            return Err(io::Error::other(format!("more than {NETLINK_SEND_BYTES_MAX} bytes for the kernel")));
        }
        self.sequence = self.sequence.wrapping_add(1) & 0x3fff_ffff;
        let (mut at, mut number) = (0, self.sequence);
        while let Some(length) = message.0.get(at..at + 4).and_then(|length| length.try_into().ok()) {
            message.0[at + 8..at + 12].copy_from_slice(&number.to_ne_bytes());
            number += 1;
            at += (u32::from_ne_bytes(length) as usize).max(HEADER).next_multiple_of(4);
        }
        // The kernel takes no more than its buffer for what is sent.
        let wanted = message.len() + 4096;
        if sockopt::set_socket_send_buffer_size_force(&self.socket, wanted).is_err() {
            sockopt::set_socket_send_buffer_size(&self.socket, wanted)?;
        }
        rustix::net::send(&self.socket, &message.0, SendFlags::empty())?;
        Ok(number.max(self.sequence + 1) - 1)
    }

    /// One datagram of an answer to the last request. An acknowledgement is its end.
    fn receive(&mut self, each: &mut dyn FnMut(u16, &[u8])) -> io::Result<Received> {
        let read = loop {
            match rustix::net::recv(&self.socket, &mut self.answer[..], RecvFlags::TRUNC) {
                Ok((_, read)) => break read,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        };
        let (mut is_done, mut is_interrupted) = (false, false);
        for message in Messages::of(&self.answer, read) {
            let (kind, flags, sequence, content) = message?;
            if sequence != self.sequence {
                continue;
            }
            is_interrupted |= flags & INTERRUPTED != 0;
            match kind {
                ERROR | DONE => {
                    if let Some(error) = code(content) {
                        return Err(error);
                    }
                    is_done = true;
                }
                _ => each(kind, content),
            }
        }
        Ok(Received { bytes: read, is_done, is_interrupted })
    }
}

/// The same message, to be acknowledged.
fn acknowledged(message: &Message) -> Message {
    let mut message = message.clone();
    let flags = u16::from_ne_bytes([message.0[6], message.0[7]]) | ACKNOWLEDGE;
    message.0[6..8].copy_from_slice(&flags.to_ne_bytes());
    message
}

struct Received {
    bytes: usize,
    is_done: bool,
    is_interrupted: bool,
}

/// What the kernel refused of a batch.
#[derive(Debug)]
pub struct BatchError {
    /// The message's number in the batch, if it is one's.
    pub message: Option<u32>,
    /// Why.
    pub error: io::Error,
}

impl BatchError {
    fn whole(error: io::Error) -> Self {
        Self { message: None, error }
    }
}

/// The messages of a datagram: type, flags, sequence number, content. One that is cut short is an error, and the last.
struct Messages<'a> {
    rest: &'a [u8],
    /// There was more in the datagram than is in `rest`.
    is_cut: bool,
}

impl<'a> Messages<'a> {
    /// Those of a datagram of so many bytes, of which `answer` has what fits.
    fn of(answer: &'a [u8], bytes: usize) -> Self {
        Self { rest: answer.get(..bytes).unwrap_or(answer), is_cut: bytes > answer.len() }
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = io::Result<(u16, u16, u32, &'a [u8])>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() && !self.is_cut {
            return None;
        }
        let cut = || io::Error::new(io::ErrorKind::InvalidData, "an answer of the kernel's is cut short");
        let bytes = std::mem::take(&mut self.rest);
        let Some((header, behind)) = bytes.split_first_chunk::<HEADER>() else {
            self.is_cut = false;
            return Some(Err(cut()));
        };
        let word =
            |at: usize| u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let half = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
        let (length, kind, flags, sequence) = (word(0) as usize, half(4), half(6), word(8));
        if let Some(content) = bytes.get(HEADER..length) {
            self.rest = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
            return Some(Ok((kind, flags, sequence, content)));
        }
        self.is_cut = false;
        // Its code comes first; what is missing is the message that it repeats.
        let has_code = kind == ERROR && behind.len() >= size_of::<i32>();
        Some(if has_code { Ok((kind, flags, sequence, behind)) } else { Err(cut()) })
    }
}

/// The error of an `NLMSG_ERROR` or `NLMSG_DONE`.
fn code(content: &[u8]) -> Option<io::Error> {
    let code = i32::from_ne_bytes(content.get(..4)?.try_into().ok()?);
    (code < 0).then(|| io::Error::from_raw_os_error(code.saturating_neg()))
}

/// Type and value of each attribute. What is cut short is left out.
pub fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?));
        let kind = u16::from_ne_bytes(bytes.get(2..4)?.try_into().ok()?);
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind & ATTRIBUTE, value))
    })
}

/// The value of the first attribute of this type.
pub fn attribute(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    /// As the kernel sends it; without content it is an answer's end.
    fn answer(flags: u16, sequence: u32, content: &[u8]) -> Vec<u8> {
        let kind = if content.is_empty() { DONE } else { 20 };
        let content = if content.is_empty() { &[0; 4][..] } else { content };
        let mut bytes = u32::try_from(HEADER + content.len()).unwrap().to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(content);
        bytes
    }

    /// A refusal (`NLMSG_ERROR`), which repeats so many bytes of the message; 0 is an acknowledgement.
    fn refusal(sequence: u32, code: i32, repeated: usize) -> Vec<u8> {
        let content = [&(-code).to_ne_bytes()[..], &vec![0; repeated]].concat();
        let mut bytes = answer(0, sequence, &content);
        bytes[4..6].copy_from_slice(&ERROR.to_ne_bytes());
        bytes
    }

    /// A socket, and the kernel's end of it.
    fn pair() -> (Netlink, UnixDatagram) {
        let (ours, kernels) = UnixDatagram::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let socket = ours.into();
        (Netlink { socket, sequence: 0, answer: vec![0; NETLINK_ANSWER_BYTES] }, kernels)
    }

    /// Two messages.
    fn two() -> Message {
        let mut batch = Message::new(16, 0, &[0; 4]);
        batch.append(&Message::new(17, 0, &[0; 4]));
        batch
    }

    /// What is found where these are the kernel's answers, a datagram each.
    fn collected(answers: &[Vec<u8>]) -> io::Result<Vec<Vec<u8>>> {
        let (mut netlink, kernels) = pair();
        for answer in answers {
            kernels.send(answer).unwrap();
        }
        let question = Message::new(16, DUMP, &[0; 4]);
        netlink.collect(&question, &mut |found: &mut Vec<Vec<u8>>, _, content| found.push(content.to_vec()))
    }

    #[test]
    fn a_dump_during_which_something_changed_is_read_again() {
        let found = |answers: &[Vec<u8>]| collected(answers).unwrap();
        let whole = [answer(2, 1, b"kept"), answer(2, 1, b"")].concat();
        assert_eq!(found(&[whole]), [b"kept"]);
        let first = [answer(2, 1, b"gone"), answer(0x12, 1, b"kept"), answer(2, 1, b"")].concat();
        // It may be said at the end alone, where the last entries were missed.
        let second = [answer(2, 2, b"kept"), answer(0x12, 2, b"")].concat();
        let third = [answer(2, 3, b"kept"), answer(2, 3, b"more"), answer(2, 3, b"")].concat();
        assert_eq!(found(&[first, second, third]), [b"kept", b"more"]);
        let tries = u32::try_from(NETLINK_DUMP_TRIES_MAX).unwrap();
        let never: Vec<Vec<u8>> =
            (1..=tries).map(|of| [answer(0x12, of, b"gone"), answer(2, of, b"")].concat()).collect();
        let why = collected(&never).unwrap_err();
        assert_eq!(why.kind(), io::ErrorKind::Interrupted);
        assert_eq!(why.to_string(), "it changed while it was read");
    }

    #[test]
    fn a_refusal_is_heard_however_much_of_the_message_it_repeats() {
        let fits = NETLINK_ANSWER_BYTES - HEADER - 4;
        for repeated in [HEADER, fits, fits + 1, NETLINK_ANSWER_BYTES, 2 * NETLINK_ANSWER_BYTES] {
            let (mut netlink, kernels) = pair();
            kernels.send(&refusal(2, 17, repeated)).unwrap();
            let refused = netlink.batch(two()).unwrap_err();
            assert_eq!((refused.message, refused.error.raw_os_error()), (Some(1), Some(17)), "{repeated}");
            kernels.send(&refusal(3, 22, repeated)).unwrap();
            let refused = netlink.request(&Message::new(16, 0, &[0; 4])).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(22), "{repeated}");
        }
    }

    #[test]
    fn an_answer_that_cannot_be_read_is_no_success() {
        let (whole, refused) = (answer(0, 1, &[7; 100]), refusal(1, 17, HEADER));
        let long = answer(0, 1, &vec![7; NETLINK_ANSWER_BYTES]);
        // The datagram has more behind the last message that fits.
        let first = answer(0, 1, &vec![7; NETLINK_ANSWER_BYTES - HEADER]);
        let behind = [first, refusal(2, 17, HEADER)].concat();
        for datagram in [&whole[..3], &whole[..HEADER + 50], &refused[..HEADER + 3], &long, &behind] {
            let (mut netlink, kernels) = pair();
            kernels.send(datagram).unwrap();
            let failed = netlink.batch(two()).unwrap_err();
            assert_eq!((failed.message, failed.error.kind()), (None, io::ErrorKind::InvalidData));
            kernels.send(datagram).unwrap();
            let failed = netlink.request(&Message::new(16, 0, &[0; 4])).unwrap_err();
            assert_eq!(failed.kind(), io::ErrorKind::InvalidData);
        }
    }

    #[test]
    fn an_answer_to_an_earlier_request_is_not_the_next_ones() {
        let (mut netlink, kernels) = pair();
        netlink.batch(two()).unwrap();
        kernels.send(&refusal(2, 17, HEADER)).unwrap();
        netlink.batch(two()).unwrap();
        kernels.send(&refusal(4, 17, NETLINK_ANSWER_BYTES)).unwrap();
        kernels.send(&refusal(5, 0, HEADER)).unwrap();
        let question = Message::new(16, 0, &[0; 4]);
        netlink.request(&question).unwrap();
        kernels.send(&refusal(5, 0, HEADER)).unwrap();
        kernels.send(&refusal(6, 22, HEADER)).unwrap();
        assert_eq!(netlink.request(&question).unwrap_err().raw_os_error(), Some(22));
    }

    #[test]
    fn attributes_are_padded_and_nested_and_read_again() {
        let mut message = Message::new(16, CREATE, &[7; 5]);
        message.attribute(1, b"lo\0").nest(2, |inner| {
            inner.attribute(3, &[9; 4]);
        });
        message.end(0);
        let mut messages = Messages::of(&message.0, message.0.len());
        let (kind, flags, sequence, content) = messages.next().unwrap().unwrap();
        assert_eq!((kind, flags, sequence), (16, CREATE | REQUEST, 0));
        assert!(messages.next().is_none());
        assert_eq!(content.len(), 8 + 8 + 12);
        let found: Vec<(u16, Vec<u8>)> =
            attributes(&content[8..]).map(|(kind, value)| (kind, value.to_vec())).collect();
        assert_eq!(found[0], (1, b"lo\0".to_vec()));
        assert_eq!(attribute(&found[1].1, 3), Some(&[9; 4][..]));
        assert_eq!(attributes(&content[8..content.len() - 1]).count(), 1, "a value that is cut short");
    }
}
