//! What becomes of a peer's refusal on its way to the gateway's caller.

use microblog_chassis::status;
use microblog_domain::{Invalid, UserId};
use microblog_proto::common::ErrorReason;
use tonic::Status;
use tonic_types::{FieldViolation, StatusExt as _};

/// Fields of a peer's request that come from the caller's: the peer's path, and the caller's.
pub(crate) type Fields = &'static [(&'static str, &'static str)];

/// Returns the status to answer with when a peer answers with this one.
///
/// What is about the caller's input or about the system's state passes with its code and its
/// details, its fields renamed. What the caller cannot have caused (a field that the gateway
/// itself filled in, a status without a reason of ours) is a fault of this system: it is logged
/// here and answered INTERNAL.
///
/// The peer's metadata never passes: they are headers of another answer.
pub(crate) fn pass_on(status: Status, fields: Fields) -> Status {
    let passed = match status::reason_of(&status) {
        None
        | Some(ErrorReason::Unspecified | ErrorReason::Internal | ErrorReason::MalformedMessage) => {
            None
        }
        Some(ErrorReason::InvalidField) => renamed_fields(&status, fields),
        Some(_) => Some(with_renamed_fields(&status, fields)),
    };
    passed.unwrap_or_else(|| {
        let (code, message) = (status.code(), status.message());
        tracing::error!(?code, message, "a service answered as it should not");
        status::internal()
    })
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

/// Says the fields in the caller's terms, or nothing if one of them is none of the caller's.
fn renamed_fields(status: &Status, fields: Fields) -> Option<Status> {
    let violations = status.get_details_bad_request()?.field_violations;
    let renamed = violations.into_iter().map(|violation| {
        Some(Invalid::new(rename(&violation.field, fields)?, violation.description))
    });
    renamed.collect::<Option<Vec<_>>>().map(status::invalid)
}

/// Keeps code, text and details, with the fields that are the caller's renamed.
fn with_renamed_fields(status: &Status, fields: Fields) -> Status {
    let mut details = status.get_error_details();
    if let Some(bad_request) = details.bad_request() {
        let renamed = bad_request.field_violations.iter().filter_map(|violation| {
            Some(FieldViolation::new(rename(&violation.field, fields)?, &violation.description))
        });
        let renamed: Vec<_> = renamed.collect();
        details.set_bad_request(renamed);
    }
    Status::with_error_details(status.code(), status.message(), details)
}

fn rename(field: &str, fields: Fields) -> Option<&'static str> {
    fields.iter().find(|(theirs, _)| *theirs == field).map(|(_, ours)| *ours)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tonic::Code;

    use super::*;

    const FIELDS: Fields = &[("target_id", "user")];

    #[test]
    fn a_wrong_field_is_named_as_the_caller_knows_it() {
        let status = status::invalid([Invalid::new("target_id", "is odd")]);
        let passed = pass_on(status, FIELDS);
        assert_eq!(passed.code(), Code::InvalidArgument);
        assert_eq!(passed.message(), "user: is odd");
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
    fn an_outage_passes() {
        let passed = pass_on(status::store_unavailable(), FIELDS);
        assert_eq!(passed.code(), Code::Unavailable);
        assert_eq!(status::reason_of(&passed), Some(ErrorReason::StoreUnavailable));
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
