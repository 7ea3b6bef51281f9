//! `/logs/`: the files below `/var/log`, as the kubelet serves them (`enableSystemLogHandler`: `http.FileServer`): a directory as
//! a list of links, a file in chunks, each read on a thread once the client has read the one before.
//!
//! Symbolic links are followed, as in the kubelet, because its own in `/var/log/containers` lead to the pods' logs. Unlike in the
//! kubelet none leads out of the directory: a pod with a hostPath volume in it could read any file of the node by one (like
//! CVE-2017-1002101). So links are resolved here, component by component, and a target outside the directory is not even opened:
//! it may hang, and opening a device may have side effects. `openat2` would not do: with `RESOLVE_BENEATH` it refuses absolute
//! links, which the kubelet's own are. The resolved object is read and listed by its descriptor. Only regular files are read,
//! because reading a pipe or a device may never end.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use http_body_util::{Either, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper::header::{CONTENT_TYPE, HeaderValue, LOCATION};
use hyper::{Response, StatusCode};
use rustix::fs::{FileType, Mode, OFlags, fstat, open, openat, readlinkat};
use rustix::io::Errno;
use smol::stream::StreamExt as _;

use super::request::{Refusal, TEXT};
use crate::blocking::Blocking;
use crate::filesystem::reopened;
use crate::limits::{LINKS_FOLLOWED_MAX, NODE_LOG_BYTES, SYSTEM_LOG_ENTRIES_MAX, SYSTEM_LOG_LEVELS_MAX};
use crate::server::{self, Body};

const HTML: &str = "text/html; charset=utf-8";

/// The object at a path.
enum Entry {
    /// A directory: its entries as a page.
    Listed(String),
    /// A directory requested without a trailing slash: its name with one.
    Directory(String),
    /// A file: its first bytes, and the rest.
    File(Vec<u8>, File),
}

/// The object at `path`, which is undecoded and without `/logs/`, below `root`.
///
/// # Errors
/// It does not exist, or cannot be read.
pub(super) async fn show(
    blocking: &Rc<Blocking>,
    root: PathBuf,
    path: Vec<String>,
    slash: bool,
) -> Result<Response<Body>, Refusal> {
    let parts = names(&path).map_err(|error| refused(&error))?;
    let name = path.last().filter(|_| !slash).map(|name| format!("{}/", escaped(name)));
    let location = blocking.location_of(&root.join(&parts), None).await;
    let found = blocking.run_at(&location, move || read(&find(&root, &parts)?, name)).await;
    let found = found.map_err(|stuck| (500, stuck.to_string()))?.map_err(|error| refused(&error))?;
    let (first, file) = match found {
        Entry::Listed(page) => return Ok(server::text(StatusCode::OK, HTML, page)),
        Entry::Directory(name) => {
            let mut moved = server::text(StatusCode::MOVED_PERMANENTLY, TEXT, String::new());
            if let Ok(name) = HeaderValue::from_str(&name) {
                moved.headers_mut().insert(LOCATION, name);
            }
            return Ok(moved);
        }
        Entry::File(first, file) => (first, file),
    };
    let kind = if first.contains(&0) { "application/octet-stream" } else { TEXT };
    let blocking = blocking.clone();
    let pieces = smol::stream::unfold(Some((blocking, location, first, file)), |state| async move {
        let (blocking, location, piece, mut file) = state?;
        if piece.is_empty() {
            return None;
        }
        let read = blocking.run_at(&location, move || next_piece(&mut file).map(|next| (next, file))).await;
        let rest = match read.map_err(io::Error::other).and_then(|read| read) {
            Ok((next, file)) => Some((blocking, location, next, file)),
            // The response is truncated, which the client detects.
            Err(error) => return Some((Err(error), None)),
        };
        Some((Ok(Frame::data(Bytes::from(piece))), rest))
    });
    let mut response = Response::new(Either::Right(StreamBody::new(pieces.boxed_local())));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    Ok(response)
}

fn refused(error: &io::Error) -> Refusal {
    match error.kind() {
        io::ErrorKind::PermissionDenied => (403, "403 Forbidden\n".to_owned()),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => (404, "404 page not found\n".to_owned()),
        _ => (500, "500 Internal Server Error\n".to_owned()),
    }
}

