//! Data of background jobs: the outboxes, account deletions and leases; and what `Verify` reads and
//! repairs.

use std::time::{Duration, SystemTime};

use microblog_domain::{CommentId, Partition, PostId, Repairs, Stamp, UserId};
use microblog_keyspace::{
    AccountDeletions, Batch, Call, Error, Outbox, decode,
    redis::{Cmd, cmd},
};

use super::{
    Store,
    body::CommentBody,
    decode::{Outcome, user},
    reactions::comment_call,
};
use crate::{
    keys,
    post::{Backlink, CommentContent, Counts, ListLengths},
};

/// The outbox of backlink updates.
const BACKLINK_OUTBOX: Outbox<Backlink> = Outbox { key: keys::pending, parse: Backlink::parse };

/// The outbox of deliveries to the timeline service.
const DELIVERY_OUTBOX: Outbox<PostId> =
    Outbox { key: keys::outbox, parse: |member| PostId::new(member.parse().ok()?) };

const DELETIONS: AccountDeletions = AccountDeletions {
    forget: "post_forget",
    finish: "post_finish_forgetting",
    clock: keys::clock,
    journal: keys::journal,
    accounts: keys::authors,
    forgotten: keys::forgotten,
    forgetting: keys::forgetting,
};

/// The lifetime of a lease that is not renewed.
const LEASE_TTL: Duration = Duration::from_secs(10);

/// The lifetime that releases a lease.
pub(super) const RELEASE_MS: u64 = 1;

/// A job that one process runs at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    /// The evictor.
    Evicting,
    /// The eraser.
    Erasing,
}

impl Job {
    fn name(self) -> &'static str {
        match self {
            Self::Evicting => "evictor",
            Self::Erasing => "eraser",
        }
    }
}

impl Store {
    /// Returns a page of the backlink updates of each of some partitions, from a rank on, with their
    /// versions. `None` stands for a malformed entry.
    pub async fn pending_reposts(
        &self,
        pages_from: &[(Partition, usize)],
    ) -> Result<Vec<Vec<Option<(Backlink, u64)>>>, Error> {
        BACKLINK_OUTBOX.pages(&self.keyspace, pages_from).await
    }

    /// Returns a page of the delivery outbox of each of some partitions likewise. The version of a
    /// post is its id.
    pub async fn undelivered(
        &self,
        pages_from: &[(Partition, usize)],
    ) -> Result<Vec<Vec<Option<(PostId, u64)>>>, Error> {
        DELIVERY_OUTBOX.pages(&self.keyspace, pages_from).await
    }

    /// Removes posts from the delivery outbox. All calls go out together.
    pub async fn delivered(&self, ids: &[PostId]) -> Result<(), Error> {
        let mut ids = ids.to_vec();
        ids.sort_unstable_by_key(|id| id.partition());
        let mut batch = Batch::new();
        for ids in ids.chunk_by(|one, other| one.partition() == other.partition()) {
            let partition = ids[0].partition();
            let call = Call::new("post_delivered")
                .key(keys::outbox(partition))
                .key(keys::delivered(partition));
            batch.call(partition, ids.iter().fold(call, |call, id| call.arg(id.get())));
        }
        for answer in self.keyspace.send(batch).await? {
            decode::<()>(answer)?;
        }
        Ok(())
    }

    /// Puts posts into the delivery outbox again that were delivered since a time, as far as Redis
    /// has and remembers them, also those of partitions that are closed. Returns their number.
    pub async fn redeliver(&self, since: SystemTime) -> Result<u64, Error> {
        let keyspace = self.keyspace.ignoring_closed();
        let mut places: Vec<_> =
            Partition::all().map(|at| (at, Stamp::first_at(since, at).get())).collect();
        let mut count = 0;
        while !places.is_empty() {
            let mut batch = Batch::with_capacity(places.len());
            for &(partition, since) in &places {
                let call = Call::new("post_redeliver")
                    .key(keys::outbox(partition))
                    .key(keys::delivered(partition))
                    .key(keys::evictable(partition))
                    .key(keys::post_prefix(partition));
                batch.call(partition, call.arg(since));
            }
            let mut next = Vec::new();
            for (&(partition, since), reply) in places.iter().zip(keyspace.send(batch).await?) {
                let (redelivered, from): (u64, u64) = decode(reply)?;
                count += redelivered;
                // Else a whole page has the same time, and would come again.
                if from > since {
                    next.push((partition, from));
                }
            }
            places = next;
        }
        Ok(count)
    }

