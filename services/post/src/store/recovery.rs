//! Reads of all that a partition has, to record it, and writes of recorded data to Redis, where it
//! has lost them.

use std::time::{Duration, SystemTime};

use microblog_domain::{Partition, PostId, Stamp, UserId};
use microblog_keyspace::{
    Batch, Call, Entry, Error, Order, Page, Recovery, decode,
    redis::{Value, cmd},
};

use super::{
    REQUEST_TTL, Store,
    decode::{Outcome, post, user},
    restore::{begin, place, stage},
};
use crate::{
    keys,
    post::{Backlink, MadeByRequest, Snapshot},
};

/// A set of posts that are in Redis. Each such post of a partition is in one.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PostSet {
    /// The list of an author.
    Of(UserId),
    /// The evictable posts of a partition.
    Evictable(Partition),
}

impl Store {
    /// Returns a page of a set of posts.
    pub(crate) async fn post_set(
        &self,
        set: PostSet,
        after: Option<Entry>,
        count: usize,
    ) -> Result<Page, Error> {
        match set {
            PostSet::Of(author) => self.posts_of(author, after, count).await,
            PostSet::Evictable(partition) => self.evictable_page(partition, after, count).await,
        }
    }

    /// Returns the deleted accounts of a partition, and whether their data is erased.
    pub(crate) async fn forgotten(
        &self,
        partition: Partition,
    ) -> Result<Vec<(UserId, bool)>, Error> {
        let (mut deleted, mut cursor) = (Vec::new(), 0);
        loop {
            let mut scan = cmd("SSCAN");
            scan.arg(keys::forgotten(partition)).arg(cursor).arg("COUNT").arg(100);
            let (next, ids): (u64, Vec<u64>) = self.keyspace.query(scan).await?;
            let mut batch = Batch::with_capacity(ids.len());
            for id in &ids {
                let score = cmd("ZSCORE").arg(keys::forgetting(partition)).arg(*id).take();
                batch.query(partition, score);
            }
            for (id, answer) in ids.into_iter().zip(self.keyspace.send(batch).await?) {
                deleted.push((user(id)?, decode::<Option<f64>>(answer)?.is_none()));
            }
            if next == 0 {
                return Ok(deleted);
            }
            cursor = next;
        }
    }

    /// Returns a page of the deleted posts of a partition with the stamps of their deletion, oldest
    /// first.
    pub(crate) async fn tombstones(
        &self,
        partition: Partition,
        after: Option<Entry>,
        count: usize,
    ) -> Result<Page, Error> {
        self.page(keys::post_tombstones(partition), Order::Oldest, after, count).await
    }

    /// Returns up to 100 posts of each partition that were deleted before a time. Omits partitions
    /// that lack changes.
    pub(crate) async fn old_tombstones(&self, before: SystemTime) -> Result<Vec<PostId>, Error> {
        let mut batch = Batch::with_capacity(usize::from(Partition::COUNT));
        let states = self.keyspace.states();
        for partition in Partition::all().filter(|&at| !states.is_closed(at)) {
            let mut read = cmd("ZRANGE");
            read.arg(keys::post_tombstones(partition)).arg("-inf");
            read.arg(Stamp::first_at(before, partition).get()).arg("BYSCORE");
            batch.query(partition, read.arg("LIMIT").arg(0).arg(100).take());
        }
        let mut posts = Vec::new();
        for answer in self.keyspace.send(batch).await? {
            posts.extend(decode::<Vec<u64>>(answer)?.into_iter().filter_map(PostId::new));
        }
        Ok(posts)
    }

    /// Removes tombstones of posts.
    pub(crate) async fn remove_tombstones(&self, ids: &[PostId]) -> Result<(), Error> {
        let mut batch = Batch::with_capacity(ids.len());
        for id in ids {
            let remove =
                cmd("ZREM").arg(keys::post_tombstones(id.partition())).arg(id.get()).take();
            batch.query(id.partition(), remove);
        }
        self.all_succeed(batch).await
    }

    /// Advances a partition's clock to a stamp that was issued.
    pub(crate) async fn raise_clock(&self, partition: Partition, stamp: u64) -> Result<(), Error> {
        let call = Call::new("post_raise_clock").key(keys::clock(partition)).arg(stamp);
        self.keyspace.call(call).await
    }

    /// Returns the eviction watermark of a partition.
    pub(crate) async fn watermark(&self, partition: Partition) -> Result<Option<PostId>, Error> {
        let read = cmd("GET").arg(keys::watermark(partition)).take();
        self.keyspace.query::<Option<i64>>(read).await?.map(post).transpose()
    }

    /// Raises the eviction watermark of a partition that is being recovered.
    pub(crate) async fn raise_watermark(
        &self,
        recovery: Recovery,
        newest: PostId,
    ) -> Result<(), Error> {
        let partition = recovery.partition;
        if self.watermark(partition).await? < Some(newest) {
            let call = of(recovery, "post_recover_watermark");
            let call = call.key(keys::watermark(partition)).arg(newest.get());
            self.keyspace.call::<()>(call).await?;
        }
        Ok(())
    }

    /// Restores a deleted account, by the stamp of its deletion, and whether that is complete.
    pub(crate) async fn recover_deletion(
        &self,
        user: UserId,
        since: u64,
        is_complete: bool,
    ) -> Result<(), Error> {
        let call = Call::new("post_recover_deletion")
            .key(keys::forgotten(user.partition()))
            .key(keys::forgetting(user.partition()))
            .arg(user.get())
            .arg(since)
            .arg(u8::from(is_complete));
        self.keyspace.call(call).await
    }

