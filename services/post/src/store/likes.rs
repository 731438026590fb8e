//! Likes of posts.

use microblog_domain::{PostId, UserId};
use microblog_keyspace::{Call, Error};

use super::{client::Store, decode::stamp, outcome::Outcome};
use crate::keys;

impl Store {
    /// Likes a post. Idempotent: returns since when (stamp) the account likes it, and the number of
    /// likes; `None` if there is no such post.
    pub async fn like(&self, user: UserId, id: PostId) -> Result<Option<(u64, u64)>, Error> {
        let partition = id.partition();
        let call = Call::new("post_like")
            .key(keys::post(id))
            .key(keys::likes(id))
            .arg(partition.number())
            .arg(user.get());
        let (done, since, likes): (i64, i64, u64) = self.keyspace.call(call).await?;
        match Outcome::read(done)? {
            Outcome::Done | Outcome::Unchanged => Ok(Some((stamp(since)?, likes))),
            Outcome::NotFound => Ok(None),
            other => Err(other.unexpected()),
        }
    }

    /// Unlikes a post. Returns the number of likes; `None` if there is no such post.
    pub async fn unlike(&self, user: UserId, id: PostId) -> Result<Option<u64>, Error> {
        let call = Call::new("post_unlike").key(keys::post(id)).key(keys::likes(id));
        let (done, likes): (i64, u64) = self.keyspace.call(call.arg(user.get())).await?;
        match Outcome::read(done)? {
            Outcome::Done | Outcome::Unchanged => Ok(Some(likes)),
            Outcome::NotFound => Ok(None),
            other => Err(other.unexpected()),
        }
    }
}
