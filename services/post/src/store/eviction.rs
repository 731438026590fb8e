//! What leaves Redis for the archive.

use microblog_domain::{CommentId, Partition, PostId, UserId};
use microblog_keyspace::{
    Batch, Call, Entry, Error, decode,
    redis::{Value, cmd},
};
use uuid::Uuid;

use super::{Store, outcome::Outcome, stamp};
use crate::{keys, post::Post, snapshot::Snapshot};

/// The member of an author's list that says that it goes on in the archive. It stands behind all
/// others.
pub(crate) const ARCHIVE_MARKER: u64 = 0;

/// The score of that member is one more than the number of the author's posts that are not on the
/// list, if it is neither 0 nor as large as this; `functions.lua` has the same number.
const UNLISTED_MAX: u64 = 1 << 40;

/// How many posts an author has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PostCount {
    /// On the list in Redis.
    pub listed: usize,
    /// The others: retired ones, in Redis or the archive. `None` where they are not counted yet.
    pub unlisted: Option<u64>,
}

impl PostCount {
    fn read(entries: usize, marker: Option<f64>) -> Self {
        let Some(marker) = marker else { return Self { listed: entries, unlisted: Some(0) } };
        let (listed, score) = (entries.saturating_sub(1), marker as u64);
        Self { listed, unlisted: (score < UNLISTED_MAX).then(|| score.checked_sub(1)).flatten() }
    }

    /// Returns how many those are together, as far as they are counted.
    pub fn total(self) -> u64 {
        self.listed as u64 + self.unlisted.unwrap_or_default()
    }
}

/// How many entries of a list are read or written by one command.
pub(super) const CHUNK: usize = 500;

impl Store {
    /// Returns how many posts each of some authors has. One round trip to each partition, all sent
    /// together.
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

    /// Notes that the posts of an author that are not on their list are being counted, in the place
    /// of how many there are. Returns what to name to [`Self::count_unlisted`].
    pub(crate) async fn begin_count(&self, author: UserId) -> Result<u64, Error> {
        let (random, _, _, _) = Uuid::new_v4().as_fields();
        let counting = UNLISTED_MAX + u64::from(random);
        let mut add = cmd("ZADD");
        add.arg(keys::posts(author)).arg("XX").arg(counting).arg(ARCHIVE_MARKER);
        self.keyspace.query::<i64>(add).await?;
        Ok(counting)
    }

    /// Says how many posts of an author are not on their list, unless one came to be or ended since
    /// they began to be counted. Returns whether it is said.
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
        // One more for the member that is no post.
        let ids: Vec<u64> = self
            .keyspace
            .query(cmd("ZRANGE").arg(keys::posts(author)).arg(0).arg(count).take())
            .await?;
        Ok(ids.into_iter().filter_map(PostId::new).take(count).collect())
    }

    /// Takes posts off their author's list that the archive has, the oldest first. Returns how many:
    /// fewer where one has still to be told to somebody.
    pub async fn make_evictable(&self, author: UserId, ids: &[PostId]) -> Result<usize, Error> {
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
    pub async fn mark_for_eviction(&self, ids: &[PostId]) -> Result<Vec<Option<u64>>, Error> {
        let mut batch = Batch::with_capacity(ids.len());
        for &id in ids {
            let partition = id.partition();
            let call = Call::new("post_mark")
                .key(keys::clock(partition))
                .key(keys::retired(partition))
                .key(keys::post(id))
                .key(keys::unreposted(id))
                .issuing(partition)
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
    pub async fn read_snapshot(&self, post: Post, mark: u64) -> Result<Snapshot, Error> {
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
        Ok(Snapshot { post, mark, likes, comments, reposts })
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
    /// which; those that were changed since stay, and all while accounts are being erased.
    pub async fn evict(&self, marked: &[(PostId, u64)]) -> Result<Vec<bool>, Error> {
        let mut batch = Batch::with_capacity(marked.len());
        for &(id, mark) in marked {
            let call = Call::new("post_evict")
                .key(keys::retired(id.partition()))
                .keys(keys::of_post(id))
                .key(keys::unreposted(id))
                .key(keys::erasing(id.partition()))
                .arg(id.get())
                .arg(mark);
            batch.call(id.partition(), call);
        }
        let is_done = |answer| Ok(Outcome::read(decode(answer)?)? == Outcome::Done);
        self.keyspace.send(batch).await?.into_iter().map(is_done).collect()
    }

    /// Leaves posts that are off their author's list in peace until a stamp.
    pub async fn postpone_eviction(&self, ids: &[PostId], until: u64) -> Result<(), Error> {
        let mut batch = Batch::with_capacity(ids.len());
        for id in ids {
            let add = Call::new("post_enlist").key(keys::retired(id.partition()));
            // Not where it was deleted meanwhile.
            batch.call(id.partition(), add.arg("XX").arg(until).arg(id.get()));
        }
        self.keyspace.send(batch).await?;
        Ok(())
    }
}
