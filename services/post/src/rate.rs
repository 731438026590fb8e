//! Rate limits of an account per minute, all of which may be used as a burst: the generic cell rate algorithm
//! of ITU-T I.371. Pure.

use std::time::Duration;

const MINUTE_US: u64 = 60_000_000;

/// When the last unit that was taken will have been regained, in Unix µs: the theoretical arrival time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rate(pub(crate) u64);

impl Rate {
    /// Takes a unit. Fails with the time to wait if there is none. A limit of 0 is none.
    pub(crate) fn take(&mut self, now_ms: u64, per_minute: u32) -> Result<(), Duration> {
        if per_minute == 0 {
            return Ok(());
        }
        let (now, interval) = (now_ms * 1_000, MINUTE_US / u64::from(per_minute));
        // At most a minute ahead, even after the clock was set back.
        let busy_until = self.0.clamp(now, now + MINUTE_US);
        let wait = (busy_until + interval).saturating_sub(MINUTE_US + now);
        if wait > 0 {
            return Err(Duration::from_millis(wait.div_ceil(1_000)));
        }
        self.0 = busy_until + interval;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_a_limit_is_a_burst_and_is_regained_in_a_minute() {
        for per_minute in [1, 7, 60, 1_000] {
            let (mut rate, now_ms) = (Rate::default(), 1_700_000_000_000);
            for _ in 0..per_minute {
                rate.take(now_ms, per_minute).unwrap();
            }
            let wait = rate.take(now_ms, per_minute).unwrap_err();
            assert!(wait <= Duration::from_millis(60_000 / u64::from(per_minute) + 1));
            let later = now_ms + wait.as_millis() as u64;
            assert!(rate.take(later - 1, per_minute).is_err());
            rate.take(later, per_minute).unwrap();
            // The clock was set back by a day.
            let wait = rate.take(now_ms - 86_400_000, per_minute).unwrap_err();
            assert!(wait <= Duration::from_secs(60));
        }
        let mut rate = Rate::default();
        assert!((0..10_000).all(|_| rate.take(7, 0).is_ok()), "0 is no limit");
    }
}
