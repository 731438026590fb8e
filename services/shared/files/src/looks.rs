//! Rate-limited checks.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

/// Rate limiter for a shared check: due once per period, for the first caller.
pub struct Looks {
    period: Duration,
    created: Instant,
    /// When the next check is due, in milliseconds after `created`.
    pub(crate) next: AtomicU64,
}

impl Looks {
    /// Returns a limiter whose first check is due after one period.
    pub fn every(period: Duration) -> Self {
        Self { period, created: Instant::now(), next: AtomicU64::new(millis(period)) }
    }

    /// Returns whether the caller must check now. Of concurrent callers only one gets `true`.
    /// Lock-free.
    pub fn is_due(&self) -> bool {
        let (now, next) = (millis(self.created.elapsed()), self.next.load(Relaxed));
        let later = now.saturating_add(millis(self.period));
        now >= next && self.next.compare_exchange(next, later, Relaxed, Relaxed).is_ok()
    }
}

pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
