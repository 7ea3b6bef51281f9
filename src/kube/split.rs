//! Splits the JSON of a list or a watch into its objects while it is received. PURE.
//!
//! A list is one document, as long as all its items; a watch is one document after another. Either way no more than one object is
//! held: the items of a list are removed from it as they are received, and the rest is its head.

use crate::limits::{KUBE_HEAD_BYTES_MAX, KUBE_OBJECT_BYTES_MAX};

/// The structure of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// `{"metadata": …, "items": [{…}, {…}]}`.
    List,
    /// `{…} {…} …`.
    Documents,
}

/// Malformed JSON of a list or watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitError {
    /// The input is not such JSON.
    Malformed,
    /// A list has more than `KUBE_HEAD_BYTES_MAX` bytes besides its items.
    Head,
}

/// An incremental splitter.
#[derive(Debug)]
pub struct Splitter {
    shape: Shape,
    /// Number of open brackets.
    depth: u32,
    in_text: bool,
    escaped: bool,
    in_items: bool,
    item: Vec<u8>,
    /// The item is longer than `KUBE_OBJECT_BYTES_MAX`: the rest of it is dropped.
    too_long: bool,
    head: Vec<u8>,
}

impl Splitter {
    /// A splitter without input.
    pub fn new(shape: Shape) -> Self {
        Self {
            shape,
            depth: 0,
            in_text: false,
            escaped: false,
            in_items: false,
            item: Vec::new(),
            too_long: false,
            head: Vec::new(),
        }
    }

    /// Processes the next bytes. `each` gets every object that ends in them, whole; one longer than `KUBE_OBJECT_BYTES_MAX` is
    /// reported as `None`.
    pub fn feed(&mut self, bytes: &[u8], each: &mut dyn FnMut(Option<&[u8]>)) -> Result<(), SplitError> {
        for &byte in bytes {
            self.take(byte, each)?;
        }
        Ok(())
    }

    fn take(&mut self, byte: u8, each: &mut dyn FnMut(Option<&[u8]>)) -> Result<(), SplitError> {
        let item_depth = self.item_depth();
        if self.in_text {
            self.keep(byte)?;
            if self.escaped {
                self.escaped = false;
            } else if byte == b'\\' {
                self.escaped = true;
            } else if byte == b'"' {
                self.in_text = false;
            }
            return Ok(());
        }
        match byte {
            b'"' if self.depth == 0 => Err(SplitError::Malformed),
            b'"' => {
                self.in_text = true;
                self.keep(byte)
            }
            b'{' | b'[' => {
                let is_items =
                    self.shape == Shape::List && self.depth == 1 && byte == b'[' && self.names_items();
                if self.depth == 0 && byte == b'[' {
                    return Err(SplitError::Malformed);
                }
                self.depth += 1;
                self.keep(byte)?;
                self.in_items |= is_items;
                Ok(())
            }
            b'}' | b']' => {
                if self.depth == 0 {
                    return Err(SplitError::Malformed);
                }
                if self.in_items && self.depth == 2 {
                    self.in_items = false;
                }
                self.keep(byte)?;
                self.depth -= 1;
                if item_depth == Some(self.depth) {
                    each((!self.too_long).then_some(&self.item));
                    self.item.clear();
                    self.too_long = false;
                }
                Ok(())
            }
            // Between items, and between documents.
            _ if Some(self.depth) == item_depth => Ok(()),
            _ => self.keep(byte),
        }
    }

    /// The depth of items, when the bytes belong to items now.
    fn item_depth(&self) -> Option<u32> {
        match self.shape {
            Shape::Documents => Some(0),
            Shape::List => self.in_items.then_some(2),
        }
    }

    /// The last string is the key of the items.
    fn names_items(&self) -> bool {
        let Some(key) = self.head.trim_ascii_end().strip_suffix(b":") else { return false };
        key.trim_ascii_end().ends_with(b"\"items\"")
    }

    fn keep(&mut self, byte: u8) -> Result<(), SplitError> {
        if self.item_depth().is_some() {
            if self.item.len() < KUBE_OBJECT_BYTES_MAX && !self.too_long {
                self.item.push(byte);
            } else {
                self.too_long = true;
                self.item = Vec::new();
            }
        } else if self.head.len() < KUBE_HEAD_BYTES_MAX {
            self.head.push(byte);
        } else {
            return Err(SplitError::Head);
        }
        Ok(())
    }

