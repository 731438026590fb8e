//! How many calls the whole process works on at once. tonic's own limit is per connection, so
//! that many connections would get past it.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

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

    /// Takes a call in, unless there are as many as may be.
    pub(crate) fn enter(self: &Arc<Self>) -> Option<Arc<Permit>> {
        let before = self.under_way.fetch_add(1, Ordering::Relaxed);
        // Dropped at once where there is no room.
        let permit = Permit(self.clone());
        (before < self.limit).then(|| Arc::new(permit))
    }

    pub(crate) fn under_way(&self) -> usize {
        self.under_way.load(Ordering::Relaxed)
    }
}

/// A call's place among those under way. The call shares it with the writes that it began, which
/// may outlive it; the place is free when the last of them is done.
#[derive(Debug)]
pub(crate) struct Permit(Arc<Admission>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}
