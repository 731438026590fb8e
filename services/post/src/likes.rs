//! How a post is liked. One that is not in Redis comes back, if that changes it: what is liked
//! already, or not liked, is answered as the archive has it.

use microblog_domain::{PostId, UserId};

use crate::{
    error::Error,
    tiered_store::{ATTEMPTS, TieredStore},
};

/// Makes accounts like posts.
#[derive(Clone)]
pub struct Likes {
    tiered: TieredStore,
}

impl Likes {
    /// Returns the means to change what is in both tiers.
    pub fn new(tiered: TieredStore) -> Self {
        Self { tiered }
    }

    /// Makes an account like a post. Returns since when (stamp), which is the first time if it did
    /// already, and how many like it.
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

    /// Takes a like back. Returns how many like the post, which is 0 where there is none.
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
