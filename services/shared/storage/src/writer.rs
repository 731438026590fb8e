//! Writes: the calls that wait at a moment share a transaction.
//!
//! 1. One transaction locks and reads the rows of the group, decides each call in order, writes the
//!    final state of each row, appends to the feed and commits.
//! 2. Every change is applied to its entry in the cache. A new item is installed there: its lease was taken before
//!    the commit, so what comes after it is not missed. An entry of which that is not known is removed. So are
//!    those of a bulk call: most are not there, and removing costs a tenth of a function.
//! 3. The calls are answered. A caller that has gone ends none of this.
//!
//! A transaction that the database has rolled back because of one of its calls is repeated in halves, down
//! to one call, which fails alone. If it is not known whether it was committed, its items are removed from
//! the cache, and the calls fail: they may be repeated.
//!
//! A group is in the trace of its first call that has one.
//!
//! A call is committed while its caller waits, or not at all: one that was given up must not undo what was
//! acknowledged later. So the time until a group begins, until it is decided, and of its commit are limited,
//! together to less than [the write budget](microblog_chassis::mutate) of a call.

use std::{
    collections::{BTreeSet, HashSet},
    panic::AssertUnwindSafe,
    sync::Arc,
    time::Duration,
};

use futures::future::{BoxFuture, FutureExt as _};
use microblog_record::{self as record, Database};
use tokio::{
    sync::{
        Mutex,
        mpsc::{self, error::TrySendError},
        oneshot,
    },
    time::{Instant, timeout, timeout_at},
};
use tracing::{Instrument as _, Span};

use crate::{
    cache::{Cache, Change, Created, Token},
    entry::{EntryKeys, History},
    feed::FeedRow,
    metrics::WriteMetrics,
    tables::Tables,
    transaction::{CommitError, Transaction, is_answer},
    trust::Trust,
};

/// The most work of a group, by the weights of its calls: more takes longer than it saves. The last call may
/// exceed it.
const GROUP_MAX: usize = 128;

/// The groups of a worker at a time: while one waits for the disk, the other one computes. The locks on
/// rows keep them apart.
const GROUPS: usize = 2;

/// How long a call may wait for its group.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(3);

/// How long a group may take until it is decided, with all repetitions. A database whose host is gone does
/// not answer.
const GROUP_TIMEOUT: Duration = Duration::from_secs(3);

/// How long a change of the cache may take, then one in place of an install, and then the removal of entries.
/// Callers do not wait longer for a cache that hangs: the verifier applies the changes, or the cache loses its
/// trust.
const APPLY_TIMEOUT: Duration = Duration::from_millis(250);

/// How long the leases on new items may take: rows are locked meanwhile.
const LEASE_TIMEOUT: Duration = Duration::from_millis(50);

/// The most calls that wait for a group.
const WAITING_MAX: usize = 4_096;

/// The calls of a service that write, and how a group of them does.
pub trait Group: Send + Sync + 'static {
    /// A call.
    type Call: Send + Sync + 'static;
    /// The result of a call: done, unchanged, or rejected.
    type Outcome: Send + 'static;

    /// Returns how much work a call is: 1 for the least.
    fn weight(&self, _call: &Self::Call) -> usize {
        1
    }

    /// The columns of the table `accounts`: the first one is the id, the others are numbers. 0 if the calls need
    /// none of its rows.
    const ACCOUNT_COLUMNS: usize = 0;

    /// Returns the accounts whose rows the calls need. Those that are missing are made, in the order of their
    /// ids, before any row is locked: so no group waits for one that waits for it.
    fn accounts(&self, _calls: &[Self::Call]) -> BTreeSet<u64> {
        BTreeSet::new()
    }

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
    /// Items that are new, and will soon be read. They are not among `changes`.
    pub created: Vec<Created>,
    /// What changed, for the feed.
    pub feed: Vec<FeedRow>,
    /// Whether rows were written that are of no item, such as a counter. Without them and a feed, nothing is
    /// committed.
    pub has_others: bool,
}

/// What a group has decided, with the leases on what it creates.
struct Leased<O> {
    outcomes: Vec<O>,
    changes: Vec<Change>,
    created: Vec<(Created, Token)>,
    feed: Vec<FeedRow>,
    has_others: bool,
}

