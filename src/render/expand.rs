//! `$(NAME)` references (`third_party/forked/golang/expansion`). PURE.

/// Replaces `$(NAME)` by the result of `lookup`; an unknown name is left unchanged, `$$` is one dollar sign.
///
/// Works on bytes: a value may come from a Secret and need not be UTF-8. A byte after a dollar sign that does not begin a
/// valid UTF-8 character becomes U+FFFD, as in Go.
pub fn expand<'a>(input: &[u8], lookup: impl Fn(&[u8]) -> Option<&'a [u8]>) -> Vec<u8> {
    let mut out = Vec::with_capacity(input.len());
    let mut rest = input;
    while let Some(at) = rest.iter().position(|&byte| byte == b'$') {
        out.extend_from_slice(&rest[..at]);
        rest = &rest[at + 1..];
        match rest {
            // A dollar sign at the end is kept.
            [] => out.push(b'$'),
            [b'$', after @ ..] => {
                out.push(b'$');
                rest = after;
            }
            [b'(', after @ ..] => {
                let Some(end) = after.iter().position(|&byte| byte == b')') else {
                    out.extend_from_slice(b"$(");
                    rest = after;
                    continue;
                };
                let name = &after[..end];
                match lookup(name) {
                    Some(value) => out.extend_from_slice(value),
                    None => [b"$(", name, b")"].iter().for_each(|part| out.extend_from_slice(part)),
                }
                rest = &after[end + 1..];
            }
            _ => {
                out.push(b'$');
                let letter = first_letter(rest);
                match letter {
                    Some(letter) => out.extend_from_slice(letter),
                    None => out.extend_from_slice("\u{fffd}".as_bytes()),
                }
                rest = &rest[letter.map_or(1, <[u8]>::len)..];
            }
        }
    }
    out.extend_from_slice(rest);
    out
}

/// The bytes of the first character; `None` when they are not UTF-8.
fn first_letter(bytes: &[u8]) -> Option<&[u8]> {
    (1..=bytes.len().min(4)).map(|end| &bytes[..end]).find(|bytes| std::str::from_utf8(bytes).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_replaced_once() {
        let lookup = |name: &[u8]| match name {
            b"A" => Some(&b"one"[..]),
            b"R" => Some(&b"$(A)"[..]),
            b"" => Some(&b"nothing"[..]),
            _ => None,
        };
        for (input, expected) in [
            (&b"x$(A)y"[..], &b"xoney"[..]),
            (b"$(R)", b"$(A)"),
            (b"$$(A) $$$(A)", b"$(A) $one"),
            (b"$(NOPE)", b"$(NOPE)"),
            (b"$()", b"nothing"),
            (b"$(A", b"$(A"),
            (b"$(A$(A)", b"$(A$(A)"),
            (b"a$", b"a$"),
            (b"$x", b"$x"),
            (b"$\xff(A)", "$\u{fffd}(A)".as_bytes()),
            ("$é$(A)".as_bytes(), "$éone".as_bytes()),
            (b"\xff$(A)", b"\xffone"),
            (b"", b""),
        ] {
            assert_eq!(expand(input, lookup), expected, "{}", String::from_utf8_lossy(input));
        }
    }
}
