//! Archives that `smolet image import` gives to the agent, which imports what is in its directory of archives.

use std::fs::{self, File};
use std::io::{self, Read, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use sha2::{Digest as _, Sha256};

use crate::image::import::names_in;
use crate::image_store::{GZIP, ZSTD};
use crate::limits::{IMPORT_BYTES_MAX, LAYER_FEED_BYTES, MANIFEST_DIR_ENTRIES_MAX};
use crate::text::hex;

/// How the names of archives from standard input begin.
const IMPORTED: &str = "imported-";
/// Digits of an archive's key in the name of its file.
const ARCHIVE_DIGITS: usize = 24;
/// Bytes that tell how a file is compressed.
const MAGIC_BYTES: u64 = 6;
/// Zeros at the end of each tar archive.
const TAR_END_BYTES: usize = 1024;
/// How the name of a copy ends that is not whole.
const PART: &str = ".tar.part";

/// Copies archives to where the agent imports from. Nothing is copied unless all of them may be.
pub(super) fn import_all(images: &Path, archives: &[PathBuf]) -> Result<(), String> {
    let mut named: Vec<(String, &Path)> = Vec::with_capacity(archives.len());
    for archive in archives {
        let failed = |why: String| format!("{}: {why}", archive.display());
        let name = name_of(archive).map_err(failed)?;
        if !is_standard_input(archive) {
            refuse_compressed(&start_of(archive).map_err(failed)?).map_err(failed)?;
        }
        if let Some((_, other)) = named.iter().find(|(known, _)| *known == name) {
            let other = other.display();
            return Err(failed(format!("has the name of {other}, and would replace it; rename one of them")));
        }
        named.push((name, archive));
    }
    // The agent makes it and the directories above in the same way: what is in them is root's alone.
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(images);
    made.map_err(|error| format!("{}: {error}", images.display()))?;
    remove_parts(images);
    for (name, archive) in named {
        let imported = if is_standard_input(archive) {
            import_stream(images, io::stdin().lock())
        } else {
            import(images, &name, archive)
        };
        imported.map_err(|why| format!("{}: {why}", archive.display()))?;
    }
    Ok(())
}

fn is_standard_input(archive: &Path) -> bool {
    archive.as_os_str() == "-"
}

/// An archive's name without `.tar`, `.tar.gz` and the like.
fn name_of(archive: &Path) -> Result<String, String> {
    let name = archive.file_name().and_then(|name| name.to_str()).ok_or("has no file name")?;
    let name = [".gz", ".zst"].iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(name);
    let name = [".tar", ".tgz", ".tzst"].iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(name);
    Ok(name.to_owned())
}

/// The first bytes of a file.
fn start_of(archive: &Path) -> Result<Vec<u8>, String> {
    let mut start = Vec::new();
    let file = File::open(archive).map_err(|error| error.to_string())?;
    file.take(MAGIC_BYTES).read_to_end(&mut start).map_err(|error| error.to_string())?;
    Ok(start)
}

/// The agent would refuse it later, in its log; gzip and zstd it unpacks.
fn refuse_compressed(start: &[u8]) -> Result<(), String> {
    for (magic, program) in
        [(&b"\xfd7zXZ\0"[..], "unxz"), (&b"BZh"[..], "bunzip2"), (&b"\x04\x22\x4d\x18"[..], "unlz4")]
    {
        if start.starts_with(magic) {
            return Err(format!("is compressed; unpack it with {program} first"));
        }
    }
    Ok(())
}

/// Copies an archive; it appears whole, or not at all. An earlier one of that name is replaced, as a newer version of it.
fn import(images: &Path, name: &str, archive: &Path) -> Result<(), String> {
    let (whole, part) = (images.join(format!("{name}.tar")), images.join(format!("{name}{PART}")));
    let copied = copy(archive, &part).map_err(|error| format!("{}: {error}", whole.display()));
    let copied = copied.and_then(|locked| put_in_place(images, (&part, locked), &whole));
    if copied.is_err() {
        // The disk of the agent is not left full. A second error tells nothing new.
        let _ = fs::remove_file(&part);
    }
    copied
}

/// The part is on the disk, and locked until it has its name; so is that when this returns.
fn put_in_place(images: &Path, (part, _locked): (&Path, File), whole: &Path) -> Result<(), String> {
    let placed = fs::rename(part, whole).and_then(|()| File::open(images)?.sync_all());
    placed.map_err(|error| format!("{}: {error}", whole.display()))
}

/// On the disk when this returns, and for root alone: images may have secrets.
fn copy(from: &Path, to: &Path) -> io::Result<File> {
    let mut from = File::open(from)?;
    if !from.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the archive is no regular file"));
    }
    let mut to = new_part(to)?;
    io::copy(&mut from, &mut to)?;
    to.sync_all()?;
    Ok(to)
}

/// An empty file, in place of what a copy before left. It is locked as long as it is open.
fn new_part(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let part = File::options().write(true).create_new(true).mode(0o600).open(path)?;
    flock(&part, FlockOperation::NonBlockingLockExclusive)?;
    Ok(part)
}