fn keys<'a>(
    changes: &'a [Change],
    created: &'a [(Created, Token)],
) -> impl Iterator<Item = &'a EntryKeys> {
    let created = created.iter().map(|(created, _)| &created.keys);
    changes.iter().map(|change| &change.keys).chain(created)
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

impl WriteError {
    // Once for all calls of a group.
    fn log(&self) {
        let error = self as &dyn std::error::Error;
        match self {
            Self::Unavailable(_) => tracing::warn!(error, "write not done"),
            Self::Unknown(_) => tracing::warn!(error, "write may not be done"),
            Self::Failed(_) => tracing::error!(error, "write rejected by the database"),
            Self::Overloaded => {}
        }
    }
}

/// A call, and who waits for it.
struct Waiting<G: Group> {
    call: G::Call,
    answer: oneshot::Sender<Result<G::Outcome, WriteError>>,
    since: Instant,
    /// Of the caller.
    span: Span,
}

impl<G: Group> Waiting<G> {
    // Returns the call if it is still wanted. Answers one that has waited for too long.
    fn if_wanted(self) -> Option<Self> {
        if self.answer.is_closed() {
            return None;
        }
        if self.since.elapsed() > QUEUE_TIMEOUT {
            let _ = self.answer.send(Err(WriteError::Unavailable(None)));
            return None;
        }
        Some(self)
    }
}

/// How a transaction failed.
enum Failure {
    /// Its calls fail.
    Final(WriteError),
    /// It may succeed if it is repeated.
    Moment(sqlx::Error),
    /// One of its calls is the cause.
    Call(sqlx::Error),
}

impl Failure {
    // Returns the error of the database; `None` for a timeout.
    fn cause(&self) -> Option<&sqlx::Error> {
        use WriteError::{Failed, Overloaded, Unavailable, Unknown};
        match self {
            Self::Moment(error) | Self::Call(error) => Some(error),
            Self::Final(Unavailable(error) | Unknown(error)) => error.as_deref(),
            Self::Final(Failed(error)) => Some(error),
            Self::Final(Overloaded) => None,
        }
    }
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
    pub fn start(group: G, tables: Tables, cache: Cache, trust: Trust) -> Self {
        let (queue, waiting) = mpsc::channel(WAITING_MAX);
        let metrics = WriteMetrics::new(cache.keyspace_name());
        let waiting = Mutex::new(waiting);
        let work = Arc::new(Work { group, tables, cache, trust, metrics, waiting });
        for _ in 0..GROUPS {
            tokio::spawn(work.clone().run());
        }
        Self { queue }
    }

    /// Writes a call, and returns its outcome once it is committed and applied.
    pub async fn write(&self, call: G::Call) -> Result<G::Outcome, WriteError> {
        let (answer, answered) = oneshot::channel();
        let (since, span) = (Instant::now(), Span::current());
        let waiting = Waiting { call, answer, since, span };
        self.queue.try_send(waiting).map_err(|error| match error {
            TrySendError::Full(_) => WriteError::Overloaded,
            TrySendError::Closed(_) => WriteError::Unavailable(None),
        })?;
        // A group that panics answers nothing.
        answered.await.unwrap_or(Err(WriteError::Unknown(None)))
    }
}

struct Work<G: Group> {
    group: G,
    tables: Tables,
    cache: Cache,
    trust: Trust,
    metrics: WriteMetrics,
    waiting: Mutex<mpsc::Receiver<Waiting<G>>>,
}

impl<G: Group> Work<G> {
    async fn run(self: Arc<Self>) {
        while let Some(group) = self.next_group().await {
            let traced = group.iter().map(|waiting| &waiting.span).find(|span| !span.is_none());
            let span = traced.cloned().unwrap_or_else(Span::none);
            let (calls, answers): (Vec<_>, Vec<_>) =
                group.into_iter().map(|waiting| (waiting.call, waiting.answer)).unzip();
            let deadline = Instant::now() + GROUP_TIMEOUT;
            let write = self.write(&calls, deadline).instrument(span);
            let results = AssertUnwindSafe(write).catch_unwind().await;
            // A panic is logged by its hook. Its calls may have been committed.
            let unknown = |_| calls.iter().map(|_| Err(WriteError::Unknown(None))).collect();
            let results = results.unwrap_or_else(unknown);
            for (answer, result) in answers.into_iter().zip(results) {
                // The caller may have gone.
                let _ = answer.send(result);
            }
        }
    }

