//! What a process knows of the partitions of its keyspace: the newest versions of their journals, and
//! which of them reject calls. The worker threads share it.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
    },
};

use microblog_domain::Partition;

use crate::{Error, Version};

/// Whether a keyspace accepts calls at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ServingState {
    /// It does.
    Open,
    /// Redis has not been compared with the database that records it yet.
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
    is_checked: AtomicBool,
    is_database_mismatched: AtomicBool,
    newest: Box<[AtomicU64]>,
    is_closed: Box<[AtomicBool]>,
}

impl Default for PartitionStates {
    fn default() -> Self {
        let inner = Inner {
            serving: AtomicU8::new(ServingState::Open as u8),
            is_checked: AtomicBool::new(false),
            is_database_mismatched: AtomicBool::new(false),
            newest: Partition::all().map(|_| AtomicU64::new(0)).collect(),
            is_closed: Partition::all().map(|_| AtomicBool::new(false)).collect(),
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
            return Err(Error::unavailable("redis has not been compared with the database yet"));
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

    /// Closes the keyspace until it was compared with the database, unless it was before: worker
    /// threads start one after the other.
    pub fn await_check(&self) {
        if !self.inner.is_checked.load(Ordering::Acquire) {
            self.inner.serving.store(ServingState::Unchecked as u8, Ordering::Release);
        }
    }

    /// Opens the keyspace if it awaits a check, which is not possible. Returns whether it did.
    pub fn serve_unchecked(&self) -> bool {
        let is_first = !self.inner.is_checked.swap(true, Ordering::AcqRel);
        if is_first {
            self.serve(ServingState::Open);
        }
        is_first
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

    /// Sets whether calls are accepted.
    pub fn serve(&self, state: ServingState) {
        self.inner.is_checked.store(true, Ordering::Release);
        self.inner.serving.store(state as u8, Ordering::Release);
    }

    /// Rejects calls to a partition, with [`Error::Recovering`], or accepts them again.
    pub fn set_closed(&self, partition: Partition, is_closed: bool) {
        self.inner.is_closed[index(partition)].store(is_closed, Ordering::Release);
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
    pub(crate) fn newest(&self, partition: Partition) -> Version {
        Version::from_number(self.inner.newest[index(partition)].load(Ordering::Relaxed))
    }
}

fn index(partition: Partition) -> usize {
    usize::from(partition.number())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_partitions_and_keyspaces_reject_calls() {
        let states = PartitionStates::default();
        let [one, two] = [1, 2].map(Partition::new);
        let check = |at| states.check(Some(at));
        states.set_closed(one, true);
        assert!(matches!(check(one), Err(Error::Recovering(_))));
        assert!(check(two).is_ok() && states.check(None).is_ok());
        states.await_check();
        assert!(check(two).unwrap_err().is_unavailable());
        states.serve(ServingState::Mismatched);
        assert!(matches!(states.check(None), Err(Error::Mismatched)));
        states.serve(ServingState::Open);
        assert!(check(two).is_ok() && check(one).is_err());
        states.set_closed(one, false);
        assert!(check(one).is_ok());
    }

    #[test]
    fn a_later_worker_does_not_close_what_is_checked() {
        let states = PartitionStates::default();
        states.await_check();
        states.clone().await_check();
        assert!(states.check(None).is_err());
        assert!(states.serve_unchecked() && !states.serve_unchecked());
        states.clone().await_check();
        assert!(states.check(None).is_ok());
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
