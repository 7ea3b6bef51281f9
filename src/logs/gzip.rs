//! The frame of gzip (RFC 1952) around deflate, of rotated logs. That of flate2 would bring crc32fast, whose table and whose code for
//! several processors are 20 KB of the binary.

use std::io::{self, BufRead as _, BufReader, ErrorKind, Read, Write};

use flate2::Compression;
use flate2::bufread::DeflateDecoder;
use flate2::write::DeflateEncoder;

use crate::limits::GZIP_HEADER_BYTES_MAX;

/// Deflate, no name, no time, the fastest level, of an unknown system.
const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 0xff];
/// Flags of a header: what follows it.
const HAS_CHECK: u8 = 1 << 1;
const HAS_EXTRA: u8 = 1 << 2;
const HAS_NAME: u8 = 1 << 3;
const HAS_COMMENT: u8 = 1 << 4;

/// The check sums of all bytes.
const SUMS: [u32; 256] = {
    let (mut sums, mut byte) = ([0; 256], 0_u32);
    while byte < 256 {
        let (mut sum, mut bit) = (byte, 0);
        while bit < 8 {
            sum = if sum & 1 == 1 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 };
            bit += 1;
        }
        sums[byte as usize] = sum;
        byte += 1;
    }
    sums
};

/// Check sum (CRC-32) and length of what is compressed.
struct Sum {
    check: u32,
    length: u32,
}

impl Sum {
    fn new() -> Self {
        Self { check: u32::MAX, length: 0 }
    }

    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            let [lowest, ..] = self.check.to_le_bytes();
            self.check = SUMS[usize::from(lowest ^ byte)] ^ self.check >> 8;
            self.length = self.length.wrapping_add(1);
        }
    }

    /// What is behind the compressed bytes.
    fn trailer(&self) -> [u8; 8] {
        let mut trailer = [0; 8];
        trailer[..4].copy_from_slice(&(!self.check).to_le_bytes());
        trailer[4..].copy_from_slice(&self.length.to_le_bytes());
        trailer
    }
}

/// Compresses what is written to it.
pub(super) struct GzipWriter<W: Write> {
    deflate: DeflateEncoder<W>,
    sum: Sum,
}

impl<W: Write> GzipWriter<W> {
    /// With the fastest level: gateways have slow processors, and higher levels gain little. (The kubelet: level 6.)
    ///
    /// # Errors
    /// The file's.
    pub(super) fn new(mut to: W) -> io::Result<Self> {
        to.write_all(&HEADER)?;
        Ok(Self { deflate: DeflateEncoder::new(to, Compression::fast()), sum: Sum::new() })
    }

    /// Writes the end.
    ///
    /// # Errors
    /// The file's.
    pub(super) fn finish(self) -> io::Result<W> {
        let mut to = self.deflate.finish()?;
        to.write_all(&self.sum.trailer())?;
        Ok(to)
    }
}

impl<W: Write> Write for GzipWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.deflate.write(bytes)?;
        self.sum.add(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.deflate.flush()
    }
}

/// Reads one member behind the other.
pub(super) struct GzipReader<R> {
    place: Place<R>,
    sum: Sum,
}

enum Place<R> {
    /// Before a member.
    Begin(BufReader<R>),
    Member(DeflateDecoder<BufReader<R>>),
    /// Behind a member.
    Between(BufReader<R>),
    /// Also behind an error.
    End,
}

impl<R: Read> GzipReader<R> {
    pub(super) fn new(from: R) -> Self {
        Self { place: Place::Begin(BufReader::new(from)), sum: Sum::new() }
    }
}

impl<R: Read> Read for GzipReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Place::Member(member) = &mut self.place {
                let read = member.read(buffer)?;
                self.sum.add(&buffer[..read]);
                if read > 0 || buffer.is_empty() {
                    return Ok(read);
                }
            }
            match std::mem::replace(&mut self.place, Place::End) {
                Place::Member(member) => {
                    let (mut rest, mut trailer) = (member.into_inner(), [0; 8]);
                    rest.read_exact(&mut trailer)?;
                    if trailer != self.sum.trailer() {
                        return Err(damaged("its check sum is another one"));
                    }
                    self.place = Place::Between(rest);
                }
                Place::Between(mut rest) => {
                    if rest.fill_buf()?.is_empty() {
                        return Ok(0);
                    }
                    self.place = Place::Begin(rest);
                }
                Place::Begin(mut rest) => {
                    pass_header(&mut rest)?;
                    (self.place, self.sum) = (Place::Member(DeflateDecoder::new(rest)), Sum::new());
                }
                Place::End => return Ok(0),
            }
        }
    }
}