fn not_found() -> io::Error {
    io::ErrorKind::NotFound.into()
}

/// PURE: the path below the directory.
fn names(parts: &[String]) -> io::Result<PathBuf> {
    // Go's file server cleans the path first; such components never name a log.
    let is_name = |part: &String| !matches!(part.as_str(), "" | "." | "..") && !part.contains(['/', '\0']);
    if parts.iter().all(is_name) { Ok(parts.iter().collect()) } else { Err(not_found()) }
}

/// A descriptor that only identifies the object: a link is not followed, a device not opened.
const HANDLE: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Resolves `below` in the directory. Every component is opened relative to the one above, so that a concurrent rename does not
/// lead out, and `..` in a link only returns the way it came. I/O, blocking.
fn find(root: &Path, below: &Path) -> io::Result<OwnedFd> {
    let real = root.canonicalize()?;
    let top = open(&real, HANDLE, Mode::empty())?;
    let parts = |path: &Path| -> Vec<OsString> {
        let parts = path.components().rev().filter(|part| *part != Component::CurDir);
        parts.map(|part| part.as_os_str().to_owned()).collect()
    };
    // The levels passed so far, and the remaining components, the next one last.
    let (mut levels, mut left, mut links) = (Vec::<OwnedFd>::new(), parts(below), 0);
    while let Some(name) = left.pop() {
        if name == ".." {
            levels.pop().ok_or_else(not_found)?;
            continue;
        }
        let there = openat(levels.last().unwrap_or(&top), &*name, HANDLE, Mode::empty())?;
        if !FileType::from_raw_mode(fstat(&there)?.st_mode).is_symlink() {
            if levels.len() == SYSTEM_LOG_LEVELS_MAX {
                return Err(not_found());
            }
            levels.push(there);
            continue;
        }
        links += 1;
        if links > LINKS_FOLLOWED_MAX {
            return Err(Errno::LOOP.into());
        }
        let to = PathBuf::from(OsString::from_vec(readlinkat(&there, "", Vec::new())?.into_bytes()));
        if to.is_absolute() {
            // The target below the directory, by the directory's name or by its resolved path.
            let inside =
                to.strip_prefix(root).or_else(|_| to.strip_prefix(&real)).map_err(|_| not_found())?;
            levels.clear();
            left.extend(parts(inside));
        } else {
            left.extend(parts(&to));
        }
    }
    Ok(levels.pop().unwrap_or(top))
}

/// The first chunk of the object; of a directory the list, unless it has another `name`. I/O, blocking.
fn read(found: &OwnedFd, name: Option<String>) -> io::Result<Entry> {
    let kind = FileType::from_raw_mode(fstat(found)?.st_mode);
    if kind.is_dir() {
        return match name {
            Some(name) => Ok(Entry::Directory(name)),
            // Refers to the handle's object, even if its path has been replaced.
            None => list(Path::new(&format!("/proc/self/fd/{}", found.as_raw_fd()))).map(Entry::Listed),
        };
    }
    if !kind.is_file() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let mut file = reopened(found, OFlags::RDONLY)?;
    next_piece(&mut file).map(|first| Entry::File(first, file))
}

fn next_piece(file: &mut File) -> io::Result<Vec<u8>> {
    let mut piece = Vec::with_capacity(NODE_LOG_BYTES);
    file.take(NODE_LOG_BYTES as u64).read_to_end(&mut piece)?;
    Ok(piece)
}

/// As Go's `dirList`, sorted by name; entries over `SYSTEM_LOG_ENTRIES_MAX` are left out.
fn list(directory: &Path) -> io::Result<String> {
    let entries = fs::read_dir(directory)?.flatten().take(SYSTEM_LOG_ENTRIES_MAX);
    let mut names: Vec<String> = entries
        .map(|entry| {
            let slash = if entry.file_type().is_ok_and(|kind| kind.is_dir()) { "/" } else { "" };
            format!("{}{slash}", entry.file_name().to_string_lossy())
        })
        .collect();
    names.sort_unstable();
    let mut page =
        "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n".to_owned();
    for name in &names {
        let _ = writeln!(page, "<a href=\"{}\">{}</a>", escaped(name), shown(name));
    }
    page.push_str("</pre>\n");
    Ok(page)
}

