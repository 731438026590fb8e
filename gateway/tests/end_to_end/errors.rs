//! Assertions of errors.

use std::fmt::Debug;

use microblog_chassis::status;
use microblog_proto::common::ErrorReason;
use tonic::{Code, Response, Status};
use tonic_types::StatusExt as _;

/// An expected error: its code, reason and fields.
pub(crate) type Expected<'a> = (Code, ErrorReason, &'a [&'a str]);

pub(crate) const TOKEN_MISSING: Expected = (Code::Unauthenticated, ErrorReason::TokenMissing, &[]);
pub(crate) const TOKEN_INVALID: Expected = (Code::Unauthenticated, ErrorReason::TokenInvalid, &[]);
pub(crate) const USER_NOT_FOUND: Expected = (Code::NotFound, ErrorReason::UserNotFound, &[]);
pub(crate) const POST_NOT_FOUND: Expected = (Code::NotFound, ErrorReason::PostNotFound, &[]);
pub(crate) const COMMENT_NOT_FOUND: Expected = (Code::NotFound, ErrorReason::CommentNotFound, &[]);
pub(crate) const BLOCKED_BY_TARGET: Expected =
    (Code::PermissionDenied, ErrorReason::BlockedByTarget, &[]);
pub(crate) const TARGET_BLOCKED: Expected =
    (Code::FailedPrecondition, ErrorReason::TargetBlocked, &[]);

pub(crate) const fn invalid<'a>(fields: &'a [&'a str]) -> Expected<'a> {
    (Code::InvalidArgument, ErrorReason::InvalidField, fields)
}

#[track_caller]
pub(crate) fn assert_error<T: Debug>(
    what: &str,
    answer: Result<Response<T>, Status>,
    expected: Expected,
) {
    let status = answer.expect_err(what);
    let fields = status.get_details_bad_request().map(|details| details.field_violations);
    let fields: Vec<&str> =
        fields.iter().flatten().map(|violation| violation.field.as_str()).collect();
    let found = (status.code(), status::reason_of(&status), fields);
    assert_eq!(found, (expected.0, Some(expected.1), expected.2.to_vec()), "{what}: {status:?}");
}
