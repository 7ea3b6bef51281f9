//! PURE: formats JSON values as block YAML, as kubectl does.
//!
//! Strings are written plain only where YAML 1.1 and 1.2 both parse them as strings; all others are quoted, and characters that
//! are hostile to a terminal are escaped.

use std::fmt::Write as _;

use serde_json::Value;

use super::text::{is_hostile, make_room};
use crate::text::short_escape;

/// The value as one YAML document, with a trailing newline.
pub fn to_yaml(value: &Value) -> String {
    let mut out = String::new();
    write_yaml(&mut out, value);
    out
}

/// Appends the value to `out`.
pub fn write_yaml(out: &mut String, value: &Value) {
    match value {
        Value::Object(map) if !map.is_empty() => block(out, value, 0, true),
        Value::Array(items) if !items.is_empty() => block(out, value, 0, true),
        _ => {
            scalar(out, value, 0);
            out.push('\n');
        }
    }
}

/// A map or list that is not empty. `at_start`: the cursor is at `indent` already.
fn block(out: &mut String, value: &Value, indent: usize, mut at_start: bool) {
    let mut begin = |out: &mut String| {
        if !std::mem::take(&mut at_start) {
            let _ = write!(out, "{:indent$}", "");
        }
    };
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                begin(out);
                string(out, key, None);
                out.push(':');
                match value {
                    Value::Object(inner) if !inner.is_empty() => {
                        out.push('\n');
                        block(out, value, indent + 2, false);
                    }
                    // Lists have the same indent as their key.
                    Value::Array(inner) if !inner.is_empty() => {
                        out.push('\n');
                        block(out, value, indent, false);
                    }
                    _ => {
                        out.push(' ');
                        scalar(out, value, indent + 2);
                        out.push('\n');
                    }
                }
            }
        }
        Value::Array(items) => {
            for value in items {
                begin(out);
                out.push_str("- ");
                match value {
                    Value::Object(inner) if !inner.is_empty() => block(out, value, indent + 2, true),
                    Value::Array(inner) if !inner.is_empty() => block(out, value, indent + 2, true),
                    _ => {
                        scalar(out, value, indent + 2);
                        out.push('\n');
                    }
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// A value on the line of its key; `indent` is that of a block's lines.
fn scalar(out: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Value::Number(n) => {
            let _ = write!(out, "{n}");
        }
        Value::String(text) => string(out, text, Some(indent)),
        Value::Array(_) => out.push_str("[]"),
        Value::Object(_) => out.push_str("{}"),
    }
}

/// A string: plain, as a block (only where `lines_at` allows it), or quoted.
fn string(out: &mut String, text: &str, lines_at: Option<usize>) {
    if is_plain(text) {
        out.push_str(text);
        return;
    }
    if let Some(indent) = lines_at.filter(|_| is_literal(text)) {
        // `|-`: no trailing newline; `|`: one; `|+`: more than one.
        let body = text.trim_end_matches('\n');
        out.push_str(match text.len() - body.len() {
            0 => "|-",
            1 => "|",
            _ => "|+",
        });
        for line in body.split('\n') {
            out.push('\n');
            if !line.is_empty() {
                let _ = write!(out, "{:indent$}{line}", "");
            }
        }
        // The caller ends the last line; `|+` needs the further empty ones.
        out.push_str(&text[body.len()..].replacen('\n', "", 1));
        return;
    }
    // An escape has four characters for one of Latin 1, and at most ten.
    make_room(out, text.len() + 4 * text.chars().filter(|c| is_hostile(*c)).count());
    out.push('"');
    for c in text.chars() {
        match short_escape(c) {
            Some(short) => out.push_str(short),
            None if is_hostile(c) || !is_yaml_printable(c) => {
                let code = u32::from(c);
                let _ = match code {
                    0..=0xff => write!(out, "\\x{code:02x}"),
                    0x100..=0xffff => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
            }
            None => out.push(c),
        }
    }
    out.push('"');
}

/// YAML's `c-printable` beyond ASCII, without the private and unassigned ends of the planes.
fn is_yaml_printable(c: char) -> bool {
    !matches!(c, '\u{e000}'..='\u{f8ff}' | '\u{fffe}'..='\u{ffff}') && u32::from(c) & 0xfffe != 0xfffe
}

/// Several lines that a literal block preserves: without hostile characters, and without blanks at a line's end or at the start.
fn is_literal(text: &str) -> bool {
    let harmless = |c: char| c == '\n' || !is_hostile(c) && is_yaml_printable(c);
    let lines_fit = text.split('\n').all(|line| !line.ends_with([' ', '\t']));
    text.trim_end_matches('\n').contains('\n')
        && text.chars().all(harmless)
        && lines_fit
        && !text.starts_with([' ', '\n'])
}

/// A string that every YAML parser reads as this string.
fn is_plain(text: &str) -> bool {
    let Some(first) = text.chars().next() else { return false };
    let safe = |c: char| {
        c.is_ascii_alphanumeric() || "-_./@:+=,()[]{}*&%$!?|~;<>^' ".contains(c) || c.is_alphabetic()
    };
    if !text.chars().all(safe) || !is_starter(first) || text.ends_with([' ', ':']) || text.contains(": ") {
        return false;
    }
    // YAML 1.1 parses all of these as booleans or null.
    const WORDS: [&str; 11] = ["y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"];
    if WORDS.iter().any(|word| text.eq_ignore_ascii_case(word)) {
        return false;
    }
    !first.is_ascii_digit() || is_no_number(text)
}

/// May start a plain string: not an indicator, and of the characters that start a number only a digit.
fn is_starter(c: char) -> bool {
    c.is_ascii_alphanumeric() || "/_(;^$".contains(c) || (!c.is_ascii() && c.is_alphabetic())
}

/// A text that starts with a digit but is not a number, date or sexagesimal: an address (`10.0.0.1`), a quantity (`100m`, `64Mi`)
/// or an identifier with letters and dashes (`1a2b-3c`).
fn is_no_number(text: &str) -> bool {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let is_quantity =
        matches!(&text[digits..], "m" | "k" | "M" | "G" | "T" | "P" | "Ki" | "Mi" | "Gi" | "Ti" | "Pi");
    let is_address = text.split('.').count() == 4
        && text.split('.').all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()));
    let is_identifier = text.contains('-')
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        && text.bytes().any(|b| matches!(b, b'a' | b'c' | b'd' | b'f'..=b's' | b'u'..=b'y'))
        && !text.starts_with("0x");
    is_quantity || is_address || is_identifier
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_are_laid_out_as_kubectl_does() {
        let value = json!({
            "apiVersion": "v1",
            "empty": {},
            "items": [{"metadata": {"name": "web", "labels": {"a/b": "true"}}, "none": []}, "text", [1, [2]], {}],
            "lines": "one\ntwo\n\nfour\n",
            "nothing": null,
            "number": 1.5,
            "time": "2026-01-01T00:00:00Z",
        });
        assert_eq!(
            to_yaml(&value),
            "apiVersion: v1\nempty: {}\nitems:\n- metadata:\n    labels:\n      a/b: \"true\"\n    name: web\n  \
             none: []\n- text\n- - 1\n  - - 2\n- {}\nlines: |\n  one\n  two\n\n  four\nnothing: null\nnumber: 1.5\n\
             time: \"2026-01-01T00:00:00Z\"\n"
        );
    }

    #[test]
    fn strings_are_plain_only_where_no_reader_can_mistake_them() {
        for (text, shown) in [
            ("nginx:1.2", "nginx:1.2"),
            ("registry/app@sha256:00ff", "registry/app@sha256:00ff"),
            ("10.0.0.1", "10.0.0.1"),
            ("100m", "100m"),
            ("64Mi", "64Mi"),
            ("dfeaa4ea-53ff", "dfeaa4ea-53ff"),
            ("7ab3-00", "7ab3-00"),
            ("", "\"\""),
            ("yes", "\"yes\""),
            ("Null", "\"Null\""),
            ("1", "\"1\""),
            ("1e3", "\"1e3\""),
            ("0x1f", "\"0x1f\""),
            ("12:30", "\"12:30\""),
            ("2026-01-01", "\"2026-01-01\""),
            ("-a", "\"-a\""),
            ("~", "\"~\""),
            ("a: b", "\"a: b\""),
            ("a #b", "\"a #b\""),
            ("a:", "\"a:\""),
            ("*x", "\"*x\""),
            ("{a}", "\"{a}\""),
            ("a\tb", "\"a\\tb\""),
            ("\x1b[2J", "\"\\x1b[2J\""),
            ("\u{202e}x", "\"\\u202ex\""),
            ("say \"x\"", "\"say \\\"x\\\"\""),
            ("fatal: no \"config\"", "\"fatal: no \\\"config\\\"\""),
        ] {
            assert_eq!(to_yaml(&json!(text)), format!("{shown}\n"));
        }
    }

    /// Parsed by smolet's own manifest parser.
    fn read_back(yaml: &str) -> Value {
        serde_saphyr::from_str(yaml).unwrap_or_else(|e| panic!("{e}\n{yaml}"))
    }

    #[test]
    fn what_is_written_reads_back_the_same() {
        let texts = [
            "",
            " ",
            "a",
            "no",
            "NO",
            "~",
            "1",
            "1.0",
            "1_000",
            "0o7",
            "0b1",
            "0x1",
            ".5",
            "+1",
            "-1",
            ".inf",
            "NaN",
            "1:2",
            "=",
            "<<",
            "- a",
            "? a",
            "a\nb",
            "a\nb\n",
            "a\nb\n\n",
            "\na\nb",
            " a\nb",
            "a \nb",
            "a\n b",
            "a\n\n",
            "#a",
            "a # b",
            "a#b",
            "'a'",
            "\"a\"",
            "\\",
            "%a",
            "@a",
            "`a`",
            "---",
            "...",
            "a\rb",
            "\u{85}",
            "\u{2028}",
            "\u{feff}a",
            "\u{1f600}",
            "漢字",
            "ä: b",
            "[a",
            "]",
            "a, b",
            "{",
            "null",
            "true",
            "2001-12-14t21:59:43.10-05:00",
            "1e-3",
            "1-e",
            "12e3-4",
            "0xa-b",
            "9a-1",
            "on",
            "Off",
            "\x07",
            "\u{e000}",
            "\u{10ffff}",
        ];
        for text in texts {
            for value in
                [json!(text), json!([text]), json!({"k": text}), json!({"k": [{"a": text, "b": text}]})]
            {
                assert_eq!(read_back(&to_yaml(&value)), value, "{text:?} as\n{}", to_yaml(&value));
            }
            let keyed = json!({text: {text: [text]}});
            assert_eq!(read_back(&to_yaml(&keyed)), keyed, "{}", to_yaml(&keyed));
        }
    }

    #[test]
    fn random_values_read_back_the_same() {
        let seed = fastrand::u64(..);
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..500 {
            let value = random_value(&mut random, 0);
            assert_eq!(read_back(&to_yaml(&value)), value, "seed {seed}\n{}", to_yaml(&value));
        }
    }

    fn random_text(random: &mut fastrand::Rng) -> String {
        const PIECES: [&str; 22] = [
            "a", "B", "1", "0", "-", ":", " ", "\n", "#", "\"", "'", ".", "e", "x", "_", ",", "[", "{", "\t",
            "\u{7f}", "ü", "|",
        ];
        (0..random.usize(0..8)).map(|_| PIECES[random.usize(..PIECES.len())]).collect()
    }

    fn random_value(random: &mut fastrand::Rng, depth: usize) -> Value {
        match random.u8(if depth > 3 { 0..4 } else { 0..6 }) {
            0 => Value::Null,
            1 => json!(random.bool()),
            2 => json!(random.i32(..)),
            3 => Value::String(random_text(random)),
            4 => (0..random.usize(0..4)).map(|_| random_value(random, depth + 1)).collect(),
            _ => Value::Object(
                (0..random.usize(0..4))
                    .map(|_| (random_text(random), random_value(random, depth + 1)))
                    .collect(),
            ),
        }
    }
}
