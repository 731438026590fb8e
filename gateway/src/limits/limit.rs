//! One limit: how often each of its callers may do one thing.

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

use super::cells::Cells;

type Limiter<K, C> = RateLimiter<K, Cells<K>, C, NoOpMiddleware<<C as Clock>::Instant>>;

/// A limit on how often each `K` does something, by the generic cell rate algorithm: so many times
/// at once, and then once each so many parts of the period.
#[derive(Debug)]
pub(crate) struct Limit<K: Hash + Eq + Clone, C: Clock = DefaultClock> {
    /// What is limited, in the plural.
    what: &'static str,
    /// `None` for any number.
    limiter: Option<Limiter<K, C>>,
    refused: AtomicU64,
}

impl<K: Hash + Eq + Clone> Limit<K> {
    /// Returns the limit of so many each period, 0 for any number.
    pub(super) fn new(what: &'static str, count: u32, period: Duration) -> Self {
        Self::with_clock(what, count, period, DefaultClock::default())
    }
}

impl<K: Hash + Eq + Clone, C: Clock> Limit<K, C> {
    fn with_clock(what: &'static str, count: u32, period: Duration, clock: C) -> Self {
        let quota = NonZeroU32::new(count)
            .and_then(|count| Some(Quota::with_period(period / count.get())?.allow_burst(count)));
        let limiter = quota.map(|quota| RateLimiter::new(quota, Cells::new(), clock));
        Self { what, limiter, refused: AtomicU64::new(0) }
    }

    /// Counts a call of somebody's, or refuses it with RATE_LIMITED, in which case it does not count.
    pub(crate) fn admit(&self, who: &K) -> Result<(), Status> {
        let Some(limiter) = &self.limiter else { return Ok(()) };
        let Err(refusal) = limiter.check_key(who) else { return Ok(()) };
        self.refused.fetch_add(1, Ordering::Relaxed);
        let wait = in_whole_milliseconds(refusal.wait_time_from(limiter.clock().now()));
        let text = format!("too many {}; wait", self.what);
        Err(status::throttled(ErrorReason::RateLimited, text, wait))
    }
}

/// What is done to limits, whoever their callers are.
pub(super) trait Upkeep: Sync {
    /// Returns what is limited, in the plural.
    fn what(&self) -> &'static str;

    /// Returns whether it limits anything.
    fn limits(&self) -> bool;

    /// Returns how many calls were refused.
    fn refused(&self) -> u64;

    /// Returns how many callers are remembered.
    fn remembered(&self) -> usize;

    /// Forgets those who may do as much as if they had never come.
    fn forget_idle(&self);
}

impl<K, C> Upkeep for Limit<K, C>
where
    K: Hash + Eq + Clone + Send + Sync,
    C: Clock + Sync,
    C::Instant: Sync,
{
    fn what(&self) -> &'static str {
        self.what
    }

    fn limits(&self) -> bool {
        self.limiter.is_some()
    }

    fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    fn remembered(&self) -> usize {
        self.limiter.as_ref().map_or(0, |limiter| limiter.len())
    }

    fn forget_idle(&self) {
        if let Some(limiter) = &self.limiter {
            limiter.retain_recent();
            limiter.shrink_to_fit();
        }
    }
}

/// PeriodicJob up: timers of callers may have no smaller steps, and who comes too early is refused again.
fn in_whole_milliseconds(wait: Duration) -> Duration {
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

    /// Returns how long somebody who is refused is to wait.
    fn wait(limit: &Limit<u64, FakeRelativeClock>, who: u64) -> Option<Duration> {
        let status = limit.admit(&who).err()?;
        assert_eq!(status.code(), tonic::Code::ResourceExhausted);
        assert_eq!(status::reason_of(&status), Some(ErrorReason::RateLimited));
        status.get_details_retry_info().unwrap().retry_delay
    }

    #[test]
    fn so_many_pass_at_once_and_then_one_each_part_of_the_period() {
        let (limit, clock) = limit(3);
        for _ in 0..3 {
            assert_eq!(wait(&limit, 1), None);
        }
        let part = MINUTE / 3;
        // To be refused costs nothing: the wait does not grow.
        assert_eq!([wait(&limit, 1), wait(&limit, 1)], [Some(part); 2]);
        assert_eq!(wait(&limit, 2), None, "somebody else");
        clock.advance(part - Duration::from_millis(1));
        assert_eq!(wait(&limit, 1), Some(Duration::from_millis(1)));
        clock.advance(Duration::from_millis(1));
        assert_eq!([wait(&limit, 1), wait(&limit, 1)], [None, Some(part)]);
        assert_eq!(limit.refused(), 4);
    }

    #[test]
    fn none_is_any_number() {
        let (limit, _) = limit(0);
        assert!((0..100_000).all(|_| limit.admit(&1).is_ok()));
        assert_eq!(limit.remembered(), 0);
    }

    #[test]
    fn the_largest_number_is_a_limit_too() {
        let (limit, _) = limit(u32::MAX);
        assert!(limit.limits() && limit.admit(&1).is_ok());
    }

    #[test]
    fn a_wait_is_never_told_too_short() {
        let told = in_whole_milliseconds(Duration::from_nanos(1_000_001));
        assert_eq!(told, Duration::from_millis(2));
        assert_eq!(in_whole_milliseconds(Duration::from_millis(3)), Duration::from_millis(3));
    }

    #[test]
    fn a_flood_of_callers_takes_no_more_than_its_space_and_is_limited() {
        let (limit, clock) = limit(2);
        let [friend, newcomer] = [u64::MAX, u64::MAX - 1];
        assert_eq!(wait(&limit, friend), None);
        let passed = (0..1_000_000).filter(|who| limit.admit(who).is_ok()).count();
        assert!(limit.remembered() <= 100_000, "{}", limit.remembered());
        // Their own places, and what all the shared ones let through.
        let bound = 100_000 + 4_096 * 2;
        assert!((95_000..=bound).contains(&passed), "{passed}");
        // Who came before them has a place.
        assert_eq!(wait(&limit, friend), None);
        assert!(wait(&limit, newcomer).is_some(), "all places are taken");

        clock.advance(MINUTE);
        limit.forget_idle();
        assert_eq!(limit.remembered(), 1);
        assert_eq!([wait(&limit, newcomer), wait(&limit, newcomer)], [None; 2]);
        clock.advance(2 * MINUTE);
        limit.forget_idle();
        assert_eq!(limit.remembered(), 0);
    }

    #[test]
    fn nobody_is_forgotten_who_could_gain_by_it() {
        let (limit, clock) = limit(2);
        for _ in 0..2 {
            assert_eq!(wait(&limit, 1), None);
        }
        clock.advance(MINUTE / 2 - Duration::from_millis(1));
        limit.forget_idle();
        assert_eq!(wait(&limit, 1), Some(Duration::from_millis(1)));
    }

    #[test]
    fn threads_share_a_limit() {
        let limit: Limit<u64> = Limit::new("calls", 1_000, Duration::from_secs(3600));
        let passed = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let admitted = (0..1_000).filter(|_| limit.admit(&1).is_ok()).count();
                    passed.fetch_add(admitted as u64, Ordering::Relaxed);
                });
            }
        });
        assert_eq!(passed.into_inner(), 1_000);
        assert_eq!(limit.refused(), 3_000);
    }
}
