//! Error model: gRPC statuses with a code, an `ErrorInfo` with a reason, and for invalid input a
//! `BadRequest` that names each field.

use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use microblog_domain::{Invalid, TokenError};
use microblog_proto::common::ErrorReason;
use tonic::{Code, Status, metadata::MetadataValue};
use tonic_types::{ErrorDetails, FieldViolation, StatusExt as _};

use crate::call::metadata::GRPC_RETRY_PUSHBACK;

/// The domain of every `ErrorInfo`.
pub const DOMAIN: &str = "microblog";

/// The header or trailer with the details of an error.
pub(crate) const DETAILS: &str = "grpc-status-details-bin";

// Prefix of the proto's enum values, omitted in an `ErrorInfo`.
const REASON_PREFIX: &str = "ERROR_REASON_";

/// Returns a status with a reason. The text is sent to the caller: it must not contain secrets.
pub fn with_reason(code: Code, reason: ErrorReason, text: impl Into<String>) -> Status {
    Status::with_error_details(code, text, info(reason))
}

/// Returns INVALID_ARGUMENT that names every invalid field.
pub fn invalid(fields: impl IntoIterator<Item = Invalid>) -> Status {
    bad_request(ErrorReason::InvalidField, fields)
}

/// Returns INVALID_ARGUMENT with another reason than malformed fields, and names the fields.
pub fn bad_request(reason: ErrorReason, fields: impl IntoIterator<Item = Invalid>) -> Status {
    let fields: Vec<Invalid> = fields.into_iter().collect();
    let text = fields.iter().map(Invalid::to_string).collect::<Vec<_>>().join("; ");
    let violation = |invalid: Invalid| FieldViolation::new(invalid.field, invalid.problem);
    let mut details = info(reason);
    details.set_bad_request(fields.into_iter().map(violation).collect::<Vec<_>>());
    Status::with_error_details(Code::InvalidArgument, text, details)
}

/// Maps a page token error to INVALID_ARGUMENT for the field `page_token`.
pub fn page_token(error: TokenError) -> Status {
    token("page_token", error)
}

/// Maps a token error to INVALID_ARGUMENT for a field.
pub fn token(field: &str, error: TokenError) -> Status {
    let reason = match error {
        TokenError::Invalid => ErrorReason::PageTokenInvalid,
        TokenError::Mismatch => ErrorReason::PageTokenMismatch,
    };
    bad_request(reason, [Invalid::new(field, error.to_string())])
}

/// Returns RESOURCE_EXHAUSTED with a retry delay (`RetryInfo`).
pub fn throttled(reason: ErrorReason, text: impl Into<String>, retry_after: Duration) -> Status {
    let mut details = info(reason);
    details.set_retry_info(Some(retry_after));
    Status::with_error_details(Code::ResourceExhausted, text, details)
}

/// Adds `grpc-retry-pushback-ms` to the headers or trailers of an error that has a retry delay, since more
/// clients know it than `RetryInfo`. One that forbids a retry stays.
pub(crate) fn add_retry_pushback(headers: &mut HeaderMap) {
    if !headers.contains_key(DETAILS) || headers.contains_key(GRPC_RETRY_PUSHBACK) {
        return;
    }
    let delay = Status::from_header_map(headers).as_ref().and_then(retry_delay);
    if let Some(delay) = delay {
        let millis = i32::try_from(delay.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX);
        headers.insert(GRPC_RETRY_PUSHBACK, HeaderValue::from(millis));
    }
}

/// Returns the retry delay of a status, if it has one.
pub(crate) fn retry_delay(status: &Status) -> Option<Duration> {
    status.get_details_retry_info()?.retry_delay
}

/// Returns UNAUTHENTICATED.
pub fn unauthenticated(reason: ErrorReason, text: impl Into<String>) -> Status {
    with_reason(Code::Unauthenticated, reason, text)
}

/// Returns NOT_FOUND.
pub fn not_found(reason: ErrorReason, text: impl Into<String>) -> Status {
    with_reason(Code::NotFound, reason, text)
}

/// Returns UNAVAILABLE for a store that does not respond. Log the cause; the status omits it.
pub fn store_unavailable() -> Status {
    with_reason(Code::Unavailable, ErrorReason::StoreUnavailable, "store unavailable")
}

/// Returns RESOURCE_EXHAUSTED for a write that the store rejects at its memory limit. Nothing was
/// changed.
pub fn store_full() -> Status {
    let text = "redis is at its memory limit; nothing was changed";
    with_reason(Code::ResourceExhausted, ErrorReason::StoreFull, text)
}

/// Returns UNAVAILABLE for a write whose id would be too far ahead of the time of the database. Nothing was
/// changed.
pub fn clock_ahead() -> Status {
    let text =
        "an id would be more than five minutes ahead of the database's clock; nothing was changed";
    with_reason(Code::Unavailable, ErrorReason::ClockAhead, text)
}

