//! Writes: the calls that wait at a moment share a transaction.
//!
//! 1. One transaction locks and reads the rows of the group, decides each call in order, writes the
//!    final state of each row, appends to the feed and commits.
//! 2. Every change is applied to its entry in the cache. An entry of which that is not known is removed.
//! 3. The calls are answered. A caller that has gone ends none of this.
//!
//! A transaction that the database has rolled back because of one of its calls is repeated in halves, down
//! to one call, which fails alone. If it is not known whether it was committed, its items are removed from the cache, and the
//! calls fail: they may be repeated.

use std::{
    collections::HashSet,
    panic::AssertUnwindSafe,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::{BoxFuture, FutureExt as _};
use microblog_record::Database;
use tokio::sync::{
    Mutex,
    mpsc::{self, error::TrySendError},
    oneshot,
};

use crate::{
    cache::{Cache, Change},
    entry::EntryKeys,
    feed::FeedRow,
    transaction::{CommitError, Transaction, is_answer},
    trust::Trust,
};

/// The most calls of a group: more take longer than they save.
const GROUP_MAX: usize = 128;

/// The groups of a worker at a time: while one waits for the disk, the other one computes. The locks on
/// rows keep them apart.
const GROUPS: usize = 2;

/// How long a group is repeated in halves. A caller waits no longer.
const GROUP_TIMEOUT: Duration = Duration::from_secs(5);

/// The most calls that wait for a group.
const WAITING_MAX: usize = 4_096;

/// The calls of a service that write, and how a group of them does.
pub trait Group: Send + Sync + 'static {
    /// A call.
    type Call: Send + Sync + 'static;
    /// The result of a call: done, unchanged, or rejected.
    type Outcome: Send + 'static;

    /// Locks the rows of a group in the order of their ids, reads what its calls depend on in later
    /// statements, decides the calls in order, and writes. Runs again, with some of the calls, if the
    /// transaction fails.
    fn run<'a>(
        &'a self,
        transaction: &'a mut Transaction,
        calls: &'a [Self::Call],
    ) -> BoxFuture<'a, Result<Decided<Self::Outcome>, sqlx::Error>>;
}

/// What a group has decided and written.
#[derive(Debug)]
pub struct Decided<O> {
    /// The outcome of each call, in order.
    pub outcomes: Vec<O>,
    /// The items that changed, and those that were found unchanged, with the same revision twice.
    pub changes: Vec<Change>,
    /// What changed, for the feed. None if nothing was written.
    pub feed: Vec<FeedRow>,
}

