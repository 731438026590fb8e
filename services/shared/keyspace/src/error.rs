//! Errors of Redis, by error code. The texts of Redis differ between versions: they are neither
//! matched nor part of an error message.

use microblog_chassis::status;
use redis::{ErrorKind, RedisError, ServerError};
use tokio::time::{Instant, timeout_at};
use tonic::Status;

use crate::address::AddressError;

/// A failed command, call or batch.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Redis, or one of its nodes, is unavailable. The command may have run, and may be retried.
    #[error("redis is unavailable")]
    Unavailable(#[source] Box<dyn std::error::Error + Send + Sync>),

    /// Redis is at its memory limit (`maxmemory`) and rejected the command before it ran. Other
    /// commands of a batch may have run.
    #[error("redis is at its memory limit")]
    Full(#[source] RedisError),

    /// Redis or a function rejected the command with an error reply.
    #[error("redis refused the command: {code}")]
    Refused {
        /// The error code of Redis, such as `NOPERM` or `WRONGTYPE`, or of a function's error reply.
        code: String,
        /// The error with the text of Redis, for logs only.
        #[source]
        source: RedisError,
    },

    /// The reply has an unexpected form. The cause omits the reply, which may be personal data.
    #[error("redis answered in an unexpected form")]
    Malformed(#[source] Box<dyn std::error::Error + Send + Sync>),

    /// The configuration is invalid. Nothing was sent.
    #[error("the redis configuration is invalid")]
    Config(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Timeout of a reply or a connection.
#[derive(Debug, thiserror::Error)]
#[error("no reply within the timeout")]
pub(crate) struct TimedOut;

/// Awaits a result until the deadline. After that, it is [`Error::Unavailable`].
pub(crate) async fn within<T>(
    deadline: Instant,
    result: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    timeout_at(deadline, result).await.unwrap_or_else(|_elapsed| Err(Error::unavailable(TimedOut)))
}

const UNEXPECTED_TYPE: &str = "the reply has an unexpected type";

// Codes of temporary errors. MOVED and ASK remain when the cluster client has no retries left;
// UNBLOCKED ends a blocking read on a node that became a replica.
const TRANSIENT_CODES: [&str; 14] = [
    "LOADING",
    "CLUSTERDOWN",
    "MASTERDOWN",
    "TRYAGAIN",
    "READONLY",
    "MISCONF",
    "NOREPLICAS",
    "MOVED",
    "ASK",
    "BUSY",
    "UNBLOCKED",
    "NOGOODSLAVE",
    "NOMASTERLINK",
    "FAILOVER",
];

/// The code of a command that Redis rejects at `maxmemory`.
const FULL: &str = "OOM";

/// Logs the error, and returns what callers see of it.
impl From<Error> for Status {
    fn from(error: Error) -> Self {
        error.log();
        match error {
            Error::Unavailable(_) => status::store_unavailable(),
            Error::Full(_) => status::store_full(),
            Error::Refused { .. } | Error::Malformed(_) | Error::Config(_) => status::internal(),
        }
    }
}

impl Error {
    /// Returns whether Redis is unavailable, so that the call may be retried later.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable(_))
    }

    /// Returns whether Redis rejected the command at its memory limit.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Full(_))
    }

    /// Returns the error code of a [`Refused`](Self::Refused) command.
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Refused { code, .. } => Some(code),
            Self::Unavailable(_) | Self::Full(_) | Self::Malformed(_) | Self::Config(_) => None,
        }
    }

    /// Returns the error code of Redis, also of temporary errors.
    pub(crate) fn redis_code(&self) -> Option<&str> {
        match self {
            Self::Refused { code, .. } => Some(code),
            Self::Full(_) => Some(FULL),
            Self::Unavailable(cause) => cause.downcast_ref().and_then(RedisError::code),
            Self::Malformed(_) | Self::Config(_) => None,
        }
    }

    /// Returns the error code of Redis, or `timeout`, `unavailable` or `malformed`.
    pub(crate) fn error_type(&self) -> &str {
        let other = match self {
            Self::Unavailable(cause) if cause.is::<TimedOut>() => "timeout",
            Self::Unavailable(_) => "unavailable",
            Self::Full(_) | Self::Refused { .. } | Self::Malformed(_) | Self::Config(_) => {
                "malformed"
            }
        };
        self.redis_code().unwrap_or(other)
    }

    pub(crate) fn unavailable(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Unavailable(cause.into())
    }

    pub(crate) fn malformed(text: &'static str) -> Self {
        Self::Malformed(text.into())
    }

    pub(crate) fn refused(error: ServerError) -> Self {
        RedisError::from(error).into()
    }
}

impl From<RedisError> for Error {
    fn from(error: RedisError) -> Self {
        if matches!(error.kind(), ErrorKind::UnexpectedReturnType) {
            return Self::malformed(UNEXPECTED_TYPE);
        }
        // Only error replies have a code. Other errors are of the connection.
        match error.code() {
            Some(FULL) => Self::Full(error),
            Some(code) if !TRANSIENT_CODES.contains(&code) => {
                Self::Refused { code: code.to_owned(), source: error }
            }
            _ => Self::unavailable(error),
        }
    }
}

impl From<redis::ParsingError> for Error {
    // Drops the cause, whose text contains the reply.
    fn from(_: redis::ParsingError) -> Self {
        Self::malformed(UNEXPECTED_TYPE)
    }
}

impl From<AddressError> for Error {
    fn from(error: AddressError) -> Self {
        Self::Config(error.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(reply: &str) -> Error {
        let value = redis::parse_redis_value(format!("-{reply}\r\n").as_bytes()).unwrap();
        Error::from(value.extract_error().unwrap_err())
    }

    #[test]
    fn transient_codes_are_unavailable() {
        for code in TRANSIENT_CODES {
            let error = error(&format!("{code} some text"));
            assert!(error.is_unavailable(), "{code}");
            assert_eq!((error.code(), error.error_type()), (None, code));
        }
    }

    #[test]
    fn memory_limit_is_full_and_not_unavailable() {
        let error = error("OOM command not allowed when used memory > 'maxmemory'.");
        assert!(error.is_full() && !error.is_unavailable());
        assert_eq!((error.code(), error.error_type()), (None, FULL));
        assert_eq!(error.to_string(), "redis is at its memory limit");
    }

    #[test]
    fn rejected_command_keeps_the_code_and_hides_the_text() {
        for (reply, code) in [
            ("NOPERM User u has no permissions", "NOPERM"),
            ("WRONGTYPE Operation against a key", "WRONGTYPE"),
            ("ERR unknown command 'x'", "ERR"),
            ("LIMIT of this service's own function", "LIMIT"),
        ] {
            let error = error(reply);
            assert_eq!(error.code(), Some(code));
            assert_eq!(error.to_string(), format!("redis refused the command: {code}"));
        }
    }
}
