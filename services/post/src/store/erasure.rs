//! The state of an erasure run, and its changes of posts.

use microblog_domain::{Partition, PostId, UserId};
use microblog_keyspace::{Batch, Call, Entry, Error, Order, Page, decode, redis::cmd};
use uuid::Uuid;

use super::{
    JOURNALS, Store,
    decode::{malformed, skip_damaged},
};
use crate::keys;

/// A run that erases what some accounts wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ErasureRun {
    /// Its id.
    pub(crate) id: Uuid,
    /// Its stage.
    pub(crate) stage: ErasureStage,
    /// The accounts.
    pub(crate) accounts: Vec<UserId>,
}

/// The stage of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErasureStage {
    /// Next, erase in the archive.
    Begun,
    /// Next, walk the partitions from this one on.
    Walking(Partition),
    /// All partitions are walked.
    Walked,
}

/// What a run's fence in a partition prevents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fence {
    /// Evictions, while the archive is erased.
    Archive,
    /// Evictions, and restores of snapshots that were read before; `functions/archive.lua` enforces
    /// the latter.
    Walk,
    /// Only restores of snapshots that were read before.
    Lifted,
}

impl Fence {
    fn number(self) -> u8 {
        match self {
            Self::Archive => 1,
            Self::Walk => 2,
            Self::Lifted => 0,
        }
    }
}

impl ErasureRun {
    fn write(&self) -> String {
        let stage = match self.stage {
            ErasureStage::Begun => "begun".to_owned(),
            ErasureStage::Walking(partition) => partition.number().to_string(),
            ErasureStage::Walked => Partition::COUNT.to_string(),
        };
        let accounts: Vec<_> = self.accounts.iter().map(|account| account.to_string()).collect();
        format!("{} {stage} {}", self.id, accounts.join(" "))
    }

    fn read(text: &str) -> Option<Self> {
        let mut parts = text.split(' ');
        let id = Uuid::parse_str(parts.next()?).ok()?;
        let stage = match parts.next()? {
            "begun" => ErasureStage::Begun,
            number => match number.parse().ok()? {
                number if number < Partition::COUNT => {
                    ErasureStage::Walking(Partition::new(number))
                }
                _ => ErasureStage::Walked,
            },
        };
        let accounts = parts.map(|id| UserId::new(id.parse().ok()?)).collect::<Option<_>>()?;
        Some(Self { id, stage, accounts })
    }
}

impl Store {
    /// Returns the current run.
    pub(crate) async fn erasure(&self) -> Result<Option<ErasureRun>, Error> {
        let text: Option<String> =
            self.keyspace.query(cmd("GET").arg(keys::job("erasure")).take()).await?;
        text.map(|text| ErasureRun::read(&text).ok_or_else(|| malformed("erasure"))).transpose()
    }

    /// Stores a run and its stage.
    pub(crate) async fn save_erasure(&self, run: &ErasureRun) -> Result<(), Error> {
        self.keyspace.call(put(keys::job("erasure"), run.write())).await
    }

    /// Deletes the state of the finished run.
    pub(crate) async fn delete_erasure(&self) -> Result<(), Error> {
        self.keyspace.query(cmd("UNLINK").arg(keys::job("erasure")).take()).await
    }

    /// Returns whether there is, or was, an archive: whether changes are recorded.
    pub(crate) async fn has_archive(&self) -> Result<bool, Error> {
        let partitions: Vec<_> = Partition::all().collect();
        Ok(JOURNALS.newest(&self.keyspace, &partitions).await?.iter().any(Option::is_some))
    }

    /// Sets a run's fence in some partitions. All calls go out together.
    pub(crate) async fn fence(
        &self,
        partitions: &[Partition],
        run: Uuid,
        fence: Fence,
    ) -> Result<(), Error> {
        let mut batch = Batch::with_capacity(partitions.len());
        for &partition in partitions {
            let value = format!("{run}:{}", fence.number());
            batch.call(partition, put(keys::erasure_fence(partition), value));
        }
        for answer in self.keyspace.send(batch).await? {
            decode::<()>(answer)?;
        }
        Ok(())
    }

