//! A document's tree → a typed Kubernetes object, strictly: whatever does not fit is an error that names the field
//! and shows the value; unknown and misspelt fields are errors, as `kubectl --validate=strict` has it. PURE.
//!
//! All errors are found at once: a value that does not fit is read as its type's zero value, and the reading goes on.
//!
//! The only deserializer of the big generated types in this binary: a second would add a copy of their code.

use std::cell::RefCell;
use std::fmt;

use k8s_openapi::jiff::Timestamp;
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::{ErrorKind, FieldError, FieldErrors, Node, Path, join};
use crate::limits;

/// What was read, as far as it could be, and all that does not fit.
#[derive(Debug)]
pub struct Decoded<T> {
    /// Fields with an error have the zero values of their types. Nothing when one could not even be passed over (a timestamp
    /// that is none).
    pub value: Option<T>,
    /// Every error found.
    pub errors: FieldErrors,
    /// The paths of what does not hold what was meant: of values that did not fit, and of fields that an unknown one was
    /// probably meant to be. As many as errors are listed.
    pub unread: Vec<String>,
}

impl<T> Decoded<T> {
    fn good(self) -> Result<T, FieldErrors> {
        match self.value {
            Some(value) if self.errors.is_empty() => Ok(value),
            Some(_) | None => Err(self.errors),
        }
    }
}

/// Reads `node` as a `T`. `at` is the path of the node itself (`items[2]`, or empty).
pub fn read<T: de::DeserializeOwned>(node: &Node, at: Path) -> Result<T, FieldErrors> {
    read_all(node, at).good()
}

/// As [`read`], but fields that `T` does not have are passed over: what an API server newer than this version sends.
pub fn read_known<T: de::DeserializeOwned>(node: &Node, at: Path) -> Result<T, FieldErrors> {
    read_with(node, at, false).good()
}

/// As [`read`], with what could be read beside the errors.
pub fn read_all<T: de::DeserializeOwned>(node: &Node, at: Path) -> Decoded<T> {
    read_with(node, at, true)
}

fn read_with<T: de::DeserializeOwned>(node: &Node, at: Path, strict: bool) -> Decoded<T> {
    let context =
        Context { strict, path: RefCell::new(at), errors: RefCell::default(), unread: RefCell::default() };
    let reader = Reader { node, context: &context, fields: &[] };
    let outcome = T::deserialize(reader).map_err(|error| reader.placed(error));
    let mut errors = context.errors.into_inner();
    let value = match outcome {
        Ok(value) => Some(value),
        Err(TypeError(misfit)) => {
            let Misfit { path, value, message } = *misfit;
            errors.push(FieldError {
                path: path.unwrap_or_default(),
                kind: ErrorKind::Invalid,
                value,
                message,
            });
            None
        }
    };
    Decoded { value, errors, unread: context.unread.into_inner() }
}

struct Context {
    /// Unknown fields are errors.
    strict: bool,
    path: RefCell<Path>,
    errors: RefCell<FieldErrors>,
    unread: RefCell<Vec<String>>,
}

impl Context {
    /// The path above a value again.
    #[inline(never)]
    fn leave(&self, mark: usize) {
        self.path.borrow_mut().cut(mark);
    }

    /// Reports an error, for which the field `unread` does not hold what was meant.
    fn push(&self, error: FieldError, unread: Option<String>) {
        let mut errors = self.errors.borrow_mut();
        self.unread.borrow_mut().extend(unread.filter(|_| errors.has_room()));
        errors.push(error);
    }
}

/// A type error of a type's own visitor, which ends the reading; the reader of the value adds the field and the value. A pointer:
/// every field of every generated type passes it on.
#[derive(Debug)]
struct TypeError(Box<Misfit>);

#[derive(Debug)]
struct Misfit {
    path: Option<String>,
    value: Option<String>,
    message: String,
}

impl fmt::Display for TypeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for TypeError {}

impl de::Error for TypeError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(Box::new(Misfit { path: None, value: None, message: message.to_string() }))
    }

    fn invalid_type(_: de::Unexpected<'_>, wanted: &dyn de::Expected) -> Self {
        Self::custom(format_args!("must be {wanted}"))
    }

    fn invalid_value(_: de::Unexpected<'_>, wanted: &dyn de::Expected) -> Self {
        Self::custom(format_args!("must be {wanted}"))
    }
}

#[derive(Clone, Copy)]
struct Reader<'a> {
    node: &'a Node,
    context: &'a Context,
    /// The fields of the surrounding object: candidates for a misspelt one.
    fields: &'static [&'static str],
}

