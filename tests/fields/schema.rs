//! The API's fields, asked of the generated types themselves: their deserialisers name the fields of each struct, and
//! this one hands out a value for every one of them.

use std::cell::RefCell;
use std::fmt;

use serde::Serialize;
use serde::de::value::StrDeserializer;
use serde::de::{self, DeserializeOwned, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

/// A field of the API.
#[derive(Debug)]
pub struct SchemaField {
    /// `spec.containers[*].image`; `[*]` for the items of a list of objects.
    pub path: String,
    pub shape: Shape,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// An object with fields of its own, or a list of them.
    Object,
    /// A map whose keys are free.
    Map,
    /// Anything else: a scalar, or a list of scalars.
    Leaf,
}

/// The fields of a `T` that stands at `root`, in the API's order, and a `T` in which every one of them is set: texts
/// are "x", numbers 1, and each list and map has one item.
pub fn schema<T: DeserializeOwned + Serialize>(root: &str) -> (Vec<SchemaField>, Value) {
    let fields = RefCell::new(Vec::new());
    let at = Recorder { path: root.to_owned(), item: false, sample: "x", fields: Some(&fields) };
    let full = T::deserialize(at).expect("every field has a value");
    let full = serde_json::to_value(full).expect("an API object is JSON");
    (fields.into_inner(), full)
}

struct Recorder<'a> {
    path: String,
    /// An item of a list.
    item: bool,
    /// What a text is.
    sample: &'static str,
    /// `None` below a map, whose keys are no fields.
    fields: Option<&'a RefCell<Vec<SchemaField>>>,
}

impl Recorder<'_> {
    fn found(&self, shape: Shape) {
        if let Some(fields) = self.fields {
            fields.borrow_mut().push(SchemaField { path: self.path.clone(), shape });
        }
    }
}

#[derive(Debug)]
struct Wrong(String);

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Wrong {}

impl de::Error for Wrong {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(message.to_string())
    }
}

impl<'de> Deserializer<'de> for Recorder<'_> {
    type Error = Wrong;

    /// A number or a text, or anything at all.
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        self.found(Shape::Leaf);
        visitor.visit_i64(1)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        self.found(Shape::Leaf);
        visitor.visit_bool(true)
    }

    fn deserialize_i32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        self.deserialize_any(visitor)
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        self.deserialize_any(visitor)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        self.found(Shape::Leaf);
        visitor.visit_str(self.sample)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        let sample = match name {
            "Time" | "MicroTime" => "2026-01-02T03:04:05Z",
            "Quantity" => "1",
            _ => self.sample,
        };
        visitor.visit_newtype_struct(Self { sample, ..self })
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        visitor.visit_seq(One(Some(Self { item: true, ..self })))
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        self.found(Shape::Map);
        let below = Self { fields: None, ..self };
        visitor.visit_map(Fields { below, names: &["x"], value: "" })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        mut self,
        _: &'static str,
        names: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        if self.item {
            self.path.push_str("[*]");
        }
        self.found(Shape::Object);
        let below = Self { item: false, ..self };
        visitor.visit_map(Fields { below, names, value: "" })
    }

    serde::forward_to_deserialize_any! {
        i8 i16 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit unit_struct tuple tuple_struct enum
        identifier ignored_any
    }
}

struct One<'a>(Option<Recorder<'a>>);

impl<'de> SeqAccess<'de> for One<'_> {
    type Error = Wrong;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Wrong> {
        self.0.take().map(|item| seed.deserialize(item)).transpose()
    }
}

struct Fields<'a> {
    below: Recorder<'a>,
    /// Those that are left.
    names: &'static [&'static str],
    /// The one whose value comes next.
    value: &'static str,
}

impl<'de> MapAccess<'de> for Fields<'_> {
    type Error = Wrong;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Wrong> {
        let Some((first, rest)) = self.names.split_first() else { return Ok(None) };
        (self.value, self.names) = (first, rest);
        seed.deserialize(StrDeserializer::new(first)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Wrong> {
        let path = format!("{}.{}", self.below.path, self.value);
        seed.deserialize(Recorder { path, sample: "x", ..self.below })
    }
}
