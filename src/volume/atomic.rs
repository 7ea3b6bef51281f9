//! Writes the files of a volume so that a reader sees either all old or all new files (kubelet `AtomicWriter`). Blocking
//! I/O.
//!
//! ```text
//! |     VOLUME/..0            directory with the files: ..0, the next time ..1, then ..0 again
//! |     VOLUME/..data         → ..0; replaced by rename, which switches all files at once
//! |     VOLUME/NAME           → ..data/NAME, for the first component of each file's path
//! ```
//!
//! Leftovers of an interrupted write are removed by the next one. Only names beginning with `..` and the symlinks are ever
//! removed; the kubelet names the directories by the time of day, which smolet's machines may not know.
use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, chown, symlink,
};
use std::path::Path;

use rustix::fs::FileType;

use super::files::File;
use crate::filesystem::open_regular;
use crate::model::SortedSet;
use crate::tree::{self, Walk};

const DATA: &str = "..data";
const DATA_NEW: &str = "..data_tmp";
const PLACES: [&str; 2] = ["..0", "..1"];

/// Makes the existing directory `dir` contain exactly `files`. Returns whether anything was written: nothing is when the
/// files are there already. With `group`, the files belong to that group, which may read them (`SetVolumeOwnership`); a file
/// with a user belongs to that user.
pub(super) fn write(dir: &Path, files: &[File], group: Option<u32>) -> io::Result<bool> {
    let now = fs::read_link(dir.join(DATA)).ok();
    let now = now.as_deref().and_then(Path::to_str);
    let tops: SortedSet<&str> = files.iter().filter_map(|file| file.path.split('/').next()).collect();
    if let Some(now) = now
        && holds(&dir.join(now), files, group)?
        && links(dir)? == tops.iter().map(|top| (*top).to_owned()).collect()
    {
        return Ok(false);
    }
    let place = if now == Some(PLACES[0]) { PLACES[1] } else { PLACES[0] };
    remove(&dir.join(place))?;
    write_place(&dir.join(place), files, group)?;
    remove(&dir.join(DATA_NEW))?;
    symlink(place, dir.join(DATA_NEW))?;
    fs::rename(dir.join(DATA_NEW), dir.join(DATA))?;
    for top in &tops {
        let (link, target) = (dir.join(top), Path::new(DATA).join(top));
        if fs::read_link(&link).ok().as_deref() != Some(&target) {
            remove(&link)?;
            symlink(&target, &link)?;
        }
    }
    for gone in links(dir)?.iter().filter(|name| !tops.contains(name.as_str())) {
        fs::remove_file(dir.join(gone))?;
    }
    // Leftovers of a kubelet too, from which the pod was taken over.
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        if name.as_encoded_bytes().starts_with(b"..") && name != DATA && name != place {
            remove(&dir.join(name))?;
        }
    }
    Ok(true)
}

/// True when the volume has files of an earlier write, or was written as empty.
pub(super) fn is_written(dir: &Path) -> bool {
    dir.join(DATA).metadata().is_ok()
}

fn write_place(place: &Path, files: &[File], group: Option<u32>) -> io::Result<()> {
    make_dir(place, group)?;
    for file in files {
        let path = place.join(&file.path);
        let mut dir = place.to_owned();
        let parts: Vec<&str> = file.path.split('/').collect();
        for part in &parts[..parts.len() - 1] {
            dir.push(part);
            if !dir.is_dir() {
                make_dir(&dir, group)?;
            }
        }
        // Not readable by others before its mode is set.
        let mut open = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        io::Write::write_all(&mut open, file.content.bytes())?;
        if group.is_some() || file.user.is_some() {
            chown(&path, file.user, group)?;
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(mode_of(file, group)))?;
    }
    Ok(())
}

/// `rwMask` is for writable volumes; these are read only.
fn mode_of(file: &File, group: Option<u32>) -> u32 {
    if group.is_some() { file.mode | 0o440 } else { file.mode }
}

