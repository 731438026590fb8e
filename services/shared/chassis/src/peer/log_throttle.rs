//! What the log says of a peer that does not answer: one line when that begins and one when it
//! ends, and not one for each call.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

// Of several connections one may be back before the others: without this, their last failures
// would each begin an outage.
const COOLDOWN: Duration = Duration::from_secs(1);

/// Whether a peer answers, as far as the calls to it tell.
#[derive(Debug)]
pub(super) struct LogThrottle {
    peer: String,
    // Beside the time, so that in good times a call takes no lock.
    is_failing: AtomicBool,
    last_failure: Mutex<Option<Instant>>,
}

impl LogThrottle {
    /// Returns that there is none.
    pub(super) fn new(peer: String) -> Self {
        Self { peer, is_failing: AtomicBool::new(false), last_failure: Mutex::new(None) }
    }

    /// Notes that a call did not reach its handler.
    pub(super) fn failed(&self, method: &str, cause: &str) {
        let mut last = self.last_failure.lock().unwrap_or_else(PoisonError::into_inner);
        let began = last.replace(Instant::now()).is_none();
        self.is_failing.store(true, Ordering::Relaxed);
        if began {
            tracing::warn!(peer = self.peer, method, cause, "a peer does not answer");
        } else {
            tracing::debug!(peer = self.peer, method, cause, "a peer still does not answer");
        }
    }

    /// Notes that a call was answered.
    pub(super) fn succeeded(&self) {
        if !self.is_failing.load(Ordering::Relaxed) {
            return;
        }
        let mut last = self.last_failure.lock().unwrap_or_else(PoisonError::into_inner);
        if last.take_if(|last| last.elapsed() >= COOLDOWN).is_some() {
            self.is_failing.store(false, Ordering::Relaxed);
            tracing::info!(peer = self.peer, "a peer answers again");
        }
    }
}
