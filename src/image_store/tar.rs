//! Reads the archive of a layer while it arrives. PURE.
//!
//! ```text
//! |     bytes in any pieces ──► blocks ──► extended headers, header ──► Sink::entry ──► Sink::data … ──► Sink::end
//! ```
//!
//! POSIX (ustar, pax) and GNU: long names, base-256 numbers, sparse files of both, extended attributes (`SCHILY.xattr`). Everything
//! is bounded, and nothing of an entry is kept but its header. The reader can be encoded between any two bytes, which is a part of a
//! layer's restart point (`super::restart`). What paths mean is the sink's affair.

use std::fmt;

use minicbor::{Decode, Encode};

use super::sparse;
use crate::limits::{
    LAYER_BYTES_MAX, LAYER_ENTRIES_MAX, LAYER_HEADER_BYTES_MAX, LAYER_PATH_BYTES_MAX, LAYER_XATTR_BYTES_MAX,
    LAYER_XATTRS_MAX,
};

const BLOCK: usize = 512;
const BLOCK_BYTES: u64 = 512;

/// An entry of the archive.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Entry {
    /// The path as it is written; at most `limits::LAYER_PATH_BYTES_MAX`.
    #[cbor(n(0), with = "minicbor::bytes")]
    pub path: Vec<u8>,
    /// What it is.
    #[n(1)]
    pub kind: Kind,
    /// Target of a link.
    #[cbor(n(2), with = "minicbor::bytes")]
    pub target: Vec<u8>,
    /// Permissions with setuid, setgid and sticky.
    #[n(3)]
    pub mode: u32,
    /// Owner.
    #[n(4)]
    pub uid: u32,
    /// Group.
    #[n(5)]
    pub gid: u32,
    /// Time of modification: seconds and nanoseconds.
    #[n(6)]
    pub mtime: (i64, u32),
    /// Length of a file, with the holes of a sparse one.
    #[n(7)]
    pub size: u64,
    /// Device number.
    #[n(8)]
    pub device: (u32, u32),
    /// Extended attributes.
    #[n(9)]
    pub xattrs: Vec<Xattr>,
}

/// An extended attribute.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Xattr {
    /// `user.…`, `security.…`
    #[n(0)]
    pub name: String,
    /// Its value.
    #[cbor(n(1), with = "minicbor::bytes")]
    pub value: Vec<u8>,
}

/// What an entry is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum Kind {
    /// A regular file, whose data follow.
    #[default]
    #[n(0)]
    File,
    /// Another name of an earlier entry.
    #[n(1)]
    HardLink,
    /// A symbolic link.
    #[n(2)]
    Symlink,
    /// A character device.
    #[n(3)]
    Char,
    /// A block device.
    #[n(4)]
    Block,
    /// A directory.
    #[n(5)]
    Directory,
    /// A named pipe.
    #[n(6)]
    Fifo,
}

/// Why an archive is refused: a text that follows the entry's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused(pub String);

