//! Parses TOML into a tree. PURE.
//!
//! The tree is built from parser events on an explicit stack: nothing here recurses over the input. What is valid TOML is read as
//! its specification has it; of what is not, keys that come twice, values that are tables elsewhere and wrong syntax are refused,
//! while a table that dotted keys have made may be named by a header.

use std::mem::take;

use toml_parser::decoder::ScalarKind;
use toml_parser::parser::{Event, EventKind, RecursionGuard, parse_document};
use toml_parser::{Expected, ParseError, Source};

use super::{Node, quoted};
use crate::limits::MANIFEST_DEPTH_MAX;

type Key = Box<str>;

/// Parses a document; its tables are maps in the order of the file.
///
/// # Errors
/// A sentence with the line. Numbers with a point and times, which no file of ours has, are refused too, and what is nested deeper
/// than `MANIFEST_DEPTH_MAX`.
pub fn document(text: &str) -> Result<Node, String> {
    let source = Source::new(text);
    let tokens = source.lex().into_vec();
    let (mut events, mut error) = (Vec::<Event>::new(), None);
    let depth_max = u32::try_from(MANIFEST_DEPTH_MAX).unwrap_or_default();
    parse_document(&tokens, &mut RecursionGuard::new(&mut events, depth_max), &mut error);
    let mut builder = Builder {
        root: Node::Map(Vec::new()),
        table: Vec::new(),
        headers: Vec::new(),
        keys: Vec::new(),
        open: Vec::new(),
    };
    for event in &events {
        let at = event.span().start();
        if error.is_none() {
            builder.take(&source, *event, &mut error).map_err(|why| placed(text, at, &why))?;
        }
    }
    error.map_or(Ok(builder.root), |error| Err(described(text, &error)))
}

fn placed(text: &str, at: usize, why: &str) -> String {
    let before = text.as_bytes().iter().take(at);
    format!("line {}: {why}", 1 + before.filter(|byte| **byte == b'\n').count())
}

fn described(text: &str, error: &ParseError) -> String {
    let at = error.unexpected().or(error.context()).map_or(text.len(), |span| span.start());
    let expected = error.expected().and_then(<[Expected]>::first).and_then(|first| match first {
        Expected::Literal(word) => Some(quoted(word)),
        Expected::Description(words) => Some((*words).to_owned()),
        _ => None,
    });
    let expected = expected.map(|word| format!("; expected {word}")).unwrap_or_default();
    placed(text, at, &format!("{}{expected}", error.description()))
}

struct Builder {
    root: Node,
    /// The table that key-value pairs are for now.
    table: Vec<Key>,
    /// Tables that had their header already.
    headers: Vec<Vec<Key>>,
    /// Parts of the key that is being read.
    keys: Vec<Key>,
    /// Arrays and inline tables that are open, each with the key that it is for.
    open: Vec<(Vec<Key>, Node)>,
}

