//! What the head of a request says about its protocol.

use std::time::Duration;

use http::{
    HeaderMap, Method, Request, Version,
    header::{CONTENT_TYPE, EXPECT},
    request::Parts,
};
use microblog_domain::Invalid;
use tonic::Status;

use crate::{call::metadata, status};

/// The media types of Connect, for unary calls and for streams.
pub(super) const JSON: &str = "application/json";
pub(super) const PROTO: &str = "application/proto";
pub(super) const STREAM_JSON: &str = "application/connect+json";
pub(super) const STREAM_PROTO: &str = "application/connect+proto";

const GRPC: &[u8] = b"application/grpc";
const GRPC_WEB: &[u8] = b"application/grpc-web";
/// What may follow the media type of gRPC-Web.
const GRPC_WEB_SUFFIXES: [&[u8]; 4] = [b"", b"+proto", b"-text", b"-text+proto"];

const CONNECT_TIMEOUT: &str = "connect-timeout-ms";

/// In which form a caller reads an error.
#[derive(Clone, Copy)]
pub(super) enum Form {
    /// As the body of a response.
    Unary,
    /// As the end of a stream with this content type.
    Stream(&'static str),
}

impl Form {
    /// Returns the form for the caller of a request that is not one of gRPC or gRPC-Web.
    pub(super) fn of<B>(request: &Request<B>) -> Self {
        let media_type = media_type(request.headers());
        let is_post = request.method() == Method::POST;
        let stream =
            [STREAM_JSON, STREAM_PROTO].into_iter().find(|one| one.as_bytes() == media_type);
        stream.filter(|_| is_post).map_or(Self::Unary, Self::Stream)
    }
}

/// Returns whether a request is a gRPC call, and not one of gRPC-Web.
pub(in crate::server) fn is_grpc(headers: &HeaderMap) -> bool {
    let content_type = content_type(headers);
    content_type.starts_with(GRPC) && !content_type.starts_with(GRPC_WEB)
}

pub(super) fn is_grpc_web(headers: &HeaderMap) -> bool {
    content_type(headers).starts_with(GRPC_WEB)
}

/// Returns whether a request of gRPC-Web has messages in a known form.
pub(super) fn is_known_grpc_web(headers: &HeaderMap) -> bool {
    let suffix = media_type(headers).strip_prefix(GRPC_WEB);
    suffix.is_some_and(|suffix| GRPC_WEB_SUFFIXES.contains(&suffix))
}

/// Returns the content type without its parameters.
pub(super) fn media_type(headers: &HeaderMap) -> &[u8] {
    let media_type = content_type(headers).split(|byte| *byte == b';').next();
    media_type.unwrap_or_default().trim_ascii()
}

fn content_type(headers: &HeaderMap) -> &[u8] {
    headers.get(CONTENT_TYPE).map_or(&[], |value| value.as_bytes())
}

/// Returns whether a caller sends its message only after a response with status 100.
pub(super) fn awaits_continue(parts: &Parts) -> bool {
    let expected = parts.headers.get(EXPECT).map_or(&[][..], |value| value.as_bytes());
    parts.version == Version::HTTP_11 && expected.eq_ignore_ascii_case(b"100-continue")
}

/// Reads the caller's timeout. A malformed one is rejected, not ignored: the caller relies on it.
pub(super) fn timeout(headers: &HeaderMap) -> Result<Option<Duration>, Status> {
    if is_grpc_web(headers) {
        return metadata::timeout(headers).map_err(|invalid| status::invalid([invalid]));
    }
    let Some(value) = headers.get(CONNECT_TIMEOUT) else { return Ok(None) };
    let is_number = |text: &&str| {
        (1..=10).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
    };
    let millis = value.to_str().ok().filter(is_number).and_then(|text| text.parse().ok());
    let invalid = || status::invalid([Invalid::new(CONNECT_TIMEOUT, "must be 1 to 10 digits")]);
    millis.map(|millis| Some(Duration::from_millis(millis))).ok_or_else(invalid)
}
