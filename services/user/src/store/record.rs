//! What the database records: the reads of the recorder, and the writes of a recovery, which are not
//! journalled.

use std::collections::BTreeSet;

use microblog_domain::{Partition, UserId};
use microblog_keyspace::{self as keyspace, Batch, Call, Error, Keyspace, Recovery, redis};

use super::{ClaimOwner, ITEMS_PER_CALL_MAX, Store, card};
use crate::{identifier::Identifier, keys, name::Name, password::Hash, profile::Registration};

/// An account as stored, with the versions of its parts.
pub(crate) struct StoredAccount {
    /// The card.
    pub(crate) card: Vec<u8>,
    /// The e-mail address.
    pub(crate) email: String,
    /// The password hash.
    pub(crate) password: Hash,
    /// The id of the request that registered it.
    pub(crate) request: String,
    /// The version of the card.
    pub(crate) card_version: u64,
    /// The version of the password.
    pub(crate) password_version: u64,
    /// The version of the last end of a session.
    pub(crate) sessions_ended: u64,
}

impl StoredAccount {
    /// Returns its claims; `None` if they are damaged.
    pub(crate) fn claims(&self, id: UserId) -> Option<Registration> {
        Registration::of(id, &card::read(id, &self.card)?.name, &self.email)
    }
}

/// A deleted account as stored.
#[derive(Default)]
pub(crate) struct StoredDeletion {
    /// A card of the name alone; empty if it is not held any more.
    pub(crate) draft: Vec<u8>,
    /// The e-mail address, until the deletion is confirmed.
    pub(crate) email: String,
    /// The end of the hold of the name in Unix ms; 0 if there is none.
    pub(crate) held_until_ms: u64,
    /// Whether the deletion is confirmed.
    pub(crate) is_confirmed: bool,
}

impl StoredDeletion {
    /// Returns the name, if it may still be held.
    pub(crate) fn name(&self, id: UserId) -> Option<Name> {
        Name::parse("name", &card::read(id, &self.draft)?.name).ok()
    }
}

/// A profile that is recorded.
pub(crate) enum StoredState {
    /// An account.
    Account(StoredAccount),
    /// A deleted account.
    Deletion(StoredDeletion),
}

/// A claim to restore.
pub(crate) struct ClaimToRestore<'a> {
    /// The name or address.
    pub(crate) identifier: Identifier<'a>,
    /// The owner that was read.
    pub(crate) seen: Option<ClaimOwner>,
    /// The owner to write.
    pub(crate) owner: ClaimOwner,
    /// The end of a hold in Unix ms, else 0.
    pub(crate) held_until_ms: u64,
}

const FIELDS: [&str; 10] =
    ["card", "draft", "state", "email", "password", "request", "v", "w", "e", "until"];
type Values = (
    Option<Vec<u8>>,
    Option<Vec<u8>>,
    Option<String>,
    Option<String>,
    Option<String>,
    Option<String>,
    Option<u64>,
    Option<u64>,
    Option<u64>,
    Option<u64>,
);

impl Store {
    /// Returns the keyspace.
    pub(crate) fn keyspace(&self) -> &Keyspace {
        &self.keyspace
    }

    /// Returns the profiles of ids as they are recorded; `None` for registrations and missing ones.
    /// One round trip.
    pub(crate) async fn stored(&self, ids: &[UserId]) -> Result<Vec<Option<StoredState>>, Error> {
        let mut batch = Batch::with_capacity(ids.len());
        for &id in ids {
            let mut read = redis::cmd("HMGET");
            read.arg(keys::profile(id)).arg(&FIELDS);
            batch.query(id.partition(), read);
        }
        let answers = self.keyspace.send(batch).await?;
        ids.iter()
            .zip(answers)
            .map(|(&id, answer)| Ok(stored(id, keyspace::decode(answer)?)))
            .collect()
    }

    /// Returns up to `max` deleted accounts of a partition from a rank on: those that are not
    /// confirmed, and those whose names are held. One round trip.
    pub(crate) async fn deleted_in(
        &self,
        partition: Partition,
        rank: usize,
        max: usize,
    ) -> Result<Vec<UserId>, Error> {
        let mut batch = Batch::new();
        for key in [keys::deletions(partition), keys::freed(partition)] {
            let mut range = redis::cmd("ZRANGE");
            range.arg(key).arg(rank).arg(rank + max - 1);
            batch.query(partition, range);
        }
        let mut ids = Vec::new();
        for answer in self.keyspace.send(batch).await? {
            let found: Vec<u64> = keyspace::decode(answer)?;
            ids.extend(found.into_iter().filter_map(UserId::new));
        }
        Ok(ids)
    }

