//! The exported directory of an NFS volume. PURE.
//!
//! Stricter than Kubernetes, which does not validate it: server and path are arguments of `mount`, and options are in a list
//! separated by commas.

use std::fmt;
use std::net::Ipv6Addr;

use crate::limits::{NFS_OPTIONS_BYTES_MAX, NFS_PATH_BYTES_MAX, NFS_SERVER_BYTES_MAX};

/// An exported directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NfsExport {
    /// A name or an address; an IPv6 address in brackets.
    pub server: Box<str>,
    /// Absolute, on the server.
    pub path: Box<str>,
    /// `mountOptions`, without empty ones.
    pub options: Box<[Box<str>]>,
}

/// A field that is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Its path in the spec of the persistent volume.
    pub field: &'static str,
    /// Its value.
    pub value: Box<str>,
    /// The allowed form.
    pub allowed: &'static str,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}: {}", self.field, self.value, self.allowed)
    }
}

impl NfsExport {
    /// The export with these fields.
    ///
    /// # Errors
    /// The first invalid field.
    pub fn new<'a>(
        server: &str,
        path: &str,
        options: impl Iterator<Item = &'a str>,
    ) -> Result<Self, Refused> {
        let held = |field, value: &str, rule: Rule| match rule(value) {
            None => Ok(Box::<str>::from(value)),
            Some(allowed) => Err(Refused { field, value: shown(value).into(), allowed }),
        };
        let server = held("nfs.server", server, self::server)?;
        let server = match ipv6(&server) {
            Some(address) => format!("[{address}]").into(),
            None => server,
        };
        let path = held("nfs.path", path, self::path)?;
        let (mut all, mut left) = (Vec::new(), NFS_OPTIONS_BYTES_MAX);
        for option in options.filter(|option| !option.is_empty()) {
            let option = held("mountOptions", option, self::option)?;
            left = left.checked_sub(option.len() + 1).ok_or_else(|| Refused {
                field: "mountOptions",
                value: option.clone(),
                allowed: "all of them together must be shorter",
            })?;
            all.push(option);
        }
        Ok(Self { server, path, options: all.into() })
    }

    /// `SERVER:PATH`, as `mount` requires it and the kernel shows it.
    pub fn source(&self) -> String {
        format!("{}:{}", self.server, self.path)
    }
}

/// The beginning of an invalid value, which may be long.
fn shown(value: &str) -> &str {
    crate::text::start_of(value, 64)
}

/// Returns the allowed form for an invalid text.
pub type Rule = fn(&str) -> Option<&'static str>;

fn unless(good: bool, allowed: &'static str) -> Option<&'static str> {
    if good { None } else { Some(allowed) }
}

/// The address without brackets, with its zone (`fe80::1%eth0`).
fn ipv6(server: &str) -> Option<&str> {
    let address = server.strip_prefix('[').and_then(|inner| inner.strip_suffix(']')).unwrap_or(server);
    let (number, zone) = address.split_once('%').unwrap_or((address, "0"));
    let is_zone = !zone.is_empty() && zone.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
    (is_zone && number.parse::<Ipv6Addr>().is_ok()).then_some(address)
}

/// `nfs.server`.
pub fn server(text: &str) -> Option<&'static str> {
    let is_name = text.len() <= NFS_SERVER_BYTES_MAX
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        && !text.contains("..");
    let allowed = "must be a host's name or an address: letters, digits, '-', '_' and '.', or IPv6";
    unless(is_name || ipv6(text).is_some(), allowed)
}

/// `nfs.path`.
pub fn path(text: &str) -> Option<&'static str> {
    let good = text.starts_with('/')
        && text.len() <= NFS_PATH_BYTES_MAX
        && !text.split('/').any(|part| part == "..")
        && !text.contains(|c: char| c == ',' || c.is_whitespace() || c.is_control());
    unless(good, "must be an absolute path on the server, without '..', ',', blanks and control characters")
}

