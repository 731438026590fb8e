//! Deletions of accounts: which accounts a service no longer accepts, and whose data it still has
//! to erase. The functions `forget` and `finish_forgetting` of the prelude are the atomic steps.

use microblog_domain::{Partition, UserId};
use redis::cmd;

use crate::{Batch, Call, Error, Keyspace, decode};

/// A service's keys of account deletions, each of a partition, and its functions' names.
#[derive(Debug)]
pub struct AccountDeletions {
    /// The name that `forget` is registered under.
    pub forget: &'static str,
    /// The name that `finish_forgetting` is registered under.
    pub finish: &'static str,
    /// Returns the key of the clock.
    pub clock: fn(Partition) -> String,
    /// Returns the key of the change journal.
    pub journal: fn(Partition) -> String,
    /// Returns the key of the set of all accounts with data.
    pub accounts: fn(Partition) -> String,
    /// Returns the key of the set of deleted accounts.
    pub forgotten: fn(Partition) -> String,
    /// Returns the key of the sorted set of deletions in progress.
    pub forgetting: fn(Partition) -> String,
}

impl AccountDeletions {
    /// Marks an account as deleted.
    pub async fn mark(&self, keyspace: &Keyspace, user: UserId) -> Result<(), Error> {
        let partition = user.partition();
        let call = Call::new(self.forget)
            .journal(partition, (self.journal)(partition))
            .key((self.clock)(partition))
            .key((self.forgotten)(partition))
            .key((self.forgetting)(partition))
            .issuing(partition)
            .arg(user.get());
        keyspace.call(call).await
    }

    /// Returns the deletions in progress, up to `count` of each of some partitions, oldest first:
    /// the accounts, and the stamps of the deletions.
    pub async fn in_progress(
        &self,
        keyspace: &Keyspace,
        partitions: impl IntoIterator<Item = Partition>,
        count: usize,
    ) -> Result<Vec<(UserId, u64)>, Error> {
        let mut batch = Batch::new();
        for partition in partitions {
            let mut read = cmd("ZRANGE");
            read.arg((self.forgetting)(partition)).arg(0).arg(count - 1).arg("WITHSCORES");
            batch.query(partition, read);
        }
        let mut deletions = Vec::new();
        for answer in keyspace.send(batch).await? {
            for (id, since) in decode::<Vec<(u64, f64)>>(answer)? {
                let user = UserId::new(id).ok_or(Error::Malformed("account id".into()))?;
                deletions.push((user, since as u64));
            }
        }
        Ok(deletions)
    }

    /// Completes the deletion of an account if some of its lists are empty, and deletes its other
    /// keys. Returns whether they are.
    pub async fn finish(
        &self,
        keyspace: &Keyspace,
        user: UserId,
        must_be_empty: &[String],
        others: &[String],
    ) -> Result<bool, Error> {
        let partition = user.partition();
        let call = Call::new(self.finish)
            .journal(partition, (self.journal)(partition))
            .key((self.forgetting)(partition))
            .key((self.accounts)(partition))
            .keys(must_be_empty)
            .keys(others)
            .arg(user.get())
            .arg(must_be_empty.len());
        keyspace.call(call).await
    }
}
