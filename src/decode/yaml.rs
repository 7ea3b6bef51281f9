//! Parses YAML into documents, with the scalar rules of sigs.k8s.io/yaml (YAML 1.1). PURE.
//!
//! The tree is built from parser events on an explicit stack: nothing here recurses over the input, and every node and byte is
//! charged to a budget before it is stored, copies made by aliases and merge keys included.

use std::borrow::Cow;

use granit_parser::{ErrorKind, Event, Parser, ScalarStyle, ScanError, Span, Tag};

use super::{Node, quoted};
use crate::limits;
use crate::text::decimal;

/// A document's parse error, with its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct YamlError {
    /// From 1; 0 when unknown.
    pub line: usize,
    /// The error.
    pub message: String,
}

/// Parses `bytes` document by document. `each` gets the document's number (from 1) and its tree, or an error; empty documents
/// (only comments) are skipped but counted. An invalid document does not hide those after its end (`---`).
///
/// Returns an error when the file as a whole cannot be parsed.
pub fn documents(bytes: &[u8], mut each: impl FnMut(u32, Result<Node, YamlError>)) -> Result<(), YamlError> {
    let text = std::str::from_utf8(bytes).map_err(|e| {
        let good = &bytes[..e.valid_up_to()];
        let line = 1 + String::from_utf8_lossy(good).matches('\n').count();
        YamlError { line, message: "is no UTF-8 text; save the file as UTF-8".to_owned() }
    })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if let Some(at) = text.find('\0') {
        let line = 1 + text[..at].matches('\n').count();
        return Err(YamlError { line, message: "holds NUL bytes; it is no text file".to_owned() });
    }
    let mut options = granit_parser::Options::default();
    options.set_emit_comments(false);
    // The parser's bounds on its own state; those of the tree are in `Builder`.
    options.flow_nesting_limit = limits::MANIFEST_DEPTH_MAX + 1;
    options.block_nesting_limit = limits::MANIFEST_DEPTH_MAX + 1;
    let mut parser = Parser::new_from_str_with_options(text, options);
    let mut number: u32 = 0;
    loop {
        let mut builder = Builder::default();
        let outcome = loop {
            match parser.next_event() {
                None | Some(Ok((Event::StreamEnd, _))) => return Ok(()),
                Some(Ok((Event::DocumentStart(..), span))) => {
                    number += 1;
                    if number as usize > limits::MANIFEST_DOCUMENTS_MAX {
                        let max = limits::MANIFEST_DOCUMENTS_MAX;
                        let message =
                            format!("has more than {max} documents; spread them over several files");
                        return Err(YamlError { line: span.start.line(), message });
                    }
                }
                Some(Ok((Event::DocumentEnd, _))) => break Ok(builder.done.take()),
                Some(Ok((event, span))) => {
                    if let Err(message) = builder.take(event, text, &span) {
                        break Err((YamlError { line: span.start.line(), message }, false));
                    }
                }
                Some(Err(error)) => break Err((syntax(&error), true)),
            }
        };
        match outcome {
            Ok(None | Some(Node::Null)) => {}
            Ok(Some(node)) => each(number, Ok(node)),
            Err((error, scan_failed)) => {
                // An error before the first document's start belongs to it.
                each(number.max(1), Err(error));
                number = number.max(1);
                drop(builder);
                match parser.proceed_next_document() {
                    Ok(true) => {}
                    Ok(false) => return Ok(()),
                    // The same syntax error again: what follows cannot be separated into documents.
                    Err(_) if scan_failed => return Ok(()),
                    Err(error) => return Err(syntax(&error)),
                }
            }
        }
    }
}

fn syntax(error: &ScanError) -> YamlError {
    if matches!(error.kind(), ErrorKind::RecursionLimitExceeded) {
        return YamlError { line: error.marker().line(), message: too_deep() };
    }
    let column = error.marker().col() + 1;
    YamlError {
        line: error.marker().line(),
        message: format!("is no YAML: {} (column {column})", error.info()),
    }
}