    /// Fails with [`Error::Recovering`] if the partition of one of these ids lacks changes, and waits
    /// until what they rely on is durable. One round trip.
    pub(crate) async fn require_complete(
        &self,
        ids: impl IntoIterator<Item = UserId>,
    ) -> Result<(), Error> {
        let partitions: BTreeSet<_> = ids.into_iter().map(UserId::partition).collect();
        let mut batch = Batch::with_capacity(partitions.len());
        for partition in partitions {
            let check = Call::new("user_require_complete")
                .journal(partition, keys::journal(partition))
                .key(keys::clock(partition));
            batch.call(partition, check);
        }
        self.keyspace.send(batch).await.map(|_| ())
    }

    /// Advances a partition's clock to an id that was issued.
    pub(crate) async fn raise_clock(&self, partition: Partition, id: u64) -> Result<(), Error> {
        let call = Call::new("user_raise_clock").key(keys::clock(partition)).arg(id);
        self.keyspace.call(call).await
    }

    /// Writes accounts of a partition, or their parts that Redis has older versions of. Skips deleted
    /// ones. Ends the sessions of those that lack an end of sessions.
    pub(crate) async fn restore_accounts(
        &self,
        recovery: Recovery,
        accounts: &[(UserId, StoredAccount)],
    ) -> Result<(), Error> {
        let call = |chunk: &[(UserId, StoredAccount)]| {
            let call = of(recovery, "user_restore_accounts")
                .key(keys::accounts(recovery.partition))
                .key(keys::registrations(recovery.partition));
            chunk.iter().fold(call, |call, (id, account)| {
                call.key(keys::profile(*id))
                    .key(keys::sessions(*id))
                    .arg(id.get())
                    .arg(&account.card)
                    .arg(&account.email)
                    .arg(account.password.as_str())
                    .arg(&account.request)
                    .arg(account.card_version)
                    .arg(account.password_version)
                    .arg(account.sessions_ended)
            })
        };
        self.keyspace.send(in_chunks(recovery.partition, accounts, call)).await.map(|_| ())
    }

    /// Writes deletions of a partition that Redis lacks. An account that it still has is to be
    /// deleted everywhere again.
    pub(crate) async fn restore_deletions(
        &self,
        recovery: Recovery,
        deletions: &[(UserId, StoredDeletion)],
    ) -> Result<(), Error> {
        let call = |chunk: &[(UserId, StoredDeletion)]| {
            let call = of(recovery, "user_restore_deletions")
                .key(keys::accounts(recovery.partition))
                .key(keys::registrations(recovery.partition))
                .key(keys::deletions(recovery.partition))
                .key(keys::freed(recovery.partition));
            chunk.iter().fold(call, |call, (id, deletion)| {
                call.key(keys::profile(*id))
                    .key(keys::sessions(*id))
                    .arg(id.get())
                    .arg(&deletion.draft)
                    .arg(&deletion.email)
                    .arg(deletion.held_until_ms)
                    .arg(u8::from(deletion.is_confirmed))
            })
        };
        self.keyspace.send(in_chunks(recovery.partition, deletions, call)).await.map(|_| ())
    }

    /// Writes claims of a partition that have not changed since they were read.
    pub(crate) async fn restore_claims(
        &self,
        recovery: Recovery,
        claims: &[ClaimToRestore<'_>],
    ) -> Result<(), Error> {
        let call = |chunk: &[ClaimToRestore<'_>]| {
            chunk.iter().fold(of(recovery, "user_restore_claims"), |call, claim| {
                call.key(keys::claim(claim.identifier))
                    .arg(claim.seen.map_or_else(String::new, ClaimOwner::encode))
                    .arg(claim.owner.encode())
                    .arg(claim.held_until_ms)
            })
        };
        self.keyspace.send(in_chunks(recovery.partition, claims, call)).await.map(|_| ())
    }
}

/// Returns a call of a function of a recovery.
fn of(recovery: Recovery, function: &'static str) -> Call {
    Call::new(function).recovery(recovery, keys::journal(recovery.partition))
}

/// Returns a batch of calls for some items each.
fn in_chunks<T>(partition: Partition, items: &[T], call: impl Fn(&[T]) -> Call) -> Batch {
    let mut batch = Batch::new();
    for chunk in items.chunks(ITEMS_PER_CALL_MAX) {
        batch.call(partition, call(chunk));
    }
    batch
}

fn stored(id: UserId, values: Values) -> Option<StoredState> {
    let (card, draft, state, email, password, request, v, w, e, until) = values;
    let state = state.as_deref();
    if let (None, Some("deleted" | "freed")) = (&card, state) {
        return Some(StoredState::Deletion(StoredDeletion {
            draft: draft.unwrap_or_default(),
            email: email.unwrap_or_default(),
            held_until_ms: until.unwrap_or_default(),
            is_confirmed: state == Some("freed"),
        }));
    }
    Some(StoredState::Account(StoredAccount {
        card: card?,
        email: email.unwrap_or_default(),
        password: Hash::stored(password.unwrap_or_default()),
        request: request.unwrap_or_default(),
        card_version: v.unwrap_or(id.get()),
        password_version: w.unwrap_or(id.get()),
        sessions_ended: e.unwrap_or(id.get()),
    }))
}
