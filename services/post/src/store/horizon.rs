//! What of that which is not in Redis may be in the archive.

use std::collections::HashMap;

use microblog_domain::{Partition, PostId, UserId};
use microblog_keyspace::{
    Batch, Error, decode,
    redis::{Cmd, Value, cmd},
};

use super::{
    Store,
    notes::Note,
    post,
    posts::{is_liked, liked},
};
use crate::keys;

impl Store {
    /// Returns which of some posts that are not here may be in the archive: those that were made
    /// before the newest one that was ever taken off its author's list, and have not ended since.
    pub async fn may_be_archived(&self, ids: &[PostId]) -> Result<Vec<bool>, Error> {
        let horizons = self.horizons(ids).await?;
        let old: Vec<_> = ids.iter().copied().filter(|id| is_old(&horizons, id)).collect();
        let mut ended = self.ended(&old).await?.into_iter();
        let may_be = |id| is_old(&horizons, id) && ended.next() == Some(false);
        Ok(ids.iter().map(may_be).collect())
    }

    /// Returns which posts an account likes, in the order asked for; `None` where it does not like
    /// what is here, but the post may be in the archive. One round trip to each partition, all sent
    /// together.
    pub async fn liked_here(
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
            batch.query(partition, horizon(partition));
        }
        let mut answers = self.keyspace.send(batch).await?.into_iter();
        let liked = answers.by_ref().take(ids.len()).map(is_liked);
        let liked: Vec<bool> = liked.collect::<Result<_, _>>()?;
        let horizons = read_horizons(partitions, answers)?;
        let known = |(id, liked)| (liked || !is_old(&horizons, id)).then_some(liked);
        Ok(ids.iter().zip(liked).map(known).collect())
    }

    // The newest post that was ever retired, for each partition of some posts that has one.
    async fn horizons(&self, ids: &[PostId]) -> Result<HashMap<Partition, PostId>, Error> {
        let partitions = partitions_of(ids);
        let mut batch = Batch::with_capacity(partitions.len());
        for &partition in &partitions {
            batch.query(partition, horizon(partition));
        }
        read_horizons(partitions, self.keyspace.send(batch).await?.into_iter())
    }

    /// Returns which posts ended without the archive knowing.
    pub async fn ended(&self, ids: &[PostId]) -> Result<Vec<bool>, Error> {
        let mut batch = Batch::with_capacity(ids.len());
        for id in ids {
            let mut read = cmd("ZSCORE");
            read.arg(keys::unarchived(id.partition())).arg(Note::PostEnded(*id).member());
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

fn horizon(partition: Partition) -> Cmd {
    cmd("GET").arg(keys::horizon(partition)).take()
}

fn read_horizons(
    partitions: Vec<Partition>,
    answers: impl Iterator<Item = Value>,
) -> Result<HashMap<Partition, PostId>, Error> {
    let mut horizons = HashMap::new();
    for (partition, answer) in partitions.into_iter().zip(answers) {
        if let Some(horizon) = decode::<Option<i64>>(answer)? {
            horizons.insert(partition, post(horizon)?);
        }
    }
    Ok(horizons)
}

fn is_old(horizons: &HashMap<Partition, PostId>, id: &PostId) -> bool {
    horizons.get(&id.partition()).is_some_and(|horizon| id <= horizon)
}