fn make_dir(path: &Path, group: Option<u32>) -> io::Result<()> {
    fs::DirBuilder::new().mode(0o700).create(path)?;
    if group.is_some() {
        chown(path, None, group)?;
    }
    let mode = if group.is_some() { 0o2755 } else { 0o755 };
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// True when these files exist with this content, mode and user. Other files are found by the symlinks.
fn holds(place: &Path, files: &[File], group: Option<u32>) -> io::Result<bool> {
    for file in files {
        let path = place.join(&file.path);
        let same = match path.symlink_metadata() {
            Ok(there) => {
                there.is_file()
                    && there.permissions().mode() & 0o7777 == mode_of(file, group)
                    && file.user.is_none_or(|user| there.uid() == user)
                    && there.len() == file.content.bytes().len() as u64
                    && reads_as(&path, file.content.bytes())?
            }
            // A file exists where this one needs a directory, or nothing does.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                false
            }
            Err(error) => return Err(error),
        };
        if !same {
            return Ok(false);
        }
    }
    Ok(count(place, files.len())? == files.len())
}

/// Compared in pieces: many volumes may be checked at once, with a megabyte in each.
fn reads_as(path: &Path, mut wanted: &[u8]) -> io::Result<bool> {
    let (mut file, mut piece) = (open_regular(path)?, [0; 8192]);
    loop {
        let count = io::Read::read(&mut file, &mut piece)?;
        match wanted.split_at_checked(count) {
            _ if count == 0 => return Ok(wanted.is_empty()),
            Some((first, rest)) if first == &piece[..count] => wanted = rest,
            _ => return Ok(false),
        }
    }
}

