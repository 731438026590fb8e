//! Takes up what crashes left half done: changes that stay pending. Runs in every replica; what
//! two of them do at once is done once.

use std::time::Duration;

use microblog_keyspace::Backlog;

use crate::{
    edges::Edges,
    error::Error,
    graph::{Change, List},
    store::{Store, Waiting},
};

/// How long a change waits before it is taken for left behind: longer than the calls of others
/// take in all but bad moments. Taking it up too early does no harm.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// Looks for what was left half done, and does the rest.
///
/// The age of a change is how long this sweeper has seen it wait: versions are no measure, since
/// they run ahead when a machine's clock jumps back.
pub struct Sweeper {
    store: Store,
    edges: Edges,
    // `None` is what cannot be read, which still takes up a place on its page.
    backlog: Backlog<Option<(Waiting, u64)>>,
}

impl Sweeper {
    /// Returns a sweeper that has seen nothing yet.
    pub fn new(store: Store) -> Self {
        let backlog = Backlog::new(Store::WAITING_MAX).measured("relation pending");
        let edges = Edges::new(store.clone());
        Self { store, edges, backlog }
    }

    /// Looks at every partition once, a page of each, and completes what has been waiting for
    /// longer than `patience` since this sweeper first saw it. What fails does not keep the rest
    /// from being done; the first failure is returned.
    pub async fn sweep(&mut self, patience: Duration) -> Result<(), Error> {
        let pages = self.store.waiting(&self.backlog.places()).await?;
        let left_behind = self.backlog.left_behind(pages, patience);
        let left_behind: Vec<_> = left_behind.into_iter().flatten().collect();

        take_up(&self.store, &self.edges, &left_behind).await
    }
}

/// Completes changes that wait. What fails does not keep the rest from being done; the first failure
/// is returned.
pub(crate) async fn take_up(
    store: &Store,
    edges: &Edges,
    waiting: &[(Waiting, u64)],
) -> Result<(), Error> {
    let mut outcome = Ok(());
    let (mut follows, mut blocks): (Vec<Change>, Vec<Change>) = (Vec::new(), Vec::new());
    for ((waiting, _), change) in waiting.iter().zip(store.truth(waiting).await?) {
        match waiting {
            Waiting::Follow(_) => follows.push(change),
            Waiting::Block(_) => blocks.push(change),
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
