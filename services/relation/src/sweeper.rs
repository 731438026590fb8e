//! The sweeper: the outbox relay that completes sagas after a crash. It runs in each replica;
//! concurrent relays are harmless.

use std::time::Duration;

use microblog_keyspace::{Backlog, OUTBOX_PAGE_MAX};

use crate::{
    edge_saga::EdgeSaga,
    error::Error,
    graph::{Change, List},
    store::{OutboxEntry, Store},
};

/// The age at which an outbox entry counts as stale: longer than nearly all calls take. An early
/// relay is harmless.
pub(crate) const STALE_AFTER: Duration = Duration::from_secs(2);

/// Relays stale outbox entries.
///
/// The age of an entry is the time since this sweeper first read it. Versions cannot tell it, since
/// they are ahead after a machine's clock jumps back.
pub struct Sweeper {
    store: Store,
    edges: EdgeSaga,
    // `None` is a malformed entry, which still takes a place on its page.
    backlog: Backlog<Option<(OutboxEntry, u64)>>,
}

impl Sweeper {
    /// Returns a sweeper without any history.
    pub fn new(store: Store) -> Self {
        let backlog = Backlog::new(OUTBOX_PAGE_MAX).measured("relation pending");
        let edges = EdgeSaga::new(store.clone());
        Self { store, edges, backlog }
    }

    /// Reads one page of each partition's outbox, and relays entries that this sweeper first read
    /// at least `stale_after` ago. Continues after an error; returns the first one.
    pub async fn sweep(&mut self, stale_after: Duration) -> Result<(), Error> {
        let pages = self.store.outbox_page(&self.backlog.places()).await?;
        let stale = self.backlog.stale_entries(pages, stale_after);
        let stale: Vec<_> = stale.into_iter().flatten().collect();

        resume(&self.store, &self.edges, &stale).await
    }
}

/// Relays outbox entries. Continues after an error; returns the first one.
pub(crate) async fn resume(
    store: &Store,
    edges: &EdgeSaga,
    pending: &[(OutboxEntry, u64)],
) -> Result<(), Error> {
    let mut outcome = Ok(());
    let (mut follows, mut blocks): (Vec<Change>, Vec<Change>) = (Vec::new(), Vec::new());
    for ((pending, _), change) in pending.iter().zip(store.source_changes(pending).await?) {
        match pending {
            OutboxEntry::Follow(_) => follows.push(change),
            OutboxEntry::Block(_) => blocks.push(change),
        }
    }
    if !follows.is_empty() {
        outcome = outcome.and(edges.complete(&follows).await.map(|_| ()));
    }
    let back: Vec<_> =
        blocks.iter().map(|block| (List::Followers, block.edge.from, block.edge.to)).collect();
    for (block, follower_since) in blocks.iter().zip(store.entries(&back).await?) {
        let follower_since = if block.exists { follower_since } else { 0 };
        outcome = outcome.and(edges.complete_block(block, follower_since).await.map(|_| ()));
    }
    outcome
}
