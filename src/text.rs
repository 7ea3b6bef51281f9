//! Names and texts as the API's validation and Go's formatting have them. PURE.

use std::fmt::Write as _;

const LABEL_BYTES_MAX: usize = 63;
const SUBDOMAIN_BYTES_MAX: usize = 253;

/// The bytes in lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// The text as a JSON string; `escaped` selects characters for `\u` escapes besides those that JSON requires.
pub(crate) fn push_json_text(out: &mut String, text: &str, escaped: impl Fn(char) -> bool) {
    out.push('"');
    for c in text.chars() {
        match c {
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c => match short_escape(c) {
                Some(short) => out.push_str(short),
                None if escaped(c) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                None => out.push(c),
            },
        }
    }
    out.push('"');
}

/// The escapes of two characters that JSON and YAML have in common and every quoted string needs.
pub(crate) fn short_escape(c: char) -> Option<&'static str> {
    Some(match c {
        '"' => "\\\"",
        '\\' => "\\\\",
        '\n' => "\\n",
        '\r' => "\\r",
        '\t' => "\\t",
        _ => return None,
    })
}

/// The text's beginning of at most so many bytes, cut between characters.
pub(crate) fn start_of(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

/// The text's end of at most so many bytes, cut between characters.
pub(crate) fn end_of(text: &str, bytes_max: usize) -> &str {
    &text[text.ceil_char_boundary(text.len().saturating_sub(bytes_max))..]
}

/// Truncates the text to [`start_of`].
pub(crate) fn cut(text: &mut String, bytes_max: usize) {
    text.truncate(start_of(text, bytes_max).len());
}

/// Go's `strings.ToLower` where the result is good only with ASCII letters alone: two others become one, the rest stays, and is refused
/// all the same. Unicode's table of all letters has 12 kB.
pub(crate) fn to_lower(text: &str) -> String {
    let lower = |c| match c {
        '\u{212a}' => 'k',
        '\u{130}' => 'i',
        c => c.to_ascii_lowercase(),
    };
    text.chars().map(lower).collect()
}

/// Why the text is not a DNS label (`IsDNS1123Label`), as one error in the kubelet's format; `None` when it is one.
pub(crate) fn dns_label_error(text: &str) -> Option<String> {
    let mut errors = Vec::new();
    if text.len() > LABEL_BYTES_MAX {
        errors.push(format!("must be no more than {LABEL_BYTES_MAX} characters"));
    }
    if !is_dns_label(text) && text.split('.').all(is_dns_label) {
        errors.push("must not contain dots".to_owned());
    } else if !is_dns_label(text) {
        errors.push(
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start \
             and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
             '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
                .into(),
        );
    }
    (!errors.is_empty()).then(|| errors.join(";"))
}

/// Why the text is not a DNS subdomain (`util/validation.IsDNS1123Subdomain`).
pub(crate) fn dns_subdomain_error(text: &str) -> Option<String> {
    let errors = dns_subdomain_errors(text, "characters");
    (!errors.is_empty()).then(|| errors.join(";"))
}

/// The kubelet has two such functions, with different names for the unit of length.
fn dns_subdomain_errors(text: &str, unit: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > SUBDOMAIN_BYTES_MAX {
        errors.push(format!("must be no more than {SUBDOMAIN_BYTES_MAX} {unit}"));
    }
    if !text.split('.').all(is_dns_label) {
        errors.push(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must \
             start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
             '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
                .into(),
        );
    }
    errors
}

fn is_dns_label(text: &str) -> bool {
    let alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    text.bytes().all(|byte| alphanumeric(byte) || byte == b'-')
        && text.bytes().next().is_some_and(alphanumeric)
        && text.bytes().next_back().is_some_and(alphanumeric)
}

/// Why the text is not a label or annotation key (`validate/content.IsLabelKey`), as one error in the kubelet's format.
pub(crate) fn qualified_name_error(text: &str) -> Option<String> {
    const FORM: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
                        alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for \
                        validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
    let mut errors = Vec::new();
    let name = match text.split('/').collect::<Vec<_>>()[..] {
        [name] => name,
        [prefix, name] => {
            if prefix.is_empty() {
                errors.push("prefix part must be non-empty".to_owned());
            } else {
                let of_prefix = dns_subdomain_errors(prefix, "bytes");
                errors.extend(of_prefix.into_iter().map(|error| format!("prefix part {error}")));
            }
            name
        }
        _ => {
            return Some(format!(
                "a valid label key {FORM} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            ));
        }
    };
    if name.is_empty() {
        errors.push("name part must be non-empty".into());
    } else if name.len() > LABEL_BYTES_MAX {
        errors.push(format!("name part must be no more than {LABEL_BYTES_MAX} bytes"));
    }
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    if !(name.bytes().all(inner) && edge(name.bytes().next()) && edge(name.bytes().next_back())) {
        errors.push(format!("name part {FORM}"));
    }
    (!errors.is_empty()).then(|| errors.join(";"))
}

/// The text in double quotes with Go's escapes (`%q`).
pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            '\0'..='\u{1f}' | '\u{7f}' => _ = write!(out, "\\x{:02x}", u32::from(c)),
            _ if !printable(c) && u32::from(c) < 0x1_0000 => _ = write!(out, "\\u{:04x}", u32::from(c)),
            _ if !printable(c) => _ = write!(out, "\\U{:08x}", u32::from(c)),
            _ => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Go's `unicode.IsPrint`, approximately: characters that Rust's debug format does not escape.
fn printable(c: char) -> bool {
    c.is_ascii() || c.escape_debug().len() == 1
}

/// A decimal number without a sign: digits with a point or none, and an exponent or none. Exact up to 15 digits and to exponents of
/// 22; beyond these the last of its bits may be another. `f64::from_str`, which is always exact, has 13 KB of tables and code.
pub fn decimal(text: &str) -> Option<f64> {
    let (digits, exponent) = match text.split_once(['e', 'E']) {
        Some((digits, exponent)) => (digits, exponent.parse::<i32>().ok()?),
        None => (text, 0),
    };
    let (mut value, mut scale, mut has_point, mut has_digit) = (0_u64, exponent, false, false);
    for byte in digits.bytes() {
        match byte {
            b'.' if !has_point => has_point = true,
            b'0'..=b'9' => {
                has_digit = true;
                // Digits that no `f64` can hold count by their place alone.
                let has_room = value < 1 << 60;
                if has_room {
                    value = value * 10 + u64::from(byte - b'0');
                }
                scale = scale.saturating_add(i32::from(!has_room) - i32::from(has_point));
            }
            _ => return None,
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "as said")]
    let value = value as f64;
    let power = 10_f64.powi(scale.saturating_abs());
    let scaled = if scale < 0 { value / power } else { value * power };
    has_digit.then_some(if value == 0.0 { 0.0 } else { scaled })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_numbers_are_those_of_the_standard_library() {
        for text in [
            "0",
            "7",
            "0.5",
            ".5",
            "5.",
            "0.1",
            "1.5e3",
            "1E-3",
            "2e+2",
            "123456789012345",
            "0.000001",
            "1e22",
            "9.75e-20",
            "100000000000000000000",
            "3.14159265358979",
            "0e999",
            "1e999",
            "1e-999",
            "1800.25",
            "0.1e1",
        ] {
            assert_eq!(decimal(text), text.parse().ok(), "{text}");
        }
        let mut state = 0x2545_F491_4F6C_DD1D_u64;
        for _ in 0..10_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let text =
                format!("{}.{:06}e{}", (state >> 20) % 1_000_000_000, state % 1_000_000, (state >> 60) % 8);
            assert_eq!(decimal(&text), text.parse().ok(), "{text}");
        }
        // To the last digits only nearly.
        let long = decimal("3.141592653589793238462643383").expect("a number");
        assert!((long - std::f64::consts::PI).abs() < 1e-15, "{long}");
        for text in ["", ".", "1.2.3", "e5", "1e", "1e+-5", "1e99999999999", "x", "-1", "+1", "inf", "1_0"] {
            assert_eq!(decimal(text), None, "{text:?}");
        }
    }

    #[test]
    fn the_letters_of_names_become_small_ones_as_in_go() {
        assert_eq!(to_lower("Example.com/\u{212a}EY-\u{130}d_0"), "example.com/key-id_0");
        // What no name may have stays, and is refused.
        assert_eq!(to_lower("\u{c9}"), "\u{c9}");
    }

    #[test]
    fn text_is_cut_between_characters() {
        let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(7);
        let mut random = fastrand::Rng::with_seed(seed);
        let pieces = ["a", "é", "漢", "🦀", "\u{301}", "\0", "\u{fffd}", ""];
        for _ in 0..crate::cases(20_000) {
            let text: String = (0..random.usize(..8)).map(|_| pieces[random.usize(..pieces.len())]).collect();
            for most in (0..text.len() + 2).chain([usize::MAX]) {
                let (start, end) = (start_of(&text, most), end_of(&text, most));
                assert!(text.starts_with(start) && text.ends_with(end), "seed {seed}: {text:?} at {most}");
                for part in [start, end] {
                    // At most a part of a character less.
                    let least = text.len().min(most).saturating_sub(3);
                    assert!(part.len() <= most && part.len() >= least, "seed {seed}: {text:?} at {most}");
                }
                let mut cut_off = text.clone();
                cut(&mut cut_off, most);
                assert_eq!(cut_off, start);
            }
        }
        assert_eq!((start_of("né", 2), end_of("én", 2)), ("n", "n"));
    }

    #[test]
    fn labels_and_subdomains() {
        for (text, label, subdomain) in [
            ("web", true, true),
            ("w-1", true, true),
            ("web.example", false, true),
            ("-w", false, false),
            ("w-", false, false),
            ("", false, false),
            ("Web", false, false),
            ("a..b", false, false),
        ] {
            assert_eq!(dns_label_error(text).is_none(), label, "{text}");
            assert_eq!(dns_subdomain_error(text).is_none(), subdomain, "{text}");
        }
        let long = dns_label_error(&"a".repeat(64));
        assert_eq!(long.as_deref(), Some("must be no more than 63 characters"));
        assert_eq!(dns_label_error("a.b").as_deref(), Some("must not contain dots"));
        let long = dns_subdomain_error(&"a".repeat(254));
        assert_eq!(long.as_deref(), Some("must be no more than 253 characters"));
    }

    #[test]
    fn qualified_names() {
        for (text, valid) in [
            ("app", true),
            ("App_1.x", true),
            ("example.com/app", true),
            ("/app", false),
            ("example.com/", false),
            ("a/b/c", false),
            ("", false),
            ("-a", false),
        ] {
            assert_eq!(qualified_name_error(text).is_none(), valid, "{text}");
        }
        let long = qualified_name_error(&format!("{}/{}", "a".repeat(254), "b".repeat(64)));
        assert_eq!(
            long.as_deref(),
            Some("prefix part must be no more than 253 bytes;name part must be no more than 63 bytes")
        );
    }

    #[test]
    fn quotes_as_go() {
        for (text, shown) in [
            ("a", "\"a\""),
            ("\"\\", r#""\"\\""#),
            ("\n\t\u{1}", r#""\n\t\x01""#),
            ("é", "\"é\""),
            ("\u{200b}", "\"\\u200b\""),
        ] {
            assert_eq!(quoted(text), shown);
        }
    }
}