// What does not depend on the type that is read: one copy of it, not one for each type.
impl<'a> Reader<'a> {
    /// The value does not fit: reported, and replaced by the zero value.
    fn refuse(self, message: impl Into<String>) {
        let path = self.context.path.borrow().shown();
        self.context.push(FieldError::with_value(&*path, self.node.to_string(), message), Some(path));
    }

    /// Adds the field and the value to an error of a type's own visitor.
    #[cold]
    #[inline(never)]
    fn placed(self, mut error: TypeError) -> TypeError {
        if error.0.path.is_none() {
            error.0.path = Some(self.context.path.borrow().shown());
            error.0.value = Some(self.node.to_string());
        }
        error
    }

    #[inline(never)]
    fn integer(self, min: i64, max: i64) -> i64 {
        let value = match *self.node {
            Node::Int(value) => value,
            // 8080.0 and 1e3 are integers in JSON, too.
            #[allow(clippy::cast_possible_truncation, reason = "the value is whole and within 2^53")]
            Node::Float(value) if value.fract() == 0.0 && value.abs() < 9e15 => value as i64,
            Node::Text(_) => {
                self.refuse("must be an integer without quotes");
                return 0;
            }
            Node::Null | Node::Bool(_) | Node::Float(_) | Node::List(_) | Node::Map(_) => {
                self.refuse("must be an integer");
                return 0;
            }
        };
        if (min..=max).contains(&value) {
            return value;
        }
        self.refuse(format!("must be an integer between {min} and {max}"));
        0
    }

    #[inline(never)]
    fn boolean(self) -> bool {
        match self.node {
            Node::Bool(value) => return *value,
            Node::Text(_) => self.refuse("must be true or false without quotes"),
            Node::Null | Node::Int(_) | Node::Float(_) | Node::List(_) | Node::Map(_) => {
                self.refuse("must be true or false");
            }
        }
        false
    }

    /// The object or map, without entries where it is none, which is refused. `name`: the object's type.
    #[inline(never)]
    fn entries(self, name: Option<&'static str>, known: &'static [&'static str]) -> Fields<'a> {
        let entries = match (self.node, name) {
            (Node::Map(entries), _) => entries.iter(),
            (_, Some(name)) => {
                self.refuse(format!("must be an object ({name})"));
                [].iter()
            }
            (_, None) => {
                self.refuse("must be a map");
                [].iter()
            }
        };
        Fields { entries, value: None, context: self.context, known }
    }

    /// The items of a list; none of another value or a list that is too long, which are refused.
    #[inline(never)]
    fn items(self) -> &'a [Node] {
        match self.node {
            Node::List(items) if items.len() <= limits::LIST_ITEMS_MAX => return items,
            Node::List(_) => self.refuse(format!("must have at most {} items", limits::LIST_ITEMS_MAX)),
            Node::Null | Node::Bool(_) | Node::Int(_) | Node::Float(_) | Node::Text(_) | Node::Map(_) => {
                self.refuse("must be a list");
            }
        }
        &[]
    }

    #[inline(never)]
    fn text(self) -> &'a str {
        match self.node {
            Node::Text(text) => return text,
            // Go leaves the zero value: `labels: {a: }` is an empty label.
            Node::Null => {}
            Node::Bool(_) | Node::Int(_) | Node::Float(_) => {
                self.refuse("must be a string; put it in quotes");
            }
            Node::List(_) | Node::Map(_) => self.refuse("must be a string"),
        }
        ""
    }

    /// A field that the type does not have.
    #[inline(never)]
    fn unknown(self) {
        if self.context.strict {
            let path = self.context.path.borrow().shown();
            let (above, key) = path.rsplit_once('.').unwrap_or(("", &path));
            let (message, unread) = match nearest(key, self.fields) {
                Some(meant) => (format!("unknown field; did you mean {meant}?"), Some(join(above, meant))),
                None => ("unknown field; remove it or correct its name".to_owned(), None),
            };
            self.context.push(FieldError::new(&*path, message), unread);
        }
    }
}

