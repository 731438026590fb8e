//! Backlogs of work that outlives a call: pending reposts, the delivery outbox, and accounts that
//! are being deleted.

use microblog_domain::{Partition, PostId, UserId};
use microblog_keyspace::{
    Batch, Call, Error, decode,
    redis::{Cmd, cmd},
};

use super::{client::Store, decode::user};
use crate::{backlink::Backlink, keys};

impl Store {
    /// The most entries that [`Self::pending_reposts`] and [`Self::undelivered`] return for a
    /// partition.
    pub const BACKLOG_PAGE_MAX: usize = 100;

    /// Returns a page of each partition's pending reposts, from a rank on, with the versions of the
    /// updates; `None` for an unreadable entry.
    pub async fn pending_reposts(
        &self,
        pages_from: &[(Partition, usize)],
    ) -> Result<Vec<Vec<Option<(Backlink, u64)>>>, Error> {
        let command =
            |(partition, rank)| ranks(keys::pending(partition), rank).arg("WITHSCORES").take();
        let entry = |(member, version): (String, f64)| {
            let backlink = Backlink::parse(&member);
            if backlink.is_none() {
                tracing::error!(member, "malformed entry in `pending`");
            }
            Some((backlink?, version as u64))
        };
        let mut pages = Vec::with_capacity(pages_from.len());
        for answer in self.read_pages(pages_from, command).await? {
            let members: Vec<(String, f64)> = decode(answer)?;
            pages.push(members.into_iter().map(entry).collect());
        }
        Ok(pages)
    }

    /// Returns a page of each partition's delivery outbox, from a rank on; `None` for an unreadable
    /// entry.
    pub async fn undelivered(
        &self,
        pages_from: &[(Partition, usize)],
    ) -> Result<Vec<Vec<Option<PostId>>>, Error> {
        let command = |(partition, rank)| ranks(keys::outbox(partition), rank);
        let mut pages = Vec::with_capacity(pages_from.len());
        for answer in self.read_pages(pages_from, command).await? {
            let ids: Vec<String> = decode(answer)?;
            pages.push(ids.iter().map(|id| parse(id)).collect());
        }
        Ok(pages)
    }

    async fn read_pages(
        &self,
        pages_from: &[(Partition, usize)],
        command: impl Fn((Partition, usize)) -> Cmd,
    ) -> Result<Vec<microblog_keyspace::redis::Value>, Error> {
        let mut batch = Batch::with_capacity(pages_from.len());
        for &place in pages_from {
            batch.query(place.0, command(place));
        }
        self.keyspace.send(batch).await
    }

    /// Removes posts from the delivery outbox. All commands go out together.
    pub async fn delivered(&self, ids: &[PostId]) -> Result<(), Error> {
        let mut batch = Batch::with_capacity(ids.len());
        for id in ids {
            let partition = id.partition();
            batch.query(partition, cmd("ZREM").arg(keys::outbox(partition)).arg(id.get()).take());
        }
        for answer in self.keyspace.send(batch).await? {
            decode::<i64>(answer)?;
        }
        Ok(())
    }

    /// Marks an account as deleted.
    pub async fn forget(&self, user: UserId) -> Result<(), Error> {
        let partition = user.partition();
        let call = Call::new("post_forget")
            .key(keys::clock(partition))
            .key(keys::forgotten(partition))
            .key(keys::forgetting(partition))
            .issuing(partition)
            .arg(user.get());
        self.keyspace.call(call).await
    }

    /// Returns accounts whose data is being erased, up to 10 of each partition.
    pub async fn forgetting(&self) -> Result<Vec<UserId>, Error> {
        Ok(self.forgetting_since().await?.into_iter().map(|(user, _)| user).collect())
    }

    /// Returns the same, with the stamps of their deletion.
    pub(crate) async fn forgetting_since(&self) -> Result<Vec<(UserId, u64)>, Error> {
        let mut batch = Batch::new();
        for partition in Partition::all() {
            let mut read = cmd("ZRANGE");
            read.arg(keys::forgetting(partition)).arg(0).arg(9).arg("WITHSCORES");
            batch.query(partition, read);
        }
        let mut users = Vec::new();
        for answer in self.keyspace.send(batch).await? {
            for (id, since) in decode::<Vec<(u64, f64)>>(answer)? {
                users.push((user(id)?, since as u64));
            }
        }
        Ok(users)
    }

    /// Completes the deletion of an account whose comments and likes are erased, if it has no posts
    /// left. Returns whether it has none.
    pub async fn finish_forgetting(&self, user: UserId) -> Result<bool, Error> {
        let partition = user.partition();
        let call = Call::new("post_forgot")
            .key(keys::forgetting(partition))
            .key(keys::authors(partition))
            .key(keys::posts(user))
            .arg(user.get());
        self.keyspace.call(call).await
    }
}

fn parse(member: &str) -> Option<PostId> {
    let id = member.parse().ok().and_then(PostId::new);
    if id.is_none() {
        tracing::error!(member, "malformed entry in `outbox`");
    }
    id
}

// A page by rank: entries are only removed, or added at the end.
fn ranks(key: String, rank: usize) -> Cmd {
    cmd("ZRANGE").arg(key).arg(rank).arg(rank + Store::BACKLOG_PAGE_MAX - 1).take()
}
