//! Errors of the relation service and their mapping to gRPC status.

use microblog_chassis::status;
use microblog_domain::{Invalid, TokenError};
use microblog_keyspace as keyspace;
use microblog_proto::common::ErrorReason;
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
    Forgotten,
    /// The database records more slowly than follows are imported, or than they end in the deletion of
    /// an account.
    #[error("the database is behind: too many changes wait for it; retry later")]
    RecorderBehind,
    /// Redis failed.
    #[error("redis failed")]
    Store(#[from] keyspace::Error),
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
            Error::Forgotten => (Code::NotFound, ErrorReason::UserNotFound),
            Error::RecorderBehind => (Code::ResourceExhausted, ErrorReason::Overloaded),
            Error::Store(store) => return store.into(),
        };
        status::with_reason(code, reason, text)
    }
}
