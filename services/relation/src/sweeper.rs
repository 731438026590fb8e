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
    partitions: Vec<Watched>,
}

/// What a sweeper has seen wait in one partition, which it looks at a page at a time: changes that
/// cannot be completed while their other side is away must not hide those behind them.
#[derive(Default)]
struct Watched {
    // Where the next page begins.
    rank: usize,
    // Since when what was seen on the pages before this one has been waiting, and what was seen
    // the last time through all pages.
    seen: HashMap<(Waiting, u64), Instant>,
    seen_before: HashMap<(Waiting, u64), Instant>,
}

impl Watched {
    /// Takes note of a page, and returns what has been waiting for so long.
    fn note(
        &mut self,
        page: Vec<(Waiting, u64)>,
        now: Instant,
        patience: Duration,
    ) -> Vec<(Waiting, u64)> {
        let is_full = page.len() == Store::WAITING_MAX;
        let mut left_behind = Vec::new();
        for entry in page {
            let known = self.seen.get(&entry).or_else(|| self.seen_before.get(&entry));
            let since = known.copied().unwrap_or(now);
            self.seen.insert(entry, since);
            if now.duration_since(since) >= patience {
                left_behind.push(entry);
            }
        }
        if is_full {
            self.rank += Store::WAITING_MAX;
        } else {
            self.rank = 0;
            self.seen_before = std::mem::take(&mut self.seen);
        }
        left_behind
    }
}

impl Sweeper {
    /// Returns a sweeper that has seen nothing yet.
    pub fn new(store: Store) -> Self {
        let partitions = Partition::all().map(|_| Watched::default()).collect();
        Self { edges: Edges::new(store.clone()), store, partitions }
    }

    /// Looks at every partition once, a page of each, and completes what has been waiting for
    /// longer than `patience` since this sweeper first saw it. What fails does not keep the rest
    /// from being done; the first failure is returned.
    pub async fn sweep(&mut self, patience: Duration) -> Result<(), Error> {
        let places: Vec<_> =
            Partition::all().zip(self.partitions.iter().map(|watched| watched.rank)).collect();
        let pages = self.store.waiting(&places).await?;
        let now = Instant::now();
        let left_behind: Vec<_> = self
            .partitions
            .iter_mut()
            .zip(pages)
            .flat_map(|(watched, page)| watched.note(page, now, patience))
            .collect();

        let mut outcome = Ok(());
        let (mut follows, mut blocks): (Vec<Change>, Vec<Change>) = (Vec::new(), Vec::new());
        let changes = self.store.truth(&left_behind).await?;
        for ((waiting, _), change) in left_behind.iter().zip(changes) {
            match waiting {
                Waiting::Follow(_) => follows.push(change),
                Waiting::Block(_) => blocks.push(change),
            }
        }
        if !follows.is_empty() {
            outcome = outcome.and(self.edges.complete(&follows).await.map(|_| ()));
        }
        for block in blocks {
            outcome = outcome.and(self.edges.complete_block(&block).await.map(|_| ()));
        }
        outcome
    }
}
