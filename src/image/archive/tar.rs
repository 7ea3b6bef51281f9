//! Indexes the files of a tar archive. Reads headers only, so a large archive takes a few small reads; supports POSIX
//! (ustar, pax) and GNU names and sizes.
//!
//! An own reader, because archives are untrusted: names, sizes and the number of entries are bounded here, and nothing
//! between the headers is kept.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;

use crate::limits::{IMAGE_ARCHIVE_ENTRIES_MAX, IMAGE_ARCHIVE_NAME_BYTES_MAX};
use crate::model::SortedMap;

const BLOCK: u64 = 512;

/// A range of the archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Offset from the archive's beginning, in bytes.
    pub offset: u64,
    /// Size in bytes; the range lies within the archive.
    pub size: u64,
}

/// The files and links of an archive, by name.
#[derive(Debug, Default)]
pub struct Index {
    files: SortedMap<String, Extent>,
    /// Targets of symbolic and hard links, relative to the archive's root.
    links: BTreeMap<String, String>,
}

impl Index {
    /// A file, or the target of a link, by its name in any spelling (`./a`, `a`).
    pub fn file(&self, name: &str) -> Option<Extent> {
        let name = clean(name);
        self.files.get(&name).or_else(|| self.files.get(self.links.get(&name)?)).copied()
    }

    /// Reads the headers of an archive of that length. Blocks.
    ///
    /// # Errors
    /// The error, as a text that follows the archive's name.
    pub fn read(archive: &impl FileExt, length: u64) -> Result<Self, String> {
        let mut index = Self::default();
        let mut at = 0;
        let mut entries = 0_usize;
        // Extended header, which applies to the next entry only.
        let mut extended = ExtendedHeader::default();
        loop {
            let mut block = [0_u8; 512];
            if at + BLOCK > length {
                // Some writers omit the end marker.
                return if at == length && entries > 0 { Ok(index) } else { Err(ends_within("its headers")) };
            }
            archive.read_exact_at(&mut block, at).map_err(unread)?;
            if block.iter().all(|byte| *byte == 0) {
                return if entries > 0 { Ok(index) } else { Err("is empty".to_owned()) };
            }
            let header = Header(&block);
            if !header.is_sound() {
                return Err(if entries == 0 {
                    not_tar(&block)
                } else {
                    "is damaged: a bad header".to_owned()
                });
            }
            entries += 1;
            if entries > IMAGE_ARCHIVE_ENTRIES_MAX {
                return Err(format!(
                    "has more than {IMAGE_ARCHIVE_ENTRIES_MAX} entries; is it an image archive?"
                ));
            }
            let kind = header.kind();
            let is_extended_header = matches!(kind, b'L' | b'K' | b'x' | b'g');
            let said_size = if is_extended_header { None } else { extended.size.take() };
            let size = said_size.or_else(|| header.size()).ok_or("is damaged: a bad size")?;
            // Links, devices and directories have no data, whatever their size field.
            let size = if (b'1'..=b'6').contains(&kind) { 0 } else { size };
            let data = Extent { offset: at + BLOCK, size };
            let end = data.offset.checked_add(size).filter(|end| *end <= length);
            let name = || extended.path.clone().unwrap_or_else(|| header.name());
            let Some(end) = end else { return Err(ends_within(&name())) };
            match kind {
                b'L' => extended.path = Some(text(archive, data)?),
                b'K' => extended.link = Some(text(archive, data)?),
                b'x' => extended.take_pax(&text(archive, data)?)?,
                b'0' | b'\0' | b'7' => {
                    let name = name();
                    // Old archives mark directories by a trailing slash.
                    if !name.ends_with('/') {
                        index.files.insert(clean(&name), data);
                    }
                }
                b'1' | b'2' => {
                    let (name, target) = (name(), extended.link.clone().unwrap_or_else(|| header.link()));
                    let target = match name.rsplit_once('/') {
                        Some((dir, _)) if kind == b'2' => clean(&format!("{dir}/{target}")),
                        _ => clean(&target),
                    };
                    index.links.insert(clean(&name), target);
                }
                b'S' => return Err(format!("has a sparse file, {}; pack it without --sparse", name())),
                // Directories, devices, and `g`, which applies to all entries.
                _ => {}
            }
            if !is_extended_header {
                extended = ExtendedHeader::default();
            }
            // Saturating: the next header is then after the end.
            at = end.checked_next_multiple_of(BLOCK).unwrap_or(u64::MAX - BLOCK);
        }
    }
}

