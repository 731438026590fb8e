//! The store: the only module that calls Redis. One method for each atomic step;
//! [`crate::Accounts`] combines the steps.
//!
//! # Invariants
//!
//! 1. A partition's clock issues an id at most once. A profile exists from the function that issues
//!    its id until it is deleted, and never again.
//! 2. A profile is `pending`, then active, then `deleted`; or `pending`, then `aborted`. Each
//!    transition is one function in its partition, so activation and abort exclude each other. It
//!    is active exactly while it has a `card`, which is the public part. Otherwise, `state` has its
//!    state, and `draft` a card that is not public; for a deleted account, with the name alone.
//! 3. A claim (name or address → id) is valid only while that profile is pending or active and has
//!    the name or address. Any registration may take over a stale claim by compare-and-set on its
//!    id. A stalled process may create a stale claim after its registration was aborted.
//!
//!    The name of a deleted account is held for some time. As long as its profile exists, its claim
//!    cannot be taken over. The release replaces the claim by a hold that expires
//!    ([`ClaimOwner::Hold`]). So there is no moment at which the name is free too early.
//! 4. Hence an active profile owns both its claims: it owned them at activation, and claims of an
//!    active profile are never taken over.
//! 5. A pending or aborted profile is in `registrations`, a deleted one in `deletions`, an active
//!    one in `accounts`: so jobs find what a crash left. A deleted one whose name is held is in
//!    `freed` after its confirmation, with the name alone, and expires with the hold.
//! 6. Opening a session, changing a password and deleting an account require that the checked
//!    password hash is still the account's. A change or deletion also ends all sessions.
//! 7. A recovery restores what the database has newer versions of, and holds and claims. It cannot
//!    take an activation back: a deletion is for ever, and a registration that it finds is aborted.

mod accounts;
mod cached;
mod card;
mod claims;
mod record;
mod registrations;
mod sessions;

use std::collections::BTreeMap;

use microblog_domain::{Partition, UserId};
use microblog_keyspace::{self as keyspace, ClientSideCache, Keyspace, Library};

use crate::profile::Registration;

pub use accounts::{AccountsPage, DeletedAccount};
use cached::{CacheKey, CachedValue};
pub use claims::ClaimOwner;
pub(crate) use record::{ClaimToRestore, StoredAccount, StoredDeletion, StoredState};
pub use sessions::{Attempt, SESSIONS_MAX};
pub(crate) use sessions::{unix_ms, whole_ms};

/// The Redis functions of the service.
pub const LIBRARY: Library = Library { name: "user", source: include_str!("functions.lua") };

// The most items per function call, so that it stays well below a millisecond.
const ITEMS_PER_CALL_MAX: usize = 32;

/// The user service's Redis store.
#[derive(Clone)]
pub struct Store {
    keyspace: Keyspace,
    cache: ClientSideCache<CacheKey, CachedValue>,
}

impl Store {
    /// Returns a store on a keyspace that was opened with [`LIBRARY`].
    pub fn new(keyspace: Keyspace) -> Self {
        let cache = keyspace.client_side_cache(cached::KIND);
        Self { keyspace, cache }
    }

    /// Returns a store whose calls closed partitions accept.
    pub(crate) fn ignoring_closed(&self) -> Self {
        Self { keyspace: self.keyspace.ignoring_closed(), cache: self.cache.clone() }
    }

    /// Returns whether Redis responds and has the functions loaded.
    pub async fn ready(&self) -> Result<(), keyspace::Error> {
        self.keyspace.ready().await
    }
}

/// Returns an id that no account has: one of the epoch's first millisecond, in a random partition.
/// For reads of unknown accounts, which must do the same work.
pub(crate) fn decoy() -> Option<UserId> {
    UserId::new(u64::from(Partition::new(rand::random()).number()) << 2 | 1)
}

/// Returns the value, or an error that names the damaged data.
pub(crate) fn intact<T>(value: Option<T>, what: &'static str) -> Result<T, crate::error::Error> {
    value.ok_or(crate::error::Error::Damaged(what))
}

/// A draft and an address as stored; `None` if missing.
type StoredClaims = (Option<Vec<u8>>, Option<String>);

/// Decodes claims; `None` if they are damaged.
fn claims(id: UserId, (draft, email): StoredClaims) -> Option<Registration> {
    Registration::of(id, &card::read(id, &draft?)?.name, &email?)
}

/// Groups items by partition, with a bounded group size. Each item comes with its position.
fn by_partition<T: Copy>(
    items: impl IntoIterator<Item = T>,
    partition: impl Fn(T) -> Partition,
) -> Vec<(Partition, Vec<(usize, T)>)> {
    let mut groups: BTreeMap<Partition, Vec<(usize, T)>> = BTreeMap::new();
    for (place, item) in items.into_iter().enumerate() {
        groups.entry(partition(item)).or_default().push((place, item));
    }
    let chunks = |(partition, group): (Partition, Vec<(usize, T)>)| {
        let chunks: Vec<_> = group.chunks(ITEMS_PER_CALL_MAX).map(<[_]>::to_vec).collect();
        chunks.into_iter().map(move |chunk| (partition, chunk))
    };
    groups.into_iter().flat_map(chunks).collect()
}
