//! Errors of the timeline service and their mapping to gRPC status.

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
    /// A page or since token is invalid for this timeline.
    #[error("invalid token")]
    Token {
        /// The request field of the token.
        field: &'static str,
        /// Why it is invalid.
        #[source]
        error: TokenError,
    },
    /// The home timeline was still being built after `WAIT_MAX`.
    #[error("the home timeline is being built")]
    BeingBuilt,
    /// Redis failed.
    #[error("redis failed")]
    Store(#[from] keyspace::Error),
    /// The relation service failed.
    #[error("relation service failed")]
    Relation(#[source] Status),
    /// The post service failed.
    #[error("post service failed")]
    Post(#[source] Status),
}

impl Error {
    /// Returns whether Redis rejected a write at its memory limit.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_full())
    }

    /// Returns whether the next call would likely fail too.
    pub(crate) fn is_outage(&self) -> bool {
        match self {
            Self::Store(error) => error.is_unavailable() || error.is_full(),
            Self::Relation(status) | Self::Post(status) => status::is_service_unavailable(status),
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
            Error::Token { field, error } => status::token(field, error),
            Error::BeingBuilt => {
                let text = "the home timeline is being built; retry";
                status::with_reason(Code::Unavailable, ErrorReason::TimelineBeingBuilt, text)
            }
            Error::Store(store) => store.into(),
            Error::Relation(relation) => peer_status("relation", &relation),
            Error::Post(post) => peer_status("post", &post),
        }
    }
}

// Requests to other services contain only ids, so an `InvalidArgument` from one is an internal error.
fn peer_status(service: &'static str, status: &Status) -> Status {
    match status.code() {
        Code::Unavailable | Code::Cancelled | Code::ResourceExhausted => {
            let text = format!("{service} service unavailable");
            status::with_reason(Code::Unavailable, ErrorReason::PeerUnavailable, text)
        }
        Code::DeadlineExceeded => status::deadline_exceeded(),
        code => {
            let message = status.message();
            tracing::error!(service, ?code, message, "unexpected status from a service");
            status::internal()
        }
    }
}
