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
    /// Redis is unavailable or rejects writes, or while writes do not become durable. Logs any other
    /// error each time.
    pub fn log(&self) {
        let error = self as &dyn std::error::Error;
        let is_rejected = matches!(
            self,
            Self::Full(_) | Self::ClockAhead(_) | Self::Recovering(_) | Self::Mismatched
        );
        let is_not_durable = matches!(self, Self::NotReplicated(_) | Self::NotRecorded(_));
        if !self.is_unavailable() && !is_rejected && !is_not_durable {
            tracing::error!(error, "the store failed");
        } else if !LOG_THROTTLE.should_log(self.error_type(), Instant::now()) {
            tracing::debug!(error, "the store still fails");
        } else if is_rejected {
            tracing::warn!(error, "the store rejects calls");
        } else if is_not_durable {
            tracing::warn!(error, "writes are not durable");
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
