//! The eviction watermark: tells which posts that are not in Redis may be in the archive.

use std::collections::HashMap;

use microblog_domain::{Partition, PostId, UserId};
use microblog_keyspace::{
    Batch, Error, decode,
    redis::{Cmd, Value, cmd},
};

use super::{
    archive_outbox::OutboxEntry,
    client::Store,
    decode::post,
    posts::{is_liked, liked},
};
use crate::keys;

impl Store {
    /// Returns which of some posts that are not in Redis may be in the archive: those not above the
    /// eviction watermark that have no tombstone.
    pub async fn may_be_archived(&self, ids: &[PostId]) -> Result<Vec<bool>, Error> {
        let watermarks = self.watermarks(ids).await?;
        let old: Vec<_> = ids.iter().copied().filter(|id| is_below(&watermarks, id)).collect();
        let mut deleted = self.have_tombstones(&old).await?.into_iter();
        let may_be = |id| is_below(&watermarks, id) && deleted.next() == Some(false);
        Ok(ids.iter().map(may_be).collect())
    }

    /// Returns which posts an account likes, in the given order; `None` if there is no like in
    /// Redis, but the post may be in the archive. One round trip to each partition, sent together.
    pub async fn liked_in_redis(
        &self,
        user: UserId,
        ids: &[PostId],
    ) -> Result<Vec<Option<bool>>, Error> {
        let partitions = partitions_of(ids);
        let mut batch = Batch::with_capacity(ids.len() + partitions.len());
        for &id in ids {
            batch.query(id.partition(), liked(id, user));
        }
        for &partition in &partitions {
            batch.query(partition, watermark(partition));
        }
        let mut answers = self.keyspace.send(batch).await?.into_iter();
        let liked = answers.by_ref().take(ids.len()).map(is_liked);
        let liked: Vec<bool> = liked.collect::<Result<_, _>>()?;
        let watermarks = read_watermarks(partitions, answers)?;
        let known = |(id, liked)| (liked || !is_below(&watermarks, id)).then_some(liked);
        Ok(ids.iter().zip(liked).map(known).collect())
    }

    // Returns the watermarks of the posts' partitions, where there are any.
    async fn watermarks(&self, ids: &[PostId]) -> Result<HashMap<Partition, PostId>, Error> {
        let partitions = partitions_of(ids);
        let mut batch = Batch::with_capacity(partitions.len());
        for &partition in &partitions {
            batch.query(partition, watermark(partition));
        }
        read_watermarks(partitions, self.keyspace.send(batch).await?.into_iter())
    }

    /// Returns which posts have a tombstone in the archive outbox.
    pub async fn have_tombstones(&self, ids: &[PostId]) -> Result<Vec<bool>, Error> {
        let mut batch = Batch::with_capacity(ids.len());
        for id in ids {
            let mut read = cmd("ZSCORE");
            read.arg(keys::unarchived(id.partition())).arg(OutboxEntry::PostDeleted(*id).member());
            batch.query(id.partition(), read);
        }
        let is_there = |answer| Ok(!matches!(decode::<Value>(answer)?, Value::Nil));
        self.keyspace.send(batch).await?.into_iter().map(is_there).collect()
    }
}

fn partitions_of(ids: &[PostId]) -> Vec<Partition> {
    let mut partitions: Vec<_> = ids.iter().map(|id| id.partition()).collect();
    partitions.sort_unstable_by_key(|partition| partition.number());
    partitions.dedup();
    partitions
}

fn watermark(partition: Partition) -> Cmd {
    cmd("GET").arg(keys::horizon(partition)).take()
}

fn read_watermarks(
    partitions: Vec<Partition>,
    answers: impl Iterator<Item = Value>,
) -> Result<HashMap<Partition, PostId>, Error> {
    let mut watermarks = HashMap::new();
    for (partition, answer) in partitions.into_iter().zip(answers) {
        if let Some(watermark) = decode::<Option<i64>>(answer)? {
            watermarks.insert(partition, post(watermark)?);
        }
    }
    Ok(watermarks)
}

fn is_below(watermarks: &HashMap<Partition, PostId>, id: &PostId) -> bool {
    watermarks.get(&id.partition()).is_some_and(|watermark| id <= watermark)
}
