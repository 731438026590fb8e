//! How many calls the whole process works on at once. tonic's own limit is per connection, so
//! that many connections would get past it.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts the calls under way in a process, over all of its workers and services.
#[derive(Debug)]
pub(crate) struct Admission {
    limit: usize,
    under_way: AtomicUsize,
}

impl Admission {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, under_way: AtomicUsize::new(0) }
    }

    /// Takes a call in, unless there are as many as may be. Who was let in must [`leave`].
    ///
    /// [`leave`]: Self::leave
    pub(crate) fn enter(&self) -> bool {
        let admitted = self.under_way.fetch_add(1, Ordering::Relaxed) < self.limit;
        if !admitted {
            self.leave();
        }
        admitted
    }

    pub(crate) fn leave(&self) {
        self.under_way.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn under_way(&self) -> usize {
        self.under_way.load(Ordering::Relaxed)
    }
}
