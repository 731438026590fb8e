//! Eviction from Redis: evictable posts and eviction marks. The eviction watermark says which posts
//! that are not in Redis may be in the archive.

use std::collections::HashMap;

use microblog_domain::{Partition, PostId, UserId};
use microblog_keyspace::{
    Batch, Call, Error, decode,
    redis::{Cmd, Value, cmd},
};
use uuid::Uuid;

use super::{
    Store,
    decode::{Outcome, post, skip_damaged, stamp},
    posts::{ARCHIVE_MARKER, is_liked, liked},
};
use crate::keys;

/// The marker's score is one more than the number of unlisted posts, unless it is 0 or at least
/// this; `functions.lua` has the same number.
const UNLISTED_MAX: u64 = 1 << 40;

/// The post count of an author.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PostCount {
    /// Posts on the list in Redis.
    pub listed: usize,
    /// Evictable and archived posts. `None` if they are not counted yet.
    pub unlisted: Option<u64>,
}

impl PostCount {
    fn read(entries: usize, marker: Option<f64>) -> Self {
        let Some(marker) = marker else { return Self { listed: entries, unlisted: Some(0) } };
        let (listed, score) = (entries.saturating_sub(1), marker as u64);
        Self { listed, unlisted: (score < UNLISTED_MAX).then(|| score.checked_sub(1)).flatten() }
    }

    /// Returns the sum, as far as it is counted.
    pub fn total(self) -> u64 {
        self.listed as u64 + self.unlisted.unwrap_or_default()
    }
}

/// How many list entries one command reads or writes.
pub(super) const CHUNK: usize = 500;

impl Store {
    /// Returns the post counts of some authors. One round trip to each partition, sent together.
    pub async fn post_counts(&self, authors: &[UserId]) -> Result<Vec<PostCount>, Error> {
        let mut batch = Batch::with_capacity(2 * authors.len());
        for &author in authors {
            let key = keys::posts(author);
            batch.query(author.partition(), cmd("ZCARD").arg(&key).take());
            batch.query(author.partition(), cmd("ZSCORE").arg(&key).arg(ARCHIVE_MARKER).take());
        }
        let mut answers = self.keyspace.send(batch).await?.into_iter();
        let mut next = || answers.next().unwrap_or(Value::Nil);
        let mut count = |_: &UserId| {
            let (entries, marker): (usize, Option<f64>) = (decode(next())?, decode(next())?);
            Ok(PostCount::read(entries, marker))
        };
        authors.iter().map(&mut count).collect()
    }

    /// Begins to count an author's unlisted posts: replaces the count by a random token. Returns
    /// the token for [`Self::count_unlisted`].
    pub(crate) async fn begin_count(&self, author: UserId) -> Result<u64, Error> {
        let (random, _, _, _) = Uuid::new_v4().as_fields();
        let counting = UNLISTED_MAX + u64::from(random);
        let mut add = cmd("ZADD");
        add.arg(keys::posts(author)).arg("XX").arg(counting).arg(ARCHIVE_MARKER);
        self.keyspace.query::<i64>(add).await?;
        Ok(counting)
    }

    /// Stores the count of an author's unlisted posts, unless that changed since the count began.
    /// Returns whether it was stored.
    pub(crate) async fn count_unlisted(
        &self,
        author: UserId,
        counting: u64,
        count: u64,
    ) -> Result<bool, Error> {
        let call = Call::new("post_count_unlisted").key(keys::posts(author));
        self.keyspace.call(call.arg(counting).arg(count)).await
    }

    /// Returns the oldest posts of an author's list, oldest first, up to `count`.
    pub async fn oldest_of(&self, author: UserId, count: usize) -> Result<Vec<PostId>, Error> {
        // One more for the archive marker.
        let ids: Vec<u64> = self
            .keyspace
            .query(cmd("ZRANGE").arg(keys::posts(author)).arg(0).arg(count).take())
            .await?;
        Ok(ids.into_iter().filter_map(PostId::new).take(count).collect())
    }

    /// Makes an author's oldest posts evictable, which the archive has: removes them from the list.
    /// Stops at the first one that is not delivered. Returns how many became evictable.
    pub async fn make_evictable(&self, author: UserId, ids: &[PostId]) -> Result<usize, Error> {
        let partition = author.partition();
        let call = Call::new("post_make_evictable")
            .key(keys::outbox(partition))
            .key(keys::evictable(partition))
            .key(keys::watermark(partition))
            .key(keys::posts(author))
            .journal(partition, keys::journal(partition));
        self.keyspace.call(ids.iter().fold(call, |call, id| call.arg(id.get()))).await
    }

    /// Returns up to 100 posts of a partition that may be evicted at a stamp.
    pub async fn evictable(&self, partition: Partition, at: u64) -> Result<Vec<PostId>, Error> {
        let mut read = cmd("ZRANGE");
        read.arg(keys::evictable(partition)).arg("-inf").arg(at).arg("BYSCORE");
        read.arg("LIMIT").arg(0).arg(100);
        let ids: Vec<u64> = self.keyspace.query(read).await?;
        Ok(ids.into_iter().filter_map(PostId::new).collect())
    }

