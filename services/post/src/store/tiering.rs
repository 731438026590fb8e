//! What leaves Redis for the archive, and what comes back.

use std::{collections::HashMap, time::Duration};

use microblog_domain::{CommentId, Partition, PostId, UserId};
use microblog_keyspace::{
    Batch, Call, Entry, Error, decode,
    redis::{Cmd, Value, cmd},
};

use super::{
    Store,
    body::CommentBody,
    body::PostBody,
    notes::Note,
    outcome::Outcome,
    post,
    posts::{is_liked, liked},
    stamp,
};
use crate::{archive::Frozen, comment::Comment, keys, post::Post};

/// The member of an author's list that says that it goes on in the archive. It stands behind all
/// others.
pub(crate) const GOES_ON: u64 = 0;

/// How long somebody has something that only one may have, unless it is asked for again.
const LEASE: Duration = Duration::from_secs(10);

/// How long somebody has a post to bring back, unless it is asked for again: so long its writers wait
/// for somebody who died.
const RESTORE_LEASE: Duration = Duration::from_secs(10);

/// A lease that ends now.
const GONE_MS: u64 = 1;

/// How many entries of a list are read or written by one command.
const CHUNK: usize = 500;

/// A job that one process does at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    /// Writing to the archive what it may not know.
    Archiving,
    /// Moving old posts there.
    Moving,
}

impl Job {
    fn name(self) -> &'static str {
        match self {
            Self::Archiving => "archiver",
            Self::Moving => "mover",
        }
    }
}

/// What became of an attempt to bring a post back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restored {
    /// It is there.
    Yes,
    /// It was deleted meanwhile.
    Deleted,
    /// Somebody else is at it, or it took too long.
    Again,
}

impl Store {
    /// Takes a job that one process does at a time, for ten seconds. Returns whether it was free, or
    /// its own.
    pub async fn take_job(&self, job: Job, whose: &str) -> Result<bool, Error> {
        let call = Call::new("post_lease").key(keys::job(job.name()));
        self.keyspace.call(call.arg(whose).arg(LEASE.as_millis() as u64)).await
    }

    /// Leaves a job to others.
    pub async fn leave_job(&self, job: Job, whose: &str) -> Result<(), Error> {
        let call = Call::new("post_lease").key(keys::job(job.name()));
        self.keyspace.call::<bool>(call.arg(whose).arg(GONE_MS)).await?;
        Ok(())
    }

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

    /// Returns how many posts each of some authors of one partition has on its list.
    pub async fn list_lengths(&self, authors: &[UserId]) -> Result<Vec<usize>, Error> {
        let mut batch = Batch::with_capacity(2 * authors.len());
        for &author in authors {
            let key = keys::posts(author);
            batch.query(author.partition(), cmd("ZCARD").arg(&key).take());
            batch.query(author.partition(), cmd("ZSCORE").arg(&key).arg(GOES_ON).take());
        }
        let mut answers = self.keyspace.send(batch).await?.into_iter();
        let mut next = || answers.next().unwrap_or(Value::Nil);
        let mut length = |_: &UserId| {
            let (entries, marker): (usize, Option<f64>) = (decode(next())?, decode(next())?);
            Ok(entries.saturating_sub(usize::from(marker.is_some())))
        };
        authors.iter().map(&mut length).collect()
    }

    /// Returns the oldest posts of an author's list, oldest first, up to `count`.
    pub async fn oldest_of(&self, author: UserId, count: usize) -> Result<Vec<PostId>, Error> {
        // One more for the member that is no post.
        let ids: Vec<u64> = self
            .keyspace
            .query(cmd("ZRANGE").arg(keys::posts(author)).arg(0).arg(count).take())
            .await?;
        Ok(ids.into_iter().filter_map(PostId::new).take(count).collect())
    }

    /// Takes posts off their author's list that the archive has, the oldest first. Returns how many:
    /// fewer where one has still to be told to somebody.
    pub async fn retire(&self, author: UserId, ids: &[PostId]) -> Result<usize, Error> {
        let partition = author.partition();
        let call = Call::new("post_retire")
            .key(keys::unarchived(partition))
            .key(keys::outbox(partition))
            .key(keys::retired(partition))
            .key(keys::horizon(partition))
            .key(keys::posts(author));
        self.keyspace.call(ids.iter().fold(call, |call, id| call.arg(id.get()))).await
    }

