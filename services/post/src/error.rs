//! Errors of the post service, and their mapping to gRPC statuses.

use std::time::Duration;

use microblog_chassis::status;
use microblog_domain::{Invalid, TokenError};
use microblog_keyspace as keyspace;
use microblog_proto::common::ErrorReason;
use microblog_record::RecordError;
use tonic::{Code, Status};

/// Why a call is rejected or fails.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Fields of the request are not valid.
    #[error("the request is not valid")]
    Invalid(Vec<Invalid>),
    /// The page token belongs to another list, or is damaged.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// There is no such post.
    #[error("no such post")]
    PostNotFound,
    /// The post has no such comment.
    #[error("no such comment")]
    CommentNotFound,
    /// The caller did not write the post or comment.
    #[error("the caller is not the author")]
    NotTheAuthor,
    /// The idempotency key was used for another request.
    #[error("request_id was used for another request")]
    RequestReused,
    /// The author exceeds the rate limit of posts.
    #[error("rate limit of posts exceeded")]
    PostsThrottled(Duration),
    /// The author exceeds the rate limit of comments.
    #[error("rate limit of comments exceeded")]
    CommentsThrottled(Duration),
    /// The account exceeds the rate limit of restores.
    #[error("rate limit of restores exceeded")]
    RestoresThrottled(Duration),
    /// The author's account is deleted.
    #[error("no such account")]
    AccountDeleted,
    /// Redis failed.
    #[error("the store failed")]
    Store(#[from] keyspace::Error),
    /// Redis is at its memory limit, after a repost was stored or deleted: a post that counts it is in
    /// the archive, and cannot be restored to Redis. The sweeper notifies it later.
    #[error("a post is not notified of its repost")]
    NotNotified(#[source] keyspace::Error),
    /// The archive failed.
    #[error("the archive failed")]
    Archive(#[from] microblog_record::Error),
    /// Changes were not recorded.
    #[error("recording failed")]
    Record(#[source] RecordError),
    /// All attempts failed because the post moved between the tiers during each.
    #[error("the post moved between tiers during every attempt")]
    RetriesExhausted,
    /// The timeline service failed.
    #[error("delivery to the timeline service failed")]
    Timeline(#[source] Status),
}

impl From<Invalid> for Error {
    fn from(invalid: Invalid) -> Self {
        Self::Invalid(vec![invalid])
    }
}

impl From<RecordError> for Error {
    fn from(error: RecordError) -> Self {
        match error {
            RecordError::Database(error) => Self::Archive(error),
            RecordError::Redis(error) => Self::Store(error),
            error => Self::Record(error),
        }
    }
}

impl Error {
    /// Returns whether an immediate retry is pointless: a dependency is unavailable or full.
    pub(crate) fn is_outage(&self) -> bool {
        match self {
            Self::Timeline(status) => status::is_service_unavailable(status),
            Self::Store(keyspace::Error::Mismatched) => true,
            Self::Store(error) => error.is_unavailable() || error.is_full(),
            Self::NotNotified(_) => true,
            Self::Archive(error) => error.is_unavailable(),
            _ => false,
        }
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        match error {
            Error::Invalid(fields) => status::invalid(fields),
            Error::Token(token) => status::page_token(token),
            Error::PostNotFound => status::not_found(ErrorReason::PostNotFound, text),
            Error::CommentNotFound => status::not_found(ErrorReason::CommentNotFound, text),
            Error::AccountDeleted => status::not_found(ErrorReason::UserNotFound, text),
            Error::NotTheAuthor => {
                status::with_reason(Code::PermissionDenied, ErrorReason::NotTheAuthor, text)
            }
            Error::RequestReused => {
                let problem = "was used for another request";
                let invalid = Invalid::new("request_id", problem);
                status::bad_request(ErrorReason::RequestIdReused, [invalid])
            }
            Error::PostsThrottled(wait) => {
                status::throttled(ErrorReason::PostsThrottled, text, wait)
            }
            Error::CommentsThrottled(wait) => {
                status::throttled(ErrorReason::CommentsThrottled, text, wait)
            }
            Error::RestoresThrottled(wait) => {
                status::throttled(ErrorReason::RateLimited, text, wait)
            }
            Error::Store(store) => store.into(),
            Error::NotNotified(full) => {
                full.log();
                status::incomplete_while_full()
            }
            Error::Archive(archive) if archive.is_unavailable() => {
                let error = &archive as &dyn std::error::Error;
                tracing::warn!(error, "archive unavailable");
                status::store_unavailable()
            }
            Error::Archive(archive) => {
                tracing::error!(error = &archive as &dyn std::error::Error, "the archive failed");
                status::internal()
            }
            // Only the evictor sees this error.
            Error::Record(_) => status::internal(),
            Error::RetriesExhausted => status::store_unavailable(),
            // Calls do not fail when a delivery does: only the sweeper sees this error.
            Error::Timeline(status) => status,
        }
    }
}
