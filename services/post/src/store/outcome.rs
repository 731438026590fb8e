//! Outcomes of the Redis functions.

use microblog_keyspace::Error;

use super::decode::malformed;

/// The outcome of a step, numbered as in `functions.lua`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The step changed something.
    Done,
    /// The step was executed before, or had nothing to do.
    Unchanged,
    /// The step was executed before, but later steps of the saga may not have been.
    Incomplete,
    /// The subject does not exist.
    NotFound,
    /// The rate limit is exceeded.
    Throttled,
    /// The account is deleted.
    AccountDeleted,
}

impl Outcome {
    /// Decodes an outcome.
    pub(super) fn read(number: i64) -> Result<Self, Error> {
        Ok(match number {
            0 => Self::Done,
            1 => Self::Unchanged,
            2 => Self::Incomplete,
            3 => Self::NotFound,
            4 => Self::Throttled,
            5 => Self::AccountDeleted,
            _ => return Err(malformed("outcome")),
        })
    }

    /// Returns the error for an outcome that the step cannot have.
    pub(super) fn unexpected(self) -> Error {
        Error::Malformed(format!("unexpected outcome: {self:?}").into())
    }
}
