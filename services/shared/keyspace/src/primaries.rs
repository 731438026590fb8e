//! What a process knows of the primaries of its Redis: which one the Sentinels report, and how many
//! connections were made. The worker threads share it.

use std::{
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::lock::lock;

/// What is known of the primaries.
#[derive(Clone, Default)]
pub struct Primaries {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    // How many connections of the shared pool were made.
    reconnects: AtomicU64,
    // The address of the primary that the Sentinels report, with the epoch of their configuration.
    reported: Mutex<(String, u64)>,
    // How many times there was another one.
    generation: AtomicU64,
}

impl fmt::Debug for Primaries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Primaries").finish_non_exhaustive()
    }
}

// Configurations are compared by their flags.
impl PartialEq for Primaries {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl Eq for Primaries {}

impl Primaries {
    /// Notes the primary that the Sentinels report, with the epoch of their configuration. Returns its
    /// generation; `None` if a newer configuration is known: a Sentinel is late, or cut off. If all of
    /// them agree, they were configured anew.
    pub(crate) fn reported(&self, address: &str, epoch: u64, is_agreed: bool) -> Option<u64> {
        let mut reported = lock(&self.inner.reported);
        let (known, known_epoch) = &*reported;
        if epoch < *known_epoch && !is_agreed {
            return None;
        }
        if known != address && !known.is_empty() {
            self.changed(self.generation());
        }
        *reported = (address.to_owned(), epoch);
        Some(self.generation())
    }

    /// Notes that another server is the primary than that of a generation, unless that is known.
    pub(crate) fn changed(&self, generation: u64) {
        self.inner.generation.fetch_max(generation + 1, Ordering::AcqRel);
    }

    /// Returns the generation of the primary. Connections of an earlier one must not be used: all
    /// calls of the process must see the same server.
    pub(crate) fn generation(&self) -> u64 {
        self.inner.generation.load(Ordering::Acquire)
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_sentinel_does_not_bring_an_old_primary_back() {
        let primaries = Primaries::default();
        assert_eq!(primaries.reported("a", 1, true), Some(0));
        assert_eq!(primaries.reported("b", 2, false), Some(1));
        assert_eq!(primaries.reported("a", 1, false), None, "it is late");
        assert_eq!(primaries.reported("b", 2, false), Some(1));
        assert_eq!(primaries.reported("a", 1, true), Some(2), "all were configured anew");
    }

    #[test]
    fn a_change_is_noted_once() {
        let primaries = Primaries::default();
        primaries.changed(0);
        primaries.changed(0);
        assert_eq!(primaries.generation(), 1);
    }
}
