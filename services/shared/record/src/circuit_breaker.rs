//! A circuit breaker: while the database is unavailable, one call at a time probes it, and the
//! others fail at once. So calls that need the database for a part of their result do not wait.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use crate::error::Error;

/// The state of the circuit breaker.
#[derive(Debug)]
pub(crate) struct CircuitBreaker {
    // When the next probe is allowed; `None` while the circuit is closed.
    next: Mutex<Option<Instant>>,
    pause: Duration,
}

impl CircuitBreaker {
    /// Returns a closed circuit breaker, which probes every `pause` while it is open.
    pub(crate) fn new(pause: Duration) -> Self {
        Self { next: Mutex::new(None), pause }
    }

    /// Rejects a call while the circuit is open.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.check_at(Instant::now())
    }

    /// Opens or closes the circuit by the result of a call.
    pub(crate) fn record<T>(&self, done: &Result<T, Error>) {
        self.record_at(Instant::now(), done.as_ref().is_err_and(Error::is_unavailable));
    }

    fn check_at(&self, now: Instant) -> Result<(), Error> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        match *next {
            Some(at) if now < at => Err(Error::timed_out()),
            Some(_) => {
                // One probe at a time: the others wait for its result.
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
    fn one_call_at_a_time_probes_an_open_circuit() {
        let (breaker, begin) = (CircuitBreaker::new(Duration::from_secs(2)), Instant::now());
        let at = |second| begin + Duration::from_secs(second);
        breaker.check_at(at(0)).unwrap();
        breaker.check_at(at(0)).unwrap();
        breaker.record_at(at(0), true);
        breaker.check_at(at(1)).unwrap_err();
        breaker.check_at(at(2)).unwrap();
        breaker.check_at(at(2)).unwrap_err();
        // The probe at second 2 never ended.
        breaker.check_at(at(4)).unwrap();
        breaker.record_at(at(4), false);
        breaker.check_at(at(4)).unwrap();
        breaker.check_at(at(4)).unwrap();
    }
}
