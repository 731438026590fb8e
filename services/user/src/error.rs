//! Errors of the user service and their mapping to gRPC status.

use std::time::Duration;

use microblog_chassis::status;
use microblog_domain::Invalid;
use microblog_proto::common::ErrorReason;
use microblog_storage::{ReadError, WriteError, of_database};
use tonic::{Code, Status};

use crate::{password::HashError, token::RngError};

/// Why a call is rejected or fails.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Fields of the request are invalid.
    #[error("invalid request")]
    Invalid(Vec<Invalid>),
    /// Another account has this name, or it is reserved after a deletion.
    #[error("the name is taken")]
    NameTaken,
    /// Another account has this e-mail address.
    #[error("the e-mail address is taken")]
    EmailTaken,
    /// No account has this name or e-mail address with this password.
    #[error("wrong name, e-mail address or password")]
    BadCredentials,
    /// Too many failures: no password is checked for this time.
    #[error("too many failed log-ins")]
    Throttled(Duration),
    /// The token is invalid or expired.
    #[error("invalid session token")]
    TokenInvalid,
    /// There is no such account.
    #[error("no such account")]
    UserNotFound,
    /// A change was not written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// A read failed.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The database failed.
    #[error(transparent)]
    Database(#[from] microblog_record::Error),
    /// Hashing a password failed.
    #[error("password hashing failed")]
    Hash(#[from] HashError),
    /// Generating a token failed.
    #[error("token generation failed")]
    Token(#[from] RngError),
    /// A write exceeded its time limit, or the process is shutting down.
    #[error("write interrupted")]
    Interrupted(#[source] Box<Status>),
}

impl From<Invalid> for Error {
    fn from(invalid: Invalid) -> Self {
        Self::Invalid(vec![invalid])
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        use ErrorReason as Reason;
        let text = error.to_string();
        match error {
            Error::Invalid(fields) => status::invalid(fields),
            Error::NameTaken => status::with_reason(Code::AlreadyExists, Reason::NameTaken, text),
            Error::EmailTaken => status::with_reason(Code::AlreadyExists, Reason::EmailTaken, text),
            Error::BadCredentials => status::unauthenticated(Reason::BadCredentials, text),
            Error::Throttled(wait) => status::throttled(Reason::LoginThrottled, text, wait),
            Error::TokenInvalid => status::unauthenticated(Reason::TokenInvalid, text),
            Error::UserNotFound => status::not_found(Reason::UserNotFound, text),
            Error::Hash(HashError::QueueFull) => status::with_reason(
                Code::ResourceExhausted,
                Reason::Overloaded,
                HashError::QueueFull.to_string(),
            ),
            Error::Interrupted(status) => *status,
            Error::Write(error) => error.into(),
            Error::Read(error) => error.into(),
            Error::Database(error) => of_database(&error),
            Error::Hash(_) | Error::Token(_) => {
                tracing::error!(error = &error as &dyn std::error::Error, "call failed");
                status::internal()
            }
        }
    }
}
