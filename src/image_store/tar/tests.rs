use std::fmt::Write as _;

use super::*;

/// Collects what the archive has, a line an entry.
#[derive(Default)]
struct Seen {
    lines: Vec<String>,
    data: Vec<(u64, Vec<u8>)>,
}

impl Sink for Seen {
    type Error = Refused;

    fn entry(&mut self, entry: Entry) -> Result<(), Refused> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let Entry { path, kind, target, mode, uid, gid, mtime, size, device, xattrs } = entry;
        let mut line =
            format!("{kind:?} {} {mode:o} {uid}:{gid} {}.{:09} {size}", text(&path), mtime.0, mtime.1);
        if !target.is_empty() {
            let _ = write!(line, " -> {}", text(&target));
        }
        if device != (0, 0) {
            let _ = write!(line, " {}:{}", device.0, device.1);
        }
        for Xattr { name, value } in xattrs {
            let _ = write!(line, " {name}={}", text(&value));
        }
        self.lines.push(line);
        Ok(())
    }

    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Refused> {
        match self.data.last_mut() {
            Some((begin, data)) if *begin + data.len() as u64 == offset && offset > 0 => {
                data.extend_from_slice(bytes);
            }
            _ => self.data.push((offset, bytes.to_vec())),
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), Refused> {
        let data = std::mem::take(&mut self.data);
        let shown = data.iter().map(|(at, data)| format!("{at}+{}", String::from_utf8_lossy(data)));
        self.lines.push(format!("end {}", shown.collect::<Vec<_>>().join(" ")));
        Ok(())
    }
}

type Block = [u8; 512];

fn seal(mut block: Block) -> Vec<u8> {
    block[148..156].copy_from_slice(b"        ");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block.to_vec()
}

fn header(name: &[u8], kind: u8, size: usize, link: &[u8]) -> Block {
    let mut block = [0; 512];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, name);
    put(100, b"0000644\0");
    put(108, b"0000001\0");
    put(116, b"0000002\0");
    put(124, format!("{size:011o}\0").as_bytes());
    put(136, b"00000000012\0");
    put(157, link);
    put(257, b"ustar\0");
    block[156] = kind;
    block
}

