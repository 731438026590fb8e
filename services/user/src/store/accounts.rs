//! Accounts: reads, changes and deletion.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use microblog_domain::{Partition, UserId};
use microblog_keyspace::{self as keyspace, Batch, Call, redis};

use super::{CacheKey, CachedValue, Store, card, claims, intact, sessions::unix_ms};
use crate::{
    error::Error,
    keys,
    password::Hash,
    profile::{ProfileField, Record, Registration, State, User},
};

// The fields of a profile in reading order, and their values.
const FIELDS: [&str; 6] = ["card", "draft", "state", "email", "password", "request"];
type Values = (
    Option<Vec<u8>>,
    Option<Vec<u8>>,
    Option<String>,
    Option<String>,
    Option<String>,
    Option<String>,
);

// The partitions per batch when collecting deletions.
const PARTITIONS_PER_BATCH: usize = 256;

/// A deleted account that is not confirmed.
#[derive(Clone, Debug)]
pub struct DeletedAccount {
    /// Its claims, which are stale and must be released.
    pub claims: Registration,
    /// How much longer its name is held.
    pub hold: Duration,
}

/// A page of a partition's accounts.
#[derive(Clone, Debug)]
pub struct AccountsPage {
    /// The ids, unordered.
    pub ids: Vec<UserId>,
    /// The next cursor; 0 at the end.
    pub cursor: u64,
}

impl Store {
    /// Returns the profiles of ids, in any state; `None` if there is none. One round trip.
    pub async fn read(&self, ids: &[UserId]) -> Result<Vec<Option<Record>>, Error> {
        self.read_each(ids).await?.into_iter().collect()
    }

    /// As `read`, with an error in place of each damaged profile.
    pub async fn read_each(
        &self,
        ids: &[UserId],
    ) -> Result<Vec<Result<Option<Record>, Error>>, Error> {
        let mut batch = Batch::with_capacity(ids.len());
        for &id in ids {
            let mut read = redis::cmd("HMGET");
            read.arg(keys::profile(id)).arg(&FIELDS);
            batch.query(id.partition(), read);
        }
        let answers = self.keyspace.send(batch).await?;
        let read = |(&id, answer)| Ok(record(id, keyspace::decode(answer)?));
        ids.iter().zip(answers).map(read).collect()
    }

    /// Returns the public parts of the ids that are accounts, in their order; skips damaged cards.
    /// One round trip.
    pub async fn users(&self, ids: &[UserId]) -> Result<Vec<User>, Error> {
        let cards: Vec<_> = ids.iter().map(|&id| CacheKey::Card(id)).collect();
        let read = |(&id, cached)| match cached {
            CachedValue::Card(card) => card::read(id, &card?),
            CachedValue::Sessions(_) => None,
        };
        Ok(ids.iter().zip(self.cache.read(&cards).await?).filter_map(read).collect())
    }

    /// Changes fields of a profile; an empty text clears one. Returns whether the account exists.
    /// One round trip.
    pub async fn update(
        &self,
        id: UserId,
        changes: &[(ProfileField, String)],
    ) -> Result<bool, Error> {
        let call = Call::new("user_update")
            .journal(id.partition(), keys::journal(id.partition()))
            .key(keys::profile(id))
            .arg(id.get())
            .arg(card::write_changes(changes));
        let done: Option<u64> = self.keyspace.call(call).await?;
        Ok(intact(done, "a card")? == 1)
    }

    /// Deletes an account with its sessions if `checked` is still its password hash. Its claims
    /// become stale and must be released, the name with a hold. One round trip.
    pub async fn delete(&self, id: UserId, checked: &Hash, hold: Duration) -> Result<bool, Error> {
        let held_until = if hold.is_zero() { 0 } else { unix_ms(SystemTime::now() + hold) };
        let call = Call::new("user_delete")
            .journal(id.partition(), keys::journal(id.partition()))
            .key(keys::profile(id))
            .key(keys::sessions(id))
            .key(keys::accounts(id.partition()))
            .key(keys::deletions(id.partition()))
            .arg(id.get())
            .arg(checked.as_str())
            .arg(held_until);
        let done: Option<u64> = self.keyspace.call(call).await?;
        Ok(intact(done, "an account")? == 1)
    }

