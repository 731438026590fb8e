//! The only room that speaks Redis. Offers each step of the protocols as a call of its own, and
//! knows no order among them: that is the rules' ([`crate::Accounts`]).
//!
//! # Invariants
//!
//! 1. An id is issued at most once, by its partition's clock. A profile exists from the function
//!    that issues its id until it is dropped, and never again: who has no profile is gone for good.
//! 2. A profile is `pending`, then active, then `deleted`; or `pending`, then `aborted`. Each change
//!    is one function in its partition, so that of an activation and an abortion one wins. It is
//!    active exactly while it has a `card`, which is what everybody may see. Before and after, its
//!    `state` says what it is, and its `draft` has the texts of a card: of a deleted account, the
//!    name alone.
//! 3. A claim (name or address → id) is worth something only while that profile is pending or active
//!    and carries the name or address. Whoever meets a worthless claim, such as one made by a stalled
//!    process after its registration was aborted, may take it over, by compare-and-set from the id
//!    that it holds.
//!
//!    The name of a deleted account is held for some time: as long as its profile is there, nobody
//!    takes its claim over, and what releases it puts a claim in its place that is no account's and
//!    expires ([`Holder::Freed`]). So there is no moment at which the name is free before its time.
//! 4. Hence an active profile holds both its claims: they were its own when it was activated, and
//!    nobody takes over a claim of a profile that is not gone.
//! 5. A pending or aborted profile is in `registrations`, a deleted one in `deletions`, an active
//!    one in `accounts`: what a crash leaves behind is found again.
//! 6. A session is opened, a password changed and an account deleted only if the password hash
//!    that was checked still is the account's; a change or deletion ends all sessions with it.

mod accounts;
mod card;
mod claims;
mod recalled;
mod registrations;
mod sessions;

use std::collections::BTreeMap;

use microblog_domain::{Partition, UserId};
use microblog_keyspace::{self as keyspace, Keyspace, Library, Recall};

use crate::Registration;

pub use accounts::AccountsPage;
pub use claims::{Claim, Holder, Kind};
use recalled::{Recalled, Which};
pub(crate) use sessions::whole_ms;
pub use sessions::{Attempt, SESSIONS_MAX};

/// The functions that this store calls.
pub const LIBRARY: Library = Library { name: "user", source: include_str!("functions.lua") };

// A function handles so many items at once at most: it stays well below a millisecond.
const ITEMS_PER_CALL_MAX: usize = 32;

/// Accounts, claims and sessions in Redis.
#[derive(Clone)]
pub struct Store {
    keyspace: Keyspace,
    recall: Recall<Which, Recalled>,
}

impl Store {
    /// Returns a store in a keyspace that was opened with [`LIBRARY`].
    pub fn new(keyspace: Keyspace) -> Self {
        let recall = keyspace.recall(recalled::KIND);
        Self { keyspace, recall }
    }

    /// Returns whether Redis answers and has the functions.
    pub async fn ready(&self) -> Result<(), keyspace::Error> {
        self.keyspace.ready().await
    }
}

/// Returns an id that no account ever has, since it is of the epoch's first millisecond: read where
/// there is nothing to read but the work must be the same. Its partition is chosen at random.
pub(crate) fn decoy() -> Option<UserId> {
    UserId::new(u64::from(Partition::new(rand::random()).number()) << 2 | 1)
}

/// Returns what was read, or says what in the store has another form than this service writes.
pub(crate) fn intact<T>(value: Option<T>, what: &'static str) -> Result<T, crate::Error> {
    value.ok_or(crate::Error::Damaged(what))
}

/// Returns what a registration or a deleted account claims, of its draft and address; `None` where
/// they are damaged.
fn claims(id: UserId, texts: &[Option<String>]) -> Option<Registration> {
    let [Some(draft), Some(email)] = texts else { return None };
    Registration::of(id, &card::read(id, draft)?.name, email)
}

/// Groups items by partition, so many at most in one group; each comes with its place.
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
