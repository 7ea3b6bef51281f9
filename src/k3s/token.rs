//! Parses a k3s cluster token (`clientaccess.parseToken`). PURE.

use base64::prelude::{BASE64_STANDARD, Engine as _};

/// Hexadecimal digits of a SHA-256.
const HASH_DIGITS: usize = 64;
/// The user of nodes, whatever user the token names (`clientaccess.WithUser`).
const USER: &str = "node";

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
            return Err("is empty; a k3s server has it in /var/lib/rancher/k3s/server/node-token".to_owned());
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
                 from the server's /var/lib/rancher/k3s/server/node-token"
            ));
        }
        if !credential.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("holds a space or a character that no token has".to_owned());
        }
        let authorization = if is_bootstrap_token(credential) {
            format!("Bearer {credential}")
        } else {
            // A token without a hash is a secret; with a hash the user precedes it.
            let secret = match credential.split_once(':') {
                Some((_, secret)) => secret,
                None if text.starts_with("K10") => "",
                None => credential,
            };
            if secret.is_empty() {
                return Err("has no secret behind USER: ; take it anew from the server's \
                            /var/lib/rancher/k3s/server/node-token"
                    .to_owned());
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
        let secret = format!("Basic {}", BASE64_STANDARD.encode(b"node:hunter2"));
        for (text, authority, authorization) in [
            (format!("K10{HASH}::node:hunter2\n"), hash.clone(), secret.clone()),
            (format!("K10{HASH}::server:hunter2"), hash.clone(), secret.clone()),
            ("K10::node:hunter2".to_owned(), None, secret.clone()),
            ("hunter2".to_owned(), None, secret.clone()),
            (
                format!("K10{HASH}::abcdef.0123456789abcdef"),
                hash,
                "Bearer abcdef.0123456789abcdef".to_owned(),
            ),
            ("abcdef.0123456789abcdef".to_owned(), None, "Bearer abcdef.0123456789abcdef".to_owned()),
            ("a:b:c".to_owned(), None, format!("Basic {}", BASE64_STANDARD.encode(b"node:b:c"))),
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
            &format!("K10{HASH}::node:"),
            &format!("K10{HASH}::hunter2"),
            "hunter 2",
        ] {
            let why = Token::parse(text).expect_err(text);
            assert!(!why.contains("hunter"), "{why}");
        }
    }
}
