//! Names in JSON that their enum does not have. `prost-reflect` rejects them only together with unknown
//! fields: where these are ignored, a list of kinds with a misspelt name would be empty, and stand for
//! all kinds.

use std::{borrow::Cow, fmt, fmt::Write as _};

use microblog_domain::Invalid;
use prost_reflect::{EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor};
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// How many are named: a message may have a hundred thousand.
const NAMED_MAX: usize = 8;

/// Types with a JSON form of their own.
const WELL_KNOWN: &str = "google.protobuf";

/// Returns the first unknown names of enum values in a message, by their fields. Takes memory only for
/// these, and for the place that it has reached.
///
/// # Errors
///
/// If the text is not JSON.
pub(super) fn find(
    message: &MessageDescriptor,
    json: &[u8],
) -> Result<Vec<Invalid>, serde_json::Error> {
    let mut found = Found::default();
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let kind = Kind::Message(message.clone());
    Part { kind, shape: Shape::Single, found: &mut found }.deserialize(&mut deserializer)?;
    Ok(found.invalid)
}

#[derive(Default)]
struct Found {
    /// Of the part that is read, as in the proto.
    path: String,
    invalid: Vec<Invalid>,
}

impl Found {
    fn add(&mut self, one: &EnumDescriptor) {
        if self.invalid.len() < NAMED_MAX {
            let names: Vec<_> = one.values().map(|value| value.name().to_owned()).collect();
            let problem = format!("must be one of {}", names.join(", "));
            self.invalid.push(Invalid::new(self.path.clone(), problem));
        }
    }
}

/// A part of a message: a field, an element or a value of it, or the whole.
struct Part<'a> {
    kind: Kind,
    shape: Shape,
    found: &'a mut Found,
}

#[derive(Clone, Copy, PartialEq)]
enum Shape {
    Single,
    List,
    /// Its kind is the message of an entry.
    Map,
}

impl Shape {
    fn of(field: &FieldDescriptor) -> Self {
        match field {
            list if list.is_list() => Self::List,
            map if map.is_map() => Self::Map,
            _ => Self::Single,
        }
    }
}

impl<'de> DeserializeSeed<'de> for Part<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        let has_names = match &self.kind {
            Kind::Message(message) => message.package_name() != WELL_KNOWN,
            Kind::Enum(one) => one.package_name() != WELL_KNOWN,
            _ => false,
        };
        if has_names {
            deserializer.deserialize_any(self)
        } else {
            deserializer.deserialize_ignored_any(IgnoredAny).map(drop)
        }
    }
}