impl Refused {
    pub(super) fn because(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Receives the entries. Its error ends the reading.
pub trait Sink {
    /// Its error; a refusal becomes one.
    type Error: From<Refused>;
    /// The next entry.
    fn entry(&mut self, entry: Entry) -> Result<(), Self::Error>;
    /// Data of the file that was begun last, at this offset.
    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Self::Error>;
    /// The file is complete.
    fn end(&mut self) -> Result<(), Self::Error>;
}

/// The reader.
#[derive(Clone, Debug, Encode, Decode)]
pub struct Parser {
    #[n(0)]
    phase: Phase,
    /// The block or the extended header that is being collected.
    #[cbor(n(1), with = "minicbor::bytes")]
    held: Vec<u8>,
    /// Of the next entry.
    #[n(2)]
    extended: Extended,
    #[n(3)]
    entries: u64,
    /// The path of the last entry, for messages.
    #[cbor(n(4), with = "minicbor::bytes")]
    path: Vec<u8>,
    /// Of the file whose data are read.
    #[n(5)]
    pieces: Vec<sparse::Piece>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
enum Phase {
    /// A header is collected in `held`.
    #[n(0)]
    Header,
    /// An extended header of that kind is collected in `held`.
    #[n(1)]
    Extended(#[n(0)] u8, #[n(1)] u64),
    /// Further blocks of the map of an old GNU sparse file; then that many bytes of data.
    #[n(2)]
    SparseBlocks(#[n(0)] u64),
    /// The map at the beginning of a sparse file's data, of which that many bytes are left.
    #[n(3)]
    SparseMap(#[n(0)] u64),
    /// Data of a file: bytes done and left.
    #[n(4)]
    Data(#[n(0)] u64, #[n(1)] u64),
    /// Bytes that are skipped: padding, and headers without meaning here.
    #[n(5)]
    Skip(#[n(0)] u64),
    /// After the end marker.
    #[n(6)]
    Over,
}

/// Fields of extended headers before an entry.
#[derive(Clone, Debug, Default, Encode, Decode)]
struct Extended {
    #[cbor(n(0), with = "minicbor::bytes")]
    path: Option<Vec<u8>>,
    #[cbor(n(1), with = "minicbor::bytes")]
    link: Option<Vec<u8>>,
    #[n(2)]
    size: Option<u64>,
    #[n(3)]
    uid: Option<u64>,
    #[n(4)]
    gid: Option<u64>,
    #[n(5)]
    mtime: Option<(i64, u32)>,
    #[n(6)]
    xattrs: Vec<Xattr>,
    /// GNU.sparse: length with holes, the map, and whether the map begins the data (1.0).
    #[n(7)]
    real_size: Option<u64>,
    #[n(8)]
    pieces: Vec<sparse::Piece>,
    #[n(9)]
    map_in_data: bool,
    #[cbor(n(10), with = "minicbor::bytes")]
    sparse_name: Option<Vec<u8>>,
}

impl Default for Parser {
    fn default() -> Self {
        Self {
            phase: Phase::Header,
            held: Vec::new(),
            extended: Extended::default(),
            entries: 0,
            path: Vec::new(),
            pieces: Vec::new(),
        }
    }
}

fn padding(size: u64) -> u64 {
    size.wrapping_neg() % BLOCK_BYTES
}

impl Parser {
    /// The last entry's path, for messages.
    pub fn path(&self) -> String {
        String::from_utf8_lossy(&self.path).into_owned()
    }

    /// Entries so far.
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// Reads further bytes.
    ///
    /// # Errors
    /// The archive is refused, or the sink's error. The reader is not to be used any more.
    pub fn feed<S: Sink>(&mut self, mut bytes: &[u8], sink: &mut S) -> Result<(), S::Error> {
        while !bytes.is_empty() {
            match self.phase {
                Phase::Over => return Ok(()),
                Phase::Header => {
                    if self.collect(&mut bytes, BLOCK) {
                        let block = std::mem::take(&mut self.held);
                        self.header(&block, sink)?;
                    }
                }
                Phase::Extended(kind, size) => {
                    // Checked when the header was read.
                    let whole = usize::try_from(size).unwrap_or(LAYER_HEADER_BYTES_MAX);
                    if self.collect(&mut bytes, whole) {
                        let text = std::mem::take(&mut self.held);
                        self.extended.take(kind, &text)?;
                        self.phase = skip(padding(size));
                    }
                }
                Phase::SparseBlocks(size) => {
                    if self.collect(&mut bytes, BLOCK) {
                        let block = std::mem::take(&mut self.held);
                        if !sparse::gnu_block(&block[..504], &mut self.pieces)? || block[504] == 0 {
                            self.begin_data(size, sink)?;
                        }
                    }
                }
                Phase::SparseMap(left) => {
                    let Some(rest) = left.checked_sub(BLOCK_BYTES) else {
                        return Err(Refused::because("its sparse map is damaged").into());
                    };
                    let wanted = self.held.len() / BLOCK * BLOCK + BLOCK;
                    if self.collect(&mut bytes, wanted) {
                        self.phase = Phase::SparseMap(rest);
                        if let Some(pieces) = sparse::data_map(&self.held)? {
                            self.pieces = pieces;
                            self.held = Vec::new();
                            self.begin_data(rest, sink)?;
                        } else if rest < BLOCK_BYTES {
                            return Err(Refused::because("its sparse map is damaged").into());
                        }
                    }
                }
                Phase::Data(done, left) => {
                    let most = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                    let (now, rest) = bytes.split_at(most);
                    self.data(done, now, sink)?;
                    bytes = rest;
                    let (done, left) = (done + now.len() as u64, left - now.len() as u64);
                    self.phase = Phase::Data(done, left);
                    if left == 0 {
                        self.end_data(done, sink)?;
                    }
                }
                Phase::Skip(left) => {
                    let most = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                    bytes = &bytes[most..];
                    self.phase = skip(left - most as u64);
                }
            }
        }
        Ok(())
    }

    /// The archive has no more bytes.
    ///
    /// # Errors
    /// It ends within an entry. A missing end marker is accepted, as GNU tar and Go do.
    pub fn finish(&self) -> Result<(), Refused> {
        match self.phase {
            Phase::Over => Ok(()),
            Phase::Header if self.held.is_empty() => Ok(()),
            Phase::Header
            | Phase::Extended(..)
            | Phase::SparseBlocks(_)
            | Phase::SparseMap(_)
            | Phase::Data(..)
            | Phase::Skip(_) => Err(Refused::because("the archive is cut off within it")),
        }
    }

    /// Collects up to so many bytes in `held`; true when they are there.
    fn collect(&mut self, bytes: &mut &[u8], wanted: usize) -> bool {
        let most = wanted.saturating_sub(self.held.len()).min(bytes.len());
        let (now, rest) = bytes.split_at(most);
        self.held.extend_from_slice(now);
        *bytes = rest;
        self.held.len() >= wanted
    }

    fn header<S: Sink>(&mut self, block: &[u8], sink: &mut S) -> Result<(), S::Error> {
        if block.iter().all(|byte| *byte == 0) {
            self.phase = Phase::Over;
            return Ok(());
        }
        let header = Header(block);
        if !header.is_sound() {
            return Err(Refused::because("the header after it is damaged, or this is no tar archive").into());
        }
        let field_size = header.number(124..136)?;
        let kind = block[156];
        match kind {
            b'L' | b'K' | b'x' => {
                if field_size > LAYER_HEADER_BYTES_MAX as u64 {
                    return Err(too_long("an extended header", field_size, LAYER_HEADER_BYTES_MAX));
                }
                self.phase = Phase::Extended(kind, field_size);
                return if field_size == 0 { Err(damaged().into()) } else { Ok(()) };
            }
            // Global headers apply to all entries: nobody writes anything into them that is used here.
            b'g' => {
                self.phase = skip(field_size.saturating_add(padding(field_size)));
                return Ok(());
            }
            _ => {}
        }
        self.entries += 1;
        if self.entries > LAYER_ENTRIES_MAX {
            return Err(
                Refused::because(format!("the layer has more than {LAYER_ENTRIES_MAX} entries")).into()
            );
        }
        let extended = std::mem::take(&mut self.extended);
        let mut entry = extended.entry(&header)?;
        self.path.clone_from(&entry.path);
        // Links, devices and directories have no data, whatever their size field says.
        let has_data = entry.kind == Kind::File;
        let size = if has_data { extended.size.unwrap_or(field_size) } else { 0 };
        entry.size = match (kind, extended.real_size) {
            (b'S', _) => header.number(483..495)?,
            (_, Some(real)) if has_data => real,
            _ => size,
        };
        if size.max(entry.size) > LAYER_BYTES_MAX {
            return Err(Refused::because(format!("it has more than {LAYER_BYTES_MAX} bytes")).into());
        }
        let whole = sparse::Piece { offset: 0, size: entry.size };
        sink.entry(entry)?;
        if !has_data {
            self.phase = Phase::Header;
            return Ok(());
        }
        self.pieces = if extended.pieces.is_empty() { vec![whole] } else { extended.pieces };
        if kind == b'S' {
            self.pieces.clear();
            if sparse::gnu_block(&block[386..482], &mut self.pieces)? && block[482] != 0 {
                self.phase = Phase::SparseBlocks(size);
                return Ok(());
            }
        } else if extended.map_in_data {
            self.phase = Phase::SparseMap(size);
            return Ok(());
        }
        self.begin_data(size, sink)
    }

    /// The map is known: data follow.
    fn begin_data<S: Sink>(&mut self, size: u64, sink: &mut S) -> Result<(), S::Error> {
        sparse::check(&self.pieces, size)?;
        self.phase = Phase::Data(0, size);
        if size == 0 { self.end_data(0, sink) } else { Ok(()) }
    }

    fn end_data<S: Sink>(&mut self, size: u64, sink: &mut S) -> Result<(), S::Error> {
        self.pieces.clear();
        self.phase = skip(padding(size));
        sink.end()
    }

    /// Data after so many bytes of data, which belong where the map says.
    fn data<S: Sink>(&self, done: u64, mut bytes: &[u8], sink: &mut S) -> Result<(), S::Error> {
        let (mut before, mut done) = (0, done);
        for piece in &self.pieces {
            let end = before + piece.size;
            if done < end && !bytes.is_empty() {
                let most = usize::try_from(end - done).unwrap_or(usize::MAX).min(bytes.len());
                let (now, rest) = bytes.split_at(most);
                sink.data(piece.offset + (done - before), now)?;
                done += most as u64;
                bytes = rest;
            }
            before = end;
        }
        Ok(())
    }
}

fn skip(left: u64) -> Phase {
    if left == 0 { Phase::Header } else { Phase::Skip(left) }
}

fn damaged() -> Refused {
    Refused::because("its extended header is damaged")
}

fn too_long<E: From<Refused>>(what: &str, bytes: u64, most: usize) -> E {
    Refused::because(format!("{what} has {bytes} bytes; at most {most} are read")).into()
}

impl Extended {
    fn take(&mut self, kind: u8, text: &[u8]) -> Result<(), Refused> {
        let name = || text.split(|byte| *byte == 0).next().map(<[u8]>::to_vec);
        match kind {
            b'L' => self.path = name(),
            b'K' => self.link = name(),
            _ => return self.take_pax(text),
        }
        Ok(())
    }

    /// `LENGTH KEY=VALUE\n` …; values are bytes of any kind.
    fn take_pax(&mut self, mut records: &[u8]) -> Result<(), Refused> {
        while !records.is_empty() {
            let digits = records.iter().take(20).position(|byte| *byte == b' ').ok_or_else(damaged)?;
            let length: usize = text_number(&records[..digits]).ok_or_else(damaged)?;
            let record = records.get(digits + 1..length).ok_or_else(damaged)?;
            let record = record.strip_suffix(b"\n").ok_or_else(damaged)?;
            let equals = record.iter().position(|byte| *byte == b'=').ok_or_else(damaged)?;
            let key = std::str::from_utf8(&record[..equals]).map_err(|_| damaged())?;
            self.take_record(key, &record[equals + 1..])?;
            records = &records[length..];
        }
        Ok(())
    }

    fn take_record(&mut self, key: &str, value: &[u8]) -> Result<(), Refused> {
        let decimal = || text_number(value).ok_or_else(damaged);
        match key {
            "path" => self.path = Some(value.to_vec()),
            "linkpath" => self.link = Some(value.to_vec()),
            "size" => self.size = Some(decimal()?),
            "uid" => self.uid = Some(decimal()?),
            "gid" => self.gid = Some(decimal()?),
            "mtime" => self.mtime = Some(pax_time(value).ok_or_else(damaged)?),
            "GNU.sparse.name" => self.sparse_name = Some(value.to_vec()),
            "GNU.sparse.realsize" | "GNU.sparse.size" => self.real_size = Some(decimal()?),
            "GNU.sparse.major" => self.map_in_data = decimal()? == 1,
            "GNU.sparse.map" => self.pieces = sparse::text_map(value)?,
            "GNU.sparse.offset" => sparse::push(&mut self.pieces, decimal()?, 0)?,
            "GNU.sparse.numbytes" => {
                self.pieces.last_mut().ok_or_else(damaged)?.size = decimal()?;
            }
            _ => {
                if let Some(name) = key.strip_prefix("SCHILY.xattr.") {
                    self.take_xattr(name, value)?;
                }
            }
        }
        Ok(())
    }

    fn take_xattr(&mut self, name: &str, value: &[u8]) -> Result<(), Refused> {
        if name.is_empty() || name.len() > 255 || name.contains('\0') || value.len() > LAYER_XATTR_BYTES_MAX {
            return Err(Refused::because("it has an extended attribute that is too long"));
        }
        if self.xattrs.len() == LAYER_XATTRS_MAX {
            return Err(Refused::because(format!("it has more than {LAYER_XATTRS_MAX} extended attributes")));
        }
        self.xattrs.push(Xattr { name: name.to_owned(), value: value.to_vec() });
        Ok(())
    }

    /// The entry of a header with these fields before it.
    fn entry(&self, header: &Header<'_>) -> Result<Entry, Refused> {
        let path = self.sparse_name.clone().or_else(|| self.path.clone()).unwrap_or_else(|| header.path());
        let kind = match header.0[156] {
            // Old archives mark directories by a trailing slash.
            b'0' | b'\0' | b'7' if path.ends_with(b"/") => Kind::Directory,
            b'0' | b'\0' | b'7' | b'S' => Kind::File,
            b'1' => Kind::HardLink,
            b'2' => Kind::Symlink,
            b'3' => Kind::Char,
            b'4' => Kind::Block,
            b'5' => Kind::Directory,
            b'6' => Kind::Fifo,
            other => {
                return Err(Refused::because(format!(
                    "entries of type {:?} are not supported",
                    char::from(other)
                )));
            }
        };
        let target = match kind {
            Kind::HardLink | Kind::Symlink => {
                self.link.clone().unwrap_or_else(|| until_zero(&header.0[157..257]).to_vec())
            }
            Kind::File | Kind::Char | Kind::Block | Kind::Directory | Kind::Fifo => Vec::new(),
        };
        for text in [&path, &target] {
            if text.len() > LAYER_PATH_BYTES_MAX || text.contains(&0) {
                return Err(Refused::because(format!(
                    "a path of {} bytes; at most {LAYER_PATH_BYTES_MAX} without a NUL are allowed",
                    text.len()
                )));
            }
        }
        let id = |said: Option<u64>, field| -> Result<u32, Refused> {
            let id = u32::try_from(said.map_or_else(|| header.number(field), Ok)?).ok();
            id.filter(|id| *id != u32::MAX).ok_or_else(|| Refused::because("its owner's number is too large"))
        };
        let device = match kind {
            Kind::Char | Kind::Block => {
                let number = |field| Ok(u32::try_from(header.number(field)?).unwrap_or(u32::MAX));
                (number(329..337)?, number(337..345)?)
            }
            Kind::File | Kind::HardLink | Kind::Symlink | Kind::Directory | Kind::Fifo => (0, 0),
        };
        let seconds = || header.number(136..148).ok().and_then(|s| i64::try_from(s).ok()).unwrap_or(0);
        Ok(Entry {
            path,
            kind,
            target,
            // Twelve bits: the type is the kind's.
            mode: u32::try_from(header.number(100..108)? & 0o7777).unwrap_or(0),
            uid: id(self.uid, 108..116)?,
            gid: id(self.gid, 116..124)?,
            mtime: self.mtime.unwrap_or_else(|| (seconds(), 0)),
            size: 0,
            device,
            xattrs: self.xattrs.clone(),
        })
    }
}

/// Decimal digits.
pub(super) fn text_number<T: std::str::FromStr>(value: &[u8]) -> Option<T> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// Seconds with a fraction, also before 1970.
fn pax_time(value: &[u8]) -> Option<(i64, u32)> {
    let text = std::str::from_utf8(value).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = whole.parse().ok()?;
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let nanos = fraction.bytes().chain(std::iter::repeat(b'0')).take(9);
    let nanos = nanos.fold(0, |sum, digit| sum * 10 + u32::from(digit - b'0'));
    match (whole.starts_with('-'), nanos) {
        (true, 1..) => Some((seconds.checked_sub(1)?, 1_000_000_000 - nanos)),
        _ => Some((seconds, nanos)),
    }
}

struct Header<'a>(&'a [u8]);

impl Header<'_> {
    /// True when the checksum matches the header's bytes, with the checksum field taken as spaces.
    fn is_sound(&self) -> bool {
        let sum = |of: &[u8]| of.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        let spaces = 8 * u64::from(b' ');
        let wanted = sum(&self.0[..148]) + spaces + sum(&self.0[156..]);
        self.number(148..156).is_ok_and(|said| said == wanted)
    }

    /// Octal digits, or GNU's base 256.
    fn number(&self, field: std::ops::Range<usize>) -> Result<u64, Refused> {
        sparse::header_number(&self.0[field]).ok_or_else(|| Refused::because("its header has a bad number"))
    }

    fn path(&self) -> Vec<u8> {
        let (name, prefix) = (until_zero(&self.0[..100]), until_zero(&self.0[345..500]));
        if prefix.is_empty() || self.0[257..263] != *b"ustar\0" {
            name.to_vec()
        } else {
            [prefix, b"/", name].concat()
        }
    }
}

fn until_zero(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}

#[cfg(test)]
mod tests;
