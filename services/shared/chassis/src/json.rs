//! Protobuf JSON (<https://protobuf.dev/programming-guides/json/>) of encoded messages, by the
//! descriptors of the protos. It is for people, browsers and scripts: slower than generated code, which
//! would be as large as all messages.

mod unknown_values;

use std::{collections::BTreeMap, error::Error, sync::LazyLock};

use bytes::{Buf as _, Bytes};
use microblog_domain::Invalid;
use prost::{
    Message as _,
    encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field},
};
use prost_reflect::{
    DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, MethodDescriptor,
};

/// The protos of this project, with error details, and health checks. Decoded when it is first used.
static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    let mut pool = DescriptorPool::new();
    for set in [microblog_proto::DESCRIPTORS, tonic_health::pb::FILE_DESCRIPTOR_SET] {
        // Generated descriptors decode; if not, their methods are unknown.
        if let Err(error) = pool.decode_file_descriptor_set(set) {
            tracing::error!(%error, "descriptors do not decode");
        }
    }
    pool
});

/// Returns the methods of a service by its full name; none if the protos do not declare it.
pub fn methods(service: &str) -> impl Iterator<Item = MethodDescriptor> + use<> {
    let service = POOL.get_service_by_name(service);
    service.into_iter().flat_map(|service| service.methods().collect::<Vec<_>>())
}

/// Returns the methods of all services of the package of a service: a server may have several.
pub fn methods_of_package(service: &str) -> impl Iterator<Item = MethodDescriptor> + use<> {
    let package = service.rsplit_once('.').map_or("", |(package, _)| package).to_owned();
    let services = POOL.services().filter(move |one| one.package_name() == package);
    services.flat_map(|service| service.methods().collect::<Vec<_>>())
}

/// Returns the path of a method, without the leading slash: `package.Service/Method`.
pub fn path(method: &MethodDescriptor) -> String {
    format!("{}/{}", method.parent_service().full_name(), method.name())
}

/// Returns a message type by its full name.
pub fn message(name: &str) -> Option<MessageDescriptor> {
    POOL.get_message_by_name(name)
}

/// Why a text has no message.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    /// It is not JSON of this message.
    #[error("the request is not a valid message of its type: {0}")]
    Malformed(#[from] serde_json::Error),
    /// Fields have names of enum values that do not exist.
    #[error("values are unknown")]
    UnknownValues(Vec<Invalid>),
}

/// Encodes a message that is JSON. Unknown fields are ignored, as in an encoded message; unknown values
/// of enums are not.
///
/// # Errors
///
/// If the text is not JSON of this message, or an enum does not have a value.
pub fn encode(message: MessageDescriptor, json: &[u8]) -> Result<Bytes, EncodeError> {
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let options = prost_reflect::DeserializeOptions::new().deny_unknown_fields(false);
    let decoded =
        DynamicMessage::deserialize_with_options(message.clone(), &mut deserializer, &options)?;
    deserializer.end()?;
    let encoded = decoded.encode_to_vec();
    drop(decoded);
    match unknown_values::find(&message, json)? {
        none if none.is_empty() => Ok(encoded.into()),
        invalid => Err(EncodeError::UnknownValues(invalid)),
    }
}

/// Decodes a message to JSON, as compactly as possible. Decodes the elements of its lists one by one:
/// decoded, a message takes up to a hundred times its size.
///
/// # Errors
///
/// If the bytes are not an encoded message of this type, or a field has no JSON form, such as a time
/// beyond the year 9999.
pub fn decode(
    message: MessageDescriptor,
    mut bytes: Bytes,
) -> Result<Bytes, Box<dyn Error + Send + Sync>> {
    // By their numbers: lists as JSON, without the bracket at their end, and encoded other fields.
    let (mut members, mut others) = (BTreeMap::new(), BTreeMap::<_, Vec<u8>>::new());
    while bytes.has_remaining() {
        let field = bytes.clone();
        let (number, wire_type) = decode_key(&mut bytes)?;
        let list = message.get_field(number).filter(FieldDescriptor::is_list);
        match list.map(|list| (list.kind(), list)) {
            Some((Kind::Message(element), list)) => {
                let length = decode_varint(&mut bytes)? as usize;
                if wire_type != WireType::LengthDelimited || length > bytes.len() {
                    return Err("a list is malformed".into());
                }
                let element = DynamicMessage::decode(element, bytes.split_to(length))?;
                let begin = || format!("\"{}\":", list.json_name()).into_bytes();
                let json = members.entry(number).or_insert_with(begin);
                json.push(if json.ends_with(b":") { b'[' } else { b',' });
                serde_json::to_writer(json, &element)?;
            }
            _ => {
                skip_field(wire_type, number, &mut bytes, DecodeContext::default())?;
                let field = &field[..field.len() - bytes.len()];
                others.entry(number).or_default().extend_from_slice(field);
            }
        }
    }
    members.values_mut().for_each(|list| list.push(b']'));
    for (number, field) in others {
        let json = serde_json::to_vec(&DynamicMessage::decode(message.clone(), &field[..])?)?;
        // The object of an unknown field is empty.
        if let [b'{', member @ .., b'}'] = &json[..]
            && !member.is_empty()
        {
            members.insert(number, member.to_vec());
        }
    }
    let members: Vec<_> = members.into_values().collect();
    Ok([&b"{"[..], &members.join(&b','), b"}"].concat().into())
}