impl Builder {
    fn take(
        &mut self,
        source: &Source<'_>,
        event: Event,
        error: &mut Option<ParseError>,
    ) -> Result<(), String> {
        let raw = source.get(event).ok_or("is outside the text")?;
        match event.kind() {
            EventKind::SimpleKey => {
                let mut key = String::new();
                raw.decode_key(&mut key, error);
                self.keys.push(key.into());
                let outer: usize = self.open.iter().map(|(keys, _)| keys.len() + 1).sum();
                if self.table.len() + outer + self.keys.len() > MANIFEST_DEPTH_MAX {
                    return Err(format!("is nested deeper than {MANIFEST_DEPTH_MAX} levels"));
                }
            }
            EventKind::StdTableClose => {
                let path = take(&mut self.keys);
                let Node::Map(_) = within(&mut self.root, &path)? else { return Err(is_taken(&path)) };
                if self.headers.contains(&path) {
                    return Err(format!("the table {} is there twice", shown(&path)));
                }
                self.headers.push(path.clone());
                self.table = path;
            }
            EventKind::ArrayTableClose => {
                let path = take(&mut self.keys);
                let (last, before) = path.split_last().ok_or("has no name")?;
                let Node::Map(entries) = within(&mut self.root, before)? else {
                    return Err(is_taken(before));
                };
                let empty = Node::Map(Vec::new());
                match entries.iter_mut().find(|(key, _)| key == last) {
                    None => entries.push((last.clone(), Node::List(vec![empty]))),
                    Some((_, Node::List(tables))) if matches!(tables.last(), Some(Node::Map(_))) => {
                        tables.push(empty);
                    }
                    Some(_) => return Err(is_taken(&path)),
                }
                self.headers.retain(|header| !header.starts_with(&path));
                self.table = path;
            }
            EventKind::Scalar => {
                let mut value = String::new();
                let node = match raw.decode_scalar(&mut value, error) {
                    ScalarKind::String => Node::Text(value.into()),
                    ScalarKind::Boolean(value) => Node::Bool(value),
                    ScalarKind::Integer(radix) => {
                        let number = i64::from_str_radix(&value, radix.value());
                        Node::Int(number.map_err(|_| format!("{} is no integer of 64 bits", quoted(&value)))?)
                    }
                    kind @ (ScalarKind::Float | ScalarKind::DateTime) => {
                        return Err(format!(
                            "{} is a {}, which is not supported here",
                            quoted(&value),
                            kind.description()
                        ));
                    }
                };
                self.put(node)?;
            }
            EventKind::ArrayOpen => self.open.push((take(&mut self.keys), Node::List(Vec::new()))),
            EventKind::InlineTableOpen => self.open.push((take(&mut self.keys), Node::Map(Vec::new()))),
            EventKind::ArrayClose | EventKind::InlineTableClose => {
                let (keys, node) = self.open.pop().ok_or("closes what is not open")?;
                self.keys = keys;
                self.put(node)?;
            }
            EventKind::Comment => raw.decode_comment(error),
            EventKind::Newline => raw.decode_newline(error),
            EventKind::StdTableOpen | EventKind::ArrayTableOpen => self.table.clear(),
            EventKind::KeySep
            | EventKind::KeyValSep
            | EventKind::ValueSep
            | EventKind::Whitespace
            | EventKind::Error => {}
        }
        Ok(())
    }

    /// A value for the key that was read, or the next one of an array.
    fn put(&mut self, value: Node) -> Result<(), String> {
        let path = take(&mut self.keys);
        let target = match self.open.last_mut() {
            Some((_, Node::List(items))) => {
                items.push(value);
                return Ok(());
            }
            Some((_, table)) => table,
            None => within(&mut self.root, &self.table)?,
        };
        let (last, before) = path.split_last().ok_or("has no key")?;
        let Node::Map(entries) = within(target, before)? else { return Err(is_taken(before)) };
        if entries.iter().any(|(key, _)| key == last) {
            return Err(format!("the key {} is there twice", shown(&path)));
        }
        entries.push((last.clone(), value));
        Ok(())
    }
}

/// The table at `path`, made where it is missing; of an array of tables it is the last.
fn within<'n>(mut node: &'n mut Node, path: &[Key]) -> Result<&'n mut Node, String> {
    for (depth, key) in path.iter().enumerate() {
        let Node::Map(entries) = node else { return Err(is_taken(&path[..depth])) };
        let known = entries.iter().position(|(of, _)| of == key);
        let place = known.unwrap_or_else(|| {
            entries.push((key.clone(), Node::Map(Vec::new())));
            entries.len() - 1
        });
        node = match &mut entries[place].1 {
            Node::List(tables) => tables.last_mut().ok_or_else(|| is_taken(&path[..=depth]))?,
            node => node,
        };
    }
    Ok(node)
}

fn is_taken(path: &[Key]) -> String {
    format!("the key {} has a value, and is no table", shown(path))
}

