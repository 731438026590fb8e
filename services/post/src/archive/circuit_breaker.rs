//! Who asks while the database is away: one caller at a time. The others are told at once, so that
//! what needs the archive for a part only is not kept waiting.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use super::error::Error;

/// Knows whether the database answered the last time.
#[derive(Debug)]
pub(super) struct CircuitBreaker {
    // When somebody may try, while it is away.
    next: Mutex<Option<Instant>>,
    pause: Duration,
}

impl CircuitBreaker {
    /// Returns one that lets somebody try each `pause` while the database is away.
    pub(super) fn new(pause: Duration) -> Self {
        Self { next: Mutex::new(None), pause }
    }

    /// Lets a call through, or not.
    pub(super) fn check(&self) -> Result<(), Error> {
        self.check_at(Instant::now())
    }

    /// Takes note of what became of a call.
    pub(super) fn record<T>(&self, done: &Result<T, Error>) {
        self.record_at(Instant::now(), done.as_ref().is_err_and(Error::is_unavailable));
    }

    fn check_at(&self, now: Instant) -> Result<(), Error> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        match *next {
            Some(at) if now < at => Err(Error::timed_out()),
            Some(_) => {
                // The others wait for what becomes of this one.
                *next = Some(now + self.pause);
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn record_at(&self, now: Instant, is_unavailable: bool) {
        let next = is_unavailable.then(|| now + self.pause);
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_tries_while_the_database_is_away() {
        let (breaker, begin) = (CircuitBreaker::new(Duration::from_secs(2)), Instant::now());
        let at = |second| begin + Duration::from_secs(second);
        breaker.check_at(at(0)).unwrap();
        breaker.check_at(at(0)).unwrap();
        breaker.record_at(at(0), true);
        breaker.check_at(at(1)).unwrap_err();
        breaker.check_at(at(2)).unwrap();
        breaker.check_at(at(2)).unwrap_err();
        // That one was never heard of again.
        breaker.check_at(at(4)).unwrap();
        breaker.record_at(at(4), false);
        breaker.check_at(at(4)).unwrap();
        breaker.check_at(at(4)).unwrap();
    }
}
