//! Restores of posts from the archive into Redis.

use std::time::Duration;

use microblog_domain::{Partition, PostId, UserId};
use microblog_keyspace::{Batch, Call, Entry, Error, decode};

use super::{
    Store,
    body::{CommentBody, PostBody},
    decode::{Outcome, wait},
    eviction::CHUNK,
    maintenance::RELEASE_MS,
};
use crate::{
    keys,
    post::{Comment, Snapshot},
};

/// The lifetime of a restore lease that is not renewed: writers wait this long after a crash.
const RESTORE_LEASE_TTL: Duration = Duration::from_secs(10);

/// How many parts of lists are sent at once: the unsent commands of a connection are limited.
const STAGED_TOGETHER: usize = 100;

/// The result of an attempt to restore a post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoreOutcome {
    /// The post is in Redis.
    Restored,
    /// The post was deleted meanwhile.
    Deleted,
    /// The lease was lost, the attempt took too long, or an erasure began after the archive was
    /// read.
    Retry,
}

impl Store {
    /// Acquires the lease to restore a post, unless another holder has it, or the post is in Redis
    /// or deleted. Returns whether it was acquired.
    pub async fn begin_restore(&self, id: PostId, holder: &str) -> Result<bool, Error> {
        self.keyspace.call(begin(id, holder)).await
    }

    /// Admits a restore under an account's rate limit. Returns the time to wait, if any.
    pub async fn admit_restore(&self, user: UserId) -> Result<Option<Duration>, Error> {
        if self.restores_per_minute == 0 {
            return Ok(None);
        }
        let call = Call::new("post_admit_restore").key(keys::restore_rate(user));
        let milliseconds = self.keyspace.call(call.arg(self.restores_per_minute)).await?;
        Ok(Some(wait(milliseconds)).filter(|wait| !wait.is_zero()))
    }

    /// Releases the lease to restore a post.
    pub async fn release_restore(&self, id: PostId, holder: &str) -> Result<bool, Error> {
        self.set_restore_lease(id, holder, RELEASE_MS).await
    }

    /// Renews the lease to restore a post. Returns whether the holder still has it.
    pub async fn renew_restore(&self, id: PostId, holder: &str) -> Result<bool, Error> {
        self.set_restore_lease(id, holder, RESTORE_LEASE_TTL.as_millis() as u64).await
    }

    async fn set_restore_lease(&self, id: PostId, holder: &str, ms: u64) -> Result<bool, Error> {
        let call = Call::new("post_renew").key(keys::restoring(id));
        self.keyspace.call(call.arg(holder).arg(ms)).await
    }

    /// Restores a post under the lease. It may be evicted again after `until`, a stamp. `erasing`
    /// is the result of [`Self::erasure_fence`] from before the archive was read.
    pub async fn restore(
        &self,
        snapshot: &Snapshot,
        holder: &str,
        until: u64,
        erasing: &str,
    ) -> Result<RestoreOutcome, Error> {
        let id = snapshot.post.id;
        let partition = id.partition();
        if !self.stage(partition, stage(snapshot, holder)).await? {
            return Ok(RestoreOutcome::Retry);
        }
        let call = place("post_restore", snapshot)
            .key(keys::restoring(id))
            .key(keys::post_tombstones(partition))
            .key(keys::evictable(partition))
            .key(keys::erasure_fence(partition))
            .journal(partition, keys::journal(partition))
            .arg(holder)
            .arg(id.get())
            .arg(until)
            .arg(erasing);
        match Outcome::read(self.keyspace.call(call).await?)? {
            Outcome::Done | Outcome::Unchanged => Ok(RestoreOutcome::Restored),
            Outcome::NotFound => Ok(RestoreOutcome::Deleted),
            Outcome::Incomplete => Ok(RestoreOutcome::Retry),
            other => Err(other.unexpected()),
        }
    }

    /// Makes the calls that stage lists. Returns whether the leases are held.
    pub(super) async fn stage(
        &self,
        partition: Partition,
        mut calls: impl Iterator<Item = Call>,
    ) -> Result<bool, Error> {
        loop {
            let mut batch = Batch::with_capacity(STAGED_TOGETHER);
            calls.by_ref().take(STAGED_TOGETHER).for_each(|call| batch.call(partition, call));
            if batch.is_empty() {
                return Ok(true);
            }
            for answer in self.keyspace.send(batch).await? {
                if !decode::<bool>(answer)? {
                    return Ok(false);
                }
            }
        }
    }
}

/// Returns the call that begins a restore. It answers whether the lease was acquired.
pub(super) fn begin(id: PostId, holder: &str) -> Call {
    Call::new("post_begin_restore")
        .key(keys::restoring(id))
        .key(keys::post_tombstones(id.partition()))
        .key(keys::post(id))
        .keys(keys::staged(id))
        .arg(holder)
        .arg(RESTORE_LEASE_TTL.as_millis() as u64)
        .arg(id.get())
}

/// Returns a call that moves the staged lists of a post into place, with the keys and arguments
/// that these functions share.
pub(super) fn place(function: &'static str, snapshot: &Snapshot) -> Call {
    let id = snapshot.post.id;
    Call::new(function)
        .keys(keys::of_post(id))
        .keys(keys::staged(id))
        .arg(PostBody::write(&snapshot.post.content))
        .arg(snapshot.likes.len())
        .arg(snapshot.comments.len())
        .arg(snapshot.reposts.len())
}

/// Returns the calls that stage the lists of a post. Each answers whether the lease is held.
pub(super) fn stage(snapshot: &Snapshot, holder: &str) -> impl Iterator<Item = Call> {
    let id = snapshot.post.id;
    let stage = move |key: String, command: &str| {
        let call = Call::new("post_stage").key(keys::restoring(id)).key(key);
        call.arg(holder).arg(RESTORE_LEASE_TTL.as_millis() as u64).arg(command)
    };
    let likes = snapshot.likes.chunks(CHUNK).map(move |likes| {
        let add = |call: Call, like: &Entry| call.arg(like.score).arg(like.member);
        likes.iter().fold(stage(keys::staged_likes(id), "ZADD"), add)
    });
    let comments = snapshot.comments.chunks(CHUNK).map(move |comments| {
        let add = |call: Call, comment: &Comment| call.arg(comment.id.get()).arg(comment.id.get());
        comments.iter().fold(stage(keys::staged_comments(id), "ZADD"), add)
    });
    let bodies = snapshot.comments.chunks(CHUNK).map(move |comments| {
        let add = |call: Call, comment: &Comment| {
            call.arg(comment.id.get()).arg(CommentBody::write(&comment.content))
        };
        comments.iter().fold(stage(keys::staged_comment_bodies(id), "HSET"), add)
    });
    let reposts = snapshot.reposts.chunks(CHUNK).map(move |reposts| {
        let add = |call: Call, repost: &PostId| call.arg(repost.get()).arg(repost.get());
        reposts.iter().fold(stage(keys::staged_reposts(id), "ZADD"), add)
    });
    likes.chain(comments).chain(bodies).chain(reposts)
}