fn shown(path: &[Key]) -> String {
    path.iter().map(|key| quoted(key)).collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tree as text: keys bare, maps in braces.
    fn shown_tree(node: &Node) -> String {
        match node {
            Node::List(items) => {
                format!("[{}]", items.iter().map(shown_tree).collect::<Vec<_>>().join(","))
            }
            Node::Map(entries) => {
                let entry = |(key, value): &(Key, Node)| format!("{key}={}", shown_tree(value));
                format!("{{{}}}", entries.iter().map(entry).collect::<Vec<_>>().join(","))
            }
            scalar => scalar.to_string(),
        }
    }

    #[test]
    fn documents_become_trees() {
        for (text, tree) in [
            ("", "{}"),
            ("# only words\r\n", "{}"),
            ("a = 1\nb = -7\nc = 1_000\nd = 0xFf\ne = 0o17\nf = 0b101", "{a=1,b=-7,c=1000,d=255,e=15,f=5}"),
            ("a = true\nb = false", "{a=true,b=false}"),
            (r#"a = "x\ny\u00e9" # words"#, r#"{a="x\nyé"}"#),
            (r"a = 'C:\n'", r#"{a="C:\\n"}"#),
            ("a = \"\"\"\nx\ny\"\"\"", r#"{a="x\ny"}"#),
            ("a = '''\nx'''", r#"{a="x"}"#),
            ("a = [1, [\"x\", 'y'], {b = 2}]", r#"{a=[1,["x","y"],{b=2}]}"#),
            ("a = [\n  1, # one\n  2,\n]", "{a=[1,2]}"),
            ("a = []\nb = {}", "{a=[],b={}}"),
            ("a = {b = {c = 1}, d.e = 2}", "{a={b={c=1},d={e=2}}}"),
            ("a.b = 1\na.\"c d\" = 2\na.'e'.f = 3", "{a={b=1,c d=2,e={f=3}}}"),
            ("x = 1\n[a]\ny = 2\n[a.b]\nz = 3\n[c.d]", "{x=1,a={y=2,b={z=3}},c={d={}}}"),
            ("[a.b]\nx = 1\n[a]\ny = 2", "{a={b={x=1},y=2}}"),
            ("[host.\"https://a.io:5\"]\nca = \"x\"", r#"{host={https://a.io:5={ca="x"}}}"#),
            (
                "[[a]]\nx = 1\n[a.b]\ny = 2\n[[a]]\n[a.b]\ny = 3\n[[a.c]]\nz = 4",
                "{a=[{x=1,b={y=2}},{b={y=3},c=[{z=4}]}]}",
            ),
        ] {
            assert_eq!(document(text).as_ref().map(shown_tree), Ok(tree.to_owned()), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (text, error) in [
            ("[host", "line 1: unclosed table; expected"),
            ("a = 1\nb", "line 2: key with no value; expected \"=\""),
            ("a = 1\n\na = 2", "line 3: the key \"a\" is there twice"),
            ("a = {b = 1, b = 2}", "line 1: the key \"b\" is there twice"),
            ("a = 1\na.b = 2", "line 2: the key \"a\" has a value, and is no table"),
            ("a = [1]\n[a.b]", "line 2: the key \"a\" has a value"),
            ("a = []\n[a]", "line 2: the key \"a\" has a value"),
            ("a = 1\n[a]", "line 2: the key \"a\" has a value"),
            ("[a]\n[b]\n[a]", "line 3: the table \"a\" is there twice"),
            ("[a]\n[[a]]", "line 2: the key \"a\" has a value"),
            ("a = 1.5", "line 1: \"1.5\" is a float, which is not supported here"),
            ("a = 1979-05-27", "is a date-time, which is not supported here"),
            ("a = 9223372036854775808", "\"9223372036854775808\" is no integer of 64 bits"),
            ("a = yes", "line 1: "),
            ("a = -0x0", "line 1: "),
            ("a = \"x", "line 1: "),
            (r#"a = "\q""#, "line 1: "),
            ("a = 1 b = 2", "line 1: "),
            ("a = [1 2]", "line 1: "),
            ("a = \"x\0\"", "line 1: "),
        ] {
            let found = document(text).expect_err(text);
            assert!(found.contains(error), "{text}: {found}");
        }
    }

    #[test]
    fn depth_is_bounded_however_it_is_written() {
        let path = |depth: usize| vec!["a"; depth].join(".");
        let lists = |depth: usize| format!("a = {}{}", "[".repeat(depth), "]".repeat(depth));
        let tables = |depth: usize| format!("a = {}1{}", "{a = ".repeat(depth), "}".repeat(depth));
        let limit = MANIFEST_DEPTH_MAX;
        for (fits, deep) in [
            (format!("{} = 1", path(limit)), format!("{} = 1", path(limit + 1))),
            (format!("[{}]", path(limit)), format!("[{}]", path(limit + 1))),
            (format!("[{}]\nb.c = 1", path(limit - 2)), format!("[{}]\nb.c = 1", path(limit - 1))),
            (lists(limit), lists(limit + 1)),
            (tables(limit / 2 - 1), tables(limit)),
        ] {
            assert!(document(&fits).is_ok(), "{fits}: {:?}", document(&fits));
            let found = document(&deep).expect_err(&deep);
            assert!(found.contains("deeper than 64 levels") || found.contains("recursion"), "{found}");
        }
        // What is not closed again ends too.
        assert!(document(&format!("a = {}", "[".repeat(100_000))).is_err());
    }
}
