//! Telling a post of its reposts, which lie in other partitions.

use microblog_domain::PostId;
use microblog_keyspace::{Batch, Call, Error, decode};

use super::{Store, outcome::Outcome};
use crate::{
    backlink::{Backlink, BacklinkUpdate},
    keys,
};

impl Backlink {
    /// Returns the member of `pending`, as the functions write it.
    pub(super) fn member(self) -> String {
        format!("repost:{}>{}", self.repost, self.target)
    }

    /// Reads a member of `pending`.
    pub(super) fn parse(member: &str) -> Option<Self> {
        let (repost, target) = member.strip_prefix("repost:")?.split_once('>')?;
        let id = |text: &str| PostId::new(text.parse().ok()?);
        Some(Self { repost: id(repost)?, target: id(target)? })
    }
}

impl Store {
    /// Tells posts of reposts that came or went. All go out together. Returns whether each was there
    /// to be told.
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

    /// Takes changes off the list of those that others may not know, unless newer ones of the same
    /// reposts have come in. All go out together.
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