    // Returns the calls of the next group; `None` at the end.
    async fn next_group(&self) -> Option<Vec<Waiting<G>>> {
        let mut waiting = self.waiting.lock().await;
        let (mut group, mut weight) = (Vec::new(), 0);
        while weight < GROUP_MAX {
            let next = match group.is_empty() {
                true => waiting.recv().await?,
                false => match waiting.try_recv() {
                    Ok(next) => next,
                    Err(_) => break,
                },
            };
            if let Some(next) = next.if_wanted() {
                weight += self.group.weight(&next.call);
                group.push(next);
            }
        }
        Some(group)
    }

    /// Writes calls, in halves if their transaction fails because of one of them.
    fn write<'a>(
        &'a self,
        calls: &'a [G::Call],
        deadline: Instant,
    ) -> BoxFuture<'a, Vec<Result<G::Outcome, WriteError>>> {
        async move {
            let mut attempt = self.attempt(calls, deadline).await;
            // Of several calls, one may be what others wait for.
            if calls.len() == 1 && matches!(attempt, Err(Failure::Moment(_))) {
                attempt = self.attempt(calls, deadline).await;
            }
            let error = match attempt {
                Ok(outcomes) => return outcomes.into_iter().map(Ok).collect(),
                Err(Failure::Moment(_) | Failure::Call(_)) if calls.len() > 1 => {
                    let (first, second) = calls.split_at(calls.len() / 2);
                    let mut results = self.write(first, deadline).await;
                    results.extend(self.write(second, deadline).await);
                    return results;
                }
                Err(Failure::Final(error)) => error,
                Err(Failure::Moment(error)) => WriteError::Unavailable(Some(Arc::new(error))),
                Err(Failure::Call(error)) => WriteError::Failed(Arc::new(error)),
            };
            error.log();
            calls.iter().map(|_| Err(error.clone())).collect()
        }
        .boxed()
    }

    async fn attempt(
        &self,
        calls: &[G::Call],
        deadline: Instant,
    ) -> Result<Vec<G::Outcome>, Failure> {
        self.metrics.groups.add(1);
        self.metrics.calls.add(calls.len() as u64);
        let database = self.tables.database().await.map_err(|error| match error {
            record::Error::Unavailable(Some(error)) => unavailable(error),
            record::Error::Unavailable(None) => Failure::Final(WriteError::Unavailable(None)),
            error => unavailable(sqlx::Error::Configuration(error.into())),
        })?;
        let operation = database.operation("TRANSACTION");
        let committed = self.transact(database, calls, deadline).await;
        operation.end(committed.as_ref().err().map(|failure| failure.cause().into()));
        let (history, decided) = committed?;
        let Leased { outcomes, changes, created, .. } = decided;
        let is_bulk = self.is_bulk(calls);
        // Side by side: a cache that is silent is waited for once.
        let changed = async {
            match is_bulk {
                true => self.remove(keys(&changes, &created)).await,
                false => self.apply(&changes, &created).await,
            }
        };
        let partitions = keys(&changes, &created).map(|keys| keys.partition);
        let ended = timeout(APPLY_TIMEOUT, self.trust.end_others(&history, partitions.collect()));
        let ((), ended) = tokio::join!(changed, ended);
        if !matches!(ended, Ok(Ok(()))) {
            tracing::warn!("marks of another history not ended in the cache");
        }
        Ok(outcomes)
    }

    fn is_bulk(&self, calls: &[G::Call]) -> bool {
        calls.iter().any(|call| self.group.weight(call) > GROUP_MAX)
    }

    // Decides calls in a transaction, and commits what they have changed.
    async fn transact(
        &self,
        database: &Database,
        calls: &[G::Call],
        deadline: Instant,
    ) -> Result<(History, Leased<G::Outcome>), Failure> {
        let decided = timeout_at(deadline, self.decide(database, calls)).await;
        // Nothing was committed. The connection is closed, unless it answers soon.
        let late = |_elapsed| Failure::Final(WriteError::Unavailable(None));
        let (transaction, decided) = decided.map_err(late)??;
        let Leased { feed, has_others, .. } = &decided;
        let history = transaction.history().clone();
        if feed.is_empty() && !has_others {
            // Nothing was written: the locks end before the cache is asked.
            drop(transaction);
        } else if let Err(error) = transaction.commit(feed).await {
            return Err(match error {
                // A lock on the feed that is not free concerns all calls.
                CommitError::Aborted(error) => match failure(error) {
                    Failure::Moment(error) => {
                        Failure::Final(WriteError::Unavailable(Some(Arc::new(error))))
                    }
                    failure => failure,
                },
                CommitError::Unknown(error) => {
                    self.remove(keys(&decided.changes, &decided.created)).await;
                    Failure::Final(WriteError::Unknown(error.map(Arc::new)))
                }
            });
        }
        Ok((history, decided))
    }

    // Begins a transaction, decides calls in it, and takes the leases on what they create.
    async fn decide(
        &self,
        database: &Database,
        calls: &[G::Call],
    ) -> Result<(Transaction, Leased<G::Outcome>), Failure> {
        let accounts = self.group.accounts(calls);
        let begun = Transaction::begin(database, &accounts, G::ACCOUNT_COLUMNS).await;
        let mut transaction = begun.map_err(|error| match scope(&error) {
            // Another transaction makes the same accounts.
            Scope::Moment => Failure::Moment(error),
            Scope::Calls if !accounts.is_empty() => Failure::Call(error),
            // An error has nothing to do with the calls.
            Scope::All | Scope::Calls => unavailable(error),
        })?;
        self.trust.learn(transaction.history());
        let decided = self.group.run(&mut transaction, calls).await.map_err(failure)?;
        let Decided { outcomes, mut changes, created, feed, has_others } = decided;
        let (created, others) = match self.is_bulk(calls) {
            true => (Vec::new(), created),
            false => self.lease(created, transaction.history()).await,
        };
        changes.extend(others.into_iter().map(Created::change));
        Ok((transaction, Leased { outcomes, changes, created, feed, has_others }))
    }

    /// Takes the leases on new items, if the cache is trusted. Returns also those of which it has none: somebody
    /// has asked for them, or the cache does not answer.
    async fn lease(
        &self,
        created: Vec<Created>,
        history: &History,
    ) -> (Vec<(Created, Token)>, Vec<Created>) {
        let is_trusted = |created: &Created| {
            let trusted = self.trust.of(created.keys.partition);
            trusted.is_some_and(|trusted| trusted.history == *history)
        };
        let (asked, mut others): (Vec<_>, Vec<_>) = created.into_iter().partition(is_trusted);
        if asked.is_empty() {
            return (Vec::new(), others);
        }
        let asked: Vec<_> = asked.into_iter().map(|created| (created, Token::random())).collect();
        let leases: Vec<_> = asked.iter().map(|(created, token)| (&created.keys, *token)).collect();
        let taken = match timeout(LEASE_TIMEOUT, self.cache.lease_each(&leases)).await {
            Ok(Ok(taken)) => taken,
            Ok(Err(_)) | Err(_) => vec![false; leases.len()],
        };
        let mut leased = Vec::with_capacity(asked.len());
        for ((created, token), is_taken) in asked.into_iter().zip(taken) {
            match is_taken {
                true => leased.push((created, token)),
                false => others.push(created),
            }
        }
        (leased, others)
    }

    /// Applies changes to the cache, and installs new items. Removes the entries of which it is not known
    /// whether they were changed. If that fails as well, the cache cannot be reached from here: the verifier
    /// applies the changes, or the cache loses its trust.
    async fn apply(&self, changes: &[Change], created: &[(Created, Token)]) {
        let (mut unknown, (not_known, ended)) =
            tokio::join!(self.apply_each(changes), self.install_each(created));
        // Somebody may have read the item before the commit.
        let ended: Vec<_> = ended.into_iter().map(Created::change).collect();
        unknown.extend(not_known);
        unknown.extend(self.apply_each(&ended).await);
        if !unknown.is_empty() {
            self.remove(unknown).await;
        }
    }

    /// Applies changes. Returns the entries of which it is not known whether they were changed.
    async fn apply_each<'a>(&self, changes: &'a [Change]) -> Vec<&'a EntryKeys> {
        if changes.is_empty() {
            return Vec::new();
        }
        match timeout(APPLY_TIMEOUT, self.cache.apply(changes)).await {
            Ok(Ok(results)) => {
                let unknown = changes.iter().zip(results).filter(|(_, result)| result.is_err());
                unknown.map(|(change, _)| &change.keys).collect()
            }
            Ok(Err(_)) | Err(_) => changes.iter().map(|change| &change.keys).collect(),
        }
    }

    /// Installs new items. Returns the entries of which it is not known whether they were installed, and those
    /// whose lease had ended.
    async fn install_each<'a>(
        &self,
        created: &'a [(Created, Token)],
    ) -> (Vec<&'a EntryKeys>, Vec<Created>) {
        let (mut unknown, mut ended) = (Vec::new(), Vec::new());
        if created.is_empty() {
            return (unknown, ended);
        }
        match timeout(APPLY_TIMEOUT, self.cache.install_each(created)).await {
            Ok(Ok(results)) => {
                for ((created, _), result) in created.iter().zip(results) {
                    match result {
                        Ok(true) => {}
                        Ok(false) => ended.push(created.clone()),
                        Err(_) => unknown.push(&created.keys),
                    }
                }
            }
            Ok(Err(_)) | Err(_) => {
                unknown.extend(created.iter().map(|(created, _)| &created.keys));
            }
        }
        (unknown, ended)
    }

    async fn remove(&self, entries: impl IntoIterator<Item = &EntryKeys>) {
        let distinct: HashSet<&EntryKeys> = entries.into_iter().collect();
        let removed = timeout(APPLY_TIMEOUT, self.cache.remove(distinct)).await;
        if !matches!(removed, Ok(Ok(()))) {
            tracing::warn!("changed entries not removed from the cache");
        }
    }
}

