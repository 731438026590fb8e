//! Requests of Connect: what a request asks for by its head, and its message.

use std::io::Read as _;

use base64::{
    Engine as _,
    alphabet::URL_SAFE,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use bytes::{Buf as _, Bytes};
use flate2::read::MultiGzDecoder;
use http::{HeaderMap, HeaderName, Method, Request, header};
use microblog_domain::Invalid;
use microblog_proto::common::ErrorReason;
use percent_encoding::percent_decode;
use prost_reflect::MethodDescriptor;
use tonic::{Code, Status};

use crate::{
    json::{self, EncodeError},
    methods,
    middleware::message_too_large,
    server::{
        HEALTH, REFLECTION_V1, REFLECTION_V1ALPHA,
        web::{
            envelope::{COMPRESSED, PREFIX},
            head::{JSON, PROTO, STREAM_JSON, STREAM_PROTO, media_type},
            rejection::Rejection,
        },
    },
    status,
};

/// The largest message as JSON: decoded, a message takes up to a hundred times as much memory. A public
/// call needs less.
const JSON_BYTES_MAX: usize = 256 * 1024;

const PROTOCOL_VERSION: &str = "connect-protocol-version";
const STREAM_ENCODING: HeaderName = HeaderName::from_static("connect-content-encoding");
const STREAM_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("connect-accept-encoding");

/// What reflection takes: a stream in both directions, which HTTP/1.1 does not have.
pub(super) const EXCHANGE: &str = "application/connect+proto by POST over HTTP/2; `buf curl` needs \
                                   --http2-prior-knowledge for a server without TLS";

/// Headers of the request's message and of its connection. They say nothing about the call.
const NOT_METADATA: [HeaderName; 9] = [
    header::ACCEPT,
    header::ACCEPT_ENCODING,
    header::CONNECTION,
    header::CONTENT_ENCODING,
    header::CONTENT_LENGTH,
    header::CONTENT_TYPE,
    header::HOST,
    header::TE,
    header::TRANSFER_ENCODING,
];

/// Of a message in a query. Clients may leave the padding out.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &URL_SAFE,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// In which form messages are.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Format {
    Json,
    Proto,
}

/// What a request asks for. Its head is valid for its method.
pub(in crate::server::web) struct Asked {
    pub(super) method: MethodDescriptor,
    pub(super) format: Format,
    /// Whether the message may be compressed, with gzip: that of a stream says so itself.
    is_gzip: bool,
    /// Of a GET request.
    queried: Option<Vec<u8>>,
}

fn posted(method: MethodDescriptor, headers: &HeaderMap) -> Result<Asked, Rejection> {
    let is_stream = method.is_server_streaming();
    let (json, proto, taken) = if is_stream {
        (STREAM_JSON, STREAM_PROTO, "application/connect+json or application/connect+proto")
    } else {
        (JSON, PROTO, "application/json or application/proto")
    };
    let format = match media_type(headers) {
        one if one == json.as_bytes() => Format::Json,
        one if one == proto.as_bytes() => Format::Proto,
        _ => return Err(Rejection::media_type(taken)),
    };
    check_version(headers)?;
    let (encoding, accepted) = if is_stream {
        (STREAM_ENCODING, STREAM_ACCEPT_ENCODING)
    } else {
        (header::CONTENT_ENCODING, header::ACCEPT_ENCODING)
    };
    let encoding = headers.get(encoding).map_or(&[][..], |value| value.as_bytes());
    let is_gzip = is_gzip(encoding).ok_or_else(|| Rejection::compression(accepted, "gzip"))?;
    Ok(Asked { method, format, is_gzip, queried: None })
}

/// Checks the version of the protocol, which a caller need not name.
pub(super) fn check_version(headers: &HeaderMap) -> Result<(), Status> {
    match headers.get(PROTOCOL_VERSION) {
        Some(version) if version != "1" => {
            Err(status::invalid([Invalid::new(PROTOCOL_VERSION, "must be 1")]))
        }
        _ => Ok(()),
    }
}

/// Returns whether an encoding is gzip, and not identity; `None` if it is another one.
fn is_gzip(encoding: &[u8]) -> Option<bool> {
    match encoding {
        b"" | b"identity" => Some(false),
        b"gzip" => Some(true),
        _ => None,
    }
}

/// Reads the query of a GET request. Parameters that are unknown have no meaning.
fn queried(method: MethodDescriptor, query: &str) -> Result<Asked, Rejection> {
    let parameter = |name: &str| {
        let mut pairs = query.rsplit('&').filter_map(|pair| pair.split_once('='));
        let value = pairs.find(|(key, _)| *key == name).map(|(_, value)| value);
        value.map(|value| percent_decode(value.replace('+', " ").as_bytes()).collect::<Vec<_>>())
    };
    let invalid = |name, problem| status::invalid([Invalid::new(name, problem)]);
    let format = match parameter("encoding").as_deref() {
        Some(b"json") => Format::Json,
        Some(b"proto") => Format::Proto,
        Some(_) => return Err(Rejection::media_type("json or proto as `encoding`")),
        None => return Err(invalid("encoding", "must be json or proto").into()),
    };
    if parameter("connect").is_some_and(|version| version != b"v1") {
        return Err(invalid("connect", "must be v1").into());
    }
    let is_gzip = is_gzip(&parameter("compression").unwrap_or_default())
        .ok_or_else(|| Rejection::compression(header::ACCEPT_ENCODING, "gzip"))?;
    let mut message = parameter("message").unwrap_or_default();
    if parameter("base64").as_deref() == Some(b"1") {
        let malformed = |_| invalid("message", "must be base64 in its URL-safe form");
        message = BASE64.decode(message).map_err(malformed)?;
    }
    Ok(Asked { method, format, is_gzip, queried: Some(message) })
}