/// Removes what copies have left that ended in the middle: those that go on are locked. An error tells nothing new: the disk is
/// fuller than it might be.
fn remove_parts(images: &Path) {
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    for entry in fs::read_dir(images).into_iter().flatten().flatten().take(MANIFEST_DIR_ENTRIES_MAX) {
        let path = entry.path();
        let is_part = path.to_str().is_some_and(|path| path.ends_with(PART));
        let file = if is_part { open(&path, flags, Mode::empty()).ok() } else { None };
        if file.is_some_and(|file| flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()) {
            let _ = fs::remove_file(path);
        }
    }
}

/// The same with an archive that has no name. It takes the place of one from here with images of the same names.
fn import_stream(images: &Path, mut archive: impl Read) -> Result<(), String> {
    let part = images.join(format!("import-{}{PART}", std::process::id()));
    let written = write_part(&part, &mut archive).and_then(|(digest, locked)| {
        let (whole, replaced) = place_of(images, &key_of(&part, digest))?;
        put_in_place(images, (&part, locked), &whole)?;
        let failed = |path: &Path, error: io::Error| format!("{}: {error}", path.display());
        replaced.iter().try_for_each(|path| fs::remove_file(path).map_err(|error| failed(path, error)))
    });
    if written.is_err() {
        // It may not be there; the error that counts is the first one.
        let _ = fs::remove_file(&part);
    }
    written
}

/// What names an archive: a digest of its images' names, or its own, where these are not to be read.
fn key_of(archive: &Path, digest: String) -> String {
    let names = names_in(archive).filter(|names| !names.is_empty());
    let mut key = names.map_or(digest, |mut names| {
        names.sort_unstable();
        hex(&Sha256::digest(names.join("\n"))[..])
    });
    key.truncate(ARCHIVE_DIGITS);
    key
}

/// Where the archive with that key comes to lie, and what it replaces elsewhere. Of an image in several archives the last one by name
/// counts: this one is behind all others from here.
fn place_of(images: &Path, key: &str) -> Result<(PathBuf, Vec<PathBuf>), String> {
    let failed = |error: io::Error| format!("{}: {error}", images.display());
    let numbered = |path: PathBuf| {
        let name = path.file_name()?.to_str()?.strip_prefix(IMPORTED)?.strip_suffix(".tar")?;
        let (number, key) = name.split_once('-')?;
        Some((number.parse::<u64>().ok()?, key.to_owned(), path.clone()))
    };
    let entries = fs::read_dir(images).map_err(failed)?.flatten().take(MANIFEST_DIR_ENTRIES_MAX);
    let mut before: Vec<_> = entries.filter_map(|entry| numbered(entry.path())).collect();
    before.sort_unstable();
    if let Some((.., path)) = before.pop_if(|(_, of, _)| of == key) {
        return Ok((path, Vec::new()));
    }
    let number = before.last().map_or(0, |(number, ..)| number.saturating_add(1));
    let replaced = before.into_iter().filter(|(_, of, _)| of == key).map(|(.., path)| path);
    Ok((images.join(format!("{IMPORTED}{number:010}-{key}.tar")), replaced.collect()))
}

