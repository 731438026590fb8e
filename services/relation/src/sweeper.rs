//! Takes up what crashes left half done: changes that stay pending. Runs in every replica; what
//! two of them do at once is done once.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use microblog_domain::Partition;

use crate::{
    edges::Edges,
    error::Error,
    graph::Change,
    store::{Store, Waiting},
};

/// How long a change waits before it is taken for left behind: longer than the calls of others
/// take in all but bad moments. Taking it up too early does no harm.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// Looks for what was left half done, and does the rest.
///
/// The age of a change is how long this sweeper has seen it wait, on its own monotonic clock:
/// versions are no measure, since they run ahead when a machine's clock jumps back.
pub struct Sweeper {
    store: Store,
    edges: Edges,
    first_seen: HashMap<(Waiting, u64), Instant>,
    // Where to go on in each partition, so that changes that cannot be completed while their
    // other side is away do not hide those behind them.
    ranks: Vec<usize>,
}

impl Sweeper {
    /// Returns a sweeper that has seen nothing yet.
    pub fn new(store: Store) -> Self {
        let ranks = vec![0; Partition::all().len()];
        Self { edges: Edges::new(store.clone()), store, first_seen: HashMap::new(), ranks }
    }

    /// Looks at every partition once, and completes what has been waiting for longer than
    /// `patience` since this sweeper first saw it.
    pub async fn sweep(&mut self, patience: Duration) -> Result<(), Error> {
        let left_behind = self.left_behind(patience).await?;
        let changes = self.store.truth(&left_behind).await?;
        let mut follows: Vec<Change> = Vec::new();
        for ((waiting, version), change) in left_behind.into_iter().zip(changes) {
            self.first_seen.remove(&(waiting, version));
            match waiting {
                Waiting::Follow(_) => follows.push(change),
                Waiting::Block(_) => {
                    self.edges.complete_block(&change).await?;
                }
            }
        }
        if !follows.is_empty() {
            self.edges.complete(&follows).await?;
        }
        Ok(())
    }

    async fn left_behind(&mut self, patience: Duration) -> Result<Vec<(Waiting, u64)>, Error> {
        let places: Vec<_> = Partition::all().zip(self.ranks.iter().copied()).collect();
        let pages = self.store.waiting(&places).await?;
        let now = Instant::now();
        let mut still_waiting = HashMap::new();
        let mut left_behind = Vec::new();
        for (rank, page) in self.ranks.iter_mut().zip(pages) {
            let is_full = page.len() == Store::WAITING_MAX;
            *rank = if is_full { *rank + page.len() } else { 0 };
            for entry in page {
                let since = self.first_seen.get(&entry).copied().unwrap_or(now);
                still_waiting.insert(entry, since);
                if now.duration_since(since) >= patience {
                    left_behind.push(entry);
                }
            }
        }
        // While pages rotate, those not seen this time keep their age.
        if self.ranks.iter().all(|&rank| rank == 0) {
            self.first_seen = still_waiting;
        } else {
            self.first_seen.extend(still_waiting);
        }
        Ok(left_behind)
    }
}
