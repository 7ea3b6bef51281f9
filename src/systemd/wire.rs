//! The subset of D-Bus messages for three calls to systemd and their answers. PURE.
//! Follows the D-Bus specification, "Type System" and "Message Protocol"; numbers are in native byte order, as systemd's are.

use crate::limits::SYSTEMD_MESSAGE_BYTES_MAX;

/// The fixed head of every message, up to the length of its header fields.
pub(super) const HEAD_BYTES: usize = 16;

const ENDIAN: u8 = if cfg!(target_endian = "little") { b'l' } else { b'B' };
const CALL: u8 = 1;

/// Header fields, by number.
const PATH: u8 = 1;
const INTERFACE: u8 = 2;
const MEMBER: u8 = 3;
const ERROR_NAME: u8 = 4;
const REPLY_SERIAL: u8 = 5;
const DESTINATION: u8 = 6;
const SIGNATURE: u8 = 8;

/// A value of a unit's property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value<'v> {
    Bool(bool),
    Number(u64),
    Text(&'v str),
    /// A list with one text.
    List(&'v str),
}

/// A message or a body that is being encoded: every value is aligned to its own size.
#[derive(Debug, Default)]
pub(super) struct Writer(Vec<u8>);

impl Writer {
    fn align(&mut self, to: usize) {
        self.0.resize(self.0.len().next_multiple_of(to), 0);
    }

    fn u32(&mut self, value: u32) {
        self.align(4);
        self.0.extend(value.to_ne_bytes());
    }

    fn length(&mut self, of: usize) {
        // Far below the bound of a message.
        self.u32(u32::try_from(of).unwrap_or(u32::MAX));
    }

    /// A boolean (`b`).
    pub(super) fn flag(&mut self, value: bool) {
        self.u32(u32::from(value));
    }

    /// A string (`s`) or an object's path (`o`).
    pub(super) fn text(&mut self, value: &str) {
        self.length(value.len());
        self.0.extend(value.as_bytes());
        self.0.push(0);
    }

    /// A signature (`g`): ours are short.
    fn signature(&mut self, value: &str) {
        self.0.push(u8::try_from(value.len()).unwrap_or(u8::MAX));
        self.0.extend(value.as_bytes());
        self.0.push(0);
    }

    /// An array, whose elements are aligned to `align`.
    pub(super) fn array(&mut self, align: usize, elements: &mut dyn FnMut(&mut Self)) {
        self.u32(0);
        let length_at = self.0.len() - 4;
        self.align(align);
        let begin = self.0.len();
        elements(self);
        let length = u32::try_from(self.0.len() - begin).unwrap_or(u32::MAX);
        self.0[length_at..length_at + 4].copy_from_slice(&length.to_ne_bytes());
    }

    /// One property of a list of them (`(sv)`).
    pub(super) fn property(&mut self, name: &str, value: Value<'_>) {
        self.align(8);
        self.text(name);
        match value {
            Value::Bool(value) => {
                self.signature("b");
                self.flag(value);
            }
            Value::Number(value) => {
                self.signature("t");
                self.align(8);
                self.0.extend(value.to_ne_bytes());
            }
            Value::Text(value) => {
                self.signature("s");
                self.text(value);
            }
            Value::List(value) => {
                self.signature("as");
                self.array(4, &mut |list| list.text(value));
            }
        }
    }

    fn field(&mut self, number: u8, kind: &str, value: &str) {
        self.align(8);
        self.0.push(number);
        self.signature(kind);
        if kind == "g" { self.signature(value) } else { self.text(value) }
    }
}

/// Destination of a method call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Object {
    pub(super) destination: &'static str,
    pub(super) path: &'static str,
    pub(super) interface: &'static str,
}

/// systemd's manager.
pub(super) const MANAGER: Object = Object {
    destination: "org.freedesktop.systemd1",
    path: "/org/freedesktop/systemd1",
    interface: "org.freedesktop.systemd1.Manager",
};
/// The manager's properties.
pub(super) const MANAGER_PROPERTIES: Object =
    Object { interface: "org.freedesktop.DBus.Properties", ..MANAGER };

/// Encodes a call of `method` with arguments of these types.
pub(super) fn call(serial: u32, to: &Object, method: &str, types: &str, arguments: &Writer) -> Vec<u8> {
    // No flags; version 1 of the protocol.
    let mut message = Writer(vec![ENDIAN, CALL, 0, 1]);
    message.length(arguments.0.len());
    message.u32(serial);
    message.array(8, &mut |fields| {
        fields.field(PATH, "o", to.path);
        fields.field(INTERFACE, "s", to.interface);
        fields.field(MEMBER, "s", method);
        fields.field(DESTINATION, "s", to.destination);
        fields.field(SIGNATURE, "g", types);
    });
    message.align(8);
    message.0.extend(&arguments.0);
    message.0
}

/// Type of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The answer to the call with this serial.
    Return(u32),
    /// The error of the call with this serial, and its name.
    Error(u32, String),
    /// A signal of this name.
    Signal(String),
    /// Another call.
    Other,
}

