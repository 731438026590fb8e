//! Login throttling: the delay after failed log-ins, per account (by its e-mail address), or per
//! unknown name or address. Pure; the store counts.

use std::time::Duration;

/// The failures in a row from which on there is a delay.
const DELAYED_FROM: u32 = 5;
/// The longest delay between two attempts.
const DELAY_MAX: Duration = Duration::from_secs(15 * 60);
/// The TTL of the failure counter once there is a delay.
pub(crate) const FAILURES_TTL: Duration = Duration::from_secs(24 * 3600);
/// The TTL of the failure counter before. Four failures per hour are no more than a throttled
/// attacker gets. An attacker may create counters of made-up addresses at the speed of hashing, up
/// to 100 per second by default; these expire in an hour instead of a day.
pub(crate) const UNDELAYED_FAILURES_TTL: Duration = Duration::from_secs(3600);

/// Returns the delay after so many failures in a row: none after the first four, 1 s after the
/// fifth, doubled for each further one, at most 15 minutes.
pub(crate) fn delay_after(failures: u32) -> Duration {
    match failures.checked_sub(DELAYED_FROM) {
        None => Duration::ZERO,
        Some(doublings) => Duration::from_secs(1 << doublings.min(32)).min(DELAY_MAX),
    }
}

/// Returns the delays after 1, 2, 3 … failures in milliseconds, up to the longest, for the Redis
/// function.
pub(crate) fn delays_ms() -> Vec<u64> {
    let all = (1..).map(delay_after);
    let mut delays: Vec<_> = all.take_while(|&delay| delay < DELAY_MAX).collect();
    delays.push(DELAY_MAX);
    delays.iter().map(|delay| delay.as_millis() as u64).collect()
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
        assert_eq!(delay_after(u32::MAX), Duration::from_secs(900));
    }

    #[test]
    fn the_store_gets_each_delay() {
        let delays = delays_ms();
        assert_eq!(delays[..6], [0, 0, 0, 0, 1000, 2000]);
        assert_eq!(delays.last(), Some(&900_000));
        assert_eq!(delays.len(), 15);
    }
}
