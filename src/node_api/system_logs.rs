//! `/logs/`: the files below `/var/log`, as the kubelet shows them (`enableSystemLogHandler`: `http.FileServer`): a directory as a
//! list of links, a file piece by piece, read on a thread when the client has taken the piece before.
//!
//! Symbolic links are followed, as there, for the kubelet's own in `/var/log/containers` lead to the pods' logs. Other than there
//! none leads out of the directory: a pod with a hostPath volume in it would read any file of the node by one (CVE-2017-1002101's
//! kin). Only regular files are read, for a pipe or a device may never end.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use http_body_util::{Either, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper::header::{CONTENT_TYPE, HeaderValue, LOCATION};
use hyper::{Response, StatusCode};
use smol::stream::StreamExt as _;

use super::request::{Refusal, TEXT};
use crate::blocking::Blocking;
use crate::limits::{NODE_LOG_BYTES, SYSTEM_LOG_ENTRIES_MAX};
use crate::server::{self, Body};

const HTML: &str = "text/html; charset=utf-8";

/// What stands at a path.
enum Found {
    /// A directory: its entries as a page.
    Listed(String),
    /// A directory that was asked for without a slash at the end: its own name with one.
    Directory(String),
    /// A file: its first bytes, and the rest.
    File(Vec<u8>, File),
}

/// What is at `path`, which has come undecoded from behind `/logs/`, below `root`.
///
/// # Errors
/// It is not there, or cannot be read.
pub(super) async fn show(
    blocking: &Rc<Blocking>,
    root: PathBuf,
    path: Vec<String>,
    slash: bool,
) -> Result<Response<Body>, Refusal> {
    let found = blocking.run(move || look(&root, &path, slash)).await;
    let found = found.map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => (403, "403 Forbidden\n".to_owned()),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => (404, "404 page not found\n".to_owned()),
        _ => (500, "500 Internal Server Error\n".to_owned()),
    })?;
    let (first, file) = match found {
        Found::Listed(page) => return Ok(server::text(StatusCode::OK, HTML, page)),
        Found::Directory(name) => {
            let mut moved = server::text(StatusCode::MOVED_PERMANENTLY, TEXT, String::new());
            if let Ok(name) = HeaderValue::from_str(&name) {
                moved.headers_mut().insert(LOCATION, name);
            }
            return Ok(moved);
        }
        Found::File(first, file) => (first, file),
    };
    let kind = if first.contains(&0) { "application/octet-stream" } else { TEXT };
    let blocking = blocking.clone();
    let pieces = smol::stream::unfold(Some((blocking, first, file)), |state| async move {
        let (blocking, piece, mut file) = state?;
        if piece.is_empty() {
            return None;
        }
        let read = blocking.run(move || next_piece(&mut file).map(|next| (next, file))).await;
        let rest = match read {
            Ok((next, file)) => Some((blocking, next, file)),
            // Cut off, which the client sees.
            Err(error) => return Some((Err(error), None)),
        };
        Some((Ok(Frame::data(Bytes::from(piece))), rest))
    });
    let mut response = Response::new(Either::Right(StreamBody::new(pieces.boxed_local())));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    Ok(response)
}

/// I/O, blocking.
fn look(root: &Path, parts: &[String], slash: bool) -> io::Result<Found> {
    let not_found = || io::Error::from(io::ErrorKind::NotFound);
    let root = root.canonicalize()?;
    let mut path = root.clone();
    for part in parts {
        // Go's file server cleans the path first; whoever asks for these means no log.
        if matches!(part.as_str(), "" | "." | "..") || part.contains(['/', '\0']) {
            return Err(not_found());
        }
        path.push(part);
    }
    // Looked at before it is opened, for opening a device may do something; and again when it is open, for it may be another one.
    let kind = fs::metadata(&path)?.file_type();
    if !kind.is_file() && !kind.is_dir() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let nonblock = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or_default();
    let mut file = File::options().read(true).custom_flags(nonblock).open(&path)?;
    let opened = fs::read_link(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file)))?;
    if !opened.starts_with(&root) {
        return Err(not_found());
    }
    let kind = file.metadata()?.file_type();
    if kind.is_dir() {
        if !slash && let Some(name) = parts.last() {
            return Ok(Found::Directory(format!("{}/", escaped(name))));
        }
        return list(&opened).map(Found::Listed);
    }
    if !kind.is_file() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    next_piece(&mut file).map(|first| Found::File(first, file))
}

fn next_piece(file: &mut File) -> io::Result<Vec<u8>> {
    let mut piece = Vec::with_capacity(NODE_LOG_BYTES);
    file.take(NODE_LOG_BYTES as u64).read_to_end(&mut piece)?;
    Ok(piece)
}

/// As Go's `dirList`, by name; a further entry than `SYSTEM_LOG_ENTRIES_MAX` is left out.
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

/// A name in an address.
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

/// A name on a page.
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

    fn seen(root: &Path, path: &str) -> Result<String, io::ErrorKind> {
        let slash = path.is_empty() || path.ends_with('/');
        let parts: Vec<String> =
            path.trim_end_matches('/').split('/').filter(|p| !p.is_empty()).map(str::to_owned).collect();
        match look(root, &parts, slash) {
            Ok(Found::Listed(page)) => Ok(page),
            Ok(Found::Directory(name)) => Ok(format!("-> {name}")),
            Ok(Found::File(first, _)) => Ok(String::from_utf8(first).unwrap()),
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
}
