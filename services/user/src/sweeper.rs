//! Sweeps up after registrations whose process died: what stays pending for longer than any write
//! may take is given up, and its name and address are free.
//!
//! How long a registration has been pending is judged by when this sweeper first saw it, by its own
//! monotonic clock: no machine's idea of the time can end a registration early.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use microblog_chassis::PeriodicJob;
use microblog_domain::UserId;
use microblog_keyspace::BacklogMetrics;

use crate::{Accounts, Error, Store, accounts::write};

/// Finds registrations that were left behind. Each replica has one: what several of them do at once
/// is done once.
pub struct Sweeper {
    accounts: Accounts,
    patience: Duration,
    seen: HashMap<UserId, Instant>,
    metrics: BacklogMetrics,
}

impl Sweeper {
    /// Returns a sweeper that gives up what has been pending for longer than a write may take
    /// (`write_budget`) and half as long again.
    pub fn new(accounts: Accounts, write_budget: Duration) -> Self {
        let (patience, metrics) = (write_budget * 3 / 2, BacklogMetrics::new("user registrations"));
        Self { accounts, patience, seen: HashMap::new(), metrics }
    }

    /// Sweeps for ever: ten times within its patience, but no more than 20 times a second, and at
    /// least once a second.
    pub async fn run(mut self) {
        let pause = (self.patience / 10).clamp(Duration::from_millis(50), Duration::from_secs(1));
        let mut job = PeriodicJob::new("giving up registrations", pause);
        loop {
            job.tick().await;
            let given_up = self.sweep().await;
            if let Ok(count @ 1..) = given_up {
                tracing::info!(count, "registrations that were left behind are given up");
            }
            job.record(given_up.map(|_| ()));
        }
    }

    /// Looks once, and returns how many registrations it gave up.
    pub async fn sweep(&mut self) -> Result<usize, Error> {
        let pending = self.accounts.store.registrations().await?;
        let now = Instant::now();
        self.seen = pending
            .into_iter()
            .map(|id| (id, self.seen.get(&id).copied().unwrap_or(now)))
            .collect();
        let is_stale = |(_, first_seen): &(&UserId, &Instant)| now - **first_seen >= self.patience;
        let stale: Vec<_> = self.seen.iter().filter(is_stale).map(|(&id, _)| id).collect();
        let age = self.seen.values().map(|&first_seen| now - first_seen).max();
        self.metrics.note(self.seen.len(), age.unwrap_or_default(), stale.len());
        if stale.is_empty() {
            return Ok(0);
        }
        let (accounts, ids) = (self.accounts.clone(), stale.clone());
        let count = write(async move { accounts.give_up(&ids).await }).await?;
        // What could not be given up, being damaged, has all its time again: it is seldom logged.
        self.seen.extend(stale.into_iter().map(|id| (id, now)));
        Ok(count)
    }
}

/// How often the clocks of the partitions are measured.
const CLOCKS_PERIOD: Duration = Duration::from_secs(60);

/// Measures how far the clocks of the partitions are ahead, for ever.
pub(crate) async fn measure_clocks(store: Store) {
    let mut job = PeriodicJob::new("measuring the clocks", CLOCKS_PERIOD);
    loop {
        job.tick().await;
        job.record(store.measure_clocks().await);
    }
}

impl Accounts {
    /// Aborts registrations, releases what they hold and forgets them; what became an account
    /// meanwhile is left alone. If it is cut short, the next sweep goes on.
    pub(crate) async fn give_up(&self, ids: &[UserId]) -> Result<usize, Error> {
        let aborted = self.store.abort(ids).await?;
        self.discard(&aborted).await?;
        Ok(aborted.len())
    }
}
