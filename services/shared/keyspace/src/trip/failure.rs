//! How a round trip failed, in a word.

use redis::Value;

use crate::{Error, error::TimedOut};

/// How a round trip failed: `error.type` is the code with which Redis refused, or `timeout`,
/// `unavailable` or `malformed`.
pub(super) enum Failure<'a> {
    Refused(&'a str),
    Other(&'static str),
}

impl<'a> Failure<'a> {
    /// Returns that of answers some of which are refusals: the first one.
    pub(super) fn among(answers: &'a [Value]) -> Option<Self> {
        answers.iter().find_map(refusal).map(Self::Refused)
    }

    /// Returns that of an error in place of answers.
    pub(super) fn of(error: &'a Error) -> Self {
        match error {
            Error::Refused { code, .. } => Self::Refused(code),
            Error::Unavailable(cause) if cause.is::<TimedOut>() => Self::Other("timeout"),
            Error::Unavailable(_) => Self::Other("unavailable"),
            Error::Malformed(_) | Error::Config(_) => Self::Other("malformed"),
        }
    }

    /// Returns it in a word.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Refused(code) => code,
            Self::Other(name) => name,
        }
    }
}

/// Returns the code of an answer that is a refusal.
fn refusal(answer: &Value) -> Option<&str> {
    match answer {
        Value::ServerError(error) => Some(error.code()),
        _ => None,
    }
}
