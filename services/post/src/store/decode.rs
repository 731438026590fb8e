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

/// Returns the result of a job's step for one post. If the data of the post are damaged, logs that and
/// returns the default: the post must not stop the job for the others.
pub(super) fn skip_damaged<T: Default>(
    id: PostId,
    result: Result<T, keyspace::Error>,
) -> Result<T, keyspace::Error> {
    match result {
        Err(error) if is_of_data(&error) => {
            let error = &error as &dyn std::error::Error;
            tracing::error!(post = id.get(), error, "a job skips a damaged post");
            Ok(T::default())
        }
        result => result,
    }
}

// Returns whether an error is due to the type of a key (WRONGTYPE) or a value in it (ERR). The causes of
// others, such as missing permissions, concern all posts.
fn is_of_data(error: &keyspace::Error) -> bool {
    let is_malformed = matches!(error, keyspace::Error::Malformed(_));
    is_malformed || matches!(error.code(), Some("WRONGTYPE" | "ERR"))
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

#[cfg(test)]
mod tests {
    use microblog_keyspace::redis;

    use super::*;

    #[test]
    fn only_errors_of_a_post_are_skipped() {
        let id = PostId::new(4096).unwrap();
        let skipped = |reply: &str| {
            let value = redis::parse_redis_value(format!("-{reply}\r\n").as_bytes()).unwrap();
            let error = value.extract_error().unwrap_err().into();
            skip_damaged(id, Err::<u64, keyspace::Error>(error)).is_ok_and(|result| result == 0)
        };
        assert!(skipped("WRONGTYPE Operation against a key"));
        assert!(skipped("ERR hash value is not an integer"));
        for reply in ["NOPERM User u has no permissions", "OOM full", "LOADING", "RECOVERING x"] {
            assert!(!skipped(reply), "{reply}");
        }
        assert!(skip_damaged(id, Err::<u64, _>(malformed("outcome"))).is_ok());
        assert_eq!(skip_damaged(id, Ok(7)).unwrap(), 7);
    }
}
