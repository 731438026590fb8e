//! What a process knows of the partitions of its keyspace: the newest versions of their journals, and
//! which of them reject calls. The worker threads share it.

use std::{
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
    time::Duration,
};

use microblog_domain::Partition;
use tokio::sync::Notify;

use crate::{Error, Version, lock::lock};

/// Whether a keyspace accepts calls at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ServingState {
    /// It does.
    Open,
    /// Redis has not been compared with the database that records it since the last connection to it
    /// was made: it may have lost its data.
    Unchecked,
    /// Redis and the database do not belong together.
    Mismatched,
}

/// The states of all partitions of a keyspace.
#[derive(Clone)]
pub struct PartitionStates {
    inner: Arc<Inner>,
}

struct Inner {
    serving: AtomicU8,
    is_recorded: AtomicBool,
    is_checked: AtomicBool,
    has_lost_connection: AtomicBool,
    // How many connections of the shared pool were made, and how many times connections were made again
    // since there is a database that records Redis.
    reconnects: AtomicU64,
    connections: AtomicU64,
    // The address of the primary that the Sentinels report, with the epoch of their configuration, and
    // how many times there was another one.
    primary: Mutex<(String, u64)>,
    primaries: AtomicU64,
    // Serializes changes of `serving`, and of `is_closed` by comparisons.
    changing: Mutex<()>,
    changed: Notify,
    is_database_mismatched: AtomicBool,
    newest: Box<[AtomicU64]>,
    is_closed: Box<[AtomicBool]>,
    // How many times partitions were opened after a recovery, and of each the count then.
    recoveries: AtomicU64,
    recovered: Box<[AtomicU64]>,
}

/// A comparison of Redis with the database: of the connections that there were when it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Comparison {
    connections: u64,
    recoveries: u64,
}

impl Default for PartitionStates {
    fn default() -> Self {
        let inner = Inner {
            serving: AtomicU8::new(ServingState::Open as u8),
            is_recorded: AtomicBool::new(false),
            is_checked: AtomicBool::new(false),
            has_lost_connection: AtomicBool::new(false),
            reconnects: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            primary: Mutex::default(),
            primaries: AtomicU64::new(0),
            changing: Mutex::new(()),
            changed: Notify::new(),
            is_database_mismatched: AtomicBool::new(false),
            newest: Partition::all().map(|_| AtomicU64::new(0)).collect(),
            is_closed: Partition::all().map(|_| AtomicBool::new(false)).collect(),
            recoveries: AtomicU64::new(0),
            recovered: Partition::all().map(|_| AtomicU64::new(0)).collect(),
        };
        Self { inner: Arc::new(inner) }
    }
}

impl fmt::Debug for PartitionStates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartitionStates").finish_non_exhaustive()
    }
}

// Configurations are compared by their flags.
impl PartialEq for PartitionStates {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl Eq for PartitionStates {}

impl PartitionStates {
    /// Rejects a call to a partition, or to none in particular, that is closed.
    pub(crate) fn check(&self, partition: Option<Partition>) -> Result<(), Error> {
        let serving = self.inner.serving.load(Ordering::Acquire);
        if serving == ServingState::Unchecked as u8 {
            return Err(unchecked());
        }
        if serving == ServingState::Mismatched as u8 {
            return Err(Error::Mismatched);
        }
        if partition.is_some_and(|at| self.is_closed(at)) {
            Err(Error::recovering())
        } else {
            Ok(())
        }
    }

    /// Waits for a comparison that is due, for `limit` at most.
    pub(crate) async fn checked(&self, limit: Duration) -> Result<Comparison, Error> {
        let comparison = self.comparison();
        if !self.is_unchecked() {
            return Ok(comparison);
        }
        let checked = async {
            loop {
                let changed = self.inner.changed.notified();
                let comparison = self.comparison();
                if !self.is_unchecked() {
                    return comparison;
                }
                changed.await;
            }
        };
        tokio::time::timeout(limit, checked).await.map_err(|_| unchecked())
    }

    /// Fails if a connection was made since a call was admitted: what it read may be from a Redis that
    /// has lost its data.
    pub(crate) fn confirm(&self, admitted: Comparison) -> Result<(), Error> {
        if self.is_of_these_connections(admitted) { Ok(()) } else { Err(unchecked()) }
    }

    /// Notes the primary that the Sentinels report, with the epoch of their configuration. Returns its
    /// generation; `None` if a newer configuration is known: a Sentinel is late, or cut off. If all of
    /// them agree, they were configured anew.
    pub(crate) fn found_primary(&self, address: &str, epoch: u64, is_agreed: bool) -> Option<u64> {
        let mut primary = lock(&self.inner.primary);
        let (known, known_epoch) = &*primary;
        if epoch < *known_epoch && !is_agreed {
            return None;
        }
        if known != address && !known.is_empty() {
            self.primary_changed(self.primary_generation());
        }
        *primary = (address.to_owned(), epoch);
        Some(self.primary_generation())
    }