/// A message from systemd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) kind: Kind,
    /// The first texts of its body; numbers among them are in `numbers`, any other type ends both.
    pub(super) texts: Vec<String>,
    pub(super) numbers: Vec<u64>,
}

/// Number of bytes after the first [`HEAD_BYTES`] of a message. `None`: invalid, or more than
/// `limits::SYSTEMD_MESSAGE_BYTES_MAX`.
pub(super) fn rest(head: [u8; HEAD_BYTES]) -> Option<usize> {
    let mut reader = Reader { bytes: &head, at: 4 };
    let (body, _serial, fields) = (reader.size()?, reader.u32()?, reader.size()?);
    let whole = HEAD_BYTES.checked_add(fields)?.checked_next_multiple_of(8)?.checked_add(body)?;
    (head[0] == ENDIAN && whole <= SYSTEMD_MESSAGE_BYTES_MAX).then(|| whole - HEAD_BYTES)
}

/// Parses a whole message.
pub(super) fn parse(whole: &[u8]) -> Option<Message> {
    let mut reader = Reader { bytes: whole, at: HEAD_BYTES - 4 };
    let end = reader.size()?.checked_add(HEAD_BYTES)?;
    let (mut member, mut error, mut reply, mut signature) = (None, None, None, "");
    while reader.at < end {
        reader.align(8);
        let number = reader.u8()?;
        match reader.signature()? {
            "s" | "o" => match (number, reader.text()?) {
                (MEMBER, text) => member = Some(text),
                (ERROR_NAME, text) => error = Some(text),
                _ => {}
            },
            "g" => {
                let types = reader.signature()?;
                if number == SIGNATURE {
                    signature = types;
                }
            }
            "u" => {
                let value = reader.u32()?;
                if number == REPLY_SERIAL {
                    reply = Some(value);
                }
            }
            // The specification has no field of another type.
            _ => return None,
        }
    }
    reader.align(8);
    let (mut texts, mut numbers) = (Vec::new(), Vec::new());
    // Alignment counts from the body's beginning, which is at a multiple of 8.
    for kind in signature.bytes() {
        // A variant contains its type.
        let kind = if kind == b'v' { reader.signature()?.bytes().next()? } else { kind };
        match kind {
            b's' | b'o' => texts.push(reader.text()?.to_owned()),
            b'u' | b'i' | b'b' | b'h' => numbers.push(u64::from(reader.u32()?)),
            b't' => numbers.push(reader.u64()?),
            _ => break,
        }
    }
    let kind = match *whole.get(1)? {
        2 => Kind::Return(reply?),
        3 => Kind::Error(reply?, error?.to_owned()),
        4 => Kind::Signal(member?.to_owned()),
        _ => Kind::Other,
    };
    Some(Message { kind, texts, numbers })
}

/// Decodes values; `None` when the bytes end early.
struct Reader<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl<'b> Reader<'b> {
    fn align(&mut self, to: usize) {
        self.at = self.at.next_multiple_of(to);
    }

    fn take(&mut self, length: usize) -> Option<&'b [u8]> {
        let taken = self.bytes.get(self.at..self.at.checked_add(length)?)?;
        self.at += length;
        Some(taken)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn u32(&mut self) -> Option<u32> {
        self.align(4);
        Some(u32::from_ne_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        self.align(8);
        Some(u64::from_ne_bytes(self.take(8)?.try_into().ok()?))
    }

    fn size(&mut self) -> Option<usize> {
        usize::try_from(self.u32()?).ok()
    }

    /// A text of that length, and its terminating zero.
    fn words(&mut self, length: usize) -> Option<&'b str> {
        let words = std::str::from_utf8(self.take(length)?).ok()?;
        (self.u8()? == 0).then_some(words)
    }