impl Asked {
    /// Returns what a request asks for, by its head alone. `method` is that of its path.
    pub(super) fn of<B>(
        request: &Request<B>,
        method: Option<&MethodDescriptor>,
    ) -> Result<Self, Rejection> {
        let path = request.uri().path();
        if is_reflection(path) {
            return Err(Rejection::media_type(EXCHANGE));
        }
        let method = method.ok_or_else(Rejection::unknown_method)?.clone();
        let is_read = methods::is_read(path) == Some(true) && !method.is_server_streaming();
        match *request.method() {
            Method::POST => posted(method, request.headers()),
            Method::GET if is_read => queried(method, request.uri().query().unwrap_or_default()),
            _ if is_read => {
                Err(Rejection::http_method("GET, POST", "call this method by GET or POST"))
            }
            _ if path.trim_start_matches('/').starts_with(HEALTH) => {
                let text = "call this method by POST; GET /healthz has a status code for health";
                Err(Rejection::http_method("POST", text))
            }
            _ => Err(Rejection::http_method("POST", "call this method by POST")),
        }
    }

    /// Returns the message of the request, encoded.
    pub(super) fn message(&self, body: Bytes, max: usize) -> Result<Bytes, Status> {
        let (mut message, mut is_compressed) = match &self.queried {
            Some(message) => (Bytes::copy_from_slice(message), self.is_gzip),
            None => (body, self.is_gzip),
        };
        if self.method.is_server_streaming() {
            (message, is_compressed) = opened(message, max)?;
            if is_compressed && !self.is_gzip {
                let text = "a compressed message without connect-content-encoding";
                return Err(malformed(Code::Internal, text));
            }
        }
        let max = if self.format == Format::Json { max.min(JSON_BYTES_MAX) } else { max };
        // An empty message may be compressed to nothing.
        if is_compressed && !message.is_empty() {
            message = decompressed(&message, max)?;
        }
        if message.len() > max {
            return Err(message_too_large());
        }
        match self.format {
            Format::Proto => Ok(message),
            Format::Json => {
                json::encode(self.method.input(), &message).map_err(|error| match error {
                    EncodeError::UnknownValues(invalid) => status::invalid(invalid),
                    EncodeError::Malformed(_) => {
                        malformed(Code::InvalidArgument, error.to_string())
                    }
                })
            }
        }
    }

    /// Returns a message of the answer.
    pub(super) fn answer(&self, message: Bytes) -> Result<Bytes, Status> {
        match self.format {
            Format::Json => json::decode(self.method.output(), message).map_err(|problem| {
                let method = json::path(&self.method);
                tracing::error!(method, %problem, "an answer has no JSON form");
                status::internal()
            }),
            Format::Proto => Ok(message),
        }
    }
}

/// Returns the message of a stream's request, which has exactly one, and whether it is compressed.
fn opened(mut body: Bytes, max: usize) -> Result<(Bytes, bool), Status> {
    if body.is_empty() {
        return Err(malformed(Code::Unimplemented, "the request has no message"));
    }
    let incomplete = || malformed(Code::InvalidArgument, "the message is incomplete");
    if body.len() < PREFIX {
        return Err(incomplete());
    }
    let (flags, length) = (body.get_u8(), body.get_u32() as usize);
    if flags & !COMPRESSED != 0 {
        return Err(malformed(Code::InvalidArgument, "the message has unknown flags"));
    }
    if length > max {
        return Err(message_too_large());
    }
    match body.len() {
        shorter if shorter < length => Err(incomplete()),
        longer if longer > length => {
            Err(malformed(Code::Unimplemented, "the request has several messages"))
        }
        _ => Ok((body, flags == COMPRESSED)),
    }
}

/// Decompresses a message up to a size.
fn decompressed(message: &[u8], max: usize) -> Result<Bytes, Status> {
    let mut decompressed = Vec::new();
    let limit = u64::try_from(max).unwrap_or(u64::MAX).saturating_add(1);
    match MultiGzDecoder::new(message).take(limit).read_to_end(&mut decompressed) {
        Ok(length) if length > max => Err(message_too_large()),
        Ok(_) => Ok(decompressed.into()),
        Err(error) => {
            let text = format!("the message is not compressed with gzip: {error}");
            Err(malformed(Code::InvalidArgument, text))
        }
    }
}

fn malformed(code: Code, text: impl Into<String>) -> Status {
    status::with_reason(code, ErrorReason::MalformedMessage, text)
}

/// Returns the metadata of a call: its headers without those of Connect, of gRPC, which the caller does
/// not speak, and of HTTP.
pub(super) fn metadata(headers: &HeaderMap) -> HeaderMap {
    let is_metadata = |name: &HeaderName| {
        let text = name.as_str();
        let is_protocol = ["connect-", "grpc-", "sec-", "access-control-"]
            .iter()
            .any(|prefix| text.starts_with(prefix));
        !is_protocol && !NOT_METADATA.contains(name)
    };
    let fields = headers.iter().filter(|(name, _)| is_metadata(name));
    fields.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Returns whether a path is that of reflection.
fn is_reflection(path: &str) -> bool {
    let service =
        path.strip_prefix('/').and_then(|path| path.strip_suffix("/ServerReflectionInfo"));
    service.is_some_and(|service| [REFLECTION_V1, REFLECTION_V1ALPHA].contains(&service))
}

/// Returns whether a request opens a stream in both directions. JSON would have to be encoded.
pub(in crate::server::web) fn is_exchange<B>(request: &Request<B>) -> bool {
    is_reflection(request.uri().path())
        && request.method() == Method::POST
        && media_type(request.headers()) == STREAM_PROTO.as_bytes()
}
