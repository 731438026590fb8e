//! Errors of the relation service and their mapping to gRPC status.

use microblog_chassis::status;
use microblog_domain::{Invalid, TokenError};
use microblog_proto::common::ErrorReason;
use microblog_storage::{ReadError, WriteError, of_database};
use tonic::{Code, Status};

/// Why a call is rejected or fails.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Fields of the request are invalid.
    #[error("invalid request")]
    Invalid(Vec<Invalid>),
    /// The page token is invalid for this list.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The two accounts are the same. Has the name of the field.
    #[error("{0}: must be another account")]
    SelfRelation(&'static str),
    /// The follower is at the following limit.
    #[error("following limit reached")]
    FollowingLimit,
    /// The list is private, and the viewer is not its user.
    #[error("the list is private to its user")]
    PrivateList,
    /// The user's list of blocks or mutes is at its limit.
    #[error("list limit reached")]
    ListLimit,
    /// The target has blocked the user.
    #[error("the account has blocked you")]
    BlockedByTarget,
    /// The user has blocked the target.
    #[error("you have blocked the account")]
    TargetBlocked,
    /// One account is deleted.
    #[error("no such account")]
    Deleted,
    /// A change was not written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// A read failed.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The database failed.
    #[error(transparent)]
    Database(#[from] microblog_record::Error),
}

impl From<Invalid> for Error {
    fn from(invalid: Invalid) -> Self {
        Self::Invalid(vec![invalid])
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        let (code, reason) = match error {
            Error::Invalid(fields) => return status::invalid(fields),
            Error::Token(token) => return status::page_token(token),
            Error::SelfRelation(field) => {
                let invalid = Invalid::new(field, "must be another account");
                return status::bad_request(ErrorReason::SelfRelation, [invalid]);
            }
            Error::FollowingLimit => (Code::FailedPrecondition, ErrorReason::FollowingLimit),
            Error::PrivateList => (Code::PermissionDenied, ErrorReason::IdentityMismatch),
            Error::ListLimit => (Code::FailedPrecondition, ErrorReason::ListLimit),
            Error::BlockedByTarget => (Code::PermissionDenied, ErrorReason::BlockedByTarget),
            Error::TargetBlocked => (Code::FailedPrecondition, ErrorReason::TargetBlocked),
            Error::Deleted => (Code::NotFound, ErrorReason::UserNotFound),
            Error::Write(error) => return error.into(),
            Error::Read(error) => return error.into(),
            Error::Database(error) => return of_database(&error),
        };
        status::with_reason(code, reason, text)
    }
}
