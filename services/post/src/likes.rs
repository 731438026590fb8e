//! How a post is liked: where it is not in Redis, it comes back.

use microblog_domain::{PostId, UserId};

use crate::{error::Error, tiers::Tiers};

/// Makes accounts like posts.
#[derive(Clone)]
pub struct Likes {
    tiers: Tiers,
}

impl Likes {
    /// Returns the means to change what is in both tiers.
    pub fn new(tiers: Tiers) -> Self {
        Self { tiers }
    }

    /// Makes an account like a post. Returns since when (stamp), which is the first time if it did
    /// already, and how many like it.
    pub async fn like(&self, user: UserId, id: PostId) -> Result<(u64, u64), Error> {
        let store = self.tiers.store();
        let mut liked = store.like(user, id).await?;
        if liked.is_none() && self.tiers.bring_back(id).await? {
            liked = store.like(user, id).await?;
        }
        liked.ok_or(Error::PostNotFound)
    }

    /// Takes a like back. Returns how many like the post, which is 0 where there is none.
    pub async fn unlike(&self, user: UserId, id: PostId) -> Result<u64, Error> {
        let store = self.tiers.store();
        let mut likes = store.unlike(user, id).await?;
        if likes.is_none() && self.tiers.bring_back(id).await? {
            likes = store.unlike(user, id).await?;
        }
        Ok(likes.unwrap_or_default())
    }
}
