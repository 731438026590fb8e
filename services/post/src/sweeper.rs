//! Takes up what crashes and outages left half done: reposts that those who count them may not
//! know, and posts that were not delivered. Runs in every replica; what two of them do at once
//! changes nothing more.

use std::time::Duration;

use microblog_domain::PostId;
use microblog_keyspace::Backlog;

use crate::{
    backlink::{Backlink, Change},
    delivery::Delivery,
    error::Error,
    posts::Posts,
    store::Store,
    tiers::Tiers,
};

/// How long something waits before it is taken for left behind: longer than calls take in all but
/// bad moments. Taking it up too early does no harm.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// The same for posts that are to be delivered: with a look every second, each is taken up two seconds
/// after it was written down at the latest.
pub(crate) const DELIVERY_PATIENCE: Duration = Duration::from_millis(900);

/// Looks for what was left half done, and does the rest.
pub struct Sweeper {
    tiers: Tiers,
    posts: Posts,
    delivery: Delivery,
    pending: Backlog<Option<(Backlink, u64)>>,
    outbox: Backlog<Option<PostId>>,
}

impl Sweeper {
    /// Returns a sweeper that has seen nothing yet.
    pub fn new(tiers: Tiers, delivery: Delivery) -> Self {
        let posts = Posts::new(tiers.clone(), delivery.clone());
        let pending = Backlog::new(Store::WAITING_MAX).measured("post reposts");
        let outbox = Backlog::new(Store::WAITING_MAX).measured("post outbox");
        Self { tiers, posts, delivery, pending, outbox }
    }

    /// Looks at the reposts that wait in every partition, a page of each, and tells those who count
    /// them of what has been waiting for longer than `patience` since this sweeper first saw it.
    pub async fn tell(&mut self, patience: Duration) -> Result<(), Error> {
        let pages = self.tiers.store().waiting(&self.pending.places()).await?;
        let left_behind: Vec<_> =
            self.pending.left_behind(pages, patience).into_iter().flatten().collect();
        let changes = self.truth(&left_behind).await?;
        self.posts.complete(&changes).await
    }

    // What is to be told of reposts that wait, as their own partitions and the archive now know. Not
    // of those that may be in the archive while it does not answer: they go on waiting.
    async fn truth(&self, waiting: &[(Backlink, u64)]) -> Result<Vec<Change>, Error> {
        let reposts: Vec<_> = waiting.iter().map(|(backlink, _)| backlink.repost).collect();
        let exist = self.tiers.exist_as_far_as_known(&reposts).await?;
        let change = |(&(backlink, version), exists): (&(Backlink, u64), Option<bool>)| {
            exists.map(|exists| Change { backlink, version, exists })
        };
        Ok(waiting.iter().zip(exist).filter_map(change).collect())
    }

    /// Looks at the outbox of every partition, a page of each, and delivers what has been waiting
    /// for longer than `patience` since this sweeper first saw it.
    pub async fn deliver(&mut self, patience: Duration) -> Result<(), Error> {
        let pages = self.tiers.store().undelivered(&self.outbox.places()).await?;
        let left_behind: Vec<_> =
            self.outbox.left_behind(pages, patience).into_iter().flatten().collect();
        self.delivery.deliver(&left_behind).await
    }
}