/// Returns UNAVAILABLE for a write that the database may not have.
pub fn not_recorded() -> Status {
    let text = "the write may not be committed; repeat it";
    let mut status = with_reason(Code::Unavailable, ErrorReason::NotRecorded, text);
    // All replicas share the database: another one would answer no better, later.
    status.metadata_mut().insert(GRPC_RETRY_PUSHBACK, MetadataValue::from_static("-1"));
    status
}

/// Returns INTERNAL for a fault of the service. Log the cause; the status omits it.
pub fn internal() -> Status {
    with_reason(Code::Internal, ErrorReason::Internal, "internal error")
}

/// Returns DEADLINE_EXCEEDED.
pub fn deadline_exceeded() -> Status {
    with_reason(Code::DeadlineExceeded, ErrorReason::DeadlineExceeded, "deadline exceeded")
}

pub(crate) fn peer_unavailable() -> Status {
    with_reason(Code::Unavailable, ErrorReason::PeerUnavailable, "a backend service is unavailable")
}

// Shares the reason of an unavailable peer: to the caller both mean to retry elsewhere.
pub(crate) fn stopping() -> Status {
    with_reason(
        Code::Unavailable,
        ErrorReason::PeerUnavailable,
        "the server is shutting down; retry on another server",
    )
}

/// Returns whether a status means that the service is unavailable, rather than that this call
/// failed: other calls would fail as well.
pub fn is_service_unavailable(status: &Status) -> bool {
    use Code::{Cancelled, DeadlineExceeded, ResourceExhausted, Unavailable};
    [Unavailable, DeadlineExceeded, Cancelled, ResourceExhausted].contains(&status.code())
}

/// Returns the error reason of a status, if it is one of this project.
pub fn reason_of(status: &Status) -> Option<ErrorReason> {
    let info = status.get_details_error_info().filter(|info| info.domain == DOMAIN)?;
    ErrorReason::from_str_name(&format!("{REASON_PREFIX}{}", info.reason))
}

/// Returns the name of a status code, as in the gRPC specification.
pub fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

fn info(reason: ErrorReason) -> ErrorDetails {
    let name = reason.as_str_name();
    let name = name.strip_prefix(REASON_PREFIX).unwrap_or(name);
    ErrorDetails::with_error_info(name, DOMAIN, [])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_reason_round_trips() {
        let status = with_reason(Code::NotFound, ErrorReason::UserNotFound, "no such account");
        let info = status.get_details_error_info().unwrap();
        assert_eq!((info.reason.as_str(), info.domain.as_str()), ("USER_NOT_FOUND", "microblog"));
        assert_eq!(reason_of(&status), Some(ErrorReason::UserNotFound));
        assert_eq!(reason_of(&Status::not_found("elsewhere")), None);
    }

    #[test]
    fn bad_request_names_every_invalid_field() {
        let status = invalid([Invalid::new("a", "is bad"), Invalid::new("b", "is worse")]);
        let fields = status.get_details_bad_request().unwrap().field_violations;
        assert_eq!(fields.iter().map(|f| f.field.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(status.message(), "a: is bad; b: is worse");
        assert_eq!(reason_of(&status), Some(ErrorReason::InvalidField));
    }

    #[test]
    fn a_retry_delay_is_a_pushback_rounded_up() {
        let pushback = |status: &Status| {
            let mut headers = HeaderMap::new();
            status.add_header(&mut headers).unwrap();
            add_retry_pushback(&mut headers);
            let all: Vec<_> = headers.get_all(GRPC_RETRY_PUSHBACK).iter().collect();
            all.iter().map(|value| value.to_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let throttled = |wait| throttled(ErrorReason::RateLimited, "wait", wait);
        assert_eq!(pushback(&throttled(Duration::from_micros(1_500))), ["2"]);
        assert_eq!(pushback(&throttled(Duration::ZERO)), ["0"]);
        assert_eq!(pushback(&throttled(Duration::from_secs(u64::from(u32::MAX)))), ["2147483647"]);
        assert_eq!(pushback(&not_recorded()), ["-1"]);
        assert!(pushback(&store_full()).is_empty());
        assert!(pushback(&Status::unavailable("elsewhere")).is_empty());
    }

    #[test]
    fn throttled_status_has_a_retry_delay() {
        let wait = Duration::from_secs(7);
        let status = throttled(ErrorReason::LoginThrottled, "wait", wait);
        assert_eq!(status.get_details_retry_info().unwrap().retry_delay, Some(wait));
        assert_eq!(reason_of(&status), Some(ErrorReason::LoginThrottled));
    }
}
