//! Exponential backoff with jitter.

use std::time::Duration;

use rand::RngExt as _;
use tokio::time::Instant;

// The delay doubles after each failure. Calls without another endpoint end it early.
const DELAY_MIN: Duration = Duration::from_millis(50);
const DELAY_MAX: Duration = Duration::from_secs(5);

/// Backoff between attempts to connect.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    pub(super) phase: Phase,
    /// Failures since the last reset.
    failures: u32,
}

/// Phase of a backoff.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    /// The last attempt succeeded, or there was none.
    #[default]
    Inactive,
    /// An attempt failed; the next one is scheduled.
    Waiting { failed_at: Instant, retry_at: Instant },
    /// An attempt failed at this time; the next one is running.
    Retrying(Instant),
}

impl Backoff {
    /// Schedules the next attempt after a failure.
    pub(super) fn start(&mut self) {
        let doublings = self.failures.min(16);
        let delay = DELAY_MAX.min(DELAY_MIN * (1 << doublings));
        // Jitter: the clients of a server must not reconnect all at once.
        let delay = delay.mul_f64(rand::rng().random_range(0.5..1.0));
        let failed_at = Instant::now();
        self.phase = Phase::Waiting { failed_at, retry_at: failed_at + delay };
        self.failures = self.failures.saturating_add(1);
    }

    /// Makes the next delay the shortest.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }
}
