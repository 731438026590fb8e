//! The only part of the relation service that speaks Redis: the atomic steps and the reads of the
//! follow graph, one method each. Knows nothing of what the steps are good for together (that is
//! [`Edges`](crate::Edges)), so that a test can stop between any two of them.

mod blocks;
mod follows;
mod jobs;
mod lists;
mod relations;

use microblog_domain::{Partition, UserId};
use microblog_keyspace::{self as keyspace, Batch, Call, Entry, Keyspace, Library, redis::Value};

pub use blocks::{Blocked, ProjectedBlock};
pub use follows::{Projected, Targets, Truth};
pub use jobs::Waiting;

use crate::graph::Outcome;

/// The service's atomic steps.
const LIBRARY: Library = Library {
    name: "relation",
    source: concat!(
        include_str!("../functions.lua"),
        include_str!("../functions/follows.lua"),
        include_str!("../functions/blocks.lua"),
        include_str!("../functions/forget.lua"),
    ),
};

/// How many members one function call or variadic command carries, so that it takes well under a
/// millisecond of the server's only thread.
const CHUNK: usize = 100;

/// How many members the calls have together that Redis is given at once: tens of milliseconds of
/// its time, so that neither they nor the calls of others run into their time-outs.
const WINDOW: usize = 5_000;

/// The relation service's keyspace.
#[derive(Clone)]
pub struct Store {
    keyspace: Keyspace,
    following_limit: u32,
    blocks_limit: u32,
}

impl Store {
    /// Opens the store, without waiting for it: it may be away now and come back later.
    pub fn open(config: &crate::Config) -> Result<Self, keyspace::Error> {
        Ok(Self {
            keyspace: Keyspace::open(&config.redis, LIBRARY)?,
            following_limit: config.following_limit,
            blocks_limit: config.blocks_limit,
        })
    }

    /// Returns how many accounts a user may follow.
    pub(crate) fn following_limit(&self) -> usize {
        self.following_limit as usize
    }

    /// Makes a call of each item, which carries so many members, and returns the answers in order.
    /// Any number of them go out in windows, made one after the other, so that the thread is free
    /// for other calls in between.
    async fn in_windows<T>(
        &self,
        items: &[T],
        members: impl Fn(&T) -> usize,
        call: impl Fn(&T) -> (Partition, Call),
    ) -> Result<Vec<Value>, keyspace::Error> {
        let mut answers = Vec::with_capacity(items.len());
        let mut rest = items.iter().peekable();
        while rest.peek().is_some() {
            let mut window = Batch::new();
            let mut room = WINDOW;
            while let Some(item) = rest.next_if(|item| window.is_empty() || members(item) <= room) {
                room = room.saturating_sub(members(item));
                let (partition, call) = call(item);
                window.call(partition, call);
            }
            answers.extend(self.keyspace.send(window).await?);
        }
        Ok(answers)
    }

    /// Returns whether the store answers and knows the service's functions.
    pub async fn is_ready(&self) -> bool {
        self.keyspace.ready().await.is_ok()
    }
}

/// Returns the accounts of a page's entries.
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
