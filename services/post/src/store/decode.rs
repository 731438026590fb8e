//! Decodes ids, outcomes of functions, and other values from Redis.

use std::time::Duration;

use microblog_domain::{PostId, UserId};
use microblog_keyspace::{self as keyspace, Entry};

/// Returns the posts of a page's entries.
pub(crate) fn post_ids(entries: &[Entry]) -> Vec<PostId> {
    entries.iter().filter_map(|entry| PostId::new(entry.member)).collect()
}

/// Decodes a stamp.
pub(super) fn stamp(number: i64) -> Result<u64, keyspace::Error> {
    u64::try_from(number).map_err(|_| malformed("stamp"))
}

/// Decodes the id of a post.
pub(super) fn post(number: i64) -> Result<PostId, keyspace::Error> {
    u64::try_from(number).ok().and_then(PostId::new).ok_or_else(|| malformed("post id"))
}

/// Decodes the id of an account.
pub(super) fn user(number: u64) -> Result<UserId, keyspace::Error> {
    UserId::new(number).ok_or_else(|| malformed("account id"))
}

/// Decodes the time to wait for a rate limit.
pub(super) fn wait(milliseconds: i64) -> Duration {
    Duration::from_millis(u64::try_from(milliseconds).unwrap_or_default())
}

/// Returns the error for a malformed value.
pub(super) fn malformed(what: &'static str) -> keyspace::Error {
    keyspace::Error::Malformed(what.into())
}

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
    pub(super) fn read(number: i64) -> Result<Self, keyspace::Error> {
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
    pub(super) fn unexpected(self) -> keyspace::Error {
        keyspace::Error::Malformed(format!("unexpected outcome: {self:?}").into())
    }
}
