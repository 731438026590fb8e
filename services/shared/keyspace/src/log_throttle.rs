//! Log throttle: while Redis is unavailable or rejects writes, logs one line for each error type
//! every ten seconds, not one for each call. Metrics have the number of failures.

use std::{
    collections::BTreeMap,
    sync::Mutex,
    time::{Duration, Instant},
};

use crate::{Error, lock::lock};

/// Minimum interval between two lines of one error type.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Shared by the services of the process.
static LOG_THROTTLE: LogThrottle = LogThrottle(Mutex::new(BTreeMap::new()));

impl Error {
    /// Logs a failed call; called where the error is handled. Throttles errors that repeat while
    /// Redis is unavailable or rejects writes. Logs any other error each time.
    pub fn log(&self) {
        let error = self as &dyn std::error::Error;
        if !self.is_unavailable() && !self.is_full() {
            tracing::error!(error, "the store failed");
        } else if !LOG_THROTTLE.should_log(self.error_type(), Instant::now()) {
            tracing::debug!(error, "the store still fails");
        } else if self.is_full() {
            tracing::warn!(error, "the store rejects writes");
        } else {
            tracing::warn!(error, "store unavailable");
        }
    }
}

/// The time of the last line of each error type.
struct LogThrottle(Mutex<BTreeMap<String, Instant>>);

impl LogThrottle {
    /// Returns whether to log an error type now, and records that.
    fn should_log(&self, error_type: &str, now: Instant) -> bool {
        let mut logged_at = lock(&self.0);
        let is_recent = |at: &Instant| now.saturating_duration_since(*at) < LOG_INTERVAL;
        let is_due = !logged_at.get(error_type).is_some_and(is_recent);
        if is_due {
            logged_at.insert(error_type.to_owned(), now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_each_error_type_once_per_interval() {
        let (throttle, begin) = (LogThrottle(Mutex::default()), Instant::now());
        let at = |second, error_type| {
            throttle.should_log(error_type, begin + Duration::from_secs(second))
        };
        assert!(at(0, "MISCONF"));
        assert!(!at(0, "MISCONF") && !at(9, "MISCONF"));
        assert!(at(9, "timeout"), "another error type");
        assert!(at(10, "MISCONF"), "after the interval");
        assert!(!at(18, "timeout") && !at(19, "MISCONF"));
    }
}