fn with_data(block: &Block, data: &[u8]) -> Vec<u8> {
    let mut bytes = seal(*block);
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn entry(name: &str, kind: u8, link: &str, data: &[u8]) -> Vec<u8> {
    with_data(&header(name.as_bytes(), kind, data.len(), link.as_bytes()), data)
}

fn pax(records: &[&str]) -> Vec<u8> {
    let mut text = String::new();
    for record in records {
        let length = (1..99_999).find(|n: &usize| n.to_string().len() + 2 + record.len() == *n).unwrap();
        let _ = writeln!(text, "{length} {record}");
    }
    entry("pax", b'x', "", text.as_bytes())
}

/// Reads an archive in pieces of that size.
fn read(bytes: &[u8], size: usize) -> Result<Vec<String>, String> {
    let (mut parser, mut seen) = (Parser::default(), Seen::default());
    for piece in bytes.chunks(size) {
        parser.feed(piece, &mut seen).map_err(|refused| refused.0)?;
    }
    parser.finish().map_err(|refused| refused.0)?;
    Ok(seen.lines)
}

fn old_sparse(real: usize, pairs: &[(usize, usize)], more: bool) -> Block {
    let size = pairs.iter().map(|pair| pair.1).sum();
    let mut block = header(b"sparse", b'S', size, b"");
    for (index, (offset, size)) in pairs.iter().enumerate() {
        let at = 386 + 24 * index;
        block[at..at + 24].copy_from_slice(format!("{offset:011o}\0{size:011o}\0").as_bytes());
    }
    block[482] = u8::from(more);
    block[483..495].copy_from_slice(format!("{real:011o}\0").as_bytes());
    block
}

#[test]
fn entries_of_every_form_are_read_in_pieces_of_any_size() {
    let long = "d/".repeat(90) + "name";
    let mut base256 = header(b"big", b'0', 0, b"");
    base256[108..116].copy_from_slice(&[0x80, 0, 0, 0, 0, 1, 0, 0]);
    let mut prefixed = header(b"name", b'0', 0, b"");
    prefixed[345..348].copy_from_slice(b"dir");
    let mut device = header(b"null", b'3', 0, b"");
    device[329..345].copy_from_slice(b"0000001\x000000003\0");
    let mut further = [0_u8; 512];
    further[..24].copy_from_slice(b"00000000012\x0000000000001\0");
    let sparse_more = [
        // Four pairs are in the header.
        seal({
            let mut block = old_sparse(11, &[(0, 1), (2, 1), (4, 1), (6, 1)], true);
            block[124..136].copy_from_slice(b"00000000005\0");
            block
        }),
        further.to_vec(),
        with_data(&[0; 512], b"abcde")[512..].to_vec(),
    ]
    .concat();
    let plain = |name: &str, size: usize| format!("File {name} 644 1:2 10.000000000 {size}");
    for (bytes, wanted) in [
        (entry("a", b'0', "", b"hello"), vec![plain("a", 5), "end 0+hello".into()]),
        (entry("old/", b'\0', "", b""), vec!["Directory old/ 644 1:2 10.000000000 0".into()]),
        (entry("d", b'5', "", b""), vec!["Directory d 644 1:2 10.000000000 0".into()]),
        (entry("l", b'2', "to/x", b""), vec!["Symlink l 644 1:2 10.000000000 0 -> to/x".into()]),
        (entry("h", b'1', "a", b""), vec!["HardLink h 644 1:2 10.000000000 0 -> a".into()]),
        (entry("p", b'6', "", b""), vec!["Fifo p 644 1:2 10.000000000 0".into()]),
        (seal(device), vec!["Char null 644 1:2 10.000000000 0 1:3".into()]),
        (seal(prefixed), vec![plain("dir/name", 0), "end ".into()]),
        (seal(base256), vec!["File big 644 65536:2 10.000000000 0".into(), "end ".into()]),
        (
            [entry("L", b'L', "", format!("{long}\0").as_bytes()), entry("cut", b'0', "", b"x")].concat(),
            vec![plain(&long, 1), "end 0+x".into()],
        ),
        (
            [entry("K", b'K', "", b"far\0"), entry("l", b'2', "cut", b"")].concat(),
            vec!["Symlink l 644 1:2 10.000000000 0 -> far".into()],
        ),
        (
            [
                pax(&["path=p q", "uid=7", "gid=8", "mtime=-1.25", "SCHILY.xattr.user.a=b=c"]),
                entry("x", b'0', "", b""),
            ]
            .concat(),
            vec!["File p q 644 7:8 -2.750000000 0 user.a=b=c".into(), "end ".into()],
        ),
        // Extended headers count for one entry.
        (
            [pax(&["path=one"]), entry("x", b'0', "", b""), entry("two", b'0', "", b"")].concat(),
            vec![plain("one", 0), "end ".into(), plain("two", 0), "end ".into()],
        ),
        (
            [entry("g", b'g', "", b"anything"), entry("a", b'0', "", b"")].concat(),
            vec![plain("a", 0), "end ".into()],
        ),
        (
            with_data(&old_sparse(20, &[(3, 2), (10, 3)], false), b"abcde"),
            vec![plain("sparse", 20), "end 3+ab 10+cde".into()],
        ),
        (sparse_more, vec![plain("sparse", 11), "end 0+a 2+b 4+c 6+d 10+e".into()]),
        (
            [
                pax(&[
                    "GNU.sparse.size=9",
                    "GNU.sparse.numblocks=2",
                    "GNU.sparse.map=1,1,5,2",
                    "GNU.sparse.name=s",
                ]),
                entry("x", b'0', "", b"abc"),
            ]
            .concat(),
            vec![plain("s", 9), "end 1+a 5+bc".into()],
        ),
        (
            [
                pax(&[
                    "GNU.sparse.major=1",
                    "GNU.sparse.minor=0",
                    "GNU.sparse.realsize=9",
                    "GNU.sparse.name=s",
                ]),
                entry("x", b'0', "", &[&with_data(&[0; 512], b"2\n1\n1\n5\n2\n")[512..], b"abc"].concat()),
            ]
            .concat(),
            vec![plain("s", 9), "end 1+a 5+bc".into()],
        ),
    ] {
        for size in [1, 7, 511, 512, 513, 100_000] {
            for end in [0, 1024] {
                let bytes = [bytes.clone(), vec![0; end]].concat();
                assert_eq!(read(&bytes, size).as_ref(), Ok(&wanted), "pieces of {size}");
            }
        }
    }
    // What follows the end marker is padding.
    let padded = [entry("a", b'0', "", b""), vec![0; 1024], b"rest".to_vec()].concat();
    assert_eq!(read(&padded, 9).map(|lines| lines.len()), Ok(2));
}

#[test]
fn damaged_and_boundless_archives_are_refused() {
    let huge = |field: std::ops::Range<usize>, bytes: &[u8]| {
        let mut block = header(b"a", b'0', 0, b"");
        block[field].copy_from_slice(bytes);
        seal(block)
    };
    let many: Vec<String> =
        (0..=LAYER_XATTRS_MAX).map(|index| format!("SCHILY.xattr.user.{index}=v")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let long = format!("path={}", "p".repeat(LAYER_PATH_BYTES_MAX + 1));
    let map = |map: &str| {
        [pax(&["GNU.sparse.size=9", &format!("GNU.sparse.map={map}")]), entry("s", b'0', "", b"abc")].concat()
    };
    let data_map = |text: &str| {
        let data = with_data(&[0; 512], text.as_bytes())[512..].to_vec();
        [pax(&["GNU.sparse.major=1", "GNU.sparse.realsize=9"]), entry("s", b'0', "", &data)].concat()
    };
    let raw_pax = |text: &str| [entry("x", b'x', "", text.as_bytes()), entry("a", b'0', "", b"")].concat();
    for (bytes, wanted) in [
        (vec![1; 512], "no tar archive"),
        (entry("a", b'0', "", b"x")[..700].to_vec(), "cut off"),
        (entry("a", b'0', "", b"x")[..100].to_vec(), "cut off"),
        (pax(&["path=a"])[..600].to_vec(), "cut off"),
        (huge(124..136, b"77777777777\0"), ""),
        (huge(124..136, &[0x80, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0]), "more than"),
        (huge(124..136, &[0xff; 12]), "bad number"),
        (huge(108..116, &[0x80, 0, 0, 1, 0, 0, 0, 0]), "owner"),
        (huge(100..108, b"99999999"), "bad number"),
        (huge(156..157, b"V"), "type 'V'"),
        ([pax(&["size=18446744073709551615"]), entry("a", b'0', "", b"")].concat(), "more than"),
        ([pax(&["size=-1"]), entry("a", b'0', "", b"")].concat(), "extended header"),
        ([pax(&[&long]), entry("a", b'0', "", b"")].concat(), "a path of 4096 bytes"),
        ([pax(&many), entry("a", b'0', "", b"")].concat(), "more than 64 extended attributes"),
        (seal(header(b"x", b'x', LAYER_HEADER_BYTES_MAX + 1, b"")), "at most"),
        (seal(header(b"x", b'L', 0, b"")), "extended header"),
        (raw_pax("9 path=a"), "extended header"),
        (raw_pax("99999999999999999999 path=a\n"), "extended header"),
        (raw_pax("0 path=a\n"), "extended header"),
        (raw_pax("nothing"), "extended header"),
        (raw_pax("8 path=\n8 mtim\n"), "extended header"),
        (raw_pax("12 path=a\0b\n"), "NUL"),
        (map("1,1,0,2"), "sparse map"),
        (map("1,1"), "sparse map"),
        (map("1,1,5"), "sparse map"),
        (map("1,3,18446744073709551615,0"), "sparse map"),
        (data_map("1\n1\n"), "sparse map"),
        (data_map("x\n"), "sparse map"),
        (data_map("99999999\n"), "pieces"),
        (data_map(&"1".repeat(512)), "sparse map"),
    ] {
        let error = read(&bytes, 512).expect_err(wanted);
        assert!(error.contains(wanted), "{wanted}: {error}");
    }
}

/// Whatever is changed in an archive, it is read or refused, and a reader that was encoded in between reads the same.
#[test]
fn a_corrupted_archive_is_read_the_same_after_an_encoding_between_any_two_bytes() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let good = [
        pax(&["path=a/b", "SCHILY.xattr.user.x=y", "mtime=3.5"]),
        entry("cut", b'0', "", &[b'z'; 700]),
        with_data(&old_sparse(2000, &[(3, 2), (1000, 3)], false), b"abcde"),
        pax(&["GNU.sparse.major=1", "GNU.sparse.realsize=9"]),
        entry("s", b'0', "", &[&with_data(&[0; 512], b"2\n1\n1\n5\n2\n")[512..], b"abc"].concat()),
        entry("l", b'2', "a/b", b""),
        vec![0; 1024],
    ]
    .concat();
    for _ in 0..crate::cases(4000) {
        let mut bytes = good.clone();
        for _ in 0..random.usize(0..4) {
            let block = random.usize(..bytes.len() / 512) * 512;
            bytes[block + random.usize(..512)] = random.u8(..);
            if random.bool() {
                let sealed = seal(bytes[block..block + 512].try_into().unwrap());
                bytes[block..block + 512].copy_from_slice(&sealed);
            }
        }
        let whole = read(&bytes, bytes.len());
        let (mut parser, mut seen) = (Parser::default(), Seen::default());
        let mut rest = &bytes[..];
        let result = loop {
            let (now, then) = rest.split_at(random.usize(..=rest.len()));
            rest = then;
            if let Err(refused) = parser.feed(now, &mut seen) {
                break Err(refused.0);
            }
            let encoded = minicbor::to_vec(&parser).unwrap();
            parser = minicbor::decode(&encoded).unwrap();
            if rest.is_empty() {
                break parser.finish().map_err(|refused| refused.0).map(|()| seen.lines);
            }
        };
        assert_eq!(result, whole);
    }
}
