//! Statuses of libraries, with a reason of this project, and the headers of errors.

use http::{HeaderMap, HeaderValue};
use microblog_proto::common::ErrorReason;
use tonic::{Code, Status};

use crate::{
    call::metadata::{GRPC_ACCEPT_ENCODING, GRPC_STATUS},
    methods::Method,
    status,
};

/// Returns RESOURCE_EXHAUSTED for a message above `--max-message-bytes`.
pub(crate) fn message_too_large() -> Status {
    let text = "the message is larger than the server takes";
    status::with_reason(Code::ResourceExhausted, ErrorReason::MessageTooLarge, text)
}

/// Completes the headers or trailers of an error: each has a reason, and `grpc-retry-pushback-ms` if it
/// has a retry delay. `map` is for statuses without details, which a library made: every status of this
/// project has some.
pub(super) fn complete_error(
    headers: &mut HeaderMap,
    method: &Method,
    map: fn(&Status) -> Option<Status>,
) {
    let code = headers.get(GRPC_STATUS).map(HeaderValue::as_bytes).map(Code::from_bytes);
    if code.is_none_or(|code| code == Code::Ok) {
        return;
    }
    if headers.contains_key(status::DETAILS) {
        return status::add_retry_pushback(headers);
    }
    let Some(status) = Status::from_header_map(headers) else { return };
    let mapped = match status.code() {
        Code::NotFound if method.is_infrastructure => {
            Some(status::not_found(ErrorReason::NameUnknown, status.message()))
        }
        // Reflection rejects a request without a question.
        Code::InvalidArgument if method.is_infrastructure => {
            let reason = ErrorReason::MalformedMessage;
            Some(status::with_reason(Code::InvalidArgument, reason, status.message()))
        }
        _ => map(&status),
    };
    if let Some(mapped) = mapped {
        // Fails only for text that no header can have.
        let _ = mapped.add_header(headers);
    }
}

/// Maps a status of tonic from before it called a handler.
pub(super) fn map_unbegun(status: &Status) -> Option<Status> {
    match status.code() {
        // The second one is that of a message that is too large once it is decompressed.
        Code::OutOfRange | Code::ResourceExhausted => Some(message_too_large()),
        Code::Internal => {
            let text = "the request is not a valid message of its type";
            Some(status::with_reason(Code::InvalidArgument, ErrorReason::MalformedMessage, text))
        }
        Code::Unimplemented if status.metadata().contains_key(GRPC_ACCEPT_ENCODING) => {
            let reason = ErrorReason::CompressionUnsupported;
            Some(status::with_reason(Code::Unimplemented, reason, status.message()))
        }
        Code::Unimplemented => Some(unknown_method()),
        _ => None,
    }
}

/// Maps a status of tonic from after a handler's first answer, such as one that cannot be encoded.
pub(super) fn map_begun(status: &Status) -> Option<Status> {
    let is_fault = [Code::Internal, Code::OutOfRange, Code::ResourceExhausted];
    is_fault.contains(&status.code()).then(status::internal)
}

/// Returns UNIMPLEMENTED for a method that the server does not have.
pub(crate) fn unknown_method() -> Status {
    let text = "the server has no such method";
    status::with_reason(Code::Unimplemented, ErrorReason::MethodUnknown, text)
}
