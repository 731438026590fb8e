//! What becomes of a peer's refusal on its way to the gateway's caller.

use microblog_chassis::status;
use microblog_domain::{Invalid, UserId};
use microblog_proto::common::ErrorReason;
use tonic::{Code, Status};
use tonic_types::{FieldViolation, StatusExt as _};

/// Fields of a peer's request that come from the caller's: the peer's path, and the caller's.
pub(crate) type Fields = &'static [(&'static str, &'static str)];

/// Returns the status to answer with when a peer answers with this one.
///
/// What is about the caller's input or about the system's state passes with its code and its
/// details, its fields renamed. What the caller cannot have caused (a field that the gateway
/// itself filled in, who it said acts, a status without a reason of ours) is a fault of this system: it is logged
/// here and answered INTERNAL.
///
/// The peer's metadata never passes: they are headers of another answer.
pub(crate) fn pass_on(status: Status, fields: Fields) -> Status {
    use ErrorReason::{
        IdentityInvalid, IdentityMismatch, Internal, MalformedMessage, PeerUnavailable, Unspecified,
    };
    let passed = match (status::reason_of(&status), status.code()) {
        // Said by something in between, such as a proxy.
        (None, Code::Unavailable) => Some(status::with_reason(
            Code::Unavailable,
            PeerUnavailable,
            "a service does not answer",
        )),
        (None, Code::DeadlineExceeded) => Some(status::deadline_exceeded()),
        // Who acts, the gateway says, not its caller.
        (Some(IdentityInvalid | IdentityMismatch), _) => None,
        (None | Some(Unspecified | Internal | MalformedMessage), _) => None,
        (Some(_), _) => renamed(&status, fields),
    };
    passed.unwrap_or_else(|| {
        let (code, message) = (status.code(), status.message());
        tracing::error!(?code, message, "a service answered as it should not");
        status::internal()
    })
}

/// Returns the status to answer with when a call fails that comes after a write: one that leaves
/// open what happened. A refusal would say that nothing did.
pub(crate) fn after_write(status: Status) -> Status {
    let is_open = [Code::Unavailable, Code::DeadlineExceeded, Code::Cancelled, Code::Internal];
    if is_open.contains(&status.code()) {
        return status;
    }
    let (code, message) = (status.code(), status.message());
    tracing::warn!(?code, message, "a service refused what a write needs for its answer");
    let text = "it is done, but a service does not answer";
    status::with_reason(Code::Unavailable, ErrorReason::PeerUnavailable, text)
}

/// Returns a part of an answer that the contract says is there.
pub(crate) fn sent<T>(part: Option<T>) -> Result<T, Status> {
    part.ok_or_else(|| {
        tracing::error!("a service left out a part of its answer");
        status::internal()
    })
}

/// Returns an account id that a peer answered.
pub(crate) fn sent_id(id: u64) -> Result<UserId, Status> {
    sent(UserId::new(id))
}

/// Returns the refusal of what is about a post that there is not, or not any more.
pub(crate) fn post_not_found() -> Status {
    status::not_found(ErrorReason::PostNotFound, "no such post")
}

/// Returns the refusal of what is about a comment that there is not, or not any more.
pub(crate) fn comment_not_found() -> Status {
    status::not_found(ErrorReason::CommentNotFound, "no such comment")
}

/// Returns the refusal of what is about an account that there is not, or not any more.
pub(crate) fn user_not_found() -> Status {
    status::not_found(ErrorReason::UserNotFound, "no such account")
}

