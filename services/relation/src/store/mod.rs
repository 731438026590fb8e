//! The only part of the relation service that speaks Redis: the atomic steps and the reads of the
//! follow graph, one method each. Knows nothing of what the steps are good for together (that is
//! [`Edges`](crate::Edges)), so that a test can stop between any two of them.

mod blocks;
mod follows;
mod jobs;
mod lists;

use microblog_domain::UserId;
use microblog_keyspace::{self as keyspace, Keyspace, Library};

pub use follows::{Targets, Truth};
pub use jobs::Waiting;

use crate::graph::Outcome;

/// The service's atomic steps.
const LIBRARY: Library = Library { name: "relation", source: include_str!("../functions.lua") };

/// How many members one function call or variadic command carries, so that it takes well under a
/// millisecond of the server's only thread.
const CHUNK: usize = 100;

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
