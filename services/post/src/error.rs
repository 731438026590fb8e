//! Errors of the post service, and their mapping to gRPC statuses.

use std::time::Duration;

use microblog_chassis::status;
use microblog_domain::{Invalid, TokenError};
use microblog_proto::common::ErrorReason;
use microblog_storage::{ReadError, WriteError, of_database};
use tonic::{Code, Status};

use crate::steps::Rejection;

/// Why a call is rejected or fails.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
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
    /// The author's account is deleted.
    #[error("no such account")]
    AccountDeleted,
    /// Ids would be too far ahead of the time.
    #[error("ids are ahead of the clock")]
    ClockAhead,
    /// All ids of the time of an imported post, of which this is the index, are those of other posts.
    #[error("too many posts of the author have this time")]
    TimeTaken(usize),
    /// A change was not written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// A read failed.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The database failed.
    #[error(transparent)]
    Database(#[from] microblog_record::Error),
    /// The timeline service failed.
    #[error("delivery to the timeline service failed")]
    Timeline(#[source] Status),
}

impl From<Invalid> for Error {
    fn from(invalid: Invalid) -> Self {
        Self::Invalid(vec![invalid])
    }
}

impl From<Rejection> for Error {
    fn from(rejection: Rejection) -> Self {
        match rejection {
            Rejection::PostNotFound => Self::PostNotFound,
            Rejection::CommentNotFound => Self::CommentNotFound,
            Rejection::NotTheAuthor => Self::NotTheAuthor,
            Rejection::AccountDeleted => Self::AccountDeleted,
            Rejection::ClockAhead => Self::ClockAhead,
            // Of a call with one post.
            Rejection::TimeTaken => Self::TimeTaken(0),
            Rejection::PostsThrottled(wait) => Self::PostsThrottled(wait),
            Rejection::CommentsThrottled(wait) => Self::CommentsThrottled(wait),
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
            Error::ClockAhead => status::clock_ahead(),
            Error::TimeTaken(index) => {
                status::invalid([Invalid::new(format!("posts[{index}].created_at"), text)])
            }
            Error::Write(error) => error.into(),
            Error::Read(error) => error.into(),
            Error::Database(error) => of_database(&error),
            // Calls do not fail when a delivery does: only the job that repeats it sees this error.
            Error::Timeline(status) => status,
        }
    }
}
