//! Trust in the primaries of the cache: whether what one answers is what the database has.
//!
//! A primary may have lost changes that were applied to it: a replica that was behind was promoted, or
//! it was started from an old disk. The verifier goes over what a primary may lack, and then writes a
//! mark on it. A process trusts a primary for a second after it has asked for such a mark: one of the
//! primary's own replication id, of the history of the database that the process knows, and at most 15
//! seconds old. A process that has connected again since trusts none until it has asked again.
//!
//! A trusted read sees whatever was acknowledged before it began, unless in the last moments a store has
//! failed over, a writer could not reach Redis, or the history was renewed: then it may be answered by the
//! old primary, or from an entry that the verifier has yet to delete. A mark that nobody writes again, or
//! keeps, is relied on for 15 seconds at most.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::future::join_all;
use microblog_domain::Partition;
use microblog_keyspace::{
    Batch, Error, Keyspace,
    redis::{Value, cmd, from_redis_value_ref},
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout},
};

use crate::{
    entry::History,
    mark::{AGE_MAX_S, Mark, PartitionSet, Primary, end_mark, mark_key, read_mark},
    tables::Tables,
    transaction::read_history,
};

/// How often the marks are read.
const PERIOD: Duration = Duration::from_millis(250);

/// The least time between two readings, when processes connect again.
const PAUSE: Duration = Duration::from_millis(10);

/// How long a mark is relied on after it was asked for.
const TRUSTED: Duration = Duration::from_secs(1);

/// What a process knows of the primaries. Cheap to clone.
#[derive(Clone)]
pub struct Trust {
    inner: Arc<Inner>,
}

struct Inner {
    tables: Tables,
    keyspace: Keyspace,
    prefix: &'static str,
    state: Mutex<State>,
    /// Wakes the task that reads the marks.
    due: Notify,
}

#[derive(Default)]
struct State {
    /// Of the database, as the last statement told; `None` until there was one.
    history: Option<History>,
    /// The primaries that are trusted.
    primaries: Vec<Arc<TrustedPrimary>>,
    /// When their marks were asked for.
    asked: Option<Instant>,
    /// How many times the process had connected again by then.
    reconnects: u64,
}

#[derive(Debug)]
struct TrustedPrimary {
    /// The partitions that are verified.
    partitions: PartitionSet,
    /// The first of its partitions, and the key of its mark.
    first: Partition,
    mark_key: String,
    replication_id: String,
    /// The time of its mark, in seconds.
    marked_s: i64,
}

/// Trust in a primary, for a read that begins now.
#[derive(Clone, Debug)]
pub struct Trusted {
    /// The history of the database.
    pub history: History,
    primary: Arc<TrustedPrimary>,
    reconnects: u64,
}

impl Trust {
    /// Begins to read the marks of a keyspace, whose keys have a prefix, on the current runtime, until the
    /// last clone is dropped. As long as no primary is trusted, it reads the history of the database, too: no
    /// other statement may tell it.
    pub fn start(tables: Tables, keyspace: Keyspace, prefix: &'static str) -> Self {
        let (state, due) = (Mutex::default(), Notify::new());
        let inner = Inner { tables, keyspace, prefix, state, due };
        let inner = Arc::new(inner);
        let weak = Arc::downgrade(&inner);
        tokio::spawn(async move {
            while let Some(inner) = weak.upgrade() {
                // Without an answer, nothing is trusted once the second has passed.
                let is_any_trusted = inner.read_marks().await.unwrap_or(false);
                if !is_any_trusted {
                    inner.read_history().await;
                }
                let _ = timeout(PERIOD, inner.due.notified()).await;
                drop(inner);
                sleep(PAUSE).await;
            }
        });
        Self { inner }
    }

    /// Returns the history of the database if the primary of a partition is trusted.
    pub fn of(&self, partition: Partition) -> Option<Trusted> {
        let state = self.inner.state();
        let reconnects = self.inner.keyspace.reconnects();
        if state.reconnects != reconnects {
            self.inner.due.notify_one();
            return None;
        }
        let is_fresh = state.asked.is_some_and(|asked| asked.elapsed() < TRUSTED);
        let history = state.history.clone().filter(|_| is_fresh)?;
        let has_it = |primary: &&Arc<TrustedPrimary>| primary.partitions.contains(partition);
        let primary = state.primaries.iter().find(has_it)?.clone();
        Some(Trusted { history, primary, reconnects })
    }

    /// Returns whether what was read under a trust may be relied on: not if the process has connected
    /// again meanwhile, or if the connection leads to a server with another mark, such as an old primary
    /// to which it has stayed, or with an older one, such as a replica that was promoted. `mark` is the reply
    /// to the command that [`Trusted::ask_mark`] has added.
    pub(crate) fn confirms(&self, trusted: &Trusted, mark: &Value) -> bool {
        let Trusted { history, primary, reconnects } = trusted;
        let Ok((id, of, time_s)) = from_redis_value_ref::<(String, String, i64)>(mark) else {
            return false;
        };
        self.inner.keyspace.reconnects() == *reconnects
            && id == primary.replication_id
            && of == history.0
            && time_s >= primary.marked_s
    }

