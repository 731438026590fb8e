//! Log throttle for the outage of a peer: one line at its start and one at its end, instead of one
//! per call.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

// One of several connections may recover before the others. Without a cooldown, their last failures
// would each log a new outage.
const COOLDOWN: Duration = Duration::from_secs(1);

/// Whether the peer's outage has been logged.
#[derive(Debug)]
pub(super) struct LogThrottle {
    peer: String,
    // Read without a lock while the peer is available.
    is_failing: AtomicBool,
    last_failure: Mutex<Option<Instant>>,
}

impl LogThrottle {
    /// Returns a throttle for a peer without an outage.
    pub(super) fn new(peer: String) -> Self {
        Self { peer, is_failing: AtomicBool::new(false), last_failure: Mutex::new(None) }
    }

    /// Records a call that did not reach its handler.
    pub(super) fn failed(&self, method: &str, cause: &str) {
        let mut last = self.last_failure.lock().unwrap_or_else(PoisonError::into_inner);
        let began = last.replace(Instant::now()).is_none();
        self.is_failing.store(true, Ordering::Relaxed);
        if began {
            tracing::warn!(peer = self.peer, method, cause, "peer unavailable");
        } else {
            tracing::debug!(peer = self.peer, method, cause, "peer still unavailable");
        }
    }

    /// Records a call with a response.
    pub(super) fn succeeded(&self) {
        if !self.is_failing.load(Ordering::Relaxed) {
            return;
        }
        let mut last = self.last_failure.lock().unwrap_or_else(PoisonError::into_inner);
        if last.take_if(|last| last.elapsed() >= COOLDOWN).is_some() {
            self.is_failing.store(false, Ordering::Relaxed);
            tracing::info!(peer = self.peer, "peer available again");
        }
    }
}