/// Fields of extended headers before an entry.
#[derive(Default)]
struct ExtendedHeader {
    path: Option<String>,
    link: Option<String>,
    size: Option<u64>,
}

impl ExtendedHeader {
    /// `LENGTH KEY=VALUE\n` …
    fn take_pax(&mut self, mut records: &str) -> Result<(), String> {
        let damaged = || "is damaged: a bad extended header".to_owned();
        while !records.is_empty() {
            let (length, _) = records.split_once(' ').ok_or_else(damaged)?;
            let begin = length.len() + 1;
            let end: usize = length.parse().map_err(|_| damaged())?;
            let record = records.get(begin..end).ok_or_else(damaged)?;
            let (key, value) = record.trim_end_matches('\n').split_once('=').ok_or_else(damaged)?;
            match key {
                "path" => self.path = Some(value.to_owned()),
                "linkpath" => self.link = Some(value.to_owned()),
                "size" => self.size = Some(value.parse().map_err(|_| damaged())?),
                _ if key.starts_with("GNU.sparse") => {
                    return Err("has a sparse file; pack it without --sparse".to_owned());
                }
                _ => {}
            }
            records = &records[end..];
        }
        Ok(())
    }
}

/// The text of a header's data.
fn text(archive: &impl FileExt, data: Extent) -> Result<String, String> {
    let size = usize::try_from(data.size).ok().filter(|size| *size <= IMAGE_ARCHIVE_NAME_BYTES_MAX);
    let size = size.ok_or_else(|| {
        format!("has a name of {} bytes; at most {IMAGE_ARCHIVE_NAME_BYTES_MAX} are read", data.size)
    })?;
    let mut bytes = vec![0; size];
    archive.read_exact_at(&mut bytes, data.offset).map_err(unread)?;
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
    String::from_utf8(bytes).map_err(|_| "has a name that is no UTF-8".to_owned())
}

struct Header<'a>(&'a [u8; 512]);

impl Header<'_> {
    /// True when the checksum matches the header's bytes, with the checksum field taken as spaces.
    fn is_sound(&self) -> bool {
        let sum = |of: &[u8]| of.iter().map(|byte| u64::from(*byte)).sum::<u64>();
        let spaces = 8 * u64::from(b' ');
        octal(&self.0[148..156]) == Some(sum(&self.0[..148]) + spaces + sum(&self.0[156..]))
    }

    fn kind(&self) -> u8 {
        self.0[156]
    }

    fn size(&self) -> Option<u64> {
        let field = &self.0[124..136];
        if field[0] & 0x80 == 0 {
            return octal(field);
        }
        // GNU: a number of 95 bits; those above 64 must be zero.
        let (high, low) = field.split_at(4);
        let low = low.try_into().map(u64::from_be_bytes).ok()?;
        (high == [0x80, 0, 0, 0]).then_some(low)
    }

    fn name(&self) -> String {
        let (name, prefix) = (until_zero(&self.0[..100]), until_zero(&self.0[345..500]));
        if prefix.is_empty() || self.0[257..263] != *b"ustar\0" { name } else { format!("{prefix}/{name}") }
    }

    fn link(&self) -> String {
        until_zero(&self.0[157..257])
    }
}

/// A name that is not UTF-8 is kept lossily: no image refers to it.
fn until_zero(field: &[u8]) -> String {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end]).into_owned()
}

fn octal(field: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(field).ok()?;
    let digits = text.trim_matches([' ', '\0']);
    if digits.is_empty() { Some(0) } else { u64::from_str_radix(digits, 8).ok() }
}

