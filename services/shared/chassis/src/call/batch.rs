//! Batches of calls between processes (`microblog/common/v1/call_batch.proto`): what the client and
//! the server share.

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{CONTENT_TYPE, TE, USER_AGENT},
};
use microblog_proto::common::BatchedMetadata;

/// The path of the stream.
pub(crate) const PATH: &str = "/microblog.common.v1.BatchService/Exchange";

pub(crate) const GRPC_CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/grpc");

/// Encodes headers or trailers, without those that are the same for all calls.
pub(crate) fn metadata(headers: &HeaderMap) -> impl Iterator<Item = BatchedMetadata> {
    let varies = |name: &HeaderName| ![CONTENT_TYPE, TE, USER_AGENT].contains(name);
    headers.iter().filter(move |(name, _)| varies(name)).map(|(name, value)| BatchedMetadata {
        name: name.as_str().to_owned(),
        value: Bytes::copy_from_slice(value.as_bytes()),
    })
}

/// Decodes headers or trailers. Returns `None` if one is not valid.
pub(crate) fn headers(metadata: Vec<BatchedMetadata>) -> Option<HeaderMap> {
    let mut headers = HeaderMap::try_with_capacity(metadata.len() + 1).ok()?;
    for BatchedMetadata { name, value } in metadata {
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        headers.try_append(name, HeaderValue::from_maybe_shared(value).ok()?).ok()?;
    }
    Some(headers)
}

#[cfg(test)]
mod tests {
    use microblog_proto::common::CallBatch;
    use prost::Message as _;

    use super::*;

    #[test]
    fn fuzz_batches() {
        bolero::check!().for_each(|bytes: &[u8]| {
            for call in CallBatch::decode(bytes).map(|batch| batch.calls).unwrap_or_default() {
                if let Some(decoded) = headers(call.metadata) {
                    let again = headers(metadata(&decoded).collect()).unwrap();
                    assert!(again.len() <= decoded.len());
                }
            }
        });
    }
}
