//! Errors of the notice service and their mapping to gRPC status.

use microblog_chassis::status;
use microblog_domain::{Invalid, TokenError};
use microblog_storage::{ReadError, WriteError, of_database};
use tonic::Status;

/// Why a call is rejected, or a job fails.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Fields of the request are invalid.
    #[error("invalid request")]
    Invalid(Vec<Invalid>),
    /// A token is invalid for this list.
    #[error("invalid token")]
    Token {
        /// The request field of the token.
        field: &'static str,
        /// Why it is invalid.
        #[source]
        error: TokenError,
    },
    /// A change was not written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// A read failed.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The database failed.
    #[error(transparent)]
    Database(#[from] microblog_record::Error),
    /// A service failed whose change feed is followed. Only in a job.
    #[error("a service failed: {}", .0.message())]
    Peer(Status),
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        match error {
            Error::Invalid(fields) => status::invalid(fields),
            Error::Token { field, error } => status::token(field, error),
            Error::Write(error) => error.into(),
            Error::Read(error) => error.into(),
            Error::Database(error) => of_database(&error),
            Error::Peer(_) => status::internal(),
        }
    }
}
