//! One rate limit, keyed by viewer or by client address.

use std::{
    hash::Hash,
    num::NonZeroU32,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use governor::{
    Quota, RateLimiter,
    clock::{Clock, DefaultClock},
    middleware::NoOpMiddleware,
};
use microblog_chassis::status;
use microblog_proto::common::ErrorReason;
use tonic::Status;

use super::keyed_state::BoundedState;

type Limiter<K, C> = RateLimiter<K, BoundedState<K>, C, NoOpMiddleware<<C as Clock>::Instant>>;

/// A limit on the calls of each key `K`, by the generic cell rate algorithm (GCRA): a burst of
/// `count` calls, then one call each `period / count`.
#[derive(Debug)]
pub(crate) struct Limit<K: Hash + Eq + Clone, C: Clock = DefaultClock> {
    /// The calls that are limited, in the plural.
    name: &'static str,
    /// `None` if the limit is disabled.
    limiter: Option<Limiter<K, C>>,
    rejected: AtomicU64,
}

impl<K: Hash + Eq + Clone> Limit<K> {
    /// Returns a limit of `count` calls per period; 0 disables the limit.
    pub(crate) fn new(name: &'static str, count: u32, period: Duration) -> Self {
        Self::with_clock(name, count, period, DefaultClock::default())
    }
}

impl<K: Hash + Eq + Clone, C: Clock> Limit<K, C> {
    fn with_clock(name: &'static str, count: u32, period: Duration, clock: C) -> Self {
        let quota = NonZeroU32::new(count)
            .and_then(|count| Some(Quota::with_period(period / count.get())?.allow_burst(count)));
        let limiter = quota.map(|quota| RateLimiter::new(quota, BoundedState::new(), clock));
        Self { name, limiter, rejected: AtomicU64::new(0) }
    }

    /// Counts a call, or rejects it with RATE_LIMITED. A rejected call does not count.
    pub(crate) fn check(&self, key: &K) -> Result<(), Status> {
        let Some(limiter) = &self.limiter else { return Ok(()) };
        let Err(rejection) = limiter.check_key(key) else { return Ok(()) };
        self.rejected.fetch_add(1, Ordering::Relaxed);
        let wait = ceil_to_ms(rejection.wait_time_from(limiter.clock().now()));
        let text = format!("too many {}; wait", self.name);
        Err(status::throttled(ErrorReason::RateLimited, text, wait))
    }
}

/// Metrics and maintenance of a limit, whatever its keys are.
pub(super) trait Maintain: Sync {
    /// Returns the calls that are limited, in the plural.
    fn name(&self) -> &'static str;

    /// Returns whether the limit is enabled.
    fn is_enabled(&self) -> bool;

    /// Returns how many calls were rejected.
    fn rejected(&self) -> u64;

    /// Returns how many keys have state.
    fn tracked(&self) -> usize;

    /// Evicts the keys whose state no longer limits them.
    fn evict_idle(&self);
}

impl<K, C> Maintain for Limit<K, C>
where
    K: Hash + Eq + Clone + Send + Sync,
    C: Clock + Sync,
    C::Instant: Sync,
{
    fn name(&self) -> &'static str {
        self.name
    }

    fn is_enabled(&self) -> bool {
        self.limiter.is_some()
    }

    fn rejected(&self) -> u64 {
        self.rejected.load(Ordering::Relaxed)
    }

    fn tracked(&self) -> usize {
        self.limiter.as_ref().map_or(0, |limiter| limiter.len())
    }

    fn evict_idle(&self) {
        if let Some(limiter) = &self.limiter {
            limiter.retain_recent();
            limiter.shrink_to_fit();
        }
    }
}

/// Rounds up to milliseconds: a client that retries even slightly early is rejected again.
fn ceil_to_ms(wait: Duration) -> Duration {
    Duration::from_millis(wait.as_nanos().div_ceil(1_000_000) as u64)
}

#[cfg(test)]
mod tests {
    use governor::clock::FakeRelativeClock;
    use tonic_types::StatusExt as _;

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn limit(count: u32) -> (Limit<u64, FakeRelativeClock>, FakeRelativeClock) {
        let clock = FakeRelativeClock::default();
        (Limit::with_clock("calls", count, MINUTE, clock.clone()), clock)
    }

