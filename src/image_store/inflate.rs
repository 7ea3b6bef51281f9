//! Image archives that are compressed with gzip or zstd, as k3s' are: inflated into a file without a name, because an archive is
//! read in another order than it was written in.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::io::Errno;

use super::decompress::{Decoder, GZIP, MAGIC_BYTES, ZSTD};
use crate::image::import::Inflated;
use crate::limits::{
    ARCHIVE_INFLATED_BYTES_MAX, ARCHIVE_ZSTD_WINDOW_BYTES_MAX, LAYER_DISK_FREE_MIN, LAYER_FEED_BYTES,
};

/// After so many bytes it is looked how much of the disk is free.
const MEASURED_BYTES: u64 = 4 << 20;

/// The archive in its plain form, in a file that is at `spool` for a moment only and gone with its last user; `Plain` when it is not
/// compressed, or in a way that is not supported. With `has_window` it may have a window of `limits::ARCHIVE_ZSTD_WINDOW_BYTES_MAX` in
/// memory. Blocks.
///
/// # Errors
/// The error, as a text that follows the archive's name.
pub fn inflate(archive: &File, spool: &Path, has_window: bool) -> Result<Inflated, String> {
    let unread = |error: io::Error| format!("cannot be read: {error}");
    let mut input = vec![0; LAYER_FEED_BYTES];
    let mut held = read(archive, &mut input, 0).map_err(unread)?;
    let start = &input[..held.min(MAGIC_BYTES)];
    if ![GZIP, ZSTD].iter().any(|magic| start.starts_with(magic)) {
        return Ok(Inflated::Plain);
    }
    if start.starts_with(ZSTD) && !has_window {
        return Ok(Inflated::NeedsWindow);
    }
    let wrong = |why: &dyn std::fmt::Display| format!("cannot be unpacked: {why}");
    let unwritten = |error: io::Error| format!("cannot be unpacked to {}: {error}", spool.display());
    let mut decoder =
        Decoder::with_window(start, ARCHIVE_ZSTD_WINDOW_BYTES_MAX).map_err(|refused| wrong(&refused))?;
    let mut out = unnamed(spool).map_err(unwritten)?;
    has_space(&out).map_err(unwritten)?;
    let (mut at, mut length, mut measured) = (held as u64, 0, 0);
    loop {
        let mut rest = &input[..held];
        loop {
            let step = decoder.step(rest).map_err(|refused| wrong(&refused))?;
            rest = &rest[step.consumed..];
            length += step.out.len() as u64;
            if length > ARCHIVE_INFLATED_BYTES_MAX {
                return Err(wrong(&format!("it has more than {ARCHIVE_INFLATED_BYTES_MAX} bytes")));
            }
            out.write_all(step.out).map_err(unwritten)?;
            if length - measured >= MEASURED_BYTES {
                measured = length;
                has_space(&out).map_err(unwritten)?;
            }
            if rest.is_empty() && step.out.is_empty() {
                break;
            }
        }
        held = read(archive, &mut input, at).map_err(unread)?;
        if held == 0 {
            break;
        }
        at += held as u64;
    }
    decoder.finish().map_err(|refused| wrong(&refused))?;
    Ok(Inflated::File(out))
}

/// Other writers of the disk have their share of it yet.
fn has_space(out: &File) -> io::Result<()> {
    let disk = rustix::fs::fstatvfs(out)?;
    if disk.f_bavail.saturating_mul(disk.f_frsize) < LAYER_DISK_FREE_MIN {
        // In the words by which an import is tried again.
        return Err(Errno::NOSPC.into());
    }
    Ok(())
}

fn read(archive: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    loop {
        match archive.read_at(buffer, at) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}

/// An empty file for root alone, without a name: whatever ends the process, nothing of it is left.
fn unnamed(path: &Path) -> io::Result<File> {
    let removed = || match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    };
    removed()?;
    let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(path)?;
    removed()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// A real program's output for that input; `None` where the machine has not got it.
    fn through(program: &str, arguments: &[&str], input: &Path) -> Option<Vec<u8>> {
        let output = Command::new(program).args(arguments).stdin(File::open(input).unwrap()).output().ok()?;
        assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
        Some(output.stdout)
    }

    #[test]
    fn archives_of_gzip_and_of_zstd_with_k3s_window_come_out_whole() {
        let root = std::env::temp_dir().join(format!("smolet-inflate-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        let (plain, packed, spool) = (root.join("plain"), root.join("packed"), root.join("spool"));
        // More than zstd's usual window, with repeats far apart.
        let piece: Vec<u8> =
            (0..3_000_000_u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
        let text = [piece.as_slice(), b"a seam", &piece].concat();
        fs::write(&plain, &text).unwrap();
        let unpacked = |path: &Path| inflate(&File::open(path).unwrap(), &spool, true);
        let unpacked_without = |path: &Path| inflate(&File::open(path).unwrap(), &spool, false).unwrap();
        assert!(matches!(unpacked_without(&plain), Inflated::Plain));
        let gzip = through("gzip", &["-c"], &plain).expect("gzip is essential");
        let mut forms = vec![gzip];
        forms.extend(through("zstd", &["-c", "-3", "--long=25"], &plain));
        assert_eq!(forms.len(), 2, "zstd is there");
        for bytes in forms {
            fs::write(&packed, &bytes).unwrap();
            let needs_window = matches!(unpacked_without(&packed), Inflated::NeedsWindow);
            assert_eq!(needs_window, bytes.starts_with(ZSTD));
            // A file that another process was killed over.
            fs::write(&spool, "left").unwrap();
            let Inflated::File(out) = unpacked(&packed).unwrap() else { panic!("it is compressed") };
            assert!(!spool.exists(), "it has no name");
            assert_eq!(out.metadata().unwrap().len(), text.len() as u64);
            let mut found = vec![0; text.len()];
            out.read_exact_at(&mut found, 0).unwrap();
            assert!(found == text);
            fs::write(&packed, &bytes[..bytes.len() - 20]).unwrap();
            let why = unpacked(&packed).unwrap_err();
            assert!(why.starts_with("cannot be unpacked: "), "{why}");
        }
        // A window of 128 MiB would need as much memory.
        let large = through("zstd", &["-c", "-1", "--long=27"], &plain).unwrap();
        fs::write(&packed, large).unwrap();
        assert!(unpacked(&packed).unwrap_err().contains("a window of more than 32 MiB"));
        fs::remove_dir_all(root).unwrap();
    }
}
