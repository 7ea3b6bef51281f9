//! Challenges of `WWW-Authenticate` (RFC 9110, 11.6.1). PURE.

use crate::limits::{REGISTRY_CHALLENGE_BYTES_MAX, REGISTRY_CHALLENGE_PARAMETERS_MAX};

/// A challenge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Challenge {
    /// A token of this service.
    Bearer { realm: String, service: String, scope: String },
    /// A user name and a password.
    Basic,
}

/// The challenges of a header; those of other schemes are left out.
pub(super) fn parse(header: &str) -> Vec<Challenge> {
    if header.len() > REGISTRY_CHALLENGE_BYTES_MAX {
        return Vec::new();
    }
    let mut found: Vec<(String, Vec<(String, String)>)> = Vec::new();
    let mut rest = header.trim_start();
    while !rest.is_empty() {
        let end = rest.find([' ', ',', '=', '\t']).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        let value = after.trim_start().strip_prefix('=').map(str::trim_start);
        let after = if let Some(value) = value {
            // `scheme token68` with padding is no challenge of ours: its "value" goes to no parameter that is looked at.
            let (value, after) = parameter(value);
            if let Some((_, parameters)) = found.last_mut()
                && parameters.len() < REGISTRY_CHALLENGE_PARAMETERS_MAX
            {
                parameters.push((word.to_ascii_lowercase(), value));
            }
            after
        } else {
            if !word.is_empty() && found.len() < REGISTRY_CHALLENGE_PARAMETERS_MAX {
                found.push((word.to_ascii_lowercase(), Vec::new()));
            }
            after
        };
        rest = after.trim_start_matches([' ', ',', '\t', '=']);
    }
    found.into_iter().filter_map(|(scheme, parameters)| challenge(&scheme, &parameters)).collect()
}

/// A token or a quoted string, and what follows it.
fn parameter(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([',', ' ', '\t']).unwrap_or(text.len());
        return (text[..end].to_owned(), &text[end..]);
    };
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (value, &quoted[at + 1..]),
            '\\' => value.extend(chars.next().map(|(_, c)| c)),
            c => value.push(c),
        }
    }
    (value, "")
}

fn challenge(scheme: &str, parameters: &[(String, String)]) -> Option<Challenge> {
    let value = |name: &str| parameters.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
    match scheme {
        "basic" => Some(Challenge::Basic),
        "bearer" => Some(Challenge::Bearer {
            realm: value("realm").filter(|realm| !realm.is_empty())?,
            service: value("service").unwrap_or_default(),
            scope: value("scope").unwrap_or_default(),
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges() {
        let bearer = |realm: &str, service: &str, scope: &str| Challenge::Bearer {
            realm: realm.to_owned(),
            service: service.to_owned(),
            scope: scope.to_owned(),
        };
        for (header, found) in [
            ("", vec![]),
            ("Basic realm=\"Registry Realm\"", vec![Challenge::Basic]),
            ("basic", vec![Challenge::Basic]),
            (
                r#"Bearer realm="https://auth.io/token",service="r.io",scope="repository:a/b:pull,push""#,
                vec![bearer("https://auth.io/token", "r.io", "repository:a/b:pull,push")],
            ),
            (r#"BEARER Realm = "x" , service=y"#, vec![bearer("x", "y", "")]),
            (r#"Bearer service="y""#, vec![]),
            (
                r#"Negotiate, Bearer realm="a\"b", Basic realm="c, d""#,
                vec![bearer("a\"b", "", ""), Challenge::Basic],
            ),
            (r#"Digest realm="a", Basic"#, vec![Challenge::Basic]),
            (r#"Bearer realm="open"#, vec![bearer("open", "", "")]),
            ("Negotiate abc==", vec![]),
            (",,= =,", vec![]),
        ] {
            assert_eq!(parse(header), found, "{header}");
        }
        assert!(parse(&"Basic ".repeat(REGISTRY_CHALLENGE_BYTES_MAX)).is_empty());
    }
}