/// A list or map that is still open.
struct Frame {
    entries: Entries,
    anchor: usize,
    /// Levels below this one.
    height: usize,
}

enum Entries {
    List(Vec<Node>),
    Map { entries: Vec<(Box<str>, Node)>, key: Option<Key>, merged: Vec<Node> },
}

enum Key {
    Field(Box<str>),
    Merge,
}

/// Builds one document.
#[derive(Default)]
struct Builder {
    stack: Vec<Frame>,
    /// Finished anchors with their heights; an open one is not included, so no alias can contain itself.
    anchors: Vec<(usize, Node, usize)>,
    nodes: usize,
    text_bytes: usize,
    done: Option<Node>,
}

type Taken = Result<(), String>;

impl Builder {
    fn take(&mut self, event: Event<'_>, text: &str, span: &Span) -> Taken {
        match event {
            Event::Scalar(value, style, anchor, tag) => {
                self.pay(1, value.len())?;
                if let Some(key) = self.wanted_key(&value, style, tag.as_deref())? {
                    self.key(key);
                    return Ok(());
                }
                let node = scalar(value, style, tag.as_deref())?;
                self.value(node, 0, anchor)
            }
            Event::SequenceStart(_, anchor, tag) => {
                core_tag(tag.as_deref(), "seq")?;
                self.open(Entries::List(Vec::new()), anchor)
            }
            Event::MappingStart(_, anchor, tag) => {
                core_tag(tag.as_deref(), "map")?;
                self.open(Entries::Map { entries: Vec::new(), key: None, merged: Vec::new() }, anchor)
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(),
            Event::Alias(id) => {
                let Some((_, node, height)) = self.anchors.iter().rev().find(|(anchor, ..)| *anchor == id)
                else {
                    return Err(format!("alias {} is part of what it stands for", alias_name(text, span)));
                };
                let (nodes, bytes) = node.weigh();
                let (node, height) = (node.clone(), *height);
                self.pay(nodes, bytes)?;
                self.value(node, height, 0)
            }
            Event::StreamStart | Event::StreamEnd | Event::DocumentStart(..) | Event::DocumentEnd => Ok(()),
            // Events that are not enabled, or of a later parser: never skipped, because they may stand for a node.
            _ => Err("holds something this reader does not know".to_owned()),
        }
    }

    /// Charges the budget before anything is stored.
    fn pay(&mut self, nodes: usize, bytes: usize) -> Taken {
        self.nodes += nodes;
        self.text_bytes += bytes;
        if self.nodes > limits::MANIFEST_NODES_MAX {
            let max = limits::MANIFEST_NODES_MAX;
            return Err(format!("has more than {max} values (aliases count each time); split it"));
        }
        if self.text_bytes > limits::MANIFEST_TEXT_BYTES_MAX {
            let max = limits::MANIFEST_TEXT_BYTES_MAX;
            return Err(format!("has more than {max} bytes of text (aliases count each time); split it"));
        }
        Ok(())
    }

    /// The scalar as a map's key, if a key is expected.
    fn wanted_key(&self, value: &str, style: ScalarStyle, tag: Option<&Tag>) -> Result<Option<Key>, String> {
        let Some(Frame { entries: Entries::Map { key: None, .. }, .. }) = self.stack.last() else {
            return Ok(None);
        };
        let merge = value == "<<"
            && match tag {
                None => style == ScalarStyle::Plain,
                Some(tag) => tag.is_yaml_core_schema_tag("merge"),
            };
        if merge {
            return Ok(Some(Key::Merge));
        }
        Ok(Some(Key::Field(match scalar(Cow::Borrowed(value), style, tag)? {
            Node::Text(text) => text,
            Node::Bool(value) => Box::from(if value { "true" } else { "false" }),
            Node::Int(value) => value.to_string().into(),
            Node::Float(value) => value.to_string().into(),
            Node::Null | Node::List(_) | Node::Map(_) => return Err("a map's key is null".to_owned()),
        })))
    }

    fn key(&mut self, new: Key) {
        if let Some(Frame { entries: Entries::Map { key, .. }, .. }) = self.stack.last_mut() {
            *key = Some(new);
        }
    }

    fn open(&mut self, entries: Entries, anchor: usize) -> Taken {
        self.pay(1, 0)?;
        if self.stack.len() >= limits::MANIFEST_DEPTH_MAX {
            return Err(too_deep());
        }
        if let Some(Frame { entries: Entries::Map { key: None, .. }, .. }) = self.stack.last() {
            return Err("a map's key is a list or a map; a key must be text".to_owned());
        }
        self.stack.push(Frame { entries, anchor, height: 0 });
        Ok(())
    }

    fn close(&mut self) -> Taken {
        let Some(frame) = self.stack.pop() else { return Ok(()) };
        let node = match frame.entries {
            Entries::List(items) => Node::List(items),
            Entries::Map { mut entries, merged, .. } => {
                self.merge(&mut entries, merged)?;
                if let Some(key) = repeated_key(&entries) {
                    return Err(format!("key {} is given twice", quoted(key)));
                }
                Node::Map(entries)
            }
        };
        self.value(node, frame.height + 1, frame.anchor)
    }

    /// `<<`: adds keys of the merged maps that the map itself does not have; an earlier merged map takes precedence.
    fn merge(&mut self, entries: &mut Vec<(Box<str>, Node)>, merged: Vec<Node>) -> Taken {
        for node in merged {
            let maps = if let Node::List(items) = node { items } else { vec![node] };
            for map in maps {
                let Node::Map(from) = map else {
                    return Err(format!("merge key << takes a map or a list of maps, not {map}"));
                };
                let own = entries.len();
                // Charges each look-up by its length, so that merges cannot be made to take minutes.
                self.pay(from.len() * own / 64, 0)?;
                for (key, value) in from {
                    if !entries[..own].iter().any(|(k, _)| *k == key) {
                        entries.push((key, value));
                    }
                }
            }
        }
        Ok(())
    }

    fn value(&mut self, node: Node, height: usize, anchor: usize) -> Taken {
        if self.stack.len() + height > limits::MANIFEST_DEPTH_MAX {
            return Err(too_deep());
        }
        if anchor != 0 {
            let (nodes, bytes) = node.weigh();
            self.pay(nodes, bytes)?;
            self.anchors.push((anchor, node.clone(), height));
        }
        let Some(frame) = self.stack.last_mut() else {
            self.done = Some(node);
            return Ok(());
        };
        frame.height = frame.height.max(height);
        match &mut frame.entries {
            Entries::List(items) => items.push(node),
            Entries::Map { entries, key, merged } => match (key.take(), node) {
                (Some(Key::Field(field)), node) => entries.push((field, node)),
                (Some(Key::Merge), node) => merged.push(node),
                // An alias as a key.
                (None, Node::Text(text)) => *key = Some(Key::Field(text)),
                (None, _) => return Err("a map's key is an alias of something that is no text".to_owned()),
            },
        }
        Ok(())
    }
}

fn too_deep() -> String {
    format!("is nested deeper than {} levels", limits::MANIFEST_DEPTH_MAX)
}

fn alias_name(text: &str, span: &Span) -> String {
    quoted(span.slice(text).unwrap_or("*"))
}

fn repeated_key(entries: &[(Box<str>, Node)]) -> Option<&str> {
    if entries.len() <= 8 {
        // The common case without an allocation.
        return entries
            .iter()
            .enumerate()
            .find(|(at, (key, _))| entries[..*at].iter().any(|(k, _)| k == key))
            .map(|(_, (key, _))| &**key);
    }
    let mut keys: Vec<&str> = entries.iter().map(|(key, _)| &**key).collect();
    keys.sort_unstable();
    keys.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
}

/// A tag on a list or map must be that of its type.
fn core_tag(tag: Option<&Tag>, wanted: &str) -> Taken {
    match tag {
        None => Ok(()),
        Some(tag) if tag.is_yaml_core_schema_tag(wanted) => Ok(()),
        Some(tag) => Err(format!("tag {} is not known here", quoted(&tag.original()))),
    }
}

/// A scalar's value by the rules of go-yaml v2's `resolve`, which sigs.k8s.io/yaml uses.
fn scalar(value: Cow<'_, str>, style: ScalarStyle, tag: Option<&Tag>) -> Result<Node, String> {
    let text = |value: Cow<'_, str>| Node::Text(value.into_owned().into());
    let Some(tag) = tag else {
        return if style == ScalarStyle::Plain { plain(value) } else { Ok(text(value)) };
    };
    let no_fit = |value: &str| format!("{} does not fit its tag {}", quoted(value), quoted(&tag.original()));
    let wanted: fn(&Node) -> bool = match tag.core_suffix() {
        Some("str") => return Ok(text(value)),
        Some("null") => |node| matches!(node, Node::Null),
        Some("bool") => |node| matches!(node, Node::Bool(_)),
        Some("int") => |node| matches!(node, Node::Int(_)),
        Some("float") => |node| matches!(node, Node::Int(_) | Node::Float(_)),
        _ => return Err(format!("tag {} is not known here", quoted(&tag.original()))),
    };
    let shown = value.clone().into_owned();
    plain(value).ok().filter(wanted).ok_or_else(|| no_fit(&shown))
}

fn plain(value: Cow<'_, str>) -> Result<Node, String> {
    Ok(match &*value {
        "" | "~" | "null" | "Null" | "NULL" => Node::Null,
        "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" | "y" | "Y" => Node::Bool(true),
        "false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF" | "n" | "N" => {
            Node::Bool(false)
        }
        ".nan" | ".NaN" | ".NAN" | ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" | "-.inf"
        | "-.Inf" | "-.INF" => return Err(format!("{} is no number that JSON has", quoted(&value))),
        other => match number(other) {
            Some(Node::Float(float)) if !float.is_finite() => {
                return Err(format!("{} is too large for a number", quoted(other)));
            }
            Some(number) => number,
            None => Node::Text(value.into_owned().into()),
        },
    })
}

/// Integers with Go's base prefixes (`0x`, `0o`, `0b` and the old octal `0644`), and decimal floats.
fn number(text: &str) -> Option<Node> {
    if !text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) {
        return None;
    }
    let cleaned: Cow<'_, str> =
        if text.contains('_') { Cow::Owned(text.replace('_', "")) } else { Cow::Borrowed(text) };
    let (negative, digits) = match cleaned.as_bytes() {
        [b'-', ..] => (true, &cleaned[1..]),
        [b'+', ..] => (false, &cleaned[1..]),
        _ => (false, &cleaned[..]),
    };
    let (radix, bare) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &digits[2..]),
        [b'0', b'o' | b'O', ..] => (8, &digits[2..]),
        [b'0', b'b' | b'B', ..] => (2, &digits[2..]),
        [b'0', rest @ ..] if !rest.is_empty() => (8, &digits[1..]),
        _ => (10, digits),
    };
    if !bare.is_empty()
        && bare.bytes().all(|b| b.is_ascii_alphanumeric())
        && let Ok(value) = i128::from_str_radix(bare, radix)
    {
        let value = if negative { -value } else { value };
        if let Ok(value) = i64::try_from(value) {
            return Some(Node::Int(value));
        }
    }
    // go-yaml's pattern: [-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?
    let (mantissa, exponent) = match digits.find(['e', 'E']) {
        Some(at) => (&digits[..at], Some(digits[at + 1..].trim_start_matches(['+', '-']))),
        None => (digits, None),
    };
    let (whole, fraction) = mantissa.split_once('.').map_or((mantissa, None), |(w, f)| (w, Some(f)));
    let all_digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    let shaped = all_digits(whole)
        && fraction.is_none_or(all_digits)
        && !(whole.is_empty() && fraction.is_none_or(str::is_empty))
        && exponent.is_none_or(|e| !e.is_empty() && all_digits(e));
    // A second sign after the exponent would be trimmed above; parsing decides.
    let float = decimal(digits).filter(|_| shaped)?;
    Some(Node::Float(if negative { -float } else { float }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> Vec<(u32, Result<Node, YamlError>)> {
        let mut got = Vec::new();
        if let Err(error) = documents(text.as_bytes(), |number, outcome| got.push((number, outcome))) {
            got.push((0, Err(error)));
        }
        got
    }

    fn one(text: &str) -> Node {
        let mut got = all(text);
        assert_eq!(got.len(), 1, "{text}: {got:?}");
        got.remove(0).1.expect(text)
    }

    fn refusal(text: &str) -> String {
        let got = all(text);
        assert_eq!(got.len(), 1, "{text}: {got:?}");
        match &got[0].1 {
            Err(error) => format!("{}: {}", error.line, error.message),
            Ok(node) => panic!("{text} was read as {node:?}"),
        }
    }

    #[test]
    fn scalars_follow_yaml_1_1_as_kubernetes_reads_it() {
        let text = |t: &str| Node::Text(t.into());
        for (written, read) in [
            ("yes", Node::Bool(true)),
            ("On", Node::Bool(true)),
            ("off", Node::Bool(false)),
            ("'yes'", text("yes")),
            ("\"true\"", text("true")),
            ("yEs", text("yEs")),
            ("~", Node::Null),
            ("NULL", Node::Null),
            ("0644", Node::Int(420)),
            ("0o644", Node::Int(420)),
            ("0x1F", Node::Int(31)),
            ("0b101", Node::Int(5)),
            ("1_000", Node::Int(1000)),
            ("-17", Node::Int(-17)),
            ("+17", Node::Int(17)),
            ("0", Node::Int(0)),
            ("0899", Node::Float(899.0)),
            ("1.5", Node::Float(1.5)),
            ("1e3", Node::Float(1000.0)),
            (".5", Node::Float(0.5)),
            ("1.2.3", text("1.2.3")),
            ("500m", text("500m")),
            ("0.5Gi", text("0.5Gi")),
            ("-", text("-")),
            (".", text(".")),
            ("1e", text("1e")),
            ("2026-01-02", text("2026-01-02")),
            ("12:30", text("12:30")),
            ("9223372036854775807", Node::Int(i64::MAX)),
            ("9223372036854775808", Node::Float(9_223_372_036_854_775_808.0)),
            ("!!str 12", text("12")),
            ("!!int '12'", Node::Int(12)),
        ] {
            if written == "-" {
                continue; // A lone dash is a list, not a scalar.
            }
            assert_eq!(one(&format!("k: {written}")).field("k").unwrap_or(&Node::Null), &read, "{written}");
        }
    }

    #[test]
    fn keys_are_text_as_json_has_it() {
        let node = one("1: a\ntrue: b\nyes2: c\n1.5: d\n");
        for key in ["1", "true", "yes2", "1.5"] {
            assert!(node.field(key).is_some(), "{key} in {node:?}");
        }
    }

    #[test]
    fn merge_keys_and_aliases_are_expanded() {
        let node = one("base: &b {a: 1, c: 2}\nx: {<<: *b, a: 3}\nw: *b\nz: {<<: [*b, {d: 4}]}\n");
        assert_eq!(node.field("x").and_then(|x| x.field("a")), Some(&Node::Int(3)));
        assert_eq!(node.field("x").and_then(|x| x.field("c")), Some(&Node::Int(2)));
        assert_eq!(node.field("w").and_then(|w| w.field("a")), Some(&Node::Int(1)));
        assert_eq!(node.field("z").and_then(|x| x.field("d")), Some(&Node::Int(4)));
    }

    #[test]
    fn json_is_read_as_yaml() {
        let node = one("{\n\t\"a\": [1, 2.5, null, true, \"\\ud83d\\ude00\\/\"],\"b\":{\"c\":\"x: y\"}}");
        let text = node.field("a").map(Node::items).and_then(|items| items[4].text().map(str::to_owned));
        assert_eq!(text.as_deref(), Some("\u{1f600}/"));
        assert_eq!(node.field("b").and_then(|b| b.field("c")).and_then(Node::text), Some("x: y"));
    }

    #[test]
    fn documents_are_numbered_and_empty_ones_passed_over() {
        let numbers = |text| all(text).iter().map(|(n, o)| (*n, o.is_ok())).collect::<Vec<_>>();
        assert_eq!(numbers("a: 1\n---\nb: 2\n"), [(1, true), (2, true)]);
        assert_eq!(numbers("# licence\n---\na: 1\n---\n---\nb: 2\n...\n"), [(1, true), (3, true)]);
        assert_eq!(numbers(""), []);
        assert_eq!(numbers("# only\n# comments\n"), []);
        assert_eq!(numbers("\u{feff}a: 1\r\nb:\r\n- 2\r\n"), [(1, true)]);
        assert_eq!(
            numbers("a: 1\na: 2\n---\nb: 1\n"),
            [(1, false), (2, true)],
            "a bad document hides no other"
        );
        assert_eq!(numbers("a: [1\n---\nb: 1\n"), [(1, false), (2, true)]);
    }

    #[test]
    fn what_cannot_be_read_says_where_and_why() {
        for (text, says) in [
            ("a: 1\nb: 2\na: 3\n", "key \"a\" is given twice"),
            ("a: &x [*x]\n", "alias \"*x\" is part of what it stands for"),
            ("a: *x\n", "unknown anchor"),
            ("a: .nan\n", "no number that JSON has"),
            ("a: 1e999\n", "too large"),
            ("a: !!python/object:os.system x\n", "tag"),
            ("a: !foo [1]\n", "tag"),
            ("a: !!int x\n", "does not fit its tag"),
            ("? [a]\n: b\n", "a key must be text"),
            ("~: b\n", "key is null"),
            ("a: \"b\n", "is no YAML"),
            ("a:\n\t- b\n", "is no YAML"),
            ("a: b: c\n", "is no YAML"),
            ("x: {<<: 1}\n", "merge key << takes a map"),
            ("a\0b", "NUL"),
        ] {
            let message = refusal(text);
            assert!(message.contains(says), "{text:?}: {message}");
        }
        let got = documents(b"a: 1\nb: \xff\n", |_, _| {}).expect_err("not UTF-8");
        assert_eq!((got.line, got.message.contains("UTF-8")), (2, true));
    }

    #[test]
    fn budgets_hold_against_bombs() {
        let mut laughs = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
        for level in 1..10 {
            let refs = vec![format!("*a{}", level - 1); 10].join(", ");
            laughs.extend([format!("a{level}: &a{level} [{refs}]\n")]);
        }
        // Each anchor is no deeper than one list, but the chain is.
        let mut chain = String::from("a0: &a0 [x]\n");
        for level in 1..200 {
            chain.extend([format!("a{level}: &a{level} [*a{}]\n", level - 1)]);
        }
        for (text, says) in [
            (laughs, "values"),
            (chain, "deeper than 64 levels"),
            ("[".repeat(100_000), "nested"),
            (format!("{}x", "- ".repeat(5_000)), "nested"),
            (format!("a: [{}]", "1,".repeat(40_000)), "values"),
            (format!("a: &a \"{}\"\nb: *a\nc: *a\nd: *a\n", "x".repeat(700_000)), "bytes of text"),
        ] {
            let message = refusal(&text);
            assert!(message.contains(says), "{message}");
        }
        let many = "--- {}\n".repeat(10_000);
        let got = all(&many);
        assert_eq!(got.len(), limits::MANIFEST_DOCUMENTS_MAX + 1);
        assert!(got.last().is_some_and(|(_, o)| o.as_ref().is_err_and(|e| e.message.contains("documents"))));
    }
}