/// A name, escaped for a URL.
fn escaped(name: &str) -> String {
    let mut text = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~/".contains(&byte) {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

/// A name, escaped for HTML.
fn shown(name: &str) -> String {
    let mut text = String::new();
    for letter in name.chars() {
        match letter {
            '&' => text.push_str("&amp;"),
            '<' => text.push_str("&lt;"),
            '>' => text.push_str("&gt;"),
            '"' => text.push_str("&#34;"),
            '\'' => text.push_str("&#39;"),
            other => text.push(other),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::clock::VirtualClock;
    use crate::limits::OUTSIDE_PATIENCE;
    use crate::model::Wall;
    use crate::mounts::SilentServer;

    fn seen(root: &Path, path: &str) -> Result<String, io::ErrorKind> {
        let slash = path.is_empty() || path.ends_with('/');
        let parts: Vec<String> =
            path.trim_end_matches('/').split('/').filter(|p| !p.is_empty()).map(str::to_owned).collect();
        let name = parts.last().filter(|_| !slash).map(|name| format!("{name}/"));
        match names(&parts).and_then(|parts| find(root, &parts)).and_then(|found| read(&found, name)) {
            Ok(Entry::Listed(page)) => Ok(page),
            Ok(Entry::Directory(name)) => Ok(format!("-> {name}")),
            Ok(Entry::File(first, _)) => Ok(String::from_utf8(first).unwrap()),
            Err(error) => Err(error.kind()),
        }
    }

    #[test]
    fn only_what_lies_below_the_directory_is_shown() {
        let place = std::env::temp_dir().join(format!("smolet-logs-{}", std::process::id()));
        let root = place.join("log");
        fs::create_dir_all(root.join("pods/a b")).unwrap();
        fs::write(root.join("syslog"), "one\n").unwrap();
        fs::write(root.join("pods/a b/0.log"), "two\n").unwrap();
        fs::write(place.join("secret"), "three\n").unwrap();
        symlink(root.join("pods/a b/0.log"), root.join("inside.log")).unwrap();
        symlink(place.join("secret"), root.join("outside.log")).unwrap();
        symlink("/", root.join("all")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, root.join("pipe"), rustix::fs::Mode::RUSR).unwrap();
        let list = seen(&root, "").unwrap();
        assert!(list.contains("<a href=\"pods/\">pods/</a>\n<a href=\"syslog\">syslog</a>\n"), "{list}");
        assert!(seen(&root, "pods/").unwrap().contains("<a href=\"a%20b/\">a b/</a>"));
        assert_eq!(seen(&root, "pods"), Ok("-> pods/".to_owned()));
        assert_eq!(seen(&root, "syslog"), Ok("one\n".to_owned()));
        assert_eq!(seen(&root, "pods/a b/0.log"), Ok("two\n".to_owned()));
        assert_eq!(seen(&root, "inside.log"), Ok("two\n".to_owned()));
        for path in ["outside.log", "all/", "all/etc/passwd", "../secret", "pods/../syslog", "nothing"] {
            assert_eq!(seen(&root, path), Err(io::ErrorKind::NotFound), "{path}");
        }
        assert_eq!(seen(&root, "pipe"), Err(io::ErrorKind::PermissionDenied));
        fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn links_lead_where_they_lead_in_the_directory_and_nowhere_else() {
        let place = std::env::temp_dir().join(format!("smolet-logs-links-{}", std::process::id()));
        let root = place.join("log");
        fs::create_dir_all(root.join("pods/web")).unwrap();
        fs::create_dir_all(root.join("containers")).unwrap();
        fs::write(root.join("pods/web/0.log"), "one\n").unwrap();
        // The directory under another name, which the links in it use.
        let named = place.join("named");
        symlink("log", &named).unwrap();
        symlink(named.join("pods/web/0.log"), root.join("containers/web.log")).unwrap();
        symlink("../pods/./web", root.join("containers/web")).unwrap();
        symlink("containers/web.log", root.join("again.log")).unwrap();
        symlink(root.join("pods/../containers"), root.join("up")).unwrap();
        for path in ["containers/web.log", "containers/web/0.log", "again.log", "up/web.log"] {
            assert_eq!(seen(&named, path), Ok("one\n".to_owned()), "{path}");
        }
        assert!(seen(&named, "containers/web/").unwrap().contains("0.log"));
        assert_eq!(seen(&named, "containers/web"), Ok("-> web/".to_owned()));

        // An object outside makes no difference: it is not opened.
        symlink("../../log/pods/web/0.log", root.join("containers/back.log")).unwrap();
        symlink(root.join("../log/pods/web/0.log"), root.join("round.log")).unwrap();
        for (name, to) in
            [("device", "/dev/null"), ("nothing", "/no/such"), ("magic", "/proc/self/fd/0"), ("above", "..")]
        {
            symlink(to, root.join(name)).unwrap();
        }
        for path in
            ["containers/back.log", "round.log", "device", "nothing", "magic", "above/", "pods/web/0.log/x"]
        {
            let error = seen(&named, path).unwrap_err();
            assert!(
                matches!(error, io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
                "{path}: {error}"
            );
        }
        symlink("ring", root.join("ring")).unwrap();
        assert_eq!(refused(&find(&named, Path::new("ring")).unwrap_err()).0, 500);
        let deep: PathBuf = (0..=SYSTEM_LOG_LEVELS_MAX).map(|_| "d").collect();
        fs::create_dir_all(root.join(&deep)).unwrap();
        assert_eq!(find(&root, &deep).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(find(&root, deep.parent().unwrap()).is_ok());

        // Replaced after it was resolved: the resolved object is listed and read.
        let (directory, file) =
            (find(&root, Path::new("pods/web")).unwrap(), find(&root, Path::new("pods/web/0.log")).unwrap());
        fs::rename(root.join("pods"), root.join("away")).unwrap();
        symlink("/etc", root.join("pods")).unwrap();
        assert!(matches!(read(&directory, None), Ok(Entry::Listed(page)) if page.contains("\"0.log\"")));
        assert!(matches!(read(&file, None), Ok(Entry::File(first, _)) if first == b"one\n"));
        fs::remove_dir_all(place).unwrap();
    }

    /// A link to it is not followed; when it is mounted in the directory itself, it takes none of the agent's own turns.
    #[test]
    fn a_file_system_that_hangs_holds_up_nobody() {
        let place = std::env::temp_dir().join(format!("smolet-logs-hangs-{}", std::process::id()));
        let root = place.join("log");
        fs::create_dir_all(&root).unwrap();
        let (outside, inside) = (place.join("away"), root.join("away"));
        for at in [&outside, &inside] {
            fs::create_dir_all(at).unwrap();
        }
        let aways = [&outside, &inside].map(|at| SilentServer::mount(at));
        symlink(&outside, root.join("link")).unwrap();
        symlink(outside.join("file"), root.join("file")).unwrap();
        for path in ["link/", "link", "link/file", "file"] {
            assert_eq!(seen(&root, path), Err(io::ErrorKind::NotFound), "{path}");
        }
        let clock = VirtualClock::new(Wall(0));
        let blocking = Rc::new(Blocking::on_threads(Rc::new(clock.clone()), &place.join("own")));
        let ask = |path: &str| {
            let path = path.split('/').map(str::to_owned).collect();
            show(&blocking, root.clone(), path, false)
        };
        smol::block_on(async {
            let late = async {
                while blocking.held().0 == 0 {
                    smol::future::yield_now().await;
                }
                clock.advance(OUTSIDE_PATIENCE);
                std::future::pending().await
            };
            let said = smol::future::or(ask("away/file"), late).await;
            let (status, why) = said.map(drop).unwrap_err();
            assert!(status == 500 && why.contains("does not answer within 10 s"), "{status} {why}");
            assert_eq!(ask("link").await.map(drop).unwrap_err().0, 404);
        });
        drop(aways);
        fs::remove_dir_all(place).unwrap();
    }
}
