//! What can go wrong in the timeline service, and the one place that turns it into a status.

use microblog_chassis::status;
use microblog_domain::{Invalid, TokenError};
use microblog_keyspace as keyspace;
use microblog_proto::common::ErrorReason;
use tonic::{Code, Status};

/// Why a call is refused or fails.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Fields of the request are wrong.
    #[error("the request is not valid")]
    Invalid(Vec<Invalid>),
    /// A token is not one of this timeline.
    #[error("the token is not valid")]
    Token {
        /// The field that it is in.
        field: &'static str,
        /// What is wrong with it.
        #[source]
        error: TokenError,
    },
    /// A home timeline was being built for as long as a reader waits.
    #[error("the home timeline is being built")]
    BeingBuilt,
    /// The store failed.
    #[error("the store failed")]
    Store(#[from] keyspace::Error),
    /// The relation service failed.
    #[error("the relation service failed")]
    Relation(#[source] Status),
}

impl Error {
    /// Returns whether the store rejected a write since it is at its memory limit.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_full())
    }

    /// Returns whether it is of no use to go on at once.
    pub(crate) fn is_outage(&self) -> bool {
        match self {
            Self::Store(error) => error.is_unavailable() || error.is_full(),
            Self::Relation(status) => status::is_outage(status),
            Self::BeingBuilt => true,
            Self::Invalid(_) | Self::Token { .. } => false,
        }
    }
}

impl From<Invalid> for Error {
    fn from(invalid: Invalid) -> Self {
        Self::Invalid(vec![invalid])
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        match error {
            Error::Invalid(fields) => status::invalid(fields),
            Error::Token { field, error } => {
                let reason = match error {
                    TokenError::Invalid => ErrorReason::PageTokenInvalid,
                    TokenError::Mismatch => ErrorReason::PageTokenMismatch,
                };
                status::bad_request(reason, [Invalid::new(field, error.to_string())])
            }
            Error::BeingBuilt => {
                let text = "the home timeline is being built; ask again";
                status::with_reason(Code::Unavailable, ErrorReason::TimelineBeingBuilt, text)
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
            Error::Relation(relation) => of_peer(&relation),
        }
    }
}

// No caller can have caused what the relation service refuses: it is asked about ids only.
fn of_peer(status: &Status) -> Status {
    match status.code() {
        Code::Unavailable | Code::Cancelled | Code::ResourceExhausted => {
            let text = "the relation service does not answer";
            status::with_reason(Code::Unavailable, ErrorReason::PeerUnavailable, text)
        }
        Code::DeadlineExceeded => status::deadline_exceeded(),
        code => {
            let message = status.message();
            tracing::error!(?code, message, "the relation service answered as it should not");
            status::internal()
        }
    }
}
