//! Error mapping: from a service's status to the status that the gateway's caller gets.

use std::time::Duration;

use microblog_chassis::status;
use microblog_domain::{Invalid, UserId};
use microblog_proto::common::ErrorReason;
use tokio::time::timeout;
use tonic::{Code, Response, Status, Streaming};
use tonic_types::{FieldViolation, StatusExt as _};

/// How long a service has to open a stream.
const OPENING_MAX: Duration = Duration::from_secs(10);

/// Request fields that the caller controls, each with the fields inside it: the name in the
/// service's request, and in the gateway's.
pub(crate) type Fields = &'static [(&'static str, &'static str)];

/// Returns the message of a service's response, or its error mapped for the caller.
pub(crate) fn reply<T>(response: Result<Response<T>, Status>, fields: Fields) -> Result<T, Status> {
    response.map(Response::into_inner).map_err(|status| map(status, fields))
}

/// Returns the stream that a service opens in time, or the error mapped for the caller. A stream has no
/// deadline, and its connection may be at its limit of streams.
pub(crate) async fn stream<T>(
    opening: impl Future<Output = Result<Response<Streaming<T>>, Status>>,
    fields: Fields,
) -> Result<Streaming<T>, Status> {
    let opened = timeout(OPENING_MAX, opening).await;
    reply(opened.unwrap_or_else(|_elapsed| Err(Status::unavailable("late"))), fields)
}

/// Maps a service's error to the status for the gateway's caller.
///
/// An error about the caller's input or the system's state keeps its code and details, with the
/// fields renamed. An error that the caller cannot have caused becomes INTERNAL, and is logged
/// here: a field that the gateway set, the identity that it acts for, or a status without a known
/// reason.
///
/// Metadata is dropped: it belongs to the service's response.
pub(crate) fn map(status: Status, fields: Fields) -> Status {
    use ErrorReason::{
        IdentityInvalid, IdentityMismatch, Internal, MalformedMessage, MethodUnknown, Unspecified,
    };
    let mapped = match (status::reason_of(&status), status.code()) {
        // Sent by an intermediary, such as a proxy.
        (None, Code::Unavailable) => Some(unavailable()),
        (None, Code::DeadlineExceeded) => Some(status::deadline_exceeded()),
        // The gateway sets the identity, not its caller.
        (Some(IdentityInvalid | IdentityMismatch), _) => None,
        // An older service lacks a method of a newer gateway: its caller's method exists.
        (None | Some(Unspecified | Internal | MalformedMessage | MethodUnknown), _) => None,
        (Some(_), _) => with_renamed_fields(&status, fields),
    };
    mapped.unwrap_or_else(|| {
        let (code, message) = (status.code(), status.message());
        tracing::error!(?code, message, "unexpected error from a service");
        status::internal()
    })
}

/// Maps an error of a call that follows a write. The outcome must stay open: a rejection would
/// claim that nothing was written.
pub(crate) fn after_write(status: Status) -> Status {
    let is_open = [Code::Unavailable, Code::DeadlineExceeded, Code::Cancelled, Code::Internal];
    if is_open.contains(&status.code()) {
        return status;
    }
    let (code, message) = (status.code(), status.message());
    tracing::warn!(?code, message, "a call after a write was rejected");
    let text = "it is done, but a service does not answer";
    status::with_reason(Code::Unavailable, ErrorReason::PeerUnavailable, text)
}

/// Returns the error for a service that does not answer.
pub(crate) fn unavailable() -> Status {
    let text = "a service does not answer";
    status::with_reason(Code::Unavailable, ErrorReason::PeerUnavailable, text)
}

/// Returns a field that the contract requires in a service's response.
pub(crate) fn required<T>(field: Option<T>) -> Result<T, Status> {
    field.ok_or_else(|| {
        tracing::error!("required field missing in a service's response");
        status::internal()
    })
}

/// Returns an account id from a service's response.
pub(crate) fn user_id(id: u64) -> Result<UserId, Status> {
    required(UserId::new(id))
}

/// Returns the error for a post that does not exist, or no longer.
pub(crate) fn post_not_found() -> Status {
    status::not_found(ErrorReason::PostNotFound, "no such post")
}

/// Returns the error for a comment that does not exist, or no longer.
pub(crate) fn comment_not_found() -> Status {
    status::not_found(ErrorReason::CommentNotFound, "no such comment")
}

/// Returns the error for an account that does not exist, or no longer.
pub(crate) fn user_not_found() -> Status {
    status::not_found(ErrorReason::UserNotFound, "no such account")
}

/// Returns the same error with the caller's field names; `None` if a field is not the caller's.
fn with_renamed_fields(status: &Status, fields: Fields) -> Option<Status> {
    let mut details = status.get_error_details();
    let Some(bad_request) = details.bad_request() else {
        return Some(Status::with_error_details(status.code(), status.message(), details));
    };
    let violations = bad_request.field_violations.iter();
    let invalids = violations
        .map(|violation| {
            Some(Invalid::new(rename(&violation.field, fields)?, &violation.description))
        })
        .collect::<Option<Vec<_>>>()?;
    let text = invalids.iter().map(Invalid::to_string).collect::<Vec<_>>().join("; ");
    let violation = |invalid: Invalid| FieldViolation::new(invalid.field, invalid.problem);
    details.set_bad_request(invalids.into_iter().map(violation).collect::<Vec<_>>());
    Some(Status::with_error_details(status.code(), text, details))
}

