//! What can go wrong, and the one place that says it on the wire.

use std::time::Duration;

use microblog_chassis::status;
use microblog_domain::Invalid;
use microblog_keyspace as keyspace;
use microblog_proto::common::ErrorReason;
use tonic::{Code, Status};

use crate::{password::HashError, token::NoRandomness};

/// Why a call was refused or failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Fields of the request are wrong.
    #[error("the request is invalid")]
    Invalid(Vec<Invalid>),
    /// Another account has this name, or had it until lately.
    #[error("the name is taken")]
    NameTaken,
    /// Another account has this e-mail address.
    #[error("the e-mail address is taken")]
    EmailTaken,
    /// The same registration is under way, or was given up for taking too long or because others
    /// kept coming in between.
    #[error("the registration is under way")]
    RegistrationInProgress,
    /// No account has this name or e-mail address, and this password.
    #[error("wrong name, e-mail address or password")]
    BadCredentials,
    /// Too many failures: no password is checked before this time is over.
    #[error("too many failed log-ins")]
    Throttled(Duration),
    /// The token is nobody's, or not any more.
    #[error("the session is not valid")]
    TokenInvalid,
    /// There is no such account.
    #[error("no such account")]
    UserNotFound,
    /// Redis is away, or did not answer as it should.
    #[error("the store failed")]
    Store(#[from] keyspace::Error),
    /// Something is stored in a form that this service does not write.
    #[error("stored data is damaged: {0}")]
    Damaged(&'static str),
    /// A password could not be hashed.
    #[error("a password could not be hashed")]
    Hash(#[from] HashError),
    /// No token could be made.
    #[error("no token could be made")]
    Token(#[from] NoRandomness),
    /// A write ran out of its time, or the process is going down.
    #[error("the write was cut off")]
    Cut(#[source] Box<Status>),
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
            Error::RegistrationInProgress => {
                status::with_reason(Code::Aborted, Reason::RegistrationInProgress, text)
            }
            Error::BadCredentials => status::unauthenticated(Reason::BadCredentials, text),
            Error::Throttled(wait) => status::throttled(Reason::LoginThrottled, text, wait),
            Error::TokenInvalid => status::unauthenticated(Reason::TokenInvalid, text),
            Error::UserNotFound => status::not_found(Reason::UserNotFound, text),
            Error::Hash(HashError::Full) => status::with_reason(
                Code::ResourceExhausted,
                Reason::Overloaded,
                HashError::Full.to_string(),
            ),
            Error::Cut(status) => *status,
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
            Error::Damaged(_) | Error::Hash(_) | Error::Token(_) => {
                tracing::error!(error = &error as &dyn std::error::Error, "a call failed");
                status::internal()
            }
        }
    }
}
