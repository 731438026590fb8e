//! Takes up what crashes and outages left half done: reposts that those who count them may not
//! know, and posts that were not delivered. Runs in every replica; what two of them do at once
//! changes nothing more.

use std::time::Duration;

use microblog_domain::PostId;
use microblog_keyspace::Backlog;

use crate::{
    backlink::{Backlink, BacklinkUpdate},
    delivery::Delivery,
    error::Error,
    posts::Posts,
    store::Store,
    tiered_store::TieredStore,
};

/// How long something waits before it is taken for left behind: longer than calls take in all but
/// bad moments. Taking it up too early does no harm.
pub(crate) const PENDING_AFTER: Duration = Duration::from_secs(2);

/// The same for posts that are to be delivered: with a look every second, each is taken up two seconds
/// after it was written down at the latest.
pub(crate) const UNDELIVERED_AFTER: Duration = Duration::from_millis(900);

/// Looks for what was left half done, and does the rest.
pub struct Sweeper {
    tiered: TieredStore,
    posts: Posts,
    delivery: Delivery,
    pending: Backlog<Option<(Backlink, u64)>>,
    outbox: Backlog<Option<PostId>>,
}

impl Sweeper {
    /// Returns a sweeper that has seen nothing yet.
    pub fn new(tiered: TieredStore, delivery: Delivery) -> Self {
        let posts = Posts::new(tiered.clone(), delivery.clone());
        let pending = Backlog::new(Store::BACKLOG_PAGE_MAX).measured("post reposts");
        let outbox = Backlog::new(Store::BACKLOG_PAGE_MAX).measured("post outbox");
        Self { tiered, posts, delivery, pending, outbox }
    }

    /// Looks at the reposts that wait in every partition, a page of each, and tells those who count
    /// them of what has been waiting for longer than `patience` since this sweeper first saw it.
    pub async fn notify_targets(&mut self, stale_after: Duration) -> Result<(), Error> {
        let pages = self.tiered.store().pending_reposts(&self.pending.places()).await?;
        let stale: Vec<_> =
            self.pending.left_behind(pages, stale_after).into_iter().flatten().collect();
        let updates = self.current_updates(&stale).await?;
        self.posts.complete(&updates).await
    }

    // What is to be told of reposts that wait, as their own partitions and the archive now know. Not
    // of those that may be in the archive while it does not answer: they go on waiting.
    async fn current_updates(
        &self,
        pending: &[(Backlink, u64)],
    ) -> Result<Vec<BacklinkUpdate>, Error> {
        let reposts: Vec<_> = pending.iter().map(|(backlink, _)| backlink.repost).collect();
        let exist = self.tiered.exist_best_effort(&reposts).await?;
        let update = |(&(backlink, version), exists): (&(Backlink, u64), Option<bool>)| {
            exists.map(|exists| BacklinkUpdate { backlink, version, exists })
        };
        Ok(pending.iter().zip(exist).filter_map(update).collect())
    }

    /// Looks at the outbox of every partition, a page of each, and delivers what has been waiting
    /// for longer than `patience` since this sweeper first saw it.
    pub async fn deliver(&mut self, stale_after: Duration) -> Result<(), Error> {
        let pages = self.tiered.store().undelivered(&self.outbox.places()).await?;
        let stale: Vec<_> =
            self.outbox.left_behind(pages, stale_after).into_iter().flatten().collect();
        self.delivery.deliver(&stale).await
    }
}