    /// Removes malformed entries from both outboxes of a partition, and returns them.
    pub(crate) async fn discard_malformed(
        &self,
        partition: Partition,
    ) -> Result<Vec<String>, Error> {
        let mut discarded = BACKLINK_OUTBOX.discard_malformed(&self.keyspace, partition).await?;
        discarded.extend(DELIVERY_OUTBOX.discard_malformed(&self.keyspace, partition).await?);
        Ok(discarded)
    }

    /// Marks an account as deleted.
    pub async fn forget(&self, user: UserId) -> Result<(), Error> {
        DELETIONS.mark(&self.keyspace, user).await
    }

    /// Returns accounts whose data is being erased, up to 10 of each partition, closed ones too.
    pub async fn forgetting(&self) -> Result<Vec<UserId>, Error> {
        let keyspace = self.keyspace.ignoring_closed();
        let forgetting = DELETIONS.in_progress(&keyspace, Partition::all(), 10).await?;
        Ok(forgetting.into_iter().map(|(user, _)| user).collect())
    }

    /// Returns the same, with the stamps of their deletion, unless a partition is closed.
    pub(crate) async fn forgetting_since(&self) -> Result<Vec<(UserId, u64)>, Error> {
        DELETIONS.in_progress(&self.keyspace, Partition::all(), 10).await
    }

    /// Completes the deletion of an account whose comments and likes are erased, if it has no posts
    /// left. Returns whether it has none.
    pub async fn finish_forgetting(&self, user: UserId) -> Result<bool, Error> {
        let others = keys::of_account(user);
        DELETIONS.finish(&self.keyspace, user, &[keys::posts(user)], &others).await
    }

    /// Acquires or renews the lease on a job, for ten seconds. Returns whether the holder has it.
    pub async fn acquire_lease(&self, job: Job, holder: &str) -> Result<bool, Error> {
        let call = Call::new("post_lease").key(keys::job(job.name()));
        self.keyspace.call(call.arg(holder).arg(LEASE_TTL.as_millis() as u64)).await
    }

    /// Releases the lease on a job.
    pub async fn release_lease(&self, job: Job, holder: &str) -> Result<(), Error> {
        let call = Call::new("post_lease").key(keys::job(job.name()));
        self.keyspace.call::<bool>(call.arg(holder).arg(RELEASE_MS)).await?;
        Ok(())
    }

    /// Returns some of a partition's authors, and the next cursor; 0 is both the beginning and the
    /// end. An author may occur twice. Up to 100,000 authors, which Redis stores as one array, come
    /// at once, within milliseconds.
    pub async fn authors(
        &self,
        partition: Partition,
        cursor: u64,
    ) -> Result<(u64, Vec<UserId>), Error> {
        let mut command = cmd("SSCAN");
        command.arg(keys::authors(partition)).arg(cursor).arg("COUNT").arg(100);
        let (cursor, ids): (u64, Vec<u64>) = self.keyspace.query(command).await?;
        Ok((cursor, ids.into_iter().map(user).collect::<Result<_, _>>()?))
    }

    /// Returns the lengths of a partition's backlogs: pending reposts, undelivered posts, and
    /// accounts that are being erased.
    pub async fn backlogs(&self, partition: Partition) -> Result<[u64; 3], Error> {
        let keys = [keys::pending(partition), keys::outbox(partition), keys::forgetting(partition)];
        let mut batch = Batch::new();
        for key in keys {
            batch.query(partition, length("ZCARD", key));
        }
        let mut answers = self.keyspace.send(batch).await?.into_iter();
        let mut next = || answers.next().map_or(Ok(0), decode::<u64>);
        Ok([next()?, next()?, next()?])
    }

    /// Measures how far the clocks of the partitions are ahead of this process's. One batch.
    pub async fn measure_clocks(&self) -> Result<(), Error> {
        self.keyspace.measure_clocks(keys::clock).await
    }

    /// Returns the violation of a partition's clock.
    pub async fn clock_violation(&self, at: Partition) -> Result<Option<String>, Error> {
        self.keyspace.clock_violation(at, keys::clock).await
    }

    /// Sets back all clocks that are too far ahead to issue stamps. Returns the repairs.
    pub async fn repair_clocks(&self) -> Result<Repairs, Error> {
        self.keyspace.repair_clocks("post_repair_clock", keys::clock).await
    }