    /// Removes posts from Redis that the archive has, or whose deletion it has.
    pub(crate) async fn drop_posts(&self, recovery: Recovery, ids: &[PostId]) -> Result<(), Error> {
        let (mut batch, partition) = (Batch::with_capacity(ids.len()), recovery.partition);
        for &id in ids {
            let drop = of(recovery, "post_recover_drop")
                .key(keys::evictable(partition))
                .key(keys::outbox(partition))
                .keys(keys::of_post(id))
                .arg(id.get());
            batch.call(partition, drop);
        }
        self.all_succeed(batch).await
    }

    /// Begins an author's list anew: all of its posts are in the archive.
    pub(crate) async fn recover_author(
        &self,
        recovery: Recovery,
        author: UserId,
        archived: u64,
    ) -> Result<(), Error> {
        let call = of(recovery, "post_recover_author")
            .key(keys::authors(author.partition()))
            .key(keys::posts(author))
            .arg(author.get())
            .arg(archived);
        self.keyspace.call(call).await
    }

    /// Writes posts of one author that are in the archive alone, and puts them on its list: the
    /// newest ones, newest first. Those from `deliver_from` on are delivered to the timeline service
    /// again. Returns whether all were written.
    pub(crate) async fn recover_posts(
        &self,
        recovery: Recovery,
        posts: &[Snapshot],
        holder: &str,
        deliver_from: u64,
    ) -> Result<bool, Error> {
        // Pipelines of one batch may overtake each other: each step has a batch of its own.
        let mut begun = Batch::with_capacity(2 * posts.len());
        let mut placed = Batch::with_capacity(posts.len());
        for snapshot in posts {
            let (id, author) = (snapshot.post.id, snapshot.post.content.author);
            let partition = id.partition();
            // A restore that began before cannot end while the partition is being recovered.
            begun.query(partition, cmd("UNLINK").arg(keys::restoring(id)).take());
            begun.call(partition, begin(id, holder));
            let call = place("post_recover_post", snapshot)
                .recovery(recovery, keys::journal(partition))
                .key(keys::restoring(id))
                .key(keys::outbox(partition))
                .key(keys::posts(author))
                .arg(holder)
                .arg(id.get())
                .arg(u8::from(id.get() >= deliver_from));
            placed.call(partition, call);
        }
        let staged = posts.iter().flat_map(|snapshot| stage(snapshot, holder));
        let begun = self.keyspace.send(begun).await?;
        // Of each post, the first answer is that of UNLINK.
        if !all(begun.into_iter().skip(1).step_by(2), decode)?
            || !self.stage(recovery.partition, staged).await?
        {
            return Ok(false);
        }
        let is_done = |answer| Ok(Outcome::read(decode(answer)?)? == Outcome::Done);
        all(self.keyspace.send(placed).await?, is_done)
    }

    /// Restores requests for the rest of their lifetime.
    pub(crate) async fn recover_requests(&self, requests: &[MadeByRequest]) -> Result<(), Error> {
        let mut batch = Batch::with_capacity(requests.len());
        for MadeByRequest { author, request, id, post } in requests {
            let made = Stamp::new(*id).map_or(SystemTime::UNIX_EPOCH, Stamp::time);
            let age = SystemTime::now().duration_since(made).unwrap_or_default();
            let left = REQUEST_TTL.saturating_sub(age).max(Duration::from_secs(1));
            let (partition, key) = match post {
                Some(post) => (post.partition(), keys::comment_request(*post, *author, *request)),
                None => (author.partition(), keys::request(*author, *request)),
            };
            let mut set = cmd("SET");
            set.arg(key).arg(*id).arg("EX").arg(left.as_secs());
            batch.query(partition, set);
        }
        self.all_succeed(batch).await
    }

    /// Adds reposts to `pending`: the sweeper notifies the posts of their current state, also of that
    /// of a repost whose deletion was lost.
    pub(crate) async fn add_pending(
        &self,
        recovered: Partition,
        backlinks: &[Backlink],
    ) -> Result<(), Error> {
        let mut batch = Batch::with_capacity(2 * backlinks.len());
        for backlink in backlinks {
            let partition = backlink.repost.partition();
            if partition == recovered {
                let mut remove = cmd("ZREM");
                remove.arg(keys::repost_tombstones(backlink.target)).arg(backlink.repost.get());
                batch.query(backlink.target.partition(), remove);
            }
            let add = Call::new("post_add_to_set").key(keys::pending(partition));
            let version = backlink.repost.get();
            batch.call(partition, add.arg("NX").arg(version).arg(backlink.member()));
        }
        self.all_succeed(batch).await
    }

    async fn all_succeed(&self, batch: Batch) -> Result<(), Error> {
        for answer in self.keyspace.send(batch).await? {
            decode::<Value>(answer)?;
        }
        Ok(())
    }
}

/// Returns whether all answers say so.
fn all(
    answers: impl IntoIterator<Item = Value>,
    is_done: impl Fn(Value) -> Result<bool, Error>,
) -> Result<bool, Error> {
    answers.into_iter().try_fold(true, |all, answer| Ok(all && is_done(answer)?))
}

/// Returns a call of a function of a recovery.
fn of(recovery: Recovery, function: &'static str) -> Call {
    Call::new(function).recovery(recovery, keys::journal(recovery.partition))
}
