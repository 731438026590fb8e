//! The sweeper: completes sagas that crashes and outages left incomplete, which are backlink
//! updates in `pending` and deliveries in `outbox`. Runs in every replica; concurrent sweepers only
//! repeat work.

use std::time::Duration;

use microblog_domain::PostId;
use microblog_keyspace::{Backlog, OUTBOX_PAGE_MAX};

use crate::{
    delivery::Delivery, error::Error, post::Backlink, posts::Posts, store::Store,
    tiered_store::TieredStore,
};

/// The age at which an entry is stale: longer than calls usually take. Completing an entry too
/// early is harmless.
pub(crate) const PENDING_AFTER: Duration = Duration::from_secs(2);

/// The same for deliveries: with a run every second, a post is delivered within two seconds.
pub(crate) const UNDELIVERED_AFTER: Duration = Duration::from_millis(900);

/// Finds stale entries and completes them. Those of partitions that lack changes wait until they are
/// recovered.
pub struct Sweeper {
    /// The entries of all partitions.
    entries: Store,
    posts: Posts,
    delivery: Delivery,
    pending: Backlog<Option<(Backlink, u64)>>,
    outbox: Backlog<Option<(PostId, u64)>>,
}

impl Sweeper {
    /// Returns a sweeper that has seen no entries.
    pub fn new(tiered: TieredStore, delivery: Delivery) -> Self {
        let entries = tiered.store().ignoring_closed();
        let posts = Posts::new(tiered, delivery.clone());
        let pending = Backlog::new(OUTBOX_PAGE_MAX).measured("post reposts");
        let outbox = Backlog::new(OUTBOX_PAGE_MAX).measured("post outbox");
        Self { entries, posts, delivery, pending, outbox }
    }

    /// Reads a page of every partition's pending reposts. Completes those that this sweeper first
    /// saw more than `stale_after` ago.
    pub async fn notify_targets(&mut self, stale_after: Duration) -> Result<(), Error> {
        let pages = self.entries.pending_reposts(&self.pending.places()).await?;
        let stale = self.pending.stale_entries(pages, stale_after).into_iter().flatten();
        let is_open = |(backlink, _): &(Backlink, u64)| {
            self.is_open(backlink.repost) && self.is_open(backlink.target)
        };
        let stale: Vec<_> = stale.filter(is_open).collect();
        let updates = self.posts.current_updates(&stale).await?;
        self.posts.complete(&updates).await
    }

    /// Reads a page of every partition's outbox. Delivers the posts that this sweeper first saw
    /// more than `stale_after` ago.
    pub async fn deliver(&mut self, stale_after: Duration) -> Result<(), Error> {
        let pages = self.entries.undelivered(&self.outbox.places()).await?;
        let stale = self.outbox.stale_entries(pages, stale_after).into_iter().flatten();
        let stale: Vec<_> =
            stale.map(|(post, _)| post).filter(|&post| self.is_open(post)).collect();
        self.delivery.deliver(&stale).await
    }

    fn is_open(&self, post: PostId) -> bool {
        !self.entries.keyspace().states().is_closed(post.partition())
    }
}
