//! Accounts: read, changed, deleted.

use microblog_domain::{Partition, UserId};
use microblog_keyspace::{self as keyspace, Batch, Call, redis};

use super::{Recalled, Store, Which, card, claims, intact};
use crate::{Error, Hash, Part, Record, Registration, State, User, keys};

// The order in which profiles are read.
const FIELDS: [&str; 6] = ["card", "state", "draft", "email", "password", "request"];

// Deletions are looked for in so many partitions at once, until there are enough.
const PARTITIONS_PER_BATCH: usize = 256;

/// Some accounts of a partition.
#[derive(Clone, Debug)]
pub struct AccountsPage {
    /// Their ids, in no order.
    pub ids: Vec<UserId>,
    /// From where to go on; 0 at the end.
    pub cursor: u64,
}

type Texts = Vec<Option<String>>;

impl Store {
    /// Returns all that is known of ids, whether they are accounts or not; `None` where there is
    /// nothing. One round trip.
    pub async fn read(&self, ids: &[UserId]) -> Result<Vec<Option<Record>>, Error> {
        self.read_each(ids).await?.into_iter().collect()
    }

    /// The same, with what is damaged in its place. One round trip.
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

    /// Returns what everybody may see of those ids that are accounts, in the same order; without
    /// those whose card is damaged. One round trip.
    pub async fn users(&self, ids: &[UserId]) -> Result<Vec<User>, Error> {
        let cards: Vec<_> = ids.iter().map(|&id| Which::Card(id)).collect();
        let read = |(&id, recalled)| match recalled {
            Recalled::Card(card) => card::read(id, &card?),
            Recalled::Sessions(_) => None,
        };
        Ok(ids.iter().zip(self.recall.read(&cards).await?).filter_map(read).collect())
    }

    /// Changes parts of a profile; an empty text clears one. Returns whether there is such an
    /// account. One round trip.
    pub async fn update(&self, id: UserId, changes: &[(Part, String)]) -> Result<bool, Error> {
        let call = Call::new("user_update").key(keys::profile(id));
        let call = changes.iter().fold(call, |call, (part, text)| call.arg(part.field()).arg(text));
        let done: Option<u64> = self.keyspace.call(call).await?;
        Ok(intact(done, "a card")? == 1)
    }

    /// Deletes an account if this still is the hash of its password, with its sessions. Its claims
    /// are worth nothing from then on, but still to be released. One round trip.
    pub async fn delete(&self, id: UserId, checked: &Hash) -> Result<bool, Error> {
        let call = Call::new("user_delete")
            .key(keys::profile(id))
            .key(keys::sessions(id))
            .key(keys::accounts(id.partition()))
            .key(keys::deletions(id.partition()))
            .arg(id.get())
            .arg(checked.as_str());
        let done: Option<u64> = self.keyspace.call(call).await?;
        Ok(intact(done, "an account")? == 1)
    }

    /// Returns the claims of an account that was deleted and is not confirmed. One round trip.
    pub async fn deleted(&self, id: UserId) -> Result<Option<Registration>, Error> {
        let mut read = redis::cmd("HMGET");
        read.arg(keys::profile(id)).arg(&["state", "draft", "email"]);
        let texts: Texts = self.keyspace.query(read).await?;
        match texts.as_slice() {
            [Some(state), texts @ ..] if state == "deleted" => {
                intact(claims(id, texts), "a deleted account").map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Forgets a deleted account, after its claims were released. One round trip.
    pub async fn confirm_deletion(&self, id: UserId) -> Result<(), Error> {
        let call = Call::new("user_confirm_deletion")
            .key(keys::profile(id))
            .key(keys::deletions(id.partition()))
            .arg(id.get());
        self.keyspace.call::<u64>(call).await?;
        Ok(())
    }

    /// Returns up to so many deleted accounts that are not confirmed. Begins at a partition chosen
    /// at random, so that none waits for ever behind others. Up to four round trips.
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
    /// while Redis keeps them packed, and about 1,000 from there on.
    pub async fn accounts(&self, at: Partition, cursor: u64) -> Result<AccountsPage, Error> {
        let mut scan = redis::cmd("SSCAN");
        scan.arg(keys::accounts(at)).arg(cursor).arg("COUNT").arg(1000);
        let (cursor, ids): (u64, Vec<u64>) = self.keyspace.query(scan).await?;
        Ok(AccountsPage { ids: ids.into_iter().filter_map(UserId::new).collect(), cursor })
    }
}

fn record(id: UserId, texts: Texts) -> Result<Option<Record>, Error> {
    let mut texts = texts.into_iter();
    let mut next = || texts.next().flatten();
    let (card, state, draft) = (next(), next(), next());
    let state = match state.as_deref() {
        _ if card.is_some() => State::Active,
        Some("pending") => State::Pending,
        Some("deleted") => State::Deleted,
        _ => State::Gone,
    };
    let user = match card {
        Some(card) => Some(intact(card::read(id, &card), "a card")?),
        // What has a damaged draft is nothing: it cannot become an account.
        None => draft.and_then(|draft| card::read(id, &draft)),
    };
    let email = next().unwrap_or_default();
    let password = Hash::stored(next().unwrap_or_default());
    let request = next().unwrap_or_default();
    Ok(user.map(|user| Record { state, user, email, password, request }))
}
