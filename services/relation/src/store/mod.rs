//! The only part of the relation service that speaks Redis: the atomic steps and the reads of the
//! follow graph, one method each. Knows nothing of what the steps are good for together (that is
//! [`Edges`](crate::Edges)), so that a test can stop between any two of them.

mod blocks;
mod follows;
mod jobs;
mod lists;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use microblog_domain::{Partition, UserId};
use microblog_keyspace::{self as keyspace, Batch, Call, Keyspace, Library, redis::Value};

pub use follows::{Targets, Truth};
pub use jobs::Waiting;

use crate::graph::Outcome;

/// The service's atomic steps.
const LIBRARY: Library = Library { name: "relation", source: include_str!("../functions.lua") };

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

    /// Sends any number of calls, each with the number of members that it carries, and returns
    /// their answers in order: two windows at a time, one on its way while Redis works on another.
    async fn send_windows(
        &self,
        calls: Vec<(Partition, Call, usize)>,
    ) -> Result<Vec<Value>, keyspace::Error> {
        let mut windows = Vec::new();
        let mut room = 0;
        for (partition, call, members) in calls {
            if room < members {
                windows.push(Batch::new());
                room = WINDOW;
            }
            room = room.saturating_sub(members);
            if let Some(window) = windows.last_mut() {
                window.call(partition, call);
            }
        }
        let send = |window| {
            let keyspace = self.keyspace.clone();
            async move { keyspace.send(window).await }
        };
        let answers: Vec<_> =
            stream::iter(windows.into_iter().map(send)).buffered(2).try_collect().await?;
        Ok(answers.into_iter().flatten().collect())
    }

    /// Returns whether the store answers and knows the service's functions.
    pub async fn is_ready(&self) -> bool {
        self.keyspace.ready().await.is_ok()
    }
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