    /// Returns the fence of a partition, to be passed to [`Self::restore`]; empty if there never
    /// was one.
    pub async fn erasure_fence(&self, partition: Partition) -> Result<String, Error> {
        let fence: Option<String> =
            self.keyspace.query(cmd("GET").arg(keys::erasure_fence(partition)).take()).await?;
        Ok(fence.unwrap_or_default())
    }

    /// Returns whether a fence prevents evictions from a partition.
    pub(crate) async fn is_fenced(&self, partition: Partition) -> Result<bool, Error> {
        let fence = self.erasure_fence(partition).await?;
        Ok(!fence.is_empty() && !fence.ends_with(":0"))
    }

    /// Returns which of some accounts have posts, in the given order.
    pub(crate) async fn have_lists(&self, accounts: &[UserId]) -> Result<Vec<bool>, Error> {
        let mut batch = Batch::with_capacity(accounts.len());
        for &account in accounts {
            batch.query(account.partition(), cmd("EXISTS").arg(keys::posts(account)).take());
        }
        self.keyspace.send(batch).await?.into_iter().map(decode).collect()
    }

    /// Returns a page of a partition's evictable posts, by the time from which they may be evicted.
    pub(crate) async fn evictable_page(
        &self,
        partition: Partition,
        after: Option<Entry>,
        count: usize,
    ) -> Result<Page, Error> {
        self.page(keys::evictable(partition), Order::Oldest, after, count).await
    }

    /// Returns the counts of likes and comments of posts, in the given order; 0 for a damaged post.
    pub(crate) async fn reactions(&self, ids: &[PostId]) -> Result<Vec<(u64, u64)>, Error> {
        let mut batch = Batch::with_capacity(ids.len());
        for &id in ids {
            let read = cmd("HMGET").arg(keys::post(id)).arg(&["l", "c"]).take();
            batch.query(id.partition(), read);
        }
        let mut reactions = Vec::with_capacity(ids.len());
        for (&id, answer) in ids.iter().zip(self.keyspace.send_each(batch).await?) {
            let counts = answer.and_then(decode::<(Option<u64>, Option<u64>)>);
            let (likes, comments) = skip_damaged(id, counts)?;
            reactions.push((likes.unwrap_or_default(), comments.unwrap_or_default()));
        }
        Ok(reactions)
    }

    /// Removes the likes of accounts from posts, except damaged ones. All calls go out together.
    pub(crate) async fn erase_likes(
        &self,
        ids: &[PostId],
        accounts: &[UserId],
    ) -> Result<(), Error> {
        let mut batch = Batch::with_capacity(ids.len());
        for &id in ids {
            let partition = id.partition();
            let call = Call::new("post_erase_likes")
                .key(keys::post(id))
                .key(keys::likes(id))
                .journal(partition, keys::journal(partition))
                .arg(id.get());
            let call = accounts.iter().fold(call, |call, account| call.arg(account.get()));
            batch.call(partition, call);
        }
        for (&id, answer) in ids.iter().zip(self.keyspace.send_each(batch).await?) {
            skip_damaged(id, answer.map(drop))?;
        }
        Ok(())
    }
}

// Writes a string, even at Redis' memory limit.
fn put(key: String, value: String) -> Call {
    Call::new("post_set").key(key).arg(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_erasure_run_round_trips() {
        let accounts = [7, 1 << 52].map(|id| UserId::new(id).unwrap());
        for stage in [
            ErasureStage::Begun,
            ErasureStage::Walking(Partition::new(1_023)),
            ErasureStage::Walked,
        ] {
            let run = ErasureRun { id: Uuid::new_v4(), stage, accounts: accounts.into() };
            assert_eq!(ErasureRun::read(&run.write()), Some(run));
        }
        for rubbish in ["", "7 begun 7", "7"] {
            assert_eq!(ErasureRun::read(rubbish), None, "{rubbish}");
        }
    }
}