/// What an error tells of the transactions that come next.
#[derive(PartialEq, Eq)]
enum Scope {
    /// They fail as well: the database does not answer, it is a standby (25006, 55000), or it has too few
    /// resources (53).
    All,
    /// It may have been another transaction's doing: a lock, a deadlock, a conflict, a row that both
    /// make, a timeout.
    Moment,
    /// One of the calls causes it, such as by a row that cannot be decoded.
    Calls,
}

fn scope(error: &sqlx::Error) -> Scope {
    if !is_answer(error) {
        use sqlx::Error::{ColumnDecode, Decode, Encode, RowNotFound};
        return match error {
            ColumnDecode { .. } | Decode(_) | Encode(_) | RowNotFound => Scope::Calls,
            _ => Scope::All,
        };
    }
    let code = error.as_database_error().and_then(|error| error.code()).unwrap_or_default();
    match &*code {
        "25006" | "55000" => Scope::All,
        code if code.starts_with("53") => Scope::All,
        "55P03" | "40P01" | "40001" | "23505" | "57014" | "25P03" => Scope::Moment,
        SQLITE_PRIMARY_KEY | SQLITE_UNIQUE => Scope::Moment,
        code if code.len() != 5 && is_of_file(code) => Scope::All,
        _ => Scope::Calls,
    }
}

/// The result codes of SQLite for a row of which there may be only one (<https://www.sqlite.org/rescode.html>).
const SQLITE_PRIMARY_KEY: &str = "1555";
const SQLITE_UNIQUE: &str = "2067";

/// Returns whether a result code of SQLite is of the file, not of a statement: busy, only to be read, a
/// failure of the disk, a full disk (<https://www.sqlite.org/rescode.html>).
fn is_of_file(code: &str) -> bool {
    code.parse::<u32>().is_ok_and(|code| matches!(code & 0xff, 5 | 8 | 10 | 13))
}

fn unavailable(error: sqlx::Error) -> Failure {
    Failure::Final(WriteError::Unavailable(Some(Arc::new(error))))
}

fn failure(error: sqlx::Error) -> Failure {
    match scope(&error) {
        Scope::All => unavailable(error),
        Scope::Moment => Failure::Moment(error),
        Scope::Calls => Failure::Call(error),
    }
}
