//! A document's tree → a typed Kubernetes object, strictly: whatever does not fit is an error that names the field
//! and shows the value; unknown and misspelt fields are collected, as `kubectl --validate=strict` does. PURE.
//!
//! The one deserialiser of the big generated types in this binary: a second would cost a copy of all of them.

use std::cell::RefCell;
use std::fmt;

use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::{FieldError, Node, Path};
use crate::limits;

/// Reads `node` as a `T`. `at` is the path of the node itself (`items[2]`, or empty).
///
/// Every error found: at most one type error, and all unknown fields before it (at most `PROBLEMS_PER_FILE_MAX`).
pub fn read<T: de::DeserializeOwned>(node: &Node, at: Path) -> Result<T, Vec<FieldError>> {
    read_with(node, at, true)
}

/// As [`read`], but fields that `T` does not have are passed over: what an API server newer than this version sends.
pub fn read_known<T: de::DeserializeOwned>(node: &Node, at: Path) -> Result<T, Vec<FieldError>> {
    read_with(node, at, false)
}

fn read_with<T: de::DeserializeOwned>(node: &Node, at: Path, strict: bool) -> Result<T, Vec<FieldError>> {
    let context = Context { path: RefCell::new(at), unknown: RefCell::new(Vec::new()) };
    let outcome = T::deserialize(Reader { node, context: &context, fields: &[] });
    let mut errors = context.unknown.into_inner();
    if !strict {
        errors.clear();
    }
    match outcome {
        Ok(value) if errors.is_empty() => return Ok(value),
        Ok(_) => {}
        Err(error) => errors.push(FieldError {
            path: error.path.unwrap_or_default(),
            value: error.value,
            message: error.message,
        }),
    }
    Err(errors)
}

struct Context {
    path: RefCell<Path>,
    unknown: RefCell<Vec<FieldError>>,
}

/// A type error; the reader where it first passes adds the field and the value.
#[derive(Debug)]
struct TypeError {
    path: Option<String>,
    value: Option<String>,
    message: String,
}

impl fmt::Display for TypeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for TypeError {}

impl de::Error for TypeError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self { path: None, value: None, message: message.to_string() }
    }

    fn invalid_type(_: de::Unexpected<'_>, wanted: &dyn de::Expected) -> Self {
        Self { path: None, value: None, message: format!("must be {wanted}") }
    }

    fn invalid_value(_: de::Unexpected<'_>, wanted: &dyn de::Expected) -> Self {
        Self { path: None, value: None, message: format!("must be {wanted}") }
    }
}

#[derive(Clone, Copy)]
struct Reader<'a> {
    node: &'a Node,
    context: &'a Context,
    /// The fields the surrounding object has: what an unknown one may have been meant to be.
    fields: &'static [&'static str],
}

impl Reader<'_> {
    fn refuse(self, message: impl Into<String>) -> TypeError {
        TypeError {
            path: Some(self.context.path.borrow().shown()),
            value: Some(self.node.to_string()),
            message: message.into(),
        }
    }

    /// Completes an error that comes from a type's own visitor.
    fn place<T>(self, outcome: Result<T, TypeError>) -> Result<T, TypeError> {
        outcome.map_err(|error| if error.path.is_some() { error } else { self.refuse(error.message) })
    }

    fn integer(self, min: i64, max: i64) -> Result<i64, TypeError> {
        let value = match *self.node {
            Node::Int(value) => value,
            // 8080.0 and 1e3 are integers in JSON too.
            #[allow(clippy::cast_possible_truncation, reason = "the value is whole and within 2^53")]
            Node::Float(value) if value.fract() == 0.0 && value.abs() < 9e15 => value as i64,
            Node::Text(_) => return Err(self.refuse("must be an integer without quotes")),
            Node::Null | Node::Bool(_) | Node::Float(_) | Node::List(_) | Node::Map(_) => {
                return Err(self.refuse("must be an integer"));
            }
        };
        if (min..=max).contains(&value) {
            Ok(value)
        } else {
            Err(self.refuse(format!("must be an integer between {min} and {max}")))
        }
    }

    fn string(self) -> Result<&'static str, TypeError> {
        Err(self.refuse(match self.node {
            Node::Bool(_) | Node::Int(_) | Node::Float(_) => "must be a string; put it in quotes",
            Node::Null | Node::Text(_) | Node::List(_) | Node::Map(_) => "must be a string",
        }))
    }
}

