//! Makes calls, each when the one before was answered or at a rate, and takes down how long each took.
//! Knows nothing of what is called.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    time::{Duration, Instant},
};

use futures::{StreamExt as _, future::join_all, stream::FuturesUnordered};
use hdrhistogram::Histogram;
use microblog_local::progress::Progress;
use tokio::time::{sleep, sleep_until};
use tonic::Status;

/// How many digits of a latency are kept, and the longest that can be told from longer ones: an hour,
/// in microseconds.
const DIGITS: u8 = 3;
const LONGEST: u64 = 3_600_000_000;

/// How many calls are under way at most when they come at a rate: more would say nothing new of a
/// system that is this far behind. Whoever waits for a place has been waiting since the call was due.
const UNDER_WAY_MAX: usize = 10_000;

const PROGRESS_EVERY: Duration = Duration::from_millis(500);

/// How calls follow each other.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pace {
    /// So many clients make one call after the other.
    Closed(usize),
    /// So many begin each second, whatever became of those before. A call's latency is counted from
    /// when it was due, so that waiting shows.
    Open(f64),
}

/// What calls took.
#[derive(Debug)]
pub(crate) struct Measured {
    /// From the first call's begin to the last one's end.
    pub(crate) seconds: f64,
    /// Latencies of calls that succeeded, in microseconds.
    pub(crate) latencies: Histogram<u64>,
    /// How many calls failed, by code.
    pub(crate) errors: BTreeMap<String, u64>,
}

impl Measured {
    fn new() -> Self {
        // Only more than 5 digits, or no range at all, are refused.
        let latencies = Histogram::new_with_max(LONGEST, DIGITS);
        let latencies = latencies.unwrap_or_else(|error| unreachable!("{error}"));
        Self { seconds: 0.0, latencies, errors: BTreeMap::new() }
    }

    fn note(&mut self, took: Duration, done: Result<(), Status>) {
        match done {
            Ok(()) => {
                let microseconds = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
                self.latencies.saturating_record(microseconds);
            }
            Err(status) => *self.errors.entry(format!("{:?}", status.code())).or_default() += 1,
        }
    }

    fn finished(&self) -> u64 {
        self.latencies.len() + self.failed()
    }

    /// Returns how many calls failed.
    pub(crate) fn failed(&self) -> u64 {
        self.errors.values().sum()
    }

    /// Returns how many calls succeeded in a second.
    pub(crate) fn calls_per_second(&self) -> f64 {
        self.latencies.len() as f64 / self.seconds
    }

    /// Returns the latency that a share of the calls did not exceed, in microseconds.
    pub(crate) fn quantile_us(&self, share: f64) -> u64 {
        self.latencies.value_at_quantile(share)
    }
}

/// Has clients call for some time. Each client's number, from 0, goes to `step`.
pub(crate) async fn drive<F>(
    pace: Pace,
    duration: Duration,
    label: &'static str,
    step: impl Fn(usize) -> F,
) -> Measured
where
    F: Future<Output = Result<(), Status>>,
{
    let began = Instant::now();
    drive_until(pace, began, |due| due >= began + duration, label, step).await
}

/// Has clients call from a moment on until it is over for a call that is due at a moment.
pub(crate) async fn drive_until<F>(
    pace: Pace,
    began: Instant,
    is_over: impl Fn(Instant) -> bool,
    label: &'static str,
    step: impl Fn(usize) -> F,
) -> Measured
where
    F: Future<Output = Result<(), Status>>,
{
    let measured = RefCell::new(Measured::new());
    let calls = async {
        match pace {
            Pace::Closed(clients) => closed(clients, is_over, &measured, step).await,
            Pace::Open(rate) => open(rate, began, is_over, &measured, step).await,
        }
    };
    tokio::select! {
        () = calls => {}
        never = tell(label, &measured) => match never {},
    }
    let mut measured = measured.into_inner();
    measured.seconds = began.elapsed().as_secs_f64();
    measured
}

