//! Outboxes: changes that must reach another partition or service, one sorted set for each
//! partition. A member names the change, and its score is the version.

use microblog_domain::Partition;
use redis::cmd;

use crate::{Batch, Error, Keyspace, decode};

/// The page size of outboxes.
pub const OUTBOX_PAGE_MAX: usize = 100;

/// A kind of outbox: its keys, and the format of its entries.
#[derive(Debug)]
pub struct Outbox<T> {
    /// Returns the key of a partition's outbox.
    pub key: fn(Partition) -> String,
    /// Decodes an entry; `None` if it is malformed.
    pub parse: fn(&str) -> Option<T>,
}

impl<T> Outbox<T> {
    /// Returns a page of each of some partitions' outboxes, from a rank on, oldest first, with the
    /// versions. `None` stands for a malformed entry, which takes a place on its page, too.
    pub async fn pages(
        &self,
        keyspace: &Keyspace,
        pages_from: &[(Partition, usize)],
    ) -> Result<Vec<Vec<Option<(T, u64)>>>, Error> {
        let mut batch = Batch::with_capacity(pages_from.len());
        for &(partition, rank) in pages_from {
            let mut read = cmd("ZRANGE");
            read.arg((self.key)(partition)).arg(rank).arg(rank + OUTBOX_PAGE_MAX - 1);
            batch.query(partition, read.arg("WITHSCORES").take());
        }
        let entry = |(member, version): (String, f64)| {
            let entry = (self.parse)(&member);
            if entry.is_none() {
                tracing::error!(member, "malformed outbox entry");
            }
            Some((entry?, version as u64))
        };
        let page = |answer| Ok(decode::<Vec<_>>(answer)?.into_iter().map(entry).collect());
        keyspace.send(batch).await?.into_iter().map(page).collect()
    }

    /// Removes malformed entries from a partition's outbox, and returns them.
    pub async fn discard_malformed(
        &self,
        keyspace: &Keyspace,
        partition: Partition,
    ) -> Result<Vec<String>, Error> {
        let key = (self.key)(partition);
        let (mut discarded, mut rank) = (Vec::new(), 0);
        loop {
            let read = cmd("ZRANGE").arg(&key).arg(rank).arg(rank + OUTBOX_PAGE_MAX - 1).take();
            let page: Vec<String> = keyspace.query(read).await?;
            let is_last = page.len() < OUTBOX_PAGE_MAX;
            let malformed = page.into_iter().filter(|member| (self.parse)(member).is_none());
            let malformed: Vec<_> = malformed.collect();
            if !malformed.is_empty() {
                let remove = cmd("ZREM").arg(&key).arg(&malformed).take();
                keyspace.query::<u64>(remove).await?;
            }
            rank += OUTBOX_PAGE_MAX - malformed.len();
            discarded.extend(malformed);
            if is_last {
                return Ok(discarded);
            }
        }
    }
}
