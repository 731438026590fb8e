//! Likes and unlikes. A change of an archived post restores it to Redis; a call that would change
//! nothing is answered from the archive.

use microblog_domain::{PostId, UserId};

use crate::{
    error::Error,
    tiered_store::{ATTEMPTS, TieredStore},
};

/// Likes and unlikes posts.
#[derive(Clone)]
pub struct Likes {
    tiered: TieredStore,
}

impl Likes {
    /// Returns the operations on a tiered store.
    pub fn new(tiered: TieredStore) -> Self {
        Self { tiered }
    }

    /// Likes a post. Idempotent: returns since when (stamp) the account likes it, and the number of
    /// likes.
    pub async fn like(&self, user: UserId, id: PostId) -> Result<(u64, u64), Error> {
        for _ in 0..ATTEMPTS {
            if let Some(liked) = self.tiered.store().like(user, id).await? {
                return Ok(liked);
            }
            if let Some((likes, Some(since))) = self.tiered.archived_like(user, id).await? {
                return Ok((since, likes));
            }
            if !self.tiered.restore_for(user, id).await? {
                return Err(Error::PostNotFound);
            }
        }
        Err(Error::RetriesExhausted)
    }

    /// Unlikes a post. Returns the number of likes; 0 if there is no such post.
    pub async fn unlike(&self, user: UserId, id: PostId) -> Result<u64, Error> {
        for _ in 0..ATTEMPTS {
            if let Some(likes) = self.tiered.store().unlike(user, id).await? {
                return Ok(likes);
            }
            if let Some((likes, None)) = self.tiered.archived_like(user, id).await? {
                return Ok(likes);
            }
            if !self.tiered.restore_for(user, id).await? {
                return Ok(0);
            }
        }
        Err(Error::RetriesExhausted)
    }
}