    /// Returns the retry delay of a rejected call.
    fn wait(limit: &Limit<u64, FakeRelativeClock>, key: u64) -> Option<Duration> {
        let status = limit.check(&key).err()?;
        assert_eq!(status.code(), tonic::Code::ResourceExhausted);
        assert_eq!(status::reason_of(&status), Some(ErrorReason::RateLimited));
        status.get_details_retry_info().unwrap().retry_delay
    }

    #[test]
    fn a_burst_passes_and_then_one_call_per_part_of_the_period() {
        let (limit, clock) = limit(3);
        for _ in 0..3 {
            assert_eq!(wait(&limit, 1), None);
        }
        let part = MINUTE / 3;
        // A rejected call does not count: the wait does not grow.
        assert_eq!([wait(&limit, 1), wait(&limit, 1)], [Some(part); 2]);
        assert_eq!(wait(&limit, 2), None, "another key");
        clock.advance(part - Duration::from_millis(1));
        assert_eq!(wait(&limit, 1), Some(Duration::from_millis(1)));
        clock.advance(Duration::from_millis(1));
        assert_eq!([wait(&limit, 1), wait(&limit, 1)], [None, Some(part)]);
        assert_eq!(limit.rejected(), 4);
    }

    #[test]
    fn zero_disables_a_limit() {
        let (limit, _) = limit(0);
        assert!((0..100_000).all(|_| limit.check(&1).is_ok()));
        assert_eq!(limit.tracked(), 0);
    }

    #[test]
    fn the_largest_number_is_a_limit_too() {
        let (limit, _) = limit(u32::MAX);
        assert!(limit.is_enabled() && limit.check(&1).is_ok());
    }

    #[test]
    fn a_wait_is_never_reported_too_short() {
        let reported = ceil_to_ms(Duration::from_nanos(1_000_001));
        assert_eq!(reported, Duration::from_millis(2));
        assert_eq!(ceil_to_ms(Duration::from_millis(3)), Duration::from_millis(3));
    }

    #[test]
    fn a_flood_of_keys_is_bounded_in_space_and_limited() {
        let (limit, clock) = limit(2);
        let [known, newcomer] = [u64::MAX, u64::MAX - 1];
        assert_eq!(wait(&limit, known), None);
        let passed = (0..1_000_000).filter(|key| limit.check(key).is_ok()).count();
        assert!(limit.tracked() <= 100_000, "{}", limit.tracked());
        // One call for each own cell, and what all shared cells allow.
        let bound = 100_000 + 4_096 * 2;
        assert!((95_000..=bound).contains(&passed), "{passed}");
        // A key from before the flood keeps its own cell.
        assert_eq!(wait(&limit, known), None);
        assert!(wait(&limit, newcomer).is_some(), "all own cells are taken");

        clock.advance(MINUTE);
        limit.evict_idle();
        assert_eq!(limit.tracked(), 1);
        assert_eq!([wait(&limit, newcomer), wait(&limit, newcomer)], [None; 2]);
        clock.advance(2 * MINUTE);
        limit.evict_idle();
        assert_eq!(limit.tracked(), 0);
    }

    #[test]
    fn no_key_is_evicted_that_would_gain_calls() {
        let (limit, clock) = limit(2);
        for _ in 0..2 {
            assert_eq!(wait(&limit, 1), None);
        }
        clock.advance(MINUTE / 2 - Duration::from_millis(1));
        limit.evict_idle();
        assert_eq!(wait(&limit, 1), Some(Duration::from_millis(1)));
    }

    #[test]
    fn threads_share_a_limit() {
        let limit: Limit<u64> = Limit::new("calls", 1_000, Duration::from_secs(3600));
        let passed = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let passed_here = (0..1_000).filter(|_| limit.check(&1).is_ok()).count();
                    passed.fetch_add(passed_here as u64, Ordering::Relaxed);
                });
            }
        });
        assert_eq!(passed.into_inner(), 1_000);
        assert_eq!(limit.rejected(), 3_000);
    }
}
