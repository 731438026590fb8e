//! Lists of the follow graph: reads, whose cost depends on the number of entries that are read and
//! not on the length of the list, and changes of lists without inverse edges.

use microblog_domain::UserId;
use microblog_keyspace::{
    Batch, Call, Entry, Error, Order, Page, Range, decode,
    redis::{Cmd, cmd},
};

use super::{Store, malformed, outcome};
use crate::{
    graph::{Counts, List, Outcome},
    keys,
};

/// The most entries that one command reads: about a millisecond of Redis' time.
const READ_MAX: usize = 2_000;

/// The most accounts that one command looks up.
const LOOK_UP_MAX: usize = 500;

impl Store {
    /// Adds an account to a private list without inverse edges.
    pub async fn add(&self, list: List, user: UserId, account: UserId) -> Result<Outcome, Error> {
        let Some([begin, _]) = list.change_names() else { return Err(malformed("list")) };
        let partition = user.partition();
        let call = Call::new("relation_add")
            .journal(partition, keys::journal(partition))
            .key(keys::clock(partition))
            .key(keys::forgotten(partition))
            .key(keys::users(partition))
            .key(keys::list(list, user))
            .arg(begin)
            .issuing(partition)
            .arg(user.get())
            .arg(account.get())
            .arg(self.blocks_limit);
        outcome(self.keyspace.call(call).await?)
    }

    /// Removes an account from a private list without inverse edges.
    pub async fn remove(&self, list: List, user: UserId, account: UserId) -> Result<(), Error> {
        let Some([_, end]) = list.change_names() else { return Err(malformed("list")) };
        let partition = user.partition();
        let call = Call::new("relation_remove")
            .journal(partition, keys::journal(partition))
            .key(keys::clock(partition))
            .key(keys::list(list, user))
            .arg(end)
            .arg(user.get())
            .arg(account.get());
        self.keyspace.call(call).await
    }

    /// Returns the version up to which a user's follows are settled, that is, acknowledged by their
    /// targets' partitions. `newest` is the version of the newest follow. One round trip.
    ///
    /// Must be called after `newest` was read: then each outbox entry is either older, or of a
    /// later follow. Entries of other users of the partition count too, which can only lower the
    /// result.
    pub async fn settled(&self, user: UserId, newest: u64) -> Result<u64, Error> {
        let pending = keys::pending(user.partition());
        let oldest = cmd("ZRANGE").arg(pending).arg(0).arg(0).arg("WITHSCORES").take();
        let oldest: Vec<(String, f64)> = self.keyspace.query(oldest).await?;
        let before = |(_, version): &(String, f64)| (*version as u64).saturating_sub(1);
        Ok(oldest.first().map_or(newest, before).min(newest))
    }

    /// Returns a page of a list, newest first; usually one command.
    pub async fn page(
        &self,
        list: List,
        user: UserId,
        after: Option<Entry>,
        newer_than: Option<u64>,
        count: usize,
    ) -> Result<Page, Error> {
        let range = Range { order: Order::Newest, after, above: newer_than, count };
        self.range(list, user, range).await
    }

    /// Returns a page of a list in either order. Usually one command, for more than 2,000 entries
    /// one after the other for each 2,000.
    pub async fn range(&self, list: List, user: UserId, range: Range) -> Result<Page, Error> {
        let key = keys::list(list, user);
        let mut all = Page::default();
        loop {
            let after = all.entries.last().copied().or(range.after);
            let count = (range.count - all.entries.len()).min(READ_MAX);
            let page = self.keyspace.page(&key, Range { after, count, ..range }).await?;
            all.more = page.more;
            if all.entries.is_empty() {
                all.entries = page.entries;
            } else {
                all.entries.extend(page.entries);
            }
            if !all.more || all.entries.len() >= range.count {
                return Ok(all);
            }
        }
    }

    /// Returns the lengths of users' lists, in their order: three commands per user, all sent
    /// together.
    pub async fn counts(&self, users: &[UserId]) -> Result<Vec<Counts>, Error> {
        let mut batch = Batch::new();
        for &user in users {
            for list in [List::Following, List::Followers, List::Mutuals] {
                batch.query(user.partition(), length(list, user));
            }
        }
        let lengths = self.keyspace.send(batch).await?.into_iter().map(decode);
        let lengths = lengths.collect::<Result<Vec<u64>, _>>()?;
        let counts =
            |&[following, followers, mutuals]: &[u64; 3]| Counts { following, followers, mutuals };
        Ok(lengths.as_chunks::<3>().0.iter().map(counts).collect())
    }

    /// Returns the lengths of two lists.
    pub async fn lengths(&self, lists: [(List, UserId); 2]) -> Result<[u64; 2], Error> {
        let mut batch = Batch::new();
        for (list, user) in lists {
            batch.query(user.partition(), length(list, user));
        }
        let mut answers = self.keyspace.send(batch).await?.into_iter();
        let mut next = || answers.next().map_or(Ok(0), decode);
        Ok([next()?, next()?])
    }

    /// Returns which accounts, at most 500, are in the id set of a list of follows (none for other
    /// lists, which have no id set).
    pub async fn in_id_set(
        &self,
        list: List,
        user: UserId,
        accounts: &[UserId],
    ) -> Result<Vec<bool>, Error> {
        let Some(key) = keys::id_set(list, user) else { return Ok(vec![false; accounts.len()]) };
        if accounts.is_empty() {
            return Ok(Vec::new());
        }
        self.keyspace.query(with_ids("SMISMEMBER", key, accounts)).await
    }

    /// Returns the versions of accounts on a user's list, 0 for those not on it: one command per
    /// 500, all sent together.
    pub async fn versions(
        &self,
        list: List,
        user: UserId,
        accounts: &[UserId],
    ) -> Result<Vec<u64>, Error> {
        let mut batch = Batch::new();
        for accounts in accounts.chunks(LOOK_UP_MAX) {
            batch.query(user.partition(), with_ids("ZMSCORE", keys::list(list, user), accounts));
        }
        let mut found = Vec::with_capacity(accounts.len());
        for answer in self.keyspace.send(batch).await? {
            let versions: Vec<Option<f64>> = decode(answer)?;
            found.extend(versions.into_iter().map(|version| version.unwrap_or(0.0) as u64));
        }
        Ok(found)
    }
}

fn length(list: List, user: UserId) -> Cmd {
    let mut command = cmd("ZCARD");
    command.arg(keys::list(list, user));
    command
}

pub(super) fn with_ids(command: &str, key: String, ids: &[UserId]) -> Cmd {
    // Full capacity: an id has up to 16 digits.
    let mut with_ids = Cmd::with_capacity(ids.len() + 2, key.len() + 16 * (ids.len() + 1));
    with_ids.arg(command).arg(key);
    for id in ids {
        with_ids.arg(id.get());
    }
    with_ids
}