/// Writes the archive into the file; its digest in hexadecimal digits, and the file.
fn write_part(part: &Path, archive: &mut impl Read) -> Result<(String, File), String> {
    let failed = |error: io::Error| format!("{}: {error}", part.display());
    let mut file = new_part(part).map_err(failed)?;
    let (mut digest, mut buffer, mut length) = (Sha256::new(), vec![0; LAYER_FEED_BYTES], 0_u64);
    let (mut is_tar, mut zeros) = (true, 0_usize);
    loop {
        let read = match archive.read(&mut buffer) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.to_string()),
        };
        if read == 0 {
            break;
        }
        if length == 0 {
            refuse_compressed(&buffer[..read])?;
            is_tar = ![GZIP, ZSTD].iter().any(|magic| buffer[..read].starts_with(magic));
        }
        length += read as u64;
        let at_end = buffer[..read].iter().rev().take_while(|byte| **byte == 0).count();
        zeros = if at_end == read { zeros.saturating_add(at_end) } else { at_end };
        if length > IMPORT_BYTES_MAX {
            return Err(format!("has more than {IMPORT_BYTES_MAX} bytes; import a file"));
        }
        digest.update(&buffer[..read]);
        file.write_all(&buffer[..read]).map_err(failed)?;
    }
    if length == 0 {
        return Err("is empty; check the command that writes the archive".to_owned());
    }
    if is_tar && zeros < TAR_END_BYTES {
        return Err("breaks off in the middle; see what the command that writes the archive says".to_owned());
    }
    file.sync_all().map_err(failed)?;
    Ok((hex(&digest.finalize()[..]), file))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    struct Broken;

    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("the pipe broke"))
        }
    }

    #[test]
    fn an_archive_from_standard_input_appears_whole_and_once() {
        let images = std::env::temp_dir().join(format!("smolet-import-{}", std::process::id()));
        let _ = fs::remove_dir_all(&images);
        fs::create_dir(&images).unwrap();
        let names = || {
            let entries = fs::read_dir(&images).unwrap();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
        };
        let mut archive = vec![7; 3 * LAYER_FEED_BYTES + 1];
        assert!(import_stream(&images, &*archive).unwrap_err().starts_with("breaks off in the middle"));
        archive.extend([0; TAR_END_BYTES]);
        import_stream(&images, &*archive).unwrap();
        import_stream(&images, &*archive).unwrap();
        let [name] = &*names() else { panic!("{:?}", names()) };
        assert!(
            name.starts_with("imported-0000000000-")
                && Path::new(name).extension().is_some_and(|of| of == "tar"),
            "{name}"
        );
        assert_eq!(fs::read(images.join(name)).unwrap(), archive);
        // Another one lies behind it; the same again takes its own place, or the last one, of which there is one.
        let other = [&[8; 600], &[0; TAR_END_BYTES][..]].concat();
        import_stream(&images, &*other).unwrap();
        let sorted = || {
            let mut names = names();
            names.sort();
            names
        };
        let before = sorted();
        assert!(before[0] == *name && before[1].starts_with("imported-0000000001-"), "{before:?}");
        import_stream(&images, &*other).unwrap();
        assert_eq!(sorted(), before);
        import_stream(&images, &*archive).unwrap();
        let after = sorted();
        assert_eq!(after[0], before[1]);
        assert_eq!(after[1], name.replacen("-0000000000-", "-0000000002-", 1));
        fs::remove_file(images.join(&after[0])).unwrap();
        fs::rename(images.join(&after[1]), images.join(name)).unwrap();
        // What is not whole does not appear.
        assert_eq!(import_stream(&images, b"begun".chain(Broken)), Err("the pipe broke".to_owned()));
        assert_eq!(
            import_stream(&images, &b"BZh rest"[..]),
            Err("is compressed; unpack it with bunzip2 first".to_owned())
        );
        assert!(import_stream(&images, io::empty()).unwrap_err().starts_with("is empty"));
        assert_eq!(names().len(), 1);
        fs::remove_dir_all(&images).unwrap();
    }

    #[test]
    fn archives_are_copied_whole_or_not_at_all() {
        let root = std::env::temp_dir().join(format!("smolet-image-import-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let (images, other) = (root.join("images"), root.join("other"));
        fs::create_dir_all(&other).unwrap();
        let put = |path: PathBuf, bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            path
        };
        let names = || {
            let mut names: Vec<_> = fs::read_dir(&images)
                .map_or_else(|_| Vec::new(), |all| all.map(|e| e.unwrap().file_name()).collect());
            names.sort();
            names
        };
        let app = put(root.join("app.tar"), b"archive");
        let twin = put(other.join("app"), b"another one");
        let packed = put(root.join("packed.tar.bz2"), b"BZh rest");
        let gzip = put(root.join("gzip.tar.gz"), b"\x1f\x8b rest");
        for (archives, why) in [
            (vec![app.clone(), twin.clone()], "would replace it"),
            (vec![app.clone(), packed], "unpack it with bunzip2 first"),
            (vec![app.clone(), root.join("none.tar")], "No such file"),
        ] {
            let error = import_all(&images, &archives).unwrap_err();
            assert!(error.contains(why), "{error}");
            assert!(names().is_empty(), "{why}: nothing is copied");
        }
        // What a copy has left that was killed goes, and one that goes on stays.
        fs::create_dir_all(&images).unwrap();
        put(images.join("import-1.tar.part"), b"left");
        let goes_on = new_part(&images.join("import-2.tar.part")).unwrap();
        import_all(&images, std::slice::from_ref(&app)).unwrap();
        assert_eq!(names(), ["app.tar", "import-2.tar.part"]);
        drop(goes_on);
        import_all(&images, std::slice::from_ref(&app)).unwrap();
        assert_eq!(names(), ["app.tar"]);
        assert_eq!(fs::read(images.join("app.tar")).unwrap(), b"archive");
        assert_eq!(fs::metadata(images.join("app.tar")).unwrap().permissions().mode() & 0o777, 0o600);
        // The agent tells by its first bytes how it is compressed.
        import_all(&images, &[gzip]).unwrap();
        assert_eq!(names(), ["app.tar", "gzip.tar"]);
        fs::remove_file(images.join("gzip.tar")).unwrap();
        // The next version of it.
        import_all(&images, &[twin]).unwrap();
        assert_eq!(fs::read(images.join("app.tar")).unwrap(), b"another one");
        // It cannot be put into its place.
        fs::create_dir(images.join("second.tar")).unwrap();
        let second = put(root.join("second.tar"), b"archive");
        assert!(import_all(&images, &[second]).is_err());
        assert_eq!(names(), ["app.tar", "second.tar"], "no part of it is left");
        fs::remove_dir_all(&root).unwrap();
    }
}
