//! When it is time to look again.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

/// Looks at something that many use at once: one in each period, by whoever comes first.
pub struct Looks {
    period: Duration,
    begun: Instant,
    /// Milliseconds from `begun` to the next one.
    pub(crate) next: AtomicU64,
}

impl Looks {
    /// Returns looks of which one was just now.
    pub fn every(period: Duration) -> Self {
        Self { period, begun: Instant::now(), next: AtomicU64::new(millis(period)) }
    }

    /// Returns whether whoever asks is to look: one of those who ask when it is time, while the
    /// others go on with what there is. Locks nothing.
    pub fn is_due(&self) -> bool {
        let (now, next) = (millis(self.begun.elapsed()), self.next.load(Relaxed));
        let later = now.saturating_add(millis(self.period));
        now >= next && self.next.compare_exchange(next, later, Relaxed, Relaxed).is_ok()
    }
}

pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