/// Options with which `mount` does not mount the export, or reports success before it has.
const OTHER_DEEDS: [&str; 7] = ["bg", "bind", "loop", "move", "nofail", "rbind", "remount"];

/// One of `mountOptions`.
pub fn option(text: &str) -> Option<&'static str> {
    let good = text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.bytes().all(|b| b.is_ascii_graphic() && !b",\"'\\".contains(&b))
        && !text.contains("..");
    let allowed = "must be one option: no ',', blank, quote, backslash, '..', or '-' at its beginning; give each of several \
                   its own item";
    let name = text.split('=').next().unwrap_or_default().to_ascii_lowercase();
    let does_that =
        !OTHER_DEEDS.contains(&&*name) && !name.ends_with("helper") && !name.starts_with("x-mount.");
    unless(good, allowed).or(unless(does_that, "must not be an option that changes what mount does"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(server: &str, path: &str, options: &[&str]) -> String {
        match NfsExport::new(server, path, options.iter().copied()) {
            Ok(export) => format!("{} {}", export.source(), export.options.join(",")),
            Err(refused) => refused.to_string(),
        }
    }

    #[test]
    fn an_export_is_shown_as_mount_requires_it() {
        for (server, path, options, wanted) in [
            ("nas.lan", "/data", &["nfsvers=4.1", "", "hard"][..], "nas.lan:/data nfsvers=4.1,hard"),
            ("192.0.2.7", "/", &[], "192.0.2.7:/ "),
            ("fd00::7", "/a", &[], "[fd00::7]:/a "),
            ("[fd00::7]", "/a", &[], "[fd00::7]:/a "),
            ("fe80::7%eth0", "/a", &[], "[fe80::7%eth0]:/a "),
            (
                "NAS_1",
                "/ä/b:/c",
                &["sec=krb5p", "x-systemd.automount"],
                "NAS_1:/ä/b:/c sec=krb5p,x-systemd.automount",
            ),
        ] {
            assert_eq!(source(server, path, options), wanted);
        }
    }

    #[test]
    fn fields_that_mount_would_misinterpret_are_refused() {
        let long = "a".repeat(NFS_SERVER_BYTES_MAX + 1);
        for server in [
            "",
            "-o",
            "nas,other",
            "nas lan",
            "nas\nlan",
            "nas:/x",
            "..",
            "a..b",
            "nas/x",
            "$(id)",
            "fe80::7%",
            "fe80::7%a/b",
            "[nas]",
            "[fd00::7",
            "näs",
            &long,
        ] {
            let said = source(server, "/", &[]);
            assert!(
                said.starts_with("nfs.server \"") && said.contains(": must be a host's name"),
                "{server:?}: {said}"
            );
        }
        let long = format!("/{}", "a".repeat(NFS_PATH_BYTES_MAX));
        for path in ["", "data", "-o", "/a/../b", "/..", "/a,b", "/a b", "/a\nb", "/a\0b", "/a\u{a0}b", &long]
        {
            let said = source("nas", path, &[]);
            assert!(
                said.starts_with("nfs.path \"") && said.contains(": must be an absolute path"),
                "{path:?}: {said}"
            );
            assert!(said.len() < 250, "{said}");
        }
        for option in
            ["hard,ro", "a b", "-o", "a\nb", "..", "a=../b", "context=\"a\"", "a\\054b", " ", "=x", "ä"]
        {
            let said = source("nas", "/", &["ro", option]);
            assert!(
                said.starts_with("mountOptions \"") && said.contains(": must be one option"),
                "{option:?}: {said}"
            );
        }
        for option in ["bg", "BIND", "loop=/dev/loop0", "remount", "uhelper=x", "X-mount.subdir=a", "nofail"]
        {
            let said = source("nas", "/", &[option]);
            assert!(said.contains(": must not be an option that changes"), "{option:?}: {said}");
        }
        let many = "hard ".repeat(NFS_OPTIONS_BYTES_MAX);
        let many: Vec<&str> = many.split(' ').collect();
        assert_eq!(source("nas", "/", &many), "mountOptions \"hard\": all of them together must be shorter");
    }
}
