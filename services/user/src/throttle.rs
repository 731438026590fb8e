//! Throttling of guesses: the delay after failed log-ins, per account, or per unknown name or address. Pure.

use std::time::Duration;

/// The failures in a row from which on there is a delay.
const DELAYED_FROM: u64 = 5;
/// The longest delay between two guesses.
const DELAY_MAX: Duration = Duration::from_secs(15 * 60);
/// How long failures are kept once there is a delay.
const KEPT: Duration = Duration::from_secs(24 * 3600);
/// How long they are kept before. Four failures per hour are no more than a throttled attacker gets. An
/// attacker may make rows of made-up addresses at the speed of hashing, up to 100 per second by default;
/// these expire in an hour instead of a day.
const KEPT_WITHOUT_DELAY: Duration = Duration::from_secs(3600);

/// Returns the delay after so many failures in a row: none after the first four, 1 s after the
/// fifth, doubled for each further one, at most 15 minutes.
pub(crate) fn delay_after(failures: u64) -> Duration {
    match failures.checked_sub(DELAYED_FROM) {
        None => Duration::ZERO,
        Some(doublings) => Duration::from_secs(1 << doublings.min(32)).min(DELAY_MAX),
    }
}

/// Returns how long failures are kept, by the delay after the last one.
pub(crate) fn kept_for(delay: Duration) -> Duration {
    if delay.is_zero() { KEPT_WITHOUT_DELAY } else { KEPT }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_doubles_from_the_fifth_failure_on() {
        assert_eq!(delay_after(4), Duration::ZERO);
        assert_eq!(delay_after(5), Duration::from_secs(1));
        assert_eq!(delay_after(6), Duration::from_secs(2));
        assert_eq!(delay_after(14), Duration::from_secs(512));
        assert_eq!(delay_after(15), Duration::from_secs(900));
        assert_eq!(delay_after(u64::MAX), Duration::from_secs(900));
    }
}
