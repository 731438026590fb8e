//! The rule by which guessing passwords gets slow: per account, by its e-mail address, or per name or address that
//! no account has. Pure: the
//! counting happens in the store.

use std::time::Duration;

/// How many failures in a row cost nothing.
const FREE: u32 = 5;
/// The longest wait between two attempts.
const WAIT_MAX: Duration = Duration::from_secs(15 * 60);
/// For how long failures are remembered once they cost something.
pub(crate) const MEMORY: Duration = Duration::from_secs(24 * 3600);
/// For how long a few failures are remembered: four an hour are no more than the slowed-down guesser
/// gets, and what an attacker fills the memory with, by made-up addresses at the speed of hashing (up
/// to 100 a second by default), is gone in an hour instead of a day.
pub(crate) const MEMORY_WHILE_FREE: Duration = Duration::from_secs(3600);

/// Returns how long to wait after so many failures in a row: nothing after the first four, 1 s after
/// the fifth, twice as long after each one more, and at most 15 minutes.
pub(crate) fn wait_after(failures: u32) -> Duration {
    match failures.checked_sub(FREE) {
        None => Duration::ZERO,
        Some(doublings) => Duration::from_secs(1 << doublings.min(32)).min(WAIT_MAX),
    }
}

/// Returns the waits after 1, 2, 3 … failures in milliseconds, up to the longest, for the store.
pub(crate) fn waits_ms() -> Vec<u64> {
    let all = (1..).map(wait_after);
    let mut waits: Vec<_> = all.take_while(|&wait| wait < WAIT_MAX).collect();
    waits.push(WAIT_MAX);
    waits.iter().map(|wait| wait.as_millis() as u64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_failures_are_free_and_then_the_wait_doubles() {
        assert_eq!(wait_after(4), Duration::ZERO);
        assert_eq!(wait_after(5), Duration::from_secs(1));
        assert_eq!(wait_after(6), Duration::from_secs(2));
        assert_eq!(wait_after(14), Duration::from_secs(512));
        assert_eq!(wait_after(15), Duration::from_secs(900));
        assert_eq!(wait_after(u32::MAX), Duration::from_secs(900));
    }

    #[test]
    fn the_store_gets_every_wait() {
        let waits = waits_ms();
        assert_eq!(waits[..6], [0, 0, 0, 0, 1000, 2000]);
        assert_eq!(waits.last(), Some(&900_000));
        assert_eq!(waits.len(), 15);
    }
}