fn rename(field: &str, fields: Fields) -> Option<String> {
    fields.iter().find_map(|(theirs, ours)| {
        let inside = field.strip_prefix(theirs)?;
        (inside.is_empty() || inside.starts_with(['.', '['])).then(|| format!("{ours}{inside}"))
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use microblog_domain::TokenError;

    use super::*;

    const FIELDS: Fields = &[("target_id", "user")];

    #[test]
    fn an_invalid_field_has_the_name_that_the_caller_knows() {
        let status = status::invalid([Invalid::new("target_id", "is odd")]);
        let mapped = map(status, FIELDS);
        assert_eq!(mapped.code(), Code::InvalidArgument);
        assert_eq!(mapped.message(), "user: is odd");
        assert_eq!(status::reason_of(&mapped), Some(ErrorReason::InvalidField));
        assert_eq!(mapped.get_details_bad_request().unwrap().field_violations[0].field, "user");
    }

    #[test]
    fn a_field_inside_a_message_of_the_caller_is_the_callers() {
        let invalid = |field: &str| status::invalid([Invalid::new(field, "is odd")]);
        let mapped = map(invalid("target_id.name"), FIELDS);
        assert_eq!(mapped.message(), "user.name: is odd");
        assert_eq!(map(invalid("target_ids"), FIELDS).code(), Code::Internal);
    }

    #[test]
    fn an_invalid_field_that_the_gateway_set_is_an_internal_error() {
        let fields = [Invalid::new("target_id", "is odd"), Invalid::new("viewer_id", "is odd")];
        let mapped = map(status::invalid(fields), FIELDS);
        assert_eq!(mapped.code(), Code::Internal);
        assert_eq!(status::reason_of(&mapped), Some(ErrorReason::Internal));
    }

    #[test]
    fn a_rejected_identity_is_an_internal_error() {
        for (code, reason) in [
            (Code::Unauthenticated, ErrorReason::IdentityInvalid),
            (Code::PermissionDenied, ErrorReason::IdentityMismatch),
        ] {
            let mapped = map(status::with_reason(code, reason, "not you"), FIELDS);
            assert_eq!(mapped.code(), Code::Internal);
            assert_eq!(status::reason_of(&mapped), Some(ErrorReason::Internal));
        }
    }

    #[test]
    fn a_rejection_keeps_its_details_and_loses_its_metadata() {
        let wait = Duration::from_secs(7);
        let mut throttled = status::throttled(ErrorReason::LoginThrottled, "wait", wait);
        throttled.metadata_mut().insert("server", "theirs".parse().unwrap());
        let mapped = map(throttled, FIELDS);
        assert_eq!(mapped.code(), Code::ResourceExhausted);
        assert_eq!(status::reason_of(&mapped), Some(ErrorReason::LoginThrottled));
        assert_eq!(mapped.get_details_retry_info().unwrap().retry_delay, Some(wait));
        assert!(mapped.metadata().get("server").is_none());
    }

    #[test]
    fn a_rejected_page_token_keeps_its_reason() {
        let mapped = map(status::page_token(TokenError::Mismatch), &[("page_token", "page_token")]);
        assert_eq!(status::reason_of(&mapped), Some(ErrorReason::PageTokenMismatch));
        let fields = mapped.get_details_bad_request().unwrap().field_violations;
        assert_eq!(fields[0].field, "page_token");
    }

    #[test]
    fn an_outage_stays_unavailable() {
        let mapped = map(status::store_unavailable(), FIELDS);
        assert_eq!(mapped.code(), Code::Unavailable);
        assert_eq!(status::reason_of(&mapped), Some(ErrorReason::StoreUnavailable));

        let mapped = map(Status::unavailable("no healthy upstream"), FIELDS);
        assert_eq!(mapped.code(), Code::Unavailable);
        assert_eq!(status::reason_of(&mapped), Some(ErrorReason::PeerUnavailable));
    }

    #[test]
    fn no_call_after_a_write_is_rejected() {
        let wait = Duration::from_secs(7);
        for status in [
            status::throttled(ErrorReason::LoginThrottled, "wait", wait),
            status::with_reason(Code::ResourceExhausted, ErrorReason::Overloaded, "too much"),
            status::invalid([Invalid::new("names", "are odd")]),
        ] {
            let mapped = after_write(status);
            assert_eq!(mapped.code(), Code::Unavailable);
            assert_eq!(status::reason_of(&mapped), Some(ErrorReason::PeerUnavailable));
        }
        for status in [status::store_unavailable(), status::internal(), status::deadline_exceeded()]
        {
            assert_eq!(after_write(status.clone()).code(), status.code());
        }
    }

    #[test]
    fn an_error_that_is_not_the_callers_is_an_internal_error() {
        let unknown = ErrorReason::MethodUnknown;
        for status in [
            Status::unimplemented("no such method"),
            status::with_reason(Code::Unimplemented, unknown, "no such method"),
            status::internal(),
        ] {
            let mapped = map(status, FIELDS);
            assert_eq!(mapped.code(), Code::Internal);
            assert_eq!(mapped.message(), "internal error");
        }
    }
}
