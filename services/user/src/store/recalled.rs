//! What nearly every call reads, and what is therefore recalled: cards and sessions. Both on one
//! connection, as each has answers to be waited for.

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

/// What is recalled of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Which {
    /// Its card.
    Card(UserId),
    /// Its sessions.
    Sessions(UserId),
}

/// What it is; there is none for whoever is no account.
#[derive(Clone, Debug)]
pub(super) enum Recalled {
    /// A card as it is stored, in half of the room that its parts would need; `None` also for one
    /// that is damaged.
    Card(Option<Arc<str>>),
    /// Sessions, some of which may be over.
    Sessions(Sessions),
}

/// How it is read.
pub(super) const KIND: keyspace::Kind<Which, Recalled> =
    keyspace::Kind { command, id, decode, heap_bytes };

fn command(which: Which) -> (Partition, Cmd) {
    match which {
        Which::Card(user) => (user.partition(), card::command(user)),
        Which::Sessions(user) => (user.partition(), sessions::command(user)),
    }
}

fn id(key: &[u8]) -> Option<Which> {
    let card = keys::owner_of_profile(key).map(Which::Card);
    card.or_else(|| keys::owner_of_sessions(key).map(Which::Sessions))
}

fn decode(which: Which, answer: Value) -> Result<Recalled, Error> {
    match which {
        Which::Card(user) => card::decode(user, answer).map(Recalled::Card),
        Which::Sessions(_) => Sessions::decode(answer).map(Recalled::Sessions),
    }
}

// What stands before something that several have.
const COUNTS_BYTES: usize = 16;

fn heap_bytes(recalled: &Recalled) -> usize {
    match recalled {
        Recalled::Card(card) => card.as_ref().map_or(0, |card| COUNTS_BYTES + card.len()),
        Recalled::Sessions(sessions) => COUNTS_BYTES + sessions.heap_bytes(),
    }
}