    /// Returns up to 100 posts of a partition that are off their author's list, and may be evicted
    /// at a stamp.
    pub async fn evictable(&self, partition: Partition, at: u64) -> Result<Vec<PostId>, Error> {
        let mut read = cmd("ZRANGE");
        read.arg(keys::retired(partition)).arg("-inf").arg(at).arg("BYSCORE");
        read.arg("LIMIT").arg(0).arg(100);
        let ids: Vec<u64> = self.keyspace.query(read).await?;
        Ok(ids.into_iter().filter_map(PostId::new).collect())
    }

    /// Marks posts that are to be evicted. Returns the mark of each; `None` of those that must stay.
    pub async fn mark(&self, ids: &[PostId]) -> Result<Vec<Option<u64>>, Error> {
        let mut batch = Batch::with_capacity(ids.len());
        for &id in ids {
            let partition = id.partition();
            let call = Call::new("post_mark")
                .key(keys::clock(partition))
                .key(keys::retired(partition))
                .key(keys::post(id))
                .key(keys::unreposted(id))
                .arg(partition.number())
                .arg(id.get());
            batch.call(partition, call);
        }
        let mark = |answer| {
            let (done, mark): (i64, i64) = decode(answer)?;
            match Outcome::read(done)? {
                Outcome::Done => Ok(Some(stamp(mark)?)),
                Outcome::Unchanged | Outcome::NotFound => Ok(None),
                other => Err(other.unexpected()),
            }
        };
        self.keyspace.send(batch).await?.into_iter().map(mark).collect()
    }

    /// Returns a marked post with all that it has gathered. What changes meanwhile wipes the mark.
    pub async fn gather(&self, post: Post, mark: u64) -> Result<Frozen, Error> {
        let (id, counts) = (post.id, post.counts);
        let likes = self.entries(id, keys::likes(id), counts.likes).await?;
        let comments = self.entries(id, keys::comments(id), counts.comments).await?;
        let ids: Vec<_> =
            comments.iter().filter_map(|entry| CommentId::new(entry.member)).collect();
        let mut comments = Vec::with_capacity(ids.len());
        for ids in ids.chunks(CHUNK) {
            comments.extend(self.comments(id, ids).await?);
        }
        let reposts = self.entries(id, keys::reposts(id), counts.reposts).await?;
        let reposts = super::post_ids(&reposts);
        Ok(Frozen { post, mark, likes, comments, reposts })
    }

    // All entries of a list, by rank: if it changes meanwhile, they are not used.
    async fn entries(&self, id: PostId, key: String, count: u64) -> Result<Vec<Entry>, Error> {
        let mut batch = Batch::new();
        for from in (0..count as usize).step_by(CHUNK) {
            let mut read = cmd("ZRANGE");
            read.arg(&key).arg(from).arg(from + CHUNK - 1).arg("WITHSCORES");
            batch.query(id.partition(), read);
        }
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        let mut entries = Vec::with_capacity(count as usize);
        for answer in self.keyspace.send(batch).await? {
            let members: Vec<(u64, f64)> = decode(answer)?;
            let entry = |(member, score)| Entry { member, score: score as u64 };
            entries.extend(members.into_iter().map(entry));
        }
        Ok(entries)
    }

    /// Takes posts out of Redis that the archive has as they were when they were marked. Returns
    /// which; those that were changed since stay.
    pub async fn evict(&self, marked: &[(PostId, u64)]) -> Result<Vec<bool>, Error> {
        let mut batch = Batch::with_capacity(marked.len());
        for &(id, mark) in marked {
            let call = Call::new("post_evict")
                .key(keys::retired(id.partition()))
                .key(keys::post(id))
                .key(keys::likes(id))
                .key(keys::comments(id))
                .key(keys::comment_bodies(id))
                .key(keys::reposts(id))
                .key(keys::unreposted(id))
                .arg(id.get())
                .arg(mark);
            batch.call(id.partition(), call);
        }
        let is_done = |answer| Ok(Outcome::read(decode(answer)?)? == Outcome::Done);
        self.keyspace.send(batch).await?.into_iter().map(is_done).collect()
    }

    /// Leaves posts that are off their author's list in peace until a stamp.
    pub async fn postpone(&self, ids: &[PostId], until: u64) -> Result<(), Error> {
        let mut batch = Batch::with_capacity(ids.len());
        for id in ids {
            let mut add = cmd("ZADD");
            // Not where it was deleted meanwhile.
            add.arg(keys::retired(id.partition())).arg("XX").arg(until).arg(id.get());
            batch.query(id.partition(), add);
        }
        self.keyspace.send(batch).await?;
        Ok(())
    }

