//! The formats of names in Kubernetes (`apimachinery/pkg/util/validation`). PURE.
//!
//! Each rule returns the allowed form when the text violates it.

/// The allowed form when a rule is violated.
pub type Broken = Option<&'static str>;

fn broken(good: bool, allowed: &'static str) -> Broken {
    if good { None } else { Some(allowed) }
}

fn is_lower_alphanumeric(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

/// Letters, digits and `between` inside, a letter or digit at both ends; not empty.
fn is_word(text: &[u8], letter: fn(u8) -> bool, between: &[u8]) -> bool {
    let ends = text.first().is_some_and(|b| letter(*b)) && text.last().is_some_and(|b| letter(*b));
    ends && text.iter().all(|b| letter(*b) || between.contains(b))
}

/// `IsDNS1123Label`: a container's or volume's name.
pub fn label(text: &str) -> Broken {
    broken(
        text.len() <= 63 && is_word(text.as_bytes(), is_lower_alphanumeric, b"-"),
        "must be at most 63 lower case letters, digits or '-', with a letter or digit at both ends",
    )
}

/// `IsDNS1123Subdomain`: a pod's name.
pub fn subdomain(text: &str) -> Broken {
    broken(
        is_subdomain(text, b"-"),
        "must be at most 253 lower case letters and digits, with '-' or single '.' between them",
    )
}

/// `IsDNS1123SubdomainWithUnderscore`: a DNS search path.
pub fn search_domain(text: &str) -> Broken {
    let letter = |byte| is_lower_alphanumeric(byte) || byte == b'_';
    let good = text.len() <= 253 && text.split('.').all(|part| is_word(part.as_bytes(), letter, b"-"));
    broken(good, "must be a DNS name: lower case letters, digits, '-', '_' and '.', at most 253")
}

fn is_subdomain(text: &str, between: &[u8]) -> bool {
    text.len() <= 253 && text.split('.').all(|part| is_word(part.as_bytes(), is_lower_alphanumeric, between))
}

/// `IsQualifiedName`: the key of a label or annotation, a resource's name.
pub fn qualified(text: &str) -> Broken {
    let (prefix, name) = text.split_once('/').map_or((None, text), |(prefix, name)| (Some(prefix), name));
    let good = prefix.is_none_or(|prefix| is_subdomain(prefix, b"-"))
        && name.len() <= 63
        && is_word(name.as_bytes(), |byte| byte.is_ascii_alphanumeric(), b"-_.");
    broken(
        good,
        "must be at most 63 letters, digits, '-', '_' or '.', with a letter or digit at both ends, perhaps after a \
         DNS name and '/'",
    )
}

/// `IsValidLabelValue`.
pub fn label_value(text: &str) -> Broken {
    let good = text.len() <= 63 && is_word(text.as_bytes(), |byte| byte.is_ascii_alphanumeric(), b"-_.");
    broken(
        text.is_empty() || good,
        "must be empty or at most 63 letters, digits, '-', '_' or '.', with a letter or digit at both ends",
    )
}

/// `IsValidPortName`.
pub fn port_name(text: &str) -> Broken {
    let good = text.len() <= 15
        && is_word(text.as_bytes(), is_lower_alphanumeric, b"-")
        && !text.contains("--")
        && text.bytes().any(|byte| byte.is_ascii_lowercase());
    broken(
        good,
        "must be at most 15 lower case letters, digits or single '-', with a letter, and a letter or digit at both \
         ends",
    )
}

/// `IsHTTPHeaderName`.
pub fn http_header(text: &str) -> Broken {
    let good = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    broken(good, "must be letters, digits and '-'")
}

/// `IsRelaxedEnvVarName`.
pub fn env_name(text: &str) -> Broken {
    let good = !text.is_empty() && text.bytes().all(|byte| (b' '..=b'~').contains(&byte) && byte != b'=');
    broken(good, "must be printable ASCII characters other than '='")
}

/// `IsConfigMapKey`: a key of a ConfigMap or Secret.
pub fn config_key(text: &str) -> Broken {
    let good = (1..=253).contains(&text.len())
        && !text.starts_with("..")
        && text != "."
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    broken(
        good,
        "must be at most 253 letters, digits, '-', '_' or '.', neither \".\" nor beginning with \"..\"",
    )
}

/// `IsValidSysctlName`.
pub fn sysctl(text: &str) -> Broken {
    let good = text.len() <= 253
        && text.split(['.', '/']).all(|part| is_word(part.as_bytes(), is_lower_alphanumeric, b"-_"));
    broken(
        good,
        "must be a sysctl's name in lower case, its parts joined by '.' or '/', at most 253 characters",
    )
}

/// An IP address (`IsValidIPForLegacyField`, which also takes Go's leading zeros; this one does not).
pub fn ip(text: &str) -> Broken {
    broken(text.parse::<std::net::IpAddr>().is_ok(), "must be an IP address, such as 10.9.8.7 or fd00::7")
}

/// A UID becomes part of paths and cgroup names. Kubernetes does not validate it; a `/` or `..` would leave the agent's
/// directories.
pub fn uid(text: &str) -> Broken {
    let good = text.len() <= 63 && is_word(text.as_bytes(), |byte| byte.is_ascii_alphanumeric(), b"-");
    broken(good, "must be at most 63 letters, digits or '-', with a letter or digit at both ends")
}

/// A path without `..` (`validatePathNoBacksteps`).
pub fn no_backsteps(text: &str) -> Broken {
    broken(!text.split('/').any(|part| part == ".."), "must not contain '..'")
}

/// A relative path without `..` (`validateLocalDescendingPath`).
pub fn descending(text: &str) -> Broken {
    if text.starts_with('/') { Some("must be a relative path") } else { no_backsteps(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_format() {
        let long = |n: usize| "a".repeat(n);
        /// A rule, valid texts and invalid ones.
        type Row<'a> = (fn(&str) -> Broken, &'a [&'a str], &'a [&'a str]);
        let rows: &[Row<'_>] = &[
            (label, &["a", "a-b", "0", &long(63)], &["", "A", "a_b", "-a", "a-", "a.b", "ä", &long(64)]),
            (
                subdomain,
                &["a", "a.b", "a-b.c", &long(253)],
                &["", "a..b", ".a", "a.", "a_b", "A", "a.-b", &long(254)],
            ),
            (search_domain, &["a.b", "_tcp.a", "a_b.c"], &["", "a b", "a..b", "A"]),
            (
                qualified,
                &["a", "A.b_c-d", "x.y/z", &long(63)],
                &["", "/a", "a/", "a/b/c", "-a", "X_y/z", &long(64)],
            ),
            (label_value, &["", "a", "A_b.c-d"], &["-a", "a b", "a/b", &long(64)]),
            (port_name, &["http", "a-1", "1a"], &["", "80", "a--b", "HTTP", "-a", "this-name-is-to-long"]),
            (env_name, &["A", "a b", "1.2-x", "~"], &["", "A=B", "ä", "a\n"]),
            (
                sysctl,
                &["net.ipv4.tcp_syncookies", "net/ipv4/ip_forward", "a"],
                &["", "A.b", ".a", "a..b", "a b"],
            ),
            (ip, &["10.0.0.1", "::1", "fd00::1"], &["", "10.0.0", "10.0.0.256", "a", "010.0.0.1"]),
            (uid, &["a", "0123abc-def", "ABC"], &["", "..", "a/b", "a.b", "-a", &long(64)]),
            (no_backsteps, &["", "/a/b", "a..b", "..a"], &["..", "a/../b", "/.."]),
            (descending, &["a", "a/b"], &["/a", "../a", "a/.."]),
        ];
        for (rule, good, bad) in rows {
            for text in *good {
                assert_eq!(rule(text), None, "{text:?}");
            }
            for text in *bad {
                assert!(rule(text).is_some(), "{text:?}");
            }
        }
    }
}