    /// Sets the eviction marks of posts. Returns the marks; `None` for posts that cannot be evicted,
    /// such as damaged ones.
    pub async fn mark_for_eviction(&self, ids: &[PostId]) -> Result<Vec<Option<u64>>, Error> {
        let mut batch = Batch::with_capacity(ids.len());
        for &id in ids {
            let partition = id.partition();
            let call = Call::new("post_mark")
                .key(keys::clock(partition))
                .key(keys::evictable(partition))
                .key(keys::post(id))
                .key(keys::repost_tombstones(id))
                .issuing(partition)
                .arg(id.get());
            batch.call(partition, call);
        }
        let mark = |answer: Result<Value, Error>| {
            let (done, mark): (i64, i64) = decode(answer?)?;
            match Outcome::read(done)? {
                Outcome::Done => Ok(Some(stamp(mark)?)),
                Outcome::Unchanged | Outcome::NotFound => Ok(None),
                other => Err(other.unexpected()),
            }
        };
        let marks = ids.iter().zip(self.keyspace.send_each(batch).await?);
        marks.map(|(&id, answer)| skip_damaged(id, mark(answer))).collect()
    }

    /// Evicts posts whose marks are still set. Returns which were evicted: none while a fence
    /// prevents evictions.
    pub async fn evict(&self, marked: &[(PostId, u64)]) -> Result<Vec<bool>, Error> {
        let mut batch = Batch::with_capacity(marked.len());
        for &(id, mark) in marked {
            let partition = id.partition();
            let call = Call::new("post_evict")
                .key(keys::evictable(partition))
                .keys(keys::of_post(id))
                .key(keys::repost_tombstones(id))
                .key(keys::erasure_fence(partition))
                .journal(partition, keys::journal(partition))
                .arg(id.get())
                .arg(mark);
            batch.call(partition, call);
        }
        let is_done =
            |answer: Result<Value, Error>| Ok(Outcome::read(decode(answer?)?)? == Outcome::Done);
        let done = marked.iter().zip(self.keyspace.send_each(batch).await?);
        done.map(|(&(id, _), answer)| skip_damaged(id, is_done(answer))).collect()
    }

    /// Returns the posts whose marks are older than their scores, with their marks: they were
    /// recorded at their scores ([`Self::set_recorded`]), and have not changed since.
    pub(crate) async fn marks_of_recorded(
        &self,
        ids: &[PostId],
    ) -> Result<Vec<(PostId, u64)>, Error> {
        let mut batch = Batch::with_capacity(2 * ids.len());
        for &id in ids {
            let partition = id.partition();
            batch.query(partition, cmd("HGET").arg(keys::post(id)).arg("m").take());
            let score = cmd("ZSCORE").arg(keys::evictable(partition)).arg(id.get()).take();
            batch.query(partition, score);
        }
        let mut answers = self.keyspace.send_each(batch).await?.into_iter();
        let mut next = || answers.next().unwrap_or(Ok(Value::Nil));
        let mut recorded = Vec::new();
        for &id in ids {
            let mark: Option<u64> = skip_damaged(id, next().and_then(decode))?;
            let score: Option<f64> = decode(next()?)?;
            recorded.extend(mark.filter(|&mark| score > Some(mark as f64)).map(|mark| (id, mark)));
        }
        Ok(recorded)
    }

    /// Sets the moment, a stamp, at which marked posts were recorded.
    pub(crate) async fn set_recorded(
        &self,
        marked: &[(PostId, u64)],
        at: u64,
    ) -> Result<(), Error> {
        let mut batch = Batch::with_capacity(marked.len());
        for &(id, _) in marked {
            batch.call(id.partition(), set_score(id, at));
        }
        self.keyspace.send(batch).await?;
        Ok(())
    }

    /// Postpones the eviction of evictable posts until a stamp. They lose their marks.
    pub async fn postpone_eviction(&self, ids: &[PostId], until: u64) -> Result<(), Error> {
        let mut batch = Batch::with_capacity(2 * ids.len());
        for &id in ids {
            batch.query(id.partition(), cmd("HDEL").arg(keys::post(id)).arg("m").take());
            batch.call(id.partition(), set_score(id, until));
        }
        let mut answers = self.keyspace.send_each(batch).await?.into_iter();
        let mut next = || answers.next().unwrap_or(Ok(Value::Nil)).map(drop);
        for &id in ids {
            skip_damaged(id, next())?;
            next()?;
        }
        Ok(())
    }

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

    /// Returns which posts have a tombstone: the archive may still have them.
    pub async fn have_tombstones(&self, ids: &[PostId]) -> Result<Vec<bool>, Error> {
        let mut batch = Batch::with_capacity(ids.len());
        for id in ids {
            let mut read = cmd("ZSCORE");
            read.arg(keys::post_tombstones(id.partition())).arg(id.get());
            batch.query(id.partition(), read);
        }
        let is_there = |answer| Ok(!matches!(decode::<Value>(answer)?, Value::Nil));
        self.keyspace.send(batch).await?.into_iter().map(is_there).collect()
    }
}

// `XX`: a post that was deleted meanwhile must not be added.
fn set_score(id: PostId, score: u64) -> Call {
    let add = Call::new("post_add_to_set").key(keys::evictable(id.partition()));
    add.arg("XX").arg(score).arg(id.get())
}

fn partitions_of(ids: &[PostId]) -> Vec<Partition> {
    let mut partitions: Vec<_> = ids.iter().map(|id| id.partition()).collect();
    partitions.sort_unstable_by_key(|partition| partition.number());
    partitions.dedup();
    partitions
}

fn watermark(partition: Partition) -> Cmd {
    cmd("GET").arg(keys::watermark(partition)).take()
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