    /// Notes that another server is the primary than that of a generation, unless that is known.
    pub(crate) fn primary_changed(&self, generation: u64) {
        let primaries = &self.inner.primaries;
        let next = generation + 1;
        if primaries.compare_exchange(generation, next, Ordering::AcqRel, Ordering::Acquire).is_ok()
        {
            self.lost_connection();
        }
    }

    /// Returns the generation of the primary. Connections of an earlier one must not be used: all
    /// calls of the process must see the same server.
    pub(crate) fn primary_generation(&self) -> u64 {
        self.inner.primaries.load(Ordering::Acquire)
    }

    /// Notes that a connection failed, or that another server is the primary: the next connection may
    /// be to a Redis without its data.
    pub(crate) fn lost_connection(&self) {
        self.inner.has_lost_connection.store(true, Ordering::Release);
    }

    /// Makes calls wait for a comparison if this is the first connection after a lost one.
    pub(crate) fn connected(&self) {
        let is_first = self.inner.has_lost_connection.swap(false, Ordering::AcqRel);
        if !is_first || !self.inner.is_recorded.load(Ordering::Acquire) {
            return;
        }
        let _changing = lock(&self.inner.changing);
        self.inner.connections.fetch_add(1, Ordering::AcqRel);
        if self.inner.serving.load(Ordering::Acquire) == ServingState::Open as u8 {
            self.inner.serving.store(ServingState::Unchecked as u8, Ordering::Release);
        }
        self.inner.changed.notify_waiters();
    }

