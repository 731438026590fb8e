//! What can go wrong between a store and Redis. Told by Redis's error codes, never by its texts,
//! which differ between versions; and its texts never show in a message.

use redis::{ErrorKind, RedisError, ServerError};

use crate::{address::AddressError, clock::CLOCK_AHEAD};

/// Why Redis did not answer as asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Redis, or the part of it that was asked, is away or cannot serve now: whether the command
    /// ran is unknown, and it may be repeated.
    #[error("redis is unavailable")]
    Unavailable(#[source] Box<dyn std::error::Error + Send + Sync>),

    /// Redis is at its memory limit and rejected the command before it ran: nothing was changed by
    /// it. Other commands go on. Of a batch, other commands may have run.
    #[error("redis is at its memory limit")]
    Full(#[source] RedisError),

    /// The clock that issues ids and versions is too far ahead of the time: the function changed
    /// nothing, and may be repeated.
    #[error("the clock of a partition is ahead of the time")]
    ClockAhead(#[source] RedisError),

    /// Redis or a function refused the command.
    #[error("redis refused the command: {code}")]
    Refused {
        /// The first word of Redis's error, such as `NOPERM` or `WRONGTYPE`, or of the error reply
        /// that a function of the library returned.
        code: String,
        /// The error with Redis's own text, for logs alone.
        #[source]
        source: RedisError,
    },

    /// The answer has another form than the caller expected. The cause does not show the answer,
    /// which may be somebody's address or post.
    #[error("redis answered in an unexpected form")]
    Malformed(#[source] Box<dyn std::error::Error + Send + Sync>),

    /// The configuration makes no sense, so that nothing was tried.
    #[error("the redis configuration is invalid")]
    Config(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// No answer came in time.
#[derive(Debug, thiserror::Error)]
#[error("no answer within {0:?}")]
pub(crate) struct TimedOut(pub(crate) std::time::Duration);

const ANOTHER_TYPE: &str = "the answer is of another type";

// Codes that say "not here" or "not now". MOVED and ASK remain when the cluster client has run out
// of repeats; UNBLOCKED ends a blocking read on a node that became a replica.
const PASSING: [&str; 14] = [
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

impl Error {
    /// Returns whether Redis is away or busy with itself, so that the call may be repeated later.
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable(_))
    }

    /// Returns whether Redis rejected the command since it is at its memory limit.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Full(_))
    }

    /// Returns the code of a refusal.
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Refused { code, .. } => Some(code),
            Self::Unavailable(_)
            | Self::Full(_)
            | Self::ClockAhead(_)
            | Self::Malformed(_)
            | Self::Config(_) => None,
        }
    }

    /// Returns the code of what Redis itself said, be it a refusal or that it cannot serve now.
    pub(crate) fn said(&self) -> Option<&str> {
        match self {
            Self::Refused { code, .. } => Some(code),
            Self::Full(_) => Some(FULL),
            Self::ClockAhead(_) => Some(CLOCK_AHEAD),
            Self::Unavailable(cause) => cause.downcast_ref().and_then(RedisError::code),
            Self::Malformed(_) | Self::Config(_) => None,
        }
    }

    /// Returns it in a word: what Redis said, or `timeout`, `unavailable` or `malformed`.
    pub(crate) fn word(&self) -> &str {
        let other = match self {
            Self::Unavailable(cause) if cause.is::<TimedOut>() => "timeout",
            Self::Unavailable(_) => "unavailable",
            Self::Full(_)
            | Self::ClockAhead(_)
            | Self::Refused { .. }
            | Self::Malformed(_)
            | Self::Config(_) => "malformed",
        };
        self.said().unwrap_or(other)
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
            return Self::malformed(ANOTHER_TYPE);
        }
        // Only what the server itself said has a code; all else is about the way to it.
        match error.code() {
            Some(FULL) => Self::Full(error),
            Some(CLOCK_AHEAD) => Self::ClockAhead(error),
            Some(code) if !PASSING.contains(&code) => {
                Self::Refused { code: code.to_owned(), source: error }
            }
            _ => Self::unavailable(error),
        }
    }
}

impl From<redis::ParsingError> for Error {
    // Its text shows the answer.
    fn from(_: redis::ParsingError) -> Self {
        Self::malformed(ANOTHER_TYPE)
    }
}

impl From<AddressError> for Error {
    fn from(error: AddressError) -> Self {
        Self::Config(error.into())
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    fn error(answer: &str) -> Error {
        let value = redis::parse_redis_value(format!("-{answer}\r\n").as_bytes()).unwrap();
        Error::from(value.extract_error().unwrap_err())
    }

    #[test]
    fn what_passes_is_unavailable() {
        for code in PASSING {
            let error = error(&format!("{code} some text"));
            assert!(error.is_unavailable(), "{code}");
            assert_eq!((error.code(), error.word()), (None, code));
        }
    }

    #[test]
    fn the_memory_limit_is_no_outage() {
        let error = error("OOM command not allowed when used memory > 'maxmemory'.");
        assert!(error.is_full() && !error.is_unavailable());
        assert_eq!((error.code(), error.word()), (None, FULL));
        assert_eq!(error.to_string(), "redis is at its memory limit");
    }

    #[test]
    fn an_answer_does_not_show_in_an_error() {
        let answer =
            redis::Value::Array(vec![redis::Value::BulkString(b"ann@example.org".to_vec())]);
        let error = crate::decode::<Vec<u64>>(answer).unwrap_err();
        assert!(matches!(error, Error::Malformed(_)));
        assert_eq!(error.source().unwrap().to_string(), ANOTHER_TYPE);
        assert_eq!(error.word(), "malformed");
    }

    #[test]
    fn a_refusal_keeps_its_code_and_hides_its_text() {
        for (answer, code) in [
            ("NOPERM User u has no permissions", "NOPERM"),
            ("WRONGTYPE Operation against a key", "WRONGTYPE"),
            ("ERR unknown command 'x'", "ERR"),
            ("LIMIT of this service's own function", "LIMIT"),
        ] {
            let error = error(answer);
            assert_eq!(error.code(), Some(code));
            assert_eq!(error.to_string(), format!("redis refused the command: {code}"));
        }
    }
}
