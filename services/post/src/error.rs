//! What can go wrong in the post service, and the one place that turns it into a status.

use std::time::Duration;

use microblog_chassis::status;
use microblog_domain::{Invalid, TokenError};
use microblog_keyspace as keyspace;
use microblog_proto::common::ErrorReason;
use tonic::{Code, Status};

use crate::archive;

/// Why a call is refused or fails.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Fields of the request are wrong.
    #[error("the request is not valid")]
    Invalid(Vec<Invalid>),
    /// The page token is not one of this list.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// There is no such post.
    #[error("no such post")]
    PostNotFound,
    /// The post has no such comment.
    #[error("no such comment")]
    CommentNotFound,
    /// The post or comment is somebody else's.
    #[error("only the author may do that")]
    NotTheAuthor,
    /// Something else was made with this request id.
    #[error("this request_id belongs to another call")]
    RequestReused,
    /// The author posts too fast.
    #[error("too many posts within a minute")]
    PostsThrottled(Duration),
    /// The author comments too fast.
    #[error("too many comments within a minute")]
    CommentsThrottled(Duration),
    /// The account brings back too many old posts.
    #[error("too many changes of old posts within a minute")]
    RestoresThrottled(Duration),
    /// The author's account is deleted.
    #[error("no such account")]
    AccountDeleted,
    /// The store failed.
    #[error("the store failed")]
    Store(#[from] keyspace::Error),
    /// The archive failed.
    #[error("the archive failed")]
    Archive(#[from] archive::Error),
    /// A post is on its way from one tier to the other, again and again.
    #[error("the post is being moved")]
    RetriesExhausted,
    /// The timeline service failed.
    #[error("the timeline service does not take a post")]
    Timeline(#[source] Status),
}

impl From<Invalid> for Error {
    fn from(invalid: Invalid) -> Self {
        Self::Invalid(vec![invalid])
    }
}

impl Error {
    /// Returns whether it is of no use to go on at once.
    pub(crate) fn is_outage(&self) -> bool {
        match self {
            Self::Timeline(status) => status::is_outage(status),
            Self::Store(error) => error.is_unavailable() || error.is_full(),
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
                let problem = "belongs to another call";
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
            Error::Store(store) => {
                store.log();
                match store {
                    keyspace::Error::Unavailable(_) => status::store_unavailable(),
                    keyspace::Error::Full(_) => status::store_full(),
                    keyspace::Error::ClockAhead(_) => status::clock_ahead(),
                    keyspace::Error::Refused { .. }
                    | keyspace::Error::Malformed(_)
                    | keyspace::Error::Config(_) => status::internal(),
                }
            }
            Error::Archive(archive) if archive.is_unavailable() => {
                let error = &archive as &dyn std::error::Error;
                tracing::warn!(error, "the archive does not answer");
                status::store_unavailable()
            }
            Error::Archive(archive) => {
                tracing::error!(error = &archive as &dyn std::error::Error, "the archive failed");
                status::internal()
            }
            Error::RetriesExhausted => status::store_unavailable(),
            // No call fails for want of a delivery: the sweeper alone meets this.
            Error::Timeline(status) => status,
        }
    }
}