/// Reads a header, of at most `limits::GZIP_HEADER_BYTES_MAX`.
fn pass_header(from: &mut impl Read) -> io::Result<()> {
    let mut from = from.take(GZIP_HEADER_BYTES_MAX as u64);
    let mut header = [0; HEADER.len()];
    from.read_exact(&mut header)?;
    let [0x1f, 0x8b, 8, flags, ..] = header else { return Err(damaged("it has no header of gzip")) };
    let mut next = || {
        let mut byte = [0];
        from.read_exact(&mut byte).map(|()| byte[0])
    };
    if flags & HAS_EXTRA != 0 {
        for _ in 0..u16::from_le_bytes([next()?, next()?]) {
            next()?;
        }
    }
    for of in [HAS_NAME, HAS_COMMENT] {
        while flags & of != 0 && next()? != 0 {}
    }
    if flags & HAS_CHECK != 0 {
        next()?;
        next()?;
    }
    Ok(())
}

fn damaged(why: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("the compressed log is damaged: {why}"))
}

#[cfg(test)]
mod tests {
    use flate2::GzBuilder;

    use super::*;

    fn text() -> Vec<u8> {
        (0..20_000_u32)
            .flat_map(|line| format!("{line} of a log {}\n", line * 7919 % 1013).into_bytes())
            .collect()
    }

    fn read(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut found = Vec::new();
        GzipReader::new(bytes).read_to_end(&mut found).map(|_| found)
    }

    #[test]
    fn what_is_written_is_read_by_others_and_here() {
        let mut writer = GzipWriter::new(Vec::new()).unwrap();
        writer.write_all(&text()).unwrap();
        let written = writer.finish().unwrap();
        let mut found = Vec::new();
        flate2::read::GzDecoder::new(&*written).read_to_end(&mut found).unwrap();
        assert!(found == text() && read(&written).unwrap() == text() && written.len() < found.len() / 2);
    }

    #[test]
    fn members_of_others_are_read_one_behind_the_other() {
        let mut all = Vec::new();
        let extra = GzBuilder::new().extra(vec![7; 300]).filename("a.log").comment("of a test");
        for builder in [GzBuilder::new(), GzBuilder::new().filename("0.log"), extra] {
            let mut writer = builder.write(Vec::new(), Compression::best());
            writer.write_all(b"line\n").unwrap();
            all.extend(writer.finish().unwrap());
        }
        assert_eq!(read(&all).unwrap(), b"line\nline\nline\n");
        // With a check sum of its header, which is not compared.
        let (mut checked, rest) = (all[..10].to_vec(), &all[10..]);
        checked[3] = HAS_CHECK;
        checked.extend([1, 2]);
        checked.extend(rest);
        assert_eq!(read(&checked).unwrap(), b"line\nline\nline\n");
    }

    #[test]
    fn what_is_damaged_is_an_error_behind_what_was_whole() {
        let mut writer = GzipWriter::new(Vec::new()).unwrap();
        writer.write_all(b"line\n").unwrap();
        let whole = writer.finish().unwrap();
        let with = |at: usize, byte: u8| {
            let mut bytes = whole.clone();
            bytes[at] ^= byte;
            bytes
        };
        let endless_name = [&with(3, HAS_NAME)[..10], &vec![b'x'; 2 * GZIP_HEADER_BYTES_MAX]].concat();
        for (row, bytes, why) in [
            ("another check sum", with(whole.len() - 6, 1), "check sum"),
            ("another length", with(whole.len() - 1, 1), "check sum"),
            ("another format", with(1, 1), "no header"),
            ("nothing", Vec::new(), "fill whole buffer"),
            ("cut off in its trailer", whole[..whole.len() - 1].to_vec(), "fill whole buffer"),
            ("cut off in its header", whole[..9].to_vec(), "fill whole buffer"),
            ("a name without an end", endless_name, "fill whole buffer"),
            ("something behind a member", [&whole[..], b"something else"].concat(), "no header"),
        ] {
            let (mut reader, mut found) = (GzipReader::new(&*bytes), Vec::new());
            let error = reader.read_to_end(&mut found).expect_err(row).to_string();
            assert!(error.contains(why), "{row}: {error}");
            assert!(found.is_empty() || found == b"line\n", "{row}");
            assert_eq!(reader.read(&mut [0; 8]).unwrap(), 0, "{row}: nothing behind an error");
        }
    }
}
