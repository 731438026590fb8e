//! Protobuf JSON (<https://protobuf.dev/programming-guides/json/>) of encoded messages, by the
//! descriptors of the protos. It is for people, browsers and scripts: slower than generated code, which
//! would be as large as all messages.

use std::{error::Error, sync::LazyLock};

use bytes::Bytes;
use prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, MethodDescriptor};

/// The protos of this project, health checks, and error details. Decoded when it is first used.
static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    let mut pool = DescriptorPool::new();
    let sets = [
        microblog_proto::DESCRIPTORS,
        tonic_health::pb::FILE_DESCRIPTOR_SET,
        tonic_types::pb::FILE_DESCRIPTOR_SET,
    ];
    for set in sets {
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

/// Encodes a message that is JSON. Unknown fields are ignored, as in an encoded message.
///
/// # Errors
///
/// If the text is not JSON of this message.
pub fn encode(message: MessageDescriptor, json: &[u8]) -> Result<Bytes, serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let options = prost_reflect::DeserializeOptions::new().deny_unknown_fields(false);
    let decoded = DynamicMessage::deserialize_with_options(message, &mut deserializer, &options)?;
    deserializer.end()?;
    Ok(decoded.encode_to_vec().into())
}

/// Decodes a message to JSON, as compactly as possible.
///
/// # Errors
///
/// If the bytes are not an encoded message of this type, or a field has no JSON form, such as a time
/// beyond the year 9999.
pub fn decode(
    message: MessageDescriptor,
    bytes: Bytes,
) -> Result<Bytes, Box<dyn Error + Send + Sync>> {
    let decoded = DynamicMessage::decode(message, bytes)?;
    Ok(serde_json::to_vec(&decoded)?.into())
}