/// `path.Clean` for a name in the archive: a path that leads above the root stays at the root.
fn clean(name: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in name.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// The error for a file that is not a tar archive, by its first bytes.
fn not_tar(block: &[u8]) -> String {
    let kinds: [(&[u8], &str, &str); 5] = [
        (b"\x1f\x8b", "gzip", "gunzip"),
        (b"\x28\xb5\x2f\xfd", "zstd", "unzstd"),
        (b"BZh", "bzip2", "bunzip2"),
        (b"\xfd7zXZ", "xz", "unxz"),
        (b"\x04\x22\x4d\x18", "lz4", "unlz4"),
    ];
    match kinds.iter().find(|(magic, ..)| block.starts_with(magic)) {
        Some((_, kind, tool)) => {
            format!("is compressed ({kind}), which is not supported; unpack it with {tool}")
        }
        None => "is no tar archive".to_owned(),
    }
}

fn ends_within(what: &str) -> String {
    let what: String = what.chars().take(80).collect();
    format!("is cut off: it ends within {what:?}; copy it again")
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn unread(error: std::io::Error) -> String {
    format!("cannot be read: {error}")
}

#[cfg(test)]
pub(super) use tests::{Bytes, tar};

#[cfg(test)]
mod tests {
    use super::*;

    /// An archive in memory.
    pub(crate) struct Bytes(pub Vec<u8>);

    impl FileExt for Bytes {
        fn read_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<usize> {
            let rest = usize::try_from(offset).ok().and_then(|at| self.0.get(at..)).unwrap_or_default();
            let count = rest.len().min(buffer.len());
            buffer[..count].copy_from_slice(&rest[..count]);
            Ok(count)
        }

        fn write_at(&self, _: &[u8], _: u64) -> std::io::Result<usize> {
            Err(std::io::Error::other("read only"))
        }
    }

    impl Bytes {
        pub(crate) fn index(&self) -> Result<Index, String> {
            Index::read(self, self.0.len() as u64)
        }

        pub(crate) fn read(&self, at: Extent) -> Vec<u8> {
            let (begin, size) = (usize::try_from(at.offset).unwrap(), usize::try_from(at.size).unwrap());
            self.0[begin..begin + size].to_vec()
        }
    }

    fn header(name: &[u8], kind: u8, size: &[u8], link: &str) -> [u8; 512] {
        let mut block = [0; 512];
        block[..name.len()].copy_from_slice(name);
        block[124..124 + size.len()].copy_from_slice(size);
        block[156] = kind;
        block[157..157 + link.len()].copy_from_slice(link.as_bytes());
        block[257..263].copy_from_slice(b"ustar\0");
        seal(block)
    }

    fn seal(mut block: [u8; 512]) -> [u8; 512] {
        block[148..156].copy_from_slice(b"        ");
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        block
    }

    fn entry(name: &str, kind: u8, link: &str, data: &[u8]) -> Vec<u8> {
        let mut bytes =
            header(name.as_bytes(), kind, format!("{:011o}\0", data.len()).as_bytes(), link).to_vec();
        bytes.extend(data);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        bytes
    }

    /// A tar archive of these files, with its end marker.
    pub(crate) fn tar(files: &[(&str, &[u8])]) -> Bytes {
        let mut bytes: Vec<u8> = files.iter().flat_map(|(name, data)| entry(name, b'0', "", data)).collect();
        bytes.resize(bytes.len() + 1024, 0);
        Bytes(bytes)
    }

    fn found(parts: &[Vec<u8>], name: &str) -> Option<String> {
        let archive = Bytes(parts.concat());
        let at = archive.index().unwrap_or_else(|error| panic!("{error}")).file(name)?;
        Some(String::from_utf8(archive.read(at)).unwrap())
    }

    #[test]
    fn names_are_found_in_any_spelling() {
        let long = format!("{}/layer.tar", "d".repeat(200));
        let pax = |record: &str| {
            let length = (1..1000).find(|n: &usize| n.to_string().len() + 1 + record.len() == *n).unwrap();
            entry("PaxHeaders/x", b'x', "", format!("{length} {record}").as_bytes())
        };
        let mut prefixed = header(b"layer.tar", b'0', b"00000000001\0", "");
        prefixed[345..348].copy_from_slice(b"dir");
        let prefixed = [&seal(prefixed)[..], &[b'q'; 512]].concat();
        let file = |name: &str| entry(name, b'0', "", b"here");
        for (parts, name) in [
            (vec![file("a/b")], "a/b"),
            (vec![file("./a/b")], "a/b"),
            (vec![file("a/b")], "./a//c/../b"),
            (vec![entry("dir/", b'5', "", b""), file("a")], "a"),
            (vec![entry("././@LongLink", b'L', "", format!("{long}\0").as_bytes()), file("cut")], &*long),
            (vec![pax(&format!("path={long}\n")), file("cut")], &*long),
            (vec![pax("mtime=1.5\n"), file("a")], "a"),
            (vec![entry("g", b'g', "", b"not even looked at"), file("a")], "a"),
            (vec![file("x/layer.tar"), entry("y/layer.tar", b'2', "../x/layer.tar", b"")], "y/layer.tar"),
            (vec![entry("y", b'1', "x", b""), file("x")], "y"),
            (vec![entry("y", b'K', "", b"long/x\0"), entry("z", b'2', "cut", b""), file("long/x")], "z"),
        ] {
            assert_eq!(found(&parts, name).as_deref(), Some("here"), "{name}");
        }
        assert_eq!(found(&[prefixed], "dir/layer.tar").as_deref(), Some("q"));
        assert_eq!(found(&[pax("size=4\n"), entry("a", b'0', "", b"here")], "a").as_deref(), Some("here"));
        for links in [
            vec![entry("y", b'2', "y", b"")],
            vec![entry("y", b'2', "/../../etc/passwd", b"")],
            vec![entry("y", b'2', "z", b""), entry("z", b'2', "x", b""), file("x")],
        ] {
            assert_eq!(found(&links, "y"), None, "a link leads to a file of the archive, or nowhere");
        }
    }

    #[test]
    fn hostile_archives_are_refused_with_an_error() {
        let file = entry("a", b'0', "", b"data");
        let sized = |size: &[u8]| header(b"a", b'0', size, "").to_vec();
        let mut broken = file.clone();
        broken[0] = b'b';
        let pax = |text: &str| [entry("p", b'x', "", text.as_bytes()), file.clone()].concat();
        let many = entry("a", b'0', "", b"").repeat(IMAGE_ARCHIVE_ENTRIES_MAX + 1);
        let mut huge_name = sized(b"77777777777\0");
        huge_name[156] = b'L';
        let huge_name = seal(huge_name.try_into().unwrap()).to_vec();
        let long_name = entry("l", b'L', "", &vec![b'n'; IMAGE_ARCHIVE_NAME_BYTES_MAX + 1]);
        for (bytes, wanted) in [
            (Vec::new(), "is cut off"),
            (vec![0; 1024], "is empty"),
            (vec![0; 100], "is cut off"),
            (
                b"\x1f\x8b\x08".repeat(200),
                "is compressed (gzip), which is not supported; unpack it with gunzip",
            ),
            (b"\x28\xb5\x2f\xfd".repeat(200), "unpack it with unzstd"),
            (b"PK\x03\x04".repeat(200), "is no tar archive"),
            (broken.clone(), "is no tar archive"),
            ([file.clone(), broken].concat(), "is damaged: a bad header"),
            (file[..600].to_vec(), "is cut off: it ends within"),
            ([file.clone(), vec![1; 100]].concat(), "is cut off"),
            (sized(b"77777777777\0"), "is cut off: it ends within \"a\""),
            (sized(&[0x80, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]), "is cut off"),
            (sized(&[0xff; 12]), "is damaged: a bad size"),
            (sized(b"0000000999x\0"), "is damaged: a bad size"),
            (huge_name, "is cut off"),
            (long_name, "has a name of 4097 bytes"),
            (entry("n", b'L', "", b"\xff\xff"), "no UTF-8"),
            (pax("9 path=a"), "a bad extended header"),
            (pax("99999999999999999999 path=a\n"), "a bad extended header"),
            (pax("0 path=a\n"), "a bad extended header"),
            (pax("x"), "a bad extended header"),
            (pax("9 patha\n"), "a bad extended header"),
            (pax("17 size=99999999\n"), "is cut off"),
            (pax("29 size=18446744073709551615\n"), "is cut off"),
            (pax("22 GNU.sparse.major=1\n"), "sparse"),
            (entry("s", b'S', "", b""), "has a sparse file, s; pack it without --sparse"),
            (many, "has more than 4096 entries"),
        ] {
            let error = Bytes(bytes).index().expect_err(wanted);
            assert!(error.contains(wanted), "{wanted}: {error}");
        }
    }

    /// Whatever bytes of an archive are changed: it is read or rejected, and its ranges are within it.
    #[test]
    fn corrupted_archives_are_read_only_within_their_bounds() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let good = [
            entry("././@LongLink", b'L', "", b"a/long/name\0"),
            entry("cut", b'0', "", &[7; 700]),
            entry("p", b'x', "", b"13 path=b/c\n\n"),
            entry("cut", b'0', "", b"data"),
            entry("d", b'2', "b/c", b""),
            vec![0; 1024],
        ]
        .concat();
        for _ in 0..crate::cases(20_000) {
            let mut bytes = good.clone();
            for _ in 0..random.usize(1..4) {
                let block = random.usize(..bytes.len() / 512) * 512;
                let at = block + random.usize(..512);
                bytes[at] = random.u8(..);
                if random.bool() {
                    let sealed = seal(bytes[block..block + 512].try_into().unwrap());
                    bytes[block..block + 512].copy_from_slice(&sealed);
                }
            }
            bytes.truncate(random.usize(..=bytes.len() * 2).min(good.len()));
            let archive = Bytes(bytes);
            if let Ok(index) = archive.index() {
                for extent in index.files.values() {
                    assert!(extent.offset + extent.size <= archive.0.len() as u64);
                }
            }
        }
    }
}