    /// Returns the lengths of the lists of posts.
    pub async fn list_lengths(&self, ids: &[PostId]) -> Result<Vec<ListLengths>, Error> {
        let mut batch = Batch::with_capacity(4 * ids.len());
        for &id in ids {
            batch.query(id.partition(), length("ZCARD", keys::likes(id)));
            batch.query(id.partition(), length("ZCARD", keys::comments(id)));
            batch.query(id.partition(), length("ZCARD", keys::reposts(id)));
            batch.query(id.partition(), length("HLEN", keys::comment_bodies(id)));
        }
        let mut answers = self.keyspace.send(batch).await?.into_iter();
        let mut next = || answers.next().map_or(Ok(0), decode);
        ids.iter()
            .map(|_| {
                let counts = Counts { likes: next()?, comments: next()?, reposts: next()? };
                Ok(ListLengths { counts, comment_bodies: next()? })
            })
            .collect()
    }

    /// Returns whether each repost is on the list of the post it is paired with.
    pub async fn are_listed(&self, reposts: &[(PostId, PostId)]) -> Result<Vec<bool>, Error> {
        let mut batch = Batch::with_capacity(reposts.len());
        for &(repost, target) in reposts {
            let mut command = cmd("ZSCORE");
            command.arg(keys::reposts(target)).arg(repost.get());
            batch.query(target.partition(), command);
        }
        let is_listed = |answer| Ok(decode::<Option<f64>>(answer)?.is_some());
        self.keyspace.send(batch).await?.into_iter().map(is_listed).collect()
    }

    /// Sets the counts of posts to the lengths of their lists; deletes the lists of missing posts.
    /// Returns for each post whether something was wrong.
    pub(crate) async fn recount(&self, ids: &[PostId]) -> Result<Vec<bool>, Error> {
        let mut batch = Batch::with_capacity(ids.len());
        for &id in ids {
            batch.call(id.partition(), Call::new("post_recount").keys(keys::of_post(id)));
        }
        self.keyspace.send(batch).await?.into_iter().map(decode).collect()
    }

    /// Restores the body of a comment, or deletes the comment if there is none; deletes a body
    /// without a comment. Returns whether something was wrong.
    pub(crate) async fn repair_comment(
        &self,
        post: PostId,
        id: CommentId,
        content: Option<&CommentContent>,
    ) -> Result<bool, Error> {
        let call = comment_call("post_repair_comment", post, id);
        let call = match content {
            Some(content) => call.arg(CommentBody::write(content)),
            None => call.arg(""),
        };
        self.keyspace.call(call).await
    }

    /// Adds an existing repost to the list of a post. Returns whether the post is in Redis.
    pub(crate) async fn relist(&self, backlink: Backlink) -> Result<bool, Error> {
        let Backlink { repost, target } = backlink;
        let partition = target.partition();
        let call = Call::new("post_relist")
            .key(keys::post(target))
            .key(keys::reposts(target))
            .key(keys::repost_tombstones(target))
            .journal(partition, keys::journal(partition))
            .arg(target.get())
            .arg(repost.get());
        Ok(Outcome::read(self.keyspace.call(call).await?)? != Outcome::NotFound)
    }

    /// Returns which of some comments have a body in Redis.
    pub(crate) async fn have_bodies(
        &self,
        post: PostId,
        ids: &[CommentId],
    ) -> Result<Vec<bool>, Error> {
        let mut batch = Batch::with_capacity(ids.len());
        for id in ids {
            let key = keys::comment_bodies(post);
            batch.query(post.partition(), cmd("HEXISTS").arg(key).arg(id.get()).take());
        }
        self.keyspace.send(batch).await?.into_iter().map(decode).collect()
    }

    /// Returns some of the comments that have a body in Redis, and the next cursor; 0 is both the
    /// beginning and the end.
    pub(crate) async fn scan_comment_bodies(
        &self,
        post: PostId,
        cursor: u64,
    ) -> Result<(u64, Vec<CommentId>), Error> {
        let mut scan = cmd("HSCAN");
        scan.arg(keys::comment_bodies(post)).arg(cursor).arg("COUNT").arg(100);
        let (cursor, fields): (u64, Vec<(String, Vec<u8>)>) = self.keyspace.query(scan).await?;
        let id = |(field, _): (String, Vec<u8>)| field.parse().ok().and_then(CommentId::new);
        Ok((cursor, fields.into_iter().filter_map(id).collect()))
    }
}

fn length(command: &str, key: String) -> Cmd {
    cmd(command).arg(key).take()
}
