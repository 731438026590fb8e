//! Who asks while the database is away: one caller at a time. The others are told at once, so that
//! what needs the archive for a part only is not kept waiting.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use super::Error;

/// Knows whether the database answered the last time.
#[derive(Debug)]
pub(super) struct Breaker {
    // When somebody may try, while it is away.
    next: Mutex<Option<Instant>>,
    pause: Duration,
}

impl Breaker {
    /// Returns one that lets somebody try each `pause` while the database is away.
    pub(super) fn new(pause: Duration) -> Self {
        Self { next: Mutex::new(None), pause }
    }

    /// Lets a call through, or not.
    pub(super) fn pass(&self) -> Result<(), Error> {
        self.pass_at(Instant::now())
    }

    /// Takes note of what became of a call.
    pub(super) fn note<T>(&self, done: &Result<T, Error>) {
        self.note_at(Instant::now(), done.as_ref().is_err_and(Error::is_unavailable));
    }

    fn pass_at(&self, now: Instant) -> Result<(), Error> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        match *next {
            Some(at) if now < at => Err(Error::late()),
            Some(_) => {
                // The others wait for what becomes of this one.
                *next = Some(now + self.pause);
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn note_at(&self, now: Instant, is_away: bool) {
        let next = is_away.then(|| now + self.pause);
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_tries_while_the_database_is_away() {
        let (breaker, begin) = (Breaker::new(Duration::from_secs(2)), Instant::now());
        let at = |second| begin + Duration::from_secs(second);
        breaker.pass_at(at(0)).unwrap();
        breaker.pass_at(at(0)).unwrap();
        breaker.note_at(at(0), true);
        breaker.pass_at(at(1)).unwrap_err();
        breaker.pass_at(at(2)).unwrap();
        breaker.pass_at(at(2)).unwrap_err();
        // That one was never heard of again.
        breaker.pass_at(at(4)).unwrap();
        breaker.note_at(at(4), false);
        breaker.pass_at(at(4)).unwrap();
        breaker.pass_at(at(4)).unwrap();
    }
}