/// Number of files below a directory of ours; `most` + 1 when there are more than `most`.
fn count(dir: &Path, most: usize) -> io::Result<usize> {
    let mut all = 0;
    Walk::new(dir, false)?.go_on(|there| {
        all += usize::from(!FileType::from_raw_mode(there.st_mode).is_dir());
        if all > most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    Ok(all)
}

/// The names that containers see.
fn links(dir: &Path) -> io::Result<SortedSet<String>> {
    let mut names = SortedSet::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with("..") && entry.file_type()?.is_symlink() {
            names.insert(name);
        }
    }
    Ok(names)
}

/// Removes a symlink, a file or a whole directory; symlinks are not followed.
fn remove(path: &Path) -> io::Result<()> {
    match tree::remove(path, || true) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::files::Content;

    fn file(path: &str, mode: u32, text: &str) -> File {
        File { path: path.into(), mode, user: None, content: Content::Text(text.into()) }
    }

    /// What containers see: names with the content read through them, and the mode.
    fn seen(dir: &Path) -> Vec<String> {
        fn walk(dir: &Path, below: &str, found: &mut Vec<String>) {
            for entry in fs::read_dir(dir).unwrap().flatten() {
                let name = entry.file_name().into_string().unwrap();
                if below.is_empty() && name.starts_with("..") {
                    continue;
                }
                let path = entry.path();
                let (shown, meta) = (format!("{below}{name}"), path.metadata().unwrap());
                if meta.is_dir() {
                    walk(&path, &format!("{shown}/"), found);
                } else {
                    let mode = meta.permissions().mode() & 0o777;
                    found.push(format!("{shown} {mode:o} {}", fs::read_to_string(&path).unwrap()));
                }
            }
        }
        let mut found = Vec::new();
        walk(dir, "", &mut found);
        found.sort();
        found
    }

    struct Scratch(std::path::PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("smolet-atomic-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn files_are_added_changed_and_removed_at_once() {
        let scratch = Scratch::new("change");
        let dir = &scratch.0;
        let first = [file("a", 0o644, "1"), file("sub/b", 0o400, "2"), file("sub/deep/c", 0o755, "3")];
        assert!(write(dir, &first, None).unwrap());
        assert_eq!(seen(dir), ["a 644 1", "sub/b 400 2", "sub/deep/c 755 3"]);
        assert_eq!(fs::read_link(dir.join("sub")).unwrap(), Path::new("..data/sub"));
        assert!(!write(dir, &first, None).unwrap(), "an unchanged volume is not written");

        // An open directory, as readers have it, shows the old files until it is opened again.
        let second = [file("a", 0o644, "9"), file("d", 0o600, "4")];
        assert!(write(dir, &second, None).unwrap());
        assert_eq!(seen(dir), ["a 644 9", "d 600 4"]);
        assert!(!dir.join("..0").exists() && dir.join("..1").is_dir(), "the old place is gone");
        for (why, files) in [
            ("a mode", vec![file("a", 0o640, "9"), file("d", 0o600, "4")]),
            ("a file less", vec![file("a", 0o640, "9")]),
            ("none", vec![]),
        ] {
            assert!(write(dir, &files, None).unwrap(), "{why}");
            assert_eq!(seen(dir).len(), files.len(), "{why}");
            assert!(!write(dir, &files, None).unwrap(), "{why}");
        }
    }

    /// The next write repairs whatever an interrupted one left.
    #[test]
    fn leftovers_of_an_interrupted_write_are_repaired() {
        let files = [file("a", 0o644, "1"), file("sub/b", 0o644, "2")];
        type Spoil = fn(&Path);
        let spoil: [(&str, Spoil); 7] = [
            ("half a place", |dir| fs::write(dir.join("..1"), "").unwrap()),
            ("a kubelet's place", |dir| fs::create_dir(dir.join("..2026_01_01")).unwrap()),
            ("a link in the making", |dir| symlink("..1", dir.join("..data_tmp")).unwrap()),
            ("a file cut short", |dir| fs::write(dir.join("..0/a"), "").unwrap()),
            ("a file gone", |dir| fs::remove_file(dir.join("..0/sub/b")).unwrap()),
            ("a link missing", |dir| fs::remove_file(dir.join("sub")).unwrap()),
            ("a link too many", |dir| symlink("..data/gone", dir.join("gone")).unwrap()),
        ];
        for (what, spoil) in spoil {
            let scratch = Scratch::new("mend");
            assert!(write(&scratch.0, &files, None).unwrap());
            spoil(&scratch.0);
            write(&scratch.0, &files, None).unwrap();
            assert_eq!(seen(&scratch.0), ["a 644 1", "sub/b 644 2"], "{what}");
            write(&scratch.0, &files[..1], None).unwrap();
            write(&scratch.0, &files, None).unwrap();
            let hidden = fs::read_dir(&scratch.0).unwrap().flatten();
            let hidden = hidden.filter(|entry| entry.file_name().to_string_lossy().starts_with("..")).count();
            assert_eq!(hidden, 2, "{what}: ..data and where it points to");
        }
    }

    #[test]
    fn a_group_may_read() {
        let scratch = Scratch::new("group");
        let group = rustix::process::getgid().as_raw();
        write(&scratch.0, &[file("a", 0o400, "1")], Some(group)).unwrap();
        assert_eq!(seen(&scratch.0), ["a 440 1"]);
        assert!(!write(&scratch.0, &[file("a", 0o400, "1")], Some(group)).unwrap());
        let place = scratch.0.join("..0").metadata().unwrap();
        assert_eq!(place.permissions().mode() & 0o7777, 0o2755);
    }

    #[test]
    fn a_file_belongs_to_its_user() {
        let scratch = Scratch::new("user");
        let own = rustix::process::getuid().as_raw();
        // Only root may change a file's owner.
        let user = if own == 0 { 4711 } else { own };
        let of = |user| File { user, ..file("token", 0o600, "1") };
        write(&scratch.0, &[of(None)], None).unwrap();
        assert_eq!(
            write(&scratch.0, &[of(Some(user))], None).unwrap(),
            user != own,
            "another's is written anew"
        );
        assert!(!write(&scratch.0, &[of(Some(user))], None).unwrap());
        let there = scratch.0.join("token").metadata().unwrap();
        assert_eq!((there.uid(), there.mode() & 0o7777), (user, 0o600));
    }
}