    /// Ends the trust of other processes in primaries of some partitions, unless it is of this history: they
    /// do not know of it yet, and what is acknowledged next is not in the entries that they read.
    pub(crate) async fn end_others(
        &self,
        history: &History,
        partitions: BTreeSet<Partition>,
    ) -> Result<(), Error> {
        let is_of_history =
            |at: Partition| self.of(at).is_some_and(|trusted| trusted.history == *history);
        let unknown: Vec<_> = partitions.into_iter().filter(|&at| !is_of_history(at)).collect();
        if unknown.is_empty() {
            return Ok(());
        }
        let Inner { keyspace, prefix, .. } = &*self.inner;
        let mut batch = Batch::new();
        for primary in keyspace.partitions_by_primary().await? {
            let Some(&first) = primary.first() else { continue };
            if unknown.iter().any(|at| primary.contains(at)) {
                batch.call(first, end_mark(&mark_key(prefix, first), history));
            }
        }
        keyspace.send(batch).await.map(drop)
    }

    /// Notes the history that a statement of the database told.
    pub(crate) fn learn(&self, history: &History) {
        self.inner.learn(history);
    }
}

impl Trusted {
    /// Returns whether a partition is one of the primary's that are verified.
    pub(crate) fn has(&self, partition: Partition) -> bool {
        self.primary.partitions.contains(partition)
    }

    /// Returns the first partition of the primary, to which its mark belongs.
    pub(crate) fn first(&self) -> Partition {
        self.primary.first
    }

    /// Returns whether a server that tells this of itself is the trusted one, and has its mark.
    pub(crate) fn is(&self, server: &Primary) -> bool {
        let id = &self.primary.replication_id;
        let is_own = |mark: &Mark| mark.replication_id == *id && mark.history == self.history;
        server.replication_id == *id && server.mark.as_ref().is_some_and(is_own)
    }

    /// Adds a command that reads the mark, on the connection of the other reads of the batch.
    pub(crate) fn ask_mark(&self, batch: &mut Batch) {
        let fields = ["replication_id", "history", "time"];
        let read = cmd("HMGET").arg(&self.primary.mark_key).arg(&fields).take();
        batch.query(self.primary.first, read);
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn learn(&self, history: &History) {
        let mut state = self.state();
        if state.history.as_ref() != Some(history) {
            state.history = Some(history.clone());
            state.asked = None;
            self.due.notify_one();
        }
    }

    async fn read_history(&self) {
        let read = async { read_history(self.tables.database().await?).await };
        if let Ok(history) = read.await {
            self.learn(&history);
        }
    }

    // Returns whether a primary is trusted.
    async fn read_marks(&self) -> Result<bool, Error> {
        let (asked, reconnects) = (Instant::now(), self.keyspace.reconnects());
        let by_primary = self.keyspace.partitions_by_primary().await?;
        let history = self.state().history.clone();
        // One that is silent must not take the trust in the others away.
        let read = by_primary
            .iter()
            .map(|partitions| timeout(PERIOD, self.trusted(partitions, history.as_ref())));
        let read = join_all(read).await.into_iter().filter_map(Result::ok).flatten();
        let primaries: Vec<_> = read.map(Arc::new).collect();
        let is_any_trusted = !primaries.is_empty();
        let mut state = self.state();
        // Else it was learned meanwhile: read again.
        if state.history == history {
            state.primaries = primaries;
            (state.asked, state.reconnects) = (Some(asked), reconnects);
        }
        Ok(is_any_trusted)
    }

    // Returns a primary if its mark shows that it may be trusted.
    async fn trusted(
        &self,
        partitions: &[Partition],
        history: Option<&History>,
    ) -> Option<TrustedPrimary> {
        let first = *partitions.first()?;
        let mark_key = mark_key(self.prefix, first);
        let result: Value = self.keyspace.call(read_mark(&mark_key)).await.ok()?;
        let Primary { replication_id, time_s, mark } = Primary::decode(result).ok()?;
        let mark = mark.filter(|mark| {
            mark.replication_id == replication_id
                && Some(&mark.history) == history
                && (0..=AGE_MAX_S).contains(&(time_s - mark.time_s))
        })?;
        let is_verified = |at: &&Partition| mark.partitions.contains(**at);
        let verified: Vec<Partition> = partitions.iter().filter(is_verified).copied().collect();
        let partitions = PartitionSet::of(&verified);
        Some(TrustedPrimary { partitions, first, mark_key, replication_id, marked_s: mark.time_s })
    }
}
