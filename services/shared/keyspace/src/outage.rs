//! What the log says of a store for whose sake calls fail: while it is away, or refuses what is
//! written, a line for each reason every few seconds, and not one for each call. How many they are,
//! metrics tell.

use std::{
    collections::BTreeMap,
    sync::Mutex,
    time::{Duration, Instant},
};

use crate::{Error, lock::lock};

/// For how long a reason is not told again.
const PAUSE: Duration = Duration::from_secs(10);

/// Those of this process: its services have a store in common, or each its own at the same place.
static OUTAGES: Outages = Outages(Mutex::new(BTreeMap::new()));

impl Error {
    /// Writes into the log that a call failed for it, which whoever answers the call does. An outage is
    /// told now and then; anything else is a fault, and told each time.
    pub fn log(&self) {
        let error = self as &dyn std::error::Error;
        let is_rejected = matches!(self, Self::Full(_) | Self::ClockAhead(_));
        if !self.is_unavailable() && !is_rejected {
            tracing::error!(error, "the store failed");
        } else if is_rejected {
            if OUTAGES.are_news(self.word(), Instant::now()) {
                tracing::warn!(error, "the store rejects writes");
            }
        } else if OUTAGES.are_news(self.word(), Instant::now()) {
            tracing::warn!(error, "store unavailable");
        } else {
            tracing::debug!(error, "store still unavailable");
        }
    }
}

/// When each reason was told.
struct Outages(Mutex<BTreeMap<String, Instant>>);

impl Outages {
    /// Returns whether a reason is to be told, and takes note of that.
    fn are_news(&self, reason: &str, now: Instant) -> bool {
        let mut told = lock(&self.0);
        let is_known = |at: &Instant| now.saturating_duration_since(*at) < PAUSE;
        let is_news = !told.get(reason).is_some_and(is_known);
        if is_news {
            told.insert(reason.to_owned(), now);
        }
        is_news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_told_now_and_then() {
        let (outages, begin) = (Outages(Mutex::default()), Instant::now());
        let at = |second, reason| outages.are_news(reason, begin + Duration::from_secs(second));
        assert!(at(0, "MISCONF"));
        assert!(!at(0, "MISCONF") && !at(9, "MISCONF"));
        assert!(at(9, "timeout"), "another one");
        assert!(at(10, "MISCONF"), "it lasts");
        assert!(!at(18, "timeout") && !at(19, "MISCONF"));
    }
}
