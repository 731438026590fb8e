//! What the functions answer.

use microblog_keyspace::Error;

use super::malformed;

/// What a step did, as the functions number it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It was done.
    Done,
    /// It was done before, or there was nothing to do.
    Unchanged,
    /// It was done before, and steps that follow it may not have been.
    Incomplete,
    /// What it is about is not there.
    NotFound,
    /// The author has to wait.
    Throttled,
    /// The author's account is deleted.
    AccountDeleted,
}

impl Outcome {
    /// Reads the functions' number.
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

    /// Returns what to say of one that the step cannot have.
    pub(super) fn unexpected(self) -> Error {
        Error::Malformed(format!("an unexpected outcome: {self:?}").into())
    }
}