/// What is not of its type, such as a list in place of a text, is left to the decoder.
impl<'de> Visitor<'de> for Part<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a value")
    }

    fn visit_str<E>(self, name: &str) -> Result<(), E> {
        if let (Kind::Enum(one), Shape::Single) = (&self.kind, self.shape)
            && one.get_value_by_name(name).is_none()
        {
            self.found.add(one);
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        if self.shape != Shape::List {
            while list.next_element::<IgnoredAny>()?.is_some() {}
            return Ok(());
        }
        let length = self.found.path.len();
        for index in 0.. {
            write!(self.found.path, "[{index}]").map_err(A::Error::custom)?;
            let found = &mut *self.found;
            let element = Part { kind: self.kind.clone(), shape: Shape::Single, found };
            let is_end = list.next_element_seed(element)?.is_none();
            self.found.path.truncate(length);
            if is_end {
                break;
            }
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let length = self.found.path.len();
        while let Some(name) = map.next_key::<Cow<'_, str>>()? {
            let field = match (&self.kind, self.shape) {
                (Kind::Message(message), Shape::Single) => message
                    .get_field_by_json_name(&name)
                    .or_else(|| message.get_field_by_name(&name)),
                // A key is the caller's, and may be large.
                (Kind::Message(entry), Shape::Map) => Some(entry.map_entry_value_field()),
                _ => None,
            };
            let Some(field) = field else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            if self.shape == Shape::Single {
                self.found.path.push_str(if length > 0 { "." } else { "" });
                self.found.path.push_str(field.name());
            }
            let (kind, shape) = (field.kind(), Shape::of(&field));
            map.next_value_seed(Part { kind, shape, found: &mut *self.found })?;
            self.found.path.truncate(length);
        }
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use prost_reflect::DescriptorPool;
    use prost_types::{
        DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto, FieldDescriptorProto,
        FileDescriptorProto, MessageOptions,
        field_descriptor_proto::{Label, Type},
    };

    use super::*;

    fn field(name: &str, number: i32, label: Label, of: Type, named: &str) -> FieldDescriptorProto {
        FieldDescriptorProto {
            name: Some(name.to_owned()),
            number: Some(number),
            label: Some(label.into()),
            r#type: Some(of.into()),
            type_name: Some(named.to_owned()).filter(|named| !named.is_empty()),
            ..FieldDescriptorProto::default()
        }
    }

    /// `message Test { map<string, Color> colors = 1; map<string, Test> by_name = 2; }`, with the
    /// values A and B of `Color`.
    fn test_message() -> MessageDescriptor {
        let entry = |name: &str, of, named| DescriptorProto {
            name: Some(name.to_owned()),
            field: vec![
                field("key", 1, Label::Optional, Type::String, ""),
                field("value", 2, Label::Optional, of, named),
            ],
            options: Some(MessageOptions { map_entry: Some(true), ..MessageOptions::default() }),
            ..DescriptorProto::default()
        };
        let test = DescriptorProto {
            name: Some("Test".to_owned()),
            field: vec![
                field("colors", 1, Label::Repeated, Type::Message, ".a.Test.ColorsEntry"),
                field("by_name", 2, Label::Repeated, Type::Message, ".a.Test.ByNameEntry"),
            ],
            nested_type: vec![
                entry("ColorsEntry", Type::Enum, ".a.Color"),
                entry("ByNameEntry", Type::Message, ".a.Test"),
            ],
            ..DescriptorProto::default()
        };
        let value = |(number, name): (i32, &str)| EnumValueDescriptorProto {
            name: Some(name.to_owned()),
            number: Some(number),
            options: None,
        };
        let color = EnumDescriptorProto {
            name: Some("Color".to_owned()),
            value: (0..).zip(["A", "B"]).map(value).collect(),
            ..EnumDescriptorProto::default()
        };
        let file = FileDescriptorProto {
            name: Some("a.proto".to_owned()),
            package: Some("a".to_owned()),
            message_type: vec![test],
            enum_type: vec![color],
            syntax: Some("proto3".to_owned()),
            ..FileDescriptorProto::default()
        };
        let mut pool = DescriptorPool::new();
        pool.add_file_descriptor_proto(file).unwrap();
        pool.get_message_by_name("a.Test").unwrap()
    }

    #[test]
    fn values_of_maps_are_checked() {
        let fields = |json: &str| {
            let found = find(&test_message(), json.as_bytes()).unwrap();
            found.into_iter().map(|one| one.field).collect::<Vec<_>>()
        };
        assert!(fields(r#"{"colors": {"C": "A", "x": 1, "y": null}, "byName": {}}"#).is_empty());
        assert_eq!(fields(r#"{"colors": {"x": "A", "y": "C"}}"#), ["colors"]);
        let nested =
            r#"{"byName": {"B": {"colors": {"x": "b"}}, "other": {"colors": {"x": "B"}}}}"#;
        assert_eq!(fields(nested), ["by_name.colors"]);
        assert_eq!(fields(r#"{"by_name": {"x": {"colors": {"x": ""}}}}"#), ["by_name.colors"]);
        // Of another type than declared: the decoder rejects it.
        for other in
            [r#"{"colors": ["C"]}"#, r#"{"colors": "C"}"#, "[[[]]]", "\"C\"", "1.5", "true"]
        {
            assert!(fields(other).is_empty(), "{other}");
        }
    }
}