#[cfg(test)]
mod tests {
    use microblog_proto::{gateway::ViewHomeResponse, post::Post};

    use super::*;

    fn check(name: &str, encoded: Vec<u8>) -> String {
        let whole = DynamicMessage::decode(message(name).unwrap(), &encoded[..]).unwrap();
        let json = decode(message(name).unwrap(), encoded.into()).unwrap();
        assert_eq!(json, serde_json::to_vec(&whole).unwrap());
        String::from_utf8(json.into()).unwrap()
    }

    #[test]
    fn messages_with_and_without_lists_have_the_same_json_as_in_one() {
        const HOME: &str = "microblog.gateway.v1.ViewHomeResponse";
        let viewed = |id| microblog_proto::gateway::ViewedPost {
            post: Some(Post { id, text: "a \"b\" [c], {d}:".to_owned(), ..Post::default() }),
            ..Default::default()
        };
        let mut home =
            ViewHomeResponse { posts: vec![viewed(8), viewed(12)], ..Default::default() };
        home.next_page_token = "next".to_owned();
        let json = check(HOME, home.encode_to_vec());
        assert!(json.starts_with(r#"{"posts":[{"post":{"id":"8""#), "{json}");
        assert_eq!(check(HOME, Vec::new()), "{}");
        // An unknown field, and parts of a field that is there twice.
        let unknown = [vec![0xf8, 0x7f, 1], home.encode_to_vec(), home.encode_to_vec()].concat();
        assert_eq!(check(HOME, unknown).matches(r#""id":"8""#).count(), 2);
        check(
            "microblog.post.v1.Post",
            Post { id: 8, author_id: 4, ..Post::default() }.encode_to_vec(),
        );
        let info = tonic_types::pb::ErrorInfo {
            reason: "A".to_owned(),
            domain: "microblog".to_owned(),
            metadata: [("a".to_owned(), "b".to_owned())].into(),
        };
        check("google.rpc.ErrorInfo", info.encode_to_vec());
    }

    fn unknown_values(name: &str, json: &str) -> Vec<String> {
        match encode(message(name).unwrap(), json.as_bytes()) {
            Ok(_) => Vec::new(),
            Err(EncodeError::UnknownValues(invalid)) => {
                assert!(invalid.iter().all(|one| one.problem.starts_with("must be one of ")));
                invalid.into_iter().map(|one| one.field).collect()
            }
            Err(EncodeError::Malformed(error)) => panic!("{json}: {error}"),
        }
    }

    #[test]
    fn unknown_values_of_enums_are_errors_with_the_paths_of_their_fields() {
        const NOTICES: &str = "microblog.gateway.v1.ViewNoticesRequest";
        let check = |json: &str, fields: &[&str]| {
            assert_eq!(unknown_values(NOTICES, json), fields, "{json}");
        };
        check(r#"{"kinds": ["NOTICE_KIND_LIKE", 1, 999]}"#, &[]);
        check(r#"{"kinds": ["LIKE"]}"#, &["kinds[0]"]);
        check(
            r#"{"kinds": ["NOTICE_KIND_LIKE", "notice_kind_like", "3"]}"#,
            &["kinds[1]", "kinds[2]"],
        );
        // As a field is ignored, so is all in it.
        check(r#"{"unknown": {"kinds": ["LIKE"]}, "kinds": null}"#, &[]);
        // The answers have more shapes than the requests.
        const HOME: &str = "microblog.gateway.v1.ViewHomeResponse";
        let nested =
            r#"{"posts": [{}, {"author": {"relation": "FRIEND", "user": {"name": "ada"}}}]}"#;
        assert_eq!(unknown_values(HOME, nested), ["posts[1].author.relation"]);
        let many = format!(r#"{{"kinds": [{}"LIKE"]}}"#, r#""LIKE","#.repeat(10_000));
        assert_eq!(unknown_values(NOTICES, &many).len(), 8);
    }

    #[test]
    fn malformed_messages_are_errors() {
        let list = [0x0a, 0x7f, 1];
        for encoded in [&list[..], &[0x0a], &[0x08, 1], &[0xff]] {
            let home = message("microblog.gateway.v1.ViewHomeResponse").unwrap();
            assert!(decode(home, Bytes::copy_from_slice(encoded)).is_err(), "{encoded:?}");
        }
    }
}