impl<'de> Deserializer<'de> for Reader<'_> {
    type Error = TypeError;

    /// Kubernetes' scalars that take several types: each of them takes a 0.
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TypeError> {
        let wanted = Wanted(&visitor).to_string();
        let fits = match (wanted.as_str(), self.node) {
            ("IntOrString", Node::Int(value)) => i32::try_from(*value).is_ok(),
            ("IntOrString", node) => matches!(node, Node::Text(_)),
            ("Quantity", node) => matches!(node, Node::Int(_) | Node::Float(_) | Node::Text(_)),
            (_, _) => true,
        };
        if !fits {
            self.refuse(format!("must be {wanted}"));
            return visitor.visit_i64(0);
        }
        match self.node {
            Node::Null => visitor.visit_unit(),
            Node::Bool(value) => visitor.visit_bool(*value),
            Node::Int(value) => visitor.visit_i64(*value),
            Node::Float(value) => visitor.visit_f64(*value),
            Node::Text(text) => visitor.visit_str(text),
            Node::List(_) => self.deserialize_seq(visitor),
            Node::Map(_) => self.deserialize_map(visitor),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TypeError> {
        visitor.visit_bool(self.boolean())
    }

    fn deserialize_i32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TypeError> {
        visitor.visit_i64(self.integer(i64::from(i32::MIN), i64::from(i32::MAX)))
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TypeError> {
        visitor.visit_i64(self.integer(i64::MIN, i64::MAX))
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TypeError> {
        visitor.visit_f64(match self.node {
            #[allow(clippy::cast_precision_loss, reason = "as JSON's numbers are read")]
            Node::Int(value) => *value as f64,
            Node::Float(value) => *value,
            Node::Null | Node::Bool(_) | Node::Text(_) | Node::List(_) | Node::Map(_) => {
                self.refuse("must be a number");
                0.0
            }
        })
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TypeError> {
        visitor.visit_str(self.text())
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TypeError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TypeError> {
        if matches!(self.node, Node::Null) { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, TypeError> {
        if name == "Time"
            && let Node::Text(text) = self.node
            && let Err(error) = text.parse::<Timestamp>()
        {
            self.refuse(error.to_string());
            let epoch = Node::Text("1970-01-01T00:00:00Z".into());
            return visitor.visit_newtype_struct(Reader { node: &epoch, ..self });
        }
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TypeError> {
        visitor.visit_seq(Items { items: self.items().iter().enumerate(), context: self.context })
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TypeError> {
        visitor.visit_map(self.entries(None, &[]))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, TypeError> {
        visitor.visit_map(self.entries(Some(name), fields))
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TypeError> {
        self.deserialize_str(visitor)
    }

    /// Called by the generated types for an unknown field.
    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, TypeError> {
        self.unknown();
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! {
        i8 i16 i128 u8 u16 u32 u64 u128 f32 char bytes byte_buf unit unit_struct tuple tuple_struct enum
    }
}

/// What a visitor says it expects.
struct Wanted<'a, V>(&'a V);

impl<'de, V: Visitor<'de>> fmt::Display for Wanted<'_, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.expecting(f)
    }
}

struct Items<'a> {
    items: std::iter::Enumerate<std::slice::Iter<'a, Node>>,
    context: &'a Context,
}

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = TypeError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, TypeError> {
        let Some((mark, reader)) = self.enter() else { return Ok(None) };
        match seed.deserialize(reader) {
            Ok(value) => {
                self.context.leave(mark);
                Ok(Some(value))
            }
            Err(error) => Err(reader.placed(error)),
        }
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len())
    }
}

impl<'a> Items<'a> {
    /// The next item, and the mark of the path above it.
    #[inline(never)]
    fn enter(&mut self) -> Option<(usize, Reader<'a>)> {
        let (index, node) = self.items.next()?;
        let mark = self.context.path.borrow_mut().push_index(index);
        Some((mark, Reader { node, context: self.context, fields: &[] }))
    }
}

struct Fields<'a> {
    entries: std::slice::Iter<'a, (Box<str>, Node)>,
    value: Option<&'a (Box<str>, Node)>,
    context: &'a Context,
    known: &'static [&'static str],
}

impl<'a> Fields<'a> {
    /// The value of the key that was read last, and the mark of the path above it.
    #[inline(never)]
    fn enter(&mut self) -> Result<(usize, Reader<'a>), TypeError> {
        let Some((key, node)) = self.value.take() else {
            return Err(de::Error::custom("a value is read before its key"));
        };
        let mark = self.context.path.borrow_mut().push(key);
        Ok((mark, Reader { node, context: self.context, fields: self.known }))
    }
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
        let (mark, reader) = self.enter()?;
        match seed.deserialize(reader) {
            Ok(value) => {
                self.context.leave(mark);
                Ok(value)
            }
            Err(error) => Err(reader.placed(error)),
        }
    }
}

/// The known field closest to `key`: at most two edits away, and no more than a third of its length.
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

    fn shown(errors: &FieldErrors) -> Vec<String> {
        errors.iter().map(ToString::to_string).collect()
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
                "spec.containers[0].ports[1].containerPort: Invalid value: \"80\": must be an integer without quotes",
            ),
            (
                "spec: {containers: [{name: a, env: [{name: P, value: 8080}]}]}",
                "spec.containers[0].env[0].value: Invalid value: 8080: must be a string; put it in quotes",
            ),
            (
                "spec: {hostNetwork: \"true\"}",
                "spec.hostNetwork: Invalid value: \"true\": must be true or false without quotes",
            ),
            (
                "spec: {containers: {name: a}}",
                "spec.containers: Invalid value: a map with \"name\": must be a list",
            ),
            (
                "spec: {containers: [a]}",
                "spec.containers[0]: Invalid value: \"a\": must be an object (Container)",
            ),
            (
                "spec: {containers: [null]}",
                "spec.containers[0]: Invalid value: null: must be an object (Container)",
            ),
            ("spec: [1]", "spec: Invalid value: a list of 1: must be an object (PodSpec)"),
            (
                "metadata: {labels: {a.b/c: 1}}",
                "metadata.labels[a.b/c]: Invalid value: 1: must be a string; put it in quotes",
            ),
            ("metadata: {labels: [a]}", "metadata.labels: Invalid value: a list of 1: must be a map"),
            (
                "spec: {terminationGracePeriodSeconds: 1.5}",
                "spec.terminationGracePeriodSeconds: Invalid value: 1.5: must be an integer",
            ),
            (
                "spec: {containers: [{name: a, ports: [{containerPort: 99999999999}]}]}",
                "spec.containers[0].ports[0].containerPort: Invalid value: 99999999999: must be an integer between -2147483648 \
                 and 2147483647",
            ),
            (
                "spec: {containers: [{name: a, resources: {limits: {cpu: true}}}]}",
                "spec.containers[0].resources.limits.cpu: Invalid value: true: must be Quantity",
            ),
            (
                "spec: {containers: [{name: a, livenessProbe: {tcpSocket: {port: 1.5}}}]}",
                "spec.containers[0].livenessProbe.tcpSocket.port: Invalid value: 1.5: must be IntOrString",
            ),
            ("metadata: {creationTimestamp: soon}", "metadata.creationTimestamp: Invalid value: \"soon\": "),
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
    fn all_errors_come_at_once() {
        let text = "metadata: {name: [a], labels: {a: 1, b: 2}, creationTimestamp: soon}\nspec:\n  hostNetwork: \"true\"\n  \
                    contaners: []\n  containers:\n  - {name: a, ports: [{containerPort: \"80\"}, {containerPort: x}]}\n  - b\n  \
                    - {name: c, resources: {limits: {cpu: true, memory: [1]}}, livenessProbe: {tcpSocket: {port: 1.5}}}\n  \
                    volumes: {}\n  initContainers: 5\n  terminationGracePeriodSeconds: {}\n";
        let Decoded { value, errors, unread } = read_all::<Pod>(&tree(text), Path::default());
        let paths: Vec<&str> = errors.iter().map(|error| error.path.as_str()).collect();
        assert_eq!(
            paths,
            [
                "metadata.name",
                "metadata.labels.a",
                "metadata.labels.b",
                "metadata.creationTimestamp",
                "spec.hostNetwork",
                "spec.contaners",
                "spec.containers[0].ports[0].containerPort",
                "spec.containers[0].ports[1].containerPort",
                "spec.containers[1]",
                "spec.containers[2].resources.limits.cpu",
                "spec.containers[2].resources.limits.memory",
                "spec.containers[2].livenessProbe.tcpSocket.port",
                "spec.volumes",
                "spec.initContainers",
                "spec.terminationGracePeriodSeconds",
            ]
        );
        let meant = paths.iter().map(|path| path.replace("contaners", "containers"));
        assert_eq!(unread, meant.collect::<Vec<_>>());
        let spec = value.and_then(|pod| pod.spec).expect("what could be read");
        let names: Vec<&str> = spec.containers.iter().map(|container| container.name.as_str()).collect();
        assert_eq!(names, ["a", "", "c"], "each where it stands");
    }

    #[test]
    fn errors_beyond_the_bound_are_counted() {
        let text =
            format!("spec: {{{}}}", (0..100).map(|n| format!("zz{n}: 1")).collect::<Vec<_>>().join(", "));
        let errors = read::<Pod>(&tree(&text), Path::default()).expect_err("unknown fields");
        assert_eq!(errors.iter().count(), limits::FIELD_ERRORS_MAX);
        let last = errors.into_iter().last().expect("the last");
        assert_eq!(last.message, format!("and {} more errors", 100 - limits::FIELD_ERRORS_MAX));
    }
}
