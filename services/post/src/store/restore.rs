//! What comes back into Redis from the archive.

use std::time::Duration;

use microblog_domain::{PostId, UserId};
use microblog_keyspace::{Batch, Call, Entry, Error, decode};

use super::{
    Store,
    body::{CommentBody, PostBody},
    eviction::CHUNK,
    leases::RELEASE_MS,
    outcome::Outcome,
    wait,
};
use crate::{comment::Comment, keys, snapshot::Snapshot};

/// How long somebody has a post to bring back, unless it is asked for again: so long its writers wait
/// for somebody who died.
const RESTORE_LEASE_TTL: Duration = Duration::from_secs(10);

/// What became of an attempt to bring a post back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoreOutcome {
    /// It is there.
    Restored,
    /// It was deleted meanwhile.
    Deleted,
    /// Somebody else is at it, or it took too long, or accounts are erased since it was read.
    Retry,
}

impl Store {
    /// Begins to bring a post back: one at a time does, and nobody where it is here or ended. Returns
    /// whether it may.
    pub async fn begin_restore(&self, id: PostId, holder: &str) -> Result<bool, Error> {
        let call = Call::new("post_begin_restore")
            .key(keys::restoring(id))
            .key(keys::unarchived(id.partition()))
            .key(keys::post(id))
            .key(keys::restored_likes(id))
            .key(keys::restored_comments(id))
            .key(keys::restored_comment_bodies(id))
            .key(keys::restored_reposts(id))
            .arg(holder)
            .arg(RESTORE_LEASE_TTL.as_millis() as u64)
            .arg(id.get());
        self.keyspace.call(call).await
    }

    /// Lets an account have a post brought back. Returns for how long it has to wait, if it has to.
    pub async fn admit_restore(&self, user: UserId) -> Result<Option<Duration>, Error> {
        if self.restores_per_minute == 0 {
            return Ok(None);
        }
        let call = Call::new("post_admit_restore").key(keys::restore_pace(user));
        let milliseconds = self.keyspace.call(call.arg(self.restores_per_minute)).await?;
        Ok(Some(wait(milliseconds)).filter(|wait| !wait.is_zero()))
    }

    /// Lets somebody else bring a post back.
    pub async fn release_restore(&self, id: PostId, holder: &str) -> Result<bool, Error> {
        self.set_restore_lease(id, holder, RELEASE_MS).await
    }

    /// Goes on with a post that is being brought back. Returns whether nobody else is at it, and it
    /// did not end.
    pub async fn renew_restore(&self, id: PostId, holder: &str) -> Result<bool, Error> {
        self.set_restore_lease(id, holder, RESTORE_LEASE_TTL.as_millis() as u64).await
    }

    async fn set_restore_lease(&self, id: PostId, holder: &str, ms: u64) -> Result<bool, Error> {
        let call = Call::new("post_keep").key(keys::restoring(id));
        self.keyspace.call(call.arg(holder).arg(ms)).await
    }

    /// Brings a post back that was begun with. It stays until a stamp. `erasing` is what
    /// [`Self::erasing`] returned before the archive was read.
    pub async fn restore(
        &self,
        snapshot: &Snapshot,
        holder: &str,
        until: u64,
        erasing: &str,
    ) -> Result<RestoreOutcome, Error> {
        let id = snapshot.post.id;
        if !self.stage(snapshot, holder).await? {
            return Ok(RestoreOutcome::Retry);
        }
        let partition = id.partition();
        let call = Call::new("post_restore")
            .key(keys::restoring(id))
            .key(keys::unarchived(partition))
            .key(keys::retired(partition))
            .keys(keys::of_post(id))
            .key(keys::restored_likes(id))
            .key(keys::restored_comments(id))
            .key(keys::restored_comment_bodies(id))
            .key(keys::restored_reposts(id))
            .key(keys::erasing(partition))
            .arg(holder)
            .arg(id.get())
            .arg(until)
            .arg(PostBody::write(&snapshot.post.content))
            .arg(snapshot.likes.len())
            .arg(snapshot.comments.len())
            .arg(snapshot.reposts.len())
            .arg(erasing);
        match Outcome::read(self.keyspace.call(call).await?)? {
            Outcome::Done | Outcome::Unchanged => Ok(RestoreOutcome::Restored),
            Outcome::NotFound => Ok(RestoreOutcome::Deleted),
            Outcome::Incomplete => Ok(RestoreOutcome::Retry),
            other => Err(other.unexpected()),
        }
    }

    // Puts aside what a post had gathered. Returns whether all of it was.
    async fn stage(&self, snapshot: &Snapshot, holder: &str) -> Result<bool, Error> {
        let id = snapshot.post.id;
        let stage = |key: String, command: &str| {
            let call = Call::new("post_stage").key(keys::restoring(id)).key(key);
            call.arg(holder).arg(RESTORE_LEASE_TTL.as_millis() as u64).arg(command)
        };
        let mut batch = Batch::new();
        for likes in snapshot.likes.chunks(CHUNK) {
            let call = stage(keys::restored_likes(id), "ZADD");
            let add = |call: Call, like: &Entry| call.arg(like.score).arg(like.member);
            batch.call(id.partition(), likes.iter().fold(call, add));
        }
        for comments in snapshot.comments.chunks(CHUNK) {
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
        for reposts in snapshot.reposts.chunks(CHUNK) {
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
