//! The store: the only module that calls Redis. One method for each atomic step or read.
//! [`EdgeSaga`](crate::EdgeSaga) combines the steps; tests can stop between any two.

mod blocks;
mod follows;
mod lists;
mod maintenance;
mod relations;
mod restore;

use microblog_domain::{Partition, UserId};
use microblog_keyspace::{self as keyspace, Batch, Call, Entry, Keyspace, Library, redis::Value};

pub use blocks::{BlockProjectionResult, BlockSourceResult};
pub use follows::{ProjectionResult, SourceResult, Targets};
pub use maintenance::OutboxEntry;

use crate::graph::Outcome;

/// The Redis functions of the service.
const LIBRARY: Library = Library {
    name: "relation",
    source: concat!(
        include_str!("functions.lua"),
        include_str!("functions/follows.lua"),
        include_str!("functions/blocks.lua"),
    ),
};

/// The most members per function call or variadic command, so that each takes well under a
/// millisecond of Redis' single thread.
const CHUNK: usize = 100;

/// The most members of calls that are sent together: tens of milliseconds of Redis' time, so that
/// neither they nor other calls time out.
const BATCH_MEMBERS_MAX: usize = 5_000;

/// The relation service's Redis store.
#[derive(Clone)]
pub struct Store {
    keyspace: Keyspace,
    following_limit: u32,
    blocks_limit: u32,
}

impl Store {
    /// Opens the store without waiting for Redis.
    pub fn open(config: &crate::Config) -> Result<Self, keyspace::Error> {
        Ok(Self {
            keyspace: Keyspace::open(&config.redis, LIBRARY)?,
            following_limit: config.following_limit,
            blocks_limit: config.blocks_limit,
        })
    }

    /// Returns the keyspace.
    pub(crate) fn keyspace(&self) -> &Keyspace {
        &self.keyspace
    }

    /// Returns a store whose calls closed partitions accept.
    pub(crate) fn ignoring_closed(&self) -> Self {
        Self { keyspace: self.keyspace.ignoring_closed(), ..self.clone() }
    }

    /// Returns the following limit.
    pub(crate) fn following_limit(&self) -> usize {
        self.following_limit as usize
    }

    /// Makes one call per item and returns the responses in order. `members` is the size of a call.
    /// Sends the calls in sequential batches, so that other tasks of the thread can run in between.
    async fn call_in_batches<T>(
        &self,
        items: &[T],
        members: impl Fn(&T) -> usize,
        call: impl Fn(&T) -> (Partition, Call),
    ) -> Result<Vec<Value>, keyspace::Error> {
        let mut answers = Vec::with_capacity(items.len());
        let mut rest = items.iter().peekable();
        while rest.peek().is_some() {
            let mut batch = Batch::new();
            let mut room = BATCH_MEMBERS_MAX;
            while let Some(item) = rest.next_if(|item| batch.is_empty() || members(item) <= room) {
                room = room.saturating_sub(members(item));
                let (partition, call) = call(item);
                batch.call(partition, call);
            }
            answers.extend(self.keyspace.send(batch).await?);
        }
        Ok(answers)
    }

    /// Returns whether Redis responds and has the functions loaded.
    pub async fn is_ready(&self) -> bool {
        self.keyspace.ready().await.is_ok()
    }
}

/// Returns the accounts of entries.
pub(crate) fn ids(entries: &[Entry]) -> Vec<UserId> {
    entries.iter().filter_map(|entry| UserId::new(entry.member)).collect()
}

fn outcome(number: i64) -> Result<Outcome, keyspace::Error> {
    Outcome::from_number(number).ok_or_else(|| malformed("outcome"))
}

fn version(number: i64) -> Result<u64, keyspace::Error> {
    u64::try_from(number).map_err(|_| malformed("version"))
}

fn user(number: u64) -> Result<UserId, keyspace::Error> {
    UserId::new(number).ok_or_else(|| malformed("account id"))
}

fn malformed(what: &'static str) -> keyspace::Error {
    keyspace::Error::Malformed(what.into())
}
