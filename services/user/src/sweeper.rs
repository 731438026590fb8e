//! The sweeper aborts stale registrations: those that stay pending for longer than any write may
//! take. Their names and addresses become free.
//!
//! The age of a registration is the time since this sweeper first read it, by the local monotonic
//! clock. So a wrong system clock cannot abort a registration early.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use microblog_domain::UserId;
use microblog_keyspace::BacklogMetrics;

use crate::{
    accounts::{Accounts, write},
    error::Error,
};

/// The sweeper of a replica. Concurrent sweeps are harmless.
pub struct Sweeper {
    accounts: Accounts,
    stale_after: Duration,
    seen: HashMap<UserId, Instant>,
    metrics: BacklogMetrics,
}

impl Sweeper {
    /// Returns a sweeper that aborts registrations which are pending for more than one and a half
    /// times `write_budget`.
    pub fn new(accounts: Accounts, write_budget: Duration) -> Self {
        let (stale_after, metrics) =
            (write_budget * 3 / 2, BacklogMetrics::new("user registrations"));
        Self { accounts, stale_after, seen: HashMap::new(), metrics }
    }

    /// Returns the pause between two sweeps: a tenth of the stale time, but 50 ms to a second.
    pub(crate) fn period(&self) -> Duration {
        (self.stale_after / 10).clamp(Duration::from_millis(50), Duration::from_secs(1))
    }

    /// Sweeps once. Returns the number of registrations aborted.
    pub async fn sweep(&mut self) -> Result<usize, Error> {
        let pending = self.accounts.store.registrations().await?;
        let now = Instant::now();
        self.seen = pending
            .into_iter()
            .map(|id| (id, self.seen.get(&id).copied().unwrap_or(now)))
            .collect();
        let is_stale =
            |(_, first_seen): &(&UserId, &Instant)| now - **first_seen >= self.stale_after;
        let stale: Vec<_> = self.seen.iter().filter(is_stale).map(|(&id, _)| id).collect();
        let age = self.seen.values().map(|&first_seen| now - first_seen).max();
        self.metrics.note(self.seen.len(), age.unwrap_or_default(), stale.len());
        if stale.is_empty() {
            return Ok(0);
        }
        let (accounts, ids) = (self.accounts.clone(), stale.clone());
        let count = write(async move { accounts.abort_registrations(&ids).await }).await?;
        if count > 0 {
            tracing::info!(count, "stale registrations aborted");
        }
        // A damaged registration cannot be aborted. It is retried after the stale time, so it is
        // seldom logged.
        self.seen.extend(stale.into_iter().map(|id| (id, now)));
        Ok(count)
    }
}

impl Accounts {
    /// Aborts registrations, releases their claims and deletes them. Skips those that became
    /// accounts. The next sweep continues after an interruption.
    pub(crate) async fn abort_registrations(&self, ids: &[UserId]) -> Result<usize, Error> {
        let aborted = self.store.abort(ids).await?;
        self.roll_back(&aborted).await?;
        Ok(aborted.len())
    }
}