/// Why a call was not answered.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WriteError {
    /// The database is unavailable. Nothing was written.
    #[error("database unavailable")]
    Unavailable(#[source] Option<Arc<sqlx::Error>>),
    /// The database may have committed the call. It may be repeated.
    #[error("it is not known whether the database has committed the call")]
    Unknown(#[source] Option<Arc<sqlx::Error>>),
    /// The database has rejected the call.
    #[error("the database failed")]
    Failed(#[source] Arc<sqlx::Error>),
    /// Too many calls wait. Nothing was written.
    #[error("too many calls wait for the database")]
    Overloaded,
}

/// A call, and who waits for it.
struct Waiting<G: Group> {
    call: G::Call,
    answer: oneshot::Sender<Result<G::Outcome, WriteError>>,
}

/// Writes the calls of a worker. Cheap to clone. Ends when the last clone is dropped, after the calls
/// that wait.
pub struct Writer<G: Group> {
    queue: mpsc::Sender<Waiting<G>>,
}

impl<G: Group> Clone for Writer<G> {
    fn clone(&self) -> Self {
        Self { queue: self.queue.clone() }
    }
}

impl<G: Group> Writer<G> {
    /// Starts the writer of a worker, on its runtime.
    pub fn start(group: G, database: Database, cache: Cache, trust: Trust) -> Self {
        let (queue, waiting) = mpsc::channel(WAITING_MAX);
        let work = Arc::new(Work { group, database, cache, trust, waiting: Mutex::new(waiting) });
        for _ in 0..GROUPS {
            tokio::spawn(work.clone().run());
        }
        Self { queue }
    }

    /// Writes a call, and returns its outcome once it is committed and applied.
    pub async fn write(&self, call: G::Call) -> Result<G::Outcome, WriteError> {
        let (answer, answered) = oneshot::channel();
        self.queue.try_send(Waiting { call, answer }).map_err(|error| match error {
            TrySendError::Full(_) => WriteError::Overloaded,
            TrySendError::Closed(_) => WriteError::Unavailable(None),
        })?;
        // A group that panics answers nothing.
        answered.await.unwrap_or(Err(WriteError::Unknown(None)))
    }
}

struct Work<G: Group> {
    group: G,
    database: Database,
    cache: Cache,
    trust: Trust,
    waiting: Mutex<mpsc::Receiver<Waiting<G>>>,
}

impl<G: Group> Work<G> {
    async fn run(self: Arc<Self>) {
        loop {
            let mut group = Vec::new();
            if self.waiting.lock().await.recv_many(&mut group, GROUP_MAX).await == 0 {
                return;
            }
            let (calls, answers): (Vec<_>, Vec<_>) =
                group.into_iter().map(|waiting| (waiting.call, waiting.answer)).unzip();
            let deadline = Instant::now() + GROUP_TIMEOUT;
            let results = AssertUnwindSafe(self.write(&calls, deadline)).catch_unwind().await;
            // A panic is logged by its hook. Its calls may have been committed.
            let unknown = |_| calls.iter().map(|_| Err(WriteError::Unknown(None))).collect();
            let results = results.unwrap_or_else(unknown);
            for (answer, result) in answers.into_iter().zip(results) {
                // The caller may have gone.
                let _ = answer.send(result);
            }
        }
    }

    /// Writes calls, in halves if their transaction fails.
    fn write<'a>(
        &'a self,
        calls: &'a [G::Call],
        deadline: Instant,
    ) -> BoxFuture<'a, Vec<Result<G::Outcome, WriteError>>> {
        async move {
            let error = match self.attempt(calls).await {
                Ok(outcomes) => return outcomes.into_iter().map(Ok).collect(),
                Err(error) => error,
            };
            let is_of_a_call = matches!(error, WriteError::Failed(_)) && calls.len() > 1;
            if is_of_a_call && Instant::now() < deadline {
                let (first, second) = calls.split_at(calls.len() / 2);
                let mut results = self.write(first, deadline).await;
                results.extend(self.write(second, deadline).await);
                return results;
            }
            // Not of each of them, if there are several.
            let error = match error {
                WriteError::Failed(error) if is_of_a_call => WriteError::Unavailable(Some(error)),
                error => error,
            };
            calls.iter().map(|_| Err(error.clone())).collect()
        }
        .boxed()
    }

    async fn attempt(&self, calls: &[G::Call]) -> Result<Vec<G::Outcome>, WriteError> {
        let begun = Transaction::begin(&self.database).await;
        // It has nothing to do with the calls.
        let mut transaction =
            begun.map_err(|error| WriteError::Unavailable(Some(Arc::new(error))))?;
        self.trust.learn(transaction.history());
        let decided = match self.group.run(&mut transaction, calls).await {
            Ok(decided) => decided,
            Err(error) => return Err(failure(error, calls.len())),
        };
        let Decided { outcomes, changes, feed } = decided;
        if feed.is_empty() {
            // Nothing was written: the locks end before the cache is asked.
            drop(transaction);
        } else if let Err(error) = transaction.commit(&feed).await {
            return Err(match error {
                // A lock on the feed that is not free concerns all calls.
                CommitError::Aborted(error) => failure(error, 1),
                CommitError::Unknown(error) => {
                    self.remove(changes.iter().map(|change| &change.keys)).await;
                    WriteError::Unknown(error.map(Arc::new))
                }
            });
        }
        self.apply(&changes).await;
        Ok(outcomes)
    }

    /// Applies changes to the cache. Removes the entries of which it is not known whether they were
    /// changed. If that fails as well, the cache cannot be reached from here: the verifier applies the
    /// changes, or the cache loses its trust.
    async fn apply(&self, changes: &[Change]) {
        let unknown: Vec<&EntryKeys> = match self.cache.apply(changes).await {
            Ok(results) => {
                let unknown = changes.iter().zip(results).filter(|(_, result)| result.is_err());
                unknown.map(|(change, _)| &change.keys).collect()
            }
            Err(_) => changes.iter().map(|change| &change.keys).collect(),
        };
        if !unknown.is_empty() {
            self.remove(unknown).await;
        }
    }

    async fn remove(&self, entries: impl IntoIterator<Item = &EntryKeys>) {
        let distinct: HashSet<&EntryKeys> = entries.into_iter().collect();
        if let Err(error) = self.cache.remove(distinct).await {
            let error = &error as &dyn std::error::Error;
            tracing::debug!(error, "entries not removed");
        }
    }
}

/// What the code of an answer tells of the transactions that come next.
#[derive(PartialEq, Eq)]
enum Scope {
    /// They fail as well: a standby (25006, 55000), or too few resources (53).
    All,
    /// It may have been another transaction's doing: a lock, a deadlock, a conflict, a timeout.
    Moment,
    /// One of the calls causes it.
    Calls,
}

fn scope(error: &sqlx::Error) -> Scope {
    let code = error.as_database_error().and_then(|error| error.code()).unwrap_or_default();
    match &*code {
        "25006" | "55000" => Scope::All,
        code if code.starts_with("53") => Scope::All,
        "55P03" | "40P01" | "40001" | "57014" | "25P03" => Scope::Moment,
        code if code.len() != 5 && is_of_file(code) => Scope::All,
        _ => Scope::Calls,
    }
}

/// Returns whether a result code of SQLite is of the file, not of a statement: busy, only to be read, a
/// failure of the disk, a full disk (<https://www.sqlite.org/rescode.html>).
fn is_of_file(code: &str) -> bool {
    code.parse::<u32>().is_ok_and(|code| matches!(code & 0xff, 5 | 8 | 10 | 13))
}

// A group that fails because of one of its calls, or by another transaction, is written in halves.
fn failure(error: sqlx::Error, calls: usize) -> WriteError {
    let scope = scope(&error);
    if !is_answer(&error) || scope == Scope::All || calls == 1 && scope == Scope::Moment {
        WriteError::Unavailable(Some(Arc::new(error)))
    } else {
        WriteError::Failed(Arc::new(error))
    }
}
