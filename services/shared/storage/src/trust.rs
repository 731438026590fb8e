//! Trust in the primaries of the cache: whether what one answers is what the database has.
//!
//! A primary may have lost changes that were applied to it: a replica that was behind was promoted, or
//! it was started from an old disk. The verifier goes over what a primary may lack, and then writes a
//! mark on it. A process trusts a primary for a second after it has asked for such a mark: one of the
//! primary's own replication id, of the history of the database that the process knows, and at most 15
//! seconds old. A process that has connected again since trusts none until it has asked again.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use microblog_domain::Partition;
use microblog_keyspace::{Error, Keyspace};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout},
};

use crate::{
    entry::History,
    mark::{PartitionSet, Primary},
};

/// How often the marks are read.
const PERIOD: Duration = Duration::from_millis(250);

/// How long a mark is relied on after it was asked for.
const TRUSTED: Duration = Duration::from_secs(1);

/// The age from which a mark is not relied on, by the clock of the server that has it.
const AGE_MAX_S: i64 = 15;

/// What a process knows of the primaries. Cheap to clone.
#[derive(Clone)]
pub struct Trust {
    inner: Arc<Inner>,
}

struct Inner {
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
    /// The partitions of trusted primaries.
    partitions: PartitionSet,
    /// When their marks were asked for.
    asked: Option<Instant>,
    /// How many times the process had connected again by then.
    reconnects: u64,
}

/// Trust in a primary, for a read that begins now.
#[derive(Clone, Debug)]
pub struct Trusted {
    /// The history of the database.
    pub history: History,
    reconnects: u64,
}

impl Trust {
    /// Begins to read the marks of a keyspace, whose keys have a prefix, on the current runtime, until the
    /// last clone is dropped.
    pub fn start(keyspace: Keyspace, prefix: &'static str) -> Self {
        let inner = Inner { keyspace, prefix, state: Mutex::default(), due: Notify::new() };
        let inner = Arc::new(inner);
        let weak = Arc::downgrade(&inner);
        tokio::spawn(async move {
            while let Some(inner) = weak.upgrade() {
                // Without an answer, nothing is trusted once the second has passed.
                let _ = inner.read_marks().await;
                let _ = timeout(PERIOD, inner.due.notified()).await;
                drop(inner);
                sleep(Duration::from_millis(10)).await;
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
        state.partitions.contains(partition).then_some(Trusted { history, reconnects })
    }

    /// Returns whether what was read under a trust may be relied on: not if the process has connected
    /// again meanwhile.
    pub fn confirms(&self, trusted: &Trusted) -> bool {
        self.inner.keyspace.reconnects() == trusted.reconnects
    }

    /// Notes the history that a statement of the database told.
    pub fn learn(&self, history: &History) {
        let mut state = self.inner.state();
        if state.history.as_ref() != Some(history) {
            state.history = Some(history.clone());
            state.asked = None;
            self.inner.due.notify_one();
        }
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn read_marks(&self) -> Result<(), Error> {
        let (asked, reconnects) = (Instant::now(), self.keyspace.reconnects());
        let primaries = Primary::read_all(&self.keyspace, self.prefix).await?;
        let mut state = self.state();
        let is_trusted = |primary: &&Primary| {
            primary.mark.as_ref().is_some_and(|mark| {
                mark.replication_id == primary.replication_id
                    && Some(&mark.history) == state.history.as_ref()
                    && mark.age_s <= AGE_MAX_S
            })
        };
        let trusted = primaries.iter().filter(is_trusted).flat_map(|primary| {
            let mark = primary.mark.as_ref();
            let is_verified =
                move |at: &&Partition| mark.is_some_and(|mark| mark.partitions.contains(**at));
            primary.partitions.iter().filter(is_verified).copied()
        });
        let trusted: Vec<Partition> = trusted.collect();
        state.partitions = PartitionSet::of(&trusted);
        (state.asked, state.reconnects) = (Some(asked), reconnects);
        Ok(())
    }
}