    /// Begins to bring a post back: one at a time does, and nobody where it is here or ended. Returns
    /// whether it may.
    pub async fn begin_restore(&self, id: PostId, whose: &str) -> Result<bool, Error> {
        let call = Call::new("post_begin_restore")
            .key(keys::restoring(id))
            .key(keys::unarchived(id.partition()))
            .key(keys::post(id))
            .key(keys::restored_likes(id))
            .key(keys::restored_comments(id))
            .key(keys::restored_comment_bodies(id))
            .key(keys::restored_reposts(id))
            .arg(whose)
            .arg(RESTORE_LEASE.as_millis() as u64)
            .arg(id.get());
        self.keyspace.call(call).await
    }

    /// Lets somebody else bring a post back.
    pub async fn give_up_restore(&self, id: PostId, whose: &str) -> Result<bool, Error> {
        self.prolong_restore(id, whose, GONE_MS).await
    }

    /// Goes on with a post that is being brought back. Returns whether nobody else is at it, and it
    /// did not end.
    pub async fn keep_restore(&self, id: PostId, whose: &str) -> Result<bool, Error> {
        self.prolong_restore(id, whose, RESTORE_LEASE.as_millis() as u64).await
    }

    async fn prolong_restore(&self, id: PostId, whose: &str, ms: u64) -> Result<bool, Error> {
        let call = Call::new("post_keep").key(keys::restoring(id));
        self.keyspace.call(call.arg(whose).arg(ms)).await
    }

    /// Brings a post back that was begun with. It stays until a stamp.
    pub async fn restore(
        &self,
        frozen: &Frozen,
        whose: &str,
        until: u64,
    ) -> Result<Restored, Error> {
        let id = frozen.post.id;
        if !self.stage(frozen, whose).await? {
            return Ok(Restored::Again);
        }
        let partition = id.partition();
        let call = Call::new("post_restore")
            .key(keys::restoring(id))
            .key(keys::unarchived(partition))
            .key(keys::retired(partition))
            .key(keys::post(id))
            .key(keys::likes(id))
            .key(keys::comments(id))
            .key(keys::comment_bodies(id))
            .key(keys::reposts(id))
            .key(keys::restored_likes(id))
            .key(keys::restored_comments(id))
            .key(keys::restored_comment_bodies(id))
            .key(keys::restored_reposts(id))
            .arg(whose)
            .arg(id.get())
            .arg(until)
            .arg(PostBody::write(&frozen.post.content))
            .arg(frozen.likes.len())
            .arg(frozen.comments.len())
            .arg(frozen.reposts.len());
        match Outcome::read(self.keyspace.call(call).await?)? {
            Outcome::Done | Outcome::Unchanged => Ok(Restored::Yes),
            Outcome::NotFound => Ok(Restored::Deleted),
            Outcome::Open => Ok(Restored::Again),
            other => Err(other.unexpected()),
        }
    }

    // Puts aside what a post had gathered. Returns whether all of it was.
    async fn stage(&self, frozen: &Frozen, whose: &str) -> Result<bool, Error> {
        let id = frozen.post.id;
        let stage = |key: String, command: &str| {
            let call = Call::new("post_stage").key(keys::restoring(id)).key(key);
            call.arg(whose).arg(RESTORE_LEASE.as_millis() as u64).arg(command)
        };
        let mut batch = Batch::new();
        for likes in frozen.likes.chunks(CHUNK) {
            let call = stage(keys::restored_likes(id), "ZADD");
            let add = |call: Call, like: &Entry| call.arg(like.score).arg(like.member);
            batch.call(id.partition(), likes.iter().fold(call, add));
        }
        for comments in frozen.comments.chunks(CHUNK) {
            let call = stage(keys::restored_comments(id), "ZADD");
            let add =
                |call: Call, comment: &Comment| call.arg(comment.id.get()).arg(comment.id.get());
            batch.call(id.partition(), comments.iter().fold(call, add));
            let call = stage(keys::restored_comment_bodies(id), "HSET");
            let add = |call: Call, comment: &Comment| {
                call.arg(comment.id.get()).arg(CommentBody::write(&comment.content))
            };
            batch.call(id.partition(), comments.iter().fold(call, add));
        }
        for reposts in frozen.reposts.chunks(CHUNK) {
            let call = stage(keys::restored_reposts(id), "ZADD");
            let add = |call: Call, repost: &PostId| call.arg(repost.get()).arg(repost.get());
            batch.call(id.partition(), reposts.iter().fold(call, add));
        }
        for answer in self.keyspace.send(batch).await? {
            if !decode::<bool>(answer)? {
                return Ok(false);
            }
        }
        Ok(true)
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