    /// Returns a deleted account that is not confirmed. One round trip.
    pub async fn deleted(&self, id: UserId) -> Result<Option<DeletedAccount>, Error> {
        type Deleted = (Option<String>, Option<Vec<u8>>, Option<String>, Option<u64>);
        let mut read = redis::cmd("HMGET");
        read.arg(keys::profile(id)).arg(&["state", "draft", "email", "until"]);
        let (state, draft, email, held_until): Deleted = self.keyspace.query(read).await?;
        if state.as_deref() != Some("deleted") {
            return Ok(None);
        }
        let claims = intact(claims(id, (draft, email)), "a deleted account")?;
        let held_until = UNIX_EPOCH + Duration::from_millis(held_until.unwrap_or_default());
        let hold = held_until.duration_since(SystemTime::now()).unwrap_or_default();
        Ok(Some(DeletedAccount { claims, hold }))
    }

    /// Deletes the rest of a deleted account after the release of its claims, except for a name that
    /// is held. One round trip.
    pub async fn confirm_deletion(&self, id: UserId) -> Result<(), Error> {
        let call = Call::new("user_confirm_deletion")
            .journal(id.partition(), keys::journal(id.partition()))
            .key(keys::profile(id))
            .key(keys::deletions(id.partition()))
            .key(keys::freed(id.partition()))
            .arg(id.get());
        self.keyspace.call::<u64>(call).await?;
        Ok(())
    }

    /// Returns up to `max` deleted accounts that are not confirmed. Starts at a random partition,
    /// so that none starves. Up to four round trips.
    pub async fn deletions(&self, max: usize) -> Result<Vec<UserId>, Error> {
        let first: u16 = rand::random();
        let partitions: Vec<_> =
            (0..Partition::COUNT).map(|i| Partition::new(first.wrapping_add(i))).collect();
        let mut found = Vec::new();
        for group in partitions.chunks(PARTITIONS_PER_BATCH) {
            let mut batch = Batch::new();
            for &partition in group {
                let mut range = redis::cmd("ZRANGE");
                range.arg(keys::deletions(partition)).arg(0).arg(max - 1);
                batch.query(partition, range);
            }
            found.extend(self.ids(batch).await?);
            if found.len() >= max {
                break;
            }
        }
        found.truncate(max);
        Ok(found)
    }

    /// Returns some of a partition's accounts: up to 100,000 (8 bytes each, a few milliseconds)
    /// while the set is an intset, and about 1,000 afterwards.
    pub async fn accounts(&self, at: Partition, cursor: u64) -> Result<AccountsPage, Error> {
        let mut scan = redis::cmd("SSCAN");
        scan.arg(keys::accounts(at)).arg(cursor).arg("COUNT").arg(1000);
        let (cursor, ids): (u64, Vec<u64>) = self.keyspace.query(scan).await?;
        Ok(AccountsPage { ids: ids.into_iter().filter_map(UserId::new).collect(), cursor })
    }
}

fn record(id: UserId, values: Values) -> Result<Option<Record>, Error> {
    let (card, draft, state, email, password, request) = values;
    let state = match state.as_deref() {
        _ if card.is_some() => State::Active,
        Some("pending") => State::Pending,
        Some("deleted" | "freed") => State::Deleted,
        _ => State::Aborted,
    };
    let user = match card {
        Some(card) => Some(intact(card::read(id, &card), "a card")?),
        // A profile with a damaged draft counts as missing: it cannot become an account.
        None => draft.and_then(|draft| card::read(id, &draft)),
    };
    Ok(user.map(|user| Record {
        state,
        user,
        address: email.unwrap_or_default(),
        password: Hash::stored(password.unwrap_or_default()),
        request: request.unwrap_or_default(),
    }))
}