    /// The list without its items, once it has ended.
    pub fn head(&self) -> Option<&[u8]> {
        (self.depth == 0 && !self.head.is_empty()).then_some(&self.head)
    }

    /// Frees the buffer of a large object.
    pub fn shrink(&mut self) {
        if self.item.is_empty() {
            self.item = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Objects and head, or the error.
    type Parts = Result<(Vec<String>, Option<String>), SplitError>;

    /// The objects of the text, fed in pieces of every size, and its head.
    fn split(shape: Shape, text: &str) -> Parts {
        let mut all: Option<Parts> = None;
        for size in 1..=text.len().max(1) {
            let mut splitter = Splitter::new(shape);
            let mut found = Vec::new();
            let fed = text.as_bytes().chunks(size).try_for_each(|chunk| {
                splitter.feed(chunk, &mut |item| {
                    found
                        .push(item.map_or("-".to_owned(), |item| String::from_utf8_lossy(item).into_owned()));
                })
            });
            let head = splitter.head().map(|head| String::from_utf8_lossy(head).into_owned());
            let outcome = fed.map(|()| (found, head));
            if let Some(before) = &all {
                assert_eq!(*before, outcome, "in pieces of {size}");
            }
            all = Some(outcome);
        }
        all.expect("at least one size")
    }

    #[test]
    fn lists_and_documents_come_apart() {
        let list = |items: &[&str], head: &str| {
            Ok((items.iter().map(|item| (*item).to_owned()).collect(), Some(head.to_owned())))
        };
        for (text, wanted) in [
            (r#"{"kind":"PodList","items":[]}"#, list(&[], r#"{"kind":"PodList","items":[]}"#)),
            (
                r#"{"metadata":{"resourceVersion":"7"},"items":[{"a":1}, {"b":[{}]}],"x":[1]}"#,
                list(
                    &[r#"{"a":1}"#, r#"{"b":[{}]}"#],
                    r#"{"metadata":{"resourceVersion":"7"},"items":[],"x":[1]}"#,
                ),
            ),
            (
                "{\n \"items\" : [\n {\"q\": \"\\\"]}\"}\n ]\n}\n",
                list(&[r#"{"q": "\"]}"}"#], "{\n \"items\" : []\n}\n"),
            ),
            (r#"{"metadata":{"items":[{"no":1}]}}"#, list(&[], r#"{"metadata":{"items":[{"no":1}]}}"#)),
            (r#"{"items":null}"#, list(&[], r#"{"items":null}"#)),
        ] {
            assert_eq!(split(Shape::List, text), wanted, "{text}");
        }
        let watched = split(Shape::Documents, "{\"a\":\"}\"}\n{\"b\":{}}\n\n{\"c\"");
        assert_eq!(watched, Ok((vec!["{\"a\":\"}\"}".to_owned(), "{\"b\":{}}".to_owned()], None)));
        for text in ["[]", "}", "\"x\"", "{}]"] {
            assert_eq!(split(Shape::Documents, text), Err(SplitError::Malformed), "{text}");
        }
    }

    #[test]
    fn what_is_too_long_is_told_and_what_follows_comes() {
        let long = format!("{{\"a\":\"{}\"}}{{\"b\":1}}", "x".repeat(KUBE_OBJECT_BYTES_MAX));
        let mut splitter = Splitter::new(Shape::Documents);
        let mut found = Vec::new();
        splitter.feed(long.as_bytes(), &mut |item| found.push(item.map(<[u8]>::to_vec))).unwrap();
        assert_eq!(found, [None, Some(b"{\"b\":1}".to_vec())]);
        splitter.shrink();
        assert_eq!(splitter.item.capacity(), 0);
        let head = format!("{{\"a\":\"{}\"", "x".repeat(KUBE_HEAD_BYTES_MAX));
        let mut splitter = Splitter::new(Shape::List);
        assert_eq!(splitter.feed(head.as_bytes(), &mut |_| ()), Err(SplitError::Head));
    }
}