    fn text(&mut self) -> Option<&'b str> {
        let length = self.size()?;
        self.words(length)
    }

    fn signature(&mut self) -> Option<&'b str> {
        let length = usize::from(self.u8()?);
        self.words(length)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A message of that type with these header fields, as systemd sends it.
    fn message(kind: u8, fields: &[(u8, &str, &str)], reply: Option<u32>, body: &Writer) -> Vec<u8> {
        let mut message = Writer(vec![ENDIAN, kind, 1, 1]);
        message.length(body.0.len());
        message.u32(7);
        message.array(8, &mut |list| {
            for (number, kind, value) in fields {
                list.field(*number, kind, value);
            }
            if let Some(serial) = reply {
                list.align(8);
                list.0.push(REPLY_SERIAL);
                list.signature("u");
                list.u32(serial);
            }
        });
        message.align(8);
        message.0.extend(&body.0);
        message.0
    }

    fn texts(texts: &[&str]) -> Writer {
        let mut body = Writer::default();
        for text in texts {
            body.text(text);
        }
        body
    }

    /// The answer to the call with that serial, with a job's path.
    pub(in super::super) fn returned(to: u32, job: Option<&str>) -> Vec<u8> {
        match job {
            Some(job) => message(2, &[(SIGNATURE, "g", "o")], Some(to), &texts(&[job])),
            None => message(2, &[], Some(to), &Writer::default()),
        }
    }

    pub(in super::super) fn error(to: u32, name: &str, words: &str) -> Vec<u8> {
        message(3, &[(ERROR_NAME, "s", name), (SIGNATURE, "g", "s")], Some(to), &texts(&[words]))
    }

    /// The answer to the call with that serial: numbers of that type, or variants of numbers of eight bytes.
    pub(in super::super) fn numbered(to: u32, types: &str, numbers: &[u64]) -> Vec<u8> {
        let mut body = Writer::default();
        for number in numbers {
            if types == "v" {
                body.signature("t");
                body.align(8);
                body.0.extend(number.to_ne_bytes());
            } else {
                body.u32(u32::try_from(*number).unwrap());
            }
        }
        message(2, &[(SIGNATURE, "g", types)], Some(to), &body)
    }

    /// A signal of logind with these flags.
    pub(in super::super) fn signal(name: &str, flags: &[u32]) -> Vec<u8> {
        let mut body = Writer::default();
        for flag in flags {
            body.u32(*flag);
        }
        let types = "b".repeat(flags.len());
        let fields = [(PATH, "o", "/org/freedesktop/login1"), (MEMBER, "s", name), (SIGNATURE, "g", &*types)];
        message(4, &fields, None, &body)
    }

    /// The signal that a job has ended.
    pub(in super::super) fn ended(job: &str, unit: &str, result: &str) -> Vec<u8> {
        let mut body = Writer::default();
        body.u32(1);
        for text in [job, unit, result] {
            body.text(text);
        }
        let fields =
            [(PATH, "o", "/org/freedesktop/systemd1"), (MEMBER, "s", "JobRemoved"), (SIGNATURE, "g", "uoss")];
        message(4, &fields, None, &body)
    }

    /// A call's serial, method and body.
    pub(in super::super) fn asked(whole: &[u8]) -> (u32, String, Vec<u8>) {
        let mut reader = Reader { bytes: whole, at: 4 };
        let (body, serial, end) = (reader.size().unwrap(), reader.u32().unwrap(), reader.size().unwrap());
        let mut method = "";
        while reader.at < end + HEAD_BYTES {
            reader.align(8);
            let number = reader.u8().unwrap();
            let value = match reader.signature().unwrap() {
                "g" => reader.signature().unwrap(),
                _ => reader.text().unwrap(),
            };
            if number == MEMBER {
                method = value;
            }
        }
        (serial, method.to_owned(), whole[whole.len() - body..].to_vec())
    }

    #[test]
    fn messages_are_read_back() {
        let parsed = |whole: &[u8]| {
            let head = whole[..HEAD_BYTES].try_into().unwrap();
            assert_eq!(rest(head), Some(whole.len() - HEAD_BYTES));
            parse(whole).unwrap()
        };
        let of = |kind, texts: &[&str]| Message {
            kind,
            texts: texts.iter().map(|&t| t.to_owned()).collect(),
            numbers: Vec::new(),
        };
        assert_eq!(parsed(&returned(3, Some("/job/1"))), of(Kind::Return(3), &["/job/1"]));
        assert_eq!(parsed(&returned(4, None)), of(Kind::Return(4), &[]));
        assert_eq!(parsed(&error(5, "a.B", "no")), of(Kind::Error(5, "a.B".to_owned()), &["no"]));
        let mut removed = of(Kind::Signal("JobRemoved".to_owned()), &["/job/1", "x.slice", "done"]);
        removed.numbers.push(1);
        assert_eq!(parsed(&ended("/job/1", "x.slice", "done")), removed);
        // Nothing is read after a value of another type.
        let mut body = texts(&["one"]);
        body.array(8, &mut |list| list.property("x", Value::Bool(true)));
        let signal = message(4, &[(MEMBER, "s", "Changed"), (SIGNATURE, "g", "sa(sv)s")], None, &body);
        assert_eq!(parsed(&signal), of(Kind::Signal("Changed".to_owned()), &["one"]));
    }

    #[test]
    fn numbers_are_read_in_order() {
        let numbers = |whole: &[u8]| parse(whole).unwrap().numbers;
        assert_eq!(numbers(&numbered(1, "v", &[5_000_000])), [5_000_000]);
        assert_eq!(numbers(&numbered(1, "h", &[0])), [0]);
        assert_eq!(numbers(&signal("PrepareForShutdown", &[1])), [1]);
    }

    #[test]
    fn damaged_messages_are_rejected_or_differ() {
        let whole = ended("/job/1", "kubepods.slice", "done");
        for end in HEAD_BYTES..whole.len() {
            assert_eq!(parse(&whole[..end]), None, "cut at {end}");
        }
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..20_000 {
            let mut damaged = whole.clone();
            for _ in 0..random.usize(1..4) {
                let at = random.usize(..damaged.len());
                damaged[at] = random.u8(..);
            }
            let fits = rest(damaged[..HEAD_BYTES].try_into().unwrap());
            assert!(fits.is_none_or(|rest| rest <= SYSTEMD_MESSAGE_BYTES_MAX));
            drop(parse(&damaged));
        }
    }
}