impl<'de> Deserializer<'de> for Reader<'_> {
    type Error = TypeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TypeError> {
        self.place(match self.node {
            Node::Null => visitor.visit_unit(),
            Node::Bool(value) => visitor.visit_bool(*value),
            Node::Int(value) => visitor.visit_i64(*value),
            Node::Float(value) => visitor.visit_f64(*value),
            Node::Text(text) => visitor.visit_str(text),
            Node::List(_) => self.deserialize_seq(visitor),
            Node::Map(_) => self.deserialize_map(visitor),
        })
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TypeError> {
        match self.node {
            Node::Bool(value) => visitor.visit_bool(*value),
            Node::Text(_) => Err(self.refuse("must be true or false without quotes")),
            Node::Null | Node::Int(_) | Node::Float(_) | Node::List(_) | Node::Map(_) => {
                Err(self.refuse("must be true or false"))
            }
        }
    }

    fn deserialize_i32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TypeError> {
        visitor.visit_i64(self.integer(i64::from(i32::MIN), i64::from(i32::MAX))?)
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TypeError> {
        visitor.visit_i64(self.integer(i64::MIN, i64::MAX)?)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TypeError> {
        match self.node {
            #[allow(clippy::cast_precision_loss, reason = "as JSON's numbers are read")]
            Node::Int(value) => visitor.visit_f64(*value as f64),
            Node::Float(value) => visitor.visit_f64(*value),
            Node::Null | Node::Bool(_) | Node::Text(_) | Node::List(_) | Node::Map(_) => {
                Err(self.refuse("must be a number"))
            }
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TypeError> {
        let text = match self.node {
            Node::Text(text) => text,
            // Go leaves the zero value: `labels: {a: }` is an empty label.
            Node::Null => "",
            Node::Bool(_) | Node::Int(_) | Node::Float(_) | Node::List(_) | Node::Map(_) => self.string()?,
        };
        self.place(visitor.visit_str(text))
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TypeError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TypeError> {
        if matches!(self.node, Node::Null) {
            visitor.visit_none()
        } else {
            self.place(visitor.visit_some(self))
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, TypeError> {
        self.place(visitor.visit_newtype_struct(self))
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TypeError> {
        let Node::List(items) = self.node else { return Err(self.refuse("must be a list")) };
        if items.len() > limits::LIST_ITEMS_MAX {
            return Err(self.refuse(format!("must have at most {} items", limits::LIST_ITEMS_MAX)));
        }
        self.place(visitor.visit_seq(Items { items: items.iter().enumerate(), context: self.context }))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TypeError> {
        let Node::Map(entries) = self.node else { return Err(self.refuse("must be a map")) };
        self.place(visitor.visit_map(Fields {
            entries: entries.iter(),
            value: None,
            context: self.context,
            known: &[],
        }))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, TypeError> {
        let Node::Map(entries) = self.node else {
            return Err(self.refuse(format!("must be an object ({name})")));
        };
        self.place(visitor.visit_map(Fields {
            entries: entries.iter(),
            value: None,
            context: self.context,
            known: fields,
        }))
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TypeError> {
        self.deserialize_str(visitor)
    }

    /// What the generated types call for a field they do not have.
    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TypeError> {
        let mut unknown = self.context.unknown.borrow_mut();
        if unknown.len() < limits::PROBLEMS_PER_FILE_MAX {
            let path = self.context.path.borrow().shown();
            let key = path.rsplit('.').next().unwrap_or_default();
            let message = match nearest(key, self.fields) {
                Some(meant) => format!("unknown field; did you mean {meant}?"),
                None => "unknown field; remove it or correct its name".to_owned(),
            };
            unknown.push(FieldError::new(path, message));
        }
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! {
        i8 i16 i128 u8 u16 u32 u64 u128 f32 char bytes byte_buf unit unit_struct tuple tuple_struct enum
    }
}

struct Items<'a> {
    items: std::iter::Enumerate<std::slice::Iter<'a, Node>>,
    context: &'a Context,
}

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = TypeError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, TypeError> {
        let Some((index, node)) = self.items.next() else { return Ok(None) };
        let mark = self.context.path.borrow_mut().push_index(index);
        let reader = Reader { node, context: self.context, fields: &[] };
        let value = reader.place(seed.deserialize(reader))?;
        self.context.path.borrow_mut().cut(mark);
        Ok(Some(value))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len())
    }
}

struct Fields<'a> {
    entries: std::slice::Iter<'a, (Box<str>, Node)>,
    value: Option<&'a (Box<str>, Node)>,
    context: &'a Context,
    known: &'static [&'static str],
}

impl<'de> MapAccess<'de> for Fields<'_> {
    type Error = TypeError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, TypeError> {
        self.value = self.entries.next();
        match self.value {
            None => Ok(None),
            Some((key, _)) => seed.deserialize(de::value::StrDeserializer::new(key)).map(Some),
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, TypeError> {
        let Some((key, node)) = self.value.take() else {
            return Err(de::Error::custom("a value is read before its key"));
        };
        let mark = self.context.path.borrow_mut().push(key);
        let reader = Reader { node, context: self.context, fields: self.known };
        let value = reader.place(seed.deserialize(reader))?;
        self.context.path.borrow_mut().cut(mark);
        Ok(value)
    }
}

/// The field that `key` was probably meant to be: at most two letters off, and no more than a third of them.
pub(crate) fn nearest(key: &str, fields: &[&'static str]) -> Option<&'static str> {
    let lower = key.to_ascii_lowercase();
    fields
        .iter()
        .map(|field| (distance(&lower, &field.to_ascii_lowercase()), *field))
        .filter(|(off, field)| *off <= 2 && off * 3 <= field.len())
        .min_by_key(|(off, _)| *off)
        .map(|(_, field)| field)
}

/// Levenshtein distance in bytes; field names are short ASCII.
fn distance(a: &str, b: &str) -> usize {
    if a.len().abs_diff(b.len()) > 2 {
        return usize::MAX;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let cost = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = cost.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::yaml::documents;
    use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};

    fn tree(text: &str) -> Node {
        let mut got = None;
        documents(text.as_bytes(), |_, outcome| got = outcome.ok()).expect(text);
        got.expect(text)
    }

    fn shown(errors: &[FieldError]) -> Vec<String> {
        errors
            .iter()
            .map(|e| match &e.value {
                Some(value) => format!("{}: {value}: {}", e.path, e.message),
                None => format!("{}: {}", e.path, e.message),
            })
            .collect()
    }

    #[test]
    fn special_types_are_read() {
        let pod: Pod = read(
            &tree(
                "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\n  creationTimestamp: 2026-01-02T03:04:05Z\n  \
                 deletionTimestamp: null\nspec:\n  terminationGracePeriodSeconds: 5\n  containers:\n  - name: a\n    \
                 image: x\n    resources:\n      limits: {cpu: 2, memory: 64Mi}\n      requests: {cpu: 0.5}\n    \
                 livenessProbe: {httpGet: {port: http}}\n    readinessProbe: {tcpSocket: {port: 80}}\n    \
                 ports: [{containerPort: 8080.0}]\n  volumes: [{name: v, hostPath: {path: /x}}]\n",
            ),
            Path::default(),
        )
        .expect("a good pod");
        let text = serde_json::to_string(&pod).expect("a pod is JSON");
        for part in [
            r#""creationTimestamp":"2026-01-02T03:04:05Z""#,
            r#""limits":{"cpu":"2","memory":"64Mi"}"#,
            r#""requests":{"cpu":"0.5"}"#,
            r#""port":"http""#,
            r#""port":80"#,
            r#""containerPort":8080"#,
            r#""terminationGracePeriodSeconds":5"#,
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        let secret: Secret = read(&tree("kind: Secret\napiVersion: v1\ndata: {a: aGk=}\n"), Path::default())
            .expect("a secret");
        assert_eq!(secret.data.and_then(|d| d.get("a").map(|b| b.0.clone())), Some(b"hi".to_vec()));
        let map: ConfigMap =
            read(&tree("data: {a: }\n"), Path::default()).expect("an empty value is empty text");
        assert_eq!(map.data.and_then(|d| d.get("a").cloned()).as_deref(), Some(""));
    }

    #[test]
    fn what_does_not_fit_names_field_and_value() {
        for (text, says) in [
            (
                "spec: {containers: [{name: a, ports: [{containerPort: 1}, {containerPort: \"80\"}]}]}",
                "spec.containers[0].ports[1].containerPort: \"80\": must be an integer without quotes",
            ),
            (
                "spec: {containers: [{name: a, env: [{name: P, value: 8080}]}]}",
                "spec.containers[0].env[0].value: 8080: must be a string; put it in quotes",
            ),
            (
                "spec: {hostNetwork: \"true\"}",
                "spec.hostNetwork: \"true\": must be true or false without quotes",
            ),
            ("spec: {containers: {name: a}}", "spec.containers: a map with \"name\": must be a list"),
            ("spec: {containers: [a]}", "spec.containers[0]: \"a\": must be an object (Container)"),
            ("spec: {containers: [null]}", "spec.containers[0]: null: must be an object (Container)"),
            ("spec: [1]", "spec: a list of 1: must be an object (PodSpec)"),
            (
                "metadata: {labels: {a.b/c: 1}}",
                "metadata.labels[a.b/c]: 1: must be a string; put it in quotes",
            ),
            ("metadata: {labels: [a]}", "metadata.labels: a list of 1: must be a map"),
            (
                "spec: {terminationGracePeriodSeconds: 1.5}",
                "spec.terminationGracePeriodSeconds: 1.5: must be an integer",
            ),
            (
                "spec: {containers: [{name: a, ports: [{containerPort: 99999999999}]}]}",
                "spec.containers[0].ports[0].containerPort: 99999999999: must be an integer between -2147483648 \
                 and 2147483647",
            ),
            (
                "spec: {containers: [{name: a, resources: {limits: {cpu: true}}}]}",
                "spec.containers[0].resources.limits.cpu: true: must be Quantity",
            ),
            (
                "spec: {containers: [{name: a, livenessProbe: {tcpSocket: {port: 1.5}}}]}",
                "spec.containers[0].livenessProbe.tcpSocket.port: 1.5: must be IntOrString",
            ),
            ("metadata: {creationTimestamp: soon}", "metadata.creationTimestamp: \"soon\": "),
            ("spec: {contaners: []}", "spec.contaners: unknown field; did you mean containers?"),
            ("spec: {HostNetwork: true}", "spec.HostNetwork: unknown field; did you mean hostNetwork?"),
            ("spec: {zzz: {a: [1]}}", "spec.zzz: unknown field; remove it or correct its name"),
        ] {
            let errors = read::<Pod>(&tree(text), Path::default()).expect_err(text);
            let shown = shown(&errors);
            assert_eq!(shown.len(), 1, "{text}: {shown:?}");
            assert!(shown[0].starts_with(says), "{text}\n  got  {}\n  want {says}", shown[0]);
        }
    }

    #[test]
    fn all_unknown_fields_come_at_once_up_to_the_bound() {
        let text =
            format!("spec: {{{}}}", (0..100).map(|n| format!("zz{n}: 1")).collect::<Vec<_>>().join(", "));
        let errors = read::<Pod>(&tree(&text), Path::default()).expect_err("unknown fields");
        assert_eq!(errors.len(), limits::PROBLEMS_PER_FILE_MAX);
    }
}
