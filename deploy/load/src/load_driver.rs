//! Closed-loop and open-loop load driver with a latency histogram. Independent of the calls.

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

/// Resolution of the latency histogram, and its maximum in microseconds: one hour.
const SIGNIFICANT_DIGITS: u8 = 3;
const LATENCY_US_MAX: u64 = 3_600_000_000;

/// Maximum number of calls in flight in an open loop. A system that is this far behind is
/// overloaded, and more calls give no information. Time in the queue counts as latency.
const IN_FLIGHT_MAX: usize = 10_000;

const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);

/// The load model.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LoadModel {
    /// Closed loop: each of these clients sends its next call after the previous response.
    Closed(usize),
    /// Open loop: this number of calls starts per second, independent of responses. Latency counts
    /// from the scheduled start, which avoids coordinated omission.
    Open(f64),
}

/// Recorded latencies and errors.
#[derive(Debug)]
pub(crate) struct Measurements {
    /// From the start of the first call to the end of the last one.
    pub(crate) seconds: f64,
    /// Latencies of successful calls, in microseconds.
    pub(crate) latencies: Histogram<u64>,
    /// Number of failed calls by status code.
    pub(crate) errors: BTreeMap<String, u64>,
}

impl Measurements {
    fn new() -> Self {
        // The constructor rejects only more than 5 digits and empty ranges.
        let latencies = Histogram::new_with_max(LATENCY_US_MAX, SIGNIFICANT_DIGITS);
        let latencies = latencies.unwrap_or_else(|error| unreachable!("{error}"));
        Self { seconds: 0.0, latencies, errors: BTreeMap::new() }
    }

    fn record(&mut self, took: Duration, done: Result<(), Status>) {
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

    /// Returns the number of failed calls.
    pub(crate) fn failed(&self) -> u64 {
        self.errors.values().sum()
    }

    /// Returns successful calls per second.
    pub(crate) fn calls_per_second(&self) -> f64 {
        self.latencies.len() as f64 / self.seconds
    }

    /// Returns a latency quantile in microseconds.
    pub(crate) fn quantile_us(&self, share: f64) -> u64 {
        self.latencies.value_at_quantile(share)
    }
}

/// Runs `step` with the index of a client, from 0, for a duration.
pub(crate) async fn run_for<F>(
    model: LoadModel,
    duration: Duration,
    label: &'static str,
    step: impl Fn(usize) -> F,
) -> Measurements
where
    F: Future<Output = Result<(), Status>>,
{
    let began = Instant::now();
    let is_over = |due| due >= began + duration;
    let measured = RefCell::new(Measurements::new());
    let calls = async {
        match model {
            LoadModel::Closed(clients) => closed_loop(clients, is_over, &measured, step).await,
            LoadModel::Open(rate) => open_loop(rate, began, is_over, &measured, step).await,
        }
    };
    tokio::select! {
        () = calls => {}
        never = report_progress(label, &measured) => match never {},
    }
    let mut measured = measured.into_inner();
    measured.seconds = began.elapsed().as_secs_f64();
    measured
}

async fn closed_loop<F>(
    clients: usize,
    is_over: impl Fn(Instant) -> bool,
    measured: &RefCell<Measurements>,
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
            measured.borrow_mut().record(begin.elapsed(), done);
        }
    };
    join_all((0..clients).map(client)).await;
}

async fn open_loop<F>(
    rate: f64,
    began: Instant,
    is_over: impl Fn(Instant) -> bool,
    measured: &RefCell<Measurements>,
    step: impl Fn(usize) -> F,
) where
    F: Future<Output = Result<(), Status>>,
{
    let step = &step;
    let mut in_flight = FuturesUnordered::new();
    let mut count = 0;
    loop {
        let due = began + Duration::from_secs_f64(f64::from(count) / rate);
        let is_end = is_over(due);
        if is_end && in_flight.is_empty() {
            return;
        }
        let may_start = !is_end && in_flight.len() < IN_FLIGHT_MAX;
        tokio::select! {
            Some(()) = in_flight.next() => {}
            () = sleep_until(due.into()), if may_start => {
                let number = count as usize;
                in_flight.push(async move {
                    let done = step(number).await;
                    measured.borrow_mut().record(due.elapsed(), done);
                });
                count += 1;
            }
        }
    }
}

async fn report_progress(
    label: &'static str,
    measured: &RefCell<Measurements>,
) -> std::convert::Infallible {
    let progress = Progress::start_uncounted(label);
    let mut reported = 0;
    loop {
        sleep(PROGRESS_INTERVAL).await;
        let finished = measured.borrow().finished();
        progress.add(finished - reported);
        reported = finished;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn closed_loop_clients_send_after_each_response() {
        let clients = RefCell::new(BTreeMap::new());
        let measured =
            run_for(LoadModel::Closed(3), Duration::from_secs(1), "test", async |client| {
                *clients.borrow_mut().entry(client).or_insert(0) += 1;
                // The driver measures real time.
                std::thread::sleep(Duration::from_millis(10));
                tokio::task::yield_now().await;
                Ok(())
            })
            .await;
        let clients = clients.into_inner();
        assert_eq!(clients.keys().copied().collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(measured.latencies.len(), clients.values().sum::<u64>());
        assert!(measured.seconds >= 1.0);
    }

    #[tokio::test]
    async fn open_loop_latency_includes_queueing() {
        let busy = tokio::sync::Semaphore::new(1);
        let measured =
            run_for(LoadModel::Open(100.0), Duration::from_millis(200), "test", async |_| {
                let _turn = busy.acquire().await;
                sleep(Duration::from_millis(20)).await;
                Ok(())
            })
            .await;
        assert_eq!(measured.latencies.len(), 20);
        // The last of 20 calls is due after 190 ms and finishes after 400 ms.
        assert!(measured.quantile_us(1.0) >= 200_000, "{}", measured.quantile_us(1.0));
    }

    #[tokio::test]
    async fn failed_calls_are_counted_by_code() {
        let calls = Cell::new(0);
        let measured =
            run_for(LoadModel::Open(1_000.0), Duration::from_millis(10), "test", async |_| {
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
