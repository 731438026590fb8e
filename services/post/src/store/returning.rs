//! What comes back into Redis from the archive.

use std::time::Duration;

use microblog_domain::{PostId, UserId};
use microblog_keyspace::{Batch, Call, Entry, Error, decode};

use super::{
    Store,
    body::{CommentBody, PostBody},
    leases::GONE_MS,
    leaving::CHUNK,
    outcome::Outcome,
    wait,
};
use crate::{archive::Frozen, comment::Comment, keys};

/// How long somebody has a post to bring back, unless it is asked for again: so long its writers wait
/// for somebody who died.
const RESTORE_LEASE: Duration = Duration::from_secs(10);

/// What became of an attempt to bring a post back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restored {
    /// It is there.
    Yes,
    /// It was deleted meanwhile.
    Deleted,
    /// Somebody else is at it, or it took too long, or accounts are erased since it was read.
    Again,
}

impl Store {
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

    /// Brings a post back that was begun with. It stays until a stamp. `erasing` is what
    /// [`Self::erasing`] returned before the archive was read.
    pub async fn restore(
        &self,
        frozen: &Frozen,
        whose: &str,
        until: u64,
        erasing: &str,
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
            .keys(keys::of_post(id))
            .key(keys::restored_likes(id))
            .key(keys::restored_comments(id))
            .key(keys::restored_comment_bodies(id))
            .key(keys::restored_reposts(id))
            .key(keys::erasing(partition))
            .arg(whose)
            .arg(id.get())
            .arg(until)
            .arg(PostBody::write(&frozen.post.content))
            .arg(frozen.likes.len())
            .arg(frozen.comments.len())
            .arg(frozen.reposts.len())
            .arg(erasing);
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
