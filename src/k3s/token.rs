//! Parses a k3s cluster token (`clientaccess.parseToken`). PURE.

use base64::prelude::{BASE64_STANDARD, Engine as _};

/// Hexadecimal digits of a SHA-256.
const HASH_DIGITS: usize = 64;
/// The user of nodes, whatever user the token names (`clientaccess.WithUser`).
const USER: &str = "node";

/// Where a server has the token of nodes. Its `node-token` is the servers' own, which nodes may not use when the server has
/// `--agent-token`; without that flag all of them are the same.
pub(super) const TOKEN_FILE: &str =
    "the server's /var/lib/rancher/k3s/server/agent-token (of old servers: node-token)";

/// A parsed token. Its `Debug` shows none of it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Token {
    /// SHA-256 of the cluster's certificate authority, in lower-case hexadecimal; `None`: the token has no hash.
    pub(crate) authority: Option<String>,
    /// The value of the `Authorization` header.
    pub(crate) authorization: String,
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

impl Token {
    /// Parses `K10HASH::USER:SECRET`, `K10HASH::ID.SECRET` (a bootstrap token), and either without its `K10HASH::` prefix.
    ///
    /// # Errors
    /// A message with the remedy, without any part of the token.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.is_empty() {
            return Err(format!("is empty; it is in {TOKEN_FILE}"));
        }
        let (authority, credential) = match text.strip_prefix("K10") {
            Some(rest) => rest.split_once("::").unwrap_or(("", rest)),
            None => ("", text),
        };
        let is_hash =
            authority.len() == HASH_DIGITS && authority.bytes().all(|digit| digit.is_ascii_hexdigit());
        if !authority.is_empty() && !is_hash {
            return Err(format!(
                "does not begin with K10 and the {HASH_DIGITS} hexadecimal digits of a hash; it was cut or mistyped: take it anew \
                 from {TOKEN_FILE}"
            ));
        }
        // A line break inside is that of a terminal, or of a second token.
        if credential.chars().any(char::is_control) {
            return Err("holds a line break or another control character".to_owned());
        }
        let authorization = if is_bootstrap_token(credential) {
            format!("Bearer {credential}")
        } else {
            // A text without K10 is the secret, whatever is in it; after K10 the user precedes it.
            let secret = match credential.split_once(':') {
                _ if !text.starts_with("K10") => credential,
                Some((_, secret)) => secret,
                None => "",
            };
            if secret.is_empty() {
                return Err(format!("has no secret behind USER: ; take it anew from {TOKEN_FILE}"));
            }
            format!("Basic {}", BASE64_STANDARD.encode(format!("{USER}:{secret}")))
        };
        let authority = (!authority.is_empty()).then(|| authority.to_ascii_lowercase());
        Ok(Self { authority, authorization })
    }
}

/// `[a-z0-9]{6}.[a-z0-9]{16}`
fn is_bootstrap_token(text: &str) -> bool {
    let of = |part: &str, length: usize| {
        part.len() == length && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    text.split_once('.').is_some_and(|(id, secret)| of(id, 6) && of(secret, 16))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "0123456789ABCDEF0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn each_kind_of_token_is_read() {
        let hash = Some(HASH.to_ascii_lowercase());
        let basic = |secret: &str| format!("Basic {}", BASE64_STANDARD.encode(format!("node:{secret}")));
        let secret = basic("hunter2");
        for (text, authority, authorization) in [
            (format!("K10{HASH}::node:hunter2\n"), hash.clone(), secret.clone()),
            (format!("K10{HASH}::server:hunter2"), hash.clone(), secret.clone()),
            ("K10::node:hunter2".to_owned(), None, secret.clone()),
            ("hunter2".to_owned(), None, secret.clone()),
            (
                format!("K10{HASH}::abcdef.0123456789abcdef"),
                hash.clone(),
                "Bearer abcdef.0123456789abcdef".to_owned(),
            ),
            ("abcdef.0123456789abcdef".to_owned(), None, "Bearer abcdef.0123456789abcdef".to_owned()),
            // A bare secret is whole, whatever it holds; with K10 the first colon ends the user.
            ("a:b:c".to_owned(), None, basic("a:b:c")),
            ("node:hunter2".to_owned(), None, basic("node:hunter2")),
            ("a::b".to_owned(), None, basic("a::b")),
            ("hunter 2 \u{e4}\n".to_owned(), None, basic("hunter 2 \u{e4}")),
            ("abcdef.0123456789ABCDEF".to_owned(), None, basic("abcdef.0123456789ABCDEF")),
            (format!("K10{HASH}::node:b:c"), hash.clone(), basic("b:c")),
            ("K10node:b:c".to_owned(), None, basic("b:c")),
        ] {
            assert_eq!(Token::parse(&text), Ok(Token { authority, authorization }), "{text}");
        }
        assert_eq!(format!("{:?}", Token::parse("hunter2")), "Ok(Token)");
    }

    #[test]
    fn what_is_none_is_refused_without_a_word_of_it() {
        for text in [
            "",
            " \n",
            "K10abc::node:hunter2",
            "K10node:hunter2::hunter3",
            &format!("K10{HASH}::node:"),
            &format!("K10{HASH}::hunter2"),
            "hunter2\nhunter3",
            &format!("K10{HASH}::node:hunter\t2"),
        ] {
            let why = Token::parse(text).expect_err(text);
            assert!(!why.contains("hunter"), "{why}");
        }
    }
}