/// Says the same in the caller's terms, or nothing if a field is none of the caller's.
fn renamed(status: &Status, fields: Fields) -> Option<Status> {
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

fn rename(field: &str, fields: Fields) -> Option<&'static str> {
    fields.iter().find(|(theirs, _)| *theirs == field).map(|(_, ours)| *ours)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use microblog_domain::TokenError;

    use super::*;

    const FIELDS: Fields = &[("target_id", "user")];

    #[test]
    fn a_wrong_field_is_named_as_the_caller_knows_it() {
        let status = status::invalid([Invalid::new("target_id", "is odd")]);
        let passed = pass_on(status, FIELDS);
        assert_eq!(passed.code(), Code::InvalidArgument);
        assert_eq!(passed.message(), "user: is odd");
        assert_eq!(status::reason_of(&passed), Some(ErrorReason::InvalidField));
        assert_eq!(passed.get_details_bad_request().unwrap().field_violations[0].field, "user");
    }

    #[test]
    fn a_wrong_field_that_the_gateway_filled_in_is_an_internal_error() {
        let fields = [Invalid::new("target_id", "is odd"), Invalid::new("viewer_id", "is odd")];
        let passed = pass_on(status::invalid(fields), FIELDS);
        assert_eq!(passed.code(), Code::Internal);
        assert_eq!(status::reason_of(&passed), Some(ErrorReason::Internal));
    }

    #[test]
    fn that_the_gateway_acts_for_the_wrong_one_is_an_internal_error() {
        for (code, reason) in [
            (Code::Unauthenticated, ErrorReason::IdentityInvalid),
            (Code::PermissionDenied, ErrorReason::IdentityMismatch),
        ] {
            let passed = pass_on(status::with_reason(code, reason, "not you"), FIELDS);
            assert_eq!(passed.code(), Code::Internal);
            assert_eq!(status::reason_of(&passed), Some(ErrorReason::Internal));
        }
    }

    #[test]
    fn a_refusal_keeps_its_details_and_loses_its_metadata() {
        let wait = Duration::from_secs(7);
        let mut throttled = status::throttled(ErrorReason::LoginThrottled, "wait", wait);
        throttled.metadata_mut().insert("server", "theirs".parse().unwrap());
        let passed = pass_on(throttled, FIELDS);
        assert_eq!(passed.code(), Code::ResourceExhausted);
        assert_eq!(status::reason_of(&passed), Some(ErrorReason::LoginThrottled));
        assert_eq!(passed.get_details_retry_info().unwrap().retry_delay, Some(wait));
        assert!(passed.metadata().get("server").is_none());
    }

    #[test]
    fn a_refused_page_token_keeps_its_reason() {
        let passed =
            pass_on(status::page_token(TokenError::Mismatch), &[("page_token", "page_token")]);
        assert_eq!(status::reason_of(&passed), Some(ErrorReason::PageTokenMismatch));
        let fields = passed.get_details_bad_request().unwrap().field_violations;
        assert_eq!(fields[0].field, "page_token");
    }

    #[test]
    fn an_outage_passes() {
        let passed = pass_on(status::store_unavailable(), FIELDS);
        assert_eq!(passed.code(), Code::Unavailable);
        assert_eq!(status::reason_of(&passed), Some(ErrorReason::StoreUnavailable));

        let passed = pass_on(Status::unavailable("no healthy upstream"), FIELDS);
        assert_eq!(passed.code(), Code::Unavailable);
        assert_eq!(status::reason_of(&passed), Some(ErrorReason::PeerUnavailable));
    }

    #[test]
    fn after_a_write_nothing_is_refused() {
        let wait = Duration::from_secs(7);
        for status in [
            status::throttled(ErrorReason::LoginThrottled, "wait", wait),
            status::with_reason(Code::ResourceExhausted, ErrorReason::Overloaded, "too much"),
            status::invalid([Invalid::new("names", "are odd")]),
        ] {
            let told = after_write(status);
            assert_eq!(told.code(), Code::Unavailable);
            assert_eq!(status::reason_of(&told), Some(ErrorReason::PeerUnavailable));
        }
        for status in [status::store_unavailable(), status::internal(), status::deadline_exceeded()]
        {
            assert_eq!(after_write(status.clone()).code(), status.code());
        }
    }

    #[test]
    fn what_is_none_of_the_callers_is_an_internal_error() {
        for status in [Status::unimplemented("no such method"), status::internal()] {
            let passed = pass_on(status, FIELDS);
            assert_eq!(passed.code(), Code::Internal);
            assert_eq!(passed.message(), "internal error");
        }
    }
}
