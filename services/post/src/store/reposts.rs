//! Backlink updates: notify a post of its reposts, which lie in other partitions.

use microblog_domain::PostId;
use microblog_keyspace::{Batch, Call, Error, decode};

use super::{client::Store, outcome::Outcome};
use crate::{
    backlink::{Backlink, BacklinkUpdate},
    keys,
};

impl Backlink {
    /// Encodes the member of `pending`, in the functions' format.
    pub(super) fn member(self) -> String {
        format!("repost:{}>{}", self.repost, self.target)
    }

    /// Decodes a member of `pending`.
    pub(super) fn parse(member: &str) -> Option<Self> {
        let (repost, target) = member.strip_prefix("repost:")?.split_once('>')?;
        let id = |text: &str| PostId::new(text.parse().ok()?);
        Some(Self { repost: id(repost)?, target: id(target)? })
    }
}

impl Store {
    /// Applies backlink updates in the targets' partitions. All calls go out together. Returns
    /// whether each target is in Redis.
    pub async fn notify(&self, updates: &[BacklinkUpdate]) -> Result<Vec<bool>, Error> {
        let mut batch = Batch::with_capacity(updates.len());
        for BacklinkUpdate { backlink: Backlink { repost, target }, exists, .. } in updates {
            let call = Call::new("post_tell")
                .key(keys::post(*target))
                .key(keys::reposts(*target))
                .key(keys::unreposted(*target))
                .arg(repost.get())
                .arg(u8::from(*exists));
            batch.call(target.partition(), call);
        }
        let is_notified = |answer| Ok(Outcome::read(decode(answer)?)? != Outcome::NotFound);
        self.keyspace.send(batch).await?.into_iter().map(is_notified).collect()
    }

    /// Removes updates from `pending`, unless a newer one of the same repost replaced them. All
    /// calls go out together.
    pub async fn confirm(&self, updates: &[BacklinkUpdate]) -> Result<(), Error> {
        let mut batch = Batch::with_capacity(updates.len());
        for BacklinkUpdate { backlink, version, .. } in updates {
            let partition = backlink.repost.partition();
            let call = Call::new("post_confirm")
                .key(keys::pending(partition))
                .arg(backlink.member())
                .arg(*version);
            batch.call(partition, call);
        }
        for answer in self.keyspace.send(batch).await? {
            decode::<i64>(answer)?;
        }
        Ok(())
    }
}