    /// Counts a connection of the shared pool. Each: of several that were lost, any may lead to another
    /// server now.
    pub(crate) fn count_connection(&self) {
        self.inner.reconnects.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns how many connections of the shared pool were made.
    pub(crate) fn reconnects(&self) -> u64 {
        self.inner.reconnects.load(Ordering::Acquire)
    }

    /// Waits until a comparison is due.
    pub async fn until_unchecked(&self) {
        loop {
            let changed = self.inner.changed.notified();
            if self.is_unchecked() {
                return;
            }
            changed.await;
        }
    }

    /// Returns whether a comparison is due.
    pub fn is_unchecked(&self) -> bool {
        self.inner.serving.load(Ordering::Acquire) == ServingState::Unchecked as u8
    }

    /// Begins a comparison. It counts unless a connection is made meanwhile.
    pub fn comparison(&self) -> Comparison {
        Comparison {
            connections: self.inner.connections.load(Ordering::Acquire),
            recoveries: self.inner.recoveries.load(Ordering::Acquire),
        }
    }

    fn is_of_these_connections(&self, comparison: Comparison) -> bool {
        self.inner.connections.load(Ordering::Acquire) == comparison.connections
    }

    /// Makes calls wait for comparisons: there is a database that records Redis. Worker threads start
    /// one after the other.
    pub fn await_check(&self) {
        self.inner.is_recorded.store(true, Ordering::Release);
        if !self.inner.is_checked.load(Ordering::Acquire) {
            self.inner.serving.store(ServingState::Unchecked as u8, Ordering::Release);
        }
    }

    /// Opens the keyspace if a comparison is due that is not possible. Returns whether it was.
    pub fn serve_unchecked(&self, comparison: Comparison) -> bool {
        let is_due = self.is_unchecked();
        if is_due {
            self.serve(comparison, ServingState::Open);
        }
        is_due
    }

    /// Sets whether calls are accepted, by a comparison.
    pub fn serve(&self, comparison: Comparison, state: ServingState) {
        self.settle(comparison, state, []);
    }

    /// Sets whether calls are accepted, and which partitions reject them, with [`Error::Recovering`],
    /// by a comparison. Without effect if a connection was made meanwhile. Returns whether it had one.
    /// Partitions that were recovered meanwhile stay open.
    pub fn settle(
        &self,
        comparison: Comparison,
        state: ServingState,
        partitions: impl IntoIterator<Item = (Partition, bool)>,
    ) -> bool {
        let _changing = lock(&self.inner.changing);
        if !self.is_of_these_connections(comparison) {
            return false;
        }
        for (partition, is_closed) in partitions {
            let at = index(partition);
            let recovered = self.inner.recovered[at].load(Ordering::Acquire);
            let is_closed = is_closed && recovered <= comparison.recoveries;
            self.inner.is_closed[at].store(is_closed, Ordering::Release);
        }
        self.inner.is_checked.store(true, Ordering::Release);
        self.inner.serving.store(state as u8, Ordering::Release);
        self.inner.changed.notify_waiters();
        true
    }

    /// Sets whether the database is the one that recorded Redis.
    pub fn trust_database(&self, is_trusted: bool) {
        self.inner.is_database_mismatched.store(!is_trusted, Ordering::Release);
    }

    /// Fails if the database is not the one that recorded Redis: it must not be asked for what Redis
    /// does not have.
    pub fn check_database(&self) -> Result<(), Error> {
        match self.inner.is_database_mismatched.load(Ordering::Acquire) {
            true => Err(Error::Mismatched),
            false => Ok(()),
        }
    }

    /// Accepts calls to a partition again, after its recovery.
    pub fn open_recovered(&self, partition: Partition) {
        let _changing = lock(&self.inner.changing);
        let count = self.inner.recoveries.fetch_add(1, Ordering::AcqRel) + 1;
        self.inner.recovered[index(partition)].store(count, Ordering::Release);
        self.inner.is_closed[index(partition)].store(false, Ordering::Release);
    }

    /// Returns whether calls to a partition are rejected because it lacks changes.
    pub fn is_closed(&self, partition: Partition) -> bool {
        self.inner.is_closed[index(partition)].load(Ordering::Acquire)
    }

    /// Makes calls that change a partition fail with [`Error::Recovering`] if its journal lacks a
    /// version.
    pub fn require(&self, partition: Partition, version: Version) {
        self.inner.newest[index(partition)].fetch_max(version.get(), Ordering::Relaxed);
    }

    /// Returns the newest version of a partition's journal that the process has seen.
    pub fn newest(&self, partition: Partition) -> Version {
        Version::from_number(self.inner.newest[index(partition)].load(Ordering::Relaxed))
    }
}

fn unchecked() -> Error {
    Error::unavailable("redis has not been compared with the database yet")
}

fn index(partition: Partition) -> usize {
    usize::from(partition.number())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn closed_partitions_and_keyspaces_reject_calls() {
        let states = PartitionStates::default();
        let [one, two] = [1, 2].map(Partition::new);
        let check = |at| states.check(Some(at));
        states.await_check();
        assert!(check(two).unwrap_err().is_unavailable());
        states.settle(states.comparison(), ServingState::Open, [(one, true)]);
        assert!(matches!(check(one), Err(Error::Recovering(_))));
        assert!(check(two).is_ok() && states.check(None).is_ok());
        states.serve(states.comparison(), ServingState::Mismatched);
        assert!(matches!(states.check(None), Err(Error::Mismatched)));
        states.serve(states.comparison(), ServingState::Open);
        assert!(check(two).is_ok() && check(one).is_err());
        states.open_recovered(one);
        assert!(check(one).is_ok());
    }

    #[test]
    fn a_comparison_that_began_earlier_does_not_close_a_recovered_partition() {
        let states = PartitionStates::default();
        let partitions = [1, 2].map(Partition::new);
        let earlier = states.comparison();
        let lacking = partitions.map(|at| (at, true));
        assert!(states.settle(earlier, ServingState::Open, lacking));
        states.open_recovered(partitions[0]);
        assert!(states.settle(earlier, ServingState::Open, lacking));
        assert_eq!(partitions.map(|at| states.is_closed(at)), [false, true]);
        assert!(states.settle(states.comparison(), ServingState::Open, lacking));
        assert_eq!(partitions.map(|at| states.is_closed(at)), [true, true], "it began later");
    }

    #[test]
    fn a_later_worker_does_not_close_what_is_checked() {
        let states = PartitionStates::default();
        states.await_check();
        states.clone().await_check();
        assert!(states.check(None).is_err());
        let comparison = states.comparison();
        assert!(states.serve_unchecked(comparison) && !states.serve_unchecked(comparison));
        states.clone().await_check();
        assert!(states.check(None).is_ok());
    }

    #[tokio::test]
    async fn after_a_connection_calls_wait_for_a_comparison_that_began_later() {
        let (states, soon) = (PartitionStates::default(), Duration::from_millis(20));
        let connect_again = || {
            states.lost_connection();
            states.connected();
        };
        connect_again();
        assert!(states.check(None).is_ok(), "there is no record");
        states.await_check();
        states.serve(states.comparison(), ServingState::Open);
        states.connected();
        let admitted = states.checked(soon).await.expect("no connection was lost");
        let earlier = states.comparison();
        connect_again();
        assert!(states.confirm(admitted).is_err(), "it may have read from the new connection");
        assert!(states.check(None).is_err() && states.checked(soon).await.is_err());
        states.until_unchecked().await;
        assert!(!states.settle(earlier, ServingState::Open, []));
        assert!(states.check(None).is_err());
        let (checked, settled) = tokio::join!(states.checked(PATIENCE), async {
            let partitions = [(Partition::new(1), true)];
            states.settle(states.comparison(), ServingState::Open, partitions)
        });
        assert!(settled && states.confirm(checked.unwrap()).is_ok());
        assert!(states.check(None).is_ok() && states.is_closed(Partition::new(1)));
    }

    #[test]
    fn the_newest_version_counts() {
        let (states, partition) = (PartitionStates::default(), Partition::new(7));
        for (version, newest) in [(3, 3), (2, 3), (8, 8)] {
            states.require(partition, Version::from_number(version));
            assert_eq!(states.newest(partition).get(), newest);
        }
    }
}