async fn closed<F>(
    clients: usize,
    is_over: impl Fn(Instant) -> bool,
    measured: &RefCell<Measured>,
    step: impl Fn(usize) -> F,
) where
    F: Future<Output = Result<(), Status>>,
{
    let (is_over, step) = (&is_over, &step);
    let client = |number| async move {
        loop {
            let begin = Instant::now();
            if is_over(begin) {
                return;
            }
            let done = step(number).await;
            measured.borrow_mut().note(begin.elapsed(), done);
        }
    };
    join_all((0..clients).map(client)).await;
}

async fn open<F>(
    rate: f64,
    began: Instant,
    is_over: impl Fn(Instant) -> bool,
    measured: &RefCell<Measured>,
    step: impl Fn(usize) -> F,
) where
    F: Future<Output = Result<(), Status>>,
{
    let step = &step;
    let mut under_way = FuturesUnordered::new();
    let mut count = 0;
    loop {
        let due = began + Duration::from_secs_f64(f64::from(count) / rate);
        let is_end = is_over(due);
        if is_end && under_way.is_empty() {
            return;
        }
        let may_begin = !is_end && under_way.len() < UNDER_WAY_MAX;
        tokio::select! {
            Some(()) = under_way.next() => {}
            () = sleep_until(due.into()), if may_begin => {
                // That may have changed meanwhile.
                if is_over(due) {
                    continue;
                }
                let number = count as usize;
                under_way.push(async move {
                    let done = step(number).await;
                    measured.borrow_mut().note(due.elapsed(), done);
                });
                count += 1;
            }
        }
    }
}

async fn tell(label: &'static str, measured: &RefCell<Measured>) -> std::convert::Infallible {
    let progress = Progress::start_uncounted(label);
    let mut told = 0;
    loop {
        sleep(PROGRESS_EVERY).await;
        let finished = measured.borrow().finished();
        progress.add(finished - told);
        told = finished;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_calls_when_it_was_answered() {
        let clients = RefCell::new(BTreeMap::new());
        let measured = drive(Pace::Closed(3), Duration::from_millis(100), "test", async |client| {
            *clients.borrow_mut().entry(client).or_insert(0) += 1;
            // Real time, since that is what is measured.
            std::thread::sleep(Duration::from_millis(10));
            tokio::task::yield_now().await;
            Ok(())
        })
        .await;
        let clients = clients.into_inner();
        assert_eq!(clients.keys().copied().collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(measured.latencies.len(), clients.values().sum::<u64>());
        assert!(measured.seconds >= 0.1);
    }

    #[tokio::test]
    async fn at_a_rate_waiting_counts() {
        let busy = tokio::sync::Semaphore::new(1);
        let measured = drive(Pace::Open(100.0), Duration::from_millis(200), "test", async |_| {
            let _turn = busy.acquire().await;
            sleep(Duration::from_millis(20)).await;
            Ok(())
        })
        .await;
        assert_eq!(measured.latencies.len(), 20);
        // The last of 20 was due after 190 ms and done after 400.
        assert!(measured.quantile_us(1.0) >= 200_000, "{}", measured.quantile_us(1.0));
    }

    #[tokio::test]
    async fn what_is_due_before_the_end_is_called_even_if_it_is_late() {
        let (end, calls) = (Cell::new(None), Cell::new(0));
        let is_over = |due| end.get().is_some_and(|end| due >= end);
        let measured =
            drive_until(Pace::Open(100.0), Instant::now(), is_over, "test", async |_| {
                calls.set(calls.get() + 1);
                if calls.get() == 3 {
                    // Nothing else happens meanwhile, and five calls fall due.
                    std::thread::sleep(Duration::from_millis(55));
                    end.set(Some(Instant::now()));
                }
                Ok(())
            })
            .await;
        assert!(measured.latencies.len() >= 8, "{}", measured.latencies.len());
    }

    #[tokio::test]
    async fn calls_that_fail_are_counted_by_code() {
        let calls = Cell::new(0);
        let measured = drive(Pace::Open(1_000.0), Duration::from_millis(10), "test", async |_| {
            calls.set(calls.get() + 1);
            match calls.get() % 2 {
                0 => Ok(()),
                _ => Err(Status::not_found("")),
            }
        })
        .await;
        assert_eq!((measured.latencies.len(), measured.failed()), (5, 5));
        assert_eq!(measured.errors["NotFound"], 5);
    }
}
