//! Durability of changes: the trait by which a keyspace waits for it, and the queue of the calls that
//! wait.

use std::time::{Duration, Instant};

use futures::future::{BoxFuture, try_join_all};
use microblog_domain::Partition;
use opentelemetry::{KeyValue, global, metrics::Histogram};
use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

use crate::{Change, Error, error::TimedOut};

/// In seconds: from a replica nearby to a database that is away.
const BOUNDARIES: [f64; 10] = [0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.0];

/// The change that the result of a call relies on: the one that the call made, or else the newest
/// one of its partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelevantChange {
    /// The partition.
    pub partition: Partition,
    /// The key of its journal.
    pub journal: String,
    /// The change; `None` if the partition had no journal.
    pub change: Option<Change>,
}

/// What makes changes durable.
pub trait Durability: Send + Sync {
    /// Waits until changes, and all earlier ones of their partitions, are durable.
    fn wait(&self, changes: Vec<RelevantChange>) -> BoxFuture<'_, Result<(), Error>>;
}

/// A change that a call waits for.
pub struct Waiter {
    /// The change.
    pub relevant: RelevantChange,
    result: oneshot::Sender<Result<(), Error>>,
}

impl Waiter {
    /// Returns whether the call waits no longer.
    pub fn is_abandoned(&self) -> bool {
        self.result.is_closed()
    }

    /// Ends the wait.
    pub fn end(self, result: Result<(), Error>) {
        // The call may have ended.
        let _ = self.result.send(result);
    }
}

/// A queue of changes that calls wait for. Its consumer takes all at once, and makes them durable
/// together, while the next ones gather.
pub struct Waiters {
    queue: mpsc::UnboundedSender<Waiter>,
}

impl Waiters {
    /// Returns a queue, and the end of its consumer.
    pub fn new() -> (Self, mpsc::UnboundedReceiver<Waiter>) {
        let (queue, waiters) = mpsc::unbounded_channel();
        (Self { queue }, waiters)
    }

    /// Adds a change. The receiver gets the result; nothing if the consumer has ended.
    pub fn add(&self, relevant: RelevantChange) -> oneshot::Receiver<Result<(), Error>> {
        let (result, receiver) = oneshot::channel();
        // Without a consumer, the sender of the result is dropped.
        let _ = self.queue.send(Waiter { relevant, result });
        receiver
    }
}

/// The cause of an error.
type Cause = Box<dyn std::error::Error + Send + Sync>;

/// The waits of a level: their timeout, the error of one that was not successful, and their
/// durations.
pub struct Waits {
    timeout: Duration,
    error: fn(Cause) -> Error,
    durations: Histogram<f64>,
    level: &'static str,
}

impl Waits {
    /// Returns the waits of a level, by its name.
    pub fn new(level: &'static str, timeout: Duration, error: fn(Cause) -> Error) -> Self {
        let durations = global::meter("microblog-keyspace")
            .f64_histogram("microblog.durability.wait.duration")
            .with_unit("s")
            .with_description("How long calls wait until the changes they rely on are durable")
            .with_boundaries(BOUNDARIES.to_vec())
            .build();
        Self { timeout, error, durations, level }
    }

    /// Waits for all results.
    pub async fn all(
        &self,
        results: impl IntoIterator<Item = oneshot::Receiver<Result<(), Error>>>,
    ) -> Result<(), Error> {
        let begun = Instant::now();
        let result = async |receiver: oneshot::Receiver<Result<(), Error>>| {
            receiver.await.unwrap_or_else(|ended| Err((self.error)(ended.into())))
        };
        let all = try_join_all(results.into_iter().map(result));
        let done = timeout(self.timeout, all).await;
        let done = done.unwrap_or_else(|_elapsed| Err((self.error)(TimedOut.into())));
        let mut attributes = vec![KeyValue::new("microblog.durability", self.level)];
        if let Err(error) = &done {
            attributes.push(KeyValue::new("error.type", error.error_type().to_owned()));
        }
        self.durations.record(begun.elapsed().as_secs_f64(), &attributes);
        done.map(|_| ())
    }
}
