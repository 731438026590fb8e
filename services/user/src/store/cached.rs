//! The client-side cache of cards and sessions, which nearly every call reads. Both use one
//! connection, where each read waits for its response.

use std::sync::Arc;

use microblog_domain::{Partition, UserId};
use microblog_keyspace::{
    self as keyspace, Error,
    redis::{Cmd, Value},
};

use super::{
    card,
    sessions::{self, Sessions},
};
use crate::keys;

/// The key of a cached value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum CacheKey {
    /// A card.
    Card(UserId),
    /// The sessions of an account.
    Sessions(UserId),
}

/// A cached value. Missing accounts have none.
#[derive(Clone, Debug)]
pub(super) enum CachedValue {
    /// A card as stored, which takes half the memory of its fields; `None` also for a damaged one.
    Card(Option<Arc<[u8]>>),
    /// Sessions; some may have expired.
    Sessions(Sessions),
}

/// How values are read and decoded.
pub(super) const KIND: keyspace::Kind<CacheKey, CachedValue> =
    keyspace::Kind { partition, command, id, decode, heap_bytes };

fn partition(which: CacheKey) -> Partition {
    match which {
        CacheKey::Card(user) | CacheKey::Sessions(user) => user.partition(),
    }
}

fn command(which: CacheKey) -> Cmd {
    match which {
        CacheKey::Card(user) => card::command(user),
        CacheKey::Sessions(user) => sessions::command(user),
    }
}

fn id(key: &[u8]) -> Option<CacheKey> {
    let card = keys::owner_of_profile(key).map(CacheKey::Card);
    card.or_else(|| keys::owner_of_sessions(key).map(CacheKey::Sessions))
}

fn decode(which: CacheKey, answer: Value) -> Result<CachedValue, Error> {
    match which {
        CacheKey::Card(user) => card::decode(user, answer).map(CachedValue::Card),
        CacheKey::Sessions(_) => Sessions::decode(answer).map(CachedValue::Sessions),
    }
}

// The reference counts of an `Arc`.
const COUNTS_BYTES: usize = 16;

fn heap_bytes(cached: &CachedValue) -> usize {
    match cached {
        CachedValue::Card(card) => card.as_ref().map_or(0, |card| COUNTS_BYTES + card.len()),
        CachedValue::Sessions(sessions) => COUNTS_BYTES + sessions.heap_bytes(),
    }
}
